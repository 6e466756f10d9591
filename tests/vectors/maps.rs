//! Globs, partitions, and rules: what Prow reads from a file, and what it makes of a pattern.
//!
//! Where Prow is known to be wrong we differ on purpose: [`Defect`] has each way, and a list for each kind of file
//! names the cases of this repository. A case from elsewhere passes too if it differs in one of these ways. Each way
//! that a plan can show has a test of the better behaviour in `better`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use treeswap::configmap::{Dialect, Names, Pattern, ProblemKind, Rule, RuleSet, RulesError, Setting};

use super::{cases, directory, files};

/// A way in which Prow is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Defect {
    /// Two harmless globs with one last component are refused.
    HarmlessGlobsRefused,
    /// Two files for one key of one ConfigMap are not seen, when targets come from groups or the default namespace.
    ClashNotSeen,
    /// A name that the API server refuses is accepted.
    IllegalName,
    /// Fields that do not exist are ignored.
    UnknownField,
    /// A pattern or field that is there twice silently counts once.
    Duplicate,
    /// An unquoted `on` is a cluster called `true`.
    UnquotedBoolean,
    /// Resolving cluster groups loses the full-path flag and the lists of repositories.
    GroupsLoseFields,
    /// A file that two rules match goes to either, by chance.
    Overlap,
    /// Two files with one key: one is lost without a word.
    Collision,
    /// A key that the API server refuses, and with it the whole ConfigMap.
    IllegalKey,
    /// With an empty default namespace, updates are dropped.
    EmptyNamespace,
    /// A deletion that is listed last removes the key of a file that exists.
    LiveKeyDeleted,
    /// A rule with a list of repositories is never bootstrapped, without a word.
    RestrictedRuleSkipped,
    /// A link to nothing becomes an empty key.
    BadLink,
    /// `.git` is part of the tree.
    GitDirectory,
    /// The stamp disappears on every second run, or when a key of its name is deleted.
    StampLost,
    /// The stamp is in both fields, which the API server refuses.
    StampTwice,
    /// When a rule's last file goes, its ConfigMap keeps its content for ever.
    LastFileStays,
    /// A ConfigMap that no rule names any more stays for ever. Which ones were ours, only whoever applies knows: the
    /// plan has no place for it.
    OrphanStays,
}

/// How a case came out.
pub(crate) enum Held {
    Same,
    Better(Defect),
}

/// What came of the cases of one kind of file.
#[derive(Default)]
pub(crate) struct Ledger {
    same: usize,
    better: BTreeMap<String, Defect>,
    wrong: Vec<String>,
}

impl Ledger {
    pub(crate) fn case(&mut self, id: &str, held: Result<Held, String>) {
        match held {
            Ok(Held::Same) => self.same += 1,
            Ok(Held::Better(defect)) => drop(self.better.insert(id.to_owned(), defect)),
            Err(why) => self.wrong.push(format!("{id}: {why}")),
        }
    }

    /// The list is of the repository's own cases, and exact: none that is not there, and none missing.
    #[track_caller]
    pub(crate) fn finish(self, kind: &str, listed: &[(&str, Defect)]) {
        println!("{kind}: {} cases the same, {} better:", self.same, self.better.len());
        for (id, defect) in &self.better {
            println!("  {id}: {defect:?}");
        }
        assert!(self.wrong.is_empty(), "{kind}: {} cases:\n{}", self.wrong.len(), self.wrong.join("\n"));
        if directory().1 {
            let listed: BTreeMap<String, Defect> =
                listed.iter().map(|(id, defect)| ((*id).to_owned(), *defect)).collect();
            assert_eq!(self.better, listed, "{kind}: the list of what we do better");
            assert!(self.same > 0, "{kind}: no case was found");
        }
    }
}

/// Reads rules as the vectors give them.
pub(crate) fn read(yaml: &str, default_namespace: &str, ignore_unknown: bool) -> Result<RuleSet, RulesError> {
    let setting = Setting { file: "vector", default_namespace, dialect: Dialect::Zglob, ignore_unknown };
    RuleSet::read(yaml, &setting, &|_| None)
}

/// The defect that refusing these rules avoids, if every problem is one.
pub(crate) fn defect_of(error: &RulesError) -> Option<Defect> {
    if matches!(error, RulesError::DefaultNamespace { name, .. } if name.is_empty()) {
        return Some(Defect::EmptyNamespace);
    }
    let defects: Option<Vec<Defect>> = error.problems().iter().map(|p| defect(&p.kind)).collect();
    defects?.into_iter().max()
}

fn defect(kind: &ProblemKind) -> Option<Defect> {
    Some(match kind {
        ProblemKind::SameKey { .. } => Defect::ClashNotSeen,
        ProblemKind::IllegalName { .. } | ProblemKind::NoName => Defect::IllegalName,
        ProblemKind::IllegalKey { .. } => Defect::IllegalKey,
        ProblemKind::Unknown(_) | ProblemKind::Removed(_) | ProblemKind::BesideSection => {
            Defect::UnknownField
        }
        ProblemKind::Duplicate => Defect::Duplicate,
        ProblemKind::ImplicitType { .. } => Defect::UnquotedBoolean,
        _ => return None,
    })
}

pub(crate) fn globs() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for case in cases(&files("globs"), "cases") {
        let (pattern, path) = (case["pattern"].as_str().unwrap(), case["path"].as_str().unwrap());
        let variable = |name: &str| case["env"][name].as_str().map(str::to_owned);
        let matches = Pattern::new(Dialect::Zglob, pattern, &variable).unwrap().matches(path.as_bytes());
        if Some(matches) != case["matches"].as_bool() {
            wrong.push(format!("zglob {pattern:?} {path:?}: {matches}"));
        }
        let globset = Pattern::new(Dialect::Globset, pattern, &variable);
        let globset = globset.map(|pattern| pattern.matches(path.as_bytes())).ok();
        let expected = &case["globset_literal_separator"];
        if !expected.is_null() && globset != expected.as_bool() {
            wrong.push(format!("globset {pattern:?} {path:?}: {globset:?}, not {expected}"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 0 || !directory().1, "no case was found");
}

pub(crate) fn partition() {
    let mut count = 0;
    for case in cases(&files("partition"), "cases") {
        let key = case["key"].as_str().unwrap();
        for (partitions, index) in case["index"].as_object().unwrap() {
            let index = index.as_u64().unwrap() as usize;
            assert_eq!(
                treeswap::configmap::partition(key, partitions.parse().unwrap()),
                index,
                "{key} {partitions}"
            );
            count += 1;
        }
    }
    assert!(count > 0 || !directory().1, "no case was found");
}

/// Stands for the empty namespace, which rules keep and we resolve.
const DEFAULT: &str = "the-default";

const VALIDATE: &[(&str, Defect)] = &[
    ("two-globs-same-last-segment", Defect::HarmlessGlobsRefused),
    ("two-globs-same-last-segment-full-path", Defect::HarmlessGlobsRefused),
    ("same-key-via-groups-not-seen", Defect::ClashNotSeen),
    ("illegal-name", Defect::IllegalName),
    ("unknown-field-ignored", Defect::UnknownField),
];

pub(crate) fn validate() {
    let mut ledger = Ledger::default();
    for case in cases(&files("validate"), "cases") {
        let expected: Vec<Value> = match case["expected_one_of"].as_array() {
            Some(any) => any.clone(),
            None => vec![case["expected"].clone()],
        };
        let held = validated(case["config_yaml"].as_str().unwrap(), &expected);
        ledger.case(case["id"].as_str().unwrap(), held);
    }
    ledger.finish("validate", VALIDATE);
}

fn validated(yaml: &str, expected: &[Value]) -> Result<Held, String> {
    let refused = expected.iter().find_map(|one| one["error"].as_str());
    let read_again = |ignore| read(yaml, DEFAULT, ignore);
    let (rules, defect) = match (read_again(false), refused) {
        (Err(_), Some(_)) => return Ok(Held::Same),
        (Ok(rules), None) => (rules, None),
        (Ok(_), Some(error)) if error.contains("updated with more than one file") => {
            return Ok(Held::Better(Defect::HarmlessGlobsRefused));
        }
        (Ok(_), Some(error)) => return Err(format!("accepted, where Prow says: {error}")),
        (Err(error), None) => match (defect_of(&error), read_again(true)) {
            (Some(Defect::UnknownField), Ok(rules)) => (rules, Some(Defect::UnknownField)),
            (Some(defect), _) => return Ok(Held::Better(defect)),
            (None, _) => return Err(error.to_string()),
        },
    };
    let same = |resolved: &Value, lose: bool| {
        let Some(maps) = resolved["maps"].as_object() else { return true }; // `accepted (256 names)`
        let global = resolved["gzip"].as_bool().unwrap_or(false);
        let ours: BTreeMap<&str, Value> =
            rules.rules.iter().map(|rule| (rule.pattern.as_str(), shown(rule, lose))).collect();
        let theirs: BTreeMap<&str, Value> =
            maps.iter().map(|(pattern, map)| (pattern.as_str(), plain(map, global, lose))).collect();
        ours == theirs
    };
    let resolved = &expected[0]["resolved"];
    match (same(resolved, false), defect) {
        (true, None) => Ok(Held::Same),
        (true, Some(defect)) => Ok(Held::Better(defect)),
        (false, _) if yaml.contains("cluster_groups") && same(resolved, true) => {
            Ok(Held::Better(Defect::GroupsLoseFields))
        }
        (false, _) => Err(format!("{:?} is not {resolved}", rules.rules)),
    }
}

/// A rule as the vectors show one, compression resolved and empty targets left out.
fn shown(rule: &Rule, lose: bool) -> Value {
    let mut clusters: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for place in &rule.places {
        let namespace = if place.namespace == DEFAULT { "" } else { &place.namespace };
        clusters.entry(&place.cluster).or_default().insert(namespace);
    }
    let (name, partitions) = match &rule.names {
        Names::One(name) => (name.as_str(), Vec::new()),
        Names::Partitions(names) => ("", names.clone()),
    };
    let list = |list: &[String]| if lose { Vec::new() } else { list.to_vec() };
    json!({
        "name": name,
        "partitioned_names": partitions,
        "key": rule.key.as_deref().unwrap_or_default(),
        "use_full_path_as_key": rule.full_path && !lose,
        "gzip": rule.compress,
        "clusters": clusters,
        "allowed_repos": list(&rule.allowed),
        "denied_repos": list(&rule.denied),
    })
}

fn plain(map: &Value, global: bool, lose: bool) -> Value {
    let text = |field: &str| map[field].as_str().unwrap_or_default().to_owned();
    let list = |field: &str| map[field].as_array().cloned().unwrap_or_default();
    let kept = |field: &str| if lose { Vec::new() } else { list(field) };
    let clusters: BTreeMap<&String, BTreeSet<&str>> = map["clusters"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(cluster, namespaces)| {
            (cluster, namespaces.as_array().into_iter().flatten().filter_map(Value::as_str).collect())
        })
        .filter(|(_, namespaces): &(_, BTreeSet<&str>)| !namespaces.is_empty())
        .collect();
    json!({
        "name": text("name"),
        "partitioned_names": list("partitioned_names"),
        "key": text("key"),
        "use_full_path_as_key": !lose && map["use_full_path_as_key"].as_bool().unwrap_or(false),
        "gzip": map["gzip"].as_bool().unwrap_or(global),
        "clusters": clusters,
        "allowed_repos": kept("allowed_repos"),
        "denied_repos": kept("denied_repos"),
    })
}

/// Rules that were in use: read as they are, in either dialect.
pub(crate) fn real_rules() {
    let mut counts = Vec::new();
    for entry in std::fs::read_dir(directory().0).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for dialect in Dialect::NAMES {
            let setting = Setting {
                file: "real",
                default_namespace: "ci",
                dialect: dialect.parse().unwrap(),
                ignore_unknown: false,
            };
            let rules = RuleSet::read(&text, &setting, &|_| None);
            let rules =
                rules.unwrap_or_else(|error| panic!("{}: {error}: {:?}", path.display(), error.hints()));
            counts.push(rules.rules.len());
        }
    }
    counts.sort_unstable();
    if directory().1 {
        assert_eq!(counts, [5, 5, 47, 47, 129, 129]);
    }
}
