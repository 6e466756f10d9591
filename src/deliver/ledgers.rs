//! Merges the report of a delivery into the ledgers that were read from the clusters.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::report::{Report, Target};
use super::set;
use crate::configmap::apply::{LastAttempt, LedgerSet};

/// Returns the ledgers as they are after a delivery: as the clusters record them, and with a record for every target,
/// also for an unchanged one. Records of targets that the delivery does not report are dropped, as no rule names them
/// any more; but not in a namespace of which the report may lack some.
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
    ledgers.retain(|place, name, record| {
        let key = (place.cluster.clone(), place.namespace.clone(), name.to_owned());
        let unread = report.unfinished.get(&place.cluster);
        let is_unread = unread.is_some_and(|unread| unread.has(&place.namespace));
        reported.contains(&key) || (is_unread && is_of_an_object(record))
    });
    ledgers
}

/// Returns true if there was an object that the record is about. Where everything is refused there need not be one, and
/// an author who renames ConfigMaps would add a record with each commit.
fn is_of_an_object(record: &LastAttempt) -> bool {
    record.error.is_none() || record.attempts > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::cluster::{Cluster, ConfigError};
    use crate::deliver::testing::{Remote, cluster, desired, options};
    use crate::deliver::{Directory, Options, Outcome, Relation, Unread, deliver};

    /// Reports a failure of each target, which is given by cluster, namespace and name.
    fn report(targets: &[[&str; 3]], unfinished: &[(&str, Unread)]) -> Report {
        let target = |[cluster, namespace, name]: &[&str; 3]| {
            Target::failed(cluster, namespace, name, "no", Vec::new())
        };
        let unfinished = unfinished.iter().map(|(cluster, unread)| ((*cluster).to_owned(), unread.clone()));
        let (targets, unfinished) = (targets.iter().map(target).collect(), unfinished.collect());
        Report { targets, unfinished, ..Report::new(&desired()) }
    }

    /// Reports that each target was written.
    fn written(targets: &[[&str; 3]]) -> Report {
        let mut report = report(targets, &[]);
        for target in &mut report.targets {
            (target.outcome, target.attempts) = (Outcome::Replaced, 1);
        }
        report
    }

    fn names(ledgers: &LedgerSet) -> Vec<String> {
        let names = ledgers.records();
        names.map(|(place, name, _)| format!("{}/{}/{name}", place.cluster, place.namespace)).collect()
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn what_a_delivery_no_longer_reports_is_forgotten_unless_its_namespace_was_not_read() {
        let all = written(&[["one", "ci", "a"], ["one", "ci", "b"], ["one", "web", "a"], ["two", "ci", "a"]]);
        let before = updated_ledgers(&LedgerSet::default(), &all, NOW);
        let kept = |report: &Report| names(&updated_ledgers(&before, report, NOW));
        assert_eq!(kept(&all), ["one/ci/a", "one/ci/b", "one/web/a", "two/ci/a"]);
        let a = [["one", "ci", "a"]];
        assert_eq!(kept(&report(&a, &[])), ["one/ci/a"]);
        let unread = |unread| kept(&report(&a, &[("one", unread)]));
        assert_eq!(unread(Unread::all()), ["one/ci/a", "one/ci/b", "one/web/a"]);
        // Failures besides hide nothing, nor does a namespace that is refused hide another one.
        assert_eq!(unread(Unread::default()), ["one/ci/a"]);
        assert_eq!(unread(Unread::Only(["web".to_owned()].into())), ["one/ci/a", "one/web/a"]);
        assert_eq!(unread(Unread::AllBut(["ci".to_owned()].into())), ["one/ci/a", "one/web/a"]);
    }

    #[test]
    fn a_namespace_that_is_always_refused_does_not_fill_the_ledger_with_the_names_of_commits() {
        let mut ledgers = updated_ledgers(&LedgerSet::default(), &written(&[["one", "ci", "a"]]), NOW);
        for commit in 0..10 {
            let report = report(&[["one", "ci", &format!("renamed-{commit}")]], &[("one", Unread::all())]);
            ledgers = updated_ledgers(&ledgers, &report, NOW);
        }
        assert_eq!(names(&ledgers), ["one/ci/a", "one/ci/renamed-9"]);
    }

    /// One cluster, which does not answer.
    struct Unreachable;

    impl Directory for Unreachable {
        fn find(&self, _: &str) -> Result<Cluster, ConfigError> {
            Ok(cluster())
        }

        fn names(&self) -> Vec<String> {
            vec!["test".to_owned()]
        }
    }

    #[tokio::test]
    async fn a_cluster_that_no_rule_names_any_more_keeps_its_records_until_it_is_read() {
        let before = updated_ledgers(&LedgerSet::default(), &written(&[["test", "ci", "a"]]), NOW);
        let cases: [(bool, &[&str]); 2] = [(true, &["test/ci/a"]), (false, &[])];
        for (prune, kept) in cases {
            let options = Options { prune, ..options() };
            let input = Arc::new(Remote::new(Ok(Relation::Ahead)));
            let report = deliver(input, &Unreachable, &options, &CancellationToken::new()).await.unwrap();
            assert!(report.is_success(), "{report:?}");
            assert_eq!(names(&updated_ledgers(&before, &report, NOW)), kept);
        }
    }

    #[test]
    fn a_cluster_with_a_failure_besides_its_targets_is_not_in_sync() {
        let targets = [["one", "ci", "a"], ["two", "ci", "a"], ["two", "ci", "b"], ["three", "ci", "a"]];
        let mut report = report(&targets, &[("one", Unread::default())]);
        report.targets.iter_mut().for_each(|target| target.outcome = Outcome::Unchanged);
        report.targets[2].outcome = Outcome::Failed;
        let in_sync = report.clusters_in_sync();
        assert_eq!(in_sync, [("one", false), ("two", false), ("three", true)].into());
    }
}
