//! Shares unchanged files between generations: a file is one inode in several of them, by hard links.
//!
//! A file is linked only if a stat right before the link shows that it is ours and has no foreign write since it was
//! published. Otherwise, or if the file system refuses the link (`EMLINK`: 65,000 links on ext4) or the journal is full,
//! content comes from the mirror again: of that file in a delta, of the whole tree for a spare ([`super::link_tree`]). A
//! foreign write in place into a shared file appears in every generation that has the file, until a scrub detects it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::journal::Changes;
use super::stage::{Dirs, Modes};
use super::stamps::Stamps;
use crate::fsx;
use crate::payload::Kind;

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
        // If the file system is full, writing the file fails and says so.
        is_same && matches!(link_file(&mut journal, from, name, to, &before), Ok(true))
    }
}

/// Our uid. A file of another user is not linked, because that user could change it.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the hard link, and records in the journal that it changed the inode's ctime, which was `before`'s. Returns false
/// if the content must be copied instead, because the file system refuses or the journal is full. A copy needs more room
/// than a link, so no room for a link is an error.
pub(super) fn link_file(
    journal: &mut Changes,
    from: BorrowedFd<'_>,
    name: impl Arg + Copy,
    to: BorrowedFd<'_>,
    before: &Stat,
) -> io::Result<bool> {
    if !journal.has_room_for(before.st_ino) {
        return Ok(false);
    }
    match rustix::fs::linkat(from, name, to, name, AtFlags::empty()) {
        Ok(()) => {}
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error.into()),
        Err(_) => return Ok(false),
    }
    if let Ok(Some(after)) = fsx::stat(to, name) {
        journal.record_change(before, &after); // an unrecorded change is treated as a foreign write
    }
    Ok(true)
}
