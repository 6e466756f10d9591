//! Whether anybody but us changed a published tree, by its inodes' change times.
//!
//! Every change of an inode moves its change time: content, mode, owner, name, number of links (inode(7)). It cannot be
//! set, only the clock it is taken from can, so that steps of that are counted beside it. A tree is ours if no change
//! time in it is later than our last write to the tree, but for those that the [`Journal`] explains: of inodes that we
//! moved since, or linked, or removed other names of.
//!
//! A file in a directory without a change is looked at when the tree is looked at as a whole, in the background; right
//! before a publication only directories are, and what is moved one by one.
//!
//! What this cannot see: a change within one tick of the file system's clock after ours (4 ms on most kernels), a write
//! through a shared memory map on tmpfs, a write in place into a file after that look, and file systems whose times
//! come from elsewhere, which are not asked.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::journal::{Changes, Journal, Stamp};
use super::stage::alive;
use super::{Error, stage};
use crate::fsx;
use crate::fsx::walk::Unlinked;
use crate::payload::{Payload, join};

/// A tree is carried on for so long. What a look cannot see does not live on for ever.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Directories inside each other that a look goes into; each is an open descriptor meanwhile.
const DEPTH_MAX: usize = 64;
/// Bytes of the directories' paths that are kept.
const DIRS_MAX: usize = 4 << 20;

/// Whether looks at a tree reach all of its directories, so that it can be told who changed it.
pub(super) fn reach_all_of(payload: &Payload) -> bool {
    let mut bytes = 0;
    payload.dir_paths().all(|path| {
        bytes += path.len() + 1;
        path.iter().filter(|byte| **byte == b'/').count() < DEPTH_MAX && bytes <= DIRS_MAX
    })
}

/// Whether a look at a whole tree keeps the paths of its directories, for [`Stamps::look_at_directories`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paths {
    Keep,
    Forget,
}

/// The state of a tree's inodes when we last wrote to it.
#[derive(Clone, Debug)]
pub(super) struct Stamps {
    journal: Arc<Journal>,
    /// Steps of the clock at that time.
    steps: u64,
    /// When we wrote its first files; none: it was found, and compared with its payload.
    made: Option<Instant>,
    /// No change was later than this, but for those in the journal.
    since: Stamp,
    /// The top directory's content. Its change time tells nothing: it is renamed into its place.
    top: Stamp,
    /// Paths of all directories but the top one, from the last look at the whole tree, each ended by a zero byte.
    dirs: Vec<u8>,
}

impl Stamps {
    /// Of a tree that we have written and nobody else could reach so far. `scratch` is a directory of ours on the same
    /// file system.
    pub(super) fn of_new(
        top: impl AsFd,
        scratch: BorrowedFd<'_>,
        journal: &Arc<Journal>,
    ) -> io::Result<Self> {
        let steps = journal.steps();
        let top = Stamp::of_content(&rustix::fs::fstat(top)?);
        let since = file_system_time(scratch)?;
        let (journal, made) = (Arc::clone(journal), Some(Instant::now()));
        Ok(Self { journal, steps, made, since, top, dirs: Vec::new() })
    }

    /// Of a tree by any writer, which is compared with its payload after this.
    pub(super) fn of_found(
        top: impl AsFd,
        scratch: BorrowedFd<'_>,
        journal: &Arc<Journal>,
    ) -> io::Result<Self> {
        Ok(Self { made: None, ..Self::of_new(top, scratch, journal)? })
    }

    /// Of a tree that was just made of hard links to files of the tree with the stamps `base`, where nobody else could
    /// reach it so far. An error if somebody else changed one of these files meanwhile.
    pub(super) fn of_links(
        base: &Self,
        top: &OwnedFd,
        scratch: BorrowedFd<'_>,
        cancel: &CancellationToken,
    ) -> Result<Self, Error> {
        let new = Self::of_new(top, scratch, &base.journal).map_err(stage::io_error("look at", b"."))?;
        let is_ours = |stat: &Stat| fsx::file_type(stat) != FileType::RegularFile || base.hold_for(stat);
        let mut look = Look::new(cancel, Paths::Keep, &is_ours);
        if look.directory(top)? {
            return Err(changed_by_others(stage::shown(&look.path)));
        }
        Ok(Self { made: base.made.or(new.made), dirs: look.dirs, ..new })
    }

    /// Whether nothing can be said any more: the clock was set since.
    pub(super) fn are_void(&self) -> bool {
        self.journal.steps() != self.steps
    }

    /// Whether the tree may become the next spare: it is all ours, and its first files are not too old.
    pub(super) fn may_be_carried_on(&self) -> bool {
        self.made.is_some_and(|made| made.elapsed() <= AGE_MAX)
    }

    /// Whether links to its files may be made: they were compared or written by us, and are not too old.
    pub(super) fn may_be_linked(&self) -> bool {
        !self.are_void() && self.made.is_none_or(|made| made.elapsed() <= AGE_MAX)
    }

    /// Whether nobody else changed this inode.
    pub(super) fn hold_for(&self, stat: &Stat) -> bool {
        Stamp::of_change(stat) <= self.since || self.journal().explain(stat, self.since)
    }

    /// The same, for who holds the journal.
    pub(super) fn hold_with(&self, journal: &Changes, stat: &Stat) -> bool {
        Stamp::of_change(stat) <= self.since || journal.explain(stat, self.since)
    }

    /// Whether nobody else changed the content of the top directory.
    pub(super) fn hold_for_top(&self, stat: &Stat) -> bool {
        Stamp::of_content(stat) == self.top
    }

    /// The journal, locked.
    pub(super) fn journal(&self) -> MutexGuard<'_, Changes> {
        self.journal.lock()
    }

    /// Removes a name of a file: see [`Journal::unlink`].
    pub(super) fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
        self.journal.unlink(dir, name)
    }

    /// No change is later than this, but for those in the journal.
    pub(super) fn since(&self) -> Stamp {
        self.since
    }

    /// There is a new top directory.
    pub(super) fn note_top(&mut self, stat: &Stat) {
        self.top = Stamp::of_content(stat);
    }

    /// Looks at the whole tree, and from then on counts from the beginning of this look. Returns the first path that is
    /// not as we left it.
    pub(super) fn renew(
        &mut self,
        top: &OwnedFd,
        scratch: BorrowedFd<'_>,
        directories: Paths,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let since = file_system_time(scratch).map_err(stage::io_error("ask for the time of", b"."))?;
        let stat = rustix::fs::fstat(top).map_err(stage::io_error("look at", b"."))?;
        if !self.hold_for_top(&stat) {
            return Ok(Some(stage::shown(b".")));
        }
        let is_ours = |stat: &Stat| self.hold_for(stat);
        let mut look = Look::new(cancel, directories, &is_ours);
        if look.directory(top)? {
            return Ok(Some(stage::shown(&look.path)));
        }
        self.dirs = look.dirs;
        self.since = since;
        Ok(None)
    }

    /// These paths are gone, and those directories are new.
    pub(super) fn note_directories<'p>(
        &mut self,
        removed: &HashSet<&[u8]>,
        added: impl Iterator<Item = &'p [u8]>,
    ) {
        let before = std::mem::take(&mut self.dirs);
        let mut dirs = Vec::with_capacity(before.len());
        let mut push = |path: &[u8]| {
            dirs.extend_from_slice(path);
            dirs.push(0);
        };
        paths(&before).map(CStr::to_bytes).filter(|path| !removed.contains(path)).for_each(&mut push);
        added.for_each(push);
        self.dirs = dirs;
    }

    /// The list of directories is of no use any more.
    pub(super) fn forget_directories(&mut self) {
        self.dirs = Vec::new();
    }

    /// Looks at the directories that the last look at the whole tree found: whether names came, went or changed. Returns
    /// the first one that is not as we left it.
    pub(super) fn look_at_directories(
        &self,
        top: &OwnedFd,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let stat = rustix::fs::fstat(top).map_err(stage::io_error("look at", b"."))?;
        if !self.hold_for_top(&stat) {
            return Ok(Some(stage::shown(b".")));
        }
        for path in paths(&self.dirs) {
            alive(cancel)?;
            // A component that was replaced by a link has changed the directory above it, which is looked at as well.
            let stat = fsx::stat(top, path).map_err(stage::io_error("look at", path.to_bytes()))?;
            if !stat.is_some_and(|stat| self.hold_for(&stat)) {
                return Ok(Some(stage::shown(path.to_bytes())));
            }
        }
        Ok(None)
    }
}

fn paths(dirs: &[u8]) -> impl Iterator<Item = &CStr> {
    dirs.split_inclusive(|byte| *byte == 0).filter_map(|path| CStr::from_bytes_with_nul(path).ok())
}

struct Look<'a> {
    cancel: &'a CancellationToken,
    /// Whether nobody else changed an inode. Not asked for the top directory.
    is_ours: &'a dyn Fn(&Stat) -> bool,
    /// Where it is; where something was found, that.
    path: Vec<u8>,
    level: usize,
    directories: Paths,
    /// As in [`Stamps`].
    dirs: Vec<u8>,
}

impl<'a> Look<'a> {
    fn new(cancel: &'a CancellationToken, directories: Paths, is_ours: &'a dyn Fn(&Stat) -> bool) -> Self {
        Self { cancel, is_ours, path: Vec::new(), level: 0, directories, dirs: Vec::new() }
    }

    /// True: `path` is not as we left it.
    fn directory(&mut self, dir: &OwnedFd) -> Result<bool, Error> {
        alive(self.cancel)?;
        let stat = rustix::fs::fstat(dir).map_err(stage::io_error("look at", &self.path))?;
        if self.level > DEPTH_MAX || self.dirs.len() > DIRS_MAX {
            let why = io::Error::other("it has more directories than are looked after");
            return Err(stage::io_error("carry on", &self.path)(why));
        }
        if self.level > 0 && !(self.is_ours)(&stat) {
            return Ok(true);
        }
        let mut below = Vec::new();
        let mut strange = None;
        fsx::each(dir, |name, kind| {
            if kind == FileType::Directory {
                below.push(name.to_owned());
            } else if strange.is_none() {
                match fsx::stat(dir, name)? {
                    Some(stat) if fsx::file_type(&stat) == FileType::Directory => below.push(name.to_owned()),
                    Some(stat) if (self.is_ours)(&stat) => {}
                    _ => strange = Some(name.to_owned()),
                }
            }
            Ok(())
        })
        .map_err(stage::io_error("look at", &self.path))?;
        if let Some(name) = strange {
            self.path = join(&self.path, name.to_bytes());
            return Ok(true);
        }
        for name in below {
            let length = self.path.len();
            self.path = join(&self.path, name.to_bytes());
            if self.directories == Paths::Keep {
                self.dirs.extend_from_slice(&self.path);
                self.dirs.push(0);
            }
            let dir = fsx::open_dir(dir, name.as_c_str()).map_err(stage::io_error("look at", &self.path))?;
            self.level += 1;
            if self.directory(&dir)? {
                return Ok(true);
            }
            self.level -= 1;
            self.path.truncate(length);
        }
        Ok(false)
    }
}

/// The error of a tree that cannot be carried on.
pub(super) fn changed_by_others(path: PathBuf) -> Error {
    Error::Io { act: "carry on", path, source: io::Error::other("somebody else changed it") }
}

/// What the file system gives to a change at this moment.
fn file_system_time(scratch: BorrowedFd<'_>) -> io::Result<Stamp> {
    let name = fsx::unique("time-");
    let file = fsx::create_new(scratch, name.as_str(), 0o600)?;
    let found = rustix::fs::fstat(&file);
    fsx::unlink(scratch, name.as_str())?;
    Ok(Stamp::of_change(&found?))
}

/// Whether times on this file system tell changes: they are the kernel's own, and fine. Some file systems keep whole
/// seconds (ext4 with inodes of 128 bytes), in which somebody else's change looks like our last one.
pub(super) fn tell_changes(scratch: BorrowedFd<'_>) -> bool {
    // A fine time has no fraction once in 250 ticks or less.
    let is_fine = || file_system_time(scratch).is_ok_and(Stamp::is_fine);
    let is_fine_later = || {
        std::thread::sleep(Duration::from_millis(20));
        is_fine()
    };
    are_local(scratch) && (is_fine() || is_fine_later())
}

/// Whether times are the kernel's own: those that a server or a process gives may stand still.
fn are_local(fd: impl AsFd) -> bool {
    const LOCAL: [rustix::fs::FsWord; 5] = [
        0x0102_1994, // tmpfs
        0xef53,      // ext4
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x794c_7630, // overlayfs
    ];
    rustix::fs::fstatfs(fd).is_ok_and(|found| LOCAL.contains(&found.f_type))
}
