//! Indexes packs that git wrote, and malformed ones, and compares the result with git's.

use std::fs;

use super::*;
use crate::mirror::fixture::{blob_id, git};

const ROOMY: Limits = Limits { memory: 64 << 20, bytes: 1 << 30, objects: 1 << 20, expected: u64::MAX };

/// A repository with several versions of a small file, and of one that is larger than [`SMALL`]; and the blobs' ids.
fn repository() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), "init --quiet --bare .", b"");
    let mut ids = String::new();
    let mut add = |content: &[u8]| {
        ids.push_str(&String::from_utf8(git(dir.path(), "hash-object -w --stdin", content)).unwrap());
    };
    let text = |lines: u64, version: u64| -> Vec<u8> {
        let line = |n: u64| format!("{n} {}\n", (n * 2_654_435_761) % 1_000_003);
        (0..lines)
            .map(|n| line(if n == version { n + 1_000_000 } else { n }))
            .collect::<String>()
            .into_bytes()
    };
    add(b"");
    for version in 0..30 {
        add(&text(400, version));
    }
    for version in 0..4 {
        add(&text(150_000, version));
    }
    (dir, ids)
}

fn pack_of(dir: &Path, ids: &str, options: &str) -> Vec<u8> {
    git(dir, &format!("pack-objects --quiet --stdout --window=40{options}"), ids.as_bytes())
}

/// Indexes a pack in a new directory. Returns the result with the pack's and the index's bytes, and checks that no
/// other file is left, and that both are read-only.
fn taken(
    pack: &[u8],
    limits: &Limits,
    here: &ReadBase<'_>,
) -> Result<(IndexedPack, Vec<u8>, Vec<u8>), IndexError> {
    let dir = tempfile::tempdir().unwrap();
    let result = index_pack(pack, dir.path(), limits, true, here);
    let entries = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    let files: Vec<_> = entries.map(|metadata| metadata.permissions().readonly()).collect();
    assert_eq!(files, if result.is_ok() { vec![true; 2] } else { vec![] }, "{result:?}");
    let result = result?;
    let read = |suffix: &str| fs::read(dir.path().join(format!("{}.{suffix}", result.name))).unwrap();
    let (pack, index) = (read("pack"), read("idx"));
    Ok((result, pack, index))
}

fn nowhere(_: &ObjectId) -> Result<Option<(ObjectType, Vec<u8>)>, git2::Error> {
    Ok(None)
}

/// The index that git writes for the pack.
fn index_of_git(pack: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.pack"), pack).unwrap();
    git(dir.path(), "index-pack --index-version=2 p.pack", b"");
    fs::read(dir.path().join("p.idx")).unwrap()
}

fn why(result: Result<(IndexedPack, Vec<u8>, Vec<u8>), IndexError>) -> String {
    match result {
        Ok((taken, ..)) => format!("{taken:?}"),
        Err(IndexError::Bad(why)) => why,
        Err(fault) => format!("{fault:?}"),
    }
}

fn sealed(mut pack: Vec<u8>) -> Vec<u8> {
    let mut hasher = sha1dc::Hasher::new();
    hasher.update(&pack);
    pack.extend_from_slice(hasher.finalize().unwrap().as_ref());
    pack
}

fn packed(count: u32, entries: &[&[u8]]) -> Vec<u8> {
    sealed([b"PACK\0\0\0\x02", count.to_be_bytes().as_slice(), &entries.concat()].concat())
}

/// An entry whose content has less than sixteen bytes. `before` is the base's distance or id.
fn small(kind: u8, before: &[u8], content: &[u8]) -> Vec<u8> {
    let head = [&[kind << 4 | content.len() as u8], before].concat();
    let mut deflate = flate2::write::ZlibEncoder::new(head, flate2::Compression::fast());
    deflate.write_all(content).unwrap();
    deflate.finish().unwrap()
}

#[test]
fn the_index_is_the_same_as_gits() {
    let (dir, ids) = repository();
    for form in [" --delta-base-offset", "", " --depth=0"] {
        let pack = pack_of(dir.path(), &ids, form);
        // Also with a cache budget too small for any content.
        for memory in [64 << 20, 1 << 10] {
            let (taken, file, index) = taken(&pack, &Limits { memory, ..ROOMY }, &nowhere).unwrap();
            assert_eq!(taken.all.len(), 35);
            assert!(file == pack && index == index_of_git(&pack), "{form:?}, {memory}");
        }
    }
    let nothing = packed(0, &[]);
    assert_eq!(taken(&nothing, &ROOMY, &nowhere).unwrap().2, index_of_git(&nothing));
}

#[test]
fn a_thin_pack_is_completed_and_one_with_a_missing_base_refused() {
    let (dir, ids) = repository();
    let base = ids.lines().nth(1).unwrap();
    let revisions = thin_revisions(dir.path(), base, ids.lines().nth(2).unwrap());
    let new = revisions.lines().next().unwrap();
    let thin = pack_of(dir.path(), &revisions, " --revs --thin --delta-base-offset");
    let repository = git2::Repository::open_bare(dir.path()).unwrap();
    let odb = repository.odb().unwrap();
    let here = |id: &ObjectId| {
        assert_eq!(id.to_string(), base);
        Ok(Some((ObjectType::Blob, odb.read(git2::Oid::from_str(base)?)?.data().to_vec())))
    };
    let (result, pack, index) = taken(&thin, &ROOMY, &here).unwrap();
    let known = |id: &str| result.is_blob(&ObjectId::from_hex(id).unwrap());
    assert!(ids.lines().skip(1).take(2).all(known) && !known(new) && !known(ids.lines().nth(3).unwrap()));
    assert_eq!((result.all.len(), &pack[8..12]), (4, 4_u32.to_be_bytes().as_slice()), "with the base");
    assert_eq!(index, index_of_git(&pack));
    assert!(why(taken(&thin, &ROOMY, &nowhere)).contains("neither in the pack nor in the mirror"));

    // Two deltas against a base in the mirror, and one against the result of another delta.
    let to = |base: &[u8], take: u8| small(7, &blob_id(base).0, &[base.len() as u8, take, 0x90, take]);
    let thin = packed(3, &[&to(b"con", 1), &to(b"content", 3), &to(b"content", 5)]);
    let here = |id: &ObjectId| {
        Ok((id.to_string() == "6b584e8ece562ebffc15d38808cd6b98fc3d97ea")
            .then(|| (ObjectType::Blob, b"content".to_vec())))
    };
    let (_, pack, index) = taken(&thin, &ROOMY, &here).unwrap();
    assert_eq!(pack[8..12], 4_u32.to_be_bytes());
    assert_eq!(index, index_of_git(&pack));
}

/// Servers without ofs-delta name every base by its id, and resend objects that they do not know to be here.
#[test]
fn an_existing_base_that_is_sent_again_as_a_delta_is_not_appended() {
    for (one, other) in [(&b"content"[..], &b"con"[..]), (b"other one", b"oth")] {
        let objects = [one, other].map(|content| (blob_id(content), content));
        let here = |id: &ObjectId| {
            let found = objects.iter().find(|(known, _)| known == id);
            Ok(found.map(|(_, content)| (ObjectType::Blob, content.to_vec())))
        };
        let to = |(base, content): (ObjectId, &[u8]), take: u8| {
            small(7, &base.0, &[content.len() as u8, take, 0x90, take])
        };
        // `other` is sent as a delta against `one`, and another object as a delta against `other`.
        let thin = packed(2, &[&to(objects[0], 3), &to(objects[1], 2)]);
        let (taken, pack, index) = taken(&thin, &ROOMY, &here).unwrap();
        assert_eq!((taken.all.len(), &pack[8..12]), (3, 3_u32.to_be_bytes().as_slice()), "with the base");
        assert_eq!(index, index_of_git(&pack));
    }
}

#[test]
fn a_pack_that_is_cut_or_changed_anywhere_is_refused() {
    let (dir, ids) = repository();
    let some = ids.lines().take(4).fold(String::new(), |some, id| some + id + "\n");
    let pack = pack_of(dir.path(), &some, " --delta-base-offset");
    let places = (0..32).chain((32..pack.len() - 20).step_by(41)).chain(pack.len() - 20..pack.len());
    for at in places {
        assert!(matches!(taken(&pack[..at], &ROOMY, &nowhere), Err(IndexError::Cut)), "cut at {at}");
        let mut changed = pack.clone();
        changed[at] ^= 0x10;
        let result = taken(&changed, &ROOMY, &nowhere);
        assert!(
            matches!(result, Err(IndexError::Bad(_) | IndexError::Cut | IndexError::Memory)),
            "{at}: {}",
            why(result)
        );
    }
}

#[test]
fn errors_name_what_is_wrong_with_a_pack() {
    let object = small(3, &[], b"content");
    let other = small(3, &[], b"other");
    let back = |distance: usize| small(6, &[distance as u8], &[7, 1, 0x91, 0, 1]);
    let table = [
        (packed(1, &[&object, &other]), "its checksum does not match"),
        (packed(2, &[&object, &object]), "it contains 6b584e8ece562ebffc15d38808cd6b98fc3d97ea twice"),
        (packed(1, &[&small(5, &[], b"x")]), "an entry has the unknown object type 5"),
        (packed(1, &[&back(3)]), "a delta base is not in the pack"),
        (packed(2, &[&object, &back(object.len() + 1)]), "a delta base is not in the pack"),
        (packed(2, &[&other, &back(other.len())]), "does not match its base"),
        (packed(1, &[&small(7, &[9; 20], &[7, 1, 0x91, 0, 1])]), "neither in the pack nor in the mirror"),
        (packed(1, &[&[&[0x38], &object[1..]].concat()]), "size differs from its header"),
        (packed(1, &[&[&[0x36], &object[1..]].concat()]), "size differs from its header"),
        (packed(1, &[b"\x37no deflated content"]), "cannot be inflated"),
        (packed(1, &[&[0xff; 12]]), "size is out of range"),
        ([packed(1, &[&object]), vec![0]].concat(), "trailing data after its end"),
        (b"HTTP/1.1 200 OK and what follows".to_vec(), "it does not start with a pack header"),
        (sealed(b"PACK\0\0\0\x09\0\0\0\0".to_vec()), "the unknown pack version 9"),
    ];
    for (pack, says) in table {
        let why = why(taken(&pack, &ROOMY, &nowhere));
        assert!(why.contains(says), "{says}: {why}");
    }
    assert!(taken(&packed(2, &[&object, &back(object.len())]), &ROOMY, &nowhere).is_ok());
}

#[test]
fn what_a_pack_costs_is_bounded() {
    let object = small(3, &[], b"content");
    let pack = packed(1, &[&object]);
    let with = |change: fn(&mut Limits)| {
        let mut limits = ROOMY;
        change(&mut limits);
        taken(&pack, &limits, &nowhere).unwrap_err()
    };
    assert!(matches!(with(|limits| limits.bytes = 40), IndexError::Bytes));
    assert!(matches!(with(|limits| limits.objects = 0), IndexError::Memory));
    assert!(matches!(with(|limits| limits.expected = 0), IndexError::Many(1)));
    // A delta that claims a result of 2^62 bytes.
    let bomb = small(6, &[object.len() as u8], &[7, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40]);
    assert!(matches!(taken(&packed(2, &[&object, &bomb]), &ROOMY, &nowhere), Err(IndexError::Memory)));
}

/// One of two messages with the same SHA-1 (Leurent and Peyrin, "SHA-1 is a Shambles", 2020). No two git objects with
/// the same id are known: the attack would have to include the object's header.
#[test]
fn a_collision_is_noticed() {
    let mut hasher = sha1dc::Hasher::new();
    hasher.update(include_bytes!("../../../../testdata/sha-mbles-1.bin"));
    let fault = object_id(hasher).unwrap_err();
    assert!(
        matches!(&fault, IndexError::Bad(why) if why.contains("8ac60ba76f1999a1ab70223f225aefdc78d4ddc0 is crafted for")),
        "{fault:?}"
    );
}

#[test]
fn files_of_a_killed_indexer_are_swept_and_those_of_git_kept() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tmp_pack_12-3", "tmp_pack_1-", "tmp_pack_aB3x9Z", "tmp_idx_12-3"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    index_pack(&b"no pack"[..], dir.path(), &ROOMY, true, &nowhere).unwrap_err();
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["tmp_idx_12-3", "tmp_pack_1-", "tmp_pack_aB3x9Z"]);
}

#[test]
fn a_damaged_base_is_not_appended() {
    let (dir, ids) = repository();
    let all: Vec<&str> = ids.lines().collect();
    let thin = pack_of(dir.path(), &thin_revisions(dir.path(), all[1], all[2]), " --thin --revs");
    let damaged = |_: &ObjectId| Ok(Some((ObjectType::Blob, b"something else".to_vec())));
    let fault = taken(&thin, &ROOMY, &damaged).unwrap_err();
    assert!(matches!(fault, IndexError::Io("complete the pack", _)), "{fault:?}");
}

/// Creates two commits with one file, and returns the revision arguments for the second without the first.
fn thin_revisions(dir: &Path, first: &str, second: &str) -> String {
    let commit = |blob: &str, parent: &str| {
        let tree = git(dir, "mktree", format!("100644 blob {blob}\tfile\n").as_bytes());
        let tree = String::from_utf8(tree).unwrap();
        let who = "-c user.name=a -c user.email=a@b";
        let made = git(dir, &format!("{who} commit-tree {} -m x{parent}", tree.trim()), b"");
        String::from_utf8(made).unwrap().trim().to_owned()
    };
    let one = commit(first, "");
    let two = commit(second, &format!(" -p {one}"));
    format!("{two}\n^{one}\n")
}
