//! Findings: problems that a plan has with the actual files of a tree, and their messages.

use super::data::{InvalidKey, sized};
use super::policies::TimeLimit;
use super::rule_problem::{SHOWN, others};
use super::tree::BadLink;
use crate::human;
use crate::payload::escaped;

/// At most this many findings that refuse a plan are kept, and as many that are noted: an author of commits can cause
/// any number.
pub(super) const FINDINGS_MAX: usize = 2_000;

/// A problem that shows only when rules are applied to a tree.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// Several rules match a file and would do different things with it.
    Overlap {
        /// The file.
        path: Vec<u8>,
        /// The rules' patterns and the ConfigMaps they feed; only the first of them, as many as a message shows.
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
        /// The files, sorted.
        paths: Vec<Vec<u8>>,
    },
    /// A file's key is not valid. The API server would refuse the whole ConfigMap.
    IllegalKey {
        /// The file.
        path: Vec<u8>,
        /// The ConfigMap.
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
        /// What `bytes` counts, as a phrase for messages.
        what: &'static str,
        /// The size.
        bytes: usize,
        /// The limit.
        limit: usize,
        /// The largest keys, each with size and file. The file is empty for `VERSION` and for the key of `--stamp-key`.
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
        /// The size, the key `VERSION` included.
        bytes: usize,
        /// The limit.
        limit: usize,
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
    },
    /// No file matches a rule. Only noted.
    NoMatch {
        /// The rule's pattern.
        pattern: String,
    },
}

/// Why a ConfigMap cannot have its stamp.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StampProblem {
    /// The key is not valid.
    IllegalKey(InvalidKey),
    /// A file, of which this is the path, has the key.
    Taken(Vec<u8>),
    /// With the stamp, the ConfigMap exceeds a limit of the API server.
    Oversize {
        /// What `bytes` counts, as a phrase for messages.
        what: &'static str,
        /// The size, the stamp included.
        bytes: usize,
        /// The limit.
        limit: usize,
        /// The largest keys, as in [`Finding::Oversize`].
        largest: Vec<(String, usize, Vec<u8>)>,
    },
}

impl Finding {
    /// Returns true if the finding is only noted, whatever the policies are.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Self::RepositoryNotPermitted { .. } | Self::NoMatch { .. })
    }

    /// What an operator can do about the finding, for example which flag accepts it.
    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Overlap { .. } => {
                "--overlaps=first gives the file to the rule that comes first in the rules file, --overlaps=specific \
                 to the rule whose pattern has the most literal characters"
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
            Self::Stamp { problem: StampProblem::Oversize { .. }, .. } => {
                "make the ConfigMap smaller, for example with gzip or partitioned_names, or leave out --stamp-key"
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
        b"" => sized(key, *bytes), // no file: VERSION or --stamp-key
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
            Self::Collision { name, key, paths } => {
                let paths = list(paths, paths.len(), |path| escaped(path));
                write!(f, "key {key} of ConfigMap {name} is claimed by several files: {paths}")
            }
            Self::IllegalKey { path, name, key, why } => {
                let (key, path) = (shown_key(key), escaped(path));
                write!(f, "{path} cannot have the key \"{key}\" in ConfigMap {name}: {why}")
            }
            Self::BadSymlink { path, why } => write!(f, "{} is {why}", escaped(path)),
            Self::Oversize { name, what, bytes, limit, largest } => {
                let largest = largest_keys(largest);
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
            Self::RepositoryUnknown { pattern } => {
                write!(f, "the rule {} depends on the repository's name, which is not given", shown(pattern))
            }
            Self::RepositoryNotPermitted { pattern, files } => {
                let pattern = shown(pattern);
                write!(f, "the rule {pattern} does not take files from this repository: {files} left out")
            }
            Self::NoMatch { pattern } => write!(f, "no file matches the rule {}", shown(pattern)),
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
            Self::Oversize { what, bytes, limit, largest } => {
                let largest = largest_keys(largest);
                write!(
                    f,
                    "ConfigMap {name} has {bytes} bytes {what} with its stamp {key}, the limit is {limit}; the largest \
                     keys: {largest}"
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
mod tests {
    use std::time::Duration;

    use super::*;

    /// One of each; of [`Finding::OversizeKey`] and [`Finding::MatchingLimit`] one for each hint, of [`Finding::Stamp`]
    /// one for each problem.
    fn each() -> Vec<Finding> {
        let text = || "x".to_owned();
        let path = || b"a/b".to_vec();
        let oversize_key = |compressed| {
            let (what, bytes, limit) = ("of values", 2, 1);
            Finding::OversizeKey { name: text(), key: text(), path: path(), what, bytes, limit, compressed }
        };
        let (what, bytes, limit, largest) = ("of values", 2, 1, vec![("x".to_owned(), 2, path())]);
        let stamp = |key, problem| Finding::Stamp { name: text(), key, problem };
        let matching_limit = |set_by| {
            let limit = TimeLimit { time: Duration::from_secs(60), set_by };
            Finding::MatchingLimit { rules: 20_000, limit }
        };
        vec![
            Finding::Overlap { path: path(), rules: vec![(text(), text())], total: 2 },
            Finding::Collision { name: text(), key: text(), paths: vec![path()] },
            Finding::BadSymlink { path: path(), why: BadLink::Dangling },
            Finding::IllegalKey {
                path: path(),
                name: text(),
                key: "a\nb".into(),
                why: InvalidKey::Characters,
            },
            Finding::Oversize { name: text(), what, bytes, limit, largest: largest.clone() },
            oversize_key(false),
            oversize_key(true),
            stamp("x".repeat(300), StampProblem::IllegalKey(InvalidKey::Long)),
            stamp(text(), StampProblem::Taken(path())),
            stamp(text(), StampProblem::Oversize { what, bytes, limit, largest }),
            Finding::MemoryLimit { limit: 1 << 20 },
            Finding::TooManyTargets { targets: 2, limit: 1 },
            matching_limit(None),
            matching_limit(Some("--sync-timeout")),
            Finding::NameTaken { name: text(), taken: text() },
            Finding::RepositoryUnknown { pattern: text() },
            Finding::RepositoryNotPermitted { pattern: text(), files: 1 },
            Finding::NoMatch { pattern: text() },
        ]
    }

    #[test]
    fn every_finding_is_one_line_and_one_that_refuses_says_what_to_do() {
        for finding in each() {
            let refuses = match &finding {
                Finding::Overlap { .. }
                | Finding::Collision { .. }
                | Finding::IllegalKey { .. }
                | Finding::BadSymlink { .. }
                | Finding::Oversize { .. }
                | Finding::OversizeKey { .. }
                | Finding::Stamp { .. }
                | Finding::MemoryLimit { .. }
                | Finding::TooManyTargets { .. }
                | Finding::MatchingLimit { .. }
                | Finding::NameTaken { .. }
                | Finding::RepositoryUnknown { .. } => true,
                Finding::RepositoryNotPermitted { .. } | Finding::NoMatch { .. } => false,
            };
            assert_eq!(refuses, !finding.is_harmless());
            let refused = Refused(vec![finding]);
            // A warning has no hint; what the style asks of one does not apply.
            let hints = if refuses { refused.hints() } else { vec!["it is only noted".to_owned()] };
            crate::human::assert_message_style(&refused, &hints);
        }
    }

    #[test]
    fn what_to_do_follows_the_findings_that_it_is_for_and_is_said_once() {
        let (what, bytes, limit) = ("of values", 2, 1);
        let large = |name: &str| {
            let (name, largest) = (name.into(), Vec::new());
            Finding::Oversize { name, what, bytes, limit, largest }
        };
        let alone = |name: &str| {
            let (name, key, path) = (name.into(), "k".into(), b"f".to_vec());
            Finding::OversizeKey { name, key, path, what, bytes, limit, compressed: true }
        };
        let refused = Refused(vec![large("a"), alone("b"), large("c"), alone("d")]);
        let hints = refused.hints();
        let begin = ["also ConfigMap c ", "gzip and ", "also key k ", "also key k ", "make the file "];
        assert!(refused.to_string().starts_with("ConfigMap a "), "{refused}");
        assert_eq!(hints.len(), begin.len(), "{hints:?}");
        assert!(hints.iter().zip(begin).all(|(hint, begin)| hint.starts_with(begin)), "{hints:?}");
        // What is not shown has no hint: it would seem to be for what is.
        let mut many = vec![large("a"); 1 + SHOWN];
        many.push(alone("b"));
        let hints = Refused(many).hints();
        assert_eq!(hints.len(), SHOWN + 1, "{hints:?}");
        assert!(hints[SHOWN].starts_with("gzip and "), "{hints:?}");
    }

    #[test]
    fn the_key_of_a_rule_is_shown_and_not_only_the_path() {
        let (path, name) = (b"a/..data/b".to_vec(), "cm".to_owned());
        let finding = Finding::IllegalKey { path, name, key: "..data-b".into(), why: InvalidKey::Dots };
        assert_eq!(
            finding.to_string(),
            "a/..data/b cannot have the key \"..data-b\" in ConfigMap cm: it is `.` or begins with `..`"
        );
    }

    #[test]
    fn what_a_list_leaves_out_is_counted() {
        let rules =
            |count: usize| (0..count).map(|at| (format!("p{at}"), "m".to_owned())).collect::<Vec<_>>();
        for (kept, total, end) in
            [(2, 2, "p1 (ConfigMap m)"), (20, 20, "p19 (ConfigMap m)"), (20, 25, "(ConfigMap m), 5 more")]
        {
            let line = Finding::Overlap { path: b"a".to_vec(), rules: rules(kept), total }.to_string();
            assert!(line.ends_with(end), "{line}");
        }
        for (count, end) in [(1, "x"), (3, "(and 2 more)"), (FINDINGS_MAX, "(and at least 1999 more)")] {
            let refused =
                Refused(vec![Finding::RepositoryUnknown { pattern: "x".into() }; count]).to_string();
            assert!(count == 1 || refused.ends_with(end), "{refused}");
        }
    }
}
