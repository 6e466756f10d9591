//! The difference between an existing ConfigMap and the data that it should have.
//!
//! Compressed values are compared by their uncompressed content: bytes of another compressor are no reason to write.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use aws_lc_rs::digest::{Context, SHA256};
use flate2::read::MultiGzDecoder;

use super::data::{DesiredData, Value, ValueEncoding};
use crate::sha256::sha256;

/// The data of a ConfigMap as the API server has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfigMapData {
    /// The field `data`.
    pub data: BTreeMap<String, String>,
    /// The field `binaryData`, base64 decoded.
    pub binary_data: BTreeMap<String, Vec<u8>>,
}

/// The keys that a write adds, changes and removes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Difference {
    /// Keys that are missing.
    pub added: BTreeSet<String>,
    /// Keys that have another value.
    pub changed: BTreeSet<String>,
    /// Keys that should not exist.
    pub removed: BTreeSet<String>,
}

impl Difference {
    /// Returns true if there is no difference.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

impl ConfigMapData {
    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.data.keys().chain(self.binary_data.keys())
    }

    /// SHA-256 of a key's content, decompressed if it is gzip in `binaryData`. `None` if the key is absent or empty.
    pub(super) fn content_of(&self, key: &str) -> Option<[u8; 32]> {
        let text = self.data.get(key).map(String::as_bytes);
        let stored = text
            .or_else(|| self.binary_data.get(key).map(Vec::as_slice))
            .filter(|bytes| !bytes.is_empty())?;
        Some(match text {
            None => content_digest(stored).unwrap_or_else(|| sha256(&[stored])),
            Some(text) => sha256(&[text]),
        })
    }

    /// The changes that turn this data into the desired data.
    pub fn difference(&self, desired: &DesiredData) -> Difference {
        let mut difference = Difference::default();
        for (key, value) in desired.values() {
            match (self.data.get(key), self.binary_data.get(key)) {
                (None, None) => difference.added.insert(key.clone()),
                (Some(text), None) if value.text() == Some(text) => false,
                (None, Some(bytes)) if has_same_content(value, bytes) => false,
                _ => difference.changed.insert(key.clone()),
            };
        }
        difference.removed =
            self.keys().filter(|key| !desired.values().contains_key(*key)).cloned().collect();
        difference
    }
}

/// Returns true if bytes of `binaryData` have the same content as the value.
fn has_same_content(value: &Value, stored: &[u8]) -> bool {
    match value.form() {
        ValueEncoding::Text => false,
        ValueEncoding::Binary => value.bytes() == stored,
        ValueEncoding::Gzip if value.bytes() == stored => true,
        ValueEncoding::Gzip => content_digest(stored).as_ref() == Some(value.digest()),
    }
}

/// SHA-256 of gzip data's content; `None` if the data is not gzip. Decompresses as a stream, because foreign data may
/// decompress to any size.
fn content_digest(stored: &[u8]) -> Option<[u8; 32]> {
    let mut reader = MultiGzDecoder::new(stored);
    let mut context = Context::new(&SHA256);
    let mut buffer = [0; 16 << 10];
    loop {
        match reader.read(&mut buffer).ok()? {
            0 => return context.finish().as_ref().try_into().ok(),
            count => context.update(&buffer[..count]),
        }
    }
}
