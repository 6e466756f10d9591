//! What an attempt leaves for its report: its result, and the last known state of the root.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::generation::{GenerationRecord, Name};
use crate::phase::{Commit, LastAnswer, SourceStatus};
use crate::retention::Plan;
use crate::retry::ErrorClass;
use crate::revision::Revision;
use crate::store::{Published, Room};

/// The result of an attempt that did not fail.
#[derive(Debug)]
pub(super) enum Done {
    /// A new generation is current.
    Published(Box<Published>),
    /// Nothing had to be published.
    Unchanged,
    /// A new revision has to wait for the minimum interval.
    Postponed,
}

impl Done {
    pub(super) fn published(published: Published) -> Self {
        Self::Published(Box::new(published))
    }
}

/// The last known state of the root.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// All generations, newest first, including the current one.
    pub(super) generations: Vec<GenerationRecord>,
    /// The generation that `..data` names.
    pub(super) current: Option<Name>,
    /// Retention's decision on each generation.
    pub(super) plan: Plan,
    /// True once a complete generation was current; it never becomes false again.
    pub(super) ready: bool,
    /// Free space of the root's file system, and the space the root uses.
    pub(super) room: Room,
    /// Commit metadata of the generations' revisions. `None` if the mirror does not hold the commit.
    pub(super) commits: HashMap<Revision, Option<Commit>>,
    /// The sources if there are several, otherwise empty.
    pub(super) sources: Vec<SourceStatus>,
    /// True if no remote of several sources has answered since the attempt before the last one: polls are running.
    pub(super) unanswered: bool,
    /// Failures of sources that the last attempt counts: stage and class.
    pub(super) source_failures: Vec<(&'static str, ErrorClass)>,
    /// The remote's last answer; of several remotes, the newest.
    pub(super) last_answer: LastAnswer,
    /// The mirror's size in bytes when it was last counted; 0 if it is outside the root, `None` before the first count.
    pub(super) mirror_bytes: Option<u64>,
    /// True if publishing the current revision afresh failed since the last attempt began.
    pub(super) is_damaged: bool,
    /// True if the pre-publish hook is a gate.
    pub(super) has_gate: bool,
}

impl View {
    /// The record of the current generation.
    pub(super) fn current(&self) -> Option<&GenerationRecord> {
        let name = self.current.as_ref()?;
        self.generations.iter().find(|record| record.name == *name)
    }

    /// When the oldest pinned generation was retired.
    pub(super) fn oldest_pin(&self) -> Option<Timestamp> {
        let pinned = self.plan.decisions.iter().filter(|decision| decision.pinned);
        let record = |name: &Name| self.generations.iter().find(|record| record.name == *name);
        pinned.filter_map(|decision| Some(record(&decision.name)?.retired.as_ref()?.at)).min()
    }

    /// The current generation's revision, from its record or, if the root has lost its records, from its name.
    pub(super) fn revision(&self) -> Option<Revision> {
        self.current()?.known_revision()
    }
}
