//! Shares unchanged files between generations: a file is one inode in several of them, by hard links.
//!
//! A file is linked only if a stat right before the link shows that it is ours and has no foreign write since it was
//! published. Otherwise, or if the file system refuses the link (`EMLINK`: 65,000 links on ext4), content comes from the
//! mirror again: of that file in a delta, of the whole tree for a spare. A foreign write in place into a shared file
//! appears in every generation that has the file, until a scrub detects it.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::path::Arg;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Error;
use super::journal::Changes;
use super::stage::{self, Dirs, Modes, check_cancelled, io_error};
use super::stamps::{self, Stamps};
use crate::fsx;
use crate::payload::{BlobSource, Delta, Kind, join};

/// A generation whose files may be hard-linked into other trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linkable<'s> {
    pub(super) top: BorrowedFd<'s>,
    pub(super) stamps: &'s Stamps,
}

/// Makes hard links to single files of a [`Linkable`].
pub(super) struct Linker<'s> {
    from: Dirs<'s>,
    stamps: &'s Stamps,
    modes: Modes,
    user: u32,
}

impl<'s> Linker<'s> {
    pub(super) fn new(source: Linkable<'s>, modes: Modes) -> Self {
        Self { from: Dirs::new(source.top), stamps: source.stamps, modes, user: user() }
    }

    /// Hard-links the file `name` in the directory `dir` to the same name in `to`. Returns false if it must be written
    /// instead.
    pub(super) fn link(
        &mut self,
        dir: &[u8],
        name: &[u8],
        to: BorrowedFd<'_>,
        kind: Kind,
        size: u64,
    ) -> bool {
        let Some(mode) = self.modes.of_file(kind) else { return false };
        let Ok(from) = self.from.open(dir) else { return false };
        let Ok(Some((before, mut journal))) = self.stamps.lock_entry(from, name) else { return false };
        let is_same = fsx::file_type(&before).is_file()
            && before.st_mode & 0o7777 == mode
            && before.st_uid == self.user
            && before.st_size.unsigned_abs() == size;
        is_same && link_file(&mut journal, from, name, to, &before).is_ok()
    }
}

/// Our uid. A file of another user is not linked, because that user could change it.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the hard link, and records in the journal that it changed the inode's ctime, which was `before`'s.
fn link_file(
    journal: &mut Changes,
    from: BorrowedFd<'_>,
    name: impl Arg + Copy,
    to: BorrowedFd<'_>,
    before: &Stat,
) -> io::Result<()> {
    rustix::fs::linkat(from, name, to, name, AtFlags::empty())?;
    if let Ok(Some(after)) = fsx::stat(to, name) {
        journal.record_change(before, &after); // an unrecorded change is treated as a foreign write
    }
    Ok(())
}

/// A tree of hard links.
pub(super) struct LinkedTree {
    pub(super) top: OwnedFd,
    /// The tree's stamps.
    pub(super) stamps: Stamps,
    /// Number of files, symlinks and directories in it.
    pub(super) entries: u64,
    /// Sum of the sizes of its files and symlinks, in bytes.
    pub(super) bytes: u64,
}

/// Creates the tree `name` in `parent` as a copy of `source` that shares its files. Reads the directories of `source`
/// and neither git's objects nor the files. `None`, with an incomplete tree, if something in `source` cannot be linked:
/// it has a foreign write, or the file system refuses.
pub(super) fn link_tree(
    parent: BorrowedFd<'_>,
    name: &str,
    source: Linkable<'_>,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<Option<LinkedTree>, Error> {
    let failed = || io_error("make the directory", name.as_bytes());
    let since = stamps::file_system_time(parent).map_err(failed())?;
    let from = source.top.try_clone_to_owned().map_err(failed())?;
    let top = fsx::make_dir(parent, name, modes.dir).map_err(failed())?;
    let user = user();
    let mut walk = TreeLinker {
        stamps: source.stamps,
        modes,
        user,
        cancel,
        path: Vec::new(),
        dirs: Vec::new(),
        entries: 0,
        bytes: 0,
    };
    if !walk.directory(&from, &top)? {
        debug!(path = %stage::display_path(&walk.path).display(), "the current generation cannot be linked");
        return Ok(None);
    }
    let stamps = source.stamps.of_linked(since, &top, walk.dirs, parent).map_err(failed())?;
    Ok(Some(LinkedTree { top, stamps, entries: walk.entries, bytes: walk.bytes }))
}

/// The state of [`link_tree`].
struct TreeLinker<'s> {
    stamps: &'s Stamps,
    modes: Modes,
    user: u32,
    cancel: &'s CancellationToken,
    /// The path of the current directory.
    path: Vec<u8>,
    /// The paths of all directories, each ended by a zero byte.
    dirs: Vec<u8>,
    entries: u64,
    bytes: u64,
}

impl TreeLinker<'_> {
    /// Links everything in the directory `from` into the new directory `to`. Returns false if something in it cannot be
    /// linked.
    fn directory(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<bool, Error> {
        check_cancelled(self.cancel)?;
        let is_top = self.path.is_empty();
        let depth = self.path.iter().filter(|byte| **byte == b'/').count();
        let stat = rustix::fs::fstat(from).map_err(io_error("stat", &self.path))?;
        let is_ours = if is_top { self.stamps.accepts_top(&stat) } else { self.stamps.accepts(&stat) };
        if !is_ours || depth >= stamps::DEPTH_MAX || self.dirs.len() > stamps::DIRS_MAX {
            return Ok(false);
        }
        let mut below = Vec::new();
        let mut is_linked = true;
        fsx::each(from, |name, kind| {
            if kind == FileType::Directory {
                below.push(name.to_owned());
            } else if is_linked {
                is_linked = self.entry(from.as_fd(), name, to.as_fd())?;
            }
            Ok(())
        })
        .map_err(io_error("link the files in", &self.path))?;
        for name in below {
            if !is_linked {
                break;
            }
            is_linked = self.subdirectory(from, &name, to)?;
        }
        Ok(is_linked)
    }

    fn subdirectory(&mut self, from: &OwnedFd, name: &CStr, to: &OwnedFd) -> Result<bool, Error> {
        let length = self.path.len();
        self.path = join(&self.path, name.to_bytes());
        self.dirs.extend_from_slice(&self.path);
        self.dirs.push(0);
        self.entries += 1;
        let from = fsx::open_dir(from, name).map_err(io_error("open the directory", &self.path))?;
        let to =
            fsx::make_dir(to, name, self.modes.dir).map_err(io_error("make the directory", &self.path))?;
        let is_linked = self.directory(&from, &to)?;
        if is_linked {
            self.path.truncate(length);
        }
        Ok(is_linked)
    }

    /// Links a file, or copies a symlink. Returns false if that is not possible.
    fn entry(&mut self, from: BorrowedFd<'_>, name: &CStr, to: BorrowedFd<'_>) -> io::Result<bool> {
        let Some((before, mut journal)) = self.stamps.lock_entry(from, name)? else { return Ok(false) };
        self.entries += 1;
        self.bytes += before.st_size.unsigned_abs();
        match fsx::file_type(&before) {
            FileType::RegularFile => {
                let is_ours = self.modes.are_of_a_file(before.st_mode & 0o7777) && before.st_uid == self.user;
                Ok(is_ours && link_file(&mut journal, from, name, to, &before).is_ok())
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Creates the files and directories that a delta adds or changes, in a tree that has nothing under these names yet.
/// Files are hard-linked from `source`, a tree of the delta's new revision, where possible. Returns the paths that
/// were linked.
pub(super) fn write_delta<'d>(
    top: BorrowedFd<'_>,
    delta: &'d Delta,
    blobs: &dyn BlobSource,
    source: Option<Linkable<'_>>,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<HashSet<&'d [u8]>, Error> {
    let mut dirs = Dirs::new(top);
    for path in &delta.added_dirs {
        check_cancelled(cancel)?;
        stage::make_dir(&mut dirs, path, modes)?;
    }
    let mut linked = HashSet::new();
    let mut linker = source.map(|source| Linker::new(source, modes));
    let mut reader = blobs.reader().map_err(stage::blob_error(b"."))?;
    // Symlinks come last, so that no path that is still to be written goes through one.
    let (symlinks, others): (Vec<_>, Vec<_>) =
        delta.written.iter().partition(|(_, kind, ..)| *kind == Kind::Symlink);
    for (path, kind, id, size) in others.into_iter().chain(symlinks) {
        check_cancelled(cancel)?;
        let (dir, name) = stage::split(path);
        let to = dirs.open(dir)?;
        if linker.as_mut().is_some_and(|linker| linker.link(dir, name, to, *kind, *size)) {
            linked.insert(&**path);
        } else {
            stage::write_entry(to, name, &|| path.to_vec(), *kind, id, *size, &mut *reader, modes)?;
        }
    }
    Ok(linked)
}
