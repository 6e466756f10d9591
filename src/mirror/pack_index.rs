//! Which objects a pack holds, read from its index (gitformat-pack(5), version 2).

use std::io;
use std::path::Path;

use crate::revision::ObjectId;

/// Signature, version, 256 running counts.
const HEADER: usize = 8 + 256 * 4;

/// The ids in an index, in their order. Read whole: 32 bytes an object.
pub(super) fn ids(path: &Path) -> io::Result<Vec<ObjectId>> {
    let raw = fs_err::read(path)?;
    parse(&raw).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} is no index of a pack", path.display()))
    })
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
