//! Prints the results of `apply`, for people, logs and programs. Keys of ConfigMaps are shown, values never.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::IsTerminal as _;

use serde::Serialize;
use tracing::{error, info, warn};

use super::Format;
use crate::deliver::{Outcome, Report, Target};
use crate::revision::Revision;
use crate::secret;

/// At most this many added, changed and removed keys are shown each.
const MAX_KEYS: usize = 8;

/// The results for programs.
#[derive(Serialize)]
struct JsonReport<'r> {
    /// Whether nothing was written: the outcomes are those that a run would have.
    dry_run: bool,
    #[serde(flatten)]
    report: &'r Report,
}

/// Prints the results on stdout.
pub(super) fn print(report: &Report, format: Option<Format>, dry_run: bool) -> anyhow::Result<()> {
    let terminal = || if std::io::stdout().is_terminal() { Format::Table } else { Format::Lines };
    let text = match format.unwrap_or_else(terminal) {
        Format::Json => {
            let report = JsonReport { dry_run, report };
            secret::redacted_json(&serde_json::to_string_pretty(&report)?) + "\n"
        }
        Format::Table => secret::redacted(&table(report, dry_run)).into_owned(),
        Format::Lines => secret::redacted(&lines(report, dry_run)).into_owned(),
    };
    crate::cli::print(text.as_bytes());
    Ok(())
}

/// Prints notes and failures on stderr, which an operator should see whatever stdout is used for.
pub(super) fn notes(report: &Report) {
    for note in &report.notes {
        say!("treeswap: note: {note}");
        note.hint.iter().for_each(|hint| say!("hint: {hint}"));
    }
    failures(report).for_each(|failure| say!("treeswap: {failure}"));
    for (line, hints) in failures_by_cause(report) {
        say!("treeswap: {line}");
        hints.iter().for_each(|hint| say!("hint: {hint}"));
    }
}

/// Failures that concern no single target, and sources that did not answer.
fn failures(report: &Report) -> impl Iterator<Item = &String> {
    report.unanswered.iter().chain(report.other_failures())
}

/// The failed targets with hints, grouped by cause: a line for the first target of each cause, and the hints. The
/// lines and the JSON list all targets.
fn failures_by_cause(report: &Report) -> Vec<(String, &[String])> {
    let mut causes = Vec::new();
    for targets in report.causes() {
        let first: &Target = targets[0];
        if !first.hints.is_empty() {
            let Target { cluster, namespace, name, outcome, .. } = first;
            let others = others(targets.len() - 1);
            let line = format!("{cluster}/{namespace}/{name}{others}: {}: {}", outcome.label(), why(first));
            causes.push((line, first.hints.as_slice()));
        }
    }
    causes
}

/// How many others are alike, after the name of the first.
fn others(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

/// Writes the results into the log. The summary comes last: Kubernetes keeps the end of a log.
pub(super) fn log(report: &Report, dry_run: bool) {
    for target in report.targets.iter().filter(|target| target.outcome != Outcome::Unchanged) {
        let outcome = target.outcome.label();
        let line = line(target, dry_run);
        let Target { cluster, namespace, name: configmap, .. } = target;
        if target.outcome.is_success() {
            info!(cluster, namespace, configmap, outcome, "{line}");
        } else {
            error!(cluster, namespace, configmap, outcome, "{line}");
        }
    }
    hints(report).iter().for_each(|hint| info!("hint: {hint}"));
    for note in &report.notes {
        warn!("{note}");
        note.hint.iter().for_each(|hint| info!("hint: {hint}"));
    }
    failures(report).for_each(|failure| error!("{failure}"));
    let revision = report.revision;
    let summary = summary(report, dry_run);
    if report.is_complete() { info!(%revision, "{summary}") } else { error!(%revision, "{summary}") }
}

/// The hints of all targets, without duplicates.
fn hints(report: &Report) -> BTreeSet<&String> {
    report.targets.iter().flat_map(|target| &target.hints).collect()
}

/// The outcome, or in a dry run what it would be.
fn word(outcome: Outcome, dry_run: bool) -> String {
    if dry_run && outcome.is_write() {
        format!("to be {}", outcome.label())
    } else {
        outcome.label().to_owned()
    }
}

/// The keys that are added, changed and removed: `+a ~b -c`.
fn keys(target: &Target) -> String {
    let mut text = String::new();
    for (sign, keys) in [('+', &target.added), ('~', &target.changed), ('-', &target.removed)] {
        for key in keys.iter().take(MAX_KEYS) {
            let _ = write!(text, " {sign}{key}"); // writing to a String never fails
        }
        if keys.len() > MAX_KEYS {
            let _ = write!(text, " {sign}({} more)", keys.len() - MAX_KEYS);
        }
    }
    text
}

/// The reason for the outcome; empty for an unchanged target.
fn why(target: &Target) -> String {
    match target.outcome {
        Outcome::Unchanged => String::new(),
        _ => format!("{}{}", target.why, if target.attempts > 1 { " (several tries)" } else { "" }),
    }
}

/// The revision and how many targets have each outcome.
fn summary(report: &Report, dry_run: bool) -> String {
    let mut counts: Vec<(Outcome, usize)> = Vec::new();
    for target in &report.targets {
        match counts.iter_mut().find(|(outcome, _)| *outcome == target.outcome) {
            Some((_, count)) => *count += 1,
            None => counts.push((target.outcome, 1)),
        }
    }
    counts.sort();
    let counts: Vec<String> =
        counts.into_iter().map(|(outcome, count)| format!("{count} {}", word(outcome, dry_run))).collect();
    let counts = if counts.is_empty() { "nothing to apply".to_owned() } else { counts.join(", ") };
    let of_source = |(name, revision): (&String, &Revision)| format!("{name} {}", revision.short());
    let sources: Vec<String> = report.sources.iter().map(of_source).collect();
    match sources.as_slice() {
        [] => format!("revision {}: {counts}", report.revision),
        sources => format!("revision {} ({}): {counts}", report.revision, sources.join(", ")),
    }
}

/// A row for each target, but one for all that fail by a cause of their whole cluster or namespace.
fn table(report: &Report, dry_run: bool) -> String {
    let causes = report.causes();
    let shared = causes.iter().filter(|targets| targets[0].has_shared_cause());
    let firsts: BTreeMap<_, usize> = shared.map(|targets| (id(targets[0]), targets.len() - 1)).collect();
    let mut rows = vec![["CLUSTER/NAMESPACE", "CONFIGMAP", "RESULT", "WHY, KEYS"].map(str::to_owned)];
    for target in &report.targets {
        let first = firsts.get(&id(target));
        if target.has_shared_cause() && first.is_none() {
            continue;
        }
        let place = format!("{}/{}", target.cluster, target.namespace);
        let name = format!("{}{}", target.name, others(first.copied().unwrap_or(0)));
        let rest = format!("{}{}", why(target), keys(target)).trim_start().to_owned();
        rows.push([place, name, word(target.outcome, dry_run), rest]);
    }
    let mut text = String::new();
    if rows.len() > 1 {
        text += &(crate::cli::columns(&rows, |_| false).join("\n") + "\n");
    }
    text + &summary(report, dry_run) + "\n"
}

fn id(target: &Target) -> (&str, &str, &str) {
    (&target.cluster, &target.namespace, &target.name)
}

fn lines(report: &Report, dry_run: bool) -> String {
    let mut text = String::new();
    for target in report.targets.iter().filter(|target| target.outcome != Outcome::Unchanged) {
        text += &(line(target, dry_run) + "\n");
    }
    text + &summary(report, dry_run) + "\n"
}

fn line(target: &Target, dry_run: bool) -> String {
    let Target { cluster, namespace, name, outcome, .. } = target;
    let result = word(*outcome, dry_run);
    let why = why(target);
    let keys = keys(target);
    format!("{cluster}/{namespace}/{name}: {result}: {why}{keys}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Error, Failure, Kind, Operation, Verb};

    #[test]
    fn a_table_has_one_row_for_all_that_fail_with_their_cluster_and_programs_get_each() {
        let failed = |namespace: &str| {
            let [namespace, name] = [namespace, "treeswap-set-team"].map(str::to_owned);
            let operation = Operation { verb: Verb::Get, kind: Kind::ConfigMap, namespace, name };
            let error = Error {
                cluster: "kube-a".to_owned(),
                operation: Box::new(operation),
                why: Failure::Unauthorized,
            };
            let line = crate::human::one_line(&error);
            let Operation { namespace, .. } = &*error.operation;
            Target::failed("a", namespace, "jobs", &line, error.hints()).caused_by(&error)
        };
        let other = Target::failed("b", "ci", "jobs", "no right", vec!["grant it".to_owned()]);
        let report = Report {
            revision: Revision(crate::revision::ObjectId([1; 20])),
            sources: Default::default(),
            targets: vec![failed("ci-1"), failed("ci-2"), failed("ci-3"), other],
            notes: Vec::new(),
            failures: Vec::new(),
            unanswered: Vec::new(),
            unfinished: Default::default(),
        };
        let shown = table(&report, false);
        let rows: Vec<&str> = shown.lines().collect();
        assert_eq!(rows.len(), 4, "a header, two rows and the summary: {shown}");
        assert!(rows[1].starts_with("a/ci-1 ") && rows[1].contains("jobs (and 2 more)"), "{shown}");
        assert!(rows[2].starts_with("b/ci ") && rows[3].ends_with("4 failed"), "{shown}");
        let failures = failures_by_cause(&report);
        assert_eq!(failures.len(), 2);
        assert!(failures[0].0.starts_with("a/ci-1/jobs (and 2 more): failed: "), "{failures:?}");
        assert_eq!(lines(&report, false).lines().count(), 5, "a line for each target, and the summary");
        let json = serde_json::to_value(JsonReport { dry_run: true, report: &report }).unwrap();
        assert_eq!(json["targets"].as_array().unwrap().len(), 4);
        assert_eq!(json["dry_run"], true);
    }

    #[test]
    fn every_cause_is_shown_once_with_its_hints_under_it() {
        let target = |name: &str, why: &str, hints: &[&str]| {
            let hints = hints.iter().map(|hint| (*hint).to_owned()).collect();
            Target::failed("test", "ns", name, why, hints)
        };
        let revision = Revision(crate::revision::ObjectId([1; 20]));
        let report = Report {
            revision,
            sources: Default::default(),
            targets: vec![
                target("a", "no right", &["grant it"]),
                target("b", "no right", &["grant it"]),
                target("c", "too large", &["split it"]),
            ],
            notes: Vec::new(),
            failures: Vec::new(),
            unanswered: vec!["source team: it is away".to_owned()],
            unfinished: Default::default(),
        };
        assert_eq!(failures(&report).collect::<Vec<_>>(), ["source team: it is away"]);
        let alone = Report { targets: Vec::new(), ..report.clone() };
        assert!(alone.is_success() && !alone.is_complete());
        let causes = failures_by_cause(&report);
        let shown = causes.iter().map(|(line, hints)| format!("{line} / {}", hints.join("; ")));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                "test/ns/a (and 1 more): failed: no right / grant it",
                "test/ns/c: failed: too large / split it"
            ]
        );
    }
}
