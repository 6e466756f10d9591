//! What nothing needs any more goes; what anybody needs stays.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

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
    // One that is named only by a branch whose name is not UTF-8.
    let latin = bench.git(&place, &["commit-tree", "-m", "latin", "HEAD^{tree}"]);
    let mut git = run::clean("git", bench.world.dir());
    git.current_dir(&place).arg("branch").arg(OsStr::from_bytes(b"m\xfcnchen")).arg(latin.trim());
    run::to_end(&mut git).expect_ok("git branch");
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
    assert!(has(&bench, committed.trim()) && has(&bench, latin.trim()), "the branches live");
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

/// git does not write an object again that a pack has: it sets the pack's time, and counts on that.
#[test]
fn an_object_that_somebody_is_just_reusing_stays_until_it_had_time_to_be_named() {
    let bench = Bench::new();
    let content = "only the first revision has it\n";
    let old = revision(&bench.world.remote.commit(&varied().file("once", content)));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let blob = bench.git(&bench.place(old), &["rev-parse", "HEAD:once"]).trim().to_owned();
    bench.world.remote.commit(&varied().file("next", "x"));
    let next = fetch(&mut mirror, &[old]);
    bench.publish(&mirror.objects(), next, None);

    // A consumer begins a commit with that content; its index does not name it yet.
    let place = bench.place(next);
    let scratch = bench.world.dir().join("scratch");
    std::fs::write(&scratch, content).unwrap();
    let loose = bench.git_dir().join("objects").join(&blob[..2]).join(&blob[2..]);
    assert_eq!(bench.git(&place, &["hash-object", "-w", scratch.to_str().unwrap()]).trim(), blob);
    assert!(!loose.exists(), "it is in a pack, and git writes it no second time");
    bench.reap(&mut mirror, old, &[next]);
    assert!(has(&bench, &blob), "it was removed under the consumer's hands");
    bench.git(&place, &["update-index", "--add", "--cacheinfo", &format!("100644,{blob},again")]);
    bench.git(&place, &["commit", "-qm", "mine"]);
    bench.git(&place, &["branch", "mine"]);
    bench.assert_sane();
    bench.git(&place, &["reset", "-q", "--hard", &next.to_string()]);
    bench.git(&place, &["branch", "-qD", "mine"]);
    bench.git(&place, &["reflog", "expire", "--expire=all", "--all"]);
    bench.git(&place, &["update-ref", "-d", "ORIG_HEAD"]);

    // And not for ever.
    bench.age();
    bench.world.remote.commit(&varied().file("next", "y"));
    let last = fetch(&mut mirror, &[next]);
    bench.publish(&mirror.objects(), last, None);
    bench.reap(&mut mirror, next, &[last]);
    assert!(!has(&bench, &blob));
    bench.assert_sane();
}

/// The mirror's packs.
fn packs(bench: &Bench) -> Vec<PathBuf> {
    let all = std::fs::read_dir(bench.git_dir().join("objects/pack")).unwrap();
    let paths = all.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "pack")).collect()
}

/// A mirror that was left as one pack, by another git or before the ceiling was lowered, says nothing of how much of it
/// is garbage: it is looked through before the ceiling counts as too low for the repository.
#[test]
fn a_mirror_past_its_ceiling_is_collected_whatever_it_was_before() {
    let mut bench = Bench::new();
    bench.options.gc = Gc::Auto;
    bench.world.remote.commit(&varied().file("big", noise(1, 4 << 20)));
    let old = bench.update(&mut bench.open(), &[]);
    bench.git(&bench.world.root, &["repack", "-adq"]);
    std::fs::write(bench.git_dir().join("treeswap"), "").unwrap(); // what was known of it
    bench.age();
    bench.options.max_bytes = 2 << 20;
    bench.world.remote.commit(&varied());
    let mut mirror = bench.open();
    let next = fetch(&mut mirror, &[old]);
    bench.publish(&mirror.objects(), next, None);
    bench.reap(&mut mirror, old, &[next]);
    assert!(kilobytes(&bench) < 1_000, "{} kB", kilobytes(&bench));
    bench.assert_clean(next);
    bench.assert_sane();
}

/// Where history is kept no commit is garbage, and every fetch leaves a pack.
#[test]
fn packs_stay_few_where_nothing_is_garbage() {
    for gc in [Gc::Auto, Gc::Always, Gc::Aggressive] {
        let mut bench = at_depth(Depth::Full);
        (bench.options.gc, bench.options.max_packs) = (gc, 5);
        let mut mirror = bench.open();
        let mut held = Vec::new();
        for n in 0..14 {
            bench.world.remote.commit(&varied().file("n", n.to_string()));
            held = vec![bench.update(&mut mirror, &held)];
            assert!(packs(&bench).len() <= 6, "{gc:?}: {}", packs(&bench).len());
        }
        bench.assert_sane();
    }
}
