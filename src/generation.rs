//! The name of a generation, its order, and the record kept about it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock::Now;
use crate::revision::{ObjectId, Revision};

/// A generation's directory name: `..2026_11_20_15_04_05.123456789`, UTC with nanoseconds, as the kubelet names its
/// own (`^\.\.\d{4}_\d{2}_\d{2}_\d{2}_\d{2}_\d{2}\.\d{1,10}$`). Consumers rely on the leading `..` and nothing else.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// The text is not a generation's name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the name of a generation")]
pub struct NotAName(String);

impl Name {
    /// The name for a generation made at `wall`. A new generation always sorts after `latest`, whatever the clock did:
    /// consumers that compare resolved paths must see a new one.
    pub fn new(wall: Timestamp, latest: Option<&Self>) -> Self {
        let mut at = wall;
        loop {
            let name = Self(at.strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string());
            match latest {
                Some(latest) if name <= *latest => {
                    let last = latest.timestamp().unwrap_or(at);
                    at = last.max(at) + jiff::SignedDuration::from_nanos(1);
                }
                _ => return name,
            }
        }
    }

    /// Reads a name that was found in a directory: ours, or one that a kubelet made.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = |s: &str, n: std::ops::RangeInclusive<usize>| {
            n.contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit())
        };
        let (date, fraction) = text.strip_prefix("..")?.split_once('.')?;
        let parts: Vec<&str> = date.split('_').collect();
        let shaped = parts.len() == 6
            && digits(parts[0], 4..=4)
            && parts[1..].iter().all(|part| digits(part, 2..=2))
            && digits(fraction, 1..=10);
        shaped.then(|| Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// When it was made, if the name holds a real time with nanoseconds (a kubelet's fraction is random).
    pub fn timestamp(&self) -> Option<Timestamp> {
        jiff::civil::DateTime::strptime("..%Y_%m_%d_%H_%M_%S.%f", &self.0)
            .ok()?
            .to_zoned(jiff::tz::TimeZone::UTC)
            .ok()
            .map(|zoned| zoned.timestamp())
    }
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

/// When a generation stopped being current. The boot clock decides (it cannot be set, and runs through suspend): see
/// [`crate::retention::age`], also for what holds after a reboot. The wall clock is for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Retired {
    /// Wall clock.
    pub at: Timestamp,
    /// `CLOCK_BOOTTIME`, in nanoseconds.
    pub boottime_ns: u64,
    /// `/proc/sys/kernel/random/boot_id` of that boot.
    pub boot_id: String,
}

impl Retired {
    /// From a reading of the clocks.
    pub fn at(now: &Now) -> Self {
        Self {
            at: now.wall,
            boottime_ns: u64::try_from(now.boottime.as_nanos()).unwrap_or(u64::MAX), // reached after 584 years
            boot_id: now.boot_id.clone(),
        }
    }
}

/// What is known about one generation; kept in the root's state file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its directory.
    pub name: Name,
    /// The revision it holds.
    pub revision: Revision,
    /// The revision's tree.
    pub tree: ObjectId,
    /// A digest of the choices that shape content besides the tree (sparse patterns, symlink policy): another one, another generation.
    pub selection: String,
    /// Files, links and directories in it.
    pub entries: u64,
    /// Sum of its files' sizes, in bytes.
    pub bytes: u64,
    /// When it was published.
    pub published: Timestamp,
    /// The boot it was written in, and whether it was made durable before its publication.
    pub boot_id: String,
    /// See `boot_id`: a generation that was not made durable is not trusted after another boot.
    pub synced: bool,
    /// Set once it is no longer current.
    pub retired: Option<Retired>,
}

impl Record {
    /// The record of a generation that was found without one: which revision it holds is not known, so that no
    /// revision equals it and the next attempt publishes anew.
    pub fn unknown(name: Name, entries: u64, bytes: u64, now: &Now) -> Self {
        Self {
            published: name.timestamp().unwrap_or(now.wall),
            name,
            revision: Revision(ObjectId([0; 20])),
            tree: ObjectId([0; 20]),
            selection: String::new(),
            entries,
            bytes,
            boot_id: String::new(),
            synced: false,
            retired: None,
        }
    }

    /// Whether it is known which revision the generation holds.
    pub fn is_known(&self) -> bool {
        self.tree != ObjectId([0; 20]) // git writes no tree with the null id
    }

    /// Whether the generation is on disk as it was written: it was synced, or no power cut can have happened since.
    pub fn is_trusted(&self, now: &Now) -> bool {
        self.is_known() && (self.synced || (!now.boot_id.is_empty() && self.boot_id == now.boot_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_grow_even_when_the_clock_steps_back() {
        let late: Timestamp = "2026-11-20T15:04:05.123456789Z".parse().unwrap();
        let early: Timestamp = "2001-01-01T00:00:00Z".parse().unwrap();
        let first = Name::new(late, None);
        assert_eq!(first.as_str(), "..2026_11_20_15_04_05.123456789");
        let second = Name::new(early, Some(&first));
        assert!(second > first, "{second} does not sort after {first}");
        assert_eq!(Name::parse(second.as_str()), Some(second));
    }

    #[test]
    fn only_generation_names_are_recognised() {
        for other in [
            "..data",
            "..data_tmp",
            "..treeswap",
            "2026_11_20_15_04_05.1",
            "..2026_11_20_15_04_05.",
            "..2026_11_20_15_04.1",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
        assert!(Name::parse("..2019_01_31_00_00_00.0123456789").is_some(), "a kubelet's name");
    }
}
