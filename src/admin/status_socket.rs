//! The live status of a root's writer, for processes that can read the root: a Unix socket in the root's private
//! directory. The writer answers each connection with one JSON document and closes it.
//!
//! A file would have to be written at every poll, and would look fresh after the writer was killed. A socket shows more
//! and costs nothing at rest: without a writer nobody listens, a stopped writer does not answer, and a writer whose
//! loop hangs says so. It works for any user, from any container and through a read-only mount, as pins do. Its mode is
//! 0666, in a directory that only the writer can change; the writer reads nothing from it.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::detached_io;
use crate::fsx::{self, Inode};
use crate::phase::Status;
use crate::repeats::{Repeats, suppressed};
use crate::secret;

/// How long a client may take to read an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The most answers in flight. Further connections wait in the socket's backlog until one of these ends, which takes at
/// most [`ANSWER_TIMEOUT`].
const MAX_ANSWERS: usize = 16;

/// How long a rendered answer is shared while the status stays the same. Not for ever: whether the loop is alive
/// depends on the time.
const SHARED: Duration = Duration::from_millis(100);

/// How many bytes of an answer a client reads.
const MAX_ANSWER_SIZE: u64 = 16 << 20;

/// The pause before another try to make the socket, for example on a file system without sockets.
const BIND_RETRY: Duration = Duration::from_secs(60);

/// The pause before another try in a root that was removed: the next repair may make it again.
const ROOT_RETRY: Duration = Duration::from_secs(1);

/// The state of a root's writer, as a client finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriterState {
    /// It runs and answers.
    Answers(Box<LiveStatus>),
    /// It runs and does not answer: it is stopped, or the machine is overloaded.
    Silent,
    /// No writer runs.
    Absent,
    /// It could not be found out whether one runs; says why.
    Unknown(String),
}

/// A writer's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LiveStatus {
    /// True if the writer's loop meets the deadline that it set for its next sign of life.
    pub alive: bool,
    /// The status, without the targets, which the root's ledger has.
    pub status: Status,
}

/// Returns a path of the socket that fits into the 108 bytes of a socket address, however long the root's path is. It
/// is valid while the returned directory handle is open.
fn short_path(path: &Path) -> std::io::Result<(std::os::fd::OwnedFd, PathBuf)> {
    use std::os::fd::AsRawFd as _;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let dir = fsx::open_dir_at_path(dir)?;
    let at = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    Ok((dir, at))
}

/// Makes the socket, in place of any other, and returns its inode. Only the holder of the root's lock may.
fn bind(path: &Path) -> std::io::Result<(UnixListener, Inode)> {
    let (_dir, at) = short_path(path)?;
    match std::fs::remove_file(&at) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&at)?;
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o666))?;
    let bound = inode_of(&at)?.ok_or(ErrorKind::NotFound)?;
    Ok((listener, bound))
}

/// The inode at a path, not following a symlink. `None` if there is nothing.
fn inode_of(path: &Path) -> std::io::Result<Option<Inode>> {
    Ok(fsx::stat(rustix::fs::CWD, path)?.map(|found| Inode::of(&found)))
}

/// Returns true if the path still is our socket.
fn is_in_place(path: &Path, identity: Inode) -> bool {
    inode_of(path).is_ok_and(|found| found == Some(identity))
}

/// Removes our socket at shutdown, unless the next writer has replaced it.
fn remove(path: &Path, identity: Inode) {
    if is_in_place(path, identity) {
        let _ = std::fs::remove_file(path); // if that fails, the next writer replaces it
    }
}

/// Waits until fewer than [`MAX_ANSWERS`] answers are in flight, then for a connection. If it is dropped, no connection
/// is lost.
async fn accept(
    listener: &UnixListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(UnixStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(std::io::Error::other)?; // it is never closed
    let (stream, _) = listener.accept().await?;
    Ok((stream, slot))
}

/// Answers until `shutdown` is cancelled. Only the holder of the root's lock may call it. On a file system without
/// sockets only `treeswap status` is affected: it cannot ask the writer.
pub async fn serve(path: PathBuf, mut status: watch::Receiver<Status>, shutdown: CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_ANSWERS));
    let answers = Arc::new(Mutex::new(Answers { status: status.clone(), last: None }));
    let mut refusing = Repeats::default();
    while let Some((listener, identity)) = bind_when_possible(&path, &shutdown).await {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return remove(&path, identity),
                accepted = accept(&listener, &slots) => {
                    let (stream, slot) = match accepted {
                        Ok(accepted) => accepted,
                        Err(error) => {
                            if let Some(times) = refusing.should_log(&error.to_string()) {
                                tracing::warn!(%error, "cannot answer `treeswap status`{}", suppressed(times));
                            }
                            tokio::time::sleep(Duration::from_millis(100)).await; // out of descriptors, probably
                            continue;
                        }
                    };
                    refusing.forget();
                    tokio::spawn(answer_one(stream, slot, Arc::clone(&answers)));
                }
                // Checked whenever an attempt begins or ends, as the directory may have been removed and made again.
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
        // Limits the processor time if the directory is removed again and again.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Makes the socket as soon as that is possible. `None` at shutdown.
async fn bind_when_possible(path: &Path, shutdown: &CancellationToken) -> Option<(UnixListener, Inode)> {
    let mut is_reported = false;
    loop {
        let error = match bind(path) {
            Ok(bound) => return Some(bound),
            Err(error) => error,
        };
        let is_root_missing = path.parent().is_none_or(|dir| !dir.exists());
        if !is_root_missing && !std::mem::replace(&mut is_reported, true) {
            tracing::warn!(%error, "`treeswap status` cannot query this process: no socket at {}", path.display());
        }
        let pause = if is_root_missing { ROOT_RETRY } else { BIND_RETRY };
        shutdown.run_until_cancelled(tokio::time::sleep(pause)).await?;
    }
}

/// Answers one client, which takes one of the slots for answers in flight.
async fn answer_one(mut stream: UnixStream, _slot: OwnedSemaphorePermit, answers: Arc<Mutex<Answers>>) {
    // Not on a blocking thread: volumes that hang may have them all.
    let text = answers.lock().await.text();
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&text)).await;
}

/// Renders answers, one at a time, and shares each for a while: each reader of the root can ask without end.
struct Answers {
    status: watch::Receiver<Status>,
    /// The last answer, and when it was rendered.
    last: Option<(Instant, Bytes)>,
}

impl Answers {
    fn text(&mut self) -> Bytes {
        let has_changed = self.status.has_changed().unwrap_or(true); // without a sender nobody knows
        let last = self.last.as_ref().filter(|(at, _)| !has_changed && at.elapsed() < SHARED);
        if let Some((_, text)) = last {
            return text.clone();
        }
        let status = self.status.borrow_and_update().clone(); // the loop waits for the lock: no longer than this
        let text = Bytes::from(answer(status));
        self.last = Some((Instant::now(), text.clone()));
        text
    }
}

/// Renders the answer as JSON, with secrets redacted.
fn answer(status: Status) -> Vec<u8> {
    let status = Status { targets: Vec::new(), ..status };
    let answer = LiveStatus { alive: status.is_alive(), status };
    let text = serde_json::to_string(&answer).unwrap_or_default();
    secret::redacted_json(&text).into_bytes()
}

/// Asks the writer of a root for its status. Blocks for at most `timeout`.
pub fn query_writer(path: &Path, timeout: Duration) -> WriterState {
    let own = path.to_owned();
    // connect(2) blocks without a timeout while the listener's backlog is full.
    match detached_io::wait(path, timeout, move || connect(&own, timeout)) {
        Some(Ok(text)) => match serde_json::from_slice(&text) {
            Ok(answer) => WriterState::Answers(Box::new(answer)),
            Err(error) => WriterState::Unknown(format!("its response cannot be parsed: {error}")),
        },
        Some(Err(error)) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => WriterState::Absent,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => WriterState::Silent,
            _ => WriterState::Unknown(error.to_string()),
        },
        None => WriterState::Silent,
    }
}

/// Connects to the socket and reads the answer. If the writer dies before it answers, that is
/// [`ErrorKind::ConnectionRefused`]; if it dies in mid-answer, what it wrote is returned, and cannot be parsed.
fn connect(path: &Path, timeout: Duration) -> std::io::Result<Vec<u8>> {
    let (_dir, at) = short_path(path)?;
    let stream = std::os::unix::net::UnixStream::connect(at)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut text = Vec::new();
    stream.take(MAX_ANSWER_SIZE).read_to_end(&mut text)?;
    if text.is_empty() { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_writer_answers_also_after_its_directory_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("status.sock");
        let query_writer = || {
            let path = path.clone();
            tokio::task::spawn_blocking(move || super::query_writer(&path, LONG))
        };
        assert_eq!(query_writer().await.unwrap(), WriterState::Absent);
        let (status, shown) = watch::channel(Status { remote: "r".into(), ..Status::default() });
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(path.clone(), shown, shutdown.clone()));
        let answers = async |failures: u64| {
            loop {
                match query_writer().await.unwrap() {
                    WriterState::Answers(answer) if answer.status.consecutive_failures == failures => {
                        break answer;
                    }
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        assert!(!answers(0).await.alive, "it promised nothing");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        std::fs::remove_dir_all(&deep).unwrap();
        status.send_modify(|status| status.consecutive_failures = 37);
        tokio::time::sleep(Duration::from_millis(300)).await; // it finds no directory to make its socket in
        std::fs::create_dir(&deep).unwrap();
        status.send_modify(|status| status.consecutive_failures = 38);
        assert_eq!(answers(38).await.status.remote, "r");
        shutdown.cancel();
        serving.await.unwrap();
        assert_eq!(query_writer().await.unwrap(), WriterState::Absent);
    }

    /// With as many slow clients as there may be answers, and one more that waits.
    #[tokio::test(start_paused = true)]
    async fn shutdown_does_not_wait_for_clients_that_read_nothing() {
        // While a blocking task runs, tokio's paused clock stands still: no answer times out. If the server waits for
        // that, the clock goes on after this.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let stopped_clock = tokio::task::spawn_blocking(move || ended.recv_timeout(LONG));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.sock");
        let remote = "! ".repeat(200 << 10); // more than the buffers of a socket
        let (_status, shown) = watch::channel(Status { remote, ..Status::default() });
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(path.clone(), shown, shutdown.clone()));
        while !path.exists() {
            tokio::task::yield_now().await;
        }
        let mut clients = Vec::new();
        for _ in 0..MAX_ANSWERS {
            let mut client = UnixStream::connect(&path).await.unwrap();
            client.read_u8().await.unwrap();
            clients.push(client);
        }
        clients.push(UnixStream::connect(&path).await.unwrap());
        for _ in 0..100 {
            tokio::task::yield_now().await; // the server may accept it now
        }
        let began = tokio::time::Instant::now();
        shutdown.cancel();
        serving.await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(end);
        let _ = stopped_clock.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn each_outage_of_the_socket_is_logged_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let subscriber = tracing_subscriber::fmt().with_writer(std::fs::File::create(&log).unwrap()).finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let private = dir.path().join("private");
        let path = private.join("status.sock");
        let (status, shown) = watch::channel(Status::default());
        let _serving = tokio::spawn(serve(path.clone(), shown, CancellationToken::new()));
        for outages in 1..=2 {
            std::fs::write(&private, "").unwrap(); // no socket can be in a file
            status.send_modify(|status| status.consecutive_failures += 1);
            tokio::time::sleep(3 * BIND_RETRY).await;
            let text = std::fs::read_to_string(&log).unwrap();
            assert_eq!(text.matches("no socket at").count(), outages, "{text}");
            std::fs::remove_file(&private).unwrap();
            std::fs::create_dir(&private).unwrap();
            tokio::time::sleep(2 * BIND_RETRY).await;
            assert!(path.exists());
            std::fs::remove_dir_all(&private).unwrap();
        }
    }

    #[test]
    fn a_writer_whose_blocking_threads_all_hang_answers() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hung = runtime.spawn_blocking(move || ended.recv_timeout(LONG));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.sock");
        let (_status, shown) = watch::channel(Status { remote: "r".into(), ..Status::default() });
        let text = runtime.block_on(async {
            tokio::spawn(serve(path.clone(), shown, CancellationToken::new()));
            while !path.exists() {
                tokio::task::yield_now().await;
            }
            let mut client = UnixStream::connect(&path).await.unwrap();
            let mut text = Vec::new();
            tokio::time::timeout(LONG / 2, client.read_to_end(&mut text)).await.unwrap().unwrap();
            text
        });
        let answer: LiveStatus = serde_json::from_slice(&text).unwrap();
        assert_eq!(answer.status.remote, "r");
        drop(end);
        let _ = runtime.block_on(hung).unwrap();
    }

    #[test]
    fn an_answer_has_no_secret_in_it_and_is_still_understood() {
        secret::register("canary-of-the-socket");
        let text = answer(Status { remote: "what canary-of-the-socket said".into(), ..Status::default() });
        assert!(!String::from_utf8_lossy(&text).contains("canary-of-the-socket"));
        let understood: LiveStatus = serde_json::from_slice(&text).unwrap();
        assert!(understood.status.remote.ends_with(" said"), "{}", understood.status.remote);
    }

    #[test]
    fn an_answer_is_shared_for_a_while_unless_the_status_changes() {
        let (sender, status) = watch::channel(Status::default());
        let mut answers = Answers { status, last: None };
        let shared = Bytes::from_static(b"shared");
        let later = Instant::now() + LONG;
        answers.last = Some((later, shared.clone()));
        assert_eq!(answers.text().as_ptr(), shared.as_ptr(), "the same bytes, not a copy of them");
        sender.send_modify(|status| status.remote = "changed".into());
        let changed: LiveStatus = serde_json::from_slice(&answers.text()).unwrap();
        assert_eq!(changed.status.remote, "changed");
        answers.last = Some((Instant::now(), shared.clone()));
        std::thread::sleep(SHARED);
        assert_ne!(answers.text(), shared, "whether the writer is alive depends on the time");
    }

    #[test]
    fn a_writer_that_does_not_answer_is_silent_and_a_stale_socket_means_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(query_writer(&path, Duration::from_millis(50)), WriterState::Silent);
        drop(listener);
        assert!(path.exists());
        assert_eq!(query_writer(&path, LONG), WriterState::Absent);
    }

    #[test]
    fn a_writer_that_dies_in_mid_answer_is_in_an_unknown_state_and_one_that_dies_before_it_is_absent() {
        let ask_one_that_says = |answer: &'static [u8]| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("status.sock");
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let writer = std::thread::spawn(move || listener.accept().unwrap().0.write_all(answer).unwrap());
            let state = query_writer(&path, LONG);
            writer.join().unwrap();
            state
        };
        assert_eq!(ask_one_that_says(b""), WriterState::Absent);
        let state = ask_one_that_says(b"{\"alive\":tr");
        assert!(matches!(state, WriterState::Unknown(_)), "{state:?}");
    }
}
