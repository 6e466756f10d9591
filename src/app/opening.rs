//! Opens what a sync needs on its volumes. It waits for the lock of the root, and tries again while a volume is full.
//! Called as git-sync, it also tries again while something is in the way, such as a directory where the link has to be:
//! to git-sync that is a failed attempt like any other.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{Error, error_file, starting};
use crate::clock;
use crate::config::Personality;
use crate::generation::GenerationRecord;
use crate::human::one_line;
use crate::phase::{Attempt, GenerationStatus, LastAnswer, Outcome, Status, Trigger, millis, seconds};
use crate::repeats::{Repeats, suppressed};
use crate::store::{self, Store};
use crate::sync;
use crate::telemetry::metrics::Metrics;

/// Pause between two attempts to lock a root that another writer holds, and between two checks, while waiting, of
/// whether the process was asked to end.
const LOCK_PAUSE: Duration = Duration::from_millis(200);

/// What opening depends on.
pub(super) struct Opening<'a> {
    pub(super) personality: Personality,
    pub(super) sync: &'a sync::Options,
    pub(super) draining: &'a CancellationToken,
    pub(super) status: &'a watch::Sender<Status>,
    pub(super) metrics: &'a Metrics,
}

impl Opening<'_> {
    /// Calls `open`, and again with backoff after a failure that may end without a restart (see [`Self::may_retry`]).
    /// What is published can be read meanwhile. `None` means that the process was asked to end.
    ///
    /// # Errors
    /// Other errors, and the last one if there were too many failures.
    pub(super) fn retry<T>(&self, open: impl Fn() -> Result<T, Error>) -> Result<Option<T>, Error> {
        let mut logged = Repeats::default();
        let mut failures = 0;
        loop {
            let at = Timestamp::now();
            let began = Instant::now();
            let failure = match open() {
                Err(error) if self.may_retry(&error) => error,
                opened => {
                    if failures > 0 && opened.is_ok() {
                        self.recovered();
                    }
                    return opened.map(Some);
                }
            };
            failures += 1;
            if self.sync.failure_limits.init_failures.is_some_and(|limit| failures >= limit) {
                return Err(failure);
            }
            let text = one_line(&failure);
            let hints = failure.hints();
            let took = began.elapsed();
            let times = if self.sync.every_failure { Some(0) } else { logged.should_log(&text) };
            if let Some(times) = times {
                let (hints, again) = (hints.join("; "), suppressed(times));
                error!(name: "failed", error = text, failures, hints, "cannot start{again}; trying again");
            }
            self.metrics.git_sync.pass("error", took);
            error_file::write_failed_start(self.sync, &text, &hints, failures);
            let (trigger, outcome, duration_ms) = (Trigger::StartUp, Outcome::Failed, millis(took));
            self.failed(Attempt { at, trigger, outcome, duration_ms, error: Some(text), hints }, failures);
            if !self.pause(self.sync.pace.init_backoff.delay(failures)) {
                return Ok(None);
            }
        }
    }

    /// Returns true if opening is tried again after this error, as often as `--init-max-failures` allows.
    fn may_retry(&self, error: &Error) -> bool {
        error.is_full() || self.personality == Personality::GitSync && error.is_obstacle()
    }

    /// Shows and counts a failure, as one of an attempt would be. What is known of the root stays.
    fn failed(&self, failure: Attempt, failures: u32) {
        self.metrics.error("repair", "transient");
        self.metrics.consecutive_failures.set(failures.into());
        self.status.send_modify(|status| {
            status.starting.clone_from(&failure.error);
            status.consecutive_failures = failures.into();
            status.failing_since.get_or_insert_with(Timestamp::now);
            status.last_failure = Some(failure);
        });
    }

    /// Ends a series of failures: the first attempt may take long, and must not look like one that failed.
    fn recovered(&self) {
        self.metrics.consecutive_failures.set(0);
        self.status.send_modify(|status| {
            status.consecutive_failures = 0;
            status.failing_since = None;
        });
    }

    /// Waits; returns false if the process was asked to end.
    fn pause(&self, time: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < time {
            std::thread::sleep(LOCK_PAUSE.min(time));
            if self.draining.is_cancelled() {
                return false;
            }
        }
        true
    }

    /// Shows what is known of the opened root until its sync runs: what is published, and when an attempt for `remote`
    /// last succeeded. Opening the mirrors may take long, or fail for as long as their volume is full.
    pub(super) fn show_root(&self, store: &Store, remote: String) {
        let status = recorded_status(self.sync, store, remote);
        self.metrics.succeeded(status.last_success.map(seconds));
        self.status.send_replace(status);
    }

    /// Opens the root, waiting for its lock for up to `wait`. `None` means that the process was asked to end meanwhile.
    pub(super) fn root(
        &self,
        options: store::Options,
        wait: Duration,
    ) -> Result<Option<(Store, store::Recovered)>, Error> {
        let began = Instant::now();
        let mut logged = false;
        loop {
            match Store::open(options.clone()) {
                Err(error @ store::Error::Locked { .. }) if began.elapsed() < wait => {
                    if !std::mem::replace(&mut logged, true) {
                        info!("{error}: waiting");
                        self.status.send_replace(starting(error.to_string()));
                    }
                    if !self.pause(LOCK_PAUSE) {
                        return Ok(None);
                    }
                }
                opened => return Ok(Some(opened?)),
            }
        }
    }
}

/// The status of an opened root before its sync runs, from the root's records.
fn recorded_status(options: &sync::Options, store: &Store, remote: String) -> Status {
    let before = store.status();
    let recorded = before.as_ref().and_then(|before| before.current.clone());
    let current = store.current().map(|record| generation_status(record, recorded));
    // As the sync will find it.
    let (last_success, _) = options.known_success(before, store.current(), &remote);
    Status {
        ready: store.is_trusted(&clock::now()),
        remote,
        ref_name: options.ref_name.clone(),
        root: options.root.display().to_string(),
        last_answer: LastAnswer::not_yet(),
        current,
        last_success,
        ..starting("the mirror is being opened".to_owned())
    }
}

/// The current generation in the status. Its commit is the one last recorded, if that was of the same revision.
fn generation_status(record: &GenerationRecord, before: Option<GenerationStatus>) -> GenerationStatus {
    let before =
        before.filter(|before| before.name == record.name && before.revision == record.known_revision());
    GenerationStatus {
        name: record.name.clone(),
        revision: record.known_revision(),
        commit: before.and_then(|before| before.commit),
        entries: record.entries,
        bytes: record.bytes,
        published: record.published,
        retired: None,
        pinned: false,
        holders: Vec::new(),
        reason: "current".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::app::tests::store_options;
    use crate::mirror;
    use crate::payload::testing::{Blobs, payload, tree};
    use crate::payload::{Kind, Rules};
    use crate::phase::machine::{FailureLimits, Timing};
    use crate::retry::Backoff;

    /// A root with a generation, whose writer has recorded a success for the remote `r`.
    fn published(root: &Path, success: Timestamp) -> Store {
        let (mut store, _) = Store::open(store_options(root)).unwrap();
        let files = tree(&[("a", Kind::File, "1")]);
        let all = payload(&files, Rules::default()).unwrap();
        let staged = store.stage(&all, "all", &Blobs::of(&[&files]), &CancellationToken::new()).unwrap();
        store.publish(staged, &clock::now()).unwrap();
        let (remote, ref_name) = ("r".to_owned(), "main".to_owned());
        let recorded = Status { remote, ref_name, last_success: Some(success), ..Status::default() };
        store.write_status(&serde_json::to_vec(&recorded).unwrap()).unwrap();
        store
    }

    fn options(root: &Path) -> sync::Options {
        let second = Duration::from_secs(1);
        let backoff = Backoff { first: Duration::ZERO, ceiling: Duration::ZERO };
        sync::Options {
            ref_name: "main".to_owned(),
            root: root.to_owned(),
            limits: Default::default(),
            symlinks: Default::default(),
            path: None,
            sparse_file: None,
            group_write: false,
            spare: false,
            pace: Timing {
                period: second,
                init_period: second,
                min_interval: second,
                backoff,
                init_backoff: backoff,
                jitter: 0.0,
            },
            failure_limits: FailureLimits { failures: None, init_failures: Some(3) },
            sync_timeout: second,
            one_time: false,
            park: false,
            every_failure: false,
            touch_file: None,
            error_file: None,
        }
    }

    #[test]
    fn what_is_published_and_has_succeeded_is_shown_while_the_mirror_has_no_room() {
        let root = tempfile::tempdir().unwrap();
        let success = Timestamp::from_second(1_000_000_000).unwrap();
        let store = published(root.path(), success);
        let (draining, metrics) = (CancellationToken::new(), Metrics::default());
        let (status, shown) = watch::channel(starting("the root is being opened".to_owned()));
        let options = options(root.path());
        let opening = Opening {
            personality: Personality::Treeswap,
            sync: &options,
            draining: &draining,
            status: &status,
            metrics: &metrics,
        };
        metrics.never_succeeded.set(1);
        opening.show_root(&store, "another".to_owned());
        assert_eq!((shown.borrow().last_success, metrics.never_succeeded.get()), (None, 1));
        opening.show_root(&store, "r".to_owned());
        let full = || -> Result<(), Error> {
            let source = std::io::ErrorKind::StorageFull.into();
            Err(mirror::Error::Local { act: "make the mirror", path: "m".into(), source }.into())
        };
        opening.retry(full).unwrap_err();
        let shown = shown.borrow();
        assert!(shown.ready, "a probe of its readiness takes the application out of service");
        assert_eq!(shown.current.as_ref().map(|one| &one.name), store.current().map(|record| &record.name));
        assert_eq!((shown.last_success, metrics.never_succeeded.get()), (Some(success), 0));
        assert_eq!(shown.silent_for(Duration::from_secs(60), &clock::now()), None, "it was not asked yet");
        assert!(shown.is_alive());
        let error = shown.last_failure.as_ref().and_then(|failure| failure.error.as_deref()).unwrap();
        assert!(error.contains("make the mirror"), "{error}");
        assert_eq!((shown.consecutive_failures, shown.starting.as_deref()), (2, Some(error)));
    }
}
