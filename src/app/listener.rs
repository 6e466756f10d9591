//! Starts the HTTP listener (probes, metrics, status, webhook) and serves until the process drains.

use std::sync::{Arc, Mutex};

use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::config::{Personality, Settings};
use crate::phase::Status;
use crate::telemetry::metrics::Metrics;
use crate::{admin, human};

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
    let serves =
        [("metrics", settings.metrics), ("pprof", settings.admin.as_ref().is_some_and(|admin| admin.pprof))];
    let serves = serves.iter().filter(|(_, served)| *served).map(|(what, _)| format!(" {what}"));
    let serves = format!("liveness{}", serves.collect::<String>());
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
    // A listener that fails cancels its token for the connections that it has, and nothing else.
    runtime.spawn(serve(listener, state, draining.child_token()));
}

/// Serves until the process drains. A listener that fails is logged and takes nothing else down: publishing matters
/// more.
async fn serve(listener: admin::Listener, state: admin::State, draining: CancellationToken) {
    if let Err(error) = listener.serve(state, draining).await {
        let hints = error.hints().join("; ");
        error!(name: "listener_ended", error = human::one_line(&error), hints, "the listener ended; syncing goes on");
    }
}
