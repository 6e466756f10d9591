//! What a crash, an operator or another container left in the root, and what recovery does about it.

mod cut_off;

use std::os::unix::fs::symlink;

use super::*;
use crate::configmap::apply::LedgerSet;
use crate::generation::DATA_LINK;
use crate::store::names::LINK_TMP;
use crate::store::state::Loaded;

fn found_nothing(found: &Recovered) -> bool {
    found.done.is_empty() && found.foreign.is_empty() && found.warnings.is_empty()
}

#[test]
fn a_second_start_finds_everything_and_does_nothing() {
    let world = World::new();
    let mut store = world.with(&varied("1"));
    publish(&mut store, &varied("2"));
    let before = store.generations().to_vec();
    drop(store);
    let watch = Watch::on(&world.root());
    let (store, found) = world.recover();
    assert!(found_nothing(&found), "{found:?}");
    assert_eq!(watch.events(), [""; 0]);
    assert_eq!(store.generations(), before);
    assert!(store.is_trusted(&clock::now()));
}

#[test]
fn a_stale_temporary_link_is_removed() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    symlink("..2026_01_01_00_00_00.000000000", world.at(LINK_TMP)).unwrap();
    let (mut store, found) = world.recover();
    assert_eq!(found.done.len(), 1, "{found:?}");
    publish(&mut store, &files("a", "2"));
    world.assert_serves(&files("a", "2"));
}

#[test]
fn a_foreign_thing_under_the_temporary_name_is_moved_aside() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    fs_err::create_dir(world.at(LINK_TMP)).unwrap();
    fs_err::write(world.at("..data_tmp/precious"), "x").unwrap();
    store.repair(&clock::now()).unwrap();
    publish(&mut store, &files("a", "2"));
    world.assert_serves(&files("a", "2"));
    assert_eq!(fs_err::read_to_string(quarantined(&world).join("precious")).unwrap(), "x");
}

fn quarantined(world: &World) -> PathBuf {
    let mut all = fs_err::read_dir(world.at("..treeswap")).unwrap().map(|entry| entry.unwrap());
    all.find(|entry| entry.file_name().to_str().unwrap().starts_with("quarantine-")).unwrap().path()
}

#[test]
fn half_staged_directories_and_trash_are_removed() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    for dir in ["staging/half", "trash/gone-1-1", "spare/tree"] {
        fs_err::create_dir_all(world.at("..treeswap").join(dir).join("x/y")).unwrap();
        fs_err::write(world.at("..treeswap").join(dir).join("x/f"), "f").unwrap();
    }
    fs_err::write(world.at("..treeswap/tmp-state-1-7"), "{").unwrap();
    let (store, _) = world.recover();
    assert!(store.wait_for_deletions(&go()));
    world.assert_tidy();
    assert!(fs_err::read_dir(world.at("..treeswap/spare")).unwrap().next().is_none());
    world.assert_serves(&files("a", "1"));
}

#[test]
fn missing_and_obsolete_root_links_are_mended() {
    let world = World::new();
    let mut store = world.with(&files("abc", "1"));
    fs_err::remove_file(world.at("a")).unwrap();
    fs_err::remove_file(world.at("b")).unwrap();
    let generation = fs_err::read_link(world.at(DATA_LINK)).unwrap();
    symlink(generation.join("b"), world.at("b")).unwrap(); // as a publication cut off after its swap leaves it
    symlink("..data/gone", world.at("gone")).unwrap();
    symlink("..2001_01_01_00_00_00.1/early", world.at("early")).unwrap();
    let found = store.repair(&clock::now()).unwrap();
    let done = [
        "removed root links whose names the current generation does not have: \"early\", \"gone\"",
        "pointed root links to ..data: \"b\"",
        "made missing root links: \"a\"",
    ];
    let mut found = found.done;
    found[0] = found[0].replace("\"gone\", \"early\"", "\"early\", \"gone\""); // as the directory has them
    assert_eq!(found, done);
    world.assert_serves(&files("abc", "1"));
    assert!(found_nothing(&store.repair(&clock::now()).unwrap()));
}

#[test]
fn what_is_not_ours_is_reported_and_left_alone() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    fs_err::write(world.at("note"), "x").unwrap();
    fs_err::create_dir(world.at("mounted")).unwrap();
    symlink("/etc/hostname", world.at("host")).unwrap();
    symlink("..data/other", world.at("alias")).unwrap();
    symlink("../..data/dots", world.at("dots")).unwrap();
    fs_err::write(world.at("..touched"), "").unwrap();
    fs_err::remove_file(world.at("a")).unwrap();
    fs_err::write(world.at("a"), "in the way").unwrap();
    let watch = Watch::on(&world.root());
    let found = store.repair(&clock::now()).unwrap();
    assert_eq!(found.done, [""; 0]);
    assert_eq!((found.foreign.len(), found.warnings.len()), (6, 1), "{found:?}");
    let touched = "\"..touched\" is not treeswap's (of an earlier --touch-file or --error-file?)";
    assert!(found.foreign.iter().any(|line| line == touched), "{found:?}");
    assert_eq!(watch.events(), [""; 0]);
}

#[test]
fn a_link_that_was_removed_or_turned_is_put_back() {
    let world = World::new();
    let second = files("a", "2");
    let mut store = world.with(&files("a", "1"));
    let first = fs_err::read_link(world.at(DATA_LINK)).unwrap();
    publish(&mut store, &second);
    for target in [
        None,
        Some(first.to_str().unwrap()),
        Some("..2001_01_01_00_00_00.1"),
        Some(".."),
        Some("/etc"),
        Some("nowhere"),
    ] {
        fs_err::remove_file(world.at(DATA_LINK)).unwrap();
        if let Some(target) = target {
            symlink(target, world.at(DATA_LINK)).unwrap();
        }
        let found = store.repair(&clock::now()).unwrap();
        assert_eq!(found.done.len(), 1, "{target:?}: {found:?}");
        world.assert_serves(&second);
        // The same, found by a start.
        fs_err::remove_file(world.at(DATA_LINK)).unwrap();
        if let Some(target) = target {
            symlink(target, world.at(DATA_LINK)).unwrap();
        }
        drop(store);
        store = world.open();
        world.assert_serves(&second);
    }
    assert_eq!(store.generations().len(), 2);
}

#[test]
fn a_directory_or_file_in_the_place_of_the_link_is_moved_aside_unread() {
    let world = World::new();
    let first = files("a", "1");
    let mut store = world.with(&first);
    fs_err::remove_file(world.at(DATA_LINK)).unwrap();
    fs_err::create_dir(world.at(DATA_LINK)).unwrap();
    fs_err::write(world.at("..data/precious"), "x").unwrap();
    let watch = Watch::on(&world.root());
    store.repair(&clock::now()).unwrap();
    let events = watch.events();
    assert!(!events.iter().any(|event| event == "DELETE ..data"), "{events:?}");
    world.assert_serves(&first);
    let aside = quarantined(&world);
    assert_eq!(fs_err::read_to_string(aside.join("precious")).unwrap(), "x");
    fs_err::remove_dir_all(aside).unwrap();
    fs_err::remove_file(world.at(DATA_LINK)).unwrap();
    fs_err::write(world.at(DATA_LINK), "a file").unwrap();
    drop(store);
    world.open();
    world.assert_serves(&first);
    assert_eq!(fs_err::read_to_string(quarantined(&world)).unwrap(), "a file");
}

#[test]
fn nothing_that_an_odd_link_names_is_ever_touched() {
    let world = World::new();
    let victim = world.dir.path().join("victim");
    fs_err::create_dir_all(victim.join("sub")).unwrap();
    fs_err::write(victim.join("sub/file"), "x").unwrap();
    let mut store = world.with(&files("a", "1"));
    for target in ["../victim", victim.to_str().unwrap(), ".", "..treeswap"] {
        fs_err::remove_file(world.at(DATA_LINK)).unwrap();
        symlink(target, world.at(DATA_LINK)).unwrap();
        store.repair(&clock::now()).unwrap();
        publish(&mut store, &files("a", target));
        let plan = store.plan(&clock::now());
        store.reap(&plan);
        world.assert_serves(&files("a", target));
    }
    store.wait_for_deletions(&go());
    assert_eq!(fs_err::read_to_string(victim.join("sub/file")).unwrap(), "x");
}

#[test]
fn a_lost_or_damaged_state_file_costs_a_new_generation_and_no_reader() {
    for damage in [None, Some(""), Some("{\"version\":9}"), Some("\0\0\0\0")] {
        let world = World::new();
        let second = files("ab", "2");
        let mut store = world.with(&files("a", "1"));
        publish(&mut store, &second);
        drop(store);
        match damage {
            None => fs_err::remove_file(world.at("..treeswap/state")).unwrap(),
            Some(text) => fs_err::write(world.at("..treeswap/state"), text).unwrap(),
        }
        let (mut store, _) = world.recover();
        world.assert_serves(&second);
        let current = store.current().unwrap();
        assert!(!current.is_known() && !store.is_trusted(&clock::now()));
        assert_eq!((current.entries, current.bytes), (2, 2), "measured");
        let plan = store.plan(&clock::now());
        assert!(
            plan.decisions.iter().all(|decision| decision.keep),
            "a full grace period for the retired one"
        );
        publish(&mut store, &second);
        world.assert_serves(&second);
        assert!(store.is_trusted(&clock::now()));
    }
}

#[test]
fn a_directory_in_the_place_of_the_state_file_is_moved_aside() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    fs_err::remove_file(world.at("..treeswap/state")).unwrap();
    fs_err::create_dir_all(world.at("..treeswap/state/planted")).unwrap();
    let mut store = world.open();
    publish(&mut store, &files("a", "2"));
    world.assert_serves(&files("a", "2"));
    assert!(quarantined(&world).join("planted").is_dir());
}

#[test]
fn without_state_and_link_the_newest_generation_serves() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    publish(&mut store, &files("a", "2"));
    drop(store);
    fs_err::remove_file(world.at("..treeswap/state")).unwrap();
    fs_err::remove_file(world.at(DATA_LINK)).unwrap();
    world.open();
    world.assert_serves(&files("a", "2"));
}

#[test]
fn a_directory_that_a_kubelet_made_is_adopted() {
    let world = World::new();
    let made = world.at("..2026_01_01_00_00_00.123");
    fs_err::create_dir_all(&made).unwrap();
    fs_err::write(made.join("a"), "old").unwrap();
    symlink("..2026_01_01_00_00_00.123", world.at(DATA_LINK)).unwrap();
    symlink("..data/a", world.at("a")).unwrap();
    let (mut store, _) = world.recover();
    world.assert_serves(&files("a", "old"));
    publish(&mut store, &files("ab", "new"));
    world.assert_serves(&files("ab", "new"));
    assert!(made.exists(), "it has its grace period as well");
}

#[test]
fn a_generation_that_is_gone_is_forgotten() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let first = store.current().unwrap().name.clone();
    publish(&mut store, &files("a", "2"));
    fs_err::remove_dir_all(world.at(first.as_str())).unwrap();
    let found = store.repair(&clock::now()).unwrap();
    assert_eq!(found.done.len(), 1, "{found:?}");
    assert_eq!(store.generations().len(), 1);
}

#[test]
fn the_current_generation_removed_by_a_person_is_replaced_by_what_there_is() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    publish(&mut store, &files("ab", "2"));
    let current = store.current().unwrap().name.clone();
    fs_err::remove_dir_all(world.at(current.as_str())).unwrap();
    store.repair(&clock::now()).unwrap();
    world.assert_serves(&files("a", "1"));
    fs_err::remove_dir_all(world.at("..data").canonicalize().unwrap()).unwrap();
    let found = store.repair(&clock::now()).unwrap();
    assert!(store.current().is_none() && found.warnings.len() == 1, "{found:?}");
    publish(&mut store, &files("ab", "2"));
    world.assert_serves(&files("ab", "2"));
}

#[test]
fn our_own_directory_removed_under_us_is_made_again() {
    let world = World::new();
    let second = files("a", "2");
    let mut store = world.with(&files("a", "1"));
    publish(&mut store, &second);
    let before = store.generations().to_vec();
    fs_err::remove_dir_all(world.at("..treeswap")).unwrap();
    store.repair(&clock::now()).unwrap();
    assert_eq!(store.generations(), before, "what was on record stays on record");
    assert!(
        matches!(store.handles.load().unwrap(), Loaded::Known(state) if state == store.state),
        "on disk as well"
    );
    assert!(Store::open(world.options()).is_err(), "the new lock is held");
    publish(&mut store, &files("a", "3"));
    world.assert_serves(&files("a", "3"));
}

#[test]
fn what_was_removed_under_us_is_named() {
    for name in ["lock", "staging", "trash", "spare", "."] {
        let world = World::new();
        let mut store = world.with(&files("a", "1"));
        let at = world.at("..treeswap").join(name);
        fs_err::rename(at.canonicalize().unwrap(), world.dir.path().join("moved")).unwrap();
        let repaired = store.repair(&clock::now()).unwrap().done;
        let named = format!("..treeswap/{name} was removed, and is created again").replace("/. ", " ");
        assert!(repaired.contains(&named), "{name}: {repaired:?}");
    }
}

#[test]
fn a_root_made_again_under_us_is_taken_up_and_a_missing_one_is_an_error() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    fs_err::rename(world.root(), world.dir.path().join("moved")).unwrap();
    let error = store.repair(&clock::now()).unwrap_err();
    assert!(matches!(error, crate::store::Error::Replaced { .. }) && error.is_transient(), "{error}");
    fs_err::create_dir(world.root()).unwrap();
    store.repair(&clock::now()).unwrap();
    assert!(store.current().is_none());
    publish(&mut store, &files("a", "2"));
    world.assert_serves(&files("a", "2"));
}

#[test]
fn the_ledger_is_written_into_the_directory_that_is_there() {
    for what in ["..treeswap", "."] {
        let world = World::new();
        let mut store = world.with(&files("a", "1"));
        let ledger = store.ledger();
        fs_err::rename(world.at(what).canonicalize().unwrap(), world.dir.path().join("moved")).unwrap();
        fs_err::create_dir_all(world.root()).unwrap();
        store.repair(&clock::now()).unwrap();
        let mut ledgers = LedgerSet::default();
        ledgers.ledger("default", "ci");
        ledger.write(&ledgers).unwrap();
        assert!(world.at("..treeswap/ledger.json").exists(), "{what}");
        assert_eq!(store.ledger().read().unwrap(), (ledgers, None), "{what}");
    }
}

#[test]
fn the_ledger_of_another_writer_is_not_written() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    let ledger = store.ledger();
    fs_err::remove_dir_all(world.at("..treeswap")).unwrap();
    let other = world.open();
    let error = store.repair(&clock::now()).unwrap_err();
    assert!(matches!(error, crate::store::Error::Locked { .. }), "{error}");
    let mut ledgers = LedgerSet::default();
    ledgers.ledger("default", "ci");
    assert!(ledger.write(&ledgers).is_err());
    assert_eq!(other.ledger().read().unwrap(), (LedgerSet::default(), None));
}

#[test]
fn what_a_killed_process_tried_out_is_no_obstacle() {
    let world = World::new();
    drop(world.with(&files("a", "1")));
    // In a container every process may have the same pid, and counts its names from zero.
    let (prefix, serial) = fsx::unique("")
        .rsplit_once('-')
        .map(|(pid, serial)| (pid.to_owned(), serial.parse().unwrap()))
        .unwrap();
    for serial in (serial..).take(1_000) {
        let serial: u64 = serial;
        let probe = world.at(&format!("..treeswap/staging/probe-{prefix}-{serial}"));
        fs_err::create_dir(&probe).unwrap();
        fs_err::write(probe.join("one"), "").unwrap();
        fs_err::write(world.at(&format!("..treeswap/staging/time-{prefix}-{serial}")), "").unwrap();
    }
    let store = world.open();
    assert!(!store.probes.folds && store.stamps.can_detect_writes(), "tried out all the same");
    assert_eq!(store.probes.exchange, None, "no names are exchanged in this layout");
    store.wait_for_deletions(&go());
    world.assert_tidy();
}

#[test]
fn a_generation_that_another_boot_retired_has_its_grace_period_again() {
    let world = World::new();
    let mut store = world.with(&files("a", "1"));
    publish(&mut store, &files("a", "2"));
    // A machine that runs for years; this one may have run for longer than a grace period.
    let elsewhere = clock::Now {
        boottime: Duration::from_secs(100_000_000),
        boot_id: "another machine's".to_owned(),
        ..clock::now()
    };
    for record in store.state.generations.iter_mut().filter(|record| record.retired.is_some()) {
        record.retired = Some(crate::generation::Retired::at(&elsewhere));
    }
    store.save().unwrap();
    drop(store);
    let before = clock::now();
    let (store, _) = world.recover();
    let kept = |seconds, than: &clock::Now| {
        let now = clock::Now { boottime: than.boottime + Duration::from_secs(seconds), ..than.clone() };
        store.plan(&now).reaped().count() == 0
    };
    assert!(kept(29, &before), "{:?}", store.plan(&before));
    assert!(!kept(31, &clock::now()), "it begins once");
    let retired = store.generations()[1].retired.as_ref().unwrap();
    assert_eq!(retired.at, elsewhere.wall, "when it was retired is still known");
}

#[test]
fn a_current_generation_that_cannot_be_read_is_replaced_and_stops_no_start() {
    let world = World::new();
    let first = files("a", "1");
    unprivileged(&world, || {
        let mut store = world.with(&first);
        let top = world.at("..data").canonicalize().unwrap();
        set_mode(&top, 0o000);
        let scrubbed = store.scrub().expect("it is current").run(&go()).unwrap();
        let doubt = store.scrubbed(scrubbed).unwrap().unwrap_err();
        assert!(doubt.contains("Permission denied"), "{doubt}");
        let differences = store.verify(&of(&first), &go()).unwrap();
        assert!(differences[0].contains("Permission denied"), "{differences:?}");
        drop(store);
        let (mut store, found) = world.recover();
        assert!(found.warnings.iter().any(|line| line.contains("Permission denied")), "{found:?}");
        assert!(found.in_doubt && store.repair(&clock::now()).unwrap().in_doubt);
        // Its revision stays known, so that it can be published from the mirror while the remote is away.
        assert!(store.current().unwrap().is_known() && store.scrub().is_some());
        publish(&mut store, &first);
        world.assert_serves(&first);
        assert!(!store.repair(&clock::now()).unwrap().in_doubt);
    });
}
