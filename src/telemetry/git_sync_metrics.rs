//! git-sync's metrics under its names, so that its dashboards and alerts keep working. They show the same facts as
//! ours, counted by git-sync's rules.
//!
//! Two of its counters do not end in `_total`, and its durations are a summary without quantiles. OpenMetrics allows
//! neither, so the sum of the durations has type `gauge` and the others `unknown`; names, labels and values are git-sync's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

/// The label `status`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct Status {
    /// success, error, noop.
    pub status: &'static str,
}

/// The labels of a hook's run.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct Run {
    /// exechook, pre-publish-exechook, webhook.
    pub name: &'static str,
    /// success, error.
    pub status: &'static str,
}

/// A counter that is exposed under exactly the name that it is registered with, without `_total`.
#[derive(Clone, Debug, Default)]
pub struct Plain(Arc<AtomicU64>);

impl Plain {
    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl TypedMetric for Plain {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for Plain {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.encode_gauge(&self.0.load(Ordering::Relaxed))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

type Seconds = Gauge<f64, AtomicU64>;

/// All of git-sync's metrics. Clones share their values.
#[derive(Clone, Debug, Default)]
pub struct GitSync {
    took: Family<Status, Seconds>,
    passes: Family<Status, Plain>,
    count: Family<Status, Counter>,
    updates: Counter,
    askpass: Family<Status, Plain>,
    tokens: Family<Status, Plain>,
    hooks: Family<Run, Counter>,
}

impl GitSync {
    /// Registers all metrics. The registry must have no prefix; it appends `_total` to the counters.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("git_sync_duration_seconds_sum", "Seconds that passes took", self.took.clone());
        registry.register("git_sync_duration_seconds_count", "Passes that took them", self.passes.clone());
        registry.register("git_sync_count", "Passes, by result", self.count.clone());
        registry.register("git_fetch_count", "Passes that had something to update", self.updates.clone());
        registry.register("git_sync_askpass_calls", "Requests to the askpass URL", self.askpass.clone());
        registry.register(
            "git_sync_refresh_github_app_token_count",
            "Tokens requested from GitHub for an App",
            self.tokens.clone(),
        );
        registry.register("git_sync_hook_run_count", "Runs of hooks", self.hooks.clone());
    }

    /// Counts a pass that ended. `status` is success for an update or the first success, noop, or error.
    pub fn pass(&self, status: &'static str, took: Duration) {
        let label = Status { status };
        self.took.get_or_create(&label).inc_by(took.as_secs_f64());
        self.passes.get_or_create(&label).add_one();
        self.count.get_or_create(&label).inc();
    }

    /// Counts a pass that had something to update.
    pub fn update(&self) {
        self.updates.inc();
    }

    /// Returns the number of passes that updated something, or were the first to succeed.
    pub fn updates(&self) -> u64 {
        self.ended("success")
    }

    /// Returns the number of passes that succeeded, with or without an update.
    pub fn successes(&self) -> u64 {
        self.ended("success") + self.ended("noop")
    }

    /// Does not create the series: as in git-sync it appears with its first count.
    fn ended(&self, status: &'static str) -> u64 {
        self.count.get(&Status { status }).map_or(0, |count| count.get())
    }

    /// Counts a request to the askpass URL.
    pub fn askpass(&self, success: bool) {
        self.askpass.get_or_create(&status(success)).add_one();
    }

    /// Counts a request to GitHub for a token.
    pub fn token(&self, success: bool) {
        self.tokens.get_or_create(&status(success)).add_one();
    }

    pub(super) fn hook(&self, name: &'static str, status: &'static str) {
        self.hooks.get_or_create(&Run { name, status }).inc();
    }
}

fn status(success: bool) -> Status {
    Status { status: if success { "success" } else { "error" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_values_are_git_syncs() {
        let metrics = GitSync::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let text = |registry: &Registry| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            text
        };
        assert_eq!((metrics.updates(), metrics.successes()), (0, 0));
        let first = text(&registry);
        assert!(first.contains("\ngit_fetch_count_total 0\n"), "there from the start");
        assert!(!first.contains("git_sync_count_total{"), "there with its first count: {first}");
        metrics.pass("noop", Duration::ZERO);
        metrics.pass("error", Duration::ZERO);
        metrics.pass("success", Duration::from_millis(500));
        metrics.pass("success", Duration::from_millis(250));
        metrics.update();
        assert_eq!((metrics.updates(), metrics.successes()), (2, 3));
        metrics.askpass(false);
        metrics.token(true);
        metrics.hook("webhook", "error");
        let text = text(&registry);
        for line in [
            "git_sync_count_total{status=\"success\"} 2",
            "git_fetch_count_total 1",
            "git_sync_duration_seconds_sum{status=\"success\"} 0.75",
            "git_sync_duration_seconds_count{status=\"success\"} 2",
            "git_sync_askpass_calls{status=\"error\"} 1",
            "git_sync_refresh_github_app_token_count{status=\"success\"} 1",
            "git_sync_hook_run_count_total{name=\"webhook\",status=\"error\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
