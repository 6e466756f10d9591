//! Tests of what is read from a mirror, on trees that are written by hand. This file has what they share.

mod blobs;
mod changed_paths;
mod closure;
mod damage;
mod deep;
mod deltas;
mod payloads;

use proptest::prelude::*;

use super::fixture::{Fixture, Model};
use super::{Base, Error};
use crate::payload::{Kind, Payload, Rule};

/// The greatest `--max-path-depth`, and git-sync's default.
const DEEPEST: u32 = 1_000;

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
