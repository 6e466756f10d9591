//! Only so many instances of a fleet work at once: a few Leases, of which each that has something to write takes one.
//!
//! It is for a fleet that is moved by one push: whatever their owners and clusters are, no more of them than that
//! write, and their API servers, webhooks and watchers have a bounded load. A process takes one place, when the first
//! of its clusters has something to write, and lets it go when the last one is done. Nothing rests on it: without the
//! rights or the API, or when all places stay taken for too long, the work goes on without, and that is said once.

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

/// The pool as one delivery uses it.
#[derive(Debug)]
pub(super) struct Pool {
    places: PoolSpec,
    home: Result<Cluster, String>,
    leases: Leases,
    taker: Taker,
    cancel: CancellationToken,
    inside: Mutex<Inside>,
}

/// Who of this delivery works, and by which place.
#[derive(Debug, Default)]
struct Inside {
    workers: usize,
    place: Option<RenewedLease>,
}

impl Pool {
    /// If one is asked for.
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

    /// Returns when this worker may work, or all is to end. What is to be said about it, if anything.
    pub(super) async fn enter(&self) -> Option<String> {
        let mut inside = self.inside.lock().await; // its holder ends soon after a shutdown
        inside.workers += 1;
        if inside.workers > 1 {
            return None; // by the place of those who came before, or without, as they do
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

    /// A worker is done: after the last one, the place is free for another instance.
    pub(super) async fn leave(&self) {
        let mut inside = self.inside.lock().await;
        inside.workers = inside.workers.saturating_sub(1);
        if inside.workers == 0
            && let Some(place) = inside.place.take()
        {
            place.release().await;
        }
    }

    /// Waits for a place.
    async fn place(&self) -> Result<RenewedLease, String> {
        let home = self.home.as_ref().map_err(Clone::clone)?;
        let lease = |at: usize| Named {
            cluster: home,
            namespace: &self.places.namespace,
            name: &self.places.leases[at],
        };
        let count = self.places.leases.len();
        let first = (random_fraction() * count as f64) as usize; // not all begin with the same
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
            // One that is gone before we have it leaves the others.
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
