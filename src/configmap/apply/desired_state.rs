//! The desired state: what every ConfigMap of a revision should hold.

use std::collections::BTreeMap;

use super::super::compare::ConfigMapData;
use super::super::data::DesiredData;
use super::super::plan::VERSION;
use super::super::{ClusterNamespace, Finding, Plan, Planned, StampProblem, check_key, split};
use super::names;
use super::owner::Owner;
use super::placement::Placement;
use crate::marker::set::stamp_of;
use crate::revision::Revision;

/// What the key `VERSION` of every ConfigMap holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VersionKey {
    /// There is no such key.
    #[default]
    Off,
    /// The revision that last changed the data.
    Changed,
    /// The current revision, as with Prow. Costs a write of every ConfigMap for every revision.
    Every,
}

/// The keys that are written besides the data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtraKeys {
    /// The key `VERSION`.
    pub version_key: VersionKey,
    /// The key that holds the digest of the data (the stamp), which consumers compare with the marker's; `{name}` in it
    /// stands for the ConfigMap's name.
    pub stamp_key: Option<String>,
}

/// The desired state of all clusters for one revision.
#[derive(Clone, Debug)]
pub struct Desired {
    /// The revision.
    pub revision: Revision,
    /// The sources that its tree is composed of; empty if there is only one repository.
    pub sources: Placement,
    /// The digest of the rules and extra keys. What was verified under another digest has to be verified again.
    pub rules: String,
    /// The keys that are written besides the data.
    pub shape: ExtraKeys,
    /// The ConfigMaps, by place and name.
    pub config_maps: BTreeMap<ClusterNamespace, BTreeMap<String, DesiredConfigMap>>,
}

/// One desired ConfigMap in one place.
#[derive(Clone, Debug)]
pub struct DesiredConfigMap {
    /// Its keys and values without the extra keys.
    pub data: DesiredData,
    /// The digest of the data.
    pub digest: String,
    /// Whether any rule that feeds it has a file.
    pub fed: bool,
    /// Whether it is left out because it is too large: it is neither written nor deleted.
    pub left_out: bool,
    /// Whether we write the key `VERSION`; false if a file has that key.
    pub versioned: bool,
    /// The name of its stamp key; `None` without stamps.
    pub stamp: Option<String>,
    /// Why it must not be written now; `None` if it may be.
    pub held: Option<String>,
}

impl Desired {
    /// Builds the desired state from an accepted plan, whose options had the stamp key of `shape`. `rules` is the
    /// digest of everything that determined the plan, including `shape`; `prefix` returns the literal text that the
    /// paths of a rule's files begin with.
    pub fn new<'p>(
        plan: &Plan,
        (revision, sources): (Revision, Placement),
        rules: String,
        shape: ExtraKeys,
        prefix: impl Fn(usize) -> &'p [u8],
    ) -> Result<Self, Finding> {
        let mut config_maps: BTreeMap<ClusterNamespace, BTreeMap<String, DesiredConfigMap>> = BTreeMap::new();
        for planned in &plan.configmaps {
            // A ConfigMap that holds the composed revision changes with every source.
            let held = if planned.stamp.is_some() && shape.version_key == VersionKey::Every {
                sources.hold_reason()
            } else {
                sources.hold_reason_below(planned.rules.iter().map(|rule| prefix(*rule)))
            };
            let wanted = DesiredConfigMap { held, ..DesiredConfigMap::of(planned)? };
            for place in &*planned.places {
                config_maps.entry(place.clone()).or_default().insert(planned.name.clone(), wanted.clone());
            }
        }
        Ok(Self { revision, sources, rules, shape, config_maps })
    }

    /// The clusters that have any desired ConfigMap; each once, sorted.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.config_maps.keys().map(|place| place.cluster.as_str()).filter(move |cluster| {
            let new = last != Some(*cluster);
            last = Some(*cluster);
            new
        })
    }

    /// The desired ConfigMaps of one namespace, by name; `None` if it has none.
    pub fn of(&self, cluster: &str, namespace: &str) -> Option<&BTreeMap<String, DesiredConfigMap>> {
        self.config_maps
            .get(&ClusterNamespace { cluster: cluster.to_owned(), namespace: namespace.to_owned() })
    }

    /// Returns true if a ConfigMap that no rule names has the name of a part of one that is left out: an earlier run
    /// may have split that one. Only the name says so, as a part is labelled and listed like any other ConfigMap. So one
    /// that had a rule of its own counts, too: it is better left there than a part deleted.
    pub fn is_part_of_left_out(&self, (cluster, namespace): (&str, &str), name: &str) -> bool {
        let Some(config_maps) = self.of(cluster, namespace) else { return false };
        let whole = split::whole_of(name).and_then(|whole| config_maps.get(whole));
        !config_maps.contains_key(name) && whole.is_some_and(|whole| whole.left_out)
    }

    /// The namespaces of a cluster that have any desired ConfigMap; sorted.
    pub fn namespaces<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a str> {
        let first = ClusterNamespace { cluster: cluster.to_owned(), namespace: String::new() };
        let places = self.config_maps.range(first..).map(|(place, _)| place);
        places.take_while(move |place| place.cluster == cluster).map(|place| place.namespace.as_str())
    }
}

impl DesiredConfigMap {
    fn of(planned: &Planned) -> Result<Self, Finding> {
        if let Some(key) = &planned.stamp_key {
            check_stamp(planned, key)?;
        }
        Ok(Self {
            data: planned.data.clone(),
            digest: planned.data.digest().to_owned(),
            fed: planned.fed,
            left_out: planned.left_out,
            versioned: planned.stamp.is_some(),
            stamp: planned.stamp_key.clone(),
            held: None,
        })
    }

    /// The extra keys and their values, for a ConfigMap stamped with `revision`.
    pub(super) fn stamps(&self, shape: &ExtraKeys, revision: &str) -> BTreeMap<String, String> {
        let version = (self.versioned && shape.version_key != VersionKey::Off)
            .then(|| (VERSION.to_owned(), revision.to_owned()));
        let stamp = self.stamp.iter().map(|key| (key.clone(), self.digest.clone()));
        version.into_iter().chain(stamp).collect()
    }

    /// The whole content to write, stamped with `revision`.
    pub fn content(&self, shape: &ExtraKeys, revision: &str) -> ConfigMapData {
        let mut content = ConfigMapData { data: self.stamps(shape, revision), ..ConfigMapData::default() };
        for (key, value) in self.data.values() {
            match value.text() {
                Some(text) => drop(content.data.insert(key.clone(), text.to_owned())),
                None => drop(content.binary_data.insert(key.clone(), value.bytes().to_vec())),
            }
        }
        content
    }

    /// The annotations to write.
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

/// Checks that a ConfigMap can have its stamp under this key. The findings are the stamp's own, because no policy for
/// files accepts them.
fn check_stamp(planned: &Planned, key: &str) -> Result<(), Finding> {
    let refused = |problem| Finding::Stamp { name: planned.name.clone(), key: key.to_owned(), problem };
    check_key(key.as_bytes()).map_err(|why| refused(StampProblem::IllegalKey(why)))?;
    match planned.files.get(key) {
        Some(path) => Err(refused(StampProblem::Taken(path.to_vec()))),
        None => Ok(()),
    }
}

impl ExtraKeys {
    /// Checks that the stamp key is valid and not the version key.
    pub fn check(&self) -> Result<(), String> {
        match &self.stamp_key {
            Some(key) if key == VERSION => Err("it is the key of --version-key".to_owned()),
            Some(key) => check_key(stamp_of(key, "name").as_bytes()).map_err(|why| why.to_string()),
            None => Ok(()),
        }
    }
}
