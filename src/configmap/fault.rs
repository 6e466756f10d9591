//! What can be wrong with a file of rules. Every problem names the field; a file's problems are all found at once.

use std::fmt;

/// What is wrong with one field.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No field has this name.
    #[error("there is no such field{}", .0.map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
    Unknown(Option<&'static str>),
    /// Prow had it once, and would now ignore it.
    #[error("this field was removed from Prow, which now ignores it: {0}")]
    Removed(&'static str),
    /// The same twice.
    #[error("it is given twice")]
    Duplicate,
    /// An unquoted word that Prow's YAML reads as something else.
    #[error("Prow's YAML 1.1 reads the unquoted {word} as {what}; quote it")]
    Trap {
        /// The word.
        word: String,
        /// What it would be.
        what: &'static str,
    },
    /// Not the type it should be.
    #[error("it is {found}, where {expected} belongs")]
    Type {
        /// What is there.
        found: &'static str,
        /// What should be.
        expected: &'static str,
    },
    /// Both ways to name a ConfigMap.
    #[error("name and partitioned_names exclude each other")]
    NameAndPartitions,
    /// The hash has only one byte.
    #[error("{0} partitions; the hash that chooses among them has one byte, for 256 at most")]
    TooManyPartitions(usize),
    /// Nowhere to write.
    #[error("neither name nor partitioned_names says which ConfigMap")]
    NoName,
    /// No legal name.
    #[error("{name:?} cannot be {what}: {why}")]
    IllegalName {
        /// The name.
        name: String,
        /// Of what.
        what: &'static str,
        /// The rule it breaks.
        why: &'static str,
    },
    /// No legal key.
    #[error("{key:?} cannot be a key: {why}")]
    IllegalKey {
        /// The key.
        key: String,
        /// The rule it breaks.
        why: super::KeyFault,
    },
    /// Both ways to name targets.
    #[error("clusters and cluster_groups exclude each other")]
    ClustersAndGroups,
    /// No such group.
    #[error("there is no cluster group {0:?}")]
    NoSuchGroup(String),
    /// A namespace twice in one list.
    #[error("namespace {0:?} is listed twice")]
    NamespaceTwice(String),
    /// Two rules that each name one file, and one key of one ConfigMap for both.
    #[error("it and {other:?} both write key {key:?} of ConfigMap {name}")]
    SameKey {
        /// The other rule.
        other: String,
        /// The key.
        key: String,
        /// The ConfigMap.
        name: String,
    },
    /// The dialect refuses it.
    #[error("the pattern cannot be read: {0}")]
    Pattern(#[from] super::BadPattern),
    /// No such dialect.
    #[error("{0}")]
    Dialect(String),
    /// An entry that no repository can be. Said, not refused: it matches nothing.
    #[error("{0:?} is neither an organisation nor organisation/repository, and matches nothing")]
    Repository(String),
    /// A target that gets nothing. Said, not refused: real rules have it.
    #[error("it names no namespace, so nothing is written there")]
    NoNamespace,
    /// An ordinary reader would expect something else. Said, not refused.
    #[error("the pattern {0}")]
    Surprise(&'static str),
    /// Prow's own rules are in it. A warning, no refusal.
    #[error("there are no maps, so that Prow's two default maps hold")]
    Defaults,
    /// YAML 1.1's way to write a boolean, where one belongs. Said, not refused.
    #[error("{0} is read as {1}, as Prow's YAML 1.1 does")]
    OldBoolean(String, bool),
}

impl Fault {
    /// Whether it is only said.
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::NoNamespace
                | Self::Surprise(_)
                | Self::Defaults
                | Self::OldBoolean(..)
                | Self::Repository(_)
        )
    }
}

/// A fault and where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The path to the field, as in `maps["a/*.yaml"].name`.
    pub field: String,
    /// The line in the file, where it is known.
    pub line: Option<usize>,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::payload::escaped(self.field.as_bytes()))?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ": {}", self.fault)
    }
}

/// Rules that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// No YAML.
    #[error("the rules in {file} cannot be read: {}", .why.replace('\n', " "))]
    Syntax {
        /// The file.
        file: String,
        /// The parser's words.
        why: String,
    },
    /// Nothing but comments.
    #[error("the rules in {file} cannot be read: it is empty")]
    Empty {
        /// The file.
        file: String,
    },
    /// More text than rules may have.
    #[error("the rules in {file} have {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// The file.
        file: String,
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The namespace for an empty one is not valid.
    #[error("the default namespace {name:?} cannot be one: {why}")]
    DefaultNamespace {
        /// The namespace.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// YAML, but not rules.
    #[error("the rules in {file} are wrong: {}{}", .problems[0], more(.problems.len() - 1))]
    Wrong {
        /// The file.
        file: String,
        /// What is wrong, in the file's order; at least one.
        problems: Vec<Problem>,
    },
}

/// ` (and 3 more)`, if there are more.
pub(super) fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" (and {count} more)") }
}

/// So many of a list are shown.
pub(super) const SHOWN: usize = 20;

/// What shows whether rules are right.
const TRY: &str = "`treeswap render` tries the rules offline";

impl RulesError {
    /// What an operator can do, a line each: the other problems, and flags that help.
    pub fn hints(&self) -> Vec<String> {
        let problems = match self {
            Self::Wrong { problems, .. } => problems,
            Self::Syntax { .. } => {
                return vec!["correct the YAML there".to_owned(), TRY.to_owned()];
            }
            Self::Empty { .. } => {
                return vec![
                    "write `maps` into it, as in Prow's config_updater, or name another file".to_owned(),
                ];
            }
            Self::TooLarge { .. } => {
                return vec!["one pattern for many files needs less: `**` is any depth".to_owned()];
            }
            Self::DefaultNamespace { .. } => {
                return vec!["give another one: lower-case letters, digits and `-`, at most 63".to_owned()];
            }
        };
        let mut hints: Vec<String> =
            problems.iter().skip(1).take(SHOWN).map(|p| format!("also {p}")).collect();
        if problems.iter().any(|problem| matches!(problem.fault, Fault::Unknown(_) | Fault::Removed(_))) {
            hints.push("--unknown-fields=ignore ignores such fields, as Prow does".to_owned());
        }
        if hints.is_empty() {
            hints.extend(["correct that field".to_owned(), TRY.to_owned()]);
        }
        hints
    }

    /// The faults, if it is YAML.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Wrong { problems, .. } => problems,
            Self::Syntax { .. }
            | Self::Empty { .. }
            | Self::TooLarge { .. }
            | Self::DefaultNamespace { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_wrong_with_rules_is_one_line_and_says_what_to_do() {
        let file = || "plugins.yaml".to_owned();
        let problem = |fault| Problem { field: "maps".into(), line: Some(3), fault };
        let wrong = |faults: Vec<Fault>| RulesError::Wrong {
            file: file(),
            problems: faults.into_iter().map(problem).collect(),
        };
        let each = [
            RulesError::Syntax { file: file(), why: "a tab".into() },
            RulesError::Empty { file: file() },
            RulesError::TooLarge { file: file(), bytes: 3, limit: 2 },
            RulesError::DefaultNamespace { name: "A".into(), why: "it has a capital" },
            wrong(vec![Fault::Duplicate]),
            wrong(vec![Fault::Unknown(Some("name"))]),
            wrong(vec![Fault::NoName, Fault::Duplicate]),
        ];
        for error in each {
            match error {
                RulesError::Syntax { .. }
                | RulesError::Empty { .. }
                | RulesError::TooLarge { .. }
                | RulesError::DefaultNamespace { .. }
                | RulesError::Wrong { .. } => {}
            }
            crate::human::reads_well(&error, &error.hints());
        }
    }
}
