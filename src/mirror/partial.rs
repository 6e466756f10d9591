//! Partial clones (`--filter`): what was left out of a fetch is fetched once it is needed.
//!
//! A generation needs the files that its selection names, so after a fetch those that are absent are asked for by their
//! ids, in bounded requests. Such a request claims nothing: a server that is told of a commit that we have takes all of
//! its files for ours, and its answer is empty, without an error. That everything asked for has come is checked by the
//! child that takes the pack in.
//!
//! Packs get a file `.promisor` beside them, and `ROOT/.git` an entry of its configuration, so that git, too, knows that
//! what is absent below their objects can be had from `origin` (gitrepository-layout(5), partial-clone in git's manual).

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::fetch::blocking;
use super::form;
use super::indexer::Task;
use super::odb::{Lack, Reader};
use super::sparse::Patterns;
use super::tree::{Budget, DIRECTORY, FORMAT, LINK, REGULAR, lines};
use super::wire::Request;
use super::{Mirror, Selection};
use crate::payload::join;
use crate::revision::{ObjectId, Revision};

/// Objects that one request asks for. They are the child's argument, too, which may be 128 KiB long.
const WANTED: usize = 2_000;

/// What is absent is looked for again, so often: a directory that came may name files that did not.
const ROUNDS: usize = 8;

impl Mirror {
    /// Makes sure that the files that a selection names are held, where `--filter` left some out.
    pub async fn fill(&mut self, revision: Revision, selection: &Selection) -> Result<(), Error> {
        if self.options.filter.is_none() {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            let absent = self.absent(revision, selection).await?;
            if absent.is_empty() {
                return Ok(());
            }
            tracing::debug!(
                objects = absent.len(),
                "fetching what the filter left out and the selection names"
            );
            for wants in absent.chunks(WANTED) {
                let request = Request { wants: wants.to_vec(), ..Request::default() };
                let (answer, _) = self.receive(&request, Task::Fill(wants.to_vec())).await?;
                self.received += answer.bytes;
            }
        }
        let id = revision.0;
        let lack = Lack::Missing { id, expected: "all of what is selected of".into() };
        Err(Error::Incomplete { asked: id, at: None, lack: lack.into() })
    }

    async fn absent(&self, revision: Revision, selection: &Selection) -> Result<Vec<ObjectId>, Error> {
        let (shared, selection) = (Arc::clone(&self.shared), selection.clone());
        blocking(move || {
            let patterns = selection.sparse.as_deref().map(Patterns::parse).transpose()?;
            let store = shared.store()?;
            let odb = store.odb();
            let odb = odb.map_err(|source| Error::Git { act: "open the mirror's objects".into(), source })?;
            absent(&Reader(odb), revision, selection.rules.limits.entries, patterns.as_ref())
        })
        .await
    }
}

/// Files of a revision that are selected and not here, and directories that are not.
fn absent(
    reader: &Reader<'_>,
    revision: Revision,
    limit: u64,
    patterns: Option<&Patterns>,
) -> Result<Vec<ObjectId>, Error> {
    let damaged = |lack| Error::damaged(revision, lack);
    let top = reader.commit(&revision.0).map_err(damaged)?.tree;
    let mut budget = Budget::new(revision, top, limit, patterns.is_some(), &CancellationToken::new());
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut stack = vec![(Vec::new(), top, patterns.is_none())];
    while let Some((path, id, inherited)) = stack.pop() {
        if !reader.has(&id) {
            if seen.insert(id) {
                found.push(id);
            }
            continue;
        }
        let tree = reader.tree(&id).map_err(damaged)?;
        let lines = lines(&id, tree.data()).map_err(damaged)?;
        budget.enter(reader, &id, &path, lines.len())?;
        for line in lines {
            let full = join(&path, line.name);
            let wanted =
                patterns.is_none_or(|patterns| patterns.wants(&full, line.matches_as_dir(), inherited));
            match line.mode & FORMAT {
                DIRECTORY => stack.push((full, line.id, wanted)),
                REGULAR | LINK if wanted && !reader.has(&line.id) && seen.insert(line.id) => {
                    found.push(line.id);
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Says in git's own words that the repository is a partial clone of `origin`.
pub(super) fn name_promisor(dir: &Path, filter: &str) -> Result<(), Error> {
    form::configure(dir, "remote.origin.promisor", "true")?;
    form::configure(dir, "remote.origin.partialclonefilter", filter)
}
