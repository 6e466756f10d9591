//! Which file goes where, kept from one tree to the next: a plan costs what changed since the last one.
//!
//! In reading order: a path is added to the ConfigMaps that it feeds or removed from them, which rule has it, and what each
//! ConfigMap that changed is made of. What becomes of a path depends on nothing but the rules, so that adding it and
//! removing it again leaves everything as it was. Links are the exception: what they lead to may change without them, and
//! where a rule matches one, the next tree is looked at as a whole ([`Matches::follow`]).

mod fed;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::finding::Finding;
use super::payload::{Value, check_key, partition};
use super::plan::{Contents, FINDINGS_MAX, Findings, Options, Plan, ReadFailed, Source, Unmade};
use super::policies::{IllegalKeys, Links, Overlaps};
use super::rules::RuleSet;
use super::tree::{BadLink, Entry, FileRef, Tree};
use fed::{Fed, MatchedFile};

/// Rules for one file that a finding names.
const OVERLAPPING_MAX: usize = 20;

/// What a key takes in memory beside its text and its file's path, which are held several times: about what was measured.
const OF_KEY: usize = 300;

/// What differs at one path between two trees. A directory counts as absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The path.
    pub path: Vec<u8>,
    /// Whether something was there.
    pub before: bool,
    /// What is there now.
    pub now: Option<Entry>,
}

/// Computes the desired state. Reading ends where there is more than there is memory for, which is refused.
pub fn plan(
    rules: &RuleSet,
    tree: &Tree,
    contents: &mut dyn Contents,
    options: &Options,
) -> Result<Plan, ReadFailed> {
    Matches::of(Arc::new(rules.clone()), options.clone(), tree).plan(contents)
}

/// What rules have of a tree.
#[derive(Debug)]
pub struct Matches {
    rules: Arc<RuleSet>,
    options: Options,
    /// By the rules' index.
    counts: Vec<Count>,
    /// In the order of names and feeders.
    config_maps: Vec<Fed>,
    /// By the rules' index and the partition: the places in `config_maps` that the rule feeds.
    feeds: Vec<Vec<Vec<usize>>>,
    findings: PathFindings,
    /// A rule matches a link.
    has_links: bool,
    /// Bytes that keys and paths take.
    held: u64,
}

/// How many files a rule has to do with.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    matched: usize,
    /// Those that are its own, and have a key.
    keyed: usize,
}

/// Findings about paths, as many of each kind as a plan keeps, in the order of paths.
#[derive(Default, Debug)]
struct PathFindings {
    by_path: BTreeMap<Vec<u8>, Vec<(Finding, bool)>>,
    /// Those that are noted, and those that are refused.
    counts: [usize; 2],
    /// There were more: which of them a plan should have is unknown once one goes.
    more: bool,
}

impl PathFindings {
    fn add(&mut self, path: &[u8], mut found: Vec<(Finding, bool)>) {
        found.retain(|finding| {
            let count = &mut self.counts[kind(finding)];
            let is_kept = *count < FINDINGS_MAX;
            *count += usize::from(is_kept);
            self.more |= !is_kept;
            is_kept
        });
        if !found.is_empty() {
            self.by_path.insert(path.to_vec(), found);
        }
    }

    fn remove(&mut self, path: &[u8]) {
        let removed = self.by_path.remove(path).unwrap_or_default();
        removed.iter().for_each(|finding| self.counts[kind(finding)] -= 1);
    }
}

/// 1 where a finding is refused, as [`Findings::add`] has it.
fn kind((finding, refuse): &(Finding, bool)) -> usize {
    usize::from(*refuse && !finding.is_harmless())
}

impl Matches {
    /// Of a whole tree, unless there is no memory for it, which the plan then says.
    pub fn of(rules: Arc<RuleSet>, options: Options, tree: &Tree) -> Self {
        let config_maps = fed::config_maps(&rules);
        let mut matches = Self {
            counts: vec![Count::default(); rules.rules.len()],
            feeds: fed::feeds(&rules, &config_maps),
            rules,
            options,
            config_maps,
            findings: PathFindings::default(),
            has_links: false,
            held: 0,
        };
        for path in tree.paths() {
            if matches.is_full() {
                break;
            }
            let is_matched = matches.add(path, || tree.resolve(path));
            matches.has_links |= is_matched && tree.is_link(path);
        }
        matches
    }

    /// Goes on to the tree that differs so from this one. Where `false`, that cannot be told from the changes alone: start
    /// again with the whole of it.
    #[must_use]
    pub fn follow(&mut self, changes: &[Change]) -> bool {
        if self.has_links || self.findings.more {
            return false;
        }
        for Change { path, before, now } in changes {
            if *before {
                self.remove(path);
            }
            let is_link = matches!(now, Some(Entry::Link(_)));
            let is_matched = match now {
                None => false,
                Some(Entry::File(file)) => self.add(path, || Ok(*file)),
                Some(Entry::Link(_) | Entry::Other) => self.add(path, || Err(BadLink::NoFile)),
            };
            if is_matched && is_link || self.is_full() {
                return false;
            }
        }
        !self.findings.more
    }

    fn most(&self) -> u64 {
        self.options.most_bytes.unwrap_or(u64::MAX)
    }

    fn is_full(&self) -> bool {
        self.held > self.most()
    }

    /// Adds what is at a path. Whether any rule matches it.
    fn add(&mut self, path: &[u8], file: impl FnOnce() -> Result<FileRef, BadLink>) -> bool {
        let mut claims = self.rules.patterns.matching(path);
        if claims.is_empty() {
            return false;
        }
        claims.iter().for_each(|&rule| self.counts[rule].matched += 1);
        let mut found = Vec::new();
        if let Some(rule) = self.winner(path, &mut claims, &mut found) {
            match file() {
                Ok(file) => match self.key(path, rule) {
                    Ok(key) => self.insert(rule, key, path, file),
                    Err(finding) => {
                        found.push((finding, self.options.policies.illegal_keys == IllegalKeys::Refuse));
                    }
                },
                Err(why) => {
                    let finding = Finding::Link { path: path.to_vec(), why };
                    found.push((finding, self.options.policies.links == Links::Refuse));
                }
            }
        }
        self.findings.add(path, found);
        true
    }

    /// Removes what was at a path.
    fn remove(&mut self, path: &[u8]) {
        let mut claims = self.rules.patterns.matching(path);
        claims.iter().for_each(|&rule| self.counts[rule].matched -= 1);
        self.findings.remove(path);
        if let Some(rule) = self.winner(path, &mut claims, &mut Vec::new())
            && let Ok(key) = self.key(path, rule)
        {
            self.take(rule, &key, path);
        }
    }

    /// The rule that has a file, of those that match it.
    fn winner(
        &self,
        path: &[u8],
        claims: &mut Vec<usize>,
        found: &mut Vec<(Finding, bool)>,
    ) -> Option<usize> {
        let rules = &self.rules.rules;
        let repository = self.options.repository.as_deref();
        claims.retain(|&rule| repository.is_none_or(|name| rules[rule].permits(name)));
        let (&first, others) = claims.split_first()?;
        if others.iter().all(|&other| rules[other].same_fate(&rules[first])) {
            return Some(first);
        }
        let named = |&rule: &usize| (rules[rule].pattern.clone(), rules[rule].names.all().join(", "));
        let finding = Finding::Overlap {
            path: path.to_vec(),
            rules: claims.iter().take(OVERLAPPING_MAX).map(named).collect(),
        };
        let policy = self.options.policies.overlaps;
        found.push((finding, policy == Overlaps::Refuse));
        match policy {
            Overlaps::Refuse | Overlaps::First => Some(first),
            Overlaps::Specific => {
                let weight = |&rule: &usize| (self.rules.patterns.get(rule).weight(), usize::MAX - rule);
                claims.iter().copied().max_by_key(weight)
            }
        }
    }

    /// A file's key, if that is one.
    fn key(&self, path: &[u8], rule: usize) -> Result<String, Finding> {
        let rule = &self.rules.rules[rule];
        let text = String::from_utf8_lossy(path);
        let key = rule.key_of(&text).into_owned();
        match check_key(key.as_bytes()) {
            Ok(()) => Ok(key),
            Err(why) => {
                Err(Finding::IllegalKey { path: path.to_vec(), name: rule.names.all().join(", "), why })
            }
        }
    }

    fn insert(&mut self, rule: usize, key: String, path: &[u8], file: FileRef) {
        self.counts[rule].keyed += 1;
        if self.counts[rule].keyed == 1 {
            self.changed(rule);
        }
        let source = Source { file, compress: self.rules.rules[rule].compress };
        let new = MatchedFile { path: path.into(), source };
        let feeds = &self.feeds[rule];
        for &at in &feeds[partition(&key, feeds.len())] {
            let fed = &mut self.config_maps[at];
            fed.made = None;
            self.held += held(&key, path);
            let files = fed.keys.entry(key.clone()).or_default();
            if files.is_empty() {
                files.reserve_exact(1); // and almost always no more
            }
            let at = files.partition_point(|file| file.path < new.path);
            files.insert(at, new.clone());
        }
    }

    fn take(&mut self, rule: usize, key: &str, path: &[u8]) {
        let feeds = &self.feeds[rule];
        let mut was_there = false;
        for &at in &feeds[partition(key, feeds.len())] {
            let fed = &mut self.config_maps[at];
            let Some(files) = fed.keys.get_mut(key) else { continue };
            let Ok(at) = files.binary_search_by(|file| (*file.path).cmp(path)) else { continue };
            files.remove(at);
            if files.is_empty() {
                fed.keys.remove(key);
            }
            fed.made = None;
            self.held -= held(key, path);
            was_there = true;
        }
        if was_there {
            self.counts[rule].keyed -= 1;
            if self.counts[rule].keyed == 0 {
                self.changed(rule);
            }
        }
    }

    /// Has every ConfigMap made again that a rule feeds: whether anything does has changed.
    fn changed(&mut self, rule: usize) {
        for &at in self.feeds[rule].iter().flatten() {
            self.config_maps[at].made = None;
        }
    }

    /// The plan. Reading ends where there is more than there is memory for, which is refused.
    pub fn plan(&mut self, contents: &mut dyn Contents) -> Result<Plan, ReadFailed> {
        let known: u64 =
            self.config_maps.iter().filter_map(|fed| fed.made.as_ref()).map(|made| made.bytes).sum();
        let values = match self.most().checked_sub(self.held + known) {
            Some(room) => self.values(contents, room)?,
            None => None,
        };
        let Some(values) = values else {
            let mut findings = Findings::default();
            findings.add(Finding::TooMuch { limit: self.most() }, true);
            return Ok(Plan { refused: findings.refused, ..Plan::default() });
        };
        let (counts, options) = (&self.counts, &self.options);
        for fed in self.config_maps.iter_mut().filter(|fed| fed.made.is_none()) {
            let any = fed.rules.iter().any(|&rule| counts[rule].keyed > 0);
            fed.made = Some(fed.make(any, &values, options));
        }
        let made = || self.config_maps.iter().filter_map(|fed| Some((fed, fed.made.as_ref()?)));
        let bytes = made().map(|(_, made)| made.bytes).sum();
        contents.keep(bytes, &mut made().flat_map(|(fed, made)| fed.values(made)));

        let mut findings = self.findings();
        let mut configmaps: Vec<_> = made().flat_map(|(_, made)| made.planned.iter().cloned()).collect();
        configmaps.sort_by(|a, b| (&a.name, &a.places).cmp(&(&b.name, &b.places)));
        fed::names_once(&configmaps).into_iter().for_each(|finding| findings.add(finding, true));
        Ok(Plan { configmaps, refused: findings.refused, noted: findings.noted })
    }

    /// The values of what changed, each made once. Nothing where there is no memory for them.
    fn values(
        &self,
        contents: &mut dyn Contents,
        room: u64,
    ) -> Result<Option<HashMap<Source, Arc<Value>>>, ReadFailed> {
        let mut seen = HashSet::new();
        let changed = self.config_maps.iter().filter(|fed| fed.made.is_none());
        let (wanted, paths): (Vec<Source>, Vec<&Arc<[u8]>>) = changed
            .flat_map(|fed| fed.keys.values())
            .filter_map(|files| files.last())
            .filter(|file| seen.insert(file.source))
            .map(|file| (file.source, &file.path))
            .unzip();
        match contents.values(&wanted, room) {
            Ok(values) => Ok(Some(wanted.into_iter().zip(values).collect())),
            Err(Unmade::TooMuch) => Ok(None),
            Err(Unmade::Unread { at, error }) => Err(ReadFailed { path: paths[at].to_vec(), source: error }),
        }
    }

    /// Of paths, then of rules, then of ConfigMaps.
    fn findings(&self) -> Findings {
        let mut findings = Findings::default();
        let mut add = |(finding, refuse): &(Finding, bool)| findings.add(finding.clone(), *refuse);
        self.findings.by_path.values().flatten().for_each(&mut add);
        let repository = self.options.repository.as_deref();
        for (rule, Count { matched, .. }) in self.rules.rules.iter().zip(&self.counts) {
            let pattern = rule.pattern.clone();
            match repository {
                None if rule.is_restricted() => add(&(Finding::NoRepository { pattern }, true)),
                Some(name) if *matched > 0 && !rule.permits(name) => {
                    add(&(Finding::Denied { pattern, files: *matched }, false));
                }
                _ if *matched == 0 => add(&(Finding::NoFile { pattern }, false)),
                _ => {}
            }
        }
        self.config_maps
            .iter()
            .filter_map(|fed| fed.made.as_ref())
            .flat_map(|made| &made.findings)
            .for_each(add);
        findings
    }
}

fn held(key: &str, path: &[u8]) -> u64 {
    (OF_KEY + 2 * (key.len() + path.len())) as u64
}
