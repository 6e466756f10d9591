//! The status record of a running sync, and its parts: attempts, generations, hooks, sources, ConfigMap targets. It is
//! what `/status`, the page and `treeswap status` show, and its serialized form is described in
//! `docs/reference/status.md`. The sync's state machine is in [`machine`]; [`spare`] says when a spare is prepared again
//! whose preparation failed. No I/O here; the clock is read only to stamp a [`LastAnswer`] and for the liveness
//! deadline.

pub mod machine;
pub mod spare;
mod stage;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::fsx::Holder;
use crate::generation::Name;
use crate::human;
use crate::revision::Revision;

pub use stage::Stage;

/// A duration as the status and the log have it: whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time as the metrics have it: seconds since 1970.
pub fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

/// Why an attempt started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The process started.
    StartUp,
    /// The polling period elapsed.
    Timer,
    /// A Unix signal was received.
    Signal,
    /// A webhook was received.
    Webhook,
    /// ConfigMaps are delivered next to a root, and either the delivery requested a sync of the root or the root
    /// announced a revision to the delivery.
    Delivery,
    /// One of several sources answered after the attempt that polled it had ended.
    Source,
}

impl Trigger {
    /// The trigger's name in logs and metrics.
    pub fn label(self) -> &'static str {
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
    /// Nothing had to be published.
    Unchanged,
    /// The attempt failed; the published generation stays current.
    Failed,
}

/// An attempt that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Attempt {
    /// When the attempt began.
    pub at: Timestamp,
    /// Why it started.
    pub trigger: Trigger,
    /// How it ended.
    pub outcome: Outcome,
    /// Its duration, in milliseconds.
    pub duration_ms: u64,
    /// The error in one line, with secrets removed; `None` if the attempt did not fail.
    pub error: Option<String>,
    /// What an operator can do about the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
}

/// A commit's metadata. Its author chose the text, so control characters are replaced and lengths are bounded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Commit {
    /// The first line of the commit message.
    pub subject: String,
    /// The author's name.
    pub author: String,
    /// The author date, by the author's clock.
    pub date: Option<Timestamp>,
    /// The sources a composed revision consists of; empty for a commit of a repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRevision>,
}

/// One source in a composed revision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SourceRevision {
    /// The source's name.
    pub name: String,
    /// The repository's URL without userinfo.
    pub repo: String,
    /// The ref that was followed.
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// The commit the ref resolved to.
    pub revision: Revision,
    /// The directory or file of the repository that is placed; empty for the whole tree.
    pub path: String,
    /// Where it is placed in the generation; empty for the top.
    pub to: String,
}

/// The last success for another remote or ref than the one followed now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EarlierSuccess {
    /// When the attempt ended.
    pub at: Timestamp,
    /// The remote's URL without userinfo.
    pub remote: String,
    /// The ref as configured.
    #[serde(rename = "ref")]
    pub ref_name: String,
}

/// The time added to the promised one before the loop counts as hanging: a blocking step that is cancelled needs time
/// to end.
const LIVENESS_SLACK: Duration = Duration::from_secs(60);

/// The value of `ref` where several sources are followed. It contains a space, so no ref can have the same name.
pub const REF_OF_SOURCES: &str = "its sources";

/// Returns a phrase that names the remote and ref, or the file of sources, for messages.
pub fn followed(remote: &str, ref_name: &str) -> String {
    match ref_name {
        REF_OF_SOURCES => format!("the sources in {remote}"),
        ref_name => format!("{remote} {ref_name}"),
    }
}

/// One hook and the result of its last run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HookStatus {
    /// The kind: `exechook`, `pre-publish-exechook` or `webhook`.
    pub hook: String,
    /// The revision it last ran for.
    pub revision: Option<Revision>,
    /// When its last run ended.
    pub at: Option<Timestamp>,
    /// The duration of its last run, in milliseconds.
    pub duration_ms: u64,
    /// Why the last run failed, in one line; `None` after a success.
    pub error: Option<String>,
    /// What an operator can do about the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Consecutive failures; 0 after a success.
    pub consecutive_failures: u64,
    /// When the first of the consecutive failures ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// When a run last succeeded in this process.
    pub last_success: Option<Timestamp>,
}

/// The attempt or the delivery that is running.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Progress {
    /// When it began.
    pub since: Timestamp,
    /// Its current stage: repair, select, resolve, fetch, export, gate, publish; of a delivery of ConfigMaps: resolve,
    /// plan, apply.
    pub stage: String,
    /// The stage as a phrase.
    pub what: String,
    /// Bytes of packs it has received so far.
    pub fetched_bytes: u64,
}

/// One generation in the status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GenerationStatus {
    /// The generation's name, which is its directory's.
    pub name: Name,
    /// The revision it holds; `None` if the root has lost its records.
    pub revision: Option<Revision>,
    /// The commit's metadata; `None` if the mirror does not hold the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// Number of files, symbolic links and directories.
    pub entries: u64,
    /// Total size of its files, in bytes.
    pub bytes: u64,
    /// When it became current.
    pub published: Timestamp,
    /// When it was retired; `None` for the current generation.
    pub retired: Option<Timestamp>,
    /// True if a reader has it pinned.
    pub pinned: bool,
    /// Processes that hold the pin, as far as they are visible to this process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// Why it is kept, as a phrase ("current", "in its grace period for another 12s", "pinned").
    pub reason: String,
}

/// Stands for a revision in messages if the root has lost its records.
pub fn unknown_revision() -> String {
    "unknown: the root has lost its records".to_owned()
}

/// When a remote last advertised its refs and sent all objects that were new.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastAnswer {
    /// Wall-clock time of the answer; `None` if there was none since the process started.
    #[serde(default, rename = "last_answer", skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// `CLOCK_BOOTTIME` of the answer; before the first one, the time at which this process began to follow the remote.
    #[serde(skip)]
    pub boottime: Duration,
}

impl LastAnswer {
    /// The state of a remote that is followed from now on and has not answered yet.
    pub fn not_yet() -> Self {
        Self { at: None, boottime: clock::now().boottime }
    }

    /// Records an answer that arrives now.
    pub fn now() -> Self {
        let clock::Now { wall, boottime, .. } = clock::now();
        Self { at: Some(wall), boottime }
    }

    /// Updates the last answer after a poll to the newest of the `sources`. Without sources there is one remote, and
    /// `is_answered` says whether it has answered now.
    pub fn update(&mut self, sources: &[SourceStatus], is_answered: bool) {
        match Self::newest(sources) {
            Some(newest) => *self = newest,
            None if is_answered => *self = Self::now(),
            None => {}
        }
    }

    /// The newest of several remotes' last answers; `None` if there are no several.
    fn newest(sources: &[SourceStatus]) -> Option<Self> {
        // One that has not answered yet has the time at which it was first followed.
        sources.iter().map(|source| source.last_answer).max_by_key(|last| (last.at.is_some(), last.boottime))
    }
}

/// The state of one of several sources.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SourceStatus {
    /// The source's name.
    pub name: String,
    /// The repository's URL without userinfo.
    pub repo: String,
    /// The ref that is followed.
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// The directory or file of the repository that is placed; empty for the whole tree.
    pub path: String,
    /// Where it is placed in the generation; empty for the top.
    pub to: String,
    /// Its commit in the published set; `None` if the set does not include the source.
    pub revision: Option<Revision>,
    /// Why the published set does not hold the commit that the ref names; `None` if nothing is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What an operator can do about the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// When the first of the remote's consecutive failures ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// True while a poll of the remote is still without an answer.
    #[serde(default, rename = "late")]
    pub is_late: bool,
    /// The remote's last answer.
    #[serde(default, flatten)]
    pub last_answer: LastAnswer,
}

/// The result of the last delivery of ConfigMaps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Applied {
    /// The revision that was applied.
    pub revision: Revision,
    /// When the delivery ended.
    pub at: Timestamp,
    /// Number of targets by outcome: unchanged, created, replaced, repaired (another writer had changed it), failed,
    /// and so on.
    pub targets: std::collections::BTreeMap<String, u64>,
    /// The same counts, summed since the process started.
    pub totals: std::collections::BTreeMap<String, u64>,
    /// One line for each target that is not in its desired state; at most a hundred.
    pub open: Vec<String>,
    /// For each cluster, when all of its targets were last in their desired state.
    pub clusters: std::collections::BTreeMap<String, Timestamp>,
}

/// The last attempt at one target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TargetStatus {
    /// The cluster's name in the rules.
    pub cluster: String,
    /// The ConfigMap's namespace.
    pub namespace: String,
    /// The ConfigMap's name.
    pub name: String,
    /// The desired revision.
    pub revision: String,
    /// The digest of the desired data; empty for a deletion.
    pub digest: String,
    /// When the attempt ended.
    pub at: Timestamp,
    /// The outcome, one word.
    pub outcome: String,
    /// Why it failed; `None` if it did not.
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

/// The state of a running sync. One record feeds `/status`, the page and the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WriterStatus"))]
pub struct Status {
    /// True from the first publication on, or from the start if a complete generation was found. It never becomes
    /// false again: an outage of the remote must not take the application out of service.
    pub ready: bool,
    /// True once an attempt of this process has succeeded.
    #[serde(skip)]
    pub synced: bool,
    /// `CLOCK_MONOTONIC` in milliseconds by which the loop promises to update this value again. Once it has passed, the
    /// loop counts as hanging. It is the clock that the loop sleeps on: after a suspend nothing is overdue.
    #[serde(skip)]
    pub alive_until_ms: u64,
    /// What start-up is waiting for; `None` once the loop runs.
    #[serde(skip)]
    pub starting: Option<String>,
    /// The remote's URL without userinfo.
    pub remote: String,
    /// The ref as configured.
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// The root's path.
    pub root: String,
    /// The sources if there are several, otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceStatus>,
    /// The remote's last answer; of several remotes, the newest.
    #[serde(default, flatten)]
    pub last_answer: LastAnswer,
    /// Why the service is not ready although a generation is current: remotes have been silent for too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<String>,
    /// The current generation.
    pub current: Option<GenerationStatus>,
    /// What was applied to clusters, if there are rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// The last delivery of ConfigMaps that ended, if there is a root as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery: Option<Attempt>,
    /// The running delivery of ConfigMaps, once it has taken longer than half a second, if there is a root as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_progress: Option<Progress>,
    /// The last attempt at each target. A root keeps these in a separate file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,
    /// The retired generations, newest first.
    pub retired: Vec<GenerationStatus>,
    /// The last attempt that ended.
    pub last_attempt: Option<Attempt>,
    /// When an attempt last succeeded. With several sources, one of their remotes answered it.
    pub last_success: Option<Timestamp>,
    /// The last success of another remote or ref in this root, kept for a later process that follows it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier_success: Option<EarlierSuccess>,
    /// The last failed attempt, kept after a success so that an operator can still read it.
    pub last_failure: Option<Attempt>,
    /// Consecutive failures; 0 after a success.
    pub consecutive_failures: u64,
    /// When the first of the consecutive failures ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// When the next attempt is due.
    pub next_attempt: Option<Timestamp>,
    /// The running attempt, once it has taken longer than half a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The configured hooks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookStatus>,
    /// When this status was written to the root; `None` in the answer of a running process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Timestamp>,
    /// When the process ended, if it could still record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

impl Status {
    /// Sets the list of configured hooks, none of which has run yet.
    pub fn expect_hooks(&mut self, hooks: impl Iterator<Item = &'static str>) {
        let named = |hook: &'static str| HookStatus { hook: hook.to_owned(), ..HookStatus::default() };
        self.hooks = hooks.map(named).collect();
    }

    /// Records a run of a hook. A hook that is not in the list is ignored.
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

    /// Says which remotes have not answered for longer than `max`; `None` if all have. The text does not contain the
    /// elapsed time, so that it stays the same from one call to the next.
    pub fn silent_for(&self, max: Duration, now: &clock::Now) -> Option<String> {
        let is_silent = |last_answer: &LastAnswer| now.boottime.saturating_sub(last_answer.boottime) > max;
        let silent = self.sources.iter().filter(|source| is_silent(&source.last_answer));
        let silent: Vec<&str> = silent.map(|source| source.name.as_str()).collect();
        let who = match silent[..] {
            [] if self.sources.is_empty() && is_silent(&self.last_answer) => "the remote has".to_owned(),
            [] => return None,
            [one] => format!("source {one} has"),
            _ => format!("sources {} have", silent.join(", ")),
        };
        Some(format!("{who} not answered for longer than --max-stale={}", human::go_duration(max)))
    }

    /// Promises that the loop updates this status again within this time; otherwise it counts as hanging.
    pub fn promise_update(&mut self, within: Duration) {
        let until = clock::monotonic().saturating_add(within).saturating_add(LIVENESS_SLACK);
        self.alive_until_ms = millis(until);
    }

    /// Returns true if the loop is within the time by which it promised its next update.
    pub fn is_alive(&self) -> bool {
        clock::monotonic().as_millis() <= u128::from(self.alive_until_ms)
    }
}

#[cfg(test)]
mod tests;
