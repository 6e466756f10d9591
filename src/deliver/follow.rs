//! Delivers every new revision, for as long as the process runs.
//!
//! The remote is polled every period; a trigger only shortens the wait. Once every target of a revision has its
//! definite result, nothing is read until the resync, which reads everything and repairs what other writers changed.
//! Transient failures are tried again with backoff, and polls go on meanwhile, so that a cluster that fails does not
//! delay a newer revision of the others. What an operator has to repair in a cluster (a missing right, a ConfigMap of
//! another owner) is tried again every minute or so, as the cluster does not notify us of the repair. Two deliveries
//! start at least `min_interval` apart, so commits in quick succession become one delivery of the newest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, sleep};
use tokio_util::sync::CancellationToken;

use super::step::{CurrentStep, Step};
use super::{Directory, Options, Report, deliver_in_steps};
use crate::phase::Trigger;
use crate::retry::{Backoff, jittered, random_fraction};
use crate::revision::Revision;
use crate::sources::{DeliveryInput, SourceError};

/// Jitter of the resync, so that a fleet that was started at once does not resync at once.
const SPREAD: f64 = 0.2;

/// How often it is reported that an attempt is still running.
const PROGRESS: Duration = Duration::from_millis(500);

/// The intervals and limits of the loop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoopTiming {
    /// The polling period; `None` if another loop polls and triggers this one.
    pub period: Option<Duration>,
    /// The least time between the starts of two deliveries; the newest revision wins.
    pub min_interval: Duration,
    /// The time between two deliveries that read everything, a fifth of it more or less.
    pub resync: Duration,
    /// The resync interval while something is forbidden or refused.
    pub denied: Duration,
    /// The wait after failures.
    pub backoff: Backoff,
    /// Each wait varies by up to this fraction of itself.
    pub jitter: f64,
    /// The longest that one delivery may take. Targets that are not done by then are skipped, reported and tried again.
    pub limit: Duration,
    /// Return after the first delivery.
    pub once: bool,
}

/// What the loop reports.
#[derive(Debug)]
pub enum LoopEvent<'a> {
    /// An attempt begins: the remote is asked, and what is new is delivered.
    Begins(Trigger),
    /// The attempt is still running, and is in this step.
    Runs(Step),
    /// There is nothing new since the last delivery.
    Unchanged {
        /// True if the last delivery was a success.
        success: bool,
    },
    /// A delivery ended.
    Delivered(&'a Report),
    /// The remote did not answer, or its revision could not be planned. Nothing was written.
    Failed(&'a SourceError),
    /// The loop waits this long, unless it is triggered.
    Waits(Duration),
    /// The process shuts down while a trigger is pending.
    Unanswered,
}

/// The loop, with what it remembers between attempts.
struct DeliveryLoop<'a, S, D> {
    input: Arc<S>,
    clusters: &'a D,
    options: &'a Options,
    timing: &'a LoopTiming,
    draining: &'a CancellationToken,
    /// The revision that was delivered last, and whether that was a success.
    last_delivered: Option<(Revision, bool)>,
    /// When that revision is to be delivered again.
    next_resync: Option<Instant>,
    /// When the last delivery started.
    last_start: Option<Instant>,
    /// Consecutive deliveries with a failure that may go away by itself.
    failures: u32,
    /// Consecutive attempts in which the remote failed.
    remote_failures: u32,
    /// The step that the running attempt is in.
    step: CurrentStep,
}

/// The result of one attempt.
enum Attempt {
    /// The ref names the revision that was delivered last.
    Unchanged {
        /// True if that delivery was a success.
        success: bool,
    },
    /// The delivery, or why there was none.
    Tried(Result<Report, SourceError>),
}

impl<'a, S: DeliveryInput, D: Directory> DeliveryLoop<'a, S, D> {
    fn new(
        input: Arc<S>,
        clusters: &'a D,
        options: &'a Options,
        timing: &'a LoopTiming,
        draining: &'a CancellationToken,
    ) -> Self {
        Self {
            input,
            clusters,
            options,
            timing,
            draining,
            last_delivered: None,
            next_resync: None,
            last_start: None,
            failures: 0,
            remote_failures: 0,
            step: CurrentStep::default(),
        }
    }

    /// Returns how long to wait before the next attempt, unless there is a trigger.
    fn wait(&self) -> Duration {
        let until_resync = match self.next_resync {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => self.timing.resync,
        };
        let wait = match (self.remote_failures, self.timing.period) {
            (0, Some(period)) => self.with_jitter(period).min(until_resync),
            (0, None) => until_resync,
            (failures, _) => self.with_jitter(self.timing.backoff.delay(failures)),
        };
        wait.max(self.until_next_start())
    }

    /// Returns a wait, longer or shorter by its jitter.
    fn with_jitter(&self, wait: Duration) -> Duration {
        jittered(wait, self.timing.jitter, random_fraction())
    }

    /// Returns the rest of the least time between two deliveries.
    fn until_next_start(&self) -> Duration {
        let next = self.last_start.map(|begun| begun + self.timing.min_interval);
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Remembers a delivery that reached the clusters.
    fn remember(&mut self, report: &Report) {
        let LoopTiming { resync, denied, backoff, .. } = *self.timing;
        self.remote_failures = 0;
        self.last_delivered = Some((report.revision, report.is_success()));
        let next = if report.is_to_be_repeated() {
            self.failures = self.failures.saturating_add(1);
            // It may also be a missing right, and nothing notifies us when that is granted: the wait is capped.
            self.with_jitter(backoff.delay(self.failures).min(denied))
        } else {
            self.failures = 0;
            let next = if report.is_success() { resync } else { denied.min(resync) };
            jittered(next, SPREAD, random_fraction())
        };
        self.next_resync = Some(Instant::now() + next);
    }

    /// Asks the remote, and delivers if its revision is new, the resync is due, or a trigger comes while something
    /// fails. `None` at shutdown.
    async fn attempt(&mut self, trigger: Trigger) -> Option<Attempt> {
        self.step.begin(Step::Resolve);
        let named = tokio::select! {
            () = self.draining.cancelled() => return None,
            named = self.input.resolve() => named,
        };
        let named = match named {
            Ok(named) => named,
            Err(error) => {
                self.remote_failures = self.remote_failures.saturating_add(1);
                return Some(Attempt::Tried(Err(error)));
            }
        };
        let now = Instant::now();
        let is_due =
            self.next_resync.is_none_or(|at| now >= at) || (self.failures > 0 && trigger != Trigger::Timer);
        if let Some((revision, success)) = self.last_delivered
            && revision == named.revision
            && !is_due
        {
            self.remote_failures = 0;
            return Some(Attempt::Unchanged { success });
        }
        self.last_start = Some(now);
        let done = self.deliver().await;
        match &done {
            Ok(report) => self.remember(report),
            Err(_) => {
                self.remote_failures = self.remote_failures.saturating_add(1);
                self.last_delivered = None;
            }
        }
        Some(Attempt::Tried(done))
    }

    /// Delivers, and cancels the delivery when its time is over.
    async fn deliver(&self) -> Result<Report, SourceError> {
        let cancel = self.draining.child_token();
        let input = Arc::clone(&self.input);
        let delivery = deliver_in_steps(input, self.clusters, self.options, &cancel, &self.step);
        let mut delivery = std::pin::pin!(delivery);
        tokio::select! {
            done = &mut delivery => done,
            () = sleep(self.timing.limit) => {
                cancel.cancel();
                delivery.await
            }
        }
    }
}

/// Runs until shutdown; with `once` until the first delivery, whose result it returns.
pub async fn follow<S: DeliveryInput>(
    input: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    timing: &LoopTiming,
    triggers: &mut mpsc::Receiver<Trigger>,
    draining: &CancellationToken,
    mut on_event: impl FnMut(LoopEvent<'_>),
) -> Option<Result<Report, SourceError>> {
    let mut deliveries = DeliveryLoop::new(input, clusters, options, timing, draining);
    let step = deliveries.step.clone();
    let mut trigger = Trigger::StartUp;
    // A trigger has been received whose attempt has not begun.
    let mut pending = false;
    while !draining.is_cancelled() {
        pending = false;
        on_event(LoopEvent::Begins(trigger));
        let attempt = deliveries.attempt(trigger);
        let done = with_progress(attempt, || on_event(LoopEvent::Runs(step.get()))).await;
        match &done {
            None => break,
            Some(Attempt::Unchanged { success }) => on_event(LoopEvent::Unchanged { success: *success }),
            Some(Attempt::Tried(Ok(report))) => on_event(LoopEvent::Delivered(report)),
            Some(Attempt::Tried(Err(error))) => on_event(LoopEvent::Failed(error)),
        }
        if let Some(Attempt::Tried(done)) = done
            && timing.once
        {
            return Some(done);
        }
        let wait = deliveries.wait();
        on_event(LoopEvent::Waits(wait));
        trigger = tokio::select! {
            () = draining.cancelled() => break,
            Some(trigger) = triggers.recv() => trigger,
            () = sleep(wait) => Trigger::Timer,
        };
        pending = trigger != Trigger::Timer;
        let rest = deliveries.until_next_start();
        if !rest.is_zero() {
            on_event(LoopEvent::Waits(rest));
            tokio::select! {
                () = draining.cancelled() => {}
                () = sleep(rest) => {}
            }
        }
    }
    if pending || triggers.try_recv().is_ok() {
        on_event(LoopEvent::Unanswered);
    }
    None
}

/// Waits for an attempt, and calls `on_progress` every [`PROGRESS`] meanwhile.
async fn with_progress<T>(attempt: impl Future<Output = T>, mut on_progress: impl FnMut()) -> T {
    let mut attempt = std::pin::pin!(attempt);
    let mut progress = interval_at(Instant::now() + PROGRESS, PROGRESS);
    loop {
        tokio::select! {
            biased;
            done = &mut attempt => return done,
            _ = progress.tick() => on_progress(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Remote, desired, options};
    use super::*;
    use crate::cluster::Clusters;
    use crate::revision::Relation;

    /// A remote whose revision asks for nothing.
    fn remote() -> Remote {
        Remote::new(Ok(Relation::Ahead))
    }

    const HOUR: Duration = Duration::from_secs(3_600);
    const SECOND: Duration = Duration::from_secs(1);

    fn slow() -> LoopTiming {
        LoopTiming {
            period: Some(HOUR * 2),
            min_interval: HOUR,
            resync: HOUR * 2,
            denied: HOUR,
            backoff: Backoff { first: HOUR, ceiling: HOUR },
            jitter: 0.0,
            limit: HOUR,
            once: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_attempt_never_comes_later_than_the_loop_says() {
        let timing = LoopTiming { period: Some(10 * SECOND), min_interval: 300 * SECOND, ..slow() };
        let (ask, mut triggers) = mpsc::channel(1);
        let draining = CancellationToken::new();
        let stop = draining.clone();
        tokio::spawn(async move {
            sleep(100 * SECOND).await;
            ask.send(Trigger::Webhook).await.unwrap();
            sleep(300 * SECOND).await;
            stop.cancel();
        });
        let start = Instant::now();
        let mut next = start;
        let mut begun = Vec::new();
        let on_event = |event: LoopEvent<'_>| match event {
            LoopEvent::Waits(wait) => next = Instant::now() + wait,
            LoopEvent::Begins(_) => {
                assert!(Instant::now() < next + SECOND, "{:?} late", next.elapsed());
                begun.push(start.elapsed().as_secs());
            }
            _ => {}
        };
        let (options, clusters) = (options(), Clusters::default());
        follow(Arc::new(remote()), &clusters, &options, &timing, &mut triggers, &draining, on_event).await;
        assert!(begun.len() > 2 && begun[..2] == [0, 300], "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_takes_long_is_reported_while_it_is_computed() {
        let draining = CancellationToken::new();
        let (_ask, mut triggers) = mpsc::channel(1);
        let mut steps = Vec::new();
        let on_event = |event: LoopEvent<'_>| match event {
            LoopEvent::Runs(step) => steps.push(step),
            LoopEvent::Waits(_) => draining.cancel(),
            _ => {}
        };
        let (options, clusters) = (options(), Clusters::default());
        let remote = Remote { plan_takes: 2 * SECOND, ..remote() };
        follow(Arc::new(remote), &clusters, &options, &slow(), &mut triggers, &draining, on_event).await;
        assert!(steps.len() >= 3 && steps.iter().all(|step| *step == Step::Plan), "{steps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn polls_go_on_while_a_delivery_that_failed_waits_for_its_next_try() {
        let backoff = Backoff { first: 60 * SECOND, ceiling: HOUR };
        let period = Some(10 * SECOND);
        let timing = LoopTiming { period, min_interval: Duration::ZERO, backoff, ..slow() };
        let failure = "cluster gone: it is unreachable".to_owned();
        let failed = Report { failures: vec![failure], ..Report::new(&desired()) };
        let (options, clusters, draining) = (options(), Clusters::default(), CancellationToken::new());
        let mut deliveries = DeliveryLoop::new(Arc::new(remote()), &clusters, &options, &timing, &draining);
        for backoff in [60 * SECOND, 120 * SECOND] {
            deliveries.remember(&failed);
            for polls in 0..2 {
                assert_eq!(deliveries.wait(), 10 * SECOND);
                let poll = deliveries.attempt(Trigger::Timer).await;
                assert!(matches!(poll, Some(Attempt::Unchanged { success: false })), "{polls}");
            }
            tokio::time::advance(backoff - SECOND).await;
            assert_eq!(deliveries.wait(), SECOND, "it is tried again after its backoff");
        }
        let triggered = deliveries.attempt(Trigger::Webhook).await;
        assert!(matches!(triggered, Some(Attempt::Tried(Ok(_)))), "or when it is triggered");
        assert_eq!(deliveries.failures, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trigger_that_is_pending_at_shutdown_is_reported_unanswered() {
        let draining = CancellationToken::new();
        let timing = slow();
        let (ask, mut triggers) = mpsc::channel(1);
        let mut unanswered = 0;
        let on_event = |event: LoopEvent<'_>| match event {
            LoopEvent::Waits(_) => ask.try_send(Trigger::Webhook).unwrap(),
            LoopEvent::Unanswered => unanswered += 1,
            _ => {}
        };
        let stop = draining.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(60)).await;
            stop.cancel();
        });
        let (options, clusters) = (options(), Clusters::default());
        follow(Arc::new(remote()), &clusters, &options, &timing, &mut triggers, &draining, on_event).await;
        assert_eq!(unanswered, 1);
    }
}
