//! Walks through trees as deep as `--max-path-depth` may allow, on the stack of a test's thread, which is as large as
//! that of the threads that walk. More of them are in `payloads`, `partial` and `composed`.

use std::path::{Path, PathBuf};

use super::{DEEPEST, base};
use crate::mirror::fixture::{Fixture, blob_id, everything};
use crate::mirror::{ChangedPath, Error, ListedEntry, Selection, files, git_index};
use crate::payload::{Limits, Rule, Rules};
use crate::revision::{ObjectId, Revision};

/// A selection of everything, with paths of a thousand components.
fn deep_selection() -> Selection {
    let limits = Limits { depth: DEEPEST, ..Limits::default() };
    let everything = everything();
    Selection { rules: Rules { limits, ..everything.rules }, ..everything }
}

/// A commit of one file with this content, in so many directories.
fn deep(fixture: &Fixture, content: &[u8], dirs: u32) -> Revision {
    let bottom = fixture.tree(&[("100644", b"f", fixture.blob(content))]);
    fixture.commit(fixture.nested(bottom, dirs), &[])
}

/// On tmpfs if there is one: a disk's file system may take seconds to make so many directories one in the other.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Makes as many directories in `top`, which it makes, too, as a path may lead through. Calls `fill` with the path and
/// the depth of each. Returns the path of the deepest.
fn make_dirs(top: &Path, fill: impl Fn(&Path, usize)) -> PathBuf {
    let mut dir = top.to_owned();
    for depth in 0..DEEPEST as usize {
        if depth > 0 {
            dir.push("d");
        }
        std::fs::create_dir(&dir).unwrap();
        fill(&dir, depth);
    }
    dir
}

/// Removes what [`make_dirs`] made. (The standard library would hold a descriptor for each level.)
fn remove_dirs(top: &Path, mut deepest: PathBuf) {
    while deepest.starts_with(top) {
        for entry in std::fs::read_dir(&deepest).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        std::fs::remove_dir(&deepest).unwrap();
        deepest.pop();
    }
}

#[test]
fn a_thousand_levels_are_listed_and_compared_and_no_more() {
    let fixture = Fixture::new();
    let objects = fixture.objects();
    let (old, new) = (deep(&fixture, b"old", DEEPEST), deep(&fixture, b"new", DEEPEST));
    let path = format!("{}f", "d/".repeat(DEEPEST as usize)).into_bytes();
    let now = ListedEntry::File(blob_id(b"new"));
    assert_eq!(objects.list(new, &|_| true).unwrap(), [(path.clone(), now.clone())]);
    let changed = objects.changed_paths(old, new, &|_| true).unwrap().unwrap();
    assert_eq!(changed, [ChangedPath { path, before: true, now: Some(now) }]);
    let deeper = deep(&fixture, b"new", DEEPEST + 1);
    assert_eq!(objects.changed_paths(old, deeper, &|_| true).unwrap(), None);
    match objects.list(deeper, &|_| true) {
        Err(Error::Refused(refusal)) => assert_eq!(refusal.rule, Rule::Depth { limit: DEEPEST }),
        other => panic!("{other:?}"),
    }
    let above = objects.list(deeper, &|path: &[u8]| path.len() < 9).unwrap();
    assert!(above.is_empty(), "it is walked no deeper than it is entered");
}

#[test]
fn listed_paths_are_bounded_together() {
    let fixture = Fixture::new();
    let objects = fixture.objects();
    let long = fixture.tree(&[("100644", &[b'n'; 1 << 20], fixture.blob(b"x"))]);
    let names: Vec<String> = (0..128).map(|number| format!("{number:03}")).collect();
    let top = |count: usize| {
        let dirs: Vec<_> = names[..count].iter().map(|name| ("40000", name.as_bytes(), long)).collect();
        fixture.commit(fixture.tree(&dirs), &[])
    };
    assert_eq!(objects.list(top(127), &|_| true).unwrap().len(), 127);
    match objects.list(top(128), &|_| true) {
        Err(Error::Refused(refusal)) => {
            assert_eq!(refusal.rule, Rule::Listed { paths: 1_000_000, bytes: 128 << 20 });
            let hints = refusal.hints().join("; ");
            assert!(hints.contains("globs of the rules") && !hints.contains("--"), "{hints}");
        }
        other => panic!("{}", other.is_ok()),
    }
}

/// Links of a few bytes may name one target of 4,095 bytes any number of times.
#[test]
fn the_targets_of_listed_links_are_bounded_with_the_paths() {
    let fixture = Fixture::new();
    let objects = fixture.objects();
    let long = fixture.tree(&[("100644", &[b'n'; 1 << 20], fixture.blob(b"x"))]);
    let target = fixture.blob(&[b't'; 4_095]);
    let names: Vec<String> = (0..1_024).map(|number| format!("{number:04}")).collect();
    let links: Vec<_> = names.iter().map(|name| ("120000", name.as_bytes(), target)).collect();
    let links = fixture.tree(&links);
    // 120 MiB of paths, and some 4 MiB for each directory of links.
    let top = |dirs_of_links: usize| {
        let tree = |at: usize| if at < 120 { long } else { links };
        let dirs = names[..120 + dirs_of_links].iter().enumerate();
        let dirs: Vec<_> = dirs.map(|(at, name)| ("40000", name.as_bytes(), tree(at))).collect();
        fixture.commit(fixture.tree(&dirs), &[])
    };
    assert_eq!(objects.list(top(1), &|_| true).unwrap().len(), 120 + 1_024);
    match objects.list(top(2), &|_| true) {
        Err(Error::Refused(refusal)) => {
            assert_eq!(refusal.rule, Rule::Listed { paths: 1_000_000, bytes: 128 << 20 });
        }
        other => panic!("{}", other.is_ok()),
    }
}

/// What is unchanged is compared on the stack, no deeper than 256 levels.
#[test]
fn what_is_unchanged_many_levels_down_keeps_its_directory() {
    let fixture = Fixture::new();
    let blob = fixture.blob(b"x");
    let bottom = fixture.tree(&[("100644", b"f", blob)]);
    for (levels, is_compared) in [(250, true), (300, false)] {
        let keep = fixture.nested(bottom, levels);
        let top = |lines: &[(&str, &[u8], ObjectId)]| {
            fixture.commit(fixture.tree(&[("40000", b"a", fixture.tree(lines))]), &[])
        };
        let old = top(&[("100644", b"gone", blob), ("40000", b"keep", keep)]);
        let new = top(&[("40000", b"keep", keep)]);
        let old = fixture.objects().payload(old, &deep_selection()).unwrap();
        let delta = fixture.objects().delta(base(&old), new, &deep_selection()).unwrap();
        let counts = delta.map(|delta| (delta.removed.len(), delta.removed_dirs.len(), delta.written.len()));
        assert_eq!(counts, is_compared.then_some((1, 0, 0)), "{levels}");
    }
}

/// The path and the file's size of each entry of an index of version 2, whose paths are shorter than 4,095 bytes.
fn entries_of_index(index: &[u8], count: usize) -> Vec<(Vec<u8>, u32)> {
    let mut rest = &index[12..];
    let mut entries = Vec::new();
    for _ in 0..count {
        let length = u16::from_be_bytes([rest[60], rest[61]]) as usize;
        let size = u32::from_be_bytes(rest[36..40].try_into().unwrap());
        entries.push((rest[62..62 + length].to_vec(), size));
        rest = &rest[(62 + length) / 8 * 8 + 8..];
    }
    entries
}

#[test]
fn a_worktree_of_a_thousand_levels_gets_its_index() {
    let fixture = Fixture::new();
    // A file before and one after the directory in each, so that the walk comes back to directories it has left. The
    // size of a file is the number of its directory.
    let blob = fixture.blob(b"x");
    let mut trees = vec![fixture.tree(&[("100644", b"a", blob), ("100644", b"z", blob)])];
    for _ in 1..DEEPEST {
        let inner = trees[trees.len() - 1];
        trees.push(fixture.tree(&[("100644", b"a", blob), ("40000", b"d", inner), ("100644", b"z", blob)]));
    }
    let revision = fixture.commit(trees[trees.len() - 1], &[]);
    let dir = scratch();
    let staged = dir.path().join("staged");
    let deepest = make_dirs(&staged, |dir, depth| {
        for name in ["a", "z"] {
            std::fs::write(dir.join(name), vec![0u8; depth]).unwrap();
        }
    });
    let added =
        fixture.objects().add_worktree(revision, &deep_selection(), &staged, &dir.path().join("place"));
    remove_dirs(&staged, deepest);
    added.unwrap();

    let index = fixture.layout.dir().join("worktrees").join(revision.to_string()).join("index");
    let index = std::fs::read(index).unwrap();
    let mut ids = Vec::new();
    git_index::each_id(&index[..], |id| ids.push(id)).unwrap();
    assert_eq!(ids, vec![blob; 2 * DEEPEST as usize]);
    let down = 0..DEEPEST as usize;
    let expected = |name: &'static str| {
        move |depth: usize| (format!("{}{name}", "d/".repeat(depth)).into_bytes(), depth as u32)
    };
    let expected: Vec<_> = down.clone().map(expected("a")).chain(down.rev().map(expected("z"))).collect();
    assert!(entries_of_index(&index, ids.len()) == expected, "a path, or the stat data of a file, is wrong");
    // The tree cache: each tree with the number of entries and trees in it. A checksum follows it.
    let mut cache = Vec::new();
    for (number, tree) in trees.iter().enumerate().rev() {
        let name = if number + 1 == trees.len() { "" } else { "d" };
        let counts = format!("{name}\0{} {}\n", 2 * (number + 1), usize::from(number > 0));
        cache.extend([counts.as_bytes(), &tree.0].concat());
    }
    assert!(index[..index.len() - 20].ends_with(&cache), "the tree cache is wrong");
}

#[test]
fn a_worktree_that_is_deeper_than_a_path_may_be_is_refused() {
    let fixture = Fixture::new();
    let dir = tempfile::tempdir().unwrap();
    let revision = deep(&fixture, b"x", DEEPEST);
    let place = dir.path().join("place");
    match fixture.objects().add_worktree(revision, &deep_selection(), dir.path(), &place) {
        Err(Error::Refused(refusal)) => assert_eq!(refusal.rule, Rule::Depth { limit: DEEPEST }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_thousand_levels_of_directories_take_is_measured() {
    let dir = scratch();
    let top = dir.path().join("top");
    let deepest = make_dirs(&top, |_, _| ());
    std::fs::write(deepest.join("f"), vec![7u8; 100_000]).unwrap();
    let bytes = files::disk_bytes(dir.path());
    remove_dirs(&top, deepest);
    assert!(bytes >= 100_000, "{bytes}");
}
