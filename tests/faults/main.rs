//! What goes wrong around a root: disks that are full or read-only, permissions, a link or a generation that somebody
//! changed, a second instance, a root that cannot be meant. Each ends in one clear line with a hint, leaves what is
//! published and what is not ours alone, and heals as soon as it can.
//!
//! `cut` has files that a power cut shortened, `disks` what needs a file system of its own, `own` files of the operator's
//! in the root, `planted` a mirror that somebody put something into, `scrub` a generation that somebody wrote into, `users`
//! what another user owns.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod cut;
mod disks;
mod own;
mod planted;
mod scrub;
mod users;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Files, Ran, Sidecar, World, eventually, root, run};

fn small(n: usize) -> Files {
    Files::new()
        .file("one", format!("{n}"))
        .file("below/two", format!("{n}"))
        .script("below/run", "#!/bin/sh\n")
        .link("link", "below/two")
}

const ROOT_UID: u32 = 0;

const ONCE: &[&str] = &["--grace=0s"];

/// Published, with grace 0.
fn publish(world: &World, files: &Files) -> String {
    publish_with(world, ONCE, files)
}

fn publish_with(world: &World, args: &[&str], files: &Files) -> String {
    let commit = world.remote.commit(files);
    world.sync_once(args).expect_ok("publishing");
    world.assert_published(&commit);
    commit
}

/// Lets everybody through to the world's directory, which is the maker's alone.
fn open_to_all(world: &World) {
    std::fs::set_permissions(world.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The command as an unprivileged user: as nobody where the caller is root, else as the caller.
fn unprivileged(command: &Command) -> Command {
    if rustix::process::geteuid().as_raw() != ROOT_UID {
        return again(Command::new(command.get_program()), command);
    }
    let mut wrapped = Command::new("setpriv");
    wrapped.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    ]);
    wrapped.arg(command.get_program());
    again(wrapped, command)
}

fn again(mut to: Command, from: &Command) -> Command {
    to.args(from.get_args()).env_clear();
    for (key, value) in from.get_envs() {
        if let Some(value) = value {
            to.env(key, value);
        }
    }
    to
}

/// The binary where an unprivileged user may run it: the build's directory may be closed.
fn reachable(world: &World, command: &Command) -> Command {
    let copy = world.dir().join("treeswap");
    if !copy.exists() {
        run::copy(Path::new(command.get_program()), &copy);
    }
    again(Command::new(copy), command)
}

/// A directory beside the root with a file in it, and what it must still be afterwards.
struct Canary {
    dir: PathBuf,
}

impl Canary {
    fn beside(world: &World) -> Self {
        let dir = world.dir().join("canary");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("precious"), "untouched").unwrap();
        Self { dir }
    }

    #[track_caller]
    fn sings(&self) {
        assert_eq!(root::names(&self.dir), [b"precious"]);
        assert_eq!(std::fs::read_to_string(self.dir.join("precious")).unwrap(), "untouched");
    }
}

/// Somebody did something to the root; the next start heals it, even without the remote, and harms nothing.
#[track_caller]
fn heals(what: &str, damage: impl FnOnce(&World, &Canary)) -> World {
    let world = World::new();
    let canary = Canary::beside(&world);
    let commit = publish(&world, &small(1));
    damage(&world, &canary);
    let away = world.remote.away();
    let ran = world.sync_once(ONCE).expect_failure("the remote is away");
    drop(away);
    let wrong = world.differences(&commit);
    assert!(wrong.is_empty(), "{what}, without the remote: {wrong:?}\n{}", ran.stderr);
    world.sync_once(ONCE).expect_ok(what);
    world.assert_published(&commit);
    canary.sings();
    world
}

#[test]
fn a_missing_or_misdirected_link_is_put_right_and_nothing_outside_is_touched() {
    let link = |world: &World| world.root.join("..data");
    let remove = |world: &World| std::fs::remove_file(link(world)).unwrap();
    heals("no link", |world, _| remove(world));
    heals("a dangling symbolic link", |world, _| {
        remove(world);
        symlink("..2001_01_01_00_00_00.000000001", link(world)).unwrap();
    });
    heals("a link out of the root", |world, _| {
        remove(world);
        symlink("../canary", link(world)).unwrap();
    });
    heals("an absolute link", |world, canary| {
        remove(world);
        symlink(&canary.dir, link(world)).unwrap();
    });
    heals("a link to the root itself", |world, _| {
        remove(world);
        symlink(".", link(world)).unwrap();
    });
    heals("a file in its place", |world, _| {
        remove(world);
        std::fs::write(link(world), "somebody's").unwrap();
    });
    heals("a temporary link left behind", |world, _| {
        symlink("..2001_01_01_00_00_00.000000001", world.root.join("..data_tmp")).unwrap();
    });
    heals("a directory as the temporary link", |world, _| {
        std::fs::create_dir(world.root.join("..data_tmp")).unwrap();
    });
}

#[test]
fn a_directory_in_the_links_place_is_moved_aside_unread() {
    let world = heals("a directory in its place", |world, _| {
        let link = world.root.join("..data");
        std::fs::remove_file(&link).unwrap();
        std::fs::create_dir(&link).unwrap();
        std::fs::write(link.join("somebody's"), "work").unwrap();
    });
    let ours = world.root.join("..treeswap");
    let kept = root::names(&ours)
        .into_iter()
        .map(|name| ours.join(String::from_utf8(name).unwrap()).join("somebody's"))
        .find_map(|path| std::fs::read_to_string(path).ok());
    assert_eq!(kept.as_deref(), Some("work"), "what somebody put there is gone");
}

/// Makes the world's root, writable by all as an emptyDir is, and gives it and the remote to the user of [`unprivileged`].
#[track_caller]
fn give_to_nobody(world: &World) {
    assert_eq!(rustix::process::geteuid().as_raw(), ROOT_UID, "run it as root: it needs two users");
    open_to_all(world);
    std::fs::create_dir(&world.root).unwrap();
    for path in [&world.root, &world.remote.path, &world.dir().join("home")] {
        run::to_end(Command::new("chown").args(["-R", "65534:65534"]).arg(path)).expect_ok("chown");
    }
    std::fs::set_permissions(&world.root, std::fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn another_users_directory_under_a_name_of_ours_loses_the_name_although_it_cannot_be_moved() {
    let world = World::new();
    world.remote.commit(&small(1));
    give_to_nobody(&world);
    let sync = |what: &str| {
        let command = world.sync(&["--one-time", "--grace=0s"]);
        run::to_end(&mut unprivileged(&reachable(&world, &command))).expect_ok(what);
        assert_eq!(std::fs::read_to_string(world.root.join("one")).unwrap(), "1", "{what}");
    };
    sync("before");
    for name in ["..data_tmp", "..data"] {
        let planted = world.root.join(name);
        let _ = std::fs::remove_file(&planted);
        std::fs::create_dir(&planted).unwrap();
        std::fs::write(planted.join("somebody's"), name).unwrap();
        sync(name);
    }
    let names = root::names(&world.root).into_iter().map(|name| String::from_utf8(name).unwrap());
    let aside = names.filter(|name| name.starts_with("..treeswap-quarantine-"));
    let read = |name| std::fs::read_to_string(world.root.join(name).join("somebody's")).unwrap();
    let mut kept: Vec<_> = aside.map(read).collect();
    kept.sort();
    assert_eq!(kept, ["..data", "..data_tmp"]);
    sync("after");
}

#[test]
fn another_users_tree_of_git_sync_3_does_not_keep_the_root_from_being_taken_over() {
    let world = World::new();
    world.remote.commit(&small(1));
    give_to_nobody(&world);
    let old = "0123456789abcdef0123456789abcdef01234567";
    let tree = world.root.join(old);
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join(".git"), format!("gitdir: /git/.git/worktrees/{old}\n")).unwrap();
    let command = world.sync(&["--one-time", "--layout=git-sync", "--link=link"]);
    run::to_end(&mut unprivileged(&reachable(&world, &command))).expect_ok("with another user's tree");
    assert_eq!(std::fs::read_to_string(world.root.join("link/one")).unwrap(), "1");
    assert!(tree.join(".git").exists());
}

#[test]
fn root_links_that_are_missing_wrong_or_too_many_are_put_right() {
    heals("a missing root link", |world, _| std::fs::remove_file(world.root.join("one")).unwrap());
    heals("a root link of ours too many", |world, _| {
        symlink("..data/gone", world.root.join("gone")).unwrap();
    });
}

#[test]
fn what_is_not_ours_in_the_root_stays() {
    let world = World::new();
    publish(&world, &small(1));
    std::fs::create_dir(world.root.join("nested-mount")).unwrap();
    std::fs::write(world.root.join("nested-mount/file"), "theirs").unwrap();
    std::fs::write(world.root.join("notes"), "theirs").unwrap();
    symlink("/etc/hostname", world.root.join("elsewhere")).unwrap();
    world.remote.commit(&small(2));
    world.sync_once(ONCE).expect_ok("with foreign entries");
    world.sync_once(ONCE).expect_ok("once more");
    assert_eq!(std::fs::read_to_string(world.root.join("nested-mount/file")).unwrap(), "theirs");
    assert_eq!(std::fs::read_to_string(world.root.join("notes")).unwrap(), "theirs");
    assert_eq!(std::fs::read_link(world.root.join("elsewhere")).unwrap(), Path::new("/etc/hostname"));
}

#[test]
fn a_name_that_somebody_else_took_is_reported_and_left_alone() {
    let world = World::new();
    publish(&world, &small(1));
    std::fs::remove_file(world.root.join("one")).unwrap();
    std::fs::write(world.root.join("one"), "theirs").unwrap();
    let ran = world.sync_once(ONCE).expect_ok("nothing new");
    assert!(ran.stderr.contains("one") && ran.stderr.contains("WARN"), "not reported: {}", ran.stderr);
    world.remote.commit(&small(2));
    world.sync_once(ONCE).expect_failure("a new tree whose name is taken").names(&["one"]);
    assert_eq!(std::fs::read_to_string(world.root.join("one")).unwrap(), "theirs");
}

#[test]
fn a_generation_that_was_tampered_with_is_replaced_by_a_fresh_one() {
    type Tamper = fn(&Path);
    let ways: &[(&str, Tamper)] = &[
        ("a byte flipped", |dir| std::fs::write(dir.join("one"), "2").unwrap()),
        ("a file deleted", |dir| std::fs::remove_file(dir.join("below/two")).unwrap()),
        ("a file added", |dir| std::fs::write(dir.join("below/three"), "evil").unwrap()),
        ("an executable that is none any more", |dir| {
            std::fs::set_permissions(dir.join("below/run"), std::fs::Permissions::from_mode(0o644)).unwrap();
        }),
        ("a link elsewhere", |dir| {
            std::fs::remove_file(dir.join("link")).unwrap();
            symlink("/etc/passwd", dir.join("link")).unwrap();
        }),
        ("a file that is a link now", |dir| {
            std::fs::remove_file(dir.join("one")).unwrap();
            symlink("/etc/passwd", dir.join("one")).unwrap();
        }),
        ("a directory that is a link now", |dir| {
            std::fs::rename(dir.join("below"), dir.join("other")).unwrap();
            symlink("other", dir.join("below")).unwrap();
        }),
    ];
    for (what, tamper) in ways {
        let world = World::new();
        let commit = publish(&world, &small(1));
        let before = root::current(&world.root).unwrap().unwrap();
        tamper(&before);
        world.sync_once(&["--grace=1h"]).expect_ok(what);
        let wrong = world.differences(&commit);
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        let after = root::current(&world.root).unwrap().unwrap();
        assert_ne!(before, after, "{what}: repaired in place");
    }
}

#[test]
fn a_second_instance_is_told_who_holds_the_root() {
    let world = World::new();
    let commit = world.remote.commit(&small(1));
    let first = Sidecar::start(&world, &[]);
    eventually(30, "the first instance publishes", || root::current(&world.root).ok().flatten());
    let second = world.sync_once(&[]).expect_failure("a second instance");
    second.names(&[world.root.to_str().unwrap(), &first.process.pid().to_string()]);
    world.assert_published(&commit);
    // The kernel frees the lock with its holder, however it ends; or a moment later, with the program that it was about
    // to start.
    drop(first);
    world.sync_once(&["--lock-wait=20s"]).expect_ok("after the first was killed");
}

/// A run with this root is refused in words; what it leaves in the directory is what was there.
#[track_caller]
fn refused(world: &World, home: &Path, directory: &Path, words: &[&str]) -> Ran {
    let before = root::names(directory);
    let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo"]);
    command.arg(&world.remote.path).arg("--root").arg(directory).env("HOME", home);
    let ran = run::to_end(&mut command).expect_failure("a root that cannot be meant");
    ran.names(words);
    assert_eq!(root::names(directory), before, "{} was touched", directory.display());
    ran
}

#[test]
fn a_root_that_cannot_be_meant_is_refused_untouched() {
    let world = World::new();
    world.remote.commit(&small(1));
    let home = world.dir().join("home");
    refused(&world, &home, Path::new("/"), &["/"]);
    refused(&world, &home, Path::new("/usr/.."), &["/"]);
    refused(&world, &home, &home, &[home.to_str().unwrap()]);
    std::fs::write(home.join(".profile"), "mine").unwrap();
    refused(&world, &home, &home, &[home.to_str().unwrap()]);
    let disguised = world.dir().join("disguised");
    symlink(&home, &disguised).unwrap();
    refused(&world, &home, &disguised, &["home"]);
}

#[test]
fn a_directory_full_of_somebodys_work_is_refused_untouched() {
    let world = World::new();
    world.remote.commit(&small(1));
    let theirs = world.dir().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("thesis.tex"), "years of work").unwrap();
    refused(&world, &world.dir().join("home"), &theirs, &[theirs.to_str().unwrap(), "thesis.tex"]);
    assert_eq!(std::fs::read_to_string(theirs.join("thesis.tex")).unwrap(), "years of work");
}

#[test]
fn a_root_that_is_a_file_is_refused_untouched() {
    let world = World::new();
    world.remote.commit(&small(1));
    std::fs::write(&world.root, "a file").unwrap();
    world.sync_once(&[]).expect_failure("a file as the root").names(&[world.root.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&world.root).unwrap(), "a file");
}

#[test]
fn a_running_sidecar_puts_a_link_right_within_a_cycle() {
    let world = World::new();
    let commit = world.remote.commit(&small(1));
    let sidecar = Sidecar::start(&world, &["--grace=0s"]);
    sidecar.publishes(&world, &commit);
    std::fs::remove_file(world.root.join("..data")).unwrap();
    std::fs::remove_file(world.root.join("one")).unwrap();
    sidecar.publishes(&world, &commit);
}

#[test]
fn a_running_sidecar_publishes_again_what_somebody_removed_even_beside_an_older_generation() {
    let world = World::new();
    let older = world.remote.commit(&small(1));
    let sidecar = Sidecar::start(&world, &["--grace=1h"]);
    sidecar.publishes(&world, &older);
    let newer = world.remote.commit(&small(2));
    sidecar.publishes(&world, &newer);
    let current = root::current(&world.root).unwrap().unwrap();
    std::fs::remove_dir_all(&current).unwrap();
    eventually(30, "another generation is current", || {
        root::current(&world.root).ok().flatten().filter(|now| *now != current)
    });
    sidecar.publishes(&world, &newer);
}

#[test]
fn what_is_published_again_during_an_outage_is_told_at_once() {
    let world = World::new();
    let commit = world.remote.commit(&small(1));
    let touched = world.dir().join("touched");
    let touch = format!("--touch-file={}", touched.display());
    let sidecar = Sidecar::start(&world, &[&touch, "--max-backoff=50ms"]);
    sidecar.publishes(&world, &commit);
    let _away = world.remote.away();
    eventually(30, "it fails", || {
        (sidecar.metric("treeswap_sync_consecutive_failures")? >= 2.0).then_some(())
    });
    std::fs::remove_file(&touched).unwrap();
    let lost = root::current(&world.root).unwrap().unwrap();
    std::fs::remove_dir_all(&lost).unwrap();
    eventually(30, "the touch file is touched", || touched.exists().then_some(()));
    let current = root::current(&world.root).unwrap().unwrap();
    assert_ne!(current, lost);
    eventually(30, "the status file names it", || {
        let text = std::fs::read_to_string(world.root.join("..treeswap/status.json")).ok()?;
        let status: serde_json::Value = serde_json::from_str(&text).ok()?;
        (status["current"]["name"].as_str() == current.file_name()?.to_str()).then_some(())
    });
    assert!(sidecar.metric("treeswap_sync_consecutive_failures").unwrap() >= 2.0, "the remote is still away");
}

#[test]
fn a_running_sidecar_goes_on_when_its_own_files_are_removed() {
    let world = World::new();
    let first = world.remote.commit(&small(0));
    let sidecar = Sidecar::start(&world, &["--grace=0s", "--max-backoff=50ms"]);
    sidecar.publishes(&world, &first);
    let own = world.root.join("..treeswap");
    for (number, removed) in
        ["mirror", "mirror/objects", "mirror/treeswap", "staging", "trash", "spare", "lock", "state", ""]
            .iter()
            .enumerate()
    {
        let path = own.join(removed);
        if path.is_dir() {
            std::fs::rename(&path, world.dir().join(format!("removed-{number}"))).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let next = world.remote.commit(&small(number + 1));
        sidecar.publishes(&world, &next);
    }
}
