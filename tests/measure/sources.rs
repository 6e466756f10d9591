//! Measures the same files from 1, 8 and 64 sources: an update of one of them, and a poll that finds nothing new.
//!
//! Fetches use HTTP from a server on loopback that counts requests and bytes. The period is an hour and each poll is
//! requested by a signal, so that one poll and nothing else is measured.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Random;
use crate::common::http_backend::{Hit, HttpBackend, Kind};
use crate::repository::{content_of, git};
use crate::subject::{OURS, Running, treeswap};
use crate::table::spread;
use crate::{Options, directory};

/// The shapes: number of sources, of repositories, and of refs in each repository.
const SHAPES: [(usize, usize, usize); 4] = [(1, 1, 1), (8, 8, 1), (64, 8, 1), (64, 8, 8)];

/// The number of polls that find nothing new.
const IDLE: usize = 20;

/// A shape and its sizes.
struct Set {
    sources: usize,
    repositories: usize,
    refs: usize,
    /// The number of files of each source.
    each: usize,
}

impl Set {
    fn repo(&self, source: usize) -> usize {
        source % self.repositories
    }

    fn branch(&self, source: usize) -> String {
        format!("b{}", source / self.repositories % self.refs)
    }

    /// Creates the repositories, with the files of their sources on each branch, and the sources file.
    fn make(&self, dir: &Path, base: &HttpBackend) {
        let mut random = Random::new(9);
        let mut listed = String::from("version: 1\nsources:\n");
        for repo in 0..self.repositories {
            let path = dir.join(format!("r{repo}"));
            std::fs::create_dir(&path).expect("a directory");
            git(&path, &["init", "--quiet", "--bare", "--initial-branch=b0", "."]);
            git(&path, &["config", "uploadpack.allowAnySHA1InWant", "true"]);
            let mut input = Vec::new();
            input.extend(b"commit refs/heads/b0\ncommitter A <a@example.com> 1700000000 +0000\ndata 1\nx\n");
            for source in (0..self.sources).filter(|source| self.repo(*source) == repo) {
                for file in 0..self.each {
                    let text = content_of(file, source, &mut random);
                    input.extend(
                        format!("M 100644 inline s{source}/d{}/f{file}\ndata {}\n", file / 20, text.len())
                            .bytes(),
                    );
                    input.extend(text);
                    input.push(b'\n');
                }
            }
            import(&path, &input);
            git(&path, &["repack", "-adq"]);
            for other in 1..self.refs {
                git(&path, &["branch", &format!("b{other}"), "b0"]);
            }
        }
        for source in 0..self.sources {
            let url = base.url(&format!("r{}", self.repo(source)));
            let branch = self.branch(source);
            listed += &format!(
                "  - {{name: s{source}, repo: '{url}', ref: {branch}, path: s{source}, to: s{source}}}\n"
            );
        }
        std::fs::write(dir.join("sources.yaml"), listed + "end: true\n").expect("space");
    }

    /// Pushes a commit that changes one file of one source.
    fn push(&self, dir: &Path, round: usize, random: &mut Random) {
        let source = random.below(self.sources);
        let branch = self.branch(source);
        let file = random.below(self.each);
        let text = content_of(file, 1000 + round, random);
        let path = dir.join(format!("r{}", self.repo(source)));
        let head = format!(
            "commit refs/heads/next\ncommitter A <a@example.com> 1700000000 +0000\ndata 1\nx\nfrom refs/heads/{branch}^0\n"
        );
        let change = format!("M 100644 inline s{source}/d{}/f{file}\ndata {}\n", file / 20, text.len());
        import(&path, &[head.as_bytes(), change.as_bytes(), &text, b"\n"].concat());
        git(&path, &["update-ref", &format!("refs/heads/{branch}"), "refs/heads/next"]);
    }
}

fn import(path: &Path, input: &[u8]) {
    let mut child = Command::new("git")
        .arg("-C")
        .arg(path)
        .args(["fast-import", "--quiet", "--force"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("git runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("it is piped"), input).expect("it listens");
    assert!(child.wait().expect("git runs").success(), "git fast-import failed");
}

fn bytes(hits: &[Hit]) -> u64 {
    hits.iter().map(|hit| hit.up + hit.down).sum()
}

/// Waits until the process has sent no request and used no processor time for a while.
fn settle(process: &Running, server: &HttpBackend) {
    let state = || (process.processor(), server.hits().len());
    let mut before = state();
    loop {
        std::thread::sleep(Duration::from_millis(400));
        let now = state();
        if now.1 == before.1 && now.0 - before.0 < 0.002 {
            return;
        }
        before = now;
    }
}

fn one(set: &Set, options: &Options) {
    let world = directory(options);
    let server = HttpBackend::start(world.path(), Kind::default());
    set.make(world.path(), &server);
    let root = world.path().join("root");
    let mut command = Command::new(treeswap());
    command.args(["sync", "--period=1h", "--min-interval=0s", "--grace=0s", "--sources"]);
    command.arg(world.path().join("sources.yaml")).arg("--root").arg(&root);
    let start = Instant::now();
    let mut process = Running::spawn(command, world.path(), root.join("..data"), OURS);
    let target = |process: &Running| std::fs::read_link(&process.link).ok();
    let mut current = process.until(target);
    let first = start.elapsed().as_secs_f64();
    let mut took = Vec::new();
    let mut worked = Vec::new();
    let mut came = Vec::new();
    let mut random = Random::new(21);
    for round in 0..options.updates {
        settle(&process, &server);
        server.forget();
        set.push(world.path(), round, &mut random);
        let before = process.processor();
        let start = Instant::now();
        process.poll();
        current = process.until(|process| target(process).filter(|target| *target != current));
        took.push(start.elapsed().as_secs_f64() * 1e3);
        settle(&process, &server);
        worked.push((process.processor() - before) * 1e3);
        came.push(bytes(&server.hits()) as f64);
    }
    server.forget();
    let before = process.processor();
    let mut memory = 0.0_f64;
    for poll_number in 1..=IDLE {
        process.poll();
        let asked = || server.hits().len() >= poll_number * set.repositories;
        let end = Instant::now() + Duration::from_secs(20);
        while !asked() {
            assert!(Instant::now() < end, "poll {poll_number}: {} requests", server.hits().len());
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(60));
        memory = memory.max(process.anonymous());
    }
    let hits = server.hits();
    let idle = (process.processor() - before) * 1e3 / IDLE as f64;
    let range = |values: &[f64]| {
        let (median, least, most) = spread(values).expect("there were updates");
        format!("{median:.0} ({least:.0}-{most:.0})")
    };
    println!(
        "| {} in {} repositories, {} refs each | {first:.2} | {} | {} | {} | {:.1} | {:.0} | {idle:.1} | {memory:.1} |",
        set.sources,
        set.repositories,
        set.refs,
        range(&took),
        range(&worked),
        range(&came),
        hits.len() as f64 / IDLE as f64,
        bytes(&hits) as f64 / IDLE as f64,
    );
}

/// Measures all shapes and prints the table.
pub fn measure(options: &Options) {
    println!("{} files in all, {} updates of one file each", options.files, options.updates);
    println!(
        "| sources | first sync, s | signal to link, ms | processor per update, ms | bytes per update | requests per idle \
         poll | bytes per idle poll | processor per idle poll, ms | memory, MiB |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for (sources, repositories, refs) in SHAPES {
        one(&Set { sources, repositories, refs, each: (options.files / sources).max(1) }, options);
    }
}
