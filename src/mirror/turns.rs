//! Several mirrors take packs in, one large one and one small one at a time: each child that indexes may take
//! `--index-memory`.
//!
//! A remote is slow for as long as it likes, so the beginning of a pack comes without a turn; where that is all of it, as
//! with a usual commit, the turn is over in milliseconds. The first pack of a repository is likely to be large, and has its
//! turn before it is asked for: a server would have to wait in the middle of it. A remote that hangs there delays the
//! other first packs until its own deadline.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The turns of mirrors that are used side by side.
#[derive(Debug)]
pub(super) struct Turns {
    small: Semaphore,
    large: Semaphore,
}

/// The turn lasts until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(#[expect(dead_code, reason = "it is given back")] Option<SemaphorePermit<'a>>);

impl Turns {
    /// So many bytes of a pack come without a turn, and stay in memory until there is one.
    pub(super) const FREE: usize = 256 << 10;

    pub(super) fn new() -> Self {
        Self { small: Semaphore::new(1), large: Semaphore::new(1) }
    }

    /// For a pack that is here.
    pub(super) async fn small(&self) -> Turn<'_> {
        Turn(self.small.acquire().await.ok()) // it is never closed
    }

    /// For one that is still to come.
    pub(super) async fn large(&self) -> Turn<'_> {
        Turn(self.large.acquire().await.ok())
    }
}
