//! Kinds of volumes, and their limits.

use std::os::unix::fs::MetadataExt as _;

use crate::common::{Files, eventually};
use crate::kube;
use crate::shop::{READER, Shop};

const LABEL: &str = "app.kubernetes.io/name=gateway";

/// One Pod, with its volume and its group as this says.
fn patched(volume: &str) -> String {
    format!(
        "{READER}    - {{op: replace, path: /spec/replicas, value: 1}}
- target: {{kind: Deployment, name: gateway}}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: gateway}}
    spec:
      template:
        spec:
          securityContext: {{fsGroup: 2000}}
          volumes: [{{name: config, emptyDir: {volume}}}]
"
    )
}

pub fn in_memory(shop: &mut Shop) {
    let volume = "{medium: Memory, sizeLimit: 64Mi}";
    of_a_group(shop, "memory", volume, &["TREESWAP_DURABILITY=none"]);
}

pub fn on_disk(shop: &mut Shop) {
    of_a_group(shop, "disk", "{sizeLimit: 64Mi}", &[]);
}

/// A volume that belongs to a group; its reader is another user, in that group, and cannot write to it.
fn of_a_group(shop: &mut Shop, kind: &str, volume: &str, literals: &[&str]) {
    shop.serve();
    let kube = shop.kube.namespace(kind, "restricted");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", literals, &patched(volume));
    let pod = kube.ready(LABEL);
    let found = kube.get(&format!("pod/{pod}"));
    let proc = |container: &str, file: &str| {
        std::fs::read_to_string(format!("/proc/{}/{file}", shop.pid(&found, container))).unwrap()
    };
    let mounts = proc("gateway", "mountinfo");
    let mount = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/config")).unwrap();
    assert!(mount.split(' ').nth(5).unwrap().starts_with("ro,"), "{mount}");
    assert_eq!(mount.contains(" tmpfs "), kind == "memory", "{mount}");
    let user = |container: &str| {
        let status = proc(container, "status");
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((user("treeswap"), user("gateway")), ("65532".into(), "1000".into()));
    let root = shop.volume(&found, "empty-dir");
    let group = |path: &str| std::fs::metadata(root.join(path)).unwrap().gid();
    let reader = shop.follow(&kube, &pod, "gateway");
    for _ in 0..5 {
        reader.waits_for(shop.commit());
    }
    assert_eq!([".", "..data", "..data/sub/c"].map(group), [2000; 3], "group of root, generation and file");
    reader.assert_whole();
    kube.delete("deployment,pod", LABEL);
}

/// A revision that is too large for the volume: the kubelet evicts the Pod and says so, and a Pod that replaces it
/// serves again once the repository is of a size that fits.
pub fn too_small(shop: &mut Shop) {
    shop.serve();
    let kube = shop.kube.namespace("small", "restricted");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[], &patched("{sizeLimit: 8Mi}"));
    let pod = kube.ready(LABEL);
    let reader = shop.follow(&kube, &pod, "gateway");
    shop.commit_with(Files::new().file("large", noise(12 << 20)));
    let which = format!("involvedObject.name={pod},reason=Evicted");
    eventually(300, "the Pod is evicted", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let events = kube.try_run(&["get", "events", "--field-selector", &which]).stdout;
        events.contains("EmptyDir volume \"config\" exceeds the limit").then_some(())
    });
    reader.assert_whole();
    let revision = shop.commit();
    // A Pod that has fetched the large revision, too, is evicted in its turn.
    let reader = eventually(400, "a Pod serves the smaller revision", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let pods = kube.pods(LABEL);
        let pod = pods.iter().find(|pod| kube::is_ready(pod)).map(kube::name)?;
        let reader = shop.try_follow(&kube, &pod, "gateway")?;
        reader.saw(revision).map(|_| reader)
    });
    reader.assert_whole();
    kube.delete("deployment,pod", LABEL);
}

/// Bytes that no compression makes smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length / 8).flat_map(|_| next()).collect()
}
