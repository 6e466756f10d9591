//! What `deploy/` ships and makes, as the API server judges it: every field known, every name and value allowed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::run;
use crate::machine::limited;
use crate::shop::Shop;

/// What of the Prometheus operator's types our objects use.
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

fn operator() -> String {
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

/// Every kind that has Pods, with this label.
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

/// Each manifest, each example, the components on every kind of workload, and the chart with each of its values.
pub fn accepted(shop: &Shop) {
    let kube = shop.kube.namespace("manifests", "privileged");
    kube.apply(&operator());
    kube.run(&["wait", "--for=condition=Established", "--all", "customresourcedefinitions", "--timeout=60s"]);
    // Namespaces that the manifests and testdata/every-value.yaml name.
    for name in ["ci", "on", "120", "122"] {
        kube.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: '{name}'}}}}"));
    }
    let deploy = shop.dir.join("deploy");
    let mut judged = 0;
    let mut judge = |manifests: &str| judged += kube.dry_run(manifests);
    judge(&std::fs::read_to_string(deploy.join("cronjob.yaml")).unwrap());
    for name in ["rbac", "prune", "cronjob", "deployment"] {
        judge(&std::fs::read_to_string(deploy.join(format!("apply/{name}.yaml"))).unwrap());
    }
    for dir in [
        "monitoring",
        "kustomize/node",
        "kustomize/examples/one-service",
        "kustomize/examples/two-places",
        "kustomize/examples/ten-services",
    ] {
        judge(&kube.kustomize(&deploy.join(dir)));
    }
    for (label, component) in [("sidecar", "sidecar"), ("node", "node-volume")] {
        let dir = deploy.join(format!("kustomize/all-{label}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("all.yaml"), workloads(label)).unwrap();
        let text = format!("resources: [all.yaml]\ncomponents: [../components/{component}]\n");
        std::fs::write(dir.join("kustomization.yaml"), text).unwrap();
        let made = kube.kustomize(&dir);
        assert_eq!(made.matches("image: treeswap").count(), 5, "every kind got its container:\n{made}");
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
