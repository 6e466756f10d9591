//! What one tree changes against another, as a checked [`Delta`].
//!
//! The two trees are walked side by side and what is the same in both is skipped, so that the cost is what changed.
//! A directory exists where something wanted is in it, on each side; a sub-tree that did not change is only looked into
//! when the existence of the directory above depends on it.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use super::modules::Modules;
use super::odb::{Lack, Peeled, Reader};
use super::sparse::Patterns;
use super::tree::{Budget, Line, lines};
use super::whole::target;
use super::{Base, Error, Selection};
use crate::payload::{Delta, DeltaBuilder, Kind, Node, join};
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
struct Pair<'a> {
    old: Option<Line<'a>>,
    new: Option<Line<'a>>,
}

struct Comparison<'a> {
    reader: &'a Reader<'a>,
    builder: DeltaBuilder,
    budget: Budget,
    patterns: Option<&'a Patterns>,
    /// Submodules, before and after.
    modules: (&'a Modules, &'a Modules),
    revision: Revision,
    /// Something of the base could not be read: no comparison is possible, and that is no error.
    base_lost: bool,
}

/// Compares the base's tree with the revision's. `None` where that is not possible or would not decide: the mirror no
/// longer has all of the base, or a name is refused that a selection may leave out.
pub(super) fn delta(
    reader: &Reader<'_>,
    base: Base,
    to: Peeled,
    selection: &Selection,
    patterns: Option<&Patterns>,
    modules: (&Modules, &Modules),
    cancel: &CancellationToken,
) -> Result<Option<Delta>, Error> {
    let revision = Revision(to.commit);
    let rules = selection.rules;
    let mut comparison = Comparison {
        reader,
        builder: DeltaBuilder::new(base.tree, base.entries, base.bytes, revision, to.tree, rules),
        budget: Budget::new(revision, to.tree, rules.limits.entries, true, cancel),
        patterns,
        modules,
        revision,
        base_lost: false,
    };
    if base.tree != to.tree {
        match comparison.dir(b"", Some(base.tree), Some(to.tree), patterns.is_none()) {
            Err(_) if comparison.base_lost => return Ok(None),
            Err(Error::Refused(_)) if patterns.is_some() => return Ok(None),
            other => other?,
        };
    }
    Ok(Some(comparison.builder.finish()?))
}

impl Comparison<'_> {
    /// Compares two versions of one directory, either of which may be absent.
    fn dir(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        inherited: bool,
    ) -> Result<Presence, Error> {
        let reader = self.reader;
        let old_tree = match old {
            Some(id) => Some((id, reader.tree(&id).map_err(|lack| self.lost(lack))?)),
            None => None,
        };
        let new_tree = match new {
            Some(id) => Some((id, reader.tree(&id).map_err(|lack| self.damaged(lack))?)),
            None => None,
        };
        let mut pairs: BTreeMap<&[u8], Pair<'_>> = BTreeMap::new();
        if let Some((id, tree)) = &old_tree {
            for line in lines(id, tree.data()).map_err(|lack| self.lost(lack))? {
                let line = self.modules.0.seen(&join(path, line.name), line);
                pairs.entry(line.name).or_default().old = Some(line);
            }
        }
        if let Some((id, tree)) = &new_tree {
            let mut lines = lines(id, tree.data()).map_err(|lack| self.damaged(lack))?;
            for line in &mut lines {
                *line = self.modules.1.seen(&join(path, line.name), *line);
            }
            self.builder.listing(path, lines.iter().map(|line| (line.name, line.mode)))?;
            for line in lines {
                pairs.entry(line.name).or_default().new = Some(line);
            }
        }
        if let Some(id) = new.or(old) {
            self.budget.enter(reader, &id, path, pairs.len())?;
        }
        self.pairs(path, &pairs, inherited)
    }

    fn pairs(
        &mut self,
        path: &[u8],
        pairs: &BTreeMap<&[u8], Pair<'_>>,
        inherited: bool,
    ) -> Result<Presence, Error> {
        let mut presence = Presence::default();
        let mut unchanged = Vec::new();
        for (name, pair) in pairs {
            let full = join(path, name);
            if let (Some(old), Some(new)) = (pair.old, pair.new)
                && old.id == new.id
                && Node::of(old.mode) == Node::of(new.mode)
            {
                let wanted = self.wants(&full, &new, inherited);
                if new.is_dir() {
                    unchanged.push((full, new.id, wanted));
                } else {
                    presence.merge(Presence { old: wanted, new: wanted });
                }
            } else {
                presence.merge(self.changed(path, &full, *pair, inherited)?);
            }
        }
        if path.is_empty() {
            return Ok(presence); // the top always exists
        }
        if !(presence.old && presence.new) {
            for (full, id, wanted) in unchanged {
                if self.any_wanted(&full, id, wanted)? {
                    presence = Presence { old: true, new: true };
                    break;
                }
            }
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

    /// One name whose two versions differ.
    fn changed(
        &mut self,
        dir: &[u8],
        full: &[u8],
        pair: Pair<'_>,
        inherited: bool,
    ) -> Result<Presence, Error> {
        let tree = |line: Option<Line<'_>>| line.filter(Line::is_dir).map(|line| line.id);
        let (old_tree, new_tree) = (tree(pair.old), tree(pair.new));
        let mut presence = Presence::default();
        if old_tree.is_some() || new_tree.is_some() {
            let wanted = self.patterns.is_none_or(|patterns| patterns.wants(full, true, inherited));
            presence = self.dir(full, old_tree, new_tree, wanted)?;
        }
        if let Some(line) = pair.old.filter(|line| !line.is_dir())
            && self.wants(full, &line, inherited)
        {
            self.removed(dir, &line)?;
            presence.old = true;
        }
        if let Some(line) = pair.new.filter(|line| !line.is_dir())
            && self.wants(full, &line, inherited)
        {
            self.written(dir, &line)?;
            presence.new = true;
        }
        Ok(presence)
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
            Node::Entry(Kind::Submodule) => match self.modules.1.lacks(&join(dir, line.name)) {
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
        let reader = self.reader;
        let mut stack = vec![(path.to_vec(), id, inherited)];
        while let Some((path, id, inherited)) = stack.pop() {
            let tree = reader.tree(&id).map_err(|lack| self.damaged(lack))?;
            let lines = lines(&id, tree.data()).map_err(|lack| self.damaged(lack))?;
            self.budget.enter(reader, &id, &path, lines.len())?;
            for line in lines {
                let full = join(&path, line.name);
                let wanted = self.wants(&full, &line, inherited);
                if line.is_dir() {
                    stack.push((full, line.id, wanted));
                } else if wanted {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn wants(&self, full: &[u8], line: &Line<'_>, inherited: bool) -> bool {
        self.patterns.is_none_or(|patterns| patterns.wants(full, line.matches_as_dir(), inherited))
    }

    fn damaged(&self, lack: Lack) -> Error {
        Error::damaged(self.revision, lack)
    }

    fn lost(&mut self, lack: Lack) -> Error {
        self.base_lost = true;
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
