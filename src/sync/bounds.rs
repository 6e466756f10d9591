//! The bounds of an attempt: its deadline and the shutdown of the process. Out of bounds, network futures are dropped.
//! Blocking work is cancelled and waited for, because a half-done stage must have ended before the next one begins.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{Error, Stage};
use crate::hooks;
use crate::mirror::wire::Wait;

/// How long after the deadline the gate may take to end. It is killed at the deadline, but a program may be beyond the
/// reach of signals, as on a file system that hangs.
const GATE_END: Duration = Duration::from_secs(5);

/// The deadline of one attempt, and the shutdown signal.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Cancelled when the process is asked to end.
    pub(super) draining: CancellationToken,
    /// When the attempt has to end.
    pub(super) deadline: Instant,
    /// The time from the start of the attempt to its deadline.
    pub(super) limit: Duration,
    /// The stage that began last.
    stage: Mutex<Stage>,
}

impl Bounds {
    /// Bounds of an attempt that starts now.
    pub(super) fn new(limit: Duration, draining: CancellationToken) -> Self {
        Self { draining, deadline: Instant::now() + limit, limit, stage: Mutex::new(Stage::Repair) }
    }

    /// The stage that began last.
    pub(super) fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Runs network I/O, and drops the future when it is out of bounds.
    pub(super) async fn network<T, E: Into<Error>>(
        &self,
        stage: Stage,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        self.begin(stage);
        tokio::select! {
            biased;
            () = self.draining.cancelled() => Err(Error::Interrupted),
            // A client has the same limit. Whichever ends first, it is one failure with one message.
            result = work => result.map_err(|error| match error.into() {
                Error::Mirror(error) if error.timeout() == Some(Wait::Overall) => self.past_deadline(stage),
                error => error,
            }),
            () = tokio::time::sleep_until(self.deadline) => Err(self.past_deadline(stage)),
        }
    }

    /// Locks the upstream. Deliveries hold its lock as well, while they compare revisions, for which a remote may take
    /// long. One that is free is locked even out of bounds.
    pub(super) async fn lock<T>(
        &self,
        stage: Stage,
        upstream: &Arc<tokio::sync::Mutex<T>>,
    ) -> Result<OwnedMutexGuard<T>, Error> {
        self.begin(stage);
        tokio::select! {
            biased;
            locked = Arc::clone(upstream).lock_owned() => Ok(locked),
            () = self.draining.cancelled() => Err(Error::Interrupted),
            () = tokio::time::sleep_until(self.deadline) => Err(Error::UpstreamInUse { limit: self.limit }),
        }
    }

    /// Waits for the gate hook, which ends by itself at shutdown and at the deadline. `again` says whether a refusal is
    /// temporary.
    pub(super) async fn gate(
        &self,
        passed: impl Future<Output = Result<(), hooks::Error>>,
        again: bool,
    ) -> Result<(), Error> {
        self.begin(Stage::Gate);
        tokio::select! {
            biased;
            passed = passed => passed.map_err(|source| match source.why {
                _ if self.draining.is_cancelled() => Error::Interrupted,
                hooks::Failure::Timeout { .. } if Instant::now() >= self.deadline => {
                    self.past_deadline(Stage::Gate)
                }
                _ => Error::Gate { source, again },
            }),
            () = tokio::time::sleep_until(self.deadline + GATE_END) => Err(self.past_deadline(Stage::Gate)),
        }
    }

    /// Runs blocking work on a blocking thread. Out of bounds, its token is cancelled; then the work is waited for.
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
        // If the work finished in spite of the token, its result counts: a generation may have been published.
        match join_result(stage, running.await) {
            Err(error) if error.is_cancelled() => Err(out_of_bounds),
            ended => ended,
        }
    }

    /// Runs a blocking read that cannot be cancelled and holds no lock. Out of bounds, it is left running in `slot`,
    /// and the next call waits for it instead of starting another read, so that a hanging file system does not use up
    /// threads.
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

    /// Returns an error if the attempt is out of bounds. For use between two steps.
    pub(super) fn check(&self, stage: Stage) -> Result<(), Error> {
        if self.draining.is_cancelled() {
            return Err(Error::Interrupted);
        }
        if Instant::now() >= self.deadline {
            return Err(self.past_deadline(stage));
        }
        Ok(())
    }

    fn past_deadline(&self, stage: Stage) -> Error {
        Error::Timeout { stage, limit: self.limit }
    }
}

/// Turns a panic into an error: it is a defect, but an author of commits may have provoked it, so it must fail the
/// attempt and not the service.
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
    use crate::retry::ErrorClass;
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
        assert_eq!(error.class(), ErrorClass::Timeout);
    }

    #[tokio::test]
    async fn the_same_limit_of_the_client_is_the_same_failure_and_each_timeout_is_of_one_class() {
        let (bounds, _draining) = bounds(Duration::from_secs(120));
        for (wait, is_the_limit) in [(Wait::Overall, true), (Wait::Idle, false), (Wait::Connect, false)] {
            let late = || crate::mirror::wire::Error::Timeout {
                remote: "h".into(),
                wait,
                after: Duration::from_secs(120),
                doing: "asking",
            };
            let failed = async { Err::<(), _>(crate::mirror::Error::from(late())) };
            let error = bounds.network(Stage::Resolve, failed).await.unwrap_err();
            assert_eq!(matches!(error, Error::Timeout { .. }), is_the_limit, "{error}");
            assert_eq!(error.class(), ErrorClass::Timeout);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_is_killed_at_the_deadline_is_a_late_attempt_and_has_seconds_to_end() {
        let timed_out = || hooks::Error {
            kind: hooks::Kind::PrePublish,
            revision: crate::revision::Revision(crate::revision::ObjectId([1; 20])),
            why: hooks::Failure::Timeout {
                program: "/gate".into(),
                after: Duration::from_secs(60),
                output: String::new(),
            },
        };
        for (seconds, is_late) in [(60, false), (120, true)] {
            let (bounds, _draining) = bounds(Duration::from_secs(120));
            let killed = async {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Err(timed_out())
            };
            let error = bounds.gate(killed, false).await.unwrap_err();
            assert_eq!(matches!(error, Error::Timeout { stage: Stage::Gate, .. }), is_late, "{error}");
            assert_eq!(matches!(error, Error::Gate { .. }), !is_late, "{error}");
        }
        let (bounds, _draining) = bounds(Duration::from_secs(120));
        let began = Instant::now();
        let error = bounds.gate(std::future::pending(), false).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { stage: Stage::Gate, .. }), "{error}");
        assert_eq!(began.elapsed(), Duration::from_secs(120) + GATE_END);
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

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_a_delivery_holds_is_waited_for_within_the_bounds() {
        let upstream = Arc::new(tokio::sync::Mutex::new(()));
        let delivery = Arc::clone(&upstream).lock_owned().await;
        let (late, _draining) = bounds(Duration::from_secs(120));
        let error = late.lock(Stage::Resolve, &upstream).await.unwrap_err();
        assert!(error.to_string().ends_with("while a delivery compared revisions"), "{error}");
        assert_eq!((late.stage(), error.class()), (Stage::Resolve, ErrorClass::Timeout));
        assert!(!error.is_connection_failure(), "the remote of the attempt was not asked");
        let (drained, draining) = bounds(Duration::from_secs(120));
        draining.cancel();
        assert!(matches!(drained.lock(Stage::Resolve, &upstream).await, Err(Error::Interrupted)));
        drop(delivery);
        assert!(drained.lock(Stage::Resolve, &upstream).await.is_ok(), "what ends the attempt needs it, too");
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
