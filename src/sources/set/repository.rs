//! One repository of a set: its mirror, and what its refs named last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::mirror::{self, Mirror, Part};
use crate::retry::Backoff;
use crate::revision::{ObjectId, Revision};
use crate::sources::SourceError;
use crate::sources::file::Listed;
use crate::sources::poll::{Answer, Answers};

/// One repository.
pub(super) struct Repository {
    pub(super) mirror: Arc<Mutex<Mirror>>,
    /// As the file had it when the mirror was opened. It may hold a secret.
    pub(super) url: String,
    /// What its refs named last, by the ref, with the object that was named.
    pub(super) known: BTreeMap<String, (ObjectId, Revision)>,
    /// What they named last and cannot be had.
    pub(super) refused: BTreeMap<String, (ObjectId, SourceError)>,
    /// What is wrong with a ref, or with all of them.
    pub(super) errors: BTreeMap<String, SourceError>,
    /// Failures in a row, and when the first of them was.
    pub(super) failures: u32,
    pub(super) failing_since: Option<Timestamp>,
    /// It is not asked before.
    pub(super) not_before: Option<Instant>,
    /// It was asked, and its answer is not taken yet.
    pub(super) busy: bool,
    /// When it was asked last; and when the question was put that it answered last.
    pub(super) asked: Option<Instant>,
    pub(super) answered: Option<Instant>,
    /// How long its last good answer took.
    pub(super) took: Option<Duration>,
    /// It has no room for what it fetches.
    pub(super) full: Option<mirror::Error>,
}

impl Repository {
    pub(super) fn new(mirror: Mirror, url: String) -> Self {
        Self {
            mirror: Arc::new(Mutex::new(mirror)),
            url,
            known: BTreeMap::new(),
            refused: BTreeMap::new(),
            errors: BTreeMap::new(),
            failures: 0,
            failing_since: None,
            not_before: None,
            busy: false,
            asked: None,
            answered: None,
            took: None,
            full: None,
        }
    }

    pub(super) fn take(&mut self, answers: Answers, backoff: &Backoff) {
        self.busy = false;
        self.answered = self.asked;
        self.errors.clear();
        self.full = answers.full;
        self.known.retain(|asked, _| answers.of_refs.iter().any(|(of, _)| of == asked));
        let refused = std::mem::take(&mut self.refused);
        let mut failed = false;
        for (asked, answer) in answers.of_refs {
            match answer {
                Answer::Named(object, revision) => _ = self.known.insert(asked, (object, revision)),
                Answer::Refused(object, why) => {
                    failed = true;
                    self.refused.insert(asked.clone(), (object, why.clone()));
                    self.errors.insert(asked, why);
                }
                Answer::Failed(why) => {
                    failed = true;
                    self.refused.extend(refused.get(&asked).map(|was| (asked.clone(), was.clone())));
                    self.errors.insert(asked, why);
                }
            }
        }
        if failed {
            self.failures = self.failures.saturating_add(1);
            self.failing_since.get_or_insert_with(Timestamp::now);
            let pause = backoff.delay(self.failures).max(answers.retry_after.unwrap_or_default());
            self.not_before = Some(Instant::now() + pause);
        } else {
            (self.failures, self.failing_since, self.not_before) = (0, None, None);
            self.took = self.asked.map(|asked| asked.elapsed());
        }
    }

    /// Its mirror, unless something may come into it that is not known of yet.
    pub(super) fn idle(&self) -> Option<MutexGuard<'_, Mirror>> {
        (!self.busy).then(|| self.mirror.try_lock().ok()).flatten()
    }

    /// What its mirror must go on holding.
    pub(super) fn held(&self, name: &str, parts: &[Part]) -> Vec<Revision> {
        let named = self.known.values().map(|(_, revision)| *revision);
        let published = parts.iter().filter(|part| part.mirror == name).map(|part| part.revision);
        let mut seen = BTreeSet::new();
        published.chain(named).filter(|revision| seen.insert(*revision)).collect()
    }
}

/// The name of the mirror of a repository: the same one with the same credential is one.
pub(super) fn key(repo: &str, source: &Listed) -> String {
    let credentials = &source.credentials;
    let files = [&credentials.password_file, &credentials.ssh_key_file, &credentials.ssh_known_hosts_file];
    let files = files.map(|file| file.as_os_str().as_encoded_bytes());
    let text = [&[repo.as_bytes(), credentials.username.as_bytes()], &files[..]].concat().join(&0);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &text);
    digest.as_ref().iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a name can be one that [`key`] makes.
pub(super) fn is_key(name: &str) -> bool {
    name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
