//! The journal: which changes to inodes of published trees we made ourselves.
//!
//! A hard link that is made, moved or removed moves the inode's change time, in every tree that shares it. So each such
//! change is noted with the change time before and after it. A change time that the journal leads back to one that a tree
//! already knew tells of nobody else. It is one for the root, and in memory.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::clock::ClockSteps;
use crate::fsx;
use crate::fsx::walk::{self, Unlinked};

/// Inodes that are kept at most, 24 bytes each (and a seventh more: seven eighths of a hash table are used). What finds no
/// place counts as somebody else's change.
pub(super) const INODES_MAX: usize = 7 << 15;

/// A time that a file system gave to an inode, in nanoseconds since 1970. After 2262 it tells nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Stamp(i64);

impl Stamp {
    const EARLIEST: Self = Self(i64::MIN);

    fn new(seconds: i64, fraction: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(fraction))
    }

    /// When the inode was changed.
    pub(super) fn of_change(stat: &Stat) -> Self {
        Self::new(stat.st_ctime as _, stat.st_ctime_nsec as _)
    }

    /// When its content was.
    pub(super) fn of_content(stat: &Stat) -> Self {
        Self::new(stat.st_mtime as _, stat.st_mtime_nsec as _)
    }

    /// Whether it is no whole second.
    pub(super) fn is_fine(self) -> bool {
        self.0 % 1_000_000_000 != 0
    }
}

/// From one change time to another by changes of ours alone.
#[derive(Clone, Copy, Debug)]
struct Change {
    from: Stamp,
    to: Stamp,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    clock: ClockSteps,
    changes: Mutex<Changes>,
}

/// What the journal holds, locked. Who changes an inode that may be shared holds it from the look before to the look
/// after: two of our own changes at once would look like somebody else's.
#[derive(Debug, Default)]
pub(super) struct Changes(HashMap<u64, Change>);

impl Journal {
    /// An error where steps of the clock cannot be counted, without which times tell nothing.
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self { clock: ClockSteps::watch()?, changes: Mutex::default() })
    }

    /// How often the clock was set.
    pub(super) fn steps(&self) -> u64 {
        self.clock.count()
    }

    /// Removes a name unless it is a directory's, and notes that where the file has other names: its change time moves.
    pub(super) fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
        let is_shared = |stat: &Stat| stat.st_nlink > 1 && fsx::file_type(stat).is_file();
        if !fsx::stat(dir, name).is_ok_and(|stat| stat.is_some_and(|stat| is_shared(&stat))) {
            return walk::unlink(dir, name);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(dir, name, flags, Mode::empty()) else {
            return walk::unlink(dir, name);
        };
        let mut changes = self.lock();
        let before = rustix::fs::fstat(&file);
        let unlinked = walk::unlink(dir, name);
        if let (Ok(before), Ok(Unlinked::Gone), Ok(after)) = (before, &unlinked, rustix::fs::fstat(&file)) {
            changes.changed(&before, &after);
        }
        unlinked
    }

    /// Locks it. The last lock in any order.
    pub(super) fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Changes {
    /// Whether an inode with this change time had one no later than `since` before our own changes. Its content must be
    /// older than these, too: what somebody writes in the same tick as our last change does not move the change time.
    pub(super) fn explain(&self, stat: &Stat, since: Stamp) -> bool {
        self.0.get(&stat.st_ino).is_some_and(|change| {
            let is_older = change.from == Stamp::EARLIEST || Stamp::of_content(stat) <= change.from;
            is_older && change.to == Stamp::of_change(stat) && change.from <= since
        })
    }

    /// We linked, moved or removed a name of this inode. If anything else about it changed between the two looks,
    /// somebody else was there, and nothing is noted.
    pub(super) fn changed(&mut self, before: &Stat, after: &Stat) {
        let rest = |stat: &Stat| {
            (Stamp::of_content(stat), stat.st_size, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_ino)
        };
        if rest(before) != rest(after) {
            return;
        }
        let before_this = self.0.get(&after.st_ino).filter(|change| change.to == Stamp::of_change(before));
        let from = before_this.map_or(Stamp::of_change(before), |change| change.from);
        self.put(after, from);
    }

    /// We made this inode, where nobody else could reach it so far.
    pub(super) fn made(&mut self, stat: &Stat) {
        self.put(stat, Stamp::EARLIEST);
    }

    fn put(&mut self, stat: &Stat, from: Stamp) {
        let change = Change { from, to: Stamp::of_change(stat) };
        if self.0.len() < INODES_MAX {
            self.0.insert(stat.st_ino, change);
        } else if let Some(known) = self.0.get_mut(&stat.st_ino) {
            *known = change;
        }
    }

    /// No tree is left that knows no later time than this.
    pub(super) fn forget_until(&mut self, since: Stamp) {
        self.0.retain(|_, change| change.to > since);
        if self.0.capacity() > 4 * self.0.len() + 1024 {
            self.0.shrink_to_fit();
        }
    }

    /// Inodes in it.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn stat(path: &Path) -> Stat {
        rustix::fs::lstat(path).unwrap()
    }

    /// After the file system's clock has gone on.
    fn later() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    struct File {
        dir: tempfile::TempDir,
        changes: Changes,
        links: u32,
    }

    impl File {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs_err::write(dir.path().join("0"), "x").unwrap();
            Self { dir, changes: Changes::default(), links: 0 }
        }

        fn stat(&self) -> Stat {
            stat(&self.dir.path().join("0"))
        }

        fn now(&self) -> Stamp {
            Stamp::of_change(&self.stat())
        }

        /// Makes a link, and says so if it is ours.
        fn link(&mut self, is_ours: bool) {
            later();
            let before = self.stat();
            self.links += 1;
            fs_err::hard_link(self.dir.path().join("0"), self.dir.path().join(self.links.to_string()))
                .unwrap();
            if is_ours {
                self.changes.changed(&before, &self.stat());
            }
        }

        fn is_explained(&self, since: Stamp) -> bool {
            self.changes.explain(&self.stat(), since)
        }
    }

    #[test]
    fn our_changes_lead_back_to_the_time_before_them() {
        let mut file = File::new();
        let first = file.now();
        for _ in 0..3 {
            file.link(true);
            assert!(file.is_explained(first));
        }
        assert!(!file.is_explained(Stamp(first.0 - 1)), "it was not there then");
    }

    #[test]
    fn somebody_elses_change_stays_visible_to_whom_it_is_news_before_between_and_after_ours() {
        for theirs in 0..3 {
            let mut file = File::new();
            let first = file.now();
            (0..3).for_each(|at| file.link(at != theirs));
            assert!(!file.is_explained(first), "{theirs}");
        }
        let mut file = File::new();
        file.link(false);
        let known = file.now();
        file.link(true);
        assert!(file.is_explained(known), "who has looked at it since");
    }

    #[test]
    fn what_somebody_writes_between_our_looks_is_not_ours() {
        type Act = fn(&Path);
        let acts: [Act; 3] = [
            |path| fs_err::write(path, "y").unwrap(),
            |path| fs_err::set_permissions(path, PermissionsExt::from_mode(0o640)).unwrap(),
            |path| std::os::unix::fs::chown(path, None, Some(1)).unwrap(),
        ];
        let acts = if rustix::process::geteuid().is_root() { &acts[..] } else { &acts[..2] };
        for (number, act) in acts.iter().enumerate() {
            let mut file = File::new();
            let (first, path) = (file.now(), file.dir.path().join("0"));
            later();
            let before = file.stat();
            act(&path);
            fs_err::hard_link(&path, file.dir.path().join("1")).unwrap();
            file.changes.changed(&before, &file.stat());
            assert!(!file.is_explained(first), "{number}");
        }
    }

    #[test]
    fn what_somebody_writes_in_the_tick_of_our_change_is_not_ours() {
        let mut file = File::new();
        let first = file.now();
        file.link(true);
        let mut stat = file.stat();
        (stat.st_mtime, stat.st_mtime_nsec) = (stat.st_ctime, stat.st_ctime_nsec);
        assert!(file.is_explained(first));
        assert!(!file.changes.explain(&stat, first));
    }

    #[test]
    fn what_is_forgotten_is_not_explained() {
        let mut file = File::new();
        let first = file.now();
        file.link(true);
        file.changes.forget_until(first);
        assert!(file.is_explained(first), "a tree needs it");
        let now = file.now();
        file.changes.forget_until(now);
        assert_eq!(file.changes.len(), 0);
        assert!(!file.is_explained(first));
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let file = File::new();
        let mut changes = Changes::default();
        let mut stat = file.stat();
        for inode in 0..INODES_MAX as u64 + 10 {
            stat.st_ino = inode;
            changes.made(&stat);
        }
        assert_eq!(changes.len(), INODES_MAX);
        assert!(!changes.explain(&stat, Stamp::EARLIEST), "it counts as somebody else's");
        stat.st_ino = 1;
        stat.st_ctime_nsec += 1;
        changes.made(&stat);
        assert!(changes.explain(&stat, Stamp::EARLIEST), "what is known is kept up to date");
    }
}
