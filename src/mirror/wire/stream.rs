//! Bidirectional byte streams to `git upload-pack`: a TCP connection to a git daemon, a local process, an ssh channel.
//!
//! A stream serves one operation. Sending a second `ls-refs` to the same upload-pack would be cheaper but wrong: the
//! process caches the loose refs that it has read once, and keeps returning the old commit (observed with git 2.39 for
//! `refs/heads/*`).

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncWrite, Join};
use tokio::net::TcpStream;
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::revision::Ref;

use super::dial::{DialError, dial};
use super::error::{Budget, Error, Wait};
use super::framing::{Duplex, Incoming, PacketReader};
use super::refs::{self, Advertisement, FoundRefs, REFERENCES, Version};
use super::remote::{GIT_PORT, Remote};
use super::ssh::{self, Channel, Session};
use super::stderr::{Process, Stderr};
use super::{Options, PackResponse, Request, Timeouts, pack};

impl Duplex for Join<ChildStdout, ChildStdin> {}

impl Duplex for Channel {
    fn failure(&self, remote: &str) -> Option<Error> {
        let source = Box::new(self.end().failure()?);
        Some(Error::Ssh { remote: remote.to_owned(), source })
    }
}

impl Duplex for TcpStream {}

/// Connects to a git daemon and requests the repository (gitprotocol-pack(5), "Git Transport"). The protocol version is
/// an extra parameter after a second NUL, which daemons from before 2018 ignore.
async fn daemon(
    remote: &str,
    host: &str,
    port: u16,
    path: &str,
    timeouts: Timeouts,
) -> Result<PacketReader, Error> {
    let socket = dial(host, port, timeouts.connect).await.map_err(|error| match error {
        DialError::Failed(source) => Error::Connect { remote: remote.to_owned(), source: Box::new(source) },
        DialError::Late => Error::Timeout {
            remote: remote.to_owned(),
            wait: Wait::Connect,
            after: timeouts.connect,
            doing: "connecting",
        },
    })?;
    // Every message is written in one piece; Nagle's algorithm would only delay it.
    let _ = socket.set_nodelay(true);
    let stream = Incoming::Stream(Box::new(socket));
    let mut reader = PacketReader::new(remote, stream, timeouts.idle, Stderr::default());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    // A daemon with virtual hosts compares the name literally, so the default port is omitted.
    let host = if port == GIT_PORT { host } else { format!("{host}:{port}") };
    let mut request = Vec::new();
    super::framing::push(&mut request, &format!("git-upload-pack {path}\0host={host}\0\0version=2\0"));
    reader.send(&request, "connecting").await?;
    Ok(reader)
}

/// Settings that bound the memory of a git program that we start. By default it holds a window of ten objects of any
/// size for each processor of the machine, whatever the container's memory limit. Existing deltas are still reused.
const MEMORY_LIMITS: [&str; 4] =
    ["pack.threads=1", "pack.windowMemory=16m", "pack.deltaCacheSize=16m", "core.bigFileThreshold=8m"];

/// Starts `git upload-pack` on a local repository. Returns `None` if there is no such program, or it is not executable.
///
/// Its environment is cleared except for what it needs to find its own parts. It may read a repository of another user,
/// but must not fetch anything from elsewhere. Filters and unadvertised objects, which a repository may refuse to
/// remote clients, are allowed for this local reader.
pub(super) fn process(
    remote: &str,
    git: &Path,
    path: &Path,
    idle: Duration,
) -> Result<Option<PacketReader>, Error> {
    let mut command = Command::new(git);
    command
        .args(["-c", "safe.directory=*", "-c", "uploadpack.allowFilter=true"])
        .args(MEMORY_LIMITS.iter().flat_map(|setting| ["-c", setting]))
        .arg("upload-pack")
        .arg(path)
        .env_clear()
        .envs(
            ["PATH", "LD_LIBRARY_PATH", "GIT_EXEC_PATH", "TMPDIR"]
                .iter()
                .filter_map(|name| std::env::var_os(name).map(|value| (*name, value))),
        )
        .env("GIT_PROTOCOL", "version=2")
        .env("GIT_ALLOW_PROTOCOL", "") // git before 2.45.1 would run transports that the repository configures
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0) // a terminal's interrupt must reach only us, and we kill the group as a whole
        .kill_on_drop(true);
    let failed = |source| Error::Connect { remote: remote.to_owned(), source: Box::new(source) };
    let mut child = match command.spawn() {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        spawned => spawned.map_err(failed)?,
    };
    let (Some(to), Some(from), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failed(io::Error::other("its pipes are missing")));
    };
    let pipes = Incoming::Stream(Box::new(tokio::io::join(from, to)));
    Ok(Some(PacketReader::new(remote, pipes, idle, Stderr::collect(errors)).of_process(Process(child))))
}

/// A remote that gets a new stream for every operation; an ssh session is kept and carries many of them. It is not kept
/// after a failure: some servers check the key for each command, and only a new session reads the key files again.
#[derive(Debug)]
pub(super) struct Streams {
    name: String,
    remote: Remote,
    options: Options,
    session: Option<Session>,
}

/// A stream whose advertisement has been read.
pub(super) struct Opened {
    reader: PacketReader,
    advertisement: Advertisement,
}

impl Streams {
    pub(super) fn new(name: String, remote: Remote, options: Options) -> Self {
        Self { name, remote, options, session: None }
    }

    /// Opens a stream. If a kept ssh session turns out to be dead, it tries again with a new one.
    async fn open(&mut self, candidates: &BTreeSet<String>) -> Result<Opened, Error> {
        let kept = self.session.is_some();
        let opened = self.open_once(candidates).await;
        match opened {
            Err(error) if kept && is_connection_lost(&error) => {
                self.session = None;
                self.open_once(candidates).await
            }
            opened => opened,
        }
    }

    async fn open_once(&mut self, candidates: &BTreeSet<String>) -> Result<Opened, Error> {
        let reader = match &self.remote {
            Remote::Ssh(target, path) => {
                let name = &self.name;
                let options = &self.options;
                let failed = |source| Error::Ssh { remote: name.clone(), source: Box::new(source) };
                let session = match self.session.take().filter(Session::is_alive) {
                    Some(session) => session,
                    None => Session::connect(target, &options.ssh, options.timeouts).await.map_err(failed)?,
                };
                let session = self.session.insert(session);
                let command = format!("git-upload-pack {}", ssh::quote(path));
                let channel = session.exec(&command, true).await.map_err(failed)?;
                let stream = Incoming::Stream(Box::new(channel));
                PacketReader::new(name, stream, options.timeouts.idle, Stderr::default())
            }
            Remote::Git { host, port, path } => {
                daemon(&self.name, host, *port, path, self.options.timeouts).await?
            }
            Remote::Http(_) | Remote::Local(_) => {
                return Err(Error::Unsupported { remote: self.name.clone(), feature: "a stream" });
            }
        };
        Opened::new(reader, &self.name, &self.options, candidates).await
    }

    pub(super) async fn resolve(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        let candidates = refs::candidates(wanted);
        let found = match self.open(&candidates).await {
            Ok(opened) => opened.look_up(&self.name, &self.options, &candidates).await,
            Err(error) => Err(error),
        };
        found.inspect_err(|_| self.session = None)
    }

    pub(super) async fn fetch(
        &mut self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        let fetched = match self.open(&BTreeSet::new()).await {
            Ok(opened) => opened.fetch(&self.name, &self.options, request, sink).await,
            Err(error) => Err(error),
        };
        fetched.inspect_err(|_| self.session = None)
    }
}

/// Returns true if the error means that the connection was dead, not that the server refused something.
fn is_connection_lost(error: &Error) -> bool {
    match error {
        Error::Ssh { source, .. } => matches!(**source, ssh::Error::Broken { .. }),
        error => matches!(error, Error::Broken { .. }),
    }
}

impl Opened {
    pub(super) async fn new(
        mut reader: PacketReader,
        remote: &str,
        options: &Options,
        candidates: &BTreeSet<String>,
    ) -> Result<Self, Error> {
        reader.begin(REFERENCES, Budget::Refs, options.max_refs_bytes);
        let advertisement = refs::read_advertisement(&mut reader, remote, candidates).await?;
        Ok(Self { reader, advertisement })
    }

    /// Resolves the candidates, which must be those that the stream was opened with.
    pub(super) async fn look_up(
        mut self,
        remote: &str,
        options: &Options,
        candidates: &BTreeSet<String>,
    ) -> Result<FoundRefs, Error> {
        if self.advertisement.capabilities.version == Version::Zero {
            // An empty request: without one the server would log a failure.
            self.reader.send(b"0000", REFERENCES).await?;
            return Ok(self.advertisement.found);
        }
        self.reader.send(&refs::ls_refs(candidates), REFERENCES).await?;
        self.reader.begin(REFERENCES, Budget::Refs, options.max_refs_bytes);
        refs::read_ls_refs(&mut self.reader, remote, candidates).await
    }

    pub(super) async fn fetch(
        mut self,
        remote: &str,
        options: &Options,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        let encoded = pack::encode(request, &self.advertisement.capabilities, remote)?;
        self.reader.send(&encoded.message, "asking for the pack").await?;
        encoded.read_response(&mut self.reader, pack::ResponseLimits::from(options), sink, remote).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio::time::timeout;

    use super::*;

    /// Returns true if the process runs. A zombie does not; its new parent reaps it.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    #[tokio::test]
    async fn dropping_a_process_kills_its_descendants() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join("git");
        let noted = dir.path().join("noted");
        let script =
            format!("#!/bin/sh\nsleep 600 &\necho $! >{0}.new; mv {0}.new {0}; wait\n", noted.display());
        std::fs::write(&git, script).unwrap();
        std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).unwrap();
        let reader = loop {
            match process("a test", &git, dir.path(), Duration::from_secs(60)) {
                Err(_) => tokio::task::yield_now().await, // ETXTBSY: another test forked while the script was open
                started => break started.unwrap().unwrap(),
            }
        };
        let pid = timeout(Duration::from_secs(20), async {
            loop {
                match std::fs::read_to_string(&noted) {
                    Ok(pid) => break pid.trim().to_owned(),
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let pid = pid.await.expect("the script runs");
        assert!(runs(&pid));
        drop(reader);
        let ended = async {
            while runs(&pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(20), ended).await.expect("it goes on without a reader");
    }
}
