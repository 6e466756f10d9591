//! What an attempt leaves for its report: how it ended, and what was seen of the root.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::generation::{GenerationRecord, Name};
use crate::phase::{Commit, LastAnswer, SourceStatus};
use crate::retention::Plan;
use crate::revision::Revision;
use crate::store::{Published, Room};

/// How an attempt that did not fail ended.
#[derive(Debug)]
pub(super) enum Done {
    /// A new generation is current.
    Published(Box<Published>),
    /// Nothing to do.
    Unchanged,
    /// A new tip has to wait for the minimum interval.
    Held,
}

impl Done {
    pub(super) fn published(published: Published) -> Self {
        Self::Published(Box::new(published))
    }
}

/// What was last seen of the root.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Newest first, the current one included.
    pub(super) generations: Vec<GenerationRecord>,
    /// What the link names.
    pub(super) current: Option<Name>,
    /// What retention thinks of each.
    pub(super) plan: Plan,
    /// Whether a complete generation serves. Never closes again.
    pub(super) ready: bool,
    /// What its file system has left for us, and what we take.
    pub(super) room: Room,
    /// What their commits say of themselves, of those that were looked at; none where the mirror does not have it.
    pub(super) commits: HashMap<Revision, Option<Commit>>,
    /// The sources, where there are several.
    pub(super) sources: Vec<SourceStatus>,
    /// The answer of the one remote, if there is but one.
    pub(super) heard: LastAnswer,
    /// Bytes of the mirror, if it lies in the root, when they were last counted.
    pub(super) mirror_bytes: Option<u64>,
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

    /// The current generation's revision, if what it holds is known, or at least what it should: a root may have lost
    /// its records.
    pub(super) fn revision(&self) -> Option<Revision> {
        let known = |record: &&GenerationRecord| record.is_known() || record.name.commit().is_some();
        self.current().filter(known).map(|record| record.revision)
    }
}
