//! Two refs of one repository that always move together, under ref transactions: no generation has one of them without the
//! other. Beside it, at full size, what others get of the same refs who ask for each by itself.
//!
//! git writes the refs of a transaction one after the other, and a server reads them one by one, so that an answer may be
//! torn; treeswap asks until two rounds agree. That is beaten where a transaction itself takes longer than the pause
//! between the rounds, on a machine that is busy: such transactions are counted, and so many torn pairs are allowed.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use treeswap::pin::{Options, Pin};

use crate::beside::{Beside, number};
use crate::common::Random;
use crate::common::http_backend::{HttpBackend, Kind};
use crate::common::sources_world::SourcesWorld;
use crate::common::{Remote, eventually, full};
use crate::pool::Pool;

/// A transaction that takes so long can be read in its middle twice.
const STALL: Duration = Duration::from_millis(20);

/// Moves two refs in one transaction, through one long-lived git.
pub struct Writer {
    git: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Transactions that could be read in their middle.
    pub stalls: usize,
}

impl Writer {
    pub fn new(remote: &Remote) -> Self {
        let mut git = remote.command(&["update-ref", "--stdin"]);
        let mut git = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (git.stdin.take().unwrap(), git.stdout.take().unwrap());
        Self { git, input, output: BufReader::new(output), stalls: 0 }
    }

    fn said(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.ends_with(": ok\n"), "{line}");
    }

    pub fn both(&mut self, x: &str, y: &str) {
        write!(self.input, "start\nupdate refs/heads/x {x}\nupdate refs/heads/y {y}\nprepare\n").unwrap();
        self.input.flush().unwrap();
        self.said();
        self.said();
        let began = Instant::now();
        writeln!(self.input, "commit").unwrap();
        self.input.flush().unwrap();
        self.said();
        self.stalls += usize::from(began.elapsed() > STALL);
    }

    fn end(mut self) -> usize {
        drop(self.input);
        assert!(self.git.wait().unwrap().success());
        self.stalls
    }
}

/// What readers of one root see: pairs, and those that are torn, by generation.
#[derive(Default)]
struct Pairs {
    reads: u64,
    generations: BTreeSet<String>,
    torn: BTreeSet<String>,
}

fn pairs(root: &Path, stop: &AtomicBool) -> Pairs {
    let mut pairs = Pairs::default();
    while !stop.load(Ordering::Relaxed) {
        let pin = Pin::take(root, &Options::default()).unwrap();
        let [x, y] = ["x/k0", "y/k0"].map(|path| number(std::fs::read_to_string(pin.path().join(path))));
        assert!(x.is_some() && y.is_some(), "{}", pin.location().display());
        let generation = pin.generation().to_string_lossy().into_owned();
        pairs.reads += 1;
        if x != y {
            pairs.torn.insert(generation.clone());
        }
        pairs.generations.insert(generation);
        drop(pin);
        std::thread::sleep(Duration::from_micros(500));
    }
    pairs
}

/// Bursts of transactions, then a moment in which the refs can be read.
fn transactions(remote: &Remote, pool: &Pool, count: usize, reachable: impl Fn(usize) -> bool) -> usize {
    let mut random = Random::new(5);
    let mut writer = Writer::new(remote);
    let mut done = 0;
    while done < count {
        let most = if random.below(4) == 0 { 300 } else { 12 };
        let burst = 1 + random.below(most);
        for _ in 0..burst.min(count - done) {
            // Another number each time: none that was there a moment ago.
            let id = &pool.commits[done % pool.commits.len()];
            writer.both(id, id);
            done += 1;
            std::thread::sleep(Duration::from_micros(random.below(400) as u64));
        }
        if random.below(4) == 0 {
            let last = (done - 1) % pool.commits.len();
            eventually(60, "the last pair is published", || reachable(last).then_some(()));
        }
        random.pause(60);
    }
    writer.end()
}

fn run(way: &str, count: usize, url: impl Fn(&SourcesWorld, &HttpBackend, &Remote) -> String) {
    let many = SourcesWorld::new();
    let remote = many.remote("both");
    let pool = Pool::new(&many.world.dir().join("pool"), "both", 1_000);
    let all: Vec<(usize, String)> = (0..pool.commits.len()).map(|n| (n, format!("refs/all/{n}"))).collect();
    for some in all.chunks(250) {
        let refs: Vec<(usize, &str)> = some.iter().map(|(n, name)| (*n, name.as_str())).collect();
        assert!(pool.push(&remote.path, &refs));
    }
    remote.git(&["update-ref", "refs/heads/x", &pool.commits[999]]);
    remote.git(&["update-ref", "refs/heads/y", &pool.commits[999]]);
    let server = HttpBackend::start(many.world.dir(), Kind::default());
    let url = url(&many, &server, &remote);
    let of = |name: &str| format!("name: {name}, repo: '{url}', ref: {name}, to: {name}");
    many.list(&[of("x"), of("y")]);
    let sidecar = many.sidecar(&["--grace=0s"]);
    let root = &many.world.root;
    eventually(60, "the first pair", || root.join("..data").exists().then_some(()));
    let beside = full().then(|| Beside::start(&many.world, &remote, &url));
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| pairs(root, &stop));
        let others = beside.as_ref().map(|beside| scope.spawn(|| beside.read(|x, y| x == y, &stop)));
        let reachable = |last| number(std::fs::read_to_string(root.join("..data/x/k0"))) == Some(last);
        let stalls = transactions(&remote, &pool, count, reachable);
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let seen = reader.join().unwrap();
        println!(
            "two refs of one repository over {way}: {count} transactions, {stalls} longer than {STALL:?}; {} reads of {} \
             generations, {} of them torn; {:.0} s",
            seen.reads,
            seen.generations.len(),
            seen.torn.len(),
            began.elapsed().as_secs_f32()
        );
        for line in others.into_iter().flat_map(|others| others.join().unwrap()) {
            println!("{line}");
        }
        assert!(seen.torn.len() <= stalls, "torn, though no transaction was slow: {:?}", seen.torn);
        assert!(seen.generations.len() > count / 400, "too little was published");
    });
    let log = sidecar.process.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn two_refs_that_move_together_are_published_together() {
    let count = if full() { 50_000 } else { 600 };
    run("HTTP", count, |_, server, _| server.url("both"));
    run("a local path", count, |_, _, remote| remote.path.display().to_string());
}
