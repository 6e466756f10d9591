//! Opens what a sync needs on its volumes. It waits for the lock of the root, and tries again while a volume is full.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{Error, starting};
use crate::human::one_line;
use crate::phase::Status;
use crate::repeats::{Repeats, suppressed};
use crate::store::{self, Store};
use crate::sync;
use crate::telemetry::metrics::Metrics;

/// Pause between two attempts to lock a root that another writer holds.
const LOCK_PAUSE: Duration = Duration::from_millis(200);

/// What opening depends on.
pub(super) struct Opening<'a> {
    pub(super) sync: &'a sync::Options,
    pub(super) draining: &'a CancellationToken,
    pub(super) status: &'a watch::Sender<Status>,
    pub(super) metrics: &'a Metrics,
}

impl Opening<'_> {
    /// Calls `open`, and again with backoff while it fails because a volume is full: that may end without a restart,
    /// and what is published can be read meanwhile. `None` means that the process was asked to end.
    ///
    /// # Errors
    /// Other errors, and the last one if there were too many failures.
    pub(super) fn while_full<T>(&self, open: impl Fn() -> Result<T, Error>) -> Result<Option<T>, Error> {
        let mut logged = Repeats::default();
        let mut failures = 0;
        loop {
            let full = match open() {
                Err(error) if error.is_full() => error,
                opened => {
                    if failures > 0 && opened.is_ok() {
                        self.recovered();
                    }
                    return opened.map(Some);
                }
            };
            failures += 1;
            if self.sync.failure_limits.init_failures.is_some_and(|limit| failures >= limit) {
                return Err(full);
            }
            let text = one_line(&full);
            if let Some(times) = logged.should_log(&text) {
                let hints = full.hints().join("; ");
                error!(error = text, failures, hints, "cannot start{}; trying again", suppressed(times));
            }
            self.failed(text, failures);
            if !self.pause(self.sync.pace.init_backoff.delay(failures)) {
                return Ok(None);
            }
        }
    }

    /// Shows and counts a failure, as one of an attempt would be.
    fn failed(&self, what: String, failures: u32) {
        self.metrics.error("repair", "transient");
        self.metrics.consecutive_failures.set(failures.into());
        self.status.send_modify(|status| {
            let failing_since = status.failing_since.or_else(|| Some(Timestamp::now()));
            *status = Status { consecutive_failures: failures.into(), failing_since, ..starting(what) };
        });
    }

    /// Ends a series of failures: the first attempt may take long, and must not look like one that failed.
    fn recovered(&self) {
        self.metrics.consecutive_failures.set(0);
        self.status.send_modify(|status| {
            status.consecutive_failures = 0;
            status.failing_since = None;
        });
    }

    /// Waits; returns false if the process was asked to end.
    fn pause(&self, time: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < time {
            std::thread::sleep(LOCK_PAUSE.min(time));
            if self.draining.is_cancelled() {
                return false;
            }
        }
        true
    }

    /// Opens the root, waiting for its lock for up to `wait`. `None` means that the process was asked to end meanwhile.
    pub(super) fn root(
        &self,
        options: store::Options,
        wait: Duration,
    ) -> Result<Option<(Store, store::Recovered)>, Error> {
        let began = Instant::now();
        let mut logged = false;
        loop {
            match Store::open(options.clone()) {
                Err(error @ store::Error::Locked { .. }) if began.elapsed() < wait => {
                    if !std::mem::replace(&mut logged, true) {
                        info!("{error}: waiting");
                        self.status.send_replace(starting(error.to_string()));
                    }
                    std::thread::sleep(LOCK_PAUSE);
                    if self.draining.is_cancelled() {
                        return Ok(None);
                    }
                }
                opened => return Ok(Some(opened?)),
            }
        }
    }
}
