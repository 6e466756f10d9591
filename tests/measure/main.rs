//! Measures a sidecar from outside: the first sync, an update, an idle poll, memory; treeswap and, where its binary is
//! given, git-sync, in turns and in the same run; and what the machine could do at best. `tests/bench` starts it.
//!
//! Both are served by `git daemon` on loopback, so that the server's work is nobody's. Processor time is that of the
//! process and of every child it waited for.
#![allow(unreachable_pub)] // a test binary exports nothing

#[path = "../common/mod.rs"]
mod common;
mod repository;
mod sources;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Random;
use repository::Repository;

struct Options {
    files: usize,
    updates: usize,
    rounds: usize,
    git_sync: Option<PathBuf>,
    dir: PathBuf,
    /// Several sources instead of one repository.
    sources: bool,
}

const USAGE: &str = "usage: tests/bench [--sources] [--files N] [--updates N] [--rounds N] [--git-sync PATH] [--dir DIR on tmpfs or a journalled disk]";

fn options() -> Result<Options, String> {
    let mut options = Options {
        files: 20_000,
        updates: 12,
        rounds: 3,
        git_sync: None,
        dir: "/dev/shm".into(),
        sources: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{flag}: not a number: {text}"));
        match flag.as_str() {
            "--files" => options.files = number(value()?)?,
            "--updates" => options.updates = number(value()?)?,
            "--rounds" => options.rounds = number(value()?)?,
            "--git-sync" => options.git_sync = Some(value()?.into()),
            "--sources" => options.sources = true,
            "--dir" => options.dir = value()?.into(),
            _ => return Err(format!("unknown: {flag}")),
        }
    }
    Ok(options)
}

/// From a URL, a root and a period to the command.
type CommandOf = dyn Fn(&str, &Path, &str) -> Command;

/// A program that keeps a directory in step.
struct Subject {
    name: &'static str,
    link: &'static str,
    command: Box<CommandOf>,
}

fn subjects(options: &Options) -> Vec<Subject> {
    let treeswap = Subject {
        name: "treeswap",
        link: "..data",
        command: Box::new(|url, root, period| {
            let built = env!("CARGO_BIN_EXE_treeswap").into();
            let mut command = Command::new(std::env::var_os("TREESWAP_TEST_BINARY").unwrap_or(built));
            command.args(["sync", "--ref=main", "--min-interval=0s", "--jitter=0", "--grace=0s"]);
            command.args(["--repo", url, "--period", period, "--root"]).arg(root);
            command
        }),
    };
    let git_sync = options.git_sync.clone().map(|binary| Subject {
        name: "git-sync",
        link: "link",
        command: Box::new(move |url, root, period| {
            let mut command = Command::new(&binary);
            command.args([
                "--ref=main",
                "--link=link",
                "--depth=1",
                "--repo",
                url,
                "--period",
                period,
                "--root",
            ]);
            command.arg(root);
            command
        }),
    });
    std::iter::once(treeswap).chain(git_sync).collect()
}

/// A process, killed when dropped.
struct Running(Child);

impl Running {
    /// Seconds of processor time, of it (to the nanosecond) and of the children it waited for (to the tick).
    #[allow(unsafe_code)] // another process's clock has no safe form
    fn processor(&self) -> f64 {
        let mut own = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes the structure; the clock's number is made as clock_getcpuclockid(3) makes it.
        unsafe { libc::clock_gettime((!(self.0.id() as libc::clockid_t) << 3) | 2, &raw mut own) };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let children: u64 =
            fields.get(13..15).unwrap_or_default().iter().filter_map(|f| f.parse::<u64>().ok()).sum();
        own.tv_sec as f64 + own.tv_nsec as f64 / 1e9 + children as f64 / 100.0 // USER_HZ, the same everywhere
    }

    /// MiB of anonymous memory, its children's included.
    fn anonymous(&self) -> f64 {
        let own = self.0.id();
        let children =
            std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([own]);
        let kib = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        pids.filter_map(kib).sum::<u64>() as f64 / 1024.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        for _ in 0..300 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the link names something else than before.
fn changed(process: &mut Running, link: &Path, before: Option<&Path>) -> PathBuf {
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        if let Ok(target) = std::fs::read_link(link)
            && before != Some(target.as_path())
        {
            return target;
        }
        assert!(matches!(process.0.try_wait(), Ok(None)), "it ended; is its git new enough?");
        assert!(Instant::now() < end, "it does not follow");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// What was measured of one subject in one round.
#[derive(Default)]
struct Figures {
    first: Vec<f64>,
    update: Vec<f64>,
    update_processor: Vec<f64>,
    quiet_processor: Vec<f64>,
    memory: Vec<f64>,
}

fn measure(subject: &Subject, repository: &Repository, url: &str, options: &Options, figures: &mut Figures) {
    let world =
        tempfile::Builder::new().prefix("treeswap-bench-").tempdir_in(&options.dir).expect("a directory");
    let root = world.path().join("root");
    let link = root.join(subject.link);
    let spawn = |period: &str, root: &Path| {
        let log = std::fs::File::create(world.path().join("log")).expect("a log");
        let mut command = (subject.command)(url, root, period);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Running(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", subject.name)))
    };
    let mut random = Random::new(11);

    // A period of 10 ms leaves the work alone to be measured, not the wait for the next look.
    repository.publish(0);
    let start = Instant::now();
    let mut process = spawn("10ms", &root);
    let mut current = changed(&mut process, &link, None);
    figures.first.push(start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(3));
    for update in 1..=options.updates {
        std::thread::sleep(Duration::from_millis(1500 + random.below(500) as u64));
        let before = process.processor();
        let start = Instant::now();
        repository.publish(update);
        current = changed(&mut process, &link, Some(&current));
        figures.update.push(start.elapsed().as_secs_f64());
        std::thread::sleep(Duration::from_millis(1500));
        figures.update_processor.push(process.processor() - before);
    }
    drop(process);

    // At rest, as it is deployed: a look a second.
    let process = spawn("1s", &root);
    std::thread::sleep(Duration::from_secs(4));
    let (before, start) = (process.processor(), Instant::now());
    let mut memory = 0.0_f64;
    while start.elapsed() < Duration::from_secs(20) {
        memory = memory.max(process.anonymous());
        std::thread::sleep(Duration::from_millis(20));
    }
    figures.quiet_processor.push((process.processor() - before) / start.elapsed().as_secs_f64());
    figures.memory.push(memory);
}

/// The machine's best: the same bytes, from memory into files, by as many threads as there are processors.
fn limit(repository: &Repository, options: &Options) -> f64 {
    let world =
        tempfile::Builder::new().prefix("treeswap-bench-").tempdir_in(&options.dir).expect("a directory");
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for part in repository.files.chunks(repository.files.len().div_ceil(threads)) {
            let dir = world.path();
            scope.spawn(move || {
                let mut made = PathBuf::new();
                for (path, content) in part {
                    let path = dir.join(path);
                    let parent = path.parent().expect("it has one");
                    if made != parent {
                        std::fs::create_dir_all(parent).expect("space");
                        made = parent.to_owned();
                    }
                    std::fs::write(path, content).expect("space");
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(what: &str, unit: &str, scale: f64, all: &[(&str, &[f64])], floor: Option<f64>) {
    let mut line = format!("{what:<34}");
    for (name, values) in all {
        let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(a, b), v| (a.min(*v), b.max(*v)));
        line += &format!(
            "  {name} {:.2} ({:.2}-{:.2}) {unit}",
            median(values) * scale,
            least * scale,
            most * scale
        );
    }
    if let [(_, ours), (_, theirs)] = all {
        line += &format!("  = 1/{:.1}", median(theirs) / median(ours));
    }
    if let Some(floor) = floor {
        line += &format!(
            "  limit {:.2} {unit}, treeswap is {:.1} of it",
            floor * scale,
            median(all[0].1) / floor
        );
    }
    println!("{line}");
}

fn main() {
    let options = options().unwrap_or_else(|wrong| {
        eprintln!("tests/bench: {wrong}\n{USAGE}");
        std::process::exit(2);
    });
    if options.sources {
        return sources::measure(&options);
    }
    let home =
        tempfile::Builder::new().prefix("treeswap-bench-").tempdir_in(&options.dir).expect("a directory");
    let path = home.path().join("repository.git");
    std::fs::create_dir(&path).expect("a directory");
    let repository = Repository::generate(&path, options.files, options.updates + 1);
    let bytes: usize = repository.files.iter().map(|(_, content)| content.len()).sum();
    println!(
        "{} files, {} MB, {} commits",
        repository.files.len(),
        bytes / 1_000_000,
        repository.commits.len()
    );

    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("loopback").port();
    let daemon = Command::new("git")
        .args(["daemon", "--listen=127.0.0.1", "--reuseaddr", "--log-destination=none"])
        .args([format!("--port={port}"), format!("--base-path={}", home.path().display())])
        .stdin(Stdio::null())
        .spawn()
        .expect("git daemon runs");
    let _daemon = Running(daemon);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let url = format!("git://127.0.0.1:{port}/repository.git");

    let subjects = subjects(&options);
    let mut figures: Vec<Figures> = subjects.iter().map(|_| Figures::default()).collect();
    let mut floors = Vec::new();
    for _ in 0..options.rounds {
        floors.push(limit(&repository, &options));
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            measure(subject, &repository, &url, &options, figures);
        }
    }
    let pick = |get: fn(&Figures) -> &[f64]| -> Vec<(&str, &[f64])> {
        subjects.iter().zip(&figures).map(|(subject, figures)| (subject.name, get(figures))).collect()
    };
    row("first sync", "s", 1.0, &pick(|f| &f.first), Some(median(&floors)));
    row("update, push to link", "ms", 1e3, &pick(|f| &f.update), None);
    row("processor per update, polls incl.", "ms", 1e3, &pick(|f| &f.update_processor), None);
    row("processor per quiet second", "ms", 1e3, &pick(|f| &f.quiet_processor), None);
    row("anonymous memory at rest", "MiB", 1.0, &pick(|f| &f.memory), None);
}
