//! What one tree changes against another, as a checked [`Delta`].
//!
//! The two trees are walked side by side and what is the same in both is skipped, so that the cost is what changed.
//! A directory exists where something wanted is in it, on each side; a sub-tree that did not change is only looked into
//! when the existence of the directory above depends on it.

use tokio_util::sync::CancellationToken;

use super::lack::Lack;
use super::modules::Modules;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, Line, Lines, Sorted, lines};
use super::tree_to_payload::target;
use super::{Base, Error, Selection};
use crate::payload::{Delta, DeltaBuilder, Kind, Node, Parts, join};
use crate::revision::{ObjectId, Revision};

/// Whether a directory has something wanted in it, before and after.
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

/// The two versions of one name.
#[derive(Clone, Copy, Default)]
pub(super) struct Pair<'a> {
    pub(super) old: Option<Line<'a>>,
    pub(super) new: Option<Line<'a>>,
    /// The old tree has the name twice: patterns may have left out either, and which one was published is not seen.
    pub(super) is_unclear: bool,
    /// The new tree has the name twice.
    pub(super) is_twice: bool,
}

impl Pair<'_> {
    /// What both versions are, if that is the same.
    pub(super) fn unchanged(&self) -> Option<Line<'_>> {
        let old = self.old?;
        let new = self.new?;
        (old.id == new.id && Node::of(old.mode) == Node::of(new.mode)).then_some(new)
    }
}

/// All names of two trees, each with its two versions. Of a name that one tree has twice the last counts.
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
            pair.is_unclear |= pair.old.is_some();
            pair.old = Some(line);
        }
        while let Some(line) = new.next_if(|line| line.name == name) {
            pair.is_twice |= pair.new.is_some();
            pair.new = Some(line);
        }
        Some((name, pair))
    })
}

/// Two versions of one directory are compared up to so many bytes together: they are in memory at once, and one of them
/// twice while it is put together from a difference.
pub(super) const TREES_MAX: usize = 80 << 20;

/// Sub-trees that wait for their turn take up to so many bytes.
const WAITING_MAX: usize = 16 << 20;

/// What each takes besides its path.
const BELOW: usize = 96;

struct Comparison<'a> {
    reader: &'a ObjectReader<'a>,
    builder: DeltaBuilder,
    budget: Budget,
    patterns: Option<&'a Patterns>,
    /// Submodules, before and after.
    modules: (&'a Modules, &'a Modules),
    revision: Revision,
    max_depth: u32,
    /// No comparison is possible, and that is no error: something of the base could not be read, or too much changed.
    undecided: bool,
    /// Sub-trees that are still to be compared, in bytes of memory.
    waiting: usize,
}

/// A sub-tree that differs, or is new, or goes.
struct Below {
    path: Vec<u8>,
    old: Option<ObjectId>,
    new: Option<ObjectId>,
    wanted: bool,
}

/// Compares the base's tree with the revision's. `None` where that is not possible or would not decide: the mirror no
/// longer has all of the base, a name is refused that a selection may leave out, or more changes than a delta holds.
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
        max_depth: rules.limits.depth,
        undecided: false,
        waiting: 0,
    };
    if base.tree != to.tree {
        match comparison.dir(b"", Some(base.tree), Some(to.tree), patterns.is_none()) {
            Err(_) if comparison.undecided => return Ok(None),
            Err(Error::Refused(_)) if patterns.is_some() => return Ok(None),
            other => other?,
        };
    }
    Ok(comparison.builder.finish()?)
}

impl Comparison<'_> {
    /// Compares two versions of one directory, either of which may be absent. Both trees are released before those in
    /// them are compared, so that depth costs what changed on the way and not whole directories.
    fn dir(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        inherited: bool,
    ) -> Result<Presence, Error> {
        if self.is_too_deep(path) {
            return Err(self.too_much());
        }
        let (mut presence, below) = self.level(path, old, new, inherited)?;
        for Below { path, old, new, wanted } in below {
            self.waiting -= path.len() + BELOW;
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

    /// One level of it: what is no directory is compared, and directories that differ are returned.
    fn level(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        inherited: bool,
    ) -> Result<(Presence, Vec<Below>), Error> {
        let reader = self.reader;
        let mut size = 0;
        for (id, is_old) in [(old, true), (new, false)] {
            let found = id.map_or(Ok(0), |id| reader.tree_size(&id));
            size += found.map_err(|lack| if is_old { self.lost(lack) } else { self.damaged(lack) })?;
        }
        if size > TREES_MAX {
            return Err(self.too_much());
        }
        let old_tree = match old {
            Some(id) => Some((id, reader.sized_tree(&id).map_err(|lack| self.lost(lack))?)),
            None => None,
        };
        let new_tree = match new {
            Some(id) => Some((id, reader.sized_tree(&id).map_err(|lack| self.damaged(lack))?)),
            None => None,
        };
        let mut before = Lines::default();
        let mut after = Lines::default();
        if let Some((id, tree)) = &old_tree {
            before = lines(id, tree.data()).map_err(|lack| self.lost(lack))?;
        }
        if let Some((id, tree)) = &new_tree {
            after = lines(id, tree.data()).map_err(|lack| self.damaged(lack))?;
            let modules = self.modules.1;
            let seen = |line: Line<'_>| modules.seen(&join(path, line.name), line).mode;
            self.builder.listing(path, || after.clone().map(|line| (line.name, seen(line))))?;
        }
        if let Some(id) = new.or(old) {
            self.budget.enter(reader, &id, path, before.len().max(after.len()))?;
        }
        let mut presence = Presence::default();
        let mut below = Vec::new();
        for (name, pair) in pairs(&Sorted::by_name(before), &Sorted::by_name(after)) {
            let full = join(path, name);
            let pair = Pair {
                old: pair.old.map(|line| self.modules.0.seen(&full, line)),
                new: pair.new.map(|line| self.modules.1.seen(&full, line)),
                ..pair
            };
            if pair.is_unclear {
                return Err(self.too_much());
            }
            match pair.unchanged() {
                Some(line) if line.is_dir() => {} // looked into only if the existence of this one depends on it
                Some(line) => {
                    let wanted = self.wants(&full, &line, inherited);
                    presence.merge(Presence { old: wanted, new: wanted });
                }
                None => presence.merge(self.changed(path, full, pair, inherited, &mut below)?),
            }
            if self.builder.is_large() || self.waiting > WAITING_MAX {
                return Err(self.too_much());
            }
        }
        Ok((presence, below))
    }

    /// One name whose two versions differ.
    fn changed(
        &mut self,
        dir: &[u8],
        full: Vec<u8>,
        pair: Pair<'_>,
        inherited: bool,
        below: &mut Vec<Below>,
    ) -> Result<Presence, Error> {
        let mut presence = Presence::default();
        if let Some(line) = pair.old.filter(|line| !line.is_dir())
            && self.wants(&full, &line, inherited)
        {
            self.removed(dir, &line)?;
            presence.old = true;
        }
        if let Some(line) = pair.new.filter(|line| !line.is_dir())
            && self.wants(&full, &line, inherited)
        {
            self.written(dir, &line)?;
            presence.new = true;
        }
        let tree = |line: Option<Line<'_>>| line.filter(Line::is_dir).map(|line| line.id);
        let old = tree(pair.old);
        let new = tree(pair.new);
        if old.is_some() || new.is_some() {
            let wanted = self.patterns.is_none_or(|patterns| patterns.wants(&full, true, inherited));
            if self.may_want_below(&full, wanted) {
                self.waiting += full.len() + BELOW;
                below.push(Below { path: full, old, new, wanted });
            }
        }
        Ok(presence)
    }

    /// Whether one of the sub-trees that both versions of a directory have has anything wanted in it.
    fn any_unchanged(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: ObjectId,
        inherited: bool,
    ) -> Result<bool, Error> {
        let below = {
            let reader = self.reader;
            let Some(old) = old else { return Ok(false) };
            let old_tree = reader.tree(&old).map_err(|lack| self.lost(lack))?;
            let new_tree = reader.tree(&new).map_err(|lack| self.damaged(lack))?;
            let before = lines(&old, old_tree.data()).map_err(|lack| self.lost(lack))?;
            let after = lines(&new, new_tree.data()).map_err(|lack| self.damaged(lack))?;
            let mut below = Vec::new();
            for (name, pair) in pairs(&Sorted::by_name(before), &Sorted::by_name(after)) {
                let full = join(path, name);
                let pair = Pair {
                    old: pair.old.map(|line| self.modules.0.seen(&full, line)),
                    new: pair.new.map(|line| self.modules.1.seen(&full, line)),
                    ..pair
                };
                if let Some(line) = pair.unchanged().filter(Line::is_dir) {
                    let wanted = self.wants(&full, &line, inherited);
                    if !self.may_want_below(&full, wanted) {
                        continue;
                    }
                    self.waiting += full.len() + BELOW;
                    below.push((full, line.id, wanted));
                    if self.waiting > WAITING_MAX {
                        return Err(self.too_much());
                    }
                }
            }
            below
        };
        for (full, id, wanted) in below {
            self.waiting -= full.len() + BELOW;
            if self.any_wanted(&full, id, wanted)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn removed(&mut self, dir: &[u8], line: &Line<'_>) -> Result<(), Error> {
        let size = match Node::of(line.mode) {
            Some(Node::Entry(Kind::Submodule)) => 0,
            _ => self.reader.blob_size(&line.id).map_err(|lack| self.lost(lack))?,
        };
        self.builder.remove(dir, line.name, size);
        Ok(())
    }

    fn written(&mut self, dir: &[u8], line: &Line<'_>) -> Result<(), Error> {
        let reader = self.reader;
        match self.builder.node(dir, line.name, line.mode)? {
            Node::Dir => {} // compared as a directory
            Node::Entry(Kind::Submodule) => match self.modules.1.why_absent(&join(dir, line.name)) {
                Some(rule) => return Err(self.builder.refuse(dir, line.name, rule).into()),
                None => self.builder.submodule(dir, line.name, line.id)?,
            },
            Node::Entry(Kind::Symlink) => {
                match target(reader, &line.id).map_err(|lack| self.damaged(lack))? {
                    Ok(target) => self.builder.symlink(dir, line.name, line.id, &target)?,
                    Err(rule) => return Err(self.builder.refuse(dir, line.name, rule).into()),
                }
            }
            Node::Entry(kind) => {
                let size = reader.blob_size(&line.id).map_err(|lack| self.damaged(lack))?;
                self.builder.file(dir, line.name, kind == Kind::Executable, line.id, size)?;
            }
        }
        Ok(())
    }

    /// Whether anything below an unchanged tree is wanted.
    fn any_wanted(&mut self, path: &[u8], id: ObjectId, inherited: bool) -> Result<bool, Error> {
        if self.is_too_deep(path) {
            return Err(self.too_much());
        }
        let reader = self.reader;
        let (tree, held) = self.budget.hold(reader, &id, path)?;
        let lines = lines(&id, tree.data()).map_err(|lack| self.damaged(lack))?;
        self.budget.enter(reader, &id, path, lines.len())?;
        for line in lines {
            let full = join(path, line.name);
            let wanted = self.wants(&full, &line, inherited);
            let has_wanted = if line.is_dir() {
                self.may_want_below(&full, wanted) && self.any_wanted(&full, line.id, wanted)?
            } else {
                wanted
            };
            if has_wanted {
                self.budget.release(held);
                return Ok(true);
            }
        }
        self.budget.release(held);
        Ok(false)
    }

    /// No payload has such a path; an old one, of other limits, may have.
    fn is_too_deep(&self, path: &[u8]) -> bool {
        path.iter().filter(|byte| **byte == b'/').count() > self.max_depth as usize
    }

    /// The whole payload is the better way.
    fn too_much(&mut self) -> Error {
        self.undecided = true;
        Error::Cancelled
    }

    fn wants(&self, full: &[u8], line: &Line<'_>, inherited: bool) -> bool {
        self.patterns.is_none_or(|patterns| patterns.wants(full, line.matches_as_dir(), inherited))
    }

    /// Whether anything below the directory `full` can be wanted.
    fn may_want_below(&self, full: &[u8], wanted: bool) -> bool {
        self.patterns.is_none_or(|patterns| patterns.may_want_below(full, wanted))
    }

    fn damaged(&self, lack: Lack) -> Error {
        Error::damaged(self.revision, lack)
    }

    fn lost(&mut self, lack: Lack) -> Error {
        self.undecided = true;
        self.damaged(lack)
    }
}

/// A path's directory and last component.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
