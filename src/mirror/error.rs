//! The mirror's errors, whether a retry can help, and hints for the operator.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::wire;
use crate::fsx::needs_operator;
use crate::human;
use crate::payload::{Refusal, Rule};
use crate::retry::ErrorClass;
use crate::revision::{ObjectId, Revision};
use crate::sandbox;

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

/// Replacements in hints for one of several sources: each text that mentions a flag, and the text that mentions the key
/// of the `--sources` file instead. A flag that applies to all sources is mentioned beside the key.
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

/// Why an object could not be read. It is the source of other errors.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ObjectError(#[from] pub(super) super::object_error::ObjectError);

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
            | Self::Indexer { .. }
            | Self::NoModule { .. }
            | Self::GarbageInUse { .. }
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

    /// What the error needs to go away.
    pub fn class(&self) -> ErrorClass {
        match self {
            error if error.is_refusal() => ErrorClass::Refused,
            error if error.timeout().is_some() => ErrorClass::Timeout,
            error => ErrorClass::of(error.is_transient()),
        }
    }

    /// The wait for the remote that exceeded its limit.
    pub fn timeout(&self) -> Option<wire::Wait> {
        match self {
            Self::Wire(wire::Error::Timeout { wait, .. }) => Some(*wait),
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
            Self::Collision { .. } | Self::Trespass { .. } => one(
                "remove it from one of them, or place one elsewhere (`to` in --sources); until then the previous generation stays published",
            ),
            Self::SameBaseName { .. } => one(
                "rename one of them, or leave it out (`sparse` in --sources); until then the previous generation stays published",
            ),
            Self::Local { .. } if self.is_full() => one(
                "the volume is full: the mirror needs about the size of the repository's pack, twice while it is renewed",
            ),
            // If the indexing process could not enter its sandbox, the volume is not the cause.
            Self::Local { source, .. } => {
                sandbox::hints_about(&source.to_string()).unwrap_or_else(|| one(about_volume(source.kind())))
            }
            Self::Foreign { .. } => one("give --mirror an empty directory, or one that does not exist yet"),
            Self::Locked { .. } => one("one mirror serves one root: give each its own --mirror"),
            Self::Damaged { .. } => {
                one("the mirror is a cache: the next attempt rebuilds it, and what is published stays")
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
            Self::Cancelled => one("nothing to do: treeswap is shutting down"),
        }
    }

    /// The error for a failed write of libgit2 in the repository `dir`. An error of the system becomes [`Self::Local`].
    pub(super) fn unwritten(act: &'static str, dir: &Path, source: git2::Error) -> Self {
        let why = source.message();
        let kind = kind_of(why);
        if source.class() != git2::ErrorClass::Os && kind == io::ErrorKind::Other {
            return Self::Git { act: format!("{act} {}", dir.display()), source: Libgit2(source) };
        }
        Self::Local { act, path: dir.to_owned(), source: io::Error::new(kind, why) }
    }

    /// Hints for one of several sources: they mention keys of the `--sources` file instead of flags.
    pub fn hints_of_source(&self) -> Vec<String> {
        let in_file =
            |hint: String| FLAGS_AS_KEYS.iter().fold(hint, |hint, (flag, key)| hint.replace(flag, key));
        self.hints().into_iter().map(in_file).collect()
    }

    /// The error for an object that `revision` needs and that could not be read.
    pub(super) fn damaged(revision: Revision, source: super::object_error::ObjectError) -> Self {
        let damage = |source| Self::Damaged { revision, source: ObjectError(source) };
        match source {
            // A damaged index of a pack leads to other objects.
            super::object_error::ObjectError::OtherKind { .. } => damage(source),
            source => Self::of_author(revision, None, source).unwrap_or_else(damage),
        }
    }

    /// The refusal of `revision` if the object is as its author wrote it, so that fetching it again would not help;
    /// otherwise the object's error. `at` is the object's path in the tree, escaped.
    pub(super) fn of_author(
        revision: Revision,
        at: Option<&str>,
        source: super::object_error::ObjectError,
    ) -> Result<Self, super::object_error::ObjectError> {
        use super::object_error::ObjectError as E;
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

/// The hint for the operator if the mirror's files cannot be used.
fn about_volume(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the mirror must be writable by the user that treeswap runs as"
        }
        _ => "check the mirror's volume; the mirror is a cache, and may be deleted while treeswap is stopped",
    }
}

/// The error kind of a system's error message: libgit2 passes on only the text.
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
