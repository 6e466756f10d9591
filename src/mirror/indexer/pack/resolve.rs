//! The second pass over a pack: resolves the remaining deltas. All deltas against a base are resolved together, so that
//! most contents are restored only once.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Take, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use git2::ObjectType;

use super::contents::Contents;
use super::entry::{header, read_header};
use super::receive::Received;
use super::{IndexError, Line, NO_BASE, Object, ReadBase, hash};
use crate::mirror::files::ReadAt;
use crate::revision::ObjectId;

/// How many bytes of the file are read at once.
const PIECE: u64 = 64 << 10;

/// Resolves all deltas, and completes a thin pack. Returns all objects in the order of the pack, the offset at which the
/// last entry ends, and the pack's checksum.
pub(super) fn resolve(
    received: Received,
    file: &File,
    read_base: &ReadBase<'_>,
) -> Result<(Vec<Object>, u64, [u8; 20]), IndexError> {
    let Received { objects, mut by_position, mut by_id, contents, sum, bytes } = received;
    by_position.sort_unstable();
    by_id.sort_unstable();
    let count = objects.len();
    let mut resolver = Resolver { objects, by_position, by_id, contents, file, end: bytes - 20 };
    for position in (0..).take(count) {
        resolver.resolve_children(position)?;
    }
    resolver.append_bases(read_base)?;
    if resolver.objects.iter().any(|object| object.kind.is_none()) {
        return Err(IndexError::bad("a delta base is neither in the pack nor in the mirror"));
    }
    let sum = if resolver.objects.len() > count { resolver.update_checksum()? } else { sum };
    Ok((resolver.objects, resolver.end, sum))
}

/// The fields are those of [`Received`]; `by_position` and `by_id` are sorted.
struct Resolver<'f> {
    objects: Vec<Object>,
    by_position: Vec<(u32, u32)>,
    by_id: Vec<(ObjectId, u32)>,
    contents: Contents,
    file: &'f File,
    /// The offset at which the last entry ends.
    end: u64,
}

impl Resolver<'_> {
    /// Resolves all deltas against an object, and those against the results.
    fn resolve_children(&mut self, position: u32) -> Result<(), IndexError> {
        let mut stack = vec![position];
        while let Some(position) = stack.pop() {
            let Some(kind) = self.objects[position as usize].kind else { continue };
            let children = self.unresolved_children(position);
            if children.is_empty() {
                continue;
            }
            let base = self.content(position)?;
            for at in children {
                let delta = self.entry(at)?;
                let content = self.contents.apply_delta(&base, &delta)?;
                let object = &mut self.objects[at as usize];
                object.line.id = hash(kind, &content)?;
                object.kind = Some(kind);
                object.size = content.len() as u64;
                object.base = position;
                if !self.unresolved_children(at).is_empty() {
                    self.contents.cache.insert(at, Arc::new(content));
                    stack.push(at);
                }
            }
        }
        Ok(())
    }

    /// The positions of the unresolved deltas against an object, whose id must be known.
    fn unresolved_children(&self, position: u32) -> Vec<u32> {
        let wanted = self.objects[position as usize].line.id;
        let from = self.by_position.partition_point(|(base, _)| *base < position);
        let offset_deltas =
            self.by_position[from..].iter().take_while(|(base, _)| *base == position).map(|(_, at)| *at);
        let from = self.by_id.partition_point(|(base, _)| *base < wanted);
        let ref_deltas = self.by_id[from..].iter().take_while(|(base, _)| *base == wanted).map(|(_, at)| *at);
        offset_deltas.chain(ref_deltas).filter(|at| self.objects[*at as usize].kind.is_none()).collect()
    }

    /// Restores the content of an object, starting at the nearest cached content in its chain of bases.
    fn content(&mut self, position: u32) -> Result<Arc<Vec<u8>>, IndexError> {
        let mut path = Vec::new();
        let mut at = position;
        let mut content = loop {
            if let Some(content) = self.contents.cache.get(at) {
                break content;
            }
            path.push(at);
            at = match self.objects[at as usize].base {
                NO_BASE => break Arc::new(Vec::new()),
                base => base,
            };
        };
        while let Some(at) = path.pop() {
            let raw = self.entry(at)?;
            content = Arc::new(match self.objects[at as usize].base {
                NO_BASE => raw,
                _ => self.contents.apply_delta(&content, &raw)?,
            });
            self.contents.cache.insert(at, Arc::clone(&content));
        }
        Ok(content)
    }

    /// Inflates an object's entry: its content, or its delta.
    fn entry(&mut self, position: u32) -> Result<Vec<u8>, IndexError> {
        let from = self.objects[position as usize].line.offset;
        let to = self.objects.get(position as usize + 1).map_or(self.end, |next| next.line.offset);
        let mut source = reread(self.file, from..to);
        let (_, size) = read_header(&mut source)?;
        self.contents.inflate(&mut source, size)
    }

    /// Appends the bases that a thin pack left out, and resolves the deltas against them.
    fn append_bases(&mut self, read_base: &ReadBase<'_>) -> Result<(), IndexError> {
        let is_unresolved = |objects: &[Object], at: u32| objects[at as usize].kind.is_none();
        let mut missing: Vec<_> =
            self.by_id.iter().filter(|(_, at)| is_unresolved(&self.objects, *at)).copied().collect();
        // In the order of the pack, like git: a base in the mirror may also come in the pack, as a delta against
        // another one, and is then resolved before its own turn.
        missing.sort_unstable_by_key(|(_, at)| *at);
        for (base, at) in missing {
            if !is_unresolved(&self.objects, at) {
                continue;
            }
            let Some((kind, content)) = read_base(&base).map_err(IndexError::Git)? else { continue };
            if hash(kind, &content)? != base {
                let damaged = io::Error::other(format!("the base object {base} in the mirror is damaged"));
                return Err(IndexError::Io("complete the pack", damaged));
            }
            let position = self.objects.len() as u32;
            let line = self.append_base(base, kind, &content).map_err(IndexError::io("complete the pack"))?;
            let size = content.len() as u64;
            self.objects.push(Object { line, base: NO_BASE, kind: Some(kind), size });
            self.contents.cache.insert(position, Arc::new(content));
            self.resolve_children(position)?;
        }
        Ok(())
    }

    /// Writes an object as a new last entry.
    fn append_base(&mut self, id: ObjectId, kind: ObjectType, content: &[u8]) -> io::Result<Line> {
        let offset = self.end;
        self.file.seek(SeekFrom::Start(offset))?;
        let mut to = CountingWriter { file: self.file, bytes: 0, crc: Crc::new() };
        to.write_all(&header(kind, content.len() as u64))?;
        let mut deflate = ZlibEncoder::new(&mut to, Compression::fast());
        deflate.write_all(content)?;
        deflate.finish()?;
        self.end = offset + to.bytes;
        Ok(Line { id, offset, crc: to.crc.sum() })
    }

    /// Updates the number of objects in the pack's header, and the checksum at its end. Returns the checksum.
    fn update_checksum(&mut self) -> Result<[u8; 20], IndexError> {
        let act = "complete the pack";
        let count = (self.objects.len() as u32).to_be_bytes();
        self.file.write_all_at(&count, 8).map_err(IndexError::io(act))?;
        let mut sum = sha1dc::Hasher::new();
        let mut source = reread(self.file, 0..self.end);
        while source.get_ref().limit() > 0 {
            let piece = source.fill_buf().map_err(IndexError::io("read the pack again"))?;
            let bytes = piece.len(); // not 0: the end of the file is an error, see `ReadAt`
            sum.update(piece);
            source.consume(bytes);
        }
        let sum: [u8; 20] = sum.finalize().map_err(|_| IndexError::collision("the pack"))?.into();
        self.file.write_all_at(&sum, self.end).map_err(IndexError::io(act))?;
        Ok(sum)
    }
}

/// Reads a range of the pack's file.
pub(super) fn reread(file: &File, range: Range<u64>) -> BufReader<Take<ReadAt<'_>>> {
    let bytes = range.end - range.start;
    BufReader::with_capacity(bytes.min(PIECE) as usize, ReadAt { file, offset: range.start }.take(bytes))
}

/// Writes to the file, and keeps the length and CRC-32 of what was written.
struct CountingWriter<'f> {
    file: &'f File,
    bytes: u64,
    crc: Crc,
}

impl Write for CountingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        self.crc.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
