//! Compares two trees and produces a checked [`Delta`].
//!
//! Both trees are walked side by side and identical sub-trees are skipped, so the cost is proportional to what changed.
//! A payload only has directories that contain something selected, so an unchanged sub-tree is read when, and only
//! when, the existence of its parent directory depends on it.

use tokio_util::sync::CancellationToken;

use super::modules::Modules;
use super::object_error::ObjectError;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, DIRECTORY, Line, Lines, Sorted, lines};
use super::tree_to_payload::target;
use super::{Base, Error, Selection};
use crate::payload::{Delta, DeltaBuilder, Kind, Node, Parts, join, split};
use crate::revision::{ObjectId, Revision};

/// Records whether a directory contains something selected in the old tree and in the new tree.
#[derive(Clone, Copy, Default)]
struct Presence {
    old: bool,
    new: bool,
}

impl Presence {
    fn merge(&mut self, other: Self) {
        self.old |= other.old;
        self.new |= other.new;
    }
}

/// The old and the new entry of one name.
#[derive(Clone, Copy, Default)]
pub(super) struct Pair<'a> {
    pub(super) old: Option<Line<'a>>,
    pub(super) new: Option<Line<'a>>,
    /// The old tree has the name twice. Patterns may have left out either entry, so it is unknown which was published.
    pub(super) old_is_duplicate: bool,
    /// The new tree has the name twice.
    pub(super) new_is_duplicate: bool,
}

impl Pair<'_> {
    /// The entry, if both trees have it with the same object and kind.
    pub(super) fn unchanged(&self) -> Option<Line<'_>> {
        let old = self.old?;
        let new = self.new?;
        (old.id == new.id && Node::of(old.mode) == Node::of(new.mode)).then_some(new)
    }
}

/// Iterates over all names of two trees in order, with the entries of each. If a tree has a name twice, the last entry
/// counts.
pub(super) fn pairs<'t>(old: &Sorted<'t>, new: &Sorted<'t>) -> impl Iterator<Item = (&'t [u8], Pair<'t>)> {
    let mut old = old.iter().peekable();
    let mut new = new.iter().peekable();
    std::iter::from_fn(move || {
        let name = match (old.peek(), new.peek()) {
            (Some(one), Some(other)) => one.name.min(other.name),
            (one, other) => one.or(other)?.name,
        };
        let mut pair = Pair::default();
        while let Some(line) = old.next_if(|line| line.name == name) {
            pair.old_is_duplicate |= pair.old.is_some();
            pair.old = Some(line);
        }
        while let Some(line) = new.next_if(|line| line.name == name) {
            pair.new_is_duplicate |= pair.new.is_some();
            pair.new = Some(line);
        }
        Some((name, pair))
    })
}

/// The most bytes that the two versions of one directory may have together. Both are in memory at the same time, and
/// one of them twice while its delta is applied.
pub(super) const TREES_MAX: usize = 80 << 20;

/// The most components of a path that is compared: each is a level of recursion, on a thread's stack of 2 MiB. Deeper
/// trees are read as a whole, whatever `--max-path-depth` allows.
const DEPTH_MAX: u32 = 256;

/// The most bytes of memory that sub-trees that are queued for comparison may take.
const QUEUED_MAX: usize = 16 << 20;

/// Bytes that a queued sub-tree takes besides its path.
const QUEUED_OVERHEAD: usize = 96;

struct Comparison<'a> {
    reader: &'a ObjectReader<'a>,
    builder: DeltaBuilder,
    budget: Budget,
    patterns: Option<&'a Patterns>,
    /// The submodules of the old and of the new tree.
    modules: (&'a Modules, &'a Modules),
    revision: Revision,
    max_depth: u32,
    /// Set when no delta can be computed, which is not an error: part of the base could not be read, or too much
    /// changed. The error that is returned along with it has no meaning.
    needs_payload: bool,
    /// Bytes of memory that queued sub-trees take.
    queued: usize,
}

/// A sub-tree that was changed, added or removed.
struct Subtree {
    path: Vec<u8>,
    old: Option<ObjectId>,
    new: Option<ObjectId>,
    wanted: bool,
}

/// Compares the base's tree with the revision's. `None` means that the whole payload is needed instead: the mirror no
/// longer has all of the base, the rules refuse an entry while sparse patterns are in use, or there are more changes
/// than a delta may hold.
pub(super) fn delta(
    reader: &ObjectReader<'_>,
    base: Base,
    to: Peeled,
    selection: &Selection,
    patterns: Option<&Patterns>,
    (before, after, parts): (&Modules, &Modules, Parts),
    cancel: &CancellationToken,
) -> Result<Option<Delta>, Error> {
    let revision = Revision(to.commit);
    let rules = selection.rules;
    let builder = DeltaBuilder::new(base.tree, base.entries, base.bytes, revision, to.tree, rules);
    let mut comparison = Comparison {
        reader,
        builder: builder.of_parts(parts),
        budget: Budget::new(revision, to.tree, rules.limits.entries, true, cancel),
        patterns,
        modules: (before, after),
        revision,
        max_depth: rules.limits.depth.min(DEPTH_MAX),
        needs_payload: false,
        queued: 0,
    };
    if base.tree != to.tree {
        match comparison.dir(b"", Some(base.tree), Some(to.tree), patterns.is_none()) {
            Err(_) if comparison.needs_payload => return Ok(None),
            Err(Error::Refused(_)) if patterns.is_some() => return Ok(None),
            other => other?,
        };
    }
    Ok(comparison.builder.finish()?)
}

impl Comparison<'_> {
    /// Compares two versions of one directory, either of which may be absent. Both trees are dropped before their
    /// sub-trees are compared, so that a deep path does not hold whole directories in memory.
    fn dir(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        inherited: bool,
    ) -> Result<Presence, Error> {
        if self.is_too_deep(path) {
            return Err(self.give_up());
        }
        let (mut presence, subtrees) = self.level(path, old, new, inherited)?;
        for Subtree { path, old, new, wanted } in subtrees {
            self.queued -= path.len() + QUEUED_OVERHEAD;
            presence.merge(self.dir(&path, old, new, wanted)?);
        }
        if path.is_empty() {
            return Ok(presence); // the top always exists
        }
        if !(presence.old && presence.new)
            && let (Some(_), Some(new)) = (old, new)
            && self.any_unchanged(path, old, new, inherited)?
        {
            presence = Presence { old: true, new: true };
        }
        match presence {
            Presence { old: true, new: false } => self.builder.remove_dir(path),
            Presence { old: false, new: true } => {
                let (parent, name) = split(path);
                self.builder.dir(parent, name)?;
            }
            _ => {}
        }
        Ok(presence)
    }

    /// Compares the entries of one directory that are not directories themselves, and returns the sub-trees that
    /// differ.
    fn level(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        inherited: bool,
    ) -> Result<(Presence, Vec<Subtree>), Error> {
        let reader = self.reader;
        let mut size = 0;
        for (id, is_old) in [(old, true), (new, false)] {
            let found = id.map_or(Ok(0), |id| reader.tree_size(&id));
            size +=
                found.map_err(|error| if is_old { self.base_lost(error) } else { self.damaged(error) })?;
        }
        if size > TREES_MAX {
            return Err(self.give_up());
        }
        let old_tree = match old {
            Some(id) => Some((id, reader.sized_tree(&id).map_err(|error| self.base_lost(error))?)),
            None => None,
        };
        let new_tree = match new {
            Some(id) => Some((id, reader.sized_tree(&id).map_err(|error| self.damaged(error))?)),
            None => None,
        };
        let mut before = Lines::default();
        let mut after = Lines::default();
        if let Some((id, tree)) = &old_tree {
            before = lines(id, tree.data()).map_err(|error| self.base_lost(error))?;
        }
        if let Some((id, tree)) = &new_tree {
            after = lines(id, tree.data()).map_err(|error| self.damaged(error))?;
            let modules = self.modules.1;
            let mode = |line: Line<'_>| modules.checked_out(&join(path, line.name), line).mode;
            self.builder.listing(path, || after.clone().map(|line| (line.name, mode(line))))?;
        }
        if let Some(id) = new.or(old) {
            self.budget.enter(reader, &id, path, before.len().max(after.len()))?;
        }
        let mut presence = Presence::default();
        let mut subtrees = Vec::new();
        for (name, pair) in pairs(&Sorted::by_name(before), &Sorted::by_name(after)) {
            self.budget.check_cancelled()?;
            let full = join(path, name);
            let pair = self.checked_out(&full, pair);
            if pair.old_is_duplicate {
                return Err(self.give_up());
            }
            match pair.unchanged() {
                Some(line) if line.is_dir() => {} // read by `any_unchanged`, if at all
                Some(line) => {
                    let wanted = self.selects(&full, &line, inherited);
                    presence.merge(Presence { old: wanted, new: wanted });
                }
                None => presence.merge(self.changed(path, full, pair, inherited, &mut subtrees)?),
            }
            if self.builder.is_large() || self.queued > QUEUED_MAX {
                return Err(self.give_up());
            }
        }
        Ok((presence, subtrees))
    }

    /// A pair of entries, with published submodules as directories.
    fn checked_out<'t>(&self, full: &[u8], pair: Pair<'t>) -> Pair<'t> {
        Pair {
            old: pair.old.map(|line| self.modules.0.checked_out(full, line)),
            new: pair.new.map(|line| self.modules.1.checked_out(full, line)),
            ..pair
        }
    }

    /// Records the change of one name, and queues its sub-trees.
    fn changed(
        &mut self,
        dir: &[u8],
        full: Vec<u8>,
        pair: Pair<'_>,
        inherited: bool,
        subtrees: &mut Vec<Subtree>,
    ) -> Result<Presence, Error> {
        let mut presence = Presence::default();
        if let Some(line) = pair.old.filter(|line| !line.is_dir())
            && self.selects(&full, &line, inherited)
        {
            self.removed(dir, &line)?;
            presence.old = true;
        }
        if let Some(line) = pair.new.filter(|line| !line.is_dir())
            && self.selects(&full, &line, inherited)
        {
            self.written(dir, &line)?;
            presence.new = true;
        }
        let tree = |line: Option<Line<'_>>| line.filter(Line::is_dir).map(|line| line.id);
        let old = tree(pair.old);
        let new = tree(pair.new);
        if old.is_some() || new.is_some() {
            let wanted = self.patterns.is_none_or(|patterns| patterns.selects(&full, DIRECTORY, inherited));
            if self.may_select_below(&full, wanted) {
                self.queued += full.len() + QUEUED_OVERHEAD;
                subtrees.push(Subtree { path: full, old, new, wanted });
            }
        }
        Ok(presence)
    }

    /// Returns true if an unchanged sub-tree of a directory contains something selected.
    fn any_unchanged(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: ObjectId,
        inherited: bool,
    ) -> Result<bool, Error> {
        let subtrees = {
            let reader = self.reader;
            let Some(old) = old else { return Ok(false) };
            let old_tree = reader.tree(&old).map_err(|error| self.base_lost(error))?;
            let new_tree = reader.tree(&new).map_err(|error| self.damaged(error))?;
            let before = lines(&old, old_tree.data()).map_err(|error| self.base_lost(error))?;
            let after = lines(&new, new_tree.data()).map_err(|error| self.damaged(error))?;
            let mut subtrees = Vec::new();
            for (name, pair) in pairs(&Sorted::by_name(before), &Sorted::by_name(after)) {
                let full = join(path, name);
                if let Some(line) = self.checked_out(&full, pair).unchanged().filter(Line::is_dir) {
                    let wanted = self.selects(&full, &line, inherited);
                    if !self.may_select_below(&full, wanted) {
                        continue;
                    }
                    self.queued += full.len() + QUEUED_OVERHEAD;
                    subtrees.push((full, line.id, wanted));
                    if self.queued > QUEUED_MAX {
                        return Err(self.give_up());
                    }
                }
            }
            subtrees
        };
        for (full, id, wanted) in subtrees {
            self.queued -= full.len() + QUEUED_OVERHEAD;
            if self.any_wanted(&full, id, wanted)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn removed(&mut self, dir: &[u8], line: &Line<'_>) -> Result<(), Error> {
        let size = match Node::of(line.mode) {
            Some(Node::Entry(Kind::Submodule)) => 0,
            _ => self.reader.blob_size(&line.id).map_err(|error| self.base_lost(error))?,
        };
        self.builder.remove(dir, line.name, size);
        Ok(())
    }

    fn written(&mut self, dir: &[u8], line: &Line<'_>) -> Result<(), Error> {
        let reader = self.reader;
        match self.builder.node(dir, line.name, line.mode)? {
            Node::Dir => {} // compared as a directory
            Node::Entry(Kind::Submodule) => match self.modules.1.undeclared(&join(dir, line.name)) {
                Some(rule) => return Err(self.builder.refuse(dir, line.name, rule).into()),
                None => self.builder.submodule(dir, line.name, line.id)?,
            },
            Node::Entry(Kind::Symlink) => {
                match target(reader, &line.id).map_err(|error| self.damaged(error))? {
                    Ok(target) => self.builder.symlink(dir, line.name, line.id, &target)?,
                    Err(rule) => return Err(self.builder.refuse(dir, line.name, rule).into()),
                }
            }
            Node::Entry(kind) => {
                let size = reader.blob_size(&line.id).map_err(|error| self.damaged(error))?;
                self.builder.file(dir, line.name, kind == Kind::Executable, line.id, size)?;
            }
        }
        Ok(())
    }

    /// Returns true if anything below an unchanged tree is selected.
    fn any_wanted(&mut self, path: &[u8], id: ObjectId, inherited: bool) -> Result<bool, Error> {
        if self.is_too_deep(path) {
            return Err(self.give_up());
        }
        let reader = self.reader;
        let tree = self.budget.open(reader, &id, path)?;
        let mut any = false;
        for line in tree.lines() {
            let full = join(path, line.name);
            let wanted = self.selects(&full, &line, inherited);
            any = if line.is_dir() {
                self.may_select_below(&full, wanted) && self.any_wanted(&full, line.id, wanted)?
            } else {
                wanted
            };
            if any {
                break;
            }
        }
        self.budget.close(tree);
        Ok(any)
    }

    /// Returns true if a path is deeper than is compared. The base may have such a path if it was published with a
    /// higher limit.
    fn is_too_deep(&self, path: &[u8]) -> bool {
        path.iter().filter(|byte| **byte == b'/').count() > self.max_depth as usize
    }

    /// Ends the comparison: the whole payload is needed.
    fn give_up(&mut self) -> Error {
        self.needs_payload = true;
        Error::Cancelled
    }

    /// Where there are patterns, no submodule is published (`Objects::delta`), so the mode is that in the tree.
    fn selects(&self, full: &[u8], line: &Line<'_>, inherited: bool) -> bool {
        self.patterns.is_none_or(|patterns| patterns.selects(full, line.mode, inherited))
    }

    /// Whether anything below the directory `full` can be wanted.
    fn may_select_below(&self, full: &[u8], wanted: bool) -> bool {
        self.patterns.is_none_or(|patterns| patterns.may_select_below(full, wanted))
    }

    fn damaged(&self, error: ObjectError) -> Error {
        Error::damaged(self.revision, error)
    }

    /// Ends the comparison because an object of the base cannot be read, which is no damage: the base may be garbage.
    fn base_lost(&mut self, error: ObjectError) -> Error {
        self.needs_payload = true;
        self.damaged(error)
    }
}
