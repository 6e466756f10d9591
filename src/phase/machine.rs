//! The states of a sync and every legal transition between them: when the next attempt is due, how long to back off
//! after failures, and when to give up. Times (durations since an origin the caller chose) and random numbers are
//! arguments; nothing here waits or reads a clock.
//!
//! `testdata/phase.dot` draws the states and, as arrows labelled with methods, the transitions. A test makes each
//! transition and compares.

use std::time::Duration;

use super::Trigger;
use crate::retry::{self, Backoff};

/// When attempts are made. Periods and backoffs are jittered; the minimum interval is not, as it is a promise to
/// readers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// Time between attempts.
    pub period: Duration,
    /// `period` until the first success of this process.
    pub init_period: Duration,
    /// The least time between two publications; of the revisions in between, the newest is published.
    pub min_interval: Duration,
    /// Backoff after failures.
    pub backoff: Backoff,
    /// `backoff` until the first success of this process.
    pub init_backoff: Backoff,
    /// Jitter lengthens or shortens a wait by at most this fraction of it.
    pub jitter: f64,
}

impl Timing {
    /// The longest pause between two attempts, unless a server asks for a longer one.
    pub fn longest_pause(&self) -> Duration {
        let backoff = self.backoff.ceiling.max(self.init_backoff.ceiling);
        retry::jittered(self.period.max(self.init_period).max(backoff), self.jitter, 1.0)
    }
}

/// How many consecutive failures end the process; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureLimits {
    /// The limit after the first success.
    pub failures: Option<u32>,
    /// The limit before the first success.
    pub init_failures: Option<u32>,
}

/// The least time between a failure and an attempt that a trigger requests, unless the timer is due before: hundreds of
/// webhooks may arrive at once.
pub const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The state of a sync.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    /// The last attempt succeeded, or none has run yet.
    Waiting {
        /// When the next attempt is due by the timer.
        due: Duration,
    },
    /// A new revision was seen within the minimum interval after the last publication. The first attempt after it
    /// publishes whichever is newest then.
    Postponing {
        /// When the next attempt is due: when the minimum interval is over, or after a period.
        due: Duration,
    },
    /// The last attempt failed. This includes a refused revision, although it is tried again after the usual period
    /// and not after a backoff.
    BackingOff {
        /// When the next attempt is due by the timer.
        due: Duration,
        /// When the next attempt is due if a trigger asks for one.
        earliest: Duration,
    },
    /// An attempt is running.
    Syncing,
    /// The ref is a commit id, which cannot change: no further attempt starts, whatever the trigger.
    Parked,
    /// There were too many consecutive failures.
    GivenUp,
}

/// Why an attempt failed, as far as the time of the next one depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The remote or this machine has a problem: back off.
    Unavailable {
        /// The remote's Retry-After, which the transport has capped.
        retry_after: Option<Duration>,
    },
    /// The revision itself was refused. The remote is healthy and polling it is cheap, so the usual period applies,
    /// without backoff.
    Refused,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Machine {
    timing: Timing,
    failure_limits: FailureLimits,
    phase: Phase,
    /// The trigger of the next attempt. At most one is pending, however many were received.
    pending: Option<Trigger>,
    /// Consecutive failures.
    failures: u32,
    /// True once an attempt of this process has succeeded.
    succeeded: bool,
    /// When the minimum interval after the last publication ends.
    min_interval_ends: Option<Duration>,
}

impl Machine {
    /// Starts with an attempt that is due at once. `min_interval_ends` is when the minimum interval ends after the
    /// publication that was found at start.
    pub fn new(
        timing: Timing,
        failure_limits: FailureLimits,
        now: Duration,
        min_interval_ends: Option<Duration>,
    ) -> Self {
        Self {
            timing,
            failure_limits,
            phase: Phase::Waiting { due: now },
            pending: Some(Trigger::StartUp),
            failures: 0,
            succeeded: false,
            min_interval_ends,
        }
    }

    /// The current state.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The number of consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The number of consecutive failures at which the machine gives up at present; `None`: it never does.
    pub fn limit(&self) -> Option<u32> {
        if self.succeeded { self.failure_limits.failures } else { self.failure_limits.init_failures }
    }

    /// When the next attempt is due; `None` while one is running or if none will follow.
    pub fn due(&self) -> Option<Duration> {
        match self.phase {
            Phase::Waiting { .. } if self.pending.is_some() => Some(Duration::ZERO), // at once
            Phase::BackingOff { earliest, .. } if self.pending.is_some() => Some(earliest),
            Phase::Waiting { due } | Phase::Postponing { due } | Phase::BackingOff { due, .. } => Some(due),
            Phase::Syncing | Phase::Parked | Phase::GivenUp => None,
        }
    }

    /// The time between attempts after a success.
    pub fn period(&self) -> Duration {
        self.timing.period
    }

    /// When the minimum interval allows the next publication; `None`: at `now` already.
    pub fn earliest_publication(&self, now: Duration) -> Option<Duration> {
        self.min_interval_ends.filter(|&ends| ends > now)
    }

    /// Requests an attempt, unless one is pending already or no further attempt starts.
    pub fn trigger(&mut self, trigger: Trigger) {
        if !matches!(self.phase, Phase::Parked | Phase::GivenUp) {
            self.pending.get_or_insert(trigger);
        }
    }

    /// Begins an attempt, which must be due. Returns its trigger.
    pub fn start(&mut self, now: Duration) -> Trigger {
        debug_assert!(
            self.due().is_some_and(|due| due <= now),
            "an attempt that is not due: {:?}",
            self.phase
        );
        self.phase = Phase::Syncing;
        self.pending.take().unwrap_or(Trigger::Timer)
    }

    /// Ends the attempt: it published a generation. `random` is from 0 to below 1.
    pub fn publish(&mut self, now: Duration, random: f64) {
        self.min_interval_ends = Some(now + self.timing.min_interval);
        self.succeed(now, random);
    }

    /// Ends the attempt: there was nothing to publish. `random` is from 0 to below 1.
    pub fn succeed(&mut self, now: Duration, random: f64) {
        self.debug_assert_syncing();
        let wait = if self.succeeded || self.timing.jitter == 0.0 {
            retry::jittered(self.timing.period, self.timing.jitter, random)
        } else {
            // After the first success: instances that were started together spread over the whole period.
            self.timing.period.mul_f64(random)
        };
        self.failures = 0;
        self.succeeded = true;
        self.phase = Phase::Waiting { due: now + wait };
    }

    /// Ends the attempt: it found a new revision that has to wait for the minimum interval, which ends at `until`. A
    /// pending trigger is dropped, as the attempt at `until` does what it asked for. Polls go on until then: otherwise
    /// an outage would not be noticed, and the last success look as if the sync had stopped. `random` is from 0 to
    /// below 1.
    pub fn postpone(&mut self, now: Duration, until: Duration, random: f64) {
        self.debug_assert_syncing();
        self.failures = 0;
        self.succeeded = true;
        self.pending = None;
        let poll = now + retry::jittered(self.timing.period, self.timing.jitter, random);
        self.phase = Phase::Postponing { due: until.min(poll) };
    }

    /// Ends the attempt: it failed. If that was one failure too many, [`Machine::phase`] is [`Phase::GivenUp`]. `random`
    /// is from 0 to below 1.
    pub fn fail(&mut self, now: Duration, failure: Failure, random: f64) {
        self.debug_assert_syncing();
        self.failures = self.failures.saturating_add(1);
        let (backoff, period) = if self.succeeded {
            (self.timing.backoff, self.timing.period)
        } else {
            (self.timing.init_backoff, self.timing.init_period)
        };
        if self.limit().is_some_and(|limit| self.failures >= limit) {
            self.phase = Phase::GivenUp;
            return;
        }
        let (wait, asked) = match failure {
            Failure::Refused => (period, Duration::ZERO),
            Failure::Unavailable { retry_after } => {
                let delay = backoff.delay(self.failures);
                (delay, retry_after.unwrap_or_default())
            }
        };
        let due = now + retry::jittered(wait, self.timing.jitter, random).max(asked);
        self.phase = Phase::BackingOff { due, earliest: (now + asked.max(MIN_RETRY_DELAY)).min(due) };
    }

    /// Parks the machine: the commit id that the ref names is published.
    pub fn park(&mut self) {
        debug_assert!(matches!(self.phase, Phase::Waiting { .. }), "not waiting: {:?}", self.phase);
        self.pending = None;
        self.phase = Phase::Parked;
    }

    fn debug_assert_syncing(&self) {
        debug_assert!(matches!(self.phase, Phase::Syncing), "no attempt runs: {:?}", self.phase);
    }
}

#[cfg(test)]
mod tests;
