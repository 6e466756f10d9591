//! Limits how many mirrors index packs at the same time: one large pack and one small pack, because each indexing child
//! process may use `--index-memory`.
//!
//! A remote may be arbitrarily slow, so the beginning of a pack is received without a turn. If that is the whole pack,
//! as with a usual commit, its turn lasts milliseconds. The first pack of a repository is likely to be large, so its
//! turn is taken before the request is sent: otherwise the server would have to wait in the middle of the pack. A
//! remote that hangs during its turn delays other first packs until its own deadline.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The semaphores for a set of mirrors.
#[derive(Debug)]
pub(super) struct IndexLimiter {
    small: Semaphore,
    large: Semaphore,
}

/// A permit to index a pack, until it is dropped.
#[derive(Debug)]
pub(super) struct IndexPermit<'a>(
    #[expect(dead_code, reason = "released when dropped")] Option<SemaphorePermit<'a>>,
);

impl IndexLimiter {
    /// Bytes of a pack that are received before its turn, and kept in memory until then.
    pub(super) const BUFFERED: usize = 256 << 10;

    pub(super) fn new() -> Self {
        Self { small: Semaphore::new(1), large: Semaphore::new(1) }
    }

    /// Waits for the turn of a pack that was received completely.
    pub(super) async fn small(&self) -> IndexPermit<'_> {
        // An error means that the semaphore was closed, which never happens.
        IndexPermit(self.small.acquire().await.ok())
    }

    /// Waits for the turn of a pack of which more is to be received.
    pub(super) async fn large(&self) -> IndexPermit<'_> {
        IndexPermit(self.large.acquire().await.ok())
    }
}
