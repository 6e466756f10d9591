//! Pods that are replaced while revisions arrive.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::kube::{self, eventually};
use crate::shop::{READER, Reader, Shop};

/// An eviction and a rolling update while a revision arrives every half second: every consumer, old and new, sees
/// complete sets from its first look to its last, and every sidecar ends with exit code 0 in its grace period.
pub fn drains(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("rollout", "restricted");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[], READER);
    let label = "app.kubernetes.io/name=gateway";
    let mut old = kube.all_ready(label, 2);
    let mut readers: Vec<_> = old.iter().map(|pod| consumer(shop, &kube, pod)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Commits go on in this thread's stead; Shop's counter is not shared between threads.
        let remote = &shop.remote;
        let numbers = 1_000_000..;
        scope.spawn(|| {
            for number in numbers {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let files = ["a", "b", "sub/c"].iter().fold(crate::common::Files::new(), |files, name| {
                    files.file(*name, format!("{number}\n"))
                });
                remote.commit(&files);
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
        });
        let _stop = Stop(&done);
        for pod in &old {
            // The object stays when the Pod has ended, so that its last status can be read.
            hold(&kube, pod, true);
        }
        for pod in &old {
            kube.evict(pod);
        }
        ended_well(&kube, &old);
        old = kube.all_ready(label, 2);
        readers.extend(old.iter().map(|pod| consumer(shop, &kube, pod)));
        for pod in &old {
            hold(&kube, pod, true);
        }
        kube.run(&["rollout", "restart", "deployment/gateway"]);
        kube.run(&["rollout", "status", "deployment/gateway", "--timeout=180s"]);
        ended_well(&kube, &old);
        let new = kube.all_ready(label, 2);
        readers.extend(new.iter().map(|pod| consumer(shop, &kube, pod)));
    });
    let counts: Vec<_> = readers.iter().map(|reader| reader.assert_whole()).collect();
    let sum = |of: fn(&crate::shop::Counts) -> u64| counts.iter().map(of).sum::<u64>();
    shop.say(format_args!(
        "{} Pods read {} sets: 0 torn, 0 vanished, 0 absent; through the path {} were mixed",
        counts.len(),
        sum(|one| one.reads),
        sum(|one| one.mixed)
    ));
    kube.delete("deployment,pod", label);
}

/// The Pod's consumer, once it has read a while: one that ends never reads more.
fn consumer(shop: &Shop, kube: &kube::Kube, pod: &str) -> Reader {
    let reader = shop.follow(kube, pod, "gateway");
    eventually(&format!("the consumer in {pod} has read"), || (reader.counts().reads > 20).then_some(()));
    reader
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn hold(kube: &kube::Kube, pod: &str, held: bool) {
    let finalizers = if held { r#"["example.com/look"]"# } else { "null" };
    let patch = format!(r#"{{"metadata": {{"finalizers": {finalizers}}}}}"#);
    kube.run(&["patch", "pod", pod, "--type=merge", "--patch", &patch]);
}

/// Waits until the Pods have ended, and lets go of them. Exit code 0 is within the grace period: at its end the kubelet
/// kills, and the code is 137.
#[track_caller]
fn ended_well(kube: &kube::Kube, pods: &[String]) {
    for pod in pods {
        let ended = eventually(&format!("{pod} has ended"), || {
            let found = kube.get(&format!("pod/{pod}"));
            let all = ["treeswap", "gateway"]
                .map(|name| kube::container(&found, name)["state"]["terminated"].clone());
            all.iter().all(|one| !one.is_null()).then_some(all)
        });
        hold(kube, pod, false);
        for (name, state) in ["treeswap", "gateway"].iter().zip(ended) {
            assert_eq!(state["exitCode"], 0, "{name} of {pod}: {state}");
            assert_eq!(state["reason"], "Completed", "{name} of {pod}: {state}");
        }
    }
}
