//! What kubelet's AtomicWriter does and what its watchers see, and what Prow's config-updater makes of rules and
//! files, as data, held against treeswap.
//!
//! The files are read from the directory that `TREESWAP_VECTORS` names, `testdata/vectors` by default; a file that is
//! not there is no error. Where a case has a field `treeswap`, that is what we do instead of upstream. What does not
//! apply is listed with its reason; a listed name that no file has any more fails, so that no list grows stale.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod atomic_writer;
mod better;
#[path = "../common/blobs.rs"]
mod blobs;
mod inotify;
mod limits;
mod maps;
mod plans;
mod yaml;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// The directory that the vectors are in, and whether it is the repository's own.
fn directory() -> (PathBuf, bool) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/vectors");
    match std::env::var_os("TREESWAP_VECTORS") {
        Some(other) => (other.into(), false),
        None => (own, true),
    }
}

/// Every file of a kind: `kind.json`, `kind-more.json`.
fn files(kind: &str) -> Vec<Value> {
    let (directory, _) = directory();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(kind) && name.ends_with(".json")
        })
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            serde_json::from_slice(&std::fs::read(path).unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect()
}

/// The cases of a section over all files of a kind.
fn cases(files: &[Value], section: &str) -> Vec<Value> {
    files.iter().flat_map(|file| file[section].as_array().cloned().unwrap_or_default()).collect()
}

/// What came of the cases of one kind of file.
#[derive(Default)]
struct Outcome {
    passed: usize,
    excused: BTreeSet<String>,
    wrong: Vec<String>,
    all: BTreeSet<String>,
}

impl Outcome {
    /// Notes one case: an excuse from the list beats the check.
    fn case(&mut self, id: &str, excuses: &[(&str, &str)], check: impl FnOnce() -> Result<(), String>) {
        self.all.insert(id.to_owned());
        if excuses.iter().any(|(excused, _)| *excused == id) {
            self.excused.insert(id.to_owned());
            return;
        }
        match check() {
            Ok(()) => self.passed += 1,
            Err(why) => self.wrong.push(format!("{id}: {why}")),
        }
    }

    /// Fails the test if a case failed, or if an excuse is for a case that the repository's own files do not have.
    #[track_caller]
    fn finish(self, kind: &str, excuses: &[(&str, &str)]) {
        println!("{kind}: {} cases held, {} do not apply:", self.passed, self.excused.len());
        for (id, reason) in excuses.iter().filter(|(id, _)| self.excused.contains(*id)) {
            println!("  {id}: {reason}");
        }
        assert!(self.wrong.is_empty(), "{kind}: {} cases:\n{}", self.wrong.len(), self.wrong.join("\n"));
        if directory().1 {
            let stale: Vec<_> = excuses.iter().filter(|(id, _)| !self.all.contains(*id)).collect();
            assert!(stale.is_empty(), "{kind}: reasons for cases that are not there: {stale:?}");
            assert!(self.passed > 0, "{kind}: no case was found");
        }
    }
}

/// One starts processes, the other counts events: a child holds a copy of every open file between fork and exec, so
/// that a file written meanwhile is closed late, and inotify says so.
static APART: Mutex<()> = Mutex::new(());

#[test]
fn atomic_writer() {
    let _apart = APART.lock().unwrap_or_else(PoisonError::into_inner);
    atomic_writer::check();
}

#[test]
fn inotify_sequences() {
    let _apart = APART.lock().unwrap_or_else(PoisonError::into_inner);
    inotify::check();
}

#[test]
fn globs() {
    maps::globs();
}

#[test]
fn partition() {
    maps::partition();
}

#[test]
fn validate() {
    maps::validate();
}

#[test]
fn filter_changes() {
    plans::filter_changes();
}

#[test]
fn bootstrap() {
    plans::bootstrap();
}

#[test]
fn update() {
    plans::update();
}

#[test]
fn real_rules() {
    maps::real_rules();
}
