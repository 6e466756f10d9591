//! Consumers as they are: other processes, shells and scripts, other users, read-only mounts. What they pin stays, what
//! they watch reaches them once a swap, and `treeswap status` shows both to anybody who may read the root.
#![allow(missing_docs)]

#[path = "../common/blobs.rs"]
mod blobs;
mod pins;
mod programs;
#[path = "../common/run.rs"]
#[allow(dead_code, unreachable_pub)]
mod run;
#[path = "../common/schema.rs"]
#[allow(dead_code, unreachable_pub)]
mod schema;
mod sets;
mod status;
mod watches;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process};
use treeswap::clock;
use treeswap::generation::Name;
use treeswap::payload::{Builder, DirIndex, Rules};
use treeswap::pin::{self, Pin};
use treeswap::retention;
use treeswap::revision::{ObjectId, Revision};
use treeswap::store::{Durability, Layout, Options, Spare, Store};

use blobs::Blobs;

/// A user that owns nothing here.
const STRANGER: &str = "65533";

/// A writer with no grace period, so that only pins keep what is retired; and a root that any user can reach.
struct Writer {
    store: Store,
    dir: tempfile::TempDir,
}

impl Writer {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("treeswap-consumers-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let hour = Duration::from_secs(3600);
        let retention = retention::Options {
            grace: Duration::ZERO,
            max_pin: hour,
            max_generations: 1000,
            max_bytes: None,
        };
        let options = Options {
            root: dir.path().join("root"),
            layout: Layout::Kubelet,
            operator_names: std::collections::BTreeSet::new(),
            durability: Durability::None,
            spare: Spare::Off,
            group_write: false,
            writers: 1,
            retention,
        };
        Self { store: Store::open(options).unwrap().0, dir }
    }

    /// With generation 1 published.
    fn started() -> Self {
        let mut writer = Self::new();
        writer.publish(1);
        writer
    }

    fn root(&self) -> &Path {
        self.store.root()
    }

    /// Publishes a generation whose three files all say `n`, and returns its name.
    fn publish(&mut self, n: u8) -> Name {
        self.publish_without(n, b"")
    }

    /// The same without one of the files.
    fn publish_without(&mut self, n: u8, missing: &[u8]) -> Name {
        let content = format!("{n}\n").into_bytes();
        let (id, size) = (ObjectId([n; 20]), content.len() as u64);
        let mut builder = Builder::new(Revision(id), id, Rules::default());
        let sub = builder.dir(DirIndex::TOP, b"sub").unwrap();
        let files = [(DirIndex::TOP, b"a"), (DirIndex::TOP, b"b"), (sub, b"c")];
        for (dir, name) in files.into_iter().filter(|(_, name)| name.as_slice() != missing) {
            builder.file(dir, name, false, id, size).unwrap();
        }
        let payload = builder.finish().unwrap();
        let blobs = Blobs(HashMap::from([(id, content)]));
        let staged = self.store.stage(&payload, "", &blobs, &Default::default()).unwrap();
        self.store.publish(staged, &clock::now()).unwrap().current.name
    }

    /// Reaps whatever nobody pins.
    fn reap(&mut self) -> Vec<Name> {
        let plan = self.store.plan(&clock::now());
        self.store.reap(&plan)
    }

    /// Reaps until `name` goes: a child that another test starts has a copy of every descriptor of ours between its fork
    /// and its exec, locks included, so that the end of a pin may take that long to be seen.
    #[track_caller]
    fn reaps(&mut self, name: &Name, why: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.reap().contains(name) {
            assert!(Instant::now() < until, "{name} stays: {why}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A process that talks by lines; killed when dropped.
struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talker {
    fn start(words: &[String]) -> Self {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Self::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// What it says next; nothing at its end. A test that hangs would say nothing itself.
    #[track_caller]
    fn piece(&mut self) -> &[u8] {
        if self.output.buffer().is_empty() {
            let limit = Timespec { tv_sec: 120, tv_nsec: 0 };
            let mut said = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            let polled = retry_on_intr(|| poll(&mut said, Some(&limit)));
            assert_eq!(polled, Ok(1), "it neither says anything nor ends");
        }
        self.output.fill_buf().unwrap()
    }

    /// Whether it has said something that nobody has read yet, or ended.
    fn has_said(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut said = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        !self.output.buffer().is_empty() || retry_on_intr(|| poll(&mut said, Some(&now))) == Ok(1)
    }

    /// The next line it says.
    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let piece = self.piece();
            assert!(
                !piece.is_empty(),
                "it ended after {:?}: {:?}",
                String::from_utf8_lossy(&line),
                self.ended()
            );
            let length = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
            line.extend_from_slice(&piece[..length]);
            self.output.consume(length);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Everything else it says, to its end.
    #[track_caller]
    fn rest(&mut self) -> String {
        self.input = None;
        let mut text = Vec::new();
        loop {
            let piece = self.piece();
            if piece.is_empty() {
                return String::from_utf8(text).unwrap();
            }
            text.extend_from_slice(piece);
            let length = piece.len();
            self.output.consume(length);
        }
    }

    #[track_caller]
    fn ended(&mut self) -> ExitStatus {
        run::ended(&mut self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.input = None; // ends a child that runs as another user, which cannot be killed
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that changes users and mounts; through sudo where the tests do not run as root.
fn as_root(words: &[&str]) -> Vec<String> {
    let sudo: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["sudo", "-n", "--"] };
    sudo.iter().chain(words).map(|word| (*word).to_owned()).collect()
}

/// The words that make a command another user's, without any privilege.
fn as_stranger(command: &[String]) -> Vec<String> {
    let mut words =
        as_root(&["setpriv", "--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", "--no-new-privs"]);
    // The caller's search path may lead through its home.
    words.extend(["--inh-caps=-all", "--", "env", "PATH=/usr/local/bin:/usr/bin:/bin"].map(str::to_owned));
    words.extend_from_slice(command);
    words
}

/// The words that run a command in a mount namespace of its own, where `mount` is a read-only view of `root`.
fn behind_a_read_only_mount(root: &Path, mount: &Path, command: &[String]) -> Vec<String> {
    fs::create_dir_all(mount).unwrap();
    let script = "mount --bind \"$0\" \"$1\" && mount -o remount,bind,ro \"$1\" && ! touch \"$1/x\" 2>&- || {
        echo 'this kernel forbids a read-only bind mount in a mount namespace: run the tests as root' >&2; exit 1; }
        shift; exec \"$@\"";
    let (root, mount) = (root.to_str().unwrap(), mount.to_str().unwrap());
    let mut words = as_root(&["unshare", "--mount", "sh", "-c", script, root, mount]);
    words.extend_from_slice(command);
    words
}

fn treeswap(args: &[&str]) -> run::Ran {
    run::to_end(Command::new(env!("CARGO_BIN_EXE_treeswap")).args(args).stdin(Stdio::null()))
}
