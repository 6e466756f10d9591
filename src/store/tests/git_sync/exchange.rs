//! A commit that is published again: its directory and the new one exchange their names.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::*;

/// When what is retired now has no grace period left.
fn in_a_minute() -> clock::Now {
    let now = clock::now();
    clock::Now { boottime: now.boottime + Duration::from_secs(60), ..now }
}

#[test]
fn a_commit_that_is_published_again_is_exchanged_and_the_old_one_stays_for_its_readers() {
    let root = Root::new();
    let one = files("ab", "1");
    let mut store = root.open();
    publish(&mut store, &one);
    let before = inode(&root.link);
    let pin = fsx::open_dir_at_path(&root.link).unwrap();
    assert_eq!(fsx::try_lock_shared(&pin).unwrap(), fsx::Lock::Taken);
    fs_err::write(root.link.join("a"), "tampered").unwrap();
    let watch = Watch::on(root.link.parent().unwrap());
    let published = publish(&mut store, &one);
    root.assert_serves(&one);
    assert_ne!(inode(&root.link), before);
    assert!(watch.events().iter().any(|event| event == "MOVED_TO live"), "watchers of the link are told");
    let old = published.previous.unwrap();
    assert_eq!(old, Name::from_commit(of(&one).revision).numbered(1));
    assert_eq!(inode(&root.at(old.relative_path())), before);
    assert_eq!(fs_err::read_to_string(root.at(old.relative_path()).join("a")).unwrap(), "tampered");
    let later = store.plan(&in_a_minute());
    let decision = later.decisions.iter().find(|decision| decision.name == old).unwrap();
    assert!(decision.keep && decision.pinned, "{decision:?}");
    fsx::unlock(&pin).unwrap();
    drop(pin);
    let mut gone = Vec::new();
    for _ in 0..2000 {
        // A child that another test starts has a duplicate of the pin until its exec.
        let plan = store.plan(&in_a_minute());
        gone.extend(store.reap(&plan));
        if !gone.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(gone, [old]);
    root.assert_serves(&one);
}

#[test]
fn going_back_to_a_retired_commit_leaves_its_readers_their_directory() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    let mut store = root.open();
    publish(&mut store, &one);
    let reader = fsx::open_dir_at_path(&root.link).unwrap();
    publish(&mut store, &two);
    publish(&mut store, &one);
    root.assert_serves(&one);
    assert_eq!(store.generations().len(), 3);
    let name = Name::from_commit(of(&one).revision);
    assert_eq!(fsx::identity(&reader).unwrap().ino, inode(&root.at(name.numbered(1).relative_path())));
    assert_eq!(store.generations().iter().filter(|record| record.retired.is_none()).count(), 1);
}

/// A store whose file system cannot exchange names, as on NFS.
#[test]
fn without_an_exchange_there_is_always_a_complete_generation_behind_the_link() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    let mut store = root.open();
    store.probes.exchange = Some(false);
    publish(&mut store, &one);
    publish(&mut store, &one);
    let name = Name::from_commit(of(&one).revision);
    assert_eq!(store.current().unwrap().name, name.numbered(1));
    assert_eq!(fs_err::read_to_string(root.link.join("a")).unwrap(), "1");
    publish(&mut store, &two);
    root.assert_serves(&two);
    publish(&mut store, &one); // the name is free for it: what had it is renamed
    root.assert_serves(&one);
    assert_eq!(store.generations().len(), 4);
    assert!(store.generations().iter().all(|record| root.at(record.name.relative_path()).is_dir()));
    assert!(repair(&mut store).done.is_empty());
}

#[test]
fn whether_names_can_be_exchanged_is_tested_when_it_is_first_needed() {
    let root = Root::new();
    let one = files("a", "1");
    let mut store = root.open();
    publish(&mut store, &one);
    assert_eq!(store.probes.exchange, None, "not needed yet");
    publish(&mut store, &one);
    assert_eq!(store.probes.exchange, Some(true));
    root.assert_serves(&one);
    store.wait_for_deletions(&go());
    root.world.assert_tidy();
}

/// Puts the root into the state that a crash after a step of an exchange leaves.
#[test]
fn after_a_crash_around_an_exchange_nothing_is_trusted_and_nothing_is_lost() {
    for exchanged in [None, Some(false), Some(true)] {
        let root = Root::new();
        let one = files("a", "1");
        let mut store = root.open();
        publish(&mut store, &one);
        let name = store.current().unwrap().name.clone();
        let other = name.numbered(1);
        let mut state = store.state.clone();
        let new = store.current().unwrap().clone();
        state.publishing = Some(name.clone());
        state.replacing = Some(other.clone());
        state.rename(&name, &other);
        state.put(new);
        store.handles.save(&state, fsx::Flush::Lazy).unwrap();
        drop(store);
        if let Some(exchanged) = exchanged {
            root.make_tree(&root.at(other.relative_path()), &one, of(&one).revision);
            if exchanged {
                let home = fsx::open_dir_at_path(&root.at(".worktrees")).unwrap();
                assert!(fsx::exchange(&home, name.as_str(), &home, other.as_str()).unwrap());
            }
        }
        let mut store = root.open();
        root.assert_serves(&one);
        assert_eq!(store.is_trusted(&clock::now()), exchanged.is_none(), "{exchanged:?}");
        assert_eq!(store.generations().len(), if exchanged.is_none() { 1 } else { 2 });
        assert_eq!(store.verify(&of(&one), &go()).unwrap(), [""; 0]);
        store.adopt(&of(&one), "all", &clock::now()).unwrap();
        let plan = store.plan(&in_a_minute());
        store.reap(&plan);
        assert_eq!(root.worktrees(), [name.as_str()]);
        root.assert_serves(&one);
    }
}

#[test]
fn the_link_resolves_at_every_look_while_generations_are_published_and_exchanged() {
    let root = Root::new();
    let trees = [files("abc", "1"), files("abd", "22")];
    let mut options = root.options();
    options.retention.grace = Duration::from_secs(3600); // longer than any look
    options.retention.max_generations = 1_000_000;
    let mut store = Store::open(options).unwrap().0;
    publish(&mut store, &trees[0]);
    let link = root.link.clone();
    let wanted: Vec<_> = trees.iter().map(|tree| expected(tree).len() + 1).collect();
    let rounds = AtomicUsize::new(0);
    let end = Instant::now() + Duration::from_secs(120);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            // Read until some publications were seen, however slow the other thread is.
            let enough = |look| look >= 10_000 && (rounds.load(Relaxed) >= 10 || Instant::now() > end);
            for look in (0..).take_while(|look| !enough(*look)) {
                let target = fs_err::read_link(&link).unwrap_or_else(|error| panic!("look {look}: {error}"));
                let listed = fs_err::read_dir(&link)
                    .unwrap_or_else(|error| panic!("look {look}, {target:?}: {error}"));
                assert!(wanted.contains(&listed.count()), "look {look}");
            }
        });
        while !looker.is_finished() {
            let round = rounds.fetch_add(1, Relaxed);
            publish(&mut store, &trees[round / 2 % 2]); // each twice: one tree's commit, and the same again
        }
    });
    assert!(rounds.into_inner() >= 10);
}
