//! Symbolic links: which lead to a file of the tree, and why others do not.

use crate::configmap::{BadLink, Entry, FileRef, Tree};
use crate::payload::Parts;

fn file(number: usize) -> Entry {
    Entry::File(number.into())
}

fn link(target: &str) -> Entry {
    Entry::Link(target.into())
}

#[test]
fn links_are_followed_within_the_tree() {
    let mut tree = Tree::default();
    assert!(tree.is_empty());
    let entries = [
        ("a", file(1)),
        ("circle", link("circle")),
        ("dir/b", file(2)),
        ("dir/here", link("./b")),
        ("dir/up", link("../a")),
        ("gone", link("nothing")),
        ("in", link("through/b")),
        ("other", Entry::Other),
        ("out", link("../a")),
        ("prefix", link("di")),
        ("root", link("/a")),
        ("through", link("dir")),
        ("to-other", link("other")),
        ("top", link("dir/..")),
        ("twice", link("dir/up")),
    ];
    for (path, entry) in entries.clone() {
        tree.add(path.into(), entry);
    }
    assert_eq!((tree.len(), tree.is_empty()), (entries.len(), false));
    for (path, expected) in [
        ("a", Ok(1)),
        ("circle", Err(BadLink::Circle)),
        ("dir", Err(BadLink::Directory)),
        ("dir/here", Ok(2)),
        ("dir/up", Ok(1)),
        ("gone", Err(BadLink::Dangling)),
        ("in", Ok(2)),
        ("other", Err(BadLink::NoFile)),
        ("out", Err(BadLink::Leaves)),
        ("prefix", Err(BadLink::Dangling)),
        ("root", Err(BadLink::Leaves)),
        ("through", Err(BadLink::Directory)),
        ("to-other", Err(BadLink::NoFile)),
        ("top", Err(BadLink::Directory)),
        ("twice", Ok(1)),
    ] {
        assert_eq!(tree.resolve(path.as_bytes()), expected.map(FileRef::Index), "{path}");
    }
}

#[test]
fn as_many_links_are_followed_as_linux_does() {
    let mut tree = Tree::default();
    tree.add(b"0".to_vec(), file(1));
    for number in 1..=41 {
        tree.add(number.to_string().into(), link(&(number - 1).to_string()));
    }
    assert_eq!(tree.resolve(b"40"), Ok(FileRef::Index(1)));
    assert_eq!(tree.resolve(b"41"), Err(BadLink::Circle));
}

#[test]
fn no_link_leads_into_another_source() {
    let mut tree = Tree::of(Parts::new(["", "part"].map(Vec::from)));
    for (path, entry) in [
        ("a", file(1)),
        ("part/b", file(2)),
        ("into", link("part/b")),
        ("part/out", link("../a")),
        ("part/own", link("b")),
        ("through", link("part/own")),
        ("within", link("a")),
    ] {
        tree.add(path.into(), entry);
    }
    for path in ["into", "part/out", "through"] {
        assert_eq!(tree.resolve(path.as_bytes()), Err(BadLink::LeavesPart), "{path}");
    }
    assert_eq!(tree.resolve(b"part/own"), Ok(FileRef::Index(2)));
    assert_eq!(tree.resolve(b"within"), Ok(FileRef::Index(1)));
}
