//! treeswap's metrics. Their names are a contract: docs/reference/metrics.md, alerts and dashboards use them.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::optional_gauge::OptionalGauge;
use super::replaced_gauges::ReplacedGauges;
use crate::sandbox::Parts;
use crate::secret;

/// Upper bounds of the histograms' buckets, in seconds: from a swap on a fast disk to the first fetch of a large
/// repository.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// Results of an attempt.
const RESULTS: [&str; 3] = ["published", "unchanged", "failed"];

/// Stages of an attempt whose duration is measured.
const STAGES: [&str; 4] = ["resolve", "fetch", "export", "publish"];

/// Stages of an attempt, in their order.
pub const ATTEMPT_STAGES: [&str; 7] = ["repair", "select", "resolve", "fetch", "export", "gate", "publish"];

/// What may fail outside of an attempt; further values of the label `stage` of errors.
const BESIDE: [&str; 7] = ["verify", "restore", "housekeep", "spare", "status", "delete", "apply"];

/// Classes of errors.
const CLASSES: [&str; 4] = ["transient", "permanent", "refused", "timeout"];

/// What triggers attempts.
const SOURCES: [&str; 6] = ["start_up", "timer", "signal", "webhook", "delivery", "source"];

/// The result of an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct ResultLabel {
    /// published, unchanged, failed.
    pub result: &'static str,
}

/// What failed, and whether trying again can help.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct ErrorLabel {
    /// A stage of an attempt (repair, select, resolve, fetch, export, gate, publish), something outside of an attempt
    /// (verify, restore, housekeep, spare, status, delete), or `apply`: a target, or a failure that affects all
    /// targets.
    pub stage: &'static str,
    /// transient, permanent, refused, timeout.
    pub class: &'static str,
}

/// What triggered an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct SourceLabel {
    /// start_up, timer, signal, webhook, delivery, source.
    pub source: &'static str,
}

/// A cluster, and an outcome of targets in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, EncodeLabelSet)]
pub struct TargetLabel {
    /// Its name, or `unknown` for all that are not configured: the rules may name any.
    pub cluster: String,
    /// unchanged, created, replaced, repaired, recreated, deleted, left, refused, held, failed, skipped.
    pub outcome: &'static str,
}

/// The space that the root uses and may use. What is `None` has no sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Bytes available to us on the root's file system.
    pub free_bytes: Option<u64>,
    /// Free inodes of the root's file system.
    pub free_inodes: Option<u64>,
    /// Bytes that generations, spare and mirror use in the root, estimated from sizes.
    pub used_bytes: Option<u64>,
    /// `--max-bytes`.
    pub limit_bytes: Option<u64>,
}

type Seconds = OptionalGauge<f64>;

/// Labels of a series: name and value of each.
type Labels<const N: usize, V = &'static str> = [(&'static str, V); N];

/// A family of histograms with the buckets of [`SECONDS`].
#[derive(Clone, Debug)]
pub struct Durations(Family<Labels<1>, Histogram, fn() -> Histogram>);

impl Default for Durations {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(SECONDS)))
    }
}

/// All metrics. Clones share their values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Attempts that ended.
    pub syncs: Family<ResultLabel, Counter>,
    /// How long each stage took.
    durations: Durations,
    /// Failures in a row.
    pub consecutive_failures: Gauge,
    /// When the last attempt ended.
    pub last_attempt: Seconds,
    /// When the last attempt that did not fail ended.
    pub last_success: Seconds,
    /// 1 until it is known that an attempt for this root has succeeded.
    pub never_succeeded: Gauge,
    /// When the last generation was published.
    pub last_publish: Seconds,
    /// The current generation; one series.
    current: ReplacedGauges<Labels<2, String>>,
    /// Generations by state.
    pub generations: Family<Labels<1>, Gauge>,
    /// 1 for each of several sources whose published commit is not the one that its ref names.
    sources_failing: ReplacedGauges<Labels<1, String>>,
    /// Bytes of the current generation's files.
    pub generation_bytes: Gauge,
    /// Files, links and directories of the current generation.
    pub generation_entries: Gauge,
    /// Retired generations removed.
    pub reaped: Counter,
    /// Retired generations removed although pinned.
    pub evictions: Counter,
    /// Current generations that a foreign write had changed.
    pub damaged: Counter,
    /// Triggers of attempts.
    pub triggers: Family<SourceLabel, Counter>,
    /// Errors by stage and class.
    pub errors: Family<ErrorLabel, Counter>,
    /// When the state of the loop last changed.
    pub phase_changed: Seconds,
    /// Bytes of packs received.
    pub fetched_bytes: Counter,
    /// When the oldest pinned generation was retired.
    pub oldest_pin: Seconds,
    /// When the running attempt began.
    pub attempt_start: Seconds,
    /// 1 for the stage of the running attempt.
    pub attempt_stage: Family<Labels<1>, Gauge>,
    /// The values of [`Room`], in the order of its fields.
    root: [OptionalGauge<i64>; 4],
    /// Hooks that ended.
    pub hooks: Family<Labels<2>, Counter>,
    /// Failures of a hook in a row.
    pub hook_failures: Family<Labels<1>, Gauge>,
    /// How long each hook took.
    hook_durations: Durations,
    /// 1 for each part of the sandbox that is in force for the process that reads packs.
    sandbox: Family<Labels<1>, Gauge>,
    /// Targets of the last delivery, by outcome.
    targets: ReplacedGauges<TargetLabel>,
    /// Deliveries beside a root in a row that failed before any cluster was asked.
    pub delivery_failures: Gauge,
    /// Targets of all deliveries, by outcome.
    pub applied: Family<TargetLabel, Counter>,
    /// The same facts under git-sync's names.
    pub git_sync: super::git_sync_metrics::GitSync,
}

/// A value of a label without secrets. The text of all metrics is not redacted: a user name that is also the name of a
/// metric or a label would make it unreadable.
fn shown(value: &str) -> String {
    secret::redacted(value).into_owned()
}

impl Metrics {
    /// Registers all metrics. The registry's prefix has to be `treeswap`; it appends `_total`, units and `_info`. All
    /// series of counters exist from the start: `increase()` would miss the first count of one that appears with it.
    pub fn register(&self, registry: &mut Registry) {
        self.create_series();
        let build =
            Info::new(vec![("version", super::VERSION), ("revision", super::commit().unwrap_or("unknown"))]);
        registry.register("build", "What runs", build);
        registry.register("syncs", "Attempts that ended, by result", self.syncs.clone());
        registry.register_with_unit(
            "sync_duration",
            "How long each stage of an attempt took",
            Unit::Seconds,
            self.durations.0.clone(),
        );
        registry.register(
            "sync_consecutive_failures",
            "Failed attempts in a row",
            self.consecutive_failures.clone(),
        );
        let mut time = |name: &str, help: &str, gauge: &Seconds| {
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        };
        time("last_attempt_timestamp", "When the last attempt ended", &self.last_attempt);
        time(
            "last_success_timestamp",
            "When an attempt last succeeded; with several sources, one of their remotes answered it",
            &self.last_success,
        );
        time(
            "oldest_pin_timestamp",
            "When the oldest pinned generation was retired; absent while none is pinned",
            &self.oldest_pin,
        );
        time("attempt_start_timestamp", "When the attempt that runs began", &self.attempt_start);
        time("last_publish_timestamp", "When the current generation was published", &self.last_publish);
        time("phase_change_timestamp", "When the loop last changed its state", &self.phase_changed);
        registry.register(
            "never_succeeded",
            "1 until an attempt has succeeded for this root, whichever process made it",
            self.never_succeeded.clone(),
        );
        registry.register(
            "attempt_stage",
            "1 for the stage of the attempt that runs",
            self.attempt_stage.clone(),
        );
        registry.register("current_generation_info", "The current generation", self.current.family());
        registry.register("generations", "Generations in the root, by state", self.generations.clone());
        let help = "1 for each of several sources that is not known to be at the newest commit of its ref, by its name; else 0";
        registry.register("source_failing", help, self.sources_failing.family());
        registry.register_with_unit(
            "generation",
            "Size of the current generation's files",
            Unit::Bytes,
            self.generation_bytes.clone(),
        );
        let help = "Files, links and directories of the current generation";
        registry.register("generation_entries", help, self.generation_entries.clone());
        self.register_room(registry);
        registry.register_with_unit("fetched", "Packs received", Unit::Bytes, self.fetched_bytes.clone());
        registry.register("reaped", "Retired generations removed", self.reaped.clone());
        registry.register("evictions", "Generations removed although pinned", self.evictions.clone());
        registry.register(
            "damaged_generations",
            "Current generations that another process had changed",
            self.damaged.clone(),
        );
        registry.register("triggers", "Attempts requested, by trigger", self.triggers.clone());
        registry.register("hooks", "Hooks that ended, by result", self.hooks.clone());
        let help = "Failures of a hook in a row";
        registry.register("hook_consecutive_failures", help, self.hook_failures.clone());
        registry.register_with_unit(
            "hook_duration",
            "How long each hook took",
            Unit::Seconds,
            self.hook_durations.0.clone(),
        );
        registry.register("errors", "Errors, by stage and class", self.errors.clone());
        let help = "1 for each limit of the process that reads packs that is in force; else 0";
        registry.register("sandbox", help, self.sandbox.clone());
        let help = "ConfigMaps as the last delivery left them, by cluster and outcome";
        registry.register("apply_targets", help, self.targets.family());
        let help = "Deliveries in a row that failed before any cluster was asked; 0 without a root, where they are attempts";
        registry.register("delivery_consecutive_failures", help, self.delivery_failures.clone());
        let help = "ConfigMaps of all deliveries, by cluster and outcome";
        registry.register("applied", help, self.applied.clone());
    }

    fn register_room(&self, registry: &mut Registry) {
        let [free, inodes, used, limit] = self.root.clone();
        let mut bytes = |name: &str, help: &str, gauge| {
            registry.register_with_unit(name, help, Unit::Bytes, gauge);
        };
        bytes("root_free", "Room that the root's file system has left", free);
        bytes(
            "root_used",
            "What generations, spare and mirror take in the root, in whole blocks, estimated from sizes",
            used,
        );
        let help = "What generations and spare may take, without the mirror: --max-bytes; absent without it";
        bytes("root_limit", help, limit);
        registry.register(
            "root_inodes_free",
            "Files that may still be made in the root's file system",
            inodes,
        );
    }

    /// Sets which parts of the sandbox are in force for the process that reads packs.
    pub fn sandbox(&self, parts: Parts) {
        for (part, there) in [("landlock", parts.landlock), ("seccomp", parts.seccomp)] {
            self.sandbox.get_or_create(&[("part", part)]).set(i64::from(there));
        }
    }

    /// Sets for each source whether its published commit is not the one that its ref names.
    pub fn sources<'s>(&self, sources: impl Iterator<Item = (&'s str, bool)>) {
        let sample = |(name, fails)| ([("source", shown(name))], i64::from(fails));
        self.sources_failing.replace(sources.map(sample));
    }

    /// Creates all series whose labels are known from the start.
    fn create_series(&self) {
        self.never_succeeded.set(1);
        for result in RESULTS {
            drop(self.syncs.get_or_create(&ResultLabel { result }));
        }
        for stage in STAGES {
            drop(self.durations.0.get_or_create(&[("stage", stage)]));
        }
        self.stage(None);
        for source in SOURCES {
            drop(self.triggers.get_or_create(&SourceLabel { source }));
        }
        for state in ["current", "retired", "pinned"] {
            drop(self.generations.get_or_create(&[("state", state)]));
        }
        for stage in ATTEMPT_STAGES.into_iter().chain(BESIDE) {
            for class in CLASSES {
                drop(self.errors.get_or_create(&ErrorLabel { stage, class }));
            }
        }
    }

    /// Creates the series of these hooks.
    pub fn expect_hooks(&self, hooks: impl Iterator<Item = &'static str>) {
        for hook in hooks {
            for result in ["success", "error"] {
                drop(self.hooks.get_or_create(&[("hook", hook), ("result", result)]));
            }
            drop(self.hook_durations.0.get_or_create(&[("hook", hook)]));
            drop(self.hook_failures.get_or_create(&[("hook", hook)]));
        }
    }

    /// Creates the series of these clusters and outcomes.
    pub fn expect_targets<'t>(&self, clusters: impl Iterator<Item = &'t str>, outcomes: &[&'static str]) {
        for cluster in clusters {
            for outcome in outcomes {
                drop(self.applied.get_or_create(&TargetLabel { cluster: shown(cluster), outcome }));
            }
        }
    }

    /// Sets when an attempt for this root last succeeded, in seconds since 1970, whichever process made it; `None`:
    /// never.
    pub fn succeeded(&self, at: Option<f64>) {
        self.last_success.set(at);
        self.never_succeeded.set(i64::from(at.is_none()));
    }

    /// Sets the stage of the running attempt; `None` while none runs.
    pub fn stage(&self, now: Option<&'static str>) {
        for stage in ATTEMPT_STAGES {
            self.attempt_stage.get_or_create(&[("stage", stage)]).set(i64::from(now == Some(stage)));
        }
    }

    /// Sets the space that the root uses and may use.
    pub fn room(&self, room: Room) {
        let Room { free_bytes, free_inodes, used_bytes, limit_bytes } = room;
        for (gauge, value) in self.root.iter().zip([free_bytes, free_inodes, used_bytes, limit_bytes]) {
            gauge.set(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)));
        }
    }

    /// Records how long a stage took.
    pub fn took(&self, stage: &'static str, duration: Duration) {
        self.durations.0.get_or_create(&[("stage", stage)]).observe(duration.as_secs_f64());
    }

    /// Counts a hook that ended.
    pub fn hook(&self, hook: &'static str, success: bool, took: Duration) {
        let result = if success { "success" } else { "error" };
        self.hooks.get_or_create(&[("hook", hook), ("result", result)]).inc();
        self.hook_durations.0.get_or_create(&[("hook", hook)]).observe(took.as_secs_f64());
        self.git_sync.hook(hook, result);
        let failures = self.hook_failures.get_or_create(&[("hook", hook)]);
        if success {
            failures.set(0);
        } else {
            failures.inc();
        }
    }

    /// Counts an error.
    pub fn error(&self, stage: &'static str, class: &'static str) {
        debug_assert!(
            CLASSES.contains(&class) && (ATTEMPT_STAGES.contains(&stage) || BESIDE.contains(&stage)),
            "not among those that are there from the start: {stage}, {class}"
        );
        self.errors.get_or_create(&ErrorLabel { stage, class }).inc();
    }

    /// Counts the outcomes of a delivery's targets: cluster and outcome of each.
    pub fn delivered<'t>(&self, ended: impl Iterator<Item = (&'t str, &'static str)>) {
        let mut counts: BTreeMap<TargetLabel, u64> = BTreeMap::new();
        for (cluster, outcome) in ended {
            *counts.entry(TargetLabel { cluster: shown(cluster), outcome }).or_default() += 1;
        }
        for (label, count) in &counts {
            self.applied.get_or_create(label).inc_by(*count);
        }
        let sample = |(label, count)| (label, i64::try_from(count).unwrap_or(i64::MAX));
        self.targets.replace(counts.into_iter().map(sample));
    }

    /// Sets revision and name of the current generation, the only series of `treeswap_current_generation_info`; `None`:
    /// there is none.
    pub fn name_current(&self, current: Option<(String, String)>) {
        let sample = |(revision, generation)| ([("revision", revision), ("generation", generation)], 1);
        self.current.replace(current.map(sample));
    }
}

#[cfg(test)]
mod tests;
