//! The measured programs, and running processes.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::repository::NUMBER;

/// treeswap with its defaults, the column that the others are compared with.
pub const OURS: &str = "treeswap";
pub const COPIES: &str = "treeswap --spare=recycle";
pub const GIT_SYNC: &str = "git-sync";

/// A measured program.
pub struct Subject {
    pub name: &'static str,
    program: PathBuf,
    link: &'static str,
    /// Flags with which it polls on SIGHUP and publishes at once.
    flags: &'static [&'static str],
    /// The flag that sets how long retired generations are kept.
    keep: &'static str,
    /// A `PATH` with a `git` that works for it.
    path: Option<OsString>,
}

/// treeswap with two kinds of spares, and git-sync if its binary is given.
pub fn all(git_sync: Option<&Path>, home: &Path) -> Vec<Subject> {
    let treeswap = |name, flags| Subject {
        name,
        program: treeswap(),
        link: "..data",
        flags,
        keep: "--grace",
        path: None,
    };
    let mut all = vec![
        treeswap(OURS, &["sync", "--min-interval=0s", "--max-generations=12"]),
        treeswap(COPIES, &["sync", "--min-interval=0s", "--max-generations=12", "--spare=recycle"]),
    ];
    all.extend(git_sync.map(|program| Subject {
        name: GIT_SYNC,
        program: program.to_owned(),
        link: "link",
        flags: &["--link=link", "--depth=1", "--sync-on-signal=SIGHUP"],
        keep: "--stale-worktree-timeout",
        path: Some(crate::common::git_sync::path(&home.join("bin"))),
    }));
    all
}

/// treeswap's binary.
pub fn treeswap() -> PathBuf {
    std::env::var_os("TREESWAP_TEST_BINARY").unwrap_or(env!("CARGO_BIN_EXE_treeswap").into()).into()
}

/// The settings of a run.
#[derive(Clone, Copy)]
pub struct How<'a> {
    pub url: &'a str,
    pub period: &'a str,
    /// How long retired generations are kept.
    pub keep: &'a str,
    pub more: &'a [&'a str],
    /// A cgroup with half a processor.
    pub group: Option<&'a Path>,
}

impl Subject {
    /// Starts the program with a root in this directory.
    pub fn start(&self, how: How<'_>, dir: &Path) -> Running {
        let mut command = match how.group {
            None => Command::new(&self.program),
            Some(group) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""]).arg(group).arg(&self.program);
                shell
            }
        };
        let root = dir.join("root");
        command.args(self.flags).args(how.more).args(["--ref=main", "--repo", how.url, "--period"]);
        command.arg(how.period).args([self.keep, how.keep, "--root"]).arg(&root);
        if let Some(path) = &self.path {
            command.env("PATH", path).env("TMPDIR", dir).env("HOME", dir);
        }
        Running::spawn(command, dir, root.join(self.link), self.name)
    }
}

/// The sum of these fields of `/proc/PID/stat`, which count processor time, in seconds. Field 0 is the one after the
/// name (proc_pid_stat(5)).
pub fn ticks(pid: u32, fields: Range<usize>) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let all: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = all.get(fields).unwrap_or_default().iter().filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0 // USER_HZ, which is 100 on all supported machines
}

/// A running process, which is ended when dropped.
pub struct Running {
    child: Child,
    /// The link that names the published tree.
    pub link: PathBuf,
    log: PathBuf,
    name: &'static str,
}

impl Running {
    /// Starts a program that publishes at this link, with its log in the directory.
    pub fn spawn(mut command: Command, dir: &Path, link: PathBuf, name: &'static str) -> Self {
        let log = dir.join("log");
        let file = std::fs::File::create(&log).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { child, link, log, name }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The number of the published commit.
    pub fn published(&self) -> Option<usize> {
        std::fs::read_to_string(self.link.join(NUMBER)).ok()?.trim().parse().ok()
    }

    /// Waits until this commit or a later one is published.
    pub fn reaches(&mut self, number: usize) {
        self.until(|process| process.published().filter(|published| *published >= number));
    }

    /// Calls `answer` every 0.3 ms until it returns `Some`.
    pub fn until<T>(&mut self, mut answer: impl FnMut(&Self) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(300);
        loop {
            if let Some(answer) = answer(self) {
                return answer;
            }
            self.lives();
            assert!(Instant::now() < end, "{} does not publish what it should; {}", self.name, self.said());
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn lives(&mut self) {
        let ended = !matches!(self.child.try_wait(), Ok(None));
        assert!(!ended, "{} ended; {}", self.name, self.said());
    }

    fn said(&self) -> String {
        format!("it said:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Makes it poll at once, by SIGHUP.
    pub fn poll(&self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::HUP);
    }

    /// Waits until it has no children and has used no more processor time for a while than a poll takes.
    pub fn settle(&mut self) {
        let mut before = self.processor();
        loop {
            std::thread::sleep(Duration::from_millis(400));
            self.lives();
            let now = self.processor();
            if now - before < 0.005 && self.children().is_empty() {
                return;
            }
            before = now;
        }
    }

    /// Its processor time in seconds (to the nanosecond), including that of children it waited for (to the tick).
    #[allow(unsafe_code)] // another process's clock has no safe form
    pub fn processor(&self) -> f64 {
        let mut own = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes the structure; the clock's number is made as clock_getcpuclockid(3) makes it.
        unsafe { libc::clock_gettime((!(self.id() as libc::clockid_t) << 3) | 2, &raw mut own) };
        own.tv_sec as f64 + own.tv_nsec as f64 / 1e9 + ticks(self.id(), 13..15)
    }

    fn children(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let lists: Vec<String> = lists.collect();
        lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).map_or(0, Iterator::count)
    }

    /// Its anonymous memory in MiB, including that of its children.
    pub fn anonymous(&self) -> f64 {
        let pids = self.children().into_iter().chain([self.id()]);
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
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
