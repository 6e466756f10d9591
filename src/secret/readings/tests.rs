use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn bytes(text: &[u8]) -> Vec<Byte> {
    text.iter().zip(0..).map(|(value, at)| Byte { value: *value, from: at, to: at + 1 }).collect()
}

fn text_of(reading: &[Byte]) -> String {
    let values: Vec<u8> = reading.iter().map(|byte| byte.value).collect();
    String::from_utf8_lossy(&values).into_owned()
}

/// Each byte with the range that it was read from.
fn ranges(reading: &[Byte]) -> Vec<(u8, usize, usize)> {
    reading.iter().map(|byte| (byte.value, byte.from, byte.to)).collect()
}

fn readings_of(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    visit_readings(text.as_bytes(), false, &mut |reading| all.push(text_of(reading)));
    all
}

#[test]
fn one_layer_of_escapes_is_undone() {
    for (text, plain) in [
        ("%41b", "Ab"),
        ("%2541b", "Ab"),
        ("%252541b", "Ab"),
        ("%u0041b", "Ab"),
        ("%25u0041b", "Ab"),
        ("%u00", "%u00"),
        ("%25zz", "%zz"),
        ("%zz", "%zz"),
        (r"\u0041b", "Ab"),
        (r"\\u0041b", "Ab"),
        (r"\U00000041b", "Ab"),
        (r"\u{41}b", "Ab"),
        (r"\x{41}b", "Ab"),
        (r"\u{1f511}b", "🔑b"),
        (r"\ud83d\udd11b", "🔑b"),
        (r"\\ud83d\\udd11b", "🔑b"),
        (r"\ud83dudd11b", "\u{fffd}udd11b"),
        (r"\ud83d\xdd11", "\u{fffd}\u{fffd}11"),
        (r"\x41b", "Ab"),
        (r"\\x41b", "Ab"),
        (r"\xzz", "xzz"),
        (r"\101b", "Ab"),
        (r"\\101b", "Ab"),
        (r"\477b", "'7b"),
        (r"\nb", "b"),
        (r"\\nb", "b"),
        (r"\qb", "qb"),
        (r"b\", "b"),
        ("&#65;b", "Ab"),
        ("&#8364;b", "€b"),
        ("&#65b", "Ab"),
        ("&#x41;b", "Ab"),
        ("&#X41;b", "Ab"),
        ("&amp;#65;b", "Ab"),
        ("&amp;#x41;b", "Ab"),
        ("&amp;amp;lt;b", "<b"),
        ("&lt;b", "<b"),
        ("&gt;b", ">b"),
        ("&ltb", "&ltb"),
        ("&amp;ltb", "&ltb"),
        ("&#;b", "&#;b"),
        ("&amp;#;b", "&#;b"),
        ("&unknown;", "&unknown;"),
    ] {
        assert_eq!(text_of(&unescaped(&bytes(text.as_bytes()), escape)), plain, "{text}");
    }
}

#[test]
fn a_backslash_stays_before_what_is_undone_first() {
    for (text, plain) in
        [(r"\%41b", r"\Ab"), (r"\&#65;b", r"\Ab"), ("\\\nb", r"\b"), (r"\%zz", "%zz"), (r"\&x", "&x")]
    {
        assert_eq!(text_of(&unescaped(&bytes(text.as_bytes()), escape)), plain, "{text}");
    }
}

#[test]
fn what_contains_escapes_itself_keeps_them() {
    for (text, quoted, single) in [
        (r"a\nb", r"a\nb", r"a\nb"),
        (r"a\\nb", r"a\nb", r"a\\nb"),
        (r"a\\\\xb", r"a\xb", r"a\\\\xb"),
        (r"\u0041", "A", r"\u0041"),
        ("%41", "A", "A"),
        ("%2541", "A", "%41"),
        ("%zz", "%zz", "%zz"),
        ("&#65;", "A", "A"),
        ("&amp;lt;", "<", "&lt;"),
        ("&lt;", "<", "<"),
    ] {
        assert_eq!(text_of(&unescaped(&bytes(text.as_bytes()), quoted_escape)), quoted, "{text}");
        assert_eq!(text_of(&unescaped(&bytes(text.as_bytes()), single_escape)), single, "{text}");
    }
}

#[test]
fn only_what_is_invisible_is_dropped() {
    let read = |c: char| text_of(&unescaped(&bytes(format!("a{c}b").as_bytes()), escape));
    let dropped = [
        "\u{1}\u{1f}\u{7f}\u{80}\u{9f}\u{ad}\u{300}\u{36f}\u{200b}\u{200f}\u{202a}\u{202e}",
        "\u{2060}\u{206f}\u{fe00}\u{fe0f}\u{feff}\u{180e}",
    ];
    for c in dropped.concat().chars() {
        assert_eq!(read(c), "ab", "{c:?}");
    }
    let kept = " \u{a0}é\u{370}\u{200a}\u{2010}\u{2029}\u{202f}\u{205f}\u{2070}\u{fe10}\u{fefe}\u{180f}";
    for c in kept.chars() {
        assert_eq!(read(c), format!("a{c}b"), "{c:?}");
    }
}

#[test]
fn each_byte_knows_what_it_was_read_from() {
    let read = unescaped(&bytes(br"x%41\u00e9&lt;y"), escape);
    let expected = [(b'x', 0, 1), (b'A', 1, 4), (0xc3, 4, 10), (0xa9, 4, 10), (b'<', 10, 14), (b'y', 14, 15)];
    assert_eq!(ranges(&read), expected);
    let read = letters(&bytes(b"\xffA-\xc3\x84\xe2\x80b"));
    assert_eq!(ranges(&read), [(b'a', 1, 2), (0xc3, 3, 5), (0xa4, 3, 5), (b'b', 7, 8)]);
}

#[test]
fn nested_encodings_are_decoded_to_a_depth_and_once() {
    fn encoded(text: &str, encode: fn(&str) -> String, times: usize) -> String {
        (0..times).fold(text.to_owned(), |text, _| encode(&text))
    }
    fn in_base64(text: &str) -> String {
        STANDARD.encode(text)
    }
    fn decimals(text: &str) -> String {
        text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(",")
    }
    let is_found = |text: String| readings_of(&text).iter().any(|reading| reading.contains("kQ3x-9wZ"));
    for encode in [in_base64, decimals] {
        assert!(is_found(encoded("kQ3x-9wZ", encode, MAX_NESTED_ENCODINGS)));
        assert!(!is_found(encoded("kQ3x-9wZ", encode, MAX_NESTED_ENCODINGS + 1)));
    }
    for text in [decimals("kQ3x-9wZ"), decimals("kQ3x-9wZ").replace(',', "%2C")] {
        let times = readings_of(&text).iter().filter(|reading| *reading == "kQ3x-9wZ").count();
        assert_eq!(times, 1, "{text}");
    }
}
