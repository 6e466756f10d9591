//! Kinds of volumes, and their limits.

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

/// A volume in memory that belongs to a group; its reader is another user, in that group, and cannot write to it.
pub fn in_memory(shop: &mut Shop) {
    shop.serve();
    let kube = shop.kube.namespace("memory", "restricted");
    let volume = "{medium: Memory, sizeLimit: 64Mi}";
    shop.deploy(
        &kube,
        "examples/one-service",
        "treeswap-sidecar",
        &["TREESWAP_DURABILITY=none"],
        &patched(volume),
    );
    let pod = kube.ready(LABEL);
    let found = kube.get(&format!("pod/{pod}"));
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", shop.pid(&found, "gateway"))).unwrap();
    let mount = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/config")).unwrap();
    assert!(mount.split(' ').nth(5).unwrap().starts_with("ro,") && mount.contains(" tmpfs "), "{mount}");
    let reader = shop.follow(&kube, &pod, "gateway");
    for _ in 0..5 {
        reader.waits_for(shop.commit());
    }
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
        let reader = shop.follow(&kube, &pod, "gateway");
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
