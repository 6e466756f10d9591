//! `treeswap check`.

use std::io::Write;
use std::process::ExitCode;

use std::path::{Path, PathBuf};

use super::Exit;
use super::flags::{self, FlagOrigins};
use super::sync::Args;
use crate::config::{self, Origin};
use crate::{app, detached_io, secret};

/// Validates, and prints the effective configuration: flags that `sync` takes, and where each came from.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    let settings = args.check(given)?;
    let sources = settings.sources.clone().filter(|sources| sources.file.exists());
    if let Some(sources) = sources {
        let file = sources.file.clone();
        let checked = detached_io::patiently(&file, move |_| {
            sources.check().map_err(|error| std::io::Error::other(error.to_string()))
        });
        checked.map_err(|error| anyhow::anyhow!("--sources={error}"))?;
    }
    given.warnings.iter().for_each(super::warn);
    for (flag, path) in absent(&args.sync) {
        super::warn(format_args!("--{flag}={} cannot be read: {}", path.0.display(), path.1));
    }
    settings.remarks.iter().cloned().chain(app::missing(&settings)).for_each(super::warn);
    let width = given.lines.iter().map(|line| line.to_string().chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for line in &given.lines {
        let flag = line.to_string();
        let origin = match &line.origin {
            Origin::Flag => "flag".to_owned(),
            Origin::Variable(name) => format!("${name}"),
            Origin::Default => "default".to_owned(),
        };
        text.push_str(&format!("{flag:width$}  # {origin}\n"));
    }
    let hidden = flags::hidden();
    let secrets = [("the password", hidden.password), ("the GitHub App's private key", hidden.private_key)];
    for (what, name) in secrets.into_iter().filter_map(|(what, found)| Some((what, found?.name))) {
        text.push_str(&format!("# {what} is {name}\n"));
    }
    // A reader that closes the pipe early (`| head`) has seen what it wanted.
    let _ = std::io::stdout().lock().write_all(secret::redacted(&text).as_bytes());
    say!("treeswap: the configuration is valid; no network was asked");
    Ok(Exit::Done.into())
}

/// Files that cannot be read here and now, with the reason. They may be there where `sync` runs, so it is no error.
fn absent(args: &config::Args) -> Vec<(&'static str, (PathBuf, std::io::Error))> {
    let named = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let one = [
        ("password-file", named(&args.credentials.password_file)),
        ("github-app-private-key-file", named(&args.credentials.github_app_private_key_file)),
        ("ca-file", named(&args.credentials.ca_file)),
        ("sparse-checkout-file", named(&args.source.sparse_checkout_file)),
        ("sources", named(&args.source.sources)),
    ];
    let one = one.into_iter().filter_map(|(flag, path)| Some((flag, path?)));
    let unreadable =
        |path: &Path| detached_io::patiently(path, |path| std::fs::File::open(path).map(drop)).err();
    one.filter_map(|(flag, path)| Some((flag, (path.clone(), unreadable(&path)?)))).collect()
}
