//! What `deploy/` ships parses, keeps to the restricted profile, and uses only options that the binary accepts.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize as _;
use serde_yaml::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_treeswap");

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn yaml_files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            yaml_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            into.push(path);
        }
    }
}

fn documents() -> Vec<(PathBuf, Value)> {
    let mut files = Vec::new();
    yaml_files(&deploy(), &mut files);
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

/// The Pod spec of a Deployment or CronJob, if the document is one.
fn pod_spec(document: &Value) -> Option<&Value> {
    match document["kind"].as_str()? {
        "Deployment" => Some(&document["spec"]["template"]["spec"]),
        "CronJob" => Some(&document["spec"]["jobTemplate"]["spec"]["template"]["spec"]),
        _ => None,
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_sequence().map_or(&[], Vec::as_slice)
}

/// Every container that runs our image, with its Pod.
fn ours(documents: &[(PathBuf, Value)]) -> Vec<(&Path, &Value, &Value)> {
    let mut found = Vec::new();
    for (path, document) in documents {
        let Some(pod) = pod_spec(document) else { continue };
        for container in list(pod, "initContainers").iter().chain(list(pod, "containers")) {
            if container["image"].as_str() == Some("treeswap") {
                found.push((path.as_path(), pod, container));
            }
        }
    }
    assert_eq!(found.len(), 3, "the sidecar and the CronJobs");
    found
}

/// `KEY=value` literals of the example's generated ConfigMap.
fn example_variables(documents: &[(PathBuf, Value)]) -> Vec<(String, String)> {
    let example =
        documents.iter().find(|(path, _)| path.ends_with("examples/one-service/kustomization.yaml"));
    let (_, kustomization) = example.expect("the example's kustomization");
    let literals = list(&list(kustomization, "configMapGenerator")[0], "literals");
    literals
        .iter()
        .map(|literal| {
            let (name, value) = literal.as_str().unwrap().split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

#[test]
fn the_binary_accepts_every_option_that_the_manifests_use() {
    let documents = documents();
    for (path, _, container) in ours(&documents) {
        let mut args = list(container, "args").iter().map(|arg| arg.as_str().unwrap());
        let mut command = Command::new(BINARY);
        command.env_clear();
        match args.next() {
            Some("sync") => command.arg("check").args(args),
            // It has no offline check: help is printed once everything before it was accepted.
            Some("apply") => command.arg("apply").args(args).arg("--help"),
            other => panic!("{}: {other:?}", path.display()),
        };
        for variable in list(container, "env") {
            command.env(variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
        }
        if !list(container, "envFrom").is_empty() {
            command.envs(example_variables(&documents));
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {said}", path.display());
        assert!(!said.contains("unknown"), "{}: {said}", path.display());
    }
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

#[test]
fn our_containers_keep_to_the_restricted_profile() {
    let documents = documents();
    for (path, pod, container) in ours(&documents) {
        let context = &container["securityContext"];
        let at = path.display();
        assert_eq!(context["runAsNonRoot"].as_bool(), Some(true), "{at}");
        assert_eq!(context["allowPrivilegeEscalation"].as_bool(), Some(false), "{at}");
        assert_eq!(context["readOnlyRootFilesystem"].as_bool(), Some(true), "{at}");
        assert_eq!(context["capabilities"]["drop"][0].as_str(), Some("ALL"), "{at}");
        assert_eq!(context["seccompProfile"]["type"].as_str(), Some("RuntimeDefault"), "{at}");
        assert_eq!(pod["enableServiceLinks"].as_bool(), Some(false), "{at}");
    }
}

#[test]
fn the_sidecar_starts_first_and_its_probes_reach_its_port() {
    let documents = documents();
    let all = ours(&documents);
    let (_, pod, sidecar) = all.iter().find(|(path, ..)| path.ends_with("sidecar/sidecar.yaml")).unwrap();
    assert_eq!(sidecar["restartPolicy"].as_str(), Some("Always"), "a native sidecar");
    for (probe, path) in [("startupProbe", "/readyz"), ("livenessProbe", "/livez")] {
        assert_eq!(sidecar[probe]["httpGet"]["path"].as_str(), Some(path));
        assert_eq!(sidecar[probe]["httpGet"]["port"].as_str(), sidecar["ports"][0]["name"].as_str());
    }
    let port = sidecar["ports"][0]["containerPort"].as_u64().unwrap();
    let bind =
        list(sidecar, "args").iter().find_map(|arg| arg.as_str()?.strip_prefix("--http-bind=:")).unwrap();
    assert_eq!(bind, port.to_string());
    let volume =
        list(pod, "volumes").iter().find(|volume| volume["name"].as_str() == Some("config")).unwrap();
    assert!(volume["emptyDir"]["sizeLimit"].as_str().is_some(), "the volume has a size limit");
}

#[test]
fn consumers_mount_the_whole_root_and_only_to_read() {
    let documents = documents();
    let example = documents.iter().find(|(path, _)| path.ends_with("one-service/deployment.yaml")).unwrap();
    let pod = pod_spec(&example.1).unwrap();
    let mounts: Vec<&Value> =
        list(pod, "containers").iter().flat_map(|container| list(container, "volumeMounts")).collect();
    assert!(!mounts.is_empty());
    for mount in mounts {
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

#[test]
fn the_image_runs_the_binary_as_an_unprivileged_user() {
    let text = std::fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let last = text.rsplit("\nFROM ").next().unwrap();
    assert!(last.starts_with("scratch\n"), "the image holds nothing but what is copied");
    assert!(last.contains("\nUSER 65532:65532\n") && last.contains("ENTRYPOINT [\"/treeswap\"]"));
    for line in text.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        for source in line.split_whitespace().skip(1).take(line.split_whitespace().count() - 2) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
            assert!(path.exists(), "the Dockerfile copies {source}, which is not there");
        }
    }
}

/// What the Dockerfile copies is enough for Cargo to read the manifest, whose targets must all be there.
#[test]
fn the_image_is_built_from_all_that_the_manifest_names() {
    let text = std::fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let context = tempfile::tempdir().unwrap();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    for line in text.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let (to, from) = words.split_last().unwrap();
        let to = context.path().join(to);
        std::fs::create_dir_all(if from.len() > 1 { &to } else { to.parent().unwrap() }).unwrap();
        let copied =
            Command::new("cp").arg("-r").args(from.iter().map(|path| top.join(path))).arg(&to).status();
        assert!(copied.unwrap().success(), "{line}");
    }
    // Offline, crates of other platforms may be missing; only what is said of the manifest matters here.
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["fetch", "--locked", "--offline"]).current_dir(context.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("failed to parse manifest"), "{said}");
}
