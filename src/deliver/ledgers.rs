//! What deliveries came to, beyond the one that ended.

use jiff::Timestamp;

use super::report::Report;
use super::set;
use crate::configmap::apply::LedgerSet;

/// The ledgers with a delivery in it: as the ledgers in the clusters, and of each target at least how it was found.
pub fn noted(ledgers: &LedgerSet, report: &Report, now: Timestamp) -> LedgerSet {
    let mut ledgers = ledgers.clone();
    let revision = report.revision.to_string();
    for target in &report.targets {
        let ledger = ledgers.ledger(&target.cluster, &target.namespace);
        *ledger = set::ledger(ledger, &revision, std::iter::once(target), now);
        if !ledger.records.contains_key(&target.name) {
            ledger.note(&target.name, set::record(target, &revision, now), false);
        }
    }
    ledgers
}
