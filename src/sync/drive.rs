//! The loop of a sync: waits until an attempt is due, runs it, and passes the result to the state machine, the report
//! and deliveries. Between attempts it repairs the root.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug};

use super::bounds::Bounds;
use super::error::Error;
use super::operator_files::FailureCount;
use super::report::Report;
use super::view::{Done, View};
use crate::phase::machine::{Machine, Phase};
use crate::phase::{Status, Trigger};
use crate::retry;
use crate::revision::Revision;
use crate::sources::{AttemptReporter, Named};
use crate::store::Published;

/// The least time between two repairs of the root while no attempt runs.
const REPAIR_SPACING: Duration = Duration::from_secs(1);

/// How often the progress of a running attempt is reported.
const PROGRESS: Duration = Duration::from_millis(500);

/// The status file is written when something changed and, at the end of an attempt, if the last write is older than
/// this, so that the process after a kill learns when an attempt last succeeded. Other polls write nothing.
const RECORD: Duration = Duration::from_secs(300);

/// How long the last write of the status file may take at shutdown.
const LAST_RECORD: Duration = Duration::from_secs(1);

/// How long it may take to begin the spare after a failure. Only a hanging file of sparse patterns takes that long, and
/// must not delay the next attempt by more. No update is promised for it: a promise may be late by far more.
const BEGIN_SPARE: Duration = Duration::from_secs(5);

/// The delay of a timer that is not meant to fire.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How a sync ended.
#[derive(Debug)]
pub enum End {
    /// The process was asked to end.
    Drained,
    /// With `--one-time`: an attempt succeeded.
    Done,
    /// There were too many consecutive failures; this is the last.
    GaveUp(Error),
}

/// The work that the loop drives: the [`super::attempt::Worker`], or a test double.
pub(super) trait Work {
    /// Compares the generation found at start with its revision, without network. Returns what had to be published
    /// afresh.
    fn verify_found(&mut self, bounds: &Bounds) -> impl Future<Output = Result<Option<Published>, Error>>;
    /// Runs one attempt. `may_publish` is false within the minimum interval after a publication.
    fn attempt(&mut self, bounds: &Bounds, may_publish: bool) -> impl Future<Output = Result<Done, Error>>;
    /// Repairs links, removes left-overs, reaps, and publishes the current generation afresh after a foreign write. No
    /// network.
    fn repair(&mut self, bounds: &Bounds) -> impl Future<Output = Result<Option<Published>, Error>>;
    /// Does what follows a publication and may fail without failing the attempt: reap, collect garbage, prepare the
    /// spare.
    fn housekeep(&mut self, bounds: &Bounds) -> impl Future<Output = ()>;
    /// Collects the mirror's garbage: the part of [`Work::housekeep`] that is also done after a failure.
    fn collect_garbage(&mut self, bounds: &Bounds) -> impl Future<Output = ()>;
    /// How long [`Work::housekeep`] may take, found within `bounds`.
    fn housekeeping_limit(&self, bounds: &Bounds) -> impl Future<Output = Duration> {
        std::future::ready(bounds.limit)
    }
    /// Begins to prepare the spare in the background, if it is missing. Called after a failure instead of
    /// [`Work::housekeep`], which may remove from the mirror what the next attempt would have to fetch again.
    fn prepare_spare(&mut self, bounds: &Bounds) -> impl Future<Output = ()>;
    /// Notifies the hooks of the current generation.
    fn notify_hooks(&self) {}
    /// Writes the status to the root, where `treeswap status` reads it.
    fn record(&mut self, status: Status) -> impl Future<Output = ()>;
    /// Returns true if a generation was removed since the last housekeeping, so that the mirror may drop its objects, if
    /// a mirror is not needed any more, or if the spare may have been discarded.
    fn needs_housekeeping(&self) -> bool {
        false
    }
    /// Returns true if the mirror may have grown since its garbage was last collected.
    fn has_fetched(&self) -> bool;
    /// Returns true if the last attempt dropped the spare to make room.
    fn dropped_spare(&self) -> bool {
        false
    }
    /// Takes what the last attempt published afresh before it failed or found a revision that has to wait.
    fn take_republished(&mut self) -> Option<Published> {
        None
    }
    /// The time until a repair may have something to do: a grace period ends, or a scrub is due or running.
    fn next_repair(&self) -> Option<Duration>;
    /// The last known state of the root.
    fn view(&self) -> &View;
    /// The revision the ref named in the last attempt, if the root has it.
    fn newest(&self) -> Option<Named> {
        None
    }
    /// Waits for deletions before a process with `--one-time` ends: there may be no next start to finish them.
    fn finish(&mut self, bounds: &Bounds) -> impl Future<Output = ()>;
    /// Cancels background work.
    fn stop(&mut self);
}

/// The loop and its state.
pub(super) struct Drive<'a, W> {
    pub(super) work: &'a mut W,
    pub(super) report: &'a mut Report,
    pub(super) machine: Machine,
    pub(super) triggers: &'a mut mpsc::Receiver<Trigger>,
    /// Passes the results of attempts to deliveries.
    pub(super) attempts: AttemptReporter,
    pub(super) draining: CancellationToken,
    /// The time limit of one attempt.
    pub(super) timeout: Duration,
    /// End after the first success.
    pub(super) one_time: bool,
    /// Stop polling after the first success.
    pub(super) park: bool,
    /// The instant the machine's times are relative to.
    pub(super) origin: Instant,
    /// True once an attempt has succeeded.
    pub(super) succeeded: bool,
    /// True if an attempt since the last success lacked room, or had to drop the spare for it.
    pub(super) lacked_room: bool,
    /// When the status file was last written.
    pub(super) recorded: Instant,
    /// The revision that was current when polling stopped.
    pub(super) parked: Option<Revision>,
}

impl<W: Work> Drive<'_, W> {
    /// Runs the loop until the sync ends.
    pub(super) async fn run(mut self) -> End {
        self.report.promise_update(self.timeout);
        let bounds = self.bounds();
        match self.work.verify_found(&bounds).await {
            Ok(published) => self.report.report_current(self.work.view(), published.as_ref()).await,
            Err(error) => self.report.verify_failed(&error),
        }
        self.report_waiting();
        let end = loop {
            if !self.wait_until_due().await {
                break End::Drained;
            }
            let trigger = self.machine.start(self.now());
            let number = self.report.attempt_began(trigger, self.timeout);
            let span = tracing::info_span!("sync", attempt = number, trigger = trigger.label());
            if let Some(end) = self.attempt().instrument(span).await {
                break end;
            }
        };
        self.work.stop();
        // What the process waits for after the loop, its hooks and deliveries, has time limits of its own.
        self.report.promise_update(Duration::MAX);
        let status = self.report.last_status(self.work.view());
        // A hanging file system must not delay the shutdown any longer.
        let _ = tokio::time::timeout(LAST_RECORD, self.work.record(status)).await;
        end
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn bounds(&self) -> Bounds {
        Bounds::new(self.timeout, self.draining.clone())
    }

    fn report_waiting(&self) {
        let wait = self.machine.due().map(|due| due.saturating_sub(self.now()));
        self.report.attempt_scheduled(wait, self.work.view());
    }

    /// Waits until an attempt is due, and repairs the root meanwhile. Returns false at shutdown.
    async fn wait_until_due(&mut self) -> bool {
        let mut repaired = Instant::now();
        loop {
            let due = match self.machine.due() {
                Some(due) => self.origin + due,
                None => Instant::now() + NEVER,
            };
            let look = self.parked.map(|_| self.machine.period());
            let repair = self.work.next_repair().into_iter().chain(look).min();
            let repair = repair.map(|after| repaired + after.max(REPAIR_SPACING)).filter(|at| *at < due);
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return false,
                Some(trigger) = self.triggers.recv() => { self.machine.trigger(trigger); }
                () = tokio::time::sleep_until(repair.unwrap_or(due)) => {
                    if repair.is_none() {
                        return true;
                    }
                    repaired = Instant::now();
                    self.report.promise_update(self.timeout);
                    let bounds = self.bounds();
                    let result = self.work.repair(&bounds).await;
                    self.after_repair(result).await;
                    self.report.promise_update(due.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// Reports a repair between attempts, and does what follows a publication if there was one.
    async fn after_repair(&mut self, result: Result<Option<Published>, Error>) {
        let is_repaired = result.is_ok();
        let is_well = is_repaired && self.succeeded && self.machine.failures() == 0;
        let (result, published) = match result {
            Ok(published) => (Ok(()), published),
            Err(error) => (Err(error), None),
        };
        // A commit id cannot change, so there is nothing else to ask: the commit that is published in a root in order is
        // the success that an attempt would be. Otherwise the last success would look as if the sync had stopped.
        let view = self.work.view();
        if is_repaired && self.parked.is_some() && self.parked == view.revision() && !view.is_damaged {
            self.report.confirmed();
            self.record_if_due(false).await;
        }
        self.report.root_repaired(self.work.view(), result);
        if published.is_some() {
            self.report.report_current(self.work.view(), published.as_ref()).await;
            self.work.notify_hooks();
            self.run_housekeeping().await;
            let status = self.report.status(self.work.view());
            self.work.record(status).await;
        } else if is_well && self.work.needs_housekeeping() {
            self.run_housekeeping().await;
        } else if is_repaired && self.machine.failures() > 0 && self.work.needs_housekeeping() {
            self.replace_spare(false).await; // it may have had to wait, or have failed
        }
    }

    /// Begins the spare again after a failure, if the attempt may have used it up: otherwise the next one would write
    /// its generation in full.
    async fn replace_spare(&mut self, is_root_missing: bool) {
        let why = if self.machine.phase() == Phase::GivenUp {
            "no attempt follows that could use it"
        } else if is_root_missing {
            "the root is missing"
        } else if self.lacked_room {
            "its room is needed" // the next attempt would drop it to make room, and lack it again
        } else if !self.work.needs_housekeeping() {
            "the last one was not used"
        } else {
            let bounds = Bounds::new(BEGIN_SPARE, self.draining.clone());
            return self.work.prepare_spare(&bounds).await;
        };
        debug!(why, "no spare is prepared");
    }

    /// Does what follows a success after its report: notifies hooks and runs the housekeeping.
    async fn follow_up(&mut self, done: &Done) {
        // Hooks and housekeeping also run after the first success of the process: the spare may be missing.
        let first = !std::mem::replace(&mut self.succeeded, true);
        let publishes = first || matches!(done, Done::Published(_));
        if publishes {
            self.work.notify_hooks();
        }
        // Any number of commits may leave the published files as they are, or have to wait, and each leaves a pack.
        let fetched = matches!(done, Done::Unchanged | Done::Postponed) && self.work.has_fetched();
        if publishes || fetched || self.work.needs_housekeeping() {
            self.run_housekeeping().await;
        }
    }

    /// Collects the garbage that revisions left which were fetched and then not published. Once for each fetch, not at
    /// each failure: a mirror that is still large then does not become smaller by itself.
    async fn collect_unpublished(&mut self) {
        if self.work.has_fetched() {
            let bounds = self.housekeeping_bounds().await;
            self.work.collect_garbage(&bounds).await;
        }
    }

    /// Runs the housekeeping within a time limit of its own.
    async fn run_housekeeping(&mut self) {
        let bounds = self.housekeeping_bounds().await;
        self.work.housekeep(&bounds).await;
    }

    /// The time for housekeeping, from now on.
    async fn housekeeping_bounds(&mut self) -> Bounds {
        self.report.promise_update(self.timeout); // what ran before may have used up the time promised for it
        let bounds = self.bounds();
        let limit = self.work.housekeeping_limit(&bounds).await;
        self.report.promise_update(limit);
        Bounds::new(limit, self.draining.clone())
    }

    /// Writes the status to the root if there is news, or if the last write is too old.
    async fn record_if_due(&mut self, is_news: bool) {
        if is_news || self.recorded.elapsed() >= RECORD {
            self.recorded = Instant::now();
            let status = self.report.status(self.work.view());
            self.work.record(status).await;
        }
    }

    /// Runs one attempt and what follows it. Returns `Some` if the sync ends with it.
    async fn attempt(&mut self) -> Option<End> {
        let bounds = self.bounds();
        let earliest = self.machine.earliest_publication(self.now()).filter(|_| !self.one_time);
        self.attempts.started();
        let result = self.run_attempt(&bounds, earliest.is_none()).await;
        if matches!(result, Err(Error::Interrupted)) {
            return Some(End::Drained);
        }
        self.schedule_next(&result, earliest);
        let republished = self.work.take_republished();
        if republished.is_some() {
            self.report.report_current(self.work.view(), republished.as_ref()).await;
            // A hook that is trying again must not do so in the directory that is gone.
            if self.succeeded {
                self.work.notify_hooks();
            }
        }
        let given_up_at =
            (self.machine.phase() == Phase::GivenUp).then(|| self.machine.limit().unwrap_or_default());
        let count = FailureCount { failures: self.machine.failures(), given_up_at };
        let is_news = self.report.attempt_ended(&result, bounds.stage(), self.work.view(), count).await;
        match &result {
            Ok(done) => {
                self.lacked_room = false;
                self.follow_up(done).await;
            }
            // An attempt that stages the same revision would drop the spare again. None does if that is refused.
            Err(error) => {
                self.lacked_room |= error.lacks_room() || self.work.dropped_spare() && !error.is_refusal();
                // What was fetched last stays, as it may still be published. A mirror that deliveries used until the
                // end of the attempt is not waited for again, and a fetch that broke off is first tried again.
                let is_in_use = matches!(error, Error::UpstreamInUse { .. });
                if !is_in_use && !error.is_connection_failure() && !error.is_root_missing() {
                    self.collect_unpublished().await;
                }
            }
        }
        self.report_waiting();
        self.record_if_due(is_news || republished.is_some()).await;
        if let Err(error) = &result {
            self.replace_spare(error.is_root_missing()).await; // last, as it may have to wait
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

    /// Runs the work of an attempt to its end. Takes triggers meanwhile, which cause one more attempt, and reports the
    /// progress.
    async fn run_attempt(&mut self, bounds: &Bounds, may_publish: bool) -> Result<Done, Error> {
        let attempt = self.work.attempt(bounds, may_publish);
        tokio::pin!(attempt);
        let mut progress = tokio::time::interval_at(Instant::now() + PROGRESS, PROGRESS);
        loop {
            tokio::select! {
                biased;
                result = &mut attempt => return result,
                Some(trigger) = self.triggers.recv() => { self.machine.trigger(trigger); }
                _ = progress.tick() => self.report.progress(bounds.stage()),
            }
        }
    }

    /// Passes the result of an attempt to the state machine, which decides when the next one is due, and to deliveries.
    /// Stops polling after a success if that is configured. `earliest` is when a postponed revision may be published.
    fn schedule_next(&mut self, result: &Result<Done, Error>, earliest: Option<Duration>) {
        let now = self.now();
        match result {
            Ok(Done::Published(_)) => self.machine.publish(now, retry::random_fraction()),
            Ok(Done::Unchanged) => self.machine.succeed(now, retry::random_fraction()),
            Ok(Done::Postponed) => {
                self.machine.postpone(now, earliest.unwrap_or(now), retry::random_fraction());
            }
            Err(error) => self.machine.fail(now, error.failure(), retry::random_fraction()),
        }
        self.attempts.ended(match result {
            Err(error) if !error.is_of_every_source() => Err(error.to_source_error()),
            // If no source has answered, it is still known what is published: deliveries go on with that, and hold back
            // what depends on the sources.
            _ => Ok(self.work.newest()),
        });
        if self.park && matches!(result, Ok(Done::Published(_) | Done::Unchanged)) {
            self.machine.park();
            self.parked = self.work.view().revision();
            self.report.log_parked();
            self.attempts.parked();
        }
    }
}

#[cfg(test)]
mod tests;
