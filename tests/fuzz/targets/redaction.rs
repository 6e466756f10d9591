//! Secrets in what others said: in any encoding, between anything, cut anywhere.

use super::*;
use crate::fuzz::{Input, Target};

pub(crate) const TARGETS: &[Target] =
    &[Target::new("redaction", redaction), Target::new("cleaning", cleaning)];

#[allow(missing_docs, dead_code, unreachable_pub)] // the model that tests/canary and the tests beside the code have
mod encodings {
    include!("../../../src/secret/encodings.rs");
}
use encodings::ENCODINGS;

/// As in a new process.
pub(crate) fn forget_all() {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if known.added > 0 {
        *known = SecretRegistry::default();
    }
}

/// What is left of a secret in any encoding.
fn trace(secret: &str, text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text).replace(REDACTED, "\u{fffd}");
    let text = encodings::collapsed(&text);
    encodings::traces(secret.as_bytes()).into_iter().find(|trace| text.contains(trace))
}

fn of_alphabet(bytes: &[u8], alphabet: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(alphabet[usize::from(*byte) % alphabet.len()])).collect()
}

/// Of a secret that was cut anywhere nothing of six characters is left, however it was written.
fn redaction(data: &[u8]) {
    let input = &mut Input::new(data);
    let plain: Vec<u8> = (b'!'..=b'~').filter(|byte| !b"%&\\".contains(byte)).collect();
    let words: Vec<u8> = plain.iter().copied().filter(u8::is_ascii_alphanumeric).collect();
    let beside: Vec<u8> = (b' '..=b'~').filter(|byte| !b"%&\\".contains(byte)).collect();
    let (name, encode) = *input.of(ENCODINGS);
    // Between signs only letters and digits are told from what was put there.
    let is_spread = name.starts_with("signs") || name.starts_with("blanks");
    let length = 6 + input.below(35);
    let secret = of_alphabet(input.bytes(length), if is_spread { &words } else { &plain });
    if secret.len() < MIN_LENGTH || is_public(&secret) {
        return;
    }
    let before = of_alphabet(input.bytes(9), &beside);
    let text = format!("{before}{}{before}", encode(secret.as_bytes())).into_bytes();
    let from = input.number() % (text.len() + 1);
    let to = from + input.number() % (text.len() + 1 - from);
    let is_whole = input.byte() < 128;
    let piece = if is_whole { &text[..] } else { &text[from..to] };
    let mut parts = Parts::default();
    parts.add(&secret);
    let clean = without(piece, &parts.find(piece, Cut::Anywhere));
    assert_eq!(trace(&secret, &clean), None, "{name}: {:?}", String::from_utf8_lossy(&clean));
}

/// Any text beside any secrets: what is taken out lies within it and cuts no character, and what is left is clean.
fn cleaning(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut parts = Parts::default();
    let mut secrets = Vec::new();
    for _ in 0..input.below(4) {
        let secret = input.text();
        parts.add(&secret);
        secrets.push(secret);
    }
    let text = input.rest();
    for cut in [Cut::No, Cut::Anywhere] {
        let found = parts.find(text, cut);
        assert!(found.iter().all(|range| range.start < range.end && range.end <= text.len()), "{found:?}");
        assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start), "{found:?}");
        let clean = without(text, &found);
        assert!(
            std::str::from_utf8(text).is_err() || std::str::from_utf8(&clean).is_ok(),
            "half a character is left"
        );
        assert!(secrets.iter().any(|secret| secret.len() >= TINY) || clean == text, "nothing is secret");
        for secret in
            secrets.iter().filter(|secret| secret.len() >= MIN_LENGTH && secret.trim().len() == secret.len())
        {
            let is_there = text.windows(secret.len()).any(|part| part == secret.as_bytes());
            let is_left = clean.windows(secret.len()).any(|part| part == secret.as_bytes());
            let is_plain = secret.bytes().all(|byte| byte.is_ascii_alphanumeric())
                && secret.len() < 256
                && !REDACTED.contains(secret.as_str()); // what is left then is the mark
            assert!(
                !is_there || !is_left || !is_plain || is_in_public_text(&secret.as_bytes()[..MIN_LENGTH]),
                "{secret:?} is left"
            );
        }
    }
}
