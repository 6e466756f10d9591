//! One treeswap for a node, and what else shares a directory.

use crate::kube::{self, eventually};
use crate::shop::Shop;

const CONSUMERS: &str = "
- target: {kind: Deployment}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/args, value: [/config, ..data]}
";

/// A second writer for the directory that the node's treeswap keeps.
fn intruder(url: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: intruder}}
spec:
  containers:
    - name: treeswap
      image: registry.example.com/platform/treeswap:0.1.0
      args: [sync, '--repo={url}', --root=/config]
      terminationMessagePolicy: FallbackToLogsOnError
      securityContext: {{runAsUser: 0}}
      volumeMounts: [{{name: config, mountPath: /config}}]
  volumes: [{{name: config, hostPath: {{path: /var/lib/treeswap/config}}}}]
"
    )
}

/// Ten services read what one treeswap keeps; they start after the first revision, see every later one complete, and
/// go on while it is replaced. A second writer is refused and says who the first is.
pub fn reads(shop: &Shop) {
    shop.serve();
    shop.set_away(true);
    let kube = shop.kube.in_new_namespace("shared", "privileged");
    shop.deploy(&kube, "examples/ten-services", "treeswap-node", &[], CONSUMERS);
    let (node, services) = ("app.kubernetes.io/name=treeswap-node", "app.kubernetes.io/name!=treeswap-node");
    eventually("the services wait", || {
        let pods = kube.pods(services);
        let waits =
            |pod: &serde_json::Value| !kube::container(pod, "wait-for-config")["state"]["running"].is_null();
        (pods.len() == 10 && pods.iter().all(waits)).then_some(())
    });
    shop.set_away(false);
    let pods = kube.all_ready(services, 10);
    let readers: Vec<_> =
        pods.iter().map(|pod| shop.follow(&kube, pod, pod.split('-').next().unwrap())).collect();
    let revision = shop.commit();
    readers.iter().for_each(|reader| {
        reader.waits_for(revision);
    });

    kube.apply(&intruder(&shop.url()));
    eventually("the second writer is refused", || {
        let pod = kube.get("pod/intruder");
        let container = kube::container(&pod, "treeswap");
        let ended = ["state", "lastState"].map(|state| container[state]["terminated"]["message"].to_string());
        ended.iter().any(|said| said.contains("the root /config is in use by another writer")).then_some(())
    });
    kube.run(&["delete", "pod/intruder", "--wait=true"]);

    kube.run(&["rollout", "restart", "daemonset/treeswap-node"]);
    kube.run(&["rollout", "status", "daemonset/treeswap-node", "--timeout=180s"]);
    kube.ready(node);
    let revision = shop.commit();
    readers.iter().for_each(|reader| {
        reader.waits_for(revision);
        reader.assert_whole();
    });
    kube.run(&[
        "delete",
        "deployment,daemonset",
        "--all",
        "--wait=true",
        "--cascade=foreground",
        "--timeout=120s",
    ]);
}
