//! What programs that are started get to know: hooks, and git by its arguments.

use super::common::http_backend::{HttpBackend, Kind};
use super::common::{Files, World, run};
use super::{Canaries, ends_without};

#[test]
fn hooks_and_the_arguments_of_children() {
    for in_url in [false, true] {
        a_hook_and_a_git(in_url);
    }
}

fn a_hook_and_a_git(in_url: bool) {
    let mut canaries = Canaries::new();
    let world = World::new();
    let first = world.remote.commit(&Files::new().file("file", "text"));
    let (name, password) = if in_url {
        (canaries.make("the user in a URL"), canaries.make("the password in a URL"))
    } else {
        (canaries.make("--username"), canaries.make("$TREESWAP_PASSWORD"))
    };
    canaries.pair(&name, &password);
    let git = HttpBackend::start(
        world.dir(),
        Kind { auth: Some((name.clone(), password.clone())), ..Kind::default() },
    );
    let (seen, program) = (world.dir().join("seen"), world.dir().join("hook"));
    run::executable(
        &program,
        &format!("#!/bin/sh\nenv >>{0}\ntr '\\0' '\\n' </proc/$$/cmdline >>{0}\n", seen.display()),
    );
    let real = world.dir().join("git");
    let noted = world.dir().join("noted");
    run::executable(&real, &format!("#!/bin/sh\necho \"$@\" >>{}\nexec git \"$@\"\n", noted.display()));
    let header = canaries.make("$TREESWAP_GIT_CONFIG");
    let proxy = canaries.make("the password of a proxy");
    let elsewhere = canaries.make("a variable of another name");
    let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--log-level=trace"]);
    command.arg(format!("--root={}", world.root.display()));
    if in_url {
        let userinfo = format!("://{name}:{password}@");
        command.arg(format!("--repo={}", git.url("remote").replacen("://", &userinfo, 1)));
    } else {
        command.arg(format!("--repo={}", git.url("remote"))).arg(format!("--username={name}"));
        command.env("TREESWAP_PASSWORD", &password);
    }
    command.arg(format!("--exechook-command={}", program.display()));
    command.arg(format!("--git={}", real.display()));
    command.env("GITSYNC_GIT_CONFIG", "http.extraHeader:X-A: old");
    command.env("TREESWAP_GIT_CONFIG", format!("http.extraHeader:X-Token: {header}"));
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "http.extraHeader");
    command.env("GIT_CONFIG_VALUE_0", format!("X-Token: {}", canaries.make("$GIT_CONFIG_VALUE_0")));
    command.env("no_proxy", "*").env("HTTPS_PROXY", format!("http://bob:{proxy}@127.0.0.1:1"));
    let encoded = |name| super::encodings::ENCODINGS.iter().find(|(known, _)| *known == name).unwrap().1;
    for (number, name) in
        ["hexadecimal", "hexadecimal, upper case", "every byte as percent", "base64", "base32"]
            .into_iter()
            .enumerate()
    {
        command.env(format!("ENCODED_{number}"), encoded(name)(header.as_bytes()));
    }
    command.env("ELSEWHERE", format!("token={header}")).env("UNRELATED", "stays");
    command.env(
        "TREESWAP_CREDENTIAL",
        serde_json::json!({
        "url": "https://other.example.com", "username": "bob", "password": elsewhere })
        .to_string(),
    );
    command.env("ALSO", &elsewhere);
    ends_without(&mut command, &canaries).expect_ok("a sync with a hook");
    world.assert_published(&first);
    let environment = std::fs::read_to_string(&seen).unwrap();
    canaries.assert_absent("the hook's environment", &environment);
    assert!(
        environment.contains("UNRELATED=stays") && environment.contains(&format!("GITSYNC_HASH={first}"))
    );
    let arguments = std::fs::read_to_string(&noted).unwrap();
    canaries.assert_absent("the arguments of git", &arguments);
    assert!(arguments.contains("fetch"), "{arguments}");
}
