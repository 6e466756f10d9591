//! What the mirror, its handles and their readers have in common within this process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{Error, Libgit2};
use super::modules::{self, Submodules};
use super::odb::Store;

/// Shared by one [`super::Mirror`] and everything made from it.
#[derive(Debug)]
pub(super) struct Shared {
    /// The repository.
    pub(super) dir: PathBuf,
    /// What counts is made durable first.
    pub(super) durable: bool,
    /// Generations are linked worktrees.
    pub(super) linked: bool,
    /// It is a partial clone: objects may be absent.
    pub(super) partial: bool,
    /// Set when something that should be there could not be read: the next fetch starts with a new mirror.
    damaged: AtomicBool,
    /// Which submodules' mirrors are read together with this one.
    pub(super) asked: Submodules,
    /// Its revisions are composed.
    pub(super) composed: bool,
    /// The object directories of the mirrors whose trees those here are composed of.
    parts: Mutex<Vec<PathBuf>>,
    /// One for a mirror and those of its submodules, because readers read them together.
    door: Arc<ReadLock>,
}

/// Who reads.
#[derive(Debug, Default)]
struct ReadLock {
    /// Guards handing out leases.
    lock: Mutex<()>,
    /// Its strong count, less this one, is the number of readers.
    readers: Arc<()>,
}

/// Held while objects are read. libgit2 opens a pack when it first needs it, which may be long after the handle was
/// made, so no pack is removed while a reader holds one.
#[derive(Debug)]
pub(super) struct ReadGuard(#[expect(dead_code, reason = "only its count matters")] Arc<()>);

impl Shared {
    pub(super) fn new(dir: PathBuf, asked: Submodules, durable: bool, linked: bool) -> Self {
        Self {
            dir,
            durable,
            linked,
            partial: false,
            damaged: AtomicBool::new(false),
            asked,
            composed: false,
            parts: Mutex::default(),
            door: Arc::default(),
        }
    }

    /// The same, of a partial clone.
    pub(super) fn partial(self, partial: bool) -> Self {
        Self { partial, ..self }
    }

    /// The same, of composed revisions.
    pub(super) fn composed(self) -> Self {
        Self { composed: true, ..self }
    }

    /// For the mirror of a submodule, or of a part.
    pub(super) fn below(&self, dir: PathBuf, asked: Submodules) -> Self {
        let door = Arc::clone(&self.door);
        let (durable, linked) = (self.durable, self.linked);
        Self { door, ..Self::new(dir, asked, durable, linked) }
    }

    /// Reads these mirrors' objects, too.
    pub(super) fn compose_of(&self, mirrors: &[PathBuf]) {
        *self.parts() = mirrors.iter().map(|dir| dir.join("objects")).collect();
    }

    fn parts(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the repository, as the remote has it.
    pub(super) fn store(&self) -> Result<Store, Error> {
        Store::open(&self.dir).map_err(|source| Error::Git {
            act: format!("open the mirror {}", self.dir.display()),
            source: Libgit2(source),
        })
    }

    /// Opens the repository together with those of its submodules, or of its parts.
    pub(super) fn all(&self) -> Result<Store, Error> {
        let more = match self.asked {
            Submodules::Off => Vec::new(),
            Submodules::First | Submodules::Recursive => modules::object_dirs(&self.dir)?,
        };
        self.store()?.with(&more)?.with(&self.parts())
    }

    /// The indexes of the packs that [`Self::all`] reads, as far as they can be listed.
    pub(super) fn pack_indexes(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.dir.join("objects")];
        dirs.extend_from_slice(&self.parts());
        if self.asked != Submodules::Off {
            dirs.extend(modules::object_dirs(&self.dir).unwrap_or_default());
        }
        let listed =
            dirs.iter().filter_map(|dir| fs_err::read_dir(dir.join("pack")).ok()).flatten().flatten();
        let paths = listed.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|suffix| suffix == "idx")).collect()
    }

    /// Takes part in reading.
    pub(super) fn lease(&self) -> ReadGuard {
        let _door = self.door();
        ReadGuard(Arc::clone(&self.door.readers))
    }

    /// Keeps readers out while the guard lives; `None` when there are readers.
    pub(super) fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        let door = self.door();
        (Arc::strong_count(&self.door.readers) == 1).then_some(door)
    }

    fn door(&self) -> MutexGuard<'_, ()> {
        // Nothing is protected by it that a panic could leave half done.
        self.door.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that the mirror is not what it should be.
    pub(super) fn note_damage(&self) {
        self.damaged.store(true, Ordering::Release);
    }

    /// Whether damage was noted since the last call.
    pub(super) fn take_damage(&self) -> bool {
        self.damaged.swap(false, Ordering::AcqRel)
    }
}
