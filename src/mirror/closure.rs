//! Is everything there? A tip is complete when its commit, all its trees and all its blobs are in the mirror, and its
//! history reaches as deep as asked.
//!
//! Checked by headers and index look-ups: no blob is decoded but loose ones, which may have been cut short. Trees are
//! compared with the tree of a revision that is known to be complete, and what is the same in both is skipped, so that
//! the check costs what changed. Trees of older commits are not walked: no generation is made from them.

use std::collections::{HashSet, VecDeque};

use super::Depth;
use super::lack::Lack;
use super::odb::{Object, ObjectReader};
use super::tree::{self, Sorted};
use crate::payload::escaped;
use crate::revision::ObjectId;

/// Walks `tree` and finds the first object below it that is not there. `base` is a tree that is complete. Of a `partial`
/// clone objects may be absent; those that are there, in what the reader knew of when it was opened, must be what they
/// should be.
pub(super) fn tree_closure(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
    base: Option<ObjectId>,
    partial: bool,
) -> Result<(), Lack> {
    closure_beside(reader, tree, base, partial, |_| false)
}

/// As [`tree_closure`], where it is known already of some objects that they are blobs: to ask for the header of one costs
/// as much as to inflate the beginning of what it is stored as.
pub(super) fn closure_beside(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
    base: Option<ObjectId>,
    partial: bool,
    is_blob: impl Fn(&ObjectId) -> bool,
) -> Result<(), Lack> {
    // Asked before it is read: a read that finds nothing lists all packs again.
    let may_lack = |id: &ObjectId| partial && !reader.has(id);
    if base == Some(tree) {
        return Ok(());
    }
    // An explicit stack: a tree may nest deeper than a thread's stack allows. Every tree is put there once, whatever
    // the number of paths that lead to it, so a bomb of nested trees costs only the trees that were really sent. It
    // does not matter which path's base it is compared with: each is complete.
    // Blobs are asked for as often as they are named: to remember them all would cost more than the question.
    let mut seen = HashSet::from([tree]);
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
        let mut last = None;
        for entry in lines.iter() {
            while known.next_if(|before| before.name < entry.name).is_some() {}
            let before = known.peek().filter(|before| before.name == entry.name).map(|before| before.id);
            if before == Some(entry.id) {
                continue;
            }
            match entry.mode & tree::FORMAT {
                tree::DIRECTORY if seen.insert(entry.id) => stack.push((entry.id, before)),
                tree::REGULAR | tree::LINK
                    if last.replace(entry.id) != Some(entry.id)
                        && !is_blob(&entry.id)
                        && !may_lack(&entry.id) =>
                {
                    reader.check_blob(&entry.id)?;
                }
                // Commits of submodules live elsewhere; odd modes are refused, by path, when the payload is made.
                _ => {}
            }
        }
    }
    Ok(())
}

/// A tree, without listing packs again where it is not there.
fn tree_if_here<'r>(reader: &'r ObjectReader<'_>, id: &ObjectId) -> Option<Object<'r>> {
    if reader.has(id) { reader.tree(id).ok() } else { None }
}

/// No more entries than these are looked at to find a path.
const LOOKED_AT: usize = 100_000;

/// Where an object that cannot be had is named below `tree`: the first path that leads to it, as an error shows it.
/// `None`: it is not below the tree, or too far.
pub(super) fn path_to(reader: &ObjectReader<'_>, tree: ObjectId, wanted: ObjectId) -> Option<String> {
    // Each directory with the number of its parent: together they are all paths, at the price of their names.
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
            if entry.is_dir() && dirs.len() < LOOKED_AT && seen.insert(entry.id) {
                stack.push((entry.id, dirs.len()));
                dirs.push((here, entry.name.to_vec()));
            }
        }
    }
    None
}

/// The path of the last one.
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

/// What is there of a tip's history.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct History {
    /// Commits whose parents are not kept: what belongs into the `shallow` file.
    pub(super) boundary: Vec<ObjectId>,
    /// Whether it reaches as deep as asked.
    pub(super) complete: bool,
}

/// Looks at the history of `tip`. `ends` are commits whose parents the remote itself does not have.
pub(super) fn history(
    reader: &ObjectReader<'_>,
    tip: ObjectId,
    depth: Depth,
    ends: &HashSet<ObjectId>,
) -> Result<History, Lack> {
    let limit = match depth {
        Depth::Commits(n) => n.max(1),
        Depth::Full => u32::MAX,
    };
    let mut found = History { boundary: Vec::new(), complete: true };
    let mut seen = HashSet::from([tip]);
    let mut queue = VecDeque::from([(tip, 1)]);
    // Breadth first: like the server's, a commit's distance is its shortest one.
    while let Some((at, distance)) = queue.pop_front() {
        let commit = reader.commit(&at)?;
        if commit.parents.is_empty() {
            continue;
        }
        if distance >= limit || ends.contains(&at) {
            found.boundary.push(at);
        } else if commit.parents.iter().all(|parent| reader.has(parent)) {
            queue.extend(
                commit.parents.into_iter().filter(|id| seen.insert(*id)).map(|id| (id, distance + 1)),
            );
        } else {
            found.boundary.push(at);
            found.complete = false;
        }
    }
    found.boundary.sort_unstable();
    Ok(found)
}
