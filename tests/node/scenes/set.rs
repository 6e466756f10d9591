//! Several ConfigMaps that belong together, on one volume.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::applier::{MAPS, RULES, commit};
use crate::common::binary;
use crate::common::run::{self, Background, Ran};
use crate::kube::{Kube, eventually};
use crate::shop::{Shop, reading_pod};

/// Two ConfigMaps and the marker on one volume, as the guide to ConfigMaps has it.
const MAPS_AND_MARKER: &str = "projected: {sources: [
    {configMap: {name: alpha}},
    {configMap: {name: beta}},
    {configMap: {name: treeswap-set-acme,
                 items: [{key: alpha, path: .treeswap/alpha}, {key: beta, path: .treeswap/beta}]}}]}";

/// What is ours to write.
const ALL: [&str; 4] = ["alpha", "beta", "treeswap-set-acme", "treeswap-ledger-acme"];

/// Somebody who may write some ConfigMaps of a namespace.
struct Writer<'a> {
    shop: &'a Shop,
    kube: Kube,
    kubeconfig: PathBuf,
}

impl<'a> Writer<'a> {
    fn new(shop: &'a Shop, kube: &Kube) -> Self {
        kube.run(&["create", "serviceaccount", "writer"]);
        kube.run(&["create", "rolebinding", "writer", "--role=writer", "--serviceaccount=sets:writer"]);
        let config = std::fs::read_to_string(shop.machine.dir.join("kubeconfig")).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["users"][0]["user"]["token"] = kube.run(&["create", "token", "writer"]).trim().into();
        let kubeconfig = shop.dir.join("writer");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { shop, kube: kube.clone(), kubeconfig }
    }

    /// Lets it write over just these.
    fn may_update(&self, maps: &[&str]) {
        let rules = json!([
            { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "get", "create"] },
            { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["update"], "resourceNames": maps },
        ]);
        let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": "writer" }, "rules": rules });
        self.kube.apply(&role.to_string());
        for map in ALL {
            eventually("the Role is in force", || {
                let map_named = format!("configmaps/{map}");
                let asked = ["auth", "can-i", "update", &map_named, "--as=system:serviceaccount:sets:writer"];
                (self.kube.try_run(&asked).ok() == maps.contains(&map)).then_some(())
            });
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.args(["apply", "--owner=acme", &format!("--rules-in-tree={RULES}"), "--ref=main"]);
        command.args([
            "--default-namespace=sets",
            "--stamp-key=.{name}.stamp",
            "--repo",
            &self.shop.url(),
            "--kubeconfig",
        ]);
        command.arg(&self.kubeconfig);
        command
    }

    fn apply(&self) -> Ran {
        run::to_end(&mut self.command())
    }

    /// A revision of which beta cannot be written: the number that alpha has now.
    fn half(&self) -> u64 {
        self.may_update(&["alpha", "treeswap-set-acme", "treeswap-ledger-acme"]);
        commit(self.shop, &MAPS[..2]);
        let ran = self.apply();
        assert_eq!(ran.status.code(), Some(3), "{}{}", ran.stdout, ran.stderr);
        self.number()
    }

    /// The rest of it.
    fn whole(&self) -> u64 {
        self.may_update(&ALL);
        self.apply().expect_ok("apply");
        self.number()
    }

    fn number(&self) -> u64 {
        self.kube.get("configmap/alpha")["data"]["a"].as_str().unwrap().trim().parse().unwrap()
    }
}

/// A program that writes down what it loads at each swap of the volume.
fn loading(shop: &Shop, volume: &Path, name: &str, flag: Option<&str>) -> (Background, PathBuf) {
    let seen = shop.dir.join(format!("{name}.seen"));
    let mut command = Command::new(binary());
    command.arg("watch").args(flag).arg(volume).arg("--");
    // A set that the kubelet removes while it is read is none.
    command.args(["sh", "-c", r#"both=$(cd "$TREESWAP_DIR" && cat a b) && echo $both >> "$0""#]).arg(&seen);
    (Background::start(&mut command, &shop.dir.join(format!("{name}.log"))), seen)
}

fn lines(seen: &Path) -> Vec<String> {
    std::fs::read_to_string(seen).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// What is written while the kubelet refreshes the volume: `watch --set` runs its program for complete sets only. The
/// same without the flag, and a consumer in the Pod, take what lies between for a set.
pub fn complete(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("sets", "restricted");
    let writer = Writer::new(shop, &kube);
    commit(shop, &MAPS[..2]);
    let first = writer.whole();
    // Its consumer knows nothing of markers.
    kube.apply(&reading_pod("mounted", "..data, a, b", MAPS_AND_MARKER));
    let pod = kube.ready("app=mounted");
    let reader = shop.follow(&kube, &pod, "reader");
    let volume = shop.volume(&kube.get("pod/mounted"), "projected", "files");
    let (reads_sets, sets) = loading(shop, &volume, "sets", Some("--set"));
    let (reads_swaps, swaps) = loading(shop, &volume, "swaps", None);
    let until = |seen: &Path, pair: (u64, u64)| {
        let line = format!("{} {}", pair.0, pair.1);
        eventually(&format!("{line} in {}", seen.display()), || {
            // The kubelet looks at the volumes of a Pod that has changed at once, not in a minute.
            let now = format!("at={}", jiff::Timestamp::now().as_nanosecond());
            kube.run(&["annotate", "pod", "mounted", "--overwrite", &now]);
            lines(seen).contains(&line).then_some(())
        });
    };
    until(&sets, (first, first));
    until(&swaps, (first, first));
    let mut expected = vec![format!("{first} {first}")];
    let mut last = first;
    for _ in 0..3 {
        let half = writer.half();
        until(&swaps, (half, last));
        assert_eq!(lines(&sets), expected, "what is mixed is no set");
        last = writer.whole();
        assert_eq!(last, half);
        until(&sets, (last, last));
        expected.push(format!("{last} {last}"));
        assert_eq!(lines(&sets), expected);
    }

    // All is written but the marker: the remote is asked once more before that.
    let revision = commit(shop, &MAPS[..2]);
    let (asked, written) = (kube.clone(), revision);
    shop.hold(move || {
        let all = ["configmap/alpha", "configmap/beta"].map(|map| crate::applier::revision(&asked.get(map)));
        all.iter().all(|one| one.as_ref() == Some(&written))
    });
    let mut applying = Background::start(&mut writer.command(), &shop.dir.join("applying.log"));
    eventually("both maps are written", || (shop.held() > 0).then_some(()));
    last = writer.number();
    until(&swaps, (last, last));
    assert_eq!(lines(&sets), expected, "nobody has said yet that it is complete");
    shop.release();
    until(&sets, (last, last));
    let ended = applying.ended();
    assert!(ended.success(), "{ended}: {}", applying.log());

    // And whenever the kubelet may look.
    for _ in 0..5 {
        commit(shop, &MAPS[..2]);
        writer.apply().expect_ok("apply");
        kube.run(&["annotate", "pod", "mounted", "--overwrite", &format!("of={}", writer.number())]);
    }
    let last = writer.number();
    until(&sets, (last, last));
    let mixed = |line: &&String| line.split(' ').next() != line.split(' ').nth(1);
    assert_eq!(lines(&sets).iter().find(mixed), None);
    let counts = eventually("the consumer in the Pod has read what is mixed", || {
        Some(reader.counts()).filter(|counts| counts.torn > 0)
    });
    shop.say(format_args!(
        "{} complete sets; without --set {} of {} were mixed, and {} of {} reads in the Pod",
        lines(&sets).len(),
        lines(&swaps).iter().filter(mixed).count(),
        lines(&swaps).len(),
        counts.torn,
        counts.reads
    ));
    // They hold the volume, which the kubelet has to unmount.
    drop((reads_sets, reads_swaps));
    kube.run(&["delete", "pod", "mounted", "--wait=true", "--timeout=120s"]);
}
