//! The keys of the file, read one by one: what is wrong with one is said with its name, in words.

use serde_yaml::{Mapping, Value};

use crate::human::nearest;

/// What others call some keys.
const ELSEWHERE: [(&str, &str); 9] = [
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

/// The text as YAML; else says in words what is wrong.
pub(super) fn read(text: &str) -> Result<Value, String> {
    serde_yaml::from_str(text).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        let tab = (line.saturating_sub(1)..=line)
            .filter(|line| *line > 0)
            .find(|line| text.lines().nth(line - 1).is_some_and(has_tab));
        match tab {
            Some(line) => format!("line {line} begins with a tab; YAML indents with blanks"),
            None => error.to_string(),
        }
    })
}

/// Whether a line is indented with one.
fn has_tab(line: &str) -> bool {
    line.trim_start_matches(' ').starts_with('\t')
}

/// A `key: value` list.
pub(super) struct Keys<'v>(&'v Mapping);

impl<'v> Keys<'v> {
    /// Of a value, which has no other keys than these.
    pub(super) fn of(value: &'v Value, known: &'static [&'static str]) -> Result<Self, String> {
        let Value::Mapping(map) = value else {
            return Err(format!("write `key: value`, with some of the keys {}", known.join(", ")));
        };
        let unknown = map.keys().find(|key| key.as_str().is_none_or(|key| !known.contains(&key)));
        match unknown {
            None => Ok(Self(map)),
            Some(Value::String(key)) => {
                let other = ELSEWHERE.iter().find(|(other, ours)| other == key && known.contains(ours));
                let meant = other.map(|(_, ours)| *ours).or_else(|| nearest(key, known.iter().copied()));
                Err(match meant {
                    Some(meant) => format!("there is no key {key:?}; did you mean `{meant}`?"),
                    None => format!("there is no key {key:?}; there are {}", known.join(", ")),
                })
            }
            Some(_) => Err(format!("a key that is no text; there are {}", known.join(", "))),
        }
    }

    /// What is there, if anything is.
    pub(super) fn get(&self, key: &str) -> Option<&'v Value> {
        self.0.get(key)
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, String> {
        self.get(key).map(|value| text(key, value)).transpose()
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, String> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Sequence(list)) => list.iter().map(|value| text(key, value)).collect(),
            Some(_) => Err(format!("{key}: write a list, as in `{key}: [one, another]`")),
        }
    }

    /// True or false.
    pub(super) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(is)) => Ok(*is),
            Some(_) => Err(format!("{key}: write true or false")),
        }
    }
}

/// Never repeats the value: it may be a secret at the wrong key.
fn text(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Err(format!("{key}: there is nothing after it; leave the key out, or write a text")),
        Value::Bool(_) | Value::Number(_) => {
            Err(format!("{key}: put it in quotes: without them YAML reads a number, or true or false"))
        }
        _ => Err(format!("{key}: write one text, neither a list nor keys")),
    }
}
