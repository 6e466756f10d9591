//! The scenarios, one file per subject.

pub mod consumers;
pub mod crash;
pub mod rollout;
pub mod shared;
pub mod start;
pub mod volumes;
