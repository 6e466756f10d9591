//! The spare's slot and the journal when they are in use, in doubt or full.

use super::recycle::{a_tick, carry_forward, publish_next, reap};
use super::share::{content, doubt, link, open, published};
use super::*;
use crate::payload::testing::delta;
use crate::store::Error;
use crate::store::journal::INODES_MAX;
use std::sync::Arc;

/// Writes into a file that all generations and the spare share.
fn damage(world: &World) {
    a_tick();
    fs_err::write(world.at("..data/kept/y"), "Y").unwrap();
}

/// Asserts that the damaged generation is replaced, and that the next one is not made from a spare that shares files
/// with it.
fn assert_spare_is_not_used(store: &mut Store, world: &World) {
    publish(store, &content(2)); // as the repair does
    let change = delta(&content(2), &content(3), rules()).unwrap();
    let staged = store.stage_delta(&change, "all", &Blobs::of(&[&content(2), &content(3)]), &go()).unwrap();
    assert!(staged.is_none(), "the spare shares the file");
    world.assert_serves(&content(2));
}

#[test]
fn damage_that_a_scrub_finds_while_the_last_links_are_made_is_not_in_the_spare() {
    let world = World::new();
    let mut store = published(&world, 2);
    let task = store.spare_task().unwrap();
    let made = task.make(&go(), |cancel| {
        let made = task.make_links(cancel)?;
        assert!(made.is_some());
        damage(&world);
        assert!(doubt(&mut store).unwrap().contains("kept/y"));
        Ok(made)
    });
    assert!(matches!(made, Err(Error::Cancelled)), "{made:?}");
    assert_eq!(store.spare_bytes(), 0);
    assert_spare_is_not_used(&mut store, &world);
}

#[test]
fn damage_that_a_scrub_finds_while_the_spare_is_looked_at_is_not_published() {
    let world = World::new();
    let mut store = published(&world, 2);
    assert!(link(&store, &content(2)));
    damage(&world);
    let slot = Arc::clone(&store.spare);
    let busy = slot.try_lock().unwrap();
    assert!(doubt(&mut store).unwrap().contains("kept/y"));
    drop(busy);
    assert_spare_is_not_used(&mut store, &world);
}

/// Returns true if it is cancelled within ten seconds.
fn is_cancelled_soon(cancel: &CancellationToken) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        cancel.is_cancelled()
    })
}

#[test]
fn who_drops_the_spare_ends_a_preparation_that_has_only_just_begun() {
    let world = World::new();
    let store = published(&world, 2);
    let slot = &store.spare;
    let busy = slot.try_lock().unwrap();
    let preparation = CancellationToken::new();
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| slot.drop_spare(&go()));
        std::thread::sleep(Duration::from_millis(50)); // it has found the slot in use
        *slot.preparing() = preparation.clone();
        let is_cancelled = is_cancelled_soon(&preparation);
        drop(busy);
        dropped.join().unwrap().unwrap();
        assert!(is_cancelled, "it was waited for");
    });
}

#[test]
fn a_scrub_before_a_preparation_begins_takes_nothing_from_it() {
    let world = World::new();
    let mut store = published(&world, 3);
    a_tick();
    reap(&mut store);
    store.drop_spare(&go()).unwrap();
    store.wait_for_deletions(&go());
    a_tick();
    let task = store.spare_task().unwrap();
    assert_eq!(doubt(&mut store), None);
    assert!(task.link(&go()).unwrap(), "its stamps are older than the scrub");
    drop(task);
    assert!(publish_next(&mut store, &content(3), &content(4)));
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn deletions_of_what_an_earlier_process_linked_are_ours_whatever_the_spare_is_now() {
    for spare in [Spare::Copy, Spare::Recycle, Spare::Off] {
        let world = World::new();
        drop(published(&world, 3));
        let mut store = Store::open(Options { spare, ..world.options() }).unwrap().0;
        assert_eq!(store.verify(&of(&content(3)), &go()).unwrap(), [""; 0]);
        a_tick();
        assert_eq!(reap(&mut store), 2);
        store.wait_for_deletions(&go());
        assert_eq!(doubt(&mut store), None, "{spare:?}");
    }
}

/// Fills the journal with inodes that do not exist, for good.
fn fill_journal(store: &Store) {
    let journal = store.stamps.journal().unwrap();
    let mut stat = rustix::fs::lstat("/").unwrap();
    stat.st_ctime += 1 << 32; // later than anything that is known of a tree
    for inode in (1 << 40..).take(2 * INODES_MAX) {
        stat.st_ino = inode;
        journal.lock(inode).record_creation(&stat);
    }
    assert_eq!(journal.len(), INODES_MAX);
}

#[test]
fn of_what_does_not_fit_the_journal_a_copy_is_made() {
    let world = World::new();
    let mut store = published(&world, 1);
    fill_journal(&store);
    a_tick();
    assert!(!link(&store, &content(1)), "the links would look like foreign writes");
    store.wait_for_deletions(&go());
    assert_eq!(doubt(&mut store), None);
    assert!(publish_next(&mut store, &content(1), &content(2)));
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn what_does_not_fit_the_journal_is_not_written_into_a_spare_of_links() {
    let world = World::new();
    let mut store = published(&world, 1);
    assert!(link(&store, &content(1)));
    fill_journal(&store);
    a_tick();
    assert!(!publish_next(&mut store, &content(1), &content(2)));
    world.assert_serves(&content(2));
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn what_does_not_fit_the_journal_is_not_moved() {
    let world = World::new();
    let mut store = open(&world);
    // A change at the top creates no directory, and the changed file is linked.
    let content = |content| tree(&[("changed", Kind::File, content), ("kept/y", Kind::File, "y")]);
    publish(&mut store, &content("1"));
    assert!(link(&store, &content("1")));
    assert!(publish_next(&mut store, &content("1"), &content("2")));
    assert_eq!(reap(&mut store), 1);
    fill_journal(&store); // it has the files of the current one, but not the directory `kept` of the retired one
    a_tick();
    assert!(!carry_forward(&store, &content("1"), &content("2")));
    store.wait_for_deletions(&go());
    assert_eq!(doubt(&mut store), None);
}

#[test]
fn a_copy_that_somebody_else_changed_is_not_published() {
    let first = varied("1");
    let second = varied("2");
    let blobs = Blobs::of(&[&first, &second]);
    let delta = crate::payload::testing::delta(&first, &second, rules()).unwrap();
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("nothing", |_| {}),
        ("a name that was added", |tree| fs_err::write(tree.join("bin/new"), "").unwrap()),
        ("a file that was replaced", |tree| {
            fs_err::write(tree.join("new"), "!").unwrap();
            fs_err::rename(tree.join("new"), tree.join("bin/run")).unwrap();
        }),
        ("a mode of a directory", |tree| {
            fs_err::set_permissions(tree.join("bin"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
                .unwrap();
        }),
        ("one from an earlier process", |_| {}),
    ];
    for (what, change) in changes {
        let world = World::new();
        let open = || Store::open(Options { spare: Spare::Copy, ..world.options() }).unwrap().0;
        let mut store = open();
        publish(&mut store, &first);
        store.spare_task().unwrap().copy(&of(&first), &blobs, &go()).unwrap();
        super::recycle::a_tick();
        change(&world.at("..treeswap/spare/tree"));
        if what.contains("earlier") {
            drop(store);
            store = open();
        }
        let staged = store.stage_delta(&delta, "all", &blobs, &go()).unwrap();
        assert_eq!(staged.is_some(), what == "nothing", "{what}");
        assert!(!store.take_spare_dropped(), "{what}: not for room");
    }
}

#[test]
fn a_write_into_a_file_of_a_copy_is_found_by_the_first_scrub() {
    let world = World::new();
    let mut store = Store::open(Options { spare: Spare::Copy, ..world.options() }).unwrap().0;
    let first = varied("1");
    let second = varied("2");
    let blobs = Blobs::of(&[&first, &second]);
    publish(&mut store, &first);
    store.spare_task().unwrap().copy(&of(&first), &blobs, &go()).unwrap();
    super::recycle::a_tick();
    let kept = world.at("..treeswap/spare/tree/bin/run");
    fs_err::write(&kept, fs_err::read(&kept).unwrap().to_ascii_uppercase()).unwrap();
    let delta = crate::payload::testing::delta(&first, &second, rules()).unwrap();
    let staged =
        store.stage_delta(&delta, "all", &blobs, &go()).unwrap().expect("only directories are looked at");
    store.publish(staged, &clock::now()).unwrap();
    assert!(super::share::doubt(&mut store).is_some_and(|why| why.contains("bin/run")));
}

/// A store whose spare has no stamps, so that a foreign write to it goes unnoticed.
fn unstamped(world: &World) -> Store {
    let options = Options { spare: Spare::Copy, group_write: true, ..world.options() };
    Store::open(options).unwrap().0
}

/// A volume's fsGroup opens all directories to the group at each mount.
#[test]
fn nobody_else_can_change_a_spare_before_it_is_published() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    drop(unstamped(&world));
    let slot = world.at("..treeswap/spare");
    let mode = || fs_err::metadata(&slot).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o700);
    set_mode(&slot, 0o2775);
    drop(unstamped(&world));
    assert_eq!(mode(), 0o700);
}

/// Where the group may write, and where there are more levels of directories than stamps can tell about.
#[test]
fn a_copy_without_stamps_is_not_used_by_the_next_process() {
    let deep = "d/".repeat(70) + "kept";
    for (group_write, path) in [(true, "kept"), (false, &*deep)] {
        let world = World::new();
        let open = || Store::open(Options { spare: Spare::Copy, group_write, ..world.options() }).unwrap().0;
        let content = |text| tree(&[("changed", Kind::File, text), (path, Kind::File, "ours")]);
        let (first, second) = (content("1"), content("2"));
        let mut store = open();
        publish(&mut store, &first);
        store.spare_task().unwrap().copy(&of(&first), &Blobs::of(&[&first]), &go()).unwrap();
        assert!(store.spare_bytes() > 0 && !store.spare.state.is_ready(), "{path}: it has no stamps");
        drop(store);
        fs_err::write(world.at("..treeswap/spare/tree").join(path), "theirs").unwrap();
        assert!(!publish_next(&mut open(), &first, &second), "{path}");
        assert_eq!(fs_err::read(world.at("..data").join(path)).unwrap(), b"ours");
    }
}

#[test]
fn a_preparation_ends_before_the_slot_is_opened_again_and_none_begins_in_the_old_one() {
    let world = World::new();
    let mut store = published(&world, 2);
    let task = store.spare_task().unwrap();
    let begun = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let prepares = scope.spawn(|| {
            task.make(&go(), |cancel| {
                begun.wait();
                if is_cancelled_soon(cancel) { Err(Error::Cancelled) } else { Ok(None) }
            })
        });
        begun.wait();
        fs_err::remove_file(world.at("..treeswap/lock")).unwrap();
        store.repair(&clock::now()).unwrap();
        let made = prepares.join().unwrap();
        assert!(matches!(made, Err(Error::Cancelled)), "{made:?}");
    });
    let current = content(2);
    store.spare_task().unwrap().copy(&of(&current), &Blobs::of(&[&current]), &go()).unwrap();
    assert!(matches!(task.link(&go()), Err(Error::Cancelled)), "the slot is another one's now");
    assert!(publish_next(&mut store, &content(2), &content(3)), "the new spare is untouched");
}

/// Two threads that delete the same tree are in each other's way.
#[test]
fn what_is_in_a_slot_that_is_closed_is_deleted_by_the_store_that_is_opened_next() {
    let world = World::new();
    let mut store = published(&world, 2);
    let task = store.spare_task().unwrap();
    let begun = std::sync::Barrier::new(2);
    let made = std::thread::scope(|scope| {
        let prepares = scope.spawn(|| {
            task.make(&go(), |cancel| {
                let made = task.make_links(cancel);
                begun.wait();
                assert!(is_cancelled_soon(cancel));
                made
            })
        });
        begun.wait();
        store.spare.close();
        prepares.join().unwrap()
    });
    assert!(matches!(made, Err(Error::Cancelled)), "{made:?}");
    let tree = world.at("..treeswap/spare/tree");
    assert!(tree.exists(), "the old store deletes it");
    // Its trash is at work when the next store is opened.
    let left = world.at("..treeswap/trash/left");
    fs_err::create_dir(&left).unwrap();
    for file in 0..20_000 {
        fs_err::write(left.join(file.to_string()), "").unwrap();
    }
    let old = Arc::clone(&store.trash);
    old.sweep().unwrap();
    fs_err::remove_file(world.at("..treeswap/lock")).unwrap();
    store.repair(&clock::now()).unwrap();
    let cancelled = go();
    cancelled.cancel();
    assert!(old.wait(&cancelled), "both trashes delete");
    drop(old);
    assert!(!tree.exists());
    store.wait_for_deletions(&go());
    assert_eq!(store.trash.failures(), [""; 0]);
    assert_eq!(fs_err::read_dir(world.at("..treeswap/trash")).unwrap().count(), 0);
}

#[test]
fn a_name_that_somebody_else_put_into_a_spare_is_no_fault_of_the_commit() {
    let world = World::new();
    let mut store = unstamped(&world);
    let (first, second) = (files("a", "1"), files("ab", "1"));
    let blobs = Blobs::of(&[&first, &second]);
    publish(&mut store, &first);
    store.spare_task().unwrap().copy(&of(&first), &blobs, &go()).unwrap();
    fs_err::write(world.at("..treeswap/spare/tree/b"), "theirs").unwrap();
    let change = delta(&first, &second, rules()).unwrap();
    assert!(store.stage_delta(&change, "all", &blobs, &go()).unwrap().is_none());
    publish(&mut store, &second);
    assert_eq!(fs_err::read(world.at("..data/b")).unwrap(), b"1");
    store.wait_for_deletions(&go());
    world.assert_tidy();
}
