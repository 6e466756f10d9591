//! `treeswap check`: validates the configuration of `sync` without network access, warns about files that cannot be
//! read, and prints the effective configuration.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use super::Exit;
use super::flags::{self, FlagOrigins};
use super::sync::Args;
use crate::config::{self, Origin, Settings};
use crate::mirror::wire::ssh::{KnownHosts, unusable_key};
use crate::secret::SecretFrom;
use crate::sources::SourcesFile;
use crate::{app, detached_io, fsx, secret};

/// Validates the configuration and prints it as flags of `sync`, each with the origin of its value.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    given.warnings.iter().for_each(super::warn); // a variable without effect may be why something is missing
    let settings = args.check(given)?;
    let listed = settings.sources.as_ref().map(config::listed).transpose()?;
    unreadable_files(&args.sync, &settings, given).into_iter().for_each(super::warn);
    unusable_keys(&settings, given).into_iter().for_each(super::warn);
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

/// A warning for each credential file of a source that cannot be read by this process, or that holds no ssh key that
/// can be used.
fn unreadable_credentials(list: &SourcesFile) -> Vec<String> {
    let mut found = Vec::new();
    for source in &list.sources {
        for (key, file) in source.credentials.files() {
            if let Some(why) = read_error(file, key) {
                let file = file.display();
                found.push(format!("source {}: {key}: {file} cannot be read: {why}", source.name));
            } else if key == "ssh-key-file"
                && let Some(why) = key_problem(file)
            {
                found.push(format!("source {}: {key}: {why}", source.name));
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
        let repo = secret::redact(&source.repo); // also what is too short to be looked for in other text
        [source.name.clone(), repo, source.ref_text.clone(), top(&source.path), top(&source.to)]
    }));
    super::columns(&rows, |_| false).iter().map(|line| format!("# {line}\n")).collect()
}

/// A warning for each file of a flag that cannot be read by this process. It may exist where `sync` runs, so this is no
/// error.
fn unreadable_files(args: &config::Args, settings: &Settings, origins: &FlagOrigins) -> Vec<String> {
    let files = [
        ("github-app-private-key-file", &args.credentials.github_app_private_key_file),
        ("ca-file", &args.credentials.ca_file),
        ("sparse-checkout-file", &args.source.sparse_checkout_file),
    ];
    let given = files.into_iter().filter(|(_, path)| !path.is_empty());
    let given = given.map(|(flag, path)| (flag, Path::new(path)));
    let wire = &settings.mirror.wire;
    let passwords = wire.credentials.iter().filter_map(|one| match &one.password {
        // The credential of `--username` has no URL.
        SecretFrom::File(path) if one.url.is_none() => Some(("password-file", path.as_path())),
        SecretFrom::File(path) => Some(("credential", path.as_path())),
        SecretFrom::Value(_) => None,
    });
    let keys = wire.ssh.keys.iter().map(|path| ("ssh-key-file", path.as_path()));
    let hosts = match &wire.ssh.known_hosts {
        KnownHosts::Strict(path) => Some(("ssh-known-hosts-file", path.as_path())),
        KnownHosts::Off => None,
    };
    // The defaults are places in an image, which need no file.
    let of_ssh = keys.chain(hosts).filter(|(flag, _)| origins.is_given(flag));
    let warning = |(flag, path): (&str, &Path)| {
        let error = read_error(path, flag)?;
        let path = path.display();
        Some(match flag {
            "credential" => format!("--credential: the password file {path} cannot be read: {error}"),
            _ => format!("--{flag}={path} cannot be read: {error}"),
        })
    };
    let warnings: BTreeSet<String> = passwords.chain(given).chain(of_ssh).filter_map(warning).collect();
    Vec::from_iter(warnings) // several credentials may have one file
}

/// A warning for each file of `--ssh-key-file` that can be read and holds no key that can be used.
fn unusable_keys(settings: &Settings, origins: &FlagOrigins) -> Vec<String> {
    let keys = settings.mirror.wire.ssh.keys.iter().filter(|_| origins.is_given("ssh-key-file"));
    keys.filter_map(|file| key_problem(file)).map(|why| format!("--ssh-key-file: {why}")).collect()
}

/// Why a file that can be read holds no ssh key that can be used; `None` if it does.
fn key_problem(file: &Path) -> Option<String> {
    detached_io::wait_for_io(file, |file| Ok(unusable_key(file))).ok()?
}

/// Why a flag's file cannot be read, or used as what an attempt reads it as; `None` if it can.
fn read_error(path: &Path, flag: &str) -> Option<std::io::Error> {
    let read: fn(&Path) -> std::io::Result<()> = match flag {
        "password-file" | "credential" | "github-app-private-key-file" => read_secret,
        "sparse-checkout-file" => read_patterns,
        _ => open,
    };
    detached_io::wait_for_io(path, read).err()
}

fn open(path: &Path) -> std::io::Result<()> {
    std::fs::File::open(path).map(drop)
}

fn read_secret(path: &Path) -> std::io::Result<()> {
    match secret::read_text(path) {
        Ok(text) if text.is_empty() => Err(std::io::Error::other("it is empty")),
        Ok(_) => Ok(()),
        Err(secret::Error::Read { source, .. }) => Err(source),
        Err(error) => Err(std::io::Error::other(error)),
    }
}

/// As an attempt reads them: text of at most 1 MiB.
fn read_patterns(path: &Path) -> std::io::Result<()> {
    fsx::read_text(std::fs::File::open(path)?, 1 << 20).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_attempt_cannot_use_is_no_better_for_check() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let why = |flag: &str, content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            read_error(&path, flag).map(|error| error.to_string()).unwrap_or_default()
        };
        for flag in ["password-file", "github-app-private-key-file"] {
            assert_eq!(why(flag, b"hunter2\n"), "");
            assert_eq!(why(flag, b""), "it is empty");
            assert!(why(flag, b"\xff\xfe").contains("is not UTF-8 text"));
            assert!(why(flag, "x".repeat(100_000).as_bytes()).contains("is longer than 64 KiB"));
            assert!(read_error(Path::new("/dev/zero"), flag).is_some());
        }
        let flag = "sparse-checkout-file";
        assert_eq!(why(flag, b"/jobs/\n") + &why(flag, b""), "");
        assert_eq!(why(flag, b"\xff\xfe"), "it is not valid UTF-8");
        assert_eq!(why(flag, "x".repeat((1 << 20) + 1).as_bytes()), "it has more than 1 MiB");
        assert!(read_error(Path::new("/dev/zero"), flag).is_some());
        assert!(unusable_key(Path::new("/dev/zero")).unwrap().contains("it has more than 16 MiB"));
        assert_eq!(why("ca-file", b"\xff\xfe"), "", "text of any encoding may be between certificates");
    }

    #[test]
    fn a_password_in_a_sources_url_is_not_shown_however_short_it_is() {
        let text = "version: 1\nsources:\n  - {name: a, repo: 'https://me:hun5@h/x', to: a}\n  \
                    - {name: b, repo: 'ssh://me:pw@h/x', to: b}\nend: true\n";
        let shown = source_table(&SourcesFile::parse(text).unwrap());
        assert!(!shown.contains("hun5") && !shown.contains(":pw"), "{shown}");
        assert!(shown.contains("https://h/x") && shown.contains("ssh://me@h/x"), "{shown}");
    }

    #[test]
    fn an_ssh_key_of_a_source_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let list = format!(
            "version: 1\nsources:\n  - {{name: a, repo: git@git.example.com:a.git, credentials: {{ssh-key-file: {0}, \
             ssh-known-hosts-file: {0}}}}}\nend: true\n",
            path.display()
        );
        let list = SourcesFile::parse(&list).unwrap();
        let missing = unreadable_credentials(&list);
        assert!(missing.len() == 2 && missing[0].contains(" cannot be read: "), "{missing:?}");
        std::fs::write(&path, "ssh-ed25519 AAAA me\n").unwrap();
        let public = unreadable_credentials(&list);
        let begin = "source a: ssh-key-file: ";
        assert!(public.len() == 1 && public[0].starts_with(begin), "{public:?}");
        assert!(public[0].contains("it is a public key"), "{public:?}");
    }
}
