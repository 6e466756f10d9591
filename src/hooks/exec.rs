//! Runs a program as a hook: without a shell or arguments, in the generation's directory, with a timeout after which it
//! is killed with all its descendants.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::{Failure, HookEvent, take_pin};
use crate::descendants::Descendants;
use crate::phase::millis;
use crate::{detached_io, fsx, secret};

/// How long a hook may go on after shutdown began. Then a program gets SIGTERM, and a request is dropped.
pub const SHUTDOWN_GRACE: Duration = Duration::from_millis(1_500);

/// The time between that SIGTERM and SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(1);

/// How many bytes of a program's output are kept, from its end.
const KEPT: usize = 4 << 10;

/// How long the search for a program may take; `PATH` may name a file system that hangs.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The capacity of a pipe in bytes (pipe(7)).
const PIPE: usize = 64 << 10;

/// A program to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exec {
    /// Its path, or a name to search in `PATH`. A relative path with a slash is relative to the generation.
    pub command: PathBuf,
    /// How long it may run.
    pub timeout: Duration,
    /// The wait after a failure.
    pub backoff: Duration,
}

/// Returns why a program cannot be run. `None` if it can, or if that is not known, as for a path that is relative to
/// another directory. Blocks for at most two seconds.
pub fn missing_program(program: &Path) -> Option<String> {
    if program.is_relative() && program.components().count() > 1 {
        return None; // inside the generation
    }
    let path = std::env::var_os("PATH").filter(|_| program.is_relative()).unwrap_or_else(|| "".into());
    let candidates: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join(program)).collect();
    let is_path = program.is_absolute();
    let search = move || {
        let is_directory = is_path && candidates.iter().any(|path| path.is_dir());
        let is_executable = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
        let files: Vec<_> = candidates.iter().filter(|path| path.is_file()).collect();
        (is_directory, !files.is_empty(), files.into_iter().any(is_executable))
    };
    let (is_directory, exists, runs) = detached_io::wait(program, LOOKUP_TIMEOUT, search)?;
    if runs {
        None
    } else if is_directory {
        Some(format!("{} is a directory: name a program in it", program.display()))
    } else if exists {
        Some(format!("{} is not executable for this user", program.display()))
    } else if program.is_relative() {
        Some(format!("there is no {} in $PATH", program.display()))
    } else {
        let has_arguments = program.to_str().is_some_and(|text| text.contains(' '));
        let why =
            if has_arguments { ": it is one program, without arguments and without a shell" } else { "" };
        Some(format!("there is no program {}{why}", program.display()))
    }
}

impl Exec {
    /// Returns why the program cannot be run. `None` if it can, or if that is not known, as for a program inside the
    /// generation. Blocks for at most two seconds.
    pub fn missing(&self) -> Option<String> {
        missing_program(&self.command)
    }

    /// Runs the program to its end, for no longer than `limit` and its timeout, and returns the end of its output, on
    /// one line.
    pub(super) async fn run(
        &self,
        event: &HookEvent,
        limit: Duration,
        stop: &CancellationToken,
    ) -> Result<String, Failure> {
        let limit = self.timeout.min(limit);
        let (mut all, output) = self.spawn(event)?;
        let ended = tokio::select! {
            biased;
            status = all.wait() => Ok(status),
            () = tokio::time::sleep(limit) => Err(Duration::from_millis(millis(limit))),
            () = stop.cancelled() => match ended_within(SHUTDOWN_GRACE, &mut all).await {
                Some(status) => Ok(status),
                None => {
                    all.signal(Signal::TERM);
                    let _ = ended_within(KILL_DELAY, &mut all).await;
                    all.end().await;
                    return Err(Failure::ShutDown);
                }
            },
        };
        let program = self.command.clone();
        match ended {
            Ok(status) => {
                let status = status.map_err(system("wait for the hook"))?;
                all.release();
                let output = output.end();
                if status.success() { Ok(output) } else { Err(Failure::Ended { program, status, output }) }
            }
            Err(after) => {
                all.end().await;
                Err(Failure::Timeout { program, after, output: output.end() })
            }
        }
    }

    /// Starts the program in a process group of its own. stdout and stderr are one pipe, which a task reads.
    fn spawn(&self, event: &HookEvent) -> Result<(Descendants, CapturedOutput), Failure> {
        let (read, write) = io::pipe().map_err(system("make a pipe for the hook's output"))?;
        let also = write.try_clone().map_err(system("make a pipe for the hook's output"))?;
        let output = CapturedOutput::capture(read.into()).map_err(system("read the hook's output"))?;
        let mut command = std::process::Command::new(self.program(&event.dir));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.current_dir(&event.dir).stdin(Stdio::null()).stdout(write).stderr(also);
        secret::withhold_from(&mut command);
        let revision = event.revision.to_string();
        command
            .env("PWD", &event.dir) // shells take their logical working directory from it
            .env("GITSYNC_HASH", &revision)
            .env("TREESWAP_REVISION", &revision)
            .env("TREESWAP_DIR", &event.dir)
            .env_remove("TREESWAP_GENERATION")
            .env_remove("TREESWAP_REVISIONS");
        if let Some(sources) = &event.sources {
            command.env("TREESWAP_REVISIONS", sources);
        }
        if let Some(generation) = &event.generation {
            command.env("TREESWAP_GENERATION", generation.as_str());
        }
        if let Some(pin) = pin(&event.dir) {
            hand_over(pin, &mut command);
        }
        let all = Descendants::start(command.into()).map_err(|source| Failure::Start {
            program: self.command.clone(),
            dir: event.dir.clone(),
            source,
        })?;
        // Our copies of the pipe's write end were closed with `command`, so a read ends when the program's are closed.
        Ok((all, output))
    }

    fn program(&self, dir: &Path) -> PathBuf {
        // A bare name is searched in PATH.
        if self.command.components().count() > 1 { dir.join(&self.command) } else { self.command.clone() }
    }
}

/// A pin of the generation for the program itself, so that the generation stays while the program runs even if this
/// process is killed. `None` if it cannot be pinned.
fn pin(dir: &Path) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(take_pin(dir)?, fsx::INHERITED_FROM).ok()
}

/// Lets the program inherit the descriptor. Not by making it inheritable here: other programs that are started at the
/// same moment would inherit it, too, and keep the generation.
#[expect(unsafe_code, reason = "there is no safe form of what is done between fork and exec")]
fn hand_over(fd: OwnedFd, command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt as _;
    let keep = move || Ok(rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty())?);
    // SAFETY: the closure makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(keep) };
}

fn system(act: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::System { act, source }
}

async fn ended_within(limit: Duration, program: &mut Descendants) -> Option<io::Result<ExitStatus>> {
    tokio::time::timeout(limit, program.wait()).await.ok()
}

/// A program's output. A task reads all of it, so that the program never blocks on a full pipe; only the end is kept.
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
            // Goes on after the program's end: a descendant that it left running would get SIGPIPE from a closed pipe.
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

    /// Returns the end of the output on one line. It reads what the pipe holds, which includes everything that the
    /// ended program wrote, but does not wait for end of file: a descendant may hold the pipe open for ever.
    fn end(self) -> String {
        let mut kept = self.output();
        let mut piece = vec![0; 8 << 10];
        // Bounded by the pipe's capacity, as a descendant may write faster than this reads.
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
