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
