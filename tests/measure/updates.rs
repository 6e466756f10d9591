//! Measures updates at several paces, the space of retired generations, and a process at rest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Random;
use crate::common::sidecar::disk_of;
use crate::subject::{How, Running, Subject};
use crate::table::Table;
use crate::{Bench, directory};

/// The number of commits that all rows of this file need for each of the requested updates.
pub const PACES: usize = 3;

/// The number of generations whose space is measured.
pub const KEPT: usize = 6;

pub fn measure(bench: &Bench, table: &mut Table) {
    for subject in &bench.subjects {
        if bench.wants("update") {
            paces(bench, subject, table);
        }
        if bench.wants("generations") {
            kept(bench, subject, table);
        }
    }
}

fn paces(bench: &Bench, subject: &Subject, table: &mut Table) {
    let world = directory(&bench.options);
    let url = bench.url();
    let updates = bench.options.updates;
    let how = How { url: &url, period: "1h", keep: "0s", more: &[], group: None };
    bench.repository.publish(0);
    let mut process = subject.start(how, world.path());
    process.reaches(0);
    apart(bench, &mut process, 1, |latency, processor| {
        table.add("update, 4 s after the last", "ms", subject.name, latency);
        table.add(
            "update, 4 s after the last: processor of all that it causes",
            "ms",
            subject.name,
            processor,
        );
    });
    burst(bench, &mut process, updates + 1, |latency| {
        table.add("update, 0.3-1.3 s after the last", "ms", subject.name, latency);
    });
    process.settle();
    let behind = every_second(bench, &mut process, 2 * updates + 1);
    table.add("updates, one a second: commits behind at most", "", subject.name, behind as f64);
    process.settle();
    drop(process);
    let mut process = subject.start(How { period: "1s", ..how }, world.path());
    at_rest(&mut process, subject.name, table);
}

/// Pushes commits four seconds apart, each when the process is idle. Calls `each` with the milliseconds from the push
/// to the link, and those of processor time.
pub fn apart(bench: &Bench, process: &mut Running, first: usize, mut each: impl FnMut(f64, f64)) {
    for number in first..first + bench.options.updates {
        let last = Instant::now();
        process.settle();
        std::thread::sleep(Duration::from_secs(4).saturating_sub(last.elapsed()));
        let before = process.processor();
        let start = push(bench, process, number);
        process.reaches(number);
        let latency = start.elapsed();
        process.settle();
        each(latency.as_secs_f64() * 1e3, (process.processor() - before) * 1e3);
    }
}

/// Pushes a commit and makes the process poll. Returns the time of the push.
fn push(bench: &Bench, process: &Running, number: usize) -> Instant {
    let start = Instant::now();
    bench.repository.publish(number);
    process.poll();
    start
}

/// Pushes commits at random intervals, whether or not the last one is published. Calls `each` with the milliseconds
/// from each push to the link.
fn burst(bench: &Bench, process: &mut Running, first: usize, mut each: impl FnMut(f64)) {
    let mut random = Random::new(11);
    let mut waiting: Vec<(usize, Instant)> = Vec::new();
    for number in first..first + bench.options.updates {
        let until = Instant::now() + Duration::from_millis(300 + random.below(1000) as u64);
        while Instant::now() < until {
            arrive(process, &mut waiting, &mut each);
        }
        waiting.push((number, push(bench, process, number)));
    }
    let end = Instant::now() + Duration::from_secs(120);
    while !waiting.is_empty() {
        assert!(Instant::now() < end, "commits {waiting:?} were not published");
        arrive(process, &mut waiting, &mut each);
    }
}

fn arrive(process: &Running, waiting: &mut Vec<(usize, Instant)>, each: &mut impl FnMut(f64)) {
    std::thread::sleep(Duration::from_micros(500));
    let Some(published) = process.published() else { return };
    waiting.retain(|(number, pushed)| {
        if *number <= published {
            each(pushed.elapsed().as_secs_f64() * 1e3);
        }
        *number > published
    });
}

/// Pushes a commit every second. Returns the maximum number of unpublished commits when the next one came.
fn every_second(bench: &Bench, process: &mut Running, first: usize) -> usize {
    let mut most = 0;
    for number in first..first + bench.options.updates {
        push(bench, process, number);
        std::thread::sleep(Duration::from_secs(1));
        most = most.max(number - process.published().unwrap_or(0).min(number));
    }
    process.reaches(first + bench.options.updates - 1);
    most
}

/// Measures a process that polls every second and finds nothing new.
fn at_rest(process: &mut Running, subject: &str, table: &mut Table) {
    std::thread::sleep(Duration::from_secs(4));
    process.settle();
    let before = process.processor();
    let start = Instant::now();
    let mut memory = 0.0_f64;
    while start.elapsed() < Duration::from_secs(20) {
        memory = memory.max(process.anonymous());
        std::thread::sleep(Duration::from_millis(20));
    }
    let processor = (process.processor() - before) / start.elapsed().as_secs_f64();
    table.add("at rest, a poll per second: CPU time per second", "ms", subject, processor * 1e3);
    table.add("at rest: anonymous memory", "MiB", subject, memory);
    match tasks_started(process) {
        Some(started) => {
            table.add("at rest: threads and processes started per poll", "", subject, started);
        }
        None => table.note("threads and processes started per poll: it needs strace and the right to trace"),
    }
}

/// The number of threads and processes that it starts in a second. `None` if it cannot be traced.
fn tasks_started(process: &Running) -> Option<f64> {
    const SECONDS: u64 = 10;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=clone,clone3,fork,vfork,epoll_pwait", "-e", "signal=none"]);
    strace.args(["-p", &process.id().to_string()]).stdin(Stdio::null()).stderr(Stdio::piped());
    let child = strace.spawn().ok()?;
    std::thread::sleep(Duration::from_secs(SECONDS));
    let _ =
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT);
    let said = String::from_utf8_lossy(&child.wait_with_output().ok()?.stderr).into_owned();
    if !said.contains("epoll_pwait(") {
        return None; // every poll calls epoll_pwait, so nothing was traced
    }
    let calls = said.lines().filter(|line| line.contains("clone") || line.contains("fork"));
    Some(calls.filter(|line| !line.contains("resumed")).count() as f64 / SECONDS as f64)
}

/// Measures the space of generations, each of which is kept.
fn kept(bench: &Bench, subject: &Subject, table: &mut Table) {
    let world = directory(&bench.options);
    let how = How { url: &bench.url(), period: "1h", keep: "1h", more: &[], group: None };
    bench.repository.publish(0);
    let mut process = subject.start(how, world.path());
    process.reaches(0);
    let mut one = 0.0;
    for number in 0..KEPT {
        process.settle();
        if number > 0 {
            push(bench, &process, number);
            process.reaches(number);
            process.settle();
        }
        let all = generations(&world.path().join("root"));
        assert_eq!(all.len(), number + 1, "{all:?}");
        let bytes = disk_of(&all) as f64;
        one = if number == 0 { bytes } else { one };
        let row = format!("space of {} generations over one", number + 1);
        table.add(&row, "", subject.name, bytes / one);
    }
}

/// The directories of generations, in either layout.
fn generations(root: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path, ours: bool| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let entries = entries.filter(|entry| !ours || entry.file_name().to_string_lossy().starts_with("..2"));
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let worktrees = root.join(".worktrees");
    if worktrees.exists() { list(&worktrees, false) } else { list(root, true) }
}
