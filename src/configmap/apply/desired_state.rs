//! What a ConfigMap should be.

use std::collections::BTreeMap;

use super::super::compare::Current;
use super::super::payload::Payload;
use super::super::plan::VERSION;
use super::super::{ClusterNamespace, Finding, Plan, Planned, check_key};
use super::names;
use super::owner::Owner;
use super::placement::Placement;
use crate::marker::RulesDigest;
use crate::marker::set::stamp_of;
use crate::revision::Revision;

/// When the key `VERSION` follows the revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VersionKey {
    /// There is none.
    #[default]
    Off,
    /// It names the revision that last changed the payload.
    Changed,
    /// It names every revision, as Prow's does, at the price of a write of every ConfigMap for every revision.
    Every,
}

/// What is written besides the payload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtraKeys {
    /// The key `VERSION`.
    pub version_key: VersionKey,
    /// A key that holds the digest, for consumers that compare it with the marker's; `{name}` in it is the ConfigMap's.
    pub stamp_key: Option<String>,
}

/// Everything one revision asks for.
#[derive(Clone, Debug)]
pub struct Desired {
    /// The revision.
    pub revision: Revision,
    /// The sources that it is composed of, if there are several.
    pub sources: Placement,
    /// Digest of the rules and of the shape: what was verified under others has to be looked at again.
    pub rules: RulesDigest,
    /// What is written besides the payloads.
    pub shape: ExtraKeys,
    /// In the order of cluster, namespace and name.
    pub config_maps: BTreeMap<ClusterNamespace, BTreeMap<String, DesiredConfigMap>>,
}

/// One ConfigMap in one place.
#[derive(Clone, Debug)]
pub struct DesiredConfigMap {
    /// Its keys and values, stamps not among them.
    pub payload: Payload,
    /// Digest of the payload.
    pub digest: String,
    /// Whether any file matches a rule that feeds it.
    pub fed: bool,
    /// Whether the key `VERSION` is ours to write.
    pub versioned: bool,
    /// The key that holds the digest.
    pub stamp: Option<String>,
    /// Why it is not to be written now, whatever it holds.
    pub held: Option<String>,
}

impl Desired {
    /// From a plan that may be carried out. `rules` is of what decided it, this shape included; `prefix` what the paths
    /// of a rule's files begin with.
    pub fn new<'p>(
        plan: &Plan,
        (revision, sources): (Revision, Placement),
        rules: RulesDigest,
        shape: ExtraKeys,
        prefix: impl Fn(usize) -> &'p [u8],
    ) -> Result<Self, Finding> {
        let mut config_maps: BTreeMap<ClusterNamespace, BTreeMap<String, DesiredConfigMap>> = BTreeMap::new();
        for planned in &plan.configmaps {
            // Every version of the set is in the ConfigMap then.
            let held = match planned.stamp.is_some() && shape.version_key == VersionKey::Every {
                true => sources.held(),
                false => sources.held_below(planned.rules.iter().map(|rule| prefix(*rule))),
            };
            let wanted = DesiredConfigMap { held, ..DesiredConfigMap::of(planned, &shape)? };
            for place in &planned.places {
                config_maps.entry(place.clone()).or_default().insert(planned.name.clone(), wanted.clone());
            }
        }
        Ok(Self { revision, sources, rules, shape, config_maps })
    }

    /// The clusters that something is for.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.config_maps.keys().map(|place| place.cluster.as_str()).filter(move |cluster| {
            let new = last != Some(*cluster);
            last = Some(*cluster);
            new
        })
    }

    /// What one namespace of a cluster should hold.
    pub fn of(&self, cluster: &str, namespace: &str) -> Option<&BTreeMap<String, DesiredConfigMap>> {
        self.config_maps
            .get(&ClusterNamespace { cluster: cluster.to_owned(), namespace: namespace.to_owned() })
    }

    /// The namespaces of a cluster that something is for.
    pub fn namespaces<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a str> {
        self.config_maps
            .keys()
            .filter(move |place| place.cluster == cluster)
            .map(|place| place.namespace.as_str())
    }
}

impl DesiredConfigMap {
    fn of(planned: &Planned, shape: &ExtraKeys) -> Result<Self, Finding> {
        let stamp = shape.stamp_key.as_ref().map(|key| stamp_of(key, &planned.name));
        if let Some(key) = &stamp {
            if let Err(why) = check_key(key.as_bytes()) {
                let path = b"the stamp (--stamp-key)".to_vec();
                return Err(Finding::IllegalKey { path, name: planned.name.clone(), why });
            }
            if let Some(path) = planned.files.get(key) {
                let paths = vec![path.to_vec(), b"the stamp (--stamp-key)".to_vec()];
                return Err(Finding::Collision { name: planned.name.clone(), key: key.clone(), paths });
            }
            // It counts, and no rule for growing knows of it.
            let digest = "0".repeat(64);
            if let Some(over) = planned.over(Some((key, digest.len()))) {
                let payload = planned.payload.with_text(key, digest);
                return Err(Planned { payload, ..planned.clone() }.oversize(over));
            }
        }
        let (payload, digest) = (planned.payload.clone(), planned.payload.digest().to_owned());
        Ok(Self { payload, digest, fed: planned.fed, versioned: planned.stamp.is_some(), stamp, held: None })
    }

    /// Keys that are ours and not the payload's, with what they should hold.
    pub(super) fn stamps(&self, shape: &ExtraKeys, revision: &str) -> BTreeMap<String, String> {
        let version = (self.versioned && shape.version_key != VersionKey::Off)
            .then(|| (VERSION.to_owned(), revision.to_owned()));
        let stamp = self.stamp.iter().map(|key| (key.clone(), self.digest.clone()));
        version.into_iter().chain(stamp).collect()
    }

    /// What is written, stamped with a revision.
    pub fn content(&self, shape: &ExtraKeys, revision: &str) -> Current {
        let mut content = Current { data: self.stamps(shape, revision), ..Current::default() };
        for (key, value) in self.payload.values() {
            match value.text() {
                Some(text) => drop(content.data.insert(key.clone(), text.to_owned())),
                None => drop(content.binary.insert(key.clone(), value.bytes().to_vec())),
            }
        }
        content
    }

    /// The annotations of what is written.
    pub fn annotations(&self, owner: &Owner, rules: &str, revision: &str) -> BTreeMap<String, String> {
        [
            (names::OWNER_NAME, owner.name()),
            (names::REVISION, revision),
            (names::DIGEST, &self.digest),
            (names::RULES, rules),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }
}

impl ExtraKeys {
    /// Whether the stamp's key is one that the API server takes, and not used for anything else.
    pub fn check(&self) -> Result<(), String> {
        match &self.stamp_key {
            Some(key) if key == VERSION => Err("it is the key of --version-key".to_owned()),
            Some(key) => check_key(stamp_of(key, "name").as_bytes()).map_err(|why| why.to_string()),
            None => Ok(()),
        }
    }
}
