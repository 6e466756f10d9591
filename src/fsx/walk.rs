//! Walks a tree of any depth with two descriptors, removing or measuring it.
//!
//! Promises: no link is followed and no mount point entered; a directory that was moved away under the walk ends
//! it instead of leading elsewhere; depth costs memory, never descriptors or stack (the standard
//! library's `remove_dir_all` holds one descriptor a level and recurses). What cannot be removed is named, and the rest
//! is removed nevertheless.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How a removal ended.
#[derive(Debug, Default)]
pub struct Removal {
    /// Names that were removed.
    pub removed: u64,
    /// It was asked to stop; the rest is still there.
    pub stopped: bool,
    /// The first name that could not be removed, relative to what was to be removed, and why.
    pub failed: Option<(PathBuf, io::Error)>,
}

impl Removal {
    /// Whether nothing is left.
    pub fn is_complete(&self) -> bool {
        !self.stopped && self.failed.is_none()
    }
}

/// A directory that is being worked on: its handle is only kept for the deepest one.
struct Level {
    name: CString,
    /// Device and inode, to recognise it on the way back up.
    identity: (u64, u64),
    /// Directories in it that are still to be visited.
    dirs: Names,
    /// A name in it stays, so it stays.
    stays: bool,
    /// How often it was listed: names may appear behind us, but not for ever.
    rounds: u32,
}

/// Names that wait, one behind the other: a directory may hold a million.
#[derive(Default)]
struct Names(Vec<u8>);

impl Names {
    fn push(&mut self, name: &CStr) {
        self.0.extend_from_slice(name.to_bytes_with_nul());
    }

    /// The last one.
    fn pop(&mut self) -> Option<CString> {
        let end = self.0.len().checked_sub(1)?;
        let start = self.0[..end].iter().rposition(|byte| *byte == 0).map_or(0, |nul| nul + 1);
        let name = CString::from_vec_with_nul(self.0.split_off(start)).ok();
        if self.0.capacity() > 4 * self.0.len() + 4096 {
            self.0.shrink_to(2 * self.0.len()); // what was read is not held for ever
        }
        name
    }
}

/// A directory is listed at most so often: another process may keep filling it.
const ROUNDS: u32 = 8;

/// Names that are listed before those among them that are no directories are removed.
const LISTED: usize = 4_096;

/// Names between two questions whether to go on.
const SLICE: u64 = 64;

/// Removes `name` in `at` and everything below it. `go_on` is asked every few dozen names.
pub fn remove(at: impl AsFd, name: impl AsRef<OsStr>, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Removal {
    remove_by(at, name, go_on, &mut |dir, name| unlink(dir, name))
}

/// The same; each name that may be no directory's is removed by `unlink`, which ends in [`unlink`].
pub fn remove_by(
    at: impl AsFd,
    name: impl AsRef<OsStr>,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    unlink: Unlink<'_>,
) -> Removal {
    let mut remover = Remover { done: Removal::default(), go_on, unlink };
    let Ok(name) = CString::new(name.as_ref().as_bytes()) else {
        remover.fail(&[], &CString::default(), Errno::INVAL);
        return remover.done;
    };
    remover.tree(at.as_fd(), &name);
    remover.done
}

/// Removes a name in a directory.
pub type Unlink<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &CStr) -> Result<Unlinked, Errno>;

struct Remover<'a> {
    done: Removal,
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
    unlink: Unlink<'a>,
}

impl Remover<'_> {
    fn tree(&mut self, at: BorrowedFd<'_>, name: &CString) {
        match (self.unlink)(at, name) {
            Ok(Unlinked::Gone) => {
                self.done.removed += 1;
                return;
            }
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
            if self.done.stopped {
                return;
            }
            if let Some(next) = level.dirs.pop() {
                match self.enter(here.as_fd(), next.clone(), device, &mut levels) {
                    Ok(dir) => here = dir,
                    Err(error) => {
                        if let Some(level) = levels.last_mut() {
                            level.stays = true;
                        }
                        self.fail(&levels, &next, error);
                    }
                }
                continue;
            }
            // Empty, as far as we saw: back up and remove it from there.
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
                ControlFlow::Break(()) => {} // listed again: names appeared in it
            }
        }
    }

    /// Opens a directory, removes what is no directory in it and notes the directories.
    fn enter(
        &mut self,
        at: BorrowedFd<'_>,
        name: CString,
        device: u64,
        levels: &mut Vec<Level>,
    ) -> Result<OwnedFd, Errno> {
        let dir = open_for_removal(at, &name)?;
        let stat = rustix::fs::fstat(&dir)?;
        if stat.st_dev != device {
            return Err(Errno::XDEV); // a mount point: what is mounted there is not ours
        }
        levels.push(Level {
            name,
            identity: (stat.st_dev, stat.st_ino),
            dirs: Names::default(),
            stays: false,
            rounds: 0,
        });
        self.sweep(dir.as_fd(), levels);
        Ok(dir)
    }

    /// Unlinks every name of the deepest level that is no directory.
    fn sweep(&mut self, dir: BorrowedFd<'_>, levels: &mut [Level]) {
        let mut dirs = Names::default();
        let mut files = Names::default();
        // A slice of names at a time: what is listed and what is removed do not get into each other's way there.
        let listed = Dir::read_from(dir).and_then(|mut listed| {
            loop {
                let slice = listed.by_ref().take(LISTED);
                let mut ended = true;
                for entry in slice {
                    let entry = entry?;
                    ended = false;
                    match entry.file_type() {
                        _ if super::is_dots(entry.file_name()) => {}
                        FileType::Directory => dirs.push(entry.file_name()),
                        _ => files.push(entry.file_name()),
                    }
                }
                while let Some(name) = files.pop() {
                    if self.is_cancelled() {
                        return Ok(());
                    }
                    match (self.unlink)(dir, &name) {
                        Ok(Unlinked::Gone) => self.done.removed += 1,
                        Ok(Unlinked::Directory) => dirs.push(&name),
                        Err(error) => self.keep_entry(levels, &name, error),
                    }
                }
                if ended {
                    return Ok(());
                }
            }
        });
        if let Err(error) = listed {
            return self.keep_entry(levels, &CString::default(), error);
        }
        if let Some(level) = levels.last_mut() {
            level.dirs = dirs;
            level.rounds += 1;
        }
    }

    /// Removes a directory that was emptied; `Break` if it turned out not to be empty and is back on the stack.
    fn leave(
        &mut self,
        parent: BorrowedFd<'_>,
        dir: BorrowedFd<'_>,
        level: Level,
        levels: &mut Vec<Level>,
    ) -> ControlFlow<()> {
        if level.stays {
            if let Some(parent) = levels.last_mut() {
                parent.stays = true;
            }
            return ControlFlow::Continue(());
        }
        match writable(parent, || rustix::fs::unlinkat(parent, &level.name, AtFlags::REMOVEDIR)) {
            Ok(()) | Err(Errno::NOENT) => self.done.removed += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.rounds < ROUNDS => {
                levels.push(level);
                self.sweep(dir, levels);
                return ControlFlow::Break(());
            }
            Err(error) => {
                if let Some(parent) = levels.last_mut() {
                    parent.stays = true;
                }
                self.fail(levels, &level.name, error);
            }
        }
        ControlFlow::Continue(())
    }

    /// Asks every few names whether to go on; true when it is to stop.
    fn is_cancelled(&mut self) -> bool {
        if self.done.removed.is_multiple_of(SLICE) && (self.go_on)().is_break() {
            self.done.stopped = true;
        }
        self.done.stopped
    }

    fn keep_entry(&mut self, levels: &mut [Level], name: &CString, error: Errno) {
        if let Some(level) = levels.last_mut() {
            level.stays = true;
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

/// What became of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlinked {
    /// It is not there any more.
    Gone,
    /// It is a directory's, and still there.
    Directory,
}

/// Unlinks a name unless it is a directory's.
pub fn unlink(at: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
    match writable(at, || rustix::fs::unlinkat(at, name, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
        // EISDIR on Linux; POSIX, and some network file systems, say EPERM.
        Err(Errno::ISDIR) => Ok(Unlinked::Directory),
        Err(Errno::PERM) if is_dir(at, name) => Ok(Unlinked::Directory),
        Err(error) => Err(error),
    }
}

fn is_dir(at: BorrowedFd<'_>, name: &CStr) -> bool {
    matches!(super::stat(at, name), Ok(Some(stat)) if super::file_type(&stat) == FileType::Directory)
}

/// Does something that needs to write in `dir`; where its mode forbids that and it is ours, the mode is widened once.
fn writable<T>(dir: BorrowedFd<'_>, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match act() {
        Err(Errno::ACCESS) if rustix::fs::fchmod(dir, Mode::RWXU).is_ok() => act(),
        done => done,
    }
}

/// Opens a directory on the same mount. Where `openat2` is missing (Linux before 5.6) or forbidden (an old seccomp
/// profile answers EPERM), the caller's look at the device remains, which does not show bind mounts.
fn open_same_mount(at: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(at, name, super::DIRECTORY, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(at, name, super::DIRECTORY, Mode::empty()),
        opened => opened,
    }
}

/// Opens a directory that is to be emptied, also one whose mode keeps even its owner out.
fn open_for_removal(at: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    match open_same_mount(at, name) {
        Err(Errno::ACCESS) => {
            // Linux has no fchmodat that refuses links before 6.6, and fchmod refuses O_PATH handles: through /proc.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = rustix::fs::openat(at, name, flags, Mode::empty())?;
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
            rustix::fs::chmod(path, Mode::RWXU).map_err(|_| Errno::ACCESS)?;
            open_same_mount(at, name)
        }
        opened => opened,
    }
}

/// The directory above `dir`, if it is still the one we came from.
fn open_parent(dir: BorrowedFd<'_>, identity: (u64, u64)) -> Result<OwnedFd, Errno> {
    let above = rustix::fs::openat(dir, "..", super::DIRECTORY, Mode::empty())?;
    let stat = rustix::fs::fstat(&above)?;
    if (stat.st_dev, stat.st_ino) == identity { Ok(above) } else { Err(Errno::STALE) }
}

/// What a tree holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// Files, links and directories, the top not counted.
    pub entries: u64,
    /// Sum of the regular files' sizes.
    pub bytes: u64,
    /// What its removal gives back at least: the blocks, in bytes, and the inodes of what has no name elsewhere.
    pub frees: (u64, u64),
}

/// Counts what is below `dir`. What cannot be read is not counted.
pub fn measure(dir: impl AsFd) -> io::Result<Measured> {
    let top = super::open_dir(dir, ".")?;
    let mut sum = Measured::default();
    let mut levels = vec![(super::identity(&top)?, subdirs(top.as_fd(), &mut sum)?)];
    let mut here = top;
    while let Some((_, dirs)) = levels.last_mut() {
        if let Some(next) = dirs.pop() {
            let Ok(dir) = super::open_dir(&here, next.as_c_str()) else { continue };
            levels.push((super::identity(&dir)?, subdirs(dir.as_fd(), &mut sum)?));
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

fn subdirs(dir: BorrowedFd<'_>, sum: &mut Measured) -> io::Result<Names> {
    let mut dirs = Names::default();
    super::each(dir, |name, _| {
        let Some(stat) = super::stat(dir, name)? else { return Ok(()) };
        sum.entries += 1;
        let kind = super::file_type(&stat);
        if stat.st_nlink == 1 || kind == FileType::Directory {
            const BLOCK: u64 = 512; // of st_blocks, whatever the file system's own blocks are (stat(3type))
            sum.frees.0 += stat.st_blocks.unsigned_abs() * BLOCK;
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
