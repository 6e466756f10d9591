//! Stages a revision: if little changed, by applying the changes to the spare, otherwise in full.
//!
//! If no spare is ready (a commit follows the last one closely, or the spare waits for a grace period to end), one of
//! hard links is made first, which takes less time than writing all files.

use std::sync::Once;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::error::Error;
use crate::human::one_line;
use crate::mirror::{self, Objects, Selection};
use crate::payload::{BlobSource, Delta, Kind, escaped};
use crate::revision::Revision;
use crate::store::{self, Store};

/// One thread applies a delta, but several write a whole payload. A delta is small if it writes at most one entry in this
/// many.
const SMALL_FRACTION: u64 = 4;
/// A delta of at most this many entries is always small.
const ALWAYS_SMALL: u64 = 1_000;

/// The selection of an attempt: everything that shapes a payload besides the tree, read once per attempt.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Identifies the selection in generation records.
    pub(super) digest: String,
    pub(super) wanted: Selection,
}

/// The inputs of staging besides the store.
pub(super) struct Job<'a> {
    pub(super) objects: &'a Objects,
    pub(super) choice: &'a Choice,
    /// False if the disk is so slow that hard links take too long.
    pub(super) may_link: bool,
    pub(super) cancel: &'a CancellationToken,
    /// Set if submodules are off: makes the log say so at most once per process.
    pub(super) submodules_off_logged: Option<&'a Once>,
}

impl Job<'_> {
    /// Stages `revision`. With a `base`, which has the current generation's tree, only what differs is written if that
    /// is little and there is a spare.
    pub(super) fn stage(
        &self,
        store: &mut Store,
        revision: Revision,
        base: Option<mirror::Base>,
    ) -> Result<store::Staged, Error> {
        let blobs = self.objects.blobs();
        if let Some(base) = base
            && let Some(delta) = self.objects.delta(base, revision, &self.choice.wanted)?
            && is_small(&delta, base.entries)
            && let Some(staged) = self.stage_delta(store, &delta, blobs.as_ref())?
        {
            let module = delta.written.iter().find(|entry| entry.kind == Kind::Submodule);
            self.log_submodules_off(module.map(|entry| &*entry.path));
            return Ok(staged);
        }
        let payload = self.objects.payload(revision, &self.choice.wanted)?;
        let module = payload.entries.iter().find(|entry| entry.kind == Kind::Submodule);
        let path = module.map(|entry| payload.path_of(entry));
        self.log_submodules_off(path.as_deref());
        Ok(store.stage(&payload, &self.choice.digest, blobs.as_ref(), self.cancel)?)
    }

    /// Applies a delta to the spare. Returns `None` if there is none.
    fn stage_delta(
        &self,
        store: &mut Store,
        delta: &Delta,
        blobs: &dyn BlobSource,
    ) -> Result<Option<store::Staged>, Error> {
        let digest = &self.choice.digest;
        let staged = store.stage_delta(delta, digest, blobs, self.cancel)?;
        if staged.is_none() && self.may_link && self.make_linked_spare(store)? {
            return Ok(store.stage_delta(delta, digest, blobs, self.cancel)?);
        }
        Ok(staged)
    }

    /// Logs, once per process, that a submodule is published as an empty directory.
    fn log_submodules_off(&self, module: Option<&[u8]>) {
        if let (Some(once), Some(path)) = (self.submodules_off_logged, module) {
            // git-sync publishes submodules by default, so its users expect content here.
            once.call_once(|| {
                info!(
                    "submodules are off, so {} is an empty directory, and so is every other one: \
                     --submodules=recursive publishes their content",
                    escaped(path)
                );
            });
        }
    }

    /// Makes a spare of hard links. Returns false if that is not possible.
    fn make_linked_spare(&self, store: &Store) -> Result<bool, Error> {
        let Some(task) = store.spare_task().filter(store::SpareTask::links) else { return Ok(false) };
        match task.link(self.cancel).map_err(Error::from) {
            Err(error) if !error.is_cancelled() => {
                debug!(error = one_line(&error), "no hard links: the generation is written in full");
                Ok(false)
            }
            linked => linked,
        }
    }
}

/// Returns true if applying the delta is faster than writing the whole payload of about `entries` entries.
pub(super) fn is_small(delta: &Delta, entries: u64) -> bool {
    delta.written.len() as u64 <= (entries / SMALL_FRACTION).max(ALWAYS_SMALL)
}
