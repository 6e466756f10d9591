//! How many submodules a revision may have, how large they may be, and what is kept of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::super::common::http_backend::Hit;
use super::*;

/// Repositories that name each other: four submodules each, nine levels deep, spell a quarter of a million.
#[test]
fn a_family_that_never_ends_is_refused_soon_and_leaves_nothing_behind() {
    const NAMES: [&str; 10] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"];
    let family = Family::new(&NAMES);
    let leaf = family.commit("m0", &Files::new().file("f", "leaf"));
    let mut below = leaf.clone();
    for pair in NAMES.windows(2) {
        let url = format!("../{}", pair[0]);
        let links = ["a", "b", "c", "d"].map(|path| (path, &*url, &*below));
        below = family.commit(pair[1], &with(Files::new().file("f", pair[1]), &links));
    }
    let remote = &family.bench.world.remote;
    remote.commit(&with(Files::new().file("f", "good"), &[("kept", "../m0", &leaf)]));
    let mut mirror = family.bench.open();
    let good = update(&mut mirror, &[]);
    remote.commit(&with(
        Files::new().file("f", "bad"),
        &[("kept", "../m0", &leaf), ("never", "../m9", &below)],
    ));
    let error = try_update(&mut mirror, &[good]).unwrap_err();
    let Error::Refused(refusal) = &error else { panic!("{error:?}") };
    assert!(refusal.path.starts_with("never/") && error.to_string().contains("1000 submodules"), "{error}");
    assert_eq!(kept(family.bench.dir()), ["kept"], "what only the refused revision has is gone");
    assert_eq!(family.shown(&mirror, good), "f=good kept/f=leaf");

    // The operator's ceilings are for the whole of a revision.
    drop(mirror);
    let refused = |change: &dyn Fn(&mut treeswap::mirror::Options)| {
        let mut options = family.bench.options.clone();
        change(&mut options);
        let error = try_update(&mut Mirror::open(options).unwrap(), &[good]).unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        error.to_string()
    };
    assert!(refused(&|options| options.modules.limits.depth = 5).contains("more than 5 levels"));
    assert!(refused(&|options| options.modules.limits.entries = 20).contains("more than 20 submodules"));
    assert!(refused(&|options| options.max_bytes = 4_000).contains("--max-mirror-bytes"));
}

/// One repository whose commits contain the one before them twice: fourteen levels have thirty thousand submodules.
#[test]
fn a_repository_that_contains_itself_is_published_or_refused_by_the_number_of_all_levels_together() {
    let family = Family::new(&["sub"]);
    let mut levels = vec![family.commit("sub", &Files::new().file("f", "leaf"))];
    for level in 0..14 {
        let twice = [("a", "../sub", &*levels[level]), ("b", "../sub", &*levels[level])];
        let next = family.commit("sub", &with(Files::new().file("f", level.to_string()), &twice));
        levels.push(next);
    }
    let remote = &family.bench.world.remote;
    remote.commit(&with(Files::new(), &[("kept", "../sub", &levels[2])]));
    let mut mirror = family.bench.open();
    let good = update(&mut mirror, &[]);
    let shown =
        "kept/a/a/f=leaf kept/a/b/f=leaf kept/a/f=0 kept/b/a/f=leaf kept/b/b/f=leaf kept/b/f=0 kept/f=1";
    assert_eq!(family.shown(&mirror, good), shown);
    // All mirrors are read as one database, so each is asked by itself whether it has what was fetched for its path.
    for (at, level) in [("a", 1), ("b", 1), ("a/a", 0), ("a/b", 0), ("b/a", 0), ("b/b", 0)] {
        let own = ["kept", at].join("/").replace('/', "/modules/");
        let mut git = run::clean("git", family.bench.world.dir());
        git.arg("--git-dir").arg(family.bench.dir().join("modules").join(own));
        run::to_end(git.args(["rev-list", "--objects", "--no-walk", &levels[level]])).expect_ok(at);
    }
    remote.commit(&with(Files::new(), &[("kept", "../sub", &levels[2]), ("never", "../sub", &levels[14])]));
    let received = mirror.complete_pack_bytes();
    let error = try_update(&mut mirror, &[good]).unwrap_err();
    let Error::Refused(refusal) = &error else { panic!("{error:?}") };
    assert!(refusal.path.starts_with("never/"), "{error}");
    assert!(error.to_string().ends_with("the revision has more than 1000 submodules"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.starts_with("--submodules=off")), "{:?}", error.hints());
    assert!(mirror.complete_pack_bytes() - received < 20_000, "one small pack for each level");
    assert_eq!(kept(family.bench.dir()), ["kept"], "what only the refused revision has is gone");
    assert_eq!(family.shown(&mirror, good), shown);
}

/// The names in the directory of a mirror's submodules.
fn kept(mirror: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(mirror.join("modules")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn submodules_of_revisions_that_are_never_published_do_not_pile_up() {
    let family = Family::new(&["sub"]);
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let absent = "7".repeat(40);
    let remote = &family.bench.world.remote;
    let good = [("kept", "../sub", &*sub)];
    remote.commit(&with(Files::new().file("f", "good"), &good));
    let mut mirror = family.bench.open();
    let good = update(&mut mirror, &[]);
    for name in ["a1", "a2", "a3"] {
        // Fetched, and then one that is not there: again and again, as often as it is tried.
        let all = [("kept", "../sub", &*sub), (name, "../sub", &*sub), ("b", "../sub", &absent)];
        remote.commit(&with(Files::new().file("f", name), &all));
        for _ in 0..2 {
            let error = try_update(&mut mirror, &[good]).unwrap_err();
            assert!(matches!(&error, Error::Module { path, .. } if path == "b"), "{error:?}");
            assert_eq!(kept(family.bench.dir()), [name, "b", "kept"], "what a retry needs, and no more");
        }
    }
    for name in ["c1", "c2"] {
        // Whole, and then perhaps a gate says no.
        remote.commit(&with(Files::new().file("f", name), &[(name, "../sub", &*sub)]));
        update(&mut mirror, &[good]);
        assert_eq!(kept(family.bench.dir()), [name, "kept"]);
    }
    for name in ["d1", "d2"] {
        // A level deeper, in one that is published.
        let inner = [(name, "../sub", &*sub), ("e", "../sub", &*absent)];
        let deep = family.commit("sub", &with(Files::new().file("s", name), &inner));
        remote.commit(&with(Files::new().file("f", name), &[("kept", "../sub", &*deep)]));
        assert!(matches!(try_update(&mut mirror, &[good]), Err(Error::Module { .. })));
        assert_eq!(kept(&family.bench.dir().join("modules/kept")), [name, "e"]);
    }
    assert_eq!(family.shown(&mirror, good), "f=good kept/s=x");
}

/// In git-sync's layout nothing is removed that may belong to a kept commit which is gone: consumers may have made it.
#[test]
fn a_submodule_that_does_not_come_is_not_taken_for_one_that_was_kept() {
    let mut family = Family::new(&["sub", "deep"]);
    family.bench.options.worktrees = true;
    family.bench.options.dir = family.bench.world.dir().join("root/.git");
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = family.commit("sub", &with(Files::new(), &[("in", "../deep", &deep)]));
    let remote = &family.bench.world.remote;
    remote.commit(&with(Files::new(), &[("sub", "../sub", &sub)]));
    let mut mirror = family.bench.open();
    let first = update(&mut mirror, &[]);
    let sub = family.commit("sub", &Files::new().file("s", "alone"));
    remote.commit(&with(Files::new(), &[("sub", "../sub", &sub)]));
    let second = update(&mut mirror, &[first]);
    remote.commit(&with(Files::new(), &[("sub", "../sub", &"7".repeat(40))]));
    assert!(matches!(try_update(&mut mirror, &[second, first]), Err(Error::Module { .. })));
    let nested = family.bench.dir().join("modules/sub/modules/in");
    mirror.housekeep(&[second, first]).unwrap();
    assert!(nested.is_dir(), "the first revision has it");
    mirror.housekeep(&[second]).unwrap();
    assert!(!nested.exists(), "what did not come needs nothing");
    assert_eq!(family.shown(&mirror, second), "sub/s=alone");
}

#[test]
fn on_a_full_volume_submodules_give_back_what_was_never_published() {
    let family = Family::new(&["sub"]);
    let small = family.commit("sub", &Files::new().file("s", "x"));
    let large = family.commit("sub", &Files::new().file("s", noise(7, 1 << 20)));
    let remote = &family.bench.world.remote;
    remote.commit(&with(Files::new().file("f", "good"), &[("kept", "../sub", &*small)]));
    let mut mirror = family.bench.open();
    let good = update(&mut mirror, &[]);
    let before = mirror.disk_bytes();
    let all = [("kept", "../sub", &*large), ("other", "../sub", &*large)];
    remote.commit(&with(Files::new().file("f", "bad"), &all));
    update(&mut mirror, &[good]);
    assert!(mirror.disk_bytes() > before + (2 << 20));
    assert!(mirror.make_room(&[good]).unwrap());
    assert_eq!(kept(family.bench.dir()), ["kept"]);
    assert!(mirror.disk_bytes() < before + (1 << 18), "{before} and {}", mirror.disk_bytes());
    assert_eq!(family.shown(&mirror, good), "f=good kept/s=x");
}

#[test]
fn what_is_planted_among_the_mirrors_of_submodules_is_no_obstacle() {
    use std::os::unix::fs::symlink;
    let family = Family::new(&["sub"]);
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let remote = &family.bench.world.remote;
    remote.commit(&with(Files::new().file("f", "one"), &[("sub", "../sub", &*sub)]));
    let mut mirror = family.bench.open();
    let first = update(&mut mirror, &[]);
    let modules = family.bench.dir().join("modules");
    let plant = |at: &Path| {
        std::fs::write(at.join("file"), "x").unwrap();
        symlink("loop", at.join("loop")).unwrap();
        // Each is a mirror of the repository's own, with all of these below it.
        (0..40).for_each(|n| symlink("..", at.join(format!("up{n}"))).unwrap());
    };
    plant(&modules);
    std::fs::write(modules.join("next"), "where a mirror belongs").unwrap();
    assert_eq!(family.shown(&mirror, first), "f=one sub/s=x");
    remote
        .commit(&with(Files::new().file("f", "two"), &[("sub", "../sub", &*sub), ("next", "../sub", &*sub)]));
    let second = update(&mut mirror, &[first]);
    assert_eq!(family.shown(&mirror, second), "f=two next/s=x sub/s=x");
    mirror.housekeep(&[second]).unwrap();
    drop(mirror);
    drop(family.bench.open());
    assert_eq!(kept(family.bench.dir()), ["next", "sub"]);
    std::fs::remove_dir_all(&modules).unwrap();
    std::fs::write(&modules, "where the mirrors belong").unwrap();
    let mut mirror = family.bench.open();
    assert_eq!(update(&mut mirror, &[second]), second);
    assert_eq!(family.shown(&mirror, second), "f=two next/s=x sub/s=x");
}

/// The limit of one fetch depends on the submodules before it. It must not outlast a fetch that was dropped, which
/// happens when an attempt exceeds its time.
#[test]
fn a_dropped_fetch_does_not_lower_the_limit_of_later_ones() {
    let mut family = Family::new(&["a", "b"]);
    family.bench.options.max_bytes = 2_000_000;
    let large = family.commit("a", &Files::new().file("f", noise(1, 1_200_000)));
    let small = family.commit("b", &Files::new().file("f", noise(2, 300_000)));
    let both = with(Files::new(), &[("a", "../a", &large), ("b", "../b", &small)]);
    family.bench.world.remote.commit(&both);
    let (asked, dropped) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let hook = {
        let (asked, dropped) = (asked.clone(), dropped.clone());
        move |hit: &Hit| {
            if hit.path.starts_with("/b/") {
                asked.notify_one();
                while !dropped.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            None
        }
    };
    let server =
        HttpBackend::start(family.bench.world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    family.bench.options.wire = wire::Options::new(server.url("remote"));
    let mut mirror = family.bench.open();
    wait(async {
        let tip = mirror.resolve().await.unwrap();
        tokio::select! {
            fetched = mirror.fetch(&tip, &[]) => panic!("without an answer: {fetched:?}"),
            () = asked.notified() => {}
        }
    });
    dropped.store(true, Ordering::SeqCst);
    let first = update(&mut mirror, &[]);
    // More than `a` left for `b`, but allowed without `a`.
    let larger = family.commit("b", &Files::new().file("f", noise(3, 900_000)));
    family.bench.world.remote.commit(&with(Files::new(), &[("b", "../b", &larger)]));
    update(&mut mirror, &[first]);
}

#[test]
fn garbage_of_submodules_does_not_make_a_revision_too_large() {
    let mut family = Family::new(&["a", "b"]);
    family.bench.options.max_bytes = 2_000_000;
    let remote = &family.bench.world.remote;
    let mut mirror = family.bench.open();
    let mut held = Vec::new();
    for n in 0..6 {
        let a = family.commit("a", &Files::new().file("f", noise(n, 300_000)));
        let b = family.commit("b", &Files::new().file("f", noise(100 + n, 300_000)));
        remote.commit(&with(Files::new(), &[("a", "../a", &a), ("b", "../b", &b)]));
        held.insert(0, update(&mut mirror, &held));
        held.truncate(1);
        mirror.housekeep(&held).unwrap();
        assert_eq!(payload(&mirror.objects(), held[0]).bytes, 600_000 + declared_bytes());
    }
    // Garbage that is still being read is no fault of a commit's author.
    let reader = mirror.objects().blobs();
    let next = |n| {
        let a = family.commit("a", &Files::new().file("f", noise(n, 300_000)));
        remote.commit(&with(Files::new(), &[("a", "../a", &a)]));
    };
    let error = (10..20).find_map(|n| {
        next(n);
        try_update(&mut mirror, &held).err()
    });
    let error = error.expect("more than the mirrors may have");
    assert!(matches!(error, Error::GarbageInUse { .. }) && error.is_transient(), "{error:?}");
    drop(reader);
    update(&mut mirror, &held);
    // What is needed counts as before.
    let large = family.commit("a", &Files::new().file("f", noise(200, 1_800_000)));
    let b = family.commit("b", &Files::new().file("f", noise(201, 300_000)));
    remote.commit(&with(Files::new(), &[("a", "../a", &large), ("b", "../b", &b)]));
    let error = try_update(&mut mirror, &held).unwrap_err();
    assert!(error.to_string().contains("--max-mirror-bytes"), "{error}");
    // A reader is no reason to try again if there is no garbage.
    let _reader = mirror.objects().blobs();
    let error = try_update(&mut mirror, &held).unwrap_err();
    assert!(error.is_refusal(), "{error:?}");
}

#[test]
fn a_submodule_that_is_renamed_counts_once_for_each_name_that_is_kept() {
    let mut family = Family::new(&["sub"]);
    family.bench.options.max_bytes = 500_000;
    let sub = family.commit("sub", &Files::new().file("s", noise(1, 400_000)));
    let remote = &family.bench.world.remote;
    let mut mirror = family.bench.open();
    let mut held = Vec::new();
    for name in ["a", "b"] {
        remote.commit(&with(Files::new().file("f", name), &[(name, "../sub", &sub)]));
        held.insert(0, update(&mut mirror, &held));
    }
    remote.commit(&with(Files::new().file("f", "c"), &[("c", "../sub", &sub)]));
    let error = try_update(&mut mirror, &held).unwrap_err();
    assert!(matches!(error, Error::KeptSubmodules { .. }) && error.is_transient(), "{error:?}");
    assert!(error.to_string().contains("--max-mirror-bytes"), "{error}");
    assert_eq!(kept(family.bench.dir()), ["a", "b", "c"], "the next attempt goes on with what was fetched");
    // Without a submodule there is nothing to refuse.
    let mut options = family.bench.options.clone();
    options.max_bytes = 1_000;
    remote.commit(&Files::new().file("f", "none"));
    drop(mirror);
    update(&mut Mirror::open(options).unwrap(), &held);
    // Once a generation is gone, there is room for another name.
    let mut mirror = family.bench.open();
    held.truncate(1);
    mirror.housekeep(&held).unwrap();
    remote.commit(&with(Files::new().file("f", "c"), &[("c", "../sub", &sub)]));
    update(&mut mirror, &held);
    assert_eq!(kept(family.bench.dir()), ["b", "c"]);
}

/// The size of `.gitmodules` with the submodules `a` and `b`.
fn declared_bytes() -> u64 {
    declared(&[("a", "../a"), ("b", "../b")]).len() as u64
}
