//! Classes of errors, exponential backoff, jitter, and the delay that a server asks for. Pure: the random number and the
//! time are arguments.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::tz::TimeZone;

/// What a failure needs to go away; a label value of `treeswap_errors_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorClass {
    /// It may go away by itself.
    Transient,
    /// It took longer than one of the limits. It may go away by itself.
    Timeout,
    /// An operator has to act.
    Permanent,
    /// The commit itself is refused: only another one helps.
    Refused,
}

impl ErrorClass {
    /// The class of an error that is neither a timeout nor a refusal.
    pub fn of(is_transient: bool) -> Self {
        if is_transient { Self::Transient } else { Self::Permanent }
    }

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Timeout => "timeout",
            Self::Permanent => "permanent",
            Self::Refused => "refused",
        }
    }

    /// Returns true if it may go away without an operator.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Transient | Self::Timeout)
    }
}

/// Delays that double from `first` up to `ceiling`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay.
    pub ceiling: Duration,
}

impl Backoff {
    /// The delay after this many consecutive failures.
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31); // 2^31 times any useful `first` is beyond every ceiling
        self.first.saturating_mul(1 << doublings).min(self.ceiling)
    }
}

/// Lengthens or shortens a delay by up to `fraction` of itself, so that instances that started together drift apart.
/// `random` is uniform in 0..1: 0 gives the shortest delay, 1 the longest.
pub fn jittered(wait: Duration, fraction: f64, random: f64) -> Duration {
    let factor = 1.0 + fraction.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0);
    Duration::try_from_secs_f64(wait.as_secs_f64() * factor).unwrap_or(wait)
}

/// Parses the value of `Retry-After`: seconds, or an HTTP date in any of its three formats (RFC 9110, 10.2.3 and 5.6.7).
/// A date in the past is zero. Returns `None` for anything else.
pub fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let obsolete = |format| DateTime::strptime(format, value)?.to_zoned(TimeZone::UTC);
    let date = DateTimeParser::new()
        .parse_timestamp(value)
        .or_else(|_| obsolete("%A, %d-%b-%y %H:%M:%S GMT").map(|date| date.timestamp()))
        .or_else(|_| obsolete("%a %b %e %H:%M:%S %Y").map(|date| date.timestamp()))
        .ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

/// A random number in 0..1 for [`jittered`]. Good enough to spread load, not for secrets.
pub fn random_fraction() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    // Every RandomState has a different key; the standard library seeds them from the kernel once per thread.
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64 // 53 bits are what a double's mantissa holds
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_backoff_doubles_up_to_its_ceiling() {
        let backoff = Backoff { first: S(10), ceiling: S(100) };
        let waits: Vec<u64> = (0..8).map(|failures| backoff.delay(failures).as_secs()).collect();
        assert_eq!(waits, [10, 10, 20, 40, 80, 100, 100, 100]);
        assert_eq!(backoff.delay(u32::MAX), S(100));
    }

    #[test]
    fn jitter_stays_within_its_fraction() {
        assert_eq!(jittered(S(10), 0.1, 0.0), S(9));
        assert_eq!(jittered(S(10), 0.1, 0.5), S(10));
        assert_eq!(jittered(S(10), 0.1, 1.0), S(11));
        assert_eq!(jittered(S(10), 0.0, 1.0), S(10));
        assert_eq!(jittered(Duration::MAX, 0.5, 1.0), Duration::MAX);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = "2026-11-06T20:00:00Z".parse().unwrap();
        assert_eq!(retry_after("7", now), Some(S(7)));
        assert_eq!(retry_after(" 7 ", now), Some(S(7)));
        assert_eq!(retry_after("Fri, 06 Nov 2026 20:01:30 GMT", now), Some(S(90)));
        assert_eq!(retry_after("Friday, 06-Nov-26 20:01:30 GMT", now), Some(S(90)));
        assert_eq!(retry_after("Fri Nov  6 20:01:30 2026", now), Some(S(90)));
        assert_eq!(retry_after("Fri Nov 13 20:00:00 2026", now), Some(S(7 * 24 * 3600)));
        assert_eq!(retry_after("Fri, 06 Nov 2026 19:00:00 GMT", now), Some(S(0)));
        for wrong in ["", "soon", "-1", "1.5", "2026-11-06T20:01:30Z"] {
            assert_eq!(retry_after(wrong, now), None, "{wrong}");
        }
    }

    #[test]
    fn random_fractions_are_spread_over_their_range() {
        let mut tenths = [0u32; 10];
        for _ in 0..1_000 {
            let random = random_fraction();
            assert!((0.0..1.0).contains(&random), "{random}");
            tenths[(random * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|&count| count > 30), "{tenths:?}");
    }
}
