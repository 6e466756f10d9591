//! Model tests: generated histories of odd trees are pushed to a real treeswap while faults are injected. A reader
//! checks what it sees against a model that comes from the generator alone (`tree`, `judge`). A failing history is
//! reduced, and printed with a command line that repeats it. One run of a history is called a life.
//!
//! `cargo test` runs some seconds of it. With `TREESWAP_TESTS=full`, as in `tests/nightly model`, it runs until 100,000
//! generations and 10,000 faults, or for `TREESWAP_TEST_SECONDS`; `TREESWAP_TEST_SEED` is the seed of the first
//! history.
#![allow(unreachable_pub, missing_docs)] // a test binary exports nothing

#[path = "../common/mod.rs"]
mod common;
mod fakes;
mod faults;
#[path = "../crash/filter.rs"]
mod filter;
mod history;
mod judge;
mod life;
#[allow(dead_code)] // only a part is used here
#[path = "../servers/port.rs"]
mod port;
#[allow(dead_code)] // the same
#[path = "../crash/tracer.rs"]
mod tracer;
mod tree;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{full, git_sync, mounts};
use fakes::{Fake, WRONG, Wrong};
use history::History;
use life::{Lived, Program, live};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Runs lives of treeswap until `enough` returns true. A failing history is reduced, and fails the test.
fn lives(enough: impl Fn(&Lived, Duration) -> bool + Sync) -> Lived {
    let began = Instant::now();
    let next = AtomicU64::new(number("TREESWAP_TEST_SEED").unwrap_or(1));
    let sum = Mutex::new(Lived::default());
    let failed = Mutex::new(None);
    let over = AtomicBool::new(false);
    let worker = || {
        while !over.load(Ordering::Relaxed) {
            let history = History::new(next.fetch_add(1, Ordering::Relaxed));
            let history = if full() { history } else { history.only(|step| step < SAMPLE) };
            match treeswap(&history) {
                Ok(lived) => {
                    let mut sum = sum.lock().unwrap();
                    sum.add(lived);
                    if enough(&sum, began.elapsed()) {
                        over.store(true, Ordering::Relaxed);
                    }
                }
                Err(wrong) => {
                    over.store(true, Ordering::Relaxed);
                    failed.lock().unwrap().get_or_insert((history, wrong));
                }
            }
        }
    };
    std::thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(worker))));
    if let Some((history, wrong)) = failed.into_inner().unwrap() {
        println!("life {}: {wrong}\n{:?} {:?}", history.seed, history.how, history.ways);
        fail(&reduced(history, wrong));
    }
    let sum = sum.into_inner().unwrap();
    println!("{} in {:.0} s: 0 violations", sum.line(), began.elapsed().as_secs_f32());
    sum
}

/// Runs one life of treeswap. A panic of the test itself is returned as an error, so that the history can be reduced.
fn treeswap(history: &History) -> Result<Lived, String> {
    let life = std::panic::AssertUnwindSafe(|| live(history, &mut Program::Treeswap));
    std::panic::catch_unwind(life).unwrap_or_else(|_| Err("the test ended in the panic above".into()))
}

/// The number of steps of a life in the tests that every change must pass.
const SAMPLE: usize = 130;

/// The number of lives that run at the same time.
const WORKERS: usize = 3;

impl Lived {
    fn add(&mut self, other: Self) {
        self.lives += 1;
        self.pushes += other.pushes;
        self.generations += other.generations;
        self.reads += other.reads;
        self.pins += other.pins;
        other.faults.into_iter().for_each(|(kind, count)| *self.faults.entry(kind).or_default() += count);
    }

    fn faults(&self) -> usize {
        self.faults.values().sum()
    }

    fn line(&self) -> String {
        let kinds: Vec<String> =
            self.faults.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        format!(
            "{} lives: {} pushes, {} generations seen and compared whole ({} reads), {} pins held, {} faults ({})",
            self.lives,
            self.pushes,
            self.generations,
            self.reads,
            self.pins,
            self.faults(),
            kinds.join(", ")
        )
    }
}

/// Removes steps for up to ten minutes, 150 s in the short run, as long as the history still fails. Returns it with its error.
fn reduced(mut history: History, mut wrong: String) -> (History, String) {
    let end = Instant::now() + Duration::from_secs(if full() { 600 } else { 150 });
    history.patience = Duration::from_secs(8);
    let fails = |history: &History| (0..2).find_map(|_| treeswap(history).err());
    let mut piece = history.steps.len() / 2;
    while piece > 0 && Instant::now() < end {
        let mut from = 0;
        while from < history.steps.len() && Instant::now() < end {
            let numbers: Vec<usize> = history.steps.iter().map(|(number, _)| *number).collect();
            let without = &numbers[from..(from + piece).min(numbers.len())];
            let fewer = history.only(|step| !without.contains(&step));
            match fails(&fewer) {
                Some(how) => (history, wrong) = (fewer, how),
                None => from += piece,
            }
        }
        piece /= 2;
    }
    (history, wrong)
}

/// Fails the test with the steps of the history and the command that repeats it.
fn fail((history, wrong): &(History, String)) -> ! {
    let steps: Vec<String> =
        history.steps.iter().map(|(number, step)| format!("{number} {step:?}")).collect();
    panic!(
        "{wrong}\n{:?} {:?}\n{}\nTREESWAP_TEST_MODEL='{}' cargo test --locked --test model repeat",
        history.how,
        history.ways,
        steps.join("\n"),
        history.name()
    );
}

#[test]
fn every_life_shows_whole_revisions_and_in_the_end_the_newest() {
    mounts::mounting("every_life_shows_whole_revisions_and_in_the_end_the_newest", || {
        let limit = number("TREESWAP_TEST_SECONDS").map(Duration::from_secs);
        let limit = limit.or_else(|| (!full()).then_some(Duration::from_secs(12)));
        let reached = |sum: &Lived| sum.generations >= 100_000 && sum.faults() >= 10_000;
        let sum = lives(|sum, time| limit.map_or_else(|| reached(sum), |limit| time > limit));
        assert!(sum.generations > 50 && sum.faults() > 5 && sum.pins > 3, "too little happened");
    });
}

/// Runs the history that `TREESWAP_TEST_MODEL` names, or else the beginning of the first one.
#[test]
fn repeat() {
    mounts::mounting("repeat", || {
        let name = std::env::var("TREESWAP_TEST_MODEL").unwrap_or_else(|_| "1:0-90".into());
        let history = History::named(&name);
        assert_eq!(history.name(), History::named(&history.name()).name());
        match treeswap(&history) {
            Ok(lived) => println!("{name}: {lived:?}"),
            Err(wrong) => fail(&(history, wrong)),
        }
    });
}

#[test]
fn what_must_never_be_seen_is_seen_by_the_judge() {
    mounts::mounting("what_must_never_be_seen_is_seen_by_the_judge", || {
        let mut history = history::of_every_kind();
        let with = |history: &History, wrong| live(history, &mut Program::Fake(Fake::new(wrong)));
        let lived = with(&history, Wrong::No).expect("a publisher that does nothing wrong");
        assert_eq!((lived.generations, lived.pins), (5, 1));
        history.patience = Duration::from_secs(2);
        let missed: Vec<&str> =
            WRONG.iter().filter(|(_, wrong)| with(&history, *wrong).is_ok()).map(|(what, _)| *what).collect();
        println!("seeded violations: {} of {} found", WRONG.len() - missed.len(), WRONG.len());
        assert!(missed.is_empty(), "not found: {missed:?}");
    });
}

/// The control: the judge finds violations of other programs. That is `git checkout` in the directory that is read and,
/// if TREESWAP_TEST_GIT_SYNC names its binary, git-sync.
#[test]
fn others_are_caught() {
    mounts::mounting("others_are_caught", || {
        let history = history::of_every_kind();
        let wrong = live(&history, &mut Program::Fake(Fake::new(Wrong::Checkout)))
            .expect_err("git checkout in place");
        println!("git checkout in place: {}", wrong.lines().next().unwrap());
        if let Some(path) = git_sync::program() {
            let mut history = history;
            history.how.git_sync = true;
            history.how.keep_links = true;
            let wrong = live(&history, &mut Program::GitSync(path)).expect_err("git-sync");
            println!("git-sync: {}", wrong.lines().next().unwrap());
        }
    });
}
