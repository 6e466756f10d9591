//! Runs one hook: a slot for the newest generation, and a task that runs the hook for what is in the slot, with
//! retries.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::human::go_duration;
use crate::phase::millis;
use crate::repeats::{Repeats, suppressed};

use super::{Error, Exec, Failure, FinishedRun, HookEvent, Kind, Observer, PinnedGeneration, Webhook};

/// What a hook does.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Runs a program.
    Exec(Exec),
    /// Sends a request.
    Web(Webhook),
}

/// The result of a run that succeeded, for the log.
enum Output {
    /// The end of the program's output.
    Program(String),
    /// The response's status.
    Status(u16),
}

impl Job {
    fn backoff(&self) -> Duration {
        match self {
            Self::Exec(exec) => exec.backoff,
            Self::Web(web) => web.backoff,
        }
    }

    /// Logs the start of a run in git-sync's words (target `git-sync`).
    fn log_start(&self, kind: Kind, event: &HookEvent) {
        let hook = kind.label();
        let revision = event.revision;
        match self {
            Self::Exec(exec) => info!(
                name: "exec_runs", target: "git-sync", hook, %revision, command = %exec.command.display(),
                timeout = go_duration(exec.timeout), "running"
            ),
            Self::Web(web) => info!(
                name: "web_runs", target: "git-sync", hook, %revision, url = web.shown(), method = %web.method,
                timeout = go_duration(web.timeout), "sending"
            ),
        }
    }

    /// Does the job. A program may take no longer than `limit` and its timeout.
    async fn run(
        &self,
        event: &HookEvent,
        limit: Duration,
        stop: &CancellationToken,
    ) -> Result<Output, Failure> {
        match self {
            Self::Exec(exec) => exec.run(event, limit, stop).await.map(Output::Program),
            Self::Web(web) => web.send(event, stop).await.map(Output::Status),
        }
    }
}

/// The attempts to run one hook. Each result is reported to the observer, and logged.
pub(super) struct Attempts {
    kind: Kind,
    job: Job,
    /// The pause after which the caller runs the hook again if it fails; `None`: it runs the hook once.
    retry: Option<Duration>,
    observer: Observer,
    failing: Repeats,
}

impl Attempts {
    pub(super) fn new(kind: Kind, job: Job, retry: Option<Duration>, observer: Observer) -> Self {
        Self { kind, job, retry, observer, failing: Repeats::default() }
    }

    /// The next failure is a new one, so it is logged even if it is like the last one.
    pub(super) fn forget_failure(&mut self) {
        self.failing.forget();
    }

    /// Runs the hook once. A program is killed after `limit`, if its timeout is not shorter.
    pub(super) async fn run(
        &mut self,
        event: &HookEvent,
        limit: Duration,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let kind = self.kind;
        let revision = event.revision;
        self.job.log_start(kind, event);
        let began = Instant::now();
        let result = self.job.run(event, limit, stop).await;
        let took = began.elapsed();
        match result {
            Ok(output) => {
                (self.observer)(&FinishedRun { kind, revision, took, error: None, hints: &[] });
                self.failing.forget();
                log_success(kind, event, took, &output);
                Ok(())
            }
            Err(why) => {
                let error = Error { kind, revision, why };
                let cause = chain(&error);
                let hints = error.hints();
                (self.observer)(&FinishedRun { kind, revision, took, error: Some(&cause), hints: &hints });
                let retry = self.retry.filter(|_| !stop.is_cancelled());
                self.log_failure(event, took, retry, &cause, &hints);
                Err(error)
            }
        }
    }

    /// Logs a failure, unless it is like the last one.
    fn log_failure(
        &mut self,
        event: &HookEvent,
        took: Duration,
        retry: Option<Duration>,
        cause: &str,
        hints: &[String],
    ) {
        let hook = self.kind.label();
        let revision = event.revision;
        let duration_ms = millis(took);
        let Some(times) = self.failing.should_log(cause) else {
            debug!(hook, %revision, duration_ms, error = cause, "{hook} failed as before");
            return;
        };
        let hints = Some(hints.join("; ")).filter(|hints| !hints.is_empty());
        // git-sync's log has the key always.
        let retry = retry.map_or_else(|| "none".to_owned(), go_duration);
        warn!(
            name: "hook_failed", hook, %revision, duration_ms, retry, hints, error = cause,
            "{hook} failed{}", suppressed(times)
        );
    }
}

/// Logs the success of a run, in git-sync's words too (target `git-sync`).
fn log_success(kind: Kind, event: &HookEvent, took: Duration, output: &Output) {
    let hook = kind.label();
    let revision = event.revision;
    let duration_ms = millis(took);
    let nothing = "";
    match output {
        Output::Program(output) => {
            debug!(
                name: "exec_done", target: "git-sync", hook, %revision, stdout = output, stderr = nothing, "done"
            );
            info!(hook, %revision, duration_ms, "{hook} done for {}", revision.short());
            // A separate line: the one above is logged at the default level, and output may be long.
            if !output.is_empty() {
                debug!(name: "hook_output", hook, %revision, output, "output of {hook}");
            }
        }
        Output::Status(status) => {
            debug!(
                name: "web_done", target: "git-sync", hook, %revision, status, headers = nothing, body = nothing,
                "done"
            );
            info!(hook, %revision, duration_ms, status, "{hook} done for {}", revision.short());
        }
    }
}

/// The slot between [`Runner`] and [`RunnerTask`].
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    /// Wakes the task after a change of the state.
    changed: Notify,
}

#[derive(Default)]
struct SlotState {
    /// The generation that waits.
    waiting: Option<Arc<PinnedGeneration>>,
    /// No other generation will come.
    closed: bool,
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        // Poisoning is harmless: no panic can leave the state half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of a hook's task.
pub(super) struct Runner {
    slot: Arc<Slot>,
    task: tokio::sync::Mutex<Option<JoinHandle<Result<(), Error>>>>,
}

impl Runner {
    pub(super) fn start(
        kind: Kind,
        job: Job,
        once: bool,
        stop: CancellationToken,
        observer: Observer,
    ) -> Self {
        let slot = Arc::<Slot>::default();
        let retry = (!once).then_some(job.backoff());
        let attempts = Attempts::new(kind, job, retry, observer);
        let task = RunnerTask { attempts, stop, slot: Arc::clone(&slot) };
        Self { slot, task: tokio::sync::Mutex::new(Some(tokio::spawn(task.run()))) }
    }

    pub(super) fn send(&self, pinned: &Arc<PinnedGeneration>) {
        self.slot.state().waiting = Some(Arc::clone(pinned));
        self.slot.changed.notify_one();
    }

    /// Closes the slot and waits until the task ends: with `once` when the hook was tried for the last generation that
    /// it was given, else when it has succeeded for that, or the task is stopped. A panic of the task is resumed.
    pub(super) async fn ended(&self) -> Result<(), Error> {
        self.slot.state().closed = true;
        self.slot.changed.notify_one();
        let Some(task) = self.task.lock().await.take() else { return Ok(()) };
        task.await.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Ok(()), // the end of the runtime is no failure
        })
    }
}

/// The task of a hook.
struct RunnerTask {
    attempts: Attempts,
    stop: CancellationToken,
    slot: Arc<Slot>,
}

impl RunnerTask {
    async fn run(mut self) -> Result<(), Error> {
        // What the hook succeeded for, if it has not failed since.
        let mut reported: Option<HookEvent> = None;
        let mut failed: Option<Arc<PinnedGeneration>> = None;
        // With once: the first failure, unless the hook has succeeded for the same revision since.
        let mut failure: Option<Error> = None;
        loop {
            // Taken out of the slot, so that nothing stays pinned while the hook has nothing to do.
            let (waiting, closed) = {
                let mut state = self.slot.state();
                (state.waiting.take(), state.closed)
            };
            let older = failed.take(); // dropped if there is a newer one
            let next = waiting.or(older);
            if self.stop.is_cancelled() {
                // The publication that was under way may still hand one over, and its hook then counts as not run.
                if self.attempts.retry.is_none() && next.is_none() && !closed {
                    self.slot.changed.notified().await;
                    continue;
                }
                return failure.map_or_else(|| self.cancelled(next), Err);
            }
            let Some(pinned) = next else {
                if closed {
                    return failure.map_or(Ok(()), Err);
                }
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = self.slot.changed.notified() => {}
                }
                continue;
            };
            if reported.as_ref().is_some_and(|last| same(last, &pinned.event)) {
                continue;
            }
            let Err(error) = self.attempts.run(&pinned.event, Duration::MAX, &self.stop).await else {
                failure.take_if(|error| error.revision == pinned.event.revision);
                reported = Some(pinned.event.clone());
                continue;
            };
            reported = None; // what the failed run has changed is not known
            let Some(backoff) = self.attempts.retry else {
                failure.get_or_insert(error);
                continue;
            };
            failed = Some(pinned);
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(backoff) => {}
            }
        }
    }

    /// The result of a task that is stopped before it ran for `next`.
    fn cancelled(&self, next: Option<Arc<PinnedGeneration>>) -> Result<(), Error> {
        match next {
            Some(pinned) if self.attempts.retry.is_none() => Err(Error {
                kind: self.attempts.kind,
                revision: pinned.event.revision,
                why: Failure::ShutDown,
            }),
            _ => Ok(()),
        }
    }
}

fn same(last: &HookEvent, now: &HookEvent) -> bool {
    last.revision == now.revision && last.selection == now.selection
}

/// Returns the failure and its cause, without the hook's name and revision, which the log line has.
fn chain(error: &Error) -> String {
    let source = std::error::Error::source(&error.why).map(|source| format!(": {source}"));
    format!("{}{}", error.why, source.unwrap_or_default())
}
