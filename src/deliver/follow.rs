//! Delivers every new revision, for as long as the process runs.
//!
//! The remote is polled every period; a trigger only shortens the wait. Once every target of a revision has its
//! definite result, nothing is read until the resync, which reads everything and repairs what other writers changed.
//! Transient failures are tried again with backoff. What an operator has to repair in a cluster (a missing right, a
//! ConfigMap of another owner) is tried again every minute or so, as the cluster does not notify us of the repair. Two
//! deliveries start at least `min_interval` apart, so commits in quick succession become one delivery of the newest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Directory, Options, Report, deliver};
use crate::phase::Trigger;
use crate::retry::{Backoff, jittered, random_fraction};
use crate::revision::Revision;
use crate::sources::{Source, SourceError};

/// Jitter of the resync, so that a fleet that was started at once does not resync at once.
const SPREAD: f64 = 0.2;

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
    /// The revision whose targets all have definite results, and whether those are all successes.
    settled: Option<(Revision, bool)>,
    /// When everything is to be read again.
    next_resync: Option<Instant>,
    /// When the last delivery started.
    last_start: Option<Instant>,
    /// Consecutive failures.
    failures: u32,
    /// True if the last failure was one of a delivery, false if the remote failed.
    failed_in_delivery: bool,
}

impl LoopState {
    /// Counts a failure: of a delivery, or (false) of the remote.
    fn count_failure(&mut self, delivered: bool) {
        self.failures = self.failures.saturating_add(1);
        self.failed_in_delivery = delivered;
    }
}

/// Runs until shutdown; with `once` until the first delivery, whose result it returns.
pub async fn follow<S: Source>(
    source: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    loop_timing: &LoopTiming,
    triggers: &mut mpsc::Receiver<Trigger>,
    draining: &CancellationToken,
    mut on_event: impl FnMut(LoopEvent<'_>),
) -> Option<Result<Report, SourceError>> {
    let mut state = LoopState::default();
    let mut trigger = Trigger::StartUp;
    // A trigger has been received whose attempt has not begun.
    let mut pending = false;
    while !draining.is_cancelled() {
        pending = false;
        on_event(LoopEvent::Begins(trigger));
        let done = attempt(&source, clusters, options, loop_timing, draining, &mut state).await;
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
        let until_resync =
            state.next_resync.map_or(loop_timing.resync, |at| at.saturating_duration_since(Instant::now()));
        let wait = match (state.failures, loop_timing.period) {
            (0, Some(period)) => jittered(period, loop_timing.jitter, random_fraction()).min(until_resync),
            (0, None) => until_resync,
            (failures, _) => {
                let delay = loop_timing.backoff.delay(failures);
                // The remote answered, so the failure may be a missing right, and nothing notifies us when it is
                // granted: the wait is capped.
                let delay = if state.failed_in_delivery { delay.min(loop_timing.denied) } else { delay };
                jittered(delay, loop_timing.jitter, random_fraction())
            }
        };
        on_event(LoopEvent::Waits(wait));
        trigger = tokio::select! {
            () = draining.cancelled() => break,
            Some(trigger) = triggers.recv() => trigger,
            () = sleep(wait) => Trigger::Timer,
        };
        pending = trigger != Trigger::Timer;
        if let Some(begun) = state.last_start {
            tokio::select! {
                () = draining.cancelled() => {}
                () = sleep_until(begun + loop_timing.min_interval) => {}
            }
        }
    }
    if pending || triggers.try_recv().is_ok() {
        on_event(LoopEvent::Unanswered);
    }
    None
}

/// The result of one attempt.
enum Attempt {
    /// The ref names the settled revision: true if its delivery was a success.
    Unchanged(bool),
    /// The delivery, or why there was none.
    Tried(Result<Report, SourceError>),
}

/// Asks the remote, and delivers if its revision is new or the resync is due. `None` at shutdown.
async fn attempt<S: Source>(
    source: &Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    loop_timing: &LoopTiming,
    draining: &CancellationToken,
    state: &mut LoopState,
) -> Option<Attempt> {
    let named = tokio::select! {
        () = draining.cancelled() => return None,
        named = source.resolve() => named,
    };
    let now = Instant::now();
    match named {
        Err(error) => {
            state.count_failure(false);
            return Some(Attempt::Tried(Err(error)));
        }
        Ok(named) => {
            let settled = state.settled.filter(|(revision, _)| *revision == named.revision);
            if let Some((_, success)) = settled.filter(|_| state.next_resync.is_some_and(|at| now < at)) {
                state.failures = 0;
                return Some(Attempt::Unchanged(success));
            }
            state.last_start = Some(now);
        }
    }
    let cancel = draining.child_token();
    let mut delivery = std::pin::pin!(deliver(Arc::clone(source), clusters, options, &cancel));
    let done = tokio::select! {
        done = &mut delivery => done,
        () = sleep(loop_timing.limit) => {
            cancel.cancel();
            delivery.await
        }
    };
    match &done {
        Ok(report) if !report.is_to_be_repeated() => {
            state.failures = 0;
            state.settled = Some((report.revision, report.is_success()));
            let next = if report.is_success() {
                loop_timing.resync
            } else {
                loop_timing.denied.min(loop_timing.resync)
            };
            state.next_resync = Some(Instant::now() + jittered(next, SPREAD, random_fraction()));
        }
        _ => {
            state.count_failure(done.is_ok());
            state.settled = None;
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

    impl Source for Nothing {
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

    #[tokio::test(start_paused = true)]
    async fn a_trigger_that_is_pending_at_shutdown_is_reported_unanswered() {
        let hour = Duration::from_secs(3_600);
        let ending = CancellationToken::new();
        let loop_timing = LoopTiming {
            period: Some(hour * 2),
            min_interval: hour,
            resync: hour * 2,
            denied: hour,
            backoff: Backoff { first: hour, ceiling: hour },
            jitter: 0.0,
            limit: hour,
            once: false,
        };
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
