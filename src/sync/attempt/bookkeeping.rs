//! Logging and counting of reaped generations and of failures that do not fail the attempt; commit metadata and the
//! state of several sources for the status.

use std::collections::BTreeMap;
use std::path::Path;

use tracing::{debug, info, warn};

use super::{Bounds, Done, Worker};
use crate::generation::Name;
use crate::human::one_line;
use crate::revision::Revision;
use crate::sources::{SetError, Upstream};
use crate::sync::error::Error;

/// The bytes that the mirrors take in the root; 0 if they are elsewhere. Blocking.
pub(super) fn bytes_within(root: &Path, upstream: &Upstream) -> u64 {
    if upstream.dir().starts_with(root) { upstream.disk_bytes() } else { 0 }
}

impl Worker {
    /// Logs and counts generations that were removed. `evicted` has the reason of those that a reader had pinned.
    pub(super) fn note_reaped<'n>(
        &self,
        names: impl IntoIterator<Item = &'n Name>,
        evicted: &BTreeMap<Name, String>,
    ) {
        for name in names {
            self.metrics.reaped.inc();
            match evicted.get(name) {
                Some(why) => {
                    self.metrics.evictions.inc();
                    warn!(generation = %name, "evicted {name}, which a reader has pinned: it was {why}");
                }
                None => info!(generation = %name, "reaped {name}"),
            }
        }
    }

    /// Logs and counts a failure of a secondary step, which does not fail the attempt.
    pub(super) fn log_nonfatal(&self, what: &'static str, error: &Error) {
        if matches!(error, Error::Interrupted) {
            return;
        }
        self.metrics.error(what, error.class().label());
        if self.root_missing {
            // The missing root is the cause, which the attempts report already.
            debug!(error = one_line(error), "{what} failed: the root is not there any more");
        } else {
            warn!(error = one_line(error), "{what} failed; what is published is not affected");
        }
    }

    /// Reads the commit metadata of generations for which that has not been done yet.
    pub(super) async fn describe(&mut self) {
        let known = self.view.generations.iter().filter(|record| record.is_known());
        let revisions: Vec<Revision> = known.map(|record| record.revision).collect();
        self.view.commits.retain(|revision, _| revisions.contains(revision));
        let new = revisions.into_iter().filter(|revision| !self.view.commits.contains_key(revision));
        let new: Vec<Revision> = new.collect();
        if new.is_empty() {
            return;
        }
        let objects = self.objects.clone();
        let read = move || new.into_iter().map(|revision| (revision, objects.describe(revision))).collect();
        let read: Vec<_> = tokio::task::spawn_blocking(read).await.unwrap_or_default();
        self.view.commits.extend(read);
    }

    /// Counts the mirror's bytes if anything was received since they were last counted: in this attempt, or by a poll
    /// of a source that outlasted an earlier one. After a publication housekeeping counts them.
    pub(super) async fn count_mirror(&mut self, bounds: &Bounds) {
        let received = self.received.bytes();
        if received == self.counted_received {
            return;
        }
        let Ok(upstream) = self.upstream(bounds, bounds.stage()).await else { return };
        let root = self.root.clone();
        let counted = tokio::task::spawn_blocking(move || bytes_within(&root, &upstream)).await;
        if let Ok(bytes) = counted {
            self.view.mirror_bytes = Some(bytes);
            self.counted_received = received;
        }
    }

    /// Updates the view of several sources after an attempt, and returns whether one was reached. If a delivery holds
    /// the upstream until the attempt is out of bounds, the next attempt does it, and counts the failures of both. If
    /// the mirror of a source that was removed is not needed any more, housekeeping is due: no fetch may lead to it.
    pub(super) async fn look_at_sources(
        &mut self,
        bounds: &Bounds,
        followed: &Result<Done, Error>,
    ) -> Result<bool, SetError> {
        let Ok(mut upstream) = self.upstream(bounds, bounds.stage()).await else { return Ok(true) };
        if followed.is_ok() {
            upstream.clear_suspects();
            self.housekeeping_due |= upstream.may_remove_mirrors(&self.kept_revisions());
        }
        self.view.sources = upstream.source_statuses(self.view.revision(), followed.is_err());
        self.view.source_failures = upstream.take_failures();
        upstream.poll_outcome()
    }
}
