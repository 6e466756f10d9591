//! The checked set of paths that goes into a generation, with every path rule in one place.
//!
//! A [`Payload`] is made by [`Builder`], which applies all the rules before anything is written: code that holds a
//! `Payload` may write it without asking again. A [`Delta`] is made by [`DeltaBuilder`] under the same rules. The
//! mirror feeds the builders from git trees; the store writes the result, reading contents through a [`BlobSource`].
//! Neither knows the other.
//!
//! `rules` says what a name, a mode, a link and a size may be, and how a refusal reads; `builder` and `delta` collect
//! entries under those rules; `parts` knows whose a path is, where a tree is composed of several sources.

mod builder;
mod delta;
mod parts;
mod rules;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::io;

use crate::revision::{ObjectId, Revision};

pub use builder::{Builder, DirIndex};
pub use delta::DeltaBuilder;
pub use parts::Parts;
pub use rules::{Node, Refusal, Rule, Rules, escaped};

/// What an entry becomes on disk. There is nothing else: odd modes are normalised, devices do not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file, mode 0644.
    File,
    /// A regular file, mode 0755.
    Executable,
    /// A symbolic link; the blob is its target.
    Symlink,
    /// A submodule that was not asked for: an empty directory.
    Submodule,
}

/// One file, link or submodule of a payload: 40 bytes, because a payload may have a million of them. Its name is
/// [`Payload::name`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The directory that holds it, by its number in the payload; 0 is the top.
    pub dir: u32,
    name: Name,
    /// What it becomes.
    pub kind: Kind,
    /// The blob (the commit, for a submodule).
    pub id: ObjectId,
    /// The blob's size in bytes.
    pub size: u64,
}

/// A directory of a payload. Its path is spelled by its parents' names.
#[derive(Clone, Copy, Debug, Default)]
struct Dir {
    parent: u32,
    name: Name,
}

/// Where a name lies among all names of a payload.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(2))]
struct Name {
    start: u32,
    len: u16,
}

/// All names of a payload, one behind the other.
#[derive(Clone, Debug, Default)]
struct Names(Vec<u8>);

impl Names {
    /// Adds one; `None` where the numbers end.
    fn add(&mut self, name: &[u8]) -> Option<Name> {
        let placed = Name { start: u32::try_from(self.0.len()).ok()?, len: u16::try_from(name.len()).ok()? };
        self.0.extend_from_slice(name);
        Some(placed)
    }

    fn get(&self, name: Name) -> &[u8] {
        let start = name.start as usize;
        &self.0[start..start + usize::from(name.len)]
    }
}

/// A revision's complete, checked content. It holds each name once and no path, so that a deep tree costs no more than
/// a flat one: 40 bytes and the name for each entry, 12 and the name for each directory.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The revision it was read from.
    pub revision: Revision,
    /// The revision's tree. Two revisions with one tree are one payload.
    pub tree: ObjectId,
    /// Parents before children; index 0 is the top.
    dirs: Vec<Dir>,
    names: Names,
    /// Everything that is not a directory, sorted by directory and name.
    pub entries: Vec<Entry>,
    /// Sum of the blobs' sizes, in bytes.
    pub bytes: u64,
}

impl Payload {
    /// Files, links and directories in it, the top not counted.
    pub fn count(&self) -> u64 {
        (self.entries.len() + self.dirs.len()).saturating_sub(1) as u64
    }

    /// How many directories there are, the top included. They are numbered, parents before children; 0 is the top.
    pub fn dir_count(&self) -> usize {
        self.dirs.len()
    }

    /// A directory's path, relative to the top, which is empty itself.
    pub fn dir_path(&self, dir: u32) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = dir;
        while at != 0 {
            let Dir { parent, name } = self.dirs[at as usize];
            names.push(self.names.get(name));
            at = parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The number of the directory that holds a directory; the top holds itself.
    pub fn dir_parent(&self, dir: u32) -> u32 {
        self.dirs[dir as usize].parent
    }

    /// The last component of a directory's path; empty for the top.
    pub fn dir_name(&self, dir: u32) -> &[u8] {
        self.names.get(self.dirs[dir as usize].name)
    }

    /// All directories' paths, parents before children, the top left out.
    pub fn dir_paths(&self) -> impl Iterator<Item = Vec<u8>> {
        (1..).take(self.dirs.len().saturating_sub(1)).map(|dir| self.dir_path(dir))
    }

    /// An entry's name: one path component, as bytes.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        self.names.get(entry.name)
    }

    /// An entry's path, relative to the top.
    pub fn path_of(&self, entry: &Entry) -> Vec<u8> {
        join(&self.dir_path(entry.dir), self.name(entry))
    }
}

/// `dir/name`, or `name` at the top.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// What one revision changes against another, path by path: what to remove, then what to make.
/// Applied to a private copy of the old payload it yields the new one. It is small: where more changes than is worth a
/// list of paths, there is none ([`DeltaBuilder::finish`]).
#[derive(Clone, Debug)]
pub struct Delta {
    /// Files, links and submodule directories to unlink (a changed entry is here and in `payload.entries`).
    pub removed: Vec<Box<[u8]>>,
    /// Directories to remove, children before parents. Only ours are in them by then.
    pub removed_dirs: Vec<Box<[u8]>>,
    /// Directories to make, parents before children.
    pub added_dirs: Vec<Box<[u8]>>,
    /// Entries to write: full path and what goes there.
    pub written: Vec<(Box<[u8]>, Kind, ObjectId, u64)>,
    /// The new revision.
    pub revision: Revision,
    /// The new tree.
    pub tree: ObjectId,
    /// The tree it applies to.
    pub base: ObjectId,
    /// Files, links and directories of the whole new payload.
    pub entries: u64,
    /// Bytes of the whole new payload.
    pub bytes: u64,
}

/// Ceilings on a payload. Each is checked before the first byte is written; hitting one names it and its flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries and directories together.
    pub entries: u64,
    /// Sum of all blobs, in bytes.
    pub bytes: u64,
    /// One blob, in bytes.
    pub file_bytes: u64,
    /// Components of a path.
    pub depth: u32,
    /// Bytes of a path, relative to the generation.
    pub path: u32,
    /// Bytes of one component.
    pub name: u32,
}

impl Limits {
    /// Bytes that all names of a payload may take together, each path component once: they are held in memory while
    /// it is written. A usual tree needs 15 to 25 for each entry.
    pub fn name_bytes(&self) -> u64 {
        self.entries.saturating_mul(64).max(1 << 20)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            bytes: 4 << 30,
            file_bytes: 64 << 20, // held in memory while it is written, twice where it is stored as a delta
            depth: 128, // beyond a thousand levels even removing the tree is hard (one descriptor a level)
            path: 3_800, // root, generation name and path must fit PATH_MAX, 4096, together
            name: 255,  // NAME_MAX of every Linux file system in use
        }
    }
}

/// What to do with a symbolic link that is absolute or climbs out of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Symlinks {
    /// Refuse the revision, naming the link: a commit's author must not choose what a consumer reads outside the tree.
    #[default]
    Safe,
    /// Keep it as it is, as git-sync does.
    Keep,
}

/// Reads blobs for the writers of a payload. One reader a thread.
pub trait BlobSource: Sync {
    /// A reader of its own for the calling thread.
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError>;

    /// The ids' places in the slice, each once, in the order in which the blobs cost the least to read.
    fn order(&self, ids: &[ObjectId]) -> Vec<u32> {
        (0..).take(ids.len()).collect()
    }
}

/// One thread's way to the blobs.
pub trait BlobReader {
    /// Bytes of the blob. It is not read for that.
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError>;

    /// Hands the whole content of the blob to `sink`, once.
    fn read(&mut self, id: &ObjectId, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>)
    -> Result<(), BlobError>;
}

/// A blob could not be read, or the sink refused it.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The object database has no such blob or could not decode it.
    #[error("blob {id} cannot be read from the mirror")]
    Unreadable {
        /// Which.
        id: ObjectId,
        /// The database's own words.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The object database itself could not be opened.
    #[error("the mirror's object database cannot be opened")]
    Unopened(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The sink failed: the writer's error, passed through.
    #[error(transparent)]
    Sink(#[from] io::Error),
}
