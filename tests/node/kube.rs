//! Runs `kubectl` and waits for the cluster's state.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::common::{self, Ran, run};
use super::machine::limited;

/// Seconds to wait for the cluster: several scenes share one busy machine.
const PATIENCE: u64 = 300;

/// Waits until `look` returns something. Polls slowly, because each look starts a process.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    common::eventually(PATIENCE, what, || {
        let seen = look();
        if seen.is_none() {
            std::thread::sleep(Duration::from_millis(200));
        }
        seen
    })
}

/// The cluster, through its own client.
#[derive(Clone)]
pub struct Kube {
    program: PathBuf,
    config: PathBuf,
    namespace: String,
}

impl Kube {
    pub fn new(program: &Path, config: &Path) -> Self {
        Self { program: program.to_owned(), config: config.to_owned(), namespace: "default".into() }
    }

    /// The same cluster in a namespace that is made for it, which admits only Pods of that security level.
    pub fn in_new_namespace(&self, name: &str, level: &str) -> Self {
        self.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: \
             {{pod-security.kubernetes.io/enforce: {level}}}}}}}"
        ));
        let kube = Self { namespace: name.to_owned(), ..self.clone() };
        eventually("Pods may be made", || {
            kube.try_run(&["get", "serviceaccount", "default"]).ok().then_some(())
        });
        kube
    }

    /// kubectl for this cluster and namespace, ended after 300 seconds ([`limited`]).
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = limited(&self.program);
        // kubectl takes the last --namespace, so `arguments` may override this one.
        command.env("KUBECONFIG", &self.config).arg("--namespace").arg(&self.namespace).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    pub fn try_run(&self, arguments: &[&str]) -> Ran {
        run::to_end(&mut self.command(arguments))
    }

    /// kubectl's output; fails the test if kubectl fails.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).expect_ok(&format!("kubectl {}", arguments.join(" "))).stdout
    }

    /// The object as JSON; null if kubectl fails, for example because there is no such object.
    pub fn get(&self, what: &str) -> Value {
        let ran = self.try_run(&["get", what, "--output=json"]);
        serde_json::from_str(&ran.stdout).unwrap_or_default()
    }

    /// The manifests that `kubectl kustomize` prints for a directory.
    pub fn kustomize(&self, dir: &Path) -> String {
        self.run(&["kustomize", dir.to_str().unwrap()])
    }

    /// Asks for a Pod's eviction, as draining a node does.
    #[track_caller]
    pub fn evict(&self, pod: &str) {
        let namespace = &self.namespace;
        let eviction = format!(
            r#"{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}", "namespace": "{namespace}"}}}}"#
        );
        let path = format!("--raw=/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
        self.feed(&["create", &path, "--filename=-"], &eviction);
    }

    /// `kubectl apply` of these manifests.
    #[track_caller]
    pub fn apply(&self, manifests: &str) {
        self.feed(&["apply", "--filename=-"], manifests);
    }

    /// Has the server validate manifests strictly, without writing them; returns the number of objects.
    #[track_caller]
    pub fn dry_run(&self, manifests: &str) -> usize {
        // Without a namespace: kubectl refuses objects of another one than --namespace.
        let dry = ["apply", "--namespace=", "--dry-run=server", "--validate=strict", "--filename=-"];
        let said = self.feed(&dry, manifests);
        said.lines().count()
    }

    #[track_caller]
    fn feed(&self, arguments: &[&str], manifests: &str) -> String {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(
            out.status.success(),
            "kubectl {arguments:?}: {}\n{manifests}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The Pods with a label, without those that are being deleted; empty if kubectl fails.
    pub fn pods(&self, label: &str) -> Vec<Value> {
        let ran = self.try_run(&["get", "pods", "--selector", label, "--output=json"]);
        let list: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let staying = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        list["items"]
            .as_array()
            .map(|items| items.iter().filter(staying).cloned().collect())
            .unwrap_or_default()
    }

    /// Waits until exactly one Pod has the label and it is ready; returns its name.
    #[track_caller]
    pub fn ready(&self, label: &str) -> String {
        self.all_ready(label, 1).remove(0)
    }

    /// Waits until there are exactly `count` Pods with the label and all are ready; returns their names.
    #[track_caller]
    pub fn all_ready(&self, label: &str, count: usize) -> Vec<String> {
        eventually(&format!("{count} Pods with {label} are ready"), || {
            let pods = self.pods(label);
            let ready = pods.len() == count && pods.iter().all(is_ready);
            ready.then(|| pods.iter().map(name).collect())
        })
    }

    /// What `kubectl describe` shows of a Pod, its events included.
    pub fn describe(&self, pod: &str) -> String {
        self.try_run(&["describe", "pod", pod]).stdout
    }

    /// Every container of every Pod: namespace, Pod, name. Empty if kubectl fails.
    pub fn containers(&self) -> Vec<(String, String, String)> {
        let ran = self.try_run(&["get", "pods", "--all-namespaces", "--output=json"]);
        let list: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut found = Vec::new();
        for pod in list["items"].as_array().into_iter().flatten() {
            for key in ["initContainers", "containers"] {
                for container in pod["spec"][key].as_array().into_iter().flatten() {
                    found.push((text(&pod["metadata"]["namespace"]), name(pod), text(&container["name"])));
                }
            }
        }
        found
    }

    /// Deletes by label and waits until the objects of these kinds are gone.
    pub fn delete(&self, kinds: &str, label: &str) {
        self.run(&["delete", kinds, "--selector", label, "--wait=true", "--timeout=120s"]);
    }
}

pub fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// The status of one container of a Pod, an init container or an ordinary one; null before it has any.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let of = |key: &str| pod["status"][key].as_array().into_iter().flatten().find(|one| one["name"] == name);
    of("initContainerStatuses").or_else(|| of("containerStatuses")).unwrap_or(&Value::Null)
}
