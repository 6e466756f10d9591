//! Indexes a pack, in one pass over the input:
//!
//! 1. While the pack arrives, every entry is inflated. Objects that are stored whole are hashed, and so are deltas
//!    whose base is still cached; small objects are hashed on a second thread ([`hashes`]). Other deltas are left for
//!    step 2 ([`receive`]).
//! 2. The remaining deltas are resolved, for each base all of its deltas at once. Bases that a thin pack leaves out are
//!    appended to it ([`resolve`]).
//! 3. The index is written, and both files are renamed to their final names. Until then they have temporary names,
//!    which the next run sweeps.
//!
//! Hashing detects SHA-1 collision attacks. The memory used is 48 bytes for each object and 45 in its
//! [table](ObjectTable), cached contents within a budget ([`cache`]), less than 6 MiB of contents that wait to be
//! hashed, and one delta with its base and its result; a large object that is stored whole is hashed piece by piece.

mod cache;
mod contents;
mod delta;
mod entry;
#[cfg(any(test, fuzzing))]
#[path = "../../../../tests/fuzz/targets/packs.rs"]
pub(crate) mod fuzz;
mod hashes;
mod input;
mod receive;
mod resolve;
mod table;
mod table_reader;
mod whole_stream;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::ObjectType;

use crate::fsx;
use crate::mirror::pack_index::{self, Line};
use crate::revision::ObjectId;
pub(in crate::mirror) use entry::{Form, form_of, header};
pub(in crate::mirror) use table::{ObjectTable, TABLE_MAX};
pub(in crate::mirror) use table_reader::TableReader;

/// Limits on indexing a pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The memory that the process may use, in bytes.
    pub(super) memory: u64,
    /// The most bytes of the pack.
    pub(super) bytes: u64,
    /// The most objects that the memory suffices for; more are [`IndexError::Memory`].
    pub(super) objects: u64,
    /// The most objects that the caller expects; more are [`IndexError::Many`].
    pub(super) expected: u64,
}

/// A pack that was indexed.
#[derive(Debug)]
pub(super) struct IndexedPack {
    /// Its name, without a suffix.
    pub(super) name: String,
    /// The mirror did not have a pack of this name, which has the same objects.
    pub(super) is_new: bool,
    /// All its objects, sorted by id.
    all: Vec<Object>,
    /// The table of its objects, unless they are few or too many.
    pub(super) table: Option<Arc<ObjectTable>>,
}

impl IndexedPack {
    /// Returns true if the object is a blob in this pack.
    pub(super) fn is_blob(&self, id: &ObjectId) -> bool {
        self.find(id).is_some_and(|object| object.kind == Some(ObjectType::Blob))
    }

    /// Returns true if the object is in this pack.
    pub(super) fn has(&self, id: &ObjectId) -> bool {
        self.find(id).is_some()
    }

    fn find(&self, id: &ObjectId) -> Option<&Object> {
        self.all.binary_search_by_key(id, |object| object.line.id).ok().map(|at| &self.all[at])
    }
}

/// Why a pack could not be indexed.
#[derive(Debug)]
pub(super) enum IndexError {
    /// It is truncated.
    Cut,
    /// It is malformed, or a hash in it is wrong.
    Bad(String),
    /// It announces this many objects, more than expected.
    Many(u64),
    /// It needs more memory than the limit.
    Memory,
    /// It is larger than the limit.
    Bytes,
    /// Reading the pack or writing the files failed; what was done, as a verb phrase.
    Io(&'static str, io::Error),
    /// A base could not be read from the mirror.
    Git(git2::Error),
}

impl IndexError {
    fn bad(why: impl Into<String>) -> Self {
        Self::Bad(why.into())
    }

    fn io(act: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io(act, error)
    }

    fn collision(what: &str) -> Self {
        Self::bad(format!("{what} is crafted for a SHA-1 collision attack"))
    }
}

/// A buffered reader, like `BufRead`, with [`IndexError`] as its error.
trait Source {
    /// Returns the next bytes, as many as are buffered; none at the end.
    fn pending(&mut self) -> Result<&[u8], IndexError>;

    /// Advances by so many of the pending bytes.
    fn consume(&mut self, bytes: usize);

    fn byte(&mut self) -> Result<u8, IndexError> {
        let byte = *self.pending()?.first().ok_or(IndexError::Cut)?;
        self.consume(1);
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], IndexError> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }
}

/// What is in memory, or in the pack's file.
impl<B: io::BufRead> Source for B {
    fn pending(&mut self) -> Result<&[u8], IndexError> {
        self.fill_buf().map_err(IndexError::io("read the pack again"))
    }

    fn consume(&mut self, bytes: usize) {
        io::BufRead::consume(self, bytes);
    }
}

/// An object of the pack. Its position, counted from 0, is that of its entry in the pack.
#[derive(Debug)]
struct Object {
    /// Its line in the index. The id is valid once the pack is received and the kind is known.
    line: Line,
    /// The position of its delta base; [`NO_BASE`] if it is stored whole, or its base is not known yet.
    base: u32,
    /// `None` for a delta that is not resolved yet.
    kind: Option<ObjectType>,
    /// The size of its content; of the delta, as long as that is not resolved.
    size: u64,
}

/// No delta base.
const NO_BASE: u32 = u32::MAX;

/// Contents up to this size are kept in memory for a while: to be hashed, and because deltas against them may follow.
const SMALL: u64 = 1 << 20;

/// Reads an object of the mirror, which may be the base of a delta in a thin pack. Returns `None` if it is missing.
type ReadBase<'r> = dyn Fn(&ObjectId) -> Result<Option<(ObjectType, Vec<u8>)>, git2::Error> + 'r;

/// Reads a pack, and writes it and its index to the directory `packs`. On an error the temporary files are removed.
pub(super) fn index_pack(
    from: impl io::Read,
    packs: &Path,
    limits: &Limits,
    durable: bool,
    read_base: &ReadBase<'_>,
) -> Result<IndexedPack, IndexError> {
    Temporary::sweep(packs);
    let (pack, file) = Temporary::create(packs)?;
    let received = receive::receive(from, &file, limits)?;
    let (mut all, end, sum) = resolve::resolve(received, &file, read_base)?;
    let ends = table::entry_ends(&all, end, limits.memory);
    all.sort_unstable_by_key(|object| object.line.id);
    if let Some(twin) = all.windows(2).find(|pair| pair[0].line.id == pair[1].line.id) {
        return Err(IndexError::bad(format!("it contains {} twice", twin[0].line.id)));
    }
    let name = format!("pack-{}", ObjectId(sum));
    let (index, index_file) = Temporary::create(packs)?;
    let mut to = BufWriter::new(&index_file);
    pack_index::write(&mut to, all.iter().map(|object| &object.line), &sum)
        .and_then(|()| to.flush())
        .map_err(IndexError::io("write the index"))?;
    drop(to);
    let is_new = !packs.join(format!("{name}.idx")).exists();
    // The index is renamed last, because readers use a pack once it has an index.
    pack.keep(&file, &packs.join(format!("{name}.pack")), durable)?;
    index.keep(&index_file, &packs.join(format!("{name}.idx")), durable)?;
    if durable {
        File::open(packs).and_then(|dir| dir.sync_all()).map_err(IndexError::io("sync the packs"))?;
    }
    let table =
        ends.and_then(|ends| ObjectTable::of(packs.join(format!("{name}.pack")), &all, &ends)).map(Arc::new);
    Ok(IndexedPack { name, is_new, all, table })
}

/// A temporary file; dropping it removes it.
struct Temporary(PathBuf);

/// Prefix of temporary names, the same as git's. Ours continue with digits and one `-`, which git's never do.
const TEMPORARY: &str = "tmp_pack_";

impl Temporary {
    /// Removes the files of a process that was killed. Only one process at a time indexes packs.
    fn sweep(dir: &Path) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY)?.split_once('-'));
            let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if number.is_some_and(|(pid, serial)| is_digits(pid) && is_digits(serial)) {
                let _ = std::fs::remove_file(entry.path()); // on a failure the next run tries again
            }
        }
    }

    /// Creates a file that only its maker can write to. It is read-only from the start, as git's own are, because the
    /// sandbox refuses to change a mode.
    fn create(dir: &Path) -> Result<(Self, File), IndexError> {
        loop {
            let path = dir.join(fsx::unique(TEMPORARY));
            match File::options().read(true).write(true).create_new(true).mode(0o444).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // left by a process that was killed
                Ok(file) => return Ok((Self(path), file)),
                Err(error) => return Err(IndexError::Io("make a file for the pack", error)),
            }
        }
    }

    /// Renames the file to its final name.
    fn keep(self, file: &File, name: &Path, durable: bool) -> Result<(), IndexError> {
        let synced = if durable { file.sync_all() } else { Ok(()) };
        synced.and_then(|()| std::fs::rename(&self.0, name)).map_err(IndexError::io("keep the pack"))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // on a failure the next run sweeps it
    }
}

/// A hasher that was fed an object's header.
fn hasher(kind: ObjectType, size: u64) -> sha1dc::Hasher {
    let mut hasher = sha1dc::Hasher::new();
    hasher.update(format!("{} {size}\0", kind.str()).as_bytes());
    hasher
}

/// Hashes an object.
fn hash(kind: ObjectType, content: &[u8]) -> Result<ObjectId, IndexError> {
    let mut hasher = hasher(kind, content.len() as u64);
    hasher.update(content);
    object_id(hasher)
}

/// Finishes an object's hash. A collision attack is an error.
fn object_id(hasher: sha1dc::Hasher) -> Result<ObjectId, IndexError> {
    hasher
        .finalize()
        .map(|sum| ObjectId(sum.into()))
        .map_err(|collision| IndexError::collision(&format!("object {}", collision.digest())))
}

#[cfg(test)]
mod tests;
