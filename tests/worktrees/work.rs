//! What people do in a generation with git.

use super::*;

#[test]
fn git_takes_a_generation_for_an_unchanged_checkout() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    assert_eq!(bench.update(&mut mirror, &[]), tip);
    bench.assert_clean(tip);
    bench.assert_sane();
    let place = bench.place(tip);
    assert_eq!(bench.git(&place, &["log", "--format=%H"]).trim(), tip.to_string());
    assert_eq!(bench.git(&place, &["rev-parse", "git-sync", "HEAD"]), format!("{tip}\n{tip}\n"));
    assert_eq!(bench.git(&place, &["remote", "get-url", "origin"]).trim(), bench.options.wire.remote);
    assert_eq!(bench.git(&place, &["ls-files"]).lines().count(), 60 + 9);
    bench.git(&place, &["archive", "--output", "../out.tar", "HEAD"]);
    bench.git(&bench.world.root, &["worktree", "list"]);
    assert_eq!(bench.git(&bench.world.root, &["worktree", "prune", "--dry-run", "--verbose"]), "");
}

#[test]
fn the_index_is_the_one_that_git_would_write() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    let place = bench.publish(&mirror_at(&mut mirror).objects(), tip, None);
    let ours = std::fs::read(bench.git_dir().join("worktrees").join(tip.to_string()).join("index")).unwrap();
    // git's own, of the same files.
    std::fs::remove_file(bench.git_dir().join("worktrees").join(tip.to_string()).join("index")).unwrap();
    bench.git(&place, &["read-tree", "--reset", "HEAD"]);
    bench.git(&place, &["update-index", "--refresh"]);
    let theirs =
        std::fs::read(bench.git_dir().join("worktrees").join(tip.to_string()).join("index")).unwrap();
    assert!(ours == theirs, "{}\n\nis not\n\n{}", ours.escape_ascii(), theirs.escape_ascii());
}

fn mirror_at(mirror: &mut Mirror) -> &mut Mirror {
    fetch(mirror, &[]);
    mirror
}

#[test]
fn what_patterns_leave_out_is_not_missed() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    fetch(&mut mirror, &[]);
    let place = bench.publish(&mirror.objects(), tip, Some("/*\n!/*/\n/dir3/\n"));
    bench.assert_clean(tip);
    assert!(place.join("dir3/sub/file3").exists() && !place.join("bin").exists());
    assert_eq!(bench.git(&place, &["sparse-checkout", "list"]), "/*\n!/*/\n/dir3/\n");
    let kept = bench.git(&place, &["ls-files", "-t"]);
    assert_eq!(kept.lines().filter(|line| line.starts_with("S ")).count(), 60 - 9 + 4);
    // Another worktree is not sparse for that.
    let next = revision(&bench.world.remote.commit(&varied().file("next", "x")));
    fetch(&mut mirror, &[tip]);
    bench.publish(&mirror.objects(), next, None);
    bench.assert_clean(next);
    bench.assert_sane();
}

#[test]
fn a_worktree_goes_with_its_generation_and_others_stay() {
    let bench = Bench::new();
    let old = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let elsewhere = bench.world.dir().join("elsewhere");
    let name = elsewhere.to_str().unwrap();
    bench.git(&bench.world.root, &["worktree", "add", "-q", "-b", "mine", name, &old.to_string()]);
    let new = revision(&bench.world.remote.commit(&varied().file("next", "x")));
    bench.update(&mut mirror, &[old]);
    bench.assert_clean(old);
    bench.assert_clean(new);
    bench.reap(&mut mirror, old, &[new]);
    let worktrees = bench.git(&bench.world.root, &["worktree", "list", "--porcelain"]);
    assert_eq!(worktrees.matches("worktree ").count(), 3, "the root's, ours, theirs: {worktrees}");
    assert_eq!(bench.git(&elsewhere, &["status", "--porcelain"]), "", "its objects stay, too");
    assert_eq!(bench.git(&elsewhere, &["log", "--format=%H"]).trim(), old.to_string());
    bench.assert_sane();
}
