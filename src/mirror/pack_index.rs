//! Reads and writes pack indexes (gitformat-pack(5), version 2), which list the objects of a pack.

use std::io::{self, BufReader, Read as _, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::files::ReadAt;
use crate::revision::ObjectId;

/// Bytes of a pack before and after its objects: the header, and the checksum at the end.
const AROUND: (u64, u64) = (12, 20);

/// An object in a pack, and its size there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) id: ObjectId,
    /// The bytes that its entry takes in the pack.
    pub(super) bytes: u64,
}

/// An entry of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line {
    /// The offset of the object's entry in the pack.
    pub(super) offset: u64,
    pub(super) id: ObjectId,
    /// The CRC-32 of the object's entry in the pack.
    pub(super) crc: u32,
}

const SIGNATURE: &[u8; 8] = b"\xfftOc\0\0\0\x02";

/// The flag of an offset that does not fit into 31 bits and is stored in the table of 64-bit offsets.
const FAR: u32 = 0x8000_0000;

/// Writes the index of a pack whose checksum is `pack`. `lines` must be sorted by id.
pub(super) fn write<'l>(
    to: impl Write,
    lines: impl Iterator<Item = &'l Line> + Clone,
    pack: &[u8; 20],
) -> io::Result<()> {
    let mut to = Summed { to, sum: sha1dc::Hasher::new() };
    to.write_all(SIGNATURE)?;
    let mut counts = [0_u32; 256];
    lines.clone().for_each(|line| counts[usize::from(line.id.0[0])] += 1);
    let mut sum = 0;
    for count in counts {
        sum += count;
        to.write_all(&sum.to_be_bytes())?;
    }
    for line in lines.clone() {
        to.write_all(&line.id.0)?;
    }
    for line in lines.clone() {
        to.write_all(&line.crc.to_be_bytes())?;
    }
    let near = |line: &Line| u32::try_from(line.offset).ok().filter(|offset| *offset < FAR);
    let mut far = 0;
    for line in lines.clone() {
        let offset = near(line).unwrap_or_else(|| {
            far += 1;
            FAR | (far - 1)
        });
        to.write_all(&offset.to_be_bytes())?;
    }
    for line in lines.filter(|line| near(line).is_none()) {
        to.write_all(&line.offset.to_be_bytes())?;
    }
    to.write_all(pack)?;
    let Summed { mut to, sum } = to;
    let sum = sum.finalize().map_err(io::Error::other)?;
    to.write_all(sum.as_ref())
}

/// A writer that hashes what is written.
struct Summed<W> {
    to: W,
    sum: sha1dc::Hasher,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Bytes of a table that are read at once.
const PIECE: usize = 64 << 10;

/// The bytes of an index before its tables: signature, version, 256 cumulative counts.
const HEADER: usize = 8 + 256 * 4;

/// The pack indexes in an object directory, as far as they can be listed.
pub(super) fn list(objects: &Path) -> impl Iterator<Item = PathBuf> {
    let listed = fs_err::read_dir(objects.join("pack")).into_iter().flatten().flatten();
    listed.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|suffix| suffix == "idx"))
}

/// Reads the ids in an index, in sorted order.
pub(super) fn ids(path: &Path) -> io::Result<Vec<ObjectId>> {
    let mut found = Vec::new();
    each_offset(path, |id, _| found.push(id))?;
    Ok(found)
}

/// Reads the objects in an index, in the order of the pack, with the bytes that each takes in the pack.
pub(super) fn entries(path: &Path) -> io::Result<Vec<Entry>> {
    let end = fs_err::metadata(path.with_extension("pack"))?.len().saturating_sub(AROUND.1);
    let mut found = Vec::new();
    each_offset(path, |id, offset| found.push(Entry { id, bytes: offset }))?;
    // `bytes` holds the offset so far. Each entry reaches to the offset of the next one.
    found.sort_unstable_by_key(|entry| entry.bytes);
    let mut next = end.max(AROUND.0);
    for entry in found.iter_mut().rev() {
        let offset = std::mem::replace(&mut next, entry.bytes);
        entry.bytes = offset.saturating_sub(entry.bytes);
    }
    Ok(found)
}

/// Returns true if an index names an object and the pack beside it has the checksum that the index records.
pub(super) fn holds(path: &Path, wanted: &ObjectId) -> io::Result<bool> {
    let mut found = false;
    each_offset(path, |id, _| found |= id == *wanted)?;
    let last = |path: &Path, from_end: u64| -> io::Result<[u8; 20]> {
        let file = fs_err::File::open(path)?;
        let end = file.metadata()?.len().checked_sub(from_end).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut sum = [0; 20];
        file.file().read_exact_at(&mut sum, end)?;
        Ok(sum)
    };
    Ok(found && last(path, 40)? == last(&path.with_extension("pack"), 20)?)
}

/// Calls `see` with each object in an index and its offset in the pack, in the order of ids. Reads in pieces: the index
/// of a million objects has 32 MB.
pub(super) fn each_offset(path: &Path, mut see: impl FnMut(ObjectId, u64)) -> io::Result<()> {
    let file = fs_err::File::open(path)?;
    let mut header = [0; HEADER];
    file.file().read_exact_at(&mut header, 0)?;
    let count = count(&header).ok_or_else(|| malformed(path))?;
    let table = |offset| BufReader::with_capacity(PIECE, ReadAt { file: file.file(), offset });
    let mut ids = table(HEADER as u64);
    let mut offsets = table(HEADER as u64 + count * 24);
    let long = HEADER as u64 + count * 28;
    for _ in 0..count {
        let (mut id, mut offset) = ([0; 20], [0; 4]);
        ids.read_exact(&mut id)?;
        offsets.read_exact(&mut offset)?;
        let offset = match u32::from_be_bytes(offset) {
            far if far & FAR != 0 => {
                let mut raw = [0; 8];
                file.file().read_exact_at(&mut raw, long + u64::from(far & !FAR) * 8)?;
                u64::from_be_bytes(raw)
            }
            near => u64::from(near),
        };
        see(ObjectId(id), offset);
    }
    Ok(())
}

fn malformed(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a pack index", path.display()))
}

/// The number of objects, by the header; `None` if the header is malformed.
fn count(raw: &[u8]) -> Option<u64> {
    let counts = raw.strip_prefix(SIGNATURE)?.get(..256 * 4)?;
    Some(u32::from_be_bytes(*counts.last_chunk()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_and_a_cut_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let index = dir.path().join("p.idx");
        let pack = dir.path().join("p.pack");
        let mut raw = b"\xfftOc\0\0\0\x02".to_vec();
        raw.extend(std::iter::repeat_n([0, 0, 0, 2], 256).flatten());
        raw.extend([1; 20]);
        raw.extend([2; 20]);
        raw.extend([0; 8]); // checksums
        raw.extend([0, 0, 0, 52, 0, 0, 0, 12]); // the second object comes first
        std::fs::write(&index, &raw).unwrap();
        std::fs::write(&pack, [0; 12 + 40 + 30 + 20]).unwrap();
        assert_eq!(ids(&index).unwrap(), [ObjectId([1; 20]), ObjectId([2; 20])]);
        let sizes = [Entry { id: ObjectId([2; 20]), bytes: 40 }, Entry { id: ObjectId([1; 20]), bytes: 30 }];
        assert_eq!(entries(&index).unwrap(), sizes);
        for cut in (0..raw.len()).step_by(3) {
            std::fs::write(&index, &raw[..cut]).unwrap();
            let error = ids(&index).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {cut}");
        }
    }
}
