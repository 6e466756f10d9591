//! What a repository of several sources is asked, and that its mirror is one root's.

use super::common::http_backend::{HttpBackend, Kind};
use super::common::many::{Many, rows, source};
use super::common::run::to_end;
use super::common::{Files, Sidecar, eventually};

#[test]
fn three_refs_of_one_repository_are_one_request_and_each_has_its_own_errors() {
    let many = Many::new();
    let one = many.remote("one");
    for name in ["a", "b", "c"] {
        one.commit_on(&format!("refs/heads/{name}"), &Files::new().file("f", name));
    }
    let server = HttpBackend::start(many.world.dir(), Kind::default());
    let of = |name: &str| format!("name: {name}, repo: '{}', ref: {name}, to: {name}", server.url("one"));
    many.list(&["a", "b", "c"].map(of));
    let on_signal = ["--period=1h", "--min-interval=0s", "--http-bind=127.0.0.1:0"];
    let sidecar = Sidecar::of(&many.world, &mut many.sync(&on_signal));
    many.shows(&[("a/f", "a"), ("b/f", "b"), ("c/f", "c")]);
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
    many.shows(&[("a/f", "a"), ("b/f", "new"), ("c/f", "c")]);
    assert_eq!(server.hits().len(), 3, "two looks, and the pack: {:?}", server.hits());
    // A ref that is not there is the failure of its source alone.
    one.git(&["branch", "-D", "c"]);
    one.commit_on("refs/heads/a", &Files::new().file("f", "newer"));
    signal();
    many.shows(&[("a/f", "newer"), ("b/f", "new"), ("c/f", "c")]);
    let rows =
        eventually(30, "it is said", || Some(rows(&sidecar)).filter(|rows| rows[2]["error"].is_string()));
    assert!(rows[2]["error"].as_str().unwrap().contains("couldn't find remote ref c"), "{rows:?}");
    assert!(rows[..2].iter().all(|row| row.get("error").is_none()), "{rows:?}");
}

#[test]
fn one_place_for_mirrors_serves_one_root() {
    let many = Many::new();
    let one = many.remote("one");
    one.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, "")]);
    let place = format!("--mirror={}", many.world.dir().join("place").display());
    let sidecar = many.sidecar(&[&place]);
    many.shows(&[("f", "1")]);
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
