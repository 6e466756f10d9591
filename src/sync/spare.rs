//! The spare is prepared in the background: from a retired generation and what changed since, or as a copy. A
//! publication that comes before it is ready writes its generation in full.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::error::Error;
use super::staging::is_small;
use crate::human::one_line;
use crate::mirror::{self, Objects, Selection};
use crate::revision::Revision;
use crate::store::SpareTask;
use crate::telemetry::metrics::Metrics;

/// How long a preparation is waited for that was asked to end: it looks at every entry whether to go on.
const GIVE_WAY: Duration = Duration::from_secs(10);

/// Makes the spare, and says how; nothing where there is no room for any.
fn prepare(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    cancel: &CancellationToken,
) -> Result<Option<&'static str>, Error> {
    if recycle(task, objects, revision, wanted, cancel)? {
        return Ok(Some("a retired generation, carried forward"));
    }
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
pub(super) struct SpareWork(Option<(CancellationToken, JoinHandle<()>)>);

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
        let work = move || {
            let began = Instant::now();
            let how = prepare(&task, &objects.until(&until), revision, &wanted, &until)?;
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
        self.0 = Some((cancel, ended));
    }

    /// Asks a preparation that runs to end.
    pub(super) fn stop(&mut self) {
        if let Some((cancel, _)) = self.0.take() {
            cancel.cancel();
        }
    }

    /// The same, and waits for its end: two payloads at once would be twice the memory. One that is not ready is of no
    /// use to the generation that is to be written now.
    pub(super) async fn stop_and_wait(&mut self) {
        if let Some((cancel, ended)) = self.0.take() {
            cancel.cancel();
            // How it ended is on record. A disk that hangs meets the attempt's own deadline.
            let _ = tokio::time::timeout(GIVE_WAY, ended).await;
        }
    }
}
