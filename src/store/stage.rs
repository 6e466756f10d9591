//! The tree writer: a checked payload, straight from blobs to files, through directory handles.
//!
//! What it promises:
//! - It writes below the new directory it makes and nowhere else: every directory is opened beneath that handle with
//!   no link followed (`openat2`), every file is made with `O_EXCL | O_NOFOLLOW`, and links are made last, so that a
//!   name collision is an error and never an overwrite.
//! - Modes are exact whatever the umask says: files 0644 or 0755, directories 0755 (0664 and 0775 with
//!   `group_write`). A setgid bit that the operator put on the root (`fsGroup` does) is passed on to directories; no
//!   other bit comes from anywhere.
//! - Descriptors are bounded: two a thread. Cancellation is looked at between entries, after a megabyte or 256 of them at
//!   the latest.
//!
//! Modification times are the time of writing. They grow from generation to generation where content changed, which
//! is what consumers that compare them need; the commit's time would go back at a rollback.
//!
//! What it does not do: check names and sizes (the payload was), publish, or clean up after a failure: the caller that
//! made the place for the new directory discards it.

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
use crate::payload::{BlobError, BlobReader, BlobSource, Entry, Kind, Payload, escaped, join};
use crate::revision::{ObjectId, Revision};

/// Directories that a thread claims at once: enough that the counter is not contended, few enough that threads end
/// together.
const CLAIM: usize = 8;
/// Entries of one directory that go to one thread; the rest of a huge directory goes to the others.
const SHARE: usize = 512;
/// A blob is in memory while its file is written. Those above this size take turns, so that it is one of them and not
/// one per thread; the disk gains nothing from more.
const LARGE: u64 = 8 << 20;

/// After so many bytes a thread looks whether it is cancelled: the token has a lock, which all threads would take for
/// each file. An entry counts for at least this many.
const LOOK: u64 = 1 << 20;
const LEAST: u64 = 4 << 10;

static TURN: Mutex<()> = Mutex::new(());

/// How to write.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Threads that write files.
    pub threads: usize,
    /// Files and directories writable by the group.
    pub group_write: bool,
}

/// Writes the payload into a new directory `name` of `parent`, and returns the directory.
pub fn write(
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
    write_links(top.as_fd(), payload, blobs, modes, cancel)?;
    Ok(top)
}

/// The modes that everything in one tree gets.
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

    /// None: it is no file.
    pub(super) fn of_file(&self, kind: Kind) -> Option<u32> {
        match kind {
            Kind::File => Some(self.file),
            Kind::Executable => Some(self.executable),
            Kind::Symlink | Kind::Submodule => None,
        }
    }
}

/// Opens directories beneath a top one, following no link on the way, and keeps the last one open.
pub(super) struct Dirs<'t> {
    top: BorrowedFd<'t>,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl<'t> Dirs<'t> {
    pub(super) fn new(top: BorrowedFd<'t>) -> Self {
        Self { top, last: None }
    }

    /// The directory at `path`, the top one for an empty path.
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

/// Splits a relative path into its directory and its last component.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

pub(super) fn make_dirs(
    top: BorrowedFd<'_>,
    payload: &Payload,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let mut dirs = Dirs::new(top);
    for dir in (1..).take(payload.dir_count() - 1) {
        alive(cancel)?;
        let path = &payload.dir_path(dir);
        let (parent, name) = split(path);
        // The thread that writes the directory's files has it open, and corrects the mode if the umask took something
        // from it.
        rustix::fs::mkdirat(dirs.open(parent)?, name, Mode::from_raw_mode(modes.dir))
            .map_err(|errno| create_error("make the directory", path, errno.into()))?;
    }
    Ok(())
}

/// Makes one directory, with its mode.
pub(super) fn make_dir(dirs: &mut Dirs<'_>, path: &[u8], modes: Modes) -> Result<(), Error> {
    let (parent, name) = split(path);
    fsx::make_dir(dirs.open(parent)?, name, modes.dir)
        .map(drop)
        .map_err(|error| create_error("make the directory", path, error))
}

/// Entries of one directory, by their places in the payload: 12 bytes, because there may be a million.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) dir: u32,
    start: u32,
    end: u32,
}

impl Share {
    pub(super) fn entries<'p>(&self, payload: &'p Payload) -> &'p [Entry] {
        &payload.entries[self.start as usize..self.end as usize]
    }
}

/// Each directory with its entries, huge ones in shares.
pub(super) fn shares(payload: &Payload) -> Vec<Share> {
    let mut shares = Vec::with_capacity(payload.dir_count());
    let mut end = 0;
    for dir in (0..).take(payload.dir_count()) {
        let start = end;
        let rest = &payload.entries[start as usize..];
        end += rest.iter().take_while(|entry| entry.dir == dir).count() as u32; // fewer than names have places
        if start == end {
            shares.push(Share { dir, start, end }); // it still gets its mode
        }
        let starts = (start..end).step_by(SHARE);
        shares.extend(starts.map(|start| Share { dir, start, end: end.min(start + SHARE as u32) }));
    }
    shares
}

/// Shares in the order that suits the source, as far as whole shares can be: what git stores as a difference is put
/// together from others, and a source remembers only the latest of those.
fn ordered(payload: &Payload, order: &[u32]) -> Vec<Share> {
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

/// Writes everything but links, with several threads; the first failure stops them all.
fn write_files(
    top: BorrowedFd<'_>,
    payload: &Payload,
    blobs: &dyn BlobSource,
    threads: usize,
    modes: Modes,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let shares = ordered(payload, &blobs.order(&ids(payload)));
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failed = Mutex::new(None);
    let work = || -> Result<(), Error> {
        let mut reader = blobs.reader().map_err(blob_error(b"."))?;
        let mut dirs = Dirs::new(top);
        let mut unlooked = 0;
        loop {
            let start = next.fetch_add(CLAIM, Ordering::Relaxed);
            let Some(claimed) = shares.get(start..shares.len().min(start + CLAIM)) else { return Ok(()) };
            alive(cancel)?;
            for share in claimed {
                let path = &payload.dir_path(share.dir);
                let fd = dirs.open(path)?;
                fsx::set_mode(fd, modes.dir).map_err(io_error("set the mode of", path))?;
                for entry in share.entries(payload).iter().filter(|entry| entry.kind != Kind::Symlink) {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    if unlooked >= LOOK {
                        alive(cancel)?;
                        unlooked = 0;
                    }
                    unlooked += entry.size.max(LEAST);
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

pub(super) fn write_links(
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
        alive(cancel)?;
        let path = &payload.dir_path(entry.dir);
        let name = payload.name(entry);
        let full = || join(path, name);
        let dir = dirs.open(path)?;
        write_entry(dir, name, &full, entry.kind, &entry.id, entry.size, &mut *reader, modes)?;
    }
    Ok(())
}

/// Makes one file, link or submodule directory. Whatever has the name already stays as it is, and it is an error.
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
            return content(path, "make the link", id, size, reader, make);
        }
        Kind::Submodule => {
            let made = fsx::make_dir(dir, name, modes.dir).map(drop);
            return made.map_err(|error| create_error("make the directory", &path(), error));
        }
    };
    let mut file =
        fsx::create_new(dir, name, mode).map_err(|error| create_error("create", &path(), error))?;
    content(path, "write", id, size, reader, &mut |bytes| file.write_all(bytes))
}

/// Reads a blob and hands it to `make`, if it has the size that the payload was checked with.
fn content(
    path: &dyn Fn() -> Vec<u8>,
    act: &'static str,
    id: &ObjectId,
    size: u64,
    reader: &mut dyn BlobReader,
    make: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Error> {
    let _turn = (size > LARGE).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
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
            Err(Error::Miswritten { path: shown(&path()), why })
        }
        Ok(()) => Ok(()),
    }
}

/// The file by which git recognises a worktree. No tree may have an entry of that name.
pub(super) const GIT_FILE: &str = ".git";

/// What that file says: the way to git's own directory about the worktree, relative, so that it holds wherever the
/// volume is mounted.
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

/// Whether to go on.
pub(super) fn alive(cancel: &CancellationToken) -> Result<(), Error> {
    if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

/// A path for a message: relative to the staged directory, and harmless on a terminal.
pub(super) fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(escaped(path))
}

/// The error of a step on a path.
pub(super) fn io_error<E: Into<io::Error>>(act: &'static str, path: &[u8]) -> impl FnOnce(E) -> Error {
    move |error| Error::Io { act, path: shown(path), source: error.into() }
}

/// The error of a blob that is wanted for a path.
pub(super) fn blob_error(path: &[u8]) -> impl FnOnce(BlobError) -> Error {
    move |source| Error::Blob { path: shown(path), source }
}

/// The error of making something that must not exist yet: no directory of a payload holds a name twice.
fn create_error(act: &'static str, path: &[u8], error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Folded { path: shown(path) },
        _ => io_error(act, path)(error),
    }
}

#[cfg(test)]
mod tests;
