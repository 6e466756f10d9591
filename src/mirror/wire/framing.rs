//! Packet lines (gitprotocol-common(5)) over any stream. Every read has a timeout, and every message a byte budget. A
//! budget is charged with what was parsed, because the beginning of the next message may arrive in the same read.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gix_packetline::{Channel, PacketLineRef, decode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::error::{Budget, Error, Wait};
use super::stderr::{Process, Stderr};
use super::text::{escaped, root_cause};

/// How many bytes of an unexpected response an error shows.
const SHOWN: usize = 80;
/// How many bytes of the remote's own error message an error shows.
const SHOWN_MESSAGE: usize = 400;

/// A bidirectional stream.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    /// Why the stream ended, if it ended with a failure and the stream knows the cause.
    fn failure(&self, _remote: &str) -> Option<Error> {
        None
    }
}

/// The source of the bytes.
pub(super) enum Incoming {
    /// The body of an HTTP response.
    Http(Box<reqwest::Response>),
    /// A bidirectional stream, which [`PacketReader::send`] writes to.
    Stream(Box<dyn Duplex>),
}

/// A packet line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// A line with content, which is never empty.
    Data(Bytes),
    /// A flush packet: the end of a message.
    Flush,
    /// A delimiter packet: the end of a section.
    Delimiter,
}

impl Line {
    /// Its size on the wire, with the length before it.
    fn size(&self) -> usize {
        match self {
            Self::Data(content) => 4 + content.len(),
            Self::Flush | Self::Delimiter => 4,
        }
    }
}

/// A packet of a side-band.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Band {
    /// A chunk of the pack.
    Pack(Bytes),
    /// A progress message, which is ignored.
    Progress,
    /// The end of the pack.
    End,
}

/// Reads packet lines and side-bands.
pub(super) struct PacketReader {
    remote: String,
    /// The local process at the other end, which is killed with the reader.
    _process: Option<Process>,
    incoming: Incoming,
    /// Bytes that were received and not parsed yet.
    buffer: BytesMut,
    /// The limit on waiting for the next bytes.
    idle: Duration,
    /// Which flag limits the current message, for errors.
    budget: Budget,
    /// The most bytes the current message may have, and how many of them are left.
    limit: u64,
    left: u64,
    /// What is in progress, for errors.
    doing: &'static str,
    /// The standard error of a local process.
    stderr: Stderr,
    /// True once a line was read, so that the other side has proved to speak git's protocol.
    read_any: bool,
    /// The next line, if it was parsed already; it is not charged yet.
    peeked: Option<Line>,
}

impl PacketReader {
    pub(super) fn new(remote: &str, incoming: Incoming, idle: Duration, stderr: Stderr) -> Self {
        Self {
            remote: remote.to_owned(),
            _process: None,
            incoming,
            buffer: BytesMut::new(),
            idle,
            budget: Budget::Refs,
            limit: 0,
            left: 0,
            doing: "",
            stderr,
            read_any: false,
            peeked: None,
        }
    }

    /// Kills `process`, which is at the other end, when the reader is dropped.
    pub(super) fn of_process(self, process: Process) -> Self {
        Self { _process: Some(process), ..self }
    }

    /// Starts a new message of at most `limit` bytes. `doing` and `budget` are for errors.
    pub(super) fn begin(&mut self, doing: &'static str, budget: Budget, limit: u64) {
        self.doing = doing;
        self.budget = budget;
        self.limit = limit;
        self.left = limit;
    }

    /// Sends a message on a bidirectional stream; does nothing over HTTP. If the other side closed the stream, no error
    /// is returned here: the next read finds what it sent before, which explains why.
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
                Err(_) => return Err(self.timed_out(doing)),
            }
        }
        Ok(())
    }

    fn timed_out(&self, doing: &'static str) -> Error {
        Error::Timeout { remote: self.remote.clone(), wait: Wait::Idle, after: self.idle, doing }
    }

    /// Charges bytes to the current message.
    fn charge(&mut self, bytes: usize) -> Result<(), Error> {
        self.left = self.left.checked_sub(bytes as u64).ok_or_else(|| Error::TooMuch {
            remote: self.remote.clone(),
            budget: self.budget,
            limit: self.limit,
        })?;
        Ok(())
    }

    /// Reads more bytes into the buffer. Returns false at the end of the stream. The bytes are charged when they are
    /// parsed; until then there are at most those of one read and of an incomplete line.
    async fn read_more(&mut self) -> Result<bool, Error> {
        let (incoming, buffer) = (&mut self.incoming, &mut self.buffer);
        let read = async {
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(match incoming {
                Incoming::Http(response) => {
                    let chunk = response.chunk().await.map_err(|error| root_cause(&error))?;
                    let chunk = chunk.unwrap_or_default();
                    buffer.extend_from_slice(&chunk);
                    chunk.len()
                }
                Incoming::Stream(stream) => {
                    buffer.reserve(64 << 10);
                    stream.read_buf(buffer).await?
                }
            })
        };
        match timeout(self.idle, read).await {
            Ok(Ok(bytes)) => Ok(bytes > 0),
            Ok(Err(source)) => Err(Error::Broken { remote: self.remote.clone(), doing: self.doing, source }),
            Err(_) => Err(self.timed_out(self.doing)),
        }
    }

    /// Parses the next line. Returns `None` if the stream ends between two lines.
    async fn line_or_end(&mut self) -> Result<Option<Line>, Error> {
        loop {
            match decode::streaming(&self.buffer) {
                Ok(decode::Stream::Complete { line, bytes_consumed }) => {
                    let flat = match line {
                        PacketLineRef::Data(_) => None,
                        PacketLineRef::Flush => Some(Line::Flush),
                        // Only a proxy for stateless connections would send ResponseEnd.
                        PacketLineRef::Delimiter | PacketLineRef::ResponseEnd => Some(Line::Delimiter),
                    };
                    self.read_any = true;
                    let whole = self.buffer.split_to(bytes_consumed).freeze();
                    return Ok(Some(flat.unwrap_or_else(|| Line::Data(whole.slice(4..)))));
                }
                Ok(decode::Stream::Incomplete { .. }) => {
                    if self.read_more().await? {
                        continue;
                    }
                    if self.buffer.is_empty() {
                        return Ok(None);
                    }
                    if self.read_any {
                        return Err(self.cut().await);
                    }
                    // The first four bytes happen to be hex digits: an HTML page, or a file of a dumb HTTP server.
                    return Err(self.not_git());
                }
                Err(_) => {
                    while self.buffer.len() < SHOWN && self.read_more().await.unwrap_or(false) {}
                    return Err(self.not_git());
                }
            }
        }
    }

    /// Reads the next line. The end of the stream is an error, and so is an `ERR` packet.
    pub(super) async fn line(&mut self) -> Result<Line, Error> {
        let line = match self.peeked.take() {
            Some(line) => line,
            None => self.parse_line().await?,
        };
        self.charge(line.size())?;
        Ok(line)
    }

    /// The line that [`Self::line`] returns next. It is charged to the message that is current then.
    pub(super) async fn peek(&mut self) -> Result<&Line, Error> {
        let line = match self.peeked.take() {
            Some(line) => line,
            None => self.parse_line().await?,
        };
        Ok(self.peeked.insert(line))
    }

    async fn parse_line(&mut self) -> Result<Line, Error> {
        let Some(line) = self.line_or_end().await? else { return Err(self.cut().await) };
        if let Line::Data(data) = &line
            && let Some(message) = PacketLineRef::Data(data).check_error()
        {
            return Err(self.remote_said(message.0));
        }
        Ok(line)
    }

    /// Reads the next packet of a side-band. A message on the error band becomes [`Error::Remote`].
    pub(super) async fn band(&mut self) -> Result<Band, Error> {
        let Line::Data(data) = self.line().await? else { return Ok(Band::End) };
        match data.first() {
            Some(&band) if band == Channel::Data as u8 => Ok(Band::Pack(data.slice(1..))),
            Some(&band) if band == Channel::Progress as u8 => Ok(Band::Progress),
            Some(&band) if band == Channel::Error as u8 => Err(self.remote_said(&data[1..])),
            _ => Err(self.unexpected(&data)),
        }
    }

    /// Reads bytes without framing. Returns `None` at the end. A line that was peeked at must have been read before.
    pub(super) async fn raw(&mut self) -> Result<Option<Bytes>, Error> {
        debug_assert!(self.peeked.is_none(), "a line would be lost");
        if self.buffer.is_empty() && !self.read_more().await? {
            return Ok(None);
        }
        self.charge(self.buffer.len())?;
        Ok(Some(self.buffer.split().freeze()))
    }

    /// Reads the end of an HTTP body after its last line, so that the kept-alive connection can be reused. The end
    /// usually arrives together with that line; if it does not come within 500 ms, the connection is given up.
    pub(super) async fn drain(&mut self) {
        if matches!(self.incoming, Incoming::Http(_)) && self.buffer.is_empty() {
            let _ = timeout(Duration::from_millis(500), self.read_more()).await;
        }
    }

    /// The error for a line that is not valid in git's protocol.
    pub(super) fn unexpected(&self, line: &[u8]) -> Error {
        Error::NotGit { remote: self.remote.clone(), said: escaped(line, SHOWN) }
    }

    fn not_git(&self) -> Error {
        self.unexpected(&self.buffer)
    }

    /// The error for a truncated response. A local process has written the reason to its standard error, shortly before
    /// or after it closed the stream.
    pub(super) async fn cut(&mut self) -> Error {
        if let Incoming::Stream(stream) = &self.incoming
            && let Some(failure) = stream.failure(&self.remote)
        {
            return failure;
        }
        let said = self.stderr.settled().await;
        Error::Cut { remote: self.remote.clone(), doing: self.doing, said: message_line(&said) }
    }

    fn remote_said(&self, message: &[u8]) -> Error {
        Error::Remote { remote: self.remote.clone(), said: message_line(message) }
    }
}

/// A message of the other side as one short, escaped line. git ends some of its messages with a NUL.
fn message_line(message: &[u8]) -> String {
    let end =
        message.iter().rposition(|byte| *byte != 0 && !byte.is_ascii_whitespace()).map_or(0, |last| last + 1);
    escaped(message[..end].trim_ascii_start(), SHOWN_MESSAGE)
}

/// Appends a line with content. All our lines are far shorter than the limit of 65516 bytes.
pub(super) fn push(message: &mut Vec<u8>, content: &str) {
    debug_assert!(content.len() < 65516, "our lines never come near the limit");
    message.extend_from_slice(format!("{:04x}", content.len() + 4).as_bytes());
    message.extend_from_slice(content.as_bytes());
}

/// Appends a flush packet, which ends a message.
pub(super) fn push_flush(message: &mut Vec<u8>) {
    message.extend_from_slice(b"0000");
}

/// Appends a delimiter packet, which ends a section.
pub(super) fn push_delimiter(message: &mut Vec<u8>) {
    message.extend_from_slice(b"0001");
}
