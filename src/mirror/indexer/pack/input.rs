//! Reads the pack from the network side. Whatever is consumed is counted, hashed and written to the pack's file.

use std::fs::File;
use std::io::{self, Read, Write as _};

use flate2::Crc;

use super::{IndexError, Source};

/// The size of the buffer.
const PIECE: usize = 256 << 10;

/// A pack that is being received.
pub(super) struct Input<'f, R> {
    from: R,
    file: &'f File,
    buffer: Vec<u8>,
    /// The range of the buffer that was read but not consumed.
    at: usize,
    end: usize,
    /// Bytes read so far, and the most that may be read.
    read: u64,
    limit: u64,
    /// The hash of everything consumed and flushed.
    sum: sha1dc::Hasher,
    /// The checksum of the current entry.
    crc: Crc,
}

impl<'f, R: Read> Input<'f, R> {
    pub(super) fn new(from: R, file: &'f File, limit: u64) -> Self {
        Self {
            from,
            file,
            buffer: vec![0; PIECE],
            at: 0,
            end: 0,
            read: 0,
            limit,
            sum: sha1dc::Hasher::new(),
            crc: Crc::new(),
        }
    }

    /// The offset of the next byte in the pack.
    pub(super) fn offset(&self) -> u64 {
        self.read - (self.end - self.at) as u64
    }

    /// Returns the CRC-32 of what was consumed since the last call, as the index stores it for an entry.
    pub(super) fn take_crc(&mut self) -> u32 {
        let crc = self.crc.sum();
        self.crc.reset();
        crc
    }

    /// Ends the pack: the hash of everything consumed must follow, and then nothing. Returns the hash.
    pub(super) fn finish(mut self) -> Result<[u8; 20], IndexError> {
        self.flush_consumed()?;
        let sum = std::mem::take(&mut self.sum).finalize();
        let sum: [u8; 20] = sum.map_err(|_| IndexError::collision("the pack"))?.into();
        if self.array::<20>()? != sum {
            return Err(IndexError::bad("its checksum does not match its content"));
        }
        if !self.pending()?.is_empty() {
            return Err(IndexError::bad("there is trailing data after its end"));
        }
        Ok(sum)
    }

    /// Hashes and writes the consumed part of the buffer, and moves the rest to its front.
    fn flush_consumed(&mut self) -> Result<(), IndexError> {
        let consumed = &self.buffer[..self.at];
        self.sum.update(consumed);
        self.file.write_all(consumed).map_err(IndexError::io("write the pack"))?;
        self.buffer.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        Ok(())
    }
}

impl<R: Read> Source for Input<'_, R> {
    fn pending(&mut self) -> Result<&[u8], IndexError> {
        if self.at == self.end {
            self.flush_consumed()?;
            self.end = read(&mut self.from, &mut self.buffer).map_err(IndexError::io("read the pack"))?;
            self.read += self.end as u64;
            if self.read > self.limit {
                return Err(IndexError::Bytes);
            }
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn consume(&mut self, bytes: usize) {
        self.crc.update(&self.buffer[self.at..self.at + bytes]);
        self.at += bytes;
    }
}

/// Reads once, and again after an interruption by a signal.
fn read(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
