//! I/O on files that the operator names and that may hang: if a network file system is gone, every call on it blocks,
//! and no such call can be cancelled.
//!
//! The work runs on a thread of its own, so that it cannot use up a shared thread pool, and one at a time for each
//! path: a hung file costs one thread, however often it is read. A caller gives up by dropping the future, or by its
//! time limit; the next caller waits until the hung call has ended, and then does its own work.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// The time limit of callers that have none of their own.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a blocking caller tries to get the lock of its path.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// The lock of each path that has work running or waiting.
static LOCKS: LazyLock<Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>> = LazyLock::new(Mutex::default);

/// Runs `work` on a thread of its own, after other work on the same path. Returns `None` if no thread could be started
/// or the work panicked.
pub(crate) async fn run<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let lock = path_lock(path).lock_owned().await;
    let (done, result) = oneshot::channel();
    let run = move || {
        let result = work();
        drop(lock);
        let _ = done.send(result); // the caller may have given up
    };
    std::thread::Builder::new().name("file".to_owned()).spawn(run).ok()?;
    result.await.ok()
}

/// Blocking form of [`run`]: waits no longer than `limit`, and returns `None` after that, too.
pub(crate) fn wait<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let began = Instant::now();
    let lock = loop {
        match path_lock(path).try_lock_owned() {
            Ok(lock) => break lock,
            Err(_) if began.elapsed() < limit => std::thread::sleep(LOCK_POLL),
            Err(_) => return None,
        }
    };
    let (done, result) = std::sync::mpsc::channel();
    let run = move || {
        let result = work();
        drop(lock);
        let _ = done.send(result); // the caller may have given up
    };
    std::thread::Builder::new().name("file".to_owned()).spawn(run).ok()?;
    result.recv_timeout(limit.saturating_sub(began.elapsed())).ok()
}

/// [`wait`] with [`DEFAULT_TIMEOUT`] as the limit, for work that returns an I/O error. No result in time is one, too.
pub(crate) fn wait_for_io<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let own = path.to_owned();
    wait(path, DEFAULT_TIMEOUT, move || work(&own)).unwrap_or_else(|| Err(timeout_error()))
}

/// The error for work without a result: there was none within [`DEFAULT_TIMEOUT`], or, which is rare, no thread for it.
pub(crate) fn timeout_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {DEFAULT_TIMEOUT:?}"))
}

/// The lock of a path. Locks without running or waiting work are removed first.
fn path_lock(path: &Path) -> Arc<tokio::sync::Mutex<()>> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    locks.retain(|_, lock| Arc::strong_count(lock) > 1);
    Arc::clone(locks.entry(path.to_owned()).or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_hangs_is_left_to_itself_and_never_begun_twice() {
        let path = Path::new("/hung");
        let (end, ended) = mpsc::channel::<()>();
        let hung = tokio::time::timeout(Duration::from_millis(20), run(path, move || ended.recv()));
        assert!(hung.await.is_err(), "it hangs");
        for _ in 0..100 {
            let second = run(path, || panic!("begun while the first one hangs"));
            assert!(tokio::time::timeout(Duration::from_millis(1), second).await.is_err());
        }
        assert_eq!(run(Path::new("/other"), || 1).await, Some(1), "another file is none of its business");
        assert_eq!(wait(path, Duration::from_millis(20), || panic!("begun while the first one hangs")), None);
        assert_eq!(
            wait(Path::new("/slow"), Duration::from_millis(20), || std::thread::park_timeout(Duration::MAX)),
            None
        );
        end.send(()).unwrap();
        assert_eq!(wait(path, Duration::from_secs(60), || 4), Some(4));
        assert_eq!(run(path, || 2).await, Some(2));
        assert_eq!(run(path, || 3).await, Some(3));
    }
}
