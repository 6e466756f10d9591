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
use crate::generation::{GenerationRecord, Name, Retired, bytes_on_disk};

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
    /// Bytes of a block of the file system, by which the candidates' own are known.
    pub block: u64,
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
        let bytes = bytes_on_disk(kept().map(|(candidate, _)| candidate.record), reserved.block);
        let bytes = bytes.saturating_add(reserved.bytes);
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
mod tests;
