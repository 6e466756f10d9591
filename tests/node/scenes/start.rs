//! The start of a Pod.

use crate::kube::{self, eventually};
use crate::shop::{READER, Shop};

/// What README shows, as a newcomer does it: the application container never starts before the first publication. Meanwhile `kubectl describe` shows why, and
/// nobody has to do anything once the remote is there.
pub fn waits(shop: &Shop) {
    let kube = shop.kube.namespace("start", "restricted");
    // Nothing listens where the repository should be.
    shop.deploy_by_readme(&kube, READER);
    let label = "app.kubernetes.io/name=gateway";
    let pod = eventually("describe shows the reason", || {
        let pod = kube.pods(label).first().map(kube::name)?;
        let shown = kube.describe(&pod);
        let reason = shown.lines().any(|line| line.contains("Startup probe failed"))
            && shown.contains(&format!("cannot connect to {}: Connection refused", shop.url()));
        reason.then_some(pod)
    });
    let waiting = kube.get(&format!("pod/{pod}"));
    assert_eq!(kube::container(&waiting, "gateway")["state"]["waiting"]["reason"], "PodInitializing");

    shop.serve();
    let pods = kube.all_ready(label, 2);
    for pod in &pods {
        let found = kube.get(&format!("pod/{pod}"));
        assert_eq!(
            kube::container(&found, "treeswap")["restartCount"],
            0,
            "it recovers by itself, without a restart"
        );
        let said = kube.run(&[
            "exec",
            pod,
            "--container=treeswap",
            "--",
            "/treeswap",
            "status",
            "--json",
            "/config",
        ]);
        let status: serde_json::Value = serde_json::from_str(&said).unwrap();
        let published: jiff::Timestamp =
            status["generations"][0]["published"].as_str().unwrap().parse().unwrap();
        let started =
            kube::container(&found, "gateway")["state"]["running"]["startedAt"].as_str().unwrap().to_owned();
        let started: jiff::Timestamp = started.parse().unwrap();
        // The kubelet's times are in whole seconds.
        assert!(started.as_second() >= published.as_second(), "started {started}, published {published}");
        let reader = shop.follow(&kube, pod, "gateway");
        eventually("the consumer has read", || (reader.counts().reads > 20).then_some(()));
        reader.assert_whole();
    }
    kube.delete("deployment,pod", label);
}
