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

/// What the loop remembers between attempts.
#[derive(Default)]
struct LoopState {
    /// The revision that was delivered last, and whether that was a success.
    delivered: Option<(Revision, bool)>,
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

impl LoopState {
    /// Returns how long to wait before the next attempt, unless there is a trigger.
    fn wait(&self, loop_timing: &LoopTiming) -> Duration {
        let until_resync = match self.next_resync {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => loop_timing.resync,
        };
        let vary = |wait| jittered(wait, loop_timing.jitter, random_fraction());
        let wait = match (self.remote_failures, loop_timing.period) {
            (0, Some(period)) => vary(period).min(until_resync),
            (0, None) => until_resync,
            (failures, _) => vary(loop_timing.backoff.delay(failures)),
        };
        wait.max(self.until_next_start(loop_timing))
    }

    /// Returns the rest of the least time between two deliveries.
    fn until_next_start(&self, loop_timing: &LoopTiming) -> Duration {
        let next = self.last_start.map(|begun| begun + loop_timing.min_interval);
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Remembers a delivery that reached the clusters.
    fn delivered(&mut self, report: &Report, loop_timing: &LoopTiming) {
        self.remote_failures = 0;
        self.delivered = Some((report.revision, report.is_success()));
        let next = if report.is_to_be_repeated() {
            self.failures = self.failures.saturating_add(1);
            // It may also be a missing right, and nothing notifies us when that is granted: the wait is capped.
            let delay = loop_timing.backoff.delay(self.failures).min(loop_timing.denied);
            jittered(delay, loop_timing.jitter, random_fraction())
        } else {
            self.failures = 0;
            let is_denied = !report.is_success();
            let next =
                if is_denied { loop_timing.denied.min(loop_timing.resync) } else { loop_timing.resync };
            jittered(next, SPREAD, random_fraction())
        };
        self.next_resync = Some(Instant::now() + next);
    }

    /// Counts a failure of the remote.
    fn remote_failed(&mut self) {
        self.remote_failures = self.remote_failures.saturating_add(1);
    }
}

/// Runs until shutdown; with `once` until the first delivery, whose result it returns.
pub async fn follow<S: DeliveryInput>(
    input: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    loop_timing: &LoopTiming,
    triggers: &mut mpsc::Receiver<Trigger>,
    draining: &CancellationToken,
    mut on_event: impl FnMut(LoopEvent<'_>),
) -> Option<Result<Report, SourceError>> {
    let mut state = LoopState::default();
    let step = state.step.clone();
    let mut trigger = Trigger::StartUp;
    // A trigger has been received whose attempt has not begun.
    let mut pending = false;
    while !draining.is_cancelled() {
        pending = false;
        on_event(LoopEvent::Begins(trigger));
        let attempt = attempt(&input, clusters, options, loop_timing, draining, &mut state, trigger);
        let done = with_progress(attempt, || on_event(LoopEvent::Runs(step.get()))).await;
        match &done {
            None => break,
            Some(Attempt::Unchanged(success)) => on_event(LoopEvent::Unchanged { success: *success }),
            Some(Attempt::Tried(Ok(report))) => on_event(LoopEvent::Delivered(report)),
            Some(Attempt::Tried(Err(error))) => on_event(LoopEvent::Failed(error)),
        }
        if let Some(Attempt::Tried(done)) = done
            && loop_timing.once
        {
            return Some(done);
        }
        let wait = state.wait(loop_timing);
        on_event(LoopEvent::Waits(wait));
        trigger = tokio::select! {
            () = draining.cancelled() => break,
            Some(trigger) = triggers.recv() => trigger,
            () = sleep(wait) => Trigger::Timer,
        };
        pending = trigger != Trigger::Timer;
        let rest = state.until_next_start(loop_timing);
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

/// The result of one attempt.
enum Attempt {
    /// The ref names the revision that was delivered last: true if that delivery was a success.
    Unchanged(bool),
    /// The delivery, or why there was none.
    Tried(Result<Report, SourceError>),
}

/// Asks the remote, and delivers if its revision is new, the resync is due, or a trigger comes while something fails.
/// `None` at shutdown.
async fn attempt<S: DeliveryInput>(
    input: &Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    loop_timing: &LoopTiming,
    draining: &CancellationToken,
    state: &mut LoopState,
    trigger: Trigger,
) -> Option<Attempt> {
    state.step.begin(Step::Resolve);
    let named = tokio::select! {
        () = draining.cancelled() => return None,
        named = input.resolve() => named,
    };
    let now = Instant::now();
    match named {
        Err(error) => {
            state.remote_failed();
            return Some(Attempt::Tried(Err(error)));
        }
        Ok(named) => {
            let is_due = state.next_resync.is_none_or(|at| now >= at)
                || (state.failures > 0 && trigger != Trigger::Timer);
            let delivered = state.delivered.filter(|(revision, _)| *revision == named.revision);
            if let Some((_, success)) = delivered.filter(|_| !is_due) {
                state.remote_failures = 0;
                return Some(Attempt::Unchanged(success));
            }
            state.last_start = Some(now);
        }
    }
    let cancel = draining.child_token();
    let step = state.step.clone();
    let delivery = deliver_in_steps(Arc::clone(input), clusters, options, &cancel, &step);
    let mut delivery = std::pin::pin!(delivery);
    let done = tokio::select! {
        done = &mut delivery => done,
        () = sleep(loop_timing.limit) => {
            cancel.cancel();
            delivery.await
        }
    };
    match &done {
        Ok(report) => state.delivered(report, loop_timing),
        Err(_) => {
            state.remote_failed();
            state.delivered = None;
        }
    }
    Some(Attempt::Tried(done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Clusters;
    use crate::configmap::apply::{Desired, ExtraKeys, Owner, VersionKey};
    use crate::deliver::Relation;
    use crate::revision::{ObjectId, Revision};
    use crate::sources::{Named, Recorded};

    /// A remote that always names the same revision, which asks for nothing.
    struct Nothing;

    impl DeliveryInput for Nothing {
        async fn resolve(&self) -> Result<Named, SourceError> {
            Ok(Revision(ObjectId([1; 20])).into())
        }

        async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
            let Named { revision, sources } = named;
            let shape = ExtraKeys { version_key: VersionKey::Changed, stamp_key: None };
            let config_maps = Default::default();
            Ok(Arc::new(Desired { revision, sources, rules: "rules".into(), shape, config_maps }))
        }

        async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
            Ok(Relation::Ahead)
        }
    }

    /// The same, but its plan takes two seconds.
    struct Slow;

    impl DeliveryInput for Slow {
        async fn resolve(&self) -> Result<Named, SourceError> {
            Nothing.resolve().await
        }

        async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
            sleep(2 * SECOND).await;
            Nothing.desired(named).await
        }

        async fn relation(&self, recorded: Recorded, named: Revision) -> Result<Relation, SourceError> {
            Nothing.relation(recorded, named).await
        }
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
        let loop_timing = LoopTiming { period: Some(10 * SECOND), min_interval: 300 * SECOND, ..slow() };
        let (ask, mut triggers) = mpsc::channel(1);
        let ending = CancellationToken::new();
        let stop = ending.clone();
        tokio::spawn(async move {
            sleep(100 * SECOND).await;
            ask.send(Trigger::Webhook).await.unwrap();
            sleep(300 * SECOND).await;
            stop.cancel();
        });
        let start = Instant::now();
        let mut next = start;
        let mut begun = Vec::new();
        let tell = |event: LoopEvent<'_>| match event {
            LoopEvent::Waits(wait) => next = Instant::now() + wait,
            LoopEvent::Begins(_) => {
                assert!(Instant::now() < next + SECOND, "{:?} late", next.elapsed());
                begun.push(start.elapsed().as_secs());
            }
            _ => {}
        };
        let options = Options::new(Owner::new("team").unwrap());
        let clusters = Clusters::default();
        follow(Arc::new(Nothing), &clusters, &options, &loop_timing, &mut triggers, &ending, tell).await;
        assert!(begun.len() > 2 && begun[..2] == [0, 300], "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_takes_long_is_reported_while_it_is_computed() {
        let ending = CancellationToken::new();
        let (_ask, mut triggers) = mpsc::channel(1);
        let mut steps = Vec::new();
        let tell = |event: LoopEvent<'_>| match event {
            LoopEvent::Runs(step) => steps.push(step),
            LoopEvent::Waits(_) => ending.cancel(),
            _ => {}
        };
        let options = Options::new(Owner::new("team").unwrap());
        let clusters = Clusters::default();
        follow(Arc::new(Slow), &clusters, &options, &slow(), &mut triggers, &ending, tell).await;
        assert!(steps.len() >= 3 && steps.iter().all(|step| *step == Step::Plan), "{steps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn polls_go_on_while_a_delivery_that_failed_waits_for_its_next_try() {
        let backoff = Backoff { first: 60 * SECOND, ceiling: HOUR };
        let period = Some(10 * SECOND);
        let loop_timing = LoopTiming { period, min_interval: Duration::ZERO, backoff, ..slow() };
        let failed = Report {
            revision: Revision(ObjectId([1; 20])),
            sources: Default::default(),
            targets: Vec::new(),
            notes: Vec::new(),
            failures: vec!["cluster gone: it is unreachable".into()],
            unanswered: Vec::new(),
            unfinished: Default::default(),
        };
        let mut state = LoopState::default();
        let input = Arc::new(Nothing);
        let options = Options::new(Owner::new("team").unwrap());
        let (clusters, draining) = (Clusters::default(), CancellationToken::new());
        for backoff in [60 * SECOND, 120 * SECOND] {
            state.delivered(&failed, &loop_timing);
            for polls in 0..2 {
                assert_eq!(state.wait(&loop_timing), 10 * SECOND);
                let poll =
                    attempt(&input, &clusters, &options, &loop_timing, &draining, &mut state, Trigger::Timer);
                assert!(matches!(poll.await, Some(Attempt::Unchanged(false))), "{polls}");
            }
            tokio::time::advance(backoff - SECOND).await;
            assert_eq!(state.wait(&loop_timing), SECOND, "it is tried again after its backoff");
        }
        let asked =
            attempt(&input, &clusters, &options, &loop_timing, &draining, &mut state, Trigger::Webhook);
        assert!(matches!(asked.await, Some(Attempt::Tried(Ok(_)))), "or when somebody asks");
        assert_eq!(state.failures, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trigger_that_is_pending_at_shutdown_is_reported_unanswered() {
        let ending = CancellationToken::new();
        let loop_timing = slow();
        let (ask, mut triggers) = mpsc::channel(1);
        let mut unanswered = 0;
        let tell = |turn: LoopEvent<'_>| match turn {
            LoopEvent::Waits(_) => ask.try_send(Trigger::Webhook).unwrap(),
            LoopEvent::Unanswered => unanswered += 1,
            _ => {}
        };
        let stop = ending.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(60)).await;
            stop.cancel();
        });
        let options = Options::new(Owner::new("team").unwrap());
        let clusters = Clusters::default();
        follow(Arc::new(Nothing), &clusters, &options, &loop_timing, &mut triggers, &ending, tell).await;
        assert_eq!(unanswered, 1);
    }
}
