//! The indexer's child process. It limits itself before it reads anything from a server:
//!
//! | limit | against |
//! | --- | --- |
//! | `RLIMIT_DATA` (`--index-memory`) | deltas that expand to gigabytes, packs with too many objects |
//! | `RLIMIT_STACK` 8 MiB | a stack as memory, which `RLIMIT_DATA` does not count |
//! | bytes read, and `RLIMIT_FSIZE` as a second line of defence (`--max-fetch-bytes`) | endless packs |
//! | the number of objects that a pack may announce, derived from the memory | a header that claims 2^32 objects |
//! | `RLIMIT_CORE` 0, not dumpable | core dumps with private content |
//! | parent death signal | work whose result nobody reads |
//! | [`crate::sandbox`]: only the mirror's files, no network, no other program or process | code that a pack injects |
//!
//! `RLIMIT_AS` is not set, because packs are mapped: a valid pack of 317 MB fails with less than 256 MiB of it, with an
//! error that looks like corruption. `RLIMIT_DATA` counts what is really allocated, by a parser. It does not bound
//! foreign code: memory that is made read-only once it is filled counts no more, and mprotect(2) cannot be refused,
//! because threads need it. Only the limit of the container bounds that.
//!
//! Objects are hashed while the pack is read ([`super::pack`]); afterwards the tip is checked for completeness.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use git2::{ErrorClass, ErrorCode};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use serde::de::DeserializeOwned;

use super::pack::{self, IndexError, IndexedPack, Limits};
use super::repack::{Needs, merge, repack};
use super::{Job, ObjectTable, PACKS, Report, Task};
use crate::mirror::object_error::ObjectError;
use crate::mirror::odb::{Settings, Store};
use crate::mirror::{Error, closure};
use crate::revision::ObjectId;
use crate::sandbox::Files;

/// The memory that indexing needs for each object, with everything pending included, and as much again for what grows
/// with the number of objects afterwards. It bounds the number of objects.
const OBJECT_BYTES: u64 = 128;

/// The size of the pipe from the parent.
const PIPE: usize = 1 << 20;

/// Runs the indexer if the process is its child, and returns the exit code; `None` if it is not. Call it first in
/// `main`, before any thread is started and before arguments are parsed, with the arguments after the program's name:
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

/// Sets the limits as [`child_main`] does before it reads any input. For tests of what a child can still do. Returns
/// `None` if the process is not the child.
#[doc(hidden)]
pub fn child_limits(args: impl IntoIterator<Item = std::ffi::OsString>) -> Option<io::Result<()>> {
    job(args)?.as_ref().map(limit)
}

/// Parses the arguments. Returns `None` if the process is not the child, and `Some(None)` if the job is malformed.
fn job(args: impl IntoIterator<Item = std::ffi::OsString>) -> Option<Option<Job>> {
    let mut args = args.into_iter();
    if args.next()? != super::ARGUMENT {
        return None;
    }
    Some(args.next().and_then(|text| serde_json::from_str(text.to_str()?).ok()))
}

fn run(job: &Job) -> u8 {
    let (report, table) = match limit(job) {
        Ok(()) => work(job),
        Err(error) => (Report::Local(format!("set limits: {error}")), None),
    };
    let Ok(line) = serde_json::to_string(&report) else { return 1 };
    let mut out = io::stdout().lock();
    let table = |out: &mut _| table.map_or(Ok(()), |table| table.encode(out));
    match writeln!(out, "{line}").and_then(|()| table(&mut out)).and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(_) => 1, // the parent is gone
    }
}

/// Sets all limits of the process; see the module.
fn limit(job: &Job) -> io::Result<()> {
    job.sandbox.close_inherited();
    let _ = STATUS.set(File::open("/proc/self/status").ok()); // cannot be set already: `limit` runs once
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let lower = |resource, bytes: u64| {
        // A limit that is already lower is kept: raising a hard limit takes privileges.
        let bytes = rustix::process::getrlimit(resource).maximum.map_or(bytes, |hard| hard.min(bytes));
        rustix::process::setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })
    };
    lower(Resource::Core, 0)?;
    lower(Resource::Data, job.memory)?;
    lower(Resource::Stack, 8 << 20)?; // as nearly everywhere by default
    // The index, and the bases that complete a thin pack, come on top of what is received.
    let largest = job.max_bytes.saturating_mul(2).saturating_add(64 << 20);
    lower(Resource::Fsize, largest)?;
    // A larger pipe saves wake-ups; if the kernel refuses, the default size works too.
    let _ = rustix::pipe::fcntl_setpipe_size(io::stdin().as_fd(), PIPE);
    job.sandbox.enter(&files(job))
}

/// The files that the job may access. It can write only where objects and reflogs are: neither configuration, nor refs,
/// nor alternates.
fn files(job: &Job) -> Files {
    let path = |name: &str| job.dir.join(name);
    let packs = path(PACKS);
    let (write, remove) = match &job.task {
        Task::Index { .. } | Task::Fill(_) | Task::Merge(_) => (vec![packs], vec![]),
        Task::CollectGarbage(_) => (vec![packs, path("logs")], vec![path("objects")]),
    };
    // libgit2 seeds the random names of its temporary files from /dev/urandom.
    Files { read: vec![job.dir.clone(), "/dev/urandom".into()], write, remove }
}

/// Why a job ended early.
enum Abort {
    Git(git2::Error),
    Report(Report),
}

impl From<git2::Error> for Abort {
    fn from(error: git2::Error) -> Self {
        Self::Git(error)
    }
}

/// Does the job's task. Returns the report, and the table of a pack that was indexed.
fn work(job: &Job) -> (Report, Option<Arc<ObjectTable>>) {
    let mut table = None;
    let done = apply_settings(job).and_then(|()| match &job.task {
        Task::Index { tip, base, expected, partial } => {
            let check = |taken: &IndexedPack| {
                table.clone_from(&taken.table);
                verify(job, tip, *base, *partial, taken)
            };
            index(job, *expected, *partial, check, io::stdin().lock())
        }
        Task::Fill(count) => {
            let mut from = io::stdin().lock();
            let wanted = read_wanted(*count, &mut from)?;
            index(job, None, true, |_| report_none_arrived(job, &wanted), from)
        }
        Task::Merge(_) => {
            let packs: Vec<String> = read_list(io::stdin().lock())?;
            merge(&job.dir, &packs).map_err(|error| abort(error, job))
        }
        Task::CollectGarbage(needs) => {
            let needs = Needs { kept_revisions: read_list(io::stdin().lock())?, ..needs.clone() };
            repack(job, &needs).map_err(|error| abort(error, job))
        }
    });
    let report = match done {
        Ok(report) | Err(Abort::Report(report)) => report,
        Err(Abort::Git(error)) => classify(&error, job),
    };
    (report, table)
}

/// An object of another type is the author's fault for certain only if it is in the received pack: the damaged index of
/// another pack leads to other objects, too. Otherwise the error is one that asking again, without haves, may mend.
fn of_other_pack(error: ObjectError, is_certain: impl Fn(&ObjectId) -> bool) -> ObjectError {
    match error {
        ObjectError::OtherKind { id, expected, found } if !is_certain(&id) => {
            ObjectError::Unreadable { id, expected, why: format!("an earlier pack has a {found} there") }
        }
        error => error,
    }
}

fn abort(error: Error, job: &Job) -> Abort {
    let error = match error {
        Error::Git { source, .. } => return Abort::Git(source.0),
        other => other,
    };
    let text = crate::human::one_line(&error);
    Abort::Report(match error {
        _ if is_exhausted(&text, job) => Report::Memory,
        Error::Damaged { source, .. } if is_unreadable(job, &source) => {
            Report::Incomplete { at: None, error: source }
        }
        _ => Report::Local(text),
    })
}

/// Returns true if the object cannot be decoded even now, when the task holds no memory any more. One that is missing
/// may be in a pack that could not be opened, and one of another type may be as its author named it: of history, only
/// the commits were checked.
fn is_unreadable(job: &Job, error: &ObjectError) -> bool {
    let ObjectError::Unreadable { id, .. } = error else { return false };
    let Ok(store) = Store::open(&job.dir) else { return false };
    let Ok(reader) = store.reader() else { return false };
    reader.read(id).is_err_and(|error| error.code() != ErrorCode::NotFound)
}

/// Configures libgit2.
fn apply_settings(job: &Job) -> Result<(), Abort> {
    let max_objects = usize::try_from(job.memory / OBJECT_BYTES).unwrap_or(usize::MAX).min(u32::MAX as usize);
    Settings { verify: false, durable: job.durable, max_objects: Some(max_objects) }
        .apply()
        .map_err(|error| Abort::Report(Report::Local(error.to_string())))
}

/// Indexes a pack and checks it. `check` returns a report if something is missing; the pack is then removed again.
fn index(
    job: &Job,
    expected: Option<u64>,
    partial: bool,
    check: impl FnOnce(&IndexedPack) -> Result<Option<Report>, Abort>,
    from: impl Read,
) -> Result<Report, Abort> {
    let packs = job.dir.join(PACKS);
    let taken = receive(&packs, job, expected, from)?;
    let report = check(&taken);
    let IndexedPack { name, is_new, .. } = taken;
    let report = report.and_then(|report| {
        if let Some(report) = report {
            return Ok(report);
        }
        if partial {
            // git then takes missing objects that the pack refers to for promised ones.
            let marker = packs.join(format!("{name}.promisor"));
            std::fs::write(&marker, "").map_err(|error| Abort::Report(Report::Local(error.to_string())))?;
        }
        Ok(Report::Complete { pack: name.clone() })
    });
    if is_new && !matches!(report, Ok(Report::Complete { .. })) {
        // The pack is of no use, and a server that sends many such packs must not fill the disk. The index is
        // removed first, because a pack without an index is swept.
        for suffix in ["idx", "pack"] {
            let _ = std::fs::remove_file(packs.join(format!("{name}.{suffix}")));
        }
    }
    report
}

/// Reads and indexes the pack.
fn receive(packs: &Path, job: &Job, expected: Option<u64>, from: impl Read) -> Result<IndexedPack, Abort> {
    let store = Store::open(&job.dir)?;
    let reader = store.reader()?;
    let read_base = |id: &ObjectId| {
        // Checked first because it uses the indexes alone; a read that fails makes libgit2 list the packs again.
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
    pack::index_pack(from, packs, &limits, job.durable, &read_base).map_err(|fault| match fault {
        IndexError::Git(error) => Abort::Git(error),
        IndexError::Cut => Abort::Report(Report::Cut),
        IndexError::Bad(why) => Abort::Report(Report::Bad(why)),
        IndexError::Many(objects) => Abort::Report(Report::Many(objects)),
        IndexError::Memory => Abort::Report(Report::Memory),
        IndexError::Bytes => Abort::Report(Report::Bytes),
        IndexError::Io(act, error) => Abort::Report(Report::Local(format!("{act}: {error}"))),
    })
}

/// Reads the task's list to the end of the input. What a parent began to write before it was killed is no list.
fn read_list<T: DeserializeOwned>(from: impl Read) -> Result<Vec<T>, Abort> {
    let list: serde_json::Result<Vec<T>> = serde_json::from_reader(from);
    list.map_err(|error| Abort::Report(Report::Local(format!("read the request: {error}"))))
}

/// Reads the ids of the wanted objects.
fn read_wanted(count: usize, from: &mut impl Read) -> Result<Vec<ObjectId>, Abort> {
    let mut id = [0; 20];
    let read = |_| from.read_exact(&mut id).map(|()| ObjectId(id));
    let read = (0..count).map(read).collect::<io::Result<_>>();
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Abort::Report(Report::Cut),
        _ => Abort::Report(Report::Local(format!("read the request: {error}"))),
    })
}

/// Reports the first wanted object if all of them are missing. Returns `None` if some arrived: the caller requests the
/// rest again.
fn report_none_arrived(job: &Job, wanted: &[ObjectId]) -> Result<Option<Report>, Abort> {
    let store = Store::open(&job.dir)?;
    let reader = store.reader()?;
    let some_arrived = wanted.iter().any(|id| reader.has(id));
    Ok(wanted.first().filter(|_| !some_arrived).map(|id| Report::Incomplete {
        at: None,
        error: ObjectError::Missing { id: *id, expected: "object".into() },
    }))
}

/// Checks that the tip is complete; the database is opened again to see the new pack. Returns `None` if it is.
fn verify(
    job: &Job,
    tip: &ObjectId,
    base: Option<ObjectId>,
    partial: bool,
    taken: &IndexedPack,
) -> Result<Option<Report>, Abort> {
    // Nothing more can be asked for than without haves: the next answer would lead to the same object.
    let is_last = base.is_none();
    let store = Store::open(&job.dir)?.with_table(taken.table.clone());
    let reader = store.reader()?;
    let peeled = match reader.peel(tip) {
        Ok(Ok(peeled)) => peeled,
        Ok(Err(kind)) => return Ok(Some(Report::NotACommit(kind.to_owned()))),
        Err(error) => return Ok(Some(Report::Incomplete { at: None, error })),
    };
    let base = base.and_then(|base| reader.commit(&base).ok()).map(|commit| commit.tree);
    let is_blob = |id: &ObjectId| taken.is_blob(id);
    let error = closure::tree_closure_except_blobs(&reader, peeled.tree, base, partial, is_blob).err();
    if let Some(ObjectError::Unreadable { why, .. }) = &error
        && is_exhausted(why, job)
    {
        return Err(Abort::Report(Report::Memory));
    }
    Ok(error.map(|error| {
        let at = closure::path_to(&reader, peeled.tree, error.id());
        let error = of_other_pack(error, |id| is_last || taken.has(id));
        Report::Incomplete { at: at.map(Into::into), error }
    }))
}

/// Converts an error of libgit2 to a report. libgit2 reports a failed allocation as such, or as the operation that
/// failed because of it, so the memory in use is considered as well.
fn classify(error: &git2::Error, job: &Job) -> Report {
    let text = error.message();
    if error.class() == ErrorClass::NoMemory || is_exhausted(text, job) {
        Report::Memory
    } else if error.class() == ErrorClass::Os || error.class() == ErrorClass::Filesystem {
        Report::Local(text.to_owned())
    } else {
        Report::Bad(text.to_owned())
    }
}

/// Returns true if the message says that memory ran out, or more than nine tenths of it are in use.
fn is_exhausted(text: &str, job: &Job) -> bool {
    // The C libraries say "Cannot allocate memory" and, in musl, "Out of memory".
    let refused = ["out of memory", "cannot allocate memory", "too many objects"];
    let text = text.to_ascii_lowercase();
    refused.iter().any(|words| text.contains(words))
        || memory_in_use().is_some_and(|bytes| bytes > job.memory / 10 * 9)
}

/// `/proc/self/status` (proc_pid_status(5)), opened before the sandbox hides `/proc`.
static STATUS: OnceLock<Option<File>> = OnceLock::new();

/// The bytes that `RLIMIT_DATA` counts: VmData.
fn memory_in_use() -> Option<u64> {
    let mut file = STATUS.get()?.as_ref()?;
    let mut status = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut status)).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    Some(kib.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::fixture::Fixture;
    use crate::sandbox::Sandbox;

    /// A pack without objects.
    const EMPTY: [u8; 32] = *b"PACK\0\0\0\x02\0\0\0\0\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e";

    fn job_in(fixture: &Fixture) -> Job {
        Job {
            dir: fixture.layout.dir().to_owned(),
            task: Task::Fill(0),
            memory: 64 << 20,
            max_bytes: 1 << 20,
            durable: false,
            sandbox: Sandbox::Off,
        }
    }

    #[test]
    fn a_list_that_was_cut_off_is_none() {
        let ids = vec![ObjectId([7; 20]); 3];
        let text = serde_json::to_vec(&ids).unwrap();
        assert!(matches!(read_list::<ObjectId>(&text[..]), Ok(list) if list == ids));
        for end in 0..text.len() {
            let read = read_list::<ObjectId>(&text[..end]);
            assert!(matches!(read, Err(Abort::Report(Report::Local(_)))), "{end}");
        }
    }

    #[test]
    fn an_object_of_another_type_is_the_authors_fault_only_in_the_received_pack() {
        let id = ObjectId([7; 20]);
        let other = ObjectError::OtherKind { id, expected: "tree".into(), found: "blob".into() };
        assert_eq!(of_other_pack(other.clone(), |_| true), other);
        assert!(matches!(of_other_pack(other, |_| false), ObjectError::Unreadable { .. }));
    }

    #[test]
    fn a_file_that_is_an_earlier_directory_is_refused_once_everything_was_asked_for() {
        let fixture = Fixture::new();
        let blob = fixture.blob(b"x");
        let earlier = fixture.tree(&[("100644", b"a", blob)]);
        let base = fixture.commit(earlier, &[]);
        // A filter keeps what is named as a file out of the pack, so that only the earlier pack has it.
        let tip = fixture.commit(fixture.tree(&[("100644", b"f", earlier)]), &[]);
        let job = job_in(&fixture);
        let packs = job.dir.join(PACKS);
        let limits = Limits { memory: job.memory, bytes: job.max_bytes, objects: 1_000, expected: 1_000 };
        let empty = pack::index_pack(&EMPTY[..], &packs, &limits, false, &|_| Ok(None)).unwrap();
        let error = |base: Option<ObjectId>| match verify(&job, &tip.0, base, true, &empty) {
            Ok(Some(Report::Incomplete { error, .. })) => error,
            _ => panic!("it is not a file"),
        };
        assert!(matches!(error(Some(base.0)), ObjectError::Unreadable { .. }), "it is asked for again");
        assert!(matches!(error(None), ObjectError::OtherKind { .. }), "the tip is refused");
    }

    #[test]
    fn a_useless_pack_is_removed_unless_the_mirror_had_it() {
        let fixture = Fixture::new();
        let packs = fixture.layout.dir().join("objects/pack");
        let job = job_in(&fixture);
        let take = |report: Option<Report>| match index(&job, None, false, |_| Ok(report), &EMPTY[..]) {
            Ok(report) => report,
            Err(_) => panic!("not indexed"),
        };
        let count = || std::fs::read_dir(&packs).unwrap().count();
        // Indexing sweeps what killed processes left, so that there may be fewer files afterwards than before.
        for serial in 0..5 {
            std::fs::write(packs.join(format!("tmp_pack_1-{serial}")), "").unwrap();
        }
        assert_eq!(take(Some(Report::Cut)), Report::Cut);
        assert_eq!(count(), 0, "the useless pack stays");
        assert!(matches!(take(None), Report::Complete { .. }));
        assert_eq!(count(), 2);
        assert_eq!(take(Some(Report::Cut)), Report::Cut);
        assert_eq!(count(), 2, "the pack that the mirror had is removed");
    }
}
