//! What is said and counted when one source fails, and when all of them do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::common::http_backend::{Hit, HttpBackend, Kind};
use super::common::run::to_end;
use super::common::sources_world::{SourcesWorld, source};
use super::common::{Files, Remote, Sidecar, eventually};

const LAST_SUCCESS: &str = "treeswap_last_success_timestamp_seconds";
const FAILURES: &str = "treeswap_sync_consecutive_failures";

fn file(content: &str) -> Files {
    Files::new().file("f", content)
}

/// Two sources, `one` and `two`, with a commit each.
fn two() -> (SourcesWorld, Remote, Remote) {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&file("1"));
    two.commit(&file("1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    (many, one, two)
}

fn counted(sidecar: &Sidecar, stage: &str, class: &str) -> f64 {
    sidecar.metric_of("treeswap_errors_total", &format!("{{stage=\"{stage}\",class=\"{class}\"}}")).unwrap()
}

#[test]
fn an_outage_of_every_remote_is_a_failure_and_no_success() {
    let (many, one, two) = two();
    let mut sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    let away = (one.away(), two.away());
    eventually(30, "attempts fail", || (sidecar.metric(FAILURES)? >= 3.0).then_some(()));
    let last = sidecar.metric(LAST_SUCCESS).unwrap();
    let answered = sidecar.status()["last_answer"].clone();
    sidecar.idle(3);
    assert_eq!(sidecar.metric(LAST_SUCCESS).unwrap(), last, "nothing was reached");
    assert_eq!(sidecar.status()["last_answer"], answered);
    assert!(answered.is_string());
    assert!(counted(&sidecar, "resolve", "permanent") >= 6.0, "two for each attempt");
    let words = "no source can be updated; source one: ";
    assert!(sidecar.process.log().contains(words), "{}", sidecar.process.log());
    let status = |more: &[&str]| to_end(many.world.treeswap(&["status"]).arg(&many.world.root).args(more));
    let table = status(&[]).stdout;
    assert!(table.contains(words) && table.contains(" in a row, since "), "{table}");
    let too_old = || (status(&["--max-age=1s", "--quiet"]).status.code() == Some(1)).then_some(());
    eventually(30, "the last success is too old", too_old);
    // Nor is it a success for a process that starts meanwhile.
    sidecar.process.terminate();
    let mut next = many.sidecar(&[]);
    eventually(30, "attempts fail", || (next.metric(FAILURES)? >= 2.0).then_some(()));
    assert!((next.metric(LAST_SUCCESS).unwrap() - last).abs() < 0.5, "it is the one of before");
    assert!(next.status().get("last_answer").is_none(), "nobody has answered this process");
    drop(away);
    eventually(30, "it recovers", || (next.metric(FAILURES)? == 0.0).then_some(()));
    assert!(next.metric(LAST_SUCCESS).unwrap() > last + 0.5);
    // It is counted before it is logged.
    eventually(30, "it is logged", || next.process.log().contains("\"recovered after ").then_some(()));
    assert!(next.process.log().contains("source one recovered after "), "{}", next.process.log());
    next.process.terminate();
    let _away = (one.away(), two.away());
    assert_eq!(many.once().status.code(), Some(3), "something is published");
    let ended = to_end(&mut many.sync(&["--max-failures=2", "--init-max-failures=2", "--max-backoff=10ms"]));
    ended.expect_failure("too many failures end it");
}

#[test]
fn a_single_source_that_fails_is_logged_and_counted_and_fails_no_attempt() {
    let (many, one, _two) = two();
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    let away = one.away();
    eventually(30, "it is counted", || (counted(&sidecar, "resolve", "permanent") >= 2.0).then_some(()));
    let last = sidecar.metric(LAST_SUCCESS).unwrap();
    eventually(30, "the other one answers", || (sidecar.metric(LAST_SUCCESS)? > last).then_some(()));
    assert_eq!(sidecar.metric(FAILURES), Some(0.0));
    let log = sidecar.process.log();
    let line = log.lines().find(|line| line.contains("source one is not at the newest commit")).unwrap();
    assert!(line.contains("ERROR"), "an operator has to act: {line}");
    drop(away);
    eventually(30, "it recovers", || {
        sidecar.process.log().contains("source one recovered after ").then_some(())
    });
    // A commit that is refused is counted as such.
    one.commit(&file("2").link("out", "../two/f"));
    eventually(30, "it is refused", || (counted(&sidecar, "export", "refused") >= 2.0).then_some(()));
    assert_eq!(sidecar.metric(FAILURES), Some(0.0));
}

/// An attempt that holds a source back polls again, and finds refused what it has refused just now.
#[test]
fn a_refused_commit_counts_once_in_an_attempt_as_of_a_single_repository() {
    let large = (0..60).fold(Files::new(), |files, at| files.file(format!("f{at}"), "x"));
    for (mode, refused) in [
        ("", large.clone()),
        ("", file("2").link("out", "../two/f")),
        ("on-failure: hold\n", large),
        ("on-failure: hold\n", file("2").link("out", "../two/f")),
    ] {
        let (many, one, two) = two();
        many.list_with(mode, &[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
        let flags = ["--period=1h", "--min-interval=0s", "--max-tree-entries=50", "--http-bind=127.0.0.1:0"];
        let sidecar = Sidecar::of(&many.world, &mut many.sync(&flags));
        eventually(30, "the first attempt ends", || (sidecar.attempts() >= 1).then_some(()));
        many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
        let signal = || {
            let pid = rustix::process::Pid::from_raw(sidecar.process.pid().try_into().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        };
        one.commit(&refused);
        signal();
        let fails = || sidecar.metric_of("treeswap_source_failing", "{source=\"one\"}");
        eventually(30, "it is refused", || fails().filter(|fails| *fails == 1.0));
        assert_eq!(sidecar.metric("treeswap_errors_total"), Some(1.0), "{mode}{}", sidecar.process.log());
        one.commit(&file("3"));
        signal();
        many.assert_shows(&[("one/f", "3"), ("two/f", "1")]);
        eventually(30, "it has recovered", || fails().filter(|fails| *fails == 0.0));
        let log = sidecar.process.log();
        assert!(log.contains("recovered after 1 failure\""), "{mode}{log}");
        assert!(!log.contains(" failures\""), "{mode}{log}");
        assert_eq!(sidecar.metric("treeswap_errors_total"), Some(1.0), "{mode}{log}");
    }
}

/// The mirrors have what is published again, but the attempt fails, because no remote answers.
#[test]
fn a_generation_that_is_published_again_in_an_outage_is_touched_after_it() {
    let (many, one, two) = two();
    let touched = many.world.root.join("..touched");
    let sidecar = many.sidecar(&["--touch-file=..touched"]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    eventually(30, "the first publication is touched", || touched.exists().then_some(()));
    let away = (one.away(), two.away());
    eventually(30, "attempts fail", || (sidecar.metric(FAILURES)? >= 1.0).then_some(()));
    std::fs::remove_file(&touched).unwrap();
    let current = std::fs::read_link(many.world.root.join("..data")).unwrap();
    std::fs::remove_dir_all(many.world.root.join(current)).unwrap();
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    drop(away);
    eventually(30, "the second one is touched", || touched.exists().then_some(()));
}

#[test]
fn nothing_is_fetched_into_what_has_taken_the_place_of_the_root() {
    let (many, one, _two) = two();
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    let root = &many.world.root;
    std::fs::rename(root, root.with_file_name("away")).unwrap();
    std::fs::create_dir(root).unwrap();
    std::fs::write(root.join("foreign"), "x").unwrap();
    let fail = |more: f64| {
        let before = sidecar.metric(FAILURES).unwrap();
        eventually(30, "attempts fail", || (sidecar.metric(FAILURES)? >= before + more).then_some(()));
    };
    fail(2.0); // polls that began before are over
    one.commit(&file("2"));
    fail(5.0);
    let names = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["foreign"]);
}

/// The mirrors are lost with it, and so is the record of which commits the published set has.
#[test]
fn a_root_that_is_made_again_or_loses_its_mirrors_has_them_again_and_goes_on() {
    for lost in [None, Some("..treeswap")] {
        let many = SourcesWorld::new();
        let names = ["one", "two", "three"];
        let remotes = names.map(|name| many.remote(name));
        for remote in &remotes {
            remote.commit(&file("1"));
        }
        many.list(&[0, 1, 2].map(|at| source(names[at], &remotes[at], &format!(", to: {}", names[at]))));
        let _sidecar = many.sidecar(&[]);
        many.assert_shows(&[("one/f", "1"), ("three/f", "1"), ("two/f", "1")]);
        let root = &many.world.root;
        let at = lost.map_or_else(|| root.clone(), |lost| root.join(lost));
        std::fs::rename(at, root.with_file_name("away")).unwrap(); // at once, while it is written to
        std::fs::create_dir_all(root).unwrap();
        let mirrors = root.join("..treeswap/mirrors");
        eventually(30, "all mirrors and the composed repository", || {
            let found = std::fs::read_dir(&mirrors).ok()?.flatten();
            (found.filter(|mirror| mirror.path().join("objects").is_dir()).count() == 4).then_some(())
        });
        many.assert_shows(&[("one/f", "1"), ("three/f", "1"), ("two/f", "1")]);
        remotes[0].commit(&file("2"));
        many.assert_shows(&[("one/f", "2"), ("three/f", "1"), ("two/f", "1")]);
        remotes[1].commit(&file("3"));
        many.assert_shows(&[("one/f", "2"), ("three/f", "1"), ("two/f", "3")]);
    }
}

/// The published set is as good without an answer as with one: only the answer shows that it is up to date.
#[test]
fn a_remote_that_hangs_is_no_success_either() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&file("1"));
    two.commit(&file("1"));
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    let hook = move |_: &Hit| {
        while is_hanging.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    };
    let server = HttpBackend::start(many.world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let of = |name: &str| format!("name: {name}, repo: '{}', ref: main, to: {name}", server.url(name));
    many.list(&["one", "two"].map(of));
    let sidecar = many.sidecar(&["--sync-timeout=3s"]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    hangs.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(500)); // what was answered before is taken
    let last = sidecar.metric(LAST_SUCCESS).unwrap();
    eventually(30, "attempts fail", || (sidecar.metric(FAILURES)? >= 1.0).then_some(()));
    assert_eq!(sidecar.metric(LAST_SUCCESS).unwrap(), last);
    assert!(counted(&sidecar, "resolve", "timeout") >= 2.0);
    hangs.store(false, Ordering::Relaxed);
    eventually(30, "it recovers", || (sidecar.metric(FAILURES)? == 0.0).then_some(()));
}

/// What a fetch refused is not fetched again, and a poll whose fetch hangs takes too long: both failed in the fetch.
#[test]
fn a_failure_of_a_fetch_is_counted_as_one_however_often_it_is_found() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&file("1"));
    two.commit(&file("1"));
    let tag = |what: &str| one.git(&["update-ref", "refs/tags/it", &one.tip(what).unwrap()]);
    tag("main");
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    let hook = move |hit: &Hit| {
        let is_fetch = String::from_utf8_lossy(&hit.body).contains("command=fetch");
        while is_fetch && hit.path.starts_with("/one/") && is_hanging.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    };
    let server = HttpBackend::start(many.world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let of = |name: &str, asked: &str| {
        format!("name: {name}, repo: '{}', ref: {asked}, to: {name}", server.url(name))
    };
    many.list(&[of("one", "refs/tags/it"), of("two", "main")]);
    let sidecar = many.sidecar(&["--sync-timeout=3s"]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    hangs.store(true, Ordering::Relaxed);
    one.commit(&file("2"));
    tag("main");
    eventually(30, "its fetch hangs", || (counted(&sidecar, "fetch", "timeout") >= 1.0).then_some(()));
    hangs.store(false, Ordering::Relaxed);
    many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
    tag("main:f");
    eventually(30, "a blob is refused", || (counted(&sidecar, "fetch", "refused") >= 3.0).then_some(()));
    assert_eq!(counted(&sidecar, "resolve", "refused"), 0.0);
}
