//! What moves together in one repository and is read from two places: from one sidecar, from two ConfigMaps on one volume,
//! and, where there is git-sync, from two git-syncs. All in one Pod, with the same pushes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::binary;
use crate::common::run::{self, Background};
use crate::common::{Files, Random};
use crate::git_sync::ORIGINAL;
use crate::kube::{Kube, eventually};
use crate::shop::{CONSUMER, Reader, Shop};

/// At least so many.
const PUSHES: u64 = 12;

/// The directories that move together: where they are in the repository, and where in the set.
const DIRECTORIES: [(&str, &str); 2] =
    [("ci-operator/jobs", "jobs/release"), ("ci-operator/step-registry", "steps")];

/// The containers beside the sidecar's reader, merged into its Pod: a reader of a volume of both ConfigMaps.
const MAPPED: &str = "
          - name: mapped
            image: CONSUMER
            args: [/files, ..data, jobs, steps]
            volumeMounts: [{name: mapped, mountPath: /files, readOnly: true}]";
const MAPPED_VOLUME: &str = "
          - name: mapped
            projected: {sources: [{configMap: {name: jobs, items: [{key: number, path: jobs}]}},
                                  {configMap: {name: steps, items: [{key: number, path: steps}]}}]}";

/// And two git-syncs, with a reader of both their links.
const APART: &str = "
          - name: apart
            image: CONSUMER
            args: [/git, ., jobs/current/ci-operator/jobs/number, steps/current/ci-operator/step-registry/number]
            volumeMounts: [{name: git, mountPath: /git, readOnly: true}]";

struct Beside<'a> {
    shop: &'a Shop,
    kube: Kube,
    sources: PathBuf,
    /// Of each ConfigMap its name and its rule.
    rules: [(String, PathBuf); 2],
}

impl<'a> Beside<'a> {
    fn new(shop: &'a Shop) -> Self {
        let kube = shop.kube.in_new_namespace("beside", "baseline");
        let sources = shop.dir.join("sources.yaml");
        let url = shop.url();
        let source = |(path, to): (&str, &str)| {
            let name = to.split('/').next().unwrap();
            format!("  - {{name: {name}, repo: '{url}', ref: main, path: {path}, to: {to}}}\n")
        };
        let all: String = DIRECTORIES.map(source).concat();
        std::fs::write(&sources, format!("version: 1\nsources:\n{all}end: true\n")).unwrap();
        let rules = DIRECTORIES.map(|(_, to)| {
            let name = to.split('/').next().unwrap().to_owned();
            let maps = json!({ format!("{to}/number"): { "name": name } });
            let file = shop.dir.join(format!("{name}.json"));
            std::fs::write(&file, json!({"config_updater": {"maps": maps}}).to_string()).unwrap();
            (name, file)
        });
        Self { shop, kube, sources, rules }
    }

    /// A commit that moves both directories.
    fn commit(&self) -> u64 {
        let number = format!("{}\n", self.shop.newest() + 1);
        let files = DIRECTORIES
            .iter()
            .fold(Files::new(), |files, (path, _)| files.file(format!("{path}/number"), number.as_str()));
        self.shop.commit_with(files)
    }

    /// Writes both ConfigMaps: each by an applier of its own, as two teams have it.
    fn apply(&self) {
        for (name, rules) in &self.rules {
            let mut command = Command::new(binary());
            command.args(["apply", "--default-namespace=beside", "--owner", name, "--sources"]);
            command.arg(&self.sources).arg("--rules").arg(rules);
            command.arg("--kubeconfig").arg(self.shop.machine.dir.join("kubeconfig"));
            run::to_end(&mut command).expect_ok("apply");
        }
    }

    /// The example of two places, with our file and the readers.
    fn deploy(&self) {
        let dir = self.shop.dir.join("deploy/kustomize/user");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::copy(&self.sources, dir.join("sources.yaml")).unwrap();
        let (mut containers, mut volumes) = (MAPPED.to_owned(), MAPPED_VOLUME.to_owned());
        if self.shop.programs.git_sync.is_some() {
            containers += APART;
            volumes += "\n          - {name: git, emptyDir: {}}";
            for name in ["jobs", "steps"] {
                containers += &git_sync(name, &self.shop.url());
            }
        }
        let containers = containers.replace("CONSUMER", CONSUMER);
        let text = format!(
            "
resources: [../examples/two-places]
configMapGenerator:
- name: treeswap-sidecar
  behavior: merge
  literals: [TREESWAP_PERIOD=200ms, TREESWAP_MIN_INTERVAL=0s]
- {{name: treeswap-sources, behavior: replace, files: [sources.yaml], options: {{disableNameSuffixHash: true}}}}
patches:
- target: {{kind: Deployment, name: scheduler}}
  patch: |
    - {{op: replace, path: /spec/template/spec/containers/0/args,
       value: [/config, ..data, jobs/release/number, steps/number]}}
- target: {{kind: Deployment, name: scheduler}}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: scheduler}}
    spec:
      template:
        spec:
          containers:{containers}
          volumes:{volumes}
"
        );
        std::fs::write(dir.join("kustomization.yaml"), text).unwrap();
        self.kube.apply(&self.kube.kustomize(&dir));
    }

    /// Pushes, and writes the ConfigMaps, until both have happened often enough; how often. Each push is seen by the readers
    /// before the next: what is counted by pushes is not two in one swap.
    fn push(&self, readers: &[&Reader], mapped: &Reader) -> u64 {
        let begun = Instant::now();
        let mut pushes = 0;
        while pushes < PUSHES || mapped.counts().torn == 0 {
            let took = begun.elapsed();
            assert!(
                took < Duration::from_secs(300),
                "no mixed set after {pushes} pushes: {:?}",
                mapped.counts()
            );
            let number = self.commit();
            self.apply();
            readers.iter().for_each(|reader| _ = reader.waits_for(number));
            pushes += 1;
        }
        pushes
    }
}

/// A container with git-sync itself, with a root of its own below one volume.
fn git_sync(name: &str, url: &str) -> String {
    format!(
        "
          - name: sync-{name}
            image: {ORIGINAL}
            args: [--repo={url}, --ref=main, --root=/git/{name}, --link=current, --period=1s, --max-failures=-1,
                   --stale-worktree-timeout=1m, '--git-config=safe.directory:*']
            volumeMounts: [{{name: git, mountPath: /git}}]"
    )
}

/// Counts the events of an agent that watches these links.
struct Agent(Background);

impl Agent {
    fn start(shop: &Shop, name: &str, links: &[PathBuf]) -> Self {
        let mut command = Command::new(shop.programs.consumers.join("agent"));
        let agent = Self(Background::start(command.args(links), &shop.dir.join(format!("agent-{name}.log"))));
        eventually("the agent watches", || agent.0.log().starts_with("watching\n").then_some(()));
        agent
    }

    fn events(&self) -> u64 {
        self.0.log().lines().filter(|line| line.starts_with("event ")).count() as u64
    }

    /// So many, and none more.
    fn assert_saw(&self, events: u64) {
        eventually(&format!("{events} events"), || (self.events() >= events).then_some(()));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(self.events(), events, "{}", self.0.log());
    }
}

/// The kubelet looks at the volumes of a Pod that changes, at moments that nobody chose.
fn look_again_and_again(kube: &Kube, pod: &str, stop: &AtomicBool) {
    let mut random = Random::new(17);
    for look in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        kube.run(&["annotate", "--overwrite", "pod", pod, &format!("example.com/look={look}")]);
        random.pause(50);
    }
}

/// A reader of one sidecar's root never sees two commits, and a CI agent sees one event a push. A reader of two ConfigMaps
/// on one volume sees two at times, one of two git-syncs, too, and their agent sees two events a push.
pub fn two_places(shop: &Shop) {
    shop.serve();
    let beside = Beside::new(shop);
    beside.commit();
    beside.apply();
    beside.deploy();
    let kube = &beside.kube;
    let pod = kube.ready("app.kubernetes.io/name=scheduler");
    let found = kube.get(&format!("pod/{pod}"));
    let [ours, mapped] = ["scheduler", "mapped"].map(|container| shop.follow(kube, &pod, container));
    let apart = shop.programs.git_sync.is_some().then(|| shop.follow(kube, &pod, "apart"));
    let mut readers = vec![&ours];
    readers.extend(&apart);
    readers.iter().for_each(|reader| _ = reader.waits_for(shop.newest()));

    let root = shop.volume(&found, "empty-dir", "config");
    let agent = Agent::start(shop, "treeswap", &[root.join("..data")]);
    let of_both = apart.as_ref().map(|_| {
        let git = shop.volume(&found, "empty-dir", "git");
        Agent::start(shop, "git-sync", &["jobs", "steps"].map(|name| git.join(name).join("current")))
    });
    let stop = AtomicBool::new(false);
    let pushes = std::thread::scope(|scope| {
        let looks = scope.spawn(|| look_again_and_again(kube, &pod, &stop));
        let pushes =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| beside.push(&readers, &mapped)));
        stop.store(true, Ordering::Relaxed);
        looks.join().unwrap();
        pushes.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    agent.assert_saw(pushes);
    let whole = ours.assert_whole();
    let counts = mapped.counts();
    shop.say(format_args!("{pushes} pushes; one sidecar: {} reads, 0 mixed, {pushes} events", whole.reads));
    shop.say(format_args!(
        "a volume of two ConfigMaps: {} of {} reads mixed, {} vanished",
        counts.torn, counts.reads, counts.vanished
    ));
    match apart.zip(of_both.as_ref()) {
        Some((apart, agent)) => {
            agent.assert_saw(2 * pushes);
            let counts = apart.counts();
            assert!(counts.torn > 0, "{counts:?}");
            // Until both had published, there was nothing to read.
            let (reads, torn, events) = (counts.reads - counts.vanished, counts.torn, agent.events());
            shop.say(format_args!("two git-syncs: {torn} of {reads} reads mixed, {events} events"));
        }
        None => shop.say("two git-syncs: left out: TREESWAP_TEST_GIT_SYNC names no git-sync"),
    }
    drop((agent, of_both)); // they hold volumes, which the kubelet has to unmount
    kube.run(&["delete", "deployment", "--all", "--wait=true", "--cascade=foreground", "--timeout=120s"]);
}
