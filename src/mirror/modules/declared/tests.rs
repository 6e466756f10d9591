//! What git reads is read, and what it ignores refuses nothing.

use std::process::Command;

use super::*;

/// What is declared, none of it wrong.
fn all(text: &[u8]) -> Vec<Declared> {
    read(text).unwrap().into_values().collect::<Result<_, _>>().unwrap()
}

fn one(text: &str) -> Declared {
    let mut all = all(text.as_bytes());
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The error of the whole file, or of the only path in it.
fn refused(text: &[u8]) -> String {
    let declared = match read(text) {
        Err(error) => return error,
        Ok(declared) => declared,
    };
    let errors: Vec<_> = declared.into_values().map(|one| one.expect_err("it is refused")).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.concat()
}

/// A section.
fn module(name: &str, path: &str) -> String {
    format!("[submodule \"{name}\"]\npath = {path}\nurl = u\n")
}

/// git in a new repository that has a submodule at `p` and this `.gitmodules`: the name and URL that it takes.
fn of_git(text: &[u8]) -> Option<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(dir.path()).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", dir.path()).args(args);
        git.output().unwrap()
    };
    git(&["init", "--quiet"]);
    let entry = format!("160000,{},p", "1".repeat(40));
    assert!(git(&["update-index", "--add", "--cacheinfo", &entry]).status.success());
    std::fs::write(dir.path().join(".gitmodules"), text).unwrap();
    git(&["submodule", "init"]);
    let said = String::from_utf8(git(&["config", "--get-regexp", r"^submodule\..*\.url$"]).stdout).unwrap();
    let (key, url) = said.trim_end().split_once(' ')?;
    let name = key.strip_prefix("submodule.")?.strip_suffix(".url")?;
    Some((name.to_owned(), url.to_owned()))
}

#[test]
fn what_git_writes_is_read() {
    let text = "[submodule \"lib/foo\"]\n\tpath = lib/foo\n\turl = ../foo.git\n\
                [submodule \"a b\"]\n\tpath = sub dir\n\turl = https://example.com/b.git\n\tbranch = main\n";
    let all = all(text.as_bytes());
    let short: Vec<_> =
        all.iter().map(|d| (d.name.as_str(), d.path.as_str(), d.url.as_deref().unwrap())).collect();
    let expected = [("lib/foo", "lib/foo", "../foo.git"), ("a b", "sub dir", "https://example.com/b.git")];
    assert_eq!(short, expected);
}

#[test]
fn of_several_sections_the_one_is_taken_that_git_takes_and_all_else_refuses_nothing() {
    let section = |name: &str, path: &str, url: &str| {
        format!("[submodule \"{name}\"]\n\tpath = {path}\n\turl = {url}\n")
    };
    let (a, b) = (section("a", "p", "/a"), section("b", "p", "/b"));
    for (text, name) in [
        (format!("{a}{b}"), "b"),
        (format!("{b}{a}"), "a"),
        (format!("{a}{b}[submodule \"a\"]\n\turl = /c\n"), "b"),
        (format!("{a}{b}[submodule \"a\"]\n\tpath = p\n"), "a"),
        (format!("{a}{}", section("../b", "p", "/b")), "a"),
        (format!("{}{a}", section("../b", "p", "/b")), "a"),
        (format!("{a}{}", section("", "p", "/b")), "a"),
        (format!("{a}{}", section("b", "p/", "/b")), "a"),
        (format!("{a}{}", section("b", "../p", "/b")), "a"),
        (format!("{a}{}", section("b", "/p", "/b")), "a"),
        (format!("{a}{}", section("b", "-p", "-b")), "a"),
        (format!("{a}{}", section(&"n".repeat(201), "q", "/b")), "a"),
        (a.replace("[submodule \"a\"]", "[submodule.A]"), "a"),
        (a.replace("[submodule \"a\"]", "[Submodule.A \"B\"]"), "a.B"),
    ] {
        let declared = read(text.as_bytes()).unwrap().remove(&b"p"[..]).expect("it is declared").unwrap();
        let taken = (declared.name, declared.url.unwrap());
        assert_eq!(taken.0, name, "{text}");
        assert_eq!(Some(taken), of_git(text.as_bytes()), "{text}");
    }
    let latin = [b"# F\xfcr\n", a.as_bytes(), b"; \xfc\n[user]\n\tname = \xfc\n"].concat();
    assert_eq!(all(&latin), all(a.as_bytes()));
    assert_eq!(of_git(&latin), of_git(a.as_bytes()));
}

#[test]
fn the_last_setting_wins_and_update_none_is_seen() {
    let found =
        one("[submodule \"x\"]\npath=x\nurl=a\n[other]\nurl=b\n[Submodule \"x\"]\nURL=c\nupdate=none\n");
    assert_eq!((found.url.as_deref(), found.skipped), (Some("c"), true));
}

#[test]
fn values_mean_what_they_mean_to_git() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    for value in [
        "plain",
        "  spaced  out  ",
        "\"quoted  \"  ",
        "a\"b c\"d",
        "half # comment",
        "half;comment",
        "\"not # a comment\"",
        "back\\\\slash\\\"quote",
        "tab\\there",
        "goes\\\n  on",
        "",
        "\"\"",
        "x\r",
        "a = b",
    ] {
        let text = format!("[submodule \"x\"]\n\tpath = p\n\turl = {value}\n");
        std::fs::write(&file, &text).unwrap();
        let git = Command::new("git")
            .args(["config", "-z", "--file"])
            .arg(&file)
            .args(["--get", "submodule.x.url"])
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        let theirs = String::from_utf8(git.stdout).unwrap();
        assert_eq!(one(&text).url.as_deref(), theirs.strip_suffix('\0'), "{value:?}");
    }
}

#[test]
fn hostile_files_are_refused_by_name_and_reason() {
    for (text, expected) in [
        (module("../../evil", "p"), "has `..`"),
        (module("a\\\\..\\\\b", "p"), "has `..`"),
        (module("-u", "p"), "begins with `-`"),
        (module("", "p"), "is empty"),
        (module(&"n".repeat(201), "p"), "too long"),
        (module("a\u{1}b", "p"), "control characters"),
        (module("a", "../p"), "`..`"),
        (module("a", "p/../../q"), "`..`"),
        (module("a", "/etc"), "is absolute"),
        (module("a", ".git/hooks"), "`.git`"),
        (module("a", "x/.GIT"), "`.git`"),
        (module("a", "-x"), "begins with `-`"),
        (module("a", "x//y"), "empty component"),
        (module("a", "\"x\\ny\""), "control characters"),
        (module("a", "\"x\r\""), "control characters"),
        (format!("{}{}", module("a", "p"), module("-b", "p")), "\"-b\" begins with `-`"),
        ("[submodule \"a\npath = p".to_owned(), "line 2"),
        ("[submodule \"a\"\npath = p".to_owned(), "line 2"),
        ("path = p\n=x".to_owned(), "line 2"),
        ("[submodule \"a\"]\npath = \"p\n".to_owned(), "line"),
        ("[submodule \"a\"]\npath = \\q\n".to_owned(), "line 2"),
        ("\u{a0}[submodule \"a\"]".to_owned(), "line 1"),
    ] {
        let error = refused(text.as_bytes());
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    for (text, expected) in [
        (&b"[submodule \"\xff\"]\npath = p"[..], "name \"\u{fffd}\" is not UTF-8"),
        (b"[submodule \"a\"]\npath = \xff", "path \"\u{fffd}\" of submodule \"a\" is not UTF-8"),
        (b"[submodule \"a\"]\npath = p\nurl = \xff", "url of submodule \"a\" is not UTF-8"),
    ] {
        assert!(refused(text).ends_with(expected), "{}", refused(text));
    }
    assert_eq!(read(b"\xff"), Err("line 1 is not git's configuration syntax".to_owned()));
    let long = module(&"n".repeat(1_000), "p").replace("path = p\n", "");
    assert_eq!(all(long.as_bytes()), [], "without a path, the name is of no submodule");
    let many: String = (0..=COUNT_MAX).map(|n| module(&n.to_string(), &n.to_string())).collect();
    assert_eq!(read(many.as_bytes()), Err("it declares more than 1000 submodules".to_owned()));
}

#[test]
fn an_error_quotes_no_more_than_the_beginning() {
    let long = "\u{1}".repeat(100_000);
    for text in [
        format!("[submodule \"{long}\"]\npath = p\n"),
        format!("[submodule \"a\"]\npath = {long}\n"),
        format!("[submodule \"{}\"]\n{}", "n".repeat(500_000), "path = p\n".repeat(50_000)),
    ] {
        let error = refused(text.as_bytes());
        assert!(error.len() < 3_000, "{} bytes", error.len());
    }
}

#[test]
fn any_bytes_end_in_an_answer() {
    use proptest::prelude::*;
    let piece = prop::sample::select(vec![
        "[",
        "]",
        "\"",
        "submodule",
        " ",
        "=",
        "\n",
        "\\",
        "path",
        "url",
        "#",
        ";",
        "..",
        "/",
        "\r",
        "a",
    ]);
    let config = ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&prop::collection::vec(piece, 0..40), |pieces| {
            if let Ok(all) = read(pieces.concat().as_bytes()) {
                for declared in all.into_values().flatten() {
                    prop_assert!(!declared.path.starts_with('/') && !declared.path.contains(".."));
                }
            }
            Ok(())
        })
        .unwrap();
}
