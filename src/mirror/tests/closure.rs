//! Whether a tip is complete: its trees and blobs, and its history.

use std::cell::Cell;
use std::collections::HashSet;

use tokio_util::sync::CancellationToken;

use super::model;
use crate::mirror::Depth::{Commits, Full};
use crate::mirror::closure::{HistoryWalk, LocalHistory, tree_closure, tree_closure_except_blobs};
use crate::mirror::fixture::{Fixture, blob_id};
use crate::mirror::odb::{ObjectReader, oid};
use crate::revision::{ObjectId, Revision};

#[test]
fn tags_are_followed_to_a_commit_and_nothing_else() {
    let fixture = Fixture::new();
    let tree = fixture.tree(&[]);
    let commit = fixture.commit(tree, &[]);
    let tag = fixture.tag(commit.0, "commit");
    let outer = fixture.tag(tag, "tag");
    let store = fixture.shared.store().unwrap();
    let reader = store.reader().unwrap();
    assert_eq!(reader.peel(&outer).unwrap().unwrap().commit, commit.0);
    assert_eq!(reader.peel(&fixture.tag(tree, "tree")).unwrap(), Err("tree"));
    assert_eq!(reader.peel(&fixture.tag(fixture.blob(b""), "blob")).unwrap(), Err("blob"));
    assert!(reader.peel(&ObjectId([1; 20])).is_err());
}

#[test]
fn history_is_measured_by_its_shortest_way() {
    let fixture = Fixture::new();
    let tree = fixture.tree(&[]);
    let commit = |parents: &[Revision], n: u8| {
        let tree = fixture.tree(&[("100644", &[b'a' + n], fixture.blob(b""))]);
        fixture.commit(tree, parents)
    };
    let root = fixture.commit(tree, &[]);
    let one = commit(&[root], 1);
    let two = commit(&[one], 2);
    let side = commit(&[root], 3);
    let merge = commit(&[two, side], 4);
    let store = fixture.shared.store().unwrap();
    let reader = store.reader().unwrap();
    let cancel = CancellationToken::new();
    let walk = |depth, ends: &HashSet<ObjectId>| {
        HistoryWalk::new(&reader, depth, ends, &cancel).of(merge.0).unwrap()
    };
    let at = |depth| walk(depth, &HashSet::new());
    let sorted = |ids: &[Revision]| {
        let mut ids: Vec<_> = ids.iter().map(|id| id.0).collect();
        ids.sort();
        ids
    };
    assert_eq!(at(Commits(1)).boundary, sorted(&[merge]));
    assert_eq!(at(Commits(2)).boundary, sorted(&[two, side]));
    assert_eq!(
        at(Commits(3)).boundary,
        sorted(&[one]),
        "the root is reached through the side, and ends by itself"
    );
    assert!(at(Full).boundary.is_empty() && at(Full).complete);
    fixture.lose(one.0);
    let cut = at(Full);
    assert!(!cut.complete && cut.boundary == sorted(&[two]));
    let ends = HashSet::from([two.0]);
    assert!(walk(Full, &ends).complete, "the remote has no more either");
    let mut both = HistoryWalk::new(&reader, Full, &ends, &cancel);
    assert_eq!(both.of(side.0).unwrap().boundary, []);
    assert_eq!(both.of(merge.0).unwrap().boundary, sorted(&[two]), "what is left of it");
    assert_eq!(both.of(merge.0).unwrap().boundary, [], "each commit is visited once");
    let mut until = HistoryWalk::new(&reader, Full, &ends, &cancel).until(Some(two.0));
    assert_eq!(until.of(merge.0).unwrap().boundary, [], "what is known to be whole is not walked again");
    cancel.cancel();
    assert_eq!(both.of(root.0), Ok(LocalHistory { complete: true, ..LocalHistory::default() }));
    assert_eq!(HistoryWalk::new(&reader, Full, &ends, &cancel).of(merge.0), Err(None));
}

#[test]
fn a_closure_is_checked_down_to_the_last_blob() {
    let fixture = Fixture::new();
    let old = fixture.tree_of(&model(&[("a/b/c", "1"), ("d", "2")]));
    let new = fixture.tree_of(&model(&[("a/b/c", "1"), ("d", "3"), ("e/f", "4")]));
    let check = |base| {
        let store = fixture.shared.store().unwrap();
        tree_closure(&store.reader().unwrap(), new, base, false)
    };
    assert_eq!(check(None), Ok(()));
    fixture.lose(fixture.blob(b"4"));
    assert!(check(Some(old)).unwrap_err().to_string().contains(&blob_id(b"4").to_string()));
    fixture.blob(b"4");
    fixture.lose(blob_id(b"1"));
    assert_eq!(check(Some(old)), Ok(()), "what the base has is not asked for again");
    assert!(check(None).is_err());
}

#[test]
fn a_blob_is_checked_once_however_many_trees_name_it() {
    let fixture = Fixture::new();
    let blob = fixture.blob(b"x");
    let [a, b] = ["a", "b"].map(|name| fixture.tree(&[("100644", name.as_bytes(), blob)]));
    let top = fixture.tree(&[("40000", b"a", a), ("40000", b"b", b)]);
    let named = Cell::new(0);
    let lose_when_named_again = |id: &ObjectId| {
        named.set(named.get() + 1);
        if named.get() == 2 {
            fixture.lose(*id);
        }
        false
    };
    let store = fixture.shared.store().unwrap();
    let reader = store.reader().unwrap();
    let checked = tree_closure_except_blobs(&reader, top, None, false, lose_when_named_again);
    assert_eq!((checked, named.get()), (Ok(()), 2));
}

#[test]
fn what_a_partial_clone_lacks_is_not_looked_for_in_packs_that_came_since() {
    let fixture = Fixture::new();
    let file = fixture.tree(&[]);
    let dir = fixture.blob(b"no tree");
    let tree = fixture.tree(&[("40000", b"dir", dir), ("100644", b"file", file)]);
    let check = |reader: &ObjectReader<'_>| tree_closure(reader, tree, None, true);
    let store = fixture.shared.store().unwrap();
    let mut builder = store.builder().unwrap();
    for id in [file, dir] {
        builder.insert_object(oid(&id), None).unwrap();
    }
    let early = fixture.shared.store().unwrap();
    let early = early.reader().unwrap();
    builder.write(&fixture.layout.dir().join("objects/pack"), 0o444).unwrap();
    [file, dir].into_iter().for_each(|id| fixture.lose(id));
    assert_eq!(check(&early), Ok(()), "each look would list all packs anew");
    let late = fixture.shared.store().unwrap();
    let error = check(&late.reader().unwrap()).unwrap_err().to_string();
    assert!(error.contains("where a"), "what is here has to be what it should be: {error}");
}
