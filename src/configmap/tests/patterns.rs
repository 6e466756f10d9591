//! Patterns one by one: the names of their dialects, what is literal in them, and variables in those of Prow.

use regex::bytes::Regex;

use crate::configmap::{Dialect, Pattern};

#[test]
fn dialects_are_read_by_the_names_that_they_are_shown_with() {
    for (dialect, name) in [Dialect::Zglob, Dialect::Globset].into_iter().zip(Dialect::NAMES) {
        assert_eq!(name.parse::<Dialect>(), Ok(dialect));
        assert_eq!(dialect.to_string(), name);
    }
    let error = "zglob".parse::<Dialect>().unwrap_err();
    assert_eq!(error, "there is no dialect \"zglob\"; there are zglob-0.0.2 and globset");
}

#[test]
fn what_is_literal_in_a_pattern_is_its_beginning_and_its_weight() {
    for (dialect, text, is_whole, prefix, weight) in [
        (Dialect::Zglob, "a/b", true, "a/b", usize::MAX),
        (Dialect::Zglob, "a/b?", true, "a/b?", usize::MAX),
        (Dialect::Zglob, "a/b*/c", false, "a/b", 5),
        (Dialect::Zglob, "**/a", false, "", 1),
        (Dialect::Globset, "a/b", true, "a/b", usize::MAX),
        (Dialect::Globset, "a/b/\u{e9}*.{x,y}", false, "a/b/", 11),
        (Dialect::Globset, "a?", false, "", 1),
    ] {
        let pattern = Pattern::new(dialect, text, &|_| None).unwrap();
        assert_eq!(pattern.literal(), is_whole.then_some(text), "{dialect} {text}");
        assert_eq!(pattern.prefix(), prefix.as_bytes(), "{dialect} {text}");
        assert_eq!(pattern.weight(), weight, "{dialect} {text}");
    }
}

#[test]
fn variables_are_whole_components_and_paths_are_cleaned() {
    let variable = |name: &str| {
        let value = match name {
            "HOME" => "h",
            "DIR" => "d/e",
            "A_1" => "(\"q\")",
            "D" | "1A" | "A-B" | "_A" => "v",
            _ => return None,
        };
        Some(value.to_owned())
    };
    for (pattern, path) in [
        ("~/*", "h/x"),
        ("a/~/*", "a/~/x"),
        ("~a/*", "~a/x"),
        ("$DIR/*", "d/e/x"),
        ("a/$DIR/*", "a/d/e/x"),
        ("a$DIR/*", "a$DIR/x"),
        ("$A_1/*", "q/x"),
        ("$D/*", "$D/x"),
        ("$1A/*", "$1A/x"),
        ("$A-B/*", "$A-B/x"),
        ("$_A/*", "$_A/x"),
        ("a/$(DIR)/*", "a/x"),
        ("a/$NONE/*", "a/x"),
        ("$NONE/*", "/x"),
        ("./a//b/./*", "a/b/x"),
        ("a/../b/*", "b/x"),
        ("a/../../b/*", "../b/x"),
        ("../../a/*", "../../a/x"),
        ("/../a/*", "/a/x"),
    ] {
        let read = Pattern::new(Dialect::Zglob, pattern, &variable).unwrap();
        assert!(read.matches(path.as_bytes()), "{pattern} {path}");
    }
}

/// All sequences of up to `most` of these pieces.
fn sequences(pieces: &[&str], most: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut longest = 0..1;
    for _ in 0..most {
        for at in longest.clone() {
            let longer = pieces.iter().map(|piece| all[at].clone() + piece).collect::<Vec<_>>();
            all.extend(longer);
        }
        longest = longest.end..all.len();
    }
    all
}

/// What go-zglob makes of a cleaned pattern: a regular expression, and the length that only longer paths match.
fn as_go_zglob_reads(pattern: &str) -> (Regex, usize) {
    let components = pattern.split('/').take_while(|component| !component.contains('*')).collect::<Vec<_>>();
    let expression = pattern
        .replace("**/", "(.+/)?") // no literal `+` in these patterns
        .replace('*', "[^/]*")
        .replace(".+", ".*")
        .replace("{}", "\\}")
        .replace("{a,ab}", "(a|ab)");
    (Regex::new(&format!("^{expression}$")).unwrap(), components.join("/").len().max(1))
}

#[test]
fn short_patterns_match_what_their_regular_expressions_match() {
    let paths = sequences(&["a", "b", "/", "\n", "}"], 4);
    let is_cleaned = |pattern: &&String| !pattern.contains("//") && !pattern.ends_with('/');
    for pattern in sequences(&["a", "/", "*", "**/", "{a,ab}", "{}"], 4).iter().filter(is_cleaned) {
        if !pattern.contains('*') {
            continue;
        }
        let (expression, root) = as_go_zglob_reads(pattern);
        let read = Pattern::new(Dialect::Zglob, pattern, &|_| None).unwrap();
        for path in paths.iter().map(|path| path.as_bytes()) {
            let expected = path.len() > root && expression.is_match(path);
            assert_eq!(read.matches(path), expected, "{pattern:?} {:?}", path.escape_ascii().to_string());
        }
    }
}
