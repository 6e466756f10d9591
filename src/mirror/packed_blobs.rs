//! Finds out which objects of packs are blobs from the first bytes of their pack entries (gitformat-pack(5)). For the
//! same answer libgit2 would follow and inflate every delta. Used when a mirror is opened: the completeness check
//! ([`super::closure`]) asks it for every file of the tip.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use git2::ObjectType;

use super::indexer::{Form, form_of};
use super::pack_index;
use crate::revision::ObjectId;

/// The most objects that are examined: each takes some 50 bytes of memory. A pack that would exceed it is skipped.
const OBJECTS_MAX: usize = 500_000;

/// Bytes of a pack that are read at once. Gaps between entries that are farther apart are not read.
const CHUNK: u64 = 1 << 14;

/// Enough bytes for any entry header: at most ten for type and size (64 bits, with at most seven in a byte), and twenty
/// for the delta base, rounded up.
const HEADER_MAX: usize = 32;

/// The objects that are known to be blobs. Other objects may be blobs, too.
#[derive(Debug)]
pub(super) struct PackedBlobs {
    /// Sorted.
    ids: Vec<ObjectId>,
    /// A fan-out table over the first two bytes: `ids[fan_out[n]..fan_out[n + 1]]` begin with `n`. It saves most of a
    /// lookup's cache misses.
    fan_out: Vec<u32>,
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
        let mut fan_out = vec![0; (1 << 16) + 1];
        all.iter().for_each(|id| fan_out[prefix(id) + 1] += 1); // at most OBJECTS_MAX
        (1..fan_out.len()).for_each(|n| fan_out[n] += fan_out[n - 1]);
        Self { ids: all, fan_out }
    }

    /// Returns true if an object is known to be a blob.
    pub(super) fn has(&self, id: &ObjectId) -> bool {
        let n = prefix(id);
        self.ids[self.fan_out[n] as usize..self.fan_out[n + 1] as usize].binary_search(id).is_ok()
    }
}

/// The first two bytes of an id, as a number.
fn prefix(id: &ObjectId) -> usize {
    usize::from(id.0[0]) << 8 | usize::from(id.0[1])
}

/// Finds the blobs of one pack, which may have at most `most` objects.
fn blobs(index: &Path, most: usize) -> io::Result<Vec<ObjectId>> {
    let entries = entries_of(index, most)?;
    let types = types_of(File::open(index.with_extension("pack"))?, &entries)?;
    let is_blob = |((_, id), kind): ((u64, ObjectId), Option<ObjectType>)| {
        (kind == Some(ObjectType::Blob)).then_some(id)
    };
    Ok(entries.into_iter().zip(types).filter_map(is_blob).collect())
}

/// The offset and the id of each object in a pack, sorted by offset. An error if it has more than `most`.
fn entries_of(index: &Path, most: usize) -> io::Result<Vec<(u64, ObjectId)>> {
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
    Ok(entries)
}

/// The types of a pack's entries, which are sorted by offset. A delta has the type of its base, which comes before it.
/// `None` if the base is given by its id, or the entry is malformed.
fn types_of(pack: File, entries: &[(u64, ObjectId)]) -> io::Result<Vec<Option<ObjectType>>> {
    let mut reader = PackReader { file: pack, chunk_offset: 0, chunk: Vec::new() };
    let mut types: Vec<Option<ObjectType>> = Vec::with_capacity(entries.len());
    for (position, (offset, _)) in entries.iter().enumerate() {
        let (before, following) = (&entries[..position], &entries[position + 1..]);
        let kind = match form_of(reader.at(*offset, following)?) {
            Some(Form::Whole(kind)) => Some(kind),
            Some(Form::OffsetDelta(distance)) => {
                let base = offset.checked_sub(distance).unwrap_or_default();
                let found = before.binary_search_by_key(&base, |(offset, _)| *offset);
                found.ok().and_then(|base| types[base])
            }
            Some(Form::RefDelta(_)) | None => None,
        };
        types.push(kind);
    }
    Ok(types)
}

/// A pack file, read in chunks.
struct PackReader {
    file: File,
    /// The offset of `chunk` in the file.
    chunk_offset: u64,
    chunk: Vec<u8>,
}

impl PackReader {
    /// Returns the bytes at the offset of an entry: at least [`HEADER_MAX`], or up to the end of the file. If they must
    /// be read from the file, everything up to the header of the last of the `following` entries that begins within
    /// [`CHUNK`] bytes is read at once.
    fn at(&mut self, offset: u64, following: &[(u64, ObjectId)]) -> io::Result<&[u8]> {
        let start = offset.checked_sub(self.chunk_offset).and_then(|start| usize::try_from(start).ok());
        if let Some(start) = start.filter(|start| start + HEADER_MAX <= self.chunk.len()) {
            return Ok(&self.chunk[start..]);
        }
        let near = following.partition_point(|(next, _)| next - offset < CHUNK);
        let last = following[..near].last().map_or(offset, |(last, _)| *last);
        self.chunk.resize((last - offset) as usize + HEADER_MAX, 0);
        let mut filled = 0;
        while filled < self.chunk.len() {
            match self.file.read_at(&mut self.chunk[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        self.chunk.truncate(filled);
        self.chunk_offset = offset;
        Ok(&self.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::fixture;

    fn git(dir: &Path, line: &str) -> String {
        String::from_utf8(fixture::git(dir, line, b"")).unwrap()
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
