//! What a ref names, and what asking costs.

use super::*;

#[tokio::test]
async fn a_poll_of_a_hundred_thousand_refs_costs_some_hundred_bytes_on_one_connection() {
    let world = World::new();
    let first = world.remote.commit(&Files::new().file("a", "1"));
    let refs: String = (0..100_000).map(|n| format!("{first} refs/pull/{n}/head\n")).collect();
    std::fs::write(
        world.remote.path.join("packed-refs"),
        format!("# pack-refs with: peeled fully-peeled sorted\n{refs}"),
    )
    .unwrap();
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let mut client = client(&backend.url("remote"));
    for _ in 0..49 {
        assert_eq!(tip(&mut client, "main").await.unwrap(), first);
    }
    let second = world.remote.commit(&Files::new().file("a", "2"));
    assert_eq!(tip(&mut client, "main").await.unwrap(), second);

    let hits = backend.hits();
    assert_eq!(hits.len(), 50);
    assert!(hits.iter().all(|hit| hit.method == "POST" && hit.connection == 0), "{hits:?}");
    let (up, down) = (hits.iter().map(|hit| hit.up).max(), hits.iter().map(|hit| hit.down).max());
    println!("a poll among 100,000 refs: {} bytes up, {} bytes down", up.unwrap(), down.unwrap());
    assert!(down.unwrap() < 1000 && up.unwrap() < 1000);
}

#[tokio::test]
async fn every_kind_of_ref_resolves_the_same_way_everywhere() {
    let world = World::new();
    let remote = &world.remote;
    let old = remote.commit(&Files::new().file("a", "1"));
    let new = remote.commit(&Files::new().file("a", "2"));
    remote.git(&["update-ref", "refs/heads/main2", &old]);
    remote.git(&["update-ref", "refs/heads/v1", &old]);
    remote.git(&["update-ref", "refs/pull/7/head", &old]);
    remote.git(&["tag", "-a", "-m", "x", "v1", &new]);
    remote.git(&["tag", "-a", "-m", "x", "nested", "v1"]);
    remote.git(&["tag", "light", &old]);
    let (tag, nested) = (remote.tip("refs/tags/v1").unwrap(), remote.tip("refs/tags/nested").unwrap());

    let two = HttpBackend::start(world.dir(), Kind::default());
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let daemon = Daemon::start(world.dir());
    let ssh = Ssh::start(&world);
    let path = remote.path.to_str().unwrap();
    let mut clients = [
        client(&two.url("remote")),
        client(&zero.url("remote")),
        client(&daemon.url("remote")),
        ssh.client(&remote.path),
        with(path, no_git),
        with(&format!("file://{path}"), no_git),
        with("other://remote", |options| {
            let config = vec![(format!("url.{}/.insteadOf", world.dir().display()), "other://".to_owned())];
            options.program = Some(Program { path: "git".into(), config, mirror: PathBuf::new() });
        }),
    ];
    for client in &mut clients {
        for (asked, name, object, peeled) in [
            ("HEAD", "HEAD", &new, None),
            ("main", "refs/heads/main", &new, None),
            ("heads/main", "refs/heads/main", &new, None),
            ("refs/pull/7/head", "refs/pull/7/head", &old, None),
            ("light", "refs/tags/light", &old, None),
            ("v1", "refs/tags/v1", &tag, Some(&new)),
            ("nested", "refs/tags/nested", &nested, Some(&new)),
            ("heads/v1", "refs/heads/v1", &old, None),
        ] {
            let tip =
                resolve(client, &named(asked)).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
            let expected =
                Tip { name: Some(name.into()), object: id(object), peeled: peeled.map(|peeled| id(peeled)) };
            assert_eq!(tip, expected, "{asked} of {}", client.remote());
        }
        let all = ["HEAD", "nested", "mai", "v1", "heads/v1", &old, "heads/main", "main"].map(named);
        let found = client.resolve(&all).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        for asked in &all {
            match (found.tip(asked), resolve(client, asked).await) {
                (Ok(one_of_all), alone) => assert_eq!(one_of_all, alone.unwrap(), "{asked}"),
                (Err(one_of_all), alone) => {
                    assert_eq!(asked.to_string(), "mai", "{}", client.remote());
                    assert_eq!(one_of_all.to_string(), alone.unwrap_err().to_string());
                }
            }
        }
        for missing in ["mai", "main3", "refs/heads/x", "pull/7"] {
            let error = resolve(client, &named(missing)).await.unwrap_err();
            names(&error, &[&format!("couldn't find remote ref {missing}")]);
            assert!(!error.is_transient() && !error.hints().is_empty());
        }
    }
}

#[tokio::test]
async fn a_moved_ref_is_seen_at_the_next_poll_of_every_stream() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "0"));
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let daemon = Daemon::start(world.dir());
    let path = world.remote.path.to_str().unwrap();
    let mut clients =
        [client(&backend.url("remote")), client(&daemon.url("remote")), client(path), with(path, no_git)];
    for n in 1..4 {
        let commit = world.remote.commit(&Files::new().file("a", n.to_string()));
        for client in &mut clients {
            assert_eq!(tip(client, "main").await.unwrap(), commit, "{}", client.remote());
        }
    }
}

#[tokio::test]
async fn any_number_of_refs_is_one_request() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let names: Vec<Ref> = (0..64).map(|n| named(&format!("branch-{n}"))).collect();
    names.iter().for_each(|name| _ = world.remote.git(&["branch", &name.to_string(), "main"]));
    for only_v0 in [false, true] {
        let backend = HttpBackend::start(world.dir(), Kind { only_v0, ..Kind::default() });
        let mut client = client(&backend.url("remote"));
        client.resolve(&names).await.unwrap(); // finds out which version it is
        backend.forget();
        for _ in 0..3 {
            let found = client.resolve(&names).await.unwrap();
            names.iter().for_each(|name| assert_eq!(found.tip(name).unwrap().object, id(&commit)));
        }
        assert_eq!(backend.hits().len(), 3, "{:?}", backend.hits());
    }
}

#[tokio::test]
async fn a_commit_id_answers_for_itself() {
    let mut client = client("https://nowhere.invalid/x");
    let commit = "0123456789012345678901234567890123456789";
    assert_eq!(tip(&mut client, commit).await.unwrap(), commit);
}

#[tokio::test]
async fn an_empty_repository_has_no_head_and_the_hint_says_so() {
    let world = World::new();
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let zero = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let path = world.remote.path.to_str().unwrap();
    for mut client in [client(&backend.url("remote")), client(&zero.url("remote")), with(path, no_git)] {
        let error = resolve(&mut client, &Ref::Head).await.unwrap_err();
        names(&error, &["couldn't find remote ref HEAD"]);
        assert!(error.hints()[0].contains("empty"));
    }
}

#[tokio::test]
async fn a_server_without_version_two_is_found_out_once() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let backend = HttpBackend::start(world.dir(), Kind { only_v0: true, ..Kind::default() });
    let mut client = client(&backend.url("remote"));
    for _ in 0..3 {
        assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    }
    let methods: Vec<String> = backend.hits().into_iter().map(|hit| hit.method).collect();
    assert_eq!(methods, ["POST", "GET", "GET", "GET"]);
}

/// As behind a proxy that is replaced by one which does not pass the header on.
#[tokio::test]
async fn a_server_that_no_longer_speaks_version_two_is_found_out_at_the_second_poll() {
    let world = World::new();
    let old = world.remote.commit(&Files::new().file("a", "1"));
    // Without kept connections, which would outlive the server.
    let two = HttpBackend::start(world.dir(), Kind { requests_per_connection: Some(1), ..Kind::default() });
    let (address, mut client) = (two.address, client(&two.url("remote")));
    assert_eq!(tip(&mut client, "main").await.unwrap(), old);
    drop(two);
    common::eventually(30, "its port is free", || TcpListener::bind(address).ok().map(drop));
    let zero = HttpBackend::start_at(address, world.dir(), Kind { only_v0: true, ..Kind::default() });
    let new = world.remote.commit(&Files::new().file("a", "2"));
    let error = tip(&mut client, "main").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(zero.hits().len(), 1, "an attempt that fails is one request");
    for _ in 0..2 {
        assert_eq!(tip(&mut client, "main").await.unwrap(), new);
    }
    let methods: Vec<String> = zero.hits().into_iter().map(|hit| hit.method).collect();
    assert_eq!(methods, ["POST", "POST", "GET", "GET"]);
}

#[tokio::test]
async fn an_ssh_session_is_kept_for_many_polls_and_opened_again_in_silence() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "0"));
    let ssh = Ssh::start(&world);
    let mut client = ssh.client(&world.remote.path);
    for n in 1..20 {
        let commit = world.remote.commit(&Files::new().file("a", n.to_string()));
        assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
        if n == 10 {
            assert_eq!(ssh.sshd.connections(), 1);
            ssh.sshd.cut();
        }
    }
    assert_eq!(ssh.sshd.connections(), 2);
}

#[tokio::test]
async fn after_a_failure_a_new_ssh_session_reads_the_key_again() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let ssh = Ssh::start(&world);
    let mut client = ssh.client(&world.remote.path);
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    // As a forge that checks the key for each command refuses the old one.
    let hidden = world.dir().join("hidden");
    std::fs::rename(&world.remote.path, &hidden).unwrap();
    let error = tip(&mut client, "main").await.unwrap_err();
    names(&error, &["does not appear to be a git repository"]);
    assert_eq!(ssh.sshd.connections(), 1);
    std::fs::rename(&hidden, &world.remote.path).unwrap();
    let old = std::fs::read_to_string(sshd::public(&ssh.key)).unwrap();
    [ssh.key.clone(), sshd::public(&ssh.key)].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    sshd::keygen(&ssh.key, &["-t", "ed25519"]);
    let accepted = world.dir().join("sshd/authorized_keys");
    let all = std::fs::read_to_string(&accepted).unwrap();
    std::fs::write(&accepted, all.replace(&old, "")).unwrap();
    ssh.sshd.authorize(&ssh.key);
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    assert_eq!(ssh.sshd.connections(), 2);
}

#[tokio::test]
async fn an_ssh_server_that_passes_no_wish_for_version_two_is_polled_all_the_same() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let ssh = Ssh::start(&world);
    ssh.sshd.configure(&["ed25519"], "");
    let mut client = ssh.client(&world.remote.path);
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    let error = tip(&mut ssh.client(&world.dir().join("missing")), "main").await.unwrap_err();
    names(&error, &["missing", "does not appear to be a git repository"]);
}
