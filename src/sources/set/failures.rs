//! Failures of sources: what is logged and counted of them, and when all of them together are the failure of an attempt.

use std::time::Duration;

use tokio::time::Instant;

use super::{Followed, SetError, SourceError, SourceSet};
use crate::repeats::{Repeats, suppressed};
use crate::retry::ErrorClass;
use crate::sources::stage::{Stage, StagedError};

/// The consecutive failures of a source.
#[derive(Default)]
pub(super) struct Failing {
    /// Limits repeated log lines.
    logged: Repeats,
    /// The attempts in which it failed.
    pub(super) count: u64,
}

impl SourceSet {
    /// Logs which sources fail, ever less often that they still do, and that they no longer do.
    pub(super) fn log_failures(&mut self) {
        for source in &self.sources {
            let name = &source.listed.name;
            let (_, why) = self.state_of(source);
            let Some(why) = why else {
                if let Some(Failing { count: failures @ 1.., .. }) = self.failing.remove(name) {
                    let plural = if failures == 1 { "failure" } else { "failures" };
                    tracing::info!(source = name, "source {name} recovered after {failures} {plural}");
                }
                continue;
            };
            let Some(times) = self.failing.entry(name.clone()).or_default().logged.should_log(&why.what)
            else {
                continue;
            };
            let hints = why.hints.join("; ");
            let repeated = suppressed(times);
            if why.class.is_transient() {
                tracing::warn!(
                    source = name,
                    error = why.what,
                    hints,
                    "source {name} {NOT_UPDATED}{repeated}"
                );
            } else {
                tracing::error!(
                    source = name,
                    error = why.what,
                    hints,
                    "source {name} {NOT_UPDATED}{repeated}"
                );
            }
        }
    }

    /// Counts the failures of the sources that were polled in this attempt.
    pub(super) fn count_failures(&mut self) {
        let polled = self.sources.iter().filter(|source| self.polled.contains(&source.mirror));
        let failure = |source: &Followed| Some((source.listed.name.clone(), self.staged_state_of(source).1?));
        let failures: Vec<(String, StagedError)> = polled.filter_map(failure).collect();
        for (name, StagedError { stage, error }) in failures {
            self.count_failure(name, stage, error.class);
        }
    }

    /// Counts the refusal of a source's commit that was found when the set was composed.
    pub(super) fn count_refusal(&mut self, name: &str) {
        self.count_failure(name.to_owned(), Stage::Export, ErrorClass::Refused);
    }

    /// Counts a failure of a source: one in each attempt, as for a single repository. What polls several times in an
    /// attempt, as deliveries do, finds failures that it has counted already.
    fn count_failure(&mut self, name: String, stage: Stage, class: ErrorClass) {
        let failing = self.failing.entry(name.clone()).or_default();
        let is_first = self.counted.insert(name);
        // One that has recovered within the attempt and fails again is failing anew.
        if is_first || failing.count == 0 {
            failing.count += 1;
        }
        if is_first {
            self.untaken.push((stage.label(), class));
        }
    }

    /// The error of a source whose remote has not answered yet.
    pub(super) fn not_answered(&self) -> SourceError {
        SourceError::unanswered(self.options.one_time.then_some(self.options.limit))
    }

    /// Tells the set that an attempt begins, in which each failure counts anew. It may poll several times.
    pub fn begin_attempt(&mut self) {
        self.counted.clear();
    }

    /// The failures of sources since the last call, at most one of each source in an attempt: stage and class.
    pub fn take_failures(&mut self) -> Vec<(&'static str, ErrorClass)> {
        std::mem::take(&mut self.untaken)
    }

    /// Returns true if a repository was reached since the last attempt. If not, polls are still running.
    ///
    /// # Errors
    /// When every source fails; the error is that of the first.
    pub fn poll_outcome(&self) -> Result<bool, SetError> {
        let mut first = None;
        for source in &self.sources {
            let (_, Some(why)) = self.state_of(source) else { return Ok(self.any_reached) };
            first.get_or_insert((source.listed.name.clone(), why));
        }
        let Some((name, source)) = first else { return Ok(self.any_reached) };
        let now = Instant::now();
        let pause = |until: Option<Instant>| until.map_or(Duration::ZERO, |until| until.duration_since(now));
        let pauses = self.repositories.values().map(|repository| pause(repository.requestable_from(now)));
        Err(SetError::EverySource { name, source, retry_after: pauses.min() })
    }
}

/// What is logged of a source that fails, after its name.
const NOT_UPDATED: &str = "is not at the newest commit of its ref";
