//! Tests of the store with real directories: what readers see, what is left behind, what a restart finds.

mod git_sync;
mod model;
mod old_readers;
mod planted;
mod publish;
mod reap;
mod recover;
mod recycle;
mod refuse;
mod scrub;
mod share;
mod spare_slot;
mod status;
mod verify;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{Durability, Layout, Options, Published, Recovered, Spare, Store};
use crate::clock;
use crate::fsx;
use crate::generation::Name;
use crate::payload::testing::{Blobs, Tree, expected, payload, read_back, tree};
use crate::payload::{Kind, Payload, Rules, Symlinks};
use crate::retention;

/// A reader's pin on the generation that the link names.
struct Consumer(OwnedFd);

impl Consumer {
    fn of(world: &World) -> Self {
        let dir = fsx::open_dir_at_path(&world.at("..data")).unwrap();
        assert_eq!(fsx::try_lock_shared(&dir).unwrap(), fsx::Lock::Taken);
        Self(dir)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Closing is not enough: a child that another test forked has a duplicate of the descriptor until its exec.
        fsx::unlock(&self.0).unwrap();
    }
}

/// A root in a temporary directory.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn options(&self) -> Options {
        Options {
            root: self.root(),
            layout: Layout::Kubelet,
            operator_names: std::collections::BTreeSet::new(),
            durability: Durability::None, // hundreds of tests' syncs would wait for each other
            spare: Spare::Off,
            group_write: false,
            writers: 2,
            retention: retention::Options {
                grace: Duration::from_secs(30),
                max_pin: Duration::from_secs(600),
                max_generations: 5,
                max_bytes: None,
            },
        }
    }

    fn open(&self) -> Store {
        self.recover().0
    }

    fn recover(&self) -> (Store, Recovered) {
        Store::open(self.options()).unwrap()
    }

    /// A store that has published a tree.
    fn with(&self, first: &Tree) -> Store {
        let mut store = self.open();
        publish(&mut store, first);
        store
    }

    /// All names in the root, sorted, with generations shown as `..G`.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs_err::read_dir(self.root())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| if Name::parse(&name).is_some() { "..G".to_owned() } else { name })
            .collect();
        names.sort();
        names
    }

    /// Asserts what readers see: root links with their targets, and the content behind them.
    fn assert_serves(&self, tree: &Tree) {
        let link = fs_err::read_link(self.at("..data")).unwrap();
        assert!(Name::parse(link.to_str().unwrap()).is_some(), "{link:?}");
        assert_eq!(read_back(&self.at("..data").canonicalize().unwrap()), expected(tree));
        let top: Vec<String> = expected(tree)
            .keys()
            .filter(|path| !path.contains(&b'/'))
            .map(|path| String::from_utf8(path.clone()).unwrap())
            .collect();
        let links: Vec<String> = self.names().into_iter().filter(|name| !name.starts_with("..")).collect();
        assert_eq!(links, top, "root links");
        for name in top {
            assert_eq!(fs_err::read_link(self.at(&name)).unwrap(), Path::new("..data").join(&name));
        }
    }

    /// Asserts that our private directory has no left-overs.
    fn assert_tidy(&self) {
        let mut left: Vec<String> = fs_err::read_dir(self.at("..treeswap"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !["lock", "state", "staging", "spare", "trash", "status.json"].contains(&&**name))
            .collect();
        for dir in ["staging", "trash"] {
            let inside = fs_err::read_dir(self.at("..treeswap").join(dir)).unwrap();
            left.extend(inside.map(|entry| format!("{dir}/{}", entry.unwrap().file_name().display())));
        }
        assert_eq!(left, [""; 0]);
    }
}

/// Runs the body, and the threads that it starts, as a user whom modes stop, in a world that belongs to that user.
fn unprivileged(world: &World, body: impl FnOnce() + Send) {
    use rustix::fs::{Gid, Uid};
    if !rustix::process::geteuid().is_root() {
        return body();
    }
    let (uid, gid) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
    rustix::fs::chown(world.dir.path(), Some(uid), Some(gid)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            body();
        });
    });
}

fn set_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs_err::set_permissions(path, mode).unwrap();
}

fn rules() -> Rules {
    Rules { symlinks: Symlinks::Keep, ..Rules::default() }
}

fn of(tree: &Tree) -> Payload {
    payload(tree, rules()).unwrap()
}

fn go() -> CancellationToken {
    CancellationToken::new()
}

fn publish(store: &mut Store, tree: &Tree) -> Published {
    let staged = store.stage(&of(tree), "all", &Blobs::of(&[tree]), &go()).unwrap();
    let published = store.publish(staged, &clock::now()).unwrap();
    assert_eq!(published.warnings, [""; 0]);
    published
}

/// A tree of files named by single letters, all with the same content.
fn files(names: &str, content: &str) -> Tree {
    let names: Vec<String> = names.chars().map(String::from).collect();
    tree(&names.iter().map(|name| (&**name, Kind::File, content)).collect::<Vec<_>>())
}

/// A tree with every kind of entry, in directories.
fn varied(content: &str) -> Tree {
    tree(&[
        ("app/config.yaml", Kind::File, content),
        ("app/deep/er/x", Kind::File, "x"),
        ("bin/run", Kind::Executable, "#!/bin/sh\n"),
        ("latest", Kind::Symlink, "app/config.yaml"),
        ("vendored", Kind::Submodule, ""),
    ])
}

/// An inotify watch on a directory, as readers use it.
struct Watch(OwnedFd);

impl Watch {
    fn on(dir: &Path) -> Self {
        let fd = rustix::fs::inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let quiet = WatchFlags::ACCESS | WatchFlags::OPEN | WatchFlags::CLOSE_NOWRITE;
        rustix::fs::inotify::add_watch(&fd, dir, WatchFlags::ALL_EVENTS.difference(quiet)).unwrap();
        Self(fd)
    }

    /// The events since the last call, generations shown as `..G`.
    fn events(&self) -> Vec<String> {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map_or(".", |name| name.to_str().unwrap());
            let name = if Name::parse(name).is_some() { "..G" } else { name };
            let mut what: Vec<&str> =
                (event.events() - ReadFlags::ISDIR).iter_names().map(|(n, _)| n).collect();
            what.extend(event.events().contains(ReadFlags::ISDIR).then_some("ISDIR"));
            events.push(format!("{} {name}", what.join("|")));
        }
        events
    }
}
