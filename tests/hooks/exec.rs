//! `--exechook-command`, the program after a publication, and `--pre-publish-exechook-command`, the one before it,
//! which the publication does not wait for (`--one-time` does, at its end).

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::common::run::{Background, executable, to_end};
use super::common::{Sidecar, World, allowed, eventually};
use super::{Hook, current, files};

const BOTH: [&str; 2] = ["exechook", "pre-publish-exechook"];

#[test]
fn a_program_runs_once_a_revision_in_its_generation_with_the_environment_but_no_secret() {
    for name in BOTH {
        let world = World::new();
        let line = "$GITSYNC_HASH $TREESWAP_REVISION $(cat file) $ENVKEY ${GITSYNC_PASSWORD-none} ${TREESWAP_REPO-none} \
                    $(test \"$(pwd)\" = \"$(pwd -P)\" && test \"$(pwd)\" = \"$TREESWAP_DIR\" && echo there) \
                    $(basename \"$TREESWAP_DIR\") $TREESWAP_GENERATION";
        let hook = Hook::new(&world, "hook", line, "");
        let first = world.remote.commit(&files("first"));
        let mut command =
            world.sync(&["--period=10ms", "--min-interval=0s", "--username=bob", &hook.flag(name)]);
        command
            .env("ENVKEY", "envval")
            .env("GITSYNC_PASSWORD", "canary")
            .env("TREESWAP_REPO", "https://u:canary@h/x");
        let process = Background::start(&mut command, &world.dir().join("log"));
        for (runs, text) in [(0, "first"), (1, "second")] {
            let commit = if runs == 0 { first.clone() } else { world.remote.commit(&files(text)) };
            let said = eventually(30, "the hook has run", || hook.runs().get(runs).cloned());
            let generation = eventually(30, "it is published", || {
                let dir = current(&world)?;
                (std::fs::read_to_string(dir.join("file")).ok()? == text).then_some(dir)
            });
            let generation = generation.file_name().unwrap().to_str().unwrap();
            let expected =
                format!("{commit} {commit} {text} envval none none there {generation} {generation}");
            assert_eq!(said, expected, "{name}");
        }
        std::thread::sleep(Duration::from_millis(200)); // many periods: nothing new must not run it again
        let (runs, log) = (hook.runs(), process.log());
        assert!(runs.len() == 2, "{name}: {runs:?}");
        assert!(!log.contains("canary"), "{log}");
    }
}

#[test]
fn as_git_sync_the_output_is_in_one_line_of_the_log() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let hook = Hook::new(&world, "hook", "run", "echo what it printed");
    let mut command = world.treeswap(&["git-sync", "--one-time", "--link=link", "-v=5", "--repo"]);
    command.arg(&world.remote.path).arg("--root").arg(&world.root).arg(hook.flag("exechook"));
    let log = to_end(command.arg("--ref=main")).expect_ok("a hook that succeeds").stderr;
    assert_eq!(log.matches("what it printed").count(), 1, "{log}");
    assert!(log.contains("\"msg\":\"exechook succeeded\"") && !log.contains("output of exechook"), "{log}");
}

#[test]
fn a_program_that_fails_runs_again_after_the_backoff() {
    for name in BOTH {
        let world = World::new();
        world.remote.commit(&files("first"));
        let hook = Hook::new(&world, "hook", "run", "echo 'no such table'; exit 3");
        let backoff = format!("--{name}-backoff=1s");
        let sidecar = Sidecar::start(&world, &[&hook.flag(name), &backoff]);
        let began = Instant::now();
        eventually(30, "two runs", || (hook.runs().len() >= 2).then_some(()));
        assert!(began.elapsed() >= Duration::from_secs(1), "{name}: the backoff was not kept");
        eventually(30, "a failing hook stops no publication", || {
            world.root.join("file").exists().then_some(())
        });
        let failures = format!("treeswap_hooks_total{{hook=\"{name}\",result=\"error\"}}");
        eventually(30, "it is counted", || sidecar.ask("/metrics")?.contains(&failures).then_some(()));
        let log = sidecar.process.log();
        assert!(log.contains("exit status: 3") && log.contains("no such table"), "{log}");
    }
}

#[test]
fn one_time_waits_for_the_program() {
    for name in BOTH {
        let world = World::new();
        world.remote.commit(&files("first"));
        let slow =
            Hook::new(&world, "slow", "begun", &format!("sleep 1; touch {}/ended", world.dir().display()));
        world.sync_once(&[&slow.flag(name)]).expect_ok(name);
        assert!(world.dir().join("ended").exists(), "{name}: it was not waited for");
    }
}

#[test]
fn one_time_fails_with_the_program_after_one_run_with_the_link_published() {
    for name in BOTH {
        let world = World::new();
        let commit = world.remote.commit(&files("first"));
        let failing = Hook::new(&world, "failing", "run", "exit 1");
        let backoff = format!("--{name}-backoff=1s");
        let ran = world.sync_once(&[&failing.flag(name), &backoff]);
        assert_eq!(ran.status.code(), Some(1), "{name}: {}", ran.stderr);
        assert!(
            ran.complaint().contains(&format!("published, but a hook failed: {name} failed")),
            "{}",
            ran.stderr
        );
        assert_eq!(failing.runs().len(), 1, "{name}");
        world.assert_published(&commit);
    }
}

#[test]
fn a_restart_with_nothing_new_runs_only_the_exechook() {
    for (name, runs) in BOTH.into_iter().zip([1, 0]) {
        let world = World::new();
        world.remote.commit(&files("first"));
        world.sync_once(&[]).expect_ok("the first run");
        let hook = Hook::new(&world, "hook", "run", "");
        world.sync_once(&[&hook.flag(name)]).expect_ok(name);
        assert_eq!(hook.runs().len(), runs, "{name}");
    }
}

/// The process publishes twice: first the damaged generation, from the mirror, then the new commit.
#[test]
fn one_time_runs_the_pre_publish_hook_for_all_that_it_publishes() {
    let world = World::new();
    let hook = Hook::new(&world, "hook", "$GITSYNC_HASH", "");
    let flag = hook.flag("pre-publish-exechook");
    let first = world.remote.commit(&files("first"));
    world.sync_once(&[&flag]).expect_ok("the first");
    std::fs::write(world.root.join("..data/file"), "damaged").unwrap();
    let second = world.remote.commit(&files("second"));
    let ran = world.sync_once(&[&flag]).expect_ok("the second");
    assert!(ran.stderr.contains("publishing it afresh"), "{}", ran.stderr);
    world.assert_published(&second);
    assert_eq!(hook.runs(), [first.clone(), first, second], "once in each process");
}

#[test]
fn a_program_that_is_trying_again_does_so_in_the_generation_that_was_published_again() {
    for name in BOTH {
        let world = World::new();
        world.remote.commit(&files("first"));
        let hook = Hook::new(&world, "hook", "$TREESWAP_DIR", "exit 1");
        let backoff = format!("--{name}-backoff=1s");
        let _sidecar = Sidecar::start(&world, &[&hook.flag(name), &backoff]);
        let gone = eventually(30, "it runs", || hook.runs().first().cloned());
        eventually(30, "it is published", || world.root.join("..data/file").exists().then_some(()));
        std::fs::remove_dir_all(&gone).unwrap();
        let has_moved = || hook.runs().iter().any(|dir| *dir != gone).then_some(());
        eventually(30, "it runs in the other directory", has_moved);
    }
}

#[test]
fn a_relative_path_is_a_program_of_the_generation_and_a_missing_one_is_named() {
    let world = World::new();
    let log = world.dir().join("ran");
    let text = format!("#!/bin/sh\ncp file {}\n", log.display());
    world.remote.commit(&files("first").script("bin/hook", text));
    world.sync_once(&["--exechook-command=./bin/hook"]).expect_ok("a program of the tree");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "first");
    let ran = world.sync_once(&["--exechook-command=bin/other"]);
    ran.names(&["exechook failed", "bin/other", "No such file"]);
}

/// False for a zombie, too: it is dead, and only its new parent can reap it.
fn is_running(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_ok() && !state.contains(") Z ")
}

#[test]
fn at_the_timeout_all_that_the_program_started_is_killed() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let grandchild = world.dir().join("grandchild");
    let then = format!("sleep 1000 &\necho $! > {}; echo waiting; wait", grandchild.display());
    let hook = Hook::new(&world, "hook", "run", &then);
    let ran = world.sync_once(&[&hook.flag("exechook"), "--exechook-timeout=5s"]);
    ran.names(&["exechook failed", "was killed after 5s", "waiting"]);
    let pid = std::fs::read_to_string(&grandchild).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    eventually(20, "the grandchild is gone", || (!is_running(pid)).then_some(()));
}

/// Three ways out: a new session; an orphan in a new session; a new session with an empty environment.
#[test]
fn what_left_its_session_is_killed_at_the_timeout_too() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let left = world.dir().join("left");
    let then = format!(
        "exec >/dev/null 2>&1\nleft={}\n\
         setsid sh -c 'echo $$ >> '$left'; exec sleep 1000' &\n\
         setsid sh -c 'sleep 1000 & echo $! >> '$left\n\
         env -i \"PATH=$PATH\" setsid sh -c 'echo $$ >> '$left'; exec sleep 1000' &\n\
         wait",
        left.display()
    );
    let hook = Hook::new(&world, "hook", "run", &then);
    let ran = world.sync_once(&[&hook.flag("exechook"), "--exechook-timeout=8s"]);
    ran.names(&["exechook failed", "was killed after 8s"]);
    let left = std::fs::read_to_string(&left).unwrap();
    let pids: Vec<_> = left.lines().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
    assert_eq!(pids.len(), 3, "{left}");
    for pid in pids {
        eventually(20, "it is gone", || (!is_running(pid)).then_some(()));
    }
}

#[test]
fn what_a_program_leaves_running_delays_nothing_and_lives_on() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let then = format!(
        "(while [ ! -e {0}/go ]; do sleep 0.05; done; echo chatter; echo more; touch {0}/survived) &",
        world.dir().display()
    );
    let hook = Hook::new(&world, "hook", "run", &then);
    let sidecar = Sidecar::start(&world, &[&hook.flag("exechook"), "--exechook-timeout=1h"]);
    eventually(30, "success, while the daemon still runs", || {
        let metrics = sidecar.ask("/metrics")?;
        metrics.contains("treeswap_hooks_total{hook=\"exechook\",result=\"success\"} 1").then_some(())
    });
    std::fs::write(world.dir().join("go"), "").unwrap();
    eventually(30, "the daemon goes on and may write", || {
        world.dir().join("survived").exists().then_some(())
    });
}

#[test]
fn endless_output_is_read_but_not_kept() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let hook = Hook::new(
        &world,
        "hook",
        "run",
        "head -c 30000000 /dev/zero | tr '\\0' 'x'; echo; echo the end; exit 1",
    );
    let mut command = world.sync(&["--one-time", &hook.flag("exechook")]);
    let ran = to_end(&mut command);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.stderr.len() < 20_000, "{} bytes", ran.stderr.len());
    assert!(ran.complaint().contains("the end"), "the end of the output is missing: {}", ran.stderr);
}

#[test]
fn the_log_says_when_a_failed_program_runs_again() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let hook = Hook::new(&world, "hook", "run", "exit 1");
    let ran = world.sync_once(&[&hook.flag("exechook")]);
    assert!(ran.stderr.contains("\"retry\":\"none\""), "nothing runs it again: {}", ran.stderr);
    let sidecar = Sidecar::start(&world, &[&hook.flag("exechook")]);
    // After the default of --exechook-backoff.
    let says_when = || sidecar.process.log().contains("\"retry\":\"3s\"").then_some(());
    eventually(30, "it says when it runs again", says_when);
}

#[test]
fn what_was_replaced_while_the_program_ran_is_skipped_and_its_generation_stays_while_it_runs() {
    let world = World::new();
    let first = world.remote.commit(&files("first"));
    let done = world.dir().join("done");
    let then = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; cat file jobs/nightly.yaml > /dev/null && touch {}.\"$GITSYNC_HASH\"",
        done.display(),
        done.display()
    );
    let hook = Hook::new(&world, "hook", "$GITSYNC_HASH", &then);
    let sidecar = Sidecar::start(&world, &[&hook.flag("exechook"), "--grace=0s"]);
    eventually(30, "the hook runs", || (hook.runs() == [first.clone()]).then_some(()));
    let pinned = current(&world).unwrap();
    let mut commits = Vec::new();
    for text in ["second", "third"] {
        commits.push(world.remote.commit(&files(text)));
        sidecar.publishes(&world, commits.last().unwrap());
    }
    sidecar.idle(5);
    assert!(pinned.exists(), "the generation that the hook reads is gone");
    std::fs::write(&done, "").unwrap();
    eventually(30, "the newest is reported", || (hook.runs().len() == 2).then_some(()));
    assert_eq!(hook.runs(), [first.clone(), commits[1].clone()], "the one in between is skipped");
    assert!(world.dir().join(format!("done.{first}")).exists(), "the files could not be read");
    eventually(30, "nothing pins it any more", || (!pinned.exists()).then_some(()));
}

/// Unlike git-sync: what the failed run has changed is not known, and its failure would be shown for ever.
#[test]
fn a_revision_that_succeeded_before_runs_again_after_a_later_one_failed_and_was_reverted() {
    let world = World::new();
    let first = world.remote.commit(&files("first"));
    let failing = world.dir().join("fail");
    let then = format!(
        "grep -q second file || exit 0; while [ ! -e {} ]; do sleep 0.05; done; exit 1",
        failing.display()
    );
    let hook = Hook::new(&world, "hook", "$GITSYNC_HASH", &then);
    let more =
        [&*hook.flag("exechook"), "--exechook-backoff=1s", "--exechook-timeout=1h", "--min-interval=0s"];
    let sidecar = Sidecar::start(&world, &more);
    let runs = |result: &str| {
        let labels = format!("{{hook=\"exechook\",result=\"{result}\"}}");
        sidecar.metric_of("treeswap_hooks_total", &labels)
    };
    eventually(60, "the first is done", || (runs("success")? == 1.0).then_some(()));
    let second = world.remote.commit(&files("second"));
    eventually(60, "the second runs", || (hook.runs().len() == 2).then_some(()));
    world.remote.reset(&first);
    sidecar.publishes(&world, &first);
    std::fs::write(&failing, "").unwrap();
    eventually(60, "the second failed", || (runs("error")? == 1.0).then_some(()));
    eventually(60, "the first is done again", || (runs("success")? == 2.0).then_some(()));
    let failures = || sidecar.metric_of("treeswap_hook_consecutive_failures", "{hook=\"exechook\"}");
    eventually(30, "the metric shows no failure", || (failures()? == 0.0).then_some(()));
    eventually(30, "nor does the status", || {
        let status = sidecar.status();
        let hook = &status["hooks"][0];
        let is_clear = hook["consecutive_failures"] == 0 && hook["error"].is_null();
        (is_clear && hook["revision"] == *first).then_some(())
    });
    sidecar.idle(5);
    assert_eq!(hook.runs(), [first.clone(), second, first]);
}

#[test]
fn sigterm_ends_what_runs_within_five_seconds() {
    for then in ["sleep 1000", "trap '' TERM; while :; do sleep 1; done", "sleep 1000 & wait"] {
        let world = World::new();
        world.remote.commit(&files("first"));
        let hook = Hook::new(&world, "hook", "$$", then); // logs its pid
        let mut sidecar = Sidecar::start(&world, &[&hook.flag("exechook"), "--exechook-timeout=1h"]);
        let pid = eventually(30, "the hook runs", || hook.runs().first().cloned());
        let began = Instant::now();
        let status = sidecar.process.terminate();
        assert!(began.elapsed() < allowed(Duration::from_secs(5)), "{then}: {:?}", began.elapsed());
        assert_eq!(status.code(), Some(0), "{then}: {}", sidecar.process.log());
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        assert!(!is_running(pid), "{then}: the hook outlived us");
    }
}

#[test]
fn sigterm_lets_a_program_that_is_nearly_done_finish() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let dir = world.dir().display();
    let then = format!("while [ ! -e {dir}/told ]; do sleep 0.05; done; touch {dir}/finished");
    let hook = Hook::new(&world, "hook", "run", &then);
    let mut sidecar = Sidecar::start(&world, &[&hook.flag("exechook")]);
    eventually(30, "the hook runs", || hook.runs().first().cloned());
    kill_process(Pid::from_child(&sidecar.process.child), Signal::TERM).unwrap();
    std::fs::write(world.dir().join("told"), "").unwrap();
    assert_eq!(sidecar.process.ended().code(), Some(0));
    assert!(world.dir().join("finished").exists());
}

#[test]
fn a_program_that_cannot_be_executed_is_named_with_a_hint() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let program = world.dir().join("plain");
    executable(&program, "#!/absent/interpreter\n");
    let ran = world.sync_once(&[&format!("--exechook-command={}", program.display())]);
    ran.names(&["exechook failed", "plain", "No such file"]);
    let ran = world.sync_once(&["--exechook-command=/etc/passwd"]);
    ran.names(&["exechook failed", "/etc/passwd", "Permission denied"]);
}

#[test]
fn a_programs_generation_stays_although_treeswap_is_killed() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let (go_on, read) = (world.dir().join("go-on"), world.dir().join("read"));
    let then =
        format!("while ! test -e {}; do sleep 0.01; done; cat file > {}", go_on.display(), read.display());
    let hook = Hook::new(&world, "hook", "$TREESWAP_DIR", &then);
    let mut process = Background::start(
        &mut world.sync(&["--period=10ms", &hook.flag("exechook")]),
        &world.dir().join("log"),
    );
    let dir = eventually(30, "the hook runs", || hook.runs().first().cloned());
    process.child.kill().unwrap();
    process.ended();
    let dir = std::path::PathBuf::from(dir);
    let other = |text: &str| {
        world.remote.commit(&files(text));
        world.sync_once(&["--grace=0s", "--min-interval=0s"]).expect_ok(text);
    };
    other("second");
    other("third");
    assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "first");
    std::fs::write(&go_on, "").unwrap();
    let has_read = || std::fs::read_to_string(&read).is_ok_and(|text| text == "first").then_some(());
    eventually(30, "the hook ends", has_read);
    eventually(30, "its pin ends with it", || {
        world.sync_once(&["--grace=0s"]).expect_ok("again");
        (!dir.exists()).then_some(())
    });
}
