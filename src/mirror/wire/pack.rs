//! The fetch request and its response, in protocol versions 0 and 2. There is no negotiation: one request names the few
//! commits that we have and ends with `done`, and the server computes the pack from that.

use std::fmt::Write as _;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::error::Budget;
use super::framing::{Band, Line, PacketReader, push, push_delimiter, push_flush};
use super::refs::{Capabilities, Version, id_after};
use super::{Deepen, Error, PackResponse, Request};

/// The depth that git sends for the complete history (INFINITE_DEPTH in its shallow.h); servers know this value.
const INFINITE_DEPTH: u32 = 0x7fff_ffff;

/// Appends the lines for the boundary, the depth and the filter, which are the same in both versions.
fn push_boundary(message: &mut Vec<u8>, request: &Request, filtered: bool) {
    for id in &request.shallow {
        push(message, &format!("shallow {id}\n"));
    }
    if let Some(depth) = depth(request) {
        push(message, &format!("deepen {depth}\n"));
    }
    if let Some(filter) = request.filter.as_deref().filter(|_| filtered) {
        push(message, &format!("filter {filter}\n"));
    }
}

fn depth(request: &Request) -> Option<u32> {
    match request.depth {
        Deepen::No => None,
        Deepen::To(commits) => Some(commits),
        // Without a boundary there is nothing to deepen, and the request would only cost the server work.
        Deepen::Full => (!request.shallow.is_empty()).then_some(INFINITE_DEPTH),
    }
}

/// A fetch request, ready to be sent, and what is needed to read its response.
#[derive(Debug)]
pub(super) struct EncodedRequest {
    /// The bytes to send.
    pub(super) message: Vec<u8>,
    version: Version,
    filtered: bool,
    side_band: bool,
    /// In version 0 the response has a boundary section only if the request asked to move the boundary.
    boundary_answered: bool,
}

/// Encodes the request. Returns [`Error::Unsupported`] if the server lacks a capability that it needs.
pub(super) fn encode(
    request: &Request,
    offered: &Capabilities,
    remote: &str,
) -> Result<EncodedRequest, Error> {
    let missing = |feature| Err(Error::Unsupported { remote: remote.to_owned(), feature });
    if (!request.shallow.is_empty() || depth(request).is_some()) && !offered.fetch_has("shallow") {
        return missing("shallow");
    }
    if offered.version == Version::Two && !offered.has("fetch") {
        return missing("fetch");
    }
    let filtered = request.filter.is_some() && offered.fetch_has("filter") && offered.allows_any_want();
    if request.only_filtered && !filtered {
        return missing("filter");
    }
    let side_band =
        offered.version == Version::Two || offered.has("side-band-64k") || offered.has("side-band");
    let mut message = Vec::with_capacity(512 + 50 * (request.wants.len() + request.haves.len()));
    match offered.version {
        Version::Two => version_two(&mut message, request, offered, filtered),
        Version::Zero => version_zero(&mut message, request, offered, filtered),
    }
    let boundary_answered = depth(request).is_some();
    Ok(EncodedRequest { message, version: offered.version, filtered, side_band, boundary_answered })
}

fn version_two(message: &mut Vec<u8>, request: &Request, offered: &Capabilities, filtered: bool) {
    push(message, "command=fetch\n");
    if offered.has("object-format") {
        push(message, "object-format=sha1\n");
    }
    push_delimiter(message);
    if request.thin {
        push(message, "thin-pack\n");
    }
    push(message, "no-progress\n");
    push(message, "ofs-delta\n");
    for id in &request.wants {
        push(message, &format!("want {id}\n"));
    }
    push_boundary(message, request, filtered);
    for id in &request.haves {
        push(message, &format!("have {id}\n"));
    }
    push(message, "done\n");
    push_flush(message);
}

fn version_zero(message: &mut Vec<u8>, request: &Request, offered: &Capabilities, filtered: bool) {
    let mut capabilities = String::new();
    let side_band = if offered.has("side-band-64k") { "side-band-64k" } else { "side-band" };
    let wanted = [side_band, "ofs-delta", "no-progress", "shallow", "thin-pack", "filter"];
    for name in wanted.into_iter().filter(|name| offered.has(name)) {
        if (name != "thin-pack" || request.thin) && (name != "filter" || filtered) {
            // Writing to a string doesn't fail.
            let _ = write!(capabilities, " {name}");
        }
    }
    for (at, id) in request.wants.iter().enumerate() {
        let capabilities = if at == 0 { capabilities.as_str() } else { "" };
        push(message, &format!("want {id}{capabilities}\n"));
    }
    push_boundary(message, request, filtered);
    push_flush(message);
    for id in &request.haves {
        push(message, &format!("have {id}\n"));
    }
    push(message, "done\n");
}

impl EncodedRequest {
    /// Reads the response and copies the pack to `pack` as it arrives. `budgets` are the most bytes before the pack,
    /// and of the pack.
    pub(super) async fn read_response(
        &self,
        reader: &mut PacketReader,
        budgets: (u64, u64),
        pack: &mut (dyn AsyncWrite + Unpin + Send),
        remote: &str,
    ) -> Result<PackResponse, Error> {
        let mut response = PackResponse { filtered: self.filtered, ..PackResponse::default() };
        let sink = |source| Error::Sink { remote: remote.to_owned(), source };
        reader.begin("waiting for the pack", Budget::Refs, budgets.0);
        match self.version {
            Version::Two => read_sections(reader, &mut response).await?,
            Version::Zero => self.read_negotiation(reader, &mut response).await?,
        }
        reader.begin("receiving the pack", Budget::Pack, budgets.1);
        loop {
            let bytes = if self.side_band {
                match reader.band().await? {
                    Band::Pack(bytes) => bytes,
                    Band::Progress => continue,
                    Band::End => break,
                }
            } else {
                let Some(bytes) = reader.raw().await? else { break };
                bytes
            };
            pack.write_all(&bytes).await.map_err(sink)?;
            response.bytes += bytes.len() as u64;
        }
        pack.flush().await.map_err(sink)?;
        Ok(response)
    }

    /// Reads what precedes the pack in version 0: the boundary, then one acknowledgment (multi_ack is not requested).
    async fn read_negotiation(
        &self,
        reader: &mut PacketReader,
        response: &mut PackResponse,
    ) -> Result<(), Error> {
        if self.boundary_answered {
            while let Line::Data(line) = reader.line().await? {
                read_boundary(&line, response).ok_or_else(|| reader.unexpected(&line))?;
            }
        }
        loop {
            let line = reader.line().await?;
            let Line::Data(data) = &line else { return Err(reader.cut().await) };
            if !data.starts_with(b"NAK") && !data.starts_with(b"ACK ") {
                reader.put_back(line);
                return Ok(());
            }
            // Without a side-band the unframed pack follows. With one, extra acknowledgments of a server can be
            // skipped.
            if !self.side_band {
                return Ok(());
            }
        }
    }
}

/// Reads what precedes the pack in version 2: named sections, of which `packfile` is the last.
async fn read_sections(reader: &mut PacketReader, response: &mut PackResponse) -> Result<(), Error> {
    loop {
        let Line::Data(name) = reader.line().await? else { return Err(reader.cut().await) };
        match name.trim_ascii_end() {
            b"packfile" => return Ok(()),
            b"shallow-info" => {
                while let Line::Data(line) = reader.line().await? {
                    read_boundary(&line, response).ok_or_else(|| reader.unexpected(&line))?;
                }
            }
            // Not requested, and of no use.
            b"acknowledgments" | b"wanted-refs" | b"packfile-uris" => {
                while let Line::Data(_) = reader.line().await? {}
            }
            other => return Err(reader.unexpected(other)),
        }
    }
}

/// Adds a `shallow` or `unshallow` line to the response. Returns `None` if it is neither.
fn read_boundary(line: &bytes::Bytes, response: &mut PackResponse) -> Option<()> {
    match (id_after(line, "shallow "), id_after(line, "unshallow ")) {
        (Some(id), _) => response.shallow.push(id),
        (_, Some(id)) => response.unshallow.push(id),
        _ => return None,
    }
    Some(())
}
