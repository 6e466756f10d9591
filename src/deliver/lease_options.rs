//! Options of Leases: how long one is valid, how long other holders are waited for, and the pool of a fleet.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::pool_spec::PoolSpec;
use crate::retry::{Backoff, jittered, random_fraction};

/// The pauses between two polls of a Lease. An eighth of the Lease's duration caps them.
const PAUSES: Backoff = Backoff { first: Duration::from_millis(500), ceiling: Duration::from_secs(2) };
/// Jitter of the pause, so that instances that began together do not poll together.
const SPREAD: f64 = 0.3;
/// The longest total wait for holders that keep renewing, in multiples of the Lease's duration.
const MAX_WAIT_FACTOR: u32 = 15;

/// How a process uses Leases. Clones share the list of what was reported already.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    duration: Duration,
    max_wait: Duration,
    pool: Option<PoolSpec>,
    reported: Arc<Mutex<BTreeSet<String>>>,
}

impl LeaseOptions {
    /// Leases that expire when their holder has not renewed them for `duration`.
    pub fn new(duration: Duration) -> Self {
        let max_wait = duration.saturating_mul(MAX_WAIT_FACTOR);
        Self { duration, max_wait, pool: None, reported: Arc::default() }
    }

    /// Caps the total wait for other holders, even if they keep renewing.
    #[must_use]
    pub fn with_max_wait(self, most: Duration) -> Self {
        Self { max_wait: self.max_wait.min(most), ..self }
    }

    /// Limits how many instances of a fleet write at once, by the Leases of a pool. `None`: no limit.
    #[must_use]
    pub fn pooled(self, pool: Option<PoolSpec>) -> Self {
        Self { pool, ..self }
    }

    /// Returns the pool, if one is configured.
    pub(super) fn pool(&self) -> Option<&PoolSpec> {
        self.pool.as_ref()
    }

    /// Returns how long a Lease is valid without being renewed.
    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    /// Returns true if a wait that began at `since` has reached its limit.
    pub(super) fn has_waited_enough(&self, since: Instant) -> bool {
        since.elapsed() >= self.max_wait
    }

    /// Returns the pause after poll number `poll`, counted from 1.
    pub(super) fn pause(&self, poll: u32) -> Duration {
        let longest = self.duration / 8;
        jittered(PAUSES.delay(poll).min(longest), SPREAD, random_fraction())
    }

    /// Returns true the first time it is called for this subject (a cluster's name, or the pool) in the process.
    pub(super) fn is_first_report(&self, subject: &str) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.insert(subject.to_owned())
    }
}
