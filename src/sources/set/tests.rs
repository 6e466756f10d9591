use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::repository::Pause;
use super::*;
use crate::human::assert_message_style;
use crate::mirror::Selection;
use crate::mirror::author::{Author, Content};
use crate::mirror::fixture::part;
use crate::retry::Backoff;
use crate::revision::{ObjectId, Ref, Relation};
use crate::sources::poll::RefResult;
use crate::sources::stage::{Stage, StagedError};
use crate::sources::{AttemptLimit, Recorded};

/// A set of the sources `one` and `two`, neither of which is published.
pub(in crate::sources) fn two_sources(dir: &Path) -> SourceSet {
    let file = dir.join("sources.yaml");
    let source =
        |name| format!("  - {{name: {name}, repo: {}/{name}, ref: main, to: {name}}}\n", dir.display());
    let text = format!("version: 1\nsources:\n{}{}end: true\n", source("one"), source("two"));
    std::fs::write(&file, text).unwrap();
    let mirrors = dir.join("mirrors");
    let second = Duration::from_secs(1);
    SourceSet::open(SetOptions {
        file,
        dir: mirrors.clone(),
        mirror: mirror::Options::new(&mirrors, Ref::Head, wire::Options::new("")),
        wire: Arc::new(|source| Ok(wire::Options::new(source.repo.clone()))),
        period: second,
        backoff: Backoff { first: second, ceiling: second },
        limit: AttemptLimit::sync_timeout(second),
        one_time: false,
        attempt_is_bounded: false,
        rules: true,
        root: false,
    })
    .unwrap()
}

/// Makes attempts until the set is as expected. They fail, because nothing can be fetched.
pub(super) async fn resolve_until(set: &mut SourceSet, is_expected: impl Fn(&SourceSet) -> bool) {
    let attempts = async {
        while !is_expected(set) {
            assert!(set.resolve(None, &[]).await.is_err());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), attempts).await.unwrap();
}

/// The set of [`two_sources`] with both mirrors open, in a directory that is to outlive it.
pub(in crate::sources) async fn opened_sources() -> (tempfile::TempDir, SourceSet) {
    let dir = tempfile::tempdir().unwrap();
    let mut set = two_sources(dir.path());
    resolve_until(&mut set, |set| set.repositories.len() == 2).await;
    (dir, set)
}

/// Lets the ref of a source name a commit, as if a poll had ended with it.
pub(super) fn name_commit(set: &mut SourceSet, source: usize, commit: Revision) {
    let mirror = set.sources[source].mirror.clone();
    let repository = set.repositories.get_mut(&mirror).unwrap();
    repository.busy = false;
    repository.errors.clear();
    repository.known.insert("main".to_owned(), (commit.0, commit));
}

#[tokio::test]
async fn only_a_single_unbounded_attempt_waits_longer_than_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let mut set = two_sources(dir.path());
    let (start, second) = (Instant::now(), set.options.limit.time);
    assert!(set.answers_deadline(start) < start + second);
    set.options.one_time = true;
    assert_eq!(set.answers_deadline(start), start + 2 * second, "`apply` and `render`");
    assert!(set.not_answered().hints[0].contains("--sync-timeout"));
    set.options.attempt_is_bounded = true;
    assert!(set.answers_deadline(start) < start + second, "`sync --one-time`");
}

#[tokio::test]
async fn each_failure_is_counted_for_the_stage_that_it_is_of() {
    let (_dir, mut set) = opened_sources().await;
    set.take_failures();
    set.begin_attempt();
    let error = |class| SourceError { what: "a test".to_owned(), hints: Vec::new(), class };
    let [refused, absent] = [ErrorClass::Refused, ErrorClass::Permanent].map(error);
    let object = ObjectId([1; 20]);
    let is_refused = RefResult::Refused(object, StagedError::new(Stage::Fetch, refused.clone()));
    let is_absent = RefResult::Failed(StagedError::new(Stage::Resolve, absent));
    // Two refs of one repository: the fetch refused what `one` names, and the remote lacks the ref of `two`.
    let mirror = set.sources[0].mirror.clone();
    set.sources[1].mirror.clone_from(&mirror);
    set.sources[1].listed.ref_text = "other".to_owned();
    let of_refs = vec![("main".to_owned(), is_refused), ("other".to_owned(), is_absent.clone())];
    set.accept(&mirror, PollResult { of_refs, ..PollResult::default() });
    set.count_failures();
    let expected = [("fetch", ErrorClass::Refused), ("resolve", ErrorClass::Permanent)];
    assert_eq!(set.take_failures(), expected);
    set.begin_attempt();
    // While the remote lacks the ref, what is wrong with `one` is still that its commit was refused.
    set.sources.pop();
    let revision = Revision(object);
    set.repositories.get_mut(&mirror).unwrap().known.insert("main".to_owned(), (object, revision));
    set.refused.insert("one".to_owned(), (revision, refused));
    let of_refs = vec![("main".to_owned(), is_absent)];
    set.accept(&mirror, PollResult { of_refs, ..PollResult::default() });
    set.count_failures();
    assert_eq!(set.take_failures(), [("export", ErrorClass::Refused)]);
}

/// An attempt that holds a source back resolves again.
#[tokio::test]
async fn a_source_counts_once_in_an_attempt_however_often_it_is_found_to_fail() {
    let (_dir, mut set) = opened_sources().await;
    set.take_failures();
    set.failing.clear();
    let refused = SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Refused };
    let object = ObjectId([1; 20]);
    let revision = Revision(object);
    let mirror = set.sources[0].mirror.clone();
    set.sources.pop();
    for attempts in 1..=2 {
        set.begin_attempt();
        set.refused.insert("one".to_owned(), (revision, refused.clone()));
        set.count_refusal("one");
        let of_refs = vec![("main".to_owned(), RefResult::Named(object, revision))];
        set.accept(&mirror, PollResult { of_refs, ..PollResult::default() });
        set.count_failures();
        assert_eq!(set.failing["one"].count, attempts);
        assert_eq!(set.take_failures(), [("export", ErrorClass::Refused)]);
    }
    // It recovers in an attempt that has counted it, and is refused once more.
    set.begin_attempt();
    set.count_refusal("one");
    set.refused.clear();
    set.log_failures();
    assert!(!set.failing.contains_key("one"));
    set.count_refusal("one");
    assert_eq!(set.failing["one"].count, 1);
    assert_eq!(set.take_failures().len(), 1);
}

/// At the end of an attempt a delivery may hold the upstream, and a poll may outlast the delivery that asked for it.
#[tokio::test]
async fn failures_that_were_not_taken_before_the_next_attempt_are_not_lost() {
    let (_dir, mut set) = opened_sources().await;
    set.take_failures();
    set.sources.pop();
    let mirror = set.sources[0].mirror.clone();
    let absent = SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Permanent };
    for _ in 0..2 {
        set.begin_attempt();
        let is_absent = RefResult::Failed(StagedError::new(Stage::Resolve, absent.clone()));
        let of_refs = vec![("main".to_owned(), is_absent)];
        set.accept(&mirror, PollResult { of_refs, ..PollResult::default() });
        set.count_failures();
        set.count_failures();
    }
    assert_eq!(set.take_failures(), [("resolve", ErrorClass::Permanent); 2], "one in each attempt");
    assert!(set.take_failures().is_empty());
}

/// A webhook came while the attempt was about to accept the answer of a poll that had begun before.
#[tokio::test]
async fn a_request_that_came_between_two_polls_requests_another_attempt() {
    let (_dir, mut set) = opened_sources().await;
    let triggers = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&triggers);
    set.on_answer(move || _ = count.fetch_add(1, Ordering::Relaxed));
    let mirror = set.sources[0].mirror.clone();
    let later = Instant::now() + Duration::from_secs(60);
    for (is_requested, is_busy, pause, requests) in [
        (false, false, None, 0),
        (true, true, None, 0), // the end of its poll requests one
        (true, false, Some(later), 0),
        (true, false, None, 1),
    ] {
        let repository = set.repositories.get_mut(&mirror).unwrap();
        repository.requested.store(is_requested, Ordering::Relaxed);
        repository.busy = is_busy;
        repository.pause = pause.map(|until| Pause { until, earliest: until });
        set.request_overlooked();
        assert_eq!(triggers.swap(0, Ordering::Relaxed), requests, "{is_requested} {is_busy} {pause:?}");
    }
}

#[tokio::test]
async fn a_source_is_well_only_if_its_newest_commit_is_known_and_published() {
    let (_dir, mut set) = opened_sources().await;
    set.options.root = true;
    let absent = SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Permanent };
    let named = RefResult::Named(ObjectId([1; 20]), Revision(ObjectId([1; 20])));
    let found = [RefResult::Failed(StagedError::new(Stage::Resolve, absent)), named];
    let mirrors = [0, 1].map(|at| set.sources[at].mirror.clone());
    for (mirror, of_ref) in mirrors.iter().zip(found) {
        let of_refs = vec![("main".to_owned(), of_ref)];
        set.accept(mirror, PollResult { of_refs, ..PollResult::default() });
    }
    let errors = |set: &SourceSet| -> Vec<Option<String>> {
        set.source_statuses(None, true).into_iter().map(|row| row.error).collect()
    };
    assert!(set.choose().is_err(), "the first publication needs both");
    let unpublished = "the set with its commit 010101010101 is not published".to_owned();
    assert_eq!(errors(&set), [Some("a test".to_owned()), Some(unpublished)]);
    // Whether the attempt fails or not, it is not known what this ref names.
    set.repositories.get_mut(&mirrors[1]).unwrap().known.clear();
    let unanswered = Some(set.not_answered().what);
    assert_eq!(errors(&set)[1], unanswered);
    assert_eq!(set.source_statuses(None, false)[1].error, unanswered);
}

/// With the mirrors the composed revision is lost, and with it the parts of what is published.
#[tokio::test]
async fn an_optional_source_that_is_served_is_needed_if_what_is_published_cannot_be_read() {
    let (_dir, mut set) = opened_sources().await;
    set.options.root = true;
    set.sources[1].listed.optional = true;
    let last = set.sources[1].mirror.clone();
    let [first, other] = [1, 2].map(|number| Revision(ObjectId([number; 20])));
    name_commit(&mut set, 0, first);
    for is_served in [true, false] {
        set.set_served(is_served.then(|| "two".to_owned()).into_iter().collect());
        set.repositories.get_mut(&last).unwrap().known.clear();
        assert_eq!(set.is_required(&last, &set.sources, OnFailure::Keep), is_served);
        match set.choose() {
            Ok(()) => assert!(!is_served, "it would take away its files"),
            Err(error) => {
                assert!(is_served, "{error:?}");
                let has_hint = error.hints().iter().any(|hint| hint.contains("remove it from the file"));
                assert!(has_hint, "{:?}", error.hints());
            }
        }
        name_commit(&mut set, 1, other);
        set.choose().unwrap();
        assert_eq!(set.hold_back_one_updated("it is too large", &[]), !is_served);
        assert_eq!(set.parts.len(), if is_served { 2 } else { 1 });
    }
}

/// The tip of a refused set is not tried again.
#[tokio::test]
async fn a_set_has_another_tip_when_the_file_lets_other_sources_be_held_back() {
    let (_dir, mut set) = opened_sources().await;
    for source in 0..2 {
        name_commit(&mut set, source, Revision(ObjectId([1; 20])));
    }
    set.choose().unwrap();
    let before = set.tip();
    assert_eq!(set.tip(), before);
    set.sources[1].listed.optional = true;
    let optional = set.tip();
    assert_ne!(optional, before);
    set.on_failure = OnFailure::Hold;
    let holding = set.tip();
    assert_ne!(holding, optional);
    set.sources.pop();
    assert_ne!(set.tip(), holding, "a source that was removed is in the way of no listed one");
}

#[tokio::test]
async fn what_is_wrong_with_a_sources_url_or_credentials_has_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let mut set = two_sources(dir.path());
    for url in [None, Some("https://")] {
        let no_password = || "the file is empty".to_owned();
        set.options.wire = Arc::new(move |_| url.map(wire::Options::new).ok_or_else(no_password));
        let error = set.resolve(None, &[]).await.unwrap_err();
        assert_message_style(&error, &error.hints());
    }
}

#[tokio::test]
async fn a_missing_ref_pauses_no_repository_so_that_its_other_refs_go_on() {
    let (_dir, mut set) = opened_sources().await;
    let mirror = set.sources[0].mirror.clone();
    let absent = SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Permanent };
    for (is_reached, is_paused) in [(false, true), (true, false)] {
        let is_absent = RefResult::Failed(StagedError::new(Stage::Resolve, absent.clone()));
        let named = RefResult::Named(ObjectId([1; 20]), Revision(ObjectId([1; 20])));
        let of_refs = vec![("main".to_owned(), named), ("typo".to_owned(), is_absent)];
        set.accept(&mirror, PollResult { of_refs, is_reached, ..PollResult::default() });
        let repository = &set.repositories[&mirror];
        assert_eq!(repository.pause.is_some(), is_paused, "{is_reached}");
        assert_eq!(repository.last_poll_succeeded(), !is_paused, "{is_reached}");
        assert!(repository.errors.contains_key("typo"), "its source still fails");
    }
}

/// After a delivery was planned, a webhook for another source started polls in which this source has no part.
#[tokio::test]
async fn a_source_without_an_answer_to_the_last_poll_counts_in_a_comparison() {
    let (dir, mut set) = opened_sources().await;
    let repository = dir.path().join("repository");
    let author = Author::init(&repository).unwrap();
    let revision = author.commit(&[("file", Content::File(b"x"))], "x").unwrap();
    set.composer.read_from(&[repository]);
    name_commit(&mut set, 0, revision);
    set.parts = vec![part("one", revision, "one")];
    let composed = set.compose(&Selection::default()).await.unwrap();
    set.polled_at = Some(Instant::now());
    assert!(set.unanswered(&set.sources[0]).is_some());
    let before = Revision(ObjectId([1; 20]));
    let recorded = Recorded { revision: before, sources: [("one".to_owned(), before)].into() };
    let error = set.relation(&recorded, composed).await.unwrap_err();
    assert!(error.class().is_transient(), "the delivery asks again: {error}");
    let same = Recorded { revision: before, sources: [("one".to_owned(), revision)].into() };
    assert_eq!(set.relation(&same, composed).await.unwrap(), Relation::Ahead);
    set.sources.remove(0);
    assert_eq!(set.relation(&recorded, composed).await.unwrap(), Relation::Ahead, "no longer followed");
}

#[tokio::test]
async fn the_mirror_of_a_source_that_was_removed_may_go_once_no_poll_and_no_kept_revision_needs_it() {
    let (dir, mut set) = opened_sources().await;
    let repository = dir.path().join("repository");
    let author = Author::init(&repository).unwrap();
    let revision = author.commit(&[("file", Content::File(b"x"))], "x").unwrap();
    set.composer.read_from(&[repository]);
    let mirror = set.sources[1].mirror.clone();
    set.parts = vec![Part { mirror: mirror.clone(), ..part("two", revision, "two") }];
    let composed = set.compose(&Selection::default()).await.unwrap();
    let (at, go) = (set.options.dir.join(&mirror), CancellationToken::new());
    set.sources.pop();
    set.housekeep(&[composed], &go).unwrap();
    assert!(!set.may_remove_mirrors(&[]), "a poll may be running");
    set.repositories.remove(&mirror);
    assert!(!set.may_remove_mirrors(&[composed]), "a generation needs it");
    set.housekeep(&[composed], &go).unwrap();
    assert!(at.is_dir() && set.may_remove_mirrors(&[]), "the generation was reaped");
    set.housekeep(&[], &go).unwrap();
    assert!(!at.exists() && !set.may_remove_mirrors(&[]));
}

/// The set of [`opened_sources`] before its first publication. An attempt may take a minute, no poll is running, and
/// the clock advances only while everything waits.
async fn idle_sources() -> (tempfile::TempDir, SourceSet) {
    let (dir, mut set) = opened_sources().await;
    set.options.root = true;
    set.options.limit = AttemptLimit::sync_timeout(Duration::from_secs(60));
    set.polls.shutdown().await;
    while set.answers.try_recv().is_ok() {}
    tokio::time::pause();
    (dir, set)
}

/// Returns true if an attempt waits for less than half of its time while only the first of two remotes answers.
async fn is_wait_short(set: &mut SourceSet, of_ref: RefResult) -> bool {
    set.any_reached = false;
    for repository in set.repositories.values_mut() {
        repository.busy = true;
    }
    let mirrors = [0, 1].map(|at| set.sources[at].mirror.clone());
    let of_refs = vec![("main".to_owned(), of_ref)];
    let answer = PollResult { of_refs, is_reached: true, ..PollResult::default() };
    assert!(set.answer_sender.send.send((mirrors[0].clone(), answer)).is_ok());
    let start = Instant::now();
    set.wait_for_answers(&BTreeSet::new(), true, start).await;
    assert!(!set.repositories[&mirrors[0]].busy && set.repositories[&mirrors[1]].busy);
    start.elapsed() < set.options.limit.time / 2
}

#[tokio::test]
async fn the_first_publication_waits_for_an_optional_source_only_as_long_as_a_later_one() {
    let (_dir, mut set) = idle_sources().await;
    for (optional, one_time, is_short) in [(true, false, true), (false, false, false), (true, true, false)] {
        set.sources[1].listed.optional = optional;
        set.options.one_time = one_time;
        let named = RefResult::Named(ObjectId([1; 20]), Revision(ObjectId([1; 20])));
        assert_eq!(is_wait_short(&mut set, named).await, is_short, "{optional} {one_time}");
    }
}

#[tokio::test]
async fn the_first_publication_of_optional_sources_waits_for_a_commit() {
    let (_dir, mut set) = idle_sources().await;
    for source in &mut set.sources {
        source.listed.optional = true;
    }
    let absent = SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Permanent };
    let is_absent = RefResult::Failed(StagedError::new(Stage::Resolve, absent));
    let named = RefResult::Named(ObjectId([1; 20]), Revision(ObjectId([1; 20])));
    for (of_ref, is_short) in [(is_absent, false), (named, true)] {
        assert_eq!(is_wait_short(&mut set, of_ref.clone()).await, is_short, "{of_ref:?}");
    }
}
