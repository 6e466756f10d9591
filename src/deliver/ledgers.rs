//! Merges the report of a delivery into the ledgers that were read from the clusters.

use jiff::Timestamp;

use super::report::Report;
use super::set;
use crate::configmap::apply::LedgerSet;

/// Returns the ledgers as they are after a delivery: as the clusters record them, and with a record for every target,
/// also for one that was already right.
pub fn updated_ledgers(ledgers: &LedgerSet, report: &Report, now: Timestamp) -> LedgerSet {
    let mut ledgers = ledgers.clone();
    let revision = report.revision.to_string();
    for target in &report.targets {
        let ledger = ledgers.ledger(&target.cluster, &target.namespace);
        *ledger = set::ledger(ledger, &revision, std::iter::once(target), now);
        if !ledger.records.contains_key(&target.name) {
            ledger.record_attempt(&target.name, set::record(target, &revision, now), false);
        }
    }
    ledgers
}
