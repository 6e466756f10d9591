//! Recycling: a retired generation becomes the next spare instead of being deleted.
//!
//! When it would be deleted, it moves to the spare's slot. In the background it is scanned as a whole for foreign
//! writes and carried forward to the current generation's tree; then it is the spare. A publication checks its
//! directories once more and carries it forward to the new revision. Thus an update costs what it changed, not a full
//! copy.
//!
//! Only trees that this process has written and that have no foreign write since are recycled. [`Stamps`] detect
//! that; they are in memory only, so a new process recycles nothing older. A tree in doubt goes to the trash, and a
//! copy is made.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::carry::{DeltaWrite, carry_forward};
use super::durable;
use super::names::SPARE;
use super::reap::RequiredSpace;
use super::retired::{
    RETIRED, ReadyTree, RetiredGeneration, RetiredTree, SlotTree, StampedSpare, log_not_recycled,
};
use super::spare::{self, SpareRecord, TREE};
use super::spare_slot::SpareSlot;
use super::spare_task::SpareTask;
use super::stamps::{self, Paths, Stamps};
use super::{Durability, Error, Spare, Store};
use crate::clock::Now;
use crate::fsx::{self, Lock};
use crate::generation::{GenerationRecord, Lineage};
use crate::payload::{BlobSource, Delta};
use crate::retention::{self, GenerationDecision};
use crate::revision::Revision;

/// How long after the end of its grace period a recyclable generation is awaited. The next attempt retires it, unless
/// something keeps it.
const LATE: Duration = Duration::from_secs(5);

impl SpareSlot {
    fn path(&self, name: &str) -> PathBuf {
        self.handles().private_at(SPARE).join(name)
    }

    /// Deletes the retired generation that waits in the slot, unless the slot is in use.
    pub(super) fn discard_waiting(&self) -> Result<(), Error> {
        match self.try_lock() {
            Some(_busy) if self.state.waiting().is_some() => self.discard(),
            _ => Ok(()),
        }
    }

    /// Returns true if the file system has room for what a delta writes.
    fn has_room_for(&self, delta: &Delta) -> bool {
        let written = RequiredSpace::of_written(delta);
        fsx::space(self.dir()).is_ok_and(|space| {
            written.on_disk(space.block) <= space.bytes
                && space.inodes.is_none_or(|inodes| written.entries <= inodes)
        })
    }

    /// Moves a retired generation from the root into the slot, to be carried forward. Returns false if it was not moved
    /// because the slot is in use or another one waits there.
    fn accept_retired(
        &self,
        home: &OwnedFd,
        retired: RetiredGeneration,
        own: RequiredSpace,
    ) -> Result<bool, Error> {
        let Some(_busy) = self.try_lock() else { return Ok(false) };
        if self.state.waiting().is_some() {
            return Ok(false);
        }
        self.discard()?;
        let name = retired.record.name.as_str();
        fsx::rename_new(home, name, self.dir(), RETIRED)
            .map_err(Error::io("move the generation to", self.path(RETIRED)))?;
        self.set_size(own);
        *self.state.tree() = Some(SlotTree::Waiting(Box::new(retired)));
        Ok(true)
    }

    /// Moves the spare into staging, if it is one with stamps. `None` if it is not.
    pub(super) fn take_stamped(&self) -> Result<Option<StampedSpare>, Error> {
        let tree = self.state.tree().take();
        let ready = match tree {
            Some(SlotTree::Ready(ready)) => ready,
            other => {
                *self.state.tree() = other;
                return Ok(None);
            }
        };
        let old = self.staging_dir();
        let top = spare::take(self.dir().as_fd(), old.staging(), &old.name)?;
        Ok(Some(StampedSpare { old, top, ready }))
    }

    /// Checks the retired generation for foreign writes and carries it forward to the current one. Returns true; a
    /// generation that cannot be used is an error.
    fn recycle(
        &self,
        mut retired: RetiredGeneration,
        current: &GenerationRecord,
        write: &DeltaWrite<'_>,
        durability: Durability,
        cancel: &CancellationToken,
    ) -> Result<bool, Error> {
        let delta = write.delta;
        let top = fsx::open_dir(self.dir(), RETIRED)
            .map_err(Error::io("open the generation at", self.path(RETIRED)))?;
        let slot_dir = self.dir().as_fd();
        match retired.stamps.rescan(&top, slot_dir, Paths::Keep, cancel) {
            Ok(None) => {}
            Ok(Some(path)) => return Err(stamps::foreign_write_error(path)),
            Err(error) => {
                if matches!(error, Error::Cancelled) {
                    *self.state.tree() = Some(SlotTree::Waiting(Box::new(retired))); // unchanged so far
                }
                return Err(error);
            }
        }
        let RetiredGeneration { record, mut stamps, .. } = retired;
        let lineage = lineage(&record, current, delta, write.shared.is_some());
        let (top, unsynced) = carry_forward(&top, slot_dir, TREE, write, &mut stamps, cancel)?;
        durable::make_durable(top.as_fd(), durability, &unsynced)?;
        self.to_trash(RETIRED)?;
        let origin = SpareRecord {
            tree: delta.tree,
            selection_digest: current.selection_digest.clone(),
            bytes: delta.bytes,
            entries: delta.entries,
            lineage,
            stamped: true,
        };
        spare::write_record(slot_dir, &origin)?;
        self.set_size(origin.unshared(current));
        self.set_ready(ReadyTree { stamps, checked_at: None, is_new: false }, cancel)?;
        Ok(true)
    }
}

/// Returns the lineage of a retired generation after it is carried forward to the current one. `is_linked`: new files
/// are hard links to the current generation's.
fn lineage(
    retired: &GenerationRecord,
    current: &GenerationRecord,
    delta: &Delta,
    is_linked: bool,
) -> Option<Lineage> {
    let written = if is_linked { RequiredSpace::default() } else { RequiredSpace::of_written(delta) };
    match (&retired.lineage, &current.lineage) {
        // Unchanged files are the same inodes in both.
        (Some(retired), Some(current)) if retired.first == current.first => {
            Some(current.clone().replacing(written.entries, written.bytes))
        }
        (lineage, _) => Some(spare::lineage_after(lineage.as_ref()?, retired.bytes, delta)),
    }
}

/// A check of the spare's directories for foreign writes, ahead of its use.
#[derive(Debug)]
pub struct SpareCheck(Arc<SpareSlot>);

impl SpareCheck {
    /// Runs the check, unless the slot is in use. A foreign write is reported when the spare is used.
    pub fn run(&self, cancel: &CancellationToken) {
        let Some(_busy) = self.0.try_lock() else { return };
        let mut tree = self.0.state.tree();
        let Some(SlotTree::Ready(ready)) = &mut *tree else { return };
        let top = fsx::open_dir(self.0.dir(), TREE);
        let is_ours = top.is_ok_and(|top| matches!(ready.stamps.check_directories(&top, cancel), Ok(None)));
        ready.checked_at = is_ours.then(Instant::now);
    }
}

impl SpareTask {
    /// The retired generation that waits to be made the spare, if there is one with the right selection.
    pub fn retired(&self) -> Option<RetiredTree> {
        self.slot().state.waiting_of(&self.generation().selection_digest)
    }

    /// Deletes the retired generation that waits, because it cannot be used.
    pub fn discard_retired(&self) -> Result<(), Error> {
        self.slot().discard_waiting()
    }

    /// Carries the retired generation forward to the current one. Returns false if it cannot be used, or if the delta
    /// is between other trees, so that a copy is needed.
    pub fn recycle(
        &self,
        delta: &Delta,
        blobs: &dyn BlobSource,
        cancel: &CancellationToken,
    ) -> Result<bool, Error> {
        let (_busy, cancel) = self.lock_for_preparation(cancel)?;
        let slot = self.slot();
        let current = self.generation();
        let options = self.options();
        // What is written is shared with the current generation by path alone: the delta has to lead to its tree.
        let is_base = |retired: &RetiredGeneration| {
            retired.record.tree == delta.base
                && delta.tree == current.tree
                && retired.record.selection_digest == current.selection_digest
        };
        let tree = slot.state.tree().take();
        let retired = match tree {
            Some(SlotTree::Waiting(retired)) if is_base(&retired) && slot.has_room_for(delta) => *retired,
            other => {
                *slot.state.tree() = other;
                return Ok(false);
            }
        };
        let write_options = options.write_options();
        let carried = self.with_linkable(|shared| {
            let write = DeltaWrite { delta, blobs, shared, options: &write_options };
            slot.recycle(retired, current, &write, options.durability, &cancel)
        });
        match carried {
            Err(Error::Cancelled) if slot.state.waiting().is_some() => Err(Error::Cancelled),
            Err(error) => {
                slot.check_open()?; // a closed slot is emptied by the one that takes its place
                slot.discard()?;
                match error {
                    Error::Cancelled => Err(error),
                    error => {
                        log_not_recycled(&error);
                        Ok(false)
                    }
                }
            }
            done => done,
        }
    }
}

impl Store {
    /// Returns a check of the spare to run while a new revision is fetched. `None` if the spare has no stamps.
    pub fn spare_check(&self) -> Option<SpareCheck> {
        self.spare.state.is_ready().then(|| SpareCheck(Arc::clone(&self.spare)))
    }

    /// The revision of the retired generation that waits in the spare's slot. The mirror must keep its objects.
    pub fn waits_for_recycling(&self) -> Option<Revision> {
        self.spare.state.waiting().map(|tree| tree.revision)
    }

    /// Returns true if a spare is wanted and the grace period of a recyclable generation ends within `soon`, so that no
    /// other spare is worth its making. False if such a generation waits already.
    pub fn awaits_retirement(&self, soon: Duration, now: &Now) -> bool {
        if !self.wants_spare() || self.spare.state.waiting().is_some() {
            return false;
        }
        let grace = self.options.retention.grace;
        self.generations().iter().any(|record| {
            let age = record.retired.as_ref().map(|retired| retention::age(retired, now));
            let is_near = age.is_some_and(|age| age + soon >= grace && age < grace + LATE);
            is_near && self.stamps_of(record, now).is_some()
        })
    }

    /// Returns the stamps of a generation if it may be recycled once its grace period is over.
    fn stamps_of(&self, record: &GenerationRecord, now: &Now) -> Option<&Stamps> {
        let stamps = self
            .stamps
            .of(&record.name)
            .filter(|_| matches!(self.options.spare, Spare::Recycle | Spare::Link))?;
        let grace = self.options.retention.grace;
        let pinned = self.last_pinned.get(&record.name);
        // A reader may go on reading for a moment after it released its pin.
        let is_unread = pinned.is_none_or(|pinned| now.boottime.saturating_sub(*pinned) >= grace);
        let has_selection =
            self.current().is_some_and(|current| current.selection_digest == record.selection_digest);
        let is_synced = record.synced || self.options.durability == Durability::None;
        (is_unread && has_selection && is_synced && !stamps.clock_was_set() && stamps.allow_recycling())
            .then_some(stamps)
    }

    /// Moves a generation that is to be reaped, and that we have locked, into the spare's slot. If it must be deleted
    /// instead, `Err` returns the handle that holds its lock.
    pub(super) fn recycle_one(
        &self,
        decision: &GenerationDecision,
        lock: Lock,
        dir: OwnedFd,
        now: &Now,
    ) -> Result<(), OwnedFd> {
        let is_wanted = lock == Lock::Taken && !decision.early && !decision.evicts && self.wants_spare();
        let record = self.state.record(&decision.name).filter(|_| is_wanted);
        let found = record.and_then(|record| Some((record, self.stamps_of(record, now)?)));
        let (Some((record, stamps)), Ok(copy)) = (found, dir.try_clone()) else { return Err(dir) };
        let retired = RetiredGeneration { record: record.clone(), stamps: stamps.clone(), _lock: copy };
        let own = record.unshared(self.current().and_then(|current| current.lineage.as_ref()));
        match self.spare.accept_retired(&self.handles.generations_dir, retired, own.into()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(dir),
            Err(error) => {
                log_not_recycled(&error);
                Err(dir)
            }
        }
    }
}
