//! What the scenes share, a node with images on it, and what each has for itself: a repository with its git server, and
//! the user's own kustomization on top of `deploy/`. So scenes can be played side by side.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::common::http_backend::{Canned, HttpBackend, Kind};
use super::common::{Files, Remote, run};
use super::git_sync;
use super::kube::{self, Kube, eventually};
use super::machine::{ADDRESS, Machine, PAUSE};

/// The images that the examples name, so that they are deployed as they are.
pub const TREESWAP: &str = "registry.example.com/platform/treeswap:0.1.0";
pub const CONSUMER: &str = "registry.example.com/platform/gateway:1.0.0";

/// The programs that scenes start or deploy.
#[derive(Clone)]
pub struct Programs {
    /// Where `tests/cluster/build --node` put Kubernetes'.
    pub kubernetes: PathBuf,
    pub helm: PathBuf,
    /// Where the consumers written in Go were built.
    pub consumers: PathBuf,
    /// treeswap, linked statically.
    pub treeswap: PathBuf,
    /// git-sync's own, where there is one; its image and ours for its place are then on the node.
    pub git_sync: Option<PathBuf>,
}

/// A node with every image that scenes deploy.
pub struct Node {
    pub machine: Arc<Machine>,
    programs: Programs,
    /// How many scenes were begun.
    begun: AtomicU16,
}

impl Node {
    pub fn up(dir: &Path, programs: Programs) -> Self {
        let machine = Machine::up(dir, &programs.kubernetes);
        let reader = programs.consumers.join("reader");
        machine.image(PAUSE, &reader, &["/reader", "pause"]);
        machine.image(CONSUMER, &reader, &["/reader"]);
        // The other services of the examples are the same consumer.
        for name in [
            "scheduler",
            "billing",
            "catalog",
            "search",
            "mailer",
            "audit",
            "reports",
            "sessions",
            "webhooks",
        ] {
            let image = CONSUMER.replace("gateway", name);
            run::to_end(&mut machine.ctr(&["images", "tag", CONSUMER, &image])).expect_ok("ctr images tag");
        }
        let pack = |image: &str, kind: &str| {
            let archive = dir.join("image.tar");
            let mut pack = Command::new(shipped().join("image"));
            pack.args((kind == "git-sync").then_some("--git-sync"));
            let packed = run::to_end(pack.arg(&archive).arg(image).arg(&programs.treeswap));
            print!("{}", packed.expect_ok("deploy/image").stdout);
            machine.load(&archive);
        };
        pack(TREESWAP, "treeswap");
        if let Some(program) = &programs.git_sync {
            git_sync::pack(&machine, program);
            pack(git_sync::DROP_IN, "git-sync");
        }
        Self { machine: Arc::new(machine), programs, begun: AtomicU16::new(0) }
    }

    /// What the next scene gets.
    pub fn shop(&self) -> Shop {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let dir = self.machine.dir.join(format!("scene-{number}"));
        std::fs::create_dir_all(dir.join("repositories")).unwrap();
        run::to_end(Command::new("cp").arg("-r").arg(shipped()).arg(&dir)).expect_ok("cp");
        let shop = Shop {
            machine: self.machine.clone(),
            kube: self.machine.kube(),
            remote: Remote::create(&dir.join("repositories/config.git")),
            programs: self.programs.clone(),
            dir,
            address: (ADDRESS, 3000 + number).into(),
            git: RefCell::default(),
            instead: Arc::default(),
            hold: Arc::default(),
            revision: Cell::new(0),
            said: RefCell::default(),
        };
        shop.commit();
        shop
    }
}

/// `deploy/`, as it is shipped.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// The repository that the guides' examples follow.
const EXAMPLE: &str = "https://git.example.com/platform/config.git";

/// The block of code in the guide to a sidecar that begins with this line.
fn documented(first: &str) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/sidecar.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let begin = text.find(&format!("\n{first}")).unwrap_or_else(|| panic!("the guide has no {first}"));
    let (block, _) = text[begin..].split_once("\n```").expect("a block ends");
    block.to_owned()
}

/// What one scene has.
pub struct Shop {
    pub machine: Arc<Machine>,
    pub kube: Kube,
    pub remote: Remote,
    pub programs: Programs,
    /// For whatever it writes.
    pub dir: PathBuf,
    /// Where its git server listens.
    address: SocketAddr,
    git: RefCell<Option<HttpBackend>>,
    instead: Arc<Mutex<Option<Canned>>>,
    hold: Arc<Hold>,
    revision: Cell<u64>,
    said: RefCell<String>,
}

impl Shop {
    pub fn url(&self) -> String {
        format!("http://{}/config.git", self.address)
    }

    /// A line for people, printed with how the scene ended.
    pub fn say(&self, line: impl Display) {
        *self.said.borrow_mut() += &format!("        {line}\n");
    }

    pub fn said(&self) -> String {
        self.said.take()
    }

    /// Starts the git server, if it does not run yet.
    pub fn serve(&self) {
        let (instead, hold) = (self.instead.clone(), self.hold.clone());
        let hook = move |_: &_| {
            hold.wait();
            instead.lock().unwrap().clone()
        };
        let kind = || Kind { hook: Some(Box::new(hook)), ..Kind::default() };
        let start = || HttpBackend::start_at(self.address, &self.dir.join("repositories"), kind());
        self.git.borrow_mut().get_or_insert_with(start);
    }

    /// From now on the server answers nobody, or everybody again.
    pub fn set_away(&self, away: bool) {
        self.answer(away.then(Canned::hang_up));
    }

    /// From now on everybody gets this answer, or what git answers.
    pub fn answer(&self, instead: Option<Canned>) {
        *self.instead.lock().unwrap() = instead;
    }

    /// From now on the server keeps everybody waiting as long as `condition` holds; it is asked at each request, and again
    /// and again.
    pub fn hold(&self, condition: impl Fn() -> bool + Send + 'static) {
        *self.hold.condition.lock().unwrap() = Some(Box::new(condition));
    }

    /// Keeps nobody waiting any more.
    pub fn release(&self) {
        *self.hold.condition.lock().unwrap() = None;
    }

    /// How many are kept waiting.
    pub fn held(&self) -> usize {
        self.hold.waiting.load(Ordering::SeqCst)
    }

    /// A revision in which every file that is read holds the same new number; the number.
    pub fn commit(&self) -> u64 {
        self.commit_with(Files::new())
    }

    /// The same, with more files.
    pub fn commit_with(&self, mut files: Files) -> u64 {
        let number = self.revision.get() + 1;
        self.revision.set(number);
        for name in ["a", "b", "sub/c"] {
            files = files.file(name, format!("{number}\n"));
        }
        for other in 0..40 {
            files =
                files.file(format!("other/{}/{other}", other % 5), format!("{other} of {}\n", number / 10));
        }
        self.remote.commit(&files);
        number
    }

    /// The number of the newest revision.
    pub fn newest(&self) -> u64 {
        self.revision.get()
    }

    /// Deploys an example with a user's kustomization on top: the repository, a quick pace, `literals`, and `patches`.
    pub fn deploy(&self, kube: &Kube, example: &str, map: &str, literals: &[&str], patches: &str) {
        let user = self.user_kustomization(example, map, literals, patches);
        kube.apply(&kube.kustomize(&user));
    }

    /// The same by the kustomization that the guide shows, word for word but for where things are, and these patches.
    pub fn deploy_by_guide(&self, kube: &Kube, patches: &str) {
        let shown = self.shown("# kustomization.yaml").replace("path/to/treeswap", "../../..");
        let dir = self.dir.join("deploy/kustomize/user");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("kustomization.yaml"), format!("{shown}\npatches:\n{patches}")).unwrap();
        let deployment = shipped().join("kustomize/examples/one-service/deployment.yaml");
        std::fs::copy(deployment, dir.join("deployment.yaml")).unwrap();
        kube.apply(&kube.kustomize(&dir));
    }

    /// A block of code in the guide, for our repository.
    pub fn shown(&self, first: &str) -> String {
        let block = documented(first);
        assert!(block.contains(EXAMPLE), "{block}");
        block.replace(EXAMPLE, &self.url())
    }

    fn user_kustomization(&self, example: &str, map: &str, literals: &[&str], patches: &str) -> PathBuf {
        let dir = self.dir.join("deploy/kustomize/user");
        std::fs::create_dir_all(&dir).unwrap();
        let mut text = format!(
            "resources: [../{example}]\nconfigMapGenerator:\n- name: {map}\n  behavior: merge\n  literals:\n"
        );
        let quick =
            [&format!("TREESWAP_REPO={}", self.url()), "TREESWAP_PERIOD=1s", "TREESWAP_MIN_INTERVAL=0s"];
        for literal in quick.iter().chain(literals) {
            text += &format!("  - {literal}\n");
        }
        if !patches.is_empty() {
            text += &format!("patches:\n{patches}");
        }
        std::fs::write(dir.join("kustomization.yaml"), text).unwrap();
        dir
    }

    /// The process that a container runs, as the node sees it.
    pub fn pid(&self, pod: &Value, container: &str) -> u32 {
        let id = kube::container(pod, container)["containerID"].as_str().unwrap().to_owned();
        let id = id.trim_start_matches("containerd://");
        let tasks = run::to_end(&mut self.machine.ctr(&["tasks", "list"])).expect_ok("ctr tasks list").stdout;
        let line =
            tasks.lines().find(|line| line.starts_with(id)).unwrap_or_else(|| panic!("{id} in\n{tasks}"));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Where the node has a Pod's volume of that kind and name.
    pub fn volume(&self, pod: &Value, kind: &str, name: &str) -> PathBuf {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        self.machine.dir.join(format!("kubelet/pods/{uid}/volumes/kubernetes.io~{kind}/{name}"))
    }

    /// Listens to the consumer in a Pod: from its last start on, and beyond the end of the Pod.
    #[track_caller]
    pub fn follow(&self, kube: &Kube, pod: &str, container: &str) -> Reader {
        eventually(&format!("{container} of {pod} has a log"), || self.try_follow(kube, pod, container))
    }

    /// The same of a Pod that may just be going, its log with it.
    pub fn try_follow(&self, kube: &Kube, pod: &str, container: &str) -> Option<Reader> {
        let found = kube.get(&format!("pod/{pod}"));
        let text = |key: &str| found["metadata"][key].as_str();
        let logs = format!("/var/log/pods/{}_{pod}_{}/{container}", text("namespace")?, text("uid")?);
        let restarts = kube::container(&found, container)["restartCount"].as_u64()?;
        let reader = Reader { pod: pod.to_owned(), logs: logs.into(), open: RefCell::default() };
        reader.open.borrow_mut().next = restarts;
        reader.read();
        let opened = reader.open.borrow().next > restarts;
        opened.then_some(reader)
    }
}

/// What keeps the git server from answering.
#[derive(Default)]
struct Hold {
    condition: Mutex<Option<Box<dyn Fn() -> bool + Send>>>,
    waiting: AtomicUsize,
}

impl Hold {
    fn wait(&self) {
        let holds = || self.condition.lock().unwrap().as_ref().is_some_and(|condition| condition());
        if holds() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let end = Instant::now() + Duration::from_secs(300);
            while holds() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The user's container is `gateway`; it becomes the consumer that counts, within the restricted profile.
pub const READER: &str = r#"
- target: {kind: Deployment, name: gateway}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/args, value: [/config, ..data]}
    - op: add
      path: /spec/template/spec/containers/0/securityContext
      value:
        {runAsNonRoot: true, runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]},
         seccompProfile: {type: RuntimeDefault}}
"#;

/// [`READER`] in one Pod, with this merged into the specification of its template.
pub fn one_reader(spec: &str) -> String {
    format!(
        "{READER}    - {{op: replace, path: /spec/replicas, value: 1}}
- target: {{kind: Deployment, name: gateway}}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: gateway}}
    spec: {{template: {{spec: {{{spec}}}}}}}
"
    )
}

/// A Pod that has its name as a label, whose only container is the consumer that counts, with these arguments and this
/// volume below /files.
pub fn reading_pod(name: &str, arguments: &str, volume: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  containers:
    - name: reader
      image: {CONSUMER}
      args: [/files, {arguments}]
      volumeMounts: [{{name: files, mountPath: /files, readOnly: true}}]
      securityContext:
        {{runAsNonRoot: true, runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}},
         seccompProfile: {{type: RuntimeDefault}}}}
  volumes: [{{name: files, {volume}}}]
"
    )
}

/// What a consumer said. Read from the files that the container runtime writes, because they are written while there is
/// no kubelet, and held open, because the kubelet removes them with the Pod.
pub struct Reader {
    pub pod: String,
    logs: PathBuf,
    open: RefCell<Open>,
}

#[derive(Default)]
struct Open {
    /// The number of the next file: one for every start of the container.
    next: u64,
    file: Option<File>,
    text: String,
}

/// Its counts, as tests/node/reader prints them.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Counts {
    pub reads: u64,
    pub mixed: u64,
    pub torn: u64,
    pub vanished: u64,
    pub absent: u64,
}

impl Reader {
    fn lines(&self) -> Vec<Value> {
        self.read();
        // Time, stream and a letter stand before what was said.
        let said = |line: &str| serde_json::from_str(line.splitn(4, ' ').nth(3)?).ok();
        self.open.borrow().text.lines().filter_map(said).collect()
    }

    fn read(&self) {
        let open = &mut *self.open.borrow_mut();
        loop {
            if let Some(file) = &mut open.file {
                let _ = file.read_to_string(&mut open.text);
            }
            let Ok(next) = File::open(self.logs.join(format!("{}.log", open.next))) else { return };
            open.file = Some(next);
            open.next += 1;
        }
    }

    /// The newest counts.
    pub fn counts(&self) -> Counts {
        let lines = self.lines();
        let last = lines.iter().rev().find(|line| line["Reads"].is_number());
        last.map(|line| serde_json::from_value(line.clone()).unwrap()).unwrap_or_default()
    }

    /// When it first saw a revision, in nanoseconds since 1970.
    pub fn saw(&self, revision: u64) -> Option<i64> {
        let (lines, revision) = (self.lines(), revision.to_string());
        lines
            .iter()
            .find(|line| line["Seen"].as_str() == Some(&*revision))
            .and_then(|line| line["At"].as_i64())
    }

    /// When it first saw a revision or a later one, in nanoseconds since 1970.
    pub fn saw_from(&self, revision: u64) -> Option<i64> {
        let lines = self.lines();
        let of = |line: &Value| line["Seen"].as_str()?.parse::<u64>().ok();
        lines.iter().find(|line| of(line) >= Some(revision)).and_then(|line| line["At"].as_i64())
    }

    #[track_caller]
    pub fn waits_for(&self, revision: u64) -> i64 {
        eventually(&format!("{} sees revision {revision}: {:?}", self.pod, self.counts()), || {
            self.saw(revision)
        })
    }

    /// Fails the scenario unless every set it read through the directory was complete and the link always led there.
    #[track_caller]
    pub fn assert_whole(&self) -> Counts {
        let counts = eventually(&format!("{} has read", self.pod), || {
            Some(self.counts()).filter(|counts| counts.reads > 0)
        });
        let wrong = (counts.torn, counts.vanished, counts.absent);
        assert_eq!(wrong, (0, 0, 0), "{}: torn, vanished, absent: {counts:?}", self.pod);
        counts
    }
}
