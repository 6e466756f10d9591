//! The state that a mirror shares with its object handles and their readers within this process: where the objects are,
//! whether one was found damaged, and a lock that keeps packs from being removed while they are read.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::descriptors::descriptors_used_up;
use super::error::Error;
use super::indexer::ObjectTable;
use super::modules::{self, Submodules};
use super::odb::Store;
use super::sparse::Patterns;
use super::{Selection, complete, pack_index};
use crate::revision::ObjectId;

/// Shared by one [`super::Mirror`] and all handles made from it.
#[derive(Debug)]
pub(super) struct Shared {
    /// The repository's directory.
    pub(super) dir: PathBuf,
    /// Writes are made durable.
    pub(super) durable: bool,
    /// Generations are linked worktrees (git-sync's layout).
    pub(super) linked: bool,
    /// The mirror is a partial clone: objects may be absent.
    pub(super) partial: bool,
    /// Objects are hashed when they are read (`--verify`), which only libgit2 does.
    verify: bool,
    /// Set when an object that should be present could not be read. The next fetch then recreates the mirror.
    damaged: AtomicBool,
    /// Which submodules' mirrors are read together with this one.
    pub(super) submodules: Submodules,
    /// The repository holds composed revisions.
    pub(super) composed: bool,
    /// The object directories of the mirrors whose trees the composed revisions refer to.
    parts: Mutex<Vec<PathBuf>>,
    /// The table of the pack that was indexed last, until the revision is published.
    table: Mutex<Option<Arc<ObjectTable>>>,
    /// Shared with the mirrors of submodules or sources, because readers read them together.
    read_lock: Arc<ReadLock>,
}

/// Counts readers, and excludes them while packs are removed.
#[derive(Debug, Default)]
struct ReadLock {
    /// Held while a lease is handed out, and while packs are removed.
    lock: Mutex<()>,
    /// The number of readers is its strong count less one.
    readers: Arc<()>,
    /// How often one of the mirrors was rebuilt.
    rebuilds: AtomicU64,
}

/// A lease that is held while objects are read. libgit2 opens a pack when it first needs it, which may be long after
/// the handle was created, so no pack is removed while a lease exists; but a damaged mirror is rebuilt all the same.
#[derive(Debug)]
pub(super) struct ReadGuard {
    #[expect(dead_code, reason = "only its count matters")]
    counted: Arc<()>,
    /// How often one of the mirrors had been rebuilt before.
    rebuilds: u64,
}

impl Shared {
    pub(super) fn new(dir: PathBuf, submodules: Submodules, durable: bool, linked: bool) -> Self {
        Self {
            dir,
            durable,
            linked,
            partial: false,
            verify: false,
            damaged: AtomicBool::new(false),
            submodules,
            composed: false,
            parts: Mutex::default(),
            table: Mutex::default(),
            read_lock: Arc::default(),
        }
    }

    /// Marks the mirror as a partial clone.
    pub(super) fn partial(self, partial: bool) -> Self {
        Self { partial, ..self }
    }

    /// Has every object hashed when it is read.
    pub(super) fn verify(self, verify: bool) -> Self {
        Self { verify, ..self }
    }

    /// Marks the repository as one of composed revisions.
    pub(super) fn composed(self) -> Self {
        Self { composed: true, ..self }
    }

    /// The shared state of a submodule's or source's mirror. It has the same read lock.
    pub(super) fn below(&self, dir: PathBuf, submodules: Submodules) -> Self {
        let read_lock = Arc::clone(&self.read_lock);
        let verify = self.verify;
        Self { read_lock, verify, ..Self::new(dir, submodules, self.durable, self.linked) }
    }

    /// Parses the selection's sparse patterns; `None` if it has none. In git-sync's layout they mean what they mean to
    /// git-sync, which turns cone mode on.
    pub(super) fn patterns(&self, selection: &Selection) -> Result<Option<Patterns>, Error> {
        let parse = if self.linked { Patterns::parse_in_cone_mode } else { Patterns::parse };
        selection.sparse.as_deref().map(parse).transpose()
    }

    /// Sets the mirrors whose objects are read together with this repository's.
    pub(super) fn set_mirrors(&self, mirrors: &[PathBuf]) {
        *self.parts() = mirrors.iter().map(|dir| dir.join("objects")).collect();
    }

    fn parts(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the repository alone.
    pub(super) fn store(&self) -> Result<Store, Error> {
        let failed = |source| Error::git(format!("open the mirror {}", self.dir.display()), source);
        let store = Store::open(&self.dir).map_err(failed)?;
        Ok(store.with_table(self.table().clone()))
    }

    /// Sets the table of the pack that was indexed last. `None` frees its memory. Its reader does not hash objects, so
    /// it is not used if they are to be hashed.
    pub(super) fn set_table(&self, table: Option<ObjectTable>) {
        *self.table() = table.filter(|_| !self.verify).map(Arc::new);
    }

    fn table(&self) -> MutexGuard<'_, Option<Arc<ObjectTable>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the repository together with the mirrors of its submodules or sources.
    pub(super) fn all(&self) -> Result<Store, Error> {
        let more = match self.submodules {
            Submodules::Off => Vec::new(),
            Submodules::First | Submodules::Recursive => modules::object_dirs(&self.dir)?,
        };
        self.store()?.with(&more)?.with(&self.parts())
    }

    /// The index files of the packs that [`Self::all`] reads. Directories that cannot be listed are skipped.
    pub(super) fn pack_indexes(&self) -> Vec<PathBuf> {
        self.object_dirs().iter().flat_map(|dir| pack_index::list(dir)).collect()
    }

    /// The object directories that [`Self::all`] reads.
    fn object_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.dir.join("objects")];
        dirs.extend_from_slice(&self.parts());
        if self.submodules != Submodules::Off {
            dirs.extend(modules::object_dirs(&self.dir).unwrap_or_default());
        }
        dirs
    }

    /// Records that the tip of this mirror is complete, for the next opening.
    pub(super) fn note_complete(&self, tip: ObjectId) {
        // Others change git-sync's repository, too.
        if !self.linked {
            complete::record(&self.dir, tip, self.partial);
        }
    }

    /// Returns true if the tip was found complete and nothing that matters has changed. False if every opening is to
    /// hash all trees.
    pub(super) fn is_known_complete(&self, tip: ObjectId) -> bool {
        !self.linked && !self.verify && complete::is_recorded(&self.dir, tip, self.partial)
    }

    /// Registers a reader. Waits while packs are being removed.
    pub(super) fn lease(&self) -> ReadGuard {
        let _lock = self.lock();
        ReadGuard { counted: Arc::clone(&self.read_lock.readers), rebuilds: self.rebuilds() }
    }

    /// Keeps new readers out while the returned guard exists. `None` if there are readers: then no pack can be removed.
    pub(super) fn exclusive(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = self.lock();
        (Arc::strong_count(&self.read_lock.readers) == 1).then_some(lock)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // A poisoned lock is fine: it protects no data that a panic could leave inconsistent.
        self.read_lock.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the damage that an error of reading shows, if it shows any. To be called while the store that was read
    /// is still open.
    pub(super) fn note_if_damage(&self, error: &Error) {
        if error.is_damage() {
            self.note_damage();
        }
    }

    /// The same for a reader with a lease. See [`Self::note_damage_of`].
    pub(super) fn note_if_damage_of(&self, lease: &ReadGuard, error: &Error) {
        if error.is_damage() {
            self.note_damage_of(lease);
        }
    }

    /// Records the damage that a reader met, unless a mirror was rebuilt since it got its lease. It may have looked for
    /// a pack that is gone, and the rebuilt mirror would be rebuilt again. Other damage is met by the next reader, too.
    pub(super) fn note_damage_of(&self, lease: &ReadGuard) {
        if lease.rebuilds == self.rebuilds() {
            self.note_damage();
        }
    }

    /// Forgets the damage, because the mirror was rebuilt. Readers that have a lease cannot note it again.
    pub(super) fn note_rebuilt(&self) {
        self.read_lock.rebuilds.fetch_add(1, Ordering::AcqRel);
        self.damaged.store(false, Ordering::Release);
        complete::clear(&self.dir); // one of them may have noted it meanwhile
    }

    fn rebuilds(&self) -> u64 {
        self.read_lock.rebuilds.load(Ordering::Acquire)
    }

    /// Records that an object that should be present could not be read, unless no file can be opened at all. If this
    /// process does not fetch again, the next one rebuilds the mirror when it opens it. It is unknown which of the
    /// mirrors that are read together it is.
    pub(super) fn note_damage(&self) {
        if let Some(error) = descriptors_used_up() {
            tracing::warn!(mirror = %self.dir.display(), %error, "no file can be opened, so an object cannot be read");
            return;
        }
        self.damaged.store(true, Ordering::Release);
        let dirs = self.object_dirs();
        let mirrors = dirs.iter().filter_map(|objects| objects.parent());
        // Composed revisions are composed again, and have no tip.
        mirrors.filter(|dir| !self.composed || **dir != self.dir).for_each(complete::note_damage);
    }

    /// Makes the next opening check the tip, because a child process may have met damage.
    pub(super) fn forget_complete(&self) {
        complete::forget(&self.dir);
    }

    /// Returns true if damage was recorded since the last call.
    pub(super) fn take_damage(&self) -> bool {
        self.damaged.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_table_is_used_if_objects_are_to_be_hashed() {
        for verify in [false, true] {
            let shared = Shared::new("mirror".into(), Submodules::Off, false, false).verify(verify);
            shared.set_table(Some(ObjectTable::without_objects()));
            assert_eq!(shared.table().is_none(), verify);
            shared.set_table(None);
            assert!(shared.table().is_none());
        }
    }
}
