//! The time limit of an attempt at several sources.

use std::time::Duration;

/// The time limit of an attempt, and what an operator sets it by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttemptLimit {
    /// The time.
    pub time: Duration,
    /// Which part of the flag's value that is, as words before the flag ("a quarter of "); empty for all of it.
    pub part: &'static str,
    /// The flag.
    pub flag: &'static str,
}

impl AttemptLimit {
    /// The limit that `--sync-timeout` sets.
    pub fn sync_timeout(time: Duration) -> Self {
        Self { time, part: "", flag: "--sync-timeout" }
    }

    /// The shorter one of two limits.
    #[must_use]
    pub fn shorter(self, other: Self) -> Self {
        if other.time < self.time { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_limit_counts_and_is_named() {
        let limit = AttemptLimit::sync_timeout(Duration::from_secs(120));
        let quarter = |seconds| AttemptLimit {
            time: Duration::from_secs(seconds),
            part: "a quarter of ",
            flag: "--timeout",
        };
        assert_eq!(limit.shorter(quarter(225)), limit);
        assert_eq!(limit.shorter(quarter(15)), quarter(15));
    }
}
