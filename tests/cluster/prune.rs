//! Namespaces and clusters that no rule names any more: found by their inventories alone, and emptied of what is ours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::common::run::Background;
use crate::common::sidecar::Sidecar;
use crate::common::{Files, Ran, World, eventually, full, run};
use crate::kubernetes::{Access, Kubernetes, kubeconfig};
use crate::proxy::{Fault, Proxy};

/// An installation of its own: other tests' inventories have other names.
struct Installation {
    world: World,
    owner: String,
    namespaces: Vec<String>,
}

/// The rules' targets, as (cluster, namespace).
type Places<'a> = &'a [(&'a str, &'a str)];

impl Installation {
    /// With so many namespaces, and the rights that `deploy/apply` ships for pruning.
    fn new(count: usize) -> Self {
        let kubernetes = Kubernetes::shared();
        let namespaces: Vec<String> = (0..count).map(|_| kubernetes.namespace("prune")).collect();
        let owner = format!("of-{}", namespaces[0]);
        let mut rules = crate::rights::shipped();
        rules[0]["verbs"].as_array_mut().unwrap().push(json!("delete"));
        namespaces.iter().for_each(|namespace| kubernetes.grant(namespace, "pruner", &rules));
        let installation = Self { world: World::new(), owner, namespaces };
        installation.commit("1");
        installation
    }

    /// Grants what `deploy/apply/prune.yaml` does, for this owner.
    fn may_find_inventories(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/apply/prune.yaml");
        let text = std::fs::read_to_string(path).unwrap().replace("platform-config", &self.owner);
        let kubernetes = Kubernetes::shared();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let mut document = Value::deserialize(document).unwrap();
            document["metadata"]["name"] = json!(self.owner);
            if document["kind"] == "ClusterRoleBinding" {
                document["roleRef"]["name"] = json!(self.owner);
                document["subjects"] =
                    json!([{ "kind": "User", "name": "pruner", "apiGroup": "rbac.authorization.k8s.io" }]);
            }
            let kind = document["kind"].as_str().unwrap().to_lowercase();
            let path = format!("/apis/rbac.authorization.k8s.io/v1/{kind}s");
            kubernetes.must("POST", &path, Some(&document));
        }
        let inventory = format!("treeswap-set-{}", self.owner);
        eventually(60, "the grant is in force", || {
            kubernetes.may("pruner", "", "list", "", "configmaps", &inventory).then_some(())
        });
        assert!(!kubernetes.may("pruner", "", "list", "", "configmaps", ""), "and nothing else is shown");
    }

    fn commit(&self, value: &str) {
        self.world.remote.commit(&Files::new().file("map/value", value));
    }

    fn command(
        &self,
        verb: &str,
        contexts: &[(&str, Access)],
        places: Places<'_>,
        more: &[&str],
    ) -> std::process::Command {
        let mut clusters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        places.iter().for_each(|(cluster, namespace)| clusters.entry(cluster).or_default().push(namespace));
        let maps = json!({ "maps": { "map/*": { "name": "map", "clusters": clusters } } });
        let rules = self.world.dir().join("rules.yaml");
        std::fs::write(&rules, maps.to_string()).unwrap();
        let mut command = self.world.treeswap(&[verb, "--ref=main", "--repo"]);
        command.arg(&self.world.remote.path).arg(format!("--owner={}", self.owner)).arg("--rules").arg(rules);
        command.arg("--kubeconfig").arg(kubeconfig(&self.world.dir().join("kubeconfig"), contexts));
        command.args(more);
        command
    }

    fn apply(&self, places: Places<'_>, more: &[&str]) -> Ran {
        let access = Kubernetes::shared().access("pruner");
        let mut names: BTreeSet<&str> = places.iter().map(|(cluster, _)| *cluster).collect();
        names.extend(["east", "west"]);
        let contexts: Vec<_> = names.into_iter().map(|name| (name, access.clone())).collect();
        run::to_end(&mut self.command("apply", &contexts, places, &[&["--output=lines"], more].concat()))
    }

    /// Makes an inventory as anybody can who may create ConfigMaps there, with what is to be read on ours.
    fn plant(&self, namespace: &str, data: &Value) {
        let annotations = json!({ "treeswap.dev/owner": self.owner, "treeswap.dev/cluster": "east" });
        let inventory = json!({ "metadata": { "annotations": annotations }, "data": data });
        Kubernetes::shared().put(namespace, &format!("treeswap-set-{}", self.owner), inventory);
    }

    /// The names of what is in a namespace.
    fn names(&self, namespace: &str) -> Vec<String> {
        Kubernetes::shared().configmaps(namespace).into_keys().collect()
    }

    /// What a namespace holds after a run: the map, the ledger and the inventory.
    fn all_names(&self) -> Vec<String> {
        vec![
            "map".to_owned(),
            format!("treeswap-ledger-{}", self.owner),
            format!("treeswap-set-{}", self.owner),
        ]
    }
}

#[track_caller]
fn ends(ran: &Ran, code: i32, words: &[&str]) {
    let all = format!("{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.status.code(), Some(code), "{all}");
    words.iter().for_each(|word| assert!(all.contains(word), "{word:?} is not in\n{all}"));
}

#[test]
fn a_namespace_that_no_rule_names_any_more_is_pruned_from_its_inventory() {
    let installation = Installation::new(2);
    let [a, b] = [installation.namespaces[0].as_str(), installation.namespaces[1].as_str()];
    let (both, only_a): (Places<'_>, Places<'_>) = (&[("east", a), ("east", b)], &[("east", a)]);
    ends(&installation.apply(both, &[]), 0, &["2 created"]);
    // One that only looks like ours: no inventory names it.
    let labels =
        json!({ "treeswap.dev/owner": installation.owner, "app.kubernetes.io/managed-by": "treeswap" });
    let looks = json!({ "metadata": { "labels": labels }, "data": { "mine": "1" } });
    Kubernetes::shared().put(b, "stray", looks);
    let before = Kubernetes::shared().versions(b);
    ends(&installation.apply(only_a, &[]), 0, &["1 unchanged"]);
    // Without the right to find inventories it says so, and does the rest.
    let missing = format!("cannot list the ConfigMaps treeswap-set-{} of all namespaces", installation.owner);
    ends(&installation.apply(only_a, &["--prune"]), 0, &["1 unchanged", "not pruned", &missing]);
    installation.may_find_inventories();
    ends(&installation.apply(both, &["--prune"]), 0, &["2 unchanged"]);
    let deleted = format!("east/{b}/map: to be deleted: no rule names it any more -value");
    ends(&installation.apply(only_a, &["--prune", "--dry-run"]), 4, &[&deleted, "1 unchanged"]);
    ends(
        &installation.apply(only_a, &["--prune", "--max-prune=49"]),
        3,
        &["map: refused", "1 of 2", "--max-prune=100"],
    );
    assert_eq!(Kubernetes::shared().versions(b), before, "nothing was written");
    ends(&installation.apply(only_a, &["--prune"]), 0, &["1 deleted", "1 unchanged"]);
    assert_eq!(installation.names(b), ["stray"]);
    assert_eq!(installation.names(a), installation.all_names());
    let before = Kubernetes::shared().versions(a);
    ends(&installation.apply(only_a, &["--prune"]), 0, &["1 unchanged"]);
    assert_eq!(Kubernetes::shared().versions(a), before);
    // It comes back as if it had never been there.
    ends(&installation.apply(both, &["--prune"]), 0, &["1 created", "1 unchanged"]);
}

#[test]
fn a_cluster_that_no_rule_names_any_more_is_pruned_and_two_names_of_one_server_do_not_prune_each_other() {
    let installation = Installation::new(2);
    let [a, b] = [installation.namespaces[0].as_str(), installation.namespaces[1].as_str()];
    installation.may_find_inventories();
    ends(
        &installation.apply(&[("east", a), ("west", b)], &["--prune", "--max-prune=100"]),
        0,
        &["2 created"],
    );
    ends(
        &installation.apply(&[("east", a), ("west", b)], &["--prune", "--max-prune=100"]),
        0,
        &["2 unchanged"],
    );
    // It would lose all that it has.
    let only_a: Places<'_> = &[("east", a)];
    ends(
        &installation.apply(only_a, &["--prune"]),
        3,
        &[&format!("west/{b}/map: refused"), "1 of 1", "1 unchanged"],
    );
    assert_eq!(installation.names(b), installation.all_names());
    ends(&installation.apply(only_a, &["--prune", "--max-prune=100"]), 0, &["1 deleted", "1 unchanged"]);
    assert!(installation.names(b).is_empty());
    assert_eq!(installation.names(a), installation.all_names());
    // An unreachable cluster that no rule names is no failure.
    let mut gone = Kubernetes::shared().access("pruner");
    gone.server = "https://127.0.0.1:1".into(); // nobody listens there
    let contexts = [("east", Kubernetes::shared().access("pruner")), ("gone", gone)];
    let ran =
        run::to_end(&mut installation.command("apply", &contexts, only_a, &["--prune", "--output=lines"]));
    ends(
        &ran,
        0,
        &[
            "1 unchanged",
            "cluster gone: no rule names it, and it is not known whether it has ConfigMaps of this owner",
        ],
    );
}

#[test]
fn what_another_repository_wrote_under_the_same_owner_is_left() {
    let installation = Installation::new(2);
    let [a, b] = [installation.namespaces[0].as_str(), installation.namespaces[1].as_str()];
    installation.may_find_inventories();
    let other =
        Installation { world: World::new(), owner: installation.owner.clone(), namespaces: Vec::new() };
    other.commit("of another repository");
    ends(&other.apply(&[("east", b)], &[]), 0, &["1 created"]);
    ends(&installation.apply(&[("east", a)], &[]), 0, &["1 created"]);
    let before = Kubernetes::shared().versions(b);
    let refused = format!("east/{b}/map: refused: its recorded revision");
    ends(
        &installation.apply(&[("east", a)], &["--prune"]),
        3,
        &[&refused, "does not exist at the remote", "--owner", "1 unchanged"],
    );
    assert_eq!(Kubernetes::shared().versions(b), before);
}

#[test]
fn two_rule_sets_of_one_repository_under_one_owner_do_not_prune_each_other() {
    let installation = Installation::new(3);
    let [a, b, c] = [0, 1, 2].map(|at| installation.namespaces[at].as_str());
    installation.may_find_inventories();
    ends(&installation.apply(&[("east", a), ("east", c)], &["--prune"]), 0, &["2 created"]);
    let before = [a, c].map(|namespace| Kubernetes::shared().versions(namespace));
    // A second, unrelated rule set under the same owner, then the first one again.
    let said = format!("refused: another rule set uses the owner {}:", installation.owner);
    let hint = "hint: give each rule set an --owner of its own";
    let refused = [format!("east/{a}/map: {said}"), format!("east/{c}/map: {said}")];
    ends(
        &installation.apply(&[("east", b)], &["--prune"]),
        3,
        &[&refused[0], &refused[1], hint, "1 created"],
    );
    let first: Places<'_> = &[("east", a), ("east", c)];
    let refused = format!("east/{b}/map: {said}");
    ends(&installation.apply(first, &["--prune", "--dry-run"]), 3, &[&refused, hint, "2 unchanged"]);
    ends(&installation.apply(first, &["--prune"]), 3, &[&refused, hint, "2 unchanged"]);
    assert_eq!([a, c].map(|namespace| Kubernetes::shared().versions(namespace)), before);
    assert_eq!(installation.names(b), installation.all_names());
    // Changed rules recognize their predecessors: c may be pruned.
    let deleted = format!("east/{c}/map: to be deleted: no rule names it any more");
    ends(&installation.apply(&[("east", a)], &["--prune", "--dry-run"]), 3, &[&deleted, &refused]);
    // --max-prune=100 overrides the refusal.
    ends(&installation.apply(first, &["--prune", "--max-prune=100"]), 0, &["1 deleted", "2 unchanged"]);
}

#[test]
fn an_inventory_that_anybody_made_elsewhere_stops_nothing_where_rules_name_the_namespace() {
    let installation = Installation::new(2);
    let [a, b] = [installation.namespaces[0].as_str(), installation.namespaces[1].as_str()];
    let closed = Kubernetes::shared().namespace("prune");
    installation.may_find_inventories();
    let only_a: Places<'_> = &[("east", a)];
    ends(&installation.apply(only_a, &["--prune"]), 0, &["1 created"]);
    // The remote does not have its revision.
    installation.plant(b, &json!({ "_revision": "b".repeat(40) }));
    installation.commit("2");
    ends(&installation.apply(only_a, &["--prune", "--on-rewind=hold"]), 0, &["1 replaced"]);
    assert!(installation.names(b).is_empty(), "it listed nothing");
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{b}/leases");
    let leases = Kubernetes::shared().must("GET", &leases, None);
    assert_eq!(leases["items"], json!([]), "nobody waits for the holder of a Lease there");
    // We have no right there.
    installation.plant(&closed, &json!({}));
    installation.commit("3");
    let unread =
        |namespace: &str| format!("no rule names {namespace}, and nothing of its inventory is pruned");
    let ran = installation.apply(only_a, &["--prune"]);
    ends(&ran, 0, &["1 replaced", &unread(&closed), "the right to get configmaps in"]);
    // The ledger beside it is not ours.
    let ledger = format!("treeswap-ledger-{}", installation.owner);
    Kubernetes::shared().put(b, &ledger, json!({}));
    installation.plant(b, &json!({}));
    let ran = installation.apply(only_a, &["--prune"]);
    ends(&ran, 0, &["1 unchanged", &unread(b), "has another owner"]);
    Kubernetes::shared().must("DELETE", &format!("/api/v1/namespaces/{b}/configmaps/{ledger}"), None);
    // It lists more than the rules name.
    let listed = ["x", "y"].map(|name| {
        let ours = json!({ "metadata": { "annotations": { "treeswap.dev/owner": installation.owner } } });
        let uid = Kubernetes::shared().put(b, name, ours)["metadata"]["uid"].clone();
        let entry = json!({ "digest": "", "uid": uid, "resourceVersion": "", "revision": "" });
        (name, entry.to_string())
    });
    installation.plant(b, &json!(BTreeMap::from(listed)));
    installation.commit("4");
    let refused = ["x", "y"].map(|name| format!("east/{b}/{name}: refused: 2 of 3 ConfigMaps"));
    ends(&installation.apply(only_a, &["--prune"]), 3, &["1 replaced", &refused[0], &refused[1]]);
    assert_eq!(installation.names(b).len(), 3, "nothing was deleted");
    // Nor does it keep a process without a root from being ready.
    let contexts = [("east", Kubernetes::shared().access("pruner"))];
    let more = ["--prune", "--http-bind=127.0.0.1:0"];
    let sync = Sidecar::of(&installation.world, &mut installation.command("sync", &contexts, only_a, &more));
    eventually(60, "it is ready", || {
        sync.ask("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200 ")).then_some(())
    });
    let open = sync.status()["applied"]["open"].to_string();
    assert!(open.contains(&refused[0]), "{open}");
}

/// A ConfigMap that is left out stays as it is, also if it was split before: its parts go once it fits.
#[test]
fn the_parts_of_a_configmap_that_is_left_out_are_not_pruned() {
    let installation = Installation::new(1);
    let a = installation.namespaces[0].as_str();
    installation.may_find_inventories();
    let places: Places<'_> = &[("east", a)];
    let half = "x".repeat(600_000);
    let files = Files::new().file("map/a", half.as_str()).file("map/b", half.as_str());
    installation.world.remote.commit(&files);
    ends(&installation.apply(places, &["--oversize=grow"]), 0, &["created"]);
    let parts = || {
        let mut all = Kubernetes::shared().versions(a);
        all.retain(|name, _| name.starts_with("map"));
        all
    };
    let grown = parts();
    assert!(grown.len() > 1, "{grown:?}");
    let part = grown.keys().find(|name| *name != "map").unwrap();
    let left = format!("{part}: left: it may be a part of map, which is left out");
    let skip = ["--oversize=skip", "--prune", "--max-prune=100"];
    for _ in 0..2 {
        ends(&installation.apply(places, &skip), 0, &[&left]);
        assert_eq!(parts(), grown);
    }
    installation.commit("1");
    ends(&installation.apply(places, &skip), 0, &["deleted"]);
    assert_eq!(installation.names(a), installation.all_names());
}

/// The rules change before whoever was killed is run again: nothing of what it made is left behind.
#[test]
fn nothing_that_was_made_before_a_kill_is_stranded_when_the_rules_change() {
    let installation = Installation::new(2);
    let [a, b] = [installation.namespaces[0].as_str(), installation.namespaces[1].as_str()];
    installation.may_find_inventories();
    ends(&installation.apply(&[("east", a)], &[]), 0, &["1 created"]);
    let both: Places<'_> = &[("east", a), ("east", b)];
    let counter = Proxy::start(Kubernetes::shared());
    let contexts = [("east", counter.access("pruner"))];
    // Without a Lease: a killed holder's Lease would delay the next run and shift the requests at which runs are killed.
    let alone = "--lease-duration=0s";
    run::to_end(&mut installation.command("apply", &contexts, both, &[alone, "--concurrency=1"]))
        .expect_ok("a run that is not killed");
    let requests = counter.seen().len();
    let prune = || installation.apply(&[("east", a)], &[alone, "--prune"]);
    ends(&prune(), 0, &["1 deleted"]);
    let mut made = 0;
    for at in (0..requests).step_by(if full() { 1 } else { 3 }) {
        for fault in [Fault::HoldBefore, Fault::HoldAfter] {
            let proxy = Proxy::start(Kubernetes::shared());
            proxy.plan("", "/", at, 1, fault);
            let contexts = [("east", proxy.access("pruner"))];
            let mut command = installation.command("apply", &contexts, both, &[alone, "--concurrency=1"]);
            let mut killed = Background::start(&mut command, &installation.world.dir().join("killed.log"));
            eventually(120, "it is at that request, or done without one", || {
                (proxy.seen().len() > at || !killed.is_running()).then_some(())
            });
            killed.child.kill().unwrap();
            killed.child.wait().unwrap();
            drop(proxy);
            made += usize::from(!Kubernetes::shared().configmap(b, "map").is_null());
            let ran = prune();
            assert!(ran.ok(), "killed at {at}: {}{}", ran.stdout, ran.stderr);
            assert_eq!(installation.names(b), Vec::<String>::new(), "killed at {at}: {}", ran.stdout);
        }
    }
    assert!(made > 0, "some were killed after they had made it");
}
