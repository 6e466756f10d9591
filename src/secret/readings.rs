//! Decodes a text in every supported way (each result is a *reading*), so that a secret is found in any encoding.
//!
//! A reading is a list of bytes, each with its range in the original text:
//!
//! * [`unescaped`] undoes one layer of escapes (`%41`, `\u0041`, `\x41`, `\101`, `\"`, `&#65;`, `&lt;`) and drops
//!   control characters and other invisible ones.
//! * [`visit_decoded`] decodes base64, base32 and hexadecimal, at every bit offset, because anything may precede the
//!   encoded secret or its beginning may be cut off. [`decimal`] decodes lists of decimal bytes.
//! * [`letters`] keeps only letters and digits, whatever is between them.
//!
//! [`visit_readings`] visits the text itself, up to [`MAX_LAYERS`] layers of escapes below it, and what the last layer's
//! text contains in these encodings, up to [`MAX_NESTED_ENCODINGS`] deep. Decimal bytes are decoded from the text itself,
//! too: line ends between them separate numbers, and no layer has them any more. A repeated escape of one kind, like
//! `%252541`, is one layer. Each layer is also read as if the original text contained escapes itself. If a secret is
//! found in a reading, the ranges of its bytes say what to remove.
//!
//! Not found: an escaped secret that has several backslashes in a row, or a backslash beside `%` or `&`; and a secret
//! that contains an escape itself, where several layers of escapes were applied. In these cases it is ambiguous which
//! characters belong to the secret. Such secrets are still found unescaped and in base64 and the like.
//!
//! Time and memory are linear in the text: it is read in chunks of [`CHUNK`] bytes, each a bounded number of times.

mod encodings;

use encodings::{decimal, visit_decoded};

/// How many layers of escapes are undone. Each is of another kind than the layer around it.
const MAX_LAYERS: usize = 4;

/// How many nested encodings are decoded.
const MAX_NESTED_ENCODINGS: usize = 2;

/// How many bytes of a text are read at a time.
const CHUNK: usize = 16 << 10;

/// How many bytes consecutive chunks overlap, so that a secret across the boundary is found.
const OVERLAP: usize = 2 << 10;

/// Shortest part of a secret that is looked for. Shorter ones reveal nothing and occur in too many words.
pub(super) const MIN_LENGTH: usize = 6;

/// A decoded byte and the range of the text that it was decoded from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Byte {
    pub(super) value: u8,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Visits every reading of a text. With `spread`, also the readings with only letters and digits.
pub(super) fn visit_readings(text: &[u8], spread: bool, visit: &mut dyn FnMut(&[Byte])) {
    let mut start = 0;
    loop {
        let end = text.len().min(start + CHUNK);
        let plain = text[start..end].iter().zip(start..);
        let plain = plain.map(|(value, at)| Byte { value: *value, from: at, to: at + 1 }).collect();
        visit_chunk(plain, spread, MAX_NESTED_ENCODINGS, visit);
        if end == text.len() {
            return;
        }
        start = end - OVERLAP;
    }
}

/// Visits every reading of one chunk, with up to `nested` nested encodings.
fn visit_chunk(mut text: Vec<Byte>, spread: bool, nested: usize, visit: &mut dyn FnMut(&[Byte])) {
    let mut visit_layer = |layer: &[Byte]| {
        visit(layer);
        if layer.iter().any(|byte| matches!(byte.value, b'\\' | b'%' | b'&')) {
            visit(&unescaped(layer, quoted_escape));
            visit(&unescaped(layer, single_escape));
        }
        if spread {
            visit(&letters(layer));
        }
    };
    visit_layer(&text);
    let length = text.len();
    let mut numbers = if nested > 0 { vec![decimal(&text)] } else { Vec::new() };
    for _ in 0..MAX_LAYERS {
        let below = unescaped(&text, escape);
        if below.len() == text.len() {
            break; // nothing was undone: an escape is longer than what it stands for
        }
        text = below;
        visit_layer(&text);
    }
    if nested > 0 {
        visit_decoded(&text, &mut |decoded| visit_chunk(decoded, false, nested - 1, visit));
        if text.len() < length {
            numbers.push(decimal(&text));
        }
        for numbers in numbers.into_iter().filter(|numbers| numbers.len() >= MIN_LENGTH) {
            visit_chunk(numbers, false, nested - 1, visit);
        }
    }
}

/// The text itself and all layers of escapes below it.
pub(super) fn layers(text: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let plain = text.iter().map(|value| Byte { value: *value, from: 0, to: 0 }).collect();
    visit_chunk(plain, false, 0, &mut |view| all.push(view.iter().map(|byte| byte.value).collect()));
    all
}

/// The letters and digits of a text, in lower case.
pub(super) fn letters(text: &[Byte]) -> Vec<Byte> {
    let bytes: Vec<u8> = text.iter().map(|byte| byte.value).collect();
    let mut kept = Vec::with_capacity(text.len());
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let from = text[at].from;
            let to = text[at + c.len_utf8() - 1].to;
            at += c.len_utf8();
            if c.is_alphanumeric() {
                c.to_lowercase().for_each(|c| push(&mut kept, u32::from(c), from, to));
            }
        }
        at += chunk.invalid().len();
    }
    kept
}

/// Undoes the escapes that `escape` recognizes, and drops invisible characters.
fn unescaped(text: &[Byte], escape: fn(&[Byte]) -> Option<Escape>) -> Vec<Byte> {
    let mut plain = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(first) = text.get(at) {
        let Some((length, stands_for)) = escape(&text[at..]) else {
            let length = invisible(&text[at..]);
            if length == 0 {
                plain.push(*first);
            }
            at += length.max(1);
            continue;
        };
        let to = text[at + length - 1].to;
        match stands_for {
            Some(Unit::Byte(value)) => plain.push(Byte { value, from: first.from, to }),
            Some(Unit::Char(code)) => push(&mut plain, code, first.from, to),
            None => {}
        }
        at += length;
    }
    plain
}

/// The length in bytes of the control character or zero-width character that a text begins with; 0 if there is none.
fn invisible(text: &[Byte]) -> usize {
    match (text[0].value, value(text, 1), value(text, 2)) {
        (0..0x20 | 0x7f, ..) => 1,
        // U+0080 to U+009F, and the soft hyphen
        (0xc2, Some(0x80..=0x9f | 0xad), _) => 2,
        // U+0300 to U+036F, accents
        (0xcc, Some(0x80..=0xbf), _) | (0xcd, Some(0x80..=0xaf), _) => 2,
        // U+200B to U+200F, U+202A to U+202E, U+2060 to U+206F, U+FE00 to U+FE0F, U+FEFF, U+180E
        (0xe2, Some(0x80), Some(0x8b..=0x8f | 0xaa..=0xae)) | (0xe2, Some(0x81), Some(0xa0..=0xaf)) => 3,
        (0xef, Some(0xb8), Some(0x80..=0x8f)) | (0xef, Some(0xbb), Some(0xbf)) => 3,
        (0xe1, Some(0xa0), Some(0x8e)) => 3,
        _ => 0,
    }
}

/// Appends a character in UTF-8.
fn push(text: &mut Vec<Byte>, code: u32, from: usize, to: usize) {
    let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    text.extend(c.encode_utf8(&mut [0; 4]).bytes().map(|value| Byte { value, from, to }));
}

/// What an escape stands for.
enum Unit {
    Byte(u8),
    Char(u32),
}

/// The length of an escape and what it stands for; `None` for a control character, and for backslashes that only
/// precede another character.
type Escape = (usize, Option<Unit>);

/// The escape that a text begins with.
fn escape(text: &[Byte]) -> Option<Escape> {
    match text.first()?.value {
        b'%' => percent(text),
        b'\\' => backslash(text),
        b'&' => entity(text),
        _ => None,
    }
}

/// The same for a quoted text that contains backslashes itself: several backslashes stand for one, and a single one
/// before a letter of a control escape (`\n` and the like) belongs to the text.
fn quoted_escape(text: &[Byte]) -> Option<Escape> {
    match (backslashes(text), value(text, 1)) {
        (1, Some(b'a' | b'b' | b'e' | b'f' | b'n' | b'r' | b't' | b'v')) => None,
        (0 | 1, _) => escape(text),
        (several, _) => Some((several, Some(Unit::Byte(b'\\')))),
    }
}

/// The same for a text that contains escapes itself: one layer of URL or HTML escapes is undone, and backslashes stay.
fn single_escape(text: &[Byte]) -> Option<Escape> {
    match text.first()?.value {
        b'%' => Some((3, Some(Unit::Byte(u8::try_from(number(text, 1, 16, 2)?).ok()?)))),
        b'&' if starts(text, 1, b"amp;") => Some((5, Some(Unit::Byte(b'&')))),
        b'&' => entity(text),
        _ => None,
    }
}

/// `%41`, `%2541` and so on, and `%u0041`.
fn percent(text: &[Byte]) -> Option<Escape> {
    let mut at = 1;
    while starts(text, at, b"25") {
        at += 2;
    }
    if matches!(value(text, at), Some(b'u' | b'U'))
        && let Some(code) = number(text, at + 1, 16, 4)
    {
        return Some((at + 5, Some(Unit::Char(code))));
    }
    match number(text, at, 16, 2).and_then(|byte| u8::try_from(byte).ok()) {
        Some(byte) => Some((at + 2, Some(Unit::Byte(byte)))),
        None => (at > 1).then_some((at, Some(Unit::Byte(b'%')))),
    }
}

/// Backslashes and what they escape. Not recognized before another escape, which is undone first.
fn backslash(text: &[Byte]) -> Option<Escape> {
    let at = backslashes(text);
    let next = &text[at..];
    if next.is_empty() {
        return Some((at, None));
    }
    if invisible(next) > 0 || (matches!(next[0].value, b'%' | b'&') && escape(next).is_some()) {
        return None;
    }
    let unicode = |digits: usize| Some((at + 1 + digits, number(text, at + 1, 16, digits)?));
    let braces = || {
        let digits = (1..=6).find(|digits| value(text, at + 2 + digits) == Some(b'}'))?;
        Some((at + 3 + digits, number(text, at + 2, 16, digits)?))
    };
    let code = match value(text, at) {
        Some(b'u' | b'x') if value(text, at + 1) == Some(b'{') => braces(),
        Some(b'u') => match unicode(4) {
            Some((length, high @ 0xd800..=0xdbff)) => Some(surrogates(text, length, high)),
            code => code,
        },
        Some(b'U') => unicode(8),
        Some(b'x') => {
            let byte = number(text, at + 1, 16, 2).and_then(|byte| u8::try_from(byte).ok());
            return Some(byte.map_or((at, None), |byte| (at + 3, Some(Unit::Byte(byte)))));
        }
        Some(b'0'..=b'7') => {
            let octal = |digits| Some((at + digits, u8::try_from(number(text, at, 8, digits)?).ok()?));
            let found = (1..=3).rev().find_map(octal);
            return Some(found.map_or((at, None), |(length, byte)| (length, Some(Unit::Byte(byte)))));
        }
        Some(b'a' | b'b' | b'e' | b'f' | b'n' | b'r' | b't' | b'v') => return Some((at + 1, None)),
        _ => None,
    };
    Some(code.map_or((at, None), |(length, code)| (length, Some(Unit::Char(code)))))
}

/// The number of backslashes that a text begins with, at most 64; further ones count as another escape.
fn backslashes(text: &[Byte]) -> usize {
    text.iter().take(64).take_while(|byte| byte.value == b'\\').count()
}

/// Combines a high surrogate, whose escape has `length` bytes, with the low one if that follows. Returns the length of
/// both escapes and the code point.
fn surrogates(text: &[Byte], length: usize, high: u32) -> (usize, u32) {
    let rest = text.get(length..).unwrap_or_default();
    let at = backslashes(rest);
    match number(rest, at + 1, 16, 4) {
        Some(low @ 0xdc00..=0xdfff) if at > 0 && value(rest, at) == Some(b'u') => {
            (length + at + 5, 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
        }
        _ => (length, high),
    }
}

/// `&#65;`, `&#x41;`, `&lt;`, `&amp;lt;` and so on.
fn entity(text: &[Byte]) -> Option<Escape> {
    let mut at = 1;
    while starts(text, at, b"amp;") {
        at += 4;
    }
    let ampersand = (at > 1).then_some((at, Some(Unit::Byte(b'&'))));
    let digits = match (value(text, at), value(text, at + 1)) {
        (Some(b'#'), Some(b'x' | b'X')) => Some((at + 2, 16)),
        (Some(b'#'), _) => Some((at + 1, 10)),
        _ => None,
    };
    if let Some((from, radix)) = digits {
        let count = text[from..].iter().take(8).take_while(|b| char::from(b.value).is_digit(radix)).count();
        let Some(code) = number(text, from, radix, count) else { return ampersand };
        let end = from + count;
        return Some((end + usize::from(value(text, end) == Some(b';')), Some(Unit::Char(code))));
    }
    let named = ENTITIES
        .iter()
        .find(|(name, _)| starts(text, at, name.as_bytes()) && value(text, at + name.len()) == Some(b';'));
    named.map(|(name, byte)| (at + name.len() + 1, Some(Unit::Byte(*byte)))).or(ampersand)
}

/// HTML's entity names of ASCII punctuation; `amp` is handled separately.
const ENTITIES: [(&str, u8); 37] = [
    ("lt", b'<'),
    ("gt", b'>'),
    ("quot", b'"'),
    ("apos", b'\''),
    ("nbsp", b' '),
    ("excl", b'!'),
    ("num", b'#'),
    ("dollar", b'$'),
    ("percnt", b'%'),
    ("lpar", b'('),
    ("rpar", b')'),
    ("ast", b'*'),
    ("plus", b'+'),
    ("comma", b','),
    ("hyphen", b'-'),
    ("dash", b'-'),
    ("period", b'.'),
    ("sol", b'/'),
    ("colon", b':'),
    ("semi", b';'),
    ("equals", b'='),
    ("quest", b'?'),
    ("commat", b'@'),
    ("lsqb", b'['),
    ("lbrack", b'['),
    ("bsol", b'\\'),
    ("rsqb", b']'),
    ("rbrack", b']'),
    ("hat", b'^'),
    ("lowbar", b'_'),
    ("grave", b'`'),
    ("lcub", b'{'),
    ("lbrace", b'{'),
    ("verbar", b'|'),
    ("vert", b'|'),
    ("rcub", b'}'),
    ("rbrace", b'}'),
];

/// The byte at an index.
fn value(text: &[Byte], at: usize) -> Option<u8> {
    text.get(at).map(|byte| byte.value)
}

/// Returns true if `with` is at an index of the text, compared without case.
fn starts(text: &[Byte], at: usize, with: &[u8]) -> bool {
    text.get(at..at + with.len())
        .is_some_and(|part| part.iter().zip(with).all(|(byte, with)| byte.value.eq_ignore_ascii_case(with)))
}

/// Parses a number of exactly `digits` digits; `None` for zero digits.
fn number(text: &[Byte], at: usize, radix: u32, digits: usize) -> Option<u32> {
    let digits = text.get(at..at + digits).filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0u32, |sum, digit| {
        sum.checked_mul(radix)?.checked_add(char::from(digit.value).to_digit(radix)?)
    })
}

#[cfg(test)]
mod tests;
