//! Shared code of the integration tests: a [`World`] of temporary directories with a remote, an independent check of
//! the published tree ([`tree`]), the rules for what may be in a root ([`root`]), and running programs in a clean
//! environment ([`run`]).
//!
//! Nothing here uses the library: a commit's content is read by the `git` program and the root by plain system calls,
//! so that a defect of treeswap cannot hide itself.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)] // each test binary uses only a part

pub mod git_sync;
pub mod http_backend;
pub mod mounts;
pub mod random;
pub mod raw;
pub mod remote;
pub mod root;
pub mod run;
pub mod schema;
pub mod sidecar;
pub mod sources_world;
pub mod sshd;
pub mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use random::Random;
pub use raw::Raw;
pub use remote::{Files, Remote, noise};
pub use run::Ran;
pub use sidecar::Sidecar;
pub use tree::Snapshot;

/// The temporary directory of one test, with `remote` (a git repository), `root` (not created) and `home` (empty).
pub struct World {
    dir: tempfile::TempDir,
    pub remote: Remote,
    pub root: PathBuf,
}

impl World {
    /// Creates a world on a memory file system if there is one: tests create and remove thousands of small files and
    /// are not about the disk's speed.
    pub fn new() -> Self {
        Self::within(&scratch())
    }

    /// Creates a world below `parent`.
    pub fn within(parent: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("treeswap-test-").tempdir_in(parent).unwrap();
        let remote = Remote::create(&dir.path().join("remote"));
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let root = dir.path().join("root");
        Self { dir, remote, root }
    }

    /// The directory that contains everything of this world.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command that runs `treeswap` with these arguments in a clean environment.
    pub fn treeswap<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = run::clean(binary(), &self.dir().join("home"));
        command.args(args);
        command
    }

    /// Returns a command that syncs the remote's `main` into the root, with additional arguments.
    pub fn sync(&self, more: &[&str]) -> Command {
        let mut command = self.treeswap(&["sync", "--repo"]);
        command.arg(&self.remote.path).arg("--ref=main").arg("--root").arg(&self.root).args(more);
        command
    }

    /// Runs one sync with `--one-time`.
    pub fn sync_once(&self, more: &[&str]) -> Ran {
        run::to_end(self.sync(&["--one-time"]).args(more))
    }

    /// The differences between the published tree, including the links in the root, and the commit's tree; empty if
    /// there are none.
    pub fn differences(&self, commit: &str) -> Vec<String> {
        let expected = self.remote.snapshot(commit);
        root::differences(&self.root, &expected)
    }

    /// Fails the test unless exactly this commit is published, including the links in the root.
    #[track_caller]
    pub fn assert_published(&self, commit: &str) {
        let wrong = self.differences(commit);
        assert!(wrong.is_empty(), "the root is not {commit}:\n  {}", wrong.join("\n  "));
    }

    /// Fails the test unless the root contains exactly this many generations and no left-overs.
    #[track_caller]
    pub fn assert_clean(&self, generations: usize) {
        let left = root::left_behind(&self.root, generations);
        assert!(left.is_empty(), "left behind in the root:\n  {}", left.join("\n  "));
    }
}

/// The binary under test: the one built by cargo, unless `TREESWAP_TEST_BINARY` names another (a release's, an
/// image's).
pub fn binary() -> PathBuf {
    std::env::var_os("TREESWAP_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_treeswap").into()).into()
}

/// Returns true if the long tests are to run (`TREESWAP_TESTS=full`, as in `tests/nightly`), not only those that every
/// change must pass.
pub fn full() -> bool {
    std::env::var_os("TREESWAP_TESTS").is_some_and(|value| value == "full")
}

/// The parent of worlds: `TREESWAP_TEST_DIR`, or `/dev/shm` if it has at least 1 GiB free, or the temporary directory.
pub fn scratch() -> PathBuf {
    if let Some(dir) = std::env::var_os("TREESWAP_TEST_DIR") {
        return dir.into();
    }
    let shm = Path::new("/dev/shm");
    // In containers it is often small.
    let is_large = rustix::fs::statvfs(shm).is_ok_and(|shm| shm.f_bavail * shm.f_frsize >= 1 << 30);
    if is_large && tempfile::tempfile_in(shm).is_ok() { shm.to_owned() } else { std::env::temp_dir() }
}

/// Returns a loopback address at which every connection is refused until the socket is dropped: the port is bound, so
/// that no other process gets it, and nobody listens.
pub fn refusing() -> (std::net::SocketAddr, socket2::Socket) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    (socket.local_addr().unwrap().as_socket().unwrap(), socket)
}

/// Returns a loopback address at which connections are neither accepted nor refused, until the second value is dropped:
/// the listen queue is full.
pub fn swallowing() -> (std::net::SocketAddr, impl Sized) {
    let (address, socket) = refusing();
    socket.listen(0).unwrap(); // Linux queues one more connection than the backlog
    let attempt = || {
        let attempt = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        attempt.set_nonblocking(true).unwrap();
        let _ = attempt.connect(&address.into()); // EINPROGRESS
        attempt
    };
    // More than fit, and all are kept: on a busy machine they fill the queue only after a while.
    let attempts: Vec<_> = std::iter::repeat_with(attempt).take(16).collect();
    let taken = || attempts.iter().any(|attempt| attempt.peer_addr().is_ok());
    eventually(60, "a full queue of connections", || taken().then_some(()));
    (address, (socket, attempts))
}

/// The time within which something that is promised within `promised` must happen. The tests that every change must
/// pass run on busy machines and get 20 seconds more: there they only show that it happens at all.
pub fn allowed(promised: std::time::Duration) -> std::time::Duration {
    if full() { promised } else { promised + std::time::Duration::from_secs(20) }
}

/// Calls `ask` every few milliseconds until it returns `Some`; fails the test after `seconds`.
#[track_caller]
pub fn eventually<T>(seconds: u64, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(std::time::Instant::now() < end, "after {seconds} s still not: {what}");
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
}
