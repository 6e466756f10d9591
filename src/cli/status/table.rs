//! The status as text for people.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{Facts, Generation, Report, Target};
use crate::human::{self, sanitize};
use crate::phase::{Attempt, Commit, HookStatus, Outcome, Status, followed, unknown_revision};

/// The whole report.
pub(super) fn table(report: &Report<'_>, now: Timestamp) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{:<13} {}", plain(name), plain(value)); // writing to a String never fails
        }
    };
    line("root", &report.root.display().to_string());
    let current = report.generations.iter().find(|one| one.current);
    let record = current.and_then(|one| one.record.as_ref());
    let id =
        |record: &Facts<'_>| record.revision.map_or_else(unknown_revision, |revision| revision.to_string());
    line("revision", &record.map(id).unwrap_or_default());
    line("commit", &current.and_then(|one| one.commit.as_ref()).map(commit_line).unwrap_or_default());
    line("problem", report.problem.unwrap_or_default());
    line("writer", &report.writer_line());
    if let Some(sync) = &report.sync {
        sync_lines(sync, report.writer == "running" || report.writer == "hangs", now, &mut line);
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

/// When the last success was. If this remote and ref never had one, adds the one that another remote or ref had in this
/// root.
fn last_success(sync: &Status, when: impl Fn(Timestamp) -> String) -> String {
    match (sync.last_success, &sync.earlier_success) {
        (Some(at), _) => when(at),
        (None, None) => "never".to_owned(),
        (None, Some(earlier)) => {
            format!("never; of {} {}", followed(&earlier.remote, &earlier.ref_name), when(earlier.at))
        }
    }
}

/// The lines about the sync; `live` if they are from a running writer and not from a record.
fn sync_lines(sync: &Status, live: bool, now: Timestamp, line: &mut impl FnMut(&str, &str)) {
    let when = |at: Timestamp| format!("{} ({})", human::relative(at, now), human::clock_time(at));
    line("remote", &followed(&sync.remote, &sync.ref_name));
    if let Some(progress) = &sync.progress {
        let fetched = match progress.fetched_bytes {
            0 => String::new(),
            bytes => format!(", {} received", human::bytes(bytes)),
        };
        line("now", &format!("{}{fetched}, since {}", progress.what, when(progress.since)));
    }
    if let Some(progress) = &sync.delivery_progress {
        line("delivery", &format!("{}, since {}", progress.what, when(progress.since)));
    }
    // Attempts without a change are not recorded, as they write nothing to disk.
    let recorded = if live { "" } else { " (as recorded)" };
    let last = sync.last_attempt.as_ref().map(|last| attempt(last, now) + recorded);
    line("last attempt", &last.unwrap_or_default());
    line("last success", &last_success(sync, when));
    if let Some(next) = sync.next_attempt.filter(|_| live) {
        line("next attempt", &when(next));
    }
    if sync.consecutive_failures > 0 {
        let since = sync.failing_since.map(|at| format!(", since {}", when(at))).unwrap_or_default();
        line("failures", &format!("{} in a row{since}", sync.consecutive_failures));
        let failure = sync.last_failure.as_ref();
        line("error", failure.and_then(|failure| failure.error.as_deref()).unwrap_or_default());
        failure.iter().flat_map(|failure| &failure.hints).for_each(|hint| line("hint", hint));
    }
    for source in &sync.sources {
        let revision =
            source.revision.map_or_else(|| "not in the set".to_owned(), |revision| revision.short());
        let place = if source.to.is_empty() { "at the top" } else { &format!("in {}", source.to) };
        let state = match &source.error {
            Some(error) => format!(": {error}"),
            None if source.is_late => ", its remote has not answered yet".to_owned(),
            None => String::new(),
        };
        line("source", &format!("{} {revision} {place}{state}", source.name));
        source.hints.iter().for_each(|hint| line("hint", hint));
    }
    for hook in &sync.hooks {
        line(&hook.hook, &hook_line(hook, now));
        hook.hints.iter().for_each(|hint| line("hint", hint));
    }
}

fn hook_line(hook: &HookStatus, now: Timestamp) -> String {
    let Some(at) = hook.at else { return "not run yet".to_owned() };
    let took = human::milliseconds(hook.duration_ms);
    let when = human::relative(at, now);
    let revision = hook.revision.map(|revision| revision.short()).unwrap_or_default();
    match &hook.error {
        None => format!("done for {revision} {when}, in {took}"),
        // A gate, and the ref does not name any more what it refused.
        Some(error) if hook.consecutive_failures == 0 => {
            format!("last failed {when}, for {revision}, which is not to be published now: {error}")
        }
        Some(error) => {
            let since = hook.failing_since.map(human::clock_time).unwrap_or_default();
            let times = hook.consecutive_failures;
            format!("failed {times} in a row since {since}, last {when} for {revision}: {error}")
        }
    }
}

/// Subject, author and date of a commit on one line.
fn commit_line(commit: &Commit) -> String {
    let date = commit.date.map(|date| date.strftime(", %Y-%m-%d").to_string()).unwrap_or_default();
    format!("{} ({}{date})", sanitize(&commit.subject, 120), sanitize(&commit.author, 60))
}

fn attempt(attempt: &Attempt, now: Timestamp) -> String {
    let outcome = match attempt.outcome {
        Outcome::Published => "published",
        Outcome::Unchanged => "found nothing new",
        Outcome::Failed => "failed",
    };
    format!("{outcome} {}, in {}", human::relative(attempt.at, now), human::milliseconds(attempt.duration_ms))
}

/// The table of generations.
fn generations(all: &[Generation<'_>], now: Timestamp) -> String {
    let mut rows = vec![["GENERATION", "REVISION", "PUBLISHED", "ENTRIES", "SIZE", "IS"].map(str::to_owned)];
    for one in all {
        let fact =
            |say: &dyn Fn(&Facts<'_>) -> String| one.record.as_ref().map_or_else(|| "?".to_owned(), say);
        rows.push([
            one.name.to_string(),
            fact(&|record| record.revision.map_or_else(|| "?".to_owned(), |revision| revision.short())),
            fact(&|record| human::relative(record.published, now)),
            fact(&|record| record.entries.to_string()),
            fact(&|record| human::bytes(record.disk_bytes.unwrap_or(record.bytes))),
            one.reason(now),
        ]);
    }
    aligned(&rows, |column| (3..5).contains(&column)) // numbers are right-aligned
}

/// The table of targets.
fn targets(all: &[Target<'_>], now: Timestamp) -> String {
    let mut rows = vec![["CONFIGMAP", "REVISION", "DIGEST", "LAST ATTEMPT", "OUTCOME"].map(str::to_owned)];
    for Target { cluster, namespace, name, record } in all {
        let error = record.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        rows.push([
            format!("{cluster}/{namespace}/{name}"),
            human::short(&record.revision).to_owned(),
            human::short(&record.digest).to_owned(),
            human::relative(record.at, now),
            format!("{}{error}", record.outcome),
        ]);
    }
    aligned(&rows, |_| false)
}

/// Makes a text safe for a terminal. Records and answers at the socket were sanitized when our writer wrote them, but
/// files and socket may be somebody else's.
pub(super) fn plain(text: &str) -> String {
    sanitize(text, usize::MAX)
}

/// Formats rows as a table, with cells that are safe for a terminal.
fn aligned<const N: usize>(rows: &[[String; N]], right_aligned: impl Fn(usize) -> bool) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| plain(cell))).collect();
    crate::cli::columns(&rows, right_aligned).join("\n") + "\n"
}
