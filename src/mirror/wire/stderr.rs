//! What a process writes to its standard error.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

/// How much of a process's standard error is kept.
const KEPT: usize = 4 << 10;

/// What a process wrote to its standard error; nothing for other streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Stderr(Option<watch::Receiver<Vec<u8>>>);

impl Stderr {
    /// Collects in the background until the end.
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

    /// What was written, after a moment for the rest to arrive.
    pub(super) async fn settled(&self) -> Vec<u8> {
        let Some(mut receiver) = self.0.clone() else { return Vec::new() };
        let end = async { while receiver.changed().await.is_ok() {} };
        let _ = timeout(Duration::from_millis(300), end).await;
        receiver.borrow().clone()
    }
}
