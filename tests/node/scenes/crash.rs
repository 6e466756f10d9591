//! What ends programs and machines.

use crate::common::Files;
use crate::kube::{self, eventually};
use crate::shop::{Shop, one_reader};

const LABEL: &str = "app.kubernetes.io/name=gateway";

/// A container killed, a kubelet killed, a node that loses its power: the consumer's sets stay complete, and the next
/// revision arrives.
pub fn survives(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("crash", "restricted");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[], &one_reader(""));
    let pod = kube.ready(LABEL);
    let reader = shop.follow(&kube, &pod, "gateway");
    reader.waits_for(shop.commit());
    let found = || kube.get(&format!("pod/{pod}"));
    let restarts = |name: &str| kube::container(&found(), name)["restartCount"].as_u64().unwrap_or(0);

    // The container, three times, each in the middle of a publication or near it.
    for killed in 1..=3 {
        let revision = shop.commit();
        let pid = rustix::process::Pid::from_raw(shop.pid(&found(), "treeswap") as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("the kubelet starts it again", || {
            (restarts("treeswap") == killed && kube::is_ready(&found())).then_some(())
        });
        reader.waits_for(revision);
    }
    assert_eq!(restarts("gateway"), 0, "the application is not disturbed");

    // The kubelet: whatever runs goes on.
    shop.machine.kill("kubelet");
    reader.waits_for(shop.commit());
    shop.machine.start("kubelet");
    let last = shop.commit();
    reader.waits_for(last);
    reader.assert_whole();
    assert_eq!(restarts("treeswap"), 3, "a kubelet's restart restarts no container");

    // The node, with the remote out of reach when it comes back: the last revision is served from the volume.
    shop.set_away(true);
    shop.machine.cut_power();
    shop.machine.boot();
    eventually("the Pod is back", || (restarts("gateway") == 1 && kube::is_ready(&found())).then_some(()));
    let again = shop.follow(&kube, &pod, "gateway");
    eventually("the consumer reads again", || (again.counts().reads > 20).then_some(()));
    again.assert_whole();
    assert!(again.saw(last).is_some(), "what was published before is there: {:?}", again.counts());
    shop.set_away(false);
    again.waits_for(shop.commit());
    again.assert_whole();
    kube.delete("deployment,pod", LABEL);
}

/// A revision brings a file that the sidecar's memory limit has no room for, and the kernel kills the sidecar, again and
/// again. The application has its complete set throughout, and a later revision without that file is all it takes.
pub fn out_of_memory(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("memory-limit", "restricted");
    // A ceiling for files that does not match the limit for memory.
    let ceiling = "TREESWAP_MAX_FILE_BYTES=1Gi";
    let cramped = one_reader("initContainers: [{name: treeswap, resources: {limits: {memory: 64Mi}}}]");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[ceiling], &cramped);
    let pod = kube.ready(LABEL);
    let reader = shop.follow(&kube, &pod, "gateway");
    let before = shop.commit();
    reader.waits_for(before);
    let large = shop.commit_with(Files::new().file("large", vec![b'\n'; 256 << 20]));
    let found = || kube.get(&format!("pod/{pod}"));
    eventually("the kernel kills the sidecar", || {
        let found = found();
        let sidecar = kube::container(&found, "treeswap");
        let killed = |state: &str| sidecar[state]["terminated"]["reason"] == "OOMKilled";
        (killed("state") || killed("lastState")).then_some(())
    });
    let last = shop.commit();
    // The kubelet waits longer after each end.
    reader.waits_for(last);
    assert_eq!(reader.saw(large), None, "nobody can have seen what was never complete");
    reader.assert_whole();
    assert_eq!(kube::container(&found(), "gateway")["restartCount"], 0, "the application is not disturbed");
    kube.delete("deployment,pod", LABEL);
}
