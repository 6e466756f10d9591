//! A Kubernetes node in this process's namespaces: etcd, API server, controllers, scheduler, containerd and kubelet.
//!
//! Whoever started us gave us mount, process and network namespaces of our own (`tests/cluster/run`), so nothing here
//! cleans up: when we end, everything is gone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use serde_json::{Value, json};

use super::common::{eventually, run};
use super::kube::Kube;

/// The node's address: one that is not the loopback, which `kubectl logs` and `exec` need.
pub const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
/// Where Pods get theirs.
const PODS: &str = "10.78.0.0/24";
/// Where Pods look for the API server: the first address of its services' range. Elsewhere kube-proxy leads them from
/// there to it; here it listens there itself.
const SERVICE: &str = "10.0.0.1";

/// The programs that make a node, in the order they start. The API server's stay when the node "reboots".
const CONTROL_PLANE: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const NODE: [&str; 2] = ["containerd", "kubelet"];

/// A running node.
pub struct Machine {
    pub dir: PathBuf,
    programs: PathBuf,
    running: Mutex<Vec<(&'static str, Child)>>,
    /// The mounts that were there before the node was.
    before: BTreeSet<String>,
}

impl Machine {
    /// Brings a node up, with everything it keeps below `dir`; `programs` has what `tests/cluster/build --node` made.
    pub fn up(dir: &Path, programs: &Path) -> Self {
        let before = mounts().into_iter().map(|(id, _)| id).collect();
        let (dir, programs) = (dir.to_owned(), programs.to_owned());
        let machine = Self { dir, programs, running: Mutex::default(), before };
        network();
        machine.write_configuration();
        for name in CONTROL_PLANE {
            machine.start(name);
            if name == "kube-apiserver" {
                let kube = machine.kube();
                machine
                    .eventually("the API server is ready", || kube.try_run(&["get", "--raw=/readyz"]).ok());
            }
        }
        machine.boot();
        machine
    }

    pub fn kube(&self) -> Kube {
        Kube::new(&self.programs.join("kubectl"), &self.dir.join("kubeconfig"))
    }

    /// Starts what a machine starts when it is switched on, and waits until the node is ready.
    pub fn boot(&self) {
        self.start("containerd");
        let mut version = self.ctr(&["version"]);
        self.eventually("containerd answers", || run::to_end(&mut version).ok());
        self.start("kubelet");
        let kube = self.kube();
        self.eventually("the node is ready", || {
            kube.try_run(&["get", "nodes", "--no-headers"]).stdout.contains(" Ready ")
        });
        self.eventually("Pods may be made", || kube.try_run(&["get", "serviceaccount", "default"]).ok());
    }

    /// Waits, but not for a program that has ended.
    #[track_caller]
    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        eventually(180, what, || {
            let mut too_early = false;
            for (name, child) in &mut *self.running.lock().unwrap() {
                let log = self.dir.join(format!("{name}.log"));
                let ended = child.try_wait().unwrap();
                // containerd answers before its CRI plugin does; on a real node systemd starts the kubelet again.
                let words = if ended.is_some() { last_words(&log) } else { String::new() };
                if *name == "kubelet" && words.contains("server is not initialized yet") {
                    too_early = true;
                } else {
                    assert!(ended.is_none(), "{name} ended:\n{words}");
                }
            }
            if too_early {
                self.kill("kubelet");
                self.start("kubelet");
            }
            is_so().then_some(())
        });
    }

    /// Everything on the node but the API server's programs ends at once, as when its power is cut.
    pub fn cut_power(&self) {
        for name in ["kubelet", "containerd"] {
            self.kill(name);
        }
        let containers = || {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            pids.filter(|pid| is_containers(*pid)).collect::<Vec<_>>()
        };
        eventually(30, "every container is dead", || {
            let left = containers();
            for pid in &left {
                let _ = rustix::process::kill_process(
                    rustix::process::Pid::from_raw(*pid).unwrap(),
                    rustix::process::Signal::KILL,
                );
            }
            left.is_empty().then_some(())
        });
        // What lives in memory is lost with the power: mounts, the network's namespaces, the runtime's state.
        let lost =
            || mounts().into_iter().filter(|(id, _)| !self.before.contains(id)).map(|(_, place)| place);
        // The deepest first. One may take another with it, so that what is left is looked at again.
        while let Some(place) = lost().max() {
            run::to_end(Command::new("umount").args(["--lazy", &place])).expect_ok("umount");
        }
        self.remove_cgroups();
        std::fs::remove_dir_all(self.dir.join("state")).unwrap();
        for dir in ["/run/containerd", "/run/netns", "/run/runc"] {
            let _ = std::fs::remove_dir_all(dir);
        }
    }

    /// Those of the containers that ran: containerd, which would remove them, will know nothing of its containers.
    fn remove_cgroups(&self) {
        let tasks =
            std::fs::read_dir(self.dir.join("containerd/io.containerd.runtime.v2.task/k8s.io")).unwrap();
        for task in tasks.flatten() {
            let name = Path::new("k8s.io").join(task.file_name());
            for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
                let _ = std::fs::remove_dir(hierarchy.path().join(&name));
            }
        }
    }

    /// SIGKILL, as an operator's accident; `start` brings it back.
    pub fn kill(&self, name: &str) {
        let mut running = self.running.lock().unwrap();
        let at = running.iter().position(|(running, _)| *running == name).expect("it runs");
        let (_, mut child) = running.remove(at);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts one of the programs; its words go to `DIR/NAME.log`.
    pub fn start(&self, name: &'static str) {
        assert!(CONTROL_PLANE.contains(&name) || NODE.contains(&name));
        let log =
            File::options().create(true).append(true).open(self.dir.join(format!("{name}.log"))).unwrap();
        let mut command = self.command(name);
        command.current_dir(&self.dir).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        self.running.lock().unwrap().push((name, child));
    }

    fn command(&self, name: &str) -> Command {
        let program = match name {
            "containerd" => PathBuf::from(name),
            _ => self.programs.join(name),
        };
        let mut command = Command::new(program);
        let arguments = match name {
            "etcd" => "--data-dir=etcd --unsafe-no-fsync --listen-client-urls=http://127.0.0.1:2379 \
                --advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 \
                --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=default=http://127.0.0.1:2380"
                .to_owned(),
            "kube-apiserver" => format!(
                "--etcd-servers=http://127.0.0.1:2379 --cert-dir=certs --secure-port=443 --bind-address=0.0.0.0 \
                 --advertise-address={ADDRESS} --service-cluster-ip-range=10.0.0.0/24 --authorization-mode=RBAC \
                 --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=sa.key \
                 --service-account-signing-key-file=sa.key --token-auth-file=tokens.csv --allow-privileged=true \
                 --kubelet-preferred-address-types=InternalIP --audit-policy-file=audit.json --audit-log-path=audit.log"
            ),
            "kube-controller-manager" => "--kubeconfig=kubeconfig --service-account-private-key-file=sa.key \
                --root-ca-file=certs/apiserver.crt --leader-elect=false"
                .to_owned(),
            "kube-scheduler" => "--kubeconfig=kubeconfig --leader-elect=false".to_owned(),
            "containerd" => "-c containerd.toml".to_owned(),
            _ => format!(
                "--kubeconfig=kubeconfig --config=kubelet.yaml --root-dir={}/kubelet --hostname-override=node1 \
                 --node-ip={ADDRESS}",
                self.dir.display()
            ),
        };
        command.args(arguments.split_whitespace());
        command
    }

    /// containerd's own client.
    pub fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = limited("ctr");
        command.arg("-a").arg(self.dir.join("containerd.sock")).args(["-n", "k8s.io"]).args(arguments);
        command
    }

    /// Brings an image archive in.
    pub fn load(&self, archive: &Path) {
        run::to_end(self.ctr(&["images", "import"]).arg(archive)).expect_ok("ctr images import");
    }

    /// Packs a static program into an image and brings it in. No registry is asked.
    pub fn image(&self, name: &str, program: &Path, entrypoint: &[&str]) {
        let (dir, file) = (program.parent().unwrap(), program.file_name().unwrap().to_str().unwrap());
        self.pack(name, dir, file, json!({"Entrypoint": entrypoint}));
    }

    /// The same of anything in a directory; owners and modes are those that it has there.
    pub fn pack(&self, name: &str, dir: &Path, what: &str, config: Value) {
        let work = tempfile::tempdir_in(&self.dir).unwrap();
        let at = |file: &str| work.path().join(file);
        let tar = |archive: &str, dir: &Path, what: &[&str]| {
            let mut tar = Command::new("tar");
            tar.arg("--numeric-owner").arg("-cf").arg(at(archive)).arg("-C").arg(dir).args(what);
            run::to_end(&mut tar).expect_ok("tar");
        };
        tar("layer.tar", dir, &[what]);
        let sum = run::to_end(Command::new("sha256sum").arg(at("layer.tar"))).expect_ok("sha256sum").stdout;
        let layer = format!("sha256:{}", sum.split(' ').next().unwrap());
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "config": config, "rootfs": {"type": "layers", "diff_ids": [layer]},
        });
        std::fs::write(at("config.json"), config.to_string()).unwrap();
        let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
        std::fs::write(at("manifest.json"), manifest.to_string()).unwrap();
        tar("image.tar", work.path(), &["manifest.json", "config.json", "layer.tar"]);
        self.load(&at("image.tar"));
    }

    fn write_configuration(&self) {
        let write = |name: &str, text: String| std::fs::write(self.dir.join(name), text).unwrap();
        let dir = self.dir.display();
        let key = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(self.dir.join("sa.key"))
            .arg("2048")
            .output();
        assert!(key.unwrap().status.success(), "openssl genrsa");
        write("tokens.csv", "admin,admin,1,system:masters\n".into());
        let audit = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Request", "resources": [{"group": "", "resources": ["configmaps"]}]}, {"level": "Metadata"}],
        });
        write("audit.json", audit.to_string());
        let server = format!("https://{ADDRESS}");
        let access = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "node",
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "admin"}}],
            "users": [{"name": "admin", "user": {"token": "admin"}}],
            "clusters": [{"name": "node", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        });
        write("kubeconfig", access.to_string());
        std::fs::create_dir(self.dir.join("cni")).unwrap();
        write(
            "cni/10-pods.conflist",
            format!(
                r#"{{"cniVersion": "0.4.0", "name": "pods", "plugins": [{{"type": "bridge", "bridge": "pods0",
                "isGateway": true, "ipam": {{"type": "host-local", "dataDir": "{dir}/addresses", "subnet": "{PODS}",
                "routes": [{{"dst": "0.0.0.0/0"}}]}}}}, {{"type": "loopback"}}]}}"#
            ),
        );
        write(
            "containerd.toml",
            format!(
                r#"
version = 2
root = "{dir}/containerd"
state = "{dir}/state"
[grpc]
  address = "{dir}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{dir}/cni"
"#
            ),
        );
        write(
            "kubelet.yaml",
            format!(
                "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: true
makeIPTablesUtilChains: false
evictionHard: {{}}
imageGCHighThresholdPercent: 100
oomScoreAdj: 0
containerRuntimeEndpoint: unix://{dir}/containerd.sock
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
"
            ),
        );
    }
}

/// A program that is ended when it has not come to its end long after it should have.
pub fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "300"]).arg(program);
    command
}

/// What holds a Pod's namespaces.
pub const PAUSE: &str = "docker.io/local/pause:1";

/// An address that is not the loopback, and a way out for the answers.
fn network() {
    for line in [
        "link set lo up",
        "link add node0 type veth peer name node1",
        "link set node1 up",
        "link set node0 up",
        &format!("addr add {ADDRESS}/24 dev node0"),
        "route add default dev node0",
        &format!("addr add {SERVICE}/32 dev lo"),
    ] {
        run::to_end(Command::new("ip").args(line.split(' '))).expect_ok(line);
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
}

/// Every mount that we see, those that another one covers too: its number and its place.
fn mounts() -> Vec<(String, String)> {
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = all.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.map(|fields| (fields[0].to_owned(), fields[4].to_owned())).collect()
}

/// Whether a process is a container's, in a process namespace of its own, or the shim above one. Dead ones that nobody
/// has reaped yet do not count.
fn is_containers(pid: i32) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let dead = read("stat").rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let elsewhere = namespace(&pid.to_string()).is_some_and(|its| Some(its) != namespace("self"));
    !dead && (elsewhere || read("comm").starts_with("containerd-shim"))
}

/// The end of a log.
pub fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
