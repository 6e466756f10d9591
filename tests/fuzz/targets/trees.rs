//! Trees to payloads, and what two of them differ by. The trees are built by an input, down to their raw bytes.

use std::collections::BTreeSet;

use git2::ObjectType;
use tokio_util::sync::CancellationToken;

use super::fixture::Plain;
use super::modules::Modules;
use super::odb::{ObjectReader, Peeled};
use super::sparse::Patterns;
use super::tree::{DIRECTORY, REGULAR};
use super::{Base, Error, Selection, check_sparse, delta, tree_to_payload};
use crate::fuzz::{Input, Target};
use crate::payload::{Kind, Parts, Payload, Refusal, Rule, Symlinks};
use crate::revision::ObjectId;

pub(crate) const TARGETS: &[Target] =
    &[Target::new("trees", trees), Target::new("tree_deltas", tree_deltas), Target::new("sparse", sparse)];

const NAMES: [&[u8]; 40] = [
    b"a",
    b"b",
    b"A",
    b"c",
    b"dir",
    b"sub",
    b"x.yaml",
    b"README.md",
    b"..",
    b".",
    b"",
    b".git",
    b".GIT",
    b".Git",
    b"git~1",
    b"GIT~1",
    b".git ",
    b".git.",
    b".git...",
    b".git::$INDEX_ALLOCATION",
    b".g\xe2\x80\x8cit",
    b".gi\xef\xbb\xbft",
    b"a/b",
    b"/etc",
    b"..data",
    b"..foo",
    b".gitmodules",
    b".gitattributes",
    b"a\\.git",
    b"a\\..\\b",
    b"\xff\xfe",
    "\u{e4}".as_bytes(),
    "a\u{308}".as_bytes(),
    b"\n",
    b"\x1b[31m",
    b"con",
    b"c:",
    b"a b",
    b"~",
    b".git\xe2\x81\xafx",
];

const MODES: [&str; 14] = [
    "100644",
    "100755",
    "120000",
    "40000",
    "160000",
    "040000",
    "100664",
    "100600",
    "0",
    "777",
    "140000",
    "170000",
    "37777777777",
    "0100644",
];

const LINKS: [&[u8]; 14] = [
    b"a",
    b"../a",
    b"../../a",
    b"/etc/passwd",
    b"a/../../b",
    b"..",
    b".",
    b"",
    b"a\0b",
    b"dir/x.yaml",
    b"./a",
    b"//",
    b"sub/..",
    b"../b/../../../c",
];

const SPARSE: [&str; 8] =
    ["/*\n", "*.yaml\n", "/*\n!/*/\n", "dir\n", "/dir/\n!/dir/sub/\n", "!a\n", "a/**\n", "**/b\n"];

/// Objects that are only in memory.
struct Objects<'o> {
    odb: git2::Odb<'o>,
    blobs: Vec<ObjectId>,
    links: Vec<ObjectId>,
}

fn id(oid: git2::Oid) -> ObjectId {
    ObjectId(oid.as_bytes().try_into().unwrap())
}

impl Objects<'_> {
    fn new() -> Self {
        let odb = git2::Odb::new().unwrap();
        let _ = odb.add_new_mempack_backend(100).unwrap(); // the database keeps it
        let mut this = Self { odb, blobs: Vec::new(), links: Vec::new() };
        this.blobs =
            [&b"one"[..], b"two", b"three\n"].iter().map(|blob| this.write(ObjectType::Blob, blob)).collect();
        this.links = LINKS.iter().map(|link| this.write(ObjectType::Blob, link)).collect();
        this
    }

    fn write(&self, kind: ObjectType, data: &[u8]) -> ObjectId {
        id(self.odb.write(kind, data).unwrap())
    }

    /// A tree that the input describes, with up to four levels below it.
    fn tree(&self, input: &mut Input<'_>, level: u32) -> ObjectId {
        let mut lines: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let shape = input.byte();
        for _ in 0..shape % 9 {
            if input.is_empty() {
                break;
            }
            let op = input.byte();
            let name = match op % 16 {
                15 => input.bytes(usize::from(op >> 4)).iter().copied().filter(|byte| *byte != 0).collect(),
                14 => NAMES[input.below(NAMES.len())].to_vec(),
                0..8 => NAMES[usize::from(op % 8)].to_vec(),
                _ => vec![b'k' + op % 8],
            };
            let (mode, id) = match op >> 4 {
                0..7 => ("100644", *input.of(&self.blobs)),
                7 => ("100755", *input.of(&self.blobs)),
                8 => ("120000", *input.of(&self.links)),
                9 => ("160000", ObjectId([op; 20])),
                10 => (*input.of(&MODES), *input.of(&self.blobs)),
                11 if level > 0 => (*input.of(&MODES), self.tree(input, level - 1)),
                12 => ("100644", ObjectId([input.byte(); 20])),
                _ if level > 0 => ("40000", self.tree(input, level - 1)),
                _ => ("100644", self.blobs[0]),
            };
            let line = [mode.as_bytes(), b" ", &name, b"\0", &id.0].concat();
            let slash: &[u8] = if mode == "40000" { b"/" } else { b"" };
            lines.push(([&name, slash].concat(), line));
        }
        if shape < 200 {
            lines.sort();
            if shape < 150 {
                lines.dedup_by(|one, other| {
                    one.0.strip_suffix(b"/").unwrap_or(&one.0)
                        == other.0.strip_suffix(b"/").unwrap_or(&other.0)
                });
            }
        }
        let mut raw = lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().concat();
        match shape {
            250 => raw.truncate(raw.len().saturating_sub(1 + input.below(40))),
            251 => raw.extend_from_slice(input.piece()),
            252 => raw = input.piece().to_vec(),
            253 if !raw.is_empty() => {
                let at = input.number() % raw.len();
                raw[at] ^= input.byte();
            }
            _ => {}
        }
        self.write(ObjectType::Tree, &raw)
    }
}

fn selection(input: &mut Input<'_>) -> Selection {
    let shape = input.byte();
    let mut selection = Selection::default();
    selection.rules.symlinks = if shape & 1 == 0 { Symlinks::Safe } else { Symlinks::Keep };
    selection.rules.reserve_dotdot = shape & 2 == 0;
    selection.rules.folds = shape & 4 != 0;
    if shape & 8 != 0 {
        selection.sparse = Some((*input.of(&SPARSE)).to_owned());
    }
    if shape & 0x70 == 0x70 {
        selection.rules.limits.entries = u64::from(input.byte() % 12);
        selection.rules.limits.depth = u32::from(input.byte() % 4);
        selection.rules.limits.path = u32::from(input.byte() % 16);
    }
    selection
}

fn at(tree: ObjectId) -> Peeled {
    Peeled { commit: ObjectId([9; 20]), tree }
}

fn payload(reader: &ObjectReader<'_>, tree: ObjectId, selection: &Selection) -> Result<Payload, Error> {
    let patterns = selection.sparse.as_deref().map(|text| Patterns::parse(text).unwrap());
    let (modules, cancel) = (Modules::default(), CancellationToken::new());
    tree_to_payload::payload(
        reader,
        at(tree),
        selection,
        patterns.as_ref(),
        &modules,
        Parts::default(),
        &cancel,
    )
}

/// Whether any system takes a name for `.git`: in any case of letters, without what HFS+ does not see, up to a colon,
/// without dots and blanks at its end, behind a backslash.
fn is_git(name: &[u8]) -> bool {
    let unseen = [
        "\u{200c}", "\u{200d}", "\u{200e}", "\u{200f}", "\u{202a}", "\u{202e}", "\u{206a}", "\u{206f}",
        "\u{feff}",
    ];
    let text = String::from_utf8_lossy(name).to_ascii_lowercase();
    let seen = unseen.iter().fold(text.clone(), |text, c| text.replace(c, ""));
    let windows = |text: &str| {
        let part = text.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']).to_owned();
        part == ".git" || part == "git~1"
    };
    seen == ".git" || text.split('\\').any(windows)
}

/// Where a link leads from its directory, by names alone; none where it leaves the top.
fn leads(dir: &[&[u8]], target: &[u8]) -> Option<usize> {
    let mut depth = dir.len();
    for part in target.split(|byte| *byte == b'/') {
        depth = match part {
            b"" | b"." => depth,
            b".." => depth.checked_sub(1)?,
            _ => depth + 1,
        };
    }
    Some(depth)
}

/// Every path of a payload is one that may be written.
fn check(payload: &Payload, selection: &Selection, reader: &ObjectReader<'_>) {
    let plain = Plain::of(payload);
    let rules = selection.rules;
    assert_eq!(plain.entries.len(), payload.entries.len(), "a path twice");
    assert!(payload.count() <= rules.limits.entries);
    let dirs: BTreeSet<&[u8]> = plain.dirs.iter().map(Vec::as_slice).collect();
    assert_eq!(dirs.len(), plain.dirs.len(), "a directory twice");
    let mut folded = BTreeSet::new();
    for path in plain.entries.keys().chain(&plain.dirs) {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let shown = path.escape_ascii();
        for part in &parts {
            assert!(!matches!(*part, b"" | b"." | b".."), "{shown}");
            assert!(!is_git(part), "{shown}");
        }
        assert!(!rules.reserve_dotdot || !parts[0].starts_with(b".."), "{shown}");
        assert!(
            parts.len() <= rules.limits.depth as usize && path.len() <= rules.limits.path as usize,
            "{shown}"
        );
        if parts.len() > 1 {
            let above = &path[..path.len() - parts[parts.len() - 1].len() - 1];
            assert!(dirs.contains(above), "{shown} has no directory");
        }
        assert!(
            !rules.folds || folded.insert(path.to_ascii_lowercase()),
            "{shown} is another one where case does not count"
        );
    }
    assert!(
        plain.dirs.iter().all(|dir| !plain.entries.contains_key(dir)),
        "a directory and a file of one name"
    );
    for (path, (kind, id, size)) in &plain.entries {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        if *kind != Kind::Submodule {
            assert_eq!(reader.blob_size(id).unwrap(), *size);
        }
        if *kind == Kind::Symlink {
            let target = reader.small_blob(id).unwrap();
            assert!(!target.is_empty() && !target.contains(&0));
            if rules.symlinks == Symlinks::Safe {
                assert!(
                    target[0] != b'/' && leads(&parts[..parts.len() - 1], &target).is_some(),
                    "{}",
                    path.escape_ascii()
                );
            }
        }
    }
}

fn trees(data: &[u8]) {
    let input = &mut Input::new(data);
    let objects = Objects::new();
    let selection = selection(input);
    let tree = objects.tree(input, 4);
    let reader = ObjectReader::in_memory(objects.odb);
    match payload(&reader, tree, &selection) {
        Ok(payload) => check(&payload, &selection, &reader),
        Err(error) => {
            let line = crate::human::one_line(&error);
            assert!(!line.contains(|c: char| c.is_control()) && line.len() < 8_000, "{line:?}");
        }
    }
}

/// What a delta makes of the old payload is the new one; and where there is no new one, there is no delta.
fn tree_deltas(data: &[u8]) {
    let input = &mut Input::new(data);
    let objects = Objects::new();
    let selection = selection(input);
    // The second differs from the first in what is patched, and in what is then read otherwise.
    let patches: Vec<(usize, u8)> = (0..input.below(5)).map(|_| (input.number(), input.byte())).collect();
    let first = input.rest();
    let mut second = first.to_vec();
    for (at, byte) in patches.into_iter().filter(|_| !first.is_empty()) {
        second[at % first.len()] = byte;
    }
    let old = objects.tree(&mut Input::new(first), 4);
    let new = objects.tree(&mut Input::new(&second), 4);
    let reader = ObjectReader::in_memory(objects.odb);
    let Ok(before) = payload(&reader, old, &selection) else { return };
    let after = payload(&reader, new, &selection);
    let patterns = selection.sparse.as_deref().map(|text| Patterns::parse(text).unwrap());
    let (modules, cancel) = (Modules::default(), CancellationToken::new());
    let base = Base { tree: old, entries: before.count(), bytes: before.bytes };
    let parts = (&modules, &modules, Parts::default());
    let delta = delta::delta(&reader, base, at(new), &selection, patterns.as_ref(), parts, &cancel);
    match (delta, after) {
        (Ok(Some(delta)), Ok(after)) => {
            let mut plain = Plain::of(&before);
            plain.apply(&delta);
            assert_eq!(plain, Plain::of(&after));
            assert_eq!((delta.entries, delta.bytes), (after.count(), after.bytes));
        }
        // Where patterns leave out most of a tree, walking all of it may be too much work, and its changes are not.
        (Ok(Some(delta)), Err(Error::Refused(Refusal { rule: Rule::Entries { limit }, .. })))
            if patterns.is_some() && delta.entries <= limit => {}
        (Ok(Some(delta)), Err(error)) => {
            panic!("refused as a whole ({error}), and there is a delta: {delta:?}")
        }
        (Err(error), Ok(_)) => panic!("right as a whole, and no delta: {error}"),
        (Ok(None), _) | (Err(_), Err(_)) => {}
    }
}

/// The last pattern that matches decides, whatever those before it are.
fn sparse(data: &[u8]) {
    let input = &mut Input::new(data);
    let path: Vec<u8> = input.piece().iter().copied().filter(|byte| *byte != 0).collect();
    let is_path = !path.split(|byte| *byte == b'/').any(|part| matches!(part, b"" | b"." | b".."));
    let text = String::from_utf8_lossy(input.rest()).into_owned();
    let lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let parsed = Patterns::parse(&text);
    assert_eq!(parsed.is_ok(), check_sparse(&lines).is_ok());
    if let Err(error) = &parsed {
        assert!(!crate::human::one_line(error).contains('\n'));
        return;
    }
    if !is_path {
        return;
    }
    let top = path.split(|byte| *byte == b'/').next().unwrap();
    for (last, wanted) in [("/*", true), ("!/*", false), ("**", true), ("!**", false)] {
        let patterns = Patterns::parse(&format!("{text}\n{last}\n")).unwrap();
        for inherited in [true, false] {
            assert_eq!(
                patterns.selects(top, REGULAR, inherited),
                wanted,
                "{text:?}, {last:?}, {}",
                top.escape_ascii()
            );
        }
    }
    let patterns = parsed.unwrap();
    let is_nothing = lines.iter().all(|line| line.trim_end_matches(' ').is_empty() || line.starts_with('#'));
    if is_nothing {
        assert!(!patterns.selects(&path, REGULAR, false) && patterns.selects(&path, DIRECTORY, true));
    }
    for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
        if !patterns.may_select_below(&path[..at], false) {
            assert!(!patterns.selects(&path, REGULAR, false), "{text:?} {}", path.escape_ascii());
        }
    }
}

/// Whether git takes a text for the full name of a ref.
pub(crate) fn is_ref_name(text: &str) -> bool {
    git2::Reference::is_valid_name(text)
}
