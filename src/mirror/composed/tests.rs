//! Tests of composed revisions, on objects that are written by hand.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use super::{Composer, Part, UniqueBaseNames};
use crate::mirror::fixture::{Fixture, Model, everything, part};
use crate::mirror::{Error, Selection};
use crate::payload::{Kind, Limits, Rule, Rules};
use crate::revision::{ObjectId, Revision};

/// A mirror, and a composer that reads it.
struct World {
    mirror: Fixture,
    composer: Composer,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(limits: Limits) -> Self {
        let mirror = Fixture::new();
        let dir = tempfile::tempdir().unwrap();
        let composer = Composer::open(&dir.path().join("composed"), false, limits).unwrap();
        composer.read_from(&[mirror.layout.dir().to_owned()]);
        Self { mirror, composer, _dir: dir }
    }

    fn compose(&self, parts: &[Part], globs: &[&str]) -> Result<Revision, Error> {
        let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
        let unique = UniqueBaseNames::parse(globs).unwrap();
        self.composer.compose(parts, &unique, &CancellationToken::new())
    }
}

fn model(paths: &[&str]) -> Model {
    paths
        .iter()
        .map(|path| ((*path).to_owned(), Some((Kind::File, b"x".to_vec()))))
        .collect::<BTreeMap<_, _>>()
}

/// A commit whose directory `deep` was deleted after it was written, so that reading it fails.
fn with_a_lost_directory(mirror: &Fixture) -> (Revision, ObjectId) {
    let blob = mirror.blob(b"x");
    let deep = mirror.tree(&[("100644", b"lost.yaml", blob)]);
    let top = mirror.tree(&[("100644", b"a.yaml", blob), ("40000", b"deep", deep)]);
    (mirror.commit(top, &[]), deep)
}

#[test]
fn a_second_writer_is_refused_until_the_first_one_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Composer::open(&dir.path().join("composed"), false, Limits::default());
    let first = open().unwrap();
    assert!(matches!(open(), Err(Error::Locked { .. })));
    drop(first);
    open().unwrap();
}

#[test]
fn a_repository_that_was_removed_while_it_was_open_is_made_again_with_its_lock() {
    let world = World::new(Limits::default());
    let parts = [part("one", world.mirror.commit_of(&model(&["f"])), "one")];
    let revision = world.compose(&parts, &[]).unwrap();
    let dir = world.composer.dir();
    std::fs::remove_dir_all(dir).unwrap();
    world.composer.collect_garbage(&[revision]).unwrap();
    assert!(!dir.exists(), "there is no garbage in it");
    assert_eq!(world.compose(&parts, &[]).unwrap(), revision);
    world.composer.objects().payload(revision, &everything()).unwrap();
    assert!(matches!(Composer::open(dir, false, Limits::default()), Err(Error::Locked { .. })));
}

/// libgit2 does not write an object if a file of its name exists.
#[test]
fn what_a_power_cut_took_of_a_set_is_written_again() {
    let world = World::new(Limits::default());
    let file = world.mirror.commit_of(&model(&["f"]));
    let parts = [part("one", file, "deep/one"), part("two", file, "deep/two")];
    let revision = world.compose(&parts, &[]).unwrap();
    let whole = super::loose::list(&world.composer.dir().join("objects")).unwrap();
    assert!(whole.len() > 2, "the commit and its directories: {whole:?}");
    for (_, path) in &whole {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, "").unwrap();
    }
    let objects = world.composer.objects();
    assert!(objects.payload(revision, &everything()).unwrap_err().is_damage());
    assert_eq!(world.compose(&parts, &[]).unwrap(), revision);
    objects.payload(revision, &everything()).unwrap();
}

#[test]
fn base_names_are_looked_for_where_a_glob_reaches_and_once_a_tree() {
    let world = World::new(Limits::default());
    let (revision, deep) = with_a_lost_directory(&world.mirror);
    let parts =
        [part("jobs", revision, "jobs"), part("steps", world.mirror.commit_of(&model(&["s"])), "steps")];
    let globs = ["jobs/**/*.yaml"];
    let right = world.compose(&parts, &globs).unwrap();
    world.mirror.lose(deep);
    assert_eq!(world.compose(&parts, &globs).unwrap(), right, "it is known to be right");
    for unread in [&[][..], &["steps/**"], &["jobs/dee/*"], &["jobs/a.yaml", "s"]] {
        assert_eq!(world.compose(&parts, unread).unwrap(), right, "{unread:?}");
    }
    let lost = world.compose(&parts, &globs).unwrap_err();
    assert!(lost.is_damage(), "the last globs were others: {lost}");
}

#[test]
fn two_of_one_base_name_are_named_with_their_sources() {
    let world = World::new(Limits::default());
    let one = world.mirror.commit_of(&model(&["a/x.yaml", "b/y.yaml", "z/only"]));
    let two = world.mirror.commit_of(&model(&["c/x.yaml", "z/more"]));
    let mut linked = model(&["q"]);
    linked.insert("y.yaml".into(), Some((Kind::Symlink, b"q".to_vec())));
    let linked = world.mirror.commit_of(&linked);
    let refused = |parts: &[Part], globs: &[&str]| match world.compose(parts, globs) {
        Err(Error::SameBaseName { path, one, other_path, other }) => {
            Some(format!("{path} of {one}, {other_path} of {other}"))
        }
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    };
    let sharing = [part("one", one, "jobs"), part("two", two, "jobs")];
    let said = "jobs/a/x.yaml of one, jobs/c/x.yaml of two";
    assert_eq!(refused(&sharing, &["jobs/**/*.yaml"]).as_deref(), Some(said));
    assert_eq!(refused(&sharing, &["jobs/a/*", "jobs/c/*"]).as_deref(), Some(said), "of different globs");
    assert_eq!(refused(&sharing, &["jobs/a/*", "jobs/b/*"]), None, "one of them does not match");
    assert_eq!(refused(&sharing, &["**/z/*"]), None, "directories are no files");
    // Links count, because readers follow them; two files of the same source are refused, too.
    let said = "jobs/b/y.yaml of one, y.yaml of links";
    let top = [part("links", linked, ""), part("one", one, "jobs")];
    assert_eq!(refused(&top, &["**/*.yaml"]).as_deref(), Some(said));
    let own = world.mirror.commit_of(&model(&["a/x", "b/x"]));
    let said = "a/x of own, b/x of own";
    assert_eq!(refused(&[part("own", own, "")], &["**"]).as_deref(), Some(said));
    // If two sources have the path, the owner is the one whose patterns select it.
    let with = |part: Part, pattern: &str| Part { sparse: vec![pattern.to_owned()], ..part };
    let same = [with(part("without", one, "jobs"), "/z/"), with(part("with", one, "jobs"), "/a/")];
    let third = [&same[..], &[part("third", two, "")]].concat();
    let said = "c/x.yaml of third, jobs/a/x.yaml of with";
    assert_eq!(refused(&third, &["**/x.yaml"]).as_deref(), Some(said));
}

#[test]
fn trees_without_end_are_not_looked_through() {
    let world = World::new(Limits { entries: 1_000, ..Limits::default() });
    let tree = world.mirror.tree(&[("100644", b"f", world.mirror.blob(b"x"))]);
    let parts = [part("bomb", world.mirror.commit(world.mirror.bomb(tree, 12), &[]), "jobs")];
    world.compose(&parts, &[]).unwrap();
    let rule = |globs: &[&str]| match world.compose(&parts, globs) {
        Err(Error::Refused(refusal)) => refusal.rule,
        other => panic!("{other:?}"),
    };
    assert_eq!(rule(&["**/nothing"]), Rule::Entries { limit: 1_000 });
    let deep = Limits { depth: 3, ..Limits::default() };
    let world = World::new(deep);
    let parts = [part("deep", world.mirror.commit_of(&model(&["a/b/c/d/e"])), "jobs")];
    match world.compose(&parts, &["**/nothing"]) {
        Err(Error::Refused(refusal)) => {
            assert_eq!((refusal.path.as_str(), refusal.rule), ("jobs/a/b/c", Rule::Depth { limit: 3 }));
        }
        other => panic!("{other:?}"),
    }
}

/// As deep as `--max-path-depth` may allow, on the stack of a test's thread.
#[test]
fn sources_of_a_thousand_levels_are_filtered_merged_and_searched_for_base_names_and_no_deeper() {
    const DEEPEST: u32 = 1_000;
    let limits = Limits { depth: DEEPEST, ..Limits::default() };
    let world = World::new(limits);
    let blob = world.mirror.blob(b"x");
    let deep = |names: &[&str], dirs: u32| {
        let lines: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), blob)).collect();
        world.mirror.commit(world.mirror.nested(world.mirror.tree(&lines), dirs), &[])
    };
    let one_of = |part: Part| Part { sparse: vec!["one".to_owned()], ..part };
    let parts = |dirs| {
        let [one, two] = [deep(&["left-out", "one"], dirs), deep(&["two"], dirs)];
        [one_of(part("first", one, "")), part("second", two, "")]
    };
    let revision = world.compose(&parts(DEEPEST - 1), &["**"]).unwrap();
    let everything = everything();
    let selection = Selection { rules: Rules { limits, ..everything.rules }, ..everything };
    let payload = world.composer.objects().payload(revision, &selection).unwrap();
    let mut paths: Vec<_> = payload.entries.iter().map(|entry| payload.path_of(entry)).collect();
    paths.sort();
    let way = "d/".repeat(DEEPEST as usize - 1);
    assert_eq!(paths, ["one", "two"].map(|name| format!("{way}{name}").into_bytes()));

    let rule = |parts: &[Part], globs: &[&str]| match world.compose(parts, globs) {
        Err(Error::Refused(refusal)) => refusal.rule,
        Err(Error::OfSource { source, .. }) => match *source {
            Error::Refused(refusal) => refusal.rule,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let [filtered, whole] = parts(DEEPEST + 1);
    let other = part("third", deep(&["three"], DEEPEST + 1), "");
    let expected = Rule::Depth { limit: DEEPEST };
    assert_eq!(rule(&[filtered], &[]), expected);
    assert_eq!(rule(&[whole.clone(), other], &[]), expected);
    assert_eq!(rule(std::slice::from_ref(&whole), &["**/nothing"]), expected);
    world.compose(&[whole], &[]).unwrap(); // nothing of it is read
}

/// On a file system that treats `Jobs` and `jobs` as one name, which was detected when the root was opened.
#[test]
fn places_that_a_folding_file_system_would_merge_are_refused_where_it_does() {
    let world = World::new(Limits::default());
    let file = world.mirror.commit_of(&model(&["f"]));
    let parts = [part("one", file, "Jobs"), part("two", file, "jobs")];
    let revision = world.compose(&parts, &[]).unwrap();
    let objects = world.composer.objects();
    objects.payload(revision, &everything()).expect("most file systems have both");
    let folds = Selection { rules: Rules { folds: true, ..Rules::default() }, ..everything() };
    match objects.payload(revision, &folds) {
        Err(Error::Refused(refusal)) => {
            assert_eq!(refusal.path, "jobs");
            assert_eq!(refusal.rule, Rule::Folds { other: "Jobs".to_owned() });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn mirrors_are_not_removed_below_a_reader() {
    let world = World::new(Limits::default());
    let dir = world.mirror.layout.dir().to_owned();
    let reader = world.composer.objects().blobs();
    world.composer.remove_mirrors(std::slice::from_ref(&dir)).unwrap();
    assert!(dir.is_dir());
    drop(reader);
    world.composer.remove_mirrors(std::slice::from_ref(&dir)).unwrap();
    assert!(!dir.exists());
}
