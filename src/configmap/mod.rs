//! Computes the ConfigMaps that should exist from rules and a tree. The rules are Prow's `config_updater` section,
//! evaluated on one revision's whole tree instead of on the changed files of a push.
//!
//! The same rules and the same tree always give the same bytes. Every problem with names, keys, overlapping rules and
//! sizes is reported before anything is written. The module does no I/O: the tree is a list of paths, file contents
//! come through [`Contents`], and the result is a [`Plan`].
//!
//! - Rules: `yaml` parses a document and keeps quoting and duplicate keys; `rules` has the rule types; `read` turns
//!   YAML into rules; `rule_problem` lists what can be wrong with them; `policies` has the operator's choices.
//! - Patterns: `glob` has the dialects and the pattern set; `zglob` implements Prow's dialect.
//! - Planning: `tree` has files and links; `matches` maps files to ConfigMaps and is updated incrementally from one
//!   tree to the next; `plan` has the result; `finding` lists problems with actual files; `data` has the keys and bytes
//!   of one ConfigMap; `split` divides them if they are too large.
//! - Output: `compare` diffs an existing ConfigMap against desired data; `manifest` writes YAML for kubectl; `apply`
//!   decides what to do in a cluster.

pub mod apply;
mod compare;
mod data;
mod finding;
mod glob;
mod manifest;
mod matches;
mod plan;
mod policies;
mod read;
mod rule_problem;
mod rules;
mod split;
mod tree;
mod yaml;
mod zglob;

#[cfg(test)]
mod tests;

pub use compare::{ConfigMapData, Difference};
pub use data::{
    DesiredData, FILE_MAX, InvalidKey, LimitExceeded, Value, ValueEncoding, check_key, check_namespace,
    partition,
};
pub use finding::{Finding, Refused, StampProblem};
pub use glob::{BadPattern, Dialect, Pattern, Patterns};
pub use manifest::manifest;
pub use matches::{Change, Matches, plan};
pub use plan::{Contents, IsNeeded, Options, Plan, Planned, ReadFailed, ValueError, ValueSource};
pub use policies::{Collisions, IllegalKeys, Links, Overlaps, Oversize, Policies, TimeLimit};
pub use rule_problem::{Problem, ProblemKind, RulesError};
pub use rules::{ClusterNamespace, Names, Rule, RuleSet, Setting};
pub use tree::{BadLink, Entry, FileRef, Tree};
