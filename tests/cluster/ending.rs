//! `treeswap apply` that is told to end, or whose time is over: soon, with one definite answer for every target, and
//! nothing that the next run could not go on from.

use rustix::process::{Pid, Signal, kill_process};

use crate::apply::Stage;
use crate::common::run::{self, Background};
use crate::common::{Ran, eventually, swallowing};
use crate::proxy::Fault;

/// One write at a time, in the order of names.
const ONE: &str = "--concurrency=1";

/// A stage on which the second commit is to be written, and the write of `beta` gets no answer.
fn held() -> Stage {
    let stage = Stage::new();
    let first = stage.apply(&[]);
    assert!(first.stdout.contains("3 created"), "{}{}", first.stdout, first.stderr);
    stage.commit("2");
    stage.proxy.next("PUT", "configmaps/beta", Fault::HoldBefore);
    stage
}

/// What was told to end sent nothing after the write that was on its way, and the next run brings the rest.
fn goes_on(stage: &Stage) {
    assert_eq!(stage.proxy.count("PUT", "configmaps/gamma"), 0, "{:?}", stage.proxy.seen());
    stage.proxy.release(); // what was given up arrives late
    let ran = stage.apply(&[]);
    assert_eq!(ran.status.code(), Some(0), "{}{}", ran.stdout, ran.stderr);
    stage.assert_all("2");
    assert_eq!(stage.writes(), [2, 2, 2]);
}

#[test]
fn a_signal_ends_the_writing_and_the_next_run_goes_on() {
    let stage = held();
    let mut command = stage.command(&[("test", stage.proxy.access("writer"))], &[ONE]);
    let mut process = Background::start(&mut command, &stage.world.dir().join("apply.log"));
    eventually(120, "a write is on its way", || {
        (stage.proxy.count("PUT", "configmaps/beta") > 0).then_some(())
    });
    kill_process(Pid::from_child(&process.child), Signal::TERM).unwrap();
    eventually(60, "it ends", || (!process.is_running()).then_some(()));
    assert_eq!(process.terminate().code(), Some(3), "{}", process.log());
    goes_on(&stage);
}

#[test]
fn when_the_time_is_over_every_target_is_told() {
    let stage = held();
    let told = |limit: &str| stage.apply(&[ONE, limit]);
    // On a machine that is busy with others the time may be over before the write was sent.
    let mut limits = ["--timeout=5s", "--timeout=20s", "--timeout=80s"].into_iter();
    let ran: Ran = loop {
        let ran = told(limits.next().expect("a write is sent within 80 seconds"));
        assert!(!ran.ok(), "{}{}", ran.stdout, ran.stderr);
        if stage.proxy.count("PUT", "configmaps/beta") > 0 {
            break ran;
        }
    };
    assert_eq!(ran.status.code(), Some(3), "{}{}", ran.stdout, ran.stderr);
    let of = |name: &str| ran.stdout.lines().find(|line| line.contains(name)).unwrap_or("nothing is told");
    assert!(of("/beta").contains("failed: the run ended before the server had answered"), "{}", ran.stdout);
    assert!(of("/gamma").contains("skipped: the run ended before"), "{}", ran.stdout);
    assert!(ran.stderr.contains("the run ended before everything was done"), "{}", ran.stderr);
    goes_on(&stage);
}

#[test]
fn a_server_or_a_remote_that_says_nothing_holds_nobody_up() {
    let stage = held();
    stage.proxy.heal();
    stage.proxy.plan("GET", "configmaps", 0, 1_000, Fault::HoldBefore);
    let ran = stage.apply(&["--request-timeout=10m", "--timeout=5s"]);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!ran.ok() && said.contains("the run ended before"), "{said}");
    stage.proxy.heal();
    stage.proxy.release();

    let (address, _full) = swallowing();
    let mut command = stage.world.treeswap(&["apply", "--owner=test", "--timeout=1s", "--rules"]);
    command.arg(stage.rules(&["test"])).arg(format!("--repo=git://{address}/x"));
    let kubeconfig = stage.world.dir().join("kubeconfig");
    let ran = run::to_end(command.arg("--kubeconfig").arg(kubeconfig));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.complaint().contains("the run ended before the remote had answered"), "{}", ran.stderr);
    assert_eq!(stage.values()["beta"], "1");
}
