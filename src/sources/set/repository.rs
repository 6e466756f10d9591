//! One repository of a set: its mirror, the commits that its refs named last, and its backoff after failures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::mirror::{self, Mirror, Part, TurnWait};
use crate::phase::LastAnswer;
use crate::phase::machine::MIN_RETRY_DELAY;
use crate::retry::Backoff;
use crate::revision::{ObjectId, Ref, Revision};
use crate::sha256::{hex, sha256};
use crate::sources::file::SourceSpec;
use crate::sources::poll::{PollResult, RefResult};
use crate::sources::stage::StagedError;

/// A pause in polling after a failure.
#[derive(Clone, Copy)]
pub(super) struct Pause {
    /// When the pause ends by itself.
    pub(super) until: Instant,
    /// When a request for the repository may end it: not before the server's Retry-After.
    pub(super) earliest: Instant,
}

/// One repository, polled for all sources that use it with the same credentials.
pub(super) struct Repository {
    pub(super) mirror: Arc<Mutex<Mirror>>,
    /// How long the mirror has waited for its turns to index packs.
    pub(super) turn_wait: TurnWait,
    /// The URL in the file when the mirror was opened. It may contain a secret.
    pub(super) url: String,
    /// By ref, the object it named last and that object's commit, which the mirror holds.
    pub(super) known: BTreeMap<String, (ObjectId, Revision)>,
    /// By ref, the object it named last and why that was refused.
    pub(super) refused: BTreeMap<String, (ObjectId, StagedError)>,
    /// By ref, why the last poll got no commit.
    pub(super) errors: BTreeMap<String, StagedError>,
    /// The number of consecutive failures.
    pub(super) failures: u32,
    /// When the first poll of the present run of polls with errors ended. A refused commit is an error here, too.
    pub(super) failing_since: Option<Timestamp>,
    /// The pause after a failure.
    pub(super) pause: Option<Pause>,
    /// True if the repository was requested since its last poll began.
    pub(super) requested: Arc<AtomicBool>,
    /// True while a poll is running or its answer is not yet accepted.
    pub(super) busy: bool,
    /// When the last poll began.
    pub(super) polled_at: Option<Instant>,
    /// When the last poll that has ended began, whether or not the remote answered.
    pub(super) ended_poll_began: Option<Instant>,
    /// The remote's last answer.
    pub(super) last_answer: LastAnswer,
    /// The duration of the last successful poll.
    pub(super) last_duration: Option<Duration>,
    /// Set if the volume was too full for a fetch.
    pub(super) full: Option<mirror::Error>,
}

impl Repository {
    pub(super) fn new(mirror: Mirror, url: String) -> Self {
        Self {
            turn_wait: mirror.turn_wait(),
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
            polled_at: None,
            ended_poll_began: None,
            last_answer: LastAnswer::not_yet(),
            last_duration: None,
            full: None,
        }
    }

    /// Forgets what the mirror holds and what was refused: the next poll fetches all of it again.
    pub(super) fn forget_answers(&mut self) {
        self.known.clear();
        self.refused.clear();
    }

    /// Records the result of a poll, and begins or ends a pause. A refused commit or a missing ref begins none: the
    /// remote is healthy, and what replaces them is published as soon as any other commit.
    pub(super) fn accept(&mut self, result: PollResult, backoff: &Backoff) {
        self.busy = false;
        self.ended_poll_began = self.polled_at;
        self.errors.clear();
        self.known.retain(|ref_name, _| result.of_refs.iter().any(|(of, _)| of == ref_name));
        let refused = std::mem::take(&mut self.refused);
        let failed = result.has_failed();
        if result.is_reached {
            self.last_answer = LastAnswer::now();
        }
        self.full = result.full;
        for (ref_name, of_ref) in result.of_refs {
            match of_ref {
                RefResult::Named(object, revision) => _ = self.known.insert(ref_name, (object, revision)),
                RefResult::Refused(object, why) => {
                    self.refused.insert(ref_name.clone(), (object, why.clone()));
                    self.errors.insert(ref_name, why);
                }
                RefResult::Failed(why) => {
                    self.refused.extend(refused.get(&ref_name).map(|was| (ref_name.clone(), was.clone())));
                    self.errors.insert(ref_name, why);
                }
            }
        }
        if self.errors.is_empty() {
            self.failing_since = None;
        } else {
            self.failing_since.get_or_insert_with(Timestamp::now);
        }
        if failed {
            self.failures = self.failures.saturating_add(1);
            let retry_after = result.retry_after.unwrap_or_default();
            let until = Instant::now() + backoff.delay(self.failures).max(retry_after);
            let earliest = until.min(Instant::now() + retry_after.max(MIN_RETRY_DELAY));
            self.pause = Some(Pause { until, earliest });
        } else {
            self.failures = 0;
            self.pause = None;
            self.last_duration = self.polled_at.map(|at| at.elapsed());
        }
    }

    /// True if a poll has ended and the last one did not fail.
    pub(super) fn last_poll_succeeded(&self) -> bool {
        self.ended_poll_began.is_some() && self.failures == 0
    }

    /// When a request for the repository may end the pause; `None` if there is no pause, or by now it may.
    pub(super) fn requestable_from(&self, now: Instant) -> Option<Instant> {
        self.pause.map(|pause| pause.earliest).filter(|earliest| now < *earliest)
    }

    /// When the pause ends; `None` if the repository is not paused at `now`. A request makes the pause shorter.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        let pause = self.pause?;
        let until = if self.requested.load(Ordering::Relaxed) { pause.earliest } else { pause.until };
        (now < until).then_some(until)
    }

    /// Returns true if the repository could be polled and was requested since its last poll began.
    pub(super) fn is_overlooked(&self, now: Instant) -> bool {
        !self.busy && self.requested.load(Ordering::Relaxed) && self.paused_until(now).is_none()
    }

    /// Returns true if an attempt that was requested for certain sources polls this repository as well: it was
    /// requested, its pause is over, a ref is new in the file, or its last poll was half a period ago. (Every attempt
    /// postpones the next timer, so without the last condition a repository would not be polled while others are
    /// requested repeatedly.)
    pub(super) fn is_due(&self, refs: &BTreeMap<String, Ref>, now: Instant, period: Duration) -> bool {
        let is_new =
            |ref_name: &String| !self.known.contains_key(ref_name) && !self.errors.contains_key(ref_name);
        self.requested.load(Ordering::Relaxed)
            || self.pause.is_some() // paused ones were skipped by the caller: a pause that is still set is over
            || refs.keys().any(is_new)
            || self.polled_at.is_none_or(|at| now >= at + period / 2)
    }

    /// Locks the mirror; `None` if a poll may be fetching into it.
    pub(super) fn idle(&self) -> Option<MutexGuard<'_, Mirror>> {
        (!self.busy).then(|| self.mirror.try_lock().ok()).flatten()
    }

    /// The revisions that the mirror must keep: those in `parts`, which are published, and those that the refs name.
    pub(super) fn kept_revisions(&self, name: &str, parts: &[Part]) -> Vec<Revision> {
        let named = self.known.values().map(|(_, revision)| *revision);
        let published = parts.iter().filter(|part| part.mirror == name).map(|part| part.revision);
        let mut seen = BTreeSet::new();
        published.chain(named).filter(|revision| seen.insert(*revision)).collect()
    }
}

/// The name of a repository's mirror: a digest of the URL and the credentials' user and file names. Sources for which
/// these are equal share a mirror.
pub(super) fn mirror_name(repo: &str, source: &SourceSpec) -> String {
    let credentials = &source.credentials;
    let files = [&credentials.password_file, &credentials.ssh_key_file, &credentials.ssh_known_hosts_file];
    let files = files.map(|file| file.as_os_str().as_encoded_bytes());
    let text = [&[repo.as_bytes(), credentials.username.as_bytes()], &files[..]].concat().join(&0);
    hex(&sha256(&[&text])[..10])
}

/// Returns true if the name has the form of those that [`mirror_name`] makes.
pub(super) fn is_mirror_name(name: &str) -> bool {
    name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
