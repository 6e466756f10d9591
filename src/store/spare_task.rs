//! The background task that prepares the spare in its slot: by hard links or as a copy. [`super::recycle`] has the
//! third way, a retired generation.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

use tokio_util::sync::CancellationToken;

use crate::generation::GenerationRecord;
use crate::human::one_line;
use crate::payload::{BlobSource, Payload};
use crate::store::carry::NAMES_MAX;
use crate::store::error::Error;
use crate::store::journal::{INODES_MAX, Journal};
use crate::store::linkable::Linkable;
use crate::store::reap::RequiredSpace;
use crate::store::retired::ReadyTree;
use crate::store::spare::{self, SpareRecord};
use crate::store::spare_slot::{CEILING, SpareSlot};
use crate::store::stamps::{self, Paths, Stamps};
use crate::store::{Options, Store};

/// Nice value of the thread that prepares a spare (nice(2)).
const NICE: i32 = 10;

/// A tree that was made in the slot: its record, and its stamps unless it is a copy that can have none.
pub(super) type Made = (SpareRecord, Option<Stamps>);

/// Prepares a spare of the generation that was current when the task was made. It runs without the store, so that
/// publications go on meanwhile.
#[derive(Debug)]
pub struct SpareTask {
    slot: Arc<SpareSlot>,
    current: GenerationRecord,
    options: Options,
    /// The generation's stamps, if its files may be hard-linked.
    linkable: Option<Arc<Stamps>>,
    /// The journal for stamps of a copy. `None` if foreign writes cannot be detected in this root.
    journal: Option<Arc<Journal>>,
    /// True if there is room for a new spare: of hard links if possible, otherwise a copy.
    has_room: bool,
    /// True if there is room for a spare that is a copy.
    has_room_to_copy: bool,
}

impl SpareTask {
    /// The generation that the spare is made for.
    pub fn generation(&self) -> &GenerationRecord {
        &self.current
    }

    /// Makes the spare from hard links to that generation's files. Returns false if it must be a copy instead, and true
    /// without doing anything if a fitting spare is ready. Blocking. A publication may wait for it, so it has the normal
    /// priority.
    pub fn link(&self, cancel: &CancellationToken) -> Result<bool, Error> {
        if !self.has_room {
            return Ok(false);
        }
        self.make(cancel, |cancel| self.make_links(cancel))
    }

    /// Makes the tree of hard links and its record in the empty slot. `None` if it must be a copy instead.
    pub(super) fn make_links(&self, cancel: &CancellationToken) -> Result<Option<Made>, Error> {
        let made = self.with_linkable(|source| match source {
            Some(source) => {
                spare::link(self.slot.dir().as_fd(), source, &self.current, &self.options, cancel)
            }
            None => Ok(None),
        })?;
        Ok(made.map(|(record, stamps)| (record, Some(stamps))))
    }

    /// Makes the spare by writing the payload of that generation. Returns early if a fitting spare is ready. Blocking.
    /// It takes long and no publication waits for it, so it has a low priority.
    pub fn copy(
        &self,
        payload: &Payload,
        blobs: &dyn BlobSource,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        self.check_payload(payload)?;
        self.at_low_priority(|| {
            self.make(cancel, |cancel| {
                self.slot.set_size(RequiredSpace { bytes: payload.bytes, entries: payload.count() });
                spare::copy(
                    self.slot.dir().as_fd(),
                    payload,
                    &self.current.selection_digest,
                    blobs,
                    &self.options.write_options(),
                    self.options.durability,
                    cancel,
                    |top| self.stamps_of_copy(top, cancel),
                )
                .map(Some)
            })
            .map(drop)
        })
    }

    /// Stamps of a copy that was just written, with the list of its directories. `None` if foreign writes to it cannot be
    /// detected, if it has too many directories for a list, or if the journal may not take what a delta writes into it.
    fn stamps_of_copy(&self, top: &OwnedFd, cancel: &CancellationToken) -> Result<Option<Stamps>, Error> {
        let has_room = |journal: &&Arc<Journal>| journal.len() + NAMES_MAX <= INODES_MAX;
        let Some(journal) = self.journal.as_ref().filter(has_room) else { return Ok(None) };
        let slot = self.slot.dir().as_fd();
        let Ok(mut stamps) = Stamps::of_new(top, slot, journal) else { return Ok(None) };
        match stamps.rescan(top, slot, Paths::Keep, cancel) {
            Ok(None) => {
                stamps.suspend_age();
                Ok(Some(stamps))
            }
            Ok(Some(path)) => Err(stamps::foreign_write_error(path)),
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(_) => Ok(None),
        }
    }

    /// Returns true if a new spare consists of hard links to the generation's files, false if it is a copy.
    pub fn links(&self) -> bool {
        self.linkable.is_some()
    }

    /// Returns true if there is room for a spare that is a copy.
    pub fn has_room_to_copy(&self) -> bool {
        self.has_room_to_copy
    }

    /// Calls `work` with the generation to hard-link from, or with `None` if its files may not be linked.
    pub(super) fn with_linkable<T>(
        &self,
        work: impl FnOnce(Option<Linkable<'_>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(stamps) = &self.linkable else { return work(None) };
        let top = self.slot.handles().generation(&self.current.name)?;
        work(Some(Linkable { top: top.as_fd(), stamps }))
    }

    pub(super) fn slot(&self) -> &SpareSlot {
        &self.slot
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Runs `work` on a new thread with low priority, and waits for it: a thread cannot raise its priority again. Not for
    /// work that a publication waits for, which on a busy machine would be held up by everything else there.
    fn at_low_priority<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        let failed = Error::io("start the thread that prepares the spare in", &self.slot.handles().path);
        std::thread::scope(|scope| {
            let work = || {
                // A failure to lower the priority is no reason not to prepare.
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
                work()
            };
            let name = "treeswap-spare".to_owned();
            let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, work).map_err(failed)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Begins a preparation, which ends with `cancel` or if the store cancels it.
    pub fn begin(&self, cancel: &CancellationToken) {
        *self.slot.preparing() = cancel.child_token();
    }

    /// Takes the slot's lock. The returned token also ends the work if somebody else cancels the preparation. Fails
    /// with `Cancelled` if another slot has taken the place of this one.
    pub(super) fn lock_for_preparation(
        &self,
        cancel: &CancellationToken,
    ) -> Result<(MutexGuard<'_, ()>, CancellationToken), Error> {
        let busy = self.slot.lock(cancel, || ())?;
        self.slot.check_open()?;
        let cancel = cancel.child_token();
        *self.slot.preparing() = cancel.clone();
        Ok((busy, cancel))
    }

    /// Makes a new spare by calling `make` on the empty slot, unless a fitting one is ready. Returns false if `make`
    /// returned `None`.
    pub(super) fn make(
        &self,
        cancel: &CancellationToken,
        make: impl FnOnce(&CancellationToken) -> Result<Option<Made>, Error>,
    ) -> Result<bool, Error> {
        let slot = &self.slot;
        let (_busy, cancel) = self.lock_for_preparation(cancel)?;
        if slot.ready(&self.current.tree, &self.current.selection_digest).is_some() {
            return Ok(true);
        }
        slot.discard()?;
        let made = make(&cancel).and_then(|made| {
            let Some((origin, stamps)) = made else { return Ok(false) };
            slot.set_size(origin.unshared(&self.current));
            let tree = stamps.map(|stamps| ReadyTree { stamps, checked_at: None, is_new: true });
            tree.map_or(Ok(()), |tree| slot.set_ready(tree, &cancel))?;
            Ok(true)
        });
        // A closed slot is emptied by the one that takes its place.
        if !matches!(made, Ok(true))
            && slot.check_open().is_ok()
            && let Err(error) = slot.discard()
        {
            tracing::warn!(error = %error, "an incomplete spare cannot be removed before the next start");
        }
        made
    }

    /// Refuses a payload that is not the current generation's: the record would claim that it is.
    fn check_payload(&self, payload: &Payload) -> Result<(), Error> {
        let current = &self.current;
        if (payload.tree, payload.count(), payload.bytes) == (current.tree, current.entries, current.bytes) {
            return Ok(());
        }
        let why = std::io::Error::other("the payload is another generation's");
        Err(Error::io("make a spare of", self.slot.handles().path_of(&current.name))(why))
    }
}

impl Store {
    /// Returns the task that prepares the next spare. `None` if none is wanted, one is ready, or there is no room for
    /// one.
    pub fn spare_task(&self) -> Option<SpareTask> {
        let current = self.current_without_spare()?;
        let linkable = self.linkable(current);
        let lacks = self.shortage_for_spare(current, linkable.is_some());
        let has_room = lacks.is_none();
        let waits = self.spare.state.waiting().is_some();
        // A waiting generation occupies its space already, so only the ceiling counts for it.
        let may_recycle = waits && lacks != Some(CEILING);
        if waits
            && !may_recycle
            && let Err(error) = self.spare.discard_waiting()
        {
            tracing::debug!(error = one_line(&error), "a retired generation is not deleted yet");
        }
        (has_room || may_recycle).then(|| SpareTask {
            slot: Arc::clone(&self.spare),
            current: current.clone(),
            options: self.options.clone(),
            linkable: linkable.map(|stamps| self.spare.state.keep_for_task(stamps)),
            journal: self.stamps.journal().cloned(),
            has_room,
            has_room_to_copy: self.shortage_for_spare(current, false).is_none(),
        })
    }
}
