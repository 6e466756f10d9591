//! Everything at once, for an hour: a root and a cluster follow one remote that moves all the time and fails at times,
//! readers pin and read, and both processes are restarted, by SIGTERM and by SIGKILL. What a process holds, and what the
//! root takes, is the same at the end as when it was warm.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use treeswap::pin::{Options, Pin};

use crate::Allowed;
use crate::common::http_backend::{Canned, HttpBackend, Kind};
use crate::common::sidecar::{Held, disk};
use crate::common::{Files, Random, Sidecar, World, eventually, full};
use crate::kubernetes::{Kubernetes, kubeconfig, text};

const FILES: usize = 30;
/// So many publications until a new process holds what it will hold: where there is a mirror with a history already, a
/// megabyte more than at first.
fn warm() -> u64 {
    if full() { WARM } else { 40 }
}

/// In the hour, a process is warm after so many publications, and ended after so many.
const WARM: u64 = 1_000;
const OF_LIFE: u64 = 5_000;

/// What a process may hold more than when it was warm, however long it ran: the threads of its pool, of which a busy
/// machine needs more than an idle one (see [`crate::POOLED`]), and the memory that allocators keep.
const LEFTOVERS: Allowed = Allowed { threads: crate::POOLED, kibibytes: 4096 };

/// In the hour, what leaks so many bytes in each publication has to be noticed within one life of a process.
const LEAK: u64 = 5_000;
const _: () = assert!(LEAK * (OF_LIFE - WARM) > 2 * (LEFTOVERS.kibibytes << 10));

/// What a mirror holds that no generation needs, before it is fetched anew.
const GARBAGE: u64 = 64 << 20;

/// Thirty files in five directories, each of which names the revision.
fn revision(number: u64) -> Files {
    (0..FILES).fold(Files::new(), |files, file| {
        files.file(format!("dir-{}/{file}", file % 5), format!("{number} {}", "x".repeat(file * 40)))
    })
}

/// The revision of the whole tree as a pin shows it.
fn read(root: &Path) -> Result<u64, String> {
    let pin = Pin::take(root, &Options::default()).map_err(|error| error.to_string())?;
    let mut numbers = Vec::new();
    for file in 0..FILES {
        let path = pin.path().join(format!("dir-{}/{file}", file % 5));
        let content =
            std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        numbers.push(content.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX));
    }
    let first = numbers[0];
    numbers.iter().all(|number| *number == first).then_some(first).ok_or(format!("mixed: {numbers:?}"))
}

/// Readers that pin and read until they are dropped.
struct Readers {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Readers {
    fn start(root: &Path, count: u64) -> Self {
        let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..count).map(|seed| {
            let (root, stop, reads) = (root.to_owned(), Arc::clone(&stop), Arc::clone(&reads));
            std::thread::spawn(move || {
                let (mut random, mut newest) = (Random::new(seed + 7), 0);
                while !stop.load(Ordering::Relaxed) {
                    let number = read(&root).unwrap();
                    assert!(number >= newest, "{number} after {newest}");
                    newest = number;
                    reads.fetch_add(1, Ordering::Relaxed);
                    random.pause(60);
                }
            })
        });
        let threads = threads.collect();
        Self { stop, reads, threads }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("what a reader saw was one revision");
        }
        self.reads.load(Ordering::Relaxed)
    }
}

/// The remote, sick when told.
struct Server {
    backend: HttpBackend,
    sick: Arc<AtomicBool>,
}

impl Server {
    fn start(world: &World) -> Self {
        let sick = Arc::new(AtomicBool::new(false));
        let (asked, is_sick) = (AtomicU64::new(0), Arc::clone(&sick));
        let hook = move |_: &_| {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            is_sick.load(Ordering::Relaxed).then(|| match number % 3 {
                0 => Canned::hang_up(),
                1 => Canned::status(503, "later"),
                _ => Canned::status(200, "a page"),
            })
        };
        let kind = Kind { hook: Some(Box::new(hook)), ..Kind::default() };
        Self { backend: HttpBackend::start(world.dir(), kind), sick }
    }
}

struct Soak {
    world: World,
    server: Server,
    namespace: String,
    random: Random,
    published: u64,
    faults: u64,
}

/// A process, and what it held when it was warm.
struct Life {
    sidecar: Sidecar,
    since: u64,
    warm: Option<Held>,
}

impl Soak {
    fn new() -> Self {
        let world = World::new();
        let kubernetes = Kubernetes::shared();
        let namespace = kubernetes.namespace("soak");
        let verbs = ["get", "list", "create", "update", "delete"];
        let rights = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]);
        kubernetes.grant(&namespace, "writer", &rights);
        kubeconfig(&world.dir().join("kubeconfig"), &[("test", kubernetes.access("writer"))]);
        let map = json!({ "name": "jobs", "clusters": { "test": [namespace] } });
        let rules = json!({ "config_updater": { "maps": { "dir-1/*": map } } });
        std::fs::write(world.dir().join("rules.yaml"), rules.to_string()).unwrap();
        let server = Server::start(&world);
        Self { world, server, namespace, random: Random::new(14), published: 0, faults: 0 }
    }

    fn start(&self, publishes: bool) -> Life {
        let mut command = self.world.treeswap(&["sync", "--ref=main", "--period=50ms", "--min-interval=0s"]);
        command.args(["--max-backoff=200ms", "--http-bind=127.0.0.1:0"]);
        command.arg("--repo").arg(self.server.backend.url("remote"));
        if publishes {
            command.arg("--grace=300ms").arg("--root").arg(&self.world.root);
        } else {
            command.args(["--owner=test", "--lease-duration=0s"]);
            command.arg("--rules").arg(self.world.dir().join("rules.yaml"));
            command.arg("--kubeconfig").arg(self.world.dir().join("kubeconfig"));
        }
        let log = if publishes { "root.log" } else { "cluster.log" };
        Life {
            sidecar: Sidecar::logging(&self.world.dir().join(log), &mut command),
            since: self.published,
            warm: None,
        }
    }

    /// A commit, now and then with a sick remote for a while, until it is published.
    fn publish(&mut self) {
        self.published += 1;
        self.world.remote.commit(&revision(self.published));
        if self.published.is_multiple_of(29) {
            self.faults += 1;
            self.server.sick.store(true, Ordering::Relaxed);
            self.random.pause(300);
            self.server.sick.store(false, Ordering::Relaxed);
        }
        let path = self.world.root.join("..data/dir-0/0");
        let is = format!("{} ", self.published);
        eventually(60, "the commit is published", || {
            std::fs::read_to_string(&path).is_ok_and(|content| content == is).then_some(())
        });
    }

    fn applied(&self) -> Option<u64> {
        let object = Kubernetes::shared().configmap(&self.namespace, "jobs");
        text(&object["data"]["1"]).split(' ').next()?.parse().ok()
    }

    /// Both are where the remote is, and nothing is under way.
    fn settles(&self, root: &Life, cluster: &Life) {
        eventually(60, "the cluster follows", || (self.applied() == Some(self.published)).then_some(()));
        root.sidecar.idle(10);
        cluster.sidecar.idle(10);
        let newest = self.world.remote.tip("refs/heads/main").unwrap();
        eventually(60, "the root is right", || self.world.differences(&newest).is_empty().then_some(()));
    }
}

impl Life {
    /// Notes what it holds at rest once it is warm; later fails the test if it holds more.
    #[track_caller]
    fn stays_flat(&mut self, what: &str, published: u64) {
        if published < self.since + warm() {
            return;
        }
        let Some(warm) = self.warm else {
            self.warm = Some(self.sidecar.rests());
            return;
        };
        crate::flat(&self.sidecar, what, warm, LEFTOVERS);
    }

    fn ends(mut self, by_kill: bool) {
        if by_kill {
            self.sidecar.process.child.kill().unwrap();
            self.sidecar.process.ended();
        } else {
            assert!(self.sidecar.process.terminate().success(), "{}", self.sidecar.process.log());
        }
    }
}

#[test]
fn an_hour_of_everything_at_once_leaves_nothing_behind() {
    let (least, publications, of_life) =
        if full() { (Duration::from_secs(3600), 20_000, OF_LIFE) } else { (Duration::ZERO, 100, 50) };
    let began = Instant::now();
    let mut soak = Soak::new();
    let (mut root, mut cluster) = (soak.start(true), soak.start(false));
    soak.publish();
    let readers = Readers::start(&soak.world.root, 3);
    let (mut restarts, mut first, mut largest) = (0u64, None, 0);
    while soak.published < publications || began.elapsed() < least {
        soak.publish();
        if soak.published.is_multiple_of(10) {
            largest = largest.max(disk(&soak.world.root));
        }
        if soak.published.is_multiple_of(of_life / 2) || soak.published == root.since + warm() {
            soak.settles(&root, &cluster);
            root.stays_flat("the root's process", soak.published);
            cluster.stays_flat("the cluster's process", soak.published);
            let now = (root.sidecar.rests(), cluster.sidecar.rests(), disk(&soak.world.root));
            if root.warm.is_some() {
                first.get_or_insert(now);
            }
            println!(
                "soak minute={:.1} published={} root={:?} cluster={:?} disk={} at most {largest}",
                began.elapsed().as_secs_f32() / 60.0,
                soak.published,
                now.0,
                now.1,
                now.2
            );
        }
        if soak.published.is_multiple_of(of_life) && soak.published < publications {
            // Ends in the middle of something.
            soak.world.remote.commit(&revision(soak.published));
            soak.random.pause(80);
            let by_kill = restarts.is_multiple_of(2);
            root.ends(by_kill);
            cluster.ends(!by_kill);
            restarts += 1;
            (root, cluster) = (soak.start(true), soak.start(false));
        }
    }
    soak.settles(&root, &cluster);
    let reads = readers.end();
    assert!(reads > soak.published && soak.faults > 0, "{reads} reads, {} faults", soak.faults);
    let (rested, _, small) = first.expect("it was warm");
    crate::flat(&root.sidecar, "living again", rested, LEFTOVERS);
    assert!(largest < 8 * small + GARBAGE, "the root grew from {small} to {largest} bytes");
    eventually(30, "only the current generation is left", || {
        crate::common::root::left_behind(&soak.world.root, 1).is_empty().then_some(())
    });
    println!(
        "soak minutes={:.1} published={} faults={} restarts={restarts} reads={reads}",
        began.elapsed().as_secs_f32() / 60.0,
        soak.published,
        soak.faults
    );
    root.ends(false);
    cluster.ends(false);
}
