//! A root changes hands: git-sync, treeswap, git-sync again, while somebody looks at the link all the time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::common::{World, eventually, git_sync, root, run};
use super::{files, target};

/// Looks that every handover must stand.
const LOOKS: u64 = 10_000;

/// Looks at the link, and through it, until told to end.
struct Looker {
    looks: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Vec<String>>>,
}

impl Looker {
    fn start(link: PathBuf) -> Self {
        let (looks, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, told) = (Arc::clone(&looks), Arc::clone(&end));
        let look = move || {
            let mut wrong = Vec::new();
            while !told.load(Ordering::Relaxed) && wrong.len() < 10 {
                let look = counted.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = std::fs::read_link(&link) {
                    wrong.push(format!("look {look}: no link: {error}"));
                } else if let Err(error) = std::fs::metadata(link.join("README")) {
                    wrong.push(format!("look {look}: nothing behind the link: {error}"));
                }
            }
            wrong
        };
        Self { looks, end, thread: Some(std::thread::spawn(look)) }
    }

    /// So many looks more.
    fn look(&self, looks: u64) {
        let until = self.looks.load(Ordering::Relaxed) + looks;
        eventually(60, "enough looks", || (self.looks.load(Ordering::Relaxed) >= until).then_some(()));
    }

    fn ends(mut self) -> Vec<String> {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// git-sync itself, once.
fn git_sync(world: &World, program: &Path) {
    let mut command = git_sync::command(world, program);
    command.arg("--repo").arg(&world.remote.path).arg("--root").arg(&world.root);
    command.args(["--ref=main", "--link=live", "--one-time", "--stale-worktree-timeout=1h"]);
    run::to_end(&mut command).expect_ok("git-sync");
}

fn treeswap(world: &World) {
    let mut command = world.sync(&["--one-time", "--grace=1h"]);
    run::to_end(command.args(root::GIT_SYNC)).expect_ok("treeswap");
}

fn assert_names(world: &World, commit: &str) {
    assert_eq!(target(world), Path::new(".worktrees").join(commit));
    let actual = super::common::Snapshot::read(&world.root.join("live")).unwrap();
    let mut expected = world.remote.snapshot(commit);
    expected.0.insert(b".git".to_vec(), actual.0[&b".git"[..]].clone());
    assert_eq!(expected.differences(&actual), [""; 0]);
}

#[test]
#[ignore = "needs git-sync itself: TREESWAP_TEST_GIT_SYNC names the program"]
fn git_sync_4_to_treeswap_and_back_without_a_moment_without_a_tree() {
    let program = git_sync::program().expect("TREESWAP_TEST_GIT_SYNC");
    let world = World::new();
    world.remote.commit(&files("0"));
    git_sync(&world, &program);
    let looker = Looker::start(world.root.join("live"));
    for round in 0..3 {
        treeswap(&world); // nothing new: the tree is taken over as it is
        looker.look(LOOKS / 10);
        let commit = world.remote.commit(&files(&format!("treeswap {round}")));
        treeswap(&world);
        assert_names(&world, &commit);
        looker.look(LOOKS / 10);
        git_sync(&world, &program); // nothing new
        assert!(world.root.join("..treeswap/lock").exists(), "the root was wiped");
        let commit = world.remote.commit(&files(&format!("git-sync {round}")));
        git_sync(&world, &program);
        assert_names(&world, &commit);
        assert!(world.root.join("..treeswap/lock").exists(), "the root was wiped");
        looker.look(LOOKS / 10);
    }
    looker.look(LOOKS);
    assert_eq!(looker.ends(), [""; 0]);
}

#[test]
#[ignore = "needs git-sync itself: TREESWAP_TEST_GIT_SYNC names the program"]
fn git_sync_3_to_treeswap_without_a_moment_without_a_tree() {
    let program = git_sync::program().expect("TREESWAP_TEST_GIT_SYNC");
    let world = World::new();
    let commit = world.remote.commit(&files("0"));
    git_sync(&world, &program);
    // Its trees were in the root itself.
    std::fs::rename(world.root.join(".worktrees").join(&commit), world.root.join(&commit)).unwrap();
    std::fs::remove_file(world.root.join("live")).unwrap();
    std::fs::remove_dir(world.root.join(".worktrees")).unwrap();
    let gitdir = format!("gitdir: {}/.git/worktrees/{commit}\n", world.root.display());
    std::fs::write(world.root.join(&commit).join(".git"), gitdir).unwrap();
    std::os::unix::fs::symlink(&commit, world.root.join("live")).unwrap();
    let looker = Looker::start(world.root.join("live"));
    treeswap(&world);
    assert_names(&world, &commit);
    let next = world.remote.commit(&files("1"));
    treeswap(&world);
    assert_names(&world, &next);
    assert!(!world.root.join(&commit).exists(), "the old tree is among the retired ones");
    looker.look(LOOKS);
    assert_eq!(looker.ends(), [""; 0]);
}
