//! Delivers at every new revision, for as long as the process runs.
//!
//! The ref is asked every period; a trigger only shortens the wait. A revision whose every target has its definite
//! result is not touched again before the resync, which reads everything and puts right what somebody else wrote. What
//! failed and may pass by itself is tried again after a backoff. Two deliveries begin at least so far apart, so commits
//! in quick succession become one delivery of the newest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Directory, Options, Report, Source, SourceError, deliver};
use crate::phase::Trigger;
use crate::retry::{Backoff, dice, jittered};

/// The resync of a fleet that was started at once is spread over this part of its period.
const SPREAD: f64 = 0.2;

/// How often, and how patiently.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rhythm {
    /// From one question to the next; none where somebody else looks, and asks when there is something new.
    pub period: Option<Duration>,
    /// Two deliveries begin at least so far apart; the newest revision wins.
    pub min_interval: Duration,
    /// From one look at everything to the next, a fifth of it more or less.
    pub resync: Duration,
    /// After failures.
    pub backoff: Backoff,
    /// Every wait is moved by up to this fraction of itself.
    pub jitter: f64,
    /// What is not done within this is skipped, told and tried again.
    pub limit: Duration,
    /// End after the first delivery.
    pub once: bool,
}

/// What is going on.
#[derive(Debug)]
pub enum Turn<'a> {
    /// The remote is asked, and if there is anything to deliver it is delivered.
    Begins(Trigger),
    /// There was nothing to do.
    Unchanged,
    /// A delivery ended.
    Delivered(&'a Report),
    /// The remote could not be asked, or its revision not be planned. Nothing was touched.
    Failed(&'a SourceError),
    /// Nothing happens for so long, unless somebody asks.
    Waits(Duration),
    /// Somebody had asked, and the process ends first.
    Unanswered,
}

/// What is known from turn to turn.
#[derive(Default)]
struct Known {
    /// Its targets have their definite results.
    settled: Option<crate::revision::Revision>,
    /// When everything is to be looked at again.
    verify: Option<Instant>,
    /// When the last delivery began.
    begun: Option<Instant>,
    failures: u32,
}

/// Runs until the process drains; with `once` until the first delivery, whose result it returns.
pub async fn follow<S: Source>(
    source: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    rhythm: &Rhythm,
    asked: &mut mpsc::Receiver<Trigger>,
    draining: &CancellationToken,
    mut tell: impl FnMut(Turn<'_>),
) -> Option<Result<Report, SourceError>> {
    let mut known = Known::default();
    let mut trigger = Trigger::StartUp;
    while !draining.is_cancelled() {
        tell(Turn::Begins(trigger));
        let done = turn(&source, clusters, options, rhythm, draining, &mut known).await;
        match &done {
            Some(Ok(report)) => tell(Turn::Delivered(report)),
            Some(Err(error)) => tell(Turn::Failed(error)),
            None if draining.is_cancelled() => break,
            None => tell(Turn::Unchanged),
        }
        if rhythm.once && done.is_some() {
            return done;
        }
        let wait = match (known.failures, rhythm.period) {
            (0, Some(period)) => jittered(period, rhythm.jitter, dice()),
            (0, None) => {
                known.verify.map_or(rhythm.resync, |at| at.saturating_duration_since(Instant::now()))
            }
            (failures, _) => jittered(rhythm.backoff.delay(failures), rhythm.jitter, dice()),
        };
        tell(Turn::Waits(wait));
        trigger = tokio::select! {
            () = draining.cancelled() => break,
            Some(trigger) = asked.recv() => trigger,
            () = sleep(wait) => Trigger::Timer,
        };
        if let Some(begun) = known.begun {
            tokio::select! {
                () = draining.cancelled() => {}
                () = sleep_until(begun + rhythm.min_interval) => {}
            }
        }
    }
    // Whoever asked gets an answer, if only this one.
    if asked.try_recv().is_ok() {
        tell(Turn::Unanswered);
    }
    None
}

/// One question, and what follows from its answer. `None`: nothing.
async fn turn<S: Source>(
    source: &Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    rhythm: &Rhythm,
    draining: &CancellationToken,
    known: &mut Known,
) -> Option<Result<Report, SourceError>> {
    let named = tokio::select! {
        () = draining.cancelled() => return None,
        named = source.ask() => named,
    };
    let now = Instant::now();
    match named {
        Err(error) => {
            known.failures = known.failures.saturating_add(1);
            return Some(Err(error));
        }
        Ok(named) if known.settled == Some(named) && known.verify.is_some_and(|at| now < at) => {
            known.failures = 0;
            return None;
        }
        Ok(_) => known.begun = Some(now),
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
            known.settled = Some(report.revision);
            known.verify = Some(now + jittered(rhythm.resync, SPREAD, dice()));
        }
        _ => {
            known.failures = known.failures.saturating_add(1);
            known.settled = None;
        }
    }
    Some(done)
}
