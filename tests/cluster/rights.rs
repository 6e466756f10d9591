//! The rights that `deploy/` asks for: enough, and none of them too many.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::apply::Stage;
use crate::common::{Files, World, run};
use crate::kubernetes::{Kubernetes, kubeconfig, text};

/// The documents of `deploy/apply/rbac.yaml`.
fn documents() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/apply/rbac.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    serde_yaml::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap()).collect()
}

/// The rules of the Role.
pub fn shipped() -> Value {
    let role = documents().into_iter().find(|document| document["kind"] == "Role").unwrap();
    role["rules"].clone()
}

/// As it is applied: the service account's own token, in the manifest's namespace.
#[test]
fn the_shipped_role_is_enough_and_no_verb_of_it_is_unused() {
    let kubernetes = Kubernetes::shared();
    let documents = documents();
    let namespace = text(&documents[0]["metadata"]["namespace"]);
    kubernetes.must("POST", "/api/v1/namespaces", Some(&json!({ "metadata": { "name": namespace } })));
    for document in &documents {
        let kind = text(&document["kind"]).to_lowercase();
        let group = if kind == "serviceaccount" { "api/v1" } else { "apis/rbac.authorization.k8s.io/v1" };
        kubernetes.must("POST", &format!("/{group}/namespaces/{namespace}/{kind}s"), Some(document));
    }
    let account = text(&documents[0]["metadata"]["name"]);
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let token = kubernetes.must("POST", &path, Some(&json!({ "spec": {} })))["status"]["token"].clone();
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let mut granted = BTreeSet::new();
    for rule in shipped().as_array().unwrap() {
        let (group, resource) = (text(&rule["apiGroups"][0]), text(&rule["resources"][0]));
        for verb in rule["verbs"].as_array().unwrap().iter().map(text) {
            crate::common::eventually(60, "the grant is in force", || {
                kubernetes.may(&user, &namespace, &verb, &group, &resource, "").then_some(())
            });
            granted.insert((resource.clone(), verb));
        }
    }

    let world = World::new();
    let rules = world.dir().join("plugins.yaml");
    let map = json!({ "name": "map", "clusters": { "test": [namespace] } });
    std::fs::write(&rules, json!({ "config_updater": { "maps": { "*": map } } }).to_string()).unwrap();
    let contexts = [("test", kubernetes.access(token.as_str().unwrap()))];
    let config = kubeconfig(&world.dir().join("kubeconfig"), &contexts);
    for value in ["1", "2"] {
        world.remote.commit(&Files::new().file("key", value));
        let mut command = world.treeswap(&["apply", "--ref=main", "--owner=test", "--repo"]);
        command.arg(&world.remote.path).arg("--rules").arg(&rules).arg("--kubeconfig").arg(&config);
        run::to_end(&mut command).expect_ok("apply with the shipped rights");
        assert_eq!(kubernetes.configmap(&namespace, "map")["data"]["key"], value);
    }
    let requests = kubernetes.requests(&namespace);
    let used: BTreeSet<(String, String)> = requests
        .iter()
        .filter(|request| request.user == user)
        .map(|request| {
            assert!(request.status != 403, "{request:?}");
            (request.resource.clone(), request.verb.clone())
        })
        .collect();
    assert_eq!(used, granted);
}

/// What does not need the right is done, and the one that is missing is named. Only `list` can be done without.
#[test]
fn without_any_one_verb_of_it_a_run_says_which_is_missing() {
    let kubernetes = Kubernetes::shared();
    for (at, rule) in shipped().as_array().unwrap().iter().enumerate() {
        for verb in rule["verbs"].as_array().unwrap() {
            let mut rights = shipped();
            rights[at]["verbs"].as_array_mut().unwrap().retain(|one| one != verb);
            let (verb, resource) = (text(verb), text(&rule["resources"][0]));
            let stage = Stage::new();
            stage.apply(&[]).expect_ok("apply with all rights");
            kubernetes.grant(&stage.namespace, "narrow", &rights);
            // One to make, and others to write over.
            kubernetes.must(
                "DELETE",
                &format!("/api/v1/namespaces/{}/configmaps/beta", stage.namespace),
                None,
            );
            stage.commit("2");
            let ran = run::to_end(&mut stage.command(&[("test", kubernetes.access("narrow"))], &[]));
            let said = format!("{}{}", ran.stdout, ran.stderr);
            let values = stage.values();
            let of = |map: &str| values.get(map).map_or("", String::as_str);
            let (code, expected) = match (&*resource, &*verb) {
                // Without `update` the inventory cannot list the one to make, so it is not made.
                ("configmaps", "get" | "update") => (3, ["1", "", "1"]),
                ("configmaps", "create") => (3, ["2", "", "2"]),
                _ => (0, ["2", "2", "2"]),
            };
            assert_eq!(ran.status.code(), Some(code), "without {verb}:\n{said}");
            assert_eq!(["alpha", "beta", "gamma"].map(of), expected, "without {verb}:\n{said}");
            if code == 3 {
                let missing = format!(
                    "the right to {verb} {resource} in namespace {} is missing for narrow",
                    stage.namespace
                );
                let hint = format!(
                    "hint: grant narrow get, list, create and update on {resource} with a Role and a RoleBinding in {}",
                    stage.namespace
                );
                assert!(said.contains(&missing) && said.contains(&hint), "without {verb}:\n{said}");
            }
            if verb == "list" {
                let mut reads = kubernetes.requests(&stage.namespace);
                reads.retain(|one| one.user == "narrow" && one.verb == "get");
                for map in ["alpha", "beta", "gamma"] {
                    assert!(
                        reads.iter().any(|one| one.name == map),
                        "{map} is not read by its name: {reads:?}"
                    );
                }
            }
        }
    }
}

/// Turns are a courtesy: whatever right to Leases is missing, everything is applied, and it is said once.
#[test]
fn without_a_right_to_leases_everything_is_applied_and_it_is_said_once() {
    let leases = shipped()[1]["verbs"].as_array().unwrap().clone();
    for missing in [None].into_iter().chain(leases.iter().map(Some)) {
        let mut rules = shipped();
        match missing {
            Some(missing) => {
                rules[1]["verbs"] = leases.iter().filter(|verb| *verb != missing).cloned().collect();
            }
            None => drop(rules.as_array_mut().unwrap().remove(1)),
        }
        let stage = Stage::with(&rules);
        for round in ["1", "2"] {
            stage.commit(round);
            let ran = stage.apply(&[]).expect_ok("apply without a right to Leases");
            stage.assert_all(round);
            let said = ran.stderr.lines().filter(|line| line.contains("cannot use Leases to take turns"));
            let said: Vec<&str> = said.collect();
            let verb = missing.map_or("get", |verb| verb.as_str().unwrap());
            // The first run makes the Lease; without the right to update, the next one cannot take it.
            let times = usize::from(!(verb == "update" && round == "1"));
            assert_eq!(said.len(), times, "without {verb}: {}", ran.stderr);
            assert!(said.iter().all(|line| line.contains(&format!("right to {verb} leases"))), "{said:?}");
        }
    }
}
