//! The sync state machine's states, and the status record that others read. Pure: no I/O, no clock.

pub mod machine;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::fsx::Holder;
use crate::generation::Name;
use crate::human;
use crate::revision::Revision;

/// Why an attempt started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// One of several sources answered after the attempt that had asked it.
    Source,
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
            Self::Source => "source",
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// What a commit says of itself. Its author chose the words: control characters are replaced, and lengths are bounded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Commit {
    /// The first line of its message.
    pub subject: String,
    /// Its author's name.
    pub author: String,
    /// When it was written, by its author's clock.
    pub date: Option<Timestamp>,
    /// The sources that it is composed of; none of a repository's own commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRevision>,
}

/// One source in a composed revision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SourceRevision {
    /// What it is called.
    pub name: String,
    /// Its repository, userinfo removed.
    pub repo: String,
    /// What was followed there.
    #[serde(rename = "ref")]
    pub asked: String,
    /// The commit.
    pub revision: Revision,
    /// The directory or file that is placed; empty for all of it.
    pub path: String,
    /// Where it is placed; empty for the top.
    pub to: String,
}

/// A success, and what was followed then.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EarlierSuccess {
    /// When the attempt ended.
    pub at: Timestamp,
    /// The remote, without secrets.
    pub remote: String,
    /// The ref as it was asked for.
    #[serde(rename = "ref")]
    pub asked: String,
}

/// What stands for the ref where several sources are followed. No ref has a blank.
pub const ITS_SOURCES: &str = "its sources";

/// What is followed, in words.
pub fn followed(remote: &str, asked: &str) -> String {
    match asked {
        ITS_SOURCES => format!("the sources in {remote}"),
        asked => format!("{remote} {asked}"),
    }
}

/// One hook, and how its last run ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HookStatus {
    /// exechook, pre-publish-exechook, webhook.
    pub hook: String,
    /// What it was last run for.
    pub revision: Option<Revision>,
    /// When that run ended.
    pub at: Option<Timestamp>,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Why it failed, one line; none after a success.
    pub error: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Failures in a row; 0 after a success.
    pub consecutive_failures: u64,
    /// When the first of them ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// When a run succeeded last, in this process.
    pub last_success: Option<Timestamp>,
}

/// The attempt that runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Progress {
    /// When it began.
    pub since: Timestamp,
    /// The stage it is in: mend, select, resolve, fetch, export, gate, publish.
    pub stage: String,
    /// What it does there, in words.
    pub what: String,
    /// Bytes of packs that this attempt received so far.
    pub fetched_bytes: u64,
}

/// One generation as the status shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GenerationStatus {
    /// Its directory.
    pub name: Name,
    /// What it holds.
    pub revision: Revision,
    /// What that commit says of itself, where the mirror has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// Files, links and directories.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it became current.
    pub published: Timestamp,
    /// When it stopped being current.
    pub retired: Option<Timestamp>,
    /// Whether a reader holds a pin on it.
    pub pinned: bool,
    /// Processes that hold the pin, where they can be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// Why it is still here, in words ("current", "in its grace period for another 12s", "pinned").
    pub reason: String,
}

/// When a remote said last what its refs name, and sent what was new.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastAnswer {
    /// None: not yet since the process began.
    #[serde(default, rename = "last_answer", skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// `CLOCK_BOOTTIME` then; before it answered, when it was followed first by this process.
    #[serde(skip)]
    pub boottime: Duration,
}

impl LastAnswer {
    /// It is followed from now on.
    pub fn not_yet() -> Self {
        Self { at: None, boottime: clock::now().boottime }
    }

    /// It has answered.
    pub fn now() -> Self {
        let clock::Now { wall, boottime, .. } = clock::now();
        Self { at: Some(wall), boottime }
    }
}

/// One of several sources.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SourceStatus {
    /// What it is called.
    pub name: String,
    /// Its repository, userinfo removed.
    pub repo: String,
    /// What is followed there.
    #[serde(rename = "ref")]
    pub asked: String,
    /// The directory or file that is placed; empty for all of it.
    pub path: String,
    /// Where it is placed; empty for the top.
    pub to: String,
    /// The commit that it has in the set; none: it is not in it.
    pub revision: Option<Revision>,
    /// Why it is not where its ref is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Since when its remote fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// Its remote has not answered yet.
    #[serde(default, rename = "late")]
    pub is_late: bool,
    /// When its remote said last what its refs name.
    #[serde(default, flatten)]
    pub heard: LastAnswer,
}

/// What the last delivery of ConfigMaps came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Applied {
    /// The revision.
    pub revision: Revision,
    /// When it ended.
    pub at: Timestamp,
    /// Targets by how they ended: right, created, replaced, repaired (another writer had changed it), failed, and so
    /// on.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.command {
            Some(command) => write!(f, "{} ({})", human::sanitize(command, 32), self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// Everything an operator may ask about a running sync. One record feeds `/status`, the page and the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WriterStatus"))]
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
    /// The sources, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceStatus>,
    /// The remote's last answer, where there is one remote.
    #[serde(default, flatten)]
    pub heard: LastAnswer,
    /// Why what serves is not ready although there is something, where that may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<String>,
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
    /// The last success in this root of another remote or ref, kept for when that is followed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier_success: Option<EarlierSuccess>,
    /// The newest failure, kept after a success so that an operator can still read it.
    pub last_failure: Option<Attempt>,
    /// Failures in a row; 0 after a success.
    pub consecutive_failures: u64,
    /// When the first of them ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// When the next attempt is due.
    pub next_attempt: Option<Timestamp>,
    /// The attempt that runs, once it takes longer than a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The hooks that there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookStatus>,
    /// When this was recorded in the root; none of what a process says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Timestamp>,
    /// When the process ended, if it could still record that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

impl Status {
    /// These hooks will be run.
    pub fn expect_hooks(&mut self, hooks: impl Iterator<Item = &'static str>) {
        let named = |hook: &'static str| HookStatus { hook: hook.to_owned(), ..HookStatus::default() };
        self.hooks = hooks.map(named).collect();
    }

    /// A hook was run; an error is a line and hints.
    pub fn hook(&mut self, ran: HookStatus) {
        let Some(hook) = self.hooks.iter_mut().find(|hook| hook.hook == ran.hook) else { return };
        *hook = match ran.error {
            None => HookStatus { last_success: ran.at, ..ran },
            Some(_) => HookStatus {
                consecutive_failures: hook.consecutive_failures + 1,
                failing_since: hook.failing_since.or(ran.at),
                last_success: hook.last_success,
                ..ran
            },
        };
    }

    /// Which remotes have not answered for longer than this, in words that stay the same.
    pub fn silent_for(&self, max: Duration, now: &clock::Now) -> Option<String> {
        let is_silent = |heard: &LastAnswer| now.boottime.saturating_sub(heard.boottime) > max;
        let silent = self.sources.iter().filter(|source| is_silent(&source.heard));
        let silent: Vec<&str> = silent.map(|source| source.name.as_str()).collect();
        let who = match silent[..] {
            [] if self.sources.is_empty() && is_silent(&self.heard) => "the remote has".to_owned(),
            [] => return None,
            [one] => format!("source {one} has"),
            _ => format!("sources {} have", silent.join(", ")),
        };
        Some(format!("{who} not answered for longer than --max-stale={}", human::go_duration(max)))
    }

    /// Whether the loop has been heard of when it promised to be.
    pub fn is_alive(&self, now: &clock::Now) -> bool {
        now.boottime.as_millis() <= u128::from(self.alive_until_ms)
    }
}
