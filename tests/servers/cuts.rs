//! Connections that are cut at every byte of what a server says: over each transport and both versions of the protocol,
//! in a first synchronisation and in an update. What is published stays, and the next attempt publishes.
//!
//! `TREESWAP_TESTS=full`: at every byte, else at a sample. Each cut is by FIN, RST or silence in turns.

use std::any::Any;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::common::http_backend::{Authority, HttpBackend, Kind};
use super::common::run::{Ran, to_end};
use super::common::sshd::{self, Sshd};
use super::common::{Files, World, full};
use super::port::{self, Behaviour, Cut, Port, Relay, behaviour};

const CUTS: [Cut; 3] = [Cut::Fin, Cut::Reset, Cut::Silence];
/// Of an exchange that is not cut at every byte, so many cuts, after as many of its first bytes.
const SAMPLE: u64 = 9;

/// How a good server is reached through the port.
struct Transport {
    to: SocketAddr,
    url: String,
    flags: Vec<String>,
    /// It serves as long as this is kept.
    _server: Box<dyn Any>,
}

/// What came first in an attempt.
enum Reached {
    Cut,
    /// The end of the exchange, after so many bytes: there was nothing more to cut.
    End(u64),
    /// A failure. On a busy machine a good server is too slow for the short idle timeout, so this proves nothing.
    Neither,
}

struct Exchanges {
    world: World,
    port: Port,
    transport: Transport,
    commits: u32,
    /// Attempts that were cut and failed.
    failed: u64,
}

impl Exchanges {
    fn new(transport: impl FnOnce(&World, SocketAddr) -> Transport) -> Self {
        let world = World::new();
        let port = Port::open(behaviour(|_| Ok(())));
        let transport = transport(&world, port.address);
        Self { world, port, transport, commits: 0, failed: 0 }
    }

    /// A commit whose exchange is as long as that of the last one, but for a few bytes.
    fn commit(&mut self) -> String {
        self.commits += 1;
        let number = format!("{:08}", self.commits);
        self.world.remote.commit(&Files::new().file("jobs/a", "kept").file("jobs/b", number))
    }

    fn attempt(&self, relay: &Relay) -> Ran {
        self.port.behave(relay.behaviour());
        let mut command = self.world.treeswap(&["sync", "--one-time", "--ref=main", "--grace=0s", "--repo"]);
        command.arg(&self.transport.url).arg("--root").arg(&self.world.root).args(&self.transport.flags);
        if relay.cut == Cut::Silence {
            command.arg("--idle-timeout=250ms");
        }
        to_end(&mut command)
    }

    #[track_caller]
    fn publishes(&self, commit: &str, what: &str) {
        self.attempt(&Relay::all(self.transport.to)).expect_ok(what);
        self.world.assert_published(commit);
    }

    /// One attempt that is cut after so many bytes, and one that is not.
    #[track_caller]
    fn cut(&mut self, published: Option<&str>, at: u64, cut: Cut) -> Reached {
        let newer = self.commit();
        let relay = Relay::cut_at(self.transport.to, at, cut);
        let ran = self.attempt(&relay);
        let what = format!("{cut:?} after {at} bytes");
        let is_cut = relay.left.load(Ordering::SeqCst) == 0;
        if ran.ok() {
            // Nothing was missing: what was cut was not needed.
            self.world.assert_published(&newer);
        } else {
            self.failed += u64::from(is_cut);
            let complaints = ran.stderr.lines().filter(|line| line.starts_with("treeswap: ")).count();
            assert!(complaints == 1, "{what}: not one clear line:\n{}", ran.stderr);
            match published {
                Some(commit) => self.world.assert_published(commit),
                None => assert!(!self.world.root.join("..data").exists(), "{what}"),
            }
            self.publishes(&newer, &what);
        }
        self.world.assert_clean(1);
        match (is_cut, ran.ok()) {
            (true, _) => Reached::Cut,
            (false, true) => Reached::End(relay.passed()),
            (false, false) => Reached::Neither,
        }
    }

    /// Cuts a kind of exchange: that of an update of what is published, or that of a first synchronisation. How many
    /// bytes the last one had, which was too short to be cut, and the cuts before it.
    #[track_caller]
    fn cut_all(&mut self, is_update: bool) -> (u64, u64) {
        let (mut at, mut cuts, mut length, mut slow) = (0, 0, 0, 0);
        let mut published = None;
        loop {
            if !is_update {
                let _ = std::fs::remove_dir_all(&self.world.root);
            } else if published.is_none() {
                let commit = self.commit();
                self.publishes(&commit, "before any cut");
                published = Some(commit);
            }
            if length == 0 {
                length = self.length(is_update);
                published = is_update.then(|| self.world.remote.tip("refs/heads/main").unwrap());
                continue;
            }
            let reached = self.cut(published.as_deref(), at, CUTS[cuts as usize % CUTS.len()]);
            if is_update {
                published = self.world.remote.tip("refs/heads/main");
            }
            match reached {
                Reached::Cut => {
                    cuts += 1;
                    at += if full() { 1 } else { (length / SAMPLE).max(1) };
                }
                Reached::Neither => {
                    slow += 1;
                    assert!(slow < 500, "{slow} attempts failed before {at} bytes came");
                }
                Reached::End(length) => return (length, cuts),
            }
        }
    }

    /// How many bytes a server says when nothing is cut, each of which comes alone.
    #[track_caller]
    fn length(&mut self, is_update: bool) -> u64 {
        let commit = self.commit();
        let relay = Relay { pause: Some(Duration::ZERO), ..Relay::all(self.transport.to) };
        self.attempt(&relay).expect_ok("byte by byte");
        self.world.assert_published(&commit);
        if !is_update {
            std::fs::remove_dir_all(&self.world.root).unwrap();
        }
        relay.passed()
    }
}

#[track_caller]
fn cut_everywhere(name: &str, exchange: &str, transport: impl FnOnce(&World, SocketAddr) -> Transport) {
    let mut exchanges = Exchanges::new(transport);
    let (length, cuts) = exchanges.cut_all(exchange == "update");
    let failed = exchanges.failed;
    let least = if full() { length } else { SAMPLE / 2 };
    assert!(length > 500 && cuts >= least, "{cuts} cuts of {length} bytes");
    assert!(failed > cuts / 2, "{failed} of {cuts} cuts were felt");
    println!(
        "cuts transport={name} exchange={exchange} bytes={length} cuts={cuts} failed={failed}, all recovered"
    );
}

fn http(kind: Kind) -> impl FnOnce(&World, SocketAddr) -> Transport {
    move |world, port| {
        let server = HttpBackend::start(world.dir(), kind);
        let (to, url) = (server.address, format!("http://{port}/remote"));
        Transport { to, url, flags: Vec::new(), _server: Box::new(server) }
    }
}

fn daemon(version: fn(&Path) -> Behaviour) -> impl FnOnce(&World, SocketAddr) -> Transport {
    move |world, port| {
        let server = Port::open(version(world.dir()));
        let (to, url) = (server.address, format!("git://{port}/remote"));
        Transport { to, url, flags: Vec::new(), _server: Box::new(server) }
    }
}

/// A daemon of before version 2: what comes after the host in the request means nothing to it.
fn old_daemon(directory: &Path) -> Behaviour {
    let repository = directory.join("remote");
    behaviour(move |mut stream| {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = usize::from_str_radix(std::str::from_utf8(&length).unwrap(), 16).unwrap();
        stream.read_exact(&mut vec![0; length - 4])?;
        let end = || Ok::<_, std::io::Error>(Stdio::from(std::os::fd::OwnedFd::from(stream.try_clone()?)));
        Command::new("git").arg("upload-pack").arg(&repository).stdin(end()?).stdout(end()?).status()?;
        stream.flush()
    })
}

fn ssh(accepts: &'static str) -> impl FnOnce(&World, SocketAddr) -> Transport {
    move |world, port| {
        let (dir, key) = (world.dir(), world.dir().join("key"));
        let sshd = Sshd::start(&dir.join("sshd"), &["ed25519"]);
        sshd.configure(&["ed25519"], accepts);
        sshd::keygen(&key, &["-t", "ed25519"]);
        sshd.authorize(&key);
        let known_hosts = dir.join("known_hosts");
        let line = Sshd::line(&format!("[127.0.0.1]:{}", port.port()), &sshd.host_key("ed25519"));
        std::fs::write(&known_hosts, line).unwrap();
        Transport {
            to: SocketAddr::from((Ipv4Addr::LOCALHOST, sshd.port)),
            url: format!("ssh://{}@{port}{}", sshd::user(), world.remote.path.display()),
            flags: vec![
                format!("--ssh-key-file={}", key.display()),
                format!("--ssh-known-hosts-file={}", known_hosts.display()),
            ],
            _server: Box::new(sshd),
        }
    }
}

fn https(world: &World, port: SocketAddr) -> Transport {
    let authority = Authority::new();
    let file = authority.write(&world.dir().join("ca.pem"));
    let plain = http(Kind { tls: Some(authority.server.clone()), ..Kind::default() })(world, port);
    let url = format!("https://localhost:{}/remote", port.port());
    Transport { url, flags: vec![format!("--ca-file={}", file.display())], ..plain }
}

/// A test each for the first synchronisation and for an update over a transport.
macro_rules! cut_everywhere {
    ($($name:ident: $transport:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn first() {
                cut_everywhere(stringify!($name), "first", $transport);
            }

            #[test]
            fn update() {
                cut_everywhere(stringify!($name), "update", $transport);
            }
        }
    )*};
}

cut_everywhere! {
    http_version_2: http(Kind::default());
    http_version_0: http(Kind { only_v0: true, ..Kind::default() });
    https: super::https;
    git_version_2: daemon(port::daemon);
    git_version_0: daemon(old_daemon);
    ssh_version_2: ssh("AcceptEnv GIT_PROTOCOL");
    ssh_version_0: ssh("");
}
