//! Compared with git itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::mirror::tree::REGULAR;

const PATHS: &[&str] = &[
    "!/f",
    "#c/f",
    "-/f",
    ":/f",
    "A/f",
    "README.md",
    "[/f",
    "\\/f",
    "]/f",
    "^/f",
    "a\t/f",
    "a/b/c/deep.txt",
    "a/b/x.yaml",
    "a/top.yaml",
    "a.d/x",
    "ab/x/b/f",
    "b/f",
    "build/out",
    "c/f",
    "docs/a/b.md",
    "docs/build/index.md",
    "docs/index.md",
    "sp ace/f",
    "star*/f",
    "weird[1]/x",
    "x /f",
    "x.yaml",
    "z/f",
    "{a/f",
    "{a,b}/f",
    "{{cookiecutter.name}}/f",
    "}/f",
    "é/f",
];

/// Submodules beside them.
const MODULES: &[&str] = &["a/b/sub", "a/sub", "docs/sub", "sub"];

fn ours(patterns: &str) -> BTreeSet<String> {
    files(chosen_by(&Patterns::parse(patterns).unwrap()))
}

/// Without submodules, of which git has another opinion in an empty worktree.
fn files(chosen: BTreeSet<String>) -> BTreeSet<String> {
    chosen.into_iter().filter(|path| !MODULES.contains(&path.as_str())).collect()
}

fn chosen_by(patterns: &Patterns) -> BTreeSet<String> {
    let wanted = |(path, mode): &(&str, u32)| {
        let mut inherited = false;
        for (at, _) in path.match_indices('/') {
            let dir = &path.as_bytes()[..at];
            inherited = patterns.selects(dir, DIRECTORY, inherited);
            if !patterns.may_select_below(dir, inherited) {
                return false; // a walk does not enter it
            }
        }
        patterns.selects(path.as_bytes(), *mode, inherited)
    };
    let files = PATHS.iter().map(|path| (*path, REGULAR));
    let all = files.chain(MODULES.iter().map(|path| (*path, SUBMODULE)));
    all.filter(wanted).map(|(path, _)| path.to_owned()).collect()
}

/// A repository with `PATHS` and `MODULES`, and git's own answers.
struct Git(tempfile::TempDir);

impl Git {
    fn new() -> Self {
        let git = Self(tempfile::tempdir().unwrap());
        git.run(&["init", "-q"]);
        for path in PATHS {
            let path = git.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        git.run(&["add", "."]);
        for path in MODULES {
            let entry = format!("160000,{},{path}", "1".repeat(40));
            git.run(&["update-index", "--add", "--cacheinfo", &entry]);
        }
        git.run(&["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "x"]);
        git.run(&["config", "core.sparseCheckout", "true"]);
        git.run(&["config", "core.sparseCheckoutCone", "false"]);
        git
    }

    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.0.path()).args(args).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", Path::new("/nonexistent")).env("GIT_CONFIG_NOSYSTEM", "1");
        let out = command.output().unwrap();
        assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn wanted(&self, patterns: &str) -> BTreeSet<String> {
        self.write(patterns);
        self.run(&["read-tree", "-m", "-u", "HEAD"]);
        files(self.chosen())
    }

    /// The same with the commands of git-sync. The flag is the default since git 2.37.
    fn wanted_in_cone_mode(&self, patterns: &str) -> BTreeSet<String> {
        self.write(patterns);
        self.run(&["sparse-checkout", "init", "--cone"]);
        self.run(&["reset", "-q", "--hard", "HEAD", "--"]);
        self.chosen()
    }

    fn write(&self, patterns: &str) {
        let info = self.0.path().join(".git/info");
        std::fs::create_dir_all(&info).unwrap();
        std::fs::write(info.join("sparse-checkout"), patterns).unwrap();
    }

    fn chosen(&self) -> BTreeSet<String> {
        let listing = self.run(&["ls-files", "-t", "-z"]);
        let kept = listing.split('\0').filter_map(|line| line.strip_prefix("H "));
        kept.map(ToOwned::to_owned).collect()
    }
}

#[test]
fn a_malformed_pattern_is_named() {
    let error = check_sparse(&["/fine/".to_owned(), "/[z-a".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("/[z-a"), "{error}");
    check_sparse(&["/fine/".to_owned()]).unwrap();
}

#[test]
fn a_pattern_for_directories_selects_submodules() {
    let chosen = chosen_by(&Patterns::parse("sub/\nx.yaml/\n").unwrap());
    assert_eq!(chosen, MODULES.iter().map(|path| (*path).to_owned()).collect());
}

#[test]
fn comments_and_empty_lines_do_not_keep_directories_from_being_passed_over() {
    let patterns = Patterns::parse("# all of a\n\n/a/b/\n!c\n  \n").unwrap();
    assert!(patterns.may_select_below(b"a", false));
    assert!(!patterns.may_select_below(b"docs", false));
}

#[test]
fn patterns_mean_what_they_mean_to_git() {
    let git = Git::new();
    for patterns in [
        "",
        "/*\n",
        "/*\n!/*/\n",
        "/*\n!/*/\n/a/\n!/a/*/\n/a/b/\n",
        "docs\n",
        "docs/\n",
        "sub/\n",
        "/docs/\n!/docs/build/\n",
        "*.yaml\n",
        "*.yaml\n!/x.yaml\n",
        "a/b\n",
        "build\n",
        "build/\n!docs/build/\n",
        "/*\n!build\n",
        "**/build\n",
        "a/**\n!a/**/x.yaml\n",
        "# a comment\n\n/README.md\n",
        "\\#x\n/x.yaml   \n",
        "sp ace\n",
        "weird\\[1\\]/\n",
        "[ab]/\n",
        "?.yaml\n",
        "/*\r\n",
        "!docs\n",
        "/docs/*\n!/docs/a\n/docs/a/b.md\n",
        "a/*/c\n",
        "deep.txt\n",
    ] {
        assert_eq!(ours(patterns), git.wanted(patterns), "{patterns:?}");
    }
}

/// What gitignore-like patterns of other programs mean otherwise.
#[test]
fn special_bytes_mean_what_they_mean_to_git() {
    let git = Git::new();
    for (patterns, path, taken) in [
        ("/*\n!/{{cookiecutter.name}}\n", "{{cookiecutter.name}}/f", false),
        ("/{{cookiecutter.name}}/f\n", "{{cookiecutter.name}}/f", true),
        ("{a,b}\n", "{a,b}/f", true),
        ("{a,b}\n", "b/f", false),
        ("{a\n", "{a/f", true),
        ("}\n", "}/f", true),
        ("/[[:upper:]]\n", "A/f", true),
        ("/[[:upper:]]\n", "a/top.yaml", false),
        ("/*\n!/[[:lower:]]\n", "b/f", false),
        ("/*\n!\n", "b/f", true),
        ("/*\n!/\n/\n//\n", "b/f", true),
        ("/[a-b-c]\n", "-/f", true),
        ("/[a-b-c]\n", "c/f", true),
        ("/[z-a]\n", "z/f", true),
        ("/[z-a]\n", "b/f", false),
        ("/[]-a]\n", "^/f", true),
        ("/[]]\n", "]/f", true),
        ("/[[]\n", "[/f", true),
        ("/[!a-z]\n", "b/f", false),
        ("/[^a-z]\n", "A/f", true),
        ("/a[/]b\n", "a/b/x.yaml", false),
        ("/a\t\n", "a\t/f", true),
        ("/a\t\n", "a/top.yaml", false),
        ("/x  \n", "x /f", false),
        ("/x\\   \n", "x /f", true),
        ("/\\\\/\n", "\\/f", true),
        ("\\#c\n", "#c/f", true),
        ("#c\n", "#c/f", false),
        ("\\!\n", "!/f", true),
        ("!!\n", "!/f", false),
        ("/b\r\n/c\r\n", "b/f", true),
        ("/b\r\n/c\r", "c/f", true),
        ("/b\0c\n", "b/f", true),
        ("\u{feff}/b\n", "b/f", true),
        ("/é\n", "é/f", true),
        ("/?\n", "é/f", false),
        ("/??\n", "é/f", true),
        ("/a/***/x.yaml\n", "a/b/x.yaml", true),
        ("/a/**\\/top.yaml\n", "a/top.yaml", false),
        ("/*b**/b\n", "ab/x/b/f", false),
        ("/*b/**/b\n", "ab/x/b/f", true),
    ] {
        let ours = ours(patterns);
        assert_eq!(ours.contains(path), taken, "{patterns:?} {path:?}");
        assert_eq!(ours, git.wanted(patterns), "{patterns:?}");
    }
}

/// A line that is refused has no effect in git.
#[test]
fn random_bytes_mean_what_they_mean_to_git() {
    let git = Git::new();
    let front = prop::sample::select(vec!["", "/", "!", "!/"]);
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "/",
        "*",
        "?",
        "[",
        "]",
        "{",
        "}",
        "!",
        "-",
        "\\",
        ":",
        "^",
        " ",
        "**",
        "/**/",
        "[!",
        "[a-",
        "[[:alpha:]",
    ]);
    let line = (front, prop::collection::vec(piece, 0..7))
        .prop_map(|(front, rest)| front.to_owned() + &rest.concat());
    let line = line.prop_filter("git 2.52 changed it", |line| !has_stars_after_other_bytes(line));
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&(any::<bool>(), prop::collection::vec(line, 1..5)), |(everything, mut lines)| {
            if everything {
                lines.insert(0, "/*".to_owned());
            }
            let all = lines.join("\n");
            lines.retain(|line| check_sparse(std::slice::from_ref(line)).is_ok());
            prop_assert_eq!(ours(&lines.join("\n")), git.wanted(&all), "{:?}", all);
            Ok(())
        })
        .unwrap();
}

/// Whether the first wildcard of a line is `**` in the middle of a component.
fn has_stars_after_other_bytes(line: &str) -> bool {
    let pattern = line.strip_prefix('!').unwrap_or(line);
    let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
    let literal = pattern.split(['*', '?', '[', '\\']).next().unwrap_or(pattern);
    !literal.is_empty() && !literal.ends_with('/') && pattern[literal.len()..].starts_with("**")
}

#[test]
fn random_patterns_mean_what_they_mean_to_git() {
    let git = Git::new();
    let part =
        prop::sample::select(vec!["a", "b", "docs", "build", "*", "**", "*.yaml", "x", "?.yaml", "a*"]);
    let line = (any::<(bool, bool, bool)>(), prop::collection::vec(part, 1..4)).prop_map(
        |((negated, anchored, dir), parts)| {
            let bang = if negated { "!" } else { "" };
            let front = if anchored { "/" } else { "" };
            let back = if dir { "/" } else { "" };
            format!("{bang}{front}{}{back}\n", parts.join("/"))
        },
    );
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&prop::collection::vec(line, 1..5), |lines| {
            let patterns = lines.concat();
            prop_assert_eq!(ours(&patterns), git.wanted(&patterns), "{:?}", patterns);
            Ok(())
        })
        .unwrap();
}

#[test]
fn patterns_mean_what_they_mean_to_git_in_cone_mode() {
    let git = Git::new();
    for (patterns, is_cone) in [
        ("", true),
        ("/docs/\n", true),
        ("/docs/\n/a/b/\n", true),
        ("/a/b/c/\n", true),
        ("/*\n!/*/\n/docs/\n", true),
        ("/*\n!/*/\n/docs/\n!/docs/*/\n", true),
        ("/*\n!/*/\n/a/\n!/a/*/\n/a/b/\n", true),
        ("/docs/\n/docs/\n!/docs/*/\n", true),
        ("/*\n/docs/\n", true),
        ("# a comment\n\n/docs/\n", true),
        ("/docs/\r\n/a/  \n/sp ace/", true),
        ("/star\\*/\n", true),
        ("/weird\\[1]/\n", true),
        ("/README.md/\n/nothing/\n", true),
        ("/docs\n", false),
        ("docs/\n", false),
        ("/docs/*\n", false),
        ("/docs/\n*.yaml\n", false),
        ("/docs/\n!/docs/build/\n", false),
        ("/docs/\n!/docs/*/\n/docs/\n", false),
        ("/weird\\[1\\]/\n", false),
        ("/[ab]/\n", false),
        ("/docs/\\ \n/docs/\n", false),
    ] {
        let ours = Patterns::parse_in_cone_mode(patterns).unwrap();
        assert_eq!(matches!(ours, Patterns::Cone(_)), is_cone, "{patterns:?}");
        let (ours, gits) = (chosen_by(&ours), git.wanted_in_cone_mode(patterns));
        let (ours, gits) = if is_cone { (ours, gits) } else { (files(ours), files(gits)) };
        assert_eq!(ours, gits, "{patterns:?}");
    }
}

#[test]
fn random_directories_mean_what_they_mean_to_git_in_cone_mode() {
    let git = Git::new();
    let part = prop::sample::select(vec!["a", "b", "c", "docs", "build", "star\\*", "x.yaml"]);
    let line = (any::<bool>(), prop::collection::vec(part, 1..4)).prop_map(|(is_of_files, parts)| {
        let dir = format!("/{}/", parts.join("/"));
        if is_of_files { format!("{dir}\n!{dir}*/\n") } else { format!("{dir}\n") }
    });
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&prop::collection::vec(line, 1..5), |lines| {
            let patterns = lines.concat();
            let ours = Patterns::parse_in_cone_mode(&patterns).unwrap();
            let (chosen, gits) = (chosen_by(&ours), git.wanted_in_cone_mode(&patterns));
            let is_cone = matches!(ours, Patterns::Cone(_));
            let (ours, gits) = if is_cone { (chosen, gits) } else { (files(chosen), files(gits)) };
            prop_assert_eq!(ours, gits, "{:?}", patterns);
            Ok(())
        })
        .unwrap();
}
