//! The files and symbolic links of a revision by path, with link resolution inside the tree.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use crate::payload::Parts;
use crate::revision::ObjectId;

/// Most links that are followed for one path, the same as in Linux.
const LINKS_MAX: usize = 40;

/// Identifies a file to the [`super::Contents`] that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileRef {
    /// By its content's object id, which also identifies it in other trees.
    Blob(ObjectId),
    /// By a number that only has a meaning for this reader.
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

/// Why a link does not resolve to a file, as a phrase that follows its path in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum BadLink {
    /// The target does not exist.
    #[error("a dangling symbolic link")]
    Dangling,
    /// The target, or the path itself, is a directory.
    #[error("a directory or a symbolic link to one")]
    Directory,
    /// The target is absolute or outside the tree.
    #[error("a symbolic link that points out of the tree")]
    Leaves,
    /// The target belongs to another source of a composed tree.
    #[error("a symbolic link that points out of its own source")]
    LeavesPart,
    /// Too many links were followed; most likely they form a loop.
    #[error("a symbolic link loop")]
    Circle,
    /// The target, or the path itself, is not a regular file: a submodule, a socket, a device.
    #[error("not a regular file")]
    NoFile,
}

/// Entries by path. Paths are relative to the top of the tree and are bytes, not text.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    entries: BTreeMap<Vec<u8>, Entry>,
    parts: Parts,
}

/// One entry of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A regular file.
    File(FileRef),
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// Anything else, for example a submodule.
    Other,
}

impl Tree {
    /// An empty tree composed of these parts. Links may not lead from one part into another.
    pub fn of(parts: Parts) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Adds an entry, replacing any entry at the same path.
    pub fn add(&mut self, path: Vec<u8>, entry: Entry) {
        self.entries.insert(path, entry);
    }

    /// The paths of all symbolic links, sorted.
    pub fn links(&self) -> impl Iterator<Item = &[u8]> {
        let links = self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Link(_)));
        links.map(|(path, _)| path.as_slice())
    }

    /// Returns true if the path is a symbolic link.
    pub(super) fn is_link(&self, path: &[u8]) -> bool {
        matches!(self.entries.get(path), Some(Entry::Link(_)))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the tree has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All paths, sorted.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.keys().map(Vec::as_slice)
    }

    /// Resolves a path to a regular file, following links inside the tree.
    pub fn resolve(&self, path: &[u8]) -> Result<FileRef, BadLink> {
        if let Some(Entry::File(file)) = self.entries.get(path) {
            return Ok(*file); // no component of a path that is in the tree is a link
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
                if links > LINKS_MAX {
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
