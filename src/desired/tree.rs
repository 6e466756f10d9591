//! Trees that rules are applied to: a directory, or a revision in a mirror. Lists their entries and reads their files.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;

use super::Error;
use super::known::{Key, KnownValues};
use crate::configmap::{
    self, Change, Contents, Entry, FileRef, IsNeeded, Patterns, Value, ValueError, ValueSource,
};
use crate::mirror::{self, ChangedPath, ListedEntry, Objects};
use crate::payload::{BlobError, BlobReader, BlobSource};
use crate::revision::{ObjectId, Revision};
use crate::threads::{on_threads, processors};

/// Largest file that is read, in bytes. A ConfigMap holds at most 1 MiB, compressed or not.
const FILE_MAX: u64 = 64 << 20;

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

/// Lists the directories that the patterns reach; the whole tree if there is any symbolic link in them.
pub(super) fn reached<'t>(tree: &'t dyn Tree, patterns: &Patterns) -> Result<Listing<'t>, Error> {
    let pruned = tree.list(&|path| patterns.reach_below(path))?;
    // The link's target may be in a directory that was not listed.
    if pruned.0.has_links() { tree.list(&|_| true) } else { Ok(pruned) }
}

/// Lists the parent directories of a path; the whole tree if the path may be reached through a link.
pub(super) fn on_the_way_to<'t>(tree: &'t dyn Tree, path: &[u8]) -> Result<Listing<'t>, Error> {
    let on_the_way =
        |directory: &[u8]| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"));
    let pruned = tree.list(&on_the_way)?;
    if pruned.0.is_file(path) || !pruned.0.has_links() { Ok(pruned) } else { tree.list(&|_| true) }
}

/// A file is too large for a ConfigMap, even if compressed.
#[derive(Debug, thiserror::Error)]
#[error("it has {} bytes, and no more than {FILE_MAX} of a file are read for a ConfigMap", .0)]
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

impl Contents for Files {
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Failure> {
        let FileRef::Index(index) = file else { return Err("a directory has no blobs".into()) };
        let mut file = std::fs::File::open(&self.0[index])?;
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
        let size = checked_size(&mut **reader, &id)?;
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
mod tests {
    use super::*;

    /// Size of a blob that fits into no ConfigMap, unless it is compressed.
    const TOO_LARGE: usize = (1 << 20) + 1;

    /// Each blob's content is its id, but for those that begin with a zero, which cannot be read, and those that begin
    /// with 255, which are too large. Counts what is read.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl BlobSource for Counting {
        fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
            Ok(Box::new(Reader(self)))
        }
    }

    struct Reader<'c>(&'c Counting);

    impl BlobReader for Reader<'_> {
        fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError> {
            Ok(if id.0[0] == 255 { TOO_LARGE as u64 } else { 20 })
        }

        fn read(
            &mut self,
            id: &ObjectId,
            sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
        ) -> Result<(), BlobError> {
            self.0.0.fetch_add(1, Ordering::Relaxed);
            match id.0[0] {
                0 => Err(BlobError::Unreadable { id: *id, source: "it is damaged".into() }),
                255 => sink(&[b'x'; TOO_LARGE]).map_err(BlobError::Sink),
                _ => sink(&id.0).map_err(BlobError::Sink),
            }
        }
    }

    fn wanted(ids: &[ObjectId], compress: bool) -> Vec<ValueSource> {
        ids.iter().map(|id| ValueSource { file: (*id).into(), compress }).collect()
    }

    /// Values of these blobs, and how many were read for them.
    fn values(blobs: &[u8], compress: bool, known: &KnownValues) -> (Vec<Arc<Value>>, usize) {
        let counting = Counting::default();
        let wanted = wanted(&blobs.iter().map(|byte| ObjectId([*byte; 20])).collect::<Vec<_>>(), compress);
        let mut contents = Blobs { source: &counting, known, cancel: &CancellationToken::new() };
        let values = contents.values(&wanted, u64::MAX, &|_, _| true).unwrap();
        let bytes = values.iter().map(|value| value.bytes().len() as u64).sum();
        contents.keep(bytes, &mut wanted.iter().copied().zip(values.iter().map(|value| &**value)));
        (values, counting.0.into_inner())
    }

    #[test]
    fn what_the_last_plan_still_holds_is_not_read_again() {
        let known = KnownValues::default();
        let (first, read) = values(&[1, 2, 3, 2], false, &known);
        assert_eq!(read, 3, "and none twice for one plan");
        let (second, read) = values(&[1, 4, 2], false, &known);
        assert_eq!(read, 1);
        assert_eq!([&second[0], &second[2]], [&first[0], &first[1]]);
        assert_eq!(second[1].bytes(), [4; 20]);
        assert_eq!(values(&[1], true, &known).1, 1, "compressed it is another value");
        drop((first, second));
        assert_eq!(values(&[1], false, &known).1, 1, "no plan has it any more");
    }

    #[test]
    fn with_what_the_last_process_kept_no_blob_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let known = || KnownValues::with_file(dir.path().join("values"));
        let (first, read) = values(&[1, 2, 3, 2], true, &known());
        assert_eq!(read, 3);
        assert_eq!(values(&[1, 2, 3, 2], true, &known()), (first, 0));
        assert_eq!(values(&[1, 4], true, &known()).1, 1);
        assert_eq!(values(&[1, 4], false, &known()).1, 2, "uncompressed they are other values");
    }

    #[test]
    fn threads_make_each_value_in_its_place_and_name_the_first_file_that_cannot_be_read() {
        let (counting, known) = (Counting::default(), KnownValues::default());
        let id = |number: usize| {
            let mut id = [1; 20];
            id[1..9].copy_from_slice(&(number as u64).to_be_bytes());
            ObjectId(id)
        };
        let ids: Vec<ObjectId> = (0..2_000).map(id).collect();
        let mut all = wanted(&ids, false);
        let cancel = CancellationToken::new();
        let mut contents = Blobs { source: &counting, known: &known, cancel: &cancel };
        let made = contents.values(&all, 40_000, &|_, _| true).unwrap();
        assert!(made.iter().zip(&ids).all(|(value, id)| value.bytes() == id.0));
        for is_needed in [true, false] {
            assert!(
                matches!(contents.values(&all, 39_999, &|_, _| is_needed), Err(ValueError::OverMemoryLimit)),
                "what is made counts, read again or not, kept or not"
            );
        }
        let odd = contents.values(&all, 40_000, &|at, size| size == 20 && at % 2 == 1).unwrap();
        let is_right = |(at, value): (usize, &Arc<Value>)| value.has_bytes() == (at % 2 == 1);
        assert!(odd.iter().enumerate().all(is_right), "what is not needed is dropped");
        [1_999, 1_300, 700].into_iter().for_each(|at| all[at].file = ObjectId([0; 20]).into());
        let failure = |contents: &mut Blobs<'_>| match contents.values(&all, u64::MAX, &|_, _| true) {
            Err(ValueError::UnreadableFile { at, error }) => (at, error),
            other => panic!("{other:?}"),
        };
        let (at, error) = failure(&mut contents);
        assert_eq!((at, error.source().unwrap().to_string().as_str()), (700, "it is damaged"));
        cancel.cancel();
        let (at, error) = failure(&mut contents);
        let is_cancelled = matches!(error.downcast_ref::<mirror::Error>(), Some(mirror::Error::Cancelled));
        assert!(at == 0 && is_cancelled, "{at}: {error}");
    }

    #[test]
    fn a_file_that_no_configmap_can_hold_is_read_only_where_it_is_compressed() {
        let known = KnownValues::default();
        let (plain, read) = values(&[255], false, &known);
        assert_eq!((plain[0].size(), plain[0].bytes().len(), read), (TOO_LARGE, 0, 0));
        let (compressed, read) = values(&[255], true, &known);
        assert!(compressed[0].has_bytes() && compressed[0].size() < 10_000 && read == 1);
    }
}
