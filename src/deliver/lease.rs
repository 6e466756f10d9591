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
use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use super::source::Source;
use super::survey::Space;
use super::worker::Worker;
use super::write::{LAST_ANSWER, Stop, late};
use crate::cluster::{Cluster, Error, Failure, Lease, LeaseDraft, Verb};
use crate::configmap::apply::{Holding, Owner, Standing, Watch, names};
use crate::human;
use crate::retry::{Backoff, dice, jittered};

/// From one look to the next, at first and at last; with short durations an eighth of them at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// A holder renews so many times within the duration.
const RENEWALS: u32 = 3;
/// How much a pause may differ, so that those who began together do not stay together.
const SPREAD: f64 = 0.3;
/// How long letting go may take.
const LETTING_GO: Duration = Duration::from_secs(2);
/// So many durations are waited altogether, for those who work on and on.
const MOST_WAITS: u32 = 15;

/// How a process uses Leases. Clones share what was said.
#[derive(Clone, Debug)]
pub struct Leases {
    duration: Duration,
    patience: Duration,
    said: Arc<Mutex<Vec<String>>>,
}

impl Leases {
    /// With Leases that a silent holder loses after so long.
    pub fn new(duration: Duration) -> Self {
        let patience = duration.saturating_mul(MOST_WAITS);
        Self { duration, patience, said: Arc::default() }
    }

    /// Others are waited for no longer than this altogether, however well they are.
    #[must_use]
    pub fn patient_for(self, most: Duration) -> Self {
        Self { patience: self.patience.min(most), ..self }
    }

    /// Whether this process says it for the first time.
    fn is_news(&self, cluster: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let news = !said.iter().any(|one| one == cluster);
        if news {
            said.push(cluster.to_owned());
        }
        news
    }
}

/// The Leases of one cluster, as one worker has them.
#[derive(Debug)]
pub(super) struct Turns {
    leases: Option<Leases>,
    owner: Owner,
    /// Who we are: nobody else, in no other process or run.
    us: String,
    /// What a look's moment counts from.
    begun: Instant,
    /// When we first had to wait.
    waiting: Option<Instant>,
    spaces: BTreeMap<String, Turn>,
    cancel: CancellationToken,
}

/// A namespace of it.
#[derive(Debug)]
enum Turn {
    /// As it was last looked at, before the survey that is judged now.
    Seen(Watch, Option<Box<Lease>>, Standing),
    /// Ours.
    Kept(Kept),
    /// It is written without.
    Without,
}

/// A Lease that is renewed until it is let go.
#[derive(Debug)]
struct Kept {
    stop: CancellationToken,
    keeping: AbortOnDropHandle<Option<Lease>>,
}

impl Turns {
    pub(super) fn new(leases: Option<Leases>, owner: Owner, cancel: CancellationToken) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let number = (dice() * (1u64 << 53) as f64) as u64; // all that the dice have
        let us = format!("{host}_{}_{number:x}", std::process::id());
        Self { leases, owner, us, begun: Instant::now(), waiting: None, spaces: BTreeMap::new(), cancel }
    }

    /// What is written into a Lease when it is taken, renewed or let go.
    fn draft(&self, namespace: &str, read: Option<&Lease>, duration: Duration) -> LeaseDraft {
        let now = Timestamp::now();
        let mut labels = read.map(|read| read.meta.labels.clone()).unwrap_or_default();
        let mut annotations = read.map(|read| read.meta.annotations.clone()).unwrap_or_default();
        labels.extend(self.owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())));
        annotations.insert(names::OWNER_NAME.to_owned(), self.owner.name().to_owned());
        LeaseDraft {
            namespace: namespace.to_owned(),
            name: self.owner.lease(),
            labels,
            annotations,
            holder: Some(self.us.clone()),
            duration: i32::try_from(duration.as_millis().div_ceil(1_000)).unwrap_or(i32::MAX),
            acquired: Some(now),
            renewed: Some(now),
            transitions: read.map_or(0, |read| read.transitions.saturating_add(1)),
        }
    }

    /// Looks at the Lease of a namespace again.
    async fn look(&self, cluster: &Cluster, namespace: &str, leases: &Leases) -> Result<Turn, String> {
        let mut watch = match self.spaces.get(namespace) {
            Some(Turn::Seen(watch, ..)) => watch.clone(),
            _ => Watch::default(),
        };
        let found = self.within(leases, cluster.lease(namespace, &self.owner.lease())).await?;
        let found = found.map_err(|error| human::one_line(&error))?;
        let holding = found.as_ref().map(|lease| Holding {
            holder: lease.holder.clone(),
            duration: lease.duration.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
            version: format!("{} {}", lease.meta.uid, lease.meta.resource_version),
        });
        let now = self.begun.elapsed();
        let standing = watch.look(holding.as_ref(), &self.us, leases.duration, now);
        Ok(Turn::Seen(watch, found.map(Box::new), standing))
    }

    /// Takes a Lease as it was looked at. `None`: somebody else was first.
    async fn take(
        &self,
        cluster: &Cluster,
        namespace: &str,
        seen: Option<&Lease>,
        leases: &Leases,
    ) -> Result<Option<Kept>, String> {
        let draft = self.draft(namespace, seen, leases.duration);
        let taking = async {
            match seen {
                Some(lease) => cluster.replace_lease(&lease.meta, draft.clone()).await,
                None => cluster.create_lease(draft.clone()).await,
            }
        };
        match self.within(leases, taking).await? {
            Ok(lease) => Ok(Some(Kept::new(cluster, draft, lease, leases.duration))),
            Err(error) if is_late(&error) => Ok(None),
            Err(error) => Err(human::one_line(&error)),
        }
    }

    /// An answer that is worth waiting for.
    async fn within<T>(&self, leases: &Leases, act: impl Future<Output = T>) -> Result<T, String> {
        tokio::select! {
            biased;
            done = timeout(leases.duration, act) => {
                done.map_err(|_| format!("no answer within {:?}", leases.duration))
            }
            () = late(&self.cancel, LAST_ANSWER) => Err(Stop::Cancelled.to_string()),
        }
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
    pub(super) async fn let_go(&mut self, cluster: &Cluster) {
        let spaces = std::mem::take(&mut self.spaces).into_values();
        let kept = spaces.filter_map(|turn| match turn {
            Turn::Kept(kept) => Some(timeout(LETTING_GO, kept.let_go(cluster))),
            _ => None,
        });
        // What could not be let go runs out by itself.
        future::join_all(kept).await;
    }
}

impl<S: Source> Worker<S> {
    /// Whether what the survey found to do may be done now: its namespaces are ours for the moment, or nothing else can
    /// be done. If not, somebody may have written since the survey, and it has to be made again.
    pub(super) async fn may_write(&mut self, spaces: &[Space]) -> bool {
        // After the end was asked for nothing is written, with or without a Lease.
        let Some(leases) = self.turns.leases.clone().filter(|_| !self.cancel.is_cancelled()) else {
            return true;
        };
        let busy = spaces.iter().filter(|space| space.items.iter().any(|item| item.verdict.writes()));
        let mut busy: Vec<&str> = busy.map(|space| space.namespace.as_str()).collect();
        busy.sort_unstable();
        for namespace in &busy {
            let Some(Turn::Seen(_, seen, standing)) = self.turns.spaces.get(*namespace) else {
                if self.turns.is_settled(namespace) {
                    continue;
                }
                return self.wait(&busy, &leases).await;
            };
            if !standing.is_open() {
                return self.wait(&busy, &leases).await;
            }
            let (seen, standing) = (seen.clone(), standing.clone());
            match self.turns.take(&self.cluster, namespace, seen.as_deref(), &leases).await {
                Ok(Some(kept)) => {
                    if let Standing::Silent(holder) = standing {
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
        let longest = leases.duration / 8;
        let pauses = Backoff { first: PAUSES.0.min(longest), ceiling: PAUSES.1.min(longest) };
        for pause in 1.. {
            let holders = self.look(busy, leases).await;
            let waiting = *self.turns.waiting.get_or_insert_with(Instant::now);
            if waiting.elapsed() >= leases.patience {
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
                () = sleep(jittered(pauses.delay(pause), SPREAD, dice())) => {}
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
        let looks = open.iter().map(|namespace| self.turns.look(&self.cluster, namespace, leases));
        let seen = future::join_all(looks).await;
        let mut holders = Vec::new();
        for (namespace, seen) in open.into_iter().zip(seen) {
            match seen {
                Ok(seen) => {
                    if let Turn::Seen(_, _, Standing::Taken(holder)) = &seen {
                        holders.push((namespace, holder.clone()));
                    }
                    self.turns.spaces.insert(namespace.to_owned(), seen);
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

impl Kept {
    fn new(cluster: &Cluster, draft: LeaseDraft, lease: Lease, duration: Duration) -> Self {
        let stop = CancellationToken::new();
        let keeping = keep(cluster.clone(), draft, lease, duration / RENEWALS, stop.clone());
        Self { stop, keeping: AbortOnDropHandle::new(tokio::spawn(keeping)) }
    }

    async fn let_go(self, cluster: &Cluster) {
        self.stop.cancel();
        let Ok(Some(lease)) = self.keeping.await else { return };
        let draft = LeaseDraft {
            namespace: lease.meta.namespace.clone(),
            name: lease.meta.name.clone(),
            labels: lease.meta.labels.clone(),
            annotations: lease.meta.annotations.clone(),
            holder: None,
            duration: lease.duration.unwrap_or(1),
            acquired: lease.acquired,
            renewed: Some(Timestamp::now()),
            transitions: lease.transitions,
        };
        if let Err(error) = cluster.replace_lease(&lease.meta, draft).await {
            debug!("a Lease that could not be let go runs out: {}", human::one_line(&error));
        }
    }
}

/// Renews until it is told to stop; the Lease as it is then, if it is still ours. Who cannot renew works on.
async fn keep(
    cluster: Cluster,
    draft: LeaseDraft,
    mut lease: Lease,
    every: Duration,
    stop: CancellationToken,
) -> Option<Lease> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Some(lease),
            () = sleep(every) => {}
        }
        let renewed = LeaseDraft { renewed: Some(Timestamp::now()), ..draft.clone() };
        match cluster.replace_lease(&lease.meta, renewed).await {
            Ok(renewed) => lease = renewed,
            Err(error) => {
                debug!("a Lease could not be renewed: {}", human::one_line(&error));
                match cluster.lease(&draft.namespace, &draft.name).await {
                    Ok(Some(found)) if found.holder == draft.holder => lease = found,
                    Ok(_) => return None, // somebody took it
                    Err(_) => {}
                }
            }
        }
    }
}

/// Whether somebody wrote or deleted it since it was read.
fn is_late(error: &Error) -> bool {
    match error.why {
        Failure::Conflict | Failure::Exists => true,
        Failure::Absent => error.act.verb == Verb::Update,
        _ => false,
    }
}
