//! The indexing child: limits first, then the pack.
//!
//! | limit | against |
//! | --- | --- |
//! | `RLIMIT_DATA` (`--index-memory`) | deltas that unfold to gigabytes, packs of endless objects |
//! | bytes read, and `RLIMIT_FSIZE` behind it (`--max-fetch-bytes`) | packs without end |
//! | objects that a pack may announce, from the memory | a header that claims 2^32 objects |
//! | `RLIMIT_CORE` 0, not dumpable | what is fetched may be private |
//! | death with the parent | work whose result is not read |
//! | [`crate::sandbox`]: the mirror's files and nothing else, no network, no other program or process | code of a stranger's |
//!
//! Not `RLIMIT_AS`: packs are mapped, and a valid pack of 317 MB fails below 256 MiB of it, looking like corruption.
//! `RLIMIT_DATA` counts what is really allocated. Objects are hashed as they pass ([`super::pack`]), and the tip's closure
//! is checked after.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use git2::{ErrorClass, ErrorCode};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

use super::pack::{self, Fault, Limits, Taken};
use super::repack::repack;
use super::{Job, Report, Task};
use crate::mirror::lack::Lack;
use crate::mirror::odb::{Settings, Store, oid};
use crate::mirror::{closure, pack_index};
use crate::revision::ObjectId;
use crate::sandbox::Files;

/// What an object of a pack may take while the pack is taken in, all that may wait included, and as much again for what
/// grows with it afterwards: more objects can not fit.
const OBJECT_BYTES: u64 = 128;

/// What may wait in the pipe.
const PIPE: usize = 1 << 20;

/// If the process is the indexing child, its whole life. Call it first thing in `main`, before any thread is started
/// and before arguments are parsed, with the arguments after the program's name:
///
/// ```no_run
/// if let Some(code) = treeswap::mirror::child_main(std::env::args_os().skip(1)) {
///     std::process::exit(i32::from(code));
/// }
/// ```
pub fn child_main(args: impl IntoIterator<Item = std::ffi::OsString>) -> Option<u8> {
    Some(match job(args)? {
        Some(job) => run(&job),
        None => 2,
    })
}

/// Does what [`child_main`] does before it reads anything that came from elsewhere, for programs that try what a child
/// can still do. `None` where it is no child.
#[doc(hidden)]
pub fn child_limits(args: impl IntoIterator<Item = std::ffi::OsString>) -> Option<io::Result<()>> {
    job(args)?.as_ref().map(limit)
}

/// What is to be done, if it can be understood, and if the process is the child.
fn job(args: impl IntoIterator<Item = std::ffi::OsString>) -> Option<Option<Job>> {
    let mut args = args.into_iter();
    if args.next()? != super::ARGUMENT {
        return None;
    }
    Some(args.next().and_then(|text| serde_json::from_str(text.to_str()?).ok()))
}

fn run(job: &Job) -> u8 {
    let report = match limit(job) {
        Ok(()) => work(job),
        Err(error) => Report::Local(format!("set limits: {error}")),
    };
    let Ok(line) = serde_json::to_string(&report) else { return 1 };
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(_) => 1, // the parent is gone
    }
}

fn limit(job: &Job) -> io::Result<()> {
    job.sandbox.close_inherited();
    let _ = STATUS.set(File::open("/proc/self/status").ok()); // it is set once
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let lower = |resource, bytes: u64| {
        // A limit that is lower already stays: only the privileged may raise one.
        let bytes = rustix::process::getrlimit(resource).maximum.map_or(bytes, |hard| hard.min(bytes));
        rustix::process::setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })
    };
    lower(Resource::Core, 0)?;
    lower(Resource::Data, job.memory)?;
    // The index, and the objects that complete a thin pack, come on top of what was received.
    let largest = job.max_bytes.saturating_mul(2).saturating_add(64 << 20);
    lower(Resource::Fsize, largest)?;
    // Fewer wake-ups; a kernel that refuses leaves the pipe as it is.
    let _ = rustix::pipe::fcntl_setpipe_size(io::stdin().as_fd(), PIPE);
    job.sandbox.enter(&files(job))
}

/// What the job needs of the mirror. What is written is not read as anything but objects and reflogs: no configuration,
/// no ref, no list of other object directories.
fn files(job: &Job) -> Files {
    let of = |name: &str| job.dir.join(name);
    let packs = of("objects/pack");
    let (write, remove) = match &job.task {
        Task::Index { .. } | Task::Fill(_) | Task::Merge(_) => (vec![packs], vec![]),
        Task::CollectGarbage(_) => (vec![packs, of("logs")], vec![of("objects")]),
    };
    // libgit2 begins its random names there.
    Files { read: vec![job.dir.clone(), "/dev/urandom".into()], write, remove }
}

/// Why indexing ended early.
enum Abort {
    Git(git2::Error),
    Report(Report),
}

impl From<git2::Error> for Abort {
    fn from(error: git2::Error) -> Self {
        Self::Git(error)
    }
}

fn work(job: &Job) -> Report {
    let done = settings(job).and_then(|()| match &job.task {
        Task::Index { tip, base, expected, partial } => {
            let check = |taken: &Taken| verify(job, tip, *base, *partial, taken);
            index(job, *expected, *partial, check, io::stdin().lock())
        }
        Task::Fill(count) => {
            let mut from = io::stdin().lock();
            let wanted = wanted(*count, &mut from)?;
            index(job, None, true, |_| arrived(job, &wanted), from)
        }
        Task::Merge(packs) => merge(job, packs),
        Task::CollectGarbage(needs) => repack(job, needs).map_err(|error| match error {
            crate::mirror::Error::Git { source, .. } => Abort::Git(source.0),
            other => Abort::Report(match crate::human::one_line(&other) {
                text if is_exhausted(&text, job) => Report::Memory,
                text => Report::Local(text),
            }),
        }),
    });
    match done {
        Ok(report) | Err(Abort::Report(report)) => report,
        Err(Abort::Git(error)) => classify(&error, job),
    }
}

fn settings(job: &Job) -> Result<(), Abort> {
    let max_objects = usize::try_from(job.memory / OBJECT_BYTES).unwrap_or(usize::MAX).min(u32::MAX as usize);
    Settings { verify: false, durable: job.durable, max_objects: Some(max_objects) }
        .apply()
        .map_err(|error| Abort::Report(Report::Local(error.to_string())))
}

fn index(
    job: &Job,
    expected: Option<u64>,
    partial: bool,
    check: impl FnOnce(&Taken) -> Result<Option<Report>, Abort>,
    from: impl Read,
) -> Result<Report, Abort> {
    let packs = job.dir.join("objects/pack");
    let before = std::fs::read_dir(&packs).map_or(0, Iterator::count);
    let taken = receive(&packs, job, expected, from)?;
    let report = check(&taken);
    let Taken { objects, bytes, name, .. } = taken;
    let report = report.and_then(|report| match report {
        None if partial => {
            // git then takes what is absent below its objects for promised.
            let marker = packs.join(format!("{name}.promisor"));
            std::fs::write(&marker, "").map_err(|error| Abort::Report(Report::Local(error.to_string())))?;
            Ok(Report::Complete { objects, bytes, pack: name.clone() })
        }
        None => Ok(Report::Complete { objects, bytes, pack: name.clone() }),
        Some(report) => Ok(report),
    });
    if !matches!(report, Ok(Report::Complete { .. }))
        && std::fs::read_dir(&packs).map_or(0, Iterator::count) > before
    {
        // Nothing needs it, and a server that always answers wrongly must not fill the disk. Index first: a pack
        // without one is swept.
        for suffix in ["idx", "pack"] {
            let _ = std::fs::remove_file(packs.join(format!("{name}.{suffix}")));
        }
    }
    report
}

/// Takes the pack in.
fn receive(packs: &Path, job: &Job, expected: Option<u64>, from: impl Read) -> Result<Taken, Abort> {
    let store = Store::open(&job.dir)?;
    let reader = store.reader()?;
    let here = |id: &ObjectId| {
        // A look at the indexes alone: each read that fails lists the packs anew.
        if !reader.has(id) {
            return Ok(None);
        }
        match reader.read(id) {
            Ok(object) => Ok(Some((object.kind(), object.data().to_vec()))),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    let limits = Limits {
        memory: job.memory,
        bytes: job.max_bytes,
        objects: job.memory / OBJECT_BYTES,
        expected: expected.unwrap_or(u64::MAX),
    };
    pack::take_in(from, packs, &limits, job.durable, &here).map_err(|fault| match fault {
        Fault::Git(error) => Abort::Git(error),
        Fault::Cut => Abort::Report(Report::Cut),
        Fault::Bad(why) => Abort::Report(Report::Bad(why)),
        Fault::Many(objects) => Abort::Report(Report::Many(objects)),
        Fault::Memory => Abort::Report(Report::Memory),
        Fault::Bytes => Abort::Report(Report::Bytes),
        Fault::Io(act, error) => Abort::Report(Report::Local(format!("{act}: {error}"))),
    })
}

/// Reads the ids of what was asked for.
fn wanted(count: usize, from: &mut impl Read) -> Result<Vec<ObjectId>, Abort> {
    let mut id = [0; 20];
    let read = |_| from.read_exact(&mut id).map(|()| ObjectId(id));
    let read = (0..count).map(read).collect::<io::Result<_>>();
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Abort::Report(Report::Cut),
        _ => Abort::Report(Report::Local(format!("read what was asked for: {error}"))),
    })
}

/// Finds the first object that was asked for and did not come.
fn arrived(job: &Job, wanted: &[ObjectId]) -> Result<Option<Report>, Abort> {
    let store = Store::open(&job.dir)?;
    let reader = store.reader()?;
    let absent = wanted.iter().find(|id| !reader.has(id));
    Ok(absent.map(|id| Report::Incomplete {
        at: None,
        lack: Lack::Missing { id: *id, expected: "object".into() },
    }))
}

/// Checks that the tip is complete, with a fresh look at what is there now. `None` when it is.
fn verify(
    job: &Job,
    tip: &ObjectId,
    base: Option<ObjectId>,
    partial: bool,
    taken: &Taken,
) -> Result<Option<Report>, Abort> {
    let store = Store::open(&job.dir)?;
    let reader = store.reader()?;
    let peeled = match reader.peel(tip) {
        Ok(Ok(peeled)) => peeled,
        Ok(Err(kind)) => return Ok(Some(Report::NotACommit(kind.to_owned()))),
        Err(lack) => return Ok(Some(Report::Incomplete { at: None, lack })),
    };
    let base = base.and_then(|base| reader.commit(&base).ok()).map(|commit| commit.tree);
    let lack = closure::closure_beside(&reader, peeled.tree, base, partial, |id| taken.is_blob(id)).err();
    if let Some(Lack::Unreadable { why, .. }) = &lack
        && is_exhausted(why, job)
    {
        return Err(Abort::Report(Report::Memory));
    }
    Ok(lack.map(|lack| {
        let at = closure::path_to(&reader, peeled.tree, lack.id());
        Report::Incomplete { at: at.map(Into::into), lack }
    }))
}

/// Writes the objects of some packs into one. The indexer that libgit2 writes it through hashes every object again, so
/// what the new index names was copied rightly.
fn merge(job: &Job, names: &[String]) -> Result<Report, Abort> {
    let store = Store::open(&job.dir)?;
    let packs = job.dir.join("objects/pack");
    let local = |error: io::Error| Abort::Report(Report::Local(format!("read the index of a pack: {error}")));
    let reader = store.reader()?;
    let mut builder = store.builder()?;
    for name in names {
        for id in pack_index::ids(&packs.join(format!("{name}.idx"))).map_err(local)? {
            reader.check_loose(&id)?;
            builder.insert_object(oid(&id), None)?;
        }
    }
    builder.write(&packs, 0o444)?;
    let name = builder.name()?.unwrap_or_default();
    Ok(Report::Merged(format!("pack-{name}")))
}

/// What a failure of libgit2 means. It reports a refused allocation as such, or as whatever failed for the lack of it,
/// so the memory in use decides, too.
fn classify(error: &git2::Error, job: &Job) -> Report {
    let text = error.message();
    if error.class() == ErrorClass::NoMemory || is_exhausted(text, job) {
        Report::Memory
    } else if text.contains("early EOF")
        || text.contains("missing trailer")
        || text.contains("incomplete pack header")
    {
        Report::Cut
    } else if error.class() == ErrorClass::Os || error.class() == ErrorClass::Filesystem {
        Report::Local(text.to_owned())
    } else {
        Report::Bad(text.to_owned())
    }
}

fn is_exhausted(text: &str, job: &Job) -> bool {
    let refused = ["out of memory", "Cannot allocate memory", "too many objects"];
    refused.iter().any(|words| text.contains(words))
        || in_use().is_some_and(|bytes| bytes > job.memory / 10 * 9)
}

/// proc_pid_status(5), opened while it can be.
static STATUS: OnceLock<Option<File>> = OnceLock::new();

/// What `RLIMIT_DATA` counts, in bytes: VmData.
fn in_use() -> Option<u64> {
    let mut file = STATUS.get()?.as_ref()?;
    let mut status = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut status)).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    Some(kib.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}
