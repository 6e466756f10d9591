//! Servers that are silent, drip, never end, end early, or are not there.

use super::*;

/// Fails unless it ends with this error at the limit.
async fn ends(client: &mut Client, limit: Duration, words: &[&str]) {
    let start = Instant::now();
    let error = resolve(client, &named("main")).await.unwrap_err();
    names(&error, words);
    assert!(
        start.elapsed() < common::allowed(limit + Duration::from_secs(1)),
        "after {:?}: {error}",
        start.elapsed()
    );
}

fn quick(options: &mut Options) {
    options.timeouts.connect = Duration::from_millis(400);
    options.timeouts.idle = Duration::from_millis(500);
    options.timeouts.overall = Duration::from_millis(1500);
}

/// Only silence ends it.
fn quiet(options: &mut Options) {
    options.timeouts.idle = Duration::from_millis(500);
}

/// Only time ends it.
fn hurried(options: &mut Options) {
    options.timeouts.overall = Duration::from_millis(1500);
}

#[tokio::test]
async fn silence_ends_at_the_idle_timeout() {
    let address = server(|mut socket| {
        question(&mut socket);
        std::thread::sleep(Duration::from_secs(20));
    });
    for scheme in ["http", "https", "git"] {
        let mut client = with(&format!("{scheme}://{address}/x"), quiet);
        let words = if scheme == "https" { "timeout" } else { "--idle-timeout" };
        ends(&mut client, Duration::from_millis(500), &[words]).await;
    }
}

#[tokio::test]
async fn a_drip_ends_at_the_overall_timeout() {
    let drip = |head: &'static str| {
        server(move |mut socket| {
            question(&mut socket);
            let _ = socket.write_all(head.as_bytes());
            // A line that never ends.
            let line = b"fff0".iter().chain(std::iter::repeat(&b'x'));
            for byte in line {
                if socket.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    };
    let http = drip("HTTP/1.1 200 OK\r\n\r\n");
    let git = drip("");
    for url in [format!("http://{http}/x"), format!("git://{git}/x")] {
        ends(&mut with(&url, hurried), Duration::from_millis(1500), &["--sync-timeout", "1.5s"]).await;
    }
}

#[tokio::test]
async fn headers_that_drip_end_at_the_idle_timeout() {
    let address = server(|mut socket| {
        question(&mut socket);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n");
        while socket.write_all(b"X: y\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    ends(&mut with(&format!("http://{address}/x"), quick), Duration::from_millis(1500), &["timeout"]).await;
}

#[tokio::test]
async fn endless_references_end_at_the_budget() {
    let endless = |head: &'static str, first: &'static str| {
        server(move |mut socket| {
            question(&mut socket);
            let _ = socket.write_all(head.as_bytes());
            let _ = socket.write_all(first.as_bytes());
            let lines = "00410123456789012345678901234567890123456789 refs/heads/x1234567\n".repeat(1000);
            while socket.write_all(lines.as_bytes()).is_ok() {}
        })
    };
    let http = endless("HTTP/1.1 200 OK\r\n\r\n", "");
    let git = endless("", "");
    for url in [format!("http://{http}/x"), format!("git://{git}/x")] {
        let mut client = with(&url, |options| options.max_refs_bytes = 8 << 20);
        ends(&mut client, Duration::from_secs(5), &["--max-refs-bytes", "8.0 MiB"]).await;
    }
}

#[tokio::test]
async fn a_pack_beyond_its_budget_ends_there() {
    let world = World::new();
    let noise: Vec<u8> = (0u32..200_000).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let commit = world.remote.commit(&Files::new().file("a", noise));
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let daemon = Daemon::start(world.dir());
    let path = world.remote.path.to_str().unwrap();
    for (url, git) in [
        (backend.url("remote").as_str(), "git"),
        (daemon.url("remote").as_str(), "git"),
        (path, "git"),
        (path, "/nonexistent/git"),
    ] {
        let mut client = with(url, |options| {
            options.max_fetch_bytes = 100_000;
            options.git = git.into();
        });
        let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
        let error = client.fetch(&request, &mut Vec::new()).await.unwrap_err();
        names(&error, &["--max-fetch-bytes", "98 KiB"]);
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn a_git_program_is_stopped_while_it_writes_a_pack_beyond_the_budget() {
    let world = World::new();
    let program = world.dir().join("git-without-end");
    let pack = "\"$GIT_DIR\"/objects/pack/tmp_pack_x";
    run::executable(&program, &format!("#!/bin/sh\nhead -c 200000 /dev/zero >{pack}\nexec sleep 600\n"));
    let mut client = with("https://127.0.0.1:1/x", |options| {
        options.max_fetch_bytes = 100_000;
        options.timeouts.overall = Duration::from_secs(60);
        options.program = Some(Program { path: program, config: Vec::new(), mirror: world.dir().into() });
    });
    let request = Request { wants: vec![id(&"1".repeat(40))], ..Request::default() };
    let error = client.fetch(&request, &mut Vec::new()).await.unwrap_err();
    names(&error, &["--max-fetch-bytes", "98 KiB"]);
}

#[tokio::test]
async fn what_arrives_together_is_charged_to_its_own_budget() {
    let world = World::new();
    let noise: Vec<u8> = (0u32..1_300).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let commit = world.remote.commit(&Files::new().file("a", noise));
    let two = HttpBackend::start(world.dir(), Kind::default());
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let daemon = Daemon::start(world.dir());
    for url in [two.url("remote"), zero.url("remote"), daemon.url("remote")] {
        let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
        // The pack of 5 KB comes in one read with what precedes it.
        let mut client = with(&url, |options| options.max_refs_bytes = 2_000);
        client.fetch(&request, &mut Vec::new()).await.unwrap();
        let mut client = with(&url, |options| options.max_fetch_bytes = 1_000);
        let error = client.fetch(&request, &mut Vec::new()).await.unwrap_err();
        names(&error, &["--max-fetch-bytes", "1000 B"]);
    }
}

#[tokio::test]
async fn an_answer_cut_anywhere_is_an_error_that_may_pass() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    // What a whole answer to the fetch looks like, recorded at the git protocol.
    let daemon = Daemon::start(world.dir());
    let recorded = {
        let mut socket = TcpStream::connect(daemon.address).unwrap();
        socket.write_all(b"002egit-upload-pack /remote\0host=x\0\0version=2\0").unwrap();
        let fetch =
            format!("0012command=fetch\n0001000eofs-delta\n0032want {commit}\n000ddeepen 1\n0009done\n0000");
        socket.write_all(fetch.as_bytes()).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        all
    };
    assert!(recorded.ends_with(b"0000") && recorded.len() > 300, "{}", recorded.escape_ascii());
    let whole = recorded.len();
    let cut = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let at = cut.clone();
    let address = server(move |mut socket| {
        question(&mut socket);
        let _ = socket.write_all(&recorded[..at.load(std::sync::atomic::Ordering::Relaxed)]);
    });
    let mut client = client(&format!("git://{address}/x"));
    let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
    for bytes in 0..whole {
        cut.store(bytes, std::sync::atomic::Ordering::Relaxed);
        let error =
            client.fetch(&request, &mut Vec::new()).await.expect_err("a cut answer was taken as whole");
        assert!(error.is_transient(), "cut at {bytes}: {error}");
    }
    cut.store(whole, std::sync::atomic::Ordering::Relaxed);
    fetch(&mut client, &request).await;
}

#[tokio::test]
async fn nobody_there_and_no_such_host_are_said() {
    let (closed, _keep) = common::refusing();
    for scheme in ["http", "git"] {
        let error = tip(&mut client(&format!("{scheme}://{closed}/x")), "main").await.unwrap_err();
        names(&error, &["cannot connect", &closed.port().to_string(), "refused"]);
        assert!(error.is_transient());
    }
}

#[tokio::test]
async fn a_connection_that_is_never_accepted_ends_at_the_connect_timeout() {
    let (address, _full) = common::swallowing();
    for scheme in ["http", "git"] {
        let mut client = with(&format!("{scheme}://{address}/x"), quick);
        ends(&mut client, Duration::from_millis(400), &["--connect-timeout"]).await;
    }
    // Silence that may last as long is no reason to name it instead.
    for _ in 0..20 {
        let mut client = with(&format!("http://{address}/x"), |options| {
            quick(options);
            options.timeouts.idle = options.timeouts.connect;
        });
        ends(&mut client, Duration::from_millis(400), &["--connect-timeout"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_future_hangs_up() {
    let (asks, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let (sender, hung_up) = std::sync::mpsc::channel();
    let address = server(move |mut socket| {
        question(&mut socket);
        let _ = asks.send(());
        let _ = sender.send(matches!(socket.read(&mut [0; 16]), Ok(0) | Err(_)));
    });
    for scheme in ["http", "git"] {
        let mut client = client(&format!("{scheme}://{address}/x"));
        let main = named("main");
        tokio::select! {
            answer = resolve(&mut client, &main) => panic!("nobody answered, but: {answer:?}"),
            _ = asked.recv() => {}
        }
        assert!(hung_up.recv_timeout(Duration::from_secs(60)).unwrap());
    }
}
