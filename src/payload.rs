//! The checked content of a generation: every path, mode, link target and size, with all rules on them in one place.
//!
//! Only [`Builder`] makes a [`Payload`], and it applies all rules before anything is written, so code that holds a
//! `Payload` may write it without further checks. [`DeltaBuilder`] makes a [`Delta`] under the same rules, except for
//! the limit on the memory of all names. The mirror feeds the builders from git trees; the store writes the result and
//! reads contents through a [`BlobSource`]. Mirror and store do not depend on each other.
//!
//! `rules` defines what names, modes, links and sizes are allowed, and the messages of refusals; `builder` and `delta`
//! collect entries under those rules; `parts` maps paths of a composed tree to the sources that own them.

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
pub(crate) use rules::LINK_MAX;
pub use rules::{DEPTH_MAX, Node, Refusal, Rule, Rules, escaped};

/// What an entry becomes on disk. There are no other kinds: modes are normalised, and git has no devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file, mode 0644.
    File,
    /// A regular file, mode 0755.
    Executable,
    /// A symbolic link; the blob is its target.
    Symlink,
    /// A submodule that is not included: an empty directory.
    Submodule,
}

/// One file, link or submodule of a payload. Kept to 40 bytes, because a payload may have a million of them. The name
/// is [`Payload::name`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The number of its directory in the payload; 0 is the top.
    pub dir: u32,
    name: Name,
    /// What it becomes on disk.
    pub kind: Kind,
    /// The blob's object id; for a submodule the commit's.
    pub id: ObjectId,
    /// The blob's size in bytes; 0 for a submodule.
    pub size: u64,
}

/// A directory of a payload. Its path consists of the names of its parents and its own.
#[derive(Clone, Copy, Debug, Default)]
struct Dir {
    parent: u32,
    name: Name,
}

/// The position of a name in [`Names`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(2))]
struct Name {
    start: u32,
    len: u16,
}

/// All names of a payload, concatenated.
#[derive(Clone, Debug, Default)]
struct Names(Vec<u8>);

impl Names {
    /// Appends a name. `None` if its position or length does not fit into [`Name`].
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

/// A revision's complete, checked content. It stores names instead of paths, so that a deep tree takes no more memory
/// than a flat one: 40 bytes and the name for each entry, 12 bytes and the name for each directory.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The revision it was read from.
    pub revision: Revision,
    /// The object id of the revision's tree. Revisions with the same tree have the same payload.
    pub tree: ObjectId,
    /// Directories, parents before children; index 0 is the top.
    dirs: Vec<Dir>,
    names: Names,
    /// Files, links and submodules, sorted by directory and name.
    pub entries: Vec<Entry>,
    /// Sum of the blobs' sizes, in bytes.
    pub bytes: u64,
}

impl Payload {
    /// Number of entries and directories, not counting the top.
    pub fn count(&self) -> u64 {
        (self.entries.len() + self.dirs.len()).saturating_sub(1) as u64
    }

    /// Number of directories, including the top. Directories are numbered from 0, the top, with parents before
    /// children.
    pub fn dir_count(&self) -> usize {
        self.dirs.len()
    }

    /// A directory's path relative to the top; empty for the top.
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

    /// The number of a directory's parent; 0 for the top.
    pub fn dir_parent(&self, dir: u32) -> u32 {
        self.dirs[dir as usize].parent
    }

    /// The last component of a directory's path; empty for the top.
    pub fn dir_name(&self, dir: u32) -> &[u8] {
        self.names.get(self.dirs[dir as usize].name)
    }

    /// The paths of all directories except the top, parents before children.
    pub fn dir_paths(&self) -> impl Iterator<Item = Vec<u8>> {
        (1..).take(self.dirs.len().saturating_sub(1)).map(|dir| self.dir_path(dir))
    }

    /// An entry's name: one path component, as bytes.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        self.names.get(entry.name)
    }

    /// An entry's path relative to the top.
    pub fn path_of(&self, entry: &Entry) -> Vec<u8> {
        join(&self.dir_path(entry.dir), self.name(entry))
    }
}

/// `dir/name`, or `name` at the top.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Splits a path into its directory, empty at the top, and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The changes from one tree to another, path by path: what to remove, then what to create. Applied to a copy of the
/// old payload it gives the new one. Its size is bounded: for too many changes there is no delta
/// ([`DeltaBuilder::finish`]).
#[derive(Clone, Debug)]
pub struct Delta {
    /// Files, links and submodule directories to remove. A changed entry is here and in [`Self::written`].
    pub removed: Vec<Box<[u8]>>,
    /// Directories to remove, children before parents. All entries in them are in [`Self::removed`].
    pub removed_dirs: Vec<Box<[u8]>>,
    /// Directories to create, parents before children.
    pub added_dirs: Vec<Box<[u8]>>,
    /// Entries to write.
    pub written: Vec<WrittenEntry>,
    /// The new revision.
    pub revision: Revision,
    /// The new tree.
    pub tree: ObjectId,
    /// The tree that the delta applies to.
    pub base: ObjectId,
    /// Number of entries and directories in the whole new payload, not counting the top.
    pub entries: u64,
    /// Sum of the sizes of all blobs in the new payload, in bytes.
    pub bytes: u64,
}

/// One file, link or submodule that a [`Delta`] writes.
#[derive(Clone, Debug)]
pub struct WrittenEntry {
    /// Its path relative to the top.
    pub path: Box<[u8]>,
    /// What it becomes on disk.
    pub kind: Kind,
    /// The blob's object id; for a submodule the commit's.
    pub id: ObjectId,
    /// The blob's size in bytes; 0 for a submodule.
    pub size: u64,
}

/// Limits on a payload. All are checked before the first byte is written; the error names the limit, and its flag if it
/// has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most entries and directories together.
    pub entries: u64,
    /// Largest sum of blob sizes, in bytes.
    pub bytes: u64,
    /// Largest blob, in bytes.
    pub file_bytes: u64,
    /// Most components of a path.
    pub depth: u32,
    /// Longest path relative to the generation, in bytes.
    pub path: u32,
    /// Longest path component, in bytes.
    pub name: u32,
}

impl Limits {
    /// Largest sum of name lengths of a payload, in bytes, counting each path component once. Names are in memory while
    /// the payload is written. A usual tree needs 15 to 25 bytes per entry.
    pub fn name_bytes(&self) -> u64 {
        self.entries.saturating_mul(64).max(1 << 20)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            bytes: 4 << 30,
            file_bytes: 64 << 20, // in memory while it is written, twice if it is stored as a delta
            depth: 128,           // many other tools fail on trees of more than a thousand levels
            path: 3_800,          // root, generation name and path together must fit PATH_MAX, 4096
            name: 255,            // NAME_MAX of every Linux file system in use
        }
    }
}

/// What to do with a symbolic link whose target is absolute or outside the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Symlinks {
    /// Refuse the revision: a commit's author must not choose what a reader opens outside the tree.
    #[default]
    Safe,
    /// Keep the link unchanged, as git-sync does.
    Keep,
}

/// Gives the threads that write a payload access to blobs.
pub trait BlobSource: Sync {
    /// Opens a reader for the calling thread.
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError>;

    /// The indices of `ids`, each once, in the order in which the blobs are cheapest to read.
    fn order(&self, ids: &[ObjectId]) -> Vec<u32> {
        (0..).take(ids.len()).collect()
    }
}

/// Reads blobs on one thread.
pub trait BlobReader {
    /// The blob's size in bytes, without reading its content.
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError>;

    /// Passes the whole content of the blob to `sink`, once.
    fn read(&mut self, id: &ObjectId, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>)
    -> Result<(), BlobError>;
}

/// A blob could not be read, or the sink failed.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The object database has no such blob or could not decode it.
    #[error("blob {id} cannot be read from the mirror")]
    Unreadable {
        /// The blob's object id.
        id: ObjectId,
        /// The object database's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The object database itself could not be opened.
    #[error("the mirror's object database cannot be opened")]
    Unopened(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The sink failed; this is its error.
    #[error(transparent)]
    Sink(#[from] io::Error),
}
