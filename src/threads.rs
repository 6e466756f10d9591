//! Runs work on several threads.

use std::num::NonZero;

/// Number of processors that this process may use, by affinity and quota; 1 if unknown.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` on `count` threads, the caller's included, and returns when all are done. If the system refuses a thread
/// (pids.max, memory), fewer threads run, so `work` must take its items from a shared queue.
pub(crate) fn on_threads(count: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        let start = || std::thread::Builder::new().spawn_scoped(scope, &work);
        let started = (1..count).map_while(|_| start().ok()).count();
        if started + 1 < count {
            tracing::debug!(started, "cannot start more threads");
        }
        work();
    });
}
