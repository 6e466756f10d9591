//! Writes a pack (gitformat-pack(5)) to a channel. Every object is deflated whole; there are no deltas.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use git2::ObjectType;
use tokio::sync::mpsc::Sender;

use crate::mirror::indexer::header;

/// The size of the chunks that are sent to the channel.
const PIECE: usize = 64 << 10;

/// Writes one pack. Its methods return [`ControlFlow::Break`] once the receiver is closed.
pub(super) struct Writer<'s> {
    out: Out<'s>,
}

/// Buffers and hashes what is written.
struct Out<'s> {
    pieces: &'s Sender<Bytes>,
    /// The next chunk.
    piece: Vec<u8>,
    /// The checksum of everything written.
    sum: Context,
}

impl<'s> Writer<'s> {
    /// Starts a pack of so many objects.
    pub(super) fn start(pieces: &'s Sender<Bytes>, objects: u32) -> Result<Self, git2::Error> {
        let sum = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        let mut out = Out { pieces, piece: Vec::with_capacity(PIECE), sum };
        let begun = out.write_all(b"PACK\0\0\0\x02").and_then(|()| out.write_all(&objects.to_be_bytes()));
        begun.map_err(failed)?;
        Ok(Self { out })
    }

    /// Adds an object.
    pub(super) fn object(
        &mut self,
        kind: ObjectType,
        content: &[u8],
    ) -> Result<ControlFlow<()>, git2::Error> {
        self.stream(kind, content.len() as u64, &mut &*content)
    }

    /// Adds an object from a reader. If it does not have the stated size, this fails, and the pack is unusable.
    pub(super) fn stream(
        &mut self,
        kind: ObjectType,
        size: u64,
        content: &mut dyn Read,
    ) -> Result<ControlFlow<()>, git2::Error> {
        let mut added = || {
            self.out.write_all(&header(kind, size))?;
            let mut deflated = ZlibEncoder::new(&mut self.out, Compression::default());
            if io::copy(content, &mut deflated)? != size {
                return Err(io::Error::other("an object has not the size it should have"));
            }
            deflated.finish()?;
            Ok(())
        };
        flow(added())
    }

    /// Appends the checksum, which ends the pack.
    pub(super) fn finish(mut self) -> Result<(), git2::Error> {
        let sum = self.out.sum.clone().finish();
        let ended = self.out.write_all(sum.as_ref()).and_then(|()| self.out.flush());
        flow(ended).map(|_| ())
    }
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sum.update(bytes);
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.pieces.blocking_send(piece.into()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A broken pipe means that the receiver is closed, which is not an error.
fn flow(done: io::Result<()>) -> Result<ControlFlow<()>, git2::Error> {
    match done {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(failed(error)),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn failed(error: io::Error) -> git2::Error {
    git2::Error::from_str(&error.to_string())
}
