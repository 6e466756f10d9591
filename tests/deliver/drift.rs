//! What others write over ours, and what two installations do to each other.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use treeswap::configmap::apply::{Adopt, Owner, RepairLimit};
use treeswap::deliver::{Options, Outcome};

use crate::kubernetes::{Kubernetes, text};
use crate::script::{Script, clusters, data, load, only, options, plans, revision, run};

const RULES: &str = "config_updater:\n  maps:\n    jobs/*.yaml:\n      name: job-config\n";
const FILES: [(u8, &[(&str, &str)]); 2] = [
    (1, &[("jobs/a.yaml", "one"), ("jobs/b.yaml", "b")]),
    (2, &[("jobs/a.yaml", "one"), ("jobs/b.yaml", "b"), ("docs/x", "not for anybody")]),
];

fn writer() -> treeswap::cluster::Clusters {
    load(&[("test", Kubernetes::shared().access("writer"))])
}

/// Changes the data of our ConfigMap as Prow's bootstrapper would: labels and annotations stay.
fn scribble(namespace: &str, change: impl Fn(&mut Value)) {
    let mut object = Kubernetes::shared().configmap(namespace, "job-config");
    change(&mut object["data"]);
    Kubernetes::shared().put(namespace, "job-config", object);
}

#[test]
fn an_unchanged_revision_costs_no_write_and_what_somebody_else_wrote_is_put_right_and_counted() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("drift");
    let plans = plans(RULES, &namespace, &FILES);
    clusters(&namespace);
    let deliver = |number| run(Script::at(&plans, revision(number)), &writer(), &options()).unwrap();
    assert_eq!(only(&deliver(1)).outcome, Outcome::Created);
    let (versions, writes) = (kubernetes.versions(&namespace), kubernetes.writes(&namespace));
    let requests = kubernetes.requests(&namespace).len();
    for number in [1, 2, 1] {
        let report = deliver(number);
        assert_eq!((only(&report).outcome, only(&report).attempts), (Outcome::Unchanged, 0));
    }
    assert_eq!(
        kubernetes.versions(&namespace),
        versions,
        "neither the revision nor anything else changed it"
    );
    assert_eq!(kubernetes.writes(&namespace), writes);
    let kinds: BTreeSet<(String, String)> =
        kubernetes.requests(&namespace).into_iter().skip(requests).map(|one| (one.verb, one.name)).collect();
    let kind = |verb: &str, name: &str| (verb.to_owned(), name.to_owned());
    let expected = [kind("list", ""), kind("get", "treeswap-set-team"), kind("get", "treeswap-ledger-team")];
    assert_eq!(kinds, expected.into(), "what is unchanged is known by its metadata");

    let right = data(&kubernetes.configmap(&namespace, "job-config"));
    let older = |data: &mut Value| data["a.yaml"] = json!("older");
    let unstamped = |data: &mut Value| drop(data.as_object_mut().unwrap().remove("VERSION"));
    let more = |data: &mut Value| data["extra"] = json!("x");
    let changes: [&dyn Fn(&mut Value); 3] = [&older, &unstamped, &more];
    let keys = ["a.yaml", "VERSION", "extra"];
    for (repairs, (change, key)) in (1..).zip(changes.into_iter().zip(keys)) {
        scribble(&namespace, change);
        let report = deliver(2);
        let target = only(&report);
        assert_eq!(
            (target.outcome, target.why.as_str()),
            (Outcome::Repaired, "it was changed by another writer")
        );
        let touched: Vec<&String> =
            target.added.iter().chain(&target.changed).chain(&target.removed).collect();
        assert_eq!(touched, [key]);
        assert_eq!(data(&kubernetes.configmap(&namespace, "job-config")), right);
        let ledger = data(&kubernetes.configmap(&namespace, "treeswap-ledger-team"));
        let record: Value = serde_json::from_str(&ledger["job-config"]).unwrap();
        assert_eq!(record["repairs"].as_array().unwrap().len(), repairs, "{record}");
    }
    scribble(&namespace, more);
    let report = deliver(2);
    assert_eq!(only(&report).outcome, Outcome::Refused);
    assert!(only(&report).why.contains("contested"), "{report:?}");
    let patient = Options { pace: RepairLimit { repairs: 9, ..RepairLimit::default() }, ..options() };
    let report = run(Script::at(&plans, revision(2)), &writer(), &patient).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Repaired);
    assert_eq!(data(&kubernetes.configmap(&namespace, "job-config")), right);
}

#[test]
fn what_somebody_deletes_comes_back_until_it_waits_for_the_pause_in_every_later_run() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("drift");
    let plans = plans(RULES, &namespace, &FILES);
    clusters(&namespace);
    let deliver = || run(Script::at(&plans, revision(1)), &writer(), &options()).unwrap();
    assert_eq!(only(&deliver()).outcome, Outcome::Created);
    let right = data(&kubernetes.configmap(&namespace, "job-config"));
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/job-config");
    for _ in 0..RepairLimit::default().repairs {
        kubernetes.must("DELETE", &path, None);
        let report = deliver();
        let target = only(&report);
        assert_eq!(
            (target.outcome, target.why.as_str()),
            (Outcome::Repaired, "it was deleted by another writer")
        );
        assert_eq!(data(&kubernetes.configmap(&namespace, "job-config")), right);
    }
    kubernetes.must("DELETE", &path, None);
    for _ in 0..2 {
        let report = deliver();
        assert_eq!(only(&report).outcome, Outcome::Refused, "{report:?}");
        assert!(only(&report).why.contains("contested"), "{report:?}");
    }
    assert!(kubernetes.configmap(&namespace, "job-config").is_null());
}

#[test]
fn two_owners_never_touch_each_others_configmaps_and_nobodys_are_refused_or_adopted() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("owners");
    let plans = plans(RULES, &namespace, &FILES);
    clusters(&namespace);
    kubernetes.put(&namespace, "job-config", json!({ "metadata": {}, "data": { "mine": "1" } }));
    let owned =
        |owner: &str, adopt| Options { adopt, ..Options { owner: Owner::new(owner).unwrap(), ..options() } };
    let deliver = |options: &Options| run(Script::at(&plans, revision(1)), &writer(), options).unwrap();
    let report = deliver(&owned("a", Adopt::Prow));
    assert_eq!(only(&report).outcome, Outcome::Refused);
    assert!(only(&report).removed.contains("mine"), "the keys that would go are shown: {report:?}");
    assert!(only(&report).hints[0].contains("--adopt=all"));
    assert_eq!(data(&kubernetes.configmap(&namespace, "job-config"))["mine"], "1");
    assert_eq!(only(&deliver(&owned("a", Adopt::All))).outcome, Outcome::Replaced);
    let before = text(&kubernetes.configmap(&namespace, "job-config")["metadata"]["resourceVersion"]);
    let report = deliver(&Options { prune: true, ..owned("b", Adopt::All) });
    assert_eq!(only(&report).outcome, Outcome::Refused);
    assert!(only(&report).why.contains("the owner \"a\""), "{report:?}");
    let after = text(&kubernetes.configmap(&namespace, "job-config")["metadata"]["resourceVersion"]);
    assert_eq!(after, before);
}

#[test]
fn what_nothing_feeds_any_more_is_left_emptied_or_pruned_and_never_too_much_at_once() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("prune");
    clusters(&namespace);
    let rules = "config_updater:\n  maps:\n    a/*: {name: a}\n    b/*: {name: b}\n    c/*: {name: c}\n";
    let fewer = "config_updater:\n  maps:\n    a/*: {name: a}\n    b/*: {name: b}\n";
    let all = plans(rules, &namespace, &[(1, &[("a/1", "1"), ("b/1", "1"), ("c/1", "1")]), (2, &[])]);
    let less = plans(fewer, &namespace, &[(3, &[("a/1", "1"), ("b/1", "1")])]);
    let cautious = Options { prune_limit: treeswap::configmap::apply::PruneLimit::default(), ..options() };
    let deliver = |plans, number, options: &Options| {
        run(Script::at(plans, revision(number)), &writer(), options).unwrap()
    };
    assert!(deliver(&all, 1, &cautious).is_success());
    let report = deliver(&all, 2, &cautious);
    assert!(report.targets.iter().all(|target| target.outcome == Outcome::Refused), "{report:?}");
    assert!(report.targets[0].hints[0].contains("--max-prune=100"));
    let outcome = |report: &treeswap::deliver::Report, name: &str| {
        report.targets.iter().find(|target| target.name == name).map(|target| target.outcome)
    };
    let report = deliver(&less, 3, &cautious);
    assert_eq!(outcome(&report, "c"), Some(Outcome::Left));
    assert!(!kubernetes.configmap(&namespace, "c").is_null());
    let report = deliver(&less, 3, &Options { prune: true, ..cautious.clone() });
    assert_eq!(outcome(&report, "c"), Some(Outcome::Deleted));
    assert!(kubernetes.configmap(&namespace, "c").is_null());
    assert_eq!(outcome(&deliver(&less, 3, &cautious), "c"), None, "and forgotten");
    let report = deliver(&all, 2, &options());
    assert_eq!(outcome(&report, "a"), Some(Outcome::Replaced), "{report:?}");
    let left = data(&kubernetes.configmap(&namespace, "a"));
    assert_eq!(left.keys().collect::<Vec<_>>(), ["VERSION"]);
    let report = deliver(&all, 2, &Options { prune: true, ..options() });
    assert_eq!(outcome(&report, "a"), Some(Outcome::Deleted));
    assert!(kubernetes.configmap(&namespace, "a").is_null());
}

#[test]
fn a_damaged_inventory_deletes_nothing_and_keeps_what_cannot_be_read() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("damage");
    clusters(&namespace);
    let rules = "config_updater:\n  maps:\n    a/*: {name: a}\n    b/*: {name: b}\n    c/*: {name: c}\n";
    let fewer = "config_updater:\n  maps:\n    a/*: {name: a}\n    c/*: {name: c}\n";
    let all = plans(rules, &namespace, &[(1, &[("a/1", "1"), ("b/1", "1"), ("c/1", "1")])]);
    let one = plans(fewer, &namespace, &[(2, &[("a/1", "2")])]);
    assert!(run(Script::at(&all, revision(1)), &writer(), &options()).unwrap().is_success());
    let mut marker = kubernetes.configmap(&namespace, "treeswap-set-team");
    marker["data"]["zzz"] = json!("{ torn");
    (0..300).for_each(|at| marker["data"][format!("zzz-{at}")] = json!("{ torn"));
    kubernetes.put(&namespace, "treeswap-set-team", marker);
    let deliver =
        || run(Script::at(&one, revision(2)), &writer(), &Options { prune: true, ..options() }).unwrap();
    let report = deliver();
    assert!(report.notes[0].contains("zzz") && report.notes[0].contains("nothing is deleted"), "{report:?}");
    assert!(report.notes[0].len() < 500, "a line that a person can read: {report:?}");
    assert!(
        report.notes[1].contains("list the ConfigMaps treeswap-set-team of all namespaces"),
        "{report:?}"
    );
    let hint = report.notes[1].hint.as_deref().unwrap_or_default();
    assert!(hint.contains("deploy/apply/prune.yaml"), "{report:?}");
    assert_eq!(data(&kubernetes.configmap(&namespace, "a"))["1"], "2", "the rest is done");
    deliver();
    for kept in ["b", "c"] {
        assert_eq!(data(&kubernetes.configmap(&namespace, kept))["1"], "1", "{kept}, in a later run, too");
    }
    let marker = data(&kubernetes.configmap(&namespace, "treeswap-set-team"));
    assert_eq!(marker["zzz"], "{ torn");
    assert!(marker.contains_key("b") && marker.contains_key("c"), "{marker:?}");
}

#[test]
fn an_inventory_full_of_what_is_gone_is_no_reason_to_refuse_a_namespace() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("full");
    let plans = plans(RULES, &namespace, &FILES);
    clusters(&namespace);
    let deliver = |number| run(Script::at(&plans, revision(number)), &writer(), &options()).unwrap();
    assert!(deliver(1).is_success());
    let mut marker = kubernetes.configmap(&namespace, "treeswap-set-team");
    let gone = json!({ "digest": "d", "uid": "u", "resourceVersion": "7", "revision": "r" }).to_string();
    for at in 0..3_200 {
        marker["data"][format!("a-name-of-a-usual-length-{at}")] = json!(gone);
    }
    kubernetes.put(&namespace, "treeswap-set-team", marker);
    let report = deliver(2);
    assert_eq!(only(&report).outcome, Outcome::Unchanged, "{report:?}");
    let left = data(&kubernetes.configmap(&namespace, "treeswap-set-team"));
    assert_eq!(left.keys().collect::<Vec<_>>(), ["_revision", "_rules", "job-config"]);
}
