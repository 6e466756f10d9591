//! Publications, as readers see them.

use super::*;
use crate::payload::{BlobError, BlobReader, BlobSource};

#[test]
fn a_first_publication_serves_the_tree_through_links() {
    let world = World::new();
    let first = varied("1");
    let store = world.with(&first);
    world.assert_serves(&first);
    world.assert_tidy();
    assert_eq!(store.generations().len(), 1);
    assert!(store.is_trusted(&clock::now()));
}

#[test]
fn an_empty_tree_is_published_as_well() {
    let world = World::new();
    world.with(&Tree::new());
    world.assert_serves(&Tree::new());
}

#[test]
fn a_first_publication_is_one_rename_onto_the_link() {
    let world = World::new();
    let mut store = world.open();
    let watch = Watch::on(&world.root());
    publish(&mut store, &files("ab", "1"));
    assert_eq!(
        watch.events(),
        [
            "MOVED_TO|ISDIR ..G",
            "CREATE a",
            "CREATE b",
            "CREATE ..data_tmp",
            "MOVED_FROM ..data_tmp",
            "MOVED_TO ..data",
            "MOVED_TO a",
            "MOVED_TO b"
        ]
    );
}

#[test]
fn an_update_of_the_same_names_causes_four_events() {
    let world = World::new();
    let mut store = world.with(&files("ab", "1"));
    let watch = Watch::on(&world.root());
    publish(&mut store, &files("ab", "2"));
    assert_eq!(
        watch.events(),
        ["MOVED_TO|ISDIR ..G", "CREATE ..data_tmp", "MOVED_FROM ..data_tmp", "MOVED_TO ..data"]
    );
}

#[test]
fn names_added_and_removed_are_in_place_when_the_link_moves() {
    let world = World::new();
    let mut store = world.with(&files("ab", "1"));
    let watch = Watch::on(&world.root());
    publish(&mut store, &files("bc", "2"));
    assert_eq!(
        watch.events(),
        [
            "MOVED_TO|ISDIR ..G",
            "CREATE c",
            "DELETE a",
            "CREATE ..data_tmp",
            "MOVED_FROM ..data_tmp",
            "MOVED_TO ..data",
            "MOVED_TO c"
        ]
    );
    world.assert_serves(&files("bc", "2"));
}

#[test]
fn a_file_that_becomes_a_directory_keeps_its_root_link() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let watch = Watch::on(&world.root());
    for next in [tree(&[("a/b", Kind::File, "2")]), files("a", "3")] {
        publish(&mut store, &next);
        world.assert_serves(&next);
        assert!(!watch.events().iter().any(|event| event.ends_with(" a")));
    }
}

#[test]
fn idle_cycles_cause_no_event() {
    let world = World::new();
    let mut store = world.with(&varied("1"));
    let root = Watch::on(&world.root());
    let private = Watch::on(&world.at("..treeswap"));
    for _ in 0..1000 {
        let found = store.repair(&clock::now()).unwrap();
        assert!(found.done.is_empty() && found.foreign.is_empty() && found.warnings.is_empty(), "{found:?}");
        let plan = store.plan(&clock::now());
        assert_eq!(store.reap(&plan), []);
    }
    assert_eq!(root.events(), [""; 0]);
    assert_eq!(private.events(), [""; 0]);
}

#[test]
fn going_back_to_an_old_tree_makes_a_new_name() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    publish(&mut store, &files("a", "2"));
    publish(&mut store, &files("a", "1"));
    let names: Vec<_> = store.generations().iter().map(|record| record.name.clone()).collect();
    assert_eq!(names.len(), 3);
    assert!(names.is_sorted_by(|a, b| a > b), "{names:?}");
    assert_eq!(store.current().unwrap().name, names[0]);
}

#[test]
fn a_published_generation_is_never_touched_again() {
    let world = World::new();
    let mut store = world.with(&varied("1"));
    let old = world.at("..data").canonicalize().unwrap();
    let look = || {
        use std::os::unix::fs::MetadataExt;
        let of = |path: &Path| {
            fs_err::symlink_metadata(path).map(|m| (m.ino(), m.mtime_nsec(), m.ctime_nsec())).unwrap()
        };
        let paths = ["app", "app/config.yaml", "bin/run", "latest", "vendored"];
        paths.map(|path| of(&old.join(path)))
    };
    let before = look();
    publish(&mut store, &varied("2"));
    publish(&mut store, &files("q", "3"));
    store.repair(&clock::now()).unwrap();
    assert_eq!(look(), before);
}

#[test]
fn a_name_taken_by_somebody_else_refuses_the_publication_and_touches_nothing() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    fs_err::write(world.at("b"), "mine").unwrap();
    let watch = Watch::on(&world.root());
    let next = files("abc", "2");
    let staged = store.stage(&of(&next), "all", &Blobs::of(&[&next]), &go()).unwrap();
    let error = store.publish(staged, &clock::now()).unwrap_err();
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert_eq!(watch.events(), [""; 0]);
    assert_eq!(fs_err::read_to_string(world.at("b")).unwrap(), "mine");
    fs_err::remove_file(world.at("b")).unwrap();
    world.assert_serves(&files("a", "1"));
    store.wait_for_deletions(&go());
    world.assert_tidy();
    publish(&mut store, &next);
    world.assert_serves(&next);
}

#[test]
fn what_stands_in_the_way_of_the_swap_takes_everything_back() {
    let world = World::new();
    let mut store = world.with(&files("ab", "1"));
    let next = files("bc", "2");
    let staged = store.stage(&of(&next), "all", &Blobs::of(&[&next]), &go()).unwrap();
    fs_err::remove_file(world.at("..data")).unwrap();
    fs_err::create_dir_all(world.at("..data/planted")).unwrap();
    store.publish(staged, &clock::now()).unwrap_err();
    world.assert_serves(&files("ab", "1"));
    assert_eq!(store.generations().len(), 1);
    publish(&mut store, &next);
    world.assert_serves(&next);
}

#[test]
fn a_failed_publication_is_taken_back_though_a_hook_that_was_told_of_it_has_pinned_it() {
    let world = World::new();
    let mut store = world.with(&files("ab", "1"));
    let next = files("bc", "2");
    let staged = store.stage(&of(&next), "all", &Blobs::of(&[&next]), &go()).unwrap();
    let mut pin = None;
    let failed = store.publish_and(staged, &clock::now(), &mut |_, at| {
        let dir = fsx::open_dir_at_path(at).unwrap();
        assert_eq!(fsx::try_lock_shared(&dir).unwrap(), fsx::Lock::Taken);
        pin = Some(dir);
        Err(crate::store::Error::Cancelled)
    });
    assert!(failed.is_err());
    world.assert_serves(&files("ab", "1"));
    assert_eq!(store.generations().len(), 1);
    assert!(store.wait_for_deletions(&go()));
    world.assert_tidy();
    fsx::unlock(pin.unwrap()).unwrap(); // closing is not enough: see `Consumer`
}

#[test]
fn staging_that_is_cancelled_leaves_nothing() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let next = varied("2");
    let stop = go();
    stop.cancel();
    let error = store.stage(&of(&next), "all", &Blobs::of(&[&next]), &stop).unwrap_err();
    assert!(matches!(error, crate::store::Error::Cancelled), "{error}");
    store.wait_for_deletions(&go());
    world.assert_tidy();
}

#[test]
fn a_blob_that_is_missing_leaves_what_is_published() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    store.stage(&of(&varied("2")), "all", &Blobs::default(), &go()).unwrap_err();
    store.wait_for_deletions(&go());
    world.assert_serves(&files("a", "1"));
    world.assert_tidy();
}

#[test]
fn names_of_any_bytes_get_root_links() {
    let world = World::new();
    let mut odd = tree(&[("-rf", Kind::File, "1"), ("a b\nc", Kind::File, "2")]);
    odd.insert(b"\xff\xfe".to_vec(), (Kind::File, b"4".to_vec()));
    world.with(&odd);
    for (name, (_, content)) in &odd {
        let path = world.root().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name));
        assert_eq!(&fs_err::read(path).unwrap(), content);
    }
}

#[test]
fn a_top_level_name_that_only_the_root_may_have_is_refused() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    for name in ["..data", "..treeswap", "...", "..2026_11_20_15_04_05.1"] {
        let next = tree(&[(name, Kind::File, "x")]);
        let staged = store.stage(&of(&next), "all", &Blobs::of(&[&next]), &go()).unwrap();
        let error = store.publish(staged, &clock::now()).unwrap_err();
        assert!(matches!(error, crate::store::Error::Collision { .. }), "{error}");
        world.assert_serves(&files("a", "1"));
    }
}

#[test]
fn what_was_synced_is_trusted_after_another_boot_and_the_rest_is_not() {
    let later = clock::Now { boot_id: "another".to_owned(), ..clock::now() };
    for (durability, trusted) in [(Durability::Syncfs, true), (Durability::None, false)] {
        let world = World::new();
        let (mut store, _) = Store::open(Options { durability, ..world.options() }).unwrap();
        publish(&mut store, &varied("1"));
        publish(&mut store, &varied("2"));
        world.assert_serves(&varied("2"));
        assert!(store.is_trusted(&clock::now()));
        assert_eq!(store.is_trusted(&later), trusted);
    }
}

#[test]
fn a_spare_makes_the_next_generation_from_a_delta() {
    let world = World::new();
    let (mut store, _) = Store::open(Options { spare: Spare::Copy, ..world.options() }).unwrap();
    let first = varied("1");
    let second = varied("2");
    let blobs = Blobs::of(&[&first, &second]);
    let delta = crate::payload::testing::delta(&first, &second, rules()).unwrap();
    publish(&mut store, &first);
    assert!(store.stage_delta(&delta, "all", &blobs, &go()).unwrap().is_none(), "no spare yet");
    store.spare_task().unwrap().copy(&of(&first), &blobs, &go()).unwrap();
    assert!(store.spare_task().is_none(), "one is ready");
    assert!(store.stage_delta(&delta, "other", &blobs, &go()).unwrap().is_none(), "another selection");
    let staged = store.stage_delta(&delta, "all", &blobs, &go()).unwrap().unwrap();
    store.publish(staged, &clock::now()).unwrap();
    world.assert_serves(&second);
    assert_eq!(store.verify(&of(&second), &go()).unwrap(), [""; 0]);
    assert!(store.stage_delta(&delta, "all", &blobs, &go()).unwrap().is_none(), "it was taken");
    assert!(store.spare_task().is_some());
}

#[test]
fn no_spare_is_made_of_a_payload_that_is_not_the_current_generations() {
    let world = World::new();
    let (mut store, _) = Store::open(Options { spare: Spare::Copy, ..world.options() }).unwrap();
    let all = varied("1");
    publish(&mut store, &all);
    let part = files("a", "1");
    let made = store.spare_task().unwrap().copy(&of(&part), &Blobs::of(&[&part]), &go());
    assert!(made.unwrap_err().to_string().starts_with("cannot make a spare of "));
    assert!(store.spare_task().is_some(), "none is ready");
}

#[test]
fn a_spare_is_made_anew_after_a_restart() {
    let world = World::new();
    let first = varied("1");
    let second = varied("2");
    let blobs = Blobs::of(&[&first, &second]);
    let delta = crate::payload::testing::delta(&first, &second, rules()).unwrap();
    // In git-sync's layout, where no stamps could tell that somebody changed it meanwhile.
    let layout = Layout::GitSync { link: world.at("live") };
    let options = Options { spare: Spare::Copy, layout, ..world.options() };
    let mut store = Store::open(options.clone()).unwrap().0;
    publish(&mut store, &first);
    store.spare_task().unwrap().copy(&of(&first), &blobs, &go()).unwrap();
    drop(store);
    let mut store = Store::open(options).unwrap().0;
    assert!(store.stage_delta(&delta, "all", &blobs, &go()).unwrap().is_none());
    store.spare_task().expect("none is ready").copy(&of(&first), &blobs, &go()).unwrap();
    assert!(store.spare_task().is_none(), "made anew");
    let staged = store.stage_delta(&delta, "all", &blobs, &go()).unwrap().unwrap();
    store.publish(staged, &clock::now()).unwrap();
    assert_eq!(store.verify(&of(&second), &go()).unwrap(), [""; 0]);
}

#[test]
fn a_directory_dated_after_the_clock_that_is_no_time_hangs_nobody() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let planted = "..9999_99_99_99_99_99.9999999999";
    fs_err::create_dir(world.at(planted)).unwrap();
    store.repair(&clock::now()).unwrap();
    let name = publish(&mut store, &files("a", "2")).current.name;
    assert!(name.as_str() < planted);
    let next = publish(&mut store, &files("a", "3")).current.name;
    assert!(next > name);
    world.assert_serves(&files("a", "3"));
}

/// Blobs that can only be read after the preparation that reads them was cancelled.
struct Stuck<'a> {
    blobs: &'a Blobs,
    asked: &'a std::sync::Barrier,
    stop: &'a CancellationToken,
}

impl BlobSource for Stuck<'_> {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        self.asked.wait();
        while !self.stop.is_cancelled() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100)); // the next preparation finds the place taken
        self.blobs.reader()
    }
}

#[test]
fn a_spare_is_made_although_the_one_for_the_generation_before_is_still_giving_way() {
    let world = World::new();
    let (mut store, _) = Store::open(Options { spare: Spare::Copy, ..world.options() }).unwrap();
    let first = files("a", "1");
    let second = files("a", "2");
    let blobs = Blobs::of(&[&first, &second]);
    publish(&mut store, &first);
    let old = store.spare_task().unwrap();
    publish(&mut store, &second);
    let new = store.spare_task().unwrap();
    let stop = go();
    let asked = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let stuck = Stuck { blobs: &blobs, asked: &asked, stop: &stop };
        let first = &first;
        let stop = &stop;
        let gives_way = scope.spawn(move || old.copy(&of(first), &stuck, stop));
        asked.wait();
        stop.cancel();
        new.copy(&of(&second), &blobs, &go()).unwrap();
        assert!(matches!(gives_way.join().unwrap(), Err(crate::store::Error::Cancelled)));
    });
    assert!(store.spare_task().is_none(), "one is ready");
}

/// Blobs that are slow to read.
struct Slow<'a> {
    blobs: &'a Blobs,
    asked: &'a std::sync::Barrier,
}

impl BlobSource for Slow<'_> {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        self.asked.wait();
        std::thread::sleep(Duration::from_millis(200));
        self.blobs.reader()
    }
}

#[test]
fn a_spare_in_work_gives_way_before_a_grace_period_does() {
    let world = World::new();
    let trees = [files("a", "1"), files("a", "2"), files("a", "3")];
    let options = Options { spare: Spare::Copy, ..world.options() };
    let (mut store, _) = Store::open(options).unwrap();
    publish(&mut store, &trees[0]);
    publish(&mut store, &trees[1]);
    let task = store.spare_task().unwrap();
    let one = store.room().used_bytes / 2;
    store.options.retention.max_bytes = Some(3 * one); // no room for a spare, as it turns out
    let blobs = Blobs::of(&trees.iter().collect::<Vec<_>>());
    let asked = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let slow = Slow { blobs: &blobs, asked: &asked };
        let current = &trees[1];
        let preparing = scope.spawn(move || task.copy(&of(current), &slow, &go()));
        asked.wait();
        let staged = store.stage(&of(&trees[2]), "all", &blobs, &go()).unwrap();
        store.publish(staged, &clock::now()).unwrap();
        let _ = preparing.join().unwrap(); // in time or not, it is no more
    });
    assert_eq!(store.generations().len(), 3, "nobody's grace period ended early");
    world.assert_serves(&trees[2]);
}
