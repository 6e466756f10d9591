//! A pack is taken in: read once, hashed, and given its index.
//!
//! 1. As it arrives, every entry is inflated. Objects are hashed, and so is a difference to one that was seen a moment ago,
//!    small ones on a second thread ([`hashes`]). The others wait ([`receive`]).
//! 2. Those that wait are put together from what they differ from, each base with all that needs it. What a thin pack
//!    leaves out is appended to it ([`resolve`]).
//! 3. The index is written, and both files get their names. Before, they have names that a sweep removes.
//!
//! Hashes detect collisions. What is in memory: forty bytes an object, contents within a budget ([`cache`]), those that wait
//! to be hashed, less than 6 MiB, and one difference with its base and its result; an object that is stored whole is hashed
//! piece by piece.

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

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use git2::ObjectType;

use crate::fsx;
use crate::mirror::pack_index::{self, Line};
use crate::revision::ObjectId;

/// What a pack may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The memory that the process may use, bytes.
    pub(super) memory: u64,
    /// The most bytes of pack.
    pub(super) bytes: u64,
    /// The most objects there is memory for.
    pub(super) objects: u64,
    /// The most objects where few are expected.
    pub(super) expected: u64,
}

/// A pack that was taken in.
#[derive(Debug)]
pub(super) struct Taken {
    /// Objects in it, those added to complete it not counted.
    pub(super) objects: u64,
    /// Bytes received.
    pub(super) bytes: u64,
    /// Its name, without a suffix.
    pub(super) name: String,
    /// What it holds, in the order of the ids.
    all: Vec<Object>,
}

impl Taken {
    /// Whether an object is a blob that came with this pack.
    pub(super) fn is_blob(&self, id: &ObjectId) -> bool {
        let found = self.all.binary_search_by_key(id, |object| object.line.id);
        found.is_ok_and(|at| self.all[at].kind == Some(ObjectType::Blob))
    }
}

/// Why a pack was not taken in.
#[derive(Debug)]
pub(super) enum Fault {
    /// It ended too soon.
    Cut,
    /// It is malformed, or a hash in it is wrong.
    Bad(String),
    /// It announces so many objects, more than expected.
    Many(u64),
    /// It needs more memory than there may be.
    Memory,
    /// It is larger than it may be.
    Bytes,
    /// The file system refused.
    Io(&'static str, io::Error),
    /// The mirror's objects cannot be read.
    Git(git2::Error),
}

impl Fault {
    fn bad(why: impl Into<String>) -> Self {
        Self::Bad(why.into())
    }

    fn io(act: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io(act, error)
    }

    fn collision(what: &str) -> Self {
        Self::bad(format!("{what} was made to have the SHA-1 of something else (a collision attack)"))
    }
}

/// Bytes that are read in order.
trait Source {
    /// What comes next; nothing at the end.
    fn pending(&mut self) -> Result<&[u8], Fault>;

    /// Takes so many bytes of what comes next.
    fn consume(&mut self, bytes: usize);

    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.pending()?.first().ok_or(Fault::Cut)?;
        self.consume(1);
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }
}

/// An entry of the pack.
#[derive(Debug)]
struct Object {
    /// What the index says of it; the id is right once the pack is received and the kind is known.
    line: Line,
    /// The place of what it is a difference to, if it is one.
    base: u32,
    /// Not known of a difference before its base is.
    kind: Option<ObjectType>,
}

/// No base.
const WHOLE: u32 = u32::MAX;

/// Contents up to this are kept whole for a moment, to be hashed and because a difference to them may follow.
const SMALL: u64 = 1 << 20;

/// Reads an object that is here already.
type Read<'r> = dyn Fn(&ObjectId) -> Result<Option<(ObjectType, Vec<u8>)>, git2::Error> + 'r;

/// Takes a pack in, into the directory `packs`. `here` reads what a thin pack leaves out.
pub(super) fn take_in(
    from: impl io::Read,
    packs: &Path,
    limits: &Limits,
    durable: bool,
    here: &Read<'_>,
) -> Result<Taken, Fault> {
    Temporary::sweep(packs);
    let (pack, file) = Temporary::create(packs)?;
    let received = receive::receive(from, &file, limits)?;
    let (objects, bytes) = (received.objects.len() as u64, received.bytes);
    let (mut all, sum) = resolve::resolve(received, &file, here)?;
    all.sort_unstable_by_key(|object| object.line.id);
    if let Some(twin) = all.windows(2).find(|pair| pair[0].line.id == pair[1].line.id) {
        return Err(Fault::bad(format!("it has {} twice", twin[0].line.id)));
    }
    let name = format!("pack-{}", ObjectId(sum));
    let (index, index_file) = Temporary::create(packs)?;
    let mut to = BufWriter::new(&index_file);
    pack_index::write(&mut to, all.iter().map(|object| &object.line), &sum)
        .and_then(|()| to.flush())
        .map_err(Fault::io("write the index"))?;
    drop(to);
    // The index last: a pack counts from then on.
    pack.keep(&file, &packs.join(format!("{name}.pack")), durable)?;
    index.keep(&index_file, &packs.join(format!("{name}.idx")), durable)?;
    if durable {
        File::open(packs).and_then(|dir| dir.sync_all()).map_err(Fault::io("sync the packs"))?;
    }
    Ok(Taken { objects, bytes, name, all })
}

/// A file that is removed again unless it is kept.
struct Temporary(PathBuf);

/// Begins a temporary name, as git's do; what follows here is digits and one `-`, which git's have not.
const TEMPORARY: &str = "tmp_pack_";

impl Temporary {
    /// Removes what was left by a process that was killed. One at a time takes packs in.
    fn sweep(dir: &Path) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY)?.split_once('-'));
            let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if number.is_some_and(|(pid, serial)| is_digits(pid) && is_digits(serial)) {
                let _ = std::fs::remove_file(entry.path()); // what stays is swept at the next opening
            }
        }
    }

    fn create(dir: &Path) -> Result<(Self, File), Fault> {
        loop {
            let path = dir.join(fsx::unique(TEMPORARY));
            match File::options().read(true).write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // of a process that was killed
                Ok(file) => return Ok((Self(path), file)),
                Err(error) => return Err(Fault::Io("make a file for the pack", error)),
            }
        }
    }

    fn keep(self, file: &File, name: &Path, durable: bool) -> Result<(), Fault> {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o444);
        file.set_permissions(mode)
            .and_then(|()| if durable { file.sync_all() } else { Ok(()) })
            .and_then(|()| std::fs::rename(&self.0, name))
            .map_err(Fault::io("keep the pack"))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // what stays is swept at the next opening
    }
}

/// Begins the hash of an object.
fn hasher(kind: ObjectType, size: u64) -> sha1dc::Hasher {
    let mut hasher = sha1dc::Hasher::new();
    hasher.update(format!("{} {size}\0", kind.str()).as_bytes());
    hasher
}

fn id(hasher: sha1dc::Hasher) -> Result<ObjectId, Fault> {
    hasher
        .finalize()
        .map(|sum| ObjectId(sum.into()))
        .map_err(|collision| Fault::collision(&format!("object {}", collision.digest())))
}

#[cfg(test)]
mod tests;
