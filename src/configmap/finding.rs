//! Findings: problems that a plan has with the actual files of a tree, and their messages.

use super::data::{InvalidKey, LimitExceeded, sized};
use super::policies::{IllegalKeys, Links, Oversize, Policies, TimeLimit};
use super::rule_problem::{SHOWN, others};
use super::tree::BadLink;
use crate::human;
use crate::payload::escaped;

/// At most this many findings that refuse a plan are kept, and as many that are noted: an author of commits can cause
/// any number.
pub(super) const FINDINGS_MAX: usize = 2_000;

/// Most bytes of a path, and characters of a key, that a finding keeps. No path on a disk is longer, and a message
/// shows less, though [`escaped`] looks for secrets in as much.
pub(super) const SHOWN_MAX: usize = 8 << 10;

/// The beginning of a path that a finding keeps.
pub(super) fn shown_path(path: &[u8]) -> Vec<u8> {
    path[..path.len().min(SHOWN_MAX)].to_vec()
}

/// A problem that shows only when rules are applied to a tree. It refuses the plan, or is only noted: always if
/// [`Finding::is_harmless`], otherwise if a policy accepts it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// Several rules match a file and would do different things with it.
    Overlap {
        /// The file.
        path: Vec<u8>,
        /// The rules' patterns and the names of the ConfigMaps they feed, for messages; only the first of them, as many
        /// as a message shows.
        rules: Vec<(String, String)>,
        /// How many rules match the file.
        total: usize,
    },
    /// Several files map to the same key.
    Collision {
        /// The ConfigMap.
        name: String,
        /// The key.
        key: String,
        /// Whether a rule has it as its fixed key.
        is_fixed: bool,
        /// The files, sorted; only the first of them, as many as a message shows.
        paths: Vec<Vec<u8>>,
        /// How many files map to it.
        total: usize,
    },
    /// A file's key is not valid. The API server would refuse the whole ConfigMap.
    IllegalKey {
        /// The file.
        path: Vec<u8>,
        /// The name of the ConfigMap, for messages.
        name: String,
        /// The key. The rule may have made it from the whole path.
        key: String,
        /// The rule the key breaks.
        why: InvalidKey,
    },
    /// A symbolic link does not resolve to a file.
    BadSymlink {
        /// The link.
        path: Vec<u8>,
        /// The reason.
        why: BadLink,
    },
    /// A ConfigMap exceeds a limit of the API server.
    Oversize {
        /// The ConfigMap.
        name: String,
        /// The limit, with the key `VERSION` and the stamp counted.
        over: LimitExceeded,
        /// The largest keys, each with size and file. The file is empty for `VERSION`.
        largest: Vec<(String, usize, Vec<u8>)>,
    },
    /// A single key exceeds a limit of the API server.
    OversizeKey {
        /// The ConfigMap.
        name: String,
        /// The key.
        key: String,
        /// The key's file.
        path: Vec<u8>,
        /// The limit, with the key `VERSION` and the stamp counted.
        over: LimitExceeded,
        /// Whether the rule compresses the value.
        compressed: bool,
    },
    /// A ConfigMap cannot have the stamp that `--stamp-key` asks for.
    Stamp {
        /// The ConfigMap.
        name: String,
        /// The key of the stamp.
        key: String,
        /// The reason.
        problem: StampProblem,
    },
    /// Keys and values exceed the memory limit for a plan.
    MemoryLimit {
        /// The limit, in bytes.
        limit: u64,
    },
    /// With the parts that oversized ConfigMaps were split into, there are too many ConfigMaps in all their clusters
    /// and namespaces.
    TooManyTargets {
        /// How many there are.
        targets: usize,
        /// The limit.
        limit: usize,
    },
    /// Matching the files against the rules takes too long.
    MatchingLimit {
        /// The number of rules.
        rules: usize,
        /// The limit.
        limit: TimeLimit,
    },
    /// An oversized ConfigMap would be split into a name that another rule uses.
    NameTaken {
        /// The oversized ConfigMap.
        name: String,
        /// The name that is taken.
        taken: String,
    },
    /// An oversized ConfigMap would be split into a name that the API server does not accept.
    PartName {
        /// The oversized ConfigMap.
        name: String,
        /// The name of the part.
        part: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// A rule is restricted to some repositories, and --repository is not given.
    RepositoryUnknown {
        /// The rule's pattern.
        pattern: String,
    },
    /// This repository may not feed a rule that its files match. Only noted.
    RepositoryNotPermitted {
        /// The rule's pattern.
        pattern: String,
        /// How many files match it.
        files: usize,
        /// The repository.
        repository: String,
        /// The field of the rule that keeps it out: `allowed_repos` or `denied_repos`.
        field: &'static str,
        /// The entries of that field; only the first of them, as many as a message shows.
        list: Vec<String>,
        /// How many entries it has.
        total: usize,
    },
    /// No file matches a rule. Only noted.
    NoMatch {
        /// The rule's pattern.
        pattern: String,
        /// Whether a ConfigMap of it gets no file from any other rule, so that one that exists is emptied.
        empties: bool,
    },
}

/// Why a ConfigMap cannot have its stamp.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StampProblem {
    /// The key is not valid.
    IllegalKey(InvalidKey),
    /// A file, of which this is the path, has the key.
    Taken(Vec<u8>),
}

impl Finding {
    /// Returns true if the finding is only noted, whatever the policies are.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Self::RepositoryNotPermitted { .. } | Self::NoMatch { .. })
    }

    /// What happens although there is the finding, to follow it in a warning; empty if that goes without saying.
    /// `applies`: to clusters, where a ConfigMap without files may exist.
    pub fn consequence(&self, policies: &Policies, applies: bool) -> &'static str {
        match self {
            Self::IllegalKey { .. } if policies.illegal_keys == IllegalKeys::Skip => "; it is left out",
            Self::BadSymlink { .. } if policies.links == Links::Skip => "; it is left out",
            Self::Oversize { .. } | Self::OversizeKey { .. } if policies.oversize == Oversize::Skip => {
                if applies {
                    "; the ConfigMap is left as it is"
                } else {
                    "; it is left out"
                }
            }
            Self::NoMatch { empties: true, .. } if applies => {
                "; its ConfigMap, if it is this owner's or adopted, is emptied, or deleted with --prune; --max-prune=0 \
                 refuses that"
            }
            Self::RepositoryNotPermitted { .. } if applies => {
                "; what this owner wrote for it counts as named by no rule, unless another rule names it, and is \
                 deleted with --prune"
            }
            _ => "",
        }
    }

    /// What an operator can do about the finding, for example which flag accepts it.
    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Overlap { .. } => {
                "--overlaps=first gives the file to the rule that comes first in the rules file, --overlaps=specific \
                 to the rule whose pattern has the most literal characters"
            }
            Self::Collision { is_fixed: true, .. } => {
                "a rule with key takes one file: narrow its pattern, or remove key; --collisions=last takes the last \
                 one by path"
            }
            Self::Collision { .. } => {
                "use_full_path_as_key gives files of the same name distinct keys; --collisions=last takes the last one \
                 by path"
            }
            Self::IllegalKey { .. } => "--illegal-keys=skip leaves such files out",
            Self::BadSymlink { .. } => "--links=skip leaves such links out",
            Self::Oversize { .. } => {
                "gzip and partitioned_names make it smaller; --oversize=grow splits it over more ConfigMaps, \
                 --oversize=skip leaves it out"
            }
            Self::OversizeKey { compressed: false, .. } => {
                "gzip makes it smaller; else make the file smaller, or move it out of the rule; --oversize=skip leaves the \
                 ConfigMap out"
            }
            Self::OversizeKey { compressed: true, .. } => {
                "make the file smaller, or move it out of the rule; --oversize=skip leaves the ConfigMap out"
            }
            Self::Stamp { .. } => "choose another --stamp-key, the same one for `treeswap watch --set`",
            Self::MemoryLimit { .. } => {
                "raise the container's memory limit, or match fewer files: two plans must fit in memory"
            }
            Self::TooManyTargets { .. } => {
                "write the ConfigMaps that are split to fewer clusters and namespaces, or make them smaller, as with \
                 gzip"
            }
            Self::MatchingLimit { limit: TimeLimit { set_by: None, .. }, .. } => {
                "write fewer rules, and patterns that begin with a directory instead of `**/`; check the processor limit"
            }
            Self::MatchingLimit { limit: TimeLimit { set_by: Some(_), .. }, .. } => {
                "write fewer rules, and patterns that begin with a directory instead of `**/`; or raise that timeout"
            }
            Self::RepositoryUnknown { .. } => "give it with --repository=ORGANISATION/NAME",
            Self::NameTaken { .. } => {
                "give one of the two rules another name, or the large one partitioned_names"
            }
            Self::PartName { .. } => {
                "give it a shorter name, or partitioned_names; --oversize=skip leaves it out"
            }
            Self::RepositoryNotPermitted { .. } | Self::NoMatch { .. } => return None,
        })
    }
}

/// The first [`SHOWN`] of `total` items, separated by commas, and how many more there are.
fn list<T>(items: &[T], total: usize, show: impl Fn(&T) -> String) -> String {
    let mut shown: Vec<String> = items.iter().take(SHOWN).map(show).collect();
    if total > shown.len() {
        shown.push(format!("{} more", total - shown.len()));
    }
    shown.join(", ")
}

/// The largest keys of a ConfigMap with their sizes and files.
fn largest_keys(largest: &[(String, usize, Vec<u8>)]) -> String {
    list(largest, largest.len(), |(key, bytes, path)| match &path[..] {
        b"" => sized(key, *bytes), // no file: VERSION
        path => format!("{} ({})", sized(key, *bytes), human::elide_middle(&escaped(path))),
    })
}

/// A key, escaped and abbreviated: one that is not valid may have any length and any characters.
fn shown_key(key: &str) -> String {
    human::elide_middle(&escaped(key.as_bytes()))
}

/// A pattern, escaped for a one-line message.
fn shown(pattern: &str) -> String {
    escaped(pattern.as_bytes())
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Overlap { path, rules, total } => {
                let rule =
                    |(pattern, name): &(String, String)| format!("{} (ConfigMap {name})", shown(pattern));
                let rules = list(rules, *total, rule);
                write!(f, "{} is claimed by several rules: {rules}", escaped(path))
            }
            Self::Collision { name, key, paths, total, .. } => {
                let paths = list(paths, *total, |path| escaped(path));
                write!(f, "key {key} of ConfigMap {name} is claimed by several files: {paths}")
            }
            Self::IllegalKey { path, name, key, why } => {
                let (key, path) = (shown_key(key), escaped(path));
                write!(f, "{path} cannot have the key \"{key}\" in ConfigMap {name}: {why}")
            }
            Self::BadSymlink { path, why } => write!(f, "{} is {why}", escaped(path)),
            Self::Oversize { name, over, largest } => {
                write!(f, "ConfigMap {name} has {over}; the largest keys: {}", largest_keys(largest))
            }
            Self::OversizeKey { name, key, path, over, .. } => {
                let (key, path) = (human::elide_middle(key), human::elide_middle(&escaped(path)));
                write!(
                    f,
                    "key {key} ({path}) of ConfigMap {name} alone has {over}, and a key cannot be split"
                )
            }
            Self::Stamp { name, key, problem } => problem.describe(name, key, f),
            Self::MemoryLimit { limit } => {
                let limit = human::bytes(*limit);
                write!(f, "the ConfigMaps take more than the {limit} of memory that there are for a plan")
            }
            Self::TooManyTargets { targets, limit } => write!(
                f,
                "with the parts that --oversize=grow makes there are {targets} ConfigMaps in all clusters and \
                 namespaces, the limit is {limit}"
            ),
            Self::MatchingLimit { rules, limit: TimeLimit { time, set_by } } => match set_by {
                None => write!(f, "matching the files against {rules} rules takes longer than {time:?}"),
                Some(what) => write!(
                    f,
                    "computing the plan takes longer than {time:?} ({what}), while matching the files against \
                     {rules} rules"
                ),
            },
            Self::NameTaken { name, taken } => {
                write!(
                    f,
                    "ConfigMap {name} is too large, and {taken}, which it would grow into, is another rule's"
                )
            }
            Self::PartName { name, part, why } => {
                write!(
                    f,
                    "ConfigMap {name} is too large, and {part}, which it would grow into, is no name: {why}"
                )
            }
            Self::RepositoryUnknown { pattern } => {
                write!(f, "the rule {} depends on the repository's name, which is not given", shown(pattern))
            }
            Self::RepositoryNotPermitted { pattern, files, repository, field, list: entries, total } => {
                let is = if *field == "denied_repos" { "is" } else { "is not" };
                let (pattern, repository) = (shown(pattern), shown(repository));
                let entries = list(entries, *total, |entry| human::elide_middle(&shown(entry)));
                write!(
                    f,
                    "the rule {pattern} does not take files from this repository: {files} left out, as \
                     --repository={repository} {is} in its {field}: {entries}"
                )
            }
            Self::NoMatch { pattern, .. } => write!(f, "no file matches the rule {}", shown(pattern)),
        }
    }
}

impl StampProblem {
    fn describe(&self, name: &str, key: &str, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = shown_key(key);
        match self {
            Self::IllegalKey(why) => {
                write!(f, "the stamp of ConfigMap {name} cannot have the key \"{key}\" (--stamp-key): {why}")
            }
            Self::Taken(path) => {
                let path = escaped(path);
                write!(
                    f,
                    "key {key} of ConfigMap {name} is claimed by the stamp (--stamp-key) and by a file: {path}"
                )
            }
        }
    }
}

/// A plan is refused and must not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", .0[0], others(.0.len(), FINDINGS_MAX))]
pub struct Refused(
    /// The findings that refuse it; at least one.
    pub Vec<Finding>,
);

impl Refused {
    /// Hints for the operator, one line each. The first finding is the message itself; the others, as many as a message
    /// shows, follow here ("also …"), grouped by what to do about them, which ends each group.
    pub fn hints(&self) -> Vec<String> {
        let shown = &self.0[..self.0.len().min(1 + SHOWN)];
        let mut hints = Vec::new();
        for (at, finding) in shown.iter().enumerate() {
            let hint = finding.hint();
            if shown[..at].iter().any(|earlier| earlier.hint() == hint) {
                continue; // it is listed with that one
            }
            let alike = shown.iter().skip(1).filter(|other| other.hint() == hint);
            hints.extend(alike.map(|other| format!("also {other}")));
            hints.extend(hint.map(str::to_owned));
        }
        hints
    }
}

#[cfg(test)]
mod tests;
