//! Groups the failures of a report for people: each cause once, however many targets fail by it. An API server that
//! does not answer fails every target of its cluster. Programs get each target, note and failure.

use std::collections::{BTreeMap, BTreeSet};

use super::cause::Cause;
use super::report::{Report, Target};

impl Report {
    /// Returns the targets that are not in their desired state. Those with the same cause and the same hints are
    /// together, in the order of the first of each; no group is empty.
    pub fn causes(&self) -> Vec<Vec<&Target>> {
        let mut causes: Vec<Vec<&Target>> = Vec::new();
        let mut known: BTreeMap<(&str, &str, &[String]), usize> = BTreeMap::new();
        for target in self.targets.iter().filter(|target| !target.outcome.is_success()) {
            let (cluster, why) = match &target.cause {
                Some(cause) => (cause.cluster.as_str(), cause.why.as_str()),
                None => ("", target.why.as_str()),
            };
            let at = *known.entry((cluster, why, target.hints.as_slice())).or_insert(causes.len());
            if at == causes.len() {
                causes.push(Vec::new());
            }
            causes[at].push(target);
        }
        causes
    }

    /// Returns the failures that concern no single target, but for those that only repeat the cause of a failed one.
    pub fn other_failures(&self) -> impl Iterator<Item = &String> {
        let targets = self.targets.iter();
        let causes: BTreeSet<&Cause> = targets.filter_map(|target| target.cause.as_ref()).collect();
        self.failures.iter().filter(move |failure| !causes.iter().any(|cause| cause.is_repeated_by(failure)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::report::{ClusterOutcome, Outcome, Unread};
    use super::super::testing::{desired, survey};
    use super::*;
    use crate::cluster::{Error, Failure, Kind, Operation, Verb};
    use crate::configmap::ClusterNamespace;
    use crate::configmap::apply::Decision;
    use crate::human;

    fn error(namespace: &str, why: Failure) -> Error {
        let [namespace, name] = [namespace, "treeswap-set-team"].map(str::to_owned);
        let operation = Operation { verb: Verb::Create, kind: Kind::ConfigMap, namespace, name };
        Error { cluster: "kube-a".to_owned(), operation: Box::new(operation), why }
    }

    fn failed(namespace: &str, why: Failure) -> Target {
        let error = error(namespace, why);
        let line = human::one_line(&error);
        Target::failed("default", namespace, "jobs", &line, error.hints()).caused_by(&error)
    }

    #[test]
    fn a_server_that_does_not_answer_is_one_cause_and_what_is_too_large_is_one_each() {
        let away = || Failure::Unreachable {
            server: "https://h:443".to_owned(),
            why: "refused".to_owned(),
            transient: true,
        };
        let large = || Failure::TooLarge { message: "3 MiB".to_owned() };
        let targets =
            vec![failed("a", away()), failed("b", large()), failed("c", away()), failed("d", large())];
        let report = Report { targets, ..Report::new(&desired()) };
        let causes = report.causes();
        let namespaces = |targets: &Vec<&Target>| {
            targets.iter().map(|target| target.namespace.clone()).collect::<Vec<String>>().join(" ")
        };
        assert_eq!(causes.iter().map(namespaces).collect::<Vec<String>>(), ["a c", "b", "d"]);
    }

    #[test]
    fn what_only_repeats_that_a_namespace_is_missing_is_left_out_beside_its_targets() {
        let missing = |namespace: &str| Failure::NamespaceNotFound { namespace: namespace.to_owned() };
        let [here, elsewhere] = ["gone", "other"].map(|name| human::one_line(&error(name, missing(name))));
        let pruning = format!("cluster kube-a: nothing is pruned in more: {here}");
        let report = Report {
            targets: vec![failed("gone", missing("gone"))],
            failures: vec![here, pruning.clone(), elsewhere.clone()],
            ..Report::new(&desired())
        };
        assert_eq!(report.other_failures().collect::<Vec<_>>(), [&pruning, &elsewhere]);
        let alone = Report { targets: Vec::new(), ..report };
        assert_eq!(alone.other_failures().count(), 3, "nothing else says so");
    }

    /// Time that grows with the square of their number would be a minute.
    #[test]
    fn clusters_that_fail_take_time_in_proportion_to_their_number() {
        let wanted = survey("ci", Decision::unchanged(String::new())).items.remove(0).wanted.unwrap();
        let names: Vec<String> = (0..50_000).map(|at| format!("c{at:05}")).collect();
        let mut desired = desired();
        for (cluster, namespace) in names.iter().flat_map(|name| [(name, "a"), (name, "b")]) {
            let place = ClusterNamespace { cluster: cluster.clone(), namespace: namespace.to_owned() };
            desired.config_maps.insert(place, [("jobs".to_owned(), wanted.clone())].into());
        }
        let began = Instant::now();
        let mut report = Report::new(&desired);
        for name in &names {
            let mut ended = ClusterOutcome::failed(&desired, name, "there is no such context", &[]);
            ended.targets.reverse();
            report.add(&desired, name.clone(), ended);
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert_eq!((report.targets.len(), report.unfinished.len()), (100_000, 50_000));
        assert!(report.targets.is_sorted_by_key(|target| (&target.cluster, &target.namespace)));
    }

    #[test]
    fn single_requests_that_failed_in_a_cluster_that_served_others_are_reported_one_by_one() {
        let busy = || Failure::Busy { status: 429, pause: None };
        let failure = human::one_line(&error("c", busy()));
        let counts = |targets: Vec<Target>| {
            let (revision, unread) = (desired().revision, Unread::default());
            let (notes, failures) = (Vec::new(), vec![failure.clone()]);
            let mut report = Report::new(&desired());
            let ended = ClusterOutcome { revision, targets, notes, failures, unread };
            report.add(&desired(), "default".to_owned(), ended);
            (report.causes().len(), report.other_failures().count())
        };
        let mut targets = vec![failed("a", busy()), failed("b", busy())];
        assert_eq!(counts(targets.clone()), (1, 0), "none succeeded");
        let unchanged = failed("c", busy()).ended(Outcome::Unchanged, "", Vec::new());
        targets.push(unchanged);
        assert_eq!(counts(targets.clone()), (2, 1));
        targets[0] = failed("a", Failure::Unauthorized);
        targets[1] = failed("b", Failure::Unauthorized);
        assert_eq!(counts(targets), (1, 1), "all requests use the token");
    }
}
