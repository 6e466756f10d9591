//! The mirror's errors, whether a retry can help and, in `hints`, what an operator can do.

mod hints;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::object_error::ObjectError;
use super::wire;
use crate::fsx::needs_operator;
use crate::human;
use crate::payload::{Refusal, Rule};
use crate::retry::ErrorClass;
use crate::revision::{ObjectId, Revision};

/// An error of libgit2, shown by its message alone, without libgit2's numeric class and code.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message())]
pub struct Libgit2(pub(super) git2::Error);

/// An error in the mirror or in the communication with the remote.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the mirror could not be read or written.
    #[error("{act} {}", path.display())]
    Local {
        /// The action that failed.
        act: &'static str,
        /// The path that it failed for.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The directory given for the mirror has other content.
    #[error("{} is not empty and is not a mirror of treeswap", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Another process holds the mirror's lock.
    #[error("another process uses the mirror {}", path.display())]
    Locked {
        /// The mirror.
        path: PathBuf,
    },
    /// An operation of libgit2 failed.
    #[error("{act}")]
    Git {
        /// The action that failed.
        act: String,
        /// libgit2's error.
        #[source]
        source: Libgit2,
    },
    /// An object that should be in the mirror is missing or unreadable. The next fetch recreates the mirror.
    #[error("the mirror lacks an object of {revision}")]
    Damaged {
        /// The revision that needs it.
        revision: Revision,
        /// The object, and why it could not be read.
        #[source]
        source: ObjectError,
    },
    /// An object in the repository of git-sync's layout cannot be read. The repository is not fetched anew, because
    /// consumers may have committed to it.
    #[error("cannot collect garbage in {}", path.display())]
    Irreplaceable {
        /// The repository.
        path: PathBuf,
        /// The object, and why it could not be read.
        #[source]
        source: ObjectError,
    },
    /// The communication with the remote failed.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// The remote sent no pack, or only a part of it.
    #[error("the remote does not send {wanted}")]
    Unsent {
        /// The tip that was asked for.
        wanted: ObjectId,
        /// The remote's message, or how the transfer failed.
        #[source]
        source: Box<wire::Error>,
    },
    /// The remote sent a pack that does not contain everything that was asked for.
    #[error("the remote's answer for {requested} is incomplete{}", because_of(at.as_deref()))]
    Incomplete {
        /// The tip that was asked for.
        requested: ObjectId,
        /// A path that leads to the missing object, if there is one.
        at: Option<Box<str>>,
        /// The first missing object.
        #[source]
        source: ObjectError,
    },
    /// The ref does not name a commit.
    #[error("{requested} names a {kind}, not a commit")]
    NotACommit {
        /// The ref or id.
        requested: String,
        /// The type of the object.
        kind: String,
    },
    /// The pack is malformed or has wrong hashes.
    #[error("the remote sent a pack that cannot be indexed: {why}")]
    BadPack {
        /// What is wrong with it.
        why: String,
    },
    /// The child process reached its memory limit.
    #[error("{task} needs more than the {} of memory it may use (--index-memory)", human::bytes(*limit))]
    IndexMemory {
        /// The task of the child process.
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
        /// The task of the child process.
        task: &'static str,
        /// Its own memory limit, in bytes.
        limit: u64,
    },
    /// The child process took too long and was killed.
    #[error("{task} took longer than {}s (--sync-timeout)", limit.as_secs_f64())]
    IndexTimeout {
        /// The task of the child process.
        task: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The pack exceeds the size limit.
    #[error("the remote sent more than {} (--max-fetch-bytes)", human::bytes(*limit))]
    FetchBytes {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The indexing child process could not be started, or died.
    #[error("the indexing process {}: {why}", program.display())]
    Indexer {
        /// The program.
        program: PathBuf,
        /// What happened.
        why: String,
    },
    /// A sparse pattern is malformed.
    #[error("sparse pattern {line:?}: {why}")]
    Sparse {
        /// The pattern as written.
        line: String,
        /// The reason.
        why: String,
    },
    /// The rules refuse to publish the revision's tree.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The mirrors of submodules are too large, but readers keep garbage in them from being removed.
    #[error(
        "the submodules have more than {} (--max-mirror-bytes) while garbage is still read",
        human::bytes(*limit)
    )]
    GarbageInUse {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The mirrors of submodules are too large only because of those that earlier revisions have, or may have, or that
    /// are still read.
    #[error(
        "the submodules have more than {} (--max-mirror-bytes), and those of earlier generations cannot be removed yet",
        human::bytes(*limit)
    )]
    KeptSubmodules {
        /// The limit, in bytes.
        limit: u64,
    },
    /// A submodule could not be fetched.
    #[error("submodule {path} ({url})")]
    Module {
        /// The path of the submodule.
        path: String,
        /// The URL, without secrets.
        url: String,
        /// Why it could not be fetched.
        #[source]
        source: Box<Self>,
    },
    /// One of several sources failed.
    #[error("source {name}")]
    OfSource {
        /// The name of the source.
        name: String,
        /// Why it failed.
        #[source]
        source: Box<Self>,
    },
    /// Two sources have the same path, and it is not a directory in both.
    #[error("sources {one} and {other} both have `{path}`")]
    Collision {
        /// The path, escaped.
        path: String,
        /// The name of the first source.
        one: String,
        /// The name of the second source.
        other: String,
    },
    /// A source has an entry at the path at which another source is placed.
    #[error("source {other} has `{path}`, {place} {owner} is placed")]
    Trespass {
        /// The path, escaped.
        path: String,
        /// The name of the source that is placed there.
        owner: String,
        /// The name of the source that has an entry there.
        other: String,
        /// "where source", or "below which source" if the entry is a file on the way to that place.
        place: &'static str,
    },
    /// Two files share a base name, which `unique-base-names` forbids.
    #[error(
        "`{path}` of source {one} and `{other_path}` of source {other} have one base name, which `unique-base-names` forbids"
    )]
    SameBaseName {
        /// The path of the first file, escaped.
        path: String,
        /// The name of its source.
        one: String,
        /// The path of the second file, escaped.
        other_path: String,
        /// The name of its source.
        other: String,
    },
    /// A submodule's commit is not in its mirror. The next attempt fetches it.
    #[error("commit {commit} of submodule {path} is not in the mirror")]
    NoModule {
        /// The path of the submodule.
        path: String,
        /// The commit.
        commit: ObjectId,
    },
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
}

/// The most characters of a text by a commit's author that an error quotes.
const EXCERPT_MAX: usize = 256;

/// The beginning of a text by a commit's author, which may have a megabyte, for an error. Without secrets.
pub(super) fn excerpt(text: &str) -> String {
    let text = crate::secret::quoted(text);
    match text.char_indices().nth(EXCERPT_MAX) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.into_owned(),
    }
}

fn because_of(path: Option<&str>) -> String {
    path.map(|path| format!(" because of `{path}`")).unwrap_or_default()
}

impl Error {
    /// Returns true if the same attempt may succeed later without an operator.
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
            | Self::IndexTimeout { .. }
            | Self::Indexer { .. }
            | Self::NoModule { .. }
            | Self::GarbageInUse { .. }
            | Self::KeptSubmodules { .. }
            | Self::Cancelled => true,
            Self::Foreign { .. }
            | Self::Irreplaceable { .. }
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

    /// What the error needs to go away.
    pub fn class(&self) -> ErrorClass {
        match self {
            error if error.is_refusal() => ErrorClass::Refused,
            error if error.timeout().is_some() => ErrorClass::Timeout,
            error => ErrorClass::of(error.is_transient()),
        }
    }

    /// The wait for the remote, or for a child process, that exceeded its limit.
    pub fn timeout(&self) -> Option<wire::Wait> {
        match self {
            Self::Wire(wire::Error::Timeout { wait, .. }) => Some(*wait),
            Self::IndexTimeout { .. } => Some(wire::Wait::Overall),
            Self::Unsent { source, .. } => match &**source {
                wire::Error::Timeout { wait, .. } => Some(*wait),
                _ => None,
            },
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.timeout(),
            _ => None,
        }
    }

    /// Returns true if the mirror's volume is full, or the quota on it is used up.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Local { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.is_full(),
            _ => false,
        }
    }

    /// The error for a failed write of libgit2 in the repository `dir`. An error of the system becomes [`Self::Local`].
    pub(super) fn unwritten(act: &'static str, dir: &Path, source: git2::Error) -> Self {
        let why = source.message();
        let kind = kind_of(why);
        if source.class() != git2::ErrorClass::Os && kind == io::ErrorKind::Other {
            return Self::git(format!("{act} {}", dir.display()), source);
        }
        Self::Local { act, path: dir.to_owned(), source: io::Error::new(kind, why) }
    }

    /// The error for a failed operation of libgit2.
    pub(super) fn git(act: impl Into<String>, source: git2::Error) -> Self {
        Self::Git { act: act.into(), source: Libgit2(source) }
    }

    /// The error for an object that `revision` needs and that could not be read.
    pub(super) fn damaged(revision: Revision, source: ObjectError) -> Self {
        Self::damaged_at(revision, None, source)
    }

    /// The same for an object at the path `at` in the tree, escaped.
    pub(super) fn damaged_at(revision: Revision, at: Option<&str>, source: ObjectError) -> Self {
        Self::of_author(revision, at, source).unwrap_or_else(|source| Self::Damaged { revision, source })
    }

    /// The refusal of `revision` if the object is as its author wrote it, so that fetching it again would not help;
    /// otherwise the object's error. `at` is the object's path in the tree, escaped.
    pub(super) fn of_author(
        revision: Revision,
        at: Option<&str>,
        source: ObjectError,
    ) -> Result<Self, ObjectError> {
        use ObjectError as E;
        let (id, expected, rule) = match &source {
            E::TooLarge { id, expected, bytes, limit } => {
                (id, expected, Rule::ObjectBytes { bytes: *bytes, limit: *limit })
            }
            E::Malformed { id, expected, .. } | E::OtherKind { id, expected, .. } => {
                (id, expected, Rule::Malformed { what: source.to_string() })
            }
            E::Missing { .. } | E::Unreadable { .. } => return Err(source),
        };
        let path = at.map_or_else(|| format!("{expected} {id}"), str::to_owned);
        Ok(Refusal { revision, path, rule }.into())
    }

    /// The error for an object that exceeds the size limit of its type. It is a refusal, because fetching the object
    /// again would not help.
    pub(super) fn too_large(revision: Revision, path: String, bytes: u64, limit: u64) -> Self {
        Refusal { revision, path, rule: Rule::ObjectBytes { bytes, limit } }.into()
    }

    /// Returns true if the commit itself is refused, so that only another commit can succeed.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) | Self::NotACommit { .. } => true,
            // A retry would fetch and discard the same pack again.
            Self::IndexMemory { .. } | Self::FetchBytes { .. } => true,
            Self::Wire(wire::Error::TooMuch { budget: wire::Budget::Pack, .. }) => true,
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.is_refusal(),
            Self::Collision { .. } | Self::Trespass { .. } | Self::SameBaseName { .. } => true,
            _ => false,
        }
    }

    /// Returns true if the connection to the remote failed, as opposed to an error that the remote reported.
    pub fn is_connection_loss(&self) -> bool {
        let is_connection =
            |error: &wire::Error| error.is_transient() && !matches!(error, wire::Error::Remote { .. });
        match self {
            Self::Wire(error) => is_connection(error),
            Self::Unsent { source, .. } => is_connection(source),
            _ => false,
        }
    }

    /// How long the remote asked us to wait before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Wire(error) => error.retry_after(),
            Self::Unsent { source, .. } => source.retry_after(),
            Self::Module { source, .. } | Self::OfSource { source, .. } => source.retry_after(),
            _ => None,
        }
    }

    /// Returns true if the error shows that the mirror's content is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::OfSource { source, .. } => source.is_damage(),
            _ => false,
        }
    }
}

/// The error kind of a system's error message: libgit2 passes on only the text.
pub(super) fn kind_of(why: &str) -> io::ErrorKind {
    let means = [
        ("No space left on device", io::ErrorKind::StorageFull),
        ("Disk quota exceeded", io::ErrorKind::QuotaExceeded),
        ("Quota exceeded", io::ErrorKind::QuotaExceeded), // the text of musl
        ("Read-only file system", io::ErrorKind::ReadOnlyFilesystem),
        ("Permission denied", io::ErrorKind::PermissionDenied),
    ];
    means.into_iter().find(|(text, _)| why.contains(text)).map_or(io::ErrorKind::Other, |(_, kind)| kind)
}

#[cfg(test)]
mod tests;
