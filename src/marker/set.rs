//! Checks whether the ConfigMaps that a consumer sees in a volume belong to one complete set.
//!
//! A kubelet reads the ConfigMaps of a projected volume one after the other, so one swap of the volume may show one of
//! them newer than another, and stay so for minutes; the order in which they were written proves nothing. Instead, each
//! ConfigMap carries its own digest (its stamp, a key of its data), and the marker, written after all of them, has the
//! digest of each ConfigMap in the complete set.
//!
//! # The convention
//!
//! - The marker's keys are files in the volume's directory [`MARKER`]. They name the members of the set; each has to be
//!   in the volume.
//! - A ConfigMap's stamp is the file that [`Stamps`] names: `.{name}.stamp` by default, so that the ConfigMaps need no
//!   directories of their own. The writer's `--stamp-key` has to be the same.
//!
//! A stamp does not show a change by another writer that leaves the stamp as it was. The writer's next resync repairs
//! that.

use std::collections::BTreeMap;

use super::Marker;

/// The volume's directory that has the marker's keys.
pub const MARKER: &str = ".treeswap";

/// The placeholder for a ConfigMap's name.
const NAME: &str = "{name}";

/// The path of each ConfigMap's stamp, relative to the volume, with `{name}` for the ConfigMap's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stamps(String);

/// Why a text is not a path of stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadStamps {
    /// The placeholder is missing, so that all ConfigMaps would share one stamp.
    #[error("it does not contain {{name}}, the placeholder for the ConfigMap's name")]
    Nameless,
    /// The path is absolute, or has an empty component, `.` or `..`.
    #[error("it must be a path within the volume, without `..`")]
    Outside,
}

impl Default for Stamps {
    fn default() -> Self {
        Self(format!(".{NAME}.stamp"))
    }
}

impl std::str::FromStr for Stamps {
    type Err = BadStamps;

    fn from_str(text: &str) -> Result<Self, BadStamps> {
        if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(BadStamps::Outside);
        }
        if text.contains(NAME) { Ok(Self(text.to_owned())) } else { Err(BadStamps::Nameless) }
    }
}

impl Stamps {
    /// The path of one ConfigMap's stamp.
    pub fn of(&self, name: &str) -> String {
        stamp_of(&self.0, name)
    }
}

/// Replaces the placeholder in a pattern by a ConfigMap's name.
pub fn stamp_of(pattern: &str, name: &str) -> String {
    pattern.replace(NAME, name)
}

/// Why a set is not complete.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Gap {
    /// The volume has no marker, or none of its keys.
    #[error("no marker is in {MARKER}")]
    NoMarker,
    /// A key of the marker cannot be parsed.
    #[error("the marker's entry for {0} cannot be read")]
    Damaged(String),
    /// The writer has not been able to write this ConfigMap's desired content.
    #[error("{0} could not be written yet")]
    Unwritten(String),
    /// A ConfigMap is not in the volume, or has no stamp there.
    #[error("{name} has no stamp: there is no {path}")]
    Unstamped {
        /// The ConfigMap.
        name: String,
        /// The path where its stamp should be.
        path: String,
    },
    /// A ConfigMap is newer or older than the marker.
    #[error("{name} is {is}, and the marker has {has}", is = short(.stamp), has = short(.marked))]
    Unlike {
        /// The ConfigMap.
        name: String,
        /// The digest in its stamp.
        stamp: String,
        /// The digest in the marker.
        marked: String,
    },
}

/// The reasons why the set is not complete; empty if it is. `marker` has the marker's keys and values; `stamp` returns
/// the content of a path in the volume, or `None` if there is no such file.
pub fn gaps(
    marker: &BTreeMap<String, String>,
    stamps: &Stamps,
    mut stamp: impl FnMut(&str) -> Option<String>,
) -> Vec<Gap> {
    let marker = Marker::read(marker);
    if marker.entries.is_empty() && marker.damaged.is_empty() {
        return vec![Gap::NoMarker];
    }
    let mut gaps: Vec<Gap> = marker.damaged.into_keys().map(Gap::Damaged).collect();
    for (name, entry) in marker.entries {
        let path = stamps.of(&name);
        match stamp(&path) {
            _ if entry.wanted.is_some() => gaps.push(Gap::Unwritten(name)),
            None => gaps.push(Gap::Unstamped { name, path }),
            Some(stamp) if stamp.trim() == entry.digest => {}
            Some(stamp) => gaps.push(Gap::Unlike { name, stamp, marked: entry.digest }),
        }
    }
    gaps
}

/// The first twelve characters of a digest, for messages.
fn short(digest: &str) -> &str {
    let digest = digest.trim();
    digest.char_indices().nth(12).map_or(digest, |(end, _)| &digest[..end])
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::*;

    fn marker(entries: &[(&str, &str, Option<&str>)]) -> BTreeMap<String, String> {
        let entry = |(name, digest, wanted): &(&str, &str, Option<&str>)| {
            let entry = Entry {
                digest: (*digest).to_owned(),
                uid: "u".into(),
                version: "7".into(),
                revision: "r".into(),
                wanted: wanted.map(str::to_owned),
            };
            ((*name).to_owned(), entry)
        };
        Marker { entries: entries.iter().map(entry).collect(), ..Marker::default() }.data()
    }

    fn judge(marker: &BTreeMap<String, String>, stamps: &[(&str, &str)]) -> Vec<String> {
        let there: BTreeMap<&str, &str> = stamps.iter().copied().collect();
        let gaps = gaps(marker, &Stamps::default(), |path| there.get(path).map(|text| (*text).to_owned()));
        gaps.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_set_is_complete_when_every_map_is_what_the_marker_says() {
        let marker = marker(&[("a", "1", None), ("b.c", "2", None)]);
        assert!(judge(&marker, &[(".a.stamp", "1"), (".b.c.stamp", "2\n")]).is_empty());
        assert_eq!(
            judge(&marker, &[(".a.stamp", "1"), (".b.c.stamp", "3")]),
            ["b.c is 3, and the marker has 2"]
        );
        assert_eq!(judge(&marker, &[(".a.stamp", "1")]), ["b.c has no stamp: there is no .b.c.stamp"]);
    }

    #[test]
    fn a_map_that_could_not_be_written_makes_no_set_even_where_its_stamp_agrees() {
        let marker = marker(&[("a", "1", Some("2"))]);
        for stamp in ["1", "2"] {
            assert_eq!(judge(&marker, &[(".a.stamp", stamp)]), ["a could not be written yet"]);
        }
    }

    #[test]
    fn no_marker_or_a_damaged_one_makes_no_set() {
        assert_eq!(judge(&BTreeMap::new(), &[(".a.stamp", "1")]), ["no marker is in .treeswap"]);
        let only = BTreeMap::from([("_revision".to_owned(), "r".to_owned())]);
        assert_eq!(judge(&only, &[]), ["no marker is in .treeswap"]);
        let mut damaged = marker(&[("a", "1", None)]);
        damaged.insert("b".into(), "{".into());
        assert_eq!(judge(&damaged, &[(".a.stamp", "1")]), ["the marker's entry for b cannot be read"]);
    }

    #[test]
    fn stamps_are_found_by_name_within_the_volume() {
        let stamps: Stamps = "{name}/STAMP".parse().unwrap();
        assert_eq!(stamps.of("job-config"), "job-config/STAMP");
        assert_eq!("STAMP".parse::<Stamps>(), Err(BadStamps::Nameless));
        for outside in ["/{name}", "../{name}", "{name}/", "./{name}", ""] {
            assert_eq!(outside.parse::<Stamps>(), Err(BadStamps::Outside), "{outside}");
        }
        assert_eq!(short("0123456789abcdef"), "0123456789ab");
        assert_eq!(short("ä"), "ä");
    }
}
