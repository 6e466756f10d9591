//! Two places under one directory, as a CI system wanted them: by one sidecar, which the guide to several sources sets up.

use std::path::{Path, PathBuf};

use crate::common::run::Background;
use crate::common::{Files, Remote, binary};
use crate::kube::{Kube, eventually};
use crate::shop::Shop;

/// What the reader compares: of each directory of the first repository the file with the revision's number.
const READ: &str = "/config, ..data, jobs/release/number, steps/number";

/// The gate's shell and its programs are the node's; treeswap's image has none.
const HOST: [(&str, &str); 5] = [
    ("usr", "/usr"),
    ("bin", "/bin"),
    ("lib", "/lib"),
    ("lib64", "/lib64"),
    ("alternatives", "/etc/alternatives"),
];

struct Places<'a> {
    shop: &'a Shop,
    kube: Kube,
    generated: Remote,
}

impl Places<'_> {
    /// A commit that moves both directories of the first repository.
    fn commit(&self) -> u64 {
        let number = format!("{}\n", self.shop.newest() + 1);
        let files = Files::new()
            .file("ci-operator/jobs/number", number.as_str())
            .file("ci-operator/jobs/acme/shop-main.yaml", "presubmits: {}\n")
            .file("ci-operator/step-registry/number", number.as_str());
        self.shop.commit_with(files)
    }

    fn generate(&self, file: &str, text: &str) {
        self.generated.commit(&Files::new().file(format!("acme/{file}"), text));
    }

    /// The file, with generated jobs placed here.
    fn list(&self, generated: &str) -> String {
        let first = self.shop.url();
        let second = first.replace("config.git", "generated.git");
        format!(
            "version: 1
unique-base-names: \"jobs/**/*.yaml\"
sources:
  - {{name: jobs, repo: '{first}', ref: main, path: ci-operator/jobs, to: jobs/release}}
  - {{name: steps, repo: '{first}', ref: main, path: ci-operator/step-registry, to: steps}}
  - {{name: generated, repo: '{second}', ref: main, to: {generated}}}
end: true
"
        )
    }

    /// The example on top of the component, with our file, the guide's gate, and the reader that counts.
    fn deploy(&self, generated: &str) {
        let dir = self.shop.dir.join("deploy/kustomize/user");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("sources.yaml"), self.list(generated)).unwrap();
        std::fs::write(dir.join("maps-only"), gate()).unwrap();
        let mounts =
            HOST.map(|(name, at)| format!("{{name: {name}, mountPath: {at}, readOnly: true}}")).join(", ");
        let volumes = HOST.map(|(name, at)| format!("{{name: {name}, hostPath: {{path: {at}}}}}")).join(", ");
        let text = format!(
            "
resources: [../examples/two-places]
configMapGenerator:
- name: treeswap-sidecar
  behavior: merge
  literals:
  - TREESWAP_PERIOD=1s
  - TREESWAP_MIN_INTERVAL=0s
  - TREESWAP_PRE_PUBLISH_EXECHOOK_COMMAND=/hooks/maps-only
  - TREESWAP_PRE_PUBLISH_GATE=true
- {{name: treeswap-sources, behavior: replace, files: [sources.yaml], options: {{disableNameSuffixHash: true}}}}
- {{name: gate, files: [maps-only], options: {{disableNameSuffixHash: true}}}}
patches:
- target: {{kind: Deployment, name: scheduler}}
  patch: |
    - {{op: replace, path: /spec/template/spec/containers/0/args, value: [{READ}]}}
- target: {{kind: Deployment, name: scheduler}}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: scheduler}}
    spec:
      template:
        spec:
          initContainers:
          - name: treeswap
            env: [{{name: PATH, value: '/usr/bin:/bin'}}]
            volumeMounts: [{{name: gate, mountPath: /hooks}}, {mounts}]
          volumes: [{{name: gate, configMap: {{name: gate, defaultMode: 0555}}}}, {volumes}]
"
        );
        std::fs::write(dir.join("kustomization.yaml"), text).unwrap();
        self.kube.apply(&self.kube.kustomize(&dir));
    }
}

/// The gate that the guide shows.
fn gate() -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/sources.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, script) = guide.split_once("\n#!/bin/sh\n").expect("the guide has a gate");
    let (script, _) = script.split_once("\n```").expect("a block ends");
    format!("#!/bin/sh\n{script}\n")
}

/// Writes down the number at each swap of the root.
fn watching(shop: &Shop, root: &Path) -> (Background, PathBuf) {
    let seen = shop.dir.join("events");
    let mut command = std::process::Command::new(binary());
    command.arg("watch").arg(root).args(["--", "sh", "-c"]);
    command.args([r#"cat "$TREESWAP_DIR/steps/number" >> "$0""#]).arg(&seen);
    (Background::start(&mut command, &shop.dir.join("watching.log")), seen)
}

/// Each commit is one swap of both directories. Two files of one base name, and a list where a map has to be, are refused
/// by name, and what was published goes on being read. A changed file of sources is read by the Pod that runs.
pub fn one_directory(shop: &Shop) {
    shop.serve();
    let kube = shop.kube.in_new_namespace("places", "privileged");
    let generated = Remote::create(&shop.dir.join("repositories/generated.git"));
    let places = Places { shop, kube: kube.clone(), generated };
    places.generate("shop-generated.yaml", "periodics: []\n");
    let first = places.commit();
    places.deploy("jobs/generated");
    let pod = kube.ready("app.kubernetes.io/name=scheduler");
    let reader = shop.follow(&kube, &pod, "scheduler");
    reader.waits_for(first);
    let found = kube.get(&format!("pod/{pod}"));
    let root = shop.volume(&found, "empty-dir", "config");

    let (watch, seen) = watching(shop, &root);
    let events = || std::fs::read_to_string(&seen).unwrap_or_default();
    let mut expected = format!("{first}\n");
    for _ in 0..6 {
        eventually("the event", || (events() == expected).then_some(()));
        let number = places.commit();
        reader.waits_for(number);
        expected += &format!("{number}\n");
    }
    eventually("one event a commit", || (events() == expected).then_some(()));

    let link = || std::fs::read_link(root.join("..data")).unwrap();
    let before = link();
    let says = |words: &str| {
        eventually(words, || {
            let said = kube.try_run(&["logs", &pod, "--container=treeswap", "--tail=200"]).stdout;
            said.contains(words).then_some(())
        });
    };
    places.generate("shop-main.yaml", "periodics: []\n");
    says(
        "`jobs/generated/acme/shop-main.yaml` of source generated and `jobs/release/acme/shop-main.yaml` of source jobs \
         have one base name",
    );
    places.generate("shop-generated.yaml", "- name: nightly\n");
    says("jobs/generated/acme/shop-generated.yaml is no map: - name: nightly");
    assert_eq!(link(), before, "what is refused changes nothing");
    assert_eq!(events(), expected, "and is no event");
    places.generate("shop-generated.yaml", "periodics: [{name: nightly}]\n");
    eventually("what is mended is published", || (link() != before).then_some(()));
    expected += &format!("{}\n", shop.newest());
    eventually("as one event", || (events() == expected).then_some(()));

    places.deploy("jobs/elsewhere");
    let mut looks = 0..;
    eventually("the changed file is read", || {
        // The kubelet looks at a Pod's volumes about once a minute, and when the Pod's object changes.
        let look = format!("example.com/look={}", looks.next()?);
        kube.run(&["annotate", "--overwrite", "pod", &pod, &look]);
        root.join("..data/jobs/elsewhere/acme/shop-generated.yaml").exists().then_some(())
    });
    expected += &format!("{}\n", shop.newest());
    eventually("as one event", || (events() == expected).then_some(()));
    let now = kube.get(&format!("pod/{pod}"));
    assert_eq!(now["metadata"]["uid"], found["metadata"]["uid"], "by the Pod that ran before");
    assert_eq!(kube.ready("app.kubernetes.io/name=scheduler"), pod);
    let counts = reader.assert_whole();
    let swaps = expected.lines().count();
    shop.say(format_args!("{swaps} swaps, one event each; {} reads, none torn", counts.reads));
    drop(watch); // it holds the volume, which the kubelet has to unmount
    kube.run(&["delete", "deployment", "--all", "--wait=true", "--cascade=foreground", "--timeout=120s"]);
}
