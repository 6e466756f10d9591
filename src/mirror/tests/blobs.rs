//! Reading blobs.

use std::collections::HashMap;

use super::model;
use crate::mirror::fixture::{Fixture, blob_id, everything};
use crate::mirror::odb::oid;
use crate::mirror::pack_index;

#[test]
fn blobs_are_read_as_they_are() {
    let fixture = Fixture::new();
    let content = b"a\r\nb\0c".to_vec();
    let id = fixture.blob(&content);
    let source = fixture.objects().blobs();
    let mut reader = source.reader().unwrap();
    let mut read = Vec::new();
    let mut sink = |bytes: &[u8]| {
        read.extend_from_slice(bytes);
        Ok(())
    };
    reader.read(&id, &mut sink).unwrap();
    let tree = fixture.tree(&[]);
    assert!(reader.read(&tree, &mut |_| Ok(())).is_err(), "a tree is no content");
    assert_eq!(read, content);
}

#[test]
fn blobs_are_ordered_by_pack_offset() {
    let fixture = Fixture::new();
    let paths: Vec<_> = (0..40).map(|n| (format!("d{}/f{n}", n % 7), format!("content {}", n / 2))).collect();
    let paths: Vec<_> = paths.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    let payload = fixture.objects().payload(fixture.commit_of(&model(&paths)), &everything()).unwrap();
    let order = |what: &str| {
        let order = fixture
            .objects()
            .blobs()
            .order(&payload.entries.iter().map(|entry| entry.id).collect::<Vec<_>>());
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..40), "{what}: each is in it once");
        order
    };
    assert!(order("no pack").into_iter().eq(0..40), "then they come as they stand");

    let store = fixture.shared.store().unwrap();
    let mut builder = store.builder().unwrap();
    for n in (0..15).rev() {
        builder.insert_object(oid(&blob_id(format!("content {n}").as_bytes())), None).unwrap();
    }
    let packs = fixture.layout.dir().join("objects/pack");
    builder.write(&packs, 0o444).unwrap();
    let index = packs.join(format!("pack-{}.idx", builder.name().unwrap().unwrap()));
    let mut places = HashMap::new();
    pack_index::each_offset(&index, |id, offset| _ = places.insert(id, offset)).unwrap();
    assert_eq!(places.len(), 15);
    let found = order("a pack").into_iter().map(|at| {
        let place = places.get(&payload.entries[at as usize].id);
        (place.copied().unwrap_or(u64::MAX), at)
    });
    assert!(found.is_sorted(), "and what no pack has, last");

    std::fs::remove_file(&index).unwrap();
    std::fs::write(&index, "no index").unwrap();
    assert!(order("a broken index").into_iter().eq(0..40));
}
