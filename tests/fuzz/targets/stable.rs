//! Runs the targets with a stable compiler, a few seconds each: first the whole corpus, then inputs made of it.
//!
//! Each target has a process of its own, under a limit of memory: an input may end the process in any way, and what it
//! registers as a secret must not affect other tests. An input follows from the corpus, the seed and its number, so one
//! line repeats a failure on the same commit, however fast the machine is.

use std::fmt::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::{Target, targets};

/// `TARGET`, `TARGET:SEED:NUMBER` (two numbers) to repeat one input, or `TARGET:FILE`.
const INPUT_VAR: &str = "TREESWAP_TEST_FUZZ";
/// Names the file in which a child notes the number of the input that it tries.
const PROGRESS_FILE_VAR: &str = "TREESWAP_TEST_FUZZ_AT";
const SEED: u64 = 1;

/// Bytes of memory that a target may use.
const MEMORY: u64 = 1 << 30;
/// An input that takes longer has failed.
const INPUT_TIMEOUT: Duration = Duration::from_secs(20);

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz").join(target.name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{} has the inputs to begin with: {error}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// A file of the corpus, two of them spliced (one time in eight), or random bytes (one time in eight), after up to five
/// mutations.
fn mutated(corpus: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    let random = &mut Random(seed.wrapping_mul(0x1000_0000_01b3) ^ number);
    let mut data = match random.below(8) {
        0 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
        1 => {
            let (one, other) = (&corpus[random.below(corpus.len())], &corpus[random.below(corpus.len())]);
            [&one[..random.below(one.len() + 1)], &other[random.below(other.len() + 1)..]].concat()
        }
        _ => corpus[random.below(corpus.len())].clone(),
    };
    for _ in 0..random.below(6) {
        let at = random.below(data.len() + 1);
        let length = random.below(24).min(data.len() - at);
        match random.below(7) {
            0 => data.truncate(at),
            1 => drop(data.drain(at..at + length)),
            2 => {
                let piece = data[at..at + length].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, piece);
            }
            3 => drop(
                data.splice(at..at, (0..random.below(5)).map(|_| random.next() as u8).collect::<Vec<_>>()),
            ),
            4 if length > 0 => data[at] ^= 1 << random.below(8),
            5 if length > 0 => data[at] = data[at].wrapping_add([1, 255, 128][random.below(3)]),
            _ if length > 0 => data[at] = [0, 1, 127, 128, 255, b'\n', b'/', b'"', b'.'][random.below(9)],
            _ => {}
        }
    }
    data
}

/// The child: tries inputs until its time is over, or only the one that is asked for.
fn child_main(which: &str) {
    let (name, input) = which.split_once(':').unwrap_or((which, ""));
    let target =
        targets().find(|target| target.name == name).unwrap_or_else(|| panic!("{name} is no target"));
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::Data, limit).unwrap();
    let corpus = corpus(target);
    let numbers = |(seed, number): (&str, &str)| -> Option<(u64, u64)> {
        Some((seed.parse().ok()?, number.parse().ok()?))
    };
    if let Some((seed, number)) = input.split_once(':').and_then(numbers) {
        // Numbers below the corpus' size are its files.
        return match usize::try_from(number).ok().and_then(|number| corpus.get(number)) {
            Some(data) => target.try_on(data),
            None => target.try_on(&mutated(&corpus, seed, number)),
        };
    }
    if !input.is_empty() {
        return target.try_on(&std::fs::read(input).unwrap());
    }
    let progress = std::env::var_os(PROGRESS_FILE_VAR).map(|path| std::fs::File::create(path).unwrap());
    let note = |number: u64| {
        if let Some(progress) = &progress {
            progress.write_all_at(&number.to_le_bytes(), 0).unwrap();
        }
    };
    for (number, data) in (0..).zip(&corpus) {
        note(number);
        target.try_on(data);
    }
    let (began, time) = (Instant::now(), time_per_target());
    let mut number = corpus.len() as u64;
    while began.elapsed() < time {
        note(number);
        target.try_on(&mutated(&corpus, SEED, number));
        number += 1;
    }
    println!("tried {number} inputs");
}

/// For how long one target is tried after its corpus.
fn time_per_target() -> Duration {
    let is_full = std::env::var_os("TREESWAP_TESTS").is_some_and(|size| size == "full");
    Duration::from_secs(if is_full { 60 } else { 2 })
}

/// Tries one target in a child process and returns its output, or what went wrong and the line that repeats it.
fn run_in_child(target: &Target) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let progress = dir.path().join("progress");
    let log = dir.path().join("log");
    let output = || std::fs::File::options().create(true).append(true).open(&log).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "fuzz::stable::every_target_holds"])
        .env(INPUT_VAR, target.name)
        .env(PROGRESS_FILE_VAR, &progress)
        .stdin(Stdio::null())
        .stdout(output())
        .stderr(output())
        .spawn()
        .unwrap();
    let number = || {
        let bytes = std::fs::read(&progress).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (mut last, mut since) = (u64::MAX, Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if number() != last {
            (last, since) = (number(), Instant::now());
        }
        if since.elapsed() > INPUT_TIMEOUT {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
    let how = match status {
        Some(status) if status.success() => return Ok(said),
        Some(status) => format!("ended with {:?}, signal {:?}", status.code(), status.signal()),
        None => format!("took more than {INPUT_TIMEOUT:?}"),
    };
    let name = target.name;
    Err(format!(
        "{name}: {how}. Again: {INPUT_VAR}={name}:{SEED}:{} cargo test --lib fuzz:: -- --nocapture\n{said}",
        number()
    ))
}

#[test]
fn every_target_holds() {
    // This test starts itself once per target; in those children the variable is set.
    if let Ok(which) = std::env::var(INPUT_VAR) {
        return child_main(&which);
    }
    let all: Vec<&Target> = targets().collect();
    let mut names: Vec<_> = all.iter().map(|target| target.name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == all.len() && all.len() > 20, "each has a name of its own: {names:?}");
    let next = std::sync::Mutex::new(all.into_iter());
    let run_targets = || {
        let mut failures = String::new();
        loop {
            let Some(target) = next.lock().unwrap().next() else { return failures };
            match run_in_child(target) {
                Ok(said) => {
                    let line =
                        said.lines().find(|line| line.starts_with("tried ")).unwrap_or("tried nothing");
                    println!("{:16} {line}", target.name);
                    assert!(line != "tried nothing", "{said}");
                }
                Err(why) => drop(writeln!(failures, "{why}")),
            }
        }
    };
    // Two at a time.
    let failures = std::thread::scope(|scope| {
        let other = scope.spawn(run_targets);
        run_targets() + &other.join().unwrap()
    });
    assert!(failures.is_empty(), "{failures}");
}
