//! The scenarios, one file per subject.

pub mod beside;
pub mod chart;
pub mod consumers;
pub mod crash;
pub mod cronjob;
pub mod latency;
pub mod manifests;
pub mod migrate;
pub mod rights;
pub mod rollout;
pub mod set;
pub mod shared;
pub mod sources;
pub mod start;
pub mod volumes;
