//! Runs the indexer: a child process that indexes fetched packs, so that no server's response can take the service
//! down. It also merges packs and collects garbage.
//!
//! The child is this program again ([`super::Options::indexer`]), started with a hidden first argument. It reads the
//! pack from standard input, indexes it into the mirror, checks that the tip is complete, and prints a report as one
//! line of JSON, followed by the [table](ObjectTable) of a large pack. Its environment is empty; its memory, files and
//! system calls are limited (see [`child`]). The service never relies on the child's good will: it reads a bounded
//! output, and kills a child that takes too long.

pub(super) mod child;
mod pack;
mod repack;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::process::{Child, ChildStdin, Command};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::error::{Error, kind_of};
use super::object_error::ObjectError;
use crate::revision::{ObjectId, Revision};
use crate::sandbox::Sandbox;
#[cfg(any(test, fuzzing))]
pub(crate) use pack::fuzz as pack_fuzz;
pub(super) use pack::{Form, ObjectTable, TableReader, form_of, header};
pub(super) use repack::{Needs, is_reused};

/// The first argument that makes the program the indexer.
pub(super) const ARGUMENT: &str = "__index-pack";

/// The child's task and limits; passed as its only other argument, in JSON. It contains no secret. Lists are left out,
/// because the kernel limits an argument to 128 KiB: see [`Task::list`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The mirror's git directory.
    pub(super) dir: PathBuf,
    /// What to do.
    pub(super) task: Task,
    /// `RLIMIT_DATA`, in bytes.
    pub(super) memory: u64,
    /// The most bytes of a pack.
    pub(super) max_bytes: u64,
    /// Whether to fsync what is written.
    pub(super) durable: bool,
    /// The sandbox to enter.
    pub(super) sandbox: Sandbox,
}

impl Job {
    /// A job in the repository `dir`, with the settings of a mirror.
    pub(super) fn new(options: &Options, dir: &Path, task: Task, max_bytes: u64) -> Self {
        let Options { index_memory: memory, durable, sandbox, .. } = *options;
        Self { dir: dir.to_owned(), task, memory, max_bytes, durable, sandbox }
    }
}

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Task {
    /// Index the pack on standard input, then check that the tip is complete.
    Index {
        /// The commit or tag that was wanted.
        tip: ObjectId,
        /// A commit whose tree is complete already.
        base: Option<ObjectId>,
        /// The most objects that the pack may announce, if few are expected.
        expected: Option<u64>,
        /// Objects may be missing, because the fetch had a filter.
        partial: bool,
    },
    /// Read so many ids from standard input, index the pack that follows, then check that any of these objects exist.
    Fill(usize),
    /// Write the objects of these packs (names without a suffix) into a new pack. Nothing is removed.
    Merge(#[serde(skip)] Vec<String>),
    /// Find objects that are not needed, and rewrite packs that contain many of them. Old loose objects are removed;
    /// packs are only reported as removable.
    CollectGarbage(Needs),
}

impl Task {
    /// Describes the task, for messages.
    pub(super) fn phrase(&self) -> &'static str {
        match self {
            Self::Index { .. } | Self::Fill(_) => "indexing the fetched pack",
            Self::Merge(_) => "merging small packs of the mirror",
            Self::CollectGarbage(_) => "garbage collection in the mirror",
        }
    }

    /// What the child reads from standard input before anything else: the ids for [`Task::Fill`], or the task's list in
    /// JSON, so that a list that was cut off is none.
    fn list(&self, wanted: &[ObjectId]) -> serde_json::Result<Vec<u8>> {
        match self {
            Self::Index { .. } => Ok(Vec::new()),
            Self::Fill(_) => Ok(wanted.iter().flat_map(|id| id.0).collect()),
            Self::Merge(packs) => serde_json::to_vec(packs),
            Self::CollectGarbage(needs) => serde_json::to_vec(&needs.kept_revisions),
        }
    }
}

/// The child's report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Report {
    /// The pack is in the mirror and the tip is complete.
    Complete {
        /// The pack's name, without a suffix.
        pack: String,
    },
    /// Garbage was collected, or packs were merged: every needed object of the packs in `gone` is also in another pack.
    Collected {
        /// The new pack, if one was written.
        pack: Option<String>,
        /// The packs that may be removed, without a suffix.
        gone: Vec<String>,
    },
    /// The pack was sound, but objects of the tip are missing or of no use. The pack was removed again. If packs are
    /// merged or garbage is collected: an object of the mirror cannot be read.
    Incomplete {
        /// The path of the object in the tree, if it was found.
        at: Option<Box<str>>,
        /// The object, and why it cannot be read.
        error: ObjectError,
    },
    /// The wanted object is not a commit; its kind.
    NotACommit(String),
    /// The pack was truncated.
    Cut,
    /// The pack is malformed, or a hash in it is wrong.
    Bad(String),
    /// The pack announces this many objects, more than expected. The rest was not read.
    Many(u64),
    /// The memory limit was reached.
    Memory,
    /// The pack exceeded its size limit.
    Bytes,
    /// The file system or the object database failed.
    Local(String),
}

impl Report {
    /// Returns true if what it names as packs are names of files, and not paths of files elsewhere: a child that runs
    /// foreign code may write anything, and the service, which is in no sandbox, reads and removes these packs.
    fn names_packs(&self) -> bool {
        let is_name = |name: &String| !name.contains('/');
        match self {
            Self::Complete { pack } => is_name(pack),
            Self::Collected { pack, gone } => pack.iter().chain(gone).all(is_name),
            _ => true,
        }
    }
}

/// The directory of the packs in a mirror.
const PACKS: &str = "objects/pack";

/// Reports and messages of the child stay far below so many bytes.
const OUTPUT_MAX: u64 = 64 << 10;

/// How many bytes are buffered for the child. Servers send packs in pieces of 8 KB, each of which would wake it.
const PIECE: usize = 256 << 10;

/// A running child.
pub(super) struct Indexer {
    child: Child,
    /// Ends the thread that started the child. Dropped after the child.
    _thread: std::sync::mpsc::Sender<()>,
    job: Job,
    program: PathBuf,
}

impl Indexer {
    /// Starts the child. It is killed when the `Indexer` is dropped. For [`Task::Fill`] it gets the `wanted` ids. The
    /// pack is to be written to the returned writer, which must be flushed at the end.
    pub(super) async fn start(
        program: PathBuf,
        job: Job,
        wanted: &[ObjectId],
    ) -> Result<(Self, BufWriter<ChildStdin>), Error> {
        let failed = |why: String| Error::Indexer { program: program.clone(), why };
        let list = job.task.list(wanted).map_err(|error| failed(error.to_string()))?;
        let mut command = Command::from(command(&program, &job)?);
        command.stdin(Stdio::piped()).kill_on_drop(true);
        let started = spawn(command).await;
        let (mut child, thread) = started.map_err(|error| failed(format!("cannot be started: {error}")))?;
        let mut stdin = child.stdin.take().ok_or_else(|| failed("has no standard input".into()))?;
        // Not buffered: if the remote then sends no pack, nobody flushes the buffer.
        let _ = stdin.write_all(&list).await; // a child that stops reading reports why
        Ok((Self { child, _thread: thread, job, program }, BufWriter::with_capacity(PIECE, stdin)))
    }

    /// Waits for the child to end, and returns its report; for a large pack also the table of its objects.
    pub(super) async fn report(&mut self) -> Result<(Report, Option<ObjectTable>), Error> {
        const MOST: u64 = OUTPUT_MAX + pack::TABLE_MAX as u64;
        let (stdout, stderr) =
            tokio::join!(read(self.child.stdout.take(), MOST), read(self.child.stderr.take(), OUTPUT_MAX));
        // If another process (PID 1) reaps children, the status may be gone; the report does not depend on it.
        let status = self.child.wait().await.ok();
        let end = stdout.iter().position(|byte| *byte == b'\n').map_or(stdout.len(), |line| line + 1);
        let (line, table) = stdout.split_at(end);
        let report = parse_report(&self.program, &self.job, line, &stderr, status)?;
        let table = match &report {
            Report::Complete { pack } => {
                let pack = self.job.dir.join(PACKS).join(format!("{pack}.pack"));
                ObjectTable::decode(pack, table)
            }
            _ => None,
        };
        Ok((report, table))
    }

    /// Converts a report that is not a success to an error.
    pub(super) fn failure(&self, report: Report) -> Error {
        failure(&self.program, &self.job, report)
    }
}

/// Runs a task that needs no pack, and returns its report. Blocking. The child is killed when it takes longer than
/// `limit`, and when `cancel` is cancelled. It is not waited for then: on a sick disk it may not die at once.
pub(super) fn run(
    program: &Path,
    job: &Job,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<Report, Error> {
    let failed = |error: io::Error| Error::Indexer {
        program: program.to_owned(),
        why: format!("cannot be started: {error}"),
    };
    // On a thread and a runtime of their own, because the caller's thread may belong to a runtime.
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        runtime.block_on(run_within(program, job, limit, cancel))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("indexer".into()).spawn_scoped(scope, wait);
        let ended = thread.map_err(failed)?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The same, not blocking.
async fn run_within(
    program: &Path,
    job: &Job,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<Report, Error> {
    let running = async {
        let (mut indexer, stdin) = Indexer::start(program.to_owned(), job.clone(), &[]).await?;
        drop(stdin);
        let (report, _) = indexer.report().await?;
        Ok::<_, Error>(report)
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Error::Cancelled),
        ended = within(limit, job.task.phrase(), running) => ended,
    }
}

/// Starts a child on a thread of its own, which ends when the returned sender is dropped. The kernel kills the child
/// when the thread that started it ends (`PR_SET_PDEATHSIG`, see [`child`]), and a thread of tokio's can end at any
/// time: a worker that ran `block_in_place` does, after the pool's keep-alive.
async fn spawn(mut command: Command) -> io::Result<(Child, std::sync::mpsc::Sender<()>)> {
    let runtime = tokio::runtime::Handle::current();
    let (started, child) = tokio::sync::oneshot::channel();
    let (hold, ended) = std::sync::mpsc::channel();
    let start = move || {
        let spawned = {
            let _entered = runtime.enter();
            command.spawn()
        };
        if started.send(spawned).is_ok() {
            let _ = ended.recv(); // an error is the end of the sender
        }
    };
    std::thread::Builder::new().name("indexer-parent".into()).spawn(start)?;
    let child = child.await.map_err(io::Error::other)??;
    Ok((child, hold))
}

/// Waits for a child at most so long. `work` is dropped then; with its [`Indexer`] the child is killed.
pub(super) async fn within<T>(
    limit: Duration,
    task: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let ended = tokio::time::timeout(limit, work).await;
    ended.unwrap_or_else(|_| Err(Error::IndexTimeout { task, limit }))
}

fn command(program: &Path, job: &Job) -> Result<std::process::Command, Error> {
    let text = serde_json::to_string(job)
        .map_err(|error| Error::Indexer { program: program.to_owned(), why: error.to_string() })?;
    let mut command = std::process::Command::new(program);
    command.arg(ARGUMENT).arg(text).env_clear().stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Parses the report. If there is none, the error says why, as far as stderr and the exit status tell.
fn parse_report(
    program: &Path,
    job: &Job,
    stdout: &[u8],
    stderr: &[u8],
    status: Option<ExitStatus>,
) -> Result<Report, Error> {
    match serde_json::from_slice::<Report>(stdout) {
        Ok(report) if report.names_packs() => return Ok(report),
        Ok(_) => {
            let why = "its report names a pack that is elsewhere".to_owned();
            return Err(Error::Indexer { program: program.to_owned(), why });
        }
        Err(_) => {}
    }
    let stderr = String::from_utf8_lossy(stderr);
    if stderr.contains("memory allocation of") {
        return Ok(Report::Memory); // printed by Rust's runtime before it aborts because an allocation failed
    }
    let signal = status.and_then(|status| status.signal());
    if signal == Some(rustix::process::Signal::KILL.as_raw()) {
        return Err(Error::IndexKilled { task: job.task.phrase(), limit: job.memory });
    }
    let end = match (signal, status.and_then(|status| status.code())) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code} and without a report"),
        (None, None) => "ended without a report".to_owned(),
    };
    let last = stderr.lines().last().unwrap_or("it wrote no message");
    Err(Error::Indexer { program: program.to_owned(), why: format!("{end}: {last}") })
}

/// Converts a report that is not a success to an error.
pub(super) fn failure(program: &Path, job: &Job, report: Report) -> Error {
    let local = |why: String| Error::Local {
        act: match &job.task {
            Task::Index { .. } | Task::Fill(_) => "index a pack in",
            Task::Merge(_) => "merge packs in",
            Task::CollectGarbage(_) => "collect garbage in",
        },
        path: job.dir.clone(),
        source: io::Error::new(kind_of(&why), why),
    };
    match (report, &job.task) {
        // The received pack is sound, and without haves it has all that the tip needs. So another pack is not.
        (
            Report::Incomplete { error: error @ ObjectError::Unreadable { .. }, .. },
            Task::Index { tip, base: None, .. },
        ) => Error::damaged(Revision(*tip), error),
        (
            Report::Incomplete { error: error @ ObjectError::Unreadable { id, .. }, .. },
            Task::Fill(_) | Task::Merge(_) | Task::CollectGarbage(_),
        ) => Error::damaged(Revision(id), error),
        (Report::Incomplete { at, error }, Task::Index { tip, .. }) => {
            Error::of_author(Revision(*tip), at.as_deref(), error)
                .unwrap_or_else(|source| Error::Incomplete { requested: *tip, at, source })
        }
        (Report::Incomplete { at, error }, Task::Fill(_)) => {
            Error::Incomplete { requested: error.id(), at, source: error }
        }
        (Report::NotACommit(kind), Task::Index { tip, .. }) => {
            Error::NotACommit { requested: tip.to_string(), kind }
        }
        (Report::Cut, _) => Error::BadPack { why: "it is truncated".into() },
        (Report::Many(objects), _) => Error::BadPack { why: format!("{objects} objects are too many") },
        (Report::Bad(why), _) => Error::BadPack { why },
        (Report::Memory, _) => Error::IndexMemory { task: job.task.phrase(), limit: job.memory },
        (Report::Bytes, _) => Error::FetchBytes { limit: job.max_bytes },
        (Report::Local(why), _) => local(why),
        _ => Error::Indexer {
            program: program.to_owned(),
            why: "its report does not match its task".to_owned(),
        },
    }
}

/// Reads at most so many bytes of a child's output.
async fn read(from: Option<impl tokio::io::AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut text = Vec::new();
    if let Some(from) = from {
        // On a failure, use what was read before it.
        let _ = from.take(most).read_to_end(&mut text).await;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(task: Task) -> Job {
        Job { dir: "/mirror".into(), task, memory: 0, max_bytes: 0, durable: false, sandbox: Sandbox::Off }
    }

    /// A child that ends by itself, with everything that it read in the file `read`.
    fn child(dir: &Path) -> PathBuf {
        let program = dir.join("child");
        let report = r#"{"collected":{"pack":null,"gone":[]}}"#;
        let text = format!("#!/bin/sh\ncat > '{}/read'\necho '{report}'\n", dir.display());
        std::fs::write(dir.join("draft"), text).unwrap();
        // Written by another process: a program that is open for writing in a child of another test cannot be run.
        let mut install = std::process::Command::new("install");
        assert!(install.args(["-m", "755"]).arg(dir.join("draft")).arg(&program).status().unwrap().success());
        program
    }

    #[test]
    fn a_child_gets_a_list_that_is_longer_than_an_argument_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let program = child(dir.path());
        let kept_revisions: Vec<_> = (0..5_000_u16)
            .map(|n| {
                let mut id = [7; 20];
                id[..2].copy_from_slice(&n.to_be_bytes());
                ObjectId(id)
            })
            .collect();
        let names: Vec<_> = kept_revisions.iter().map(|id| format!("pack-{id}")).collect();
        let needs =
            Needs { kept_revisions: kept_revisions.clone(), one_pack: false, max_packs: 50, no_room: false };
        let run = |task| {
            let job = job(task);
            let minute = Duration::from_secs(60);
            let report = run(&program, &job, minute, &CancellationToken::new()).unwrap();
            assert_eq!(report, Report::Collected { pack: None, gone: Vec::new() });
            let argument = serde_json::to_string(&job).unwrap();
            (argument, std::fs::read(dir.path().join("read")).unwrap())
        };
        let (argument, list) = run(Task::CollectGarbage(needs));
        assert!(matches!(serde_json::from_str(&argument), Ok(Job { task: Task::CollectGarbage(_), .. })));
        assert_eq!(serde_json::from_slice::<Vec<ObjectId>>(&list).unwrap(), kept_revisions);
        let (argument, list) = run(Task::Merge(names.clone()));
        assert!(matches!(serde_json::from_str(&argument), Ok(Job { task: Task::Merge(_), .. })));
        assert_eq!(serde_json::from_slice::<Vec<String>>(&list).unwrap(), names);
    }

    #[test]
    fn a_child_can_name_no_file_outside_of_the_packs() {
        let job = job(Task::Merge(Vec::new()));
        for (name, is_taken) in
            [("pack-1", true), ("..", true), ("../../other/objects/pack/pack-1", false), ("/pack-1", false)]
        {
            let name = || name.to_owned();
            for report in [
                Report::Complete { pack: name() },
                Report::Collected { pack: Some(name()), gone: Vec::new() },
                Report::Collected { pack: None, gone: vec!["pack-2".to_owned(), name()] },
            ] {
                let said = serde_json::to_vec(&report).unwrap();
                let parsed = parse_report(Path::new("/treeswap"), &job, &said, b"", None);
                assert_eq!(parsed.is_ok(), is_taken, "{report:?}");
            }
        }
    }
}
