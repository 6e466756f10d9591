//! The journal: the ctime changes of published inodes that we caused ourselves.
//!
//! Creating, moving or removing a hard link sets the inode's ctime, which every tree that shares the inode sees. Each
//! such change is recorded with the ctime before and after it. If a chain of recorded changes leads from an inode's
//! ctime back to a time that a tree already knew, there was no foreign write. There is one journal per root, in
//! memory only.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::clock::ClockSteps;
use crate::fsx;
use crate::fsx::walk::{self, Unlinked};

/// The most inodes in the journal, 24 bytes each (and a seventh more: seven eighths of a hash table are used). A change
/// that does not fit is treated as a foreign write, so what can be done in another way is not done when it is full.
pub(super) const INODES_MAX: usize = 7 << 15;
/// Number of parts of the journal, each with a lock. The trash unlinks and the spare links names of the same generations
/// at the same time, and each system call is made under a lock.
const PARTS: usize = 64;

/// An inode timestamp in nanoseconds since 1970. It saturates in the year 2262, after which timestamps detect nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Stamp(i64);

impl Stamp {
    fn new(seconds: i64, fraction: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(fraction))
    }

    /// The inode's change time (ctime).
    pub(super) fn ctime_of(stat: &Stat) -> Self {
        Self::new(stat.st_ctime as _, stat.st_ctime_nsec as _)
    }

    /// The inode's modification time (mtime).
    pub(super) fn mtime_of(stat: &Stat) -> Self {
        Self::new(stat.st_mtime as _, stat.st_mtime_nsec as _)
    }

    /// The time that is earlier by `span`.
    pub(super) fn earlier_by(self, span: Duration) -> Self {
        Self(self.0.saturating_sub_unsigned(span.as_nanos() as u64)) // spans are far below the 584 years that fit
    }

    /// Returns the metadata with this ctime.
    #[cfg(test)]
    pub(super) fn as_ctime_in(self, mut stat: Stat) -> Stat {
        stat.st_ctime = (self.0 / 1_000_000_000) as _;
        stat.st_ctime_nsec = (self.0 % 1_000_000_000) as _;
        stat
    }

    /// Returns true if the timestamp has a sub-second part.
    pub(super) fn has_subseconds(self) -> bool {
        self.0 % 1_000_000_000 != 0
    }
}

/// A chain of changes that we made ourselves, from one ctime of an inode to a later one.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// The ctime before our first change. If we created the inode ourselves, it is the negative of its mtime then: earlier
    /// than any time that a tree knows.
    from: Stamp,
    to: Stamp,
}

/// The journal of a root, shared by its trees.
#[derive(Debug)]
pub(super) struct Journal {
    clock: ClockSteps,
    parts: [Mutex<Changes>; PARTS],
}

/// A part of the journal: the latest change by inode number. A caller that changes an inode that may be shared holds the
/// lock until the stat after the change. Otherwise two of our own changes could interleave and look like a foreign
/// write.
#[derive(Debug, Default)]
pub(super) struct Changes(HashMap<u64, Change>);

impl Journal {
    /// Starts an empty journal. Fails if clock steps cannot be counted: after a step, ctimes prove nothing.
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self { clock: ClockSteps::watch()?, parts: std::array::from_fn(|_| Mutex::default()) })
    }

    /// How often the wall clock was set since the journal started.
    pub(super) fn clock_steps(&self) -> u64 {
        self.clock.count()
    }

    /// Unlinks a name unless it is a directory. If the file has other hard links, records the ctime change.
    pub(super) fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
        let is_shared = |stat: &Stat| stat.st_nlink > 1 && fsx::file_type(stat).is_file();
        let shared = fsx::stat(dir, name).ok().flatten().filter(is_shared);
        let Some(inode) = shared.map(|stat| stat.st_ino) else { return walk::unlink(dir, name) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(dir, name, flags, Mode::empty()) else {
            return walk::unlink(dir, name);
        };
        let mut changes = self.lock(inode);
        let before = rustix::fs::fstat(&file);
        let unlinked = walk::unlink(dir, name);
        if let (Ok(before), Ok(Unlinked::Gone), Ok(after)) = (before, &unlinked, rustix::fs::fstat(&file)) {
            changes.record_change(&before, &after);
        }
        unlinked
    }

    /// Locks the part of the journal that has this inode. Lock ordering: no other lock may be taken while it is held.
    pub(super) fn lock(&self, inode: u64) -> MutexGuard<'_, Changes> {
        // Fibonacci hashing: inode numbers may be multiples of something.
        let part = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        lock(&self.parts[part as usize % PARTS])
    }

    /// Drops the changes that ended at or before `since`: every tree already knows a time at least that late.
    pub(super) fn discard_until(&self, since: Stamp) {
        self.parts.iter().for_each(|part| lock(part).discard_until(since));
    }

    /// Number of inodes in the journal.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| lock(part).0.len()).sum()
    }
}

fn lock(part: &Mutex<Changes>) -> MutexGuard<'_, Changes> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Changes {
    /// Returns true if the inode's ctime was at or before `since` until we changed it. Its mtime must also be older
    /// than our changes: a foreign write in the same clock tick as our last change would not move the ctime.
    pub(super) fn explains(&self, stat: &Stat, since: Stamp) -> bool {
        self.0.get(&stat.st_ino).is_some_and(|change| {
            let is_older = Stamp::mtime_of(stat) <= Stamp(change.from.0.saturating_abs());
            is_older && change.to == Stamp::ctime_of(stat) && change.from <= since
        })
    }

    /// Returns true if we changed the inode after this metadata was read.
    pub(super) fn has_later(&self, stat: &Stat) -> bool {
        self.0.get(&stat.st_ino).is_some_and(|change| change.to > Stamp::ctime_of(stat))
    }

    /// Returns true if a change of this inode can be recorded.
    pub(super) fn has_room_for(&self, inode: u64) -> bool {
        self.0.len() < INODES_MAX / PARTS || self.0.contains_key(&inode)
    }

    /// Records that we linked, moved or removed a name of this inode, with its metadata before and after. If anything
    /// else changed in between, it was a foreign write, and nothing is recorded.
    pub(super) fn record_change(&mut self, before: &Stat, after: &Stat) {
        let other_metadata = |stat: &Stat| {
            (Stamp::mtime_of(stat), stat.st_size, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_ino)
        };
        if other_metadata(before) != other_metadata(after) {
            return;
        }
        let earlier = self.0.get(&after.st_ino).filter(|change| change.to == Stamp::ctime_of(before));
        let from = earlier.map_or(Stamp::ctime_of(before), |change| change.from);
        self.put(after, from);
    }

    /// Records that we created this inode, in a place that nobody else could reach so far.
    pub(super) fn record_creation(&mut self, stat: &Stat) {
        self.put(stat, Stamp(-Stamp::mtime_of(stat).0.saturating_abs()));
    }

    fn put(&mut self, stat: &Stat, from: Stamp) {
        if self.has_room_for(stat.st_ino) {
            self.0.insert(stat.st_ino, Change { from, to: Stamp::ctime_of(stat) });
        }
    }

    fn discard_until(&mut self, since: Stamp) {
        self.0.retain(|_, change| change.to > since);
        if self.0.capacity() > 4 * self.0.len() + 1024 / PARTS {
            self.0.shrink_to_fit();
        }
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
            Stamp::ctime_of(&self.stat())
        }

        /// Makes a link, and says so if it is ours.
        fn link(&mut self, is_ours: bool) {
            later();
            let before = self.stat();
            self.links += 1;
            fs_err::hard_link(self.dir.path().join("0"), self.dir.path().join(self.links.to_string()))
                .unwrap();
            if is_ours {
                self.changes.record_change(&before, &self.stat());
            }
        }

        fn is_explained(&self, since: Stamp) -> bool {
            self.changes.explains(&self.stat(), since)
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
            let first = file.now();
            let path = file.dir.path().join("0");
            later();
            let before = file.stat();
            act(&path);
            fs_err::hard_link(&path, file.dir.path().join("1")).unwrap();
            file.changes.record_change(&before, &file.stat());
            assert!(!file.is_explained(first), "{number}");
        }
    }

    #[test]
    fn what_somebody_writes_in_the_tick_of_our_change_is_not_ours() {
        for is_created in [false, true] {
            let mut file = File::new();
            let first = file.now();
            if is_created {
                let created = file.stat();
                file.changes.record_creation(&created);
                assert!(file.is_explained(Stamp(first.0 - 1)), "every tree that has it knows it");
            }
            file.link(true);
            let mut stat = file.stat();
            (stat.st_mtime, stat.st_mtime_nsec) = (stat.st_ctime, stat.st_ctime_nsec);
            assert!(file.is_explained(first));
            assert!(!file.changes.explains(&stat, first), "created by us: {is_created}");
        }
    }

    #[test]
    fn what_is_forgotten_is_not_explained() {
        let mut file = File::new();
        let first = file.now();
        file.link(true);
        file.changes.discard_until(first);
        assert!(file.is_explained(first), "a tree needs it");
        let now = file.now();
        file.changes.discard_until(now);
        assert_eq!(file.changes.0.len(), 0);
        assert!(!file.is_explained(first));
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let file = File::new();
        let journal = Journal::start().unwrap();
        let mut stat = file.stat();
        let mut fitted = 0;
        for inode in 0..2 * INODES_MAX as u64 {
            stat.st_ino = inode;
            let mut changes = journal.lock(inode);
            changes.record_creation(&stat);
            fitted += usize::from(changes.explains(&stat, Stamp(0)));
        }
        assert_eq!((journal.len(), fitted), (INODES_MAX, INODES_MAX), "the others count as foreign writes");
        stat.st_ino = 1;
        stat.st_ctime_nsec += 1;
        let mut changes = journal.lock(1);
        changes.record_creation(&stat);
        assert!(changes.explains(&stat, Stamp(0)), "what is known is kept up to date");
    }

    #[test]
    fn all_parts_are_used_alike() {
        for step in [1, 2, 8, 64, 1 << 12] {
            let file = File::new();
            let journal = Journal::start().unwrap();
            let mut stat = file.stat();
            let count = INODES_MAX / 4 * 3;
            for number in 0..count as u64 {
                stat.st_ino = 1_000 + number * step;
                journal.lock(stat.st_ino).record_creation(&stat);
            }
            assert_eq!(journal.len(), count, "all that may be linked fit, {step} apart");
        }
    }
}
