//! The report of a delivery: a result for every target, notes, and failures that concern no single target.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::cause::Cause;
use super::notes::Note;
use crate::cluster::Error;
use crate::configmap::Difference;
use crate::configmap::apply::{Action, Decision, DecisionReason, Desired};
use crate::revision::Revision;
use crate::sources::SourceError;

/// The hint for a target that waits for a source.
const HELD: &str =
    "it is written once the source answers; what does not depend on that source is written meanwhile";

/// The result for one target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It equals the desired state already; nothing was written.
    Unchanged,
    /// It was created.
    Created,
    /// It was replaced.
    Replaced,
    /// It was written again after another writer changed or deleted it.
    Repaired,
    /// It was deleted and created again, as it is immutable.
    Recreated,
    /// It was deleted.
    Deleted,
    /// No rule names it, and it was not deleted: pruning is off, or it is not ours. Or it is left out as too large, or
    /// may be a part of one that is.
    Left,
    /// It must not be written until an operator acts.
    Refused,
    /// It waits for another target that has to be written first, or for a source that does not answer.
    Held,
    /// Reading or writing it failed.
    Failed,
    /// It was not attempted, because the run was stopped.
    Skipped,
}

impl Outcome {
    /// All outcomes, for metrics.
    pub const ALL: [Self; 11] = [
        Self::Unchanged,
        Self::Created,
        Self::Replaced,
        Self::Repaired,
        Self::Recreated,
        Self::Deleted,
        Self::Left,
        Self::Refused,
        Self::Held,
        Self::Failed,
        Self::Skipped,
    ];

    /// Returns the outcome in one word, as in the JSON report and in metric labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Created => "created",
            Self::Replaced => "replaced",
            Self::Repaired => "repaired",
            Self::Recreated => "recreated",
            Self::Deleted => "deleted",
            Self::Left => "left",
            Self::Refused => "refused",
            Self::Held => "held",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }

    /// Returns true if the target is in its desired state, or is left on purpose.
    pub fn is_success(self) -> bool {
        !matches!(self, Self::Refused | Self::Held | Self::Failed | Self::Skipped)
    }

    /// Returns true if something was written.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Created | Self::Replaced | Self::Repaired | Self::Recreated | Self::Deleted)
    }

    /// Returns the outcome of a decision that is carried out without a failure.
    pub(super) fn of(decision: &Decision) -> Self {
        match &decision.action {
            Action::Nothing
                if matches!(
                    decision.why,
                    DecisionReason::NoRule
                        | DecisionReason::NotOurs
                        | DecisionReason::LeftOut
                        | DecisionReason::PartOfLeftOut
                ) =>
            {
                Self::Left
            }
            Action::Nothing => Self::Unchanged,
            Action::Refuse(_) => Self::Refused,
            Action::Hold(_) => Self::Held,
            Action::Create | Action::Replace if decision.repairs() => Self::Repaired,
            Action::Create => Self::Created,
            Action::Replace => Self::Replaced,
            Action::Recreate => Self::Recreated,
            Action::Delete => Self::Deleted,
        }
    }
}

/// One target and its result. It has names of keys, never their values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Target {
    /// The cluster's name in the rules.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the ConfigMap.
    pub name: String,
    /// The result; in a dry run, the result that writing would have.
    pub outcome: Outcome,
    /// The reason for the outcome, or the error, in one line.
    pub why: String,
    /// Keys that were added.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub added: BTreeSet<String>,
    /// Keys whose value changed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub changed: BTreeSet<String>,
    /// Keys that were removed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub removed: BTreeSet<String>,
    /// What an operator can do, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// True if a later attempt may succeed without an operator.
    pub transient: bool,
    /// The number of write requests that were sent.
    pub attempts: u32,
    /// The digest of the desired content; empty if the ConfigMap is not desired.
    pub digest: String,
    /// True if a write counts against the limit on repairs.
    #[serde(skip)]
    pub counted: bool,
    /// The rules by which it was last written, if it is written because the rules changed.
    #[serde(skip)]
    pub over: Option<String>,
    /// True if the ledger of its namespace has this result.
    #[serde(skip)]
    pub(super) in_ledger: bool,
    /// True if no rule names its namespace: it is there only to be pruned.
    #[serde(skip)]
    pub(super) orphaned: bool,
    /// What it failed by, if that fails everything in its cluster or namespace.
    #[serde(skip)]
    pub(super) cause: Option<Cause>,
}

/// The result of a delivery.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The revision that was delivered; the last one, if the ref moved meanwhile.
    pub revision: Revision,
    /// With several sources: the commit of each, by source name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Revision>,
    /// Sorted by cluster, namespace and name.
    pub targets: Vec<Target>,
    /// Other remarks, each with its cluster: refs that went back, cycles in the write order, damaged inventories.
    pub notes: Vec<Note>,
    /// Failures that concern no single target: an inventory or a ledger that could not be written, a remote that did
    /// not answer.
    pub failures: Vec<String>,
    /// With several sources: those that did not answer, and why. Targets that depend on them were not written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
    /// The clusters that any of `failures` is about or that were not read as a whole, each with the namespaces of which
    /// some ConfigMaps may be missing in `targets`.
    #[serde(skip)]
    pub unfinished: BTreeMap<String, Unread>,
}

/// The namespaces of a cluster that could not be read or must not be written: a report has only the ConfigMaps there
/// that files feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unread {
    /// These.
    Only(BTreeSet<String>),
    /// All but these.
    AllBut(BTreeSet<String>),
}

impl Default for Unread {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl Unread {
    /// Returns all namespaces of a cluster.
    pub(super) fn all() -> Self {
        Self::AllBut(BTreeSet::new())
    }

    /// Adds a namespace.
    pub(super) fn add(&mut self, namespace: &str) {
        let _ = match self {
            Self::Only(unread) => unread.insert(namespace.to_owned()),
            Self::AllBut(read) => read.remove(namespace),
        };
    }

    /// Returns true if it has a namespace.
    pub fn has(&self, namespace: &str) -> bool {
        match self {
            Self::Only(unread) => unread.contains(namespace),
            Self::AllBut(read) => !read.contains(namespace),
        }
    }

    /// Returns true if everything was read.
    fn is_empty(&self) -> bool {
        matches!(self, Self::Only(unread) if unread.is_empty())
    }
}

/// The result for one cluster.
#[derive(Debug)]
pub(super) struct ClusterOutcome {
    pub(super) revision: Revision,
    pub(super) targets: Vec<Target>,
    pub(super) notes: Vec<Note>,
    pub(super) failures: Vec<String>,
    /// The namespaces of which `targets` has only what files feed.
    pub(super) unread: Unread,
}

impl ClusterOutcome {
    /// Returns a result in which every target of the cluster failed for the same reason.
    pub(super) fn failed(desired: &Desired, cluster: &str, why: &str, hints: &[String]) -> Self {
        let cause = Cause { cluster: cluster.to_owned(), why: why.to_owned(), may_be_of_one_request: false };
        let targets = all_failed(desired, cluster, why, hints).into_iter();
        let targets = targets.map(|target| Target { cause: Some(cause.clone()), ..target }).collect();
        let (notes, failures) = (Vec::new(), Vec::new());
        Self { revision: desired.revision, targets, notes, failures, unread: Unread::all() }
    }
}

impl Target {
    /// Returns the result of a decision as if it had been carried out successfully.
    pub(super) fn of(cluster: &str, namespace: &str, name: &str, decision: &Decision) -> Self {
        let differs = match decision.action {
            Action::Hold(_) => Difference::default(), // unknown until the source answers
            _ => decision.difference.clone(),
        };
        let Difference { added, changed, removed } = differs;
        let (why, hints, transient) = match &decision.action {
            Action::Refuse(refusal) => {
                (refusal.to_string(), vec![refusal.hint().to_owned()], refusal.is_transient())
            }
            Action::Hold(why) => (why.clone(), vec![HELD.to_owned()], true),
            _ => (decision.why.phrase(name), Vec::new(), false),
        };
        Self {
            outcome: Outcome::of(decision),
            added,
            changed,
            removed,
            transient,
            counted: decision.counts_toward_limit(),
            over: decision.over.clone(),
            ..Self::failed(cluster, namespace, name, &why, hints)
        }
    }

    /// Returns a failed target of which nothing is known.
    pub(crate) fn failed(cluster: &str, namespace: &str, name: &str, why: &str, hints: Vec<String>) -> Self {
        Self {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            outcome: Outcome::Failed,
            why: why.to_owned(),
            added: BTreeSet::new(),
            changed: BTreeSet::new(),
            removed: BTreeSet::new(),
            hints,
            transient: false,
            attempts: 0,
            digest: String::new(),
            counted: false,
            over: None,
            in_ledger: false,
            orphaned: false,
            cause: None,
        }
    }

    /// Replaces the outcome, its reason and the hints.
    pub(super) fn ended(mut self, outcome: Outcome, why: impl Into<String>, hints: Vec<String>) -> Self {
        self.outcome = outcome;
        self.why = why.into();
        self.hints = hints;
        self.cause = None;
        self
    }

    /// Notes which request it failed by.
    pub(crate) fn caused_by(self, error: &Error) -> Self {
        Self { cause: Cause::of(error), ..self }
    }

    /// Returns true if it failed by something that fails everything in its cluster or namespace.
    pub fn has_shared_cause(&self) -> bool {
        self.cause.is_some()
    }
}

impl Report {
    pub(super) fn new(desired: &Desired) -> Self {
        let unanswered = desired.sources.unanswered().map(|source| {
            format!("source {}: {}", source.name, source.unanswered.as_deref().unwrap_or_default())
        });
        Self {
            revision: desired.revision,
            sources: desired.sources.revisions(),
            targets: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
            unanswered: unanswered.collect(),
            unfinished: BTreeMap::new(),
        }
    }

    /// Adds the result for one cluster. To be called in the order of the clusters' names: there may be many, so only
    /// the targets of this one are sorted.
    pub(super) fn add(&mut self, desired: &Desired, cluster: String, mut ended: ClusterOutcome) {
        for target in &mut ended.targets {
            target.orphaned = desired.of(&cluster, &target.namespace).is_none();
        }
        // Where something succeeded, what may be of single requests did not fail the whole cluster.
        if ended.targets.iter().any(|target| target.outcome.is_success()) {
            for target in &mut ended.targets {
                target.cause = target.cause.take().filter(|cause| !cause.may_be_of_one_request);
            }
        }
        if !ended.unread.is_empty() || !ended.failures.is_empty() {
            self.unfinished.insert(cluster, ended.unread);
        }
        ended.targets.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.targets.extend(ended.targets);
        self.notes.extend(ended.notes);
        self.failures.extend(ended.failures);
    }

    /// Returns true if there is no failure and every target is in its desired state.
    pub fn is_success(&self) -> bool {
        self.failures.is_empty() && self.targets.iter().all(|target| target.outcome.is_success())
    }

    /// Returns true if there is no failure and every target in a namespace that a rule names is in its desired state.
    /// In other namespaces anybody who may create ConfigMaps there can make an inventory that is refused for ever.
    pub fn is_served(&self) -> bool {
        let served = |target: &Target| target.orphaned || target.outcome.is_success();
        self.failures.is_empty() && self.targets.iter().all(served)
    }

    /// Returns true if it is a success, and every source answered.
    pub fn is_complete(&self) -> bool {
        self.is_success() && self.unanswered.is_empty()
    }

    /// Returns true if another attempt may help: a failure is transient, or a target was skipped.
    pub fn is_to_be_repeated(&self) -> bool {
        let may_succeed_later = |target: &Target| {
            target.outcome == Outcome::Skipped || (!target.outcome.is_success() && target.transient)
        };
        !self.failures.is_empty() || self.targets.iter().any(may_succeed_later)
    }

    /// Returns the clusters that have targets, each with whether it is fully in sync: every target is in its desired
    /// state, and nothing else failed there.
    pub fn clusters_in_sync(&self) -> BTreeMap<&str, bool> {
        let mut in_sync = BTreeMap::new();
        for target in &self.targets {
            let finished = !self.unfinished.contains_key(&target.cluster);
            *in_sync.entry(target.cluster.as_str()).or_insert(finished) &= target.outcome.is_success();
        }
        in_sync
    }

    /// Returns the number of targets by the word of their outcome.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        self.targets.iter().for_each(|target| *counts.entry(target.outcome.label()).or_default() += 1);
        counts
    }

    /// Returns true if anything was written or, in a dry run, would be.
    pub fn differs(&self) -> bool {
        self.targets.iter().any(|target| target.outcome.is_write())
    }
}

/// Returns every target that a revision has in a cluster, failed for the same reason.
pub(super) fn all_failed(desired: &Desired, cluster: &str, why: &str, hints: &[String]) -> Vec<Target> {
    let in_namespace = |namespace| namespace_failed(desired, cluster, namespace, why, hints);
    desired.namespaces(cluster).flat_map(in_namespace).collect()
}

/// Returns every target that a revision has in a namespace, failed for the same reason. These are the ConfigMaps that
/// files feed. If there are none, all of them are returned, as the failure would be reported nowhere else.
pub(super) fn namespace_failed(
    desired: &Desired,
    cluster: &str,
    namespace: &str,
    why: &str,
    hints: &[String],
) -> Vec<Target> {
    let Some(config_maps) = desired.of(cluster, namespace) else { return Vec::new() };
    let none_fed = !config_maps.values().any(|wanted| wanted.fed);
    let reported = config_maps.iter().filter(|(_, wanted)| wanted.fed || none_fed);
    let failed = reported.map(|(name, wanted)| Target {
        digest: wanted.digest.clone(),
        ..Target::failed(cluster, namespace, name, why, hints.to_vec())
    });
    failed.collect()
}

/// Turns skipped targets into failed ones, as the input named no revision or could not plan it.
pub(super) fn fail_skipped(targets: Vec<Target>, error: &SourceError) -> Vec<Target> {
    let failed = |target: Target| match target.outcome {
        Outcome::Skipped => {
            let failed = target.ended(Outcome::Failed, error.to_string(), error.hints.clone());
            Target { transient: error.class.is_transient(), ..failed }
        }
        _ => target,
    };
    targets.into_iter().map(failed).collect()
}
