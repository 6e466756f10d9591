//! Determines the ancestry relation of two revisions: whether one is ahead of the other, or they diverged. If the
//! mirror's own objects do not tell, the remote is asked for commits without trees (`filter=tree:0`), up to a limit.
//!
//! Those commits go into a scratch repository, `DIR/history`, which is removed after it was read: commits without their
//! trees must never make the mirror look complete. A remote without support for filters is not asked, because it would
//! send whole trees.
//!
//! A commit names its parents whether or not they are present, so a shallow boundary counts as unknown history. (git
//! treats a boundary as the end of history, and answers "not an ancestor" for true ancestors below it.)

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::Mirror;
use super::blocking::blocking;
use super::error::Error;
use super::files::{HISTORY, remove_scratch};
use super::indexer::Task;
use super::layout::Layout;
use super::odb::{ObjectReader, Store};
use super::repo_kind::RepoKind;
use super::wire::{self, Deepen, Request};
use crate::revision::{ObjectId, Relation, Revision};

/// The depths of history that the remote is asked for, one after the other; the first is usually enough. A thousand
/// commits have some 200 KiB.
const DEPTHS: [u32; 2] = [50, 1_000];

/// The most bytes that the pack of commits may have.
const BYTES_MAX: u64 = 16 << 20;

/// The most commits of a repository that are visited.
const COMMITS_MAX: usize = 20_000;

/// The most parents of visited commits, some 4 MiB of ids. A parent counts as often as it is named: merges of the same
/// thousands of commits name few distinct commits many times.
const PARENTS_MAX: usize = 200_000;

/// The most pairs of revisions that are remembered because their relation stays unknown.
const UNKNOWN_RELATIONS_MAX: usize = 1_000;

/// The known commits, each with its parents.
#[derive(Debug, Default)]
struct Graph(HashMap<ObjectId, Vec<ObjectId>>);

impl Graph {
    /// The relation of `named` to `recorded`.
    fn relation(&self, recorded: ObjectId, named: ObjectId) -> Relation {
        match (self.contains(named, recorded), self.contains(recorded, named)) {
            (Some(true), _) => Relation::Ahead,
            (_, Some(true)) => Relation::Behind,
            (Some(false), Some(false)) => Relation::Diverged,
            _ => Relation::Unknown,
        }
    }

    /// Returns whether the history of `tip` contains `wanted`; `None` if too little of it is known.
    fn contains(&self, tip: ObjectId, wanted: ObjectId) -> Option<bool> {
        // `wanted` is not reachable from its own ancestors, so the search need not continue below them.
        let below = self.ancestors(wanted);
        let mut is_incomplete = false;
        let mut seen = HashSet::from([tip]);
        let mut stack = vec![tip];
        while let Some(at) = stack.pop() {
            if at == wanted {
                return Some(true);
            }
            if below.contains(&at) {
                continue;
            }
            match self.0.get(&at) {
                Some(parents) => stack.extend(parents.iter().copied().filter(|id| seen.insert(*id))),
                None => is_incomplete = true,
            }
        }
        (!is_incomplete).then_some(false)
    }

    /// The known ancestors of a commit.
    fn ancestors(&self, of: ObjectId) -> HashSet<ObjectId> {
        let mut found = HashSet::new();
        let mut stack = vec![of];
        while let Some(at) = stack.pop() {
            let parents = self.0.get(&at).into_iter().flatten().copied();
            stack.extend(parents.filter(|id| found.insert(*id)));
        }
        found
    }

    /// Adds a commit's history from a repository, breadth first. Stops at `until`, and at the limits on commits and
    /// parents, after which the relation may stay unknown.
    fn read(&mut self, reader: &ObjectReader<'_>, from: ObjectId, until: ObjectId) {
        let mut seen = HashSet::from([from]);
        let mut queue = VecDeque::from([from]);
        let mut parents: usize = self.0.values().map(Vec::len).sum();
        while let Some(at) = queue.pop_front() {
            if at == until || seen.len() > COMMITS_MAX {
                return;
            }
            let Ok(commit) = reader.commit(&at) else { continue }; // absent
            if !self.0.contains_key(&at) {
                parents += commit.parents.len();
            }
            if parents > PARENTS_MAX {
                return;
            }
            queue.extend(commit.parents.iter().copied().filter(|id| seen.insert(*id)));
            self.0.insert(at, commit.parents);
        }
    }
}

impl Mirror {
    /// The relation of `named`, a revision that the ref names, to `recorded`, an earlier one. If the mirror's objects
    /// do not tell, the remote is asked for commits, which are not kept. Fails if the remote could not be asked and a
    /// later attempt may succeed; if the remote does not answer, the result is [`Relation::Unknown`].
    pub async fn relation(&mut self, recorded: Revision, named: Revision) -> Result<Relation, Error> {
        let recorded = recorded.0;
        let named = named.0;
        if self.unknown_relations.contains(&(recorded, named)) {
            return Ok(Relation::Unknown);
        }
        let shared = Arc::clone(&self.shared);
        let local = move || {
            let _lease = shared.lease();
            known_history(Graph::default(), &shared.store()?, recorded, named)
        };
        let mut graph = blocking(local).await?;
        for depth in DEPTHS {
            for (from, to) in [(named, recorded), (recorded, named)] {
                if graph.relation(recorded, named) != Relation::Unknown || graph.contains(from, to).is_some()
                {
                    continue;
                }
                graph = match self.deepen(graph, from, depth, recorded, named).await {
                    Ok(deeper) => deeper,
                    Err(error) if from == recorded && says_unknown(&error, recorded) => {
                        return Ok(Relation::UnknownToRemote);
                    }
                    Err(error) => {
                        if is_lasting(&error) {
                            self.note_unknown_relation(recorded, named);
                        }
                        return relation_or_error(error);
                    }
                };
            }
        }
        let relation = graph.relation(recorded, named);
        if relation == Relation::Unknown {
            self.note_unknown_relation(recorded, named);
        }
        Ok(relation)
    }

    /// Records that asking again for the relation would have the same result.
    fn note_unknown_relation(&mut self, recorded: ObjectId, named: ObjectId) {
        if self.unknown_relations.len() >= UNKNOWN_RELATIONS_MAX {
            self.unknown_relations.clear();
        }
        self.unknown_relations.insert((recorded, named));
    }

    /// Fetches the history of `from`, `depth` commits deep, and adds it to the graph.
    async fn deepen(
        &mut self,
        graph: Graph,
        from: ObjectId,
        depth: u32,
        recorded: ObjectId,
        named: ObjectId,
    ) -> Result<Graph, Error> {
        let place = self.layout.dir().join(HISTORY);
        let make = move || {
            remove_scratch(&place)?;
            Layout::open(&place, RepoKind::Bare, false, None)
        };
        let scratch = blocking(make).await?;
        let request = Request {
            wants: vec![from],
            depth: Deepen::To(depth),
            filter: Some("tree:0".to_owned()),
            only_filtered: true,
            ..Request::default()
        };
        let received = self.receive_into(scratch.dir(), BYTES_MAX, &request, Task::Fill(1)).await;
        let read = move || {
            let graph = received.and_then(|_| {
                let failed = |source| Error::git("open the fetched history", source);
                known_history(graph, &Store::open(scratch.dir()).map_err(failed)?, recorded, named)
            });
            remove_scratch(scratch.dir())?;
            graph
        };
        blocking(read).await
    }
}

/// Adds what a repository has of both histories to the graph.
fn known_history(
    mut graph: Graph,
    store: &Store,
    recorded: ObjectId,
    named: ObjectId,
) -> Result<Graph, Error> {
    let reader = store.objects()?;
    graph.read(&reader, named, recorded);
    graph.read(&reader, recorded, named);
    Ok(graph)
}

/// The message that the remote sent, if the error carries one.
fn remote_message(error: &Error) -> Option<&str> {
    match error {
        Error::Wire(wire::Error::Remote { said, .. }) => Some(said),
        Error::Unsent { source, .. } => match &**source {
            wire::Error::Remote { said, .. } => Some(said),
            _ => None,
        },
        _ => None,
    }
}

/// Returns true if the remote answered that it does not have the commit. All servers name the id then: git's "not our
/// ref ID", JGit's "want ID not valid".
fn says_unknown(error: &Error, commit: ObjectId) -> bool {
    let names = |text: &str| text.contains(&commit.to_string());
    match error {
        Error::Unsent { source, .. }
            if matches!(&**source, wire::Error::Local { source, .. }
            if source.0.code() == git2::ErrorCode::NotFound && names(source.0.message())) =>
        {
            true
        }
        _ => remote_message(error).is_some_and(names),
    }
}

/// Returns true if the same request would fail again: the remote does not support filters, or the history exceeds a
/// limit.
fn is_lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Wire(wire::Error::Unsupported { .. }) | Error::FetchBytes { .. } | Error::IndexMemory { .. }
    )
}

/// Converts an error of the request for commits. A remote that does not support filters, refuses the request, or sends
/// an unusable pack would do so again, so the relation is unknown; other transient errors are returned. So is one of a
/// credential or a key, which may have expired since the last attempt: that it is unknown would refuse the revision.
fn relation_or_error(error: Error) -> Result<Relation, Error> {
    use wire::Error::{Auth, Credential, Ssh, Tls};
    let useless =
        matches!(error, Error::BadPack { .. } | Error::Incomplete { .. }) || remote_message(&error).is_some();
    let not_let_in = matches!(error, Error::Wire(Auth { .. } | Credential { .. } | Ssh { .. } | Tls { .. }));
    if (error.is_transient() || not_let_in) && !useless {
        return Err(error);
    }
    tracing::debug!(error = crate::human::one_line(&error), "the remote does not send its history");
    Ok(Relation::Unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: usize) -> ObjectId {
        ObjectId([u8::try_from(number).unwrap(); 20])
    }

    fn graph(commits: &[(usize, &[usize])]) -> Graph {
        Graph(
            commits.iter().map(|(at, parents)| (id(*at), parents.iter().map(|p| id(*p)).collect())).collect(),
        )
    }

    #[test]
    fn a_credential_that_expired_leaves_no_relation_unknown() {
        let remote = || "https://h/a".to_owned();
        let expired = wire::Error::Auth { remote: remote(), status: 401, username: None, with: Vec::new() };
        assert!(relation_or_error(expired.into()).is_err());
        let no_filter = wire::Error::Unsupported { remote: remote(), feature: "filter" };
        assert_eq!(relation_or_error(no_filter.into()).unwrap(), Relation::Unknown);
    }

    #[test]
    fn an_end_of_what_is_known_is_no_end_of_history() {
        // 5 - 4 - 3 - (2 is absent)
        let known = graph(&[(5, &[4]), (4, &[3]), (3, &[2])]);
        assert_eq!(known.relation(id(3), id(5)), Relation::Ahead);
        assert_eq!(known.relation(id(2), id(5)), Relation::Ahead, "a parent is known before it is here");
        assert_eq!(known.relation(id(5), id(2)), Relation::Behind);
        assert_eq!(known.relation(id(1), id(5)), Relation::Unknown);
        let whole = graph(&[(5, &[4]), (4, &[]), (6, &[4])]);
        assert_eq!(whole.relation(id(6), id(5)), Relation::Diverged);
    }

    #[test]
    fn merges_of_the_same_thousands_are_taken_in_up_to_a_bound() {
        let fixture = super::super::fixture::Fixture::new();
        let tree = fixture.tree(&[]);
        let root = fixture.commit(tree, &[]);
        let many: Vec<_> = (0..5_000u32)
            .map(|n| {
                let mut id = [7; 20];
                id[..4].copy_from_slice(&n.to_be_bytes());
                Revision(ObjectId(id))
            })
            .collect();
        let mut tip = root;
        for _ in 0..60 {
            tip = fixture.commit(tree, &[&[tip], &many[..]].concat());
        }
        let store = fixture.shared.store().unwrap();
        let known = known_history(Graph::default(), &store, root.0, tip.0).unwrap();
        let parents: usize = known.0.values().map(Vec::len).sum();
        assert!(parents <= PARENTS_MAX, "{parents} ids of parents are held");
        assert_eq!(known.relation(root.0, tip.0), Relation::Unknown);
        let below = fixture.commit(tree, &[root]);
        let known = known_history(known, &store, root.0, below.0).unwrap();
        assert_eq!(known.relation(root.0, below.0), Relation::Ahead, "what is small enough is known");
    }

    #[test]
    fn what_two_tips_have_in_common_need_not_be_known_further() {
        // Both descend from 2, whose parent is absent; 5 merges a side branch that is known down to its root.
        let known = graph(&[(5, &[3, 7]), (7, &[]), (3, &[2]), (6, &[2]), (2, &[1])]);
        assert_eq!(known.relation(id(6), id(5)), Relation::Diverged);
        // The side branch's history is not known completely, and may contain 6.
        let open = graph(&[(5, &[3, 7]), (7, &[8]), (3, &[2]), (6, &[2]), (2, &[1])]);
        assert_eq!(open.relation(id(6), id(5)), Relation::Unknown);
    }

    proptest! {
        /// Whichever part of a history is known, the answer is correct or unknown.
        #[test]
        fn what_is_answered_is_true(
            parents in proptest::collection::vec(proptest::collection::vec(0usize..40, 0..3), 2..40),
            known in proptest::collection::vec(any::<bool>(), 40),
            (one, other) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let older = |at: usize, of: &[usize]| of.iter().filter(|p| **p < at).map(|p| id(*p)).collect::<Vec<_>>();
            let whole = Graph(parents.iter().enumerate().map(|(at, of)| (id(at), older(at, of))).collect());
            let part = Graph(whole.0.clone().into_iter().filter(|(at, _)| known[usize::from(at.0[0])]).collect());
            let (one, other) = (id(one.index(parents.len())), id(other.index(parents.len())));
            prop_assume!(one != other);
            let truth = whole.relation(one, other);
            prop_assert_ne!(truth, Relation::Unknown);
            let reached = |from, to| whole.ancestors(from).contains(&to);
            prop_assert_eq!(truth == Relation::Ahead, reached(other, one));
            prop_assert_eq!(truth == Relation::Behind, reached(one, other));
            let said = part.relation(one, other);
            prop_assert!(said == truth || said == Relation::Unknown, "{:?} of {:?}", said, truth);
        }
    }
}
