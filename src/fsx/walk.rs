//! Removes or measures a directory tree of any depth with two open descriptors.
//!
//! No symlink is followed and a removal enters no mount point. If a directory is moved away during the walk, the walk
//! ends instead of continuing in another tree. Depth costs memory, not descriptors or stack (the standard library's
//! `remove_dir_all` holds one descriptor per level and recurses). A name that cannot be removed is reported, and the
//! rest is removed nevertheless.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::Inode;

/// The result of a removal.
#[derive(Debug, Default)]
pub struct Removal {
    /// True if the caller stopped the removal early; the rest is still there.
    pub stopped: bool,
    /// The first path that could not be removed, starting at the name that was to be removed, and the error.
    pub failed: Option<(PathBuf, io::Error)>,
}

impl Removal {
    /// Returns true if nothing is left.
    pub fn is_complete(&self) -> bool {
        !self.stopped && self.failed.is_none()
    }
}

/// A directory on the path from the top to the current one. Only the deepest one is open.
struct Level {
    name: CString,
    /// To verify that `..` of the child still is this directory.
    identity: Inode,
    /// Subdirectories still to be visited.
    dirs: NameStack,
    /// True if an entry could not be removed, so the directory cannot be either.
    has_leftovers: bool,
    /// How often it was listed. Limited by [`LISTINGS_MAX`].
    listings: u32,
}

/// A stack of names in one buffer, NUL-terminated: a directory may hold a million.
#[derive(Default)]
struct NameStack(Vec<u8>);

impl NameStack {
    fn push(&mut self, name: &CStr) {
        self.0.extend_from_slice(name.to_bytes_with_nul());
    }

    /// Removes and returns the last name.
    fn pop(&mut self) -> Option<CString> {
        let end = self.0.len().checked_sub(1)?;
        let start = self.0[..end].iter().rposition(|byte| *byte == 0).map_or(0, |nul| nul + 1);
        let name = CString::from_vec_with_nul(self.0.split_off(start)).ok();
        if self.0.capacity() > 4 * self.0.len() + 4096 {
            self.0.shrink_to(2 * self.0.len()); // give memory back as the stack empties
        }
        name
    }
}

/// How often a directory is listed at most: another process may keep filling it.
const LISTINGS_MAX: u32 = 8;

/// How many names are listed before the non-directories among them are removed.
const BATCH: usize = 4_096;

/// After how many files and directories `go_on` is called again.
const CHECK_INTERVAL: u64 = 64;

/// Removes `name` in `at` and everything below it. `go_on` is called every few dozen names; `Break` stops the removal.
pub fn remove(at: impl AsFd, name: impl AsRef<OsStr>, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Removal {
    remove_by(at, name, go_on, &mut |dir, name| unlink(dir, name))
}

/// Like [`remove`], but calls the hook `unlink` for each name that may be a non-directory. The hook must end in
/// [`unlink`].
pub fn remove_by(
    at: impl AsFd,
    name: impl AsRef<OsStr>,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    unlink: Unlink<'_>,
) -> Removal {
    let mut remover = Remover { done: Removal::default(), asked: 0, go_on, unlink };
    let Ok(name) = CString::new(name.as_ref().as_bytes()) else {
        remover.fail(&[], &CString::default(), Errno::INVAL);
        return remover.done;
    };
    remover.tree(at.as_fd(), &name);
    remover.done
}

/// A hook that unlinks a name in a directory.
pub type Unlink<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &CStr) -> Result<Unlinked, Errno>;

struct Remover<'a> {
    done: Removal,
    /// How often [`Remover::is_cancelled`] was called.
    asked: u64,
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
    unlink: Unlink<'a>,
}

impl Remover<'_> {
    fn tree(&mut self, at: BorrowedFd<'_>, name: &CString) {
        match (self.unlink)(at, name) {
            Ok(Unlinked::Gone) => return,
            Ok(Unlinked::Directory) => {}
            Err(error) => return self.fail(&[], name, error),
        }
        let Ok(device) = rustix::fs::fstat(at).map(|stat| stat.st_dev) else {
            return self.fail(&[], name, Errno::BADF);
        };
        let mut levels: Vec<Level> = Vec::new();
        let mut here = match self.enter(at, name.clone(), device, &mut levels) {
            Ok(dir) => dir,
            Err(error) => return self.fail(&[], name, error),
        };
        while let Some(level) = levels.last_mut() {
            if self.is_cancelled() {
                return;
            }
            if let Some(next) = level.dirs.pop() {
                match self.enter(here.as_fd(), next.clone(), device, &mut levels) {
                    Ok(dir) => here = dir,
                    Err(error) => {
                        if let Some(level) = levels.last_mut() {
                            level.has_leftovers = true;
                        }
                        self.fail(&levels, &next, error);
                    }
                }
                continue;
            }
            // All known entries are removed: go up to the parent and remove the directory from there.
            let Some(level) = levels.pop() else { return };
            let above = match levels.last() {
                None => None,
                Some(parent) => match open_parent(here.as_fd(), parent.identity) {
                    Ok(dir) => Some(dir),
                    Err(error) => return self.fail(&levels, &level.name, error),
                },
            };
            let parent = above.as_ref().map_or(at, |dir| dir.as_fd());
            match self.leave(parent, here.as_fd(), level, &mut levels) {
                ControlFlow::Continue(()) => {
                    let Some(above) = above else { return };
                    here = above;
                }
                ControlFlow::Break(()) => {} // new names appeared in it, and it was listed again
            }
        }
    }

    /// Opens a directory, pushes it onto `levels`, removes its non-directories and collects its subdirectories.
    fn enter(
        &mut self,
        at: BorrowedFd<'_>,
        name: CString,
        device: u64,
        levels: &mut Vec<Level>,
    ) -> Result<OwnedFd, Errno> {
        let dir = open_for_removal(at, name.as_c_str())?;
        let stat = rustix::fs::fstat(&dir)?;
        if stat.st_dev != device {
            return Err(Errno::XDEV); // a mount point: the mounted file system is not ours to delete
        }
        // Before it becomes a level: from a directory that may not be searched there is no way back to its parent.
        let listing = list(dir.as_fd())?;
        levels.push(Level {
            name,
            identity: Inode::of(&stat),
            dirs: NameStack::default(),
            has_leftovers: false,
            listings: 0,
        });
        self.sweep(dir.as_fd(), listing, levels);
        Ok(dir)
    }

    /// Unlinks every non-directory in the deepest level and collects its subdirectories.
    fn sweep(&mut self, dir: BorrowedFd<'_>, mut listing: Dir, levels: &mut [Level]) {
        let mut dirs = NameStack::default();
        let mut files = NameStack::default();
        // Listing and unlinking alternate in slices, so that unlink does not disturb readdir within a slice and not all
        // names are held in memory.
        loop {
            let mut ended = true;
            for entry in listing.by_ref().take(BATCH) {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) => return self.keep_entry(levels, &CString::default(), error),
                };
                ended = false;
                match entry.file_type() {
                    _ if super::is_dots(entry.file_name()) => {}
                    FileType::Directory => dirs.push(entry.file_name()),
                    _ => files.push(entry.file_name()),
                }
            }
            while let Some(name) = files.pop() {
                if self.is_cancelled() {
                    return;
                }
                match with_access(dir, || (self.unlink)(dir, &name)) {
                    Ok(Unlinked::Gone) => {}
                    Ok(Unlinked::Directory) => dirs.push(&name),
                    Err(error) => self.keep_entry(levels, &name, error),
                }
            }
            if ended {
                break;
            }
        }
        if let Some(level) = levels.last_mut() {
            level.dirs = dirs;
            level.listings += 1;
        }
    }

    /// Removes a directory that was emptied. `Break` if it was not empty after all and is back on `levels`.
    fn leave(
        &mut self,
        parent: BorrowedFd<'_>,
        dir: BorrowedFd<'_>,
        level: Level,
        levels: &mut Vec<Level>,
    ) -> ControlFlow<()> {
        if level.has_leftovers {
            if let Some(parent) = levels.last_mut() {
                parent.has_leftovers = true;
            }
            return ControlFlow::Continue(());
        }
        let remove = || rustix::fs::unlinkat(parent, &level.name, AtFlags::REMOVEDIR);
        // The directory that the tree is in stays, and so does its mode.
        let removed = if levels.is_empty() { remove() } else { with_access(parent, remove) };
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.listings < LISTINGS_MAX => {
                levels.push(level);
                match list(dir) {
                    Ok(listing) => self.sweep(dir, listing, levels),
                    Err(error) => self.keep_entry(levels, &CString::default(), error),
                }
                return ControlFlow::Break(());
            }
            Err(error) => {
                if let Some(parent) = levels.last_mut() {
                    parent.has_leftovers = true;
                }
                self.fail(levels, &level.name, error);
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns true if the removal must stop. Every [`CHECK_INTERVAL`]th call calls `go_on`, and so does the first.
    fn is_cancelled(&mut self) -> bool {
        let is_due = self.asked.is_multiple_of(CHECK_INTERVAL);
        self.asked += 1;
        self.done.stopped = self.done.stopped || is_due && (self.go_on)().is_break();
        self.done.stopped
    }

    fn keep_entry(&mut self, levels: &mut [Level], name: &CString, error: Errno) {
        if let Some(level) = levels.last_mut() {
            level.has_leftovers = true;
        }
        self.fail(levels, name, error);
    }

    fn fail(&mut self, levels: &[Level], name: &CString, error: Errno) {
        if self.done.failed.is_none() {
            let parts = levels.iter().map(|level| &level.name).chain([name]);
            let path = parts.map(|part| OsStr::from_bytes(part.to_bytes())).collect();
            self.done.failed = Some((path, error.into()));
        }
    }
}

/// The result of [`unlink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlinked {
    /// The name is gone.
    Gone,
    /// The name is a directory and was left alone.
    Directory,
}

/// Unlinks a name unless it is a directory. A missing name is a success.
pub fn unlink(at: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
        // Linux returns EISDIR for a directory; POSIX and some network file systems return EPERM.
        Err(Errno::ISDIR) => Ok(Unlinked::Directory),
        Err(Errno::PERM) if is_dir(at, name) => Ok(Unlinked::Directory),
        Err(error) => Err(error),
    }
}

fn is_dir(at: BorrowedFd<'_>, name: &CStr) -> bool {
    matches!(super::stat(at, name), Ok(Some(stat)) if super::file_type(&stat) == FileType::Directory)
}

/// Begins to list a directory that is to be removed. That opens it once more, by the name `.` in it, and so needs search
/// permission: the handle alone shows only that it may be read.
fn list(dir: BorrowedFd<'_>) -> Result<Dir, Errno> {
    with_access(dir, || Dir::read_from(dir))
}

/// Runs `act`, which needs to search `dir` or to write to it, a directory that is to be removed. If its mode forbids
/// that and we own it, changes the mode and tries once more.
fn with_access<T>(dir: BorrowedFd<'_>, mut act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match act() {
        Err(Errno::ACCESS) if rustix::fs::fchmod(dir, Mode::RWXU).is_ok() => act(),
        done => done,
    }
}

/// Opens a directory on the same mount. If `openat2` is missing (Linux before 5.6) or forbidden (an old seccomp profile
/// returns EPERM), only the caller's comparison of device numbers remains, which does not detect bind mounts.
fn open_same_mount(at: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(at, name, super::DIRECTORY, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(at, name, super::DIRECTORY, Mode::empty()),
        opened => opened,
    }
}

/// Opens a directory that is to be emptied, even if its mode denies access to its owner: then its mode is changed.
pub fn open_for_removal(at: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let at = at.as_fd();
    match open_same_mount(at, name) {
        Err(Errno::ACCESS) => {
            grant_access(at, name)?;
            open_same_mount(at, name)
        }
        opened => opened,
    }
}

/// Changes the mode of a directory so that its owner, if that is us, has all access. `EACCES` if another user owns it,
/// or if the mode denies the owner nothing.
pub fn grant_access(at: impl AsFd, name: impl Arg) -> Result<(), Errno> {
    // Before Linux 6.6 fchmodat cannot refuse symlinks, and fchmod refuses O_PATH handles: chmod through /proc.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(at, name, flags, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
    if mode.contains(Mode::RWXU) {
        return Err(Errno::ACCESS);
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
    rustix::fs::chmod(path, mode | Mode::RWXU).map_err(|_| Errno::ACCESS)
}

/// Renames a directory of ours to another parent, replacing nothing. That changes its `..` and so needs write
/// permission on the directory itself (rename(2)): if its mode denies it, the mode is changed.
pub fn move_dir(
    from: impl AsFd,
    old: impl Arg + Copy,
    to: impl AsFd,
    new: impl Arg + Copy,
) -> io::Result<()> {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    match super::rename_new(from.as_fd(), old, to.as_fd(), new) {
        Err(error) if is_denied(&error) && grant_access(from.as_fd(), old).is_ok() => {
            super::rename_new(from, old, to, new)
        }
        moved => moved,
    }
}

/// Opens the parent of `dir`. `ESTALE` if it is no longer the directory with this identity.
fn open_parent(dir: BorrowedFd<'_>, identity: Inode) -> Result<OwnedFd, Errno> {
    let above = rustix::fs::openat(dir, "..", super::DIRECTORY, Mode::empty())?;
    let stat = rustix::fs::fstat(&above)?;
    if Inode::of(&stat) == identity { Ok(above) } else { Err(Errno::STALE) }
}

/// The size of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// Number of files, symlinks and directories, without the top directory.
    pub entries: u64,
    /// Sum of the regular files' sizes, in bytes.
    pub bytes: u64,
    /// The least that removing the tree frees: bytes in blocks, and inodes. A file with other hard links is not
    /// counted, unless all of them were seen by then: see [`SeenLinks`]. But on tmpfs each name takes an inode.
    pub frees: (u64, u64),
}

/// The hard links seen so far in trees that are removed one after the other: a file that they share is freed with the
/// last of them. Empty for a tree that is removed alone.
#[derive(Debug, Default)]
pub struct SeenLinks(HashMap<Inode, u32>);

impl SeenLinks {
    /// Counts a name of a file. Returns true if the file goes with it, as all its names were counted.
    fn is_last(&mut self, stat: &Stat) -> bool {
        if stat.st_nlink == 1 {
            return true;
        }
        let seen = self.0.entry(Inode::of(stat)).or_default();
        *seen += 1;
        u128::from(*seen) == u128::from(stat.st_nlink) // its type depends on the architecture
    }
}

/// Measures the tree below `dir`, which would be removed after the trees that `seen` was used for before. What is in
/// subdirectories that cannot be opened or listed is not counted.
pub fn measure(dir: impl AsFd, seen: &mut SeenLinks) -> io::Result<Measured> {
    let top = super::open_dir(dir, ".")?;
    let mut sum = Measured::default();
    let links_take_inodes = rustix::fs::fstatfs(&top).is_ok_and(|found| found.f_type == super::TMPFS);
    let mut list = |dir: &OwnedFd| subdirs(dir.as_fd(), &mut sum, seen, links_take_inodes);
    let mut levels = vec![(super::identity(&top)?, list(&top)?)];
    let mut here = top;
    while let Some((_, dirs)) = levels.last_mut() {
        if let Some(next) = dirs.pop() {
            let Ok(dir) = super::open_dir(&here, next.as_c_str()) else { continue };
            // Without search permission it can be opened, but neither listed nor left by its `..`.
            let Ok(dirs) = list(&dir) else { continue };
            levels.push((super::identity(&dir)?, dirs));
            here = dir;
            continue;
        }
        levels.pop();
        if let Some((identity, _)) = levels.last() {
            here = open_parent(here.as_fd(), *identity)?;
        }
    }
    Ok(sum)
}

/// Adds what is in one directory to `sum`. Returns the names of its subdirectories.
fn subdirs(
    dir: BorrowedFd<'_>,
    sum: &mut Measured,
    seen: &mut SeenLinks,
    links_take_inodes: bool,
) -> io::Result<NameStack> {
    let mut dirs = NameStack::default();
    super::each(dir, |name, _| {
        let Some(stat) = super::stat(dir, name)? else { return Ok(()) };
        sum.entries += 1;
        let kind = super::file_type(&stat);
        if kind == FileType::Directory || seen.is_last(&stat) {
            const BLOCK: u64 = 512; // unit of st_blocks, regardless of the file system's block size (stat(3type))
            sum.frees.0 += stat.st_blocks.unsigned_abs() * BLOCK;
            sum.frees.1 += 1;
        } else if links_take_inodes {
            sum.frees.1 += 1;
        }
        match kind {
            FileType::Directory => dirs.push(name),
            FileType::RegularFile => sum.bytes += stat.st_size.unsigned_abs(),
            _ => {}
        }
        Ok(())
    })?;
    Ok(dirs)
}

#[cfg(test)]
mod tests;
