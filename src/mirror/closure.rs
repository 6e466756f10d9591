//! Checks that a tip is complete: its commit, all its trees and all its blobs are in the mirror, and its history is as
//! deep as configured.
//!
//! Blobs are checked by headers and index look-ups only; just loose ones are decoded, because they may be truncated.
//! Trees are compared with the tree of a revision that is known to be complete, and identical sub-trees are skipped, so
//! the cost is proportional to what changed. Trees of older commits are not checked: no generation is made from them.
//!
//! [`path_to`] finds the path of an object that such a check found missing, for the error message.

use std::collections::{HashSet, VecDeque};

use tokio_util::sync::CancellationToken;

use super::Depth;
use super::object_error::ObjectError;
use super::odb::{Object, ObjectReader};
use super::tree::{self, Sorted};
use crate::payload::escaped;
use crate::revision::ObjectId;

/// The most blobs that a check remembers, some 5 MiB of ids.
const SEEN_BLOBS_MAX: usize = 1 << 17;

/// Walks `tree` and fails with the first object below it that is missing or unreadable. `base` is a tree that is known
/// to be complete. In a `partial` clone objects may be absent; those that the reader knew of when it was opened must be
/// intact and of the expected type.
pub(super) fn tree_closure(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
    base: Option<ObjectId>,
    partial: bool,
) -> Result<(), ObjectError> {
    tree_closure_except_blobs(reader, tree, base, partial, |_| false)
}

/// Like [`tree_closure`], but skips objects for which `is_blob` returns true: reading the header of a packed object
/// means inflating the beginning of its pack entry.
pub(super) fn tree_closure_except_blobs(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
    base: Option<ObjectId>,
    partial: bool,
    is_blob: impl Fn(&ObjectId) -> bool,
) -> Result<(), ObjectError> {
    // Checked before reading, because libgit2 lists all packs again after a read that finds nothing.
    let may_lack = |id: &ObjectId| partial && !reader.has(id);
    if base == Some(tree) {
        return Ok(());
    }
    // An explicit stack, because trees may nest deeper than a thread's stack allows. Every tree is pushed once, however
    // many paths lead to it, so a bomb of nested trees costs no more than the trees that were really sent. It does not
    // matter with which path's base a tree is compared: each base is complete.
    // Blobs are remembered as well, up to a limit: trees may name the same ones any number of times.
    let mut seen = HashSet::from([tree]);
    let mut seen_blobs = HashSet::new();
    let mut stack = vec![(tree, base)];
    while let Some((at, base)) = stack.pop() {
        if may_lack(&at) {
            continue;
        }
        let object = reader.tree(&at)?;
        let base = base.and_then(|base| Some((base, tree_if_here(reader, &base)?)));
        let known =
            base.as_ref().and_then(|(id, base)| tree::lines(id, base.data()).ok()).unwrap_or_default();
        let lines = Sorted::by_name(tree::lines(&at, object.data())?);
        let known = Sorted::by_name(known);
        let mut known = known.iter().peekable();
        for entry in lines.iter() {
            while known.next_if(|before| before.name < entry.name).is_some() {}
            let before = known.peek().filter(|before| before.name == entry.name).map(|before| before.id);
            if before == Some(entry.id) {
                continue;
            }
            match entry.mode & tree::FORMAT {
                tree::DIRECTORY if seen.insert(entry.id) => stack.push((entry.id, before)),
                tree::REGULAR | tree::LINK
                    if !is_blob(&entry.id) && !seen_blobs.contains(&entry.id) && !may_lack(&entry.id) =>
                {
                    reader.check_blob(&entry.id)?;
                    if seen_blobs.len() < SEEN_BLOBS_MAX {
                        seen_blobs.insert(entry.id);
                    }
                }
                // Commits of submodules are in other mirrors. Unknown modes are refused when the payload is built.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Reads a tree if it is present, so that a missing one does not make libgit2 list all packs again.
fn tree_if_here<'r>(reader: &'r ObjectReader<'_>, id: &ObjectId) -> Option<Object<'r>> {
    if reader.has(id) { reader.tree(id).ok() } else { None }
}

/// The most directories that are visited to find the path of an object.
const DIRS_MAX: usize = 100_000;

/// Finds a path below `tree` that leads to the object `wanted`, escaped for an error message. `None` if there is none
/// within the first [`DIRS_MAX`] directories.
pub(super) fn path_to(reader: &ObjectReader<'_>, tree: ObjectId, wanted: ObjectId) -> Option<String> {
    // Each directory with the index of its parent: this represents all paths in the memory of their last components.
    let mut dirs: Vec<(usize, Vec<u8>)> = vec![(0, Vec::new())];
    let mut stack = vec![(tree, 0)];
    let mut seen = HashSet::from([tree]);
    while let Some((at, here)) = stack.pop() {
        let Some(object) = tree_if_here(reader, &at) else { continue };
        for entry in tree::entries(object.data()).map_while(Result::ok) {
            if entry.id == wanted {
                dirs.push((here, entry.name.to_vec()));
                return Some(path(&dirs));
            }
            if entry.is_dir() && dirs.len() < DIRS_MAX && seen.insert(entry.id) {
                stack.push((entry.id, dirs.len()));
                dirs.push((here, entry.name.to_vec()));
            }
        }
    }
    None
}

/// The full path of the last element, escaped.
fn path(dirs: &[(usize, Vec<u8>)]) -> String {
    let mut names = Vec::new();
    let mut at = dirs.len() - 1;
    while at > 0 {
        names.push(dirs[at].1.as_slice());
        at = dirs[at].0;
    }
    names.reverse();
    escaped(&names.join(&b'/'))
}

/// The part of a tip's history that is in the mirror, as far as the walk visited it: see [`HistoryWalk::of`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LocalHistory {
    /// The shallow boundary: commits whose parents are not kept.
    pub(super) boundary: Vec<ObjectId>,
    /// True if the visited history is as deep as configured. Of commits that the walk skipped it says nothing.
    pub(super) complete: bool,
}

/// Walks the histories of several commits, each as far down as configured.
pub(super) struct HistoryWalk<'r> {
    reader: &'r ObjectReader<'r>,
    depth: Depth,
    /// Commits whose parents the remote itself does not have.
    ends: &'r HashSet<ObjectId>,
    /// A commit whose whole history is known to be present.
    whole: Option<ObjectId>,
    cancel: &'r CancellationToken,
    /// The commits that were visited. With [`Depth::Full`] also by earlier calls of `of`: which of them are in the
    /// boundary does not depend on the commit at which a walk began.
    seen: HashSet<ObjectId>,
}

impl<'r> HistoryWalk<'r> {
    /// Walks down to `depth`, and not below `ends`, commits whose parents the remote itself does not have.
    pub(super) fn new(
        reader: &'r ObjectReader<'r>,
        depth: Depth,
        ends: &'r HashSet<ObjectId>,
        cancel: &'r CancellationToken,
    ) -> Self {
        Self { reader, depth, ends, whole: None, cancel, seen: HashSet::new() }
    }

    /// Walks no further than to this commit, whose whole history is known to be present.
    pub(super) fn until(self, whole: Option<ObjectId>) -> Self {
        Self { whole, ..self }
    }

    /// Walks the history of a commit. With [`Depth::Full`], commits that an earlier `of` visited are skipped: that call
    /// returned their boundary, and whether their history is complete. `Err(None)` means that it was cancelled.
    pub(super) fn of(&mut self, tip: ObjectId) -> Result<LocalHistory, Option<ObjectError>> {
        let limit = match self.depth {
            Depth::Commits(n) => {
                self.seen.clear();
                n.max(1)
            }
            Depth::Full => u32::MAX,
        };
        let mut found = LocalHistory { boundary: Vec::new(), complete: true };
        let mut queue = VecDeque::new();
        if self.seen.insert(tip) {
            queue.push_back((tip, 1));
        }
        // Breadth first, so that a commit's distance is that of its shortest path, as on the server.
        while let Some((at, distance)) = queue.pop_front() {
            if self.cancel.is_cancelled() {
                return Err(None);
            }
            if self.whole == Some(at) {
                continue;
            }
            let commit = self.reader.commit(&at)?;
            if commit.parents.is_empty() {
                continue;
            }
            if distance >= limit || self.ends.contains(&at) {
                found.boundary.push(at);
            } else if commit.parents.iter().all(|parent| self.reader.has(parent)) {
                let new = commit.parents.into_iter().filter(|id| self.seen.insert(*id));
                queue.extend(new.map(|id| (id, distance + 1)));
            } else {
                found.boundary.push(at);
                found.complete = false;
            }
        }
        found.boundary.sort_unstable();
        Ok(found)
    }

    /// Takes the commits that the last `of` visited, its boundary among them. Empty with [`Depth::Full`]: there the
    /// history of another tip has its boundary at the same commits.
    pub(super) fn take_within_depth(&mut self) -> HashSet<ObjectId> {
        match self.depth {
            Depth::Commits(_) => std::mem::take(&mut self.seen),
            Depth::Full => HashSet::new(),
        }
    }
}
