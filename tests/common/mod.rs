//! What the integration tests share: a [`World`] of temporary directories with a remote in it, an independent
//! checker of what is published ([`tree`]), the rules for what may lie in a root ([`root`]), and running programs
//! with a clean environment ([`run`]).
//!
//! Nothing here uses the library: the content of a commit is read by the `git` program, the root by plain system
//! calls, so that a mistake in treeswap cannot hide itself.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)] // each test binary uses its part

pub mod git_sync;
pub mod http_backend;
pub mod many;
pub mod mounts;
pub mod random;
pub mod raw;
pub mod remote;
pub mod root;
pub mod run;
pub mod schema;
pub mod sidecar;
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

/// A directory of its own for one test: `remote` (a git repository), `root` (not made yet), `home` (empty).
pub struct World {
    dir: tempfile::TempDir,
    pub remote: Remote,
    pub root: PathBuf,
}

impl World {
    /// On a memory file system where there is one: thousands of small files are made and removed, and the tests are
    /// not about the disk's speed.
    pub fn new() -> Self {
        Self::within(&scratch())
    }

    pub fn within(parent: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("treeswap-test-").tempdir_in(parent).unwrap();
        let remote = Remote::create(&dir.path().join("remote"));
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let root = dir.path().join("root");
        Self { dir, remote, root }
    }

    /// The directory that holds everything of this world.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `treeswap` with these arguments and nothing of the caller's environment.
    pub fn treeswap<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = run::clean(binary(), &self.dir().join("home"));
        command.args(args);
        command
    }

    /// `treeswap sync` of the remote's `main` into the root, with these arguments more.
    pub fn sync(&self, more: &[&str]) -> Command {
        let mut command = self.treeswap(&["sync", "--repo"]);
        command.arg(&self.remote.path).arg("--ref=main").arg("--root").arg(&self.root).args(more);
        command
    }

    /// One synchronisation, to its end.
    pub fn sync_once(&self, more: &[&str]) -> Ran {
        run::to_end(self.sync(&["--one-time"]).args(more))
    }

    /// What differs between the published tree and the commit's, the links in the root included; empty when right.
    pub fn differences(&self, commit: &str) -> Vec<String> {
        let expected = self.remote.snapshot(commit);
        root::differences(&self.root, &expected)
    }

    /// Fails the test unless exactly this commit is published, links and all.
    #[track_caller]
    pub fn assert_published(&self, commit: &str) {
        let wrong = self.differences(commit);
        assert!(wrong.is_empty(), "the root is not {commit}:\n  {}", wrong.join("\n  "));
    }

    /// Fails the test if anything is left behind in the root.
    #[track_caller]
    pub fn assert_clean(&self, generations: usize) {
        let left = root::left_behind(&self.root, generations);
        assert!(left.is_empty(), "left behind in the root:\n  {}", left.join("\n  "));
    }
}

/// The binary under test: the one just built, unless `TREESWAP_TEST_BINARY` names another (a release's, an image's).
pub fn binary() -> PathBuf {
    std::env::var_os("TREESWAP_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_treeswap").into()).into()
}

/// Whether everything is asked for (`TREESWAP_TESTS=full`, as `tests/nightly` does), not only what every change must pass.
pub fn full() -> bool {
    std::env::var_os("TREESWAP_TESTS").is_some_and(|value| value == "full")
}

/// Where worlds are made: `TREESWAP_TEST_DIR`, else `/dev/shm` if it has room, else the usual temporary directory.
pub fn scratch() -> PathBuf {
    if let Some(dir) = std::env::var_os("TREESWAP_TEST_DIR") {
        return dir.into();
    }
    let shm = Path::new("/dev/shm");
    // Containers often have a small one.
    let roomy = rustix::fs::statvfs(shm).is_ok_and(|shm| shm.f_bavail * shm.f_frsize >= 1 << 30);
    if roomy && tempfile::tempfile_in(shm).is_ok() { shm.to_owned() } else { std::env::temp_dir() }
}

/// An address of the loopback at which every connection is refused, as long as the socket lives: it is taken, so that
/// nobody else gets it, and nobody listens.
pub fn refusing() -> (std::net::SocketAddr, socket2::Socket) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    (socket.local_addr().unwrap().as_socket().unwrap(), socket)
}

/// An address where nobody answers, not even with a refusal: the queue of connections is full. As long as what comes
/// with it lives.
pub fn swallowing() -> (std::net::SocketAddr, impl Sized) {
    let (address, socket) = refusing();
    socket.listen(0).unwrap(); // Linux takes one more than it was told
    let attempt = || {
        let attempt = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        attempt.set_nonblocking(true).unwrap();
        let _ = attempt.connect(&address.into()); // under way
        attempt
    };
    // More than fit, none of them given up: whatever room a busy machine is slow to fill is theirs.
    let attempts: Vec<_> = std::iter::repeat_with(attempt).take(16).collect();
    let taken = || attempts.iter().any(|attempt| attempt.peer_addr().is_ok());
    eventually(60, "a full queue of connections", || taken().then_some(()));
    (address, (socket, attempts))
}

/// Within which the end that was promised after `promised` must come. What every change must pass runs on machines that
/// are busy with others: there it only tells an end from none.
pub fn allowed(promised: std::time::Duration) -> std::time::Duration {
    if full() { promised } else { promised + std::time::Duration::from_secs(20) }
}

/// Asks again every few milliseconds until there is an answer; fails the test after `seconds`.
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
