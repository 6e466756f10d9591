//! How long a commit takes to be visible in a Pod, and what a slow reader gets to see, on the ways that lead there.

use std::time::Duration;

use crate::git_sync::ORIGINAL;
use crate::kube::Kube;
use crate::kube::eventually;
use crate::shop::{Counts, Reader, Shop};

/// So many commits, so far apart; the kubelet looks at a volume about once a minute.
const COMMITS: usize = 24;
const PAUSE: Duration = Duration::from_secs(5);

/// A way for files into a Pod: the containers that bring them, the volume, and the link that leads to the files.
struct Way {
    name: &'static str,
    writers: String,
    volume: &'static str,
    link: &'static str,
}

const EMPTY: &str = "{name: config, emptyDir: {}}";
const MAPPED: &str = "{name: config, configMap: {name: files, items: \
    [{key: a, path: a}, {key: b, path: b}, {key: c, path: sub/c}]}}";

fn ways(shop: &Shop) -> Vec<Way> {
    let url = shop.url();
    let mut ways = vec![
        Way {
            name: "treeswap",
            writers: format!(
                "
    - name: treeswap
      image: registry.example.com/platform/treeswap:0.1.0
      args: [sync, --root=/config, --repo={url}, --period=1s, --min-interval=0s]
      restartPolicy: Always
      startupProbe: {{exec: {{command: [/treeswap, status, /config]}}, periodSeconds: 1, failureThreshold: 600}}
      volumeMounts: [{{name: config, mountPath: /config}}]"
            ),
            volume: EMPTY,
            link: "..data",
        },
        Way { name: "configmap", writers: " []".into(), volume: MAPPED, link: "..data" },
    ];
    if shop.programs.git_sync.is_some() {
        let container = |name: &str, more: &str| {
            format!(
                "
    - name: {name}
      image: {ORIGINAL}
      args: [--repo={url}, --root=/config, --link=current, --period=1s, '--git-config=safe.directory:*', {more}
      volumeMounts: [{{name: config, mountPath: /config}}]"
            )
        };
        ways.push(Way {
            name: "git-sync",
            writers: container("first", "--one-time, --max-failures=9]")
                + &container("git-sync", "--max-failures=-1]\n      restartPolicy: Always"),
            volume: EMPTY,
            link: "current",
        });
    }
    ways
}

/// The Pod of a way, with two consumers of the same files: one that sees a revision soon, one that reads slowly.
fn pod(way: &Way) -> String {
    let Way { name, writers, volume, link } = way;
    let mut text = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  volumes: [{volume}]
  initContainers:{writers}
  containers:"
    );
    for (reader, slow) in [("quick", "2ms"), ("slow", "20ms")] {
        text += &format!(
            "
    - name: {reader}
      image: registry.example.com/platform/gateway:1.0.0
      args: [--slow={slow}, /config, {link}]
      volumeMounts: [{{name: config, mountPath: /config, readOnly: true}}]"
        );
    }
    text
}

/// What brings the same files into the ConfigMap: treeswap, in a Pod of its own.
fn applier(url: &str) -> String {
    format!(
        "
apiVersion: v1
kind: ConfigMap
metadata: {{name: rules}}
data:
  rules.yaml: |
    maps:
      a: {{name: files, clusters: {{default: [latency]}}}}
      b: {{name: files, clusters: {{default: [latency]}}}}
      sub/c: {{name: files, clusters: {{default: [latency]}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: applier, labels: {{app: applier}}}}
spec:
  serviceAccountName: applier
  containers:
    - name: treeswap
      image: registry.example.com/platform/treeswap:0.1.0
      args:
        - sync
        - --owner=acme
        - --rules=/rules/rules.yaml
        - --repo={url}
        - --ref=main
        - --period=1s
        - --min-interval=0s
      volumeMounts: [{{name: rules, mountPath: /rules, readOnly: true}}]
  volumes: [{{name: rules, configMap: {{name: rules}}}}]
"
    )
}

/// The same commits on every way: the table that says when a Pod saw them and what a slow reader got. Only what
/// treeswap promises must hold; times are for people.
pub fn side_by_side(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("latency", "baseline");
    let first = shop.commit(); // before anybody looks: revisions are told apart by their order
    deploy_applier(shop, &kube);
    let ways = ways(shop);
    ways.iter().for_each(|way| kube.apply(&pod(way)));
    let readers: Vec<_> = ways.iter().map(|way| follow(shop, &kube, way.name)).collect();
    for reader in readers.iter().flatten() {
        eventually("every consumer has seen a revision", || reader.saw_from(first));
    }

    let before: Vec<_> = readers.iter().map(|[_, slow]| slow.counts()).collect();
    let mut commits = Vec::new();
    for _ in 0..COMMITS {
        let begun = jiff::Timestamp::now().as_nanosecond() as i64;
        commits.push((shop.commit(), begun));
        std::thread::sleep(PAUSE);
    }
    shop.say(format_args!(
        "{COMMITS} commits, one every {PAUSE:?}; asked for every 1s; three files, read slowly at 20ms each\n\
         \x20                   seconds from commit to visible        sets read  torn or gone, per million:\n\
         \x20                     least    median      most                        by path   by directory"
    ));
    for ((way, [quick, slow]), before) in ways.iter().zip(&readers).zip(before) {
        row(shop, way.name, &seconds(way.name, quick, &commits), &before, &slow.counts());
    }
    if shop.programs.git_sync.is_none() {
        shop.say("git-sync     left out: TREESWAP_TEST_GIT_SYNC names no git-sync");
    }
    for reader in &readers[0] {
        reader.assert_whole();
    }
    kube.run(&["delete", "pod", "--all", "--wait=true", "--timeout=120s"]);
}

fn deploy_applier(shop: &Shop, kube: &Kube) {
    for what in [
        &["serviceaccount", "applier"][..],
        &["role", "applier", "--verb=list,get,create,update", "--resource=configmaps"],
        &["rolebinding", "applier", "--role=applier", "--serviceaccount=latency:applier"],
    ] {
        kube.run(&[&["create"], what].concat());
    }
    kube.apply(&applier(&shop.url()));
    eventually("the ConfigMap is there", || (!kube.get("configmap/files").is_null()).then_some(()));
}

fn follow(shop: &Shop, kube: &Kube, name: &str) -> [Reader; 2] {
    let pod = kube.ready(&format!("app={name}"));
    ["quick", "slow"].map(|container| shop.follow(kube, &pod, container))
}

/// How long each commit took until the reader saw it or a later one, shortest first.
fn seconds(name: &str, reader: &Reader, commits: &[(u64, i64)]) -> Vec<f64> {
    let mut seconds: Vec<f64> = commits
        .iter()
        .map(|(number, begun)| {
            let what = format!("{name} shows revision {number} or a later one");
            let seen = eventually(&what, || reader.saw_from(*number));
            (seen - begun) as f64 / 1e9
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

fn row(shop: &Shop, name: &str, seconds: &[f64], before: &Counts, after: &Counts) {
    let read = (after.reads - before.reads) as f64;
    let million = |of: fn(&Counts) -> u64| (of(after) - of(before)) as f64 / read * 1e6;
    shop.say(format_args!(
        "{name:<12} {:>10.2} {:>9.2} {:>9.2} {read:>16} {:>14.0} {:>14.0}",
        seconds[0],
        seconds[seconds.len() / 2],
        seconds[seconds.len() - 1],
        million(|counts| counts.mixed),
        million(|counts| counts.torn + counts.vanished),
    ));
}
