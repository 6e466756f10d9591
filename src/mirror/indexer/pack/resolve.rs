//! Differences that wait: each base with all that needs it, so that most contents are put together once.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use git2::ObjectType;

use super::contents::Contents;
use super::entry::head;
use super::receive::Received;
use super::{Fault, Line, Object, Read, Source, WHOLE, hasher, id};
use crate::revision::ObjectId;

/// What is read of the file at once.
const PIECE: u64 = 64 << 10;

/// Puts together what waits. Returns all objects and the pack's checksum.
pub(super) fn resolve(
    received: Received,
    file: &File,
    here: &Read<'_>,
) -> Result<(Vec<Object>, [u8; 20]), Fault> {
    let Received { objects, mut by_place, mut by_id, contents, sum, bytes } = received;
    by_place.sort_unstable();
    by_id.sort_unstable();
    let count = objects.len();
    let mut resolver = Resolver { objects, by_place, by_id, contents, file, end: bytes - 20 };
    for place in (0..).take(count) {
        resolver.below(place)?;
    }
    resolver.complete(here)?;
    if resolver.objects.iter().any(|object| object.kind.is_none()) {
        return Err(Fault::bad("a difference is to an object that is neither in the pack nor in the mirror"));
    }
    let sum = if resolver.objects.len() > count { resolver.seal()? } else { sum };
    Ok((resolver.objects, sum))
}

struct Resolver<'f> {
    objects: Vec<Object>,
    by_place: Vec<(u32, u32)>,
    by_id: Vec<(ObjectId, u32)>,
    contents: Contents,
    file: &'f File,
    /// Where in the file the last entry ends.
    end: u64,
}

impl Resolver<'_> {
    /// Puts together all that waits for an object, and for what comes out.
    fn below(&mut self, place: u32) -> Result<(), Fault> {
        let mut stack = vec![place];
        while let Some(place) = stack.pop() {
            let Some(kind) = self.objects[place as usize].kind else { continue };
            let waiting = self.waiting(place);
            if waiting.is_empty() {
                continue;
            }
            let base = self.content(place)?;
            for at in waiting {
                let delta = self.entry(at)?;
                let content = self.contents.applied(&base, &delta)?;
                let mut hasher = hasher(kind, content.len() as u64);
                hasher.update(&content);
                let object = &mut self.objects[at as usize];
                (object.line.id, object.kind, object.base) = (id(hasher)?, Some(kind), place);
                if !self.waiting(at).is_empty() {
                    self.contents.cache.insert(at, Arc::new(content));
                    stack.push(at);
                }
            }
        }
        Ok(())
    }

    /// What waits for an object whose id is known.
    fn waiting(&self, place: u32) -> Vec<u32> {
        let wanted = self.objects[place as usize].line.id;
        let from = self.by_place.partition_point(|(base, _)| *base < place);
        let back = self.by_place[from..].iter().take_while(|(base, _)| *base == place).map(|(_, at)| *at);
        let from = self.by_id.partition_point(|(base, _)| *base < wanted);
        let to = self.by_id[from..].iter().take_while(|(base, _)| *base == wanted).map(|(_, at)| *at);
        back.chain(to).filter(|at| self.objects[*at as usize].kind.is_none()).collect()
    }

    /// The content of an object: from the last one that is kept on the way to it.
    fn content(&mut self, place: u32) -> Result<Arc<Vec<u8>>, Fault> {
        let mut path = Vec::new();
        let mut at = place;
        let mut content = loop {
            if let Some(content) = self.contents.cache.get(at) {
                break content;
            }
            path.push(at);
            at = match self.objects[at as usize].base {
                WHOLE => break Arc::new(Vec::new()),
                base => base,
            };
        };
        while let Some(at) = path.pop() {
            let raw = self.entry(at)?;
            content = Arc::new(match self.objects[at as usize].base {
                WHOLE => raw,
                _ => self.contents.applied(&content, &raw)?,
            });
            self.contents.cache.insert(at, Arc::clone(&content));
        }
        Ok(content)
    }

    /// What the pack holds for an object: itself, or a difference.
    fn entry(&mut self, place: u32) -> Result<Vec<u8>, Fault> {
        let from = self.objects[place as usize].line.offset;
        let to = self.objects.get(place as usize + 1).map_or(self.end, |next| next.line.offset);
        let mut source = Again { file: self.file, from, to, piece: Vec::new(), at: 0 };
        let (_, size) = head(&mut source)?;
        self.contents.inflated(&mut source, size)
    }

    /// Appends what a thin pack left out, and puts together what waits for that.
    fn complete(&mut self, here: &Read<'_>) -> Result<(), Fault> {
        let waits = |objects: &[Object], at: u32| objects[at as usize].kind.is_none();
        let mut missing: Vec<_> =
            self.by_id.iter().filter(|(_, at)| waits(&self.objects, *at)).copied().collect();
        // In the order of the pack, as git does it: a base that is here may come as well, as a difference to another one.
        missing.sort_unstable_by_key(|(_, at)| *at);
        for (base, at) in missing {
            if !waits(&self.objects, at) {
                continue;
            }
            let Some((kind, content)) = here(&base).map_err(Fault::Git)? else { continue };
            let mut hasher = hasher(kind, content.len() as u64);
            hasher.update(&content);
            if id(hasher)? != base {
                let damaged = io::Error::other(format!("object {base}, which is here, is damaged"));
                return Err(Fault::Io("complete the pack", damaged));
            }
            let place = self.objects.len() as u32;
            let line = self.append(base, kind, &content).map_err(Fault::io("complete the pack"))?;
            self.objects.push(Object { line, base: WHOLE, kind: Some(kind) });
            self.contents.cache.insert(place, Arc::new(content));
            self.below(place)?;
        }
        Ok(())
    }

    fn append(&mut self, id: ObjectId, kind: ObjectType, content: &[u8]) -> io::Result<Line> {
        let offset = self.end;
        self.file.seek(SeekFrom::Start(offset))?;
        let mut to = Counted { file: self.file, bytes: 0, crc: Crc::new() };
        let mut rest = content.len() >> 4;
        let mut head = vec![(kind.raw() as u8) << 4 | (content.len() & 0x0f) as u8];
        while rest > 0 {
            if let Some(last) = head.last_mut() {
                *last |= 0x80;
            }
            head.push((rest & 0x7f) as u8);
            rest >>= 7;
        }
        to.write_all(&head)?;
        let mut deflate = ZlibEncoder::new(&mut to, Compression::fast());
        deflate.write_all(content)?;
        deflate.finish()?;
        self.end = offset + to.bytes;
        Ok(Line { id, offset, crc: to.crc.sum() })
    }

    /// Says in the pack how many objects it has now, and what its checksum is.
    fn seal(&mut self) -> Result<[u8; 20], Fault> {
        let failed = Fault::io;
        let act = "complete the pack";
        let count = (self.objects.len() as u32).to_be_bytes();
        self.file.write_all_at(&count, 8).map_err(failed(act))?;
        let mut sum = sha1dc::Hasher::new();
        let mut source = Again { file: self.file, from: 0, to: self.end, piece: Vec::new(), at: 0 };
        loop {
            let piece = source.pending()?;
            let bytes = piece.len();
            if bytes == 0 {
                break;
            }
            sum.update(piece);
            source.consume(bytes);
        }
        let sum: [u8; 20] = sum.finalize().map_err(|_| Fault::collision("the pack"))?.into();
        self.file.write_all_at(&sum, self.end).map_err(failed(act))?;
        Ok(sum)
    }
}

/// A part of the file, read again.
struct Again<'f> {
    file: &'f File,
    from: u64,
    to: u64,
    piece: Vec<u8>,
    at: usize,
}

impl Source for Again<'_> {
    fn pending(&mut self) -> Result<&[u8], Fault> {
        if self.at == self.piece.len() {
            self.piece.resize((self.to - self.from).min(PIECE) as usize, 0);
            self.file.read_exact_at(&mut self.piece, self.from).map_err(Fault::io("read the pack again"))?;
            (self.from, self.at) = (self.from + self.piece.len() as u64, 0);
        }
        Ok(&self.piece[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

/// What is written to the file, with its length and checksum.
struct Counted<'f> {
    file: &'f File,
    bytes: u64,
    crc: Crc,
}

impl Write for Counted<'_> {
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
