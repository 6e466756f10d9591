//! What is here already, before the remote is asked.

use std::collections::{BTreeSet, HashSet};

use crate::mirror::Depth;
use crate::mirror::closure::{History, history, tree_closure};
use crate::mirror::error::Error;
use crate::mirror::layout::Layout;
use crate::mirror::odb::ObjectReader;
use crate::mirror::repo_kind::RepoKind;
use crate::revision::{ObjectId, Revision};

/// Our commits that a server learns of. More would only make requests longer.
const HAVES: usize = 16;

/// What is known about a tip before asking.
#[derive(Debug, Default)]
pub(super) struct LocalState {
    /// Commits that are here with their tree, best first.
    pub(super) haves: Vec<ObjectId>,
    /// Commits whose parents are not here.
    pub(super) shallow: Vec<ObjectId>,
    /// The tip, if it is here and complete.
    pub(super) complete: Option<CompleteTip>,
}

/// A tip that is here and complete.
#[derive(Debug)]
pub(super) struct CompleteTip {
    pub(super) commit: ObjectId,
    /// How many parents it has.
    pub(super) parents: usize,
    /// The boundary that belongs to it.
    pub(super) boundary: Vec<ObjectId>,
}

/// Looks at what is here. `received` are the ends of history that came with a pack: then the child has seen that the
/// tip's tree is complete.
pub(super) fn inspect(
    reader: &ObjectReader<'_>,
    layout: &Layout,
    want: ObjectId,
    held: &[Revision],
    (depth, partial): (Depth, bool),
    received: Option<HashSet<ObjectId>>,
) -> Result<LocalState, Error> {
    let mut known = LocalState { shallow: layout.shallow(), ..LocalState::default() };
    let mut base = None;
    for id in layout.tip().into_iter().chain(held.iter().map(|held| held.0)) {
        let Ok(commit) = reader.commit(&id) else { continue };
        if known.haves.contains(&id) || known.haves.len() == HAVES || !reader.has(&commit.tree) {
            continue;
        }
        // The boundary that is sent must never claim more than is here.
        if !known.shallow.contains(&id) && !commit.parents.iter().all(|parent| reader.has(parent)) {
            known.shallow.push(id);
        }
        base.get_or_insert(commit.tree);
        known.haves.push(id);
    }
    if !reader.has(&want) {
        return Ok(known);
    }
    let peeled = match reader.peel(&want) {
        Ok(Ok(peeled)) => peeled,
        Ok(Err(kind)) => return Err(Error::NotACommit { asked: want.to_string(), kind: kind.to_owned() }),
        Err(_) => return Ok(known),
    };
    let whole = received.is_some() || tree_closure(reader, peeled.tree, base, partial).is_ok();
    let ends = received.unwrap_or_default();
    let history = history(reader, peeled.commit, depth, &ends).unwrap_or_default();
    if whole && history.complete {
        let commit = peeled.commit;
        let parents = reader.commit(&commit).map_or(0, |commit| commit.parents.len());
        let others = known.haves.iter().copied().chain(held.iter().map(|held| held.0));
        let mut boundary = boundary(reader, history, others, depth, &ends);
        if layout.form() == RepoKind::Worktrees {
            // Refs of others may need theirs: a boundary stays where its commit's parents did not come.
            let cut = |id: &ObjectId| {
                reader.commit(id).is_ok_and(|commit| !commit.parents.iter().all(|parent| reader.has(parent)))
            };
            boundary.extend(layout.shallow().into_iter().filter(cut));
            boundary.sort_unstable();
            boundary.dedup();
        }
        known.complete = Some(CompleteTip { commit, parents, boundary });
    }
    Ok(known)
}

/// The `shallow` file's content: the tip's boundary, and those of the revisions that stay readable.
fn boundary(
    reader: &ObjectReader<'_>,
    tip: History,
    others: impl Iterator<Item = ObjectId>,
    depth: Depth,
    ends: &HashSet<ObjectId>,
) -> Vec<ObjectId> {
    let mut all: BTreeSet<_> = tip.boundary.into_iter().collect();
    for id in others {
        if let Ok(history) = history(reader, id, depth, ends) {
            all.extend(history.boundary);
        }
    }
    all.into_iter().collect()
}
