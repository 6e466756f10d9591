//! The mirror as git-sync's `ROOT/.git`, and generations as its linked worktrees: the real git works in all of them.
#![allow(missing_docs)]

mod adopt;
#[path = "../common/mod.rs"]
mod common;
mod depth;
mod garbage;
mod modules;
mod work;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::tree::Node;
use common::{Files, Ran, World, run};
use treeswap::mirror::{Depth, Gc, Mirror, Objects, Options, Selection, wire};
use treeswap::payload::Symlinks;
use treeswap::revision::Revision;

/// A root in git-sync's layout, published by hand: what the store does, without its care.
struct Bench {
    world: World,
    options: Options,
}

impl Bench {
    fn new() -> Self {
        let world = World::new();
        std::fs::create_dir_all(world.root.join(".worktrees")).unwrap();
        let remote = wire::Options::new(world.remote.path.to_str().unwrap());
        let mut options = Options::new(world.root.join(".git"), "main".parse().unwrap(), remote);
        options.worktrees = true;
        options.gc = Gc::Always;
        options.indexer = env!("CARGO_BIN_EXE_treeswap").into();
        Self { world, options }
    }

    fn open(&self) -> Mirror {
        Mirror::open(self.options.clone()).unwrap()
    }

    fn git_dir(&self) -> &Path {
        &self.options.dir
    }

    /// Where a revision's tree is, or would be.
    fn place(&self, revision: Revision) -> PathBuf {
        self.world.root.join(".worktrees").join(revision.to_string())
    }

    /// Writes a revision's tree, makes it a worktree, and puts it in its place.
    fn publish(&self, objects: &Objects, revision: Revision, sparse: Option<&str>) -> PathBuf {
        let staged = self.world.dir().join(format!("staged-{revision}"));
        let selection = selection(sparse);
        let payload = objects.payload(revision, &selection).unwrap();
        let wanted: Vec<_> = payload.entries.iter().map(|entry| payload.path_of(entry)).collect();
        std::fs::create_dir(&staged).unwrap();
        for (path, node) in self.world.remote.snapshot(&revision.to_string()).0 {
            if wanted.contains(&path) {
                write(&staged.join(std::str::from_utf8(&path).unwrap()), &node);
            }
        }
        let link = format!("gitdir: ../../.git/worktrees/{revision}\n");
        std::fs::write(staged.join(".git"), link).unwrap();
        let place = self.place(revision);
        objects.add_worktree(revision, &selection, &staged, &place).unwrap();
        let old = self.world.dir().join("old");
        if place.exists() {
            std::fs::rename(&place, &old).unwrap();
            std::fs::remove_dir_all(&old).unwrap();
        }
        std::fs::rename(&staged, &place).unwrap();
        place
    }

    /// One update as a driver does it: fetch, publish, keep house.
    fn update(&self, mirror: &mut Mirror, held: &[Revision]) -> Revision {
        let at = fetch(mirror, held);
        self.publish(&mirror.objects(), at, None);
        let held: Vec<_> = std::iter::once(at).chain(held.iter().copied().filter(|id| *id != at)).collect();
        mirror.housekeep(&held).unwrap();
        at
    }

    /// A generation and its worktree are gone, as after its grace period.
    fn reap(&self, mirror: &mut Mirror, gone: Revision, held: &[Revision]) {
        std::fs::remove_dir_all(self.place(gone)).unwrap();
        mirror.housekeep(held).unwrap();
    }

    fn try_git(&self, at: &Path, args: &[&str]) -> Ran {
        run::to_end(run::clean("git", self.world.dir()).current_dir(at).args(args))
    }

    #[track_caller]
    fn git(&self, at: &Path, args: &[&str]) -> String {
        self.try_git(at, args).expect_ok(&format!("git {args:?}")).stdout
    }

    /// Fails unless git finds nothing wrong with the repository, as git-sync asks before it takes a root.
    #[track_caller]
    fn assert_sane(&self) {
        let root = &self.world.root;
        let top = self.git(root, &["rev-parse", "--show-toplevel"]);
        assert_eq!(Path::new(top.trim()), root.canonicalize().unwrap());
        self.git(root, &["fsck", "--no-progress", "--connectivity-only"]);
        self.git(root, &["fsck", "--no-progress", "--full", "--strict"]);
        assert!(!self.git_dir().join("shallow.lock").exists());
    }

    /// Fails unless git takes the tree for an unchanged checkout of the revision.
    #[track_caller]
    fn assert_clean(&self, revision: Revision) {
        let place = self.place(revision);
        assert_eq!(self.git(&place, &["rev-parse", "HEAD"]).trim(), revision.to_string());
        assert_eq!(self.git(&place, &["status", "--porcelain"]), "");
        assert_eq!(self.git(&place, &["diff", "HEAD", "--stat"]), "");
    }

    /// Makes every loose object old.
    fn age(&self) {
        let long_ago = SystemTime::now() - Duration::from_secs(7_200);
        for front in std::fs::read_dir(self.git_dir().join("objects")).unwrap() {
            let front = front.unwrap().path();
            if front.file_name().unwrap().len() == 2 || front.ends_with("pack") {
                for object in std::fs::read_dir(front).unwrap() {
                    std::fs::File::open(object.unwrap().path()).unwrap().set_modified(long_ago).unwrap();
                }
            }
        }
    }

    fn depth_of(&self, revision: Revision) -> usize {
        self.git(&self.place(revision), &["rev-list", "HEAD"]).lines().count()
    }
}

fn selection(sparse: Option<&str>) -> Selection {
    let mut selection = Selection { sparse: sparse.map(ToOwned::to_owned), ..Selection::default() };
    selection.rules.symlinks = Symlinks::Keep;
    selection
}

fn write(path: &Path, node: &Node) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    match node {
        Node::Directory => std::fs::create_dir_all(path).unwrap(),
        Node::Link(target) => {
            std::os::unix::fs::symlink(std::str::from_utf8(target).unwrap(), path).unwrap();
        }
        Node::File { executable, content } => {
            std::fs::write(path, content).unwrap();
            let mode = if *executable { 0o755 } else { 0o644 };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        Node::Odd(why) => panic!("{}: {why}", path.display()),
    }
}

fn fetch(mirror: &mut Mirror, held: &[Revision]) -> Revision {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let tip = mirror.resolve().await.unwrap();
        mirror.fetch(&tip, held).await.unwrap()
    })
}

fn revision(id: &str) -> Revision {
    Revision(id.parse().unwrap())
}

/// A tree with everything that an index has to tell apart: depth, order, modes, names that sort around `/`.
fn varied() -> Files {
    (0..60)
        .fold(Files::new(), |files, n| {
            files.file(format!("dir{}/sub/file{n}", n % 7), format!("content {n}\n"))
        })
        .file("a", "file a\n")
        .file("a.b", "sorts before the directory a-\n")
        .file("a-dir/x", "x\n")
        .file("a0", "sorts after a/\n")
        .file("empty", "")
        .script("bin/run", "#!/bin/sh\nexit 0\n")
        .link("bin/link", "run")
        .link("dangling", "nowhere/at/all")
        .file(format!("deep/{}/end", "long-name-".repeat(20)), "a long path\n")
}

/// The depth is the flag's.
fn at_depth(depth: Depth) -> Bench {
    let mut bench = Bench::new();
    bench.options.depth = depth;
    bench
}
