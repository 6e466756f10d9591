//! Reads loose objects: files with one deflated object each, behind a header with type and size.
//!
//! libgit2 is not used for that: libgit2 1.9 waits forever for the rest of a file that was truncated (as by a power
//! cut), pads content that is shorter than its header says with zeros, and blocks on a named pipe in the file's place.
//! Here the content must have the size of its header and the hash of its name.
//!
//! Our own mirrors consist of packs. For them this costs one listing of the object directory when the store is opened:
//! an object is only looked up as a file if there is a directory for the first byte of its id. If another program
//! creates such a directory later, libgit2 finds the object; git only renames complete files into place.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use flate2::read::ZlibDecoder;
use git2::ObjectType;
use rustix::fs::OFlags;

use super::error::Error;
use super::files::names;
use super::pack_index;
use crate::revision::ObjectId;

/// How many levels of alternates of alternates are followed, as by git and libgit2.
const ALTERNATES_DEPTH: usize = 5;

/// The most bytes of an alternates file that are read.
const ALTERNATES_MAX: u64 = 1 << 20;

/// The longest header in bytes: type, space, twenty digits, NUL.
const HEADER_MAX: u64 = 32;

/// Buffer size in bytes for reading and for inflating.
const BUFFER: usize = 8 << 10;

/// Lists the loose objects in an object directory with their files.
pub(super) fn list(objects: &Path) -> Result<Vec<(ObjectId, PathBuf)>, Error> {
    let mut found = Vec::new();
    for front in names(objects)?.iter().filter(|name| name.len() == 2) {
        let dir = objects.join(front);
        for rest in names(&dir)? {
            if let Some(id) = ObjectId::from_hex(&format!("{front}{rest}")) {
                found.push((id, dir.join(rest)));
            }
        }
    }
    Ok(found)
}

/// The object directories of a store.
#[derive(Debug)]
pub(super) struct Loose {
    dirs: Vec<ObjectDir>,
}

#[derive(Debug)]
struct ObjectDir {
    path: PathBuf,
    /// Which first bytes of ids have a subdirectory; `None` if none has.
    fan_out: Option<Box<[bool; 256]>>,
}

/// A loose object whose file is damaged.
#[derive(Debug)]
pub(super) enum Damaged {
    /// A pack has the object, too, and must be read instead, as git does.
    Packed,
    /// No pack has the object.
    Alone(io::Error),
}

impl Loose {
    /// Without any directory.
    pub(super) const fn none() -> Self {
        Self { dirs: Vec::new() }
    }

    /// Adds an object directory and its alternates. One that cannot be listed counts as one without loose objects.
    pub(super) fn add(&mut self, objects: &Path) {
        self.add_at(objects, 0);
    }

    fn add_at(&mut self, objects: &Path, depth: usize) {
        if depth > ALTERNATES_DEPTH || self.dirs.iter().any(|dir| dir.path == objects) {
            return;
        }
        self.dirs.push(ObjectDir { path: objects.to_owned(), fan_out: fan_out(objects) });
        for line in alternates(objects).lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            // libgit2's rule for relative paths: it must open the same directories.
            let path = if line.starts_with('.') { objects.join(line) } else { PathBuf::from(line) };
            self.add_at(&path, depth + 1);
        }
    }

    /// Applies `take` to the object's file; if several directories have one, to the first that is intact. `None` if
    /// there is no file.
    pub(super) fn read<T>(
        &self,
        id: &ObjectId,
        take: impl Fn(LooseObject) -> io::Result<T>,
    ) -> Option<Result<T, Damaged>> {
        let mut damage = None;
        for path in self.files(id) {
            match LooseObject::open(path, id).and_then(|found| found.map(&take).transpose()) {
                Ok(None) => {}
                Ok(Some(taken)) => return Some(Ok(taken)),
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        let damage = damage?;
        Some(Err(if self.is_packed(id) { Damaged::Packed } else { Damaged::Alone(damage) }))
    }

    /// The paths at which the object's file may be.
    fn files(&self, id: &ObjectId) -> impl Iterator<Item = PathBuf> {
        let first = usize::from(id.0[0]);
        let dirs =
            self.dirs.iter().filter(move |dir| dir.fan_out.as_ref().is_some_and(|fan_out| fan_out[first]));
        dirs.map(|dir| file(&dir.path, id))
    }

    /// The object's files that are damaged or cannot be read.
    pub(super) fn damaged(&self, id: &ObjectId) -> Vec<PathBuf> {
        let is_bad = |path: &PathBuf| match LooseObject::open(path.clone(), id) {
            Ok(object) => object.is_some_and(|object| object.check().is_err()),
            Err(_) => true,
        };
        self.files(id).filter(is_bad).collect()
    }

    /// Returns true if a pack that libgit2 accepts has the object. Reads whole pack indexes, which is fine because it
    /// is only used for damaged loose files.
    fn is_packed(&self, id: &ObjectId) -> bool {
        let mut indexes = self.dirs.iter().flat_map(|dir| pack_index::list(&dir.path));
        indexes.any(|index| pack_index::holds(&index, id).unwrap_or(false))
    }
}

/// The path of a loose object.
fn file(objects: &Path, id: &ObjectId) -> PathBuf {
    let hex = id.to_string();
    let (first, rest) = hex.split_at(2);
    objects.join(first).join(rest)
}

fn fan_out(objects: &Path) -> Option<Box<[bool; 256]>> {
    let mut found: Option<Box<[bool; 256]>> = None;
    for entry in fs_err::read_dir(objects).ok()?.flatten() {
        let name = entry.file_name();
        let digits = name.to_str().filter(|name| name.len() == 2 && !name.starts_with('+'));
        if let Some(first) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            found.get_or_insert_with(|| Box::new([false; 256]))[usize::from(first)] = true;
        }
    }
    found
}

/// The content of the alternates file; empty if there is none.
fn alternates(objects: &Path) -> String {
    let mut text = String::new();
    let open = open_file(&objects.join("info/alternates"));
    // The file is nearly always absent. If it cannot be read, libgit2 reports that.
    let _ = open.and_then(|file| file.take(ALTERNATES_MAX).read_to_string(&mut text));
    text
}

/// Opens a regular file, and fails for anything else. `O_NONBLOCK`, because opening a named pipe would block.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// An open loose object. Reading it to its end fails if size or hash of the content are wrong.
pub(super) struct LooseObject {
    kind: ObjectType,
    size: u64,
    id: ObjectId,
    path: PathBuf,
    /// Bytes of the content that are still to be read, by the header.
    left: u64,
    content: BufReader<ZlibDecoder<File>>,
    /// The hash of header and content so far.
    sum: Context,
}

impl LooseObject {
    /// Opens the file and reads its header. `None` if there is no file.
    fn open(path: PathBuf, id: &ObjectId) -> io::Result<Option<Self>> {
        let file = match open_file(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            file => {
                file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?
            }
        };
        let inflating = ZlibDecoder::new_with_buf(file, vec![0; BUFFER]);
        let mut content = BufReader::with_capacity(BUFFER, inflating);
        let mut header = Vec::new();
        let read = (&mut content).take(HEADER_MAX).read_until(0, &mut header);
        read.map_err(|error| unread(&path, &error))?;
        let (kind, size) = parse(&header).ok_or_else(|| {
            bad(&path, if header.len() < HEADER_MAX as usize { CUT } else { "it has no git object header" })
        })?;
        let mut sum = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        sum.update(&header);
        Ok(Some(Self { kind, size, id: *id, path, left: size, content, sum }))
    }

    /// The object's type, by its header.
    pub(super) fn kind(&self) -> ObjectType {
        self.kind
    }

    /// The size of the content in bytes, by its header.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Reads and verifies the whole content.
    pub(super) fn whole(mut self) -> io::Result<Vec<u8>> {
        // The capacity is capped because the header's size is not verified yet.
        let mut content = Vec::with_capacity(self.size.min(1 << 20) as usize);
        self.read_to_end(&mut content)?;
        Ok(content)
    }

    /// Verifies the whole content without keeping it.
    pub(super) fn check(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink()).map(drop)
    }
}

impl Read for LooseObject {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = match self.content.read(to) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            read => read.map_err(|error| unread(&self.path, &error))?,
        };
        self.sum.update(&to[..read]);
        let left = self.left.checked_sub(read as u64);
        self.left = left.ok_or_else(|| bad(&self.path, "it holds more data than its header states"))?;
        if read == 0 && !to.is_empty() {
            if self.left > 0 {
                return Err(bad(&self.path, CUT));
            }
            if self.sum.clone().finish().as_ref() != self.id.0 {
                return Err(bad(&self.path, "its content does not match its object id"));
            }
        }
        Ok(read)
    }
}

const CUT: &str = "it is truncated";

fn bad(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged: {why}", path.display()))
}

fn unread(path: &Path, error: &io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => bad(path, CUT),
        _ => bad(path, &error.to_string()),
    }
}

/// Parses a header into type and size.
fn parse(header: &[u8]) -> Option<(ObjectType, u64)> {
    let text = std::str::from_utf8(header.strip_suffix(b"\0")?).ok()?;
    let (kind, size) = text.split_once(' ')?;
    let kind = ObjectType::from_str(kind).filter(|kind| kind.is_loose())?;
    size.bytes().all(|digit| digit.is_ascii_digit()).then(|| size.parse().ok())?.map(|size| (kind, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::odb::{Store, to_object_id};

    /// A repository with one loose blob, and the blob's file.
    fn repository(content: &[u8]) -> (tempfile::TempDir, ObjectId, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let repository = git2::Repository::init_bare(dir.path()).unwrap();
        let id = to_object_id(repository.blob(content).unwrap());
        let path = file(&dir.path().join("objects"), &id);
        (dir, id, path)
    }

    fn replace(path: &Path, raw: &[u8]) {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, raw).unwrap();
    }

    fn deflated(raw: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        io::Write::write_all(&mut to, raw).unwrap();
        to.finish().unwrap()
    }

    fn read(dir: &Path, id: &ObjectId) -> Result<Vec<u8>, String> {
        let store = Store::open(dir).unwrap();
        let reader = store.reader().unwrap();
        let checked = reader.check_loose(id);
        let read = reader.read(id).map(|object| object.data().to_vec());
        assert_eq!(checked.is_ok(), read.is_ok());
        read.map_err(|error| error.message().to_owned())
    }

    #[test]
    fn an_object_that_is_cut_anywhere_or_filled_with_zeros_is_refused_by_its_file() {
        let content: Vec<u8> = (0..40_000_u32).flat_map(|n| (n * n).to_le_bytes()).collect();
        let (dir, id, path) = repository(&content);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(read(dir.path(), &id).unwrap(), content);
        let ends = (0..40).chain((40..whole.len()).step_by(whole.len() / 60));
        for end in ends.chain(whole.len() - 5..whole.len() - 4) {
            let zeros = vec![0; whole.len() - end];
            for raw in [whole[..end].to_vec(), [&whole[..end], &zeros].concat()] {
                replace(&path, &raw);
                let why = read(dir.path(), &id).unwrap_err();
                assert!(why.starts_with(&path.display().to_string()), "cut at {end}: {why}");
            }
        }
        replace(&path, &whole);
        assert_eq!(read(dir.path(), &id).unwrap(), content);
    }

    #[test]
    fn what_is_no_object_or_another_one_is_refused() {
        let (dir, id, path) = repository(b"content");
        let packlike = [&[0x37][..], &deflated(b"content")].concat();
        let cases: [(&str, Vec<u8>); 9] = [
            ("does not match its object id", deflated(b"blob 7\0c0ntent")),
            ("truncated", deflated(b"blob 8\0content")),
            ("truncated", deflated(b"blob 7")),
            ("more data than its header states", deflated(b"blob 6\0content")),
            ("header", deflated(b"blob 99999999999999999999999999999\0")),
            ("truncated", deflated(b"blob -7\0content")),
            ("truncated", deflated(b"ofs-delta 7\0content")),
            ("deflate", packlike),
            ("truncated", vec![0x30]),
        ];
        for (words, raw) in cases {
            replace(&path, &raw);
            let why = read(dir.path(), &id).unwrap_err();
            assert!(why.contains(words), "{words}: {why}");
        }
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(read(dir.path(), &id).unwrap_err().contains("not a file"));
    }

    #[test]
    fn another_copy_is_read_be_it_in_a_pack_or_an_alternate() {
        let (dir, id, path) = repository(b"content");
        replace(&path, b"");
        let (other, _, _) = repository(b"content");
        let info = dir.path().join("objects/info/alternates");
        std::fs::write(&info, format!("# it\n{}\n", other.path().join("objects").display())).unwrap();
        assert_eq!(read(dir.path(), &id).unwrap(), b"content");
        std::fs::remove_file(&info).unwrap();
        assert!(read(dir.path(), &id).is_err());

        let repository = git2::Repository::open_bare(other.path()).unwrap();
        let mut builder = repository.packbuilder().unwrap();
        builder.insert_object(super::super::odb::oid(&id), None).unwrap();
        builder.write(&dir.path().join("objects/pack"), 0o644).unwrap();
        assert_eq!(read(dir.path(), &id).unwrap(), b"content");
        // If libgit2 could not use the pack, it would read the loose file.
        let packs = std::fs::read_dir(dir.path().join("objects/pack")).unwrap();
        let pack = packs
            .map(|entry| entry.unwrap().path())
            .find(|path| path.extension().unwrap() == "pack")
            .unwrap();
        File::options().write(true).open(pack).unwrap().set_len(40).unwrap();
        assert!(read(dir.path(), &id).is_err());
    }

    #[test]
    fn writing_an_object_replaces_a_damaged_file_of_its_name() {
        let (dir, id, path) = repository(b"content");
        replace(&path, b"");
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.reader().unwrap().write(ObjectType::Blob, b"content").unwrap(), id);
        assert_eq!(read(dir.path(), &id).unwrap(), b"content");
    }
}
