//! Inspection of a root without the lock.

use super::*;
use crate::phase::Status;
use crate::store::{Error, inspect};

#[test]
fn an_inspection_shows_generations_pins_and_the_last_status() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let pin = fsx::open_dir_at_path(&world.at("..data")).unwrap();
    fsx::try_lock_shared(&pin).unwrap();
    publish(&mut store, &files("ab", "2"));
    let status = Status { remote: "https://example.org/x".to_owned(), ..Status::default() };
    store.write_status(&serde_json::to_vec(&status).unwrap()).unwrap();
    let watch = Watch::on(&world.root());
    let seen = inspect(&world.root()).unwrap();
    assert_eq!(watch.events(), [""; 0]);
    assert_eq!(seen.current.as_ref(), store.current().map(|record| &record.name));
    assert_eq!(seen.link_problem, None);
    let shown: Vec<_> = seen.generations.iter().map(|g| (g.current, g.pinned, g.record.is_some())).collect();
    assert_eq!(shown, [(true, Some(false), true), (false, Some(true), true)]);
    assert_eq!(seen.status.unwrap().remote, status.remote);
}

#[test]
fn a_root_with_a_broken_link_or_state_is_still_shown() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    fs_err::write(world.at("..treeswap/state"), "{").unwrap();
    fs_err::remove_file(world.at("..data")).unwrap();
    let seen = inspect(&world.root()).unwrap();
    assert_eq!(seen.link_problem.as_deref(), Some("there is no ..data"));
    assert_eq!(seen.generations.len(), 1);
    assert!(seen.generations[0].record.is_none() && seen.status.is_none());
}

#[test]
fn what_is_no_root_is_said_so() {
    let world = World::new();
    fs_err::create_dir(world.root()).unwrap();
    assert!(matches!(inspect(&world.root()), Err(Error::NoRoot { .. })));
    assert!(matches!(inspect(&world.at("absent")), Err(Error::NoDirectory { .. })));
    std::fs::write(world.at("file"), "").unwrap();
    let error = inspect(&world.at("file")).unwrap_err();
    assert!(error.to_string().ends_with("file is not a directory"), "{error}");
    fs_err::remove_file(world.at("file")).unwrap();
    assert_eq!(world.names(), [""; 0], "looking changes nothing");
}

/// Inspects the root as another user if this one is root.
fn as_somebody(root: &std::path::Path) -> Result<crate::store::Inspection, Error> {
    std::thread::scope(|scope| {
        let somebody = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let gid = rustix::fs::Gid::from_raw(65_534);
                let uid = rustix::fs::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            inspect(root)
        });
        somebody.join().unwrap()
    })
}

#[test]
fn another_user_sees_the_same() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    publish(&mut store, &files("a", "2"));
    store.write_status(&serde_json::to_vec(&Status::default()).unwrap()).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs_err::set_permissions(world.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let root = world.root();
    let seen = as_somebody(&root).unwrap();
    assert_eq!(seen.current.as_ref(), store.current().map(|record| &record.name));
    assert!(seen.generations.iter().all(|generation| generation.record.is_some()));
    assert!(seen.status.is_some());
    // Who may not read it is not told to take it from the writer.
    fs_err::set_permissions(world.at("..treeswap"), PermissionsExt::from_mode(0o000)).unwrap();
    let error = as_somebody(&root).unwrap_err();
    fs_err::set_permissions(world.at("..treeswap"), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(matches!(error, Error::Unreadable { .. }), "{error}");
    assert!(!error.hints().concat().contains("chown"), "{:?}", error.hints());
}
