//! `--max-stale`: how long a remote may say nothing before `/readyz` says so.

use std::time::{Duration, Instant};

use super::common::remote::Away;
use super::common::run::to_end;
use super::common::sources_world::{SourcesWorld, source};
use super::common::{Files, Sidecar, World, eventually};

const FLAGS: [&str; 5] =
    ["--period=500ms", "--min-interval=0s", "--max-backoff=500ms", "--sync-timeout=5s", "--max-stale=6s"];

fn file(content: &str) -> Files {
    Files::new().file("f", content)
}

/// Code and text of an answer.
fn asked(sidecar: &Sidecar, path: &str) -> (String, String) {
    let answer = sidecar.ask(path).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

#[track_caller]
fn becomes(sidecar: &Sidecar, code: &str, body: &str) {
    eventually(30, body, || (asked(sidecar, "/readyz") == (code.to_owned(), body.to_owned())).then_some(()));
}

/// It is not ready while the remote is away, says who, and is again.
#[track_caller]
fn turns(sidecar: &Sidecar, away: Away<'_>, who: &str) {
    let began = Instant::now();
    let said = format!("{who} has not answered for longer than --max-stale=6s");
    becomes(sidecar, "503", &format!("not ready: {said}\n"));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    let (code, checks) = asked(sidecar, "/readyz?verbose");
    let lines = format!("[+]generation ok\n[-]fresh failed: {said}\n[+]loop ok\n");
    assert!(code == "503" && checks.starts_with(&lines), "{checks}");
    assert_eq!(asked(sidecar, "/livez"), ("200".to_owned(), "alive\n".to_owned()));
    let (_, page) = asked(sidecar, "/status.html");
    assert!(page.contains(&format!("The last published revision is still served, but {said}.")), "{page}");
    let (_, status) = asked(sidecar, "/status.json");
    assert!(status.contains(&format!("\"stale\": \"{said}\"")) && status.contains("\"last_answer\""));
    drop(away);
    becomes(sidecar, "200", "ready\n");
    assert!(asked(sidecar, "/readyz?verbose").1.contains("[+]fresh ok\n"));
    assert!(!asked(sidecar, "/status.json").1.contains("\"stale\""));
}

#[test]
fn a_source_that_does_not_answer_turns_readiness_and_is_named() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&file("1"));
    two.commit(&file("1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&FLAGS[1..]);
    becomes(&sidecar, "200", "ready\n");
    turns(&sidecar, one.away(), "source one");
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
}

#[test]
fn so_does_the_only_repository_but_no_commit_that_is_refused() {
    let world = World::new();
    let commit = world.remote.commit(&file("1"));
    let sidecar = Sidecar::start(&world, &FLAGS);
    becomes(&sidecar, "200", "ready\n");
    turns(&sidecar, world.remote.away(), "the remote");
    world.remote.commit(&file("2").link("out", "../../etc/passwd"));
    eventually(30, "it is refused", || {
        (sidecar.metric("treeswap_sync_consecutive_failures")? > 0.0).then_some(())
    });
    let refused = Instant::now();
    while refused.elapsed() < Duration::from_secs(8) {
        assert_eq!(asked(&sidecar, "/readyz").0, "200");
        std::thread::sleep(Duration::from_millis(100));
    }
    world.assert_published(&commit);
}

#[test]
fn what_could_never_be_fresh_is_refused() {
    let world = World::new();
    for (flags, words) in [
        (
            &["--http-bind=:0", "--max-stale=24s"][..],
            "--max-stale=24s needs 3m55s or more: the longest pause between attempts (--period, \
             --init-period, --max-backoff) plus --min-interval plus --sync-timeout",
        ),
        (&["--max-stale=1h"], "--max-stale needs --http-bind"),
    ] {
        let ran = to_end(&mut world.sync(flags));
        assert!(ran.status.code() == Some(2) && ran.stderr.contains(words), "{flags:?}: {}", ran.stderr);
    }
}
