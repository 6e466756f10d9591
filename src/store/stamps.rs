//! Whether anybody but us changed a published tree, by its inodes' change times.
//!
//! Every change of an inode moves its change time: content, mode, owner, name, number of links (inode(7)). It cannot be
//! set, only the clock it is taken from can, so that [`ClockSteps`] are counted beside it. A tree is ours if no change
//! time in it is later than our last write to the tree, but for the inodes that we moved since, whose change times are
//! known one by one.
//!
//! What this cannot see: a change within one tick of the file system's clock after ours (4 ms on most kernels), a write
//! through a shared memory map on tmpfs, and file systems whose times come from elsewhere, which are not asked.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FileType, Stat};
use tokio_util::sync::CancellationToken;

use super::stage::alive;
use super::{Error, stage};
use crate::clock::ClockSteps;
use crate::fsx;
use crate::payload::join;

/// Inodes whose change times are kept: 24 bytes each. A tree in which more were moved is not looked after any longer.
const MOVED_MAX: usize = 1 << 16;
/// Directories inside each other that a look goes into; each is an open descriptor meanwhile.
const DEPTH_MAX: usize = 64;

/// A change time: seconds and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Stamp(i64, i64);

impl Stamp {
    fn of_change(stat: &Stat) -> Self {
        Self(stat.st_ctime as _, stat.st_ctime_nsec as _)
    }

    fn of_content(stat: &Stat) -> Self {
        Self(stat.st_mtime as _, stat.st_mtime_nsec as _)
    }
}

/// The state of a tree's inodes when we last wrote to it.
#[derive(Clone, Debug)]
pub(super) struct Stamps {
    clock: Arc<ClockSteps>,
    /// Steps of the clock at that time.
    steps: u64,
    /// No change was later than this, but for `moved`.
    since: Stamp,
    /// When we changed these inodes after that.
    moved: HashMap<u64, Stamp>,
    /// The top directory's content. Its change time tells nothing: it is renamed into its place.
    top: Stamp,
}

/// What a look compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Depth {
    /// Directories: names that came, went or changed.
    Names,
    /// Everything.
    Content,
}

impl Stamps {
    /// Of a tree that we have written and nobody else could reach so far. `scratch` is a directory of ours on the same
    /// file system.
    pub(super) fn of_new(
        top: impl AsFd,
        scratch: BorrowedFd<'_>,
        clock: &Arc<ClockSteps>,
    ) -> io::Result<Self> {
        let steps = clock.count();
        let top = Stamp::of_content(&rustix::fs::fstat(top)?);
        let since = file_system_time(scratch)?;
        Ok(Self { clock: Arc::clone(clock), steps, since, moved: HashMap::new(), top })
    }

    /// Whether the clock was set since, so that nothing can be said any more.
    pub(super) fn are_void(&self) -> bool {
        self.clock.count() != self.steps || self.moved.len() > MOVED_MAX
    }

    /// Whether nobody else changed this inode.
    pub(super) fn hold_for(&self, stat: &Stat) -> bool {
        let changed = Stamp::of_change(stat);
        changed <= self.since || self.moved.get(&stat.st_ino) == Some(&changed)
    }

    /// Whether nobody else changed the content of the top directory.
    pub(super) fn hold_for_top(&self, stat: &Stat) -> bool {
        Stamp::of_content(stat) == self.top
    }

    /// This inode was changed by us just now.
    pub(super) fn moved(&mut self, stat: &Stat) {
        self.moved.insert(stat.st_ino, Stamp::of_change(stat));
    }

    /// The same of a new top directory.
    pub(super) fn moved_top(&mut self, stat: &Stat) {
        self.top = Stamp::of_content(stat);
    }

    /// Looks at a whole tree, and from then on counts from the beginning of this look. Returns the first path that is
    /// not as we left it.
    pub(super) fn renew(
        &mut self,
        top: &OwnedFd,
        scratch: BorrowedFd<'_>,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let since = file_system_time(scratch).map_err(stage::io_error("ask for the time of", b"."))?;
        let found = self.look(top, Depth::Content, cancel)?;
        if found.is_none() {
            self.since = since;
            self.moved = HashMap::new();
        }
        Ok(found)
    }

    /// Looks at a tree, and returns the first path that is not as we left it.
    pub(super) fn look(
        &self,
        top: &OwnedFd,
        depth: Depth,
        cancel: &CancellationToken,
    ) -> Result<Option<PathBuf>, Error> {
        let mut look = Look { stamps: self, depth, cancel, path: Vec::new(), level: 0 };
        let found = look.directory(top)?;
        Ok(found.then(|| stage::shown(&look.path)))
    }
}

struct Look<'a> {
    stamps: &'a Stamps,
    depth: Depth,
    cancel: &'a CancellationToken,
    /// Where it is; where something was found, that.
    path: Vec<u8>,
    level: usize,
}

impl Look<'_> {
    /// True: `path` is not as we left it.
    fn directory(&mut self, dir: &OwnedFd) -> Result<bool, Error> {
        alive(self.cancel)?;
        let stat = rustix::fs::fstat(dir).map_err(stage::io_error("look at", &self.path))?;
        let is_ours =
            if self.level == 0 { self.stamps.hold_for_top(&stat) } else { self.stamps.hold_for(&stat) };
        if !is_ours || self.level > DEPTH_MAX {
            return Ok(true);
        }
        let mut below = Vec::new();
        let mut strange = None;
        fsx::each(dir, |name, kind| {
            if kind == FileType::Directory {
                below.push(name.to_owned());
            } else if strange.is_none() && (self.depth == Depth::Content || kind == FileType::Unknown) {
                match fsx::stat(dir, name)? {
                    Some(stat) if fsx::file_type(&stat) == FileType::Directory => below.push(name.to_owned()),
                    Some(stat) if self.stamps.hold_for(&stat) => {}
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

/// Whether times on this file system are the kernel's own: those that a server or a process gives may stand still.
pub(super) fn are_local(fd: impl AsFd) -> bool {
    const LOCAL: [i64; 6] = [
        0x0102_1994, // tmpfs
        0xef53,      // ext4
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x794c_7630, // overlayfs
        0xf2f5_2010, // f2fs
    ];
    rustix::fs::fstatfs(fd).is_ok_and(|found| LOCAL.contains(&(found.f_type as i64)))
}
