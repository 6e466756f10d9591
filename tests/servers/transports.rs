//! Servers over git:// and ssh that are silent, broken or hostile; the files beside this one have those over http.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answers::{capabilities, first_ref, line};
use super::attempt::{Case, Place};
use super::common::World;
use super::common::sshd::{self, Sshd};
use super::port::{self, Behaviour, Cut, Port, Relay, behaviour, without_end};
use super::{Limits, NOBODY, SECOND, Stage, print};

/// What a server does to an attempt, and what must come of it.
struct Row<'a> {
    name: &'a str,
    server: Behaviour,
    limits: Limits,
    /// The deadline that must end the attempt, at the latest, in seconds.
    deadline: u32,
    /// Words of the complaint.
    words: &'a [&'a str],
}

impl<'a> Row<'a> {
    /// The attempt, with more flags.
    fn case(&self, url: &str, more: &[&str]) -> Case<'a> {
        Case {
            name: self.name,
            url: url.to_owned(),
            flags: self.limits.flags(more),
            deadline: self.deadline * SECOND,
            words: self.words,
        }
    }
}

/// A server over git://, where the client speaks first, one line. Then the server does.
fn after_question(answer: impl Fn(&mut TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Behaviour {
    behaviour(move |mut stream| {
        let mut question = [0; 4096];
        let _ = stream.read(&mut question)?;
        answer(&mut stream)
    })
}

fn git_servers() -> [Row<'static>; 6] {
    [
        Row {
            name: "git://, silent",
            server: after_question(|stream| stream.read_to_end(&mut Vec::new()).map(drop)),
            limits: Limits::Short,
            deadline: 1,
            words: &["--idle-timeout"],
        },
        Row {
            name: "git://, closes",
            server: after_question(|_| Ok(())),
            limits: Limits::Short,
            deadline: 1,
            words: &[],
        },
        Row {
            name: "git://, refs without end, version 0",
            server: after_question(|stream| {
                stream.write_all(&first_ref(NOBODY))?;
                without_end(stream, &line(format!("{NOBODY} refs/heads/other\n")))
            }),
            limits: Limits::Long,
            deadline: 3,
            words: &["--max-refs-bytes"],
        },
        Row {
            name: "git://, refs without end, version 2",
            server: after_question(|stream| {
                stream.write_all(&capabilities())?;
                without_end(stream, &line(format!("{NOBODY} refs/heads/main\n")))
            }),
            limits: Limits::Long,
            deadline: 3,
            words: &["--max-refs-bytes"],
        },
        Row {
            name: "git://, a line every 200 ms",
            server: after_question(|stream| {
                loop {
                    stream.write_all(&line(format!("{NOBODY} refs/heads/other\n")))?;
                    std::thread::sleep(Duration::from_millis(200));
                }
            }),
            limits: Limits::Short,
            deadline: 3,
            words: &["--sync-timeout"],
        },
        Row {
            name: "git://, no such repository",
            server: after_question(|stream| {
                stream.write_all(&line("ERR access denied or repository not exported: /remote"))
            }),
            limits: Limits::Long,
            deadline: 1,
            words: &["not exported"],
        },
    ]
}

#[test]
fn bad_servers_over_git_change_nothing() {
    let mut stage = Stage::new();
    let url = format!("git://{}/remote", stage.port.address);
    for row in git_servers() {
        stage.port.behave(row.server.clone());
        stage.rows.push(stage.place.fails(&row.case(&url, &["--max-refs-bytes=1Mi"])));
    }
    stage.port.behave(port::daemon(stage.place.world.dir()));
    stage.place.recovers(&url, &[]);
    print(&stage.rows);
}

/// A good sshd behind a port, and what it takes to use it.
struct Ssh {
    port: Port,
    sshd: Sshd,
    url: String,
    key: PathBuf,
    known_hosts: PathBuf,
}

impl Ssh {
    fn start(world: &World) -> Self {
        let dir = world.dir();
        let sshd = Sshd::start(&dir.join("sshd"), &["ed25519"]);
        let key = dir.join("key");
        sshd::keygen(&key, &["-t", "ed25519"]);
        sshd.authorize(&key);
        let port = Port::open(behaviour(|_| Ok(())));
        let url = format!("ssh://{}@{}{}", sshd::user(), port.address, world.remote.path.display());
        let this = Self { port, sshd, url, key, known_hosts: dir.join("known_hosts") };
        this.make_known();
        this
    }

    /// Where the sshd itself listens.
    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.sshd.port))
    }

    /// Makes the host key that it has now the known one.
    fn make_known(&self) {
        let host = format!("[127.0.0.1]:{}", self.port.address.port());
        let line = Sshd::line(&host, &self.sshd.host_key("ed25519"));
        std::fs::write(&self.known_hosts, line).unwrap();
    }

    /// The flags for a user with this key.
    fn flags(&self, key: &Path) -> [String; 2] {
        let hosts = format!("--ssh-known-hosts-file={}", self.known_hosts.display());
        [format!("--ssh-key-file={}", key.display()), hosts]
    }

    /// One attempt with this key. Returns a row of the table.
    #[track_caller]
    fn fails(&self, place: &Place, row: &Row, key: &Path) -> String {
        self.port.behave(row.server.clone());
        let flags = self.flags(key);
        place.fails(&row.case(&self.url, &flags.each_ref().map(String::as_str)))
    }
}

fn ssh_servers() -> [Row<'static>; 4] {
    [
        Row {
            name: "ssh, silent",
            server: behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop)),
            limits: Limits::Short,
            deadline: 1,
            words: &["--idle-timeout"],
        },
        Row {
            name: "ssh, closes",
            server: behaviour(|_| Ok(())),
            limits: Limits::Short,
            deadline: 1,
            words: &[],
        },
        Row {
            name: "ssh, greetings without end",
            server: behaviour(|mut stream| without_end(&mut stream, b"welcome\r\n")),
            limits: Limits::Short,
            deadline: 1,
            words: &[],
        },
        Row {
            name: "ssh, noise without end",
            server: behaviour(|mut stream| {
                stream.write_all(b"SSH-2.0-x\r\n")?;
                without_end(&mut stream, &[0xff; 1024])
            }),
            limits: Limits::Short,
            deadline: 1,
            words: &[],
        },
    ]
}

#[test]
fn bad_servers_over_ssh_change_nothing() {
    let mut stage = Stage::new();
    let ssh = Ssh::start(&stage.place.world);
    for row in ssh_servers() {
        stage.rows.push(ssh.fails(&stage.place, &row, &ssh.key));
    }
    for at in [30, 1000, 2000, 3000] {
        let name = format!("ssh, a reset after {at} bytes");
        let relay = Relay::cut_at(ssh.address(), at, Cut::Reset);
        let server = relay.behaviour();
        let row = Row { name: &name, server, limits: Limits::Long, deadline: 1, words: &[] };
        stage.rows.push(ssh.fails(&stage.place, &row, &ssh.key));
        assert_eq!(relay.passed(), at, "{name}: something else ended it");
    }
    let good = Relay::all(ssh.address()).behaviour();
    let stranger = stage.place.world.dir().join("stranger");
    sshd::keygen(&stranger, &["-t", "ed25519"]);
    let row = Row {
        name: "ssh, a key that it doesn't know",
        server: good.clone(),
        limits: Limits::Long,
        deadline: 1,
        words: &["refused", stranger.to_str().unwrap()],
    };
    stage.rows.push(ssh.fails(&stage.place, &row, &stranger));
    ssh.sshd.change_host_key("ed25519");
    let row = Row {
        name: "ssh, another host key",
        server: good,
        limits: Limits::Long,
        deadline: 1,
        words: &["changed", "SHA256:"],
    };
    stage.rows.push(ssh.fails(&stage.place, &row, &ssh.key));
    ssh.make_known();
    stage.place.recovers(&ssh.url, &ssh.flags(&ssh.key));
    print(&stage.rows);
}
