//! One ConfigMap of a rule set: the files that feed it, and what was built from them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::super::data::{DesiredData, VALUES_MAX, Value, check_name};
use super::super::finding::{FINDINGS_MAX, Finding, shown_path};
use super::super::plan::{Options, Planned, VERSION, ValueSource};
use super::super::policies::{Collisions, Oversize};
use super::super::rule_problem::SHOWN;
use super::super::rules::{ClusterNamespace, Names, Rule, RuleSet};
use super::super::split;
use crate::marker::set::stamp_of;

/// A file that may provide the value of a key.
#[derive(Clone, Debug)]
pub(super) struct MatchedFile {
    pub(super) path: Arc<[u8]>,
    pub(super) source: ValueSource,
}

/// One ConfigMap in all the places (cluster and namespace) where exactly the same rules feed it.
#[derive(Debug)]
pub(super) struct FedConfigMap {
    pub(super) name: String,
    pub(super) rules: Vec<usize>,
    pub(super) places: Arc<[ClusterNamespace]>,
    /// The files of each key, sorted by path. If there are several, the last one provides the value.
    pub(super) keys: BTreeMap<String, Vec<MatchedFile>>,
    /// The result; `None` after a change, until it is built again.
    pub(super) built: Option<Built>,
}

#[derive(Debug)]
pub(super) struct Built {
    /// Several if the ConfigMap was split.
    pub(super) planned: Vec<Arc<Planned>>,
    /// The flag says whether the finding refuses the plan.
    pub(super) findings: Vec<(Finding, bool)>,
    /// Sum of the values' sizes, without those that no ConfigMap can hold: what `Contents::values` counts.
    pub(super) bytes: u64,
}

impl FedConfigMap {
    /// Builds the ConfigMap under the given policies. `fed`: at least one of its rules has a file. `rules`: all rules.
    pub(super) fn build(
        &self,
        fed: bool,
        rules: &[Rule],
        values: &HashMap<ValueSource, Arc<Value>>,
        options: &Options,
    ) -> Built {
        let mut findings = Vec::new();
        let mut content = BTreeMap::new();
        let mut paths = BTreeMap::new();
        for (key, files) in &self.keys {
            if files.len() > 1 && findings.len() < FINDINGS_MAX {
                let finding = Finding::Collision {
                    name: self.name.clone(),
                    key: key.clone(),
                    is_fixed: self.rules.iter().any(|&rule| rules[rule].key.as_ref() == Some(key)),
                    paths: files.iter().take(SHOWN).map(|file| shown_path(&file.path)).collect(),
                    total: files.len(),
                };
                findings.push((finding, options.policies.collisions == Collisions::Refuse));
            }
            if let Some(file) = files.last() {
                content.insert(key.clone(), Arc::clone(&values[&file.source]));
                paths.insert(key.clone(), Arc::clone(&file.path));
            }
        }
        let planned = Planned {
            name: self.name.clone(),
            places: Arc::clone(&self.places),
            stamp: options.stamp.clone().filter(|_| !content.contains_key(VERSION)),
            stamp_key: stamp_key(options, &self.name),
            data: DesiredData::new(content),
            files: paths,
            fed,
            left_out: false,
            rules: self.rules.clone(),
        };
        let sizes = planned.data.values().values().map(|value| value.size());
        let bytes = sizes.filter(|size| *size <= VALUES_MAX).sum::<usize>() as u64;
        let planned = apply_oversize_policy(planned, options, &mut findings);
        Built { planned: planned.into_iter().map(Arc::new).collect(), findings, bytes }
    }

    /// The values in a built result, each with what it was made from.
    pub(super) fn values<'m>(&'m self, built: &'m Built) -> impl Iterator<Item = (ValueSource, &'m Value)> {
        built.planned.iter().flat_map(|planned| planned.data.values()).filter_map(|(key, value)| {
            let file = self.keys.get(key)?.last()?;
            Some((file.source, &**value))
        })
    }
}

/// The key of the stamp of a ConfigMap of this name.
fn stamp_key(options: &Options, name: &str) -> Option<String> {
    options.stamp_key.as_ref().map(|key| stamp_of(key, name))
}

/// Returns the ConfigMap unchanged if it fits the API server's limits, else what the oversize policy makes of it.
fn apply_oversize_policy(
    planned: Planned,
    options: &Options,
    findings: &mut Vec<(Finding, bool)>,
) -> Vec<Planned> {
    let Some(over) = planned.over() else { return vec![planned] };
    match options.policies.oversize {
        Oversize::Grow => {
            findings.push((planned.oversize(over), false));
            let part = |(bits, data): (String, DesiredData)| {
                let name = match bits.as_str() {
                    "" => planned.name.clone(),
                    bits => format!("{}-{bits}", planned.name),
                };
                let here = |key: &String| Some((key.clone(), Arc::clone(planned.files.get(key)?)));
                let files = data.values().keys().filter_map(here).collect();
                let stamp_key = stamp_key(options, &name);
                let part = Planned { name, data, files, stamp_key, ..planned.clone() };
                findings.extend(part.over().map(|over| (part.oversize(over), true)));
                findings.extend(name_problem(&planned, &part).map(|finding| (finding, true)));
                part
            };
            split::split(&planned.data, &planned.stamps()).into_iter().map(part).collect()
        }
        Oversize::Refuse => {
            findings.push((planned.oversize(over), true));
            vec![without_content(planned)]
        }
        Oversize::Skip => {
            findings.push((planned.oversize(over), false));
            // It stays in the plan, so that it does not look as if no rule named it any more.
            vec![Planned { fed: false, left_out: true, ..without_content(planned) }]
        }
    }
}

/// The finding that a part of a ConfigMap has a name that is none: that of the whole is valid, but nearly too long.
fn name_problem(planned: &Planned, part: &Planned) -> Option<Finding> {
    let why = check_name(&part.name).err()?;
    Some(Finding::PartName { name: planned.name.clone(), part: part.name.clone(), why })
}

/// The ConfigMap without its data, which is not written: the bytes of some of its values were dropped.
fn without_content(planned: Planned) -> Planned {
    Planned { data: DesiredData::default(), files: BTreeMap::new(), ..planned }
}

/// Groups the targets of the rules that are for this repository: one entry per ConfigMap name and set of feeding rules,
/// with the places it is in. A ConfigMap that only other rules name is another repository's, and not in the plan.
pub(super) fn config_maps(rules: &RuleSet, repository: Option<&str>) -> Vec<FedConfigMap> {
    let mut feeders: BTreeMap<(&str, &ClusterNamespace), Vec<usize>> = BTreeMap::new();
    let is_for_it = |rule: &Rule| repository.is_none_or(|name| rule.permits(name));
    for (index, rule) in rules.rules.iter().enumerate().filter(|(_, rule)| is_for_it(rule)) {
        for target in targets(rule) {
            feeders.entry(target).or_default().push(index);
        }
    }
    let mut alike: BTreeMap<(&str, Vec<usize>), Vec<ClusterNamespace>> = BTreeMap::new();
    for ((name, place), rules) in feeders {
        alike.entry((name, rules)).or_default().push(place.clone());
    }
    let fed = |((name, rules), places): ((&str, Vec<usize>), Vec<ClusterNamespace>)| FedConfigMap {
        name: name.to_owned(),
        rules,
        places: places.into(),
        keys: BTreeMap::new(),
        built: None,
    };
    alike.into_iter().map(fed).collect()
}

/// The ConfigMaps that a rule names: name and place.
fn targets(rule: &Rule) -> impl Iterator<Item = (&str, &ClusterNamespace)> {
    let names = rule.names.all().iter();
    names.flat_map(move |name| rule.places.iter().map(move |place| (name.as_str(), place)))
}

/// For each rule and each of its partitions, the indices of the ConfigMaps that the rule feeds: none if it is for other
/// repositories.
pub(super) fn feeds(rules: &RuleSet, config_maps: &[FedConfigMap]) -> Vec<Vec<Vec<usize>>> {
    let mut feeds: Vec<Vec<Vec<usize>>> =
        rules.rules.iter().map(|rule| vec![Vec::new(); rule.names.all().len()]).collect();
    for (at, fed) in config_maps.iter().enumerate() {
        for &rule in &fed.rules {
            match &rules.rules[rule].names {
                Names::One(_) => feeds[rule][0].push(at),
                Names::Partitions(names) => {
                    for (name, feeds) in names.iter().zip(&mut feeds[rule]) {
                        if *name == fed.name {
                            feeds.push(at);
                        }
                    }
                }
            }
        }
    }
    feeds
}

/// Finds names that an oversized ConfigMap grew into and that another ConfigMap has in the same place.
pub(super) fn name_conflicts(all: &[Arc<Planned>]) -> Vec<Finding> {
    let mut seen: BTreeSet<(&str, &ClusterNamespace)> = BTreeSet::new();
    let mut taken = Vec::new();
    for planned in all {
        if planned.places.iter().any(|place| !seen.insert((&planned.name, place))) {
            let grown = planned.name.rsplit_once('-').map_or("", |(name, _)| name).to_owned();
            taken.push(Finding::NameTaken { name: grown, taken: planned.name.clone() });
        }
    }
    taken
}

/// Finds names that an oversized ConfigMap grew into and that rules for other repositories have in the same place.
/// Those are not in the plan, so [`name_conflicts`] does not see them.
pub(super) fn foreign_conflicts(
    config_maps: &[FedConfigMap],
    rules: &RuleSet,
    repository: Option<&str>,
) -> Vec<Finding> {
    let mut grown: BTreeMap<(&str, &ClusterNamespace), &str> = BTreeMap::new();
    for fed in config_maps {
        let parts = fed.built.iter().flat_map(|built| &built.planned).filter(|part| part.name != fed.name);
        for part in parts {
            for place in &*part.places {
                grown.insert((&part.name, place), &fed.name);
            }
        }
    }
    let is_foreign = |rule: &&Rule| repository.is_some_and(|name| !rule.permits(name));
    let foreign = rules.rules.iter().filter(is_foreign).flat_map(targets);
    foreign
        .filter_map(|target| {
            let name = (*grown.get(&target)?).to_owned();
            Some(Finding::NameTaken { name, taken: target.0.to_owned() })
        })
        .collect()
}
