//! Writes the git index of a generation, with the stat data of its files (gitformat-index(5), versions 2 and 3), reads
//! the object ids of any index, and tells one that git would refuse.
//!
//! With the index, `git status` in a generation compares 90,000 stats and no content. It lists every path of the
//! revision's tree; those that sparse patterns leave out are marked `skip-worktree`. It also has the tree cache
//! (extension `TREE`), so that git compares it with the commit without reading trees. It takes 62 bytes and the path
//! for each file, rounded up to a multiple of eight, and some 40 bytes for each directory: 10.0 MB for 90,000 files
//! with paths of 36 bytes on average, in 22,000 directories.
//!
//! The index is written while the trees are walked and never held in memory: it spells out whole paths, so a small tree
//! can expand to gigabytes. Reading ([`each_id`]) is streamed, too.

use std::ffi::{CString, OsStr};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustix::fs::Stat;
use tokio_util::sync::CancellationToken;

use super::Selection;
use super::error::Error;
use super::files::local;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, DIRECTORY, FORMAT, Line, OpenTree, Sorted, push_name};
use crate::fsx;
use crate::payload::{Kind, Node, Refusal, Rule, Rules, escaped};
use crate::revision::{ObjectId, Revision};

/// The largest index in bytes, which bounds its space on the volume and the memory of a git that reads it. It is enough
/// for two million paths of usual length.
const BYTES_MAX: u64 = 256 << 20;

/// The largest tree cache in bytes. It is built in memory, at its end with a second copy. A larger one is left out, and
/// git then reads the trees.
const CACHE_MAX: usize = 16 << 20;

/// The most staged directories that are open at the same time, besides the top. A path may have a thousand components,
/// and a process usually no more than 1,024 descriptors.
const OPEN_MAX: usize = 64;

/// Signature, version, number of entries. Version and number are overwritten at the end.
const HEADER: &[u8; 12] = b"DIRC\0\0\0\x02\0\0\0\0";

/// The bytes of an index without entries: the header, and the checksum at the end.
const EMPTY_BYTES: u64 = 12 + 20;
/// The fewest bytes of an entry, in any version.
const ENTRY_MIN: u64 = 64;

/// Flag of an entry: a second field of flags follows.
const EXTENDED: u16 = 0x4000;
/// Flag in the second field: the file is deliberately absent from the worktree.
const SKIP_WORKTREE: u16 = 0x4000;
/// Buffer size in bytes for reading.
const BUFFER: usize = 64 << 10;
/// The largest path length that fits into the flags; a longer path is recorded as this.
const LENGTH_MAX: usize = 0xfff;

/// Writes the index of a revision to the new file `to`. The selected files of the revision are in `staged`.
pub(super) fn write(
    to: &Path,
    reader: &ObjectReader<'_>,
    at: Peeled,
    selection: &Selection,
    patterns: Option<&Patterns>,
    staged: &Path,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let revision = Revision(at.commit);
    let top = fsx::open_dir_at_path(staged).map_err(local("open", staged))?;
    let mut new = std::fs::File::options();
    let file = new.read(true).write(true).create_new(true).open(to).map_err(local("make", to))?;
    let entries = selection.rules.limits.entries;
    let mut walk = Walk {
        reader,
        rules: selection.rules,
        patterns,
        budget: Budget::new(revision, at.tree, entries, patterns.is_some(), cancel),
        revision,
        staged,
        to,
        out: BufWriter::new(file),
        bytes: 0,
        count: 0,
        extended: false,
        cache: Some(Vec::new()),
        path: Vec::new(),
        top,
        levels: Vec::new(),
    };
    walk.put(HEADER)?;
    walk.all(at.tree, patterns.is_none())?;
    walk.finish().map_err(local("write", to))
}

struct Walk<'a> {
    reader: &'a ObjectReader<'a>,
    rules: Rules,
    patterns: Option<&'a Patterns>,
    budget: Budget,
    revision: Revision,
    staged: &'a Path,
    to: &'a Path,
    out: BufWriter<std::fs::File>,
    /// Bytes written so far, header included.
    bytes: u64,
    /// Entries written so far.
    count: u32,
    /// Some entry has the second field of flags, which requires version 3.
    extended: bool,
    /// The tree cache of the trees that were walked completely. `None` if it would be too large, or wrong because some
    /// tree is not as git would write it.
    cache: Option<Vec<u8>>,
    path: Vec<u8>,
    /// The staged tree.
    top: OwnedFd,
    /// The staged directories on the path of the walk, without the top, each opened when a file in it is first
    /// inspected.
    levels: Vec<Option<OwnedFd>>,
}

/// A directory that the walk is in, the top included.
struct OpenDir<'a> {
    id: ObjectId,
    tree: OpenTree<'a>,
    /// Its entries that are still to be written, in the order of the index: see [`OpenTree::line_at`].
    left: std::vec::IntoIter<u32>,
    /// Whether the patterns select it. An entry that no pattern matches inherits that.
    inherited: bool,
    /// The length of the path of its parent.
    parent_len: usize,
    /// The number of entries that were written before it.
    count_before: u32,
    /// The length of the tree cache before it.
    cached_before: usize,
    /// Its sub-trees that were written.
    subtrees: Vec<Cached>,
}

/// The part of the tree cache that belongs to a sub-tree, and the length of the sub-tree's name at its start.
struct Cached {
    start: usize,
    end: usize,
    name: usize,
}

impl<'a> Walk<'a> {
    /// Writes the entries of the tree `top` and of all trees below it. Not recursive: see [`OpenTree`].
    fn all(&mut self, top: ObjectId, inherited: bool) -> Result<(), Error> {
        let mut open = vec![self.open(top, inherited, 0)?];
        while let Some(dir) = open.last_mut() {
            let next = dir.left.next();
            let Some(line) = next.and_then(|start| dir.tree.line_at(start)) else {
                if let Some(done) = open.pop() {
                    let cached = self.leave(done);
                    if let Some(parent) = open.last_mut() {
                        parent.subtrees.push(cached);
                    }
                }
                continue;
            };
            let parent_len = self.path.len();
            self.name(&line)?;
            let wanted =
                self.patterns.is_none_or(|patterns| patterns.selects(&self.path, line.mode, dir.inherited));
            if line.is_dir() {
                let id = line.id;
                self.levels.push(None);
                open.push(self.open(id, wanted, parent_len)?);
            } else {
                self.leaf(&line, wanted)?;
                self.path.truncate(parent_len);
            }
        }
        Ok(())
    }

    fn open(&mut self, id: ObjectId, inherited: bool, parent_len: usize) -> Result<OpenDir<'a>, Error> {
        let tree = self.budget.open(self.reader, &id, &self.path)?;
        // The index is sorted by whole paths, which is the order of trees that git writes.
        let order = |one: &Line<'_>, other: &Line<'_>| sort_key(one).cmp(sort_key(other));
        let mut pairs = tree.lines().zip(tree.lines().skip(1));
        if tree.lines().len() == 0 || !pairs.all(|(one, other)| order(&one, &other).is_lt()) {
            self.cache = None;
        }
        let left = Sorted::by(tree.lines(), order).into_starts().into_iter();
        Ok(OpenDir {
            id,
            tree,
            left,
            inherited,
            parent_len,
            count_before: self.count,
            cached_before: self.cached(),
            subtrees: Vec::new(),
        })
    }

    /// Leaves a directory whose entries are written. Returns its part of the tree cache.
    fn leave(&mut self, dir: OpenDir<'_>) -> Cached {
        let start = dir.cached_before;
        let slash = usize::from(dir.parent_len > 0);
        let name = self.path[dir.parent_len + slash..].to_vec();
        self.cache_tree(&name, dir.id, self.count - dir.count_before, start, dir.subtrees);
        self.path.truncate(dir.parent_len);
        self.levels.pop(); // of the top there is none
        self.budget.close(dir.tree);
        Cached { start, end: self.cached(), name: name.len() }
    }

    /// The current length of the tree cache.
    fn cached(&self) -> usize {
        self.cache.as_ref().map_or(0, Vec::len)
    }

    /// Inserts a tree's own cache line before those of its sub-trees, and sorts the sub-trees as git does: by length of
    /// the name, then by name.
    fn cache_tree(
        &mut self,
        name: &[u8],
        id: ObjectId,
        entries: u32,
        start: usize,
        mut subtrees: Vec<Cached>,
    ) {
        let Some(mut cache) = self.cache.take() else { return };
        let below = &cache[start..];
        let name_of = |cached: &Cached| &below[cached.start - start..][..cached.name];
        subtrees.sort_unstable_by_key(|cached| (cached.name, name_of(cached)));
        let mut lines = Vec::with_capacity(below.len() + name.len() + 48);
        lines.extend_from_slice(name);
        lines.extend_from_slice(format!("\0{entries} {}\n", subtrees.len()).as_bytes());
        lines.extend_from_slice(&id.0);
        for cached in &subtrees {
            lines.extend_from_slice(&below[cached.start - start..cached.end - start]);
        }
        cache.truncate(start);
        cache.append(&mut lines);
        self.cache = Some(cache).filter(|cache| cache.len() <= CACHE_MAX);
    }

    /// Checks a name and appends it to the path. Building the payload checked only selected names, but git would also
    /// create files for the others once a consumer selects them.
    fn name(&mut self, line: &Line<'_>) -> Result<(), Error> {
        let depth = self.levels.len() as u32; // fits: the rules limit the depth
        let checked = self.rules.name(line.name, depth, self.path.len());
        push_name(&mut self.path, line.name);
        checked.map_err(|rule| self.refused(rule))
    }

    fn leaf(&mut self, line: &Line<'_>, wanted: bool) -> Result<(), Error> {
        let Some(Node::Entry(kind)) = Node::of(line.mode) else {
            return Err(self.refused(Rule::Mode { mode: line.mode }));
        };
        if self.bytes + self.path.len() as u64 > BYTES_MAX {
            return Err(self.refused(Rule::IndexBytes { limit: BYTES_MAX }));
        }
        let stat = match kind {
            _ if !wanted => None,
            // For a submodule git compares the HEAD of its repository, not stat data.
            Kind::Submodule => None,
            Kind::File | Kind::Executable | Kind::Symlink => Some(self.stat(line.name)?),
        };
        let mode: u32 = match kind {
            Kind::File => 0o100_644,
            Kind::Executable => 0o100_755,
            Kind::Symlink => 0o120_000,
            Kind::Submodule => 0o160_000,
        };
        self.entry(mode, line.id, stat.as_ref(), !wanted)
    }

    /// Writes one entry. The fields that git compares with stat(2) are truncated to 32 bits, as git does.
    fn entry(&mut self, mode: u32, id: ObjectId, stat: Option<&Stat>, skip: bool) -> Result<(), Error> {
        let field = |of: fn(&Stat) -> u64| stat.map_or(0, |stat| of(stat) as u32);
        let fields = [
            field(|stat| stat.st_ctime as u64),
            field(|stat| stat.st_ctime_nsec),
            field(|stat| stat.st_mtime as u64),
            field(|stat| stat.st_mtime_nsec),
            field(|stat| stat.st_dev),
            field(|stat| stat.st_ino),
            mode,
            field(|stat| stat.st_uid.into()),
            field(|stat| stat.st_gid.into()),
            field(|stat| stat.st_size as u64),
        ];
        let mut entry = Vec::with_capacity(72 + self.path.len());
        entry.extend(fields.iter().flat_map(|field| field.to_be_bytes()));
        entry.extend(id.0);
        let length = self.path.len().min(LENGTH_MAX) as u16;
        if skip {
            self.extended = true;
            entry.extend((length | EXTENDED).to_be_bytes());
            entry.extend(SKIP_WORKTREE.to_be_bytes());
        } else {
            entry.extend(length.to_be_bytes());
        }
        entry.extend_from_slice(&self.path);
        let padding = 8 - entry.len() % 8; // 1 to 8 NUL bytes
        entry.extend(std::iter::repeat_n(0, padding));
        self.put(&entry)?;
        self.count += 1;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(local("write", self.to))
    }

    fn stat(&mut self, name: &[u8]) -> Result<Stat, Error> {
        let found = self.here().and_then(|dir| Ok((CString::new(name)?, dir))).and_then(|(name, dir)| {
            fsx::stat(dir, name.as_c_str())?.ok_or_else(|| std::io::ErrorKind::NotFound.into())
        });
        found.map_err(|error| local("stat", &self.staged.join(OsStr::from_bytes(&self.path)))(error))
    }

    /// The staged directory that the file at the walk's path is in, opened if necessary.
    fn here(&mut self) -> io::Result<BorrowedFd<'_>> {
        let depth = self.levels.len();
        let Some(at) = depth.checked_sub(1) else { return Ok(self.top.as_fd()) };
        let dir = match self.levels[at].take() {
            Some(dir) => dir,
            None => {
                // Directories farther up are closed. They are opened again when the walk returns to a file in them.
                self.levels[..depth.saturating_sub(OPEN_MAX)].fill_with(|| None);
                let end = self.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                fsx::open_beneath(&self.top, OsStr::from_bytes(&self.path[..end]))?
            }
        };
        let dir: &OwnedFd = self.levels[at].insert(dir);
        Ok(dir.as_fd())
    }

    /// Writes the tree cache, the final header, and the checksum of the whole file.
    fn finish(mut self) -> io::Result<()> {
        if let Some(cache) = &self.cache {
            self.out.write_all(b"TREE")?;
            self.out.write_all(&(cache.len() as u32).to_be_bytes())?; // CACHE_MAX at most
            self.out.write_all(cache)?;
        }
        let mut file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.write_all_at(&(if self.extended { 3_u32 } else { 2 }).to_be_bytes(), 4)?;
        file.write_all_at(&self.count.to_be_bytes(), 8)?;
        let mut sum = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        let mut at = 0;
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = file.read_at(&mut buffer, at)?;
            if read == 0 {
                break;
            }
            sum.update(&buffer[..read]);
            at += read as u64;
        }
        file.write_all(sum.finish().as_ref()) // the cursor is still at the end: read_at and write_at do not move it
    }

    fn refused(&self, rule: Rule) -> Error {
        Refusal { revision: self.revision, path: escaped(&self.path), rule }.into()
    }
}

/// Calls `see` with each object id in an index of version 2, 3 or 4. Streams the input. An error of kind `InvalidData`
/// means that the index is malformed or of an unknown version.
pub(super) fn each_id(index: impl Read, mut see: impl FnMut(ObjectId)) -> io::Result<()> {
    let mut index = io::BufReader::with_capacity(BUFFER, index);
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no index of a version that is known");
    let mut fixed = [0; 62];
    let exact = |index: &mut io::BufReader<_>, bytes: &mut [u8]| {
        index.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => wrong(),
            _ => error,
        })
    };
    let mut header = [0; HEADER.len()];
    exact(&mut index, &mut header)?;
    let (version, count) = version_and_count(&header).ok_or_else(wrong)?;
    for _ in 0..count {
        exact(&mut index, &mut fixed)?;
        let [.., high, low] = fixed;
        see(ObjectId(*fixed[40..].first_chunk().ok_or_else(wrong)?));
        let mut length = fixed.len();
        if u16::from_be_bytes([high, low]) & EXTENDED != 0 {
            exact(&mut index, &mut [0; 2])?;
            length += 2;
        }
        if version == 4 {
            // A variable-length number (how much of the previous path is kept): the last byte has a clear top bit.
            skip_past(&mut index, |byte| byte & 0x80 == 0)?;
            skip_past(&mut index, |byte| byte == 0)?;
        } else {
            length += skip_past(&mut index, |byte| byte == 0)?;
            let padding = length.next_multiple_of(8) - length;
            exact(&mut index, &mut [0; 8][..padding])?;
        }
    }
    Ok(())
}

/// Returns true if the file is an index as far as its beginning and its length tell: it may be empty, zero or cut after a
/// power cut. Costs one small read. git does not verify the checksum either.
pub(super) fn is_plausible(path: &Path) -> io::Result<bool> {
    if !fs_err::metadata(path)?.is_file() {
        return Ok(false); // opening a named pipe would block
    }
    let mut file = fs_err::File::open(path)?;
    // Of the file that is read: a git may replace it meanwhile.
    let length = file.metadata()?.len();
    if length < EMPTY_BYTES {
        return Ok(false);
    }
    let mut header = [0; HEADER.len()];
    file.read_exact(&mut header)?;
    let least = version_and_count(&header).map(|(_, count)| EMPTY_BYTES + u64::from(count) * ENTRY_MIN);
    Ok(least.is_some_and(|least| least <= length))
}

/// The version and the number of entries that a header states. `None` if it is malformed or of an unknown version.
fn version_and_count(header: &[u8; HEADER.len()]) -> Option<(u32, u32)> {
    let [signature, version, count] = *header.as_chunks::<4>().0 else { return None };
    let [version, count] = [version, count].map(u32::from_be_bytes);
    (signature == *b"DIRC" && (2..=4).contains(&version)).then_some((version, count))
}

/// Skips bytes up to and including the first for which `is_last` is true. Returns the number of skipped bytes.
fn skip_past(from: &mut impl BufRead, is_last: impl Fn(u8) -> bool) -> io::Result<usize> {
    let mut skipped = 0;
    loop {
        let piece = from.fill_buf()?;
        if piece.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the index ends within a path"));
        }
        let found = piece.iter().position(|byte| is_last(*byte));
        let length = found.map_or(piece.len(), |at| at + 1);
        from.consume(length);
        skipped += length;
        if found.is_some() {
            return Ok(skipped);
        }
    }
}

/// The key by which git sorts trees: a directory's name ends with a slash.
fn sort_key<'a>(line: &Line<'a>) -> impl Iterator<Item = u8> + use<'a> {
    let slash = (line.mode & FORMAT == DIRECTORY).then_some(b'/');
    line.name.iter().copied().chain(slash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_is_cut_or_claims_too_much_is_refused() {
        for version in [2, 3, 4] {
            let header = [&b"DIRC"[..], &[0, 0, 0, version], &[0, 0, 0, 1]].concat();
            let entry = [&[0; 40][..], &[7; 20], &[0, 1]].concat();
            let name = if version == 4 { &b"\0a\0"[..] } else { b"a\0" };
            let whole = [&header[..], &entry, name].concat();
            let mut seen = Vec::new();
            each_id(&whole[..], |id| seen.push(id)).unwrap();
            assert_eq!(seen, [ObjectId([7; 20])]);
            for cut in 0..whole.len() {
                let error = each_id(&whole[..cut], |_| ()).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "version {version} cut at {cut}");
            }
            let mut more = whole.clone();
            more[8..12].fill(0xff);
            assert_eq!(each_id(&more[..], |_| ()).unwrap_err().kind(), io::ErrorKind::InvalidData);
            let file = tempfile::NamedTempFile::new().unwrap();
            let is_plausible = |bytes: &[u8]| {
                std::fs::write(file.path(), bytes).unwrap();
                is_plausible(file.path()).unwrap()
            };
            let whole = [&whole[..], &[0; 20]].concat();
            assert!(is_plausible(&whole), "version {version}");
            assert!(!is_plausible(&whole[..whole.len() - 2]) && !is_plausible(&whole[4..]));
            assert!(!is_plausible(&[&more[..], &[0; 20]].concat()));
            let none = [&header[..8], &[0; 4 + 20]].concat();
            assert!(is_plausible(&none) && !is_plausible(&none[..none.len() - 1]), "without an entry");
        }
    }
}
