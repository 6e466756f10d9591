//! The mirror against real repositories: what is fetched, how much, and what a broken mirror costs.
#![allow(missing_docs)]

mod care;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod history;
mod limits;
mod modules;
mod partial;
mod program;

use std::path::{Path, PathBuf};

use common::{Files, World, noise, run};
use treeswap::mirror::{Depth, Error, Mirror, Objects, Options, Selection, Tip, wire};
use treeswap::payload::Payload;
use treeswap::revision::{ObjectId, Ref, Revision};

/// A mirror in a world of its own.
struct Bench {
    world: World,
    options: Options,
}

impl Bench {
    fn new(asked: &str) -> Self {
        let world = World::new();
        let remote = wire::Options::new(world.remote.path.to_str().unwrap());
        let mut options = Options::new(world.dir().join("mirror"), asked.parse().unwrap(), remote);
        options.indexer = env!("CARGO_BIN_EXE_treeswap").into();
        Self { world, options }
    }

    fn at_depth(asked: &str, depth: Depth) -> Self {
        let mut bench = Self::new(asked);
        bench.options.depth = depth;
        bench
    }

    fn open(&self) -> Mirror {
        Mirror::open(self.options.clone()).unwrap()
    }

    fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Objects that all packs of the mirror hold together, said by git.
    fn objects(&self) -> usize {
        let packs = self.packs();
        let count = |pack: &PathBuf| self.git(&["verify-pack", "-v", pack.to_str().unwrap()]);
        let lines = packs.iter().map(count).collect::<Vec<_>>().concat();
        lines.lines().filter(|line| line.split(' ').next().is_some_and(|id| id.len() == 40)).count()
    }

    fn packs(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.dir().join("objects/pack")).unwrap();
        all.map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "pack"))
            .collect()
    }

    fn git(&self, args: &[&str]) -> String {
        let mut command = run::clean("git", self.world.dir());
        command.arg("--git-dir").arg(self.dir()).args(args);
        run::to_end(&mut command).expect_ok("git").stdout
    }

    /// Commits of history below a revision, as git sees the mirror.
    fn depth_of(&self, revision: Revision) -> usize {
        self.git(&["rev-list", &revision.to_string()]).lines().count()
    }

    /// Fails unless git, too, finds everything that the revision's tree needs.
    fn assert_whole(&self, mirror: &Mirror, revision: Revision) {
        self.git(&["rev-list", "--objects", "--no-walk", &revision.to_string()]);
        let expected = self.world.remote.snapshot(&revision.to_string());
        let payload = payload(&mirror.objects(), revision);
        let mut paths: Vec<_> = payload.entries.iter().map(|entry| payload.path_of(entry)).collect();
        paths.extend(payload.dir_paths());
        paths.sort();
        assert_eq!(paths, expected.0.keys().cloned().collect::<Vec<_>>());
    }
}

fn payload(objects: &Objects, revision: Revision) -> Payload {
    objects.payload(revision, &Selection::default()).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(future)
}

fn try_update(mirror: &mut Mirror, held: &[Revision]) -> Result<Revision, Error> {
    wait(async {
        let tip = mirror.resolve().await?;
        mirror.fetch(&tip, held).await
    })
}

#[track_caller]
fn update(mirror: &mut Mirror, held: &[Revision]) -> Revision {
    try_update(mirror, held).unwrap()
}

fn revision(id: &str) -> Revision {
    Revision(id.parse().unwrap())
}

/// A tree of 40 directories with 10 files each.
fn wide() -> Files {
    (0..400)
        .fold(Files::new(), |files, n| files.file(format!("dir{}/file{n}", n / 10), format!("content {n}\n")))
}

impl Bench {
    /// The remote may have forgotten it; the mirror must not.
    fn assert_whole_again(&self, mirror: &Mirror, held: Revision) {
        let selection = Selection::default();
        mirror.objects().payload(held, &selection).unwrap();
    }
}

#[test]
fn the_first_fetch_brings_one_commit_and_its_tree() {
    let bench = Bench::new("main");
    bench.world.remote.commit(&wide());
    let tip = bench
        .world
        .remote
        .commit(&wide().file("dir0/new", "x").script("run", "#!/bin/sh\n").link("l", "run"));
    let mut mirror = bench.open();
    assert_eq!(update(&mut mirror, &[]), revision(&tip));
    bench.assert_whole(&mirror, revision(&tip));
    assert_eq!(bench.depth_of(revision(&tip)), 1);
    assert_eq!(bench.git(&["rev-parse", "refs/treeswap/tip"]).trim(), tip);
}

#[test]
fn an_update_brings_what_changed() {
    let bench = Bench::new("main");
    let old = revision(&bench.world.remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let before = bench.objects();
    let new = revision(&bench.world.remote.commit(&wide().file("dir7/file70", "changed\n")));
    assert_eq!(update(&mut mirror, &[old]), new);
    bench.assert_whole(&mirror, new);
    // Commit, top, directory, file; deltas may bring their bases along.
    assert!(bench.objects() - before <= 8, "{} objects", bench.objects() - before);
    assert_eq!(bench.depth_of(new), 1, "history does not grow");
}

#[test]
fn a_merge_of_an_old_branch_stays_cheap_and_complete() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    let first = remote.commit(&wide());
    for n in 0..30 {
        let files = (0..10)
            .fold(wide(), |files, f| files.file(format!("dir{n}/file{}", n * 10 + f), format!("v{n}")));
        remote.commit(&files);
    }
    let mut mirror = bench.open();
    let old = update(&mut mirror, &[]);
    let before = bench.objects();
    remote.git(&["update-ref", "refs/heads/side", &first]);
    remote.commit_on("refs/heads/side", &wide().file("side", "x"));
    let merged = remote.snapshot(&old.to_string());
    assert!(!merged.0.is_empty());
    // A merge commit: main's tree with one file more, both as parents.
    let side = remote.tip("refs/heads/side").unwrap();
    let tree =
        remote.commit_on("refs/heads/scratch", &wide().file("side", "x").file("dir1/file10", "merged"));
    let tree = format!("{tree}^{{tree}}");
    let tree = remote.git(&["rev-parse", &tree]);
    let merge = remote.git(&[
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "commit-tree",
        "-m",
        "x",
        "-p",
        &old.to_string(),
        "-p",
        &side,
        &tree,
    ]);
    remote.reset(&merge);
    let new = update(&mut mirror, &[old]);
    assert_eq!(new, revision(&merge));
    bench.assert_whole(&mirror, new);
    assert_eq!(bench.depth_of(new), 1);
    // The merge undoes thirty commits in thirty directories: trees and files of the difference, no history.
    let fetched = bench.objects() - before;
    let changed =
        remote.git(&["diff-tree", "-r", "-t", "--name-only", &old.to_string(), &merge]).lines().count();
    assert!(fetched <= 2 * changed + 8, "{fetched} objects for {changed} changed paths");
}

#[test]
fn straight_history_is_asked_for_cheaply_until_the_first_merge() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    // A history of more objects than a usual commit has.
    let first = remote.commit(&wide());
    for n in 0..40 {
        remote.commit(&wide().file(format!("dir{n}/x"), "x").file(format!("dir{n}/y"), n.to_string()));
    }
    let mut mirror = bench.open();
    let mut held = update(&mut mirror, &[]);
    for n in 0..3 {
        remote.commit(&wide().file("n", n.to_string()));
        held = update(&mut mirror, &[held]);
        assert_eq!(bench.depth_of(held), 1);
    }
    for n in 0..2 {
        let before = bench.objects();
        remote.git(&["update-ref", "refs/heads/side", &first]);
        let side = remote.commit_on("refs/heads/side", &wide().file("side", n.to_string()));
        let tree = remote.git(&["rev-parse", &format!("{side}^{{tree}}")]);
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let parents = ["commit-tree", "-m", "x", "-p", &held.to_string(), "-p", &side, &tree];
        remote.reset(&remote.git(&[&identity[..], &parents].concat()));
        held = update(&mut mirror, &[held]);
        bench.assert_whole(&mirror, held);
        assert_eq!(bench.depth_of(held), 1);
        let fetched = bench.objects() - before;
        assert!(fetched < 20, "{fetched} objects for merge {n}");
    }
}

#[test]
fn a_rewind_to_what_is_held_needs_no_network() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    let old = revision(&remote.commit(&wide()));
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let new = revision(&remote.commit(&wide().file("x", "y")));
    update(&mut mirror, &[old]);
    let packs = bench.packs().len();
    remote.reset(&old.to_string());
    let tip = wait(mirror.resolve()).unwrap();
    let away = remote.away();
    assert_eq!(wait(mirror.fetch(&tip, &[new, old])).unwrap(), old);
    drop(away);
    assert_eq!(bench.packs().len(), packs);
    bench.assert_whole(&mirror, old);
}

#[test]
fn a_rewind_below_what_is_held_brings_only_the_difference() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    // Each commit has 82 new objects, and all of them together more than a request that assumes linear history accepts.
    let changed = |n: usize| {
        (0..40).fold(wide(), |files, dir| files.file(format!("dir{dir}/more"), format!("{n} {dir}")))
    };
    let commits: Vec<_> = (0..40).map(|n| remote.commit(&changed(n))).collect();
    let mut mirror = bench.open();
    let held = update(&mut mirror, &[]);
    let before = bench.objects();
    remote.reset(&commits[30]);
    let back = update(&mut mirror, &[held]);
    assert_eq!(back, revision(&commits[30]));
    bench.assert_whole(&mirror, back);
    let fetched = bench.objects() - before;
    assert!(fetched <= 130, "{fetched} objects, with the bases that a thin pack is completed with");
    assert_eq!(bench.depth_of(back), 1);
}

#[test]
fn unrelated_history_is_followed() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    remote.commit(&wide());
    let mut mirror = bench.open();
    let held = update(&mut mirror, &[]);
    let other = remote.commit_on("refs/heads/other", &Files::new().file("only", "this"));
    remote.reset(&other);
    remote.git(&["reflog", "expire", "--expire=now", "--all"]);
    remote.git(&["gc", "--quiet", "--prune=now"]);
    let new = update(&mut mirror, &[held]);
    assert_eq!(new, revision(&other));
    bench.assert_whole(&mirror, new);
    bench.assert_whole_again(&mirror, held);
}

#[test]
fn tags_are_peeled_to_their_commit() {
    for (name, target) in [("light", "main"), ("annotated", "main"), ("outer", "annotated")] {
        let bench = Bench::new(name);
        let remote = &bench.world.remote;
        let commit = remote.commit(&wide());
        remote.commit(&wide().file("later", "x"));
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let tag = |name: &str, target: &str| {
            remote.git(&[&identity[..], &["tag", "-a", "-m", "x", name, target]].concat());
        };
        remote.git(&["tag", "light", &commit]);
        tag("annotated", &commit);
        tag("outer", "annotated");
        let mut mirror = bench.open();
        assert_eq!(update(&mut mirror, &[]), revision(&commit), "{name} of {target}");
        assert_eq!(bench.depth_of(revision(&commit)), 1);
        // And again from a mirror that holds something else: the boundary is the commit, not the tag.
        let next = remote.commit(&wide().file("last", "x"));
        remote.git(&["tag", "-f", "light", &next]);
        remote.git(&[&identity[..], &["tag", "-f", "-a", "-m", "y", "annotated", &next]].concat());
        remote.git(&[&identity[..], &["tag", "-f", "-a", "-m", "y", "outer", "annotated"]].concat());
        assert_eq!(update(&mut mirror, &[revision(&commit)]), revision(&next), "{name} moved");
        assert_eq!(bench.depth_of(revision(&next)), 1);
    }
}

#[test]
fn a_tag_of_something_else_is_refused_by_name() {
    let bench = Bench::new("tree");
    let remote = &bench.world.remote;
    remote.commit(&wide());
    remote.git(&["tag", "tree", "main^{tree}"]);
    let mut mirror = bench.open();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    assert!(matches!(&error, Error::NotACommit { kind, .. } if kind == "tree"), "{error:?}");
    assert!(!error.is_transient());
}

/// A mirror that holds a commit declares the next one as its boundary. If that is no commit, git's answer just ends,
/// and over HTTP nothing says why.
#[test]
fn a_tag_of_something_else_is_refused_by_name_also_if_a_commit_is_held() {
    use common::http_backend::{HttpBackend, Kind};
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    remote.commit(&wide());
    let other = remote.commit_on("refs/heads/other", &Files::new().file("f", "only here"));
    let [tree, blob] = [format!("{other}^{{tree}}"), format!("{other}:f")];
    let tag = |name: &str, target: &str| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        remote.git(&[&identity[..], &["tag", "-a", "-m", "x", name, target]].concat());
        remote.git(&["rev-parse", name])
    };
    remote.git(&["tag", "light", &tree]);
    tag("of-tree", &tree);
    tag("of-blob", &blob);
    tag("outer", "of-tree");
    let id = tag("of-commit", &other);
    let server = HttpBackend::start(bench.world.dir(), Kind::default());
    for (dir, url) in [("local", bench.options.wire.remote.clone()), ("http", server.url("remote"))] {
        let mut options = bench.options.clone();
        options.dir = bench.world.dir().join(dir);
        options.wire = wire::Options::new(url);
        let held = update(&mut Mirror::open(options.clone()).unwrap(), &[]);
        let mut follow = |asked: &str| {
            options.followed = asked.parse().unwrap();
            try_update(&mut Mirror::open(options.clone()).unwrap(), &[held])
        };
        for (name, kind) in [("light", "tree"), ("of-tree", "tree"), ("of-blob", "blob"), ("outer", "tree")] {
            let error = follow(name).unwrap_err();
            let tip = remote.git(&["rev-parse", name]);
            let expected = format!("refs/tags/{name} ({tip}) names a {kind}, not a commit");
            assert_eq!(error.to_string(), expected, "{dir}");
            assert!(error.is_refusal(), "{error:?}");
        }
        let error = follow(&remote.git(&["rev-parse", &tree])).unwrap_err();
        assert!(matches!(&error, Error::NotACommit { kind, .. } if kind == "tree"), "{error:?}");
        // The id of a tag is followed to the commit.
        assert_eq!(follow(&id).unwrap(), revision(&other), "{dir}");
    }
}

#[test]
fn a_commit_id_is_fetched_once_and_then_needs_nobody() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    let old = remote.commit(&wide());
    remote.commit(&wide().file("x", "y"));
    let mut bench = Bench { options: bench.options.clone(), world: bench.world };
    bench.options.followed = Ref::Commit(old.parse().unwrap());
    let mut mirror = bench.open();
    assert_eq!(update(&mut mirror, &[]), revision(&old));
    bench.assert_whole(&mirror, revision(&old));
    let away = bench.world.remote.away();
    assert_eq!(update(&mut mirror, &[]), revision(&old));
    drop(away);
}

#[test]
fn depth_follows_the_flag_across_restarts() {
    let mut bench = Bench::at_depth("main", Depth::Commits(3));
    for n in 0..10 {
        bench.world.remote.commit(&wide().file("n", n.to_string()));
    }
    for (depth, expected) in [
        (Depth::Commits(3), 3),
        (Depth::Commits(1), 1),
        (Depth::Commits(5), 5),
        (Depth::Commits(2), 2),
        (Depth::Full, 10),
        (Depth::Commits(1), 1),
        (Depth::Commits(100), 10),
    ] {
        bench.options.depth = depth;
        let mut mirror = bench.open();
        let at = update(&mut mirror, &[]);
        assert_eq!(bench.depth_of(at), expected, "{depth:?}");
        bench.assert_whole(&mirror, at);
    }
    // And updates keep it.
    for (depth, expected) in [(Depth::Commits(3), 3), (Depth::Full, 12)] {
        bench.options.depth = depth;
        let mut mirror = bench.open();
        let held = update(&mut mirror, &[]);
        bench.world.remote.commit(&wide().file("n", format!("after {expected}")));
        let at = update(&mut mirror, &[held]);
        assert_eq!(bench.depth_of(at), expected, "{depth:?}, updated");
    }
}

#[test]
fn a_tip_is_taken_as_it_was_seen() {
    let bench = Bench::new("main");
    let remote = &bench.world.remote;
    let seen = remote.commit(&wide());
    let mut mirror = bench.open();
    let tip = wait(mirror.resolve()).unwrap();
    remote.commit(&wide().file("later", "x"));
    let object: ObjectId = seen.parse().unwrap();
    assert_eq!(tip, Tip { name: Some("refs/heads/main".into()), object, peeled: None });
    assert_eq!(wait(mirror.fetch(&tip, &[])).unwrap(), revision(&seen));
}
