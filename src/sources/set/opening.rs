//! Opens the mirrors of a set. Opening checks the whole tree that was fetched last, which may take longer than an
//! attempt. So an opening outlives the attempt that began it; meanwhile the other sources are polled. When it ends
//! while no attempt takes mirrors, it requests one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{AnswerSender, Repository, SourceError, SourceSet};
use crate::mirror::blocking::blocking;
use crate::mirror::{self, Mirror, wire};
use crate::retry::ErrorClass;
use crate::sources::file::SourceSpec;

/// The most mirrors that are checked at the same time: each check takes memory.
pub(super) const CHECKS_MAX: usize = 2;

/// A mirror that is being opened.
pub(super) struct Opening {
    /// The URL in the file. It may contain a secret.
    url: String,
    began: Instant,
    task: JoinHandle<Result<Mirror, mirror::Error>>,
}

/// Mirrors that were opened, or failed to, and that no attempt has taken yet. If an attempt ends without taking all of
/// them, another one is requested. A mirror that was taken requests none, so that one that cannot be opened is tried
/// again at the usual pace.
#[derive(Clone, Default)]
pub(super) struct EndedOpenings(Arc<Mutex<EndedNames>>);

#[derive(Default)]
struct EndedNames {
    /// The names of the mirrors.
    names: BTreeSet<String>,
    /// True while an attempt takes them.
    are_being_taken: bool,
}

impl EndedOpenings {
    fn lock(&self) -> MutexGuard<'_, EndedNames> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // consistent after every step, so a panic does no harm
    }

    /// Records the end of an opening. The lock is held meanwhile, so that an attempt takes it or one is requested.
    fn add(&self, name: String, answer_sender: &AnswerSender) {
        let mut ended = self.lock();
        ended.names.insert(name);
        if !ended.are_being_taken {
            answer_sender.trigger();
        }
    }

    /// Marks them as being taken by an attempt until the guard is dropped.
    pub(super) fn begin_taking(&self, answer_sender: &AnswerSender) -> TakingGuard {
        self.lock().are_being_taken = true;
        TakingGuard { ended_openings: self.clone(), answer_sender: answer_sender.clone() }
    }

    /// Forgets those for which `is_left` is false: the attempt has taken them, or no source needs them.
    pub(super) fn retain(&self, is_left: impl Fn(&str) -> bool) {
        self.lock().names.retain(|name| is_left(name));
    }
}

pub(super) struct TakingGuard {
    ended_openings: EndedOpenings,
    answer_sender: AnswerSender,
}

impl Drop for TakingGuard {
    fn drop(&mut self) {
        let mut ended = self.ended_openings.lock();
        ended.are_being_taken = false;
        if !ended.names.is_empty() {
            self.answer_sender.trigger();
        }
    }
}

impl Opening {
    /// Returns true once the mirror is open or has failed to open.
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Until when an attempt that began at `start` and may take `timeout` waits. If the mirror is required, it has no
    /// other use for its time. If not, it waits for a part of it, counted from the beginning of the opening, so that
    /// later attempts do not wait for the same mirror again.
    fn deadline(&self, timeout: Duration, start: Instant, is_required: bool) -> Instant {
        if is_required { start + timeout.mul_f64(0.9) } else { self.began + timeout / 4 }
    }
}

impl SourceSet {
    /// Begins to open the mirror `name`, unless that has begun already.
    pub(super) fn begin_opening(&mut self, name: &str, wire: wire::Options, listed: &SourceSpec) {
        if self.opening.contains_key(name) {
            return;
        }
        let wire::Options { max_fetch_bytes, ref issued, .. } = self.options.mirror.wire;
        let wire = wire::Options { max_fetch_bytes, issued: issued.clone(), ..wire };
        let options = mirror::Options {
            dir: self.options.dir.join(name),
            wire,
            followed: listed.reference.clone(),
            ..self.options.mirror.clone()
        };
        let composer = Arc::clone(&self.composer);
        let checks = Arc::clone(&self.checks);
        let answer_sender = self.answer_sender.clone();
        let ended_openings = self.ended_openings.clone();
        let own = name.to_owned();
        let task = tokio::spawn(async move {
            let _permit = checks.acquire().await; // an error means that it was closed, which never happens
            let opened = blocking(move || composer.mirror(options)).await;
            ended_openings.add(own, &answer_sender);
            opened
        });
        let opening = Opening { url: listed.repo.clone(), began: Instant::now(), task };
        self.opening.insert(name.to_owned(), opening);
    }

    /// Waits for the mirror `name`, if it is being opened, and adds its repository. After the deadline it fails and the
    /// opening goes on.
    pub(super) async fn finish_opening(
        &mut self,
        name: &str,
        start: Instant,
        is_required: bool,
    ) -> Result<(), SourceError> {
        let Some(opening) = self.opening.get_mut(name) else { return Ok(()) };
        let deadline = opening.deadline(self.options.limit.time, start, is_required);
        // If this future is dropped, the task stays.
        let Ok(ended) = tokio::time::timeout_at(deadline, &mut opening.task).await else {
            return Err(still_opening());
        };
        let url = std::mem::take(&mut opening.url);
        self.opening.remove(name);
        self.ended_openings.retain(|ended| ended != name);
        let opened = ended.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(mirror::Error::Cancelled),
        });
        let opened = opened.map_err(|error| SourceError::of_mirror(&error))?;
        self.repositories.insert(name.to_owned(), Repository::new(opened, url));
        Ok(())
    }
}

fn still_opening() -> SourceError {
    SourceError {
        what: "its mirror is still being checked".to_owned(),
        hints: vec!["it is polled once that is done; a large tree on a slow disk takes long".to_owned()],
        class: ErrorClass::Transient,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::tests::{opened_sources, resolve_until, two_sources};
    use super::*;

    /// By source, why its mirror is not open.
    fn unopened(set: &SourceSet) -> Vec<Option<&str>> {
        set.sources.iter().map(|source| source.unopened.as_ref().map(|why| why.what.as_str())).collect()
    }

    fn endless(began: Instant) -> Opening {
        let task = tokio::spawn(std::future::pending());
        Opening { url: String::new(), began, task }
    }

    #[tokio::test]
    async fn later_attempts_do_not_wait_for_the_same_mirror_again() {
        let (_dir, mut set) = opened_sources().await;
        let hour = Duration::from_secs(3_600);
        set.options.limit.time = hour;
        let (first, _) = set.repositories.pop_first().unwrap();
        let began = Instant::now();
        set.opening.insert(first.clone(), endless(began - hour / 2));
        let attempt = set.finish_opening(&first, began, false);
        let late = tokio::time::timeout(Duration::from_secs(60), attempt).await.expect("no attempt waits");
        let late = late.unwrap_err();
        assert_eq!(late.what, still_opening().what);
        crate::human::assert_message_style(&late, &late.hints);
        let required = endless(began).deadline(hour, began, true);
        assert!(required < began + hour, "the attempt's own time is not over");
    }

    #[tokio::test]
    async fn the_first_publication_waits_little_for_the_mirror_of_an_optional_source() {
        let (_dir, mut set) = opened_sources().await;
        let text = std::fs::read_to_string(&set.options.file).unwrap();
        std::fs::write(&set.options.file, text.replace("to: two}", "to: two, optional: true}")).unwrap();
        set.options.root = true;
        let hour = Duration::from_secs(3_600);
        set.options.limit.time = hour;
        let last = set.sources[1].mirror.clone();
        set.repositories.remove(&last).unwrap();
        set.opening.insert(last, endless(Instant::now() - hour / 2));
        let attempt = tokio::time::timeout(Duration::from_secs(60), set.resolve(None, &[])).await;
        assert!(attempt.expect("the other source is polled").is_err(), "its repository does not exist");
        assert_eq!(unopened(&set), [None, Some("its mirror is still being checked")]);
    }

    #[tokio::test]
    async fn the_end_of_an_opening_that_no_attempt_waits_for_requests_one() {
        for is_cut_off in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut set = two_sources(dir.path());
            let requested = Arc::new(tokio::sync::Notify::new());
            let notify = Arc::clone(&requested);
            set.on_answer(move || notify.notify_one());
            let checks = Arc::clone(&set.checks);
            let slow = checks.acquire_many(CHECKS_MAX as u32).await.unwrap();
            let limit = if is_cut_off { Duration::from_millis(50) } else { Duration::from_secs(60) };
            let attempt = tokio::time::timeout(limit, set.resolve(None, &[])).await;
            assert_eq!(attempt.is_err(), is_cut_off);
            assert!(!matches!(attempt, Ok(Ok(_))), "no mirror is open");
            assert_eq!(set.opening.len(), 2);
            drop(slow);
            let request = tokio::time::timeout(Duration::from_secs(60), requested.notified()).await;
            request.expect("none is requested");
        }
    }

    #[tokio::test]
    async fn an_ended_opening_that_an_attempt_took_requests_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let set = two_sources(dir.path());
        let requested = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requested);
        set.on_answer(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let requests = || requested.load(Ordering::Relaxed);
        let ended = EndedOpenings::default();
        let taking = ended.begin_taking(&set.answer_sender);
        ended.add("taken".to_owned(), &set.answer_sender);
        ended.retain(|name| name != "taken");
        drop(taking);
        assert_eq!(requests(), 0);
        let taking = ended.begin_taking(&set.answer_sender);
        ended.add("left".to_owned(), &set.answer_sender);
        assert_eq!(requests(), 0, "the attempt may still take it");
        drop(taking);
        assert_eq!(requests(), 1);
        ended.add("between".to_owned(), &set.answer_sender);
        assert_eq!(requests(), 2);
    }

    #[tokio::test]
    async fn a_mirror_that_opens_slowly_is_opened_once_and_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut set = two_sources(dir.path());
        let checks = Arc::clone(&set.checks);
        let slow = checks.acquire_many(CHECKS_MAX as u32).await.unwrap();
        let attempt = tokio::time::timeout(Duration::from_millis(50), set.resolve(None, &[])).await;
        assert!(attempt.is_err(), "the attempt ends while the mirrors are being opened");
        assert_eq!(set.opening.len(), 2);
        assert!(set.resolve(None, &[]).await.is_err());
        let checked = Some("its mirror is still being checked");
        assert_eq!(unopened(&set), [checked, checked]);
        let (first, of_first) = set.opening.pop_first().unwrap();
        set.opening.insert(first.clone(), endless(Instant::now()));
        drop(slow);
        resolve_until(&mut set, |set| set.repositories.len() == 1).await;
        let is_first = set.sources.iter().map(|source| source.mirror == first);
        let expected: Vec<_> = is_first.map(|is_first| checked.filter(|_| is_first)).collect();
        assert_eq!(unopened(&set), expected, "the other mirror is open");
        set.opening.insert(first, of_first);
        resolve_until(&mut set, |set| set.repositories.len() == 2).await;
        assert_eq!(unopened(&set), [None, None]);
        assert!(set.opening.is_empty());
    }
}
