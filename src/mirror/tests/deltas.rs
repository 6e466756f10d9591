//! Deltas between the payloads of two revisions.

use proptest::prelude::*;

use super::{FIXTURE, arb_model, arb_sparse, base, file, model};
use crate::mirror::fixture::{Fixture, Model, Plain, everything};
use crate::mirror::{Base, Error, Selection};
use crate::payload::Kind;
use crate::revision::ObjectId;

#[test]
fn a_change_of_the_executable_bit_alone_is_a_change() {
    let fixture = Fixture::new();
    let old = model(&[("a", "same")]);
    let mut new = old.clone();
    new.insert("a".into(), Some((Kind::Executable, b"same".to_vec())));
    let old = fixture.objects().payload(fixture.commit_of(&old), &everything()).unwrap();
    let delta = fixture.objects().delta(base(&old), fixture.commit_of(&new), &everything()).unwrap().unwrap();
    assert_eq!((delta.removed.len(), delta.written.len(), delta.written[0].kind), (1, 1, Kind::Executable));
}

#[test]
fn a_mode_that_means_the_same_is_no_change() {
    let fixture = Fixture::new();
    let blob = fixture.blob(b"x");
    let old = fixture.commit(fixture.tree(&[("100644", b"a", blob)]), &[]);
    let new = fixture.commit(fixture.tree(&[("100664", b"a", blob)]), &[]);
    let old = fixture.objects().payload(old, &everything()).unwrap();
    let delta = fixture.objects().delta(base(&old), new, &everything()).unwrap().unwrap();
    assert!(delta.removed.is_empty() && delta.written.is_empty());
}

#[test]
fn without_its_base_there_is_no_delta_and_no_error() {
    let fixture = Fixture::new();
    let payload = fixture.objects().payload(fixture.commit_of(&model(&[("a", "b")])), &everything()).unwrap();
    let gone = Base { tree: ObjectId([9; 20]), ..base(&payload) };
    assert!(fixture.objects().delta(gone, payload.revision, &everything()).unwrap().is_none());
}

#[test]
fn a_delta_reads_no_tree_that_is_unchanged() {
    let fixture = Fixture::new();
    // Each directory has a name of its own in it, so that all trees differ.
    let wide: Model = (0..50)
        .flat_map(|dir| {
            let own = (format!("d{dir}/own{dir}"), file("x"));
            (0..20).map(move |f| (format!("d{dir}/f{f}"), file("x"))).chain([own])
        })
        .collect();
    let mut new = wide.clone();
    new.insert("d7/f3".into(), file("changed"));
    let old = fixture.objects().payload(fixture.commit_of(&wide), &everything()).unwrap();
    let to = fixture.commit_of(&new);
    for dir in (0..50).filter(|dir| *dir != 7) {
        let prefix = format!("d{dir}/");
        let below = |(path, node): (&String, &Option<_>)| {
            Some((path.strip_prefix(&prefix)?.to_owned(), node.clone()))
        };
        fixture.lose(fixture.tree_of(&wide.iter().filter_map(below).collect()));
    }
    let delta = fixture.objects().delta(base(&old), to, &everything()).unwrap().unwrap();
    assert_eq!((delta.removed.len(), delta.written.len()), (1, 1));
    assert_eq!(&*delta.written[0].path, b"d7/f3");
    assert_eq!((delta.entries, delta.bytes), (old.count(), old.bytes + 6));
    let whole = fixture.objects().payload(to, &everything());
    assert!(matches!(whole, Err(Error::Damaged { .. })), "the unchanged trees are really absent: {whole:?}");
}

#[test]
fn trees_that_are_deeper_than_is_compared_need_the_whole_payload() {
    let fixture = Fixture::new();
    let mut selection = everything();
    selection.rules.limits.depth = 1_000;
    let old = fixture.objects().payload(fixture.commit_of(&model(&[("a", "b")])), &selection).unwrap();
    let bottom = fixture.tree(&[("100644", b"f", fixture.blob(b"x"))]);
    let deep = fixture.commit(fixture.nested(bottom, 300), &[]);
    assert!(fixture.objects().delta(base(&old), deep, &selection).unwrap().is_none());
    assert_eq!(fixture.objects().payload(deep, &selection).unwrap().entries.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_delta_makes_the_old_payload_the_new_one(old in arb_model(), new in arb_model(), sparse in arb_sparse()) {
        let selection = Selection { sparse, ..everything() };
        let (objects, from, to) =
            FIXTURE.with(|fixture| (fixture.objects(), fixture.commit_of(&old), fixture.commit_of(&new)));
        let before = objects.payload(from, &selection).unwrap();
        let after = objects.payload(to, &selection).unwrap();
        let delta = objects.delta(base(&before), to, &selection).unwrap().unwrap();
        let mut applied = Plain::of(&before);
        applied.apply(&delta);
        prop_assert_eq!(&applied, &Plain::of(&after));
        prop_assert_eq!((delta.entries, delta.bytes), (after.count(), after.bytes));
        prop_assert_eq!(delta.tree, after.tree);
    }
}
