//! Generations that share files: what is one inode, what is not, and foreign writes to shared files.

use super::recycle::{NAMES, a_tick, carry_forward, publish_next, reap, some};
use super::*;
use crate::payload::join;
use crate::payload::testing::{delta, trees};
use proptest::prelude::*;
use std::os::unix::fs::MetadataExt as _;

pub(super) fn open(world: &World) -> Store {
    Store::open(Options { spare: Spare::Link, ..world.options() }).unwrap().0
}

pub(super) fn content(number: i32) -> Tree {
    some(&number.to_string())
}

/// Makes the spare of the current generation, which has this tree. Returns true if it is made of hard links, false if it
/// had to be a copy.
pub(super) fn link(store: &Store, tree: &Tree) -> bool {
    let task = store.spare_task().expect("a spare is wanted");
    assert!(task.links());
    let is_linked = task.link(&go()).unwrap();
    if !is_linked {
        task.copy(&of(tree), &Blobs::of(&[tree]), &go()).unwrap();
    }
    assert!(store.spare_task().is_none(), "it is ready");
    is_linked
}

/// Publishes 1 to `last`, each but the first from hard links.
pub(super) fn published(world: &World, last: i32) -> Store {
    let mut store = open(world);
    publish(&mut store, &content(1));
    for number in 1..last {
        assert!(link(&store, &content(number)), "{number}");
        assert!(publish_next(&mut store, &content(number), &content(number + 1)), "{number}");
    }
    store
}

fn inode(world: &World, generation: &str, path: &str) -> u64 {
    fs_err::symlink_metadata(world.at(generation).join(path)).unwrap().ino()
}

/// Runs a scrub of the current generation. Returns why it is in doubt, or nothing.
pub(super) fn doubt(store: &mut Store) -> Option<String> {
    let scrubbed = store.scrub().expect("times tell something here").run(&go()).unwrap();
    store.scrubbed(scrubbed).expect("it is current").err()
}

#[test]
fn what_did_not_change_is_one_file_in_all_generations() {
    let world = World::new();
    let mut store = published(&world, 5);
    let names: Vec<String> = store.generations().iter().map(|record| record.name.to_string()).collect();
    assert_eq!(names.len(), 5);
    for (path, inodes) in
        [("kept/y", 1), ("kept/deep/z", 1), ("changed/same", 1), ("changed/a", 5), ("kept", 5)]
    {
        let found: std::collections::BTreeSet<u64> =
            names.iter().map(|name| inode(&world, name, path)).collect();
        assert_eq!(found.len(), inodes, "{path}");
    }
    world.assert_serves(&content(5));
    assert_eq!(store.verify(&of(&content(5)), &go()).unwrap(), [""; 0]);
    assert_eq!(doubt(&mut store), None, "all changes are ours");
}

#[test]
fn a_retired_generation_is_carried_forward_and_takes_what_is_new_from_the_current_one() {
    let world = World::new();
    let mut store = published(&world, 3);
    assert_eq!(reap(&mut store), 2, "one waits, one is deleted");
    store.wait_for_deletions(&go());
    let waiting = store.waits_for_recycling().expect("it is ours").to_string();
    let from = (1..3).find(|number| of(&content(*number)).revision.to_string() == waiting).unwrap();
    let kept = inode(&world, "..data", "kept/y");
    let changed = inode(&world, "..data", "changed/a");
    assert!(carry_forward(&store, &content(from), &content(3)));
    let spare = |path: &str| world.at("..treeswap/spare/tree").join(path);
    assert_eq!(fs_err::metadata(spare("changed/a")).unwrap().ino(), changed, "it was linked, not written");
    assert!(publish_next(&mut store, &content(3), &content(4)));
    assert_eq!(inode(&world, "..data", "kept/y"), kept);
    world.assert_serves(&content(4));
    store.wait_for_deletions(&go());
    assert_eq!(doubt(&mut store), None, "moves, links and deletions were ours");
    // And so on, with what is deleted in between.
    for number in 4..9 {
        assert_eq!(reap(&mut store), 1, "{number}");
        assert!(carry_forward(&store, &content(number - 1), &content(number)), "{number}");
        assert!(publish_next(&mut store, &content(number), &content(number + 1)), "{number}");
        store.wait_for_deletions(&go());
        assert_eq!(doubt(&mut store), None, "{number}");
        assert_eq!(inode(&world, "..data", "kept/y"), kept);
    }
    world.assert_serves(&content(9));
}

#[test]
fn a_delta_to_another_tree_than_the_current_one_takes_nothing_from_it() {
    let world = World::new();
    let mut store = published(&world, 3);
    reap(&mut store);
    let waiting = store.waits_for_recycling().expect("it is ours").to_string();
    let from = (1..3).find(|number| of(&content(*number)).revision.to_string() == waiting).unwrap();
    assert!(
        !carry_forward(&store, &content(from), &content(4)),
        "its files have the sizes of the current one's"
    );
    assert!(carry_forward(&store, &content(from), &content(3)), "it still waits");
}

#[test]
fn a_file_that_somebody_else_changed_is_not_shared() {
    let world = World::new();
    let mut store = published(&world, 2);
    a_tick();
    fs_err::write(world.at("..data/kept/y"), "Y").unwrap(); // as long as before
    assert!(!link(&store, &content(2)));
    assert!(publish_next(&mut store, &content(2), &content(3)));
    world.assert_serves(&content(3));
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn damage_to_a_shared_file_is_found_by_the_next_scrub_and_the_spare_does_not_bring_it_back() {
    let world = World::new();
    let mut store = published(&world, 2);
    assert!(link(&store, &content(2)));
    a_tick();
    fs_err::write(world.at("..data/kept/y"), "Y").unwrap();
    assert!(doubt(&mut store).unwrap().contains("kept/y"));
    assert!(!store.verify(&of(&content(2)), &go()).unwrap().is_empty());
    publish(&mut store, &content(2)); // as the repair does
    world.assert_serves(&content(2));
    let change = delta(&content(2), &content(3), rules()).unwrap();
    let staged = store.stage_delta(&change, "all", &Blobs::of(&[&content(2), &content(3)]), &go()).unwrap();
    assert!(staged.is_none(), "the spare shared the file");
    // Nor do retired generations, which share it as well.
    reap(&mut store);
    let waiting = store.waits_for_recycling().expect("its directories are ours").to_string();
    let from = (1..3).find(|number| of(&content(*number)).revision.to_string() == waiting).unwrap();
    assert!(!carry_forward(&store, &content(from), &content(2)), "it holds the damage");
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn damage_after_the_look_is_found_in_the_next_generation() {
    let world = World::new();
    let mut store = published(&world, 2);
    assert!(link(&store, &content(2)));
    a_tick();
    fs_err::write(world.at("..data/kept/y"), "Y").unwrap();
    assert!(publish_next(&mut store, &content(2), &content(3)), "directories are looked at, files are not");
    assert!(doubt(&mut store).unwrap().contains("kept/y"));
}

#[test]
fn a_name_that_somebody_plants_in_a_spare_of_links_is_not_published() {
    let of_files =
        ["a file appended to where something changes", "the mode of a file where something changes"];
    for (what, act) in NAMES.iter().filter(|(what, _)| !of_files.contains(what)) {
        let world = World::new();
        let mut store = published(&world, 2);
        assert!(link(&store, &content(2)));
        a_tick();
        act(&world.at("..treeswap/spare/tree"));
        assert!(!publish_next(&mut store, &content(2), &content(3)), "{what}");
        world.assert_serves(&content(3));
    }
}

#[test]
fn what_a_start_finds_is_linked_once_it_was_compared() {
    let world = World::new();
    drop(published(&world, 2));
    let mut store = open(&world);
    assert!(!store.spare_task().unwrap().links(), "its timestamps are not known");
    assert_eq!(store.verify(&of(&content(2)), &go()).unwrap(), [""; 0]);
    assert!(link(&store, &content(2)));
    assert!(publish_next(&mut store, &content(2), &content(3)));
    world.assert_serves(&content(3));
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn files_of_another_user_and_of_another_mode_are_written_anew() {
    use std::os::unix::fs::PermissionsExt as _;
    let is_root = rustix::process::geteuid().is_root();
    type Spoil = fn(&Path);
    let spoil: [(&str, Spoil); 2] = [
        ("mode", |path| fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o664)).unwrap()),
        ("owner", |path| std::os::unix::fs::chown(path, Some(12_345), None).unwrap()),
    ];
    for (what, spoil) in spoil.into_iter().filter(|(what, _)| *what != "owner" || is_root) {
        let world = World::new();
        let mut store = published(&world, 1);
        spoil(&world.at("..data/kept/y"));
        // A start compares contents, and takes it as it is: fsGroup changes modes so.
        drop(store);
        store = open(&world);
        assert_eq!(store.verify(&of(&content(1)), &go()).unwrap(), [""; 0], "{what}");
        assert!(!link(&store, &content(1)), "{what}");
        assert!(publish_next(&mut store, &content(1), &content(2)), "{what}");
        let found = fs_err::metadata(world.at("..data/kept/y")).unwrap();
        let ours = rustix::process::geteuid().as_raw();
        assert_eq!((found.uid(), found.mode() & 0o7777, found.nlink()), (ours, 0o644, 1), "{what}");
    }
}

#[test]
fn changes_are_forgotten_when_every_tree_knows_them() {
    let world = World::new();
    let mut store = published(&world, 3);
    let noted = || store.stamps.journal().unwrap().len();
    assert!(noted() > 0);
    reap(&mut store);
    store.drop_spare(&go()).unwrap();
    store.wait_for_deletions(&go());
    a_tick();
    assert_eq!(doubt(&mut store), None);
    assert_eq!(store.stamps.journal().unwrap().len(), 0);
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn deletions_and_links_during_a_scan_are_ours() {
    let world = World::new();
    let many = |content: &str| -> Tree {
        let names: Vec<String> = (0..4000).map(|number| format!("d/{number}")).collect();
        let same = names.iter().map(|name| (name.as_str(), Kind::File, "same"));
        tree(&same.chain([("changed", Kind::File, content)]).collect::<Vec<_>>())
    };
    let mut store = open(&world);
    publish(&mut store, &many("0"));
    for number in 0..4 {
        assert!(link(&store, &many(&number.to_string())));
        assert!(publish_next(&mut store, &many(&number.to_string()), &many(&(number + 1).to_string())));
    }
    assert_eq!(reap(&mut store), 4);
    let task = store.spare_task().unwrap();
    std::thread::scope(|scope| {
        let linked = scope.spawn(|| task.link(&go()).unwrap());
        for _ in 0..10 {
            assert_eq!(doubt(&mut store), None);
        }
        assert!(linked.join().unwrap());
    });
    store.wait_for_deletions(&go());
    assert_eq!(doubt(&mut store), None);
}

const BLOCK: u64 = 4096;

/// Measures the bytes on disk of generations and spare: each inode once, its content plus a block. Symlinks are left
/// out, because they have no blocks.
fn on_disk(world: &World) -> u64 {
    let mut found = std::collections::BTreeMap::new();
    let names = fs_err::read_dir(world.root()).unwrap().map(|entry| entry.unwrap().file_name());
    let generations = names.filter(|name| name.to_str().is_some_and(|name| Name::parse(name).is_some()));
    let generations = generations.map(|name| world.root().join(name));
    let spare = ["tree", "retired"].map(|name| world.at("..treeswap/spare").join(name));
    for top in generations.chain(spare) {
        for entry in walkdir(&top) {
            let stat = fs_err::symlink_metadata(&entry).unwrap();
            if !stat.is_symlink() {
                found.insert(stat.ino(), BLOCK + if stat.is_file() { stat.len() } else { 0 });
            }
        }
    }
    found.values().sum()
}

fn walkdir(top: &Path) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(top) else { return Vec::new() };
    let below = list.flat_map(|entry| {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() { walkdir(&entry.path()) } else { vec![entry.path()] }
    });
    std::iter::once(top.to_owned()).chain(below).collect()
}

/// Compares the estimate with the measurement. The estimate includes symlinks, and up to `over` additional blocks.
#[track_caller]
fn assert_counts(store: &Store, world: &World, over: u64, step: &str) {
    let counted = store.room().used_bytes;
    let there = on_disk(world);
    assert!(
        there <= counted && counted <= there + (2 + over) * (BLOCK + 6),
        "{step}: {there} on disk, {counted} counted"
    );
}

#[test]
fn what_generations_share_counts_once() {
    let world = World::new();
    let mut store = published(&world, 5);
    assert_counts(&store, &world, 0, "five");
    assert!(link(&store, &content(5)));
    assert_counts(&store, &world, 0, "five and a spare");
    assert!(publish_next(&mut store, &content(5), &content(6)));
    let names: Vec<_> = store.generations().iter().map(|record| record.name.clone()).collect();
    let oldest = fs_err::File::open(world.at(names.last().unwrap().as_str())).unwrap();
    rustix::fs::flock(&oldest, rustix::fs::FlockOperation::LockShared).unwrap();
    // Of the pinned one a file that changed several times since counts as often.
    for number in 6..12 {
        assert!(reap(&mut store) > 0, "{number}");
        store.wait_for_deletions(&go());
        assert_counts(
            &store,
            &world,
            6,
            &format!("{number}: what is between the pinned one and the current one went"),
        );
        let waiting = store.waits_for_recycling().map(|revision| revision.to_string());
        if let Some(from) = (1..number).find(|from| Some(of(&content(*from)).revision.to_string()) == waiting)
        {
            assert!(carry_forward(&store, &content(from), &content(number)));
        } else {
            assert!(link(&store, &content(number)));
        }
        assert_counts(&store, &world, 6, &format!("{number}: with a spare"));
        assert!(publish_next(&mut store, &content(number), &content(number + 1)), "{number}");
        assert_counts(&store, &world, 6, &format!("{number}: the next one"));
    }
    drop(store);
    let store = open(&world);
    assert_counts(&store, &world, 6, "after a restart");
}

#[test]
fn a_generation_that_was_written_whole_shares_nothing() {
    let world = World::new();
    let mut store = published(&world, 3);
    publish(&mut store, &content(4));
    assert_counts(&store, &world, 0, "whole");
    assert!(link(&store, &content(4)));
    assert!(publish_next(&mut store, &content(4), &content(5)));
    assert_counts(&store, &world, 0, "and links to it");
    assert!(reap(&mut store) > 0);
    store.wait_for_deletions(&go());
    let waiting = store.waits_for_recycling().unwrap().to_string();
    let from = (1..5).find(|from| of(&content(*from)).revision.to_string() == waiting).unwrap();
    assert!(carry_forward(&store, &content(from), &content(5)));
    assert_counts(&store, &world, 0, "a spare of other files");
    assert!(publish_next(&mut store, &content(5), &content(6)));
    assert_counts(&store, &world, 0, "a generation of other files");
}

#[test]
fn a_ceiling_has_room_for_as_many_generations_as_share_it() {
    let world = World::new();
    let whole = {
        let store = published(&world, 1);
        store.room().used_bytes
    };
    let retention = retention::Options { max_bytes: Some(4 * whole), ..world.options().retention };
    let mut store = Store::open(Options { spare: Spare::Link, retention, ..world.options() }).unwrap().0;
    assert_eq!(store.verify(&of(&content(1)), &go()).unwrap(), [""; 0]);
    for number in 1..5 {
        assert!(link(&store, &content(number)));
        assert!(publish_next(&mut store, &content(number), &content(number + 1)), "{number}");
        assert!(store.room().used_bytes <= 4 * whole);
    }
    assert_eq!(store.generations().len(), 5, "whole ones would be four");
}

#[test]
fn of_a_tree_deeper_than_looks_go_a_copy_is_made() {
    let world = World::new();
    let mut store = open(&world);
    let deep = |content| {
        tree(&[(&*format!("{}x", "below/".repeat(100)), Kind::File, "x"), ("a", Kind::File, content)])
    };
    publish(&mut store, &deep("1"));
    assert!(!link(&store, &deep("1")));
    assert!(publish_next(&mut store, &deep("1"), &deep("2")));
    world.assert_serves(&deep("2"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generations_made_from_links_serve_what_a_full_write_would(steps in prop::collection::vec(trees(), 2..6)) {
        let world = World::new();
        let mut store = open(&world);
        // In a directory, because a name that begins with two dots cannot be a root link.
        let below = |tree: &Tree| tree.iter().map(|(path, entry)| (join(b"d", path), entry.clone())).collect();
        let steps: Vec<Tree> = steps.iter().map(below).collect();
        publish(&mut store, &steps[0]);
        for pair in steps.windows(2) {
            if of(&pair[0]).tree == of(&pair[1]).tree {
                continue;
            }
            prop_assert!(link(&store, &pair[0]));
            prop_assert!(publish_next(&mut store, &pair[0], &pair[1]));
            world.assert_serves(&pair[1]);
            prop_assert_eq!(store.verify(&of(&pair[1]), &go()).unwrap(), [""; 0]);
            prop_assert_eq!(doubt(&mut store), None);
        }
    }
}
