//! Crash tests: a tracer kills treeswap before each system call that changes something in the root, one run per call.
//! Then a checker verifies what a reader finds, at once and after the next starts.

#![allow(unreachable_pub)] // a test binary exports nothing

#[path = "../common/mod.rs"]
mod common;
mod filter;
mod points;
mod recycle;
mod scenario;
mod seeded;
mod sources;
mod tracer;

mod decision;
mod selftest;
mod sweeps;
