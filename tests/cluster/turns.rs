//! Instances that take turns by a Lease: who waits for whom, for how long, and what is left of the work afterwards.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::apply::Stage;
use crate::common::eventually;
use crate::common::run::Background;
use crate::kubernetes::{Kubernetes, text};
use crate::proxy::Fault;

/// The Lease of a stage as somebody else writes it, whoever has it.
fn put(stage: &Stage, holder: &str, seconds: u32) -> Value {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", stage.namespace);
    eventually(60, "nobody else writes it in between", || {
        let mut lease = lease(stage);
        // A clock that is years ahead, as far as anybody can tell.
        lease["spec"] = json!({
            "holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 7,
            "acquireTime": "2099-01-01T00:00:00.000000Z", "renewTime": "2099-01-01T00:00:00.000000Z",
        });
        let answer = if lease["metadata"]["uid"].is_string() {
            Kubernetes::shared().ask("PUT", &format!("{path}/treeswap-test"), Some(&lease))
        } else {
            lease["metadata"] = json!({ "name": "treeswap-test" });
            Kubernetes::shared().ask("POST", &path, Some(&lease))
        };
        match answer {
            (409, _) => None,
            (200 | 201, lease) => Some(lease),
            (status, answer) => panic!("{status} {answer}"),
        }
    })
}

/// The Lease as it is; an empty object if there is none.
fn lease(stage: &Stage) -> Value {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/treeswap-test", stage.namespace);
    match Kubernetes::shared().ask("GET", &path, None) {
        (200, lease) => lease,
        _ => json!({}),
    }
}

/// An `apply` that has found the Lease taken and looks at it again and again.
fn waiting(stage: &Stage, more: &[&str]) -> Background {
    let before = stage.proxy.count("GET", "leases");
    let mut command = stage.command(&[("test", stage.proxy.access("writer"))], more);
    let process = Background::start(&mut command, &stage.world.dir().join("waiting.log"));
    eventually(120, "it waits", || (stage.proxy.count("GET", "leases") >= before + 2).then_some(()));
    process
}

#[test]
fn a_lease_is_asked_for_only_when_there_is_something_to_write_and_let_go_after_it() {
    let stage = Stage::new();
    for (value, requests) in [("1", 3), ("2", 6)] {
        stage.commit(value);
        stage.apply(&[]).expect_ok("a run that writes");
        let after = lease(&stage);
        assert_eq!(text(&after["spec"]["holderIdentity"]), "", "{after}");
        stage.apply(&[]).expect_ok("a run that finds everything right");
        let seen = stage.proxy.seen().into_iter().filter(|seen| seen.uri.contains("leases"));
        assert_eq!(seen.count(), requests, "looked at, taken, let go");
    }
    assert!(stage.requests().iter().all(|request| request.verb != "patch"));
}

#[test]
fn who_waited_finds_nothing_left_to_do_and_does_not_even_take_the_lease() {
    let stage = Stage::new();
    put(&stage, "somebody", 3_600);
    let mut waits = waiting(&stage, &["--lease-duration=1h", "--timeout=10h"]);
    stage.apply(&["--lease-duration=0s"]).expect_ok("one that takes no turns");
    put(&stage, "", 1);
    let status = eventually(120, "it goes on", || waits.child.try_wait().unwrap());
    assert!(status.success(), "{}", waits.log());
    assert_eq!(stage.writes(), [1, 1, 1]);
    assert_eq!(stage.proxy.count("PUT", "leases"), 0);
}

/// Between a holder's last ConfigMap and its marker there is nothing left to write but the marker, which is the holder's.
#[test]
fn who_comes_while_the_marker_is_being_written_leaves_it_to_the_holder() {
    let stage = Stage::new();
    stage.apply(&[]).expect_ok("the first run");
    let marker = "configmaps/treeswap-set-test";
    let before = stage.proxy.count("PUT", marker);
    stage.commit("2");
    stage.proxy.next("PUT", marker, Fault::HoldBefore);
    let patient = ["--lease-duration=1h", "--timeout=10h", "--request-timeout=1h"];
    let mut command = stage.command(&[("test", stage.proxy.access("writer"))], &patient);
    let mut holder = Background::start(&mut command, &stage.world.dir().join("holder.log"));
    eventually(120, "its marker is on its way", || (stage.proxy.count("PUT", marker) > before).then_some(()));
    stage.assert_all("2");
    let mut waits = waiting(&stage, &patient);
    stage.proxy.release();
    for one in [&mut holder, &mut waits] {
        let status = eventually(120, "it ends", || one.child.try_wait().unwrap());
        assert!(status.success(), "{}", one.log());
    }
    assert_eq!(stage.proxy.count("PUT", marker), before + 1, "written once");
    assert_eq!(stage.writes(), [2, 2, 2]);
}

#[test]
fn a_holder_that_is_silent_loses_its_turn_whatever_its_clock_says() {
    let stage = Stage::new();
    put(&stage, "a-pod-that-was-killed", 1);
    let ran = stage.apply(&[]).expect_ok("apply");
    assert!(ran.stderr.contains("a-pod-that-was-killed stopped renewing"), "{}", ran.stderr);
    stage.assert_all("1");
    let after = lease(&stage);
    assert_eq!(after["spec"]["leaseTransitions"], 8, "{after}");
    assert_eq!(text(&after["spec"]["holderIdentity"]), "");
}

#[test]
fn a_holder_that_works_on_and_on_is_not_waited_for_for_ever() {
    let stage = Stage::new();
    put(&stage, "somebody", 1);
    // Its patience is fifteen durations; each look finds a Lease that was just renewed.
    let mut waits = waiting(&stage, &["--lease-duration=1s"]);
    let status = eventually(300, "it goes on without", || {
        put(&stage, "somebody", 1);
        waits.child.try_wait().unwrap()
    });
    assert!(status.success(), "{}", waits.log());
    stage.assert_all("1");
}

#[test]
fn one_that_waits_ends_when_it_is_told_to() {
    let stage = Stage::new();
    let taken = put(&stage, "somebody", 3_600);
    let mut waits = waiting(&stage, &["--lease-duration=1h", "--timeout=10h"]);
    kill_process(Pid::from_child(&waits.child), Signal::TERM).unwrap();
    let status = eventually(60, "it ends", || waits.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "{}", waits.log());
    assert!(waits.log().contains("skipped"), "nothing failed: {}", waits.log());
    assert!(stage.values().is_empty());
    assert_eq!(lease(&stage), taken, "it is somebody else's");
}

#[test]
fn a_run_that_is_refused_again_writes_nothing() {
    let stage = Stage::new();
    let kubernetes = Kubernetes::shared();
    kubernetes.put(&stage.namespace, "beta", json!({ "data": { "by": "hand" } }));
    let refused = |what: &str| {
        let ran = stage.apply(&[]);
        assert_eq!(ran.status.code(), Some(3), "{what}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("beta: refused"), "{what}: {}", ran.stdout);
        kubernetes.versions(&stage.namespace)
    };
    let before = refused("the first run");
    assert_eq!(refused("the second run"), before);
    let same = |files: crate::common::Files, map: &str| files.file(format!("{map}/value"), "1");
    let other = crate::common::Files::new().file("other", "new");
    stage.world.remote.commit(&crate::apply::MAPS.into_iter().fold(other, same));
    assert_eq!(refused("a revision that asks for the same"), before);
}
