//! Accessors for the values of a rules document: mappings, lists, texts, booleans. A value of another type is recorded
//! as a problem and read as an empty one.

use std::collections::{BTreeMap, HashSet};

use super::RulesParser;
use crate::configmap::rule_problem::ProblemKind;
use crate::configmap::yaml::{ImplicitType, Node, Top};

/// Fields that Prow removed, and what to write instead.
const REMOVED: &[(&str, &str)] = &[
    ("namespace", "name the namespace under clusters"),
    ("additional_namespaces", "name the namespaces under clusters"),
    ("config_file", "write a map for that file"),
    ("plugin_file", "write a map for that file"),
];

/// Fields that Prow's `plugins.yaml` has at its top besides `config_updater`: `Configuration` in Prow's
/// pkg/plugins/config.go.
const PLUGINS_FIELDS: &[&str] = &[
    "approve",
    "blockades",
    "blunderbuss",
    "branch_cleaner",
    "bugzilla",
    "cat",
    "cherry_pick_approved",
    "cherry_pick_unapproved",
    "dco",
    "external_plugins",
    "golint",
    "goose",
    "heart",
    "help",
    "jira",
    "label",
    "lgtm",
    "milestone_applier",
    "override",
    "owners",
    "plugins",
    "project_config",
    "project_manager",
    "repo_milestone",
    "require_matching_label",
    "retitle",
    "sigmention",
    "size",
    "slack",
    "triggers",
    "welcome",
];

impl RulesParser<'_> {
    /// Returns true if a document without `config_updater` is a `plugins.yaml` that leaves the section out. A misspelt
    /// section name is recorded as a problem, because Prow's default maps would silently take the section's place.
    pub(super) fn is_plugins_file(&mut self, top: &Top<'_>) -> bool {
        const SECTION: &str = "config_updater";
        let mut is_plugins = false;
        for (key, _) in &top.0 {
            let Node::Text(text) = key else { continue };
            is_plugins |= PLUGINS_FIELDS.iter().any(|name| text.eq_ignore_ascii_case(name));
            if is_close(text, SECTION) {
                self.report(text, key, ProblemKind::Unknown(Some(SECTION)));
                is_plugins = true; // the misspelt name is the only problem to report
            }
        }
        is_plugins
    }

    /// The known fields of a mapping, each with its key node and value. Unknown fields are recorded as problems.
    pub(super) fn fields<'n>(
        &mut self,
        field: &str,
        node: &'n Node<'n>,
        known: &'static [&'static str],
    ) -> BTreeMap<&'static str, (&'n Node<'n>, &'n Node<'n>)> {
        match node {
            Node::Null => BTreeMap::new(),
            Node::Map(entries) => self.entries(field, entries, known),
            other => {
                self.report(field, other, ProblemKind::Type { found: other.what(), expected: "a mapping" });
                BTreeMap::new()
            }
        }
    }

    /// The same for the entries of a mapping.
    pub(super) fn entries<'n>(
        &mut self,
        field: &str,
        entries: &'n [(Node<'n>, Node<'n>)],
        known: &'static [&'static str],
    ) -> BTreeMap<&'static str, (&'n Node<'n>, &'n Node<'n>)> {
        let mut found = BTreeMap::new();
        let dot = if field.is_empty() { "" } else { "." };
        for (key, value) in entries {
            let Node::Text(text) = key else {
                self.report(field, key, ProblemKind::Type { found: key.what(), expected: "a field's name" });
                continue;
            };
            let path = format!("{field}{dot}{text}");
            match known.iter().find(|name| text.eq_ignore_ascii_case(name)) {
                Some(name) if found.insert(*name, (key, value)).is_some() => {
                    self.report(&path, key, ProblemKind::Duplicate);
                }
                Some(_) => {}
                None => {
                    let removed = REMOVED.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
                    let close = known.iter().find(|name| is_close(text, name)).copied();
                    let problem = removed
                        .map_or(ProblemKind::Unknown(close), |(_, instead)| ProblemKind::Removed(instead));
                    self.report(&path, key, problem);
                }
            }
        }
        found
    }

    /// The entries of a mapping with arbitrary keys: name, key node and value. A duplicate key is recorded as a problem.
    pub(super) fn mapping<'n>(
        &mut self,
        field: &str,
        node: &'n Node<'n>,
    ) -> Vec<(String, &'n Node<'n>, &'n Node<'n>)> {
        let entries = match node {
            Node::Null => return Vec::new(),
            Node::Map(entries) => entries,
            other => {
                self.report(field, other, ProblemKind::Type { found: other.what(), expected: "a mapping" });
                return Vec::new();
            }
        };
        let mut seen = HashSet::new();
        let mut named = Vec::new();
        for (key, value) in entries {
            let name = match key {
                Node::Text(text) if key.implicit_type(self.source).is_none() => text.to_string(),
                Node::Number(Some(text)) => text.clone(),
                Node::Text(text) => {
                    self.implicit_type(field, key, text);
                    continue;
                }
                other => {
                    self.report(field, other, ProblemKind::Type { found: other.what(), expected: "a name" });
                    continue;
                }
            };
            if seen.insert(name.clone()) {
                named.push((name, key, value));
            } else {
                self.report(&format!("{field}[{name:?}]"), key, ProblemKind::Duplicate);
            }
        }
        named
    }

    /// Records an unquoted word that YAML 1.1 does not read as text.
    fn implicit_type(&mut self, field: &str, node: &Node<'_>, word: &str) {
        let what = match node.implicit_type(self.source) {
            Some(ImplicitType::Number) => "a number",
            _ => "a boolean",
        };
        self.report(field, node, ProblemKind::ImplicitType { word: word.to_owned(), what });
    }

    /// A text; empty if the field is absent.
    pub(super) fn text(&mut self, field: &str, node: &Node<'_>) -> String {
        match node {
            Node::Null => {}
            Node::Text(text) if node.implicit_type(self.source).is_none() => return text.to_string(),
            Node::Text(text) => self.implicit_type(field, node, text),
            other => self.report(field, other, ProblemKind::Type { found: other.what(), expected: "text" }),
        }
        String::new()
    }

    /// A list of texts; empty if the field is absent.
    pub(super) fn texts(&mut self, field: &str, node: &Node<'_>) -> Vec<String> {
        match node {
            Node::Null => Vec::new(),
            Node::List(nodes) => {
                let text = |(index, node): (usize, &Node<'_>)| self.text(&format!("{field}[{index}]"), node);
                nodes.iter().enumerate().map(text).collect()
            }
            other => {
                let expected = "a list such as [a, b]";
                self.report(field, other, ProblemKind::Type { found: other.what(), expected });
                Vec::new()
            }
        }
    }

    /// A boolean; `None` if the field is absent. Words that only YAML 1.1 reads as booleans are accepted with a
    /// warning.
    pub(super) fn boolean(&mut self, field: &str, node: &Node<'_>) -> Option<bool> {
        match (node, node.implicit_type(self.source)) {
            (Node::Null, _) => None,
            (Node::Bool(value), _) => Some(*value),
            (Node::Text(word), Some(ImplicitType::Bool(value))) => {
                self.report(field, node, ProblemKind::OldBoolean(word.to_string(), value));
                Some(value)
            }
            (other, _) => {
                self.report(
                    field,
                    other,
                    ProblemKind::Type { found: other.what(), expected: "true or false" },
                );
                None
            }
        }
    }
}

/// Returns true if `given` is probably a misspelling of `known`: the same letters in another order, or one letter
/// added, missing or different.
fn is_close(given: &str, known: &str) -> bool {
    let letters = |text: &str| {
        let mut letters: Vec<u8> = text.bytes().map(|byte| byte.to_ascii_lowercase()).collect();
        letters.sort_unstable();
        letters
    };
    let same = known.bytes().zip(given.bytes()).take_while(|(a, b)| a == b).count();
    let rest = known.len().max(given.len()) - same;
    let tail = known.bytes().rev().zip(given.bytes().rev()).take_while(|(a, b)| a == b).count();
    letters(given) == letters(known)
        || (known.len() > 3 && rest <= tail + 1 && known.len().abs_diff(given.len()) <= 1)
}
