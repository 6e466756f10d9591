//! Notices swaps of a root's link (or a ConfigMap volume's). The only module that uses the `notify` crate.
//!
//! The link itself is polled every few seconds: inotify's queue may overflow, its instances and watches are limited,
//! and not every file system supports it. Events only make the next poll come at once. The watch is on the *directory*
//! that holds the link (a watch on the link, or on a file behind it, ends with the first swap), and events are filtered
//! by the link's name.
//!
//! A [`Watcher`] yields a [`Change`] after a swap, at the latest at the next poll. Several swaps between two polls are
//! one change. It yields nothing if the link's target is the same, whatever else happens in the directory. It does not
//! keep the generation: take a pin for that, and read the pinned generation, which may be newer than the change.
//!
//! If a volume holds several ConfigMaps, a [`SetReader`] waits for swaps after which they belong together.

pub mod set;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use notify::event::{EventKind, ModifyKind};
use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use set::{Set, SetReader};

use crate::clock;
use crate::fsx::{self, Inode};

/// The shortest poll interval: without one, polling would use a whole processor.
const SHORTEST_POLL: Duration = Duration::from_millis(10);

/// The longest pause between two looks for a directory that is absent: no event tells of its creation.
const LONGEST_ABSENT_POLL: Duration = Duration::from_secs(1);

/// How a link is watched.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often the link is polled without an event. Shorter values than 10 milliseconds count as 10 milliseconds.
    pub poll: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { poll: Duration::from_secs(5) }
    }
}

/// The link names another generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The link's target.
    pub target: PathBuf,
    /// The generation's directory: one that was replaced under the same name is another generation.
    identity: Inode,
}

/// Waits for swaps; as an iterator it never ends.
///
/// ```
/// use treeswap::watch::{Options, Watcher};
/// # let root = tempfile::tempdir()?;
/// # let link = root.path().join("..data");
/// # std::fs::create_dir(root.path().join("one"))?;
/// # let _ = std::fs::create_dir(root.path().join("two"));
/// # std::os::unix::fs::symlink("one", &link)?;
///
/// let mut swaps = Watcher::new(&link, &Options::default());
/// // Load here, after the watcher was made: a swap from now on is not missed.
/// # std::os::unix::fs::symlink("two", root.path().join("tmp"))?;
/// # std::fs::rename(root.path().join("tmp"), &link)?;
/// for change in &mut swaps {
///     println!("now {}", change.target.display());
///     // Load again.
///     # assert_eq!(change.target, std::path::Path::new("two"));
///     # break;
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Watcher {
    link: PathBuf,
    poll: Duration,
    seen: Option<Change>,
    events: Events,
}

impl Watcher {
    /// Watches a link (`ROOT/..data`, or one of another name) for changes from its present target. Neither the link nor
    /// its directory needs to exist yet.
    pub fn new(link: impl Into<PathBuf>, options: &Options) -> Self {
        let link = link.into();
        let mut events = Events::new(&link);
        events.renew();
        let seen = current_target(&link);
        Self { link, poll: options.poll.max(SHORTEST_POLL), seen, events }
    }

    /// Why inotify is not available, so that swaps are found by polling only; `None` if it is.
    pub fn limitation(&self) -> Option<&Limitation> {
        self.events.limitation.as_ref()
    }

    /// Waits for the next change, at most this long. `None`: there was none.
    pub fn wait(&mut self, at_most: Duration) -> Option<Change> {
        let until = clock::now().boottime.saturating_add(at_most);
        loop {
            if let Some(now) = current_target(&self.link)
                && self.seen.as_ref() != Some(&now)
            {
                self.seen = Some(now.clone());
                return Some(now);
            }
            let left = until.saturating_sub(clock::now().boottime);
            if left.is_zero() {
                return None;
            }
            self.events.wait(left.min(self.poll));
        }
    }

    /// Watches on a dedicated thread, for asynchronous code. The channel holds the newest change. The thread ends at
    /// the first poll after the receiver was dropped, or at a change before it.
    ///
    /// # Errors
    /// When no thread can be created.
    pub fn in_background(mut self) -> std::io::Result<tokio::sync::watch::Receiver<Option<Change>>> {
        let (sender, receiver) = tokio::sync::watch::channel(None);
        std::thread::Builder::new().name("watch".into()).spawn(move || {
            while !sender.is_closed() {
                if let Some(change) = self.wait(self.poll) {
                    sender.send_replace(Some(change));
                }
            }
        })?;
        Ok(receiver)
    }
}

impl Iterator for Watcher {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.wait(Duration::MAX) {
                return Some(change);
            }
        }
    }
}

/// Reads the link. `None` while it is absent or dangles.
fn current_target(link: &Path) -> Option<Change> {
    let target = fs_err::read_link(link).ok()?;
    // Stat the target that was read: the link itself may have another one by now.
    let identity = fsx::identity_at(&link.parent()?.join(&target)).ok()??;
    Some(Change { target, identity })
}

/// An inotify watch on the directory that holds the link, renewed as needed.
struct Events {
    dir: PathBuf,
    name: OsString,
    received: Receiver<()>,
    notify: SyncSender<()>,
    /// Made anew for another directory, so that the old one is not watched any more.
    watcher: Option<Watched>,
    limitation: Option<Limitation>,
    is_absent: bool,
}

/// A watcher, and the directory that it watches.
struct Watched {
    watcher: RecommendedWatcher,
    dir: Inode,
}

impl Events {
    fn new(link: &Path) -> Self {
        let dir = match link.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        let (notify, received) = sync_channel(1); // further events are merged into one that is not received yet
        let name = link.file_name().unwrap_or_default().to_owned();
        Self { dir, name, received, notify, watcher: None, limitation: None, is_absent: false }
    }

    /// Waits for an event, at most this long, and renews the watch if necessary. Without the directory it waits for a
    /// moment only, as the watch has to be there before its swaps.
    fn wait(&mut self, at_most: Duration) {
        let longest = if self.is_absent { LONGEST_ABSENT_POLL } else { Duration::MAX };
        let _ = self.received.recv_timeout(at_most.min(longest)); // an event may be that the directory was moved away
        self.renew();
    }

    /// Starts the watch, or starts it anew. The kernel ends a watch when its directory is removed or unmounted, and the
    /// next directory of that name may have the same device and inode number, so the watch is added again in any case.
    /// If it is still there, that has no effect.
    fn renew(&mut self) {
        let Ok(Some(dir)) = fsx::identity_at(&self.dir) else {
            self.watcher = None;
            self.is_absent = true;
            return;
        };
        self.is_absent = false;
        if let Some(watched) = &mut self.watcher
            && watched.dir == dir
            && watched.watcher.watch(&self.dir, RecursiveMode::NonRecursive).is_ok()
        {
            return;
        }
        self.watcher = None;
        match self.subscribe() {
            Ok(watcher) => {
                self.watcher = Some(Watched { watcher, dir });
                self.limitation = None;
                // A change before the watch began counts as an event. If the channel is full, one is pending already.
                let _ = self.notify.try_send(());
            }
            Err(error) => self.limitation = Some(Limitation::from_notify(&error)),
        }
    }

    fn subscribe(&self) -> notify::Result<RecommendedWatcher> {
        let name = self.name.clone();
        // As in the paths of events, which are absolute.
        let dir =
            std::env::current_dir().map_or_else(|_| self.dir.clone(), |current| current.join(&self.dir));
        let notify = self.notify.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let is_relevant = event.is_ok_and(|event| {
                let has_moved =
                    matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
                let is_own = |path: &PathBuf| has_moved && *path == dir;
                let of_link = |path: &PathBuf| path.file_name() == Some(&name);
                event.need_rescan() || event.paths.iter().any(|path| of_link(path) || is_own(path))
            });
            if is_relevant {
                let _ = notify.try_send(()); // if the channel is full, an event is pending already
            }
        })?;
        watcher.watch(&self.dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("dir", &self.dir).field("watched", &self.watcher.is_some()).finish()
    }
}

/// Why the directory cannot be watched with inotify.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Limitation {
    /// `EMFILE` from `inotify_init1`: the user's inotify instances are used up.
    #[error("this user has no inotify instance left")]
    Instances,
    /// The same error: the process's file descriptors are used up.
    #[error("this process has no file descriptor left (ulimit -n)")]
    Descriptors,
    /// `ENOSPC` from `inotify_add_watch`: the user's inotify watches are used up.
    #[error("this user has no inotify watch left")]
    Watches,
    /// Any other error.
    #[error("the directory cannot be watched: {0}")]
    Other(String),
}

impl Limitation {
    fn from_notify(error: &notify::Error) -> Self {
        let errno = match &error.kind {
            ErrorKind::Io(error) => Errno::from_io_error(error),
            ErrorKind::MaxFilesWatch => Some(Errno::NOSPC),
            _ => None,
        };
        match errno {
            Some(Errno::MFILE) if lacks_descriptors() => Self::Descriptors,
            Some(Errno::MFILE) => Self::Instances,
            Some(Errno::NOSPC) => Self::Watches,
            _ => Self::Other(error.to_string()),
        }
    }

    /// What an operator can do, one line each.
    pub fn hints(&self) -> Vec<String> {
        let raise = |key: &str, to: &str| {
            let now = fs_err::read_to_string(format!("/proc/sys/fs/inotify/{key}"));
            let now = now.map(|now| format!(" (now {})", now.trim())).unwrap_or_default();
            format!("raise fs.inotify.{key}{now} on the node, for example: sysctl -w fs.inotify.{key}={to}")
        };
        vec![match self {
            Self::Instances => raise("max_user_instances", "1024"),
            Self::Watches => raise("max_user_watches", "524288"),
            Self::Descriptors => "raise the limit of open files, as in: ulimit -n 1024".to_owned(),
            Self::Other(_) => {
                "does the directory exist, on a file system that has inotify? polling is used instead"
                    .to_owned()
            }
        }]
    }
}

/// Returns true if this process cannot open the descriptors that a watcher needs: one of inotify, two to wait for it.
fn lacks_descriptors() -> bool {
    let open = |_| rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let opened: Result<Vec<OwnedFd>, Errno> = (0..3).map(open).collect();
    opened.is_err_and(|errno| errno == Errno::MFILE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[cfg(feature = "program")] // where there are people to read it
    #[test]
    fn every_limitation_is_one_line_and_says_what_to_do() {
        let other = Limitation::Other("gone".into());
        for limitation in [Limitation::Instances, Limitation::Descriptors, Limitation::Watches, other] {
            match limitation {
                Limitation::Instances
                | Limitation::Descriptors
                | Limitation::Watches
                | Limitation::Other(_) => {}
            }
            crate::human::assert_message_style(&limitation, &limitation.hints());
        }
    }

    fn swap(root: &Path, to: &str) {
        let _ = std::fs::create_dir(root.join(to));
        symlink(to, root.join("..data_tmp")).unwrap();
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }

    fn never_polling(root: &Path) -> Watcher {
        Watcher::new(root.join("..data"), &Options { poll: LONG })
    }

    #[test]
    fn every_swap_is_noticed_by_its_event() {
        let root = tempfile::tempdir().unwrap();
        swap(root.path(), "g0");
        let mut watcher = never_polling(root.path());
        for n in 1..20 {
            swap(root.path(), &format!("g{n}"));
            assert_eq!(watcher.wait(LONG / 2).unwrap().target, Path::new(&format!("g{n}")));
        }
    }

    #[test]
    fn swaps_in_between_are_one_change() {
        let root = tempfile::tempdir().unwrap();
        swap(root.path(), "g0");
        let mut watcher = never_polling(root.path());
        (1..50).for_each(|n| swap(root.path(), &format!("g{n}")));
        assert_eq!(watcher.wait(LONG).unwrap().target, Path::new("g49"));
        assert_eq!(watcher.wait(Duration::from_millis(50)), None);
    }

    #[test]
    fn whatever_else_happens_in_the_root_is_no_change() {
        let root = tempfile::tempdir().unwrap();
        swap(root.path(), "g0");
        let mut watcher = never_polling(root.path());
        swap(root.path(), "g0");
        std::fs::write(root.path().join("file"), "").unwrap();
        std::fs::remove_file(root.path().join("..data")).unwrap();
        symlink("g0", root.path().join("..data")).unwrap();
        assert_eq!(watcher.wait(Duration::from_millis(50)), None);
    }

    #[test]
    fn the_first_generation_and_a_generation_replaced_under_its_name_are_changes() {
        let root = tempfile::tempdir().unwrap();
        let mut watcher = never_polling(root.path());
        swap(root.path(), "g0");
        assert!(watcher.wait(LONG / 2).is_some());
        std::fs::create_dir(root.path().join("other")).unwrap(); // before the removal, so that its inode is another
        std::fs::remove_dir(root.path().join("g0")).unwrap();
        std::fs::rename(root.path().join("other"), root.path().join("g0")).unwrap();
        swap(root.path(), "g0");
        assert!(watcher.wait(LONG / 2).is_some());
    }

    #[test]
    fn a_directory_that_comes_later_or_is_replaced_is_watched_again() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        let mut watcher = Watcher::new(root.join("..data"), &Options { poll: Duration::from_millis(20) });
        for round in 0..2 {
            std::fs::create_dir(&root).unwrap();
            swap(&root, "g0");
            watcher.wait(LONG).unwrap();
            watcher.wait(Duration::from_millis(100)); // a few polls
            assert!(watcher.events.watcher.is_some());
            std::fs::rename(&root, parent.path().join(format!("old-{round}"))).unwrap();
        }
    }

    #[test]
    fn a_directory_that_comes_later_or_is_moved_away_is_watched_long_before_the_next_poll() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        let mut watcher = never_polling(&root);
        for generation in ["g0", "g1"] {
            let began = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100)); // until it is waited for
                    let _ = std::fs::rename(&root, parent.path().join("old"));
                    std::fs::create_dir(&root).unwrap();
                    swap(&root, generation);
                });
                assert_eq!(watcher.wait(LONG / 2).unwrap().target, Path::new(generation));
            });
            assert!(began.elapsed() < LONG / 3, "{generation}: after {:?}", began.elapsed());
        }
    }

    #[test]
    fn a_directory_that_is_replaced_by_one_with_its_inode_number_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        swap(root.path(), "g0");
        let mut watcher = never_polling(root.path());
        watcher.events.received.recv().unwrap(); // sent when the watch began
        let ended = watcher.events.watcher.as_mut().unwrap();
        ended.watcher.unwatch(root.path()).unwrap(); // as the kernel does when the directory is removed
        watcher.events.renew();
        swap(root.path(), "g1");
        watcher.events.received.recv_timeout(LONG).unwrap();
    }

    #[tokio::test]
    async fn a_background_thread_hands_over_the_newest_change() {
        let root = tempfile::tempdir().unwrap();
        let watcher = Watcher::new(root.path().join("..data"), &Options { poll: Duration::from_millis(10) });
        let mut receiver = watcher.in_background().unwrap();
        swap(root.path(), "g0");
        receiver.changed().await.unwrap();
        assert_eq!(receiver.borrow_and_update().as_ref().unwrap().target, Path::new("g0"));
    }

    /// If target and identity came from two lookups of the link, a mixed pair would be seen within a few thousand
    /// reads.
    #[test]
    fn target_and_identity_are_of_one_generation() {
        let root = tempfile::tempdir().unwrap();
        ["g0", "g1"].iter().for_each(|to| swap(root.path(), to));
        let identity = |name: &str| fsx::identity_at(&root.path().join(name)).unwrap().unwrap();
        let known = [("g0", identity("g0")), ("g1", identity("g1"))];
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    ["g0", "g1"].iter().for_each(|to| swap(root.path(), to));
                }
            });
            let link = root.path().join("..data");
            let looks: Vec<Option<Change>> = (0..50_000).map(|_| current_target(&link)).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            for Change { target, identity } in looks.into_iter().flatten() {
                assert!(
                    known.contains(&(target.to_str().unwrap(), identity)),
                    "{target:?} {identity:?} {known:?}"
                );
            }
        });
    }

    #[test]
    fn there_is_a_pause_between_two_looks_whatever_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        let watcher = Watcher::new(root.path().join("..data"), &Options { poll: Duration::ZERO });
        assert_eq!(watcher.poll, SHORTEST_POLL);
    }

    #[test]
    fn an_exhausted_limit_is_reported_with_its_sysctl() {
        let io = |errno: Errno| notify::Error::io(errno.into());
        let limitation = |error| Limitation::from_notify(&error);
        assert_eq!(limitation(io(Errno::MFILE)), Limitation::Instances);
        assert_eq!(limitation(notify::Error::new(ErrorKind::MaxFilesWatch)), Limitation::Watches);
        assert!(Limitation::Instances.hints()[0].contains("sysctl -w fs.inotify.max_user_instances="));
        assert!(Limitation::Watches.hints()[0].contains("fs.inotify.max_user_watches"));
    }
}
