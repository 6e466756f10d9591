//! Opens the mirrors of a set. Opening checks the whole tree that was fetched last, which may take longer than an
//! attempt. So it goes on from one attempt to the next, and meanwhile the other sources are polled. Its end requests an
//! attempt if none waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Repository, SourceError, SourceSet, blocking};
use crate::mirror::{self, Mirror, wire};
use crate::retry::ErrorClass;
use crate::sources::file::SourceSpec;

/// The most mirrors that are checked at the same time: each check takes memory.
const CHECKS_MAX: usize = 2;

/// A mirror that is being opened.
pub(super) struct Opening {
    /// The URL in the file. It may contain a secret.
    url: String,
    began: Instant,
    progress: Arc<Progress>,
    task: JoinHandle<Result<Mirror, mirror::Error>>,
}

/// What an opening and the attempts that wait for it tell each other. Each side sets its flag before it reads the other
/// one, so that at least one of them sees that an attempt must be requested.
#[derive(Default)]
struct Progress {
    has_ended: AtomicBool,
    /// An attempt has stopped waiting.
    is_late: AtomicBool,
}

impl Opening {
    /// Returns true once the mirror is open or has failed to open.
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Until when an attempt that began at `start` and may take `timeout` waits. One that needs all mirrors has no other
    /// use for its time. Any other one waits for a part of it, counted from the beginning of the opening, so that later
    /// attempts do not wait for the same mirror again.
    fn deadline(&self, timeout: Duration, start: Instant, needs_all: bool) -> Instant {
        if needs_all { start + timeout.mul_f64(0.9) } else { self.began + timeout / 4 }
    }
}

/// Limits how many mirrors are checked at the same time.
pub(super) fn limiter() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CHECKS_MAX))
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
            followed: listed.followed.clone(),
            ..self.options.mirror.clone()
        };
        let composer = Arc::clone(&self.composer);
        let checks = Arc::clone(&self.checks);
        let answer_sender = self.answer_sender.clone();
        let progress = Arc::<Progress>::default();
        let own = Arc::clone(&progress);
        let task = tokio::spawn(async move {
            let _permit = checks.acquire().await; // an error means that it was closed, which never happens
            let opened = blocking(move || composer.mirror(options)).await;
            own.has_ended.store(true, Ordering::SeqCst);
            if own.is_late.load(Ordering::SeqCst) {
                answer_sender.trigger();
            }
            opened
        });
        let opening = Opening { url: listed.repo.clone(), began: Instant::now(), progress, task };
        self.opening.insert(name.to_owned(), opening);
    }

    /// Waits for the mirror `name`, if it is being opened, and adds its repository. After the deadline it fails and the
    /// opening goes on.
    pub(super) async fn finish_opening(
        &mut self,
        name: &str,
        start: Instant,
        needs_all: bool,
    ) -> Result<(), SourceError> {
        let Some(opening) = self.opening.get_mut(name) else { return Ok(()) };
        let deadline = opening.deadline(self.options.timeout, start, needs_all);
        // If this future is dropped, the task stays.
        let Ok(ended) = tokio::time::timeout_at(deadline, &mut opening.task).await else {
            opening.progress.is_late.store(true, Ordering::SeqCst);
            if opening.progress.has_ended.load(Ordering::SeqCst) {
                self.answer_sender.trigger();
            }
            return Err(still_opening());
        };
        let url = std::mem::take(&mut opening.url);
        self.opening.remove(name);
        let opened = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
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
    use super::*;
    use crate::retry::Backoff;
    use crate::revision::Ref;
    use crate::sources::file::OnFailure;
    use crate::sources::{SetError, SetOptions};

    /// A set of the sources `one` and `two`, neither of which is published.
    fn set(dir: &std::path::Path) -> SourceSet {
        let file = dir.join("sources.yaml");
        let source =
            |name| format!("  - {{name: {name}, repo: {}/{name}, ref: main, to: {name}}}\n", dir.display());
        let text = format!("version: 1\nsources:\n{}{}end: true\n", source("one"), source("two"));
        std::fs::write(&file, text).unwrap();
        let mirrors = dir.join("mirrors");
        let second = Duration::from_secs(1);
        SourceSet::open(SetOptions {
            file,
            dir: mirrors.clone(),
            mirror: mirror::Options::new(&mirrors, Ref::Head, wire::Options::new("")),
            wire: Arc::new(|source| Ok(wire::Options::new(source.repo.clone()))),
            period: second,
            backoff: Backoff { first: second, ceiling: second },
            timeout: second,
            one_time: false,
            rules: true,
            root: false,
        })
        .unwrap()
    }

    /// By source, why its mirror is not open.
    fn unopened(set: &SourceSet) -> Vec<Option<&str>> {
        set.sources.iter().map(|source| source.unopened.as_ref().map(|why| why.what.as_str())).collect()
    }

    /// Makes attempts until the set is as expected. They fail, because nothing can be fetched.
    async fn resolve_until(set: &mut SourceSet, is_expected: impl Fn(&SourceSet) -> bool) {
        let attempts = async {
            while !is_expected(set) {
                assert!(set.resolve(None, &[]).await.is_err());
            }
        };
        tokio::time::timeout(Duration::from_secs(60), attempts).await.unwrap();
    }

    fn endless(began: Instant) -> Opening {
        let task = tokio::spawn(std::future::pending());
        Opening { url: String::new(), began, progress: Arc::default(), task }
    }

    #[tokio::test]
    async fn later_attempts_do_not_wait_for_the_same_mirror_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut set = set(dir.path());
        resolve_until(&mut set, |set| set.repositories.len() == 2).await;
        let hour = Duration::from_secs(3_600);
        set.options.timeout = hour;
        let (first, _) = set.repositories.pop_first().unwrap();
        let began = Instant::now();
        set.opening.insert(first.clone(), endless(began - hour / 2));
        let attempt = set.finish_opening(&first, began, false);
        let late = tokio::time::timeout(Duration::from_secs(60), attempt).await.expect("no attempt waits");
        assert_eq!(late.unwrap_err().what, still_opening().what);
        let needs_all = endless(began).deadline(hour, began, true);
        assert!(needs_all < began + hour, "the attempt's own time is not over");
    }

    #[tokio::test]
    async fn the_end_of_an_opening_that_no_attempt_waits_for_requests_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut set = set(dir.path());
        let requested = Arc::new(tokio::sync::Notify::new());
        let notify = Arc::clone(&requested);
        set.on_answer(move || notify.notify_one());
        let checks = Arc::clone(&set.checks);
        let slow = checks.acquire_many(CHECKS_MAX as u32).await.unwrap();
        assert!(set.resolve(None, &[]).await.is_err());
        assert_eq!(set.opening.len(), 2);
        drop(slow);
        tokio::time::timeout(Duration::from_secs(60), requested.notified()).await.expect("none is requested");
    }

    #[tokio::test]
    async fn a_poll_that_outlasts_the_attempt_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut set = set(dir.path());
        resolve_until(&mut set, |set| set.repositories.len() == 2).await;
        set.on_failure = OnFailure::Hold;
        let start = Instant::now();
        assert!(set.answers_deadline(start) < start + set.options.timeout);
        for repository in set.repositories.values_mut() {
            repository.errors.clear();
            repository.busy = false;
        }
        let last = set.sources[1].mirror.clone();
        set.repositories.get_mut(&last).unwrap().busy = true;
        let error = set.choose().unwrap_err();
        let SetError::Source { name, source } = error else { panic!("{error:?}") };
        assert_eq!((name.as_str(), source.what), ("two", SourceError::unanswered().what));
    }

    #[tokio::test]
    async fn a_mirror_that_opens_slowly_is_opened_once_and_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut set = set(dir.path());
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
