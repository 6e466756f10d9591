//! The inventory of a namespace: what we wrote there. It is the data of a ConfigMap, written after everything else, so
//! a consumer that mounts it can tell a complete set: each map's stamp is the digest that is here.

pub mod set;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the set's revision. Keys with `_` are no names of ConfigMaps.
const REVISION: &str = "_revision";
/// The key of the rules' digest, and of those before it, newest first.
const RULES: &str = "_rules";
/// So many of those before are kept.
const MOST_BEFORE: usize = 16;
/// What the marker may hold: a ConfigMap's limit, less something for the keys.
const MOST: usize = 1_000_000;

/// What is known of one ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The digest of what it was verified to hold.
    pub digest: String,
    /// The object that was verified; empty while none was.
    pub uid: String,
    /// The state of it that was verified.
    #[serde(rename = "resourceVersion")]
    pub version: String,
    /// The revision that last changed its payload.
    pub revision: String,
    /// The digest that it should have had and could not be given. The set is not complete while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

/// The inventory of one namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marker {
    /// The revision that the set is of.
    pub revision: String,
    /// Digest of the rules and the shape it was written by.
    pub rules: String,
    /// Those before, newest first.
    pub before: Vec<String>,
    /// By the names of the ConfigMaps.
    pub entries: BTreeMap<String, Entry>,
    /// What could not be read, as it stands there. It is kept as it is, and while there is any, nothing is deleted.
    pub damaged: BTreeMap<String, String>,
}

/// By which rules and options something is written: two of them are one where everything that decides it is the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RulesDigest {
    now: String,
    former: String,
}

impl RulesDigest {
    /// As it is stored from now on, and as releases before stored it for the same rules.
    pub fn new(now: String, former: String) -> Self {
        Self { now, former }
    }

    /// As it is stored from now on.
    pub fn text(&self) -> &str {
        &self.now
    }

    /// As releases before stored it.
    pub fn former(&self) -> &str {
        &self.former
    }

    /// Whether what is stored, by whichever release, stands for these rules.
    pub fn is(&self, stored: &str) -> bool {
        stored == self.now || stored == self.former
    }
}

/// Some rules under a name.
#[cfg(test)]
impl From<&str> for RulesDigest {
    fn from(name: &str) -> Self {
        Self::new(name.to_owned(), format!("{name}, formerly"))
    }
}

/// An inventory that has grown too large for one ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the inventory of namespace {namespace} would have {bytes} bytes, more than one ConfigMap takes")]
pub struct TooLong {
    /// The namespace.
    pub namespace: String,
    /// How large it would be.
    pub bytes: usize,
}

impl Entry {
    /// Of what is about to be written, or could not be.
    pub fn wanted(digest: &str) -> Self {
        Self {
            digest: String::new(),
            uid: String::new(),
            version: String::new(),
            revision: String::new(),
            wanted: Some(digest.to_owned()),
        }
    }
}

impl Marker {
    /// From the data of its ConfigMap. Whatever it holds, the rest of it counts.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let mut marker = Self::default();
        for (key, text) in data {
            match key.as_str() {
                REVISION => marker.revision.clone_from(text),
                RULES => {
                    let mut rules = text.split_whitespace().map(str::to_owned);
                    marker.rules = rules.next().unwrap_or_default();
                    marker.before = rules.collect();
                }
                name => match serde_json::from_str(text) {
                    Ok(entry) => drop(marker.entries.insert(name.to_owned(), entry)),
                    Err(_) => drop(marker.damaged.insert(name.to_owned(), text.clone())),
                },
            }
        }
        marker
    }

    /// As the data of its ConfigMap.
    pub fn data(&self) -> BTreeMap<String, String> {
        let entry = |(name, entry): (&String, &Entry)| {
            let text = serde_json::to_string(entry).unwrap_or_default(); // strings in a struct always become JSON
            (name.clone(), text)
        };
        let mut data: BTreeMap<String, String> = self.damaged.clone();
        data.extend(self.entries.iter().map(entry));
        data.insert(REVISION.to_owned(), self.revision.clone());
        let rules = std::iter::once(&self.rules).chain(&self.before);
        data.insert(RULES.to_owned(), rules.map(String::as_str).collect::<Vec<_>>().join(" "));
        data
    }

    /// From now on it is written by these rules. Where another release stored them in its own form, that stays: while
    /// two releases run side by side, neither writes anything for the form alone.
    pub fn turn_to(&mut self, rules: &RulesDigest) {
        if rules.is(&self.rules) {
            return;
        }
        let last = std::mem::replace(&mut self.rules, rules.text().to_owned());
        self.before.retain(|one| !rules.is(one) && *one != last);
        if !last.is_empty() {
            self.before.insert(0, last);
        }
        self.before.truncate(MOST_BEFORE);
    }

    /// Whether it was written by these rules or by some that they came from, as far as the markers of the namespaces
    /// say that these rules are for. One that was never completed cannot be another instance's.
    pub fn is_kin<'m>(&self, rules: &RulesDigest, served: impl IntoIterator<Item = &'m Self>) -> bool {
        let of = |marker: &Self| marker.rules == self.rules || marker.before.contains(&self.rules);
        self.rules.is_empty() || rules.is(&self.rules) || served.into_iter().any(of)
    }

    /// Whether every ConfigMap of the set is what it should be.
    pub fn is_complete(&self) -> bool {
        self.damaged.is_empty() && self.entries.values().all(|entry| entry.wanted.is_none())
    }

    /// Whether an inventory of these names fits into one ConfigMap, before anything is written.
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
        if bytes > MOST { Err(TooLong { namespace: namespace.to_owned(), bytes }) } else { Ok(()) }
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
    fn what_does_not_fit_is_known_before_it_is_written() {
        let names: Vec<String> = (0..5_000).map(|at| format!("a-name-of-a-usual-length-{at}")).collect();
        assert!(Marker::check("ci", names[..2_000].iter()).is_ok());
        assert!(Marker::check("ci", names.iter()).unwrap_err().bytes > MOST);
    }

    #[test]
    fn rules_know_what_they_came_from_and_no_others() {
        let mut ours = Marker::default();
        let by = |rules: &str| Marker { rules: rules.into(), ..Marker::default() };
        for rules in ["a", "b", "b", "c", "a"] {
            ours.turn_to(&rules.into());
        }
        assert_eq!((ours.rules.as_str(), ours.before.join(" ").as_str()), ("a", "c b"));
        for (theirs, kin) in [("a", true), ("b", true), ("new", true), ("", true), ("d", false)] {
            assert_eq!(by(theirs).is_kin(&"new".into(), [&ours]), kin, "{theirs:?}");
        }
        assert!(!by("a").is_kin(&"new".into(), []), "a rule set that has nothing there yet");
        (0..100).for_each(|number| ours.turn_to(&number.to_string().as_str().into()));
        assert_eq!(ours.before.len(), MOST_BEFORE);
    }

    #[test]
    fn rules_that_another_release_stored_stay_as_they_stand_until_the_rules_change() {
        let mut marker = Marker { rules: "a, formerly".into(), ..Marker::default() };
        let before = marker.clone();
        marker.turn_to(&"a".into());
        assert_eq!(marker, before);
        assert!(marker.is_kin(&"a".into(), []));
        marker.turn_to(&"b".into());
        assert_eq!((marker.rules.as_str(), marker.before.join(" ").as_str()), ("b", "a, formerly"));
        marker.turn_to(&"a".into());
        assert_eq!((marker.rules.as_str(), marker.before.join(" ").as_str()), ("a", "b"));
    }
}
