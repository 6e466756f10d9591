//! Remembers what was written in earlier passes over a cluster. The last pass finds it unchanged, but the report,
//! the metrics and the ledger have to say that it was written.

use std::collections::BTreeMap;

use super::report::{Outcome, Target};

/// The targets that were written, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct EarlierWrites(BTreeMap<(String, String), Target>);

impl EarlierWrites {
    /// Adds the targets that a pass wrote.
    pub(super) fn remember(&mut self, targets: &[Target]) {
        let is_written = |target: &&Target| target.attempts > 0 && target.outcome.is_write();
        let key = |target: &Target| (target.namespace.clone(), target.name.clone());
        self.0.extend(targets.iter().filter(is_written).map(|target| (key(target), target.clone())));
    }

    /// Puts the earlier results into those of a later pass, for targets that it found unchanged or, after a deletion,
    /// not at all.
    pub(super) fn restore(&self, targets: &mut Vec<Target>) {
        let mut absent = self.0.clone();
        for target in targets.iter_mut() {
            let key = (target.namespace.clone(), target.name.clone());
            let Some(earlier) = absent.remove(&key) else { continue };
            if target.outcome == Outcome::Unchanged && target.attempts == 0 && target.digest == earlier.digest
            {
                *target = earlier;
            }
        }
        targets.extend(absent.into_values().filter(|earlier| earlier.outcome == Outcome::Deleted));
    }
}
