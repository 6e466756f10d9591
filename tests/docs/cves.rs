//! Each row of the known CVEs is answered, and the tests and releases that answer them exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{document, home};

/// The cells of all rows of the tables whose first column has this heading.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let mut within = false;
    let mut found = Vec::new();
    for line in page.lines() {
        let cells = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |"));
        let Some(cells) = cells else {
            within = false;
            continue;
        };
        let cells: Vec<String> = cells.split(" | ").map(|cell| cell.trim().to_owned()).collect();
        if within && cells[0] != "---" {
            found.push(cells);
        } else if cells[0] == heading {
            within = true;
        }
    }
    found
}

/// The names of all tests below a directory.
fn tests_below(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_below(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut marked = false;
            for line in std::fs::read_to_string(&path).unwrap().lines().map(str::trim) {
                if line == "#[test]" || line.starts_with("#[tokio::test") {
                    marked = true;
                } else if let Some(rest) =
                    line.trim_start_matches("async ").strip_prefix("fn ").filter(|_| marked)
                {
                    into.extend(rest.split('(').next().map(str::to_owned));
                    marked = false;
                }
            }
        }
    }
}

/// Three numbers, so that they compare.
fn numbers(version: &str) -> Vec<u32> {
    let core = version.split(['-', '+']).next().unwrap();
    core.split('.').map(|number| number.parse().unwrap_or_else(|_| panic!("{version}"))).collect()
}

/// Versions of the crates in `Cargo.lock`.
fn locked() -> BTreeMap<String, Vec<Vec<u32>>> {
    let lock = document("Cargo.lock");
    let mut crates: BTreeMap<String, Vec<Vec<u32>>> = BTreeMap::new();
    for package in lock.split("[[package]]\n").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_matches(['=', ' ', '"']).to_owned()
        };
        crates.entry(value("name")).or_default().push(numbers(&value("version")));
    }
    crates
}

/// What is wrong with how a row is answered.
fn fault(answer: &str, tests: &BTreeSet<String>, crates: &BTreeMap<String, Vec<Vec<u32>>>) -> Option<String> {
    let says = |words: &str| answer.strip_prefix(words).is_some_and(|why| !why.trim().is_empty());
    if let Some(release) = answer.strip_prefix("mended in ") {
        let (name, version) = release.split_once(' ').unwrap_or((release, "999.0.0"));
        let used = crates.get(name).map(Vec::as_slice).unwrap_or_default();
        let mended = !used.is_empty() && used.iter().all(|used| *used >= numbers(version));
        return (!mended).then(|| format!("Cargo.lock has {used:?} of {name}"));
    }
    if says("not here: ") || says("open: ") {
        return None;
    }
    let missing = answer.split(", ").find(|name| {
        let name = name.strip_prefix('`').and_then(|name| name.strip_suffix('`'));
        name.is_none_or(|name| !tests.contains(name))
    });
    missing.map(|name| format!("{name} is no test, and nothing else that would do"))
}

#[test]
fn every_known_cve_is_answered() {
    let (page, crates) = (document("docs/reference/cves.md"), locked());
    let mut tests = BTreeSet::new();
    ["src", "tests"].iter().for_each(|top| tests_below(&home().join(top), &mut tests));
    assert!(tests.len() > 800, "the tests were not found");
    let classes: BTreeSet<String> = rows(&page, "class").into_iter().map(|row| row[0].clone()).collect();
    let rows = rows(&page, "CVE");
    assert!(rows.len() > 100 && classes.len() > 5, "the tables were not found");
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for row in &rows {
        let [id, what, class, answer] = &row[..] else { panic!("{row:?} has not four cells") };
        // What has no number is called by what has it.
        assert!(["CVE-", "GHSA-", "RUSTSEC-", "defect of "].iter().any(|kind| id.starts_with(kind)), "{id}");
        assert!(seen.insert(id), "{id} is there twice");
        assert!(!what.is_empty() && classes.contains(class), "{id} is of the class {class:?}");
        wrong.extend(fault(answer, &tests, &crates).map(|why| format!("{id}: {why}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_answer_that_is_none_would_be_noticed() {
    let tests = BTreeSet::from(["one".to_owned(), "two".to_owned()]);
    let crates = BTreeMap::from([("russh".to_owned(), vec![vec![0, 65, 1]])]);
    for good in ["`one`", "`one`, `two`", "not here: no such thing is done", "mended in russh 0.65.1"] {
        assert_eq!(fault(good, &tests, &crates), None, "{good}");
    }
    for bad in [
        "",
        "`three`",
        "`one`, `three`",
        "one",
        "not here: ",
        "mended in russh",
        "mended in russh 0.66.0",
        "mended in x 1.0.0",
    ] {
        assert!(fault(bad, &tests, &crates).is_some(), "{bad}");
    }
}

#[test]
fn the_crates_nearest_to_the_network_are_ours() {
    let rows = rows(&document("SECURITY.md"), "crate");
    let crates = locked();
    assert_eq!(rows.len(), 11);
    for row in rows {
        assert!(row.len() == 5 && crates.contains_key(row[0].trim_matches('`')), "{row:?}");
    }
}
