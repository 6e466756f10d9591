//! Kinds of volumes, and their limits.

use std::os::unix::fs::MetadataExt as _;

use crate::common::{Files, noise};
use crate::kube::{self, eventually};
use crate::shop::{Shop, one_reader};

const LABEL: &str = "app.kubernetes.io/name=gateway";

/// One Pod, with its volume and its group as this says.
fn patched(volume: &str) -> String {
    one_reader(&format!(
        "securityContext: {{fsGroup: 2000}}, volumes: [{{name: config, emptyDir: {volume}}}]"
    ))
}

pub fn in_memory(shop: &Shop) {
    let volume = "{medium: Memory, sizeLimit: 64Mi}";
    of_a_group(shop, "memory", volume, &["TREESWAP_DURABILITY=none"]);
}

pub fn on_disk(shop: &Shop) {
    of_a_group(shop, "disk", "{sizeLimit: 64Mi}", &[]);
}

/// A volume that belongs to a group; its reader is another user, in that group, and cannot write to it.
fn of_a_group(shop: &Shop, kind: &str, volume: &str, literals: &[&str]) {
    shop.serve();
    let kube = shop.kube.in_new_namespace(kind, "restricted");
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
    let root = shop.volume(&found, "empty-dir", "config");
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
pub fn too_small(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("small", "restricted");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[], &patched("{sizeLimit: 8Mi}"));
    let pod = kube.ready(LABEL);
    let reader = shop.follow(&kube, &pod, "gateway");
    shop.commit_with(Files::new().file("large", noise(1, 12 << 20)));
    let which = format!("involvedObject.name={pod},reason=Evicted");
    eventually("the Pod is evicted", || {
        let events = kube.try_run(&["get", "events", "--field-selector", &which]).stdout;
        events.contains("EmptyDir volume \"config\" exceeds the limit").then_some(())
    });
    reader.assert_whole();
    let revision = shop.commit();
    // A Pod that has fetched the large revision, too, is evicted in its turn.
    let reader = eventually("a Pod serves the smaller revision", || {
        let pods = kube.pods(LABEL);
        let pod = pods.iter().find(|pod| kube::is_ready(pod)).map(kube::name)?;
        let reader = shop.try_follow(&kube, &pod, "gateway")?;
        reader.saw(revision).map(|_| reader)
    });
    reader.assert_whole();
    kube.delete("deployment,pod", LABEL);
}

/// A volume in memory, and nothing else changed of what is shipped: 110 MB that have no room in the memory limit are
/// refused by name, the kernel kills nobody, and what fits is published again.
pub fn full_memory(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("full-memory", "restricted");
    let volume = one_reader("volumes: [{name: config, emptyDir: {medium: Memory}}]");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &["TREESWAP_DURABILITY=none"], &volume);
    let pod = kube.ready(LABEL);
    let reader = shop.follow(&kube, &pod, "gateway");
    reader.waits_for(shop.newest());
    let log = || kube.try_run(&["logs", &pod, "--container=treeswap"]).stdout;
    assert!(log().contains("/config is on tmpfs and this container's memory limit is 256 MiB"), "{}", log());
    // What the pack has no room for, and what only the tree has none for.
    for (flag, large) in [("--max-fetch-bytes", noise(1, 110 << 20)), ("--max-bytes", vec![b'\n'; 110 << 20])]
    {
        let parts = large.chunks(10 << 20).enumerate();
        let files = parts.fold(Files::new(), |all, (at, part)| all.file(format!("large/{at}"), part));
        let refused = shop.commit_with(files);
        eventually(&format!("{flag} refuses it"), || {
            log().lines().any(|line| line.contains("sync failed") && line.contains(flag)).then_some(())
        });
        let next = shop.commit();
        reader.waits_for(next);
        assert_eq!(reader.saw(refused), None);
    }
    reader.assert_whole();
    let found = kube.get(&format!("pod/{pod}"));
    assert_eq!(kube::container(&found, "treeswap")["restartCount"], 0, "nobody was killed:\n{}", log());
    kube.delete("deployment,pod", LABEL);
}
