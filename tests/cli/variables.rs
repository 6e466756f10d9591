//! Environment variables: which are read, which are as if they were not set, and which are warned about.

use super::common::{World, run};
use super::{SYNC, complains, files, treeswap};

#[test]
fn unknown_variables_are_warned_about_and_service_links_are_not() {
    let world = World::new();
    let variables = [
        ("TREESWAP_PEROID", "5s"),
        ("GITSYNC_BRANCHES", "x"),
        ("GIT_SYNC_REPO", "x"),
        ("TREESWAP_PORT", "tcp://10.0.0.1:9375"),
        ("TREESWAP_SERVICE_HOST", "10.0.0.1"),
        ("TREESWAP_PORT_9375_TCP_PROTO", "tcp"),
        ("TREESWAP_APPLY_SERVICE_HOST", "10.0.0.2"),
        ("TREESWAP_APPLY_PORT", "tcp://10.0.0.2:9375"),
        ("GIT_SYNC_SERVICE_HOST", "10.0.0.3"),
        ("GITSYNC_SERVICE_HOST", "10.0.0.4"),
        ("GITSYNC_PORT", "tcp://10.0.0.4:80"),
        ("TREESWAP_HTTP_PORT", "8080"),
    ];
    let ran = treeswap(&world, &[&["check"], &SYNC[1..]].concat(), &variables).expect_ok("only a warning");
    let warned: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("warning")).collect();
    assert_eq!(warned.len(), 4, "{}", ran.stderr);
    for name in ["TREESWAP_PEROID", "GITSYNC_BRANCHES", "GITSYNC_REPO", "TREESWAP_HTTP_PORT"] {
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
}

#[test]
fn an_empty_variable_is_as_none_and_hides_no_other() {
    let world = World::new();
    let names = [
        "WEBHOOK_SECRET_FILE",
        "KUBECONFIG",
        "KUBECONFIG_DIR",
        "RULES",
        "RULES_IN_TREE",
        "REPOSITORY",
        "LEASE_POOL",
        "OWNER",
        "STAMP_KEY",
        "CA_FILE",
        "GITHUB_APP_APPLICATION_ID",
        "REPO",
        "ROOT",
    ];
    let names = names.map(|name| format!("TREESWAP_{name}"));
    let theirs = [("GITSYNC_REPO", "https://git.example.com/x"), ("GITSYNC_ROOT", "/nonexistent/root")];
    let variables: Vec<_> = names.iter().map(|name| (name.as_str(), "")).chain(theirs).collect();
    let ran = treeswap(&world, &["check"], &variables).expect_ok("check");
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    for (flag, (variable, value)) in ["--repo", "--root"].into_iter().zip(theirs) {
        let line = ran.stdout.lines().find(|line| line.starts_with(&format!("{flag}={value} ")));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" # ${variable}"))), "{}", ran.stdout);
    }
    // Text that is no duration is a mistake under either name, and the one that counts is named.
    for (ours, theirs, name) in [("", "ten", "GITSYNC"), ("ten", "1s", "TREESWAP"), ("", "", "GITSYNC")] {
        let variables = [("TREESWAP_PERIOD", ours), ("GITSYNC_PERIOD", theirs)];
        complains(&treeswap(&world, &SYNC, &variables), 2, &[&format!("for ${name}_PERIOD: ")]);
    }
}

#[test]
fn a_log_filter_of_another_program_is_warned_about_and_stops_nothing() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let warning = "$RUST_LOG has no effect: a level is one of error";
    let of_others = "$RUST_LOG has no effect: it has no level of all or of treeswap";
    for (filter, words) in
        [("my_app,tower_http=debug", warning), ("garbage=x", warning), ("my_app=debug,hyper=off", of_others)]
    {
        let mut command = world.sync(&["--one-time"]);
        let said = run::to_end(command.env("RUST_LOG", filter)).expect_ok(filter).stderr;
        assert!(said.contains(words), "{said}");
        world.assert_published(&commit);
    }
    let check = |more: &[&str], filter: &str| {
        let args = [&["check"], &SYNC[1..], more].concat();
        treeswap(&world, &args, &[("RUST_LOG", filter)]).expect_ok("check").stderr
    };
    assert!(check(&[], "my_app").contains(warning));
    let of_others_too = ["my_app=debug,treeswap::mirror=trace", "hyper=off,warn"];
    for ours in ["treeswap=debug", "[sync]=debug", "git-sync=trace"].into_iter().chain(of_others_too) {
        assert!(!check(&[], ours).contains("$RUST_LOG"), "{ours}");
    }
    for without in [&["--log-level=warn"][..], &["--verbose=1"]] {
        assert!(!check(without, "my_app").contains("$RUST_LOG"), "it does not count");
    }
    let beside = check(&["--log-level=warn", "--verbose=5"], "");
    assert!(beside.contains("warning: --verbose has no effect beside --log-level\n"), "{beside}");
}

#[test]
fn variables_of_git_sync_without_its_prefix_are_warned_about_with_what_to_use() {
    let world = World::new();
    let theirs = [
        ("GIT_SSH_KEY_FILE", "/k", "SSH_KEY_FILE"),
        ("GIT_KNOWN_HOSTS", "false", "SSH_KNOWN_HOSTS"),
        ("GIT_SSH_KNOWN_HOSTS_FILE", "/kh", "SSH_KNOWN_HOSTS_FILE"),
        ("GIT_ASKPASS_URL", "http://h/", "ASKPASS_URL"),
        ("GIT_COOKIE_FILE", "true", "COOKIE_FILE"),
    ];
    let variables = theirs.map(|(name, value, _)| (name, value));
    let said = treeswap(&world, &[&["check"], &SYNC[1..]].concat(), &variables).expect_ok("check").stderr;
    for (name, _, newer) in theirs {
        let line = format!("the variable {name} is git-sync v3's and has no effect: use GITSYNC_{newer}\n");
        assert!(said.contains(&line), "{line} is not in {said}");
    }
}
