//! Determines what the mirror already holds of a tip, before the remote is asked and after a pack arrived.

use std::collections::{BTreeSet, HashSet};

use tokio_util::sync::CancellationToken;

use crate::mirror::Depth;
use crate::mirror::closure::{HistoryWalk, tree_closure};
use crate::mirror::error::Error;
use crate::mirror::layout::Layout;
use crate::mirror::object_error::ObjectError;
use crate::mirror::odb::ObjectReader;
use crate::mirror::repo_kind::RepoKind;
use crate::revision::{ObjectId, Revision};

/// The most commits that a request names as present. More would only make requests longer.
const HAVES_MAX: usize = 16;

/// What the mirror holds with regard to a wanted tip.
#[derive(Debug, Default)]
pub(super) struct LocalState {
    /// Commits that are present with their tree; the last fetched tip first, then kept revisions, newest first.
    pub(super) haves: Vec<ObjectId>,
    /// The shallow boundary for requests: present commits whose parents are absent. In the mirror of a submodule only
    /// that of `haves`, because the remote must not learn what came from another one.
    pub(super) shallow: Vec<ObjectId>,
    /// The wanted tip, if it is present and complete.
    pub(super) complete: Option<CompleteTip>,
    /// An object of the wanted tip, or of its history, that is present and cannot be read.
    pub(super) unreadable: Option<ObjectError>,
}

impl LocalState {
    /// Notes the error that ended the inspection, if it is of an object that is present.
    fn with_unreadable(mut self, error: ObjectError) -> Self {
        self.unreadable = Some(error).filter(|error| matches!(error, ObjectError::Unreadable { .. }));
        self
    }
}

/// A tip that is present with its whole tree and enough history.
#[derive(Debug)]
pub(super) struct CompleteTip {
    pub(super) commit: ObjectId,
    pub(super) parents: Vec<ObjectId>,
    /// The content of the `shallow` file once this is the tip.
    pub(super) boundary: Vec<ObjectId>,
}

/// What to inspect the mirror for.
pub(super) struct Inspection {
    /// The wanted object.
    pub(super) want: ObjectId,
    /// The published revisions, newest first.
    pub(super) kept_revisions: Vec<Revision>,
    /// Those of them that the remote may learn.
    pub(super) of_remote: Vec<Revision>,
    pub(super) is_submodule: bool,
    pub(super) depth: Depth,
    pub(super) partial: bool,
    /// Set after a pack arrived: the commits at which the remote's own history ends. The indexing child has then
    /// verified that the tip's tree is complete.
    pub(super) received: Option<HashSet<ObjectId>>,
    /// The last tip that was found complete, with history of the configured depth.
    pub(super) settled: Option<ObjectId>,
}

/// Inspects the mirror. Fails with [`Error::Cancelled`] once `cancel` is cancelled: a full history may have millions of
/// commits.
pub(super) fn inspect(
    reader: &ObjectReader<'_>,
    layout: &Layout,
    inspection: Inspection,
    cancel: &CancellationToken,
) -> Result<LocalState, Error> {
    let Inspection { want, kept_revisions, of_remote, is_submodule, depth, partial, received, settled } =
        inspection;
    let mut known = LocalState { shallow: layout.shallow(), ..LocalState::default() };
    let mut base = None;
    for id in layout.tip().into_iter().chain(of_remote.iter().map(|revision| revision.0)) {
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
    let is_cut = !known.shallow.is_empty();
    if is_submodule && is_cut {
        known.shallow = boundary_of(reader, &known.haves, &known.shallow, cancel)?;
    }
    if !reader.has(&want) {
        return Ok(known);
    }
    let peeled = match reader.peel(&want) {
        Ok(Ok(peeled)) => peeled,
        Ok(Err(kind)) => {
            return Err(Error::NotACommit { requested: want.to_string(), kind: kind.to_owned() });
        }
        Err(error) => return Ok(known.with_unreadable(error)),
    };
    let whole = received.is_some() || tree_closure(reader, peeled.tree, base, partial).is_ok();
    let commit = peeled.commit;
    let has_received = received.is_some();
    let ends = received.unwrap_or_default();
    // In a mirror without a boundary, the history of the last complete tip is whole if garbage collection kept it.
    let is_whole = depth == Depth::Full && !is_cut && ends.is_empty();
    let settled = settled.filter(|id| is_whole && kept_revisions.contains(&Revision(*id)));
    let mut walk = HistoryWalk::new(reader, depth, &ends, cancel).until(settled);
    let history = match walk.of(commit) {
        Ok(history) => history,
        Err(None) => return Err(Error::Cancelled),
        // The author wrote the object like that: fetching it again gives the same.
        Err(Some(error @ (ObjectError::Malformed { .. } | ObjectError::TooLarge { .. }))) if has_received => {
            return Err(Error::damaged(Revision(commit), error));
        }
        Err(Some(error)) => return Ok(known.with_unreadable(error)),
    };
    if whole && history.complete {
        let parents = reader.commit(&commit).map_or_else(|_| Vec::new(), |commit| commit.parents);
        let mut boundary: BTreeSet<_> = history.boundary.into_iter().collect();
        if !is_whole {
            // The boundaries of revisions that must stay readable belong into the file, too, but not those within the
            // tip's depth: the file is for the whole repository, so it would cut the tip's history as well. Such a
            // revision then shows more history than asked, down to where the tip's ends.
            let of_tip = walk.take_within_depth();
            let others = known.haves.iter().copied().chain(kept_revisions.iter().map(|revision| revision.0));
            for id in others.collect::<BTreeSet<_>>() {
                match walk.of(id) {
                    Ok(history) => {
                        boundary.extend(history.boundary.into_iter().filter(|id| !of_tip.contains(id)));
                    }
                    Err(None) => return Err(Error::Cancelled),
                    Err(Some(_)) => {} // absent
                }
            }
        }
        if layout.kind() == RepoKind::Worktrees {
            // Foreign refs may depend on other boundary commits: those whose parents are still absent are kept.
            let cut = |id: &ObjectId| {
                reader.commit(id).is_ok_and(|commit| !commit.parents.iter().all(|parent| reader.has(parent)))
            };
            boundary.extend(layout.shallow().into_iter().filter(cut));
        }
        let boundary = boundary.into_iter().collect();
        known.complete = Some(CompleteTip { commit, parents, boundary });
    }
    Ok(known)
}

/// Those commits of the boundary at which the history of `tips` ends.
fn boundary_of(
    reader: &ObjectReader<'_>,
    tips: &[ObjectId],
    boundary: &[ObjectId],
    cancel: &CancellationToken,
) -> Result<Vec<ObjectId>, Error> {
    let ends = boundary.iter().copied().collect();
    let mut walk = HistoryWalk::new(reader, Depth::Full, &ends, cancel);
    let mut found = Vec::new();
    for tip in tips {
        match walk.of(*tip) {
            Ok(history) => found.extend(history.boundary),
            Err(None) => return Err(Error::Cancelled),
            Err(Some(_)) => {} // of no use to the remote, which then sends more
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::fixture::Fixture;

    #[test]
    fn an_ancestor_that_is_too_large_is_refused_and_not_asked_for_again() {
        let fixture = Fixture::new();
        let tree = fixture.tree(&[]);
        let text = format!("tree {tree}\nauthor a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\n");
        let text = text + &"x".repeat(crate::mirror::odb::COMMIT_MAX);
        let large = Revision(fixture.write(git2::ObjectType::Commit, text.as_bytes()));
        let want = fixture.commit(tree, &[large]).0;
        let inspection = Inspection {
            want,
            kept_revisions: Vec::new(),
            of_remote: Vec::new(),
            is_submodule: false,
            depth: Depth::Full,
            partial: false,
            received: Some(HashSet::new()),
            settled: None,
        };
        let store = fixture.shared.store().unwrap();
        let reader = store.objects().unwrap();
        let error = inspect(&reader, &fixture.layout, inspection, &CancellationToken::new()).unwrap_err();
        assert!(error.is_refusal(), "{error:?}");
    }
}
