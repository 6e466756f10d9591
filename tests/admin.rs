//! The HTTP listener over real connections: probes, status, metrics, and a webhook that only genuine senders open.
#![allow(missing_docs)]

#[path = "common/schema.rs"]
#[allow(dead_code, unreachable_pub)]
mod schema;

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
use treeswap::phase::{
    Attempt, Commit, GenerationStatus, HookStatus, Outcome, Progress, Status, TargetStatus, Trigger,
};
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
    thread: Option<std::thread::JoinHandle<Result<(), Error>>>,
    dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        Self::with_secrets(&[])
    }

    fn with_secrets(secrets: &[&str]) -> Self {
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
                let options =
                    Options { bind: "127.0.0.1:0".into(), webhook_secrets: files, ..Options::default() };
                let listener = Listener::bind(options).await.unwrap();
                tell.send(listener.address()).unwrap();
                listener.serve(state, stop).await
            })
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
            assert!(std::thread::panicking() || matches!(served, Ok(Ok(()))), "serving failed: {served:?}");
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
    server.status.send_replace(Status { consecutive_failures: 3, ..serving() });
    let answer = server.get("/readyz?verbose=1");
    assert_eq!(answer.code, 200);
    assert!(
        answer.body.contains("[+]generation ok\n[+]loop ok\n[-]remote failed 3 times"),
        "{}",
        answer.body
    );
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
fn the_status_is_the_record_as_json_and_a_page_for_browsers() {
    let server = Server::start();
    server.status.send_replace(serving());
    let json = server.get("/status");
    assert_eq!(json.header("content-type"), Some("application/json"));
    schema::writer_status(&json.body);
    let read: Status = serde_json::from_str(&json.body).unwrap();
    assert_eq!(read, Status { alive_until_ms: 0, ..serving() }, "the promise is for the probe only");
    for page in [server.browse("/status"), server.get("/status.html")] {
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        for shown in ["up to date", &"01".repeat(20), "..2026_11_20_15_04_05.000000002", "pinned", "5.0 MiB"]
        {
            assert!(page.body.contains(shown), "the page does not show {shown}");
        }
        for loading in ["<script", "src=", "url(", "@import", "<link"] {
            assert!(!page.body.contains(loading), "the page stands alone, but has {loading}");
        }
    }
}

#[test]
fn accept_decides_about_page_or_json_by_quality_and_then_by_name() {
    let server = Server::start();
    server.status.send_replace(serving());
    for (accept, page) in [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
        ("text/html, */*", true),
        ("text/*", true),
        ("TEXT/HTML", true),
        ("application/json;q=0.5, text/html;q=0.7", true),
        ("*/*", false),
        ("application/json", false),
        ("application/json, text/html", false),
        ("application/json, text/html;q=0.9", false),
        ("text/html;q=0", false),
        ("text/html;q=0, */*", false),
        ("*/*, text/html;q=0.1", false),
        ("text/plain", false),
        ("", false),
    ] {
        let answer = server.ask("GET", "/status", &[("accept", accept)], b"");
        let kind = if page { "text/html; charset=utf-8" } else { "application/json" };
        assert_eq!(answer.header("content-type"), Some(kind), "{accept:?}");
        assert_eq!(answer.header("vary"), Some("accept"), "caches need to know");
    }
    let page = server.browse("/");
    let link = page.body.split("<a href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let json = server.browse(link);
    assert_eq!(json.header("content-type"), Some("application/json"), "{link} in a browser");
    serde_json::from_str::<Status>(&json.body).unwrap();
}

#[test]
fn the_page_says_who_holds_a_pin_what_fails_and_what_runs() {
    let server = Server::start();
    let root = tempfile::tempdir().unwrap();
    let pinned = root.path().join(generation(2, "").name.as_str());
    std::fs::create_dir(&pinned).unwrap();
    let held = std::fs::File::open(&pinned).unwrap();
    held.lock_shared().unwrap();
    let failing = HookStatus {
        hook: "exechook".into(),
        at: Some("2026-11-20T15:04:05Z".parse().unwrap()),
        error: Some("it ended with 7".into()),
        hints: vec!["look at its output".into()],
        consecutive_failures: 12,
        failing_since: Some("2026-11-20T14:00:00Z".parse().unwrap()),
        ..HookStatus::default()
    };
    let progress = Progress {
        since: Timestamp::now(),
        stage: "fetch".into(),
        what: "fetching objects".into(),
        fetched_bytes: 3 << 20,
    };
    server.status.send_replace(Status {
        root: root.path().display().to_string(),
        hooks: vec![failing, HookStatus { hook: "webhook".into(), ..HookStatus::default() }],
        progress: Some(progress),
        ..serving()
    });
    let page = server.browse("/status").body;
    let me = format!("({})", std::process::id());
    for shown in [
        "a hook fails",
        "<h1>",
        "role=\"status\"",
        "<th scope=\"col\">Directory</th>",
        "Change 1",
        "by Ada Lovelace",
        "it ended with 7",
        "look at its output",
        "12 in a row",
        "not yet",
        "fetching objects, 3.0 MiB received",
        &me,
    ] {
        assert!(page.contains(shown), "{shown} is not on the page:\n{page}");
    }
    let json: Status = serde_json::from_value(schema::writer_status(&server.get("/status").body)).unwrap();
    assert_eq!(json.retired[0].holders[0].pid, std::process::id());
    assert_eq!(json.hooks[0].consecutive_failures, 12);
}

#[test]
fn whatever_comes_from_outside_is_escaped_on_the_page() {
    const HOSTILE: &str = "\"'><script>alert(1)</script>&amp;";
    let server = Server::start();
    let failure = Attempt {
        at: Timestamp::UNIX_EPOCH,
        trigger: Trigger::Timer,
        outcome: Outcome::Failed,
        duration_ms: 1,
        error: Some(HOSTILE.into()),
        hints: vec![HOSTILE.into()],
    };
    let progress = Progress {
        since: Timestamp::UNIX_EPOCH,
        stage: HOSTILE.into(),
        what: HOSTILE.into(),
        fetched_bytes: 1,
    };
    server.status.send_replace(Status {
        remote: HOSTILE.into(),
        ref_name: HOSTILE.into(),
        root: HOSTILE.into(),
        current: Some(generation(1, HOSTILE)),
        retired: vec![generation(2, HOSTILE)],
        last_attempt: Some(failure.clone()),
        last_delivery: Some(failure.clone()),
        hooks: vec![HookStatus {
            hook: HOSTILE.into(),
            at: Some(Timestamp::UNIX_EPOCH),
            error: Some(HOSTILE.into()),
            hints: vec![HOSTILE.into()],
            consecutive_failures: 1,
            ..HookStatus::default()
        }],
        progress: Some(progress.clone()),
        delivery_progress: Some(progress),
        targets: vec![TargetStatus {
            cluster: HOSTILE.into(),
            namespace: "ci".into(),
            name: "plugins".into(),
            revision: "1".repeat(40),
            digest: "2".repeat(64),
            at: Timestamp::UNIX_EPOCH,
            outcome: "failed".into(),
            error: Some(HOSTILE.into()),
        }],
        last_failure: Some(failure),
        consecutive_failures: 1,
        ..serving()
    });
    schema::writer_status(&server.get("/status").body);
    let page = server.get("/status.html");
    assert!(!page.body.contains("<script") && !page.body.contains("\"'>"), "{}", page.body);
    let escaped = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;";
    assert_eq!(
        page.body.matches(escaped).count(),
        22,
        "title, remote, ref, root, errors, hints, reasons, commits, a hook, what runs, and of a target cluster and error"
    );
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
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
fn genuine_senders_of_every_kind_are_answered_at_once_and_cause_a_look_each() {
    let server = Server::with_secrets(&[SECRET]);
    let plain = signature(SECRET, BODY);
    let bearer = format!("Bearer {SECRET}");
    let senders: [&[(&str, &str)]; 5] = [
        &[("x-hub-signature-256", &github(SECRET)), ("x-github-event", "push"), ("x-github-delivery", "1")],
        &[("x-gitlab-token", SECRET), ("idempotency-key", "2")],
        &[("authorization", &bearer)],
        &[("authorization", &bearer), ("x-github-event", "ping")],
        &[("authorization", &bearer.replace("Bearer", "bearer"))],
    ];
    for (n, headers) in senders.iter().enumerate() {
        assert_eq!(server.post(headers).code, 202, "{headers:?}");
        assert_eq!(server.looks(), n + 1);
    }
    for header in ["x-gitea-signature", "x-forgejo-signature"] {
        // A listener of its own: the same signature a second time is a replay.
        let server = Server::with_secrets(&[SECRET]);
        assert_eq!(server.post(&[(header, &plain)]).code, 202, "{header}");
        assert_eq!(server.looks(), 1);
    }
}

#[test]
fn every_kind_of_forgery_gets_the_same_refusal_and_no_look() {
    let server = Server::with_secrets(&[SECRET]);
    let good = signature(SECRET, BODY);
    let sha1 = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET.as_bytes()), BODY);
    let flipped = {
        let last = if good.ends_with('0') { '1' } else { '0' };
        format!("sha256={}{last}", &good[..63])
    };
    let forgeries: Vec<(&str, Vec<(&str, String)>)> = vec![
        ("nothing at all", vec![]),
        ("signed with another secret", vec![("x-hub-signature-256", github("guess"))]),
        ("signed with an empty secret", vec![("x-hub-signature-256", github(""))]),
        ("of another body", vec![("x-hub-signature-256", format!("sha256={}", signature(SECRET, b"{}")))]),
        ("one digit wrong", vec![("x-hub-signature-256", flipped)]),
        ("cut short", vec![("x-hub-signature-256", format!("sha256={}", &good[..62]))]),
        ("too long", vec![("x-hub-signature-256", format!("sha256={good}00"))]),
        ("empty", vec![("x-hub-signature-256", "sha256=".into())]),
        ("without its prefix", vec![("x-hub-signature-256", good.clone())]),
        ("not hexadecimal", vec![("x-hub-signature-256", format!("sha256={}", "zz".repeat(32)))]),
        ("SHA-1, which GitHub sends too", vec![("x-hub-signature", format!("sha1={}", hex(sha1.as_ref())))]),
        (
            "SHA-1 in the place of SHA-256",
            vec![("x-hub-signature-256", format!("sha1={}", hex(sha1.as_ref())))],
        ),
        ("Gitea's with GitHub's prefix", vec![("x-gitea-signature", format!("sha256={good}"))]),
        (
            "twice, one of them good",
            vec![("x-hub-signature-256", format!("sha256={good}")), ("x-hub-signature-256", github("guess"))],
        ),
        ("GitLab's token, wrong", vec![("x-gitlab-token", "guess".into())]),
        ("GitLab's token, a beginning", vec![("x-gitlab-token", SECRET[..20].into())]),
        ("GitLab's token, empty", vec![("x-gitlab-token", String::new())]),
        ("bearer, wrong", vec![("authorization", "Bearer guess".into())]),
        ("bearer, empty", vec![("authorization", "Bearer ".into())]),
        ("basic", vec![("authorization", format!("Basic {SECRET}"))]),
        ("the secret, bare", vec![("authorization", SECRET.into())]),
        ("the secret in the query", vec![("x-token", SECRET.into())]),
    ];
    for (what, headers) in &forgeries {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = server.post(&headers);
        assert_eq!(answer.code, 403, "{what}");
        assert_eq!(
            answer.body, "forbidden: no valid signature or token\n",
            "{what}: the refusal says no more"
        );
    }
    assert_eq!(server.looks(), 0);
}

#[test]
fn a_replay_causes_no_second_look_even_under_another_delivery_id() {
    let server = Server::with_secrets(&[SECRET]);
    let signed = github(SECRET);
    assert_eq!(server.post(&[("x-hub-signature-256", &signed), ("x-github-delivery", "a")]).code, 202);
    for n in 0..1000 {
        let id = if n % 2 == 0 { "a".to_owned() } else { n.to_string() };
        let answer = server.post(&[("x-hub-signature-256", &signed), ("x-github-delivery", &id)]);
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
    assert_eq!(server.looks(), 1);
    let token = [("x-gitlab-token", SECRET), ("idempotency-key", "b")];
    assert_eq!([server.post(&token).code, server.post(&token).code], [202, 200]);
}

/// GitLab's event id names the chain of webhooks that began with one event; what each delivery is known by, and what its
/// retries repeat, is the idempotency key.
#[test]
fn gitlabs_deliveries_of_one_chain_of_events_each_cause_a_look_and_a_retry_does_not() {
    let server = Server::with_secrets(&[SECRET]);
    let post = |key: &str| {
        let event = ("x-gitlab-event-uuid", "13792a34-cac6-4fda-95a8-c58e00a3954e");
        server.post(&[("x-gitlab-token", SECRET), event, ("idempotency-key", key)]).code
    };
    assert_eq!(["a", "b", "a"].map(post), [202, 202, 200]);
    // Before GitLab 17.4 there is no key, and nothing to know a retry by.
    let bare = [("x-gitlab-token", SECRET), ("x-gitlab-event-uuid", "c")];
    assert_eq!([server.post(&bare).code, server.post(&bare).code], [202, 202]);
}

#[test]
fn a_forged_delivery_id_cannot_silence_the_genuine_one() {
    let server = Server::with_secrets(&[SECRET]);
    server.post(&[("x-hub-signature-256", &github("guess")), ("x-github-delivery", "a")]);
    let genuine = server.post(&[("x-hub-signature-256", &github(SECRET)), ("x-github-delivery", "a")]);
    assert_eq!(genuine.code, 202);
}

#[test]
fn secrets_are_read_anew_and_two_are_active_while_one_is_rotated() {
    let server = Server::with_secrets(&["old\n", "another sender's\r\n"]);
    let file = server.dir.path().join("0");
    let open = |secret: &str| server.post(&[("x-gitlab-token", secret)]).code;
    assert_eq!([open("old"), open("another sender's"), open("new")], [202, 202, 403]);
    std::fs::write(&file, "old\nnew\n").unwrap();
    assert_eq!([open("old"), open("new")], [202, 202]);
    std::fs::write(&file, "\nnew\n\n").unwrap();
    assert_eq!([open("old"), open("new"), open("")], [403, 202, 403]);
    std::fs::remove_file(&file).unwrap();
    let answer = server.post(&[("x-gitlab-token", "new")]);
    assert_eq!(answer.code, 503, "{}", answer.body);
    assert!(!answer.body.contains(file.to_str().unwrap()), "the path is for the log, not for the sender");
}

#[test]
fn without_a_secret_the_route_is_closed_and_says_so() {
    let server = Server::start();
    let answer = server.post(&[("authorization", "Bearer ")]);
    assert_eq!(answer.code, 403);
    assert!(answer.body.contains("no webhook secret is configured"), "{}", answer.body);
    let counted = "treeswap_webhooks_total{result=\"no_secret\"} 1";
    assert!(server.get("/metrics").body.contains(counted), "{}", server.get("/metrics").body);
    let server = Server::with_secrets(&["\n"]);
    assert_eq!(server.post(&[("authorization", "Bearer x")]).code, 503, "an empty file holds no secret");
    assert_eq!(server.looks(), 0);
}

#[test]
fn a_flood_of_genuine_requests_is_slowed_down_with_a_time_to_come_back() {
    let server = Server::with_secrets(&[SECRET]);
    let answers: Vec<Answer> = (0..60).map(|_| server.post(&[("x-gitlab-token", SECRET)])).collect();
    let limited: Vec<&Answer> = answers.iter().filter(|answer| answer.code == 429).collect();
    assert!(answers[..20].iter().all(|answer| answer.code == 202), "a burst of twenty is let through");
    assert!(!limited.is_empty() && limited.iter().all(|answer| answer.header("retry-after") == Some("1")));
    let accepted = answers.len() - limited.len();
    while server.looks() <= accepted {
        std::thread::yield_now(); // those over the limit cause a look together, as soon as it allows
    }
    assert!(server.looks() < answers.len(), "and not one each");
}

#[test]
fn what_a_request_is_for_is_checked_after_its_signature_and_is_bounded() {
    let server = Server::with_secrets(&[SECRET]);
    let post = |names: usize, secret: &str| {
        let query = vec!["source=a"; names].join("&");
        server.ask("POST", &format!("/sync?{query}"), &[("x-gitlab-token", secret)], BODY)
    };
    assert_eq!(post(65, "guess").code, 403);
    assert_eq!(post(64, SECRET).code, 202, "before the first attempt the names are not known");
    let many = post(65, SECRET);
    assert_eq!((many.code, many.body.contains("at most 64")), (404, true), "{}", many.body);
    assert_eq!(server.looks(), 1);
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
    serving.await.unwrap().unwrap();
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
    server.thread.take().unwrap().join().unwrap().unwrap();
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
