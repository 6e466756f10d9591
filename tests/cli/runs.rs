//! How a run begins and ends: what it waits for, its exit code, and where it says what was wrong.

use std::net::TcpListener;
use std::path::Path;

use super::common::sidecar::Sidecar;
use super::common::{World, binary, eventually, run};
use super::{files, treeswap};

#[test]
fn one_time_publishes_and_ends() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let log = world.sync_once(&[]).expect_ok("first").stderr;
    world.assert_published(&commit);
    world.assert_clean(1);
    assert!(log.contains("\"message\":\"published ") && log.contains(&commit), "{log}");
    let link = std::fs::read_link(world.root.join("..data")).unwrap();
    world.sync_once(&[]).expect_ok("nothing new");
    assert_eq!(std::fs::read_link(world.root.join("..data")).unwrap(), link);
    let commit = world.remote.commit(&files("two"));
    world.sync_once(&[]).expect_ok("second");
    world.assert_published(&commit);
}

#[test]
fn one_time_fails_with_what_is_wrong_and_what_to_do() {
    let world = World::new();
    world.remote.commit(&files("one"));
    let ran = world.sync_once(&["--ref=nope", "--max-failures=0"]);
    assert_eq!(ran.status.code(), Some(1));
    ran.names(&["giving up after 1 failure", "couldn't find remote ref nope"]);
    assert!(!world.root.join("..data").exists());
}

#[test]
fn every_command_that_reads_credentials_writes_no_core_file_and_may_open_many_files() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let repo = format!("--repo=git://{}/x", silent.local_addr().unwrap());
    let [root, other] = ["root", "other"].map(|name| format!("--root={}", world.dir().join(name).display()));
    let kubeconfig = world.dir().join("kubeconfig");
    let contexts = "contexts: [{name: test, context: {cluster: test, user: test}}]";
    std::fs::write(&kubeconfig, contexts).unwrap();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    for args in [
        &["sync", &root][..],
        &["git-sync", &other],
        &["apply", "--owner=test", "--rules-in-tree=rules", &kubeconfig],
        &["render", "--rules-in-tree=rules"],
    ] {
        let mut shell = run::clean("sh", &world.dir().join("home"));
        let limits = "ulimit -S -c $(ulimit -H -c) && ulimit -S -n 256";
        shell.args(["-c", &format!("{limits} && exec \"$@\""), "sh"]).arg(binary()).args(args).arg(&repo);
        let running = run::Background::start(&mut shell, &world.dir().join("limits.log"));
        let limits = format!("/proc/{}/limits", running.pid());
        // The soft limit, as the kernel prints it.
        let limit = |name: &str| {
            let text = std::fs::read_to_string(&limits).ok()?;
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        eventually(20, &args.join(" "), || {
            let is_set = limit("Max core file size")? == 0 && limit("Max open files")? > 256;
            is_set.then_some(())
        });
    }
}

#[test]
fn a_second_instance_is_refused_and_can_wait() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let log = world.dir().join("first.log");
    let mut first = run::Background::start(&mut world.sync(&["--period=1h"]), &log);
    eventually(20, "it publishes", || world.differences(&commit).is_empty().then_some(()));
    let pid = first.pid().to_string();
    let second = world.sync_once(&["--error-file=..error"]);
    assert_eq!(second.status.code(), Some(1));
    second.names(&[world.root.to_str().unwrap(), "in use", &pid]);
    assert!(!world.root.join("..error").exists(), "the root is the first one's");

    let log = world.dir().join("third.log");
    let mut third = run::Background::start(&mut world.sync(&["--one-time", "--lock-wait=1m"]), &log);
    eventually(20, "it waits", || third.log().contains("waiting").then_some(()));
    assert!(first.terminate().success());
    assert!(third.ended().success(), "{}", third.log());
}

#[test]
fn probes_are_answered_while_the_lock_is_waited_for() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let mut first = run::Background::start(&mut world.sync(&["--period=1h"]), &world.dir().join("first.log"));
    eventually(20, "it publishes", || world.differences(&commit).is_empty().then_some(()));
    let second = Sidecar::start(&world, &["--lock-wait=1m"]);
    let answer = |path: &str| second.ask(path).unwrap_or_default();
    eventually(20, "it waits", || answer("/readyz").contains("in use by another writer").then_some(()));
    assert!(answer("/readyz").starts_with("HTTP/1.1 503"), "{}", answer("/readyz"));
    assert!(answer("/livez").starts_with("HTTP/1.1 200"), "{}", answer("/livez"));
    assert!(first.terminate().success());
    eventually(20, "it serves", || answer("/readyz").starts_with("HTTP/1.1 200").then_some(()));
}

#[test]
fn a_port_that_is_taken_is_found_before_anything_is_touched() {
    let world = World::new();
    world.remote.commit(&files("one"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap().to_string();
    let ran = world.sync_once(&[&format!("--http-bind={bind}")]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.complaint().contains(&bind), "{}", ran.stderr);
    assert!(!world.root.exists());
}

#[test]
fn the_last_error_goes_to_the_termination_log_if_there_is_one() {
    let world = World::new();
    let log = world.dir().join("termination-log");
    let flag = format!("--termination-log={}", log.display());
    world.sync_once(&[&flag]).expect_failure("an empty repository");
    assert!(!log.exists(), "made by us, nobody would read it");
    std::fs::write(&log, "left over").unwrap();
    let ran = world.sync_once(&[&flag]).expect_failure("an empty repository");
    let words = std::fs::read_to_string(&log).unwrap();
    assert_eq!(words.lines().next(), Some(ran.complaint()));
    assert!(words.contains("\nhint: "), "{words}");
}

#[test]
fn an_error_before_the_sync_starts_goes_to_the_termination_log_too() {
    let world = World::new();
    let log = world.dir().join("termination-log");
    let kubeconfig = world.dir().join("kubeconfig");
    std::fs::write(&kubeconfig, "contexts: 1").unwrap();
    let fails = |more: &[&str], tmpdir: &Path, named: &str| {
        std::fs::write(&log, "left over").unwrap();
        let mut command = world.treeswap(&["sync", "--owner=o", "--repo"]);
        command
            .arg(&world.remote.path)
            .arg("--termination-log")
            .arg(&log)
            .arg("--kubeconfig")
            .arg(&kubeconfig);
        let ran = run::to_end(command.args(more).env("TMPDIR", tmpdir)).expect_failure(named);
        assert!(ran.complaint().contains(named), "{}", ran.stderr);
        assert_eq!(std::fs::read_to_string(&log).unwrap().lines().next(), Some(ran.complaint()));
    };
    let absent = world.dir().join("absent");
    let (rules, mirror) = ("--rules-in-tree=r", format!("--mirror={}", absent.join("mirror").display()));
    for more in [&[rules][..], &[rules, "--root=/nonexistent/root"]] {
        fails(&[more, &["--stamp-key=..x"]].concat(), world.dir(), "--stamp-key");
        fails(more, world.dir(), "kubeconfig");
    }
    fails(&["--rules=/nonexistent/rules.yaml"], world.dir(), "/nonexistent/rules.yaml");
    fails(&[rules], &absent, "temporary directory");
    // With a directory for the mirror no other is made, so the next thing that is wrong is named.
    fails(&[rules, &mirror], &absent, "kubeconfig");
}

/// Every line is JSON, and why it ended is said once: also what is wrong before there is a log.
#[test]
fn json_means_every_line_the_last_one_included() {
    let world = World::new();
    let mut command = world.treeswap(&["sync", "--log-format=json"]);
    for (more, code, error) in [
        (&["--repo=https://h/x", "--root=/x", "--nope"][..], 2, "unknown argument --nope"),
        (&["--repo=https://h/x", "--root=/x", "--period=1ms"], 2, "--period"),
        (&["--one-time", "--ref=nope"], 1, "couldn't find remote ref nope"),
    ] {
        let ran = match code {
            2 => treeswap(&world, &[&["sync", "--log-format", "json"], more].concat(), &[]),
            _ => {
                command.arg("--repo").arg(&world.remote.path).arg("--root").arg(&world.root).args(more);
                run::to_end(&mut command)
            }
        };
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        let parsed = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}"))
        };
        let lines: Vec<_> = ran.stderr.lines().map(parsed).collect();
        let last = lines.last().unwrap();
        assert_eq!((&last["level"], &last["message"]), (&"ERROR".into(), &"treeswap ends".into()));
        assert!(last["error"].as_str().unwrap().contains(error), "{last}");
        let said = lines.iter().filter(|line| line.to_string().contains(error)).count();
        assert_eq!(said, 1, "{}", ran.stderr);
    }
    // A run of `apply`, wrong in its command line, in its values, and in what they name.
    for (args, code, error) in [
        (&["--no-such-flag"][..], 2, "--no-such-flag"),
        (&["--rules=r", "--owner=o", "--max-prune=200"], 2, "--max-prune"),
        (&["--rules=/nonexistent/rules.yaml", "--owner=o", "--tree=."], 2, "/nonexistent/rules.yaml"),
        (&["--rules-in-tree=r", "--owner=o", "--tree=."], 2, "no cluster is configured"),
    ] {
        let ran = treeswap(&world, &[&["apply", "--log-format=json"], args].concat(), &[]);
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(code), ""), "{}", ran.stderr);
        let lines: Vec<serde_json::Value> =
            ran.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(lines.len(), 1, "{}", ran.stderr);
        assert_eq!(lines[0]["level"], "ERROR");
        assert!(lines[0]["error"].as_str().unwrap().contains(error), "{}", ran.stderr);
    }
}

#[test]
fn once_with_nothing_new_says_that_the_remote_agrees() {
    let world = World::new();
    world.remote.commit(&files("one"));
    world.sync_once(&[]).expect_ok("the first");
    let again = world.sync_once(&[]).expect_ok("the second");
    assert!(again.stderr.contains("up to date: main is "), "{}", again.stderr);
}

#[test]
fn the_error_file_holds_the_last_error_until_a_success_and_the_touch_file_is_touched() {
    let world = World::new();
    let (error, touched) = (world.dir().join("error.json"), world.dir().join("sub/touched"));
    let flags =
        [&format!("--error-file={}", error.display())[..], &format!("--touch-file={}", touched.display())];
    world.sync_once(&flags).expect_failure("an empty repository");
    let text = std::fs::read_to_string(&error).unwrap();
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&read["Msg"], &read["Args"]["failCount"]),
        (&"too many failures, aborting".into(), &1.into())
    );
    assert!(read["Err"].as_str().unwrap().contains("main") && read["Args"].is_object(), "{text}");
    assert!(!touched.exists());
    world.remote.commit(&files("one"));
    world.sync_once(&flags).expect_ok("now there is a commit");
    assert!(!error.exists() && touched.exists());
}

#[test]
fn what_keeps_the_sync_from_running_is_in_the_error_file_unless_that_is_in_a_root_that_is_refused() {
    let world = World::new();
    world.remote.commit(&files("one"));
    let outside = world.dir().join("error.json");
    std::fs::create_dir(&world.root).unwrap();
    std::fs::write(world.root.join("foreign"), "").unwrap();
    world.sync_once(&[&format!("--error-file={}", outside.display())]).expect_failure("a foreign root");
    let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&outside).unwrap()).unwrap();
    assert!(read["Err"].as_str().unwrap().contains("foreign"), "{read}");
    world.sync_once(&["--error-file=..error"]).expect_failure("a foreign root");
    assert_eq!(std::fs::read_dir(&world.root).unwrap().count(), 1, "nothing in it is touched");
}

#[test]
fn a_run_for_another_ref_takes_nothing_from_the_record_of_success() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    world.sync_once(&[]).expect_ok("main");
    let last = |json: bool| {
        let root = world.root.to_str().unwrap();
        let args: &[&str] = if json { &["status", "--json", root] } else { &["status", root] };
        treeswap(&world, args, &[]).expect_ok("status").stdout
    };
    let sync = || serde_json::from_str::<serde_json::Value>(&last(true)).unwrap()["sync"].clone();
    let at = sync()["last_success"].clone();
    assert!(at.is_string(), "{at}");
    world.sync_once(&["--ref=nobr"]).expect_failure("there is no such branch");
    assert_eq!(sync()["last_success"], serde_json::Value::Null, "of this ref there is none");
    assert_eq!(sync()["earlier_success"]["ref"], "main");
    let table = last(false);
    let line = table.lines().find(|line| line.starts_with("last success")).unwrap();
    assert!(
        line.contains("never; of ") && line.contains("/remote main ") && line.ends_with(" UTC)"),
        "{line}"
    );
    let away = world.remote.away();
    world.sync_once(&[]).expect_failure("the remote is away");
    assert_eq!(sync()["last_success"], at, "it is known again");
    drop(away);
    world.assert_published(&commit);
}
