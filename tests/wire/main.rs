//! The wire client against real servers: git's `http-backend` and `daemon`, local repositories with and without a git
//! program, and servers that misbehave.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod connections;
mod fetching;
mod misbehaving;
mod polling;
mod program;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::http_backend::{Authority, Canned, HttpBackend, Kind, base64};
use common::sshd::{self, Sshd};
use common::{Files, World, run};
use treeswap::mirror::Tip;
use treeswap::mirror::wire::ssh::KnownHosts;
use treeswap::mirror::wire::{
    Client, Credential, Deepen, Error, Issuance, Options, PackResponse, Program, Request,
};
use treeswap::revision::{ObjectId, Ref};
use treeswap::secret::{Secret, SecretFrom};

fn named(name: &str) -> Ref {
    name.parse().unwrap()
}

fn id(hex: &str) -> ObjectId {
    hex.parse().unwrap()
}

fn client(url: &str) -> Client {
    with(url, |_| {})
}

fn with(url: &str, change: impl FnOnce(&mut Options)) -> Client {
    let mut options = Options::new(url);
    change(&mut options);
    Client::new(options).unwrap()
}

fn password(user: &str, password: &str) -> Credential {
    Credential { url: None, username: Some(user.into()), password: SecretFrom::Value(Secret::new(password)) }
}

/// Never a git program: whatever works, works in place.
fn no_git(options: &mut Options) {
    options.git = "/nonexistent/git".into();
}

async fn resolve(client: &mut Client, asked: &Ref) -> Result<Tip, Error> {
    client.resolve(std::slice::from_ref(asked)).await?.tip(asked)
}

async fn tip(client: &mut Client, name: &str) -> Result<String, Error> {
    resolve(client, &named(name)).await.map(|tip| tip.object.to_string())
}

/// The error and all that caused it, as it would be printed.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Fails unless the error names all of these.
#[track_caller]
fn names(error: &Error, words: &[&str]) {
    let text = chain(error);
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// A repository that receives packs and is checked by git itself.
struct Clone {
    path: PathBuf,
    home: PathBuf,
}

impl Clone {
    fn new(world: &World, name: &str) -> Self {
        let clone = Self { path: world.dir().join(name), home: world.dir().join("home") };
        let path = clone.path.to_str().unwrap().to_owned();
        run::to_end(run::clean("git", &clone.home).args(["init", "-q", "--bare", &path]))
            .expect_ok("git init");
        clone
    }

    fn git(&self, args: &[&str]) -> String {
        let mut command = run::clean("git", &self.home);
        run::to_end(command.arg("-C").arg(&self.path).args(args)).expect_ok(&format!("{args:?}")).stdout
    }

    /// Takes a pack in and moves the boundary as the answer says.
    fn take(&self, pack: &[u8], boundary: &[ObjectId]) {
        let mut child = run::clean("git", &self.home)
            .arg("-C")
            .arg(&self.path)
            .args(["index-pack", "--stdin", "--fix-thin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(pack).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "index-pack: {}", String::from_utf8_lossy(&out.stderr));
        let lines: String = boundary.iter().map(|id| format!("{id}\n")).collect();
        let shallow = self.path.join("shallow");
        if lines.is_empty() {
            let _ = std::fs::remove_file(shallow);
        } else {
            std::fs::write(shallow, lines).unwrap();
        }
    }

    /// Commits reachable from one, which must be complete with all that they hold.
    fn history(&self, commit: &str) -> usize {
        self.git(&["rev-list", "--objects", commit]);
        self.git(&["rev-list", commit]).lines().count()
    }

    fn has(&self, object: &str) -> bool {
        let mut command = run::clean("git", &self.home);
        run::to_end(command.arg("-C").arg(&self.path).args(["cat-file", "-e", object])).ok()
    }
}

/// How many objects a pack holds.
fn objects(pack: &[u8]) -> u32 {
    assert_eq!(&pack[..4], b"PACK");
    u32::from_be_bytes(pack[8..12].try_into().unwrap())
}

async fn fetch(client: &mut Client, request: &Request) -> (PackResponse, Vec<u8>) {
    let mut pack = Vec::new();
    let answer = client.fetch(request, &mut pack).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(answer.bytes, pack.len() as u64);
    (answer, pack)
}

/// An sshd, and a client that it lets in.
struct Ssh {
    sshd: Sshd,
    key: PathBuf,
    known_hosts: PathBuf,
}

impl Ssh {
    fn start(world: &World) -> Self {
        let sshd = Sshd::start(&world.dir().join("sshd"), &["ed25519"]);
        let key = world.dir().join("key");
        sshd::keygen(&key, &["-t", "ed25519"]);
        sshd.authorize(&key);
        let known_hosts = world.dir().join("known_hosts");
        std::fs::write(&known_hosts, sshd.known("ed25519")).unwrap();
        Self { sshd, key, known_hosts }
    }

    fn client(&self, path: &Path) -> Client {
        let url = format!("ssh://{}@127.0.0.1:{}{}", sshd::user(), self.sshd.port, path.display());
        with(&url, |options| {
            options.ssh.keys = vec![self.key.clone()];
            options.ssh.known_hosts = KnownHosts::Strict(self.known_hosts.clone());
        })
    }
}

/// A git daemon without a port of its own: one process per connection.
struct Daemon {
    address: SocketAddr,
}

impl Daemon {
    fn start(directory: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let directory = directory.to_owned();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let child = run::clean("git", &directory)
                    .args(["daemon", "--inetd", "--export-all", "--informative-errors"])
                    .arg(format!("--base-path={}", directory.display()))
                    .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket.try_clone().unwrap())))
                    .stdout(Stdio::from(std::os::fd::OwnedFd::from(socket)))
                    .stderr(Stdio::null())
                    .spawn();
                std::thread::spawn(move || child.unwrap().wait());
            }
        });
        Self { address }
    }

    fn url(&self, path: &str) -> String {
        format!("git://127.0.0.1:{}/{path}", self.address.port())
    }
}

/// A server that does with every connection what the function does.
fn server(each: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let each = std::sync::Arc::new(each);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let each = each.clone();
            std::thread::spawn(move || each(socket.unwrap()));
        }
    });
    address
}

/// Reads until the client waits for an answer (its question fits one segment).
fn question(socket: &mut TcpStream) {
    let _ = socket.read(&mut [0; 4096]);
}
