//! Missing objects, and an index that leads to others: damage of the mirror, which the next fetch repairs.

use super::model;
use crate::mirror::Error;
use crate::mirror::files::COMPLETE;
use crate::mirror::fixture::{Fixture, everything};
use crate::mirror::odb::oid;
use crate::revision::{ObjectId, Revision};

#[test]
fn a_revision_that_was_never_there_is_no_damage() {
    let fixture = Fixture::new();
    let there = fixture.commit_of(&model(&[("a", "1")]));
    assert!(fixture.objects().holds(there));
    assert!(!fixture.objects().holds(Revision(ObjectId([7; 20]))));
    assert!(!fixture.shared.take_damage());
}

#[test]
fn a_missing_object_is_damage_and_names_itself() {
    let fixture = Fixture::new();
    let revision = fixture.commit_of(&model(&[("a/b", "gone"), ("c", "there")]));
    let id = fixture.blob(b"gone");
    fixture.lose(id);
    let record = fixture.shared.dir.join(COMPLETE);
    std::fs::write(&record, "that all is there").unwrap();
    let error = fixture.objects().payload(revision, &everything()).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(matches!(error, Error::Damaged { .. }) && source.contains(&id.to_string()), "{error}: {source}");
    assert!(error.is_transient(), "the next fetch mends it");
    assert!(fixture.shared.take_damage(), "the next fetch knows");
    assert_eq!(std::fs::read_to_string(&record).unwrap(), "damaged", "and so does the next opening");
}

#[test]
fn a_reader_from_before_a_rebuild_knows_nothing_of_the_rebuilt_mirror() {
    let fixture = Fixture::new();
    let early = fixture.objects().blobs();
    fixture.shared.note_rebuilt();
    let late = fixture.objects().blobs();
    for (blobs, is_noted) in [(&early, false), (&late, true)] {
        let read = blobs.reader().unwrap().read(&ObjectId([7; 20]), &mut |_| Ok(()));
        assert!(read.is_err(), "it is not there");
        assert_eq!(fixture.shared.take_damage(), is_noted);
    }
}

#[test]
fn a_tree_where_a_blob_should_be_is_damage_only_if_an_index_led_to_it() {
    let fixture = Fixture::new();
    let (blob, tree) = (fixture.blob(b"x"), fixture.tree(&[]));
    let named = fixture.commit(fixture.tree(&[("100644", b"a", tree)]), &[]);
    let right = fixture.commit(fixture.tree(&[("100644", b"a", blob)]), &[]);
    let of = |revision| fixture.objects().payload(revision, &everything());
    let error = of(named).unwrap_err();
    assert!(error.is_refusal(), "its author named it: {error:?}");
    let packs = fixture.layout.dir().join("objects/pack");
    let index = {
        let store = fixture.shared.store().unwrap();
        let mut builder = store.builder().unwrap();
        for id in [blob, tree] {
            builder.insert_object(oid(&id), None).unwrap();
        }
        builder.write(&packs, 0o444).unwrap();
        let name = builder.name().unwrap().unwrap().to_owned();
        packs.join(format!("pack-{name}.idx"))
    };
    [blob, tree].into_iter().for_each(|id| fixture.lose(id));
    assert!(of(named).unwrap_err().is_refusal());

    // The table of offsets precedes two checksums of twenty bytes; the two entries change places.
    let mut bytes = std::fs::read(&index).unwrap();
    let end = bytes.len() - 2 * 20;
    bytes[end - 8..end].rotate_left(4);
    std::fs::remove_file(&index).unwrap(); // it is read-only
    std::fs::write(&index, bytes).unwrap();
    let error = of(right).unwrap_err();
    assert!(error.is_damage(), "{error:?}");
}
