//! Remarks of a delivery that concern no single target.

use serde::Serialize;

/// A remark that concerns no single target. It is serialized as its text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct Note {
    /// The remark, in one line.
    pub text: String,
    /// What an operator can do.
    #[serde(skip)]
    pub hint: Option<String>,
}

impl std::ops::Deref for Note {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Collects notes on one cluster, without duplicates.
#[derive(Debug)]
pub(super) struct Notes {
    cluster: String,
    lines: Vec<Note>,
}

impl Notes {
    /// Starts empty.
    pub(super) fn new(cluster: &str) -> Self {
        Self { cluster: cluster.to_owned(), lines: Vec::new() }
    }

    /// Adds a note on the cluster, unless it is there already.
    pub(super) fn add(&mut self, note: impl std::fmt::Display) {
        self.add_with_hint(note, None);
    }

    /// The same, with what an operator can do about it.
    pub(super) fn add_with_hint(&mut self, note: impl std::fmt::Display, hint: Option<String>) {
        let text = format!("cluster {}: {note}", self.cluster);
        if !self.lines.iter().any(|line| line.text == text) {
            self.lines.push(Note { text, hint });
        }
    }

    /// Adds a note that concerns the whole run.
    pub(super) fn add_to_run(&mut self, note: String) {
        self.lines.push(Note { text: note, hint: None });
    }

    /// Returns all notes and empties the collection.
    pub(super) fn take(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.lines)
    }
}
