//! `treeswap check`.

use std::io::Write;
use std::process::ExitCode;

use std::path::{Path, PathBuf};

use super::Exit;
use super::flags::{self, FlagOrigins};
use super::sync::Args;
use crate::config::{self, Origin};
use crate::sources::List;
use crate::{app, detached_io, secret};

/// Validates, and prints the effective configuration: flags that `sync` takes, and where each came from.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    let settings = args.check(given)?;
    let listed = settings.sources.as_ref().map(config::listed).transpose()?;
    given.warnings.iter().for_each(super::warn);
    for (flag, path) in absent(&args.sync) {
        super::warn(format_args!("--{flag}={} cannot be read: {}", path.0.display(), path.1));
    }
    if let Some(list) = &listed {
        config::remarks_on(list).into_iter().for_each(super::warn);
        unreadable_credentials(list).into_iter().for_each(super::warn);
    }
    settings.remarks.iter().cloned().chain(app::missing(&settings)).for_each(super::warn);
    settings.mirror.sandbox.check().err().into_iter().for_each(super::warn); // another machine may have it
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
    text += &listed.as_ref().map(table).unwrap_or_default();
    // A reader that closes the pipe early (`| head`) has seen what it wanted.
    let _ = std::io::stdout().lock().write_all(secret::redacted(&text).as_bytes());
    say!("treeswap: the configuration is valid; no network was asked");
    Ok(Exit::Done.into())
}

/// The files that sources name for their credentials and that cannot be read here and now.
fn unreadable_credentials(list: &List) -> Vec<String> {
    let mut found = Vec::new();
    for source in &list.sources {
        for (key, file) in source.credentials.files() {
            if let Some(why) = unreadable(file) {
                found.push(format!(
                    "source {}: {key}: {} cannot be read: {why}",
                    source.name,
                    file.display()
                ));
            }
        }
    }
    found
}

/// The sources, as comments: what is printed is read again as flags.
fn table(list: &List) -> String {
    let top = |path: &str| if path.is_empty() { "/".to_owned() } else { path.to_owned() };
    let mut rows = vec![["source", "repo", "ref", "path", "to"].map(str::to_owned)];
    rows.extend(list.sources.iter().map(|source| {
        let repo = secret::redacted(&source.repo).into_owned();
        [source.name.clone(), repo, source.asked.clone(), top(&source.path), top(&source.to)]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("# {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Files that cannot be read here and now, with the reason. They may be there where `sync` runs, so it is no error.
fn absent(args: &config::Args) -> Vec<(&'static str, (PathBuf, std::io::Error))> {
    let named = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let one = [
        ("password-file", named(&args.credentials.password_file)),
        ("github-app-private-key-file", named(&args.credentials.github_app_private_key_file)),
        ("ca-file", named(&args.credentials.ca_file)),
        ("sparse-checkout-file", named(&args.source.sparse_checkout_file)),
    ];
    let one = one.into_iter().filter_map(|(flag, path)| Some((flag, path?)));
    one.filter_map(|(flag, path)| Some((flag, (path.clone(), unreadable(&path)?)))).collect()
}

fn unreadable(path: &Path) -> Option<std::io::Error> {
    detached_io::patiently(path, |path| std::fs::File::open(path).map(drop)).err()
}
