//! git's sparse-checkout patterns, which select files of a tree.
//!
//! The syntax is gitignore's with inverted meaning: the last pattern that matches a path decides; it selects the path,
//! or with `!` deselects it. A path that no pattern matches inherits the decision of its directory, and the top
//! directory is not selected (git-sparse-checkout(1), "INTERNALS"; `clear_ce_flags` in git's unpack-trees.c). A payload
//! only has directories that contain something selected.
//!
//! In git's cone mode (`cone`), which git-sync turns on, patterns have another meaning. A file that git wrote in that
//! mode means the same in both; one that somebody else wrote need not.

mod cone;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::Error;
use super::error::excerpt;
use super::tree::{DIRECTORY, FORMAT, SUBMODULE};
use cone::Cone;

/// Checks the syntax of patterns. The error names the first malformed one.
pub fn check_sparse(patterns: &[String]) -> Result<(), Error> {
    match patterns {
        [] => Ok(()),
        patterns => Patterns::parse(&patterns.join("\n")).map(drop),
    }
}

/// Parsed patterns.
#[derive(Clone, Debug)]
pub(super) enum Patterns {
    /// Ordinary patterns.
    Ordinary {
        rules: Gitignore,
        /// Matches the directories that lead to what an anchored pattern can match. `None` if a pattern can match in
        /// any directory.
        ancestors: Option<Gitignore>,
    },
    /// Patterns of cone mode.
    Cone(Cone),
}

impl Patterns {
    /// Parses the content of a sparse-checkout file.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let bad = |line: &str, error: &ignore::Error| Error::Sparse {
            line: excerpt(line),
            why: excerpt(&error.to_string()),
        };
        let mut builder = GitignoreBuilder::new("");
        for line in text.lines() {
            builder.add_line(None, line).map_err(|error| bad(line, &error))?;
        }
        let rules = builder.build().map_err(|error| bad(text, &error))?;
        Ok(Self::Ordinary { rules, ancestors: ancestors(text) })
    }

    /// Parses the content of a sparse-checkout file as git does while `core.sparseCheckoutCone` is set: in cone mode if
    /// all lines allow it.
    pub(super) fn parse_in_cone_mode(text: &str) -> Result<Self, Error> {
        Cone::parse(text).map_or_else(|| Self::parse(text), |cone| Ok(Self::Cone(cone)))
    }

    /// Returns true if `path` is selected. `mode` is that of the tree's entry, and `inherited` the decision for its
    /// directory. A submodule matches as a directory, as in git where it is checked out. (Where it is not, git 2.39
    /// looks at the worktree and finds no directory.) In cone mode it counts as a file.
    pub(super) fn selects(&self, path: &[u8], mode: u32, inherited: bool) -> bool {
        let is_dir = mode & FORMAT == DIRECTORY;
        let rules = match self {
            Self::Ordinary { rules, .. } => rules,
            Self::Cone(cone) => return cone.selects(path, is_dir, inherited),
        };
        let matches_as_dir = is_dir || mode & FORMAT == SUBMODULE;
        match rules.matched(Path::new(OsStr::from_bytes(path)), matches_as_dir) {
            Match::None => inherited,
            Match::Ignore(_) => true,
            Match::Whitelist(_) => false,
        }
    }

    /// Whether anything below the directory `path` can be selected, where [`Self::selects`] answered `selected` for it.
    /// `false` saves reading its tree, and with `--filter=tree:0` fetching it.
    pub(super) fn may_select_below(&self, path: &[u8], selected: bool) -> bool {
        let ancestors = match self {
            Self::Ordinary { ancestors, .. } => ancestors,
            Self::Cone(cone) => return cone.may_select_below(path, selected),
        };
        let leads_to_a_match =
            |ancestors: &Gitignore| ancestors.matched(Path::new(OsStr::from_bytes(path)), true).is_ignore();
        selected || ancestors.as_ref().is_none_or(leads_to_a_match)
    }
}

/// The most bytes of all patterns for ancestors. A line of n components has n of them, each as long as all before it,
/// and the file may be part of the tree, so that its authors write it.
const ANCESTORS_MAX: usize = 1 << 20;

/// Patterns for the directories above what the lines can match: of `/a/*/c/` these are `/a/` and `/a/*/`. `None` if
/// that cannot be said (a line without a slash before its end matches at any depth, as does `**`), or if they are too
/// many.
fn ancestors(text: &str) -> Option<Gitignore> {
    let mut builder = GitignoreBuilder::new("");
    let mut added = HashSet::new();
    let mut bytes = 0;
    for line in text.lines().filter(|line| !line.starts_with(['#', '!']) && !line.trim().is_empty()) {
        let path = line.strip_prefix('/').unwrap_or(line);
        let (above, last) = path.trim_end().trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
        let is_anchored = line.starts_with('/') || !above.is_empty();
        if !is_anchored || last.contains("**") {
            return None;
        }
        let mut ancestor = String::new();
        for component in above.split('/').filter(|_| !above.is_empty()) {
            let is_cut = component.ends_with('\\') || component.rfind('[') > component.rfind(']');
            if component.is_empty() || component.contains("**") || is_cut {
                return None;
            }
            ancestor.push('/');
            ancestor.push_str(component);
            if added.contains(&ancestor) {
                continue;
            }
            bytes += ancestor.len();
            if bytes > ANCESTORS_MAX {
                return None;
            }
            builder.add_line(None, &format!("{ancestor}/")).ok()?; // a slash within braces
            added.insert(ancestor.clone());
        }
    }
    builder.build().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::mirror::tree::REGULAR;

    const PATHS: &[&str] = &[
        "README.md",
        "a/b/c/deep.txt",
        "a/b/x.yaml",
        "a/top.yaml",
        "a.d/x",
        "build/out",
        "docs/a/b.md",
        "docs/build/index.md",
        "docs/index.md",
        "sp ace/f",
        "star*/f",
        "weird[1]/x",
        "x.yaml",
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
        let error = check_sparse(&["/fine/".to_owned(), "/[z-a]".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("/[z-a]"), "{error}");
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

    #[test]
    fn directories_that_no_pattern_reaches_need_no_tree() {
        let enters = |patterns: &str, dir: &str| {
            let patterns = Patterns::parse(patterns).unwrap();
            patterns.may_select_below(dir.as_bytes(), false)
        };
        for (patterns, dir, expected) in [
            ("/a/b/c/\n", "a", true),
            ("/a/b/c/\n", "a/b", true),
            ("/a/b/c/\n", "a/x", false),
            ("/a/b/c/\n", "b", false),
            ("a/b/c\n", "b", false),
            ("/a/*[02]/c\n", "a/10", true),
            ("/a/*[02]/c\n", "a/11", false),
            ("/*\n!/*/\n", "a", false),
            ("/x\n!/a/b/\n", "a", false),
            ("/x\n!/x/\n/x/a/b\n", "x", true),
            // Any of these may match at any depth.
            ("/x\nc\n", "a", true),
            ("/x\nc/\n", "a", true),
            ("/x/**/c\n", "a", true),
            ("/x/**\n", "a", true),
            ("/a[b/c]d/e\n", "a", true),
            ("/{a/b,c}/d\n", "a", true),
        ] {
            assert_eq!(enters(patterns, dir), expected, "{patterns:?} {dir}");
        }
    }

    #[test]
    fn patterns_for_ancestors_stay_small() {
        let prunes = |patterns: &str| {
            let patterns = Patterns::parse(patterns).unwrap();
            !patterns.may_select_below(b"x", false)
        };
        assert!(!prunes(&"/a".repeat(3_000)), "all of them have nine million bytes");
        // Those that lines have in common count once.
        let above = "/some-name".repeat(20);
        assert!(prunes(&(0..2_000).map(|n| format!("{above}/{n}/\n")).collect::<String>()));
    }

    #[test]
    fn a_broken_pattern_is_named() {
        let error = Patterns::parse("/ok\n[z-a]\n").unwrap_err();
        assert!(error.to_string().contains("[z-a]"), "{error}");
    }
}
