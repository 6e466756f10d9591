//! Patterns of git's cone mode, which name whole directories (git-sparse-checkout(1), "INTERNALS — CONE PATTERN SET").
//!
//! git-sync runs `git sparse-checkout init`, which turns cone mode on since git 2.37. git then reads any file in this
//! mode if each line has one of the forms below. Otherwise it warns, and the whole file has the meaning of ordinary
//! patterns (`add_pattern_to_hashsets` in git's dir.c).
//!
//! ```text
//! /*            everything
//! !/*/          not everything, if a line before this one says so
//! /a/b/         the directory a/b and all below it
//! !/a/b/*/      of the directory a/b, which a line before this one names, only the files in it
//! ```
//!
//! The files at the top are always selected. git enters a directory only if it is at the top, or if the files in the
//! directory above it are selected, so the line `/a/b/c/` alone selects nothing (`clear_ce_flags_dir` in git's
//! unpack-trees.c).

use std::collections::{HashMap, HashSet};

use super::lines;

/// What the patterns of a file in cone mode select. The paths have no slash at either end.
#[derive(Clone, Debug)]
pub(in crate::mirror) struct Cone {
    /// Everything is selected.
    everything: bool,
    /// What is selected with all below it.
    whole: HashSet<Vec<u8>>,
    /// The directories of which the files in them are selected, besides the top.
    files_of: HashSet<Vec<u8>>,
    /// The directories that contain something of `whole`, directly.
    above_whole: HashSet<Vec<u8>>,
}

impl Cone {
    /// Parses the content of a sparse-checkout file. `None` if git would not stay in cone mode.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut everything = false;
        // A negative line takes back only one of several equal lines.
        let mut counts: HashMap<String, usize> = HashMap::new();
        let mut files_of: HashSet<String> = HashSet::new();
        for line in lines(text) {
            match line {
                "/*" => everything = true,
                "!/*/" => everything = false,
                line => {
                    let (is_negative, dir) = directory(line)?;
                    if is_negative {
                        let count = counts.get_mut(&dir).filter(|count| **count > 0)?;
                        *count -= 1;
                        files_of.insert(dir);
                    } else if files_of.contains(&dir) {
                        return None;
                    } else {
                        *counts.entry(dir).or_default() += 1;
                    }
                }
            }
        }
        let is_entered = |dir: &str| dir.match_indices('/').all(|(at, _)| files_of.contains(&dir[..at]));
        let is_reached = |path: &str| above(path).is_none_or(is_entered);
        let whole = counts.iter().filter(|(_, count)| **count > 0).map(|(path, _)| path.as_str());
        let whole: Vec<&str> = whole.filter(|path| is_reached(path)).collect();
        let owned = |path: &str| path.as_bytes().to_vec();
        Some(Self {
            everything,
            files_of: files_of.iter().filter(|dir| is_entered(dir)).map(|dir| owned(dir)).collect(),
            above_whole: whole.iter().filter_map(|path| above(path)).map(owned).collect(),
            whole: whole.into_iter().map(owned).collect(),
        })
    }

    /// The same as [`super::Patterns::selects`]. A directory is selected if all below it is.
    pub(super) fn selects(&self, path: &[u8], is_dir: bool, inherited: bool) -> bool {
        let is_file_of_these = || match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => self.files_of.contains(&path[..slash]),
            None => true,
        };
        self.everything || inherited || self.whole.contains(path) || (!is_dir && is_file_of_these())
    }

    /// The same as [`super::Patterns::may_select_below`].
    pub(super) fn may_select_below(&self, path: &[u8], wanted: bool) -> bool {
        wanted || self.files_of.contains(path) || self.above_whole.contains(path)
    }
}

/// The directory that a path is in; `None` for the top.
fn above(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(above, _)| above)
}

/// Returns whether a line is negative, and the directory that it names. `None` if it is no line of cone mode.
fn directory(line: &str) -> Option<(bool, String)> {
    let (is_negative, pattern) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
    let pattern = pattern.strip_suffix('/')?;
    let is_absolute = pattern.len() > 1 && pattern.starts_with('/');
    let is_literal = !pattern.contains("**") && is_literal(pattern.as_bytes());
    // To git, the line `/*/` names a directory whose name is a star.
    let is_of_files = pattern.len() > 2 && pattern.ends_with("/*");
    (is_absolute && is_literal && is_negative == is_of_files).then(|| (is_negative, literal(pattern)))
}

/// Returns true if each special character is escaped, or the star of a `/*` at the end.
fn is_literal(pattern: &[u8]) -> bool {
    let is_special = |byte: u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
    (1..pattern.len()).all(|at| {
        let (before, byte, after) = (pattern[at - 1], pattern[at], pattern.get(at + 1).copied());
        !is_special(byte)
            || before == b'\\'
            || (byte == b'\\' && after.is_some_and(is_special))
            || (byte == b'*' && before == b'/' && after.is_none())
    })
}

/// The path of an absolute pattern, without escapes and without `/*` at the end (`dup_and_filter_pattern` in git's
/// dir.c: as there, an escaped star at the end goes, too).
fn literal(pattern: &str) -> String {
    let mut literal = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        literal.extend(if char == '\\' { chars.next() } else { Some(char) });
    }
    let path = literal.as_str();
    let path = if path.len() > 2 { path.strip_suffix("/*").unwrap_or(path) } else { path };
    path.strip_prefix('/').unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each of these paths, what the walk of a tree would find; a path that ends with a slash is a directory.
    fn selected<'p>(text: &str, paths: &[&'p str]) -> Option<Vec<&'p str>> {
        let cone = Cone::parse(text)?;
        let is_selected = |path: &&&str| {
            let (path, is_dir) = path.strip_suffix('/').map_or((**path, false), |dir| (dir, true));
            let mut inherited = false;
            for (at, _) in path.match_indices('/') {
                inherited = cone.selects(&path.as_bytes()[..at], true, inherited);
            }
            let wanted = cone.selects(path.as_bytes(), is_dir, inherited);
            if is_dir { cone.may_select_below(path.as_bytes(), wanted) } else { wanted }
        };
        Some(paths.iter().filter(is_selected).copied().collect())
    }

    #[test]
    fn whole_directories_and_the_files_at_the_top_are_selected() {
        let paths =
            ["top", "a/", "a/t", "a/b/", "a/b/x", "a/b/c/", "a/b/c/y", "docs/", "docs/x", "docs/sub/y"];
        for (text, expected) in [
            ("", "top"),
            ("/docs/\n", "top docs/ docs/x docs/sub/y"),
            ("/docs/", "top docs/ docs/x docs/sub/y"),
            ("\u{feff}# a comment\n\n/docs/  \r\n", "top docs/ docs/x docs/sub/y"),
            ("/docs/\n/a/b/\n", "top a/ a/b/ a/b/x a/b/c/ a/b/c/y docs/ docs/x docs/sub/y"),
            ("/*\n!/*/\n/docs/\n!/docs/*/\n", "top docs/ docs/x"),
            ("/docs/\n/docs/\n!/docs/*/\n", "top docs/ docs/x docs/sub/y"),
            ("/a/b/c/\n", "top"),
            ("/a/\n!/a/*/\n/a/b/c/\n", "top a/ a/t a/b/ a/b/c/ a/b/c/y"),
            ("/a/b/\n!/a/b/*/\n", "top"),
            ("/a/b/\n!/a/b/*/\n/a/\n!/a/*/\n", "top a/ a/t a/b/ a/b/x"),
            ("/a/b/x/\n", "top"),
            ("/top/\n//docs/\n/docs//\n", "top docs/"),
        ] {
            let selected = selected(text, &paths).map(|found| found.join(" "));
            assert_eq!(selected.as_deref(), Some(expected), "{text:?}");
        }
        assert_eq!(selected("!/*/\n/*\n/docs/\n!/docs/*/\n", &paths), Some(paths.to_vec()));
    }

    #[test]
    fn special_characters_are_literal_if_they_are_escaped() {
        let paths = ["*/x", "a*/x", "a/x", "b\\/x", "c?/x", "[d/x", "{e,f}/x", "g h/x"];
        let text = "/\\*/\n/a\\*/\n/b\\\\/\n/c\\?/\n/\\[d/\n/{e,f}/\n/g h/\n";
        let expected = ["*/x", "a*/x", "b\\/x", "c?/x", "[d/x", "{e,f}/x", "g h/x"];
        assert_eq!(selected(text, &paths), Some(expected.to_vec()));
        assert_eq!(selected("/*/\n", &paths), Some(vec!["*/x"]));
        assert_eq!(selected("/a/\\*/\n", &paths), Some(vec!["a/x"]), "as git reads it");
    }

    #[test]
    fn a_line_of_another_form_ends_cone_mode() {
        for line in [
            "//",
            "/docs",
            "docs/",
            "docs",
            "/docs/*",
            "/docs/*/",
            "!/docs/",
            "!/docs/*/", // without a line for the directory
            "/docs/\n!/docs/build/",
            "/docs/\n!/docs/*/\n!/docs/*/",
            "/docs/\n!/docs/*/\n/docs/",
            "!/*",
            "*",
            "/",
            " /docs/",
            "  ",
            "\r",
            "/docs/\t",
            "/a/**/",
            "/a*/",
            "/a?/",
            "/[a]/",
            "/a\\b/",
            "/a\\/",
            "/a\\]/",
            "/a\\ /",
        ] {
            assert!(Cone::parse(&format!("/*\n{line}\n/a/\n")).is_none(), "{line:?}");
        }
    }
}
