//! A child process: its standard error, which is collected for error messages, and its end.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
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

/// A child process. Dropping it kills the whole process group: `git upload-pack` starts a `git pack-objects`, which
/// would otherwise run until it notices that its pipe is closed.
#[derive(Debug)]
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The child has not been waited for, so its id, which is also the group's id, cannot have been reused.
        let group = self.0.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL); // all of them may have ended already
        }
    }
}
