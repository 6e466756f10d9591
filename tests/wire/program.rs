//! What only the environment of a process decides: proxies, and the system's certificates.

use super::*;

/// A host that no resolver knows: only a proxy can reach it.
const ELSEWHERE: &str = "http://git.invalid/remote";

fn sync(world: &World, url: &str, environment: &[(&str, &str)], more: &[&str]) -> run::Ran {
    let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo", url, "--root"]);
    command.arg(&world.root).args(more).envs(environment.iter().copied());
    run::to_end(&mut command)
}

#[test]
fn a_proxy_that_cannot_be_reached_is_named_without_its_password() {
    let world = World::new();
    let proxy = "http.proxy:http://bob:s3cret-word@127.0.0.1:9";
    let ran = sync(&world, ELSEWHERE, &[], &["--git-config", proxy]).expect_failure("no proxy is there");
    ran.names(&["http://git.invalid/remote", "through the proxy http://127.0.0.1:9", "Connection refused"]);
    assert!(
        ran.stderr.contains("hint: check http.proxy") && !ran.stderr.contains("s3cret"),
        "{}",
        ran.stderr
    );
    for (name, value) in
        [("http_proxy", "hxxp://bob:s3cret-word@h"), ("ALL_PROXY", "http://bob:s3cret-word@a host")]
    {
        let ran = sync(&world, ELSEWHERE, &[(name, value)], &[]).expect_failure(name);
        ran.names(&["http://git.invalid/remote", &format!("the proxy in ${name} is not a URL")]);
        assert!(!ran.stderr.contains("s3cret"), "{}", ran.stderr);
    }
    let variable = [("http_proxy", "http://127.0.0.1:9")];
    let ran = sync(&world, ELSEWHERE, &variable, &[]).expect_failure("no proxy is there");
    assert!(ran.stderr.contains("hint: $http_proxy names a proxy"), "{}", ran.stderr);
}

#[test]
fn the_environments_proxy_is_used_unless_it_excepts_the_host() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let proxy = HttpBackend::start(world.dir(), Kind::default());
    let proxy_url = format!("http://{}", proxy.address);

    sync(&world, ELSEWHERE, &[("http_proxy", &proxy_url)], &[]).expect_ok("through the proxy");
    world.assert_published(&commit);
    assert!(proxy.hits().iter().all(|hit| hit.path.starts_with("http://git.invalid/")), "{:?}", proxy.hits());

    proxy.forget();
    let excepted = [("http_proxy", proxy_url.as_str()), ("no_proxy", "example.com,.invalid")];
    sync(&world, ELSEWHERE, &excepted, &[]).expect_failure("past the proxy");
    assert!(proxy.hits().is_empty());

    // The same exceptions hold for git's own setting.
    let setting = format!("http.proxy:{proxy_url}");
    let setting = ["--git-config", setting.as_str()];
    sync(&world, ELSEWHERE, &[], &setting).expect_ok("through the proxy of the setting");
    assert!(!proxy.hits().is_empty());

    let lists: [&[(&str, &str)]; 3] = [
        &excepted[1..],
        &[("no_proxy", "example.com .invalid"), ("NO_PROXY", "example.com")],
        &[("no_proxy", ""), ("NO_PROXY", "example.com, .invalid")],
    ];
    for variables in lists {
        proxy.forget();
        let ran = sync(&world, ELSEWHERE, variables, &setting).expect_failure("past the setting's proxy");
        assert!(proxy.hits().is_empty() && !ran.stderr.contains("through the proxy"), "{}", ran.stderr);
    }
    proxy.forget();
    let other = [("no_proxy", "example.com"), ("NO_PROXY", ".invalid")];
    sync(&world, ELSEWHERE, &other, &setting).expect_ok("the variable in lower case wins");
    assert!(!proxy.hits().is_empty());
}

#[test]
fn a_system_without_certificates_says_so_and_works_with_a_ca_file() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let authority = Authority::new();
    let kind = Kind { tls: Some(authority.server.clone()), ..Kind::default() };
    let backend = HttpBackend::start(world.dir(), kind);
    let empty = world.dir().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let none = [("SSL_CERT_FILE", empty.to_str().unwrap())];

    let ran = sync(&world, &backend.url("remote"), &none, &[]).expect_failure("without roots");
    ran.names(&["this system has no CA certificates"]);
    assert!(ran.stderr.contains("--ca-file"), "{}", ran.stderr);

    let file = authority.write(&world.dir().join("ca.pem"));
    sync(&world, &backend.url("remote"), &none, &["--ca-file", file.to_str().unwrap()])
        .expect_ok("with a CA file");
    world.assert_published(&commit);
}

#[test]
fn certificates_of_the_system_that_hang_are_named_and_do_not_stop_the_program() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let kind = Kind { tls: Some(Authority::new().server), ..Kind::default() };
    let backend = HttpBackend::start(world.dir(), kind);
    let fifo = world.dir().join("fifo.pem");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let hung = [("SSL_CERT_FILE", fifo.to_str().unwrap())];
    let ran = sync(&world, &backend.url("remote"), &hung, &["--max-failures=0"]).expect_failure("hung roots");
    ran.names(&["this system's CA certificates could not be read within 5s"]);
}

#[test]
fn a_url_with_a_secret_in_it_never_becomes_an_argument_of_a_program() {
    let world = World::new();
    let program = world.dir().join("git-that-tells");
    let told = world.dir().join("told");
    let script = format!("#!/bin/sh\ntr '\\0' ' ' </proc/$$/cmdline >>{}\nexit 1\n", told.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let git = format!("--git={}", program.display());
    // A commit id names itself: the program is run at once.
    let fetch = |url: &str| {
        let reference = format!("--ref={}", "1".repeat(40));
        let mut command = world.treeswap(&["sync", "--one-time", &reference, "--repo", url, &git, "--root"]);
        run::to_end(command.arg(&world.root)).expect_failure(url).stderr
    };
    for url in
        ["https://127.0.0.1:1/x.git?private_token=canary-argument", "ssh://u:canary-argument@127.0.0.1:1/x"]
    {
        let stderr = fetch(url);
        let said = std::fs::read_to_string(&told).unwrap_or_default();
        assert!(!said.contains("canary-argument"), "{said}");
        assert!(stderr.contains("with --git it is an argument"), "{stderr}");
    }
    let stderr = fetch("ssh://deploy-of-acme@127.0.0.1:1/x"); // a user name is none
    let said = std::fs::read_to_string(&told).unwrap_or_default();
    assert!(said.contains("ssh://deploy-of-acme@127.0.0.1:1/x"), "{said}: {stderr}");
}
