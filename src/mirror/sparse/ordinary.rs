//! Patterns outside of cone mode, which have gitignore's syntax (`last_matching_pattern_from_list` in git's dir.c).

use std::collections::{BTreeSet, HashMap};

use super::wildmatch::Glob;
use super::{Error, excerpt, lines};

/// The lines of a file. Of those that match a path, the last decides.
#[derive(Clone, Debug, Default)]
pub(in crate::mirror) struct Ordinary {
    /// What lines without wildcards decide, by the path that they match. There may be thousands of such lines.
    paths: HashMap<Vec<u8>, Decisions>,
    /// The same of lines with a name, which match it in every directory.
    names: HashMap<Vec<u8>, Decisions>,
    /// The lines with wildcards.
    globs: Vec<Line>,
    /// The keys of `paths` that a line selects. Sorted, so that those below a directory are next to each other.
    selected: BTreeSet<Vec<u8>>,
    /// A line selects a name in every directory.
    selects_names: bool,
}

/// The number of a line, and whether it selects what it matches. The greatest is that of the last line.
type Decision = (usize, bool);

/// The decisions of the last lines that match the same text.
#[derive(Clone, Copy, Debug, Default)]
struct Decisions {
    /// For whatever has the name.
    any: Option<Decision>,
    /// For a directory.
    dir: Option<Decision>,
}

#[derive(Clone, Debug)]
struct Line {
    glob: Glob,
    decision: Decision,
    /// It matches only directories.
    is_for_dirs: bool,
    /// It matches names, in every directory. The others match paths.
    is_name: bool,
}

impl Ordinary {
    /// Parses the content of a sparse-checkout file.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let mut all = Self::default();
        for (number, line) in lines(text).enumerate() {
            let (selects, pattern) = line.strip_prefix('!').map_or((true, line), |rest| (false, rest));
            let (pattern, is_for_dirs) =
                pattern.strip_suffix('/').map_or((pattern, false), |rest| (rest, true));
            let is_name = !pattern.contains('/');
            let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
            if pattern.is_empty() {
                continue; // it matches nothing, as in git
            }
            let glob = Glob::parse(pattern.as_bytes()).map_err(|why| Error::Sparse {
                line: excerpt(line),
                why: format!("{why}, so it matches nothing"),
            })?;
            all.add(Line { glob, decision: (number, selects), is_for_dirs, is_name });
        }
        Ok(all)
    }

    fn add(&mut self, line: Line) {
        let (_, selects) = line.decision;
        self.selects_names |= selects && line.is_name;
        let Some(text) = line.glob.literal().map(<[u8]>::to_vec) else {
            self.globs.push(line);
            return;
        };
        if selects && !line.is_name {
            self.selected.insert(text.clone());
        }
        let decisions = if line.is_name { &mut self.names } else { &mut self.paths }.entry(text).or_default();
        decisions.dir = Some(line.decision);
        if !line.is_for_dirs {
            decisions.any = Some(line.decision);
        }
    }

    /// Whether the path is selected; `None` if no line matches it.
    pub(super) fn decision(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let of = |decisions: &Decisions| if is_dir { decisions.dir } else { decisions.any };
        let literal = self.paths.get(path).and_then(of).max(self.names.get(name).and_then(of));
        let matches = |line: &&Line| {
            (is_dir || !line.is_for_dirs) && line.glob.matches(if line.is_name { name } else { path })
        };
        let later = |line: &&Line| Some(line.decision) > literal;
        let glob = self.globs.iter().rev().take_while(later).find(matches);
        glob.map(|line| line.decision).or(literal).map(|(_, selects)| selects)
    }

    /// Returns false if no line selects anything below the directory. May be true if none does.
    pub(super) fn may_select_below(&self, dir: &[u8]) -> bool {
        let below = [dir, b"/"].concat();
        let selects_below = |line: &Line| line.decision.1 && line.glob.may_match_below(&below);
        self.selects_names
            || self.selected.range::<Vec<u8>, _>(&below..).next().is_some_and(|path| path.starts_with(&below))
            || self.globs.iter().any(selects_below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_no_line_reaches_are_known() {
        for (patterns, dir, expected) in [
            ("/a/b/c/\n", "a", true),
            ("/a/b/c/\n", "a/b", true),
            ("/a/b/c/\n", "a/b/c", false),
            ("/a/b/c/\n", "a/x", false),
            ("/a/b/c/\n", "b", false),
            ("/a-b/\n/ab/x\n/a.d/c\n", "a", false),
            ("a/b/c\n", "b", false),
            ("/a/*[02]/c\n", "a/10", true),
            ("/a/*[02]/c\n", "a/11", false),
            ("/*\n!/*/\n", "a", false),
            ("/x\n!/a/b/\n", "a", false),
            ("/x\n!/a/*/b\n", "a", false),
            ("/x\n!/x/\n/x/a/b\n", "x", true),
            ("/x/**/c\n", "x/y", true),
            ("/x/**/c\n", "a", false),
            ("/x/**\n", "a", false),
            ("/**/c\n", "a", true),
            ("/a[b/c]d/e\n", "abd", true),
            ("/a[b/c]d/e\n", "a", false),
            ("/{a/b,c}/d\n", "{a", true),
            ("/{a/b,c}/d\n", "a", false),
            // These match at any depth.
            ("/x\nc\n", "a", true),
            ("/x\nc/\n", "a", true),
            ("/x\n*.c\n", "a", true),
            // These do not, or select nothing.
            ("# c\n\n/x\n!c\n  \n!\n/\n", "a", false),
        ] {
            let found = Ordinary::parse(patterns).unwrap().may_select_below(dir.as_bytes());
            assert_eq!(found, expected, "{patterns:?} {dir}");
        }
    }
}
