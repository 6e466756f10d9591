//! Carries a retired generation's tree forward to another revision by moving the unchanged entries.
//!
//! Readers may still have directories of that tree open, although its grace period is over. Therefore no directory is
//! changed in place: each directory that contains a change is created again, up to the top, and its unchanged entries
//! are moved over: files and symlinks one by one, subdirectories as a whole. A reader in an old directory finds it
//! empty, as after a deletion; a reader in a directory without changes sees no difference.
//!
//! Steps:
//! 0. Count the names that would have to be moved. If there are too many, fail before anything is created.
//! 1. Create the new directories.
//! 2. Write the changed files into them.
//! 3. Move the unchanged entries, files first, directories last. Each entry is checked as it is moved, and so is each
//!    directory that entries are moved from: a foreign write is an error. What is below a directory that moves as a
//!    whole is not: the caller has checked it ([`Stamps::rescan`], and [`Stamps::check_directories`] before a
//!    publication).
//!
//! A failure leaves two incomplete trees. The caller discards both and makes the generation in another way.
//!
//! [`Stamps`] detect foreign writes. They are updated with our own changes of inodes.

use std::collections::{BTreeSet, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Stat};
use tokio_util::sync::CancellationToken;

use super::Error;
use super::durable::Unsynced;
use super::linkable::{Linkable, Linker};
use super::stage::{self, Dirs, Modes, UNCHECKED_MAX, WriteOptions, check_cancelled, io_error};
use super::stamps::{Stamps, foreign_write_error};
use crate::fsx;
use crate::payload::{BlobSource, Delta, Kind, WrittenEntry, join, split};

/// The most names in directories that contain a change; beyond that a full write is cheaper.
pub(super) const NAMES_MAX: usize = 1 << 16;

/// A delta and what it takes to write it.
pub(super) struct DeltaWrite<'a> {
    pub(super) delta: &'a Delta,
    /// The contents of the files and links that the delta writes.
    pub(super) blobs: &'a dyn BlobSource,
    /// A tree of the delta's new revision, whose files are hard-linked instead where possible.
    pub(super) shared: Option<Linkable<'a>>,
    pub(super) options: &'a WriteOptions,
}

/// Creates the tree `name` in `to` from the tree `from` and a delta whose base it is. Returns the new tree and what
/// has to be synced; afterwards `stamps` describe the new tree.
pub(super) fn carry_forward(
    from: &OwnedFd,
    to: BorrowedFd<'_>,
    name: &str,
    write: &DeltaWrite<'_>,
    stamps: &mut Stamps,
    cancel: &CancellationToken,
) -> Result<(OwnedFd, Unsynced), Error> {
    let delta = write.delta;
    let modes = Modes::of(write.options);
    let changed = ChangedPaths::by(delta);
    // Step 0: count the names.
    changed.check_name_count(from, cancel)?;
    // Step 1: create the directories.
    let top = fsx::make_dir(to, name, modes.dir).map_err(io_error("make the directory", b"."))?;
    let mut dirs = Dirs::new(top.as_fd());
    for path in changed.dirs.iter().filter(|path| !path.is_empty()) {
        check_cancelled(cancel)?;
        stage::make_dir(&mut dirs, path, modes)?;
    }
    // Step 2: write what changed.
    let linked = write_delta(top.as_fd(), write, cancel)?;
    // Step 3: move what did not.
    changed.move_unchanged(from, top.as_fd(), stamps, cancel)?;
    changed.update_stamps(&top, delta, &linked, stamps)?;
    let unsynced = Unsynced::after_delta(delta).with_dirs(changed.dirs.iter().map(|path| (*path).into()));
    Ok((top, unsynced))
}

/// Creates the files and directories that a delta adds or changes, in a tree that has nothing under these names yet.
/// Returns the paths that were hard-linked.
pub(super) fn write_delta<'d>(
    top: BorrowedFd<'_>,
    write: &DeltaWrite<'d>,
    cancel: &CancellationToken,
) -> Result<HashSet<&'d [u8]>, Error> {
    let DeltaWrite { delta, blobs, shared, options } = *write;
    let modes = Modes::of(options);
    let mut dirs = Dirs::new(top);
    for path in &delta.added_dirs {
        check_cancelled(cancel)?;
        stage::make_dir(&mut dirs, path, modes)?;
    }
    let mut linked = HashSet::new();
    let mut linker = shared.map(|shared| Linker::new(shared, modes));
    let mut reader = blobs.reader().map_err(stage::blob_error(b"."))?;
    // Symlinks come last, so that no path that is still to be written goes through one.
    let (symlinks, others): (Vec<_>, Vec<_>) =
        delta.written.iter().partition(|entry| entry.kind == Kind::Symlink);
    for WrittenEntry { path, kind, id, size } in others.into_iter().chain(symlinks) {
        check_cancelled(cancel)?;
        let (dir, name) = split(path);
        let to = dirs.open(dir)?;
        if linker.as_mut().is_some_and(|linker| linker.link(dir, name, to, *kind, *size)) {
            linked.insert(&**path);
        } else {
            stage::write_entry(to, name, &|| path.to_vec(), *kind, id, *size, &mut *reader, modes)?;
        }
    }
    Ok(linked)
}

/// Updates the stamps of a tree to which a delta was applied in place.
pub(super) fn update_stamps(top: &OwnedFd, delta: &Delta, stamps: &mut Stamps) -> Result<(), Error> {
    ChangedPaths::by(delta).update_stamps(top, delta, &HashSet::new(), stamps)
}

/// The directories and paths that a delta changes.
struct ChangedPaths<'d> {
    /// Directories that exist in both trees and contain a change, parents first. The top directory has an empty path.
    dirs: BTreeSet<&'d [u8]>,
    /// Paths of the old tree that the new one does not have, or has with other content.
    gone: HashSet<&'d [u8]>,
}

impl<'d> ChangedPaths<'d> {
    fn by(delta: &'d Delta) -> Self {
        let removed_dirs: HashSet<&[u8]> = delta.removed_dirs.iter().map(|path| &**path).collect();
        let added_dirs: HashSet<&[u8]> = delta.added_dirs.iter().map(|path| &**path).collect();
        let written = delta.written.iter().map(|entry| &*entry.path);
        let touched = (delta.removed.iter().map(|path| &**path).chain(written))
            .chain(removed_dirs.iter().chain(&added_dirs).copied());
        let mut dirs = BTreeSet::from([&b""[..]]);
        for path in touched {
            let mut path = path;
            while !path.is_empty() {
                path = split(path).0;
                // A removed directory stays in the old tree; an added one is created with the delta's files.
                let is_kept = !removed_dirs.contains(path) && !added_dirs.contains(path);
                if is_kept && !dirs.insert(path) {
                    break; // its parents are in the set already
                }
            }
        }
        let removed = delta.removed.iter().map(|path| &**path);
        let gone = removed.chain(removed_dirs).collect();
        Self { dirs, gone }
    }

    /// Step 0: fails if the directories that contain a change have more than [`NAMES_MAX`] names.
    fn check_name_count(&self, from: &OwnedFd, cancel: &CancellationToken) -> Result<(), Error> {
        let mut old = Dirs::new(from.as_fd());
        let mut names = 0;
        for dir in &self.dirs {
            check_cancelled(cancel)?;
            fsx::each(old.open(dir)?, |_, _| {
                names += 1;
                if names > NAMES_MAX {
                    return Err(io::Error::other("too many names would have to be moved"));
                }
                Ok(())
            })
            .map_err(io_error("list", dir))?;
        }
        Ok(())
    }

    /// Step 3: moves the unchanged entries.
    fn move_unchanged(
        &self,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        stamps: &Stamps,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let mut old = Dirs::new(from.as_fd());
        let mut new = Dirs::new(to);
        let mut whole_dirs = Vec::new();
        for dir in &self.dirs {
            check_cancelled(cancel)?;
            let from = old.open(dir)?;
            let stat = rustix::fs::fstat(from).map_err(io_error("stat", dir))?;
            let is_ours = if dir.is_empty() { stamps.accepts_top(&stat) } else { stamps.accepts(&stat) };
            if !is_ours {
                return Err(foreign_write_error(stage::display_path(dir)));
            }
            let mut files: Vec<CString> = Vec::new();
            fsx::each(from, |name, kind| {
                let path = join(dir, name.to_bytes());
                if !self.gone.contains(&*path) && !self.dirs.contains(&*path) {
                    if kind == FileType::Directory {
                        whole_dirs.push((*dir, name.to_owned()));
                    } else {
                        files.push(name.to_owned());
                    }
                }
                Ok(())
            })
            .map_err(io_error("list", dir))?;
            let to = new.open(dir)?;
            for (at, name) in files.iter().enumerate() {
                if at % UNCHECKED_MAX == 0 {
                    check_cancelled(cancel)?;
                }
                move_entry(from, to, dir, name, stamps)?;
            }
        }
        for (dir, name) in whole_dirs {
            check_cancelled(cancel)?;
            move_entry(old.open(dir)?, new.open(dir)?, dir, &name, stamps)?;
        }
        Ok(())
    }

    /// Records the current state of the created directories and the written files in the stamps.
    fn update_stamps(
        &self,
        top: &OwnedFd,
        delta: &Delta,
        linked: &HashSet<&[u8]>,
        stamps: &mut Stamps,
    ) -> Result<(), Error> {
        let mut open = Dirs::new(top.as_fd());
        for WrittenEntry { path, .. } in delta.written.iter().filter(|entry| !linked.contains(&*entry.path)) {
            let (dir, name) = split(path);
            if let Some(stat) = fsx::stat(open.open(dir)?, name).map_err(io_error("stat", path))? {
                record_creation(&stat, path, stamps)?;
            }
        }
        let added_dirs = || delta.added_dirs.iter().map(|path| &**path);
        let submodules = delta.written.iter().filter(|entry| entry.kind == Kind::Submodule);
        stamps.update_directories(&self.gone, added_dirs().chain(submodules.map(|entry| &*entry.path)));
        for path in self.dirs.iter().copied().chain(added_dirs()) {
            let stat = rustix::fs::fstat(open.open(path)?).map_err(io_error("stat", path))?;
            if path.is_empty() {
                stamps.set_top(&stat);
            } else {
                record_creation(&stat, path, stamps)?;
            }
        }
        Ok(())
    }
}

/// Moves one entry, and records in the journal that the move changed its ctime. An entry with a foreign write is an
/// error.
fn move_entry(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    dir: &[u8],
    name: &CString,
    stamps: &Stamps,
) -> Result<(), Error> {
    let path = || join(dir, name.to_bytes());
    let name = name.as_c_str();
    let entry = stamps.lock_entry(from, name).map_err(io_error("stat", &path()))?;
    let Some((before, mut journal)) = entry else {
        return Err(foreign_write_error(stage::display_path(&path())));
    };
    if !journal.has_room_for(before.st_ino) {
        return Err(full_journal_error(&path()));
    }
    fsx::rename_new(from, name, to, name).map_err(io_error("move", &path()))?;
    if let Some(after) = fsx::stat(to, name).map_err(io_error("stat", &path()))? {
        journal.record_change(&before, &after); // an unrecorded change is treated as a foreign write
    }
    Ok(())
}

/// Records that we created this inode. It is an error if the journal has no room for it.
fn record_creation(stat: &Stat, path: &[u8], stamps: &Stamps) -> Result<(), Error> {
    stamps.record_creation(stat);
    if stamps.accepts(stat) { Ok(()) } else { Err(full_journal_error(path)) }
}

/// The error of a change of ours that would look like a foreign write, because there is no room to record it.
fn full_journal_error(path: &[u8]) -> Error {
    io_error("reuse", path)(io::Error::other("too many changes since the oldest generation"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::testing::{Blobs, delta, expected, payload, read_back, tree, trees};
    use crate::payload::{Rules, Symlinks};
    use crate::store::durable;
    use crate::store::journal::Journal;
    use crate::store::stamps::Paths;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn nothing_is_made_where_too_many_names_would_have_to_be_moved() {
        let dir = tempfile::tempdir().unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("old")).unwrap();
        for number in 0..=NAMES_MAX {
            std::fs::File::create(dir.path().join(format!("old/{number}"))).unwrap();
        }
        let top = fsx::open_dir(&place, "old").unwrap();
        let (from, to) = (tree(&[("0", Kind::File, "")]), tree(&[("0", Kind::File, "x")]));
        let delta = delta(&from, &to, Rules::default()).unwrap();
        let journal = Arc::new(Journal::start().unwrap());
        let mut stamps = Stamps::of_new(&top, place.as_fd(), &journal).unwrap();
        let options = WriteOptions { threads: 1, group_write: false };
        let blobs = Blobs::of(&[&to]);
        let write = DeltaWrite { delta: &delta, blobs: &blobs, shared: None, options: &options };
        let carried =
            carry_forward(&top, place.as_fd(), "new", &write, &mut stamps, &CancellationToken::new());
        let error = crate::human::one_line(&carried.unwrap_err());
        assert!(error.contains("too many names"), "{error}");
        assert!(!dir.path().join("new").exists());
    }

    #[test]
    fn a_huge_directory_is_left_when_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        let top = fsx::make_dir(&place, "old", 0o755).unwrap();
        for number in 0..4 * UNCHECKED_MAX {
            fsx::create_new(&top, number.to_string(), 0o644).unwrap();
        }
        let first = fsx::list(&top).unwrap().into_iter().find(|entry| entry.os() != "0").unwrap();
        let first = fsx::stat(&top, first.os()).unwrap().unwrap();
        let (from, to) = (tree(&[("0", Kind::File, "")]), tree(&[("0", Kind::File, "x")]));
        let delta = delta(&from, &to, Rules::default()).unwrap();
        let journal = Arc::new(Journal::start().unwrap());
        let mut stamps = Stamps::of_new(&top, place.as_fd(), &journal).unwrap();
        let options = WriteOptions { threads: 1, group_write: false };
        let (blobs, cancel) = (Blobs::of(&[&to]), CancellationToken::new());
        let write = DeltaWrite { delta: &delta, blobs: &blobs, shared: None, options: &options };
        let locked = journal.lock(first.st_ino); // here it waits, after its look at the token
        std::thread::scope(|scope| {
            let carried = scope.spawn(|| {
                let (place, stamps) = (place.as_fd(), &mut stamps);
                carry_forward(&top, place, "new", &write, stamps, &cancel).map(drop)
            });
            while !dir.path().join("new/0").exists() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            cancel.cancel();
            drop(locked);
            assert!(matches!(carried.join().unwrap(), Err(Error::Cancelled)));
        });
        let moved = std::fs::read_dir(dir.path().join("new")).unwrap().count();
        assert!(moved <= UNCHECKED_MAX + 1, "{moved} files were moved after that");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_tree_carried_through_deltas_equals_a_fresh_write(steps in prop::collection::vec(trees(), 2..8)) {
            let rules = Rules { symlinks: Symlinks::Keep, ..Rules::default() };
            let options = WriteOptions { threads: 2, group_write: false };
            let dir = tempfile::tempdir().unwrap();
            let place = fsx::open_dir_at_path(dir.path()).unwrap();
            let blobs = Blobs::of(&steps.iter().collect::<Vec<_>>());
            let cancel = CancellationToken::new();
            let first = payload(&steps[0], rules).unwrap();
            let mut top =
                stage::write(place.as_fd(), "0".as_ref(), &first, &blobs, &options, &cancel).unwrap();
            let journal = Arc::new(Journal::start().unwrap());
            let mut stamps = Stamps::of_new(&top, place.as_fd(), &journal).unwrap();
            for (at, pair) in (1..).zip(steps.windows(2)) {
                let delta = delta(&pair[0], &pair[1], rules).unwrap();
                let name = at.to_string();
                let write = DeltaWrite { delta: &delta, blobs: &blobs, shared: None, options: &options };
                let carried =
                    carry_forward(&top, place.as_fd(), &name, &write, &mut stamps, &cancel).unwrap();
                top = carried.0;
                prop_assert_eq!(read_back(&dir.path().join(&name)), expected(&pair[1]));
                prop_assert_eq!(stamps.check_directories(&top, &cancel).unwrap(), None, "they are ours");
                if at == 1 {
                    durable::make_durable(top.as_fd(), crate::store::Durability::Syncfs, &carried.1).unwrap();
                }
                if at % 2 == 0 {
                    let found = stamps.rescan(&top, place.as_fd(), Paths::Keep, &cancel).unwrap();
                    prop_assert_eq!(found, None, "all of it is ours");
                }
            }
        }
    }
}
