//! git's index of a generation, with the stat data of its files (gitformat-index(5), versions 2 and 3).
//!
//! With it `git status` in a generation compares 90,000 stats and no content. It has every path of the revision's tree,
//! those that patterns leave out marked `skip-worktree`, and the tree cache (extension `TREE`), so that git compares it
//! with the commit without reading trees. It takes 62 bytes and the path for each file, rounded up to eight, and some
//! 40 for each directory: 10.0 MB for 90,000 files with paths of 36 bytes on average, in 22,000 directories.
//!
//! It is written as the trees are walked, and never in memory: it spells whole paths, so a small tree can ask for
//! gigabytes of it. Nor is one read whole: [`each_id`].

use std::ffi::CString;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustix::fs::Stat;
use tokio_util::sync::CancellationToken;

use super::Selection;
use super::error::Error;
use super::files::local;
use super::lack::Lack;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{Budget, DIRECTORY, FORMAT, Line, Sorted, lines};
use crate::fsx;
use crate::payload::{Kind, Node, Refusal, Rule, Rules, escaped};
use crate::revision::{ObjectId, Revision};

/// No index is larger, on the volume and in the memory of a git that reads it: two million paths of usual length.
const BYTES_MAX: u64 = 256 << 20;

/// A larger tree cache is left out: it is made in memory, twice at its end. git then reads the trees themselves.
const CACHE_MAX: usize = 16 << 20;

/// Signature, version, number of entries; the last two are known at the end.
const HEADER: &[u8; 12] = b"DIRC\0\0\0\x02\0\0\0\0";

/// The entry has the second field of flags.
const EXTENDED: u16 = 0x4000;
/// In the second field: the file is not there, and is not missed.
const SKIP_WORKTREE: u16 = 0x4000;
/// What is read at once.
const PIECE: usize = 64 << 10;
/// Longer paths have no length in the flags.
const LENGTH_MAX: usize = 0xfff;

/// Writes the index of a revision whose selected files lie in `staged` to a file that is not there yet.
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
        levels: vec![Some(top)],
    };
    walk.put(HEADER)?;
    walk.tree(at.tree, patterns.is_none(), b"")?;
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
    /// What was written so far, the header included.
    bytes: u64,
    count: u32,
    extended: bool,
    /// The tree cache: of the trees that were left, each in its place. `None`: it would be too large, or untrue,
    /// because some tree is not as git itself would write it.
    cache: Option<Vec<u8>>,
    path: Vec<u8>,
    /// The staged directories on the way down, opened when a file in one is looked at.
    levels: Vec<Option<OwnedFd>>,
}

/// Where in the tree cache the lines of a tree are, and how many bytes of them are its name.
struct Cached {
    start: usize,
    end: usize,
    name: usize,
}

impl Walk<'_> {
    /// Writes what is below a tree, which has this name.
    fn tree(&mut self, id: ObjectId, inherited: bool, name: &[u8]) -> Result<(), Error> {
        let reader = self.reader;
        let (object, held) = self.budget.hold(reader, &id, &self.path)?;
        let lines = lines(&id, object.data()).map_err(|lack| self.damaged(lack))?;
        self.budget.enter(reader, &id, &self.path, lines.len())?;
        // The index is sorted by whole paths, which is git's order of a tree.
        let order = |one: &Line<'_>, other: &Line<'_>| sort_key(one).cmp(sort_key(other));
        let mut pairs = lines.clone().zip(lines.clone().skip(1));
        if lines.len() == 0 || !pairs.all(|(one, other)| order(&one, &other).is_lt()) {
            self.cache = None;
        }
        let before = self.count;
        let start = self.cached();
        let mut subtrees = Vec::new();
        for line in Sorted::by(lines, order).iter() {
            let line = &line;
            let end = self.path.len();
            self.name(line)?;
            let wanted = self
                .patterns
                .is_none_or(|patterns| patterns.wants(&self.path, line.matches_as_dir(), inherited));
            if line.is_dir() {
                let start = self.cached();
                self.levels.push(None);
                self.tree(line.id, wanted, line.name)?;
                self.levels.pop();
                subtrees.push(Cached { start, end: self.cached(), name: line.name.len() });
            } else {
                self.leaf(line, wanted)?;
            }
            self.path.truncate(end);
        }
        self.budget.release(held);
        self.cache_tree(name, id, self.count - before, start, subtrees);
        Ok(())
    }

    fn cached(&self) -> usize {
        self.cache.as_ref().map_or(0, Vec::len)
    }

    /// Puts a tree's own line before those of its sub-trees, and these into git's order.
    fn cache_tree(&mut self, name: &[u8], id: ObjectId, entries: u32, start: usize, mut of: Vec<Cached>) {
        let Some(mut cache) = self.cache.take() else { return };
        let below = &cache[start..];
        let own = |cached: &Cached| &below[cached.start - start..][..cached.name];
        of.sort_unstable_by_key(|cached| (cached.name, own(cached)));
        let mut lines = Vec::with_capacity(below.len() + name.len() + 48);
        lines.extend_from_slice(name);
        lines.extend_from_slice(format!("\0{entries} {}\n", of.len()).as_bytes());
        lines.extend_from_slice(&id.0);
        of.iter()
            .for_each(|cached| lines.extend_from_slice(&below[cached.start - start..cached.end - start]));
        cache.truncate(start);
        cache.append(&mut lines);
        self.cache = Some(cache).filter(|cache| cache.len() <= CACHE_MAX);
    }

    /// Appends a name to the path. Names that the selection leaves out were not looked at before, and git would make
    /// files of them the day they are selected.
    fn name(&mut self, line: &Line<'_>) -> Result<(), Error> {
        let depth = (self.levels.len() - 1) as u32; // a path's components: below the limit of the rules
        let checked = self.rules.name(line.name, depth, self.path.len());
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(line.name);
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
            // Of a submodule git only looks at the repository in it.
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

    /// What git compares with a file, cut to 32 bits as git does.
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
        let padding = 8 - entry.len() % 8; // one at least
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
        let here = self.staged_path();
        let found = self.here().and_then(|dir| Ok((CString::new(name)?, dir))).and_then(|(name, dir)| {
            fsx::stat(dir, name.as_c_str())?.ok_or_else(|| std::io::ErrorKind::NotFound.into())
        });
        found.map_err(local("look at", &here))
    }

    /// The staged directory that the walk is in.
    fn here(&mut self) -> std::io::Result<BorrowedFd<'_>> {
        let mut names = self.path.split(|byte| *byte == b'/');
        for at in 1..self.levels.len() {
            let name = names.next().unwrap_or_default();
            if self.levels[at].is_none() {
                let above = self.levels[at - 1].as_ref().ok_or(std::io::ErrorKind::NotFound)?;
                self.levels[at] = Some(fsx::open_dir(above, name)?);
            }
        }
        let last = self.levels.last().and_then(Option::as_ref).ok_or(std::io::ErrorKind::NotFound)?;
        Ok(last.as_fd())
    }

    fn staged_path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        self.staged.join(std::ffi::OsStr::from_bytes(&self.path))
    }

    /// The tree cache, the header as it is to be, and the checksum of all.
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
        let mut piece = vec![0; PIECE];
        loop {
            let read = file.read_at(&mut piece, at)?;
            if read == 0 {
                break;
            }
            sum.update(&piece[..read]);
            at += read as u64;
        }
        file.write_all(sum.finish().as_ref()) // its cursor is at the end: nothing above moved it
    }

    fn refused(&self, rule: Rule) -> Error {
        Refusal { revision: self.revision, path: escaped(&self.path), rule }.into()
    }

    fn damaged(&self, lack: Lack) -> Error {
        Error::damaged(self.revision, lack)
    }
}

/// Shows the objects that an index names, of any version and by any writer. Read piece by piece. An error of the kind
/// `InvalidData`: malformed, or newer than known.
pub(super) fn each_id(index: impl Read, mut see: impl FnMut(ObjectId)) -> io::Result<()> {
    let mut index = io::BufReader::with_capacity(PIECE, index);
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no index of a version that is known");
    let mut fixed = [0; 62];
    let exact = |index: &mut io::BufReader<_>, bytes: &mut [u8]| {
        index.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => wrong(),
            _ => error,
        })
    };
    let mut header = [0; 12];
    exact(&mut index, &mut header)?;
    let [_, version, count] = *header.as_chunks::<4>().0 else { return Err(wrong()) };
    let version = u32::from_be_bytes(version);
    if !header.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return Err(wrong());
    }
    for _ in 0..u32::from_be_bytes(count) {
        exact(&mut index, &mut fixed)?;
        let [.., high, low] = fixed;
        see(ObjectId(*fixed[40..].first_chunk().ok_or_else(wrong)?));
        let mut length = fixed.len();
        if u16::from_be_bytes([high, low]) & EXTENDED != 0 {
            exact(&mut index, &mut [0; 2])?;
            length += 2;
        }
        if version == 4 {
            // How much of the path before stays, in bytes with the highest bit set but for the last.
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

/// Skips up to the first such byte and that one; says how many.
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

/// How git sorts a tree: directories as if their names ended with a slash.
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
        }
    }
}
