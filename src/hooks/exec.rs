//! Programs: no shell, no arguments, in the generation's directory, a process group of their own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

use super::{Failure, Notice};
use crate::secret;

/// How long a program may go on once the process is asked to end: then it is asked to end itself, by SIGTERM.
pub const PATIENCE: Duration = Duration::from_millis(1_500);

/// Between that SIGTERM and SIGKILL.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much of what a program says is kept: the end of it.
const KEPT: usize = 4 << 10;

/// What a pipe holds (pipe(7)).
const PIPE: usize = 64 << 10;

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exec {
    /// Its path, or a name that is looked for in `PATH`. With a slash and relative, it is below the generation.
    pub command: PathBuf,
    /// How long it may take.
    pub timeout: Duration,
    /// Pause after a failure.
    pub backoff: Duration,
}

impl Exec {
    /// Runs it to its end; what it said last.
    pub(super) async fn run(&self, notice: &Notice, stop: &CancellationToken) -> Result<String, Failure> {
        let (mut child, group, said) = self.spawn(notice)?;
        let ended = tokio::select! {
            biased;
            status = child.wait() => Ok(status),
            () = tokio::time::sleep(self.timeout) => Err(self.timeout),
            () = stop.cancelled() => match ended_within(PATIENCE, &mut child).await {
                Some(status) => Ok(status),
                None => {
                    group.signal(Signal::TERM);
                    let _ = ended_within(LAST_WORDS, &mut child).await;
                    group.end(&mut child).await;
                    return Err(Failure::Drained);
                }
            },
        };
        let program = self.command.clone();
        match ended {
            Ok(status) => {
                let status = status.map_err(system("wait for the hook"))?;
                group.let_go();
                let output = said.end();
                if status.success() { Ok(output) } else { Err(Failure::Ended { program, status, output }) }
            }
            Err(after) => {
                group.end(&mut child).await;
                Err(Failure::Timeout { program, after, output: said.end() })
            }
        }
    }

    fn spawn(&self, notice: &Notice) -> Result<(Child, Group, Said), Failure> {
        let (read, write) = io::pipe().map_err(system("make a pipe for the hook's output"))?;
        let also = write.try_clone().map_err(system("make a pipe for the hook's output"))?;
        let said = Said::listen(read.into()).map_err(system("read the hook's output"))?;
        let mut command = std::process::Command::new(self.program(&notice.dir));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.current_dir(&notice.dir).stdin(Stdio::null()).stdout(write).stderr(also);
        for (name, _) in std::env::vars_os().filter(|(name, value)| secret::in_variable(name, value)) {
            command.env_remove(name);
        }
        let revision = notice.revision.to_string();
        command
            .env("PWD", &notice.dir) // for shells, which otherwise show the directory they were started from
            .env("GITSYNC_HASH", &revision)
            .env("TREESWAP_REVISION", &revision)
            .env("TREESWAP_DIR", &notice.dir)
            .env_remove("TREESWAP_GENERATION");
        if let Some(generation) = &notice.generation {
            command.env("TREESWAP_GENERATION", generation.as_str());
        }
        let mut command = tokio::process::Command::from(command);
        let child = command.kill_on_drop(true).spawn().map_err(|source| Failure::Start {
            program: self.command.clone(),
            dir: notice.dir.clone(),
            source,
        })?;
        // Our ends of the pipe for writing go with `command`.
        let group = Group::of(&child);
        Ok((child, group, said))
    }

    fn program(&self, dir: &Path) -> PathBuf {
        // A bare name is for PATH.
        if self.command.components().count() > 1 { dir.join(&self.command) } else { self.command.clone() }
    }
}

fn system(act: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::System { act, source }
}

async fn ended_within(limit: Duration, child: &mut Child) -> Option<io::Result<ExitStatus>> {
    tokio::time::timeout(limit, child.wait()).await.ok()
}

/// The program and all that it started, unless that made a group of its own. Dropped, it is killed.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            let _ = kill_process_group(leader, signal); // it may have ended by itself
        }
    }

    /// The program has ended well, or by itself: what it left running is meant to run on.
    fn let_go(mut self) {
        self.0 = None;
    }

    /// Kills it and waits for the program.
    async fn end(self, child: &mut Child) {
        self.signal(Signal::KILL);
        let _ = child.wait().await;
        self.let_go(); // the number may be somebody else's from now on
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// What a program says: read to its end, so that the program never waits for us, and kept in part.
struct Said {
    pipe: Arc<pipe::Receiver>,
    kept: Arc<Mutex<VecDeque<u8>>>,
}

impl Said {
    fn listen(pipe: OwnedFd) -> io::Result<Self> {
        let this = Self { pipe: Arc::new(pipe::Receiver::from_owned_fd(pipe)?), kept: Arc::default() };
        let reader = Self { pipe: Arc::clone(&this.pipe), kept: Arc::clone(&this.kept) };
        tokio::spawn(async move {
            let mut piece = vec![0; 8 << 10];
            // Goes on after the program's end: to whom it left running, a closed pipe would be a SIGPIPE.
            while reader.pipe.readable().await.is_ok() {
                let mut kept = reader.kept();
                match reader.pipe.try_read(&mut piece) {
                    Ok(length @ 1..) => keep(&mut kept, &piece[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    _ => return,
                }
            }
        });
        Ok(this)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of what the program said until it ended, on one line. All of that is in the pipe; what the program left
    /// running may hold it for ever, so that its end is not waited for.
    fn end(self) -> String {
        let mut kept = self.kept();
        let mut piece = vec![0; 8 << 10];
        // At most what a pipe holds: whoever still writes may be faster than we are.
        for _ in 0..1 + PIPE / piece.len() {
            match rustix::io::read(&*self.pipe, &mut piece) {
                Ok(length @ 1..) => keep(&mut kept, &piece[..length]),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join("; ");
        line.replace(|c: char| c.is_control(), " ")
    }
}

fn keep(kept: &mut VecDeque<u8>, piece: &[u8]) {
    kept.extend(piece);
    let excess = kept.len().saturating_sub(KEPT);
    kept.drain(..excess);
}
