//! Brings the ConfigMaps of many clusters to what one revision says, never back to an older one.
//!
//! For each cluster, on its own, so that one that is slow or gone delays no other:
//!
//! 1. compute what the revision asks for;
//! 2. read what is there, at the price of one metadata-only list a namespace where nothing was written;
//! 3. ask the remote which revision its ref names *now*, and begin again with that one if it is another;
//! 4. write, each object under the version that was read; what gains before what loses;
//! 5. ask once more, and begin again if the ref has moved; then write the marker, then the ledger.
//!
//! Why no cluster goes back to an older revision, without clocks or locks: an older writer's read and question lie
//! before the push of the newer revision, and every write of the newer revision lies after it, so the older one's write
//! meets a version that has changed. A newer writer that finds an object already right and skips it can still be
//! overtaken by an older write; step 5 of the older writer, or the next run, repairs that.
//!
//! Before the first write of 4 the marker names what it did not name yet, as wanted. So a crash leaves: after 1 to 3
//! nothing; within 4 some targets written, each whole, found right by the next run, or, if the rules do not name them
//! any more, found in the inventory and pruned; after 4 a marker that names the old set, so that its readers keep the
//! old one.
//!
//! Where step 2 finds something to do, several instances may take turns before step 3 (`lease`); nothing rests on that.
//!
//! Revisions come from [`crate::sources`]. Files: `survey` step 2; `rewind` a ref that went back; `write` step 4; `worker`
//! one cluster from 1 to 5; `aliases` names that mean one cluster; `orphaned` namespaces that no rule names any more;
//! `turns` who writes next, by `lease`s, `pool` and its `places` in a fleet, `renewal` one Lease of either; `set` what
//! the marker and the ledger hold; `record` writes them; `pauses` how long is waited; `report` results; `follow` the
//! same at every new revision.

mod aliases;
mod follow;
mod lease;
mod ledgers;
mod orphaned;
mod pauses;
mod places;
mod pool;
mod record;
mod renewal;
mod report;
mod rewind;
mod set;
mod survey;
mod turns;
mod worker;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use follow::{LoopEvent, Rhythm, follow};
pub use lease::Leases;
pub use ledgers::noted;
pub use places::{BadPlaces, PoolSpec};
pub use report::{Outcome, Report, Target};

use crate::cluster::{Clusters, ConfigError};
use crate::configmap::apply::{Adopt, Desired, Owner, Policy, PruneLimit, RepairLimit};
use crate::human;
use crate::retry::Backoff;
pub use crate::revision::Relation;
use crate::revision::Revision;
use crate::sources::{Source, SourceError};
use aliases::Aliases;
use pool::Pool;
use report::ClusterOutcome;
use worker::Worker;

/// A ref that still moves after so many rounds over the clusters is for the next run.
const MOST_ROUNDS: u32 = 5;

/// What to do when the ref goes back, or elsewhere, from the revision that is recorded in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnRewind {
    /// Follow it: the ref decides.
    #[default]
    Apply,
    /// Write nothing unless it is known to be an advance.
    Hold,
}

/// How to deliver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who we are.
    pub owner: Owner,
    /// Where revisions are from, without secrets, for those who read what is written.
    pub repository: Option<String>,
    /// Whose ConfigMaps become ours.
    pub adopt: Adopt,
    /// Whether what nothing feeds any more is deleted.
    pub prune: bool,
    /// How much may be taken away at once.
    pub floor: PruneLimit,
    /// Whether an immutable ConfigMap is deleted and made again.
    pub recreate: bool,
    /// Overwrite what is recorded as another revision's, where there is no ref to ask.
    pub force: bool,
    /// What to do when the ref goes back.
    pub on_rewind: OnRewind,
    /// How long a ref that goes back may be a replica that lags behind, and is asked again.
    pub lag: Duration,
    /// Plan only; what would be written is sent to the servers to be checked, and stored nowhere.
    pub dry_run: bool,
    /// How often a write, a read or a whole cluster is tried before it has failed.
    pub tries: u32,
    /// From one try to the next.
    pub backoff: Backoff,
    /// Writes in flight to one namespace; `cluster::Options::concurrency` bounds the requests to the whole cluster.
    pub concurrency: usize,
    /// How often a target may be repaired.
    pub pace: RepairLimit,
    /// How instances take turns, if they do.
    pub leases: Option<Leases>,
}

impl Options {
    /// The defaults for an owner.
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            repository: None,
            adopt: Adopt::Nothing,
            prune: false,
            floor: PruneLimit::default(),
            recreate: false,
            force: false,
            on_rewind: OnRewind::Apply,
            lag: Duration::from_secs(30),
            dry_run: false,
            tries: 5,
            backoff: Backoff { first: Duration::from_millis(200), ceiling: Duration::from_secs(10) },
            concurrency: 8,
            pace: RepairLimit::default(),
            leases: None,
        }
    }

    /// What is written says that it is from this remote: a name without userinfo, of which query and fragment, in which
    /// there may be a token, too, are left out. Of several sources no one is named there.
    #[must_use]
    pub fn naming(self, remote: Option<&str>) -> Self {
        let repository = remote.and_then(|remote| remote.split(['?', '#']).next().map(str::to_owned));
        Self { repository, ..self }
    }

    /// The rules of judging for one revision.
    fn policy(&self, desired: &Desired) -> Policy {
        Policy {
            owner: self.owner.clone(),
            adopt: self.adopt,
            prune: self.prune,
            recreate: self.recreate,
            revision: desired.revision.to_string(),
            rules: desired.rules.clone(),
            shape: desired.shape.clone(),
            pace: self.pace,
            now: Timestamp::now(),
            deletions_held: desired.sources.held(),
        }
    }
}

/// Where the clusters come from: one that cannot be used fails alone.
pub trait Directory {
    /// The cluster that rules call by this name.
    fn find(&self, name: &str) -> Result<crate::cluster::Cluster, ConfigError>;

    /// Every cluster there is, whether or not rules name it.
    fn names(&self) -> Vec<String>;
}

impl Directory for Clusters {
    fn find(&self, name: &str) -> Result<crate::cluster::Cluster, ConfigError> {
        self.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }
}

/// Delivers the revision that the ref names to every cluster that it has something for, and whatever it names when it
/// moves meanwhile. Ends when every target has a definite result; soon after `cancel`, too.
///
/// # Errors
/// When the remote cannot be asked at all, or what it names cannot be planned: then nothing was touched.
pub async fn deliver<S: Source>(
    source: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    cancel: &CancellationToken,
) -> Result<Report, SourceError> {
    let newest = async || source.desired(source.ask().await?).await;
    let mut desired = or_cancelled(cancel, newest()).await?;
    let mut ended: BTreeMap<String, ClusterOutcome> = BTreeMap::new();
    let mut failures = Vec::new();
    let aliases = Arc::new(Aliases::of(clusters));
    let pool = Pool::of(options.leases.as_ref(), clusters, cancel).map(Arc::new);
    for round in 1.. {
        let behind = |name: &&str| ended.get(*name).is_none_or(|ended| ended.revision != desired.revision);
        let all = aliases.concerned(&desired, options.prune);
        let names: BTreeSet<String> = all.iter().filter(|name| behind(&name.as_str())).cloned().collect();
        let crew = WorkerContext {
            source: &source,
            clusters,
            aliases: &aliases,
            options,
            cancel,
            pool: pool.as_ref(),
        };
        ended.extend(crew.each(&names, &desired).await);
        let settled = all.iter().all(|name| ended[name].revision == desired.revision);
        if settled || cancel.is_cancelled() || round == MOST_ROUNDS {
            break;
        }
        // The ref moved while some clusters were written and after others were found right: those have it to come.
        match or_cancelled(cancel, newest()).await {
            Ok(newest) => desired = newest,
            Err(error) => {
                failures.push(error.to_string());
                break;
            }
        }
    }
    let mut report = Report::new(&desired);
    report.failures = failures;
    ended.into_values().for_each(|ended| report.add(ended));
    Ok(report)
}

/// What the remote answers, unless the run ends before.
async fn or_cancelled<T>(
    cancel: &CancellationToken,
    answer: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    tokio::select! {
        biased;
        answer = answer => answer,
        () = cancel.cancelled() => Err(SourceError::interrupted()),
    }
}

/// What each worker of a delivery gets.
struct WorkerContext<'a, S, D> {
    source: &'a Arc<S>,
    clusters: &'a D,
    aliases: &'a Arc<Aliases>,
    options: &'a Options,
    cancel: &'a CancellationToken,
    pool: Option<&'a Arc<Pool>>,
}

impl<S: Source, D: Directory> WorkerContext<'_, S, D> {
    /// Brings one revision to these clusters, each on its own.
    async fn each(
        &self,
        names: &BTreeSet<String>,
        desired: &Arc<Desired>,
    ) -> BTreeMap<String, ClusterOutcome> {
        let mut running = JoinSet::new();
        let mut ended = BTreeMap::new();
        for name in names {
            let cluster = match self.clusters.find(name) {
                Ok(cluster) => cluster,
                Err(error) => {
                    let hints = error.hints();
                    let failed = ClusterOutcome::failed(desired, name, &human::one_line(&error), &hints);
                    ended.insert(name.clone(), failed);
                    continue;
                }
            };
            let worker = Worker::new(
                name.clone(),
                cluster,
                Arc::clone(self.aliases),
                Arc::clone(self.source),
                self.options.clone(),
                self.cancel.clone(),
                self.pool.cloned(),
            );
            let name = name.clone();
            let desired = Arc::clone(desired);
            running.spawn(async move { (name, worker.run(desired).await) });
        }
        while let Some(done) = running.join_next().await {
            match done {
                Ok((name, done)) => drop(ended.insert(name, done)),
                Err(error) => std::panic::resume_unwind(error.into_panic()), // they are never aborted
            }
        }
        ended
    }
}

/// The revision as people read it, of a text that should be one.
fn short(revision: &str) -> &str {
    revision.get(..12).unwrap_or(revision)
}

/// The revision that a text names.
fn parsed(text: &str) -> Option<Revision> {
    crate::revision::ObjectId::from_hex(text).map(Revision)
}
