//! What to ask the remote for, and why. Pure.
//!
//! What a server works and sends depends on what it knows of us. After the first fetch, at depth 1, the boundary is
//! moved by us, in one of two ways (figures: git 2.39's `upload-pack` on a repository of 90,000 files in 19,000
//! directories, CPU time of one update):
//!
//! - **Beside**: every boundary that we hold AND the new commit are declared `shallow`. The new commit is then compared
//!   with the old one as a tree without history: 67 ms, because `pack-objects` marks the whole old tree
//!   (`--objects-edge-aggressive`), whatever the history. Without `thin-pack` it would send the whole tree.
//! - **Ahead**: only the boundaries that we hold. The new commit's parent is then found to be ours, and only what
//!   differs
//!   is looked at: 6 ms. But a merge of an old branch, or a rewind, brings the history below our boundary: 19,960
//!   objects in place of 4, and a server that counts them all first.
//!
//! So a repository that has only shown commits with one parent is asked the second way, with a bound on the objects
//! that the pack may announce; the first time it is exceeded the fetch begins again the first way, and stays there.

use super::Depth;
use super::wire::{Deepen, Request};
use crate::revision::ObjectId;

/// What is known before asking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    /// The object that the ref names.
    pub(super) want: ObjectId,
    /// The commit behind it, where it is known.
    pub(super) commit: Option<ObjectId>,
    /// How much history is asked for.
    pub(super) depth: Depth,
    /// Commits that we hold with their whole tree, best first.
    pub(super) haves: &'a [ObjectId],
    /// Our boundary.
    pub(super) shallow: &'a [ObjectId],
    /// Whether the next commit is expected to have ours as its parent.
    pub(super) straight: bool,
}

/// Why a request looks as it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestReason {
    /// Nothing is held.
    First,
    /// One commit beside those that are held.
    DeclareShallow,
    /// A commit whose parent is held, presumably.
    AssumeParent,
    /// More than one commit of history: the server moves the boundary.
    History,
    /// The answer before was incomplete or odd: ask for everything, claiming nothing.
    WithoutHaves,
    /// The mirror is to be without garbage.
    Renewal,
}

impl RequestReason {
    /// Its name in the log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::DeclareShallow => "beside",
            Self::AssumeParent => "ahead",
            Self::History => "history",
            Self::WithoutHaves => "afresh",
            Self::Renewal => "renewal",
        }
    }
}

/// The first request for a tip.
pub(super) fn plan(now: &Situation<'_>) -> (Request, RequestReason) {
    let beside = match (now.depth, now.commit) {
        (Depth::Commits(0 | 1), Some(commit)) => Some(commit),
        _ => None,
    };
    let mut request = Request {
        wants: vec![now.want],
        haves: now.haves.to_vec(),
        shallow: now.shallow.to_vec(),
        thin: true,
        ..Request::default()
    };
    match beside {
        _ if now.haves.is_empty() => (without_haves(now), RequestReason::First),
        Some(commit) if now.straight => {
            request.shallow.retain(|id| *id != commit);
            (request, RequestReason::AssumeParent)
        }
        Some(commit) => {
            if !request.shallow.contains(&commit) {
                request.shallow.push(commit);
            }
            (request, RequestReason::DeclareShallow)
        }
        None => {
            request.depth = match now.depth {
                Depth::Commits(n) => Deepen::To(n.max(1)),
                // Our boundary is lifted; without one this is a plain fetch.
                Depth::Full if now.shallow.is_empty() => Deepen::No,
                Depth::Full => Deepen::Full,
            };
            (request, RequestReason::History)
        }
    }
}

/// The request that depends on nothing we hold.
pub(super) fn without_haves(now: &Situation<'_>) -> Request {
    let depth = match now.depth {
        Depth::Commits(n) => Deepen::To(n.max(1)),
        Depth::Full => Deepen::No,
    };
    Request { wants: vec![now.want], depth, ..Request::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: ObjectId = ObjectId([1; 20]);
    const OLDER: ObjectId = ObjectId([2; 20]);
    const NEW: ObjectId = ObjectId([3; 20]);
    const TAG: ObjectId = ObjectId([4; 20]);

    fn situation(
        depth: Depth,
        haves: &'static [ObjectId],
        shallow: &'static [ObjectId],
    ) -> Situation<'static> {
        Situation { want: NEW, commit: Some(NEW), depth, haves, shallow, straight: false }
    }

    #[test]
    fn the_first_fetch_deepens() {
        let (request, reason) = plan(&situation(Depth::Commits(1), &[], &[OLD]));
        assert_eq!(reason, RequestReason::First);
        assert_eq!(request, Request { wants: vec![NEW], depth: Deepen::To(1), ..Request::default() });
        let (request, _) = plan(&situation(Depth::Full, &[], &[]));
        assert_eq!(request.depth, Deepen::No);
    }

    #[test]
    fn at_depth_one_the_boundary_is_moved_by_us() {
        let (request, reason) = plan(&situation(Depth::Commits(1), &[OLD, OLDER], &[OLD, OLDER]));
        assert_eq!(reason, RequestReason::DeclareShallow);
        assert_eq!(request.depth, Deepen::No, "deepening is what costs the server");
        assert_eq!(request.shallow, [OLD, OLDER, NEW]);
        assert_eq!(request.haves, [OLD, OLDER]);
        assert!(request.thin);
    }

    #[test]
    fn where_history_is_straight_the_new_commit_is_not_named() {
        let now = Situation { straight: true, ..situation(Depth::Commits(1), &[OLD], &[OLD]) };
        let (request, reason) = plan(&now);
        assert_eq!(
            (request.depth, request.shallow, reason),
            (Deepen::No, vec![OLD], RequestReason::AssumeParent)
        );
        let (_, reason) = plan(&Situation { haves: &[], ..now });
        assert_eq!(reason, RequestReason::First);
        let (_, reason) = plan(&Situation { depth: Depth::Commits(2), ..now });
        assert_eq!(reason, RequestReason::History);
    }

    #[test]
    fn a_boundary_is_named_once() {
        let (request, _) = plan(&situation(Depth::Commits(1), &[OLD], &[OLD, NEW]));
        assert_eq!(request.shallow, [OLD, NEW]);
    }

    #[test]
    fn a_tag_is_wanted_as_it_is_and_its_commit_is_the_boundary() {
        let now = Situation { want: TAG, ..situation(Depth::Commits(1), &[OLD], &[OLD]) };
        let (request, _) = plan(&now);
        assert_eq!((request.wants, request.shallow), (vec![TAG], vec![OLD, NEW]));
    }

    #[test]
    fn a_tag_whose_commit_is_unknown_is_left_to_the_server() {
        let now = Situation { want: TAG, commit: None, ..situation(Depth::Commits(1), &[OLD], &[OLD]) };
        let (request, reason) = plan(&now);
        assert_eq!(
            (request.depth, reason),
            (Deepen::To(1), RequestReason::History),
            "a tag as `shallow` is an error"
        );
    }

    #[test]
    fn other_depths_are_left_to_the_server() {
        let (request, reason) = plan(&situation(Depth::Commits(3), &[OLD], &[OLDER]));
        assert_eq!((request.depth, reason), (Deepen::To(3), RequestReason::History));
        assert_eq!((request.haves, request.shallow), (vec![OLD], vec![OLDER]));
        let (request, _) = plan(&situation(Depth::Full, &[OLD], &[OLD]));
        assert_eq!(request.depth, Deepen::Full, "our boundary is lifted");
        let (request, _) = plan(&situation(Depth::Full, &[OLD], &[]));
        assert_eq!(request.depth, Deepen::No);
    }

    #[test]
    fn a_second_attempt_claims_nothing() {
        let request = without_haves(&situation(Depth::Commits(1), &[OLD], &[OLD]));
        assert_eq!(request, Request { wants: vec![NEW], depth: Deepen::To(1), ..Request::default() });
    }
}
