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

/// How many consecutive failures end the process; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureLimits {
    /// The limit after the first success.
    pub failures: Option<u32>,
    /// The limit before the first success.
    pub init_failures: Option<u32>,
}

/// The longest Retry-After that is respected; a longer one is cut to this, as it may be a mistake.
pub const RETRY_AFTER_CEILING: Duration = Duration::from_secs(15 * 60);

/// The least time between a failure and an attempt that a trigger requests, unless the timer is due before: hundreds of
/// webhooks may arrive at once.
pub const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The state of a sync.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    /// The last attempt succeeded; the next one is due by the timer.
    Waiting {
        /// When the next attempt is due.
        due: Duration,
    },
    /// A new revision was seen within the minimum interval after the last publication. The next attempt publishes
    /// whichever is newest then.
    Holding {
        /// When the minimum interval is over.
        due: Duration,
    },
    /// The last attempt failed.
    BackingOff {
        /// When the next attempt is due by the timer.
        due: Duration,
        /// When the next attempt is due if a trigger asks for one.
        earliest: Duration,
    },
    /// An attempt is running.
    Syncing {
        /// When it began.
        since: Duration,
    },
    /// The ref is a commit id, which cannot change: no further attempt starts, whatever the trigger.
    Parked,
    /// The process is shutting down: no further attempt starts.
    Draining,
    /// There were too many consecutive failures.
    GivenUp,
}

/// Why an attempt failed, as far as the time of the next one depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The remote or this machine has a problem: back off.
    Unavailable {
        /// The remote's Retry-After.
        retry_after: Option<Duration>,
    },
    /// The revision itself was refused. The remote is healthy and polling it is cheap, so the usual period applies.
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
    hold: Option<Duration>,
}

impl Machine {
    /// Starts with an attempt that is due at once. `hold` is when the minimum interval ends after the publication that
    /// was found at start.
    pub fn new(timing: Timing, failure_limits: FailureLimits, now: Duration, hold: Option<Duration>) -> Self {
        Self {
            timing,
            failure_limits,
            phase: Phase::Waiting { due: now },
            pending: Some(Trigger::StartUp),
            failures: 0,
            succeeded: false,
            hold,
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
            Phase::Waiting { due } | Phase::Holding { due } | Phase::BackingOff { due, .. } => Some(due),
            Phase::Syncing { .. } | Phase::Parked | Phase::Draining | Phase::GivenUp => None,
        }
    }

    /// The time between attempts after a success.
    pub fn period(&self) -> Duration {
        self.timing.period
    }

    /// When a new revision may be published, if the minimum interval holds it back at `now`.
    pub fn held_until(&self, now: Duration) -> Option<Duration> {
        self.hold.filter(|&until| until > now)
    }

    /// Requests an attempt. Returns false if one is pending already or no further attempt starts.
    pub fn trigger(&mut self, trigger: Trigger) -> bool {
        match self.phase {
            Phase::Parked | Phase::Draining | Phase::GivenUp => false,
            _ if self.pending.is_some() => false,
            _ => {
                self.pending = Some(trigger);
                true
            }
        }
    }

    /// Begins an attempt, which must be due. Returns its trigger.
    pub fn start(&mut self, now: Duration) -> Trigger {
        debug_assert!(
            self.due().is_some_and(|due| due <= now),
            "an attempt that is not due: {:?}",
            self.phase
        );
        self.phase = Phase::Syncing { since: now };
        self.pending.take().unwrap_or(Trigger::Timer)
    }

    /// Ends the attempt: it published a generation.
    pub fn publish(&mut self, now: Duration, random: f64) {
        self.hold = Some(now + self.timing.min_interval);
        self.unchanged(now, random); // the next attempt is due as after any success
    }

    /// Ends the attempt: there was nothing to publish.
    pub fn unchanged(&mut self, now: Duration, random: f64) {
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

    /// Ends the attempt: it found a new revision that has to wait for the minimum interval. A pending trigger is
    /// dropped, as the attempt at `until` does what it asked for.
    pub fn hold_revision(&mut self, until: Duration) {
        self.debug_assert_syncing();
        self.failures = 0;
        self.succeeded = true;
        self.pending = None;
        self.phase = Phase::Holding { due: until };
    }

    /// Ends the attempt: it failed. If that was one failure too many, [`Machine::phase`] is [`Phase::GivenUp`].
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
                (backoff.delay(self.failures), retry_after.unwrap_or_default().min(RETRY_AFTER_CEILING))
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

    /// Shuts the machine down: the process was asked to end.
    pub fn drain(&mut self) {
        self.pending = None;
        self.phase = Phase::Draining;
    }

    fn debug_assert_syncing(&self) {
        debug_assert!(matches!(self.phase, Phase::Syncing { .. }), "no attempt runs: {:?}", self.phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const MIDDLE: f64 = 0.5;

    #[test]
    fn instances_that_start_together_do_not_stay_together() {
        let due = |random| {
            let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
            machine.start(S(0));
            machine.unchanged(S(0), random);
            let first = machine.due().unwrap();
            machine.start(first);
            machine.unchanged(first, random);
            (first, machine.due().unwrap() - first)
        };
        assert_eq!(due(0.0), (S(0), S(9)));
        assert_eq!(due(0.5), (S(5), S(10)));
        assert_eq!(due(1.0), (S(10), S(11)));
    }

    fn timing() -> Timing {
        Timing {
            period: S(10),
            init_period: S(2),
            min_interval: S(5),
            backoff: Backoff { first: S(10), ceiling: S(100) },
            init_backoff: Backoff { first: S(2), ceiling: S(20) },
            jitter: 0.1,
        }
    }

    const NO_LIMITS: FailureLimits = FailureLimits { failures: None, init_failures: None };
    const UNAVAILABLE: Failure = Failure::Unavailable { retry_after: None };

    fn name(phase: Phase) -> &'static str {
        match phase {
            Phase::Waiting { .. } => "Waiting",
            Phase::Holding { .. } => "Holding",
            Phase::BackingOff { .. } => "BackingOff",
            Phase::Syncing { .. } => "Syncing",
            Phase::Parked => "Parked",
            Phase::Draining => "Draining",
            Phase::GivenUp => "GivenUp",
        }
    }

    /// A machine in each phase but `Draining` and `GivenUp`, in which the process ends.
    fn one_per_phase() -> Vec<Machine> {
        let waiting = Machine::new(timing(), NO_LIMITS, S(0), None);
        let mut syncing = waiting.clone();
        syncing.start(S(0));
        let mut holding = syncing.clone();
        holding.hold_revision(S(5));
        let mut backing_off = syncing.clone();
        backing_off.fail(S(0), UNAVAILABLE, MIDDLE);
        let mut parked = syncing.clone();
        parked.unchanged(S(0), MIDDLE);
        parked.park();
        vec![waiting, syncing, holding, backing_off, parked]
    }

    #[test]
    fn phase_dot_shows_exactly_the_transitions_of_the_methods() {
        let mut made = std::collections::BTreeSet::new();
        let mut note = |from: &Machine, method: &str, to: &Machine| {
            made.insert(format!("{} -> {} [label={method}];", name(from.phase), name(to.phase)));
        };
        for machine in one_per_phase() {
            let step = |act: &dyn Fn(&mut Machine)| {
                let mut next = machine.clone();
                act(&mut next);
                next
            };
            note(&machine, "drain", &step(&|m| m.drain()));
            if let Phase::Syncing { .. } = machine.phase {
                note(&machine, "publish", &step(&|m| m.publish(S(1), MIDDLE)));
                note(&machine, "unchanged", &step(&|m| m.unchanged(S(1), MIDDLE)));
                note(&machine, "hold_revision", &step(&|m| m.hold_revision(S(5))));
                note(&machine, "fail", &step(&|m| m.fail(S(1), UNAVAILABLE, MIDDLE)));
                let one_failure = FailureLimits { failures: Some(1), init_failures: Some(1) };
                let mut last = Machine { failure_limits: one_failure, ..machine.clone() };
                last.fail(S(1), UNAVAILABLE, MIDDLE);
                note(&machine, "fail", &last);
            } else if machine.phase != Phase::Parked {
                if let Phase::Waiting { .. } = machine.phase {
                    note(&machine, "park", &step(&|m| m.park()));
                }
                let start = step(&|m| {
                    m.start(S(1_000));
                });
                note(&machine, "start", &start);
            }
        }
        let drawing = include_str!("../../testdata/phase.dot");
        let drawn = drawing.lines().map(str::trim).filter(|line| line.contains("->")).map(str::to_owned);
        assert_eq!(made, drawn.collect());
    }

    #[test]
    fn triggers_coalesce_into_one_pending_attempt() {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        assert!(!machine.trigger(Trigger::Signal), "the start-up trigger is pending");
        assert_eq!(machine.start(S(0)), Trigger::StartUp);
        assert!(machine.trigger(Trigger::Webhook));
        for _ in 0..1_000 {
            assert!(!machine.trigger(Trigger::Signal));
        }
        machine.unchanged(S(1), MIDDLE);
        assert!(machine.due().unwrap() <= S(1), "a trigger during the attempt: one more follows");
        assert_eq!(machine.start(S(1)), Trigger::Webhook);
        machine.unchanged(S(2), MIDDLE);
        assert_eq!(machine.due(), Some(S(12)));
        assert_eq!(machine.start(S(12)), Trigger::Timer);
    }

    #[test]
    fn the_backoff_grows_with_each_failure_and_a_success_resets_it() {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        let fail = |machine: &mut Machine| {
            let now = machine.due().unwrap();
            machine.start(now);
            machine.fail(now, UNAVAILABLE, MIDDLE);
            (machine.due().unwrap() - now).as_secs()
        };
        let before: Vec<u64> = (0..6).map(|_| fail(&mut machine)).collect();
        assert_eq!(before, [2, 4, 8, 16, 20, 20], "before the first success");
        machine.start(machine.due().unwrap());
        machine.unchanged(S(100), MIDDLE);
        assert_eq!(machine.failures(), 0);
        let after: Vec<u64> = (0..6).map(|_| fail(&mut machine)).collect();
        assert_eq!(after, [10, 20, 40, 80, 100, 100]);
    }

    #[test]
    fn retry_after_is_respected_up_to_a_ceiling() {
        let wait = |seconds| {
            let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
            machine.start(S(0));
            machine.fail(S(0), Failure::Unavailable { retry_after: Some(S(seconds)) }, MIDDLE);
            machine.trigger(Trigger::Webhook);
            machine.due().unwrap()
        };
        assert_eq!(wait(60), S(60), "a trigger does not shorten it");
        assert_eq!(wait(15 * 60), S(15 * 60));
        assert_eq!(wait(1_000_000), RETRY_AFTER_CEILING);
        assert_eq!(wait(0), MIN_RETRY_DELAY);
    }

    #[test]
    fn a_trigger_shortens_a_backoff_but_not_below_the_minimum() {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        machine.start(S(0));
        machine.unchanged(S(0), MIDDLE);
        machine.start(S(10));
        machine.fail(S(10), UNAVAILABLE, MIDDLE);
        assert_eq!(machine.due(), Some(S(20)));
        machine.trigger(Trigger::Signal);
        assert_eq!(machine.due(), Some(S(11)));
    }

    #[test]
    fn a_refused_revision_is_retried_after_the_usual_period() {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        machine.start(S(0));
        machine.unchanged(S(0), MIDDLE);
        for round in 1..20 {
            let now = machine.due().unwrap();
            machine.start(now);
            machine.fail(now, Failure::Refused, MIDDLE);
            assert_eq!(machine.due(), Some(now + S(10)));
            assert_eq!(machine.failures(), round);
        }
    }

    #[test]
    fn a_new_revision_is_held_until_the_minimum_interval_is_over() {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        machine.start(S(0));
        assert_eq!(machine.held_until(S(0)), None, "nothing was published yet");
        machine.publish(S(1), MIDDLE);
        machine.trigger(Trigger::Webhook);
        machine.start(S(2));
        assert_eq!(machine.held_until(S(2)), Some(S(6)));
        machine.hold_revision(S(6));
        machine.trigger(Trigger::Webhook);
        assert_eq!(machine.due(), Some(S(6)), "a trigger does not shorten it");
        assert_eq!(machine.start(S(6)), Trigger::Webhook);
        assert_eq!(machine.held_until(S(6)), None);
    }

    #[test]
    fn the_failure_limit_before_the_first_success_is_init_failures() {
        let failure_limits = FailureLimits { failures: Some(3), init_failures: Some(2) };
        let mut machine = Machine::new(timing(), failure_limits, S(0), None);
        let end = |machine: &mut Machine, success: bool| {
            let now = machine.due().unwrap();
            machine.start(now);
            if success {
                machine.unchanged(now, MIDDLE);
            } else {
                machine.fail(now, UNAVAILABLE, MIDDLE);
            }
            machine.phase() == Phase::GivenUp
        };
        let mut fresh = machine.clone();
        assert!(!end(&mut fresh, false));
        assert!(end(&mut fresh, false), "the second before the first success");
        for success in [true, false, false, true, false, false] {
            assert!(!end(&mut machine, success));
        }
        assert!(end(&mut machine, false), "the third in a row");
    }

    #[test]
    fn no_trigger_asks_for_an_attempt_once_none_may_follow() {
        let parked = one_per_phase().pop().unwrap();
        let mut draining = parked.clone();
        draining.drain();
        let one_failure = FailureLimits { failures: None, init_failures: Some(1) };
        let mut given_up = Machine::new(timing(), one_failure, S(0), None);
        given_up.start(S(0));
        given_up.fail(S(0), UNAVAILABLE, MIDDLE);
        for mut machine in [parked, draining, given_up] {
            assert!(!machine.trigger(Trigger::Webhook), "{}", name(machine.phase));
            assert_eq!(machine.due(), None);
        }
    }

    #[test]
    fn the_period_is_known_in_every_phase() {
        assert!(one_per_phase().iter().all(|machine| machine.period() == S(10)));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic = "no attempt runs"]
    fn an_attempt_does_not_end_twice() {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        machine.start(S(0));
        machine.unchanged(S(1), MIDDLE);
        machine.unchanged(S(2), MIDDLE);
    }
}
