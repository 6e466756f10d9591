//! Limits how many instances of a fleet write at once: a pool of Leases, of which each writing process holds one.
//!
//! It is for a fleet whose instances all react to one push: whatever their owners and clusters are, no more of them than
//! the pool has places write at once, which bounds the load on API servers, webhooks and watchers. A process acquires
//! one place when the first of its clusters has something to write, and releases it when the last one is done.
//! Correctness does not depend on it: without the rights or the API, or when all places stay taken for too long, the work
//! goes on without a place, and that is reported once.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Directory;
use super::lease::Leases;
use super::places::PoolSpec;
use super::renewal::{Named, ObservedLease, RenewedLease, Taker};
use super::write::StopReason;
use crate::cluster::{Cluster, DEFAULT};
use crate::configmap::apply::{SlotChoice, Standing, choose, names};
use crate::human;
use crate::retry::random_fraction;

/// The pool, as the workers of one delivery share it.
#[derive(Debug)]
pub(super) struct Pool {
    places: PoolSpec,
    home: Result<Cluster, String>,
    leases: Leases,
    taker: Taker,
    cancel: CancellationToken,
    inside: Mutex<Inside>,
}

/// How many workers of this delivery are in the pool, and the place that they share.
#[derive(Debug, Default)]
struct Inside {
    workers: usize,
    place: Option<RenewedLease>,
}

impl Pool {
    /// Returns the pool; `None` if none is configured.
    pub(super) fn of(
        leases: Option<&Leases>,
        clusters: &impl Directory,
        cancel: &CancellationToken,
    ) -> Option<Self> {
        let leases = leases?.clone();
        let places = leases.pool()?.clone();
        let (key, value) = names::MANAGED_BY;
        let labels = [(key.to_owned(), value.to_owned())].into();
        let taker = Taker::new(leases.duration(), labels, BTreeMap::new(), cancel.clone());
        let home = clusters.find(DEFAULT).map_err(|error| human::one_line(&error));
        Some(Self { places, home, leases, taker, cancel: cancel.clone(), inside: Mutex::default() })
    }

    /// Waits until this worker may write, or shutdown. Returns a note if it goes on without a place.
    pub(super) async fn enter(&self) -> Option<String> {
        let mut inside = self.inside.lock().await; // at shutdown its holder stops waiting for a place
        inside.workers += 1;
        if inside.workers > 1 {
            return None; // shares the place of the worker that came first, or goes on without, as that one does
        }
        match self.place().await {
            Ok(place) => {
                inside.place = Some(place);
                None
            }
            Err(why) => {
                let says = !self.cancel.is_cancelled() && self.leases.is_first_report("the pool");
                says.then(|| {
                    format!("no place among the Leases {} ({why}); the work goes on without", self.places)
                })
            }
        }
    }

    /// Ends one worker's use of the pool. The last worker releases the place.
    pub(super) async fn leave(&self) {
        let mut inside = self.inside.lock().await;
        inside.workers = inside.workers.saturating_sub(1);
        if inside.workers == 0
            && let Some(place) = inside.place.take()
        {
            place.release().await;
        }
    }

    /// Waits for a free place and acquires it. `Err` says why there is none.
    async fn place(&self) -> Result<RenewedLease, String> {
        let home = self.home.as_ref().map_err(Clone::clone)?;
        let lease = |at: usize| Named {
            cluster: home,
            namespace: &self.places.namespace,
            name: &self.places.leases[at],
        };
        let count = self.places.leases.len();
        let first = (random_fraction() * count as f64) as usize; // spreads the instances over the Leases
        let mut looks: Vec<Option<ObservedLease>> = vec![None; count];
        let mut unusable: BTreeMap<usize, String> = BTreeMap::new();
        let began = Instant::now();
        for pause in 1.. {
            let again = (0..count).filter(|at| !unusable.contains_key(at));
            let again = again.map(async |at| (at, self.taker.observe(lease(at), looks[at].as_ref()).await));
            for (at, seen) in future::join_all(again).await {
                match seen {
                    Ok(look) => looks[at] = Some(look),
                    Err(why) => drop(unusable.insert(at, why)),
                }
            }
            // A Lease that turns out to be unusable is excluded, and the choice repeated among the others.
            loop {
                let standings: Vec<Option<&Standing>> = (0..count)
                    .map(|at| {
                        looks[at].as_ref().filter(|_| !unusable.contains_key(&at)).map(|look| &look.standing)
                    })
                    .collect();
                let at = match choose(&standings, first) {
                    SlotChoice::Take(at) => at,
                    SlotChoice::Wait => break,
                    SlotChoice::Nowhere => return Err(unusable.into_values().next().unwrap_or_default()),
                };
                let Some(look) = &looks[at] else { break };
                match self.taker.take(lease(at), look).await {
                    Ok(Some(kept)) => return Ok(kept),
                    Ok(None) => break,
                    Err(why) => drop(unusable.insert(at, why)),
                }
            }
            if self.leases.is_over(began) {
                let waited = Duration::from_secs(began.elapsed().as_secs());
                return Err(format!("all were taken for {waited:?}"));
            }
            if pause == 1 {
                info!("others work by the Leases {}: a place is waited for", self.places);
            }
            tokio::select! {
                () = sleep(self.leases.pause(pause)) => {}
                () = self.cancel.cancelled() => break,
            }
        }
        Err(StopReason::Cancelled.to_string())
    }
}
