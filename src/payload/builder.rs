//! Builds a [`Payload`] from a walk over a whole tree.

use super::rules::{Duplicate, find_duplicate};
use super::{Dir, Entry, Kind, Names, Node, Parts, Payload, Refusal, Rule, Rules, Symlinks, escaped, join};
use crate::revision::{ObjectId, Revision};

/// The number of a directory that was entered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirIndex(u32);

impl DirIndex {
    /// The top of the tree.
    pub const TOP: Self = Self(0);
}

/// Builds a [`Payload`] from a walk over a revision's trees. The walk may have any order that enters a directory before
/// its contents. Every method checks its arguments and returns a [`Refusal`] of the revision if a rule is broken.
///
/// Directories without any file, link or submodule below them are left out, as in a git worktree. They occur if sparse
/// patterns exclude everything in a directory.
#[derive(Debug)]
pub struct Builder {
    rules: Rules,
    parts: Parts,
    payload: Payload,
    /// For each directory, the number of components and bytes of its path.
    path_sizes: Vec<(u32, u32)>,
}

impl Builder {
    /// Starts a payload with only the top directory.
    pub fn new(revision: Revision, tree: ObjectId, rules: Rules) -> Self {
        let dirs = vec![Dir::default()];
        let names = Names::default();
        let payload = Payload { revision, tree, dirs, names, entries: Vec::new(), bytes: 0 };
        Self { rules, parts: Parts::default(), payload, path_sizes: vec![(0, 0)] }
    }

    /// Sets the parts of a tree that is composed of several sources.
    #[must_use]
    pub fn of_parts(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// Decodes the raw mode of a tree entry.
    pub fn node(&self, dir: DirIndex, name: &[u8], raw_mode: u32) -> Result<Node, Refusal> {
        Node::of(raw_mode).ok_or_else(|| self.refuse(dir, name, Rule::Mode { mode: raw_mode }))
    }

    /// Adds a directory.
    pub fn dir(&mut self, parent: DirIndex, name: &[u8]) -> Result<DirIndex, Refusal> {
        self.check_and_count(parent, name, 0)?;
        let index = u32::try_from(self.payload.dirs.len())
            .map_err(|_| self.refuse(parent, name, Rule::Entries { limit: u64::from(u32::MAX) }))?;
        let (depth, len) = self.path_sizes[parent.0 as usize];
        let len = if len == 0 { name.len() } else { len as usize + 1 + name.len() };
        let placed = self.store_name(parent, name)?;
        self.payload.dirs.push(Dir { parent: parent.0, name: placed });
        self.path_sizes.push((depth + 1, len as u32)); // checked against the limit, which is a u32
        Ok(DirIndex(index))
    }

    /// Adds a file. `size` is the blob's size in bytes.
    pub fn file(
        &mut self,
        dir: DirIndex,
        name: &[u8],
        executable: bool,
        id: ObjectId,
        size: u64,
    ) -> Result<(), Refusal> {
        self.rules.size(size).map_err(|rule| self.refuse(dir, name, rule))?;
        let kind = if executable { Kind::Executable } else { Kind::File };
        self.push(dir, name, kind, id, size)
    }

    /// Adds a symbolic link to `target`, the blob's content.
    pub fn symlink(
        &mut self,
        dir: DirIndex,
        name: &[u8],
        id: ObjectId,
        target: &[u8],
    ) -> Result<(), Refusal> {
        let (depth, _) = self.path_sizes[dir.0 as usize];
        self.rules.link(name, depth, target).map_err(|rule| self.refuse(dir, name, rule))?;
        if self.rules.symlinks == Symlinks::Safe
            && self.parts.is_left_by(&self.payload.dir_path(dir.0), name, target)
        {
            return Err(self.refuse(dir, name, Rule::LinkLeavesSource { target: escaped(target) }));
        }
        self.push(dir, name, Kind::Symlink, id, target.len() as u64)
    }

    /// Adds a submodule that is not included, as an empty directory. `id` is its commit.
    pub fn submodule(&mut self, dir: DirIndex, name: &[u8], id: ObjectId) -> Result<(), Refusal> {
        self.push(dir, name, Kind::Submodule, id, 0)
    }

    /// A refusal because of an entry; also for rules that the walk itself checks.
    pub fn refuse(&self, dir: DirIndex, name: &[u8], rule: Rule) -> Refusal {
        let path = escaped(&join(&self.payload.dir_path(dir.0), name));
        Refusal { revision: self.payload.revision, path, rule }
    }

    /// Checks for duplicate names, drops empty directories, and returns the payload.
    pub fn finish(mut self) -> Result<Payload, Refusal> {
        let Payload { entries, names, .. } = &mut self.payload;
        entries.sort_unstable_by(|a, b| (a.dir, names.get(a.name)).cmp(&(b.dir, names.get(b.name))));
        self.check_duplicates()?;
        self.drop_empty_dirs();
        Ok(self.payload)
    }

    fn push(
        &mut self,
        dir: DirIndex,
        name: &[u8],
        kind: Kind,
        id: ObjectId,
        size: u64,
    ) -> Result<(), Refusal> {
        self.check_and_count(dir, name, size)?;
        let placed = self.store_name(dir, name)?;
        self.payload.entries.push(Entry { dir: dir.0, name: placed, kind, id, size });
        Ok(())
    }

    /// Applies the rules that hold for every entry, and adds it to the totals.
    fn check_and_count(&mut self, dir: DirIndex, name: &[u8], size: u64) -> Result<(), Refusal> {
        let (depth, dir_len) = self.path_sizes[dir.0 as usize];
        let bytes = self.payload.bytes.saturating_add(size);
        self.rules
            .name(name, depth, dir_len as usize)
            .and_then(|()| self.rules.totals(self.payload.count() + 1, bytes))
            .map_err(|rule| self.refuse(dir, name, rule))?;
        self.payload.bytes = bytes;
        Ok(())
    }

    /// Stores a name.
    fn store_name(&mut self, dir: DirIndex, name: &[u8]) -> Result<super::Name, Refusal> {
        let limit = self.rules.limits.name_bytes();
        let fits = (self.payload.names.0.len() + name.len()) as u64 <= limit;
        let placed = fits.then(|| self.payload.names.add(name)).flatten();
        placed.ok_or_else(|| self.refuse(dir, name, Rule::Names { limit }))
    }

    /// Refuses two entries of a directory with the same name, or with names that the file system takes for the same.
    fn check_duplicates(&self) -> Result<(), Refusal> {
        let payload = &self.payload;
        let dirs =
            || (1..).take(payload.dirs.len() - 1).map(|dir| (payload.dir_parent(dir), payload.dir_name(dir)));
        let all = || dirs().chain(payload.entries.iter().map(|entry| (entry.dir, payload.name(entry))));
        match find_duplicate(all, self.rules.folds) {
            None => Ok(()),
            Some(Duplicate { dir, name, rule }) => Err(self.refuse(DirIndex(dir), name, rule)),
        }
    }

    fn drop_empty_dirs(&mut self) {
        let mut used = vec![false; self.path_sizes.len()];
        used[0] = true;
        for entry in &self.payload.entries {
            used[entry.dir as usize] = true;
        }
        for dir in (1..used.len()).rev() {
            let parent = self.payload.dirs[dir].parent as usize; // a parent has the smaller index
            used[parent] |= used[dir];
        }
        if used.iter().all(|&used| used) {
            return;
        }
        let mut next = 0;
        let new_indices: Vec<u32> = used
            .iter()
            .map(|&used| {
                let index = next;
                next += u32::from(used);
                index
            })
            .collect();
        let mut keep = used.iter();
        self.payload.dirs.retain(|_| keep.next() == Some(&true));
        for dir in &mut self.payload.dirs {
            dir.parent = new_indices[dir.parent as usize];
        }
        for entry in &mut self.payload.entries {
            entry.dir = new_indices[entry.dir as usize];
        }
    }
}
