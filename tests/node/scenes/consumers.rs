//! Consumers as they exist, unchanged between a ConfigMap volume and treeswap's directory.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::run::Background;
use crate::kube::eventually;
use crate::shop::{Shop, one_reader, reading_pod};

/// The volume of a Pod with the same three files from a ConfigMap.
const MAPPED: &str =
    "configMap: {name: files, items: [{key: a, path: a}, {key: b, path: b}, {key: c, path: sub/c}]}";

fn files(revision: u64) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: files}}, data: {{a: \"{revision}\\n\", b: \"{revision}\\n\", c: \"{revision}\\n\"}}}}"
    )
}

/// The programs of testdata/consumers that load at every swap, in the language they are written in.
fn programs(consumers: &Path) -> Vec<(&'static str, Command)> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/consumers");
    let mut python = Command::new("python3");
    python.arg(scripts.join("watch.py"));
    let mut shell = Command::new("sh");
    shell.arg(scripts.join("watch.sh"));
    vec![("Go", Command::new(consumers.join("watch"))), ("Python", python), ("shell", shell)]
}

/// The same programs on both volumes load the first revision and the second.
pub fn load(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("consumers", "privileged");
    let first = shop.commit();
    kube.apply(&files(first));
    kube.apply(&reading_pod("mounted", "..data", MAPPED));
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[], &one_reader(""));
    let ours = kube.ready("app.kubernetes.io/name=gateway");
    let theirs = kube.ready("app=mounted");
    let treeswap = shop.follow(&kube, &ours, "gateway");
    let kubelet = shop.follow(&kube, &theirs, "reader");
    let volumes = [("configmap", "files", &theirs), ("empty-dir", "config", &ours)];
    let mut loading = Vec::new();
    for (kind, name, pod) in volumes {
        let volume = shop.volume(&kube.get(&format!("pod/{pod}")), kind, name);
        for (language, mut program) in programs(&shop.programs.consumers) {
            let log = shop.dir.join(format!("{language}-{kind}.log"));
            loading.push((language, kind, Background::start(program.arg(&volume), &log)));
        }
    }
    let loaded = |revision: u64| {
        for (language, kind, program) in &loading {
            let line = format!("loaded {revision} {revision} {revision}\n");
            let what = format!("the {language} program on the {kind} volume says {line}");
            eventually(&what, || program.log().contains(&line).then_some(()));
        }
    };
    loaded(first);
    let second = shop.commit();
    kube.apply(&files(second));
    treeswap.waits_for(second);
    let mut looks = 0..;
    eventually("the kubelet brings the second revision", || {
        // It looks at a Pod's volumes about once a minute, and when the Pod's object changes.
        let look = format!("example.com/look={}", looks.next()?);
        kube.run(&["annotate", "--overwrite", "pod/mounted", &look]);
        std::thread::sleep(Duration::from_secs(1));
        kubelet.saw(second)
    });
    loaded(second);
    treeswap.assert_whole(); // the kubelet removes what is replaced at once, whoever reads it
    kube.run(&["delete", "deployment,pod", "--all", "--wait=true", "--timeout=120s"]);
}
