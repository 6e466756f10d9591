//! How the process ends: the first SIGTERM or SIGINT drains, a deadline bounds the drain, a second signal aborts.
//!
//! It promises an end within [`DRAIN`] of the first signal, whatever the rest of the process does: past it the process
//! exits as it stands, which is no worse than a SIGKILL, and those every module survives. It closes nothing itself.

pub mod init;

use std::io;
use std::process;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// From the first signal to the end. A kubelet waits 30 seconds before it kills; people wait less.
pub const DRAIN: Duration = Duration::from_secs(4);

/// Listens for SIGTERM and SIGINT from now on. The token is cancelled by the first of them.
///
/// `late` is the exit code if the drain outlives its deadline. Needs a tokio runtime with a thread of its own that
/// nothing blocks.
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

/// The number of the next signal that ends the process.
async fn next(
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}
