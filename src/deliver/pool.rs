//! Limits how many instances of a fleet write at once: a pool of Leases, of which each writing process holds one.
//!
//! It is for a fleet whose instances all react to one push: whatever their owners and clusters are, no more of them
//! than the pool has places write at once, which bounds the load on API servers, webhooks and watchers. A process
//! acquires one place when the first of its clusters has something to write, and releases it when the last one is done.
//! Correctness does not depend on it: without the rights or the API, or when all places stay taken for too long, the
//! work goes on without a place, and that is reported once.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::Directory;
use super::lease::Leases;
use super::pauses::Ending;
use super::places::PoolSpec;
use super::renewal::{LeaseAcquirer, LeaseRef, ObservedLease, RenewedLease};
use super::write::StopReason;
use crate::cluster::{Cluster, DEFAULT};
use crate::configmap::apply::{LeaseAvailability, SlotChoice, choose, names};
use crate::human;
use crate::retry::random_fraction;

/// The pool, as the workers of one delivery share it.
#[derive(Debug)]
pub(super) struct Pool {
    spec: PoolSpec,
    cluster: Result<Cluster, String>,
    leases: Leases,
    acquirer: LeaseAcquirer,
    cancel: Ending,
    state: Mutex<PoolState>,
}

/// How many workers of this delivery are in the pool, and the place that they share.
#[derive(Debug, Default)]
struct PoolState {
    workers: usize,
    place: Option<RenewedLease>,
}

impl Pool {
    /// Returns the pool; `None` if none is configured.
    pub(super) fn of(leases: Option<&Leases>, clusters: &impl Directory, cancel: &Ending) -> Option<Self> {
        let leases = leases?.clone();
        let spec = leases.pool()?.clone();
        let (key, value) = names::MANAGED_BY;
        let labels = [(key.to_owned(), value.to_owned())].into();
        let acquirer = LeaseAcquirer::new(leases.duration(), labels, BTreeMap::new(), cancel.clone());
        let cluster = clusters.find(DEFAULT).map_err(|error| human::one_line(&error));
        Some(Self { spec, cluster, leases, acquirer, cancel: cancel.clone(), state: Mutex::default() })
    }

    /// Waits until this worker may write, or shutdown. Returns a note if it goes on without a place.
    pub(super) async fn enter(&self) -> Option<String> {
        let mut state = self.state.lock().await; // at shutdown its holder stops waiting for a place
        state.workers += 1;
        if state.workers > 1 {
            return None; // shares the place of the worker that came first, or goes on without, as that one does
        }
        match self.acquire_place().await {
            Ok(place) => {
                state.place = Some(place);
                None
            }
            Err(why) => {
                let report = !self.cancel.is_cancelled() && self.leases.is_first_report("the pool");
                report.then(|| {
                    format!("no Lease of {} could be acquired ({why}); continuing without one", self.spec)
                })
            }
        }
    }

    /// Ends one worker's use of the pool. The last worker releases the place.
    pub(super) async fn leave(&self) {
        let mut state = self.state.lock().await;
        state.workers = state.workers.saturating_sub(1);
        if state.workers == 0
            && let Some(place) = state.place.take()
        {
            place.release().await;
        }
    }

    /// Waits for a free place and acquires it. `Err` says why there is none.
    async fn acquire_place(&self) -> Result<RenewedLease, String> {
        let cluster = self.cluster.as_ref().map_err(Clone::clone)?;
        let lease =
            |at: usize| LeaseRef { cluster, namespace: &self.spec.namespace, name: &self.spec.leases[at] };
        let count = self.spec.leases.len();
        let first = (random_fraction() * count as f64) as usize; // spreads the instances over the Leases
        let mut observations: Vec<Option<ObservedLease>> = vec![None; count];
        let mut unusable: BTreeMap<usize, String> = BTreeMap::new();
        let began = Instant::now();
        for pause in 1.. {
            let reads = (0..count).filter(|at| !unusable.contains_key(at));
            let reads =
                reads.map(async |at| (at, self.acquirer.observe(lease(at), observations[at].as_ref()).await));
            for (at, seen) in future::join_all(reads).await {
                match seen {
                    Ok(observed) => observations[at] = Some(observed),
                    Err(why) => drop(unusable.insert(at, why)),
                }
            }
            // A Lease that turns out to be unusable is excluded, and the choice repeated among the others.
            loop {
                let availabilities: Vec<Option<&LeaseAvailability>> = (0..count)
                    .map(|at| {
                        observations[at]
                            .as_ref()
                            .filter(|_| !unusable.contains_key(&at))
                            .map(|observed| &observed.availability)
                    })
                    .collect();
                let at = match choose(&availabilities, first) {
                    SlotChoice::Take(at) => at,
                    SlotChoice::Wait => break,
                    SlotChoice::Nowhere => return Err(unusable.into_values().next().unwrap_or_default()),
                };
                let Some(observed) = &observations[at] else { break };
                match self.acquirer.acquire(lease(at), observed).await {
                    Ok(Some(lease)) => return Ok(lease),
                    Ok(None) => break,
                    Err(why) => drop(unusable.insert(at, why)),
                }
            }
            if self.leases.has_waited_enough(began) {
                let waited = Duration::from_secs(began.elapsed().as_secs());
                return Err(format!("all were held by others for {waited:?}"));
            }
            if pause == 1 {
                info!("all Leases of {} are held by others: waiting for one", self.spec);
            }
            tokio::select! {
                () = sleep(self.leases.pause(pause)) => {}
                () = self.cancel.cancelled() => break,
            }
        }
        Err(StopReason::Cancelled.to_string())
    }
}
