//! Collects a whole tree into a [`Payload`].

use std::collections::HashMap;

use super::rules::case_folded;
use super::{Entry, Kind, Node, Payload, Refusal, Rule, Rules, escaped, join};
use crate::revision::{ObjectId, Revision};

/// A directory that the builder knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirIndex(u32);

impl DirIndex {
    /// The top of the tree.
    pub const TOP: Self = Self(0);
}

/// Makes a [`Payload`] from a walk over a revision's trees, in any order that enters a directory before its contents.
/// Every function checks what it is given and refuses the revision by name.
///
/// Directories that end up without a file, link or submodule below them are left out, as git leaves them out of a
/// worktree: the walk may enter what a selection then empties.
#[derive(Debug)]
pub struct Builder {
    rules: Rules,
    payload: Payload,
    /// For each directory: its parent, and how many components its path has.
    places: Vec<(u32, u32)>,
    name_bytes: u64,
}

impl Builder {
    /// Starts with the top directory.
    pub fn new(revision: Revision, tree: ObjectId, rules: Rules) -> Self {
        let payload = Payload { revision, tree, dirs: vec![Box::default()], entries: Vec::new(), bytes: 0 };
        Self { rules, payload, places: vec![(0, 0)], name_bytes: 0 }
    }

    /// What the tree's raw mode says the entry is.
    pub fn node(&self, dir: DirIndex, name: &[u8], raw_mode: u32) -> Result<Node, Refusal> {
        Node::of(raw_mode).ok_or_else(|| self.refuse(dir, name, Rule::Mode { mode: raw_mode }))
    }

    /// Enters a sub-tree.
    pub fn dir(&mut self, parent: DirIndex, name: &[u8]) -> Result<DirIndex, Refusal> {
        self.admit(parent, name, 0)?;
        let path = join(&self.payload.dirs[parent.0 as usize], name).into_boxed_slice();
        self.charge(parent, name, path.len())?;
        let index = u32::try_from(self.payload.dirs.len())
            .map_err(|_| self.refuse(parent, name, Rule::Entries { limit: u64::from(u32::MAX) }))?;
        self.payload.dirs.push(path);
        self.places.push((parent.0, self.places[parent.0 as usize].1 + 1));
        Ok(DirIndex(index))
    }

    /// Adds a file. `size` is the blob's.
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
        let depth = self.places[dir.0 as usize].1;
        self.rules.link(name, depth, target).map_err(|rule| self.refuse(dir, name, rule))?;
        self.push(dir, name, Kind::Symlink, id, target.len() as u64)
    }

    /// Adds a submodule that is not asked for. `id` is its commit.
    pub fn submodule(&mut self, dir: DirIndex, name: &[u8], id: ObjectId) -> Result<(), Refusal> {
        self.push(dir, name, Kind::Submodule, id, 0)
    }

    /// A refusal of an entry that the walk itself finds wrong.
    pub fn refuse(&self, dir: DirIndex, name: &[u8], rule: Rule) -> Refusal {
        let path = escaped(&join(&self.payload.dirs[dir.0 as usize], name));
        Refusal { revision: self.payload.revision, path, rule }
    }

    /// Checks what only the whole shows, and hands the payload out.
    pub fn finish(mut self) -> Result<Payload, Refusal> {
        self.payload.entries.sort_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name)));
        self.no_name_twice()?;
        if self.rules.folds {
            self.no_name_folds()?;
        }
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
        self.admit(dir, name, size)?;
        self.charge(dir, name, name.len())?;
        self.payload.entries.push(Entry { dir: dir.0, name: name.into(), kind, id, size });
        Ok(())
    }

    /// The checks that every entry passes, and the sums.
    fn admit(&mut self, dir: DirIndex, name: &[u8], size: u64) -> Result<(), Refusal> {
        let (_, depth) = self.places[dir.0 as usize];
        let dir_len = self.payload.dirs[dir.0 as usize].len();
        let bytes = self.payload.bytes.saturating_add(size);
        self.rules
            .name(name, depth, dir_len)
            .and_then(|()| self.rules.totals(self.payload.count() + 1, bytes))
            .map_err(|rule| self.refuse(dir, name, rule))?;
        self.payload.bytes = bytes;
        Ok(())
    }

    fn charge(&mut self, dir: DirIndex, name: &[u8], bytes: usize) -> Result<(), Refusal> {
        self.name_bytes += bytes as u64;
        let limit = self.rules.name_bytes();
        if self.name_bytes > limit { Err(self.refuse(dir, name, Rule::Names { limit })) } else { Ok(()) }
    }

    /// The last component of a directory's path.
    fn dir_name(&self, dir: usize) -> &[u8] {
        let path = &self.payload.dirs[dir];
        path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
    }

    /// Directories but the top, as `(parent, name)`, sorted.
    fn sorted_dirs(&self) -> Vec<(u32, &[u8])> {
        let mut dirs: Vec<_> =
            (1..self.payload.dirs.len()).map(|dir| (self.places[dir].0, self.dir_name(dir))).collect();
        dirs.sort_unstable();
        dirs
    }

    fn no_name_twice(&self) -> Result<(), Refusal> {
        let entries = &self.payload.entries;
        let dirs = self.sorted_dirs();
        let twice = entries
            .windows(2)
            .find(|pair| pair[0].dir == pair[1].dir && pair[0].name == pair[1].name)
            .map(|pair| (pair[0].dir, &*pair[0].name))
            .or_else(|| dirs.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]))
            .or_else(|| {
                let taken =
                    |dir: &&(u32, &[u8])| entries.binary_search_by(|e| (e.dir, &*e.name).cmp(dir)).is_ok();
                dirs.iter().find(taken).copied()
            });
        twice.map_or(Ok(()), |(dir, name)| Err(self.refuse(DirIndex(dir), name, Rule::Duplicate)))
    }

    fn no_name_folds(&self) -> Result<(), Refusal> {
        let mut seen = HashMap::new();
        let entries = self.payload.entries.iter().map(|entry| (entry.dir, &*entry.name));
        for (dir, name) in self.sorted_dirs().into_iter().chain(entries) {
            if let Some(other) = seen.insert((dir, case_folded(name)), name) {
                return Err(self.refuse(DirIndex(dir), name, Rule::Folds { other: escaped(other) }));
            }
        }
        Ok(())
    }

    fn drop_empty_dirs(&mut self) {
        let mut used = vec![false; self.places.len()];
        used[0] = true;
        for entry in &self.payload.entries {
            used[entry.dir as usize] = true;
        }
        for dir in (1..used.len()).rev() {
            let parent = self.places[dir].0 as usize; // a parent has the smaller index
            used[parent] |= used[dir];
        }
        if used.iter().all(|&used| used) {
            return;
        }
        let mut next = 0;
        let moved: Vec<u32> = used
            .iter()
            .map(|&used| {
                let at = next;
                next += u32::from(used);
                at
            })
            .collect();
        let mut keep = used.iter();
        self.payload.dirs.retain(|_| keep.next() == Some(&true));
        for entry in &mut self.payload.entries {
            entry.dir = moved[entry.dir as usize];
        }
    }
}
