//! Finds out which objects of packs are blobs from the first bytes of their pack entries (gitformat-pack(5)). For the
//! same answer libgit2 would follow and inflate every delta.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::pack_index;
use crate::revision::ObjectId;

/// The most objects that are examined: each takes some 50 bytes of memory. A pack that would exceed it is skipped.
const OBJECTS_MAX: usize = 500_000;

/// Bytes of a pack that are read at once. Gaps between entries that are farther apart are not read.
const PIECE: u64 = 1 << 14;

/// The longest entry header in bytes: type and size, and the distance to the delta base.
const HEAD_MAX: usize = 32;

/// The entry type of a blob.
const BLOB: u8 = 3;
/// The entry types of objects that are not deltas.
const UNDELTIFIED: std::ops::RangeInclusive<u8> = 1..=4;
/// The entry type of a delta whose base is given by its distance in the pack.
const OFS_DELTA: u8 = 6;
/// The type of an object is unknown: its base is given by its id, or the entry type is invalid.
const UNKNOWN: u8 = 0;

/// The objects that are known to be blobs. Other objects may be blobs, too.
#[derive(Debug)]
pub(super) struct PackedBlobs {
    /// Sorted.
    ids: Vec<ObjectId>,
    /// Where the ids of each first two bytes begin in `ids`, and at the end their number: without it most of a lookup is
    /// waiting for memory.
    begins: Vec<u32>,
}

impl PackedBlobs {
    /// Examines packs, given by their indexes. A pack that cannot be read is skipped.
    pub(super) fn of(indexes: &[impl AsRef<Path>]) -> Self {
        let mut all = Vec::new();
        for index in indexes {
            match blobs(index.as_ref(), OBJECTS_MAX.saturating_sub(all.len())) {
                Ok(found) => all.extend(found),
                Err(error) => tracing::debug!("{}: {error}", index.as_ref().display()),
            }
        }
        all.sort_unstable();
        let mut begins = vec![0; (1 << 16) + 1];
        all.iter().for_each(|id| begins[first_bytes(id) + 1] += 1); // at most OBJECTS_MAX
        (1..begins.len()).for_each(|at| begins[at] += begins[at - 1]);
        Self { ids: all, begins }
    }

    /// Returns true if an object is known to be a blob.
    pub(super) fn has(&self, id: &ObjectId) -> bool {
        let first = first_bytes(id);
        self.ids[self.begins[first] as usize..self.begins[first + 1] as usize].binary_search(id).is_ok()
    }
}

/// The first two bytes of an id, as a number.
fn first_bytes(id: &ObjectId) -> usize {
    usize::from(id.0[0]) << 8 | usize::from(id.0[1])
}

/// Finds the blobs of one pack, which may have at most `most` objects.
fn blobs(index: &Path, most: usize) -> io::Result<Vec<ObjectId>> {
    let mut entries = Vec::new();
    pack_index::each_offset(index, |id, offset| {
        if entries.len() <= most {
            entries.push((offset, id));
        }
    })?;
    if entries.len() > most {
        return Err(io::Error::other("it has too many objects to inspect each one"));
    }
    entries.sort_unstable();
    let mut pack = Pieces { file: File::open(index.with_extension("pack"))?, from: 0, piece: Vec::new() };
    let mut types: Vec<u8> = Vec::with_capacity(entries.len());
    for (at, (offset, _)) in entries.iter().enumerate() {
        let last = |piece: u64| {
            let near = entries[at..].partition_point(|(next, _)| next - offset < piece);
            entries[at + near - 1].0 // `near` is at least 1: it counts the entry itself
        };
        let kind = match head(pack.at(*offset, last)?) {
            Some((kind, _)) if UNDELTIFIED.contains(&kind) => kind,
            Some((OFS_DELTA, distance)) => {
                let base = offset.checked_sub(distance).unwrap_or_default();
                entries[..types.len()]
                    .binary_search_by_key(&base, |(at, _)| *at)
                    .map_or(UNKNOWN, |at| types[at])
            }
            _ => UNKNOWN,
        };
        types.push(kind);
    }
    let is_blob = |(entry, kind): ((u64, ObjectId), u8)| (kind == BLOB).then_some(entry.1);
    Ok(entries.into_iter().zip(types).filter_map(is_blob).collect())
}

/// Parses an entry's header: its type, and for an `OFS_DELTA` the distance in bytes back to its base.
fn head(bytes: &[u8]) -> Option<(u8, u64)> {
    let mut bytes = bytes.iter().copied();
    let first = bytes.next()?;
    let mut more = first;
    while more & 0x80 != 0 {
        more = bytes.next()?; // skip the size
    }
    let kind = first >> 4 & 7;
    if kind != OFS_DELTA {
        return Some((kind, 0));
    }
    let mut byte = bytes.next()?;
    let mut distance = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = bytes.next()?;
        distance = distance.checked_add(1)?.checked_mul(128)? | u64::from(byte & 0x7f);
    }
    Some((kind, distance))
}

/// A pack file, read in pieces.
struct Pieces {
    file: File,
    /// The offset of `piece` in the file.
    from: u64,
    piece: Vec<u8>,
}

impl Pieces {
    /// Returns the bytes at an offset: at least [`HEAD_MAX`], or up to the end of the file. If they must be read from
    /// the file, `last` is called with a number of bytes and returns the offset of the last entry that begins within
    /// that many bytes; everything up to the header of that entry is read at once.
    fn at(&mut self, offset: u64, last: impl FnOnce(u64) -> u64) -> io::Result<&[u8]> {
        let start = offset.checked_sub(self.from).and_then(|start| usize::try_from(start).ok());
        let start = match start.filter(|start| start + HEAD_MAX <= self.piece.len()) {
            Some(start) => start,
            None => {
                self.piece.resize((last(PIECE) - offset) as usize + HEAD_MAX, 0);
                let mut filled = 0;
                while filled < self.piece.len() {
                    match self.file.read_at(&mut self.piece[filled..], offset + filled as u64)? {
                        0 => break,
                        read => filled += read,
                    }
                }
                self.piece.truncate(filled);
                self.from = offset;
                0
            }
        };
        Ok(&self.piece[start..])
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn git(dir: &Path, line: &str) -> String {
        let out = Command::new("git").arg("-C").arg(dir).args(line.split(' ')).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn what_git_packs_is_known_as_git_knows_it() {
        let dir = tempfile::tempdir().unwrap();
        let repository = dir.path();
        git(repository, "init -q");
        // Long and similar files, so that git stores most of them as deltas, in long chains.
        let text: String = (0..2_000).map(|line| format!("line {}\n", line * 7919 % 10_007)).collect();
        for number in 0..60 {
            let file = repository.join(format!("d{}", number % 5)).join(number.to_string());
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{number}\n{text}{number}\n")).unwrap();
            git(repository, "add .");
            git(repository, "-c user.name=n -c user.email=e commit -q -m next");
        }
        git(repository, "repack -q -a -d -f --depth=50");
        let packs = repository.join(".git/objects/pack");
        let paths = std::fs::read_dir(&packs).unwrap().map(|entry| entry.unwrap().path());
        let indexes: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "idx")).collect();
        let found = PackedBlobs::of(&indexes);
        let all = git(repository, "cat-file --batch-all-objects --batch-check");
        let mut blobs = 0;
        for line in all.lines() {
            let (id, rest) = line.split_once(' ').unwrap();
            let is_blob = rest.starts_with("blob");
            blobs += usize::from(is_blob);
            assert_eq!(found.has(&id.parse().unwrap()), is_blob, "{line}");
        }
        assert_eq!((blobs, found.ids.len()), (60, 60));

        // A truncated or overwritten pack yields no wrong blobs.
        let pack = indexes[0].with_extension("pack");
        let whole = std::fs::read(&pack).unwrap();
        std::fs::remove_file(&pack).unwrap();
        std::fs::write(&pack, &whole[..20]).unwrap();
        assert!(PackedBlobs::of(&indexes).ids.len() <= 1);
        std::fs::write(&pack, vec![0; whole.len()]).unwrap();
        assert_eq!(PackedBlobs::of(&indexes).ids, []);
        std::fs::write(&pack, vec![0xff; whole.len()]).unwrap();
        assert_eq!(PackedBlobs::of(&indexes).ids, []);
    }
}
