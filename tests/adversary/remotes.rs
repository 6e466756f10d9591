//! Five repositories on three transports, whose servers hang, die and refuse for a while.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::beside::Beside;
use crate::common::Random;
use crate::common::http_backend::{Canned, HttpBackend, Kind};
use crate::common::sources_world::SourcesWorld;
use crate::common::sshd::{self, Sshd};
use crate::common::{Remote, World};
use crate::pool::Pool;
use crate::port::{self, Cut, Port, Relay, behaviour};
use crate::together::Writer;

/// A ref that is a source: its name, which is where it is placed, too; the repository; the ref.
pub const SOURCES: [(&str, usize, &str); 6] = [
    ("http", 0, "main"),
    ("old-http", 1, "main"),
    ("ssh", 2, "main"),
    ("local", 3, "main"),
    ("x", 4, "x"),
    ("y", 4, "y"),
];

/// The repositories' words.
const WORDS: [&str; 5] = ["http", "old-http", "ssh", "local", "daemon"];

pub struct Remotes {
    pub many: SourcesWorld,
    pub pools: Vec<Pool>,
    remotes: Vec<Remote>,
    /// Of each source, the commits that its ref ever named.
    named: Mutex<Vec<BTreeSet<usize>>>,
    /// What the first server does: nothing unusual, refuse, hang up, hang.
    mood: Arc<AtomicUsize>,
    transactions: Mutex<Writer>,
    sshd: Sshd,
    port: Port,
    behind: Port,
    _http: [HttpBackend; 2],
}

impl Remotes {
    pub fn new(commits: usize) -> Self {
        let many = SourcesWorld::new();
        let remotes: Vec<Remote> = WORDS.iter().map(|word| many.remote(word)).collect();
        let pool = |word: &&str| Pool::new(&many.world.dir().join(format!("pool-{word}")), word, commits);
        let pools: Vec<Pool> = WORDS.iter().map(pool).collect();
        let mood = Arc::new(AtomicUsize::new(0));
        let http = [moody(&many.world, &mood), old(&many.world)];
        let sshd = Sshd::start(&many.world.dir().join("sshd"), &["ed25519"]);
        let behind = Port::open(port::daemon(many.world.dir()));
        let port = Port::open(Relay::all(behind.address).behaviour());
        let this = Self {
            named: Mutex::new(vec![BTreeSet::new(); SOURCES.len()]),
            transactions: Mutex::new(Writer::new(&remotes[4])),
            many,
            pools,
            remotes,
            mood,
            sshd,
            port,
            behind,
            _http: http,
        };
        this.list();
        for source in 0..SOURCES.len() - 2 {
            this.push(source, 0);
        }
        this.push_both(0);
        this
    }

    /// Two programs of one ref each of the last repository, and a volume of both.
    pub fn beside(&self) -> Beside<'_> {
        Beside::start(&self.many.world, &self.remotes[4], &self.daemon())
    }

    /// Where the last repository is served.
    fn daemon(&self) -> String {
        format!("git://{}/daemon", self.port.address)
    }

    fn list(&self) {
        let dir = self.many.world.dir();
        let (key, hosts) = (dir.join("key"), dir.join("known_hosts"));
        sshd::keygen(&key, &["-t", "ed25519"]);
        self.sshd.authorize(&key);
        std::fs::write(&hosts, self.sshd.known("ed25519")).unwrap();
        let ssh =
            format!("ssh://{}@127.0.0.1:{}{}", sshd::user(), self.sshd.port, self.remotes[2].path.display());
        let credentials =
            format!("{{ssh-key-file: {}, ssh-known-hosts-file: {}}}", key.display(), hosts.display());
        let repos = [
            self._http[0].url("http"),
            self._http[1].url("old-http"),
            ssh,
            format!("file://{}", self.remotes[3].path.display()),
            self.daemon(),
        ];
        let line = |(name, repo, asked): &(&str, usize, &str)| {
            let more = if *repo == 2 { format!(", credentials: {credentials}") } else { String::new() };
            format!("name: {name}, repo: '{}', ref: {asked}, to: {name}{more}", repos[*repo])
        };
        self.many.list(&SOURCES.iter().map(line).collect::<Vec<_>>());
    }

    fn remote(&self, source: usize) -> PathBuf {
        self.remotes[SOURCES[source].1].path.clone()
    }

    /// From now on the ref may be found to name it.
    fn will_name(&self, source: usize, number: usize) {
        self.named.lock().unwrap()[source].insert(number);
    }

    pub fn has_named(&self, source: usize, number: usize) -> bool {
        self.named.lock().unwrap()[source].contains(&number)
    }

    /// Whatever the ref named before: most of these are forced.
    fn push(&self, source: usize, number: usize) {
        self.will_name(source, number);
        let (_, repo, asked) = SOURCES[source];
        assert!(self.pools[repo].push(&self.remote(source), &[(number, &format!("refs/heads/{asked}"))]));
    }

    /// What the last source's ref names while the one before names this: the two move together.
    pub fn partner(&self, number: usize) -> usize {
        self.pools[0].commits.len() - 1 - number
    }

    /// Both refs of the last repository in one transaction.
    fn push_both(&self, number: usize) {
        let (x, y) = (SOURCES.len() - 2, SOURCES.len() - 1);
        let (pool, partner) = (&self.pools[SOURCES[x].1], self.partner(number));
        let staged = [(number, "refs/heads/staged-x"), (partner, "refs/heads/staged-y")];
        assert!(pool.push(&self.remote(x), &staged));
        self.will_name(x, number);
        self.will_name(y, partner);
        let [at_x, at_y] = [number, partner].map(|number| &pool.commits[number]);
        self.transactions.lock().unwrap().both(at_x, at_y);
    }

    /// Transactions so far that could be read in their middle.
    pub fn stalls(&self) -> usize {
        self.transactions.lock().unwrap().stalls
    }

    /// The ref is away for a moment.
    fn remove(&self, source: usize, number: usize, random: &mut Random) {
        let (_, repo, asked) = SOURCES[source];
        self.remotes[repo].git(&["update-ref", "-d", &format!("refs/heads/{asked}")]);
        random.pause(60);
        self.push(source, number);
    }

    /// Pushes at random until told to stop; how often.
    pub fn write(&self, stop: &AtomicBool) -> usize {
        let mut random = Random::new(12);
        let mut pushes = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = random.below(self.pools[0].commits.len());
            match random.below(12) {
                0..7 => self.push(random.below(SOURCES.len() - 2), number),
                7..11 => self.push_both(number),
                _ => self.remove(random.below(SOURCES.len() - 2), number, &mut random),
            }
            pushes += 1;
            let most = if random.below(8) == 0 { 150 } else { 10 };
            random.pause(most);
        }
        pushes
    }

    /// Makes servers sick at random until told to stop; how often.
    pub fn disturb(&self, stop: &AtomicBool) -> usize {
        let mut random = Random::new(7);
        let silent = behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop));
        let mut times = 0;
        while !stop.load(Ordering::Relaxed) {
            match random.below(3) {
                0 => self.mood.store(1 + random.below(3), Ordering::Relaxed),
                1 => self.sshd.cut(),
                _ => self.port.behave(match random.below(4) {
                    0 => silent.clone(),
                    1 => behaviour(|_| Ok(())),
                    2 => {
                        Relay::cut_at(self.behind.address, random.below(3000) as u64, Cut::Reset).behaviour()
                    }
                    _ => Relay::cut_at(self.behind.address, random.below(3000) as u64, Cut::Fin).behaviour(),
                }),
            }
            times += 1;
            random.pause(250);
            self.heal();
            random.pause(150);
        }
        times
    }

    fn heal(&self) {
        self.mood.store(0, Ordering::Relaxed);
        self.port.behave(Relay::all(self.behind.address).behaviour());
    }
}

/// Refuses, hangs up or hangs as it is told to.
fn moody(world: &World, mood: &Arc<AtomicUsize>) -> HttpBackend {
    let mood = Arc::clone(mood);
    let hook = move |_: &_| match mood.load(Ordering::Relaxed) {
        1 => Some(Canned::status(503, "busy")),
        2 => Some(Canned::hang_up()),
        3 => {
            std::thread::sleep(Duration::from_millis(1500));
            Some(Canned::hang_up())
        }
        _ => None,
    };
    HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() })
}

/// Knows protocol version 0 only, and ends each connection after three requests.
fn old(world: &World) -> HttpBackend {
    HttpBackend::start(
        world.dir(),
        Kind { only_v0: true, requests_per_connection: Some(3), ..Kind::default() },
    )
}
