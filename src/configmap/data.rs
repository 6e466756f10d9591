//! The keys and bytes of one ConfigMap, and the API server's limits on them.
//!
//! The same input and the same build of treeswap give the same compressed bytes; another build may compress
//! differently. To find out whether the data changed, compare digests: they are computed over the uncompressed
//! content.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{Context, SHA256};
use flate2::{Compression, GzBuilder};

use crate::human;
use crate::sha256::{hex, sha256};

/// Limit on the sum of a ConfigMap's values, in bytes; key names do not count. Kubernetes' `MaxSecretSize`, which the
/// validation of ConfigMaps uses.
pub(super) const VALUES_MAX: usize = 1 << 20;
/// Largest file that is read for a value, in bytes. A larger one counts as too large for a ConfigMap, even compressed.
pub const FILE_MAX: u64 = 64 << 20;
/// etcd's default limit on one object, in bytes (`--max-request-bytes`); keys and metadata count.
pub(super) const OBJECT_MAX: usize = 3 << 19;
/// The API server's limit on the body of a request, in bytes.
pub(super) const BODY_MAX: usize = 3 << 20;
/// Bytes reserved for metadata: names, labels, annotations, and what the server adds.
const METADATA: usize = 4 << 10;
/// Bytes that protobuf adds to one map entry: tags and lengths.
const FRAMING: usize = 12;

/// Why a text is not a valid key, as a clause that follows it in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum InvalidKey {
    /// The key is empty.
    #[error("it is empty")]
    Empty,
    /// The key exceeds the API server's limit.
    #[error("it is longer than 253 bytes")]
    Long,
    /// The key contains a character that is not allowed.
    #[error("only letters, digits, `-`, `_` and `.` are allowed")]
    Characters,
    /// The name is reserved for the volume's own entries.
    #[error("it is `.` or begins with `..`")]
    Dots,
}

/// Checks that the API server accepts a text as a key.
pub fn check_key(key: &[u8]) -> Result<(), InvalidKey> {
    match key {
        b"" => Err(InvalidKey::Empty),
        _ if key.len() > 253 => Err(InvalidKey::Long),
        b"." => Err(InvalidKey::Dots),
        _ if key.starts_with(b"..") => Err(InvalidKey::Dots),
        _ if key.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) => Ok(()),
        _ => Err(InvalidKey::Characters),
    }
}

/// Checks that the API server accepts a text as the name of a ConfigMap: a DNS subdomain.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > 253 {
        return Err("it is longer than 253 bytes");
    }
    let is_label = |label: &str| {
        label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.split('.').all(is_label) {
        Ok(())
    } else {
        Err(
            "only lower-case letters, digits, `-` and `.` are allowed, and each part begins and ends with one of the first two",
        )
    }
}

/// Checks that a text can be the name of a namespace: a DNS label.
pub fn check_namespace(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("it is empty"),
        _ if name.len() > 63 => Err("it is longer than 63 bytes"),
        _ if name.contains('.') => Err("it has a `.`"),
        _ => check_name(name).map_err(
            |_| "only lower-case letters, digits and `-` are allowed, and it begins and ends with a letter or a digit",
        ),
    }
}

/// The index of the partition that a key belongs to, by Prow's rule.
pub fn partition(key: &str, partitions: usize) -> usize {
    usize::from(key_hash(key)[0]) % partitions.max(1)
}

/// The hash that assigns keys to partitions: SHA-256 of the key.
pub(super) fn key_hash(key: &str) -> [u8; 32] {
    sha256(&[key.as_bytes()])
}

/// The field of the ConfigMap that a value is stored in, and its form. The numbers are part of the digests that
/// clusters store, so they must not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueEncoding {
    /// In `data`, unchanged: valid UTF-8.
    Text = 0,
    /// In `binaryData`, unchanged.
    Binary = 1,
    /// In `binaryData`, compressed with gzip.
    Gzip = 2,
}

/// A file's content as a ConfigMap stores it, or only its size: bytes that no ConfigMap can hold are dropped, because a
/// plan says how many they are and writes none of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// Empty if they were dropped.
    bytes: Vec<u8>,
    /// The number of bytes, dropped or not.
    size: usize,
    form: ValueEncoding,
    /// Length of the value in the JSON of a request, in bytes.
    json_len: usize,
    /// SHA-256 of the content before compression.
    digest: [u8; 32],
}

/// In place of the digest of a content that was not read.
const NO_DIGEST: [u8; 32] = [0; 32];

impl Value {
    /// Encodes a file's content. The bytes are dropped at once if they exceed what one ConfigMap holds.
    pub fn new(content: Vec<u8>, compress: bool) -> Self {
        if compress {
            return Self::compressed(&content);
        }
        let digest = sha256(&[&content]);
        let (form, bytes) = match std::str::from_utf8(&content) {
            Ok(_) => (ValueEncoding::Text, Capped::of(content)),
            Err(_) => (ValueEncoding::Binary, Capped::of(content)),
        };
        Self::of(bytes, form, digest)
    }

    /// The same for content that is compressed and that the caller keeps.
    pub fn compressed(content: &[u8]) -> Self {
        Self::of(gzip(content), ValueEncoding::Gzip, sha256(&[content]))
    }

    /// The value of a file of this size, if the size alone says that no ConfigMap can hold it; `None` if the file has
    /// to be read. Its size is the file's, also if it is compressed, and its digest is none: a ConfigMap that is
    /// refused or left out has no use for that.
    pub fn unread(size: u64, compress: bool) -> Option<Self> {
        let (most, form) = match compress {
            false => (VALUES_MAX as u64, ValueEncoding::Binary),
            true => (FILE_MAX, ValueEncoding::Gzip),
        };
        let size = usize::try_from(size).ok().filter(|_| size > most)?;
        Some(Self::of(Capped { bytes: Vec::new(), size }, form, NO_DIGEST))
    }

    /// The limit that the file exceeds, if the value is an unread one that would be compressed: how many bytes it would
    /// then have is not known.
    pub(super) fn over_in_file(&self) -> Option<LimitExceeded> {
        let is_it = self.form == ValueEncoding::Gzip && self.digest == NO_DIGEST;
        let over = LimitExceeded { what: "in its file", bytes: self.size, limit: FILE_MAX as usize };
        is_it.then_some(over)
    }

    /// Restores a value from its stored bytes, form and digest, which are trusted to belong together. `None` if the
    /// form is text and the bytes are not UTF-8.
    pub fn restored(bytes: Vec<u8>, form: ValueEncoding, digest: [u8; 32]) -> Option<Self> {
        let is_valid = form != ValueEncoding::Text || std::str::from_utf8(&bytes).is_ok();
        is_valid.then(|| Self::of(Capped::of(bytes), form, digest))
    }

    fn of(Capped { bytes, size }: Capped, form: ValueEncoding, digest: [u8; 32]) -> Self {
        let json_len = match form {
            _ if size > VALUES_MAX => size, // the limit on values is exceeded, and it comes before that on JSON
            ValueEncoding::Text => json_len(&bytes),
            ValueEncoding::Binary | ValueEncoding::Gzip => size.div_ceil(3) * 4, // base64
        };
        Self { bytes, size, form, json_len, digest }
    }

    /// The same value with its bytes dropped.
    pub fn without_bytes(&self) -> Self {
        Self { bytes: Vec::new(), ..*self }
    }

    /// Returns true unless the bytes were dropped. Then no accepted plan has the value.
    pub fn has_bytes(&self) -> bool {
        self.bytes.len() == self.size
    }

    /// The stored bytes: compressed if the form is gzip. Empty if they were dropped.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of stored bytes, also of those that were dropped.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The stored text, empty if it was dropped; `None` if the value goes into `binaryData`.
    pub fn text(&self) -> Option<&str> {
        if self.form == ValueEncoding::Text { std::str::from_utf8(&self.bytes).ok() } else { None }
    }

    /// The field that the value is stored in, and its form.
    pub fn form(&self) -> ValueEncoding {
        self.form
    }

    /// SHA-256 of the content before compression.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Length of a text in JSON: `\n` and the other short escapes take two bytes, other control characters six.
fn json_len(text: &[u8]) -> usize {
    let control = text.iter().filter(|byte| **byte < 0x20).count();
    let short = text.iter().filter(|byte| matches!(byte, b'\n' | b'\r' | b'\t' | 0x08 | 0x0c)).count();
    let quoted = text.iter().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    text.len() + quoted + short + 5 * (control - short)
}

/// Bytes that are dropped once they exceed what one ConfigMap holds, and then only counted.
#[derive(Debug, Default)]
struct Capped {
    bytes: Vec<u8>,
    size: usize,
}

impl Capped {
    fn of(bytes: Vec<u8>) -> Self {
        let size = bytes.len();
        Self { bytes: if size > VALUES_MAX { Vec::new() } else { bytes }, size }
    }
}

impl Write for Capped {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.size += part.len();
        if self.size > VALUES_MAX {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(part);
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compresses to one gzip member at level 6, without time, name or system in its header, so that the result depends
/// only on the content.
fn gzip(content: &[u8]) -> Capped {
    let builder = GzBuilder::new().mtime(0).operating_system(255);
    let mut writer = builder.write(Capped::default(), Compression::new(6));
    #[expect(clippy::expect_used, reason = "the writer below it is memory")]
    writer.write_all(content).and_then(|()| writer.finish()).expect("writing to memory does not fail")
}

/// The keys and values that one ConfigMap should have. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct DesiredData(Arc<Content>);

#[derive(Debug, Default)]
struct Content {
    values: BTreeMap<String, Arc<Value>>,
    /// Computed on first use.
    digest: OnceLock<String>,
}

impl PartialEq for DesiredData {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.values == other.0.values
    }
}

impl Eq for DesiredData {}

/// A limit that the data of a ConfigMap exceeds. Its text follows "has" in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("{bytes} bytes {what}, the limit is {limit}")]
pub struct LimitExceeded {
    /// What `bytes` counts, as a phrase for messages.
    pub what: &'static str,
    /// The size.
    pub bytes: usize,
    /// The limit.
    pub limit: usize,
}

impl DesiredData {
    /// Data with these values, by key.
    pub fn new(values: BTreeMap<String, Arc<Value>>) -> Self {
        Self(Arc::new(Content { values, digest: OnceLock::new() }))
    }

    /// The values by key.
    pub fn values(&self) -> &BTreeMap<String, Arc<Value>> {
        &self.0.values
    }

    /// A copy in which `key` has the given text.
    pub(super) fn with_text(&self, key: &str, text: String) -> Self {
        let mut values = self.values().clone();
        values.insert(key.to_owned(), Arc::new(Value::new(text.into_bytes(), false)));
        Self::new(values)
    }

    /// Sum of the values' sizes in bytes, which the API server's limit applies to.
    pub fn size(&self) -> usize {
        self.values().values().map(|value| value.size).fold(0, usize::saturating_add)
    }

    /// The digest of keys, forms and uncompressed contents, in hexadecimal. docs/reference/digests.md defines it.
    pub fn digest(&self) -> &str {
        self.0.digest.get_or_init(|| {
            let mut context = Context::new(&SHA256);
            for (key, value) in self.values() {
                context.update(&(key.len() as u64).to_be_bytes());
                context.update(key.as_bytes());
                context.update(&[value.form as u8]);
                context.update(&value.digest);
            }
            hex(context.finish().as_ref())
        })
    }

    /// The first limit that the data exceeds when `stamps` (key and length of the value) are added to it; `None` if
    /// it fits.
    pub(super) fn over(&self, stamps: &[(&str, usize)]) -> Option<LimitExceeded> {
        let (mut size, mut object, mut body) = (0_usize, METADATA, METADATA);
        let values = self.values().iter().map(|(key, value)| (key.len(), value.size, value.json_len));
        let stamps = stamps.iter().map(|(key, length)| (key.len(), *length, *length));
        for (key, bytes, json) in values.chain(stamps) {
            // The size of a file that is not read may be any number.
            size = size.saturating_add(bytes);
            object = object.saturating_add(bytes).saturating_add(key + FRAMING);
            body = body.saturating_add(json).saturating_add(key + 6);
        }
        let over = |what, bytes, limit| (bytes > limit).then_some(LimitExceeded { what, bytes, limit });
        over("of values", size, VALUES_MAX)
            .or_else(|| over("as etcd stores it", object, OBJECT_MAX))
            .or_else(|| over("of JSON", body, BODY_MAX))
    }

    /// The five largest keys with the sizes of their values, in one line.
    pub fn largest_keys(&self) -> String {
        let keys: Vec<String> = self.largest().iter().map(|(key, bytes)| sized(key, *bytes)).collect();
        keys.join(", ")
    }

    /// The five largest keys, largest first.
    pub(super) fn largest(&self) -> Vec<(String, usize)> {
        let mut sizes: Vec<(String, usize)> =
            self.values().iter().map(|(key, value)| (key.clone(), value.size)).collect();
        sizes.sort_by(|(a, size_a), (b, size_b)| size_b.cmp(size_a).then_with(|| a.cmp(b)));
        sizes.truncate(5);
        sizes
    }
}

/// A key and the size of its value, for messages. The key is abbreviated: it may have up to 253 bytes.
pub(super) fn sized(key: &str, bytes: usize) -> String {
    format!("{} {}", human::elide_middle(key), human::bytes(bytes as u64))
}
