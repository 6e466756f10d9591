//! A table of a pack's objects: id, place in the pack, size and type. The indexer, which knows them anyway, passes it to
//! its parent, which reads these objects next. libgit2 would search the index for each object, and inflate the start of
//! its entry to learn the same.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use git2::ObjectType;

use super::Object;
use crate::revision::ObjectId;

/// Fewer objects than this are not worth a table.
const MIN_OBJECTS: usize = 1_000;

/// More objects than this would take too much memory.
const MAX_OBJECTS: usize = 500_000;

/// The memory for each object of a table while it is made: 8 bytes for its end, 41 for its row, 4 for its position, and
/// something for what a table has beside them.
const OBJECT_BYTES: u64 = 56;

/// Making a table may take one part in this many of the indexer's memory.
const MEMORY_FRACTION: u64 = 8;

/// Bytes of an object in a table: its id, the offset and length of its entry, its size, and its type.
const ROW_BYTES: usize = 20 + 8 + 4 + 8 + 1;

/// The size in bytes of the largest table.
pub(in crate::mirror) const TABLE_MAX: usize = ROW_BYTES * MAX_OBJECTS;

/// How many values the first two bytes of an id have.
const FAN_OUT: usize = 1 << 16;

/// The first two bytes of an id, as a number.
fn prefix(id: &[u8]) -> usize {
    usize::from(id[0]) << 8 | usize::from(id[1])
}

/// What a table says of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::mirror) struct Row {
    pub(in crate::mirror) id: ObjectId,
    /// Where its entry begins in the pack.
    pub(super) offset: u64,
    /// The length of its entry. `u32::MAX` also stands for everything longer.
    pub(super) length: u32,
    /// The size of its content.
    pub(in crate::mirror) size: u64,
    pub(in crate::mirror) kind: ObjectType,
}

impl Row {
    fn encode(&self) -> [u8; ROW_BYTES] {
        let mut raw = [0; ROW_BYTES];
        raw[..20].copy_from_slice(&self.id.0);
        raw[20..28].copy_from_slice(&self.offset.to_le_bytes());
        raw[28..32].copy_from_slice(&self.length.to_le_bytes());
        raw[32..40].copy_from_slice(&self.size.to_le_bytes());
        raw[40] = self.kind.raw() as u8; // 1 to 4
        raw
    }

    fn decode(raw: &[u8; ROW_BYTES]) -> Option<Self> {
        let (id, rest) = raw.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (size, kind) = rest.split_first_chunk()?;
        let kind = ObjectType::from_raw((*kind.first()?).into())?;
        let [offset, size] = [offset, size].map(|bytes| u64::from_le_bytes(*bytes));
        let length = u32::from_le_bytes(*length);
        offset.checked_add(length.into())?; // a compromised indexer may write anything
        Some(Self { id: ObjectId(*id), offset, length, size, kind })
    }
}

/// The offsets at which the entries of a pack end. `objects` are in the order of the pack, whose last entry ends at
/// `end`. `None` if the pack gets no table: few objects are not worth it, and many would take too much of `memory`.
pub(super) fn entry_ends(objects: &[Object], end: u64, memory: u64) -> Option<Vec<u64>> {
    let bytes = objects.len() as u64 * OBJECT_BYTES;
    let is_worth_it =
        (MIN_OBJECTS..=MAX_OBJECTS).contains(&objects.len()) && bytes <= memory / MEMORY_FRACTION;
    is_worth_it.then(|| objects.iter().skip(1).map(|object| object.line.offset).chain([end]).collect())
}

/// The objects of one pack.
#[derive(Debug)]
pub(in crate::mirror) struct ObjectTable {
    /// The pack's file.
    pack: PathBuf,
    /// The encoded rows, sorted by id.
    rows: Vec<[u8; ROW_BYTES]>,
    /// For each first two bytes of an id: how many rows have lower ones. A binary search of all rows would take more
    /// time than inflating a small object.
    fan_out: Box<[u32]>,
    /// The rows' positions, sorted by offset.
    by_offset: Vec<u32>,
}

impl ObjectTable {
    /// Makes the table of a pack from its objects, which must be sorted by id and have a type, and the [`entry_ends`]
    /// of their entries.
    pub(super) fn of(pack: PathBuf, objects: &[Object], ends: &[u64]) -> Option<Self> {
        let mut rows = Vec::with_capacity(objects.len());
        for object in objects {
            let offset = object.line.offset;
            let end = ends.get(ends.partition_point(|end| *end <= offset))?;
            let length = u32::try_from(end - offset).unwrap_or(u32::MAX);
            rows.push(
                Row { id: object.line.id, offset, length, size: object.size, kind: object.kind? }.encode(),
            );
        }
        Self::from_rows(pack, rows)
    }

    /// Writes the rows as [`Self::decode`] reads them.
    pub(in crate::mirror) fn encode(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(self.rows.as_flattened())
    }

    /// Reads a table. `None` if there is none, or it is malformed. Rows in a wrong order are harmless: objects are not
    /// found, and libgit2 reads them.
    pub(in crate::mirror) fn decode(pack: PathBuf, raw: &[u8]) -> Option<Self> {
        match raw.as_chunks() {
            (rows, []) if (MIN_OBJECTS..=MAX_OBJECTS).contains(&rows.len()) => {
                Self::from_rows(pack, rows.to_vec())
            }
            _ => None,
        }
    }

    fn from_rows(pack: PathBuf, rows: Vec<[u8; ROW_BYTES]>) -> Option<Self> {
        if rows.iter().any(|row| Row::decode(row).is_none()) {
            return None;
        }
        let mut by_offset: Vec<u32> = (0..).take(rows.len()).collect();
        by_offset.sort_unstable_by_key(|at| Row::decode(&rows[*at as usize]).map(|row| row.offset));
        let mut fan_out = vec![0; FAN_OUT + 1].into_boxed_slice();
        rows.iter().for_each(|row| fan_out[prefix(row) + 1] += 1);
        (1..=FAN_OUT).for_each(|at| fan_out[at] += fan_out[at - 1]);
        Some(Self { pack, rows, fan_out, by_offset })
    }

    #[cfg(test)]
    pub(in crate::mirror) fn without_objects() -> Self {
        Self { pack: PathBuf::new(), rows: Vec::new(), fan_out: Box::default(), by_offset: Vec::new() }
    }

    /// The pack's file.
    pub(in crate::mirror) fn pack(&self) -> &Path {
        &self.pack
    }

    /// The row at a position.
    pub(super) fn row(&self, at: u32) -> Option<Row> {
        Row::decode(self.rows.get(at as usize)?)
    }

    /// The position of an object's row.
    pub(super) fn position(&self, id: &ObjectId) -> Option<u32> {
        let prefix = prefix(&id.0);
        let (from, to) = (self.fan_out[prefix], self.fan_out[prefix + 1]);
        let rows = &self.rows[from as usize..to as usize];
        let found = rows.binary_search_by(|row| row[..20].cmp(&id.0)).ok()?;
        Some(from + found as u32)
    }

    /// The position of the row of the object whose entry begins at `offset`.
    pub(super) fn position_by_offset(&self, offset: u64) -> Option<u32> {
        let key = |at: &u32| self.row(*at).map(|row| row.offset);
        let found = self.by_offset.binary_search_by_key(&Some(offset), key).ok()?;
        Some(self.by_offset[found])
    }

    /// The row of an object.
    pub(in crate::mirror) fn find(&self, id: &ObjectId) -> Option<Row> {
        self.row(self.position(id)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Line, NO_BASE};
    use super::*;

    /// Objects in the order of a pack, 100 bytes each.
    fn objects(count: u32) -> Vec<Object> {
        let object = |number: u32| {
            let mut id = [0; 20];
            id[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
            let line = Line { id: ObjectId(id), offset: 12 + 100 * u64::from(number), crc: 0 };
            Object { line, base: NO_BASE, kind: Some(ObjectType::Blob), size: u64::from(number) }
        };
        (0..count).map(object).collect()
    }

    #[test]
    fn a_table_is_read_as_it_was_written_and_finds_by_id_and_offset() {
        let mut objects = objects(2_000);
        let ends = entry_ends(&objects, 12 + 2_000 * 100 + 7, 64 << 20).unwrap();
        objects.sort_unstable_by_key(|object| object.line.id);
        let table = ObjectTable::of("p".into(), &objects, &ends).unwrap();
        let mut raw = Vec::new();
        table.encode(&mut raw).unwrap();
        let read = ObjectTable::decode("p".into(), &raw).unwrap();
        for table in [&table, &read] {
            for (at, object) in (0..).zip(&objects) {
                let found = table.find(&object.line.id).unwrap();
                assert_eq!((found.size, found.kind), (object.size, ObjectType::Blob));
                assert_eq!(found.length, if object.size == 1_999 { 107 } else { 100 });
                assert_eq!(table.position_by_offset(object.line.offset), Some(at));
            }
            assert_eq!(table.find(&ObjectId([7; 20])), None);
            assert_eq!(table.position_by_offset(13), None);
        }
        assert!(ObjectTable::decode("p".into(), &raw[..raw.len() - 1]).is_none(), "it is truncated");
        raw[ROW_BYTES - 1] = 5;
        assert!(ObjectTable::decode("p".into(), &raw).is_none(), "no object has that type");
        raw[ROW_BYTES - 1] = 3;
        assert!(ObjectTable::decode("p".into(), &raw).is_some());
        raw[20..28].fill(0xff);
        assert!(ObjectTable::decode("p".into(), &raw).is_none(), "an entry ends beyond 2^64");
    }

    #[test]
    fn few_objects_and_too_many_get_no_table() {
        let is_made = |count, memory| entry_ends(&objects(count), 1 << 30, memory).is_some();
        assert!(!is_made(999, 64 << 20) && is_made(1_000, 64 << 20) && !is_made(1_000, 1 << 18));
        assert!(is_made(500_000, 1 << 30) && !is_made(500_001, 1 << 30));
        assert!(ObjectTable::decode("p".into(), &[]).is_none());
    }
}
