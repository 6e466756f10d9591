//! What makes git-sync wipe its root, stop for good, or leave things behind, and must not do so here.

use std::path::{Path, PathBuf};

use super::common::root::{self, GIT_SYNC};
use super::common::run::{self, Background};
use super::common::{World, eventually};
use super::{files, git, sidecar, sync, target};

/// Its locks after a kill: in the repository, and in the live worktree.
fn leave_locks(world: &World, commit: &str) -> Vec<PathBuf> {
    let git = world.root.join(".git");
    let live = git.join("worktrees").join(commit);
    let locks = [
        git.join("HEAD.lock"),
        git.join("index.lock"),
        git.join("shallow.lock"),
        live.join("index.lock"),
        live.join("HEAD.lock"),
    ];
    locks.iter().for_each(|lock| std::fs::write(lock, "").unwrap());
    locks.to_vec()
}

/// git-sync wiped the root because of `shallow.lock`, and stopped for good because of the others.
#[test]
fn stale_locks_cost_nothing_while_the_remote_is_away_and_heal() {
    let world = World::new();
    let first = world.remote.commit(&files("1"));
    sync(&world, &[]);
    let locks = leave_locks(&world, &first);
    let published = world.remote.snapshot(&first);
    let away = world.remote.away();
    run::to_end(world.sync(&["--one-time"]).args(GIT_SYNC)).expect_failure("the remote is away");
    assert_eq!(root::differences(&world.root, &published), [""; 0]);
    drop(away);
    let second = world.remote.commit(&files("2"));
    sync(&world, &[]);
    world.assert_published(&second);
    let left: Vec<_> = locks.iter().filter(|lock| lock.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(git(&world, &["status", "--porcelain"]), "");
}

/// git-sync failed at every publication from then on.
#[test]
fn a_link_left_half_made_is_removed_and_the_next_commit_published() {
    let world = World::new();
    world.remote.commit(&files("1"));
    sync(&world, &[]);
    std::os::unix::fs::symlink(target(&world), world.root.join("tmp-link")).unwrap();
    std::os::unix::fs::symlink(target(&world), world.root.join("..live_tmp")).unwrap();
    let second = world.remote.commit(&files("2"));
    sync(&world, &[]);
    world.assert_published(&second);
    assert!(!world.root.join("tmp-link").is_symlink());
    world.assert_clean(1);
}

/// git-sync took a check that the deadline cut off for corruption, wiped the root, and left the link dangling. Whether
/// a pass succeeds within such a time depends on the machine; what is published does not.
#[test]
fn a_pass_that_runs_out_of_time_costs_nothing() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    sync(&world, &[]);
    for milliseconds in [10, 12, 15, 20] {
        let timeout = format!("--sync-timeout={milliseconds}ms");
        run::to_end(world.sync(&["--one-time", &timeout]).args(GIT_SYNC));
        world.assert_published(&commit);
    }
    let stuck = world.dir().join("stuck");
    run::executable(&stuck, "#!/bin/sh\nsleep 600\n");
    let program = format!("--git={}", stuck.display());
    world.remote.commit(&files("2"));
    let ran = run::to_end(world.sync(&["--one-time", "--sync-timeout=1s", &program]).args(GIT_SYNC));
    ran.expect_failure("the program never ends").names(&["--sync-timeout"]);
    world.assert_published(&commit);
}

/// git-sync left a file in `TMPDIR` at every start.
#[test]
fn a_kill_leaves_no_temporary_file() {
    let world = World::new();
    let first = world.remote.commit(&files("1"));
    sync(&world, &[]);
    let (temporary, began) = (world.dir().join("tmp"), world.dir().join("began"));
    std::fs::create_dir(&temporary).unwrap();
    let stuck = world.dir().join("stuck");
    run::executable(&stuck, &format!("#!/bin/sh\ntouch {}\nexec sleep 60\n", began.display()));
    world.remote.commit(&files("2"));
    let mut command = world.sync(&["--one-time", &format!("--git={}", stuck.display())]);
    let process = Background::start(
        command.args(GIT_SYNC).env("TMPDIR", &temporary).env("GITSYNC_GIT_CONFIG", "user.name:x"),
        &world.dir().join("killed.log"),
    );
    eventually(30, "the fetch began", || began.exists().then_some(()));
    drop(process); // SIGKILL
    assert_eq!(names(&temporary), [""; 0]);
    assert_eq!(names(&world.dir().join("home")), [""; 0]);
    world.assert_published(&first);
    let third = world.remote.commit(&files("3"));
    sync(&world, &[]);
    world.assert_published(&third);
    world.assert_clean(1);
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_root_that_was_removed_is_made_again_while_it_runs() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    let sidecar = sidecar(&world);
    sidecar.publishes(&world, &commit);
    std::fs::rename(&world.root, world.dir().join("moved")).unwrap();
    sidecar.publishes(&world, &commit);
    assert_eq!(std::fs::read_to_string(world.dir().join("moved/live/README")).unwrap(), "1");
}
