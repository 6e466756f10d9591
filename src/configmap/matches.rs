//! Maps files to ConfigMaps and keeps the mapping from one tree to the next, so that a plan costs in proportion to what
//! changed since the last one.
//!
//! In reading order: a path is added to or removed from the ConfigMaps that it feeds; the rule that gets the path is
//! chosen; each changed ConfigMap is built again. Where a path goes depends only on the rules, so adding a path and
//! removing it again restores the previous state. Symbolic links are the exception: the target's content may change
//! while the link does not. If a rule matches a link, the next tree is matched from scratch ([`Matches::follow`]).

mod fed;
#[cfg(test)]
mod tests;
mod wanted;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::data::{Value, check_key, partition};
use super::finding::{FINDINGS_MAX, Finding, SHOWN_MAX, shown_path};
use super::plan::{Contents, Findings, Options, Plan, ReadFailed, ValueError, ValueSource};
use super::policies::{IllegalKeys, Links, Overlaps, Oversize};
use super::rule_problem::SHOWN;
use super::rules::{RuleSet, TARGETS_MAX};
use super::tree::{BadLink, Entry, FileRef, Tree};
use fed::{FedConfigMap, MatchedFile};
use wanted::Wanted;

/// Estimated bytes of memory per key besides the key's text and the file's path, which are stored several times. Close
/// to what was measured.
const KEY_OVERHEAD: usize = 300;

/// One path that differs between two trees. A directory counts as absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The path, relative to the top of the tree.
    pub path: Vec<u8>,
    /// Whether the old tree had an entry at the path.
    pub before: bool,
    /// The entry in the new tree; `None` if there is none.
    pub now: Option<Entry>,
}

/// Computes the plan for a whole tree. If keys and values exceed [`Options::memory_limit`], reading stops and the plan
/// is refused with [`Finding::MemoryLimit`].
pub fn plan(
    rules: &RuleSet,
    tree: &Tree,
    contents: &mut dyn Contents,
    options: &Options,
) -> Result<Plan, ReadFailed> {
    Matches::of(Arc::new(rules.clone()), options.clone(), tree).plan(contents)
}

/// The files of a tree that rules match, by the ConfigMap that they feed.
#[derive(Debug)]
pub struct Matches {
    rules: Arc<RuleSet>,
    options: Options,
    /// Indexed like the rules.
    counts: Vec<Count>,
    /// Sorted by name and by the rules that feed them.
    config_maps: Vec<FedConfigMap>,
    /// For each rule and each of its partitions, the indices into `config_maps` that the rule feeds: none if it is for
    /// other repositories.
    feeds: Vec<Vec<Vec<usize>>>,
    findings: PathFindings,
    /// Whether a rule matches a symbolic link.
    has_links: bool,
    /// Estimated bytes of memory that keys and paths take.
    key_bytes: u64,
    /// Whether matching was ended at its time limit.
    is_late: bool,
}

/// Numbers of files for one rule.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    /// Files that its pattern matches.
    matched: usize,
    /// Files that the rule gets and that have a valid key.
    keyed: usize,
}

/// Findings about paths, sorted by path: at most [`FINDINGS_MAX`] noted and as many refused, and each of the two until
/// they have [`FINDINGS_BYTES_MAX`] of text.
#[derive(Default, Debug)]
struct PathFindings {
    /// The flag says whether the finding refuses the plan.
    by_path: BTreeMap<Vec<u8>, Vec<(Finding, bool)>>,
    /// What is noted, and what is refused.
    kept: [Kept; 2],
    /// Whether findings were dropped at a limit. When a kept one is removed, the one to take its place is unknown.
    is_truncated: bool,
}

/// The size of the findings that are kept.
#[derive(Clone, Copy, Default, Debug)]
struct Kept {
    count: usize,
    /// Bytes of paths, patterns and names.
    bytes: usize,
}

/// How many bytes of paths, patterns and names findings may have together before no more are kept: their lengths are an
/// author's, and the memory limit of a plan does not count them. Ordinary ones have some hundred bytes each.
const FINDINGS_BYTES_MAX: usize = 4 << 20;

impl PathFindings {
    fn add(&mut self, path: &[u8], mut found: Vec<(Finding, bool)>) {
        found.retain(|finding| {
            let kept = &mut self.kept[kept_index(finding)];
            // So the first that refuses the plan is kept, whatever its size.
            let is_kept = kept.count < FINDINGS_MAX && kept.bytes < FINDINGS_BYTES_MAX;
            if is_kept {
                kept.count += 1;
                kept.bytes += text_bytes(path, finding);
            }
            self.is_truncated |= !is_kept;
            is_kept
        });
        if !found.is_empty() {
            self.by_path.insert(path.to_vec(), found);
        }
    }

    fn remove(&mut self, path: &[u8]) {
        for finding in &self.by_path.remove(path).unwrap_or_default() {
            let kept = &mut self.kept[kept_index(finding)];
            kept.count -= 1;
            kept.bytes -= text_bytes(path, finding);
        }
    }
}

/// The index into [`PathFindings::kept`]: 1 if the finding refuses the plan, by the rule of [`Findings::add`].
fn kept_index((finding, refuse): &(Finding, bool)) -> usize {
    usize::from(*refuse && !finding.is_harmless())
}

/// Bytes of text that a finding about a path takes, with the path that it is sorted by.
fn text_bytes(path: &[u8], (finding, _): &(Finding, bool)) -> usize {
    let in_finding = match finding {
        Finding::Overlap { path, rules, .. } => {
            path.len() + rules.iter().map(|(pattern, name)| pattern.len() + name.len()).sum::<usize>()
        }
        Finding::IllegalKey { path, name, key, .. } => path.len() + name.len() + key.len(),
        Finding::BadSymlink { path, .. } => path.len(),
        _ => 0, // it is not about a path
    };
    path.len() + in_finding
}

impl Matches {
    /// Matches a whole tree. Stops when the limit of memory or time is exceeded; [`Self::plan`] then refuses the plan.
    pub fn of(rules: Arc<RuleSet>, options: Options, tree: &Tree) -> Self {
        let config_maps = fed::config_maps(&rules, options.repository.as_deref());
        let mut matches = Self {
            counts: vec![Count::default(); rules.rules.len()],
            feeds: fed::feeds(&rules, &config_maps),
            rules,
            options,
            config_maps,
            findings: PathFindings::default(),
            has_links: false,
            key_bytes: 0,
            is_late: false,
        };
        let began = Instant::now();
        for path in tree.paths() {
            if matches.is_full() || matches.is_late_since(began) {
                break;
            }
            let is_matched = matches.add(path, || tree.resolve(path));
            matches.has_links |= is_matched && tree.is_link(path);
        }
        matches
    }

    /// Moves on to the tree that differs from the current one by `changes`. Returns `false` if the changes alone do not
    /// determine the result; the state is then unusable and the caller has to match the whole new tree.
    #[must_use]
    pub fn follow(&mut self, changes: &[Change]) -> bool {
        if self.has_links || self.findings.is_truncated || self.is_full() {
            return false;
        }
        let began = Instant::now();
        for Change { path, before, now } in changes {
            if self.is_late_since(began) {
                return false;
            }
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
        !self.findings.is_truncated
    }

    fn max_bytes(&self) -> u64 {
        self.options.memory_limit.unwrap_or(u64::MAX)
    }

    fn is_full(&self) -> bool {
        self.key_bytes > self.max_bytes()
    }

    /// Notes whether matching that began at this time takes too long, and returns it.
    fn is_late_since(&mut self, began: Instant) -> bool {
        self.is_late = self.options.matching_limit.is_some_and(|limit| began.elapsed() > limit.time);
        self.is_late
    }

    /// Adds a path; `file` resolves it to a regular file. Returns true if any rule matches the path.
    fn add(&mut self, path: &[u8], file: impl FnOnce() -> Result<FileRef, BadLink>) -> bool {
        let mut candidates = self.rules.patterns.matching(path);
        if candidates.is_empty() {
            return false;
        }
        candidates.iter().for_each(|&rule| self.counts[rule].matched += 1);
        let mut found = Vec::new();
        if let Some(rule) = self.winning_rule(path, &mut candidates, &mut found) {
            match file() {
                Ok(file) => match self.key(path, rule) {
                    Ok(key) => self.insert(rule, key, path, file),
                    Err(finding) => {
                        found.push((finding, self.options.policies.illegal_keys == IllegalKeys::Refuse));
                    }
                },
                Err(why) => {
                    let finding = Finding::BadSymlink { path: shown_path(path), why };
                    found.push((finding, self.options.policies.links == Links::Refuse));
                }
            }
        }
        self.findings.add(path, found);
        true
    }

    /// Removes a path of the old tree.
    fn remove(&mut self, path: &[u8]) {
        let mut candidates = self.rules.patterns.matching(path);
        candidates.iter().for_each(|&rule| self.counts[rule].matched -= 1);
        self.findings.remove(path);
        if let Some(rule) = self.winning_rule(path, &mut candidates, &mut Vec::new())
            && let Ok(key) = self.key(path, rule)
        {
            self.remove_key(rule, &key, path);
        }
    }

    /// Chooses the rule that gets a file, of those that match it and permit the repository. Appends to `found` if the
    /// candidates would do different things with the file.
    fn winning_rule(
        &self,
        path: &[u8],
        candidates: &mut Vec<usize>,
        found: &mut Vec<(Finding, bool)>,
    ) -> Option<usize> {
        let rules = &self.rules.rules;
        let repository = self.options.repository.as_deref();
        candidates.retain(|&rule| repository.is_none_or(|name| rules[rule].permits(name)));
        let (&first, others) = candidates.split_first()?;
        if others.iter().all(|&other| rules[other].has_same_effect(&rules[first])) {
            return Some(first);
        }
        let named = |&rule: &usize| (rules[rule].pattern.clone(), rules[rule].names.shown());
        let finding = Finding::Overlap {
            path: shown_path(path),
            rules: candidates.iter().take(SHOWN).map(named).collect(),
            total: candidates.len(),
        };
        let policy = self.options.policies.overlaps;
        found.push((finding, policy == Overlaps::Refuse));
        match policy {
            Overlaps::Refuse | Overlaps::First => Some(first),
            Overlaps::Specific => {
                let weight = |&rule: &usize| (self.rules.patterns.get(rule).weight(), usize::MAX - rule);
                candidates.iter().copied().max_by_key(weight)
            }
        }
    }

    /// The key that a rule gives a file, or the finding that it is not a valid key.
    fn key(&self, path: &[u8], rule: usize) -> Result<String, Finding> {
        let rule = &self.rules.rules[rule];
        let text = String::from_utf8_lossy(path);
        let key = rule.key_of(&text);
        match check_key(key.as_bytes()) {
            Ok(()) => Ok(key.into_owned()),
            Err(why) => {
                let key = key.chars().take(SHOWN_MAX).collect();
                Err(Finding::IllegalKey { path: shown_path(path), name: rule.names.shown(), key, why })
            }
        }
    }

    fn insert(&mut self, rule: usize, key: String, path: &[u8], file: FileRef) {
        self.counts[rule].keyed += 1;
        if self.counts[rule].keyed == 1 {
            self.invalidate_fed(rule);
        }
        let source = ValueSource { file, compress: self.rules.rules[rule].compress };
        let new = MatchedFile { path: path.into(), source };
        let feeds = &self.feeds[rule];
        for &at in &feeds[partition(&key, feeds.len())] {
            let fed = &mut self.config_maps[at];
            fed.built = None;
            self.key_bytes += key_bytes(&key, path);
            let files = fed.keys.entry(key.clone()).or_default();
            if files.is_empty() {
                files.reserve_exact(1); // a key almost always has exactly one file
            }
            let at = files.partition_point(|file| file.path < new.path);
            files.insert(at, new.clone());
        }
    }

    /// Removes a file from the ConfigMaps of a rule, if it is in any.
    fn remove_key(&mut self, rule: usize, key: &str, path: &[u8]) {
        let feeds = &self.feeds[rule];
        let mut was_present = false;
        for &at in &feeds[partition(key, feeds.len())] {
            let fed = &mut self.config_maps[at];
            let Some(files) = fed.keys.get_mut(key) else { continue };
            let Ok(at) = files.binary_search_by(|file| (*file.path).cmp(path)) else { continue };
            files.remove(at);
            if files.is_empty() {
                fed.keys.remove(key);
            }
            fed.built = None;
            self.key_bytes -= key_bytes(key, path);
            was_present = true;
        }
        if was_present {
            self.counts[rule].keyed -= 1;
            if self.counts[rule].keyed == 0 {
                self.invalidate_fed(rule);
            }
        }
    }

    /// Marks every ConfigMap that the rule feeds to be built again: whether the rule has any file is part of the result
    /// ([`super::Planned::fed`]).
    fn invalidate_fed(&mut self, rule: usize) {
        for &at in self.feeds[rule].iter().flatten() {
            self.config_maps[at].built = None;
        }
    }

    /// Builds the ConfigMaps that changed and returns the whole plan. If keys and values exceed the memory limit,
    /// reading stops and the plan is refused with [`Finding::MemoryLimit`]; if matching took too long, with
    /// [`Finding::MatchingLimit`].
    pub fn plan(&mut self, contents: &mut dyn Contents) -> Result<Plan, ReadFailed> {
        if let Some(limit) = self.options.matching_limit.filter(|_| self.is_late) {
            let finding = Finding::MatchingLimit { rules: self.rules.rules.len(), limit };
            return Ok(Plan { refused: vec![finding], ..Plan::default() });
        }
        let unchanged: u64 =
            self.config_maps.iter().filter_map(|fed| fed.built.as_ref()).map(|built| built.bytes).sum();
        let values = match self.max_bytes().checked_sub(self.key_bytes + unchanged) {
            Some(room) => self.values(contents, room)?,
            None => None,
        };
        let Some(values) = values else {
            let finding = Finding::MemoryLimit { limit: self.max_bytes() };
            return Ok(Plan { refused: vec![finding], ..Plan::default() });
        };
        for fed in self.config_maps.iter_mut().filter(|fed| fed.built.is_none()) {
            let has_files = fed.rules.iter().any(|&rule| self.counts[rule].keyed > 0);
            fed.built = Some(fed.build(has_files, &self.rules.rules, &values, &self.options));
        }
        let built = || self.config_maps.iter().filter_map(|fed| Some((fed, fed.built.as_ref()?)));
        let bytes = built().map(|(_, built)| built.bytes).sum();
        contents.keep(bytes, &mut built().flat_map(|(fed, built)| fed.values(built)));

        let mut findings = self.findings();
        let mut configmaps: Vec<_> = built().flat_map(|(_, built)| built.planned.iter().cloned()).collect();
        configmaps.sort_by(|a, b| (&a.name, &a.places).cmp(&(&b.name, &b.places)));
        // Rules name no more than that, but each part of a ConfigMap that was split goes to all of its places.
        let targets: usize = configmaps.iter().map(|planned| planned.places.len()).sum();
        if targets > TARGETS_MAX {
            findings.add(Finding::TooManyTargets { targets, limit: TARGETS_MAX }, true);
        } else {
            let repository = self.options.repository.as_deref();
            let foreign = fed::foreign_conflicts(&self.config_maps, &self.rules, repository);
            let conflicts = fed::name_conflicts(&configmaps).into_iter().chain(foreign);
            conflicts.for_each(|finding| findings.add(finding, true));
        }
        Ok(Plan { configmaps, refused: findings.refused, noted: findings.noted })
    }

    /// The values of the ConfigMaps that changed, one per [`ValueSource`]. `None` if they take more than `room` bytes.
    /// All of them together hold at most 1 MiB for each ConfigMap that is not split.
    fn values(
        &self,
        contents: &mut dyn Contents,
        room: u64,
    ) -> Result<Option<HashMap<ValueSource, Arc<Value>>>, ReadFailed> {
        let wanted = Wanted::of(self.config_maps.iter().filter(|fed| fed.built.is_none()));
        let splits = self.options.policies.oversize == Oversize::Grow;
        let is_needed = |at: usize, size: usize| splits || wanted.is_needed(at, size);
        let made = contents.values(&wanted.sources, room, &is_needed);
        match made {
            Ok(values) => Ok(Some(wanted.sources.into_iter().zip(values).collect())),
            Err(ValueError::OverMemoryLimit) => Ok(None),
            Err(ValueError::UnreadableFile { at, error }) => {
                Err(ReadFailed { path: wanted.paths[at].to_vec(), source: error })
            }
        }
    }

    /// All findings: about paths, then about rules, then about ConfigMaps.
    fn findings(&self) -> Findings {
        let mut findings = Findings::default();
        let mut add = |(finding, refuse): &(Finding, bool)| findings.add(finding.clone(), *refuse);
        self.findings.by_path.values().flatten().for_each(&mut add);
        let has_no_file = |fed: &FedConfigMap| fed.rules.iter().all(|&rule| self.counts[rule].keyed == 0);
        // Once for each ConfigMap: many rules may feed one.
        let unfed: Vec<bool> = self.config_maps.iter().map(has_no_file).collect();
        let repository = self.options.repository.as_deref();
        for (at, (rule, &Count { matched, .. })) in self.rules.rules.iter().zip(&self.counts).enumerate() {
            let pattern = rule.pattern.clone();
            let exclusion = repository.and_then(|name| Some((name, rule.exclusion(name)?)));
            match exclusion {
                None if repository.is_none() && rule.is_restricted() => {
                    add(&(Finding::RepositoryUnknown { pattern }, true));
                }
                None if matched == 0 => {
                    let empties = self.feeds[at].iter().flatten().any(|&fed| unfed[fed]);
                    add(&(Finding::NoMatch { pattern, empties }, false));
                }
                Some((repository, (field, list))) if matched > 0 => {
                    let (repository, total) = (repository.to_owned(), list.len());
                    let list = list.iter().take(SHOWN).cloned().collect();
                    let finding = Finding::RepositoryNotPermitted {
                        pattern,
                        files: matched,
                        repository,
                        field,
                        list,
                        total,
                    };
                    add(&(finding, false));
                }
                _ => {}
            }
        }
        self.config_maps
            .iter()
            .filter_map(|fed| fed.built.as_ref())
            .flat_map(|built| &built.findings)
            .for_each(add);
        findings
    }
}

fn key_bytes(key: &str, path: &[u8]) -> u64 {
    (KEY_OVERHEAD + 2 * (key.len() + path.len())) as u64
}
