//! What an operator can do about an error of the mirror.

use std::io;

use rustix::io::Errno;

use super::{Error, wire};
use crate::sandbox;

/// Replacements in hints for one of several sources: each text that mentions a flag, and the text that mentions the key
/// of the `--sources` file instead. A flag that applies to all sources is mentioned beside the key.
pub(super) const FLAGS_AS_KEYS: &[(&str, &str)] = &[
    (
        "name the private key with --ssh-key-file; it may be given several times",
        "name the private key by `credentials: {ssh-key-file: …}` of the source, or with --ssh-key-file for all",
    ),
    (
        "--username and --password-file,",
        "`credentials` of the source (`username` and `password-file`), for all sources with the flags of these names,",
    ),
    (
        "--ssh-key-file names",
        "`ssh-key-file` in the `credentials` of the source, or --ssh-key-file for all, names",
    ),
    (
        "--ssh-known-hosts-file names",
        "`ssh-known-hosts-file` in the `credentials` of the source, or --ssh-known-hosts-file for all, names",
    ),
    ("as --repo", "as `repo` of the source"),
    ("--ref", "`ref` of the source"),
];

impl Error {
    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        let one = |text: &str| vec![text.to_owned()];
        match self {
            Self::Wire(error) => error.hints(),
            Self::Unsent { source, .. } => {
                let mut hints = source.hints();
                if hints.is_empty() && matches!(**source, wire::Error::Remote { .. }) {
                    hints = one(
                        "the remote rejects it itself: run `git fsck` on the remote to see what is wrong",
                    );
                }
                hints
            }
            Self::Module { source, .. } => source.hints(),
            Self::OfSource { source, .. } => source.hints_of_source(),
            Self::Collision { .. } | Self::Trespass { .. } => {
                one("remove it from one of them, or place one elsewhere (`to` in --sources)")
            }
            Self::SameBaseName { .. } => one("rename one of them, or leave it out (`sparse` in --sources)"),
            Self::Local { .. } if self.is_full() => one(
                "the volume is full: make it larger, or lower --grace; the mirror needs about the size of the repository's pack, twice while it is renewed",
            ),
            // If the indexing process could not enter its sandbox, the volume is not the cause.
            Self::Local { source, .. } => {
                sandbox::hints_about(&source.to_string()).unwrap_or_else(|| one(about_volume(source)))
            }
            Self::Foreign { .. } => one(
                "give --mirror an empty directory, or one that does not exist yet; in git-sync's layout, where the mirror is ROOT/.git, give --root another directory",
            ),
            Self::Locked { .. } => one("one mirror serves one root: give each its own --mirror"),
            Self::Damaged { .. } => {
                one("the mirror is a cache: the next attempt rebuilds it, and what is published stays")
            }
            Self::Irreplaceable { .. } => one(
                "consumers may have committed to it, so it is not fetched anew: save what they have, then delete it while treeswap is stopped",
            ),
            Self::Incomplete { .. } => {
                one("the remote's repository may be damaged: `git fsck` there shows it")
            }
            Self::NotACommit { .. } => one("choose a branch, a tag of a commit, or a commit"),
            Self::IndexMemory { .. } => {
                one("if the repository is yours and really that large, raise --index-memory")
            }
            Self::IndexKilled { .. } => one("raise the container's memory limit, or lower --index-memory"),
            Self::IndexTimeout { .. } => {
                one("raise --sync-timeout if the repository is large or the disk slow")
            }
            Self::FetchBytes { .. } => {
                one("if the repository is yours and really that large, raise --max-fetch-bytes")
            }
            Self::Indexer { .. } => {
                one("treeswap starts itself for this: it must be allowed to run its own binary")
            }
            Self::Sparse { .. } => one("patterns are written like those of gitignore(5)"),
            Self::Refused(refusal) => refusal.hints(),
            Self::Git { .. } => one(
                "the mirror is a cache: if this persists, delete it while treeswap is stopped; what is published stays",
            ),
            Self::BadPack { .. } => one(
                "it may have been corrupted in transit; if it persists, run `git fsck` in the remote's repository",
            ),
            Self::NoModule { .. } => {
                one("it is fetched at the next attempt; if that fails, its error has the reason")
            }
            Self::GarbageInUse { .. } => {
                one("it is removed at the next attempt; if this persists, raise --max-mirror-bytes")
            }
            Self::KeptSubmodules { .. } => {
                one("those of earlier generations go with them; if this persists, raise --max-mirror-bytes")
            }
            Self::Cancelled => one("nothing to do: treeswap is shutting down"),
        }
    }

    /// Hints for one of several sources: they mention keys of the `--sources` file instead of flags.
    pub fn hints_of_source(&self) -> Vec<String> {
        let in_file =
            |hint: String| FLAGS_AS_KEYS.iter().fold(hint, |hint, (flag, key)| hint.replace(flag, key));
        self.hints().into_iter().map(in_file).collect()
    }
}

/// The hint for the operator if the mirror's files cannot be used.
fn about_volume(source: &io::Error) -> &'static str {
    if matches!(Errno::from_io_error(source), Some(Errno::MFILE | Errno::NFILE)) {
        return "raise the limit of open files (ulimit -n): each pack of a mirror that is read takes one";
    }
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the mirror must be writable by the user that treeswap runs as"
        }
        _ => "check the mirror's volume; the mirror is a cache, and may be deleted while treeswap is stopped",
    }
}
