//! The limit on how much one run may delete or empty, so that a wrong directory, ref or rules file does not remove
//! everything.

use super::decision::Decision;

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
    /// Checks the decisions on all ConfigMaps that exist in one cluster.
    pub fn check<'v>(&self, existing: impl Iterator<Item = &'v Decision>) -> Result<(), PruneLimitExceeded> {
        let mut ours = 0;
        let mut emptied = 0;
        for decision in existing.filter(|decision| decision.why != super::DecisionReason::NotOurs) {
            ours += 1;
            emptied += usize::from(decision.removes_content());
        }
        if emptied * 100 > ours * usize::from(self.percent) {
            return Err(PruneLimitExceeded { emptied, ours, percent: self.percent });
        }
        Ok(())
    }
}
