//! A running `treeswap sync`, with access to its HTTP server and to `/proc`.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::run::Background;
use super::{World, eventually, root};

/// A sync in the background.
pub struct Sidecar {
    pub process: Background,
    port: u16,
}

/// Resources of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub descriptors: usize,
    pub threads: usize,
    /// Anonymous memory, KiB.
    pub anonymous: u64,
}

impl Sidecar {
    /// Starts a sync that polls every 10 ms and publishes at once, unless the arguments say otherwise.
    pub fn start(world: &World, more: &[&str]) -> Self {
        let mut command = world.sync(&["--period=10ms", "--min-interval=0s", "--http-bind=127.0.0.1:0"]);
        Self::of(world, command.args(more))
    }

    /// Starts a sync that applies the remote's files to a cluster which refuses connections until the socket is
    /// dropped.
    pub fn applying(world: &World) -> (Self, socket2::Socket) {
        let (address, held) = super::refusing();
        let cluster =
            serde_json::json!({ "name": "away", "cluster": { "server": format!("http://{address}") } });
        let user = serde_json::json!({ "name": "user", "user": { "token": "token" } });
        let context = serde_json::json!({ "name": "away", "context": { "cluster": "away", "user": "user" } });
        let config = serde_json::json!({ "clusters": [cluster], "users": [user], "contexts": [context] });
        let map = serde_json::json!({ "name": "map", "clusters": { "away": ["ci"] } });
        let rules = serde_json::json!({ "config_updater": { "maps": { "*": map } } });
        let kubeconfig = world.dir().join("kubeconfig");
        let plugins = world.dir().join("plugins.yaml");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        std::fs::write(&plugins, rules.to_string()).unwrap();
        let mut command =
            world.treeswap(&["sync", "--ref=main", "--owner=test", "--http-bind=127.0.0.1:0", "--repo"]);
        command.arg(&world.remote.path).arg("--rules").arg(plugins).arg("--kubeconfig").arg(kubeconfig);
        (Self::of(world, &mut command), held)
    }

    /// Starts a sync of a sources file whose only source is the remote, and waits until its metrics show the source.
    pub fn of_sources(world: &World) -> Self {
        let file = world.dir().join("sources.yaml");
        let source = format!("name: one, repo: {}, ref: main", world.remote.path.display());
        std::fs::write(&file, format!("version: 1\nsources:\n  - {{{source}}}\nend: true\n")).unwrap();
        let mut command = world.treeswap(&["sync", "--http-bind=127.0.0.1:0", "--sources"]);
        let sidecar = Self::of(world, command.arg(&file).arg("--root").arg(&world.root));
        let named = || sidecar.ask("/metrics")?.contains("treeswap_source_failing{").then_some(());
        eventually(30, "a source", named);
        sidecar
    }

    /// Starts a command that listens at a port of the kernel's choice on 127.0.0.1.
    pub fn of(world: &World, command: &mut std::process::Command) -> Self {
        Self::logging(&world.dir().join("sidecar.log"), command)
    }

    /// The same with a given log file.
    pub fn logging(log: &Path, command: &mut std::process::Command) -> Self {
        let process = Background::start(command, log);
        let port = eventually(30, "it says where it listens", || {
            let log = process.log();
            let said = ["listening at 127.0.0.1:", "\"endpoint\":\"127.0.0.1:"]; // the second is git-sync's
            let (_, rest) = said.iter().find_map(|words| log.split_once(words))?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        });
        Self { process, port }
    }

    /// Sends a GET request; returns the answer including its head.
    pub fn ask(&self, path: &str) -> Option<String> {
        self.request("GET", path)
    }

    /// The body of `GET /status`, checked against the schema.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let answer = self.ask("/status").unwrap();
        super::schema::writer_status(answer.split_once("\r\n\r\n").unwrap().1)
    }

    /// Sends a request without a body; returns the answer including its head.
    pub fn request(&self, method: &str, path: &str) -> Option<String> {
        self.request_with(method, path, "")
    }

    /// The same with headers, each ending in CRLF.
    pub fn request_with(&self, method: &str, path: &str, headers: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// The sum of a metric over all labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.ask("/metrics")?;
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        Some(
            answer
                .lines()
                .filter(of_name)
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum(),
        )
    }

    /// The metric with exactly these labels.
    pub fn metric_of(&self, name: &str, labels: &str) -> Option<f64> {
        let answer = self.ask("/metrics")?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(labels))?;
        line.trim().parse().ok()
    }

    /// The number of attempts that have ended.
    pub fn attempts(&self) -> u64 {
        self.metric("treeswap_syncs_total").unwrap_or(0.0) as u64
    }

    /// Waits until this many more attempts have ended.
    #[track_caller]
    pub fn idle(&self, cycles: u64) {
        let until = self.attempts() + cycles;
        eventually(60 + cycles / 5, "enough idle cycles", || (self.attempts() >= until).then_some(()));
    }

    /// Waits until the commit is published.
    #[track_caller]
    pub fn publishes(&self, world: &World, commit: &str) {
        let expected = world.remote.snapshot(commit);
        eventually(30, "the commit is published", || {
            root::differences(&world.root, &expected).is_empty().then_some(())
        });
    }

    /// Its resources between attempts: the minimum of many samples.
    pub fn rests(&self) -> Held {
        let samples = (0..300).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            self.held()
        });
        let least = |a: Held, b: Held| Held {
            descriptors: a.descriptors.min(b.descriptors),
            threads: a.threads.min(b.threads),
            anonymous: a.anonymous.min(b.anonymous),
        };
        samples.reduce(least).unwrap()
    }

    pub fn held(&self) -> Held {
        let pid = self.process.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        Held {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            threads: field("Threads:") as usize,
            anonymous: field("RssAnon:"),
        }
    }
}

/// The disk usage of everything below a directory, in bytes.
pub fn disk(dir: &Path) -> u64 {
    disk_of(&[dir.to_owned()])
}

/// The disk usage of several directories together; an inode with several links counts once.
pub fn disk_of(dirs: &[PathBuf]) -> u64 {
    fn walk(dir: &Path, seen: &mut HashSet<u64>) -> u64 {
        let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
        let sizes = entries.flatten().map(|entry| {
            let Ok(meta) = entry.path().symlink_metadata() else { return 0 };
            let own = if seen.insert(meta.ino()) { meta.blocks() * 512 } else { 0 };
            own + if meta.is_dir() { walk(&entry.path(), seen) } else { 0 }
        });
        sizes.sum()
    }
    let mut seen = HashSet::new();
    dirs.iter().map(|dir| walk(dir, &mut seen)).sum()
}
