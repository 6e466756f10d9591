//! The types of rules: a rule has a pattern, the ConfigMap for the files that match, and the places it goes to.

use super::glob::{Dialect, Patterns};
use super::rule_problem::Problem;

/// Most ConfigMaps that rules name, and that a plan has, counted in each cluster and namespace. Groups multiply: a text
/// of some kilobytes could name millions.
pub(super) const TARGETS_MAX: usize = 100_000;

/// Most rules. A compiled pattern takes some kilobytes however short its text is. Kubernetes' own plugins.yaml has 129.
pub(super) const RULES_MAX: usize = 10_000;

/// Longest name of a cluster, in bytes: that of any name in Kubernetes. Each place of a ConfigMap has a copy.
pub(super) const CLUSTER_MAX: usize = 253;

/// Settings for reading rules that are not in the rules file.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The file's name, for messages.
    pub file: &'a str,
    /// The namespace that an empty one stands for: Prow's `prowjob_namespace`.
    pub default_namespace: &'a str,
    /// The pattern dialect, unless the file names one.
    pub dialect: Dialect,
    /// Whether unknown and removed fields cause a warning instead of an error.
    pub ignore_unknown: bool,
}

/// The valid rules of one file.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// The rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// The rules' patterns, with the same indices.
    pub patterns: Patterns,
    /// The dialect of the patterns.
    pub dialect: Dialect,
    /// Problems that are warned of but not refused.
    pub warnings: Vec<Problem>,
}

/// A pattern, and what happens to the files that match it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The pattern as written in the rules.
    pub pattern: String,
    /// The name of the ConfigMap, or its partitions.
    pub names: Names,
    /// The fixed key for every file that matches; `None` if the key comes from the path.
    pub key: Option<String>,
    /// Whether a file's key is its whole path with `-` for `/`, instead of the last component.
    pub full_path: bool,
    /// Whether values are compressed: the rule's own `gzip`, or that of the whole rules file.
    pub compress: bool,
    /// The clusters and namespaces the ConfigMap goes to; sorted.
    pub places: Vec<ClusterNamespace>,
    /// The only repositories that may feed it; empty for all.
    pub allowed: Vec<String>,
    /// Repositories that may not feed it.
    pub denied: Vec<String>,
}

/// The names of a rule's ConfigMaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Names {
    /// A single ConfigMap.
    One(String),
    /// Several ConfigMaps; a hash of the key chooses among them.
    Partitions(Vec<String>),
}

impl Names {
    /// All names.
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Partitions(names) => names,
        }
    }

    /// The first name and how many more there are, for messages.
    pub(super) fn shown(&self) -> String {
        match self.all() {
            [] => String::new(),
            [name] => name.clone(),
            [first, others @ ..] => format!("{first} and {} more", others.len()),
        }
    }
}

/// A namespace of a cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClusterNamespace {
    /// The kubeconfig context; `default` is the cluster that the process runs in.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
}

impl Rule {
    /// Returns true if a repository (`organisation/name`) may feed the rule. As in Prow, names are case-sensitive, a
    /// denial wins, and an empty list of allowed repositories allows all.
    pub fn permits(&self, repository: &str) -> bool {
        self.exclusion(repository).is_none()
    }

    /// What keeps a repository from feeding the rule: the field, and its list. `None` if it may feed the rule.
    pub(super) fn exclusion(&self, repository: &str) -> Option<(&'static str, &[String])> {
        let organisation = repository.split('/').next().unwrap_or_default();
        let named = |list: &[String]| list.iter().any(|entry| entry == repository || entry == organisation);
        if named(&self.denied) {
            return Some(("denied_repos", self.denied.as_slice()));
        }
        let is_allowed = self.allowed.is_empty() || named(&self.allowed);
        (!is_allowed).then_some(("allowed_repos", self.allowed.as_slice()))
    }

    /// Returns true if the rule depends on the repository that a file comes from.
    pub fn is_restricted(&self) -> bool {
        !(self.allowed.is_empty() && self.denied.is_empty())
    }

    /// The key that the rule gives a file. It may be invalid.
    pub fn key_of<'p>(&'p self, path: &'p str) -> std::borrow::Cow<'p, str> {
        match &self.key {
            Some(key) => key.into(),
            None if self.full_path => path.replace('/', "-").into(),
            None => path.rsplit('/').next().unwrap_or(path).into(),
        }
    }

    /// Returns true if both rules do the same with a file that both match.
    pub(super) fn has_same_effect(&self, other: &Self) -> bool {
        // Compared for each such file, and there may be many places: nothing is copied.
        let Self { pattern: _, names, key, full_path, compress, places, allowed, denied } = self;
        (names, key, full_path, compress) == (&other.names, &other.key, &other.full_path, &other.compress)
            && (places, allowed, denied) == (&other.places, &other.allowed, &other.denied)
    }
}
