//! What `deploy/` ships parses, keeps to the restricted profile, and uses only options that the binary accepts.

#[path = "../common/mod.rs"]
mod common;

mod ceilings;
mod chart;
mod dockerfile;
mod image;
mod monitoring;
mod release;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize as _;
use serde_yaml::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_treeswap");

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// A program of others, where `tests/cluster/build --NAME` puts it: by the version of the module that go.mod names.
fn built(name: &str, modules: &str, module: &str) -> PathBuf {
    let version = modules.lines().find_map(|line| line.trim().strip_prefix(module));
    let version = version.and_then(|rest| rest.split_whitespace().next()).expect("go.mod names the version");
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let program = cache.expect("$HOME is set").join(format!("treeswap/{name}-{version}/{name}"));
    assert!(program.exists(), "{} is missing; `tests/cluster/build --{name}` makes it", program.display());
    program
}

/// Adds the files with this extension.
fn files_of(dir: &Path, extension: &str, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // A chart's templates are no YAML; the chart's tests look at what they make.
            if !path.ends_with("helm") {
                files_of(&path, extension, into);
            }
        } else if path.extension().is_some_and(|its| its == extension) {
            into.push(path);
        }
    }
}

fn documents() -> Vec<(PathBuf, Value)> {
    let mut files = Vec::new();
    files_of(&deploy(), "yaml", &mut files);
    assert!(files.len() >= 5, "deploy/ lost its manifests: {files:?}");
    let mut documents = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let value =
                Value::deserialize(document).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            documents.push((path.clone(), value));
        }
    }
    documents
}

/// The Pod spec of a Deployment, DaemonSet or CronJob, if the document is one.
fn pod_spec(document: &Value) -> Option<&Value> {
    match document["kind"].as_str()? {
        "Deployment" | "DaemonSet" | "CronJob" => Some(&pod_template(document)["spec"]),
        _ => None,
    }
}

/// Where a workload says what its Pods are.
fn pod_template(document: &Value) -> &Value {
    match document["kind"].as_str() {
        Some("CronJob") => &document["spec"]["jobTemplate"]["spec"]["template"],
        _ => &document["spec"]["template"],
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_sequence().map_or(&[], Vec::as_slice)
}

/// A container that runs our image.
struct Ours<'a> {
    /// Where it is written.
    at: String,
    pod: &'a Value,
    container: &'a Value,
}

/// Every container of these documents that runs our image.
fn ours<'a>(documents: &'a [(PathBuf, Value)]) -> Vec<Ours<'a>> {
    let mut found = Vec::new();
    for (path, document) in documents {
        let Some(pod) = pod_spec(document) else { continue };
        for container in list(pod, "initContainers").iter().chain(list(pod, "containers")) {
            let image = container["image"].as_str().unwrap_or_default();
            if image == "treeswap" || image.contains("/treeswap:") {
                found.push(Ours { at: path.display().to_string(), pod, container });
            }
        }
    }
    found
}

/// `KEY=value` literals of the ConfigMap that an example of one repository generates under this name.
fn example_variables(documents: &[(PathBuf, Value)], map: &str) -> Vec<(String, String)> {
    let generators = documents.iter().flat_map(|(_, document)| list(document, "configMapGenerator"));
    let follows = |literal: &Value| literal.as_str().is_some_and(|text| text.starts_with("TREESWAP_REPO="));
    let mut generators = generators.filter(|generator| {
        generator["name"].as_str() == Some(map) && list(generator, "literals").iter().any(follows)
    });
    let generator = generators.next().unwrap_or_else(|| panic!("no example generates {map}"));
    list(generator, "literals")
        .iter()
        .map(|literal| {
            let (name, value) = literal.as_str().unwrap().split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

/// In a Pod the cluster is the Pod's own; here it takes a kubeconfig to name one.
const KUBECONFIG: &str = "{clusters: [{name: c, cluster: {server: 'https://c'}}], users: [{name: u}], \
                          contexts: [{name: default, context: {cluster: c, user: u}}], current-context: default}";

/// Fails unless the binary accepts how the containers of these documents call it.
fn assert_accepted(documents: &[(PathBuf, Value)]) {
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
    // What a Secret holds in a Pod; nothing is asked of the rest before there is a network.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "a secret of some length\n").unwrap();
    let secret = format!("--webhook-secret-file={}", file.path().display());
    let empty = tempfile::tempdir().unwrap();
    let directory = format!("--kubeconfig-dir={}", empty.path().display());
    // `check` reads what a mounted ConfigMap has.
    let listed = documents.iter().find_map(|(_, one)| one["data"]["sources.yaml"].as_str());
    let sources = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(sources.path(), listed.unwrap_or_default()).unwrap();
    let sources_flag = format!("--sources={}", sources.path().display());
    for Ours { at, container, .. } in ours(documents) {
        let args = list(container, "args").iter().map(|arg| arg.as_str().unwrap());
        let args: Vec<&str> = args
            .map(|arg| match arg.split_once('=') {
                Some(("--webhook-secret-file", _)) => secret.as_str(),
                Some(("--kubeconfig-dir", _)) => directory.as_str(),
                Some(("--sources", _)) => sources_flag.as_str(),
                _ => arg,
            })
            .collect();
        let mut command = Command::new(BINARY);
        command.env_clear();
        match args[0] {
            "sync" if args.iter().any(|arg| arg.starts_with("--owner=")) => {
                command.arg("check").args(&args[1..]).arg("--kubeconfig").arg(kubeconfig.path())
            }
            "sync" => command.arg("check").args(&args[1..]),
            // It has no offline check: help is printed once everything before it was accepted.
            "apply" => command.arg("apply").args(&args[1..]).arg("--help"),
            // What it would wait for is not here; without waiting it says so.
            "pin" => command.arg("pin").args(args[1..].iter().filter(|arg| !arg.starts_with("--wait="))),
            other => panic!("{at}: no test knows how to try `treeswap {other}`"),
        };
        for variable in list(container, "env") {
            match variable["name"].as_str().unwrap() {
                name @ "TREESWAP_SOURCES" => command.env(name, sources.path()),
                name => command.env(name, variable["value"].as_str().unwrap()),
            };
        }
        for source in list(container, "envFrom") {
            command.envs(example_variables(documents, source["configMapRef"]["name"].as_str().unwrap()));
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match args[0] {
            "sync" | "apply" => assert!(output.status.success() && !said.contains("unknown"), "{at}: {said}"),
            _ => assert!(said.contains("no generation is published"), "{at}: {said}"),
        }
    }
}

#[test]
fn the_binary_accepts_every_option_that_the_manifests_use() {
    let documents = documents();
    assert_eq!(
        ours(&documents).len(),
        8,
        "the sidecar and who waits for the node's, each for CronJobs, too; the node's, the appliers, the CronJob"
    );
    assert_accepted(&documents);
}

#[test]
fn an_option_that_does_not_exist_would_be_noticed() {
    let output = Command::new(BINARY)
        .env_clear()
        .args(["check", "--repo=https://git.example.com/x.git", "--root=/config", "--no-such-option=1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    for wrong in ["--no-such-option=1", "--timeout=soon"] {
        let output = Command::new(BINARY).env_clear().args(["apply", wrong, "--help"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

/// Fails unless our containers keep to the restricted Pod security level; what owns a hostPath may be root, without
/// capabilities.
fn assert_restricted(documents: &[(PathBuf, Value)]) {
    for Ours { at, pod, container } in ours(documents) {
        let context = &container["securityContext"];
        let host_path = list(pod, "volumes").iter().any(|volume| !volume["hostPath"].is_null());
        let writes = list(container, "volumeMounts").iter().any(|mount| {
            mount["name"].as_str() == Some("config") && mount["readOnly"].as_bool() != Some(true)
        });
        let user = if host_path && writes { 0 } else { 65532 };
        assert_eq!(context["runAsUser"].as_u64(), Some(user), "{at}");
        assert_eq!(context["runAsNonRoot"].as_bool().unwrap_or(false), user != 0, "{at}");
        assert_eq!(context["allowPrivilegeEscalation"].as_bool(), Some(false), "{at}");
        assert_eq!(context["readOnlyRootFilesystem"].as_bool(), Some(true), "{at}");
        assert_eq!(context["capabilities"]["drop"][0].as_str(), Some("ALL"), "{at}");
        assert!(context["capabilities"]["add"].is_null() && context["privileged"].is_null(), "{at}");
        assert_eq!(context["seccompProfile"]["type"].as_str(), Some("RuntimeDefault"), "{at}");
        assert!(container["resources"]["limits"]["memory"].as_str().is_some(), "{at}");
    }
}

#[test]
fn our_containers_keep_to_the_restricted_profile() {
    let documents = documents();
    assert_restricted(&documents);
    for Ours { at, pod, container } in ours(&documents) {
        if container["args"][0].as_str() == Some("sync") {
            assert_eq!(pod["enableServiceLinks"].as_bool(), Some(false), "{at}");
        }
    }
}

/// Fails unless what keeps a root all the time is probed as it should be; `subcommand` aside, these are its probes
/// wherever it is deployed.
fn assert_probed(container: &Value) {
    assert_alive(container);
    let words: Vec<&str> = list(&container["startupProbe"]["exec"], "command")
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect();
    assert_eq!(words, ["/treeswap", "status", "/config"], "its words are what `kubectl describe pod` shows");
    let startup = |key: &str| container["startupProbe"][key].as_u64().unwrap();
    let (period, all) = (startup("periodSeconds"), startup("periodSeconds") * startup("failureThreshold"));
    assert!(all >= 10 * 120, "the restart would end an attempt with a longer --sync-timeout");
    assert!((2..=5).contains(&period), "an event a look, of which the kubelet sends 25 at once");
    let readiness = &container["readinessProbe"]["httpGet"];
    assert_eq!(readiness["path"].as_str(), Some("/readyz"), "without it --max-stale has no effect");
    assert_eq!(readiness["port"].as_str(), container["ports"][0]["name"].as_str());
}

/// Fails unless whoever hangs is found out, at the port that it listens at.
fn assert_alive(container: &Value) {
    let liveness = &container["livenessProbe"]["httpGet"];
    assert_eq!(liveness["path"].as_str(), Some("/livez"));
    assert_eq!(liveness["port"].as_str(), container["ports"][0]["name"].as_str());
    for probe in ["startupProbe", "livenessProbe"] {
        assert!(container[probe]["timeoutSeconds"].as_u64() >= Some(5), "{probe}: a busy node is slow");
    }
    let port = container["ports"][0]["containerPort"].as_u64().unwrap();
    let mut args = list(container, "args").iter();
    let bind = args.find_map(|arg| arg.as_str()?.strip_prefix("--http-bind=:")).unwrap();
    assert_eq!(bind, port.to_string());
}

/// Fails unless a Job that runs one attempt a Pod lasts until the last of its attempts has ended. Returns how many
/// there are.
fn assert_retries_fit(documents: &[(PathBuf, Value)]) -> usize {
    let mut seen = 0;
    for (path, document) in documents {
        let job = &document["spec"]["jobTemplate"]["spec"];
        let args = list(&job["template"]["spec"]["containers"][0], "args");
        let has = |flag: &str| args.iter().any(|arg| arg.as_str().is_some_and(|arg| arg.starts_with(flag)));
        if !has("--one-time") {
            continue;
        }
        assert!(!has("--max-failures") && !has("--sync-timeout"), "an attempt a Pod, of two minutes at most");
        let number = |key: &str| job[key].as_u64().unwrap();
        // Kubernetes waits 10 s before the first retry, and twice as long before each further one.
        let retries = number("backoffLimit");
        let most = 120 * (retries + 1) + 10 * ((1_u64 << retries) - 1);
        assert!(most < number("activeDeadlineSeconds"), "{}: they may take {most} s", path.display());
        seen += 1;
    }
    seen
}

#[test]
fn a_job_lasts_as_long_as_its_retries() {
    assert_eq!(assert_retries_fit(&documents()), 1);
}

#[test]
fn the_sidecar_starts_first_and_its_probes_reach_its_port() {
    let documents = documents();
    let all = ours(&documents);
    let sidecar = all.iter().find(|one| one.at.ends_with("sidecar/sidecar.yaml")).unwrap();
    assert_eq!(sidecar.container["restartPolicy"].as_str(), Some("Always"), "a native sidecar");
    for one in all.iter().filter(|one| !one.container["ports"].is_null()) {
        match one.at.ends_with("apply/deployment.yaml") {
            true => assert_alive(one.container),
            false => assert_probed(one.container),
        }
    }
    let volume =
        list(sidecar.pod, "volumes").iter().find(|volume| volume["name"].as_str() == Some("config")).unwrap();
    assert!(volume["emptyDir"]["sizeLimit"].as_str().is_some(), "the volume has a size limit");
}

#[test]
fn the_appliers_share_one_account_and_nothing_waits_for_their_targets() {
    let documents = documents();
    let all = ours(&documents);
    let appliers: Vec<_> = all.iter().filter(|one| one.at.contains("deploy/apply/")).collect();
    let args = |one: &Ours| -> Vec<String> {
        let args = list(one.container, "args").iter().map(|arg| arg.as_str().unwrap().to_owned());
        args.filter(|arg| !["sync", "apply"].contains(&&**arg)).collect()
    };
    let [once, always] = &appliers[..] else { panic!("{}", appliers.len()) };
    let (once, always) = if once.at.ends_with("cronjob.yaml") { (once, always) } else { (always, once) };
    for one in [once, always] {
        assert_eq!(one.pod["serviceAccountName"].as_str(), Some("config-apply"));
        assert_eq!(list(one.pod, "containers").len(), 1, "a Pod of its own");
    }
    // A run of the one fetches once into a volume of its own.
    let own = ["--timeout=", "--http-bind=", "--max-mirror-bytes="];
    let shared = |arg: &String| !own.iter().any(|flag| arg.starts_with(flag));
    let (once, rest): (Vec<_>, Vec<_>) = (args(once), args(always));
    assert!(once.iter().filter(|arg| shared(arg)).eq(rest.iter().filter(|arg| shared(arg))));
    assert!(always.container["readinessProbe"].is_null(), "a refused target holds no rollout up");
    let deployment = documents.iter().find(|(path, _)| path.ends_with("apply/deployment.yaml")).unwrap();
    let spec = &deployment.1["spec"];
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
}

#[test]
fn consumers_mount_the_whole_root_and_only_to_read() {
    let documents = documents();
    let examples =
        documents.iter().filter(|(path, _)| path.parent().unwrap().parent().unwrap().ends_with("examples"));
    let services: Vec<&Value> = examples.filter_map(|(_, document)| pod_spec(document)).collect();
    assert_eq!(services.len(), 1 + 1 + 10, "one service, one of two places, and ten that share a node");
    for mount in
        services.iter().flat_map(|pod| list(pod, "containers")).flat_map(|one| list(one, "volumeMounts"))
    {
        assert_eq!(mount["readOnly"].as_bool(), Some(true));
    }
    for (path, _) in &documents {
        let code = std::fs::read_to_string(path).unwrap();
        let used = code
            .lines()
            .map(|line| line.split('#').next().unwrap_or(""))
            .any(|line| line.contains("subPath"));
        assert!(!used, "{}: a subPath never sees another revision", path.display());
    }
}

/// Every kind that has Pods is patched by its label; where a CronJob has its Pod the same has to be said again.
#[test]
fn the_components_patch_every_workload_alike() {
    for (component, patch) in
        [("sidecar", "sidecar.yaml"), ("sources", "sources.yaml"), ("node-volume", "volume.yaml")]
    {
        let dir = deploy().join("kustomize/components").join(component);
        let read = |name: &str| -> Value {
            serde_yaml::from_str(&std::fs::read_to_string(dir.join(name)).unwrap()).unwrap()
        };
        let patches = read("kustomization.yaml")["patches"].clone();
        let of = |path: &str| {
            let mut all = patches.as_sequence().unwrap().iter();
            let one = all.find(|one| one["path"].as_str() == Some(path)).unwrap();
            one["target"]["kind"].as_str().unwrap().to_owned()
        };
        assert_eq!(of(patch), "Deployment|StatefulSet|DaemonSet|Job");
        assert_eq!(of("cronjob.yaml"), "CronJob");
        assert_eq!(pod_template(&read("cronjob.yaml")), pod_template(&read(patch)), "{component}");
    }
}

/// kubectl's own kustomize, where `tests/cluster/build` puts it.
fn kustomized(dir: &Path) -> Vec<(PathBuf, Value)> {
    let cache = built("helm", include_str!("../cluster/go.mod"), "helm.sh/helm/v3 v");
    let version = include_str!("../cluster/go.mod")
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    let version = version.and_then(|rest| rest.split_whitespace().next()).expect("go.mod names the version");
    let built = cache.parent().unwrap().with_file_name(format!("kubernetes-{version}"));
    let kubectl = std::env::var_os("KUBEBUILDER_ASSETS").map_or(built, PathBuf::from).join("kubectl");
    assert!(kubectl.exists(), "{} is missing; `tests/cluster/build` makes it", kubectl.display());
    let home = tempfile::tempdir().unwrap();
    let made = common::run::to_end(common::run::clean(kubectl, home.path()).arg("kustomize").arg(dir));
    let made = made.expect_ok("kubectl kustomize").stdout;
    let documents = serde_yaml::Deserializer::from_str(&made).map(|one| Value::deserialize(one).unwrap());
    documents.map(|document| (dir.to_owned(), document)).collect()
}

/// What reads the file, and what holds it, under one name that does not follow its content: a changed file is read by
/// the Pods that run.
fn assert_reads_its_sources(documents: &[(PathBuf, Value)], map: &str) {
    let of_map = |one: &&(PathBuf, Value)| one.1["kind"] == "ConfigMap" && one.1["metadata"]["name"] == map;
    let maps: Vec<_> = documents.iter().filter(of_map).collect();
    assert_eq!(maps.len(), 1, "{map}");
    let text = maps[0].1["data"]["sources.yaml"].as_str().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let check = Command::new(BINARY)
        .env_clear()
        .args(["check", "--root=/config", "--sources"])
        .arg(file.path())
        .output();
    let check = check.unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let readers = ours(documents).into_iter().filter(|one| {
        let args = list(one.container, "args").iter().map(|arg| arg.as_str().unwrap().to_owned());
        let env = list(one.container, "env").iter().filter(|one| one["name"] == "TREESWAP_SOURCES");
        let env = env.map(|one| format!("--sources={}", one["value"].as_str().unwrap()));
        args.chain(env).any(|arg| arg == "--sources=/etc/sources/sources.yaml")
    });
    let mut count = 0;
    for Ours { pod, container, .. } in readers {
        count += 1;
        let mount = list(container, "volumeMounts")
            .iter()
            .find(|mount| mount["mountPath"] == "/etc/sources")
            .unwrap();
        assert!(mount["subPath"].is_null() && mount["readOnly"] == true, "{mount:?}");
        let volume = list(pod, "volumes").iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        assert_eq!(volume["configMap"]["name"], map);
        let args: Vec<_> = list(container, "args").iter().map(|arg| arg.as_str().unwrap()).collect();
        assert!(!args.iter().any(|arg| arg.starts_with("--repo=") || arg.starts_with("--ref=")), "{args:?}");
    }
    assert!(count > 0, "nobody reads it");
}

#[test]
fn a_component_gives_the_sidecar_several_sources() {
    let made = kustomized(&deploy().join("kustomize/examples/two-places"));
    assert_reads_its_sources(&made, "treeswap-sources");
    let found = ours(&made);
    assert_eq!(found.len(), 1);
    let names: Vec<_> =
        list(found[0].container, "env").iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"TREESWAP_MAX_BYTES"), "the sidecar's own are kept: {names:?}");
    assert_eq!(list(found[0].container, "volumeMounts").len(), 3);
    assert_eq!(
        found[0].container["envFrom"][0]["configMapRef"]["name"]
            .as_str()
            .map(|name| name.starts_with("treeswap-sidecar-")),
        Some(true)
    );
    assert_restricted(&made);
    assert_probed(found[0].container);
}

/// A volume that is an emptyDir blocks the cluster autoscaler unless the Pod names it.
#[test]
fn every_empty_volume_may_be_evicted() {
    let mut seen = 0;
    for (path, document) in documents() {
        let Some(pod) = pod_spec(&document) else { continue };
        let named = &pod_template(&document)["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"];
        for volume in list(pod, "volumes").iter().filter(|volume| !volume["emptyDir"].is_null()) {
            assert_eq!(named.as_str(), volume["name"].as_str(), "{}", path.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 4, "the sidecar twice, the appliers");
}

#[test]
fn what_the_appliers_are_made_of_can_be_selected() {
    let documents = documents();
    let objects: Vec<_> =
        documents.iter().filter(|(path, _)| path.parent().unwrap().ends_with("apply")).collect();
    assert_eq!(objects.len(), 7);
    for (path, object) in objects {
        let label = |value: &Value| {
            value["metadata"]["labels"]["app.kubernetes.io/name"].as_str() == Some("config-apply")
        };
        assert!(label(object), "{}", path.display());
        assert!(pod_spec(object).is_none() || label(pod_template(object)), "{}", path.display());
    }
}
