//! What webhooks and signals ask for: one source, or all of them; and what they do not shorten.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::common::http_backend::{Canned, HttpBackend, Kind};
use super::common::run::to_end;
use super::common::sources_world::{SourcesWorld, rows};
use super::common::{Files, Remote, Sidecar, allowed, eventually};

/// Two repositories behind a server, each a source.
struct Two {
    many: SourcesWorld,
    one: Remote,
    two: Remote,
    server: HttpBackend,
    secret: PathBuf,
}

const FIRST: [(&str, &str); 2] = [("one/f", "1"), ("two/f", "1")];

impl Two {
    fn new(kind: Kind) -> Self {
        let many = SourcesWorld::new();
        let (one, two) = (many.remote("one"), many.remote("two"));
        one.commit(&file("1"));
        two.commit(&file("1"));
        let server = HttpBackend::start(many.world.dir(), kind);
        let of = |name: &str| format!("name: {name}, repo: '{}', ref: main, to: {name}", server.url(name));
        many.list(&["one", "two"].map(of));
        let secret = many.world.dir().join("secret");
        std::fs::write(&secret, "hunter2").unwrap();
        Self { many, one, two, server, secret }
    }

    /// Its first set is published, and its first attempt over.
    fn sidecar(&self, period: &str) -> Sidecar {
        let flags = [period, "--min-interval=0s", "--jitter=0", "--http-bind=127.0.0.1:0"];
        let mut command = self.many.sync(&flags);
        let sidecar = Sidecar::of(&self.many.world, command.arg("--webhook-secret-file").arg(&self.secret));
        self.many.assert_shows(&FIRST);
        // It is counted a moment before the status has its sources, and until then every name is accepted.
        eventually(30, "the attempt ends", || {
            let is_shown = sidecar.ask("/status.json")?.contains("\"one\"");
            (is_shown && sidecar.attempts() > 0).then_some(())
        });
        self.server.forget();
        sidecar
    }

    /// Requests for a repository since they were forgotten.
    fn hits(&self, name: &str) -> usize {
        self.server.hits().iter().filter(|hit| hit.path.starts_with(&format!("/{name}/"))).count()
    }
}

fn file(content: &str) -> Files {
    Files::new().file("f", content)
}

/// A webhook, with the query of its URL; the answer.
fn webhook(sidecar: &Sidecar, query: &str) -> String {
    let path = format!("/sync{query}");
    sidecar.request_with("POST", &path, "Authorization: Bearer hunter2\r\n").unwrap()
}

#[track_caller]
fn asks(sidecar: &Sidecar, query: &str) {
    let answer = webhook(sidecar, query);
    assert!(answer.starts_with("HTTP/1.1 202 "), "{query}: {answer}");
}

fn hang_up(sidecar: &Sidecar) {
    kill_process(Pid::from_raw(sidecar.process.pid().try_into().unwrap()).unwrap(), Signal::HUP).unwrap();
}

#[test]
fn a_webhook_that_names_a_source_asks_its_repository_and_no_other() {
    let two = Two::new(Kind::default());
    let sidecar = two.sidecar("--period=1h");
    two.one.commit(&file("2"));
    two.two.commit(&file("2"));
    asks(&sidecar, "?source=one");
    two.many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
    assert_eq!(two.hits("two"), 0, "{:?}", two.server.hits());
    asks(&sidecar, "?x=y&source=one&source=two");
    two.many.assert_shows(&[("one/f", "2"), ("two/f", "2")]);
    two.one.commit(&file("3"));
    two.two.commit(&file("3"));
    asks(&sidecar, "");
    two.many.assert_shows(&[("one/f", "3"), ("two/f", "3")]);
}

#[test]
fn a_webhook_for_what_is_no_source_is_one_line_and_asks_nobody() {
    let two = Two::new(Kind::default());
    let sidecar = two.sidecar("--period=1h");
    for query in ["?source=three", "?source=one&source=three", "?source"] {
        let answer = webhook(&sidecar, query);
        assert!(answer.starts_with("HTTP/1.1 404 "), "{query}: {answer}");
        let name = if query == "?source" { "" } else { "three" };
        let line = format!("\r\n\r\nno source is called {name:?}; GET /status lists them\n");
        assert!(answer.ends_with(&line), "{query}: {answer}");
    }
    let wrong = "Authorization: Bearer guess\r\n";
    let answer = sidecar.request_with("POST", "/sync?source=three", wrong).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "who may not ask learns nothing: {answer}");
    let counted = sidecar.ask("/metrics").unwrap();
    assert!(counted.contains("treeswap_webhooks_total{result=\"unknown_source\"} 3\n"), "{counted}");
    assert!(sidecar.process.log().contains("rejected a webhook request: no source is called"));
    assert_eq!((two.hits("one"), two.hits("two")), (0, 0), "{:?}", two.server.hits());
}

#[test]
fn who_asks_ends_a_pause_after_failures() {
    for signal in [false, true] {
        let two = Two::new(Kind::default());
        let sidecar = two.sidecar("--period=1h");
        let ask = || if signal { hang_up(&sidecar) } else { asks(&sidecar, "?source=one") };
        {
            let _away = two.one.away();
            // Pauses of 10, 20 and 40 seconds would follow.
            for failures in 1..=3 {
                let failed = || {
                    let failed = two.server.hits().iter().any(|hit| hit.status >= 400);
                    failed.then_some(())
                };
                ask();
                eventually(8, &format!("failure {failures}, at once"), failed);
                two.server.forget();
            }
        }
        two.one.commit(&file("2"));
        let began = Instant::now();
        ask();
        two.many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
        let took = began.elapsed();
        assert!(took < allowed(Duration::from_secs(8)), "{took:?}");
    }
}

#[test]
fn a_pause_that_the_server_asked_for_is_kept_and_then_it_is_asked() {
    let busy = Arc::new(AtomicBool::new(false));
    let is_busy = Arc::clone(&busy);
    let hook = move |hit: &super::common::http_backend::Hit| {
        let refused = is_busy.load(Ordering::Relaxed) && hit.path.starts_with("/one/");
        refused.then(|| Canned::status(503, "busy").header("Retry-After", "7"))
    };
    let two = Two::new(Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let sidecar = two.sidecar("--period=1h");
    busy.store(true, Ordering::Relaxed);
    asks(&sidecar, "?source=one");
    eventually(30, "it is refused", || (two.hits("one") == 1).then_some(()));
    let refused = Instant::now();
    busy.store(false, Ordering::Relaxed);
    two.one.commit(&file("2"));
    while refused.elapsed() < Duration::from_secs(5) {
        asks(&sidecar, "?source=one");
        hang_up(&sidecar);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(two.hits("one"), 1, "{:?}", two.server.hits());
    // Nobody asks any more: what was asked for is not forgotten.
    two.many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
    assert!(refused.elapsed() >= Duration::from_secs(6), "{:?}", refused.elapsed());
}

#[test]
fn webhooks_for_one_source_do_not_put_the_others_off() {
    let two = Two::new(Kind::default());
    let sidecar = two.sidecar("--period=3s");
    two.two.commit(&file("2"));
    let began = Instant::now();
    let file = two.many.world.root.join("two/f");
    while std::fs::read_to_string(&file).unwrap() != "2" {
        assert!(began.elapsed() < allowed(Duration::from_secs(9)), "{:?}", two.server.hits());
        asks(&sidecar, "?source=one");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(two.hits("one") > 2, "{:?}", two.server.hits());
}

#[test]
fn what_is_asked_for_while_the_remote_answers_is_asked_again() {
    let slow = Arc::new(AtomicU64::new(0));
    let pause = Arc::clone(&slow);
    let hook = move |hit: &super::common::http_backend::Hit| {
        if hit.path.starts_with("/one/") {
            // Asked before git is: the answer is of then.
            std::thread::sleep(Duration::from_millis(pause.swap(0, Ordering::Relaxed)));
        }
        None
    };
    let two = Two::new(Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let sidecar = two.sidecar("--period=1h");
    slow.store(3_000, Ordering::Relaxed);
    asks(&sidecar, "?source=one");
    eventually(30, "it is late", || rows(&sidecar).first()?["late"].as_bool().filter(|late| *late));
    asks(&sidecar, "?source=one");
    eventually(30, "it is asked twice", || (two.hits("one") >= 2).then_some(()));
}

#[test]
fn a_ref_that_is_new_in_the_file_is_asked_for_whatever_the_webhook_names() {
    let two = Two::new(Kind::default());
    let sidecar = two.sidecar("--period=1h");
    two.one.commit_on("refs/heads/other", &file("o"));
    let of = |name: &str, repo: &str, asked: &str| {
        format!("name: {name}, repo: '{}', ref: {asked}, to: {name}", two.server.url(repo))
    };
    two.many.list(&[of("one", "one", "main"), of("two", "two", "main"), of("three", "one", "other")]);
    asks(&sidecar, "?source=two");
    two.many.assert_shows(&[("one/f", "1"), ("three/f", "o"), ("two/f", "1")]);
}

#[test]
fn a_refused_commit_does_not_make_its_repository_be_asked_less_often() {
    let two = Two::new(Kind::default());
    let tag = |what: &str| two.one.git(&["update-ref", "refs/tags/it", what]);
    tag(&two.one.tip("main").unwrap());
    let of = |name: &str, asked: &str| {
        format!("name: {name}, repo: '{}', ref: {asked}, to: {name}", two.server.url(name))
    };
    two.many.list(&[of("one", "refs/tags/it"), of("two", "main")]);
    let flags = ["--period=200ms", "--max-backoff=1h", "--jitter=0", "--min-interval=0s"];
    let mut command = two.many.sync(&flags);
    let sidecar = Sidecar::of(&two.many.world, command.arg("--http-bind=127.0.0.1:0"));
    two.many.assert_shows(&FIRST);
    tag(&two.one.tip("main:f").unwrap());
    let error = || rows(&sidecar).first()?["error"].as_str().map(str::to_owned);
    let refused = eventually(30, "it is refused", error);
    assert!(refused.contains("blob"), "{refused}");
    two.server.forget();
    let began = Instant::now();
    // With the pauses that follow failures this would take days.
    eventually(60, "it is asked at the usual pace", || (two.hits("one") >= 20).then_some(()));
    assert!(began.elapsed() > Duration::from_secs(2), "each attempt asks once: {:?}", began.elapsed());
    assert!(rows(&sidecar)[0]["failing_since"].is_string());
    two.one.commit(&file("2"));
    tag(&two.one.tip("main").unwrap());
    two.many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
    eventually(30, "it is well again", || rows(&sidecar)[0].get("error").is_none().then_some(()));
}

#[test]
fn an_askpass_url_is_asked_once_however_often_the_refs_are() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    one.commit(&file("1"));
    one.commit_on("refs/heads/other", &file("o"));
    let dir = many.world.dir();
    let auth = Some(("bob".to_owned(), "s3cret".to_owned()));
    let server = HttpBackend::start(dir, Kind { auth, ..Kind::default() });
    let hook = |_: &_| Some(Canned::status(200, "username=bob\npassword=s3cret\n"));
    let pass = HttpBackend::start(dir, Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let of = |name: &str| format!("name: {name}, repo: '{}', ref: {name}, to: {name}", server.url("one"));
    many.list(&["main", "other"].map(of));
    let askpass = format!("--askpass-url={}", pass.url("askpass"));
    to_end(&mut many.sync(&["--one-time", &askpass])).expect_ok("one attempt");
    many.assert_shows(&[("main/f", "1"), ("other/f", "o")]);
    let is_of_refs = |body: &[u8]| String::from_utf8_lossy(body).contains("command=ls-refs");
    let asked = server.hits().iter().filter(|hit| is_of_refs(&hit.body)).count();
    assert!(asked > 1, "the refs are asked for until two answers agree");
    assert_eq!(pass.hits().len(), 1);
}
