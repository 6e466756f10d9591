//! Takes turns between instances that write the same namespaces, with a Lease per namespace and owner.
//!
//! A Lease is acquired only where the survey found something to write, and released right after. The order is: survey,
//! read the Lease, wait until it is free, survey again, acquire it under the resourceVersion that was read. So an
//! instance that waited usually finds nothing left to do and writes nothing, not even the Lease; and one that acquires
//! it knows that no other holder wrote since the survey. The remote is asked after that, as always.
//!
//! Correctness does not depend on Leases. Whatever goes wrong with one (forbidden, no such API, no answer, too long a
//! wait), the work goes on without it; more writes may then conflict with those of others and be tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use super::Options;
use super::lease_options::LeaseOptions;
use super::notes::Notes;
use super::pauses::{Cancellation, LAST_RELEASE_TIMEOUT};
use super::pool::Pool;
use super::renewal::{LeaseAcquirer, LeaseRef, ObservedLease, RenewedLease};
use crate::cluster::{Cluster, Failure};
use crate::configmap::apply::{LeaseAvailability, names};

/// The Leases of one worker, which delivers to one cluster.
#[derive(Debug)]
pub(super) struct LeaseTurns {
    /// The cluster's name in the rules.
    cluster_name: String,
    cluster: Cluster,
    options: Option<LeaseOptions>,
    /// Limits how many instances of a fleet write at once.
    pool: Option<Arc<Pool>>,
    /// True if this worker has entered the pool.
    in_pool: bool,
    cancel: Cancellation,
    /// The name of the Lease, the same in every namespace.
    name: String,
    acquirer: LeaseAcquirer,
    /// When this worker first had to wait for another holder.
    waiting_since: Option<Instant>,
    /// By namespace.
    states: BTreeMap<String, LeaseState>,
}

/// The state of the Lease of one namespace.
#[derive(Debug)]
enum LeaseState {
    /// As it was last read, which was before the current survey.
    Observed(ObservedLease),
    /// We hold it.
    Acquired(RenewedLease),
    /// The namespace is written without a Lease.
    Without,
}

impl LeaseTurns {
    /// Holds no Lease yet.
    pub(super) fn new(
        cluster_name: String,
        cluster: Cluster,
        options: &Options,
        pool: Option<Arc<Pool>>,
        cancel: Cancellation,
    ) -> Self {
        let Options { owner, leases, .. } = options;
        let labels = owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let annotations = [(names::OWNER_NAME.to_owned(), owner.name().to_owned())].into();
        let duration = leases.as_ref().map_or(Duration::ZERO, LeaseOptions::duration);
        let acquirer = LeaseAcquirer::new(duration, labels, annotations, cancel.clone());
        Self {
            cluster_name,
            cluster,
            options: leases.clone(),
            pool,
            in_pool: false,
            cancel,
            name: owner.lease(),
            acquirer,
            waiting_since: None,
            states: BTreeMap::new(),
        }
    }

    fn lease_ref<'a>(&'a self, namespace: &'a str) -> LeaseRef<'a> {
        LeaseRef { cluster: &self.cluster, namespace, name: &self.name }
    }

    /// Reads the Lease of a namespace. An earlier observation shows how long its holder has been silent.
    async fn observe(&self, namespace: &str) -> Result<ObservedLease, String> {
        let before = match self.states.get(namespace) {
            Some(LeaseState::Observed(observed)) => Some(observed),
            _ => None,
        };
        self.acquirer.observe(self.lease_ref(namespace), before).await
    }

    /// Returns true if we hold the Lease of a namespace that sorts after this one. Lock ordering: waiting for an
    /// earlier one then could deadlock, as its holder may wait for ours.
    fn has_later(&self, namespace: &str) -> bool {
        self.states
            .iter()
            .any(|(name, state)| matches!(state, LeaseState::Acquired(_)) && name.as_str() > namespace)
    }

    fn is_decided(&self, namespace: &str) -> bool {
        matches!(self.states.get(namespace), Some(LeaseState::Acquired(_) | LeaseState::Without))
    }

    /// Releases all Leases and leaves the pool. Takes a bounded time, less at shutdown. A Lease that is not released by
    /// then expires by itself.
    pub(super) async fn release(&mut self) {
        let states = std::mem::take(&mut self.states).into_values();
        let releases = states.filter_map(|state| match state {
            LeaseState::Acquired(lease) => Some(lease.release()),
            _ => None,
        });
        let pool = self.pool.as_ref().filter(|_| std::mem::take(&mut self.in_pool));
        let leave = async {
            if let Some(pool) = pool {
                pool.leave().await;
            }
        };
        tokio::select! {
            biased;
            _ = future::join(future::join_all(releases), leave) => {}
            () = self.cancel.cancelled_for(LAST_RELEASE_TIMEOUT) => {}
        }
    }

    /// Returns true if the writes that the survey found in these namespaces may be made now: we hold their Leases, or
    /// go on without. Returns false after waiting: others may have written since the survey, so it has to be repeated.
    pub(super) async fn may_write(&mut self, busy: &[&str], notes: &mut Notes) -> bool {
        // During shutdown nothing is written, with or without a Lease.
        let Some(options) = self.options.clone().filter(|_| !self.cancel.is_cancelled()) else {
            return true;
        };
        // The pool comes first, so that an instance that waits for one of its Leases holds no other.
        self.enter_pool(notes).await;
        let mut busy = busy.to_vec();
        busy.sort_unstable();
        let undecided: Vec<&str> = busy.iter().copied().filter(|name| !self.is_decided(name)).collect();
        // An instance that gets the first Lease usually gets all of them, so the others are acquired only then,
        // concurrently.
        let (first, others) = undecided.split_at(usize::from(!undecided.is_empty()));
        for namespaces in [first, others] {
            if !self.acquire(namespaces, &options, notes).await {
                self.wait(&busy, &options, notes).await;
                return false;
            }
        }
        true
    }

    /// Acquires these Leases under the versions that were read. Returns true if each is acquired or given up on.
    async fn acquire(&mut self, namespaces: &[&str], options: &LeaseOptions, notes: &mut Notes) -> bool {
        let mut observations = Vec::new();
        for namespace in namespaces {
            match self.states.get(*namespace) {
                Some(LeaseState::Observed(observed)) if observed.availability.is_open() => {
                    observations.push((*namespace, observed.clone()));
                }
                _ => return false,
            }
        }
        let acquisitions = observations
            .iter()
            .map(|(namespace, observed)| self.acquirer.acquire(self.lease_ref(namespace), observed));
        let acquired = future::join_all(acquisitions).await;
        let mut all = true;
        for ((namespace, observed), acquired) in observations.into_iter().zip(acquired) {
            match acquired {
                Ok(Some(lease)) => {
                    if let LeaseAvailability::Expired(holder) = observed.availability {
                        notes.add(format!(
                            "{holder} stopped renewing its Lease on {namespace}: taking it over"
                        ));
                    }
                    self.states.insert(namespace.to_owned(), LeaseState::Acquired(lease));
                }
                Ok(None) => all = false,
                Err(why) => self.unusable(namespace, options, &why, notes),
            }
        }
        all
    }

    /// Waits until no other holder is known to write these namespaces.
    async fn wait(&mut self, busy: &[&str], options: &LeaseOptions, notes: &mut Notes) {
        for poll in 1.. {
            let holders = self.observe_all(busy, options, notes).await.into_iter();
            let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
            if options.has_waited_enough(waiting_since) {
                busy.iter().for_each(|namespace| self.stop_waiting(namespace));
                return;
            }
            let (deadlocking, awaited): (Vec<_>, Vec<_>) =
                holders.partition(|(namespace, _)| self.has_later(namespace));
            deadlocking.into_iter().for_each(|(namespace, _)| self.stop_waiting(namespace));
            if awaited.is_empty() {
                return;
            }
            for (namespace, holder) in awaited.iter().filter(|_| poll == 1) {
                info!("cluster {}: waiting for {holder}, which is writing {namespace}", self.cluster_name);
            }
            tokio::select! {
                () = sleep(options.pause(poll)) => {}
                () = self.cancel.cancelled() => return,
            }
        }
    }

    /// Reads the Leases that are neither acquired nor given up on, and returns the holders of those that are taken.
    /// Concurrently, so that the silence of several holders is measured from the same moment.
    async fn observe_all<'n>(
        &mut self,
        busy: &[&'n str],
        options: &LeaseOptions,
        notes: &mut Notes,
    ) -> Vec<(&'n str, String)> {
        let undecided = busy.iter().copied().filter(|namespace| !self.is_decided(namespace));
        let undecided: Vec<&str> = undecided.collect();
        let observations = undecided.iter().map(|namespace| self.observe(namespace));
        let seen = future::join_all(observations).await;
        let mut holders = Vec::new();
        for (namespace, seen) in undecided.into_iter().zip(seen) {
            match seen {
                Ok(observed) => {
                    if let LeaseAvailability::Taken(holder) = &observed.availability {
                        holders.push((namespace, holder.clone()));
                    }
                    self.states.insert(namespace.to_owned(), LeaseState::Observed(observed));
                }
                Err(why) => self.unusable(namespace, options, &why, notes),
            }
        }
        holders
    }

    /// Gives up on the Lease of a namespace after too long a wait.
    fn stop_waiting(&mut self, namespace: &str) {
        if !self.is_decided(namespace) {
            debug!("cluster {}: writing {namespace} without its Lease", self.cluster_name);
            self.states.insert(namespace.to_owned(), LeaseState::Without);
        }
    }

    /// Gives up on a Lease that cannot be used, and reports it once per cluster. A missing namespace is not reported:
    /// its targets fail by that, too.
    fn unusable(&mut self, namespace: &str, options: &LeaseOptions, why: &str, notes: &mut Notes) {
        self.states.insert(namespace.to_owned(), LeaseState::Without);
        let missing = Failure::NamespaceNotFound { namespace: namespace.to_owned() }.to_string();
        let is_reported_anyway = self.cancel.is_cancelled() || why.ends_with(&missing);
        if !is_reported_anyway && options.is_first_report(&self.cluster_name) {
            notes.add(format!(
                "cannot use Leases to take turns with other instances ({why}); conflicting writes are retried"
            ));
        }
    }

    /// Waits for a Lease of the pool, if there is one.
    async fn enter_pool(&mut self, notes: &mut Notes) {
        if let Some(pool) = self.pool.as_ref().filter(|_| !self.in_pool) {
            let note = pool.enter().await;
            self.in_pool = true;
            note.into_iter().for_each(|note| notes.add_to_run(note));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{cluster, options};
    use super::*;
    use crate::cluster::{Error, Kind, Operation, Verb};
    use crate::human;

    #[tokio::test]
    async fn a_missing_namespace_does_not_use_up_the_one_report_of_unusable_leases() {
        let leases = LeaseOptions::new(Duration::from_secs(15));
        let options = Options { leases: Some(leases.clone()), ..options() };
        let cancel = Cancellation::default();
        let mut turns = LeaseTurns::new("test".to_owned(), cluster(), &options, None, cancel);
        let mut reported = |namespace: &str, why: Failure| {
            let operation = Operation {
                verb: Verb::Create,
                kind: Kind::Lease,
                namespace: namespace.to_owned(),
                name: "treeswap-team".to_owned(),
            };
            let error = Error { cluster: "test".to_owned(), operation: Box::new(operation), why };
            let mut notes = Notes::new("test");
            turns.unusable(namespace, &leases, &human::one_line(&error), &mut notes);
            assert!(turns.is_decided(namespace));
            notes.take().len()
        };
        let missing = |namespace: &str| Failure::NamespaceNotFound { namespace: namespace.to_owned() };
        assert_eq!((reported("gone", missing("gone")), reported("ci", Failure::Unauthorized)), (0, 1));
        assert_eq!(reported("other", Failure::Unauthorized), 0, "once per cluster");
    }
}
