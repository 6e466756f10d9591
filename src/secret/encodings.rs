// The encodings in which servers, proxies, libraries and people write a text. For tests only: the unit tests of this
// module and `tests/canary` include this file. It shares no code with the decoders in `readings`, so that a mistake
// there does not hide itself.

/// A name and the function that encodes.
pub type Encoding = (&'static str, fn(&[u8]) -> String);

fn each(text: &[u8], write: impl Fn(u8) -> String) -> String {
    text.iter().map(|byte| write(*byte)).collect()
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn chars(text: &[u8], write: impl Fn(char) -> String) -> String {
    lossy(text).chars().map(write).collect()
}

fn utf16(text: &[u8], write: impl Fn(u16) -> String) -> String {
    lossy(text).encode_utf16().map(write).collect()
}

fn percent(text: &[u8]) -> String {
    each(text, |b| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    })
}

fn every_percent(text: &[u8]) -> String {
    each(text, |b| format!("%{b:02X}"))
}

/// As Go's encoding/json does it.
fn go_json(text: &[u8]) -> String {
    chars(text, |c| match c {
        '&' | '<' | '>' | '\u{2028}' => format!("\\u{:04x}", u32::from(c)),
        '"' | '\\' => format!("\\{c}"),
        c => c.to_string(),
    })
}

fn html(text: &[u8]) -> String {
    chars(text, |c| match c {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        '"' => "&quot;".into(),
        '\'' => "&#39;".into(),
        '/' => "&sol;".into(),
        '%' => "&percnt;".into(),
        c => c.to_string(),
    })
}

fn base(text: &[u8], alphabet: &[u8], bits: u32) -> String {
    let mut held = 0u32;
    let mut count = 0;
    let mut written = String::new();
    for byte in text {
        held = (held << 8 | u32::from(*byte)) & 0xffff;
        count += 8;
        while count >= bits {
            count -= bits;
            written.push(char::from(alphabet[(held >> count) as usize & ((1 << bits) - 1)]));
        }
    }
    if count > 0 {
        written.push(char::from(alphabet[(held << (bits - count)) as usize & ((1 << bits) - 1)]));
    }
    written
}

const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE64_URL: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const BASE32: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base64(text: &[u8]) -> String {
    base(text, BASE64, 6)
}

fn behind(text: &[u8], before: &str, encode: fn(&[u8]) -> String) -> String {
    encode(&[before.as_bytes(), text].concat())
}

fn spread(text: &[u8], between: &str) -> String {
    chars(text, |c| format!("{c}{between}"))
}

pub const ENCODINGS: &[Encoding] = &[
    ("as it is", lossy),
    ("upper case", |text| lossy(text).to_ascii_uppercase()),
    ("lower case", |text| lossy(text).to_ascii_lowercase()),
    ("JSON as Go writes it", go_json),
    ("JSON in JSON", |text| go_json(go_json(text).as_bytes())),
    ("every character as \\u", |text| utf16(text, |c| format!("\\u{c:04x}"))),
    ("every character as \\u, upper case", |text| utf16(text, |c| format!("\\u{c:04X}"))),
    ("every \\u escaped once more", |text| utf16(text, |c| format!("\\\\u{c:04x}"))),
    ("every character as \\u{}", |text| chars(text, |c| c.escape_unicode().to_string())),
    ("every byte as \\x", |text| each(text, |b| format!("\\x{b:02x}"))),
    ("every byte as octal", |text| each(text, |b| format!("\\{b:03o}"))),
    ("a backslash before every sign", |text| {
        chars(text, |c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\{c}") })
    }),
    ("decimal entities", |text| chars(text, |c| format!("&#{};", u32::from(c)))),
    ("hexadecimal entities", |text| chars(text, |c| format!("&#x{:X};", u32::from(c)))),
    ("HTML", html),
    ("HTML twice", |text| html(html(text).as_bytes())),
    ("HTML in JSON", |text| go_json(html(text).as_bytes())),
    ("percent", percent),
    ("percent twice", |text| percent(percent(text).as_bytes())),
    ("percent five times", |text| (0..5).fold(lossy(text), |text, _| percent(text.as_bytes()))),
    ("every byte as percent", every_percent),
    ("every byte as percent, lower case", |text| each(text, |b| format!("%{b:02x}"))),
    ("every byte as percent, twice", |text| percent(every_percent(text).as_bytes())),
    ("every byte as percent, thrice", |text| percent(percent(every_percent(text).as_bytes()).as_bytes())),
    ("every character as %u", |text| utf16(text, |c| format!("%u{c:04X}"))),
    ("a query string", |text| percent(text).replace("%20", "+")),
    ("hexadecimal", |text| each(text, |b| format!("{b:02x}"))),
    ("hexadecimal, upper case", |text| each(text, |b| format!("{b:02X}"))),
    ("hexadecimal with blanks", |text| each(text, |b| format!("{b:02x} "))),
    ("hexadecimal with colons", |text| each(text, |b| format!("{b:02X}:"))),
    ("hexadecimal as in C", |text| each(text, |b| format!("0x{b:02x}, "))),
    ("decimal bytes as Go writes them", |text| format!("[{}]", each(text, |b| format!("{b} ")))),
    ("decimal bytes as Rust writes them", |text| format!("[{}]", each(text, |b| format!("{b}, ")))),
    ("decimal bytes, one a line", |text| each(text, |b| format!("\n{b}")) + "\n"),
    ("base64", base64),
    ("base64 behind one byte", |text| behind(text, "x", base64)),
    ("base64 behind a user name", |text| behind(text, "otheruser:", base64)),
    ("base64 behind two bytes", |text| behind(text, "ab", base64)),
    ("base64url", |text| base(text, BASE64_URL, 6)),
    ("base64 of JSON", |text| behind(go_json(text).as_bytes(), "{\"password\":\"", base64)),
    ("base64 of every byte as percent", |text| base64(every_percent(text).as_bytes())),
    ("base64 twice", |text| base64(base64(text).as_bytes())),
    ("base64 of hexadecimal", |text| base64(each(text, |b| format!("{b:02x}")).as_bytes())),
    ("base64 in a URL", |text| percent(base64(text).as_bytes())),
    ("base64 in lines", |text| base64(text).as_bytes().chunks(7).map(|line| lossy(line) + "\n").collect()),
    ("base32", |text| base(text, BASE32, 5)),
    ("base32, lower case", |text| base(text, BASE32, 5).to_lowercase()),
    ("base32 behind three bytes, lower case", |text| {
        behind(text, "abc", |text| base(text, BASE32, 5)).to_lowercase()
    }),
    ("NUL between characters", |text| spread(text, "\0")),
    ("an escaped NUL between characters", |text| spread(text, "\\u0000")),
    ("NUL as percent between characters", |text| spread(text, "%00")),
    ("a line end between characters", |text| spread(text, "\r\n")),
    ("blanks and backspaces between characters", |text| spread(text, " \u{8}")),
    ("zero width between characters", |text| spread(text, "\u{200b}")),
    ("zero width as an entity between characters", |text| spread(text, "&#8203;")),
    ("a soft hyphen between characters", |text| spread(text, "\u{ad}")),
    ("an accent over each character", |text| spread(text, "\u{301}")),
    ("blanks between characters", |text| spread(text, " ")),
    ("signs between characters", |text| spread(text, "-")),
];

/// The texts that reveal a part of a secret: all encodings of every six characters of it, with repeated backslashes
/// [`collapsed`]. In a base (base64 and the like) ten characters are needed, because the digits at either end also
/// depend on the neighbouring bytes.
pub fn traces(secret: &[u8]) -> Vec<String> {
    let all = ENCODINGS.iter();
    let all =
        all.filter(|(name, _)| !["behind", "in lines", "of JSON"].iter().any(|part| name.contains(part)));
    let found = all.flat_map(|(name, encode)| {
        let is_base = name.contains("base");
        let parts = secret.windows(if is_base { 10 } else { 6 });
        // `trace` must not trim any of the six characters.
        let is_whole = |part: &[u8]| {
            [part.first(), part.last()].iter().all(|end| end.is_some_and(|end| !is_trimmed(char::from(*end))))
        };
        let parts = parts.filter(move |part| is_whole(part) && std::str::from_utf8(part).is_ok());
        parts.flat_map(move |part| if is_base { in_base(part, *encode) } else { vec![trace(part, *encode)] })
    });
    found.filter(|trace| trace.len() >= 6).collect()
}

fn trace(part: &[u8], encode: fn(&[u8]) -> String) -> String {
    let written = collapsed(&encode(part));
    written.trim_matches(is_trimmed).to_owned()
}

/// Characters that encoders put around or between digits.
fn is_trimmed(c: char) -> bool {
    " []:,;".contains(c) || c.is_control()
}

/// The digits of a part in a base that do not depend on the neighbouring bytes, after any number of preceding bytes.
fn in_base(part: &[u8], encode: fn(&[u8]) -> String) -> Vec<String> {
    let beside =
        |shift: usize, other: &[u8]| encode(&[&other.repeat(shift), part, &other.repeat(9)].concat());
    let middle = |shift| {
        let one = beside(shift, b"U");
        let other = beside(shift, b"*");
        let same = one.bytes().zip(other.bytes()).map(|(one, other)| if one == other { one } else { 0 });
        let same: Vec<u8> = same.collect();
        same.split(|byte| *byte == 0).max_by_key(|run| run.len()).map(lossy).unwrap_or_default()
    };
    (0..8).map(middle).collect()
}

/// A text with repeated backslashes collapsed to one, because each layer of quoting adds some.
pub fn collapsed(text: &str) -> String {
    let mut text = text.to_owned();
    while text.contains("\\\\") {
        text = text.replace("\\\\", "\\");
    }
    text
}

/// This many consecutive letters and digits of a secret count as a trace, too, whatever is between them.
pub const LETTERS: usize = 8;

/// The letters and digits of a text, in lower case.
pub fn letters_of(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}
