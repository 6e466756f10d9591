//! How two revisions stand to each other. The mirror's own objects know it where the one is a parent of the other; else
//! the remote is asked for commits alone (`filter=tree:0`), up to a cap.
//!
//! What comes goes into a repository of its own, `DIR/history`, which is removed when it was read: commits without
//! their trees must never make the mirror look complete. Without a filter such a question would bring whole trees, so
//! it is not put.
//!
//! A commit names its parents whether or not they are here, so a boundary is seen as what it is: an end of what is
//! known. (git takes a boundary for the end of history, and answers "not an ancestor" for true ancestors below it.)

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::Mirror;
use super::blocking::blocking;
use super::error::{Error, Libgit2};
use super::files::{HISTORY, remove_scratch};
use super::indexer::Task;
use super::layout::Layout;
use super::odb::{ObjectReader, Store};
use super::repo_kind::RepoKind;
use super::wire::{self, Deepen, Request};
use crate::revision::{ObjectId, Relation, Revision};

/// How deep the remote's history is asked for: first a little, which is enough for most, then up to the cap. A thousand
/// commits are some 200 KiB.
const DEPTHS: [u32; 2] = [50, 1_000];

/// What commits without their trees may weigh.
const MOST_BYTES: u64 = 16 << 20;

/// Commits of the mirror that are looked at.
const MOST_COMMITS: usize = 20_000;

/// Parents of them, counted as often as they are named: some 4 MiB of ids. Merges of the same thousands of commits name
/// few commits many times.
const MOST_PARENTS: usize = 200_000;

/// Commits and their parents, as far as they are known.
#[derive(Debug, Default)]
struct Graph(HashMap<ObjectId, Vec<ObjectId>>);

impl Graph {
    /// How `named` stands to `recorded`.
    fn relation(&self, recorded: ObjectId, named: ObjectId) -> Relation {
        match (self.contains(named, recorded), self.contains(recorded, named)) {
            (Some(true), _) => Relation::Ahead,
            (_, Some(true)) => Relation::Behind,
            (Some(false), Some(false)) => Relation::Diverged,
            _ => Relation::Unknown,
        }
    }

    /// Whether the history of `tip` contains `wanted`; `None` where it is not known far enough to say.
    fn contains(&self, tip: ObjectId, wanted: ObjectId) -> Option<bool> {
        // Nothing is an ancestor of its own ancestors, so those below need no look.
        let below = self.ancestors(wanted);
        let mut open = false;
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
                None => open = true,
            }
        }
        (!open).then_some(false)
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

    /// Takes in what a repository knows of a commit's history, nearest first, until it comes to `until` or to more
    /// than is looked at: how the two stand to each other may then stay unknown.
    fn read(&mut self, reader: &ObjectReader<'_>, from: ObjectId, until: ObjectId) {
        let mut seen = HashSet::from([from]);
        let mut queue = VecDeque::from([from]);
        let mut parents: usize = self.0.values().map(Vec::len).sum();
        while let Some(at) = queue.pop_front() {
            if at == until || seen.len() > MOST_COMMITS {
                return;
            }
            let Ok(commit) = reader.commit(&at) else { continue }; // it is not here
            if !self.0.contains_key(&at) {
                parents += commit.parents.len();
            }
            if parents > MOST_PARENTS {
                return;
            }
            queue.extend(commit.parents.iter().copied().filter(|id| seen.insert(*id)));
            self.0.insert(at, commit.parents);
        }
    }
}

impl Mirror {
    /// How a revision that the ref names stands to one that was recorded. The remote is asked for commits where the
    /// mirror does not know it; nothing of that stays.
    ///
    /// # Errors
    /// When it could not be asked, and a later attempt may succeed. What a remote does not answer is
    /// [`Relation::Unknown`].
    pub async fn relation(&mut self, recorded: Revision, named: Revision) -> Result<Relation, Error> {
        let recorded = recorded.0;
        let named = named.0;
        let shared = Arc::clone(&self.shared);
        let own = move || {
            let _lease = shared.lease();
            known_history(Graph::default(), &shared.store()?, recorded, named)
        };
        let mut graph = blocking(own).await?;
        for depth in DEPTHS {
            for (from, to) in [(named, recorded), (recorded, named)] {
                if graph.relation(recorded, named) != Relation::Unknown || graph.contains(from, to).is_some()
                {
                    continue;
                }
                graph = match self.deepen(graph, from, depth, (recorded, named)).await {
                    Ok(deeper) => deeper,
                    Err(error) if from == recorded && says_unknown(&error, recorded) => {
                        return Ok(Relation::UnknownToRemote);
                    }
                    Err(error) => return relation_or_error(error),
                };
            }
        }
        Ok(graph.relation(recorded, named))
    }

    /// Asks the remote for so many commits of a history.
    async fn deepen(
        &mut self,
        graph: Graph,
        from: ObjectId,
        depth: u32,
        (recorded, named): (ObjectId, ObjectId),
    ) -> Result<Graph, Error> {
        let place = self.layout.dir().join(HISTORY);
        let make = move || {
            remove_scratch(&place)?;
            Layout::open(&place, RepoKind::Bare, false)
        };
        let scratch = blocking(make).await?;
        let request = Request {
            wants: vec![from],
            depth: Deepen::To(depth),
            filter: Some("tree:0".to_owned()),
            only_filtered: true,
            ..Request::default()
        };
        let received = self.receive_into(scratch.dir(), MOST_BYTES, &request, Task::Fill(1)).await;
        let read = move || {
            let graph = received.and_then(|_| {
                let failed =
                    |source| Error::Git { act: "open the fetched history".into(), source: Libgit2(source) };
                known_history(graph, &Store::open(scratch.dir()).map_err(failed)?, recorded, named)
            });
            remove_scratch(scratch.dir())?;
            graph
        };
        blocking(read).await
    }
}

/// What a repository knows of both histories, besides what was known.
fn known_history(
    mut graph: Graph,
    store: &Store,
    recorded: ObjectId,
    named: ObjectId,
) -> Result<Graph, Error> {
    let reader = store
        .reader()
        .map_err(|source| Error::Git { act: "open the mirror's objects".into(), source: Libgit2(source) })?;
    graph.read(&reader, named, recorded);
    graph.read(&reader, recorded, named);
    Ok(graph)
}

/// The remote's own words.
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

/// Whether a remote that was asked for a commit says that it has none such. All servers name it then: git's "not our
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

/// What becomes of a question that was not answered. A remote that knows no filter, refuses, or sends what is of no use
/// does so the next time, too.
fn relation_or_error(error: Error) -> Result<Relation, Error> {
    let useless =
        matches!(error, Error::BadPack { .. } | Error::Incomplete { .. }) || remote_message(&error).is_some();
    if error.is_transient() && !useless {
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
    fn an_end_of_what_is_known_is_no_end_of_history() {
        // 5 - 4 - 3 - (2 is not here)
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
        assert!(parents <= MOST_PARENTS, "{parents} ids of parents are held");
        assert_eq!(known.relation(root.0, tip.0), Relation::Unknown);
        let below = fixture.commit(tree, &[root]);
        let known = known_history(known, &store, root.0, below.0).unwrap();
        assert_eq!(known.relation(root.0, below.0), Relation::Ahead, "what is small enough is known");
    }

    #[test]
    fn what_two_tips_have_in_common_need_not_be_known_further() {
        // Both come from 2, below which nothing is known; 5 is a merge of a side branch that is known to its root.
        let known = graph(&[(5, &[3, 7]), (7, &[]), (3, &[2]), (6, &[2]), (2, &[1])]);
        assert_eq!(known.relation(id(6), id(5)), Relation::Diverged);
        // The side branch's history is not known, and 6 may be in it.
        let open = graph(&[(5, &[3, 7]), (7, &[8]), (3, &[2]), (6, &[2]), (2, &[1])]);
        assert_eq!(open.relation(id(6), id(5)), Relation::Unknown);
    }

    proptest! {
        /// Whatever part of a history is known: an answer is the truth, or none is given.
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
