//! Counts the bytes of packs while they are received.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// A counter of received bytes of packs, unfinished packs included. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub struct Received(Arc<AtomicU64>);

impl Received {
    /// Bytes received since the counter was created.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Wraps a writer so that the bytes written to it are counted.
    pub(super) fn counting<W>(&self, to: W) -> Counting<W> {
        Counting { to, count: self.clone() }
    }
}

/// A writer that counts the bytes written to it.
pub(super) struct Counting<W> {
    to: W,
    count: Received,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Counting<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.to).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = written {
            self.count.0.fetch_add(written as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.to).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.to).poll_shutdown(cx)
    }
}
