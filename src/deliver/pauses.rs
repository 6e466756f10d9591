//! Waits and retries: the backoff between attempts, retried reads, and the time limit for the last answers at shutdown.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Options;
use crate::cluster::Error;
use crate::retry::{jittered, random_fraction};

/// How long the answer to a write is awaited after shutdown began.
pub(super) const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the errors of failed reads are awaited after shutdown began.
pub(super) const LAST_ERROR_TIMEOUT: Duration = Duration::from_millis(100);

/// Completes `after` the shutdown began; never if it does not begin.
pub(super) async fn after_shutdown(cancel: &CancellationToken, after: Duration) {
    cancel.cancelled().await;
    tokio::time::sleep(after).await;
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

/// Runs a read, and again after transient failures, up to `options.tries` attempts. At shutdown returns the last error.
pub(super) async fn retried<T, F>(
    options: &Options,
    cancel: &CancellationToken,
    mut read: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = 0;
    loop {
        match read().await {
            Err(error) if error.is_transient() && failures + 1 < options.tries && !cancel.is_cancelled() => {
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
