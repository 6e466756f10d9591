//! ConfigMaps delivered to a real API server: races, real rule files, drift, refs that move, and the command itself.
#![allow(missing_docs, unreachable_pub)]

mod aliases;
mod command;
#[path = "../common/mod.rs"]
mod common;
mod drift;
mod interleavings;
#[path = "../cluster/kubernetes/mod.rs"]
mod kubernetes;
mod maps;
mod origin;
#[path = "../cluster/proxy.rs"]
mod proxy;
mod races;
mod records;
mod refs;
mod rewinds;
mod script;
mod sources;
