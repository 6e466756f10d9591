//! What deliveries came to, beyond the one that ended.

use jiff::Timestamp;

use super::report::Report;
use super::set;
use crate::configmap::apply::Book;

/// The book with a delivery in it: as the ledgers in the clusters, and of each target at least how it was found.
pub fn noted(book: &Book, report: &Report, now: Timestamp) -> Book {
    let (mut book, revision) = (book.clone(), report.revision.to_string());
    for target in &report.targets {
        let ledger = book.ledger(&target.cluster, &target.namespace);
        *ledger = set::ledger(ledger, &revision, std::iter::once(target), now);
        if !ledger.records.contains_key(&target.name) {
            ledger.note(&target.name, set::record(target, &revision, now), false);
        }
    }
    book
}
