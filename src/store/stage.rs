//! The tree writer: writes a checked payload from blobs straight to files, through directory handles.
//!
//! It promises:
//! - It writes only below the new directory that it creates: every directory is opened beneath that handle without
//!   following symlinks (`openat2`), every file is created with `O_EXCL | O_NOFOLLOW`, and symlinks are created last. A
//!   name collision is an error and never overwrites anything.
//! - Modes are exact regardless of the umask: files 0644 or 0755, directories 0755 (0664 and 0775 with
//!   `group_write`). A setgid bit that the operator set on the root (as `fsGroup` does) is inherited by directories;
//!   no other mode bits are set.
//! - Open descriptors are bounded: two per thread. Cancellation is checked between entries, at the latest after a
//!   megabyte or 256 entries.
//!
//! The mtime of a file is the time of writing. It increases from one generation to the next where content changed, as
//! readers that compare mtimes need; the commit's time would go back at a rollback.
//!
//! It does not check names and sizes (the payload was checked), does not publish, and does not clean up after a
//! failure: the caller discards the new directory.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::Mode;
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::fsx;
use crate::payload::{BlobError, BlobReader, BlobSource, Entry, Kind, Payload, escaped, join, split};
use crate::revision::{ObjectId, Revision};

/// How many shares a thread claims at once: enough that the counter is not contended, few enough that all threads end
/// at about the same time.
const CLAIM: usize = 8;
/// The most entries in a share. A huge directory is split into several shares, so that several threads write it.
const SHARE: usize = 512;
/// A blob is in memory while its file is written. Blobs above this size are written one at a time, so that only one of
/// them is in memory and not one per thread; more would not make the disk faster.
const LARGE: u64 = 8 << 20;

/// A thread checks for cancellation after this many bytes. The token has a lock, which all threads would otherwise take
/// for each file.
const CHECK_INTERVAL: u64 = 1 << 20;
/// The least number of bytes that an entry counts toward [`CHECK_INTERVAL`].
const MIN_COUNTED: u64 = 4 << 10;
/// The most entries that a thread handles between two checks for cancellation.
pub(super) const UNCHECKED_MAX: usize = (CHECK_INTERVAL / MIN_COUNTED) as usize;

/// Held while a blob above [`LARGE`] is written.
static LARGE_LOCK: Mutex<()> = Mutex::new(());

/// How to write a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOptions {
    /// Number of threads that write files.
    pub(super) threads: usize,
    /// Make files and directories writable by the group.
    pub(super) group_write: bool,
}

/// Writes the payload into the new directory `name` in `parent`, and returns the directory.
pub(super) fn write(
    parent: BorrowedFd<'_>,
    name: &Path,
    payload: &Payload,
    blobs: &dyn BlobSource,
    options: &WriteOptions,
    cancel: &CancellationToken,
) -> Result<OwnedFd, Error> {
    let modes = Modes::of(options);
    let top = fsx::make_dir(parent, name, modes.dir)
        .map_err(Error::io("make the directory", escaped(name.as_os_str().as_bytes())))?;
    make_dirs(top.as_fd(), payload, modes, cancel)?;
    write_files(top.as_fd(), payload, blobs, options.threads, modes, cancel)?;
    write_symlinks(top.as_fd(), payload, blobs, modes, cancel)?;
    Ok(top)
}

/// The modes of everything in a tree.
#[derive(Clone, Copy)]
pub(super) struct Modes {
    pub(super) dir: u32,
    file: u32,
    executable: u32,
}

impl Modes {
    pub(super) fn of(options: &WriteOptions) -> Self {
        let group = if options.group_write { 0o020 } else { 0 };
        Self { dir: 0o755 | group, file: 0o644 | group, executable: 0o755 | group }
    }

    /// Returns true if a file can have these permission bits.
    pub(super) fn are_of_a_file(&self, bits: u32) -> bool {
        bits == self.file || bits == self.executable
    }

    /// The mode of a file. `None` for symlinks and submodules.
    pub(super) fn of_file(&self, kind: Kind) -> Option<u32> {
        match kind {
            Kind::File => Some(self.file),
            Kind::Executable => Some(self.executable),
            Kind::Symlink | Kind::Submodule => None,
        }
    }
}

/// Opens directories beneath a top directory without following symlinks. Keeps the last one open.
pub(super) struct Dirs<'t> {
    top: BorrowedFd<'t>,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl<'t> Dirs<'t> {
    pub(super) fn new(top: BorrowedFd<'t>) -> Self {
        Self { top, last: None }
    }

    /// Opens the directory at `path`; an empty path is the top directory.
    pub(super) fn open(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, Error> {
        if path.is_empty() {
            return Ok(self.top);
        }
        if self.last.as_ref().is_none_or(|(last, _)| last != path) {
            let fd = fsx::open_beneath(self.top, OsStr::from_bytes(path))
                .map_err(io_error("open the directory", path))?;
            self.last = Some((path.to_vec(), fd));
        }
        Ok(self.last.as_ref().map_or(self.top, |(_, fd)| fd.as_fd()))
    }
}

/// Creates all directories of the payload.
fn make_dirs(
    top: BorrowedFd<'_>,
    payload: &Payload,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let mut dirs = Dirs::new(top);
    for dir in (1..).take(payload.dir_count() - 1) {
        check_cancelled(cancel)?;
        let path = &payload.dir_path(dir);
        let (parent, name) = split(path);
        // The umask may remove bits here. The thread that writes the directory's files corrects the mode, because it
        // opens the directory anyway.
        rustix::fs::mkdirat(dirs.open(parent)?, name, Mode::from_raw_mode(modes.dir))
            .map_err(|errno| create_error("make the directory", path, errno.into()))?;
    }
    Ok(())
}

/// Creates one directory with its mode.
pub(super) fn make_dir(dirs: &mut Dirs<'_>, path: &[u8], modes: Modes) -> Result<(), Error> {
    let (parent, name) = split(path);
    fsx::make_dir(dirs.open(parent)?, name, modes.dir)
        .map(drop)
        .map_err(|error| create_error("make the directory", path, error))
}

/// A range of entries of one directory. It has 12 bytes, because there may be a million of them.
#[derive(Clone, Copy, Debug)]
struct Share {
    dir: u32,
    start: u32,
    end: u32,
}

impl Share {
    fn entries<'p>(&self, payload: &'p Payload) -> &'p [Entry] {
        &payload.entries[self.start as usize..self.end as usize]
    }
}

/// Divides the payload into shares: one per directory, several for a huge one.
fn shares(payload: &Payload) -> Vec<Share> {
    let mut shares = Vec::with_capacity(payload.dir_count());
    let mut end = 0;
    for dir in (0..).take(payload.dir_count()) {
        let start = end;
        let rest = &payload.entries[start as usize..];
        end += rest.iter().take_while(|entry| entry.dir == dir).count() as u32; // a payload has fewer entries than 2^32
        if start == end {
            shares.push(Share { dir, start, end }); // so that an empty directory gets its mode
        }
        let starts = (start..end).step_by(SHARE);
        shares.extend(starts.map(|start| Share { dir, start, end: end.min(start + SHARE as u32) }));
    }
    shares
}

/// Sorts the shares by the blob order that is best for the source, as far as whole shares allow: git stores blobs as
/// deltas, and the source caches only the latest delta bases.
fn ordered_shares(payload: &Payload, order: &[u32]) -> Vec<Share> {
    let mut ranks = vec![u32::MAX; payload.entries.len()];
    for (rank, at) in (0..).zip(order) {
        if let Some(of) = ranks.get_mut(*at as usize) {
            *of = rank;
        }
    }
    let mut shares = shares(payload);
    let rank = |share: &Share| ranks[share.start as usize..share.end as usize].iter().min();
    shares.sort_unstable_by_key(|share| (rank(share), share.dir, share.start));
    shares
}

/// Writes everything except symlinks, with several threads. The first failure stops all of them.
fn write_files(
    top: BorrowedFd<'_>,
    payload: &Payload,
    blobs: &dyn BlobSource,
    threads: usize,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let shares = ordered_shares(payload, &blobs.order(&ids(payload)));
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failed = Mutex::new(None);
    let work = || -> Result<(), Error> {
        let mut reader = blobs.reader().map_err(blob_error(b"."))?;
        let mut dirs = Dirs::new(top);
        let mut unchecked = 0;
        loop {
            let start = next.fetch_add(CLAIM, Ordering::Relaxed);
            let Some(claimed) = shares.get(start..shares.len().min(start + CLAIM)) else { return Ok(()) };
            check_cancelled(cancel)?;
            for share in claimed {
                let path = &payload.dir_path(share.dir);
                let fd = dirs.open(path)?;
                fsx::set_mode(fd, modes.dir).map_err(io_error("set the mode of", path))?;
                for entry in share.entries(payload).iter().filter(|entry| entry.kind != Kind::Symlink) {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    if unchecked >= CHECK_INTERVAL {
                        check_cancelled(cancel)?;
                        unchecked = 0;
                    }
                    unchecked += entry.size.max(MIN_COUNTED);
                    let name = payload.name(entry);
                    let full = || join(path, name);
                    write_entry(fd, name, &full, entry.kind, &entry.id, entry.size, &mut *reader, modes)?;
                }
            }
        }
    };
    crate::threads::on_threads(threads.clamp(1, shares.len().max(1)), || {
        if let Err(error) = work() {
            stop.store(true, Ordering::Relaxed);
            if let Ok(mut failed) = failed.lock() {
                failed.get_or_insert(error);
            }
        }
    });
    match failed.into_inner() {
        Ok(Some(error)) => Err(error),
        Ok(None) => Ok(()),
        Err(_) => Err(Error::Cancelled),
    }
}

fn ids(payload: &Payload) -> Vec<ObjectId> {
    payload.entries.iter().map(|entry| entry.id).collect()
}

/// Creates all symlinks of the payload.
fn write_symlinks(
    top: BorrowedFd<'_>,
    payload: &Payload,
    blobs: &dyn BlobSource,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let mut links = payload.entries.iter().filter(|entry| entry.kind == Kind::Symlink).peekable();
    if links.peek().is_none() {
        return Ok(());
    }
    let mut reader = blobs.reader().map_err(blob_error(b"."))?;
    let mut dirs = Dirs::new(top);
    for entry in links {
        check_cancelled(cancel)?;
        let path = &payload.dir_path(entry.dir);
        let name = payload.name(entry);
        let full = || join(path, name);
        let dir = dirs.open(path)?;
        write_entry(dir, name, &full, entry.kind, &entry.id, entry.size, &mut *reader, modes)?;
    }
    Ok(())
}

/// Creates one file, symlink or submodule directory. An existing name is an error and is left as it is.
#[expect(clippy::too_many_arguments, reason = "an entry of a payload and an entry of a delta share no type")]
pub(super) fn write_entry(
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: &dyn Fn() -> Vec<u8>,
    kind: Kind,
    id: &ObjectId,
    size: u64,
    reader: &mut dyn BlobReader,
    modes: Modes,
) -> Result<(), Error> {
    let mode = match kind {
        Kind::File => modes.file,
        Kind::Executable => modes.executable,
        Kind::Symlink => {
            let make = &mut |target: &[u8]| rustix::fs::symlinkat(target, dir, name).map_err(io::Error::from);
            return with_blob(path, "make the link", id, size, reader, make);
        }
        Kind::Submodule => {
            let made = fsx::make_dir(dir, name, modes.dir).map(drop);
            return made.map_err(|error| create_error("make the directory", &path(), error));
        }
    };
    let mut file =
        fsx::create_new(dir, name, mode).map_err(|error| create_error("create", &path(), error))?;
    with_blob(path, "write", id, size, reader, &mut |bytes| file.write_all(bytes))
}

/// Reads a blob and passes it to `make`. Fails if the blob does not have the size that the payload was checked with.
fn with_blob(
    path: &dyn Fn() -> Vec<u8>,
    act: &'static str,
    id: &ObjectId,
    size: u64,
    reader: &mut dyn BlobReader,
    make: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Error> {
    let _turn = (size > LARGE).then(|| LARGE_LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    let mut found = 0;
    let read = reader.read(id, &mut |bytes| {
        found = bytes.len() as u64;
        if found == size { make(bytes) } else { Ok(()) }
    });
    match read {
        Err(BlobError::Sink(error)) => Err(create_error(act, &path(), error)),
        Err(source) => Err(blob_error(&path())(source)),
        Ok(()) if found != size => {
            let why = format!("blob {id} has {found} bytes instead of {size}");
            Err(Error::Miswritten { path: display_path(&path()), why })
        }
        Ok(()) => Ok(()),
    }
}

/// The file by which git recognizes a worktree. No git tree may have an entry of that name.
pub(super) const GIT_FILE: &str = ".git";

/// The content of that file: the path of git's administrative directory for the worktree. It is relative, so that it
/// stays valid at any mount point of the volume.
pub(super) fn git_file(revision: Revision) -> String {
    format!("gitdir: ../../.git/worktrees/{revision}\n")
}

/// Writes that file into a staged directory.
pub(super) fn write_git_file(
    top: BorrowedFd<'_>,
    revision: Revision,
    options: &WriteOptions,
) -> Result<(), Error> {
    fsx::create_new(top, GIT_FILE, Modes::of(options).file)
        .and_then(|mut file| file.write_all(git_file(revision).as_bytes()))
        .map_err(io_error("write", GIT_FILE.as_bytes()))
}

/// Returns [`Error::Cancelled`] if the work was cancelled.
pub(super) fn check_cancelled(cancel: &CancellationToken) -> Result<(), Error> {
    if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

/// A path for a message: relative to the tree, with characters escaped that could harm a terminal.
pub(super) fn display_path(path: &[u8]) -> PathBuf {
    PathBuf::from(escaped(path))
}

/// Returns a closure for `map_err` that turns an I/O error into an error of this operation on this path.
pub(super) fn io_error<E: Into<io::Error>>(act: &'static str, path: &[u8]) -> impl FnOnce(E) -> Error {
    move |error| Error::Io { act, path: display_path(path), source: error.into() }
}

/// Returns a closure for `map_err` that turns a blob's error into an error for the file at this path.
pub(super) fn blob_error(path: &[u8]) -> impl FnOnce(BlobError) -> Error {
    move |source| Error::Blob { path: display_path(path), source }
}

/// The error of creating a name that must not exist yet. A payload has no name twice in a directory, so an existing
/// name means that the file system treats two names as the same.
fn create_error(act: &'static str, path: &[u8], error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Folded { path: display_path(path) },
        _ => io_error(act, path)(error),
    }
}

#[cfg(test)]
mod tests;
