//! The kinds of secret, in runs of those that go together.

use std::path::PathBuf;
use std::process::Command;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::common::http_backend::{HttpBackend, Kind};
use super::common::{Files, World, run};
use super::echo::Echo;
use super::{Canaries, Run, ends_without, failures};

const FAST: [&str; 5] =
    ["--period=10ms", "--max-backoff=10ms", "--jitter=0", "--min-interval=0s", "--log-format=json"];

fn sync(world: &World, more: &[String]) -> Command {
    let mut command = world.treeswap(&["sync", "--ref=main"]);
    command.arg(format!("--root={}", world.root.display())).args(FAST).arg(failures()).args(more);
    command
}

fn write(world: &World, name: &str, text: &str) -> PathBuf {
    let path = world.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_password_cookies_headers_and_settings_of_git() {
    let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
    let at = echo.address;
    let name = canaries.make("--username");
    let password = canaries.make("--password-file");
    canaries.pair(&name, &password);
    let [one, two, other] =
        ["a cookie", "another cookie", "a cookie for another host"].map(|kind| canaries.make(kind));
    let cookies = format!(
        "127.0.0.1\tFALSE\t/\tFALSE\t0\ta\t{one}\n127.0.0.1\tFALSE\t/\tFALSE\t0\tb\t{two}\nh\tFALSE\t/\tFALSE\t0\tc\t{other}\n"
    );
    let [bearer, custom, odd] = ["Bearer", "a header", "a header with signs"].map(|kind| canaries.make(kind));
    let odd = format!("{}\"'<&%{}", &odd[..10], &odd[10..]);
    let (user, word) =
        (canaries.make("the user of a Basic header"), canaries.make("the password of a Basic header"));
    canaries.pair(&user, &word);
    let basic = STANDARD.encode(format!("{user}:{word}"));
    let unused = canaries.make("a URL in a setting that has no effect");
    let key = canaries.make("a URL in the name of a setting");
    let hook = canaries.make("the path of --webhook-url");
    let query = canaries.make("the query of --webhook-url");
    let secrets = [canaries.make("a webhook secret"), canaries.make("the next webhook secret")].join("\n");
    let file = |name: &str, text: &str| write(&world, name, text).display().to_string();
    let run = Run::start(
        &world,
        sync(
            &world,
            &[
                format!("--repo=http://{at}/remote"),
                format!("--username={name}"),
                format!("--password-file={}", file("password", &format!("{password}\n"))),
                format!("--cookie-file={}", file("cookies", &cookies)),
                format!("--webhook-url=http://{at}/hook/{hook}?key={query}"),
                format!("--webhook-secret-file={}", file("secrets", &secrets)),
                format!("--git-config-add=http.extraHeader:X-Auth: Bearer {bearer}"),
                format!("--git-config-add=http.extraHeader:X-Custom: {custom}"),
                format!("--git-config-add=\"http.extraHeader\":\"X-Odd: {}\"", odd.replace('"', "\\\"")),
                format!("--git-config-add=lfs.url:https://bob:{unused}@h/x"),
                format!("--git-config-add=\"lfs.https://bob:{key}@h/.locksverify\":x"),
            ],
        )
        .env("TREESWAP_GIT_CONFIG", format!("http.extraHeader:X-Basic: Basic {basic}")),
    );
    run.watch(&canaries);
    for request in ["GET /remote/info/refs", "POST /remote/git-upload-pack"] {
        let answers = echo.answers(request);
        assert!(answers >= 16, "{request} got {answers} answers, which may not be all kinds of them");
    }
    for sent in [&password, &one, &two, &bearer, &custom, &word] {
        assert!(echo.was_sent(sent), "{sent} was not sent");
    }
}

#[test]
fn a_credential_in_the_url_and_a_query() {
    for shape in ["USER:PASSWORD@", "USER@", ":PASSWORD@", "x-access-token:PASSWORD@"] {
        let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
        let (user, password) = (canaries.make("the user in a URL"), canaries.make("the password in a URL"));
        let query = canaries.make("the query of a URL");
        let userinfo = shape.replace("USER", &user).replace("PASSWORD", &password);
        let (name, word) = userinfo[..userinfo.len() - 1].split_once(':').unwrap_or((&user, ""));
        canaries.pair(name, word);
        let repo = format!("--repo=http://{userinfo}{}/remote?private={query}", echo.address);
        let run = Run::start(&world, &mut sync(&world, &[repo, "--max-failures=120".to_owned()]));
        run.watch(&canaries);
        assert!(echo.was_sent(if shape.contains("PASS") { &password } else { &user }));
    }
}

#[test]
fn signs_in_a_password_that_every_escape_writes_differently() {
    let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
    let password = "pW\"q\\z/e@f#g?h&i<j>k'l%25m n";
    for part in
        ["pW\"q\\z", "z/e@f#g", "g?h&i<j", "j>k'l%25m", "%25m n", "k%27l%2525m", "%2Fe%40f", "pW%22q%5C"]
    {
        canaries.add("signs", part);
    }
    canaries.pair("git", password);
    let repo = format!("--repo=http://{}/remote", echo.address);
    let json = serde_json::json!({ "url": format!("http://{}", echo.address), "username": "git", "password": password });
    let mut command = sync(&world, &[repo]);
    let run = Run::start(&world, command.env("TREESWAP_CREDENTIAL", json.to_string()));
    run.watch(&canaries);
    assert!(echo.was_sent(password));
}

#[test]
fn a_proxy_and_a_rewritten_url() {
    let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
    let [user, password] = ["the user of a proxy", "the password of a proxy"].map(|kind| canaries.make(kind));
    canaries.pair(&user, &password);
    let base = canaries.make("the base of insteadOf");
    canaries.pair("git", &base);
    let rewritten =
        format!("--git-config-add=\"url.http://git:{base}@git.example.com/.insteadOf\":https://short/");
    let mut command = sync(&world, &["--repo=https://short/remote".to_owned(), rewritten]);
    command.env("http_proxy", format!("http://{user}:{password}@{}", echo.address));
    Run::start(&world, &mut command).watch(&canaries);
    assert!(echo.was_sent(&password) && echo.was_sent(&base), "the proxy was not asked");
    let [user, password] =
        ["the user of http.proxy", "the password of http.proxy"].map(|kind| canaries.make(kind));
    canaries.pair(&user, &password);
    let (world, echo) = (World::new(), Echo::start()); // the other one knows what this process was never given
    let proxy = format!("--git-config-add=http.proxy:http://{user}:{password}@{}", echo.address);
    let mut command = sync(&world, &["--repo=http://git.example.com/remote".to_owned(), proxy]);
    Run::start(&world, &mut command).watch(&canaries);
    assert!(echo.was_sent(&password), "the proxy was not asked");
}

#[test]
fn what_an_askpass_url_gives_out() {
    let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
    let path = canaries.make("the path of an askpass URL");
    let query = canaries.make("the query of an askpass URL");
    let own = canaries.make("the password of an askpass URL");
    canaries.pair("bob", &own);
    let (user, password) = (canaries.make("an issued user"), canaries.make("an issued password"));
    canaries.pair(&user, &password);
    let said = format!("username={user}\npassword={password}\n");
    let hook = move |_: &super::common::http_backend::Hit| {
        Some(super::common::http_backend::Canned::status(200, &said))
    };
    let issuer = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let askpass = format!("--askpass-url=http://bob:{own}@{}/{path}?key={query}", issuer.address);
    Run::start(&world, &mut sync(&world, &[format!("--repo=http://{}/remote", echo.address), askpass]))
        .watch(&canaries);
    assert!(echo.was_sent(&password) && !issuer.hits().is_empty());
    let world = World::new();
    let askpass = format!("--askpass-url=http://bob:{own}@{}/{path}?key={query}", echo.address);
    Run::start(&world, &mut sync(&world, &["--repo=http://127.0.0.1:1/remote".to_owned(), askpass]))
        .watch(&canaries);
}

#[test]
fn a_github_app() {
    for is_file in [false, true] {
        a_key_of_a_github_app(is_file);
    }
}

fn a_key_of_a_github_app(is_file: bool) {
    let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
    let kind = if is_file { "the file of an App's key" } else { "the variable with an App's key" };
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let text = STANDARD.encode(key.as_der().unwrap().as_ref());
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    lines.iter().for_each(|line| canaries.add(kind, line));
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    let mut flags = vec![
        format!("--repo=http://{}/remote", echo.address),
        format!("--github-base-url=http://{}/api", echo.address),
        "--github-app-application-id=7".to_owned(),
        "--github-app-installation-id=42".to_owned(),
    ];
    if is_file {
        flags.push(format!("--github-app-private-key-file={}", write(&world, "key", &pem).display()));
    }
    let mut command = sync(&world, &flags);
    if !is_file {
        command.env("TREESWAP_GITHUB_APP_PRIVATE_KEY", &pem);
    }
    Run::start(&world, &mut command).watch(&canaries);
    let jwt = echo.sent("eyJ");
    canaries.add("the signature of a token", jwt.rsplit('.').next().unwrap());
    let log = std::fs::read_to_string(world.dir().join("log")).unwrap();
    canaries.assert_absent("the log", &log);
}

#[test]
fn the_key_of_ssh() {
    let (world, mut canaries) = (World::new(), Canaries::new());
    let good = world.dir().join("good");
    let mut make = Command::new("ssh-keygen");
    make.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&good);
    run::to_end(&mut make).expect_ok("ssh-keygen");
    let text = std::fs::read_to_string(&good).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("-----")).collect();
    // The first line says what every such key is.
    lines.iter().skip(1).for_each(|line| canaries.add("the private key of ssh", line));
    let inside = canaries.make("a broken private key of ssh");
    let broken = text.replacen(lines[1], &format!("{inside}!{inside}"), 1);
    let broken = write(&world, "broken", &broken);
    let word = canaries.make("a file that is no private key of ssh");
    let none = write(&world, "none", &format!("{word}\n"));
    for key in [&good, &broken, &none] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(key, mode).unwrap();
        for personality in ["sync", "git-sync"] {
            let mut command = world.treeswap(&[personality, "--one-time", "--ssh-known-hosts=false"]);
            command.arg("--repo=ssh://git@127.0.0.1:1/x").arg(format!("--root={}", world.root.display()));
            let ran = ends_without(command.arg(format!("--ssh-key-file={}", key.display())), &canaries);
            assert_ne!(ran.status.code(), Some(0), "{}", ran.stderr);
        }
    }
}

#[test]
fn the_password_file_of_a_credential() {
    let (world, echo, mut canaries) = (World::new(), Echo::start(), Canaries::new());
    let (name, password) =
        (canaries.make("the user of --credential"), canaries.make("the password-file of --credential"));
    canaries.pair(&name, &password);
    let at = format!("http://{}", echo.address);
    let file = write(&world, "password", &format!("{password}\n"));
    let json = serde_json::json!({ "url": at, "username": name, "password-file": file });
    let flags = [format!("--repo={at}/remote"), format!("--credential={json}")];
    Run::start(&world, &mut sync(&world, &flags)).watch(&canaries);
    assert!(echo.was_sent(&password));
}

#[test]
fn a_url_whose_credential_cannot_be_told_is_not_shown_by_what_refuses_it() {
    let world = World::new();
    let mut canaries = Canaries::new();
    let password = canaries.make("a password in a malformed URL");
    let (head, tail) = password.split_at(10);
    for url in [
        format!("http://bob:{head}/{tail}@h/x"),
        format!("http://bob:{head}#{tail}@h/x"),
        format!("http://bob:{head}?{tail}@h/x"),
        format!("http://{head}/{tail}@h/x"),
        format!("bob:{password}@127.0.0.1:x"),
        format!("http:/bob:{password}@h/x"),
        format!("http:bob:{password}@h/x"),
        format!("//bob:{password}@h/x"),
        format!("{password}@h/x"),
        format!("bob:{password}@http://h/x"),
        format!("https://bob:{password}@"),
        format!("https://bob:{password}@h:port/x"),
        format!("htps://bob:{password}@h/x"),
        format!("http://bob:{password}@[::1/x"),
        format!("ssh://bob:{password}@h:port/x"),
    ] {
        for more in [&["sync", "--one-time"][..], &["check"], &["git-sync", "--one-time"]] {
            let mut command = world.treeswap(more);
            command.arg(format!("--repo={url}")).arg(format!("--root={}", world.root.display()));
            command.args(["--connect-timeout=20ms", "--ssh-known-hosts=false"]);
            ends_without(&mut command, &canaries);
        }
        let mut by_variable = world.treeswap(&["sync", "--one-time", "--connect-timeout=20ms"]);
        by_variable.arg(format!("--root={}", world.root.display())).env("TREESWAP_REPO", &url);
        ends_without(&mut by_variable, &canaries);
        for flag in ["", "--rep=", "--root="] {
            ends_without(&mut world.treeswap(&["sync", &format!("{flag}{url}")]), &canaries);
        }
        for flag in ["--askpass-url", "--webhook-url", "--github-base-url"] {
            let args = ["check", "--repo=https://h/x", "--root=/r", flag, &url];
            ends_without(&mut world.treeswap(&args), &canaries);
        }
    }
}

#[test]
fn what_stands_behind_a_path_or_where_a_name_belongs() {
    let mut canaries = Canaries::new();
    let fragment = canaries.make("the fragment of a URL");
    let parameter = canaries.make("the parameter of a URL");
    let only = canaries.make("the only parameter of a URL");
    let query = canaries.make("the query of a URL");
    let part = canaries.make("a part of a setting's name");
    let name = canaries.make("a setting's name");
    let behind = canaries.make("a value behind a setting's name");
    let header = canaries.make("the name of a header");
    let middle = canaries.make("a URL with a secret in its middle, in the name of a setting");
    let odd = [
        format!("--repo=http://ECHO/x#{fragment}"),
        format!("--repo=http://ECHO/x;token={parameter}"),
        format!("--repo=http://ECHO/x;{only}/y"),
        format!("--repo=http://ECHO/x;token={parameter}?token={query}#{fragment}"),
        format!("--repo=ssh://git@127.0.0.1:1/x#{fragment}"),
        format!("--repo=ssh://git@127.0.0.1:1/x?token={query}"),
        format!("--git-config-add=http.extraHeader={behind}: x"),
        format!("--git-config-add=http.extraHeader:{header}: x"),
        format!("--git-config-add=http.{part}.foo:x"),
        format!("--git-config-add=http.{part}.proxy:x"),
        format!("--git-config-add=http.{part}.sslVerify:maybe"),
        format!("--git-config-add={name}:x"),
        format!("--git-config-add={name}.foo:x"),
        format!("--git-config-add=lfs.{name}:x"),
        format!("--git-config-add=\"lfs.https://h/a/{middle}/b.locksverify\":x"),
    ];
    let mut sent = false;
    for odd in &odd {
        // Each has its own server: another one knows what a process was never given.
        let (world, echo) = (World::new(), Echo::start());
        let at = echo.address.to_string();
        for command in
            [&["sync", "--one-time", "--log-level=trace"][..], &["check"], &["git-sync", "--one-time"]]
        {
            let mut command = world.treeswap(command);
            if !odd.starts_with("--repo") {
                command.arg(format!("--repo=http://{at}/remote"));
            }
            command.arg(format!("--root={}", world.root.display())).arg(odd.replace("ECHO", &at));
            command.args(["--connect-timeout=20ms", "--ssh-known-hosts=false"]);
            ends_without(&mut command, &canaries);
        }
        sent |= echo.was_sent(&parameter) && echo.was_sent(&query);
    }
    assert!(sent, "a parameter and a query are sent");
}

#[test]
fn git_syncs_flags_and_variables() {
    let mut canaries = Canaries::new();
    let kinds = [
        "the user of git-sync's --credential",
        "the password of git-sync's --credential",
        "git-sync's --username",
        "git-sync's --password",
        "git-sync's --git-config",
        "$GITSYNC_PASSWORD",
        "$GIT_CONFIG_VALUE_0",
    ];
    let made = kinds.map(|kind| canaries.make(kind));
    type Given<'a> = (Vec<String>, Vec<(&'a str, String)>, &'a [usize]);
    let cases: [fn(&[String], &str) -> Given<'static>; 5] = [
        |made, _| (vec![format!("--username={}", made[2]), format!("--password={}", made[3])], vec![], &[3]),
        |made, at| {
            let json = serde_json::json!({ "url": at, "username": made[0], "password": made[1] });
            (vec![format!("--credential={json}")], vec![], &[1])
        },
        |made, _| (vec![format!("--git-config=http.extraHeader:X-A: Bearer {}", made[4])], vec![], &[4]),
        |made, _| {
            let user = ("GIT_SYNC_USERNAME", "bob".to_owned());
            (vec![], vec![user, ("GITSYNC_PASSWORD", made[5].clone())], &[5])
        },
        |made, _| {
            let header = ("GIT_CONFIG_VALUE_0", format!("X-Token: {}", made[6]));
            let key = ("GIT_CONFIG_KEY_0", "http.extraHeader".to_owned());
            (vec![], vec![("GIT_CONFIG_COUNT", "1".to_owned()), key, header], &[6])
        },
    ];
    for case in cases {
        let (world, echo) = (World::new(), Echo::start());
        let at = format!("http://{}", echo.address);
        let (flags, variables, sent) = case(&made, &at);
        for _ in 0..5 {
            let mut command = world.treeswap(&["git-sync", "--one-time", "-v=9", "--ref=main"]);
            command.arg(format!("--repo={at}/remote")).arg(format!("--root={}", world.root.display()));
            ends_without(command.args(&flags).envs(variables.iter().cloned()), &canaries);
        }
        for sent in sent {
            assert!(echo.was_sent(&made[*sent]), "number {sent} was not sent");
        }
    }
}

#[test]
fn a_kubeconfigs_tokens_and_passwords() {
    let mut canaries = Canaries::new();
    let kinds = [
        ("token", "a kubeconfig's token"),
        ("tokenFile", "a kubeconfig's tokenFile"),
        ("password", "a kubeconfig's password"),
        ("exec", "a kubeconfig's exec"),
        ("client-key-data", "a kubeconfig's client-key-data"),
        ("client-key", "a kubeconfig's client-key"),
    ];
    for (kind, named) in kinds {
        let (world, echo) = (World::new(), Echo::start());
        world.remote.commit(&Files::new().file("file", "text"));
        let secret = canaries.make(named);
        let plugin = world.dir().join("plugin");
        let answer = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": secret },
        });
        run::executable(&plugin, &format!("#!/bin/sh\necho '{answer}'\n"));
        let user = match kind {
            "token" => serde_json::json!({ "token": secret }),
            "tokenFile" => serde_json::json!({ "tokenFile": write(&world, "token", &secret) }),
            "password" => {
                let name = canaries.make("a kubeconfig's user");
                canaries.pair(&name, &secret);
                serde_json::json!({ "username": name, "password": secret })
            }
            "client-key-data" | "client-key" => {
                let pem = format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n");
                canaries.add(named, &STANDARD.encode(&pem)[40..64]); // past what every key begins with
                let certificate =
                    STANDARD.encode("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
                let mut user = serde_json::json!({ "client-certificate-data": certificate });
                user[kind] = match kind {
                    "client-key" => write(&world, "key", &pem).display().to_string().into(),
                    _ => STANDARD.encode(&pem).into(),
                };
                user
            }
            _ => serde_json::json!({ "exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never",
            } }),
        };
        let config = serde_json::json!({
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", echo.address) } }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        let map = serde_json::json!({ "name": "map", "clusters": { "c": ["ci"] } });
        let rules = serde_json::json!({ "config_updater": { "maps": { "file": map } } });
        let kubeconfig =
            format!("--kubeconfig={}", write(&world, "kubeconfig", &config.to_string()).display());
        let rules = format!("--rules={}", write(&world, "plugins.yaml", &rules.to_string()).display());
        for _ in 0..if super::common::full() { 100 } else { 6 } {
            let mut command = world.treeswap(&["apply", "--owner=test", "--ref=main", "--repo"]);
            command.arg(&world.remote.path).args([&kubeconfig, &rules]);
            let ran = ends_without(&mut command, &canaries);
            assert_ne!(ran.status.code(), Some(0), "{}", ran.stderr);
        }
        assert!(kind.starts_with("client-key") || echo.was_sent(&secret), "{named} was not sent");
    }
}
