//! When the spare is prepared again after preparations that failed. Times (durations since an origin the caller chose)
//! are arguments. Whether one is ready already, and whether there is room for one, is for the store to say.

use std::time::Duration;

use crate::generation::Name;
use crate::retry::Backoff;

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
    /// Returns true if `now` is too early to prepare a spare of this generation. Once it failed, it is tried again at
    /// the next opportunity, then with backoff. With another generation the count begins anew.
    pub fn must_wait(&self, generation: &Name, now: Duration) -> bool {
        let failed = self.0.as_ref().filter(|failed| failed.generation == *generation && failed.count > 1);
        failed.is_some_and(|failed| now < failed.last.saturating_add(BACKOFF.delay(failed.count - 1)))
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

    fn name(second: u32) -> Name {
        Name::parse(&format!("..2026_01_01_00_00_{second:02}.000000001")).unwrap()
    }

    /// Lets each preparation fail at once, and returns how many seconds the next one has to wait.
    fn waits(failures: &mut Failures, generation: &Name, times: usize) -> Vec<u64> {
        let mut now = S(1_000);
        let mut fail = || {
            failures.add(generation, now);
            let wait = (0..).find(|wait| !failures.must_wait(generation, now + S(*wait))).unwrap();
            now += S(wait);
            wait
        };
        (0..times).map(|_| fail()).collect()
    }

    #[test]
    fn a_preparation_that_fails_is_tried_again_at_once_then_ever_less_often() {
        let mut failures = Failures::default();
        assert!(!failures.must_wait(&name(1), S(0)));
        assert_eq!(waits(&mut failures, &name(1), 9), [0, 10, 20, 40, 80, 160, 320, 640, 900]);
        failures.add(&name(1), S(0));
        assert!(failures.must_wait(&name(1), S(1)));
        failures.clear();
        assert!(!failures.must_wait(&name(1), S(1)), "one succeeded meanwhile");
    }

    #[test]
    fn failures_of_one_generation_do_not_delay_the_spare_of_another() {
        let mut failures = Failures::default();
        waits(&mut failures, &name(1), 5);
        assert!(!failures.must_wait(&name(2), S(0)));
        assert_eq!(waits(&mut failures, &name(2), 3), [0, 10, 20]);
    }
}
