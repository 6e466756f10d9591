//! How long is waited for what: before a read is tried again, and for the last answer when all is to end.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Options;
use crate::cluster::Error;
use crate::retry::{dice, jittered};

/// How long the answer to a write is waited for after we were told to end.
pub(super) const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Over so long after we were told to end.
pub(super) async fn late(cancel: &CancellationToken, after: Duration) {
    cancel.cancelled().await;
    tokio::time::sleep(after).await;
}

/// Waits after so many failures, or as long as the server asks, a little longer: those who asked together shall not
/// come together. Ends early when all is to end.
pub(super) async fn pause(
    options: &Options,
    cancel: &CancellationToken,
    failures: u32,
    asked: Option<Duration>,
) {
    let wait = match asked {
        Some(asked) => asked + asked.mul_f64(0.2 * dice()),
        None => jittered(options.backoff.delay(failures), 0.3, dice()),
    };
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = cancel.cancelled() => {}
    }
}

/// A read, tried again while that may help.
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
            }
            done => return done,
        }
    }
}
