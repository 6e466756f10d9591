//! Which objects a pack holds, read from its index (gitformat-pack(5), version 2).

use std::io;
use std::path::Path;

use crate::revision::ObjectId;

/// Bytes of a pack that are not its objects': the header, and the checksum at the end.
const AROUND: (u64, u64) = (12, 20);

/// An object in a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) id: ObjectId,
    /// Its bytes in the pack.
    pub(super) bytes: u64,
}

/// Signature, version, 256 running counts.
const HEADER: usize = 8 + 256 * 4;

/// The ids in an index, in their order. Read whole: 32 bytes an object.
pub(super) fn ids(path: &Path) -> io::Result<Vec<ObjectId>> {
    parse(&fs_err::read(path)?).ok_or_else(|| malformed(path))
}

/// The objects that an index names, with the room that they take in its pack.
pub(super) fn entries(path: &Path) -> io::Result<Vec<Entry>> {
    let raw = fs_err::read(path)?;
    let end = fs_err::metadata(path.with_extension("pack"))?.len().saturating_sub(AROUND.1);
    sizes(&raw, end).ok_or_else(|| malformed(path))
}

/// Where in its pack each object lies that an index names, in the order of their ids.
pub(super) fn places(path: &Path) -> io::Result<Vec<(ObjectId, u64)>> {
    offsets(&fs_err::read(path)?).ok_or_else(|| malformed(path))
}

fn malformed(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is no index of a pack", path.display()))
}

/// Offsets lie behind the ids and a checksum for each; one with the highest bit set is the place of a longer one.
fn offsets(raw: &[u8]) -> Option<Vec<(ObjectId, u64)>> {
    let ids = parse(raw)?;
    let short = raw.get(HEADER + ids.len() * 24..)?;
    let (short, long) = (short.get(..ids.len() * 4)?, short.get(ids.len() * 4..)?);
    let offset = |raw: &[u8; 4]| match u32::from_be_bytes(*raw) {
        far if far & 0x8000_0000 != 0 => {
            let at = (far & 0x7fff_ffff) as usize * 8;
            Some(u64::from_be_bytes(*long.get(at..)?.first_chunk()?))
        }
        near => Some(u64::from(near)),
    };
    ids.into_iter().zip(short.as_chunks::<4>().0).map(|(id, raw)| Some((id, offset(raw)?))).collect()
}

fn sizes(raw: &[u8], end: u64) -> Option<Vec<Entry>> {
    let mut found: Vec<_> = offsets(raw)?.into_iter().map(|(id, offset)| (offset, id)).collect();
    found.sort_unstable();
    let ends = found.iter().skip(1).map(|(offset, _)| *offset).chain([end.max(AROUND.0)]);
    Some(ends.zip(&found).map(|(end, (at, id))| Entry { id: *id, bytes: end.saturating_sub(*at) }).collect())
}

fn parse(raw: &[u8]) -> Option<Vec<ObjectId>> {
    let counts = raw.strip_prefix(b"\xfftOc\0\0\0\x02")?.get(..256 * 4)?;
    let count = u32::from_be_bytes(*counts.last_chunk()?) as usize;
    let table = raw.get(HEADER..HEADER.checked_add(count.checked_mul(20)?)?)?;
    Some(table.as_chunks::<20>().0.iter().map(|id| ObjectId(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_and_a_cut_one_is_refused() {
        let mut raw = b"\xfftOc\0\0\0\x02".to_vec();
        raw.extend(std::iter::repeat_n([0, 0, 0, 2], 256).flatten());
        raw.extend([1; 20]);
        raw.extend([2; 20]);
        raw.extend([0; 60]);
        assert_eq!(parse(&raw).unwrap(), [ObjectId([1; 20]), ObjectId([2; 20])]);
        for cut in 0..HEADER + 40 {
            assert_eq!(parse(&raw[..cut]), None, "cut at {cut}");
        }
    }
}
