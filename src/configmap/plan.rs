//! A plan: what every ConfigMap should hold, computed from rules and a tree, and the problems found on the way.
//!
//! A plan always covers all ConfigMaps of the rules that are for the repository. Findings that refuse it are in
//! [`Plan::refused`]; the caller has to check that first, as [`Plan::accepted`] does.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::data::{DesiredData, LimitExceeded, Value, ValueEncoding};
use super::finding::{FINDINGS_MAX, Finding, Refused, shown_path};
use super::policies::{Policies, TimeLimit};
use super::rules::ClusterNamespace;
use super::tree::FileRef;

/// The key that names the revision, as in Prow.
pub(super) const VERSION: &str = "VERSION";

/// Length of a digest of data ([`DesiredData::digest`]).
const DIGEST_LEN: usize = 64;

/// Gives the planner the contents of a tree's files.
pub trait Contents {
    /// Reads the whole content of a file.
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

    /// The size of a file in bytes. Reads the file, unless an implementation knows it.
    fn size(&mut self, file: FileRef) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        self.read(file).map(|content| content.len() as u64)
    }

    /// Makes the values of files, in the order of `wanted`, and drops the bytes of those that `is_needed` returns false
    /// for. Fails with [`ValueError::OverMemoryLimit`] if they take more than `room` bytes together. Dropped bytes
    /// count, so that the order does not decide; those that no ConfigMap can hold do not, as they are never kept.
    fn values(
        &mut self,
        wanted: &[ValueSource],
        room: u64,
        is_needed: &IsNeeded<'_>,
    ) -> Result<Vec<Arc<Value>>, ValueError> {
        let mut left = room;
        let make = |(at, source): (usize, &ValueSource)| {
            let unreadable = |error| ValueError::UnreadableFile { at, error };
            let size = self.size(source.file).map_err(unreadable)?;
            let value = match Value::unread(size, source.compress) {
                Some(value) => value,
                None => Value::new(self.read(source.file).map_err(unreadable)?, source.compress),
            };
            left = left.checked_sub(value.bytes().len() as u64).ok_or(ValueError::OverMemoryLimit)?;
            let value = if is_needed(at, value.size()) { value } else { value.without_bytes() };
            Ok(Arc::new(value))
        };
        wanted.iter().enumerate().map(make).collect()
    }

    /// Receives all values of a plan, `_bytes` bytes in total, so that an implementation can store them for the next
    /// process.
    fn keep(&mut self, _bytes: u64, _all: &mut dyn Iterator<Item = (ValueSource, &Value)>) {}
}

/// Returns true if the bytes of a value are needed. Called once for each value that was made, from any thread, with its
/// index in the request and its size.
pub type IsNeeded<'n> = dyn Fn(usize, usize) -> bool + Sync + 'n;

/// What a value is made from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ValueSource {
    /// The file.
    pub file: FileRef,
    /// Whether the value is compressed.
    pub compress: bool,
}

/// Why values could not be made.
#[derive(Debug)]
pub enum ValueError {
    /// They exceed the memory limit.
    OverMemoryLimit,
    /// A file could not be read.
    UnreadableFile {
        /// The file's index in the request. If several fail, the first one.
        at: usize,
        /// The cause.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What a plan depends on besides the rules and the tree.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The repository that the tree is from, `organisation/name`, for rules that are restricted to some repositories.
    pub repository: Option<String>,
    /// The text that every ConfigMap gets under the key `VERSION`, unless a file has that key.
    pub stamp: Option<String>,
    /// The key that the digest of every ConfigMap's data gets besides; `{name}` in it stands for the ConfigMap's name.
    pub stamp_key: Option<String>,
    /// What to do with ambiguous or oversized content.
    pub policies: Policies,
    /// Limit on the memory that keys and values take together, in bytes; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Limit on the time for matching the files of a tree; `None` for no limit.
    pub matching_limit: Option<TimeLimit>,
}

/// One planned ConfigMap, with all the places where it is identical.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// The clusters and namespaces it goes to; sorted. The parts of one that was split share them.
    pub places: Arc<[ClusterNamespace]>,
    /// Its data without the key `VERSION`. Empty if it is too large and not split: then it is refused or left out.
    pub data: DesiredData,
    /// The path of the file that each key of the data is from.
    pub files: BTreeMap<String, Arc<[u8]>>,
    /// Whether any rule of it has a file with a valid key. If not, its rules have lost their last file, and whether the
    /// ConfigMap is deleted depends on who wrote it.
    pub fed: bool,
    /// Whether it is left out because it is too large. Then it is neither written nor deleted, and its content here is
    /// empty.
    pub left_out: bool,
    /// The value of the key `VERSION`; `None` if the rules want none or a file has that key.
    pub stamp: Option<String>,
    /// The key that the digest of its data gets besides, if any. It may be invalid, or a file's.
    pub stamp_key: Option<String>,
    /// Indices of the rules that feed it.
    pub rules: Vec<usize>,
}

impl Planned {
    /// Its data, stamp included.
    pub fn content(&self) -> DesiredData {
        match &self.stamp {
            Some(stamp) => self.data.with_text(VERSION, stamp.clone()),
            None => self.data.clone(),
        }
    }

    /// The first limit that it exceeds; `None` if it fits.
    pub(super) fn over(&self) -> Option<LimitExceeded> {
        self.data.over(&self.stamps())
    }

    /// The finding that it exceeds a limit: names the key that is too large by itself, or else the largest keys.
    pub(super) fn oversize(&self, over: LimitExceeded) -> Finding {
        // With the stamps, which each part of a split has: a key that does not fit beside them cannot be helped.
        let stamps = self.stamps();
        let alone = self.data.values().iter().find_map(|(key, value)| {
            let one = DesiredData::new([(key.clone(), value.clone())].into());
            let over = one.over(&stamps)?;
            let over = value.over_in_file().unwrap_or(over);
            Some((key.clone(), value.form() == ValueEncoding::Gzip, over))
        });
        let name = self.name.clone();
        if let Some((key, compressed, over)) = alone {
            let path = self.path_of(&key);
            return Finding::OversizeKey { name, key, path, over, compressed };
        }
        Finding::Oversize { name, over, largest: self.largest() }
    }

    /// The largest keys, the key `VERSION` included, each with size and file. The file is empty for `VERSION`.
    fn largest(&self) -> Vec<(String, usize, Vec<u8>)> {
        let with_path = |(key, size): (String, usize)| {
            let path = self.path_of(&key);
            (key, size, path)
        };
        self.content().largest().into_iter().map(with_path).collect()
    }

    /// The keys that it has besides its data, each with the length of the value.
    pub(super) fn stamps(&self) -> Vec<(&str, usize)> {
        let version = self.stamp.as_ref().map(|text| (VERSION, text.len()));
        let digest = self.stamp_key.as_ref().map(|key| (key.as_str(), DIGEST_LEN));
        version.into_iter().chain(digest).collect()
    }

    /// The path of the file that a key is from, for messages; empty for `VERSION`.
    fn path_of(&self, key: &str) -> Vec<u8> {
        self.files.get(key).map(|path| shown_path(path)).unwrap_or_default()
    }
}

/// The ConfigMaps that one tree asks for, and the findings about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The ConfigMaps, sorted by name and places.
    pub configmaps: Vec<Arc<Planned>>,
    /// Findings that refuse the plan; it must not be carried out unless this is empty.
    pub refused: Vec<Finding>,
    /// Findings to warn of, for example what the policies skipped.
    pub noted: Vec<Finding>,
}

impl Plan {
    /// Returns the plan if it may be carried out, else the findings that refuse it.
    pub fn accepted(self) -> Result<Self, Refused> {
        if self.refused.is_empty() { Ok(self) } else { Err(Refused(self.refused)) }
    }
}

/// A file could not be read, so that there is no plan at all.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", crate::payload::escaped(.path))]
pub struct ReadFailed {
    /// The file's path in the tree.
    pub path: Vec<u8>,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Collects findings without duplicates.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) refused: Vec<Finding>,
    pub(super) noted: Vec<Finding>,
    seen: HashSet<(bool, Finding)>,
}

impl Findings {
    /// Adds a finding: to `refused` if `refuse` is set and the finding is not harmless, else to `noted`.
    pub(super) fn add(&mut self, finding: Finding, refuse: bool) {
        let refuse = refuse && !finding.is_harmless();
        let list = if refuse { &mut self.refused } else { &mut self.noted };
        if list.len() < FINDINGS_MAX && self.seen.insert((refuse, finding.clone())) {
            list.push(finding);
        }
    }
}
