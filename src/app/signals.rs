//! Signals that ask for a sync.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::debug;

use crate::config::signal_name;
use crate::phase::Trigger;
use crate::telemetry;

/// Signals that ask for a sync. SIGHUP is among those listened to, whether or not it asks: it never ends the process.
pub(super) struct Signals {
    asks: Option<i32>,
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    pub(super) fn listen(asks: Option<i32>) -> std::io::Result<Self> {
        let hangup = SignalKind::hangup().as_raw_value();
        let numbers = std::iter::once(hangup).chain(asks.filter(|number| *number != hangup));
        if let Some(number) = asks {
            debug!(name: "listens_for", target: telemetry::GIT_SYNC, signal = signal_name(number), "listens");
        }
        let streams = numbers.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Self { asks, streams: streams.collect::<std::io::Result<_>>()? })
    }

    pub(super) fn ask(self, ask: impl Fn(Trigger) + Clone + Send + 'static) {
        for (number, mut arrivals) in self.streams {
            let asks = self.asks == Some(number);
            let ask = ask.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() {
                    if asks {
                        debug!(name: "signal", signal = signal_name(number), "a signal asks for a sync");
                        ask(Trigger::Signal);
                    }
                }
            });
        }
    }
}
