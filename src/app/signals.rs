//! The signals that trigger a sync attempt (`--sync-on-signal`).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::debug;

use crate::config::signal_name;
use crate::phase::Trigger;
use crate::telemetry;

/// Handlers of the signals that trigger an attempt. SIGHUP always has a handler, as its default action would end the
/// process.
pub(super) struct Signals {
    /// The number of the signal that triggers an attempt.
    trigger: Option<i32>,
    /// The signals that have a handler, with their numbers.
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    /// Installs the handlers; `trigger` is the number of the signal that triggers an attempt. Needs a tokio runtime.
    pub(super) fn listen(trigger: Option<i32>) -> std::io::Result<Self> {
        let hangup = SignalKind::hangup().as_raw_value();
        let numbers = std::iter::once(hangup).chain(trigger.filter(|number| *number != hangup));
        if let Some(number) = trigger {
            debug!(name: "listens_for", target: telemetry::GIT_SYNC, signal = signal_name(number), "listens");
        }
        let streams = numbers.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Self { trigger, streams: streams.collect::<std::io::Result<_>>()? })
    }

    /// Calls `ask` from now on whenever the trigger signal arrives.
    pub(super) fn on_trigger(self, ask: impl Fn(Trigger) + Clone + Send + 'static) {
        for (number, mut arrivals) in self.streams {
            let is_trigger = self.trigger == Some(number);
            let ask = ask.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() {
                    if is_trigger {
                        debug!(name: "signal", signal = signal_name(number), "a signal asks for a sync");
                        ask(Trigger::Signal);
                    }
                }
            });
        }
    }
}
