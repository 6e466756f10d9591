//! Collects the standard error of a child process, for error messages.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

/// The first so many bytes of a process's standard error are kept.
const KEPT: usize = 4 << 10;

/// The beginning of a process's standard error. The default, for streams without a process, is always empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Stderr(Option<watch::Receiver<Vec<u8>>>);

impl Stderr {
    /// Starts a task that reads `from` to its end.
    pub(super) fn collect(mut from: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let (sender, receiver) = watch::channel(Vec::new());
        tokio::spawn(async move {
            let mut piece = [0; 1024];
            while let Ok(taken @ 1..) = from.read(&mut piece).await {
                sender.send_modify(|kept| {
                    let room = KEPT - kept.len().min(KEPT);
                    kept.extend_from_slice(&piece[..taken.min(room)]);
                });
            }
        });
        Self(Some(receiver))
    }

    /// Returns what was written, after waiting up to 300 ms for the process to close its standard error.
    pub(super) async fn settled(&self) -> Vec<u8> {
        let Some(mut receiver) = self.0.clone() else { return Vec::new() };
        let end = async { while receiver.changed().await.is_ok() {} };
        let _ = timeout(Duration::from_millis(300), end).await;
        receiver.borrow().clone()
    }
}
