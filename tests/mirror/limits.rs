//! What a hostile or careless remote may cost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use git2::ObjectType;
use tokio_util::sync::CancellationToken;

use super::common::http_backend::{Canned, Hit, HttpBackend, Kind};
use super::common::{Files, Raw, Remote};
use super::{Bench, noise, payload, revision, run, try_update, update, wait, wide};
use treeswap::mirror::{Access, Depth, Error, Gc, Mirror, Selection, Submodules, wire};
use treeswap::payload::Rule;
use treeswap::secret;

#[test]
fn a_delta_bomb_names_the_memory_limit_and_its_flag() {
    let mut bench = Bench::new("main");
    bench.options.index_memory = 24 << 20;
    let remote = &bench.world.remote;
    let zeros = |last: &str| [vec![0; 30 << 20], last.into()].concat();
    remote.git(&["config", "core.bigFileThreshold", "1g"]);
    remote.commit(&Files::new().file("a", zeros("a")).file("b", zeros("b")));
    remote.git(&["repack", "-adfq"]);
    let mut mirror = bench.open();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    assert!(
        matches!(error, Error::IndexMemory { task: "indexing the fetched pack", limit: 0x180_0000 }),
        "{error:?}"
    );
    assert!(error.to_string().contains("--index-memory") && !error.is_transient());
    assert!(bench.packs().is_empty());
}

#[test]
fn a_bomb_of_zeros_is_indexed_in_little_memory_and_refused_by_its_size() {
    let mut bench = Bench::new("main");
    bench.options.index_memory = 16 << 20;
    bench.world.remote.commit(&Files::new().file("zeros", vec![0; 40 << 20]));
    let mut mirror = bench.open();
    let at = update(&mut mirror, &[]);
    let mut selection = Selection::default();
    selection.rules.limits.file_bytes = 39 << 20;
    let error = mirror.objects().payload(at, &selection).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("zeros") && error.hints().concat().contains("--max-file-bytes"), "{text}");
}

#[test]
fn a_pack_over_its_budget_names_the_flag() {
    let mut bench = Bench::new("main");
    let noise = noise(0, 400_000);
    bench.world.remote.commit(&Files::new().file("noise", noise));
    bench.options.wire.max_fetch_bytes = 50_000;
    let error = try_update(&mut bench.open(), &[]).unwrap_err();
    assert!(error.to_string().contains("--max-fetch-bytes"), "{error}");
    assert!(bench.packs().is_empty());
}

/// A server sends a delta of what the mirror holds. To resolve that takes the file in memory several times.
#[test]
fn a_large_file_that_changed_is_fetched_whole_if_its_delta_takes_too_much_memory() {
    let mut bench = Bench::new("main");
    let server = HttpBackend::start(bench.world.dir(), Kind::default());
    bench.options.wire = wire::Options::new(server.url("remote"));
    bench.options.index_memory = 24 << 20;
    let mut large = noise(0, 16 << 20);
    bench.world.remote.commit(&Files::new().file("large", large.clone()));
    let mut mirror = bench.open();
    let held = update(&mut mirror, &[]);
    large[8 << 20] ^= 1;
    let changed = revision(&bench.world.remote.commit(&Files::new().file("large", large)));
    server.forget();
    assert_eq!(update(&mut mirror, &[held]), changed);
    let is_fetch = |hit: &Hit| String::from_utf8_lossy(&hit.body).contains("command=fetch");
    let fetches = server.hits().iter().filter(|hit| is_fetch(hit)).count();
    assert!(fetches > 1, "the first answer was no delta");
}

/// The host need not be allowed: a URL is parsed before it is judged.
#[test]
fn the_password_in_a_refused_url_takes_no_variable_from_hooks_and_no_word_from_messages() {
    let mut bench = Bench::new("main");
    bench.options.modules = Access { submodules: Submodules::First, ..Access::default() };
    let path: String = std::env::var("PATH").unwrap().chars().take(200).collect();
    let password: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let url = format!("https://x:{password}@nowhere.example/a.git");
    let declared = format!("[submodule \"sub\"]\n\tpath = sub\n\turl = {url}\n");
    let mut files = Files::new().file(".gitmodules", declared);
    files.0.insert("sub".to_owned(), ("160000", "7".repeat(40).into()));
    bench.world.remote.commit(&files);
    let error = try_update(&mut bench.open(), &[]).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("nowhere.example"), "{error:?}");
    let mut hook = std::process::Command::new("hook");
    secret::withhold_from(&mut hook);
    assert!(hook.get_envs().all(|(name, _)| name != "PATH"), "{hook:?}");
    assert_eq!(secret::redacted(&path), path);
}

/// Both commits came between two polls.
#[test]
fn a_commit_that_takes_back_a_file_over_the_budget_is_fetched() {
    let mut bench = Bench::new("main");
    bench.options.wire.max_fetch_bytes = 50_000;
    let commit = |files: Files| revision(&bench.world.remote.commit(&files));
    let mut mirror = bench.open();
    for n in 0..3 {
        commit(Files::new().file("n", n.to_string()).file("noise", noise(n, 400_000)));
        let wanted = commit(Files::new().file("n", n.to_string()));
        assert_eq!(try_update(&mut mirror, &[]).unwrap(), wanted, "update {n}");
    }
}

#[test]
fn what_a_refused_submodule_sent_is_counted() {
    let mut bench = Bench::new("main");
    let sub = Remote::create(&bench.world.dir().join("sub"));
    let commit = sub.commit(&wide().file("noise", noise(0, 100_000)));
    let declared = "[submodule \"sub\"]\n\tpath = sub\n\turl = ../sub\n";
    let mut files = Files::new().file(".gitmodules", declared);
    files.0.insert("sub".to_owned(), ("160000", commit.into()));
    bench.world.remote.commit(&files);
    bench.options.modules = Access { submodules: Submodules::First, local: true, ..Access::default() };
    bench.options.modules.limits.entries = 10; // found to be exceeded only after the submodule was fetched
    let mut mirror = bench.open();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    assert!(matches!(&error, Error::Refused(refusal) if refusal.path == "sub"), "{error:?}");
    assert!(mirror.complete_pack_bytes() > 100_000, "{} bytes", mirror.complete_pack_bytes());
}

#[test]
fn a_program_that_is_no_indexer_is_named() {
    let mut bench = Bench::new("main");
    bench.world.remote.commit(&wide());
    for (program, says) in [("/bin/true", "/bin/true"), ("/nonexistent/treeswap", "cannot be started")] {
        bench.options.indexer = program.into();
        let error = try_update(&mut bench.open(), &[]).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn garbage_collection_that_never_ends_is_killed_and_the_mirror_stays_whole() {
    let mut bench = Bench::new("main");
    bench.options.gc = Gc::Always;
    let old = revision(&bench.world.remote.commit(&wide()));
    update(&mut bench.open(), &[]);
    let new = revision(&bench.world.remote.commit(&wide().file("x", "y")));
    update(&mut bench.open(), &[old]);
    let mut options = bench.options.clone();
    options.indexer = bench.world.dir().join("program");
    let late = "garbage collection in the mirror took longer than 0.3s (--sync-timeout)";
    for (script, limit, says) in [
        ("exec sleep 600", 300, late),
        ("exec sleep 600 >&- 2>&-", 300, late),
        ("exec yes", 60_000, "signal 13"), // its output is not read any further
    ] {
        run::executable(&options.indexer, &format!("#!/bin/sh\n{script}\n"));
        options.wire.timeouts.overall = Duration::from_millis(limit);
        let error = Mirror::open(options.clone()).unwrap().housekeep(&[new]).unwrap_err();
        assert!(error.to_string().contains(says), "{script}: {error}");
    }
    let unfinished = bench.dir().join("objects/pack/pack_git2_x");
    let script = format!("#!/bin/sh\n: >'{}'\nexec sleep 600\n", unfinished.display());
    run::executable(&options.indexer, &script);
    let cancel = CancellationToken::new();
    let shutdown = std::thread::spawn({
        let (cancel, unfinished) = (cancel.clone(), unfinished.clone());
        move || {
            while !unfinished.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            cancel.cancel();
        }
    });
    let mut mirror = Mirror::open(options.clone()).unwrap();
    let ended = mirror.cancelled_by(&cancel).housekeep(&[new]);
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    shutdown.join().unwrap();
    let script = format!("#!/bin/sh\nexec '{}' \"$@\"\n", bench.options.indexer.display());
    run::executable(&options.indexer, &script);
    mirror.cancelled_by(&CancellationToken::new()).housekeep(&[new]).unwrap();
    assert!(!unfinished.exists(), "removed without a restart");
    drop(mirror);
    let mut mirror = bench.open();
    mirror.housekeep(&[new]).unwrap();
    bench.assert_whole(&mirror, new);
    let next = revision(&bench.world.remote.commit(&wide().file("x", "z")));
    assert_eq!(update(&mut mirror, &[new]), next);
    bench.assert_whole(&mirror, next);
}

/// Each commit replaces 300,000 bytes; the rest comes again only with a fetch of everything.
#[test]
fn a_mirror_whose_packs_cannot_be_rewritten_is_fetched_again_although_that_failed_once() {
    let mut bench = Bench::new("main");
    bench.options.max_bytes = 500_000;
    let indexer = bench.options.indexer.display().to_string();
    bench.options.indexer = bench.world.dir().join("program");
    let refused = "*collect-garbage*) echo 'memory allocation of 20 bytes failed' >&2; exit 1 ;;";
    let script = format!("#!/bin/sh\ncase \"$2\" in\n{refused}\nesac\nexec '{indexer}' \"$@\"\n");
    run::executable(&bench.options.indexer, &script);
    let remote = &bench.world.remote;
    let commit = |n: u64| {
        let files = Files::new().file("kept", noise(77, 50_000)).file("noise", noise(n, 300_000));
        revision(&remote.commit(&files))
    };
    let mut mirror = bench.open();
    for n in 0..2 {
        let held = commit(n);
        update(&mut mirror, &[]);
        mirror.housekeep(&[held]).unwrap();
    }
    commit(2);
    let tip = wait(mirror.resolve()).unwrap();
    let away = remote.away();
    assert!(wait(mirror.fetch(&tip, &[])).is_err(), "that was to be everything");
    drop(away);
    let held = update(&mut mirror, &[]);
    let is_memory = |error: Error| assert!(matches!(error, Error::IndexMemory { .. }), "{error:?}");
    is_memory(mirror.housekeep(&[held]).unwrap_err());
    let held = commit(3);
    update(&mut mirror, &[]);
    is_memory(mirror.housekeep(&[held]).unwrap_err()); // it has grown by half
    let held = commit(4);
    update(&mut mirror, &[]);
    mirror.housekeep(&[held]).unwrap();
    let held = commit(5);
    update(&mut mirror, &[]);
    mirror.housekeep(&[held]).unwrap();
    let bytes: u64 = bench.packs().iter().map(|pack| pack.metadata().unwrap().len()).sum();
    assert!(bytes < 400_000, "{bytes} bytes");
    bench.assert_whole(&mirror, held);
}

#[test]
fn indexing_that_never_ends_is_killed() {
    let mut bench = Bench::new("main");
    bench.world.remote.commit(&wide());
    bench.options.wire.timeouts.overall = Duration::from_millis(500);
    bench.options.indexer = bench.world.dir().join("program");
    run::executable(&bench.options.indexer, "#!/bin/sh\nexec sleep 600\n");
    let error = try_update(&mut bench.open(), &[]).unwrap_err();
    assert_eq!(error.timeout(), Some(wire::Wait::Overall), "{error}");
}

/// The kernel kills the child when the thread that started it ends, which threads of tokio do.
#[test]
fn indexing_survives_the_thread_that_began_the_fetch() {
    let mut bench = Bench::new("main");
    let tip = bench.world.remote.commit(&wide());
    let indexer = std::mem::replace(&mut bench.options.indexer, bench.world.dir().join("program"));
    let started = bench.options.indexer.with_extension("started");
    let slow = "exec setpriv --pdeathsig KILL sh -c ': >\"$started\"; sleep 1; exec \"$0\" \"$@\"'";
    let (marker, indexer) = (started.display(), indexer.display());
    let script = format!("#!/bin/sh\nexport started='{marker}'\n{slow} '{indexer}' \"$@\"\n");
    run::executable(&bench.options.indexer, &script);
    let mut mirror = bench.open();
    let keep_alive = Duration::from_millis(10);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).thread_keep_alive(keep_alive).enable_all().build().unwrap();
    let fetch = async move {
        let tip = mirror.resolve().await?;
        let block = async {
            let has_started = async {
                while !started.exists() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            // Where it does not start, the fetch has the error.
            let _ = tokio::time::timeout(Duration::from_secs(60), has_started).await;
            // Long enough for another thread to become the worker instead of this one.
            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(300)));
        };
        tokio::join!(mirror.fetch(&tip, &[]), block).0
    };
    let fetched = runtime.block_on(async { tokio::spawn(fetch).await.unwrap() });
    assert_eq!(fetched.unwrap(), revision(&tip));
}

/// Publishes what `tip` returns as `asked`, beside an honest commit that the mirror has. Returns the outcome of the
/// fetch, and the number of requests.
fn fetch_over_http(
    asked: &str,
    tip: impl FnOnce(&Raw) -> git2::Oid,
) -> (Bench, Result<String, Error>, usize) {
    let mut bench = Bench::new(asked);
    let server = HttpBackend::start(bench.world.dir(), Kind::default());
    bench.options.wire = wire::Options::new(server.url("remote"));
    let honest = bench.world.remote.commit(&wide());
    bench.world.remote.git(&["update-ref", asked, &honest]);
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let tip = tip(&Raw::open(&bench.world.remote.path));
    std::fs::write(bench.world.remote.path.join(asked), format!("{tip}\n")).unwrap();
    server.forget();
    let fetched = try_update(&mut mirror, &[revision(&honest)]);
    let paths = fetched.map(|at| {
        let payload = payload(&mirror.objects(), at);
        let paths = payload.entries.iter().map(|entry| payload.path_of(entry));
        paths.map(|path| String::from_utf8_lossy(&path).into_owned()).collect::<Vec<_>>().join(" ")
    });
    let hits = server.hits().len();
    (bench, paths, hits)
}

#[test]
fn what_an_author_wrote_is_published_or_refused_and_not_asked_for_again() {
    let main = "refs/heads/main";
    let entry = |mode: &'static str| move |raw: &Raw| raw.commit(raw.tree(&[(mode, "file", raw.blob("x"))]));
    let (_, padded, requests) = fetch_over_http(main, entry("000000100644"));
    assert_eq!((padded.unwrap().as_str(), requests), ("file", 2), "git ignores the zeros, too");
    let endless_tags = |raw: &Raw| {
        let mut tip = raw.commit(raw.tree(&[("100644", "file", raw.blob("x"))]));
        let mut kind = "commit";
        for _ in 0..17 {
            let text = format!("object {tip}\ntype {kind}\ntag t\ntagger a <a@example.com> 0 +0000\n\nx\n");
            tip = raw.object(ObjectType::Tag, text.as_bytes());
            kind = "tag";
        }
        tip
    };
    // git drops the upper digits of this mode.
    let overlong = fetch_over_http(main, entry("7000000000000100644"));
    let tags = fetch_over_http("refs/tags/deep", endless_tags);
    for ((bench, refused, requests), says) in
        [(overlong, "its entry 0 (`file`) is malformed"), (tags, "16 tags")]
    {
        let error = refused.unwrap_err();
        let Error::Refused(refusal) = &error else { panic!("{error:?}") };
        assert!(matches!(&refusal.rule, Rule::Malformed { what } if what.contains(says)), "{error}");
        assert!(error.is_refusal() && !error.is_transient(), "{error}");
        assert_eq!(requests, 2, "the refs, and one pack");
        assert_eq!(bench.packs().len(), 1, "the useless pack is removed");
    }
}

/// A server does not say again that its own history ends where the request says that ours does.
#[test]
fn an_update_from_a_remote_that_is_shallow_itself_brings_only_what_changed() {
    let files = |n: u64| wide().file("kept", noise(77, 100_000)).file("n", n.to_string());
    for (depth, is_http) in [(Depth::Full, true), (Depth::Commits(100), true), (Depth::Full, false)] {
        let mut bench = Bench::at_depth("main", depth);
        let git = |args: &[&str]| {
            run::to_end(run::clean("git", bench.world.dir()).args(args)).expect_ok("git");
        };
        (0..3).for_each(|n| _ = bench.world.remote.commit(&files(n)));
        let from = format!("file://{}", bench.world.remote.path.display());
        let shallow = bench.world.dir().join("shallow").display().to_string();
        git(&["clone", "-q", "--bare", "--depth=2", &from, &shallow]);
        let server = HttpBackend::start(bench.world.dir(), Kind::default());
        let url = if is_http { server.url("shallow") } else { shallow.clone() };
        bench.options.wire = wire::Options::new(url);
        bench.options.wire.git = "/nonexistent/git".into();
        let mut mirror = bench.open();
        let mut held = update(&mut mirror, &[]);
        for n in 3..5 {
            bench.world.remote.commit(&files(n));
            git(&["-C", &shallow, "fetch", "-q", &from, "main:main"]);
            let received = mirror.complete_pack_bytes();
            held = update(&mut mirror, &[held]);
            let bytes = mirror.complete_pack_bytes() - received;
            assert!(bytes < 20_000, "{depth:?}: {bytes} bytes for commit {n}");
            assert_eq!(bench.depth_of(held), n as usize, "{depth:?}");
            bench.assert_whole(&mirror, held);
        }
    }
}

/// A mirror that holds a commit declares the next one as its boundary. If that is a tag of something else, git says
/// nothing, and the remote is asked again. But a branch never is, and a pack may be large.
#[test]
fn an_answer_that_ends_early_is_asked_for_again_only_if_the_boundary_may_be_why() {
    let is_fetch = |hit: &Hit| String::from_utf8_lossy(&hit.body).contains("command=fetch");
    let answer: Arc<Mutex<Option<&[u8]>>> = Arc::default();
    let hook = {
        let answer = Arc::clone(&answer);
        move |hit: &Hit| -> Option<Canned> {
            let body = (*answer.lock().unwrap())?.to_vec();
            let canned = Canned { body, ..Canned::status(200, "") };
            is_fetch(hit).then(|| canned.header("Content-Type", "application/x-git-upload-pack-result"))
        }
    };
    let kind = Kind { hook: Some(Box::new(hook)), ..Kind::default() };
    let mut bench = Bench::new("main");
    let server = HttpBackend::start(bench.world.dir(), kind);
    bench.options.wire = wire::Options::new(server.url("remote"));
    let remote = &bench.world.remote;
    remote.commit(&wide());
    let held = update(&mut bench.open(), &[]);
    remote.commit(&wide().file("next", "x"));
    remote.git(&["tag", "v1", "main"]);
    let silence: &[u8] = b"";
    let begun: &[u8] = b"000dpackfile\n0009\x01PACK";
    for (asked, cut, requests) in
        [("main", silence, 1), ("HEAD", silence, 1), ("v1", silence, 2), ("main", begun, 1), ("v1", begun, 1)]
    {
        *answer.lock().unwrap() = Some(cut);
        server.forget();
        let mut options = bench.options.clone();
        options.followed = asked.parse().unwrap();
        let error = try_update(&mut Mirror::open(options).unwrap(), &[held]).unwrap_err();
        let said = format!("{asked}, cut after {} bytes: {error:?}", cut.len());
        let Error::Unsent { source, .. } = &error else { panic!("{said}") };
        assert!(matches!(**source, wire::Error::Cut { .. }), "{said}");
        assert_eq!(server.hits().iter().filter(|hit| is_fetch(hit)).count(), requests, "{said}");
    }
    *answer.lock().unwrap() = None;
    update(&mut bench.open(), &[held]);
}
