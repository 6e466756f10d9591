//! Two-way byte streams on which `git upload-pack` answers: a TCP connection to a git daemon, a process, an ssh
//! channel.
//!
//! A stream serves one operation. Asking the same upload-pack again for its references would be cheaper, and wrong: the
//! process keeps the loose references that it has read once, and answers with an old commit for ever (tried with git
//! 2.39, `refs/heads/*` after a second `ls-refs`).

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::revision::Ref;

use super::error::{Budget, Error, Wait};
use super::framing::{Duplex, Incoming, PacketReader};
use super::refs::{self, Advertisement, FoundRefs, Version};
use super::remote::{GIT_PORT, Remote};
use super::ssh::{self, Channel, Session};
use super::stderr::Stderr;
use super::{Options, PackResponse, Request, pack};

const REFERENCES: &str = "looking up references";

/// A process on its two pipes; when dropped, it is killed with everything it started: `git upload-pack` leaves the
/// work to a `git pack-objects`, which would go on for as long as it takes to find that its pipe is closed.
struct Process {
    pipes: Join<ChildStdout, ChildStdin>,
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child has not been waited for yet, so its id, which is also its group's, is not used again.
        let group = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL); // they may all have ended
        }
    }
}

impl AsyncRead for Process {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipes).poll_read(cx, buf)
    }
}

impl AsyncWrite for Process {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipes).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipes).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipes).poll_shutdown(cx)
    }
}

impl Duplex for Process {}

impl Duplex for Channel {
    fn failure(&self, remote: &str) -> Option<Error> {
        let source = Box::new(self.end().failure()?);
        Some(Error::Ssh { remote: remote.to_owned(), source })
    }
}

impl Duplex for TcpStream {}

/// Connects to a git daemon and asks for the repository (gitprotocol-pack(5), "Git Transport"): the version goes into
/// extra parameters after a second NUL, which daemons from before 2018 skip.
pub(super) async fn daemon(
    remote: &str,
    (host, port, path): (&str, u16, &str),
    (connect, idle): (Duration, Duration),
) -> Result<PacketReader, Error> {
    let connected = timeout(connect, TcpStream::connect((host, port))).await;
    let socket = connected
        .map_err(|_| Error::Timeout {
            remote: remote.to_owned(),
            wait: Wait::Connect,
            after: connect,
            doing: "connecting",
        })?
        .map_err(|source| Error::Connect { remote: remote.to_owned(), source: Box::new(source) })?;
    // Our messages are whole when we send them; waiting for more would only cost time.
    let _ = socket.set_nodelay(true);
    let mut reader = PacketReader::new(remote, Incoming::Stream(Box::new(socket)), idle, Stderr::default());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    // A daemon that serves several hosts looks the name up as it is.
    let host = if port == GIT_PORT { host } else { format!("{host}:{port}") };
    let mut request = Vec::new();
    let named = format!("git-upload-pack {path}\0host={host}\0\0version=2\0");
    super::framing::push(&mut request, &named);
    reader.send(&request, "connecting").await?;
    Ok(reader)
}

/// What a git program that we start may hold while it packs: by default a window of ten objects of any size for each
/// processor of the machine, which the memory limit of a container doesn't know. Deltas that exist are used all the
/// same.
const FRUGAL: [&str; 4] =
    ["pack.threads=1", "pack.windowMemory=16m", "pack.deltaCacheSize=16m", "core.bigFileThreshold=8m"];

/// Starts `git upload-pack` on a local repository; `None` where there is no such program.
///
/// It gets no environment but what finding its own parts takes. Whatever the repository's owner, reading it is what we
/// were asked for, and no more: it fetches nothing from elsewhere. A filter or an unadvertised object is refused to
/// others, not to the machine's own reader.
pub(super) fn process(
    remote: &str,
    git: &Path,
    path: &Path,
    idle: Duration,
) -> Result<Option<PacketReader>, Error> {
    let mut command = Command::new(git);
    command
        .args(["-c", "safe.directory=*", "-c", "uploadpack.allowFilter=true"])
        .args(FRUGAL.iter().flat_map(|setting| ["-c", setting]))
        .arg("upload-pack")
        .arg(path)
        .env_clear()
        .envs(
            ["PATH", "LD_LIBRARY_PATH", "GIT_EXEC_PATH", "TMPDIR"]
                .iter()
                .filter_map(|name| std::env::var_os(name).map(|value| (*name, value))),
        )
        .env("GIT_PROTOCOL", "version=2")
        .env("GIT_ALLOW_PROTOCOL", "") // or git before 2.45.1 runs what the repository's configuration fetches by
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0) // a terminal's interrupt is ours to answer, and the whole group ours to kill
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
    let process = Process { pipes: tokio::io::join(from, to), child };
    Ok(Some(PacketReader::new(remote, Incoming::Stream(Box::new(process)), idle, Stderr::collect(errors))))
}

/// A remote reached by a stream of its own for every operation; an ssh session is kept for many.
#[derive(Debug)]
pub(super) struct Streams {
    name: String,
    remote: Remote,
    options: Options,
    session: Option<Session>,
}

/// A stream whose advertisement was read.
pub(super) struct Opened {
    reader: PacketReader,
    advertisement: Advertisement,
}

impl Streams {
    pub(super) fn new(name: String, remote: Remote, options: Options) -> Self {
        Self { name, remote, options, session: None }
    }

    /// Opens a stream, anew if a kept session turns out to be gone.
    async fn open(&mut self, candidates: &BTreeSet<String>) -> Result<Opened, Error> {
        let kept = self.session.is_some();
        let opened = self.open_once(candidates).await;
        match opened {
            Err(error) if kept && lost(&error) => {
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
                let timeouts = self.options.timeouts;
                daemon(&self.name, (host, *port, path), (timeouts.connect, timeouts.idle)).await?
            }
            Remote::Http(_) | Remote::Local(_) => {
                return Err(Error::Unsupported { remote: self.name.clone(), feature: "a stream" });
            }
        };
        Opened::new(reader, &self.name, &self.options, candidates).await
    }

    pub(super) async fn resolve(&mut self, asked: &[Ref]) -> Result<FoundRefs, Error> {
        let candidates = refs::candidates(asked);
        let opened = self.open(&candidates).await?;
        opened.look_up(&self.name, &self.options, &candidates).await
    }

    pub(super) async fn fetch(
        &mut self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        let opened = self.open(&BTreeSet::new()).await?;
        opened.fetch(&self.name, &self.options, request, sink).await
    }
}

/// Whether a kept connection was gone, rather than something refused on it.
fn lost(error: &Error) -> bool {
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

    /// Looks for the candidates that it was opened with.
    pub(super) async fn look_up(
        mut self,
        remote: &str,
        options: &Options,
        candidates: &BTreeSet<String>,
    ) -> Result<FoundRefs, Error> {
        if self.advertisement.capabilities.version == Version::Zero {
            // An empty question: the server would log our silence as a failure.
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
        let question = pack::ask(request, &self.advertisement.capabilities, remote)?;
        self.reader.send(&question.message, "asking for the pack").await?;
        let budgets = (options.max_refs_bytes, options.max_fetch_bytes);
        question.answer(&mut self.reader, budgets, sink, remote).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Not even a zombie: those are its new parent's affair.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    #[tokio::test]
    async fn what_a_process_started_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join("git");
        let noted = dir.path().join("noted");
        let script =
            format!("#!/bin/sh\nsleep 600 &\necho $! >{0}.new; mv {0}.new {0}; wait\n", noted.display());
        std::fs::write(&git, script).unwrap();
        std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).unwrap();
        let reader = loop {
            match process("a test", &git, dir.path(), Duration::from_secs(60)) {
                Err(_) => tokio::task::yield_now().await, // a test beside forked while the script was being written
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
