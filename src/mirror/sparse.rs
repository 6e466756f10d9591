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
mod ordinary;
#[cfg(test)]
mod tests;
mod wildmatch;

use super::Error;
use super::error::excerpt;
use super::tree::{DIRECTORY, FORMAT, SUBMODULE};
use cone::Cone;
use ordinary::Ordinary;

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
    Ordinary(Ordinary),
    /// Patterns of cone mode.
    Cone(Cone),
}

impl Patterns {
    /// Parses the content of a sparse-checkout file. A line that git would never match with anything is an error.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        Ordinary::parse(text).map(Self::Ordinary)
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
        match self {
            Self::Ordinary(lines) => {
                lines.decision(path, is_dir || mode & FORMAT == SUBMODULE).unwrap_or(inherited)
            }
            Self::Cone(cone) => cone.selects(path, is_dir, inherited),
        }
    }

    /// Whether anything below the directory `path` can be selected, where [`Self::selects`] answered `selected` for it.
    /// `false` saves reading its tree, and with `--filter=tree:0` fetching it.
    pub(super) fn may_select_below(&self, path: &[u8], selected: bool) -> bool {
        match self {
            Self::Ordinary(lines) => selected || lines.may_select_below(path),
            Self::Cone(cone) => cone.may_select_below(path, selected),
        }
    }
}

/// The lines of a sparse-checkout file that git takes for patterns, each without the spaces at its end unless they are
/// escaped (`add_patterns_from_buffer` in git's dir.c). As there, what follows a NUL is no part of a line.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.split('\n').filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        without_trailing_spaces(line.split_once('\0').map_or(line, |(line, _)| line))
    })
}

fn without_trailing_spaces(line: &str) -> &str {
    let trimmed = line.trim_end_matches(' ');
    let backslashes = trimmed.bytes().rev().take_while(|byte| *byte == b'\\').count();
    let is_escaped = backslashes % 2 == 1 && trimmed.len() < line.len();
    &line[..trimmed.len() + usize::from(is_escaped)]
}
