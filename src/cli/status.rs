//! `treeswap status`: shows the generations of a root and the state of its writer, as a table for people and as JSON
//! for programs. Only reads, without the lock: works for any user who can read the root, and on a read-only mount.
//!
//! A running writer is asked for its status over a socket ([`status_socket`]). If none answers, the status that the
//! last writer recorded in the root is shown, and marked as such. `table` writes the text for people.

mod table;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::admin::status_socket::{self, WriterState};
use crate::clock;
use crate::config::{duration, print_duration};
use crate::configmap::ClusterNamespace;
use crate::configmap::apply::{LastAttempt as Attempted, LedgerSet};
use crate::fsx::{self, Holder};
use crate::generation::{GenerationRecord, Name};
use crate::human;
use crate::phase::{Commit, Status};
use crate::store::{self, Inspected, Inspection};
use table::{plain, table};

/// How long to wait for the writer's answer. A running writer answers within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How far in the future the last success may be: a writer on a machine of its own has a clock of its own.
const CLOCK_SKEW: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// Arguments of `treeswap status`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 a generation is published, and with --max-age the last success is no older; 1 otherwise, or the root cannot be read."
)]
pub struct Args {
    /// The root
    #[arg(value_name = "ROOT")]
    pub root: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Fail if the last success is older than this: the writer was killed or hangs, the remote does not answer, or its
    /// newest commit is refused
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub max_age: Option<Duration>,

    /// For probes: print nothing on success, and the reason on failure
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Prints the status.
///
/// # Errors
/// When the root cannot be read.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = store::inspect(&args.root)?;
    let report = Report::new(&found, status_socket::query_writer(&found.socket, ANSWER_TIMEOUT));
    let now = clock::now().wall;
    let failed = report.failure(args.max_age, now);
    // If nothing was ever published, the two lines on stderr say everything.
    let bare = failed.is_some() && report.generations.is_empty() && report.targets.is_empty();
    if args.json {
        print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else if !args.quiet && !bare {
        print(&table(&report, now))?;
    }
    let Some(failed) = failed else { return Ok(ExitCode::SUCCESS) };
    say!("treeswap: {failed}");
    if let Some(hints) = report.hints() {
        say!("{hints}");
    }
    Ok(ExitCode::FAILURE)
}

/// Prints on stdout. EPIPE is no error: the reader (`| head`) needs no more.
fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The whole report; its JSON is the output of `--json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RootStatus"))]
struct Report<'a> {
    /// The path of the root.
    root: &'a Path,
    /// The name of the published generation.
    current: Option<&'a Name>,
    /// What is wrong with the link that names it.
    problem: Option<&'a str>,
    /// All generations, newest first.
    generations: Vec<Generation<'a>>,
    /// The state of the writer: running, hangs, silent, absent or unknown.
    writer: &'static str,
    /// Why the state is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The status from the running writer. If none answers, the last recorded one: a writer records its status when it
    /// publishes, fails or recovers, and every five minutes.
    sync: Option<Status>,
    /// The last attempt at each target, if there are rules.
    targets: Vec<Target<'a>>,
}

/// One ConfigMap in one namespace of one cluster.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Target<'a> {
    cluster: &'a str,
    namespace: &'a str,
    name: &'a str,
    #[serde(flatten)]
    record: &'a Attempted,
}

/// One generation of the root.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Generation<'a> {
    /// The name of its directory.
    name: &'a Name,
    /// Whether it is published.
    current: bool,
    /// Whether a reader holds a pin on it.
    pinned: bool,
    /// Processes that hold a pin, where they can be seen.
    holders: Vec<Holder>,
    /// What its commit says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<Commit>,
    #[serde(flatten)]
    record: Option<Facts<'a>>,
}

/// A generation's record in the root.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Facts<'a> {
    /// The commit id; null if the root has lost its records.
    revision: Option<crate::revision::Revision>,
    /// The id of the commit's tree.
    tree: Option<&'a crate::revision::ObjectId>,
    /// Files, symbolic links and directories.
    entries: u64,
    /// Bytes of its files.
    bytes: u64,
    /// What its files take on disk, as `--max-bytes` counts it.
    disk_bytes: Option<u64>,
    /// When it became current.
    published: Timestamp,
    /// When it stopped being current.
    retired: Option<Timestamp>,
}

impl<'a> Report<'a> {
    fn new(found: &'a Inspection, writer: WriterState) -> Self {
        let recorded = || found.status.clone();
        let (writer, why, mut sync) = match writer {
            WriterState::Answers(answer) if answer.alive => ("running", None, Some(answer.status)),
            WriterState::Answers(answer) => ("hangs", None, Some(answer.status)),
            // Without a socket: the writer is starting or ending, or could not make one.
            WriterState::Absent if !found.has_writer() => ("absent", None, recorded()),
            WriterState::Silent | WriterState::Absent => ("silent", None, recorded()),
            WriterState::Unknown(why) => ("unknown", Some(why), recorded()),
        };
        let commits = sync.iter().flat_map(|sync| sync.current.iter().chain(&sync.retired));
        let commits: Vec<(Name, Commit)> =
            commits.filter_map(|one| Some((one.name.clone(), one.commit.clone()?))).collect();
        let commit =
            |name: &Name| commits.iter().find(|(of, _)| of == name).map(|(_, commit)| commit.clone());
        let generations = found.generations.iter();
        let generations: Vec<_> =
            generations.map(|one| Generation::new(one, &found.root, commit(&one.name))).collect();
        if let Some(sync) = &mut sync {
            update_pins(sync, &found.generations, &generations);
        }
        Self {
            root: &found.root,
            current: found.current.as_ref(),
            problem: found.link_problem.as_deref(),
            generations,
            writer,
            why,
            sync,
            targets: found.ledger.iter().flat_map(LedgerSet::records).map(Target::new).collect(),
        }
    }

    /// Why the exit code is not 0. The text stays the same as long as the problem does: Kubernetes counts equal events
    /// of a probe, and drops events whose text always changes.
    fn failure(&self, max_age: Option<Duration>, now: Timestamp) -> Option<String> {
        self.raw_failure(max_age, now).map(|failure| plain(&failure))
    }

    /// The same, with text that is not safe to print on a terminal yet.
    fn raw_failure(&self, max_age: Option<Duration>, now: Timestamp) -> Option<String> {
        let root = self.root.display();
        if self.current.is_none() {
            let problem = match self.problem {
                Some(problem) if !self.generations.is_empty() => format!(": {problem}"),
                _ => String::new(),
            };
            return Some(format!("no generation is published in {root}{problem}; {}", self.state()));
        }
        let max_age = max_age?;
        let last = self.sync.as_ref().and_then(|sync| sync.last_success);
        // Negative if it is in the future.
        let age = last.map(|at| now.duration_since(at));
        let what = match (age, last) {
            (Some(age), Some(last)) if age < -CLOCK_SKEW => {
                format!(
                    "the last success is in the future, at {}: a clock was set back",
                    human::clock_time(last)
                )
            }
            (Some(age), _) if Duration::try_from(age).unwrap_or_default() <= max_age => return None,
            (_, Some(last)) => format!("the last success was at {}", human::clock_time(last)),
            (_, None) => "no success is on record".to_owned(),
        };
        Some(format!(
            "{root} had no success within --max-age={}: {what}; {}",
            print_duration(max_age),
            self.state()
        ))
    }

    /// The state of the writer and of its sync, without values that change by the second.
    fn state(&self) -> String {
        let failing = self.sync.as_ref().filter(|sync| sync.consecutive_failures > 0);
        let error = failing.and_then(|sync| sync.last_failure.as_ref()?.error.as_deref());
        let since = failing.and_then(|sync| sync.failing_since);
        let since = since.map(|at| format!(" since {}", human::clock_time(at))).unwrap_or_default();
        let fails = error.map(|error| format!("fails{since}: {error}"));
        let writer = self.writer_line();
        match (self.writer, fails) {
            ("running", Some(fails)) => format!("the sync {fails}"),
            ("running", None) => match self.sync.as_ref().and_then(|sync| sync.progress.as_ref()) {
                Some(progress) => {
                    format!("an attempt has been running since {}", human::clock_time(progress.since))
                }
                None => "no attempt has failed".to_owned(),
            },
            (_, Some(fails)) => format!("{writer}; its sync {fails}"),
            (_, None) => writer,
        }
    }

    /// The second line of a failure: its hints. It stays the same, too, so the next attempt's time is not in it.
    fn hints(&self) -> Option<String> {
        let sync = self.sync.as_ref().filter(|sync| sync.consecutive_failures > 0)?;
        let hints = sync.last_failure.iter().flat_map(|failure| &failure.hints);
        let all: Vec<String> = hints.map(|hint| format!("hint: {hint}")).collect();
        (!all.is_empty()).then(|| plain(&all.join("; ")))
    }

    /// The state of the writer in words.
    fn writer_line(&self) -> String {
        let at = |at: Option<Timestamp>| at.map(human::clock_time);
        match (self.writer, &self.sync) {
            ("running", _) => "running".to_owned(),
            ("hangs", _) => "the sync loop hangs: it missed its liveness deadline".to_owned(),
            ("silent", _) => {
                "a writer holds the root but does not answer: it is stopped, starting, ending or overloaded"
                    .to_owned()
            }
            ("unknown", _) => {
                let why = self.why.as_deref().unwrap_or_default();
                format!("cannot determine whether a writer is running: {why}")
            }
            (_, None) => "no writer is running, and none has left a record".to_owned(),
            (_, Some(sync)) => match (at(sync.ended), at(sync.recorded)) {
                (Some(ended), _) => format!("no writer is running since {ended}"),
                (None, Some(recorded)) => {
                    format!(
                        "no writer is running, and the last one did not shut down cleanly; last seen at {recorded}"
                    )
                }
                (None, None) => "no writer is running".to_owned(),
            },
        }
    }
}

/// Updates what the writer knows of pins, which is as old as its last attempt. It stays where the pins are not known
/// here.
fn update_pins(sync: &mut Status, found: &[Inspected], shown: &[Generation<'_>]) {
    for one in sync.current.iter_mut().chain(&mut sync.retired) {
        match found.iter().zip(shown).find(|(found, _)| found.name == one.name) {
            Some((Inspected { pinned: None, .. }, _)) => {}
            Some((_, shown)) => {
                one.pinned = shown.pinned;
                one.holders.clone_from(&shown.holders);
            }
            None => {
                one.pinned = false;
                one.holders.clear();
            }
        }
    }
}

impl<'a> Target<'a> {
    fn new((place, name, record): (&'a ClusterNamespace, &'a str, &'a Attempted)) -> Self {
        Self { cluster: &place.cluster, namespace: &place.namespace, name, record }
    }
}

impl<'a> Generation<'a> {
    fn new(found: &'a Inspected, root: &Path, commit: Option<Commit>) -> Self {
        let facts = |record: &'a GenerationRecord| Facts {
            revision: record.known_revision(),
            tree: Some(&record.tree).filter(|_| record.is_known()),
            entries: record.entries,
            bytes: record.bytes,
            disk_bytes: found.disk_bytes,
            published: record.published,
            retired: record.retired.as_ref().map(|retired| retired.at),
        };
        let pinned = found.pinned == Some(true);
        let holders = match fs_err::metadata(root.join(found.name.relative_path())) {
            Ok(dir) if pinned => fsx::lock_holders(dir.dev(), dir.ino()),
            _ => Vec::new(),
        };
        Self {
            name: &found.name,
            current: found.current,
            pinned,
            holders,
            commit,
            record: found.record.as_ref().map(facts),
        }
    }

    /// Why the generation is kept: current, pinned, retired.
    fn reason(&self, now: Timestamp) -> String {
        let mut words = Vec::new();
        if self.current {
            words.push("current".to_owned());
        }
        if self.pinned {
            let names: Vec<String> = self.holders.iter().map(Holder::to_string).collect();
            words.push(if names.is_empty() {
                "pinned".to_owned()
            } else {
                format!("pinned by {}", names.join(", "))
            });
        }
        if let Some(retired) = self.record.as_ref().and_then(|record| record.retired) {
            words.push(format!("retired {}", human::relative(retired, now)));
        }
        words.join(", ")
    }
}

#[cfg(test)]
mod tests;
