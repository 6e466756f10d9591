//! The difference between an existing ConfigMap and the data that it should have.
//!
//! Compressed values are compared by their uncompressed content: bytes of another compressor are no reason to write.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use aws_lc_rs::digest::{Context, SHA256};
use flate2::read::MultiGzDecoder;

use super::data::{DesiredData, FILE_MAX, Value, ValueEncoding};
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

    /// SHA-256 of the contents of some keys, without those that are absent or empty. What is gzip in `binaryData` has a
    /// second one, of the uncompressed content: whether the file itself is compressed is not known.
    pub(super) fn contents_of<'k>(&self, keys: impl Iterator<Item = &'k String>) -> Vec<[u8; 32]> {
        let mut room = INFLATED_MAX;
        let mut contents = Vec::new();
        for key in keys {
            let text = self.data.get(key).map(String::as_bytes);
            let binary = self.binary_data.get(key).map(Vec::as_slice).filter(|stored| !stored.is_empty());
            let stored = text.filter(|text| !text.is_empty()).or(binary);
            contents.extend(stored.map(|stored| sha256(&[stored])));
            contents.extend(binary.and_then(|stored| content_digest(stored, &mut room)));
        }
        contents
    }

    /// The changes that turn this data into the desired data.
    pub fn difference(&self, desired: &DesiredData) -> Difference {
        let mut room = INFLATED_MAX;
        let mut difference = Difference::default();
        for (key, value) in desired.values() {
            match (self.data.get(key), self.binary_data.get(key)) {
                (None, None) => difference.added.insert(key.clone()),
                (Some(text), None) if value.text() == Some(text) => false,
                (None, Some(bytes)) if has_same_content(value, bytes, &mut room) => false,
                _ => difference.changed.insert(key.clone()),
            };
        }
        difference.removed =
            self.keys().filter(|key| !desired.values().contains_key(*key)).cloned().collect();
        difference
    }
}

/// The most bytes that one comparison decompresses the values of a ConfigMap to, which takes a fraction of a second:
/// foreign data may decompress to a thousand times its size, where text does to some twenty times. What exceeds it
/// counts as different, and is equal once it has our bytes.
const INFLATED_MAX: u64 = FILE_MAX;

/// Returns true if bytes of `binaryData` have the same content as the value. Takes what it decompresses from `room`.
fn has_same_content(value: &Value, stored: &[u8], room: &mut u64) -> bool {
    match value.form() {
        ValueEncoding::Text => false,
        ValueEncoding::Binary => value.bytes() == stored,
        ValueEncoding::Gzip if value.bytes() == stored => true,
        ValueEncoding::Gzip => content_digest(stored, room).as_ref() == Some(value.digest()),
    }
}

/// SHA-256 of gzip data's content; `None` if the data is not gzip, or decompresses to more bytes than there is `room`
/// for. Takes those bytes from it, all of it if it is not enough.
fn content_digest(stored: &[u8], room: &mut u64) -> Option<[u8; 32]> {
    if *room == 0 {
        return None;
    }
    let mut reader = MultiGzDecoder::new(stored);
    let mut context = Context::new(&SHA256);
    let mut buffer = [0; 16 << 10];
    loop {
        match reader.read(&mut buffer).ok()? {
            0 => return context.finish().as_ref().try_into().ok(),
            count => {
                let Some(left) = room.checked_sub(count as u64) else {
                    *room = 0;
                    return None;
                };
                *room = left;
                context.update(&buffer[..count]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Compressed as another program does it: with a time.
    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut bytes = Value::compressed(content).bytes().to_vec();
        bytes[4] = 1;
        bytes
    }

    fn keys(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn contents_are_known_as_they_are_stored_and_without_compression() {
        let compressed = gzip(b"in a file");
        let live = ConfigMapData {
            data: [("text".to_owned(), "words".to_owned()), ("empty".to_owned(), String::new())].into(),
            binary_data: [
                ("gzip".to_owned(), compressed.clone()),
                ("bytes".to_owned(), vec![0xff]),
                ("nothing".to_owned(), Vec::new()),
            ]
            .into(),
        };
        let names = keys(&["text", "empty", "absent", "gzip", "bytes", "nothing"]);
        let expected = [&b"words"[..], &compressed, b"in a file", &[0xff]].map(|content| sha256(&[content]));
        assert_eq!(live.contents_of(names.iter()), expected);
    }

    #[test]
    fn what_is_decompressed_is_taken_from_the_room_for_it() {
        let stored = gzip(&[b'x'; 1_000]);
        let mut room = 1_001;
        assert_eq!(content_digest(&stored, &mut room), Some(sha256(&[&[b'x'; 1_000]])));
        assert_eq!(room, 1);
        assert_eq!(content_digest(&stored, &mut room), None);
        assert_eq!(room, 0);
        assert_eq!(content_digest(&gzip(b""), &mut room), None, "nothing is decompressed any more");
        assert_eq!(content_digest(&stored, &mut 1_000), Some(sha256(&[&[b'x'; 1_000]])));
        assert_eq!(content_digest(&stored, &mut 999), None);
        assert_eq!(content_digest(b"no gzip", &mut 1_000), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_the_same_if_they_are_equal() {
        let value = Arc::new(Value::new(vec![0xff, 1], false));
        let desired = DesiredData::new([("a".to_owned(), value)].into());
        for (stored, is_same) in [(vec![0xff, 1], true), (vec![0xff, 2], false)] {
            let binary_data = [("a".to_owned(), stored)].into();
            let live = ConfigMapData { binary_data, ..ConfigMapData::default() };
            assert_eq!(live.difference(&desired).is_empty(), is_same);
        }
    }

    /// Some kilobytes in a ConfigMap may stand for gigabytes.
    #[test]
    fn what_decompresses_to_more_than_a_file_may_have_is_different() {
        let content = vec![0; INFLATED_MAX as usize / 2 + 1];
        let stored = gzip(&content);
        assert!(stored.len() < 100_000);
        let value = Arc::new(Value::compressed(&content));
        let binary_data = keys(&["a", "b"]).into_iter().map(|key| (key, stored.clone())).collect();
        let live = ConfigMapData { binary_data, ..ConfigMapData::default() };
        for (names, contents, changed) in [(&["a"][..], 2, &[""; 0][..]), (&["a", "b"], 3, &["b"])] {
            assert_eq!(live.contents_of(keys(names).iter()).len(), contents);
            let values = keys(names).into_iter().map(|key| (key, Arc::clone(&value))).collect();
            let desired = DesiredData::new(values);
            let difference = live.difference(&desired);
            assert_eq!(difference.changed, keys(changed).into_iter().collect::<BTreeSet<String>>());
            let written = keys(names).into_iter().map(|key| (key, value.bytes().to_vec())).collect();
            let live = ConfigMapData { binary_data: written, ..ConfigMapData::default() };
            assert!(live.difference(&desired).is_empty(), "equal bytes need not be decompressed");
        }
    }
}
