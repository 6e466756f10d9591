//! Keep or reap, and why. Pure: generations, pins and the time come in, a plan with reasons goes out.
//!
//! A generation that is no longer current stays for its grace period, and while somebody pins it, at most for
//! [`Options::max_pin`]. Above that stand two ceilings, on the number of generations and on their bytes. Where a ceiling
//! is exceeded, grace periods of unpinned generations end early, the oldest first; where that is not enough, pinned ones
//! are evicted, the oldest first. The current generation always stays, also where it alone exceeds a ceiling.

use std::fmt;
use std::time::Duration;

use crate::clock::Now;
use crate::generation::{Name, Record, Retired};

/// When retired generations go.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kept at least so long after they stopped being current.
    pub grace: Duration,
    /// A pin holds a retired generation at most so long beyond its retirement.
    pub max_pin: Duration,
    /// Generations kept at most, the current one included.
    pub max_generations: u32,
    /// Bytes that all generations may take, the current one and the spare included; none: no ceiling.
    pub max_bytes: Option<u64>,
}

/// One generation and what is known of it at this moment.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its record.
    pub record: &'a Record,
    /// Whether the link names it.
    pub current: bool,
    /// Whether somebody holds a pin on it right now.
    pub pinned: bool,
}

/// What counts against the ceilings besides the candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// Generations: one, where one is about to be written.
    pub generations: u32,
    /// Bytes: of the spare, and of what is about to be written.
    pub bytes: u64,
}

/// What to do with one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Which.
    pub name: Name,
    /// Keep it, or reap it.
    pub keep: bool,
    /// Whether somebody holds a pin on it.
    pub pinned: bool,
    /// Evicts somebody who still holds a pin.
    pub evicts: bool,
    /// Why, in words that follow "because it is".
    pub reason: String,
    /// When this may change by itself, counted from now.
    pub again_in: Option<Duration>,
}

/// The plan: one verdict a generation, in the order given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The verdicts.
    pub verdicts: Vec<Verdict>,
}

impl Plan {
    /// What is to go.
    pub fn reaped(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| !verdict.keep)
    }

    /// When a verdict may change by itself at the earliest, counted from now.
    pub fn again_in(&self) -> Option<Duration> {
        self.verdicts.iter().filter_map(|verdict| verdict.again_in).min()
    }
}

/// Why a generation stays, or goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Current,
    InGrace(Duration),
    Pinned(Duration),
    PastGrace,
    PastMaxPin,
    OverGenerations { pinned: bool },
    OverBytes { pinned: bool },
}

impl Why {
    fn keeps(self) -> bool {
        matches!(self, Self::Current | Self::InGrace(_) | Self::Pinned(_))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = |pinned: &bool| if *pinned { "pinned" } else { "in its grace period" };
        match self {
            Self::Current => f.write_str("current"),
            Self::InGrace(left) => write!(f, "in its grace period for another {}", Seconds(*left)),
            Self::Pinned(left) => write!(f, "pinned (for another {} at most)", Seconds(*left)),
            Self::PastGrace => f.write_str("past its grace period and not pinned"),
            Self::PastMaxPin => f.write_str("pinned for longer than --max-pin allows"),
            Self::OverGenerations { pinned } => {
                write!(f, "{}, and --max-generations is exceeded", what(pinned))
            }
            Self::OverBytes { pinned } => write!(f, "{}, and --max-bytes is exceeded", what(pinned)),
        }
    }
}

/// A duration in whole seconds, rounded up: "0s left" would be a lie.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0);
        match (seconds / 60, seconds % 60) {
            (0, seconds) => write!(f, "{seconds}s"),
            (minutes, 0) => write!(f, "{minutes}m"),
            (minutes, seconds) => write!(f, "{minutes}m {seconds}s"),
        }
    }
}

/// Decides for every generation.
pub fn plan(candidates: &[Candidate<'_>], options: &Options, reserved: Reserved, now: &Now) -> Plan {
    let mut whys: Vec<Why> = candidates.iter().map(|candidate| by_age(candidate, options, now)).collect();
    for (at, pinned) in eviction_order(candidates, &whys) {
        let kept = || candidates.iter().zip(&whys).filter(|(_, why)| why.keeps());
        let generations = kept().count() + reserved.generations as usize;
        let bytes = kept().map(|(candidate, _)| candidate.record.bytes).sum::<u64>() + reserved.bytes;
        whys[at] = if generations > options.max_generations as usize {
            Why::OverGenerations { pinned }
        } else if options.max_bytes.is_some_and(|ceiling| bytes > ceiling) {
            Why::OverBytes { pinned }
        } else {
            break;
        };
    }
    let verdicts = candidates.iter().zip(whys).map(|(candidate, why)| Verdict {
        name: candidate.record.name.clone(),
        keep: why.keeps(),
        pinned: candidate.pinned,
        evicts: !why.keeps() && candidate.pinned,
        reason: why.to_string(),
        again_in: match why {
            Why::InGrace(left) | Why::Pinned(left) => Some(left),
            _ => None,
        },
    });
    Plan { verdicts: verdicts.collect() }
}

/// What age and pin say, before any ceiling.
fn by_age(candidate: &Candidate<'_>, options: &Options, now: &Now) -> Why {
    if candidate.current {
        return Why::Current;
    }
    let age = candidate.record.retired.as_ref().map_or(Duration::ZERO, |retired| age(retired, now));
    match (options.grace.checked_sub(age), options.max_pin.checked_sub(age)) {
        (Some(left), _) if !left.is_zero() => Why::InGrace(left),
        (_, Some(left)) if candidate.pinned && !left.is_zero() => Why::Pinned(left),
        _ if candidate.pinned => Why::PastMaxPin,
        _ => Why::PastGrace,
    }
}

/// Who goes first where a ceiling is exceeded, and whether that evicts a reader.
fn eviction_order(candidates: &[Candidate<'_>], whys: &[Why]) -> Vec<(usize, bool)> {
    let mut order: Vec<(usize, bool)> = (0..candidates.len())
        .filter(|&at| whys[at].keeps() && whys[at] != Why::Current)
        .map(|at| (at, candidates[at].pinned))
        .collect();
    order.sort_by_key(|&(at, pinned)| (pinned, candidates[at].record.order()));
    order
}

/// How long ago a generation stopped being current, never more than it really is. Within one boot the boot clock
/// tells, which nobody can set. What was retired in another boot is at least as old as this boot; the wall clock would
/// say more, but may be wrong by years. Where the boot is not known, the smaller of the two holds in either case.
pub fn age(retired: &Retired, now: &Now) -> Duration {
    let since = now.boottime.checked_sub(Duration::from_nanos(retired.boottime_ns));
    if retired.boot_id.is_empty() || now.boot_id.is_empty() {
        since.unwrap_or(now.boottime) // a reading ahead of now can only be another boot's
    } else if retired.boot_id == now.boot_id {
        since.unwrap_or_default()
    } else {
        now.boottime
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::{ObjectId, Revision};
    use jiff::Timestamp;
    use proptest::prelude::*;

    const BOOT: &str = "this boot";

    fn now(seconds: u64) -> Now {
        Now { wall: Timestamp::UNIX_EPOCH, boottime: Duration::from_secs(seconds), boot_id: BOOT.to_owned() }
    }

    fn retired(seconds: u64) -> Retired {
        Retired {
            at: Timestamp::UNIX_EPOCH,
            boottime_ns: Duration::from_secs(seconds).as_nanos() as u64,
            boot_id: BOOT.to_owned(),
        }
    }

    fn record(number: usize, bytes: u64, retired: Option<Retired>) -> Record {
        Record {
            name: Name::parse(&format!("..2026_11_20_15_04_05.{number:09}")).unwrap(),
            revision: Revision(ObjectId([0; 20])),
            tree: ObjectId([0; 20]),
            selection: String::new(),
            entries: 1,
            bytes,
            published: Timestamp::UNIX_EPOCH,
            boot_id: BOOT.to_owned(),
            synced: true,
            retired,
        }
    }

    fn generous() -> Options {
        Options {
            grace: Duration::from_secs(30),
            max_pin: Duration::from_secs(600),
            max_generations: 100,
            max_bytes: None,
        }
    }

    fn verdict_at(seconds: u64, pinned: bool, options: &Options) -> Verdict {
        let record = record(1, 10, Some(retired(1000)));
        let candidate = Candidate { record: &record, current: false, pinned };
        plan(&[candidate], options, Reserved::default(), &now(seconds)).verdicts.remove(0)
    }

    #[test]
    fn a_retired_generation_stays_for_its_grace_period_and_not_longer() {
        let last = verdict_at(1029, false, &generous());
        assert!(last.keep);
        assert_eq!(last.reason, "in its grace period for another 1s");
        assert_eq!(last.again_in, Some(Duration::from_secs(1)));
        assert!(!verdict_at(1030, false, &generous()).keep);
    }

    #[test]
    fn a_pin_holds_a_generation_up_to_max_pin() {
        assert_eq!(verdict_at(1030, true, &generous()).reason, "pinned (for another 9m 30s at most)");
        assert!(verdict_at(1599, true, &generous()).keep);
        let evicted = verdict_at(1600, true, &generous());
        assert!(!evicted.keep && evicted.evicts);
    }

    #[test]
    fn a_grace_of_zero_reaps_at_once_but_for_pins() {
        let options = Options { grace: Duration::ZERO, ..generous() };
        assert!(!verdict_at(1000, false, &options).keep);
        assert!(verdict_at(1000, true, &options).keep);
    }

    #[test]
    fn what_another_boot_retired_is_as_old_as_this_boot_whatever_the_wall_clock_says() {
        let other = Retired { boot_id: "another".to_owned(), ..retired(5_000_000) };
        let in_2286 = Now { wall: Timestamp::from_second(9_999_999_999).unwrap(), ..now(12) };
        assert_eq!(age(&other, &in_2286), Duration::from_secs(12));
    }

    #[test]
    fn without_boot_ids_an_age_is_never_overstated() {
        let nameless = |seconds| Retired { boot_id: String::new(), ..retired(seconds) };
        let here = Now { boot_id: String::new(), ..now(100) };
        assert_eq!(age(&nameless(90), &here), Duration::from_secs(10));
        assert_eq!(age(&nameless(500), &here), Duration::from_secs(100), "only another boot can explain it");
    }

    #[test]
    fn ceilings_end_grace_periods_before_they_evict_readers() {
        let records: Vec<Record> = (0..4).map(|n| record(n, 10, (n < 3).then(|| retired(1000)))).collect();
        let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
            .map(|(n, record)| Candidate { record, current: n == 3, pinned: n == 0 })
            .collect();
        let kept = |max_generations, reserved| {
            let options = Options { max_generations, ..generous() };
            let plan = plan(&candidates, &options, Reserved { generations: reserved, bytes: 0 }, &now(1001));
            plan.verdicts.iter().map(|verdict| verdict.keep).collect::<Vec<_>>()
        };
        assert_eq!(kept(4, 0), [true, true, true, true]);
        assert_eq!(kept(4, 1), [true, false, true, true], "the oldest unpinned one makes room");
        assert_eq!(kept(2, 0), [true, false, false, true]);
        assert_eq!(kept(1, 1), [false, false, false, true], "the current one stays over any ceiling");
    }

    /// The rules once more, written as sets: what must hold of any plan.
    fn check(records: &[(Record, bool, bool)], options: &Options, reserved: Reserved, now: &Now) {
        let candidates: Vec<_> = (records.iter())
            .map(|(record, current, pinned)| Candidate { record, current: *current, pinned: *pinned })
            .collect();
        let plan = plan(&candidates, options, reserved, now);
        assert_eq!(plan.verdicts.len(), candidates.len());
        let all = || candidates.iter().zip(&plan.verdicts);
        let old = |c: &Candidate<'_>| age(c.record.retired.as_ref().unwrap(), now);
        let over = |extra: Option<&Candidate<'_>>| {
            let kept = all().filter(|(_, v)| v.keep).map(|(c, _)| c).chain(extra);
            let (count, bytes) = kept.fold((0, 0), |(n, sum), c| (n + 1, sum + c.record.bytes));
            count + reserved.generations > options.max_generations
                || options.max_bytes.is_some_and(|ceiling| bytes + reserved.bytes > ceiling)
        };
        // By age alone, what would stay?
        let stays =
            |c: &Candidate<'_>| c.current || old(c) < options.grace || (c.pinned && old(c) < options.max_pin);
        for (candidate, verdict) in all() {
            assert!(verdict.keep || !candidate.current, "the current generation was to be reaped");
            assert!(!verdict.keep || stays(candidate), "kept without a reason: {verdict:?}");
            assert_eq!(verdict.evicts, !verdict.keep && candidate.pinned);
            assert_eq!(verdict.again_in.is_some(), verdict.keep && !candidate.current);
        }
        if over(None) {
            assert!(all().all(|(c, v)| c.current || !v.keep), "over a ceiling, yet something retired stays");
        }
        let sacrificed: Vec<_> = all().filter(|(c, v)| !v.keep && stays(c)).map(|(c, _)| c).collect();
        if let Some(last) = sacrificed.iter().max_by_key(|c| (c.pinned, &c.record.name)) {
            assert!(over(Some(last)), "{} went although there was room", last.record.name);
            for (kept, _) in all().filter(|(c, v)| v.keep && !c.current) {
                let order = |c: &Candidate<'_>| (c.pinned, c.record.name.clone());
                assert!(order(kept) > order(last), "{} went before {}", last.record.name, kept.record.name);
            }
        }
    }

    proptest! {
        #[test]
        fn every_plan_keeps_the_rules(
            shapes in proptest::collection::vec((0u64..200, 0u64..50, any::<bool>()), 0..9),
            has_current in any::<bool>(),
            grace in 0u64..120,
            max_pin in 0u64..200,
            max_generations in 0u32..8,
            max_bytes in proptest::option::of(0u64..250),
            generations in 0u32..2,
            bytes in 0u64..60,
        ) {
            let last = shapes.len().wrapping_sub(1);
            let records: Vec<_> = (shapes.iter().enumerate())
                .map(|(n, &(at, bytes, pinned))| {
                    let current = has_current && n == last;
                    (record(n, bytes, (!current).then(|| retired(at))), current, pinned)
                })
                .collect();
            let options = Options {
                grace: Duration::from_secs(grace),
                max_pin: Duration::from_secs(max_pin),
                max_generations,
                max_bytes,
            };
            check(&records, &options, Reserved { generations, bytes }, &now(200));
        }
    }
}
