//! Work on a file of the operator's that may never end: on a network file system that is gone every call hangs, and no
//! call can be cancelled.
//!
//! It runs on a thread of its own, so that none of those is used up that others need, and one at a time for a path:
//! what hangs costs one thread for each file, however often it is asked for. A caller gives up by dropping the future;
//! the next one waits for what hangs to end, and then looks for itself.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// As long is waited for a file where nothing else limits it: at the start and the end of the process, by `check`, and
/// for what is written beside what is published.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks of a thread whether it is its turn.
const PAUSE: Duration = Duration::from_millis(5);

/// Whose turn it is, for each path.
static TURNS: LazyLock<Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>> = LazyLock::new(Mutex::default);

/// Runs work on a file. `None`: the system has no thread for it, or it panicked.
pub(crate) async fn run<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let turn = turn(path).lock_owned().await;
    let (done, result) = oneshot::channel();
    let run = move || {
        let result = work();
        drop(turn);
        let _ = done.send(result); // who waited may have given up
    };
    std::thread::Builder::new().name("file".to_owned()).spawn(run).ok()?;
    result.await.ok()
}

/// The same for a thread that may block, which waits no longer than `limit`. `None`: nor is there a result then.
pub(crate) fn wait<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let began = Instant::now();
    let turn = loop {
        match turn(path).try_lock_owned() {
            Ok(turn) => break turn,
            Err(_) if began.elapsed() < limit => std::thread::sleep(PAUSE),
            Err(_) => return None,
        }
    };
    let (done, result) = std::sync::mpsc::channel();
    let run = move || {
        let result = work();
        drop(turn);
        let _ = done.send(result); // who waited may have given up
    };
    std::thread::Builder::new().name("file".to_owned()).spawn(run).ok()?;
    result.recv_timeout(limit.saturating_sub(began.elapsed())).ok()
}

/// The same with [`PATIENCE`], for what fails with the system's words.
pub(crate) fn patiently<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let own = path.to_owned();
    wait(path, PATIENCE, move || work(&own)).unwrap_or_else(|| Err(late()))
}

/// Why there is nothing, of a file that was waited for with [`PATIENCE`].
pub(crate) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"))
}

fn turn(path: &Path) -> Arc<tokio::sync::Mutex<()>> {
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| Arc::strong_count(turn) > 1); // no work, no waiters
    Arc::clone(turns.entry(path.to_owned()).or_default())
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
