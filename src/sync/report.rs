//! What is told about attempts: the status, the log, the metrics, the touch file and the error file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::Options;
use super::attempt::{Done, View};
use super::error::{Error, Stage};
use crate::clock;
use crate::human::one_line;
use crate::phase::{Attempt, GenerationStatus, Outcome, Status, Trigger};
use crate::repeats::{Repeats, unsaid};
use crate::store::Published;
use crate::telemetry::metrics::{Metrics, ResultLabel, SourceLabel, StateLabel};

/// Beyond what the loop promised, before it counts as hanging: a blocking step that was asked to stop needs its time.
const SLACK: Duration = Duration::from_secs(60);

/// The attempt that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    at: Timestamp,
    since: std::time::Instant,
    trigger: Trigger,
}

/// Tells.
pub(super) struct Report {
    options: Arc<Options>,
    status: watch::Sender<Status>,
    metrics: Metrics,
    /// Failed attempts.
    failing: Repeats,
    /// Failures to mend the root.
    mending: Repeats,
    /// Failures to write the files that were asked for.
    writing: Repeats,
    attempts: u64,
    running: Option<Running>,
    succeeded: bool,
}

impl Report {
    pub(super) fn new(
        options: Arc<Options>,
        remote: String,
        metrics: Metrics,
        view: &View,
        status: watch::Sender<Status>,
    ) -> Self {
        status.send_replace(Status {
            remote,
            asked: options.asked.clone(),
            root: options.root.display().to_string(),
            ..Status::default()
        });
        let report = Self {
            options,
            status,
            metrics,
            failing: Repeats::default(),
            mending: Repeats::default(),
            writing: Repeats::default(),
            attempts: 0,
            running: None,
            succeeded: false,
        };
        report.busy(Duration::ZERO);
        report.status.send_modify(|status| show(status, view));
        report.measure(view);
        report
    }

    /// The status as it is now, for the root, which has the targets in its ledger.
    pub(super) fn status(&self, view: &View) -> Status {
        self.status.send_modify(|status| show(status, view));
        Status { targets: Vec::new(), ..self.status.borrow().clone() }
    }

    /// The loop works on something, and will be heard of again.
    pub(super) fn busy(&self, within: Duration) {
        let until = clock::now().boottime.saturating_add(within).saturating_add(SLACK);
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.status.send_modify(|status| status.alive_until_ms = until);
    }

    /// It was compared.
    pub(super) fn found(&self, view: &View, published: Option<&Published>) {
        self.status.send_modify(|status| show(status, view));
        self.measure(view);
        match (view.current(), published) {
            (_, Some(published)) => published_line(published, view, Duration::ZERO),
            (Some(record), None) => info!(
                revision = %record.revision, generation = %record.name,
                "serving {} as {} from before", record.revision.short(), record.name
            ),
            (None, None) => {}
        }
    }

    /// It could not be compared.
    pub(super) fn unverified(&self, error: &Error) {
        if !matches!(error, Error::Interrupted) {
            self.metrics.error("verify", error.class());
            warn!(error = one_line(error), "cannot compare the current generation with its revision");
        }
    }

    /// No attempt runs until then; none: no attempt will.
    pub(super) fn waiting(&self, wait: Option<Duration>, view: &View) {
        self.busy(wait.unwrap_or(Duration::MAX));
        self.metrics.phase_changed.set(seconds(Timestamp::now()));
        let next = wait.and_then(|wait| Timestamp::now().checked_add(wait).ok());
        self.status.send_modify(|status| {
            status.next_attempt = next;
            show(status, view);
        });
    }

    /// The root was mended between attempts.
    pub(super) fn mended(&mut self, view: &View, result: Result<(), Error>) {
        match result {
            Ok(()) => self.mending.forget(),
            Err(Error::Interrupted) => {}
            Err(error) => {
                self.metrics.error("mend", error.class());
                let error = one_line(&error);
                match self.mending.say(&error) {
                    Some(times) => warn!(error, "cannot mend the root{}", unsaid(times)),
                    None => debug!(error, "still cannot mend the root"),
                }
            }
        }
        self.status.send_modify(|status| show(status, view));
        self.measure(view);
    }

    /// An attempt begins; its number.
    pub(super) fn syncing(&mut self, trigger: Trigger, limit: Duration) -> u64 {
        self.attempts += 1;
        self.busy(limit);
        self.status.send_modify(|status| status.next_attempt = None);
        self.metrics.phase_changed.set(seconds(Timestamp::now()));
        if matches!(trigger, Trigger::StartUp | Trigger::Timer) {
            self.metrics.triggers.get_or_create(&SourceLabel { source: trigger.word() }).inc();
        }
        self.running = Some(Running { at: Timestamp::now(), since: std::time::Instant::now(), trigger });
        self.attempts
    }

    /// The attempt ended. Whether its outcome is worth keeping across a restart: a publication, the first failure in a
    /// row, the first success after failures.
    pub(super) async fn ended(
        &mut self,
        result: &Result<Done, Error>,
        stage: Stage,
        view: &View,
        failures: u32,
    ) -> bool {
        let now = Timestamp::now();
        let running = self.running.take();
        let took = running.map_or(Duration::ZERO, |running| running.since.elapsed());
        let failures_before = self.status.borrow().consecutive_failures;
        let attempt = Attempt {
            at: running.map_or(now, |running| running.at),
            trigger: running.map_or(Trigger::Timer, |running| running.trigger),
            outcome: match result {
                Ok(Done::Published(_)) => Outcome::Published,
                Ok(Done::Unchanged | Done::Held) => Outcome::Unchanged,
                Err(_) => Outcome::Failed,
            },
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            error: result.as_ref().err().map(|error| one_line(error)),
            hints: result.as_ref().err().map(Error::hints).unwrap_or_default(),
        };
        let first_success = result.is_ok() && !self.succeeded;
        self.succeeded |= result.is_ok();
        self.count(result, stage, now, failures);
        self.count_as_git_sync(result, stage, first_success, took);
        self.say(result, view, failures_before, took);
        self.status.send_modify(|status| {
            show(status, view);
            status.consecutive_failures = u64::from(failures);
            match result {
                Ok(_) => status.last_success = Some(now),
                Err(_) => status.last_failure = Some(attempt.clone()),
            }
            status.last_attempt = Some(attempt);
        });
        self.measure(view);
        // Last: whoever sees the file finds status and metrics as they are then.
        self.files(result, first_success).await;
        match result {
            Ok(Done::Published(_)) => true,
            Ok(_) => failures_before > 0 || first_success,
            Err(_) => failures_before == 0,
        }
    }

    fn count(&self, result: &Result<Done, Error>, stage: Stage, now: Timestamp, failures: u32) {
        let label = match result {
            Ok(Done::Published(_)) => "published",
            Ok(Done::Unchanged | Done::Held) => "unchanged",
            Err(error) => {
                self.metrics.error(stage.label(), error.class());
                "failed"
            }
        };
        self.metrics.syncs.get_or_create(&ResultLabel { result: label }).inc();
        self.metrics.consecutive_failures.set(failures.into());
        self.metrics.last_attempt.set(seconds(now));
        if result.is_ok() {
            self.metrics.last_success.set(seconds(now));
        }
    }

    /// By git-sync's rules: the first success of a process is an update, too.
    fn count_as_git_sync(
        &self,
        result: &Result<Done, Error>,
        stage: Stage,
        first_success: bool,
        took: Duration,
    ) {
        let (status, update) = match result {
            Ok(Done::Published(_)) => ("success", true),
            Ok(_) if first_success => ("success", true),
            Ok(_) => ("noop", false),
            Err(_) => ("error", matches!(stage, Stage::Export | Stage::Gate | Stage::Publish)),
        };
        self.metrics.git_sync.pass(status, took);
        if update {
            self.metrics.git_sync.update();
        }
    }

    fn say(&mut self, result: &Result<Done, Error>, view: &View, failures_before: u64, took: Duration) {
        match result {
            Err(error) => self.say_failure(error, view, took),
            Ok(Done::Published(published)) => published_line(published, view, took),
            Ok(Done::Unchanged) => debug!(duration_ms = millis(took), "unchanged"),
            Ok(Done::Held) => {
                debug!(duration_ms = millis(took), "a new revision waits for the minimum interval");
            }
        }
        if result.is_ok() {
            self.failing.forget();
            if failures_before > 0 {
                let plural = if failures_before == 1 { "failure" } else { "failures" };
                info!("recovered after {failures_before} {plural}");
            }
        }
    }

    fn say_failure(&mut self, error: &Error, view: &View, took: Duration) {
        let (text, duration_ms) = (one_line(error), millis(took));
        let Some(times) = self.failing.say(&text) else {
            return debug!(error = text, duration_ms, "sync failed as before");
        };
        let hints = Some(error.hints().join("; ")).filter(|hints| !hints.is_empty());
        let (unsaid, serving) = (unsaid(times), serving(view));
        if error.is_transient() {
            warn!(error = text, hints, duration_ms, "sync failed{unsaid}; {serving}");
        } else {
            error!(error = text, hints, duration_ms, "sync failed{unsaid}; {serving}");
        }
    }

    /// Touches the touch file, and writes or removes the error file.
    async fn files(&mut self, result: &Result<Done, Error>, first_success: bool) {
        let touch = match result {
            Ok(Done::Published(_)) => self.options.touch_file.clone(),
            Ok(_) if first_success => self.options.touch_file.clone(),
            _ => None,
        };
        let error_file = self.options.error_file.clone();
        let error = result.as_ref().err().map(|error| ErrorFile::of(error, &self.options));
        let work = move || {
            let touched = touch.map(|path| complaint("touch", &path, touch_file(&path)));
            let written = error_file.map(|path| match error {
                Some(error) => complaint("write", &path, error.write(&path)),
                None => complaint("remove", &path, absent(fs_err::remove_file(&path))),
            });
            [touched, written].into_iter().flatten().flatten().collect::<Vec<_>>()
        };
        let complaints = tokio::task::spawn_blocking(work).await.unwrap_or_default().join("; ");
        if complaints.is_empty() {
            self.writing.forget();
        } else if let Some(times) = self.writing.say(&complaints) {
            warn!("{complaints}{}", unsaid(times));
        }
    }

    fn measure(&self, view: &View) {
        let pinned = view.plan.verdicts.iter().filter(|verdict| verdict.pinned).count();
        let current = usize::from(view.current().is_some());
        let set = |state, count: usize| {
            self.metrics
                .generations
                .get_or_create(&StateLabel { state })
                .set(i64::try_from(count).unwrap_or(0));
        };
        set("current", current);
        set("retired", view.generations.len() - current);
        set("pinned", pinned);
        if let Some(free) = view.free {
            self.metrics.root_free_bytes.set(i64::try_from(free).unwrap_or(i64::MAX));
        }
        if let Some(record) = view.current() {
            self.metrics.name_current(record.revision.to_string(), record.name.to_string());
            self.metrics.generation_bytes.set(i64::try_from(record.bytes).unwrap_or(i64::MAX));
            self.metrics.last_publish.set(seconds(record.published));
        }
    }
}

/// Puts what was seen of the root into the status.
fn show(status: &mut Status, view: &View) {
    status.ready |= view.ready;
    let shown = |record: &crate::generation::Record| {
        let verdict = view.plan.verdicts.iter().find(|verdict| verdict.name == record.name);
        let is_current = view.current.as_ref() == Some(&record.name);
        let reason = verdict.map(|verdict| verdict.reason.clone());
        GenerationStatus {
            name: record.name.clone(),
            revision: record.revision,
            entries: record.entries,
            bytes: record.bytes,
            published: record.published,
            retired: record.retired.as_ref().map(|retired| retired.at),
            pinned: verdict.is_some_and(|verdict| verdict.pinned),
            reason: reason.unwrap_or_else(|| if is_current { "current" } else { "retired" }.to_owned()),
        }
    };
    status.current = view.current().map(shown);
    let retired = view.generations.iter().filter(|record| view.current.as_ref() != Some(&record.name));
    status.retired = retired.map(shown).collect();
}

fn published_line(published: &Published, view: &View, took: Duration) {
    let Published { current, previous, warnings } = published;
    let before = view.generations.iter().find(|record| previous.as_ref() == Some(&record.name));
    let before = before.filter(|record| record.is_known());
    let was = before.map(|record| format!(" (was {})", record.revision.short())).unwrap_or_default();
    info!(
        revision = %current.revision, generation = %current.name, bytes = current.bytes,
        duration_ms = millis(took),
        "published {} as {} in {:.3}s{was}", current.revision.short(), current.name, took.as_secs_f64()
    );
    if current.entries == 0 {
        let revision = current.revision.short();
        warn!(
            "{} is empty: {revision} has no files, or the sparse patterns choose none of them",
            current.name
        );
    }
    for line in warnings {
        warn!("after the swap: {line}");
    }
}

fn serving(view: &View) -> String {
    match view.current() {
        Some(record) => format!("{} keeps serving", record.revision.short()),
        None => "nothing is published yet".to_owned(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

fn complaint(act: &str, path: &Path, result: std::io::Result<()>) -> Option<String> {
    result.err().map(|error| format!("cannot {act} {}: {error}", path.display()))
}

fn absent(result: std::io::Result<()>) -> std::io::Result<()> {
    result.or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Creates the file or sets its times to now, its directories included, as git-sync does.
fn touch_file(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    let file = fs_err::OpenOptions::new().create(true).append(true).open(path)?;
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let now = rustix::fs::Timestamps { last_access: now, last_modification: now };
    rustix::fs::futimens(file.file(), &now).map_err(Into::into)
}

/// git-sync's error file.
#[derive(serde::Serialize)]
struct ErrorFile {
    #[serde(rename = "Msg")]
    message: &'static str,
    #[serde(rename = "Err")]
    error: String,
    #[serde(rename = "Args")]
    arguments: serde_json::Map<String, serde_json::Value>,
}

impl ErrorFile {
    fn of(error: &Error, options: &Options) -> Self {
        let mut arguments = serde_json::Map::new();
        arguments.insert("ref".to_owned(), options.asked.clone().into());
        arguments.insert("hints".to_owned(), error.hints().into());
        Self { message: "sync failed", error: one_line(error), arguments }
    }

    /// Through a temporary name and a rename: a reader sees the old text or the new one.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let parent = path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
        fs_err::create_dir_all(&parent)?;
        let temporary = parent.join(format!("..treeswap-error-{}", std::process::id()));
        fs_err::write(&temporary, serde_json::to_vec(self)?)?;
        fs_err::rename(&temporary, path)
    }
}
