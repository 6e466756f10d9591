//! Turns a view of the root into the status's fields and into log lines.

use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use crate::generation::GenerationRecord;
use crate::phase::{EarlierSuccess, GenerationStatus, Status, millis};
use crate::store::Published;
use crate::sync::Options;
use crate::sync::view::View;

impl Options {
    /// Returns when an attempt for this ref of `remote` last succeeded, from the previous process's status, and the
    /// last success of another remote or ref in this root. The latter is kept so that a run for one ref does not lose
    /// the record of another. Without a status, the publication of the current generation counts as the last success.
    pub(crate) fn known_success(
        &self,
        before: Option<Status>,
        current: Option<&GenerationRecord>,
        remote: &str,
    ) -> (Option<Timestamp>, Option<EarlierSuccess>) {
        let is_ours = |of: &str, ref_name: &str| of == remote && ref_name == self.ref_name;
        let (known, earlier) = match before {
            Some(before) if is_ours(&before.remote, &before.ref_name) => {
                (before.last_success, before.earlier_success)
            }
            Some(Status { last_success, earlier_success, remote, ref_name, .. }) => {
                let ours = earlier_success.as_ref().filter(|one| is_ours(&one.remote, &one.ref_name));
                let ours = ours.map(|one| one.at);
                let other = last_success.map(|at| EarlierSuccess { at, remote, ref_name });
                (ours, other.or(earlier_success.filter(|_| ours.is_none())))
            }
            None => (current.filter(|record| record.is_known()).map(|record| record.published), None),
        };
        // If the clock was set back since, the recorded time is in the future.
        (known.map(|at| at.min(Timestamp::now())), earlier)
    }
}

/// Copies the view into the status.
pub(super) fn fill_status(status: &mut Status, view: &View) {
    status.ready |= view.ready;
    status.sources.clone_from(&view.sources);
    status.last_answer = view.last_answer;
    let shown = |record: &GenerationRecord| {
        let decision = view.plan.decisions.iter().find(|decision| decision.name == record.name);
        let is_current = view.current.as_ref() == Some(&record.name);
        let reason = decision.map(|decision| decision.reason.clone());
        GenerationStatus {
            name: record.name.clone(),
            revision: record.known_revision(),
            commit: view.commits.get(&record.revision).cloned().flatten(),
            entries: record.entries,
            bytes: record.bytes,
            published: record.published,
            retired: record.retired.as_ref().map(|retired| retired.at),
            pinned: decision.is_some_and(|decision| decision.pinned),
            holders: Vec::new(), // filled in when the status is displayed
            reason: reason.unwrap_or_else(|| if is_current { "current" } else { "retired" }.to_owned()),
        }
    };
    status.current = view.current().map(shown);
    let retired = view.generations.iter().filter(|record| view.current.as_ref() != Some(&record.name));
    status.retired = retired.map(shown).collect();
}

/// Logs that nothing had to be published. With `--one-time`, this tells the operator that the remote was asked.
pub(super) fn log_agreed(ref_name: &str, record: &GenerationRecord, view: &View, took: Duration) {
    let revision = record.revision.short();
    let name = &record.name;
    let line = if view.sources.is_empty() {
        format!("up to date: {ref_name} is {revision}, which is published as {name}")
    } else if view.sources.iter().any(|source| source.error.is_some()) {
        format!("nothing new from the sources that answered: {name} stays current")
    } else {
        format!("up to date: {name} has the newest commits of all sources")
    };
    info!(
        name: "agreed", git_ref = ref_name, revision = %record.revision, generation = %record.name, duration_ms = millis(took),
        "{line}"
    );
}

/// Logs a publication: revision, generation, duration, the previous revision and the commit's subject.
pub(super) fn log_published(published: &Published, view: &View, took: Duration) {
    let Published { current, previous, warnings } = published;
    let before = view.generations.iter().find(|record| previous.as_ref() == Some(&record.name));
    let before = before.filter(|record| record.is_known());
    let was = before.map(|record| format!(" (was {})", record.revision.short())).unwrap_or_default();
    let commit = view.commits.get(&current.revision).and_then(Option::as_ref);
    let said = commit.map(|commit| format!(": {}", commit.subject)).unwrap_or_default();
    info!(
        revision = %current.revision, generation = %current.name, bytes = current.bytes,
        duration_ms = millis(took), author = commit.map(|commit| commit.author.as_str()),
        date = commit.and_then(|commit| commit.date).map(tracing::field::display),
        "published {} as {} in {:.3}s{was}{said}", current.revision.short(), current.name, took.as_secs_f64()
    );
    if current.entries == 0 {
        let revision = current.revision.short();
        warn!(
            "{} is empty: {revision} has no files, or the sparse patterns choose none of them",
            current.name
        );
    }
    for line in warnings {
        warn!("after the swap: {line}");
    }
}

/// Returns a phrase that names the revision still served after a failure.
pub(super) fn serving(view: &View) -> String {
    match view.current() {
        Some(record) => match record.known_revision() {
            Some(revision) => format!("{} keeps serving", revision.short()),
            None => format!("{} keeps serving, whose revision is not known", record.name),
        },
        None => "nothing is published yet".to_owned(),
    }
}
