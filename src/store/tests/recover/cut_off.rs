//! Publications that a crash cut off, before or after the swap.

use super::*;
use crate::store::layout::RootHandles;
use crate::store::state::State;

/// Writes the records as a store does.
fn save(world: &World, state: &State) {
    let handles = RootHandles::open(&world.options(), &mut Recovered::default()).unwrap();
    handles.save(state, fsx::Flush::Content).unwrap();
}

/// Saves records in which the generation that is current now is still being published.
fn as_if_publishing(world: &World, store: Store, before: State) {
    let new = store.current().unwrap().clone();
    drop(store);
    let mut state = before;
    state.publishing = Some(new.name.clone());
    state.put(new);
    save(world, &state);
}

/// Simulates a crash after a step of a publication by putting the root into the state that it leaves.
#[test]
fn a_publication_cut_off_before_its_swap_is_taken_back() {
    let world = World::new();
    let first = files("ab", "1");
    let store = world.with(&first);
    let mut state = store.state.clone();
    drop(store);
    let name = Name::new(clock::now().wall, &state.current);
    let mut record = state.generations[0].clone();
    record.name = name.clone();
    // After P2: a record without a directory.
    state.publishing = Some(name.clone());
    state.put(record);
    let check = || {
        let (store, found) = world.recover();
        world.assert_serves(&first);
        assert_eq!(store.generations().len(), 1, "{found:?}");
        store.wait_for_deletions(&go());
        world.assert_tidy();
        assert_eq!(world.names(), ["..G", "..data", "..treeswap", "a", "b"]);
    };
    save(&world, &state);
    check();
    // After P3: the directory; after P4: links changed; after P5: the temporary link.
    for step in 3..=5 {
        save(&world, &state);
        fs_err::create_dir(world.at(name.as_str())).unwrap();
        fs_err::write(world.at(name.as_str()).join("c"), "2").unwrap();
        if step >= 4 {
            symlink(Path::new(name.as_str()).join("c"), world.at("c")).unwrap();
            fs_err::remove_file(world.at("a")).unwrap();
        }
        if step >= 5 {
            symlink(name.as_str(), world.at(LINK_TMP)).unwrap();
        }
        check();
    }
}

#[test]
fn a_publication_cut_off_after_its_swap_is_finished() {
    let world = World::new();
    let second = files("bc", "2");
    let mut store = world.with(&files("ab", "1"));
    let before = store.state.clone();
    let first = store.current().unwrap().name.clone();
    publish(&mut store, &second);
    let new = store.current().unwrap().clone();
    // As P2 wrote the records; as P4 left the links.
    as_if_publishing(&world, store, before);
    fs_err::remove_file(world.at("c")).unwrap();
    symlink(Path::new(new.name.as_str()).join("c"), world.at("c")).unwrap();
    let watch = Watch::on(&world.root());
    let (store, found) = world.recover();
    world.assert_serves(&second);
    assert_eq!(watch.events(), ["MOVED_TO c"], "{found:?}");
    assert_eq!(store.current(), Some(&new));
    let retired = store.generations().iter().find(|record| record.name == first).unwrap();
    assert!(retired.retired.is_some());
}

#[test]
fn a_link_that_is_lost_after_a_swap_that_is_not_on_record_names_the_new_generation_again() {
    let world = World::new();
    let mut store = world.with(&files("ab", "1"));
    let before = store.state.clone();
    publish(&mut store, &files("bc", "2"));
    as_if_publishing(&world, store, before);
    fs_err::remove_file(world.at(DATA_LINK)).unwrap();
    let (store, found) = world.recover();
    world.assert_serves(&files("bc", "2"));
    assert_eq!(store.generations().len(), 2, "{found:?}");
}

#[test]
fn a_generation_whose_publication_did_not_end_stays_while_a_reader_pins_it() {
    let world = World::new();
    let mut store = world.with(&files("ab", "1"));
    let before = store.state.clone();
    publish(&mut store, &files("bc", "2"));
    let pin = Consumer::of(&world);
    as_if_publishing(&world, store, before.clone());
    fs_err::remove_file(world.at(DATA_LINK)).unwrap();
    symlink(before.current.as_ref().unwrap().as_str(), world.at(DATA_LINK)).unwrap();
    let (mut store, found) = world.recover();
    world.assert_serves(&files("ab", "1"));
    assert_eq!(fsx::read_file(&pin.0, "c", 9).unwrap().unwrap(), b"2", "{found:?}");
    let later = |seconds| {
        let now = clock::now();
        clock::Now { boottime: now.boottime + Duration::from_secs(seconds), ..now }
    };
    let reason = store.plan(&later(60)).decisions[0].reason.clone();
    assert!(reason.starts_with("pinned"), "{reason}");
    drop(pin);
    let plan = store.plan(&later(60));
    assert_eq!(store.reap(&plan).len(), 1);
}

/// A reader may have pinned it before its mode was changed.
#[test]
fn a_generation_whose_publication_did_not_end_stays_if_it_cannot_be_opened() {
    let world = World::new();
    unprivileged(&world, || {
        let mut store = world.with(&files("ab", "1"));
        let before = store.state.clone();
        publish(&mut store, &files("bc", "2"));
        let new = world.at("..data").canonicalize().unwrap();
        set_mode(&new, 0o000);
        as_if_publishing(&world, store, before.clone());
        fs_err::remove_file(world.at(DATA_LINK)).unwrap();
        symlink(before.current.as_ref().unwrap().as_str(), world.at(DATA_LINK)).unwrap();
        let (store, found) = world.recover();
        world.assert_serves(&files("ab", "1"));
        assert_eq!(store.generations().len(), 2, "{found:?}");
        set_mode(&new, 0o755);
    });
}
