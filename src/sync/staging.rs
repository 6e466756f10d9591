//! Staging: applies a delta to the spare where possible, and otherwise writes the whole payload.
//!
//! If no spare is ready, one of hard links is made first: that takes less time than writing all files. It happens when
//! a commit follows the last one closely, or while the spare waits for a grace period to end.

use std::sync::Once;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::error::Error;
use crate::human::one_line;
use crate::mirror::{self, Objects, Selection};
use crate::payload::{Delta, Kind};
use crate::revision::Revision;
use crate::store::{self, Store};

/// One thread applies a delta, but several write a whole payload. If more than one entry in this many changes, writing
/// the whole payload is faster.
const FEW_OF: u64 = 4;
/// A delta of at most this many entries is always applied.
const FEW: u64 = 1_000;

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
    /// Used up by the line that submodules are published as empty directories. `None`: they are not.
    pub(super) no_submodules: Option<&'a Once>,
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
        {
            let stage = |store: &mut Store| {
                store.stage_delta(&delta, &self.choice.digest, blobs.as_ref(), self.cancel)
            };
            if let Some(staged) = stage(store)? {
                return Ok(staged);
            }
            if self.may_link
                && self.link(store)?
                && let Some(staged) = stage(store)?
            {
                return Ok(staged);
            }
        }
        let payload = self.objects.payload(revision, &self.choice.wanted)?;
        let module = payload.entries.iter().find(|entry| entry.kind == Kind::Submodule);
        if let (Some(once), Some(module)) = (self.no_submodules, module) {
            // Who comes from git-sync, where they are on by default, would look for the reason elsewhere.
            let path = crate::payload::escaped(&payload.path_of(module));
            once.call_once(|| {
                info!(
                    "submodules are off, so {path} is an empty directory, and so is every other one: \
                     --submodules=recursive publishes their content"
                );
            });
        }
        Ok(store.stage(&payload, &self.choice.digest, blobs.as_ref(), self.cancel)?)
    }

    /// Makes a spare of hard links. Returns false if that is not possible.
    fn link(&self, store: &Store) -> Result<bool, Error> {
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
    delta.written.len() as u64 <= (entries / FEW_OF).max(FEW)
}
