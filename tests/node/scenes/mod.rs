//! The scenarios, one file per subject.

pub mod crash;
pub mod rollout;
pub mod start;
