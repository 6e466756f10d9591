//! Decides which instance writes a namespace, by a Lease in its cluster. The Lease only keeps instances from doing the
//! same work. It does not make a write correct: optimistic concurrency and the check of the ref do.
//!
//! Clocks of other machines are not used. A holder's silence is measured on our monotonic clock from the moment when we
//! saw the Lease change. So a new waiter waits the whole duration again, and a holder that was killed delays a waiter
//! by the Lease's duration plus one polling pause at most.

use std::time::Duration;

use crate::human::sanitize;

/// How much of the identity of another holder is shown: anybody who may write Leases can write any text into one.
const HOLDER_MAX: usize = 200;

/// A Lease as read from the API server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveLease {
    /// The holder's identity; `None` after a release.
    pub holder: Option<String>,
    /// The Lease's duration: how long its holder may go without renewing it.
    pub duration: Option<Duration>,
    /// The resourceVersion; changes with every write.
    pub version: String,
}

/// The state of a Lease from our point of view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseAvailability {
    /// Nobody holds it.
    Free,
    /// We hold it: an earlier attempt succeeded and its response was lost.
    Ours,
    /// Another instance holds it, with this identity for display, and has renewed it in time.
    Taken(String),
    /// Another instance holds it, likewise, and has not renewed it for longer than the duration.
    Expired(String),
}

impl LeaseAvailability {
    /// Returns true if the Lease can be taken.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Taken(_))
    }
}

/// What a waiter remembers of a Lease between two reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseObserver {
    /// The resourceVersion that was read last, and when it was first seen.
    last: Option<(String, Duration)>,
}

impl LeaseObserver {
    /// Evaluates one read of the Lease (`None`: it does not exist) at `now` on a monotonic clock. `us` is our identity;
    /// `most` caps the duration that the Lease states.
    pub fn observe(
        &mut self,
        found: Option<&LiveLease>,
        us: &str,
        most: Duration,
        now: Duration,
    ) -> LeaseAvailability {
        let Some((LiveLease { duration, version, .. }, holder)) =
            found.and_then(|found| Some((found, found.holder.clone()?)))
        else {
            self.last = None;
            return LeaseAvailability::Free;
        };
        if holder == us {
            return LeaseAvailability::Ours;
        }
        let holder = sanitize(&holder, HOLDER_MAX);
        let since = match &self.last {
            Some((last, since)) if last == version => *since,
            _ => now,
        };
        self.last = Some((version.clone(), since));
        let silence = duration.unwrap_or(most).min(most);
        if now.saturating_sub(since) >= silence {
            LeaseAvailability::Expired(holder)
        } else {
            LeaseAvailability::Taken(holder)
        }
    }
}

/// What to do next to get one Lease of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseChoice {
    /// Take the Lease with this index, under the resourceVersion that was read.
    Take(usize),
    /// All usable Leases are taken: read them again after a pause.
    Wait,
    /// No Lease is usable: go on without one.
    NoneUsable,
}

/// Chooses a Lease of a pool: one that is ours, else a free one, else one with a silent holder; among equals the first
/// one from index `first` on. `None` marks a Lease that cannot be used. Instances with the same `first` compete for one
/// Lease.
pub fn choose(availabilities: &[Option<&LeaseAvailability>], first: usize) -> LeaseChoice {
    let rank = |availability: &LeaseAvailability| match availability {
        LeaseAvailability::Ours => Some(0),
        LeaseAvailability::Free => Some(1),
        LeaseAvailability::Expired(_) => Some(2),
        LeaseAvailability::Taken(_) => None,
    };
    let around = (0..availabilities.len()).map(|step| (first + step) % availabilities.len());
    let open = around.filter_map(|at| Some((rank(availabilities[at]?)?, at)));
    match open.min_by_key(|(rank, _)| *rank) {
        Some((_, at)) => LeaseChoice::Take(at),
        None if availabilities.iter().any(Option::is_some) => LeaseChoice::Wait,
        None => LeaseChoice::NoneUsable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn held(version: &str, seconds: u64) -> LiveLease {
        LiveLease { holder: Some("a".into()), duration: Some(S(seconds)), version: version.into() }
    }

    #[test]
    fn silence_counts_from_the_change_that_we_saw() {
        let mut observer = LeaseObserver::default();
        let mut at = |now, version: &str| observer.observe(Some(&held(version, 15)), "b", S(15), S(now));
        let taken = LeaseAvailability::Taken("a".into());
        assert_eq!(at(100, "1"), taken, "however long ago it was written");
        assert_eq!(at(114, "1"), taken);
        assert_eq!(at(114, "2"), taken, "it was renewed");
        assert_eq!(at(128, "2"), taken);
        assert_eq!(at(129, "2"), LeaseAvailability::Expired("a".into()));
        assert_eq!(at(130, "3"), taken, "it, or another one, is there again");
    }

    #[test]
    fn the_shorter_of_two_durations_is_borne() {
        for (theirs, ours) in [(15, 3_600), (3_600, 15)] {
            let mut observer = LeaseObserver::default();
            observer.observe(Some(&held("1", theirs)), "b", S(ours), S(0));
            let availability = observer.observe(Some(&held("1", theirs)), "b", S(ours), S(15));
            assert_eq!(availability, LeaseAvailability::Expired("a".into()), "{theirs} {ours}");
        }
        let mut observer = LeaseObserver::default();
        let unsaid = LiveLease { duration: None, ..held("1", 0) };
        assert_eq!(observer.observe(Some(&unsaid), "b", S(15), S(0)), LeaseAvailability::Taken("a".into()));
        assert_eq!(
            observer.observe(Some(&unsaid), "b", S(15), S(15)),
            LeaseAvailability::Expired("a".into())
        );
    }

    #[test]
    fn a_holder_is_shown_as_one_short_line_that_no_terminal_obeys() {
        let own = "b\u{1b}[31m".repeat(100);
        let other = format!("x\n2026 ERROR\u{1b}[31m{own}");
        let found = |holder: &str| LiveLease { holder: Some(holder.into()), ..held("1", 15) };
        let mut observer = LeaseObserver::default();
        assert_eq!(observer.observe(Some(&found(&own)), &own, S(15), S(0)), LeaseAvailability::Ours);
        for (now, is_expired) in [(0, false), (15, true)] {
            let shown = match observer.observe(Some(&found(&other)), &own, S(15), S(now)) {
                LeaseAvailability::Taken(shown) if !is_expired => shown,
                LeaseAvailability::Expired(shown) if is_expired => shown,
                availability => panic!("{availability:?}"),
            };
            assert!(shown.starts_with("x\u{fffd}2026 ERROR\u{fffd}[31m"), "{shown}");
            assert!(shown.chars().count() == HOLDER_MAX && !shown.contains(char::is_control), "{shown}");
        }
    }

    #[test]
    fn what_nobody_has_is_free_and_what_is_ours_stays_so() {
        let mut observer = LeaseObserver::default();
        let let_go = LiveLease { holder: None, ..held("2", 15) };
        assert_eq!(observer.observe(None, "b", S(15), S(0)), LeaseAvailability::Free);
        assert_eq!(
            observer.observe(Some(&held("1", 15)), "b", S(15), S(1)),
            LeaseAvailability::Taken("a".into())
        );
        assert_eq!(observer.observe(Some(&let_go), "b", S(15), S(2)), LeaseAvailability::Free);
        assert_eq!(observer.observe(Some(&held("3", 15)), "a", S(15), S(99)), LeaseAvailability::Ours);
        assert!(LeaseAvailability::Free.is_open() && LeaseAvailability::Expired("a".into()).is_open());
        assert!(!LeaseAvailability::Taken("a".into()).is_open());
    }

    #[test]
    fn any_lease_of_a_pool_will_do_and_a_free_one_is_better_than_a_silent_ones() {
        let free = LeaseAvailability::Free;
        let ours = LeaseAvailability::Ours;
        let taken = LeaseAvailability::Taken("a".into());
        let silent = LeaseAvailability::Expired("b".into());
        let [free, ours, taken, silent] = [&free, &ours, &taken, &silent].map(Some);
        for (availabilities, first, expected) in [
            (vec![free, free, free], 1, LeaseChoice::Take(1)),
            (vec![free, taken, taken], 1, LeaseChoice::Take(0)),
            (vec![taken, silent, taken], 2, LeaseChoice::Take(1)),
            (vec![silent, taken, free], 0, LeaseChoice::Take(2)),
            (vec![free, free, ours], 0, LeaseChoice::Take(2)),
            (vec![taken, taken], 1, LeaseChoice::Wait),
            (vec![None, taken], 0, LeaseChoice::Wait),
            (vec![None, free], 0, LeaseChoice::Take(1)),
            (vec![None, None], 1, LeaseChoice::NoneUsable),
            (Vec::new(), 0, LeaseChoice::NoneUsable),
        ] {
            assert_eq!(choose(&availabilities, first), expected, "{availabilities:?} from {first}");
        }
    }
}
