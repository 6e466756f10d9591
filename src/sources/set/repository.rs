//! One repository of a set: its mirror, and what its refs named last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::mirror::{self, Mirror, Part};
use crate::phase::LastAnswer;
use crate::phase::machine::BREATH;
use crate::retry::Backoff;
use crate::revision::{ObjectId, Revision};
use crate::sources::SourceError;
use crate::sources::file::Listed;
use crate::sources::poll::{Answer, Answers};

/// A pause after a failure.
#[derive(Clone, Copy)]
pub(super) struct Pause {
    /// It ends by itself.
    pub(super) until: Instant,
    /// A request for the repository ends it, but not before: its server may have said how long it wants to be left
    /// alone.
    pub(super) earliest: Instant,
}

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
    /// After a failure it is left alone for a while.
    pub(super) pause: Option<Pause>,
    /// Somebody asked for it since it was asked last.
    pub(super) requested: Arc<AtomicBool>,
    /// It was asked, and its answer is not taken yet.
    pub(super) busy: bool,
    /// When it was asked last; and when the question was put that it answered last.
    pub(super) asked: Option<Instant>,
    pub(super) answered: Option<Instant>,
    /// When its remote answered last.
    pub(super) heard: LastAnswer,
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
            pause: None,
            requested: Arc::default(),
            busy: false,
            asked: None,
            answered: None,
            heard: LastAnswer::not_yet(),
            took: None,
            full: None,
        }
    }

    pub(super) fn take(&mut self, answers: Answers, backoff: &Backoff) {
        self.busy = false;
        self.answered = self.asked;
        self.errors.clear();
        self.known.retain(|asked, _| answers.of_refs.iter().any(|(of, _)| of == asked));
        let refused = std::mem::take(&mut self.refused);
        let failed = answers.has_failed();
        if answers.heard {
            self.heard = LastAnswer::now();
        }
        self.full = answers.full;
        for (asked, answer) in answers.of_refs {
            match answer {
                Answer::Named(object, revision) => _ = self.known.insert(asked, (object, revision)),
                Answer::Refused(object, why) => {
                    self.refused.insert(asked.clone(), (object, why.clone()));
                    self.errors.insert(asked, why);
                }
                Answer::Failed(why) => {
                    self.refused.extend(refused.get(&asked).map(|was| (asked.clone(), was.clone())));
                    self.errors.insert(asked, why);
                }
            }
        }
        if failed {
            self.failures = self.failures.saturating_add(1);
            self.failing_since.get_or_insert_with(Timestamp::now);
            let asked = answers.retry_after.unwrap_or_default();
            let until = Instant::now() + backoff.delay(self.failures).max(asked);
            let earliest = until.min(Instant::now() + asked.max(BREATH));
            self.pause = Some(Pause { until, earliest });
        } else {
            (self.failures, self.failing_since, self.pause) = (0, None, None);
            self.took = self.asked.map(|asked| asked.elapsed());
        }
    }

    /// Until when it is left alone, if it is.
    pub(super) fn pauses(&self, now: Instant) -> Option<Instant> {
        let pause = self.pause?;
        let until = if self.requested.load(Ordering::Relaxed) { pause.earliest } else { pause.until };
        (now < until).then_some(until)
    }

    /// Whether it is asked although others may be meant: somebody asked for it, its pause is over, a ref is new in the
    /// file, or it was not asked for half a period. (An attempt puts off the next one of all, so that it would not be asked
    /// while others are asked for again and again.)
    pub(super) fn is_due(&self, refs: &BTreeSet<String>, now: Instant, period: Duration) -> bool {
        let is_new = |asked: &String| !self.known.contains_key(asked) && !self.errors.contains_key(asked);
        self.requested.load(Ordering::Relaxed)
            || self.pause.is_some()
            || refs.iter().any(is_new)
            || self.asked.is_none_or(|asked| now >= asked + period / 2)
    }

    /// Whether what is wrong may pass by itself; a commit that is refused stays so.
    pub(super) fn may_recover(&self) -> bool {
        self.errors.keys().any(|asked| !self.refused.contains_key(asked))
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
