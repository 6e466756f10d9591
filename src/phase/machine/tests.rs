//! The transitions and their times, and that `testdata/phase.dot` draws them all.

use super::*;

const S: fn(u64) -> Duration = Duration::from_secs;

/// The random number with which jitter leaves a wait as long as it is.
const MIDDLE: f64 = 0.5;

const NO_LIMITS: FailureLimits = FailureLimits { failures: None, init_failures: None };
const UNAVAILABLE: Failure = Failure::Unavailable { retry_after: None };

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

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting { .. } => "Waiting",
        Phase::Postponing { .. } => "Postponing",
        Phase::BackingOff { .. } => "BackingOff",
        Phase::Syncing => "Syncing",
        Phase::Parked => "Parked",
        Phase::GivenUp => "GivenUp",
    }
}

/// A machine in each phase but `GivenUp`, in which the process ends.
fn one_per_phase() -> Vec<Machine> {
    let waiting = Machine::new(timing(), NO_LIMITS, S(0), None);
    let mut syncing = waiting.clone();
    syncing.start(S(0));
    let mut postponing = syncing.clone();
    postponing.postpone(S(0), S(5), MIDDLE);
    let mut backing_off = syncing.clone();
    backing_off.fail(S(0), UNAVAILABLE, MIDDLE);
    let mut parked = syncing.clone();
    parked.succeed(S(0), MIDDLE);
    parked.park();
    vec![waiting, syncing, postponing, backing_off, parked]
}

#[test]
fn instances_that_start_together_do_not_stay_together() {
    let due = |random| {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        machine.start(S(0));
        machine.succeed(S(0), random);
        let first = machine.due().unwrap();
        machine.start(first);
        machine.succeed(first, random);
        (first, machine.due().unwrap() - first)
    };
    assert_eq!(due(0.0), (S(0), S(9)));
    assert_eq!(due(0.5), (S(5), S(10)));
    assert_eq!(due(1.0), (S(10), S(11)), "the bound, which no random number reaches");
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
        if machine.phase == Phase::Syncing {
            note(&machine, "publish", &step(&|m| m.publish(S(1), MIDDLE)));
            note(&machine, "succeed", &step(&|m| m.succeed(S(1), MIDDLE)));
            note(&machine, "postpone", &step(&|m| m.postpone(S(1), S(5), MIDDLE)));
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
    let drawing = include_str!("../../../testdata/phase.dot");
    let drawn = drawing.lines().map(str::trim).filter(|line| line.contains("->")).map(str::to_owned);
    assert_eq!(made, drawn.collect());
}

#[test]
fn triggers_coalesce_into_one_pending_attempt() {
    let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
    machine.trigger(Trigger::Signal);
    assert_eq!(machine.start(S(0)), Trigger::StartUp);
    machine.trigger(Trigger::Webhook);
    for _ in 0..1_000 {
        machine.trigger(Trigger::Signal);
    }
    machine.succeed(S(1), MIDDLE);
    assert!(machine.due().unwrap() <= S(1), "a trigger during the attempt: one more follows");
    assert_eq!(machine.start(S(1)), Trigger::Webhook);
    machine.succeed(S(2), MIDDLE);
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
    machine.succeed(S(100), MIDDLE);
    assert_eq!(machine.failures(), 0);
    let after: Vec<u64> = (0..6).map(|_| fail(&mut machine)).collect();
    assert_eq!(after, [10, 20, 40, 80, 100, 100]);
}

#[test]
fn retry_after_is_respected() {
    let wait = |seconds| {
        let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
        machine.start(S(0));
        machine.fail(S(0), Failure::Unavailable { retry_after: Some(S(seconds)) }, MIDDLE);
        machine.trigger(Trigger::Webhook);
        machine.due().unwrap()
    };
    assert_eq!(wait(60), S(60), "a trigger does not shorten it");
    assert_eq!(wait(15 * 60), S(15 * 60));
    assert_eq!(wait(0), MIN_RETRY_DELAY);
}

#[test]
fn a_trigger_shortens_a_backoff_but_not_below_the_minimum() {
    let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
    machine.start(S(0));
    machine.succeed(S(0), MIDDLE);
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
    machine.succeed(S(0), MIDDLE);
    for round in 1..20 {
        let now = machine.due().unwrap();
        machine.start(now);
        machine.fail(now, Failure::Refused, MIDDLE);
        assert_eq!(machine.due(), Some(now + S(10)));
        assert_eq!(machine.failures(), round);
    }
}

#[test]
fn a_new_revision_is_postponed_until_the_minimum_interval_is_over() {
    let mut machine = Machine::new(timing(), NO_LIMITS, S(0), None);
    machine.start(S(0));
    assert_eq!(machine.earliest_publication(S(0)), None, "nothing was published yet");
    machine.publish(S(1), MIDDLE);
    machine.trigger(Trigger::Webhook);
    machine.start(S(2));
    assert_eq!(machine.earliest_publication(S(2)), Some(S(6)));
    machine.postpone(S(2), S(6), MIDDLE);
    machine.trigger(Trigger::Webhook);
    assert_eq!(machine.due(), Some(S(6)), "a trigger does not shorten it");
    assert_eq!(machine.start(S(6)), Trigger::Webhook);
    assert_eq!(machine.earliest_publication(S(6)), None);
}

#[test]
fn a_remote_is_polled_each_period_while_a_revision_is_postponed() {
    let timing = Timing { min_interval: S(25), ..timing() };
    let mut machine = Machine::new(timing, NO_LIMITS, S(0), None);
    machine.start(S(0));
    machine.publish(S(0), 0.2);
    let mut polls = vec![machine.due().unwrap()];
    while let Some(until) = machine.earliest_publication(*polls.last().unwrap()) {
        let now = *polls.last().unwrap();
        machine.start(now);
        machine.postpone(now, until, MIDDLE);
        polls.push(machine.due().unwrap());
    }
    assert_eq!(polls, [S(2), S(12), S(22), S(25)]);
}

#[test]
fn the_failure_limit_before_the_first_success_is_init_failures() {
    let failure_limits = FailureLimits { failures: Some(3), init_failures: Some(2) };
    let mut machine = Machine::new(timing(), failure_limits, S(0), None);
    let end = |machine: &mut Machine, success: bool| {
        let now = machine.due().unwrap();
        machine.start(now);
        if success {
            machine.succeed(now, MIDDLE);
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
    let one_failure = FailureLimits { failures: None, init_failures: Some(1) };
    let mut given_up = Machine::new(timing(), one_failure, S(0), None);
    given_up.start(S(0));
    given_up.fail(S(0), UNAVAILABLE, MIDDLE);
    for mut machine in [parked, given_up] {
        machine.trigger(Trigger::Webhook);
        assert!(machine.pending.is_none(), "{}", name(machine.phase));
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
    machine.succeed(S(1), MIDDLE);
    machine.succeed(S(2), MIDDLE);
}
