//! Every secret that this process has, and texts without them.
//!
//! A text is read in every way in which a secret may have been written into it: see [`readings`], which also say
//! what is out of reach. Two kinds of text are cleaned:
//!
//! * What leaves the process ([`redacted`]): no whole secret, and nothing of a long one that is [`LONG`] bytes or more.
//! * What others said and we quote ([`quoted`]): a server, a proxy or a program may have cut a secret anywhere, and put
//!   anything between its letters, so nothing of one that is [`SHORTEST`] bytes or more.
//!
//! The first is not as strict as the second because it goes over our own words, too, and a password has words in it as
//! often as not.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use secrecy::{ExposeSecret, SecretString};

use super::readings::{self, Byte, SHORTEST};

#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/redaction.rs"]
pub(crate) mod fuzz;

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";

/// Of a secret as long as this or longer, parts of this length are as good as the whole.
const LONG: usize = 12;

/// A secret shorter than [`SHORTEST`] is still taken out of what others said, down to this length.
const TINY: usize = 4;

/// Secrets that are not held any more, but that a server may still repeat: so many are remembered at least, and twice
/// as many at most. A credential that is issued anew for every attempt makes one or two each time.
const REMEMBERED: usize = 256;

/// What stands in secrets and is none: user names that services ask for beside a token, and the beginnings by which
/// tokens are distinguished.
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

/// Whether a user name is one of those that stand for no person and are no token. Any other may be a token.
pub fn is_public(name: &str) -> bool {
    PUBLIC.iter().any(|public| name.eq_ignore_ascii_case(public))
}

static KNOWN: LazyLock<RwLock<SecretRegistry>> = LazyLock::new(RwLock::default);

/// Makes a text known for as long as the process runs.
pub(super) fn add_for_process(text: &str) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.add(text, true);
}

/// Makes a text known for as long as the guard is held, and for some time after.
pub(super) fn held(text: &str) -> Arc<SecretString> {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.add(text, false)
}

/// Our own text that leaves the process, without secrets.
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

/// Foreign text, without any part of a secret.
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

/// Whether a whole secret stands in a value.
pub(super) fn is_within(value: &[u8]) -> bool {
    !KNOWN.read().unwrap_or_else(PoisonError::into_inner).parts.find(value, Cut::No).is_empty()
}

/// What goes through it loses every secret. Each write is a text of its own: a line, as tracing writes them.
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

fn clean(text: &[u8], cut: Cut) -> Option<Vec<u8>> {
    let found = KNOWN.read().unwrap_or_else(PoisonError::into_inner).parts.find(text, cut);
    (!found.is_empty()).then(|| without(text, &found))
}

#[derive(Default)]
struct SecretRegistry {
    /// By a hash of the text.
    secrets: HashMap<u64, Entry>,
    hashed: RandomState,
    added: u64,
    parts: Parts,
}

struct Entry {
    text: Arc<SecretString>,
    for_good: bool,
    /// When it was added last, counted in additions.
    added: u64,
}

impl SecretRegistry {
    fn add(&mut self, text: &str, for_good: bool) -> Arc<SecretString> {
        self.added += 1;
        if let Some(known) = self.secrets.get_mut(&self.hashed.hash_one(text)) {
            known.added = self.added;
            known.for_good |= for_good;
            return Arc::clone(&known.text);
        }
        let secret = Arc::new(SecretString::from(text.to_owned()));
        if !is_long_enough(text) {
            return secret;
        }
        let entry = Entry { text: Arc::clone(&secret), for_good, added: self.added };
        self.secrets.insert(self.hashed.hash_one(text), entry);
        self.parts.add(text);
        if self.secrets.len() > 2 * REMEMBERED {
            self.forget();
        }
        secret
    }

    /// Forgets the oldest of those that are not held.
    fn forget(&mut self) {
        let unheld = |entry: &Entry| !entry.for_good && Arc::strong_count(&entry.text) == 1;
        let mut ages: Vec<u64> =
            self.secrets.values().filter(|entry| unheld(entry)).map(|entry| entry.added).collect();
        if ages.len() <= REMEMBERED {
            return;
        }
        ages.sort_unstable();
        let oldest = ages[ages.len() - REMEMBERED];
        self.secrets.retain(|_, entry| !unheld(entry) || entry.added >= oldest);
        self.parts = Parts::default();
        for entry in self.secrets.values() {
            self.parts.add(entry.text.expose_secret());
        }
    }
}

fn is_long_enough(text: &str) -> bool {
    text.len() >= TINY && !is_public(text)
}

/// Whether a text was whole when it came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    Anywhere,
}

/// Hashes of parts of secrets, and not the parts themselves: what is forgotten is gone.
struct Parts {
    key: RandomState,
    /// What [`Parts::mixed`] hashes with.
    keys: (u64, u64),
    /// A bit for each hash in `short`, and maybe for others: most of a text is seen to be harmless by this alone.
    filter: Box<[u64; 1024]>,
    /// Every part of [`SHORTEST`] bytes.
    short: HashSet<u64, BuildHasherDefault<Same>>,
    /// Every part of [`LONG`] bytes, and whole secrets that are shorter.
    long: HashSet<u64, BuildHasherDefault<Same>>,
    /// The lengths of those.
    lengths: BTreeSet<usize>,
    /// Whole secrets of less than [`SHORTEST`] bytes, and their lengths.
    tiny: HashSet<u64, BuildHasherDefault<Same>>,
}

impl Default for Parts {
    fn default() -> Self {
        let key = RandomState::new();
        Self {
            keys: (key.hash_one(0), key.hash_one(1) | 1),
            key,
            filter: Box::new([0; 1024]),
            short: HashSet::default(),
            long: HashSet::default(),
            lengths: BTreeSet::new(),
            tiny: HashSet::default(),
        }
    }
}

impl Parts {
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
        if form.len() < SHORTEST {
            if form.len() >= TINY {
                self.tiny.insert(self.key.hash_one(form));
            }
            return;
        }
        let length = form.len().min(LONG);
        self.lengths.insert(length);
        self.add_short(form);
        self.long.extend(form.windows(length).map(|part| self.key.hash_one(part)));
    }

    fn add_short(&mut self, form: &[u8]) {
        for part in form.windows(SHORTEST) {
            let hash = self.mixed(part.iter().fold(0, |window, byte| window << 8 | u64::from(*byte)));
            self.short.insert(hash);
            self.filter[filtered(hash).0] |= filtered(hash).1;
        }
    }

    /// The hash of [`SHORTEST`] bytes; made for every byte of every reading of a text, and so cheap.
    fn mixed(&self, window: u64) -> u64 {
        let hash = (window ^ self.keys.0).wrapping_mul(self.keys.1);
        (hash ^ hash >> 32).wrapping_mul(self.keys.1)
    }

    /// Where there is something of a secret, in order, none touching the next.
    fn find(&self, text: &[u8], cut: Cut) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        if self.short.is_empty() && self.tiny.is_empty() {
            return found;
        }
        readings::each(text, cut == Cut::Anywhere, &mut |reading| self.find_in(reading, cut, &mut found));
        joined(found)
    }

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
            let hash = self.mixed(window);
            if self.filter[filtered(hash).0] & filtered(hash).1 != 0 && end + 1 >= SHORTEST {
                let at = end + 1 - SHORTEST;
                if let Some(length) = self.part(&text[at..], hash, cut) {
                    add(at, length);
                }
            }
        }
        if cut == Cut::Anywhere && !self.tiny.is_empty() {
            for length in TINY..SHORTEST {
                let parts = text.windows(length).enumerate();
                let tiny = parts.filter(|(_, part)| self.tiny.contains(&self.key.hash_one(part)));
                tiny.for_each(|(at, _)| add(at, length));
            }
        }
    }

    /// The length of the longest part of a secret that a text begins with, whose first bytes have this hash.
    fn part(&self, text: &[u8], hash: u64, cut: Cut) -> Option<usize> {
        if !self.short.contains(&hash) {
            return None;
        }
        if cut == Cut::Anywhere && !is_in_public_text(&text[..SHORTEST]) {
            return Some(SHORTEST);
        }
        let is_long = |length: &&usize| {
            text.get(..**length).is_some_and(|part| self.long.contains(&self.key.hash_one(part)))
        };
        self.lengths.iter().rev().find(is_long).copied()
    }
}

/// Of the last eight bytes, those of a part of [`SHORTEST`].
const WINDOW: u64 = (1 << (8 * SHORTEST)) - 1;

/// The word of [`Parts::filter`] and the bit in it.
fn filtered(hash: u64) -> (usize, u64) {
    ((hash >> 54) as usize, 1 << (hash >> 48 & 63))
}

/// What is compared: lower case, and a blank as a query string writes it.
fn folded(text: impl Iterator<Item = u8>) -> Vec<u8> {
    text.map(|byte| if byte == b'+' { b' ' } else { byte.to_ascii_lowercase() }).collect()
}

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

fn is_in_public_text(part: &[u8]) -> bool {
    static PARTS: LazyLock<HashSet<Vec<u8>>> = LazyLock::new(|| {
        let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect();
        let forms = PUBLIC.iter().flat_map(|public| [(*public).to_owned(), letters(public)]);
        let parts = |form: String| {
            form.as_bytes().windows(SHORTEST).map(<[u8]>::to_ascii_lowercase).collect::<Vec<_>>()
        };
        forms.flat_map(parts).collect()
    });
    PARTS.contains(part)
}

/// The hash of a hash.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
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

/// The text itself, or its lines: of a key those between `-----BEGIN` and `-----END`.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.split(['\n', '\r']).map(str::trim);
    lines
        .chain(std::iter::once(text).filter(|text| text.len() < 256))
        .filter(|line| !line.starts_with("-----"))
}

/// What is not a valid escape stays as it is.
pub(super) fn percent_decoded(text: &[u8]) -> Vec<u8> {
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

/// The text with a placeholder for each of the ranges; no character is cut in two.
fn without(text: &[u8], found: &[Range<usize>]) -> Vec<u8> {
    let inside = |at: usize| text.get(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let mut clean = Vec::with_capacity(text.len());
    let mut kept = 0;
    for range in found {
        let mut start = range.start;
        let mut end = range.end;
        while start > kept && inside(start) {
            start -= 1;
        }
        while inside(end) {
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
