//! One Lease: reads it, acquires it under the resourceVersion that was read, renews it in the background, releases it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::pauses::{Cancellation, LAST_ANSWER_TIMEOUT};
use super::write::StopReason;
use crate::cluster::{Cluster, Error, Failure, Lease, LeaseDraft, Verb};
use crate::configmap::apply::{LeaseAvailability, LeaseObserver, LiveLease};
use crate::human;
use crate::retry::random_fraction;

/// How many times a holder renews within a Lease's duration.
const RENEWALS: u32 = 3;
/// How long releasing a Lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Acquires Leases under one identity.
#[derive(Debug)]
pub(super) struct LeaseAcquirer {
    /// The holder identity: unique among processes and runs.
    identity: String,
    /// Times of observations count from here.
    epoch: Instant,
    /// How long a Lease is valid without being renewed.
    duration: Duration,
    /// Labels and annotations that our Leases get.
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    cancel: Cancellation,
}

/// Identifies a Lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRef<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// A Lease as it was last read.
#[derive(Clone, Debug)]
pub(super) struct ObservedLease {
    observer: LeaseObserver,
    lease: Option<Box<Lease>>,
    pub(super) availability: LeaseAvailability,
}

/// A Lease that we hold. A task renews it until it is released.
#[derive(Debug)]
pub(super) struct RenewedLease {
    cluster: Cluster,
    draft: LeaseDraft,
    stop: CancellationToken,
    renewal: AbortOnDropHandle<Option<Lease>>,
}

impl LeaseAcquirer {
    pub(super) fn new(
        duration: Duration,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        cancel: Cancellation,
    ) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let number = (random_fraction() * (1u64 << 53) as f64) as u64; // the 53 random bits of an f64 in 0..1
        let identity = format!("{host}_{}_{number:x}", std::process::id());
        Self { identity, epoch: Instant::now(), duration, labels, annotations, cancel }
    }

    /// Reads a Lease. `before` is the earlier observation, from which follows how long the holder has been silent.
    pub(super) async fn observe(
        &self,
        lease: LeaseRef<'_>,
        before: Option<&ObservedLease>,
    ) -> Result<ObservedLease, String> {
        let mut observer = before.map(|observed| observed.observer.clone()).unwrap_or_default();
        let found = self.with_timeout(lease.cluster.lease(lease.namespace, lease.name)).await?;
        let found = found.map_err(|error| human::one_line(&error))?;
        let live = found.as_ref().map(|lease| LiveLease {
            holder: lease.holder.clone(),
            duration: lease
                .duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(Duration::from_secs),
            version: format!("{} {}", lease.meta.uid, lease.meta.resource_version),
        });
        let availability =
            observer.observe(live.as_ref(), &self.identity, self.duration, self.epoch.elapsed());
        Ok(ObservedLease { observer, lease: found.map(Box::new), availability })
    }

    /// Acquires a Lease under the version that was read. `None` if another process wrote it meanwhile.
    pub(super) async fn acquire(
        &self,
        lease: LeaseRef<'_>,
        observed: &ObservedLease,
    ) -> Result<Option<RenewedLease>, String> {
        let draft = self.draft(lease, observed.lease.as_deref());
        let acquisition = async {
            match &observed.lease {
                Some(read) => lease.cluster.replace_lease(&read.meta, draft.clone()).await,
                None => lease.cluster.create_lease(draft.clone()).await,
            }
        };
        match self.with_timeout(acquisition).await? {
            Ok(acquired) => Ok(Some(RenewedLease::new(lease.cluster, draft, acquired, self.duration))),
            Err(error) if is_outdated(&error) => Ok(None),
            Err(error) => Err(human::one_line(&error)),
        }
    }

    /// Returns the Lease as it is written when it is acquired.
    fn draft(&self, lease: LeaseRef<'_>, read: Option<&Lease>) -> LeaseDraft {
        let now = Timestamp::now();
        let mut labels = read.map(|read| read.meta.labels.clone()).unwrap_or_default();
        let mut annotations = read.map(|read| read.meta.annotations.clone()).unwrap_or_default();
        labels.extend(self.labels.clone());
        annotations.extend(self.annotations.clone());
        LeaseDraft {
            namespace: lease.namespace.to_owned(),
            name: lease.name.to_owned(),
            labels,
            annotations,
            holder: Some(self.identity.clone()),
            duration_seconds: i32::try_from(self.duration.as_millis().div_ceil(1_000)).unwrap_or(i32::MAX),
            acquired: Some(now),
            renewed: Some(now),
            transitions: read.map_or(0, |read| read.transitions.saturating_add(1)),
        }
    }

    /// Awaits an answer for at most the Lease's duration, and until [`LAST_ANSWER_TIMEOUT`] after a cancellation.
    async fn with_timeout<T>(&self, request: impl Future<Output = T>) -> Result<T, String> {
        tokio::select! {
            biased;
            done = timeout(self.duration, request) => {
                done.map_err(|_| format!("no answer within {:?}", self.duration))
            }
            () = self.cancel.cancelled_for(LAST_ANSWER_TIMEOUT) => Err(StopReason::Cancelled.to_string()),
        }
    }
}

impl RenewedLease {
    fn new(cluster: &Cluster, draft: LeaseDraft, lease: Lease, duration: Duration) -> Self {
        let stop = CancellationToken::new();
        let every = duration / RENEWALS;
        let renewal = renew_until_stopped(cluster.clone(), draft.clone(), lease, every, stop.clone());
        let renewal = AbortOnDropHandle::new(tokio::spawn(renewal));
        Self { cluster: cluster.clone(), draft, stop, renewal }
    }

    /// Releases the Lease within [`RELEASE_TIMEOUT`]. If that fails, it expires by itself.
    pub(super) async fn release(self) {
        let _ = timeout(RELEASE_TIMEOUT, self.release_now()).await;
    }

    async fn release_now(self) {
        self.stop.cancel();
        let Ok(Some(Lease { meta, .. })) = self.renewal.await else { return };
        let released = LeaseDraft {
            // As they are now: others may have changed them since the last renewal.
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
            holder: None,
            renewed: Some(Timestamp::now()),
            ..self.draft
        };
        if let Err(error) = self.cluster.replace_lease(&meta, released).await {
            debug!("a Lease could not be released and will expire: {}", human::one_line(&error));
        }
    }
}

/// Renews a Lease until `stop`, and returns it as it is then; `None` if another holder took it. A failed renewal does
/// not stop the work that the Lease is for.
async fn renew_until_stopped(
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
                    Ok(_) => return None, // another holder took it
                    Err(_) => {}
                }
            }
        }
    }
}

/// Returns true if the Lease was written or deleted since it was read. A creation that does not find it is something
/// else: there is no API for Leases.
fn is_outdated(error: &Error) -> bool {
    match error.why {
        Failure::Conflict | Failure::AlreadyExists => true,
        Failure::NotFound => error.operation.verb == Verb::Update,
        _ => false,
    }
}
