//! Consumers as they exist, unchanged between a ConfigMap volume and treeswap's directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::eventually;
use crate::common::run::Background;
use crate::shop::{READER, Shop};

/// A Pod with the same three files in a ConfigMap volume.
const MOUNTED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: mounted, labels: {app: mounted}}
spec:
  containers:
    - name: gateway
      image: registry.example.com/platform/gateway:1.0.0
      args: [/config, ..data]
      volumeMounts: [{name: config, mountPath: /config, readOnly: true}]
  volumes:
    - name: config
      configMap: {name: files, items: [{key: a, path: a}, {key: b, path: b}, {key: c, path: sub/c}]}
";

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

/// The same programs on both volumes load the first revision and the second; the time from the change until a Pod sees
/// it is measured on the way: the kubelet's is about a minute.
pub fn load(shop: &mut Shop) {
    shop.serve();
    let kube = shop.kube.namespace("consumers", "privileged");
    let first = shop.commit();
    kube.apply(&files(first));
    kube.apply(MOUNTED);
    let one = format!("{READER}    - {{op: replace, path: /spec/replicas, value: 1}}\n");
    shop.deploy(&kube, "examples/one-service", "treeswap-sidecar", &[], &one);
    let pods = [
        ("configmap", kube.ready("app=mounted")),
        ("empty-dir", kube.ready("app.kubernetes.io/name=gateway")),
    ];
    let readers = [0, 1].map(|at| shop.follow(&kube, &pods[at].1, "gateway"));
    let mut loading = Vec::new();
    for (kind, pod) in &pods {
        let uid = kube.get(&format!("pod/{pod}"))["metadata"]["uid"].as_str().unwrap().to_owned();
        let volume: PathBuf =
            shop.machine.dir.join(format!("kubelet/pods/{uid}/volumes/kubernetes.io~{kind}/config"));
        for (language, mut program) in programs(&shop.consumers) {
            let log = shop.machine.dir.join(format!("{language}-{kind}.log"));
            loading.push((language, *kind, Background::start(program.arg(&volume), &log)));
        }
    }
    let loaded = |revision: u64| {
        for (language, kind, program) in &loading {
            let line = format!("loaded {revision} {revision} {revision}\n");
            let what = format!("the {language} program on the {kind} volume says {line}");
            eventually(180, &what, || {
                std::thread::sleep(Duration::from_millis(20));
                program.log().contains(&line).then_some(())
            });
        }
    };
    loaded(first);
    let changed = jiff::Timestamp::now().as_nanosecond() as i64;
    let second = shop.commit();
    kube.apply(&files(second));
    let [kubelet, treeswap] =
        readers.each_ref().map(|reader| (reader.waits_for(second) - changed) as f64 / 1e9);
    loaded(second);
    println!(
        "        commit to visible in a Pod: {treeswap:.1} s; a ConfigMap volume after kubectl apply: {kubelet:.1} s"
    );
    readers.iter().for_each(|reader| {
        reader.assert_whole();
    });
    kube.run(&["delete", "deployment,pod", "--all", "--wait=true", "--timeout=120s"]);
}
