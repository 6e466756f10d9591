//! One attempt against a server, measured from outside: how long it took, how much memory the whole process tree
//! held, whether the old generation was served all the time.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::SECOND;
use super::common::run::Ran;
use super::common::{Files, World, allowed};

/// What no attempt may need, KiB.
pub const MEMORY: u64 = 48 << 10;

/// A password that must appear nowhere; as it is, and as bob's in a header.
pub const CANARY: [&str; 2] = ["canary-4711", "Ym9iOmNhbmFyeS00NzEx"];

/// How an attempt ended.
#[derive(Debug)]
pub struct Attempt {
    pub ran: Ran,
    pub took: Duration,
    /// The largest sum of the peaks of all processes that it had at one time, KiB, without files. Children that followed each other
    /// are not added up.
    pub memory: u64,
}

/// Runs the command, watching.
pub fn watch(command: &mut Command, world: &World, served: Option<(&Path, &[u8])>) -> Attempt {
    let outputs = [world.dir().join("stdout"), world.dir().join("stderr")];
    let [stdout, stderr] = outputs.each_ref().map(|path| Stdio::from(std::fs::File::create(path).unwrap()));
    let started = Instant::now();
    let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    let mut memory = 0;
    let status = loop {
        memory = memory.max(tree(child.id()));
        if let Some((path, content)) = served {
            assert_eq!(std::fs::read(path).unwrap(), content, "the old generation is not served");
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < Duration::from_secs(400), "it does not end");
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = started.elapsed();
    let [stdout, stderr] =
        outputs.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
    Attempt { ran: Ran { status, stdout, stderr }, took, memory }
}

/// The peaks of this process and of those below it, added up (proc(5): VmHWM never shrinks while a program runs). Pages of
/// files are not counted: how many of the program's own are mapped depends on what the page cache has, and differs by
/// dozens of MiB.
fn tree(pid: u32) -> u64 {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    let value = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().split(' ').next()?.parse().ok())
    };
    let peak = value("VmHWM:").unwrap_or(0).saturating_sub(value("RssFile:").unwrap_or(0));
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return peak };
    let children = threads.flatten().flat_map(|thread| {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_ascii_whitespace().map(|child| tree(child.parse().unwrap())).collect::<Vec<_>>()
    });
    peak + children.sum::<u64>()
}

/// What a server does to an attempt, and what must come of it.
pub struct Case<'a> {
    pub name: &'a str,
    pub url: String,
    pub flags: Vec<String>,
    /// The deadline that must end it, at the latest.
    pub deadline: Duration,
    /// Words of the complaint.
    pub words: &'a [&'a str],
}

/// A world with one published generation, and a newer commit that only a good server would give.
pub struct Place {
    pub world: World,
    pub published: String,
    pub newer: RefCell<String>,
}

impl Place {
    pub fn new() -> Self {
        let world = World::new();
        let files = Files::new().file("kept", "the old generation\n").file("dir/changed", "1\n");
        let published = world.remote.commit(&files);
        Self { world, newer: RefCell::new(published.clone()), published }
    }

    /// A newer commit.
    pub fn advance(&self, files: &Files) {
        *self.newer.borrow_mut() = self.world.remote.commit(files);
    }

    /// Some content that doesn't compress to nothing.
    pub fn newer_files() -> Files {
        let mut state = 1u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..50_000).map(next).collect();
        Files::new().file("kept", "the old generation\n").file("dir/changed", "2\n").file("noise", noise)
    }

    /// `treeswap sync --one-time` from a URL.
    pub fn command(&self, url: &str, flags: &[String]) -> Command {
        let mut command = self.world.treeswap(&["sync", "--one-time", "--ref=main", "--repo", url]);
        command.arg("--root").arg(&self.world.root).args(flags);
        command
    }

    /// Publishes the first generation from a good server.
    #[track_caller]
    pub fn publish(&self, url: &str, flags: &[String]) {
        let attempt = watch(&mut self.command(url, flags), &self.world, None);
        attempt.ran.expect_ok("the first synchronisation");
        self.world.assert_published(&self.published);
    }

    fn served(&self) -> PathBuf {
        self.world.root.join("..data/kept")
    }

    /// One attempt that must fail in words, in time, in little memory, and without touching what is published.
    /// Returns a row of the table.
    #[track_caller]
    pub fn fails(&self, case: &Case) -> String {
        let served = self.served();
        let mut command = self.command(&case.url, &case.flags);
        let attempt = watch(&mut command, &self.world, Some((&served, b"the old generation\n")));
        let Attempt { ran, took, memory } = attempt;
        let row = format!(
            "{:<44} {:>5.2}s of {:>4.1}s {:>5.1} MiB  {}",
            case.name,
            took.as_secs_f32(),
            case.deadline.as_secs_f32(),
            memory as f32 / 1024.0,
            ran.complaint()
        );
        let ran = ran.expect_failure(case.name);
        let complaints = ran.stderr.lines().filter(|line| line.starts_with("treeswap: ")).count();
        assert_eq!(complaints, 1, "{}: not one clear line:\n{}", case.name, ran.stderr);
        for word in case.words {
            assert!(ran.complaint().contains(word), "{}: not named: {word}\n{}", case.name, ran.stderr);
        }
        assert!(
            !ran.stderr.bytes().any(|byte| byte == 0x1b),
            "{}: a raw escape: {:?}",
            case.name,
            ran.stderr
        );
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!CANARY.iter().any(|secret| said.contains(secret)), "{}: a secret: {said}", case.name);
        assert!(took < allowed(case.deadline + SECOND), "too late: {row}");
        assert!(memory < MEMORY, "too much: {row}");
        self.world.assert_published(&self.published);
        row
    }

    /// After all of it, a good server is enough.
    #[track_caller]
    pub fn recovers(&self, url: &str, flags: &[String]) {
        watch(&mut self.command(url, flags), &self.world, None).ran.expect_ok("after the failures");
        self.world.assert_published(&self.newer.borrow());
        self.world.assert_clean(2); // the one before is in its grace period
    }
}
