//! The first look at a pack, while it arrives.

use std::fs::File;
use std::io;

use super::contents::Contents;
use super::entry::{Form, head};
use super::hashes::Hashes;
use super::input::Input;
use super::{Fault, Limits, Line, Object, SMALL, Source as _, WHOLE, hasher, id};
use crate::revision::ObjectId;

/// What is known of a pack that arrived.
pub(super) struct Received {
    /// In the order of the pack.
    pub(super) objects: Vec<Object>,
    /// Differences to entries of the pack that wait for them: the place of the base, and theirs.
    pub(super) by_place: Vec<(u32, u32)>,
    /// Differences to objects, and their places.
    pub(super) by_id: Vec<(ObjectId, u32)>,
    pub(super) contents: Contents,
    /// Its checksum.
    pub(super) sum: [u8; 20],
    /// Its bytes.
    pub(super) bytes: u64,
}

pub(super) fn receive(from: impl io::Read, file: &File, limits: &Limits) -> Result<Received, Fault> {
    let mut input = Input::new(from, file, limits.bytes);
    let count = announced(&mut input, limits)?;
    let mut objects: Vec<Object> = Vec::new();
    objects.try_reserve_exact(count as usize).map_err(|_| Fault::Memory)?;
    let (mut by_place, mut by_id) = (Vec::new(), Vec::new());
    let mut contents = Contents::new(limits.memory);
    let mut hashes = Hashes::new();
    for place in 0..count {
        let offset = input.offset();
        let _before = input.crc();
        let (form, size) = head(&mut input)?;
        let mut object =
            Object { line: Line { id: ObjectId([0; 20]), offset, crc: 0 }, base: WHOLE, kind: None };
        let mut small = None;
        match form {
            Form::Whole(kind) if size <= SMALL => {
                object.kind = Some(kind);
                small = Some((kind, contents.inflated(&mut input, size)?));
            }
            Form::Whole(kind) => {
                let mut hasher = hasher(kind, size);
                contents.inflater.pieces(&mut input, size, |piece| hasher.update(piece))?;
                (object.line.id, object.kind) = (id(hasher)?, Some(kind));
            }
            Form::Back(distance) => {
                let found = offset
                    .checked_sub(distance)
                    .and_then(|base| objects.binary_search_by_key(&base, |object| object.line.offset).ok())
                    .ok_or_else(|| Fault::bad("a difference is to nothing that is in the pack"))?;
                object.base = found as u32;
                match (objects[found].kind, contents.cache.get(object.base)) {
                    (Some(kind), Some(base)) if size <= SMALL => {
                        let delta = contents.inflated(&mut input, size)?;
                        object.kind = Some(kind);
                        small = Some((kind, contents.applied(&base, &delta)?));
                    }
                    _ => {
                        contents.inflater.pieces(&mut input, size, |_| ())?;
                        by_place.push((object.base, place));
                    }
                }
            }
            Form::To(base) => {
                contents.inflater.pieces(&mut input, size, |_| ())?;
                by_id.push((base, place));
            }
        }
        object.line.crc = input.crc();
        objects.push(object);
        if let Some((kind, content)) = small {
            let content = contents.keep(place, content);
            hashes.add(&mut objects, (place, kind), content)?;
        }
    }
    hashes.finish(&mut objects)?;
    let bytes = input.offset() + 20;
    let sum = input.finish()?;
    Ok(Received { objects, by_place, by_id, contents, sum, bytes })
}

/// Reads the head of the pack: how many objects it has.
fn announced<R: io::Read>(input: &mut Input<'_, R>, limits: &Limits) -> Result<u32, Fault> {
    if input.array()? != *b"PACK" {
        return Err(Fault::bad("it does not begin as a pack does"));
    }
    match u32::from_be_bytes(input.array()?) {
        2 => {} // libgit2, which is to read it, knows no other, and no git writes 3
        other => return Err(Fault::bad(format!("it has the unknown version {other}"))),
    }
    let count = u32::from_be_bytes(input.array()?);
    if u64::from(count) > limits.expected {
        return Err(Fault::Many(count.into()));
    }
    if u64::from(count) > limits.objects {
        return Err(Fault::Memory);
    }
    Ok(count)
}
