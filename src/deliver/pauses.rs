//! How long is waited for what: before a read is tried again, and for the last answer when all is to end.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Options;
use crate::cluster::Error;
use crate::retry::{jittered, random_fraction};

/// How long the answer to a write is waited for after a shutdown was asked for.
pub(super) const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Over so long after a shutdown was asked for.
pub(super) async fn after_shutdown(cancel: &CancellationToken, after: Duration) {
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
        Some(asked) => asked + asked.mul_f64(0.2 * random_fraction()),
        None => jittered(options.backoff.delay(failures), 0.3, random_fraction()),
    };
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = cancel.cancelled() => {}
    }
}

/// A read, tried again while that may help. When all is to end meanwhile, its last failure is why it got no further.
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
