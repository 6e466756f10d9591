//! Walks a tree of any depth with two descriptors, removing or measuring it.
//!
//! Promises: no link is followed and no mount point entered; a directory that was moved away under the walk ends
//! it instead of leading elsewhere; depth costs memory, never descriptors or stack (the standard
//! library's `remove_dir_all` holds one descriptor a level and recurses). What cannot be removed is named, and the rest
//! is removed nevertheless.

use std::ffi::{CString, OsStr};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
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
    dirs: Vec<CString>,
    /// A name in it stays, so it stays.
    stays: bool,
    /// How often it was listed: names may appear behind us, but not for ever.
    rounds: u32,
}

/// A directory is listed at most so often before we give up on somebody who keeps filling it.
const ROUNDS: u32 = 8;

/// Names between two questions whether to go on.
const SLICE: u64 = 64;

/// Removes `name` in `at` and everything below it. `go_on` is asked every few dozen names.
pub fn remove(at: impl AsFd, name: impl AsRef<OsStr>, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Removal {
    let mut remover = Remover { done: Removal::default(), go_on };
    let Ok(name) = CString::new(name.as_ref().as_bytes()) else {
        remover.fail(&[], &CString::default(), Errno::INVAL);
        return remover.done;
    };
    remover.tree(at.as_fd(), &name);
    remover.done
}

struct Remover<'a> {
    done: Removal,
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
}

impl Remover<'_> {
    fn tree(&mut self, at: BorrowedFd<'_>, name: &CString) {
        match unlink(at, name, FileType::Unknown) {
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
                Some(parent) => match climb(here.as_fd(), parent.identity) {
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
            dirs: Vec::new(),
            stays: false,
            rounds: 0,
        });
        self.sweep(dir.as_fd(), levels);
        Ok(dir)
    }

    /// Unlinks every name of the deepest level that is no directory.
    fn sweep(&mut self, dir: BorrowedFd<'_>, levels: &mut [Level]) {
        let listed = match super::list(dir) {
            Ok(listed) => listed,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                return self.stays(levels, &CString::default(), errno);
            }
        };
        let mut dirs = Vec::new();
        for entry in listed {
            if self.ask() {
                return;
            }
            match unlink(dir, &entry.name, entry.kind) {
                Ok(Unlinked::Gone) => self.done.removed += 1,
                Ok(Unlinked::Directory) => dirs.push(entry.name),
                Err(error) => self.stays(levels, &entry.name, error),
            }
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
    fn ask(&mut self) -> bool {
        if self.done.removed.is_multiple_of(SLICE) && (self.go_on)().is_break() {
            self.done.stopped = true;
        }
        self.done.stopped
    }

    fn stays(&mut self, levels: &mut [Level], name: &CString, error: Errno) {
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

enum Unlinked {
    Gone,
    Directory,
}

/// Unlinks a name unless it is a directory.
fn unlink(at: BorrowedFd<'_>, name: &CString, kind: FileType) -> Result<Unlinked, Errno> {
    if kind == FileType::Directory {
        return Ok(Unlinked::Directory);
    }
    match writable(at, || rustix::fs::unlinkat(at, name, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
        // EISDIR on Linux; POSIX, and some network file systems, say EPERM.
        Err(Errno::ISDIR) => Ok(Unlinked::Directory),
        Err(Errno::PERM) if is_dir(at, name) => Ok(Unlinked::Directory),
        Err(error) => Err(error),
    }
}

fn is_dir(at: BorrowedFd<'_>, name: &CString) -> bool {
    matches!(super::stat(at, name.as_c_str()), Ok(Some(stat)) if super::file_type(&stat) == FileType::Directory)
}

/// Does something that needs to write in `dir`; where its mode forbids that and it is ours, the mode is widened once.
fn writable<T>(dir: BorrowedFd<'_>, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match act() {
        Err(Errno::ACCESS) if rustix::fs::fchmod(dir, Mode::RWXU).is_ok() => act(),
        done => done,
    }
}

/// Opens a directory on the same mount. Where `openat2` is missing (Linux before 5.6) or forbidden (an old seccomp
/// profile answers EPERM), the caller's look at the device remains, which does not tell bind mounts.
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
fn climb(dir: BorrowedFd<'_>, identity: (u64, u64)) -> Result<OwnedFd, Errno> {
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
            here = climb(here.as_fd(), *identity)?;
        }
    }
    Ok(sum)
}

fn subdirs(dir: BorrowedFd<'_>, sum: &mut Measured) -> io::Result<Vec<CString>> {
    let mut dirs = Vec::new();
    for entry in super::list(dir)? {
        let Some(stat) = super::stat(dir, entry.name.as_c_str())? else { continue };
        sum.entries += 1;
        match super::file_type(&stat) {
            FileType::Directory => dirs.push(entry.name),
            FileType::RegularFile => sum.bytes += stat.st_size.unsigned_abs(),
            _ => {}
        }
    }
    Ok(dirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsx::{create_new, make_dir, open_dir, open_dir_at_path};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    /// Never stops.
    fn on() -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// A directory with `victim` in it, where the tree to be removed, `tree`, goes beside it.
    fn scratch() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("victim/sub")).unwrap();
        fs_err::write(dir.path().join("victim/sub/file"), "x").unwrap();
        let fd = open_dir_at_path(dir.path()).unwrap();
        (dir, fd)
    }

    fn assert_victim_lives(dir: &Path) {
        assert_eq!(fs_err::read_to_string(dir.join("victim/sub/file")).unwrap(), "x");
    }

    fn set_mode(path: &Path, mode: u32) {
        fs_err::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// A chain of directories, each with a file beside the next one.
    fn chain(top: &OwnedFd, levels: usize) {
        let mut here = make_dir(top, "tree", 0o755).unwrap();
        for _ in 0..levels {
            create_new(&here, "file", 0o644).unwrap();
            here = make_dir(&here, "d", 0o755).unwrap();
        }
    }

    #[test]
    fn twenty_thousand_levels_are_measured_and_removed_with_few_descriptors() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let usual = Rlimit { current: Some(1024), maximum: getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, usual).unwrap();
        // In memory where there is such a place: a disk file system takes minutes to make so many, when it is busy.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let top = open_dir_at_path(dir.path()).unwrap();
        chain(&top, 20_000);
        let measured = measure(open_dir(&top, "tree").unwrap()).unwrap();
        assert_eq!(measured, Measured { entries: 40_000, bytes: 0 });
        let removal = remove(&top, "tree", &mut on);
        assert!(removal.is_complete(), "{removal:?}");
        assert_eq!(removal.removed, 40_001);
        assert!(!dir.path().join("tree").exists());
    }

    #[test]
    fn links_are_removed_and_never_followed() {
        let (dir, top) = scratch();
        let tree = dir.path().join("tree");
        fs_err::create_dir_all(tree.join("a")).unwrap();
        symlink("../victim", tree.join("up")).unwrap();
        symlink(dir.path().join("victim"), tree.join("a/absolute")).unwrap();
        assert_eq!(measure(open_dir(&top, "tree").unwrap()).unwrap().entries, 3);
        assert!(remove(&top, "tree", &mut on).is_complete());
        symlink("victim", &tree).unwrap();
        assert!(remove(&top, "tree", &mut on).is_complete(), "the top itself may be a link, or a file");
        assert!(!tree.is_symlink());
        assert_victim_lives(dir.path());
    }

    /// Runs as an ordinary user, whom modes keep out; uid 0 is not kept out by any.
    fn as_somebody(work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                if rustix::process::geteuid().is_root() {
                    let (gid, uid) = (rustix::fs::Gid::from_raw(65_534), rustix::fs::Uid::from_raw(65_534));
                    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                }
                work();
            });
            worker.join().unwrap();
        });
    }

    #[test]
    fn directories_that_forbid_writing_or_entering_are_removed_by_their_owner() {
        let (dir, _) = scratch();
        set_mode(dir.path(), 0o777);
        as_somebody(|| {
            let tree = dir.path().join("tree");
            fs_err::create_dir_all(tree.join("read-only/below")).unwrap();
            fs_err::create_dir_all(tree.join("closed/below")).unwrap();
            for name in ["read-only/file", "closed/file"] {
                fs_err::write(tree.join(name), "x").unwrap();
            }
            for (name, mode) in
                [("read-only/below", 0o555), ("read-only", 0o555), ("closed", 0o000), (".", 0o500)]
            {
                set_mode(&tree.join(name), mode);
            }
            let top = open_dir_at_path(dir.path()).unwrap();
            let removal = remove(&top, "tree", &mut on);
            assert!(removal.is_complete(), "{removal:?}");
            assert!(!tree.exists());
        });
    }

    #[test]
    fn what_cannot_be_removed_is_named_and_the_rest_goes() {
        let (dir, top) = scratch();
        let tree = dir.path().join("tree");
        fs_err::create_dir_all(tree.join("a/theirs")).unwrap();
        fs_err::create_dir_all(tree.join("z/deep")).unwrap();
        fs_err::write(tree.join("a/theirs/file"), "x").unwrap();
        for name in [".", "tree", "tree/a", "tree/z", "tree/z/deep"] {
            set_mode(&dir.path().join(name), 0o777);
        }
        if rustix::process::geteuid().is_root() {
            as_somebody(|| {
                let (path, error) = remove(&top, "tree", &mut on).failed.unwrap();
                assert_eq!(path, Path::new("tree/a/theirs/file"));
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            });
            assert!(tree.join("a/theirs/file").exists() && !tree.join("z").exists());
        }
        assert!(remove(&top, "tree", &mut on).is_complete());
        assert!(!tree.exists());
    }

    #[test]
    fn a_directory_moved_away_under_the_walk_leads_nowhere() {
        let (dir, top) = scratch();
        chain(&top, 200);
        let inner = dir.path().join("tree").join(["d"; 100].join("/"));
        let mut moved = false;
        let removal = remove(&top, "tree", &mut || {
            // Files go on the way down: without this one, the walk is below it.
            if !moved && !inner.join("file").exists() {
                fs_err::rename(&inner, dir.path().join("victim/inner")).unwrap();
                moved = true;
            }
            ControlFlow::Continue(())
        });
        assert!(moved && !removal.is_complete(), "{removal:?}");
        assert_victim_lives(dir.path());
        assert!(remove(&top, "tree", &mut on).is_complete());
        assert!(!dir.path().join("tree").exists());
    }

    #[test]
    fn names_that_appear_meanwhile_do_not_keep_it_going_for_ever() {
        let (dir, top) = scratch();
        chain(&top, 3);
        let (mut count, tree) = (0, dir.path().join("tree"));
        let removal = remove(&top, "tree", &mut || {
            count += 1;
            let _ = fs_err::write(tree.join(format!("new{count}")), "x"); // its directory may be gone
            ControlFlow::Continue(())
        });
        assert!(removal.is_complete() || removal.failed.is_some());
        assert!(remove(&top, "tree", &mut on).is_complete());
        assert!(!tree.exists());
    }

    #[test]
    fn a_removal_stops_when_asked_and_the_next_one_finishes() {
        let (dir, top) = scratch();
        chain(&top, 500);
        let mut slices = 0;
        let removal = remove(&top, "tree", &mut || {
            slices += 1;
            if slices > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(removal.stopped && removal.removed < 500, "{removal:?}");
        assert!(remove(&top, "tree", &mut on).is_complete());
        assert!(!dir.path().join("tree").exists());
    }

    #[test]
    fn a_name_that_is_gone_already_is_as_good_as_removed() {
        let (_dir, top) = scratch();
        assert!(remove(&top, "absent", &mut on).is_complete());
        assert!(remove(&top, "nul\0", &mut on).failed.is_some());
    }
}
