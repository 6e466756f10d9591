//! Trees that rules are applied to: a directory, or a revision in a mirror. Lists their entries and reads their files.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::Error;
use super::known::{Key, KnownValues};
use crate::configmap::{
    self, Change, Contents, Entry, FILE_MAX, FileRef, Finding, IsNeeded, Refused, RuleSet, TimeLimit, Value,
    ValueError, ValueSource,
};
use crate::mirror::{self, ChangedPath, ListedEntry, Objects};
use crate::payload::{BlobError, BlobReader, BlobSource};
use crate::revision::{ObjectId, Revision};
use crate::threads::{on_threads, processors};

/// The entries of a tree, and a reader for its files.
pub type Listing<'t> = (configmap::Tree, Box<dyn Contents + 't>);

/// The differences to another tree, and a reader for the files of this one.
pub type Changes<'t> = (Vec<Change>, Box<dyn Contents + 't>);

/// The files of one revision.
pub trait Tree {
    /// Lists the entries of the top and of all directories that `enter` returns true for; it is called with the path
    /// from the top. Fails if anything cannot be read: a missing file would look like a deletion.
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error>;

    /// Lists what differs from another revision's tree, in the same directories. `None` if the differences are not
    /// available and the tree has to be listed. Fails as [`Self::list`] does.
    fn changes(
        &self,
        _since: Revision,
        _enter: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<Changes<'_>>, Error> {
        Ok(None)
    }
}

/// Lists the directories that the rules reach; the whole tree if a rule matches a symbolic link in them. The plan is
/// refused if it takes longer to find that out than matching may take.
pub(super) fn reached<'t>(
    tree: &'t dyn Tree,
    rules: &RuleSet,
    limit: TimeLimit,
) -> Result<Listing<'t>, Error> {
    let pruned = tree.list(&|path| rules.patterns.reach_below(path))?;
    // The link's target may be in a directory that was not listed. Only what a pattern matches is resolved, and no
    // parent of a listed path is a link.
    let began = Instant::now();
    let mut is_resolved = false;
    for link in pruned.0.links() {
        if began.elapsed() >= limit.time {
            let finding = Finding::MatchingLimit { rules: rules.rules.len(), limit };
            return Err(Refused(vec![finding]).into());
        }
        if rules.patterns.is_match(link) {
            is_resolved = true;
            break;
        }
    }
    if is_resolved { whole(tree, pruned) } else { Ok(pruned) }
}

/// Lists the parent directories of a path; the whole tree if the path is a link or leads through one.
pub(super) fn on_the_way_to<'t>(tree: &'t dyn Tree, path: &[u8]) -> Result<Listing<'t>, Error> {
    let rest = |parent: &[u8]| path.strip_prefix(parent);
    let pruned = tree.list(&|directory| rest(directory).is_some_and(|rest| rest.starts_with(b"/")))?;
    let is_on_the_way = |link: &[u8]| rest(link).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
    if pruned.0.links().any(is_on_the_way) { whole(tree, pruned) } else { Ok(pruned) }
}

/// Lists the whole tree. Drops the listing of a part first, because each may take hundreds of megabytes.
fn whole<'t>(tree: &'t dyn Tree, pruned: Listing<'t>) -> Result<Listing<'t>, Error> {
    drop(pruned);
    tree.list(&|_| true)
}

/// A file has more bytes than are read of one: that of the rules, or one that grew after it was measured.
#[derive(Debug, thiserror::Error)]
#[error("it has {} bytes, and no more than {FILE_MAX} of a file are read", .0)]
pub(super) struct TooLarge(u64);

/// A directory on disk. Entries named `.git` are not part of the tree. The path must be resolved: a plan lists it twice,
/// and a link may be swapped meanwhile, as `..data` is.
#[derive(Debug)]
pub struct Directory<'d>(pub &'d Path);

impl Tree for Directory<'_> {
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error> {
        let mut tree = configmap::Tree::default();
        let mut files = Vec::new();
        let mut pending = vec![Vec::new()];
        while let Some(parent) = pending.pop() {
            for entry in fs_err::read_dir(self.0.join(OsStr::from_bytes(&parent)))? {
                let entry = entry?;
                let name = entry.file_name();
                if name == ".git" {
                    continue; // a repository's directory or a submodule's file; no commit can contain this name
                }
                let mut path = parent.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.as_bytes());
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    if enter(&path) {
                        pending.push(path);
                    }
                } else if kind.is_symlink() {
                    let target = fs_err::read_link(entry.path())?;
                    tree.add(path, Entry::Link(target.into_os_string().into_vec()));
                } else if kind.is_file() {
                    tree.add(path, Entry::File(files.len().into()));
                    files.push(entry.path());
                } else {
                    tree.add(path, Entry::Other);
                }
            }
        }
        Ok((tree, Box::new(Files(files))))
    }
}

/// Reads the files of a directory by their index.
struct Files(Vec<PathBuf>);

impl Files {
    fn open(&self, file: FileRef) -> Result<std::fs::File, Failure> {
        let FileRef::Index(index) = file else { return Err("a directory has no blobs".into()) };
        Ok(std::fs::File::open(&self.0[index])?)
    }
}

impl Contents for Files {
    fn size(&mut self, file: FileRef) -> Result<u64, Failure> {
        Ok(self.open(file)?.metadata()?.len())
    }

    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Failure> {
        let mut file = self.open(file)?;
        let size = file.metadata()?.len();
        if size > FILE_MAX {
            return Err(TooLarge(size).into());
        }
        // Grown step by step, it would take up to twice as much, and a plan keeps what it is made of.
        let mut bytes = Vec::with_capacity(size as usize);
        (&mut file).take(FILE_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(TooLarge(file.metadata()?.len()).into()); // it grew meanwhile
        }
        Ok(bytes)
    }
}

/// A revision in a mirror.
pub struct Commit<'m> {
    objects: &'m Objects,
    revision: Revision,
    blobs: Box<dyn BlobSource + Send>,
    known: &'m KnownValues,
    cancel: CancellationToken,
}

impl<'m> Commit<'m> {
    /// The tree of a revision. The mirror removes no pack while this exists. Values in `known` are not made again.
    pub fn new(objects: &'m Objects, revision: Revision, known: &'m KnownValues) -> Self {
        known.forget_dropped();
        Self { objects, revision, blobs: objects.blobs(), known, cancel: CancellationToken::new() }
    }

    /// Makes the reading of files fail with [`mirror::Error::Cancelled`], between two of them, once `cancel` is
    /// cancelled. [`Objects::until`] does so for the listing.
    #[must_use]
    pub fn until(self, cancel: &CancellationToken) -> Self {
        Self { cancel: cancel.clone(), ..self }
    }
}

impl Tree for Commit<'_> {
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error> {
        let mut tree = configmap::Tree::of(self.objects.places(self.revision));
        for (path, listed) in self.objects.list(self.revision, enter)? {
            tree.add(path, entry(listed));
        }
        Ok((tree, Box::new(self.contents())))
    }

    fn changes(&self, since: Revision, enter: &dyn Fn(&[u8]) -> bool) -> Result<Option<Changes<'_>>, Error> {
        let Some(differing) = self.objects.changed_paths(since, self.revision, enter)? else {
            return Ok(None);
        };
        let change = |ChangedPath { path, before, now }| Change { path, before, now: now.map(entry) };
        Ok(Some((differing.into_iter().map(change).collect(), Box::new(self.contents()))))
    }
}

fn entry(listed: ListedEntry) -> Entry {
    match listed {
        ListedEntry::File(id) => Entry::File(id.into()),
        ListedEntry::Link(target) => Entry::Link(target),
        ListedEntry::Other => Entry::Other,
    }
}

impl Commit<'_> {
    fn contents(&self) -> Blobs<'_> {
        Blobs { source: &*self.blobs, known: self.known, cancel: &self.cancel }
    }
}

/// Reads the files of a commit from the mirror's blobs.
struct Blobs<'b> {
    source: &'b dyn BlobSource,
    known: &'b KnownValues,
    cancel: &'b CancellationToken,
}

/// The object id of a file in a mirror.
fn blob_id(file: FileRef) -> Result<ObjectId, Failure> {
    match file {
        FileRef::Blob(id) => Ok(id),
        FileRef::Index(_) => Err("a mirror has no files by number".into()),
    }
}

impl Contents for Blobs<'_> {
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Failure> {
        let mut reader = self.source.reader()?;
        let id = blob_id(file)?;
        let size = checked_size(&mut *reader, &id)?;
        read(&mut *reader, &id, size)
    }

    /// Makes the values on several threads, because inflating and compressing is CPU-bound.
    fn values(
        &mut self,
        wanted: &[ValueSource],
        room: u64,
        is_needed: &IsNeeded<'_>,
    ) -> Result<Vec<Arc<Value>>, ValueError> {
        let key = |(at, source): (usize, &ValueSource)| match blob_id(source.file) {
            Ok(id) => Ok((id, source.compress)),
            Err(error) => Err(ValueError::UnreadableFile { at, error }),
        };
        let keys = wanted.iter().enumerate().map(key).collect::<Result<Vec<Key>, _>>()?;
        let _found = self.known.read_file(keys.iter().copied(), room); // keeps the values in `known`
        let ids: Vec<ObjectId> = keys.iter().map(|(id, _)| *id).collect();
        let order = self.source.order(&ids);
        let work = Work {
            blobs: self,
            keys: &keys,
            order: &order,
            next: AtomicUsize::new(0),
            made_bytes: AtomicU64::new(0),
            room,
            is_needed,
            failed: Mutex::default(),
            large: Mutex::default(),
            made: wanted.iter().map(|_| OnceLock::new()).collect(),
        };
        on_threads(processors().clamp(1, 8).min(wanted.len() / VALUES_PER_THREAD + 1), || work.run());
        if work.made_bytes.into_inner() > room {
            return Err(ValueError::OverMemoryLimit);
        }
        if let Some((at, error)) = work.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(ValueError::UnreadableFile { at, error });
        }
        #[expect(clippy::expect_used, reason = "threads stop early only after a failure or without room")]
        let made = work.made.into_iter().map(|value| value.into_inner().expect("it was made")).collect();
        Ok(made)
    }

    fn keep(&mut self, bytes: u64, all: &mut dyn Iterator<Item = (ValueSource, &Value)>) {
        let keyed =
            |(source, value): (ValueSource, _)| Some(((blob_id(source.file).ok()?, source.compress), value));
        self.known.write_file(bytes, all.filter_map(keyed));
    }
}

/// How many values justify another thread.
const VALUES_PER_THREAD: usize = 16;

/// Files of more bytes than this are processed by one thread at a time: such a file is in memory more than once for a
/// moment.
const LARGE: u64 = 1 << 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The values to make, shared by the threads that make them.
struct Work<'w> {
    blobs: &'w Blobs<'w>,
    keys: &'w [Key],
    /// Indices into `keys`, in the order in which the blobs are cheapest to read.
    order: &'w [u32],
    /// The next index into `order`.
    next: AtomicUsize,
    /// Bytes of the values made so far, as [`Contents::values`] counts them.
    made_bytes: AtomicU64,
    /// Most bytes of values.
    room: u64,
    is_needed: &'w IsNeeded<'w>,
    /// The failure with the lowest index into `keys`, and that index.
    failed: Mutex<Option<(usize, Failure)>>,
    /// Locked while a large file is processed.
    large: Mutex<()>,
    /// The results, indexed like `keys`.
    made: Vec<OnceLock<Arc<Value>>>,
}

impl Work<'_> {
    /// Makes values until none are left or there is no room. Goes on after a failure, to find the first one.
    fn run(&self) {
        let mut reader = None;
        while let Some(at) = self.order.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let at = *at as usize;
            if let Err(error) = self.make(at, &mut reader) {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                    *failed = Some((at, error));
                }
            }
            if self.is_full() {
                return;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.made_bytes.load(Ordering::Relaxed) > self.room
    }

    fn make<'r>(&'r self, at: usize, reader: &mut Option<Box<dyn BlobReader + 'r>>) -> Result<(), Failure> {
        if self.blobs.cancel.is_cancelled() {
            return Err(mirror::Error::Cancelled.into());
        }
        let key @ (id, compress) = self.keys[at];
        if let Some(value) = self.blobs.known.get(&key) {
            self.keep(at, value);
            return Ok(());
        }
        let reader = match reader {
            Some(reader) => reader,
            None => reader.insert(self.blobs.source.reader()?),
        };
        let size = reader.size(&id)?;
        if let Some(value) = Value::unread(size, compress) {
            self.keep(at, Arc::new(value));
            return Ok(());
        }
        let _alone = (size > LARGE).then(|| self.large.lock()); // until the value is counted in `made_bytes`
        if self.is_full() {
            return Ok(()); // another thread's large value used the room up
        }
        let value = Arc::new(if compress {
            compressed(&mut **reader, &id)?
        } else {
            Value::new(read(&mut **reader, &id, size)?, false)
        });
        self.blobs.known.insert(key, &value);
        self.keep(at, value);
        Ok(())
    }

    fn keep(&self, at: usize, value: Arc<Value>) {
        self.made_bytes.fetch_add(value.bytes().len() as u64, Ordering::Relaxed);
        let is_needed = (self.is_needed)(at, value.size());
        let value = if is_needed { value } else { Arc::new(value.without_bytes()) };
        let _ = self.made[at].set(value); // never set before: only one thread gets each index
    }
}

/// A blob's size in bytes; fails if it exceeds [`FILE_MAX`].
fn checked_size(reader: &mut dyn BlobReader, id: &ObjectId) -> Result<u64, Failure> {
    match reader.size(id)? {
        size if size > FILE_MAX => Err(TooLarge(size).into()),
        size => Ok(size),
    }
}

/// Compresses a blob from where its reader has it: it may be large, and a copy would take as much again.
fn compressed(reader: &mut dyn BlobReader, id: &ObjectId) -> Result<Value, Failure> {
    let mut value = None;
    let passed: Result<(), BlobError> = reader.read(id, &mut |content| {
        value = Some(Value::compressed(content));
        Ok(())
    });
    passed?;
    value.ok_or_else(|| "its reader passed no content on".into())
}

/// Reads the whole content of a blob of `size` bytes.
fn read(reader: &mut dyn BlobReader, id: &ObjectId, size: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::with_capacity(size as usize);
    let copied: Result<(), BlobError> = reader.read(id, &mut |part| {
        bytes.extend_from_slice(part);
        Ok(())
    });
    copied?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
