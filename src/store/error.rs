//! What goes wrong in the root: every variant names the act and the path.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::fsx::needs_operator;
use crate::human;
use crate::payload::BlobError;

use super::names::PRIVATE;

/// What a file system runs out of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Room.
    Bytes,
    /// Files and directories.
    Inodes,
}

impl Unit {
    /// So many, to be compared with the other.
    fn amount(self, count: u64, other: u64) -> String {
        match self {
            Self::Bytes => human::bytes_beside(count, other),
            Self::Inodes => format!("{count} inodes"),
        }
    }
}

/// What went wrong in the root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file system step failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried, in words that follow "cannot".
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A directory without a publication.
    #[error("no writer has opened {}: it holds neither ..data nor ..treeswap", path.display())]
    NoRoot {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that is not there.
    #[error("there is no directory {}", path.display())]
    NoDirectory {
        /// What was named.
        path: PathBuf,
    },
    /// The root leads through a link to nothing.
    #[error("cannot make the root {}: {} is a link to {}, which does not exist", path.display(), link.display(), target.display())]
    Dangling {
        /// The root.
        path: PathBuf,
        /// The root, or a directory on the way to it.
        link: PathBuf,
        /// What it names.
        target: PathBuf,
    },
    /// The root is no place to work in.
    #[error("refusing the root {}: {why}", path.display())]
    Refused {
        /// The root as it was given.
        path: PathBuf,
        /// Why, in words that follow a colon.
        why: String,
    },
    /// The root was published in the other layout.
    #[error("refusing the root {}: it was made with --layout={made}", path.display())]
    OtherLayout {
        /// The root.
        path: PathBuf,
        /// Its layout.
        made: &'static str,
    },
    /// The link cannot be where it is wanted.
    #[error("refusing the link {}: {why}", path.display())]
    BadLink {
        /// The link as it was given.
        path: PathBuf,
        /// Why, in words that follow a colon.
        why: String,
    },
    /// The root holds other things, and nothing shows that it is ours.
    #[error("refusing the root {}: it is not empty and not ours: it holds {names}", path.display())]
    Foreign {
        /// The root.
        path: PathBuf,
        /// Some of the names, for people.
        names: String,
    },
    /// Another writer works on this root.
    #[error("the root {} is in use by another writer{holder}", path.display())]
    Locked {
        /// The root.
        path: PathBuf,
        /// What is known of it, in words; may be empty.
        holder: String,
    },
    /// The root was removed or replaced while we worked in it.
    #[error("the root {} is not the directory it was: {why}", path.display())]
    Replaced {
        /// The root.
        path: PathBuf,
        /// What is there now.
        why: String,
    },
    /// A top-level name of the tree is taken in the root by something that is not ours.
    #[error("the tree's top-level name {name:?} is taken in {} by something that is not ours", root.display())]
    Collision {
        /// The root.
        root: PathBuf,
        /// The name.
        name: String,
    },
    /// A blob could not be had from the mirror.
    #[error("cannot write {}", path.display())]
    Blob {
        /// The file it was for, relative to the generation.
        path: PathBuf,
        /// Why.
        #[source]
        source: BlobError,
    },
    /// What was written is not what the payload says.
    #[error("{} was not written as it should be: {why}", path.display())]
    Miswritten {
        /// Relative to the generation.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// No directory of a payload holds a name twice, and yet the name was there already.
    #[error("this file system takes {} and another name beside it for one name", path.display())]
    Folded {
        /// The second of the two, relative to the generation.
        path: PathBuf,
    },
    /// The new generation does not fit on the file system.
    #[error("no room for the new generation in {}: it needs about {}, {} are free",
        path.display(), unit.amount(*needed, *free), unit.amount(*free, *needed))]
    NoRoom {
        /// The root.
        path: PathBuf,
        /// How many it needs.
        needed: u64,
        /// How many there are.
        free: u64,
        /// Of what: bytes, or inodes.
        unit: Unit,
    },
    /// The new generation does not fit under the ceiling that was set.
    #[error(
        "no room for the new generation under --max-bytes, which is {}: it takes {} on disk, the current one {}",
        human::bytes(*ceiling),
        human::bytes_beside(*needed, *ceiling),
        human::bytes_beside(*current, *ceiling)
    )]
    OverCeiling {
        /// The ceiling.
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
    /// Makes the error of a step on a path; meant for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(
        act: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Io { act, path, source: source.into() }
    }

    /// The kernel's answer, where there is one.
    fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } | Self::Blob { source: BlobError::Sink(source), .. } => {
                Some(source.kind())
            }
            _ => None,
        }
    }

    /// Whether the root's file system, or the quota on it, is used up.
    pub fn is_full(&self) -> bool {
        let kind = self.kind();
        matches!(self, Self::NoRoom { .. })
            || matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Whether the same attempt may succeed later without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::OtherLayout { .. }
            | Self::BadLink { .. }
            | Self::NoRoot { .. }
            | Self::NoDirectory { .. }
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

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        use io::ErrorKind as Kind;
        let hint = match self {
            Self::NoRoot { .. } => {
                "`treeswap sync` makes them when it starts; if it runs, name the directory that it has as --root"
            }
            Self::NoDirectory { .. } => "name the directory that `treeswap sync` has as --root",
            Self::Dangling { .. } => "make that directory, or give --root the directory that is meant",
            Self::Refused { .. } => {
                "give --root a directory of its own, for example an emptyDir's mount path"
            }
            Self::OtherLayout { .. } => {
                "keep its --layout, or give the other one a directory of its own; nothing was touched"
            }
            Self::BadLink { .. } => {
                "choose another --link, or move what is there out of its way; nothing was touched"
            }
            Self::Foreign { .. } => {
                "give --root an empty directory, or one that treeswap made; nothing was touched"
            }
            Self::Locked { .. } => {
                "one writer a root: stop the other one, or give this one a root of its own"
            }
            Self::Replaced { .. } => {
                "make the directory again, and it is filled; after a mount, restart treeswap"
            }
            Self::Collision { .. } => {
                "move that entry out of the root, or rename the file in the repository; what is published stays"
            }
            Self::Folded { .. } => {
                "rename one of the two, or put the root on a file system that tells them apart"
            }
            Self::NoRoom { .. } => {
                "make the volume larger, or keep less: --grace, --max-generations, --spare=off, sparse patterns"
            }
            Self::OverCeiling { .. } => {
                "raise --max-bytes to twice what the tree takes or more, or choose less with sparse patterns"
            }
            Self::Blob { source: BlobError::Unreadable { .. } | BlobError::Unopened(_), .. } => {
                "the mirror is damaged; it is checked and fetched anew by itself"
            }
            _ => match self.kind() {
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
                _ => match self {
                    Self::Cancelled => "nothing to do: the process was asked to end",
                    Self::Miswritten { .. } => {
                        "it is written anew at the next attempt; if it lasts, check the volume and its file system"
                    }
                    _ => "look at the volume and its mount; what is published stays",
                },
            },
        };
        vec![hint.to_owned()]
    }

    /// Who owns what may not be touched, who we are, and what gives it to us. All of a root has to be one user's: what
    /// another one made in it is not ours by the root's own owner.
    fn denied(&self) -> Vec<String> {
        let Self::Io { act, path, .. } = self else { return vec![writable("ROOT")] };
        let there = path.ancestors().find_map(|at| Some((at, std::fs::symlink_metadata(at).ok()?)));
        let ours = rustix::process::geteuid().as_raw();
        let mut hints = Vec::new();
        if let Some((at, found)) = there.filter(|(_, found)| found.uid() != ours) {
            hints.push(format!("{} belongs to user {}, and this is user {ours}", at.display(), found.uid()));
        }
        let root =
            path.ancestors().find(|at| at.file_name() == Some(PRIVATE.as_ref())).and_then(Path::parent);
        hints.push(match root {
            _ if *act == MAKE_ROOT => format!(
                "make the directory as a user who may, and `chown {ours} {}`; in a Pod, mount a volume there and set fsGroup",
                path.display()
            ),
            Some(root) => writable(&root.display().to_string()),
            None => writable("ROOT"),
        });
        hints
    }
}

/// What an error of `Io` says where the root could not be made.
pub(crate) const MAKE_ROOT: &str = "make the root";

fn writable(root: &str) -> String {
    let ours = rustix::process::geteuid().as_raw();
    format!(
        "all of the root must be writable by this user: set fsGroup in the Pod's securityContext, or `chown -R {ours} {root}`"
    )
}

/// Names for people: some of them, quoted, and how many more there are.
pub(crate) fn some_names<N: std::fmt::Debug>(names: impl IntoIterator<Item = N>, count: usize) -> String {
    const SHOWN: usize = 5;
    let shown = names.into_iter().take(SHOWN).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if count > SHOWN { format!("{shown} and {} more", count - SHOWN) } else { shown }
}

#[cfg(test)]
mod tests;
