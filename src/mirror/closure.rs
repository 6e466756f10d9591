//! Checks that a tip is complete: its commit, all its trees and all its blobs are in the mirror, and its history is as
//! deep as configured.
//!
//! Blobs are checked by headers and index look-ups only; just loose ones are decoded, because they may be truncated.
//! Trees are compared with the tree of a revision that is known to be complete, and identical sub-trees are skipped, so
//! the cost is proportional to what changed. Trees of older commits are not checked: no generation is made from them.
//!
//! [`path_to`] finds the path of an object that such a check found missing, for the error message.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::Depth;
use super::object_error::ObjectError;
use super::odb::{Object, ObjectReader, Store};
use super::tree::{self, Sorted};
use crate::payload::escaped;
use crate::revision::ObjectId;
use crate::threads::{on_threads, processors};

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
    closure_beside(reader, tree, base, partial, |_| false)
}

/// Like [`tree_closure`], but skips objects for which `is_blob` returns true: reading the header of a packed object
/// means inflating the beginning of its pack entry.
pub(super) fn closure_beside(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
    base: Option<ObjectId>,
    partial: bool,
    is_blob: impl Fn(&ObjectId) -> bool,
) -> Result<(), ObjectError> {
    if base == Some(tree) {
        return Ok(());
    }
    let mut check = TreeCheck { reader, partial, is_blob, seen_blobs: HashSet::new() };
    check.all(vec![(tree, base)], &mut HashSet::from([tree]))
}

/// So many trees are found before they are shared among threads: enough that all threads end at about the same time.
const SHARED_TREES: usize = 1024;

/// Like [`closure_beside`] without a base. Once [`SHARED_TREES`] trees of one level are found, several threads check
/// them and what is below them, each with a store from `open`. A tree that several of them lead to may be checked by
/// each thread, but by none of them twice. Fails with the first error that any thread meets.
pub(super) fn closure_on_threads(
    reader: &ObjectReader<'_>,
    open: impl Fn() -> Result<Store, String> + Sync,
    tree: ObjectId,
    partial: bool,
    is_blob: impl Fn(&ObjectId) -> bool + Sync,
) -> Result<(), String> {
    let is_blob = &is_blob;
    let mut check = TreeCheck { reader, partial, is_blob, seen_blobs: HashSet::new() };
    let mut seen = HashSet::from([tree]);
    let mut level = vec![tree];
    while !level.is_empty() && level.len() < SHARED_TREES {
        let mut below = Vec::new();
        for tree in level {
            let found = |id, _| below.extend(seen.insert(id).then_some(id));
            check.tree(tree, None, found).map_err(|error| error.to_string())?;
        }
        level = below;
    }
    if level.is_empty() {
        return Ok(());
    }
    let next = AtomicUsize::new(0);
    let share = || -> Result<(), String> {
        let store = open()?;
        let reader = store.reader().map_err(|error| error.message().to_owned())?;
        let mut check = TreeCheck { reader: &reader, partial, is_blob, seen_blobs: HashSet::new() };
        let mut seen = seen.clone();
        while let Some(tree) = level.get(next.fetch_add(1, Ordering::Relaxed)) {
            check.all(vec![(*tree, None)], &mut seen).map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    let failed = Mutex::new(Ok(()));
    on_threads(processors().clamp(1, 8), || {
        if let Err(error) = share() {
            next.store(level.len(), Ordering::Relaxed); // the others stop
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            *failed = std::mem::replace(&mut *failed, Ok(())).and(Err(error));
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Checks trees, each with the blobs that it names.
struct TreeCheck<'c, 'r, F> {
    reader: &'c ObjectReader<'r>,
    partial: bool,
    is_blob: F,
    /// Blobs that were checked, up to [`SEEN_BLOBS_MAX`]: trees may name the same ones any number of times.
    seen_blobs: HashSet<ObjectId>,
}

impl<F: Fn(&ObjectId) -> bool> TreeCheck<'_, '_, F> {
    /// Checks trees, each with the tree that is its base, and all that is below them. Skips trees that are in `seen`,
    /// and adds those that it comes to.
    fn all(
        &mut self,
        mut stack: Vec<(ObjectId, Option<ObjectId>)>,
        seen: &mut HashSet<ObjectId>,
    ) -> Result<(), ObjectError> {
        // An explicit stack, because trees may nest deeper than a thread's stack allows. Every tree is pushed once,
        // however many paths lead to it, so a bomb of nested trees costs no more than the trees that were really sent.
        // It does not matter with which path's base a tree is compared: each base is complete.
        while let Some((at, base)) = stack.pop() {
            self.tree(at, base, |below, base| {
                if seen.insert(below) {
                    stack.push((below, base));
                }
            })?;
        }
        Ok(())
    }

    /// Checks the tree `at` but for the entries that are the same in the tree `base`. Calls `below` with each sub-tree,
    /// and with the sub-tree of its name in `base`.
    fn tree(
        &mut self,
        at: ObjectId,
        base: Option<ObjectId>,
        mut below: impl FnMut(ObjectId, Option<ObjectId>),
    ) -> Result<(), ObjectError> {
        if self.may_lack(&at) {
            return Ok(());
        }
        let object = self.reader.tree(&at)?;
        let base = base.and_then(|base| Some((base, tree_if_here(self.reader, &base)?)));
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
                tree::DIRECTORY => below(entry.id, before),
                tree::REGULAR | tree::LINK => self.blob(entry.id)?,
                // Commits of submodules are in other mirrors. Unknown modes are refused when the payload is built.
                _ => {}
            }
        }
        Ok(())
    }

    fn blob(&mut self, id: ObjectId) -> Result<(), ObjectError> {
        if (self.is_blob)(&id) || self.seen_blobs.contains(&id) || self.may_lack(&id) {
            return Ok(());
        }
        self.reader.check_blob(&id)?;
        if self.seen_blobs.len() < SEEN_BLOBS_MAX {
            self.seen_blobs.insert(id);
        }
        Ok(())
    }

    /// Asked before an object is read, because libgit2 lists all packs again after a read that finds nothing.
    fn may_lack(&self, id: &ObjectId) -> bool {
        self.partial && !self.reader.has(id)
    }
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
}
