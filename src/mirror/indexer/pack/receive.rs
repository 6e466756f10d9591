//! The first pass over a pack, while it arrives: every entry is inflated, and hashed if its content is at hand.

use std::fs::File;
use std::io;

use super::contents::Contents;
use super::entry::{Form, read_header};
use super::hashes::Hashes;
use super::input::Input;
use super::{IndexError, Limits, Line, NO_BASE, Object, SMALL, Source as _, hasher, object_id};
use crate::revision::ObjectId;

/// A pack that was received, with deltas that are not resolved yet.
pub(super) struct Received {
    /// In the order of the pack.
    pub(super) objects: Vec<Object>,
    /// Unresolved offset deltas: the positions of the base and of the delta.
    pub(super) by_position: Vec<(u32, u32)>,
    /// Unresolved ref deltas: the id of the base, and the position of the delta.
    pub(super) by_id: Vec<(ObjectId, u32)>,
    pub(super) contents: Contents,
    /// The pack's checksum.
    pub(super) sum: [u8; 20],
    /// The pack's size.
    pub(super) bytes: u64,
}

/// Reads a pack and writes it to `file`.
pub(super) fn receive(from: impl io::Read, file: &File, limits: &Limits) -> Result<Received, IndexError> {
    let mut input = Input::new(from, file, limits.bytes);
    let count = read_pack_header(&mut input, limits)?;
    let mut objects: Vec<Object> = Vec::new();
    objects.try_reserve_exact(count as usize).map_err(|_| IndexError::Memory)?;
    let mut by_position = Vec::new();
    let mut by_id = Vec::new();
    let mut contents = Contents::new(limits.memory);
    let mut hashes = Hashes::new();
    for position in 0..count {
        let offset = input.offset();
        input.take_crc(); // starts the entry's checksum
        let (form, size) = read_header(&mut input)?;
        let mut object =
            Object { line: Line { id: ObjectId([0; 20]), offset, crc: 0 }, base: NO_BASE, kind: None, size };
        let mut small = None;
        match form {
            Form::Whole(kind) if size <= SMALL => {
                object.kind = Some(kind);
                small = Some((kind, contents.inflate(&mut input, size)?));
            }
            Form::Whole(kind) => {
                let mut hasher = hasher(kind, size);
                contents.inflater.inflate_pieces(&mut input, size, |piece| hasher.update(piece))?;
                object.line.id = object_id(hasher)?;
                object.kind = Some(kind);
            }
            Form::OffsetDelta(distance) => {
                let found = offset
                    .checked_sub(distance)
                    .and_then(|base| objects.binary_search_by_key(&base, |object| object.line.offset).ok())
                    .ok_or_else(|| IndexError::bad("a delta base is not in the pack"))?;
                object.base = found as u32;
                match (objects[found].kind, contents.cache.get(object.base)) {
                    (Some(kind), Some(base)) if size <= SMALL => {
                        let delta = contents.inflate(&mut input, size)?;
                        object.kind = Some(kind);
                        small = Some((kind, contents.apply_delta(&base, &delta)?));
                    }
                    _ => {
                        contents.inflater.inflate_pieces(&mut input, size, |_| ())?;
                        by_position.push((object.base, position));
                    }
                }
            }
            Form::RefDelta(base) => {
                contents.inflater.inflate_pieces(&mut input, size, |_| ())?;
                by_id.push((base, position));
            }
        }
        object.line.crc = input.take_crc();
        if let Some((_, content)) = &small {
            object.size = content.len() as u64; // `size` is that of the delta, if it is one
        }
        objects.push(object);
        if let Some((kind, content)) = small {
            let content = contents.keep(position, content);
            hashes.add(&mut objects, position, kind, content)?;
        }
    }
    hashes.finish(&mut objects)?;
    let bytes = input.offset() + 20;
    let sum = input.finish()?;
    Ok(Received { objects, by_position, by_id, contents, sum, bytes })
}

/// Reads the header of the pack, and returns the number of objects.
fn read_pack_header<R: io::Read>(input: &mut Input<'_, R>, limits: &Limits) -> Result<u32, IndexError> {
    if input.array()? != *b"PACK" {
        return Err(IndexError::bad("it does not start with a pack header"));
    }
    match u32::from_be_bytes(input.array()?) {
        2 => {} // libgit2, which reads the pack later, supports no other, and no git writes version 3
        other => return Err(IndexError::bad(format!("it has the unknown pack version {other}"))),
    }
    let count = u32::from_be_bytes(input.array()?);
    if u64::from(count) > limits.expected {
        return Err(IndexError::Many(count.into()));
    }
    if u64::from(count) > limits.objects {
        return Err(IndexError::Memory);
    }
    Ok(count)
}
