//! Graceful shutdown: the first SIGTERM or SIGINT starts the drain, a deadline bounds it, and a second signal exits at
//! once.
//!
//! The process ends within [`DRAIN`] of the first signal, even if something hangs: at the deadline it exits without
//! cleanup, from which the next start recovers as from a SIGKILL.

pub mod init;

use std::io;
use std::process;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Deadline of the drain, from the first signal on. By default a kubelet sends SIGKILL after 30 seconds; people wait
/// less.
pub const DRAIN: Duration = Duration::from_secs(4);

/// A signal that arrives again this soon after the first is the same request. A terminal sends Ctrl-C's SIGINT to all
/// its processes, so in a container this one gets it from the terminal and once more from [`init`], which forwards its
/// own.
const FORWARDED_WITHIN: Duration = Duration::from_millis(200);

/// Signals that can ask for a sync (`--sync-on-signal`): name and number. SIGTERM and SIGINT are not among them, as they
/// always end the process; git-sync can be made unstoppable with `--sync-on-signal=TERM`.
pub const SYNC_SIGNALS: [(&str, i32); 8] = [
    ("HUP", 1),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
];

/// Listens for SIGTERM and SIGINT from now on. The first of them cancels the returned token, a second one exits with
/// 128 and its number, unless it is the first again within [`FORWARDED_WITHIN`].
///
/// `deadline_exit_code` is the exit code if the drain exceeds its deadline.
///
/// The signals have a thread and a runtime of their own. The handlers that tokio installs stay when a runtime ends, so
/// that with the caller's runtime nothing would end a process that is still busy afterwards.
pub fn listen(deadline_exit_code: u8) -> io::Result<CancellationToken> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let mut signals = EndSignals::listen()?; // before this returns, so that a signal right after it is not lost
    drop(inside);
    let draining = CancellationToken::new();
    let token = draining.clone();
    let exit_code = async move {
        signals.next().await;
        let deadline = Instant::now() + DRAIN;
        token.cancel();
        tokio::select! {
            second = signals.next() => 128 + second,
            () = tokio::time::sleep_until(deadline) => i32::from(deadline_exit_code),
        }
    };
    let end = move || process::exit(runtime.block_on(exit_code));
    std::thread::Builder::new().name("signals".to_owned()).spawn(end)?;
    Ok(draining)
}

/// The signals that end the process, SIGTERM and SIGINT, as a stream of requests.
pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    first: FirstSignal,
}

impl EndSignals {
    /// Listens for the signals from now on. Needs a tokio runtime.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            first: FirstSignal::default(),
        })
    }

    /// Waits for the next request and returns its signal's number. Nothing is lost if the wait is cancelled.
    pub async fn next(&mut self) -> i32 {
        loop {
            let kind = tokio::select! {
                _ = self.terminate.recv() => SignalKind::terminate(),
                _ = self.interrupt.recv() => SignalKind::interrupt(),
            };
            if !self.first.is_repeated(kind.as_raw_value(), Instant::now()) {
                return kind.as_raw_value();
            }
        }
    }
}

/// The number of the first signal and when it arrived.
#[derive(Default)]
struct FirstSignal(Option<(i32, Instant)>);

impl FirstSignal {
    /// Whether a signal that arrives now is the first one again, and no request of its own.
    fn is_repeated(&mut self, signal: i32, now: Instant) -> bool {
        match self.0 {
            Some((first, at)) => signal == first && now.duration_since(at) < FORWARDED_WITHIN,
            None => {
                self.0 = Some((signal, now));
                false
            }
        }
    }
}

/// Ignores from now on, until somebody listens for it, a signal that asks for a sync and whose default action would end
/// the process: SIGHUP, since the process may not have come to listening yet, and a sync follows at the start anyway. As
/// git-sync also those that Go's runtime ignores, which are all but SIGQUIT.
pub fn ignore_sync_signals(as_git_sync: bool) -> io::Result<()> {
    // A handler of tokio stays installed when the stream and the runtime are dropped. Unlike an ignored signal it is not
    // inherited by programs that are started meanwhile.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let ignored = |name: &str| name == "HUP" || (as_git_sync && name != "QUIT");
    let mut numbers = SYNC_SIGNALS.into_iter().filter(|(name, _)| ignored(name)).map(|(_, number)| number);
    numbers.try_for_each(|number| signal(SignalKind::from_raw(number)).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_that_comes_twice_at_once_is_one_request() {
        let (interrupt, terminate) = (2, 15);
        let start = Instant::now();
        let mut first = FirstSignal::default();
        assert!(!first.is_repeated(interrupt, start));
        assert!(first.is_repeated(interrupt, start + FORWARDED_WITHIN / 2), "forwarded by init");
        assert!(!first.is_repeated(terminate, start + FORWARDED_WITHIN / 2), "another signal");
        assert!(!first.is_repeated(interrupt, start + FORWARDED_WITHIN), "a second Ctrl-C");
    }
}
