//! A plan: what every ConfigMap should hold, computed from rules and a tree, and what is in the way.
//!
//! A plan is always whole; what its policies refuse is in [`Plan::refused`], and the caller checks that first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::finding::{Finding, Refused};
use super::payload::{LimitExceeded, Payload, Value, ValueEncoding};
use super::policies::Policies;
use super::rules::ClusterNamespace;
use super::tree::FileRef;

/// The key that the stamp has, as in Prow.
pub(super) const VERSION: &str = "VERSION";

/// Contents of the tree's files.
pub trait Contents {
    /// The whole content of a file.
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

    /// What files become, in the order in which they are asked for, in so many bytes of memory.
    fn values(&mut self, wanted: &[Source], room: u64) -> Result<Vec<Arc<Value>>, Unmade> {
        let mut left = room;
        let make = |(at, source): (usize, &Source)| {
            let content = self.read(source.file).map_err(|error| Unmade::Unread { at, error })?;
            let value = Arc::new(Value::new(content, source.compress));
            left = left.checked_sub(value.bytes().len() as u64).ok_or(Unmade::TooMuch)?;
            Ok(value)
        };
        wanted.iter().enumerate().map(make).collect()
    }

    /// Told of all values of a plan, so many bytes, for the next process.
    fn keep(&mut self, _bytes: u64, _all: &mut dyn Iterator<Item = (Source, &Value)>) {}
}

/// What a value is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// The file.
    pub file: FileRef,
    /// Whether the value is compressed.
    pub compress: bool,
}

/// Why there are no values.
#[derive(Debug)]
pub enum Unmade {
    /// There is no memory for all of them.
    TooMuch,
    /// A file could not be read.
    Unread {
        /// Which of those that were asked for; of several, the first.
        at: usize,
        /// What its reader says.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What a plan depends on besides rules and tree.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The repository that the tree is from, `organisation/name`, for rules that ask.
    pub repository: Option<String>,
    /// The text to stamp every ConfigMap with, under the key `VERSION`, unless a file has that key.
    pub stamp: Option<String>,
    /// Whether to go on.
    pub policies: Policies,
    /// Bytes of memory that keys and values may take together.
    pub most_bytes: Option<u64>,
}

/// One ConfigMap, in all the places where it is the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// Where it goes; sorted.
    pub places: Vec<ClusterNamespace>,
    /// What is in it, but for the stamp.
    pub payload: Payload,
    /// The files its keys are from.
    pub files: BTreeMap<String, Arc<[u8]>>,
    /// Whether any file matches a rule that feeds it. Where none does, its rules have lost their last file, and it
    /// depends on who wrote it whether it is to go.
    pub fed: bool,
    /// What the key `VERSION` holds, if that is the stamp.
    pub stamp: Option<String>,
    /// The rules that feed it, by their index.
    pub rules: Vec<usize>,
}

impl Planned {
    /// All that is in it.
    pub fn content(&self) -> Payload {
        match &self.stamp {
            Some(stamp) => self.payload.with_text(VERSION, stamp.clone()),
            None => self.payload.clone(),
        }
    }

    /// The first ceiling that it is over, with another stamp besides its own: a key, and the length of its text.
    pub(super) fn over(&self, other: Option<(&str, usize)>) -> Option<LimitExceeded> {
        let stamps: Vec<_> = self.stamp.iter().map(|text| (VERSION, text.len())).chain(other).collect();
        self.payload.over(&stamps)
    }

    /// That it is over a ceiling, with its largest keys.
    pub(super) fn oversize(&self, over: LimitExceeded) -> Finding {
        let file = |key: &String| self.files.get(key).map(|path| path.to_vec()).unwrap_or_default();
        let alone = self.payload.values().iter().find_map(|(key, value)| {
            let one = Payload::new([(key.clone(), value.clone())].into());
            one.over(&[]).map(|over| (key.clone(), value.form() == ValueEncoding::Gzip, over))
        });
        if let Some((key, compressed, LimitExceeded { what, bytes, limit })) = alone {
            let (name, path) = (self.name.clone(), file(&key));
            return Finding::OversizeKey { name, key, path, what, bytes, limit, compressed };
        }
        let largest = self.content().largest().into_iter().map(|(key, size)| {
            let path = file(&key);
            (key, size, path)
        });
        Finding::Oversize {
            name: self.name.clone(),
            what: over.what,
            bytes: over.bytes,
            limit: over.limit,
            largest: largest.collect(),
        }
    }
}

/// The desired state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The ConfigMaps, by name and place.
    pub configmaps: Vec<Arc<Planned>>,
    /// Why it must not be carried out.
    pub refused: Vec<Finding>,
    /// What was skipped as the policies say, and what else is worth a warning.
    pub noted: Vec<Finding>,
}

impl Plan {
    /// The plan, if it may be carried out.
    pub fn accepted(self) -> Result<Self, Refused> {
        if self.refused.is_empty() { Ok(self) } else { Err(Refused(self.refused)) }
    }
}

/// A file that could not be read: nothing is known about the whole.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", crate::payload::escaped(.path))]
pub struct ReadFailed {
    /// Its path in the tree.
    pub path: Vec<u8>,
    /// What its reader says.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Findings that are kept of each kind, refused and noted. An author of commits chooses how many there are.
pub(super) const FINDINGS_MAX: usize = 2_000;

/// Findings, each once, refused or noted.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) refused: Vec<Finding>,
    pub(super) noted: Vec<Finding>,
    seen: HashSet<(bool, Finding)>,
}

impl Findings {
    /// Refuses or notes, as the policy says.
    pub(super) fn add(&mut self, finding: Finding, refuse: bool) {
        let refuse = refuse && !finding.is_harmless();
        let list = if refuse { &mut self.refused } else { &mut self.noted };
        if list.len() < FINDINGS_MAX && self.seen.insert((refuse, finding.clone())) {
            list.push(finding);
        }
    }
}
