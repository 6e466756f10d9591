//! What a sync does before it opens anything: it listens for signals and, if there is a listener, serves probes.

use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::delayed_trigger::{requesting, spread};
use super::signals::Signals;
use super::{Error, listener, starting, system};
use crate::config::Settings;
use crate::phase::{Status, Trigger};
use crate::sources::Requests;
use crate::telemetry::metrics::Metrics;
use crate::{admin, shutdown};

/// What exists before anything is opened.
pub(super) struct Startup {
    /// Cancelled when the process is asked to end.
    pub(super) draining: CancellationToken,
    /// The signals that trigger an attempt.
    pub(super) signals: Signals,
    pub(super) metrics: Metrics,
    pub(super) status: watch::Sender<Status>,
    /// What was last sent to `status`.
    pub(super) shown: watch::Receiver<Status>,
    /// The sources that triggers were for.
    pub(super) requests: Requests,
    /// Triggers an attempt, for webhooks and signals.
    pub(super) ask: admin::TriggerFn,
}

impl Startup {
    /// Listens for signals, and starts the listener. The status says `what` is being done. `trigger_attempt` is
    /// called for triggers, up to `--trigger-spread` later; those that come in between are one call.
    ///
    /// # Errors
    /// If the listener's address cannot be bound, or the kernel refuses a signal handler.
    pub(super) fn begin(
        runtime: &Runtime,
        settings: &Settings,
        metrics: Metrics,
        what: &str,
        trigger_attempt: impl Fn(Trigger) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (draining, signals) = listen_for_signals(runtime, settings)?;
        // The address is bound before anything else is touched, so that a port in use is reported at once.
        let listener = settings.admin.clone().map(|options| runtime.block_on(admin::Listener::bind(options)));
        let listener = listener.transpose()?;
        metrics.sandbox(settings.mirror.sandbox.parts());
        let (status, shown) = watch::channel(starting(what.to_owned()));
        let requests = Requests::default();
        let ask = spread(runtime.handle(), settings.trigger_spread, &metrics, Arc::new(trigger_attempt));
        let ask = requesting(&requests, ask);
        if let Some(listener) = listener {
            listener::start(runtime, listener, settings, &metrics, &shown, &ask, &draining);
        }
        Ok(Self { draining, signals, metrics, status, shown, requests, ask })
    }
}

/// Starts to listen for the signals that end the process, which cancel the token, and for those that trigger an
/// attempt.
fn listen_for_signals(runtime: &Runtime, settings: &Settings) -> Result<(CancellationToken, Signals), Error> {
    let _inside = runtime.enter();
    let signals = Signals::listen(settings.signal).map_err(system("listen for signals"))?;
    let deadline_exit_code = u8::from(settings.sync.one_time);
    let draining = shutdown::listen(deadline_exit_code).map_err(system("listen for signals"))?;
    Ok((draining, signals))
}
