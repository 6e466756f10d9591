//! Several sources (`--sources`) under remotes that push, hang, die and refuse at random, from outside: what pinned readers
//! see, what becomes of two refs that move together, and what a sick remote costs the healthy ones.
//!
//! `cargo test` runs a sample; with `TREESWAP_TESTS=full` the numbers are those of `tests/nightly adversary`. Whatever is
//! random comes from a seed. Figures go to standard output, a line each.
#![allow(unreachable_pub, missing_docs)] // a test binary exports nothing

mod beside;
#[path = "../common/mod.rs"]
mod common;
mod pool;
#[allow(dead_code)] // it has more than is needed here
#[path = "../servers/port.rs"]
mod port;
mod readers;
mod remotes;
mod sick;
mod together;
