//! Parses raw git trees, and bounds the cost of walking them.
//!
//! A commit's author chooses every byte of a tree, so entries are parsed without judging modes or names, and every walk
//! runs under a [`Budget`].

mod walk;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::object_error::ObjectError;
use super::odb::{Object, ObjectReader, TREE_MAX};
use crate::payload::{Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

pub(super) use walk::{Step, TreeWalk};

/// The bits of a mode that hold an entry's type (inode(7)).
pub(super) const FORMAT: u32 = 0o170_000;
/// The type of a sub-tree.
pub(super) const DIRECTORY: u32 = 0o040_000;
/// The type of a file.
pub(super) const REGULAR: u32 = 0o100_000;
/// The type of a symbolic link.
pub(super) const LINK: u32 = 0o120_000;
/// The type of a submodule: the id is a commit of another repository.
pub(super) const SUBMODULE: u32 = 0o160_000;

/// One entry of a tree, as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line<'a> {
    /// The raw mode, which may be one that git never writes.
    pub(super) mode: u32,
    /// The name: any bytes but NUL.
    pub(super) name: &'a [u8],
    /// The object of the entry.
    pub(super) id: ObjectId,
}

impl Line<'_> {
    /// Returns true if the entry is a sub-tree.
    pub(super) fn is_dir(&self) -> bool {
        self.mode & FORMAT == DIRECTORY
    }
}

/// A malformed entry's name is shown in the error up to this many bytes.
const SHOWN_NAME_MAX: usize = 256;

/// Says which entry is malformed: its number, counted from 0, and its name, if that can be parsed.
fn malformed(index: usize, raw: &[u8]) -> String {
    let name = raw.iter().take(32).position(|byte| *byte == b' ').and_then(|space| {
        let rest = &raw[space + 1..];
        rest.iter().take(SHOWN_NAME_MAX).position(|byte| *byte == 0).map(|nul| escaped(&rest[..nul]))
    });
    let name = name.map(|name| format!(" (`{name}`)")).unwrap_or_default();
    format!("its entry {index}{name} is malformed")
}

/// Parses the entries of a tree: octal mode, space, name, NUL, 20 bytes of id. Modes and names are not checked. The
/// error says in which entry the bytes end or are malformed.
pub(super) fn entries(mut raw: &[u8]) -> impl Iterator<Item = Result<Line<'_>, String>> {
    let mut index = 0;
    std::iter::from_fn(move || {
        if raw.is_empty() {
            return None;
        }
        let line = split(raw);
        let at = std::mem::replace(&mut raw, line.map_or(&[], |(_, rest)| rest));
        index += 1;
        Some(line.map(|(line, _)| line).ok_or_else(|| malformed(index - 1, at)))
    })
}

/// Parses the first entry; also returns the rest. `None` if it is malformed.
fn split(raw: &[u8]) -> Option<(Line<'_>, &[u8])> {
    let space = raw.iter().position(|byte| *byte == b' ')?;
    let mode = parse_mode(&raw[..space])?;
    let rest = &raw[space + 1..];
    let nul = rest.iter().position(|byte| *byte == 0)?;
    let name = &rest[..nul];
    let rest = &rest[nul + 1..];
    let (id, rest) = rest.split_first_chunk::<20>()?;
    Some((Line { mode, name, id: ObjectId(*id) }, rest))
}

/// Parses a mode: octal digits, with any number of zeros before them, as git does.
fn parse_mode(digits: &[u8]) -> Option<u32> {
    let add = |mode: u32, digit: &u8| match digit {
        b'0'..=b'7' => Some(mode.checked_mul(8)? | u32::from(digit - b'0')),
        _ => None,
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// Appends a name to the path of a walk. Returns the path's previous length, to which the walk truncates it afterwards.
pub(super) fn push_name(path: &mut Vec<u8>, name: &[u8]) -> usize {
    let end = path.len();
    if end > 0 {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    end
}

/// Checks that all entries of a tree are well-formed and returns an iterator over them. It parses the raw bytes each
/// time instead of keeping parsed entries, because a tree may have a million of them.
pub(super) fn lines<'a>(id: &ObjectId, raw: &'a [u8]) -> Result<Lines<'a>, ObjectError> {
    let count = entries(raw).try_fold(0, |count, line| line.map(|_| count + 1));
    let left = count.map_err(|why| ObjectError::Malformed { id: *id, expected: "tree".into(), why })?;
    Ok(Lines { rest: raw, left })
}

/// An iterator over the entries of a well-formed tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let (line, rest) = split(self.rest)?;
        self.rest = rest;
        self.left -= 1;
        Some(line)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Lines<'_> {}

/// The entries of a tree, sorted. Holds only four bytes per entry: its offset in the tree's raw bytes.
#[derive(Debug, Default)]
pub(super) struct Sorted<'a> {
    raw: &'a [u8],
    starts: Vec<u32>,
}

impl<'a> Sorted<'a> {
    /// Sorts by `order`. A tree is usually sorted already, or nearly so.
    pub(super) fn by(lines: Lines<'a>, order: impl Fn(&Line<'a>, &Line<'a>) -> Ordering) -> Self {
        let raw = lines.rest;
        let mut starts = Vec::with_capacity(lines.len());
        let mut left = lines;
        loop {
            let start = raw.len() - left.rest.len();
            match left.next() {
                Some(_) => starts.push(start as u32), // fits: TREE_MAX is below 4 GiB
                None => break,
            }
        }
        let mut sorted = Self { raw, starts: Vec::new() };
        starts.sort_by(|one, other| match (sorted.at(*one), sorted.at(*other)) {
            (Some(one), Some(other)) => order(&one, &other),
            (one, other) => one.is_some().cmp(&other.is_some()), // unreachable: each was parsed above
        });
        sorted.starts = starts;
        sorted
    }

    /// Sorts by plain name. (git sorts directories as if their names ended with a slash.)
    pub(super) fn by_name(lines: Lines<'a>) -> Self {
        Self::by(lines, |one, other| one.name.cmp(other.name))
    }

    fn at(&self, start: u32) -> Option<Line<'a>> {
        split(&self.raw[start as usize..]).map(|(line, _)| line)
    }

    /// The entries in sorted order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Line<'a>> {
        self.starts.iter().filter_map(|start| self.at(*start))
    }

    /// The offsets of the entries, in sorted order. For a tree that is read on after its sub-trees
    /// ([`OpenTree::line_at`]).
    pub(super) fn into_starts(self) -> Vec<u32> {
        self.starts
    }
}

/// After the walk has entered this many sub-trees that it had entered before, the entries of the whole tree are
/// counted.
const REPEATS: u32 = 1_000;

/// The number of sub-trees that are remembered. A tree that is large because it repeats sub-trees has few distinct
/// ones.
const SEEN_MAX: usize = 1 << 16;

/// A tree with more distinct sub-trees than this is not counted: most of its size was really sent.
const COUNTED_MAX: usize = 1 << 18;

/// Bounds the cost of a walk. A tree can only be much larger than the bytes sent for it by naming the same sub-trees
/// repeatedly: ten trees of ten entries, each naming the next, spell ten thousand million files. So the walk counts
/// repeated sub-trees; when there are many, the number of entries of the whole tree is computed, reading each tree
/// twice at most, before the walk continues.
#[derive(Debug)]
pub(super) struct Budget {
    revision: Revision,
    top: ObjectId,
    /// The rule that is broken when the budget is used up.
    rule: Rule,
    /// Entries that the walk may still look at.
    lines: u64,
    /// Sub-trees that the walk has entered, up to [`SEEN_MAX`].
    seen: HashSet<ObjectId>,
    /// How often a sub-tree was entered again.
    repeats: u32,
    /// Bytes of the trees in memory: those on the path that the walk is in.
    bytes_in_memory: usize,
    /// Checked at each sub-tree, and at each entry that the walk reads.
    cancel: CancellationToken,
}

impl Budget {
    /// A budget for walking `top`, the tree of `revision`. A `selective` walk may drop most of the entries that it
    /// looks at, so it may look at 8 instead of 2 times `limit` entries.
    pub(super) fn new(
        revision: Revision,
        top: ObjectId,
        limit: u64,
        selective: bool,
        cancel: &CancellationToken,
    ) -> Self {
        let lines = limit.saturating_mul(if selective { 8 } else { 2 });
        Self {
            revision,
            top,
            rule: Rule::Entries { limit },
            lines,
            seen: HashSet::new(),
            repeats: 0,
            bytes_in_memory: 0,
            cancel: cancel.clone(),
        }
    }

    /// The same budget, with another rule in its error.
    pub(super) fn with_rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// To be called with every tree that the walk enters, and its number of entries. Fails when the budget is used up
    /// or the walk is cancelled.
    pub(super) fn enter(
        &mut self,
        reader: &ObjectReader<'_>,
        id: &ObjectId,
        path: &[u8],
        lines: usize,
    ) -> Result<(), Error> {
        self.check_cancelled()?;
        let left = self.lines.checked_sub(lines as u64 + 1).ok_or_else(|| self.too_many(path))?;
        self.lines = left;
        let new = if self.seen.len() < SEEN_MAX { self.seen.insert(*id) } else { !self.seen.contains(id) };
        if !new {
            self.repeats += 1;
            if self.repeats == REPEATS
                && count(reader, self.revision, &self.top, &self.cancel)?
                    .is_some_and(|size| size > self.lines)
            {
                return Err(self.too_many(path));
            }
        }
        Ok(())
    }

    /// Fails when the walk is cancelled. To be called for each entry: a directory may have a million of them.
    pub(super) fn check_cancelled(&self) -> Result<(), Error> {
        if self.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Reads a tree that the walk enters, and counts it. It stays in memory while its sub-trees are walked, until it is
    /// passed to [`Budget::close`].
    pub(super) fn open<'r>(
        &mut self,
        reader: &'r ObjectReader<'_>,
        id: &ObjectId,
        path: &[u8],
    ) -> Result<OpenTree<'r>, Error> {
        let at = || (!path.is_empty()).then(|| escaped(path));
        let damaged = |error| Error::damaged_at(self.revision, at().as_deref(), error);
        let size = reader.tree_size(id).map_err(damaged)?;
        let bytes = self.bytes_in_memory.saturating_add(size);
        if bytes > TREE_MAX {
            let shown = if path.is_empty() { format!("tree {id}") } else { escaped(path) };
            return Err(Error::too_large(self.revision, shown, bytes as u64, TREE_MAX as u64));
        }
        let object = reader.sized_tree(id).map_err(damaged)?;
        self.bytes_in_memory = bytes;
        let length = lines(id, object.data()).map_err(|error| Error::damaged(self.revision, error))?.len();
        self.enter(reader, id, path, length)?;
        Ok(OpenTree { object, length, next: 0, bytes: size })
    }

    /// To be called when the walk leaves a tree that [`Budget::open`] returned.
    pub(super) fn close(&mut self, tree: OpenTree<'_>) {
        self.bytes_in_memory -= tree.bytes;
    }

    fn too_many(&self, path: &[u8]) -> Error {
        Refusal { revision: self.revision, path: escaped(path), rule: self.rule.clone() }.into()
    }
}

/// A tree that a walk is in, and how far it has come. A walk with a `Vec` of these instead of a recursive function does
/// not need more of the thread's stack for a deeper tree: in a debug build that has room for a few hundred levels, and
/// `--max-path-depth` may allow a thousand.
pub(super) struct OpenTree<'r> {
    object: Object<'r>,
    /// The number of its entries.
    length: usize,
    /// The offset of the next entry.
    next: usize,
    /// Its bytes in memory.
    bytes: usize,
}

impl OpenTree<'_> {
    /// Returns true if there is no next entry.
    fn is_at_end(&self) -> bool {
        self.next == self.object.data().len()
    }

    /// The next entry.
    fn next_line(&mut self) -> Option<Line<'_>> {
        let raw = self.object.data();
        let (line, rest) = split(&raw[self.next..])?; // `Budget::open` checked that all entries are well-formed
        self.next = raw.len() - rest.len();
        Some(line)
    }

    /// All entries, as they were written.
    pub(super) fn lines(&self) -> Lines<'_> {
        Lines { rest: self.object.data(), left: self.length }
    }

    /// The entry at an offset of [`Sorted::into_starts`].
    pub(super) fn line_at(&self, start: u32) -> Option<Line<'_>> {
        split(self.object.data().get(start as usize..)?).map(|(line, _)| line)
    }
}

/// Counts the entries below `top`, a tree of `revision`, directories included. Reads each tree twice at most: when it
/// is found, and when all trees below it are counted. Saturates at `u64::MAX`. `None` means that there are too many
/// distinct trees to count.
pub(super) fn count(
    reader: &ObjectReader<'_>,
    revision: Revision,
    top: &ObjectId,
    cancel: &CancellationToken,
) -> Result<Option<u64>, Error> {
    let damaged = |error| Error::damaged(revision, error);
    let mut known: HashMap<ObjectId, u64> = HashMap::new();
    let mut stack = vec![*top];
    while let Some(at) = stack.last().copied() {
        // A tree is on the stack once for each tree that named it before it was counted.
        if known.contains_key(&at) {
            stack.pop();
            continue;
        }
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let object = reader.tree(&at).map_err(damaged)?;
        let lines = lines(&at, object.data()).map_err(damaged)?;
        // Each once, because a directory may name the same tree any number of times.
        let mut below = HashSet::new();
        for line in lines.clone().filter(|line| line.is_dir() && !known.contains_key(&line.id)) {
            below.insert(line.id);
            if stack.len() + below.len() + known.len() > COUNTED_MAX {
                return Ok(None);
            }
        }
        stack.extend(&below);
        if below.is_empty() {
            let below = |line: &Line<'_>| known.get(&line.id).copied().unwrap_or(0);
            let sum = lines.fold(0u64, |sum, line| sum.saturating_add(1).saturating_add(below(&line)));
            known.insert(at, sum);
            stack.pop();
        }
    }
    Ok(known.get(top).copied())
}

#[cfg(test)]
mod tests;
