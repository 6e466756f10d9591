//! Packs: complete over every stream, no larger than they must be.

use super::*;

#[tokio::test]
async fn packs_are_complete_over_every_stream_and_in_both_versions() {
    let world = World::new();
    let remote = &world.remote;
    let base = Files::new().file("a/b/c", "deep").script("run", "#!/bin/sh").link("link", "run");
    let commits: Vec<String> =
        (0..6).map(|n| remote.commit(&base.clone().file("n", format!("{n}")))).collect();
    remote.git(&["tag", "-a", "-m", "x", "v1", &commits[5]]);
    let tag = remote.tip("refs/tags/v1").unwrap();
    let two = HttpBackend::start(world.dir(), Kind::default());
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let daemon = Daemon::start(world.dir());
    let ssh = Ssh::start(&world);
    let path = remote.path.to_str().unwrap();
    let clients = [
        ("two", client(&two.url("remote"))),
        ("zero", client(&zero.url("remote"))),
        ("daemon", client(&daemon.url("remote"))),
        ("ssh", ssh.client(&remote.path)),
        ("process", client(path)),
        ("place", with(path, no_git)),
    ];
    for (name, mut client) in clients {
        println!("{name}");
        let clone = Clone::new(&world, name);

        // Depth 1 from nothing.
        let old = id(&commits[3]);
        let mut request = Request { wants: vec![old], depth: Deepen::To(1), ..Request::default() };
        let (answer, pack) = fetch(&mut client, &request).await;
        assert_eq!((answer.shallow.as_slice(), answer.unshallow.len()), ([old].as_slice(), 0));
        clone.take(&pack, &[old]);
        assert_eq!(clone.history(&commits[3]), 1);
        assert_eq!(objects(&pack), 8);

        // The next one without deepening: both ends are boundary.
        let new = id(&commits[4]);
        request = Request {
            wants: vec![new],
            haves: vec![old],
            shallow: vec![old, new],
            thin: true,
            ..Request::default()
        };
        let (answer, pack) = fetch(&mut client, &request).await;
        assert_eq!((answer.shallow.len(), answer.unshallow.len()), (0, 0));
        clone.take(&pack, &[old, new]);
        assert_eq!(clone.history(&commits[4]), 1);
        assert_eq!(objects(&pack), 3, "a commit, a tree and a blob");

        // Deeper.
        request = Request {
            wants: vec![new],
            haves: vec![new],
            shallow: vec![old, new],
            depth: Deepen::To(3),
            ..Request::default()
        };
        let (answer, pack) = fetch(&mut client, &request).await;
        assert_eq!(answer.shallow, [id(&commits[2])]);
        assert!(answer.unshallow.contains(&new), "{answer:?}");
        clone.take(&pack, &[id(&commits[2])]);
        assert_eq!(clone.history(&commits[4]), 3);

        // All of it.
        request = Request {
            wants: vec![id(&tag)],
            haves: vec![new],
            shallow: vec![id(&commits[2])],
            depth: Deepen::Full,
            ..Request::default()
        };
        let (answer, pack) = fetch(&mut client, &request).await;
        assert_eq!((answer.shallow.len(), answer.unshallow.as_slice()), (0, [id(&commits[2])].as_slice()));
        clone.take(&pack, &[]);
        assert_eq!(clone.history(&tag), 6);
        clone.git(&["fsck", "--full", "--strict"]);

        // All of it at once, with nothing held.
        let whole = Clone::new(&world, &format!("{name}-whole"));
        request = Request { wants: vec![id(&tag)], depth: Deepen::Full, ..Request::default() };
        whole.take(&fetch(&mut client, &request).await.1, &[]);
        assert_eq!(whole.history(&tag), 6);
    }
}

#[tokio::test]
async fn a_merge_of_an_old_branch_and_a_rewind_stay_small_with_a_boundary_at_the_new_end() {
    let world = World::new();
    let remote = &world.remote;
    let commits: Vec<String> =
        (0..40).map(|n| remote.commit(&Files::new().file("n", format!("{n}")).file("same", "x"))).collect();
    // A merge whose second parent is old.
    let tree = remote.git(&["rev-parse", "main^{tree}"]);
    let merge = remote.git(&["commit-tree", &tree, "-p", &commits[39], "-p", &commits[2], "-m", "merge"]);
    remote.reset(&merge);
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let path = remote.path.to_str().unwrap();
    for mut client in [client(&backend.url("remote")), client(path), with(path, no_git)] {
        for (old, new) in [(&commits[39], &merge), (&commits[39], &commits[10])] {
            let request = Request {
                wants: vec![id(new)],
                haves: vec![id(old)],
                shallow: vec![id(old), id(new)],
                thin: true,
                ..Request::default()
            };
            let (_, pack) = fetch(&mut client, &request).await;
            assert!(objects(&pack) <= 3, "{} objects from {}", objects(&pack), client.remote());
        }
    }
}

#[tokio::test]
async fn a_filter_leaves_the_blobs_out_and_they_can_be_wanted_afterwards() {
    let world = World::new();
    let remote = &world.remote;
    let commit = remote.commit(&Files::new().file("a", "wanted").file("b", "not wanted"));
    let (wanted, other) = (remote.git(&["rev-parse", "main:a"]), remote.git(&["rev-parse", "main:b"]));
    let two = HttpBackend::start(world.dir(), Kind::default());
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let daemon = Daemon::start(world.dir());
    let ssh = Ssh::start(&world);
    let path = remote.path.to_str().unwrap();
    let clients = [
        ("two", client(&two.url("remote"))),
        ("zero", client(&zero.url("remote"))),
        ("daemon", client(&daemon.url("remote"))),
        ("ssh", ssh.client(&remote.path)),
        ("process", client(path)),
        ("place", with(path, no_git)),
    ];
    for (name, mut client) in clients {
        let clone = Clone::new(&world, name);
        let request = Request {
            wants: vec![id(&commit)],
            depth: Deepen::To(1),
            filter: Some("blob:none".into()),
            ..Request::default()
        };
        let (answer, pack) = fetch(&mut client, &request).await;
        assert!(answer.filtered, "{name}");
        clone.take(&pack, &[id(&commit)]);
        assert!(clone.has(&commit) && !clone.has(&wanted), "{name}");
        let request =
            Request { wants: vec![id(&wanted)], filter: Some("blob:none".into()), ..Request::default() };
        clone.take(&fetch(&mut client, &request).await.1, &[id(&commit)]);
        assert!(clone.has(&wanted) && !clone.has(&other), "{name}");
    }

    // Without the server's leave the pack is whole, and the answer says so.
    remote.git(&["config", "uploadpack.allowFilter", "false"]);
    let mut client = client(&two.url("remote"));
    let request =
        Request { wants: vec![id(&commit)], filter: Some("blob:none".into()), ..Request::default() };
    let (answer, pack) = fetch(&mut client, &request).await;
    assert!(!answer.filtered);
    assert_eq!(objects(&pack), 4);
}

#[tokio::test]
async fn the_boundary_of_a_remote_that_is_shallow_itself_is_told_without_a_depth() {
    let world = World::new();
    let commits: Vec<String> =
        (0..3).map(|n| world.remote.commit(&Files::new().file("n", format!("{n}")))).collect();
    let from = format!("file://{}", world.remote.path.display());
    let mut clone = run::clean("git", &world.dir().join("home"));
    clone.args(["clone", "-q", "--bare", "--depth=2", &from]).arg(world.dir().join("shallow"));
    run::to_end(&mut clone).expect_ok("clone");
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let request = Request { wants: vec![id(&commits[2])], ..Request::default() };
    let (answer, pack) = fetch(&mut client(&zero.url("shallow")), &request).await;
    assert_eq!((answer.shallow.as_slice(), objects(&pack)), ([id(&commits[1])].as_slice(), 6));

    // An update asks for the whole history, and the server leaves out what the request states.
    let next = world.remote.commit(&Files::new().file("n", "next"));
    let mut update = run::clean("git", &world.dir().join("home"));
    update.arg("-C").arg(world.dir().join("shallow")).args(["fetch", "-q", &from, "main:main"]);
    run::to_end(&mut update).expect_ok("fetch");
    let request = Request {
        wants: vec![id(&next)],
        haves: vec![id(&commits[2])],
        shallow: vec![id(&commits[1])],
        depth: Deepen::Full,
        thin: true,
        ..Request::default()
    };
    let (answer, _) = fetch(&mut client(&zero.url("shallow")), &request).await;
    assert!(answer.shallow.contains(&id(&commits[1])), "{answer:?}");
}

/// Azure DevOps is one.
#[tokio::test]
async fn a_server_of_version_0_that_insists_on_multi_ack_is_asked_for_it() {
    let (tip, held) = ("1".repeat(40), "2".repeat(40));
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let first = line(&format!("{tip} HEAD\0multi_ack_detailed side-band-64k shallow\n")) + "0000";
    let acknowledged = ["common", "ready"].map(|word| line(&format!("ACK {held} {word}\n"))).concat();
    let granted = acknowledged + &line(&format!("ACK {held}\n")) + &line("\u{1}PACK") + "0000";
    let refused = line("ERR TF401041: clients must support multi-ack\n");
    let address = server(move |mut socket| {
        question(&mut socket);
        let _ = socket.write_all(first.as_bytes());
        let mut asked = [0; 4096];
        let read = socket.read(&mut asked).unwrap_or(0);
        let asked = String::from_utf8_lossy(&asked[..read]);
        let answer = if asked.contains(" multi_ack_detailed ") { &granted } else { &refused };
        let _ = socket.write_all(answer.as_bytes());
    });
    let request = Request { wants: vec![id(&tip)], haves: vec![id(&held)], ..Request::default() };
    let (_, pack) = fetch(&mut client(&format!("git://{address}/x")), &request).await;
    assert_eq!(pack, b"PACK");
}

#[tokio::test]
async fn capabilities_are_read_once() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let mut client = client(&backend.url("remote"));
    let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
    for _ in 0..3 {
        tip(&mut client, "main").await.unwrap();
        fetch(&mut client, &request).await;
    }
    let gets = backend.hits().iter().filter(|hit| hit.method == "GET").count();
    assert_eq!((gets, backend.hits().len()), (1, 7));
    assert!(backend.hits().iter().all(|hit| hit.connection == 0));
}

/// As behind a cache or a proxy, or before the server is set up.
#[tokio::test]
async fn what_a_server_lacked_is_looked_for_again_at_the_next_fetch() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    for (features, filter, number) in [("", None, 3), ("=shallow", Some("blob:none"), 2)] {
        let is_old = Arc::new(AtomicBool::new(true));
        let hook = {
            let is_old = Arc::clone(&is_old);
            let fetch = format!("fetch{features}\n");
            let lines = ["version 2\n", "ls-refs\n", &fetch];
            let body = lines.map(|line| format!("{:04x}{line}", line.len() + 4)).concat() + "0000";
            move |hit: &common::http_backend::Hit| {
                let is_canned = hit.method == "GET" && is_old.load(Ordering::SeqCst);
                is_canned.then(|| Canned::status(200, &body))
            }
        };
        let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let mut client = client(&backend.url("remote"));
        let request = Request {
            wants: vec![id(&commit)],
            depth: Deepen::To(1),
            filter: filter.map(str::to_owned),
            ..Request::default()
        };
        match (filter, client.fetch(&request, &mut Vec::new()).await) {
            (None, Err(error)) => names(&error, &["does not offer `shallow`"]),
            (Some(_), Ok(answer)) => assert!(!answer.filtered),
            (_, other) => panic!("{other:?}"),
        }
        is_old.store(false, Ordering::SeqCst);
        let (answer, pack) = fetch(&mut client, &request).await;
        assert_eq!((answer.filtered, objects(&pack)), (filter.is_some(), number));
    }
}

#[tokio::test]
async fn an_object_that_is_not_there_is_the_remotes_own_error() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let daemon = Daemon::start(world.dir());
    let path = world.remote.path.to_str().unwrap();
    let wants = vec![id("0123456789012345678901234567890123456789")];
    for mut client in [client(&backend.url("remote")), client(&daemon.url("remote")), client(path)] {
        let request = Request { wants: wants.clone(), ..Request::default() };
        let error = client.fetch(&request, &mut Vec::new()).await.unwrap_err();
        names(&error, &["not our ref 0123456789012345678901234567890123456789"]);
        assert!(error.is_transient(), "the ref may have moved meanwhile");
    }
}

#[tokio::test]
async fn local_repositories_of_every_shape_and_owner_are_read() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let work = world.dir().join("work");
    let bare = world.dir().join("bare.git");
    let home = world.dir().join("home");
    for (flag, to) in [("--no-bare", &work), ("--bare", &bare)] {
        let flags: &[&str] = if flag == "--bare" { &["--bare"] } else { &[] };
        let mut command = run::clean("git", &home);
        run::to_end(command.args(["clone", "-q"]).args(flags).arg(&world.remote.path).arg(to))
            .expect_ok("clone");
    }
    if rustix::process::getuid().is_root() {
        let chown =
            std::process::Command::new("chown").args(["-R", "12345:12345"]).arg(&bare).arg(&work).status();
        assert!(chown.unwrap().success());
    }
    for path in [work.clone(), work.join(".git"), bare, world.dir().join("bare")] {
        // One that is there, one that isn't, and one that refuses.
        for program in ["git", "/nonexistent/git", "false"] {
            let mut client = with(path.to_str().unwrap(), |options| options.git = program.into());
            assert_eq!(tip(&mut client, "main").await.unwrap(), commit, "{} {program}", path.display());
            let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
            assert_eq!(objects(&fetch(&mut client, &request).await.1), 3);
        }
    }
    let missing = world.dir().join("missing");
    let error = tip(&mut client(missing.to_str().unwrap()), "main").await.unwrap_err();
    names(&error, &["missing"]);
}

#[tokio::test]
async fn a_sha256_repository_is_refused_by_name() {
    let world = World::new();
    let path = world.dir().join("long");
    let home = world.dir().join("home");
    let init = ["init", "-q", "--object-format=sha256", "-b", "main", path.to_str().unwrap()];
    run::to_end(run::clean("git", &home).args(init)).expect_ok("init");
    let mut commit = run::clean("git", &home);
    run::to_end(commit.arg("-C").arg(&path).args(["commit", "-q", "--allow-empty", "-m", "x"]))
        .expect_ok("commit");
    let two = HttpBackend::start(world.dir(), Kind::default());
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let daemon = Daemon::start(world.dir());
    for url in
        [two.url("long/.git"), zero.url("long/.git"), daemon.url("long/.git"), path.display().to_string()]
    {
        let error = tip(&mut client(&url), "main").await.unwrap_err();
        names(&error, &["sha256", "long"]);
        assert!(!error.is_transient());
    }
}
