//! Roots that are refused, and the reasons given.

use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::store::Error;

fn refused(root: impl Into<PathBuf>) -> Error {
    let options = Options { root: root.into(), ..World::new().options() };
    let error = Store::open(options).unwrap_err();
    assert!(!error.is_transient(), "{error}");
    assert!(!error.hints().is_empty(), "{error}");
    error
}

#[test]
fn directories_that_nobody_can_mean_are_refused() {
    for root in [
        "/",
        "//",
        "/tmp",
        "/etc",
        "/usr/lib",
        "/root",
        "/home/someone",
        "/proc/self",
        "/sys/fs",
        "",
        "/srv/../etc",
    ] {
        let error = refused(root);
        assert!(matches!(error, Error::Refused { .. }), "{root}: {error}");
    }
    assert!(!Path::new("/home/someone").exists(), "a refused root was made");
}

#[test]
fn a_link_to_a_system_directory_is_refused_as_what_it_names() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("root")).unwrap();
    refused(dir.path().join("root"));
    std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
    let error = refused(dir.path().join("loop")).to_string();
    assert!(error.ends_with("it is a symbolic link that leads to itself"), "{error}");
}

/// Runs `body` on a thread without capabilities: permissions mean nothing to a root that has all.
fn unprivileged<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let body = || {
        set_capabilities(None, none).unwrap();
        body()
    };
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

#[test]
fn a_link_leads_nowhere_only_if_that_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let close = |mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        fs_err::set_permissions(at("closed"), mode).unwrap();
    };
    fs_err::create_dir_all(at("closed/root")).unwrap();
    symlink(at("none"), at("absent")).unwrap();
    symlink(at(&"x".repeat(300)), at("long")).unwrap();
    symlink(at("closed/root"), at("hidden")).unwrap();
    let is_unknown = |error: &Error, why: ErrorKind| match error {
        Error::Io { act: "resolve the root", source, .. } => source.kind() == why,
        _ => false,
    };
    for root in ["absent", "absent/below"] {
        let error = refused(at(root));
        assert!(matches!(&error, Error::Dangling { link, .. } if *link == at("absent")), "{error}");
    }
    let error = refused(at("long"));
    assert!(is_unknown(&error, ErrorKind::InvalidFilename), "{error}");
    close(0);
    for root in ["hidden", "hidden/below", "closed/root"] {
        let root = at(root);
        let error = unprivileged(|| refused(root));
        assert!(is_unknown(&error, ErrorKind::PermissionDenied), "{error}");
        assert!(error.hints().last().unwrap().contains("must be searchable"), "{:?}", error.hints());
    }
    close(0o700);
    // It is there, and was all along.
    assert!(Store::open(Options { root: at("hidden"), ..World::new().options() }).is_ok());
}

#[test]
fn a_directory_with_somebody_elses_files_is_refused_and_untouched() {
    let world = World::new();
    fs_err::create_dir(world.root()).unwrap();
    fs_err::write(world.at("thesis.tex"), "x").unwrap();
    let error = refused(world.root());
    assert!(error.to_string().contains("\"thesis.tex\""), "{error}");
    assert_eq!(world.names(), ["thesis.tex"]);
}

#[test]
fn git_syncs_root_is_somebody_elses() {
    let world = World::new();
    fs_err::create_dir_all(world.at(".worktrees/abc")).unwrap();
    fs_err::create_dir_all(world.at(".git")).unwrap();
    std::os::unix::fs::symlink(".worktrees/abc", world.at("link")).unwrap();
    assert!(refused(world.root()).to_string().contains("\".git\", \".worktrees\", \"link\""));
}

#[test]
fn an_empty_directory_and_one_with_lost_and_found_are_fine() {
    let world = World::new();
    fs_err::create_dir_all(world.at("lost+found")).unwrap();
    let mut store = world.open();
    let found = store.repair(&clock::now()).unwrap();
    assert_eq!(found.foreign, [""; 0]);
}

#[test]
fn a_file_is_no_root() {
    let world = World::new();
    fs_err::write(world.root(), "x").unwrap();
    assert!(refused(world.root()).to_string().ends_with("it is not a directory"));
    assert!(refused(world.root().join("below")).to_string().contains("is not a directory"));
}

#[test]
fn a_root_is_made_with_its_parents_and_a_link_to_it_is_resolved_once() {
    let world = World::new();
    let real = world.dir.path().join("a/b/c");
    std::os::unix::fs::symlink(&real, world.dir.path().join("link")).unwrap();
    fs_err::create_dir_all(&real).unwrap();
    let options = Options { root: world.dir.path().join("link"), ..world.options() };
    let (mut store, _) = Store::open(options).unwrap();
    assert_eq!(store.root(), real.canonicalize().unwrap());
    fs_err::remove_file(world.dir.path().join("link")).unwrap();
    publish(&mut store, &files("a", "1"));
    assert_eq!(fs_err::read_to_string(real.join("a")).unwrap(), "1");
    let deep = Options { root: world.dir.path().join("x/y/z"), ..world.options() };
    Store::open(deep).unwrap();
}

#[test]
fn a_root_in_what_the_writer_of_another_one_keeps_is_refused_and_not_made() {
    let world = World::new();
    drop(world.with(&varied("1")));
    let before = world.names();
    for place in ["..data/app/root", "..data/new", "app/root", "..treeswap/root", "..treeswap/trash/root"] {
        let error = refused(world.at(place));
        assert!(matches!(error, Error::Refused { .. }), "{place}: {error}");
        assert!(error.to_string().contains("only that root's writer may change"), "{error}");
        assert!(!world.at(place).exists(), "{place}");
    }
    world.assert_serves(&varied("1"));
    world.assert_tidy();
    assert_eq!(world.names(), before);
    for beside in [world.dir.path().join("beside"), world.at("plain/root")] {
        Store::open(Options { root: beside, ..world.options() }).unwrap();
    }
}

#[test]
fn a_link_in_the_place_of_our_own_directory_is_not_followed() {
    let world = World::new();
    let elsewhere = world.dir.path().join("elsewhere");
    fs_err::create_dir_all(&elsewhere).unwrap();
    fs_err::create_dir(world.root()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, world.at("..treeswap")).unwrap();
    let (store, found) = world.recover();
    assert!(found.done[0].starts_with("moved ..treeswap, "), "{found:?}");
    assert!(fs_err::symlink_metadata(world.at("..treeswap")).unwrap().is_dir());
    drop(store);
    assert!(fs_err::read_dir(&elsewhere).unwrap().next().is_none());
}

#[test]
fn a_second_writer_is_refused_by_name_and_the_lock_ends_with_its_holder() {
    let world = World::new();
    let store = world.open();
    let error = Store::open(world.options()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(store);
    Store::open(world.options()).unwrap();
}

#[test]
fn a_lock_that_ends_soon_is_waited_for() {
    let world = World::new();
    drop(world.open());
    // As a child of a killed writer has it, until its exec.
    let left = fs_err::File::open(world.at("..treeswap/lock")).unwrap();
    assert_eq!(fsx::try_lock(left.file()).unwrap(), fsx::Lock::Taken);
    let exec = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(left);
    });
    Store::open(world.options()).unwrap();
    exec.join().unwrap();
}

#[test]
fn the_lock_and_the_spare_are_for_the_writers_user_only_and_the_rest_is_readable() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let store = world.with(&files("a", "1"));
    store.write_status(b"{}").unwrap();
    let mode = |name: &str| fs_err::metadata(world.at(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("..treeswap/lock"), 0o600);
    assert_eq!(mode("..treeswap"), 0o755);
    assert_eq!((mode("..treeswap/staging"), mode("..treeswap/spare")), (0o755, 0o700));
    assert_eq!((mode("..treeswap/state"), mode("..treeswap/status.json")), (0o644, 0o644));
    assert_eq!(mode("..data/."), 0o755);
}
