//! State of the tree in the spare's slot: a retired generation waiting to be carried forward, or a spare with stamps, and
//! how such a spare is used. [`super::recycle`] moves generations into the slot
//! and carries them forward.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::carry::{DeltaWrite, carry_forward};
use super::durable::Unsynced;
use super::journal::Stamp;
use super::stage::{WriteOptions, io_error};
use super::staging_dir::StagingDir;
use super::stamps::{self, Stamps};
use super::{Error, spare};
use crate::fsx;
use crate::generation::GenerationRecord;
use crate::human::one_line;
use crate::payload::{BlobSource, Delta};
use crate::revision::{ObjectId, Revision};

/// The name of a retired generation in the spare's slot.
pub(super) const RETIRED: &str = "retired";

/// A retired generation that waits to be carried forward.
#[derive(Debug)]
pub(super) struct RetiredGeneration {
    pub(super) record: GenerationRecord,
    pub(super) stamps: Stamps,
    /// The handle that holds its exclusive lock, so that no reader can pin it any more.
    pub(super) _lock: OwnedFd,
}

/// How long a check of the spare's directories remains valid: it is done during a fetch, ahead of the spare's use.
const CHECK_VALID_FOR: Duration = Duration::from_secs(2);

/// The tree of a retired generation: the base of a delta to the current one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetiredTree {
    /// Its revision.
    pub revision: Revision,
    /// The object id of its tree.
    pub tree: ObjectId,
    /// Number of files, symlinks and directories in it.
    pub entries: u64,
    /// Sum of its files' sizes, in bytes.
    pub bytes: u64,
}

impl RetiredGeneration {
    fn tree(&self) -> RetiredTree {
        let GenerationRecord { revision, tree, entries, bytes, .. } = self.record;
        RetiredTree { revision, tree, entries, bytes }
    }
}

/// A spare with stamps, ready to use.
#[derive(Debug)]
pub(super) struct ReadyTree {
    pub(super) stamps: Stamps,
    /// When its directories were last checked for foreign writes. `None` if not since it was made.
    pub(super) checked_at: Option<Instant>,
    /// True if its directories are new, so that no reader can have them open and they may be changed in place.
    pub(super) is_new: bool,
}

/// The tree with stamps in the spare's slot.
#[derive(Debug)]
pub(super) enum SlotTree {
    /// A retired generation as it was reaped, under the name [`RETIRED`].
    Waiting(Box<RetiredGeneration>),
    /// The spare: carried forward to the current generation, made of hard links to its files, or a copy of it.
    Ready(ReadyTree),
}

/// The slot's knowledge of the tree with stamps in it, if there is one. The directory itself is guarded by the slot's
/// lock.
#[derive(Debug, Default)]
pub(super) struct SlotState {
    tree: Mutex<Option<SlotTree>>,
    /// The stamps that the latest task to fill the slot was made with, as long as it exists.
    wanted: Mutex<Weak<Stamps>>,
}

impl SlotState {
    pub(super) fn tree(&self) -> MutexGuard<'_, Option<SlotTree>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, Weak<Stamps>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of a generation's stamps for a task. While it exists, the journal keeps what it needs.
    pub(super) fn keep_for_task(&self, stamps: &Stamps) -> Arc<Stamps> {
        let stamps = Arc::new(stamps.clone());
        *self.wanted() = Arc::downgrade(&stamps);
        stamps
    }

    /// The retired generation that waits to be carried forward, if any.
    pub(super) fn waiting(&self) -> Option<RetiredTree> {
        self.waiting_if(|_| true)
    }

    /// Like [`SlotState::waiting`], if it has this selection. With another selection the same tree has other files.
    pub(super) fn waiting_of(&self, selection: &str) -> Option<RetiredTree> {
        self.waiting_if(|record| record.selection_digest == selection)
    }

    fn waiting_if(&self, fits: impl FnOnce(&GenerationRecord) -> bool) -> Option<RetiredTree> {
        match &*self.tree() {
            Some(SlotTree::Waiting(retired)) if fits(&retired.record) => Some(retired.tree()),
            _ => None,
        }
    }

    /// Returns true if a spare with stamps is ready and its stamps are still valid.
    pub(super) fn is_ready(&self) -> bool {
        matches!(&*self.tree(), Some(SlotTree::Ready(ready)) if !ready.stamps.clock_was_set())
    }

    /// The earliest time since which the stamps of the tree, or of a task to make one, need the journal.
    pub(super) fn earliest(&self) -> Option<Stamp> {
        let wanted = self.wanted().upgrade().map(|stamps| stamps.since());
        let there = match &*self.tree() {
            Some(SlotTree::Waiting(retired)) => Some(retired.stamps.since()),
            Some(SlotTree::Ready(ready)) => Some(ready.stamps.since()),
            None => None,
        };
        wanted.into_iter().chain(there).min()
    }

    /// Records that the slot is empty.
    pub(super) fn clear(&self) {
        *self.tree() = None;
    }
}

/// A spare with stamps that was taken out of its slot into staging.
pub(super) struct StampedSpare {
    pub(super) old: StagingDir,
    pub(super) top: OwnedFd,
    pub(super) ready: ReadyTree,
}

impl StampedSpare {
    /// Carries it forward to the delta's revision, as `name` in staging. `None` if it has a foreign write or carrying
    /// it failed; the caller then writes the revision in full.
    pub(super) fn carry_forward(
        self,
        name: &str,
        delta: &Delta,
        blobs: &dyn BlobSource,
        options: &WriteOptions,
        cancel: &CancellationToken,
    ) -> Result<Option<(OwnedFd, Unsynced, Stamps)>, Error> {
        let Self { old, top, ready: ReadyTree { mut stamps, checked_at, is_new } } = self;
        let changed = match checked_at {
            Some(at) if at.elapsed() < CHECK_VALID_FOR => Ok(None),
            _ => stamps.check_directories(&top, cancel),
        };
        stamps.forget_directories(); // so that carrying forward need not update them
        stamps.begin_age();
        let carried = changed.and_then(|changed| match changed {
            Some(path) => Err(stamps::foreign_write_error(path)),
            None if is_new => {
                let unsynced = spare::apply(&top, delta, blobs, options, Some(&mut stamps), cancel)?;
                fsx::rename_new(old.staging(), &old.name, old.staging(), name)
                    .map_err(io_error("rename the spare to", name.as_bytes()))?;
                old.mark_moved();
                Ok((top, unsynced))
            }
            None => {
                let write = DeltaWrite { delta, blobs, shared: None, options };
                carry_forward(&top, old.staging(), name, &write, &mut stamps, cancel)
            }
        });
        match carried {
            Ok((top, unsynced)) => {
                stamps.forget_directories(); // the next scan of the whole tree collects all of them
                Ok(Some((top, unsynced, stamps)))
            }
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(error) => {
                tracing::info!(error = one_line(&error), "the spare cannot be used");
                Ok(None)
            }
        }
    }
}

/// Logs why a retired generation cannot be recycled.
pub(super) fn log_not_recycled(error: &Error) {
    tracing::info!(error = one_line(error), "a retired generation cannot be recycled");
}
