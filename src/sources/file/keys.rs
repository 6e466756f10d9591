//! Reads the YAML mappings of the sources file key by key. An error names the key and says how to write it, and never
//! repeats a value, which may be a secret.

use serde_yaml::{Mapping, Value};

use crate::human::{nearest, yaml_depth_problem, yaml_problem};

/// Names that other tools use for some keys, and ours.
const SYNONYMS: [(&str, &str); 9] = [
    ("branch", "ref"),
    ("tag", "ref"),
    ("revision", "ref"),
    ("url", "repo"),
    ("repository", "repo"),
    ("directory", "path"),
    ("dest", "to"),
    ("target", "to"),
    ("mount", "to"),
];

/// Parses the text as YAML. It may begin with a byte order mark, which the parser would take for a document.
pub(super) fn read(text: &str) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(why) = yaml_depth_problem(text) {
        return Err(why);
    }
    serde_yaml::from_str(text).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        let tab = (line.saturating_sub(1)..=line)
            .filter(|line| *line > 0)
            .find(|line| text.lines().nth(line - 1).is_some_and(is_indented_with_tab));
        match tab {
            Some(line) => format!("line {line} is indented with a tab; YAML indents with spaces"),
            None => yaml_problem(&error.to_string()).to_owned(),
        }
    })
}

/// Returns true if the line's indentation contains a tab.
fn is_indented_with_tab(line: &str) -> bool {
    line.trim_start_matches(' ').starts_with('\t')
}

/// A mapping with known keys only.
pub(super) struct Keys<'v>(&'v Mapping);

impl<'v> Keys<'v> {
    /// Checks that the value is a mapping without other keys than `known`.
    pub(super) fn of(value: &'v Value, known: &'static [&'static str]) -> Result<Self, String> {
        let Value::Mapping(map) = value else {
            return Err(format!("write `key: value`, with some of the keys {}", known.join(", ")));
        };
        let unknown = map.keys().find(|key| key.as_str().is_none_or(|key| !known.contains(&key)));
        match unknown {
            None => Ok(Self(map)),
            Some(Value::String(key)) => {
                let synonym = SYNONYMS.iter().find(|(other, ours)| other == key && known.contains(ours));
                let meant = synonym.map(|(_, ours)| *ours).or_else(|| nearest(key, known.iter().copied()));
                Err(match meant {
                    Some(meant) => format!("there is no key {key:?}; did you mean `{meant}`?"),
                    None => format!("there is no key {key:?}; there are {}", known.join(", ")),
                })
            }
            Some(_) => Err(format!("a key that is not a string; there are {}", known.join(", "))),
        }
    }

    /// The key's value, if it is set.
    pub(super) fn get(&self, key: &str) -> Option<&'v Value> {
        self.0.get(key)
    }

    /// The key's value as a string, if it is set.
    pub(super) fn string(&self, key: &str) -> Result<Option<String>, String> {
        self.get(key).map(|value| string(key, value)).transpose()
    }

    /// The key's value as a list of strings; empty if it is not set.
    pub(super) fn strings(&self, key: &str) -> Result<Vec<String>, String> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Sequence(list)) => list.iter().map(|value| string(key, value)).collect(),
            Some(_) => Err(format!("{key}: write a list, as in `{key}: [one, another]`")),
        }
    }

    /// The key's value as a boolean; false if it is not set.
    pub(super) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(is)) => Ok(*is),
            Some(_) => Err(format!("{key}: write true or false")),
        }
    }
}

/// The value as a string. An error does not repeat the value: it may be a secret at the wrong key.
fn string(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Err(format!("{key} has no value; leave the key out, or write a string")),
        Value::Bool(_) | Value::Number(_) => {
            Err(format!("{key}: put it in quotes: without them YAML reads a number, or true or false"))
        }
        _ => Err(format!("{key} must be a string, not a list or a mapping")),
    }
}
