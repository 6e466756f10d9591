//! Memory as a contract: however a commit's author shapes a tree within the limits, the service and the processes it
//! starts stay below the memory limit that `deploy/` ships; so do plans of ConfigMaps ([`rules`]).
//! `TREESWAP_TESTS=full`: with 1,000,000 entries each, as a table; else with 40,000, against a limit that grows with
//! them.
//!
//! What is measured is anonymous memory (`RssAnon`) of all processes of the program together, looked at every
//! millisecond: what the kernel cannot drop. The service itself also runs under `RLIMIT_DATA` of the whole limit, which
//! counts what is allocated, touched or not: going over ends it, however short the peak.
#![allow(missing_docs, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod rules;
mod shapes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::run::Background;
use common::{World, full};
use shapes::{Shape, Writer};

/// The smallest memory limit of a container that keeps a root, in bytes.
fn shipped_limit() -> u64 {
    let files =
        ["kustomize/components/sidecar/sidecar.yaml", "kustomize/node/daemonset.yaml", "cronjob.yaml"];
    let limits = files.map(|file| {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)).unwrap();
        let (_, rest) = text.split_once("limits: {memory: ").unwrap();
        rest.split_once("Mi}").unwrap().0.parse::<u64>().unwrap() << 20
    });
    limits.into_iter().min().unwrap()
}

/// What every process of the program holds at most, while this lives.
struct Watch {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn of(pid: u32) -> Self {
        Self::becoming(pid, &std::fs::read_link(format!("/proc/{pid}/exe")).unwrap())
    }

    /// Of a process that is about to run this program.
    fn becoming(pid: u32, exe: &Path) -> Self {
        let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let exe = exe.to_owned();
        let thread = std::thread::spawn({
            let (peak, stop) = (Arc::clone(&peak), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let bytes = family(pid).into_iter().filter(|pid| runs(*pid, &exe)).map(anonymous).sum();
                    peak.fetch_max(bytes, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Self { peak, stop, thread: Some(thread) }
    }

    /// The peak since the last call.
    fn take(&self) -> u64 {
        self.peak.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A process and its children: the service starts no more than one level.
fn family(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids = children
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>());
    std::iter::once(pid).chain(pids).collect()
}

/// Whether it runs this program: a git that serves is the remote's.
fn runs(pid: u32, exe: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|found| found == exe)
}

fn anonymous(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The service on one shape.
struct Run {
    // In this order they end: a service would make again what is being removed.
    watch: Watch,
    process: Background,
    world: World,
    name: &'static str,
}

impl Run {
    fn start(name: &'static str, world: World, limit: u64, more: &[&str]) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::start_in(name, world, limit, more, Path::new(&path))
    }

    /// With this search path.
    fn start_in(name: &'static str, world: World, limit: u64, more: &[&str], path: &Path) -> Self {
        let mut command =
            world.sync(&["--period=100ms", "--min-interval=0s", "--grace=0s", "--durability=none"]);
        command.env("PATH", path);
        let process = Background::start(command.args(more), &world.dir().join("sidecar.log"));
        let pid = rustix::process::Pid::from_raw(process.pid() as i32);
        let data = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::prlimit(pid, rustix::process::Resource::Data, data).unwrap();
        let watch = Watch::of(process.pid());
        Self { watch, process, world, name }
    }

    /// Waits for what shows that a revision is served and everything after it is done; the peak until then.
    fn peak_until(&self, what: &str, mut done: impl FnMut() -> bool) -> u64 {
        let end = Instant::now() + Duration::from_secs(if full() { 1800 } else { 120 });
        while !done() {
            let log = || self.process.log().lines().rev().take(5).collect::<Vec<_>>().join("\n");
            assert!(
                Path::new(&format!("/proc/{}/exe", self.process.pid())).exists(),
                "{}: {what}: {}",
                self.name,
                log()
            );
            assert!(Instant::now() < end, "{}: not {what} in time: {}", self.name, log());
            std::thread::sleep(Duration::from_millis(5));
        }
        let peak = self.watch.take();
        assert!(peak > 1 << 20, "{}: {what}: {peak} bytes: it was not watched", self.name);
        peak
    }

    fn serves(&self, revision: usize) -> u64 {
        let (marker, spare) =
            (self.world.root.join("..data/marker"), self.world.root.join("..treeswap/spare"));
        let is = revision.to_string();
        self.peak_until(&format!("revision {revision}"), || {
            std::fs::read_to_string(&marker).is_ok_and(|found| found == is)
                && spare.join("ready").exists()
                && std::fs::read_to_string(spare.join("tree/marker")).is_ok_and(|found| found == is)
                && std::fs::read_dir(self.world.root.join("..treeswap/trash"))
                    .is_ok_and(|mut trash| trash.next().is_none())
        })
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Where so many entries have room four times: two generations, a spare and what is being removed. A memory file system
/// often has fewer inodes; there, no spare would ever be made.
fn roomy(entries: usize) -> std::path::PathBuf {
    let files = 4 * entries as u64 + 50_000;
    let has_room = |dir: &Path| {
        let free = rustix::fs::statvfs(dir).unwrap();
        let inodes = free.f_files == 0 || free.f_favail >= files; // btrfs counts none
        inodes && free.f_bavail * free.f_frsize >= files * 4_500
    };
    let dirs = [common::scratch(), std::env::temp_dir()];
    let found = dirs.into_iter().find(|dir| has_room(dir));
    found.unwrap_or_else(|| panic!("no room for {files} files; name a directory with TREESWAP_TEST_DIR"))
}

/// What so many entries may take: the limit is for a million.
fn allowed(entries: usize, limit: u64) -> u64 {
    let floor = 48 << 20; // what a delta and an index may take, however small the tree
    floor + (limit - floor) * entries as u64 / 1_000_000
}

fn entries() -> usize {
    std::env::var("TREESWAP_TEST_ENTRIES")
        .map_or(if full() { 990_000 } else { 40_000 }, |n| n.parse().unwrap())
}

#[test]
fn no_shape_of_a_tree_takes_more_memory_than_deploy_allows() {
    let (limit, count) = (shipped_limit(), entries());
    let allowed = allowed(count, limit);
    let only = std::env::var("TREESWAP_TEST_SHAPE").ok();
    println!("{count} entries, limit {} ({} in deploy/)", mib(allowed), mib(limit));
    println!(
        "| shape | first sync | one file changed | removal of everything | back again |\n| --- | --- | --- | --- | --- |"
    );
    if let Some(only) = &only {
        assert!(Shape::ALL.iter().any(|shape| shape.name() == only), "there is no shape {only}");
    }
    let mut over = Vec::new();
    for shape in Shape::ALL.into_iter().filter(|shape| only.as_ref().is_none_or(|only| only == shape.name()))
    {
        let world = World::within(&roomy(count));
        let writer = Writer::new(&world.remote, count);
        let first = writer.commit(shape, 1);
        let run = Run::start(shape.name(), world, limit, &[]);
        let mut peaks = vec![run.serves(1)];
        let writer = Writer::new(&run.world.remote, count);
        let mut show = |commit: &str, revision| {
            run.world.remote.reset(commit);
            peaks.push(run.serves(revision));
        };
        show(&writer.commit(shape, 2), 2);
        show(&writer.nothing(3), 3);
        show(&first, 1);
        let shown: Vec<_> = peaks.iter().map(|peak| mib(*peak)).collect();
        println!("| {} | {} |", shape.name(), shown.join(" | "));
        if peaks.iter().any(|peak| *peak > allowed) {
            over.push(format!("{}: {}", shape.name(), shown.join(", ")));
        }
    }
    assert!(over.is_empty(), "over {}:\n{}", mib(allowed), over.join("\n"));
}

#[test]
fn an_index_of_git_is_written_without_being_held() {
    let limit = shipped_limit();
    // Some 140 MiB of index: git spells every path in full.
    let count = 40_000;
    let world = World::within(&roomy(count));
    Writer::new(&world.remote, count).commit(Shape::DeepPath, 1);
    let run = Run::start("git-sync", world, limit, &["--layout=git-sync"]);
    let marker = run.world.root.join("remote/marker");
    let peak = run.peak_until("served", || std::fs::read_to_string(&marker).is_ok_and(|found| found == "1"));
    println!("git's index of {count} long paths: {}", mib(peak));
    assert!(peak < allowed(count, limit), "{} to write an index", mib(peak));
    let status = run
        .world
        .remote
        .command(&["-C"])
        .arg(run.world.root.join("remote"))
        .args(["status", "--porcelain"])
        .output();
    let status = status.unwrap();
    assert!(status.status.success() && status.stdout.is_empty(), "{status:?}");
}

#[test]
fn without_a_git_program_a_repository_on_this_machine_is_read_object_by_object() {
    let limit = shipped_limit();
    let world = World::new();
    let writer = Writer::new(&world.remote, 0);
    // As different versions of one file: who looks for deltas holds several of them at once.
    let first = writer.large(10, 30 << 20);
    let nowhere = world.dir().join("nowhere");
    std::fs::create_dir(&nowhere).unwrap();
    let run = Run::start_in("in place", world, limit, &["--spare=off"], &nowhere);
    let marker = run.world.root.join("..data/marker");
    let serves = |is: &str| std::fs::read_to_string(&marker).is_ok_and(|found| found == is);
    let peak = run.peak_until("served", || serves("1"));
    println!("ten files of 30 MiB: {}", mib(peak));
    assert!(peak < limit / 3, "{} for files of 30 MiB", mib(peak));

    // A commit that nobody can read whole is refused, by its size, and what is published stays.
    Writer::new(&run.world.remote, 0).long_commit(&first, 300 << 20);
    let peak = run.peak_until("refused", || run.process.log().contains("more than"));
    println!("a commit of 300 MiB: {}", mib(peak));
    assert!(serves("1") && peak < limit / 2, "{} for a commit", mib(peak));
}

#[test]
fn a_tree_that_names_one_directory_over_and_over_costs_what_was_sent_of_it() {
    let limit = shipped_limit();
    let world = World::new();
    Writer::new(&world.remote, 0).repeated(16, 150_000);
    let refused = |run: &Run| run.peak_until("refused", || run.process.log().contains("is refused"));
    let more = ["--index-memory=200Mi"]; // what is measured is the same work in the service, at its start
    let run = Run::start("over and over", world, limit, &more);
    let first = refused(&run);
    let Run { process, world, .. } = run;
    drop(process);
    // It is in the mirror now, which is looked at when the service starts again.
    let again = refused(&Run::start("over and over", world, limit, &more));
    println!("a tree of 2,400,000 lines in 16 objects: {}, at the next start {}", mib(first), mib(again));
    // 64 MiB are what trees in one another may have where a payload is made.
    assert!(first.max(again) < limit * 3 / 8, "{} and {} for 16 trees of 5 MB", mib(first), mib(again));
}

#[test]
fn a_commit_that_many_merges_name_is_counted_once_where_no_git_program_reads_the_repository() {
    let limit = shipped_limit();
    let world = World::new();
    Writer::new(&world.remote, 0).merges(800, 2_000);
    let nowhere = world.dir().join("nowhere");
    std::fs::create_dir(&nowhere).unwrap();
    let run = Run::start_in("merges", world, limit, &["--spare=off", "--depth=0"], &nowhere);
    let marker = run.world.root.join("..data/marker");
    let peak = run.peak_until("served", || std::fs::read_to_string(&marker).is_ok_and(|found| found == "1"));
    println!("800 merges of the same 2,000 commits: {}", mib(peak));
    assert!(peak < limit / 8, "{} for 2,801 commits", mib(peak));
}

/// The same repository made libgit2 wait for more of a pack that it had whole: a window on it ended in the head of a
/// deflated block, from which nothing comes out.
#[test]
fn a_pack_of_commits_as_large_as_windows_on_it_is_taken_in_to_its_end() {
    let world = World::new();
    Writer::new(&world.remote, 0).merges(2, 20_000);
    let nowhere = world.dir().join("nowhere");
    std::fs::create_dir(&nowhere).unwrap();
    let run = Run::start_in("large commits", world, shipped_limit(), &["--spare=off", "--depth=0"], &nowhere);
    let marker = run.world.root.join("..data/marker");
    run.peak_until("served", || std::fs::read_to_string(&marker).is_ok_and(|found| found == "1"));
}
