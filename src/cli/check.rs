//! `treeswap check`: validates the configuration of `sync` without network access, warns about files that cannot be
//! read, and prints the effective configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Exit;
use super::flags::{self, FlagOrigins};
use super::sync::Args;
use crate::config::{self, Origin, Settings};
use crate::mirror::wire::ssh::KnownHosts;
use crate::sources::SourcesFile;
use crate::{app, detached_io, secret};

/// Validates the configuration and prints it as flags of `sync`, each with the origin of its value.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    given.warnings.iter().for_each(super::warn); // a variable without effect may be why something is missing
    let settings = args.check(given)?;
    let listed = settings.sources.as_ref().map(config::listed).transpose()?;
    for (flag, path, error) in unreadable_files(&args.sync, &settings, given) {
        super::warn(format_args!("--{flag}={} cannot be read: {error}", path.display()));
    }
    if let Some(list) = &listed {
        config::warnings_about(list).into_iter().for_each(super::warn);
        unreadable_credentials(list).into_iter().for_each(super::warn);
    }
    settings.warnings.iter().cloned().chain(app::startup_warnings(&settings)).for_each(super::warn);
    // Only a warning: `sync` may run on another kernel.
    settings.mirror.sandbox.check().err().into_iter().for_each(super::warn);
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
    text += &listed.as_ref().map(source_table).unwrap_or_default();
    super::print(secret::redacted(&text).as_bytes());
    say!("treeswap: the configuration is valid; the repository, the root and clusters were not looked at");
    Ok(Exit::Done.into())
}

/// A warning for each credential file of a source that cannot be read by this process.
fn unreadable_credentials(list: &SourcesFile) -> Vec<String> {
    let mut found = Vec::new();
    for source in &list.sources {
        for (key, file) in source.credentials.files() {
            if let Some(why) = read_error(file, key == "password-file") {
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

/// The sources as a table in comments, as the rest of the output can be used as flags again.
fn source_table(list: &SourcesFile) -> String {
    let top = |path: &str| if path.is_empty() { "/".to_owned() } else { path.to_owned() };
    let mut rows = vec![["source", "repo", "ref", "path", "to"].map(str::to_owned)];
    rows.extend(list.sources.iter().map(|source| {
        let repo = secret::redacted(&source.repo).into_owned();
        [source.name.clone(), repo, source.ref_text.clone(), top(&source.path), top(&source.to)]
    }));
    super::columns(&rows, |_| false).iter().map(|line| format!("# {line}\n")).collect()
}

/// Files of flags that cannot be read by this process: flag, path and error. They may exist where `sync` runs, so this
/// is no error.
fn unreadable_files(
    args: &config::Args,
    settings: &Settings,
    origins: &FlagOrigins,
) -> Vec<(&'static str, PathBuf, std::io::Error)> {
    let files = [
        ("password-file", &args.credentials.password_file),
        ("github-app-private-key-file", &args.credentials.github_app_private_key_file),
        ("ca-file", &args.credentials.ca_file),
        ("sparse-checkout-file", &args.source.sparse_checkout_file),
    ];
    let given = files.into_iter().filter(|(_, path)| !path.is_empty());
    let given = given.map(|(flag, path)| (flag, PathBuf::from(path)));
    // The defaults are places in an image, which need no file.
    let ssh = &settings.mirror.wire.ssh;
    let keys = ssh.keys.iter().map(|path| ("ssh-key-file", path));
    let hosts = match &ssh.known_hosts {
        KnownHosts::Strict(path) => Some(("ssh-known-hosts-file", path)),
        KnownHosts::Off => None,
    };
    let of_ssh = keys.chain(hosts).filter(|(flag, _)| origins.is_given(flag));
    given
        .chain(of_ssh.map(|(flag, path)| (flag, path.clone())))
        .filter_map(|(flag, path)| {
            let needs_text = matches!(flag, "password-file" | "github-app-private-key-file");
            let error = read_error(&path, needs_text)?;
            Some((flag, path, error))
        })
        .collect()
}

/// The error of opening a file for reading, if there is one. A file that `needs_text` must not be empty.
fn read_error(path: &Path, needs_text: bool) -> Option<std::io::Error> {
    let read = move |path: &Path| {
        let found = std::fs::File::open(path)?.metadata()?;
        let is_empty = needs_text && found.is_file() && found.len() == 0;
        if is_empty { Err(std::io::Error::other("it is empty")) } else { Ok(()) }
    };
    detached_io::wait_for_io(path, read).err()
}
