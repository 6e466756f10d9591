//! The start of a Pod.

use crate::common::http_backend::Canned;
use crate::kube::{self, Kube, eventually};
use crate::shop::{READER, Shop};

/// What the startup probe said of a Pod: each message, and how often.
fn unhealthy(kube: &Kube, pod: &str) -> Vec<(String, u64)> {
    let which = format!("--field-selector=involvedObject.name={pod},reason=Unhealthy");
    let ran = kube.try_run(&["get", "events", &which, "--output=json"]);
    let list: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    let of = |event: &serde_json::Value| {
        Some((event["message"].as_str()?.to_owned(), event["count"].as_u64().unwrap_or(1)))
    };
    list["items"].as_array().into_iter().flatten().filter_map(of).collect()
}

/// Waits until `kubectl describe` shows why the startup probe fails.
fn shown(kube: &Kube, pod: &str, why: &str) {
    eventually(&format!("describe shows {why}"), || {
        let shown = kube.describe(pod);
        shown.lines().any(|line| line.contains("Startup probe failed") && line.contains(why)).then_some(())
    });
}

/// What the guide shows, as a newcomer does it: the application container never starts before the first publication.
/// Meanwhile `kubectl describe` shows why, and nobody has to do anything once the remote is there.
pub fn waits(shop: &Shop) {
    let kube = shop.kube.in_new_namespace("start", "restricted");
    // Nothing listens where the repository should be.
    shop.deploy_by_guide(&kube, READER);
    let label = "app.kubernetes.io/name=gateway";
    let pod = eventually("there is a Pod", || kube.pods(label).first().map(kube::name));
    shown(&kube, &pod, &format!("cannot connect to {}: Connection refused", shop.url()));
    // Now there is somebody, who wants to know who asks: what is shown is the present reason, not the first.
    shop.answer(Some(Canned::status(401, "")));
    shop.serve();
    shown(&kube, &pod, &format!("{} answered 401", shop.url()));
    let mut events = unhealthy(&kube, &pod);
    // On a busy node the probe may look at any time before the first failure, in this order.
    let early = [
        "no writer has opened /config",
        "no writer is running, and none has left a record",
        "no attempt has failed",
        "an attempt has been running since 2",
    ];
    events.retain(|(message, _)| !early.iter().any(|early| message.contains(early)));
    for (message, _) in &events {
        assert_eq!(message.trim_end().lines().count(), 2, "{message}");
        assert!(message.contains("the sync fails since 2"), "{message}");
        assert!(!message.contains(" ago"), "{message}");
    }
    // An event a cause, not one an attempt or a look.
    let looks: u64 = events.iter().map(|(_, count)| count).sum();
    shop.say(format!("{looks} looks of the startup probe in {} events", events.len()));
    for why in ["Connection refused", "answered 401"] {
        assert_eq!(events.iter().filter(|(message, _)| message.contains(why)).count(), 1, "{events:?}");
    }
    let waiting = kube.get(&format!("pod/{pod}"));
    assert_eq!(kube::container(&waiting, "gateway")["state"]["waiting"]["reason"], "PodInitializing");

    shop.answer(None);
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
