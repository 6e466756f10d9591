//! What somebody put where the mirror belongs, or into it. (What else is in our own directory: the store's own tests.)

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use super::common::{Sidecar, World, eventually, run};
use super::{ONCE, give_to_nobody, publish, reachable, small, unprivileged};

fn pipe(at: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// Puts the thing there, whatever was there before.
fn plant(what: &str, at: &Path) {
    match std::fs::symlink_metadata(at) {
        Ok(there) if there.is_dir() => std::fs::remove_dir_all(at).unwrap(),
        Ok(_) => std::fs::remove_file(at).unwrap(),
        Err(_) => {}
    }
    match what {
        "a directory" => {
            std::fs::create_dir(at).unwrap();
            std::fs::write(at.join("precious"), "precious").unwrap();
        }
        "a file" => std::fs::write(at, "precious").unwrap(),
        "a link" => symlink("/dev/zero", at).unwrap(),
        "a dangling link" => symlink("nowhere", at).unwrap(),
        "a pipe" => pipe(at),
        _ => drop(UnixListener::bind(at).unwrap()),
    }
}

const ALL: [&str; 6] = ["a directory", "a file", "a link", "a dangling link", "a pipe", "a socket"];

/// The next pass publishes, and what was somebody else's is still somewhere.
fn heals(name: &str, kinds: &[&str]) {
    for what in kinds {
        let world = World::new();
        publish(&world, &small(1));
        let private = world.root.join("..treeswap");
        plant(what, &private.join(name));
        let commit = world.remote.commit(&small(2));
        world.sync_once(ONCE).expect_ok(&format!("{what} at {name}"));
        world.assert_published(&commit);
        if name == "mirror" && ["a directory", "a file"].contains(what) {
            let kept = std::fs::read_dir(&private).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
                let text = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text == "precious");
                text(&path) || text(&path.join("precious"))
            });
            assert!(kept, "{what} at {name}: destroyed");
        }
        let again = world.sync_once(ONCE).expect_ok("a cycle later");
        assert!(!again.stderr.contains("moved") && !again.stderr.contains("removed"), "{}", again.stderr);
    }
}

#[test]
fn whatever_stands_where_the_mirror_belongs_is_moved_aside() {
    heals("mirror", &ALL);
}

#[test]
fn whatever_stands_in_the_mirror_where_a_file_belongs_is_no_obstacle() {
    for name in ["config", "HEAD", "shallow", "refs/treeswap/tip"] {
        heals(&format!("mirror/{name}"), &["a directory", "a link", "a pipe"]);
    }
    heals("mirror/treeswap", &ALL);
}

#[test]
fn whatever_stands_in_the_mirror_where_a_directory_belongs_is_no_obstacle() {
    for name in ["objects", "objects/pack", "refs", "refs/treeswap"] {
        heals(&format!("mirror/{name}"), &["a file", "a dangling link", "a pipe"]);
    }
}

#[test]
fn what_is_planted_beside_the_packs_is_no_obstacle() {
    for name in ["objects/pack/pack-0.idx", "config.lock", "tmp_1", "objects/info/commit-graph"] {
        heals(&format!("mirror/{name}"), &["a directory", "a pipe"]);
    }
}

#[test]
fn a_pipe_in_the_mirror_of_git_syncs_layout_is_not_waited_for() {
    for name in ["config", "treeswap", "shallow"] {
        let world = World::new();
        let pass = |world: &World| world.sync_once(&["--layout=git-sync", "--link=link"]);
        world.remote.commit(&small(1));
        pass(&world).expect_ok("a pass");
        plant("a pipe", &world.root.join(".git").join(name));
        let commit = world.remote.commit(&small(2));
        pass(&world).expect_ok(name);
        assert!(world.root.join("link").canonicalize().unwrap().ends_with(&commit));
    }
}

#[test]
fn a_generation_that_another_user_took_over_is_not_called_gone() {
    let world = World::new();
    let [first, second] = [1, 2].map(|n| world.remote.commit(&small(n)));
    give_to_nobody(&world);
    let sync = |commit: &str| {
        let mut command = world.treeswap(&["sync", "--one-time", "--grace=1h", "--repo"]);
        command.arg(&world.remote.path).arg("--root").arg(&world.root).arg(format!("--ref={commit}"));
        run::to_end(&mut unprivileged(&reachable(&world, &command))).expect_ok("sync")
    };
    sync(&first);
    let taken = std::fs::read_link(world.root.join("..data")).unwrap();
    sync(&second);
    run::to_end(Command::new("chown").arg("0").arg(world.root.join(&taken))).expect_ok("chown");
    let ran = sync(&second);
    let line = format!("forgot {}, which belongs to another user", taken.display());
    assert!(ran.stderr.contains(&line), "{}", ran.stderr);
}

/// As on NFS with `all_squash`, or where a volume's group may write.
#[test]
fn a_generation_of_another_user_that_may_be_changed_is_removed_in_its_time() {
    let world = World::new();
    let [first, second] = [1, 2].map(|n| world.remote.commit(&small(n)));
    give_to_nobody(&world);
    let sync = |commit: &str| {
        let mut command = world.treeswap(&["sync", "--one-time", "--grace=0s", "--spare=off", "--repo"]);
        command.arg(&world.remote.path).arg("--root").arg(&world.root).arg(format!("--ref={commit}"));
        run::to_end(&mut unprivileged(&reachable(&world, &command))).expect_ok("sync")
    };
    sync(&first);
    let taken = std::fs::read_link(world.root.join("..data")).unwrap();
    run::to_end(Command::new("chmod").arg("-R").arg("a+rwX").arg(world.root.join(&taken))).expect_ok("chmod");
    run::to_end(Command::new("chown").arg("-R").arg("0").arg(world.root.join(&taken))).expect_ok("chown");
    sync(&second);
    let ran = sync(&second);
    assert!(!ran.stderr.contains("belongs to another user"), "{}", ran.stderr);
    assert!(!world.root.join(&taken).exists(), "{}", ran.stderr);
}

#[test]
fn nothing_keeps_serving_once_a_foreign_directory_has_the_roots_place() {
    let world = World::new();
    let tip = world.remote.commit(&small(1));
    let sidecar = Sidecar::start(&world, &["--period=50ms"]);
    sidecar.publishes(&world, &tip);
    std::fs::rename(&world.root, world.dir().join("moved")).unwrap();
    std::fs::create_dir(&world.root).unwrap();
    std::fs::write(world.root.join("theirs"), "").unwrap();
    let log = eventually(30, "the root is refused", || {
        Some(sidecar.process.log()).filter(|log| log.contains("refusing the root"))
    });
    let lines: Vec<_> = log.lines().filter(|line| line.contains("refusing the root")).collect();
    assert!(lines.iter().all(|line| line.contains("the published generation is gone")), "{lines:#?}");
    assert!(!log.contains("keeps serving"), "{log}");
}
