//! The chart, by Helm itself.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::applier::{MAPS, RULES, commit};
use crate::common::run;
use crate::kube::{self, Kube, eventually};
use crate::machine::limited;
use crate::shop::{Shop, reading_pod};

const NAMESPACE: &str = "chart";

/// Kinds of what a release can consist of.
const KINDS: &str =
    "all,configmaps,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,leases";

/// The values that the guide shows, in a directory of our own and at a quick pace, and what applies ConfigMaps besides.
fn values(shop: &Shop, directory: &Path) -> Value {
    let mut values: Value = serde_yaml::from_str(&shop.shown("# values.yaml")).unwrap();
    assert_eq!(values["node"]["enabled"], true);
    values["node"]["hostPath"] = directory.to_str().into();
    values["options"]["period"] = "1s".into();
    let options = json!({ "owner": "acme", "rules-in-tree": RULES, "period": "1s", "min-interval": "0s" });
    values["configMaps"] = json!({ "mode": "Deployment", "options": options });
    values
}

fn helm(shop: &Shop, words: &[&str]) -> String {
    let mut helm: Command = limited(&shop.programs.helm);
    helm.env("KUBECONFIG", shop.machine.dir.join("kubeconfig")).env("HOME", &shop.dir);
    helm.args(["--namespace", NAMESPACE]).args(words);
    run::to_end(&mut helm).expect_ok(&format!("helm {words:?}")).stdout
}

/// Everything in the namespace, and what belongs to none.
fn objects(kube: &Kube) -> Vec<String> {
    let list = kube.run(&["get", KINDS, "--output=name"]);
    // Of all these only what could be the release's: others make objects that belong to no namespace, too.
    let ours = |name: &&str| !name.starts_with("clusterrole") || name.contains("config-apply");
    let mut names: Vec<String> = list.lines().filter(ours).map(str::to_owned).collect();
    names.sort();
    names
}

/// `helm install` and `helm uninstall`: the notes say how a Pod reads the directory, and a Pod that does so gets each
/// revision; the ConfigMaps are applied with the rights that the chart gives. What is left in the end is what was there
/// before, and what treeswap wrote, which is the applications': the ConfigMaps, and what they are known and written by.
pub fn installed(shop: &Shop) {
    shop.serve();
    let revision = commit(shop, &MAPS);
    let kube = shop.kube.in_new_namespace(NAMESPACE, "privileged");
    // The last thing that a new namespace is given.
    eventually("the namespace has its ConfigMap", || {
        (!kube.get("configmap/kube-root-ca.crt").is_null()).then_some(())
    });
    let before = objects(&kube);
    let directory = shop.dir.join("config");
    let file = shop.dir.join("values.yaml");
    std::fs::write(&file, values(shop, &directory).to_string()).unwrap();
    let chart = shop.dir.join("deploy/helm/treeswap");
    let paths = [chart.to_str().unwrap(), "--values", file.to_str().unwrap()];
    let said = helm(shop, &[&["install", "config"], &paths[..], &["--wait", "--timeout=240s"]].concat());
    let (_, notes) = said.split_once("NOTES:\n").unwrap_or_else(|| panic!("no notes in {said}"));
    shop.say(notes.trim_end().replace('\n', "\n        "));

    let pod = kube.ready("app.kubernetes.io/component=node");
    assert_eq!(kube::container(&kube.get(&format!("pod/{pod}")), "treeswap")["restartCount"], 0);
    let status = ["exec", &pod, "--", "/treeswap", "status", "--json", "/config"];
    let status: Value = serde_json::from_str(&kube.run(&status)).unwrap();
    let generations = status["generations"].as_array().unwrap();
    assert_eq!(generations.len(), 1, "{status}");
    assert!(generations[0].to_string().contains(&revision), "{status}");

    // As the notes say, below a path of the consumer's own.
    let volume =
        notes.lines().find_map(|line| line.trim().strip_prefix("volumes: [{name: config, ")).unwrap();
    kube.apply(&reading_pod("consumer", "..data", volume.strip_suffix("}]").unwrap()));
    let reader = shop.follow(&kube, &kube.ready("app=consumer"), "reader");
    let revision = commit(shop, &MAPS);
    reader.waits_for(shop.newest());
    for (map, _) in MAPS {
        eventually(&format!("{map} is of {revision}"), || {
            let found = crate::applier::revision(&kube.get(&format!("configmap/{map}")))?;
            (found == revision).then_some(())
        });
    }
    eventually("the set is recorded", || {
        let marker = kube.get("configmap/treeswap-set-acme");
        (marker["data"]["_revision"] == *revision).then_some(())
    });
    reader.assert_whole();
    kube.run(&["delete", "pod/consumer", "--wait=true", "--timeout=120s"]);

    helm(shop, &["uninstall", "config", "--wait", "--timeout=240s"]);
    let maps = MAPS.iter().map(|(map, _)| *map).chain(["treeswap-set-acme", "treeswap-ledger-acme"]);
    let mut expected: Vec<String> = maps.map(|map| format!("configmap/{map}")).chain(before).collect();
    expected.push("lease.coordination.k8s.io/treeswap-acme".to_owned());
    expected.sort();
    eventually(&format!("just this is left: {expected:?}"), || (objects(&kube) == expected).then_some(()));
}
