//! Builds a [`Delta`] from the comparison of two trees.

use super::rules::find_duplicate;
use super::{Delta, Kind, Node, Parts, Refusal, Rule, Rules, Symlinks, WrittenEntry, escaped, join};
use crate::revision::{ObjectId, Revision};

/// Most memory that a delta may take, in bytes: some 150,000 paths of usual length. A larger change is written as a
/// whole payload, which stores no paths.
const MEMORY_MAX: usize = 16 << 20;

/// Estimated bytes of memory per path besides the path itself.
const PATH_OVERHEAD: usize = 64;

/// Builds a [`Delta`] from a comparison of two trees, under the same rules as [`super::Builder`] except for
/// [`Rule::Names`]: the names of unchanged entries are unknown here, and take no memory. So a delta may lead to a tree
/// that is refused for its names when it is written as a whole.
///
/// The caller reports removed and added entries by directory and name, in any order. It also passes every tree of the
/// new revision that it reads to [`DeltaBuilder::listing`], because a new name may collide with an unchanged one.
#[derive(Debug)]
pub struct DeltaBuilder {
    rules: Rules,
    parts: Parts,
    delta: Delta,
    entries: i128,
    bytes: i128,
    /// Estimated memory of the delta, in bytes.
    memory: usize,
}

impl DeltaBuilder {
    /// Starts from the published tree `base`, which has `base_entries` entries and directories, and `base_bytes` bytes
    /// of blobs.
    pub fn new(
        base: ObjectId,
        base_entries: u64,
        base_bytes: u64,
        revision: Revision,
        tree: ObjectId,
        rules: Rules,
    ) -> Self {
        let delta = Delta {
            removed: Vec::new(),
            removed_dirs: Vec::new(),
            added_dirs: Vec::new(),
            written: Vec::new(),
            revision,
            tree,
            base,
            entries: base_entries,
            bytes: base_bytes,
        };
        let parts = Parts::default();
        Self { rules, parts, delta, entries: base_entries.into(), bytes: base_bytes.into(), memory: 0 }
    }

    /// Sets the parts of a tree that is composed of several sources.
    #[must_use]
    pub fn of_parts(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// Returns true if the change is too large for a delta. Further paths are not stored then, and
    /// [`DeltaBuilder::finish`] returns `None`.
    pub fn is_large(&self) -> bool {
        self.memory > MEMORY_MAX
    }

    /// Checks the names and modes of a whole tree object of the new revision. `dir` is its path, empty at the top.
    /// `names` lists its entries; every call has to return the same.
    pub fn listing<'n, I: Iterator<Item = (&'n [u8], u32)>>(
        &self,
        dir: &[u8],
        names: impl Fn() -> I,
    ) -> Result<(), Refusal> {
        for (name, raw_mode) in names() {
            self.check_name(dir, name)?;
            self.node(dir, name, raw_mode)?;
        }
        match find_duplicate(|| names().map(|(name, _)| ((), name)), self.rules.folds) {
            None => Ok(()),
            Some(found) => Err(self.refuse(dir, found.name, found.rule)),
        }
    }

    /// Decodes the raw mode of a tree entry.
    pub fn node(&self, dir: &[u8], name: &[u8], raw_mode: u32) -> Result<Node, Refusal> {
        Node::of(raw_mode).ok_or_else(|| self.refuse(dir, name, Rule::Mode { mode: raw_mode }))
    }

    /// Removes a file, link or submodule of the base, also if another entry takes its place. `size` is the blob's size
    /// in bytes, 0 for a submodule.
    pub fn remove(&mut self, dir: &[u8], name: &[u8], size: u64) {
        if let Some(path) = self.path(dir, name) {
            self.delta.removed.push(path);
        }
        self.entries -= 1;
        self.bytes -= i128::from(size);
    }

    /// Removes a directory of the base. The caller also removes everything in it.
    pub fn remove_dir(&mut self, path: &[u8]) {
        if let Some(path) = self.path(b"", path) {
            self.delta.removed_dirs.push(path);
        }
        self.entries -= 1;
    }

    /// Adds a directory. The caller must add an entry below it, because empty directories are not published.
    pub fn dir(&mut self, dir: &[u8], name: &[u8]) -> Result<(), Refusal> {
        self.check_name(dir, name)?;
        if let Some(path) = self.path(dir, name) {
            self.delta.added_dirs.push(path);
        }
        self.count_added(dir, name, 0)
    }

    /// Adds a file. For a changed file, the caller also calls [`DeltaBuilder::remove`].
    pub fn file(
        &mut self,
        dir: &[u8],
        name: &[u8],
        executable: bool,
        id: ObjectId,
        size: u64,
    ) -> Result<(), Refusal> {
        self.rules.size(size).map_err(|rule| self.refuse(dir, name, rule))?;
        let kind = if executable { Kind::Executable } else { Kind::File };
        self.write(dir, name, kind, id, size)
    }

    /// Adds a symbolic link to `target`, the blob's content. For a changed link, the caller also calls
    /// [`DeltaBuilder::remove`].
    pub fn symlink(&mut self, dir: &[u8], name: &[u8], id: ObjectId, target: &[u8]) -> Result<(), Refusal> {
        self.rules.link(name, depth(dir), target).map_err(|rule| self.refuse(dir, name, rule))?;
        if self.rules.symlinks == Symlinks::Safe && self.parts.is_left_by(dir, name, target) {
            return Err(self.refuse(dir, name, Rule::LinkLeavesSource { target: escaped(target) }));
        }
        self.write(dir, name, Kind::Symlink, id, target.len() as u64)
    }

    /// Adds a submodule as an empty directory.
    pub fn submodule(&mut self, dir: &[u8], name: &[u8], id: ObjectId) -> Result<(), Refusal> {
        self.write(dir, name, Kind::Submodule, id, 0)
    }

    /// A refusal because of an entry; also for rules that the comparison itself checks.
    pub fn refuse(&self, dir: &[u8], name: &[u8], rule: Rule) -> Refusal {
        Refusal { revision: self.delta.revision, path: escaped(&join(dir, name)), rule }
    }

    /// Checks the totals, sorts directories, and returns the delta. `None` if the change is too large for a delta and
    /// should be written as a whole payload.
    pub fn finish(mut self) -> Result<Option<Delta>, Refusal> {
        if self.is_large() {
            return Ok(None);
        }
        self.delta.entries = u64::try_from(self.entries.max(0)).unwrap_or(u64::MAX);
        self.delta.bytes = u64::try_from(self.bytes.max(0)).unwrap_or(u64::MAX);
        // Removals may be reported after additions, so the totals are only known now.
        self.rules.totals(self.delta.entries, self.delta.bytes).map_err(|rule| {
            let last = self.delta.written.last().map_or(&b""[..], |entry| &*entry.path);
            self.refuse(b"", last, rule)
        })?;
        // A path sorts after all of its prefixes, so this puts parents before children.
        self.delta.added_dirs.sort_unstable();
        self.delta.removed_dirs.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Some(self.delta))
    }

    /// Counts the memory of a path and returns the path; `None` if the delta is too large.
    fn path(&mut self, dir: &[u8], name: &[u8]) -> Option<Box<[u8]>> {
        self.memory = self.memory.saturating_add(dir.len() + 1 + name.len() + PATH_OVERHEAD);
        (!self.is_large()).then(|| join(dir, name).into())
    }

    fn check_name(&self, dir: &[u8], name: &[u8]) -> Result<(), Refusal> {
        self.rules.name(name, depth(dir), dir.len()).map_err(|rule| self.refuse(dir, name, rule))
    }

    fn write(&mut self, dir: &[u8], name: &[u8], kind: Kind, id: ObjectId, size: u64) -> Result<(), Refusal> {
        self.check_name(dir, name)?;
        if let Some(path) = self.path(dir, name) {
            self.delta.written.push(WrittenEntry { path, kind, id, size });
        }
        self.count_added(dir, name, size)
    }

    /// Counts an addition. The number of additions alone is already limited here, before removals are known: no valid
    /// tree has more entries than the limit.
    fn count_added(&mut self, dir: &[u8], name: &[u8], size: u64) -> Result<(), Refusal> {
        self.entries += 1;
        self.bytes += i128::from(size);
        let added = (self.delta.written.len() + self.delta.added_dirs.len()) as u64;
        self.rules.totals(added, 0).map_err(|rule| self.refuse(dir, name, rule))
    }
}

/// Number of components of a directory's path.
fn depth(dir: &[u8]) -> u32 {
    if dir.is_empty() { 0 } else { 1 + dir.iter().filter(|&&byte| byte == b'/').count() as u32 }
}
