//! What stamps accept, and for how long.

use super::*;

/// A directory with two names of one file, and the stamps of a tree that it is.
struct Scene {
    dir: tempfile::TempDir,
    top: OwnedFd,
    stamps: Stamps,
}

/// After the file system's clock has gone on.
fn later() {
    std::thread::sleep(Duration::from_millis(20));
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("tree")).unwrap();
        fs_err::write(dir.path().join("tree/a"), "x").unwrap();
        fs_err::hard_link(dir.path().join("tree/a"), dir.path().join("other")).unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        let top = fsx::open_dir(&place, "tree").unwrap();
        let journal = Arc::new(Journal::start().unwrap());
        let stamps = Stamps::of_new(&top, place.as_fd(), &journal).unwrap();
        Self { dir, top, stamps }
    }

    fn place(&self) -> OwnedFd {
        fsx::open_dir_at_path(self.dir.path()).unwrap()
    }

    fn stat(&self) -> Stat {
        fsx::stat(&self.top, c"a").unwrap().unwrap()
    }

    /// Scans the tree, which nobody changed.
    fn rescan(&mut self) {
        let (place, cancel) = (self.place(), CancellationToken::new());
        let found = self.stamps.rescan(&self.top, place.as_fd(), Paths::Keep, &cancel).unwrap();
        assert_eq!(found, None);
    }

    /// Changes the file ourselves.
    fn change(&self, act: impl FnOnce()) {
        later();
        let before = self.stat();
        act();
        self.stamps.journal.lock(before.st_ino).record_change(&before, &self.stat());
    }
}

#[test]
fn a_ctime_from_before_the_scan_that_appears_after_it_is_foreign() {
    let mut scene = Scene::new();
    std::thread::sleep(2 * LATE_MAX);
    let first = scene.stamps.since;
    let place = scene.place();
    let now = || file_system_time(place.as_fd()).unwrap();
    scene.rescan();
    let linked = scene.stamps.of_linked(now(), &scene.top, DirectoryList::default(), place.as_fd()).unwrap();
    let late = now().earlier_by(LATE_MAX / 2);
    let dir = fsx::stat(&place, c"tree").unwrap().unwrap();
    assert!(!scene.stamps.accepts(&late.as_ctime_in(scene.stat())), "of a file");
    assert!(!scene.stamps.accepts(&late.as_ctime_in(dir)), "of a directory");
    assert!(!linked.accepts(&late.as_ctime_in(scene.stat())), "of a link");
    for since in [scene.stamps.since, scene.stamps.unshared_since, linked.since] {
        assert!(since > first, "the journal grows without end");
    }
}

#[test]
fn what_is_known_to_be_ours_stays_known_after_a_scan() {
    let mut scene = Scene::new();
    let known = file_system_time(scene.place().as_fd()).unwrap();
    (scene.stamps.since, scene.stamps.unshared_since) = (known, known);
    scene.rescan();
    assert!(scene.stamps.since >= known && scene.stamps.unshared_since >= known);
}

#[test]
fn our_change_between_a_look_and_the_lock_stays_in_the_chain() {
    let scene = Scene::new();
    let path = |name: &str| scene.dir.path().join(name);
    scene.change(|| fs_err::hard_link(path("tree/a"), path("one")).unwrap());
    // A tree that was scanned since has the file as well, and it is about to be linked from there.
    let looked = scene.stat();
    let source = Stamps { since: Stamp::ctime_of(&looked), ..scene.stamps.clone() };
    scene.change(|| fs_err::remove_file(path("other")).unwrap()); // by the trash
    later();
    let (before, mut journal) = source.lock_found(scene.top.as_fd(), c"a", looked).unwrap().unwrap();
    fs_err::hard_link(path("tree/a"), path("two")).unwrap();
    journal.record_change(&before, &scene.stat());
    drop(journal);
    assert!(scene.stamps.accepts(&scene.stat()), "all changes were ours");
}

#[test]
fn a_tree_that_was_found_and_verified_is_linked_for_a_day_and_only_its_links_are_recycled() {
    let scene = Scene::new();
    let place = scene.place();
    let mut found = Stamps::of_found(&scene.top, place.as_fd(), &scene.stamps.journal).unwrap();
    let linked = |found: &Stamps| {
        found.of_linked(found.since, &scene.top, DirectoryList::default(), place.as_fd()).unwrap()
    };
    assert!(found.allow_linking() && !found.allow_recycling());
    assert!(linked(&found).allow_linking() && linked(&found).allow_recycling());
    found.made = Instant::now().checked_sub(AGE_MAX + Duration::from_secs(1));
    assert!(!found.allow_linking(), "a day after the comparison");
    assert!(
        !linked(&found).allow_linking() && !linked(&found).allow_recycling(),
        "nor do links start a new day"
    );
    // A copy waits for as long as there is no commit.
    found.suspend_age();
    assert!(found.allow_linking() && found.made.is_none());
    found.begin_age();
    assert!(found.made.is_some_and(|made| made.elapsed() < AGE_MAX));
}

/// A tree with enough directories to be checked, scanned and linked by several threads.
#[test]
fn a_foreign_write_in_any_of_many_directories_is_found() {
    const DIRS: u32 = 3000;
    let name = |number: u32| format!("{:08x}", number.wrapping_mul(0x9e37_79b9)); // most begin differently
    let cancel = CancellationToken::new();
    for number in [None, Some(0), Some(DIRS / 2), Some(DIRS - 1)] {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..DIRS {
            fs_err::create_dir_all(dir.path().join("tree").join(name(number))).unwrap();
        }
        fs_err::write(dir.path().join("tree").join(name(7)).join("file"), "x").unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        let top = fsx::open_dir(&place, "tree").unwrap();
        let journal = Arc::new(Journal::start().unwrap());
        let mut stamps = Stamps::of_new(&top, place.as_fd(), &journal).unwrap();
        assert_eq!(stamps.rescan(&top, place.as_fd(), Paths::Keep, &cancel).unwrap(), None);
        assert!(stamps.dirs.size() > 2 * CHECKED_ALONE);
        later();
        let changed = number.map(name);
        if let Some(changed) = &changed {
            fs_err::write(dir.path().join("tree").join(changed).join("__pycache__"), "").unwrap();
        }
        let changed = changed.map(PathBuf::from);
        assert_eq!(stamps.check_directories(&top, &cancel).unwrap(), changed);
        let source = crate::store::linkable::Linkable { top: top.as_fd(), stamps: &stamps };
        let modes = stage::Modes::of(&stage::WriteOptions { threads: 1, group_write: false });
        let linked = crate::store::link_tree::link_tree(place.as_fd(), "to", source, modes, &cancel).unwrap();
        assert_eq!(linked.map(|linked| linked.entries), changed.is_none().then_some(u64::from(DIRS) + 1));
        assert_eq!(stamps.rescan(&top, place.as_fd(), Paths::Keep, &cancel).unwrap(), changed);
    }
}

/// Returns true once a thread of this process has fallen asleep and does not wake up, as while it waits for a lock.
fn stays_asleep(thread: i32) -> bool {
    let stat = format!("/proc/self/task/{thread}/stat");
    let is_asleep = || {
        std::thread::sleep(Duration::from_millis(5));
        fs_err::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "))
    };
    (0..1000).any(|_| (0..5).all(|_| is_asleep()))
}

#[test]
fn a_scan_leaves_a_huge_directory_when_cancelled() {
    let mut scene = Scene::new();
    for number in 0..4 * stage::UNCHECKED_MAX {
        fsx::create_new(&scene.top, number.to_string(), 0o644).unwrap();
    }
    let (place, cancel) = (scene.place(), CancellationToken::new());
    let journal = Arc::clone(&scene.stamps.journal);
    scene.stamps = Stamps::of_new(&scene.top, place.as_fd(), &journal).unwrap();
    let first = fsx::list(&scene.top).unwrap().remove(0);
    let first = fsx::stat(&scene.top, first.os()).unwrap().unwrap();
    let locked = journal.lock(first.st_ino); // here it waits, after its look at the token
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let scanned = scope.spawn(|| {
            tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            let Scene { top, stamps, .. } = &mut scene;
            stamps.rescan(top, place.as_fd(), Paths::Forget, &cancel)
        });
        assert!(stays_asleep(told.recv().unwrap()), "the scan does not wait");
        cancel.cancel();
        drop(locked);
        assert!(matches!(scanned.join().unwrap(), Err(Error::Cancelled)));
    });
}
