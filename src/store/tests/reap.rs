//! Carries out retention on real directories, with real pins.

use super::*;
use crate::clock::Now;
use crate::fsx::walk::SeenLinks;
use crate::retention::{Extent, Reserved};
use crate::store::{Error, inspect};

fn after(seconds: u64) -> Now {
    later(&clock::now(), seconds)
}

/// Returns the time `seconds` after `than`. If `than` is before a retirement, that is too early to end a grace period
/// of `seconds`, however slow the machine is.
fn later(than: &Now, seconds: u64) -> Now {
    Now { boottime: than.boottime + Duration::from_secs(seconds), ..than.clone() }
}

fn reap(store: &mut Store, now: &Now) -> usize {
    let plan = store.plan(now);
    store.reap(&plan).len()
}

#[test]
fn a_retired_generation_goes_after_its_grace_period_in_one_rename() {
    let world = World::new();
    let mut store = world.with(&varied("1"));
    let old = world.at("..data").canonicalize().unwrap();
    let before = clock::now();
    publish(&mut store, &varied("2"));
    let watch = Watch::on(&world.root());
    assert_eq!(reap(&mut store, &later(&before, 29)), 0);
    assert_eq!(watch.events(), [""; 0]);
    assert!(old.exists());
    assert_eq!(reap(&mut store, &after(31)), 1);
    assert_eq!(watch.events(), ["MOVED_FROM|ISDIR ..G"]);
    store.wait_for_deletions(&go());
    world.assert_tidy();
    world.assert_serves(&varied("2"));
}

#[test]
fn a_grace_period_is_remembered_across_restarts() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let before = clock::now();
    publish(&mut store, &files("a", "2"));
    drop(store);
    let mut store = world.open();
    assert_eq!(reap(&mut store, &later(&before, 29)), 0);
    drop(store);
    let mut store = world.open();
    assert_eq!(reap(&mut store, &after(31)), 1);
}

#[test]
fn a_pin_holds_a_generation_past_its_grace_period_and_lets_go_when_closed() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let pin = Consumer::of(&world);
    publish(&mut store, &files("a", "2"));
    assert_eq!(reap(&mut store, &after(60)), 0);
    let plan = store.plan(&after(60));
    assert!(plan.decisions[1].reason.starts_with("pinned"), "{plan:?}");
    drop(pin);
    assert_eq!(reap(&mut store, &after(60)), 1);
}

#[test]
fn a_pin_survives_our_restart() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let pin = Consumer::of(&world);
    publish(&mut store, &files("a", "2"));
    drop(store);
    let mut store = world.open();
    assert_eq!(reap(&mut store, &after(60)), 0);
    drop(pin);
    assert_eq!(reap(&mut store, &after(60)), 1);
}

#[test]
fn a_pin_taken_after_the_plan_keeps_the_generation() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let dir = fsx::open_dir_at_path(&world.at("..data")).unwrap();
    publish(&mut store, &files("a", "2"));
    let plan = store.plan(&after(60));
    fsx::try_lock_shared(&dir).unwrap();
    assert_eq!(store.reap(&plan), []);
    assert_eq!(store.generations().len(), 2);
}

#[test]
fn max_pin_evicts_and_the_reader_keeps_its_open_files() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let pin = Consumer::of(&world);
    let open = fsx::read_file(&pin.0, "a", 9).unwrap();
    publish(&mut store, &files("a", "2"));
    let plan = store.plan(&after(601));
    assert!(plan.decisions[1].evicts, "{plan:?}");
    assert_eq!(store.reap(&plan).len(), 1);
    assert_eq!(open.unwrap(), b"1");
}

#[test]
fn the_number_of_generations_evicts_nobody_for_one_that_is_staged_and_not_published() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    store.options.retention.max_generations = 2;
    let pin = Consumer::of(&world);
    publish(&mut store, &files("a", "2"));
    let next = files("a", "3");
    let stage = |store: &mut Store| store.stage(&of(&next), "all", &Blobs::of(&[&next]), &go()).unwrap();
    drop(stage(&mut store)); // a gate says no
    assert_eq!(store.generations().len(), 2);
    assert_eq!(fsx::read_file(&pin.0, "a", 9).unwrap().unwrap(), b"1");
    let staged = stage(&mut store);
    fs_err::write(world.at("b"), "somebody's").unwrap();
    let taken = files("b", "4");
    let collides = store.stage(&of(&taken), "all", &Blobs::of(&[&taken]), &go()).unwrap();
    assert!(matches!(store.publish(collides, &clock::now()), Err(Error::Collision { .. })));
    assert_eq!(store.generations().len(), 2);
    fs_err::remove_file(world.at("b")).unwrap();
    store.publish(staged, &clock::now()).unwrap();
    assert_eq!(store.generations().len(), 2, "no more than that beside the new one");
    world.assert_serves(&files("a", "3"));
}

#[test]
fn a_late_reader_cannot_pin_what_is_being_deleted() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let late = fsx::open_dir_at_path(&world.at("..data")).unwrap();
    publish(&mut store, &files("a", "2"));
    reap(&mut store, &after(31));
    store.wait_for_deletions(&go());
    let stat = rustix::fs::fstat(&late).unwrap();
    let current = rustix::fs::stat(world.at("..data")).unwrap();
    assert_ne!(
        (stat.st_dev, stat.st_ino),
        (current.st_dev, current.st_ino),
        "the check that every pin makes"
    );
    assert!(fsx::list(&late).unwrap().is_empty());
}

#[test]
fn what_the_link_names_is_not_reaped_whatever_the_plan_says() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let first = store.current().unwrap().name.clone();
    publish(&mut store, &files("a", "2"));
    let plan = store.plan(&after(31));
    fs_err::remove_file(world.at("..data")).unwrap();
    std::os::unix::fs::symlink(first.as_str(), world.at("..data")).unwrap();
    assert_eq!(store.reap(&plan), []);
    assert!(world.at(first.as_str()).exists());
}

#[test]
fn a_generation_replaced_by_a_link_is_not_followed() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let first = store.current().unwrap().name.clone();
    publish(&mut store, &files("a", "2"));
    let victim = world.dir.path().join("victim");
    fs_err::create_dir(&victim).unwrap();
    fs_err::write(victim.join("file"), "x").unwrap();
    fs_err::remove_dir_all(world.at(first.as_str())).unwrap();
    std::os::unix::fs::symlink(&victim, world.at(first.as_str())).unwrap();
    reap(&mut store, &after(31));
    store.repair(&clock::now()).unwrap();
    store.wait_for_deletions(&go());
    assert_eq!(fs_err::read_to_string(victim.join("file")).unwrap(), "x");
    world.assert_serves(&files("a", "2"));
}

#[test]
fn at_most_max_generations_are_kept_counting_the_one_to_be_written() {
    let world = World::new();
    let mut store = world.with(&files("a", "0"));
    let pin = Consumer::of(&world);
    for n in 1..10 {
        publish(&mut store, &files("a", &n.to_string()));
        assert!(store.generations().len() <= 5, "{n}");
    }
    assert_eq!(store.generations().len(), 5);
    let pinned = store.plan(&clock::now()).decisions.iter().filter(|decision| decision.pinned).count();
    assert_eq!(pinned, 1, "whoever reads goes last");
    drop(pin);
}

#[test]
fn a_ceiling_on_bytes_is_kept_before_the_first_byte_is_written() {
    let world = World::new();
    let block = fsx::space(fsx::open_dir_at_path(world.dir.path()).unwrap()).unwrap().block;
    let mut options = world.options();
    let ceiling = 250 + 4 * block; // a block for a file, and one for the directory
    options.retention.max_bytes = Some(ceiling);
    let (mut store, _) = Store::open(options).unwrap();
    for n in 0..5 {
        publish(&mut store, &files("a", &n.to_string().repeat(100)));
        assert!(store.room().used_bytes <= ceiling, "{:?}", store.room());
    }
    let big = files("ab", &"x".repeat(80));
    let error = store.stage(&of(&big), "all", &Blobs::of(&[&big]), &go()).unwrap_err();
    assert!(matches!(error, Error::OverCeiling { .. }), "{error}");
    assert!(!error.hints().is_empty());
    assert_eq!(store.generations().len(), 2, "nothing was reaped in vain");
    world.assert_serves(&files("a", &"4".repeat(100)));
}

/// A file of three bytes takes a block, and so does a directory.
#[test]
fn a_ceiling_on_bytes_holds_for_what_small_files_take() {
    let world = World::new();
    let block = fsx::space(fsx::open_dir_at_path(world.dir.path()).unwrap()).unwrap().block;
    let mut options = world.options();
    let ceiling = 100 * block;
    options.retention.max_bytes = Some(ceiling);
    let (mut store, _) = Store::open(options).unwrap();
    for n in 0..4 {
        let small = |at: usize| (format!("d{}/f{at}", at % 4).into_bytes(), (Kind::File, vec![n; 3]));
        publish(&mut store, &(0..40).map(small).collect());
        let mut seen = SeenLinks::default();
        let mut taken = 0;
        for record in store.generations() {
            taken += store.handles.measure(&record.name, &mut seen).frees.0;
        }
        let used = store.room().used_bytes;
        assert!(taken <= used && used <= ceiling, "{taken} of {used} of {ceiling}");
        let looked = inspect::inspect(&world.root()).unwrap();
        assert_eq!(looked.generations.iter().filter_map(|one| one.disk_bytes).sum::<u64>(), used);
    }
    assert_eq!(store.generations().len(), 2, "as many as fit");
}

#[test]
fn a_tree_that_the_file_system_has_no_room_for_is_refused_and_nobody_evicted() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let pin = Consumer::of(&world);
    publish(&mut store, &files("a", "2"));
    let mut huge = of(&files("a", "3"));
    huge.bytes = 1 << 60;
    let error = store.stage(&huge, "all", &Blobs::default(), &go()).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    assert!(!error.is_transient() && !error.hints().is_empty());
    assert_eq!(store.generations().len(), 2, "the pinned one stays");
    world.assert_serves(&files("a", "2"));
    drop(pin);
}

#[test]
fn a_tree_that_can_have_no_room_ends_no_grace_period() {
    let world = World::new();
    // A ceiling that one more generation exceeds must make room, too.
    let retention = retention::Options { max_generations: 3, ..world.options().retention };
    let (mut store, _) = Store::open(Options { retention, ..world.options() }).unwrap();
    for n in 0..3 {
        publish(&mut store, &files("a", &n.to_string()));
    }
    let before: Vec<Name> = store.generations().iter().map(|record| record.name.clone()).collect();
    let mut huge = of(&files("a", "3"));
    huge.bytes = 1 << 60;
    let error = store.stage(&huge, "all", &Blobs::default(), &go()).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    let after: Vec<Name> = store.generations().iter().map(|record| record.name.clone()).collect();
    assert_eq!(after, before, "reaped for nothing");
    assert!(before.iter().all(|name| world.at(name.as_str()).join("a").exists()));
}

/// What two retired generations share, and the current one has not any more, is on the disk until both are gone.
#[test]
fn room_is_made_of_what_retired_generations_share_with_each_other() {
    let world = World::new();
    let mut store = super::share::open(&world);
    let content = |large: &str, small| {
        let large = large.repeat(20_000);
        tree(&[("large", Kind::File, &*large), ("small", Kind::File, small)])
    };
    let trees = [content("a", "1"), content("a", "2"), content("b", "3")];
    publish(&mut store, &trees[0]);
    for pair in trees.windows(2) {
        assert!(super::share::link(&store, &pair[0]));
        assert!(super::recycle::publish_next(&mut store, &pair[0], &pair[1]));
    }
    let names: Vec<Name> = store.generations().iter().map(|record| record.name.clone()).collect();
    let large = fs_err::metadata(world.at(names[1].as_str()).join("large")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&large), 2);
    let bytes = std::os::unix::fs::MetadataExt::blocks(&large) * 512;
    // On tmpfs both names of the shared file take an inode.
    let inodes = 3 + u64::from(rustix::fs::fstatfs(&store.handles.root).unwrap().f_type == fsx::TMPFS);
    let reaped = |bytes, inodes| {
        let plan = store.plan_for_room(Extent { bytes, inodes }, Reserved::default(), &clock::now());
        plan.reaped().map(|decision| decision.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(reaped(1, 0), names[2..], "the small file of the oldest one is enough");
    assert_eq!(reaped(bytes, inodes), names[1..]);
    assert_eq!(reaped(bytes, inodes + 1), [], "each of the three files is freed once");
    let pin = Consumer(fsx::open_dir_at_path(&world.at(names[2].as_str())).unwrap());
    assert_eq!(fsx::try_lock_shared(&pin.0).unwrap(), fsx::Lock::Taken);
    assert_eq!(reaped(bytes, 1), [], "who reads the large file keeps it");
}

#[test]
fn a_trash_that_was_stopped_is_emptied_later() {
    let world = World::new();
    let store = world.open();
    let left = world.at("..treeswap/trash/left");
    for _ in 0..2 {
        fs_err::create_dir(&left).unwrap();
        store.trash.sweep().unwrap();
        let is_gone = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !left.exists()
        });
        assert!(is_gone);
        store.trash.stop();
    }
}

#[test]
fn a_hundred_publications_leave_descriptors_flat() {
    let world = World::new();
    let mut store = world.with(&varied("first"));
    let ours = || {
        let own = |link: PathBuf| link.starts_with(world.dir.path());
        let all = fs_err::read_dir("/proc/self/fd").unwrap();
        all.filter(|entry| fs_err::read_link(entry.as_ref().unwrap().path()).is_ok_and(own)).count()
    };
    publish(&mut store, &varied("second"));
    reap(&mut store, &after(31));
    store.wait_for_deletions(&go());
    let before = ours();
    for n in 0..100 {
        publish(&mut store, &varied(&n.to_string()));
        reap(&mut store, &after(31));
    }
    store.wait_for_deletions(&go());
    assert_eq!(ours(), before);
    world.assert_tidy();
}

#[test]
fn an_eviction_is_one_only_while_the_reader_has_its_pin() {
    for released in [false, true] {
        let world = World::new();
        let mut store = world.with(&files("a", "1"));
        let first = store.current().unwrap().name.clone();
        let mut pin = Some(Consumer::of(&world));
        publish(&mut store, &files("a", "2"));
        let plan = store.plan(&after(601));
        assert!(plan.decisions[1].evicts, "{plan:?}");
        if released {
            pin = None;
        }
        assert_eq!(store.reap(&plan), std::slice::from_ref(&first));
        let evicted: Vec<Name> = store.take_evicted().into_keys().collect();
        assert_eq!(evicted, if released { vec![] } else { vec![first] });
        assert!(store.take_evicted().is_empty(), "each is said once");
        drop(pin);
    }
}

#[test]
fn a_generation_that_may_be_pinned_is_not_reaped_before_max_pin() {
    let world = World::new();
    unprivileged(&world, || {
        let mut store = world.with(&files("a", "1"));
        let old = world.at("..data").canonicalize().unwrap();
        let pin = Consumer::of(&world);
        publish(&mut store, &files("a", "2"));
        set_mode(&old, 0o000);
        assert_eq!(reap(&mut store, &after(60)), 0, "a reader was in it before");
        assert_eq!(reap(&mut store, &after(601)), 1);
        store.wait_for_deletions(&go());
        world.assert_tidy();
        drop(pin);
    });
}

/// A gate, a hook or a consumer of our user can take the write permission away that a move to another parent needs.
#[test]
fn a_directory_that_its_owner_may_not_write_is_published_reaped_and_discarded() {
    let world = World::new();
    unprivileged(&world, || {
        let mut store = world.open();
        let first = files("a", "1");
        let blobs = Blobs::of(&[&first]);
        let staged = store.stage(&of(&first), "all", &blobs, &go()).unwrap();
        set_mode(&staged.path(), 0o555);
        store.publish(staged, &clock::now()).unwrap();
        world.assert_serves(&first);
        let old = world.at("..data").canonicalize().unwrap();
        publish(&mut store, &files("a", "2"));
        set_mode(&old, 0o555);
        assert_eq!(reap(&mut store, &after(60)), 1);
        let staged = store.stage(&of(&first), "all", &blobs, &go()).unwrap();
        set_mode(&staged.path(), 0o555);
        drop(staged);
        store.wait_for_deletions(&go());
        world.assert_tidy();
        drop(store);
        let left = world.at("..treeswap/staging/generation-1-1");
        fs_err::create_dir(&left).unwrap();
        set_mode(&left, 0o555);
        let store = world.open();
        store.wait_for_deletions(&go());
        world.assert_tidy();
        world.assert_serves(&files("a", "2"));
    });
}

/// Every reader may lock that directory, even through a read-only mount.
#[test]
fn a_reader_that_holds_a_lock_while_a_writer_starts_does_not_switch_pins_off() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    let staging = fsx::open_dir_at_path(&world.at("..treeswap/staging")).unwrap();
    assert_eq!(fsx::try_lock(&staging).unwrap(), fsx::Lock::Taken);
    assert!(world.open().probes().pins);
    fsx::unlock(&staging).unwrap();
}
