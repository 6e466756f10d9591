//! Parses single values: durations, booleans and integers in Go's syntax, as git-sync does, and byte counts with
//! Kubernetes' units (whole numbers only). Each error says which values are valid.

use std::path::PathBuf;
use std::time::Duration;

use crate::shutdown::SYNC_SIGNALS;

/// git-sync's lower bound for periods and timeouts; a shorter one is most likely a typo.
pub(super) const MIN_PERIOD: Duration = Duration::from_millis(10);

/// The longest duration: a century is more than anyone needs, and small enough that adding it to a point in time never
/// overflows.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Units of time and their length in seconds. Go has all of them except `min` and `d`.
pub(super) const TIMES: [(&str, f64); 10] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6), // the micro sign and the Greek letter, as in Go
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3_600.0),
    ("d", 86_400.0),
];

/// Units of bytes and their size.
pub(super) const SIZES: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// The words for true and for false, as in Go.
pub(super) const BOOLEANS: [[&str; 6]; 2] =
    [["1", "t", "T", "true", "TRUE", "True"], ["0", "f", "F", "false", "FALSE", "False"]];

/// Parses a duration in the syntax of Go's `time.ParseDuration` (`300ms`, `1.5h`, `2m30s`, `0`), plus `min` for `m`
/// and `d` for 24 hours. Negative durations and those above [`MAX_DURATION`] are refused.
pub fn duration(text: &str) -> Result<Duration, String> {
    let found = any_duration(text)?;
    if found > MAX_DURATION { Err(too_long()) } else { Ok(found) }
}

fn too_long() -> String {
    format!("it is longer than a century ({})", print_duration(MAX_DURATION))
}

/// Like [`duration`], without the upper bound.
pub(super) fn any_duration(text: &str) -> Result<Duration, String> {
    const WANTED: &str = "a duration is a number with a unit: 300ms, 10s, 5m, 1.5h, 2m30s, 1d";
    const UNITS: &str = "write 300ms, 10s, 5m, 2m30s, 1.5h or 1d";
    if text.starts_with('-') {
        return Err(format!("a duration cannot be negative: {UNITS}"));
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(WANTED.into());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(WANTED)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let unit_seconds = match TIMES.iter().find(|(known, _)| *known == unit) {
            Some((_, seconds)) => seconds,
            None if unit.is_empty() => return Err(WANTED.into()),
            None => return Err(format!("{} is not a unit of time: {UNITS}", unit.trim().escape_debug())),
        };
        let number: f64 = number.parse().map_err(|_| WANTED)?;
        let part = Duration::try_from_secs_f64(number * unit_seconds).map_err(|_| too_long())?;
        total = total.checked_add(part).ok_or_else(too_long)?;
        rest = next;
    }
    Ok(total)
}

/// Parses a timeout: a duration of at least [`MIN_PERIOD`].
pub fn timeout(text: &str) -> Result<Duration, String> {
    let found = duration(text)?;
    if found < MIN_PERIOD {
        return Err(format!("must be at least {}", print_duration(MIN_PERIOD)));
    }
    Ok(found)
}

/// Parses a period that 0 turns off.
pub fn period_or_zero(text: &str) -> Result<Duration, String> {
    if duration(text)?.is_zero() { Ok(Duration::ZERO) } else { timeout(text) }
}

/// Formats a duration so that [`duration`] parses it back.
pub fn print_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    match (seconds, nanos) {
        (0, 0) => "0s".into(),
        (0, nanos) if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        (_, 0) => {
            let hours = seconds / 3_600;
            let minutes = seconds / 60 % 60;
            let seconds = seconds % 60;
            let part =
                |count: u64, unit: &str| if count == 0 { String::new() } else { format!("{count}{unit}") };
            format!("{}{}{}", part(hours, "h"), part(minutes, "m"), part(seconds, "s"))
        }
        _ => format!("{}s", duration.as_secs_f64()),
    }
}

/// Parses a boolean in the syntax of Go's `strconv.ParseBool`.
pub fn boolean(text: &str) -> Result<bool, String> {
    let [is_true, is_false] = BOOLEANS.map(|words| words.contains(&text));
    if is_true || is_false { Ok(is_true) } else { Err("must be true or false".into()) }
}

/// Parses a percentage from 0 to 100, written without a percent sign.
pub fn percent(text: &str) -> Result<u8, String> {
    let number = text.parse().ok().filter(|number| *number <= 100);
    number.ok_or_else(|| "must be a whole number from 0 to 100, without a percent sign".into())
}

/// Parses a count of at least 1.
pub fn at_least_one(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("must be a whole number from 1 to {}", u16::MAX))
}

/// Parses a Go integer literal: `12`, `0x10`, `0o7`, `0b1`, `1_000`, `-1`.
pub(super) fn integer(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'0'..=b'9' | b'_', ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // An underscore may only stand between two digits, or between the prefix and the first digit.
    let has_misplaced_underscore =
        digits.ends_with('_') || digits.contains("__") || (radix == 10 && digits.starts_with('_'));
    let digits: String = digits.chars().filter(|&c| c != '_').collect();
    let is_valid = !has_misplaced_underscore && !digits.starts_with(['+', '-']);
    let number = is_valid.then_some(format!("{sign}{digits}"));
    number
        .and_then(|text| i64::from_str_radix(&text, radix).ok())
        .ok_or_else(|| "must be a 64-bit integer such as 12 or 0x10".into())
}

/// Parses a number of bytes: `1048576`, `512Mi`, `2Gi`, `500M`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = SIZES
        .iter()
        .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|number| (number, *unit)))
        .unwrap_or((text, 1));
    let whole = |number: &str| number.replace('_', "").parse::<u64>().ok();
    whole(number)
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "a number of bytes is written like 1048576, 512Mi, 2Gi or 500M".into())
}

/// Parses a fraction from 0 to 1.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("must be a fraction between 0 and 1, such as 0.1".into()),
    }
}

/// Parses the name (`SIGHUP`, `HUP`) or number of a signal that can trigger an attempt; `None` for an empty text.
pub(super) fn signal(text: &str) -> Result<Option<i32>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let found = SYNC_SIGNALS.iter().find(|(known, number)| *known == name || number.to_string() == name);
    found.map(|(_, number)| Some(*number)).ok_or_else(|| {
        let names: Vec<_> = SYNC_SIGNALS.iter().map(|(name, _)| format!("SIG{name}")).collect();
        format!("must be one of {}, or empty for none", names.join(", "))
    })
}

/// The name of a signal that can trigger an attempt; the number of any other signal.
pub fn signal_name(number: i32) -> String {
    let found = SYNC_SIGNALS.iter().find(|(_, known)| *known == number);
    found.map_or_else(|| number.to_string(), |(name, _)| format!("SIG{name}"))
}

/// The text as a path; `None` if it is empty.
pub(super) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let good = [
            ("0", 0),
            ("300ms", 300_000_000),
            ("1.5h", 5_400_000_000_000),
            ("2m30s", 150_000_000_000),
            ("+5s", 5_000_000_000),
            ("1h1m1s1ms1us1ns", 3_661_001_001_001),
            (".5s", 500_000_000),
            ("3µs", 3_000),
            // Go takes neither.
            ("5min", 300_000_000_000),
            ("1d12h", 129_600_000_000_000),
        ];
        for (text, nanos) in good {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "10", "1w", "-5s", "s", "5 s", "1.2.3s", ".", "5sx", "99999999999999h", "1h-5m"] {
            assert!(duration(text).is_err(), "{text:?} was accepted");
        }
        assert_eq!(duration("878400h"), Ok(MAX_DURATION));
        for text in ["999999h", "99999999999999999999h"] {
            assert_eq!(duration(text).unwrap_err(), "it is longer than a century (878400h)", "{text}");
        }
        assert!(any_duration("999999h").unwrap() > MAX_DURATION);
        assert_eq!(
            duration("-5s").unwrap_err(),
            "a duration cannot be negative: write 300ms, 10s, 5m, 2m30s, 1.5h or 1d"
        );
        assert_eq!(
            duration("2weeks").unwrap_err(),
            "weeks is not a unit of time: write 300ms, 10s, 5m, 2m30s, 1.5h or 1d"
        );
    }

    #[test]
    fn durations_are_printed_as_they_are_read() {
        for text in ["0s", "10s", "300ms", "2m30s", "1h30m", "24h", "1.25s"] {
            assert_eq!(print_duration(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn a_timeout_and_a_period_have_a_lower_bound_and_only_a_period_can_be_zero() {
        assert_eq!(timeout("10ms"), period_or_zero("10ms"));
        for text in ["0s", "0", "1ms"] {
            assert_eq!(timeout(text).unwrap_err(), "must be at least 10ms", "{text}");
        }
        assert_eq!(period_or_zero("0s"), Ok(Duration::ZERO));
        assert!(period_or_zero("1ms").is_err() && period_or_zero("soon").is_err());
    }

    #[test]
    fn integers_booleans_bytes_and_fractions_are_strict() {
        for (text, value) in [
            ("12", 12),
            ("-1", -1),
            ("0x10", 16),
            ("0o17", 15),
            ("0b11", 3),
            ("1_000", 1000),
            ("-0x1", -1),
            ("010", 8),
            ("0x_f", 15),
        ] {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        for text in ["", "1.5", "x", "--1", "0x", "-+1", "1 ", "09", "_1", "1_", "1__0"] {
            assert!(integer(text).unwrap_err().contains("such as 12 or 0x10"), "{text:?}");
        }
        assert_eq!((percent("0"), percent("100"), at_least_one("8")), (Ok(0), Ok(100), Ok(8)));
        for text in ["", "50%", "101", "150", "-1", "0.5"] {
            assert!(percent(text).unwrap_err().contains("from 0 to 100"), "{text:?}");
        }
        for text in ["", "0", "-1", "65536"] {
            assert!(at_least_one(text).unwrap_err().contains("from 1 to 65535"), "{text:?}");
        }
        assert!(boolean("yes").is_err() && boolean("").is_err() && boolean("True") == Ok(true));
        assert_eq!((bytes("500M"), bytes("2Gi")), (Ok(500_000_000), Ok(2 << 30)));
        for text in ["", "Gi", "-1", "1.5Gi", "99999999999Ti", "1 Gi"] {
            assert!(bytes(text).is_err(), "{text:?} was accepted");
        }
        assert!(fraction("1.1").is_err() && fraction("NaN").is_err() && fraction("0.1") == Ok(0.1));
    }

    #[test]
    fn only_signals_that_do_not_end_a_process_ask_for_a_sync() {
        assert_eq!(signal("SIGHUP"), Ok(Some(1)));
        assert_eq!(signal("usr1"), Ok(Some(10)));
        assert_eq!(signal("1"), Ok(Some(1)));
        assert_eq!(signal(""), Ok(None));
        for text in ["TERM", "SIGINT", "9", "SIGSTOP", "CHLD", "0", "SIGNOPE"] {
            assert!(signal(text).is_err(), "{text:?} was accepted");
        }
    }
}
