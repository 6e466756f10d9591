//! One ConfigMap of a set of rules: the files that feed it, and what is made of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::super::finding::Finding;
use super::super::payload::{Payload, Value};
use super::super::plan::{FINDINGS_MAX, Options, Planned, Source, VERSION};
use super::super::policies::{Collisions, Oversize};
use super::super::rules::{ClusterNamespace, Names, RuleSet};
use super::super::split;

/// A file that gives a key its value.
#[derive(Clone, Debug)]
pub(super) struct MatchedFile {
    pub(super) path: Arc<[u8]>,
    pub(super) source: Source,
}

/// One ConfigMap in the places where the same rules feed it.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) name: String,
    pub(super) rules: Vec<usize>,
    pub(super) places: Vec<ClusterNamespace>,
    /// By key. Of several files the last has it; in the order of paths.
    pub(super) keys: BTreeMap<String, Vec<MatchedFile>>,
    /// What was made of it since it changed.
    pub(super) made: Option<Made>,
}

#[derive(Debug)]
pub(super) struct Made {
    /// None where it is skipped, several where it was split.
    pub(super) planned: Vec<Arc<Planned>>,
    /// Refused or noted.
    pub(super) findings: Vec<(Finding, bool)>,
    /// Bytes of its values.
    pub(super) bytes: u64,
}

impl Fed {
    /// What it should hold, or what the policies make of it. `fed`: any file is one of its rules'.
    pub(super) fn make(&self, fed: bool, values: &HashMap<Source, Arc<Value>>, options: &Options) -> Made {
        let mut findings = Vec::new();
        let mut content = BTreeMap::new();
        let mut paths = BTreeMap::new();
        for (key, files) in &self.keys {
            if files.len() > 1 && findings.len() < FINDINGS_MAX {
                let paths = files.iter().map(|file| file.path.to_vec()).collect();
                let finding = Finding::Collision { name: self.name.clone(), key: key.clone(), paths };
                findings.push((finding, options.policies.collisions == Collisions::Refuse));
            }
            if let Some(file) = files.last() {
                content.insert(key.clone(), Arc::clone(&values[&file.source]));
                paths.insert(key.clone(), Arc::clone(&file.path));
            }
        }
        let planned = Planned {
            name: self.name.clone(),
            places: self.places.clone(),
            stamp: options.stamp.clone().filter(|_| !content.contains_key(VERSION)),
            payload: Payload::new(content),
            files: paths,
            fed,
            rules: self.rules.clone(),
        };
        let bytes = planned.payload.size() as u64;
        let planned = fitting(planned, options, &mut findings);
        Made { planned: planned.into_iter().map(Arc::new).collect(), findings, bytes }
    }

    /// What was made of its files.
    pub(super) fn values<'m>(&'m self, made: &'m Made) -> impl Iterator<Item = (Source, &'m Value)> {
        made.planned.iter().flat_map(|planned| planned.payload.values()).filter_map(|(key, value)| {
            let file = self.keys.get(key)?.last()?;
            Some((file.source, &**value))
        })
    }
}

/// A ConfigMap whose size is right, or what the policy makes of it.
fn fitting(planned: Planned, options: &Options, findings: &mut Vec<(Finding, bool)>) -> Vec<Planned> {
    let Some(over) = planned.over(None) else { return vec![planned] };
    match options.policies.oversize {
        Oversize::Grow => {
            findings.push((planned.oversize(over), false));
            let stamp: Vec<_> = planned.stamp.iter().map(|text| (VERSION, text.len())).collect();
            let part = |(bits, payload): (String, Payload)| {
                let name = match bits.as_str() {
                    "" => planned.name.clone(),
                    bits => format!("{}-{bits}", planned.name),
                };
                let here = |key: &String| Some((key.clone(), Arc::clone(planned.files.get(key)?)));
                let files = payload.values().keys().filter_map(here).collect();
                let part = Planned { name, payload, files, ..planned.clone() };
                findings.extend(part.over(None).map(|over| (part.oversize(over), true)));
                part
            };
            split::split(&planned.payload, &stamp).into_iter().map(part).collect()
        }
        Oversize::Refuse => {
            findings.push((planned.oversize(over), true));
            vec![planned]
        }
        Oversize::Skip => {
            findings.push((planned.oversize(over), false));
            Vec::new()
        }
    }
}

/// Every ConfigMap with the rules that feed it, and the places where just these do.
pub(super) fn config_maps(rules: &RuleSet) -> Vec<Fed> {
    let mut feeders: BTreeMap<(&str, &ClusterNamespace), Vec<usize>> = BTreeMap::new();
    for (index, rule) in rules.rules.iter().enumerate() {
        for (name, place) in
            rule.names.all().iter().flat_map(|name| rule.places.iter().map(move |p| (name, p)))
        {
            feeders.entry((name, place)).or_default().push(index);
        }
    }
    let mut alike: BTreeMap<(&str, Vec<usize>), Vec<ClusterNamespace>> = BTreeMap::new();
    for ((name, place), rules) in feeders {
        alike.entry((name, rules)).or_default().push(place.clone());
    }
    let fed = |((name, rules), places): ((&str, Vec<usize>), _)| Fed {
        name: name.to_owned(),
        rules,
        places,
        keys: BTreeMap::new(),
        made: None,
    };
    alike.into_iter().map(fed).collect()
}

/// The ConfigMaps that each rule feeds, by its partitions.
pub(super) fn feeds(rules: &RuleSet, config_maps: &[Fed]) -> Vec<Vec<Vec<usize>>> {
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

/// A name that grew out of one ConfigMap must not be another's.
pub(super) fn names_once(all: &[Arc<Planned>]) -> Vec<Finding> {
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
