//! The files of a revision below some directories, for rules: paths, ids and links. Nothing of it becomes a file, so no
//! rule of publication is asked, and no blob is looked at but those of links.

use tokio_util::sync::CancellationToken;

use super::Error;
use super::modules::Modules;
use super::odb::{ObjectReader, Peeled};
use super::tree::{Budget, FORMAT, LINK, Line, REGULAR, lines};
use super::tree_to_payload::target;
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// What lies at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listed {
    /// A regular file.
    File(ObjectId),
    /// A symbolic link and its target.
    Link(Vec<u8>),
    /// A submodule that is not published, or what is no kind of file.
    Other,
}

struct Walk<'a> {
    reader: &'a ObjectReader<'a>,
    revision: Revision,
    modules: &'a Modules,
    enter: &'a dyn Fn(&[u8]) -> bool,
    budget: Budget,
    limits: Limits,
    depth: u32,
    path: Vec<u8>,
    found: Vec<(Vec<u8>, Listed)>,
}

/// Lists a revision, in the order of its trees. A directory is read if `enter` says so of its path.
pub(super) fn list(
    reader: &ObjectReader<'_>,
    at: Peeled,
    modules: &Modules,
    enter: &dyn Fn(&[u8]) -> bool,
    cancel: &CancellationToken,
) -> Result<Vec<(Vec<u8>, Listed)>, Error> {
    let revision = Revision(at.commit);
    let limits = Limits::default();
    let budget = Budget::new(revision, at.tree, limits.entries, true, cancel);
    let path = Vec::new();
    let found = Vec::new();
    let mut walk = Walk { reader, revision, modules, enter, budget, limits, depth: 0, path, found };
    walk.tree(at.tree)?;
    Ok(walk.found)
}

impl Walk<'_> {
    fn tree(&mut self, id: ObjectId) -> Result<(), Error> {
        let reader = self.reader;
        let damaged = |lack| Error::damaged(self.revision, lack);
        let held = self.budget.hold(reader, &id, &self.path)?;
        let object = reader.tree(&id).map_err(damaged)?;
        let lines = lines(&id, object.data()).map_err(damaged)?;
        self.budget.enter(reader, &id, &self.path, lines.len())?;
        for line in lines {
            let end = self.path.len();
            if end > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(line.name);
            let line = self.modules.seen(&self.path, line);
            self.line(&line)?;
            self.path.truncate(end);
        }
        self.budget.release(held);
        Ok(())
    }

    fn line(&mut self, line: &Line<'_>) -> Result<(), Error> {
        if line.is_dir() {
            if !(self.enter)(&self.path) {
                return Ok(());
            }
            if self.depth == self.limits.depth {
                return Err(self.refused(Rule::Depth { limit: self.limits.depth }));
            }
            self.depth += 1;
            self.tree(line.id)?;
            self.depth -= 1;
            return Ok(());
        }
        let listed = match line.mode & FORMAT {
            REGULAR => Listed::File(line.id),
            LINK => {
                match target(self.reader, &line.id).map_err(|lack| Error::damaged(self.revision, lack))? {
                    Ok(target) => Listed::Link(target),
                    Err(_too_long) => Listed::Other,
                }
            }
            _ => Listed::Other,
        };
        if self.found.len() as u64 == self.limits.entries {
            return Err(self.refused(Rule::Entries { limit: self.limits.entries }));
        }
        self.found.push((self.path.clone(), listed));
        Ok(())
    }

    fn refused(&self, rule: Rule) -> Error {
        Refusal { revision: self.revision, path: escaped(&self.path), rule }.into()
    }
}
