//! A mirror that breaks, is shared, is interrupted, or grows.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::common::Files;
use super::common::http_backend::{Canned, Hit, HttpBackend, Kind};
use super::{Bench, noise, payload, revision, try_update, update, wait, wide, wire};
use treeswap::mirror::{Composer, Depth, Error, Gc, MIRRORS, Mirror, Options};
use treeswap::payload::Limits;
use treeswap::revision::Revision;

#[test]
fn a_broken_mirror_is_set_aside_and_fetched_anew() {
    let bench = Bench::new("main");
    let old = revision(&bench.world.remote.commit(&wide()));
    update(&mut bench.open(), &[]);
    type Damage = fn(&Path);
    let breakages: [(&str, Damage); 4] = [
        ("a pack is gone", |dir| {
            for entry in std::fs::read_dir(dir.join("objects/pack")).unwrap() {
                std::fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }),
        ("HEAD is gone", |dir| std::fs::remove_file(dir.join("HEAD")).unwrap()),
        ("the objects are gone", |dir| std::fs::remove_dir_all(dir.join("objects")).unwrap()),
        ("the configuration is garbage", |dir| {
            std::fs::write(dir.join("config"), "[core\nnonsense").unwrap();
        }),
    ];
    for (what, damage) in breakages {
        damage(bench.dir());
        let mut mirror = bench.open();
        assert_eq!(update(&mut mirror, &[old]), old, "{what}");
        bench.assert_whole(&mirror, old);
    }
}

#[test]
fn what_an_interrupted_run_left_is_swept() {
    let bench = Bench::new("main");
    let old = revision(&bench.world.remote.commit(&wide()));
    update(&mut bench.open(), &[]);
    let left = [
        "shallow.lock",
        "HEAD.lock",
        "refs/treeswap/tip.lock",
        "objects/pack/pack_git2_abcdef",
        "objects/pack/tmp_pack_xyz",
        "objects/pack/pack-0000000000000000000000000000000000000000.idx",
        "objects/pack/pack_git2_abcdef.idx.lock",
    ];
    for path in left {
        std::fs::write(bench.dir().join(path), "").unwrap();
    }
    let mut mirror = bench.open();
    for path in left {
        assert!(!bench.dir().join(path).exists(), "{path} is still there");
    }
    let new = revision(&bench.world.remote.commit(&wide().file("x", "y")));
    assert_eq!(update(&mut mirror, &[old]), new);
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    for name in ["precious", "mirrors/precious", "mirrors/distribution/precious"] {
        let bench = Bench::new("main");
        let file = bench.dir().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "x").unwrap();
        let error = Mirror::open(bench.options.clone()).unwrap_err();
        assert!(matches!(error, Error::Foreign { .. }), "{name}: {error:?}");
        assert!(file.exists(), "{name}");
    }
}

#[test]
fn a_mirror_that_comes_after_those_of_sources_adopts_their_packs_and_its_damage_is_not_theirs() {
    let mut bench = Bench::new("main");
    let tip = revision(&bench.world.remote.commit(&wide()));
    let mirrors = bench.dir().join(MIRRORS);
    let of_source = Options { dir: mirrors.join("one"), ..bench.options.clone() };
    let fetched_for_source = || {
        let composer = Composer::open(&mirrors.join("composed"), true, Limits::default()).unwrap();
        let mut mirror = composer.mirror(of_source.clone()).unwrap();
        assert_eq!(update(&mut mirror, &[]), tip);
        mirror.complete_pack_bytes()
    };
    assert!(fetched_for_source() > 0);
    bench.options.others = vec![bench.dir().to_owned(), mirrors.clone()];
    type Damage = fn(&Path);
    let breakages: [(&str, Damage); 3] = [
        ("it is new", |_| {}),
        ("HEAD is gone", |dir| std::fs::remove_file(dir.join("HEAD")).unwrap()),
        ("the packs are gone", |dir| {
            for entry in std::fs::read_dir(dir.join("objects/pack")).unwrap() {
                std::fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }),
    ];
    for (what, damage) in breakages {
        damage(bench.dir());
        let volume = bench.dir().join("lost+found");
        std::fs::create_dir_all(&volume).unwrap();
        let mut mirror = bench.open();
        assert_eq!(update(&mut mirror, &[]), tip, "{what}");
        let is_fetched = mirror.complete_pack_bytes() > 0;
        assert_eq!(is_fetched, what == "the packs are gone", "{what}: nothing, or too much, was adopted");
        bench.assert_whole(&mirror, tip);
        assert!(volume.exists(), "{what}");
        assert_eq!(fetched_for_source(), 0, "{what}: the source's mirror went with it");
    }
}

#[test]
fn two_mirrors_cannot_share_a_directory() {
    let bench = Bench::new("main");
    let first = bench.open();
    assert!(matches!(Mirror::open(bench.options.clone()), Err(Error::Locked { .. })));
    drop(first);
    bench.open();
}

#[test]
fn a_lock_that_a_killed_process_leaves_for_a_moment_is_waited_for() {
    let bench = Bench::new("main");
    drop(bench.open());
    let left = std::fs::File::open(bench.dir().join("treeswap")).unwrap();
    left.try_lock().unwrap();
    let exec = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(left);
    });
    bench.open();
    exec.join().unwrap();
}

#[test]
fn an_unreachable_remote_changes_nothing() {
    let bench = Bench::new("main");
    let old = revision(&bench.world.remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let away = bench.world.remote.away();
    assert!(try_update(&mut mirror, &[old]).is_err());
    drop(away);
    bench.assert_whole(&mirror, old);
}

#[test]
fn a_fetch_that_is_dropped_ends_its_child_and_can_be_done_again() {
    let bench = Bench::new("main");
    let commit = bench.world.remote.commit(&wide());
    let mut mirror = bench.open();
    wait(async {
        let tip = mirror.resolve().await.unwrap();
        for n in 0..20 {
            let patience = std::time::Duration::from_millis(n);
            let _ = tokio::time::timeout(patience, mirror.fetch(&tip, &[])).await;
        }
        assert_eq!(mirror.fetch(&tip, &[]).await.unwrap(), revision(&commit));
    });
    bench.assert_whole(&mirror, revision(&commit));
}

#[test]
fn objects_are_read_while_a_fetch_runs() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    let old = revision(&remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let objects = mirror.objects();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut rounds = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(payload(&objects, old).entries.len(), 400);
                rounds += 1;
            }
            rounds
        }
    });
    let mut held = old;
    for n in 0..10 {
        remote.commit(&wide().file("n", n.to_string()));
        held = update(&mut mirror, &[held, old]);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
}

#[test]
fn many_updates_leave_few_packs() {
    let mut bench = Bench::new("main");
    bench.options.max_packs = 5;
    let remote = &bench.world.remote;
    let first = revision(&remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let mut held = first;
    let mut most = 0;
    for n in 0..20 {
        remote.commit(&wide().file("n", noise(n, 3_000)));
        held = update(&mut mirror, &[held, first]);
        mirror.housekeep(&[held, first]).unwrap();
        most = most.max(bench.packs().len());
    }
    assert!(most <= 6, "{most} packs");
    bench.assert_whole(&mirror, held);
    bench.assert_whole(&mirror, first);
    bench.git(&["fsck", "--strict"]);
    drop(mirror);
    bench.assert_whole(&bench.open(), held);
}

#[test]
fn packs_are_not_removed_below_a_reader() {
    let mut bench = Bench::new("main");
    bench.options.max_packs = 2;
    let remote = &bench.world.remote;
    let first = revision(&remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let reader = mirror.objects().blobs();
    let mut held = first;
    for n in 0..6 {
        remote.commit(&wide().file("n", n.to_string()));
        held = update(&mut mirror, &[held]);
        mirror.housekeep(&[held]).unwrap();
    }
    assert!(bench.packs().len() >= 7, "nothing is removed while somebody reads");
    drop(reader);
    mirror.housekeep(&[held]).unwrap();
    assert!(bench.packs().len() <= 2, "{} packs", bench.packs().len());
    bench.assert_whole(&mirror, held);
}

#[test]
fn garbage_is_got_rid_of_by_a_fetch_of_everything() {
    let mut bench = Bench::new("main");
    bench.options.max_bytes = 1_000_000;
    let remote = &bench.world.remote;
    let kept = Files::new().file("kept", noise(77, 50_000));
    let mut held = revision(&remote.commit(&kept.clone().file("noise", noise(99, 300_000))));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let (mut most, mut renewals) = (0, 0);
    for n in 0..12 {
        remote.commit(&kept.clone().file("noise", noise(n, 300_000)).file("same", "x"));
        let received = mirror.complete_pack_bytes();
        let new = update(&mut mirror, &[held]);
        // Only a fetch of everything brings what did not change.
        if mirror.complete_pack_bytes() - received > 340_000 {
            renewals += 1;
            // What is still published stays readable until the new one is.
            mirror.housekeep(&[held]).unwrap();
            payload(&mirror.objects(), held);
        }
        mirror.housekeep(&[new]).unwrap();
        held = new;
        let bytes: u64 = bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum();
        most = most.max(bytes);
        bench.assert_whole(&mirror, held);
    }
    assert!(most < 2_000_000, "{most} bytes");
    assert!(renewals > 0, "no fetch brought everything");
    assert_eq!(bench.depth_of(held), 1);
}

/// Each commit replaces the one before and is refused: only the first is published.
#[test]
fn commits_of_which_none_is_published_do_not_make_the_mirror_grow() {
    for (gc, depth) in [(Gc::Auto, Depth::Commits(1)), (Gc::Always, Depth::Full)] {
        let mut bench = Bench::at_depth("main", depth);
        (bench.options.gc, bench.options.max_bytes) = (gc, 500_000);
        let remote = &bench.world.remote;
        let first = revision(&remote.commit(&wide()));
        let mut mirror = bench.open();
        update(&mut mirror, &[]);
        mirror.housekeep(&[first]).unwrap();
        for n in 0..6 {
            remote.reset(&first.to_string());
            let refused = revision(&remote.commit(&wide().file("noise", noise(n, 300_000))));
            assert_eq!(update(&mut mirror, &[first]), refused);
            mirror.housekeep(&[first]).unwrap();
            let bytes: u64 = bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum();
            assert!(bytes < 700_000, "{gc:?}: {bytes} bytes after {n}");
            // The ref names it, and what is not refused for good may be published later.
            let received = mirror.complete_pack_bytes();
            assert_eq!(update(&mut mirror, &[first]), refused);
            assert_eq!(mirror.complete_pack_bytes(), received, "{gc:?}: it is fetched again");
        }
        bench.assert_whole(&mirror, first);
    }
}

/// Nothing is known of a fetch after which nobody kept house.
#[test]
fn what_was_never_kept_is_found_by_the_size_of_the_mirror() {
    let mut bench = Bench::at_depth("main", Depth::Full);
    bench.options.gc = Gc::Always;
    let remote = &bench.world.remote;
    let first = revision(&remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    mirror.housekeep(&[first]).unwrap();
    for n in 0..4 {
        remote.reset(&first.to_string());
        remote.commit(&wide().file("noise", noise(n, 300_000)));
        update(&mut mirror, &[first]);
    }
    remote.reset(&first.to_string());
    remote.commit(&wide().file("next", "x"));
    let next = update(&mut mirror, &[first]);
    mirror.housekeep(&[next, first]).unwrap();
    let bytes: u64 = bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum();
    assert!(bytes < 200_000, "{bytes} bytes");
    bench.assert_whole(&mirror, next);
}

#[test]
fn a_fetch_of_everything_that_fails_is_followed_by_ordinary_ones_and_garbage_is_collected() {
    let mut bench = Bench::new("main");
    bench.options.max_bytes = 1_000_000;
    // The requests of fetches of everything are equally long, and no others are. After the first one they are cut.
    let first_length = Arc::new(OnceLock::new());
    let cut_length = first_length.clone();
    let cuts = Arc::new(AtomicUsize::new(0));
    let counted = cuts.clone();
    let hook = move |hit: &Hit| {
        let length = hit.header("content-length").map(str::to_owned);
        (length.is_some() && length.as_ref() == cut_length.get()).then(|| {
            counted.fetch_add(1, Ordering::SeqCst);
            Canned::hang_up()
        })
    };
    let server =
        HttpBackend::start(bench.world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    bench.options.wire = wire::Options::new(server.url("remote"));
    let remote = &bench.world.remote;
    let mut held = revision(&remote.commit(&Files::new().file("noise", noise(99, 300_000))));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    first_length.set(server.hits().last().unwrap().header("content-length").unwrap().to_owned()).unwrap();
    let mut most = 0;
    for n in 0..12 {
        remote.commit(&Files::new().file("noise", noise(n, 300_000)).file("same", "x"));
        // The ordinary fetch follows at once: no attempt fails.
        held = update(&mut mirror, &[held]);
        mirror.housekeep(&[held]).unwrap();
        most = most.max(bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum());
        bench.assert_whole(&mirror, held);
    }
    // Each of them is sent twice: the connection could have been closed because it was idle.
    let cuts = cuts.load(Ordering::SeqCst);
    assert!((2..=8).contains(&cuts), "{cuts} were cut");
    assert!(most < 2_000_000, "{most} bytes");
}

#[test]
fn garbage_is_collected_although_a_held_revision_is_older_than_the_mirror() {
    let mut bench = Bench::new("main");
    bench.options.gc = Gc::Always;
    let older = revision(&bench.world.remote.commit(&wide()));
    update(&mut bench.open(), &[]);
    std::fs::remove_dir_all(bench.dir()).unwrap();
    let mut mirror = bench.open();
    let mut held = vec![older];
    for n in 0..4 {
        bench.world.remote.commit(&Files::new().file("noise", noise(n, 100_000)));
        held.insert(0, update(&mut mirror, &held));
        held.truncate(3);
        *held.last_mut().unwrap() = older;
        mirror.housekeep(&held).unwrap();
        bench.assert_whole(&mirror, held[0]);
    }
    let bytes: u64 = bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum();
    assert!(bytes < 250_000, "{bytes} bytes: what nobody holds any more stays");
}

/// Commits until the mirror was renewed, with a reader that keeps the older packs from being removed. Returns the
/// revision that was published before that, and the renewal's, which is not published yet.
fn renewed_below_a_reader(bench: &Bench, mirror: &mut Mirror) -> (Revision, Revision) {
    let kept = Files::new().file("kept", noise(77, 50_000));
    let mut held = revision(&bench.world.remote.commit(&kept.clone().file("noise", noise(99, 300_000))));
    update(mirror, &[]);
    // 4 packs are more than a megabyte, so the fifth is the renewal's.
    for n in 0..4 {
        let before = held;
        bench.world.remote.commit(&kept.clone().file("noise", noise(n, 300_000)));
        let received = mirror.complete_pack_bytes();
        held = update(mirror, &[before]);
        if mirror.complete_pack_bytes() - received > 340_000 {
            return (before, held);
        }
        let _reader = mirror.objects().blobs();
        mirror.housekeep(&[held]).unwrap();
    }
    panic!("no fetch brought the file that did not change");
}

#[test]
fn what_is_fetched_after_a_fetch_of_everything_stays() {
    let mut bench = Bench::new("main");
    bench.options.max_bytes = 1_000_000;
    for publishes_it in [true, false] {
        let mut mirror = bench.open();
        let (before, renewed) = renewed_below_a_reader(&bench, &mut mirror);
        let published = if publishes_it { renewed } else { before };
        let reader = mirror.objects().blobs();
        mirror.housekeep(&[published]).unwrap();
        drop(reader);
        bench.world.remote.commit(&Files::new().file("noise", noise(50, 300_000)));
        let next = update(&mut mirror, &[published]);
        mirror.housekeep(&[next]).unwrap();
        bench.assert_whole(&mirror, next);
        let received = mirror.complete_pack_bytes();
        assert_eq!(update(&mut mirror, &[next]), next);
        assert_eq!(mirror.complete_pack_bytes(), received, "it is not fetched again");
        let bytes: u64 = bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum();
        assert!(bytes < 800_000, "{bytes} bytes: the garbage was collected all the same");
        drop(mirror);
        std::fs::remove_dir_all(bench.dir()).unwrap();
    }
}

#[test]
fn a_ref_that_is_set_back_after_a_fetch_of_everything_stays() {
    let mut bench = Bench::new("main");
    bench.options.max_bytes = 1_000_000;
    let mut mirror = bench.open();
    let (before, renewed) = renewed_below_a_reader(&bench, &mut mirror);
    bench.world.remote.reset(&before.to_string());
    assert_eq!(update(&mut mirror, &[before]), before);
    mirror.housekeep(&[before]).unwrap();
    bench.assert_whole(&mirror, before);
    bench.world.remote.reset(&renewed.to_string());
    assert_eq!(update(&mut mirror, &[before]), renewed);
    mirror.housekeep(&[renewed, before]).unwrap();
    bench.assert_whole(&mirror, renewed);
}
