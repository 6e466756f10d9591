//! The Helm chart, through Helm itself: it lints, what it makes is as good as the manifests, and it refuses
//! what it does not know.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_yaml::Value;

use super::common::{Ran, run};
use super::{assert_accepted, assert_probed, assert_restricted, deploy, list, ours};

/// Helm, where `tests/cluster/build --helm` puts it.
fn helm() -> PathBuf {
    let modules = include_str!("../cluster/go.mod");
    let version = modules.lines().find_map(|line| line.trim().strip_prefix("helm.sh/helm/v3 v"));
    let version = version.and_then(|rest| rest.split_whitespace().next()).expect("go.mod names the version");
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let helm = cache.expect("$HOME is set").join(format!("treeswap/helm-{version}/helm"));
    assert!(helm.exists(), "{} is missing; `tests/cluster/build --helm` makes it", helm.display());
    helm
}

fn chart() -> PathBuf {
    deploy().join("helm/treeswap")
}

/// Helm with these words, in an empty home.
fn run_helm(words: &[&str], chart: &Path) -> Ran {
    let home = tempfile::tempdir().unwrap();
    let mut command = run::clean(helm(), home.path());
    run::to_end(command.arg(words[0]).arg(chart).args(&words[1..]))
}

/// What a chart makes, document by document.
fn template(chart: &Path, set: &[&str]) -> Vec<(PathBuf, Value)> {
    let words: Vec<&str> =
        ["template", "--namespace=ci"].into_iter().chain(set.iter().flat_map(|one| ["--set", one])).collect();
    let made = run_helm(&words, chart).expect_ok("helm template").stdout;
    let documents = made.split("---\n").filter(|text| text.contains("kind:"));
    documents
        .map(|text| {
            let source = text.lines().find_map(|line| line.strip_prefix("# Source: ")).unwrap_or("?");
            (
                PathBuf::from(source),
                serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}")),
            )
        })
        .collect()
}

const ALL: [&str; 9] = [
    "options.repo=https://git.example.com/x.git",
    "options.max-tree-bytes=4294967296",
    "credentialsSecret=git",
    "node.enabled=true",
    "refresh.enabled=true",
    "refresh.claimName=config",
    "monitoring.podMonitor=true",
    "monitoring.alerts=true",
    "monitoring.dashboard=true",
];

/// The values that say what deploy/apply does.
fn applier(mode: &'static str) -> [&'static str; 5] {
    [
        "options.repo=https://git.example.com/platform/config.git",
        "options.ref=main",
        "configMaps.options.rules-in-tree=core-services/prow/_plugins.yaml",
        "configMaps.options.owner=platform-config",
        if mode == "CronJob" { "configMaps.mode=CronJob" } else { "configMaps.mode=Deployment" },
    ]
}

#[test]
fn it_lints() {
    for set in [&ALL[..], &applier("CronJob"), &applier("Deployment")] {
        let words = ["lint", "--strict"].into_iter().chain(set.iter().flat_map(|one| ["--set", one]));
        run_helm(&words.collect::<Vec<_>>(), &chart()).expect_ok("helm lint");
    }
}

#[test]
fn what_it_makes_is_as_good_as_the_manifests() {
    let made = template(&chart(), &ALL);
    let kinds: Vec<&str> = made.iter().map(|(_, one)| one["kind"].as_str().unwrap()).collect();
    for kind in ["DaemonSet", "CronJob", "PodMonitor", "PrometheusRule", "ConfigMap"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let found = ours(&made);
    assert_eq!(found.len(), 2, "the node's and the CronJob's");
    let args = list(found.iter().find(|one| !one.container["ports"].is_null()).unwrap().container, "args");
    assert!(args.iter().any(|arg| arg.as_str() == Some("--max-tree-bytes=4294967296")), "{args:?}");
    assert_accepted(&made);
    assert_restricted(&made);
    found.iter().filter(|one| !one.container["ports"].is_null()).for_each(|one| assert_probed(one.container));
}

/// A Pod's template without what differs between a chart and a manifest: names, labels, and the arguments' order.
fn compared(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec.as_mapping_mut().unwrap().remove("serviceAccountName");
    let container = &mut spec["containers"][0];
    for key in ["image", "imagePullPolicy"] {
        container.as_mapping_mut().unwrap().remove(key);
    }
    let args = container["args"].as_sequence_mut().unwrap();
    args[1..].sort_by_key(|arg| arg.as_str().unwrap().to_owned());
    spec
}

#[test]
fn its_appliers_and_their_rights_are_those_of_the_manifests() {
    let documents = super::documents();
    let shipped = |kind: &str| {
        let mut all = documents.iter().filter(|(path, _)| path.parent().unwrap().ends_with("apply"));
        all.find(|(_, one)| one["kind"].as_str() == Some(kind)).unwrap().1.clone()
    };
    for kind in ["CronJob", "Deployment"] {
        let made = template(&chart(), &applier(kind));
        assert_accepted(&made);
        assert_restricted(&made);
        let of = |kind: &str| made.iter().map(|(_, one)| one).find(|one| one["kind"].as_str() == Some(kind));
        let (mine, theirs) = (of(kind).unwrap(), shipped(kind));
        let (pod, their_pod) = (super::pod_spec(mine).unwrap(), super::pod_spec(&theirs).unwrap());
        assert_eq!(compared(pod), compared(their_pod));
        assert_eq!(pod["serviceAccountName"], of("ServiceAccount").unwrap()["metadata"]["name"]);
        assert_eq!(of("RoleBinding").unwrap()["subjects"][0]["name"], pod["serviceAccountName"]);
        assert_eq!(of("Role").unwrap()["rules"], shipped("Role")["rules"]);
        let mut specs = [mine["spec"].clone(), theirs["spec"].clone()];
        for spec in &mut specs {
            match kind {
                "CronJob" => spec["jobTemplate"]["spec"]["template"] = Value::Null,
                _ => {
                    assert_eq!(
                        spec["selector"]["matchLabels"].as_mapping().unwrap().iter().find(|(name, value)| {
                            spec["template"]["metadata"]["labels"].get(name) != Some(value)
                        }),
                        None
                    );
                    (spec["template"], spec["selector"]) = (Value::Null, Value::Null);
                }
            }
        }
        assert_eq!(specs[0], specs[1]);
    }
}

#[test]
fn an_applier_gets_the_rights_that_its_options_need_wherever_the_rules_lead() {
    let more = [
        "configMaps.options.prune=true",
        "configMaps.namespaces={ci,build}",
        "configMaps.kubeconfigsSecret=clusters",
        "credentialsSecret=git",
    ];
    let set: Vec<&str> = applier("CronJob").into_iter().chain(more).collect();
    let made = template(&chart(), &set);
    let of = |kind: &str| -> Vec<&Value> {
        made.iter().map(|(_, one)| one).filter(|one| one["kind"].as_str() == Some(kind)).collect()
    };
    for kind in ["Role", "RoleBinding"] {
        let namespaces: Vec<&str> =
            of(kind).iter().map(|one| one["metadata"]["namespace"].as_str().unwrap()).collect();
        assert_eq!(namespaces, ["ci", "build"]);
    }
    let verbs: Vec<&str> =
        list(&of("Role")[1]["rules"][0], "verbs").iter().map(|verb| verb.as_str().unwrap()).collect();
    assert!(verbs.contains(&"delete"), "{verbs:?}");
    let shipped = super::documents();
    let inventories = shipped.iter().find(|(_, one)| one["kind"].as_str() == Some("ClusterRole")).unwrap();
    assert_eq!(of("ClusterRole")[0]["rules"], inventories.1["rules"]);
    assert_eq!(of("ClusterRoleBinding")[0]["subjects"], of("RoleBinding")[0]["subjects"]);
    let found = ours(&made);
    let args = list(found[0].container, "args");
    assert!(args.iter().any(|arg| arg.as_str() == Some("--kubeconfig-dir=/etc/kubeconfigs")), "{args:?}");
    assert_eq!(list(found[0].container, "volumeMounts").len(), 3);
    assert_accepted(&made);
    assert_restricted(&made);
}

#[test]
fn another_chart_gets_its_sidecar() {
    // As `helm dependency update` would, without a repository.
    let dir = tempfile::tempdir().unwrap();
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/chart");
    run::to_end(Command::new("cp").arg("-rL").arg(&theirs).arg(dir.path())).expect_ok("cp");
    let charts = dir.path().join("chart/charts");
    std::fs::create_dir(&charts).unwrap();
    run::to_end(Command::new("cp").arg("-rL").arg(chart()).arg(&charts)).expect_ok("cp");
    let made = template(&dir.path().join("chart"), &[]);
    let found = ours(&made);
    assert_eq!(found.len(), 1);
    let (pod, sidecar) = (found[0].pod, found[0].container);
    assert_eq!(sidecar["restartPolicy"].as_str(), Some("Always"));
    let volumes: Vec<&str> =
        list(pod, "volumes").iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    for mount in list(sidecar, "volumeMounts") {
        assert!(volumes.contains(&mount["name"].as_str().unwrap()), "{volumes:?}");
    }
    let args: Vec<&str> = list(sidecar, "args").iter().map(|arg| arg.as_str().unwrap()).collect();
    for arg in
        ["--period=30s", "--max-bytes=67108864", "--group-write=true", "--ssh-key-file=/etc/treeswap/two"]
    {
        assert!(args.contains(&arg), "{args:?}");
    }
    assert_accepted(&made);
    assert_restricted(&made);
    assert_probed(sidecar);
}

#[test]
fn it_refuses_what_it_does_not_know() {
    for (set, named) in [
        ("options.maxPin=1m", "maxPin"),
        ("options.root=/elsewhere", "root"),
        ("nodes.enabled=true", "nodes"),
        ("options.repo=", "options.repo"),
        ("configMaps.mode=Job", "configMaps"),
        ("configMaps.mode=CronJob", "configMaps.options.owner"),
        ("configMaps.mode=CronJob,configMaps.options.owner=a", "configMaps.options.rules-in-tree"),
        ("configMaps.options.dry-run=true", "dry-run"),
    ] {
        let words = ["template", "--set", "options.repo=x,node.enabled=true", "--set", set];
        let ran = run_helm(&words, &chart());
        assert!(!ran.ok() && ran.stderr.contains(named), "{set}: {}", ran.stderr);
    }
}

/// A chart cannot name files outside of itself, and Helm complains of links that lead there.
#[test]
fn its_alerts_and_dashboard_are_those_beside_it() {
    for name in ["alerts.yaml", "dashboard.json"] {
        let beside = deploy().join("monitoring").join(name);
        let (mine, theirs) = (std::fs::read(chart().join("files").join(name)), std::fs::read(&beside));
        assert_eq!(mine.unwrap(), theirs.unwrap(), "copy {} into the chart's files/", beside.display());
    }
}
