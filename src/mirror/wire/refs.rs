//! Parses a remote's advertisement: the protocol version, the capabilities, and those refs that were asked for.
//!
//! Version 2 advertises capabilities only; refs are requested by prefix (gitprotocol-v2(5)). Versions 0 and 1 advertise
//! every ref (gitprotocol-pack(5)); the list is read line by line, and only the refs that were asked for are kept.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::revision::{ObjectId, Ref};

use super::error::FILTER;
use super::framing::{Line, PacketReader, push, push_delimiter, push_flush};
use super::{Error, Tip};

/// What is in progress while refs are resolved, for errors.
pub(super) const REFERENCES: &str = "looking up references";

/// The protocol version, where the versions differ for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// Version 0, and version 1, which differs only in one line that announces it.
    Zero,
    /// Version 2.
    Two,
}

/// The capabilities that this client uses. Others are not kept, because a remote may advertise any number of them.
const KNOWN: [&str; 13] = [
    "allow-any-sha1-in-want",
    "allow-reachable-sha1-in-want",
    "fetch",
    "filter",
    "multi_ack",
    "multi_ack_detailed",
    "no-progress",
    "object-format",
    "ofs-delta",
    "shallow",
    "side-band",
    "side-band-64k",
    "thin-pack",
];

/// The capabilities of a remote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Capabilities {
    pub(super) version: Version,
    /// Values by name. The value of version 2's `fetch` is a list of features.
    offered: BTreeMap<&'static str, String>,
    /// In version 0, the commits at which the history of a remote ends that is itself shallow. In version 2 the
    /// response to a fetch has them.
    pub(super) boundary: Vec<ObjectId>,
}

impl Capabilities {
    fn new(version: Version) -> Self {
        Self { version, offered: BTreeMap::new(), boundary: Vec::new() }
    }

    fn add(&mut self, text: &str) {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        if let Some(name) = KNOWN.into_iter().find(|known| *known == name) {
            self.offered.insert(name, value.to_owned());
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.offered.contains_key(name)
    }

    /// Returns true if a fetch may use the feature: a capability in version 0, a value of `fetch` in version 2.
    pub(super) fn fetch_has(&self, feature: &str) -> bool {
        match self.version {
            Version::Zero => self.has(feature),
            Version::Two => {
                self.offered.get("fetch").is_some_and(|features| features.split(' ').any(|it| it == feature))
            }
        }
    }

    /// Returns true if objects that no ref names can be wanted. A version 2 server accepts any id.
    pub(super) fn allows_any_want(&self) -> bool {
        self.version == Version::Two
            || self.has("allow-any-sha1-in-want")
            || self.has("allow-reachable-sha1-in-want")
    }

    /// Returns true if a fetch may leave objects out, which can be wanted by id afterwards.
    pub(super) fn allows_filter(&self) -> bool {
        self.fetch_has(FILTER) && self.allows_any_want()
    }

    /// Rejects a repository whose object ids are not SHA-1.
    fn check_format(&self, remote: &str) -> Result<(), Error> {
        match self.offered.get("object-format").map(String::as_str) {
            None | Some("sha1") => Ok(()),
            Some(format) => {
                let format = super::text::escaped(format.as_bytes(), 40);
                Err(Error::ObjectFormat { remote: remote.to_owned(), format })
            }
        }
    }
}

/// The full ref names that the refs may stand for.
pub(super) fn candidates(wanted: &[Ref]) -> BTreeSet<String> {
    wanted.iter().flat_map(Ref::candidates).collect()
}

/// The result of resolving some refs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundRefs {
    remote: String,
    /// By full name: the object, and its peeled target if the remote advertised one.
    named: BTreeMap<String, (ObjectId, Option<ObjectId>)>,
    /// True if the remote has reported refs that were not asked for.
    has_others: bool,
}

impl FoundRefs {
    pub(super) fn none(remote: &str) -> Self {
        Self { remote: remote.to_owned(), named: BTreeMap::new(), has_others: false }
    }

    /// The tip of one of the refs that were asked for. A commit id resolves to itself.
    ///
    /// # Errors
    /// [`Error::NoSuchRef`] if the remote does not have it.
    pub fn tip(&self, followed: &Ref) -> Result<Tip, Error> {
        if let Ref::Commit(id) = followed {
            return Ok(Tip { name: None, object: *id, peeled: None });
        }
        let found = followed.candidates().into_iter().find_map(|name| {
            let (object, peeled) = *self.named.get(&name)?;
            Some(Tip { name: Some(name), object, peeled })
        });
        found.ok_or_else(|| Error::NoSuchRef {
            name: followed.to_string(),
            remote: self.remote.clone(),
            has_others: self.has_others,
        })
    }

    /// Returns true if `HEAD` was asked for and is missing, and it is not known yet whether the remote has other refs.
    pub(super) fn may_have_others(&self, wanted: &[Ref]) -> bool {
        wanted.contains(&Ref::Head) && !self.named.contains_key("HEAD") && !self.has_others
    }

    /// Adds whether the remote has other refs, from another answer.
    pub(super) fn note_others(&mut self, answer: &Self) {
        self.has_others |= answer.has_others || !answer.named.is_empty();
    }

    pub(super) fn insert(&mut self, name: &str, object: ObjectId, peeled: Option<ObjectId>) {
        self.named.insert(name.to_owned(), (object, peeled));
    }

    /// Adds a line of a ref advertisement. `NAME^{}` gives the peeled target of the tag on the line before it. Refs
    /// that are not candidates are ignored.
    pub(super) fn take(&mut self, candidates: &BTreeSet<String>, name: &[u8], id: ObjectId) {
        match name.strip_suffix(b"^{}") {
            Some(tag) => {
                if let Some((_, peeled)) =
                    candidate(candidates, tag).and_then(|name| self.named.get_mut(name))
                {
                    *peeled = Some(id);
                }
            }
            None => match candidate(candidates, name) {
                Some(name) => self.insert(name, id, None),
                None => self.has_others = true,
            },
        }
    }
}

/// What the remote sends first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Advertisement {
    pub(super) capabilities: Capabilities,
    /// In version 0, the advertised refs that were asked for; empty in version 2.
    pub(super) found: FoundRefs,
}

/// Reads an advertisement. Over HTTP a line `# service=git-upload-pack` may precede it.
pub(super) async fn read_advertisement(
    reader: &mut PacketReader,
    remote: &str,
    candidates: &BTreeSet<String>,
) -> Result<Advertisement, Error> {
    let mut line = reader.line().await?;
    if matches!(&line, Line::Data(data) if data.starts_with(b"# service=")) {
        // A flush packet should follow; some servers omit it.
        line = reader.line().await?;
        if line == Line::Flush {
            line = reader.line().await?;
        }
    }
    let advertisement = match &line {
        Line::Data(data) if data.trim_ascii_end() == b"version 2" => {
            let capabilities = read_capabilities(reader).await?;
            Advertisement { capabilities, found: FoundRefs::none(remote) }
        }
        Line::Data(data) if data.trim_ascii_end() == b"version 1" => {
            let first = reader.line().await?;
            read_references(reader, remote, first, candidates).await?
        }
        _ => read_references(reader, remote, line, candidates).await?,
    };
    advertisement.capabilities.check_format(remote)?;
    Ok(advertisement)
}

async fn read_capabilities(reader: &mut PacketReader) -> Result<Capabilities, Error> {
    let mut capabilities = Capabilities::new(Version::Two);
    while let Line::Data(data) = reader.line().await? {
        let text = std::str::from_utf8(&data).map_err(|_| reader.unexpected(&data))?;
        capabilities.add(text.trim_end_matches('\n'));
    }
    Ok(capabilities)
}

async fn read_references(
    reader: &mut PacketReader,
    remote: &str,
    mut line: Line,
    candidates: &BTreeSet<String>,
) -> Result<Advertisement, Error> {
    let mut capabilities = Capabilities::new(Version::Zero);
    let mut found = FoundRefs::none(remote);
    let mut first = true;
    while let Line::Data(data) = line {
        let mut reference: &[u8] = data.trim_ascii_end();
        if first && let Some(at) = data.iter().position(|&byte| byte == 0) {
            reference = &data[..at];
            let list = String::from_utf8_lossy(&data[at + 1..]);
            list.split_ascii_whitespace().for_each(|capability| capabilities.add(capability));
            // The lines below could not be parsed: ids of other formats have another length.
            if capabilities.offered.get("object-format").is_some_and(|format| format != "sha1") {
                break;
            }
        }
        first = false;
        // A shallow repository advertises its boundary here. The response to a fetch need not repeat it.
        if let Some(boundary) = reference.strip_prefix(b"shallow ") {
            let id = std::str::from_utf8(boundary).ok().and_then(ObjectId::from_hex);
            capabilities.boundary.push(id.ok_or_else(|| reader.unexpected(&data))?);
        } else {
            let (id, name) = id_and_rest(reference).ok_or_else(|| reader.unexpected(&data))?;
            found.take(candidates, name, id);
        }
        line = reader.line().await?;
    }
    Ok(Advertisement { capabilities, found })
}

/// The candidate with this name, if there is one.
fn candidate<'a>(candidates: &'a BTreeSet<String>, name: &[u8]) -> Option<&'a str> {
    candidates.get(std::str::from_utf8(name).ok()?).map(String::as_str)
}

/// Splits `<40 hex digits> <rest>`.
fn id_and_rest(line: &[u8]) -> Option<(ObjectId, &[u8])> {
    let (id, rest) = line.split_at_checked(40)?;
    Some((ObjectId::from_hex(std::str::from_utf8(id).ok()?)?, rest.strip_prefix(b" ")?))
}

/// The `ls-refs` request of version 2. It has no `agent` and no `object-format`, so that it can be sent without knowing
/// the server's capabilities; servers default to sha1.
pub(super) fn ls_refs(candidates: &BTreeSet<String>) -> Vec<u8> {
    let mut message = Vec::with_capacity(256);
    push(&mut message, "command=ls-refs\n");
    push_delimiter(&mut message);
    push(&mut message, "peel\n");
    for name in candidates {
        push(&mut message, &format!("ref-prefix {name}\n"));
    }
    push_flush(&mut message);
    message
}

/// Reads the response to [`ls_refs`]. A prefix also matches longer names (`main` matches `main2`); only exact matches
/// are kept.
pub(super) async fn read_ls_refs(
    reader: &mut PacketReader,
    remote: &str,
    candidates: &BTreeSet<String>,
) -> Result<FoundRefs, Error> {
    let mut found = FoundRefs::none(remote);
    while let Line::Data(data) = reader.line().await? {
        let (id, rest) = id_and_rest(data.trim_ascii_end()).ok_or_else(|| reader.unexpected(&data))?;
        let mut words = rest.split(|&byte| byte == b' ');
        let Some(name) = words.next().and_then(|name| candidate(candidates, name)) else {
            found.has_others = true;
            continue;
        };
        let peeled = words.find_map(|word| word.strip_prefix(b"peeled:"));
        let peeled = peeled.and_then(|hex| ObjectId::from_hex(std::str::from_utf8(hex).ok()?));
        found.insert(name, id, peeled);
    }
    Ok(found)
}

/// Parses a line such as `shallow <id>`; `word` is what precedes the id, with the space.
pub(super) fn id_after(line: &Bytes, word: &str) -> Option<ObjectId> {
    let hex = line.strip_prefix(word.as_bytes())?.trim_ascii();
    ObjectId::from_hex(std::str::from_utf8(hex).ok()?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::error::Budget;
    use super::super::framing::Incoming;
    use super::super::stderr::Stderr;
    use super::*;

    impl super::super::framing::Duplex for std::io::Cursor<Vec<u8>> {}

    fn reader(bytes: Vec<u8>) -> PacketReader {
        let incoming = Incoming::Stream(Box::new(std::io::Cursor::new(bytes)));
        let mut reader = PacketReader::new("remote", incoming, Duration::from_secs(5), Stderr::default());
        reader.begin("testing", Budget::Refs, 1 << 20);
        reader
    }

    fn message(lines: &[&str]) -> Vec<u8> {
        let mut message = Vec::new();
        lines.iter().for_each(|line| push(&mut message, line));
        push_flush(&mut message);
        message
    }

    const NONE: BTreeSet<String> = BTreeSet::new();
    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[tokio::test]
    async fn a_tag_takes_precedence_over_a_branch_and_a_longer_name_does_not_match() {
        let followed: Ref = "v1".parse().unwrap();
        let candidates = candidates(std::slice::from_ref(&followed));
        let answer = message(&[
            &format!("{A} refs/heads/v1\n"),
            &format!("{A} refs/heads/v1x\n"),
            &format!("{B} refs/tags/v1 peeled:{A}\n"),
        ]);
        let found = read_ls_refs(&mut reader(answer), "remote", &candidates).await.unwrap();
        let tip = found.tip(&followed).unwrap();
        assert_eq!(tip.name.as_deref(), Some("refs/tags/v1"));
        assert_eq!((tip.object.to_string(), tip.peeled.unwrap().to_string()), (B.into(), A.into()));

        let other = message(&[&format!("{A} refs/heads/v1x\n")]);
        let found = read_ls_refs(&mut reader(other), "remote", &candidates).await.unwrap();
        let error = found.tip(&followed).unwrap_err().to_string();
        assert!(error.contains("couldn't find remote ref v1"), "{error}");
    }

    #[tokio::test]
    async fn every_form_of_advertisement_is_read() {
        let v2 = message(&["version 2\n", "agent=x\n", "fetch=shallow filter\n", "object-format=sha1\n"]);
        let mut over_http = message(&["# service=git-upload-pack\n"]);
        over_http.extend_from_slice(&v2);
        for bytes in [v2, over_http] {
            let read = read_advertisement(&mut reader(bytes), "remote", &NONE).await.unwrap();
            assert_eq!(read.capabilities.version, Version::Two);
            assert!(read.capabilities.fetch_has("filter") && !read.capabilities.fetch_has("sideband-all"));
        }
        let v0 = message(&[
            &format!("{A} HEAD\0side-band-64k shallow\n"),
            &format!("{A} refs/heads/main\n"),
            &format!("{B} refs/tags/v1\n"),
            &format!("{A} refs/tags/v1^{{}}\n"),
            &format!("shallow {A}\n"),
        ]);
        let candidates = BTreeSet::from(["refs/tags/v1".to_owned()]);
        let read = read_advertisement(&mut reader(v0), "remote", &candidates).await.unwrap();
        assert!(read.capabilities.fetch_has("shallow") && !read.capabilities.allows_any_want());
        assert_eq!(read.capabilities.boundary, [ObjectId::from_hex(A).unwrap()]);
        assert_eq!(read.found.named.len(), 1);
        assert_eq!(read.found.named["refs/tags/v1"].1.unwrap().to_string(), A);
        let empty = message(&[&format!("{} capabilities^{{}}\0shallow\n", "0".repeat(40))]);
        let read = read_advertisement(&mut reader(empty), "remote", &candidates).await.unwrap();
        assert!(read.found.named.is_empty());
    }

    #[tokio::test]
    async fn sha256_is_refused_by_name_in_either_version() {
        let v2 = message(&["version 2\n", "object-format=sha256\n"]);
        let v0 = message(&[&format!("{} HEAD\0object-format=sha256\n", "a".repeat(64))]);
        for bytes in [v2, v0] {
            let error = read_advertisement(&mut reader(bytes), "remote", &NONE).await.unwrap_err();
            assert!(error.to_string().contains("sha256"), "{error}");
            assert!(!error.is_transient());
        }
    }

    #[tokio::test]
    async fn what_is_not_git_is_shown_escaped_and_short() {
        for bytes in [
            b"<!DOCTYPE html>\x1b[31m<html>".to_vec(),
            format!("{A}\trefs/heads/main\n").into_bytes(), // a dumb server's info/refs: a valid length at first sight
            [b"<html>".as_slice(), &[b'x'; 5000]].concat(),
        ] {
            let error = read_advertisement(&mut reader(bytes), "https://h", &NONE).await.unwrap_err();
            assert!(matches!(error, Error::NotGit { .. }), "{error}");
            let text = error.to_string();
            assert!(text.is_ascii() && !text.contains('\x1b') && text.len() < 400, "{text}");
        }
    }

    #[tokio::test]
    async fn error_lines_truncation_and_exceeded_budgets_are_distinguished() {
        let denied = message(&["ERR access denied\n"]);
        let error = read_advertisement(&mut reader(denied), "remote", &NONE).await.unwrap_err();
        assert_eq!(error.to_string(), "remote reports: access denied");

        let cut = message(&[&format!("{A} refs/heads/v1\n")]);
        let error =
            read_ls_refs(&mut reader(cut[..cut.len() - 6].to_vec()), "remote", &NONE).await.unwrap_err();
        assert!(matches!(error, Error::Cut { .. } | Error::NotGit { .. }), "{error}");

        let mut small = reader(message(&[&format!("{A} HEAD\0x\n")]));
        small.begin("testing", Budget::Refs, 20);
        let error = read_advertisement(&mut small, "remote", &NONE).await.unwrap_err().to_string();
        assert!(error.contains("--max-refs-bytes") && error.contains("20"), "{error}");
    }
}
