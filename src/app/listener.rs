//! Starts the HTTP listener (probes, metrics, status, webhook) and serves until the process drains.

use std::sync::{Arc, Mutex};

use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::admin;
use crate::config::{Personality, Settings};
use crate::phase::Status;
use crate::telemetry::metrics::Metrics;

/// Starts serving in the background. Called before the root is opened, which may take as long as `--lock-wait` allows:
/// probes are answered meanwhile.
pub(super) fn start(
    runtime: &Runtime,
    listener: admin::Listener,
    settings: &Settings,
    metrics: &Metrics,
    status: &watch::Receiver<Status>,
    trigger: &admin::TriggerFn,
    draining: &CancellationToken,
) {
    let with_metrics = if settings.metrics { " metrics" } else { "" };
    let with_pprof = if settings.admin.as_ref().is_some_and(|admin| admin.pprof) { " pprof" } else { "" };
    let serves = format!("liveness{with_metrics}{with_pprof}");
    info!(name: "listening", endpoint = %listener.address(), serves, "listening at {}", listener.address());
    let git_sync_registry = (settings.personality == Personality::GitSync).then(|| {
        let mut registry = Registry::default();
        metrics.git_sync.register(&mut registry);
        Arc::new(Mutex::new(registry))
    });
    let mut registry = Registry::with_prefix("treeswap"); // the listener adds metrics of its own
    if settings.metrics {
        metrics.register(&mut registry);
    }
    let state = admin::State {
        status: status.clone(),
        registry: Arc::new(Mutex::new(registry)),
        git_sync_registry,
        trigger: Arc::clone(trigger),
    };
    runtime.spawn(listener.serve(state, draining.clone()));
}
