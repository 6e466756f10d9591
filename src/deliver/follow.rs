//! Delivers at every new revision, for as long as the process runs.
//!
//! The ref is asked every period; a trigger only shortens the wait. A revision whose every target has its definite
//! result is not touched again before the resync, which reads everything and repairs what other writers changed. What
//! failed and may pass by itself is tried again after a backoff; what an operator has to repair in a cluster, a right
//! that is missing or a ConfigMap of another owner, every minute or so: the cluster does not notify us of the repair.
//! Two deliveries begin at least so far apart, so commits in quick succession become one delivery of the newest.

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

/// The resync of a fleet that was started at once is spread over this part of its period.
const SPREAD: f64 = 0.2;

/// How often, and how patiently.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rhythm {
    /// From one question to the next; none where another loop polls, and triggers when there is something new.
    pub period: Option<Duration>,
    /// Two deliveries begin at least so far apart; the newest revision wins.
    pub min_interval: Duration,
    /// From one look at everything to the next, a fifth of it more or less.
    pub resync: Duration,
    /// The same while something is denied or refused.
    pub denied: Duration,
    /// After failures.
    pub backoff: Backoff,
    /// Every wait is moved by up to this fraction of itself.
    pub jitter: f64,
    /// What is not done within this is skipped, reported and tried again.
    pub limit: Duration,
    /// End after the first delivery.
    pub once: bool,
}

/// What is going on.
#[derive(Debug)]
pub enum LoopEvent<'a> {
    /// The remote is asked, and if there is anything to deliver it is delivered.
    Begins(Trigger),
    /// There was nothing to do: the result of the last delivery remains.
    Unchanged {
        /// Whether that was a success.
        success: bool,
    },
    /// A delivery ended.
    Delivered(&'a Report),
    /// The remote could not be asked, or its revision not be planned. Nothing was touched.
    Failed(&'a SourceError),
    /// Nothing happens for so long, unless triggered.
    Waits(Duration),
    /// A trigger was pending, and the process ends first.
    Unanswered,
}

/// What is known from turn to turn.
#[derive(Default)]
struct LoopState {
    /// Its targets have their definite results, and whether all of them are successes.
    settled: Option<(Revision, bool)>,
    /// When everything is to be looked at again.
    verify: Option<Instant>,
    /// When the last delivery began.
    begun: Option<Instant>,
    failures: u32,
    /// The last failure was one of a delivery, not of the remote.
    delivered: bool,
}

/// Runs until the process drains; with `once` until the first delivery, whose result it returns.
pub async fn follow<S: Source>(
    source: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    rhythm: &Rhythm,
    asked: &mut mpsc::Receiver<Trigger>,
    draining: &CancellationToken,
    mut tell: impl FnMut(LoopEvent<'_>),
) -> Option<Result<Report, SourceError>> {
    let mut known = LoopState::default();
    let mut trigger = Trigger::StartUp;
    // A trigger is pending, and the attempt has not begun.
    let mut pending = false;
    while !draining.is_cancelled() {
        pending = false;
        tell(LoopEvent::Begins(trigger));
        let done = turn(&source, clusters, options, rhythm, draining, &mut known).await;
        match &done {
            None => break,
            Some(Done::Unchanged(success)) => tell(LoopEvent::Unchanged { success: *success }),
            Some(Done::Tried(Ok(report))) => tell(LoopEvent::Delivered(report)),
            Some(Done::Tried(Err(error))) => tell(LoopEvent::Failed(error)),
        }
        if let Some(Done::Tried(done)) = done
            && rhythm.once
        {
            return Some(done);
        }
        let verify = known.verify.map_or(rhythm.resync, |at| at.saturating_duration_since(Instant::now()));
        let wait = match (known.failures, rhythm.period) {
            (0, Some(period)) => jittered(period, rhythm.jitter, random_fraction()).min(verify),
            (0, None) => verify,
            (failures, _) => {
                let delay = rhythm.backoff.delay(failures);
                // The remote answered. What else failed may be a right, too, and nothing notifies us when it is
                // granted.
                let delay = if known.delivered { delay.min(rhythm.denied) } else { delay };
                jittered(delay, rhythm.jitter, random_fraction())
            }
        };
        tell(LoopEvent::Waits(wait));
        trigger = tokio::select! {
            () = draining.cancelled() => break,
            Some(trigger) = asked.recv() => trigger,
            () = sleep(wait) => Trigger::Timer,
        };
        pending = trigger != Trigger::Timer;
        if let Some(begun) = known.begun {
            tokio::select! {
                () = draining.cancelled() => {}
                () = sleep_until(begun + rhythm.min_interval) => {}
            }
        }
    }
    if pending || asked.try_recv().is_ok() {
        tell(LoopEvent::Unanswered);
    }
    None
}

/// What follows from one question's answer.
enum Done {
    /// Nothing: the revision is settled, and whether with success.
    Unchanged(bool),
    /// A delivery, or why there was none.
    Tried(Result<Report, SourceError>),
}

/// One question, and what follows from its answer. `None`: the process drains.
async fn turn<S: Source>(
    source: &Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    rhythm: &Rhythm,
    draining: &CancellationToken,
    known: &mut LoopState,
) -> Option<Done> {
    let named = tokio::select! {
        () = draining.cancelled() => return None,
        named = source.ask() => named,
    };
    let now = Instant::now();
    match named {
        Err(error) => {
            (known.failures, known.delivered) = (known.failures.saturating_add(1), false);
            return Some(Done::Tried(Err(error)));
        }
        Ok(named) => {
            let settled = known.settled.filter(|(revision, _)| *revision == named.revision);
            if let Some((_, success)) = settled.filter(|_| known.verify.is_some_and(|at| now < at)) {
                known.failures = 0;
                return Some(Done::Unchanged(success));
            }
            known.begun = Some(now);
        }
    }
    let cancel = draining.child_token();
    let mut delivery = std::pin::pin!(deliver(Arc::clone(source), clusters, options, &cancel));
    let done = tokio::select! {
        done = &mut delivery => Some(done),
        () = sleep(rhythm.limit) => None,
    };
    let done = match done {
        Some(done) => done,
        None => {
            cancel.cancel();
            delivery.await
        }
    };
    match &done {
        Ok(report) if !report.is_to_be_repeated() => {
            known.failures = 0;
            known.settled = Some((report.revision, report.is_success()));
            let next = if report.is_success() { rhythm.resync } else { rhythm.denied.min(rhythm.resync) };
            known.verify = Some(Instant::now() + jittered(next, SPREAD, random_fraction()));
        }
        _ => {
            (known.failures, known.delivered) = (known.failures.saturating_add(1), done.is_ok());
            known.settled = None;
        }
    }
    Some(Done::Tried(done))
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
        async fn ask(&self) -> Result<Named, SourceError> {
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
    async fn who_asks_while_the_process_ends_is_answered_also_in_the_pause_between_deliveries() {
        let hour = Duration::from_secs(3_600);
        let ending = CancellationToken::new();
        let rhythm = Rhythm {
            period: Some(hour * 2),
            min_interval: hour,
            resync: hour * 2,
            denied: hour,
            backoff: Backoff { first: hour, ceiling: hour },
            jitter: 0.0,
            limit: hour,
            once: false,
        };
        let (ask, mut asked) = mpsc::channel(1);
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
        follow(Arc::new(Nothing), &clusters, &options, &rhythm, &mut asked, &ending, tell).await;
        assert_eq!(unanswered, 1);
    }
}
