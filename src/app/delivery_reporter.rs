//! Records what the delivery loop does in the log, the status, the metrics and the ledger, with a root and without one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::ledger::LedgerKeeper;
use crate::cluster::Clusters;
use crate::deliver::{self, LoopEvent, Note, Report, Step, Target};
use crate::human;
use crate::mirror::Received;
use crate::phase::{
    Applied, Attempt, LastAnswer, Outcome, Progress, SourceStatus, Status, Trigger, millis, seconds,
};
use crate::repeats::{Repeats, suppressed};
use crate::sources::{PollState, SourceError};
use crate::telemetry::metrics::{Metrics, ResultLabel, SourceLabel};

/// At most this many failed targets are listed in the status and in the log.
const MAX_LISTED: usize = 100;

/// The cluster in the metrics of targets in clusters that are not configured.
const UNKNOWN: &str = "unknown";

/// What the polls found, without a root.
struct Polls {
    /// The time limit of an attempt: of the poll, the fetch and the delivery.
    limit: Duration,
    received: Received,
    /// The part of `received` that is in the metrics already.
    counted: u64,
    /// Whether a remote was reached since the poll before; the error if every source fails.
    outcome: Result<bool, SourceError>,
    /// True if failures of sources were counted for the event that is reported now.
    counted_failures: bool,
}

impl Polls {
    fn new(received: Received, limit: Duration) -> Self {
        let counted = received.bytes();
        Self { limit, received, counted, outcome: Ok(true), counted_failures: false }
    }
}

/// The attempt that runs now.
struct RunningAttempt {
    trigger: Trigger,
    at: Timestamp,
    /// The same on the monotonic clock.
    since: Instant,
}

/// Records the events of the delivery loop in the log, the status, the metrics and the ledger.
pub(super) struct DeliveryReporter {
    /// `None` if deliveries run beside a root. The root's sync loop then owns the attempts, the success and the
    /// liveness in the status, and a delivery only records its own part.
    polls: Option<Polls>,
    status: watch::Sender<Status>,
    metrics: Metrics,
    running: Option<RunningAttempt>,
    /// Limits how often a lasting failure is logged.
    failing: Repeats,
    /// The notes of the previous delivery, which are not logged again.
    noted: Vec<Note>,
    /// The names of the configured clusters. The rules, which an author of commits may write, may name others.
    clusters: BTreeSet<String>,
    ledger: LedgerKeeper,
}

impl DeliveryReporter {
    /// A reporter for deliveries beside a root.
    pub(super) fn with_root(
        status: watch::Sender<Status>,
        metrics: Metrics,
        ledger: LedgerKeeper,
        clusters: &Clusters,
    ) -> Self {
        let names = clusters.names().chain([UNKNOWN]);
        metrics.expect_targets(names, &deliver::Outcome::ALL.map(deliver::Outcome::label));
        Self {
            polls: None,
            status,
            metrics,
            running: None,
            failing: Repeats::default(),
            noted: Vec::new(),
            clusters: clusters.names().map(str::to_owned).collect(),
            ledger,
        }
    }

    /// A reporter for deliveries without a root. `limit` is the time limit of an attempt: of the poll, the fetch and the
    /// delivery.
    pub(super) fn without_root(
        status: watch::Sender<Status>,
        metrics: Metrics,
        clusters: &Clusters,
        received: Received,
        limit: Duration,
    ) -> Self {
        let polls = Some(Polls::new(received, limit));
        Self { polls, ..Self::with_root(status, metrics, LedgerKeeper::default(), clusters) }
    }

    /// True if a root is published, too.
    fn has_root(&self) -> bool {
        self.polls.is_none()
    }

    /// Records one event of the delivery loop and, before it, what the polls found, which `take_state` takes. In the
    /// middle of an attempt only the `answers` are recorded, and the rest when it ends.
    pub(super) fn record(
        &mut self,
        event: &LoopEvent<'_>,
        take_state: impl FnOnce() -> PollState,
        answers: impl FnOnce() -> (Vec<SourceStatus>, LastAnswer),
    ) {
        match event {
            LoopEvent::Runs(_) => self.answered(answers()),
            _ => self.polled(take_state()),
        }
        self.report(event);
    }

    /// Shows in the status which remotes have answered.
    fn answered(&self, (sources, last_answer): (Vec<SourceStatus>, LastAnswer)) {
        self.status.send_modify(|status| {
            status.sources = sources;
            status.last_answer = last_answer;
        });
    }

    /// Records what the polls found, before the event that it led to.
    fn polled(&mut self, found: PollState) {
        let PollState { sources, last_answer, outcome, failures, .. } = found;
        let Some(polls) = &mut self.polls else { return };
        let bytes = polls.received.bytes();
        self.metrics.fetched_bytes.inc_by(bytes.saturating_sub(polls.counted));
        polls.counted = bytes;
        polls.outcome = outcome;
        polls.counted_failures = !failures.is_empty();
        failures.iter().for_each(|(stage, class)| self.metrics.error(stage, class.label()));
        self.metrics.sources(sources.iter().map(|source| (source.name.as_str(), source.error.is_some())));
        self.answered((sources, last_answer));
    }

    /// Records one event of the delivery loop.
    pub(super) fn report(&mut self, event: &LoopEvent<'_>) {
        match event {
            LoopEvent::Begins(trigger) => self.begins(*trigger),
            LoopEvent::Runs(step) => self.runs(*step),
            LoopEvent::Unchanged { success } => self.unchanged(*success),
            LoopEvent::Delivered(report) => self.delivered(report),
            LoopEvent::Failed(error) => self.failed(error),
            LoopEvent::Waits(_) if self.has_root() => {}
            LoopEvent::Waits(wait) => {
                let next = Timestamp::now().checked_add(*wait).ok();
                self.status.send_modify(|status| {
                    status.next_attempt = next;
                    status.promise_update(*wait);
                });
            }
            LoopEvent::Unanswered => {
                warn!("a requested delivery was not started: the process is shutting down");
            }
        }
    }

    fn begins(&mut self, trigger: Trigger) {
        let now = Timestamp::now();
        self.running = Some(RunningAttempt { trigger, at: now, since: Instant::now() });
        let Some(polls) = &self.polls else { return };
        self.metrics.attempt_start.set(seconds(now));
        self.metrics.phase_changed.set(seconds(now));
        // The others are counted when they are received.
        if matches!(trigger, Trigger::StartUp | Trigger::Timer) {
            self.metrics.triggers.get_or_create(&SourceLabel { source: trigger.label() }).inc();
        }
        self.status.send_modify(|status| {
            status.starting = None;
            status.promise_update(polls.limit);
        });
    }

    /// Shows in the status that the attempt is still running, and its step.
    fn runs(&self, step: Step) {
        let Some(running) = &self.running else { return };
        let fetched = |polls: &Polls| polls.received.bytes().saturating_sub(polls.counted);
        let progress = Some(Progress {
            since: running.at,
            stage: step.label().to_owned(),
            what: step.phrase().to_owned(),
            fetched_bytes: self.polls.as_ref().map_or(0, fetched),
        });
        let has_root = self.has_root();
        self.status.send_modify(|status| {
            let shown = if has_root { &mut status.delivery_progress } else { &mut status.progress };
            *shown = progress;
        });
    }

    /// Records that there was nothing new to deliver. If every source fails, that is a failure, as with a root.
    fn unchanged(&mut self, success: bool) {
        match self.polls.as_ref().and_then(|polls| polls.outcome.clone().err()) {
            Some(error) => self.failed(&error),
            None => {
                self.metrics.delivery_failures.set(0); // the last delivery reached the clusters
                self.ended(Outcome::Unchanged, success, None, Vec::new());
            }
        }
    }

    /// Records a delivery that reached the clusters, whatever its outcome.
    fn delivered(&mut self, report: &Report) {
        let failed: Vec<&Target> =
            report.targets.iter().filter(|target| !target.outcome.is_success()).collect();
        let of_targets = failed.iter().map(|target| failure_line(target, 0));
        let failures: Vec<String> = of_targets.chain(report.failures.iter().cloned()).collect();
        self.count(report, &failed);
        self.log(report, &failures);
        // The ledger's file is written: other tasks of this worker thread must not wait for it.
        tokio::task::block_in_place(|| self.ledger.record(report));
        self.fill_status(report, &failures);
        let outcome = match (failures.is_empty(), report.differs()) {
            (false, _) => Outcome::Failed,
            (true, true) => Outcome::Published,
            (true, false) => Outcome::Unchanged,
        };
        let hints: BTreeSet<&String> = failed.iter().flat_map(|target| &target.hints).collect();
        let hints = hints.into_iter().cloned().collect();
        self.ended(outcome, failures.is_empty(), failures.first().cloned(), hints);
    }

    /// Counts a delivery in the metrics.
    fn count(&self, report: &Report, failed: &[&Target]) {
        self.metrics.delivery_failures.set(0);
        for target in failed {
            self.metrics.error("apply", if target.transient { "transient" } else { "permanent" });
        }
        report.failures.iter().for_each(|_| self.metrics.error("apply", "transient"));
        let cluster = |name| self.clusters.get(name).map_or(UNKNOWN, String::as_str);
        let ended = report.targets.iter().map(|target| (cluster(&target.cluster), target.outcome.label()));
        self.metrics.delivered(ended);
    }

    /// Logs what a delivery wrote, its result, and the notes that the delivery before did not have.
    fn log(&mut self, report: &Report, failures: &[String]) {
        for target in report.targets.iter().filter(|target| target.outcome.is_write()) {
            let changed_keys = target.added.len() + target.changed.len() + target.removed.len();
            let outcome = target.outcome.label();
            let place = format!("{}/{}", target.cluster, target.namespace);
            info!(changed_keys, "{place}/{}: {outcome}: {}", target.name, target.why);
        }
        let counts = report.counts();
        let counts: Vec<String> =
            counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        let revision = report.revision;
        let summary = format!("revision {}: {}", revision.short(), counts.join(", "));
        if failures.is_empty() {
            if report.differs() {
                info!(%revision, "{summary}");
            } else {
                tracing::debug!(%revision, "{summary}");
            }
        } else if let Some(times) = self.failing.should_log(&failures.join("\n")) {
            for (lines, hints) in failures_with_hints(report) {
                lines.iter().for_each(|line| error!("{line}"));
                hints.iter().for_each(|hint| info!("hint: {hint}"));
            }
            warn!(%revision, "{summary}{}", suppressed(times));
        }
        for note in report.notes.iter().filter(|note| !self.noted.contains(note)) {
            warn!("{note}");
            note.hint.iter().for_each(|hint| info!("hint: {hint}"));
        }
        self.noted.clone_from(&report.notes);
    }

    /// Shows a delivery in the status.
    fn fill_status(&self, report: &Report, failures: &[String]) {
        let at = Timestamp::now();
        let in_sync = report.clusters_in_sync();
        self.status.send_modify(|status| {
            let (mut clusters, mut totals) =
                status.applied.take().map(|before| (before.clusters, before.totals)).unwrap_or_default();
            for (cluster, _) in in_sync.iter().filter(|(_, in_sync)| **in_sync) {
                clusters.insert((*cluster).to_owned(), at);
            }
            let targets: BTreeMap<String, u64> =
                report.counts().into_iter().map(|(outcome, count)| (outcome.to_owned(), count)).collect();
            for (outcome, count) in &targets {
                *totals.entry(outcome.clone()).or_default() += count;
            }
            let open = failures.iter().take(MAX_LISTED).cloned().collect();
            let revision = report.revision;
            status.targets = self.ledger.targets();
            status.applied = Some(Applied { revision, at, targets, totals, open, clusters });
            // As with a root, an outage after the first success does not make the process unready.
            status.ready |= !self.has_root() && report.is_served();
        });
    }

    /// Records an attempt that failed before it reached any cluster.
    fn failed(&mut self, error: &SourceError) {
        if self.has_root() {
            self.metrics.delivery_failures.inc();
        }
        // The failures of sources have been counted already.
        if !self.polls.as_ref().is_some_and(|polls| polls.counted_failures && polls.outcome.is_err()) {
            self.metrics.error("apply", error.class.label());
        }
        let what = human::one_line(error);
        if let Some(times) = self.failing.should_log(&what) {
            error!("{what}{}", suppressed(times));
            error.hints.iter().for_each(|hint| info!("hint: {hint}"));
        }
        self.ended(Outcome::Failed, false, Some(what), error.hints.clone());
    }

    /// Records the end of an attempt. An unchanged revision is a success only if its last delivery was one (`success`).
    fn ended(&mut self, outcome: Outcome, success: bool, error: Option<String>, hints: Vec<String>) {
        let Some(RunningAttempt { trigger, at, since }) = self.running.take() else { return };
        if success {
            self.failing.forget();
        }
        let duration_ms = millis(since.elapsed());
        let attempt = Attempt { at, trigger, outcome, duration_ms, error, hints };
        if self.has_root() {
            self.status.send_modify(|status| {
                status.delivery_progress = None;
                // An unchanged revision whose delivery failed must not hide that failure.
                if success || outcome == Outcome::Failed {
                    status.last_delivery = Some(attempt);
                }
            });
            return;
        }
        let result = match outcome {
            Outcome::Published => "published",
            Outcome::Unchanged => "unchanged",
            Outcome::Failed => "failed",
        };
        self.metrics.syncs.get_or_create(&ResultLabel { result }).inc();
        let now = Timestamp::now();
        self.metrics.attempt_start.set(None);
        self.metrics.phase_changed.set(seconds(now));
        self.metrics.last_attempt.set(seconds(now));
        // While no remote is reached, it is not known that anything is up to date.
        let is_reached = self.polls.as_ref().is_none_or(|polls| polls.outcome == Ok(true));
        if success && is_reached {
            self.metrics.succeeded(Some(seconds(now)));
        }
        self.status.send_modify(|status| {
            status.progress = None;
            if outcome == Outcome::Failed {
                status.consecutive_failures += 1;
                status.last_failure = Some(attempt.clone());
                status.failing_since.get_or_insert(now);
            } else if success {
                status.failing_since = None;
                status.consecutive_failures = 0;
                status.last_success = if is_reached { Some(now) } else { status.last_success };
            }
            let failures = i64::try_from(status.consecutive_failures).unwrap_or(i64::MAX);
            self.metrics.consecutive_failures.set(failures);
            status.last_attempt = Some(attempt);
        });
    }
}

/// A target that is not as it should be, in a line; `more` others are so by the same cause.
fn failure_line(target: &Target, more: usize) -> String {
    let Target { cluster, namespace, name, outcome, why, .. } = target;
    let others = if more == 0 { String::new() } else { format!(" (and {more} more)") };
    format!("{cluster}/{namespace}/{name}{others}: {}: {why}", outcome.label())
}

/// What is logged of a delivery that failed: lines, and the hints that follow them. All targets that fail by a cause of
/// their whole cluster or namespace are one line, and each hint is given once. Such causes come before those of single
/// targets: they have to be within the limit, as failures that only repeat them are left out.
fn failures_with_hints(report: &Report) -> Vec<(Vec<String>, Vec<&String>)> {
    let failures: Vec<String> = report.other_failures().take(MAX_LISTED).cloned().collect();
    let mut log = vec![(failures, Vec::new())];
    let mut left = MAX_LISTED;
    let mut given = BTreeSet::new();
    let mut causes = report.causes();
    causes.sort_by_key(|targets| !targets[0].has_shared_cause());
    for targets in causes {
        let first: &Target = targets[0];
        let mut lines: Vec<String> = if first.has_shared_cause() {
            vec![failure_line(first, targets.len() - 1)]
        } else {
            targets.iter().map(|target| failure_line(target, 0)).collect()
        };
        lines.truncate(left);
        if lines.is_empty() {
            break;
        }
        left -= lines.len();
        log.push((lines, first.hints.iter().filter(|hint| given.insert(*hint)).collect()));
    }
    log
}

#[cfg(test)]
mod tests;
