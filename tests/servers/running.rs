//! The loop against bad servers: it stops when told, goes on by itself when they recover, and holds nothing back from
//! attempts that failed.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use super::answers::{band, line, pack_header, smart};
use super::common::run::Background;
use super::common::sshd::keygen;
use super::common::{allowed, eventually};
use super::port::{Behaviour, Port, Relay, behaviour, head, http, page};
use super::{NOBODY, SECOND, Stage, print};

/// The loop, as eager as it can be.
fn start(stage: &Stage, url: &str, more: &[&str]) -> Background {
    let mut command = stage.place.world.treeswap(&["sync", "--ref=main", "--repo", url, "--period=10ms"]);
    command
        .arg("--root")
        .arg(&stage.place.world.root)
        .args(["--min-interval=0s", "--max-failures=-1"])
        .args(more);
    Background::start(&mut command, &stage.place.world.dir().join("sidecar.log"))
}

fn silent() -> Behaviour {
    behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop))
}

#[test]
fn it_stops_when_told_whatever_the_server_does() {
    let stage = Stage::new();
    let tip = stage.place.newer.borrow().clone();
    let key = stage.place.world.dir().join("key");
    keygen(&key, &["-t", "ed25519"]);
    let key = format!("--ssh-key-file={}", key.display());
    let (http_url, ssh_url) = (stage.url(), format!("ssh://{}/remote", stage.port.address));
    let git_url = format!("git://{}/remote", stage.port.address);
    let table: [(&str, Behaviour, &str, &[&str]); 6] = [
        ("silent", silent(), &http_url, &[]),
        ("silent, git://", silent(), &git_url, &[]),
        ("silent, ssh", silent(), &ssh_url, &[&key, "--ssh-known-hosts=false"]),
        (
            "a byte of the references every 100 ms",
            http(|_, stream| {
                stream.write_all(head("result").as_bytes())?;
                line(format!("{NOBODY} refs/heads/main\n")).repeat(100).iter().try_for_each(|byte| {
                    std::thread::sleep(Duration::from_millis(100));
                    stream.write_all(&[*byte])
                })
            }),
            &http_url,
            &[],
        ),
        (
            "a pack that stalls",
            smart(&tip, |stream| {
                stream.write_all(&band(1, &pack_header(3)))?;
                stream.read_to_end(&mut Vec::new()).map(drop)
            }),
            &http_url,
            &[],
        ),
        (
            "a failure, and a pause",
            http(|_, stream| stream.write_all(&page("503 Later", "Retry-After: 600\r\n", ""))),
            &http_url,
            &[],
        ),
    ];
    let mut rows = Vec::new();
    for (name, behaviour, url, more) in table {
        stage.port.behave(behaviour);
        let before = stage.port.connections();
        let mut process = start(&stage, url, more);
        eventually(30, "an attempt", || (stage.port.connections() > before).then_some(()));
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        let status = process.terminate();
        let took = told.elapsed();
        rows.push(format!("told to stop: {name:<40} {:>5.2}s  {status}", took.as_secs_f32()));
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{name}\n{}", process.log());
        assert!(took < allowed(5 * SECOND), "{name}: {took:?}");
        stage.place.world.assert_published(&stage.place.published);
    }
    print(&rows);
}

#[test]
fn it_goes_on_by_itself_once_the_server_mends() {
    let stage = Stage::new();
    stage.port.behave(silent());
    let process = start(&stage, &stage.url(), &["--idle-timeout=100ms", "--max-backoff=200ms"]);
    let failures = stage.port.connections() + 5;
    eventually(60, "some attempts", || (stage.port.connections() > failures).then_some(()));
    stage.place.world.assert_published(&stage.place.published);
    stage.port.behave(Relay::all(stage.good.address).behaviour());
    let newer = stage.place.newer.borrow().clone();
    eventually(60, "the newer commit", || stage.place.world.differences(&newer).is_empty().then_some(()));
    drop(process);
}

#[test]
fn attempts_that_fail_leave_no_descriptor_open() {
    let stage = Stage::new();
    let key = stage.place.world.dir().join("key");
    keygen(&key, &["-t", "ed25519"]);
    let key = format!("--ssh-key-file={}", key.display());
    let ssh = Port::open(behaviour(|mut stream| {
        stream.write_all(b"SSH-2.0-Silence\r\n")?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    }));
    let fast = ["--idle-timeout=50ms", "--max-backoff=10ms", "--jitter=0"];
    let mut rows = Vec::new();
    for (name, url, port) in [
        ("ssh, silent after its greeting", format!("ssh://{}/remote", ssh.address), &ssh),
        ("http, silent", stage.url(), &stage.port),
    ] {
        stage.port.behave(silent());
        let more: Vec<&str> = fast.iter().copied().chain([key.as_str(), "--ssh-known-hosts=false"]).collect();
        let process = start(&stage, &url, &more);
        let fd = format!("/proc/{}/fd", process.pid());
        let held = || std::fs::read_dir(&fd).map_or(0, Iterator::count);
        let after = |attempts: u64| {
            let until = port.connections() + attempts;
            eventually(60, "more attempts", || (port.connections() >= until).then_some(()));
            held()
        };
        let (early, late) = (after(5), after(60));
        rows.push(format!("{name}: {early} descriptors after 5 attempts, {late} after 65"));
        // Between two attempts, or within one: a handful more or less.
        assert!(late <= early + 8, "{}", rows.join("\n"));
        drop(process);
    }
    print(&rows);
}
