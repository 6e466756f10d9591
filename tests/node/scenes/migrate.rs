//! From git-sync to treeswap and back, with nothing changed but the image.

use std::os::unix::fs::chown;
use std::path::Path;

use crate::git_sync::{DROP_IN, ORIGINAL};
use crate::kube::eventually;
use crate::kube::{self, Kube};
use crate::shop::{Reader, Shop, reading_pod};

/// A Pod as git-sync's users have it: arguments only, the first revision by an init container.
fn pod_of_git_sync(url: &str) -> String {
    let arguments = format!(
        "--repo={url}, --link=current, --period=1s, --stale-worktree-timeout=1m, '--git-config=safe.directory:*'"
    );
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: migrant}}
spec:
  initContainers:
    - name: first
      image: {ORIGINAL}
      args: [{arguments}, --one-time, --max-failures=9]
      volumeMounts: [{{name: git, mountPath: /git}}]
  containers:
    - name: git-sync
      image: {ORIGINAL}
      args: [{arguments}, --max-failures=-1]
      volumeMounts: [{{name: git, mountPath: /git}}]
    - name: gateway
      image: registry.example.com/platform/gateway:1.0.0
      args: [/git, current]
      volumeMounts: [{{name: git, mountPath: /git, readOnly: true}}]
  volumes: [{{name: git, emptyDir: {{}}}}]
"
    )
}

/// The container's image is set again and again in one Pod: volume and application stay, and the application has a
/// complete revision at every moment.
pub fn pod(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("migrate-pod", "baseline");
    kube.apply(&pod_of_git_sync(&shop.url()));
    let found = || kube.get("pod/migrant");
    eventually("the Pod is ready", || kube::is_ready(&found()).then_some(()));
    let reader = shop.follow(&kube, "migrant", "gateway");
    reader.waits_for(shop.commit());
    let uid = found()["metadata"]["uid"].clone();
    for (restarts, image) in (1..).zip([DROP_IN, ORIGINAL, DROP_IN]) {
        kube.run(&["set", "image", "pod/migrant", &format!("git-sync={image}")]);
        eventually(&format!("{image} runs"), || {
            let found = found();
            let it = kube::container(&found, "git-sync");
            (it["image"] == image && it["restartCount"] == restarts && !it["state"]["running"].is_null())
                .then_some(())
        });
        goes_on(shop, &reader);
    }
    assert_eq!(found()["metadata"]["uid"], uid, "it is the same Pod");
    assert_eq!(kube::container(&found(), "gateway")["restartCount"], 0, "the application is not disturbed");
    say(shop, &reader);
    kube.run(&["delete", "pod/migrant", "--wait=true", "--timeout=120s"]);
}

/// The same directory of the node throughout: a Deployment that keeps it, and a Pod of its own that reads it. The
/// command is named, as many manifests have it.
fn deployment_of_git_sync(url: &str, directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: keeper}}
spec:
  strategy: {{type: Recreate}}
  selector: {{matchLabels: {{app: keeper}}}}
  template:
    metadata: {{labels: {{app: keeper}}}}
    spec:
      containers:
        - name: git-sync
          image: {ORIGINAL}
          command: [/git-sync]
          env:
            - {{name: GITSYNC_REPO, value: '{url}'}}
            - {{name: GITSYNC_ROOT, value: /config}}
            - {{name: GITSYNC_LINK, value: current}}
            - {{name: GITSYNC_PERIOD, value: 1s}}
            - {{name: GITSYNC_MAX_FAILURES, value: '-1'}}
            - {{name: GITSYNC_STALE_WORKTREE_TIMEOUT, value: 1m}}
          volumeMounts: [{{name: git, mountPath: /config}}]
      volumes: [{{name: git, hostPath: {{path: {directory}, type: Directory}}}}]
"
    )
}

/// A Deployment with `Recreate` and a directory of the node, whose image is set: between the old Pod's end and the new
/// one's start nobody keeps the directory, and the consumer notices nothing.
pub fn deployment(shop: &Shop) {
    shop.serve();
    let directory = shop.dir.join("git");
    std::fs::create_dir(&directory).unwrap();
    chown(&directory, Some(65533), Some(65533)).unwrap();
    let kube = shop.kube.in_new_namespace("migrate-deployment", "privileged");
    kube.apply(&deployment_of_git_sync(&shop.url(), &directory));
    eventually("git-sync has published", || std::fs::read_link(directory.join("current")).ok());
    let volume = format!("hostPath: {{path: {}, type: Directory}}", directory.display());
    kube.apply(&reading_pod("consumer", "current", &volume));
    let reader = shop.follow(&kube, &kube.ready("app=consumer"), "reader");
    reader.waits_for(shop.commit());
    for image in [DROP_IN, ORIGINAL, DROP_IN] {
        replace(&kube, image);
        goes_on(shop, &reader);
    }
    say(shop, &reader);
    kube.run(&["delete", "deployment,pod", "--all", "--wait=true", "--cascade=foreground", "--timeout=120s"]);
}

fn replace(kube: &Kube, image: &str) {
    kube.run(&["set", "image", "deployment/keeper", &format!("git-sync={image}")]);
    kube.run(&["rollout", "status", "deployment/keeper", "--timeout=180s"]);
    let pod = kube.get(&format!("pod/{}", kube.ready("app=keeper")));
    assert_eq!(kube::container(&pod, "git-sync")["image"], image);
}

/// Later revisions arrive, and nothing was missed.
fn goes_on(shop: &Shop, reader: &Reader) {
    for _ in 0..3 {
        reader.waits_for(shop.commit());
    }
    reader.assert_whole();
}

fn say(shop: &Shop, reader: &Reader) {
    shop.say(format_args!("to treeswap, back to git-sync, to treeswap: {:?}", reader.assert_whole()));
}
