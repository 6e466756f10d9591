//! Prepares the spare in the background: by recycling a retired generation, by hard links, or by a copy.
//!
//! A publication that comes meanwhile waits for a retired generation that is being carried forward, which it would
//! otherwise have to do itself, and for links, which cost less than writing the files. It does not wait for a copy:
//! that is cancelled, and the publication writes its generation in full. After a wait for links that was in vain,
//! publications do not wait for links until one finds them ready: a slow disk would delay every commit.
//!
//! A spare is prepared after each publication, and after an attempt that failed and may have used it up. If after
//! failed attempts the preparation fails as well, or always takes so long that the next attempt cancels it, it is begun
//! ever less often ([`Failures`]): otherwise the disk would never be idle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::bounds::Bounds;
use super::error::Error;
use super::staging::is_small;
use crate::clock;
use crate::generation::Name;
use crate::human::one_line;
use crate::mirror::{self, Objects, Selection};
use crate::payload::{BlobSource, Payload};
use crate::phase::spare::Failures;
use crate::revision::Revision;
use crate::store::{SpareTask, Store};
use crate::telemetry::metrics::Metrics;

/// How long a publication waits for a preparation to finish, and for a cancelled one to end. Cancellation is checked
/// every few hundred files.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Makes the spare. Returns how it was made, or `None` if there is no room for one. A publication waits until `awaited`
/// is used or dropped.
fn prepare(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    awaited: oneshot::Sender<()>,
    cancel: &CancellationToken,
) -> Result<Option<&'static str>, Error> {
    if recycle(task, objects, revision, wanted, cancel)? {
        return Ok(Some("a retired generation, carried forward"));
    }
    let payload = || Ok(objects.payload(revision, wanted)?);
    make_new(task, payload, objects.blobs().as_ref(), awaited, cancel)
}

/// Makes the spare of hard links or as a copy, and returns which. `awaited` is signalled once links are ready, and dropped
/// before a copy.
fn make_new(
    task: &SpareTask,
    payload: impl FnOnce() -> Result<Payload, Error>,
    blobs: &dyn BlobSource,
    awaited: oneshot::Sender<()>,
    cancel: &CancellationToken,
) -> Result<Option<&'static str>, Error> {
    if task.link(cancel)? {
        let _ = awaited.send(()); // no publication may be waiting
        return Ok(Some("links"));
    }
    drop(awaited);
    if !task.has_room_to_copy() {
        task.discard_retired()?;
        return Ok(None);
    }
    task.copy(&payload()?, blobs, cancel)?;
    Ok(Some("a copy"))
}

/// Makes the spare from a retired generation. Returns false if there is none, or if too much differs between it and
/// `revision`, which has the current generation's tree.
pub(super) fn recycle(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    cancel: &CancellationToken,
) -> Result<bool, Error> {
    // If sources are placed differently, unchanged symbolic links may have other targets: a diff is not enough.
    let is_placed_alike = |other| objects.places(other) == objects.places(revision);
    let Some(retired) = task.retired().filter(|retired| is_placed_alike(retired.revision)) else {
        return Ok(false);
    };
    let base = mirror::Base { tree: retired.tree, entries: retired.entries, bytes: retired.bytes };
    match objects.delta(base, revision, wanted)?.filter(|delta| is_small(delta, base.entries)) {
        Some(delta) => Ok(task.recycle(&delta, objects.blobs().as_ref(), cancel)?),
        None => Ok(false),
    }
}

/// The running preparation, if any, and what earlier ones showed about the disk.
#[derive(Debug, Default)]
pub(super) struct SpareWork {
    running: Option<Preparation>,
    /// True after a publication waited for links in vain, until one finds them ready.
    is_slow: bool,
    /// Preparations that failed, or were begun after a failed attempt and cancelled. A preparation records its end
    /// itself.
    failures: Arc<Mutex<Failures>>,
}

fn lock(failures: &Mutex<Failures>) -> MutexGuard<'_, Failures> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Preparation {
    cancel: CancellationToken,
    /// The generation that the spare will be like.
    generation: Name,
    /// True if it makes hard links.
    links: bool,
    /// Yields a value once links are ready, and an error once there is nothing to wait for.
    awaited: oneshot::Receiver<()>,
    ended: JoinHandle<()>,
}

impl SpareWork {
    /// Starts a preparation for the current generation, whose tree `revision` has. After a failed attempt it does not
    /// if earlier ones failed and it is too early to try again. One that is still running is for a generation that is
    /// no longer current, and is cancelled.
    pub(super) fn start(
        &mut self,
        task: SpareTask,
        objects: Objects,
        revision: Revision,
        wanted: Selection,
        metrics: Metrics,
        is_after_failure: bool,
    ) {
        self.spawn(task, revision, metrics, is_after_failure, move |task, awaited, cancel| {
            prepare(task, &objects.until(cancel), revision, &wanted, awaited, cancel)
        });
    }

    /// Runs `work`, which prepares the spare, on a blocking thread, and logs the result. Does nothing if it is too
    /// early for that after failures.
    fn spawn<F>(
        &mut self,
        task: SpareTask,
        revision: Revision,
        metrics: Metrics,
        is_after_failure: bool,
        work: F,
    ) where
        F: FnOnce(&SpareTask, oneshot::Sender<()>, &CancellationToken) -> Result<Option<&'static str>, Error>
            + Send
            + 'static,
    {
        let generation = task.generation().name.clone();
        let links = task.links();
        // After a success it is begun in any case: that is rare, and the next success would not try again.
        if is_after_failure && lock(&self.failures).must_wait(&generation, clock::monotonic()) {
            let why = "its preparation failed, and is tried again later";
            return debug!(why, "no spare is prepared");
        }
        self.stop();
        let cancel = CancellationToken::new();
        task.begin(&cancel);
        let until = cancel.clone();
        let (ready, awaited) = oneshot::channel();
        let work = move || {
            let began = Instant::now();
            let how = work(&task, ready, &until)?;
            Ok::<_, Error>((how, began.elapsed()))
        };
        let failures = Arc::clone(&self.failures);
        let for_generation = generation.clone();
        let ended = tokio::spawn(async move {
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok((Some(how), took))) => {
                    debug!(duration_ms = took.as_millis() as u64, %revision, how, "the spare is ready");
                    return lock(&failures).clear();
                }
                // Not a failure: finding out cost little, and the next try succeeds as soon as there is room.
                Ok(Ok((None, _))) => return debug!("no spare: there is no room for a copy"),
                Ok(Err(error)) if error.is_cancelled() => {
                    debug!("spare preparation cancelled");
                    if !is_after_failure {
                        return; // a publication came early
                    }
                }
                Ok(Err(error)) => {
                    metrics.error("spare", error.class().label());
                    warn!(error = one_line(&error), "no spare: the next generation will be written in full");
                }
                Err(_) => metrics.error("spare", "permanent"),
            }
            lock(&failures).add(&for_generation, clock::monotonic());
        });
        self.running = Some(Preparation { cancel, generation, links, awaited, ended });
    }

    /// Returns true if a spare of the store's current generation is being prepared.
    pub(super) fn is_preparing(&self, store: &Store) -> bool {
        let Some((running, current)) = self.running.as_ref().zip(store.current()) else { return false };
        running.generation == current.name
            && !running.ended.is_finished()
            && !store.preparation_is_cancelled()
    }

    /// Cancels a running preparation.
    pub(super) fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.cancel.cancel();
        }
    }

    /// Returns true if publications do not wait for links at present.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Waits while a retired generation is being carried forward or links are being made, within the bounds of the
    /// attempt and at most [`MAX_WAIT`].
    pub(super) async fn wait_until_ready(&mut self, bounds: &Bounds) {
        let Some(running) = &mut self.running else { return };
        if running.links && self.is_slow {
            self.is_slow = running.awaited.try_recv().is_err();
            return;
        }
        let in_vain = tokio::select! {
            biased;
            _ = &mut running.awaited => false,
            () = bounds.draining.cancelled() => false, // shutdown does not mean that the disk is slow
            () = tokio::time::sleep_until(bounds.deadline) => true,
            () = tokio::time::sleep(MAX_WAIT) => true,
        };
        if running.links && in_vain {
            debug!(
                "preparing hard links took too long: publications no longer wait for them until a spare is ready in time"
            );
            self.is_slow = true;
        }
    }

    /// Cancels a running preparation and waits for its end: two payloads at once would need twice the memory. A spare
    /// that is not ready is of no use to the publication.
    pub(super) async fn stop_and_wait(&mut self) {
        if let Some(Preparation { cancel, ended, .. }) = self.running.take() {
            cancel.cancel();
            // Its result is logged by its own task. If the disk hangs, the attempt's own deadline applies.
            let _ = tokio::time::timeout(MAX_WAIT, ended).await;
        }
    }
}

#[cfg(test)]
mod tests;
