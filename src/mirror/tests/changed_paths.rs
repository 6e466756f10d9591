//! The paths that differ between two revisions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{FIXTURE, arb_model};
use crate::mirror::ChangedPath;
use crate::mirror::fixture::Fixture;
use crate::revision::{ObjectId, Revision};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_paths_lead_from_one_list_to_the_other(old in arb_model(), new in arb_model(), all in any::<bool>()) {
        let (objects, from, to) =
            FIXTURE.with(|fixture| (fixture.objects(), fixture.commit_of(&old), fixture.commit_of(&new)));
        let enter = |path: &[u8]| all || path != b"a";
        let listed = |revision| objects.list(revision, &enter).unwrap().into_iter().collect::<BTreeMap<_, _>>();
        let mut followed = listed(from);
        let after = listed(to);
        for ChangedPath { path, before, now } in objects.changed_paths(from, to, &enter).unwrap().unwrap() {
            let was = match now {
                Some(now) => followed.insert(path, now),
                None => followed.remove(&path),
            };
            prop_assert_eq!(was.is_some(), before);
        }
        prop_assert_eq!(followed, after);
    }
}

#[test]
fn changed_paths_gives_up_on_duplicate_names() {
    let fixture = Fixture::new();
    let blob = fixture.blob(b"1");
    let other = fixture.blob(b"2");
    let below = fixture.tree(&[("100644", b"x", blob)]);
    let once = fixture.commit(fixture.tree(&[("100644", b"a", blob)]), &[]);
    let twice = fixture.commit(fixture.tree(&[("100644", b"a", other), ("40000", b"a", below)]), &[]);
    let dir = fixture.tree(&[("100644", b"x", other)]);
    let slash = fixture.commit(fixture.tree(&[("40000", b"a", dir), ("100644", b"a/x", blob)]), &[]);
    let unnamed = fixture.commit(fixture.tree(&[("40000", b"", dir), ("100644", b"x", blob)]), &[]);
    let objects = fixture.objects();
    for odd in [twice, slash, unnamed] {
        assert_eq!(objects.list(odd, &|_| true).unwrap().len(), 2);
    }
    for (old, new) in [twice, slash, unnamed].into_iter().flat_map(|odd| [(once, odd), (odd, once)]) {
        assert_eq!(objects.changed_paths(old, new, &|_| true).unwrap(), None);
    }
    let gone = Revision(ObjectId([7; 20]));
    assert_eq!(objects.changed_paths(gone, once, &|_| true).unwrap(), None);
    assert!(objects.changed_paths(once, gone, &|_| true).is_err());
}

#[test]
fn changed_paths_gives_up_on_repeated_trees_and_on_too_many_paths() {
    let fixture = Fixture::new();
    // Ten thousand million directories, all of which differ, without a single file.
    let empty = fixture.tree(&[]);
    let trees = [empty, fixture.tree(&[("40000", b"x", empty)])];
    let [one, other] = trees.map(|tree| fixture.commit(fixture.bomb(tree, 10), &[]));
    let objects = fixture.objects();
    assert_eq!(objects.changed_paths(one, other, &|_| true).unwrap(), None);

    let flat = |count: usize| {
        let names: Vec<String> = (0..count).map(|name| format!("{name:06}")).collect();
        let blob = fixture.blob(b"1");
        let lines: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), blob)).collect();
        fixture.commit(fixture.tree(&lines), &[])
    };
    let nothing = fixture.commit(empty, &[]);
    let changed = |count| objects.changed_paths(nothing, flat(count), &|_| true).unwrap();
    assert_eq!(changed(20_000).unwrap().len(), 20_000);
    assert_eq!(changed(100_000), None);

    let links = |count: usize| {
        let names: Vec<String> = (0..count).map(|name| format!("{name:04}")).collect();
        let target = fixture.blob(&[b't'; 4_095]);
        let lines: Vec<_> = names.iter().map(|name| ("120000", name.as_bytes(), target)).collect();
        objects.changed_paths(nothing, fixture.commit(fixture.tree(&lines), &[]), &|_| true).unwrap()
    };
    assert_eq!(links(900).unwrap().len(), 900);
    assert_eq!(links(1_024), None, "each keeps its target");
}
