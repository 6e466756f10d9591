//! What follows a publication and may fail without failing the attempt: the root is repaired, retired generations are
//! reaped, the mirror's garbage is collected (also after a fetch that led to no publication), and the next spare is
//! begun.

use std::time::Duration;

use tracing::{debug, info};

use super::bookkeeping::bytes_within;
use super::{Bounds, Stage, Worker};
use crate::clock;
use crate::mirror;
use crate::repeats::suppressed;
use crate::sync::error::Error;

/// The next spare waits for a generation whose grace period ends this soon, because carrying that generation forward is
/// cheaper than making links. The bounds of "this soon".
const SOON_MIN: Duration = Duration::from_secs(1);
const SOON_MAX: Duration = Duration::from_secs(5);

impl Worker {
    /// Repairs the root, reaps, collects the mirror's garbage, and begins the spare.
    pub(super) async fn repair_reap_and_collect(&mut self, bounds: &Bounds) {
        if let Err(error) = self.repair_root(bounds).await {
            self.log_nonfatal("repair", &error);
        }
        self.housekeeping_due = false;
        self.collect_mirror_garbage(bounds).await;
        if self.options.spare {
            self.begin_spare(bounds, false).await;
        }
    }

    /// The limit of an attempt, and the time in which the mirrors are copied. A failure to measure them is left to
    /// housekeeping, which has it as well.
    pub(super) async fn measured_housekeeping_limit(&self, bounds: &Bounds) -> Duration {
        let measured = async {
            let upstream = self.upstream(bounds, Stage::Housekeep).await?;
            bounds.blocking(Stage::Housekeep, move |_| Ok(upstream.disk_bytes())).await
        };
        mirror::time_limit(bounds.limit, measured.await.unwrap_or(0))
    }

    /// Collects the mirror's garbage, and counts its bytes. If that fails, the next fetch leads to it again.
    pub(super) async fn collect_mirror_garbage(&mut self, bounds: &Bounds) {
        let kept = self.kept_revisions();
        let root = self.root.clone();
        let received = self.received.bytes();
        let before = std::mem::replace(&mut self.collected_received, received);
        let collected = async {
            let mut upstream = self.upstream(bounds, Stage::Housekeep).await?;
            let collect = move |cancel: &_| {
                let result = upstream.housekeep(&kept, cancel);
                if matches!(result, Err(mirror::Error::Cancelled)) {
                    return Err(Error::Mirror(mirror::Error::Cancelled));
                }
                Ok((result, bytes_within(&root, &upstream)))
            };
            bounds.blocking(Stage::Housekeep, collect).await
        };
        match collected.await {
            Ok((result, bytes)) => {
                self.view.mirror_bytes = Some(bytes);
                self.counted_received = received;
                if let Err(error) = result {
                    self.log_nonfatal("housekeep", &error.into());
                }
            }
            Err(error) => {
                if matches!(error, Error::UpstreamInUse { .. }) {
                    self.housekeeping_due = true;
                    self.collected_received = before; // nothing was collected
                }
                self.log_nonfatal("housekeep", &error);
            }
        }
    }

    /// Begins to make the spare in the background, if it is missing and there is room for it. `is_after_failure`: the
    /// last attempt failed.
    pub(super) async fn begin_spare(&mut self, bounds: &Bounds, is_after_failure: bool) {
        let (task, lacks) = {
            let store = self.store().await;
            if self.spare.is_preparing(&store) {
                self.housekeeping_due = true; // look again: it may fail
                return;
            }
            // No commit is published sooner. Without an interval, one may come before links would be made.
            let soon = self.options.pace.min_interval.clamp(SOON_MIN, SOON_MAX);
            if store.awaits_retirement(soon, &clock::now()) {
                self.housekeeping_due = true; // run again once the retirement is recorded
                return;
            }
            (store.spare_task(), store.spare_shortage())
        };
        match lacks.map(|place| format!("there is no room {place} for a spare")) {
            Some(why) => {
                if let Some(times) = self.no_spare.should_log(&why) {
                    let times = suppressed(times);
                    info!("{why}: the next generation will be written in full{times}");
                }
            }
            None => self.no_spare.forget(),
        }
        let Some(task) = task else { return };
        let revision = self.readable.unwrap_or(task.generation().revision);
        match self.choice(bounds).await {
            // The selection changed meanwhile. The next attempt publishes it, and its housekeeping makes the spare.
            Ok(choice) if choice.digest != task.generation().selection_digest => {
                debug!("no spare: the selection of files changed meanwhile");
            }
            Ok(choice) => {
                let objects = self.objects.clone();
                let metrics = self.metrics.clone();
                self.spare.start(task, objects, revision, choice.wanted, metrics, is_after_failure);
            }
            // The next attempt reads them as well, and reports why it cannot.
            Err(_) => debug!("no spare: the sparse patterns cannot be read"),
        }
    }
}
