//! What one dead, one hanging and one slow remote cost the others: nothing.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::http_backend::{Canned, Hit, HttpBackend, Kind};
use crate::common::sources_world::{SourcesWorld, rows, source};
use crate::common::{Files, Remote, Sidecar, eventually, full, noise, refusing};
use crate::port::{self, Port, Relay, behaviour};

const HEALTHY: usize = 5;

/// Remotes behind ports of their own, so that each can become sick.
struct Ward {
    many: SourcesWorld,
    healthy: Vec<Remote>,
    _daemon: Port,
    pushed: usize,
}

impl Ward {
    fn new() -> Self {
        let many = SourcesWorld::new();
        let healthy: Vec<Remote> = (0..HEALTHY).map(|n| many.remote(&format!("healthy-{n}"))).collect();
        for remote in &healthy {
            remote.commit(&Files::new().file("n", "0"));
        }
        let _daemon = Port::open(port::daemon(many.world.dir()));
        Self { many, healthy, _daemon, pushed: 0 }
    }

    fn well(&self) -> Vec<String> {
        let one =
            |(n, remote): (usize, &Remote)| source(&format!("healthy-{n}"), remote, &format!(", to: h{n}"));
        self.healthy.iter().enumerate().map(one).collect()
    }

    /// One more commit in one of the healthy, and how long it takes until it is served.
    fn latency(&mut self) -> f64 {
        self.pushed += 1;
        let (number, which) = (self.pushed.to_string(), self.pushed % HEALTHY);
        self.healthy[which].commit_on("next", &Files::new().file("n", number.clone()));
        let next = self.healthy[which].tip("next").unwrap();
        let served = self.many.world.root.join(format!("..data/h{which}/n"));
        let began = Instant::now();
        self.healthy[which].reset(&next);
        while std::fs::read_to_string(&served).ok().as_ref() != Some(&number) {
            assert!(began.elapsed() < Duration::from_secs(100), "a healthy one waits for the sick");
            std::thread::sleep(Duration::from_micros(300));
        }
        let took = began.elapsed().as_secs_f64();
        std::thread::sleep(Duration::from_millis(150)); // the spare is made
        took
    }

    fn latencies(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.latency()).collect()
    }
}

fn sick(name: &str, url: &str) -> String {
    format!("name: {name}, repo: '{url}', ref: main, to: {name}, optional: true")
}

fn is_late(sidecar: &Sidecar, name: &str) -> bool {
    rows(sidecar).iter().any(|row| row["name"] == name && row["late"] == true)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{:.0} ms ({:.0}-{:.0})", median(values) * 1e3, least * 1e3, most * 1e3)
}

#[test]
fn one_dead_one_hanging_and_one_slow_remote_cost_the_others_nothing() {
    let mut ward = Ward::new();
    let (dead, _held) = refusing();
    let hanging = Port::open(behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop)));
    let slow_one = ward.many.remote("slow");
    slow_one.commit(&Files::new().file("noise", noise(1, 300_000)));
    let pause = Some(Duration::from_millis(2));
    let slow = Port::open(Relay { pause, ..Relay::all(ward._daemon.address) }.behaviour());
    let mut eight = ward.well();
    eight.push(sick("dead", &format!("http://{dead}/x")));
    eight.push(sick("hanging", &format!("http://{}/x", hanging.address)));
    eight.push(sick("slow", &format!("git://{}/slow", slow.address)));
    ward.many.list(&ward.well());
    let sidecar = ward.many.sidecar(&["--idle-timeout=30s"]);
    eventually(60, "the five", || ward.many.world.root.join("..data/h4/n").exists().then_some(()));
    ward.latencies(3);
    let (rounds, count) = if full() { (8, 15) } else { (2, 5) };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        alone.extend(ward.latencies(count));
        ward.many.list(&eight);
        let all = || (is_late(&sidecar, "hanging") && is_late(&sidecar, "slow")).then_some(());
        eventually(60, "the sick are asked", all);
        beside.extend(ward.latencies(count));
        ward.many.list(&ward.well());
        eventually(60, "the sick are gone", || (rows(&sidecar).len() == HEALTHY).then_some(()));
    }
    let ratio = median(&beside) / median(&alone);
    println!(
        "from push to swap, {} commits each: five alone {}, beside a dead, a hanging and a slow one {}: {ratio:.2} times",
        alone.len(),
        spread(&alone),
        spread(&beside)
    );
    // Polls of the sick are not waited for: PATIENCE alone would be a second.
    assert!(median(&beside) < median(&alone) * if full() { 1.5 } else { 4.0 } + 0.05, "{beside:?}");
}

#[test]
fn packs_that_trickle_hold_no_other_up() {
    let mut ward = Ward::new();
    let slow: Vec<Remote> = (0..3).map(|n| ward.many.remote(&format!("slow-{n}"))).collect();
    let ports: Vec<Port> =
        slow.iter().map(|_| Port::open(Relay::all(ward._daemon.address).behaviour())).collect();
    for remote in &slow {
        remote.commit(&Files::new().file("f", "1"));
    }
    let mut all = ward.well();
    let urls = ports.iter().enumerate().map(|(n, port)| (n, format!("git://{}/slow-{n}", port.address)));
    all.extend(urls.map(|(n, url)| sick(&format!("slow-{n}"), &url)));
    ward.many.list(&all);
    let sidecar = ward.many.sidecar(&["--idle-timeout=30s"]);
    let root = ward.many.world.root.clone();
    eventually(60, "all", || root.join("..data/slow-2/f").exists().then_some(()));
    // The first answer of each comes as it should; what it then sends, a large pack or a small one, does not end.
    for (n, (remote, port)) in slow.iter().zip(&ports).enumerate() {
        let pause = Some(Duration::from_millis(if n == 0 { 1 } else { 5 }));
        port.behave(Relay { pause, ..Relay::all(ward._daemon.address) }.behaviour());
        remote.commit(&Files::new().file("f", noise(n as u64, if n == 0 { 2_000_000 } else { 60_000 })));
    }
    let trickle = || (0..3).all(|n| is_late(&sidecar, &format!("slow-{n}"))).then_some(());
    eventually(60, "they trickle", trickle);
    std::thread::sleep(Duration::from_secs(3)); // their packs have begun
    assert!(trickle().is_some());
    let took = ward.latencies(HEALTHY);
    println!("beside three packs that trickle, {} commits from push to swap: {}", took.len(), spread(&took));
    assert!(trickle().is_some(), "they were to last longer than this");
    assert!(took.iter().all(|took| *took < 20.0), "{took:?}");
}

#[test]
fn a_commit_that_is_too_large_is_fetched_once_and_a_server_that_wants_a_pause_has_it() {
    let mut ward = Ward::new();
    let (large, busy) = (ward.many.remote("large"), ward.many.remote("busy"));
    large.commit(&Files::new().file("f", "1"));
    busy.commit(&Files::new().file("f", "1"));
    let is_busy = Arc::new(AtomicBool::new(false));
    let hook = {
        let is_busy = Arc::clone(&is_busy);
        move |_: &Hit| {
            let answer = Canned::status(503, "busy").header("Retry-After", "600");
            is_busy.load(Ordering::Relaxed).then_some(answer)
        }
    };
    let server =
        HttpBackend::start(ward.many.world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let mut all = ward.well();
    all.push(source("large", &large, ", to: large"));
    all.push(sick("busy", &server.url("busy")));
    ward.many.list(&all);
    let sidecar = ward.many.sidecar(&["--max-fetch-bytes=100Ki"]);
    let root = ward.many.world.root.clone();
    eventually(60, "all", || {
        (root.join("..data/large/f").exists() && root.join("..data/busy/f").exists()).then_some(())
    });
    let before = sidecar.metric("treeswap_fetched_bytes_total");
    is_busy.store(true, Ordering::Relaxed);
    large.commit(&Files::new().file("f", noise(1, 400_000)));
    let failing = || {
        let rows = rows(&sidecar);
        rows.iter().filter(|row| row["error"].is_string()).count() == 2
    };
    eventually(60, "both fail", || failing().then_some(()));
    let (asked, came) = (server.hits().len(), sidecar.metric("treeswap_fetched_bytes_total"));
    assert!(came > before, "nothing of it came");
    sidecar.idle(100); // ten times its longest pause
    assert_eq!(server.hits().len(), asked, "it wanted to be left alone");
    assert_eq!(sidecar.metric("treeswap_fetched_bytes_total"), came, "the same pack came again");
    assert!(failing());
    // What is next in that repository is fetched at once.
    large.commit(&Files::new().file("f", "2"));
    let served = root.join("..data/large/f");
    eventually(60, "the next commit", || (std::fs::read(&served).ok()? == b"2").then_some(()));
    ward.latency();
}
