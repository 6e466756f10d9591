//! What a rule is: a pattern, the ConfigMap for what matches it, and where that ConfigMap goes.

use super::fault::Problem;
use super::glob::{Dialect, Patterns};

/// How rules are read, besides what the file says.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The file's name, for messages.
    pub file: &'a str,
    /// What an empty namespace means: Prow's `prowjob_namespace`.
    pub default_namespace: &'a str,
    /// The dialect, unless the file names one.
    pub dialect: Dialect,
    /// Fields that are unknown or were removed are warned of instead of refused.
    pub ignore_unknown: bool,
}

/// The rules of one file, valid.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// In the file's order.
    pub rules: Vec<Rule>,
    /// Their patterns, by the same index.
    pub patterns: Patterns,
    /// The dialect that they are in.
    pub dialect: Dialect,
    /// What is worth saying, though it is not refused.
    pub warnings: Vec<Problem>,
}

/// A pattern and what becomes of the files that match it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The pattern as it was written.
    pub pattern: String,
    /// The ConfigMap.
    pub names: Names,
    /// The key of whatever matches, if it is fixed.
    pub key: Option<String>,
    /// Whether a file's key is its whole path with `-` for `/`, instead of its last component.
    pub full_path: bool,
    /// What the rule says about compression.
    pub gzip: Option<bool>,
    /// Whether values are compressed; the file's own setting where the rule says nothing.
    pub compress: bool,
    /// Where the ConfigMap goes; sorted.
    pub places: Vec<ClusterNamespace>,
    /// Repositories that may feed it; empty for all.
    pub allowed: Vec<String>,
    /// Repositories that may not.
    pub denied: Vec<String>,
}

/// What a rule's ConfigMap is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Names {
    /// One.
    One(String),
    /// Several, among which a hash of the key chooses.
    Partitions(Vec<String>),
}

impl Names {
    /// All of them.
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Partitions(names) => names,
        }
    }
}

/// A cluster and a namespace in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClusterNamespace {
    /// The kubeconfig context; `default` is the cluster that the process runs in.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
}

impl Rule {
    /// Whether a repository (`organisation/name`) may feed it. As in Prow: letters' case counts, a denial wins, and an
    /// empty list of allowed ones allows all.
    pub fn permits(&self, repository: &str) -> bool {
        let organisation = repository.split('/').next().unwrap_or_default();
        let named = |list: &[String]| list.iter().any(|entry| entry == repository || entry == organisation);
        !named(&self.denied) && (self.allowed.is_empty() || named(&self.allowed))
    }

    /// Whether it asks which repository a file comes from.
    pub fn is_restricted(&self) -> bool {
        !(self.allowed.is_empty() && self.denied.is_empty())
    }

    /// The key for a file.
    pub fn key_of<'p>(&'p self, path: &'p str) -> std::borrow::Cow<'p, str> {
        match &self.key {
            Some(key) => key.into(),
            None if self.full_path => path.replace('/', "-").into(),
            None => path.rsplit('/').next().unwrap_or(path).into(),
        }
    }

    /// Whether both rules do the same with a file.
    pub(super) fn same_fate(&self, other: &Self) -> bool {
        Self { pattern: String::new(), gzip: None, ..self.clone() }
            == Self { pattern: String::new(), gzip: None, ..other.clone() }
    }
}
