//! git's trees: their raw form, and a bound on how much a walk may cost.

use std::collections::{HashMap, HashSet};

use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::odb::{Lack, Reader};
use crate::payload::{Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// The part of a mode that says what an entry is (inode(7)).
pub(super) const FORMAT: u32 = 0o170_000;
/// A sub-tree.
pub(super) const DIRECTORY: u32 = 0o040_000;
/// A file.
pub(super) const REGULAR: u32 = 0o100_000;
/// A symbolic link.
pub(super) const LINK: u32 = 0o120_000;
/// A submodule: the id is a commit of another repository.
pub(super) const SUBMODULE: u32 = 0o160_000;

/// One line of a tree, as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line<'a> {
    /// The raw mode.
    pub(super) mode: u32,
    /// Any bytes but NUL.
    pub(super) name: &'a [u8],
    /// What it names.
    pub(super) id: ObjectId,
}

impl Line<'_> {
    /// Whether it is a sub-tree.
    pub(super) fn is_dir(&self) -> bool {
        self.mode & FORMAT == DIRECTORY
    }

    /// Whether patterns take it for a directory: git takes submodules for one, too (`ce_to_dtype`).
    pub(super) fn matches_as_dir(&self) -> bool {
        matches!(self.mode & FORMAT, DIRECTORY | SUBMODULE)
    }
}

/// A tree's bytes end or go wrong inside an entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("its entry {index}{} is malformed", name.as_ref().map(|name| format!(" (`{name}`)")).unwrap_or_default())]
pub(super) struct Malformed {
    index: usize,
    /// Its name, escaped, where it has one.
    name: Option<String>,
}

impl Malformed {
    fn at(index: usize, raw: &[u8]) -> Self {
        let name = raw.iter().take(32).position(|byte| *byte == b' ').and_then(|space| {
            let rest = &raw[space + 1..];
            rest.iter().take(NAME).position(|byte| *byte == 0).map(|nul| escaped(&rest[..nul]))
        });
        Self { index, name }
    }
}

/// The most bytes of a name that are shown.
const NAME: usize = 256;

/// Reads a tree's lines: octal mode, space, name, NUL, 20 bytes of id. Nothing about the content is judged here.
pub(super) fn entries(mut raw: &[u8]) -> impl Iterator<Item = Result<Line<'_>, Malformed>> {
    let mut index = 0;
    std::iter::from_fn(move || {
        if raw.is_empty() {
            return None;
        }
        let line = split(raw);
        let at = std::mem::replace(&mut raw, line.map_or(&[], |(_, rest)| rest));
        index += 1;
        Some(line.map(|(line, _)| line).ok_or_else(|| Malformed::at(index - 1, at)))
    })
}

fn split(raw: &[u8]) -> Option<(Line<'_>, &[u8])> {
    let space = raw.iter().take(12).position(|byte| *byte == b' ')?;
    let mode = std::str::from_utf8(&raw[..space]).ok()?;
    let mode = u32::from_str_radix(mode, 8).ok()?;
    let rest = &raw[space + 1..];
    let nul = rest.iter().position(|byte| *byte == 0)?;
    let (name, rest) = (&rest[..nul], &rest[nul + 1..]);
    let (id, rest) = rest.split_first_chunk::<20>()?;
    Some((Line { mode, name, id: ObjectId(*id) }, rest))
}

/// All lines of a tree.
pub(super) fn lines<'a>(id: &ObjectId, raw: &'a [u8]) -> Result<Vec<Line<'a>>, Lack> {
    entries(raw).collect::<Result<_, _>>().map_err(|why| Lack::Unreadable {
        id: *id,
        expected: "tree".into(),
        why: why.to_string(),
    })
}

/// After so many sub-trees that were walked before, the whole tree is counted.
const REPEATS: u32 = 1_000;

/// Bounds a walk. A tree can only be larger than what was sent for it by naming the same sub-trees again and again:
/// ten trees of ten entries, each naming the next, spell ten thousand million files. So repeated sub-trees are
/// counted, and when there are many, the size of the whole is computed, each tree once, before the walk goes on.
#[derive(Debug)]
pub(super) struct Budget {
    revision: Revision,
    top: ObjectId,
    /// Entries that a payload may have.
    limit: u64,
    /// Lines that the walk may still look at.
    lines: u64,
    seen: HashSet<ObjectId>,
    repeats: u32,
    /// The walk may be given up between two sub-trees.
    cancel: CancellationToken,
}

impl Budget {
    /// A budget for a walk of `revision`, whose tree is `top`. A `selective` walk may drop most of what it looks at.
    pub(super) fn new(
        revision: Revision,
        top: ObjectId,
        limit: u64,
        selective: bool,
        cancel: &CancellationToken,
    ) -> Self {
        let lines = limit.saturating_mul(if selective { 8 } else { 2 });
        Self { revision, top, limit, lines, seen: HashSet::new(), repeats: 0, cancel: cancel.clone() }
    }

    /// Called with every sub-tree that the walk enters.
    pub(super) fn enter(
        &mut self,
        reader: &Reader<'_>,
        id: &ObjectId,
        path: &[u8],
        lines: usize,
    ) -> Result<(), Error> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let left = self.lines.checked_sub(lines as u64 + 1).ok_or_else(|| self.too_many(path))?;
        self.lines = left;
        if !self.seen.insert(*id) {
            self.repeats += 1;
            if self.repeats == REPEATS && self.size(reader)? > self.lines {
                return Err(self.too_many(path));
            }
        }
        Ok(())
    }

    fn size(&self, reader: &Reader<'_>) -> Result<u64, Error> {
        count(reader, &self.top).map_err(|lack| Error::damaged(self.revision, lack))
    }

    fn too_many(&self, path: &[u8]) -> Error {
        let rule = Rule::Entries { limit: self.limit };
        Refusal { revision: self.revision, path: escaped(path), rule }.into()
    }
}

/// Entries below a tree, directories included, each tree read once. Stops at `u64::MAX`.
fn count(reader: &Reader<'_>, top: &ObjectId) -> Result<u64, Lack> {
    let mut known: HashMap<ObjectId, u64> = HashMap::new();
    let mut stack = vec![*top];
    while let Some(at) = stack.last().copied() {
        let object = reader.tree(&at)?;
        let lines = lines(&at, object.data())?;
        let before = stack.len();
        stack
            .extend(lines.iter().filter(|line| line.is_dir() && !known.contains_key(&line.id)).map(|l| l.id));
        if stack.len() == before {
            let below = |line: &Line<'_>| known.get(&line.id).copied().unwrap_or(0);
            let sum = lines.iter().fold(0u64, |sum, line| sum.saturating_add(1).saturating_add(below(line)));
            known.insert(at, sum);
            stack.pop();
        }
    }
    Ok(known.get(top).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_written() {
        let mut raw = b"104755 odd\0".to_vec();
        raw.extend([7; 20]);
        raw.extend(b"40000 a/b\0");
        raw.extend([9; 20]);
        let lines: Vec<_> = entries(&raw).map(Result::unwrap).collect();
        assert_eq!(lines[0], Line { mode: 0o104_755, name: b"odd", id: ObjectId([7; 20]) });
        assert!(lines[1].is_dir() && lines[1].name == b"a/b");
    }

    #[test]
    fn a_cut_tree_ends_in_an_error() {
        let mut raw = b"100644 a\0".to_vec();
        raw.extend([7; 20]);
        for cut in 1..raw.len() {
            assert!(entries(&raw[..cut]).any(|line| line.is_err()), "cut at {cut}");
        }
        assert!(entries(b"100644x a\0aaaaaaaaaaaaaaaaaaaa").next().unwrap().is_err());
    }
}
