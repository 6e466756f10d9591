//! Instances that share a cluster stay out of each other's way: a Lease for each namespace and owner.
//!
//! It is asked for only where the survey found something to write, and let go right after. The order is: survey, look
//! at the Lease, wait until nobody has it, survey again, take it under the version that was looked at. So whoever waited
//! mostly finds nothing left to do and writes nothing, not even the Lease; and whoever takes it knows that no other
//! holder wrote since the survey. The ref is asked after that, as always.
//!
//! Nothing rests on it. Whatever goes wrong with a Lease (no right, no such API, no answer, a wait that is too long),
//! the work goes on without; more writes may then meet those of others and be tried again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::hold::{Kept, Look, Named, Taker};
use super::pool::Places;
use super::source::Source;
use super::worker::Worker;
use crate::cluster::Cluster;
use crate::configmap::apply::{Owner, Standing, names};
use crate::retry::{Backoff, dice, jittered};

/// From one look to the next, at first and at last; with short durations an eighth of them at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// How much a pause may differ, so that those who began together do not stay together.
const SPREAD: f64 = 0.3;
/// So many durations are waited altogether, for those who work on and on.
const MOST_WAITS: u32 = 15;

/// How a process uses Leases. Clones share what was said.
#[derive(Clone, Debug)]
pub struct Leases {
    duration: Duration,
    patience: Duration,
    pool: Option<Places>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Leases {
    /// With Leases that a silent holder loses after so long.
    pub fn new(duration: Duration) -> Self {
        let patience = duration.saturating_mul(MOST_WAITS);
        Self { duration, patience, pool: None, said: Arc::default() }
    }

    /// Others are waited for no longer than this altogether, however well they are.
    #[must_use]
    pub fn patient_for(self, most: Duration) -> Self {
        Self { patience: self.patience.min(most), ..self }
    }

    /// Only so many instances write at once, if that can be had.
    #[must_use]
    pub fn pooled(self, pool: Option<Places>) -> Self {
        Self { pool, ..self }
    }

    /// The pool, if there is one.
    pub(super) fn pool(&self) -> Option<&Places> {
        self.pool.as_ref()
    }

    /// How long a holder may be silent.
    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    /// Whether others were waited for long enough.
    pub(super) fn is_over(&self, since: Instant) -> bool {
        since.elapsed() >= self.patience
    }

    /// From one look to the next while others are waited for.
    pub(super) fn pause(&self, look: u32) -> Duration {
        let longest = self.duration / 8;
        let pauses = Backoff { first: PAUSES.0.min(longest), ceiling: PAUSES.1.min(longest) };
        jittered(pauses.delay(look), SPREAD, dice())
    }

    /// Whether this process says it for the first time: of a cluster, or of the pool.
    pub(super) fn is_news(&self, of: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let news = !said.iter().any(|one| one == of);
        if news {
            said.push(of.to_owned());
        }
        news
    }
}

/// The Leases of one cluster, as one worker has them.
#[derive(Debug)]
pub(super) struct Turns {
    leases: Option<Leases>,
    /// What each of them is called.
    name: String,
    taker: Taker,
    /// When we first had to wait.
    waiting: Option<Instant>,
    spaces: BTreeMap<String, Turn>,
}

/// A namespace of it.
#[derive(Debug)]
enum Turn {
    /// As it was last looked at, before the survey that is judged now.
    Seen(Look),
    /// Ours.
    Kept(Kept),
    /// It is written without.
    Without,
}

impl Turns {
    pub(super) fn new(leases: Option<Leases>, owner: &Owner, cancel: CancellationToken) -> Self {
        let labels = owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let annotations = [(names::OWNER_NAME.to_owned(), owner.name().to_owned())].into();
        let duration = leases.as_ref().map_or(Duration::ZERO, Leases::duration);
        let taker = Taker::new(duration, labels, annotations, cancel);
        Self { leases, name: owner.lease(), taker, waiting: None, spaces: BTreeMap::new() }
    }

    fn named<'a>(&'a self, cluster: &'a Cluster, namespace: &'a str) -> Named<'a> {
        Named { cluster, namespace, name: &self.name }
    }

    /// Looks at the Lease of a namespace, again if it was looked at before.
    async fn look(&self, cluster: &Cluster, namespace: &str) -> Result<Look, String> {
        let before = match self.spaces.get(namespace) {
            Some(Turn::Seen(look)) => Some(look),
            _ => None,
        };
        self.taker.look(self.named(cluster, namespace), before).await
    }

    /// Whether we have one whose namespace comes after this one. Who has one waits for none before it: another may have
    /// that one and wait for ours.
    fn has_later(&self, namespace: &str) -> bool {
        self.spaces.iter().any(|(name, turn)| matches!(turn, Turn::Kept(_)) && name.as_str() > namespace)
    }

    fn is_settled(&self, namespace: &str) -> bool {
        matches!(self.spaces.get(namespace), Some(Turn::Kept(_) | Turn::Without))
    }

    /// Lets everything go, soon.
    pub(super) async fn let_go(&mut self) {
        let spaces = std::mem::take(&mut self.spaces).into_values();
        let kept = spaces.filter_map(|turn| match turn {
            Turn::Kept(kept) => Some(kept.let_go()),
            _ => None,
        });
        future::join_all(kept).await;
    }
}

impl<S: Source> Worker<S> {
    /// Whether what the survey found to do in these namespaces may be done now: they are ours for the moment, or nothing
    /// else can be done. If not, somebody may have written since the survey, and it has to be made again.
    pub(super) async fn may_write(&mut self, busy: &[&str]) -> bool {
        // After the end was asked for nothing is written, with or without a Lease.
        let Some(leases) = self.turns.leases.clone().filter(|_| !self.cancel.is_cancelled()) else {
            return true;
        };
        // First a place, then the namespaces: whoever waits for a place keeps nobody from anything.
        self.enter_pool().await;
        let mut busy = busy.to_vec();
        busy.sort_unstable();
        for namespace in &busy {
            let Some(Turn::Seen(look)) = self.turns.spaces.get(*namespace) else {
                if self.turns.is_settled(namespace) {
                    continue;
                }
                return self.wait(&busy, &leases).await;
            };
            if !look.standing.is_open() {
                return self.wait(&busy, &leases).await;
            }
            match self.turns.taker.take(self.turns.named(&self.cluster, namespace), look).await {
                Ok(Some(kept)) => {
                    if let Standing::Silent(holder) = look.standing.clone() {
                        self.note(format!(
                            "{holder} was writing {namespace} and is silent: it is waited for no longer"
                        ));
                    }
                    self.turns.spaces.insert((*namespace).to_owned(), Turn::Kept(kept));
                }
                Ok(None) => return self.wait(&busy, &leases).await,
                Err(why) => self.without(namespace, &leases, &why),
            }
        }
        true
    }

    /// Waits until nobody is known to write these namespaces. Always false: the survey is old by then.
    async fn wait(&mut self, busy: &[&str], leases: &Leases) -> bool {
        for pause in 1.. {
            let holders = self.look(busy, leases).await;
            let waiting = *self.turns.waiting.get_or_insert_with(Instant::now);
            if leases.is_over(waiting) {
                busy.iter().for_each(|namespace| self.impatient(namespace));
                return false;
            }
            let mut waits = false;
            for (namespace, holder) in holders {
                if self.turns.has_later(namespace) {
                    self.impatient(namespace);
                    continue;
                }
                if pause == 1 {
                    info!("cluster {}: {holder} writes {namespace}, and is waited for", self.name);
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
    async fn look<'n>(&mut self, busy: &[&'n str], leases: &Leases) -> Vec<(&'n str, String)> {
        let open = busy.iter().copied().filter(|namespace| !self.turns.is_settled(namespace));
        let open: Vec<&str> = open.collect();
        let looks = open.iter().map(|namespace| self.turns.look(&self.cluster, namespace));
        let seen = future::join_all(looks).await;
        let mut holders = Vec::new();
        for (namespace, seen) in open.into_iter().zip(seen) {
            match seen {
                Ok(look) => {
                    if let Standing::Taken(holder) = &look.standing {
                        holders.push((namespace, holder.clone()));
                    }
                    self.turns.spaces.insert(namespace.to_owned(), Turn::Seen(look));
                }
                Err(why) => self.without(namespace, leases, &why),
            }
        }
        holders
    }

    /// A namespace whose Lease is waited for no longer.
    fn impatient(&mut self, namespace: &str) {
        if !self.turns.is_settled(namespace) {
            debug!("cluster {}: {namespace} is written beside others", self.name);
            self.turns.spaces.insert(namespace.to_owned(), Turn::Without);
        }
    }

    /// A namespace whose Lease cannot be used.
    fn without(&mut self, namespace: &str, leases: &Leases, why: &str) {
        self.turns.spaces.insert(namespace.to_owned(), Turn::Without);
        if !self.cancel.is_cancelled() && leases.is_news(&self.name) {
            self.note(format!(
                "no Lease keeps other instances out of our way ({why}); writes may meet theirs and are then tried again"
            ));
        }
    }
}
