//! Several instances at the same revision, and one that is killed: real processes, a real API server, counted by its
//! audit log.

use std::time::{Duration, Instant};

use crate::apply::{MAPS, Stage};
use crate::common::run::Background;
use crate::common::{eventually, full};
use crate::kubernetes::{Audited, Kubernetes};
use crate::proxy::{Fault, Proxy};

const FLEET: usize = 20;
/// How long one that was killed is waited for.
const LEASE: Duration = Duration::from_secs(2);

#[test]
fn twenty_instances_in_the_same_instant_write_each_object_once_and_all_succeed() {
    together("--lease-duration=15s");
}

#[test]
fn twenty_instances_that_take_no_turns_do_so_too() {
    let stage = together("--lease-duration=0s");
    let leases = stage.requests().into_iter().filter(|request| request.resource == "leases");
    assert_eq!(leases.count(), 0);
}

/// Two revisions, each by a fleet that starts at once.
fn together(turns: &str) -> Stage {
    let stage = Stage::new();
    for round in 1..=2 {
        stage.commit(&round.to_string());
        // All have read nothing yet when the last one is there; then all go on together.
        stage.proxy.plan("GET", "limit=", 0, FLEET, Fault::HoldBefore);
        let before = stage.proxy.count("GET", "limit=");
        let requests = stage.requests().len();
        // One command, so that its files are written once and none is read half written.
        let mut command = stage.command(&[("test", stage.proxy.access("writer"))], &[turns]);
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
        println!(
            "fleet: {FLEET} instances, {turns}, revision {round}: {}",
            figures(&stage.requests()[requests..])
        );
    }
    stage
}

/// What a fleet asked of the server.
fn figures(requests: &[Audited]) -> String {
    let count = |resource: &str, which: &dyn Fn(&Audited) -> bool| {
        requests.iter().filter(|request| request.resource == resource && which(request)).count()
    };
    let of = |resource: &str| {
        let writes = count(resource, &Audited::is_write);
        let conflicts = count(resource, &|request: &Audited| request.status == 409);
        format!("{writes} writes and {conflicts} conflicts of {resource}")
    };
    format!("{} requests, {}, {}", requests.len(), of("configmaps"), of("leases"))
}

#[test]
fn whoever_is_killed_at_any_of_its_requests_a_peer_finishes() {
    let stage = Stage::new();
    let turns = format!("--lease-duration={}s", LEASE.as_secs());
    let timed = |what: &str| {
        let began = Instant::now();
        let ran = stage.apply(&[&turns]).expect_ok(what);
        (ran, began.elapsed())
    };
    timed("the first run");
    stage.commit("once more");
    let before = stage.proxy.seen().len();
    let (_, work) = timed("the second run");
    let requests = stage.proxy.seen().len() - before;
    let least = "twice a list, two records and three maps; three maps and two records written; a Lease read, taken, let go";
    assert!(requests >= 20, "{least}: {requests}");
    let mut worst = (Duration::ZERO, String::new());
    let mut killed_at_work = 0;
    for at in (0..requests).step_by(if full() { 1 } else { 4 }) {
        for (when, fault) in [("before", Fault::HoldBefore), ("after", Fault::HoldAfter)] {
            let value = format!("{when} request {at}");
            stage.commit(&value);
            let proxy = Proxy::start(Kubernetes::shared());
            proxy.plan("", "/", at, 1, fault);
            let log = stage.world.dir().join("killed.log");
            let mut command = stage.command(&[("test", proxy.access("writer"))], &[&turns]);
            let mut killed = Background::start(&mut command, &log);
            eventually(120, "it is at that request, or done without one", || {
                (proxy.seen().len() > at || !killed.is_running()).then_some(())
            });
            killed_at_work += usize::from(killed.is_running());
            killed.child.kill().unwrap();
            killed.child.wait().unwrap();
            let (_, took) = timed(&format!("a peer of one killed {value}"));
            stage.assert_all(&value);
            // Left to itself it would wait a quarter of its time, which is minutes.
            assert!(took < LEASE + Duration::from_secs(100), "killed {value}: the peer took {took:?}");
            worst = worst.max((took, value.clone()));
            proxy.release(); // what was on its way when it was killed arrives late
            let (again, _) = timed("a run after that");
            stage.assert_all(&value);
            assert!(!again.stdout.contains("created"), "{}", again.stdout);
        }
    }
    assert!(killed_at_work > 0, "each was done before it was killed");
    let (took, when) = worst;
    println!(
        "fleet: killed at each of {requests} requests: with Leases of {LEASE:?} a peer was done after {took:?} at most \
         (killed {when}); a run alone takes {work:?}"
    );
}
