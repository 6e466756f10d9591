//! Hooks: run a program or send a request when another revision is published. The rules are git-sync's, but for
//! what runs again after a failure.
//!
//! Each hook has its own task with a slot for the newest generation, so hooks delay neither publications nor each
//! other, and skip generations that were replaced while they ran:
//!
//! * A new generation replaces the one that waits in the slot. A hook does not run again for the revision and selection
//!   of its last success, unless it has failed since: what a failed run has changed is not known.
//! * A failure is logged, counted, and retried after the backoff, without limit, for the newest generation by then.
//! * Nothing is kept on disk: each process runs its hooks for the current generation once, whether or not it changed.
//! * With one-time, a hook is tried at most once for each generation, and its failure is the exit status of the
//!   process.
//!
//! The pre-publish hook runs just before the swap. By default the publication does not wait for it and ignores its
//! failure; as a gate ([`Gate`]), it runs in the staged generation, and the publication waits for it and fails with it.
//!
//! A generation is pinned from the moment it enters a slot until its hook has ended, so it exists while the hook reads
//! it, within the ceilings on pins. A program inherits a pin of its own, which outlives this process if that is killed.
//! A program runs in a process group of its own and is killed with its descendants.
//! The process waits for its hooks to end before it does, for [`exec::SHUTDOWN_GRACE`] and the second until SIGKILL.
//!
//! Files: `runner` has the slot and the task; `exec` runs programs; `web` sends requests; `error` has the failures.

mod error;
mod exec;
mod runner;
#[cfg(test)]
mod tests;
mod web;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::fsx;
use crate::generation::Name;
use crate::revision::Revision;

pub use error::{Error, Failure};
pub use exec::{Exec, SHUTDOWN_GRACE, missing_program};
pub use web::Webhook;

use runner::{Attempts, Job, Runner};

/// Which hook. The labels are git-sync's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A program that runs after a publication.
    Exec,
    /// A program that runs before a publication.
    PrePublish,
    /// A request that is sent after a publication.
    Web,
}

impl Kind {
    /// Returns its name in logs, metrics and messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Exec => "exechook",
            Self::PrePublish => "pre-publish-exechook",
            Self::Web => "webhook",
        }
    }
}

/// Which hooks are configured.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The program that runs after a publication.
    pub exec: Option<Exec>,
    /// The program that runs before a publication.
    pub pre_publish: Option<Exec>,
    /// Whether the publication waits for `pre_publish`, and fails with it.
    pub gate: bool,
    /// Whether the gate runs again for a revision that it has refused.
    pub gate_retry: bool,
    /// The request that is sent after a publication.
    pub web: Option<Webhook>,
    /// Run each hook at most once for each generation, without retries; [`Hooks::completed`] returns its result.
    pub once: bool,
}

impl Options {
    /// Returns the hooks that are configured.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let has = [
            (Kind::Exec, self.exec.is_some()),
            (Kind::PrePublish, self.pre_publish.is_some()),
            (Kind::Web, self.web.is_some()),
        ];
        has.into_iter().filter(|(_, is)| *is).map(|(kind, _)| kind)
    }
}

/// The generation that a hook runs for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HookEvent {
    /// The revision.
    pub revision: Revision,
    /// The sources that the revision is composed of, as JSON; `None` with a single repository.
    pub sources: Option<String>,
    /// Which part of the tree is published. Hooks also run when only this changes.
    pub selection: String,
    /// The generation's name; `None` while it is staged.
    pub generation: Option<Name>,
    /// The generation's directory.
    pub dir: PathBuf,
}

/// A run that ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedRun<'a> {
    /// The hook.
    pub kind: Kind,
    /// The revision that it ran for.
    pub revision: Revision,
    /// How long it took.
    pub took: Duration,
    /// The error and its cause, on one line; `None` after a success.
    pub error: Option<&'a str>,
    /// What an operator can do.
    pub hints: &'a [String],
}

/// Is called with the result of each run.
pub type Observer = Arc<dyn Fn(&FinishedRun<'_>) + Send + Sync>;

/// The hooks of a process.
pub struct Hooks {
    after: Vec<Runner>,
    before: Option<Runner>,
    gate: Option<Gate>,
    stop: CancellationToken,
}

impl Hooks {
    /// Starts a task for each hook. Needs a tokio runtime. When `draining` is cancelled no new run starts, and those
    /// under way are ended.
    pub fn start(options: Options, draining: &CancellationToken, observer: &Observer) -> Self {
        let stop = draining.child_token();
        let Options { exec, pre_publish, gate, gate_retry, web, once } = options;
        let run = |kind, job| Runner::start(kind, job, once, stop.clone(), Arc::clone(observer));
        let exec = exec.map(|exec| run(Kind::Exec, Job::Exec(exec)));
        let web = web.map(|web| run(Kind::Web, Job::Web(web)));
        let (gate, before) = match pre_publish {
            Some(exec) if gate => (Some(Gate::new(exec, gate_retry, Arc::clone(observer))), None),
            other => (None, other.map(|exec| run(Kind::PrePublish, Job::Exec(exec)))),
        };
        Self { after: exec.into_iter().chain(web).collect(), before, gate, stop }
    }

    /// Runs the hooks for the generation that is current now. Returns as soon as the pin is taken: at once, or within a
    /// quarter of a second if somebody keeps the lock.
    pub fn published(&self, event: &HookEvent) {
        if self.after.is_empty() {
            return;
        }
        let pinned = Arc::new(PinnedGeneration::new(event.clone()));
        self.after.iter().for_each(|runner| runner.send(&pinned));
    }

    /// Runs the pre-publish hook, if it is no gate, for the generation that is about to be published. Returns as
    /// [`Hooks::published`] does.
    pub fn publishing(&self, event: &HookEvent) {
        if let Some(runner) = &self.before {
            runner.send(&Arc::new(PinnedGeneration::new(event.clone())));
        }
    }

    /// Returns the gate that a publication has to pass, if there is one.
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// Waits until each hook has run for the generations that it was given. With `once` returns the first failure.
    ///
    /// # Errors
    /// The first hook that failed, with its first failure.
    pub async fn completed(&self) -> Result<(), Error> {
        let mut first = Ok(());
        for runner in self.after.iter().chain(&self.before) {
            first = first.and(runner.ended().await);
        }
        first
    }

    /// Stops the hooks: starts no new runs, and waits for those under way.
    pub async fn stop(&self) {
        self.stop.cancel();
        let _ = self.completed().await; // each failure has been logged
    }
}

/// The pre-publish hook as a gate: a publication needs its success.
pub struct Gate {
    retry_refused: bool,
    state: tokio::sync::Mutex<GateState>,
}

struct GateState {
    attempts: Attempts,
    /// The revision that the gate ran for last.
    revision: Option<Revision>,
}

impl Gate {
    fn new(exec: Exec, retry_refused: bool, observer: Observer) -> Self {
        // Without a pause: the next attempt to publish runs it again, if any does.
        let attempts = Attempts::new(Kind::PrePublish, Job::Exec(exec), None, observer);
        Self { retry_refused, state: GateState { attempts, revision: None }.into() }
    }

    /// Returns true if the gate is to run again for a revision that it has refused.
    pub fn retries_refusals(&self) -> bool {
        self.retry_refused
    }

    /// Runs the hook in the staged generation. Cancelling `stop`, or dropping the future, ends the program. So does the
    /// end of `limit`, if the hook's timeout is not shorter; it then is a run that took too long.
    ///
    /// # Errors
    /// If the hook fails: the generation must not be published.
    pub async fn pass(
        &self,
        event: &HookEvent,
        limit: Duration,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut state = self.state.lock().await; // free: publications are attempted one at a time
        if state.revision.replace(event.revision) != Some(event.revision) {
            state.attempts.forget_failure(); // another revision that is refused is another failure
        }
        state.attempts.run(event, limit, stop).await
    }
}

/// A generation in a slot, pinned until it is dropped.
#[derive(Debug)]
struct PinnedGeneration {
    event: HookEvent,
    /// See [`take_pin`]. Held until this is dropped, which ends the pin.
    _pin: Option<OwnedFd>,
}

impl PinnedGeneration {
    fn new(event: HookEvent) -> Self {
        let pin = take_pin(&event.dir);
        Self { event, _pin: pin }
    }
}

/// How often the lock of a pin is tried while another process holds it exclusively, and the pause between two tries.
/// A look for pins holds it for microseconds.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Opens a generation's directory and takes the shared `flock` that is a pin. `None` if it is not taken, as where
/// `flock` does not work; then only the grace period keeps the generation. While somebody keeps the exclusive lock,
/// this blocks the runtime's worker that it is called on, for a quarter of a second at most.
fn take_pin(dir: &Path) -> Option<OwnedFd> {
    let opened = fsx::open_dir_at_path(dir).ok()?;
    for _ in 0..LOCK_TRIES {
        match fsx::try_lock_shared(&opened) {
            Ok(fsx::Lock::Taken) => return Some(opened),
            Ok(fsx::Lock::Contended) => std::thread::sleep(LOCK_PAUSE),
            Ok(fsx::Lock::Unsupported) | Err(_) => return None,
        }
    }
    let dir = dir.display();
    warn!("a hook gets no pin on {dir}, because another process holds an exclusive lock on it");
    None
}
