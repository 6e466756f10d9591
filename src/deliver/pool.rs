//! Limits how many instances of a fleet write at once: a pool of Leases, of which each writing process holds one.
//!
//! It is for a fleet whose instances all react to one push: whatever their owners and clusters are, no more of them
//! than the pool has Leases write at once, which bounds the load on API servers, webhooks and watchers. A process
//! acquires one Lease when the first of its clusters has something to write, and releases it when the last one is done.
//! Correctness does not depend on it: without the rights or the API, or when all Leases stay taken for too long, the
//! work goes on without one, and that is reported once.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::Directory;
use super::lease_options::LeaseOptions;
use super::pauses::Cancellation;
use super::pool_spec::PoolSpec;
use super::renewal::{LeaseAcquirer, LeaseRef, ObservedLease, RenewedLease};
use super::write::StopReason;
use crate::cluster::{Cluster, DEFAULT};
use crate::configmap::apply::{LeaseAvailability, LeaseChoice, choose, names};
use crate::human;
use crate::retry::random_fraction;

/// The pool, as the workers of one delivery share it.
#[derive(Debug)]
pub(super) struct Pool {
    spec: PoolSpec,
    cluster: Result<Cluster, String>,
    options: LeaseOptions,
    acquirer: LeaseAcquirer,
    cancel: Cancellation,
    state: Mutex<PoolState>,
}

/// How many workers of this delivery are in the pool, and the Lease that they share.
#[derive(Debug, Default)]
struct PoolState {
    workers: usize,
    lease: Option<RenewedLease>,
}

/// A Lease of the pool as it was last read: `None` if it was not yet, `Err` says why it cannot be used.
type Candidate = Result<Option<ObservedLease>, String>;

impl Pool {
    /// Returns the pool; `None` if none is configured.
    pub(super) fn of(
        options: Option<&LeaseOptions>,
        clusters: &impl Directory,
        cancel: &Cancellation,
    ) -> Option<Self> {
        let options = options?.clone();
        let spec = options.pool()?.clone();
        let (key, value) = names::MANAGED_BY;
        let labels = [(key.to_owned(), value.to_owned())].into();
        let acquirer = LeaseAcquirer::new(options.duration(), labels, BTreeMap::new(), cancel.clone());
        let cluster = clusters.find(DEFAULT).map_err(|error| human::one_line(&error));
        Some(Self { spec, cluster, options, acquirer, cancel: cancel.clone(), state: Mutex::default() })
    }

    /// Waits until this worker may write, or shutdown. Returns a note if it goes on without a Lease.
    pub(super) async fn enter(&self) -> Option<String> {
        let mut state = self.state.lock().await; // at shutdown its holder stops waiting for a Lease
        state.workers += 1;
        if state.workers > 1 {
            return None; // shares the Lease of the worker that came first, or goes on without, as that one does
        }
        match self.acquire().await {
            Ok(lease) => {
                state.lease = Some(lease);
                None
            }
            Err(why) => {
                let report = !self.cancel.is_cancelled() && self.options.is_first_report("the pool");
                report.then(|| {
                    format!("no Lease of {} could be acquired ({why}); continuing without one", self.spec)
                })
            }
        }
    }

    /// Ends one worker's use of the pool. The last worker releases the Lease.
    pub(super) async fn leave(&self) {
        let mut state = self.state.lock().await;
        state.workers = state.workers.saturating_sub(1);
        if state.workers == 0
            && let Some(lease) = state.lease.take()
        {
            lease.release().await;
        }
    }

    /// Waits for a free Lease and acquires it. `Err` says why there is none.
    async fn acquire(&self) -> Result<RenewedLease, String> {
        let cluster = self.cluster.as_ref().map_err(Clone::clone)?;
        let count = self.spec.leases.len();
        let first = (random_fraction() * count as f64) as usize; // spreads the instances over the Leases
        let mut candidates: Vec<Candidate> = vec![Ok(None); count];
        let began = Instant::now();
        for poll in 1.. {
            self.observe(cluster, &mut candidates).await;
            if let Some(lease) = self.acquire_one(cluster, &mut candidates, first).await? {
                return Ok(lease);
            }
            if self.options.has_waited_enough(began) {
                let waited = Duration::from_secs(began.elapsed().as_secs());
                return Err(format!("all were held by others for {waited:?}"));
            }
            if poll == 1 {
                info!("all Leases of {} are held by others: waiting for one", self.spec);
            }
            tokio::select! {
                () = sleep(self.options.pause(poll)) => {}
                () = self.cancel.cancelled() => break,
            }
        }
        Err(StopReason::Cancelled.to_string())
    }

    fn lease_ref<'a>(&'a self, cluster: &'a Cluster, at: usize) -> LeaseRef<'a> {
        LeaseRef { cluster, namespace: &self.spec.namespace, name: &self.spec.leases[at] }
    }

    /// Reads the Leases that can be used.
    async fn observe(&self, cluster: &Cluster, candidates: &mut [Candidate]) {
        let before: &[Candidate] = candidates;
        let usable: Vec<usize> = (0..before.len()).filter(|at| before[*at].is_ok()).collect();
        let reads = usable.iter().map(|&at| {
            let before = before[at].as_ref().ok().and_then(Option::as_ref);
            self.acquirer.observe(self.lease_ref(cluster, at), before)
        });
        let observed = future::join_all(reads).await;
        for (at, observed) in usable.into_iter().zip(observed) {
            candidates[at] = observed.map(Some);
        }
    }

    /// Acquires a Lease that is free; `None` if there is none now. One that turns out to be unusable is excluded, and
    /// the choice repeated among the others. `Err` says why none can be used.
    async fn acquire_one(
        &self,
        cluster: &Cluster,
        candidates: &mut [Candidate],
        first: usize,
    ) -> Result<Option<RenewedLease>, String> {
        loop {
            let availabilities: Vec<Option<&LeaseAvailability>> = candidates
                .iter()
                .map(|candidate| Some(&candidate.as_ref().ok()?.as_ref()?.availability))
                .collect();
            let at = match choose(&availabilities, first) {
                LeaseChoice::Take(at) => at,
                LeaseChoice::Wait => return Ok(None),
                LeaseChoice::NoneUsable => {
                    let why = candidates.iter().find_map(|candidate| candidate.as_ref().err());
                    return Err(why.cloned().unwrap_or_default());
                }
            };
            let Ok(Some(observed)) = &candidates[at] else { return Ok(None) };
            let acquired = self.acquirer.acquire(self.lease_ref(cluster, at), observed).await;
            match acquired {
                Err(why) => candidates[at] = Err(why),
                acquired => return acquired,
            }
        }
    }
}
