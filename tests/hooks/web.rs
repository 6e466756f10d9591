//! The request after a publication.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::common::http_backend::{Authority, Canned, Hit, HttpBackend, Kind};
use super::common::{Sidecar, World, eventually, refusing, run};
use super::files;

/// A receiver that answers with whatever status is set.
fn receiver(world: &World, status: u16) -> (HttpBackend, Arc<AtomicU16>) {
    let answer = Arc::new(AtomicU16::new(status));
    let say = Arc::clone(&answer);
    let hook = move |_: &Hit| Some(Canned::status(say.load(Ordering::SeqCst), "well"));
    (HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() }), answer)
}

/// Longer than any answer takes on a machine that is busy with others.
const PATIENT: &str = "--webhook-timeout=1m";

fn flag(server: &HttpBackend) -> String {
    format!("--webhook-url={}", server.url("services/s3cret?token=s3cret"))
}

#[test]
fn a_request_is_sent_once_a_revision() {
    let world = World::new();
    let (server, _) = receiver(&world, 200);
    let first = world.remote.commit(&files("first"));
    let sidecar = Sidecar::start(&world, &[&flag(&server), PATIENT]);
    let hits = eventually(30, "the first", || Some(server.hits()).filter(|hits| !hits.is_empty()));
    assert_eq!((hits[0].method.as_str(), hits[0].path.as_str()), ("POST", "/services/s3cret?token=s3cret"));
    assert_eq!(hits[0].header("gitsync-hash"), Some(first.as_str()));
    assert_eq!(hits[0].header("content-length"), Some("0"));
    let second = world.remote.commit(&files("second"));
    eventually(30, "the second", || (server.hits().len() == 2).then_some(()));
    sidecar.idle(10);
    let hits = server.hits();
    assert_eq!(hits.len(), 2, "{hits:?}");
    assert_eq!(hits[1].header("gitsync-hash"), Some(second.as_str()));
    let log = sidecar.process.log();
    assert!(!log.contains("s3cret"), "{log}");
    eventually(30, "both are counted", || {
        let counted = "treeswap_hooks_total{hook=\"webhook\",result=\"success\"} 2";
        sidecar.ask("/metrics")?.contains(counted).then_some(())
    });
}

#[test]
fn a_request_that_fails_is_sent_again_after_the_backoff() {
    let world = World::new();
    // No for the first one, yes for every one after it; and when they came.
    let came = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&came);
    let hook = move |_: &Hit| {
        let mut came = note.lock().unwrap();
        came.push(Instant::now());
        Some(Canned::status(if came.len() == 1 { 500 } else { 200 }, "well"))
    };
    let server = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    world.remote.commit(&files("first"));
    let sidecar = Sidecar::start(&world, &[&flag(&server), PATIENT, "--webhook-backoff=1s"]);
    eventually(30, "the second", || (server.hits().len() == 2).then_some(()));
    sidecar.idle(10);
    let came = came.lock().unwrap().clone();
    assert_eq!(came.len(), 2);
    let waited = came[1] - came[0];
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    let log = sidecar.process.log();
    assert!(log.contains("answered 500, not 200") && !log.contains("s3cret"), "{log}");
}

/// As git-sync's: the variable of a proxy is often set for all programs of a Pod.
#[test]
fn a_receiver_in_the_pod_is_reached_without_a_proxy() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let (server, _) = receiver(&world, 200);
    let (proxy, _) = receiver(&world, 200);
    let through = format!("http://{}", proxy.address);
    let hits = |url: &str| {
        let mut command = world.sync(&["--one-time", PATIENT, &format!("--webhook-url={url}")]);
        command.env("http_proxy", &through).env("no_proxy", ".cluster.local");
        run::to_end(&mut command).expect_ok(url);
        (server.hits().len(), proxy.hits().len())
    };
    let port = server.address.port();
    assert_eq!(hits(&format!("http://localhost:{port}/")), (1, 0));
    assert_eq!(hits(&format!("http://127.0.0.1:{port}/")), (2, 0));
    assert_eq!(hits("http://hooks.invalid/"), (2, 1));
}

#[test]
fn one_time_sends_exactly_one_request_and_fails_with_it_with_the_link_published() {
    let world = World::new();
    let (server, answer) = receiver(&world, 200);
    let commit = world.remote.commit(&files("first"));
    world.sync_once(&[&flag(&server), PATIENT]).expect_ok("200");
    assert_eq!(server.hits().len(), 1);
    answer.store(500, Ordering::SeqCst);
    let ran = world.sync_once(&[&flag(&server), PATIENT, "--webhook-backoff=1s"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    ran.names(&["published, but a hook failed: webhook failed", "answered 500, not 200"]);
    assert_eq!(server.hits().len(), 2, "exactly one more");
    world.assert_published(&commit);
}

#[test]
fn with_the_status_0_any_answer_will_do() {
    let world = World::new();
    let (server, _) = receiver(&world, 404);
    world.remote.commit(&files("first"));
    for status in ["0", "-1", "404"] {
        let status = format!("--webhook-success-status={status}");
        world.sync_once(&[&flag(&server), PATIENT, &status, "--webhook-method=GET"]).expect_ok(&status);
    }
    let hits = server.hits();
    assert!(hits.len() == 3 && hits.iter().all(|hit| hit.method == "GET"), "{hits:?}");
}

/// Responds to each request with these bytes, which end in the middle of a body, and then closes the connection or
/// keeps it open.
fn incomplete(response: &'static str, closes: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(response.as_bytes()).unwrap();
            if !closes {
                open.push(stream);
            }
        }
    });
    address
}

#[test]
fn the_status_decides_even_if_the_body_breaks_off_or_never_ends() {
    let world = World::new();
    world.remote.commit(&files("first"));
    for closes in [true, false] {
        let receiver = incomplete("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nwell", closes);
        let url = format!("--webhook-url=http://{receiver}/");
        world.sync_once(&[&url, PATIENT]).expect_ok(if closes { "it breaks off" } else { "it never ends" });
        let receiver = incomplete("HTTP/1.1 500 No\r\nContent-Length: 10\r\n\r\nbad", closes);
        let ran = world.sync_once(&[&format!("--webhook-url=http://{receiver}/"), PATIENT]);
        ran.names(&["webhook failed", "answered 500, not 200"]);
    }
}

#[test]
fn a_receiver_that_is_silent_absent_or_untrusted_is_named_without_its_path() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // connections are taken, and never answered
    let (absent, _keep) = refusing();
    let authority = Authority::new();
    let hook = |_: &Hit| Some(Canned::status(200, ""));
    let kind = Kind { hook: Some(Box::new(hook)), tls: Some(authority.server.clone()), ..Kind::default() };
    let tls = HttpBackend::start(world.dir(), kind);
    let silent = format!("http://{}/s3cret", silent.local_addr().unwrap());
    for (url, timeout, words) in [
        (silent, "--webhook-timeout=1s", "no response"),
        (format!("http://{absent}/s3cret"), PATIENT, "Connection refused"),
        (tls.url("s3cret"), PATIENT, "TLS"),
    ] {
        let ran = world.sync_once(&[&format!("--webhook-url={url}"), timeout]);
        assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
        assert!(ran.complaint().contains(words), "{words}: {}", ran.stderr);
        assert!(!ran.stderr.contains("s3cret"), "{}", ran.stderr);
    }
    let trusted = format!("--ca-file={}", authority.write(&world.dir().join("ca.pem")).display());
    let url = format!("--webhook-url={}", tls.url("s3cret"));
    world.sync_once(&[&url, PATIENT, &trusted]).expect_ok("trusted");
}

#[test]
fn what_is_wrong_with_a_hooks_flags_is_said_before_anything_is_touched() {
    let world = World::new();
    for (flags, words) in [
        (&["--webhook-url=ftp://h/s3cret"][..], "--webhook-url: must begin with http:// or https://"),
        (&["--webhook-url=http://h", "--webhook-method=A B"], "--webhook-method"),
        (&["--webhook-url=http://h", "--webhook-success-status=-2"], "--webhook-success-status"),
        (&["--webhook-url=http://h", "--webhook-timeout=999ms"], "--webhook-timeout: must be at least 1s"),
        (&["--webhook-url=http://h", "--webhook-backoff=0s"], "--webhook-backoff: must be at least 1s"),
        (&["--exechook-command=x", "--exechook-timeout=999ms"], "--exechook-timeout: must be at least 1s"),
        (&["--exechook-command=x", "--exechook-backoff=0s"], "--exechook-backoff: must be at least 1s"),
        (
            &["--pre-publish-exechook-command=x", "--pre-publish-exechook-timeout=1ms"],
            "--pre-publish-exechook-timeout: must be at least 1s",
        ),
    ] {
        let ran = world.sync_once(flags);
        assert_eq!(ran.status.code(), Some(2), "{flags:?}: {}", ran.stderr);
        assert!(ran.complaint().contains(words), "{flags:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("s3cret"), "{}", ran.stderr);
    }
    world.remote.commit(&files("first"));
    let idle = ["--webhook-timeout=1ms", "--exechook-backoff=1ms"];
    let refused = world.sync_once(&idle);
    assert!(
        refused.complaint().contains("--exechook-backoff needs --exechook-command"),
        "{}",
        refused.stderr
    );
    // As in git-sync: without a hook, its pauses are nobody's business.
    let mut git_sync = world.treeswap(&["git-sync", "--one-time", "--ref=main", "--link=link", "--repo"]);
    git_sync.arg(&world.remote.path).arg("--root").arg(&world.root).args(idle);
    run::to_end(&mut git_sync).expect_ok("no hooks");
}
