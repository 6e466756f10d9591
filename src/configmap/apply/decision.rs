//! The decision on one ConfigMap: what to do with it, and why.

use super::super::compare::Difference;
use super::super::split;
use super::order::Moves;
use super::owner::Claim;

/// What to do with a ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// No write: it is as desired, or it is not ours.
    Nothing,
    /// POST.
    Create,
    /// PUT, with the resourceVersion that was read.
    Replace,
    /// DELETE with uid and resourceVersion as preconditions, then POST.
    Recreate,
    /// DELETE with uid and resourceVersion as preconditions.
    Delete,
    /// No write: an operator has to decide.
    Refuse(Refusal),
    /// No write now, for the given reason; a later attempt writes it.
    Hold(String),
}

/// Why an action was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecisionReason {
    /// Its content is as desired. The content was compared, or uid and resourceVersion prove it.
    Unchanged,
    /// It does not exist.
    Absent,
    /// It does not exist although we wrote it: another writer deleted it.
    Vanished,
    /// The revision or the rules ask for another content.
    Changed,
    /// Another writer changed it since our last write.
    Drift,
    /// We wrote it under other rules or options.
    OtherRules,
    /// As [`Self::OtherRules`], and before that it was written under the present ones: the rules change back and forth,
    /// or two installations use the same owner name.
    TurnedBack,
    /// It does not exist: it was deleted under other rules or options, and before that it was written under the present
    /// ones. See [`Self::TurnedBack`].
    Returned,
    /// It had another owner and is adopted.
    Adopted,
    /// No file feeds it any more.
    Unfed,
    /// It is too large, and the policy leaves such ConfigMaps out.
    LeftOut,
    /// No rule names it any more, but its name is that of a part of a ConfigMap that is left out.
    PartOfLeftOut,
    /// No rule names it any more.
    NoRule,
    /// It is not desired and does not exist or is being deleted, or it is not ours.
    NotOurs,
}

/// Why an operator has to decide.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// It belongs to another installation.
    #[error("it belongs to the owner {0:?}")]
    Other(String),
    /// It belongs to Prow, and adoption does not cover that.
    #[error("it was created by Prow")]
    Prow,
    /// It has no known owner, and adoption does not cover that.
    #[error("it was not created by treeswap")]
    Nobody,
    /// It is immutable, and recreation is not enabled.
    #[error("it is immutable")]
    Immutable,
    /// Its deletion is in progress.
    #[error("it is being deleted")]
    Deleting,
    /// It was repaired too often; the value is the number of repairs.
    #[error("it is contested: it was repaired {0} times and written again by another writer")]
    Contested(usize),
    /// Rules turned back too often; the value is the number of times.
    #[error(
        "it is contested: {0} times rules or options of this owner changed back to what they had been before"
    )]
    TurnedBack(usize),
}

impl Refusal {
    /// A hint for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Other(_) => {
                "two installations never overwrite each other; let one rule set have it, or delete it there"
            }
            Self::Prow => {
                "--adopt=prow takes over what Prow's tools made; the plan shows the keys that would go"
            }
            Self::Nobody => {
                "--adopt=all takes over what has no owner; the plan shows the keys that would go. If another \
                 installation made it: `--sources` feeds one ConfigMap from several repositories"
            }
            Self::Immutable => {
                "--recreate-immutable deletes it and makes it again; mounted Pods do not see that"
            }
            Self::Deleting => "the next run makes it again",
            Self::Contested(_) => {
                "find out who else writes it (managedFields name it); it is repaired again, but at a slower pace"
            }
            Self::TurnedBack(_) => {
                "give each installation an --owner of its own; if there is only one, it is written again at a slower pace"
            }
        }
    }

    /// Returns true if a later attempt may succeed without an operator.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Deleting)
    }
}

/// The decision on one ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// Why.
    pub why: DecisionReason,
    /// The owner that was found when it was read.
    pub claim: Claim,
    /// The revision to stamp it with. If the data did not change, this is the recorded revision.
    pub revision: String,
    /// The keys that the action adds, changes and removes.
    pub difference: Difference,
    /// What it gains and loses, for the order of writes.
    pub moves: Moves,
    /// The stored digest of the rules that it was last written under, if these differ from the present ones and that is
    /// why it is written, or if it is deleted or emptied.
    pub over: Option<String>,
}

impl Decision {
    pub(super) fn new(action: Action, why: DecisionReason, claim: Claim) -> Self {
        Self {
            action,
            why,
            claim,
            revision: String::new(),
            difference: Difference::default(),
            moves: Moves::default(),
            over: None,
        }
    }

    /// The decision on a ConfigMap that uid and resourceVersion prove to be as desired.
    pub fn unchanged(revision: String) -> Self {
        Self { revision, ..Self::new(Action::Nothing, DecisionReason::Unchanged, Claim::Ours) }
    }

    /// Returns true if the action writes.
    pub fn writes(&self) -> bool {
        matches!(self.action, Action::Create | Action::Replace | Action::Recreate | Action::Delete)
    }

    /// Returns true if it repairs what another writer changed or deleted.
    pub fn repairs(&self) -> bool {
        matches!(self.why, DecisionReason::Vanished | DecisionReason::Drift)
    }

    /// Returns true if the write counts against the [`RepairLimit`](super::RepairLimit).
    pub fn counts_toward_limit(&self) -> bool {
        self.repairs() || self.turns_back()
    }

    /// Returns true if it undoes what was written or deleted under other rules or options, and had undone this before.
    pub(super) fn turns_back(&self) -> bool {
        matches!(self.why, DecisionReason::TurnedBack | DecisionReason::Returned)
    }

    /// Returns true if it deletes the ConfigMap or writes it because no file matches it any more.
    pub fn removes_content(&self) -> bool {
        self.action == Action::Delete || (self.why == DecisionReason::Unfed && self.writes())
    }
}

impl DecisionReason {
    /// The reason as a phrase about the ConfigMap `name`.
    pub fn phrase(self, name: &str) -> String {
        let phrase = match self {
            Self::Unchanged => "it is up to date",
            Self::Absent => "it does not exist",
            Self::Vanished => "it was deleted by another writer",
            Self::Changed => "it changed",
            Self::Drift => "it was changed by another writer",
            Self::OtherRules => "the rules or options changed",
            Self::TurnedBack | Self::Returned => "the rules or options changed back",
            Self::Adopted => "it is adopted",
            Self::Unfed => "no file matches it any more",
            Self::LeftOut => "it is too large and left out, as --oversize=skip says",
            Self::PartOfLeftOut => {
                let whole = split::whole_of(name).unwrap_or("another one");
                return format!("it may be a part of {whole}, which is left out");
            }
            Self::NoRule => "no rule names it any more",
            Self::NotOurs => "it is not owned by this installation, or it is being deleted",
        };
        phrase.to_owned()
    }
}
