//! Retention: which generations to keep, which to reap, and why. A pure function from generations, pins and the time to
//! a plan with reasons; [`crate::store`] carries the plan out.
//!
//! A retired generation stays for its grace period, and while a reader pins it, for at most [`Options::max_pin`]. Two
//! ceilings take precedence: the number of generations and their bytes. If a ceiling is exceeded, grace periods of
//! unpinned generations end early, oldest first; if that is not enough, pinned generations are evicted, oldest first.
//! The current generation always stays, even if it exceeds a ceiling on its own.
//!
//! If the file system has no room for a new generation, grace periods also end early, but only if that makes enough
//! room. No pin is evicted for room.

use std::fmt;
use std::time::Duration;

use crate::clock::Now;
use crate::generation::{GenerationRecord, Name, Retired, bytes_on_disk};

/// When retired generations are reaped.
#[derive(Clone, Debug)]
pub struct Options {
    /// The grace period: how long a generation is kept after it stopped being current.
    pub grace: Duration,
    /// The longest time a pin keeps a generation after it stopped being current.
    pub max_pin: Duration,
    /// The largest number of generations to keep, including the current one.
    pub max_generations: u32,
    /// The most bytes on disk for all generations, including the current one and the spare. `None`: no ceiling.
    pub max_bytes: Option<u64>,
}

/// One generation and its state at this moment.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its record.
    pub record: &'a GenerationRecord,
    /// True if the published link names it.
    pub current: bool,
    /// True if a reader holds a pin on it right now.
    pub pinned: bool,
}

/// Usage that counts against the ceilings in addition to the candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// Number of generations: one if a generation is about to be written.
    pub generations: u32,
    /// Bytes on disk of the spare and of the generation that is about to be written.
    pub bytes: u64,
    /// Block size of the file system in bytes, used to estimate the candidates' size on disk.
    pub block: u64,
}

/// What to do with one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationDecision {
    /// The generation.
    pub name: Name,
    /// True to keep it, false to reap it.
    pub keep: bool,
    /// True if a reader holds a pin on it.
    pub pinned: bool,
    /// True if it is reaped although a reader still holds a pin.
    pub evicts: bool,
    /// True if it is reaped before its grace period or pin ends, for a ceiling or for room.
    pub early: bool,
    /// The reason, in words that follow "because it is".
    pub reason: String,
    /// Time from now until the decision may change without any event. `None` if it cannot.
    pub next_change_in: Option<Duration>,
}

/// The plan: one decision for each generation, in the order given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The decisions.
    pub decisions: Vec<GenerationDecision>,
}

impl Plan {
    /// The generations to reap.
    pub fn reaped(&self) -> impl Iterator<Item = &GenerationDecision> {
        self.decisions.iter().filter(|decision| !decision.keep)
    }

    /// Time from now until the first decision may change without any event. `None` if none can.
    pub fn next_change_in(&self) -> Option<Duration> {
        self.decisions.iter().filter_map(|decision| decision.next_change_in).min()
    }
}

/// Why a generation is kept or reaped.
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
        let status = |pinned: &bool| if *pinned { "pinned" } else { "in its grace period" };
        match self {
            Self::Current => f.write_str("current"),
            Self::InGrace(left) => write!(f, "in its grace period for another {}", Seconds(*left)),
            Self::Pinned(left) => write!(f, "pinned (for another {} at most)", Seconds(*left)),
            Self::PastGrace => f.write_str("past its grace period and not pinned"),
            Self::PastMaxPin => f.write_str("pinned for longer than --max-pin allows"),
            Self::OverGenerations { pinned } => {
                write!(f, "{}, and --max-generations is exceeded", status(pinned))
            }
            Self::OverBytes { pinned } => write!(f, "{}, and --max-bytes is exceeded", status(pinned)),
            Self::NoRoom => f.write_str("reaped to make room for a new generation"),
        }
    }
}

/// A duration in whole seconds, rounded up, so that time that is left is never shown as "0s".
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

/// Decides which generations to keep.
pub fn plan(candidates: &[Candidate<'_>], options: &Options, reserved: Reserved, now: &Now) -> Plan {
    let mut reasons = by_ages(candidates, options, now);
    enforce_ceilings(candidates, &mut reasons, options, reserved);
    plan_of(candidates, reasons)
}

/// An amount of file system space.
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
    fn sum<I: Iterator<Item = Self>>(extents: I) -> Self {
        extents.fold(Self::default(), |sum, extent| Self {
            bytes: sum.bytes.saturating_add(extent.bytes),
            inodes: sum.inodes.saturating_add(extent.inodes),
        })
    }
}

/// Decides which generations to keep when a new one is about to be written and the file system is short of `lack`.
/// `gains` is the space that reaping each candidate frees once those before it in the [`reaping_order`] are reaped, in
/// the order of `candidates`. Grace periods of unpinned generations end early, oldest first, as many as needed. No pin
/// is evicted for room.
///
/// If that does not free enough, nothing is reaped early, neither for room nor for a ceiling: the new generation
/// cannot be written anyway.
pub fn plan_for_room(
    candidates: &[Candidate<'_>],
    gains: &[Extent],
    lack: Extent,
    options: &Options,
    reserved: Reserved,
    now: &Now,
) -> Plan {
    let by_age_only = by_ages(candidates, options, now);
    let mut reasons = by_age_only.clone();
    enforce_ceilings(candidates, &mut reasons, options, reserved);
    let frees_enough = |reasons: &[RetentionReason]| {
        let reaped = reasons.iter().zip(gains).filter(|(reason, _)| !reason.keeps()).map(|(_, gain)| *gain);
        reaped.sum::<Extent>().covers(lack)
    };
    for (at, pinned) in eviction_order(candidates, &reasons) {
        if pinned || frees_enough(&reasons) {
            break;
        }
        reasons[at] = RetentionReason::NoRoom;
    }
    plan_of(candidates, if frees_enough(&reasons) { reasons } else { by_age_only })
}

/// The order in which candidates are reaped, as their indices: first those that go by their age, then those that may go
/// early, unpinned before pinned, oldest first. Whatever is short, a plan reaps the first ones of this order and no
/// others. The current generation is not in it.
pub fn reaping_order(candidates: &[Candidate<'_>], options: &Options, now: &Now) -> Vec<usize> {
    let reasons = by_ages(candidates, options, now);
    let by_age = (0..candidates.len()).filter(|&at| !reasons[at].keeps());
    let early = eviction_order(candidates, &reasons).into_iter().map(|(at, _)| at);
    by_age.chain(early).collect()
}

fn plan_of(candidates: &[Candidate<'_>], reasons: Vec<RetentionReason>) -> Plan {
    let decisions = candidates.iter().zip(reasons).map(|(candidate, reason)| GenerationDecision {
        name: candidate.record.name.clone(),
        keep: reason.keeps(),
        pinned: candidate.pinned,
        evicts: !reason.keeps() && candidate.pinned,
        early: reason.is_early(),
        reason: reason.to_string(),
        next_change_in: match reason {
            RetentionReason::InGrace(left) | RetentionReason::Pinned(left) => Some(left),
            _ => None,
        },
    });
    Plan { decisions: decisions.collect() }
}

fn by_ages(candidates: &[Candidate<'_>], options: &Options, now: &Now) -> Vec<RetentionReason> {
    candidates.iter().map(|candidate| by_age(candidate, options, now)).collect()
}

/// Marks generations for reaping, in eviction order, until both ceilings hold.
fn enforce_ceilings(
    candidates: &[Candidate<'_>],
    reasons: &mut [RetentionReason],
    options: &Options,
    reserved: Reserved,
) {
    for (at, pinned) in eviction_order(candidates, reasons) {
        let kept = || candidates.iter().zip(&*reasons).filter(|(_, reason)| reason.keeps());
        let generations = kept().count() + reserved.generations as usize;
        let bytes = bytes_on_disk(kept().map(|(candidate, _)| candidate.record), reserved.block);
        let bytes = bytes.saturating_add(reserved.bytes);
        reasons[at] = if generations > options.max_generations as usize {
            RetentionReason::OverGenerations { pinned }
        } else if options.max_bytes.is_some_and(|ceiling| bytes > ceiling) {
            RetentionReason::OverBytes { pinned }
        } else {
            break;
        };
    }
}

/// Decides by age and pin alone, before any ceiling.
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

/// Returns the generations that may be reaped early, in order: unpinned before pinned, oldest first. Each comes with
/// whether it is pinned.
fn eviction_order(candidates: &[Candidate<'_>], reasons: &[RetentionReason]) -> Vec<(usize, bool)> {
    let mut order: Vec<(usize, bool)> = (0..candidates.len())
        .filter(|&at| reasons[at].keeps() && reasons[at] != RetentionReason::Current)
        .map(|at| (at, candidates[at].pinned))
        .collect();
    order.sort_by_key(|&(at, pinned)| (pinned, candidates[at].record.order()));
    order
}

/// Returns how long ago a generation stopped being current; never too much. Within one boot the boot clock is used,
/// which cannot be set. Of a generation that was retired in another boot nothing is known: it may have been another
/// machine, whose boot was long over or still goes on, and the wall clock may be wrong by years. The store records such
/// a generation as retired anew. If a boot id is unknown, the smaller of the age and this boot's is used, which holds
/// on one machine.
pub fn age(retired: &Retired, now: &Now) -> Duration {
    if retired.is_of_another_boot(now) {
        return Duration::ZERO;
    }
    let since = now.boottime.checked_sub(Duration::from_nanos(retired.boottime_ns));
    if retired.boot_id.is_empty() || now.boot_id.is_empty() {
        since.unwrap_or(now.boottime) // a reading ahead of now can only come from another boot
    } else {
        since.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
