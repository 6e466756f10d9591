//! From rules and a tree to the ConfigMaps that should exist: Prow's `config_updater` section, computed from one
//! revision's whole tree instead of from events.
//!
//! It promises that the same rules and the same tree give the same bytes, and that everything that can go wrong with
//! names, keys, overlaps and sizes is known before anything is written. It does no input or output: the tree is a list
//! of paths, contents come through [`Contents`], and what comes out is a [`Plan`].
//!
//! Files: `yaml` a document with its quotes and repetitions kept; `rules` what a rule is, `read` from YAML to rules,
//! `fault` what can be wrong with them; `glob` the dialects by name, `zglob` the older one; `tree` files and links;
//! `payload` the keys and bytes of one ConfigMap; `plan` what is made of a tree, `matches` which file goes where and what
//! is kept of that for the next tree, `finding` what is in the way, `split` more partitions for a payload that is too
//! large; `compare` what an existing ConfigMap lacks; `manifest` the YAML that kubectl takes; `apply` what has to happen in a cluster.

pub mod apply;
mod compare;
mod fault;
mod finding;
mod glob;
mod manifest;
mod matches;
mod payload;
mod plan;
mod policies;
mod read;
mod rules;
mod split;
mod tree;
mod yaml;
mod zglob;

#[cfg(test)]
mod tests;

pub use compare::{Current, Difference};
pub use fault::{Fault, Problem, RulesError};
pub use finding::{Finding, Refused};
pub use glob::{BadPattern, Dialect, Pattern, Patterns};
pub use manifest::manifest;
pub use matches::{Change, Matches, plan};
pub use payload::{KeyFault, Payload, Value, ValueEncoding, check_key, partition};
pub use plan::{Contents, Options, Plan, Planned, ReadFailed, Source, Unmade};
pub use policies::{Collisions, IllegalKeys, Links, Overlaps, Oversize, Policies};
pub use rules::{ClusterNamespace, Names, Rule, RuleSet, Setting};
pub use tree::{BadLink, Entry, FileRef, Tree};
