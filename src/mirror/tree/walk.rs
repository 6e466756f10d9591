//! Walks through a tree and through those trees below it that the caller enters.

use super::{Budget, Line, OpenTree, push_name};
use crate::mirror::error::Error;
use crate::mirror::odb::ObjectReader;
use crate::payload::{Refusal, Rule, escaped};
use crate::revision::ObjectId;

/// A walk through the entries of a tree, in the order in which they were written. If the caller enters the tree that an
/// entry names, the entries of that tree come next. Not recursive: see [`OpenTree`]. `N` is what the caller notes with
/// each tree that it enters.
pub(in crate::mirror) struct TreeWalk<'r, N> {
    reader: &'r ObjectReader<'r>,
    budget: Budget,
    /// The most components of the path of a tree that is entered.
    depth: u32,
    open: Vec<Level<'r, N>>,
    /// The path of the last step.
    path: Vec<u8>,
}

/// A tree that the walk is in.
struct Level<'r, N> {
    tree: OpenTree<'r>,
    /// The length of its path in bytes.
    path_len: usize,
    note: N,
}

/// The entry that a walk has come to.
pub(in crate::mirror) struct Step<'w, N> {
    /// Its path from the top of the walk.
    pub(in crate::mirror) path: &'w [u8],
    /// The entry.
    pub(in crate::mirror) line: Line<'w>,
    /// What the caller noted with the tree that the entry is in.
    pub(in crate::mirror) note: N,
}

impl<'r, N: Copy> TreeWalk<'r, N> {
    /// Begins with the tree that the budget is for. Fails as [`Self::enter`] does. A tree whose path has more than
    /// `depth` components is refused.
    pub(in crate::mirror) fn new(
        reader: &'r ObjectReader<'r>,
        budget: Budget,
        depth: u32,
        note: N,
    ) -> Result<Self, Error> {
        let top = budget.top;
        let mut walk = Self { reader, budget, depth, open: Vec::new(), path: Vec::new() };
        walk.enter(top, note)?;
        Ok(walk)
    }

    /// Goes on to the next entry; `None` after the last one. Fails only if the walk is cancelled.
    pub(in crate::mirror) fn step(&mut self) -> Result<Option<Step<'_, N>>, Error> {
        self.budget.check_cancelled()?;
        while let Some(done) = self.open.pop_if(|level| level.tree.is_at_end()) {
            self.budget.close(done.tree);
        }
        let Some(level) = self.open.last_mut() else { return Ok(None) };
        self.path.truncate(level.path_len);
        #[expect(
            clippy::expect_used,
            reason = "a walk that ended here would publish a tree without the rest"
        )]
        let line =
            level.tree.next_line().expect("it is not at its end, and `Budget::open` checked its entries");
        push_name(&mut self.path, line.name);
        Ok(Some(Step { path: &self.path, line, note: level.note }))
    }

    /// Enters a tree at the path of the last step. Fails if it is too deep, cannot be read or is damaged, if the trees
    /// on its path are too large together, if the budget is used up, and if the walk is cancelled.
    pub(in crate::mirror) fn enter(&mut self, id: ObjectId, note: N) -> Result<(), Error> {
        self.check_depth()?;
        let tree = self.budget.open(self.reader, &id, &self.path)?;
        self.open.push(Level { tree, path_len: self.path.len(), note });
        Ok(())
    }

    /// Fails if a tree at the path of the last step is too deep to be entered.
    pub(in crate::mirror) fn check_depth(&self) -> Result<(), Error> {
        // The depth of a directory is the number of directories above it, the top included.
        if self.open.len() <= self.depth as usize {
            return Ok(());
        }
        let rule = Rule::Depth { limit: self.depth };
        Err(Refusal { revision: self.budget.revision, path: escaped(&self.path), rule }.into())
    }

    /// The error of a budget that is used up, at the path of the last step.
    pub(in crate::mirror) fn too_many(&self) -> Error {
        self.budget.too_many(&self.path)
    }
}
