//! Staging: a delta onto the spare where that is possible, else the whole payload.

use tokio_util::sync::CancellationToken;

use super::error::Error;
use crate::mirror::{self, Objects, Selection};
use crate::payload::Delta;
use crate::revision::Revision;
use crate::store::{self, Store};

/// A delta is applied by one thread, a whole payload is written by several: beyond one entry in so many, the whole
/// payload is there sooner.
const FEW_OF: u64 = 4;
/// So many entries are always few.
const FEW: u64 = 1_000;

/// What shapes a payload besides the tree, read once an attempt.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) digest: String,
    pub(super) wanted: Selection,
}

/// What staging needs besides the store.
pub(super) struct Job<'a> {
    pub(super) objects: &'a Objects,
    pub(super) choice: &'a Choice,
    pub(super) cancel: &'a CancellationToken,
}

impl Job<'_> {
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
            && let Some(staged) =
                store.stage_delta(&delta, &self.choice.digest, blobs.as_ref(), self.cancel)?
        {
            return Ok(staged);
        }
        let payload = self.objects.payload(revision, &self.choice.wanted)?;
        Ok(store.stage(&payload, &self.choice.digest, blobs.as_ref(), self.cancel)?)
    }
}

/// Whether a delta to a tree of so many entries is there sooner than the whole payload.
pub(super) fn is_small(delta: &Delta, entries: u64) -> bool {
    delta.written.len() as u64 <= (entries / FEW_OF).max(FEW)
}
