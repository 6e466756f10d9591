//! What a remote answers, and the texts that say where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Duplex, Incoming, PacketReader};
use super::refs::{self, Version};
use super::remote::{self, Remote};
use super::stderr::Stderr;
use super::{Budget, Deepen, Error, Request, cookies as cookie_file, pack};
use crate::fuzz::{Input, SECRET, Target, at_once};
use crate::human::one_line;
use crate::revision::{ObjectId, Ref};
use crate::secret::redact;

pub(crate) const TARGETS: &[Target] = &[
    Target::new("advertisements", advertisements),
    Target::new("ref_lists", ref_lists),
    Target::new("fetch_answers", fetch_answers),
    Target::new("cookies", cookies),
    Target::new("remotes", remotes),
];

/// A connection on which so many bytes come at once.
struct Pieces {
    data: Vec<u8>,
    at: Arc<AtomicUsize>,
    step: usize,
}

impl AsyncRead for Pieces {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let at = self.at.load(Ordering::Relaxed);
        let count = self.step.min(into.remaining()).min(self.data.len() - at);
        into.put_slice(&self.data[at..at + count]);
        self.at.store(at + count, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(data.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Duplex for Pieces {}

/// Reads the same bytes as they come in different pieces: what is read is the same, no more is read than may be, and
/// what is wrong is one short line that no terminal obeys.
fn read_in_pieces<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    limit: u64,
    read: impl AsyncFn(&mut PacketReader) -> Result<T, Error>,
) -> Option<T> {
    let results = [usize::MAX, 1 + data.len() % 7].map(|step| {
        let at = Arc::new(AtomicUsize::new(0));
        let pieces = Pieces { data: data.to_vec(), at: Arc::clone(&at), step };
        let incoming = Incoming::Stream(Box::new(pieces));
        let mut reader = PacketReader::new("remote", incoming, Duration::from_secs(5), Stderr::default());
        reader.begin("testing", Budget::Refs, limit);
        let result = at_once(read(&mut reader));
        assert!(at.load(Ordering::Relaxed) as u64 <= limit + (128 << 10), "more was read than may be");
        if let Err(error) = &result {
            let line = one_line(error);
            assert!(
                line.len() < 4_000 && line.is_ascii() && !line.bytes().any(|byte| byte < b' '),
                "{line:?}"
            );
        }
        result.map_err(|error| std::mem::discriminant(&error))
    });
    let [whole, pieces] = results.map(Result::ok);
    assert_eq!(whole, pieces, "in pieces");
    whole
}

fn asked() -> [Ref; 2] {
    ["HEAD", "v1"].map(|text| text.parse().unwrap())
}

/// The budget, and what is read under it.
fn budgeted(data: &[u8]) -> (u64, &[u8]) {
    match data.split_first() {
        Some((255, rest)) => (u64::from(rest.first().copied().unwrap_or_default()), rest),
        Some((_, rest)) => (1 << 20, rest),
        None => (0, data),
    }
}

fn advertisements(data: &[u8]) {
    let candidates = refs::candidates(&asked());
    let (limit, data) = budgeted(data);
    let read = read_in_pieces(data, limit, async |reader| {
        refs::read_advertisement(reader, "remote", &candidates).await
    });
    let Some(read) = read else { return };
    for asked in asked() {
        if let Ok(tip) = read.found.tip(&asked) {
            assert!(asked.candidates().contains(tip.name.as_ref().unwrap()));
            assert_eq!(read.capabilities.version, Version::Zero, "version 2 advertises no refs");
            let hex = tip.object.to_string();
            let text = String::from_utf8_lossy(data).to_ascii_lowercase();
            assert!(text.contains(&hex), "{hex} was not said");
        }
    }
}

/// Packet lines up to the first flush, as gitprotocol-common(5) has them; nothing where they are not well-formed.
fn lines(mut data: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let mut lines = Vec::new();
    loop {
        let (length, rest) = data.split_at_checked(4)?;
        let length = std::str::from_utf8(length)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        match usize::from_str_radix(length, 16).unwrap() {
            0 => return Some((lines, rest)),
            length @ 5..=65_520 => {
                let (line, rest) = rest.split_at_checked(length - 4)?;
                lines.push(line);
                data = rest;
            }
            _ => return None,
        }
    }
}

/// A line of the answer to `ls-refs`: the object, the name, and what it is a tag of.
fn reference(line: &[u8]) -> Option<(ObjectId, &str, Option<ObjectId>)> {
    let line = line.trim_ascii_end();
    let id = ObjectId::from_hex(std::str::from_utf8(line.get(..40)?).ok()?)?;
    let mut words = line.get(40..)?.strip_prefix(b" ")?.split(|byte| *byte == b' ');
    let name = std::str::from_utf8(words.next()?).unwrap_or("-");
    let peeled = words
        .find_map(|word| word.strip_prefix(b"peeled:"))
        .and_then(|hex| ObjectId::from_hex(std::str::from_utf8(hex).ok()?));
    Some((id, name, peeled))
}

fn ref_lists(data: &[u8]) {
    let candidates = refs::candidates(&asked());
    let (limit, data) = budgeted(data);
    let read =
        read_in_pieces(data, limit, async |reader| refs::read_ls_refs(reader, "remote", &candidates).await);
    let well_formed = lines(data).filter(|(lines, _)| {
        !lines.iter().any(|line| line.starts_with(b"ERR "))
            && lines.iter().all(|line| reference(line).is_some())
    });
    let Some((lines, _)) = well_formed else {
        assert!(read.is_none() || lines(data).is_none(), "not well-formed, and read: {read:?}");
        return;
    };
    let mut expected: BTreeMap<&str, (ObjectId, Option<ObjectId>)> = BTreeMap::new();
    for (id, name, peeled) in lines.iter().filter_map(|line| reference(line)) {
        expected.insert(name, (id, peeled));
    }
    let Some(read) = read else {
        assert!(limit < data.len() as u64, "well-formed, and refused");
        return;
    };
    for asked in asked() {
        let found =
            asked.candidates().into_iter().find_map(|name| Some((expected.get(&*name).copied()?, name)));
        let tip = read.tip(&asked).ok();
        assert_eq!(tip.map(|tip| ((tip.object, tip.peeled), tip.name.unwrap())), found);
    }
}

fn message(lines: &[&str]) -> Vec<u8> {
    let mut message = Vec::new();
    lines.iter().for_each(|line| super::framing::push(&mut message, line));
    super::framing::push_flush(&mut message);
    message
}

fn fetch_answers(data: &[u8]) {
    let input = &mut Input::new(data);
    let shape = input.byte();
    let zero = "0".repeat(40);
    let advertised = match shape % 4 {
        0 => message(&[&format!("{zero} HEAD\0shallow ofs-delta")]),
        1 => message(&[&format!("{zero} HEAD\0side-band-64k shallow filter allow-any-sha1-in-want")]),
        _ => message(&["version 2\n", "fetch=shallow filter\n"]),
    };
    let offered = read_in_pieces(&advertised, 1 << 20, async |reader| {
        refs::read_advertisement(reader, "remote", &BTreeSet::new()).await
    });
    let request = Request {
        wants: vec![ObjectId([1; 20])],
        haves: Vec::new(),
        shallow: if shape & 64 == 0 { Vec::new() } else { vec![ObjectId([2; 20])] },
        depth: if shape & 32 == 0 { Deepen::No } else { Deepen::To(1) },
        filter: None,
        only_filtered: false,
        thin: true,
    };
    let encoded = pack::encode(&request, &offered.unwrap().capabilities, "remote").unwrap();
    let limit = if shape & 16 == 0 { 1 << 20 } else { u64::from(input.byte()) };
    let data = input.rest();
    let read = read_in_pieces(data, limit, async |reader| {
        let mut sink = Vec::new();
        let limits = pack::ResponseLimits { before_pack: 1 << 20, pack: limit };
        let answer = encoded.read_response(reader, limits, &mut sink, "remote").await?;
        Ok((answer, sink))
    });
    let Some((answer, sink)) = read else { return };
    assert_eq!(answer.bytes, sink.len() as u64);
    assert!(answer.bytes <= limit, "more than may be");
    if shape.is_multiple_of(4) {
        assert!(data.ends_with(&sink));
        return;
    }
    // All of the first band behind the last line that is of no band, up to a line without content.
    let mut rest = data;
    let mut expected = Vec::new();
    while let Some((length, after)) = rest.split_at_checked(4) {
        let length = std::str::from_utf8(length).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(length) = length.filter(|length| *length > 3 || expected.is_empty()) else { break };
        let Some((line, after)) = after.split_at_checked(length.saturating_sub(4)) else { break };
        if line.first() == Some(&1) {
            expected.extend_from_slice(&line[1..]);
        } else if line.first() != Some(&2) {
            expected.clear();
        }
        rest = after;
    }
    assert!(sink.is_empty() || expected == sink, "other bytes than were sent");
}

const URLS: [&str; 8] = [
    "https://git.example.com/team/a.git",
    "http://git.example.com/team/a.git",
    "https://example.com/",
    "http://127.0.0.1:8080/x",
    "https://10.0.0.1/",
    "http://localhost/",
    "https://[::1]/x",
    "https://git.example.com:8443/",
];

fn cookies(data: &[u8]) {
    let input = &mut Input::new(data);
    let text = *input.of(&URLS);
    let url = url::Url::parse(text).unwrap();
    let file = String::from_utf8_lossy(input.rest()).into_owned();
    let sent = cookie_file::header(&file, &url, 1_500);
    let host = url.host_str().unwrap();
    let is_address = matches!(host, "127.0.0.1" | "10.0.0.1" | "[::1]");
    let is_local = matches!(host, "127.0.0.1" | "[::1]" | "localhost");
    let mut expected = BTreeSet::new();
    for line in file.lines() {
        let line = line.strip_prefix("#HttpOnly_").unwrap_or(line);
        let fields: Vec<&str> = line.split('\t').collect();
        let [domain, below, path, secure, expires, name, value @ ..] = &fields[..] else { continue };
        let value = value.first().copied().unwrap_or_default();
        let domain = domain.trim_start_matches('.').to_ascii_lowercase();
        let is_here = host == domain
            || below.eq_ignore_ascii_case("true") && !is_address && host.ends_with(&format!(".{domain}"));
        let is_safe = text.starts_with("https") || is_local || !secure.eq_ignore_ascii_case("true");
        let is_fresh = expires.parse::<i64>().is_ok_and(|at| at == 0 || at > 1_500);
        if !line.starts_with('#')
            && !domain.is_empty()
            && is_here
            && is_safe
            && is_fresh
            && url.path().starts_with(path)
        {
            expected.insert(format!("{name}={value}"));
        }
    }
    let Some(sent) = sent else { return };
    assert!(!sent.bytes().any(|byte| byte < b' ' || byte == 0x7f), "{sent:?}");
    for pair in sent.split("; ") {
        assert!(expected.contains(pair), "{pair:?} is for somebody else");
    }
}

/// A remote in any form: what it is taken for has no control character, and no message shows a credential.
fn remotes(data: &[u8]) {
    let input = &mut Input::new(data);
    let shape = input.byte();
    let schemes = ["https", "http", "ssh", "git", "file", "git+ssh", "HTTPS", "socks5", "ftp", "ext"];
    let scheme = if shape & 8 == 0 { (*input.of(&schemes)).to_owned() } else { input.text() };
    let (one, two) = (input.text(), input.text());
    let rest = String::from_utf8_lossy(input.rest()).into_owned();
    if [&scheme, &one, &two, &rest].iter().any(|part| part.contains(SECRET)) {
        return; // libFuzzer finds the word that is looked for
    }
    let (text, is_hidden) = match shape % 8 {
        0 => (format!("{scheme}://{one}:{SECRET}@{rest}"), true),
        1 => (format!("{scheme}://{one}:{SECRET}{two}@{rest}"), true),
        2 => (format!("{one}:{SECRET}@{rest}"), true),
        3 => (format!("https://{one}?{two}={SECRET}{rest}"), true),
        4 => (format!("http://{SECRET}@{rest}"), true),
        5 => (rest, false),
        6 => (format!("{scheme}://{rest}"), false),
        _ => (format!("{one}@{two}:{rest}"), false),
    };
    let shown = redact(&text);
    assert!(!is_hidden || !shown.contains(SECRET), "{text:?} is shown as {shown:?}");
    match remote::parse(&text) {
        Err(_) => {} // a fixed text
        Ok((remote, _)) => {
            let parts = match remote {
                Remote::Http(url) => {
                    assert!(url.username().is_empty() && url.password().is_none());
                    assert!(matches!(url.scheme(), "http" | "https"));
                    vec![url.host_str().unwrap().to_owned()]
                }
                Remote::Ssh(target, path) => {
                    assert!(
                        !target.host.starts_with('-')
                            && !target.user.starts_with('-')
                            && !path.starts_with('-')
                    );
                    assert!(!target.user.contains(|c: char| c.is_ascii_control()), "{text:?}: {target:?}");
                    vec![target.host, path]
                }
                Remote::Git { host, path, .. } => vec![host, path],
                Remote::Local(path) => {
                    assert!(path.is_absolute());
                    return; // it may have any name that a file can have
                }
            };
            // The path of `git://` ends with a NUL in the request, and a line end means another line to a shell.
            let is_odd = |c: char| c.is_ascii_control();
            assert!(
                !parts.iter().any(|part| part.is_empty() || part.contains(is_odd)),
                "{text:?}: {parts:?}"
            );
        }
    }
}
