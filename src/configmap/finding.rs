//! Findings: problems that a plan has with the actual files of a tree, and their messages.

use std::collections::BTreeSet;

use super::payload::{InvalidKey, sized};
use super::rule_problem::{SHOWN, more};
use super::tree::BadLink;
use crate::human;
use crate::payload::escaped;

/// A problem that shows only when rules are applied to a tree.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// Several rules match a file and would do different things with it.
    Overlap {
        /// The file.
        path: Vec<u8>,
        /// The rules' patterns and the ConfigMaps they feed.
        rules: Vec<(String, String)>,
    },
    /// Several files map to the same key.
    Collision {
        /// The ConfigMap.
        name: String,
        /// The key.
        key: String,
        /// The files, sorted.
        paths: Vec<Vec<u8>>,
    },
    /// A file's key is not valid. The API server would refuse the whole ConfigMap.
    IllegalKey {
        /// The file.
        path: Vec<u8>,
        /// The ConfigMap.
        name: String,
        /// The rule the key breaks.
        why: InvalidKey,
    },
    /// A link does not resolve to a file.
    Link {
        /// The link.
        path: Vec<u8>,
        /// The reason.
        why: BadLink,
    },
    /// A ConfigMap exceeds a limit of the API server.
    Oversize {
        /// The ConfigMap.
        name: String,
        /// What `bytes` counts, as a phrase for messages.
        what: &'static str,
        /// The size.
        bytes: usize,
        /// The limit.
        limit: usize,
        /// The largest keys, each with size and file. The file is empty for a stamp.
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
        /// What `bytes` counts, as a phrase for messages.
        what: &'static str,
        /// The size.
        bytes: usize,
        /// The limit.
        limit: usize,
        /// Whether the rule compresses the value.
        compressed: bool,
    },
    /// Keys and values exceed the memory limit for a plan.
    TooMuch {
        /// The limit, in bytes.
        limit: u64,
    },
    /// An oversized ConfigMap would be split into a name that another rule uses.
    NameTaken {
        /// The oversized ConfigMap.
        name: String,
        /// The name that is taken.
        taken: String,
    },
    /// A rule is restricted to some repositories, and --repository is not given.
    NoRepository {
        /// The rule's pattern.
        pattern: String,
    },
    /// This repository may not feed a rule that its files match. Only noted.
    Denied {
        /// The rule's pattern.
        pattern: String,
        /// How many files match it.
        files: usize,
    },
    /// No file matches a rule. Only noted.
    NoFile {
        /// The rule's pattern.
        pattern: String,
    },
}

impl Finding {
    /// Returns true if the finding is only noted, whatever the policies are.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::NoFile { .. })
    }

    /// What an operator can do about the finding, for example which flag accepts it.
    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Overlap { .. } => {
                "--overlaps=first gives such a file to the first rule of the file, --overlaps=specific to the rule that \
                 says most of its path"
            }
            Self::Collision { .. } => {
                "use_full_path_as_key gives such files distinct keys; --collisions=last takes the last one by path"
            }
            Self::IllegalKey { .. } => "--illegal-keys=skip leaves such files out",
            Self::Link { .. } => "--links=skip leaves such links out",
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
            Self::TooMuch { .. } => {
                "raise the memory limit of the container, or let rules name fewer files: two plans have to fit into it"
            }
            Self::NoRepository { .. } => "give it with --repository=ORGANISATION/NAME",
            Self::NameTaken { .. } => {
                "give one of the two rules another name, or the large one partitioned_names"
            }
            Self::Denied { .. } | Self::NoFile { .. } => return None,
        })
    }
}

/// The first [`SHOWN`] items, separated by commas, and how many more there are.
fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    let mut shown: Vec<String> = items.iter().take(SHOWN).map(show).collect();
    if items.len() > SHOWN {
        shown.push(format!("{} more", items.len() - SHOWN));
    }
    shown.join(", ")
}

/// A pattern, escaped for a one-line message.
fn shown(pattern: &str) -> String {
    escaped(pattern.as_bytes())
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Overlap { path, rules } => {
                let rules = list(rules, |(pattern, name)| format!("{} (ConfigMap {name})", shown(pattern)));
                write!(f, "{} is claimed by several rules: {rules}", escaped(path))
            }
            Self::Collision { name, key, paths } => {
                let paths = list(paths, |path| escaped(path));
                write!(f, "key {key} of ConfigMap {name} is claimed by several files: {paths}")
            }
            Self::IllegalKey { path, name, why } => {
                write!(f, "{} gives no legal key for ConfigMap {name}: {why}", escaped(path))
            }
            Self::Link { path, why } => write!(f, "{} is {why}", escaped(path)),
            Self::Oversize { name, what, bytes, limit, largest } => {
                let largest = list(largest, |(key, bytes, path)| match &path[..] {
                    b"" => sized(key, *bytes), // a stamp
                    path => format!("{} ({})", sized(key, *bytes), human::elide_middle(&escaped(path))),
                });
                write!(
                    f,
                    "ConfigMap {name} has {bytes} bytes {what}, the limit is {limit}; the largest keys: {largest}"
                )
            }
            Self::OversizeKey { name, key, path, what, bytes, limit, .. } => {
                let (key, path) = (human::elide_middle(key), human::elide_middle(&escaped(path)));
                write!(
                    f,
                    "key {key} ({path}) of ConfigMap {name} alone has {bytes} bytes {what}, the limit is {limit}, and a \
                     key cannot be split"
                )
            }
            Self::TooMuch { limit } => {
                let limit = human::bytes(*limit);
                write!(f, "the ConfigMaps take more than the {limit} of memory that there are for a plan")
            }
            Self::NameTaken { name, taken } => {
                write!(
                    f,
                    "ConfigMap {name} is too large, and {taken}, which it would grow into, is another rule's"
                )
            }
            Self::NoRepository { pattern } => {
                write!(f, "the rule {} depends on the repository's name, which is not given", shown(pattern))
            }
            Self::Denied { pattern, files } => {
                let pattern = shown(pattern);
                write!(f, "the rule {pattern} does not take files from this repository: {files} left out")
            }
            Self::NoFile { pattern } => write!(f, "no file matches the rule {}", shown(pattern)),
        }
    }
}

/// A plan is refused and must not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", .0[0], more(.0.len() - 1))]
pub struct Refused(
    /// The findings that refuse it; at least one.
    pub Vec<Finding>,
);

impl Refused {
    /// Hints for the operator, one line each: the other findings, and flags that accept them.
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> =
            self.0.iter().skip(1).take(SHOWN).map(|one| format!("also {one}")).collect();
        let flags: BTreeSet<&str> = self.0.iter().filter_map(Finding::hint).collect();
        hints.extend(flags.into_iter().map(str::to_owned));
        hints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_that_refuses_is_one_line_and_says_what_to_do() {
        let text = || "x".to_owned();
        let path = || b"a/b".to_vec();
        let each = [
            Finding::Overlap { path: path(), rules: vec![(text(), text())] },
            Finding::Collision { name: text(), key: text(), paths: vec![path()] },
            Finding::Link { path: path(), why: BadLink::Dangling },
            Finding::IllegalKey { path: path(), name: text(), why: InvalidKey::Empty },
            Finding::Oversize { name: text(), what: "of keys", bytes: 2, limit: 1, largest: Vec::new() },
            Finding::OversizeKey {
                name: text(),
                key: text(),
                path: path(),
                what: "of keys",
                bytes: 2,
                limit: 1,
                compressed: true,
            },
            Finding::TooMuch { limit: 1 << 20 },
            Finding::NameTaken { name: text(), taken: text() },
            Finding::NoRepository { pattern: text() },
            Finding::Denied { pattern: text(), files: 1 },
            Finding::NoFile { pattern: text() },
        ];
        for finding in each {
            let hints = match &finding {
                Finding::Overlap { .. }
                | Finding::Collision { .. }
                | Finding::IllegalKey { .. }
                | Finding::Link { .. }
                | Finding::Oversize { .. }
                | Finding::OversizeKey { .. }
                | Finding::TooMuch { .. }
                | Finding::NameTaken { .. }
                | Finding::NoRepository { .. } => true,
                Finding::Denied { .. } | Finding::NoFile { .. } => false,
            };
            assert_eq!(hints, !finding.is_harmless());
            let refused = Refused(vec![finding]);
            if hints {
                crate::human::assert_message_style(&refused, &refused.hints());
            }
        }
    }
}
