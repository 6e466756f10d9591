//! `treeswap status`: what is in a root, for people as a table, for programs as JSON. Reads only, without the lock; works
//! for any user who may read the root, and through a read-only mount.

use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use jiff::Timestamp;
use serde::Serialize;

use crate::clock;
use crate::configmap::Place;
use crate::configmap::apply::{Book, Record as Attempted};
use crate::generation::{Name, Record};
use crate::human;
use crate::phase::{Attempt, Outcome, Status};
use crate::store::{self, Inspected, Inspection};

/// Arguments of `treeswap status`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit codes: 0 a generation is published; 1 none is, or the root cannot be read.")]
pub struct Args {
    /// The root
    #[arg(value_name = "ROOT")]
    pub root: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the status.
///
/// # Errors
/// When the root cannot be read.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = store::inspect(&args.root)?;
    let locks = fs_err::read_to_string("/proc/locks").unwrap_or_default();
    let report = Report::new(&found, &locks);
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => table(&report, clock::now().wall),
    };
    print(&text)?;
    if found.current.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    let why = found.link_problem.as_deref().unwrap_or("nothing was published yet");
    say!("treeswap: no generation is published in {}: {why}", found.root.display());
    Ok(ExitCode::FAILURE)
}

/// A reader that went away, as `head` does, has what it wanted.
fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// What is printed.
#[derive(Serialize)]
struct Report<'a> {
    root: &'a Path,
    current: Option<&'a Name>,
    problem: Option<&'a str>,
    generations: Vec<Generation<'a>>,
    /// What a sync recorded last: when it published, failed, or recovered.
    sync: Option<&'a Status>,
    /// What was attempted in clusters, where there are rules.
    targets: Vec<Target<'a>>,
}

/// One ConfigMap in one place.
#[derive(Serialize)]
struct Target<'a> {
    cluster: &'a str,
    namespace: &'a str,
    name: &'a str,
    #[serde(flatten)]
    record: &'a Attempted,
}

#[derive(Serialize)]
struct Generation<'a> {
    name: &'a Name,
    current: bool,
    pinned: bool,
    holders: Vec<Holder>,
    #[serde(flatten)]
    record: Option<Facts<'a>>,
}

/// What the root's records say about a generation.
#[derive(Serialize)]
struct Facts<'a> {
    revision: &'a crate::revision::Revision,
    tree: &'a crate::revision::ObjectId,
    entries: u64,
    bytes: u64,
    published: Timestamp,
    retired: Option<Timestamp>,
}

/// A process that holds a pin, where the kernel lets us see it: it must be in our pid namespace.
#[derive(Serialize, PartialEq, Eq, Debug)]
struct Holder {
    pid: u32,
    command: Option<String>,
}

impl<'a> Report<'a> {
    fn new(found: &'a Inspection, locks: &str) -> Self {
        Self {
            root: &found.root,
            current: found.current.as_ref(),
            problem: found.link_problem.as_deref(),
            generations: found
                .generations
                .iter()
                .map(|one| Generation::new(one, &found.root, locks))
                .collect(),
            sync: found.status.as_ref(),
            targets: found.ledger.iter().flat_map(Book::records).map(Target::new).collect(),
        }
    }
}

impl<'a> Target<'a> {
    fn new((place, name, record): (&'a Place, &'a str, &'a Attempted)) -> Self {
        Self { cluster: &place.cluster, namespace: &place.namespace, name, record }
    }
}

impl<'a> Generation<'a> {
    fn new(found: &'a Inspected, root: &Path, locks: &str) -> Self {
        let facts = |record: &'a Record| Facts {
            revision: &record.revision,
            tree: &record.tree,
            entries: record.entries,
            bytes: record.bytes,
            published: record.published,
            retired: record.retired.as_ref().map(|retired| retired.at),
        };
        let holders = match fs_err::metadata(root.join(found.name.place())) {
            Ok(dir) if found.pinned => holders(locks, dir.dev(), dir.ino()),
            _ => Vec::new(),
        };
        Self {
            name: &found.name,
            current: found.current,
            pinned: found.pinned,
            holders,
            record: found.record.as_ref().map(facts),
        }
    }

    /// Why it is here, in words that follow "because it is".
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

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.command {
            Some(command) => write!(f, "{command} ({})", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// The flock holders of an inode, from the text of /proc/locks: `1: FLOCK ADVISORY READ 4711 08:01:12345 0 EOF`, device
/// in hexadecimal. Waiting ones (`->`) hold nothing.
fn holders(locks: &str, dev: u64, ino: u64) -> Vec<Holder> {
    let wanted = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let pid = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, inode, ..] = fields[..] else { return None };
        (inode == wanted).then(|| pid.parse::<u32>().ok()).flatten().filter(|pid| *pid > 0)
    };
    locks.lines().filter_map(pid).map(|pid| Holder { pid, command: command_of(pid) }).collect()
}

fn command_of(pid: u32) -> Option<String> {
    fs_err::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// The report for people.
fn table(report: &Report<'_>, now: Timestamp) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<14}{value}"); // writing to a String never fails
        }
    };
    line("root", &report.root.display().to_string());
    let revision = report.generations.iter().find(|one| one.current).and_then(|one| one.record.as_ref());
    line("revision", &revision.map(|record| record.revision.0.to_string()).unwrap_or_default());
    line("problem", report.problem.unwrap_or_default());
    if let Some(sync) = report.sync {
        line("remote", &format!("{} {}", sync.remote, sync.asked));
        // Attempts that found nothing new are not recorded: they write nothing.
        line("last news", &sync.last_attempt.as_ref().map(|last| attempt(last, now)).unwrap_or_default());
        if sync.consecutive_failures > 0 {
            line("failures", &format!("{} in a row", sync.consecutive_failures));
            let failure = sync.last_failure.as_ref();
            line("error", failure.and_then(|failure| failure.error.as_deref()).unwrap_or_default());
            failure.iter().flat_map(|failure| &failure.hints).for_each(|hint| line("hint", hint));
        }
    }
    if !report.generations.is_empty() {
        text.push('\n');
        text.push_str(&generations(&report.generations, now));
    }
    if !report.targets.is_empty() {
        text.push('\n');
        text.push_str(&targets(&report.targets, now));
    }
    text
}

fn attempt(attempt: &Attempt, now: Timestamp) -> String {
    let outcome = match attempt.outcome {
        Outcome::Published => "published",
        Outcome::Unchanged => "found nothing new",
        Outcome::Failed => "failed",
    };
    format!("{outcome} {}, in {}", human::relative(attempt.at, now), human::milliseconds(attempt.duration_ms))
}

/// One line a generation, columns as wide as what is in them.
fn generations(all: &[Generation<'_>], now: Timestamp) -> String {
    let mut rows = vec![["GENERATION", "REVISION", "PUBLISHED", "ENTRIES", "SIZE", "IS"].map(str::to_owned)];
    for one in all {
        let fact =
            |say: &dyn Fn(&Facts<'_>) -> String| one.record.as_ref().map_or_else(|| "?".to_owned(), say);
        rows.push([
            one.name.to_string(),
            fact(&|record| record.revision.short()),
            fact(&|record| human::relative(record.published, now)),
            fact(&|record| record.entries.to_string()),
            fact(&|record| human::bytes(record.bytes)),
            one.reason(now),
        ]);
    }
    // Numbers to the right.
    aligned(&rows, |column| (3..5).contains(&column))
}

/// One line a target.
fn targets(all: &[Target<'_>], now: Timestamp) -> String {
    let mut rows = vec![["CONFIGMAP", "REVISION", "DIGEST", "LAST ATTEMPT", "OUTCOME"].map(str::to_owned)];
    let short = |text: &str| text.get(..12).unwrap_or(text).to_owned();
    for Target { cluster, namespace, name, record } in all {
        let error = record.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        rows.push([
            format!("{cluster}/{namespace}/{name}"),
            short(&record.revision),
            short(&record.digest),
            human::relative(record.at, now),
            format!("{}{error}", record.outcome),
        ]);
    }
    aligned(&rows, |_| false)
}

/// Columns as wide as what is in them; the last one is as it is.
fn aligned<const N: usize>(rows: &[[String; N]], to_the_right: impl Fn(usize) -> bool) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match to_the_right(column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_those_of_the_very_inode_and_not_who_waits() {
        let dev = rustix::fs::makedev(0xfd, 0x101);
        let locks = "1: FLOCK  ADVISORY  READ 2147483000 fd:101:42 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 7 fd:101:42 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 8 fd:101:43 0 EOF\n\
                     3: POSIX  ADVISORY  READ 9 fd:101:42 0 EOF\n\
                     4: FLOCK  ADVISORY  READ -1 fd:101:42 0 EOF\n";
        assert_eq!(holders(locks, dev, 42), [Holder { pid: 2_147_483_000, command: None }]);
    }
}
