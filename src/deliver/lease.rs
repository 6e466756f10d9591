//! How a process uses Leases: whether, for how long, and how long it waits for others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::places::PoolSpec;
use crate::retry::{Backoff, jittered, random_fraction};

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
    pool: Option<PoolSpec>,
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
    pub fn pooled(self, pool: Option<PoolSpec>) -> Self {
        Self { pool, ..self }
    }

    /// The pool, if there is one.
    pub(super) fn pool(&self) -> Option<&PoolSpec> {
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
        jittered(pauses.delay(look), SPREAD, random_fraction())
    }

    /// Whether this process says it for the first time: of a cluster, or of the pool.
    pub(super) fn is_first_report(&self, of: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let news = !said.iter().any(|one| one == of);
        if news {
            said.push(of.to_owned());
        }
        news
    }
}
