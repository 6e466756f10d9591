//! Formats quantities, times, errors and untrusted text for people. Programs read plain numbers, from JSON.

use jiff::Timestamp;

/// Returns the first 12 characters of a digest or of a revision's hex, or all of the text if it is shorter.
pub fn short(text: &str) -> &str {
    text.get(..12).unwrap_or(text)
}

/// A time relative to now: `4 min ago`, `in 6 s`.
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - at.as_second();
    let distance = distance(seconds.unsigned_abs());
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{distance} ago"),
        _ => format!("in {distance}"),
    }
}

/// A time span in its largest suitable unit, rounded down: seconds up to 119, minutes below 2 hours, hours below 2
/// days.
fn distance(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A number with the word for what it counts: `1 level`, `2 levels`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A duration: `23 ms`, `1.2 s`.
pub fn milliseconds(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{}.{} s", ms / 1_000, ms % 1_000 / 100) }
}

/// A duration as Go prints it, for those who read git-sync's log: `300ms`, `1m30s`, `1h0m0s`.
pub fn go_duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    let millis = duration.as_secs_f64() * 1_000.0;
    let rest = f64::from(u32::try_from(seconds % 60).unwrap_or_default())
        + f64::from(duration.subsec_nanos()) / 1_000_000_000.0;
    match (seconds / 3_600, seconds / 60 % 60, seconds) {
        (0, 0, 0) if duration.is_zero() => "0s".to_owned(),
        (0, 0, 0) => format!("{millis}ms"),
        (0, 0, _) => format!("{rest}s"),
        (0, minutes, _) => format!("{minutes}m{rest}s"),
        (hours, minutes, _) => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Shortens a long name by replacing its middle with an ellipsis; 24 characters stay at each end.
pub fn elide_middle(text: &str) -> String {
    const END: usize = 24;
    let count = text.chars().count();
    if count <= 2 * END {
        return text.to_owned();
    }
    let head: String = text.chars().take(END).collect();
    let tail: String = text.chars().skip(count - END).collect();
    format!("{head}…{tail}")
}

/// Makes untrusted text safe to print on one line: control characters, characters that change the writing direction and
/// invisible characters are replaced, and the text is cut to `most` characters, the last of which is then an ellipsis.
pub fn sanitize(text: &str, most: usize) -> String {
    let shown = |c: char| if is_hidden(c) { char::REPLACEMENT_CHARACTER } else { c };
    let mut text = text.chars().map(shown);
    let mut short: String = text.by_ref().take(most).collect();
    if text.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A time as date and time of day: `2026-11-20 15:04:05 UTC`.
pub fn clock_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A size in bytes, with a binary unit: `512 B`, `9.9 KiB`, `402 MiB`.
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

/// A size that is shown next to another one: if both are different but would read the same, the exact bytes are added.
pub fn bytes_compared(size: u64, other: u64) -> String {
    match bytes(size) {
        text if size != other && size >= 1024 && text == bytes(other) => format!("{text} ({size} bytes)"),
        text => text,
    }
}

/// An error and its causes on one line, joined by `: `. A cause is left out if the text before it already ends with it.
/// What [`sanitize`] replaces is replaced by blanks: a server or a program may have written a part.
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
    text.replace(is_hidden, " ")
}

/// What is wrong with a text that is no valid YAML, from the parser's message: what that says about the parser is said
/// about the text.
pub fn yaml_problem(message: &str) -> &str {
    if message.contains("more than one document") {
        "it has more than one document: write only one, without a line `---` between two"
    } else if message.contains("repetition limit exceeded") {
        "its aliases (*) stand for too much: repetition limit exceeded"
    } else {
        message
    }
}

/// Deepest nesting of brackets in a YAML text. The parser's time grows with the square of the depth.
const YAML_DEPTH_MAX: usize = 250;

/// What is wrong with a YAML text whose brackets nest deeper than 250; `None` if they do not. To be asked before the
/// text is parsed. Counts brackets in quoted text, too.
pub fn yaml_depth_problem(text: &str) -> Option<String> {
    let mut depth = 0_usize;
    let is_deep = text.bytes().any(|byte| {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > YAML_DEPTH_MAX
    });
    is_deep.then(|| format!("brackets are more than {YAML_DEPTH_MAX} deep in each other"))
}

/// The known name with the smallest edit distance to `name`; `None` if none is close enough to be a likely typo.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = known.map(|other| (edits(name, other), other)).min();
    near.filter(|(edits, _)| *edits <= 1 + name.len() / 5).map(|(_, other)| other)
}

/// The Levenshtein distance between two texts, in characters.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// Asserts that an error's message is one readable line and that it has a hint. For the tests of each error enum.
#[cfg(test)]
pub(crate) fn assert_message_style(error: &(dyn std::error::Error + 'static), hints: &[String]) {
    let line = one_line(error);
    for noise in ["class=", "code=", "Some(", "None", "Os {", "Error {", "kind:", "\\\"", "\n", "  "] {
        assert!(!line.contains(noise), "{noise:?} in {line:?}");
        assert!(hints.iter().all(|hint| !hint.contains(noise)), "{noise:?} in {hints:?}");
    }
    assert!(!hints.is_empty(), "nothing says what to do about {line:?}");
    assert!(
        !line.split_whitespace().any(|word| word.len() > 7 && word.bytes().all(|c| c.is_ascii_digit())),
        "{line}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_move_a_cursor_or_grow() {
        assert_eq!(sanitize("plain, ä 漢 🦀", 40), "plain, ä 漢 🦀");
        assert_eq!(sanitize("a\u{1b}[2Jb\nc\u{202e}d\u{200b}e\u{9b}f", 40), "a�[2Jb�c�d�e�f");
        assert_eq!(sanitize("abcdef", 6), "abcdef");
        assert_eq!(sanitize("abcdefg", 6), "abcde…");
        let error = std::io::Error::other("a\u{1b}[2Jb\r\nc\u{9b}d\u{7f}e\0f\u{202e}g");
        assert_eq!(one_line(&error), "a [2Jb  c d e f g");
    }

    #[cfg(feature = "program")] // the parser belongs to it
    #[test]
    fn what_a_parser_says_about_itself_is_said_about_the_text() {
        let problem = |text: &str| {
            let error = serde_yaml::from_str::<serde_yaml::Value>(text).unwrap_err().to_string();
            yaml_problem(&error).to_owned()
        };
        let mut aliases = format!("a0: &a0 [{}]\n", ["x"; 10].join(","));
        for level in 1..8 {
            aliases += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(","));
        }
        assert!(problem("a: 1\n---\nb: 1\n").starts_with("it has more than one document"));
        assert!(problem(&aliases).starts_with("its aliases (*) stand for too much"));
        assert!(problem("a: [").contains("line"), "others stay");
    }

    #[test]
    fn durations_are_as_go_prints_them() {
        let shown = |ms| go_duration(std::time::Duration::from_millis(ms));
        let shown = [0, 10, 1_000, 1_500, 30_000, 90_000, 3_600_000, 5_025_250].map(shown);
        assert_eq!(shown, ["0s", "10ms", "1s", "1.5s", "30s", "1m30s", "1h0m0s", "1h23m45.25s"]);
    }

    #[test]
    fn quantities_read_well() {
        let sizes = [0, 1023, 1024, 10_188, 10_240, 1_048_000, 5 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "9.9 KiB", "10 KiB", "1.0 MiB", "5.0 GiB"]);
        assert_eq!(bytes_compared((64 << 20) + 1, 64 << 20), "64 MiB (67108865 bytes)");
        assert_eq!([bytes_compared(3 << 20, 64 << 20), bytes_compared(7, 7)], ["3.0 MiB", "7 B"]);
        assert_eq!([3, 119, 120, 7_300, 200_000].map(distance), ["3 s", "119 s", "2 min", "2 h", "2 days"]);
        assert_eq!(elide_middle(&"a".repeat(48)).len(), 48);
        assert_eq!(
            elide_middle(&format!("{}ä{}", "a".repeat(24), "b".repeat(24))),
            format!("{}…{}", "a".repeat(24), "b".repeat(24))
        );
        assert_eq!([7, 1_250].map(milliseconds), ["7 ms", "1.2 s"]);
        let now = Timestamp::from_second(1_000).unwrap();
        let moments = [1_000, 700, 1_006].map(|at| relative(Timestamp::from_second(at).unwrap(), now));
        assert_eq!(moments, ["now", "5 min ago", "in 6 s"]);
    }
}
