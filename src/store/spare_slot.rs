//! The spare's slot: the directory `..treeswap/spare`, its lock, and the decision whether there is room for a spare.
//!
//! The spare is prepared on a separate thread ([`super::spare_task`]) while the store goes on publishing; the slot's
//! lock keeps the two apart. While a spare is being prepared there is none to use, and a generation is written in full.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::fsx;
use crate::generation::GenerationRecord;
use crate::human::one_line;
use crate::payload::Delta;
use crate::revision::ObjectId;
use crate::store::error::Error;
use crate::store::journal::INODES_MAX;
use crate::store::layout::{RootHandles, open_inner};
use crate::store::names::{PRIVATE, SPARE, SPARE_MODE};
use crate::store::reap::RequiredSpace;
use crate::store::retired::{ReadyTree, SlotState, SlotTree, StampedSpare};
use crate::store::spare::{self, SpareRecord};
use crate::store::stage::check_cancelled;
use crate::store::staging_dir::StagingDir;
use crate::store::stamps::Stamps;
use crate::store::trash::Trash;
use crate::store::{Recovered, Spare, Store};

/// Pause between two tries for the slot's lock.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The most entries of a generation that is hard-linked; a larger one is copied. The journal must hold all of its
/// inodes and have room for further changes.
const LINKED_MAX: u64 = INODES_MAX as u64 * 3 / 4;

/// Where there is no room for a spare, in words that follow "there is no room".
pub(super) const CEILING: &str = "below --max-bytes";

/// The slot, shared by the store and the task that prepares the spare.
#[derive(Debug)]
pub(super) struct SpareSlot {
    handles: Arc<RootHandles>,
    trash: Arc<Trash>,
    dir: OwnedFd,
    /// The slot's lock, held while its directory is changed.
    busy: Mutex<()>,
    /// Cancels the latest preparation.
    preparing: Mutex<CancellationToken>,
    /// Cancelled once another slot takes the place of this one.
    closed: CancellationToken,
    /// Estimated bytes on disk of the spare, or of the one being prepared.
    bytes: AtomicU64,
    /// The state of a tree with stamps in the slot. Empty if the tree is a copy without stamps.
    pub(super) state: SlotState,
}

impl SpareSlot {
    /// Opens the slot. Anything in it goes to the trash: only the process that made a spare uses it. Another one would
    /// not notice what was changed in it meanwhile.
    pub(super) fn open(
        handles: &Arc<RootHandles>,
        trash: &Arc<Trash>,
        found: &mut Recovered,
    ) -> Result<Self, Error> {
        let slot = Self::open_dir(handles, trash, found)?;
        let empty = || slot.discard();
        // A second time, as what is moved aside stays, and a single refusal may have been a passing one.
        match empty().or_else(|error| if error.is_denied() { empty() } else { Err(error) }) {
            // Another user's directory cannot be moved to another parent (rename(2)), but the one that it is in can be
            // renamed.
            Err(error) if error.is_denied() => {
                let to = handles.quarantine(SPARE.as_ref())?;
                let why = one_line(&error);
                found.done.push(format!("moved {PRIVATE}/{SPARE} to {to} beside it: {why}"));
                Self::open_dir(handles, trash, found)
            }
            emptied => emptied.map(|()| slot),
        }
    }

    /// Opens the slot's directory and closes it to others, to whom a mount with an fsGroup opens it.
    fn open_dir(
        handles: &Arc<RootHandles>,
        trash: &Arc<Trash>,
        found: &mut Recovered,
    ) -> Result<Self, Error> {
        let dir = open_inner(&handles.path, &handles.private, SPARE, SPARE_MODE, found)?;
        let _ = fsx::set_mode(&dir, SPARE_MODE); // fails if another user owns it
        Ok(Self {
            handles: Arc::clone(handles),
            trash: Arc::clone(trash),
            dir,
            busy: Mutex::new(()),
            preparing: Mutex::default(),
            closed: CancellationToken::new(),
            bytes: AtomicU64::new(0),
            state: SlotState::default(),
        })
    }

    /// Ends a preparation for good before another slot is opened on the same directory: waits for the end of the one
    /// that runs, and lets none begin. What is in the directory stays, as two threads must not delete the same tree: the
    /// new slot is emptied when it is opened.
    pub(super) fn close(&self) {
        self.closed.cancel();
        let _busy = self.lock(&CancellationToken::new(), || self.preparing().cancel());
        self.state.clear();
    }

    /// Fails with `Cancelled` if the slot was closed.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        check_cancelled(&self.closed)
    }

    /// The slot's directory.
    pub(super) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    pub(super) fn handles(&self) -> &RootHandles {
        &self.handles
    }

    /// Returns a new name in staging.
    pub(super) fn staging_dir(&self) -> StagingDir {
        StagingDir::new(&self.handles, &self.trash)
    }

    /// Sets the size that counts against `--max-bytes`.
    pub(super) fn set_size(&self, spare: RequiredSpace) {
        self.bytes.store(spare.on_disk(self.handles.block), Ordering::Relaxed);
    }

    /// Estimated bytes on disk, which count against `--max-bytes`.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the record of the ready spare, if a generation with this base can be made from it.
    pub(super) fn ready(&self, tree: &ObjectId, selection: &str) -> Option<SpareRecord> {
        let ready = spare::ready(self.dir.as_fd());
        let ready = ready.filter(|record| !record.stamped || self.state.is_ready());
        ready.filter(|record| record.fits(tree, selection))
    }

    /// Moves the spare into staging if it is the delta's base. A copy gets the name `name`. `None` if there is no
    /// such spare or the slot is in use.
    pub(super) fn take(
        &self,
        delta: &Delta,
        selection: &str,
        name: &str,
    ) -> Result<Option<(SpareRecord, TakenSpare)>, Error> {
        let Some(_busy) = self.try_lock() else { return Ok(None) };
        let Some(origin) = self.ready(&delta.base, selection) else { return Ok(None) };
        let taken = match self.take_stamped()? {
            Some(spare) => TakenSpare::Stamped(Box::new(spare)),
            None => TakenSpare::Copy(spare::take(self.dir.as_fd(), self.handles.staging.as_fd(), name)?),
        };
        self.bytes.store(0, Ordering::Relaxed);
        Ok(Some((origin, taken)))
    }

    /// Deletes the spare. Cancels a preparation and waits for it to end.
    pub(super) fn drop_spare(&self, cancel: &CancellationToken) -> Result<(), Error> {
        // Again and again: a preparation that has just taken the lock may not have stored its token yet.
        let _busy = self.lock(cancel, || self.preparing().cancel())?;
        self.discard()
    }

    /// Makes the tree in the slot a spare with stamps, unless the preparation was cancelled: a generation that it shares
    /// files with may be in doubt by now.
    pub(super) fn set_ready(&self, tree: ReadyTree, cancel: &CancellationToken) -> Result<(), Error> {
        let _preparing = self.preparing(); // excludes `discard_shared`
        check_cancelled(cancel)?;
        *self.state.tree() = Some(SlotTree::Ready(tree));
        Ok(())
    }

    /// Discards a spare that may share files with a generation in doubt, or prevents that it becomes ready.
    fn discard_shared(&self) -> Result<(), Error> {
        {
            let preparing = self.preparing(); // excludes `set_ready`
            preparing.cancel();
            self.state.clear(); // nothing is made from a tree without stamps
        }
        match self.try_lock() {
            Some(_busy) => self.discard(),
            None => Ok(()), // the next preparation empties the slot
        }
    }

    pub(super) fn preparing(&self) -> MutexGuard<'_, CancellationToken> {
        self.preparing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the slot's lock without waiting. `None` if it is held.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()), // guards no data in memory
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the slot's lock, calling `while_waiting` as long as somebody else holds it.
    pub(super) fn lock(
        &self,
        cancel: &CancellationToken,
        while_waiting: impl Fn(),
    ) -> Result<MutexGuard<'_, ()>, Error> {
        loop {
            if let Some(guard) = self.try_lock() {
                return Ok(guard);
            }
            while_waiting();
            check_cancelled(cancel)?;
            std::thread::sleep(BUSY_PAUSE); // waiting on the mutex could not be cancelled
        }
    }

    /// Empties the slot. The caller holds the lock, or the slot is not shared yet.
    pub(super) fn discard(&self) -> Result<(), Error> {
        self.bytes.store(0, Ordering::Relaxed);
        self.state.clear();
        // The record goes first, so that an incomplete tree is never taken for a spare.
        self.to_trash(spare::READY)?;
        let listed = fsx::list(&self.dir).map_err(Error::io("list", self.handles.private_at(SPARE)))?;
        listed.iter().try_for_each(|entry| self.to_trash(entry.os()))
    }

    /// Moves one name in the slot to the trash, if it exists.
    pub(super) fn to_trash(&self, name: impl AsRef<OsStr>) -> Result<(), Error> {
        match self.trash.discard(&self.dir, name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("move the spare to the trash in", self.handles.private_at(SPARE))(error))
            }
            _ => Ok(()),
        }
    }
}

/// A spare that was taken out of its slot.
pub(super) enum TakenSpare {
    /// A copy without stamps: no reader could ever reach it, but a foreign write to it goes unnoticed.
    Copy(OwnedFd),
    /// A spare with stamps.
    Stamped(Box<StampedSpare>),
}

impl Store {
    /// Returns the stamps of a generation if the next ones may share its files. Its number of inodes must fit the
    /// journal.
    pub(super) fn linkable(&self, record: &GenerationRecord) -> Option<&Stamps> {
        let wanted = self.options.spare == Spare::Link && record.entries <= LINKED_MAX;
        self.stamps.of(&record.name).filter(|stamps| wanted && stamps.allow_linking())
    }

    /// Drops journal entries that no tree needs any more.
    pub(super) fn trim_journal(&self) {
        let Some(journal) = self.stamps.journal() else { return };
        let Some(_guard) = self.spare.try_lock() else { return }; // a preparation has stamps that are not visible here
        let earliest = self.stamps.earliest().into_iter().chain(self.spare.state.earliest()).min();
        if let Some(earliest) = earliest {
            journal.discard_until(earliest);
        }
    }

    /// Discards a spare that may share files with the current generation, which is in doubt.
    pub(super) fn discard_shared_spare(&self) {
        if self.options.spare == Spare::Link
            && let Err(error) = self.spare.discard_shared()
        {
            tracing::warn!(error = one_line(&error), "the spare cannot be discarded");
        }
    }

    /// Returns true if a spare is wanted and not ready.
    pub(super) fn wants_spare(&self) -> bool {
        self.current_without_spare().is_some()
    }

    /// Returns where there is no room for the spare that is wanted now, in words that follow "there is no room".
    /// `None` if there is room or no spare is wanted.
    pub fn spare_shortage(&self) -> Option<&'static str> {
        let current = self.current_without_spare()?;
        self.shortage_for_spare(current, self.linkable(current).is_some())
            .filter(|_| self.spare.state.waiting().is_none())
    }

    /// Returns the current generation, if a spare of it is wanted and not ready.
    pub(super) fn current_without_spare(&self) -> Option<&GenerationRecord> {
        let current = self.current().filter(|record| record.is_known())?;
        let ready = self.spare.ready(&current.tree, &current.selection_digest);
        (self.options.spare != Spare::Off && ready.is_none()).then_some(current)
    }

    /// Returns where there is no room for a spare, if so. A spare only saves time: it must neither end a grace period
    /// early nor fill the disk.
    pub(super) fn shortage_for_spare(&self, current: &GenerationRecord, links: bool) -> Option<&'static str> {
        // A spare of hard links has no file content, but every entry may be a directory.
        let need = RequiredSpace { bytes: if links { 0 } else { current.bytes }, entries: current.entries };
        let directories = current.lineage.as_ref().map_or(0, |lineage| lineage.directories);
        let spare = self.on_disk(if links { RequiredSpace { bytes: 0, entries: directories } } else { need });
        let all = self.generations_on_disk().saturating_add(spare);
        if self.options.retention.max_bytes.is_some_and(|ceiling| all > ceiling) {
            return Some(CEILING);
        }
        (!matches!(self.shortage(need), Ok(None))).then_some("on the volume")
    }

    /// Returns true if the latest preparation of a spare was cancelled.
    pub fn preparation_is_cancelled(&self) -> bool {
        self.spare.preparing().is_cancelled()
    }

    /// Estimated bytes on disk of the spare, or of the retired generation that waits to become one.
    pub fn spare_bytes(&self) -> u64 {
        self.spare.bytes()
    }

    /// Deletes the spare, or the retired generation that waits to become one.
    pub fn drop_spare(&self, cancel: &CancellationToken) -> Result<(), Error> {
        self.spare.drop_spare(cancel)
    }
}
