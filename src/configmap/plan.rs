//! Which file goes where: the whole desired state, computed from rules and a tree.
//!
//! In reading order: every file finds its rule, every rule its keys, every ConfigMap its values, every payload its
//! size. A plan is always whole; what its policies refuse is in [`Plan::refused`], and the caller checks that first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::finding::{Finding, Refused};
use super::payload::{LimitExceeded, Payload, Value, ValueEncoding, check_key, partition};
use super::policies::{Collisions, IllegalKeys, Links, Overlaps, Oversize, Policies};
use super::rules::{ClusterNamespace, Names, RuleSet};
use super::split;
use super::tree::Tree;

/// The key that the stamp has, as in Prow.
const STAMP: &str = "VERSION";

/// Contents of the tree's files.
pub trait Contents {
    /// The whole content of a file, by the number that the tree has for it.
    fn read(&mut self, file: usize) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

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
}

/// What a value is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// By the number that the tree has for it.
    pub file: usize,
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
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// Where it goes; sorted.
    pub places: Vec<ClusterNamespace>,
    /// What is in it.
    pub payload: Payload,
    /// The files its keys are from.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Whether any file matches a rule that feeds it. Where none does, its rules have lost their last file, and it
    /// depends on who wrote it whether it is to go.
    pub fed: bool,
    /// Whether the key `VERSION` is the stamp.
    pub stamped: bool,
    /// The rules that feed it, by their index.
    pub rules: Vec<usize>,
}

impl Planned {
    /// That it is over a ceiling, with its largest keys.
    pub(super) fn oversize(&self, over: LimitExceeded) -> Finding {
        let file = |key: &String| self.files.get(key).cloned().unwrap_or_default();
        let alone = self.payload.values().iter().find_map(|(key, value)| {
            let one = Payload::new([(key.clone(), value.clone())].into());
            one.over().map(|over| (key.clone(), value.form() == ValueEncoding::Gzip, over))
        });
        if let Some((key, compressed, LimitExceeded { what, bytes, limit })) = alone {
            let (name, path) = (self.name.clone(), file(&key));
            return Finding::OversizeKey { name, key, path, what, bytes, limit, compressed };
        }
        let largest = self.payload.largest().into_iter().map(|(key, size)| {
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
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The ConfigMaps, by name and place.
    pub configmaps: Vec<Planned>,
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

/// A file under its key.
#[derive(Clone, Debug)]
struct MatchedFile {
    path: Vec<u8>,
    file: usize,
    key: String,
    partition: usize,
}

/// Rules for one file that a finding names.
const OVERLAPPING_MAX: usize = 20;

/// Findings that are kept of each kind, refused and noted. An author of commits chooses how many there are.
const FINDINGS_MAX: usize = 2_000;

/// What a key takes in memory beside its text and its file's path, which are held twice: about what was measured.
const OF_KEY: usize = 300;

/// The keys of a ConfigMap, each with the path of its file and what its value is made of.
type Keys = BTreeMap<String, (Vec<u8>, Source)>;

/// Computes the desired state. Reading ends where there is more than there is memory for, which is refused.
pub fn plan(
    rules: &RuleSet,
    tree: &Tree,
    contents: &mut dyn Contents,
    options: &Options,
) -> Result<Plan, ReadFailed> {
    let mut planner = Planner { rules, tree, options, plan: Plan::default(), said: HashSet::new() };
    let fed = planner.files_of_rules();
    let most = options.most_bytes.unwrap_or(u64::MAX);
    let mut held = 0_u64;
    let mut gathered = Vec::new();
    for (name, feeders, places) in planner.configmaps() {
        let keys = planner.keys(&name, &feeders, &fed);
        let sizes = keys.iter().map(|(key, (path, _))| OF_KEY + 2 * (key.len() + path.len()));
        held += sizes.sum::<usize>() as u64;
        if held > most {
            return Ok(planner.too_much(most));
        }
        gathered.push((name, feeders, places, keys));
    }
    let Some(values) = values(gathered.iter().map(|(.., keys)| keys), contents, most - held)? else {
        return Ok(planner.too_much(most));
    };
    for (name, feeders, places, keys) in gathered {
        let value =
            |(key, (_, source)): (&String, &(Vec<u8>, Source))| (key.clone(), Arc::clone(&values[source]));
        let mut content: BTreeMap<String, Arc<Value>> = keys.iter().map(value).collect();
        let stamp = options.stamp.as_ref().filter(|_| !content.contains_key(STAMP));
        if let Some(stamp) = stamp {
            content.insert(STAMP.to_owned(), Arc::new(Value::new(stamp.clone().into_bytes(), false)));
        }
        let planned = Planned {
            name,
            places,
            payload: Payload::new(content),
            files: keys.into_iter().map(|(key, (path, _))| (key, path)).collect(),
            fed: feeders.iter().any(|&rule| !fed[rule].is_empty()),
            stamped: stamp.is_some(),
            rules: feeders,
        };
        planner.add(planned);
    }
    planner.names_once();
    let mut plan = planner.plan;
    plan.configmaps.sort_by(|a, b| (&a.name, &a.places).cmp(&(&b.name, &b.places)));
    Ok(plan)
}

/// The values of all keys, each made once. Nothing where there is no memory for them.
fn values<'k>(
    all: impl Iterator<Item = &'k Keys>,
    contents: &mut dyn Contents,
    room: u64,
) -> Result<Option<HashMap<Source, Arc<Value>>>, ReadFailed> {
    let mut seen = HashSet::new();
    let (wanted, paths): (Vec<Source>, Vec<&Vec<u8>>) = all
        .flat_map(|keys| keys.values())
        .filter(|(_, source)| seen.insert(*source))
        .map(|(path, source)| (*source, path))
        .unzip();
    match contents.values(&wanted, room) {
        Ok(values) => Ok(Some(wanted.into_iter().zip(values).collect())),
        Err(Unmade::TooMuch) => Ok(None),
        Err(Unmade::Unread { at, error }) => Err(ReadFailed { path: paths[at].clone(), source: error }),
    }
}

struct Planner<'a> {
    rules: &'a RuleSet,
    tree: &'a Tree,
    options: &'a Options,
    plan: Plan,
    /// What is refused (true) or noted already.
    said: HashSet<(bool, Finding)>,
}

impl Planner<'_> {
    /// Refuses or notes, as the policy says.
    fn found(&mut self, finding: Finding, refuse: bool) {
        let refuse = refuse && !finding.is_harmless();
        let list = if refuse { &mut self.plan.refused } else { &mut self.plan.noted };
        if list.len() < FINDINGS_MAX && self.said.insert((refuse, finding.clone())) {
            list.push(finding);
        }
    }

    /// The plan, refused: there is no memory for it.
    fn too_much(mut self, limit: u64) -> Plan {
        self.found(Finding::TooMuch { limit }, true);
        self.plan
    }

    /// The files that each rule has, in the order of paths.
    fn files_of_rules(&mut self) -> Vec<Vec<MatchedFile>> {
        let rules = self.rules;
        let repository = self.options.repository.as_deref();
        let mut fed: Vec<Vec<MatchedFile>> = vec![Vec::new(); rules.rules.len()];
        let mut matched = vec![0; rules.rules.len()];
        for path in self.tree.paths() {
            let mut claims = rules.patterns.matching(path);
            for &rule in &claims {
                matched[rule] += 1;
            }
            claims.retain(|&rule| repository.is_none_or(|name| rules.rules[rule].permits(name)));
            let Some(rule) = self.winner(path, &claims) else { continue };
            match self.tree.resolve(path) {
                Ok(file) => fed[rule].extend(self.keyed(path, file, rule)),
                Err(why) => {
                    let finding = Finding::Link { path: path.to_vec(), why };
                    self.found(finding, self.options.policies.links == Links::Refuse);
                }
            }
        }
        for (rule, count) in rules.rules.iter().zip(matched) {
            let pattern = rule.pattern.clone();
            match repository {
                None if rule.is_restricted() => self.found(Finding::NoRepository { pattern }, true),
                Some(name) if count > 0 && !rule.permits(name) => {
                    self.found(Finding::Denied { pattern, files: count }, false);
                }
                _ if count == 0 => self.found(Finding::NoFile { pattern }, false),
                _ => {}
            }
        }
        fed
    }

    /// The rule that has a file.
    fn winner(&mut self, path: &[u8], claims: &[usize]) -> Option<usize> {
        let (&first, others) = claims.split_first()?;
        let rules = &self.rules.rules;
        if others.iter().all(|&other| rules[other].same_fate(&rules[first])) {
            return Some(first);
        }
        let named = |&rule: &usize| (rules[rule].pattern.clone(), rules[rule].names.all().join(", "));
        let finding = Finding::Overlap {
            path: path.to_vec(),
            rules: claims.iter().take(OVERLAPPING_MAX).map(named).collect(),
        };
        let policy = self.options.policies.overlaps;
        self.found(finding, policy == Overlaps::Refuse);
        match policy {
            Overlaps::Refuse | Overlaps::First => Some(first),
            Overlaps::Specific => {
                let weight = |&rule: &usize| (self.rules.patterns.get(rule).weight(), usize::MAX - rule);
                claims.iter().copied().max_by_key(weight)
            }
        }
    }

    /// A file under its key, if that is one.
    fn keyed(&mut self, path: &[u8], file: usize, rule: usize) -> Option<MatchedFile> {
        let rule = &self.rules.rules[rule];
        let text = String::from_utf8_lossy(path);
        let key = rule.key_of(&text).into_owned();
        if let Err(why) = check_key(key.as_bytes()) {
            let finding = Finding::IllegalKey { path: path.to_vec(), name: rule.names.all().join(", "), why };
            self.found(finding, self.options.policies.illegal_keys == IllegalKeys::Refuse);
            return None;
        }
        let partition = partition(&key, rule.names.all().len());
        Some(MatchedFile { path: path.to_vec(), file, key, partition })
    }

    /// Every ConfigMap with the rules that feed it, and the places where just these do.
    fn configmaps(&self) -> Vec<(String, Vec<usize>, Vec<ClusterNamespace>)> {
        let mut feeders: BTreeMap<(&str, &ClusterNamespace), Vec<usize>> = BTreeMap::new();
        for (index, rule) in self.rules.rules.iter().enumerate() {
            for (name, place) in rule.names.all().iter().flat_map(|n| rule.places.iter().map(move |p| (n, p)))
            {
                feeders.entry((name, place)).or_default().push(index);
            }
        }
        let mut alike: BTreeMap<(&str, Vec<usize>), Vec<ClusterNamespace>> = BTreeMap::new();
        for ((name, place), rules) in feeders {
            alike.entry((name, rules)).or_default().push(place.clone());
        }
        alike.into_iter().map(|((name, rules), places)| (name.to_owned(), rules, places)).collect()
    }

    /// The keys of one ConfigMap, each with its file.
    fn keys(&mut self, name: &str, feeders: &[usize], fed: &[Vec<MatchedFile>]) -> Keys {
        let mut claims: BTreeMap<&str, Vec<(&MatchedFile, bool)>> = BTreeMap::new();
        for &index in feeders {
            let rule = &self.rules.rules[index];
            let here = |fed: &&MatchedFile| match &rule.names {
                Names::One(_) => true,
                Names::Partitions(names) => names[fed.partition] == name,
            };
            for fed in fed[index].iter().filter(here) {
                claims.entry(&fed.key).or_default().push((fed, rule.compress));
            }
        }
        let mut keys = BTreeMap::new();
        for (key, mut files) in claims {
            files.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
            if files.len() > 1 {
                let paths = files.iter().map(|(fed, _)| fed.path.clone()).collect();
                let finding = Finding::Collision { name: name.to_owned(), key: key.to_owned(), paths };
                self.found(finding, self.options.policies.collisions == Collisions::Refuse);
            }
            if let Some((fed, compress)) = files.last() {
                keys.insert(
                    key.to_owned(),
                    (fed.path.clone(), Source { file: fed.file, compress: *compress }),
                );
            }
        }
        keys
    }

    /// Adds a ConfigMap whose size is right, or what the policy makes of it.
    fn add(&mut self, planned: Planned) {
        if planned.payload.over().is_none() {
            self.plan.configmaps.push(planned);
            return;
        }
        match self.options.policies.oversize {
            Oversize::Grow => {
                self.oversize(&planned, false);
                let stamp = planned.stamped.then_some(STAMP);
                for (bits, payload) in split::split(&planned.payload, stamp) {
                    let name = match bits.as_str() {
                        "" => planned.name.clone(),
                        bits => format!("{}-{bits}", planned.name),
                    };
                    let part = Planned {
                        files: planned
                            .files
                            .iter()
                            .filter(|(key, _)| payload.values().contains_key(*key))
                            .map(|(key, path)| (key.clone(), path.clone()))
                            .collect(),
                        name,
                        payload,
                        ..planned.clone()
                    };
                    self.oversize(&part, true);
                    self.plan.configmaps.push(part);
                }
            }
            Oversize::Refuse => {
                self.oversize(&planned, true);
                self.plan.configmaps.push(planned);
            }
            Oversize::Skip => self.oversize(&planned, false),
        }
    }

    fn oversize(&mut self, planned: &Planned, refuse: bool) {
        let Some(over) = planned.payload.over() else { return };
        self.found(planned.oversize(over), refuse);
    }

    /// A name that grew out of one ConfigMap must not be another's.
    fn names_once(&mut self) {
        let mut seen: BTreeSet<(&str, &ClusterNamespace)> = BTreeSet::new();
        let mut taken = Vec::new();
        for planned in &self.plan.configmaps {
            if planned.places.iter().any(|place| !seen.insert((&planned.name, place))) {
                let grown = planned.name.rsplit_once('-').map_or("", |(name, _)| name).to_owned();
                taken.push(Finding::NameTaken { name: grown, taken: planned.name.clone() });
            }
        }
        for finding in taken {
            self.found(finding, true);
        }
    }
}
