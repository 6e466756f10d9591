//! Stamps detect foreign writes to a published tree by its inodes' change times (ctime).
//!
//! Every change of an inode sets its ctime: content, mode, owner, name, link count (inode(7)). A program cannot set
//! the ctime, only the clock it is taken from, so clock steps are counted as well. A tree has no foreign write if no
//! ctime in it is later than our last write to the tree, except those that the [`Journal`] explains: of inodes that
//! we have since moved, linked, or removed other names of.
//!
//! All files are checked when the whole tree is scanned, in the background. Right before a publication only the
//! directories are checked, and the entries that are moved one by one.
//!
//! Not detected:
//! - a change within one tick of the file system's clock after our last write (4 ms on most kernels);
//! - a write in place into a file after the scan: the next one finds it;
//! - on tmpfs, a store through a shared memory map. Elsewhere such a store moves the ctime only when it makes a clean page
//!   dirty. A scan sees that, and a comparison with the payload begins with a sync, after which all pages are clean;
//! - a change that had its ctime before a comparison began and took effect after the comparison had passed the file: a
//!   write(2) that was waiting for its data. Files that were compared are shared for [`AGE_MAX`] at most;
//! - a change that took effect more than [`LATE_MAX`] after its ctime.
//!
//! Only the file systems of [`ctimes_are_reliable`] are supported: on others the timestamps may come from elsewhere (a
//! server, a FUSE process).

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use rustix::path::Arg;
use tokio_util::sync::CancellationToken;

use super::directory_list::DirectoryList;
use super::journal::{Changes, Journal, Stamp};
use super::stage::check_cancelled;
use super::tree_walk::{Directory, End, StopCheck, Visitor, end_listing};
use super::{Error, stage, tree_walk};
use crate::fsx;
use crate::fsx::walk::Unlinked;
use crate::payload::join;
use crate::threads::on_threads;

/// How long files are recycled or linked after they were first written or, if found on disk, verified. A foreign write
/// that cannot be detected gets into no spare that is made later than this.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long a change may take from the moment that becomes its ctime until the inode has that ctime. Before Linux 6.13 the
/// kernel takes the time of a chmod first and may then wait, for example for the file system's journal. Without such a
/// margin a change in the very tick in which a scan starts would go unseen as well. Tests do not wait for it to pass.
const LATE_MAX: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 30_000 });
/// The greatest depth of directories in a tree that is recycled or linked; each level is an open descriptor or two, and
/// what is linked cannot be opened again. A scan that keeps no paths has no limit: a tree is no deeper than payloads may
/// be, and what others added is seen in its parent.
pub(super) const DEPTH_MAX: usize = tree_walk::OPEN_LEVELS;
/// The most memory that the list of a tree's directories may take, in bytes: enough for some 400,000.
pub(super) const DIRS_MAX: usize = 4 << 20;
/// Number of directories that a thread of [`Stamps::check_directories`] takes at once.
const CHECK_BLOCK: usize = 256;
/// A list of directories of fewer bytes is checked by one thread: starting another takes longer.
const CHECKED_ALONE: usize = 16 << 10;

/// Whether a scan of the whole tree keeps the paths of its directories, for [`Stamps::check_directories`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paths {
    Keep,
    Forget,
}

/// What is known about a tree's inodes since we last wrote to it or scanned it.
#[derive(Clone, Debug)]
pub(super) struct Stamps {
    journal: Arc<Journal>,
    /// The journal's count of clock steps at that time.
    steps: u64,
    /// When we wrote its first files, or verified them. `None` for a copy that waits: its age begins when it is used.
    made: Option<Instant>,
    /// True if the tree was found on disk and verified against its payload.
    is_found: bool,
    /// No file's ctime may be later than this, except those that the journal explains.
    since: Stamp,
    /// The same for directories and symlinks, which no other tree shares.
    unshared_since: Stamp,
    /// The top directory's mtime. Its ctime proves nothing, because renaming the tree sets it.
    top: Stamp,
    /// All directories except the top one, from the last scan of the whole tree.
    dirs: DirectoryList,
}

impl Stamps {
    /// Stamps of a tree that we have just written and that nobody else could reach so far. `scratch` is a directory
    /// of ours on the same file system.
    pub(super) fn of_new(
        top: impl AsFd,
        scratch: BorrowedFd<'_>,
        journal: &Arc<Journal>,
    ) -> io::Result<Self> {
        let steps = journal.clock_steps();
        let top = Stamp::mtime_of(&rustix::fs::fstat(top)?);
        let since = file_system_time(scratch)?;
        let journal = Arc::clone(journal);
        let made = Some(Instant::now());
        Ok(Self {
            journal,
            steps,
            made,
            is_found: false,
            since,
            unshared_since: since,
            top,
            dirs: DirectoryList::default(),
        })
    }

    /// Stamps of a tree by any writer. The caller must sync the file system afterwards, then compare the tree with its
    /// payload.
    pub(super) fn of_found(
        top: impl AsFd,
        scratch: BorrowedFd<'_>,
        journal: &Arc<Journal>,
    ) -> io::Result<Self> {
        Ok(Self { is_found: true, ..Self::of_new(top, scratch, journal)? })
    }

    /// Stamps of a tree that was just made of hard links to files of this tree, all after the time `since` and all in the
    /// journal, and that nobody else could reach so far. `dirs` lists its directories.
    pub(super) fn of_linked(
        &self,
        since: Stamp,
        top: &OwnedFd,
        dirs: DirectoryList,
        scratch: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let new = Self::of_new(top, scratch, &self.journal)?;
        let since = self.since.max(since.earlier_by(LATE_MAX));
        Ok(Self { steps: self.steps, made: self.made, since, dirs, ..new })
    }

    /// Returns true if the clock was set since, so that foreign writes can no longer be detected.
    pub(super) fn clock_was_set(&self) -> bool {
        self.journal.clock_steps() != self.steps
    }

    /// Returns true if the tree may be recycled: we wrote all of it, and its first files are not older than
    /// [`AGE_MAX`].
    pub(super) fn allow_recycling(&self) -> bool {
        !self.is_found && self.is_young()
    }

    /// Returns true if its files may be hard-linked: the clock was not set, and we wrote or verified the files within
    /// [`AGE_MAX`].
    pub(super) fn allow_linking(&self) -> bool {
        !self.clock_was_set() && self.is_young()
    }

    fn is_young(&self) -> bool {
        self.made.is_none_or(|made| made.elapsed() <= AGE_MAX)
    }

    /// Makes the age of a copy begin only when it is used: no reader has its files open before.
    pub(super) fn suspend_age(&mut self) {
        self.made = None;
    }

    /// Lets the age begin, if it was suspended.
    pub(super) fn begin_age(&mut self) {
        self.made.get_or_insert_with(Instant::now);
    }

    /// Returns true if this inode has no foreign write.
    pub(super) fn accepts(&self, stat: &Stat) -> bool {
        self.accepts_with(&self.journal.lock(stat.st_ino), stat)
    }

    fn accepts_with(&self, changes: &Changes, stat: &Stat) -> bool {
        let since = if fsx::file_type(stat).is_file() { self.since } else { self.unshared_since };
        Stamp::ctime_of(stat) <= since || changes.explains(stat, since)
    }

    /// Locks the journal for the inode of an entry. Returns its metadata; `None` if it is gone or has a foreign write.
    pub(super) fn lock_entry(
        &self,
        dir: BorrowedFd<'_>,
        name: impl Arg + Copy,
    ) -> io::Result<Option<(Stat, MutexGuard<'_, Changes>)>> {
        let Some(stat) = fsx::stat(dir, name)? else { return Ok(None) };
        self.lock_found(dir, name, stat)
    }

    /// Like [`Self::lock_entry`], for an entry that had this metadata before the lock.
    fn lock_found(
        &self,
        dir: BorrowedFd<'_>,
        name: impl Arg + Copy,
        stat: Stat,
    ) -> io::Result<Option<(Stat, MutexGuard<'_, Changes>)>> {
        let changes = self.journal.lock(stat.st_ino);
        if !changes.has_later(&stat) && self.accepts_with(&changes, &stat) {
            return Ok(Some((stat, changes)));
        }
        // We may have changed it ourselves between the stat and the lock. A change by the caller would then not continue the
        // journal's chain, because it began with another ctime.
        let found = fsx::stat(dir, name)?.filter(|found| found.st_ino == stat.st_ino);
        Ok(found.filter(|found| self.accepts_with(&changes, found)).map(|found| (found, changes)))
    }

    /// Records that we created this inode, in a place that nobody else could reach so far.
    pub(super) fn record_creation(&self, stat: &Stat) {
        self.journal.lock(stat.st_ino).record_creation(stat);
    }

    /// Returns true if no name in the top directory was added, removed or replaced by others.
    pub(super) fn accepts_top(&self, stat: &Stat) -> bool {
        Stamp::mtime_of(stat) == self.top
    }

    /// Unlinks a name and records the ctime change: see [`Journal::unlink`].
    pub(super) fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
        self.journal.unlink(dir, name)
    }

    /// No file's ctime in the tree may be later than this, except those that the journal explains.
    pub(super) fn since(&self) -> Stamp {
        self.since
    }

    /// Records a new top directory.
    pub(super) fn set_top(&mut self, stat: &Stat) {
        self.top = Stamp::mtime_of(stat);
    }

    /// Scans the whole tree. Without a foreign write, `since` becomes the time at which the scan started, less
    /// [`LATE_MAX`]: our own changes after it are in the journal. Otherwise returns the first path with a foreign write.
    pub(super) fn rescan(
        &mut self,
        top: &OwnedFd,
        scratch: BorrowedFd<'_>,
        directories: Paths,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let since = file_system_time(scratch).map_err(stage::io_error("ask for the time of", b"."))?;
        let stat = rustix::fs::fstat(top).map_err(stage::io_error("stat", b"."))?;
        if !self.accepts_top(&stat) {
            return Ok(Some(stage::display_path(b".")));
        }
        let top = top.try_clone().map_err(stage::io_error("open", b"."))?;
        // A scan that keeps no paths is a scrub, which nobody waits for.
        let (threads, paths_max) = match directories {
            Paths::Keep => (tree_walk::threads(), Some(DIRS_MAX)),
            Paths::Forget => (1, None),
        };
        let walked =
            tree_walk::walk(top, &TreeScan { stamps: self, directories }, threads, paths_max, cancel)?;
        match walked.end {
            None => {}
            Some(End::At(path)) => return Ok(Some(stage::display_path(&path))),
            Some(End::TooMany) => return Err(too_many_directories(b".")),
        }
        self.dirs = walked.dirs;
        let since = since.earlier_by(LATE_MAX);
        self.since = self.since.max(since);
        self.unshared_since = self.unshared_since.max(since);
        Ok(None)
    }

    /// Updates the list of directories: drops the removed paths, adds the new ones.
    pub(super) fn update_directories<'p>(
        &mut self,
        removed: &HashSet<&[u8]>,
        added: impl Iterator<Item = &'p [u8]>,
    ) {
        let before = std::mem::take(&mut self.dirs);
        let mut paths = before.paths();
        while let Some(path) = paths.next().map(CStr::to_bytes) {
            if !removed.contains(path) {
                self.dirs.push(path);
            }
        }
        added.for_each(|path| self.dirs.push(path));
    }

    /// The paths of all directories except the top one.
    pub(super) fn directories(&self) -> &DirectoryList {
        &self.dirs
    }

    /// Frees the list of directories.
    pub(super) fn forget_directories(&mut self) {
        self.dirs = DirectoryList::default();
    }

    /// Checks the directories from the last scan for names that were added, removed or replaced by others, on several
    /// threads if there are many. Returns a directory with a foreign write.
    pub(super) fn check_directories(
        &self,
        top: &OwnedFd,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let stat = rustix::fs::fstat(top).map_err(stage::io_error("stat", b"."))?;
        if !self.accepts_top(&stat) {
            return Ok(Some(stage::display_path(b".")));
        }
        let threads = match self.dirs.size() {
            ..CHECKED_ALONE => 1,
            _ => tree_walk::threads(),
        };
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Ok(None));
        on_threads(threads, || {
            let result = self.check_blocks(top, &next, cancel);
            if !matches!(result, Ok(None)) {
                next.store(usize::MAX / 2, Ordering::Relaxed); // the others end, too
                *found.lock().unwrap_or_else(PoisonError::into_inner) = result;
            }
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks blocks of the list of directories until none is left. `next` is the number of the first directory that no
    /// thread has taken yet.
    fn check_blocks(
        &self,
        top: &OwnedFd,
        next: &AtomicUsize,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let mut paths = self.dirs.paths();
        let mut passed = 0;
        loop {
            let first = next.fetch_add(CHECK_BLOCK, Ordering::Relaxed);
            for _ in passed..first {
                if paths.next().is_none() {
                    return Ok(None);
                }
            }
            check_cancelled(cancel)?;
            for _ in 0..CHECK_BLOCK {
                let Some(path) = paths.next() else { return Ok(None) };
                // Following a symlink on the way is harmless: replacing a component by one changes its parent directory,
                // which is checked as well.
                let stat = fsx::stat(top, path).map_err(stage::io_error("stat", path.to_bytes()))?;
                if !stat.is_some_and(|stat| self.accepts(&stat)) {
                    return Ok(Some(stage::display_path(path.to_bytes())));
                }
            }
            passed = first + CHECK_BLOCK;
        }
    }
}

/// A scan of a tree for foreign writes, which ends at the first path that has one.
struct TreeScan<'a> {
    stamps: &'a Stamps,
    directories: Paths,
}

impl Visitor for TreeScan<'_> {
    type Dir = OwnedFd;
    type Count = ();

    fn open(&self, parent: &OwnedFd, name: &CStr, path: &[u8]) -> Result<Option<OwnedFd>, Error> {
        fsx::open_dir(parent, name).map(Some).map_err(stage::io_error("stat", path))
    }

    fn visit(
        &self,
        dir: &Directory<OwnedFd>,
        stop: &mut StopCheck<'_>,
        below: &mut Vec<CString>,
        (): &mut (),
    ) -> Result<Option<Vec<u8>>, Error> {
        let Directory { dir, path, level } = dir;
        let stat = rustix::fs::fstat(dir).map_err(stage::io_error("stat", path))?;
        if self.directories == Paths::Keep && *level > DEPTH_MAX {
            return Err(too_many_directories(path));
        }
        if *level > 0 && !self.stamps.accepts(&stat) {
            return Ok(Some(path.clone()));
        }
        let mut changed = None;
        let listed = fsx::each(dir, |name, kind| {
            stop.at_name()?;
            if kind == FileType::Directory {
                below.push(name.to_owned());
                return Ok(());
            }
            match self.stamps.lock_entry(dir.as_fd(), name)? {
                Some((stat, _)) if fsx::file_type(&stat) == FileType::Directory => {
                    below.push(name.to_owned());
                }
                Some(_) => {}
                None => {
                    changed = Some(join(path, name.to_bytes()));
                    return Err(end_listing());
                }
            }
            Ok(())
        });
        if changed.is_none() {
            stop.check()?;
            listed.map_err(stage::io_error("stat", path))?;
        }
        Ok(changed)
    }
}

fn too_many_directories(path: &[u8]) -> Error {
    stage::io_error("reuse", path)(io::Error::other("it has more directories than can be tracked"))
}

/// The error of a tree that cannot be recycled or linked because of a foreign write at this path.
pub(super) fn foreign_write_error(path: PathBuf) -> Error {
    Error::Io { act: "reuse", path, source: io::Error::other("changed by another process") }
}

/// Returns the ctime that the file system gives to a change at this moment, from a new file in `scratch`. On a full
/// file system it is that of `scratch` itself, touched: a scrub must not end in doubt for want of an inode.
pub(super) fn file_system_time(scratch: BorrowedFd<'_>) -> io::Result<Stamp> {
    use io::ErrorKind::{AlreadyExists, QuotaExceeded, StorageFull};
    loop {
        let name = fsx::unique("time-");
        match fsx::create_new(scratch, name.as_str(), 0o600) {
            Err(error) if error.kind() == AlreadyExists => {} // left by a process that was killed
            Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => return touched(scratch),
            file => {
                let found = rustix::fs::fstat(file?);
                fsx::unlink(scratch, name.as_str())?;
                return Ok(Stamp::ctime_of(&found?));
            }
        }
    }
}

/// Touches a directory, and returns its ctime.
fn touched(dir: BorrowedFd<'_>) -> io::Result<Stamp> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    rustix::fs::futimens(dir, &Timestamps { last_access: now, last_modification: now })?;
    Ok(Stamp::ctime_of(&rustix::fs::fstat(dir)?))
}

/// Returns true if ctimes on this file system detect foreign writes: the local kernel sets them, with sub-second
/// precision. Some file systems store whole seconds (ext4 with inodes of 128 bytes), so that a foreign write in the
/// same second as our last write would not be detected.
pub(super) fn ctimes_are_reliable(scratch: BorrowedFd<'_>) -> bool {
    // With sub-second precision a time is a whole second at most once in 250 ticks, so one more try is enough.
    let has_subseconds = || file_system_time(scratch).is_ok_and(Stamp::has_subseconds);
    let has_subseconds_later = || {
        std::thread::sleep(Duration::from_millis(20));
        has_subseconds()
    };
    has_kernel_timestamps(scratch) && (has_subseconds() || has_subseconds_later())
}

/// Returns true if the local kernel sets this file system's timestamps. Timestamps from a server or a FUSE process may
/// stand still.
fn has_kernel_timestamps(fd: impl AsFd) -> bool {
    const LOCAL: [rustix::fs::FsWord; 5] = [
        fsx::TMPFS,
        0xef53,      // ext4
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x794c_7630, // overlayfs
    ];
    rustix::fs::fstatfs(fd).is_ok_and(|found| LOCAL.contains(&found.f_type))
}

#[cfg(test)]
mod tests;
