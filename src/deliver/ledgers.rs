//! Merges the report of a delivery into the ledgers that were read from the clusters.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::report::{Report, Target};
use super::set;
use crate::configmap::apply::LedgerSet;

/// Returns the ledgers as they are after a delivery: as the clusters record them, and with a record for every target,
/// also for one that was already right. Records of targets that the delivery does not report are dropped, as no rule
/// names them any more; but not in a cluster of which the report may lack some.
pub fn updated_ledgers(ledgers: &LedgerSet, report: &Report, now: Timestamp) -> LedgerSet {
    let mut ledgers = ledgers.clone();
    let revision = report.revision.to_string();
    let same_place = |a: &Target, b: &Target| (&a.cluster, &a.namespace) == (&b.cluster, &b.namespace);
    for targets in report.targets.chunk_by(same_place) {
        let ledger = ledgers.ledger(&targets[0].cluster, &targets[0].namespace);
        *ledger = set::ledger(ledger, &revision, targets.iter(), now);
        for target in targets {
            if !ledger.records.contains_key(&target.name) {
                ledger.record_attempt(&target.name, set::record(target, &revision, now), false);
            }
        }
    }
    let key = |target: &Target| (target.cluster.clone(), target.namespace.clone(), target.name.clone());
    let reported: BTreeSet<_> = report.targets.iter().map(key).collect();
    ledgers.retain(|place, name| {
        let key = (place.cluster.clone(), place.namespace.clone(), name.to_owned());
        report.unfinished.contains(&place.cluster) || reported.contains(&key)
    });
    ledgers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::Outcome;
    use crate::deliver::report::ClusterOutcome;
    use crate::revision::{ObjectId, Revision};

    fn report(targets: &[(&str, &str)], unfinished: &[&str]) -> Report {
        let target = |(cluster, name): &(&str, &str)| Target::failed(cluster, "ci", name, "no", Vec::new());
        Report {
            revision: Revision(ObjectId([1; 20])),
            sources: Default::default(),
            targets: targets.iter().map(target).collect(),
            notes: Vec::new(),
            failures: Vec::new(),
            unanswered: Vec::new(),
            unfinished: unfinished.iter().map(|&cluster| cluster.to_owned()).collect(),
        }
    }

    #[test]
    fn what_a_delivery_no_longer_reports_is_forgotten_unless_it_did_not_finish() {
        let now = Timestamp::UNIX_EPOCH;
        let all = report(&[("one", "a"), ("one", "b"), ("two", "a")], &[]);
        let before = updated_ledgers(&LedgerSet::default(), &all, now);
        let kept = |report: &Report| -> Vec<String> {
            let ledgers = updated_ledgers(&before, report, now);
            ledgers.records().map(|(place, name, _)| format!("{}/{name}", place.cluster)).collect()
        };
        assert_eq!(kept(&all), ["one/a", "one/b", "two/a"]);
        assert_eq!(kept(&report(&[("one", "a")], &[])), ["one/a"]);
        assert_eq!(kept(&report(&[("one", "a")], &["one"])), ["one/a", "one/b"]);
        // A namespace that cannot be read is reported with the targets that files feed, and not with the others.
        let mut partial = report(&[], &[]);
        let Report { revision, targets, .. } = report(&[("one", "a")], &[]);
        let (notes, failures) = (Vec::new(), Vec::new());
        let outcome = ClusterOutcome { revision, targets, notes, failures, is_partial: true };
        partial.add("one".to_owned(), outcome);
        assert_eq!(kept(&partial), ["one/a", "one/b"]);
    }

    #[test]
    fn a_cluster_with_a_failure_besides_its_targets_is_not_in_sync() {
        let mut report = report(&[("one", "a"), ("two", "a"), ("two", "b"), ("three", "a")], &["one"]);
        report.targets.iter_mut().for_each(|target| target.outcome = Outcome::Right);
        report.targets[2].outcome = Outcome::Failed;
        let in_sync = report.clusters_in_sync();
        assert_eq!(in_sync, [("one", false), ("two", false), ("three", true)].into());
    }
}
