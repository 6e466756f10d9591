//! What is recorded and reported of a delivery in which requests fail, or that is killed between a write and its
//! record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use treeswap::deliver::{LeaseOptions, Options, Outcome, Report, deliver};
use treeswap::retry::Backoff;
use treeswap::shutdown::DRAIN;

use crate::kubernetes::Kubernetes;
use crate::proxy::{Fault, Proxy};
use crate::script::{
    Everywhere, Plans, Script, clusters, data, desired, files, load, only, options, revision, run, runtime,
};

const BUSY: Fault = Fault::Answer(429, Some("0"), "busy");
const CONFLICT: Fault = Fault::Answer(
    409,
    None,
    r#"{"kind":"Status","status":"Failure","reason":"Conflict","message":"no","code":409}"#,
);
const DENIED: Fault = Fault::Answer(
    403,
    None,
    r#"{"kind":"Status","status":"Failure","reason":"Forbidden","message":"no","code":403}"#,
);

/// Namespaces behind a proxy. The ConfigMap `jobs` is in revisions 1 and 2; in revision 3 `other` is in its place.
struct Stage {
    namespaces: Vec<String>,
    plans: Arc<Plans>,
    proxy: Proxy,
}

impl Stage {
    fn new(count: usize) -> Self {
        let kubernetes = Kubernetes::shared();
        let namespaces: Vec<String> = (0..count).map(|_| kubernetes.namespace("records")).collect();
        namespaces.iter().for_each(|namespace| drop(clusters(namespace)));
        let plan = |number: u8, name: &str| {
            let rule = json!({ "name": name, "clusters": { "default": namespaces } });
            let rules = json!({ "maps": { "jobs/*": rule } }).to_string();
            let files = files(&[("jobs/value", &number.to_string())]);
            (revision(number), desired(revision(number), &rules, "none", &files))
        };
        let plans = Arc::new([plan(1, "jobs"), plan(2, "jobs"), plan(3, "other")].into());
        Self { namespaces, plans, proxy: Proxy::start(kubernetes) }
    }

    fn deliver(&self, number: u8, options: &Options) -> Report {
        let clusters = load(&[("test", self.proxy.access("writer"))]);
        run(Script::at(&self.plans, revision(number)), &clusters, options).unwrap()
    }

    /// A delivery that is ended when the first request is held, and how long it went on after that.
    fn deliver_until_held(&self, number: u8, options: &Options) -> (Report, Duration) {
        let clusters = load(&[("test", self.proxy.access("writer"))]);
        let cluster = Everywhere(clusters.get("default").unwrap().clone());
        let input = Arc::new(Script::at(&self.plans, revision(number)));
        let ending = CancellationToken::new();
        let end = async {
            self.proxy.held().await;
            ending.cancel();
            Instant::now()
        };
        runtime().block_on(async {
            let (report, ended) = tokio::join!(deliver(input, &cluster, options, &ending), end);
            (report.unwrap(), ended.elapsed())
        })
    }

    fn object(&self, namespace: usize, name: &str) -> Value {
        Kubernetes::shared().configmap(&self.namespaces[namespace], name)
    }

    fn changed_by_hand(&self, namespace: usize) {
        let mut object = self.object(namespace, "jobs");
        object["data"]["value"] = json!("by hand");
        Kubernetes::shared().put(&self.namespaces[namespace], "jobs", object);
    }
}

/// Two attempts, without pauses.
fn hasty() -> Options {
    let pause = Duration::from_millis(1);
    Options { tries: 2, backoff: Backoff { first: pause, ceiling: pause }, prune: true, ..options() }
}

#[test]
fn a_busy_server_is_asked_again_and_nothing_is_created_before_the_inventory_lists_it() {
    let stage = Stage::new(1);
    stage.proxy.plan("POST", "/configmaps", 0, 2, BUSY);
    let report = stage.deliver(1, &hasty());
    let target = only(&report);
    assert!(target.outcome == Outcome::Failed && target.transient, "{report:?}");
    assert!(target.why.contains("the inventory has to list it first"), "{report:?}");
    let names: Vec<String> = Kubernetes::shared().configmaps(&stage.namespaces[0]).into_keys().collect();
    assert!(!names.contains(&"jobs".to_owned()), "{names:?}");
    stage.proxy.next("POST", "/configmaps", BUSY);
    assert_eq!(only(&stage.deliver(1, &hasty())).outcome, Outcome::Created);

    stage.proxy.next("PUT", "treeswap-set-team", BUSY);
    let report = stage.deliver(2, &hasty());
    assert_eq!(only(&report).outcome, Outcome::Replaced);
    assert!(report.is_success(), "{report:?}");

    stage.proxy.next("PUT", "configmaps/jobs", BUSY);
    let report = stage.deliver(1, &Options { dry_run: true, ..hasty() });
    assert_eq!(only(&report).outcome, Outcome::Replaced, "{report:?}");
    assert_eq!(stage.proxy.heal(), 0, "every fault was met");
}

/// As where an admission webhook of that namespace is down.
#[test]
fn a_namespace_whose_writes_fail_in_the_server_keeps_no_other_one_from_being_written() {
    let stage = Stage::new(2);
    let [broken, other] = [0, 1].map(|at| stage.namespaces[at].as_str());
    let path = format!("/{broken}/configmaps");
    stage.proxy.plan("POST", &path, 0, usize::MAX, Fault::Answer(500, None, "failed calling webhook"));
    let report = stage.deliver(1, &hasty());
    let of = |namespace: &str| report.targets.iter().find(|target| target.namespace == namespace).unwrap();
    assert_eq!(of(other).outcome, Outcome::Created, "{report:?}");
    assert!(of(broken).outcome == Outcome::Failed && of(broken).transient, "{report:?}");
    assert!(of(broken).why.contains("the inventory has to list it first"), "{report:?}");
    stage.proxy.heal();

    // What took effect without an answer conflicts with what is sent again, and everything is read.
    let before = stage.proxy.count("POST", &path);
    stage.proxy.next("POST", &path, Fault::AnswerAfter(500, None, "etcdserver: request timed out"));
    let report = stage.deliver(1, &hasty());
    assert!(report.is_success(), "{report:?}");
    let sent = stage.proxy.count("POST", &path) - before;
    assert_eq!(sent, 4, "the inventory twice, jobs and the ledger");
    assert_eq!(data(&stage.object(0, "jobs"))["value"], "1");
    assert_eq!(stage.proxy.heal(), 0, "the fault was met");
}

#[test]
fn an_immutable_configmap_that_the_server_would_not_create_again_is_not_deleted() {
    let stage = Stage::new(1);
    let recreating = Options { recreate: true, ..hasty() };
    assert!(stage.deliver(1, &recreating).is_success());
    let mut object = stage.object(0, "jobs");
    object["immutable"] = json!(true);
    Kubernetes::shared().put(&stage.namespaces[0], "jobs", object);
    stage.proxy.plan("POST", "/configmaps", 0, usize::MAX, DENIED);
    for dry_run in [true, false] {
        let report = stage.deliver(2, &Options { dry_run, ..recreating.clone() });
        assert_eq!(only(&report).outcome, Outcome::Failed, "{report:?}");
        assert_eq!(data(&stage.object(0, "jobs"))["value"], "1", "{report:?}");
    }
    stage.proxy.heal();
    let report = stage.deliver(2, &recreating);
    assert_eq!(only(&report).outcome, Outcome::Recreated, "{report:?}");
    assert_eq!(data(&stage.object(0, "jobs"))["value"], "2");
}

#[test]
fn what_replaces_an_object_that_was_deleted_by_hand_is_pruned_though_a_crash_left_it_unrecorded() {
    let stage = Stage::new(1);
    let kubernetes = Kubernetes::shared();
    assert!(stage.deliver(1, &hasty()).is_success());
    let path = format!("/api/v1/namespaces/{}/configmaps/jobs", stage.namespaces[0]);
    kubernetes.must("DELETE", &path, None);
    stage.proxy.next("POST", "/configmaps", Fault::HoldAfter);
    runtime().block_on(async {
        let clusters = load(&[("test", stage.proxy.access("writer"))]);
        let input = Arc::new(Script::at(&stage.plans, revision(1)));
        let killed = tokio::spawn(async move {
            let cluster = Everywhere(clusters.get("default").unwrap().clone());
            deliver(input, &cluster, &hasty(), &CancellationToken::new()).await.unwrap()
        });
        stage.proxy.held().await;
        killed.abort();
        assert!(killed.await.unwrap_err().is_cancelled());
    });
    stage.proxy.release();
    assert_eq!(data(&stage.object(0, "jobs"))["value"], "1", "it was created");
    let report = stage.deliver(3, &hasty());
    let outcomes: Vec<_> =
        report.targets.iter().map(|target| (target.name.as_str(), target.outcome)).collect();
    assert_eq!(outcomes, [("jobs", Outcome::Deleted), ("other", Outcome::Created)], "{report:?}");
}

#[test]
fn what_was_written_before_a_conflict_over_the_inventory_is_reported_and_recorded_once() {
    let stage = Stage::new(2);
    assert!(stage.deliver(1, &hasty()).is_success());
    (0..2).for_each(|namespace| stage.changed_by_hand(namespace));
    let inventories =
        stage.namespaces.iter().map(|namespace| format!("{namespace}/configmaps/treeswap-set-team"));
    let inventories: Vec<String> = inventories.collect();
    let inventory = &inventories[1];
    stage.proxy.next("PUT", &inventories[0], DENIED); // its ledger is written all the same
    stage.proxy.next("PUT", inventory, CONFLICT);
    let report = stage.deliver(1, &hasty());
    assert!(report.is_success(), "{report:?}");
    let found: Vec<_> = report.targets.iter().map(|target| (target.outcome, target.attempts)).collect();
    assert_eq!(found, [(Outcome::Repaired, 1); 2], "{report:?}");
    for namespace in 0..2 {
        let ledger: BTreeMap<String, String> = data(&stage.object(namespace, "treeswap-ledger-team"));
        let record: Value = serde_json::from_str(&ledger["jobs"]).unwrap();
        assert_eq!(record["outcome"], "repaired", "{record}");
        assert_eq!(record["repairs"].as_array().map(Vec::len), Some(1), "{record}");
    }

    // The first write of the inventory lists what is about to be created.
    stage.proxy.plan("PUT", inventory, 1, 1, CONFLICT);
    let report = stage.deliver(3, &hasty());
    let found: Vec<_> = report.targets.iter().map(|target| target.outcome).collect();
    let each = [Outcome::Deleted, Outcome::Created];
    assert_eq!(found, [each, each].concat(), "{report:?}");
    assert_eq!(stage.proxy.heal(), 0, "every fault was met");
}

#[test]
fn a_namespace_that_cannot_be_read_is_a_failure_though_no_file_feeds_its_configmaps() {
    let namespace = Kubernetes::shared().namespace("records");
    let rules = "config_updater:\n  maps:\n    jobs/*:\n      name: jobs\n";
    let wanted = desired(revision(1), rules, &namespace, &files(&[("elsewhere", "")]));
    let plans: Arc<Plans> = Arc::new([(revision(1), wanted)].into());
    let stranger = load(&[("test", Kubernetes::shared().access("stranger"))]);
    let report = run(Script::at(&plans, revision(1)), &stranger, &options()).unwrap();
    assert_eq!((only(&report).outcome, only(&report).transient), (Outcome::Failed, false), "{report:?}");
    assert!(only(&report).hints[0].contains("grant stranger"), "{report:?}");
}

#[test]
fn the_first_configmap_that_cannot_be_read_ends_the_reads_of_its_namespace() {
    let namespace = Kubernetes::shared().namespace("records");
    clusters(&namespace); // the rights of the user
    let names = ["map-a", "map-b", "map-c"];
    let rules = names.map(|name| (format!("{name}/*"), json!({ "name": name })));
    let rules = json!({ "maps": rules.into_iter().collect::<serde_json::Map<_, _>>() }).to_string();
    let plan = |number: u8| {
        let files = names.map(|name| (format!("{name}/value"), number.to_string()));
        (revision(number), desired(revision(number), &rules, &namespace, &BTreeMap::from(files)))
    };
    let plans: Arc<Plans> = Arc::new([plan(1), plan(2)].into());
    let proxy = Proxy::start(Kubernetes::shared());
    let deliver = |number, options: &Options| {
        let clusters = load(&[("test", proxy.access("writer"))]);
        run(Script::at(&plans, revision(number)), &clusters, options).unwrap()
    };
    assert!(deliver(1, &hasty()).is_success());
    let before = proxy.count("GET", "configmaps/map-");
    proxy.plan("GET", "configmaps/map-", 0, 100, BUSY);
    let report = deliver(2, &Options { concurrency: 1, ..hasty() });
    let outcomes: Vec<_> = report.targets.iter().map(|target| target.outcome).collect();
    assert_eq!(outcomes, [Outcome::Failed; 3], "{report:?}");
    assert_eq!(
        proxy.count("GET", "configmaps/map-") - before,
        2,
        "two tries of the first: {:?}",
        proxy.seen()
    );
}

#[test]
fn however_many_namespaces_there_are_no_more_writes_are_prepared_than_are_to_be_sent_at_once() {
    let stage = Stage::new(3);
    // Each namespace's inventory comes first.
    stage.proxy.plan("POST", "/configmaps", 3, 2, Fault::HoldBefore);
    let report = std::thread::scope(|scope| {
        let delivery = scope.spawn(|| stage.deliver(1, &Options { concurrency: 2, ..hasty() }));
        runtime().block_on(async {
            stage.proxy.held().await;
            stage.proxy.held().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        });
        assert_eq!(stage.proxy.count("POST", "/configmaps"), 5, "{:?}", stage.proxy.seen());
        stage.proxy.release();
        delivery.join().unwrap()
    });
    assert!(report.is_success() && report.targets.len() == 3, "{report:?}");
}

#[test]
fn a_delivery_is_reported_soon_though_the_server_hangs_from_the_shutdown_on() {
    let stage = Stage::new(1);
    let rules = json!([{
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]
    }]);
    Kubernetes::shared().grant_more(&stage.namespaces[0], "writer", &rules);
    stage.proxy.next("POST", "/configmaps", Fault::HoldBefore);
    let (report, time) = stage.deliver_until_held(1, &hasty());
    // How the limits add up is tested beside them; here the machine may be slow, and the server never answers.
    assert!(time < 4 * DRAIN, "the inventory was awaited for {time:?}");
    assert_eq!(only(&report).outcome, Outcome::Skipped, "{report:?}");

    assert!(stage.deliver(1, &hasty()).is_success());
    // The object, the inventory, and the Lease's release.
    let before = stage.proxy.count("PUT", "");
    stage.proxy.plan("PUT", "", 0, 3, Fault::HoldBefore);
    let leases = Some(LeaseOptions::new(Duration::from_secs(60)));
    let (report, time) = stage.deliver_until_held(2, &Options { leases, ..hasty() });
    assert!(time < 4 * DRAIN, "they were awaited for {time:?}");
    assert!(only(&report).why.contains("before the server had answered"), "{report:?}");
    // The last one may come too late on a slow machine.
    assert!(stage.proxy.count("PUT", "") >= before + 2, "{:?}", stage.proxy.seen());
}

#[test]
fn a_namespace_that_no_inventory_can_list_is_refused_before_its_configmaps_are_read() {
    let namespace = Kubernetes::shared().namespace("records");
    clusters(&namespace); // the rights of the user
    let name = |at: usize| format!("a-name-of-a-usual-length-{at}");
    let maps = (0..5_000).map(|at| (format!("jobs-{at}/*"), json!({ "name": name(at) })));
    let rules = json!({ "maps": maps.collect::<serde_json::Map<_, _>>() }).to_string();
    let wanted = desired(revision(1), &rules, &namespace, &files(&[("jobs-0/job", "1")]));
    let plans: Arc<Plans> = Arc::new([(revision(1), wanted)].into());
    let proxy = Proxy::start(Kubernetes::shared());
    let clusters = load(&[("test", proxy.access("writer"))]);
    let report = run(Script::at(&plans, revision(1)), &clusters, &options()).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Refused, "{report:?}");
    assert!(only(&report).hints[0].starts_with("spread "), "{report:?}");
    assert_eq!(proxy.seen().len(), 2, "the inventory and the ledger: {:?}", proxy.seen());
}
