//! The sync of a root: attempts, and the loop that repeats them on timer, signal or webhook.
//!
//! One attempt runs at a time; however many triggers come in meanwhile, one more follows. The steps of an attempt,
//! A1 to A9, and what is on disk if the process ends after each:
//!
//! 1. Repair the root's links, remove left-overs, reap what retention allows. No network. If the current generation was
//!    deleted by somebody else, its revision is published again from the mirror; in git-sync's layout also if somebody
//!    made a commit in it.
//! 2. Ask the remote what the ref names.
//! 3. If nothing is new, the attempt is done. If the ref still names a revision that was refused before, the attempt
//!    fails again without fetching it.
//! 4. If there is a new revision within the minimum interval after the last publication, ask again each period, and
//!    when the interval is over, so that the newest is published.
//! 5. Fetch. The mirror holds more objects; the root is unchanged.
//! 6. If the tree and the selection are the current generation's, only its record is updated to the new revision: no
//!    new generation, no event. (In git-sync's layout a generation belongs to one commit, so another commit is another
//!    generation.)
//! 7. Stage: apply the diff to the spare, or write the whole tree. A staged directory without a record is removed at
//!    the next start. A pre-publish hook that is a gate runs on the staged directory, and the attempt fails if it does.
//! 8. Publish, in the store's own steps P1 to P9: the swap is the commit point. In git-sync's layout the mirror
//!    registers the generation as its worktree just before.
//! 9. Touch the touch file, update status and metrics, notify the hooks; reap, collect the mirror's garbage; then
//!    prepare the spare in the background.
//!
//! At the attempt's deadline and at shutdown, A2 and A5 are dropped; blocking steps are cancelled and waited for. A
//! failure at any step leaves what is published unchanged. It is counted and logged, and the attempt is repeated with
//! backoff ([`crate::phase::machine`]).
//!
//! Files: `drive` the loop; `attempt` the steps; `staging` A7; `bounds` deadline and shutdown; `spare` and `scrub`
//! background work; `view` what is known of the root; `report` status, log and metrics; `operator_files` touch file and
//! error file; `hook_event` hooks; `error`.

mod attempt;
mod bounds;
mod drive;
mod error;
mod hook_event;
mod operator_files;
mod report;
mod scrub;
mod spare;
mod staging;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::fsx;
use crate::hooks::Hooks;
use crate::mirror::{Selection, Subdirectory, Submodules};
use crate::payload::{Limits, Rules, Symlinks};
use crate::phase::machine::{FailureLimits, Machine, Timing};
use crate::phase::{Status, Trigger};
use crate::sha256::{hex, sha256};
use crate::sources::{AttemptReporter, RevisionComparer, RevisionQuery, Upstream};
use crate::store::{OperatorFile, Store};
use crate::telemetry::metrics::{Metrics, SourceLabel};

use drive::Work as _;

pub use drive::End;
pub use error::{Error, Stage};

/// The settings of a sync.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ref as configured, for messages.
    pub ref_name: String,
    /// The root's path, for messages.
    pub root: PathBuf,
    /// Size limits on a revision.
    pub limits: Limits,
    /// How to treat symbolic links whose target is outside the tree.
    pub symlinks: Symlinks,
    /// The directory of the repository that is published; `None`: the whole tree.
    pub path: Option<Subdirectory>,
    /// The file with sparse patterns.
    pub sparse_file: Option<PathBuf>,
    /// True if generations are group-writable.
    pub group_write: bool,
    /// True if a spare is kept ready.
    pub spare: bool,
    /// The pace of attempts.
    pub pace: Timing,
    /// How many consecutive failures end the sync.
    pub failure_limits: FailureLimits,
    /// The time limit of one attempt.
    pub sync_timeout: Duration,
    /// End after the first success.
    pub one_time: bool,
    /// Stop polling after the first success. Set if the ref is a commit id, as git-sync does.
    pub park: bool,
    /// Log every failure instead of the first one and then ever fewer: git-sync does, and users count its lines.
    pub every_failure: bool,
    /// The file that is touched after each publication and at the first success.
    pub touch_file: Option<OperatorFile>,
    /// The file that holds the last error; removed after a success.
    pub error_file: Option<OperatorFile>,
}

/// What shapes a payload but is not among the [`Options`]: properties of the root and the mirror.
#[derive(Clone, Copy, Debug)]
struct PayloadInputs {
    /// The root's file system is case-insensitive.
    folds: bool,
    /// Top-level names become links in the root, so that names the root itself uses are reserved.
    root_links: bool,
    /// How the mirror's payloads include submodules.
    submodules: Submodules,
}

/// The size limit of the sparse pattern file, more than any real one has.
const MAX_PATTERNS: u64 = 1 << 20;

impl Options {
    /// Everything that shapes a payload besides the tree, preceded by its digest. Blocking: reads the sparse patterns.
    fn selection(&self, inputs: PayloadInputs) -> Result<(String, Selection), Error> {
        let read = |path: &PathBuf| {
            let read = std::fs::File::open(path).and_then(|file| fsx::read_text(file, MAX_PATTERNS));
            read.map_err(|source| Error::Sparse { path: path.clone(), source })
        };
        let sparse = self.sparse_file.as_ref().map(read).transpose()?;
        let symlinks = match self.symlinks {
            Symlinks::Safe => "safe",
            Symlinks::Keep => "keep",
        };
        let patterns =
            sparse.as_ref().map_or_else(|| "all".to_owned(), |text| hex(&sha256(&[text.as_bytes()])[..16]));
        let group = if self.group_write { "group" } else { "own" };
        let rules = Rules {
            limits: self.limits,
            symlinks: self.symlinks,
            reserve_dotdot: inputs.root_links,
            folds: inputs.folds,
        };
        let wanted = Selection { rules, path: self.path.clone(), sparse };
        let path = self.path.as_ref().map(|path| format!(" path={path}")).unwrap_or_default();
        let modules = match inputs.submodules {
            Submodules::Off => "", // records written before submodules were supported keep their digest
            Submodules::First => " submodules=shallow",
            Submodules::Recursive => " submodules=recursive",
        };
        Ok((format!("symlinks={symlinks} patterns={patterns} write={group}{modules}{path}"), wanted))
    }
}

/// Requests attempts. Clones share the same queue.
#[derive(Clone)]
pub struct TriggerSender {
    send: mpsc::Sender<Trigger>,
    metrics: Metrics,
}

impl TriggerSender {
    /// Requests an attempt without waiting for it. Requests that arrive while one is still unread are merged into it.
    pub fn request(&self, trigger: Trigger) {
        let source = trigger.label();
        self.metrics.triggers.get_or_create(&SourceLabel { source }).inc();
        let _ = self.send.try_send(trigger);
    }
}

/// A sync that is ready to run.
pub struct Sync {
    worker: attempt::Worker,
    report: report::Report,
    machine: Machine,
    triggers: mpsc::Receiver<Trigger>,
    trigger_sender: TriggerSender,
    attempts: AttemptReporter,
    options: Arc<Options>,
}

impl Sync {
    /// Takes ownership of the root and the mirror, and resets `status`, which may be served already. No network access,
    /// and no write to the root.
    pub fn new(
        options: Options,
        store: Store,
        mut upstream: Upstream,
        metrics: Metrics,
        status: watch::Sender<Status>,
    ) -> Self {
        let options = Arc::new(options);
        let remote = upstream.shown_name();
        let min_interval_ends = store.current().and_then(|record| {
            // The wall clock may have been set back: never wait longer than the interval itself.
            let since = clock::now().wall.duration_since(record.published);
            let since = Duration::try_from(since).unwrap_or_default();
            options.pace.min_interval.checked_sub(since)
        });
        let machine = Machine::new(options.pace, options.failure_limits, Duration::ZERO, min_interval_ends);
        let before = store.status();
        let received = upstream.received();
        let (send, triggers) = mpsc::channel(1);
        let trigger_sender = TriggerSender { send, metrics: metrics.clone() };
        let of_source = trigger_sender.clone();
        upstream.on_answer(move || of_source.request(Trigger::Source));
        let attempts = AttemptReporter::default();
        upstream.set_waiting_deliveries(attempts.waiting_deliveries());
        let worker = attempt::Worker::new(Arc::clone(&options), store, upstream, metrics.clone());
        let seen = report::InitialState { remote, before, received };
        let report = report::Report::new(Arc::clone(&options), seen, metrics, worker.view(), status);
        Self { worker, report, machine, triggers, trigger_sender, attempts, options }
    }

    /// Sets the hooks that are notified of publications.
    #[must_use]
    pub fn with_hooks(mut self, hooks: Arc<Hooks>) -> Self {
        self.worker.hooks(hooks);
        self
    }

    /// Returns a handle that requests attempts of this sync.
    pub fn trigger_sender(&self) -> TriggerSender {
        self.trigger_sender.clone()
    }

    /// Returns a handle for deliveries that asks this sync for the newest revision.
    pub fn revision_query(&self) -> RevisionQuery {
        let trigger_sender = self.trigger_sender();
        self.attempts.revision_query(move || trigger_sender.request(Trigger::Delivery))
    }

    /// Returns a handle for deliveries that compares revisions, using this sync's upstream.
    pub fn comparer(&self) -> RevisionComparer {
        RevisionComparer::new(self.worker.shared_upstream(), self.options.sync_timeout)
    }

    /// Runs until the sync is done, gives up, or `draining` is cancelled.
    pub async fn run(mut self, draining: CancellationToken) -> End {
        let drive = drive::Drive {
            work: &mut self.worker,
            report: &mut self.report,
            machine: self.machine,
            triggers: &mut self.triggers,
            attempts: self.attempts,
            draining,
            timeout: self.options.sync_timeout,
            one_time: self.options.one_time,
            park: self.options.park && !self.options.one_time,
            origin: tokio::time::Instant::now(),
            succeeded: false,
            lacked_room: false,
            recorded: tokio::time::Instant::now(),
            parked: None,
        };
        drive.run().await
    }
}
