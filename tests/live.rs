//! `treeswap status` and the metrics of a writer (a `treeswap sync`) that runs, hangs, was killed, and was restarted.
#![allow(missing_docs)]

mod common;

use common::run::{self, Ran};
use common::{Files, Sidecar, World, eventually};
use rustix::process::{Pid, Signal, kill_process};

fn status(world: &World, more: &[&str]) -> Ran {
    run::to_end(world.treeswap(&["status"]).arg(&world.root).args(more))
}

fn json(world: &World) -> serde_json::Value {
    common::schema::root_status(&status(world, &["--json"]).stdout)
}

fn signal(sidecar: &Sidecar, signal: Signal) {
    kill_process(Pid::from_child(&sidecar.process.child), signal).unwrap();
}

/// Waits until `status` gets an answer from a running writer. One that has just been started has no root yet, which is
/// an error.
#[track_caller]
/// Waits until the writer answers, and has left the record that is read without it.
fn wait_until_running(world: &World) {
    eventually(30, "the writer answers", || {
        let Ran { stdout, .. } = status(world, &["--json"]);
        let is_running = !stdout.is_empty() && common::schema::root_status(&stdout)["writer"] == "running";
        (is_running && world.root.join("..treeswap/status.json").exists()).then_some(())
    });
}

#[test]
fn a_running_writer_answers_and_a_stopped_process_is_silent() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let mut sidecar = Sidecar::start(&world, &[]);
    sidecar.publishes(&world, &commit);
    wait_until_running(&world);
    assert_eq!(status(&world, &["--max-age=1h"]).status.code(), Some(0));
    let table = status(&world, &[]).stdout;
    for shown in ["writer        running", "commit        x (Committer, 2023-11-14)"] {
        assert!(table.contains(shown), "{shown} is not in\n{table}");
    }
    let log = sidecar.process.log();
    assert!(log.contains(": x") && log.contains("2023-11-14T"), "{log}");
    signal(&sidecar, Signal::STOP);
    let stopped = json(&world);
    assert_eq!(stopped["writer"], "silent", "{stopped}");
    signal(&sidecar, Signal::CONT);
    wait_until_running(&world);
    sidecar.process.terminate();
    let ended = status(&world, &[]).stdout;
    assert!(ended.contains("no writer is running since 2"), "{ended}"); // a year begins with 2
}

#[test]
fn a_killed_writer_is_told_from_a_clean_shutdown_and_max_age_fails_once_its_last_success_is_old() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let mut sidecar = Sidecar::start(&world, &[]);
    sidecar.publishes(&world, &commit);
    wait_until_running(&world);
    let _away = world.remote.away();
    signal(&sidecar, Signal::KILL);
    sidecar.process.ended();
    let killed = status(&world, &[]).expect_ok("without --max-age what is published is enough").stdout;
    assert!(killed.contains("no writer is running, and the last one did not shut down cleanly"), "{killed}");
    eventually(30, "its last success is too old", || {
        let old = status(&world, &["--max-age=1s", "--quiet"]);
        (old.status.code() == Some(1)).then(|| {
            assert_eq!(old.stdout, "");
            assert!(old.stderr.lines().count() <= 2, "{}", old.stderr);
            assert!(old.stderr.contains("no success within --max-age=1s"), "{}", old.stderr);
        })
    });
}

#[test]
fn a_restarted_writer_knows_the_last_success_of_the_one_before() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let mut sidecar = Sidecar::start(&world, &["--max-backoff=20ms"]);
    sidecar.publishes(&world, &commit);
    wait_until_running(&world);
    let _away = world.remote.away();
    // Not every failure is written to disk, so `status` has this count from the running writer.
    eventually(30, "more failures than are written to disk", || {
        (json(&world)["sync"]["consecutive_failures"].as_u64()? >= 5).then_some(())
    });
    let last_success = json(&world)["sync"]["last_success"].as_str().unwrap().to_owned();
    signal(&sidecar, Signal::KILL);
    sidecar.process.ended();
    let next = Sidecar::start(&world, &[]);
    eventually(30, "a failure", || (next.metric("treeswap_sync_consecutive_failures")? > 0.0).then_some(()));
    let expected = last_success.parse::<jiff::Timestamp>().unwrap().as_duration().as_secs_f64();
    let last = next.metric("treeswap_last_success_timestamp_seconds").unwrap();
    assert!((last - expected).abs() < 0.001, "{last}, and the last one said {last_success}");
    assert_eq!(next.metric("treeswap_never_succeeded"), Some(0.0));
}

#[test]
fn a_writer_without_its_socket_is_not_absent() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let mut sidecar = Sidecar::start(&world, &[]);
    wait_until_running(&world);
    signal(&sidecar, Signal::STOP);
    std::fs::remove_file(world.root.join("..treeswap/status.sock")).unwrap();
    assert_eq!(json(&world)["writer"], "silent", "it holds the lock");
    signal(&sidecar, Signal::CONT);
    wait_until_running(&world); // at a new socket
    // The root is made again as well, by somebody else. Its removal is one step, as the writer repairs what it misses.
    std::fs::rename(&world.root, world.root.with_extension("removed")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    std::fs::create_dir(&world.root).unwrap();
    let running = || {
        let status = status(&world, &["--json"]).stdout;
        status.contains("\"writer\": \"running\"").then_some(())
    };
    eventually(20, "it answers there", running);
    signal(&sidecar, Signal::KILL);
    sidecar.process.ended();
    assert_eq!(json(&world)["writer"], "absent");
}

#[test]
fn a_revision_that_is_not_known_is_not_shown_as_zeros() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    world.sync_once(&[]).expect_ok("a publication");
    std::fs::write(world.root.join("..treeswap/state"), "damaged").unwrap();
    let _away = world.remote.away();
    let sidecar = Sidecar::start(&world, &["--log-format=plain"]);
    eventually(30, "a failure", || {
        (sidecar.metric("treeswap_sync_consecutive_failures")? > 0.0).then_some(())
    });
    let table = status(&world, &[]).stdout;
    assert!(table.contains("revision      unknown: the root has lost its records"), "{table}");
    let (root, writer) = (json(&world), sidecar.status());
    assert!(
        root["generations"][0]["revision"].is_null() && root["generations"][0]["tree"].is_null(),
        "{root}"
    );
    assert!(writer["current"]["revision"].is_null(), "{writer}");
    let page = sidecar.request_with("GET", "/status", "Accept: text/html\r\n").unwrap();
    let metrics = sidecar.ask("/metrics").unwrap();
    assert!(metrics.contains("treeswap_current_generation_info{revision=\"\""), "{metrics}");
    for text in [table, root.to_string(), writer.to_string(), page, metrics, sidecar.process.log()] {
        assert!(!text.contains("00000000000"), "{text}");
    }
}

#[test]
fn core_files_are_disabled() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&world, &[]);
    eventually(30, "a publication", || world.root.join("..data").exists().then_some(()));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", sidecar.process.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
}

#[test]
fn a_probe_of_a_root_without_a_generation_says_why_in_two_lines_that_stay_the_same() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let _away = world.remote.away();
    let sidecar = Sidecar::start(&world, &[]);
    assert_eq!(sidecar.metric("treeswap_never_succeeded"), Some(1.0));
    let probe = || {
        let ran = status(&world, &[]);
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        ran.stderr
    };
    let fails = |said: &String| said.contains("the sync fails since");
    let said = eventually(30, "the failure", || Some(probe()).filter(fails));
    assert_eq!(said.lines().count(), 2, "{said}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    sidecar.idle(2);
    assert_eq!(probe(), said, "a text that changes makes Kubernetes record a new event each time");
}

#[test]
fn a_hook_that_fails_is_part_of_the_status_and_of_the_metrics() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&world, &["--exechook-command=false", "--exechook-backoff=1s"]);
    eventually(30, "it fails again and again", || {
        (sidecar.metric("treeswap_hook_consecutive_failures")? >= 3.0).then_some(())
    });
    let hook = json(&world)["sync"]["hooks"][0].clone();
    assert_eq!(hook["hook"], "exechook");
    assert!(hook["consecutive_failures"].as_u64().unwrap() >= 3 && hook["error"].is_string(), "{hook}");
    let table = status(&world, &[]).stdout;
    assert!(table.contains("exechook      failed "), "{table}");
    assert!(sidecar.ask("/status").unwrap().contains("\"failing_since\""));
}

#[test]
fn a_commit_cannot_write_to_the_terminal_or_the_log() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let tree = world.remote.git(&["rev-parse", "main^{tree}"]);
    let hostile = "clear \u{1b}[2J and \u{202e}turn";
    let commit = world.remote.git(&[
        "-c",
        "user.name=\u{1b}]0;Eve\u{7}",
        "-c",
        "user.email=e",
        "commit-tree",
        &tree,
        "-m",
        hostile,
    ]);
    world.remote.reset(&commit);
    let sidecar = Sidecar::start(&world, &["--log-format=plain"]);
    sidecar.publishes(&world, &commit);
    let shown = eventually(30, "it is described", || {
        Some(status(&world, &[]).stdout).filter(|text| text.contains("clear"))
    });
    for text in [shown, sidecar.process.log()] {
        assert!(text.contains("clear \u{fffd}[2J and \u{fffd}turn"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{text:?}");
    }
}

#[test]
fn git_sync_with_a_commit_id_polls_once_and_stays_fresh() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let mut command =
        world.treeswap(&["git-sync", "--period=10ms", "--link=link", "--http-bind=127.0.0.1:0"]);
    command.args(["--http-metrics", "--max-stale=20ms", "--ref", &commit, "--repo"]).arg(&world.remote.path);
    let sidecar = Sidecar::of(&world, command.arg("--root").arg(&world.root));
    let parked = || sidecar.process.log().contains("no further sync needed").then_some(());
    eventually(30, "it stops asking", parked);
    let _away = world.remote.away();
    let success = || sidecar.metric("treeswap_last_success_timestamp_seconds");
    let first = success().unwrap();
    eventually(30, "the root is found in order again", || (success()? > first + 0.1).then_some(()));
    assert_eq!(sidecar.attempts(), 1);
    let ready = sidecar.ask("/readyz").unwrap();
    assert!(ready.starts_with("HTTP/1.1 200"), "--max-stale, but there is nothing to ask: {ready}");
    status(&world, &["--max-age=10s"]).expect_ok("a recent success");
}
