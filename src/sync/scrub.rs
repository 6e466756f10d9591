//! Scrubs of the current generation, in the background, and when the next one is due.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::{Error, Scrub, Scrubbed};

/// Between two scrubs.
const INTERVAL: Duration = Duration::from_secs(600);
/// The same where each one finds something in doubt: somebody who writes into what is published goes on doing so, and each
/// new generation makes consumers read everything again.
const INTERVAL_MAX: Duration = Duration::from_secs(86_400);

/// The one scrub that may run, and when.
#[derive(Debug)]
pub(super) struct Scrubs {
    due: Instant,
    interval: Duration,
    running: Option<(CancellationToken, JoinHandle<Result<Scrubbed, Error>>)>,
}

impl Scrubs {
    /// The first is due an interval from now: what a start finds is compared with its revision anyway.
    pub(super) fn new() -> Self {
        Self { due: Instant::now() + INTERVAL, interval: INTERVAL, running: None }
    }

    /// Whether one should be started.
    pub(super) fn is_due(&self) -> bool {
        self.running.is_none() && self.due <= Instant::now()
    }

    /// After how long there is something to do.
    pub(super) fn again_in(&self) -> Duration {
        match self.running {
            Some(_) => Duration::ZERO,
            None => self.due.saturating_duration_since(Instant::now()),
        }
    }

    /// Starts one; none: nothing can be told here.
    pub(super) fn start(&mut self, scrub: Option<Scrub>) {
        self.due = Instant::now() + self.interval;
        self.running = scrub.map(|scrub| {
            let cancel = CancellationToken::new();
            let until = cancel.clone();
            (cancel, tokio::task::spawn_blocking(move || scrub.run(&until)))
        });
    }

    /// What the one found that has ended since the last call.
    pub(super) async fn ended(&mut self) -> Option<Result<Scrubbed, Error>> {
        let (_, task) = self.running.take_if(|(_, task)| task.is_finished())?;
        task.await.ok() // a panic is in the log
    }

    /// Nothing was in doubt. Where something is each time, looks become rarer: comparing reads every file.
    pub(super) fn was_clean(&mut self) {
        self.interval = INTERVAL;
    }

    /// The generation is in doubt.
    pub(super) fn was_in_doubt(&mut self) {
        self.interval = (self.interval * 2).min(INTERVAL_MAX);
        self.due = Instant::now() + self.interval;
    }

    /// Asks one that runs to end.
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
            waited.push(scrubs.again_in().as_secs() / 60);
            tokio::time::advance(scrubs.again_in()).await;
            assert!(scrubs.is_due());
            scrubs.start(None);
            scrubs.was_in_doubt();
        }
        assert_eq!(waited, [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]);
        scrubs.was_clean();
        scrubs.start(None);
        assert_eq!(scrubs.again_in(), INTERVAL);
    }
}
