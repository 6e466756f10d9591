//! Lists the files of a revision as the input of ConfigMap rules: paths, blob ids and link targets, either all of them
//! or only those that differ from another revision. Nothing that is listed is written to disk, so the rules of
//! publication do not apply, and the only blobs that are read are those of links.

use tokio_util::sync::CancellationToken;

use super::delta::{TREES_MAX, pairs};
use super::modules::Modules;
use super::object_error::ObjectError;
use super::odb::{ObjectReader, Peeled};
use super::tree::{Budget, FORMAT, LINK, Line, Lines, REGULAR, Sorted, Step, TreeWalk, lines};
use super::tree_to_payload::target;
use super::{Error, Objects};
use crate::payload::{DEPTH_MAX, Limits, Rule, join};
use crate::revision::{ObjectId, Revision};

/// The kind and content of a path that is not a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListedEntry {
    /// A regular file.
    File(ObjectId),
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// A submodule that is not published, a link whose target is too long, or an entry with an unknown mode.
    Other,
}

impl ListedEntry {
    /// Bytes of a link's target, which is kept for each link that names it.
    fn target_len(&self) -> usize {
        match self {
            Self::Link(target) => target.len(),
            Self::File(_) | Self::Other => 0,
        }
    }
}

impl Objects {
    /// Lists the files and links of a revision, those of its submodules included, without checking names and sizes. A
    /// directory is read if `enter` returns true for its path.
    pub fn list(
        &self,
        revision: Revision,
        enter: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, ListedEntry)>, Error> {
        self.read(revision, |reader, at| {
            let modules = Modules::of(reader, at.tree, self.shared.submodules);
            let modules = modules.map_err(|error| error.into_error(revision))?;
            list(reader, at, &modules, enter, &self.cancel)
        })
    }

    /// Lists the paths at which `newer` differs from `older`, in the directories for which `enter` returns true. `None`
    /// means that `newer` must be listed as a whole: `older` is no longer in the mirror, either has submodules, or too
    /// much differs.
    pub fn changed_paths(
        &self,
        older: Revision,
        newer: Revision,
        enter: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<ChangedPath>>, Error> {
        self.read(newer, |reader, at| {
            let Ok(old) = reader.commit(&older.0) else { return Ok(None) };
            let modules = |tree| Modules::of(reader, tree, self.shared.submodules);
            let (Ok(before), Ok(after)) = (modules(old.tree), modules(at.tree)) else { return Ok(None) };
            if !(before.is_empty() && after.is_empty()) {
                return Ok(None);
            }
            changed_paths(reader, old.tree, at, enter, &self.cancel)
        })
    }
}

/// The most bytes that the listed paths and the targets of the links take together: a small repository can have
/// gigabytes of them by reusing trees and blobs.
const LISTED_BYTES_MAX: usize = 128 << 20;

/// Lists a revision, in the order of its tree entries.
fn list(
    reader: &ObjectReader<'_>,
    at: Peeled,
    modules: &Modules,
    enter: &dyn Fn(&[u8]) -> bool,
    cancel: &CancellationToken,
) -> Result<Vec<(Vec<u8>, ListedEntry)>, Error> {
    let revision = Revision(at.commit);
    let paths = Limits::default().entries;
    let rule = Rule::Listed { paths, bytes: LISTED_BYTES_MAX as u64 };
    let budget = Budget::new(revision, at.tree, paths, true, cancel).with_rule(rule);
    let mut walk = TreeWalk::new(reader, budget, DEPTH_MAX, ())?;
    let mut listed_bytes = 0;
    let mut found = Vec::new();
    while let Some(Step { path, line, .. }) = walk.step()? {
        let line = modules.checked_out(path, line);
        if !line.is_dir() {
            let listed = listed(reader, &line).map_err(|error| Error::damaged(revision, error))?;
            listed_bytes += path.len() + listed.target_len();
            if found.len() as u64 == paths || listed_bytes > LISTED_BYTES_MAX {
                return Err(walk.too_many());
            }
            found.push((path.to_vec(), listed));
        } else if enter(path) {
            let id = line.id;
            walk.enter(id, ())?;
        }
    }
    Ok(found)
}

/// Converts a tree entry that is not a directory.
fn listed(reader: &ObjectReader<'_>, line: &Line<'_>) -> Result<ListedEntry, ObjectError> {
    Ok(match line.mode & FORMAT {
        REGULAR => ListedEntry::File(line.id),
        LINK => match target(reader, &line.id)? {
            Ok(target) => ListedEntry::Link(target),
            Err(_too_long) => ListedEntry::Other,
        },
        _ => ListedEntry::Other,
    })
}

/// A path at which two revisions differ. Directories count as absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedPath {
    /// The path from the top of the repository.
    pub path: Vec<u8>,
    /// True if the older revision has an entry there.
    pub before: bool,
    /// The newer revision's entry there.
    pub now: Option<ListedEntry>,
}

/// The most bytes of memory that differing paths may take: some 20,000 paths. Beyond it the newer revision is listed as
/// a whole.
const PATHS_MAX: usize = 4 << 20;

/// Bytes that a differing path takes besides its text and the target of a link.
const PATH_OVERHEAD: usize = 96;

/// The most tree entries that are compared. Trees that name each other repeatedly may have arbitrarily many.
const LINES_MAX: usize = 1_000_000;

/// Why two revisions were not compared.
enum Undecided {
    /// The list would be too long, or the older revision cannot be read: the newer one must be listed as a whole.
    ListAll,
    Failed(Error),
}

struct Differ<'a> {
    reader: &'a ObjectReader<'a>,
    enter: &'a dyn Fn(&[u8]) -> bool,
    revision: Revision,
    cancel: &'a CancellationToken,
    /// Tree entries that may still be compared.
    lines: usize,
    /// Bytes of memory that further differing paths may take.
    room: usize,
    found: Vec<ChangedPath>,
}

/// Lists the paths at which two trees without submodules differ, in the directories for which `enter` returns true.
/// `None` means that the newer one must be listed as a whole.
fn changed_paths(
    reader: &ObjectReader<'_>,
    old: ObjectId,
    new: Peeled,
    enter: &dyn Fn(&[u8]) -> bool,
    cancel: &CancellationToken,
) -> Result<Option<Vec<ChangedPath>>, Error> {
    let mut differ = Differ {
        reader,
        enter,
        revision: Revision(new.commit),
        cancel,
        lines: LINES_MAX,
        room: PATHS_MAX,
        found: Vec::new(),
    };
    if old == new.tree {
        return Ok(Some(differ.found));
    }
    match differ.all(old, new.tree) {
        Ok(()) => Ok(Some(differ.found)),
        Err(Undecided::ListAll) => Ok(None),
        Err(Undecided::Failed(error)) => Err(error),
    }
}

/// A directory that was changed, added or removed: its path, and its old and new tree.
type Subtree = (Vec<u8>, Option<ObjectId>, Option<ObjectId>);

impl Differ<'_> {
    /// Compares two versions of the top and of all directories below it. Both trees of a directory are dropped before
    /// its sub-trees are compared. Not recursive: see `OpenTree`.
    fn all(&mut self, old: ObjectId, new: ObjectId) -> Result<(), Undecided> {
        // The sub-trees of each directory that are still to be compared, after the top by itself.
        let top: Subtree = (Vec::new(), Some(old), Some(new));
        let mut open = vec![vec![top].into_iter()];
        while let Some(subtrees) = open.last_mut() {
            let Some((path, old, new)) = subtrees.next() else {
                open.pop();
                continue;
            };
            if self.cancel.is_cancelled() {
                return Err(Undecided::Failed(Error::Cancelled));
            }
            // The depth of a directory is the number of directories above it; that of the top is 0.
            if open.len() > DEPTH_MAX as usize + 1 {
                return Err(Undecided::ListAll);
            }
            open.push(self.level(&path, old, new)?.into_iter());
        }
        Ok(())
    }

    /// Compares the entries of one directory that are not directories themselves, and returns the sub-trees that
    /// differ.
    fn level(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
    ) -> Result<Vec<Subtree>, Undecided> {
        let reader = self.reader;
        let lost = |_: ObjectError| Undecided::ListAll;
        let damaged = |error| Undecided::Failed(Error::damaged(self.revision, error));
        let old_size = old.map_or(Ok(0), |id| reader.tree_size(&id)).map_err(lost)?;
        let new_size = new.map_or(Ok(0), |id| reader.tree_size(&id)).map_err(damaged)?;
        if old_size + new_size > TREES_MAX {
            return Err(Undecided::ListAll);
        }
        let old_tree = old.map(|id| reader.sized_tree(&id)).transpose().map_err(lost)?;
        let new_tree = new.map(|id| reader.sized_tree(&id)).transpose().map_err(damaged)?;
        let before = match (&old, &old_tree) {
            (Some(id), Some(tree)) => lines(id, tree.data()).map_err(lost)?,
            _ => Lines::default(),
        };
        let after = match (&new, &new_tree) {
            (Some(id), Some(tree)) => lines(id, tree.data()).map_err(damaged)?,
            _ => Lines::default(),
        };
        self.lines = self.lines.checked_sub(before.len() + after.len()).ok_or(Undecided::ListAll)?;
        let mut subtrees = Vec::new();
        for (name, pair) in pairs(&Sorted::by_name(before), &Sorted::by_name(after)) {
            // With such names one path may have two entries, and it is unknown here which of them was listed.
            if pair.old_is_duplicate || pair.new_is_duplicate || name.is_empty() || name.contains(&b'/') {
                return Err(Undecided::ListAll);
            }
            if pair.unchanged().is_some() {
                continue;
            }
            let path = join(path, name);
            let dir = |line: Option<Line<'_>>| line.filter(Line::is_dir).map(|line| line.id);
            let old = dir(pair.old);
            let new = dir(pair.new);
            let before = pair.old.is_some_and(|line| !line.is_dir());
            let now = pair.new.filter(|line| !line.is_dir()).map(|line| listed(reader, &line));
            let now = now.transpose().map_err(damaged)?;
            let bytes = path.len() + PATH_OVERHEAD + now.as_ref().map_or(0, ListedEntry::target_len);
            self.room = self.room.checked_sub(bytes).ok_or(Undecided::ListAll)?;
            if (old.is_some() || new.is_some()) && (self.enter)(&path) {
                subtrees.push((path.clone(), old, new));
            }
            if before || now.is_some() {
                self.found.push(ChangedPath { path, before, now });
            }
        }
        Ok(subtrees)
    }
}
