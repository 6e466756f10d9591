//! Waits and retries: the backoff between attempts, retried requests, and the time limits of a cancelled delivery.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Options;
use crate::cluster::{Error, Failure};
use crate::retry::{jittered, random_fraction};
use crate::shutdown::DRAIN;

// How long a cancelled delivery waits for answers. Each limit counts from the cancellation, so that a server that hangs
// uses up none of the next limit's time.

/// The limit for the errors of failed reads.
pub(super) const LAST_ERROR_TIMEOUT: Duration = Duration::from_millis(100);

/// The limit for answers to writes, and for those about Leases.
pub(super) const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The limit for writing the records.
pub(super) const RECORDING_TIMEOUT: Duration = Duration::from_millis(2_500);

/// The limit for releasing Leases. The report follows, and has to be in the ledger before the drain is over.
pub(super) const LAST_RELEASE_TIMEOUT: Duration = DRAIN.saturating_sub(Duration::from_secs(1));

/// The token that cancels a delivery, at a shutdown or when its time is over. The clones share when that was, so that
/// waits that follow each other have one deadline.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancellation {
    token: CancellationToken,
    /// When it was cancelled, as the first wait saw it: whatever waits for an API server also waits for this.
    at: Arc<OnceLock<Instant>>,
}

impl Cancellation {
    pub(super) fn new(token: &CancellationToken) -> Self {
        Self { token: token.clone(), at: Arc::default() }
    }

    /// Completes `limit` after the cancellation; never without one.
    pub(super) async fn cancelled_for(&self, limit: Duration) {
        self.token.cancelled().await;
        sleep_until(*self.at.get_or_init(Instant::now) + limit).await;
    }
}

impl Deref for Cancellation {
    type Target = CancellationToken;

    fn deref(&self) -> &CancellationToken {
        &self.token
    }
}

/// Waits before the next attempt: as long as the server asked (`Retry-After`) and up to a fifth longer, so that clients
/// that were refused together do not come back together; otherwise the backoff for this number of failures. Returns
/// early at shutdown.
pub(super) async fn pause(
    options: &Options,
    cancel: &CancellationToken,
    failures: u32,
    retry_after: Option<Duration>,
) {
    let wait = match retry_after {
        Some(retry_after) => retry_after + retry_after.mul_f64(0.2 * random_fraction()),
        None => jittered(options.backoff.delay(failures), 0.3, random_fraction()),
    };
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = cancel.cancelled() => {}
    }
}

/// Returns true if another writer changed, created or deleted the object since it was read.
pub(super) fn is_conflict(why: &Failure) -> bool {
    matches!(why, Failure::Conflict | Failure::AlreadyExists | Failure::NotFound)
}

/// Runs a read, and again after transient failures, up to `options.tries` attempts. At shutdown returns the last error.
pub(super) async fn retried<T, F>(
    options: &Options,
    cancel: &CancellationToken,
    read: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    retried_if(Error::is_transient, options, cancel, read).await
}

/// Runs a write of a certain version, and again after failures that stored nothing (a busy or unreachable server), as
/// [`retried`] does. After an unknown outcome it is sent once more: if the first one took effect, the second one
/// conflicts. Not more often, as other namespaces wait for it, and a webhook that hangs takes its whole timeout.
pub(super) async fn retried_write<T, F>(
    options: &Options,
    cancel: &CancellationToken,
    mut write: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let is_to_be_sent_again =
        |error: &Error| error.is_transient() && !error.is_unknown() && !is_conflict(&error.why);
    let written = retried_if(is_to_be_sent_again, options, cancel, &mut write).await;
    if !written.as_ref().is_err_and(Error::is_unknown) {
        return written;
    }
    pause(options, cancel, 1, None).await;
    retried_if(is_to_be_sent_again, options, cancel, write).await
}

/// Runs a request, and again after failures for which `is_retryable` returns true, as [`retried`] does.
pub(super) async fn retried_if<T, F>(
    is_retryable: impl Fn(&Error) -> bool,
    options: &Options,
    cancel: &CancellationToken,
    mut request: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = 0;
    loop {
        match request().await {
            Err(error) if is_retryable(&error) && failures + 1 < options.tries && !cancel.is_cancelled() => {
                failures += 1;
                pause(options, cancel, failures, error.pause()).await;
                if cancel.is_cancelled() {
                    return Err(error);
                }
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_that_follow_each_other_end_before_the_drain_does() {
        let token = CancellationToken::new();
        let cancellation = Cancellation::new(&token);
        let never = tokio::time::timeout(2 * DRAIN, cancellation.cancelled_for(LAST_ANSWER_TIMEOUT)).await;
        assert!(never.is_err(), "nothing cancels it");
        token.cancel();
        let begin = Instant::now();
        // A write that hangs, its object that is read again, the records, and the Leases.
        let limits = [LAST_ANSWER_TIMEOUT, LAST_ANSWER_TIMEOUT, RECORDING_TIMEOUT, LAST_RELEASE_TIMEOUT];
        for limit in limits {
            cancellation.clone().cancelled_for(limit).await;
            assert!(begin.elapsed() >= limit);
        }
        assert!(begin.elapsed() < DRAIN, "{:?}", begin.elapsed());
    }
}
