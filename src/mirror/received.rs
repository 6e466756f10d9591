//! Counts the bytes of packs while they are received.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWrite;
use tokio_util::io::InspectWriter;

/// A counter of received bytes of packs, unfinished packs included. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub struct Received(Arc<AtomicU64>);

impl Received {
    /// Bytes received since the counter was created.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Wraps a writer so that the bytes written to it are counted.
    pub(super) fn counting<W: AsyncWrite>(&self, to: W) -> InspectWriter<W, impl FnMut(&[u8]) + use<W>> {
        let count = self.clone();
        InspectWriter::new(to, move |written: &[u8]| {
            count.0.fetch_add(written.len() as u64, Ordering::Relaxed);
        })
    }
}
