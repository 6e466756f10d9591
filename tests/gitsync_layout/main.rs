//! git-sync's layout as its consumers see it: what the link names, git inside the tree, what heals, and roots that
//! change hands between git-sync and treeswap.

#[path = "../common/mod.rs"]
mod common;

mod defects;
mod handover;

use std::path::PathBuf;
use std::process::Command;

use common::root::{self, GIT_SYNC};
use common::{Files, Ran, Sidecar, World, eventually, run};

fn files(text: &str) -> Files {
    Files::new()
        .file("README", text)
        .file("dir/file", text)
        .script("run", "#!/bin/sh\n")
        .link("link", "dir/file")
}

/// One synchronisation in git-sync's layout, without grace.
fn sync(world: &World, more: &[&str]) -> Ran {
    let ran = run::to_end(world.sync(&["--one-time", "--grace=0s"]).args(GIT_SYNC).args(more));
    ran.expect_ok("sync")
}

/// Runs git in what the link names.
fn git(world: &World, args: &[&str]) -> String {
    let mut command: Command = run::clean("git", world.dir());
    command.arg("-C").arg(world.root.join("live")).args(args);
    run::to_end(&mut command).expect_ok(&format!("git {args:?}")).stdout.trim_end().to_owned()
}

fn target(world: &World) -> PathBuf {
    std::fs::read_link(world.root.join("live")).unwrap()
}

fn sidecar(world: &World) -> Sidecar {
    Sidecar::start(world, &[GIT_SYNC, &["--grace=0s"]].concat())
}

#[test]
fn a_commit_is_a_worktree_of_its_own_even_if_its_tree_is_the_same() {
    let world = World::new();
    let first = world.remote.commit(&files("1"));
    sync(&world, &[]);
    world.assert_published(&first);
    assert_eq!(git(&world, &["rev-parse", "HEAD"]), first);
    assert_eq!(git(&world, &["status", "--porcelain"]), "");
    let second = world.remote.commit(&files("1"));
    assert_ne!(first, second);
    sync(&world, &[]);
    world.assert_published(&second);
    assert_eq!(git(&world, &["rev-parse", "HEAD"]), second);
    world.assert_clean(1);
}

#[test]
fn a_tree_that_was_removed_or_committed_in_is_published_afresh_while_it_runs() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    let sidecar = sidecar(&world);
    sidecar.publishes(&world, &commit);
    std::fs::remove_dir_all(world.root.join(target(&world))).unwrap();
    sidecar.publishes(&world, &commit);
    sidecar.idle(2); // the link, which named nothing, leads to the new tree before git's part of it is in place
    std::fs::write(world.root.join("live/README"), "mine").unwrap();
    git(&world, &["commit", "--quiet", "--all", "--message=mine"]);
    sidecar.publishes(&world, &commit);
    eventually(30, "git inside names the commit", || {
        (git(&world, &["rev-parse", "HEAD"]) == commit && git(&world, &["status", "--porcelain"]).is_empty())
            .then_some(())
    });
    std::fs::remove_file(world.root.join("live")).unwrap();
    sidecar.publishes(&world, &commit);
    std::fs::remove_dir_all(world.root.join(".worktrees")).unwrap();
    sidecar.publishes(&world, &commit);
}

/// As in a migration in which git-sync still runs. Without a grace period the earlier one goes at once.
#[test]
fn what_another_writer_published_is_not_turned_back_while_the_remote_is_away() {
    let world = World::new();
    let sidecar = sidecar(&world);
    let commit = world.remote.commit(&files("1"));
    sidecar.publishes(&world, &commit);
    let _away = world.remote.away();
    let theirs = PathBuf::from(".worktrees/0123456789abcdef0123456789abcdef01234567");
    std::fs::create_dir(world.root.join(&theirs)).unwrap();
    std::fs::write(world.root.join(&theirs).join("README"), "theirs").unwrap();
    std::os::unix::fs::symlink(&theirs, world.root.join("new")).unwrap();
    std::fs::rename(world.root.join("new"), world.root.join("live")).unwrap();
    eventually(30, "the other generation is retired and removed", || {
        (!world.root.join(".worktrees").join(&commit).exists()).then_some(())
    });
    let failures = || sidecar.metric("treeswap_sync_consecutive_failures");
    let before = failures().unwrap_or_default();
    eventually(30, "attempts fail", || (failures()? > before + 2.0).then_some(()));
    assert_eq!(target(&world), theirs);
}

/// git-sync rewrote the live tree in place, and left the files away for good once the patterns were gone.
#[test]
fn other_sparse_patterns_are_another_tree_of_the_same_commit_and_their_end_brings_everything_back() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    sync(&world, &[]);
    let open = std::fs::File::open(world.root.join("live/README")).unwrap();
    let patterns = world.dir().join("patterns");
    std::fs::write(&patterns, "dir/\n").unwrap();
    let sparse = format!("--sparse-checkout-file={}", patterns.display());
    sync(&world, &[&sparse, "--grace=1h"]);
    assert_eq!(root::names(&world.root.join("live")), [&b".git"[..], b"dir"]);
    // git reads this one in cone mode, to which the files at the top belong.
    std::fs::write(&patterns, "/dir/\n").unwrap();
    sync(&world, &[&sparse, "--grace=1h"]);
    let all = [&b".git"[..], b"README", b"dir", b"link", b"run"];
    assert_eq!(root::names(&world.root.join("live")), all);
    assert_eq!(target(&world).file_name().unwrap().to_str(), Some(&*commit));
    assert_eq!(git(&world, &["status", "--porcelain"]), "");
    let before = std::os::unix::fs::MetadataExt::nlink(&open.metadata().unwrap());
    assert_eq!(before, 1, "the tree of before stays for its readers");
    sync(&world, &[]);
    world.assert_published(&commit);
    assert_eq!(git(&world, &["status", "--porcelain"]), "");
    world.assert_clean(1);
}

#[test]
fn a_restart_leaves_a_good_tree_alone_and_replaces_a_bad_one() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    sync(&world, &[]);
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&world.root.join(name).metadata().unwrap());
    let before = inode("live/README");
    std::fs::write(world.root.join("live/made-by-a-consumer"), "x").unwrap();
    sync(&world, &[]);
    assert_eq!(inode("live/README"), before);
    assert!(world.root.join("live/made-by-a-consumer").exists());
    let open = world.root.join("live/README").canonicalize().unwrap();
    std::fs::write(&open, "tampered").unwrap();
    sync(&world, &[]);
    world.assert_published(&commit);
    assert_ne!(inode("live/README"), before);
}

#[test]
fn status_and_pins_know_the_layout() {
    let world = World::new();
    let first = world.remote.commit(&files("1"));
    sync(&world, &["--grace=1h"]);
    let link = world.root.join("live");
    let held = world.dir().join("held");
    let script =
        format!("touch {0}; until [ -e {0}.end ]; do sleep 0.01; done; cat {{}}/README", held.display());
    let mut pin = world.treeswap(&["pin", "--link"]);
    let pin = pin.arg(&link).args(["--", "sh", "-c", &script]).stdout(std::process::Stdio::piped());
    let pin = pin.spawn().unwrap();
    eventually(30, "the pin is taken", || held.exists().then_some(()));
    let second = world.remote.commit(&files("2"));
    sync(&world, &[]); // past its grace period, and pinned
    world.assert_published(&second);
    let status = world.treeswap(&["status"]).arg(&world.root).output().unwrap();
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(status.status.success() && text.contains(&first) && text.contains("pinned"), "{text}");
    std::fs::write(held.with_extension("end"), "").unwrap();
    let out = pin.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "1");
    eventually(30, "it goes", || {
        sync(&world, &[]);
        root::left_behind(&world.root, 1).is_empty().then_some(())
    });
}

#[test]
fn a_link_to_a_directory_is_replaced_and_the_directory_stays() {
    let world = World::new();
    std::fs::create_dir_all(world.root.join("releases/v1")).unwrap();
    std::fs::write(world.root.join("releases/v1/precious"), "x").unwrap();
    std::os::unix::fs::symlink("releases/v1", world.root.join("live")).unwrap();
    let commit = world.remote.commit(&files("1"));
    sync(&world, &[]);
    assert_eq!(target(&world), PathBuf::from(".worktrees").join(commit));
    assert_eq!(std::fs::read_to_string(world.root.join("releases/v1/precious")).unwrap(), "x");
    std::fs::remove_file(world.root.join("live")).unwrap();
    std::fs::create_dir(world.root.join("live")).unwrap();
    let ran = run::to_end(world.sync(&["--one-time"]).args(GIT_SYNC));
    ran.expect_failure("a directory in the place of the link").names(&["live", "directory"]);
}

#[test]
fn the_mirror_is_where_git_finds_it_from_the_published_tree() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    let elsewhere = format!("--mirror={}", world.dir().join("mirror").display());
    let ran = run::to_end(world.sync(&["--one-time", &elsewhere]).args(GIT_SYNC));
    let why = "in git-sync's layout it is ROOT/.git, where git finds it from the published tree";
    assert!(ran.status.code() == Some(2) && ran.stderr.contains(why), "{}", ran.stderr);
    assert!(!world.root.exists());
    sync(&world, &[&format!("--mirror={}", world.root.join(".git").display())]);
    assert_eq!(git(&world, &["rev-parse", "HEAD"]), commit);
}
