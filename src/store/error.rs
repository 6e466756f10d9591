//! The store's errors. Every variant names the operation and the path, and has hints for the operator.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::fsx::{lacks_locks, needs_operator};
use crate::human;
use crate::payload::BlobError;

use super::names::PRIVATE;
use crate::generation::WORKTREES;

/// The resource that a file system ran out of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Space in bytes.
    Bytes,
    /// Inodes: the number of files and directories.
    Inodes,
}

impl Unit {
    /// Formats `count` with a precision that makes it comparable with `other`.
    fn amount(self, count: u64, other: u64) -> String {
        match self {
            Self::Bytes => human::bytes_compared(count, other),
            Self::Inodes => format!("{count} inodes"),
        }
    }
}

/// An error in the root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// The operation, in words that follow "cannot".
        act: &'static str,
        /// The path it was done on.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The directory exists but is not a root.
    #[error("no writer has opened {}: it holds neither ..data nor ..treeswap", path.display())]
    NoRoot {
        /// The directory.
        path: PathBuf,
    },
    /// The directory does not exist.
    #[error("there is no directory {}", path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// There is something else than a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A reader has no permission to read the root.
    #[error("cannot {act} {}", path.display())]
    Unreadable {
        /// The operation, in words that follow "cannot".
        act: &'static str,
        /// The path it was done on.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The root, or a directory above it, is a dangling symlink.
    #[error("cannot make the root {}: {} is a symbolic link to {}, which does not exist", path.display(), link.display(), target.display())]
    Dangling {
        /// The root.
        path: PathBuf,
        /// The dangling symlink: the root or a directory above it.
        link: PathBuf,
        /// The symlink's target.
        target: PathBuf,
    },
    /// The directory cannot be used as a root.
    #[error("refusing the root {}: {why}", path.display())]
    Refused {
        /// The root as the operator gave it.
        path: PathBuf,
        /// The reason, in words that follow a colon.
        why: String,
    },
    /// The root has the other layout.
    #[error("refusing the root {}: it was made with --layout={made}", path.display())]
    OtherLayout {
        /// The root.
        path: PathBuf,
        /// The layout it was made with.
        made: &'static str,
    },
    /// The published link cannot be at that path.
    #[error("refusing the link {}: {why}", path.display())]
    BadLink {
        /// The link as the operator gave it.
        path: PathBuf,
        /// The reason, in words that follow a colon.
        why: String,
    },
    /// The directory holds foreign files, and nothing shows that it is a root of ours.
    #[error("refusing the root {}: it is not empty and was not created by treeswap: it contains {names}", path.display())]
    Foreign {
        /// The root.
        path: PathBuf,
        /// Some of the foreign names, for the message.
        names: String,
    },
    /// Another writer holds the lock of this root.
    #[error("the root {} is in use by another writer{holder}", path.display())]
    Locked {
        /// The root.
        path: PathBuf,
        /// A description of the other writer; may be empty.
        holder: String,
    },
    /// The root was removed or replaced while the store was open.
    #[error("the root {} is no longer the same directory: {why}", path.display())]
    Replaced {
        /// The root.
        path: PathBuf,
        /// What happened to it.
        why: String,
    },
    /// A top-level name of the tree is taken in the root by something foreign.
    #[error("the tree's top-level name {name:?} is taken in {} by something that treeswap did not create", root.display())]
    Collision {
        /// The root.
        root: PathBuf,
        /// The name.
        name: String,
    },
    /// A blob could not be read from the mirror.
    #[error("cannot write {}", path.display())]
    Blob {
        /// The file it was for, relative to the generation.
        path: PathBuf,
        /// The mirror's error.
        #[source]
        source: BlobError,
    },
    /// A file would not have been what the payload says.
    #[error("{} was written incorrectly: {why}", path.display())]
    Miswritten {
        /// The file, relative to the generation.
        path: PathBuf,
        /// The difference.
        why: String,
    },
    /// The file system treats two names of one directory as the same. A payload has no name twice, and yet a name
    /// existed already.
    #[error("this file system treats {} and another name in its directory as the same name", path.display())]
    Folded {
        /// The second of the two names, relative to the generation.
        path: PathBuf,
    },
    /// The new generation does not fit on the file system.
    #[error("no room for the new generation in {}: it needs about {}, {} are free",
        path.display(), unit.amount(*needed, *free), unit.amount(*free, *needed))]
    NoRoom {
        /// The root.
        path: PathBuf,
        /// The amount it needs.
        needed: u64,
        /// The amount that is free.
        free: u64,
        /// The resource that is short.
        unit: Unit,
    },
    /// The new generation does not fit under `--max-bytes`.
    #[error(
        "no room for the new generation under --max-bytes, which is {}: it takes {} on disk, the current one {}",
        human::bytes(*ceiling),
        human::bytes_compared(*needed, *ceiling),
        human::bytes_compared(*current, *ceiling)
    )]
    OverCeiling {
        /// The value of `--max-bytes`.
        ceiling: u64,
        /// Bytes on disk of the new generation.
        needed: u64,
        /// Bytes on disk of the current generation, which is never removed.
        current: u64,
    },
    /// The work was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// Returns a closure for `map_err` that turns an I/O error into an error of this operation on this path.
    pub(crate) fn io<E: Into<io::Error>>(
        act: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Io { act, path, source: source.into() }
    }

    /// The kind of the underlying I/O error, if there is one.
    fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } | Self::Blob { source: BlobError::Sink(source), .. } => {
                Some(source.kind())
            }
            _ => None,
        }
    }

    /// Returns true if the root's file system is full or the quota on it is used up.
    pub fn is_full(&self) -> bool {
        let kind = self.kind();
        matches!(self, Self::NoRoom { .. })
            || matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Returns true if a permission was denied.
    pub(super) fn is_denied(&self) -> bool {
        self.kind() == Some(io::ErrorKind::PermissionDenied)
    }

    /// Returns true if the same attempt may succeed later without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::OtherLayout { .. }
            | Self::BadLink { .. }
            | Self::NoRoot { .. }
            | Self::NoDirectory { .. }
            | Self::NotADirectory { .. }
            | Self::Unreadable { .. }
            | Self::Dangling { .. }
            | Self::Foreign { .. }
            | Self::Folded { .. }
            | Self::Collision { .. }
            | Self::NoRoom { .. }
            | Self::OverCeiling { .. } => false,
            Self::Io { .. } | Self::Blob { .. } => !self.kind().is_some_and(needs_operator),
            Self::Locked { .. } | Self::Replaced { .. } | Self::Miswritten { .. } | Self::Cancelled => true,
        }
    }

    /// What an operator can do, one hint per line.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NoRoot { path } => match path.ancestors().find(|at| at.join(PRIVATE).is_dir()) {
                Some(root) => return vec![format!("this is inside the root {}: name that", root.display())],
                None => {
                    "`treeswap sync` makes them when it starts; if it runs, name the directory that it has as --root"
                }
            },
            Self::NoDirectory { .. } | Self::NotADirectory { .. } => {
                "name the directory that `treeswap sync` has as --root"
            }
            Self::Dangling { .. } => "create that directory, or correct --root",
            Self::Unreadable { path, .. } => return unreadable(path),
            Self::Refused { .. } => {
                "give --root a directory of its own, for example an emptyDir's mount path"
            }
            Self::OtherLayout { .. } => {
                "keep its --layout, or give the other one a directory of its own; nothing was touched"
            }
            Self::BadLink { .. } => {
                "choose another --link, or move what is there out of its way; what is there was not touched"
            }
            Self::Foreign { path, .. } => {
                let link = links_to_worktrees(path).into_iter().next();
                let hint = "give --root an empty directory, or one that treeswap made; nothing was touched";
                let looks = |link| {
                    format!("this looks like git-sync's root: --layout=git-sync --link={link} takes it over")
                };
                return link.map(looks).into_iter().chain([hint.to_owned()]).collect();
            }
            Self::Locked { .. } => {
                "only one writer per root: stop the other one, wait for its end with --lock-wait=1m, or use another root"
            }
            Self::Replaced { .. } => {
                "create the directory again, and treeswap publishes into it; after a mount, restart treeswap"
            }
            Self::Collision { .. } => {
                "move that entry out of the root, or rename the file in the repository; what is published stays"
            }
            Self::Folded { .. } => {
                "rename one of the two, or put the root on a file system that distinguishes them"
            }
            Self::NoRoom { .. } => {
                "make the volume larger, or keep less: --grace, --max-generations, --spare=off, sparse patterns"
            }
            Self::OverCeiling { .. } => {
                "raise --max-bytes to twice what the tree takes or more, or choose less with sparse patterns"
            }
            Self::Io { source, .. } if lacks_locks(source) => {
                "no lock can be had now, as while an NFS server or its lock service starts; if that persists, give \
                 --root another volume"
            }
            Self::Blob { source: BlobError::Unreadable { .. } | BlobError::Unopened(_), .. } => {
                "if the mirror is damaged, it is fetched again automatically; if no more files can be opened, raise \
                 that limit (ulimit -n)"
            }
            Self::Cancelled => "nothing to do: treeswap is shutting down",
            Self::Miswritten { .. } => {
                "it is rewritten at the next attempt; if it persists, check the volume and its file system"
            }
            Self::Io { .. } | Self::Blob { .. } => return self.hints_of_kind(),
        };
        vec![hint.to_owned()]
    }

    /// Hints that depend only on the kind of the underlying I/O error.
    fn hints_of_kind(&self) -> Vec<String> {
        use io::ErrorKind as Kind;
        let hint = match self.kind() {
            Some(Kind::StorageFull) => {
                "the file system is full (bytes or inodes): make the volume larger, or keep less: --grace, \
                 --max-generations, --spare=off"
            }
            Some(Kind::QuotaExceeded) => {
                "the disk quota is used up: raise it, or keep less: --grace, --max-generations"
            }
            Some(Kind::ReadOnlyFilesystem) => {
                "the root is mounted read-only: the sidecar needs it writable, only its consumers do not"
            }
            Some(Kind::PermissionDenied) => return self.denied(),
            Some(Kind::InvalidFilename) => {
                "this file system allows shorter names than the repository uses: use another one for the root"
            }
            _ => "check the volume and its mount; what is published stays",
        };
        vec![hint.to_owned()]
    }

    /// Hints for a denied permission: the owner of the path, our uid, and how to get access. Everything in a root must
    /// belong to one user: owning the root directory gives no access to what another user created in it.
    fn denied(&self) -> Vec<String> {
        let ours = rustix::process::geteuid().as_raw();
        let Self::Io { act, path, .. } = self else { return vec![writable("ROOT", None, ours)] };
        let owned = owner_hint(path);
        let owner = owned.as_ref().map(|(owner, _)| *owner);
        let owned = owned.filter(|(owner, _)| *owner != ours);
        let mut hints: Vec<String> = owned.into_iter().map(|(_, hint)| hint).collect();
        let is_in_root = |at: &&Path| [PRIVATE, WORKTREES].iter().any(|name| at.ends_with(name));
        // For a path in a generation, the root is the ancestor that holds our private directory.
        let holds_ours = |at: &&Path| at.is_absolute() && at.join(PRIVATE).is_dir();
        let root = path.ancestors().find(is_in_root).and_then(Path::parent);
        let root = root.or_else(|| path.ancestors().find(holds_ours));
        hints.push(match root {
            _ if *act == MAKE_ROOT => format!(
                "make the directory as a user who may, and `chown {ours} {}`; in a Pod, mount a volume there and set fsGroup",
                path.display()
            ),
            _ if *act == RESOLVE_ROOT => {
                format!("each directory that leads to {} must be searchable for this user", path.display())
            }
            Some(root) => writable(&root.display().to_string(), owner, ours),
            None => writable("ROOT", owner, ours),
        });
        hints
    }
}

/// The owner of the path, or of the nearest directory above it that exists, and a hint that says so.
fn owner_hint(path: &Path) -> Option<(u32, String)> {
    let (at, found) = path.ancestors().find_map(|at| Some((at, std::fs::symlink_metadata(at).ok()?)))?;
    let owner = found.uid();
    let ours = rustix::process::geteuid().as_raw();
    Some((owner, format!("{} belongs to user {owner}, and this is user {ours}", at.display())))
}

/// Hints for a reader without permission. Nothing in the root has to change its owner: that would shut out the writer.
fn unreadable(path: &Path) -> Vec<String> {
    let owner = owner_hint(path).map(|(_, hint)| hint);
    let run = "run it as the user that treeswap runs as, or in its container; leave the root's owner and modes as they are";
    owner.into_iter().chain([run.to_owned()]).collect()
}

/// The operation of an [`Error::Io`] if the root could not be created.
pub(crate) const MAKE_ROOT: &str = "make the root";

/// The operation of an [`Error::Io`] if it could not be found out where the root is.
pub(crate) const RESOLVE_ROOT: &str = "resolve the root";

/// The hint how to make the root writable for user `ours`, if `owner` has what could not be written. A volume that
/// Kubernetes made belongs to user 0; where another user has written already, fsGroup would not make it ours.
fn writable(root: &str, owner: Option<u32>, ours: u32) -> String {
    match owner {
        Some(owner) if owner == ours => {
            format!("the directory is this user's own, but not writable: `chmod -R u+rwX {root}`")
        }
        Some(0) | None => format!(
            "all of the root must be writable by this user: in a Pod, set fsGroup in the securityContext (a hostPath \
             volume ignores it), or `chown -R {ours} {root}`"
        ),
        Some(_) => {
            format!("a root has one user: give this user a root of its own, or `chown -R {ours} {root}`")
        }
    }
}

/// The names of links at the top of `root` that lead into git-sync's worktrees, as the one that git-sync keeps does.
pub fn links_to_worktrees(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let leads_there = |path: &Path| std::fs::read_link(path).is_ok_and(|to| to.starts_with(WORKTREES));
    let found = entries.filter(|entry| leads_there(&entry.path()));
    let names = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.') && name != "tmp-link").collect();
    names.sort_unstable();
    names
}

/// Formats names for a message: the first five quoted, and the number of the others.
pub(crate) fn some_names<N: std::fmt::Debug>(names: impl IntoIterator<Item = N>, count: usize) -> String {
    const SHOWN: usize = 5;
    let shown = names.into_iter().take(SHOWN).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if count > SHOWN { format!("{shown} and {} more", count - SHOWN) } else { shown }
}

#[cfg(test)]
mod tests;
