//! Waits and retries: the backoff between attempts, retried reads, and the time limit for the last answers at shutdown.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Options;
use crate::cluster::{Error, Failure};
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

/// Runs a write, and again after failures that stored nothing (a busy or unreachable server), as [`retried`] does.
/// After a conflict or an unknown outcome the caller has to read first.
pub(super) async fn retried_write<T, F>(
    options: &Options,
    cancel: &CancellationToken,
    write: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let is_to_be_sent_again =
        |error: &Error| error.is_transient() && !error.is_unknown() && !is_conflict(&error.why);
    retried_if(is_to_be_sent_again, options, cancel, write).await
}

/// Runs a request, and again after failures for which `may_help` returns true, as [`retried`] does.
pub(super) async fn retried_if<T, F>(
    may_help: impl Fn(&Error) -> bool,
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
            Err(error) if may_help(&error) && failures + 1 < options.tries && !cancel.is_cancelled() => {
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
