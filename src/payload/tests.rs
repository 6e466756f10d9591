//! The rules, one table each, for whole trees and for deltas alike.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::testing::{Blobs, Tree, delta, id_of, payload, tree, trees};
use super::*;

fn strict() -> Rules {
    Rules { reserve_dotdot: true, ..Rules::default() }
}

fn builder(rules: Rules) -> Builder {
    Builder::new(Revision(id_of(b"revision")), id_of(b"tree"), rules)
}

/// The rule that refuses a file of this name at the top, by both builders; they must agree.
fn refused_name(name: &[u8], rules: Rules) -> Option<Rule> {
    let whole = builder(rules).file(DirIndex::TOP, name, false, id_of(b""), 0).err().map(|r| r.rule);
    let revision = Revision(id_of(b"revision"));
    let tree = id_of(b"tree");
    let mut delta = DeltaBuilder::new(id_of(b"base"), 0, 0, revision, tree, rules);
    assert_eq!(delta.file(b"", name, false, id_of(b""), 0).err().map(|r| r.rule), whole, "{name:?}");
    assert_eq!(delta.dir(b"", name).err().map(|r| r.rule), whole, "{name:?}");
    whole
}

#[test]
fn names_that_git_refuses_are_refused() {
    for name in [
        &b".git"[..],
        b".GIT",
        b".gIt",
        b"git~1",
        b"GIT~1",
        b".git ",
        b".git.",
        b".git . .",
        b"git~1.",
        b".git::$INDEX_ALLOCATION",
        b".git:stream",
        b".git. ::$DATA",
        b".git\\hooks",
        b"a\\.git",
        b".git\xff",
        ".g\u{200c}it".as_bytes(),
        "\u{feff}.git".as_bytes(),
        ".Git\u{206f}".as_bytes(),
    ] {
        assert_eq!(refused_name(name, strict()), Some(Rule::NameDotGit), "{}", name.escape_ascii());
    }
    for name in [
        &b".gitignore"[..],
        b".gitattributes",
        b".gitmodules",
        b".gitx",
        b"git",
        b"git~2",
        b".git-",
        b"x.git",
        b".git\xc3\xa9",
    ] {
        assert_eq!(refused_name(name, strict()), None, "{}", name.escape_ascii());
    }
}

#[test]
fn names_that_cannot_be_one_component_are_refused() {
    assert_eq!(refused_name(b"", strict()), Some(Rule::NameEmpty));
    assert_eq!(refused_name(b".", strict()), Some(Rule::NameDots));
    assert_eq!(refused_name(b"..", strict()), Some(Rule::NameDots));
    for name in [&b"/"[..], b"/abs", b"a/b", b"a/../../b", b"a\0b", b"\0"] {
        assert_eq!(refused_name(name, strict()), Some(Rule::NameSeparator), "{}", name.escape_ascii());
    }
    assert_eq!(refused_name(&[b'n'; 255], strict()), None);
    assert_eq!(refused_name(&[b'n'; 256], strict()), Some(Rule::NameLong { bytes: 256, limit: 255 }));
    let long = b"/.git".repeat(200_000);
    assert_eq!(refused_name(&long, strict()), Some(Rule::NameLong { bytes: long.len(), limit: 255 }));
}

#[test]
fn odd_names_are_bytes_like_any_other() {
    for name in
        [&b"..\\evil"[..], b"con", b"trailing ", b"new\nline", b"\x1b[2J", b"-rf", b"\xff\xfe", b"*", b"~"]
    {
        let rules = Rules::default();
        assert_eq!(refused_name(name, rules), None, "{}", name.escape_ascii());
    }
}

#[test]
fn two_leading_dots_are_reserved_at_the_top_only_and_only_when_asked() {
    for name in
        [&b"..data"[..], b"..data_tmp", b"...", b"..x", b"..2026_11_20_15_04_05.123456789", b"..treeswap"]
    {
        assert_eq!(refused_name(name, strict()), Some(Rule::NameReserved));
        assert_eq!(refused_name(name, Rules::default()), None);
    }
    let below = tree(&[("d/..data", Kind::File, "")]);
    assert!(payload(&below, strict()).is_ok());
    assert!(delta(&Tree::new(), &below, strict()).is_ok());
}

#[test]
fn names_that_a_folding_file_system_takes_for_reserved_ones_are_refused_there() {
    let folding = Rules { folds: true, ..strict() };
    for name in [".\u{200c}.data", "\u{ad}..data_tmp", ".\u{fe0f}.", ".\u{e0001}\u{2064}.x"] {
        let name = name.as_bytes();
        assert_eq!(refused_name(name, folding), Some(Rule::NameFoldsReserved), "{}", name.escape_ascii());
        let elsewhere = Rules { reserve_dotdot: false, ..folding };
        for rules in [strict(), elsewhere] {
            assert_eq!(refused_name(name, rules), None, "{}", name.escape_ascii());
        }
    }
    assert_eq!(refused_name("..\u{200c}data".as_bytes(), folding), Some(Rule::NameReserved));
    for name in [".g\u{ad}it", ".GIT\u{200b}"] {
        let in_git_sync = Rules { reserve_dotdot: false, ..folding };
        assert_eq!(refused_name(name.as_bytes(), in_git_sync), Some(Rule::NameDotGit), "{name:?}");
        assert_eq!(refused_name(name.as_bytes(), strict()), None, "{name:?}");
    }
    for name in [&b".a.data"[..], ".\u{e9}.data".as_bytes(), b"\xff..data", b".\xff.data"] {
        assert_eq!(refused_name(name, folding), None, "{}", name.escape_ascii());
    }
    let malformed = [".g\u{ad}it".as_bytes(), b"\xff"].concat();
    assert_eq!(refused_name(&malformed, folding), None, "names that are no UTF-8 do not fold");
    assert!(payload(&tree(&[("d/.\u{200c}.data", Kind::File, "")]), folding).is_ok());
}

#[test]
fn modes_become_files_executables_links_directories_and_submodules_or_are_refused() {
    use Kind::*;
    for (mode, node) in [
        (0o100_644, Some(Node::Entry(File))),
        (0o100_664, Some(Node::Entry(File))),
        (0o100_600, Some(Node::Entry(File))),
        (0o100_000, Some(Node::Entry(File))),
        (0o104_644, Some(Node::Entry(File))),
        (0o100_755, Some(Node::Entry(Executable))),
        (0o100_777, Some(Node::Entry(Executable))),
        (0o104_755, Some(Node::Entry(Executable))),
        (0o106_755, Some(Node::Entry(Executable))),
        (0o101_700, Some(Node::Entry(Executable))),
        (0o120_000, Some(Node::Entry(Symlink))),
        (0o120_777, Some(Node::Entry(Symlink))),
        (0o160_000, Some(Node::Entry(Submodule))),
        (0o040_000, Some(Node::Dir)),
        (0o040_755, Some(Node::Dir)),
        (0, None),
        (0o644, None),
        (0o140_000, None),
        (0o060_000, None),
        (0o020_000, None),
        (0o010_644, None),
        (0o110_644, None),
        (0o300_644, None),
        (u32::MAX, None),
    ] {
        assert_eq!(Node::of(mode), node, "{mode:o}");
    }
    let refusal = builder(strict()).node(DirIndex::TOP, b"dev", 0o060_000).unwrap_err();
    assert!(refusal.to_string().contains("mode 060000"), "{refusal}");
}

/// The rule that refuses a link at `path`, by both builders; they must agree.
fn refused_link(path: &str, target: &[u8], symlinks: Symlinks) -> Option<Rule> {
    let linked = Tree::from([(path.as_bytes().to_vec(), (Kind::Symlink, target.to_vec()))]);
    let rules = Rules { symlinks, ..strict() };
    let whole = payload(&linked, rules).err().map(|refusal| refusal.rule);
    assert_eq!(delta(&Tree::new(), &linked, rules).err().map(|refusal| refusal.rule), whole);
    whole
}

#[test]
fn links_stay_inside_the_tree() {
    for (path, target) in [
        ("l", "f"),
        ("l", "./f"),
        ("l", "d//f/"),
        ("l", "."),
        ("l", "missing"),
        ("l", "l"),
        ("l", "...x"),
        ("l", "..x/f"),
        ("d/l", ".."),
        ("d/l", "../f"),
        ("d/l", "./../f"),
        ("a/b/c/l", "../../../f"),
    ] {
        assert_eq!(refused_link(path, target.as_bytes(), Symlinks::Safe), None, "{path} -> {target}");
    }
    for (path, target) in [
        ("l", "/etc/passwd"),
        ("l", "/"),
        ("l", "//host"),
        ("l", ".."),
        ("l", "../other"),
        ("l", "./../x"),
        ("d/l", "../../..data/x"),
        ("a/b/l", "../../../g/a/b"),
    ] {
        let rule = Rule::LinkLeaves { target: target.to_owned() };
        assert_eq!(refused_link(path, target.as_bytes(), Symlinks::Safe), Some(rule), "{path} -> {target}");
    }
    for (path, target) in [("l", "d/.."), ("l", "d/../.."), ("a/b/c/l", "up/../.."), ("d/l", "../x/../y")] {
        let rule = Rule::LinkTurns { target: target.to_owned() };
        assert_eq!(refused_link(path, target.as_bytes(), Symlinks::Safe), Some(rule), "{path} -> {target}");
    }
}

#[test]
fn links_stay_inside_their_source_unless_they_are_kept() {
    let parts = || Parts::new([b"one".to_vec(), b"two".to_vec()]);
    for (symlinks, target, is_refused) in [
        (Symlinks::Safe, "../two/f", true),
        (Symlinks::Safe, "d/f", false),
        (Symlinks::Safe, "./../two/f", true),
        (Symlinks::Keep, "../two/f", false),
    ] {
        let rule = Rule::LinkLeavesSource { target: target.to_owned() };
        let rules = Rules { symlinks, ..strict() };
        let mut whole = builder(rules).of_parts(parts());
        let dir = whole.dir(DirIndex::TOP, b"one").unwrap();
        let refused = whole.symlink(dir, b"l", id_of(b""), target.as_bytes()).err();
        assert_eq!(refused.map(|refusal| refusal.rule), is_refused.then(|| rule.clone()), "{target}");
        let revision = Revision(id_of(b""));
        let mut delta = DeltaBuilder::new(id_of(b""), 0, 0, revision, id_of(b""), rules).of_parts(parts());
        let refused = delta.symlink(b"one", b"l", id_of(b""), target.as_bytes()).err();
        assert_eq!(refused.map(|refusal| refusal.rule), is_refused.then_some(rule), "{target}");
    }
}

#[test]
fn kept_links_may_lead_anywhere_but_must_be_links() {
    for target in ["/etc/passwd", "../..", "d/../.."] {
        assert_eq!(refused_link("l", target.as_bytes(), Symlinks::Keep), None);
    }
    for symlinks in [Symlinks::Safe, Symlinks::Keep] {
        assert_eq!(refused_link("l", b"", symlinks), Some(Rule::LinkEmpty));
        assert_eq!(refused_link("l", b"a\0b", symlinks), Some(Rule::LinkNul));
        assert_eq!(refused_link("l", &[b'a'; 4095], symlinks), None);
        assert_eq!(refused_link("l", &[b'a'; 4096], symlinks), Some(Rule::LinkLong { bytes: 4096 }));
        assert_eq!(refused_link("d/.gitModules", b"x", symlinks), Some(Rule::LinkGitModules));
    }
}

#[test]
fn a_name_comes_once_whatever_it_is() {
    let empty = id_of(b"");
    let full = id_of(b"x");
    let twice = |make: &dyn Fn(&mut Builder) -> Result<(), Refusal>| {
        let mut all = builder(strict());
        let top = all.dir(DirIndex::TOP, b"top").unwrap();
        all.file(top, b"other", false, full, 1).unwrap();
        make(&mut all).unwrap();
        let refusal = all.finish().unwrap_err();
        assert_eq!((refusal.rule, &*refusal.path), (Rule::Duplicate, "n"));
    };
    twice(&|b| {
        b.file(DirIndex::TOP, b"n", false, empty, 0)?;
        b.file(DirIndex::TOP, b"n", true, full, 1)
    });
    twice(&|b| {
        b.symlink(DirIndex::TOP, b"n", full, b"x")?;
        b.dir(DirIndex::TOP, b"n").map(|_| ())
    });
    twice(&|b| {
        let dir = b.dir(DirIndex::TOP, b"n")?;
        b.file(dir, b"inside", false, empty, 0)?;
        b.submodule(DirIndex::TOP, b"n", full)
    });
    twice(&|b| {
        b.dir(DirIndex::TOP, b"n")?;
        b.dir(DirIndex::TOP, b"n").map(|_| ())
    });
    let revision = Revision(full);
    let id = full;
    let delta = DeltaBuilder::new(id, 0, 0, revision, id, strict());
    let listing = [(&b"n"[..], 0o100_644), (b"m", 0o100_644), (b"n", 0o040_000)];
    assert_eq!(delta.listing(b"d", || listing.into_iter()).unwrap_err().to_string(), {
        let refusal = Refusal { revision, path: "d/n".into(), rule: Rule::Duplicate };
        refusal.to_string()
    });
    let listing = [(&b"a"[..], 0o100_644), (b"a.b", 0o140_000)];
    assert_eq!(delta.listing(b"", || listing.into_iter()).unwrap_err().rule, Rule::Mode { mode: 0o140_000 });
}

#[test]
fn names_that_a_folding_file_system_mixes_up_are_refused_there() {
    let pair = tree(&[("d/README", Kind::File, ""), ("d/readme", Kind::File, ""), ("D", Kind::File, "")]);
    assert!(payload(&pair, strict()).is_ok());
    let folding = Rules { folds: true, ..strict() };
    let refusal = payload(&pair, folding).unwrap_err();
    assert!(matches!(&refusal.rule, Rule::Folds { .. }), "{refusal}");
    let delta = DeltaBuilder::new(id_of(b""), 0, 0, refusal.revision, id_of(b""), folding);
    let listing = [("\u{c9}".as_bytes(), 0o100_644), ("\u{e9}".as_bytes(), 0o100_644)];
    assert!(matches!(delta.listing(b"d", || listing.into_iter()).unwrap_err().rule, Rule::Folds { .. }));
    let apart = [(&b"readme"[..], 0o100_644), (b"\xff", 0o100_644), (b"\xfe", 0o100_644)];
    delta.listing(b"d", || apart.into_iter()).unwrap();
    let bytes = [(&b"\xffA"[..], 0o100_644), (b"\xffa", 0o100_644)];
    assert!(delta.listing(b"d", || bytes.into_iter()).is_err());
}

#[test]
fn every_limit_holds_at_its_value_and_names_its_flag_beyond_it() {
    let all = tree(&[("a/b/c", Kind::File, "12345"), ("a/d", Kind::File, "1"), ("e", Kind::File, "")]);
    let limits = Limits { entries: 5, bytes: 6, file_bytes: 5, depth: 3, path: 5, name: 1 };
    let with = |limits| Rules { limits, ..strict() };
    assert!(payload(&all, with(limits)).is_ok());
    assert!(delta(&Tree::new(), &all, with(limits)).is_ok());
    for (less, flag) in [
        (Limits { entries: 4, ..limits }, Some("--max-tree-entries")),
        (Limits { bytes: 5, ..limits }, Some("--max-tree-bytes")),
        (Limits { file_bytes: 4, ..limits }, Some("--max-file-bytes")),
        (Limits { depth: 2, ..limits }, Some("--max-path-depth")),
        (Limits { path: 4, ..limits }, None),
        (Limits { name: 0, ..limits }, None),
    ] {
        let refusal = payload(&all, with(less)).unwrap_err();
        assert_eq!(refusal.rule.flag(), flag, "{refusal}");
        assert!(
            flag.is_none_or(|flag| refusal.hints().iter().any(|hint| hint.starts_with(flag))),
            "{refusal}"
        );
        let by_delta = delta(&Tree::new(), &all, with(Limits { name: 255, ..less }));
        assert_eq!(by_delta.is_err(), less.name != 0, "{less:?}");
    }
    assert_eq!(Rule::Depth { limit: DEPTH_MAX }.flag(), None, "it cannot be raised");
}

#[test]
fn a_delta_is_held_to_the_limits_of_the_whole() {
    let old = tree(&[("a", Kind::File, "1"), ("b", Kind::File, "2"), ("d/c", Kind::File, "3")]);
    let mut new = old.clone();
    new.insert(b"x".to_vec(), (Kind::File, b"4".to_vec()));
    let four = Rules { limits: Limits { entries: 4, ..Limits::default() }, ..strict() };
    assert!(delta(&old, &new, four).is_err());
    new.remove(&b"a"[..]);
    let replaced = delta(&old, &new, four).unwrap();
    assert_eq!((replaced.entries, replaced.bytes), (4, 3));
}

proptest! {
    #[test]
    fn a_delta_leads_to_the_paths_and_totals_of_the_whole(from in trees(), to in trees()) {
        let rules = Rules { symlinks: Symlinks::Keep, ..Rules::default() };
        let [old, new] = [&from, &to].map(|tree| payload(tree, rules).unwrap());
        let delta = delta(&from, &to, rules).unwrap();
        prop_assert_eq!((delta.entries, delta.bytes), (new.count(), new.bytes));
        let paths = |payload: &Payload| -> BTreeSet<Vec<u8>> {
            let entries = payload.entries.iter().map(|entry| payload.path_of(entry));
            payload.dir_paths().chain(entries).collect()
        };
        let mut reached = paths(&old);
        for path in delta.removed.iter().chain(&delta.removed_dirs) {
            prop_assert!(reached.remove(&**path), "{} is not there", path.escape_ascii());
        }
        for path in delta.added_dirs.iter().chain(delta.written.iter().map(|entry| &entry.path)) {
            prop_assert!(reached.insert(path.to_vec()), "{} is there already", path.escape_ascii());
        }
        prop_assert_eq!(reached, paths(&new));
    }
}

#[test]
fn names_are_bounded_together_and_depth_costs_nothing() {
    let limits = Limits { entries: 10_000, ..Limits::default() };
    let mut all = builder(Rules { limits, ..strict() });
    let mut dir = DirIndex::TOP;
    for _ in 0..14 {
        dir = all.dir(dir, &[b'p'; 255]).unwrap();
    }
    for n in 0..9_000 {
        all.file(dir, format!("{n}").as_bytes(), false, id_of(b""), 0).unwrap();
    }
    let mut all = builder(Rules { limits, ..strict() });
    for n in 0..(1 << 20) / 128 {
        all.dir(DirIndex::TOP, format!("{n:0128}").as_bytes()).expect("1 MiB of names is allowed");
    }
    let refused = all.dir(DirIndex::TOP, b"n").unwrap_err();
    assert_eq!(refused.rule, Rule::Names { limit: 1 << 20 });
}

#[test]
fn a_source_that_knows_no_better_order_is_read_in_the_order_of_the_entries() {
    assert_eq!(Blobs::default().order(&[b"b", b"a", b"c"].map(|text| id_of(text))), [0, 1, 2]);
}

#[test]
fn an_entry_costs_forty_bytes_and_a_directory_twelve() {
    assert_eq!((size_of::<Entry>(), size_of::<super::Dir>()), (40, 12));
}

/// Estimated memory of a path: its bytes, and 64.
#[test]
fn what_changes_too_much_is_no_delta_and_is_not_held() {
    let mut delta = DeltaBuilder::new(id_of(b""), 1_000_000, 0, Revision(id_of(b"")), id_of(b""), strict());
    let (dir, name) = ([b'd'; 900], [b'n'; 59]);
    for _ in 0..(16 << 20) / 1024 {
        delta.remove(&dir, &name, 0);
    }
    assert!(!delta.is_large(), "16 MiB are allowed");
    delta.remove_dir(b"");
    assert!(delta.is_large());
    assert!(delta.finish().unwrap().is_none());
}

#[test]
fn directories_without_contents_are_left_out_as_git_does() {
    let mut all = builder(strict());
    let _empty = all.dir(DirIndex::TOP, b"empty").unwrap();
    let kept = all.dir(DirIndex::TOP, b"kept").unwrap();
    let hollow = all.dir(kept, b"hollow").unwrap();
    let _deeper = all.dir(hollow, b"deeper").unwrap();
    let inner = all.dir(kept, b"inner").unwrap();
    all.submodule(inner, b"sub", id_of(b"commit")).unwrap();
    all.file(kept, b"f", false, id_of(b""), 0).unwrap();
    let payload = all.finish().unwrap();
    assert_eq!(payload.dir_paths().collect::<Vec<_>>(), [&b"kept"[..], b"kept/inner"]);
    let paths: Vec<_> = payload.entries.iter().map(|entry| payload.path_of(entry)).collect();
    assert_eq!(paths, [&b"kept/f"[..], b"kept/inner/sub"]);
    assert_eq!(payload.count(), 4);
    assert_eq!(payload.dir_count(), 3, "the top counts");
    assert_eq!([1, 2].map(|dir| payload.dir_parent(dir)), [0, 1]);
    assert_eq!([0, 1, 2].map(|dir| payload.dir_name(dir)), [&b""[..], b"kept", b"inner"]);
}

#[test]
fn a_refusal_shows_nothing_that_a_terminal_obeys() {
    let mut all = builder(Rules { limits: Limits { file_bytes: 0, ..Limits::default() }, ..strict() });
    let name = b"\x1b[31m\xff\n\xe2\x80\xae\\red";
    let refusal = all.file(DirIndex::TOP, name, false, id_of(b""), 1).unwrap_err();
    assert_eq!(refusal.path, r"\u{1b}[31m\xff\n\u{202e}\\red");
    assert!(refusal.to_string().starts_with("revision "), "{refusal}");
    assert_eq!(escaped(&[b'x'; 512]), "x".repeat(512));
    assert_eq!(escaped(&[b'x'; 513]), "x".repeat(512) + "... (513 bytes)");
    let secret: String = (0..2_000).map(|n| format!("Zq{:x}", n * 7_919)).collect();
    let _registered = crate::secret::Secret::new(secret.clone());
    assert_eq!(escaped(&secret.as_bytes()[..8 << 10]), "[redacted]");
    assert_eq!(escaped(&secret.as_bytes()[..8_193]), "[redacted]... (8193 bytes)");
    let long = escaped(&[b'x'; 70_000]);
    assert!(long.len() < 600 && long.ends_with("... (70000 bytes)"), "{long}");
    assert_eq!(escaped("it's \u{e9}".as_bytes()), "it's \u{e9}");
}

#[test]
fn a_tree_that_is_too_large_is_refused_as_a_whole_and_not_because_of_a_path() {
    let of = |path: &str, rule| Refusal { revision: Revision(ObjectId([0; 20])), path: path.into(), rule };
    for path in ["", "a/b"] {
        let all = of(path, Rule::Entries { limit: 100 });
        let said = all.to_string();
        assert!(said.ends_with(" is refused: the tree has more than 100 files and directories"), "{said}");
        assert!(all.hints()[0].contains("a smaller tree"), "{:?}", all.hints());
        assert!(!all.is_of_one_path());
    }
    let one = of("a/b", Rule::FileBytes { bytes: 2, limit: 1 });
    assert!(one.to_string().contains(" is refused because of `a/b`: it has 2 B"), "{one}");
    assert_eq!(one.hints()[0], "push a commit without it", "perhaps nothing is published yet");
    assert!(one.is_of_one_path());
}

#[test]
fn a_refusal_names_what_its_own_rule_can_be_met_with() {
    let [path, target, why] = ["p", "../t", "w"].map(str::to_owned);
    for (rule, hints) in [
        (Rule::NoDirectory { path: path.clone() }, &["change --path"][..]),
        (Rule::NotADirectory { path }, &["change --path"]),
        (Rule::NoPath, &["fix `path` of the source"]),
        (Rule::PathIsNoDirectory, &["add `to: NAME`"]),
        (Rule::Submodule { why }, &["without it", "--submodules=off publishes empty directories"]),
        (
            Rule::LinkLeaves { target: target.clone() },
            &["without it", "--symlinks=keep publishes such links"],
        ),
        (Rule::LinkLeavesSource { target: target.clone() }, &["without it", "--symlinks=keep publishes"]),
        (Rule::LinkTurns { target }, &["without it", "--symlinks=keep publishes"]),
        (Rule::FileBytes { bytes: 2, limit: 1 }, &["without it", "--max-file-bytes raises the limit"]),
        (Rule::Listed { paths: 1, bytes: 1 }, &["a smaller tree", "unless one matches a symbolic link"]),
        (Rule::NameDotGit, &["without it"]),
    ] {
        let revision = Revision(ObjectId([0; 20]));
        let given = Refusal { revision, path: "p".into(), rule }.hints();
        assert_eq!(given.len(), hints.len(), "{given:?}");
        for (given, part) in given.iter().zip(hints) {
            assert!(given.contains(part), "{given}: {part}");
        }
    }
}
