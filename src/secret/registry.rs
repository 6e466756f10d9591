//! The registry of all secrets that this process has, and the redaction of text.
//!
//! A secret is found in any encoding that [`readings`] decodes; that module also says which ones it cannot. There are
//! two levels:
//!
//! * [`redacted`], for all output of the process: removes whole secrets, and parts of [`LONG`] bytes or more of long
//!   ones.
//! * [`quoted`], for text of others that we quote: a server, a proxy or a program may have cut a secret anywhere and
//!   put anything between its letters, so this removes all parts of [`MIN_LENGTH`] bytes or more.
//!
//! The first is less strict because it also processes our own messages, and passwords often contain ordinary words.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use secrecy::{ExposeSecret, SecretString};

use super::readings::{self, Byte, MIN_LENGTH};

#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/redaction.rs"]
pub(crate) mod fuzz;

/// The placeholder for a secret.
pub const REDACTED: &str = "[redacted]";

/// Parts of this many bytes of a longer secret are as confidential as the whole.
const LONG: usize = 12;

/// Shortest secret that is redacted. One shorter than [`MIN_LENGTH`] is only removed from quoted text.
const TINY: usize = 4;

/// How many secrets are remembered after they were dropped, because a server may still repeat them: at least this many,
/// and with the others at most twice as many. A credential that is issued for every attempt adds one or two each time.
const REMEMBERED: usize = 256;

/// Parts of secrets that are not confidential: user names that services require beside a token, and well-known prefixes
/// of tokens.
const PUBLIC: &[&str] = &[
    "git",
    "github",
    "gitlab",
    "gitea",
    "token",
    "oauth2",
    "oauth2accesstoken",
    "x-access-token",
    "x-oauth-basic",
    "x-token-auth",
    "gitlab-ci-token",
    "anonymous",
    "username",
    "git-sync",
    "treeswap",
    "github_pat_",
    "glpat-",
    "Authorization",
    "Authorization:",
    "Bearer",
    "Basic",
];

/// Returns true if a text is one of the well-known user names or prefixes that are not confidential. Any other user
/// name may be a token.
pub fn is_public(name: &str) -> bool {
    PUBLIC.iter().any(|public| name.eq_ignore_ascii_case(public))
}

static KNOWN: LazyLock<RwLock<SecretRegistry>> = LazyLock::new(RwLock::default);

/// Registers a text until the process ends.
pub(super) fn add_for_process(text: &str) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.add(text, true);
}

/// Registers a text for as long as the result is held, and for some time after.
pub(super) fn add_while_held(text: &str) -> Arc<SecretString> {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.add(text, false)
}

/// Redacts text that leaves the process.
pub fn redacted(text: &str) -> Cow<'_, str> {
    match clean(text.as_bytes(), Cut::No) {
        None => Cow::Borrowed(text),
        Some(clean) => Cow::Owned(String::from_utf8_lossy(&clean).into_owned()),
    }
}

/// The same for bytes.
pub fn redacted_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    clean(bytes, Cut::No).map_or(Cow::Borrowed(bytes), Cow::Owned)
}

/// Redacts text of others, removing any part of a secret.
pub fn quoted(text: &str) -> Cow<'_, str> {
    match clean(text.as_bytes(), Cut::Anywhere) {
        None => Cow::Borrowed(text),
        Some(clean) => Cow::Owned(String::from_utf8_lossy(&clean).into_owned()),
    }
}

/// The same for bytes.
pub fn quoted_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    clean(bytes, Cut::Anywhere).map_or(Cow::Borrowed(bytes), Cow::Owned)
}

/// Remembers a password of less than [`MIN_LENGTH`] bytes until the process ends. Only for what surely is a password:
/// words like `true` are registered as a precaution, and many a variable has such a value.
pub(super) fn add_short_password(text: &str) {
    if text.len() < MIN_LENGTH && is_long_enough(text) {
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        let hash = known.hash_state.hash_one(text.as_bytes());
        known.short_passwords.insert(hash);
    }
}

/// Returns true if a value contains a whole secret, or is a password of less than [`MIN_LENGTH`] bytes.
pub(super) fn is_within(value: &[u8]) -> bool {
    is_short_password(value) || !known_parts().find(value, Cut::No).is_empty()
}

fn is_short_password(value: &[u8]) -> bool {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    known.short_passwords.contains(&known.hash_state.hash_one(value))
}

/// The parts of all secrets registered so far. The registry is not locked while a text is searched: a long text would
/// keep all others from registering a secret, and then from any output.
fn known_parts() -> Arc<Parts> {
    Arc::clone(&KNOWN.read().unwrap_or_else(PoisonError::into_inner).parts)
}

/// A writer that redacts. Each write is redacted by itself, so it has to be a whole text, like the lines that tracing
/// writes.
#[derive(Debug)]
pub struct Redacting<W>(pub W);

impl<W: std::io::Write> std::io::Write for Redacting<W> {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(&redacted_bytes(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// The text without secrets; `None` if it has none.
fn clean(text: &[u8], cut: Cut) -> Option<Vec<u8>> {
    let found = known_parts().find(text, cut);
    (!found.is_empty()).then(|| without(text, &found))
}

#[derive(Default)]
struct SecretRegistry {
    /// By a hash of the text.
    secrets: HashMap<u64, Entry>,
    hash_state: RandomState,
    /// Hashes of passwords of less than [`MIN_LENGTH`] bytes.
    short_passwords: HashSet<u64>,
    /// Number of additions so far.
    added: u64,
    /// Shared with the searches that are going on, which a change of it does not affect.
    parts: Arc<Parts>,
}

struct Entry {
    text: Arc<SecretString>,
    /// Whether it is registered until the process ends.
    for_process: bool,
    /// The value of [`SecretRegistry::added`] when it was added last.
    added: u64,
}

impl SecretRegistry {
    fn add(&mut self, text: &str, for_process: bool) -> Arc<SecretString> {
        self.added += 1;
        if let Some(known) = self.secrets.get_mut(&self.hash_state.hash_one(text)) {
            known.added = self.added;
            known.for_process |= for_process;
            return Arc::clone(&known.text);
        }
        let secret = Arc::new(SecretString::from(text.to_owned()));
        if !is_long_enough(text) {
            return secret;
        }
        let entry = Entry { text: Arc::clone(&secret), for_process, added: self.added };
        self.secrets.insert(self.hash_state.hash_one(text), entry);
        Arc::make_mut(&mut self.parts).add(text);
        if self.secrets.len() > 2 * REMEMBERED {
            self.forget();
        }
        secret
    }

    /// Forgets the oldest secrets that are not held any more, if there are more than [`REMEMBERED`] of them.
    fn forget(&mut self) {
        let unheld = |entry: &Entry| !entry.for_process && Arc::strong_count(&entry.text) == 1;
        let mut ages: Vec<u64> =
            self.secrets.values().filter(|entry| unheld(entry)).map(|entry| entry.added).collect();
        if ages.len() <= REMEMBERED {
            return;
        }
        ages.sort_unstable();
        let oldest = ages[ages.len() - REMEMBERED];
        self.secrets.retain(|_, entry| !unheld(entry) || entry.added >= oldest);
        let mut parts = Parts::default();
        for entry in self.secrets.values() {
            parts.add(entry.text.expose_secret());
        }
        self.parts = Arc::new(parts);
    }
}

fn is_long_enough(text: &str) -> bool {
    text.len() >= TINY && !is_public(text)
}

/// Whether secrets in a text may be cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// They are whole, or long parts of them are.
    No,
    /// They may be cut anywhere, with other characters between their letters.
    Anywhere,
}

/// Hashes of parts of secrets. The parts themselves are not stored.
#[derive(Clone)]
struct Parts {
    hash_state: RandomState,
    /// The random keys of [`Parts::window_hash`].
    keys: (u64, u64),
    /// A bloom filter for `short`: rules out most positions of a text without a lookup.
    filter: Box<[u64; 1024]>,
    /// All parts of [`MIN_LENGTH`] bytes.
    short: HashSet<u64, BuildHasherDefault<IdentityHasher>>,
    /// All parts of [`LONG`] bytes, and whole secrets that are shorter.
    long: HashSet<u64, BuildHasherDefault<IdentityHasher>>,
    /// The lengths of the parts in `long`.
    lengths: BTreeSet<usize>,
    /// Whole secrets of less than [`MIN_LENGTH`] bytes.
    tiny: HashSet<u64, BuildHasherDefault<IdentityHasher>>,
}

impl Default for Parts {
    fn default() -> Self {
        let hash_state = RandomState::new();
        Self {
            keys: (hash_state.hash_one(0), hash_state.hash_one(1) | 1),
            hash_state,
            filter: Box::new([0; 1024]),
            short: HashSet::default(),
            long: HashSet::default(),
            lengths: BTreeSet::new(),
            tiny: HashSet::default(),
        }
    }
}

impl Parts {
    /// Adds all parts of a secret, in the forms in which a text is compared.
    fn add(&mut self, text: &str) {
        for part in pieces(text) {
            for layer in readings::layers(part.as_bytes()).into_iter().chain([part.trim().into()]) {
                self.add_form(&folded(layer.iter().copied()));
            }
            let bytes = part.bytes().map(|value| Byte { value, from: 0, to: 0 }).collect::<Vec<_>>();
            let letters = readings::letters(&bytes);
            let letters = folded(letters.iter().map(|byte| byte.value));
            self.add_short(&letters);
        }
    }

    fn add_form(&mut self, form: &[u8]) {
        if form.len() < MIN_LENGTH {
            if form.len() >= TINY {
                self.tiny.insert(self.hash_state.hash_one(form));
            }
            return;
        }
        let length = form.len().min(LONG);
        self.lengths.insert(length);
        self.add_short(form);
        self.long.extend(form.windows(length).map(|part| self.hash_state.hash_one(part)));
    }

    fn add_short(&mut self, form: &[u8]) {
        for part in form.windows(MIN_LENGTH) {
            let hash = self.window_hash(part.iter().fold(0, |window, byte| window << 8 | u64::from(*byte)));
            self.short.insert(hash);
            let (word, bit) = filter_bit(hash);
            self.filter[word] |= bit;
        }
    }

    /// The hash of [`MIN_LENGTH`] bytes. It is computed at every byte of every reading of a text, so it has to be cheap.
    fn window_hash(&self, window: u64) -> u64 {
        let hash = (window ^ self.keys.0).wrapping_mul(self.keys.1);
        (hash ^ hash >> 32).wrapping_mul(self.keys.1)
    }

    /// The ranges of a text that have parts of secrets, sorted and disjoint.
    fn find(&self, text: &[u8], cut: Cut) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        if self.short.is_empty() && self.tiny.is_empty() {
            return found;
        }
        readings::visit_readings(text, cut == Cut::Anywhere, &mut |reading| {
            self.find_in(reading, cut, &mut found);
        });
        joined(found)
    }

    /// Adds the ranges of the original text that have parts of secrets in one reading of it.
    fn find_in(&self, reading: &[Byte], cut: Cut, found: &mut Vec<Range<usize>>) {
        let text = folded(reading.iter().map(|byte| byte.value));
        let mut add = |at: usize, length: usize| {
            let from = reading[at].from;
            let to = reading[at + length - 1].to;
            match found.last_mut() {
                Some(last) if last.start <= from && from <= last.end => last.end = last.end.max(to),
                _ => found.push(from..to),
            }
        };
        let mut window = 0;
        for (end, byte) in text.iter().enumerate() {
            window = (window << 8 | u64::from(*byte)) & WINDOW;
            let hash = self.window_hash(window);
            let (word, bit) = filter_bit(hash);
            if self.filter[word] & bit != 0 && end + 1 >= MIN_LENGTH {
                let at = end + 1 - MIN_LENGTH;
                if let Some(length) = self.part_length(&text[at..], hash, cut) {
                    add(at, length);
                }
            }
        }
        if cut == Cut::Anywhere && !self.tiny.is_empty() {
            for length in TINY..MIN_LENGTH {
                let parts = text.windows(length).enumerate();
                let tiny = parts.filter(|(_, part)| self.tiny.contains(&self.hash_state.hash_one(part)));
                tiny.for_each(|(at, _)| add(at, length));
            }
        }
    }

    /// The length of the part of a secret that a text begins with; `None` if there is none. `hash` is the hash of the
    /// text's first [`MIN_LENGTH`] bytes.
    fn part_length(&self, text: &[u8], hash: u64, cut: Cut) -> Option<usize> {
        if !self.short.contains(&hash) {
            return None;
        }
        if cut == Cut::Anywhere && !is_in_public_text(&text[..MIN_LENGTH]) {
            return Some(MIN_LENGTH);
        }
        let is_long = |length: &&usize| {
            text.get(..**length).is_some_and(|part| self.long.contains(&self.hash_state.hash_one(part)))
        };
        self.lengths.iter().rev().find(is_long).copied()
    }
}

/// Masks the last [`MIN_LENGTH`] of eight bytes.
const WINDOW: u64 = (1 << (8 * MIN_LENGTH)) - 1;

/// The index of a word in [`Parts::filter`] and the bit of it that stands for a hash.
fn filter_bit(hash: u64) -> (usize, u64) {
    ((hash >> 54) as usize, 1 << (hash >> 48 & 63))
}

/// The form in which texts are compared: in lower case, with `+` as a blank, because query strings write blanks as `+`.
fn folded(text: impl Iterator<Item = u8>) -> Vec<u8> {
    text.map(|byte| if byte == b'+' { b' ' } else { byte.to_ascii_lowercase() }).collect()
}

/// Sorts ranges and merges those that overlap or touch.
fn joined(mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.sort_unstable_by_key(|range| range.start);
    found.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    found
}

/// Returns true if [`MIN_LENGTH`] bytes are a part of a text that is not confidential.
fn is_in_public_text(part: &[u8]) -> bool {
    static PARTS: LazyLock<HashSet<Vec<u8>>> = LazyLock::new(|| {
        let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect();
        let forms = PUBLIC.iter().flat_map(|public| [(*public).to_owned(), letters(public)]);
        let parts = |form: String| {
            form.as_bytes().windows(MIN_LENGTH).map(<[u8]>::to_ascii_lowercase).collect::<Vec<_>>()
        };
        forms.flat_map(parts).collect()
    });
    PARTS.contains(part)
}

/// Hashes a hash to itself.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "only hashes are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The lines of a secret, and the whole text if it is short. The lines `-----BEGIN` and `-----END` of a PEM key are
/// left out: they are in every key, and in messages about keys.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let has_lines = text.trim().contains(['\n', '\r']);
    let is_boundary = |line: &str| line.starts_with("-----BEGIN") || line.starts_with("-----END");
    let lines = text.split(['\n', '\r']).map(str::trim);
    lines
        .chain(std::iter::once(text).filter(|text| text.len() < 256))
        .filter(move |line| !has_lines || !is_boundary(line))
}

/// Decodes `%41` and the like. Invalid escapes stay unchanged.
pub(crate) fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|pair| first == b'%' && pair.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|pair| std::str::from_utf8(pair).ok());
        match digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[2..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

/// The text with the placeholder in place of each range. Ranges are extended to whole UTF-8 characters.
fn without(text: &[u8], found: &[Range<usize>]) -> Vec<u8> {
    let is_continuation = |at: usize| text.get(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let mut clean = Vec::with_capacity(text.len());
    let mut kept = 0;
    for range in found {
        let mut start = range.start;
        let mut end = range.end;
        while start > kept && is_continuation(start) {
            start -= 1;
        }
        while is_continuation(end) {
            end += 1;
        }
        clean.extend_from_slice(&text[kept.min(start)..start]);
        clean.extend_from_slice(REDACTED.as_bytes());
        kept = end;
    }
    clean.extend_from_slice(&text[kept..]);
    clean
}

#[cfg(test)]
mod tests;
