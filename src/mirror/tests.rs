//! Tests of payloads and deltas, on trees that are written by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixture::{Fixture, Model, Plain, everything};
use super::{Base, ChangedPath, Error, Selection};
use crate::payload::{Kind, Payload, Rule};
use crate::revision::{ObjectId, Revision};

fn file(content: &str) -> Option<(Kind, Vec<u8>)> {
    Some((Kind::File, content.into()))
}

fn model(paths: &[(&str, &str)]) -> Model {
    paths.iter().map(|(path, content)| ((*path).to_owned(), file(content))).collect()
}

fn base(payload: &Payload) -> Base {
    Base { tree: payload.tree, entries: payload.count(), bytes: payload.bytes }
}

fn refused(result: Result<Payload, Error>) -> (String, Rule) {
    match result {
        Err(Error::Refused(refusal)) => (refusal.path, refusal.rule),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_payload_holds_files_links_submodules_and_the_directories_they_need() {
    let fixture = Fixture::new();
    let mut model = model(&[("a/b/c", "one"), ("a/d", "two"), ("e", "three")]);
    model.insert("run".into(), Some((Kind::Executable, b"#!".to_vec())));
    model.insert("a/link".into(), Some((Kind::Symlink, b"d".to_vec())));
    model.insert("sub".into(), Some((Kind::Submodule, Vec::new())));
    model.insert("empty/inner".into(), None);
    let payload = fixture.objects().payload(fixture.commit_of(&model), &everything()).unwrap();
    let plain = Plain::of(&payload);
    assert_eq!(plain.dirs, [b"a".to_vec(), b"a/b".to_vec()], "a directory without a file is left out");
    let kinds: Vec<_> =
        plain.entries.iter().map(|(path, (kind, ..))| (String::from_utf8_lossy(path), *kind)).collect();
    let expected = [
        ("a/b/c", Kind::File),
        ("a/d", Kind::File),
        ("a/link", Kind::Symlink),
        ("e", Kind::File),
        ("run", Kind::Executable),
        ("sub", Kind::Submodule),
    ];
    assert_eq!(kinds, expected.map(|(path, kind)| (path.into(), kind)));
    assert_eq!(payload.bytes, 3 + 3 + 1 + 5 + 2);
}

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
fn a_bomb_of_nested_trees_is_refused_by_counting() {
    let fixture = Fixture::new();
    let mut tree = fixture.tree(&[("100644", b"f", fixture.blob(b"x"))]);
    for _ in 0..12 {
        let lines: Vec<_> = (b'a'..=b'j').map(|name| [name]).collect();
        let lines: Vec<_> = lines.iter().map(|name| ("40000", &name[..], tree)).collect();
        tree = fixture.tree(&lines);
    }
    let revision = fixture.commit(tree, &[]);
    let (_, rule) = refused(fixture.objects().payload(revision, &everything()));
    assert_eq!(rule, Rule::Entries { limit: 1_000_000 });
    // Also with an empty tree, against a base, and with patterns that select nothing.
    let mut empty = fixture.tree(&[]);
    for _ in 0..12 {
        let lines: Vec<_> = (b'a'..=b'j').map(|name| [name]).collect();
        let lines: Vec<_> = lines.iter().map(|name| ("40000", &name[..], empty)).collect();
        empty = fixture.tree(&lines);
    }
    let empty = fixture.commit(empty, &[]);
    assert!(matches!(fixture.objects().payload(empty, &everything()), Err(Error::Refused(_))));
    let small = fixture.objects().payload(fixture.commit_of(&model(&[("a", "b")])), &everything()).unwrap();
    for revision in [revision, empty] {
        let delta = fixture.objects().delta(base(&small), revision, &everything());
        assert!(matches!(delta, Err(Error::Refused(_))), "{delta:?}");
        let none = Selection { sparse: Some("nothing\n".into()), ..everything() };
        assert!(matches!(fixture.objects().payload(revision, &none), Err(Error::Refused(_))));
        let none = Selection { sparse: Some("/nothing\n".into()), ..everything() };
        assert!(fixture.objects().payload(revision, &none).unwrap().entries.is_empty(), "no tree is entered");
    }
}

#[test]
fn trees_may_nest_deeper_than_a_stack_and_are_refused_by_their_depth() {
    let fixture = Fixture::new();
    let mut tree = fixture.tree(&[("100644", b"f", fixture.blob(b"x"))]);
    for _ in 0..5_000 {
        tree = fixture.tree(&[("40000", b"d", tree)]);
    }
    let revision = fixture.commit(tree, &[]);
    let (_, rule) = refused(fixture.objects().payload(revision, &everything()));
    assert_eq!(rule, Rule::Depth { limit: 128 });
    let sparse = Selection { sparse: Some("nothing\n".into()), ..everything() };
    let (_, rule) = refused(fixture.objects().payload(revision, &sparse));
    assert_eq!(rule, Rule::Depth { limit: 128 });
}

#[test]
fn a_walk_ends_when_it_is_cancelled_and_that_is_no_damage() {
    let fixture = Fixture::new();
    let old = model(&[("a/b", "1")]);
    let new = model(&[("a/b", "2")]);
    let old = fixture.commit_of(&old);
    let new = fixture.commit_of(&new);
    let from = base(&fixture.objects().payload(old, &everything()).unwrap());
    let stop = tokio_util::sync::CancellationToken::new();
    let objects = fixture.objects().until(&stop);
    objects.payload(new, &everything()).unwrap();
    stop.cancel();
    assert!(matches!(objects.payload(new, &everything()), Err(Error::Cancelled)));
    assert!(matches!(objects.delta(from, new, &everything()), Err(Error::Cancelled)));
    assert!(!fixture.shared.take_damage());
}

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
    let error = fixture.objects().payload(revision, &everything()).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(matches!(error, Error::Damaged { .. }) && source.contains(&id.to_string()), "{error}: {source}");
    assert!(error.is_transient(), "the next fetch mends it");
    assert!(fixture.shared.take_damage(), "the next fetch knows");
}

#[test]
fn a_tree_where_a_blob_should_be_is_damage() {
    let fixture = Fixture::new();
    let tree = fixture.tree(&[]);
    let revision = fixture.commit(fixture.tree(&[("100644", b"a", tree)]), &[]);
    let error = fixture.objects().payload(revision, &everything()).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn odd_modes_are_normalised_or_refused() {
    let fixture = Fixture::new();
    let blob = fixture.blob(b"x");
    let modes = ["100664", "104755", "100000", "100777", "120777"];
    let names: Vec<_> = modes.iter().map(|mode| format!("m{mode}")).collect();
    let lines: Vec<_> = modes.iter().zip(&names).map(|(mode, name)| (*mode, name.as_bytes(), blob)).collect();
    let revision = fixture.commit(fixture.tree(&lines), &[]);
    let payload = fixture.objects().payload(revision, &everything()).unwrap();
    let kinds: Vec<_> = Plain::of(&payload).entries.into_values().map(|(kind, ..)| kind).collect();
    use Kind::{Executable, File, Symlink};
    assert_eq!(kinds, [File, File, Executable, Executable, Symlink], "in the order of their names");
    for mode in ["60000", "140000", "10000", "0"] {
        let revision = fixture.commit(fixture.tree(&[(mode, b"odd", blob)]), &[]);
        let (path, rule) = refused(fixture.objects().payload(revision, &everything()));
        assert!(path == "odd" && matches!(rule, Rule::Mode { .. }), "{mode}: {rule}");
    }
}

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
fn the_cost_of_a_delta_is_what_changed() {
    let fixture = Fixture::new();
    let wide: Model =
        (0..50).flat_map(|dir| (0..20).map(move |f| (format!("d{dir}/f{f}"), file("x")))).collect();
    let mut new = wide.clone();
    new.insert("d7/f3".into(), file("changed"));
    let old = fixture.objects().payload(fixture.commit_of(&wide), &everything()).unwrap();
    // Unchanged trees are not read, so they may be absent.
    let to = fixture.commit_of(&new);
    let same = fixture.tree_of(&model(&[("f0", "x")]));
    assert_ne!(to.0, same);
    let delta = fixture.objects().delta(base(&old), to, &everything()).unwrap().unwrap();
    assert_eq!((delta.removed.len(), delta.written.len()), (1, 1));
    assert_eq!(&*delta.written[0].path, b"d7/f3");
    assert_eq!((delta.entries, delta.bytes), (old.count(), old.bytes + 6));
}

/// Paths some of which collide as file and directory.
fn arb_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c.txt", "d"]), 1..4)
        .prop_map(|parts| parts.join("/"))
}

fn arb_node() -> impl Strategy<Value = Option<(Kind, Vec<u8>)>> {
    prop_oneof![
        6 => (0..4u8).prop_map(|n| Some((Kind::File, vec![b'x'; n as usize]))),
        2 => (0..3u8).prop_map(|n| Some((Kind::Executable, vec![b'x'; n as usize]))),
        2 => prop::sample::select(vec!["a", "b/c", "c.txt"]).prop_map(|to| Some((Kind::Symlink, to.into()))),
        1 => (0..2u8).prop_map(|n| Some((Kind::Submodule, vec![0; n as usize]))),
        1 => Just(None),
    ]
}

fn arb_model() -> impl Strategy<Value = Model> {
    prop::collection::btree_map(arb_path(), arb_node(), 0..12).prop_map(|all| {
        // Drop paths below a path that is a file.
        let leaf = |path: &str| all.get(path).is_some_and(Option::is_some);
        let below_leaf = |path: &str| path.match_indices('/').any(|(at, _)| leaf(&path[..at]));
        all.iter().filter(|(path, _)| !below_leaf(path)).map(|(p, n)| (p.clone(), n.clone())).collect()
    })
}

fn arb_sparse() -> impl Strategy<Value = Option<String>> {
    let lines = vec!["/*", "!/*/", "/a/", "!/a/b/", "c.txt", "b", "!d", "/a/*", "!*.txt", "/b/a/", "d/"];
    prop::option::of(
        prop::collection::vec(prop::sample::select(lines), 1..5).prop_map(|lines| lines.join("\n")),
    )
}

thread_local! {
    /// Shared by all cases, because objects are only added.
    static FIXTURE: Fixture = Fixture::new();
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

    #[test]
    fn what_differs_leads_from_one_list_to_the_other(old in arb_model(), new in arb_model(), all in any::<bool>()) {
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
fn what_differs_is_not_told_where_a_path_leads_to_two_things() {
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
fn what_differs_is_not_told_of_trees_that_name_each_other_again_and_again_or_of_too_many_paths() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..10).map(|name| name.to_string()).collect();
    // Ten thousand million directories, all of which differ, without a single file.
    let chain = |mut tree| {
        for _ in 0..10 {
            let lines: Vec<_> = names.iter().map(|name| ("40000", name.as_bytes(), tree)).collect();
            tree = fixture.tree(&lines);
        }
        fixture.commit(tree, &[])
    };
    let empty = fixture.tree(&[]);
    let (one, other) = (chain(empty), chain(fixture.tree(&[("40000", b"x", empty)])));
    let objects = fixture.objects();
    assert_eq!(objects.changed_paths(one, other, &|_| true).unwrap(), None);

    let flat = |count: usize| {
        let names: Vec<String> = (0..count).map(|name| format!("{name:06}")).collect();
        let blob = fixture.blob(b"1");
        let lines: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), blob)).collect();
        fixture.commit(fixture.tree(&lines), &[])
    };
    let nothing = fixture.commit(empty, &[]);
    let told = |count| objects.changed_paths(nothing, flat(count), &|_| true).unwrap();
    assert_eq!(told(20_000).unwrap().len(), 20_000);
    assert_eq!(told(100_000), None);
}

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
    use std::collections::HashSet;

    use tokio_util::sync::CancellationToken;

    use super::Depth::{Commits, Full};
    use super::closure::{HistoryWalk, LocalHistory};
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
    use super::closure::tree_closure;
    let fixture = Fixture::new();
    let old = fixture.tree_of(&model(&[("a/b/c", "1"), ("d", "2")]));
    let new = fixture.tree_of(&model(&[("a/b/c", "1"), ("d", "3"), ("e/f", "4")]));
    let check = |base| {
        let store = fixture.shared.store().unwrap();
        tree_closure(&store.reader().unwrap(), new, base, false)
    };
    assert_eq!(check(None), Ok(()));
    fixture.lose(fixture.blob(b"4"));
    assert!(check(Some(old)).unwrap_err().to_string().contains(&fixture_id(b"4").to_string()));
    fixture.blob(b"4");
    fixture.lose(fixture_id(b"1"));
    assert_eq!(check(Some(old)), Ok(()), "what the base has is not asked for again");
    assert!(check(None).is_err());
}

#[test]
fn a_blob_is_checked_once_however_many_trees_name_it() {
    use super::closure::closure_beside;
    let fixture = Fixture::new();
    let blob = fixture.blob(b"x");
    let [a, b] = ["a", "b"].map(|name| fixture.tree(&[("100644", name.as_bytes(), blob)]));
    let top = fixture.tree(&[("40000", b"a", a), ("40000", b"b", b)]);
    let named = std::cell::Cell::new(0);
    let lose_when_named_again = |id: &ObjectId| {
        named.set(named.get() + 1);
        if named.get() == 2 {
            fixture.lose(*id);
        }
        false
    };
    let store = fixture.shared.store().unwrap();
    let checked = closure_beside(&store.reader().unwrap(), top, None, false, lose_when_named_again);
    assert_eq!((checked, named.get()), (Ok(()), 2));
}

#[test]
fn what_a_partial_clone_lacks_is_not_looked_for_in_packs_that_came_since() {
    use super::closure::tree_closure;
    let fixture = Fixture::new();
    let file = fixture.tree(&[]);
    let dir = fixture.blob(b"no tree");
    let tree = fixture.tree(&[("40000", b"dir", dir), ("100644", b"file", file)]);
    let check = |reader: &super::odb::ObjectReader<'_>| tree_closure(reader, tree, None, true);
    let store = fixture.shared.store().unwrap();
    let mut builder = store.builder().unwrap();
    for id in [file, dir] {
        builder.insert_object(super::odb::oid(&id), None).unwrap();
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

#[test]
fn blobs_are_read_as_they_lie_in_their_pack() {
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
        builder.insert_object(super::odb::oid(&fixture_id(format!("content {n}").as_bytes())), None).unwrap();
    }
    let packs = fixture.layout.dir().join("objects/pack");
    builder.write(&packs, 0o444).unwrap();
    let index = packs.join(format!("pack-{}.idx", builder.name().unwrap().unwrap()));
    let mut places = std::collections::HashMap::new();
    super::pack_index::each_offset(&index, |id, offset| _ = places.insert(id, offset)).unwrap();
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

fn fixture_id(content: &[u8]) -> ObjectId {
    let id = git2::Oid::hash_object(git2::ObjectType::Blob, content).unwrap();
    ObjectId(id.as_bytes().try_into().unwrap())
}
