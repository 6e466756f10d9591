//! Programs: no shell, no arguments, in the generation's directory, killed with all that they started.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

use super::{Failure, Notice};
use crate::descendants::Descendants;
use crate::{detached_io, secret};

/// How long a program may go on once the process is asked to end: then it is asked to end itself, by SIGTERM.
pub const PATIENCE: Duration = Duration::from_millis(1_500);

/// Between that SIGTERM and SIGKILL.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much of what a program says is kept: the end of it.
const KEPT: usize = 4 << 10;

/// How long it may take to look for a program.
const LOOK: Duration = Duration::from_secs(2);

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
    /// Why it cannot be run here and now, if that can be said before there is a generation. Blocking, within seconds.
    pub fn missing(&self) -> Option<String> {
        let program = &self.command;
        if program.is_relative() && program.components().count() > 1 {
            return None; // below the generation
        }
        let path = std::env::var_os("PATH").filter(|_| program.is_relative()).unwrap_or_else(|| "".into());
        let places: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join(program)).collect();
        let look = move || {
            let may_run = |place: &PathBuf| rustix::fs::access(place, rustix::fs::Access::EXEC_OK).is_ok();
            let files: Vec<_> = places.iter().filter(|place| place.is_file()).collect();
            (files.is_empty(), files.into_iter().any(may_run))
        };
        let (none, runs) = detached_io::wait(program, LOOK, look)?;
        match (none, runs) {
            (_, true) => None,
            (false, false) => Some(format!("{} is not executable for this user", program.display())),
            (true, _) if program.is_relative() => Some(format!("there is no {} in $PATH", program.display())),
            (true, _) => Some(format!("there is no program {}", program.display())),
        }
    }

    /// Runs it to its end; what it said last.
    pub(super) async fn run(&self, notice: &Notice, stop: &CancellationToken) -> Result<String, Failure> {
        let (mut child, all, said) = self.spawn(notice)?;
        let ended = tokio::select! {
            biased;
            status = child.wait() => Ok(status),
            () = tokio::time::sleep(self.timeout) => Err(self.timeout),
            () = stop.cancelled() => match ended_within(PATIENCE, &mut child).await {
                Some(status) => Ok(status),
                None => {
                    all.signal(Signal::TERM);
                    let _ = ended_within(LAST_WORDS, &mut child).await;
                    all.end(&mut child).await;
                    return Err(Failure::Drained);
                }
            },
        };
        let program = self.command.clone();
        match ended {
            Ok(status) => {
                let status = status.map_err(system("wait for the hook"))?;
                all.release();
                let output = said.end();
                if status.success() { Ok(output) } else { Err(Failure::Ended { program, status, output }) }
            }
            Err(after) => {
                all.end(&mut child).await;
                Err(Failure::Timeout { program, after, output: said.end() })
            }
        }
    }

    fn spawn(&self, notice: &Notice) -> Result<(Child, Descendants, CapturedOutput), Failure> {
        let (read, write) = io::pipe().map_err(system("make a pipe for the hook's output"))?;
        let also = write.try_clone().map_err(system("make a pipe for the hook's output"))?;
        let said = CapturedOutput::capture(read.into()).map_err(system("read the hook's output"))?;
        let mut command = std::process::Command::new(self.program(&notice.dir));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.current_dir(&notice.dir).stdin(Stdio::null()).stdout(write).stderr(also);
        for (name, _) in std::env::vars_os().filter(|(name, value)| secret::in_variable_of_hook(name, value))
        {
            command.env_remove(name);
        }
        let revision = notice.revision.to_string();
        command
            .env("PWD", &notice.dir) // for shells, which otherwise show the directory they were started from
            .env("GITSYNC_HASH", &revision)
            .env("TREESWAP_REVISION", &revision)
            .env("TREESWAP_DIR", &notice.dir)
            .env_remove("TREESWAP_GENERATION")
            .env_remove("TREESWAP_REVISIONS");
        if let Some(sources) = &notice.sources {
            command.env("TREESWAP_REVISIONS", sources);
        }
        if let Some(generation) = &notice.generation {
            command.env("TREESWAP_GENERATION", generation.as_str());
        }
        let (child, all) = Descendants::start(command.into()).map_err(|source| Failure::Start {
            program: self.command.clone(),
            dir: notice.dir.clone(),
            source,
        })?;
        // Our ends of the pipe for writing went with `command`.
        Ok((child, all, said))
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

/// What a program says: read to its end, so that the program never waits for us, and kept in part.
struct CapturedOutput {
    pipe: Arc<pipe::Receiver>,
    kept: Arc<Mutex<VecDeque<u8>>>,
}

impl CapturedOutput {
    fn capture(pipe: OwnedFd) -> io::Result<Self> {
        let this = Self { pipe: Arc::new(pipe::Receiver::from_owned_fd(pipe)?), kept: Arc::default() };
        let reader = Self { pipe: Arc::clone(&this.pipe), kept: Arc::clone(&this.kept) };
        tokio::spawn(async move {
            let mut piece = vec![0; 8 << 10];
            // Goes on after the program's end: to whom it left running, a closed pipe would be a SIGPIPE.
            while reader.pipe.readable().await.is_ok() {
                let mut kept = reader.output();
                match reader.pipe.try_read(&mut piece) {
                    Ok(length @ 1..) => keep(&mut kept, &piece[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    _ => return,
                }
            }
        });
        Ok(this)
    }

    fn output(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of what the program said until it ended, on one line. All of that is in the pipe; what the program left
    /// running may hold it for ever, so that its end is not waited for.
    fn end(self) -> String {
        let mut kept = self.output();
        let mut piece = vec![0; 8 << 10];
        // At most what a pipe holds: a process that still writes may be faster than we are.
        for _ in 0..1 + PIPE / piece.len() {
            match rustix::io::read(&*self.pipe, &mut piece) {
                Ok(length @ 1..) => keep(&mut kept, &piece[..length]),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join("; ");
        secret::quoted(&line).replace(|c: char| c.is_control(), " ")
    }
}

fn keep(kept: &mut VecDeque<u8>, piece: &[u8]) {
    kept.extend(piece);
    let excess = kept.len().saturating_sub(KEPT);
    kept.drain(..excess);
}
