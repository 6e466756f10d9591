use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cluster::{self, Kind, Operation, Verb};
use crate::configmap::apply::{Desired, DesiredConfigMap, ExtraKeys, Owner, VersionKey};
use crate::configmap::{ClusterNamespace, DesiredData};
use crate::deliver::{LoopTiming, Options, Relation};
use crate::retry::{Backoff, ErrorClass};
use crate::revision::{ObjectId, Revision};
use crate::sources::{DeliveryInput, Named, Recorded};
use crate::telemetry::metrics::{ErrorLabel, TargetLabel};

/// A remote that always names the same revision, which has a ConfigMap for an unknown cluster.
struct Elsewhere;

impl DeliveryInput for Elsewhere {
    async fn resolve(&self) -> Result<Named, SourceError> {
        Ok(Revision(ObjectId([1; 20])).into())
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        let Named { revision, sources } = named;
        let wanted = DesiredConfigMap {
            data: DesiredData::new(BTreeMap::new()),
            digest: String::new(),
            fed: true,
            left_out: false,
            versioned: false,
            stamp: None,
            held: None,
        };
        let place = ClusterNamespace { cluster: "nowhere".into(), namespace: "ci".into() };
        let config_maps = BTreeMap::from([(place, BTreeMap::from([("config".to_owned(), wanted)]))]);
        let shape = ExtraKeys { version_key: VersionKey::Changed, stamp_key: None };
        Ok(Arc::new(Desired { revision, sources, rules: "rules".into(), shape, config_maps }))
    }

    async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
        Ok(Relation::Ahead)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_for_good_stays_a_failure_at_polls_that_find_nothing_new() {
    let hour = Duration::from_secs(3_600);
    let clusters = Clusters::default();
    let loop_timing = LoopTiming {
        period: Some(Duration::from_millis(10)),
        min_interval: Duration::ZERO,
        resync: hour,
        denied: hour,
        backoff: Backoff { first: hour, ceiling: hour },
        jitter: 0.0,
        limit: hour,
        once: false,
    };
    let (mut reporter, shown) = without_root();
    let metrics = reporter.metrics.clone();
    let ending = CancellationToken::new();
    let (_ask, mut triggers) = mpsc::channel(1);
    let mut polls = 0;
    let mut failures = Vec::new();
    let on_event = |event: LoopEvent<'_>| {
        reporter.report(&event);
        polls += u32::from(matches!(event, LoopEvent::Unchanged { .. }));
        if matches!(event, LoopEvent::Waits(_)) {
            failures.push(shown.borrow().consecutive_failures);
        }
        if polls == 3 {
            ending.cancel();
        }
    };
    let options = Options::new(Owner::new("team").unwrap());
    let input = Arc::new(Elsewhere);
    deliver::follow(input, &clusters, &options, &loop_timing, &mut triggers, &ending, on_event).await;
    assert_eq!(failures, [1, 1, 1, 1]);
    let status = shown.borrow();
    assert!(status.last_success.is_none() && status.failing_since.is_some(), "{status:?}");
    let label = |cluster: &str| TargetLabel { cluster: cluster.to_owned(), outcome: "failed" };
    assert_eq!(metrics.applied.get_or_create(&label("unknown")).get(), 1);
    assert!(metrics.applied.get(&label("nowhere")).is_none(), "an author of commits chose that name");
}

fn without_root() -> (DeliveryReporter, watch::Receiver<Status>) {
    let (beside, shown) = with_root();
    let polls = Polls::new(Received::default(), Duration::from_secs(120));
    (DeliveryReporter { polls: Some(polls), ..beside }, shown)
}

fn with_root() -> (DeliveryReporter, watch::Receiver<Status>) {
    let (status, shown) = watch::channel(Status::default());
    let clusters = Clusters::default();
    (DeliveryReporter::with_root(status, Metrics::default(), LedgerKeeper::default(), &clusters), shown)
}

fn down() -> SourceError {
    SourceError { what: "no route to host".into(), hints: Vec::new(), class: ErrorClass::Transient }
}

#[test]
fn polls_that_no_source_answers_are_no_success_without_a_root() {
    let (mut reporter, shown) = without_root();
    let metrics = reporter.metrics.clone();
    let mut poll = |outcome: Result<bool, SourceError>, failures: &[(&'static str, ErrorClass)]| {
        reporter.report(&LoopEvent::Begins(Trigger::Timer));
        let mut found = PollState::new();
        found.outcome = outcome;
        found.failures = failures.to_vec();
        reporter.polled(found);
        reporter.report(&LoopEvent::Unchanged { success: true });
        let status = shown.borrow();
        (status.consecutive_failures, status.last_success.is_some())
    };
    assert_eq!(poll(Ok(false), &[]), (0, false), "polls are still running");
    assert_eq!(poll(Err(down()), &[("resolve", ErrorClass::Transient)]), (1, false));
    assert_eq!(poll(Err(down()), &[]), (2, false), "it is paused");
    assert_eq!(poll(Ok(true), &[]), (0, true));
    let errors = |stage| metrics.errors.get_or_create(&ErrorLabel { stage, class: "transient" }).get();
    assert_eq!((errors("resolve"), errors("apply")), (1, 1), "a failure is counted once");
    assert_eq!(metrics.triggers.get_or_create(&SourceLabel { source: "timer" }).get(), 4);
}

#[test]
fn the_metrics_show_that_an_attempt_runs_unless_attempts_are_the_roots() {
    for ((mut reporter, _shown), has_root) in [(without_root(), false), (with_root(), true)] {
        let metrics = reporter.metrics.clone();
        let known = || (metrics.attempt_start.get().is_some(), metrics.phase_changed.get().is_some());
        reporter.report(&LoopEvent::Begins(Trigger::Timer));
        assert_eq!(known(), (!has_root, !has_root));
        reporter.report(&LoopEvent::Failed(&down()));
        assert_eq!(known(), (false, !has_root), "it has ended");
    }
}

#[test]
fn a_failure_that_a_poll_counted_is_not_counted_again_if_a_step_is_shown_before_the_attempt_ends() {
    let (mut reporter, _shown) = without_root();
    let metrics = reporter.metrics.clone();
    let new_failures = RefCell::new(Vec::new());
    let take_state = || {
        let mut found = PollState::new();
        found.outcome = Err(down());
        found.failures = new_failures.take();
        found
    };
    let answers = || (Vec::new(), LastAnswer::not_yet());
    reporter.record(&LoopEvent::Begins(Trigger::Timer), take_state, answers);
    new_failures.borrow_mut().push(("resolve", ErrorClass::Transient));
    reporter.record(&LoopEvent::Runs(Step::Resolve), take_state, answers);
    assert_eq!(new_failures.borrow().len(), 1, "it belongs to how the attempt ends");
    reporter.record(&LoopEvent::Failed(&down()), take_state, answers);
    let errors = |stage| metrics.errors.get_or_create(&ErrorLabel { stage, class: "transient" }).get();
    assert_eq!((errors("resolve"), errors("apply")), (1, 0));
}

#[test]
fn what_a_remote_answers_during_a_delivery_shows_before_that_ends() {
    let (mut reporter, shown) = without_root();
    let answer = LastAnswer { at: Some(Timestamp::now()), ..LastAnswer::not_yet() };
    reporter.record(&LoopEvent::Begins(Trigger::Timer), PollState::new, || panic!("no delivery runs"));
    assert_eq!(shown.borrow().last_answer.at, None);
    reporter.record(&LoopEvent::Runs(Step::Plan), || panic!("it has not ended"), || (Vec::new(), answer));
    assert_eq!(shown.borrow().last_answer, answer);
}

#[test]
fn deliveries_beside_a_root_that_reach_no_cluster_are_counted() {
    let (mut reporter, shown) = with_root();
    let failures = reporter.metrics.delivery_failures.clone();
    let mut deliver = |event: LoopEvent<'_>| {
        reporter.report(&LoopEvent::Begins(Trigger::Delivery));
        reporter.report(&event);
        failures.get()
    };
    assert_eq!((deliver(LoopEvent::Failed(&down())), deliver(LoopEvent::Failed(&down()))), (1, 2));
    assert_eq!(deliver(LoopEvent::Unchanged { success: false }), 0);
    assert_eq!(shown.borrow().consecutive_failures, 0, "attempts are the root's");
}

/// A request of the cluster `a` that the server does not accept our credentials for.
fn unauthorized(namespace: &str) -> cluster::Error {
    let [namespace, name] = [namespace, "treeswap-set-team"].map(str::to_owned);
    let operation = Operation { verb: Verb::Get, kind: Kind::ConfigMap, namespace, name };
    let why = cluster::Failure::Unauthorized;
    cluster::Error { cluster: "kube-a".to_owned(), operation: Box::new(operation), why }
}

/// A target that failed by it.
fn failed(namespace: &str) -> Target {
    let error = unauthorized(namespace);
    Target::failed("a", namespace, "jobs", &human::one_line(&error), error.hints()).caused_by(&error)
}

/// What is logged of a delivery that failed, in lines.
fn logged(targets: Vec<Target>, failure: &str) -> Vec<String> {
    let report = Report {
        revision: Revision(ObjectId([1; 20])),
        sources: BTreeMap::new(),
        targets,
        notes: Vec::new(),
        failures: vec![failure.to_owned()],
        unanswered: Vec::new(),
        unfinished: BTreeMap::new(),
    };
    let mut log = Vec::new();
    for (lines, hints) in failures_with_hints(&report) {
        log.extend(lines);
        log.extend(hints.into_iter().map(|hint| format!("hint: {hint}")));
    }
    log
}

#[test]
fn a_hint_follows_the_lines_of_its_cause_and_a_cluster_that_does_not_answer_is_logged_once() {
    let denied = |name: &str| Target::failed("b", "ci", name, "no right", vec!["grant it".to_owned()]);
    let ended = "cluster a: the run ended before everything was done";
    let log = logged(vec![failed("ci-1"), failed("ci-2"), denied("x"), denied("y")], ended);
    assert_eq!(log.len(), 6, "{log:#?}");
    assert_eq!(log[0], ended);
    assert!(log[1].starts_with("a/ci-1/jobs (and 1 more): failed: cluster kube-a: "), "{log:#?}");
    assert!(log[2].starts_with("hint: ") && log[2].contains("expired"), "{log:#?}");
    assert_eq!(log[3..], ["b/ci/x: failed: no right", "b/ci/y: failed: no right", "hint: grant it"]);
}

#[test]
fn of_many_failures_the_cause_that_hides_others_is_logged_first_and_no_hint_without_its_line() {
    let denied = |at: usize| {
        let (name, why) = (format!("map-{at}"), format!("no right {at}"));
        Target::failed("0", "ci", &name, &why, vec![format!("grant {at}")])
    };
    let mut targets: Vec<Target> = (0..MAX_LISTED + 20).map(denied).collect();
    targets.push(failed("ci"));
    let log = logged(targets, &human::one_line(&unauthorized("other")));
    assert!(log[0].starts_with("a/ci/jobs: failed: cluster kube-a: "), "{log:#?}");
    let hints = log.iter().filter(|line| line.starts_with("hint: ")).count();
    assert_eq!((log.len(), hints), (2 * MAX_LISTED, MAX_LISTED), "{log:#?}");
    assert_eq!(log.last().unwrap(), &format!("hint: grant {}", MAX_LISTED - 2));
}

#[test]
fn the_step_of_a_delivery_that_takes_long_is_shown_until_it_ends() {
    for ((mut reporter, shown), has_root) in [(without_root(), false), (with_root(), true)] {
        let stages = || {
            let status = shown.borrow();
            let stage = |progress: Option<&Progress>| progress.map(|progress| progress.stage.clone());
            (stage(status.progress.as_ref()), stage(status.delivery_progress.as_ref()))
        };
        reporter.report(&LoopEvent::Begins(Trigger::Timer));
        assert_eq!(stages(), (None, None));
        reporter.report(&LoopEvent::Runs(Step::Plan));
        let plan = Some("plan".to_owned());
        assert_eq!(stages(), if has_root { (None, plan) } else { (plan, None) });
        reporter.report(&LoopEvent::Failed(&down()));
        assert_eq!(stages(), (None, None));
    }
}
