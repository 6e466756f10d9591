//! Generations: their directory names, their order by age, and the record kept about each one.
//!
//! Pure data: nothing here reads a clock or touches the file system.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock::Now;
use crate::revision::{ObjectId, Revision};

/// The symlink to the current generation in the kubelet's layout, relative to the root.
pub const DATA_LINK: &str = "..data";

/// The directory that holds the generations in git-sync's layout, relative to the root.
pub const WORKTREES: &str = ".worktrees";

/// A generation's directory name, in one of three forms:
///
/// - `..2026_11_20_15_04_05.123456789`, UTC with nanoseconds, as the kubelet names its own
///   (`^\.\.\d{4}_\d{2}_\d{2}_\d{2}_\d{2}_\d{2}\.\d{1,10}$`). Consumers rely on the leading `..` and nothing else.
/// - A full commit id, in git-sync's layout: consumers take the base name of the link's target for the commit.
/// - A full commit id, a dot and a serial number, in the same layout: another generation of a commit whose plain name
///   is taken. A generation that was replaced by a newer one of the same commit gets such a name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String", inline))]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Error: the text is not a generation's name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the name of a generation")]
pub struct NotAName(String);

impl Name {
    /// Returns the name for a generation made at `wall`. It sorts after every name in `others` that is a valid time,
    /// even if the clock went back: consumers that compare resolved paths must see a new one. A name that is not a
    /// valid time (`..9999_99_…`) was not made by a writer that keeps this order, and is ignored.
    pub fn new<'n>(wall: Timestamp, others: impl IntoIterator<Item = &'n Self>) -> Self {
        let next = others.into_iter().filter_map(Self::successor).max();
        let name = Self::at(wall);
        next.filter(|next| *next > name).unwrap_or(name)
    }

    fn at(at: Timestamp) -> Self {
        Self(at.strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string())
    }

    /// Returns the next name in order: one nanosecond later or, if the fraction is a kubelet's (random digits, not a
    /// fraction of a second), the start of the next second. `None` if the name is not a valid time, or is the last one.
    fn successor(&self) -> Option<Self> {
        let later = |at: Option<Timestamp>, by| Some(Self::at(at?.checked_add(by).ok()?));
        let (seconds, _) = self.0.rsplit_once('.')?;
        let nanosecond = later(self.timestamp(), SignedDuration::from_nanos(1));
        let second = || later(timestamp("..%Y_%m_%d_%H_%M_%S", seconds), SignedDuration::from_secs(1));
        nanosecond.filter(|next| next > self).or_else(second).filter(|next| next > self)
    }

    /// Returns the name of a revision's generation in git-sync's layout: the commit id.
    pub fn from_commit(revision: Revision) -> Self {
        Self(revision.to_string())
    }

    /// Returns the name of another generation of the same commit: the commit id with a serial number.
    #[must_use]
    pub fn numbered(&self, serial: u64) -> Self {
        let commit = self.0.split('.').next().unwrap_or_default();
        Self(format!("{commit}.{serial}"))
    }

    /// Parses a name of any form.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_timestamp(text).or_else(|| Self::parse_commit(text))
    }

    /// Parses a timestamp name: made by treeswap or by a kubelet.
    pub fn parse_timestamp(text: &str) -> Option<Self> {
        is_timestamp(text).then(|| Self(text.to_owned()))
    }

    /// Parses a name of git-sync's layout: a commit id, with or without a serial number.
    pub fn parse_commit(text: &str) -> Option<Self> {
        commit_in(text).map(|_| Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The commit in the name. `None` for timestamp names.
    pub fn commit(&self) -> Option<Revision> {
        commit_in(&self.0).map(Revision)
    }

    /// The path of the generation's directory, relative to the root.
    pub fn relative_path(&self) -> PathBuf {
        match self.commit() {
            Some(_) => Path::new(WORKTREES).join(&self.0),
            None => PathBuf::from(&self.0),
        }
    }

    /// The time in the name. `None` if it is not a valid time with nanoseconds (a kubelet's fraction is random digits).
    pub fn timestamp(&self) -> Option<Timestamp> {
        timestamp("..%Y_%m_%d_%H_%M_%S.%f", &self.0)
    }
}

fn timestamp(format: &str, text: &str) -> Option<Timestamp> {
    let at = jiff::civil::DateTime::strptime(format, text).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

fn is_timestamp(text: &str) -> bool {
    let Some((date, fraction)) = text.strip_prefix("..").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let parts: Vec<&str> = date.split('_').collect();
    parts.len() == 6
        && is_number(parts[0], 4..=4)
        && parts[1..].iter().all(|part| is_number(part, 2..=2))
        && is_number(fraction, 1..=10)
}

/// Returns the commit id in a name of git-sync's layout. Only lower case is accepted, as git writes ids, so that one
/// commit has one name.
fn commit_in(text: &str) -> Option<ObjectId> {
    let (commit, serial) =
        text.split_once('.').map_or((text, None), |(commit, serial)| (commit, Some(serial)));
    let is_valid = serial.is_none_or(|serial| is_number(serial, 1..=20))
        && !commit.bytes().any(|byte| byte.is_ascii_uppercase());
    ObjectId::from_hex(commit).filter(|_| is_valid)
}

fn is_number(text: &str, digits: std::ops::RangeInclusive<usize>) -> bool {
    digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NotAName;
    fn try_from(text: String) -> Result<Self, NotAName> {
        Self::parse(&text).ok_or(NotAName(text))
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

/// The time a generation stopped being current. Its age is computed from the boot clock, which cannot be set and runs
/// through suspend; [`crate::retention::age`] also handles reboots. The wall clock time is only shown to people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Retired {
    /// Wall clock time.
    pub at: Timestamp,
    /// `CLOCK_BOOTTIME`, in nanoseconds.
    pub boottime_ns: u64,
    /// `/proc/sys/kernel/random/boot_id` of that boot.
    pub boot_id: String,
}

impl Retired {
    /// Takes the time from a reading of the clocks.
    pub fn at(now: &Now) -> Self {
        Self {
            at: now.wall,
            boottime_ns: u64::try_from(now.boottime.as_nanos()).unwrap_or(u64::MAX), // reached after 584 years
            boot_id: now.boot_id.clone(),
        }
    }

    /// Returns true if it was certainly taken in another boot than this reading of the clocks.
    pub fn is_of_another_boot(&self, now: &Now) -> bool {
        !self.boot_id.is_empty() && !now.boot_id.is_empty() && self.boot_id != now.boot_id
    }
}

/// A chain of generations that share inodes through hard links. Every generation of a lineage descends from the files
/// of the same first one, and an unchanged file is one inode in all of them. Used to count shared bytes once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lineage {
    /// The generation that was written in full and started the lineage.
    pub first: Name,
    /// Number of directories in this generation, submodules included. Directories are never shared.
    pub directories: u64,
    /// Number of files replaced or removed between the first generation and this one.
    pub replaced_files: u64,
    /// Sum of the sizes of those files, in bytes.
    pub replaced_bytes: u64,
}

impl Lineage {
    /// Starts a lineage with a generation that was written in full.
    pub fn new(first: Name, directories: u64) -> Self {
        Self { first, directories, replaced_files: 0, replaced_bytes: 0 }
    }

    /// Returns the lineage of the next generation, in which `files` files of `bytes` bytes in total were replaced.
    #[must_use]
    pub fn replacing(self, files: u64, bytes: u64) -> Self {
        let replaced_files = self.replaced_files.saturating_add(files);
        Self { replaced_files, replaced_bytes: self.replaced_bytes.saturating_add(bytes), ..self }
    }
}

/// Returns the part of a tree's bytes and entries that is not shared with another tree: everything, unless both have
/// the same lineage.
pub fn unshared(
    lineage: Option<&Lineage>,
    (bytes, entries): (u64, u64),
    other: Option<&Lineage>,
) -> (u64, u64) {
    match (lineage, other) {
        (Some(lineage), Some(other)) if lineage.first == other.first => {
            let files = lineage.replaced_files.abs_diff(other.replaced_files);
            let replaced = lineage.replaced_bytes.abs_diff(other.replaced_bytes);
            (bytes.min(replaced), entries.min(lineage.directories.saturating_add(files)))
        }
        _ => (bytes, entries),
    }
}

/// The record of one generation in the root's state file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GenerationRecord {
    /// The name of its directory.
    pub name: Name,
    /// The revision it holds; the most recent one if several revisions have the same content.
    pub revision: Revision,
    /// With several sources, the commit of each source, by the source's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Revision>,
    /// The object id of the revision's tree.
    pub tree: ObjectId,
    /// Digest of the settings that shape the content besides the tree (sparse patterns, symlink policy). If it changes,
    /// a new generation is published even if the tree is the same.
    #[serde(rename = "selection")]
    pub selection_digest: String,
    /// Number of files, symlinks and directories in it.
    pub entries: u64,
    /// Sum of its files' sizes, in bytes. It takes more on disk.
    pub bytes: u64,
    /// Which generations it shares inodes with. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// When it was published.
    pub published: Timestamp,
    /// The boot id of the boot it was written in.
    pub boot_id: String,
    /// True if it was synced to disk before its publication. Otherwise it is not trusted after a reboot.
    pub synced: bool,
    /// When it stopped being current. `None` while it is current.
    pub retired: Option<Retired>,
}

impl GenerationRecord {
    /// Returns the record for a generation directory that the state file does not list. Its tree is unknown, so no
    /// revision equals it and the next attempt publishes again.
    pub fn unknown(name: Name, entries: u64, bytes: u64, now: &Now) -> Self {
        Self {
            published: name.timestamp().unwrap_or(now.wall),
            // The name is only a claim: nothing relies on it until the content was compared with the commit.
            revision: name.commit().unwrap_or(Revision(ObjectId([0; 20]))),
            name,
            sources: BTreeMap::new(),
            tree: ObjectId([0; 20]),
            selection_digest: String::new(),
            entries,
            bytes,
            lineage: None,
            boot_id: String::new(),
            synced: false,
            retired: None,
        }
    }

    /// Returns the bytes and entries it does not share with a tree of that lineage.
    pub fn unshared(&self, other: Option<&Lineage>) -> (u64, u64) {
        unshared(self.lineage.as_ref(), (self.bytes, self.entries), other)
    }

    /// Returns the record with its content marked as unknown.
    #[must_use]
    pub fn untrusted(self) -> Self {
        Self {
            tree: ObjectId([0; 20]),
            selection_digest: String::new(),
            boot_id: String::new(),
            synced: false,
            ..self
        }
    }

    /// Sort key by age, newest last: the name if it is a timestamp, otherwise the time of publication.
    pub fn order(&self) -> (Option<&Name>, Timestamp) {
        (Some(&self.name).filter(|name| name.commit().is_none()), self.published)
    }

    /// Returns true if it is known which tree the generation holds.
    pub fn is_known(&self) -> bool {
        self.tree != ObjectId([0; 20]) // git writes no tree with the null id
    }

    /// The revision it holds, from its record or, if the root has lost its records, from its name.
    pub fn known_revision(&self) -> Option<Revision> {
        Some(self.revision).filter(|_| self.is_known() || self.name.commit().is_some())
    }

    /// Returns true if the generation must be on disk as it was written: it was synced, or the machine has not rebooted
    /// since.
    pub fn is_trusted(&self, now: &Now) -> bool {
        self.is_known() && (self.synced || (!now.boot_id.is_empty() && self.boot_id == now.boot_id))
    }
}

/// Estimates the bytes that generations take together on a file system with this block size: the content, plus one
/// block for each entry and each top directory. The estimate can be made before anything is written. For the content of
/// a file it is never too low, and too high by at most a block: by almost nothing for a file of a few bytes, by half a
/// block on average. Files that several generations share count once.
pub fn bytes_on_disk<'r>(records: impl IntoIterator<Item = &'r GenerationRecord>, block: u64) -> u64 {
    let mut records: Vec<_> = records.into_iter().collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.order()));
    let mut seen: Vec<&Lineage> = Vec::new(); // the oldest member so far of each lineage
    let sizes = records.into_iter().map(|record| {
        let lineage = record.lineage.as_ref();
        let at = seen.iter().position(|seen| lineage.is_some_and(|lineage| lineage.first == seen.first));
        let own = record.unshared(at.map(|at| seen[at]));
        match (at, lineage) {
            (Some(at), Some(lineage)) => seen[at] = lineage,
            (_, lineage) => seen.extend(lineage),
        }
        on_disk(own, block)
    });
    sizes.fold(0, u64::saturating_add) // the numbers come from a file, so the sum may overflow
}

/// Estimates the bytes on disk of `entries` entries with `bytes` bytes of content: see [`bytes_on_disk`].
pub fn on_disk((bytes, entries): (u64, u64), block: u64) -> u64 {
    bytes.saturating_add(entries.saturating_add(1).saturating_mul(block))
}

#[cfg(test)]
mod tests;
