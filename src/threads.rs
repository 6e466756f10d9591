//! Work that several threads share.

/// Does the work on so many threads, of which the caller's is one. Where the system gives fewer (pids.max, memory), those
/// do all of it.
pub(crate) fn on_threads(count: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        let start = || std::thread::Builder::new().spawn_scoped(scope, &work);
        let started = (1..count).map_while(|_| start().ok()).count();
        if started + 1 < count {
            tracing::debug!(started, "the system gives no more threads");
        }
        work();
    });
}
