//! Reads the object database, and applies libgit2's process-wide settings.
//!
//! Commits, tags and trees are parsed here and not by libgit2: libgit2 hides the parents of commits that the `shallow`
//! file names, and refuses or repairs malformed tree entries that we want to name in an error. An object's size is read
//! before its content, so that no commit, tag or tree larger than [`COMMIT_MAX`] or [`TREE_MAX`] is ever decoded.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::{ErrorClass, ErrorCode, ObjectType, Oid};

use super::error::Error;
use super::indexer::{ObjectTable, TableReader};
use super::loose::{Damaged, Loose, LooseObject};
use super::object_error::ObjectError;
use crate::revision::ObjectId;

/// The largest tree that is read, in bytes; also the limit for all trees that a walk holds at the same time. A tree of
/// a million entries with names of forty bytes has 67 MB; a directory of that many files exceeds every default limit of
/// a payload.
pub(super) const TREE_MAX: usize = 64 << 20;

/// The largest commit or tag that is read, in bytes. That is enough for a merge of 80,000 branches.
pub(super) const COMMIT_MAX: usize = 4 << 20;

/// The longest chain of tags that is followed to a commit.
const PEEL_MAX: usize = 16;

/// A commit and its tree, after following tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peeled {
    pub(super) commit: ObjectId,
    /// The commit's tree, or that of a directory in it.
    pub(super) tree: ObjectId,
}

/// The fields of a commit that the mirror uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Commit {
    pub(super) tree: ObjectId,
    /// The parents recorded in the commit, regardless of the `shallow` file.
    pub(super) parents: Vec<ObjectId>,
}

impl ObjectError {
    /// The id of the object.
    pub(super) fn id(&self) -> ObjectId {
        match self {
            Self::Missing { id, .. }
            | Self::OtherKind { id, .. }
            | Self::TooLarge { id, .. }
            | Self::Malformed { id, .. }
            | Self::Unreadable { id, .. } => *id,
        }
    }
}

/// An open repository. It is cheap to open; each thread opens its own.
pub(super) struct Store {
    repository: git2::Repository,
    loose: Loose,
    /// Reads the objects of the pack that was indexed last.
    table: Option<RefCell<TableReader>>,
}

impl Store {
    /// Opens the repository at `dir`, which must be bare or a `.git` directory.
    pub(super) fn open(dir: &Path) -> Result<Self, git2::Error> {
        git2::Repository::open_bare(dir).map(Self::of)
    }

    /// Wraps an open repository.
    pub(super) fn of(repository: git2::Repository) -> Self {
        let mut loose = Loose::none();
        loose.add(&repository.commondir().join("objects"));
        Self { repository, loose, table: None }
    }

    /// Reads the objects of a table by it, if its pack is still there.
    pub(super) fn with_table(self, table: Option<Arc<ObjectTable>>) -> Self {
        Self { table: table.and_then(TableReader::open).map(RefCell::new), ..self }
    }

    /// Adds object directories that are read, too, as alternates.
    pub(super) fn with(mut self, more: &[PathBuf]) -> Result<Self, Error> {
        let odb = self.repository.odb().map_err(|source| Error::git("open the mirror's objects", source))?;
        for dir in more {
            let act = || format!("read the objects of a submodule in {}", dir.display());
            let path = dir.to_str().ok_or_else(|| git2::Error::from_str("its path is not UTF-8"));
            // The repository caches one database object, so alternates added to it stay for all readers of this store.
            path.and_then(|path| odb.add_disk_alternate(path)).map_err(|source| Error::git(act(), source))?;
            self.loose.add(dir);
        }
        drop(odb);
        Ok(self)
    }

    /// Returns a builder for writing packs.
    pub(super) fn builder(&self) -> Result<git2::PackBuilder<'_>, git2::Error> {
        self.repository.packbuilder()
    }

    /// The repository, for access to its refs and directories.
    pub(super) fn repository(&self) -> &git2::Repository {
        &self.repository
    }

    /// Returns a reader for objects, with libgit2's error.
    pub(super) fn reader(&self) -> Result<ObjectReader<'_>, git2::Error> {
        Ok(ObjectReader { odb: self.repository.odb()?, loose: &self.loose, table: self.table.as_ref() })
    }

    /// Returns a reader for the mirror's objects.
    pub(super) fn objects(&self) -> Result<ObjectReader<'_>, Error> {
        self.reader().map_err(|source| Error::git("open the mirror's objects", source))
    }
}

/// Reads objects through one database handle. Objects of the pack that was indexed last are read by its table, loose
/// ones by [`super::loose`], and all others by libgit2. libgit2 is never asked for the content of an object whose loose
/// file is damaged.
pub(super) struct ObjectReader<'a> {
    odb: git2::Odb<'a>,
    loose: &'a Loose,
    table: Option<&'a RefCell<TableReader>>,
}

/// An object's content.
pub(super) struct Object<'a> {
    kind: ObjectType,
    content: Content<'a>,
}

enum Content<'a> {
    OfLibgit2(git2::OdbObject<'a>),
    Ours(Arc<Vec<u8>>),
}

impl Object<'_> {
    /// The object's type.
    pub(super) fn kind(&self) -> ObjectType {
        self.kind
    }

    /// The object's content.
    pub(super) fn data(&self) -> &[u8] {
        match &self.content {
            Content::OfLibgit2(object) => object.data(),
            Content::Ours(content) => content,
        }
    }
}

#[cfg(any(test, fuzzing))]
impl<'a> ObjectReader<'a> {
    /// A reader for a database without files.
    pub(super) fn in_memory(odb: git2::Odb<'a>) -> Self {
        static NONE: Loose = Loose::none();
        Self { odb, loose: &NONE, table: None }
    }
}

impl ObjectReader<'_> {
    /// Returns true if the database has the object. Decodes nothing.
    pub(super) fn has(&self, id: &ObjectId) -> bool {
        // Not `exists`, which lists the pack directory again after every miss.
        self.odb.exists_ext(oid(id), git2::OdbLookupFlags::NO_REFRESH)
    }

    /// Reads a whole object of any type and size.
    pub(super) fn read(&self, id: &ObjectId) -> Result<Object<'_>, git2::Error> {
        if let Some((kind, content)) = self.table.and_then(|table| table.borrow_mut().read(id)) {
            return Ok(Object { kind, content: Content::Ours(content) });
        }
        let ours = |loose: LooseObject| {
            let kind = loose.kind();
            Ok(Object { kind, content: Content::Ours(Arc::new(loose.whole()?)) })
        };
        if let Some(object) = self.read_loose(id, ours)? {
            return Ok(object);
        }
        let object = self.odb.read(oid(id))?;
        Ok(Object { kind: object.kind(), content: Content::OfLibgit2(object) })
    }

    /// The size and type of an object, from its header. Deltas are not applied.
    pub(super) fn read_header(&self, id: &ObjectId) -> Result<(usize, ObjectType), git2::Error> {
        if let Some(header) = self.table.and_then(|table| table.borrow().header(id)) {
            return Ok(header);
        }
        let header =
            |loose: LooseObject| Ok((usize::try_from(loose.size()).map_err(io::Error::other)?, loose.kind()));
        match self.read_loose(id, header)? {
            Some(header) => Ok(header),
            None => self.odb.read_header(oid(id)),
        }
    }

    /// Applies `take` to a loose object. `None` means that there is no usable loose file and libgit2 has to read the
    /// object.
    pub(super) fn read_loose<T>(
        &self,
        id: &ObjectId,
        take: impl Fn(LooseObject) -> io::Result<T>,
    ) -> Result<Option<T>, git2::Error> {
        match self.loose.read(id, take) {
            None => Ok(None),
            Some(Ok(taken)) => Ok(Some(taken)),
            Some(Err(Damaged::Packed)) => {
                // The pack may have been added after libgit2 listed the packs.
                self.odb.refresh()?;
                Ok(None)
            }
            Some(Err(Damaged::Alone(error))) => {
                Err(git2::Error::new(ErrorCode::GenericError, ErrorClass::Odb, error.to_string()))
            }
        }
    }

    /// Verifies the content of an object if it is loose: a power cut may leave a valid header with truncated content.
    /// Packed objects were verified when their pack was indexed.
    pub(super) fn check_loose(&self, id: &ObjectId) -> Result<(), git2::Error> {
        if self.table.is_some_and(|table| table.borrow().header(id).is_some()) {
            return Ok(()); // it is packed, and was verified when its pack was indexed
        }
        self.read_loose(id, LooseObject::check).map(drop)
    }

    /// Writes an object.
    pub(super) fn write(&self, kind: ObjectType, content: &[u8]) -> Result<ObjectId, git2::Error> {
        let id = to_object_id(Oid::hash_object(kind, content)?);
        // libgit2 does not overwrite an existing file of the object's name, so a damaged one is removed first.
        for path in self.loose.damaged(&id) {
            let removed = fs_err::remove_file(&path);
            removed.map_err(|error| {
                git2::Error::new(ErrorCode::GenericError, ErrorClass::Os, error.to_string())
            })?;
        }
        self.odb.write(kind, content).map(to_object_id)
    }

    /// The size of a blob in bytes, from its header. Deltas are not applied.
    pub(super) fn blob_size(&self, id: &ObjectId) -> Result<u64, ObjectError> {
        Ok(self.header(id, ObjectType::Blob)? as u64)
    }

    /// Checks that a blob is present and intact, as far as that is possible without applying deltas.
    pub(super) fn check_blob(&self, id: &ObjectId) -> Result<(), ObjectError> {
        self.check_loose(id).map_err(|error| object_error(id, ObjectType::Blob, &error))?;
        self.blob_size(id).map(drop)
    }

    /// Reads a whole blob. The caller has checked its size.
    pub(super) fn small_blob(&self, id: &ObjectId) -> Result<Vec<u8>, ObjectError> {
        let object = self.read(id).map_err(|error| object_error(id, ObjectType::Blob, &error))?;
        Ok(object.data().to_vec())
    }

    /// The size of an object of type `expected`, from its header.
    fn header(&self, id: &ObjectId, expected: ObjectType) -> Result<usize, ObjectError> {
        let (size, found) = self.read_header(id).map_err(|error| object_error(id, expected, &error))?;
        if found == expected {
            return Ok(size);
        }
        // The damaged index of a pack leads to other objects; what has the right hash is what the author named. An
        // object that is too large to be read for that is taken for it, too: fetching it again would cost more.
        if size <= COMMIT_MAX {
            let object = self.read(id).map_err(|error| object_error(id, expected, &error))?;
            let hash = Oid::hash_object(object.kind(), object.data());
            if hash.map(to_object_id).ok() != Some(*id) {
                let why = format!("a pack has another object there, a {}", found.str());
                return Err(unreadable(id, expected, why));
            }
        }
        let found = found.str().to_owned();
        Err(ObjectError::OtherKind { id: *id, expected: expected.str().to_owned(), found })
    }

    /// The raw content of a tree, commit or tag of at most `limit` bytes.
    pub(super) fn structure(
        &self,
        id: &ObjectId,
        kind: ObjectType,
        limit: usize,
    ) -> Result<Object<'_>, ObjectError> {
        let size = self.header(id, kind)?;
        if size > limit {
            let bytes = size as u64;
            let limit = limit as u64;
            return Err(ObjectError::TooLarge { id: *id, expected: kind.str().to_owned(), bytes, limit });
        }
        self.read(id).map_err(|error| object_error(id, kind, &error))
    }

    /// The raw content of a tree of at most [`TREE_MAX`] bytes.
    pub(super) fn tree(&self, id: &ObjectId) -> Result<Object<'_>, ObjectError> {
        self.structure(id, ObjectType::Tree, TREE_MAX)
    }

    /// The raw content of a tree. The caller has checked its size.
    pub(super) fn sized_tree(&self, id: &ObjectId) -> Result<Object<'_>, ObjectError> {
        self.read(id).map_err(|error| object_error(id, ObjectType::Tree, &error))
    }

    /// The size of a tree in bytes, from its header.
    pub(super) fn tree_size(&self, id: &ObjectId) -> Result<usize, ObjectError> {
        self.header(id, ObjectType::Tree)
    }

    /// A commit's tree and parents.
    pub(super) fn commit(&self, id: &ObjectId) -> Result<Commit, ObjectError> {
        let object = self.structure(id, ObjectType::Commit, COMMIT_MAX)?;
        parse_commit(object.data())
            .ok_or_else(|| malformed(id, ObjectType::Commit, "its header names no tree, or no parent".into()))
    }

    /// The type of an object.
    pub(super) fn kind(&self, id: &ObjectId) -> Result<ObjectType, ObjectError> {
        Ok(self.read_header(id).map_err(|error| object_error(id, ObjectType::Any, &error))?.1)
    }

    /// The object that a tag names.
    pub(super) fn target(&self, id: &ObjectId) -> Result<ObjectId, ObjectError> {
        let object = self.structure(id, ObjectType::Tag, COMMIT_MAX)?;
        parse_tag(object.data())
            .ok_or_else(|| malformed(id, ObjectType::Tag, "its header names no object".into()))
    }

    /// Follows tags to a commit. Returns `Ok(Err(kind))` if they end at an object of another kind.
    pub(super) fn peel(&self, id: &ObjectId) -> Result<Result<Peeled, &'static str>, ObjectError> {
        let mut at = *id;
        for _ in 0..PEEL_MAX {
            let (_, kind) =
                self.read_header(&at).map_err(|error| object_error(&at, ObjectType::Commit, &error))?;
            match kind {
                ObjectType::Commit => {
                    let tree = self.commit(&at)?.tree;
                    return Ok(Ok(Peeled { commit: at, tree }));
                }
                ObjectType::Tag => at = self.target(&at)?,
                other => return Ok(Err(other.str())),
            }
        }
        Err(malformed(id, ObjectType::Tag, format!("more than {PEEL_MAX} tags of tags")))
    }
}

fn unreadable(id: &ObjectId, expected: ObjectType, why: String) -> ObjectError {
    ObjectError::Unreadable { id: *id, expected: expected.str().to_owned(), why }
}

fn malformed(id: &ObjectId, expected: ObjectType, why: String) -> ObjectError {
    ObjectError::Malformed { id: *id, expected: expected.str().to_owned(), why }
}

fn object_error(id: &ObjectId, expected: ObjectType, error: &git2::Error) -> ObjectError {
    if error.code() == ErrorCode::NotFound {
        ObjectError::Missing { id: *id, expected: expected.str().to_owned() }
    } else {
        unreadable(id, expected, error.message().to_owned())
    }
}

/// Parses the `tree` and `parent` lines. They come first, in this order, in every commit (git-hash-object(1) checks
/// it).
fn parse_commit(data: &[u8]) -> Option<Commit> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let tree = hex(lines.next()?.strip_prefix(b"tree ")?)?;
    let parents = lines.map_while(|line| line.strip_prefix(b"parent ")).map(hex).collect::<Option<_>>()?;
    Some(Commit { tree, parents })
}

/// Parses the `object` line, which comes first in every tag.
fn parse_tag(data: &[u8]) -> Option<ObjectId> {
    hex(data.split(|byte| *byte == b'\n').next()?.strip_prefix(b"object ")?)
}

fn hex(digits: &[u8]) -> Option<ObjectId> {
    ObjectId::from_hex(std::str::from_utf8(digits).ok()?)
}

/// Converts our object id to libgit2's.
pub(super) fn oid(id: &ObjectId) -> Oid {
    #[expect(clippy::expect_used, reason = "from_bytes refuses only slices that are not 20 bytes long")]
    Oid::from_bytes(&id.0).expect("an id has 20 bytes")
}

/// Converts libgit2's object id to ours.
pub(super) fn to_object_id(id: git2::Oid) -> ObjectId {
    let mut bytes = [0; 20];
    bytes.copy_from_slice(id.as_bytes());
    ObjectId(bytes)
}

/// libgit2's settings. They are process-wide, so all mirrors of a process share them, and must be applied before the
/// first repository is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Hash every object again when it is read, which costs half of the reading time.
    pub(super) verify: bool,
    /// Fsync packs and their directory.
    pub(super) durable: bool,
    /// The most objects that a pack may announce; `None` keeps libgit2's limit.
    pub(super) max_objects: Option<usize>,
}

/// Bytes of one mapped window of a pack, and of all windows together. With libgit2's defaults, 1 GiB and 8 GiB, whole
/// packs count as resident memory. (Windows are file-backed: the kernel can drop them.)
const WINDOW_BYTES: usize = 1 << 20;
const WINDOWS_BYTES: usize = 16 << 20;

impl Settings {
    /// Applies the settings.
    #[expect(unsafe_code, reason = "libgit2's process-wide options are not synchronised; see the comments")]
    pub(super) fn apply(self) -> Result<(), Error> {
        static FIRST: std::sync::Once = std::sync::Once::new();
        let mut result = Ok(());
        FIRST.call_once(|| {
            // SAFETY: called once, before this process opens a repository through this module; these setters write
            // plain globals that libgit2 reads when it opens repositories and maps packs.
            result = unsafe { apply_once() };
        });
        result.map_err(|source| Error::git("set up libgit2", source))?;
        // Off by default: the indexing child hashed each object of a fetched pack, and git itself does not hash again
        // on reading either. Plain integer stores; any value is valid at any time.
        git2::opts::strict_hash_verification(self.verify);
        // SAFETY: plain integer stores behind a variadic call with the argument types that libgit2's common.h gives.
        unsafe {
            libgit2_sys::git_libgit2_opts(
                libgit2_sys::GIT_OPT_ENABLE_FSYNC_GITDIR as i32,
                i32::from(self.durable),
            );
            if let Some(max) = self.max_objects {
                libgit2_sys::git_libgit2_opts(libgit2_sys::GIT_OPT_SET_PACK_MAX_OBJECTS as i32, max);
            }
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "libgit2's process-wide options; the caller runs it once, first")]
unsafe fn apply_once() -> Result<(), git2::Error> {
    use git2::ConfigLevel::{Global, ProgramData, System, XDG};
    // SAFETY: the caller's promise.
    unsafe {
        // Ignore ~/.gitconfig and /etc/gitconfig: they must not influence what we write.
        for level in [System, Global, XDG, ProgramData] {
            git2::opts::set_search_path(level, "")?;
        }
        // The check of safe.directory: we only open our own mirror, and a volume with an fsGroup is owned by another
        // uid.
        git2::opts::set_verify_owner_validation(false)?;
        git2::opts::set_mwindow_size(WINDOW_BYTES)?;
        git2::opts::set_mwindow_mapped_limit(WINDOWS_BYTES)?;
    }
    git2::opts::strict_object_creation(true);
    // Each tree is read once, so a cache would only use memory (up to 256 MiB by default).
    git2::opts::enable_caching(false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0123456789abcdef0123456789abcdef01234567";
    const B: &str = "89abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_commit_shows_all_its_parents() {
        let text = format!("tree {A}\nparent {A}\nparent {B}\nauthor x\n\nparent {A}\n");
        let commit = parse_commit(text.as_bytes()).unwrap();
        assert_eq!(commit.tree.to_string(), A);
        assert_eq!(commit.parents.iter().map(ToString::to_string).collect::<Vec<_>>(), [A, B]);
    }

    #[test]
    fn malformed_headers_are_not_guessed_at() {
        for text in ["", "tree 0123\n", &format!("parent {A}\n"), &format!("tree {A}\nparent zz\n")] {
            assert_eq!(parse_commit(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_tag(format!("type commit\nobject {A}\n").as_bytes()), None);
    }
}
