//! What stamps accept.

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

    fn stat(&self) -> Stat {
        fsx::stat(&self.top, c"a").unwrap().unwrap()
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
