//! Credentials that are asked for or kept as cookies, against real servers: askpass URLs, GitHub Apps, cookie files.

#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::http_backend::{Canned, Hit, HttpBackend, Kind};
use common::run::Ran;
use common::{Files, Sidecar, World};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

const RIGHT: &str = "ignored\nusername=bob\npassword=canary=4711\n";

fn commit(world: &World, text: &str) -> String {
    world.remote.commit(&Files::new().file("file", text))
}

/// A git server that wants this user and password.
fn git(world: &World, user: &str, password: &str) -> HttpBackend {
    let auth = Some((user.to_owned(), password.to_owned()));
    HttpBackend::start(world.dir(), Kind { auth, ..Kind::default() })
}

/// A server that answers whatever it is told to, given how often it was asked before.
fn server(world: &World, answer: impl Fn(usize, &Hit) -> Canned + Send + Sync + 'static) -> HttpBackend {
    let asked = AtomicUsize::new(0);
    let hook = move |hit: &Hit| Some(answer(asked.fetch_add(1, Ordering::SeqCst), hit));
    HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() })
}

fn repo(server: &HttpBackend) -> String {
    format!("--repo={}", server.url("remote"))
}

fn askpass(server: &HttpBackend) -> String {
    format!("--askpass-url={}", server.url("s3cret-path"))
}

/// Fails the test unless it failed with these words and nothing secret.
#[track_caller]
fn complains(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
    for word in words {
        assert!(ran.complaint().contains(word), "`{word}` is not in {}", ran.complaint());
    }
    for secret in ["canary", "s3cret", "PRIVATE KEY"] {
        assert!(!ran.stderr.contains(secret), "{}", ran.stderr);
    }
}

#[test]
fn an_askpass_url_is_asked_once_an_attempt_and_lets_us_in() {
    let world = World::new();
    let git = git(&world, "bob", "canary=4711");
    let pass = server(&world, |_, _| Canned::status(200, RIGHT));
    let first = commit(&world, "first");
    world.sync_once(&[&repo(&git), &askpass(&pass)]).expect_ok("the right password");
    world.assert_published(&first);
    let hits = pass.hits();
    assert_eq!((hits.len(), hits[0].method.as_str(), hits[0].path.as_str()), (1, "GET", "/s3cret-path"));
    assert!(git.hits().len() > 1, "one answer serves all requests of an attempt");
    pass.forget();
    let sidecar = Sidecar::start(&world, &[&repo(&git), &askpass(&pass)]);
    sidecar.idle(10);
    let second = commit(&world, "second");
    sidecar.publishes(&world, &second);
    let (asked, attempts) = (pass.hits().len() as u64, sidecar.attempts());
    assert!(asked >= 10 && asked <= attempts + 2, "{asked} times in {attempts} attempts");
    assert!(!sidecar.process.log().contains("s3cret"), "{}", sidecar.process.log());
}

/// As git-sync's: the variable of a proxy is often set for all programs of a Pod.
#[test]
fn an_askpass_url_in_the_pod_is_asked_without_a_proxy() {
    let world = World::new();
    let git = git(&world, "bob", "canary=4711");
    let pass = server(&world, |_, _| Canned::status(200, RIGHT));
    let proxy = server(&world, |_, _| Canned::status(200, RIGHT));
    commit(&world, "first");
    let without = "--git-config=http.proxy:\"\""; // the repository itself is here, too
    let hits = |askpass: &str| {
        let mut command = world.sync(&["--one-time", &repo(&git), without, askpass]);
        command.env("http_proxy", format!("http://{}", proxy.address)).env("no_proxy", ".cluster.local");
        common::run::to_end(&mut command).expect_ok(askpass);
        (pass.hits().len(), proxy.hits().len())
    };
    assert_eq!(hits(&askpass(&pass)), (1, 0));
    assert_eq!(hits(&format!("--askpass-url=http://127.0.0.1:{}/", pass.address.port())), (2, 0));
    assert_eq!(hits("--askpass-url=http://pass.invalid/"), (2, 1));
}

#[test]
fn a_wrong_answer_of_an_askpass_url_fails_the_attempt_in_words() {
    let world = World::new();
    let git = git(&world, "bob", "canary=4711");
    commit(&world, "first");
    let thief = server(&world, |_, _| Canned::status(200, RIGHT));
    let there = thief.url("elsewhere");
    let cases: [(Canned, &[&str]); 6] = [
        (Canned::status(200, "username=bob\npassword=canary-0815\n"), &["answered 401 to user \"bob\""]),
        (Canned::status(503, RIGHT), &["no credential for", "--askpass-url", "answered 503, not 200"]),
        (Canned::status(201, RIGHT), &["answered 201, not 200"]),
        (Canned::redirect(&there), &["answered 302, not 200"]),
        (Canned::status(200, "canary"), &["without a line username= or password="]),
        (Canned::hang_up(), &["cannot be reached"]),
    ];
    for (answer, words) in cases {
        let pass = server(&world, move |_, _| answer.clone());
        complains(&world.sync_once(&[&repo(&git), &askpass(&pass)]), 1, words);
    }
    assert!(thief.hits().is_empty(), "a redirect was followed");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--askpass-url=http://{}/s3cret", silent.local_addr().unwrap());
    complains(&world.sync_once(&[&repo(&git), &url]), 1, &["did not answer in time"]);
    assert!(!world.root.join("..data").exists());
}

#[test]
fn an_askpass_url_that_is_sometimes_wrong_flaky_or_late_does_not_stop_the_sync() {
    for bad in [Canned::status(200, "username=bob\npassword=wrong\n"), Canned::status(503, "")] {
        let world = World::new();
        let git = git(&world, "bob", "canary=4711");
        let pass = server(
            &world,
            move |before, _| {
                if before % 2 == 0 { Canned::status(200, RIGHT) } else { bad.clone() }
            },
        );
        let mut last = commit(&world, "first");
        let flags = [&repo(&git), &askpass(&pass), "--max-failures=2", "--max-backoff=20ms"];
        let mut sidecar = Sidecar::start(&world, &flags);
        for text in ["second", "third"] {
            sidecar.publishes(&world, &last);
            last = commit(&world, text);
        }
        sidecar.publishes(&world, &last);
        assert!(sidecar.process.is_running());
    }
    let world = World::new();
    let git = git(&world, "bob", "canary=4711");
    let ready = Arc::new(AtomicUsize::new(0));
    let is_ready = Arc::clone(&ready);
    let pass = server(&world, move |_, _| match is_ready.load(Ordering::SeqCst) {
        0 => Canned::hang_up(),
        _ => Canned::status(200, RIGHT),
    });
    let first = commit(&world, "first");
    let sidecar = Sidecar::start(&world, &[&repo(&git), &askpass(&pass), "--max-backoff=20ms"]);
    sidecar.idle(3);
    assert!(!world.root.join("..data").exists());
    ready.store(1, Ordering::SeqCst);
    sidecar.publishes(&world, &first);
}

#[test]
fn cookies_go_to_their_host_and_are_read_again() {
    let world = World::new();
    let first = commit(&world, "first");
    let hook = |hit: &Hit| match hit.header("cookie") {
        Some("o=canary") => None,
        other => Some(Canned::status(403, &format!("no: {}", other.unwrap_or("none")))),
    };
    let git = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let file = world.dir().join("cookies");
    let flag = format!("--cookie-file={}", file.display());
    std::fs::write(&file, "other.example.com\tFALSE\t/\tTRUE\t0\to\tcanary\n").unwrap();
    complains(&world.sync_once(&[&repo(&git), &flag]), 1, &["answered 403"]);
    std::fs::write(&file, "#HttpOnly_localhost\tFALSE\t/\tTRUE\t0\to\tcanary\n").unwrap();
    world.sync_once(&[&repo(&git), &flag]).expect_ok("the right cookie");
    std::fs::write(&file, "#HttpOnly_localhost\tFALSE\t/\tTRUE\t0\to\told\n").unwrap();
    let header = "--git-config=http.extraHeader:\"Authorization: Bearer canary\"";
    let words = "answered 403 to a request with a cookie of --cookie-file and the header authorization";
    complains(&world.sync_once(&[&repo(&git), &flag, header]), 1, &[words]);
    world.assert_published(&first);
    std::fs::remove_file(&file).unwrap();
    complains(&world.sync_once(&[&repo(&git), &flag]), 1, &["no credential for", "cookies"]);
    let fixed = world.sync_once(&[&repo(&git), "--cookie-file"]);
    complains(&fixed, 1, &["/etc/git-secret/cookie_file"]);
    complains(&world.sync_once(&[&repo(&git), "--cookie-file=false"]), 1, &["answered 403"]);
}

/// An RSA key as ssh-keygen writes it: `PEM` is PKCS#1.
fn key(dir: &Path, format: &str) -> PathBuf {
    let path = dir.join(format!("key-{format}"));
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-m", format, "-f"]).arg(&path);
    assert!(command.status().unwrap().success());
    path
}

/// GitHub's API for one App and installation 42: a request with the App's own token gets an installation's token that
/// is good for so long.
fn github(world: &World, key: &Path, issuer: &str, seconds: i64) -> HttpBackend {
    let pair = match PrivateKeyDer::from_pem_file(key).unwrap() {
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        _ => panic!("not an RSA key"),
    };
    let (public, issuer) = (pair.unwrap().public_key().as_ref().to_vec(), issuer.to_owned());
    server(world, move |_, hit| {
        let token = hit.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let parts: Vec<&str> = token.unwrap_or_default().split('.').collect();
        let decoded = |at: usize| URL_SAFE_NO_PAD.decode(parts.get(at).unwrap_or(&"")).unwrap_or_default();
        let signed = parts[..parts.len().min(2)].join(".");
        let genuine = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &public);
        let genuine = genuine.verify(signed.as_bytes(), &decoded(2)).is_ok();
        let claims: serde_json::Value = serde_json::from_slice(&decoded(1)).unwrap_or_default();
        let now = jiff::Timestamp::now();
        let (begins, ends) =
            (claims["iat"].as_i64().unwrap_or(i64::MAX), claims["exp"].as_i64().unwrap_or(0));
        let timely = begins <= now.as_second() && ends > now.as_second() && ends - begins <= 600;
        let accept = hit.header("accept") == Some("application/vnd.github+json");
        if hit.path != "/api/app/installations/42/access_tokens" || hit.method != "POST" || !accept {
            return Canned::status(404, r#"{"message":"Not Found"}"#);
        }
        if !genuine || !timely || claims["iss"] != issuer.as_str() {
            let said = format!(
                r#"{{"message":"A JSON web token could not be decoded: {}"}}"#,
                token.unwrap_or_default()
            );
            return Canned::status(401, &said);
        }
        let ends = now + jiff::SignedDuration::from_secs(seconds);
        let ends = ends.strftime("%Y-%m-%dT%H:%M:%SZ");
        Canned::status(
            201,
            &format!(r#"{{"token":"canary-token","expires_at":"{ends}","permissions":{{}}}}"#),
        )
    })
}

fn base(api: &HttpBackend) -> String {
    format!("--github-base-url={}", api.url("api"))
}

#[test]
fn a_github_app_gets_a_token_by_either_id_and_either_form_of_key_and_keeps_it_until_it_ends() {
    for (format, flag, issuer) in [
        ("PEM", "--github-app-application-id=123456", "123456"),
        ("PKCS8", "--github-app-client-id=Iv1.abc", "Iv1.abc"),
    ] {
        let world = World::new();
        let git = git(&world, "-", "canary-token");
        let key = key(world.dir(), format);
        let api = github(&world, &key, issuer, 3600);
        let first = commit(&world, "first");
        let flags = [repo(&git), base(&api), flag.into(), "--github-app-installation-id=42".into()];
        let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let pem = std::fs::read_to_string(&key).unwrap();
        let mut by_variable = world.sync(&["--one-time"]);
        by_variable.args(&flags).env("GITSYNC_GITHUB_APP_PRIVATE_KEY", &pem);
        common::run::to_end(&mut by_variable).expect_ok("the key in a variable");
        world.assert_published(&first);
        let file = format!("--github-app-private-key-file={}", key.display());
        flags.push(&file);
        api.forget();
        let sidecar = Sidecar::start(&world, &flags);
        sidecar.idle(10);
        let second = commit(&world, "second");
        sidecar.publishes(&world, &second);
        assert_eq!(api.hits().len(), 1, "the token was not kept");
        assert!(!sidecar.process.log().contains("canary"), "{}", sidecar.process.log());
    }
}

#[test]
fn a_token_that_ends_within_half_a_minute_is_asked_for_anew() {
    let world = World::new();
    let git = git(&world, "-", "canary-token");
    let key = key(world.dir(), "PEM");
    let api = github(&world, &key, "7", 29);
    commit(&world, "first");
    let file = format!("--github-app-private-key-file={}", key.display());
    let flags = ["--github-app-application-id=7", "--github-app-installation-id=42", &file];
    let sidecar = Sidecar::start(&world, &[&flags[..], &[&repo(&git), &base(&api)]].concat());
    sidecar.idle(5);
    assert!(api.hits().len() >= 5, "{}", api.hits().len());
}

#[test]
fn what_is_wrong_with_a_github_app_is_said() {
    let world = World::new();
    let git = git(&world, "-", "canary-token");
    let [good, other] = ["PEM", "PKCS8"].map(|format| key(world.dir(), format));
    let api = github(&world, &good, "7", 3600);
    commit(&world, "first");
    std::fs::write(world.dir().join("none"), "s3cret and no key\n").unwrap();
    let cases: [(&Path, &str, &[&str]); 4] = [
        (&world.dir().join("absent"), "42", &["the private key cannot be read", "absent"]),
        (&world.dir().join("none"), "42", &["the private key is not PEM of an RSA key"]),
        (&other, "42", &["no credential for", "answered 401, not 201", "could not be decoded: [redacted]"]),
        (&good, "43", &["answered 404, not 201", "Not Found"]),
    ];
    for (key, installation, words) in cases {
        let file = format!("--github-app-private-key-file={}", key.display());
        let installation = format!("--github-app-installation-id={installation}");
        let flags = [&repo(&git), &base(&api), "--github-app-application-id=7", &installation, &file];
        complains(&world.sync_once(&flags), 1, words);
    }
}

#[test]
fn flags_that_exclude_or_need_each_other_are_named() {
    let world = World::new();
    let (id, client) = ("--github-app-application-id=7", "--github-app-client-id=x");
    let (installation, key) = ("--github-app-installation-id=42", "--github-app-private-key-file=/k");
    let variable = "$GITSYNC_GITHUB_APP_PRIVATE_KEY";
    let cases: &[(&[&str], &[&str])] = &[
        (&[id, client, installation, key], &["application-id and --github-app-client-id exclude"]),
        (&[id, key], &["--github-app-application-id needs --github-app-installation-id"]),
        (
            &[client, installation],
            &["--github-app-client-id needs --github-app-private-key-file or $TREESWAP_"],
        ),
        (&[installation], &["--github-app-installation-id needs --github-app-application-id or"]),
        (&[key], &["--github-app-private-key-file needs --github-app-application-id or"]),
        (
            &[id, installation, key, "--username=x", "--password-file=/p"],
            &["application-id and --username exclude"],
        ),
        (&["--github-app-application-id=-1", installation, key], &["invalid value \"-1\""]),
        (&[id, "--github-app-installation-id=-1", key], &["invalid value \"-1\""]),
        (&[id, installation, key, "--github-base-url=ftp://h/s3cret"], &["--github-base-url", "http"]),
        (&["--askpass-url=s3cret"], &["--askpass-url", "must begin with http:// or https://"]),
        (&["--askpass-url=http://h", id, installation, key], &["--askpass-url and a GitHub App exclude"]),
        (
            &["--askpass-url=http://h", "--username=x", "--password-file=/p"],
            &["--askpass-url and --username exclude each other"],
        ),
    ];
    for (flags, words) in cases {
        complains(&world.sync_once(flags), 2, words);
    }
    for url in ["s3cret.example.com/x", "localhost:3000", "https://", "file:///x", "/x"] {
        let json = format!(r#"{{"url":"{url}","username":"bob","password-file":"/p"}}"#);
        let why = "the url of each credential needs a scheme and a host";
        let flag = format!("--credential={json}");
        complains(&world.sync_once(&[&flag]), 2, &["invalid value for --credential: ", why]);
        let mut by_variable = world.sync(&["--one-time"]);
        let ran = common::run::to_end(by_variable.env("TREESWAP_CREDENTIAL", json));
        complains(&ran, 2, &["invalid value for $TREESWAP_CREDENTIAL: ", why]);
    }
    let one = r#"{"url":"https://h","username":"bob","password":"canary"}"#;
    let mut without_brackets = world.sync(&["--one-time"]);
    let ran = common::run::to_end(without_brackets.env("TREESWAP_CREDENTIAL", format!("{one},{one}")));
    complains(&ran, 2, &["$TREESWAP_CREDENTIAL: it is not JSON of the form "]);
    let mut both = world.sync(&[id, installation, key]);
    let ran = common::run::to_end(both.env(&variable[1..], "canary"));
    complains(&ran, 2, &[variable, "and --github-app-private-key-file exclude each other"]);
    let ours = "$TREESWAP_GITHUB_APP_PRIVATE_KEY";
    let mut alone = world.sync(&["--one-time"]);
    let ran = common::run::to_end(alone.env(&ours[1..], "canary"));
    complains(&ran, 2, &[ours, "needs --github-app-application-id or --github-app-client-id"]);
}

/// git-sync ignores such a key, and its variables mean the same here.
#[test]
fn a_key_of_a_github_app_that_git_sync_ignores_is_warned_about_and_ignored() {
    let world = World::new();
    let first = commit(&world, "first");
    for (name, value) in [
        ("GITSYNC_GITHUB_APP_PRIVATE_KEY", "canary"),
        ("GITSYNC_GITHUB_APP_PRIVATE_KEY_FILE", "/nonexistent/key"),
    ] {
        let ran = common::run::to_end(world.sync(&["--one-time"]).env(name, value)).expect_ok(name);
        world.assert_published(&first);
        let warning = format!("${name} has no effect without --github-app-application-id or ");
        assert!(ran.stderr.contains(&warning) && !ran.stderr.contains("canary"), "{}", ran.stderr);
    }
}

#[test]
fn check_shows_where_secrets_come_from_and_none_of_them() {
    let world = World::new();
    let check = ["check", "--repo=https://h/x", "--root=/r"];
    let mut by_askpass = world.treeswap(&check);
    by_askpass.args(["--askpass-url=http://h:1/s3cret", "--webhook-url=http://h:1/s3cret"]);
    let ran = common::run::to_end(&mut by_askpass).expect_ok("check");
    assert!(ran.stdout.contains("--askpass-url=http://h:1/[redacted]"), "{}", ran.stdout);
    assert!(ran.stdout.contains("--webhook-url=http://h:1/[redacted]"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("s3cret"), "{}", ran.stdout);
    let mut as_app = world.treeswap(&check);
    as_app.args(["--github-app-application-id=7", "--github-app-installation-id=42"]);
    let ran = common::run::to_end(as_app.env("TREESWAP_GITHUB_APP_PRIVATE_KEY", "canary")).expect_ok("check");
    assert!(
        ran.stdout.contains("the GitHub App's private key is $TREESWAP_GITHUB_APP_PRIVATE_KEY"),
        "{}",
        ran.stdout
    );
    assert!(!ran.stdout.contains("canary"), "{}", ran.stdout);
}

#[test]
fn credentials_that_have_no_effect_or_cannot_be_read_are_warned_about() {
    let world = World::new();
    let check = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = world.treeswap(&[&["check", "--root=/nonexistent/root"], args].concat());
        common::run::to_end(command.envs(variables.iter().copied())).expect_ok("only a warning").stderr
    };
    for flags in [&["--username=u", "--password-file=/p"][..], &["--askpass-url=http://h/"]] {
        let said = check(&[&["--repo=git@git.example.com:x"], flags].concat(), &[]);
        let name = flags[0].split('=').next().unwrap();
        let line = format!("warning: {name} has no effect: the repository is not reached by http or https\n");
        assert!(said.contains(&line), "{said}");
        let said = check(&[&["--repo=https://git.example.com/x"], flags].concat(), &[]);
        assert!(!said.contains("has no effect"), "{said}");
    }
    let json = r#"{"url":"https://git.example.com","username":"u","password-file":"/no/password"}"#;
    let repo = "--repo=https://git.example.com/x";
    let flag = format!("--credential={json}");
    let by_flag = check(&[repo, &flag, &flag], &[]);
    let by_variable = check(&[repo], &[("TREESWAP_CREDENTIAL", json)]);
    for said in [by_flag, by_variable] {
        let line = "warning: --credential: the password file /no/password cannot be read: No such file";
        assert_eq!(said.matches(line).count(), 1, "{said}");
    }
}
