//! The same over git:// and ssh.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use super::answers::{capabilities, first_ref, line};
use super::attempt::Case;
use super::common::sshd::{self, Sshd};
use super::port::{self, Behaviour, Cut, Port, Relay, behaviour, without_end};
use super::{NOBODY, SECOND, Stage, limits, print};

#[test]
fn git_daemons_are_held_to_the_same() {
    let mut stage = Stage::new();
    stage.port.behave(port::daemon(stage.place.world.dir()));
    let url = format!("git://{}/remote", stage.port.address);
    // The client speaks first, one line; then the server does.
    let after_question = |answer: fn(&mut std::net::TcpStream) -> std::io::Result<()>| {
        behaviour(move |mut stream| {
            let mut question = [0; 4096];
            let _ = stream.read(&mut question)?;
            answer(&mut stream)
        })
    };
    let table: [(&str, Behaviour, u32, &[&str]); 6] = [
        (
            "git://, silent",
            after_question(|stream| stream.read_to_end(&mut Vec::new()).map(drop)),
            1,
            &["--idle-timeout"],
        ),
        ("git://, closes", after_question(|_| Ok(())), 1, &[]),
        (
            "git://, refs without end, version 0",
            after_question(|stream| {
                stream.write_all(&first_ref(NOBODY))?;
                without_end(stream, &line(format!("{NOBODY} refs/heads/other\n")))
            }),
            3,
            &["--max-refs-bytes"],
        ),
        (
            "git://, refs without end, version 2",
            after_question(|stream| {
                stream.write_all(&capabilities())?;
                without_end(stream, &line(format!("{NOBODY} refs/heads/main\n")))
            }),
            3,
            &["--max-refs-bytes"],
        ),
        (
            "git://, a line every 200 ms",
            after_question(|stream| {
                loop {
                    stream.write_all(&line(format!("{NOBODY} refs/heads/other\n")))?;
                    std::thread::sleep(Duration::from_millis(200));
                }
            }),
            3,
            &["--sync-timeout"],
        ),
        (
            "git://, no such repository",
            after_question(|stream| {
                stream.write_all(&line("ERR access denied or repository not exported: /remote"))
            }),
            1,
            &["not exported"],
        ),
    ];
    for (name, behaviour, deadline, words) in table {
        stage.port.behave(behaviour);
        let flags = limits(words, &["--max-refs-bytes=1Mi"]);
        let case = Case { name, url: url.clone(), flags, deadline: deadline * SECOND, words };
        stage.rows.push(stage.place.fails(&case));
    }
    stage.port.behave(port::daemon(stage.place.world.dir()));
    stage.place.recovers(&url, &[]);
    print(&stage.rows);
}

#[test]
fn ssh_servers_are_held_to_the_same() {
    let mut stage = Stage::new();
    let dir = stage.place.world.dir().to_owned();
    let sshd = Sshd::start(&dir.join("sshd"), &["ed25519"]);
    let key = dir.join("key");
    sshd::keygen(&key, &["-t", "ed25519"]);
    sshd.authorize(&key);
    let known_hosts = dir.join("known_hosts");
    let port = Port::open(Relay::all(SocketAddr::from(([127, 0, 0, 1], sshd.port))).behaviour());
    let listed = format!("[127.0.0.1]:{}", port.address.port());
    std::fs::write(&known_hosts, Sshd::line(&listed, &sshd.host_key("ed25519"))).unwrap();
    let url = format!("ssh://{}@{}{}", sshd::user(), port.address, stage.place.world.remote.path.display());
    let (key, hosts) = (
        format!("--ssh-key-file={}", key.display()),
        format!("--ssh-known-hosts-file={}", known_hosts.display()),
    );
    let fails = |name: &str, deadline: u32, words: &[&str]| {
        let case = Case {
            name,
            url: url.clone(),
            flags: limits(words, &[&key, &hosts]),
            deadline: deadline * SECOND,
            words,
        };
        stage.place.fails(&case)
    };
    let mut rows = Vec::new();

    let silent = behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop));
    port.behave(silent);
    rows.push(fails("ssh, silent", 1, &["--idle-timeout"]));
    port.behave(behaviour(|_| Ok(())));
    rows.push(fails("ssh, closes", 1, &[]));
    port.behave(behaviour(|mut stream| without_end(&mut stream, b"welcome\r\n")));
    rows.push(fails("ssh, greetings without end", 1, &[]));
    port.behave(behaviour(|mut stream| {
        stream.write_all(b"SSH-2.0-x\r\n")?;
        without_end(&mut stream, &[0xff; 1024])
    }));
    rows.push(fails("ssh, noise without end", 1, &[]));
    let through = |at| Relay::cut_at(SocketAddr::from(([127, 0, 0, 1], sshd.port)), at, Cut::Reset);
    for at in [30, 1000, 2000, 3000] {
        port.behave(through(at).behaviour());
        rows.push(fails(&format!("ssh, reset after {at} bytes"), 1, &[]));
    }
    port.behave(through(u64::MAX).behaviour());
    let stranger = dir.join("stranger");
    sshd::keygen(&stranger, &["-t", "ed25519"]);
    let strange = format!("--ssh-key-file={}", stranger.display());
    let words = &["refused", stranger.to_str().unwrap()];
    let flags = limits(words, &[&strange, &hosts]);
    let case =
        Case { name: "ssh, a key that it doesn't know", url: url.clone(), flags, deadline: SECOND, words };
    rows.push(stage.place.fails(&case));
    sshd.change_host_key("ed25519");
    rows.push(fails("ssh, another host key", 1, &["changed", "SHA256:"]));
    std::fs::write(&known_hosts, Sshd::line(&listed, &sshd.host_key("ed25519"))).unwrap();
    stage.place.recovers(&url, &[key.clone(), hosts.clone()]);
    stage.rows = rows;
    print(&stage.rows);
}
