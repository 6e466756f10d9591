//! Undoes base64, base32, hexadecimal and lists of decimal bytes, so that a secret that a text has in one of them is
//! found, too, and can be removed.

use std::borrow::Cow;

use super::{Byte, MIN_LENGTH, number, starts};

/// Visits what a text contains in base64, base32 and hexadecimal, decoded at every bit offset. What all runs of digits
/// stand for is one reading, one after the other.
///
/// The text must not have line ends any more (`unescaped` drops them, as all control characters): only without them are
/// digits that were wrapped into lines one run. Otherwise each line would be decoded by itself: bytes across a line end
/// would be lost, and lines that are too short as a whole.
pub(super) fn visit_decoded(text: &[Byte], visit: &mut dyn FnMut(Vec<Byte>)) {
    for encoding in Encoding::ALL {
        let text = if encoding.bits == 4 { unprefixed(text) } else { Cow::Borrowed(text) };
        let runs = encoding.runs(&text);
        if runs.is_empty() {
            continue;
        }
        for skipped in (0..8).step_by(encoding.step) {
            visit(runs.iter().flat_map(|run| encoding.decode(run, skipped)).collect());
        }
    }
}

/// Decodes lists of at least [`MIN_LENGTH`] bytes as decimal numbers, for example `[65, 66]`, `[65 66]` or one a line.
pub(super) fn decimal(text: &[Byte]) -> Vec<Byte> {
    let mut bytes = Vec::new();
    let mut at = 0;
    let mut start = 0;
    while at < text.len() {
        let count = text[at..].iter().take(4).take_while(|byte| byte.value.is_ascii_digit()).count();
        match number(text, at, 10, count).and_then(|number| u8::try_from(number).ok()) {
            Some(value) => bytes.push(Byte { value, from: text[at].from, to: text[at + count - 1].to }),
            None if b" ,;\t\r\n".contains(&text[at].value) => {}
            None => start = end_list(&mut bytes, start),
        }
        at += count.max(1);
    }
    end_list(&mut bytes, start);
    bytes
}

/// Ends the list of bytes that began at `start`, and drops it if it is too short. Returns where the next one begins.
fn end_list(bytes: &mut Vec<Byte>, start: usize) -> usize {
    if bytes.len() - start < MIN_LENGTH {
        bytes.truncate(start);
    }
    bytes.len()
}

/// An encoding whose digits have a whole number of bits.
struct Encoding {
    /// Bits per digit.
    bits: u32,
    /// The first whole byte of a run begins after a multiple of so many bits: the run may begin with any number of
    /// digits of something else, and modulo 8 their bits are the multiples of the greatest common divisor of `bits`
    /// and 8. So nothing is decoded at other offsets.
    step: usize,
    /// The value of a digit.
    digit: fn(u8) -> Option<u32>,
    /// Characters that may be between two digits.
    between: &'static [u8],
}

impl Encoding {
    const ALL: [Self; 3] = [
        Self { bits: 4, step: 4, digit: digit16, between: b" :-,._=%[]" },
        Self { bits: 5, step: 1, digit: digit32, between: b"" },
        Self { bits: 6, step: 2, digit: digit64, between: b"" },
    ];

    /// The runs of consecutive digits that are long enough for [`MIN_LENGTH`] bytes.
    fn runs<'t>(&self, text: &'t [Byte]) -> Vec<&'t [Byte]> {
        let is_digit = |value: u8| (self.digit)(value).is_some();
        let ends_run = |byte: &Byte| !is_digit(byte.value) && !self.between.contains(&byte.value);
        let is_long = |run: &&[Byte]| {
            let digits = run.iter().filter(|byte| is_digit(byte.value)).count();
            digits * self.bits as usize >= MIN_LENGTH * 8
        };
        text.split(ends_run).filter(is_long).collect()
    }

    /// Decodes a run of digits after skipping `skipped` bits at its beginning.
    fn decode(&self, run: &[Byte], mut skipped: u32) -> Vec<Byte> {
        let mut bytes = Vec::with_capacity(run.len());
        let mut held = 0;
        let mut bits = 0;
        let mut from = 0;
        for byte in run {
            let Some(digit) = (self.digit)(byte.value) else { continue };
            if bits == 0 {
                from = byte.from;
            }
            held = held << self.bits | digit;
            bits += self.bits;
            let unwanted = skipped.min(bits);
            (bits, skipped) = (bits - unwanted, skipped - unwanted);
            if bits >= 8 {
                bits -= 8;
                bytes.push(Byte { value: (held >> bits & 0xff) as u8, from, to: byte.to });
                from = byte.from;
            }
            held &= (1 << bits) - 1;
        }
        bytes
    }
}

fn digit16(byte: u8) -> Option<u32> {
    char::from(byte).to_digit(16)
}

fn digit32(byte: u8) -> Option<u32> {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' => Some(u32::from(byte.to_ascii_lowercase() - b'a')),
        b'2'..=b'7' => Some(u32::from(byte - b'2') + 26),
        _ => None,
    }
}

/// Accepts the standard and the URL-safe alphabet.
fn digit64(byte: u8) -> Option<u32> {
    match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

/// The text without any `0x` before two hexadecimal digits.
fn unprefixed(text: &[Byte]) -> Cow<'_, [Byte]> {
    let is_prefix = |at: usize| starts(text, at, b"0x") && number(text, at + 2, 16, 2).is_some();
    if !(0..text.len()).any(is_prefix) {
        return Cow::Borrowed(text);
    }
    let kept = (0..text.len()).filter(|at| !(is_prefix(*at) || *at > 0 && is_prefix(*at - 1)));
    kept.map(|at| text[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    fn bytes(text: &str) -> Vec<Byte> {
        text.bytes().zip(0..).map(|(value, at)| Byte { value, from: at, to: at + 1 }).collect()
    }

    fn text_of(reading: &[Byte]) -> String {
        reading.iter().map(|byte| char::from(byte.value)).collect()
    }

    #[test]
    fn a_list_of_numbers_is_one_of_bytes_if_it_is_long_enough() {
        for (text, decoded) in [
            ("[65, 66 67;68\t69\n70]", "ABCDEF"),
            ("65 66 67 68 69", ""),
            ("65 66 67 x 68 69 70", ""),
            ("65 66 67 68 69 70 x 71 72 73", "ABCDEF"),
            ("256 65 66 67 68 69 70", "ABCDEF"),
        ] {
            assert_eq!(text_of(&decimal(&bytes(text))), decoded, "{text}");
        }
        let ranges: Vec<(usize, usize)> =
            decimal(&bytes("(65 66 67 68 69 170)")).iter().map(|byte| (byte.from, byte.to)).collect();
        assert_eq!(ranges, [(1, 3), (4, 6), (7, 9), (10, 12), (13, 15), (16, 19)]);
    }

    #[test]
    fn runs_of_digits_are_as_long_as_the_shortest_part_of_a_secret() {
        let [hexadecimal, base32, base64] = &Encoding::ALL;
        let runs = |encoding: &Encoding, text| {
            encoding.runs(&bytes(text)).into_iter().map(text_of).collect::<Vec<_>>()
        };
        assert_eq!(runs(base64, "ABCDEFG.ABCDEFGH"), ["ABCDEFGH"]);
        assert_eq!(runs(base32, "ABCDEFGHI.ABCDEFGHIJ"), ["ABCDEFGHIJ"]);
        assert_eq!(runs(hexadecimal, "41:42 43-44,45.46zz4142434445z"), ["41:42 43-44,45.46"]);
    }

    #[test]
    fn each_decoded_byte_knows_its_digits() {
        let base64 = &Encoding::ALL[2];
        let decode = |text, skipped| {
            let decoded = base64.decode(&bytes(text), skipped);
            decoded.iter().map(|byte| (byte.value, byte.from, byte.to)).collect::<Vec<_>>()
        };
        assert_eq!(decode("QUJDRA", 0), [(b'A', 0, 2), (b'B', 1, 3), (b'C', 2, 4), (b'D', 4, 6)]);
        assert_eq!(decode("/QUJD", 6), [(b'A', 1, 3), (b'B', 2, 4), (b'C', 3, 5)]);
        assert_eq!(decode("//+QUJD", 18), [(b'A', 3, 5), (b'B', 4, 6), (b'C', 5, 7)]);
    }

    #[test]
    fn digits_have_the_values_of_their_alphabets() {
        for (value, digit) in (0..).zip(BASE64) {
            assert_eq!(digit64(*digit), Some(value));
        }
        assert_eq!((digit64(b'-'), digit64(b'_'), digit64(b'.')), (Some(62), Some(63), None));
        for (value, digit) in (0..).zip(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") {
            assert_eq!(digit32(*digit), Some(value));
            assert_eq!(digit32(digit.to_ascii_lowercase()), Some(value));
        }
        assert_eq!((digit32(b'1'), digit32(b'8')), (None, None));
    }

    #[test]
    fn the_prefix_of_a_hexadecimal_number_is_dropped_and_nothing_else() {
        for (text, kept) in [
            ("0x41, 0X42", "41, 42"),
            ("41 0x42", "41 42"),
            ("41 0x4", "41 0x4"),
            ("0x41 0xzz x43 0043", "41 0xzz x43 0043"),
        ] {
            assert_eq!(text_of(&unprefixed(&bytes(text))), kept, "{text}");
        }
    }
}
