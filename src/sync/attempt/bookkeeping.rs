//! Logging and counting of reaped generations and of failures that do not fail the attempt, and commit metadata for the
//! status.

use std::collections::BTreeMap;

use tracing::{debug, info, warn};

use super::Worker;
use crate::generation::Name;
use crate::human::one_line;
use crate::revision::Revision;
use crate::sync::error::Error;

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
            // That is why it failed, and the attempts report it already.
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
        let objects = self.objects().await;
        let read = move || new.into_iter().map(|revision| (revision, objects.describe(revision))).collect();
        let read: Vec<_> = tokio::task::spawn_blocking(read).await.unwrap_or_default();
        self.view.commits.extend(read);
    }
}
