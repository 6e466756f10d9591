//! What a writer reports to processes that may read its root: a socket in the root's private directory, in which each
//! connection is answered with one JSON document, and closed.
//!
//! A file could say as much, but only if it were written at every poll, and it would look as fresh after a kill. A
//! socket tells more at no cost: nothing listens where no writer runs, one that is stopped does not answer, and one
//! whose loop hangs says so. It works for any user, from any container and through a read-only mount, as pins do. It is
//! 0666 in a directory that only the writer may change; nothing is read from it.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::fsx;
use crate::phase::Status;
use crate::secret;

/// One answer may take so long to be read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers at one time; further ones wait their turn, which comes within [`PATIENCE`].
const MOST: usize = 16;

/// Bytes of an answer that are read at most.
const LIMIT: u64 = 16 << 20;

/// How often the socket's place is looked at when nothing happens.
const LOOK: Duration = Duration::from_secs(60);

/// How a writer is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Writer {
    /// It answers.
    Answers(Box<LiveStatus>),
    /// It is there, and does not answer: it is stopped, or the machine has no time for it.
    Silent,
    /// None runs.
    Absent,
    /// Whether one runs cannot be found out: why.
    Unknown(String),
}

/// What a writer says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LiveStatus {
    /// Whether its loop has been heard of as it promised.
    pub alive: bool,
    /// All it knows, but for what the root's ledger has.
    pub status: Status,
}

/// A path that fits into an address whatever the root is called: 108 bytes are little.
fn short(path: &Path) -> std::io::Result<(std::os::fd::OwnedFd, PathBuf)> {
    use std::os::fd::AsRawFd as _;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let dir = fsx::open_dir_at_path(dir)?;
    let at = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    Ok((dir, at))
}

fn bind(path: &Path) -> std::io::Result<(UnixListener, (u64, u64))> {
    let (_dir, at) = short(path)?;
    match std::fs::remove_file(&at) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {} // only the holder of the root's lock listens here
    }
    let listener = UnixListener::bind(&at)?;
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o666))?;
    let found = std::fs::symlink_metadata(&at)?;
    Ok((listener, (found.dev(), found.ino())))
}

fn is_in_place(path: &Path, identity: (u64, u64)) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == identity)
}

/// Removes our socket: one that is left does not answer. The next writer may have put its own there by now.
fn remove(path: &Path, identity: (u64, u64)) {
    if is_in_place(path, identity) {
        let _ = std::fs::remove_file(path); // what stays is replaced by the next writer
    }
}

/// Answers until `shutdown` is cancelled. Only for the holder of the lock of the root that `path` is in. A file system
/// without sockets costs `treeswap status` its news, and nothing else.
pub async fn serve(path: PathBuf, mut status: watch::Receiver<Status>, shutdown: CancellationToken) {
    let turns = Arc::new(Semaphore::new(MOST));
    let mut said = false;
    loop {
        let (listener, identity) = match bind(&path) {
            Ok(bound) => bound,
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(%error, "`treeswap status` cannot ask this process: no socket at {}", path.display());
                }
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(LOOK) => continue,
                }
            }
        };
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return remove(&path, identity),
                accepted = listener.accept() => {
                    let Ok((mut stream, _)) = accepted else {
                        tokio::time::sleep(Duration::from_millis(100)).await; // no descriptor is left for it
                        continue;
                    };
                    let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
                    let text = answer(&status.borrow());
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(PATIENCE, stream.write_all(&text)).await;
                        drop(turn);
                    });
                }
                // An attempt begins or ends: the whole directory may have been removed since.
                changed = status.changed() => {
                    if changed.is_err() {
                        return remove(&path, identity);
                    }
                    if !is_in_place(&path, identity) {
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // a directory that is removed again and again costs little processor time
    }
}

fn answer(status: &Status) -> Vec<u8> {
    let status = Status { targets: Vec::new(), ..status.clone() };
    let answer = LiveStatus { alive: status.is_alive(&clock::now()), status };
    let text = serde_json::to_string(&answer).unwrap_or_default();
    secret::redacted(&text).into_owned().into_bytes()
}

/// Asks the writer of a root, and waits no longer than `patience`. Blocking.
pub fn ask(path: &Path, patience: Duration) -> Writer {
    let (send, asked) = std::sync::mpsc::channel();
    let path = path.to_owned();
    // connect(2) waits without end where as many wait already as the kernel queues.
    let asking = std::thread::Builder::new().spawn(move || send.send(connect(&path, patience)));
    if let Err(error) = asking {
        return Writer::Unknown(error.to_string());
    }
    match asked.recv_timeout(patience) {
        Ok(Ok(text)) => match serde_json::from_slice(&text) {
            Ok(answer) => Writer::Answers(Box::new(answer)),
            Err(error) => Writer::Unknown(format!("its answer cannot be understood: {error}")),
        },
        Ok(Err(error)) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Writer::Absent,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Writer::Silent,
            _ => Writer::Unknown(error.to_string()),
        },
        Err(_) => Writer::Silent,
    }
}

fn connect(path: &Path, patience: Duration) -> std::io::Result<Vec<u8>> {
    let (_dir, at) = short(path)?;
    let stream = std::os::unix::net::UnixStream::connect(at)?;
    stream.set_read_timeout(Some(patience))?;
    let mut text = Vec::new();
    stream.take(LIMIT).read_to_end(&mut text)?;
    // A writer that ends in this moment closes without a word.
    if text.is_empty() { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_writer_answers_while_it_runs_and_wherever_its_directory_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("status.sock");
        let ask = || {
            let path = path.clone();
            tokio::task::spawn_blocking(move || super::ask(&path, LONG))
        };
        assert_eq!(ask().await.unwrap(), Writer::Absent);
        let (status, shown) = watch::channel(Status { remote: "r".into(), ..Status::default() });
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(path.clone(), shown, shutdown.clone()));
        let answers = async |failures: u64| {
            loop {
                match ask().await.unwrap() {
                    Writer::Answers(answer) if answer.status.consecutive_failures == failures => {
                        break answer;
                    }
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        assert!(!answers(0).await.alive, "it promised nothing");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        std::fs::remove_dir_all(&deep).unwrap();
        std::fs::create_dir(&deep).unwrap();
        status.send_modify(|status| status.consecutive_failures = 38);
        assert_eq!(answers(38).await.status.remote, "r");
        shutdown.cancel();
        serving.await.unwrap();
        assert_eq!(ask().await.unwrap(), Writer::Absent);
    }

    #[test]
    fn an_answer_has_no_secret_in_it_and_is_still_understood() {
        secret::know("canary-of-the-socket");
        let text = answer(&Status { remote: "what canary-of-the-socket said".into(), ..Status::default() });
        assert!(!String::from_utf8_lossy(&text).contains("canary-of-the-socket"));
        let understood: LiveStatus = serde_json::from_slice(&text).unwrap();
        assert!(understood.status.remote.ends_with(" said"), "{}", understood.status.remote);
    }

    #[test]
    fn one_that_listens_and_says_nothing_is_silent_and_what_a_kill_leaves_is_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(ask(&path, Duration::from_millis(50)), Writer::Silent);
        drop(listener);
        assert!(path.exists());
        assert_eq!(ask(&path, LONG), Writer::Absent);
    }
}
