//! The operator's files, and every way in which a commit or another user could redirect them.

use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

struct World {
    dir: tempfile::TempDir,
}

impl World {
    /// A root of our own layout whose published generation has `link -> sub/new` and a directory `sub`.
    fn new() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        let generation = world.root().join("..2026_11_20_15_04_05.1");
        fs_err::create_dir_all(generation.join("sub")).unwrap();
        fs_err::write(generation.join("sub/err.json"), "the repository's").unwrap();
        symlink("sub/new", generation.join("link")).unwrap();
        symlink("..2026_11_20_15_04_05.1", world.root().join("..data")).unwrap();
        for name in ["sub", "link"] {
            symlink(Path::new("..data").join(name), world.root().join(name)).unwrap();
        }
        world
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn own(&self, path: impl AsRef<Path>) -> OperatorFile {
        OperatorFile::new(&self.root(), &Layout::Kubelet, path.as_ref()).unwrap()
    }

    /// All names in the generation.
    fn published(&self) -> Vec<String> {
        let top = self.root().join("..data");
        let below = |dir: &Path| {
            let names = fs_err::read_dir(dir).unwrap();
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut all = [below(&top), below(&top.join("sub"))].concat();
        all.sort();
        all
    }

    fn assert_untouched(&self) {
        assert_eq!(self.published(), ["err.json", "link", "sub"]);
        let text = fs_err::read_to_string(self.root().join("sub/err.json")).unwrap();
        assert_eq!(text, "the repository's");
    }
}

#[test]
fn names_that_a_commit_can_have_and_names_of_ours_are_refused_by_their_text() {
    let root = Path::new("/r");
    let refused = |layout: &Layout, path: &str| OperatorFile::new(root, layout, Path::new(path)).err();
    let kubelet = |path| refused(&Layout::Kubelet, path);
    for path in ["touched", "sub/ready", "/r/touched", "..own/../touched", "../r/x", ".", "", "/"] {
        assert!(kubelet(path).is_some(), "{path}");
    }
    for path in ["..data", "..data/x", "..data_tmp", "..treeswap/x", "..2026_11_20_15_04_05.1/x"] {
        assert!(kubelet(path).unwrap().contains("own"), "{path}");
    }
    for path in ["..touched", "..own/touched", "/elsewhere/touched", "../touched", "/rr"] {
        assert_eq!(kubelet(path), None, "{path}");
    }
    assert!(kubelet("sub/ready").unwrap().contains("\"sub\""));
    for link in ["/r/link", "/r/a/link", "/elsewhere/link"] {
        let layout = Layout::GitSync { link: link.into() };
        let git_sync = |path| refused(&layout, path);
        let through = [link.to_owned(), format!("{link}/x"), link.replace("link", "..link_tmp")];
        for path in through.iter().map(|path| &**path).chain([".git/x", ".worktrees/x", "..treeswap/x", "."])
        {
            assert!(git_sync(path).is_some(), "{link}: {path}");
        }
        for path in ["touched", "sub/ready", "linked", "/elsewhere/touched"] {
            assert_eq!(git_sync(path), None, "{link}: {path}");
        }
    }
}

#[test]
fn a_way_round_into_what_a_commit_shapes_is_refused_when_it_is_used() {
    let world = World::new();
    let to = |name: &str, target: PathBuf| {
        let link = world.dir.path().join(name);
        symlink(target, &link).unwrap();
        link
    };
    let again = to("again", world.root());
    let inside = to("inside", world.root().join("sub"));
    let data = to("data", world.root().join("..data"));
    for path in [
        again.join("sub/err.json"),
        again.join("new/err.json"),
        inside.join("err.json"),
        data.join("x/err.json"),
    ] {
        let own = world.own(&path);
        let why = own.check_now().unwrap_err();
        assert!(why.starts_with("by what it resolves to, ") && !why.contains('\n'), "{why}");
        for done in [own.touch(), own.write(b"ours"), own.remove()] {
            done.expect_err(path.to_str().unwrap());
        }
        world.assert_untouched();
        assert!(!world.root().join("new").exists());
    }
    for allowed in
        [again.join("..own/file"), world.dir.path().join("none/yet/file"), data.with_file_name("file")]
    {
        assert_eq!(world.own(allowed).check_now(), Ok(()));
    }
    world.own(again.join("..own/file")).touch().unwrap();
    assert!(world.root().join("..own/file").is_file());
}

#[test]
fn what_the_writer_of_another_root_keeps_is_not_changed() {
    let (world, other) = (World::new(), World::new());
    fs_err::create_dir(other.root().join(PRIVATE)).unwrap();
    for place in ["..data/new", "sub/err.json", "..treeswap/state"] {
        let own = world.own(other.root().join(place));
        assert!(own.check_now().unwrap_err().contains("only that root's writer may change"), "{place}");
        for done in [own.touch(), own.write(b"ours"), own.remove()] {
            done.expect_err(place);
        }
    }
    other.assert_untouched();
    assert_eq!(fs_err::read_dir(other.root().join(PRIVATE)).unwrap().count(), 0);
    world.own(other.root().join("..ready")).touch().unwrap();
}

#[test]
fn the_link_of_git_syncs_layout_is_not_replaced_by_another_way_to_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs_err::create_dir_all(root.join(".worktrees/abc")).unwrap();
    symlink(&root, dir.path().join("again")).unwrap();
    for (link, file) in [("root/link", "again/link"), ("again/link", "root/link")] {
        let layout = Layout::GitSync { link: dir.path().join(link) };
        for there in [false, true] {
            for path in [dir.path().join(file), dir.path().join(file).join("x/err.json")] {
                let own = OperatorFile::new(&root, &layout, &path).unwrap();
                own.touch().expect_err(file);
                own.write(b"text").expect_err(file);
            }
            let kept = fs_err::read_link(root.join("link")).ok();
            assert_eq!(kept, there.then(|| ".worktrees/abc".into()), "{link}, {file}");
            if !there {
                symlink(".worktrees/abc", root.join("link")).unwrap();
            }
        }
        fs_err::remove_file(root.join("link")).unwrap();
        let beside = dir.path().join(file).with_file_name("linked");
        OperatorFile::new(&root, &layout, &beside).unwrap().write(b"text").unwrap();
    }
}

#[test]
fn a_file_is_touched_written_and_removed_with_its_directories_made() {
    let world = World::new();
    for path in [Path::new("..own/deep/file"), Path::new("..file"), &world.dir.path().join("else/where/file")]
    {
        let own = world.own(path);
        let at = clean(&world.root().join(path));
        own.remove().unwrap();
        assert!(path == Path::new("..file") || !at.parent().unwrap().exists(), "made to remove something");
        own.touch().unwrap();
        let inode = fs_err::metadata(&at).unwrap().ino();
        filetime(&at);
        own.touch().unwrap();
        let touched = fs_err::metadata(&at).unwrap();
        assert!(touched.ino() == inode && touched.mtime() > 1, "the same file, at another time");
        for text in ["one", "two"] {
            own.write(text.as_bytes()).unwrap();
            assert_eq!(fs_err::read_to_string(&at).unwrap(), text);
        }
        own.remove().unwrap();
        assert_eq!(
            fs_err::read_dir(at.parent().unwrap())
                .unwrap()
                .filter(|e| { e.as_ref().unwrap().file_name().to_string_lossy().contains("file") })
                .count(),
            0,
            "something was left"
        );
    }
    world.assert_untouched();
}

/// Sets the file's times to the epoch.
fn filetime(at: &Path) {
    let then = Timespec { tv_sec: 1, tv_nsec: 0 };
    let then = Timestamps { last_access: then, last_modification: then };
    rustix::fs::utimensat(rustix::fs::CWD, at, &then, AtFlags::empty()).unwrap();
}

#[test]
fn nothing_else_that_stands_there_is_followed_waited_for_or_destroyed() {
    let world = World::new();
    let own = world.own("..file");
    let at = world.root().join("..file");
    let victim = world.dir.path().join("victim");
    fs_err::write(&victim, "precious").unwrap();
    symlink(&victim, &at).unwrap();
    assert!(own.touch().unwrap_err().to_string().contains("symbolic link"));
    assert!(own.remove().is_err());
    own.write(b"text").unwrap();
    assert!(!at.is_symlink() && fs_err::read_to_string(&victim).unwrap() == "precious");
    own.remove().unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(own.touch().is_err() && own.remove().is_err());
    fs_err::remove_file(&at).unwrap();
    fs_err::create_dir(&at).unwrap();
    fs_err::write(at.join("inside"), "theirs").unwrap();
    for done in [own.touch(), own.write(b"text"), own.remove()] {
        assert!(done.is_err());
    }
    assert_eq!(fs_err::read_to_string(at.join("inside")).unwrap(), "theirs");
}

/// To a process of root, `/dev/stdout` would be lost otherwise.
#[test]
fn a_link_to_something_else_than_a_file_is_not_replaced() {
    let world = World::new();
    let own = world.own("..file");
    let at = world.root().join("..file");
    let pipe = world.dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for target in [pipe.as_path(), world.dir.path(), Path::new("/dev/null"), Path::new("/proc/self/fd/1")] {
        symlink(target, &at).unwrap();
        assert!(own.write(b"text").is_err() && own.touch().is_err() && own.remove().is_err(), "{target:?}");
        assert_eq!(fs_err::read_link(&at).unwrap(), target);
        fs_err::remove_file(&at).unwrap();
    }
    symlink("nowhere", &at).unwrap();
    own.write(b"text").unwrap();
    own.remove().unwrap();
}

/// The path may be one that the configuration was refused for.
#[test]
fn a_termination_log_in_what_a_writer_keeps_is_not_written() {
    let (world, other) = (World::new(), World::new());
    fs_err::create_dir(other.root().join(PRIVATE)).unwrap();
    let state = other.root().join(PRIVATE).join("state");
    fs_err::write(&state, "its state").unwrap();
    let published = other.root().join("..data/sub/err.json");
    for path in [&state, &published, &other.root().join("sub/err.json")] {
        for root in [world.root(), other.root(), PathBuf::new(), PathBuf::from("/nowhere")] {
            open_outside(&root, path).expect_err(path.to_str().unwrap());
        }
    }
    other.assert_untouched();
    assert_eq!(fs_err::read_to_string(&state).unwrap(), "its state");
    let beside = other.root().join("..log");
    fs_err::write(&beside, "old").unwrap();
    open_outside(&world.root(), &beside).unwrap();
    assert_eq!(fs_err::read_to_string(&beside).unwrap(), "");
}

#[test]
fn what_a_kill_left_goes_and_nothing_else() {
    let world = World::new();
    let own = world.own("..own/file");
    own.write(b"text").unwrap();
    let dir = world.root().join("..own");
    let left = own.temporary();
    fs_err::write(dir.join(&left), "half").unwrap();
    for other in ["..file.notes", "..other.0123456789abcdef", "..file.0123456789abcdeg"] {
        fs_err::write(dir.join(other), "theirs").unwrap();
    }
    own.sweep().unwrap();
    assert!(!dir.join(left).exists());
    assert_eq!(fs_err::read_dir(&dir).unwrap().count(), 4);
}

#[test]
fn a_socket_a_pipe_a_directory_or_a_device_is_no_file_to_replace() {
    let world = World::new();
    world.own("/dev/null").touch().unwrap_err(); // its times are all that this could change
    let place = world.dir.path().join("outside");
    fs_err::create_dir(&place).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.join("socket")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, place.join("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
        .unwrap();
    fs_err::create_dir(place.join("directory")).unwrap();
    for name in ["socket", "pipe", "directory"] {
        let before = fs_err::symlink_metadata(place.join(name)).unwrap();
        let own = world.own(place.join(name));
        for done in [own.write(b"text"), own.touch(), own.remove()] {
            done.expect_err(name);
        }
        let after = fs_err::symlink_metadata(place.join(name)).unwrap();
        assert_eq!((before.ino(), before.file_type()), (after.ino(), after.file_type()), "{name}");
        assert_eq!(fs_err::read_dir(&place).unwrap().count(), 3, "a temporary file is left");
    }
}
