//! Collects what one revision changes against another into a [`Delta`].

use super::rules::twice;
use super::{Delta, Kind, Node, Parts, Refusal, Rule, Rules, Symlinks, escaped, join};
use crate::revision::{ObjectId, Revision};

/// What a delta may take in memory, in bytes: some 150,000 paths of usual length. What changes more is written as a whole
/// payload, which holds no paths.
const HELD_MAX: usize = 16 << 20;

/// What each path costs besides its bytes.
const AROUND: usize = 64;

/// Makes a [`Delta`] from a comparison of two trees, under the same rules as [`super::Builder`].
///
/// The caller reports what goes and what comes, by directory and name, in any order, and shows every tree of the new
/// revision that it opens to [`DeltaBuilder::listing`]: a name may collide with one that did not change.
#[derive(Debug)]
pub struct DeltaBuilder {
    rules: Rules,
    parts: Parts,
    delta: Delta,
    entries: i128,
    bytes: i128,
    /// What the delta takes in memory, more or less.
    held: usize,
}

impl DeltaBuilder {
    /// Starts from a published tree with so many entries (directories included) and bytes.
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
        Self { rules, parts, delta, entries: base_entries.into(), bytes: base_bytes.into(), held: 0 }
    }

    /// The same for a tree that is composed of several sources'.
    #[must_use]
    pub fn of_parts(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// Whether it has become larger than a delta may be: nothing more is kept then, and [`DeltaBuilder::finish`] has none.
    pub fn is_large(&self) -> bool {
        self.held > HELD_MAX
    }

    /// Checks the names and modes of a whole tree of the new revision: `dir` is its path, empty at the top. `names` lists
    /// them, the same at every call.
    pub fn listing<'n, I: Iterator<Item = (&'n [u8], u32)>>(
        &self,
        dir: &[u8],
        names: impl Fn() -> I,
    ) -> Result<(), Refusal> {
        for (name, raw_mode) in names() {
            self.name(dir, name)?;
            self.node(dir, name, raw_mode)?;
        }
        match twice(|| names().map(|(name, _)| ((), name)), self.rules.folds) {
            None => Ok(()),
            Some(found) => Err(self.refuse(dir, found.name, found.rule)),
        }
    }

    /// What the tree's raw mode says the entry is.
    pub fn node(&self, dir: &[u8], name: &[u8], raw_mode: u32) -> Result<Node, Refusal> {
        Node::of(raw_mode).ok_or_else(|| self.refuse(dir, name, Rule::Mode { mode: raw_mode }))
    }

    /// A file, link or submodule of the base goes, for good or because something else takes its place. `size` is its
    /// blob's (a submodule's is 0).
    pub fn remove(&mut self, dir: &[u8], name: &[u8], size: u64) {
        if let Some(path) = self.keep(dir, name) {
            self.delta.removed.push(path);
        }
        self.entries -= 1;
        self.bytes -= i128::from(size);
    }

    /// A directory of the base goes; everything in it is reported, too.
    pub fn remove_dir(&mut self, path: &[u8]) {
        if let Some(path) = self.keep(b"", path) {
            self.delta.removed_dirs.push(path);
        }
        self.entries -= 1;
    }

    /// A directory comes; it must get an entry.
    pub fn dir(&mut self, dir: &[u8], name: &[u8]) -> Result<(), Refusal> {
        self.name(dir, name)?;
        if let Some(path) = self.keep(dir, name) {
            self.delta.added_dirs.push(path);
        }
        self.grow(dir, name, 0)
    }

    /// A file comes, or changes (then [`DeltaBuilder::remove`] is called, too).
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

    /// A link comes, or changes.
    pub fn symlink(&mut self, dir: &[u8], name: &[u8], id: ObjectId, target: &[u8]) -> Result<(), Refusal> {
        self.rules.link(name, depth(dir), target).map_err(|rule| self.refuse(dir, name, rule))?;
        if self.rules.symlinks == Symlinks::Safe && self.parts.is_left_by(dir, name, target) {
            return Err(self.refuse(dir, name, Rule::LinkLeavesSource { target: escaped(target) }));
        }
        self.write(dir, name, Kind::Symlink, id, target.len() as u64)
    }

    /// A submodule comes, or changes.
    pub fn submodule(&mut self, dir: &[u8], name: &[u8], id: ObjectId) -> Result<(), Refusal> {
        self.write(dir, name, Kind::Submodule, id, 0)
    }

    /// A refusal of an entry that the comparison itself finds wrong.
    pub fn refuse(&self, dir: &[u8], name: &[u8], rule: Rule) -> Refusal {
        Refusal { revision: self.delta.revision, path: escaped(&join(dir, name)), rule }
    }

    /// Checks the sums, brings directories into their order, and hands the delta out. `None`: so much changes that a
    /// list of it would be too large, and a whole payload is the better way.
    pub fn finish(mut self) -> Result<Option<Delta>, Refusal> {
        if self.is_large() {
            return Ok(None);
        }
        self.delta.entries = u64::try_from(self.entries.max(0)).unwrap_or(u64::MAX);
        self.delta.bytes = u64::try_from(self.bytes.max(0)).unwrap_or(u64::MAX);
        // Removals may come after additions, so the sums are only known now.
        self.rules.totals(self.delta.entries, self.delta.bytes).map_err(|rule| {
            let last = self.delta.written.last().map_or(&b""[..], |(path, ..)| path);
            self.refuse(b"", last, rule)
        })?;
        // A path sorts after every path it extends.
        self.delta.added_dirs.sort_unstable();
        self.delta.removed_dirs.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Some(self.delta))
    }

    /// A path that is to be kept, unless there are too many.
    fn keep(&mut self, dir: &[u8], name: &[u8]) -> Option<Box<[u8]>> {
        self.held = self.held.saturating_add(dir.len() + 1 + name.len() + AROUND);
        (!self.is_large()).then(|| join(dir, name).into())
    }

    fn name(&self, dir: &[u8], name: &[u8]) -> Result<(), Refusal> {
        self.rules.name(name, depth(dir), dir.len()).map_err(|rule| self.refuse(dir, name, rule))
    }

    fn write(&mut self, dir: &[u8], name: &[u8], kind: Kind, id: ObjectId, size: u64) -> Result<(), Refusal> {
        self.name(dir, name)?;
        if let Some(path) = self.keep(dir, name) {
            self.delta.written.push((path, kind, id, size));
        }
        self.grow(dir, name, size)
    }

    /// Counts an addition. What one comparison adds is bounded here already, whatever it removes later: no tree may
    /// have more than that.
    fn grow(&mut self, dir: &[u8], name: &[u8], size: u64) -> Result<(), Refusal> {
        self.entries += 1;
        self.bytes += i128::from(size);
        let added = (self.delta.written.len() + self.delta.added_dirs.len()) as u64;
        self.rules.totals(added, 0).map_err(|rule| self.refuse(dir, name, rule))
    }
}

/// Components of a directory's path.
fn depth(dir: &[u8]) -> u32 {
    if dir.is_empty() { 0 } else { 1 + dir.iter().filter(|&&byte| byte == b'/').count() as u32 }
}
