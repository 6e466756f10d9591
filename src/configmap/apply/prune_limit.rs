//! How much may be taken away at once: a wrong directory, ref or rule file must not look like a wish for nothing.

use super::decision::Decision;

/// The largest share of what is ours in a cluster that one run may delete or empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PruneLimit {
    /// In percent; 100 lets everything go.
    pub percent: u8,
}

impl Default for PruneLimit {
    fn default() -> Self {
        Self { percent: 50 }
    }
}

/// A run that would take too much away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{emptied} of {ours} ConfigMaps would be deleted or emptied, which is more than {percent}%")]
pub struct PruneLimitExceeded {
    /// Those that would be.
    pub emptied: usize,
    /// Those that are there and ours, or would become ours.
    pub ours: usize,
    /// The most that may.
    pub percent: u8,
}

impl PruneLimitExceeded {
    /// What an operator can do.
    pub fn hint(&self) -> &'static str {
        "look at the ref, the tree and the rules; if it is meant, --max-prune=100 insists"
    }
}

impl PruneLimit {
    /// Whether the decisions on what is there in one cluster take too much away.
    pub fn check<'v>(&self, there: impl Iterator<Item = &'v Decision>) -> Result<(), PruneLimitExceeded> {
        let mut ours = 0;
        let mut emptied = 0;
        for decision in there.filter(|decision| decision.why != super::DecisionReason::NotOurs) {
            ours += 1;
            emptied += usize::from(decision.empties());
        }
        if emptied * 100 > ours * usize::from(self.percent) {
            return Err(PruneLimitExceeded { emptied, ours, percent: self.percent });
        }
        Ok(())
    }
}
