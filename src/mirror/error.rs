//! What can go wrong in the mirror, whether trying again helps, and what an operator can do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::wire;
use crate::fsx::needs_operator;
use crate::human;
use crate::payload::{Refusal, Rule};
use crate::revision::{ObjectId, Revision};
use crate::sandbox;

/// libgit2's error, shown by its message alone: class and code are numbers of the library's.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message())]
pub struct Libgit2(pub(super) git2::Error);

/// What went wrong in the mirror or on the way to the remote.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the mirror could not be read or written.
    #[error("{act} {}", path.display())]
    Local {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The directory given for the mirror holds something else.
    #[error("{} is not empty and is no mirror of ours", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Another process works on this mirror.
    #[error("another process uses the mirror {}", path.display())]
    Locked {
        /// The mirror.
        path: PathBuf,
    },
    /// libgit2 failed where it should not.
    #[error("{act}")]
    Git {
        /// What was tried.
        act: String,
        /// libgit2's own words.
        #[source]
        source: Libgit2,
    },
    /// An object that should be in the mirror is not there or not readable. The next fetch makes the mirror anew.
    #[error("the mirror lacks an object of {revision}")]
    Damaged {
        /// The revision it was needed for.
        revision: Revision,
        /// Which object, and how.
        #[source]
        lack: Lack,
    },
    /// The remote could not be asked.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// The remote was asked for a pack and sent none, or not all of it.
    #[error("the remote does not send {wanted}")]
    Unsent {
        /// The tip that was asked for.
        wanted: ObjectId,
        /// The remote, and its own words if it said any.
        #[source]
        source: Box<wire::Error>,
    },
    /// The remote sent a pack, but what was asked for is not all in it.
    #[error("the remote's answer for {asked} is incomplete{}", because_of(at.as_deref()))]
    Incomplete {
        /// The tip that was asked for.
        asked: ObjectId,
        /// The path that leads to what is missing, if one does.
        at: Option<Box<str>>,
        /// The first object that is missing.
        #[source]
        lack: Lack,
    },
    /// What the ref names is no commit.
    #[error("{asked} names a {kind}, not a commit")]
    NotACommit {
        /// The ref or id.
        asked: String,
        /// What it is.
        kind: String,
    },
    /// The pack does not parse or its hashes are wrong.
    #[error("the remote sent a pack that cannot be indexed: {why}")]
    BadPack {
        /// libgit2's own words.
        why: String,
    },
    /// The child process needed more memory than it may have.
    #[error("{task} needs more than the {} of memory it may use (--index-memory)", human::bytes(*limit))]
    IndexMemory {
        /// What it was to do.
        task: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The child process was killed, by the kernel or a user.
    #[error(
        "the process for {task} was killed, most likely because the container's memory is used up \
         (it may take {}, --index-memory)",
        human::bytes(*limit)
    )]
    IndexKilled {
        /// What it was to do.
        task: &'static str,
        /// Its own limit, in bytes.
        limit: u64,
    },
    /// The pack is larger than it may be.
    #[error("the remote sent more than {} (--max-fetch-bytes)", human::bytes(*limit))]
    FetchBytes {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The indexing child could not be started or died.
    #[error("the indexing process {}: {why}", program.display())]
    Indexer {
        /// The program.
        program: PathBuf,
        /// What happened to it.
        why: String,
    },
    /// A pattern is not one of git's.
    #[error("sparse pattern {line:?}: {why}")]
    Sparse {
        /// The pattern as written.
        line: String,
        /// What is wrong with it.
        why: String,
    },
    /// The revision's tree may not be published.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A submodule could not be fetched.
    #[error("submodule {path} ({url})")]
    Module {
        /// Where it lies.
        path: String,
        /// From where, without secrets.
        url: String,
        /// Why not.
        #[source]
        source: Box<Self>,
    },
    /// One source of several.
    #[error("source {name}")]
    OfSource {
        /// What it is called.
        name: String,
        /// What is wrong with it.
        #[source]
        source: Box<Self>,
    },
    /// Two sources that are placed over each other have something there that is not a directory in both.
    #[error("sources {one} and {other} both have `{path}`")]
    Collision {
        /// Where, escaped.
        path: String,
        /// The one.
        one: String,
        /// The other one.
        other: String,
    },
    /// A source has something where another one is placed.
    #[error("source {other} has `{path}`, where source {owner} is placed")]
    Trespass {
        /// Where, escaped.
        path: String,
        /// Whose place it is.
        owner: String,
        /// Who has something there.
        other: String,
    },
    /// Two files share a base name that must not.
    #[error(
        "`{path}` of source {one} and `{other_path}` of source {other} have one base name, which `unique-base-names` forbids"
    )]
    SameBaseName {
        /// Where the one is, escaped.
        path: String,
        /// Whose it is.
        one: String,
        /// Where the other one is, escaped.
        other_path: String,
        /// Whose that is.
        other: String,
    },
    /// A submodule's commit is not in its mirror. The next fetch brings it.
    #[error("commit {commit} of submodule {path} is not in the mirror")]
    NoModule {
        /// Where it lies.
        path: String,
        /// Which commit.
        commit: ObjectId,
    },
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
}

/// What hints say of flags, and what they say instead where the repository is one of several. A flag that counts for all
/// sources is named beside the key.
const FLAGS_AS_KEYS: &[(&str, &str)] = &[
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

fn because_of(path: Option<&str>) -> String {
    path.map(|path| format!(" because of `{path}`")).unwrap_or_default()
}

/// Why an object cannot be had; shown as the source of other errors.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Lack(#[from] pub(super) super::lack::Lack);

impl Error {
    /// Whether the same attempt may succeed later without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Wire(error) => error.is_transient(),
            Self::Unsent { source, .. } => source.is_transient(),
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.is_transient(),
            Self::Local { source, .. } => !needs_operator(source.kind()),
            Self::Git { .. }
            | Self::Locked { .. }
            | Self::Damaged { .. }
            | Self::Incomplete { .. }
            | Self::BadPack { .. }
            | Self::IndexKilled { .. }
            | Self::Indexer { .. }
            | Self::NoModule { .. }
            | Self::Cancelled => true,
            Self::Foreign { .. }
            | Self::NotACommit { .. }
            | Self::IndexMemory { .. }
            | Self::FetchBytes { .. }
            | Self::Sparse { .. }
            | Self::Collision { .. }
            | Self::Trespass { .. }
            | Self::SameBaseName { .. }
            | Self::Refused(_) => false,
        }
    }

    /// Whether the mirror's volume, or the quota on it, is used up.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Local { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.is_full(),
            _ => false,
        }
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let one = |text: &str| vec![text.to_owned()];
        match self {
            Self::Wire(error) => error.hints(),
            Self::Unsent { source, .. } => {
                let mut hints = source.hints();
                if hints.is_empty() && matches!(**source, wire::Error::Remote { .. }) {
                    hints = one(
                        "the remote refuses it before anything of it is seen here: `git fsck` there names what is wrong",
                    );
                }
                hints
            }
            Self::Module { source, .. } => source.hints(),
            Self::OfSource { source, .. } => source.hints_of_source(),
            Self::Collision { .. } | Self::Trespass { .. } => one(
                "remove it from one of them, or place one elsewhere (`to` in --sources); until then the generation before stays published",
            ),
            Self::SameBaseName { .. } => one(
                "rename one of them, or leave it out (`sparse` in --sources); until then the generation before stays published",
            ),
            Self::Local { .. } if self.is_full() => one(
                "the volume is full: the mirror needs about the size of the repository's pack, twice while it is renewed",
            ),
            // Where nothing limits the indexing process, the volume is not what is wrong.
            Self::Local { source, .. } => {
                sandbox::hints_about(&source.to_string()).unwrap_or_else(|| one(about_volume(source.kind())))
            }
            Self::Foreign { .. } => one("give --mirror an empty directory, or one that does not exist yet"),
            Self::Locked { .. } => one("one mirror serves one root: give each its own --mirror"),
            Self::Damaged { .. } => {
                one("the mirror is a cache: the next attempt makes it anew, and what is published stays")
            }
            Self::Incomplete { .. } => {
                one("the remote's repository may be damaged: `git fsck` there shows it")
            }
            Self::NotACommit { .. } => one("only commits, and tags of commits, can be published"),
            Self::IndexMemory { .. } => {
                one("if the repository is yours and really that large, raise --index-memory")
            }
            Self::IndexKilled { .. } => one("raise the container's memory limit, or lower --index-memory"),
            Self::FetchBytes { .. } => {
                one("if the repository is yours and really that large, raise --max-fetch-bytes")
            }
            Self::Indexer { .. } => {
                one("treeswap starts itself for this: it must be allowed to run its own binary")
            }
            Self::Sparse { .. } => one("patterns are written like those of gitignore(5)"),
            Self::Refused(refusal) => refusal.hints(),
            Self::Git { .. } => one(
                "the mirror is a cache: if this lasts, delete it while treeswap is stopped; what is published stays",
            ),
            Self::BadPack { .. } => one(
                "something in between may have garbled it; if it lasts, run `git fsck` in the remote's repository",
            ),
            Self::NoModule { .. } => {
                one("it is fetched at the next attempt; if that fails, that failure says why")
            }
            Self::Cancelled => one("nothing to do: the process was asked to end"),
        }
    }

    /// libgit2 could not write in a repository of ours.
    pub(super) fn unwritten(act: &'static str, dir: &Path, source: git2::Error) -> Self {
        if source.class() != git2::ErrorClass::Os {
            return Self::Git { act: format!("{act} {}", dir.display()), source: Libgit2(source) };
        }
        let why = source.message();
        Self::Local { act, path: dir.to_owned(), source: io::Error::new(kind_of(why), why) }
    }

    /// The same of one source of several: what flags are for one repository, keys of its entry in the file are for it.
    pub fn hints_of_source(&self) -> Vec<String> {
        let in_file =
            |hint: String| FLAGS_AS_KEYS.iter().fold(hint, |hint, (flag, key)| hint.replace(flag, key));
        self.hints().into_iter().map(in_file).collect()
    }

    /// An object that `revision` needs cannot be had.
    pub(super) fn damaged(revision: Revision, lack: super::lack::Lack) -> Self {
        if let super::lack::Lack::TooLarge { id, expected, bytes, limit } = lack {
            return Self::too_large(revision, format!("{expected} {id}"), bytes, limit);
        }
        Self::Damaged { revision, lack: Lack(lack) }
    }

    /// An object that is larger than anything of its kind is read. To fetch it again would not help.
    pub(super) fn too_large(revision: Revision, path: String, bytes: u64, limit: u64) -> Self {
        Refusal { revision, path, rule: Rule::ObjectBytes { bytes, limit } }.into()
    }

    /// Whether it is the commit that is refused, so that only another one helps.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) | Self::NotACommit { .. } => true,
            // The same pack would be fetched and thrown away again.
            Self::IndexMemory { .. } | Self::FetchBytes { .. } => true,
            Self::Wire(wire::Error::TooMuch { budget: wire::Budget::Pack, .. }) => true,
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.is_refusal(),
            Self::Collision { .. } | Self::Trespass { .. } | Self::SameBaseName { .. } => true,
            _ => false,
        }
    }

    /// Whether it is the way to the remote that failed, not what the remote has.
    pub fn is_cut(&self) -> bool {
        let of_way =
            |error: &wire::Error| error.is_transient() && !matches!(error, wire::Error::Remote { .. });
        match self {
            Self::Wire(error) => of_way(error),
            Self::Unsent { source, .. } => of_way(source),
            _ => false,
        }
    }

    /// How long the remote wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Wire(error) => error.retry_after(),
            Self::Unsent { source, .. } => source.retry_after(),
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.retry_after(),
            _ => None,
        }
    }

    /// Whether the error says that the mirror's content is not what it should be.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::OfSource { source, .. } => source.is_damage(),
            _ => false,
        }
    }
}

/// What an operator can do where the mirror's files cannot be used.
fn about_volume(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the mirror must be writable by the user that treeswap runs as"
        }
        _ => {
            "look at the mirror's volume; the mirror is a cache, and may be deleted while treeswap is stopped"
        }
    }
}

/// What a system's answer means, of which libgit2 hands on the text alone.
pub(super) fn kind_of(why: &str) -> io::ErrorKind {
    let means = [
        ("No space left on device", io::ErrorKind::StorageFull),
        ("Disk quota exceeded", io::ErrorKind::QuotaExceeded),
        ("Read-only file system", io::ErrorKind::ReadOnlyFilesystem),
        ("Permission denied", io::ErrorKind::PermissionDenied),
    ];
    means.into_iter().find(|(text, _)| why.contains(text)).map_or(io::ErrorKind::Other, |(_, kind)| kind)
}

#[cfg(test)]
mod tests;
