//! What an existing ConfigMap lacks and has too much, against what should be in it.
//!
//! Compressed values are compared by what is in them: another compressor's bytes are no reason to write.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use aws_lc_rs::digest;
use flate2::read::MultiGzDecoder;

use super::payload::{Payload, Value, ValueEncoding, sha256};

/// A ConfigMap as the API server has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Current {
    /// Text by key.
    pub data: BTreeMap<String, String>,
    /// Bytes by key, decoded.
    pub binary: BTreeMap<String, Vec<u8>>,
}

/// Keys by what has to happen to them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Difference {
    /// To be added.
    pub added: BTreeSet<String>,
    /// To be replaced.
    pub changed: BTreeSet<String>,
    /// To be removed.
    pub removed: BTreeSet<String>,
}

impl Difference {
    /// Whether nothing has to happen.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

impl Current {
    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.data.keys().chain(self.binary.keys())
    }

    /// The digest of what a reader of a key finds, unpacked if it is packed; nothing for an empty one.
    pub(super) fn content_of(&self, key: &str) -> Option<[u8; 32]> {
        let text = self.data.get(key).map(String::as_bytes);
        let stored =
            text.or_else(|| self.binary.get(key).map(Vec::as_slice)).filter(|bytes| !bytes.is_empty())?;
        Some(match text {
            None => content_digest(stored).unwrap_or_else(|| sha256(&[stored])),
            Some(text) => sha256(&[text]),
        })
    }

    /// What it takes to make it the payload.
    pub fn difference(&self, desired: &Payload) -> Difference {
        let mut difference = Difference::default();
        for (key, value) in desired.values() {
            match (self.data.get(key), self.binary.get(key)) {
                (None, None) => difference.added.insert(key.clone()),
                (Some(text), None) if value.text() == Some(text) => false,
                (None, Some(bytes)) if same(value, bytes) => false,
                _ => difference.changed.insert(key.clone()),
            };
        }
        difference.removed =
            self.keys().filter(|key| !desired.values().contains_key(*key)).cloned().collect();
        difference
    }
}

/// Whether bytes of `binaryData` give a reader what the value does.
fn same(value: &Value, stored: &[u8]) -> bool {
    match value.form() {
        ValueEncoding::Text => false,
        ValueEncoding::Binary => value.bytes() == stored,
        ValueEncoding::Gzip if value.bytes() == stored => true,
        ValueEncoding::Gzip => content_digest(stored).as_ref() == Some(value.digest()),
    }
}

/// The digest of what is compressed, read as a stream: what is stored there is not ours, and may unpack to anything.
fn content_digest(stored: &[u8]) -> Option<[u8; 32]> {
    let mut reader = MultiGzDecoder::new(stored);
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = [0; 16 << 10];
    loop {
        match reader.read(&mut buffer).ok()? {
            0 => return context.finish().as_ref().try_into().ok(),
            count => context.update(&buffer[..count]),
        }
    }
}
