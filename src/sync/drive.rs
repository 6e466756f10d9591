//! The loop: waits until an attempt is due, runs it, and reports its result to the state machine and the report.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::bounds::Bounds;
use super::error::Error;
use super::report::Report;
use super::view::{Done, View};
use crate::phase::machine::{Machine, Phase};
use crate::phase::{Status, Trigger};
use crate::retry;
use crate::sources::{AttemptResults, Named};
use crate::store::Published;

/// Between attempts the root is mended no more often than this.
const MEND_SPACING: Duration = Duration::from_secs(1);

/// How often an attempt that takes its time says how far it is.
const PROGRESS: Duration = Duration::from_millis(500);

/// The longest time between two writes of the status file while attempts end, so that the next process after a kill
/// finds when the last one succeeded. A poll alone writes nothing.
const RECORD: Duration = Duration::from_secs(300);

/// How long the last record of a process may take.
const LAST_RECORD: Duration = Duration::from_secs(1);

/// What a timer that never fires is set to.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How a sync ended.
#[derive(Debug)]
pub enum End {
    /// The process was asked to end.
    Drained,
    /// It was to run once, and did.
    Done,
    /// Too many failures in a row; the last of them.
    GaveUp(Error),
}

/// What the loop drives: the [`super::attempt::Worker`], or in tests a double.
pub(super) trait Work {
    /// Compares the generation found at start with its revision, without network.
    fn verify_found(&mut self, bounds: &Bounds) -> impl Future<Output = Result<Option<Published>, Error>>;
    /// One attempt. `may_publish` is false while the minimum interval runs.
    fn attempt(&mut self, bounds: &Bounds, may_publish: bool) -> impl Future<Output = Result<Done, Error>>;
    /// Mends links, removes left-overs, reaps, and publishes afresh what somebody else has changed. No network.
    fn repair(&mut self, bounds: &Bounds) -> impl Future<Output = Result<Option<Published>, Error>>;
    /// What follows a publication and may fail without failing it.
    fn housekeep(&mut self, bounds: &Bounds) -> impl Future<Output = ()>;
    /// Tells the hooks what is current.
    fn announce(&self) {}
    /// Keeps a status for `treeswap status`, which reads the root.
    fn record(&mut self, status: Status) -> impl Future<Output = ()>;
    /// Whether a generation was removed since the last housekeeping, so that the mirror may drop its objects.
    fn needs_housekeeping(&self) -> bool {
        false
    }
    /// After how long mending may have something to do: a grace period ends.
    fn next_repair(&self) -> Option<Duration>;
    /// What was last seen of the root.
    fn view(&self) -> &View;
    /// What the last attempt found the ref to name, if the root has it.
    fn newest(&self) -> Option<Named> {
        None
    }
    /// Before the process ends by itself: waits for what must not be left to a next start that may never come.
    fn finish(&mut self, bounds: &Bounds) -> impl Future<Output = ()>;
    /// Stops what runs in the background.
    fn stop(&mut self);
}

/// The loop.
pub(super) struct Drive<'a, W> {
    pub(super) work: &'a mut W,
    pub(super) report: &'a mut Report,
    pub(super) machine: Machine,
    pub(super) asked: &'a mut mpsc::Receiver<Trigger>,
    /// Tells deliveries how attempts ended.
    pub(super) attempts: AttemptResults,
    pub(super) draining: CancellationToken,
    /// Hard limit on one attempt.
    pub(super) timeout: Duration,
    /// End after the first success.
    pub(super) one_time: bool,
    /// No attempt follows the first success.
    pub(super) park: bool,
    /// What the machine's time is counted from.
    pub(super) origin: Instant,
    /// An attempt ended well.
    pub(super) succeeded: bool,
    /// When the status was recorded last.
    pub(super) recorded: Instant,
}

impl<W: Work> Drive<'_, W> {
    /// Runs until an end.
    pub(super) async fn run(mut self) -> End {
        self.report.busy(self.timeout);
        let bounds = self.bounds();
        match self.work.verify_found(&bounds).await {
            Ok(published) => self.report.found(self.work.view(), published.as_ref()),
            Err(error) => self.report.unverified(&error),
        }
        self.waiting();
        let end = loop {
            if !self.pause().await {
                self.machine.drain();
                break End::Drained;
            }
            let trigger = self.machine.start(self.now());
            let number = self.report.syncing(trigger, self.timeout);
            let span = tracing::info_span!("sync", attempt = number, trigger = trigger.word());
            if let Some(end) = self.attempt().instrument(span).await {
                break end;
            }
        };
        self.work.stop();
        let status = self.report.last_status(self.work.view());
        let _ = tokio::time::timeout(LAST_RECORD, self.work.record(status)).await; // a root that hangs does not hold up the end
        end
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn bounds(&self) -> Bounds {
        Bounds::new(self.timeout, self.draining.clone())
    }

    fn waiting(&self) {
        let wait = self.machine.due().map(|due| due.saturating_sub(self.now()));
        self.report.waiting(wait, self.work.view());
    }

    /// Waits until an attempt is due, mending the root meanwhile. False: the process drains.
    async fn pause(&mut self) -> bool {
        let mut mended = Instant::now();
        loop {
            let due = match self.machine.due() {
                Some(due) => self.origin + due,
                None => Instant::now() + NEVER,
            };
            let mend = self.work.next_repair().map(|after| mended + after.max(MEND_SPACING));
            let mend = mend.filter(|at| *at < due);
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return false,
                Some(trigger) = self.asked.recv() => { self.machine.trigger(trigger); }
                () = tokio::time::sleep_until(mend.unwrap_or(due)) => {
                    if mend.is_none() {
                        return true;
                    }
                    mended = Instant::now();
                    self.report.busy(self.timeout.saturating_add(due.saturating_duration_since(mended)));
                    let bounds = self.bounds();
                    let result = self.work.repair(&bounds).await;
                    self.repaired(&bounds, result).await;
                }
            }
        }
    }

    /// What follows when the root was mended between attempts.
    async fn repaired(&mut self, bounds: &Bounds, result: Result<Option<Published>, Error>) {
        let is_well = result.is_ok() && self.succeeded && self.machine.failures() == 0;
        let (result, published) = match result {
            Ok(published) => (Ok(()), published),
            Err(error) => (Err(error), None),
        };
        self.report.root_repaired(self.work.view(), result);
        if published.is_some() {
            self.report.found(self.work.view(), published.as_ref());
            self.work.announce();
            self.report.busy(self.timeout); // comparing and publishing may have used up what was promised
            let bounds = self.bounds();
            self.work.housekeep(&bounds).await;
            let status = self.report.status(self.work.view());
            self.work.record(status).await;
        } else if is_well && self.work.needs_housekeeping() {
            self.work.housekeep(bounds).await;
        }
    }

    /// One attempt and what follows it.
    async fn attempt(&mut self) -> Option<End> {
        let bounds = self.bounds();
        let hold = self.machine.held_until(self.now()).filter(|_| !self.one_time);
        self.attempts.begun();
        let result = {
            let attempt = self.work.attempt(&bounds, hold.is_none());
            tokio::pin!(attempt);
            let mut looks = tokio::time::interval_at(Instant::now() + PROGRESS, PROGRESS);
            loop {
                tokio::select! {
                    biased;
                    result = &mut attempt => break result,
                    Some(trigger) = self.asked.recv() => { self.machine.trigger(trigger); }
                    _ = looks.tick() => self.report.progress(bounds.stage()),
                }
            }
        };
        if matches!(result, Err(Error::Interrupted)) {
            self.machine.drain();
            return Some(End::Drained);
        }
        let now = self.now();
        match &result {
            Ok(Done::Published(_)) => self.machine.publish(now, retry::random_fraction()),
            Ok(Done::Unchanged) => self.machine.unchanged(now, retry::random_fraction()),
            Ok(Done::Held) => self.machine.tip_held(hold.unwrap_or(now)),
            Err(error) => self.machine.fail(now, error.failure(), retry::random_fraction()),
        }
        self.attempts.ended(result.as_ref().map(|_| self.work.newest()).map_err(Error::as_answer));
        if self.park && matches!(result, Ok(Done::Published(_) | Done::Unchanged)) {
            self.machine.stop_polling();
            self.report.no_attempt_follows();
            self.attempts.parked();
        }
        let failures = self.machine.failures();
        let given_up =
            (self.machine.phase() == Phase::GivenUp).then(|| self.machine.limit().unwrap_or_default());
        let keep = self.report.ended(&result, bounds.stage(), self.work.view(), (failures, given_up)).await;
        // Also once after a start: the spare may be missing.
        let first = result.is_ok() && !std::mem::replace(&mut self.succeeded, true);
        let news = first || matches!(result, Ok(Done::Published(_)));
        if news {
            self.work.announce();
        }
        if news || (result.is_ok() && self.work.needs_housekeeping()) {
            self.report.busy(self.timeout); // the attempt may have used up what was promised for it
            let bounds = self.bounds();
            self.work.housekeep(&bounds).await;
        }
        self.waiting();
        if keep || self.recorded.elapsed() >= RECORD {
            self.recorded = Instant::now();
            let status = self.report.status(self.work.view());
            self.work.record(status).await;
        }
        let end = match result {
            Err(error) if self.machine.phase() == Phase::GivenUp => End::GaveUp(error),
            Ok(Done::Published(_) | Done::Unchanged) if self.one_time => End::Done,
            _ => return None,
        };
        if self.one_time {
            let bounds = self.bounds();
            self.work.finish(&bounds).await;
        }
        Some(end)
    }
}

#[cfg(test)]
mod tests;
