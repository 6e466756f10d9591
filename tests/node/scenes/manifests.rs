//! What `deploy/` ships and makes, as the API server judges it: every field known, every name and value allowed.
//! Objects of the Prometheus operator are judged by our own copy of the fields that they use.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::run;
use crate::machine::limited;
use crate::shop::Shop;

/// The fields of the Prometheus operator's types that our objects use. It is our own copy, so that the server finds a
/// misspelt field or a wrong type, but not that the operator's definitions differ.
const OPERATOR: &str = r#"
- kind: PodMonitor
  names: {plural: podmonitors, singular: podmonitor, kind: PodMonitor}
  spec:
    selector: {type: object, x-kubernetes-preserve-unknown-fields: true}
    namespaceSelector: {type: object, properties: {any: {type: boolean}}}
    podMetricsEndpoints:
      type: array
      items: {type: object, properties: {port: {type: string}, path: {type: string}, interval: {type: string}}}
- kind: PrometheusRule
  names: {plural: prometheusrules, singular: prometheusrule, kind: PrometheusRule}
  spec:
    groups:
      type: array
      items:
        type: object
        properties:
          name: {type: string}
          rules:
            type: array
            items:
              type: object
              properties:
                alert: {type: string}
                expr: {type: string}
                for: {type: string}
                labels: {type: object, additionalProperties: {type: string}}
                annotations: {type: object, additionalProperties: {type: string}}
"#;

fn prometheus_operator_crds() -> String {
    let kinds: Vec<Value> = serde_yaml::from_str(OPERATOR).unwrap();
    let definition = |kind: &Value| {
        let (group, plural) = ("monitoring.coreos.com", kind["names"]["plural"].as_str().unwrap());
        let spec = json!({"type": "object", "properties": kind["spec"]});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let spec =
            json!({"group": group, "names": kind["names"], "scope": "Namespaced", "versions": [version]});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
               "metadata": {"name": format!("{plural}.{group}")}, "spec": spec})
        .to_string()
    };
    kinds.iter().map(definition).collect::<Vec<_>>().join("\n---\n")
}

/// One workload of each kind that the components patch, with this label.
fn workloads(label: &str) -> String {
    let mut text = String::new();
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"] {
        let name = kind.to_lowercase();
        let labels = json!({"app": name});
        let restart = if kind.ends_with("Job") { "Never" } else { "Always" };
        let mount = json!([{"name": "config", "mountPath": "/config", "readOnly": true}]);
        let containers = json!([{"name": "reader", "image": "example.com/reader:1", "volumeMounts": mount}]);
        let pod = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": restart, "containers": containers}});
        let spec = match kind {
            "CronJob" => json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": pod}}}),
            "Job" => json!({"template": pod}),
            "StatefulSet" => {
                json!({"serviceName": "x", "selector": {"matchLabels": labels}, "template": pod})
            }
            _ => json!({"selector": {"matchLabels": labels}, "template": pod}),
        };
        let group = if kind.ends_with("Job") { "batch" } else { "apps" };
        let object = json!({"apiVersion": format!("{group}/v1"), "kind": kind,
                            "metadata": {"name": name, "labels": {"treeswap": label}}, "spec": spec});
        let _ = writeln!(text, "{object}\n---");
    }
    text
}

fn template(shop: &Shop, words: &[&str]) -> String {
    let mut helm: Command = limited(&shop.programs.helm);
    helm.env("HOME", &shop.dir).arg("template").args(words);
    run::to_end(&mut helm).expect_ok(&format!("helm template {words:?}")).stdout
}

/// Everything in a directory of `deploy/`; sorted.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    assert!(!entries.is_empty(), "{} is empty", dir.display());
    entries
}

/// How a component is used: the label of its workloads, the components in order, and what it adds to each workload.
fn usage(component: &str) -> (&'static str, &'static [&'static str], &'static str) {
    match component {
        "node-volume" => ("node", &["node-volume"], "name: wait-for-config"),
        "sidecar" => ("sidecar", &["sidecar"], "image: treeswap"),
        "sources" => ("sidecar", &["sidecar", "sources"], "name: TREESWAP_SOURCES"),
        other => panic!("what does the component {other} add to a workload?"),
    }
}

/// Each manifest, each example, each component on every kind of workload, and the chart with each of its values.
pub fn accepted(shop: &Shop) {
    let kube = shop.kube.in_new_namespace("manifests", "privileged");
    kube.apply(&prometheus_operator_crds());
    kube.run(&["wait", "--for=condition=Established", "--all", "customresourcedefinitions", "--timeout=60s"]);
    // Namespaces that the manifests and testdata/every-value.yaml name.
    for name in ["ci", "on", "120", "122"] {
        kube.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: '{name}'}}}}"));
    }
    let deploy = shop.dir.join("deploy");
    let mut judged = 0;
    let mut judge = |manifests: &str| judged += kube.dry_run(manifests);
    judge(&std::fs::read_to_string(deploy.join("cronjob.yaml")).unwrap());
    for manifest in entries(&deploy.join("apply")) {
        judge(&std::fs::read_to_string(manifest).unwrap());
    }
    let dirs = [deploy.join("monitoring"), deploy.join("kustomize/node")].into_iter();
    for dir in dirs.chain(entries(&deploy.join("kustomize/examples"))) {
        judge(&kube.kustomize(&dir));
    }
    for component in entries(&deploy.join("kustomize/components")) {
        let component = component.file_name().unwrap().to_str().unwrap();
        let (label, components, added) = usage(component);
        let dir = deploy.join(format!("kustomize/all-{component}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("all.yaml"), workloads(label)).unwrap();
        let components: Vec<String> = components.iter().map(|name| format!("../components/{name}")).collect();
        let text = format!("resources: [all.yaml]\ncomponents: [{}]\n", components.join(", "));
        std::fs::write(dir.join("kustomization.yaml"), text).unwrap();
        let made = kube.kustomize(&dir);
        assert_eq!(made.matches(added).count(), 5, "{component}: every kind got it:\n{made}");
        judge(&made);
    }
    let chart = deploy.join("helm/treeswap");
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/every-value.yaml");
    let long = "a23456789-".repeat(6);
    let (chart, values) = (chart.to_str().unwrap(), values.to_str().unwrap());
    for (release, mode) in [("123", "Deployment"), ("n", "CronJob"), (&long[..53], "CronJob")] {
        let mode = format!("--set=configMaps.mode={mode}");
        let words = [release, chart, "--namespace=on", "--values", values, &mode];
        judge(&template(shop, &[&words[..], &["--set=nameOverride="]].concat()));
        judge(&template(shop, &words));
    }
    assert!(judged > 80, "{judged}");
    shop.say(format!("{judged} objects"));
}
