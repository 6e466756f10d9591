//! Reads a revision's trees into a checked [`Payload`].

use tokio_util::sync::CancellationToken;

use super::modules::Modules;
use super::object_error::ObjectError;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, Line, OpenTree, push_name};
use super::{Error, Selection};
use crate::payload::{Builder, DirIndex, Kind, LINK_MAX, Node, Parts, Payload, Rule};
use crate::revision::{ObjectId, Revision};

/// A directory on the path of the walk, without the top. With sparse patterns it is added to the builder once something
/// in it is selected.
struct Level {
    name: Vec<u8>,
    index: Option<DirIndex>,
}

/// A directory that the walk is in, the top included.
struct OpenDir<'a> {
    tree: OpenTree<'a>,
    selection: DirSelection<'a>,
    /// The length of the path of its parent.
    parent_len: usize,
}

/// What decides which entries of a directory are selected.
#[derive(Clone, Copy)]
struct DirSelection<'a> {
    /// The patterns; `None` selects everything.
    patterns: Option<&'a Patterns>,
    /// Whether the patterns select the directory itself. An entry that no pattern matches inherits that.
    inherited: bool,
}

struct Walk<'a> {
    reader: &'a ObjectReader<'a>,
    builder: Builder,
    budget: Budget,
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
        modules,
        levels: Vec::new(),
        path: Vec::new(),
        max_depth: selection.rules.limits.depth,
        revision,
    };
    walk.all(at.tree, DirSelection { patterns, inherited: patterns.is_none() })?;
    Ok(walk.builder.finish()?)
}

impl<'a> Walk<'a> {
    /// Walks the tree `top` and all trees below it. Not recursive: see [`OpenTree`].
    fn all(&mut self, top: ObjectId, selection: DirSelection<'a>) -> Result<(), Error> {
        let mut open = vec![self.open(top, selection, 0)?];
        while let Some(dir) = open.last_mut() {
            self.budget.check_cancelled()?;
            let Some(line) = dir.tree.next_line() else {
                if let Some(left) = open.pop() {
                    self.leave(left);
                }
                continue;
            };
            let parent_len = push_name(&mut self.path, line.name);
            match self.entry(line, dir.selection)? {
                Some((tree, selection)) => open.push(self.open(tree, selection, parent_len)?),
                None => self.path.truncate(parent_len),
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        tree: ObjectId,
        selection: DirSelection<'a>,
        parent_len: usize,
    ) -> Result<OpenDir<'a>, Error> {
        let tree = self.budget.open(self.reader, &tree, &self.path)?;
        Ok(OpenDir { tree, selection, parent_len })
    }

    fn leave(&mut self, dir: OpenDir<'_>) {
        self.levels.pop(); // of the top there is none
        self.path.truncate(dir.parent_len);
        self.budget.close(dir.tree);
    }

    /// Adds one entry, at the path of the walk. Returns the tree and selection of a directory that is to be walked.
    fn entry(
        &mut self,
        line: Line<'_>,
        DirSelection { patterns, inherited }: DirSelection<'a>,
    ) -> Result<Option<(ObjectId, DirSelection<'a>)>, Error> {
        let line = self.modules.checked_out(&self.path, line);
        let is_wanted =
            patterns.is_none_or(|patterns| patterns.selects(&self.path, line.matches_as_dir(), inherited));
        if !line.is_dir() {
            if is_wanted {
                self.leaf(&line)?;
            }
            return Ok(None);
        }
        // Patterns select a submodule as a whole or not at all; they are not matched against the files in it.
        let is_module = self.modules.has_root(&self.path);
        let may_lead_to_wanted =
            || patterns.is_none_or(|patterns| patterns.may_select_below(&self.path, is_wanted));
        if !is_wanted && (is_module || !may_lead_to_wanted()) {
            return Ok(None);
        }
        let patterns = patterns.filter(|_| !is_module);
        self.enter(&line, patterns.is_some())?;
        Ok(Some((line.id, DirSelection { patterns, inherited: is_wanted })))
    }

    /// Enters a directory: adds it to the builder, unless patterns may still select nothing in it.
    fn enter(&mut self, line: &Line<'_>, has_patterns: bool) -> Result<(), Error> {
        self.levels.push(Level { name: line.name.to_vec(), index: None });
        if !has_patterns {
            self.current_dir_index()?;
        } else if self.levels.len() > self.max_depth as usize {
            // The builder checks the depth of selected directories only; the walk must end in others, too.
            let rule = Rule::Depth { limit: self.max_depth };
            return Err(self.builder.refuse(DirIndex::TOP, &self.path, rule).into());
        }
        Ok(())
    }

    /// The builder's index of the directory that the walk is in, which is added to the builder if necessary.
    fn current_dir_index(&mut self) -> Result<DirIndex, Error> {
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
        let dir = self.current_dir_index()?;
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
