//! Shares unchanged files between generations: a file is one inode in several of them, by hard links.
//!
//! A file is linked only if a stat right before the link shows that it is ours and has no foreign write since it was
//! published. Otherwise it is written again, as it is if the file system refuses the link (`EMLINK`: 65,000 links on
//! ext4). A foreign write in place into a shared file appears in every generation that has the file, until a scrub
//! detects it.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::reap::RequiredSpace;
use super::stage::{self, Dirs, Modes, WriteOptions, check_cancelled, io_error};
use super::stamps::Stamps;
use crate::fsx;
use crate::payload::{BlobSource, Delta, Kind, Payload, join};

/// A generation whose files may be hard-linked into other trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linkable<'s> {
    pub(super) top: BorrowedFd<'s>,
    pub(super) stamps: &'s Stamps,
}

/// Makes hard links to the files of a [`Linkable`].
pub(super) struct Linker<'s> {
    from: Dirs<'s>,
    stamps: &'s Stamps,
    modes: Modes,
    /// Our uid. A file of another user is not linked, because that user could change it.
    user: u32,
}

impl<'s> Linker<'s> {
    pub(super) fn new(source: Linkable<'s>, modes: Modes) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self { from: Dirs::new(source.top), stamps: source.stamps, modes, user }
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
        let mut journal = self.stamps.journal();
        let Ok(Some(before)) = fsx::stat(from, name) else { return false };
        let is_same = fsx::file_type(&before).is_file()
            && before.st_mode & 0o7777 == mode
            && before.st_uid == self.user
            && before.st_size.unsigned_abs() == size;
        if !is_same
            || !self.stamps.accepts_with(&journal, &before)
            || rustix::fs::linkat(from, name, to, name, AtFlags::empty()).is_err()
        {
            return false;
        }
        if let Ok(Some(after)) = fsx::stat(to, name) {
            journal.record_change(&before, &after); // an unrecorded change is treated as a foreign write
        }
        true
    }
}

/// Creates the tree `name` in `parent` with the payload of `source`, from hard links where possible. Returns the tree
/// and the size of the files that had to be written.
pub(super) fn link(
    parent: BorrowedFd<'_>,
    name: &str,
    source: Linkable<'_>,
    payload: &Payload,
    blobs: &dyn BlobSource,
    options: &WriteOptions,
    cancel: &CancellationToken,
) -> Result<(OwnedFd, RequiredSpace), Error> {
    let modes = Modes::of(options);
    let mut copied = RequiredSpace::default();
    let top =
        fsx::make_dir(parent, name, modes.dir).map_err(io_error("make the directory", name.as_bytes()))?;
    stage::make_dirs(top.as_fd(), payload, modes, cancel)?;
    let mut reader = blobs.reader().map_err(stage::blob_error(b"."))?;
    let mut linker = Linker::new(source, modes);
    let mut dirs = Dirs::new(top.as_fd());
    for share in stage::shares(payload) {
        check_cancelled(cancel)?;
        let path = &payload.dir_path(share.dir);
        let to = dirs.open(path)?;
        fsx::set_mode(to, modes.dir).map_err(io_error("set the mode of", path))?;
        for entry in share.entries(payload).iter().filter(|entry| entry.kind != Kind::Symlink) {
            let name = payload.name(entry);
            if linker.link(path, name, to, entry.kind, entry.size) {
                continue;
            }
            if entry.kind != Kind::Submodule {
                copied = copied.and(RequiredSpace { bytes: entry.size, entries: 1 });
            }
            let full = || join(path, name);
            stage::write_entry(to, name, &full, entry.kind, &entry.id, entry.size, &mut *reader, modes)?;
            if let Some(stat) = fsx::stat(to, name).map_err(io_error("look at", &full()))? {
                source.stamps.journal().record_creation(&stat);
            }
        }
    }
    stage::write_symlinks(top.as_fd(), payload, blobs, modes, cancel)?;
    Ok((top, copied))
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
