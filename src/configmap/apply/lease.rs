//! Whose turn it is to write a namespace, by a Lease that its cluster keeps. It keeps instances out of each other's
//! way, and makes no write right: that is for the versions that were read and the ref that was asked.
//!
//! No clock of another machine has a say. How long a holder has been silent counts from the moment when *we* saw the
//! Lease change, on a clock that nobody can set; so whoever comes later waits the whole time once more, and a holder
//! that was killed holds a waiter up for the Lease's duration and one pause between two looks, no longer.

use std::time::Duration;

/// A Lease as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Its holder; none after it was released.
    pub holder: Option<String>,
    /// How long its holder says that it may be silent.
    pub duration: Option<Duration>,
    /// Differs after every write, by whomever.
    pub version: String,
}

/// What follows from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is free.
    Free,
    /// We have it: the answer that said so was lost.
    Ours,
    /// Its holder works, as far as can be known.
    Taken(String),
    /// Its holder has been silent for longer than it may.
    Silent(String),
}

impl Standing {
    /// Whether it can be taken.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Taken(_))
    }
}

/// What one who waits has seen of a Lease.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Watch {
    last: Option<(String, Duration)>,
}

impl Watch {
    /// One look, at `now` on a clock that only runs forward. `us` is who looks; `most` is the longest silence that is
    /// borne, whatever a holder says of itself.
    pub fn observe(&mut self, found: Option<&Holding>, us: &str, most: Duration, now: Duration) -> Standing {
        let Some((Holding { duration, version, .. }, holder)) =
            found.and_then(|found| Some((found, found.holder.clone()?)))
        else {
            self.last = None;
            return Standing::Free;
        };
        if holder == us {
            return Standing::Ours;
        }
        let since = match &self.last {
            Some((last, since)) if last == version => *since,
            _ => now,
        };
        self.last = Some((version.clone(), since));
        let silence = duration.unwrap_or(most).min(most);
        if now.saturating_sub(since) >= silence { Standing::Silent(holder) } else { Standing::Taken(holder) }
    }
}

/// What one who wants any place of a pool does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotChoice {
    /// Take this one, under the version that was looked at.
    Take(usize),
    /// All that can be used are taken: look again after a pause.
    Wait,
    /// None can be used: go on without.
    Nowhere,
}

/// Which place of a pool to take, of those that can be used, beginning with `first`: one that is ours already, else one
/// that is free, else one whose holder is silent. Instances that begin at the same one compete for it.
pub fn choose(standings: &[Option<&Standing>], first: usize) -> SlotChoice {
    let rank = |standing: &Standing| match standing {
        Standing::Ours => Some(0),
        Standing::Free => Some(1),
        Standing::Silent(_) => Some(2),
        Standing::Taken(_) => None,
    };
    let around = (0..standings.len()).map(|step| (first + step) % standings.len());
    let open = around.filter_map(|at| Some((rank(standings[at]?)?, at)));
    match open.min_by_key(|(rank, _)| *rank) {
        Some((_, at)) => SlotChoice::Take(at),
        None if standings.iter().any(Option::is_some) => SlotChoice::Wait,
        None => SlotChoice::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn held(version: &str, seconds: u64) -> Holding {
        Holding { holder: Some("a".into()), duration: Some(S(seconds)), version: version.into() }
    }

    #[test]
    fn silence_counts_from_the_change_that_we_saw() {
        let mut watch = Watch::default();
        let mut at = |now, version: &str| watch.observe(Some(&held(version, 15)), "b", S(15), S(now));
        let taken = Standing::Taken("a".into());
        assert_eq!(at(100, "1"), taken, "however long ago it was written");
        assert_eq!(at(114, "1"), taken);
        assert_eq!(at(114, "2"), taken, "it was renewed");
        assert_eq!(at(128, "2"), taken);
        assert_eq!(at(129, "2"), Standing::Silent("a".into()));
        assert_eq!(at(130, "3"), taken, "it, or another one, is there again");
    }

    #[test]
    fn the_shorter_of_two_durations_is_borne() {
        for (theirs, ours) in [(15, 3_600), (3_600, 15)] {
            let mut watch = Watch::default();
            watch.observe(Some(&held("1", theirs)), "b", S(ours), S(0));
            let standing = watch.observe(Some(&held("1", theirs)), "b", S(ours), S(15));
            assert_eq!(standing, Standing::Silent("a".into()), "{theirs} {ours}");
        }
        let mut watch = Watch::default();
        let unsaid = Holding { duration: None, ..held("1", 0) };
        assert_eq!(watch.observe(Some(&unsaid), "b", S(15), S(0)), Standing::Taken("a".into()));
        assert_eq!(watch.observe(Some(&unsaid), "b", S(15), S(15)), Standing::Silent("a".into()));
    }

    #[test]
    fn what_nobody_has_is_free_and_what_is_ours_stays_so() {
        let mut watch = Watch::default();
        let let_go = Holding { holder: None, ..held("2", 15) };
        assert_eq!(watch.observe(None, "b", S(15), S(0)), Standing::Free);
        assert_eq!(watch.observe(Some(&held("1", 15)), "b", S(15), S(1)), Standing::Taken("a".into()));
        assert_eq!(watch.observe(Some(&let_go), "b", S(15), S(2)), Standing::Free);
        assert_eq!(watch.observe(Some(&held("3", 15)), "a", S(15), S(99)), Standing::Ours);
        assert!(Standing::Free.is_open() && Standing::Silent("a".into()).is_open());
        assert!(!Standing::Taken("a".into()).is_open());
    }

    #[test]
    fn any_place_of_a_pool_will_do_and_a_free_one_is_better_than_a_silent_ones() {
        let free = Standing::Free;
        let ours = Standing::Ours;
        let taken = Standing::Taken("a".into());
        let silent = Standing::Silent("b".into());
        let [free, ours, taken, silent] = [&free, &ours, &taken, &silent].map(Some);
        for (standings, first, expected) in [
            (vec![free, free, free], 1, SlotChoice::Take(1)),
            (vec![free, taken, taken], 1, SlotChoice::Take(0)),
            (vec![taken, silent, taken], 2, SlotChoice::Take(1)),
            (vec![silent, taken, free], 0, SlotChoice::Take(2)),
            (vec![free, free, ours], 0, SlotChoice::Take(2)),
            (vec![taken, taken], 1, SlotChoice::Wait),
            (vec![None, taken], 0, SlotChoice::Wait),
            (vec![None, free], 0, SlotChoice::Take(1)),
            (vec![None, None], 1, SlotChoice::Nowhere),
            (Vec::new(), 0, SlotChoice::Nowhere),
        ] {
            assert_eq!(choose(&standings, first), expected, "{standings:?} from {first}");
        }
    }
}
