//! treeswap keeps a directory equal to a revision of a git repository, so that whoever reads the directory only ever
//! sees one complete revision, for as long as they need it.
//!
//! # Floors
//!
//! Arrows only point down; modules on one floor do not know each other (the top floor is a chain). `tests/floors.rs`
//! fails on an upward or sideways one.
//!
//! ```text
//! 5 edges     main -> cli -> app -> config
//! 4 drivers   sync   deliver (a revision's ConfigMaps to many clusters)
//! 3 adapters  mirror (only git2, and git's wire protocol)   store (the root)
//!             cluster (only kube)   hooks   watch (only notify)   admin (HTTP)   telemetry
//! 2 rules     phase (sync's states)   retention (keep or reap, and why)   configmap (rules and trees to ConfigMaps)
//! 1 terms     revision   generation   payload
//! 0 ground    fsx   clock   human   repeats   retry   secret   shutdown   tls   user
//! ```
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod configmap;
pub mod deliver;
pub mod fsx;
pub mod generation;
pub mod hooks;
pub mod human;
pub mod mirror;
pub mod payload;
pub mod phase;
mod repeats;
pub mod retention;
pub mod retry;
pub mod revision;
pub mod secret;
pub mod shutdown;
pub mod store;
pub mod sync;
pub mod telemetry;
pub mod tls;
pub mod user;
pub mod watch;
