//! Determines what the mirror already holds of a tip, before the remote is asked and after a pack arrived.

use std::collections::{BTreeSet, HashSet};

use crate::mirror::Depth;
use crate::mirror::closure::{LocalHistory, history, tree_closure};
use crate::mirror::error::Error;
use crate::mirror::layout::Layout;
use crate::mirror::odb::ObjectReader;
use crate::mirror::repo_kind::RepoKind;
use crate::revision::{ObjectId, Revision};

/// The most commits that a request names as present. More would only make requests longer.
const HAVES_MAX: usize = 16;

/// What the mirror holds with regard to a wanted tip.
#[derive(Debug, Default)]
pub(super) struct LocalState {
    /// Commits that are present with their tree; the last fetched tip first, then held revisions, newest first.
    pub(super) haves: Vec<ObjectId>,
    /// The shallow boundary: present commits whose parents are absent.
    pub(super) shallow: Vec<ObjectId>,
    /// The wanted tip, if it is present and complete.
    pub(super) complete: Option<CompleteTip>,
}

/// A tip that is present with its whole tree and enough history.
#[derive(Debug)]
pub(super) struct CompleteTip {
    pub(super) commit: ObjectId,
    /// The number of its parents.
    pub(super) parents: usize,
    /// The content of the `shallow` file once this is the tip.
    pub(super) boundary: Vec<ObjectId>,
}

/// Inspects the mirror with regard to the object `want`. `received` is set after a pack arrived: the commits at which
/// the remote's own history ends. The indexing child has then verified that the tip's tree is complete.
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
        if known.haves.contains(&id) || known.haves.len() == HAVES_MAX || !reader.has(&commit.tree) {
            continue;
        }
        // The server assumes that we have all parents of a commit that is not in the boundary.
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
        Ok(Err(kind)) => {
            return Err(Error::NotACommit { requested: want.to_string(), kind: kind.to_owned() });
        }
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
        if layout.kind() == RepoKind::Worktrees {
            // Foreign refs may depend on other boundary commits: those whose parents are still absent are kept.
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

/// The content of the `shallow` file: the boundary of the tip, and those of the revisions that must stay readable.
fn boundary(
    reader: &ObjectReader<'_>,
    tip: LocalHistory,
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
