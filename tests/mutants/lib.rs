//! The modules whose mutants `tests/mutants/run` tries, and what they use.
#![allow(dead_code)] // most of what uses them is not here

pub mod clock;
pub mod configmap;
pub mod detached_io;
pub mod fsx;
pub mod generation;
pub mod human;
pub mod marker;
pub mod mirror;
pub mod payload;
pub mod phase;
pub mod retention;
pub mod retry;
pub mod revision;
pub mod secret;
pub mod sha256;

/// What the fuzz targets in these modules use. They are compiled with the tests, but not run here.
#[cfg(test)]
mod fuzz {
    pub(crate) use crate::fuzz_input::Input;

    pub struct Target;

    impl Target {
        pub(crate) const fn new(_name: &'static str, _run: fn(&[u8])) -> Self {
            Self
        }
    }
}

#[cfg(test)]
#[path = "../tests/fuzz/targets/input.rs"]
mod fuzz_input;
