//! Reading payloads: what they contain, and what is refused.

use super::{DEEPEST, base, model, refused};
use crate::mirror::fixture::{Fixture, Plain, everything};
use crate::mirror::{Error, Selection};
use crate::payload::{Kind, Rule};

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
fn a_bomb_of_nested_trees_is_refused_by_counting() {
    let fixture = Fixture::new();
    let tree = fixture.tree(&[("100644", b"f", fixture.blob(b"x"))]);
    let revision = fixture.commit(fixture.bomb(tree, 12), &[]);
    let (_, rule) = refused(fixture.objects().payload(revision, &everything()));
    assert_eq!(rule, Rule::Entries { limit: 1_000_000 });
    // Also with an empty tree, against a base, and with patterns that select nothing.
    let empty = fixture.commit(fixture.bomb(fixture.tree(&[]), 12), &[]);
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
    let tree = fixture.tree(&[("100644", b"f", fixture.blob(b"x"))]);
    let revision = fixture.commit(fixture.nested(tree, 5_000), &[]);
    let (_, rule) = refused(fixture.objects().payload(revision, &everything()));
    assert_eq!(rule, Rule::Depth { limit: 128 });
    let sparse = Selection { sparse: Some("nothing\n".into()), ..everything() };
    let (_, rule) = refused(fixture.objects().payload(revision, &sparse));
    assert_eq!(rule, Rule::Depth { limit: 128 });
}

#[test]
fn a_thousand_levels_that_are_not_selected_are_walked_and_no_more() {
    let fixture = Fixture::new();
    let mut selection = Selection { sparse: Some("top\n".into()), ..everything() };
    selection.rules.limits.depth = DEEPEST;
    let payload = |levels: u32| {
        let bottom = fixture.tree(&[("100644", b"deep", fixture.blob(b"x"))]);
        let tree = fixture.nested(bottom, levels - 1);
        let top = fixture.tree(&[("40000", b"d", tree), ("100644", b"top", fixture.blob(b"y"))]);
        fixture.objects().payload(fixture.commit(top, &[]), &selection)
    };
    let found = Plain::of(&payload(DEEPEST).unwrap());
    assert!(found.entries.into_keys().eq([b"top".to_vec()]) && found.dirs.is_empty());
    assert_eq!(refused(payload(DEEPEST + 1)).1, Rule::Depth { limit: DEEPEST });
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
