//! The fetch request and its response, in protocol versions 0 and 2. There is no negotiation: one request names the few
//! commits that we have and ends with `done`, and the server computes the pack from that.

use std::fmt::Write as _;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::revision::ObjectId;

use super::error::{ANY_WANT, Budget, FILTER};
use super::framing::{Band, Line, PacketReader, push, push_delimiter, push_flush};
use super::refs::{Capabilities, Version, id_after};
use super::{Deepen, Error, Options, PackResponse, Request};

/// The depth that git sends for the complete history (INFINITE_DEPTH in its shallow.h); servers know this value.
const INFINITE_DEPTH: u32 = 0x7fff_ffff;

/// The most bytes that are read of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseLimits {
    /// Of what precedes the pack: the boundary and acknowledgments.
    pub(super) before_pack: u64,
    /// Of the pack.
    pub(super) pack: u64,
}

impl From<&Options> for ResponseLimits {
    fn from(options: &Options) -> Self {
        Self { before_pack: options.max_refs_bytes, pack: options.max_fetch_bytes }
    }
}

/// Appends the lines for the boundary, the depth and the filter, which are the same in both versions.
fn push_shallow_and_filter(message: &mut Vec<u8>, request: &Request, filtered: bool) {
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
    /// In version 0 the response has a `shallow` section only if the request asked to move the boundary.
    expects_shallow_section: bool,
    /// Where the remote's own history ends, as far as it is advertised. A response leaves out what the request stated.
    boundary: Vec<ObjectId>,
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
    let filtered = request.filter.is_some() && offered.allows_filter();
    if request.only_filtered && !filtered {
        return missing(if offered.fetch_has(FILTER) { ANY_WANT } else { FILTER });
    }
    let side_band =
        offered.version == Version::Two || offered.has("side-band-64k") || offered.has("side-band");
    let mut message = Vec::with_capacity(512 + 50 * (request.wants.len() + request.haves.len()));
    match offered.version {
        Version::Two => version_two(&mut message, request, offered, filtered),
        Version::Zero => version_zero(&mut message, request, offered, filtered),
    }
    let expects_shallow_section = depth(request).is_some();
    let boundary = offered.boundary.clone();
    let version = offered.version;
    Ok(EncodedRequest { message, version, filtered, side_band, expects_shallow_section, boundary })
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
    push_shallow_and_filter(message, request, filtered);
    for id in &request.haves {
        push(message, &format!("have {id}\n"));
    }
    push(message, "done\n");
    push_flush(message);
}

fn version_zero(message: &mut Vec<u8>, request: &Request, offered: &Capabilities, filtered: bool) {
    let mut capabilities = String::new();
    let side_band = if offered.has("side-band-64k") { "side-band-64k" } else { "side-band" };
    // Azure DevOps refuses clients without it. It allows any number of acknowledgments, and without a side-band it is
    // not certain where the last one ends and the pack begins.
    let multi_ack = if offered.has("multi_ack_detailed") { "multi_ack_detailed" } else { "multi_ack" };
    let wanted = [
        (multi_ack, offered.has(side_band)),
        (side_band, true),
        ("ofs-delta", true),
        ("no-progress", true),
        ("shallow", true),
        ("thin-pack", request.thin),
        ("filter", filtered),
    ];
    for (name, _) in wanted.into_iter().filter(|(name, useful)| *useful && offered.has(name)) {
        // Writing to a string doesn't fail.
        let _ = write!(capabilities, " {name}");
    }
    for (at, id) in request.wants.iter().enumerate() {
        let capabilities = if at == 0 { capabilities.as_str() } else { "" };
        push(message, &format!("want {id}{capabilities}\n"));
    }
    push_shallow_and_filter(message, request, filtered);
    push_flush(message);
    for id in &request.haves {
        push(message, &format!("have {id}\n"));
    }
    push(message, "done\n");
}

impl EncodedRequest {
    /// Reads the response and copies the pack to `pack` as it arrives.
    pub(super) async fn read_response(
        &self,
        reader: &mut PacketReader,
        limits: ResponseLimits,
        pack: &mut (dyn AsyncWrite + Unpin + Send),
        remote: &str,
    ) -> Result<PackResponse, Error> {
        let shallow = self.boundary.clone();
        let mut response = PackResponse { filtered: self.filtered, shallow, ..PackResponse::default() };
        let sink = |source| Error::Sink { remote: remote.to_owned(), source };
        reader.begin("waiting for the pack", Budget::Refs, limits.before_pack);
        match self.version {
            Version::Two => read_sections(reader, &mut response).await?,
            Version::Zero => self.read_negotiation(reader, &mut response).await?,
        }
        reader.begin("receiving the pack", Budget::Pack, limits.pack);
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

    /// Reads what precedes the pack in version 0: the boundary, then acknowledgments.
    async fn read_negotiation(
        &self,
        reader: &mut PacketReader,
        response: &mut PackResponse,
    ) -> Result<(), Error> {
        if self.expects_shallow_section {
            read_shallow_section(reader, response).await?;
        }
        if !self.side_band {
            // The pack follows the one acknowledgment (multi_ack was not requested) without framing.
            return match reader.line().await? {
                line if is_acknowledgment(&line) => Ok(()),
                Line::Data(other) => Err(reader.unexpected(&other)),
                Line::Flush | Line::Delimiter => Err(reader.cut().await),
            };
        }
        // With multi_ack there is one for each `have`, and more. After `done` none of them is of use.
        while is_acknowledgment(reader.peek().await?) {
            reader.line().await?;
        }
        match reader.peek().await? {
            Line::Data(_) => Ok(()),
            Line::Flush | Line::Delimiter => Err(reader.cut().await),
        }
    }
}

fn is_acknowledgment(line: &Line) -> bool {
    matches!(line, Line::Data(data) if data.starts_with(b"NAK") || data.starts_with(b"ACK "))
}

/// Reads what precedes the pack in version 2: named sections, of which `packfile` is the last.
async fn read_sections(reader: &mut PacketReader, response: &mut PackResponse) -> Result<(), Error> {
    loop {
        let Line::Data(name) = reader.line().await? else { return Err(reader.cut().await) };
        match name.trim_ascii_end() {
            b"packfile" => return Ok(()),
            b"shallow-info" => read_shallow_section(reader, response).await?,
            // Not requested, and of no use.
            b"acknowledgments" | b"wanted-refs" | b"packfile-uris" => {
                while let Line::Data(_) = reader.line().await? {}
            }
            other => return Err(reader.unexpected(other)),
        }
    }
}

/// Reads `shallow` and `unshallow` lines up to the end of their section.
async fn read_shallow_section(reader: &mut PacketReader, response: &mut PackResponse) -> Result<(), Error> {
    while let Line::Data(line) = reader.line().await? {
        match (id_after(&line, "shallow "), id_after(&line, "unshallow ")) {
            (Some(id), _) => response.shallow.push(id),
            (_, Some(id)) => response.unshallow.push(id),
            _ => return Err(reader.unexpected(&line)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::super::framing::Incoming;
    use super::super::refs::read_advertisement;
    use super::super::stderr::Stderr;
    use super::*;

    fn reader(bytes: &[u8]) -> PacketReader {
        let incoming = Incoming::Stream(Box::new(std::io::Cursor::new(bytes.to_vec())));
        let mut reader = PacketReader::new("remote", incoming, Duration::from_secs(5), Stderr::default());
        reader.begin("testing", Budget::Refs, 1 << 20);
        reader
    }

    async fn encoded(lines: &[&str], request: &Request) -> Result<EncodedRequest, Error> {
        let mut advertised = Vec::new();
        lines.iter().for_each(|line| push(&mut advertised, line));
        push_flush(&mut advertised);
        let advertisement = read_advertisement(&mut reader(&advertised), "remote", &BTreeSet::new()).await;
        encode(request, &advertisement.unwrap().capabilities, "remote")
    }

    fn version_zero_with(capabilities: &str) -> String {
        format!("{} HEAD\0{capabilities}\n", "0".repeat(40))
    }

    /// A response to `lines` of an advertisement, all of which arrives in one read.
    async fn respond(lines: &[&str], bytes: &[u8], limits: ResponseLimits) -> Result<Vec<u8>, Error> {
        let request = Request { wants: vec![ObjectId([1; 20])], ..Request::default() };
        let encoded = encoded(lines, &request).await.unwrap();
        let mut pack = Vec::new();
        encoded.read_response(&mut reader(bytes), limits, &mut pack, "remote").await?;
        Ok(pack)
    }

    #[tokio::test]
    async fn each_part_of_a_response_is_charged_to_its_own_limit_however_it_arrives() {
        let content = [b'x'; 5_000];
        let banded = format!("{:04x}\u{1}{}0000", 4 + 1 + content.len(), "x".repeat(content.len()));
        let two = ["version 2\n".to_owned(), "fetch=shallow filter\n".to_owned()];
        let banded_zero = [version_zero_with("side-band-64k")];
        let plain_zero = [version_zero_with("ofs-delta")];
        let cases: [(&[String], Vec<u8>); 3] = [
            (&two, format!("000dpackfile\n{banded}").into_bytes()),
            (&banded_zero, format!("0008NAK\n{banded}").into_bytes()),
            (&plain_zero, [b"0008NAK\n".as_slice(), &content].concat()),
        ];
        for (lines, bytes) in cases {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let limits = |before_pack, pack| ResponseLimits { before_pack, pack };
            let pack = respond(&lines, &bytes, limits(13, 5_009)).await.unwrap();
            assert_eq!(pack, content, "{lines:?}");
            for (limits, flag) in
                [(limits(13, 4_999), "--max-fetch-bytes"), (limits(7, 5_009), "--max-refs-bytes")]
            {
                let error = respond(&lines, &bytes, limits).await.unwrap_err().to_string();
                assert!(error.contains(flag), "{lines:?}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn without_a_side_band_only_an_acknowledgment_precedes_the_pack() {
        let limits = ResponseLimits { before_pack: 1_000, pack: 1_000 };
        let lines = [version_zero_with("ofs-delta")];
        let error = respond(&[&lines[0]], b"000ahello\nPACK", limits).await.unwrap_err();
        assert!(matches!(&error, Error::NotGit { said, .. } if said.contains("hello")), "{error}");
        let lines = [version_zero_with("side-band-64k")];
        let twice = b"0008NAK\n0008NAK\n0009\x01PACK0000";
        assert_eq!(respond(&[&lines[0]], twice, limits).await.unwrap(), b"PACK");
    }

    #[tokio::test]
    async fn many_acknowledgments_are_asked_for_and_skipped_only_with_a_side_band() {
        let held = ObjectId([2; 20]);
        let request =
            Request { wants: vec![ObjectId([1; 20])], haves: vec![held], thin: true, ..Request::default() };
        let limits = ResponseLimits { before_pack: 1_000, pack: 1_000 };
        for (offered, asked) in [
            (
                "multi_ack thin-pack side-band-64k multi_ack_detailed",
                " multi_ack_detailed side-band-64k thin-pack",
            ),
            ("multi_ack side-band", " multi_ack side-band"),
            ("multi_ack multi_ack_detailed", ""),
        ] {
            let encoded = encoded(&[&version_zero_with(offered)], &request).await.unwrap();
            let sent = String::from_utf8(encoded.message.clone()).unwrap();
            let want = format!("want {}{asked}\n", request.wants[0]);
            assert!(sent[4..].starts_with(&want), "{offered}: {sent}");
            if asked.is_empty() {
                continue;
            }
            let mut answer = Vec::new();
            for words in [" common", " ready", " continue", ""] {
                push(&mut answer, &format!("ACK {held}{words}\n"));
            }
            push(&mut answer, "\u{1}PACK");
            push_flush(&mut answer);
            let mut pack = Vec::new();
            encoded.read_response(&mut reader(&answer), limits, &mut pack, "remote").await.unwrap();
            assert_eq!(pack, b"PACK", "{offered}");
        }
    }

    #[tokio::test]
    async fn the_capability_that_is_missing_is_named() {
        let filtered = Request {
            wants: vec![ObjectId([1; 20])],
            filter: Some("tree:0".to_owned()),
            only_filtered: true,
            ..Request::default()
        };
        let shallow = Request { depth: Deepen::To(1), ..Request::default() };
        for (line, request, missing) in [
            ("version 2\n".to_owned(), &filtered, "`fetch`"),
            (version_zero_with("side-band"), &filtered, "`filter`"),
            (version_zero_with("allow-any-sha1-in-want"), &filtered, "`filter`"),
            (version_zero_with("filter"), &filtered, "`allow-any-sha1-in-want`"),
            (version_zero_with("filter"), &shallow, "`shallow`"),
        ] {
            let error = encoded(&[&line], request).await.unwrap_err().to_string();
            assert!(error.ends_with(missing), "{line:?}: {error}");
        }
        assert!(encoded(&["version 2\n", "fetch=filter\n"], &filtered).await.is_ok());
    }
}
