//! What stands under our own names without being ours: it is moved aside, unread, and never waited for.
//!
//! Everything in `..treeswap` is ours, but every writer to the volume can put anything there. A start must need no
//! operator for it (P4), and nothing of others is destroyed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;

use crate::fsx::{self, Flush};
use crate::store::names::{DIR_MODE, QUARANTINE};

/// Moves a name of `from` to a new name in `to`, and says which.
pub(super) fn move_to(from: &OwnedFd, name: &OsStr, to: &OwnedFd, prefix: &str) -> io::Result<String> {
    loop {
        let new = fsx::unique(prefix);
        match fsx::rename_new(from, name, to, new.as_str()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // of a process before us
            moved => return moved.map(|()| new),
        }
    }
}

/// Moves what is under one of our names aside unless it is of this kind. To which name, if it did.
pub(super) fn quarantine_unless(
    dir: &OwnedFd,
    name: &str,
    kind: FileType,
    prefix: &str,
) -> io::Result<Option<String>> {
    let is_right =
        |name: &str| Ok::<_, io::Error>(fsx::stat(dir, name)?.map(|stat| fsx::file_type(&stat) == kind));
    if is_right(name)? != Some(false) {
        return Ok(None);
    }
    let to = move_to(dir, name.as_ref(), dir, prefix)?;
    if is_right(&to)? == Some(true) {
        // Another writer, who starts in this moment, did it before us, and this is what it made.
        fsx::rename_new(dir, to.as_str(), dir, name)?;
        return Ok(None);
    }
    Ok(Some(to))
}

/// Opens one of our directories in our own directory, made where it is absent. The warning when something else was
/// there.
pub(super) fn open_dir(private: &OwnedFd, name: &str) -> io::Result<(OwnedFd, Option<String>)> {
    let moved = quarantine_unless(private, name, FileType::Directory, QUARANTINE)?;
    Ok((fsx::ensure_dir(private, name, DIR_MODE)?, moved))
}

/// Replaces one of our files in one piece, whatever is under its name.
pub(super) fn replace_file(private: &OwnedFd, name: &str, bytes: &[u8], flush: Flush) -> io::Result<()> {
    const MODE: u32 = 0o644;
    match fsx::replace_file(private, name, bytes, MODE, flush) {
        // A rename over a directory fails, over everything else it does not.
        Err(_) if quarantine_unless(private, name, FileType::RegularFile, QUARANTINE)?.is_some() => {
            fsx::replace_file(private, name, bytes, MODE, flush)
        }
        done => done,
    }
}
