//! Packet lines over any stream, with a deadline for every read and a budget for all of them.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gix_packetline::{Channel, PacketLineRef, decode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::error::{Budget, Error, Wait};
use super::stderr::Stderr;
use super::text::{escaped, root_cause};

/// How much of an odd answer an error shows.
const SHOWN: usize = 80;
/// How much of a remote's own error message is shown.
const SHOWN_MESSAGE: usize = 400;

/// A two-way stream.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    /// Why it ended, where the stream itself knows.
    fn failure(&self, _remote: &str) -> Option<Error> {
        None
    }
}

/// Where bytes come from.
pub(super) enum Incoming {
    /// The body of an answer over HTTP.
    Http(Box<reqwest::Response>),
    /// A two-way stream, which [`Reader::send`] writes to.
    Stream(Box<dyn Duplex>),
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Http(_) => "Http",
            Self::Stream(_) => "Stream",
        })
    }
}

/// One packet line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// With content, which is never empty.
    Data(Bytes),
    /// The end of a message.
    Flush,
    /// The end of a section.
    Delimiter,
}

/// What arrived on a side-band.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Band {
    /// A piece of pack.
    Pack(Bytes),
    /// Something to ignore.
    Progress,
    /// The end of the pack.
    End,
}

/// Reads packet lines.
#[derive(Debug)]
pub(super) struct PacketReader {
    remote: String,
    incoming: Incoming,
    buffer: BytesMut,
    idle: Duration,
    budget: Budget,
    left: u64,
    limit: u64,
    doing: &'static str,
    said: Stderr,
    read_any: bool,
    put_back: Option<Line>,
}

impl PacketReader {
    pub(super) fn new(remote: &str, incoming: Incoming, idle: Duration, said: Stderr) -> Self {
        Self {
            remote: remote.to_owned(),
            incoming,
            buffer: BytesMut::new(),
            idle,
            budget: Budget::Refs,
            left: 0,
            limit: 0,
            doing: "",
            said,
            read_any: false,
            put_back: None,
        }
    }

    /// Begins another message: what it is, for errors, and how long it may be.
    pub(super) fn begin(&mut self, doing: &'static str, budget: Budget, limit: u64) {
        (self.doing, self.budget, self.limit, self.left) = (doing, budget, limit, limit);
    }

    /// Sends a message on a two-way stream. A stream that the other side closed is left to reading: what it said
    /// before says why.
    pub(super) async fn send(&mut self, message: &[u8], doing: &'static str) -> Result<(), Error> {
        let Incoming::Stream(stream) = &mut self.incoming else { return Ok(()) };
        for piece in message.chunks(64 << 10) {
            let sent = async {
                stream.write_all(piece).await?;
                stream.flush().await
            };
            match timeout(self.idle, sent).await {
                Ok(Ok(())) => {}
                Ok(Err(_closed)) => break,
                Err(_) => {
                    let remote = self.remote.clone();
                    return Err(Error::Timeout { remote, wait: Wait::Idle, after: self.idle, doing });
                }
            }
        }
        Ok(())
    }

    /// The next bytes; `false` at the end of the stream.
    async fn more(&mut self) -> Result<bool, Error> {
        let broken = |source: Box<dyn std::error::Error + Send + Sync>| Error::Broken {
            remote: self.remote.clone(),
            doing: self.doing,
            source,
        };
        let taken = match &mut self.incoming {
            Incoming::Http(response) => match timeout(self.idle, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    self.buffer.extend_from_slice(&chunk);
                    Ok(chunk.len())
                }
                Ok(Ok(None)) => Ok(0),
                Ok(Err(error)) => return Err(broken(root_cause(&error))),
                Err(elapsed) => Err(elapsed),
            },
            Incoming::Stream(stream) => {
                self.buffer.reserve(64 << 10);
                match timeout(self.idle, stream.read_buf(&mut self.buffer)).await {
                    Ok(Ok(taken)) => Ok(taken),
                    Ok(Err(error)) => return Err(broken(Box::new(error))),
                    Err(elapsed) => Err(elapsed),
                }
            }
        };
        let Ok(taken) = taken else {
            return Err(Error::Timeout {
                remote: self.remote.clone(),
                wait: Wait::Idle,
                after: self.idle,
                doing: self.doing,
            });
        };
        self.left = self.left.checked_sub(taken as u64).ok_or_else(|| Error::TooMuch {
            remote: self.remote.clone(),
            budget: self.budget,
            limit: self.limit,
        })?;
        Ok(taken > 0)
    }

    /// The next line; `None` where the stream ends between two lines.
    async fn line_or_end(&mut self) -> Result<Option<Line>, Error> {
        if let Some(line) = self.put_back.take() {
            return Ok(Some(line));
        }
        loop {
            match decode::streaming(&self.buffer) {
                Ok(decode::Stream::Complete { line, bytes_consumed }) => {
                    let flat = match line {
                        PacketLineRef::Data(_) => None,
                        PacketLineRef::Flush => Some(Line::Flush),
                        // We speak to no proxy that would send the third kind, the end of a stateless answer.
                        PacketLineRef::Delimiter | PacketLineRef::ResponseEnd => Some(Line::Delimiter),
                    };
                    self.read_any = true;
                    let whole = self.buffer.split_to(bytes_consumed).freeze();
                    return Ok(Some(flat.unwrap_or_else(|| Line::Data(whole.slice(4..)))));
                }
                Ok(decode::Stream::Incomplete { .. }) => {
                    if self.more().await? {
                        continue;
                    }
                    return match (self.buffer.is_empty(), self.read_any) {
                        (true, _) => Ok(None),
                        // Four letters that look like a length: a page, or the file of a dumb server.
                        (false, false) => Err(self.not_git()),
                        (false, true) => Err(self.cut().await),
                    };
                }
                Err(_) => {
                    while self.buffer.len() < SHOWN && self.more().await.unwrap_or(false) {}
                    return Err(self.not_git());
                }
            }
        }
    }

    /// The next line, where there must be one; a remote's error line becomes our error.
    pub(super) async fn line(&mut self) -> Result<Line, Error> {
        let Some(line) = self.line_or_end().await? else { return Err(self.cut().await) };
        if let Line::Data(data) = &line
            && let Some(message) = PacketLineRef::Data(data).check_error()
        {
            return Err(self.remote_said(message.0));
        }
        Ok(line)
    }

    /// Gives a line back, to be read again.
    pub(super) fn put_back(&mut self, line: Line) {
        self.put_back = Some(line);
    }

    /// The next line of a side-band.
    pub(super) async fn band(&mut self) -> Result<Band, Error> {
        let Line::Data(data) = self.line().await? else { return Ok(Band::End) };
        match data.first() {
            Some(&band) if band == Channel::Data as u8 => Ok(Band::Pack(data.slice(1..))),
            Some(&band) if band == Channel::Progress as u8 => Ok(Band::Progress),
            Some(&band) if band == Channel::Error as u8 => Err(self.remote_said(&data[1..])),
            _ => Err(self.odd(&data)),
        }
    }

    /// Bytes without framing; `None` at the end.
    pub(super) async fn raw(&mut self) -> Result<Option<Bytes>, Error> {
        if self.buffer.is_empty() && !self.more().await? {
            return Ok(None);
        }
        Ok(Some(self.buffer.split().freeze()))
    }

    /// Reads the end that follows the last line over HTTP, so that the kept connection can be used again. It is on
    /// its way with that line; a server that dawdles, or goes on, loses the connection instead.
    pub(super) async fn drain(&mut self) {
        if matches!(self.incoming, Incoming::Http(_)) && self.buffer.is_empty() {
            let _ = timeout(Duration::from_millis(500), self.more()).await;
        }
    }

    /// What came is no line of git's.
    pub(super) fn odd(&self, line: &[u8]) -> Error {
        Error::NotGit { remote: self.remote.clone(), said: escaped(line, SHOWN) }
    }

    fn not_git(&self) -> Error {
        self.odd(&self.buffer)
    }

    /// The answer ended early. A local process has said why on its standard error, a moment before or after.
    pub(super) async fn cut(&mut self) -> Error {
        if let Incoming::Stream(stream) = &self.incoming
            && let Some(failure) = stream.failure(&self.remote)
        {
            return failure;
        }
        let said = self.said.settled().await;
        Error::Cut { remote: self.remote.clone(), doing: self.doing, said: words(&said) }
    }

    fn remote_said(&self, message: &[u8]) -> Error {
        Error::Remote { remote: self.remote.clone(), said: words(message) }
    }
}

/// What the other side said, as one short line. git ends some of its messages with a NUL.
fn words(message: &[u8]) -> String {
    let end =
        message.iter().rposition(|byte| *byte != 0 && !byte.is_ascii_whitespace()).map_or(0, |last| last + 1);
    escaped(message[..end].trim_ascii_start(), SHOWN_MESSAGE)
}

/// Appends a line with content. Ours are all far below the 65516 bytes that a line can hold.
pub(super) fn push(message: &mut Vec<u8>, content: &str) {
    debug_assert!(content.len() < 65516, "our lines never come near the limit");
    message.extend_from_slice(format!("{:04x}", content.len() + 4).as_bytes());
    message.extend_from_slice(content.as_bytes());
}

/// Appends the end of a message.
pub(super) fn push_flush(message: &mut Vec<u8>) {
    message.extend_from_slice(b"0000");
}

/// Appends the end of a section.
pub(super) fn push_delimiter(message: &mut Vec<u8>) {
    message.extend_from_slice(b"0001");
}
