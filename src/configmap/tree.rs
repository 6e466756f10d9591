//! A revision's files and links by path, and which file a link leads to.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use crate::payload::Parts;
use crate::revision::ObjectId;

/// As many links in one path as Linux follows.
const MOST_LINKS: usize = 40;

/// How a tree's reader finds a file again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileRef {
    /// By its content, so that it is the same file in another tree.
    Blob(ObjectId),
    /// By a number that only this reader knows.
    Index(usize),
}

impl From<ObjectId> for FileRef {
    fn from(id: ObjectId) -> Self {
        Self::Blob(id)
    }
}

impl From<usize> for FileRef {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// Why a link gives no content, in words that follow its path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum BadLink {
    /// It names nothing.
    #[error("a link to nothing")]
    Dangling,
    /// It names a directory.
    #[error("a link to a directory")]
    Directory,
    /// It is absolute or climbs out.
    #[error("a link that leaves the tree")]
    Leaves,
    /// It leads to another of several sources.
    #[error("a link that leaves what its source placed")]
    LeavesPart,
    /// It leads back to itself.
    #[error("a link in a circle")]
    Circle,
    /// A submodule, a socket, a device.
    #[error("no regular file")]
    NoFile,
}

/// Paths, relative, as bytes.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    entries: BTreeMap<Vec<u8>, Entry>,
    parts: Parts,
}

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A regular file.
    File(FileRef),
    /// A symbolic link and its target.
    Link(Vec<u8>),
    /// What is neither.
    Other,
}

impl Tree {
    /// An empty one; links do not lead from one part to another.
    pub fn of(parts: Parts) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Adds what is at a path; of a file, what [`super::Contents`] will be asked for.
    pub fn add(&mut self, path: Vec<u8>, entry: Entry) {
        self.entries.insert(path, entry);
    }

    /// Whether there is any link.
    pub fn has_links(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry, Entry::Link(_)))
    }

    /// Whether a path is a regular file by itself, and not through a link.
    pub fn is_file(&self, path: &[u8]) -> bool {
        matches!(self.entries.get(path), Some(Entry::File(_)))
    }

    /// Whether a path is a link.
    pub(super) fn is_link(&self, path: &[u8]) -> bool {
        matches!(self.entries.get(path), Some(Entry::Link(_)))
    }

    /// Files, links and others.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no entry at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All paths, in order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.keys().map(Vec::as_slice)
    }

    /// The file that a path gives, through links within the tree.
    pub fn resolve(&self, path: &[u8]) -> Result<FileRef, BadLink> {
        if let Some(Entry::File(file)) = self.entries.get(path) {
            return Ok(*file); // what has files below it is no link
        }
        let mut rest: VecDeque<Vec<u8>> = components(path).collect();
        let mut at: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        let mut owner = None;
        while let Some(component) = rest.pop_front() {
            match component.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    at.pop().ok_or(BadLink::Leaves)?;
                    continue;
                }
                _ => at.push(component),
            }
            let here = at.join(&b'/');
            if let Some(Entry::Link(target)) = self.entries.get(&here) {
                let own = self.parts.owner(&here);
                if *owner.get_or_insert(own) != own {
                    return Err(BadLink::LeavesPart);
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(BadLink::Circle);
                }
                if target.starts_with(b"/") {
                    return Err(BadLink::Leaves);
                }
                at.pop();
                for component in components(target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(component);
                }
            }
        }
        let found = at.join(&b'/');
        if owner.is_some_and(|owner| owner != self.parts.owner(&found)) {
            return Err(BadLink::LeavesPart);
        }
        match self.entries.get(&found) {
            Some(Entry::File(file)) => Ok(*file),
            Some(_) => Err(BadLink::NoFile),
            None if self.is_directory(found) => Err(BadLink::Directory),
            None => Err(BadLink::Dangling),
        }
    }

    fn is_directory(&self, mut path: Vec<u8>) -> bool {
        if path.is_empty() {
            return true;
        }
        path.push(b'/');
        self.entries.range(path.clone()..).next().is_some_and(|(next, _)| next.starts_with(&path))
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|&byte| byte == b'/').map(<[u8]>::to_vec)
}
