//! The keys and bytes of one ConfigMap, and what the API server takes.
//!
//! Compressed bytes are the same for the same input and the same build of treeswap, and may differ between builds:
//! to find out whether a payload changed, compare digests, which are of what was compressed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest;
use flate2::{Compression, GzBuilder};

use crate::human;

/// What all values of a ConfigMap may take together; key names are not counted. Kubernetes' `MaxSecretSize`, which the
/// validation of ConfigMaps uses.
pub(super) const MOST_VALUES: usize = 1 << 20;
/// What etcd takes for one object unless configured otherwise (`--max-request-bytes`); keys and metadata count.
pub(super) const MOST_OBJECT: usize = 3 << 19;
/// What the API server takes for the body of a request.
pub(super) const MOST_BODY: usize = 3 << 20;
/// Allowed for metadata: names, labels, annotations, and what the server adds.
const METADATA: usize = 4 << 10;
/// Protobuf's framing of one entry of a map: tags and lengths.
const FRAMING: usize = 12;

/// Why something is no key, in words that follow it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum KeyFault {
    /// Nothing at all.
    #[error("it is empty")]
    Empty,
    /// Longer than a file's name may be.
    #[error("it is longer than 253 bytes")]
    Long,
    /// Something else than the characters allowed.
    #[error("only letters, digits, `-`, `_` and `.` are allowed")]
    Characters,
    /// Reserved for the volume's own entries.
    #[error("it is `.` or begins with `..`")]
    Dots,
}

/// Whether the API server takes it as a key.
pub fn check_key(key: &[u8]) -> Result<(), KeyFault> {
    match key {
        b"" => Err(KeyFault::Empty),
        _ if key.len() > 253 => Err(KeyFault::Long),
        b"." => Err(KeyFault::Dots),
        _ if key.starts_with(b"..") => Err(KeyFault::Dots),
        _ if key.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) => Ok(()),
        _ => Err(KeyFault::Characters),
    }
}

/// Whether the API server takes it as the name of a ConfigMap: a DNS subdomain.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > 253 {
        return Err("it is longer than 253 bytes");
    }
    let label = |label: &str| {
        label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.split('.').all(label) {
        Ok(())
    } else {
        Err(
            "only lower-case letters, digits, `-` and `.` are allowed, and each part begins and ends with one of the first two",
        )
    }
}

/// Whether it can be a namespace: a DNS label.
pub(super) fn check_namespace(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("it is empty"),
        _ if name.len() > 63 => Err("it is longer than 63 bytes"),
        _ if name.contains('.') => Err("it has a `.`"),
        _ => check_name(name),
    }
}

/// Which of so many partitions a key belongs to: Prow's rule.
pub fn partition(key: &str, partitions: usize) -> usize {
    usize::from(key_hash(key)[0]) % partitions.max(1)
}

/// The hash that spreads keys.
pub(super) fn key_hash(key: &str) -> [u8; 32] {
    sha256(&[key.as_bytes()])
}

pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

/// Where a value goes and how it is written there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueEncoding {
    /// Into `data`, as it is: valid UTF-8.
    Text = 0, // the numbers are in digests that clusters hold
    /// Into `binaryData`, as it is.
    Binary = 1,
    /// Into `binaryData`, compressed.
    Gzip = 2,
}

/// A file's content as a ConfigMap holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    bytes: Vec<u8>,
    form: ValueEncoding,
    /// Bytes of it in the JSON of a request.
    json_len: usize,
    /// Of the content before compression.
    digest: [u8; 32],
}

impl Value {
    /// Of a file's content.
    pub fn new(content: Vec<u8>, compress: bool) -> Self {
        let digest = sha256(&[&content]);
        let (form, bytes) = match std::str::from_utf8(&content) {
            _ if compress => (ValueEncoding::Gzip, gzip(&content)),
            Ok(_) => (ValueEncoding::Text, content),
            Err(_) => (ValueEncoding::Binary, content),
        };
        Self::of(bytes, form, digest)
    }

    /// One that was made before, of what it gave. Nothing where that is no value.
    pub fn restored(bytes: Vec<u8>, form: ValueEncoding, digest: [u8; 32]) -> Option<Self> {
        let is_one = form != ValueEncoding::Text || std::str::from_utf8(&bytes).is_ok();
        is_one.then(|| Self::of(bytes, form, digest))
    }

    fn of(bytes: Vec<u8>, form: ValueEncoding, digest: [u8; 32]) -> Self {
        let json_len = match form {
            ValueEncoding::Text => json_len(&bytes),
            ValueEncoding::Binary | ValueEncoding::Gzip => bytes.len().div_ceil(3) * 4, // base64
        };
        Self { bytes, form, json_len, digest }
    }

    /// What is stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What is stored, if it goes into `data`.
    pub fn text(&self) -> Option<&str> {
        if self.form == ValueEncoding::Text { std::str::from_utf8(&self.bytes).ok() } else { None }
    }

    /// Where it goes.
    pub fn form(&self) -> ValueEncoding {
        self.form
    }

    /// Of the content before compression.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Bytes of a text in JSON: `\n` and its like take two, other control characters six.
fn json_len(text: &[u8]) -> usize {
    let control = text.iter().filter(|byte| **byte < 0x20).count();
    let short = text.iter().filter(|byte| matches!(byte, b'\n' | b'\r' | b'\t' | 0x08 | 0x0c)).count();
    let quoted = text.iter().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    text.len() + quoted + short + 5 * (control - short)
}

/// One member, level 6, and a header without time, name or system: nothing but the content decides the bytes.
fn gzip(content: &[u8]) -> Vec<u8> {
    let mut writer = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::new(6));
    #[expect(clippy::expect_used, reason = "the writer below it is memory")]
    writer.write_all(content).and_then(|()| writer.finish()).expect("writing to memory does not fail")
}

/// What is in one ConfigMap. A copy shares it.
#[derive(Clone, Debug, Default)]
pub struct Payload(Arc<Content>);

#[derive(Debug, Default)]
struct Content {
    values: BTreeMap<String, Arc<Value>>,
    /// Once somebody asked for it.
    digest: OnceLock<String>,
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.values == other.0.values
    }
}

impl Eq for Payload {}

/// A ceiling of the API server, and how much a payload has of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LimitExceeded {
    pub(super) what: &'static str,
    pub(super) bytes: usize,
    pub(super) limit: usize,
}

impl Payload {
    /// Of these keys.
    pub fn new(values: BTreeMap<String, Arc<Value>>) -> Self {
        Self(Arc::new(Content { values, digest: OnceLock::new() }))
    }

    /// Keys and values, in the keys' order.
    pub fn values(&self) -> &BTreeMap<String, Arc<Value>> {
        &self.0.values
    }

    /// With one key more, or another text for it.
    pub(super) fn with_text(&self, key: &str, text: String) -> Self {
        let mut values = self.values().clone();
        values.insert(key.to_owned(), Arc::new(Value::new(text.into_bytes(), false)));
        Self::new(values)
    }

    /// What the API server counts against its limit: the values.
    pub fn size(&self) -> usize {
        self.values().values().map(|value| value.bytes.len()).sum()
    }

    /// A digest of keys, forms and contents before compression, in hexadecimal; docs/reference/digests.md has its
    /// definition.
    pub fn digest(&self) -> &str {
        self.0.digest.get_or_init(|| {
            let mut context = digest::Context::new(&digest::SHA256);
            for (key, value) in self.values() {
                context.update(&(key.len() as u64).to_be_bytes());
                context.update(key.as_bytes());
                context.update(&[value.form as u8]);
                context.update(&value.digest);
            }
            context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
        })
    }

    /// The first ceiling that it is over, with so many stamps besides: keys, and the lengths of their texts.
    pub(super) fn over(&self, stamps: &[(&str, usize)]) -> Option<LimitExceeded> {
        let (mut size, mut object, mut body) = (0, METADATA, METADATA);
        let values = self.values().iter().map(|(key, value)| (key.len(), value.bytes.len(), value.json_len));
        let stamps = stamps.iter().map(|(key, length)| (key.len(), *length, *length));
        for (key, bytes, json) in values.chain(stamps) {
            size += bytes;
            object += key + bytes + FRAMING;
            body += key + json + 6;
        }
        let over = |what, bytes, limit| (bytes > limit).then_some(LimitExceeded { what, bytes, limit });
        over("of values", size, MOST_VALUES)
            .or_else(|| over("as etcd stores it", object, MOST_OBJECT))
            .or_else(|| over("of JSON", body, MOST_BODY))
    }

    /// The five largest keys with the sizes of their values, in one line.
    pub fn largest_keys(&self) -> String {
        let keys: Vec<String> = self.largest().iter().map(|(key, bytes)| sized(key, *bytes)).collect();
        keys.join(", ")
    }

    /// The five largest keys, largest first.
    pub(super) fn largest(&self) -> Vec<(String, usize)> {
        let mut sizes: Vec<(String, usize)> =
            self.values().iter().map(|(key, value)| (key.clone(), value.bytes.len())).collect();
        sizes.sort_by(|(a, size_a), (b, size_b)| size_b.cmp(size_a).then_with(|| a.cmp(b)));
        sizes.truncate(5);
        sizes
    }
}

/// A key and the size of its value. Keys may be as long as 253 bytes.
pub(super) fn sized(key: &str, bytes: usize) -> String {
    format!("{} {}", human::middle(key), human::bytes(bytes as u64))
}
