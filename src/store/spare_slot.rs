//! The spare's place in the root: who may take it, who prepares it, and when there is room for one.
//!
//! The spare is prepared on a thread of its own while the store serves and publishes; a lock on the place keeps the two
//! apart. While a spare is in work there is none, and the generation is written in full.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::fsx;
use crate::generation::GenerationRecord;
use crate::payload::{BlobSource, Delta, Payload};
use crate::revision::ObjectId;
use crate::store::error::Error;
use crate::store::layout::{Layout, open_inner};
use crate::store::names::SPARE;
use crate::store::reap::Need;
use crate::store::spare::{self, Origin};
use crate::store::trash::Trash;
use crate::store::{Options, Recovered, Spare, Store};

/// Between two looks whether the place is free.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The place, shared by the store and the task that prepares the spare.
#[derive(Debug)]
pub(super) struct SpareSlot {
    layout: Arc<Layout>,
    trash: Arc<Trash>,
    place: OwnedFd,
    /// Held while the place is changed.
    busy: Mutex<()>,
    /// Ends the preparation that runs, or that ran last.
    preparing: Mutex<CancellationToken>,
    /// Bytes that the spare takes on disk, or will.
    bytes: AtomicU64,
}

impl SpareSlot {
    /// Opens the place; what is not a ready spare of this boot goes to the trash.
    pub(super) fn open(
        layout: &Arc<Layout>,
        trash: &Arc<Trash>,
        mode: Spare,
        found: &mut Recovered,
    ) -> Result<Self, Error> {
        let place = open_inner(&layout.path, &layout.private, SPARE, found)?;
        let keeper = Self {
            layout: Arc::clone(layout),
            trash: Arc::clone(trash),
            place,
            busy: Mutex::new(()),
            preparing: Mutex::default(),
            bytes: AtomicU64::new(0),
        };
        match spare::ready(keeper.place.as_fd(), &clock::now().boot_id) {
            Some(record) if mode == Spare::Copy => {
                keeper.counts(Need { bytes: record.bytes, entries: record.entries });
            }
            _ => keeper.discard()?,
        }
        Ok(keeper)
    }

    /// The place itself.
    pub(super) fn place(&self) -> &OwnedFd {
        &self.place
    }

    fn counts(&self, spare: Need) {
        self.bytes.store(spare.on_disk(self.layout.block), Ordering::Relaxed);
    }

    /// Bytes to count against `--max-bytes`.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a spare is ready from which a generation can be made.
    fn has(&self, tree: &ObjectId, selection: &str, options: &Options) -> bool {
        let ready = spare::ready(self.place.as_fd(), &clock::now().boot_id);
        ready.is_some_and(|record| record.fits(tree, selection, options))
    }

    /// Moves the spare to `name` in staging, if it is what the delta starts from.
    pub(super) fn take(
        &self,
        delta: &Delta,
        selection: &str,
        options: &Options,
        name: &str,
    ) -> Result<Option<OwnedFd>, Error> {
        let Some(_busy) = self.try_lock() else { return Ok(None) };
        if !self.has(&delta.base, selection, options) {
            return Ok(None);
        }
        let dir = spare::take(self.place.as_fd(), self.layout.staging.as_fd(), name)?;
        self.bytes.store(0, Ordering::Relaxed);
        Ok(Some(dir))
    }

    /// Deletes the spare; one that is in work gives way.
    pub(super) fn drop_spare(&self, cancel: &CancellationToken) -> Result<(), Error> {
        self.preparing().cancel();
        let _busy = self.lock(cancel)?;
        self.discard()
    }

    fn preparing(&self) -> MutexGuard<'_, CancellationToken> {
        self.preparing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()), // it guards the disk, not memory
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for a change of the place to end: a preparation for an older generation that was asked to end.
    fn lock(&self, cancel: &CancellationToken) -> Result<MutexGuard<'_, ()>, Error> {
        loop {
            match self.try_lock() {
                Some(guard) => return Ok(guard),
                None if cancel.is_cancelled() => return Err(Error::Cancelled),
                None => std::thread::sleep(BUSY_PAUSE), // a mutex could wait, but not be cancelled
            }
        }
    }

    /// Empties the place. The caller has the lock, or the place is not shared yet.
    fn discard(&self) -> Result<(), Error> {
        self.bytes.store(0, Ordering::Relaxed);
        let failed = || Error::io("move the spare to the trash in", self.layout.private_at(SPARE));
        let listed = fsx::list(&self.place).map_err(failed())?;
        let names = listed.iter().map(fsx::Listed::os);
        // Whatever is there: the record, so that the copy counts for nothing from then on, the copy, and what an
        // interrupted preparation left beside it.
        for name in std::iter::once(spare::READY.as_ref()).chain(names) {
            match self.trash.put(&self.place, name, None) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The preparation of a spare for the generation that was current when the task was made. Independent of the store, so
/// that publications go on meanwhile.
#[derive(Debug)]
pub struct SpareTask {
    keeper: Arc<SpareSlot>,
    current: GenerationRecord,
    options: Options,
}

impl SpareTask {
    /// The generation it copies.
    pub fn generation(&self) -> &GenerationRecord {
        &self.current
    }

    /// Prepares the spare from the payload of that generation. Long: it steps back for everybody else, on a thread of
    /// its own (a thread cannot take back its nice value). Returns early where a fitting spare is ready.
    pub fn run(
        self,
        payload: &Payload,
        blobs: &dyn BlobSource,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let work = std::thread::Builder::new()
                .name("treeswap-spare".to_owned())
                .spawn_scoped(scope, || self.prepare(payload, blobs, cancel))
                .map_err(Error::io(
                    "start the thread that prepares the spare in",
                    &self.keeper.layout.path,
                ))?;
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn prepare(
        &self,
        payload: &Payload,
        blobs: &dyn BlobSource,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let keeper = &self.keeper;
        self.refuse_other(payload)?;
        let _busy = keeper.lock(cancel)?;
        let cancel = &cancel.child_token();
        *keeper.preparing() = cancel.clone();
        if keeper.has(&payload.tree, &self.current.selection, &self.options) {
            return Ok(());
        }
        keeper.discard()?;
        let current;
        let origin = if self.options.spare == Spare::Link {
            current = keeper.layout.generation(&self.current.name)?;
            Origin::Link(current.as_fd())
        } else {
            keeper.counts(Need { bytes: payload.bytes, entries: payload.count() });
            Origin::Copy
        };
        let prepared = spare::prepare(
            keeper.place.as_fd(),
            origin,
            payload,
            &self.current.selection,
            blobs,
            &self.options.write_options(),
            self.options.durability,
            &clock::now().boot_id,
            cancel,
        );
        prepared.map(drop).inspect_err(|_| {
            if let Err(error) = keeper.discard() {
                tracing::warn!(error = %error, "a half-made spare cannot be removed before the next start");
            }
        })
    }

    /// The spare goes on record as the current generation's, and the next one is made from it.
    fn refuse_other(&self, payload: &Payload) -> Result<(), Error> {
        let current = &self.current;
        if (payload.tree, payload.count(), payload.bytes) == (current.tree, current.entries, current.bytes) {
            return Ok(());
        }
        let path = self.keeper.layout.place(&current.name);
        Err(Error::io("make a spare of", path)(std::io::Error::other("the payload is another generation's")))
    }
}

impl Store {
    /// The task that prepares the next spare; `None` where none is wanted, one is ready, or there is no room for one.
    pub fn spare_task(&self) -> Option<SpareTask> {
        let current = self.without_spare().filter(|current| self.lacks_for_spare(current).is_none())?;
        Some(SpareTask {
            keeper: Arc::clone(&self.spare),
            current: current.clone(),
            options: self.options.clone(),
        })
    }

    /// Which option or resource leaves no room for the spare that is wanted now, if one does: words that follow
    /// "there is no room".
    pub fn spare_lacks(&self) -> Option<&'static str> {
        self.lacks_for_spare(self.without_spare()?)
    }

    /// The current generation, if a spare of it is wanted and not ready.
    fn without_spare(&self) -> Option<&GenerationRecord> {
        let current = self.current().filter(|record| record.is_known())?;
        let ready = self.spare.has(&current.tree, &current.selection, &self.options);
        (self.options.spare != Spare::Off && !ready).then_some(current)
    }

    /// A spare saves time; it must neither end a grace period nor fill the disk.
    fn lacks_for_spare(&self, current: &GenerationRecord) -> Option<&'static str> {
        let need = match self.options.spare {
            Spare::Link => Need { bytes: 0, entries: current.entries }, // it may be directories all through
            Spare::Copy | Spare::Off => Need::of(current),
        };
        let spare = if self.options.spare == Spare::Link { 0 } else { self.on_disk(need) };
        let all = self.generations_on_disk().saturating_add(spare);
        if self.options.retention.max_bytes.is_some_and(|ceiling| all > ceiling) {
            return Some("below --max-bytes");
        }
        (!matches!(self.shortage(need), Ok(None))).then_some("on the volume")
    }

    pub(super) fn spare_bytes(&self) -> u64 {
        self.spare.bytes()
    }

    pub(super) fn drop_spare(&self, cancel: &CancellationToken) -> Result<(), Error> {
        self.spare.drop_spare(cancel)
    }
}
