//! Recycling: what retired generations become, what readers in them see, and foreign writes to them.

use super::*;
use crate::payload::testing::delta;
use crate::store::reap::RequiredSpace;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// The pause between our last change and a foreign write: more than a tick of any file system's clock.
pub(super) fn a_tick() {
    std::thread::sleep(Duration::from_millis(20));
}

fn options(world: &World) -> Options {
    Options { spare: Spare::Recycle, ..world.options() }
}

pub(super) fn open(world: &World) -> Store {
    Store::open(options(world)).unwrap().0
}

/// The clock after the grace period of everything that is retired now.
fn later() -> clock::Now {
    let now = clock::now();
    clock::Now { boottime: now.boottime + Duration::from_secs(31), ..now }
}

pub(super) fn reap(store: &mut Store) -> usize {
    let plan = store.plan(&later());
    store.reap(&plan).len()
}

/// Two directories without a change and one with a change, in each of three revisions.
pub(super) fn some(content: &str) -> Tree {
    tree(&[
        ("changed/a", Kind::File, content),
        ("changed/same", Kind::File, "same"),
        ("changed/below/x", Kind::File, "x"),
        ("kept/y", Kind::File, "y"),
        ("kept/deep/z", Kind::Executable, "z"),
        ("link", Kind::Symlink, "kept/y"),
        ("vendored", Kind::Submodule, ""),
    ])
}

/// Publishes 1 and 2, so that 1 waits to be carried forward.
fn waiting(world: &World) -> Store {
    let mut store = open(world);
    publish(&mut store, &some("1"));
    publish(&mut store, &some("2"));
    assert_eq!(reap(&mut store), 1);
    assert!(store.waits_for_recycling().is_some());
    store
}

pub(super) fn carry_forward(store: &Store, from: &Tree, to: &Tree) -> bool {
    let delta = delta(from, to, rules()).unwrap();
    store.spare_task().unwrap().recycle(&delta, &Blobs::of(&[from, to]), &go()).unwrap()
}

/// Publishes `to` from the spare if possible, otherwise in full. Returns true if from the spare.
pub(super) fn publish_next(store: &mut Store, from: &Tree, to: &Tree) -> bool {
    let change = delta(from, to, rules()).unwrap();
    match store.stage_delta(&change, "all", &Blobs::of(&[from, to]), &go()).unwrap() {
        Some(staged) => {
            store.publish(staged, &clock::now()).unwrap();
            true
        }
        None => {
            publish(store, to);
            false
        }
    }
}

#[test]
fn a_retired_generation_becomes_the_next_one() {
    let world = World::new();
    let mut store = open(&world);
    let inode = |name: &str| fs_err::symlink_metadata(world.at("..data").join(name)).unwrap().ino();
    publish(&mut store, &some("1"));
    let first = ["kept", "kept/y", "changed/same", "changed/below", "link", "vendored"].map(inode);
    publish(&mut store, &some("2"));
    reap(&mut store);
    assert!(store.spare_task().unwrap().retired().is_some());
    assert!(carry_forward(&store, &some("1"), &some("2")));
    assert!(store.spare_task().is_none(), "the spare is ready");
    assert!(publish_next(&mut store, &some("2"), &some("3")));
    world.assert_serves(&some("3"));
    assert_eq!(store.verify(&of(&some("3")), &go()).unwrap(), [""; 0]);
    let third = ["kept", "kept/y", "changed/same", "changed/below", "link", "vendored"].map(inode);
    assert_eq!(first, third, "what did not change was moved, not written");
    // And so on: 2 becomes 4, 3 becomes 5.
    for round in 3..8 {
        let content = |number: i32| some(&number.to_string());
        assert_eq!(reap(&mut store), 1, "{round}");
        assert!(carry_forward(&store, &content(round - 1), &content(round)), "{round}");
        assert!(publish_next(&mut store, &content(round), &content(round + 1)), "{round}");
        world.assert_serves(&content(round + 1));
    }
    store.wait_for_deletions(&go());
    drop(store);
    let (_store, _) = world.recover();
    world.assert_tidy();
}

#[test]
fn no_copy_is_made_where_a_generation_retires_soon() {
    let soon = Duration::from_secs(5);
    let world = World::new();
    let mut store = open(&world);
    publish(&mut store, &some("1"));
    assert!(!store.awaits_retirement(soon, &clock::now()), "nothing is retired");
    publish(&mut store, &some("2"));
    let at = |seconds| {
        let now = clock::now();
        clock::Now { boottime: now.boottime + Duration::from_secs(seconds), ..now }
    };
    for (seconds, awaited) in [(0, false), (20, false), (26, true), (31, true), (36, false)] {
        assert_eq!(store.awaits_retirement(soon, &at(seconds)), awaited, "after {seconds} s");
    }
    // Nor is another one awaited where one is there: publications that follow each other soon would await for ever.
    publish(&mut store, &some("3"));
    assert!(store.awaits_retirement(soon, &at(26)));
    reap(&mut store);
    publish(&mut store, &some("4"));
    assert!(store.waits_for_recycling().is_some());
    assert!(!store.awaits_retirement(soon, &at(26)));
}

#[test]
fn what_is_not_ours_alone_is_not_used_again() {
    for what in ["pinned a moment ago", "evicted", "by a process before", "another selection"] {
        let world = World::new();
        let mut store = open(&world);
        publish(&mut store, &some("1"));
        let pin = (what == "pinned a moment ago").then(|| Consumer::of(&world));
        publish(&mut store, &some("2"));
        match what {
            "pinned a moment ago" => {
                assert_eq!(reap(&mut store), 0, "it is pinned");
                drop(pin);
                assert_eq!(reap(&mut store), 1);
            }
            "evicted" => {
                let plan = store.plan(&clock::now());
                assert_eq!(plan.reaped().count(), 0);
                for content in 3..8 {
                    publish(&mut store, &some(&content.to_string()));
                }
            }
            "by a process before" => {
                drop(store);
                store = open(&world);
                assert_eq!(reap(&mut store), 1);
            }
            _ => {
                let staged = store.stage(&of(&some("3")), "part", &Blobs::of(&[&some("3")]), &go()).unwrap();
                store.publish(staged, &clock::now()).unwrap();
                assert_eq!(reap(&mut store), 2);
            }
        }
        assert_eq!(store.waits_for_recycling(), None, "{what}");
    }
}

#[test]
fn it_is_not_used_where_others_may_write_or_a_gate_looks() {
    for options in [
        |world: &World| Options { group_write: true, ..options(world) },
        |world: &World| Options { spare: Spare::Copy, ..options(world) },
    ] {
        let world = World::new();
        let mut store = Store::open(options(&world)).unwrap().0;
        publish(&mut store, &some("1"));
        publish(&mut store, &some("2"));
        assert_eq!(reap(&mut store), 1);
        assert_eq!(store.waits_for_recycling(), None);
    }
}

/// A foreign write in a published tree, in which the directory `kept` has no change and `changed` has one.
pub(super) type Deed = (&'static str, fn(&Path));

pub(super) const NAMES: &[Deed] = &[
    ("a new directory", |dir| fs_err::create_dir(dir.join("kept/__pycache__")).unwrap()),
    ("a new file in a new directory", |dir| {
        fs_err::create_dir(dir.join("kept/deep/__pycache__")).unwrap();
        fs_err::write(dir.join("kept/deep/__pycache__/x.pyc"), "x").unwrap();
    }),
    ("a new file where something changes", |dir| fs_err::write(dir.join("changed/new"), "x").unwrap()),
    ("a new file at the top", |dir| fs_err::write(dir.join("new"), "x").unwrap()),
    ("a new link", |dir| std::os::unix::fs::symlink("y", dir.join("kept/l")).unwrap()),
    ("a file replaced, as sed -i does", |dir| {
        fs_err::write(dir.join("kept/tmp"), "other").unwrap();
        fs_err::rename(dir.join("kept/tmp"), dir.join("kept/y")).unwrap();
    }),
    ("a file removed", |dir| fs_err::remove_file(dir.join("kept/y")).unwrap()),
    ("a file renamed", |dir| fs_err::rename(dir.join("kept/y"), dir.join("kept/z")).unwrap()),
    ("a directory's mode", |dir| {
        fs_err::set_permissions(dir.join("kept/deep"), std::fs::Permissions::from_mode(0o700)).unwrap();
    }),
    ("a file appended to where something changes", |dir| append(&dir.join("changed/same"))),
    ("the mode of a file where something changes", |dir| {
        fs_err::set_permissions(dir.join("changed/same"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }),
];

pub(super) const CONTENT: &[Deed] = &[
    ("appended to", |dir| append(&dir.join("kept/y"))),
    ("written over", |dir| {
        let mut file = std::fs::OpenOptions::new().write(true).open(dir.join("kept/y")).unwrap();
        file.write_all(b"x").unwrap();
    }),
    ("written over, its old time set again", |dir| {
        let path = dir.join("kept/deep/z");
        let time = fs_err::metadata(&path).unwrap().modified().unwrap();
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all(b"x").unwrap();
        file.set_modified(time).unwrap();
    }),
    ("truncated", |dir| drop(std::fs::File::create(dir.join("kept/y")).unwrap())),
    ("its mode", |dir| {
        fs_err::set_permissions(dir.join("kept/y"), std::fs::Permissions::from_mode(0o666)).unwrap();
    }),
    ("another link to it", |dir| fs_err::hard_link(dir.join("kept/y"), dir.join("../../y")).unwrap()),
    ("its owner", |dir| std::os::unix::fs::chown(dir.join("kept/y"), None, Some(0)).unwrap()),
];

fn append(path: &Path) {
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
}

#[test]
fn what_somebody_else_changed_is_not_carried_on() {
    for (what, act) in NAMES.iter().chain(CONTENT) {
        for moment in ["while current", "while retired", "while it waits", "once it is ready"] {
            let world = World::new();
            let mut store = open(&world);
            let at_once = |now: &str, dir: PathBuf| {
                if now == moment {
                    a_tick();
                    act(&dir);
                }
            };
            publish(&mut store, &some("1"));
            let first = world.at("..data").canonicalize().unwrap();
            at_once("while current", first.clone());
            publish(&mut store, &some("2"));
            at_once("while retired", first);
            reap(&mut store);
            at_once("while it waits", world.at("..treeswap/spare/retired"));
            let carried = carry_forward(&store, &some("1"), &some("2"));
            assert_eq!(carried, moment == "once it is ready", "{what} {moment}: carried on");
            at_once("once it is ready", world.at("..treeswap/spare/tree"));
            if carried && CONTENT.iter().any(|(name, _)| name == what) {
                // Files in directories without a change were only checked earlier: the foreign write reaches the next
                // generation, and no further one.
                assert!(publish_next(&mut store, &some("2"), &some("3")), "{what}");
                publish(&mut store, &some("4"));
                reap(&mut store);
                assert!(!carry_forward(&store, &some("3"), &some("4")), "{what}: carried on once more");
                assert!(!publish_next(&mut store, &some("4"), &some("5")), "{what}");
                world.assert_serves(&some("5"));
                continue;
            }
            assert!(!publish_next(&mut store, &some("2"), &some("3")), "{what} {moment}: published");
            world.assert_serves(&some("3"));
            if !carried {
                assert!(store.spare_task().unwrap().retired().is_none(), "{what} {moment}: it still waits");
            }
        }
    }
}

#[test]
fn a_recycling_that_is_asked_to_end_begins_again() {
    let world = World::new();
    let mut store = waiting(&world);
    let delta = delta(&some("1"), &some("2"), rules()).unwrap();
    let ended = CancellationToken::new();
    ended.cancel();
    let task = store.spare_task().unwrap();
    assert!(task.recycle(&delta, &Blobs::of(&[&some("2")]), &ended).is_err());
    assert!(store.waits_for_recycling().is_some(), "nothing was done to it");
    assert!(carry_forward(&store, &some("1"), &some("2")));
    assert!(publish_next(&mut store, &some("2"), &some("3")));
    world.assert_serves(&some("3"));
}

#[test]
fn a_selection_that_changes_while_one_waits_has_no_use_for_it() {
    let world = World::new();
    let mut store = waiting(&world);
    // Other patterns, of the same revision: other files of the same tree.
    let staged = store.stage(&of(&some("2")), "other", &Blobs::of(&[&some("2")]), &go()).unwrap();
    store.publish(staged, &clock::now()).unwrap();
    let task = store.spare_task().unwrap();
    assert_eq!(task.retired(), None);
    let delta = delta(&some("1"), &some("2"), rules()).unwrap();
    assert!(!task.recycle(&delta, &Blobs::of(&[&some("2")]), &go()).unwrap());
    task.copy(&of(&some("2")), &Blobs::of(&[&some("2")]), &go()).unwrap();
    assert_eq!(store.waits_for_recycling(), None, "it went, and a copy is there");
    assert!(store.spare_task().is_none());
}

#[test]
fn what_goes_for_room_or_is_over_a_ceiling_is_deleted() {
    let world = World::new();
    let mut store = open(&world);
    publish(&mut store, &some("1"));
    publish(&mut store, &some("2"));
    // Its grace period is over when room is needed for something else, so it is deleted, not recycled.
    let mut waits = |ceiling: Option<u64>| {
        let need = RequiredSpace { bytes: 1, entries: 1 };
        store.options.retention.grace = Duration::ZERO;
        store.options.retention.max_bytes = ceiling;
        store.reap_excess(need);
        store.waits_for_recycling().is_some()
    };
    assert!(!waits(None));
    assert_eq!(store.generations().len(), 1);
    // A waiting generation counts like a copy: above the ceiling it is deleted.
    drop(store);
    let world = World::new();
    let mut store = waiting(&world);
    store.options.retention.max_bytes = Some(store.on_disk(RequiredSpace::of(store.current().unwrap())) + 1);
    assert!(store.spare_task().is_none());
    assert_eq!((store.waits_for_recycling(), store.spare_bytes()), (None, 0));
    assert!(!store.take_spare_dropped(), "nothing was to be written");
}

#[test]
fn a_spare_that_goes_for_room_is_known_once() {
    let world = World::new();
    let mut store = waiting(&world);
    let one = store.on_disk(RequiredSpace::of(store.current().unwrap()));
    store.options.retention.max_bytes = Some(2 * one);
    publish(&mut store, &some("3"));
    assert!(store.take_spare_dropped());
    assert!(!store.take_spare_dropped());
}
