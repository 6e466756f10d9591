//! treeswap keeps a directory equal to a revision of a git repository, so that its readers only ever see
//! one complete revision, for as long as they need it.
//!
//! # Floors
//!
//! A module may use only modules with a lower number in `tests/floors`, which fails on a violation. The drawing shows
//! the tens digit as the floor; the inputs are the upper part of floor 3. Floor 0, the inputs, floor 1 and floor 5 have
//! an order within.
//!
//! ```text
//! 5 edges     main -> cli -> app -> config
//! 4 drivers   sync   deliver (a revision's ConfigMaps to many clusters)
//!   inputs    sources (which revision a ref names)   desired (a tree and rules to what clusters should hold)
//! 3 adapters  mirror (only git2, and git's wire protocol)   store (the root)
//!             cluster (only kube)   hooks   watch (only notify)   pin   admin (HTTP)   telemetry
//! 2 rules     phase (sync's states)   retention (keep or reap, and why)   configmap (rules and trees to ConfigMaps)
//! 1 terms     revision   generation   payload   marker (the inventory of a namespace, and complete sets)
//! 0 ground    secret   tls
//!             descendants   detached_io   fsx   clock   human   repeats   retry   sandbox
//!             sha256   shutdown   threads   user
//! ```
//!
//! # Features
//!
//! `program`, on by default, is the program `treeswap` and everything that it needs. A consumer of a directory that
//! treeswap keeps needs little of it: with `default-features = false` the library is [`pin`], which pins a generation
//! while it is read, and [`watch`], which waits for swaps and for complete sets of ConfigMaps, with [`marker`] and
//! [`generation`], which these two use.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(feature = "program")]
pub mod admin;
#[cfg(feature = "program")]
pub mod app;
#[cfg(feature = "program")]
pub mod cli;
pub mod clock;
#[cfg(feature = "program")]
pub mod cluster;
#[cfg(feature = "program")]
pub mod config;
#[cfg(feature = "program")]
pub mod configmap;
#[cfg(feature = "program")]
pub mod deliver;
#[cfg(feature = "program")]
mod descendants;
#[cfg(feature = "program")]
pub mod desired;
#[cfg(feature = "program")]
mod detached_io;
pub mod fsx;
#[cfg(all(feature = "program", any(test, fuzzing)))]
#[doc(hidden)]
#[path = "../tests/fuzz/targets/mod.rs"]
pub mod fuzz;
pub mod generation;
#[cfg(feature = "program")]
pub mod hooks;
#[cfg(feature = "program")]
pub mod human;
pub mod marker;
#[cfg(feature = "program")]
pub mod mirror;
#[cfg(feature = "program")]
pub mod payload;
#[cfg(feature = "program")]
pub mod phase;
pub mod pin;
#[cfg(feature = "program")]
mod repeats;
#[cfg(feature = "program")]
pub mod retention;
#[cfg(feature = "program")]
pub mod retry;
pub mod revision;
#[cfg(feature = "program")]
pub mod sandbox;
#[cfg(feature = "program")]
pub mod secret;
#[cfg(feature = "program")]
mod sha256;
#[cfg(feature = "program")]
pub mod shutdown;
#[cfg(feature = "program")]
pub mod sources;
#[cfg(feature = "program")]
pub mod store;
#[cfg(feature = "program")]
pub mod sync;
#[cfg(feature = "program")]
pub mod telemetry;
#[cfg(feature = "program")]
mod threads;
#[cfg(feature = "program")]
pub mod tls;
#[cfg(feature = "program")]
pub mod user;
pub mod watch;
