//! The problems that a rules file can have, and the errors that report them. Every problem names its field, and all
//! problems of a file are reported together.

use std::borrow::Cow;
use std::fmt;

use crate::human;

/// What is wrong with one field. Some are only warned of ([`ProblemKind::is_harmless`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemKind {
    /// There is no field of this name; the value is the name that was probably meant.
    #[error("there is no such field{}", .0.map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
    Unknown(Option<&'static str>),
    /// Prow removed this field and ignores it now; the value says what to write instead.
    #[error("this field was removed from Prow, which now ignores it: {0}")]
    Removed(&'static str),
    /// A field of the section `config_updater` is beside it.
    #[error("it is beside config_updater, where Prow ignores it; indent it below that, or remove it")]
    BesideSection,
    /// A key or name is given twice.
    #[error("it is given twice")]
    Duplicate,
    /// An unquoted word that Prow's YAML 1.1 does not read as text.
    #[error("Prow's YAML 1.1 reads the unquoted {} as {what}; quote it", shortened(.word))]
    ImplicitType {
        /// The word.
        word: String,
        /// The type that YAML 1.1 gives it.
        what: &'static str,
    },
    /// The value has the wrong type.
    #[error("it is {found}, where {expected} belongs")]
    Type {
        /// The type that was found.
        found: &'static str,
        /// The type that is expected.
        expected: &'static str,
    },
    /// Both `name` and `partitioned_names` are given.
    #[error("name and partitioned_names exclude each other")]
    NameAndPartitions,
    /// More partitions than a one-byte hash can address.
    #[error("{0} partitions; the hash that chooses among them has one byte, for 256 at most")]
    TooManyPartitions(usize),
    /// No field names the ConfigMap.
    #[error("neither name nor partitioned_names is given")]
    NoName,
    /// A name is not valid for its kind of object.
    #[error("{:?} cannot be {what}: {why}", shortened(.name))]
    IllegalName {
        /// The name.
        name: String,
        /// What it was meant to name.
        what: &'static str,
        /// The rule it breaks.
        why: &'static str,
    },
    /// A fixed key is not valid.
    #[error("{:?} cannot be a key: {why}", shortened(.key))]
    IllegalKey {
        /// The key.
        key: String,
        /// The rule it breaks.
        why: super::InvalidKey,
    },
    /// Both `clusters` and `cluster_groups` are given.
    #[error("clusters and cluster_groups exclude each other")]
    ClustersAndGroups,
    /// The rules up to this one name too many ConfigMaps in all their clusters and namespaces.
    #[error(
        "the rules up to this one name {targets} ConfigMaps in all clusters and namespaces, the limit is {limit}"
    )]
    TooManyTargets {
        /// How many they name.
        targets: usize,
        /// The limit.
        limit: usize,
    },
    /// There are too many rules.
    #[error(
        "it has {rules} rules, the limit is {limit}; one pattern may match many files: `**/` is any depth"
    )]
    TooManyRules {
        /// How many there are.
        rules: usize,
        /// The limit.
        limit: usize,
    },
    /// A cluster group that is not defined.
    #[error("there is no cluster group {:?}", shortened(.0))]
    NoSuchGroup(String),
    /// A namespace that one list has twice.
    #[error("namespace {:?} is listed twice", shortened(.0))]
    NamespaceTwice(String),
    /// Two rules that each can write only one key, and write the same key of the same ConfigMap.
    #[error(
        "it and {:?} both write key {:?} of ConfigMap {}",
        shortened(.other),
        shortened(.key),
        shortened(.name)
    )]
    SameKey {
        /// The other rule's pattern.
        other: String,
        /// The key.
        key: String,
        /// The ConfigMap.
        name: String,
    },
    /// The pattern is invalid in its dialect.
    #[error("the pattern cannot be read: {0}")]
    Pattern(#[from] super::BadPattern),
    /// The dialect is unknown; the value is the whole message.
    #[error("{0}")]
    Dialect(String),
    /// A list entry that cannot be a repository. Only warned of: it matches nothing.
    #[error(
        "{:?} is neither an organisation nor organisation/repository, and matches nothing",
        shortened(.0)
    )]
    Repository(String),
    /// A target without a namespace, to which nothing is written. Only warned of: rules in use have this.
    #[error("it names no namespace, so nothing is written there")]
    NoNamespace,
    /// A pattern that does not mean what it would mean in ordinary globs. Only warned of.
    #[error("the pattern {0}")]
    Surprise(&'static str),
    /// There are no maps, so Prow's default maps apply. Only warned of.
    #[error("there are no maps, so that Prow's two default maps hold")]
    Defaults,
    /// A boolean written as only YAML 1.1 allows, for example `yes`. Only warned of.
    #[error("{0} is read as {1}, as Prow's YAML 1.1 does")]
    OldBoolean(String, bool),
}

/// A name as a problem shows it, in its field or its message. One that is longer than any valid name is abbreviated:
/// what is wrong with it follows, and the fields below it repeat it.
pub(super) fn shortened(name: &str) -> Cow<'_, str> {
    if name.len() > NAME_MAX { human::elide_middle(name).into() } else { name.into() }
}

/// The longest name that is shown as it is, in bytes: a valid one, and room for what is too much.
const NAME_MAX: usize = 300;

/// The most characters of a message about what is wrong with a field.
const KIND_MAX: usize = 2_000;

impl ProblemKind {
    /// Returns true if it is a field that Prow ignores.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Removed(_) | Self::BesideSection)
    }

    /// Returns true if it is only warned of.
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

/// A problem and its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The path to the field, for example `maps["a/*.yaml"].name`.
    pub field: String,
    /// The line in the file, counted from 1; `None` if unknown.
    pub line: Option<usize>,
    /// What is wrong.
    pub kind: ProblemKind,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::payload::escaped(self.field.as_bytes()))?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ": {}", human::sanitize(&self.kind.to_string(), KIND_MAX))
    }
}

/// Why rules cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The text is not valid YAML.
    #[error("the rules in {file} cannot be read: {}", .why.replace('\n', " "))]
    Syntax {
        /// The file.
        file: String,
        /// The parser's message.
        why: String,
    },
    /// The text has nothing but comments.
    #[error("the rules in {file} cannot be read: it is empty")]
    Empty {
        /// The file.
        file: String,
    },
    /// The text exceeds the limit.
    #[error("the rules in {file} have {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// The file.
        file: String,
        /// Its length.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The default namespace is not a valid name.
    #[error("the default namespace {name:?} cannot be one: {why}")]
    DefaultNamespace {
        /// The namespace.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// The text is valid YAML, but the rules in it are not valid.
    #[error("the rules in {file} are wrong: {}{}", .problems[0], others(.problems.len(), PROBLEMS_MAX))]
    Wrong {
        /// The file.
        file: String,
        /// The problems, at least one.
        problems: Vec<Problem>,
    },
}

/// How many problems are kept of each kind, errors and warnings. The author of a commit controls how many there
/// are.
pub(super) const PROBLEMS_MAX: usize = 2_000;

/// The suffix ` (and N more)` for a message with the first of `count` problems; empty if that is the only one. A list
/// of `limit` problems may be incomplete.
pub(super) fn others(count: usize, limit: usize) -> String {
    match count.saturating_sub(1) {
        0 => String::new(),
        others if count < limit => format!(" (and {others} more)"),
        others => format!(" (and at least {others} more)"),
    }
}

/// How many items of a list a message shows.
pub(super) const SHOWN: usize = 20;

/// Hint that names the command to check rules with.
const TRY: &str = "`treeswap render` tries the rules offline";

/// Returns true if the parser's message is one that it has for an unquoted text that begins with `*`, `&`, `!`, `{` or
/// `[`: there begins an alias, an anchor, a tag, a mapping or a list. The last one has other causes, too.
fn may_be_of_pattern(why: &str) -> bool {
    const MESSAGES: [&str; 5] = [
        "while scanning an alias",
        "while scanning an anchor",
        "while scanning a tag",
        "unknown anchor",
        "did not find expected key",
    ];
    MESSAGES.iter().any(|message| why.contains(message))
}

impl RulesError {
    /// Hints for the operator, one line each: the other problems, and flags that help.
    pub fn hints(&self) -> Vec<String> {
        let problems = match self {
            Self::Wrong { problems, .. } => problems,
            Self::Syntax { why, .. } if may_be_of_pattern(why) => {
                let hint = "correct the YAML; quote a pattern that begins with *, { or [: \"**/*.yaml\"";
                return vec![hint.to_owned(), TRY.to_owned()];
            }
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
        if problems.iter().any(|problem| problem.kind.is_unknown()) {
            hints.push("--unknown-fields=ignore ignores such fields, as Prow does".to_owned());
        }
        if hints.is_empty() {
            hints.extend(["correct that field".to_owned(), TRY.to_owned()]);
        }
        hints
    }

    /// The problems; empty if the text could not be parsed at all.
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
    use super::super::InvalidKey;
    use super::*;

    #[test]
    fn a_name_of_any_length_leaves_room_for_what_is_wrong_with_it() {
        let long = || "X".repeat(1 << 20);
        let shown = |kind| Problem { field: "maps".into(), line: None, kind }.to_string();
        let illegal = |name| ProblemKind::IllegalName { name, what: "a namespace", why: "it is too long" };
        let sides = "X".repeat(24);
        let cut = format!("maps: \"{sides}…{sides}\" cannot be a namespace: it is too long");
        assert_eq!(shown(illegal("X".repeat(301))), cut);
        assert_eq!(shown(illegal(long())), cut);
        let whole = "X".repeat(300);
        let expected = format!("maps: \"{whole}\" cannot be a namespace: it is too long");
        assert_eq!(shown(illegal(whole)), expected);
        for (kind, end) in [
            (ProblemKind::ImplicitType { word: long(), what: "a number" }, " as a number; quote it"),
            (ProblemKind::IllegalKey { key: long(), why: InvalidKey::Long }, "longer than 253 bytes"),
            (ProblemKind::NoSuchGroup(long()), "XXX\""),
            (ProblemKind::NamespaceTwice(long()), "\" is listed twice"),
            (ProblemKind::SameKey { other: long(), key: long(), name: long() }, "XXX"),
            (ProblemKind::Repository(long()), ", and matches nothing"),
            (ProblemKind::Dialect(long()), "XXX…"),
        ] {
            let line = shown(kind);
            assert!(line.chars().count() <= "maps: ".len() + KIND_MAX && line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn a_hint_is_only_given_where_it_helps() {
        let syntax =
            |why: &str| RulesError::Syntax { file: String::new(), why: why.into() }.hints()[0].clone();
        assert!(syntax("unknown anchor at line 2 column 3").contains("quote a pattern"));
        assert_eq!(syntax("a tab"), "correct the YAML there");
        for (kind, is_ignored) in [
            (ProblemKind::Unknown(None), true),
            (ProblemKind::Removed("use `clusters`"), true),
            (ProblemKind::BesideSection, true),
            (ProblemKind::Duplicate, false),
        ] {
            let problems = vec![Problem { field: "maps".into(), line: None, kind }];
            let hints = RulesError::Wrong { file: String::new(), problems }.hints();
            let has_hint = hints.iter().any(|hint| hint.contains("--unknown-fields=ignore"));
            assert_eq!(has_hint, is_ignored, "{hints:?}");
        }
    }

    #[test]
    fn everything_wrong_with_rules_is_one_line_and_says_what_to_do() {
        let file = || "plugins.yaml".to_owned();
        let problem = |kind| Problem { field: "maps".into(), line: Some(3), kind };
        let wrong = |problems: Vec<ProblemKind>| RulesError::Wrong {
            file: file(),
            problems: problems.into_iter().map(problem).collect(),
        };
        let each = [
            RulesError::Syntax { file: file(), why: "a tab".into() },
            RulesError::Syntax { file: file(), why: "unknown anchor at line 2 column 3".into() },
            RulesError::Empty { file: file() },
            RulesError::TooLarge { file: file(), bytes: 3, limit: 2 },
            RulesError::DefaultNamespace { name: "A".into(), why: "it has a capital" },
            wrong(vec![ProblemKind::Duplicate]),
            wrong(vec![ProblemKind::Unknown(Some("name"))]),
            wrong(vec![ProblemKind::NoName, ProblemKind::Duplicate]),
            wrong(vec![ProblemKind::BesideSection]),
            wrong(vec![ProblemKind::TooManyRules { rules: 3, limit: 2 }]),
        ];
        let many = wrong(vec![ProblemKind::Duplicate; PROBLEMS_MAX]).to_string();
        assert!(many.ends_with("(and at least 1999 more)"), "the list is cut: {many}");
        for error in each {
            match error {
                RulesError::Syntax { .. }
                | RulesError::Empty { .. }
                | RulesError::TooLarge { .. }
                | RulesError::DefaultNamespace { .. }
                | RulesError::Wrong { .. } => {}
            }
            crate::human::assert_message_style(&error, &error.hints());
        }
    }
}
