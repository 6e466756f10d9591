//! Reports what the loop does: status, log, metrics, touch file and error file. It changes nothing in the root or the
//! mirror.

mod counting;
mod view_status;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::Options;
use super::error::{Error, Stage};
use super::operator_files::{self, FailureCount};
use super::view::{Done, View};
use crate::human::{go_duration, one_line};
use crate::mirror::Received;
use crate::phase::{Attempt, Outcome, Progress, Status, Trigger, millis, seconds};
use crate::repeats::{Repeats, suppressed};
use crate::store::{OperatorFile, Published};
use crate::telemetry::GIT_SYNC;
use crate::telemetry::metrics::{Metrics, SourceLabel};
use view_status::{fill_status, log_agreed, log_published, serving};

/// The running attempt.
#[derive(Clone, Copy, Debug)]
struct Running {
    at: Timestamp,
    since: std::time::Instant,
    trigger: Trigger,
    /// The count of received bytes when the attempt began.
    received: u64,
}

/// What is known before the first attempt.
pub(super) struct InitialState {
    /// The remote's URL without userinfo.
    pub(super) remote: String,
    /// The status that the previous process left in the root.
    pub(super) before: Option<Status>,
    /// Counter of bytes received from the remote.
    pub(super) received: Received,
}

/// Reports attempts. See the module's documentation.
pub(super) struct Report {
    options: Arc<Options>,
    status: watch::Sender<Status>,
    metrics: Metrics,
    /// Limits repeated log lines of failed attempts.
    failing: Repeats,
    /// Limits repeated log lines of failed repairs of the root.
    mending: Repeats,
    /// Limits repeated log lines about the touch file.
    touching: Repeats,
    /// Limits repeated log lines about the error file.
    writing: Repeats,
    attempts: u64,
    /// Counter of bytes received from the remote.
    received: Received,
    /// The part of `received` that is in the metrics already.
    counted: u64,
    running: Option<Running>,
    succeeded: bool,
    /// True if the touch file has to be touched.
    touch_due: bool,
}

impl Report {
    /// Resets the status, keeping its list of hooks, to what is known before the first attempt.
    pub(super) fn new(
        options: Arc<Options>,
        seen: InitialState,
        metrics: Metrics,
        view: &View,
        status: watch::Sender<Status>,
    ) -> Self {
        let InitialState { remote, before, received } = seen;
        let (last_success, earlier_success) = options.known_success(before, view.current(), &remote);
        metrics.succeeded(last_success.map(seconds));
        status.send_modify(|status| {
            let hooks = std::mem::take(&mut status.hooks);
            *status = Status {
                remote,
                ref_name: options.ref_name.clone(),
                root: options.root.display().to_string(),
                last_success,
                earlier_success,
                hooks,
                ready: status.ready,
                ..Status::default()
            };
            fill_status(status, view);
        });
        let report = Self {
            options,
            status,
            metrics,
            failing: Repeats::default(),
            mending: Repeats::default(),
            touching: Repeats::default(),
            writing: Repeats::default(),
            attempts: 0,
            counted: received.bytes(),
            received,
            running: None,
            succeeded: false,
            touch_due: false,
        };
        report.promise_update(Duration::ZERO);
        report.update_metrics(view);
        report
    }

    /// The current status, in the form that is written to the root: without targets, which the root keeps in a separate
    /// file.
    pub(super) fn status(&self, view: &View) -> Status {
        self.status.send_modify(|status| fill_status(status, view));
        Status {
            targets: Vec::new(),
            progress: None,
            delivery_progress: None,
            recorded: Some(Timestamp::now()),
            ..self.status.borrow().clone()
        }
    }

    /// The last status, written when the process ends.
    pub(super) fn last_status(&self, view: &View) -> Status {
        Status { ended: Some(Timestamp::now()), next_attempt: None, ..self.status(view) }
    }

    /// Promises that the loop updates the status again within this time; otherwise it counts as hanging.
    pub(super) fn promise_update(&self, within: Duration) {
        self.status.send_modify(|status| status.promise_update(within));
    }

    /// Reports the current generation after it was compared with its revision, and logs whether it is served as found
    /// or was published afresh. In the latter case it touches the touch file: there may be no attempt that does.
    pub(super) async fn report_current(&mut self, view: &View, published: Option<&Published>) {
        self.status.send_modify(|status| fill_status(status, view));
        self.update_metrics(view);
        match (view.current(), published) {
            (_, Some(published)) => log_published(published, view, Duration::ZERO),
            (Some(record), None) => match record.known_revision() {
                Some(revision) => info!(
                    %revision, generation = %record.name,
                    "already published: {} as {}", revision.short(), record.name
                ),
                None => info!(
                    generation = %record.name,
                    "already published: {}; its revision is not known, because the root has lost its records", record.name
                ),
            },
            (None, None) => {}
        }
        self.touch_due |= published.is_some();
        let touched = operator_files::touch(self.due_touch_file()).await;
        self.log_touched(&touched);
    }

    /// Reports that the current generation could not be compared with its revision, or differs and could not be
    /// published again.
    pub(super) fn verify_failed(&self, error: &Error) {
        if !matches!(error, Error::Interrupted) {
            self.metrics.error("verify", error.class().label());
            warn!(
                error = one_line(error),
                "cannot compare the current generation with its revision, or publish it again"
            );
        }
    }

    /// Reports that no attempt runs for this long; `None`: no attempt will follow.
    pub(super) fn attempt_scheduled(&self, wait: Option<Duration>, view: &View) {
        self.promise_update(wait.unwrap_or(Duration::MAX));
        self.metrics.phase_changed.set(seconds(Timestamp::now()));
        if let Some(wait) = wait.filter(|_| self.attempts > 0) {
            // Rounded, because a few milliseconds of the pause have passed already.
            let rounded = Duration::from_millis(millis(wait + Duration::from_millis(5)) / 10 * 10);
            let passes = self.metrics.git_sync.successes();
            debug!(name: "pause", target: GIT_SYNC, waitTime = go_duration(rounded), syncCount = passes, "waits");
        }
        let next = wait.and_then(|wait| Timestamp::now().checked_add(wait).ok());
        self.status.send_modify(|status| {
            status.next_attempt = next;
            fill_status(status, view);
        });
        self.update_metrics(view);
    }

    /// Reports that polling stops because the ref is a commit id.
    pub(super) fn log_parked(&self) {
        info!(name: "parked", target: GIT_SYNC, git_ref = self.options.ref_name, "parked");
    }

    /// Reports that the root still has the commit for which polling has stopped: a success without an attempt.
    pub(super) fn confirmed(&self) {
        let now = Timestamp::now();
        self.metrics.succeeded(Some(seconds(now)));
        self.status.send_modify(|status| status.last_success = Some(now));
    }

    /// Reports a repair of the root between attempts.
    pub(super) fn root_repaired(&mut self, view: &View, result: Result<(), Error>) {
        match result {
            Ok(()) => self.mending.forget(),
            Err(Error::Interrupted) => {}
            Err(error) => {
                self.metrics.error("repair", error.class().label());
                let gone = error.is_root_missing();
                let error = one_line(&error);
                match self.mending.should_log(&error) {
                    Some(times) if gone => {
                        error!(
                            error,
                            "cannot repair the root{}; the published generation is gone",
                            suppressed(times)
                        );
                    }
                    Some(times) => warn!(error, "cannot repair the root{}", suppressed(times)),
                    None => debug!(error, "still cannot repair the root"),
                }
            }
        }
        self.status.send_modify(|status| fill_status(status, view));
        self.update_metrics(view);
    }

    /// Reports that an attempt begins. Returns its number.
    pub(super) fn attempt_began(&mut self, trigger: Trigger, limit: Duration) -> u64 {
        self.attempts += 1;
        self.promise_update(limit);
        self.status.send_modify(|status| status.next_attempt = None);
        self.metrics.phase_changed.set(seconds(Timestamp::now()));
        if matches!(trigger, Trigger::StartUp | Trigger::Timer) {
            self.metrics.triggers.get_or_create(&SourceLabel { source: trigger.label() }).inc();
        }
        self.metrics.attempt_start.set(seconds(Timestamp::now()));
        let received = self.received.bytes();
        self.running =
            Some(Running { at: Timestamp::now(), since: std::time::Instant::now(), trigger, received });
        self.attempts
    }

    /// Reports that the attempt is still running, and its stage.
    pub(super) fn progress(&mut self, stage: Stage) {
        let bytes = self.count_received();
        self.metrics.stage(Some(stage.label()));
        let Some(running) = self.running else { return };
        self.status.send_modify(|status| {
            status.progress = Some(Progress {
                since: running.at,
                stage: stage.label().to_owned(),
                what: stage.phrase().to_owned(),
                fetched_bytes: bytes.saturating_sub(running.received),
            });
        });
    }

    fn count_received(&mut self) -> u64 {
        let bytes = self.received.bytes();
        self.metrics.fetched_bytes.inc_by(bytes.saturating_sub(self.counted));
        self.counted = bytes;
        bytes
    }

    /// Reports the end of the attempt. Returns true if the status should be written to the root at once: after a
    /// publication, the first failure in a row, the first success of the process or after failures.
    pub(super) async fn attempt_ended(
        &mut self,
        result: &Result<Done, Error>,
        stage: Stage,
        view: &View,
        count: FailureCount,
    ) -> bool {
        let now = Timestamp::now();
        let running = self.running.take();
        self.count_received();
        self.metrics.attempt_start.set(None);
        self.metrics.stage(None);
        let took = running.map_or(Duration::ZERO, |running| running.since.elapsed());
        let failures_before = self.status.borrow().consecutive_failures;
        let attempt = attempt(result, running, now, took);
        let first_success = result.is_ok() && !self.succeeded;
        self.succeeded |= result.is_ok();
        self.count(result, stage, view, now, count.failures);
        self.count_as_git_sync(result, stage, first_success, took);
        // While a source is unanswered, what the gate refused of it may come back.
        let is_accepted = matches!(result, Ok(Done::Published(_) | Done::Unchanged)) && !view.unanswered;
        if view.has_gate && is_accepted {
            self.forget_refusals();
        }
        match result {
            Ok(done) => self.log_success(done, view, failures_before, first_success, took),
            Err(error) => self.log_failure(error, view, count, took),
        }
        self.status.send_modify(|status| {
            fill_status(status, view);
            status.consecutive_failures = u64::from(count.failures);
            status.synced |= result.is_ok();
            match result {
                Ok(_) => {
                    status.failing_since = None;
                    status.last_success = if view.unanswered { status.last_success } else { Some(now) };
                }
                Err(_) => {
                    status.last_failure = Some(attempt.clone());
                    status.failing_since.get_or_insert(now);
                }
            }
            status.progress = None;
            status.last_attempt = Some(attempt);
        });
        self.update_metrics(view);
        // Last, so that a reader that sees the file change finds status and metrics up to date.
        self.write_operator_files(result, first_success, count).await;
        match result {
            Ok(Done::Published(_)) => true,
            Ok(_) => failures_before > 0 || first_success,
            Err(_) => failures_before == 0,
        }
    }

    fn log_success(
        &mut self,
        done: &Done,
        view: &View,
        failures_before: u64,
        first_success: bool,
        took: Duration,
    ) {
        let ref_name = self.options.ref_name.as_str();
        let updates = self.metrics.git_sync.updates();
        match done {
            Done::Published(published) => {
                log_published(published, view, took);
                let remote = published.current.revision;
                info!(name: "updated", target: GIT_SYNC, git_ref = ref_name, %remote, updates, "updated");
            }
            Done::Unchanged => {
                let remote = view.current().map(|record| record.revision).filter(|_| first_success);
                if let Some(remote) = remote {
                    let local = remote;
                    info!(name: "update", target: GIT_SYNC, git_ref = ref_name, %local, %remote, updates = updates.saturating_sub(1), "update");
                    info!(name: "updated", target: GIT_SYNC, git_ref = ref_name, %remote, updates, "updated");
                }
                let remote = view.current().map(|record| record.revision.to_string());
                match view.current().filter(|_| self.options.one_time) {
                    Some(record) => log_agreed(ref_name, record, view, took),
                    None => {
                        debug!(name: "unchanged", remote, git_ref = ref_name, updates, duration_ms = millis(took), "unchanged");
                    }
                }
            }
            Done::Postponed => {
                debug!(duration_ms = millis(took), "a new revision waits for the minimum interval");
            }
        }
        self.failing.forget();
        let pace = &self.options.pace;
        if first_success && pace.init_period != pace.period {
            let init = go_duration(pace.init_period);
            let period = go_duration(pace.period);
            info!(name: "settled", target: GIT_SYNC, initPeriod = init, period, "settled");
        }
        if failures_before > 0 {
            debug!(name: "forgiven", target: GIT_SYNC, failCount = failures_before, "forgiven");
            let plural = if failures_before == 1 { "failure" } else { "failures" };
            info!("recovered after {failures_before} {plural}");
        }
    }

    fn log_failure(&mut self, error: &Error, view: &View, count: FailureCount, took: Duration) {
        let failures = count.failures;
        if let Some(limit) = count.given_up_at {
            // The error itself is printed when the process ends because of it.
            return error!(
                name: "gave_up", target: GIT_SYNC, error = one_line(error), failCount = failures,
                maxFailures = limit, hints = hints(error), "giving up"
            );
        }
        let text = one_line(error);
        let duration_ms = millis(took);
        let times = if self.options.every_failure { Some(0) } else { self.failing.should_log(&text) };
        let Some(times) = times else {
            return debug!(error = text, duration_ms, "sync failed as before");
        };
        let hints = hints(error);
        let repeated = suppressed(times);
        let gone = error.is_root_missing();
        let serving = if gone { "the published generation is gone".to_owned() } else { serving(view) };
        if error.is_transient() && !gone {
            warn!(name: "failed", error = text, failures, hints, duration_ms, "sync failed{repeated}; {serving}");
        } else {
            error!(name: "failed", error = text, failures, hints, duration_ms, "sync failed{repeated}; {serving}");
        }
    }

    /// Touches the touch file if it is due, and writes or removes the error file.
    async fn write_operator_files(
        &mut self,
        result: &Result<Done, Error>,
        first_success: bool,
        count: FailureCount,
    ) {
        self.touch_due |= matches!(result, Ok(Done::Published(_))) || first_success;
        let error = result.as_ref().err();
        let is_first = self.attempts == 1;
        let (touched, written) = tokio::join!(
            operator_files::touch(self.due_touch_file()),
            operator_files::write(&self.options, error, count, is_first)
        );
        self.log_touched(&touched);
        let failures = written.join("; ");
        if failures.is_empty() {
            self.writing.forget();
        } else if let Some(times) = self.writing.should_log(&failures) {
            warn!("{failures}{}", suppressed(times));
        }
    }

    fn due_touch_file(&self) -> Option<&OperatorFile> {
        self.options.touch_file.as_ref().filter(|_| self.touch_due)
    }

    /// Logs whether the touch file could be touched, if it was due, in git-sync's words too. It stays due if not.
    fn log_touched(&mut self, failures: &[String]) {
        let Some(path) = self.due_touch_file().map(|file| file.path().display().to_string()) else { return };
        let Some(error) = failures.first() else {
            self.touch_due = false;
            self.touching.forget();
            return debug!(name: "touched", target: GIT_SYNC, path, "touched");
        };
        if let Some(times) = self.touching.should_log(error) {
            error!(name: "untouched", target: GIT_SYNC, path, error, "untouched");
            warn!("{error}{}", suppressed(times));
        }
    }
}

/// The status of an attempt that ended now.
fn attempt(
    result: &Result<Done, Error>,
    running: Option<Running>,
    now: Timestamp,
    took: Duration,
) -> Attempt {
    Attempt {
        at: running.map_or(now, |running| running.at),
        trigger: running.map_or(Trigger::Timer, |running| running.trigger),
        outcome: match result {
            Ok(Done::Published(_)) => Outcome::Published,
            Ok(Done::Unchanged | Done::Postponed) => Outcome::Unchanged,
            Err(_) => Outcome::Failed,
        },
        duration_ms: millis(took),
        error: result.as_ref().err().map(|error| one_line(error)),
        hints: result.as_ref().err().map(Error::hints).unwrap_or_default(),
    }
}

fn hints(error: &Error) -> Option<String> {
    Some(error.hints().join("; ")).filter(|hints| !hints.is_empty())
}
