//! Instances that share a cluster stay out of each other's way: a Lease for each namespace and owner.
//!
//! It is asked for only where the survey found something to write, and released right after. The order is: survey, read
//! the Lease, wait until it is free, survey again, take it under the version that was read. So an instance that waited
//! mostly finds nothing left to do and writes nothing, not even the Lease; and one that takes it knows that no other
//! holder wrote since the survey. The ref is asked after that, as always.
//!
//! Nothing rests on it. Whatever goes wrong with a Lease (no right, no such API, no answer, a wait that is too long),
//! the work goes on without; more writes may then meet those of others and be tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::lease::Leases;
use super::pool::Pool;
use super::renewal::{Named, ObservedLease, RenewedLease, Taker};
use super::report::Notes;
use crate::cluster::Cluster;
use crate::configmap::apply::{Owner, Standing, names};

/// The turns of one worker in its cluster.
#[derive(Debug)]
pub(super) struct Turns {
    /// What rules call the cluster.
    cluster_name: String,
    cluster: Cluster,
    leases: Option<Leases>,
    /// Where only so many of a fleet work at once.
    pool: Option<Arc<Pool>>,
    /// We have a place in it.
    pooled: bool,
    cancel: CancellationToken,
    /// What each of them is called.
    name: String,
    taker: Taker,
    /// When we first had to wait.
    waiting: Option<Instant>,
    spaces: BTreeMap<String, LeaseState>,
}

/// A namespace of it.
#[derive(Debug)]
enum LeaseState {
    /// As it was last looked at, before the survey that is judged now.
    Seen(ObservedLease),
    /// Ours.
    Kept(RenewedLease),
    /// It is written without.
    Without,
}

impl Turns {
    /// None is taken yet.
    pub(super) fn new(
        cluster_name: String,
        cluster: Cluster,
        (leases, pool): (Option<Leases>, Option<Arc<Pool>>),
        owner: &Owner,
        cancel: CancellationToken,
    ) -> Self {
        let labels = owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let annotations = [(names::OWNER_NAME.to_owned(), owner.name().to_owned())].into();
        let duration = leases.as_ref().map_or(Duration::ZERO, Leases::duration);
        let taker = Taker::new(duration, labels, annotations, cancel.clone());
        Self {
            cluster_name,
            cluster,
            leases,
            pool,
            pooled: false,
            cancel,
            name: owner.lease(),
            taker,
            waiting: None,
            spaces: BTreeMap::new(),
        }
    }

    fn named<'a>(&'a self, namespace: &'a str) -> Named<'a> {
        Named { cluster: &self.cluster, namespace, name: &self.name }
    }

    /// Looks at the Lease of a namespace, again if it was looked at before.
    async fn observe(&self, namespace: &str) -> Result<ObservedLease, String> {
        let before = match self.spaces.get(namespace) {
            Some(LeaseState::Seen(look)) => Some(look),
            _ => None,
        };
        self.taker.observe(self.named(namespace), before).await
    }

    /// Whether we have one whose namespace comes after this one. Who has one waits for none before it: another may have
    /// that one and wait for ours.
    fn has_later(&self, namespace: &str) -> bool {
        self.spaces
            .iter()
            .any(|(name, turn)| matches!(turn, LeaseState::Kept(_)) && name.as_str() > namespace)
    }

    fn is_decided(&self, namespace: &str) -> bool {
        matches!(self.spaces.get(namespace), Some(LeaseState::Kept(_) | LeaseState::Without))
    }

    /// Releases everything, soon.
    pub(super) async fn release(&mut self) {
        let spaces = std::mem::take(&mut self.spaces).into_values();
        let kept = spaces.filter_map(|turn| match turn {
            LeaseState::Kept(kept) => Some(kept.release()),
            _ => None,
        });
        let pool = self.pool.as_ref().filter(|_| std::mem::take(&mut self.pooled));
        let left = async {
            if let Some(pool) = pool {
                pool.leave().await;
            }
        };
        future::join(future::join_all(kept), left).await;
    }

    /// Whether what the survey found to do in these namespaces may be done now: they are ours for the moment, or
    /// nothing else can be done. If not, there may have been writes since the survey, and it has to be made again.
    pub(super) async fn may_write(&mut self, busy: &[&str], notes: &mut Notes) -> bool {
        // After the end was asked for nothing is written, with or without a Lease.
        let Some(leases) = self.leases.clone().filter(|_| !self.cancel.is_cancelled()) else {
            return true;
        };
        // First a place, then the namespaces: an instance that waits for a place holds no Lease.
        self.enter_pool(notes).await;
        let mut busy = busy.to_vec();
        busy.sort_unstable();
        let open: Vec<&str> = busy.iter().copied().filter(|name| !self.is_decided(name)).collect();
        // An instance that gets the first of them gets all of them, as a rule: only then are the others asked for, at
        // once.
        let (first, others) = open.split_at(usize::from(!open.is_empty()));
        for namespaces in [first, others] {
            if !self.take(namespaces, &leases, notes).await {
                return self.wait(&busy, &leases, notes).await;
            }
        }
        true
    }

    /// Takes these Leases as they were looked at. Whether all are settled now.
    async fn take(&mut self, namespaces: &[&str], leases: &Leases, notes: &mut Notes) -> bool {
        let mut looks = Vec::new();
        for namespace in namespaces {
            match self.spaces.get(*namespace) {
                Some(LeaseState::Seen(look)) if look.standing.is_open() => {
                    looks.push((*namespace, look.clone()));
                }
                _ => return false,
            }
        }
        let takes = looks.iter().map(|(namespace, look)| self.taker.take(self.named(namespace), look));
        let taken = future::join_all(takes).await;
        let mut all = true;
        for ((namespace, look), taken) in looks.into_iter().zip(taken) {
            match taken {
                Ok(Some(kept)) => {
                    if let Standing::Silent(holder) = look.standing {
                        notes.add(format!(
                            "{holder} was writing {namespace} and is silent: it is waited for no longer"
                        ));
                    }
                    self.spaces.insert(namespace.to_owned(), LeaseState::Kept(kept));
                }
                Ok(None) => all = false,
                Err(why) => self.unusable(namespace, leases, &why, notes),
            }
        }
        all
    }

    /// Waits until no instance is known to write these namespaces. Always false: the survey is old by then.
    async fn wait(&mut self, busy: &[&str], leases: &Leases, notes: &mut Notes) -> bool {
        for pause in 1.. {
            let holders = self.observe_all(busy, leases, notes).await;
            let waiting = *self.waiting.get_or_insert_with(Instant::now);
            if leases.is_over(waiting) {
                busy.iter().for_each(|namespace| self.stop_waiting(namespace));
                return false;
            }
            let mut waits = false;
            for (namespace, holder) in holders {
                if self.has_later(namespace) {
                    self.stop_waiting(namespace);
                    continue;
                }
                if pause == 1 {
                    info!("cluster {}: {holder} writes {namespace}, and is waited for", self.cluster_name);
                }
                waits = true;
            }
            if !waits {
                return false;
            }
            tokio::select! {
                () = sleep(leases.pause(pause)) => {}
                () = self.cancel.cancelled() => return false,
            }
        }
        false
    }

    /// Looks at all that are not settled: at once, so that the silence of several counts from the same moment. The
    /// holders of those that are taken.
    async fn observe_all<'n>(
        &mut self,
        busy: &[&'n str],
        leases: &Leases,
        notes: &mut Notes,
    ) -> Vec<(&'n str, String)> {
        let open = busy.iter().copied().filter(|namespace| !self.is_decided(namespace));
        let open: Vec<&str> = open.collect();
        let looks = open.iter().map(|namespace| self.observe(namespace));
        let seen = future::join_all(looks).await;
        let mut holders = Vec::new();
        for (namespace, seen) in open.into_iter().zip(seen) {
            match seen {
                Ok(look) => {
                    if let Standing::Taken(holder) = &look.standing {
                        holders.push((namespace, holder.clone()));
                    }
                    self.spaces.insert(namespace.to_owned(), LeaseState::Seen(look));
                }
                Err(why) => self.unusable(namespace, leases, &why, notes),
            }
        }
        holders
    }

    /// Stops waiting for the Lease of a namespace.
    fn stop_waiting(&mut self, namespace: &str) {
        if !self.is_decided(namespace) {
            debug!("cluster {}: {namespace} is written beside others", self.cluster_name);
            self.spaces.insert(namespace.to_owned(), LeaseState::Without);
        }
    }

    /// A namespace whose Lease cannot be used.
    fn unusable(&mut self, namespace: &str, leases: &Leases, why: &str, notes: &mut Notes) {
        self.spaces.insert(namespace.to_owned(), LeaseState::Without);
        if !self.cancel.is_cancelled() && leases.is_first_report(&self.cluster_name) {
            notes.add(format!(
                "no Lease keeps other instances out of our way ({why}); writes may meet theirs and are then tried again"
            ));
        }
    }
    /// Waits for a place in the pool, if there is one.
    async fn enter_pool(&mut self, notes: &mut Notes) {
        if let Some(pool) = self.pool.as_ref().filter(|_| !self.pooled) {
            let note = pool.enter().await;
            self.pooled = true;
            note.into_iter().for_each(|note| notes.add_to_run(note));
        }
    }
}
