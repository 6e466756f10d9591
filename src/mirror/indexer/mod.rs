//! Indexing a fetched pack in a child process, so that no answer of a server can take the service down.
//!
//! The child is this program again ([`super::Options::indexer`]), started with a hidden first argument. The pack comes
//! through its standard input; it indexes it into the mirror, checks that the tip is complete, and reports one line of
//! JSON. Its environment is empty, its memory, files, time and system calls are limited (see [`child`]).

pub(super) mod child;
mod pack;
mod repack;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::process::{Child, ChildStdin, Command};

use super::error::{Error, kind_of};
use super::lack::Lack;
use crate::revision::{ObjectId, Revision};
use crate::sandbox::Sandbox;
#[cfg(any(test, fuzzing))]
pub(crate) use pack::fuzz as pack_fuzz;
pub(super) use repack::{Needs, is_reused};

/// The hidden first argument.
pub(super) const ARGUMENT: &str = "__index-pack";

/// What the child is to do; its only other argument, as JSON. Nothing secret is in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The mirror.
    pub(super) dir: PathBuf,
    /// The work.
    pub(super) task: Task,
    /// RLIMIT_DATA, bytes.
    pub(super) memory: u64,
    /// The most bytes of pack.
    pub(super) max_bytes: u64,
    /// fsync the pack.
    pub(super) durable: bool,
    /// What it can do besides.
    pub(super) sandbox: Sandbox,
}

/// A child's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Task {
    /// Index the pack on standard input and check that the tip is complete then.
    Index {
        /// What was wanted: a commit or a tag.
        tip: ObjectId,
        /// A commit whose tree is complete.
        base: Option<ObjectId>,
        /// The most objects that the pack may announce, where few are expected.
        expected: Option<u64>,
        /// Objects may be absent: the remote was asked to leave some out.
        partial: bool,
    },
    /// Read so many ids on standard input, index the pack that follows, and check that these objects are here then.
    Fill(usize),
    /// Write the objects of these packs (names without a suffix) into one more pack. Nothing is removed.
    Merge(Vec<String>),
    /// Find out what nothing needs, and write what is needed out of packs that hold much of it. No pack is removed.
    CollectGarbage(Needs),
}

impl Task {
    /// In words, for messages.
    fn words(&self) -> &'static str {
        match self {
            Self::Index { .. } | Self::Fill(_) => "indexing the fetched pack",
            Self::Merge(_) => "merging small packs of the mirror",
            Self::CollectGarbage(_) => "garbage collection in the mirror",
        }
    }
}

/// What the child says at its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Report {
    /// The pack is in the mirror and the tip is complete.
    Complete {
        /// Objects in the pack, those added to complete it not counted.
        objects: u64,
        /// Bytes received.
        bytes: u64,
        /// The pack, without a suffix.
        pack: String,
    },
    /// The packs' objects are in this pack, too.
    Merged(String),
    /// These packs hold nothing any more that is needed and not elsewhere.
    Collected {
        /// The pack that was written for that.
        pack: Option<String>,
        /// Packs that may go, without a suffix.
        gone: Vec<String>,
    },
    /// The pack was sound, but the tip is not complete with it. It was removed again.
    Incomplete {
        /// The path that leads to what is missing, if one does.
        at: Option<Box<str>>,
        /// What is missing.
        lack: Lack,
    },
    /// What was wanted is no commit.
    NotACommit(String),
    /// The pack ended too soon.
    Cut,
    /// The pack is malformed, or a hash in it is wrong.
    Bad(String),
    /// The pack announces more objects than were expected. Nothing more of it was read.
    Many(u64),
    /// It needed more memory than it may have.
    Memory,
    /// It was larger than it may be.
    Bytes,
    /// The file system or the database refused.
    Local(String),
}

/// Goes to a child at once: servers send packs in pieces of 8 KB, each of which would wake it.
const PIECE: usize = 256 << 10;

/// A running child.
pub(super) struct Indexer {
    child: Child,
    job: Job,
    program: PathBuf,
}

impl Indexer {
    /// Starts the child, and tells it what was wanted if it is to know. It is killed when this is dropped. The pack goes to
    /// what is returned, which is to be flushed at its end.
    pub(super) async fn start(
        program: PathBuf,
        job: Job,
        wanted: &[ObjectId],
    ) -> Result<(Self, BufWriter<ChildStdin>), Error> {
        let failed = |why: String| Error::Indexer { program: program.clone(), why };
        let mut child = Command::from(command(&program, &job)?)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(format!("cannot be started: {error}")))?;
        let mut stdin = child.stdin.take().ok_or_else(|| failed("has no standard input".into()))?;
        if let Task::Fill(_) = job.task {
            // Not through the buffer: where the remote then sends no pack, nobody flushes it.
            let ids: Vec<u8> = wanted.iter().flat_map(|id| id.0).collect();
            let _ = stdin.write_all(&ids).await; // a child that reads no more says why
        }
        Ok((Self { child, job, program }, BufWriter::with_capacity(PIECE, stdin)))
    }

    /// Waits for the end of the child and reads what it said.
    pub(super) async fn report(&mut self) -> Result<Report, Error> {
        let said = read(self.child.stdout.take());
        let wrong = read(self.child.stderr.take());
        let (said, wrong) = tokio::join!(said, wrong);
        // Where another process reaps (PID 1 does), the status may be gone; the report does not depend on it.
        let status = self.child.wait().await.ok();
        understand(&self.program, &self.job, &said, &wrong, status)
    }

    /// A report that ends the fetch, as an error.
    pub(super) fn failure(&self, report: Report) -> Error {
        failure(&self.program, &self.job, report)
    }
}

/// Runs a task that needs no input, to its end. Blocking.
pub(super) fn run(program: &Path, job: &Job) -> Result<Report, Error> {
    let failed = |why: String| Error::Indexer { program: program.to_owned(), why };
    let output = command(program, job)?
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    understand(program, job, &output.stdout, &output.stderr, Some(output.status))
}

fn command(program: &Path, job: &Job) -> Result<std::process::Command, Error> {
    let text = serde_json::to_string(job)
        .map_err(|error| Error::Indexer { program: program.to_owned(), why: error.to_string() })?;
    let mut command = std::process::Command::new(program);
    command.arg(ARGUMENT).arg(text).env_clear().stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Reads the report, or says why there is none, as far as that is known.
fn understand(
    program: &Path,
    job: &Job,
    said: &[u8],
    wrong: &[u8],
    status: Option<ExitStatus>,
) -> Result<Report, Error> {
    if let Ok(report) = serde_json::from_slice(said) {
        return Ok(report);
    }
    let wrong = String::from_utf8_lossy(wrong);
    let killed = status.and_then(|status| status.signal());
    if wrong.contains("memory allocation of") {
        return Ok(Report::Memory); // Rust's own words when an allocation is refused, before it aborts
    }
    if killed == Some(rustix::process::Signal::KILL.as_raw()) {
        return Err(Error::IndexKilled { task: job.task.words(), limit: job.memory });
    }
    let end = match (killed, status.and_then(|status| status.code())) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code} and without a report"),
        (None, None) => "ended without a report".to_owned(),
    };
    let last = wrong.lines().last().unwrap_or("it wrote no message");
    Err(Error::Indexer { program: program.to_owned(), why: format!("{end}: {last}") })
}

/// A report that is no success, as an error.
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
        (
            Report::Incomplete { at, lack: Lack::TooLarge { id, expected, bytes, limit } },
            Task::Index { tip, .. },
        ) => {
            let path = at.map_or_else(|| format!("{expected} {id}"), String::from);
            Error::too_large(Revision(*tip), path, bytes, limit)
        }
        (Report::Incomplete { at, lack }, Task::Index { tip, .. }) => {
            Error::Incomplete { asked: *tip, at, lack: lack.into() }
        }
        (Report::NotACommit(kind), Task::Index { tip, .. }) => {
            Error::NotACommit { asked: tip.to_string(), kind }
        }
        (Report::Cut, _) => Error::BadPack { why: "it ends too soon".into() },
        (Report::Many(objects), _) => Error::BadPack { why: format!("{objects} objects are too many") },
        (Report::Bad(why), _) => Error::BadPack { why },
        (Report::Memory, _) => Error::IndexMemory { task: job.task.words(), limit: job.memory },
        (Report::Bytes, _) => Error::FetchBytes { limit: job.max_bytes },
        (Report::Local(why), _) => local(why),
        _ => Error::Indexer {
            program: program.to_owned(),
            why: "its report is not an answer to what it was asked".to_owned(),
        },
    }
}

/// Reads what a child writes, up to a bound that its reports and messages stay far below.
async fn read(from: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut text = Vec::new();
    if let Some(from) = from {
        // What was read before a failure still counts.
        let _ = from.take(64 << 10).read_to_end(&mut text).await;
    }
    text
}
