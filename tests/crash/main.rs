//! Kill at every instant: a tracer of our own ends treeswap before each system call that changes something in the
//! root, one run per call, and the checker says what a consumer then finds, at once and after the next starts.

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
