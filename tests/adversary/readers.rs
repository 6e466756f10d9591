//! Pinned readers beside it all: every read shows one recorded set, and of each source one commit that its ref named.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use treeswap::pin::{Options, Pin};

use crate::common::{Sidecar, eventually, full};
use crate::pool::{COPIES, content, paths};
use crate::remotes::{Remotes, SOURCES};

const READERS: usize = 3;

/// The number of each source's commit.
type Set = [usize; SOURCES.len()];

/// What one reader saw: the set of each generation, and how often it read.
#[derive(Default)]
struct Saw {
    sets: BTreeMap<String, Set>,
    reads: u64,
    /// Whole trees compared entry by entry.
    whole: u64,
    /// Sets compared with the public record, while they were held.
    recorded: u64,
}

#[test]
fn pinned_readers_see_recorded_sets_only() {
    let least: u64 = if full() { 10_000_000 } else { 30_000 };
    let swaps: usize = if full() { 1_000 } else { 12 };
    // Who has less time than all of it takes says so, and gets what fits.
    let seconds: Option<u64> = std::env::var("TREESWAP_TEST_SECONDS").ok().map(|s| s.parse().unwrap());
    let longest = Duration::from_secs(seconds.unwrap_or(3600));
    let remotes = Remotes::new(if full() { 2_000 } else { 300 });
    let more = ["--grace=0s", "--connect-timeout=1s", "--idle-timeout=1s", "--sync-timeout=5s"];
    let sidecar = remotes.many.sidecar(&more);
    let root = &remotes.many.world.root;
    eventually(60, "the first set", || root.join("..data").exists().then_some(()));
    let beside = remotes.beside();
    let (stop, enough, reads) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let (mut saw, mut pushes, mut disturbed, mut others) = (Vec::new(), 0, 0, None);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| remotes.write(&stop));
        let disturber = scope.spawn(|| remotes.disturb(&stop));
        let reader_beside = scope.spawn(|| beside.read(|x, y| remotes.partner(x) == y, &stop));
        let reader = |_| scope.spawn(|| read_on(&remotes, &enough, &reads));
        let readers: Vec<_> = (0..READERS).map(reader).collect();
        while !readers.iter().any(|reader| reader.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            let done = reads.load(Ordering::Relaxed) >= least && published(&sidecar).len() >= swaps;
            if done || began.elapsed() > longest {
                break;
            }
        }
        enough.store(true, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        saw = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        pushes = writer.join().unwrap();
        disturbed = disturber.join().unwrap();
        others = Some(reader_beside.join().unwrap());
    });
    let recorded = published(&sidecar);
    let mut sets = BTreeMap::new();
    for (generation, set) in saw.iter().flat_map(|saw| &saw.sets) {
        let first = sets.entry(generation.clone()).or_insert(*set);
        assert_eq!(first, set, "two readers saw {generation} otherwise");
        judge(&remotes, generation, set, &recorded);
    }
    let count = |of: fn(&Saw) -> u64| saw.iter().map(of).sum::<u64>();
    let failures = sidecar.process.log().matches("is not at the newest commit of its ref").count();
    let pairs: BTreeSet<(usize, usize)> =
        sets.values().map(|set| (set[SOURCES.len() - 2], set[SOURCES.len() - 1])).collect();
    let (apart, stalls) = (pairs.iter().filter(|(x, y)| remotes.partner(*x) != *y).count(), remotes.stalls());
    println!(
        "{} pinned reads of {} sources ({} compared whole, {} with the record while held): 0 mixed; {} of {} generations \
         seen; {pushes} pushes, {disturbed} disturbances, {failures} failures said; \
         of {} pairs of refs that move together {apart} torn, {stalls} transactions were slow; {:.0} s",
        count(|saw| saw.reads),
        SOURCES.len(),
        count(|saw| saw.whole),
        count(|saw| saw.recorded),
        sets.len(),
        recorded.len(),
        pairs.len(),
        began.elapsed().as_secs_f32()
    );
    others.into_iter().flatten().for_each(|line| println!("{line}"));
    assert!(apart <= stalls, "refs of one repository come from one moment");
    let is_all = count(|saw| saw.reads) >= least && recorded.len() >= swaps;
    assert!(is_all || seconds.is_some(), "an hour was not enough for {least} reads of {swaps} swaps");
    assert!(sets.len() > 3 && failures > 0 && count(|saw| saw.recorded) > 0, "too little happened");
}

/// The sets that the log says were published, by generation: names, and beginnings of commits' ids.
fn published(sidecar: &Sidecar) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for line in sidecar.process.log().lines() {
        let Some((_, rest)) = line.split_once("\"message\":\"published ") else { continue };
        let (message, _) = rest.split_once('"').unwrap();
        let (head, set) = message.split_once(": ").unwrap();
        let generation = head.split(' ').nth(2).unwrap();
        let part =
            |part: &str| part.split_once(' ').map(|(name, id)| (name.to_owned(), id.to_owned())).unwrap();
        all.insert(generation.to_owned(), set.split(", ").map(part).collect());
    }
    all
}

/// What was seen is what was recorded, and what the refs named.
fn judge(
    remotes: &Remotes,
    generation: &str,
    set: &Set,
    recorded: &BTreeMap<String, BTreeMap<String, String>>,
) {
    let recorded = recorded.get(generation).unwrap_or_else(|| panic!("{generation} was never published"));
    assert_eq!(recorded.len(), SOURCES.len(), "{recorded:?}");
    for (source, ((name, repo, _), number)) in SOURCES.iter().zip(set).enumerate() {
        assert_eq!(remotes.pools[*repo].number(&recorded[*name]), Some(*number), "{generation}: {name}");
        assert!(remotes.has_named(source, *number), "{generation}: {name} never named its commit {number}");
    }
}

fn read_on(remotes: &Remotes, enough: &AtomicBool, reads: &AtomicU64) -> Saw {
    let mut saw = Saw::default();
    let (root, copies) = (&remotes.many.world.root, copies());
    while !enough.load(Ordering::Relaxed) {
        let pin = Pin::take(root, &Options::default()).unwrap();
        let set = read(&pin, &copies).unwrap_or_else(|wrong| panic!("{}: {wrong}", pin.location().display()));
        saw.reads += 1;
        if saw.reads.is_multiple_of(64) {
            reads.fetch_add(64, Ordering::Relaxed);
        }
        let generation = pin.generation().to_str().unwrap();
        let is_new = match saw.sets.get(generation) {
            Some(before) => {
                assert_eq!(*before, set, "{generation} changed");
                false
            }
            None => saw.sets.insert(generation.to_owned(), set).is_none(),
        };
        if is_new || saw.reads.is_multiple_of(1024) {
            whole(&pin, &set);
            saw.whole += 1;
        }
        if is_new && saw.sets.len().is_multiple_of(8) {
            held(remotes, generation, &set);
            saw.recorded += 1;
        }
    }
    saw
}

/// The word that a source's files begin with, and the paths of its copies.
struct Copies {
    word: &'static str,
    paths: [CString; 2],
}

/// Those of all sources: made once, since they are read millions of times.
fn copies() -> [Copies; SOURCES.len()] {
    SOURCES.map(|(name, repo, _)| Copies {
        word: if repo == 4 { "daemon" } else { name },
        paths: COPIES.map(|copy| CString::new(format!("{name}/{copy}")).unwrap()),
    })
}

/// The set that the files' contents tell; an error where one source's files disagree.
fn read(pin: &Pin, all: &[Copies; SOURCES.len()]) -> Result<Set, String> {
    let mut set = [0; SOURCES.len()];
    for (Copies { word, paths }, number) in all.iter().zip(&mut set) {
        let [first, second] = [&paths[0], &paths[1]].map(|path| number_in(pin, word, path));
        *number = first?;
        let second = second?;
        if second != *number {
            return Err(format!("{paths:?} are of two commits: {number} and {second}"));
        }
    }
    Ok(set)
}

fn number_in(pin: &Pin, word: &str, path: &CStr) -> Result<usize, String> {
    let mut text = [0; 64];
    let file = rustix::fs::openat(pin.dir(), path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let length = file.and_then(|file| rustix::io::read(file, &mut text));
    let text = &text[..length.map_err(|error| format!("{path:?}: {error}"))?];
    let number = text.strip_prefix(word.as_bytes()).and_then(|rest| std::str::from_utf8(rest).ok());
    let number = number.and_then(|number| number.trim_ascii().parse().ok());
    number.ok_or_else(|| format!("{path:?}: {:?}", String::from_utf8_lossy(text)))
}

/// Nothing is missing, and nothing is too much.
fn whole(pin: &Pin, set: &Set) {
    let found = crate::common::Snapshot::read(&pin.path()).unwrap();
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for ((name, ..), number) in SOURCES.iter().zip(set) {
        expected.push((*name).into());
        expected.extend(paths(*number).iter().map(|path| format!("{name}/{path}").into_bytes()));
    }
    expected.sort();
    assert_eq!(found.0.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    for ((name, repo, _), number) in SOURCES.iter().zip(set) {
        let word = if *repo == 4 { "daemon" } else { name };
        let file = format!("{name}/d{}/only-{number}", number % 4).into_bytes();
        let node =
            crate::common::tree::Node::File { executable: false, content: content(word, *number).into() };
        assert_eq!(found.0[&file], node);
    }
}

/// The public record names the set of a generation that somebody holds.
fn held(remotes: &Remotes, generation: &str, set: &Set) {
    let record = remotes.many.world.root.join("..treeswap/status.json");
    let sources = eventually(60, "the record names the generation", || {
        let status: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).ok()?).ok()?;
        let retired = status["retired"].as_array()?.iter();
        let mut all = retired.chain(std::iter::once(&status["current"]));
        Some(all.find(|one| one["name"] == generation)?["commit"]["sources"].clone())
    });
    for ((name, repo, _), number) in SOURCES.iter().zip(set) {
        let source = sources.as_array().unwrap().iter().find(|source| source["name"] == *name).unwrap();
        assert_eq!(source["revision"], remotes.pools[*repo].commits[*number], "{generation}: {name}");
    }
}
