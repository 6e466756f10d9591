//! What bounds an attempt: a deadline, and the drain. Network futures are dropped; blocking work is asked to stop and
//! waited for, because a half-done stage must be known to have ended before the next one begins.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{Error, Stage};
use crate::hooks;

/// The bounds of one attempt.
#[derive(Debug)]
pub(super) struct Bounds {
    /// The process is asked to end.
    pub(super) draining: CancellationToken,
    /// When the attempt is over.
    pub(super) deadline: Instant,
    /// How long it was given.
    pub(super) limit: Duration,
    /// The stage that was begun last.
    stage: Mutex<Stage>,
}

impl Bounds {
    /// From now on.
    pub(super) fn new(limit: Duration, draining: CancellationToken) -> Self {
        Self { draining, deadline: Instant::now() + limit, limit, stage: Mutex::new(Stage::Mend) }
    }

    /// The stage that was begun last.
    pub(super) fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Runs something that waits for the network, and drops it when it is out of bounds.
    pub(super) async fn network<T, E: Into<Error>>(
        &self,
        stage: Stage,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        self.begin(stage);
        tokio::select! {
            biased;
            () = self.draining.cancelled() => Err(Error::Interrupted),
            result = work => result.map_err(Into::into),
            () = tokio::time::sleep_until(self.deadline) => Err(self.past_deadline(stage)),
        }
    }

    /// Waits for a hook, which ends by itself when the process drains, and drops it at the deadline.
    pub(super) async fn gate(
        &self,
        passed: impl Future<Output = Result<(), hooks::Error>>,
        again: bool,
    ) -> Result<(), Error> {
        self.begin(Stage::Gate);
        tokio::select! {
            biased;
            passed = passed => match passed {
                Err(_) if self.draining.is_cancelled() => Err(Error::Interrupted),
                passed => passed.map_err(|source| Error::Gate { source, again }),
            },
            () = tokio::time::sleep_until(self.deadline) => Err(self.past_deadline(Stage::Gate)),
        }
    }

    /// Runs something that blocks, on a thread where that is allowed. Out of bounds, its token is cancelled.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        stage: Stage,
        work: impl FnOnce(&CancellationToken) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.begin(stage);
        let cancel = CancellationToken::new();
        let token = cancel.clone();
        let mut running = tokio::task::spawn_blocking(move || work(&token));
        let out_of_bounds = tokio::select! {
            biased;
            ended = &mut running => return join_result(stage, ended),
            () = self.draining.cancelled() => Error::Interrupted,
            () = tokio::time::sleep_until(self.deadline) => self.past_deadline(stage),
        };
        cancel.cancel();
        // What it did in spite of the token counts: a generation may have been published.
        match join_result(stage, running.await) {
            Err(error) if error.is_cancelled() => Err(out_of_bounds),
            ended => ended,
        }
    }

    /// Reads something that blocks and cannot be asked to stop, but holds nothing either: out of bounds, it is left to
    /// itself in `slot`, and the next one waits for it instead of starting another, so that a file system that hangs
    /// does not eat thread after thread.
    pub(super) async fn reading<T: Send + 'static>(
        &self,
        stage: Stage,
        slot: &mut Option<JoinHandle<Result<T, Error>>>,
        read: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.begin(stage);
        let running = slot.get_or_insert_with(|| tokio::task::spawn_blocking(read));
        let ended = tokio::select! {
            biased;
            () = self.draining.cancelled() => return Err(Error::Interrupted),
            ended = running => ended,
            () = tokio::time::sleep_until(self.deadline) => return Err(self.past_deadline(stage)),
        };
        *slot = None;
        join_result(stage, ended)
    }

    /// Between two steps.
    pub(super) fn check(&self, stage: Stage) -> Result<(), Error> {
        match () {
            () if self.draining.is_cancelled() => Err(Error::Interrupted),
            () if Instant::now() >= self.deadline => Err(self.past_deadline(stage)),
            () => Ok(()),
        }
    }

    fn past_deadline(&self, stage: Stage) -> Error {
        Error::Timeout { stage, limit: self.limit }
    }
}

/// A panic is a defect, but one that a commit's author may have provoked: it fails the attempt, not the service.
fn join_result<T>(stage: Stage, ended: Result<Result<T, Error>, tokio::task::JoinError>) -> Result<T, Error> {
    match ended {
        Ok(result) => result,
        Err(error) if error.is_panic() => {
            let panic = error.into_panic();
            let message = panic.downcast_ref::<&str>().map(ToString::to_string);
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Panicked { stage, message: message.unwrap_or_else(|| "no message".to_owned()) })
        }
        Err(_) => Err(Error::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store;

    fn bounds(limit: Duration) -> (Bounds, CancellationToken) {
        let draining = CancellationToken::new();
        (Bounds::new(limit, draining.clone()), draining)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_remote_is_given_up_at_the_deadline() {
        let (bounds, _draining) = bounds(Duration::from_secs(120));
        let began = Instant::now();
        let never = std::future::pending::<Result<(), Error>>();
        let error = bounds.network(Stage::Fetch, never).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { stage: Stage::Fetch, .. }), "{error}");
        assert_eq!(began.elapsed(), Duration::from_secs(120));
        assert_eq!(error.class(), "timeout");
    }

    #[tokio::test]
    async fn draining_drops_the_network_and_asks_blocking_work_to_stop() {
        let (bounds, draining) = bounds(Duration::from_secs(120));
        let cancelled = bounds.blocking(Stage::Export, move |cancel| {
            draining.cancel();
            while !cancel.is_cancelled() {
                std::thread::yield_now();
            }
            Err::<(), _>(store::Error::Cancelled.into())
        });
        assert!(matches!(cancelled.await, Err(Error::Interrupted)));
        let never = std::future::pending::<Result<(), Error>>();
        assert!(matches!(bounds.network(Stage::Fetch, never).await, Err(Error::Interrupted)));
    }

    #[tokio::test]
    async fn work_that_finished_in_spite_of_the_token_counts() {
        let (bounds, draining) = bounds(Duration::from_secs(120));
        let done = bounds.blocking(Stage::Publish, move |cancel| {
            draining.cancel();
            while !cancel.is_cancelled() {
                std::thread::yield_now();
            }
            Ok("published")
        });
        assert!(matches!(done.await, Ok("published")));
    }

    #[tokio::test]
    async fn a_file_that_never_ends_is_left_to_itself_and_not_opened_twice() {
        let (end, ended) = std::sync::mpsc::channel::<&str>();
        let mut slot = None;
        let (first, _draining) = bounds(Duration::from_millis(5));
        let read =
            first.reading(Stage::Select, &mut slot, move || Ok(ended.recv().unwrap_or("dropped"))).await;
        assert!(matches!(read, Err(Error::Timeout { stage: Stage::Select, .. })));
        end.send("the first").unwrap();
        let (second, _draining) = bounds(Duration::from_secs(120));
        let read = second.reading(Stage::Select, &mut slot, || panic!("a second one was started")).await;
        assert!(matches!(read, Ok("the first")));
        let read = second.reading(Stage::Select, &mut slot, || Ok("another")).await;
        assert!(matches!(read, Ok("another")));
    }

    #[tokio::test]
    async fn a_panic_fails_the_attempt_and_nothing_else() {
        let (bounds, _draining) = bounds(Duration::from_secs(120));
        let error = bounds.blocking::<()>(Stage::Export, |_| panic!("a hostile tree")).await.unwrap_err();
        assert_eq!(error.to_string(), "internal error while writing the generation: a hostile tree");
    }
}
