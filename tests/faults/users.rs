//! Roots and repositories that the user may not write or read, or that are another user's; and no privilege at all.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::common::{World, run};
use super::{ROOT_UID, open_to_all, publish, reachable, small, unprivileged};

#[test]
fn a_root_without_permission_is_named() {
    let world = World::new();
    open_to_all(&world);
    let closed = world.dir().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    world.remote.commit(&small(1));
    let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo"]);
    command.arg(&world.remote.path).arg("--root").arg(closed.join("root"));
    let ran = run::to_end(&mut unprivileged(&reachable(&world, &command)));
    ran.expect_failure("no permission").names(&["Permission denied", closed.to_str().unwrap()]);
    assert_eq!(std::fs::read_dir(&closed).unwrap().count(), 0);
}

#[test]
fn a_volume_of_root_is_named_as_such_and_not_as_a_missing_directory() {
    for layout in [&[][..], &["--layout=git-sync", "--link=link"]] {
        let world = World::new();
        open_to_all(&world);
        std::fs::create_dir(&world.root).unwrap();
        let mut command = world.treeswap(&["sync", "--one-time", "--repo"]);
        command.arg(&world.remote.path).arg("--root").arg(&world.root).args(layout);
        let ran =
            run::to_end(&mut unprivileged(&reachable(&world, &command))).expect_failure("no permission");
        let root = world.root.display();
        ran.names(&["cannot make the directory", "Permission denied"]);
        let owner = format!("{root} belongs to user 0, and this is user 65534");
        for words in [&owner, "set fsGroup", &format!("`chown -R 65534 {root}`")] {
            assert!(ran.stderr.contains(words), "{words} is not in {}", ran.stderr);
        }
    }
}

#[test]
fn a_root_of_another_user_is_named_with_both_users() {
    let world = World::new();
    publish(&world, &small(1));
    open_to_all(&world);
    // As who reads "chown the directory" does it first.
    run::to_end(Command::new("chown").arg("65534").arg(&world.root)).expect_ok("chown");
    let command = reachable(&world, &world.sync(&["--one-time"]));
    let ran = run::to_end(&mut unprivileged(&command)).expect_failure("what is in it is another user's");
    let root = world.root.display();
    let owner = rustix::process::geteuid().as_raw();
    ran.names(&["cannot open the directory", "..treeswap/staging"]);
    for words in
        [format!("belongs to user {owner}, and this is user 65534\n"), format!("`chown -R 65534 {root}`\n")]
    {
        assert!(ran.stderr.contains(&words), "{words} is not in {}", ran.stderr);
    }
    // As the hint says.
    run::to_end(Command::new("chown").args(["-R", "65534"]).arg(&world.root)).expect_ok("chown -R");
    run::to_end(&mut unprivileged(&command)).expect_ok("all of it is ours");
}

#[test]
fn a_repository_without_permission_is_named() {
    let world = World::new();
    world.remote.commit(&small(1));
    open_to_all(&world);
    std::fs::create_dir(&world.root).unwrap();
    std::fs::set_permissions(&world.root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let closed = world.dir().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let repository = closed.join("it's.git");
    std::fs::rename(&world.remote.path, &repository).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    for inside in [false, true] {
        let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo"]);
        command.arg(&repository).arg("--root").arg(&world.root);
        let ran = run::to_end(&mut unprivileged(&reachable(&world, &command)));
        let words = format!("cannot read the repository {}: Permission denied", repository.display());
        let ran = ran.expect_failure("no permission");
        ran.names(&[&words]);
        assert!(ran.stderr.contains("the user treeswap runs as may read it"), "{}", ran.stderr);
        // The second time the repository itself is closed.
        if !inside {
            std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::set_permissions(&repository, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

#[test]
fn everything_works_without_any_privilege() {
    let world = World::new();
    open_to_all(&world);
    let commit = world.remote.commit(&small(1));
    std::fs::create_dir(&world.root).unwrap();
    if rustix::process::geteuid().as_raw() == ROOT_UID {
        for path in [&world.root, &world.remote.path, &world.dir().join("home")] {
            run::to_end(Command::new("chown").args(["-R", "65534:65534"]).arg(path)).expect_ok("chown");
        }
    }
    let command = world.sync(&["--one-time", "--grace=0s"]);
    run::to_end(&mut unprivileged(&reachable(&world, &command))).expect_ok("as nobody");
    let ran = run::to_end(&mut unprivileged(&reachable(&world, &command)));
    ran.expect_ok("as nobody, once more");
    // The world is read back by git as the caller, for whom the repository is somebody else's.
    run::to_end(
        Command::new("chown").arg("-R").arg(rustix::process::geteuid().to_string()).arg(&world.remote.path),
    );
    world.assert_published(&commit);
    world.assert_clean(1);
}
