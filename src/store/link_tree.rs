//! Makes a tree of hard links: a copy of the current generation that shares its files, to be the next spare.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Error;
use super::directory_list::DirectoryList;
use super::linkable::{Linkable, link_file, user};
use super::stage::{self, Modes, UNCHECKED_MAX, check_cancelled, io_error};
use super::stamps::{self, Stamps};
use crate::fsx;
use crate::payload::join;

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
        dirs: DirectoryList::default(),
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
    /// The directories so far.
    dirs: DirectoryList,
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
        if !is_ours || depth >= stamps::DEPTH_MAX || self.dirs.size() > stamps::DIRS_MAX {
            return Ok(false);
        }
        let mut below = Vec::new();
        let mut is_linked = true;
        let mut seen = 0;
        let listed = fsx::each(from, |name, kind| {
            seen += 1;
            if seen % UNCHECKED_MAX == 0 && self.cancel.is_cancelled() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if kind == FileType::Directory {
                below.push(name.to_owned());
            } else if is_linked {
                is_linked = self.entry(from.as_fd(), name, to.as_fd())?;
            }
            Ok(())
        });
        check_cancelled(self.cancel)?;
        listed.map_err(io_error("link the files in", &self.path))?;
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
        self.dirs.push(&self.path);
        self.entries += 1;
        let from = match fsx::open_dir(from, name) {
            Err(error) if is_foreign_write(&error) => return Ok(false),
            opened => opened.map_err(io_error("open the directory", &self.path))?,
        };
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
                Ok(is_ours && link_file(&mut journal, from, name, to, &before)?)
            }
            FileType::Symlink => {
                let target = match rustix::fs::readlinkat(from, name, Vec::new()) {
                    Err(error) if is_foreign_write(&error.into()) => return Ok(false),
                    read => read?,
                };
                rustix::fs::symlinkat(&target, to, name)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Returns true if a name that we published cannot be read because another process removed it, replaced it or took our
/// permission.
fn is_foreign_write(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::ACCESS))
}

#[cfg(test)]
mod tests;
