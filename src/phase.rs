//! The sync state machine's states, and the status record that others read. Pure: no I/O, no clock.

pub mod machine;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::generation::Name;
use crate::revision::Revision;

/// Why an attempt started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The process started.
    StartUp,
    /// The period is over.
    Timer,
    /// A Unix signal asked for it.
    Signal,
    /// A webhook asked for it.
    Webhook,
    /// ConfigMaps are delivered beside a root, and one of the two asked the other.
    Delivery,
}

impl Trigger {
    /// Its name in logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::StartUp => "start_up",
            Self::Timer => "timer",
            Self::Signal => "signal",
            Self::Webhook => "webhook",
            Self::Delivery => "delivery",
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A new generation became current.
    Published,
    /// Nothing to do.
    Unchanged,
    /// It failed; what was published still serves.
    Failed,
}

/// One attempt, ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// When it began.
    pub at: Timestamp,
    /// Why.
    pub trigger: Trigger,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// The error, one line, secrets removed; and what to do about it.
    pub error: Option<String>,
    /// Hints that belong to the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
}

/// One generation as the status shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GenerationStatus {
    /// Its directory.
    pub name: Name,
    /// What it holds.
    pub revision: Revision,
    /// Files, links and directories.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it became current.
    pub published: Timestamp,
    /// When it stopped being current.
    pub retired: Option<Timestamp>,
    /// Whether somebody holds a pin on it.
    pub pinned: bool,
    /// Why it is still here, in words ("current", "in its grace period for another 12s", "pinned").
    pub reason: String,
}

/// What the last delivery of ConfigMaps came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// The revision.
    pub revision: Revision,
    /// When it ended.
    pub at: Timestamp,
    /// Targets by how they ended: right, created, replaced, repaired (somebody else had written), failed, and so on.
    pub targets: std::collections::BTreeMap<String, u64>,
    /// Since the process started, the same.
    pub totals: std::collections::BTreeMap<String, u64>,
    /// What is not as it should be, a line each; the first hundred.
    pub open: Vec<String>,
    /// When every target of a cluster was last as it should be.
    pub clusters: std::collections::BTreeMap<String, Timestamp>,
}

/// The last attempt at one ConfigMap in one place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The cluster, as the rules call it.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
    /// The ConfigMap.
    pub name: String,
    /// The revision that was to be there.
    pub revision: String,
    /// The digest that was to be there; empty for a deletion.
    pub digest: String,
    /// When.
    pub at: Timestamp,
    /// How it ended, in one word.
    pub outcome: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Everything an operator may ask about a running sync. One record feeds `/status`, the page and the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Opens at the first publication (or when a complete generation was found at start) and never closes again: an
    /// outage of the remote must not take the application out of service.
    pub ready: bool,
    /// `CLOCK_BOOTTIME` in milliseconds until which the loop promises to be heard of again; past it, it hangs.
    #[serde(skip)]
    pub alive_until_ms: u64,
    /// What the start waits for, before there is a loop.
    #[serde(skip)]
    pub starting: Option<String>,
    /// The remote, userinfo removed.
    pub remote: String,
    /// What was asked for.
    #[serde(rename = "ref")]
    pub asked: String,
    /// The root.
    pub root: String,
    /// The generation the link names.
    pub current: Option<GenerationStatus>,
    /// What was applied to clusters, where there are rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// The last delivery of ConfigMaps that ended, where there is a root besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery: Option<Attempt>,
    /// The last attempt at each target. A root has it in a file of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,
    /// The others, newest first.
    pub retired: Vec<GenerationStatus>,
    /// The newest attempt that ended.
    pub last_attempt: Option<Attempt>,
    /// When the last attempt that did not fail ended.
    pub last_success: Option<Timestamp>,
    /// The newest failure, kept after a success so that a person can still read it.
    pub last_failure: Option<Attempt>,
    /// Failures in a row; 0 after a success.
    pub consecutive_failures: u64,
    /// When the next attempt is due.
    pub next_attempt: Option<Timestamp>,
}

impl Status {
    /// Whether the loop has been heard of when it promised to be.
    pub fn is_alive(&self, now: &clock::Now) -> bool {
        now.boottime.as_millis() <= u128::from(self.alive_until_ms)
    }
}
