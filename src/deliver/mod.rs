//! Applies one revision to the ConfigMaps of many clusters, and never replaces a newer revision by an older one.
//!
//! Each cluster is handled independently, so a slow or unreachable cluster does not delay the others:
//!
//! 1. compute the desired state from the revision;
//! 2. read the live state; a namespace that is as desired costs one metadata-only list;
//! 3. ask the remote which revision its ref names *now*, and start over if it is another one;
//! 4. write each object under the resourceVersion that was read; a ConfigMap that gains a key is written before the one
//!    that loses it;
//! 5. ask the remote again, and start over if the ref has moved; then write the inventory (the marker), then the
//!    ledger.
//!
//! Why an older revision never overwrites a newer one, without clocks or locks: the older writer read the objects and
//! asked the remote before the newer revision was pushed, and every write of the newer revision came after the push, so
//! the older writer's write meets a changed resourceVersion and conflicts. Two cases remain. A newer writer finds an
//! object as desired, skips it, and an older write then lands: step 5 of the older writer, or the next run, repairs
//! that. And a newer writer finds that an object which it does not want is absent, takes it off the inventory, and an
//! older creation then lands: step 5 of the older writer, which remembers what it sent, repairs that. A creation that
//! failed is therefore not sent again before the object is read and the remote asked. One that got no answer and lands
//! after the older writer's last pass stays, and no inventory lists it.
//!
//! Before the first write of step 4 the inventory lists every object that is about to be created. So a crash in steps 1
//! to 3 leaves nothing behind; a crash in step 4 leaves some targets written, each whole, which the next run finds
//! as desired or, if no rule names them any more, finds in the inventory and prunes; a crash after step 4 leaves an
//! inventory that names the old set, so its readers keep the old set until the next run.
//!
//! Where step 2 finds something to do, several instances may take turns before step 3 (`turns`). Correctness does not
//! depend on that.
//!
//! Revisions come from [`crate::sources`].
//!
//! Files:
//!
//! - `worker` runs steps 2 to 5 for one cluster; `earlier_writes` has what it wrote before it started over.
//! - Step 2: `cluster_survey` reads a cluster, and `survey` one namespace, within a `memory_budget`. `aliases` finds
//!   names that mean the same cluster, `orphaned` namespaces that no rule names any more, and `refusals` those that must
//!   not be written. `rewind` handles a ref that went back.
//! - Before step 3, `turns` waits until a worker may write, by `lease_options`, `renewal` (one Lease), and `pool` and
//!   `pool_spec` (a limit for a fleet).
//! - Step 4: `waves` orders the writes of a namespace, and `write` sends them.
//! - Step 5: `set` computes the inventory and the ledger, and `record` writes them.
//! - Results: `report` and `notes`; `cause` is what fails many targets, and `causes` groups failures by it; `step` is
//!   the step that a delivery is in; `ledgers` merges a report into ledgers.
//! - `pauses` has the waits, retries and limits at shutdown; `follow` is the loop that delivers every new revision.

mod aliases;
mod cause;
mod causes;
mod cluster_survey;
mod earlier_writes;
mod follow;
mod lease_options;
mod ledgers;
mod memory_budget;
mod notes;
mod orphaned;
mod pauses;
mod pool;
mod pool_spec;
mod record;
mod refusals;
mod renewal;
mod report;
mod rewind;
mod set;
mod step;
mod survey;
#[cfg(test)]
mod testing;
mod turns;
mod waves;
mod worker;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use follow::{LoopEvent, LoopTiming, follow};
pub use lease_options::LeaseOptions;
pub use ledgers::updated_ledgers;
pub use notes::Note;
pub use pool_spec::{BadPoolSpec, PoolSpec};
pub use report::{Outcome, Report, Target, Unread};
pub use step::Step;

use crate::cluster::{Clusters, ConfigError};
use crate::configmap::apply::{Adopt, Desired, Owner, Policy, PruneLimit, RepairLimit};
use crate::human;
use crate::retry::Backoff;
pub use crate::revision::Relation;
use crate::revision::Revision;
use crate::sources::{DeliveryInput, Named, SourceError};
use aliases::Aliases;
use earlier_writes::EarlierWrites;
use pauses::Cancellation;
use pool::Pool;
use report::ClusterOutcome;
use step::CurrentStep;
use worker::Worker;

/// How many rounds over the clusters one delivery makes while the ref keeps moving. The rest is left to the next run.
const MAX_ROUNDS: u32 = 5;

/// What to do when the ref no longer descends from the revision that is recorded in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnRewind {
    /// Apply the revision that the ref names.
    #[default]
    Apply,
    /// Write nothing unless the new revision is known to descend from the recorded one.
    Hold,
}

/// Options of a delivery.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name under which this installation owns ConfigMaps.
    pub owner: Owner,
    /// The remote, without secrets, as annotated on each written object; `None` if it is not to be named.
    pub repository: Option<String>,
    /// Which existing ConfigMaps of other owners may be taken over.
    pub adopt: Adopt,
    /// Whether ConfigMaps that no file feeds any more are deleted.
    pub prune: bool,
    /// The limit on how many ConfigMaps one delivery may delete.
    pub prune_limit: PruneLimit,
    /// Whether an immutable ConfigMap is deleted and created again to change it.
    pub recreate: bool,
    /// Without a ref to ask: overwrite what is recorded as written from another revision.
    pub force: bool,
    /// What to do when the ref goes back.
    pub on_rewind: OnRewind,
    /// With [`OnRewind::Apply`]: asks for the recorded revisions even if there is nothing to write, and records this one
    /// wherever it is no advance, so that those hold no later run with [`OnRewind::Hold`].
    pub settles_rewinds: bool,
    /// How long the remote is asked again when its ref goes back, as the answer may come from a replica that lags.
    pub lag: Duration,
    /// Sends each write to the API server as a dry run, which checks it and stores nothing.
    pub dry_run: bool,
    /// How many attempts a write, a read or a whole cluster gets before it counts as failed.
    pub tries: u32,
    /// The wait between two attempts.
    pub backoff: Backoff,
    /// Writes in flight to one cluster, each with its object in memory; `cluster::Options::concurrency` bounds all
    /// requests to it.
    pub concurrency: usize,
    /// How often a target may be repaired after foreign writes.
    pub pace: RepairLimit,
    /// How instances take turns by Leases; `None`: they do not.
    pub leases: Option<LeaseOptions>,
}

impl Options {
    /// The default options for an owner.
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            repository: None,
            adopt: Adopt::Nothing,
            prune: false,
            prune_limit: PruneLimit::default(),
            recreate: false,
            force: false,
            on_rewind: OnRewind::Apply,
            settles_rewinds: false,
            lag: Duration::from_secs(30),
            dry_run: false,
            tries: 5,
            backoff: Backoff { first: Duration::from_millis(200), ceiling: Duration::from_secs(10) },
            concurrency: 8,
            pace: RepairLimit::default(),
            leases: None,
        }
    }

    /// Sets the remote that written objects are annotated with. `remote` has no userinfo; its query and fragment, which
    /// may hold a token, are cut off here. `None` with several sources: then no single remote is named.
    #[must_use]
    pub fn with_remote(self, remote: Option<&str>) -> Self {
        let repository = remote.and_then(|remote| remote.split(['?', '#']).next().map(str::to_owned));
        Self { repository, ..self }
    }

    /// The policy by which each ConfigMap of this revision is decided.
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
            deletions_held: desired.sources.hold_reason(),
        }
    }
}

/// Looks up clusters by name. A cluster that cannot be used fails by itself.
pub trait Directory {
    /// Returns the cluster that rules call by this name.
    fn find(&self, name: &str) -> Result<crate::cluster::Cluster, ConfigError>;

    /// Returns the names of all configured clusters, whether or not rules name them.
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

/// Delivers the revision that the ref names to every cluster that the revision has ConfigMaps for. If the ref moves
/// meanwhile, delivers the new revision. Returns when every target has a definite result, or soon after `cancel`.
///
/// # Errors
/// If the remote does not answer the first request, or its revision cannot be planned, or `cancel` comes before either
/// is done. Nothing was written then.
pub async fn deliver<S: DeliveryInput>(
    input: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    cancel: &CancellationToken,
) -> Result<Report, SourceError> {
    deliver_in_steps(input, clusters, options, cancel, &CurrentStep::default()).await
}

/// [`deliver`], which notes in `step` what it is doing.
async fn deliver_in_steps<S: DeliveryInput>(
    input: Arc<S>,
    clusters: &impl Directory,
    options: &Options,
    cancel: &CancellationToken,
    step: &CurrentStep,
) -> Result<Report, SourceError> {
    let mut desired = newest(&*input, cancel, step).await?;
    let delivery = Arc::new(Delivery::new(Arc::clone(&input), clusters, options, cancel));
    let mut outcomes: BTreeMap<String, ClusterOutcome> = BTreeMap::new();
    let mut earlier: BTreeMap<String, EarlierWrites> = BTreeMap::new();
    let mut round = 1;
    let failure = loop {
        let affected = delivery.aliases.affected_clusters(&desired, options.prune);
        step.begin(Step::Apply);
        let behind = clusters_behind(&affected, &outcomes, desired.revision);
        for (name, mut ended) in deliver_to(&delivery, clusters, behind, &desired).await {
            if let Some(before) = outcomes.remove(&name) {
                add_earlier(&mut ended, before, earlier.entry(name.clone()).or_default());
            }
            outcomes.insert(name, ended);
        }
        if clusters_behind(&affected, &outcomes, desired.revision).is_empty() {
            break None;
        }
        // The ref moved: some clusters already have the newer revision, the others get it in the next round.
        if cancel.is_cancelled() {
            break Some("the run ended before all clusters had the same revision".to_owned());
        }
        if round == MAX_ROUNDS {
            let why = "the ref moves faster than it can be followed, and clusters may be at other ones";
            break Some(why.to_owned());
        }
        match newest(&*input, cancel, step).await {
            Ok(newest) => desired = newest,
            Err(error) => break Some(error.to_string()),
        }
        round += 1;
    };
    let mut report = Report::new(&desired);
    report.failures.extend(failure);
    outcomes.into_iter().for_each(|(name, outcome)| report.add(&desired, name, outcome));
    Ok(report)
}

/// Returns those of the affected clusters that do not have this revision yet.
fn clusters_behind(
    affected: &BTreeSet<String>,
    outcomes: &BTreeMap<String, ClusterOutcome>,
    revision: Revision,
) -> Vec<String> {
    let is_behind = |name: &&String| outcomes.get(*name).is_none_or(|outcome| outcome.revision != revision);
    affected.iter().filter(is_behind).cloned().collect()
}

/// Adds to a cluster's outcome what earlier rounds wrote there and noted. `before` is the outcome of the last one, and
/// `earlier` has what those before it wrote.
fn add_earlier(ended: &mut ClusterOutcome, before: ClusterOutcome, earlier: &mut EarlierWrites) {
    earlier.remember(&before.targets);
    earlier.restore(&mut ended.targets);
    let mut notes = before.notes;
    notes.retain(|note| !ended.notes.contains(note));
    notes.append(&mut ended.notes);
    ended.notes = notes;
}

/// Asks the remote which revision its ref names, and computes the desired state of that.
async fn newest<S: DeliveryInput>(
    input: &S,
    cancel: &CancellationToken,
    step: &CurrentStep,
) -> Result<Arc<Desired>, SourceError> {
    step.begin(Step::Resolve);
    let named = or_cancelled(cancel, input.resolve()).await?;
    step.begin(Step::Plan);
    planned(input, named, cancel).await
}

/// Computes the desired state of a revision. If `cancel` comes first, the error names this step: the remote has
/// answered.
async fn planned<S: DeliveryInput>(
    input: &S,
    named: Named,
    cancel: &CancellationToken,
) -> Result<Arc<Desired>, SourceError> {
    let revision = named.revision;
    tokio::select! {
        biased;
        desired = input.desired(named) => desired,
        () = cancel.cancelled() => Err(SourceError::unplanned(revision)),
    }
}

/// Awaits an answer of the remote; returns an `interrupted` error if `cancel` comes first.
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

/// What all workers of a delivery share.
struct Delivery<S> {
    input: Arc<S>,
    aliases: Aliases,
    options: Options,
    cancel: Cancellation,
    pool: Option<Arc<Pool>>,
}

impl<S: DeliveryInput> Delivery<S> {
    fn new(input: Arc<S>, clusters: &impl Directory, options: &Options, cancel: &CancellationToken) -> Self {
        let cancel = Cancellation::new(cancel);
        let pool = Pool::of(options.leases.as_ref(), clusters, &cancel).map(Arc::new);
        Self { input, aliases: Aliases::of(clusters), options: options.clone(), cancel, pool }
    }
}

/// Delivers one revision to these clusters, concurrently. Returns the outcome of each, by name.
async fn deliver_to<S: DeliveryInput>(
    delivery: &Arc<Delivery<S>>,
    clusters: &impl Directory,
    names: Vec<String>,
    desired: &Arc<Desired>,
) -> BTreeMap<String, ClusterOutcome> {
    let mut running = JoinSet::new();
    let mut outcomes = BTreeMap::new();
    for name in names {
        match clusters.find(&name) {
            Ok(cluster) => {
                let worker = Worker::new(name.clone(), cluster, Arc::clone(delivery));
                let desired = Arc::clone(desired);
                running.spawn(async move { (name, worker.run(desired).await) });
            }
            Err(error) => {
                let why = human::one_line(&error);
                let failed = ClusterOutcome::failed(desired, &name, &why, &error.hints());
                outcomes.insert(name, failed);
            }
        }
    }
    while let Some(done) = running.join_next().await {
        match done {
            Ok((name, outcome)) => drop(outcomes.insert(name, outcome)),
            Err(error) => std::panic::resume_unwind(error.into_panic()), // tasks are never aborted: it is a panic
        }
    }
    outcomes
}

/// Parses a full commit id in hex; `None` if the text is none.
fn parse_revision(text: &str) -> Option<Revision> {
    crate::revision::ObjectId::from_hex(text).map(Revision)
}

#[cfg(test)]
mod tests {
    use super::testing::{Remote, options};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_ended_names_the_step_that_it_was_in() {
        let remote = || Remote::new(Ok(Relation::Ahead));
        let never_answers = Remote { answer_takes: Duration::MAX, ..remote() };
        let never_plans = Remote { plan_takes: Duration::MAX, ..remote() };
        let steps =
            [(never_answers, "before the remote had answered"), (never_plans, "while computing the plan")];
        for (remote, step) in steps {
            let cancel = CancellationToken::new();
            let (options, clusters) = (options(), Clusters::default());
            let mut run = std::pin::pin!(deliver(Arc::new(remote), &clusters, &options, &cancel));
            let long = tokio::time::timeout(Duration::from_secs(60), &mut run).await;
            assert!(long.is_err(), "nothing ends it");
            cancel.cancel();
            let error = run.await.unwrap_err();
            assert!(error.what.ends_with(step), "{error}");
            assert!(error.class.is_transient());
            human::assert_message_style(&error, &error.hints);
        }
    }
}
