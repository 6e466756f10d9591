//! Hooks: a program run, or a request sent, when another revision is published. The rules are git-sync's.
//!
//! Each hook has a runner of its own with a slot for the newest generation, so that hooks delay neither publications
//! nor each other, and skip what was replaced while they ran:
//!
//! * What is sent replaces what waits in the slot. The same revision, under the same selection, as the last one that
//!   the hook succeeded for runs nothing.
//! * A failure is logged, counted, and tried again after the backoff, without limit, for what is newest by then.
//! * Nothing is kept on disk: the first success of each process reports what is current, changed or not.
//! * One-time, a hook is tried exactly once, and its failure is the process's.
//!
//! The pre-publish hook runs just before the swap. By default it is not waited for and its failure stops nothing; as a
//! gate ([`Gate`]), the publication waits for it, in the staged generation, and fails with it.
//!
//! A generation is pinned from the moment it enters a slot until its hook has ended: it is there while the hook reads
//! it, within the ceilings on pins. A program is a process group of its own and killed as one. The process does not
//! end before its hooks have, and they have at most [`exec::PATIENCE`] for that.
//!
//! Files: `runner` the slot and its loop; `exec` programs; `web` requests; `error`.

mod error;
mod exec;
mod runner;
mod web;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::fsx;
use crate::generation::Name;
use crate::repeats::Repeats;
use crate::revision::Revision;

pub use error::{Error, Failure};
pub use exec::{Exec, PATIENCE};
pub use web::Web;

use runner::{Job, Runner};

/// Which hook. The labels are git-sync's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A program, after the publication.
    Exec,
    /// A program, before it.
    PrePublish,
    /// A request, after it.
    Web,
}

impl Kind {
    /// Its name in logs, metrics and messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Exec => "exechook",
            Self::PrePublish => "pre-publish-exechook",
            Self::Web => "webhook",
        }
    }
}

/// Which hooks there are.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Run after a publication.
    pub exec: Option<Exec>,
    /// Run before it.
    pub pre_publish: Option<Exec>,
    /// Whether the publication waits for the one before it.
    pub gate: bool,
    /// Whether a revision that it refused is asked about again.
    pub gate_retry: bool,
    /// Sent after it.
    pub web: Option<Web>,
    /// Try each hook once, and say how that ended.
    pub once: bool,
}

impl Options {
    /// Which there are.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let has = [
            (Kind::Exec, self.exec.is_some()),
            (Kind::PrePublish, self.pre_publish.is_some()),
            (Kind::Web, self.web.is_some()),
        ];
        has.into_iter().filter(|(_, is)| *is).map(|(kind, _)| kind)
    }
}

/// What a hook is run for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The revision.
    pub revision: Revision,
    /// The sources that it is composed of, as JSON; none where there is one repository.
    pub sources: Option<String>,
    /// What was chosen of its tree: another choice is news, too.
    pub selection: String,
    /// The generation's name; none while it is staged.
    pub generation: Option<Name>,
    /// The generation's directory.
    pub dir: PathBuf,
}

/// A run that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// Which hook.
    pub kind: Kind,
    /// What it was run for.
    pub revision: Revision,
    /// How long it took.
    pub took: Duration,
    /// Why it failed, and its cause, on one line; none: it succeeded.
    pub error: Option<&'a str>,
    /// What to do about it.
    pub hints: &'a [String],
}

/// Hears how each run ended.
pub type Observer = Arc<dyn Fn(&Ran<'_>) + Send + Sync>;

/// The hooks of a process.
pub struct Hooks {
    after: Vec<Runner>,
    before: Option<Runner>,
    gate: Option<Gate>,
    stop: CancellationToken,
}

impl Hooks {
    /// Starts a runner for each. Needs a tokio runtime. When `draining` is cancelled nothing new is run, and what runs
    /// is ended.
    pub fn start(options: Options, draining: &CancellationToken, observer: &Observer) -> Self {
        let stop = draining.child_token();
        let Options { exec, pre_publish, gate, gate_retry, web, once } = options;
        let run = |kind, job| Runner::start(kind, job, once, stop.clone(), Arc::clone(observer));
        let exec = exec.map(|exec| run(Kind::Exec, Job::Exec(exec)));
        let web = web.map(|web| run(Kind::Web, Job::Web(web)));
        let (gate, before) = match pre_publish {
            Some(exec) if gate => {
                (Some(Gate { exec, again: gate_retry, observer: Arc::clone(observer) }), None)
            }
            other => (None, other.map(|exec| run(Kind::PrePublish, Job::Exec(exec)))),
        };
        Self { after: exec.into_iter().chain(web).collect(), before, gate, stop }
    }

    /// This is current. Returns at once.
    pub fn published(&self, notice: &Notice) {
        let held = Arc::new(PinnedGeneration::new(notice.clone()));
        self.after.iter().for_each(|runner| runner.send(&held));
    }

    /// This is about to be. Returns at once.
    pub fn publishing(&self, notice: &Notice) {
        if let Some(runner) = &self.before {
            runner.send(&Arc::new(PinnedGeneration::new(notice.clone())));
        }
    }

    /// What a publication has to wait for.
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// One-time: waits until each hook that has something to run for has been tried.
    ///
    /// # Errors
    /// The first that failed.
    pub async fn completed(&self) -> Result<(), Error> {
        let mut first = Ok(());
        for runner in self.after.iter().chain(&self.before) {
            first = first.and(runner.ended().await);
        }
        first
    }

    /// Ends them: runs nothing new, and waits for what runs.
    pub async fn stop(&self) {
        self.stop.cancel();
        let _ = self.completed().await; // each failure has been logged
    }
}

/// The pre-publish hook where it decides.
pub struct Gate {
    exec: Exec,
    again: bool,
    observer: Observer,
}

impl Gate {
    /// Whether a revision that was refused is asked about again.
    pub fn again(&self) -> bool {
        self.again
    }

    /// Runs it in the staged generation. Cancelling `stop`, or dropping the future, ends the program.
    ///
    /// # Errors
    /// Why there must be no publication.
    pub async fn pass(&self, notice: &Notice, stop: &CancellationToken) -> Result<(), Error> {
        let job = Job::Exec(self.exec.clone());
        let mut failing = Repeats::default();
        runner::attempt(Kind::PrePublish, &job, notice, stop, &self.observer, &mut failing).await
    }
}

/// A generation on its way through a slot, pinned.
#[derive(Debug)]
struct PinnedGeneration {
    notice: Notice,
    /// Holds the lock that the reaper respects. Where locks do not work the grace period has to do.
    _pin: Option<std::os::fd::OwnedFd>,
}

impl PinnedGeneration {
    fn new(notice: Notice) -> Self {
        let pin = fsx::open_dir_at_path(&notice.dir).ok().filter(|dir| fsx::try_lock_shared(dir).is_ok());
        Self { notice, _pin: pin }
    }
}
