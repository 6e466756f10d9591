//! File system primitives: exclusive creation, atomic replacement of small files, fsync of directories, renames that
//! refuse to overwrite, flock, free space and, in [`walk`], removal of a tree by handle.
//!
//! Functions work below a directory handle with one-component names, so no path is resolved twice and no symlink is
//! followed on the way ([`open_beneath`] takes a path and has the kernel enforce the same). Only [`open_dir_at_path`]
//! and [`identity_at`] follow symlinks: they are for paths of the operator. Everything is opened with `O_CLOEXEC`, and
//! no existing file is written into. Errors are plain `io::Error` without a path; callers add the path and what they
//! were doing.

#[cfg(feature = "program")]
mod holders;
mod read;
#[cfg(feature = "program")]
mod tmpfs;
pub mod walk;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

pub use read::read_file;
#[cfg(feature = "program")]
pub use {
    holders::Holder, holders::is_locked, holders::is_locked_exclusively, holders::lock_holders,
    read::read_text, read::read_whole, tmpfs::is_in_memory,
};

/// The type of tmpfs: TMPFS_MAGIC of Linux's `linux/magic.h`.
pub const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Returns true if retrying cannot help until an operator acts: no space, no permission, or a limit of the file system.
pub fn needs_operator(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::StorageFull
            | Kind::QuotaExceeded
            | Kind::ReadOnlyFilesystem
            | Kind::PermissionDenied
            | Kind::InvalidFilename
    )
}

/// Returns true if no file or directory can be at a path for which a call failed like this: it leads through a file, or
/// is too long.
pub fn is_wrong_path(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename)
}

/// Returns true if what was to be read has to be named otherwise: it is missing, is the wrong kind of thing, or its
/// path is wrong. Other failures, such as a stale handle of NFS, say nothing about the name and may pass.
pub fn is_misnamed(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) || is_wrong_path(kind)
}

/// Flags for opening a directory: for reading (so that it can be listed, locked and synced), never through a symlink in
/// the last component.
pub const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the directory `name` in `at`. A symlink there is an error (`ELOOP` or `ENOTDIR`) and is not followed.
pub fn open_dir(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(at, name, DIRECTORY, Mode::empty())?)
}

/// Opens the directory at a relative path beneath `top`, following no symlink. If `openat2` is missing (Linux before
/// 5.6) or forbidden (an old seccomp profile returns EPERM), each component is opened in turn, which is slower.
pub fn open_beneath(top: impl AsFd, path: impl AsRef<OsStr>) -> io::Result<OwnedFd> {
    let top = top.as_fd();
    let path = path.as_ref();
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(top, path, DIRECTORY, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {} // the kernel could not rule out a race with a rename (openat2(2))
            Err(Errno::NOSYS | Errno::PERM) => break,
            opened => return Ok(opened?),
        }
    }
    let mut components = path.as_bytes().split(|&byte| byte == b'/');
    let mut dir = open_dir(top, components.next().unwrap_or(b"."))?;
    for component in components {
        dir = open_dir(&dir, component)?;
    }
    Ok(dir)
}

/// Opens a directory by path, following symlinks. Only for paths that the operator gave, such as the root.
pub fn open_dir_at_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())?)
}

/// Creates the directory `name` in `at` with exactly `mode`, whatever the umask, and opens it. `EEXIST` if it exists.
pub fn make_dir(at: impl AsFd, name: impl Arg + Copy, mode: u32) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(at.as_fd(), name, Mode::from_raw_mode(mode))?;
    let dir = open_dir(at, name)?;
    set_mode(&dir, mode)?;
    Ok(dir)
}

/// Opens the directory `name` in `at`, creating it with exactly `mode` if it is missing.
pub fn ensure_dir(at: impl AsFd, name: impl Arg + Copy, mode: u32) -> io::Result<OwnedFd> {
    match make_dir(at.as_fd(), name, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_dir(at, name),
        made => made,
    }
}

/// Creates the file `name` in `at` for writing, with exactly `mode`. `EEXIST` if it exists, even as a dangling symlink.
pub fn create_new(at: impl AsFd, name: impl Arg, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(at, name, flags, Mode::from_raw_mode(mode))?);
    set_mode(&file, mode)?;
    Ok(file)
}

/// Sets the permission bits if the umask (or a default ACL) changed them; makes no call if they are right already. A
/// setgid bit that a new directory inherited is kept: it is how a volume's `fsGroup` reaches the files in it.
pub fn set_mode(fd: impl AsFd, mode: u32) -> io::Result<()> {
    let found = rustix::fs::fstat(fd.as_fd())?.st_mode;
    if found & 0o777 != mode {
        rustix::fs::fchmod(fd, Mode::from_raw_mode(mode | found & Mode::SGID.as_raw_mode()))?;
    }
    Ok(())
}

/// What a power cut may leave of a small file that is being replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// The old bytes or the new ones: the file is synced before the rename. The rename itself reaches the disk with the
    /// next sync of a directory (ext4 and xfs write their journals in order).
    Content,
    /// The old bytes, the new ones or an empty file: nothing is synced.
    Lazy,
}

/// Prefix of the temporary names of [`replace_file`]. Left-over names with it may be removed.
pub const TMP_PREFIX: &str = "tmp-";

/// Replaces the file `name` in `at` with one rename, so that readers see either the old bytes or the new ones.
pub fn replace_file(at: impl AsFd, name: &str, bytes: &[u8], mode: u32, flush: Flush) -> io::Result<()> {
    let at = at.as_fd();
    let (tmp, mut file) = create_tmp(at, name, mode)?;
    let written = file.write_all(bytes).and_then(|()| match flush {
        Flush::Content => file.sync_all(),
        Flush::Lazy => Ok(()),
    });
    let renamed = written.and_then(|()| Ok(rustix::fs::renameat(at, tmp.as_str(), at, name)?));
    if let Err(error) = renamed {
        let _ = rustix::fs::unlinkat(at, tmp.as_str(), AtFlags::empty()); // the first error is the one to report
        return Err(error);
    }
    Ok(())
}

/// Numbers temporary names within this process. `O_EXCL` covers the rest: in containers every process may be pid 1,
/// so the pid alone does not make a name unique.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Returns a name with this prefix that this process has not used before.
pub fn unique(prefix: &str) -> String {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{}-{serial}", rustix::process::getpid().as_raw_nonzero())
}

fn create_tmp(at: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<(String, File)> {
    loop {
        let tmp = unique(&format!("{TMP_PREFIX}{name}-"));
        match create_new(at, tmp.as_str(), mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // left by a process that was killed
            created => return created.map(|file| (tmp, file)),
        }
    }
}

/// Syncs a directory (fsync), which makes the names in it durable.
pub fn sync_dir(dir: impl AsFd) -> io::Result<()> {
    Ok(retry_on_intr(|| rustix::fs::fsync(dir.as_fd()))?)
}

/// Writes back the whole file system that `fd` is on (syncfs). Since Linux 5.8 it reports a write-back error that
/// happened after `fd` was opened, once: after an error the data must be treated as lost, not synced again.
pub fn sync_fs(fd: impl AsFd) -> io::Result<()> {
    Ok(retry_on_intr(|| rustix::fs::syncfs(fd.as_fd()))?)
}

/// Returns the metadata of a name, not following a symlink. `None` if it does not exist.
pub fn stat(at: impl AsFd, name: impl Arg) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// The file type in a stat result.
pub fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The numbers that identify a file or directory as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Inode {
    /// The device number of its file system.
    pub dev: u64,
    /// Its inode number there.
    pub ino: u64,
}

impl Inode {
    /// The inode that a stat result describes.
    pub fn of(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// The inode of an open file or directory.
pub fn identity(fd: impl AsFd) -> io::Result<Inode> {
    Ok(Inode::of(&rustix::fs::fstat(fd)?))
}

/// Returns true if `name` in `at` is still the open file or directory `fd`.
pub fn is_at(at: impl AsFd, name: impl Arg, fd: impl AsFd) -> io::Result<bool> {
    let open = identity(fd)?;
    Ok(stat(at, name)?.is_some_and(|there| Inode::of(&there) == open))
}

/// The inode at a path, following symlinks. `None` if there is nothing.
pub fn identity_at(path: &Path) -> io::Result<Option<Inode>> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(Some(Inode::of(&stat))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The lowest descriptor number for a file that a program inherits: shells use lower ones for their own redirections.
pub const INHERITED_FROM: i32 = 10;

/// The result of [`read_link`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Link {
    /// The name does not exist.
    Absent,
    /// A symlink with this target.
    To(OsString),
    /// Something else, of this type.
    Other(FileType),
}

/// Reads a symlink.
pub fn read_link(at: impl AsFd, name: impl Arg + Copy) -> io::Result<Link> {
    match rustix::fs::readlinkat(at.as_fd(), name, Vec::new()) {
        Ok(target) => Ok(Link::To(OsString::from_vec(target.into_bytes()))),
        Err(Errno::NOENT) => Ok(Link::Absent),
        Err(Errno::INVAL) => Ok(stat(at, name)?.map_or(Link::Absent, |stat| Link::Other(file_type(&stat)))),
        Err(error) => Err(error.into()),
    }
}

/// Removes a name that is not a directory. A missing name is a success.
pub fn unlink(at: impl AsFd, name: impl Arg) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

/// Renames, refusing to replace anything. If the file system does not support `RENAME_NOREPLACE` (`EINVAL`), it
/// checks the name before the rename instead; the store's lock excludes a race with another treeswap.
pub fn rename_new(
    from: impl AsFd,
    old: impl Arg + Copy,
    to: impl AsFd,
    new: impl Arg + Copy,
) -> io::Result<()> {
    match rustix::fs::renameat_with(from.as_fd(), old, to.as_fd(), new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            if stat(to.as_fd(), new)?.is_some() {
                return Err(Errno::EXIST.into());
            }
            Ok(rustix::fs::renameat(from, old, to, new)?)
        }
        done => Ok(done?),
    }
}

/// Exchanges two names atomically. Returns false, having done nothing, if the file system cannot (`EINVAL`, e.g. NFS).
pub fn exchange(
    from: impl AsFd,
    old: impl Arg + Copy,
    to: impl AsFd,
    new: impl Arg + Copy,
) -> io::Result<bool> {
    match rustix::fs::renameat_with(from.as_fd(), old, to.as_fd(), new, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: CString,
    /// Its type. `Unknown` on file systems that do not store types in directories.
    pub kind: FileType,
}

impl DirEntry {
    /// The name as an `OsStr`.
    pub fn os(&self) -> &OsStr {
        OsStr::from_bytes(self.name.to_bytes())
    }
}

/// Lists a directory, without `.` and `..`, in no particular order. All names are in memory at once; [`each`] is for
/// directories that may be huge.
pub fn list(dir: impl AsFd) -> io::Result<Vec<DirEntry>> {
    let mut all = Vec::new();
    each(dir, |name, kind| {
        all.push(DirEntry { name: name.to_owned(), kind });
        Ok(())
    })?;
    Ok(all)
}

/// Calls `visit` for every name in a directory except `.` and `..`, with its type, unsorted. Uses constant memory.
pub fn each(dir: impl AsFd, mut visit: impl FnMut(&CStr, FileType) -> io::Result<()>) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !is_dots(entry.file_name()) {
            visit(entry.file_name(), entry.file_type())?;
        }
    }
    Ok(())
}

pub(crate) fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// The result of trying to take a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// The lock was taken. It lasts until the handle and every duplicate of it is closed.
    Taken,
    /// Another open file has a conflicting lock.
    Contended,
    /// The file system does not support flock.
    Unsupported,
}

/// Tries to take the exclusive flock, without waiting. It is released by [`unlock`], or when the last duplicate of the
/// handle is closed. It is an error if no lock can be had now: see [`lacks_locks`].
pub fn try_lock(fd: impl AsFd) -> io::Result<Lock> {
    flock(fd, FlockOperation::NonBlockingLockExclusive)
}

/// How long [`lock_soon`] waits, and how often it tries meanwhile.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Takes the exclusive flock, and waits for it for up to a second. A process that was killed may leave its lock behind
/// for some milliseconds: a child that it was just starting has duplicates of all its descriptors until its exec.
pub fn lock_soon(fd: impl AsFd) -> io::Result<Lock> {
    let began = Instant::now();
    loop {
        match try_lock(&fd)? {
            Lock::Contended if began.elapsed() < LOCK_WAIT => std::thread::sleep(LOCK_PAUSE),
            done => return Ok(done),
        }
    }
}

/// Tries to take a shared flock, without waiting. As with [`try_lock`], a lack of locks is an error.
pub fn try_lock_shared(fd: impl AsFd) -> io::Result<Lock> {
    flock(fd, FlockOperation::NonBlockingLockShared)
}

/// Releases an flock at once, for every duplicate of the handle. Closing releases it only with the last duplicate,
/// and a child process that another thread starts has one between its fork and its exec.
pub fn unlock(fd: impl AsFd) -> io::Result<()> {
    flock(fd, FlockOperation::Unlock).map(drop)
}

fn flock(fd: impl AsFd, operation: FlockOperation) -> io::Result<Lock> {
    lock_of(retry_on_intr(|| rustix::fs::flock(fd.as_fd(), operation)))
}

/// What a result of flock(2) says about the lock.
fn lock_of(tried: rustix::io::Result<()>) -> io::Result<Lock> {
    match tried {
        Ok(()) => Ok(Lock::Taken),
        Err(Errno::WOULDBLOCK) => Ok(Lock::Contended),
        // EBADF: NFS grants an exclusive lock only on a handle for writing, which a directory cannot have.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::BADF) => Ok(Lock::Unsupported),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if a lock failed because there are none now (`ENOLCK`): the kernel has no memory for it, or an NFS
/// server is starting, or its lock service is away. That may pass.
pub fn lacks_locks(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOLCK.raw_os_error())
}

/// Takes a lack of locks for [`Lock::Unsupported`]: for callers that go on without a lock in both cases.
pub fn unsupported_if_lacking(tried: io::Result<Lock>) -> io::Result<Lock> {
    match tried {
        Err(error) if lacks_locks(&error) => Ok(Lock::Unsupported),
        tried => tried,
    }
}

/// Free space on a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that an unprivileged process may still write. `u64::MAX` if the file system reports no size.
    pub bytes: u64,
    /// Number of inodes that may still be created. `None` if the file system reports no such number.
    pub inodes: Option<u64>,
    /// Block size in bytes: what the smallest non-empty file takes.
    pub block: u64,
}

/// The largest block size that a local file system has. Network file systems report their transfer size instead (NFS
/// and CephFS a megabyte and more), which says nothing about the space a small file takes.
const LARGEST_BLOCK: u64 = 64 << 10;
/// The block size assumed for such a network file system.
const USUAL_BLOCK: u64 = 4 << 10;

fn block(fragment: u64) -> u64 {
    if fragment > LARGEST_BLOCK { USUAL_BLOCK } else { fragment.max(1) }
}

/// Returns the free space on the file system that `fd` is on.
pub fn space(fd: impl AsFd) -> io::Result<Space> {
    let found = rustix::fs::fstatvfs(fd)?;
    Ok(Space {
        // ramfs and some FUSE file systems report zero blocks in total.
        bytes: if found.f_blocks > 0 { found.f_bavail.saturating_mul(found.f_frsize) } else { u64::MAX },
        inodes: (found.f_files > 0).then_some(found.f_favail),
        block: block(found.f_frsize),
    })
}

#[cfg(test)]
mod tests;
