//! The HTTP listener over real connections: probes, status, metrics, and a webhook that only genuine senders open.
#![allow(missing_docs)]

mod page;
#[path = "../common/schema.rs"]
#[allow(dead_code, unreachable_pub)]
mod schema;
mod webhook;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use treeswap::admin::{Error, Listener, MAX_CONNECTIONS, Options, State};
use treeswap::generation::Name;
use treeswap::phase::{Attempt, Commit, GenerationStatus, Outcome, Status, Trigger};
use treeswap::revision::{ObjectId, Revision};

const SECRET: &str = "correct horse battery staple";
const BODY: &[u8] = br#"{"ref":"refs/heads/main"}"#;

/// What a service is like whose status the test sets.
struct Parts {
    status: tokio::sync::watch::Sender<Status>,
    looks: Arc<AtomicUsize>,
    state: State,
}

impl Parts {
    fn new() -> Self {
        let (status, receiver) =
            tokio::sync::watch::channel(Status { alive_until_ms: u64::MAX, ..Status::default() });
        let looks = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&looks);
        let trigger = Arc::new(move |trigger, _: &[String]| {
            assert_eq!(trigger, Trigger::Webhook);
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let registry = Arc::new(Mutex::new(Registry::with_prefix("treeswap")));
        Self { status, looks, state: State { status: receiver, registry, trigger, git_sync_registry: None } }
    }
}

/// A listener on a thread of its own.
struct Server {
    address: SocketAddr,
    status: tokio::sync::watch::Sender<Status>,
    looks: Arc<AtomicUsize>,
    shutdown: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
    dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        Self::with_secrets(&[])
    }

    fn with_secrets(secrets: &[&str]) -> Self {
        Self::of(Options { metrics: true, ..Options::default() }, secrets)
    }

    fn of(options: Options, secrets: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = secrets
            .iter()
            .enumerate()
            .map(|(n, secret)| {
                let path = dir.path().join(n.to_string());
                std::fs::write(&path, secret).unwrap();
                path
            })
            .collect();
        let Parts { status, looks, state } = Parts::new();
        let shutdown = CancellationToken::new();
        let (tell, told) = std::sync::mpsc::channel();
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                let options = Options { bind: "127.0.0.1:0".into(), webhook_secrets: files, ..options };
                let listener = Listener::bind(options).await.unwrap();
                tell.send(listener.address()).unwrap();
                listener.serve(state, stop).await;
            });
        });
        Self { address: told.recv().unwrap(), status, looks, shutdown, thread: Some(thread), dir }
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        let _ = stream.write_all(body); // a refused one may be answered, and cut, before it was read
        Answer::read(&mut stream)
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    fn browse(&self, path: &str) -> Answer {
        self.ask("GET", path, &[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")], b"")
    }

    fn post(&self, headers: &[(&str, &str)]) -> Answer {
        self.ask("POST", "/sync", headers, BODY)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(std::thread::panicking() || served.is_ok(), "serving failed: {served:?}");
        }
    }
}

#[derive(Debug)]
struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => bytes.extend_from_slice(&buffer[..n]),
                Err(_) if !bytes.is_empty() => break, // reset after the answer, because a body was left unread
                Err(error) => panic!("no answer: {error}"),
            }
        }
        Self::parse(&bytes)
    }

    /// Reads no further than the head: the connection may stay open.
    fn read_head(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { code, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn signature(secret: &str, body: &[u8]) -> String {
    hex(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body).as_ref())
}

fn github(secret: &str) -> String {
    format!("sha256={}", signature(secret, BODY))
}

fn generation(n: u8, reason: &str) -> GenerationStatus {
    GenerationStatus {
        name: Name::parse(&format!("..2026_11_20_15_04_05.00000000{n}")).unwrap(),
        revision: Some(Revision(ObjectId([n; 20]))),
        commit: Some(Commit {
            subject: format!("Change {n} {}", if reason.contains('<') { reason } else { "" })
                .trim_end()
                .into(),
            author: format!("Ada Lovelace {}", if reason.contains('<') { reason } else { "" })
                .trim_end()
                .into(),
            date: Some("2026-11-20T15:00:00Z".parse().unwrap()),
            sources: Vec::new(),
        }),
        entries: 1234,
        bytes: 5 << 20,
        published: "2026-11-20T15:04:05Z".parse::<Timestamp>().unwrap(),
        retired: None,
        pinned: n > 1,
        holders: Vec::new(),
        reason: reason.into(),
    }
}

fn serving() -> Status {
    Status {
        ready: true,
        alive_until_ms: u64::MAX,
        remote: "https://git.example.com/release.git".into(),
        ref_name: "main".into(),
        root: "/config".into(),
        current: Some(generation(1, "current")),
        retired: vec![generation(2, "pinned")],
        ..Status::default()
    }
}

#[test]
fn readiness_opens_with_the_first_generation_and_never_closes() {
    let server = Server::start();
    for path in ["/", "/readyz", "/healthz"] {
        assert_eq!(server.get(path).code, 503, "{path}");
    }
    server.status.send_replace(serving());
    for path in ["/", "/readyz", "/healthz"] {
        assert_eq!(server.get(path).code, 200, "{path}");
    }
    let outage =
        Status { ready: true, consecutive_failures: 99, alive_until_ms: u64::MAX, ..Status::default() };
    server.status.send_replace(outage);
    for path in ["/", "/readyz", "/healthz"] {
        assert_eq!(
            server.get(path).code,
            200,
            "{path}: an outage must not take the application out of service"
        );
    }
}

#[test]
fn verbose_readiness_lists_what_decides_and_what_informs() {
    let server = Server::start();
    let lines = server.get("/readyz?verbose").body;
    assert!(lines.contains("[-]generation failed") && lines.ends_with("readyz check failed\n"), "{lines}");
    let failure = Attempt {
        at: "2026-11-20T15:04:05Z".parse().unwrap(),
        trigger: Trigger::Timer,
        outcome: Outcome::Failed,
        duration_ms: 1,
        error: Some("no room for the new generation in /config".into()),
        hints: Vec::new(),
    };
    server.status.send_replace(Status {
        consecutive_failures: 3,
        last_failure: Some(failure.clone()),
        ..serving()
    });
    let answer = server.get("/readyz?verbose=1");
    assert_eq!(answer.code, 200);
    let sync = "[-]sync failed 3 times in a row: no room for the new generation in /config (informs only)\n";
    assert!(
        answer.body.contains(&format!("[+]generation ok\n[+]loop ok\n{sync}")),
        "no part is blamed that is well: {}",
        answer.body
    );
    // A failure is kept after a success, but is none any more.
    server.status.send_replace(Status { last_failure: Some(failure), ..serving() });
    let lines = server.get("/readyz?verbose").body;
    assert!(lines.contains("[+]loop ok\n[+]sync ok (informs only)\n"), "{lines}");
}

#[test]
fn a_loop_that_breaks_its_promise_is_not_alive() {
    let server = Server::start();
    assert_eq!(server.get("/livez").code, 200);
    server.status.send_replace(Status { alive_until_ms: 1, ..serving() });
    assert_eq!(server.get("/livez").code, 503);
    assert_eq!(server.get("/readyz").code, 200, "what is published still serves");
    assert!(server.browse("/status").body.contains("hangs"));
}

#[test]
fn the_front_answers_probes_as_git_sync_does_and_browsers_with_the_page() {
    let server = Server::start();
    assert_eq!(server.browse("/").code, 503);
    server.status.send_replace(serving());
    let probe = server.get("/");
    assert_eq!((probe.code, probe.body.as_str()), (200, ""));
    let page = server.browse("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.body.contains("<!doctype html>"));
}

#[test]
fn metrics_are_openmetrics_and_count_webhooks_by_how_they_ended() {
    let server = Server::with_secrets(&[SECRET]);
    server.post(&[("x-hub-signature-256", &github(SECRET))]);
    server.post(&[("x-hub-signature-256", &github("wrong"))]);
    let metrics = server.get("/metrics");
    assert_eq!(
        metrics.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    for line in
        ["treeswap_webhooks_total{result=\"accepted\"} 1", "treeswap_webhooks_total{result=\"refused\"} 1"]
    {
        assert!(metrics.body.lines().any(|found| found == line), "{line} is not in\n{}", metrics.body);
    }
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    let server = Server::with_secrets(&[SECRET]);
    for path in ["/nothing", "/sync/", "/status/..", "/debug/pprof/", "//livez"] {
        assert_eq!(server.get(path).code, 404, "{path}");
    }
    let answer = server.get("/sync");
    assert_eq!((answer.code, answer.header("allow")), (405, Some("post")));
    assert_eq!(server.ask("POST", "/livez", &[], b"").code, 405);
    assert_eq!(server.ask("GET", "/livez", &[("x", &"y".repeat(20 << 10))], b"").code, 431);
    let head = server.ask("HEAD", "/metrics", &[], b"");
    assert_eq!((head.code, head.body.as_str()), (200, ""));
}

#[test]
fn metrics_that_are_turned_off_are_no_route() {
    let server = Server::of(Options::default(), &[SECRET]);
    assert_eq!(server.get("/metrics").code, 404);
    assert_eq!(server.get("/livez").code, 200);
}

#[test]
fn bodies_over_a_mebibyte_are_refused_with_and_without_a_declared_length() {
    let server = Server::with_secrets(&[SECRET]);
    let mut stream = server.connect();
    let head = "POST /sync HTTP/1.1\r\nhost: x\r\nx-gitlab-token: correct horse battery staple\r\n";
    write!(stream, "{head}content-length: 1048577\r\n\r\n").unwrap();
    assert_eq!(Answer::read(&mut stream).code, 413, "not one byte of it was waited for");

    let mut stream = server.connect();
    write!(stream, "{head}connection: close\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..17 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    assert_eq!(Answer::read(&mut stream).code, 413);

    let largest = vec![b' '; 1 << 20];
    let signed = format!("sha256={}", signature(SECRET, &largest));
    assert_eq!(server.ask("POST", "/sync", &[("x-hub-signature-256", &signed)], &largest).code, 202);
    assert_eq!(server.looks(), 1);
}

#[test]
fn slow_connections_keep_nobody_out() {
    let server = Server::with_secrets(&[SECRET]);
    server.status.send_replace(serving());
    // 200 that never finish their heads, and 70 that never finish a body for which their signature may yet be right.
    let mut slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /livez HTTP/1.1\r\nx: y").unwrap();
            stream
        })
        .collect();
    assert_eq!(server.get("/livez").code, 200);
    let signed = github(SECRET);
    for _ in 0..70 {
        let mut stream = server.connect();
        write!(stream, "POST /sync HTTP/1.1\r\nhost: x\r\nx-hub-signature-256: {signed}\r\ncontent-length: 1000\r\n\r\n{{")
            .unwrap();
        slow.push(stream);
        assert_eq!(server.get("/livez").code, 200, "with {} slow connections", slow.len());
    }
    assert!(slow.len() > MAX_CONNECTIONS);
    assert_eq!(server.get("/readyz").code, 200);
    // Bodies have their own ceiling, and the oldest makes room: a genuine sender is not kept out either.
    assert_eq!(server.post(&[("x-hub-signature-256", &signed)]).code, 202);
    assert_eq!(Answer::read_head(&mut slow[200]).code, 408, "the oldest slow body");
    assert_eq!(server.looks(), 1);
}

/// In these two the runtime's clock jumps to the next deadline whenever nothing else is to be done.
async fn unhurried(request: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, SECRET).unwrap();
    let parts = Parts::new();
    let shutdown = CancellationToken::new();
    let options = Options { bind: "127.0.0.1:0".into(), webhook_secrets: vec![file], ..Options::default() };
    let listener = Listener::bind(options).await.unwrap();
    let address = listener.address();
    let serving = tokio::spawn(listener.serve(parts.state, shutdown.clone()));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    shutdown.cancel();
    serving.await.unwrap();
    assert_eq!(parts.looks.load(Ordering::SeqCst), 0);
    answer
}

// In real time, 10 seconds: a paused clock would run on while a thread reads the file of secrets.
#[tokio::test]
async fn a_body_that_does_not_come_in_time_is_given_up() {
    let signed = github(SECRET);
    let request = format!(
        "POST /sync HTTP/1.1\r\nhost: x\r\nx-hub-signature-256: {signed}\r\ncontent-length: 25\r\n\r\n{{\"ref\""
    );
    assert_eq!(Answer::parse(&unhurried(&request).await).code, 408);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_in_time_ends_the_connection() {
    let answer = unhurried("GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    assert!(answer.is_empty() || Answer::parse(&answer).code == 408, "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn shutting_down_does_not_wait_for_idle_connections() {
    let mut server = Server::start();
    let mut idle = server.connect();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut byte = [0];
    idle.read_exact(&mut byte).unwrap();
    server.shutdown.cancel();
    server.thread.take().unwrap().join().unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).expect("the connection is closed");
}

#[tokio::test]
async fn addresses_that_cannot_be_had_are_named_with_a_hint() {
    let at = |bind: &str| Listener::bind(Options { bind: bind.into(), ..Options::default() });
    let taken = at("127.0.0.1:0").await.unwrap();
    let address = taken.address().to_string();
    let error = at(&address).await.unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    assert!(error.hints()[0].contains("another process"));
    for nonsense in ["8080", "", "localhost", ":80800", "127.0.0.1:http"] {
        let error = at(nonsense).await.unwrap_err();
        assert!(matches!(error, Error::Address(_)), "{nonsense}: {error}");
        assert!(error.hints()[0].contains(":8080"));
    }
    assert!(at(":0").await.unwrap().address().ip().is_unspecified());
}
