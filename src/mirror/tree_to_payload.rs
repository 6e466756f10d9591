//! Reads a revision's trees into a checked [`Payload`].

use tokio_util::sync::CancellationToken;

use super::modules::Modules;
use super::object_error::ObjectError;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, Line, Step, TreeWalk};
use super::{Error, Selection};
use crate::payload::{Builder, DirIndex, Kind, LINK_MAX, Node, Parts, Payload, Rule};
use crate::revision::{ObjectId, Revision};

/// A directory on the path of the walk, without the top. With sparse patterns it is added to the builder once something
/// in it is selected.
struct Level {
    name: Vec<u8>,
    index: Option<DirIndex>,
}

/// What decides which entries of a directory are selected.
#[derive(Clone, Copy)]
struct DirSelection<'a> {
    /// The patterns; `None` selects everything.
    patterns: Option<&'a Patterns>,
    /// Whether the patterns select the directory itself. An entry that no pattern matches inherits that.
    inherited: bool,
    /// The number of directories on the path of an entry, without the top.
    levels: usize,
}

/// The payload of what the walk has come to so far.
struct Selected<'a> {
    reader: &'a ObjectReader<'a>,
    builder: Builder,
    modules: &'a Modules,
    levels: Vec<Level>,
    revision: Revision,
}

/// Walks the trees of a revision and builds its payload.
pub(super) fn payload(
    reader: &ObjectReader<'_>,
    at: Peeled,
    selection: &Selection,
    patterns: Option<&Patterns>,
    modules: &Modules,
    parts: Parts,
    cancel: &CancellationToken,
) -> Result<Payload, Error> {
    let revision = Revision(at.commit);
    let limits = selection.rules.limits;
    let builder = Builder::new(revision, at.tree, selection.rules).of_parts(parts);
    let mut selected = Selected { reader, builder, modules, levels: Vec::new(), revision };
    let budget = Budget::new(revision, at.tree, limits.entries, patterns.is_some(), cancel);
    let top = DirSelection { patterns, inherited: patterns.is_none(), levels: 0 };
    let mut walk = TreeWalk::new(reader, budget, limits.depth, top)?;
    while let Some(Step { path, line, note }) = walk.step()? {
        if let Some((tree, selection)) = selected.entry(path, line, note)? {
            walk.enter(tree, selection)?;
        }
    }
    Ok(selected.builder.finish()?)
}

impl<'a> Selected<'a> {
    /// Adds one entry of a directory. Returns the tree and selection of a directory that is to be walked.
    fn entry(
        &mut self,
        path: &[u8],
        line: Line<'_>,
        DirSelection { patterns, inherited, levels }: DirSelection<'a>,
    ) -> Result<Option<(ObjectId, DirSelection<'a>)>, Error> {
        self.levels.truncate(levels);
        // By the mode in the tree: there a published submodule is no directory.
        let is_wanted = patterns.is_none_or(|patterns| patterns.selects(path, line.mode, inherited));
        let line = self.modules.checked_out(path, line);
        if !line.is_dir() {
            if is_wanted {
                self.leaf(path, &line)?;
            }
            return Ok(None);
        }
        // Patterns select a submodule as a whole or not at all; they are not matched against the files in it.
        let is_module = self.modules.has_root(path);
        let may_lead_to_wanted =
            || patterns.is_none_or(|patterns| patterns.may_select_below(path, is_wanted));
        if !is_wanted && (is_module || !may_lead_to_wanted()) {
            return Ok(None);
        }
        let patterns = patterns.filter(|_| !is_module);
        self.levels.push(Level { name: line.name.to_vec(), index: None });
        if patterns.is_none() {
            self.current_dir_index()?;
        }
        Ok(Some((line.id, DirSelection { patterns, inherited: is_wanted, levels: levels + 1 })))
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

    fn leaf(&mut self, path: &[u8], line: &Line<'_>) -> Result<(), Error> {
        let dir = self.current_dir_index()?;
        match self.builder.node(dir, line.name, line.mode)? {
            Node::Dir => {} // handled by `entry`
            Node::Entry(Kind::Submodule) => match self.modules.undeclared(path) {
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
