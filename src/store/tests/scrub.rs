//! Scrubs detect foreign writes to the current generation, and nothing else.

use std::os::fd::AsRawFd as _;

use super::recycle::{CONTENT, NAMES, a_tick, publish_next, reap, some};
use super::*;
use crate::store::scrub::KnownStamps;

/// Runs a scrub and returns why the generation is in doubt, if it is.
fn scrub(store: &mut Store) -> Option<String> {
    let scrubbed = store.scrub().expect("the file system's times are the kernel's").run(&go()).unwrap();
    store.scrubbed(scrubbed).expect("it is current").err()
}

#[test]
fn where_nothing_can_be_detected_whoever_wants_to_share_files_is_told() {
    let world = World::new();
    let store = world.open();
    let warning = |spare, group_write, is_detected: bool| {
        let options = Options { spare, group_write, ..world.options() };
        KnownStamps::new(&options, &store.handles.staging, !is_detected).warning(&options)
    };
    for spare in [Spare::Link, Spare::Recycle] {
        assert!(warning(spare, false, false).is_some_and(|line| line.contains("each spare is a copy")));
        assert_eq!(warning(spare, false, true), None);
        assert_eq!(warning(spare, true, false), None, "the file system is not the reason");
    }
    assert_eq!(warning(Spare::Copy, false, false), None);
}

#[test]
fn every_change_by_others_is_in_doubt_and_damage_is_published_afresh() {
    // Neither reads otherwise than before.
    let harmless = ["another link to it", "its owner"];
    for (what, act) in NAMES.iter().chain(CONTENT) {
        let world = World::new();
        let mut store = world.with(&some("1"));
        a_tick();
        assert_eq!(scrub(&mut store), None, "nothing was changed");
        a_tick();
        act(&world.at("..data").canonicalize().unwrap());
        let doubt = scrub(&mut store).unwrap_or_else(|| panic!("{what}: not seen"));
        assert!(doubt.ends_with("was changed by another process"), "{what}: {doubt}");
        let differences = store.verify(&of(&some("1")), &go()).unwrap();
        assert_eq!(differences.is_empty(), harmless.contains(what), "{what}: {differences:?}");
        if !differences.is_empty() {
            assert!(scrub(&mut store).is_some(), "{what}: it stays in doubt until it is replaced");
            publish(&mut store, &some("1"));
            world.assert_serves(&some("1"));
        }
        a_tick();
        assert_eq!(scrub(&mut store), None, "{what}: replaced, or compared and found right");
    }
}

#[test]
fn what_an_earlier_process_wrote_is_compared_once_and_never_used_again() {
    let world = World::new();
    let options = || Options { spare: Spare::Recycle, ..world.options() };
    drop(world.with(&some("1")));
    let mut store = Store::open(options()).unwrap().0;
    assert!(scrub(&mut store).is_some(), "its timestamps are not known");
    assert_eq!(store.verify(&of(&some("1")), &go()).unwrap(), [""; 0]);
    assert_eq!(scrub(&mut store), None);
    publish(&mut store, &some("2"));
    let now = clock::now();
    let later = clock::Now { boottime: now.boottime + Duration::from_secs(31), ..now };
    let plan = store.plan(&later);
    assert_eq!(store.reap(&plan).len(), 1);
    assert_eq!(store.waits_for_recycling(), None, "its files' owner and mode are the earlier process's");
}

#[test]
fn a_scrub_of_what_is_no_longer_current_says_nothing() {
    let world = World::new();
    let mut store = world.with(&some("1"));
    a_tick();
    let task = store.scrub().unwrap();
    fs_err::write(world.at("..data/kept/y"), "other").unwrap();
    let scrubbed = task.run(&go()).unwrap();
    publish(&mut store, &some("2"));
    assert_eq!(store.scrubbed(scrubbed), None);
    assert_eq!(scrub(&mut store), None, "what is current now is not affected");
}

#[test]
fn a_scrub_of_what_shares_files_with_the_current_generation_is_about_that_one() {
    for is_reaped in [false, true] {
        let world = World::new();
        let mut store = Store::open(Options { spare: Spare::Link, ..world.options() }).unwrap().0;
        publish(&mut store, &some("1"));
        assert!(store.spare_task().unwrap().link(&go()).unwrap());
        a_tick();
        let task = store.scrub().unwrap();
        fs_err::write(world.at("..data/kept/y"), "Y").unwrap(); // as long as before
        let scrubbed = task.run(&go()).unwrap();
        assert!(publish_next(&mut store, &some("1"), &some("2")));
        if is_reaped {
            assert_eq!(reap(&mut store), 1);
            assert_eq!(store.scrubbed(scrubbed), None, "we may have changed it ourselves");
            continue;
        }
        let doubt = store.scrubbed(scrubbed).expect("the file is shared").unwrap_err();
        assert!(doubt.contains("kept/y"), "{doubt}");
        assert_eq!(store.verify(&of(&some("2")), &go()).unwrap(), ["kept/y: has other content"]);
        // Another one without damage says nothing of the current one.
        publish(&mut store, &some("2"));
        let scrubbed = store.scrub().unwrap().run(&go()).unwrap();
        publish(&mut store, &some("3"));
        assert_eq!(store.scrubbed(scrubbed), None);
    }
}

/// A shared memory map of a file, as another process may have it. It stays until the tests end.
struct Map(*mut u8);

#[expect(unsafe_code, reason = "memory maps have no safe form")]
impl Map {
    fn of(path: &Path) -> Self {
        let file = fs_err::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map, at an address that the kernel chooses.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 1, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    fn store(&self, byte: u8) {
        // SAFETY: the file has this byte, and nothing truncates it.
        unsafe { self.0.write_volatile(byte) }
    }
}

#[test]
fn what_a_program_stores_through_a_memory_map_after_a_comparison_is_seen() {
    let world = World::new();
    drop(world.with(&some("1")));
    let mut store = world.open();
    let place = fs_err::File::open(world.root()).unwrap();
    let is_tmpfs = rustix::fs::fstatfs(&place).unwrap().f_type == fsx::TMPFS;
    let map = Map::of(&world.at("..data/kept/y"));
    map.store(b'y'); // reads as before, and the page is dirty
    a_tick();
    assert_eq!(store.verify(&of(&some("1")), &go()).unwrap(), [""; 0]);
    assert_eq!(scrub(&mut store), None);
    a_tick();
    map.store(b'Y');
    let doubt = scrub(&mut store);
    if is_tmpfs {
        return assert_eq!(doubt, None, "docs/guides/reading.md says that no store moves the ctime here");
    }
    let doubt = doubt.expect("the page was clean");
    assert!(doubt.contains("kept/y"), "{doubt}");
}

#[test]
fn the_generations_own_mode_counts() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new();
    let mut store = world.with(&some("1"));
    let top = world.at("..data").canonicalize().unwrap();
    fs_err::set_permissions(&top, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(scrub(&mut store).unwrap(), "its mode was changed");
    assert_eq!(store.verify(&of(&some("1")), &go()).unwrap(), ["the generation itself: has mode 700"]);
}

#[test]
fn where_others_are_meant_to_write_nothing_is_scrubbed() {
    let world = World::new();
    assert!(world.open().scrub().is_none(), "nothing is published");
    let mut store = Store::open(Options { group_write: true, ..world.options() }).unwrap().0;
    publish(&mut store, &some("1"));
    assert!(store.scrub().is_none());
}

#[test]
fn a_deep_tree_is_in_no_doubt() {
    let world = World::new();
    let deep = |content| tree(&[(&*format!("{}x", "d/".repeat(127)), Kind::File, content)]);
    let mut store = Store::open(Options { spare: Spare::Link, ..world.options() }).unwrap().0;
    publish(&mut store, &deep("1"));
    a_tick();
    assert_eq!(scrub(&mut store), None);
    a_tick();
    fs_err::write(world.at("..data").join("d/".repeat(127)).join("x"), "2").unwrap();
    assert!(scrub(&mut store).is_some());
}
