//! The spare is prepared in the background: from a retired generation and what changed since, or as a copy. A
//! publication waits for a retired generation that is being carried forward, as it would have to do the same itself. It
//! does not wait for a copy, and writes its generation in full.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::bounds::Bounds;
use super::error::Error;
use super::staging::is_small;
use crate::human::one_line;
use crate::mirror::{self, Objects, Selection};
use crate::revision::Revision;
use crate::store::SpareTask;
use crate::telemetry::metrics::Metrics;

/// How long a preparation is waited for that was asked to end: it looks at every entry whether to go on.
const GIVE_WAY: Duration = Duration::from_secs(10);

/// Makes the spare, and says how; nothing where there is no room for any. `carried` is dropped once no retired generation
/// is being carried forward.
fn prepare(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    carried: oneshot::Sender<()>,
    cancel: &CancellationToken,
) -> Result<Option<&'static str>, Error> {
    if recycle(task, objects, revision, wanted, cancel)? {
        return Ok(Some("a retired generation, carried forward"));
    }
    drop(carried);
    if !task.may_copy() {
        task.give_up()?;
        return Ok(None);
    }
    task.run(&objects.payload(revision, wanted)?, objects.blobs().as_ref(), cancel)?;
    Ok(Some("a copy"))
}

/// Makes the spare from a retired generation, if one waits that will do. `revision` has the tree of the current one.
pub(super) fn recycle(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    cancel: &CancellationToken,
) -> Result<bool, Error> {
    // Links that did not change may lead elsewhere where sources are placed otherwise.
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

/// The one preparation that may run.
#[derive(Debug, Default)]
pub(super) struct SpareWork(Option<Preparation>);

#[derive(Debug)]
struct Preparation {
    cancel: CancellationToken,
    /// Answers, with an error, once no retired generation is being carried forward.
    carried: oneshot::Receiver<()>,
    ended: JoinHandle<()>,
}

impl SpareWork {
    /// Starts a preparation; one that still runs is for a generation that is no longer current, and ends.
    /// `revision` has the tree of the current generation.
    pub(super) fn start(
        &mut self,
        task: SpareTask,
        objects: Objects,
        revision: Revision,
        wanted: Selection,
        metrics: Metrics,
    ) {
        self.stop();
        let cancel = CancellationToken::new();
        let until = cancel.clone();
        let (carrying, carried) = oneshot::channel();
        let work = move || {
            let began = Instant::now();
            let how = prepare(&task, &objects.until(&until), revision, &wanted, carrying, &until)?;
            Ok::<_, Error>((how, began.elapsed()))
        };
        let ended = tokio::spawn(async move {
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok((None, _))) => debug!("no spare: there is no room for a copy"),
                Ok(Ok((Some(how), took))) => {
                    debug!(duration_ms = took.as_millis() as u64, %revision, how, "the spare is ready");
                }
                Ok(Err(error)) if error.is_cancelled() => debug!("the spare gave way"),
                Ok(Err(error)) => {
                    metrics.error("spare", error.class());
                    warn!(error = one_line(&error), "no spare: the next generation will be written in full");
                }
                Err(_) => metrics.error("spare", "permanent"),
            }
        });
        self.0 = Some(Preparation { cancel, carried, ended });
    }

    /// Asks a preparation that runs to end.
    pub(super) fn stop(&mut self) {
        if let Some(running) = self.0.take() {
            running.cancel.cancel();
        }
    }

    /// Waits while a retired generation is being carried forward, within the bounds of the attempt.
    pub(super) async fn carried(&mut self, bounds: &Bounds) {
        if let Some(running) = &mut self.0 {
            tokio::select! {
                _ = &mut running.carried => {}
                () = bounds.draining.cancelled() => {}
                () = tokio::time::sleep_until(bounds.deadline) => {}
                () = tokio::time::sleep(GIVE_WAY) => {}
            }
        }
    }

    /// Asks it to end, and waits for that: two payloads at once would be twice the memory. A copy that is not ready is of
    /// no use to the generation that is to be written now.
    pub(super) async fn stop_and_wait(&mut self) {
        if let Some(Preparation { cancel, ended, .. }) = self.0.take() {
            cancel.cancel();
            // How it ended is on record. A disk that hangs meets the attempt's own deadline.
            let _ = tokio::time::timeout(GIVE_WAY, ended).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> (SpareWork, oneshot::Sender<()>, CancellationToken) {
        let (carrying, carried) = oneshot::channel();
        let cancel = CancellationToken::new();
        let until = cancel.clone();
        let ended = tokio::spawn(async move { until.cancelled().await });
        (SpareWork(Some(Preparation { cancel: cancel.clone(), carried, ended })), carrying, cancel)
    }

    #[tokio::test(start_paused = true)]
    async fn a_publication_waits_for_what_is_carried_forward_and_for_no_copy() {
        let bounds = Bounds::new(Duration::from_secs(60), CancellationToken::new());
        let (mut spare, carrying, cancel) = running();
        let began = tokio::time::Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(carrying); // a copy begins
        });
        spare.carried(&bounds).await;
        assert_eq!(began.elapsed().as_secs(), 3);
        assert!(!cancel.is_cancelled());
        spare.stop_and_wait().await;
        assert!(cancel.is_cancelled());
        assert_eq!(began.elapsed().as_secs(), 3, "the copy gave way");
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_within_bounds() {
        let waited = async |limit: u64, is_draining: bool| {
            let (mut spare, _carrying, _) = running();
            let draining = CancellationToken::new();
            if is_draining {
                draining.cancel();
            }
            let began = tokio::time::Instant::now();
            spare.carried(&Bounds::new(Duration::from_secs(limit), draining)).await;
            began.elapsed().as_secs()
        };
        assert_eq!(waited(60, false).await, GIVE_WAY.as_secs());
        assert_eq!(waited(4, false).await, 4, "an attempt's own deadline");
        assert_eq!(waited(60, true).await, 0, "the process is to end");
    }
}
