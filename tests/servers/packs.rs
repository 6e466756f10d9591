//! Packs that are wrong, too much, or cut short.

use std::io::Write;
use std::sync::Arc;

use super::answers::{band, bomb, objects, pack, pack_header, packed, smart};
use super::port::{Relay, without_end};
use super::{Limits, Stage};

/// The pack's trailer again, so that only what it holds is wrong.
fn sealed(mut pack: Vec<u8>) -> Vec<u8> {
    pack.truncate(pack.len() - 20);
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &pack);
    pack.extend_from_slice(sum.as_ref());
    pack
}

fn with(mut pack: Vec<u8>, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut pack);
    pack
}

/// An object as a pack holds it: its kind and size, what stands before its content, and the content, deflated.
fn object(kind: u8, size: u64, before: &[u8], content: &[u8]) -> Vec<u8> {
    let mut object = vec![(kind << 4) | (size & 0x0f) as u8];
    let mut rest = size >> 4;
    while rest > 0 {
        *object.last_mut().unwrap() |= 0x80;
        object.push((rest & 0x7f) as u8);
        rest >>= 7;
    }
    object.extend_from_slice(before);
    let mut deflate = flate2::write::ZlibEncoder::new(object, flate2::Compression::fast());
    deflate.write_all(content).unwrap();
    deflate.finish().unwrap()
}

/// A delta that copies the 64 KiB object right before it 16,384 times.
fn delta_bomb(base: &[u8]) -> Vec<u8> {
    let mut delta = vec![0x80, 0x80, 0x04]; // the base's size, seven bits at a time
    delta.extend([0x80, 0x80, 0x80, 0x80, 0x04]); // the result's
    delta.extend([0x80; 1 << 14]); // copy from 0; no size means 64 KiB
    let mut back = base.len(); // how far back the base begins, seven bits at a time, the last ones last
    let mut offset = vec![(back & 0x7f) as u8];
    while back >> 7 > 0 {
        back = (back >> 7) - 1;
        offset.insert(0, 0x80 | (back & 0x7f) as u8);
    }
    object(6, delta.len() as u64, &offset, &delta)
}

#[test]
fn packs_that_are_wrong_are_refused() {
    let mut stage = Stage::new();
    let (remote, tip) = (&stage.place.world.remote, stage.place.newer.borrow().clone());
    let all = objects(remote, &tip);
    let good = pack(remote, &all);
    let without = |left_out: &str| {
        let rest: Vec<String> = all.iter().filter(|id| *id != left_out).cloned().collect();
        assert!(rest.len() < all.len(), "{left_out} is not in the pack");
        pack(remote, &rest)
    };
    let (tree, blob) = (remote.git(&["rev-parse", "main:dir"]), remote.git(&["rev-parse", "main:noise"]));
    let old = pack(remote, &objects(remote, &stage.place.published));
    let middle = good.len() / 2;
    let count = good[8..12].try_into().map(u32::from_be_bytes).unwrap();
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("a pack with a wrong checksum", with(good.clone(), |pack| *pack.last_mut().unwrap() ^= 1)),
        ("a pack with a flipped bit", with(good.clone(), |pack| pack[middle] ^= 1)),
        ("a pack with a flipped bit, sealed again", sealed(with(good.clone(), |pack| pack[middle] ^= 1))),
        ("half a pack", good[..middle].to_vec()),
        ("half a pack, sealed", sealed(good[..middle].to_vec())),
        ("a pack of nothing", sealed([pack_header(0), vec![0; 20]].concat())),
        ("no pack", Vec::new()),
        ("a pack of an older commit", old),
        ("a pack without the commit", without(&tip)),
        ("a pack without a tree", without(&tree)),
        ("a pack without a file", without(&blob)),
        (
            "a pack that claims an object more",
            sealed(with(good.clone(), |pack| pack[8..12].copy_from_slice(&(count + 1).to_be_bytes()))),
        ),
        ("a pack that claims 4 billion objects", sealed(with(good.clone(), |pack| pack[8..12].fill(0xff)))),
        ("a pack of another version", sealed(with(good.clone(), |pack| pack[7] = 9))),
        (
            "no pack, but noise",
            (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
        ),
        ("a pack with more after it", [good.clone(), vec![0; 1000]].concat()),
    ];
    for (name, pack) in table {
        stage.against(name, packed(&tip, pack), 3, Limits::Short, &[]);
    }
    let cut = Arc::new(good[..middle].to_vec());
    stage.against(
        "a pack whose connection ends",
        smart(&tip, move |stream| stream.write_all(&band(1, &cut))),
        3,
        Limits::Short,
        &[],
    );
    stage.against(
        "a pack with an error in it",
        smart(&tip, |stream| stream.write_all(&band(3, b"out of memory, says the server"))),
        3,
        Limits::Long,
        &["out of memory, says the server"],
    );
    stage.against(
        "an empty packet line",
        smart(&tip, |stream| stream.write_all(b"0004")),
        3,
        Limits::Short,
        &[],
    );
    stage.against(
        "an empty side-band",
        smart(&tip, |stream| stream.write_all(b"0005\x01")),
        3,
        Limits::Short,
        &[],
    );
    stage.against("a tip that is a tree", packed(&tree, good.clone()), 3, Limits::Short, &[]);
    stage.recovers();
}

#[test]
fn packs_that_are_too_much_are_refused_within_their_memory() {
    let mut stage = Stage::new();
    let tip = stage.place.newer.borrow().clone();
    let patient = ["--sync-timeout=200s", "--idle-timeout=200s"];
    let budget = [patient[0], patient[1], "--max-fetch-bytes=32Mi"];
    let endless = |piece: Vec<u8>| {
        smart(&tip, move |stream| {
            stream.write_all(&band(1, &pack_header(100_000)))?;
            without_end(stream, &piece)
        })
    };
    let small = object(3, 1, &[], b"a");
    stage.port.behave(endless(band(1, &small.repeat(5000))));
    stage.attempt("small objects without end", 200, Limits::Short, &budget, &[]);
    stage.port.behave(endless(band(1, &small[..small.len() - 1].repeat(5000))));
    stage.attempt("half objects without end", 200, Limits::Short, &budget, &[]);
    stage.port.behave(endless(band(2, &[b'.'; 65_000])));
    stage.attempt("progress without end", 200, Limits::Long, &budget, &["--max-fetch-bytes"]);
    let noise = object(3, 1 << 30, &[], &vec![7; 1 << 20]);
    stage.port.behave(packed(&tip, sealed([pack_header(1), noise, vec![0; 20]].concat())));
    stage.attempt("an object that claims a gigabyte", 200, Limits::Short, &patient, &[]);
    let base = object(3, 1 << 16, &[], &[0; 1 << 16]);
    let delta = delta_bomb(&base);
    stage.port.behave(packed(&tip, sealed([pack_header(2), base, delta, vec![0; 20]].concat())));
    stage.attempt("a delta of 16 KB that makes a gigabyte", 200, Limits::Long, &patient, &["--index-memory"]);

    // A commit that is right in every way, but for the size of what is in it.
    let bomb = bomb(&stage.place.world.remote, 512 << 20);
    stage.place.world.remote.reset(&bomb);
    stage.port.behave(Relay::all(stage.good.address).behaviour());
    stage.attempt(
        "512 MiB of zeros in half a megabyte",
        200,
        Limits::Long,
        &patient,
        &["`bomb`", "the limit for one file"],
    );
    stage.place.world.remote.reset(&tip);
    stage.recovers();
}
