//! When the spare is prepared again after a failure: an attempt that failed may have used it up, and a preparation may
//! fail itself. Each rule returns a plan with its reason. Times (durations since an origin the caller chose) are
//! arguments. Whether one is ready already, and whether there is room for one, is for the store to say.

use std::time::Duration;

use crate::generation::Name;
use crate::retry::Backoff;

/// Whether a spare is to be prepared now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Prepare it if none is ready.
    Prepare,
    /// Do not, for this reason.
    Leave(&'static str),
}

/// What is known after an attempt that failed, and while the next one is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Situation {
    /// True if the spare may have been used up or discarded.
    pub may_be_missing: bool,
    /// True if the root is gone or was replaced.
    pub is_root_missing: bool,
    /// True if an attempt since the last success lacked room. The next one would drop the spare to make room, and lack
    /// it again.
    pub lacked_room: bool,
    /// True if that was the last attempt.
    pub is_last: bool,
}

/// Returns whether to prepare the spare for the next attempt, which otherwise would write its generation in full.
pub fn plan(situation: Situation) -> Plan {
    match situation {
        Situation { is_last: true, .. } => Plan::Leave("no attempt follows that could use it"),
        Situation { is_root_missing: true, .. } => Plan::Leave("the root is missing"),
        Situation { lacked_room: true, .. } => Plan::Leave("its room is needed"),
        Situation { may_be_missing: false, .. } => Plan::Leave("the last one was not used"),
        _ => Plan::Prepare,
    }
}

/// The wait after the second and each further failure of a preparation: a copy that fails at its end costs as much as
/// one that succeeds.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(10), ceiling: Duration::from_secs(15 * 60) };

/// The failed preparations of one generation's spare since one last succeeded. They include those after a failed
/// attempt that the next attempt cancelled: it fails as well, and the one after it would cancel the next preparation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failures(Option<Failed>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Failed {
    generation: Name,
    count: u32,
    last: Duration,
}

impl Failures {
    /// Returns whether a spare of this generation may be prepared at `now`. Once it failed, it is tried again at the
    /// next opportunity, then with backoff. With another generation the count begins anew.
    pub fn plan(&self, generation: &Name, now: Duration) -> Plan {
        let failed = self.0.as_ref().filter(|failed| failed.generation == *generation && failed.count > 1);
        match failed {
            Some(Failed { count, last, .. }) if now < last.saturating_add(BACKOFF.delay(count - 1)) => {
                Plan::Leave("its preparation failed, and is tried again later")
            }
            _ => Plan::Prepare,
        }
    }

    /// Adds a preparation for this generation that failed at `now`.
    pub fn add(&mut self, generation: &Name, now: Duration) {
        let before = self.0.take().filter(|failed| failed.generation == *generation);
        let count = before.map_or(0, |failed| failed.count).saturating_add(1);
        self.0 = Some(Failed { generation: generation.clone(), count, last: now });
    }

    /// Forgets all failures: a preparation succeeded.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_spare_is_prepared_after_a_failure_that_may_have_used_it_up_if_another_attempt_follows() {
        let used_up =
            Situation { may_be_missing: true, is_root_missing: false, lacked_room: false, is_last: false };
        assert_eq!(plan(used_up), Plan::Prepare);
        for (situation, why) in [
            (Situation { may_be_missing: false, ..used_up }, "the last one was not used"),
            (Situation { is_root_missing: true, ..used_up }, "the root is missing"),
            (Situation { lacked_room: true, ..used_up }, "its room is needed"),
            (Situation { is_last: true, ..used_up }, "no attempt follows that could use it"),
        ] {
            assert_eq!(plan(situation), Plan::Leave(why));
        }
    }

    fn name(second: u32) -> Name {
        Name::parse(&format!("..2026_01_01_00_00_{second:02}.000000001")).unwrap()
    }

    /// Lets each preparation fail at once, and returns how many seconds the next one has to wait.
    fn waits(failures: &mut Failures, generation: &Name, times: usize) -> Vec<u64> {
        let mut now = S(1_000);
        let mut fail = || {
            failures.add(generation, now);
            let wait = (0..).find(|wait| failures.plan(generation, now + S(*wait)) == Plan::Prepare).unwrap();
            now += S(wait);
            wait
        };
        (0..times).map(|_| fail()).collect()
    }

    #[test]
    fn a_preparation_that_fails_is_tried_again_at_once_then_ever_less_often() {
        let mut failures = Failures::default();
        assert_eq!(failures.plan(&name(1), S(0)), Plan::Prepare);
        assert_eq!(waits(&mut failures, &name(1), 9), [0, 10, 20, 40, 80, 160, 320, 640, 900]);
        failures.add(&name(1), S(0));
        assert!(matches!(failures.plan(&name(1), S(1)), Plan::Leave(_)));
        failures.clear();
        assert_eq!(failures.plan(&name(1), S(1)), Plan::Prepare, "one succeeded meanwhile");
    }

    #[test]
    fn failures_of_one_generation_do_not_delay_the_spare_of_another() {
        let mut failures = Failures::default();
        waits(&mut failures, &name(1), 5);
        assert_eq!(failures.plan(&name(2), S(0)), Plan::Prepare);
        assert_eq!(waits(&mut failures, &name(2), 3), [0, 10, 20]);
    }
}
