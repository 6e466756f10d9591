//! Quantities and errors as people read them. Programs get numbers, from JSON.

use jiff::Timestamp;

/// A moment, relative to now: `4 min ago`, `in 6 s`.
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - at.as_second();
    let distance = distance(seconds.unsigned_abs());
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{distance} ago"),
        _ => format!("in {distance}"),
    }
}

/// The largest unit that says enough, rounded down.
fn distance(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A duration: `23 ms`, `1.2 s`.
pub fn milliseconds(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{}.{} s", ms / 1_000, ms % 1_000 / 100) }
}

/// A name that may be long, without its middle where it is.
pub fn middle(text: &str) -> String {
    const END: usize = 24;
    let count = text.chars().count();
    if count <= 2 * END {
        return text.to_owned();
    }
    let head: String = text.chars().take(END).collect();
    let tail: String = text.chars().skip(count - END).collect();
    format!("{head}…{tail}")
}

/// A size: `512 B`, `9.9 KiB`, `402 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// An error and what caused it, on one line. A source that the text above it already ends with is not said twice.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = source.source();
    }
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_well() {
        let sizes = [0, 1023, 1024, 10_188, 10_240, 1_048_000, 5 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "9.9 KiB", "10 KiB", "1.0 MiB", "5.0 GiB"]);
        assert_eq!([3, 119, 120, 7_300, 200_000].map(distance), ["3 s", "119 s", "2 min", "2 h", "2 days"]);
        assert_eq!(middle(&"a".repeat(48)).len(), 48);
        assert_eq!(
            middle(&format!("{}ä{}", "a".repeat(24), "b".repeat(24))),
            format!("{}…{}", "a".repeat(24), "b".repeat(24))
        );
        assert_eq!([7, 1_250].map(milliseconds), ["7 ms", "1.2 s"]);
        let now = Timestamp::from_second(1_000).unwrap();
        let moments = [1_000, 700, 1_006].map(|at| relative(Timestamp::from_second(at).unwrap(), now));
        assert_eq!(moments, ["now", "5 min ago", "in 6 s"]);
    }
}
