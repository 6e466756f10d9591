//! What no file of vectors asks: many patterns at once, and the walk that they prune.

mod links;
mod manifest;
mod patterns;
mod values;

use std::sync::Arc;

use super::zglob::{Part, Zglob};
use super::{DesiredData, Dialect, Entry, Finding, Pattern, Patterns, RuleSet, Setting, Tree, Value};

const PATTERNS: &[&str] = &[
    "a/**/*.yaml",
    "a/b/*.yaml",
    "a/b/c.yaml",
    "a/b",
    "**/*",
    "*.yaml",
    "a**/b",
    "{a,b}/*.yaml",
    "./a/*",
    "a/b/c/**/x",
    "z/only",
    "{a,b}/*.yaml",
    "a{/,/b/,}*",
    "{a,ax,axx}*/b",
    "{}/*",
    "{a/b*",
    "",
    "long/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/*/x.yaml",
    "long/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/b.yaml",
    "long/{0123456789/0123456789/0123456789/0123456789/0123456789/0123456789,z}/*.yaml",
];
const PATHS: &[&str] = &[
    "a/b/c.yaml",
    "a/b",
    "a/x.yaml",
    "b/x.yaml",
    "x.yaml",
    "a",
    "z/only",
    "z/only/x",
    "axx/b",
    "a/b/c/x",
    "a/b/c/d/x",
    "long/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/a/x.yaml",
    "long/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/a.yaml",
    "long/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/b.yaml",
    "long/z/b.yaml",
];

fn patterns(dialect: Dialect) -> Vec<Pattern> {
    // The crate globset refuses an unclosed brace.
    PATTERNS.iter().filter_map(|text| Pattern::new(dialect, text, &|_| None).ok()).collect()
}

#[test]
fn a_set_finds_what_each_pattern_finds_and_no_walk_misses_it() {
    for dialect in [Dialect::Zglob, Dialect::Globset] {
        let each = patterns(dialect);
        let set = Patterns::new(patterns(dialect));
        for path in PATHS {
            let one_by_one: Vec<usize> =
                (0..each.len()).filter(|&index| each[index].matches(path.as_bytes())).collect();
            assert_eq!(set.matching(path.as_bytes()), one_by_one, "{dialect} {path}");
            if !one_by_one.is_empty() {
                for (at, _) in path.match_indices('/') {
                    assert!(set.reach_below(&path.as_bytes()[..at]), "{dialect} {path}");
                }
            }
        }
    }
}

#[test]
fn ends_that_are_cut_off_match_what_every_way_would() {
    let cases: &[(&str, &str, bool)] = &[
        ("{a,ab}c*", "abc", true),
        ("{a,ab}*c/x", "abc/x", true),
        ("{a,a}b*", "abx", true),
        ("{a,b}*", "cx", false),
        ("a/**/*", "a/\n/b", false),
        ("a/**/*", "a/b/\nc", true),
        ("a/**/*.yaml", "a/.yaml", true),
        ("a/*.yaml", "a/b/c.yaml", false),
        ("a*a", "a", false),
        ("*/a", "/a", true),
    ];
    for (pattern, path, expected) in cases {
        let read = Pattern::new(Dialect::Zglob, pattern, &|_| None).unwrap();
        assert_eq!(read.matches(path.as_bytes()), *expected, "{pattern} {path:?}");
    }
}

#[test]
fn directories_that_no_pattern_reaches_are_pruned() {
    let of = |text| Pattern::new(Dialect::Zglob, text, &|_| None).unwrap();
    let set = Patterns::new(vec![of("jobs/a/**/*.yaml"), of("docs/x.md")]);
    let reached: Vec<_> = ["jobs", "jobs/a", "jobs/a/b", "docs", "jobs/b", "job", "vendor"]
        .into_iter()
        .filter(|path| set.reach_below(path.as_bytes()))
        .collect();
    assert_eq!(reached, ["jobs", "jobs/a", "jobs/a/b", "docs"]);
}

#[test]
fn a_beginning_that_no_pattern_has_is_followed_no_further() {
    let of = |text: &str| Pattern::new(Dialect::Zglob, text, &|_| None).unwrap();
    let deep = format!("{}/x", ["0123456789"; 20].join("/"));
    let several = format!("{{z{deep},y}}/*");
    let set = Patterns::new(vec![of(&deep), of("a/*"), of("a/*"), of("a/b*"), of(&several)]);
    assert!(set.is_match(deep.as_bytes()) && !set.is_match(deep.trim_end_matches('x').as_bytes()));
    assert_eq!(set.matching(b"a/bc"), [1, 2, 3]);
    assert_eq!(set.matching(b"a/c"), [1, 2]);
    for (directory, is_reached) in [
        (deep[..10].to_owned(), true),
        (deep[..76].to_owned(), true),
        (format!("{}0", &deep[..76]), false),
        (format!("z{}0", &deep[..76]), true), // beyond what is kept of each of several beginnings
        (format!("z{}0", &deep[..10]), false),
        (format!("{}0", &deep[..10]), false),
        (format!("{}-", &deep[..10]), false),
        ("b".to_owned(), false),
    ] {
        assert_eq!(set.reach_below(directory.as_bytes()), is_reached, "{directory}");
    }
    let none = Patterns::new(Vec::new());
    assert!(!none.reach_below(b"a") && !none.is_match(b"a") && !none.is_match(b""));
}

#[test]
fn the_links_of_a_tree_are_told_apart_from_its_files() {
    let mut tree = Tree::default();
    for (path, entry) in [
        ("a", Entry::File(1.into())),
        ("b", Entry::Link(b"a".to_vec())),
        ("c/d", Entry::Link(b"nothing".to_vec())),
        ("e", Entry::Other),
    ] {
        tree.add(path.into(), entry);
    }
    assert_eq!(tree.links().collect::<Vec<_>>(), [&b"b"[..], b"c/d"]);
}

#[test]
fn no_pattern_takes_long() {
    let pattern = Pattern::new(Dialect::Zglob, &"*a**/".repeat(200), &|_| None).unwrap();
    let path = "a/".repeat(2_000);
    assert!(!pattern.matches(format!("{path}b").as_bytes()));
}

#[test]
fn patterns_that_surprise_are_told() {
    let surprise =
        |text: &str| Pattern::new(Dialect::Zglob, text, &|_| None).unwrap().unusual_syntax().is_some();
    for odd in [
        "a/{b,c}.yaml",
        "a/?.yaml",
        "./a",
        "a/[xy]*",
        "a/**",
        "a**/b",
        "/a/*",
        "$DIR/*",
        "~/*",
        "a/{*,b}/*",
        "a/*{b",
    ] {
        assert!(surprise(odd), "{odd}");
    }
    for usual in ["a/b.yaml", "a/**/*.yaml", "**/*", "a/*.{yaml,yml}", "$a/*"] {
        assert!(!surprise(usual), "{usual}");
    }
}

/// [`super::zglob`]'s semantics in the plainest form: every way is tried.
fn matches_naively(parts: &[Part], path: &[u8]) -> bool {
    let Some((part, rest)) = parts.split_first() else { return path.is_empty() };
    let after = |length: usize| matches_naively(rest, &path[length..]);
    match part {
        Part::Literal(text) => path.starts_with(text) && after(text.len()),
        Part::OneOf(texts) => texts.iter().any(|text| path.starts_with(text) && after(text.len())),
        Part::Star => (0..=path.len()).any(|end| !path[..end].contains(&b'/') && after(end)),
        Part::Deep => (0..=path.len()).any(|end| {
            let passed = &path[..end];
            (passed.is_empty() || passed.ends_with(b"/")) && !passed.contains(&b'\n') && after(end)
        }),
    }
}

proptest::proptest! {
    #[test]
    fn patterns_match_what_their_parts_say(
        pattern in "[*/{},ab.é?]{0,12}",
        paths in proptest::collection::vec(proptest::collection::vec(
            proptest::sample::select(b"//aabb.?{},\xc3\xa9\xff\n".to_vec()), 0..10), 20),
    ) {
        if let Some(Zglob::Parts { root, parts }) = &Zglob::new(&pattern, 100, &|_| None) {
            for path in paths {
                let expected = path != b"." && path.len() > *root && matches_naively(parts, &path);
                let found = Pattern::new(Dialect::Zglob, &pattern, &|_| None).unwrap().matches(&path);
                proptest::prop_assert_eq!(found, expected, "{:?} {:?}", pattern, path.escape_ascii().to_string());
            }
        }
    }
}

#[test]
fn rules_over_a_mebibyte_are_refused_before_they_are_read() {
    let setting = Setting {
        file: "plugins.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown: false,
    };
    let rules =
        |bytes: usize| RuleSet::read(&format!("maps: {{}}\n{}", "#".repeat(bytes - 9)), &setting, &|_| None);
    assert!(rules(1 << 20).is_ok());
    let error = rules((1 << 20) + 1).unwrap_err().to_string();
    assert_eq!(error, "the rules in plugins.yaml have 1048577 bytes, the limit is 1048576");
}

#[test]
fn patterns_that_are_too_long_or_too_deep_are_refused_in_words() {
    let refused = |dialect, text: String| Pattern::new(dialect, &text, &|_| None).unwrap_err().to_string();
    for dialect in [Dialect::Zglob, Dialect::Globset] {
        assert_eq!(refused(dialect, "x".repeat(4097)), "it has 4097 bytes, the limit is 4096");
    }
    let expanded = |bytes: usize| {
        let value = move |name: &str| (name == "DIR").then(|| "x".repeat(bytes));
        Pattern::new(Dialect::Zglob, "a/$DIR/*", &value).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(expanded(4_092), Ok(()), "with `a/` and `/*` 4,096 bytes");
    let why = "with the values of its variables it has more than 4096 bytes";
    assert_eq!(expanded(4_093), Err(why.to_owned()));
    let braces = |count| format!("{}a{}", "{".repeat(count), "}".repeat(count));
    assert_eq!(refused(Dialect::Globset, braces(101)), "it has more than 100 braces");
    assert!(Pattern::new(Dialect::Globset, &braces(100), &|_| None).unwrap().matches(b"a"));
    // Whatever of this length is read, nothing ends the process.
    for piece in ["**/", "*", "{a,b}", "[a-z]", "?", "[!\u{e9}]"] {
        let _ = Pattern::new(Dialect::Globset, &piece.repeat(4096 / piece.len()), &|_| None);
    }
}

#[test]
fn brackets_that_are_deep_in_each_other_are_refused_before_they_are_read() {
    let setting = Setting {
        file: "plugins.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown: false,
    };
    for text in ["[".repeat(100_000), format!("maps:\n  a: {}", "{a: ".repeat(100_000))] {
        let error = RuleSet::read(&text, &setting, &|_| None).unwrap_err().to_string();
        assert!(error.ends_with("brackets are more than 250 deep in each other"), "{error}");
    }
}

#[test]
fn a_finding_is_one_line_whatever_a_rule_is_called() {
    let pattern = "a/\u{1b}[2J\nhint: all is well*".repeat(1000);
    let finding = Finding::NoMatch { pattern, empties: true };
    let line = finding.to_string();
    assert!(!line.contains(char::is_control) && line.len() < 1000, "{line}");
}

#[test]
fn a_byte_order_mark_before_the_rules_is_nothing() {
    let setting = Setting {
        file: "plugins.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown: false,
    };
    let text = "\u{feff}maps: {}\n";
    assert!(RuleSet::read(text, &setting, &|_| None).is_ok());
}

#[test]
fn a_value_that_no_configmap_can_hold_has_its_size_and_no_bytes() {
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..1_500_000).map(|_| byte()).collect();
    for compress in [false, true] {
        let value = |bytes: usize| Value::new(noise[..bytes].to_vec(), compress);
        let (small, large) = (value(1_000_000), value(1_500_000));
        assert!(small.has_bytes() && small.size() == small.bytes().len() && small.size() > 900_000);
        assert!(!large.has_bytes() && large.bytes().is_empty() && large.size() > 1_400_000);
        assert_eq!(Value::unread(1 << 20, compress), None, "it fits");
        let unread = Value::unread(1_500_000, compress).map(|value| (value.size(), value.has_bytes()));
        assert_eq!(unread, (!compress).then_some((1_500_000, false)));
    }
}

/// A directory may have such files without their bytes.
#[test]
fn files_whose_sizes_together_are_no_number_are_too_large() {
    let sizes = [("a", i64::MAX as u64), ("b", i64::MAX as u64), ("c", (1 << 20) + 2)];
    let value = |(key, size): (&str, u64)| (key.to_owned(), Arc::new(Value::unread(size, false).unwrap()));
    let data = DesiredData::new(sizes.map(value).into());
    let over = data.over(&[]).map(|over| (over.what, over.bytes));
    assert_eq!((over, data.size()), (Some(("of values", usize::MAX)), usize::MAX));
}
