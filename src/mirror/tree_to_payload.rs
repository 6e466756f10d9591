//! Reads a revision's trees into a checked [`Payload`].

use tokio_util::sync::CancellationToken;

use super::modules::Modules;
use super::object_error::ObjectError;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, Line, lines, push_name};
use super::{Error, Selection};
use crate::payload::{Builder, DirIndex, Kind, LINK_MAX, Node, Parts, Payload, Rule};
use crate::revision::{ObjectId, Revision};

/// A directory on the path of the walk. With sparse patterns it is added to the builder once something in it is
/// selected.
struct Level {
    name: Vec<u8>,
    index: Option<DirIndex>,
}

struct Walk<'a> {
    reader: &'a ObjectReader<'a>,
    builder: Builder,
    budget: Budget,
    patterns: Option<&'a Patterns>,
    modules: &'a Modules,
    levels: Vec<Level>,
    path: Vec<u8>,
    max_depth: u32,
    revision: Revision,
}

/// Walks the trees of a revision and builds its payload.
pub(super) fn payload(
    reader: &ObjectReader<'_>,
    at: Peeled,
    selection: &Selection,
    patterns: Option<&Patterns>,
    (modules, parts): (&Modules, Parts),
    cancel: &CancellationToken,
) -> Result<Payload, Error> {
    let revision = Revision(at.commit);
    let mut walk = Walk {
        reader,
        builder: Builder::new(revision, at.tree, selection.rules).of_parts(parts),
        budget: Budget::new(revision, at.tree, selection.rules.limits.entries, patterns.is_some(), cancel),
        patterns,
        modules,
        levels: Vec::new(),
        path: Vec::new(),
        max_depth: selection.rules.limits.depth,
        revision,
    };
    walk.tree(at.tree, patterns.is_none())?;
    Ok(walk.builder.finish()?)
}

impl Walk<'_> {
    fn tree(&mut self, id: ObjectId, inherited: bool) -> Result<(), Error> {
        let reader = self.reader;
        let (object, held) = self.budget.hold(reader, &id, &self.path)?;
        let lines = lines(&id, object.data()).map_err(|error| self.damaged(error))?;
        self.budget.enter(reader, &id, &self.path, lines.len())?;
        for line in lines {
            self.budget.check_cancelled()?;
            let end = push_name(&mut self.path, line.name);
            let line = self.modules.checked_out(&self.path, line);
            let wanted = self
                .patterns
                .is_none_or(|patterns| patterns.selects(&self.path, line.matches_as_dir(), inherited));
            if line.is_dir() && self.modules.has_root(&self.path) {
                self.module(&line, wanted)?;
            } else if line.is_dir() {
                if self.patterns.is_none_or(|patterns| patterns.may_select_below(&self.path, wanted)) {
                    self.enter(&line, wanted)?;
                }
            } else if wanted {
                self.leaf(&line)?;
            }
            self.path.truncate(end);
        }
        self.budget.release(held);
        Ok(())
    }

    fn enter(&mut self, line: &Line<'_>, wanted: bool) -> Result<(), Error> {
        self.levels.push(Level { name: line.name.to_vec(), index: None });
        if self.patterns.is_none() {
            self.here()?;
        } else if self.levels.len() > self.max_depth as usize {
            // The builder checks the depth of selected directories only; the recursion must end in others, too.
            let rule = Rule::Depth { limit: self.max_depth };
            return Err(self.builder.refuse(DirIndex::TOP, &self.path, rule).into());
        }
        self.tree(line.id, wanted)?;
        self.levels.pop();
        Ok(())
    }

    /// Walks a submodule. Patterns select it as a whole or not at all; they are not matched against the files in it.
    fn module(&mut self, line: &Line<'_>, wanted: bool) -> Result<(), Error> {
        if !wanted {
            return Ok(());
        }
        let patterns = self.patterns.take();
        let entered = self.enter(line, true);
        self.patterns = patterns;
        entered
    }

    /// The builder's index of the directory that the walk is in, which is added to the builder if necessary.
    fn here(&mut self) -> Result<DirIndex, Error> {
        let mut at = DirIndex::TOP;
        for level in &mut self.levels {
            at = match level.index {
                Some(index) => index,
                None => *level.index.insert(self.builder.dir(at, &level.name)?),
            };
        }
        Ok(at)
    }

    fn leaf(&mut self, line: &Line<'_>) -> Result<(), Error> {
        let dir = self.here()?;
        match self.builder.node(dir, line.name, line.mode)? {
            Node::Dir => {} // handled by `enter`
            Node::Entry(Kind::Submodule) => match self.modules.undeclared(&self.path) {
                Some(rule) => return Err(self.builder.refuse(dir, line.name, rule).into()),
                None => self.builder.submodule(dir, line.name, line.id)?,
            },
            Node::Entry(Kind::Symlink) => {
                match target(self.reader, &line.id).map_err(|error| self.damaged(error))? {
                    Ok(target) => self.builder.symlink(dir, line.name, line.id, &target)?,
                    Err(rule) => return Err(self.builder.refuse(dir, line.name, rule).into()),
                }
            }
            Node::Entry(kind) => {
                let size = self.reader.blob_size(&line.id).map_err(|error| self.damaged(error))?;
                self.builder.file(dir, line.name, kind == Kind::Executable, line.id, size)?;
            }
        }
        Ok(())
    }

    fn damaged(&self, error: ObjectError) -> Error {
        Error::damaged(self.revision, error)
    }
}

/// Reads a symbolic link's target. The inner error is the rule that refuses a target that is too long, by its size and
/// without reading it.
pub(super) fn target(reader: &ObjectReader<'_>, id: &ObjectId) -> Result<Result<Vec<u8>, Rule>, ObjectError> {
    let bytes = reader.blob_size(id)?;
    if bytes > LINK_MAX {
        return Ok(Err(Rule::LinkLong { bytes }));
    }
    reader.small_blob(id).map(Ok)
}
