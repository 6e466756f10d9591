//! Two names of one cluster, and a remote that does not say how revisions stand to each other: nothing is pruned by
//! mistake, and nothing that no rule names is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use treeswap::cluster::{Cluster, ConfigError};
use treeswap::configmap::apply::{Owner, PruneLimit};
use treeswap::deliver::{Directory, Options, Outcome, Report, deliver};

use crate::kubernetes::Kubernetes;
use crate::proxy::{Fault, Proxy};
use crate::script::{Plans, Script, data, desired, files, load, revision, runtime};

/// One cluster by these names.
struct Names(Cluster, &'static [&'static str]);

impl Directory for Names {
    fn find(&self, _: &str) -> Result<Cluster, ConfigError> {
        Ok(self.0.clone())
    }

    fn names(&self) -> Vec<String> {
        self.1.iter().map(|name| (*name).to_owned()).collect()
    }
}

/// Two namespaces, and an owner that no other test has.
struct Stage {
    namespaces: [String; 2],
    options: Options,
}

impl Stage {
    fn new() -> Self {
        let namespaces = [(); 2].map(|()| Kubernetes::shared().namespace("aliases"));
        let owner = Owner::new(&format!("of-{}", namespaces[0])).unwrap();
        let options =
            Options { prune: true, prune_limit: PruneLimit { percent: 100 }, ..Options::new(owner) };
        Self { namespaces, options }
    }

    /// Revisions that hold one map with their number, in these clusters and namespaces.
    fn plans(&self, revisions: &[(u8, Value)]) -> Arc<Plans> {
        let plan = |(number, clusters): &(u8, Value)| {
            let maps = json!({ "maps": { "map/*": { "name": "map", "clusters": clusters } } }).to_string();
            let files = files(&[("map/value", &number.to_string())]);
            let revision = revision(*number);
            (revision, desired(revision, &maps, "none", &files))
        };
        Arc::new(revisions.iter().map(plan).collect::<BTreeMap<_, _>>())
    }

    fn deliver(&self, input: Script, names: &'static [&'static str]) -> Report {
        let clusters = load(&[("test", Kubernetes::shared().access("admin"))]);
        let names = Names(clusters.get("default").unwrap().clone(), names);
        let cancel = CancellationToken::new();
        runtime().block_on(deliver(Arc::new(input), &names, &self.options, &cancel)).unwrap()
    }

    /// Delivers a revision, of which the second moves the first namespace to another context of the same server, and
    /// the third leaves it out. Only these contexts are configured.
    fn deliver_a_move(&self, number: u8, configured: &[&str]) -> Report {
        let [a, b] = &self.namespaces;
        let plans = self.plans(&[
            (1, json!({ "one": [a, b] })),
            (2, json!({ "one": [b], "two": [a] })),
            (3, json!({ "one": [b] })),
        ]);
        let clusters = configured.iter().map(|name| (*name, Kubernetes::shared().access("admin")));
        let clusters = load(&clusters.collect::<Vec<_>>());
        let input = Arc::new(Script::at(&plans, revision(number)));
        runtime().block_on(deliver(input, &clusters, &self.options, &CancellationToken::new())).unwrap()
    }

    /// What the map of each namespace holds; nothing if there is none.
    fn values(&self) -> [Option<String>; 2] {
        let map = |namespace: &String| Kubernetes::shared().configmap(namespace, "map");
        self.namespaces.each_ref().map(|namespace| data(&map(namespace)).remove("value"))
    }
}

/// A ref that moves while one of the names is served makes the other the only one that is behind.
#[test]
fn two_names_of_one_cluster_prune_nothing_from_each_other_when_the_ref_moves_meanwhile() {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let both = json!({ "one": [a], "two": [b] });
    let plans = stage.plans(&[(1, json!({ "one": [a] })), (2, both.clone()), (3, both)]);
    let names: &[&str] = &["one", "two"];
    assert!(stage.deliver(Script::at(&plans, revision(1)), names).is_success());
    let moves = Script::answering(&plans, |at| Ok(revision(if at == 0 { 2 } else { 3 })));
    let report = stage.deliver(moves, names);
    assert_eq!(stage.values(), [Some("1".to_owned()), None], "{report:?}");
    assert_eq!(report.targets.len(), 2, "{report:?}");
    for (target, other) in report.targets.iter().zip(["two", "one"]) {
        assert_eq!(target.outcome, Outcome::Failed);
        assert!(target.why.contains(&format!("the same cluster as {other}")), "{}", target.why);
    }
}

/// The other name comes with the revision that the ref moves to: who is at work by the first name sees it, too.
#[test]
fn a_second_name_that_comes_with_a_moved_ref_stops_the_first_one() {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let plans = stage.plans(&[
        (1, json!({ "two": [a, b] })),
        (2, json!({ "one": [a], "two": [b] })),
        (3, json!({ "one": [a, b] })),
    ]);
    let names: &[&str] = &["one", "two"];
    assert!(stage.deliver(Script::at(&plans, revision(1)), names).is_success());
    let moves = Script::answering(&plans, |at| Ok(revision(if at == 0 { 1 } else { 2 })));
    let report = stage.deliver(moves, names);
    // Everything was right at the first revision, so nobody asked again: the second one is the next run's.
    assert!(report.is_success(), "{report:?}");
    let report = stage.deliver(Script::at(&plans, revision(2)), names);
    assert!(!report.is_success(), "{report:?}");
    assert_eq!(stage.values(), [(); 2].map(|()| Some("1".to_owned())));
    assert!(stage.deliver(Script::at(&plans, revision(3)), names).is_success());
    assert_eq!(stage.values(), [(); 2].map(|()| Some("3".to_owned())));
}

/// Nothing but the inventory tells that it is one cluster.
#[test]
fn two_contexts_of_one_server_prune_nothing_from_each_other_in_a_namespace_that_both_write() {
    let stage = Stage::new();
    let [namespace, _] = &stage.namespaces;
    let files = files(&[("map/value", "1"), ("other/value", "1")]);
    let plan = |number: u8, map: &str, other: Option<&str>| {
        let rule = |name: &str, cluster: &str| json!({ "name": name, "clusters": { cluster: [namespace] } });
        let mut maps = json!({ "map/*": rule("map", map) });
        if let Some(other) = other {
            maps["other/*"] = rule("other", other);
        }
        let revision = revision(number);
        (revision, desired(revision, &json!({ "maps": maps }).to_string(), "none", &files))
    };
    let plans = [plan(1, "one", None), plan(2, "one", Some("two")), plan(3, "two", Some("two"))];
    let plans: Arc<Plans> = Arc::new(plans.into_iter().collect());
    let admin = || Kubernetes::shared().access("admin");
    let deliver = |number, clusters: &treeswap::cluster::Clusters| {
        let input = Arc::new(Script::at(&plans, revision(number)));
        let cancel = CancellationToken::new();
        runtime().block_on(deliver(input, clusters, &stage.options, &cancel)).unwrap()
    };
    let both = load(&[("one", admin()), ("two", admin())]);
    assert!(deliver(1, &both).is_success());
    for _ in 0..2 {
        let report = deliver(2, &both);
        let outcomes: Vec<_> =
            report.targets.iter().map(|target| (target.name.as_str(), target.outcome)).collect();
        assert_eq!(outcomes, [("map", Outcome::Unchanged), ("other", Outcome::Refused)], "{report:?}");
        let refused = &report.targets[1];
        assert!(refused.why.contains("written through one") && !refused.hints.is_empty(), "{refused:?}");
        assert_eq!(stage.values()[0].as_deref(), Some("1"), "{report:?}");
    }
    // A context that was renamed is no second name.
    let report = deliver(3, &load(&[("two", admin())]));
    assert!(report.is_success(), "{report:?}");
    let outcomes: Vec<_> = report.targets.iter().map(|target| target.outcome).collect();
    assert_eq!(outcomes, [Outcome::Unchanged, Outcome::Created], "{report:?}");
}

/// Pruning finds inventories by the name of their context, which no ConfigMap depends on.
#[test]
fn after_a_context_was_renamed_what_no_rule_names_any_more_is_still_pruned() {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let plans = stage.plans(&[(1, json!({ "default": [a, b] })), (2, json!({ "default": [b] }))]);
    let deliver = |number, context| {
        let clusters = load(&[(context, Kubernetes::shared().access("admin"))]);
        let input = Arc::new(Script::at(&plans, revision(number)));
        let cancel = CancellationToken::new();
        runtime().block_on(deliver(input, &clusters, &stage.options, &cancel)).unwrap()
    };
    assert!(deliver(1, "one").is_success());
    assert!(deliver(1, "two").is_success());
    let before = Kubernetes::shared().versions(a);
    assert!(deliver(1, "two").is_success());
    assert_eq!(Kubernetes::shared().versions(a), before, "once is enough");
    let report = deliver(2, "two");
    assert_eq!(stage.values(), [None, Some("2".to_owned())], "{report:?}");
}

#[test]
fn a_namespace_that_moves_to_another_context_of_one_server_is_not_pruned_by_the_first() {
    let stage = Stage::new();
    let deliver = |number| stage.deliver_a_move(number, &["one", "two"]);
    assert!(deliver(1).is_success());
    let report = deliver(2);
    assert_eq!(stage.values(), [Some("1".to_owned()), Some("2".to_owned())], "{report:?}");
    assert_eq!((report.targets.len(), report.failures.len()), (2, 0), "{report:?}");
    assert_eq!((report.targets[1].cluster.as_str(), report.targets[1].outcome), ("two", Outcome::Refused));
    let report = deliver(3);
    assert_eq!(stage.values(), [None, Some("3".to_owned())], "no rule names it any more: {report:?}");
}

/// As where the kubeconfig of the second one cannot be read.
#[test]
fn a_context_that_is_not_configured_stops_the_pruning_of_its_namespace_and_nothing_else() {
    let stage = Stage::new();
    let deliver = |number| stage.deliver_a_move(number, &["one"]);
    assert!(deliver(1).is_success());
    let report = deliver(2);
    assert_eq!(stage.values(), [Some("1".to_owned()), Some("2".to_owned())], "{report:?}");
    let unpruned = format!("cluster one: nothing is pruned in {}: cluster two: ", stage.namespaces[0]);
    let said = |failure: &String| failure.starts_with(&unpruned) && failure.ends_with("no cluster two");
    assert!(report.failures.iter().any(said), "{report:?}");
    let report = deliver(3);
    assert_eq!(stage.values(), [None, Some("3".to_owned())], "no rule names it any more: {report:?}");
}

/// Whether it is the same server is not known as long as it does not say so. Nor does what a proxy says of itself tell.
#[test]
fn a_context_that_does_not_answer_stops_the_pruning_of_its_namespace_and_nothing_else() {
    // One and two read the inventory, and again if that may help.
    for (answer, asked) in
        [(Fault::Answer(503, None, "busy"), 4), (Fault::Answer(404, None, "default backend - 404"), 2)]
    {
        stops_the_pruning_of_its_namespace(&answer, asked);
    }
}

#[track_caller]
fn stops_the_pruning_of_its_namespace(answer: &Fault, times: usize) {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let plans = stage.plans(&[(1, json!({ "one": [a, b] })), (2, json!({ "one": [b], "two": [a] }))]);
    let proxy = Proxy::start(Kubernetes::shared());
    let options = Options { tries: 2, ..stage.options.clone() };
    let deliver = |number| {
        let admin = Kubernetes::shared().access("admin");
        let clusters = load(&[("one", admin), ("two", proxy.access("admin"))]);
        let input = Arc::new(Script::at(&plans, revision(number)));
        let cancel = CancellationToken::new();
        runtime().block_on(deliver(input, &clusters, &options, &cancel)).unwrap()
    };
    assert!(deliver(1).is_success());
    proxy.plan("", "", 0, usize::MAX, answer.clone());
    let report = deliver(2);
    assert_eq!(stage.values(), [Some("1".to_owned()), Some("2".to_owned())], "{report:?}");
    let unpruned = format!("cluster one: nothing is pruned in {}: cluster two: ", stage.namespaces[0]);
    assert!(report.failures.iter().any(|failure| failure.starts_with(&unpruned)), "{report:?}");
    let asked = proxy.count("GET", &format!("/{a}/configmaps/treeswap-set-"));
    assert_eq!(asked, times, "{:?}", proxy.seen());
}

/// As where an admission webhook is down.
#[test]
fn an_inventory_that_cannot_be_deleted_fails_alone_and_one_that_may_be_gone_is_deleted_once_more() {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let plans = stage.plans(&[(1, json!({ "one": [a, b] })), (2, json!({ "one": [b] }))]);
    let proxy = Proxy::start(Kubernetes::shared());
    let deliver = |number| {
        let clusters = load(&[("one", proxy.access("admin"))]);
        let input = Arc::new(Script::at(&plans, revision(number)));
        let cancel = CancellationToken::new();
        runtime().block_on(deliver(input, &clusters, &stage.options, &cancel)).unwrap()
    };
    assert!(deliver(1).is_success());
    let inventory = format!("/{a}/configmaps/treeswap-set-");
    proxy.plan("DELETE", &inventory, 0, usize::MAX, Fault::Answer(500, None, "failed calling webhook"));
    let report = deliver(2);
    assert_eq!(stage.values(), [None, Some("2".to_owned())], "{report:?}");
    assert_eq!(report.failures.len(), 1, "{report:?}");
    assert_eq!(proxy.count("DELETE", &inventory), 2, "{:?}", proxy.seen());
    proxy.heal();
    proxy.next("DELETE", &inventory, Fault::CutAfter);
    let report = deliver(2);
    assert!(report.is_success(), "{report:?}");
    assert!(Kubernetes::shared().configmaps(a).is_empty());
    assert_eq!(proxy.heal(), 0, "the fault was met");
}

/// The newer run finds the map announced and absent, and leaves nothing there by which another one could find it.
#[test]
fn what_lands_in_a_namespace_after_a_newer_run_has_left_it_is_deleted_by_the_run_that_wrote_it() {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let plans =
        stage.plans(&[(1, json!({ "one": [a] })), (2, json!({ "one": [a, b] })), (3, json!({ "one": [a] }))]);
    assert!(stage.deliver(Script::at(&plans, revision(1)), &["one"]).is_success());
    let names = |access| Names(load(&[("test", access)]).get("default").unwrap().clone(), &["one"]);
    let proxy = Proxy::start(Kubernetes::shared());
    // The inventory comes first.
    proxy.plan("POST", &format!("/{b}/configmaps"), 1, 1, Fault::HoldBefore);
    let report = runtime().block_on(async {
        let cancel = CancellationToken::new();
        let newer = async {
            proxy.held().await;
            let clusters = names(Kubernetes::shared().access("admin"));
            let input = Arc::new(Script::at(&plans, revision(3)));
            let report = deliver(input, &clusters, &stage.options, &cancel).await.unwrap();
            assert!(report.is_success(), "{report:?}");
            proxy.release();
        };
        let clusters = names(proxy.access("admin"));
        let input = Arc::new(Script::answering(&plans, |at| Ok(revision(if at < 2 { 2 } else { 3 }))));
        let older = deliver(input, &clusters, &stage.options, &cancel);
        tokio::join!(older, newer).0.unwrap()
    });
    assert_eq!(stage.values(), [Some("3".to_owned()), None], "{report:?}");
    assert!(report.is_success(), "{report:?}");
    let deleted = report.targets.iter().find(|target| target.namespace == *b).unwrap();
    assert_eq!(deleted.outcome, Outcome::Deleted, "{report:?}");
}

#[test]
fn an_orphaned_namespace_of_which_the_remote_does_not_say_whether_it_is_its_own_is_left_until_it_does() {
    let stage = Stage::new();
    let [a, b] = &stage.namespaces;
    let plans = stage.plans(&[(1, json!({ "one": [a, b] })), (2, json!({ "one": [b] }))]);
    assert!(stage.deliver(Script::at(&plans, revision(1)), &["one"]).is_success());
    let report = stage.deliver(Script::at(&plans, revision(2)).silent(), &["one"]);
    assert_eq!(stage.values(), [Some("1".to_owned()), Some("2".to_owned())], "{report:?}");
    assert!(report.is_to_be_repeated(), "{report:?}");
    let left = report.targets.iter().find(|target| target.namespace == *a).unwrap();
    assert!(left.why.contains("the remote is away"), "{}", left.why);
    let report = stage.deliver(Script::at(&plans, revision(2)), &["one"]);
    assert!(report.is_success(), "{report:?}");
    assert_eq!(stage.values(), [None, Some("2".to_owned())]);
}
