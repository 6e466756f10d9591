//! Keep or reap, and why. Pure: generations, pins and the time come in, a plan with reasons goes out.
//!
//! A generation that is no longer current stays for its grace period, and while a reader pins it, at most for
//! [`Options::max_pin`]. Above that stand two ceilings, on the number of generations and on their bytes. Where a
//! ceiling is exceeded, grace periods of unpinned generations end early, the oldest first; where that is not enough,
//! pinned ones are evicted, the oldest first. The current generation always stays, also where it alone exceeds a
//! ceiling.
//!
//! Where the file system has no room for a new generation, grace periods end early, too, but only if that gives it
//! room.

use std::fmt;
use std::time::Duration;

use crate::clock::Now;
use crate::generation::{GenerationRecord, Name, Retired};

/// When retired generations go.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kept at least so long after they stopped being current.
    pub grace: Duration,
    /// A pin holds a retired generation at most so long beyond its retirement.
    pub max_pin: Duration,
    /// Generations kept at most, the current one included.
    pub max_generations: u32,
    /// Bytes that all generations may take on disk, the current one and the spare included; none: no ceiling.
    pub max_bytes: Option<u64>,
}

/// One generation and what is known of it at this moment.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its record.
    pub record: &'a GenerationRecord,
    /// Bytes that it takes on disk.
    pub bytes: u64,
    /// Whether the link names it.
    pub current: bool,
    /// Whether a reader holds a pin on it right now.
    pub pinned: bool,
}

/// What counts against the ceilings besides the candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// Generations: one, where one is about to be written.
    pub generations: u32,
    /// Bytes on disk: of the spare, and of what is about to be written.
    pub bytes: u64,
}

/// What to do with one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationDecision {
    /// Which.
    pub name: Name,
    /// Keep it, or reap it.
    pub keep: bool,
    /// Whether a reader holds a pin on it.
    pub pinned: bool,
    /// Evicts a reader that still holds a pin.
    pub evicts: bool,
    /// Goes before its time, for a ceiling or for room.
    pub early: bool,
    /// Why, in words that follow "because it is".
    pub reason: String,
    /// When this may change by itself, counted from now.
    pub again_in: Option<Duration>,
}

/// The plan: one decision a generation, in the order given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The decisions.
    pub decisions: Vec<GenerationDecision>,
}

impl Plan {
    /// What is to go.
    pub fn reaped(&self) -> impl Iterator<Item = &GenerationDecision> {
        self.decisions.iter().filter(|decision| !decision.keep)
    }

    /// When a decision may change by itself at the earliest, counted from now.
    pub fn again_in(&self) -> Option<Duration> {
        self.decisions.iter().filter_map(|decision| decision.again_in).min()
    }
}

/// Why a generation stays, or goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetentionReason {
    Current,
    InGrace(Duration),
    Pinned(Duration),
    PastGrace,
    PastMaxPin,
    OverGenerations { pinned: bool },
    OverBytes { pinned: bool },
    NoRoom,
}

impl RetentionReason {
    fn keeps(self) -> bool {
        matches!(self, Self::Current | Self::InGrace(_) | Self::Pinned(_))
    }

    fn is_early(self) -> bool {
        matches!(self, Self::OverGenerations { .. } | Self::OverBytes { .. } | Self::NoRoom)
    }
}

impl fmt::Display for RetentionReason {
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
            Self::NoRoom => f.write_str("in the way of a new generation, for which there is no room"),
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
    let mut whys = by_ages(candidates, options, now);
    keep_ceilings(candidates, &mut whys, options, reserved);
    plan_of(candidates, whys)
}

/// Extent on a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Bytes, in whole blocks.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Extent {
    fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.inodes >= other.inodes
    }
}

impl std::iter::Sum for Extent {
    fn sum<I: Iterator<Item = Self>>(rooms: I) -> Self {
        rooms.fold(Self::default(), |sum, room| Self {
            bytes: sum.bytes.saturating_add(room.bytes),
            inodes: sum.inodes.saturating_add(room.inodes),
        })
    }
}

/// Decides for every generation when a new one is about to be written for which the file system lacks `lack`; `gains`
/// is what each candidate's removal gives back, in the same order. Grace periods of unpinned generations end early, the
/// oldest first, as many as are needed. No pin is evicted for room.
///
/// Where all of that would not do, nothing goes before its time, neither for room nor for a ceiling: there will be no
/// new generation to make way for.
pub fn plan_for_room(
    candidates: &[Candidate<'_>],
    gains: &[Extent],
    lack: Extent,
    options: &Options,
    reserved: Reserved,
    now: &Now,
) -> Plan {
    let due = by_ages(candidates, options, now);
    let mut whys = due.clone();
    keep_ceilings(candidates, &mut whys, options, reserved);
    let is_enough = |whys: &[RetentionReason]| {
        let gone = whys.iter().zip(gains).filter(|(why, _)| !why.keeps()).map(|(_, gain)| *gain);
        gone.sum::<Extent>().covers(lack)
    };
    for (at, pinned) in eviction_order(candidates, &whys) {
        if pinned || is_enough(&whys) {
            break;
        }
        whys[at] = RetentionReason::NoRoom;
    }
    plan_of(candidates, if is_enough(&whys) { whys } else { due })
}

fn plan_of(candidates: &[Candidate<'_>], whys: Vec<RetentionReason>) -> Plan {
    let decisions = candidates.iter().zip(whys).map(|(candidate, why)| GenerationDecision {
        name: candidate.record.name.clone(),
        keep: why.keeps(),
        pinned: candidate.pinned,
        evicts: !why.keeps() && candidate.pinned,
        early: why.is_early(),
        reason: why.to_string(),
        again_in: match why {
            RetentionReason::InGrace(left) | RetentionReason::Pinned(left) => Some(left),
            _ => None,
        },
    });
    Plan { decisions: decisions.collect() }
}

fn by_ages(candidates: &[Candidate<'_>], options: &Options, now: &Now) -> Vec<RetentionReason> {
    candidates.iter().map(|candidate| by_age(candidate, options, now)).collect()
}

/// Sends off whatever a ceiling has no place for.
fn keep_ceilings(
    candidates: &[Candidate<'_>],
    whys: &mut [RetentionReason],
    options: &Options,
    reserved: Reserved,
) {
    for (at, pinned) in eviction_order(candidates, whys) {
        let kept = || candidates.iter().zip(&*whys).filter(|(_, why)| why.keeps());
        let generations = kept().count() + reserved.generations as usize;
        let bytes = kept().fold(reserved.bytes, |sum, (candidate, _)| sum.saturating_add(candidate.bytes));
        whys[at] = if generations > options.max_generations as usize {
            RetentionReason::OverGenerations { pinned }
        } else if options.max_bytes.is_some_and(|ceiling| bytes > ceiling) {
            RetentionReason::OverBytes { pinned }
        } else {
            break;
        };
    }
}

/// What age and pin say, before any ceiling.
fn by_age(candidate: &Candidate<'_>, options: &Options, now: &Now) -> RetentionReason {
    if candidate.current {
        return RetentionReason::Current;
    }
    let age = candidate.record.retired.as_ref().map_or(Duration::ZERO, |retired| age(retired, now));
    match (options.grace.checked_sub(age), options.max_pin.checked_sub(age)) {
        (Some(left), _) if !left.is_zero() => RetentionReason::InGrace(left),
        (_, Some(left)) if candidate.pinned && !left.is_zero() => RetentionReason::Pinned(left),
        _ if candidate.pinned => RetentionReason::PastMaxPin,
        _ => RetentionReason::PastGrace,
    }
}

/// Who goes first where a ceiling is exceeded, and whether that evicts a reader.
fn eviction_order(candidates: &[Candidate<'_>], whys: &[RetentionReason]) -> Vec<(usize, bool)> {
    let mut order: Vec<(usize, bool)> = (0..candidates.len())
        .filter(|&at| whys[at].keeps() && whys[at] != RetentionReason::Current)
        .map(|at| (at, candidates[at].pinned))
        .collect();
    order.sort_by_key(|&(at, pinned)| (pinned, candidates[at].record.order()));
    order
}

/// How long ago a generation stopped being current, never more than it really is. Within one boot the boot clock
/// tells, which cannot be set. What was retired in another boot is at least as old as this boot; the wall clock would
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

    fn record(number: usize, bytes: u64, retired: Option<Retired>) -> GenerationRecord {
        GenerationRecord {
            name: Name::parse(&format!("..2026_11_20_15_04_05.{number:09}")).unwrap(),
            sources: Default::default(),
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

    fn decision_at(seconds: u64, pinned: bool, options: &Options) -> GenerationDecision {
        let record = record(1, 10, Some(retired(1000)));
        let candidate = Candidate { record: &record, bytes: 10, current: false, pinned };
        plan(&[candidate], options, Reserved::default(), &now(seconds)).decisions.remove(0)
    }

    #[test]
    fn a_retired_generation_stays_for_its_grace_period_and_not_longer() {
        let last = decision_at(1029, false, &generous());
        assert!(last.keep);
        assert_eq!(last.reason, "in its grace period for another 1s");
        assert_eq!(last.again_in, Some(Duration::from_secs(1)));
        assert!(!decision_at(1030, false, &generous()).keep);
    }

    #[test]
    fn a_pin_holds_a_generation_up_to_max_pin() {
        assert_eq!(decision_at(1030, true, &generous()).reason, "pinned (for another 9m 30s at most)");
        assert!(decision_at(1599, true, &generous()).keep);
        let evicted = decision_at(1600, true, &generous());
        assert!(!evicted.keep && evicted.evicts);
    }

    #[test]
    fn a_grace_of_zero_reaps_at_once_but_for_pins() {
        let options = Options { grace: Duration::ZERO, ..generous() };
        assert!(!decision_at(1000, false, &options).keep);
        assert!(decision_at(1000, true, &options).keep);
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
        let records: Vec<GenerationRecord> =
            (0..4).map(|n| record(n, 10, (n < 3).then(|| retired(1000)))).collect();
        let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
            .map(|(n, record)| Candidate { record, bytes: 10, current: n == 3, pinned: n == 0 })
            .collect();
        let kept = |max_generations, reserved| {
            let options = Options { max_generations, ..generous() };
            let plan = plan(&candidates, &options, Reserved { generations: reserved, bytes: 0 }, &now(1001));
            plan.decisions.iter().map(|decision| decision.keep).collect::<Vec<_>>()
        };
        assert_eq!(kept(4, 0), [true, true, true, true]);
        assert_eq!(kept(4, 1), [true, false, true, true], "the oldest unpinned one makes room");
        assert_eq!(kept(2, 0), [true, false, false, true]);
        assert_eq!(kept(1, 1), [false, false, false, true], "the current one stays over any ceiling");
    }

    /// What goes of generations that give back 10 bytes and an inode each, the last one current, the first one pinned.
    fn goes_for_room(generations: usize, lack: Extent, options: &Options) -> Vec<(usize, String)> {
        let last = generations - 1;
        let retire = |n| (n < last).then(|| retired(1000));
        let records: Vec<GenerationRecord> = (0..generations).map(|n| record(n, 10, retire(n))).collect();
        let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
            .map(|(n, record)| Candidate { record, bytes: 10, current: n == last, pinned: n == 0 })
            .collect();
        let gains = vec![Extent { bytes: 10, inodes: 1 }; generations];
        let reserved = Reserved { generations: 1, bytes: 10 };
        let plan = plan_for_room(&candidates, &gains, lack, options, reserved, &now(1001));
        let decisions = plan.decisions.into_iter().enumerate().filter(|(_, decision)| !decision.keep);
        decisions.map(|(at, decision)| (at, decision.reason)).collect()
    }

    #[test]
    fn grace_periods_end_for_room_only_as_far_as_needed_and_not_in_vain() {
        let goes = |bytes, inodes| {
            let all = goes_for_room(5, Extent { bytes, inodes }, &generous());
            all.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(goes(0, 0), [0; 0]);
        assert_eq!(goes(1, 0), [1], "the oldest that is not pinned");
        assert_eq!(goes(10, 2), [1, 2]);
        assert_eq!(goes(30, 3), [1, 2, 3]);
        assert_eq!(goes(31, 0), [0; 0], "all of them would not do, and who pins is not evicted");
        assert_eq!(goes(0, 4), [0; 0]);
        let said = goes_for_room(3, Extent { bytes: 1, inodes: 1 }, &generous());
        assert_eq!(said, [(1, "in the way of a new generation, for which there is no room".to_owned())]);
    }

    #[test]
    fn no_ceiling_ends_anything_for_a_generation_that_has_no_room() {
        for options in
            [Options { max_generations: 1, ..generous() }, Options { max_bytes: Some(20), ..generous() }]
        {
            let goes = |bytes| goes_for_room(4, Extent { bytes, inodes: 0 }, &options).len();
            assert_eq!((goes(0), goes(30), goes(31)), (3, 3, 0), "what a ceiling sends off gives room, too");
        }
    }

    #[test]
    fn sizes_that_no_disk_has_are_over_a_ceiling() {
        let records: Vec<_> = (0..3).map(|n| record(n, 10, (n < 2).then(|| retired(1000)))).collect();
        let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
            .map(|(n, record)| Candidate { record, bytes: u64::MAX, current: n == 2, pinned: false })
            .collect();
        let options = Options { max_bytes: Some(100), ..generous() };
        let plan = plan(&candidates, &options, Reserved { generations: 1, bytes: u64::MAX }, &now(1001));
        assert_eq!(plan.reaped().count(), 2);
    }

    /// The rules once more, written as sets: what must hold of any plan.
    fn check(records: &[(GenerationRecord, bool, bool)], options: &Options, reserved: Reserved, now: &Now) {
        let candidates: Vec<_> = (records.iter())
            .map(|(record, current, pinned)| Candidate {
                record,
                bytes: record.bytes,
                current: *current,
                pinned: *pinned,
            })
            .collect();
        let plan = plan(&candidates, options, reserved, now);
        assert_eq!(plan.decisions.len(), candidates.len());
        let all = || candidates.iter().zip(&plan.decisions);
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
        for (candidate, decision) in all() {
            assert!(decision.keep || !candidate.current, "the current generation was to be reaped");
            assert!(!decision.keep || stays(candidate), "kept without a reason: {decision:?}");
            assert_eq!(decision.evicts, !decision.keep && candidate.pinned);
            assert_eq!(decision.again_in.is_some(), decision.keep && !candidate.current);
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
