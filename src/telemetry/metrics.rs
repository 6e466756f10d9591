//! The metrics of a sync. Names are a contract: they appear in the README, in alerts and in dashboards.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of what takes time: from a swap on a fast disk to the first fetch of a large repository.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// `result` of an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct ResultLabel {
    /// published, unchanged, failed.
    pub result: &'static str,
}

/// A stage of an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct StageLabel {
    /// resolve, fetch, export, publish.
    pub stage: &'static str,
}

/// What failed, and whether trying again can help.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct ErrorLabel {
    /// A stage of an attempt (mend, select, resolve, fetch, export, gate, publish), or what came beside it (verify,
    /// housekeep, spare, status, delete), or `apply`: a target, or what all targets wait for.
    pub stage: &'static str,
    /// transient, permanent, refused, timeout.
    pub class: &'static str,
}

/// Who asked for an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct SourceLabel {
    /// start_up, timer, signal, webhook.
    pub source: &'static str,
}

/// The state of a generation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct StateLabel {
    /// current, retired, pinned.
    pub state: &'static str,
}

/// How a hook ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct HookLabel {
    /// exechook, pre-publish-exechook, webhook.
    pub hook: &'static str,
    /// success, error.
    pub result: &'static str,
}

/// A hook.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct HookName {
    /// exechook, pre-publish-exechook, webhook.
    pub hook: &'static str,
}

/// Targets of a cluster that ended alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, EncodeLabelSet)]
pub struct TargetLabel {
    /// As the rules call it.
    pub cluster: String,
    /// right, created, replaced, repaired, recreated, deleted, left, refused, held, failed, skipped.
    pub outcome: &'static str,
}

/// What is current.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct CurrentLabel {
    /// Full commit id.
    pub revision: String,
    /// Directory name.
    pub generation: String,
}

/// The series that show the last delivery.
#[derive(Debug, Default)]
pub struct Shown(Vec<TargetLabel>);

type Seconds = Gauge<f64, AtomicU64>;

/// All of them. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Attempts that ended.
    pub syncs: Family<ResultLabel, Counter>,
    /// How long each stage took.
    pub durations: Family<StageLabel, Histogram, fn() -> Histogram>,
    /// Failures in a row.
    pub consecutive_failures: Gauge,
    /// When the last attempt ended.
    pub last_attempt: Seconds,
    /// When the last one that did not fail ended.
    pub last_success: Seconds,
    /// When the last generation was published.
    pub last_publish: Seconds,
    /// What is current; one series.
    pub current: Family<CurrentLabel, Gauge>,
    /// Generations by state.
    pub generations: Family<StateLabel, Gauge>,
    /// Bytes of the current generation's files.
    pub generation_bytes: Gauge,
    /// Retired generations removed.
    pub reaped: Counter,
    /// Of these, removed although pinned.
    pub evictions: Counter,
    /// Attempts asked for.
    pub triggers: Family<SourceLabel, Counter>,
    /// Errors by stage and class.
    pub errors: Family<ErrorLabel, Counter>,
    /// When the state of the loop last changed.
    pub phase_changed: Seconds,
    /// Bytes of packs received.
    pub fetched_bytes: Counter,
    /// Bytes that the root's file system has left for us.
    pub root_free_bytes: Gauge,
    /// Hooks that ended.
    pub hooks: Family<HookLabel, Counter>,
    /// How long each took.
    pub hook_durations: Family<HookName, Histogram, fn() -> Histogram>,
    /// Targets as the last delivery left them.
    pub targets: Family<TargetLabel, Gauge>,
    /// Targets of all deliveries.
    pub applied: Family<TargetLabel, Counter>,
    /// The same facts under git-sync's names.
    pub git_sync: super::git_sync_metrics::GitSync,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            syncs: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            consecutive_failures: Gauge::default(),
            last_attempt: Seconds::default(),
            last_success: Seconds::default(),
            last_publish: Seconds::default(),
            current: Family::default(),
            generations: Family::default(),
            generation_bytes: Gauge::default(),
            reaped: Counter::default(),
            evictions: Counter::default(),
            triggers: Family::default(),
            errors: Family::default(),
            phase_changed: Seconds::default(),
            fetched_bytes: Counter::default(),
            root_free_bytes: Gauge::default(),
            hooks: Family::default(),
            hook_durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            targets: Family::default(),
            applied: Family::default(),
            git_sync: super::git_sync_metrics::GitSync::default(),
        }
    }
}

impl Metrics {
    /// Puts all of them into a registry whose prefix is `treeswap`. The registry appends `_total`, units and `_info`.
    pub fn register(&self, registry: &mut Registry) {
        let build =
            Info::new(vec![("version", super::VERSION), ("revision", super::COMMIT.unwrap_or("unknown"))]);
        registry.register("build", "What runs", build);
        registry.register("syncs", "Attempts that ended, by result", self.syncs.clone());
        registry.register_with_unit(
            "sync_duration",
            "How long each stage of an attempt took",
            Unit::Seconds,
            self.durations.clone(),
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
        time("last_success_timestamp", "When the last attempt that did not fail ended", &self.last_success);
        time("last_publish_timestamp", "When the current generation was published", &self.last_publish);
        time("phase_change_timestamp", "When the loop last changed its state", &self.phase_changed);
        registry.register("current_generation_info", "The current generation", self.current.clone());
        registry.register("generations", "Generations in the root, by state", self.generations.clone());
        registry.register_with_unit(
            "generation",
            "Size of the current generation's files",
            Unit::Bytes,
            self.generation_bytes.clone(),
        );
        registry.register_with_unit(
            "root_free",
            "Room that the root's file system has left",
            Unit::Bytes,
            self.root_free_bytes.clone(),
        );
        registry.register_with_unit("fetched", "Packs received", Unit::Bytes, self.fetched_bytes.clone());
        registry.register("reaped", "Retired generations removed", self.reaped.clone());
        registry.register("evictions", "Generations removed although pinned", self.evictions.clone());
        registry.register("triggers", "Attempts asked for, by who asked", self.triggers.clone());
        registry.register("hooks", "Hooks that ended, by result", self.hooks.clone());
        registry.register_with_unit(
            "hook_duration",
            "How long each hook took",
            Unit::Seconds,
            self.hook_durations.clone(),
        );
        registry.register("errors", "Errors, by stage and class", self.errors.clone());
        let help = "ConfigMaps as the last delivery left them, by cluster and outcome";
        registry.register("apply_targets", help, self.targets.clone());
        let help = "ConfigMaps of all deliveries, by cluster and outcome";
        registry.register("applied", help, self.applied.clone());
    }

    /// Notes how long a stage took.
    pub fn took(&self, stage: &'static str, duration: Duration) {
        self.durations.get_or_create(&StageLabel { stage }).observe(duration.as_secs_f64());
    }

    /// Counts a hook that ended.
    pub fn hook(&self, hook: &'static str, success: bool, took: Duration) {
        let result = if success { "success" } else { "error" };
        self.hooks.get_or_create(&HookLabel { hook, result }).inc();
        self.hook_durations.get_or_create(&HookName { hook }).observe(took.as_secs_f64());
        self.git_sync.hook(hook, result);
    }

    /// Counts an error.
    pub fn error(&self, stage: &'static str, class: &'static str) {
        self.errors.get_or_create(&ErrorLabel { stage, class }).inc();
    }

    /// Counts how the targets of a delivery ended. A cluster or an outcome that it does not have is no longer shown as
    /// the last one's.
    pub fn delivered<'t>(&self, ended: impl Iterator<Item = (&'t str, &'static str)>, shown: &mut Shown) {
        let mut counts: BTreeMap<TargetLabel, u64> = BTreeMap::new();
        for (cluster, outcome) in ended {
            *counts.entry(TargetLabel { cluster: cluster.to_owned(), outcome }).or_default() += 1;
        }
        for (label, count) in &counts {
            self.targets.get_or_create(label).set(i64::try_from(*count).unwrap_or(i64::MAX));
            self.applied.get_or_create(label).inc_by(*count);
        }
        for gone in shown.0.iter().filter(|label| !counts.contains_key(label)) {
            self.targets.remove(gone);
        }
        shown.0 = counts.into_keys().collect();
    }

    /// Names the current generation: the one series of `treeswap_current_generation_info`.
    pub fn name_current(&self, revision: String, generation: String) {
        let label = CurrentLabel { revision, generation };
        if self.current.get(&label).is_none() {
            self.current.clear();
            self.current.get_or_create(&label).set(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_dashboards_use() {
        let metrics = Metrics::default();
        let mut registry = Registry::with_prefix("treeswap");
        metrics.register(&mut registry);
        metrics.syncs.get_or_create(&ResultLabel { result: "published" }).inc();
        metrics.took("fetch", Duration::from_millis(30));
        metrics.error("fetch", "transient");
        metrics.hook("webhook", false, Duration::from_millis(30));
        metrics.triggers.get_or_create(&SourceLabel { source: "timer" }).inc();
        metrics.generations.get_or_create(&StateLabel { state: "retired" }).set(2);
        let mut shown = Shown::default();
        metrics.delivered([("a", "failed"), ("b", "right")].into_iter(), &mut shown);
        metrics.delivered([("a", "right"), ("a", "right")].into_iter(), &mut shown);
        metrics.name_current("aa".into(), "..one".into());
        metrics.name_current("bb".into(), "..two".into());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "treeswap_build_info{version=",
            "treeswap_syncs_total{result=\"published\"} 1",
            "treeswap_sync_duration_seconds_count{stage=\"fetch\"} 1",
            "treeswap_sync_consecutive_failures 0",
            "treeswap_last_attempt_timestamp_seconds 0.0",
            "treeswap_last_success_timestamp_seconds 0.0",
            "treeswap_last_publish_timestamp_seconds 0.0",
            "treeswap_current_generation_info{revision=\"bb\",generation=\"..two\"} 1",
            "treeswap_generations{state=\"retired\"} 2",
            "treeswap_generation_bytes 0",
            "treeswap_root_free_bytes 0",
            "treeswap_fetched_bytes_total 0",
            "treeswap_reaped_total 0",
            "treeswap_evictions_total 0",
            "treeswap_triggers_total{source=\"timer\"} 1",
            "treeswap_hooks_total{hook=\"webhook\",result=\"error\"} 1",
            "treeswap_hook_duration_seconds_count{hook=\"webhook\"} 1",
            "treeswap_errors_total{stage=\"fetch\",class=\"transient\"} 1",
            "treeswap_apply_targets{cluster=\"a\",outcome=\"right\"} 2",
            "treeswap_applied_total{cluster=\"a\",outcome=\"failed\"} 1",
            "treeswap_applied_total{cluster=\"b\",outcome=\"right\"} 1",
        ] {
            assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
        }
        let last = text.lines().filter(|line| line.starts_with("treeswap_apply_targets"));
        assert_eq!(last.count(), 1, "only the last delivery:\n{text}");
        assert!(!text.contains("\"aa\""), "one series for what is current:\n{text}");
    }
}
