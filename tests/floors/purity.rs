//! What the lower floors do without: the rules and terms (floors 1 and 2) without clocks, I/O and async code; the ground
//! (floor 0) and the store without async code. The lists below are the exceptions; a stale one fails, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::circles::outside_of_tests;
use super::{FLOORS, code, sources};

/// The files of floors 1 and 2 that read a clock. To all others the time is an argument.
const READ_CLOCKS: &[&str] = &[
    "configmap/matches.rs", // ends matching that takes too long
    "phase.rs",             // when a remote answered, and whether a loop is late
];

/// How a clock is read.
const CLOCKS: &[&str] = &[
    "clock::now(",
    "clock::monotonic(",
    "Instant::now(",
    "SystemTime::now(",
    "Timestamp::now(",
    "Zoned::now(",
    ".elapsed(",
];

/// What does I/O, or starts threads and processes.
const IO: &[&str] =
    &["std::fs", "std::net", "std::process", "std::thread", "fs_err", "fsx::", "rustix", "tokio"];

/// A type among those that is only data: the status shows who holds a pin.
const DATA: &str = "fsx::Holder";

/// The files of floor 0 with async code: what waits for programs, for files that may hang, and for signals.
const ASYNC: &[&str] = &["descendants.rs", "detached_io.rs", "secret.rs", "shutdown.rs", "shutdown/init.rs"];

/// The code outside of tests of the modules that `wanted` takes by name and floor, by path below `src`.
fn files(wanted: impl Fn(&str, u8) -> bool) -> BTreeMap<String, String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&src, &mut paths);
    let mut found = BTreeMap::new();
    for path in paths {
        let inner = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let mut parts = inner.split('/').map(|part| part.trim_end_matches(".rs"));
        let is_test = parts.clone().any(|part| matches!(part, "tests" | "testing"));
        let module = parts.next().unwrap();
        let number = FLOORS.iter().find(|(name, _)| *name == module).map(|(_, number)| number / 10);
        if !is_test && number.is_some_and(|floor| wanted(module, floor)) {
            found.insert(inner, outside_of_tests(&code(&path)));
        }
    }
    assert!(found.len() > 20, "the sources were not found");
    found
}

/// The files that have one of these words.
fn with<'f>(files: &'f BTreeMap<String, String>, words: &[&str]) -> BTreeSet<&'f str> {
    let has = |text: &str| words.iter().any(|word| text.contains(word));
    files.iter().filter(|(_, text)| has(text)).map(|(path, _)| path.as_str()).collect()
}

fn set<'s>(paths: &[&'s str]) -> BTreeSet<&'s str> {
    paths.iter().copied().collect()
}

#[test]
fn rules_and_terms_read_no_clock_but_for_those_listed() {
    let rules = files(|_, floor| matches!(floor, 1 | 2));
    assert_eq!(with(&rules, CLOCKS), set(READ_CLOCKS), "the time is an argument");
}

#[test]
fn rules_and_terms_do_no_io() {
    let mut rules = files(|_, floor| matches!(floor, 1 | 2));
    rules.values_mut().for_each(|text| *text = text.replace(DATA, ""));
    assert_eq!(with(&rules, IO), set(&[]), "a rule returns a plan, and an adapter carries it out");
}

#[test]
fn the_lower_floors_and_the_store_are_blocking_code_but_for_those_listed() {
    let lower = files(|module, floor| floor < 3 || module == "store");
    assert_eq!(with(&lower, &["async ", ".await"]), set(ASYNC), "drivers call this on blocking threads");
}
