//! Moves foreign files and directories that have one of our names out of the way, without reading them.
//!
//! `..treeswap` belongs to us, but everybody with write access to the volume can put anything there. A start must not
//! need an operator because of it (promise 4), and nothing foreign is deleted.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Access, AtFlags, FileType};
use rustix::io::Errno;

use crate::fsx::{self, Flush};
use crate::store::names::{LOCK, QUARANTINE};

/// Moves `name` in `from` to a new name in `to`, and returns the new name.
pub(super) fn move_to(from: impl AsFd, name: &OsStr, to: &OwnedFd, prefix: &str) -> io::Result<String> {
    to_new_name(prefix, |new| fsx::rename_new(from.as_fd(), name, to, new))
}

/// Calls `rename` with new names until one is not taken, and returns that.
pub(super) fn to_new_name(prefix: &str, rename: impl Fn(&str) -> io::Result<()>) -> io::Result<String> {
    loop {
        let new = fsx::unique(prefix);
        match rename(&new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // made by an earlier process
            moved => return moved.map(|()| new),
        }
    }
}

/// Moves `name` aside unless it is missing or has this type. Returns the new name if it was moved.
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
        // Another writer that is starting at the same time moved it first, and we have moved that writer's own: undo.
        fsx::rename_new(dir, to.as_str(), dir, name)?;
        return Ok(None);
    }
    Ok(Some(to))
}

/// Opens a directory in our private directory, creating it with `mode` if it is missing. The second value is the new
/// name of something foreign that was moved out of the way: also of a directory that we may not open or write to.
pub(super) fn open_dir(private: &OwnedFd, name: &str, mode: u32) -> io::Result<(OwnedFd, Option<String>)> {
    let moved = quarantine_unless(private, name, FileType::Directory, QUARANTINE)?;
    match fsx::ensure_dir(private, name, mode).and_then(writable) {
        Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied => {
            // If this start cannot take the lock either, its holder may be using the directory.
            let lock =
                rustix::fs::accessat(private, LOCK, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
            if lock == Err(Errno::ACCESS) {
                return Err(denied);
            }
            // Our own needs nothing but its mode.
            let with_mode = |dir: OwnedFd| fsx::set_mode(&dir, mode).and_then(|()| writable(dir));
            if let Ok(dir) = fsx::open_dir(private, name).and_then(with_mode) {
                return Ok((dir, moved));
            }
            let Ok(closed) = move_closed(private, name) else { return Err(denied) };
            Ok((fsx::ensure_dir(private, name, mode)?, closed))
        }
        opened => Ok((opened?, moved)),
    }
}

/// Fails if this user has no permission to write to a directory. A read-only file system is not such a case.
fn writable(dir: OwnedFd) -> io::Result<OwnedFd> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(&dir, ".", access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Err(Errno::ACCESS.into()),
        _ => Ok(dir),
    }
}

/// Moves a directory aside that cannot be opened or written to. Returns its new name. `None` if another writer that is
/// starting at the same time did so first.
fn move_closed(private: &OwnedFd, name: &str) -> io::Result<Option<String>> {
    let to = move_to(private, name.as_ref(), private, QUARANTINE)?;
    if fsx::open_dir(private, to.as_str()).and_then(writable).is_ok() {
        fsx::rename_new(private, to.as_str(), private, name)?; // that writer's own: undo
        return Ok(None);
    }
    Ok(Some(to))
}

/// Replaces one of our files atomically. If a directory has its name, moves that aside first.
pub(super) fn replace_file(private: &OwnedFd, name: &str, bytes: &[u8], flush: Flush) -> io::Result<()> {
    const MODE: u32 = 0o644;
    match fsx::replace_file(private, name, bytes, MODE, flush) {
        // A rename fails over a directory, and over nothing else.
        Err(_) if quarantine_unless(private, name, FileType::RegularFile, QUARANTINE)?.is_some() => {
            fsx::replace_file(private, name, bytes, MODE, flush)
        }
        done => done,
    }
}
