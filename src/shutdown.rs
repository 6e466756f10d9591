//! Graceful shutdown: the first SIGTERM or SIGINT starts the drain, a deadline bounds it, and a second signal exits at
//! once.
//!
//! The process ends within [`DRAIN`] of the first signal, whatever the rest of it does: at the deadline it exits
//! without further cleanup, which is no worse than a SIGKILL, and every module survives that. This module closes
//! nothing itself.

pub mod init;

use std::io;
use std::process;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Deadline of the drain, from the first signal on. By default a kubelet sends SIGKILL after 30 seconds; people wait
/// less.
pub const DRAIN: Duration = Duration::from_secs(4);

/// Listens for SIGTERM and SIGINT from now on. The first of them cancels the returned token, a second one exits with
/// 128 and its number.
///
/// `late` is the exit code if the drain exceeds its deadline. Needs a tokio runtime with a worker thread that is never
/// blocked.
pub fn listen(late: u8) -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let draining = CancellationToken::new();
    let token = draining.clone();
    tokio::spawn(async move {
        next(&mut terminate, &mut interrupt).await;
        token.cancel();
        let deadline = tokio::time::sleep(DRAIN);
        tokio::select! {
            second = next(&mut terminate, &mut interrupt) => process::exit(128 + second),
            () = deadline => process::exit(i32::from(late)),
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
async fn next(
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}
