//! Several instances at the same revision, and one that is killed: real processes, a real API server, counted by its
//! audit log.

use crate::apply::{MAPS, Stage};
use crate::common::run::Background;
use crate::common::{eventually, full};
use crate::kubernetes::Kubernetes;
use crate::proxy::{Fault, Proxy};

const FLEET: usize = 20;

#[test]
fn twenty_instances_in_the_same_instant_write_each_object_once_and_all_succeed() {
    let stage = Stage::new();
    for round in 1..=2 {
        stage.commit(&round.to_string());
        // All have read nothing yet when the last one is there; then all go on together.
        stage.proxy.plan("GET", "limit=", 0, FLEET, Fault::HoldBefore);
        let before = stage.proxy.count("GET", "limit=");
        // One command, so that its files are written once and none is read half written.
        let mut command = stage.command(&[("test", stage.proxy.access("writer"))], &[]);
        let start = |number: usize| {
            let log = stage.world.dir().join(format!("{round}-{number}.log"));
            Background::start(&mut command, &log)
        };
        let mut fleet: Vec<Background> = (0..FLEET).map(start).collect();
        eventually(240, "all are there", || {
            (stage.proxy.count("GET", "limit=") == before + FLEET).then_some(())
        });
        stage.proxy.release();
        for one in &mut fleet {
            let status = eventually(240, "it ends", || one.child.try_wait().unwrap());
            assert!(status.success(), "{status}\n{}", one.log());
        }
        stage.assert_all(&round.to_string());
        assert_eq!(stage.writes(), [round; MAPS.len()], "one write for each object and revision");
    }
}

#[test]
fn whoever_is_killed_at_any_of_its_requests_a_peer_finishes() {
    let stage = Stage::new();
    stage.apply(&[]).expect_ok("the first run");
    stage.commit("once more");
    let before = stage.proxy.seen().len();
    stage.apply(&[]).expect_ok("the second run");
    let requests = stage.proxy.seen().len() - before;
    assert!(requests >= 11, "a list, two records, each map read and written, two records again: {requests}");
    for at in (0..requests).step_by(if full() { 1 } else { 4 }) {
        for (when, fault) in [("before", Fault::HoldBefore), ("after", Fault::HoldAfter)] {
            let value = format!("{when} request {at}");
            stage.commit(&value);
            let proxy = Proxy::start(Kubernetes::shared());
            proxy.plan("", "/", at, 1, fault);
            let log = stage.world.dir().join("killed.log");
            let mut command = stage.command(&[("test", proxy.access("writer"))], &[]);
            let mut killed = Background::start(&mut command, &log);
            eventually(120, "it is at that request, or done without one", || {
                (proxy.seen().len() > at || !killed.is_running()).then_some(())
            });
            killed.child.kill().unwrap();
            killed.child.wait().unwrap();
            let peer = stage.apply(&[]);
            assert!(peer.ok(), "killed {value}: {}{}", peer.stdout, peer.stderr);
            stage.assert_all(&value);
            proxy.release(); // what was on its way when it was killed arrives late
            let again = stage.apply(&[]).expect_ok("a run after that");
            stage.assert_all(&value);
            assert!(!again.stdout.contains("created"), "{}", again.stdout);
        }
    }
}
