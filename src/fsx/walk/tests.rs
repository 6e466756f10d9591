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

/// The size of a tree that would be removed alone.
fn measured(top: &OwnedFd, name: &str) -> Measured {
    measure(open_dir(top, name).unwrap(), &mut SeenLinks::default()).unwrap()
}

/// The inodes that a further hard link to a file takes.
fn inodes_of_link(top: &OwnedFd) -> u64 {
    u64::from(rustix::fs::fstatfs(top).unwrap().f_type == crate::fsx::TMPFS)
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
    // On tmpfs if there is one: a busy disk file system takes minutes to create this many.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let top = open_dir_at_path(dir.path()).unwrap();
    chain(&top, 20_000);
    let measured = measured(&top, "tree");
    assert_eq!((measured.entries, measured.bytes, measured.frees.1), (40_000, 0, 40_000));
    let removal = remove(&top, "tree", &mut on);
    assert!(removal.is_complete(), "{removal:?}");
    assert!(!dir.path().join("tree").exists());
}

#[test]
fn only_what_has_no_name_elsewhere_counts_as_room() {
    let (dir, top) = scratch();
    let tree = dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    fs_err::write(tree.join("shared"), [1; 9000]).unwrap();
    fs_err::hard_link(tree.join("shared"), dir.path().join("elsewhere")).unwrap();
    let shared = measured(&top, "tree");
    let of_link = inodes_of_link(&top);
    assert_eq!((shared.entries, shared.bytes, shared.frees), (1, 9000, (0, of_link)));
    fs_err::remove_file(dir.path().join("elsewhere")).unwrap();
    let alone = measured(&top, "tree");
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs_err::metadata(tree.join("shared")).unwrap());
    assert_eq!(alone.frees, (blocks * 512, 1));
    fs_err::hard_link(tree.join("shared"), tree.join("again")).unwrap();
    let (bytes, inodes) = alone.frees;
    assert_eq!(measured(&top, "tree").frees, (bytes, inodes + of_link), "both of its names are in the tree");
}

#[test]
fn on_tmpfs_each_name_of_a_file_takes_an_inode() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let top = open_dir_at_path(dir.path()).unwrap();
    if inodes_of_link(&top) == 0 {
        return;
    }
    let tree = make_dir(&top, "tree", 0o755).unwrap();
    create_new(&tree, "file", 0o644).unwrap();
    fs_err::hard_link(dir.path().join("tree/file"), dir.path().join("tree/again")).unwrap();
    assert_eq!(measured(&top, "tree").frees, (0, 2));
    fs_err::hard_link(dir.path().join("tree/file"), dir.path().join("elsewhere")).unwrap();
    assert_eq!(measured(&top, "tree").frees, (0, 2), "of the three that it takes");
}

#[test]
fn a_file_counts_as_room_in_the_last_of_the_trees_that_have_it() {
    let (dir, top) = scratch();
    for tree in ["one", "two", "three"] {
        fs_err::create_dir(dir.path().join(tree)).unwrap();
    }
    let file = dir.path().join("one/file");
    fs_err::write(&file, [1; 9000]).unwrap();
    fs_err::hard_link(&file, dir.path().join("three/file")).unwrap();
    let mut seen = SeenLinks::default();
    let mut inodes = |tree: &str| measure(open_dir(&top, tree).unwrap(), &mut seen).unwrap().frees.1;
    assert_eq!(["one", "two", "three"].map(&mut inodes), [inodes_of_link(&top), 0, 1]);
}

#[test]
fn links_are_removed_and_never_followed() {
    let (dir, top) = scratch();
    let tree = dir.path().join("tree");
    fs_err::create_dir_all(tree.join("a")).unwrap();
    symlink("../victim", tree.join("up")).unwrap();
    symlink(dir.path().join("victim"), tree.join("a/absolute")).unwrap();
    assert_eq!(measured(&top, "tree").entries, 3);
    assert!(remove(&top, "tree", &mut on).is_complete());
    symlink("victim", &tree).unwrap();
    assert!(remove(&top, "tree", &mut on).is_complete(), "the top itself may be a link, or a file");
    assert!(!tree.is_symlink());
    assert_victim_lives(dir.path());
}

/// Runs as an ordinary user, because modes do not restrict uid 0.
fn as_somebody(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let gid = rustix::fs::Gid::from_raw(65_534);
                let uid = rustix::fs::Uid::from_raw(65_534);
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
fn whatever_a_directory_and_the_one_in_it_deny_to_their_owner_they_are_removed() {
    let (dir, _) = scratch();
    set_mode(dir.path(), 0o777);
    as_somebody(|| {
        let top = open_dir_at_path(dir.path()).unwrap();
        let tree = dir.path().join("tree");
        for (outer, inner) in (0..8).flat_map(|outer| (0..8).map(move |inner| (outer << 6, inner << 6))) {
            fs_err::create_dir_all(tree.join("inner/empty")).unwrap();
            for name in ["file", "inner/file"] {
                fs_err::write(tree.join(name), "x").unwrap();
            }
            for (name, mode) in [("inner/empty", inner), ("inner", inner), (".", outer)] {
                set_mode(&tree.join(name), mode);
            }
            let removal = remove(&top, "tree", &mut on);
            assert!(removal.is_complete() && !tree.exists(), "{outer:03o}, {inner:03o}: {removal:?}");
        }
    });
}

#[test]
fn what_is_in_a_directory_that_may_not_be_searched_is_not_measured_and_the_rest_is() {
    let (dir, _) = scratch();
    set_mode(dir.path(), 0o777);
    as_somebody(|| {
        let tree = dir.path().join("tree");
        for name in ["closed/below", "open/below"] {
            fs_err::create_dir_all(tree.join(name)).unwrap();
            fs_err::write(tree.join(name).join("file"), [1; 9000]).unwrap();
        }
        set_mode(&tree.join("closed"), 0o600);
        let top = open_dir_at_path(dir.path()).unwrap();
        let found = measured(&top, "tree");
        assert_eq!((found.entries, found.bytes), (4, 9000));
        assert!(remove(&top, "tree", &mut on).is_complete());
    });
}

#[test]
fn the_mode_of_a_directory_that_stays_is_not_changed() {
    let (dir, _) = scratch();
    set_mode(dir.path(), 0o777);
    as_somebody(|| {
        let kept = dir.path().join("kept");
        fs_err::create_dir_all(kept.join("below")).unwrap();
        fs_err::write(kept.join("file"), "x").unwrap();
        set_mode(&kept, 0o555);
        let top = open_dir_at_path(&kept).unwrap();
        assert_eq!(unlink(top.as_fd(), c"file"), Err(Errno::ACCESS));
        for name in ["file", "below"] {
            assert!(remove(&top, name, &mut on).failed.is_some(), "{name}");
        }
        let mode = fs_err::metadata(&kept).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o555);
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
fn a_directory_that_may_be_read_but_not_searched_does_not_end_the_walk() {
    if !rustix::process::geteuid().is_root() {
        return; // it takes another user's directory
    }
    let (dir, top) = scratch();
    let tree = dir.path().join("tree");
    set_mode(dir.path(), 0o777);
    for number in 0..9 {
        let at = tree.join(number.to_string());
        fs_err::create_dir_all(&at).unwrap();
        fs_err::write(at.join("file"), "x").unwrap();
        set_mode(&at, 0o777);
    }
    set_mode(&tree, 0o777);
    fs_err::create_dir(tree.join("4/theirs")).unwrap();
    set_mode(&tree.join("4/theirs"), 0o744);
    as_somebody(|| {
        let (path, error) = remove(&top, "tree", &mut on).failed.unwrap();
        assert_eq!(path.to_str(), Some("tree/4/theirs"));
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    });
    let left: Vec<_> = fs_err::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["4"]);
    assert!(!tree.join("4/file").exists());
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
    let mut count = 0;
    let tree = dir.path().join("tree");
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
    assert!(removal.stopped && dir.path().join("tree").exists(), "{removal:?}");
    assert!(remove(&top, "tree", &mut on).is_complete());
    assert!(!dir.path().join("tree").exists());
}

/// One file at the top and one in each directory, or nothing but directories.
#[test]
fn a_removal_stops_whatever_the_shape_of_the_tree() {
    for has_files in [true, false] {
        let (dir, top) = scratch();
        let tree = dir.path().join("tree");
        for number in 0..200 {
            let below = tree.join(number.to_string());
            fs_err::create_dir_all(&below).unwrap();
            if has_files {
                fs_err::write(below.join("file"), "").unwrap();
                fs_err::write(tree.join("file"), "").unwrap();
            }
        }
        let mut times = 0;
        let removal = remove(&top, "tree", &mut || {
            times += 1;
            if times > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(removal.stopped && tree.exists(), "with files: {has_files}: {removal:?}");
    }
}

#[test]
fn a_name_that_is_gone_already_is_as_good_as_removed() {
    let (_dir, top) = scratch();
    assert!(remove(&top, "absent", &mut on).is_complete());
    assert!(remove(&top, "nul\0", &mut on).failed.is_some());
}
