//! Runs one hook: a slot for the newest generation, and a task that runs the hook for what is in the slot, with
//! retries.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::human::go_duration;
use crate::repeats::{Repeats, suppressed};

use super::{Error, Exec, Failure, FinishedRun, Kind, Notice, Observer, PinnedGeneration, Web};

/// What a hook does.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Runs a program.
    Exec(Exec),
    /// Sends a request.
    Web(Web),
}

impl Job {
    fn backoff(&self) -> Duration {
        match self {
            Self::Exec(exec) => exec.backoff,
            Self::Web(web) => web.backoff,
        }
    }

    /// Logs the start of a run in git-sync's words (target `git-sync`).
    fn log_start(&self, kind: Kind, notice: &Notice) {
        let hook = kind.label();
        let revision = notice.revision;
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

    /// Logs the success of a run in git-sync's words.
    fn log_success(&self, kind: Kind, notice: &Notice, output: &str) {
        let hook = kind.label();
        let revision = notice.revision;
        let nothing = "";
        match self {
            Self::Exec(_) => debug!(
                name: "exec_done", target: "git-sync", hook, %revision, stdout = output, stderr = nothing, "done"
            ),
            Self::Web(_) => debug!(
                name: "web_done", target: "git-sync", hook, %revision, status = output.parse::<u16>().ok(),
                headers = nothing, body = nothing, "done"
            ),
        }
    }

    /// Does the job. Returns the program's output or the response's status, for the log.
    async fn run(&self, notice: &Notice, stop: &CancellationToken) -> Result<String, Failure> {
        match self {
            Self::Exec(exec) => exec.run(notice, stop).await,
            Self::Web(web) => web.send(notice, stop).await,
        }
    }
}

/// The slot between [`Runner`] and [`RunnerTask`].
#[derive(Default)]
struct Slot {
    /// The generation that waits, and whether the slot is closed, so that no other will come.
    newest: Mutex<(Option<Arc<PinnedGeneration>>, bool)>,
    bell: Notify,
}

impl Slot {
    fn with<T>(&self, act: impl FnOnce(&mut Option<Arc<PinnedGeneration>>, &mut bool) -> T) -> T {
        // Poisoning is harmless: no panic can leave the pair half written.
        let mut slot = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let (newest, closed) = &mut *slot;
        act(newest, closed)
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
        let task = RunnerTask { kind, job, once, stop, observer, slot: Arc::clone(&slot) };
        Self { slot, task: tokio::sync::Mutex::new(Some(tokio::spawn(task.run()))) }
    }

    pub(super) fn send(&self, held: &Arc<PinnedGeneration>) {
        self.slot.with(|newest, _| *newest = Some(Arc::clone(held)));
        self.slot.bell.notify_one();
    }

    /// Closes the slot and waits until the task ends: with `once` after its one run, else when the slot is empty or the
    /// task is stopped.
    pub(super) async fn ended(&self) -> Result<(), Error> {
        self.slot.with(|_, closed| *closed = true);
        self.slot.bell.notify_one();
        match self.task.lock().await.take() {
            // A panic was reported already, and the end of the runtime is no failure.
            Some(task) => task.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }
}

/// The task of a hook.
struct RunnerTask {
    kind: Kind,
    job: Job,
    once: bool,
    stop: CancellationToken,
    observer: Observer,
    slot: Arc<Slot>,
}

impl RunnerTask {
    async fn run(self) -> Result<(), Error> {
        let mut reported: Option<Notice> = None;
        let mut failed: Option<Arc<PinnedGeneration>> = None;
        let mut failing = Repeats::default();
        loop {
            // Taken out of the slot, so that nothing stays pinned while the hook has nothing to do.
            let (newest, closed) = self.slot.with(|newest, closed| (newest.take(), *closed));
            let older = failed.take(); // dropped if there is a newer one
            let next = newest.or(older);
            if self.stop.is_cancelled() {
                return self.cancelled(next);
            }
            let Some(held) = next else {
                if closed {
                    return Ok(());
                }
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = self.slot.bell.notified() => {}
                }
                continue;
            };
            if reported.as_ref().is_some_and(|last| same(last, &held.notice)) {
                continue;
            }
            let kind = self.kind;
            let notice = &held.notice;
            let retry = (!self.once).then(|| self.job.backoff());
            let result =
                attempt(kind, &self.job, notice, retry, &self.stop, &self.observer, &mut failing).await;
            if self.once {
                return result;
            }
            match result {
                Ok(()) => reported = Some(held.notice.clone()),
                Err(_) => {
                    failed = Some(held);
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = tokio::time::sleep(self.job.backoff()) => {}
                    }
                }
            }
        }
    }

    /// The result of a task that is stopped before it ran for `next`.
    fn cancelled(&self, next: Option<Arc<PinnedGeneration>>) -> Result<(), Error> {
        match next {
            Some(held) if self.once => {
                Err(Error { kind: self.kind, revision: held.notice.revision, why: Failure::Drained })
            }
            _ => Ok(()),
        }
    }
}

fn same(last: &Notice, now: &Notice) -> bool {
    last.revision == now.revision && last.selection == now.selection
}

/// Runs a hook once, reports the result to the observer, and logs it. `retry` is the pause after which the caller runs
/// it again if it fails.
pub(super) async fn attempt(
    kind: Kind,
    job: &Job,
    notice: &Notice,
    retry: Option<Duration>,
    stop: &CancellationToken,
    observer: &Observer,
    failing: &mut Repeats,
) -> Result<(), Error> {
    job.log_start(kind, notice);
    let began = Instant::now();
    let result = job.run(notice, stop).await;
    let took = began.elapsed();
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let hook = kind.label();
    let revision = notice.revision;
    match result {
        Ok(output) => {
            observer(&FinishedRun { kind, revision, took, error: None, hints: &[] });
            failing.forget();
            job.log_success(kind, notice, &output);
            info!(hook, %revision, duration_ms, "{hook} done for {}", revision.short());
            if !output.is_empty() {
                debug!(name: "hook_output", hook, %revision, output, "output of {hook}");
            }
            Ok(())
        }
        Err(why) => {
            let error = Error { kind, revision, why };
            let cause = chain(&error);
            let hints = error.hints();
            observer(&FinishedRun { kind, revision, took, error: Some(&cause), hints: &hints });
            let hints = Some(hints.join("; ")).filter(|hints| !hints.is_empty());
            match failing.should_log(&cause) {
                Some(times) => {
                    // git-sync's log has the key always.
                    let retry = retry.filter(|_| !stop.is_cancelled());
                    let retry = retry.map_or_else(|| "none".to_owned(), go_duration);
                    warn!(name: "hook_failed", hook, %revision, duration_ms, retry, hints, error = cause, "{hook} failed{}", suppressed(times));
                }
                None => debug!(hook, %revision, duration_ms, error = cause, "{hook} failed as before"),
            }
            Err(error)
        }
    }
}

/// Returns the failure and its cause, without the hook's name and revision, which the log line has.
fn chain(error: &Error) -> String {
    let source = std::error::Error::source(&error.why).map(|source| format!(": {source}"));
    format!("{}{}", error.why, source.unwrap_or_default())
}
