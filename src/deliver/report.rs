//! Reports: a result for every target, and remarks on clusters.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::configmap::Difference;
use crate::configmap::apply::{Action, Decision, DecisionReason, Desired};
use crate::revision::Revision;

/// What is said of a target that waits for a source.
const HELD: &str =
    "it is written once the source answers; what does not depend on that source is written meanwhile";

/// How it ended for one target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was right, and nothing was written.
    Right,
    /// It was made.
    Created,
    /// It was replaced.
    Replaced,
    /// It was repaired after another writer changed or deleted it.
    Repaired,
    /// It was deleted and made again.
    Recreated,
    /// It was deleted.
    Deleted,
    /// It was left as it is: nothing asks for it, and pruning was not asked for.
    Left,
    /// It needs an operator.
    Refused,
    /// It has to wait: for another target that has to be written first, or for a source that does not answer.
    Held,
    /// It failed.
    Failed,
    /// It was not attempted: the run ended before.
    Skipped,
}

impl Outcome {
    /// All of them, for what counts them.
    pub const ALL: [Self; 11] = [
        Self::Right,
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

    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Right => "right",
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

    /// Whether the target is what it should be.
    pub fn is_success(self) -> bool {
        !matches!(self, Self::Refused | Self::Held | Self::Failed | Self::Skipped)
    }

    /// Whether something was written.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Created | Self::Replaced | Self::Repaired | Self::Recreated | Self::Deleted)
    }

    /// What a decision ends in when it is carried out.
    pub(super) fn of(decision: &Decision) -> Self {
        match &decision.action {
            Action::Nothing
                if decision.why == DecisionReason::NoRule || decision.why == DecisionReason::NotOurs =>
            {
                Self::Left
            }
            Action::Nothing => Self::Right,
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

/// One target and how it ended. Keys are named, values never.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Target {
    /// The cluster, as the rules call it.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
    /// The ConfigMap.
    pub name: String,
    /// How it ended; in a dry run, how it would.
    pub outcome: Outcome,
    /// Why, or what went wrong, in one line.
    pub why: String,
    /// Keys that came.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub added: BTreeSet<String>,
    /// Keys that changed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub changed: BTreeSet<String>,
    /// Keys that went.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub removed: BTreeSet<String>,
    /// What an operator can do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Whether it may pass by itself.
    pub transient: bool,
    /// Writes that were sent.
    pub attempts: u32,
    /// The digest it should have; empty where nothing asks for it.
    pub digest: String,
    /// Whether a write of it counts as one that is not to happen often.
    #[serde(skip)]
    pub counted: bool,
    /// The rules by which it was written before, where these are others and the reason for a write.
    #[serde(skip)]
    pub over: Option<String>,
}

/// What became of a delivery.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The revision that was delivered: the newest one, if the ref moved meanwhile.
    pub revision: Revision,
    /// Of several sources the commit of each, by its name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Revision>,
    /// In the order of cluster, namespace and name.
    pub targets: Vec<Target>,
    /// What is worth saying besides: rewinds, circles, damage, each with its cluster.
    pub notes: Vec<String>,
    /// What failed besides targets: a marker or a ledger that could not be written, a question that was not answered.
    pub failures: Vec<String>,
    /// Of several sources those that did not answer, and why. What depends on one was not written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
}

/// What became of one cluster.
#[derive(Debug)]
pub(super) struct ClusterOutcome {
    pub(super) revision: Revision,
    pub(super) targets: Vec<Target>,
    pub(super) notes: Vec<String>,
    pub(super) failures: Vec<String>,
}

impl ClusterOutcome {
    /// Every target of a cluster fails alike.
    pub(super) fn failed(desired: &Desired, cluster: &str, why: &str, hints: &[String]) -> Self {
        let targets = all_failed(desired, cluster, why, hints);
        Self { revision: desired.revision, targets, notes: Vec::new(), failures: Vec::new() }
    }
}

impl Target {
    /// Of a decision, before it is carried out.
    pub(super) fn of(cluster: &str, namespace: &str, name: &str, decision: &Decision) -> Self {
        let differs = match decision.action {
            Action::Hold(_) => Difference::default(), // the source may say otherwise
            _ => decision.difference.clone(),
        };
        let Difference { added, changed, removed } = differs;
        let (why, hints, transient) = match &decision.action {
            Action::Refuse(refusal) => {
                (refusal.to_string(), vec![refusal.hint().to_owned()], refusal.is_transient())
            }
            Action::Hold(why) => (why.clone(), vec![HELD.to_owned()], true),
            _ => (decision.why.to_string(), Vec::new(), false),
        };
        Self {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            outcome: Outcome::of(decision),
            why,
            added,
            changed,
            removed,
            hints,
            transient,
            attempts: 0,
            digest: String::new(),
            counted: decision.is_counted(),
            over: decision.over.clone(),
        }
    }

    /// One of which nothing could be learned.
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
        }
    }

    /// With another end.
    pub(super) fn ended(mut self, outcome: Outcome, why: impl Into<String>, hints: Vec<String>) -> Self {
        (self.outcome, self.why, self.hints) = (outcome, why.into(), hints);
        self
    }
}

impl Report {
    pub(super) fn new(desired: &Desired) -> Self {
        let unanswered = desired.sources.unanswered().map(|source| {
            format!("source {}: {}", source.name, source.unanswered.as_deref().unwrap_or_default())
        });
        let (targets, notes, failures) = Default::default();
        let sources = desired.sources.revisions();
        let unanswered = unanswered.collect();
        Self { revision: desired.revision, sources, targets, notes, failures, unanswered }
    }

    pub(super) fn add(&mut self, ended: ClusterOutcome) {
        self.targets.extend(ended.targets);
        self.targets
            .sort_by(|a, b| (&a.cluster, &a.namespace, &a.name).cmp(&(&b.cluster, &b.namespace, &b.name)));
        self.notes.extend(ended.notes);
        self.failures.extend(ended.failures);
    }

    /// Whether everything is as it should be.
    pub fn is_success(&self) -> bool {
        self.failures.is_empty() && self.targets.iter().all(|target| target.outcome.is_success())
    }

    /// Whether trying again may help: something failed that may pass by itself, or was not reached.
    pub fn is_to_be_repeated(&self) -> bool {
        let open = |target: &Target| match target.outcome {
            Outcome::Skipped => true,
            outcome => !outcome.is_success() && target.transient,
        };
        !self.failures.is_empty() || self.targets.iter().any(open)
    }

    /// How many targets ended in which way, in a word each.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        self.targets.iter().for_each(|target| *counts.entry(target.outcome.word()).or_default() += 1);
        counts
    }

    /// Whether anything was written, or, in a dry run, would be.
    pub fn differs(&self) -> bool {
        self.targets.iter().any(|target| target.outcome.is_write())
    }
}

/// Every target that a revision has in a cluster, failed for one reason.
pub(super) fn all_failed(desired: &Desired, cluster: &str, why: &str, hints: &[String]) -> Vec<Target> {
    let of = |namespace: &str| {
        let names = desired.of(cluster, namespace).into_iter().flatten().filter(|(_, wanted)| wanted.fed);
        names
            .map(|(name, wanted)| Target {
                digest: wanted.digest.clone(),
                ..Target::failed(cluster, namespace, name, why, hints.to_vec())
            })
            .collect::<Vec<_>>()
    };
    desired.namespaces(cluster).flat_map(of).collect()
}

/// Remarks on one cluster, each once.
#[derive(Debug)]
pub(super) struct Notes {
    cluster: String,
    lines: Vec<String>,
}

impl Notes {
    /// None yet, on the cluster of this name.
    pub(super) fn new(cluster: &str) -> Self {
        Self { cluster: cluster.to_owned(), lines: Vec::new() }
    }

    /// A remark on the cluster.
    pub(super) fn add(&mut self, note: impl std::fmt::Display) {
        let note = format!("cluster {}: {note}", self.cluster);
        if !self.lines.contains(&note) {
            self.lines.push(note);
        }
    }

    /// A remark on the whole run.
    pub(super) fn add_to_run(&mut self, note: String) {
        self.lines.push(note);
    }

    /// All of them, which are reported now.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}
