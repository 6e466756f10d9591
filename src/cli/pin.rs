//! `treeswap pin`: pins the current generation and executes a command, which inherits the pin.

use std::ffi::{OsStr, OsString};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::generation::{DATA_LINK, GenerationRecord};
use crate::pin::{Error, Pin, Protection, generation_named, within};
use crate::store::recorded;
use crate::{config, shutdown};

/// The variable with the path of the pinned directory.
pub const VARIABLE: &str = "TREESWAP_DIR";

/// The variables with the commit of the pinned generation and, with several sources, the commit of each. Hooks get the
/// same.
const REVISION: &str = "TREESWAP_REVISION";
const REVISIONS: &str = "TREESWAP_REVISIONS";

/// A shell's exit codes for a command that exists but cannot be run, and for one that does not exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Arguments of `treeswap pin`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    treeswap pin /config -- sh -c 'cd \"$TREESWAP_DIR\" && exec ./validate'\n  \
    treeswap pin --wait 60s /config -- indexer --from {}\n\n\
    The command gets the generation's own directory in TREESWAP_DIR and wherever {} stands in its arguments; its commit \
    in TREESWAP_REVISION, and the name and commit of each of several sources as JSON in TREESWAP_REVISIONS, where that is \
    on record. It must read that directory, not PATH, which may name a newer generation at any moment. The pin lasts until the command, and \
    every process that inherited it, has ended; the exit code and signals are the command's. 1: nothing could be \
    pinned, and nothing was run; 126: the command cannot be run; 127: there is no such command.")]
pub struct Args {
    /// The root; or a link that names a generation, as in git-sync's layout
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// PATH is the symbolic link itself, even if it does not exist yet
    #[arg(long)]
    pub link: bool,

    /// Wait up to this long for the first generation, or for a lock that is in the way
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = config::duration)]
    pub wait: Duration,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Pins the current generation and executes the command. Returns only on failure.
///
/// # Errors
/// When there is nothing to pin, no lock or no descriptor for it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    check_command(&args.command)?;
    shutdown::init::install_signal_handlers().context("cannot listen for signals")?;
    let pin = take_pin(&args)?;
    let inherited = pin.inheritable().context("cannot hand the pin to the command")?;
    let mut command = command(&args.command, &pin);
    let _ = inherited.into_raw_fd(); // the descriptor stays open across exec(2): its lock is the pin
    let error = command.exec();
    Ok(cannot_run(&args.command[0], &error))
}

/// Pins the current generation, waiting for it for up to `--wait`. Whether PATH is a root or a link is checked again
/// meanwhile, as it may not exist yet. A pin without a lock is none: the command would read what may go at any moment.
fn take_pin(args: &Args) -> Result<Pin, Error> {
    within(args.wait, |options| Pin::take_link(link_of(&args.path, args.link), options).and_then(Pin::locked))
}

/// Refuses an empty name of a command: nothing could ever be run.
pub(super) fn check_command(words: &[OsString]) -> Result<(), config::Error> {
    if words.first().is_some_and(|program| program.is_empty()) {
        let why = "it is empty: name the program to run".to_owned();
        return Err(config::Error::Value { name: "CMD".to_owned(), value: String::new(), why });
    }
    Ok(())
}

/// Prints why a command cannot be run, and returns a shell's exit code for it.
pub(super) fn cannot_run(program: &OsStr, error: &std::io::Error) -> ExitCode {
    say!("treeswap: cannot run {}: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

/// The link to the current generation: `path` itself with `--link`, if its target is called like a generation, or if it
/// is a symbolic link without `..data` below it; otherwise `..data` in the root `path`.
pub(super) fn link_of(path: &Path, is_link: bool) -> PathBuf {
    let path: PathBuf = path.components().collect(); // a slash at the end would follow the link
    let inner = path.join(DATA_LINK);
    // A generation is not looked into: the author of a commit may have put a `..data` there.
    let names_generation = || path.read_link().is_ok_and(|target| generation_named(&target).is_some());
    let looks_like_link = || path.is_symlink() && inner.symlink_metadata().is_err();
    if is_link || names_generation() || looks_like_link() { path } else { inner }
}

/// The command, with the pinned generation in its environment and in place of `{}`.
pub(super) fn command(words: &[OsString], pin: &Pin) -> Command {
    let place = pin.location().as_os_str();
    let mut command = Command::new(&words[0]);
    command.args(words[1..].iter().map(|word| expand_braces(word, place))).env(VARIABLE, place);
    command.env_remove(REVISION).env_remove(REVISIONS);
    if let Some(record) = recorded(pin.location()).filter(GenerationRecord::is_known) {
        command.env(REVISION, record.revision.to_string());
        let sources =
            record.sources.iter().map(|(name, revision)| json!({"name": name, "revision": revision}));
        if !record.sources.is_empty() {
            command.env(REVISIONS, Value::from_iter(sources).to_string());
        }
    }
    command
}

/// Replaces every `{}` in a word by the pinned directory, as find(1) does.
fn expand_braces(word: &OsStr, place: &OsStr) -> OsString {
    let mut rest = word.as_bytes();
    let mut text = Vec::new();
    while let Some(at) = rest.windows(2).position(|pair| pair == b"{}") {
        text.extend_from_slice(&rest[..at]);
        text.extend_from_slice(place.as_bytes());
        rest = &rest[at + 2..];
    }
    text.extend_from_slice(rest);
    OsString::from_vec(text)
}

/// The warning of `watch` if the generation could not be locked; `None` if the pin holds. `watch` runs its command
/// anyway: a reload that never comes would be worse.
pub(super) fn warning(pin: &Pin) -> Option<String> {
    let why = match pin.protection() {
        Protection::Locked => return None,
        Protection::Contended => "another process holds an exclusive lock on it",
        Protection::Unsupported => "this file system does not support locks",
        Protection::Unavailable => "this file system has no lock to give now",
    };
    Some(format!("{} is not pinned, only its grace period protects it: {why}", pin.location().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_recognized_with_a_slash_behind_it_and_whatever_the_tree_contains() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let commit = format!(".worktrees/{}", "1a".repeat(20));
        std::fs::create_dir_all(at("git").join(&commit)).unwrap();
        std::os::unix::fs::symlink(&commit, at("git/current")).unwrap();
        assert_eq!(link_of(&at("git/current/"), false), at("git/current"));
        std::os::unix::fs::symlink("/elsewhere", at("git").join(&commit).join("..data")).unwrap();
        assert_eq!(link_of(&at("git/current/"), false), at("git/current"));
        std::fs::create_dir(at("root")).unwrap();
        std::os::unix::fs::symlink("..2026_11_20_15_04_05.123456789", at("root/..data")).unwrap();
        std::os::unix::fs::symlink("root", at("alias")).unwrap();
        for root in ["root", "root/", "alias", "alias/"] {
            assert_eq!(link_of(&at(root), false), at(root).join("..data"), "{root}");
        }
        assert_eq!(link_of(&at("later/"), true), at("later"));
    }

    #[test]
    fn braces_become_the_place_wherever_they_stand() {
        let expand = |word: &str| expand_braces(word.as_ref(), "/r/..1".as_ref()).into_string().unwrap();
        assert_eq!(expand("{}"), "/r/..1");
        assert_eq!(expand("--from={}/a:{}/b"), "--from=/r/..1/a:/r/..1/b");
        assert_eq!(expand("{x}{"), "{x}{");
    }
}
