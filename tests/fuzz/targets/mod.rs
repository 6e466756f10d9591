//! What must hold of every parser of what others wrote, whatever they wrote: one list of targets, each a function of
//! bytes that panics where a property does not hold. libFuzzer runs them (`tests/nightly fuzz`), and so does
//! `cargo test --lib fuzz::`, with the corpus in `testdata/fuzz` and inputs made of it.
//!
//! Each file of targets is compiled as a part of the module whose private functions it needs, and only for tests and
//! for fuzzing (`cfg(fuzzing)`, which cargo-fuzz sets, too): what is shipped knows nothing of them.

mod input;
mod names;
mod records;
#[cfg(test)]
mod stable;
mod texts;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

pub(crate) use input::Input;

/// One of them.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which its corpus has, too.
    pub name: &'static str,
    /// Panics where a property does not hold.
    pub run: fn(&[u8]),
}

impl Target {
    pub(crate) const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run }
    }

    /// Runs it as in a new process, as far as secrets go: what an input makes known would be looked for in all later ones.
    pub fn try_on(&self, data: &[u8]) {
        crate::secret::fuzz::forget_all();
        (self.run)(data);
    }
}

/// All of them.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    let all: [&'static [Target]; 13] = [
        crate::mirror::pack_fuzz::TARGETS,
        crate::mirror::wire::fuzz::TARGETS,
        crate::mirror::wire::ssh::fuzz::TARGETS,
        crate::mirror::fuzz::TARGETS,
        crate::mirror::modules_fuzz::TARGETS,
        crate::store::fuzz::TARGETS,
        crate::config::fuzz::TARGETS,
        crate::admin::fuzz::TARGETS,
        crate::cluster::fuzz::TARGETS,
        crate::secret::fuzz::TARGETS,
        records::TARGETS,
        texts::TARGETS,
        names::TARGETS,
    ];
    all.into_iter().flatten()
}

/// A directory that is emptied at each call.
pub(crate) struct Scratch(tempfile::TempDir);

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

impl Scratch {
    /// Calls with an empty directory, in memory where there is such a file system.
    pub(crate) fn with<T>(act: impl FnOnce(&Path) -> T) -> T {
        let taken = SCRATCH.with(|scratch| scratch.borrow_mut().take());
        let scratch = taken.unwrap_or_else(|| {
            let memory = PathBuf::from("/dev/shm");
            let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
            Self(tempfile::Builder::new().prefix("treeswap-fuzz-").tempdir_in(above).unwrap())
        });
        for entry in std::fs::read_dir(scratch.0.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        let result = act(scratch.0.path());
        SCRATCH.with(|kept| *kept.borrow_mut() = Some(scratch));
        result
    }
}

/// What a target puts where a secret belongs. No output of ours has a word of it by chance.
pub(crate) const SECRET: &str = "Zq7kV2xW9pL4";

/// Runs what waits for nothing but bytes that are here.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    }
    RUNTIME.with(|runtime| runtime.block_on(work))
}
