//! The loop from outside: how often it publishes, what makes it look, how it fails, recovers and ends.

#[path = "../common/mod.rs"]
mod common;
mod spare;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::run::{Background, executable};
use common::{Files, Sidecar, World, allowed, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// From SIGTERM to the end, in every phase.
const DRAIN: Duration = Duration::from_secs(5);

fn files(text: &str) -> Files {
    Files::new().file("routes.yaml", text).file("jobs/nightly.yaml", "at: 03:00\n")
}

fn start(world: &World, more: &[&str]) -> Background {
    Background::start(&mut world.sync(more), &world.dir().join("sync.log"))
}

fn send(process: &Background, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).unwrap();
}

#[track_caller]
fn said(process: &Background, words: &str) {
    eventually(30, words, || process.log().contains(words).then_some(()));
}

/// SIGTERM, and how long the end took.
#[track_caller]
fn drains(process: &mut Background) {
    let began = Instant::now();
    let status = process.terminate();
    assert!(began.elapsed() < allowed(DRAIN), "it took {:?}", began.elapsed());
    assert_eq!(status.code(), Some(0), "{}", process.log());
}

/// Every file, link and directory below, with what changes when it is written, replaced or touched.
fn writes(dir: &Path, into: &mut BTreeMap<PathBuf, (u64, i64, i64)>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let meta = path.symlink_metadata().unwrap();
        into.insert(path.clone(), (meta.ino(), meta.ctime(), meta.ctime_nsec()));
        if meta.is_dir() {
            writes(&path, into);
        }
    }
}

fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut all = BTreeMap::new();
    writes(root, &mut all);
    all
}

#[test]
fn a_burst_of_fifty_commits_makes_at_most_two_publications() {
    let world = World::new();
    let first = world.remote.commit(&files("first"));
    let burst: Vec<String> = (0..50).map(|n| world.remote.commit(&files(&format!("{n}")))).collect();
    world.remote.reset(&first);
    const INTERVAL: Duration = Duration::from_secs(2);
    let sidecar = Sidecar::start(&world, &["--min-interval=2s"]);
    sidecar.publishes(&world, &first);
    // A ref is a file: all fifty come within milliseconds, while the sidecar looks every ten.
    std::thread::sleep(INTERVAL); // the one after the first publication is over
    let began = Instant::now();
    let file = world.remote.path.join("refs/heads/main");
    for commit in &burst {
        std::fs::write(file.with_extension("lock"), format!("{commit}\n")).unwrap();
        std::fs::rename(file.with_extension("lock"), &file).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    // One more for every interval that the burst itself took, on a machine that is busy with others.
    let most = 2 + began.elapsed().div_duration_f64(INTERVAL) as usize;
    sidecar.publishes(&world, burst.last().unwrap());
    let lines =
        sidecar.process.log().lines().filter(|line| line.contains("\"message\":\"published ")).count();
    assert!((1..=most).contains(&(lines - 1)), "at most {most} of the burst, not {}", lines - 1);
}

#[test]
fn a_signal_asks_for_a_look_and_a_signal_that_does_not_changes_nothing() {
    let world = World::new();
    let one = world.remote.commit(&files("one"));
    let mut sync = start(&world, &["--period=1h", "--min-interval=0s"]);
    eventually(20, "the first", || world.differences(&one).is_empty().then_some(()));
    let two = world.remote.commit(&files("two"));
    send(&sync, Signal::HUP);
    eventually(20, "the second", || world.differences(&two).is_empty().then_some(()));
    drains(&mut sync);

    let mut sync = start(&world, &["--period=1h", "--min-interval=0s", "--sync-on-signal=USR1"]);
    said(&sync, "already published: ");
    let three = world.remote.commit(&files("three"));
    send(&sync, Signal::HUP); // would end the process if nobody listened
    std::thread::sleep(Duration::from_secs(1)); // an attempt takes milliseconds
    assert!(world.differences(&two).is_empty(), "another signal asks for nothing");
    send(&sync, Signal::USR1);
    eventually(20, "the third", || world.differences(&three).is_empty().then_some(()));
    drains(&mut sync);
}

/// The attempt that publishes the lost generation again also finds the new commit, which has to wait.
#[test]
fn a_commit_that_waits_is_not_forgotten_when_what_was_lost_is_published_again() {
    let world = World::new();
    let one = world.remote.commit(&files("one"));
    let flags = ["--period=1h", "--min-interval=5s", "--sync-on-signal=USR1"];
    let mut sync = start(&world, &flags);
    eventually(20, "the first", || world.differences(&one).is_empty().then_some(()));
    let current = std::fs::read_link(world.root.join("..data")).unwrap();
    let two = world.remote.commit(&files("two"));
    std::fs::remove_dir_all(world.root.join(current)).unwrap();
    send(&sync, Signal::USR1);
    eventually(30, "the second", || world.differences(&two).is_empty().then_some(()));
    drains(&mut sync);
}

#[test]
fn a_signal_that_comes_before_anybody_listens_ends_nothing() {
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
    let world = World::new();
    let rules = world.dir().join("rules");
    mknodat(CWD, &rules, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let rules_flag = format!("--rules={}", rules.display());
    let mut sync = start(&world, &["--owner=test", "--kubeconfig=/nonexistent", &rules_flag]);
    // Once it has a reader, the rules are being read, which is before the first attempt and what it needs.
    let rules = eventually(30, "the rules are read", || {
        open(&rules, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok()
    });
    send(&sync, Signal::HUP);
    drop(rules);
    assert_eq!(sync.ended().code(), Some(2), "{}", sync.log());
}

#[test]
fn idle_cycles_write_nothing_and_the_same_tree_is_no_new_generation() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let sidecar = Sidecar::start(&world, &[]);
    sidecar.publishes(&world, &commit);
    eventually(20, "the spare is ready", || {
        let spare = world.root.join("..treeswap/spare");
        std::fs::read_dir(spare).ok()?.count().ge(&2).then_some(())
    });
    sidecar.idle(3);
    let before = snapshot(&world.root);
    sidecar.idle(50);
    assert_eq!(snapshot(&world.root), before, "nothing was written");
    let link = std::fs::read_link(world.root.join("..data")).unwrap();
    let top = world.root.metadata().unwrap();
    let same = world.remote.commit(&files("one"));
    assert_ne!(same, commit);
    sidecar.idle(5);
    assert_eq!(std::fs::read_link(world.root.join("..data")).unwrap(), link);
    let log = sidecar.process.log();
    let said = format!("{} has the same files as {}", &same[..12], &commit[..12]);
    assert_eq!(log.matches(&said).count(), 1, "{said}: {log}");
    let after = world.root.metadata().unwrap();
    assert_eq!((after.ctime(), after.ctime_nsec()), (top.ctime(), top.ctime_nsec()), "no event in the root");
}

#[test]
fn it_gives_up_after_as_many_failures_as_it_was_told() {
    let world = World::new();
    let count = |log: &str| log.lines().filter(|line| line.contains("\"message\":\"sync failed")).count();
    for (flags, failures) in
        [(["--max-failures=3", "--init-max-failures=3"], 3), (["--max-failures=0", "--depth=1"], 1)]
    {
        let mut sync = start(&world, &[&flags[..], &["--period=10ms", "--log-level=debug"]].concat());
        assert_eq!(sync.ended().code(), Some(1));
        assert_eq!(count(&sync.log()), failures - 1, "the last one is said by the end: {}", sync.log());
        let last =
            sync.log().lines().find(|line| line.starts_with("treeswap: ")).unwrap_or_default().to_owned();
        assert!(last.contains("giving up") && last.contains(&failures.to_string()), "{last}");
    }
}

#[test]
fn an_outage_is_told_counted_and_over_when_it_is_over() {
    let world = World::new();
    let one = world.remote.commit(&files("one"));
    let sidecar = Sidecar::start(&world, &["--max-backoff=20ms"]);
    sidecar.publishes(&world, &one);
    let away = world.remote.away();
    eventually(20, "it fails", || {
        (sidecar.metric("treeswap_sync_consecutive_failures")? >= 3.0).then_some(())
    });
    assert!(sidecar.ask("/readyz").unwrap().starts_with("HTTP/1.1 200"), "an outage never closes it");
    assert!(sidecar.metric("treeswap_errors_total").unwrap() >= 3.0);
    eventually(20, "the status says so", || {
        (sidecar.status()["last_attempt"]["outcome"] == "failed").then_some(())
    });
    world.assert_published(&one);
    drop(away);
    let two = world.remote.commit(&files("two"));
    sidecar.publishes(&world, &two);
    eventually(20, "it says so", || sidecar.process.log().contains("recovered after").then_some(()));
    eventually(20, "it counts from none again", || {
        (sidecar.metric("treeswap_sync_consecutive_failures")? == 0.0).then_some(())
    });
}

#[test]
fn a_restart_serves_at_once_with_the_remote_away_and_publishes_nothing_anew() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    world.sync_once(&[]).expect_ok("first");
    let link = std::fs::read_link(world.root.join("..data")).unwrap();
    let away = world.remote.away();
    let sidecar = Sidecar::start(&world, &[]);
    eventually(20, "ready", || sidecar.ask("/readyz")?.starts_with("HTTP/1.1 200").then_some(()));
    said(&sidecar.process, "sync failed");
    drop(away);
    eventually(20, "it recovers", || sidecar.process.log().contains("recovered after").then_some(()));
    world.assert_published(&commit);
    assert_eq!(std::fs::read_link(world.root.join("..data")).unwrap(), link);
}

#[test]
fn a_generation_that_was_tampered_with_is_published_afresh_at_start_without_the_remote() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    world.sync_once(&[]).expect_ok("first");
    let before = std::fs::read_link(world.root.join("..data")).unwrap();
    let victim = world.root.join("..data/routes.yaml");
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(&victim, "evil").unwrap();
    assert!(!world.differences(&commit).is_empty());
    let _away = world.remote.away();
    let mut sync = start(&world, &["--period=1h"]);
    eventually(20, "it is right again", || world.differences(&commit).is_empty().then_some(()));
    assert_ne!(std::fs::read_link(world.root.join("..data")).unwrap(), before, "never in place");
    drains(&mut sync);
}

#[test]
fn a_refused_revision_keeps_the_old_one_is_not_fetched_again_and_the_next_one_is_taken() {
    let world = World::new();
    let one = world.remote.commit(&files("one"));
    let sidecar = Sidecar::start(&world, &[]);
    sidecar.publishes(&world, &one);
    let evil = world.remote.commit(&files("two").link("out", "/etc/passwd"));
    said(&sidecar.process, "is refused because of `out`");
    sidecar.idle(20);
    world.assert_published(&one);
    let told = sidecar.process.log().lines().filter(|line| line.contains("is refused because")).count();
    assert_eq!(told, 1, "told once, however often it is looked at");
    let error = sidecar.status()["last_attempt"]["error"].as_str().unwrap().to_owned();
    assert!(error.contains(&evil[..12]) && error.contains("`out`"), "{error}");
    let three = world.remote.commit(&files("three"));
    sidecar.publishes(&world, &three);
}

#[test]
fn sparse_patterns_are_read_again_and_other_ones_are_another_generation() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let patterns = world.dir().join("patterns");
    std::fs::write(&patterns, "/jobs/\n").unwrap();
    let flag = format!("--sparse-checkout-file={}", patterns.display());
    let sidecar = Sidecar::start(&world, &[&flag]);
    let there = |name: &str| world.root.join("..data").join(name).exists();
    eventually(20, "a part", || there("jobs/nightly.yaml").then_some(()));
    assert!(!there("routes.yaml"));
    std::fs::write(&patterns, "/nothing/\n").unwrap();
    said(&sidecar.process, "choose none of them");
    std::fs::write(&patterns, "/*\n").unwrap();
    sidecar.publishes(&world, &commit);
}

/// The number of published generations that the process counts.
fn published(sidecar: &Sidecar) -> f64 {
    sidecar.metric("treeswap_syncs_total{result=\"published\"}").unwrap()
}

#[test]
fn a_directory_of_the_repository_is_published_as_the_root() {
    let world = World::new();
    let files = |text: &str| {
        let inside = Files::new().file("deploy/a/routes.yaml", text).file("deploy/a/jobs/nightly.yaml", "x");
        inside.link("deploy/a/jobs/latest", "../routes.yaml").file("elsewhere", "y")
    };
    let below = |commit: &str| format!("{commit}:deploy/a");
    let one = world.remote.commit(&files("one"));
    let sidecar = Sidecar::start(&world, &["--path=deploy/a/"]);
    sidecar.publishes(&world, &below(&one));
    // A commit that changes nothing in it is no event for readers.
    let link = std::fs::read_link(world.root.join("..data")).unwrap();
    world.remote.commit(&files("one").file("elsewhere", "z").file("deploy/b", "new"));
    sidecar.idle(20);
    assert_eq!(std::fs::read_link(world.root.join("..data")).unwrap(), link);
    assert_eq!(published(&sidecar), 1.0);
    // One file, as a delta; what leaves the directory, though not the repository, is refused.
    let two = world.remote.commit(&files("two").file("deploy/a/new", "x"));
    sidecar.publishes(&world, &below(&two));
    world.remote.commit(&files("three").link("deploy/a/jobs/latest", "../../b"));
    said(&sidecar.process, "is refused because of `jobs/latest`");
    for (files, path) in [
        (Files::new().file("elsewhere", "y"), "deploy"),
        (Files::new().file("deploy/b", "y"), "deploy/a"),
        (Files::new().file("deploy/a", "y"), "deploy/a"),
        (Files::new().link("deploy/a", "b").file("deploy/b/x", "y"), "deploy/a"),
    ] {
        let gone = world.remote.commit(&files);
        said(&sidecar.process, &format!("revision {} is refused because of `{path}`", &gone[..12]));
        world.assert_published(&below(&two));
    }
    said(&sidecar.process, "--path=deploy/a needs this directory, and the revision does not have it");
    said(
        &sidecar.process,
        "--path=deploy/a needs a directory here, and the revision has a file, symbolic link or submodule",
    );
    said(&sidecar.process, "push a commit that has the directory, or change --path");
    let four = world.remote.commit(&files("four"));
    sidecar.publishes(&world, &below(&four));
    drop(sidecar);
    // Another directory of the same revision is another generation, with patterns that count from it.
    let patterns = world.dir().join("patterns");
    std::fs::write(&patterns, "/jobs/\n!latest\n").unwrap();
    let flag = format!("--sparse-checkout-file={}", patterns.display());
    world.sync_once(&["--path=deploy"]).expect_ok("another directory");
    world.assert_published(&format!("{four}:deploy"));
    world.sync_once(&["--path=deploy/a", &flag]).expect_ok("a part of it");
    let found: Vec<_> = std::fs::read_dir(world.root.join("..data/jobs")).unwrap().flatten().collect();
    assert!(found.len() == 1 && found[0].file_name() == "nightly.yaml", "{found:?}");
    world.sync_once(&[]).expect_ok("all of it");
    world.assert_published(&four);
    // A restart that asks for another one does not wait for the minimum interval, which is for commits.
    let sidecar = Sidecar::start(&world, &["--path=deploy/a", "--min-interval=1h"]);
    sidecar.publishes(&world, &below(&four));
    let five = world.remote.commit(&files("five"));
    std::thread::sleep(Duration::from_millis(500)); // what has to wait is not published
    world.assert_published(&below(&four));
    drop(sidecar);
    let sidecar = Sidecar::start(&world, &["--path=deploy", "--min-interval=1h"]);
    sidecar.publishes(&world, &format!("{five}:deploy"));
}

#[test]
fn a_path_that_cannot_be_published_is_refused_before_the_root_is_made() {
    let world = World::new();
    for (flags, words) in [
        (
            &["--path=../x"][..],
            "invalid value \"../x\" for --path: write a path below the top of the repository",
        ),
        (&["--path=/x"], "invalid value \"/x\" for --path"),
        (&["--path=x", "--layout=git-sync"], "--path and --layout=git-sync exclude each other"),
        (&["--path=x", "--submodules=shallow"], "--path and --submodules=shallow exclude each other"),
    ] {
        let ran = world.sync_once(flags);
        assert!(!ran.ok() && ran.stderr.contains(words), "{flags:?}: {}", ran.stderr);
    }
    assert!(!world.root.exists());
}

/// Accepts every connection, reads what comes, and never answers.
fn silent() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
            });
        }
    });
    port
}

#[test]
fn sigterm_ends_it_in_time_against_a_silent_server() {
    let world = World::new();
    let port = silent();
    for remote in [format!("git://127.0.0.1:{port}/x"), format!("http://127.0.0.1:{port}/x.git")] {
        let mut sync = start(&world, &["--repo", &remote, "--log-level=debug"]);
        said(&sync, "treeswap 0");
        eventually(20, "it is connected", || connected(sync.pid(), port).then_some(()));
        drains(&mut sync);
    }
}

/// Whether a process has a connection to a local port (proc(5), /proc/net/tcp).
fn connected(pid: u32, port: u16) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[2].ends_with(&format!(":{port:04X}"))
            && fields[3] == "01"
            && sockets.contains(&format!("socket:[{}]", fields[9]))
    })
}

#[test]
fn an_attempt_ends_at_its_deadline_and_the_next_one_follows() {
    let world = World::new();
    let remote = format!("git://127.0.0.1:{}/x", silent());
    let flags = ["--repo", &remote, "--sync-timeout=300ms", "--period=10ms", "--max-failures=3"];
    let mut sync = start(&world, &flags);
    assert_eq!(sync.ended().code(), Some(1), "three attempts failed: {}", sync.log());
    assert!(sync.log().contains("--sync-timeout=300ms"), "{}", sync.log());
}

/// A `git` on the search path that stops in the middle of a pack.
fn stalling_git(world: &World, bytes: usize) -> String {
    let bin = world.dir().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script =
        format!("#!/bin/sh\nPATH={path}\ngit \"$@\" | (dd bs=1 count={bytes} status=none; exec sleep 30)\n");
    executable(&bin.join("git"), &script);
    format!("{}:{path}", bin.display())
}

#[test]
fn sigterm_ends_it_in_time_in_the_middle_of_a_fetch_and_nothing_is_left_behind() {
    let world = World::new();
    let mut noise = vec![0u8; 1 << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    let commit = world.remote.commit(&files("one").file("noise", noise));
    let path = stalling_git(&world, 100_000);
    let mut command = world.sync(&["--period=1h", "--log-level=debug"]);
    let mut sync = Background::start(command.env("PATH", path), &world.dir().join("sync.log"));
    let packs = world.root.join("..treeswap/mirror/objects/pack");
    eventually(20, "a part of the pack", || {
        let mut found = std::fs::read_dir(&packs).ok()?.flatten();
        found.any(|entry| entry.file_name().to_string_lossy().starts_with("tmp_pack_")).then_some(())
    });
    drains(&mut sync);
    assert!(!world.root.join("..data").exists());
    world.sync_once(&[]).expect_ok("the next start");
    world.assert_published(&commit);
    world.assert_clean(1);
}

#[test]
fn one_time_that_is_interrupted_has_not_succeeded() {
    let world = World::new();
    let port = silent();
    let remote = format!("git://127.0.0.1:{port}/x");
    let mut sync = start(&world, &["--one-time", "--repo", &remote]);
    eventually(20, "it is connected", || connected(sync.pid(), port).then_some(()));
    assert_eq!(sync.terminate().code(), Some(1));
    assert!(sync.log().contains("treeswap: interrupted before everything was done"), "{}", sync.log());
}

#[test]
fn a_remote_that_asks_for_patience_gets_it() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = format!("http://{}/x.git", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 4096]);
            let answer =
                "HTTP/1.1 503 Busy\r\nRetry-After: 600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let sidecar = Sidecar::start(&world, &["--repo", &remote]);
    let next: jiff::Timestamp = eventually(20, "it fails and waits", || {
        let failed = sidecar.metric("treeswap_sync_consecutive_failures").is_some_and(|count| count >= 1.0);
        if failed { sidecar.status()["next_attempt"].as_str()?.parse().ok() } else { None }
    });
    let wait = next.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((500..=600).contains(&wait), "the next attempt is due in {wait} s");
}

#[test]
fn a_generation_that_a_power_cut_may_have_spoilt_is_compared_before_ready_and_kept_if_it_is_right() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    world.sync_once(&["--durability=none"]).expect_ok("first");
    let link = std::fs::read_link(world.root.join("..data")).unwrap();
    world.assert_published(&commit);
    // As after another boot, with the mirror lost.
    let state = world.root.join("..treeswap/state");
    let text = std::fs::read_to_string(&state).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(text.contains(boot.trim()), "{text}");
    std::fs::write(&state, text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")).unwrap();
    std::fs::remove_dir_all(world.root.join("..treeswap/mirror")).unwrap();
    let away = world.remote.away();
    let sidecar = Sidecar::start(&world, &["--durability=none"]);
    said(&sidecar.process, "sync failed");
    assert!(
        sidecar.ask("/readyz").unwrap().starts_with("HTTP/1.1 503"),
        "nobody knows whether it is complete"
    );
    world.assert_published(&commit);
    drop(away);
    eventually(20, "ready", || sidecar.ask("/readyz")?.starts_with("HTTP/1.1 200").then_some(()));
    world.assert_published(&commit);
    assert_eq!(
        std::fs::read_link(world.root.join("..data")).unwrap(),
        link,
        "it was right: nothing was published"
    );
}
