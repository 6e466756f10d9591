//! Runs scrubs of the current generation in the background, one at a time, and decides when the next one is due.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::{Error, Scrub, Scrubbed};

/// Time between two scrubs.
const INTERVAL: Duration = Duration::from_secs(600);
/// The longest time between two scrubs. The interval doubles up to it while every scrub finds signs of a foreign write:
/// a program that writes into generations continues to do so, and each new generation makes readers read everything
/// again.
const INTERVAL_MAX: Duration = Duration::from_secs(86_400);

/// The running scrub, if any, and the schedule.
#[derive(Debug)]
pub(super) struct Scrubs {
    due: Instant,
    interval: Duration,
    running: Option<(CancellationToken, JoinHandle<Result<Scrubbed, Error>>)>,
}

impl Scrubs {
    /// The first scrub is due an interval from now: the generation found at start is compared with its revision anyway.
    pub(super) fn new() -> Self {
        Self { due: Instant::now() + INTERVAL, interval: INTERVAL, running: None }
    }

    /// Returns true if a scrub should be started now.
    pub(super) fn is_due(&self) -> bool {
        self.running.is_none() && self.due <= Instant::now()
    }

    /// The time until there is something to do; zero while a scrub is running.
    pub(super) fn due_in(&self) -> Duration {
        match self.running {
            Some(_) => Duration::ZERO,
            None => self.due.saturating_duration_since(Instant::now()),
        }
    }

    /// Starts a scrub and schedules the next. `None` only schedules: this root cannot be scrubbed.
    pub(super) fn start(&mut self, scrub: Option<Scrub>) {
        self.due = Instant::now() + self.interval;
        self.running = scrub.map(|scrub| {
            let cancel = CancellationToken::new();
            let until = cancel.clone();
            (cancel, tokio::task::spawn_blocking(move || scrub.run(&until)))
        });
    }

    /// Returns the result of the scrub if it has ended since the last call.
    pub(super) async fn ended(&mut self) -> Option<Result<Scrubbed, Error>> {
        let (_, task) = self.running.take_if(|(_, task)| task.is_finished())?;
        task.await.ok() // a panic was logged by the panic hook
    }

    /// Drops what a scrub has found, and schedules the next if one is due, because the root cannot be repaired at
    /// present. The next scrub finds the same.
    pub(super) async fn skip(&mut self) {
        let _ = self.ended().await;
        if self.is_due() {
            self.start(None);
        }
    }

    /// The scrub found nothing: the normal interval applies again.
    pub(super) fn was_clean(&mut self) {
        self.interval = INTERVAL;
    }

    /// The generation has to be compared with its revision. That reads every file, so the interval is doubled.
    pub(super) fn was_in_doubt(&mut self) {
        self.interval = (self.interval * 2).min(INTERVAL_MAX);
        self.due = Instant::now() + self.interval;
    }

    /// Cancels a running scrub.
    pub(super) fn stop(&mut self) {
        if let Some((cancel, _)) = self.running.take() {
            cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn doubt_that_comes_again_makes_the_interval_longer_up_to_a_day() {
        let mut scrubs = Scrubs::new();
        let mut waited = Vec::new();
        for _ in 0..10 {
            waited.push(scrubs.due_in().as_secs() / 60);
            tokio::time::advance(scrubs.due_in()).await;
            assert!(scrubs.is_due());
            scrubs.start(None);
            scrubs.was_in_doubt();
        }
        assert_eq!(waited, [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]);
        scrubs.was_clean();
        scrubs.start(None);
        assert_eq!(scrubs.due_in(), INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrub_that_is_skipped_does_not_stay_due() {
        let mut scrubs = Scrubs::new();
        tokio::time::advance(INTERVAL).await;
        scrubs.skip().await;
        assert_eq!(scrubs.due_in(), INTERVAL);
        let ended = tokio::spawn(std::future::pending());
        ended.abort();
        while !ended.is_finished() {
            tokio::task::yield_now().await;
        }
        scrubs.running = Some((CancellationToken::new(), ended));
        assert_eq!(scrubs.due_in(), Duration::ZERO);
        scrubs.skip().await;
        assert_eq!(scrubs.due_in(), INTERVAL);
        let runs = tokio::spawn(std::future::pending());
        scrubs.running = Some((CancellationToken::new(), runs));
        tokio::time::advance(INTERVAL).await;
        scrubs.skip().await;
        assert!(scrubs.running.is_some(), "it goes on");
    }
}
