//! What a repository of several sources is asked, and that its mirror is one root's.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::common::http_backend::{HttpBackend, Kind};
use super::common::run::to_end;
use super::common::sources_world::{SourcesWorld, rows, source};
use super::common::{Files, Sidecar, eventually, noise};

#[test]
fn three_refs_of_one_repository_are_one_request_and_each_has_its_own_errors() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    for name in ["a", "b", "c"] {
        one.commit_on(&format!("refs/heads/{name}"), &Files::new().file("f", name));
    }
    let server = HttpBackend::start(many.world.dir(), Kind::default());
    let of = |name: &str| format!("name: {name}, repo: '{}', ref: {name}, to: {name}", server.url("one"));
    many.list(&["a", "b", "c"].map(of));
    let on_signal = ["--period=1h", "--min-interval=0s", "--http-bind=127.0.0.1:0"];
    let sidecar = Sidecar::of(&many.world, &mut many.sync(&on_signal));
    many.assert_shows(&[("a/f", "a"), ("b/f", "b"), ("c/f", "c")]);
    let ended = |attempts: u64| eventually(30, "it looks", || (sidecar.attempts() == attempts).then_some(()));
    ended(1);
    let signal = || {
        let pid = rustix::process::Pid::from_raw(sidecar.process.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    };
    server.forget();
    for look in 1..=5 {
        signal();
        ended(1 + look);
        assert_eq!(server.hits().len() as u64, look, "{:?}", server.hits());
    }
    // Something new is looked at until two looks agree, and fetched.
    server.forget();
    one.commit_on("refs/heads/b", &Files::new().file("f", "new"));
    signal();
    many.assert_shows(&[("a/f", "a"), ("b/f", "new"), ("c/f", "c")]);
    assert_eq!(server.hits().len(), 3, "two looks, and the pack: {:?}", server.hits());
    // A ref that is not there is the failure of its source alone.
    one.git(&["branch", "-D", "c"]);
    one.commit_on("refs/heads/a", &Files::new().file("f", "newer"));
    signal();
    many.assert_shows(&[("a/f", "newer"), ("b/f", "new"), ("c/f", "c")]);
    let rows =
        eventually(30, "it is said", || Some(rows(&sidecar)).filter(|rows| rows[2]["error"].is_string()));
    assert!(rows[2]["error"].as_str().unwrap().contains("couldn't find remote ref c"), "{rows:?}");
    assert!(rows[..2].iter().all(|row| row.get("error").is_none()), "{rows:?}");
}

#[test]
fn one_place_for_mirrors_serves_one_root() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    one.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, "")]);
    let place = format!("--mirror={}", many.world.dir().join("place").display());
    let sidecar = many.sidecar(&[&place]);
    many.assert_shows(&[("f", "1")]);
    let other = || {
        let mut command = many.world.treeswap(&["sync", "--one-time", &place, "--sources"]);
        to_end(command.arg(many.file()).arg("--root").arg(many.world.dir().join("other")))
    };
    let ran = other().expect_failure("a second root");
    assert!(ran.stderr.contains("another process uses the mirror"), "{}", ran.stderr);
    assert!(ran.stderr.contains("give each its own --mirror"), "{}", ran.stderr);
    drop(sidecar);
    other().expect_ok("it is free");
}

/// Bytes that the server sent since it was last asked for that.
fn sent(server: &HttpBackend) -> u64 {
    let sent = server.hits().iter().map(|hit| hit.down).sum();
    server.forget();
    sent
}

#[test]
fn one_repository_that_becomes_a_source_is_not_fetched_again_nor_back_nor_with_another_key() {
    let large: String = noise(1, 1 << 19).iter().map(|byte| format!("{byte:02x}")).collect(); // half of it can be sent
    for place in ["", "place"] {
        let many = SourcesWorld::new();
        let one = &many.world.remote;
        let files = Files::new().file("large", large.clone());
        one.commit(&files.clone().file("f", "1"));
        let server = HttpBackend::start(many.world.dir(), Kind::default());
        let url = server.url(one.path.file_name().unwrap().to_str().unwrap());
        let mirror = format!("--mirror={}", many.world.dir().join("place").display());
        let run = |what: &[&str]| {
            let mut command = many.world.treeswap(&["sync", "--one-time", "--root"]);
            command.arg(&many.world.root).args(what).args((!place.is_empty()).then_some(&mirror));
            to_end(&mut command).expect_ok("sync");
            sent(&server)
        };
        let repo = format!("--repo={url}");
        let listed = many.file().display().to_string();
        let list = |more: &str| many.list(&[format!("name: one, repo: '{url}', ref: main{more}")]);
        assert!(run(&[&repo, "--ref=main"]) > 1 << 19);
        list("");
        assert!(run(&["--sources", &listed]) < 1_000, "a source");
        one.commit(&files.clone().file("f", "2"));
        assert!(run(&["--sources", &listed]) < 10_000, "what changed");
        many.assert_shows(&[("f", "2"), ("large", &large)]);
        list(", credentials: {username: me, password-file: /dev/null}");
        assert!(run(&["--sources", &listed]) < 1_000, "with other credentials");
        one.commit(&files.clone().file("f", "3"));
        assert!(run(&[&repo, "--ref=main"]) < 10_000, "and back");
        many.assert_shows(&[("f", "3"), ("large", &large)]);
    }
}

#[test]
fn a_source_whose_first_mirror_is_gone_begins_with_the_one_repositorys_and_a_stranger_with_none() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    for (n, remote) in [(1, &one), (2, &two)] {
        remote.commit(&Files::new().file("large", noise(n, 1 << 19)));
    }
    let server = HttpBackend::start(many.world.dir(), Kind::default());
    let run = |what: &str| {
        let mut command = many.world.treeswap(&["sync", "--one-time", what, "--root"]);
        to_end(command.arg(&many.world.root)).expect_ok("sync");
        sent(&server)
    };
    let list = |remote| many.list(&[format!("name: one, repo: '{}', to: one", server.url(remote))]);
    let listed = format!("--sources={}", many.file().display());
    list("one");
    assert!(run(&listed) > 1 << 19);
    assert!(run(&format!("--repo={}", server.url("one"))) < 1_000, "the mirror of one repository is new");
    std::fs::remove_dir_all(many.world.root.join("..treeswap/mirrors")).unwrap();
    assert!(run(&listed) < 1_000, "those of sources are");
    let before = linked(&many.world.root.join("..treeswap"));
    assert!(before >= 2, "{before}");
    list("two");
    assert!(run(&listed) > 1 << 19, "another repository");
    assert_eq!(linked(&many.world.root.join("..treeswap")), before);
}

#[test]
fn the_mirror_of_a_source_that_was_removed_or_moved_goes_although_nothing_is_fetched() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("f", "2"));
    let is_mirror = |name: &String| name.len() == 20;
    let mirrors = || -> Vec<String> {
        let found = std::fs::read_dir(many.world.root.join("..treeswap/mirrors")).unwrap();
        found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(is_mirror).collect()
    };
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let _sidecar = many.sidecar(&["--grace=300ms"]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "2")]);
    assert_eq!(mirrors().len(), 2);
    many.list(&[source("one", &one, ", to: one")]);
    many.assert_shows(&[("one/f", "1")]);
    let left = eventually(30, "one mirror is left", || Some(mirrors()).filter(|left| left.len() == 1));
    let moved = many.world.dir().join("moved");
    std::fs::rename(&one.path, &moved).unwrap();
    many.list(&[format!("name: one, repo: {}, ref: main, to: one", moved.display())]);
    eventually(30, "the mirror of the new URL is left", || {
        (mirrors().len() == 1 && mirrors() != left).then_some(())
    });
    many.assert_shows(&[("one/f", "1")]);
}

/// Packs below a directory that have another name besides.
fn linked(dir: &Path) -> usize {
    let count = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
        found if found.is_dir() => linked(&entry.path()),
        found => usize::from(entry.path().extension().is_some_and(|end| end == "pack") && found.nlink() > 1),
    };
    std::fs::read_dir(dir).unwrap().map(|entry| count(entry.unwrap())).sum()
}
