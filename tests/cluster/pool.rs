//! A fleet of which only so many work at once, by a few Leases: real processes, a real API server, the order of requests
//! from its audit log.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::apply::{MAPS, Stage};
use crate::common::run::{self, Background};
use crate::common::{Ran, eventually};
use crate::kubernetes::{Access, Audited, Kubernetes, text};
use crate::proxy::Fault;

/// More than may work at once.
const FLEET: usize = 6;

/// What is said once where no place can be had.
const SAID: &str = "note: no Lease of";

/// Leases in a namespace of their own, away from what is applied.
struct Pool {
    namespace: String,
    flag: String,
}

impl Pool {
    /// Of so many places, with the rights that `deploy/apply` asks for.
    fn new(count: usize) -> Self {
        let kubernetes = Kubernetes::shared();
        let namespace = kubernetes.namespace("pool");
        let leases: Vec<Value> = crate::rights::shipped().as_array().unwrap()[1..].to_vec();
        kubernetes.grant(&namespace, "writer", &json!(leases));
        let flag = format!("--lease-pool={namespace}/places:{count}");
        Self { namespace, flag }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// A place as it is; an empty object if nobody ever took it.
    fn place(&self, number: usize) -> Value {
        let path = format!("{}/places-{number}", self.path());
        match Kubernetes::shared().ask("GET", &path, None) {
            (200, lease) => lease,
            _ => json!({}),
        }
    }

    /// Somebody else takes a place, or renews it.
    fn hold(&self, number: usize, seconds: u32) -> Value {
        eventually(60, "nobody else writes it in between", || {
            let mut lease = self.place(number);
            let there = lease["metadata"]["uid"].is_string();
            lease["spec"] = json!({ "holderIdentity": "somebody", "leaseDurationSeconds": seconds });
            let (method, path) = match there {
                true => ("PUT", format!("{}/places-{number}", self.path())),
                false => ("POST", self.path()),
            };
            lease["metadata"]["name"] = json!(format!("places-{number}"));
            match Kubernetes::shared().ask(method, &path, Some(&lease)) {
                (409, _) => None,
                (200 | 201, lease) => Some(lease),
                (status, answer) => panic!("{status} {answer}"),
            }
        })
    }

    /// What was asked of its Leases by whoever applies.
    fn requests(&self) -> Vec<Audited> {
        let all = Kubernetes::shared().requests(&self.namespace).into_iter();
        all.filter(|request| request.resource == "leases" && request.user == "writer").collect()
    }

    /// A process that works by it.
    fn start(&self, stage: &Stage, more: &[&str]) -> Background {
        let mut command = self.command(stage, more);
        Background::start(&mut command, &stage.world.dir().join("pooled.log"))
    }

    fn command(&self, stage: &Stage, more: &[&str]) -> std::process::Command {
        let more: Vec<&str> = [self.flag.as_str()].into_iter().chain(more.iter().copied()).collect();
        stage.command(&[("test", stage.proxy.access("writer"))], &more)
    }

    fn apply(&self, stage: &Stage, more: &[&str]) -> Ran {
        run::to_end(&mut self.command(stage, more))
    }
}

#[track_caller]
fn succeeds(process: &mut Background) {
    let status = eventually(240, "it ends", || process.child.try_wait().unwrap());
    assert!(status.success(), "{status}\n{}", process.log());
}

/// When the first and the last of its ConfigMaps was written.
fn at_work(stage: &Stage) -> (String, String) {
    let writes = stage.requests().into_iter();
    let writes = writes.filter(|request| request.resource == "configmaps" && request.is_write());
    let mut times: Vec<String> = writes.map(|write| write.received).collect();
    times.sort();
    (times[0].clone(), times[times.len() - 1].clone())
}

#[test]
fn no_more_than_there_are_places_for_work_at_once_and_all_succeed() {
    let pool = Pool::new(2);
    let stages: Vec<Stage> = (0..FLEET).map(|_| Stage::new()).collect();
    // Nobody is taken for silent, however busy the machine is, and nobody loses patience.
    let patient = ["--lease-duration=2m", "--timeout=10h"];
    let start = |stage: &Stage| {
        for method in ["POST", "PUT"] {
            stage.proxy.plan(method, "configmaps", 0, 1_000, Fault::Delay(Duration::from_millis(300)));
        }
        pool.start(stage, &patient)
    };
    let mut fleet: Vec<Background> = stages.iter().map(start).collect();
    fleet.iter_mut().for_each(succeeds);
    assert!(fleet.iter().all(|one| !one.log().contains(SAID)));
    let works: Vec<(String, String)> = stages.iter().map(at_work).collect();
    for (begin, _) in &works {
        let now = works.iter().filter(|(first, last)| first <= begin && begin <= last).count();
        assert!(now <= 2, "{now} at {begin}: {works:?}");
    }
    for number in 0..2 {
        let place = pool.place(number);
        assert_eq!(text(&place["spec"]["holderIdentity"]), "", "let go: {place}");
    }
    assert_eq!(pool.place(2), json!({}));
    stages.iter().for_each(|stage| stage.assert_all("1"));

    // Who finds nothing to do asks for none, and neither does who was not told to.
    let before = pool.requests().len();
    pool.apply(&stages[0], &[]).expect_ok("a run without work");
    stages[0].commit("2");
    stages[0].apply(&[]).expect_ok("a run without the flag");
    stages[0].assert_all("2");
    assert_eq!(pool.requests().len(), before);
}

#[test]
fn a_holder_that_is_killed_keeps_its_place_from_nobody_for_long() {
    let pool = Pool::new(1);
    let (killed, peer) = (Stage::new(), Stage::new());
    let turns = "--lease-duration=4s";
    killed.proxy.next("POST", "configmaps", Fault::HoldBefore);
    let mut process = pool.start(&killed, &[turns]);
    eventually(120, "it works", || (killed.proxy.count("POST", "configmaps") > 0).then_some(()));
    let holder = text(&pool.place(0)["spec"]["holderIdentity"]);
    assert!(!holder.is_empty());
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let began = std::time::Instant::now();
    let ran = pool.apply(&peer, &[turns]).expect_ok("a peer");
    println!(
        "pool: the place of one that was killed was had, and the work done, after {:?}",
        began.elapsed()
    );
    assert!(!ran.stderr.contains(SAID), "{}", ran.stderr);
    let place = pool.place(0);
    assert_eq!(text(&place["spec"]["holderIdentity"]), "");
    assert_eq!(place["spec"]["leaseTransitions"], 1, "{place}");
    peer.assert_all("1");
}

#[test]
fn one_place_is_enough_for_all_clusters_of_a_process() {
    let pool = Pool::new(1);
    let (one, two) = (Stage::new(), Stage::new());
    let access = || one.proxy.access("writer");
    let more = [pool.flag.as_str(), "--request-timeout=1h", "--timeout=10h", "--lease-duration=2m"];
    let mut command = one.command(&[("test", access()), ("two", access())], &more);
    let map = |name: &str, cluster: &str, stage: &Stage| json!({ "name": name, "clusters": { cluster: [stage.namespace] } });
    let maps = json!({ "alpha/*": map("alpha", "test", &one), "beta/*": map("beta", "two", &two) });
    std::fs::write(one.rules(&[]), json!({ "config_updater": { "maps": maps } }).to_string()).unwrap();
    let paths = [&one, &two].map(|stage| format!("/namespaces/{}/configmaps", stage.namespace));
    paths.iter().for_each(|path| one.proxy.next("POST", path, Fault::HoldBefore));
    let mut process = Background::start(&mut command, &one.world.dir().join("pooled.log"));
    for path in &paths {
        eventually(120, "both are at work", || (one.proxy.count("POST", path) > 0).then_some(()));
    }
    one.proxy.release();
    succeeds(&mut process);
    assert_eq!((one.values().len(), two.values().len()), (1, 1), "{}", process.log());
    let writes = pool.requests().into_iter().filter(Audited::is_write);
    assert_eq!(writes.map(|request| request.verb).collect::<Vec<_>>(), ["create", "update"]);
}

#[test]
fn where_no_place_can_be_had_the_work_is_done_and_it_is_said_once() {
    let stage = Stage::new();
    let fails = |ran: &Ran, why: &str| {
        assert!(ran.ok(), "{why}: {}{}", ran.stdout, ran.stderr);
        let said: Vec<&str> = ran.stderr.lines().filter(|line| line.contains(SAID)).collect();
        assert!(said.len() == 1 && said[0].contains(why), "{why}: {}", ran.stderr);
    };
    // No right.
    let nowhere = Kubernetes::shared().namespace("pool");
    let flag = |namespace: &str| format!("--lease-pool={namespace}/places:3");
    fails(&stage.apply(&[&flag(&nowhere)]), "right to get leases");
    stage.assert_all("1");
    // No such namespace.
    stage.commit("2");
    let admin = [("test", stage.proxy.access("admin"))];
    fails(
        &run::to_end(&mut stage.command(&admin, &[&flag("absent")])),
        "the namespace absent does not exist",
    );
    stage.assert_all("2");
    // No such server: the rules are for another one.
    stage.commit("3");
    let (address, _held) = crate::common::refusing();
    let gone = Access { server: format!("https://{address}"), ..Kubernetes::shared().access("writer") };
    let contexts = [("gone", gone), ("test", stage.proxy.access("writer"))];
    let mut command = stage.command(&contexts, &[&flag(&nowhere)]);
    let _: PathBuf = stage.rules(&["test"]);
    fails(&run::to_end(&mut command), "cannot connect to");
    stage.assert_all("3");
    // It could only be meant the other way.
    let neither = stage.apply(&[&flag(&nowhere), "--lease-duration=0s"]);
    assert_eq!(neither.status.code(), Some(2), "{}", neither.stderr);
    assert!(neither.complaint().contains("--lease-pool"), "{}", neither.stderr);
}

#[test]
fn places_that_stay_taken_are_not_waited_for_for_ever() {
    let (pool, stage) = (Pool::new(1), Stage::new());
    pool.hold(0, 1);
    // Its patience is fifteen durations; each look finds a Lease that was just renewed.
    let mut waits = pool.start(&stage, &["--lease-duration=1s"]);
    let status = eventually(300, "it goes on without", || {
        pool.hold(0, 1);
        waits.child.try_wait().unwrap()
    });
    assert!(status.success(), "{}", waits.log());
    stage.assert_all("1");
}

#[test]
fn one_that_waits_for_a_place_ends_when_it_is_told_to() {
    let (pool, stage) = (Pool::new(2), Stage::new());
    let held = [0, 1].map(|number| pool.hold(number, 3_600));
    let mut waits = pool.start(&stage, &["--lease-duration=1h", "--timeout=10h"]);
    let looks = || stage.proxy.count("GET", &format!("{}/leases/places-1", pool.namespace));
    eventually(120, "it waits", || (looks() >= 2).then_some(()));
    kill_process(Pid::from_child(&waits.child), Signal::TERM).unwrap();
    let status = eventually(60, "it ends", || waits.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "{}", waits.log());
    for map in MAPS {
        assert!(waits.log().contains(&format!("{map}: skipped")), "{}", waits.log());
    }
    assert!(!waits.log().contains(SAID) && stage.values().is_empty(), "{}", waits.log());
    assert_eq!([0, 1].map(|number| pool.place(number)), held, "they are somebody else's");
    assert!(pool.requests().iter().all(|request| request.verb == "get"));
}
