//! The Helm chart, through Helm itself: it lints, what it makes is as good as the manifests, and it refuses
//! what it does not know.

mod values;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_yaml::Value;
use treeswap::configmap::apply::Owner;

use super::ceilings::assert_ceilings_fit;
use super::common::{Ran, run};
use super::{
    assert_accepted, assert_probed, assert_restricted, assert_retries_fit, built, deploy, list, ours,
};

/// Helm, where `tests/cluster/build --helm` puts it.
fn helm() -> PathBuf {
    built("helm", include_str!("../cluster/go.mod"), "helm.sh/helm/v3 v")
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
    made(&words, chart)
}

/// What Helm makes when it is called like this.
fn made(words: &[&str], chart: &Path) -> Vec<(PathBuf, Value)> {
    let made = run_helm(words, chart).expect_ok("helm template").stdout;
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
    for mode in ["CronJob", "Deployment"] {
        let (values, mode) = (format!("--values={}", every_value()), format!("configMaps.mode={mode}"));
        run_helm(&["lint", "--strict", &values, "--set", &mode], &chart()).expect_ok("helm lint");
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
    assert_eq!(assert_retries_fit(&made), 1);
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
        assert_eq!(assert_ceilings_fit(&made), 1);
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
fn the_right_to_find_inventories_is_for_the_name_that_the_program_derives_from_the_owner() {
    let long = "a".repeat(64);
    for name in ["ci", "7a", "Team/A", "ci.example.com", "équipe bleue", "*", "-ci", long.as_str()] {
        let owner = format!("configMaps.options.owner={name}");
        let set: Vec<&str> =
            applier("CronJob").into_iter().chain([owner.as_str(), "configMaps.options.prune=true"]).collect();
        let made = template(&chart(), &set);
        let role = made.iter().find(|(_, one)| one["kind"].as_str() == Some("ClusterRole")).unwrap();
        let named = role.1["rules"][0]["resourceNames"][0].as_str();
        assert_eq!(named, Some(Owner::new(name).unwrap().marker().as_str()), "{name}");
    }
}

/// testdata/chart with ours in it, as `helm dependency update` would do without a repository.
fn their_chart() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/chart");
    run::to_end(Command::new("cp").arg("-rL").arg(&theirs).arg(dir.path())).expect_ok("cp");
    let charts = dir.path().join("chart/charts");
    std::fs::create_dir(&charts).unwrap();
    run::to_end(Command::new("cp").arg("-rL").arg(chart()).arg(&charts)).expect_ok("cp");
    dir
}

#[test]
fn another_chart_gets_its_sidecar() {
    let dir = their_chart();
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
    for arg in [
        "--period=30s",
        "--max-tree-bytes=67108864",
        "--group-write=true",
        "--ssh-key-file=/etc/treeswap/two",
    ] {
        assert!(args.contains(&arg), "{args:?}");
    }
    assert_accepted(&made);
    assert_restricted(&made);
    assert_probed(sidecar);
}

/// Each repository has a mirror, which the volume has to hold besides the others.
#[test]
fn several_repositories_share_the_volume() {
    let dir = their_chart();
    let file = tempfile::NamedTempFile::new().unwrap();
    // A source is a repository and, after a blank, a key of its own.
    let listed = |sources: &[&str]| {
        let places = sources.iter().enumerate().map(|(at, source)| {
            let (repository, key) = source.split_once(' ').unwrap_or((*source, ""));
            let credentials = match key {
                "" => String::new(),
                key => format!(", credentials: {{ssh-key-file: /etc/treeswap/{key}}}"),
            };
            format!("  - {{name: s{at}, repo: 'ssh://h/{repository}', to: s{at}{credentials}}}\n")
        });
        format!("version: 1\nsources:\n{}end: true\n", places.collect::<String>())
    };
    let set = applier("Deployment");
    let set: Vec<&str> = set.into_iter().filter(|one| !one.contains("options.repo=")).collect();
    for (repositories, of_sidecar, of_applier) in [
        (&["a", "a"][..], "256Mi", "400Mi"),
        (&["a", "b"], "128Mi", "200Mi"),
        (&["a", "b", "a", "c"], "85Mi", "133Mi"),
        (&["a", "a key"], "128Mi", "200Mi"),
        (&["a key", "a key"], "256Mi", "400Mi"),
    ] {
        std::fs::write(file.path(), listed(repositories)).unwrap();
        let theirs = format!("treeswap.sources={}", file.path().display());
        let words = ["template", "--set-file", &theirs, "--set", "treeswap.options.repo="];
        let sidecar = made(&words, &dir.path().join("chart"));
        let ours_alone = format!("sources={}", file.path().display());
        let words = ["template", "--namespace=ci", "--set-file", &ours_alone].into_iter();
        let words = words.chain(set.iter().flat_map(|one| ["--set", one]));
        let applier = made(&words.collect::<Vec<_>>(), &chart());
        for (documents, each) in [(sidecar, of_sidecar), (applier, of_applier)] {
            let args = list(ours(&documents)[0].container, "args").to_vec();
            for arg in ["mirror", "fetch"].map(|what| format!("--max-{what}-bytes={each}")) {
                assert!(args.iter().any(|one| one.as_str() == Some(&arg)), "{repositories:?}: {args:?}");
            }
            assert_eq!(assert_ceilings_fit(&documents), 1);
        }
    }
}

const SOURCES: &str =
    "version: 1\nsources:\n  - {name: a, repo: https://git.example.com/a.git, to: a}\nend: true\n";

#[test]
fn several_sources_take_the_place_of_the_repository() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), SOURCES).unwrap();
    let sources = format!("sources={}", file.path().display());
    let more =
        ["node.enabled=true", "refresh.enabled=true", "refresh.claimName=config", "options.period=30s"];
    let words = ["template", "--name-template=ci", "--set-file", &sources];
    let set = more.iter().flat_map(|one| ["--set", one]);
    let documents = made(&words.into_iter().chain(set).collect::<Vec<_>>(), &chart());
    super::assert_reads_its_sources(&documents, "ci-sources");
    assert_eq!(ours(&documents).len(), 2);
    assert_accepted(&documents);
    assert_restricted(&documents);
    // A changed file changes its ConfigMap and no Pod.
    std::fs::write(file.path(), SOURCES.replace("to: a", "to: b")).unwrap();
    let set = more.iter().flat_map(|one| ["--set", one]);
    let changed = made(&words.into_iter().chain(set).collect::<Vec<_>>(), &chart());
    let differ: Vec<_> = documents.iter().zip(&changed).filter(|(one, other)| one != other).collect();
    assert_eq!(differ.len(), 1, "{differ:?}");
    assert_eq!(differ[0].0.1["kind"].as_str(), Some("ConfigMap"));
    // In another chart's Pod.
    let dir = their_chart();
    let sources = format!("treeswap.sources={}", file.path().display());
    let words = ["template", "--name-template=ci", "--set-file", &sources, "--set", "treeswap.options.repo="];
    let documents = made(&words, &dir.path().join("chart"));
    super::assert_reads_its_sources(&documents, "ci-sources");
    assert_accepted(&documents);
    // The ConfigMaps' applier follows them, too.
    let words = ["template", "--name-template=ci", "--set-file"];
    let sources = format!("sources={}", file.path().display());
    let set = applier("CronJob");
    let set = set.iter().filter(|one| !one.contains("options.repo="));
    let set = set.flat_map(|one| ["--set", one]);
    let documents =
        made(&words.into_iter().chain([sources.as_str()]).chain(set).collect::<Vec<_>>(), &chart());
    super::assert_reads_its_sources(&documents, "ci-sources");
    assert_accepted(&documents);
    for (given, set, said) in [
        (
            SOURCES,
            "options.repo=https://git.example.com/x.git",
            "sources and options.repo exclude each other",
        ),
        (&SOURCES[..SOURCES.len() - 11], "options.period=1s", "at '/sources'"),
    ] {
        std::fs::write(file.path(), given).unwrap();
        let words = ["template", "--set-file", &sources, "--set", "node.enabled=true", "--set", set];
        let ran = run_helm(&words, &chart());
        assert!(!ran.ok() && ran.stderr.contains(said), "{set}: {}", ran.stderr);
    }
}

/// The notes. `helm template` leaves them out, and `helm install --dry-run` needs a cluster: here a copy of the chart
/// has them in a ConfigMap.
fn notes(words: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("chart");
    let copied = Command::new("cp").arg("-R").arg(chart()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let notes = std::fs::read_to_string(copy.join("templates/NOTES.txt")).unwrap();
    let template = format!(
        "{{{{- define \"notes\" }}}}{notes}{{{{- end }}}}\nkind: ConfigMap\nnotes: {{{{ include \"notes\" . | toJson }}}}\n"
    );
    std::fs::write(copy.join("templates/notes.yaml"), template).unwrap();
    let words = [&["template", "--name-template=ci", "--show-only=templates/notes.yaml"], words].concat();
    made(&words, &copy)[0].1["notes"].as_str().unwrap().to_owned()
}

#[test]
fn the_notes_name_what_is_followed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), SOURCES).unwrap();
    let set_file = format!("--set-file=sources={}", file.path().display());
    let all = "--set=node.enabled=true,refresh.enabled=true,refresh.claimName=config,configMaps.mode=CronJob,\
               configMaps.options.owner=ci,configMaps.options.rules=/etc/rules/x";
    for (given, followed) in [
        ("--set=options.repo=https://git.example.com/x.git", "https://git.example.com/x.git (HEAD)"),
        (&set_file, "what the ConfigMap ci-sources lists (sources)"),
        ("--set=options.sources=/own/list.yaml", "what /own/list.yaml lists (options.sources)"),
    ] {
        let notes = notes(&[given, all]);
        for line in ["Every node keeps", "The claim config is refreshed with", "The ConfigMaps of"] {
            assert!(notes.contains(&format!("{line} {followed} ")), "{notes}");
        }
    }
    assert!(notes(&[]).contains("No treeswap was deployed"));
}

/// The file that has a value for every key.
fn every_value() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/every-value.yaml").display().to_string()
}

/// Each has a PodMonitor: one that selected by namespace alone would scrape the other's Pods, too.
#[test]
fn two_releases_of_a_namespace_do_not_scrape_each_other() {
    let labels = |release: &str| -> (Value, Value) {
        let name = format!("--name-template={release}");
        let mut words = vec!["template", &name, "--namespace=ci"];
        words.extend(ALL.iter().flat_map(|one| ["--set", one]));
        let made = made(&words, &chart());
        let of =
            |kind: &str| made.iter().find(|(_, one)| one["kind"].as_str() == Some(kind)).unwrap().1.clone();
        let pod = of("DaemonSet")["spec"]["template"]["metadata"]["labels"].clone();
        (of("PodMonitor")["spec"]["selector"]["matchLabels"].clone(), pod)
    };
    let selects = |selector: &Value, pod: &Value| {
        let mut wanted = selector.as_mapping().expect("it selects by labels").iter();
        wanted.all(|(name, value)| pod.get(name) == Some(value))
    };
    let ((monitor, pod), (_, other)) = (labels("one"), labels("two"));
    assert!(selects(&monitor, &pod) && !selects(&monitor, &other), "{monitor:?}");
}

#[test]
fn what_an_applier_can_be_given_is_mounted_and_allowed() {
    let more = [
        "configMaps.rulesConfigMap=rules",
        "configMaps.webhookSecret=hook",
        "configMaps.leasePool=queue/places:3",
        "configMaps.serviceAccountAnnotations.example=yes",
    ];
    let set: Vec<&str> = applier("Deployment").into_iter().chain(more).collect();
    let made = template(&chart(), &set);
    let of = |kind: &str| -> Vec<&Value> {
        made.iter().map(|(_, one)| one).filter(|one| one["kind"].as_str() == Some(kind)).collect()
    };
    assert_eq!(of("ServiceAccount")[0]["metadata"]["annotations"]["example"].as_str(), Some("yes"));
    let pool =
        of("Role").into_iter().find(|role| role["metadata"]["namespace"].as_str() == Some("queue")).unwrap();
    assert_eq!(list(pool, "rules").len(), 1);
    assert_eq!(pool["rules"][0]["resources"][0].as_str(), Some("leases"));
    let found = ours(&made);
    let args: Vec<&str> = list(found[0].container, "args").iter().map(|arg| arg.as_str().unwrap()).collect();
    for arg in ["--lease-pool=queue/places:3", "--webhook-secret-file=/etc/webhook/secret"] {
        assert!(args.contains(&arg), "{args:?}");
    }
    let mounts: Vec<&str> = list(found[0].container, "volumeMounts")
        .iter()
        .map(|one| one["mountPath"].as_str().unwrap())
        .collect();
    assert_eq!(mounts, ["/scratch", "/etc/rules", "/etc/webhook"]);
    let (service, pod) = (&of("Service")[0]["spec"], &of("Deployment")[0]["spec"]["template"]["metadata"]);
    for (name, value) in service["selector"].as_mapping().unwrap() {
        assert_eq!(pod["labels"].get(name), Some(value));
    }
    assert_eq!(service["ports"][0]["targetPort"], found[0].container["ports"][0]["name"]);
    assert_accepted(&made);
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

/// The Pods of CronJobs serve no metrics: an alert that fires where none arrive would fire for ever.
#[test]
fn only_a_release_with_pods_that_are_scraped_has_the_alert_that_none_is() {
    let alerts = |set: &[&str]| -> Vec<String> {
        let made = template(&chart(), &[&["monitoring.alerts=true"], set].concat());
        let rules = made.iter().find(|(_, one)| one["kind"].as_str() == Some("PrometheusRule")).unwrap();
        let groups = list(&rules.1["spec"], "groups").iter();
        let names = groups.flat_map(|group| list(group, "rules")).map(|rule| rule["alert"].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    let absent = |name: &String| name == "TreeswapAbsent";
    let refresh =
        ["options.repo=https://git.example.com/x.git", "refresh.enabled=true", "refresh.claimName=config"];
    let all = alerts(&[]);
    assert!(all.iter().any(absent), "another chart may have the sidecar: {all:?}");
    let others: Vec<String> = all.iter().filter(|name| !absent(name)).cloned().collect();
    for jobs in [&refresh[..], &applier("CronJob")] {
        assert_eq!(alerts(jobs), others, "{jobs:?}");
        for scraped in ["node.enabled=true", "monitoring.podSelector.matchLabels.app=gateway"] {
            assert_eq!(alerts(&[jobs, &[scraped]].concat()), all, "{jobs:?} {scraped}");
        }
    }
    assert_eq!(alerts(&[&refresh[..], &applier("Deployment")].concat()), all);
}
