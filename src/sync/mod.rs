//! The sync: attempts, and the loop that repeats them on timer, signal or webhook.
//!
//! One attempt at a time; however many ask while one runs, one more follows. An attempt, in order, and what is there
//! if the process ends after each step:
//!
//! 1. Repair the root's links, remove left-overs, reap what retention allows. No network. A generation that was current
//!    and is gone is published again from the mirror; in git-sync's layout also one in which a commit was made.
//! 2. Ask the remote what the ref names.
//! 3. Nothing new: done. The same revision that was refused before: failed again, without fetching it.
//! 4. Something new within the minimum interval after the last publication: wait until that is over, then ask again, so
//!    that the newest wins.
//! 5. Fetch. The mirror holds more; the root is as it was.
//! 6. The same tree as the current generation's, under the same selection: its record says the new revision from now on,
//!    and that is all. No generation, no event. (In git-sync's layout a generation is one commit's, and another commit
//!    another generation.)
//! 7. Stage: what changed onto the spare, or everything. A staging that is not on record is removed at the next start.
//!    A pre-publish hook that is a gate runs on what is staged, and refuses the attempt if it fails.
//! 8. Publish, in the store's own numbered order: the swap is the commit point. In git-sync's layout the mirror makes
//!    the generation a worktree of it just before.
//! 9. Touch the file, update status and metrics, notify the hooks; reap, collect the mirror's garbage; then prepare the
//!    spare in the background.
//!
//! Steps 2 and 5 are dropped at the attempt's deadline and when the process drains; blocking steps are asked to stop
//! and waited for. A failure at any step leaves what is published as it is, is counted, named, and tried again after a
//! pause that grows ([`crate::phase::machine`]).
//!
//! Files: `drive` the loop; `attempt` the steps; `staging` staging; `bounds` deadlines; `spare`; `scrub`; `report` status, log,
//! files; `hook_notice` hooks; `error`.

mod attempt;
mod bounds;
mod drive;
mod error;
mod hook_notice;
mod operator_files;
mod report;
mod scrub;
mod spare;
mod staging;
mod view;

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::hooks::Hooks;
use crate::mirror::{Selection, Subdirectory, Submodules};
use crate::payload::{Limits, Rules, Symlinks};
use crate::phase::machine::{Machine, Patience, Timing};
use crate::phase::{Status, Trigger};
use crate::sources::{AttemptResults, History, Newest, Upstream};
use crate::store::{OwnFile, Store};
use crate::telemetry::metrics::{Metrics, SourceLabel};

use drive::Work as _;

pub use drive::End;
pub use error::{Error, Stage};

/// What makes a sync.
#[derive(Clone, Debug)]
pub struct Options {
    /// What was asked for, for people.
    pub asked: String,
    /// The root, for people.
    pub root: PathBuf,
    /// Ceilings on a revision.
    pub limits: Limits,
    /// Links that leave the tree.
    pub symlinks: Symlinks,
    /// The directory of the repository that is published, or all of it.
    pub path: Option<Subdirectory>,
    /// The file with sparse patterns.
    pub sparse_file: Option<PathBuf>,
    /// Whether generations are writable by the group.
    pub group_write: bool,
    /// Whether a spare is kept ready.
    pub spare: bool,
    /// How fast.
    pub pace: Timing,
    /// How many failures end it.
    pub patience: Patience,
    /// Hard limit on one attempt.
    pub sync_timeout: Duration,
    /// End after the first success.
    pub one_time: bool,
    /// Ask no more once it succeeded: what is followed is a commit's id, and git-sync rests then.
    pub park: bool,
    /// Log each failure, not only when it begins and then ever less often: git-sync does, and its lines are counted.
    pub every_failure: bool,
    /// Touched after each publication and at the first success.
    pub touch_file: Option<OwnFile>,
    /// Holds the last error; removed after a success.
    pub error_file: Option<OwnFile>,
}

/// What shapes a payload without having been asked for here.
#[derive(Clone, Copy, Debug)]
struct PayloadInputs {
    /// The root's file system takes names that differ in case only for one.
    folds: bool,
    /// Top-level names become root links, so that some of them belong to the root itself.
    root_links: bool,
    /// What the mirror's payloads hold of submodules.
    submodules: Submodules,
}

/// More than any real patterns. Where the file is one of the tree's, authors of commits choose what it is.
const MAX_PATTERNS: u64 = 1 << 20;

impl Options {
    /// What shapes a payload besides the tree, and a digest of it. Blocking: reads the file with the patterns.
    fn selection(&self, given: PayloadInputs) -> Result<(String, Selection), Error> {
        let read = |path: &PathBuf| {
            let mut text = String::new();
            let file = std::fs::File::open(path).map(|file| file.take(MAX_PATTERNS + 1));
            let read = file.and_then(|mut file| file.read_to_string(&mut text));
            let source = match read {
                Ok(_) if text.len() as u64 <= MAX_PATTERNS => return Ok(text),
                Ok(_) => std::io::Error::other("it has more than 1 MiB"),
                Err(error) => error,
            };
            Err(Error::Sparse { path: path.clone(), source })
        };
        let sparse = self.sparse_file.as_ref().map(read).transpose()?;
        let symlinks = match self.symlinks {
            Symlinks::Safe => "safe",
            Symlinks::Keep => "keep",
        };
        let patterns = sparse.as_ref().map_or_else(|| "all".to_owned(), |text| digest(text));
        let group = if self.group_write { "group" } else { "own" };
        let rules = Rules {
            limits: self.limits,
            symlinks: self.symlinks,
            reserve_dotdot: given.root_links,
            folds: given.folds,
        };
        let wanted = Selection { rules, path: self.path.clone(), sparse };
        let path = self.path.as_ref().map(|path| format!(" path={path}")).unwrap_or_default();
        let modules = match given.submodules {
            Submodules::Off => "", // as it was before there was a choice
            Submodules::First => " submodules=shallow",
            Submodules::Recursive => " submodules=recursive",
        };
        Ok((format!("symlinks={symlinks} patterns={patterns} write={group}{modules}{path}"), wanted))
    }
}

fn digest(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Asks for attempts; any number of clones.
#[derive(Clone)]
pub struct TriggerSender {
    send: mpsc::Sender<Trigger>,
    metrics: Metrics,
}

impl TriggerSender {
    /// Asks and returns at once. One request that was not looked at yet stands for all that follow.
    pub fn ask(&self, trigger: Trigger) {
        let source = trigger.word();
        self.metrics.triggers.get_or_create(&SourceLabel { source }).inc();
        let _ = self.send.try_send(trigger);
    }
}

/// A sync that is ready to run.
pub struct Sync {
    worker: attempt::Worker,
    report: report::Report,
    machine: Machine,
    asked: mpsc::Receiver<Trigger>,
    asker: TriggerSender,
    attempts: AttemptResults,
    options: Arc<Options>,
}

impl Sync {
    /// Takes over the root, the mirror, and the status, which may be shown already. No network, and the
    /// root is not written to.
    pub fn new(
        options: Options,
        store: Store,
        mut upstream: Upstream,
        metrics: Metrics,
        status: watch::Sender<Status>,
    ) -> Self {
        let options = Arc::new(options);
        let remote = upstream.remote();
        let hold = store.current().and_then(|record| {
            // By the wall clock, which may have been set: never longer than the interval itself.
            let since = clock::now().wall.duration_since(record.published);
            let since = Duration::try_from(since).unwrap_or_default();
            options.pace.min_interval.checked_sub(since)
        });
        let machine = Machine::new(options.pace, options.patience, Duration::ZERO, hold);
        let before = store.status();
        let received = upstream.received();
        let (send, asked) = mpsc::channel(1);
        let asker = TriggerSender { send, metrics: metrics.clone() };
        let of_source = asker.clone();
        upstream.on_answer(move || of_source.ask(Trigger::Source));
        let attempts = AttemptResults::default();
        upstream.is_asked_by(attempts.askers());
        let worker = attempt::Worker::new(Arc::clone(&options), store, upstream, metrics.clone());
        let seen = report::InitialState { remote, before, received };
        let report = report::Report::new(Arc::clone(&options), seen, metrics, worker.view(), status);
        Self { worker, report, machine, asked, asker, attempts, options }
    }

    /// Tells these hooks.
    #[must_use]
    pub fn with_hooks(mut self, hooks: Arc<Hooks>) -> Self {
        self.worker.hooks(hooks);
        self
    }

    /// Asks this sync for attempts.
    pub fn asker(&self) -> TriggerSender {
        self.asker.clone()
    }

    /// Asks this sync which revision is newest.
    pub fn newest(&self) -> Newest {
        let asker = self.asker();
        self.attempts.newest(move || asker.ask(Trigger::Delivery))
    }

    /// Tells the relation of revisions, from this sync's mirror and remote.
    pub fn history(&self) -> History {
        History::new(self.worker.upstream(), self.options.sync_timeout)
    }

    /// Runs until it is done, gives up, or the process drains.
    pub async fn run(mut self, draining: CancellationToken) -> End {
        let drive = drive::Drive {
            work: &mut self.worker,
            report: &mut self.report,
            machine: self.machine,
            asked: &mut self.asked,
            attempts: self.attempts,
            draining,
            timeout: self.options.sync_timeout,
            one_time: self.options.one_time,
            park: self.options.park && !self.options.one_time,
            origin: tokio::time::Instant::now(),
            succeeded: false,
            recorded: tokio::time::Instant::now(),
        };
        drive.run().await
    }
}
