//! The inventory (marker) of a namespace: what treeswap wrote there. It is stored as the data of a ConfigMap, which is
//! written after all others. A consumer that mounts it can recognize a complete set: the stamp of each ConfigMap equals
//! the digest in the inventory ([`set`]).

pub mod set;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the set's revision. No ConfigMap has this name, because `_` is not allowed in names.
const REVISION: &str = "_revision";
/// The key of the rules digest, followed by earlier ones, newest first.
const RULES: &str = "_rules";
/// How many earlier rules digests are kept.
const EARLIER_MAX: usize = 16;
/// Largest inventory, in bytes: the limit on a ConfigMap less some room for the keys.
const BYTES_MAX: usize = 1_000_000;

/// The entry of one ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The digest of the data that it was verified to hold.
    pub digest: String,
    /// The uid of the verified object; empty if none was verified yet.
    pub uid: String,
    /// The resourceVersion that was verified.
    #[serde(rename = "resourceVersion")]
    pub version: String,
    /// The revision that last changed its data.
    pub revision: String,
    /// The digest of desired data that could not be written yet. While any entry has one, the set is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

/// The inventory of one namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marker {
    /// The revision of the set.
    pub revision: String,
    /// The digest of the rules and extra keys that the set was written under; empty if the set was never completed.
    pub rules: String,
    /// Earlier rules digests, newest first.
    pub before: Vec<String>,
    /// The entries, by ConfigMap name.
    pub entries: BTreeMap<String, Entry>,
    /// Keys that could not be parsed, with their values. They are written back unchanged, and nothing is deleted while
    /// there are any.
    pub damaged: BTreeMap<String, String>,
}

/// An inventory would be too large for one ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the inventory of namespace {namespace} would have {bytes} bytes, more than one ConfigMap takes")]
pub struct TooLong {
    /// The namespace.
    pub namespace: String,
    /// Its size.
    pub bytes: usize,
}

impl Entry {
    /// The entry of a ConfigMap that is about to be written or could not be written: no verified state, only the
    /// desired digest.
    pub fn wanted(digest: &str) -> Self {
        Self {
            digest: String::new(),
            uid: String::new(),
            version: String::new(),
            revision: String::new(),
            wanted: Some(digest.to_owned()),
        }
    }

    /// Returns true if the entry is of the object that has this uid and whose annotation has this digest: the verified
    /// one or, as an object has no uid before it is created, one that was about to be written when the entry was.
    pub fn lists(&self, uid: &str, digest: Option<&str>) -> bool {
        let is_verified = !self.uid.is_empty() && self.uid == uid;
        is_verified || digest.is_some_and(|digest| self.announces(digest))
    }

    /// Returns true if the object was verified to hold the data with this digest, and no other data was to be written
    /// since. The same data may be still to be written, after another writer changed or deleted it.
    pub fn is_verified_as(&self, digest: &str) -> bool {
        self.digest == digest && self.wanted.as_deref().is_none_or(|wanted| wanted == digest)
    }

    /// Returns true if an object with this digest was about to be written.
    fn announces(&self, digest: &str) -> bool {
        let is_unverified = self.uid.is_empty() && !digest.is_empty();
        self.wanted.as_deref() == Some(digest) || (is_unverified && self.digest == digest)
    }
}

impl Marker {
    /// Parses the data of the marker's ConfigMap. Keys that cannot be parsed go to [`Self::damaged`]; the others still
    /// count.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let mut marker = Self::default();
        for (key, text) in data {
            match key.as_str() {
                REVISION => marker.revision.clone_from(text),
                RULES => {
                    let mut rules = text.split_whitespace().map(str::to_owned);
                    marker.rules = rules.next().unwrap_or_default();
                    marker.before = rules.take(EARLIER_MAX).collect();
                }
                name => match serde_json::from_str(text) {
                    Ok(entry) => drop(marker.entries.insert(name.to_owned(), entry)),
                    Err(_) => drop(marker.damaged.insert(name.to_owned(), text.clone())),
                },
            }
        }
        marker
    }

    /// The data of the marker's ConfigMap.
    pub fn data(&self) -> BTreeMap<String, String> {
        let entry = |(name, entry): (&String, &Entry)| {
            let text = serde_json::to_string(entry).unwrap_or_default(); // serializing strings does not fail
            (name.clone(), text)
        };
        let mut data: BTreeMap<String, String> = self.damaged.clone();
        data.extend(self.entries.iter().map(entry));
        data.insert(REVISION.to_owned(), self.revision.clone());
        let rules = std::iter::once(&self.rules).chain(&self.before);
        data.insert(RULES.to_owned(), rules.map(String::as_str).collect::<Vec<_>>().join(" "));
        data
    }

    /// Records that the set is written under the rules with this digest from now on.
    pub fn set_rules(&mut self, rules: &str) {
        if self.rules == rules {
            return;
        }
        let last = std::mem::replace(&mut self.rules, rules.to_owned());
        self.before.retain(|one| one != rules && *one != last);
        if !last.is_empty() {
            self.before.insert(0, last);
        }
        self.before.truncate(EARLIER_MAX);
    }

    /// Returns true if this set was written under `rules` or under predecessors of them. The predecessors are the
    /// digests in `served`, the markers of the namespaces that the rules are for. A set that was never completed counts
    /// as our own.
    pub fn shares_history_with<'m>(&self, rules: &str, served: impl IntoIterator<Item = &'m Self>) -> bool {
        let has_digest = |marker: &Self| marker.rules == self.rules || marker.before.contains(&self.rules);
        self.rules.is_empty() || self.rules == rules || served.into_iter().any(has_digest)
    }

    /// Returns true if every ConfigMap of the set holds its desired content.
    pub fn is_complete(&self) -> bool {
        self.damaged.is_empty() && self.entries.values().all(|entry| entry.wanted.is_none())
    }

    /// Checks that an inventory of these names fits into one ConfigMap; to be called before anything is written.
    pub fn check<'n>(namespace: &str, names: impl Iterator<Item = &'n String>) -> Result<(), TooLong> {
        let entry = Entry {
            digest: "0".repeat(64),
            uid: "0".repeat(36),
            version: "0".repeat(20),
            revision: "0".repeat(40),
            wanted: Some("0".repeat(64)),
        };
        let each = serde_json::to_string(&entry).map_or(0, |text| text.len());
        let bytes: usize = names.map(|name| name.len() + each).sum();
        if bytes > BYTES_MAX { Err(TooLong { namespace: namespace.to_owned(), bytes }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wanted: Option<&str>) -> Entry {
        let wanted = wanted.map(str::to_owned);
        Entry { digest: "d".into(), uid: "u".into(), version: "7".into(), revision: "r".into(), wanted }
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let entries = [("a".to_owned(), entry(None)), ("b.c".to_owned(), entry(Some("e")))].into();
        let marker = Marker {
            revision: "r".into(),
            rules: "x".into(),
            before: vec!["w".into(), "v".into()],
            entries,
            damaged: BTreeMap::new(),
        };
        assert_eq!(Marker::read(&marker.data()), marker);
        assert!(!marker.is_complete());
        assert_eq!(Marker::read(&BTreeMap::new()), Marker::default());
    }

    #[test]
    fn damage_keeps_the_rest_and_stays_as_it_is() {
        let mut data = Marker { entries: [("a".to_owned(), entry(None))].into(), ..Marker::default() }.data();
        data.insert("b".into(), "{\"digest\": \"d\"".into());
        data.insert("_future".into(), "x".into());
        let marker = Marker::read(&data);
        assert_eq!(marker.entries.len(), 1);
        assert_eq!(marker.damaged.keys().collect::<Vec<_>>(), ["_future", "b"]);
        assert!(!marker.is_complete());
        assert_eq!(marker.data(), data);
    }

    #[test]
    fn an_entry_lists_one_object_by_its_uid_and_one_that_was_about_to_be_written_by_its_digest() {
        let verified = entry(None);
        assert!(verified.lists("u", Some("another")) && verified.lists("u", None));
        assert!(!verified.lists("v", Some("d")) && !verified.lists("", None));
        let failed = entry(Some("e"));
        assert!(failed.lists("u", Some("d")) && failed.lists("v", Some("e")));
        assert!(!failed.lists("v", Some("d")) && !failed.lists("v", None));
        let announced = Entry::wanted("e");
        assert!(announced.lists("v", Some("e")));
        for digest in [None, Some(""), Some("d")] {
            assert!(!announced.lists("v", digest) && !announced.lists("", digest), "{digest:?}");
        }
        let again = Entry { uid: String::new(), ..entry(None) };
        assert!(again.lists("v", Some("d")) && !again.lists("v", Some("e")));
    }

    #[test]
    fn an_object_is_verified_as_what_it_held_until_other_data_is_to_be_written() {
        for (wanted, expected) in [(None, true), (Some("d"), true), (Some("e"), false)] {
            assert_eq!(entry(wanted).is_verified_as("d"), expected, "{wanted:?}");
            assert!(!entry(wanted).is_verified_as("e"), "{wanted:?}");
        }
        assert!(!Entry::wanted("d").is_verified_as("d"));
    }

    #[test]
    fn what_does_not_fit_is_known_before_it_is_written() {
        let names: Vec<String> = (0..5_000).map(|at| format!("a-name-of-a-usual-length-{at}")).collect();
        assert!(Marker::check("ci", names[..2_000].iter()).is_ok());
        assert!(Marker::check("ci", names.iter()).unwrap_err().bytes > BYTES_MAX);
    }

    #[test]
    fn rules_know_what_they_came_from_and_no_others() {
        let mut ours = Marker::default();
        let by = |rules: &str| Marker { rules: rules.into(), ..Marker::default() };
        for rules in ["a", "b", "b", "c", "a"] {
            ours.set_rules(rules);
        }
        assert_eq!((ours.rules.as_str(), ours.before.join(" ").as_str()), ("a", "c b"));
        for (theirs, kin) in [("a", true), ("b", true), ("new", true), ("", true), ("d", false)] {
            assert_eq!(by(theirs).shares_history_with("new", [&ours]), kin, "{theirs:?}");
        }
        assert!(!by("a").shares_history_with("new", []), "a rule set that has nothing there yet");
        (0..100).for_each(|number| ours.set_rules(&number.to_string()));
        assert_eq!(ours.before.len(), EARLIER_MAX);
        let planted = BTreeMap::from([(RULES.to_owned(), "a ".repeat(1_000))]);
        assert_eq!(Marker::read(&planted).before.len(), EARLIER_MAX, "anybody can write an inventory");
    }
}
