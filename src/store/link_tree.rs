//! Makes a tree of hard links: a copy of the current generation that shares its files, to be the next spare.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Error;
use super::linkable::{Linkable, link_file, user};
use super::stage::{self, Modes, io_error};
use super::stamps::{self, Stamps};
use super::tree_walk::{self, Directory, End, StopCheck, Visitor, end_listing};
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
    let linker = TreeLinker { stamps: source.stamps, modes, user: user() };
    let to = top.try_clone().map_err(failed())?;
    let paths_max = Some(stamps::DIRS_MAX);
    let walked = tree_walk::walk(Pair { from, to }, &linker, tree_walk::threads(), paths_max, cancel)?;
    match walked.end {
        None => {}
        Some(End::At(path)) => {
            debug!(path = %stage::display_path(&path).display(), "the current generation cannot be linked");
            return Ok(None);
        }
        Some(End::TooMany) => return Ok(None),
    }
    let stamps = source.stamps.of_linked(since, &top, walked.dirs, parent).map_err(failed())?;
    let entries = walked.counts.iter().map(|count| count.entries).sum();
    let bytes = walked.counts.iter().map(|count| count.bytes).sum();
    Ok(Some(LinkedTree { top, stamps, entries, bytes }))
}

/// The settings of [`link_tree`].
struct TreeLinker<'s> {
    stamps: &'s Stamps,
    modes: Modes,
    user: u32,
}

/// A directory, and the new one that its entries are linked into.
struct Pair {
    from: OwnedFd,
    to: OwnedFd,
}

/// What was linked.
#[derive(Default)]
struct Count {
    entries: u64,
    bytes: u64,
}

impl Visitor for TreeLinker<'_> {
    type Dir = Pair;
    type Count = Count;

    fn open(&self, parent: &Pair, name: &CStr, path: &[u8]) -> Result<Option<Pair>, Error> {
        let from = match fsx::open_dir(&parent.from, name) {
            Err(error) if is_foreign_write(&error) => return Ok(None),
            opened => opened.map_err(io_error("open the directory", path))?,
        };
        let made = fsx::make_dir(&parent.to, name, self.modes.dir);
        let to = made.map_err(io_error("make the directory", path))?;
        Ok(Some(Pair { from, to }))
    }

    /// Links everything in a directory. Ends at what cannot be linked.
    fn visit(
        &self,
        dir: &Directory<Pair>,
        stop: &mut StopCheck<'_>,
        below: &mut Vec<CString>,
        count: &mut Count,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Directory { dir: Pair { from, to }, path, level } = dir;
        let stat = rustix::fs::fstat(from).map_err(io_error("stat", path))?;
        let is_ours = if *level == 0 { self.stamps.accepts_top(&stat) } else { self.stamps.accepts(&stat) };
        if !is_ours || *level > stamps::DEPTH_MAX {
            return Ok(Some(path.clone()));
        }
        count.entries += u64::from(*level > 0);
        let mut refused = None;
        let listed = fsx::each(from, |name, kind| {
            stop.at_name()?;
            if kind == FileType::Directory {
                below.push(name.to_owned());
            } else if !self.entry(from.as_fd(), name, to.as_fd(), count)? {
                refused = Some(join(path, name.to_bytes()));
                return Err(end_listing());
            }
            Ok(())
        });
        if refused.is_none() {
            stop.check()?;
            listed.map_err(io_error("link the files in", path))?;
        }
        Ok(refused)
    }
}

impl TreeLinker<'_> {
    /// Links a file, or copies a symlink. Returns false if that is not possible.
    fn entry(
        &self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: BorrowedFd<'_>,
        count: &mut Count,
    ) -> io::Result<bool> {
        let Some((before, mut journal)) = self.stamps.lock_entry(from, name)? else { return Ok(false) };
        count.entries += 1;
        count.bytes += before.st_size.unsigned_abs();
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
