//! Reads rules from YAML. One pass finds all problems of a file and reports each with its field and line.
//!
//! The schema is Prow's: field names are case-insensitive, a null value counts as absent, and cluster groups are
//! resolved here. Unlike Prow's own loader it drops no field and ignores none silently.

mod shapes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::data::{check_key, check_name, check_namespace, partition};
use super::glob::{Dialect, Pattern, Patterns};
use super::rule_problem::{PROBLEMS_MAX, Problem, ProblemKind, RulesError, shortened};
use super::rules::{CLUSTER_MAX, ClusterNamespace, Names, RULES_MAX, Rule, RuleSet, Setting, TARGETS_MAX};
use super::yaml::{Node, Top};
use crate::human;

/// Prow's default maps, for rules without `maps`: pattern and ConfigMap name.
const DEFAULTS: [(&str, &str); 2] =
    [("config/prow/config.yaml", "config"), ("config/prow/plugins.yaml", "plugins")];

/// Most partitions of a rule: the hash that chooses one is a single byte.
const MOST_PARTITIONS: usize = 256;

/// Fields of the `config_updater` section of a `plugins.yaml`.
const SECTION: &[&str] = &["maps", "cluster_groups", "gzip"];
/// Fields at the top of a rules file of its own.
const OWN_FILE: &[&str] = &["maps", "cluster_groups", "gzip", "dialect"];
/// Fields of a cluster group.
const GROUP: &[&str] = &["clusters", "namespaces"];
/// Fields of a map (a rule).
const MAP: &[&str] = &[
    "name",
    "partitioned_names",
    "key",
    "use_full_path_as_key",
    "gzip",
    "clusters",
    "cluster_groups",
    "allowed_repos",
    "denied_repos",
];

impl RuleSet {
    /// Reads rules from the text of a Prow `plugins.yaml`, or of a file with the fields of that section at its top
    /// level. `variable` looks up environment variables, which zglob patterns may contain.
    pub fn read(
        source: &str,
        setting: &Setting<'_>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, RulesError> {
        if let Err(why) = check_namespace(setting.default_namespace) {
            return Err(RulesError::DefaultNamespace { name: setting.default_namespace.to_owned(), why });
        }
        let file = || setting.file.to_owned();
        if source.len() > TEXT_MAX {
            return Err(RulesError::TooLarge { file: file(), bytes: source.len(), limit: TEXT_MAX });
        }
        let source = source.strip_prefix('\u{feff}').unwrap_or(source); // the parser would take it for a document
        if let Some(why) = human::yaml_depth_problem(source) {
            return Err(RulesError::Syntax { file: file(), why });
        }
        let top = Top::read(source).map_err(|error| {
            let why = human::yaml_problem(&error.to_string()).to_owned();
            RulesError::Syntax { file: file(), why }
        })?;
        if top.0.is_empty() {
            return Err(RulesError::Empty { file: file() });
        }
        let mut reader = RulesParser {
            source,
            setting,
            problems: Vec::new(),
            warnings: Vec::new(),
            certain: HashMap::new(),
            targets: 0,
        };
        let set = reader.document(&top, variable);
        if reader.problems.is_empty() {
            Ok(Self { warnings: reader.warnings, ..set })
        } else {
            Err(RulesError::Wrong { file: file(), problems: reader.problems })
        }
    }
}

/// Largest rules text, in bytes. The text may come from a file of the tree, and a compiled pattern takes a hundred
/// times the memory of its text. Kubernetes' own plugins.yaml has 0.2 MB.
const TEXT_MAX: usize = 1 << 20;

struct RulesParser<'s> {
    source: &'s str,
    setting: &'s Setting<'s>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// The rules that can write only one key, by that key and its ConfigMap: for each place the first rule's index.
    certain: HashMap<(String, String), BTreeMap<ClusterNamespace, usize>>,
    /// How many ConfigMaps the rules name so far, in all places.
    targets: usize,
}

/// Clusters, each with the same namespaces.
struct Group {
    clusters: Vec<String>,
    namespaces: Vec<String>,
}

impl Group {
    /// Number of pairs of a cluster and a namespace.
    fn pairs(&self) -> usize {
        self.clusters.len().saturating_mul(self.namespaces.len())
    }
}

impl RulesParser<'_> {
    /// Records a problem of the field whose node is `at`: as a warning if it is harmless or ignored by the settings, else
    /// as an error.
    fn report(&mut self, field: &str, at: &Node<'_>, kind: ProblemKind) {
        let harmless = kind.is_harmless() || (kind.is_unknown() && self.setting.ignore_unknown);
        let kept = if harmless { &mut self.warnings } else { &mut self.problems };
        if kept.len() < PROBLEMS_MAX {
            kept.push(Problem { field: field.to_owned(), line: at.line(self.source), kind });
        }
    }

    /// Reads a whole document. The result is only valid if no problem was recorded.
    fn document(&mut self, top: &Top<'_>, variable: &dyn Fn(&str) -> Option<String>) -> RuleSet {
        let sections: Vec<_> = top.0.iter().filter(|(key, _)| is(key, "config_updater")).collect();
        for (key, _) in sections.iter().skip(1) {
            self.report("config_updater", key, ProblemKind::Duplicate);
        }
        let keys = top.0.iter().map(|(key, _)| key);
        let own: Vec<_> = keys.filter(|key| OWN_FILE.iter().any(|name| is(key, name))).collect();
        let (prefix, fields) = match sections.first() {
            Some((_, section)) => {
                self.report_beside_section(&own);
                ("config_updater.", self.fields("config_updater", section, SECTION))
            }
            None if own.is_empty() && self.is_plugins_file(top) => ("", BTreeMap::new()),
            None => ("", self.entries("", &top.0, OWN_FILE)),
        };
        let dialect = match fields.get("dialect") {
            None => self.setting.dialect,
            Some((key, node)) => self.text("dialect", node).parse::<Dialect>().unwrap_or_else(|why| {
                self.report("dialect", key, ProblemKind::Dialect(why));
                Dialect::default()
            }),
        };
        let gzip = fields.get("gzip").and_then(|(_, node)| self.boolean(&format!("{prefix}gzip"), node));
        let groups = match fields.get("cluster_groups") {
            Some((_, node)) => self.groups(&format!("{prefix}cluster_groups"), node),
            None => HashMap::new(),
        };
        let maps = match fields.get("maps") {
            Some((_, node)) => self.mapping(&format!("{prefix}maps"), node),
            None => Vec::new(),
        };
        if maps.len() > RULES_MAX {
            let kind = ProblemKind::TooManyRules { rules: maps.len(), limit: RULES_MAX };
            self.report(&format!("{prefix}maps"), &Node::Null, kind);
        }
        let mut rules = Vec::new();
        let mut patterns = Vec::new();
        for (text, key, node) in maps.into_iter().take(RULES_MAX) {
            let field = format!("{prefix}maps[{:?}]", shortened(&text));
            match Pattern::new(dialect, &text, variable) {
                Err(error) => self.report(&field, key, error.into()),
                Ok(pattern) => {
                    if let Some(surprise) = pattern.unusual_syntax() {
                        self.report(&field, key, ProblemKind::Surprise(surprise));
                    }
                    let rule = self.rule(&field, text, key, node, gzip.unwrap_or(false), &groups);
                    self.same_key(&field, key, &rule, &pattern, &rules);
                    rules.push(rule);
                    patterns.push(pattern);
                }
            }
        }
        if rules.is_empty() && self.problems.is_empty() {
            self.report(&format!("{prefix}maps"), &Node::Null, ProblemKind::Defaults);
            (rules, patterns) = self.defaults(gzip.unwrap_or(false));
        }
        RuleSet { rules, patterns: Patterns::new(patterns), dialect, warnings: Vec::new() }
    }

    /// Records fields of a rules file of its own that are beside `config_updater`, where a `plugins.yaml` has none of
    /// them. They are probably fields of the section that lack their indentation: without them it may have no maps, and
    /// Prow's default maps would silently take their place. `dialect` is not: the section has no such field either.
    fn report_beside_section(&mut self, own: &[&Node<'_>]) {
        for key in own {
            if let Node::Text(name) = key {
                let is_of_section = SECTION.iter().any(|field| is(key, field));
                let kind =
                    if is_of_section { ProblemKind::BesideSection } else { ProblemKind::Unknown(None) };
                self.report(name, key, kind);
            }
        }
    }

    /// Prow's default rules and their patterns.
    fn defaults(&self, gzip: bool) -> (Vec<Rule>, Vec<Pattern>) {
        let rule = |(pattern, name): (&str, &str)| Rule {
            pattern: pattern.to_owned(),
            names: Names::One(name.to_owned()),
            key: None,
            full_path: false,
            compress: gzip,
            places: vec![self.place("default", "")],
            allowed: Vec::new(),
            denied: Vec::new(),
        };
        let patterns =
            DEFAULTS.iter().filter_map(|(text, _)| Pattern::new(Dialect::Zglob, text, &|_| None).ok());
        (DEFAULTS.map(rule).into(), patterns.collect())
    }

    fn rule(
        &mut self,
        field: &str,
        pattern: String,
        at: &Node<'_>,
        node: &Node<'_>,
        gzip_of_file: bool,
        groups: &HashMap<String, Group>,
    ) -> Rule {
        let fields = self.fields(field, node, MAP);
        let of = |name: &str| fields.get(name).map_or(&Node::Null, |(_, node)| *node);
        let sub = |name: &str| format!("{field}.{name}");
        let names = self.names(field, at, of("name"), of("partitioned_names"));
        let key = Some(self.text(&sub("key"), of("key"))).filter(|key| !key.is_empty());
        if let Some((key, Err(why))) = key.as_ref().map(|key| (key, check_key(key.as_bytes()))) {
            self.report(&sub("key"), of("key"), ProblemKind::IllegalKey { key: key.clone(), why });
        }
        let gzip = self.boolean(&sub("gzip"), of("gzip"));
        let full_path = self.boolean(&sub("use_full_path_as_key"), of("use_full_path_as_key"));
        let targets = (of("clusters"), of("cluster_groups"));
        let places = self.places(field, at, targets, groups, names.all().len());
        let allowed = self.repositories(&sub("allowed_repos"), of("allowed_repos"));
        let denied = self.repositories(&sub("denied_repos"), of("denied_repos"));
        Rule {
            pattern,
            names,
            key,
            full_path: full_path.unwrap_or(false),
            compress: gzip.unwrap_or(gzip_of_file),
            places,
            allowed,
            denied,
        }
    }

    fn names(&mut self, field: &str, at: &Node<'_>, name: &Node<'_>, partitions: &Node<'_>) -> Names {
        let one = self.text(&format!("{field}.name"), name);
        let list = self.texts(&format!("{field}.partitioned_names"), partitions);
        if !one.is_empty() && !list.is_empty() {
            self.report(field, at, ProblemKind::NameAndPartitions);
        }
        if one.is_empty() && list.is_empty() && matches!(name, Node::Null | Node::Text(_)) {
            self.report(field, at, ProblemKind::NoName);
        }
        if list.len() > MOST_PARTITIONS {
            self.report(
                &format!("{field}.partitioned_names"),
                at,
                ProblemKind::TooManyPartitions(list.len()),
            );
        }
        let mut seen = HashSet::new();
        for name in list.iter().chain(Some(&one).filter(|one| !one.is_empty())) {
            if !seen.insert(name) {
                self.report(&format!("{field}.partitioned_names[{name:?}]"), at, ProblemKind::Duplicate);
            }
            if let Err(why) = check_name(name) {
                let kind =
                    ProblemKind::IllegalName { name: name.clone(), what: "the name of a ConfigMap", why };
                self.report(&format!("{field}.name"), at, kind);
            }
        }
        if list.is_empty() { Names::One(one) } else { Names::Partitions(list) }
    }

    fn place(&self, cluster: &str, namespace: &str) -> ClusterNamespace {
        let namespace = if namespace.is_empty() { self.setting.default_namespace } else { namespace };
        ClusterNamespace { cluster: cluster.to_owned(), namespace: namespace.to_owned() }
    }

    /// The places that a map's `clusters` or `cluster_groups` name, sorted, each once. A map without either goes to the
    /// default namespace of the cluster `default`. `names`: how many ConfigMaps the map has in each place.
    fn places(
        &mut self,
        field: &str,
        at: &Node<'_>,
        (clusters, named): (&Node<'_>, &Node<'_>),
        groups: &HashMap<String, Group>,
        names: usize,
    ) -> Vec<ClusterNamespace> {
        let own: Vec<Group> = self
            .mapping(&format!("{field}.clusters"), clusters)
            .into_iter()
            .map(|(cluster, key, node)| {
                let field = format!("{field}.clusters.{}", shortened(&cluster));
                let namespaces = self.namespaces(&field, node);
                if namespaces.is_empty() {
                    self.report(&field, key, ProblemKind::NoNamespace);
                }
                let is_short = self.check_cluster(&field, key, &cluster);
                Group { clusters: is_short.then_some(cluster).into_iter().collect(), namespaces }
            })
            .collect();
        let named = self.texts(&format!("{field}.cluster_groups"), named);
        if !own.is_empty() && !named.is_empty() {
            self.report(field, at, ProblemKind::ClustersAndGroups);
        }
        let mut targets: Vec<&Group> = own.iter().collect();
        for (index, name) in named.iter().enumerate() {
            match groups.get(name) {
                Some(group) => targets.push(group),
                None => {
                    let kind = ProblemKind::NoSuchGroup(name.clone());
                    self.report(&format!("{field}.cluster_groups[{index}]"), at, kind);
                }
            }
        }
        let is_default = targets.is_empty() && named.is_empty();
        let pairs = if is_default { 1 } else { targets.iter().map(|group| group.pairs()).sum() };
        if !self.has_room_for(pairs.saturating_mul(names), field, at) {
            return Vec::new();
        }
        if is_default {
            return vec![self.place("default", "")];
        }
        let mut places = BTreeSet::new();
        for Group { clusters, namespaces } in targets {
            for cluster in clusters {
                places.extend(namespaces.iter().map(|namespace| self.place(cluster, namespace)));
            }
        }
        places.into_iter().collect()
    }

    /// Counts the ConfigMaps of a map in all places. Returns false if there are more than [`TARGETS_MAX`] with those
    /// before; the map that exceeds the limit is recorded as a problem.
    fn has_room_for(&mut self, targets: usize, field: &str, at: &Node<'_>) -> bool {
        let had_room = self.targets <= TARGETS_MAX;
        self.targets = self.targets.saturating_add(targets);
        let has_room = self.targets <= TARGETS_MAX;
        if had_room && !has_room {
            let kind = ProblemKind::TooManyTargets { targets: self.targets, limit: TARGETS_MAX };
            self.report(field, at, kind);
        }
        has_room
    }

    /// The cluster groups, by name.
    fn groups(&mut self, field: &str, node: &Node<'_>) -> HashMap<String, Group> {
        let mut groups = HashMap::new();
        for (name, key, node) in self.mapping(field, node) {
            let field = format!("{field}.{}", shortened(&name));
            let fields = self.fields(&field, node, GROUP);
            let of = |name: &str| fields.get(name).map_or(&Node::Null, |(_, node)| *node);
            let (list, at) = (format!("{field}.clusters"), of("clusters"));
            let mut clusters = self.texts(&list, at);
            clusters.retain(|name| self.check_cluster(&list, at, name));
            let namespaces = self.namespaces(&format!("{field}.namespaces"), of("namespaces"));
            if namespaces.is_empty() || clusters.is_empty() {
                self.report(&field, key, ProblemKind::NoNamespace);
            }
            groups.insert(name, Group { clusters, namespaces });
        }
        groups
    }

    /// Returns true unless the name of a cluster is too long, which is recorded as a problem. The caller leaves that
    /// one out: there would be a copy of it for each of its namespaces.
    fn check_cluster(&mut self, field: &str, at: &Node<'_>, name: &str) -> bool {
        let is_short = name.len() <= CLUSTER_MAX;
        if !is_short {
            let (name, what) = (name.to_owned(), "the name of a cluster");
            let why = "it is longer than 253 bytes";
            self.report(field, at, ProblemKind::IllegalName { name, what, why });
        }
        is_short
    }

    /// A list of namespaces. An empty entry means the default namespace and is returned as it is. What is not a name
    /// is recorded as a problem and left out, as in [`Self::check_cluster`].
    fn namespaces(&mut self, field: &str, node: &Node<'_>) -> Vec<String> {
        let list = self.texts(field, node);
        let mut seen = HashSet::new();
        let mut namespaces = Vec::new();
        for name in &list {
            if !seen.insert(name) {
                self.report(field, node, ProblemKind::NamespaceTwice(name.clone()));
            }
            match check_namespace(name) {
                Err(why) if !name.is_empty() => {
                    let (name, what) = (name.clone(), "a namespace");
                    self.report(field, node, ProblemKind::IllegalName { name, what, why });
                }
                _ => namespaces.push(name.clone()),
            }
        }
        namespaces
    }

    /// A list of repositories or organisations.
    fn repositories(&mut self, field: &str, node: &Node<'_>) -> Vec<String> {
        let list = self.texts(field, node);
        for entry in &list {
            let mut parts = entry.split('/');
            let is_valid = parts.next().is_some_and(|part| !part.is_empty())
                && parts.next().is_none_or(|part| !part.is_empty())
                && parts.next().is_none();
            if !is_valid {
                self.report(field, node, ProblemKind::Repository(entry.clone()));
            }
        }
        list
    }

    /// Reports two rules that each can write only one key, and write the same key of the same ConfigMap. Conflicts
    /// between globs only show on a tree.
    fn same_key(&mut self, field: &str, at: &Node<'_>, rule: &Rule, pattern: &Pattern, others: &[Rule]) {
        if rule.is_restricted() {
            return;
        }
        let Some(path) = pattern.literal().or(rule.key.as_ref().map(|_| "")) else { return };
        let key = rule.key_of(path).into_owned();
        let names = rule.names.all();
        let Some(name) = names.get(partition(&key, names.len())).cloned() else { return };
        let same = self.certain.entry((key.clone(), name.clone())).or_default();
        let conflicting = rule.places.iter().filter_map(|place| same.get(place)).min().copied();
        for place in &rule.places {
            same.entry(place.clone()).or_insert(others.len());
        }
        if let Some(other) = conflicting.map(|at| &others[at]) {
            self.report(field, at, ProblemKind::SameKey { other: other.pattern.clone(), key, name });
        }
    }
}

fn is(key: &Node<'_>, name: &str) -> bool {
    matches!(key, Node::Text(text) if text.eq_ignore_ascii_case(name))
}
