//! Partial clones (`--filter`): what was left out of a fetch is fetched once it is needed.
//!
//! A generation needs the files that its selection names, so after a fetch those that are absent are asked for by their
//! ids, in bounded requests. Such a request claims nothing: a server that learns of a commit that we have takes all of
//! its files for ours, and its answer is empty, without an error. That everything asked for has come is checked by the
//! child that takes the pack in.
//!
//! Packs get a file `.promisor` beside them, and `ROOT/.git` an entry of its configuration, so that git, too, knows
//! that what is absent below their objects can be had from `origin` (gitrepository-layout(5), partial-clone in git's
//! manual).

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::blocking::blocking;
use super::error::{Error, Libgit2};
use super::indexer::Task;
use super::lack::Lack;
use super::modules;
use super::odb::ObjectReader;
use super::repo_kind;
use super::sparse::Patterns;
use super::tree::{Budget, DIRECTORY, FORMAT, LINK, REGULAR, lines};
use super::wire::Request;
use super::{Mirror, Selection};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// Objects that one request asks for: each request costs a server half a second, however few they are. So many lines of
/// fifty bytes stay below a megabyte, which is what proxies take as a request's body (nginx, where it is not told more).
const WANTED: usize = 20_000;

/// The same where a program (`--git`) gets them as arguments, of which a system takes some 128 KiB in any case.
const WANTED_OF_PROGRAM: usize = 2_000;

/// Objects that are fetched one by one for the list of a revision's submodules.
const LISTS: usize = 100;

impl Mirror {
    /// Makes sure that the files that a selection names are held, where `--filter` left some out.
    pub async fn fill(&mut self, revision: Revision, selection: &Selection) -> Result<(), Error> {
        if self.options.filter.is_none() {
            return Ok(());
        }
        let limit = self.options.wire.max_fetch_bytes;
        let mut left = limit;
        let at_once = if self.options.wire.program.is_some() { WANTED_OF_PROGRAM } else { WANTED };
        // Trees that came may name trees and files that did not: a round for each level, and one that finds nothing absent.
        for _ in 0..=u64::from(selection.rules.limits.depth) + 2 {
            let absent = self.absent(revision, selection).await?;
            if absent.is_empty() {
                return Ok(());
            }
            tracing::debug!(
                objects = absent.len(),
                "fetching what the filter left out and the selection names"
            );
            for wants in absent.chunks(at_once) {
                // What is asked for by its id comes whatever the filter says, but not what a tree names.
                let filter = self.options.filter.clone().filter(|filter| filter.starts_with("tree:"));
                let request = Request { wants: wants.to_vec(), filter, ..Request::default() };
                let bytes = self.receive_wanted(&request, left).await.map_err(|error| match error {
                    Error::FetchBytes { .. } => Error::FetchBytes { limit },
                    error => error,
                })?;
                self.received += bytes;
                left = left.saturating_sub(bytes);
            }
        }
        let id = revision.0;
        let lack = Lack::Missing { id, expected: "all of what is selected of".into() };
        Err(Error::Incomplete { asked: id, at: None, lack: lack.into() })
    }

    /// Fetches what lists the submodules of a revision, where `--filter` left it out: `.gitmodules`, and the trees on the
    /// way to them.
    pub(super) async fn fill_lists(&mut self, revision: Revision) -> Result<(), Error> {
        if self.options.filter.is_none() {
            return Ok(());
        }
        for _ in 0..LISTS {
            let shared = Arc::clone(&self.shared);
            let absent = blocking(move || modules::absent_of_links(&shared.store()?, revision)).await?;
            let Some(id) = absent else { return Ok(()) };
            let request = Request { wants: vec![id], ..Request::default() };
            self.received += self.receive_wanted(&request, self.options.wire.max_fetch_bytes).await?;
        }
        Ok(()) // the next one who reads names what is still absent
    }

    /// One request's pack, of so many bytes at most. How many it had.
    async fn receive_wanted(&mut self, request: &Request, most: u64) -> Result<u64, Error> {
        let layout = Arc::clone(&self.layout);
        let task = Task::Fill(request.wants.len());
        let (answer, _) = self.receive_into(layout.dir(), most, request, task).await?;
        Ok(answer.bytes)
    }

    async fn absent(&self, revision: Revision, selection: &Selection) -> Result<Vec<ObjectId>, Error> {
        let shared = Arc::clone(&self.shared);
        let selection = selection.clone();
        let needs_all_trees = self.shared.linked; // a worktree's index lists what patterns leave out, too
        blocking(move || {
            let patterns = selection.sparse.as_deref().map(Patterns::parse).transpose()?;
            let store = shared.store()?;
            let reader = store.reader();
            let reader = reader.map_err(|source| Error::Git {
                act: "open the mirror's objects".into(),
                source: Libgit2(source),
            })?;
            absent(&reader, revision, &selection, patterns.as_ref(), needs_all_trees)
        })
        .await
    }
}

/// Files of a revision that are selected and not here, and directories that are not.
fn absent(
    reader: &ObjectReader<'_>,
    revision: Revision,
    selection: &Selection,
    patterns: Option<&Patterns>,
    needs_all_trees: bool,
) -> Result<Vec<ObjectId>, Error> {
    let limits = selection.rules.limits;
    let top = reader.commit(&revision.0).map_err(|lack| Error::damaged(revision, lack))?.tree;
    let top = match selection.path.as_ref().map_or(Ok(Ok(top)), |path| path.find(reader, revision, top))? {
        Ok(top) => top,
        Err(lack) => return Ok(vec![lack]), // what is below it shows once it came
    };
    let budget = Budget::new(revision, top, limits.entries, patterns.is_some(), &CancellationToken::new());
    let found = Vec::new();
    let path = Vec::new();
    let mut walk =
        Walk { reader, patterns, needs_all_trees, budget, revision, limits, found, path, depth: 0 };
    walk.tree(top, patterns.is_none())?;
    walk.found.sort_unstable();
    walk.found.dedup();
    Ok(walk.found)
}

struct Walk<'a> {
    reader: &'a ObjectReader<'a>,
    patterns: Option<&'a Patterns>,
    needs_all_trees: bool,
    budget: Budget,
    revision: Revision,
    limits: Limits,
    found: Vec<ObjectId>,
    path: Vec<u8>,
    /// Components of the path.
    depth: u32,
}

impl Walk<'_> {
    fn tree(&mut self, id: ObjectId, inherited: bool) -> Result<(), Error> {
        let reader = self.reader;
        let revision = self.revision;
        let damaged = |lack| Error::damaged(revision, lack);
        if !reader.has(&id) {
            return self.lacks(id);
        }
        let (tree, held) = self.budget.hold(reader, &id, &self.path)?;
        let lines = lines(&id, tree.data()).map_err(damaged)?;
        self.budget.enter(reader, &id, &self.path, lines.len())?;
        for line in lines {
            let end = self.path.len();
            if end > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(line.name);
            let wanted = self
                .patterns
                .is_none_or(|patterns| patterns.wants(&self.path, line.matches_as_dir(), inherited));
            match line.mode & FORMAT {
                DIRECTORY if self.needs_below(wanted) => self.below(line.id, wanted)?,
                REGULAR | LINK if wanted && !reader.has(&line.id) => self.lacks(line.id)?,
                _ => {}
            }
            self.path.truncate(end);
        }
        self.budget.release(held);
        Ok(())
    }

    /// Whether the tree of the directory that the walk is at is needed.
    fn needs_below(&self, wanted: bool) -> bool {
        self.needs_all_trees || self.patterns.is_none_or(|patterns| patterns.may_want_below(&self.path, wanted))
    }

    fn below(&mut self, id: ObjectId, inherited: bool) -> Result<(), Error> {
        if self.depth == self.limits.depth {
            return Err(self.refused(Rule::Depth { limit: self.limits.depth }));
        }
        self.depth += 1;
        self.tree(id, inherited)?;
        self.depth -= 1;
        Ok(())
    }

    fn refused(&self, rule: Rule) -> Error {
        Refusal { revision: self.revision, path: escaped(&self.path), rule }.into()
    }

    /// Notes an object that is not here. One that many entries name is noted once, sooner or later.
    fn lacks(&mut self, id: ObjectId) -> Result<(), Error> {
        self.found.push(id);
        let limit = self.limits.entries;
        if self.found.len() as u64 <= limit.saturating_mul(2) {
            return Ok(());
        }
        self.found.sort_unstable();
        self.found.dedup();
        if self.found.len() as u64 > limit { Err(self.refused(Rule::Entries { limit })) } else { Ok(()) }
    }
}

/// Says in git's own words that the repository is a partial clone of `origin`.
pub(super) fn name_promisor(dir: &Path, filter: &str) -> Result<(), Error> {
    repo_kind::configure(dir, "remote.origin.promisor", "true")?;
    repo_kind::configure(dir, "remote.origin.partialclonefilter", filter)
}
