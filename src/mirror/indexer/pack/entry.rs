//! Reads an entry of a pack: its header and its deflated content (gitformat-pack(5)).

use flate2::{Decompress, FlushDecompress, Status};
use git2::ObjectType;

use super::whole_stream::WholeStream;
use super::{IndexError, SMALL, Source};
use crate::revision::ObjectId;

/// How many bytes are inflated at once if the content is not needed as a whole.
const PIECE: usize = 64 << 10;

/// How an entry stores its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::mirror) enum Form {
    /// As its whole content.
    Whole(ObjectType),
    /// As a delta against the entry that begins so many bytes before this one.
    OffsetDelta(u64),
    /// As a delta against the object with this id.
    RefDelta(ObjectId),
}

/// Reads the header of an entry: its form, and the inflated size of its content.
pub(super) fn read_header(source: &mut impl Source) -> Result<(Form, u64), IndexError> {
    let first = source.byte()?;
    let mut size = u64::from(first & 0x0f);
    let mut byte = first;
    let mut shift = 4;
    while byte & 0x80 != 0 {
        byte = source.byte()?;
        let bits = u64::from(byte & 0x7f);
        if shift > 57 || bits << shift >> shift != bits {
            return Err(IndexError::bad("an entry's size is out of range"));
        }
        size |= bits << shift;
        shift += 7;
    }
    let form = match first >> 4 & 7 {
        6 => Form::OffsetDelta(read_distance(source)?),
        7 => Form::RefDelta(ObjectId(source.array()?)),
        kind => {
            let unknown = || IndexError::bad(format!("an entry has the unknown object type {kind}"));
            Form::Whole(ObjectType::from_raw(kind.into()).ok_or_else(unknown)?)
        }
    };
    Ok((form, size))
}

fn read_distance(source: &mut impl Source) -> Result<u64, IndexError> {
    let mut byte = source.byte()?;
    let mut distance = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = source.byte()?;
        distance = match distance.checked_add(1) {
            Some(next) if next < 1 << 56 => next << 7 | u64::from(byte & 0x7f),
            _ => return Err(IndexError::bad("a delta base is not in the pack")),
        };
    }
    Ok(distance)
}

/// Reads the form of an entry from its beginning. `None` if that is malformed or too short.
pub(in crate::mirror) fn form_of(mut entry: &[u8]) -> Option<Form> {
    read_header(&mut entry).ok().map(|(form, _)| form)
}

/// The header of an entry that stores a whole object: the type with the lowest four bits of the size, then seven bits
/// of the size at a time.
pub(in crate::mirror) fn header(kind: ObjectType, size: u64) -> Vec<u8> {
    let mut bytes = vec![(kind.raw() as u8) << 4 | (size & 0x0f) as u8];
    let mut rest = size >> 4;
    while rest > 0 {
        if let Some(last) = bytes.last_mut() {
            *last |= 0x80;
        }
        bytes.push((rest & 0x7f) as u8);
        rest >>= 7;
    }
    bytes
}

/// Inflates the contents of entries, one after the other.
pub(super) struct Inflater {
    /// For contents that were received as a whole.
    whole: WholeStream,
    /// For all others.
    stream: Decompress,
    piece: Vec<u8>,
}

impl Inflater {
    pub(super) fn new() -> Self {
        Self { whole: WholeStream::new(), stream: Decompress::new(true), piece: Vec::with_capacity(PIECE) }
    }

    /// Inflates a content into `into`, which must be empty and have room for one byte more than `size`. Any other size
    /// is an error.
    pub(super) fn inflate_all(
        &mut self,
        source: &mut impl Source,
        size: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), IndexError> {
        if size <= SMALL
            && let Some(used) = self.whole.inflate(source.pending()?, size as usize, into)
        {
            source.consume(used);
            return Ok(());
        }
        self.stream.reset(true);
        while !step(&mut self.stream, source, into)? {
            if into.len() as u64 > size {
                break;
            }
        }
        if into.len() as u64 == size { Ok(()) } else { Err(other_size()) }
    }

    /// Inflates a content of `size` bytes, and passes it to `see` piece by piece.
    pub(super) fn inflate_pieces(
        &mut self,
        source: &mut impl Source,
        size: u64,
        mut see: impl FnMut(&[u8]),
    ) -> Result<(), IndexError> {
        self.stream.reset(true);
        let mut seen = 0;
        loop {
            self.piece.clear();
            let is_end = step(&mut self.stream, source, &mut self.piece)?;
            see(&self.piece);
            seen += self.piece.len() as u64;
            if seen > size || (is_end && seen < size) {
                return Err(other_size());
            }
            if is_end {
                return Ok(());
            }
        }
    }
}

/// Inflates the pending bytes, as far as `into` has room. Returns true at the end of the content.
fn step(stream: &mut Decompress, source: &mut impl Source, into: &mut Vec<u8>) -> Result<bool, IndexError> {
    let pending = source.pending()?;
    if pending.is_empty() {
        return Err(IndexError::Cut);
    }
    let before = stream.total_in();
    let status = stream
        .decompress_vec(pending, into, FlushDecompress::None)
        .map_err(|error| IndexError::bad(format!("an entry cannot be inflated: {error}")))?;
    source.consume((stream.total_in() - before) as usize);
    Ok(status == Status::StreamEnd)
}

fn other_size() -> IndexError {
    IndexError::bad("an entry's size differs from its header")
}
