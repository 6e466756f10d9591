//! The limit on how much one run may delete or empty, so that a wrong directory, ref or rules file does not remove
//! everything.

use super::decision::{Action, Decision, DecisionReason, Refusal};
use super::owner::Claim;

/// The largest share of our ConfigMaps in a cluster that one run may delete or empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PruneLimit {
    /// The share in percent; 100 means no limit.
    pub percent: u8,
}

impl Default for PruneLimit {
    fn default() -> Self {
        Self { percent: 50 }
    }
}

/// A run would delete or empty too many ConfigMaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{emptied} of {ours} ConfigMaps would be deleted or emptied, which is more than {percent}%")]
pub struct PruneLimitExceeded {
    /// How many would be deleted or emptied.
    pub emptied: usize,
    /// How many exist and are ours or would be adopted.
    pub ours: usize,
    /// The limit in percent.
    pub percent: u8,
}

impl PruneLimitExceeded {
    /// A hint for the operator.
    pub fn hint(&self) -> &'static str {
        "check the ref, the tree and the rules; if that is intended, --max-prune=100 allows it"
    }
}

impl PruneLimit {
    /// Checks the decisions on all ConfigMaps of one cluster.
    pub fn check<'v>(&self, all: impl Iterator<Item = &'v Decision>) -> Result<(), PruneLimitExceeded> {
        let mut ours = 0;
        let mut emptied = 0;
        for decision in all.filter(|decision| is_existing_and_ours(decision)) {
            ours += 1;
            emptied += usize::from(decision.removes_content());
        }
        if emptied * 100 > ours * usize::from(self.percent) {
            return Err(PruneLimitExceeded { emptied, ours, percent: self.percent });
        }
        Ok(())
    }
}

/// Returns true if the ConfigMap exists, and is ours or would be adopted. Others must not make the limit wider: however
/// many are created, what exists may be all deleted.
fn is_existing_and_ours(decision: &Decision) -> bool {
    let is_refused =
        matches!(decision.action, Action::Refuse(Refusal::Other(_) | Refusal::Prow | Refusal::Nobody));
    let is_other = matches!(
        decision.why,
        DecisionReason::NotOurs
            | DecisionReason::Absent
            | DecisionReason::Vanished
            | DecisionReason::Returned
    );
    // It is not adopted, as it is not written.
    let is_left_to_others = decision.why == DecisionReason::LeftOut && decision.claim != Claim::Ours;
    !is_refused && !is_other && !is_left_to_others
}
