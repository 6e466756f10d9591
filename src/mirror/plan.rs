//! Plans the fetch request for a tip. Pure.
//!
//! The server's work and the size of its answer depend on the `have` and `shallow` lines of the request. After the
//! first fetch at depth 1 the client moves the shallow boundary itself, in one of two ways (figures: CPU time of one
//! update with git 2.39's `upload-pack`, on a repository of 90,000 files in 19,000 directories):
//!
//! - **Declare shallow** ([`RequestReason::DeclareShallow`]): the boundary that we hold and the new commit are declared
//!   `shallow`. The server then compares the new commit's tree with the old one, without history: 67 ms, because
//!   `pack-objects` marks the whole old tree (`--objects-edge-aggressive`). Without `thin-pack` it would send the whole
//!   tree.
//! - **Assume parent** ([`RequestReason::AssumeParent`]): only the boundary that we hold is declared. The server finds
//!   that we have the new commit's parent, and looks only at what differs: 6 ms. But after a merge of an old branch, or
//!   a rewind, it also sends the history below our boundary: 19,960 objects instead of 4, all counted before it
//!   answers.
//!
//! So as long as a repository has only shown commits with one parent, requests are of the second kind, with a limit on
//! the number of objects that the pack may announce. If the limit is exceeded, or the pack is too large, the fetch
//! starts again with the first kind. The second kind is used again once a commit follows the one that the mirror holds
//! (a large commit exceeded the limit), but not after a merge or if the limit is exceeded twice.

use super::Depth;
use super::wire::{Deepen, Request};
use crate::revision::ObjectId;

/// After so many requests that were wrong in assuming linear history, none assumes it any more.
const WRONG_MAX: u32 = 2;

/// What the commits that were fetched since the mirror was opened tell of the remote's history. It selects the kind of
/// request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct HistoryShape {
    /// The next request assumes linear history. False while such a request is out.
    pub(super) is_linear: bool,
    /// A request that assumed linear history was sent, and none was answered well since. It may have been dropped because
    /// the server needs longer than an attempt to find out that the history is not linear.
    is_unanswered: bool,
    /// Number of requests that were wrong in assuming linear history, for example after a rewind. [`WRONG_MAX`] after a
    /// merge.
    wrong: u32,
}

impl HistoryShape {
    /// Notes that a request is sent that assumes linear history.
    pub(super) fn note_assumed(&mut self) {
        self.is_linear = false;
        self.is_unanswered = true;
    }

    /// Notes that such a request was wrong.
    pub(super) fn note_wrong(&mut self) {
        self.wrong = self.wrong.saturating_add(1);
    }

    /// Notes a fetched commit by its parents. `haves` are the commits that the mirror held before; `assumed` is set if the
    /// request assumed linear history.
    pub(super) fn note_commit(&mut self, parents: &[ObjectId], haves: &[ObjectId], assumed: bool) {
        if parents.len() > 1 {
            self.wrong = WRONG_MAX;
        }
        let is_next = parents.first().is_some_and(|parent| haves.contains(parent));
        self.is_unanswered &= !(assumed || is_next);
        self.is_linear = self.wrong < WRONG_MAX && !self.is_unanswered;
    }
}

/// The inputs of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    /// The object that the ref names.
    pub(super) want: ObjectId,
    /// The commit that it peels to, if known.
    pub(super) commit: Option<ObjectId>,
    /// The configured depth of history.
    pub(super) depth: Depth,
    /// Commits that are present with their whole tree, in order of preference.
    pub(super) haves: &'a [ObjectId],
    /// The shallow boundary of the mirror.
    pub(super) shallow: &'a [ObjectId],
    /// True if the new commit's parent is expected to be one of `haves`.
    pub(super) assume_linear: bool,
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestReason {
    /// The mirror holds no commit.
    First,
    /// One commit, declared as a shallow boundary beside the commits that are held.
    DeclareShallow,
    /// One commit whose parent is assumed to be held.
    AssumeParent,
    /// More than one commit of history: the server moves the boundary.
    History,
    /// The previous answer was incomplete or unexpected, or took too much memory: ask for everything and claim no
    /// commits as present.
    WithoutHaves,
    /// Ask for everything in order to replace all packs, which hold too much garbage.
    Renewal,
}

impl RequestReason {
    /// The name in the log.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::DeclareShallow => "declare_shallow",
            Self::AssumeParent => "assume_parent",
            Self::History => "history",
            Self::WithoutHaves => "without_haves",
            Self::Renewal => "renewal",
        }
    }
}

/// Plans the first request for a tip.
pub(super) fn plan(now: &Situation<'_>) -> (Request, RequestReason) {
    let single_commit = match (now.depth, now.commit) {
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
    match single_commit {
        _ if now.haves.is_empty() => (without_haves(now), RequestReason::First),
        Some(commit) if now.assume_linear => {
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
                // Unshallow; without a boundary this is a plain fetch.
                Depth::Full if now.shallow.is_empty() => Deepen::No,
                Depth::Full => Deepen::Full,
            };
            (request, RequestReason::History)
        }
    }
}

/// The request that claims no commits as present, so that the answer depends on nothing in the mirror.
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
        Situation { want: NEW, commit: Some(NEW), depth, haves, shallow, assume_linear: false }
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
        let now = Situation { assume_linear: true, ..situation(Depth::Commits(1), &[OLD], &[OLD]) };
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
    fn one_large_commit_does_not_make_a_history_nonlinear_but_a_merge_does() {
        let mut shape = HistoryShape::default();
        assert!(!shape.is_linear, "nothing is known yet");
        shape.note_commit(&[OLDER], &[], false);
        assert!(shape.is_linear);
        shape.note_assumed();
        shape.note_wrong();
        assert!(!shape.is_linear);
        shape.note_commit(&[OLDER], &[OLD], false);
        assert!(!shape.is_linear, "there may be a merge in between");
        shape.note_commit(&[OLD], &[OLD, OLDER], false);
        assert!(shape.is_linear, "it only changed much");
        shape.note_assumed();
        shape.note_commit(&[OLDER], &[OLD], true);
        assert!(shape.is_linear, "the answer had few objects");
        let mut merged = shape;
        merged.note_commit(&[OLD, OLDER], &[OLD], true);
        merged.note_commit(&[OLD], &[OLD], false);
        assert!(!merged.is_linear, "another merge is to be expected");
        shape.note_assumed();
        shape.note_wrong();
        shape.note_commit(&[OLD], &[OLD], false);
        assert!(!shape.is_linear, "wrong twice");
    }

    #[test]
    fn after_a_request_that_was_dropped_the_next_one_does_not_make_the_server_count_history() {
        let mut shape = HistoryShape::default();
        shape.note_commit(&[OLD], &[], false);
        shape.note_assumed();
        assert!(!shape.is_linear, "the attempt was out of time");
        shape.note_commit(&[OLDER], &[OLD], false);
        assert!(!shape.is_linear, "there may be a merge in between");
        shape.note_commit(&[OLD], &[OLD], false);
        assert!(shape.is_linear, "the remote was slow, or not reachable");
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
