//! Readers in processes of their own, many files at a time, while a real sidecar swaps as fast as it can: those that
//! pin never see a mixture and never an error. Beside them, what readers get who go through the path.
//!
//! This binary has no harness: it is the writer's driver, and it starts itself again as each reader.
//! `TREESWAP_TESTS=full`: at least 10,000,000 pinned reads over at least 20,000 swaps, of one repository and of several
//! sources each.
#![allow(missing_docs)]

mod common;

use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::sources_world::{SourcesWorld, source};
use common::{Files, Remote, Sidecar, eventually, full};
use rustix::fs::{Mode, OFlags};
use treeswap::pin::{Options, Pin};

/// Readers of a phase.
const READERS: u64 = 4;

/// The grace period of the phase that has one, as its flag says below.
const GRACE: Duration = Duration::from_secs(5);

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
    /// Reads that failed, but took longer than the grace period and so were promised nothing.
    late: u64,
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
    whole(pin.dir(), "set")
}

/// The same of several sources: two of one ref, which are at the same commit in every generation, and one of another
/// repository.
fn pinned_sources(root: &Path) -> Outcome {
    let pin = Pin::take(root, &Options::default()).map_err(std::io::Error::other)?;
    let [one, other] = [whole(pin.dir(), "set")?, whole(pin.dir(), "again")?];
    let is_whole = whole(pin.dir(), "beside")?.is_some();
    Ok(one.filter(|_| one == other && is_whole))
}

/// The number of the set in a directory.
fn whole(dir: BorrowedFd<'_>, name: &str) -> Outcome {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let set = rustix::fs::openat(dir, name, flags, Mode::empty())?;
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
        "pinned-sources" => pinned_sources,
        "resolved" => resolved,
        _ => by_path,
    };
    let stop = root.with_extension("stop");
    let (mut counts, mut last) = (Counts::default(), 0);
    // At least its share, however little of the processor it gets.
    let least = size().reads / READERS;
    while counts.reads < least || counts.reads % 64 != 0 || !stop.exists() {
        counts.reads += 1;
        let begin = Instant::now();
        match read(root) {
            Ok(Some(revision)) => {
                counts.revisions += u64::from(revision != last);
                last = revision;
            }
            _ if how == "resolved" && begin.elapsed() >= GRACE => counts.late += 1,
            Ok(None) => counts.torn += 1,
            Err(error) => {
                counts.errors += 1;
                if how.starts_with("pinned") {
                    eprintln!("a pinned read failed: {error}");
                }
            }
        }
    }
    println!("{} {} {} {} {}", counts.reads, counts.torn, counts.errors, counts.late, counts.revisions);
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
    let sources = SourcesWorld::new();
    let (world, beside) = (&sources.world, sources.remote("beside"));
    world.remote.commit(&revision(1));
    beside.commit(&revision(1));
    let has_sources = kinds.contains(&"pinned-sources");
    let sidecar = if has_sources {
        let of = |remote: &Remote, to: &str| source(to, remote, &format!(", path: set, to: {to}"));
        sources.list(&[of(&world.remote, "set"), of(&world.remote, "again"), of(&beside, "beside")]);
        sources.sidecar(args)
    } else {
        Sidecar::start(world, args)
    };
    let link = || std::fs::read_link(world.root.join("..data")).ok();
    let mut current: PathBuf = eventually(30, "the first publication", link);
    let readers: Vec<_> = kinds.iter().map(|kind| start(kind, &world.root)).collect();
    let begin = Instant::now();
    let mut done = 0;
    while done < swaps || begin.elapsed() < at_least {
        let remote = if has_sources && done % 4 == 3 { &beside } else { &world.remote };
        remote.commit(&revision(done + 2));
        current = eventually(30, "the next publication", || link().filter(|next| *next != current));
        done += 1;
    }
    std::fs::write(world.root.with_extension("stop"), "").unwrap();
    let counts = readers.into_iter().map(|(kind, child)| {
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [reads, torn, errors, late, revisions] = numbers[..] else { panic!("a reader died: {text:?}") };
        (kind, Counts { reads, torn, errors, late, revisions })
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
        total.late += one.late;
        total.revisions += one.revisions;
    }
    println!(
        "{label}: {readers} {kind} readers, {swaps} swaps: {} reads of {} files, {} revisions seen, {} torn, {} errors{}",
        total.reads,
        FILES + 1,
        total.revisions,
        total.torn,
        total.errors,
        if total.late > 0 { format!(", {} later than the grace period", total.late) } else { String::new() }
    );
    total
}

/// How much is asked for.
struct Size {
    swaps: u64,
    /// Swaps beside readers without a pin.
    controls: u64,
    /// By all readers of a phase together.
    reads: u64,
    /// A phase with pins takes at least so long.
    at_least: Duration,
}

fn size() -> Size {
    if full() {
        Size { swaps: 20_000, controls: 500, reads: 10_000_000, at_least: Duration::from_secs(60) }
    } else {
        Size { swaps: 60, controls: 27, reads: 10_000, at_least: Duration::from_secs(2) }
    }
}

fn drive() {
    let Size { swaps, controls: control_swaps, reads, at_least } = size();
    // The hardest case for a reader: what is superseded is removed at once.
    for kind in ["pinned-sources", "pinned"] {
        let (counts, done) = phase(&[kind; READERS as usize], &["--grace=0s"], swaps, at_least);
        let total = sum("no grace", kind, &counts, done);
        assert_eq!((total.torn, total.errors), (0, 0), "a pinned reader saw a mixture or an error");
        let is_enough = total.reads >= reads && done >= swaps;
        assert!(is_enough, "too little was read: {} reads, {done} swaps", total.reads);
        // What a reader sees of the swaps is the scheduler's affair; at full size it is asked for.
        let least = if full() { swaps / 2 } else { READERS };
        assert!(total.revisions >= least, "the readers saw too few of the swaps: {}", total.revisions);
    }

    let controls = ["path", "path", "resolved", "resolved"];
    let at_least = Duration::from_secs(1);
    for (label, args) in [("no grace", ["--grace=0s"]), ("grace 5 s", ["--grace=5s"])] {
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
