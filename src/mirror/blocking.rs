//! Runs blocking work outside of the runtime's worker threads.

use super::error::Error;

/// Runs blocking work on a thread of the blocking pool. A panic in it is propagated.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is shutting down refuses to start it.
            Err(_) => std::future::pending().await,
        },
    }
}
