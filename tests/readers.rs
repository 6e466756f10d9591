//! Readers in processes of their own, many files at a time, while a real sidecar swaps as fast as it can: those that
//! pin never see a mixture and never an error. Beside them, what readers get who go through the path.
//!
//! This binary has no harness: it is the writer's driver, and it starts itself again as each reader.
//! `TREESWAP_TESTS=full`: at least 1,000,000 pinned reads over at least 2,000 swaps.
#![allow(missing_docs)]

mod common;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Files, Sidecar, World, eventually, full};
use rustix::fs::{Mode, OFlags};
use treeswap::store::pin::{Options, Pin};

/// Files of a generation; each holds the revision's number, and so does the name of one more.
const FILES: usize = 12;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--reader") => reader(&args[2], Path::new(&args[3])),
        Some("--list") => println!("0 tests, 0 benchmarks"),
        _ => drive(),
    }
}

/// What a reader saw.
#[derive(Default, Clone, Copy)]
struct Counts {
    /// Reads of the whole set.
    reads: u64,
    /// Reads that mixed revisions, or found a set that is not whole.
    torn: u64,
    /// Reads that failed.
    errors: u64,
    /// Revisions seen.
    revisions: u64,
}

/// One read of the whole set: the number that all of it agrees on; `Ok(None)` when it does not.
type Outcome = std::io::Result<Option<u64>>;

fn agree(numbers: impl Iterator<Item = std::io::Result<u64>>, listed: usize) -> Outcome {
    let mut first = None;
    let mut count = 0;
    for number in numbers {
        let number = number?;
        if *first.get_or_insert(number) != number {
            return Ok(None);
        }
        count += 1;
    }
    Ok(first.filter(|_| count == FILES && listed == FILES + 1))
}

fn number(text: &str) -> std::io::Result<u64> {
    text.trim().parse().map_err(|_| std::io::Error::other(format!("not a number: {text:?}")))
}

/// Pins, then reads through the pin's handle.
fn pinned(root: &Path) -> Outcome {
    let pin = Pin::take(root, &Options::default()).map_err(std::io::Error::other)?;
    let set = rustix::fs::openat(
        pin.dir(),
        "set",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut listed = 0;
    let mut named = None;
    for entry in rustix::fs::Dir::read_from(&set)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        listed += usize::from(!name.starts_with('.'));
        if let Some(text) = name.strip_prefix("revision-") {
            named = Some(number(text)?);
        }
    }
    let one = |index: usize| {
        let fd = rustix::fs::openat(
            &set,
            format!("file-{index}"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut text = String::new();
        std::fs::File::from(fd).read_to_string(&mut text)?;
        number(&text)
    };
    let agreed = agree((0..FILES).map(one), listed)?;
    Ok(agreed.filter(|agreed| named == Some(*agreed)))
}

/// Goes through the link for every file, as programs do that know nothing of it.
fn by_path(root: &Path) -> Outcome {
    in_directory(&root.join("..data/set"))
}

/// Resolves the link once, then reads through absolute paths.
fn resolved(root: &Path) -> Outcome {
    in_directory(&root.join("..data/set").canonicalize()?)
}

fn in_directory(set: &Path) -> Outcome {
    let listed = std::fs::read_dir(set)?.filter(Result::is_ok).count();
    agree(
        (0..FILES).map(|index| number(&std::fs::read_to_string(set.join(format!("file-{index}")))?)),
        listed,
    )
}

/// Reads until told to stop by a file, then says what it saw.
fn reader(how: &str, root: &Path) {
    let read = match how {
        "pinned" => pinned,
        "resolved" => resolved,
        _ => by_path,
    };
    let stop = root.with_extension("stop");
    let (mut counts, mut last) = (Counts::default(), 0);
    while counts.reads % 64 != 0 || !stop.exists() {
        counts.reads += 1;
        match read(root) {
            Ok(Some(revision)) => {
                counts.revisions += u64::from(revision != last);
                last = revision;
            }
            Ok(None) => counts.torn += 1,
            Err(error) => {
                counts.errors += 1;
                if how == "pinned" {
                    eprintln!("a pinned read failed: {error}");
                }
            }
        }
    }
    println!("{} {} {} {}", counts.reads, counts.torn, counts.errors, counts.revisions);
}

fn revision(n: u64) -> Files {
    let files = Files::new().file(format!("set/revision-{n}"), "");
    (0..FILES).fold(files, |files, index| files.file(format!("set/file-{index}"), format!("{n}\n")))
}

fn start(how: &'static str, root: &Path) -> (&'static str, Child) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--reader", how])
        .arg(root)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (how, child)
}

/// Readers of these kinds beside a sidecar, until enough was swapped and read. The counts by kind, and the swaps.
fn phase(
    kinds: &[&'static str],
    args: &[&str],
    swaps: u64,
    at_least: Duration,
) -> (Vec<(&'static str, Counts)>, u64) {
    let world = World::new();
    world.remote.commit(&revision(1));
    let sidecar = Sidecar::start(&world, args);
    let link = || std::fs::read_link(world.root.join("..data")).ok();
    let mut current: PathBuf = eventually(30, "the first publication", link);
    let readers: Vec<_> = kinds.iter().map(|kind| start(kind, &world.root)).collect();
    let begin = Instant::now();
    let mut done = 0;
    while done < swaps || begin.elapsed() < at_least {
        world.remote.commit(&revision(done + 2));
        current = eventually(30, "the next publication", || link().filter(|next| *next != current));
        done += 1;
    }
    std::fs::write(world.root.with_extension("stop"), "").unwrap();
    let counts = readers.into_iter().map(|(kind, child)| {
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [reads, torn, errors, revisions] = numbers[..] else { panic!("a reader died: {text:?}") };
        (kind, Counts { reads, torn, errors, revisions })
    });
    let counts = counts.collect();
    drop(sidecar);
    (counts, done)
}

/// Sums a kind's counts, prints them, and gives them back.
fn sum(label: &str, kind: &str, counts: &[(&'static str, Counts)], swaps: u64) -> Counts {
    let mut total = Counts::default();
    let mut readers = 0;
    for (_, one) in counts.iter().filter(|(name, _)| *name == kind) {
        readers += 1;
        total.reads += one.reads;
        total.torn += one.torn;
        total.errors += one.errors;
        total.revisions += one.revisions;
    }
    println!(
        "{label}: {readers} {kind} readers, {swaps} swaps: {} reads of {} files, {} revisions seen, {} torn, {} errors",
        total.reads,
        FILES + 1,
        total.revisions,
        total.torn,
        total.errors
    );
    total
}

fn drive() {
    let (swaps, reads, seconds) = if full() { (2_000, 1_000_000, 60) } else { (110, 20_000, 3) };
    // The hardest case for a reader: what is superseded is removed at once.
    let (counts, done) = phase(&["pinned"; 4], &["--grace=0s"], swaps, Duration::from_secs(seconds));
    let total = sum("no grace", "pinned", &counts, done);
    assert_eq!((total.torn, total.errors), (0, 0), "a pinned reader saw a mixture or an error");
    assert!(
        total.reads >= reads && done >= swaps,
        "too little was read: {} reads, {done} swaps",
        total.reads
    );
    assert!(total.revisions >= swaps / 2, "the readers saw too few of the swaps: {}", total.revisions);

    let controls = ["path", "path", "resolved", "resolved"];
    let (control_swaps, at_least) = (swaps / 4, Duration::from_secs(1));
    for (label, args) in [("no grace", ["--grace=0s"]), ("grace 2 s", ["--grace=2s"])] {
        let args = [args[0], "--max-generations=1000"];
        let (counts, done) = phase(&controls, &args, control_swaps, at_least);
        sum(label, "path", &counts, done);
        let resolved = sum(label, "resolved", &counts, done);
        // Grace is a promise too: who resolved the link once finds everything for as long as it lasts.
        assert!(
            label == "no grace" || (resolved.torn, resolved.errors) == (0, 0),
            "an error within the grace period"
        );
    }
    println!("readers: ok");
}
