//! The loop under tokio's paused clock, which jumps to the next timer.

mod garbage;
mod reports;
mod spares;

use std::sync::{Arc, Mutex};

use super::super::report::InitialState;
use super::*;
use crate::clock;
use crate::generation::{GenerationRecord, Name};
use crate::mirror;
use crate::phase::Progress;
use crate::phase::machine::{FailureLimits, Timing};
use crate::retry::Backoff;
use crate::revision::{ObjectId, Revision};
use crate::sync::Options;
use crate::telemetry::metrics::Metrics;

const S: fn(u64) -> Duration = Duration::from_secs;

/// Stands in for a worker: a remote that gets commits at given times, and a root.
struct FakeWorker {
    began: Instant,
    /// When each commit is pushed, in order.
    commits: Vec<Duration>,
    /// The duration of one attempt.
    takes: Duration,
    /// Returns true for attempts that fail, by number from 0.
    fails: Box<dyn Fn(usize) -> bool>,
    /// The error of such an attempt.
    error: Box<dyn Fn(usize) -> Error>,
    /// The attempt that publishes the current revision afresh first, and what it published.
    republishes_at: Option<usize>,
    republished: Option<Published>,
    /// How often the hooks were notified.
    notified: std::cell::Cell<usize>,
    view: View,
    /// The time and the number of commits of each publication.
    published: Vec<(Duration, usize)>,
    /// When each attempt began.
    attempts: Vec<Duration>,
    /// When each repair began, and how long one takes. One that takes any time discards the spare.
    repairs: Vec<Duration>,
    repair_takes: Duration,
    next_repair: Option<Duration>,
    /// True if an attempt that fails uses up the spare. A repair is due three seconds later.
    uses_up_spare: bool,
    lacks_spare: bool,
    /// True if each attempt drops the spare to make room.
    drops_spare: bool,
    /// When a preparation of the spare was begun after a failure.
    spares: Vec<Duration>,
    /// True if it takes as long as it may to begin one.
    spare_hangs: bool,
    /// Whether the status named the next attempt when one was begun, and how often the status had been written.
    told_before_spares: Vec<(bool, usize)>,
    /// The status, once the loop runs.
    status: Option<tokio::sync::watch::Receiver<Status>>,
    /// Returns true for attempts that fetch something, by number from 0.
    fetches: Box<dyn Fn(usize) -> bool>,
    /// True if something was fetched since garbage was last collected.
    has_fetched: bool,
    /// When garbage was collected after a failure.
    collected: Vec<Duration>,
    /// When the house was kept, and the time that each had.
    housekept: Vec<Duration>,
    housekeeping_limits: Vec<Duration>,
    /// After so many repairs the current generation is gone.
    repairs_until_loss: usize,
    current: usize,
    recorded: Vec<Status>,
    /// The number of attempts after which the token is cancelled.
    end: (usize, CancellationToken),
}

impl FakeWorker {
    fn new(commits: &[Duration], attempts: usize) -> Self {
        Self {
            began: Instant::now(),
            commits: commits.to_vec(),
            takes: Duration::from_millis(10),
            fails: Box::new(|_| false),
            error: Box::new(|_| bad_pack()),
            republishes_at: None,
            republished: None,
            notified: std::cell::Cell::new(0),
            view: View::default(),
            published: Vec::new(),
            attempts: Vec::new(),
            repairs: Vec::new(),
            repair_takes: Duration::ZERO,
            next_repair: None,
            uses_up_spare: false,
            lacks_spare: false,
            drops_spare: false,
            spares: Vec::new(),
            spare_hangs: false,
            told_before_spares: Vec::new(),
            status: None,
            fetches: Box::new(|_| false),
            has_fetched: false,
            collected: Vec::new(),
            housekept: Vec::new(),
            housekeeping_limits: Vec::new(),
            repairs_until_loss: usize::MAX,
            current: 0,
            recorded: Vec::new(),
            end: (attempts, CancellationToken::new()),
        }
    }

    /// Cancels the token when this time has passed.
    fn drain_after(&self, time: Duration) {
        let draining = self.end.1.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            draining.cancel();
        });
    }
}

fn bad_pack() -> Error {
    Error::Mirror(mirror::Error::BadPack { why: "a test".to_owned() })
}

fn record(number: usize) -> GenerationRecord {
    let now = clock::now();
    GenerationRecord {
        name: Name::new(now.wall, None),
        sources: Default::default(),
        revision: Revision(ObjectId([number as u8; 20])),
        tree: ObjectId([number as u8; 20]),
        selection_digest: String::new(),
        entries: 1,
        bytes: 1,
        lineage: None,
        published: now.wall,
        boot_id: now.boot_id,
        synced: true,
        retired: None,
    }
}

impl Work for FakeWorker {
    async fn verify_found(&mut self, _bounds: &Bounds) -> Result<Option<Published>, Error> {
        Ok(None)
    }

    async fn attempt(&mut self, _bounds: &Bounds, may_publish: bool) -> Result<Done, Error> {
        let number = self.attempts.len();
        self.attempts.push(self.began.elapsed());
        if self.attempts.len() >= self.end.0 {
            self.end.1.cancel();
        }
        tokio::time::sleep(self.takes).await;
        self.has_fetched |= (self.fetches)(number);
        if self.republishes_at == Some(number) {
            let current = record(self.current);
            self.view.current = Some(current.name.clone());
            self.view.generations = vec![current.clone()];
            self.republished = Some(Published { current, previous: None, warnings: Vec::new() });
        }
        if (self.fails)(number) {
            if self.uses_up_spare {
                self.lacks_spare = true;
                self.next_repair = Some(S(3));
            }
            return Err((self.error)(number));
        }
        let tip = self.commits.iter().filter(|at| **at <= self.began.elapsed()).count();
        if tip == self.current {
            return Ok(Done::Unchanged);
        }
        if !may_publish {
            return Ok(Done::Postponed);
        }
        self.current = tip;
        self.published.push((self.began.elapsed(), tip));
        let current = record(tip);
        self.view.current = Some(current.name.clone());
        self.view.generations.insert(0, current.clone());
        self.view.ready = true;
        Ok(Done::Published(Box::new(Published { current, previous: None, warnings: Vec::new() })))
    }

    async fn repair(&mut self, _bounds: &Bounds) -> Result<Option<Published>, Error> {
        self.repairs.push(self.began.elapsed());
        self.next_repair = None;
        if !self.repair_takes.is_zero() {
            tokio::time::sleep(self.repair_takes).await;
            self.lacks_spare = true;
        }
        if self.repairs.len() > self.repairs_until_loss {
            self.view.current = None;
        }
        Ok(None)
    }

    async fn housekeep(&mut self, bounds: &Bounds) {
        self.housekept.push(self.began.elapsed());
        self.housekeeping_limits.push(bounds.deadline - Instant::now());
        self.lacks_spare = false;
        self.has_fetched = false;
    }

    async fn collect_garbage(&mut self, _bounds: &Bounds) {
        self.collected.push(self.began.elapsed());
        self.has_fetched = false;
    }

    fn has_fetched(&self) -> bool {
        self.has_fetched
    }

    async fn prepare_spare(&mut self, bounds: &Bounds) {
        self.spares.push(self.began.elapsed());
        let next = self.status.as_ref().and_then(|status| status.borrow().next_attempt);
        self.told_before_spares.push((next.is_some(), self.recorded.len()));
        if self.spare_hangs {
            tokio::time::sleep_until(bounds.deadline).await;
        }
    }

    fn needs_housekeeping(&self) -> bool {
        self.lacks_spare
    }

    fn dropped_spare(&self) -> bool {
        self.drops_spare
    }

    fn take_republished(&mut self) -> Option<Published> {
        self.republished.take()
    }

    fn notify_hooks(&self) {
        self.notified.set(self.notified.get() + 1);
    }

    async fn record(&mut self, status: Status) {
        self.recorded.push(status);
    }

    fn next_repair(&self) -> Option<Duration> {
        self.next_repair
    }

    fn view(&self) -> &View {
        &self.view
    }

    async fn finish(&mut self, _bounds: &Bounds) {}

    fn stop(&mut self) {}
}

fn options() -> Options {
    let backoff = Backoff { first: S(10), ceiling: S(100) };
    Options {
        ref_name: "main".to_owned(),
        root: "/root".into(),
        limits: Default::default(),
        symlinks: Default::default(),
        path: None,
        sparse_file: None,
        group_write: false,
        spare: false,
        pace: Timing {
            period: S(10),
            init_period: S(10),
            min_interval: S(5),
            backoff,
            init_backoff: backoff,
            jitter: 0.0,
        },
        failure_limits: FailureLimits { failures: None, init_failures: None },
        sync_timeout: S(120),
        one_time: false,
        park: false,
        every_failure: false,
        touch_file: None,
        error_file: None,
    }
}

struct Outcome {
    end: End,
    status: Status,
    /// The stages that the status showed while attempts were running.
    stages: Vec<String>,
}

/// Runs the loop with triggers at given times.
async fn drive(worker: &mut FakeWorker, options: Options, asks: &[(Duration, Trigger)]) -> Outcome {
    drive_within_min_interval(worker, options, asks, None).await
}

/// The same after a restart within the minimum interval, of which this much is `left`.
async fn drive_within_min_interval(
    worker: &mut FakeWorker,
    options: Options,
    asks: &[(Duration, Trigger)],
    left: Option<Duration>,
) -> Outcome {
    let (send, mut triggers) = mpsc::channel(1);
    let metrics = Metrics::default();
    let trigger_sender = crate::sync::TriggerSender { send, metrics: metrics.clone() };
    let asks = asks.to_vec();
    tokio::spawn(async move {
        let began = Instant::now();
        for (at, trigger) in asks {
            tokio::time::sleep_until(began + at).await;
            trigger_sender.request(trigger);
        }
        std::future::pending::<()>().await; // the channel stays open
    });
    let draining = worker.end.1.clone();
    let machine = Machine::new(options.pace, options.failure_limits, Duration::ZERO, left);
    let timeout = options.sync_timeout;
    let one_time = options.one_time;
    let park = options.park;
    let (sender, status) = tokio::sync::watch::channel(Status::default());
    let seen = InitialState { remote: "remote".to_owned(), before: None, received: Default::default() };
    let mut report = Report::new(options.into(), seen, metrics, &worker.view, sender);
    let mut shown = status.clone();
    let stages = Arc::<Mutex<Vec<String>>>::default();
    let seen_stages = Arc::clone(&stages);
    tokio::spawn(async move {
        while shown.changed().await.is_ok() {
            let stage = shown.borrow_and_update().progress.as_ref().map(|progress| progress.stage.clone());
            seen_stages.lock().unwrap().extend(stage);
        }
    });
    worker.status = Some(status.clone());
    worker.began = Instant::now();
    let origin = worker.began;
    let triggers = &mut triggers;
    let succeeded = false;
    let end = Drive {
        work: worker,
        report: &mut report,
        machine,
        triggers,
        attempts: AttemptReporter::default(),
        draining,
        timeout,
        one_time,
        park,
        origin,
        succeeded,
        lacked_room: false,
        recorded: origin,
        parked: None,
    }
    .run()
    .await;
    let status = status.borrow().clone();
    let stages = stages.lock().unwrap().clone();
    Outcome { end, status, stages }
}

fn seconds(times: &[Duration]) -> Vec<u64> {
    times.iter().map(Duration::as_secs).collect()
}

#[tokio::test(start_paused = true)]
async fn attempts_follow_the_period() {
    let mut worker = FakeWorker::new(&[S(0)], 5);
    let ran = drive(&mut worker, options(), &[]).await;
    assert!(matches!(ran.end, End::Drained));
    assert_eq!(seconds(&worker.attempts), [0, 10, 20, 30, 40]);
    assert_eq!(worker.published.len(), 1);
    let ended: Vec<bool> = worker.recorded.iter().map(|status| status.ended.is_some()).collect();
    assert_eq!(
        ended,
        [false, true],
        "the publication, and the end: an attempt that changed nothing writes nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_fifty_commits_makes_two_publications_and_the_newest_wins() {
    let burst: Vec<Duration> = (0..50).map(|n| S(100) + Duration::from_millis(n * 50)).collect();
    let mut worker = FakeWorker::new(&burst, 40);
    let asks: Vec<_> = burst.iter().map(|at| (*at + Duration::from_millis(1), Trigger::Webhook)).collect();
    drive(&mut worker, options(), &asks).await;
    let tips: Vec<usize> = worker.published.iter().map(|(_, tip)| *tip).collect();
    assert_eq!(tips, [1, 50], "the first at once, then the newest");
    assert_eq!(worker.published[1].0.as_secs() - worker.published[0].0.as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_remote_is_polled_each_period_while_a_revision_is_postponed() {
    let mut worker = FakeWorker::new(&[S(0), S(3)], 5);
    let pace = Timing { min_interval: S(25), ..options().pace };
    drive(&mut worker, Options { pace, ..options() }, &[]).await;
    assert_eq!(seconds(&worker.attempts), [0, 10, 20, 25, 35]);
    assert_eq!(worker.published.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), [0, 25]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_requests_while_an_attempt_runs_make_one_more() {
    let mut worker = FakeWorker::new(&[S(0)], 3);
    worker.takes = S(2);
    let asks: Vec<_> = (0..1_000)
        .map(|n| (Duration::from_millis(n), [Trigger::Webhook, Trigger::Signal][n as usize % 2]))
        .collect();
    drive(&mut worker, options(), &asks).await;
    assert_eq!(seconds(&worker.attempts), [0, 2, 14]);
}

#[tokio::test(start_paused = true)]
async fn a_trigger_starts_an_attempt_at_once() {
    let mut worker = FakeWorker::new(&[S(0), S(13)], 4);
    let ran = drive(&mut worker, options(), &[(S(14), Trigger::Signal)]).await;
    assert_eq!(seconds(&worker.attempts), [0, 10, 14, 24]);
    assert_eq!(worker.published.last().map(|(at, _)| at.as_secs()), Some(14));
    assert_eq!(ran.status.consecutive_failures, 0);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_are_recorded_once_and_so_is_the_recovery() {
    let mut worker = FakeWorker::new(&[S(0)], 8);
    worker.fails = Box::new(|number| (1..6).contains(&number));
    let ran = drive(&mut worker, options(), &[]).await;
    assert_eq!(seconds(&worker.attempts), [0, 10, 20, 40, 80, 160, 260, 270]);
    let recorded: Vec<u64> = worker.recorded.iter().map(|status| status.consecutive_failures).collect();
    assert_eq!(recorded, [0, 1, 0, 0], "the publication, the first failure, the recovery, the end");
    assert!(ran.status.ready, "an outage of the remote leaves the sync ready");
    assert_eq!(
        ran.status.last_failure.unwrap().error.unwrap(),
        "the remote sent a pack that cannot be indexed: a test"
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_loop_records_its_status_every_five_minutes() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    drive(&mut worker, options(), &[]).await;
    assert_eq!(worker.recorded.len(), 5, "the publication, every five minutes of 990 s, the end");
    let whole = |status: &Status| status.recorded.is_some() && status.last_success.is_some();
    assert!(worker.recorded.iter().all(whole), "{:?}", worker.recorded);
}

#[tokio::test(start_paused = true)]
async fn a_long_attempt_shows_its_progress_and_a_short_one_does_not() {
    let mut worker = FakeWorker::new(&[S(0)], 2);
    assert_eq!(drive(&mut worker, options(), &[]).await.stages, Vec::<String>::new());
    let mut worker = FakeWorker::new(&[S(0)], 1);
    worker.takes = S(5);
    let ran = drive(&mut worker, options(), &[]).await;
    assert!(ran.stages.len() > 2 && ran.stages.iter().all(|stage| stage == "repair"), "{:?}", ran.stages);
    assert_eq!(ran.status.progress, None, "no attempt is running");
}

#[tokio::test(start_paused = true)]
async fn the_failure_limit_ends_the_sync() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    worker.fails = Box::new(|_| true);
    let failure_limits = FailureLimits { failures: None, init_failures: Some(3) };
    let ran = drive(&mut worker, Options { failure_limits, ..options() }, &[]).await;
    assert!(matches!(ran.end, End::GaveUp(_)));
    assert_eq!(worker.attempts.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_time_ends_after_the_first_success() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    worker.fails = Box::new(|number| number < 2);
    let ran = drive(&mut worker, Options { one_time: true, ..options() }, &[]).await;
    assert!(matches!(ran.end, End::Done));
    assert_eq!(worker.attempts.len(), 3);
    assert_eq!(ran.status.alive_until_ms, u64::MAX, "a long hook is no loop that hangs");
}

#[tokio::test(start_paused = true)]
async fn a_parked_sync_makes_no_attempts_but_repairs_every_period() {
    let mut worker = FakeWorker::new(&[S(0), S(50)], 100);
    worker.fails = Box::new(|number| number < 1);
    worker.next_repair = Some(S(3));
    worker.drain_after(S(1_000));
    let ran = drive(&mut worker, Options { park: true, ..options() }, &[(S(60), Trigger::Signal)]).await;
    assert!(matches!(ran.end, End::Drained));
    assert_eq!(seconds(&worker.attempts), [0, 10], "until the first success");
    assert_eq!(seconds(&worker.repairs[..4]), [3, 20, 30, 40], "then once per period");
    assert!(ran.status.is_alive());
    // Each is a success, and so is the record of it in the root.
    let successes: Vec<_> = worker.recorded.iter().map(|status| status.last_success).collect();
    assert_eq!(successes.len(), 6, "a failure, a success, three times 300 s later, the end");
    assert!(successes.is_sorted_by(|one, next| one < next), "{successes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_parked_root_without_its_commit_is_not_a_success() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    worker.repairs_until_loss = 0;
    worker.drain_after(S(1_000));
    let ran = drive(&mut worker, Options { park: true, ..options() }, &[]).await;
    assert!(worker.repairs.len() > 10);
    assert_eq!(ran.status.last_success, worker.recorded[0].last_success, "only that of the attempt");
}

#[tokio::test(start_paused = true)]
async fn a_postponed_revision_is_published_before_parking() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    worker.current = 7;
    worker.view.current = Some(record(7).name);
    worker.drain_after(S(1_000));
    drive_within_min_interval(&mut worker, Options { park: true, ..options() }, &[], Some(S(4))).await;
    assert_eq!(seconds(&worker.attempts), [0, 4]);
    assert_eq!(worker.published.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repair_runs_when_a_grace_period_ends_between_attempts() {
    let mut worker = FakeWorker::new(&[S(0)], 2);
    worker.next_repair = Some(S(3));
    drive(&mut worker, options(), &[]).await;
    assert_eq!(seconds(&worker.repairs), [3]);
    assert_eq!(seconds(&worker.attempts), [0, 10]);
}

#[tokio::test(start_paused = true)]
async fn draining_ends_a_pause_at_once() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    worker.drain_after(S(5));
    let began = Instant::now();
    let ran = drive(&mut worker, options(), &[]).await;
    assert!(matches!(ran.end, End::Drained));
    assert_eq!(began.elapsed(), S(5));
}

#[test]
fn what_is_written_to_the_root_shows_nothing_that_is_running() {
    let (sender, _status) = tokio::sync::watch::channel(Status::default());
    let seen = InitialState { remote: "remote".to_owned(), before: None, received: Default::default() };
    let view = View::default();
    let report = Report::new(options().into(), seen, Metrics::default(), &view, sender.clone());
    let progress = |stage: &str| Progress {
        since: clock::now().wall,
        stage: stage.to_owned(),
        what: "a test".to_owned(),
        fetched_bytes: 0,
    };
    sender.send_modify(|status| {
        status.progress = Some(progress("fetch"));
        status.delivery_progress = Some(progress("apply"));
    });
    let written = report.status(&view);
    assert_eq!((written.progress, written.delivery_progress), (None, None));
    let shown = sender.borrow().clone();
    assert!(shown.progress.is_some() && shown.delivery_progress.is_some(), "a running process shows it");
}
