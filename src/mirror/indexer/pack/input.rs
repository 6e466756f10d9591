//! The pack as it arrives: counted, hashed and written to its file on the way to its reader.

use std::fs::File;
use std::io::{self, Read, Write as _};

use flate2::Crc;

use super::{Fault, Source};

/// What is read at once.
const PIECE: usize = 256 << 10;

/// A pack that is being received.
pub(super) struct Input<'f, R> {
    from: R,
    file: &'f File,
    buffer: Vec<u8>,
    /// Where in the buffer the next byte is, and where those that were read end.
    at: usize,
    end: usize,
    /// Bytes read, and the most that may be.
    read: u64,
    limit: u64,
    sum: sha1dc::Hasher,
    crc: Crc,
}

impl<'f, R: Read> Input<'f, R> {
    pub(super) fn new(from: R, file: &'f File, limit: u64) -> Self {
        let (sum, crc) = (sha1dc::Hasher::new(), Crc::new());
        Self { from, file, buffer: vec![0; PIECE], at: 0, end: 0, read: 0, limit, sum, crc }
    }

    /// How far in the pack the next byte is.
    pub(super) fn offset(&self) -> u64 {
        self.read - (self.end - self.at) as u64
    }

    /// The checksum of what was consumed since the last call, as an index has it of an entry.
    pub(super) fn crc(&mut self) -> u32 {
        let crc = self.crc.sum();
        self.crc.reset();
        crc
    }

    /// After the last entry: the checksum of all that was consumed. It must follow, and nothing after it.
    pub(super) fn finish(mut self) -> Result<[u8; 20], Fault> {
        self.pass_on()?;
        let sum = std::mem::take(&mut self.sum).finalize();
        let sum: [u8; 20] = sum.map_err(|_| Fault::collision("the pack"))?.into();
        if self.array::<20>()? != sum {
            return Err(Fault::bad("its checksum is not that of its content"));
        }
        if !self.pending()?.is_empty() {
            return Err(Fault::bad("there is more data after its end"));
        }
        Ok(sum)
    }

    /// Hashes and writes what was consumed of the buffer.
    fn pass_on(&mut self) -> Result<(), Fault> {
        let consumed = &self.buffer[..self.at];
        self.sum.update(consumed);
        self.file.write_all(consumed).map_err(Fault::io("write the pack"))?;
        self.buffer.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        Ok(())
    }
}

impl<R: Read> Source for Input<'_, R> {
    fn pending(&mut self) -> Result<&[u8], Fault> {
        if self.at == self.end {
            self.pass_on()?;
            self.end = read(&mut self.from, &mut self.buffer).map_err(Fault::io("read the pack"))?;
            self.read += self.end as u64;
            if self.read > self.limit {
                return Err(Fault::Bytes);
            }
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn consume(&mut self, bytes: usize) {
        self.crc.update(&self.buffer[self.at..self.at + bytes]);
        self.at += bytes;
    }
}

fn read(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
