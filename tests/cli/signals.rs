//! Signals, and what PID 1 of a container has to do with them.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::common::{World, binary, eventually, run};
use super::files;

/// In a container, Ctrl-C reaches the process twice: from the terminal, and from PID 1, which forwards it.
#[test]
fn a_second_signal_aborts_unless_it_is_the_first_one_again_at_once() {
    let ends = |pause: u64, second: Signal| {
        let world = World::new();
        world.remote.commit(&files("one"));
        // The drain waits for this program for more than a second.
        let (hook, started) = (world.dir().join("hook"), world.dir().join("started"));
        run::executable(&hook, &format!("#!/bin/sh\ntouch {}\nexec sleep 60\n", started.display()));
        let hook = format!("--exechook-command={}", hook.display());
        let log = world.dir().join("log");
        let mut sync = run::Background::start(&mut world.sync(&["--period=1h", &hook]), &log);
        eventually(20, "the program runs", || started.exists().then_some(()));
        let pid = Pid::from_child(&sync.child);
        kill_process(pid, Signal::INT).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause));
        kill_process(pid, second).unwrap();
        sync.ended().code()
    };
    assert_eq!(ends(20, Signal::TERM), Some(143), "another signal");
    assert_eq!(ends(500, Signal::INT), Some(130), "a later one");
    // On a machine that is busy, the process may see it later than it was sent.
    let again: Vec<_> = (0..5).map(|_| ends(20, Signal::INT)).take_while(|code| *code != Some(0)).collect();
    assert!(again.len() < 5, "the first one again: {again:?}");
}

/// The arguments of unshare(1) with which a program becomes PID 1 of a namespace of its own.
fn pid_namespace() -> Vec<&'static str> {
    let mut arguments = vec!["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !rustix::process::geteuid().is_root() {
        arguments.extend(["--user", "--map-root-user"]);
    }
    arguments
}

#[test]
fn as_pid_1_it_passes_signals_on_reaps_orphans_and_ends_as_its_child_does() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let namespace = pid_namespace();
    let ran = Command::new("unshare").args(&namespace).arg("true").output().expect("unshare of util-linux");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "this test needs a PID namespace: run it as root, or allow user namespaces: {said}"
    );
    // The script leaves an orphan behind that ends at once, as a killed `git upload-pack` would, and becomes treeswap.
    let mut command = world.sync(&["--period=1h"]);
    let mut inside = run::clean("unshare", &world.dir().join("home"));
    inside.args(&namespace).args(["sh", "-c", "(sh -c 'sleep 0.2 & echo orphan' &) ; exec \"$@\"", "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    command = inside;
    let mut sync = run::Background::start(&mut command, &world.dir().join("init.log"));
    eventually(20, "it publishes", || world.differences(&commit).is_empty().then_some(()));
    let parent = sync.pid();
    let init = eventually(20, "PID 1", || children(parent).first().copied());
    let child = eventually(20, "its child", || children(init).iter().copied().find(|pid| is_treeswap(*pid)));
    eventually(20, "the orphan is reaped", || (children(init) == [child]).then_some(()));
    kill_process(Pid::from_raw(init as i32).unwrap(), Signal::TERM).unwrap();
    let status = sync.ended();
    assert_eq!(status.code(), Some(0), "{}", sync.log());
    assert!(sync.log().contains("drained"), "{}", sync.log());
}

/// Runs `treeswap` with these arguments as PID 1, and expects that SIGTERM ends it, whatever it waits for.
#[track_caller]
fn ends_at_a_signal_as_pid_1(world: &World, args: &[&str]) {
    let mut command = run::clean("unshare", &world.dir().join("home"));
    command.args(pid_namespace()).arg(binary()).args(args);
    let mut waiting = run::Background::start(&mut command, &world.dir().join("init.log"));
    let parent = waiting.pid();
    let init = eventually(20, "PID 1", || children(parent).into_iter().find(|pid| is_treeswap(*pid)));
    let init = Pid::from_raw(init as i32).unwrap();
    eventually(20, "its end", || {
        let _ = kill_process(init, Signal::TERM); // the first may come too early
        (!waiting.is_running()).then_some(())
    });
    assert_eq!(waiting.ended().code(), Some(143), "{}", waiting.log());
}

#[test]
fn pin_as_pid_1_ends_at_a_signal_while_it_waits() {
    let world = World::new();
    ends_at_a_signal_as_pid_1(&world, &["pin", "--wait=1h", world.root.to_str().unwrap(), "--", "true"]);
}

#[test]
fn render_as_pid_1_ends_at_a_signal_while_it_waits() {
    let world = World::new();
    let rules = world.dir().join("rules");
    rustix::fs::mknodat(rustix::fs::CWD, &rules, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    ends_at_a_signal_as_pid_1(&world, &["render", "--tree=.", &format!("--rules={}", rules.display())]);
}

/// The children of a process, zombies included.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_treeswap(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "treeswap")
}
