//! Graceful shutdown: the first SIGTERM or SIGINT starts the drain, a deadline bounds it, and a second signal exits at
//! once.
//!
//! The process ends within [`DRAIN`] of the first signal, even if something hangs: at the deadline it exits without
//! cleanup, from which the next start recovers as from a SIGKILL.

pub mod init;

use std::io;
use std::process;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Deadline of the drain, from the first signal on. By default a kubelet sends SIGKILL after 30 seconds; people wait
/// less.
pub const DRAIN: Duration = Duration::from_secs(4);

/// A signal that arrives again this soon after the first is the same request. A terminal sends Ctrl-C's SIGINT to all
/// its processes, so in a container this one gets it from the terminal and once more from [`init`], which forwards its
/// own.
const FORWARDED_WITHIN: Duration = Duration::from_millis(200);

/// Listens for SIGTERM and SIGINT from now on. The first of them cancels the returned token, a second one exits with
/// 128 and its number, unless it is the first again within [`FORWARDED_WITHIN`].
///
/// `deadline_exit_code` is the exit code if the drain exceeds its deadline. Needs a tokio runtime with a worker thread
/// that is never blocked.
pub fn listen(deadline_exit_code: u8) -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let draining = CancellationToken::new();
    let token = draining.clone();
    tokio::spawn(async move {
        let first = next_signal(&mut terminate, &mut interrupt).await;
        let start = Instant::now();
        token.cancel();
        let second = async {
            loop {
                let signal = next_signal(&mut terminate, &mut interrupt).await;
                if signal != first || start.elapsed() >= FORWARDED_WITHIN {
                    return signal;
                }
            }
        };
        tokio::select! {
            second = second => process::exit(128 + second),
            () = tokio::time::sleep_until(start + DRAIN) => process::exit(i32::from(deadline_exit_code)),
        }
    });
    Ok(draining)
}

/// Ignores SIGHUP from now on, until somebody listens for it. Its default action would end a process that has not come
/// to listening yet, although it only asks for a sync, and one follows at the start anyway.
pub fn ignore_hangup() -> io::Result<()> {
    // A handler of tokio stays installed when the stream and the runtime are dropped. Unlike an ignored signal it is not
    // inherited by programs that are started meanwhile.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    signal(SignalKind::hangup()).map(drop)
}

/// Waits for SIGTERM or SIGINT and returns its number.
async fn next_signal(
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}
