//! Sharing: an unchanged file is one inode in several generations, by hard links.
//!
//! A file is linked only where a look right before shows that it is ours and that nobody else changed it since it was
//! published; else it is written anew, as it is where the file system refuses (`EMLINK`: 65,000 links on ext4). What
//! somebody writes into a shared file in place shows in every generation that has it, until a scrub finds it.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::reap::Need;
use super::stage::{self, Dirs, Modes, WriteOptions, alive, io_error};
use super::stamps::Stamps;
use crate::fsx;
use crate::payload::{BlobSource, Delta, Kind, Payload, join};

/// A generation whose files may be linked into other trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linkable<'s> {
    pub(super) top: BorrowedFd<'s>,
    pub(super) stamps: &'s Stamps,
}

/// Makes links to its files.
pub(super) struct Linker<'s> {
    from: Dirs<'s>,
    stamps: &'s Stamps,
    modes: Modes,
    /// Who writes files here: others could change theirs.
    user: u32,
}

impl<'s> Linker<'s> {
    pub(super) fn new(source: Linkable<'s>, modes: Modes) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self { from: Dirs::new(source.top), stamps: source.stamps, modes, user }
    }

    /// Links the file `name` in the directory `dir` to the same name in `to`. False: it has to be written.
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
        let is_alike = fsx::file_type(&before).is_file()
            && before.st_mode & 0o7777 == mode
            && before.st_uid == self.user
            && before.st_size.unsigned_abs() == size;
        if !is_alike
            || !self.stamps.hold_with(&journal, &before)
            || rustix::fs::linkat(from, name, to, name, AtFlags::empty()).is_err()
        {
            return false;
        }
        if let Ok(Some(after)) = fsx::stat(to, name) {
            journal.changed(&before, &after); // what is not noted counts as somebody else's
        }
        true
    }
}

/// Makes the new directory `name` in `parent` from the payload of `source`, of links as far as can be. Returns it, and how
/// much of it is files that were written.
pub(super) fn link(
    parent: BorrowedFd<'_>,
    name: &str,
    source: Linkable<'_>,
    payload: &Payload,
    blobs: &dyn BlobSource,
    options: &WriteOptions,
    cancel: &CancellationToken,
) -> Result<(OwnedFd, Need), Error> {
    let modes = Modes::of(options);
    let mut copied = Need::default();
    let top =
        fsx::make_dir(parent, name, modes.dir).map_err(io_error("make the directory", name.as_bytes()))?;
    stage::make_dirs(top.as_fd(), payload, modes, cancel)?;
    let mut reader = blobs.reader().map_err(stage::blob_error(b"."))?;
    let mut linker = Linker::new(source, modes);
    let mut dirs = Dirs::new(top.as_fd());
    for share in stage::shares(payload) {
        alive(cancel)?;
        let path = &payload.dir_path(share.dir);
        let to = dirs.open(path)?;
        fsx::set_mode(to, modes.dir).map_err(io_error("set the mode of", path))?;
        for entry in share.entries(payload).iter().filter(|entry| entry.kind != Kind::Symlink) {
            let name = payload.name(entry);
            if linker.link(path, name, to, entry.kind, entry.size) {
                continue;
            }
            if entry.kind != Kind::Submodule {
                copied = copied.and(Need { bytes: entry.size, entries: 1 });
            }
            let full = || join(path, name);
            stage::write_entry(to, name, &full, entry.kind, &entry.id, entry.size, &mut *reader, modes)?;
            if let Some(stat) = fsx::stat(to, name).map_err(io_error("look at", &full()))? {
                source.stamps.journal().made(&stat);
            }
        }
    }
    stage::write_links(top.as_fd(), payload, blobs, modes, cancel)?;
    Ok((top, copied))
}

/// Makes what a delta adds and changes, in a tree that has nothing of that name. Files are linked to those of `source`,
/// a tree of the delta's revision, as far as can be; returns the paths of these.
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
        alive(cancel)?;
        stage::make_dir(&mut dirs, path, modes)?;
    }
    let mut linked = HashSet::new();
    let mut linker = source.map(|source| Linker::new(source, modes));
    let mut reader = blobs.reader().map_err(stage::blob_error(b"."))?;
    // Symbolic links last: no path that is still to be written leads through one.
    let (links, others): (Vec<_>, Vec<_>) =
        delta.written.iter().partition(|(_, kind, ..)| *kind == Kind::Symlink);
    for (path, kind, id, size) in others.into_iter().chain(links) {
        alive(cancel)?;
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
