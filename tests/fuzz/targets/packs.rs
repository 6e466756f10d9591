//! Packs and differences. An input is a pack, or says how to build one: objects, differences between them, and lies in
//! any field, sealed with the right checksum, so that what is behind the first check is reached.

use std::collections::BTreeMap;
use std::io::Write as _;

use super::delta::Delta;
use super::*;
use crate::fuzz::{Input, Scratch, Target};

pub(crate) const TARGETS: &[Target] = &[Target::new("packs", packs), Target::new("deltas", deltas)];

const KINDS: [ObjectType; 4] = [ObjectType::Commit, ObjectType::Tree, ObjectType::Blob, ObjectType::Tag];

/// More than any object here has.
const MOST: usize = 3 << 20;

/// What an object of the mirror is.
type Known = BTreeMap<ObjectId, (ObjectType, Vec<u8>)>;

fn id_of(kind: ObjectType, content: &[u8]) -> ObjectId {
    ObjectId(git2::Oid::hash_object(kind, content).unwrap().as_bytes().try_into().unwrap())
}

/// What the format says of a difference (gitformat-pack(5)), byte by byte and with numbers that cannot overflow.
fn differs(base: &[u8], raw: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    let mut next = || {
        at += 1;
        raw.get(at - 1).copied()
    };
    let mut sizes = [0_u128; 2];
    for size in &mut sizes {
        let mut place = 1_u128;
        loop {
            let byte = next()?;
            *size += u128::from(byte % 128) * place;
            if byte < 128 {
                break;
            }
            place = place.checked_mul(128).filter(|place| *place < 1 << 64)?;
        }
    }
    if sizes[0] != base.len() as u128 || sizes[1] > 1 << 32 {
        return None;
    }
    let mut result = Vec::new();
    while let Some(step) = next() {
        if step == 0 {
            return None;
        } else if step < 128 {
            for _ in 0..step {
                result.push(next()?);
            }
        } else {
            let mut value = |bits: std::ops::Range<u32>| {
                let mut value = 0_usize;
                for (place, bit) in bits.enumerate() {
                    if step & 1 << bit != 0 {
                        value += usize::from(next()?) << (8 * place);
                    }
                }
                Some(value)
            };
            let from = value(0..4)?;
            let length = value(4..7)?;
            let length = if length == 0 { 65_536 } else { length };
            for at in from..from + length {
                result.push(*base.get(at)?);
            }
        }
        if result.len() as u128 > sizes[1] {
            return None;
        }
    }
    (result.len() as u128 == sizes[1]).then_some(result)
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Steps that fit a base, but for what is wrong with them on purpose, and their sizes.
fn difference(input: &mut Input<'_>, base: usize) -> Vec<u8> {
    let (mut steps, mut result) = (Vec::new(), 0_u64);
    for _ in 0..input.below(9) {
        match input.byte() {
            op @ 0..128 => {
                let piece = input.bytes(usize::from(op % 32).max(1));
                if !piece.is_empty() {
                    steps.push(piece.len() as u8);
                    steps.extend_from_slice(piece);
                    result += piece.len() as u64;
                }
            }
            op @ 128..240 => {
                let from = if base == 0 { 0 } else { (input.number() * usize::from(op % 16 + 1)) % base };
                let length = (input.number() * usize::from(op % 5 + 1)).min(base - from).min(0xff_ffff);
                if length > 0 {
                    let from = (from as u32).to_le_bytes();
                    // As git writes it, 64 KiB are no length at all.
                    let length_bytes = if length == 0x10000 { [0; 4] } else { (length as u32).to_le_bytes() };
                    let all = [&from[..], &length_bytes[..3]].concat();
                    let given: Vec<usize> = (0..7).filter(|at| all[*at] != 0).collect();
                    steps.push(given.iter().fold(128, |step, at| step | 1 << at));
                    steps.extend(given.iter().map(|at| all[*at]));
                    result += length as u64;
                }
            }
            _ => steps.extend_from_slice(input.bytes(4)),
        }
    }
    let lie = |input: &mut Input<'_>, right: u64| match input.byte() {
        255 => right.wrapping_add(1),
        254 => right.wrapping_sub(1),
        253 => 1 << (input.byte() % 64),
        _ => right,
    };
    let sizes = [varint(lie(input, base as u64)), varint(lie(input, result))].concat();
    [sizes, steps].concat()
}

fn deltas(data: &[u8]) {
    let input = &mut Input::new(data);
    let base: Vec<u8> = match input.byte() {
        0..64 => input.piece().to_vec(),
        shape => (0..input.number() * usize::from(shape % 4 + 1))
            .map(|at| ((at * at) >> 3) as u8 ^ shape)
            .collect(),
    };
    let raw = if input.byte() < 64 { input.rest().to_vec() } else { difference(input, base.len()) };
    let expected = differs(&base, &raw);
    let got = Delta::new(&raw).and_then(|delta| {
        let room = usize::try_from(delta.result).ok().filter(|room| *room < MOST)?;
        let mut into = Vec::with_capacity(room + 1);
        let before = into.capacity();
        let applied = delta.apply(&base, &mut into);
        assert_eq!(into.capacity(), before, "more came out than was said");
        applied.map(|()| into)
    });
    assert!(
        expected.as_ref().is_none_or(|expected| expected.len() >= MOST) || got.is_some(),
        "refused: {raw:?}"
    );
    assert!(got.is_none() || got == expected, "{raw:?}");
}

/// An entry that is to be.
struct Planned<'d> {
    /// An object's own content.
    whole: Option<(ObjectType, Vec<u8>)>,
    /// Else what it is a difference to: an entry by its distance, or by its id, or an object of the mirror.
    base: Base,
    steps: &'d [u8],
    /// What is wrong with it.
    lie: u8,
    argument: u8,
}

#[derive(Clone, Copy)]
enum Base {
    Back(usize),
    Entry(usize),
    Here(usize),
    Nothing(u8),
}

/// A pack, and what is to come of it.
struct Built {
    pack: Vec<u8>,
    here: Known,
    /// The objects that it holds, unless it is wrong somewhere.
    right: Option<Known>,
    is_thin: bool,
    /// An object that is here comes once more, as a difference, and not before what differs from it: nobody sends that.
    is_backwards: bool,
}

fn content(input: &mut Input<'_>) -> Vec<u8> {
    match input.byte() {
        shape @ 0..=199 => {
            let piece = input.bytes(usize::from(shape));
            piece.to_vec()
        }
        shape @ 200..=254 => {
            let piece = input.bytes(8);
            let number = input.number();
            piece
                .iter()
                .copied()
                .cycle()
                .take(if piece.is_empty() { 0 } else { number * usize::from(shape - 199) / 8 })
                .collect()
        }
        // Over what is kept whole for a moment.
        shape => vec![shape; (1 << 20) + input.number()],
    }
}

fn plan<'d>(input: &mut Input<'d>) -> Vec<Planned<'d>> {
    let mut planned = Vec::new();
    while planned.len() < 40 && !input.is_empty() {
        let op = input.byte();
        let lie = op >> 3;
        let base = match op % 8 {
            0..=2 => {
                let kind = *input.of(&KINDS);
                let whole = Some((kind, content(input)));
                planned.push(Planned {
                    whole,
                    base: Base::Nothing(0),
                    steps: b"",
                    lie,
                    argument: input.byte(),
                });
                continue;
            }
            3 | 4 => Base::Back(input.below(planned.len())),
            5 => Base::Entry(input.below(40)),
            6 => Base::Here(input.below(4)),
            _ => Base::Nothing(input.byte()),
        };
        let argument = input.byte();
        planned.push(Planned { whole: None, base, steps: input.piece(), lie, argument });
    }
    planned
}

/// Kind, content, and what the pack holds for it.
type Resolved = (ObjectType, Vec<u8>, Vec<u8>);

/// Puts contents together as far as that can be done, in any order.
fn resolved(planned: &[Planned<'_>], here: &[(ObjectType, Vec<u8>)]) -> Vec<Option<Resolved>> {
    let mut all: Vec<Option<Resolved>> = planned.iter().map(|_| None).collect();
    loop {
        let mut changed = false;
        for (at, entry) in planned.iter().enumerate() {
            if all[at].is_some() {
                continue;
            }
            let base = match (&entry.whole, entry.base) {
                (Some((kind, content)), _) => {
                    all[at] = Some((*kind, content.clone(), content.clone()));
                    changed = true;
                    continue;
                }
                (None, Base::Back(base)) if base < at => all[base].clone(),
                (None, Base::Entry(base)) if base < all.len() && base != at => all[base].clone(),
                (None, Base::Here(base)) => {
                    here.get(base).map(|(kind, content)| (*kind, content.clone(), Vec::new()))
                }
                _ => None,
            };
            if let Some((kind, base, _)) = base {
                let raw = difference(&mut Input::new(entry.steps), base.len());
                if let Some(content) = differs(&base, &raw).filter(|content| content.len() < MOST) {
                    all[at] = Some((kind, content, raw));
                    changed = true;
                }
            }
        }
        if !changed {
            return all;
        }
    }
}

fn deflated(content: &[u8], level: u32) -> Vec<u8> {
    let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
    deflate.write_all(content).unwrap();
    deflate.finish().unwrap()
}

/// The head of an entry: its type and size, then what it differs from.
fn headed(kind: u8, mut size: u64, base: &[u8]) -> Vec<u8> {
    let mut head = vec![kind << 4 | (size & 15) as u8];
    size >>= 4;
    while size > 0 {
        *head.last_mut().unwrap() |= 128;
        head.push((size & 127) as u8);
        size >>= 7;
    }
    [&head, base].concat()
}

fn distance(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![(number & 127) as u8];
    number >>= 7;
    while number > 0 {
        number -= 1;
        bytes.insert(0, 128 | (number & 127) as u8);
        number >>= 7;
    }
    bytes
}

/// An entry as it is written. What is wrong with it, if anything is, comes from its lie.
fn written(entry: &Planned<'_>, kind: u8, base: &[u8], raw: &[u8]) -> Vec<u8> {
    let mut body = deflated(raw, u32::from(entry.argument % 3) * 4);
    let place = usize::from(entry.argument) * 7 % body.len();
    let size = raw.len() as u64;
    let (kind, size, base) = match entry.lie {
        20 => (kind, size + 1, base.to_vec()),
        21 => (kind, size.wrapping_sub(1), base.to_vec()),
        22 => (kind, 1 << (entry.argument % 64), base.to_vec()),
        23 => (entry.argument & 7, size, base.to_vec()),
        24 => (kind, size, base.iter().map(|byte| byte.wrapping_add(entry.argument)).collect()),
        25 => (kind, size, [&[0x80_u8.wrapping_add(entry.argument)], base].concat()),
        _ => (kind, size, base.to_vec()),
    };
    match entry.lie {
        26 => body[place] ^= 1 << (entry.argument % 8),
        27 => body.truncate(place),
        28 => body.extend(std::iter::repeat_n(0, usize::from(entry.argument % 5))),
        _ => {}
    }
    [headed(kind, size, &base), body].concat()
}

/// Lies of an entry begin here.
const LIES: std::ops::Range<u8> = 20..29;

fn sealed(mut pack: Vec<u8>) -> Vec<u8> {
    let mut hasher = sha1dc::Hasher::new();
    hasher.update(&pack);
    pack.extend_from_slice(hasher.finalize().unwrap().as_ref());
    pack
}

fn built(input: &mut Input<'_>) -> Built {
    let head = input.byte();
    let argument = input.byte();
    let here = [
        (ObjectType::Blob, b"what is here already, and more of it\n".repeat(9)),
        (ObjectType::Tree, Vec::new()),
        (ObjectType::Blob, vec![7; 70_000]),
        (ObjectType::Blob, b"what is here already, and more of it\n".repeat(9)[..64].to_vec()),
    ];
    let planned = plan(input);
    let all = resolved(&planned, &here);
    let mut entries: Vec<Vec<u8>> = Vec::new();
    let mut starts = Vec::new();
    let mut bases = Vec::new();
    let mut at = 12;
    for (place, entry) in planned.iter().enumerate() {
        let raw = match &all[place] {
            Some((_, _, raw)) => raw.clone(),
            None => difference(&mut Input::new(entry.steps), usize::from(entry.argument)),
        };
        let id = |known: Option<&(ObjectType, Vec<u8>)>| {
            known.map_or([entry.argument; 20], |(kind, content)| id_of(*kind, content).0)
        };
        let (kind, base) = match (&entry.whole, entry.base) {
            (Some((kind, _)), _) => (kind.raw() as u8, Vec::new()),
            (None, Base::Back(base)) => (6, distance(at - starts.get(base).copied().unwrap_or_default())),
            (None, Base::Entry(base)) => {
                let known = all.get(base).cloned().flatten().map(|(kind, content, _)| (kind, content));
                (7, id(known.as_ref()).to_vec())
            }
            (None, Base::Here(base)) => (7, id(here.get(base)).to_vec()),
            (None, Base::Nothing(byte)) => (7, vec![byte; 20]),
        };
        bases.push(<[u8; 20]>::try_from(&base[..]).ok().map(ObjectId));
        starts.push(at);
        entries.push(written(entry, kind, &base, &raw));
        at += entries[place].len() as u64;
    }
    let mut right = all.iter().all(Option::is_some) && !planned.iter().any(|entry| LIES.contains(&entry.lie));
    let objects: Known = all
        .iter()
        .flatten()
        .map(|(kind, content, _)| (id_of(*kind, content), (*kind, content.clone())))
        .collect();
    right &= objects.len() == planned.len();
    let count = planned.len() as u32;
    let (version, count) = match head {
        250 => (2, count + 1 + u32::from(argument)),
        251 => (2, count.saturating_sub(1)),
        252 => (2, u32::MAX - u32::from(argument)),
        253 | 254 => (u32::from(argument), count),
        _ => (2, count),
    };
    let mut pack =
        [b"PACK".as_slice(), &version.to_be_bytes(), &count.to_be_bytes(), &entries.concat()].concat();
    pack = sealed(pack);
    let length = pack.len();
    match head {
        247 => pack.truncate(length - 1 - usize::from(argument) * 3 % length),
        248 => pack[length - 1 - usize::from(argument % 20)] ^= 1,
        249 => pack.extend(vec![argument; usize::from(argument)]),
        _ => {}
    }
    right &= head < 247;
    let is_thin = planned.iter().any(|entry| matches!(entry.base, Base::Here(_)) && entry.whole.is_none());
    let here: Known =
        here.into_iter().map(|(kind, content)| (id_of(kind, &content), (kind, content))).collect();
    let is_backwards = bases.iter().enumerate().any(|(at, base)| {
        let comes = |(entry, known): (&Planned<'_>, &Option<Resolved>)| {
            entry.whole.is_none()
                && known.as_ref().is_some_and(|(kind, content, _)| Some(id_of(*kind, content)) == *base)
        };
        base.is_some_and(|base| here.contains_key(&base)) && planned.iter().zip(&all).skip(at).any(comes)
    });
    Built { pack, here, right: right.then_some(objects), is_thin, is_backwards }
}

/// A pack, or all but its checksum.
fn given(input: &mut Input<'_>, is_sealed: bool) -> Built {
    let mut pack = input.rest().to_vec();
    if is_sealed {
        pack.truncate(pack.len().saturating_sub(20));
        pack = sealed(pack);
    }
    Built { pack, here: Known::new(), right: None, is_thin: false, is_backwards: false }
}

fn packs(data: &[u8]) {
    let input = &mut Input::new(data);
    let roomy = Limits { memory: 64 << 20, bytes: 1 << 30, objects: 1 << 20, expected: u64::MAX };
    let shape = input.byte();
    let argument = if shape & 7 == 7 { u64::from(input.byte()) } else { 0 };
    let limits = match (shape & 7, argument % 4) {
        (6, _) => Limits { memory: 1 << 10, ..roomy },
        (7, 0) => Limits { bytes: argument * 4, ..roomy },
        (7, 1) => Limits { objects: argument / 16, ..roomy },
        (7, 2) => Limits { expected: argument / 16, ..roomy },
        _ => roomy,
    };
    let built = match shape >> 3 & 7 {
        0 => given(input, false),
        1 => given(input, true),
        _ => built(input),
    };
    Scratch::with(|dir| {
        let packs = dir.join("pack");
        std::fs::create_dir(&packs).unwrap();
        let here = |id: &ObjectId| Ok(built.here.get(id).cloned());
        let result = index_pack(&built.pack[..], &packs, &limits, false, &here);
        let files = std::fs::read_dir(&packs).unwrap().count();
        assert_eq!(files, if result.is_ok() { 2 } else { 0 }, "{result:?}");
        match result {
            Ok(taken) => accepted(dir, &built, &limits, &taken),
            Err(fault) => refused(dir, &built, &fault, (shape & 7) < 6),
        }
    });
}

/// libgit2 reads every object that the index names, and it is what its id says.
fn accepted(dir: &Path, built: &Built, limits: &Limits, taken: &IndexedPack) {
    let received: u64 = u32::from_be_bytes(*built.pack[8..].first_chunk().unwrap()).into();
    assert!(built.pack.len() as u64 <= limits.bytes && received <= limits.objects.min(limits.expected));
    let odb = git2::Odb::new().unwrap();
    odb.add_disk_alternate(dir.to_str().unwrap()).unwrap();
    let mut completed = 0;
    for object in &taken.all {
        let id = object.line.id;
        let read = odb.read(git2::Oid::from_bytes(&id.0).unwrap()).unwrap();
        assert_eq!(id_of(read.kind(), read.data()), id);
        assert_eq!(taken.is_blob(&id), read.kind() == ObjectType::Blob);
        let kind = (read.kind(), read.data());
        if built.here.get(&id).is_some_and(|(kind_here, content)| (*kind_here, &content[..]) == kind) {
            completed += 1;
        } else if let Some(right) = &built.right {
            let (expected, content) = &right[&id];
            assert_eq!((*expected, &content[..]), kind);
        }
    }
    assert!(taken.all.windows(2).all(|pair| pair[0].line.id < pair[1].line.id));
    assert!(taken.all.len() as u64 - received <= completed);
    if let Some(right) = &built.right {
        assert!(right.keys().all(|id| taken.all.binary_search_by_key(id, |object| object.line.id).is_ok()));
    }
    let file = std::fs::read(dir.join("pack").join(format!("{}.pack", taken.name))).unwrap();
    let (content, sum) = file.split_at(file.len() - 20);
    assert_eq!(sealed(content.to_vec())[content.len()..], *sum);
    if taken.all.len() as u64 == received {
        assert_eq!(file, built.pack, "a pack that is whole is kept as it is");
    }
}

/// What is not wrong is taken. What is wrong with a difference or a checksum is wrong for libgit2's own indexer, too; of
/// heads it takes some that neither git nor we do.
fn refused(dir: &Path, built: &Built, fault: &IndexError, is_roomy: bool) {
    let says = |words: &str| matches!(fault, IndexError::Bad(why) if why.contains(words));
    let is_twice = says("twice") && built.is_backwards;
    assert!(built.right.is_none() || !is_roomy || is_twice, "{fault:?}");
    let is_wrong = says("does not match its base") || says("its checksum");
    if !is_wrong || built.is_thin || built.pack.len() > 1 << 16 {
        return;
    }
    let other = dir.join("other");
    std::fs::create_dir(&other).unwrap();
    let mut indexer = git2::Indexer::new(None, &other, 0o600, false).unwrap();
    let taken = indexer.write_all(&built.pack).map_err(|error| error.to_string());
    let taken = taken.and_then(|()| indexer.commit().map_err(|error| error.to_string()));
    assert!(taken.is_err(), "libgit2 takes it: {fault:?}");
}
