//! Plants every kind of foreign file under each of our names: a start needs no operator for it, never blocks, and
//! deletes nothing foreign.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use super::*;
use crate::configmap::apply::LedgerSet;

#[derive(Clone, Copy, Debug)]
enum Planted {
    Directory,
    LinkToFile,
    LinkToDirectory,
    Dangling,
    File,
    Pipe,
    Socket,
}

use Planted::{Dangling, Directory, File, LinkToDirectory, LinkToFile, Pipe, Socket};

const ALL: [Planted; 7] = [Directory, LinkToFile, LinkToDirectory, Dangling, File, Pipe, Socket];

/// Plants it under the name, replacing what was there. `victims` has the targets of symlinks.
fn plant(what: Planted, at: &Path, victims: &Path) {
    match fs_err::symlink_metadata(at) {
        Ok(there) if there.is_dir() => fs_err::remove_dir_all(at).unwrap(),
        Ok(_) => fs_err::remove_file(at).unwrap(),
        Err(_) => {}
    }
    match what {
        Directory => {
            fs_err::create_dir(at).unwrap();
            fs_err::write(at.join("precious"), "precious").unwrap();
        }
        LinkToFile => symlink(victims.join("file"), at).unwrap(),
        LinkToDirectory => symlink(victims.join("dir"), at).unwrap(),
        Dangling => symlink("nowhere", at).unwrap(),
        File => fs_err::write(at, "precious").unwrap(),
        Pipe => {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, at, kind, 0o600.into(), 0).unwrap();
        }
        Socket => drop(UnixListener::bind(at).unwrap()),
    }
}

/// Returns true if a file somewhere below has this content.
fn is_kept(dir: &Path) -> bool {
    fs_err::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        let kind = fs_err::symlink_metadata(&path).unwrap().file_type();
        kind.is_dir() && is_kept(&path) || kind.is_file() && fs_err::read(&path).unwrap() == b"precious"
    })
}

/// Runs a start and a publication within a time that is too short for any blocking.
fn starts(world: &World, next: &Tree) -> Recovered {
    let (send, receive) = mpsc::channel();
    let options = Options { spare: Spare::Copy, ..world.options() };
    let tree = next.clone();
    std::thread::spawn(move || {
        let (mut store, found) = Store::open(options).unwrap();
        publish(&mut store, &tree);
        store.spare_task().unwrap().copy(&of(&tree), &Blobs::of(&[&tree]), &go()).unwrap();
        store.write_status(b"{}").unwrap();
        let ledger = store.ledger();
        let (ledgers, _) = ledger.read().unwrap();
        ledger.write(&ledgers).unwrap();
        store.wait_for_deletions(&go());
        drop(store);
        send.send(found).unwrap();
    });
    receive.recv_timeout(Duration::from_secs(60)).expect("it hangs, or failed as above")
}

#[test]
fn whatever_is_planted_under_a_name_of_ours_heals_at_the_next_start() {
    let files_of_ours = ["lock", "state", "status.json", "ledger.json", "ledger.json.damaged"];
    let dirs_of_ours = ["staging", "trash", "spare", "mirror"];
    for name in files_of_ours.into_iter().chain(dirs_of_ours).chain([
        "status.sock",
        "tmp-1",
        "..",
        "spare/ready",
        "spare/tree",
    ]) {
        for what in ALL {
            let world = World::new();
            let case = format!("{what:?} at {name}");
            drop(world.with(&files("a", "1")));
            if name.starts_with("spare/") {
                starts(&world, &files("ab", "2"));
            }
            let victims = world.dir.path().join("victims");
            fs_err::create_dir_all(victims.join("dir")).unwrap();
            fs_err::write(victims.join("dir/inside"), "theirs").unwrap();
            fs_err::write(victims.join("file"), "theirs").unwrap();
            let at = if name == ".." { world.at("..treeswap") } else { world.at("..treeswap").join(name) };
            plant(what, &at, &victims);
            println!("{case}");
            starts(&world, &files("bc", "3"));
            world.assert_serves(&files("bc", "3"));
            let inside = fs_err::read_to_string(victims.join("dir/inside")).unwrap();
            let beside = fs_err::read_to_string(victims.join("file")).unwrap();
            assert_eq!((&*inside, &*beside), ("theirs", "theirs"), "{case}");
            assert_eq!(fs_err::read_dir(victims.join("dir")).unwrap().count(), 1, "{case}: written into");
            // Expected to be deleted: anything in the spare's slot, names that start with `tmp-`, and a regular file
            // under the name of one of our files.
            let ours = name.starts_with("spare/")
                || matches!(what, File) && (name == "tmp-1" || files_of_ours.contains(&name));
            if matches!(what, Directory | File) && !ours {
                let kept = name == "trash" || name == "staging" || name == "spare" || is_kept(&world.root());
                assert!(kept, "{case}: destroyed");
            }
            let again = starts(&world, &files("c", "4"));
            assert!(!again.done.iter().any(|line| line.starts_with("moved")), "{case}: {again:?}");
        }
    }
}

#[test]
fn a_ledger_that_cannot_be_understood_is_moved_aside_whatever_has_the_name_for_it() {
    let world = World::new();
    let store = world.with(&files("a", "1"));
    let ledger = store.ledger();
    fs_err::create_dir_all(world.at("..treeswap/ledger.json.damaged/inside")).unwrap();
    fs_err::write(world.at("..treeswap/ledger.json"), "{").unwrap();
    let (ledgers, why) = ledger.read().unwrap();
    assert!(ledgers.text() == LedgerSet::default().text() && why.is_some());
    ledger.write(&ledgers).unwrap();
    assert_eq!(ledger.read().unwrap().1, None);
}

/// A killed start had moved something away from our private directory's name, or had written an operator's file.
#[test]
fn what_a_start_that_was_killed_left_in_a_root_without_our_own_directory_is_ours() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    fs_err::remove_dir_all(world.at("..treeswap")).unwrap();
    fs_err::write(world.at("..treeswap-quarantine-1-0"), "precious").unwrap();
    fs_err::write(world.at("....err.json.0123456789abcdef"), "half").unwrap();
    let operator_names = std::collections::BTreeSet::from(["..err.json".into()]);
    let (store, found) = Store::open(Options { operator_names, ..world.options() }).unwrap();
    assert!(!found.foreign.iter().any(|line| line.contains("err.json")), "{found:?}");
    world.assert_serves(&files("a", "1"));
    assert!(is_kept(&world.root()));
    drop(store);
    fs_err::remove_dir_all(world.at("..treeswap")).unwrap();
    let refused = Store::open(world.options()).unwrap_err().to_string();
    assert!(refused.contains("err.json") && !refused.contains("quarantine"), "{refused}");
}

/// Another user's file or directory, or one whose mode was changed.
#[test]
fn what_does_not_let_us_in_is_moved_aside() {
    let closed = ["state", "staging", "trash", "spare"].map(|name| (name, 0o000));
    let read_only = ["staging", "trash", "spare"].map(|name| (name, 0o555));
    for (name, mode) in closed.into_iter().chain(read_only) {
        let world = World::new();
        unprivileged(&world, || {
            drop(world.with(&files("a", "1")));
            set_mode(&world.at("..treeswap").join(name), mode);
            let (mut store, found) = world.recover();
            let is_moved = |line: &String| line.contains(name) && line.contains("quarantine-");
            // What is only read-only is our own here, and is made writable again.
            assert_eq!(found.done.iter().any(is_moved), mode == 0, "{name}: {found:?}");
            world.assert_serves(&files("a", "1"));
            publish(&mut store, &files("b", "2"));
            world.assert_serves(&files("b", "2"));
        });
    }
}

#[test]
fn what_cannot_be_deleted_is_named_by_each_repair_in_the_same_words() {
    assert!(rustix::process::geteuid().is_root(), "run it as root: it needs another user's directory");
    let world = World::new();
    unprivileged(&world, || drop(world.with(&files("a", "1"))));
    let theirs = world.at("..treeswap/trash/theirs");
    fs_err::create_dir(&theirs).unwrap();
    fs_err::write(theirs.join("file"), "").unwrap();
    unprivileged(&world, || {
        let mut store = world.open();
        let mut warnings = || store.repair(&clock::now()).unwrap().warnings;
        let mut is_named = || warnings().concat().contains("trash/theirs/file: Permission denied");
        while !is_named() {
            std::thread::sleep(Duration::from_millis(1)); // until it was tried once
        }
        assert!((0..50).all(|_| is_named()), "a repair that leaves it out makes the next one log it again");
    });
}

#[test]
fn another_users_directory_that_cannot_be_moved_stops_no_start() {
    assert!(rustix::process::geteuid().is_root(), "run it as root: it needs another user's directory");
    let world = World::new();
    let spare = Options { spare: Spare::Copy, ..world.options() };
    unprivileged(&world, || drop(world.with(&files("a", "1"))));
    for at in ["staging/theirs", "spare/tree"] {
        let at = world.at("..treeswap").join(at);
        fs_err::create_dir(&at).unwrap();
        fs_err::write(at.join("precious"), "precious").unwrap();
        set_mode(&at, 0o700);
    }
    unprivileged(&world, || {
        let (mut store, found) = Store::open(spare).unwrap();
        assert!(found.warnings.iter().any(|line| line.contains("staging/theirs")), "{found:?}");
        assert!(found.done.iter().any(|line| line.contains("spare to quarantine-")), "{found:?}");
        let next = files("b", "2");
        publish(&mut store, &next);
        let task = store.spare_task().unwrap();
        task.copy(&of(&next), &Blobs::of(&[&next]), &go()).unwrap();
        world.assert_serves(&next);
    });
    assert!(world.at("..treeswap/staging/theirs/precious").exists() && is_kept(&world.at("..treeswap")));
}
