//! What nothing needs any more goes; what anybody needs stays.

use super::common::noise;
use super::*;

/// Kilobytes that a directory takes, as `du -s` says.
fn kilobytes(bench: &Bench) -> u64 {
    let said =
        run::to_end(run::clean("du", bench.world.dir()).arg("-s").arg(&bench.world.root)).expect_ok("du");
    said.stdout.split_whitespace().next().unwrap().parse().unwrap()
}

fn has(bench: &Bench, object: &str) -> bool {
    bench.try_git(&bench.world.root, &["cat-file", "-e", object]).status.success()
}

#[test]
fn what_a_generation_alone_needed_goes_with_it() {
    let mut bench = at_depth(Depth::Full);
    let remote = &bench.world.remote;
    let files = Files::new().file("file", "small\n");
    let commits = [
        remote.commit(&files),
        remote.commit(&files.clone().file("big1", noise(1, 4 << 20))),
        remote.commit(&files.file("big1", noise(1, 4 << 20)).file("big2", noise(2, 4 << 20))),
    ];
    let [first, second, third] = commits.clone().map(|id| revision(&id));
    let mut bounds = Vec::new();
    let mut before = None;
    for (depth, at) in [
        (Depth::Full, third),
        (Depth::Commits(1), third),
        (Depth::Commits(1), second),
        (Depth::Commits(1), first),
    ] {
        bench.options.depth = depth;
        bench.world.remote.reset(&at.to_string());
        let mut mirror = bench.open();
        assert_eq!(fetch(&mut mirror, before.as_slice()), at);
        bench.publish(&mirror.objects(), at, None);
        if let Some(before) = before.filter(|before| *before != at) {
            std::fs::remove_dir_all(bench.place(before)).unwrap();
        }
        mirror.housekeep(&[at]).unwrap();
        before = Some(at);
        bench.assert_clean(at);
        bench.assert_sane();
        bounds.push(kilobytes(&bench));
    }
    let within = [14_000..18_000, 14_000..18_000, 7_000..9_000, 50..1_000];
    assert!(bounds.iter().zip(&within).all(|(size, bound)| bound.contains(size)), "{bounds:?}");
}

#[test]
fn every_mode_keeps_what_is_held() {
    for gc in [Gc::Off, Gc::Auto, Gc::Always, Gc::Aggressive] {
        let mut bench = Bench::new();
        bench.options.gc = gc;
        let mut mirror = bench.open();
        let mut held: Vec<Revision> = Vec::new();
        for n in 0..6 {
            bench
                .world
                .remote
                .commit(&varied().file("n", noise(n, 9_000)).file("dir1/sub/file1", n.to_string()));
            held.insert(0, bench.update(&mut mirror, &held));
            if held.len() > 3 {
                let gone = held.pop().unwrap();
                bench.reap(&mut mirror, gone, &held);
                let blob = format!("{gone}:n");
                assert_eq!(has(&bench, &blob), matches!(gc, Gc::Off | Gc::Auto), "{gc:?}");
            }
            held.iter().for_each(|at| bench.assert_clean(*at));
            bench.assert_sane();
        }
        let packs = std::fs::read_dir(bench.git_dir().join("objects/pack")).unwrap();
        let packs =
            packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pack"));
        let packs = packs.count();
        match gc {
            Gc::Off | Gc::Auto => assert_eq!(packs, 6),
            Gc::Always => assert!(packs <= 4, "{packs}"),
            Gc::Aggressive => assert_eq!(packs, 1),
        }
    }
}

#[test]
fn what_people_made_stays_while_anything_names_it() {
    let bench = Bench::new();
    let old = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let place = bench.place(old);
    // A commit in the generation that is named by its HEAD alone, one on a branch, and a file that is only staged.
    std::fs::write(place.join("mine"), "committed").unwrap();
    bench.git(&place, &["add", "mine"]);
    bench.git(&place, &["commit", "-qm", "mine"]);
    let committed = bench.git(&place, &["rev-parse", "HEAD"]);
    bench.git(&place, &["branch", "kept"]);
    let below = || bench.git(&bench.world.root, &["rev-list", "--objects", "kept"]);
    let before = below();
    std::fs::write(place.join("mine"), "staged").unwrap();
    bench.git(&place, &["add", "mine"]);
    let staged = bench.git(&place, &["rev-parse", ":mine"]);
    bench.git(&place, &["update-index", "--index-version", "4"]);
    // A blob that was written long ago and is named by nothing.
    std::fs::write(bench.world.dir().join("scratch"), "nobody's").unwrap();
    let nobody =
        bench.git(&place, &["hash-object", "-w", bench.world.dir().join("scratch").to_str().unwrap()]);
    bench.age();
    assert_eq!(mirror.objects().worktree_head(old), Some(revision(committed.trim())));
    let next = revision(&bench.world.remote.commit(&varied().file("next", "x")));
    assert_eq!(bench.update(&mut mirror, &[old]), next);
    bench.world.remote.commit(&varied().file("next", "y"));
    let last = fetch(&mut mirror, &[next, old]);
    bench.publish(&mirror.objects(), last, None);
    bench.reap(&mut mirror, next, &[last, old]);
    assert!(has(&bench, committed.trim()) && has(&bench, staged.trim()), "the worktree lives");
    assert!(!has(&bench, nobody.trim()) && !has(&bench, &next.to_string()));
    bench.assert_sane();
    bench.reap(&mut mirror, old, &[last]);
    assert!(has(&bench, committed.trim()), "the branch lives");
    assert!(!has(&bench, staged.trim()), "its worktree is gone");
    bench.assert_sane();
    assert_eq!(below(), before);
}

#[test]
fn nothing_is_copied_where_nothing_is_garbage() {
    let bench = at_depth(Depth::Full);
    let mut mirror = bench.open();
    let mut held = Vec::new();
    for n in 0..3 {
        bench.world.remote.commit(&varied().file("n", n.to_string()));
        held = vec![bench.update(&mut mirror, &held)];
    }
    let packs = || {
        let mut names: Vec<_> = std::fs::read_dir(bench.git_dir().join("objects/pack"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = packs();
    mirror.housekeep(&held).unwrap();
    drop(mirror);
    bench.open().housekeep(&held).unwrap();
    assert_eq!(packs(), before, "what was published before is history now");
    assert_eq!(before.len(), 6);
}
