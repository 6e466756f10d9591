//! The files of a revision below some directories, for rules: paths, ids and links, all of them or those that differ from
//! another revision's. Nothing of it becomes a file, so no rule of publication is asked, and no blob is looked at but
//! those of links.

use tokio_util::sync::CancellationToken;

use super::delta::{TREES_MAX, pairs};
use super::lack::Lack;
use super::modules::Modules;
use super::odb::{ObjectReader, Peeled};
use super::tree::{Budget, FORMAT, LINK, Line, Lines, REGULAR, Sorted, lines};
use super::tree_to_payload::target;
use super::{Error, Objects};
use crate::payload::{Limits, Refusal, Rule, escaped, join};
use crate::revision::{ObjectId, Revision};

/// What lies at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listed {
    /// A regular file.
    File(ObjectId),
    /// A symbolic link and its target.
    Link(Vec<u8>),
    /// A submodule that is not published, or what is no kind of file.
    Other,
}

impl Objects {
    /// The files and links of a revision, its submodules' among them, without any check of their names and sizes.
    /// Directories are read for which `enter` says so, by their path.
    pub fn list(
        &self,
        revision: Revision,
        enter: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Listed)>, Error> {
        self.read(revision, |reader, at| {
            let modules = Modules::of(reader, at.tree, self.shared.asked);
            let modules = modules.map_err(|trouble| trouble.of(revision))?;
            list(reader, at, &modules, enter, &self.cancel)
        })
    }

    /// The paths at which `newer` differs from `older`, below the directories that [`Self::list`] would read of it.
    /// `None` where it is to be listed as a whole: the older one is gone, either has submodules, or too much differs.
    pub fn differing(
        &self,
        older: Revision,
        newer: Revision,
        enter: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<Differing>>, Error> {
        self.read(newer, |reader, at| {
            let Ok(old) = reader.commit(&older.0) else { return Ok(None) };
            let modules = |tree| Modules::of(reader, tree, self.shared.asked);
            let (Ok(before), Ok(after)) = (modules(old.tree), modules(at.tree)) else { return Ok(None) };
            if !(before.is_empty() && after.is_empty()) {
                return Ok(None);
            }
            differing(reader, old.tree, at, enter, &self.cancel)
        })
    }
}

struct Walk<'a> {
    reader: &'a ObjectReader<'a>,
    revision: Revision,
    modules: &'a Modules,
    enter: &'a dyn Fn(&[u8]) -> bool,
    budget: Budget,
    limits: Limits,
    depth: u32,
    path: Vec<u8>,
    found: Vec<(Vec<u8>, Listed)>,
}

/// Lists a revision, in the order of its trees. A directory is read if `enter` says so of its path.
fn list(
    reader: &ObjectReader<'_>,
    at: Peeled,
    modules: &Modules,
    enter: &dyn Fn(&[u8]) -> bool,
    cancel: &CancellationToken,
) -> Result<Vec<(Vec<u8>, Listed)>, Error> {
    let revision = Revision(at.commit);
    let limits = Limits::default();
    let budget = Budget::new(revision, at.tree, limits.entries, true, cancel);
    let path = Vec::new();
    let found = Vec::new();
    let mut walk = Walk { reader, revision, modules, enter, budget, limits, depth: 0, path, found };
    walk.tree(at.tree)?;
    Ok(walk.found)
}

impl Walk<'_> {
    fn tree(&mut self, id: ObjectId) -> Result<(), Error> {
        let reader = self.reader;
        let damaged = |lack| Error::damaged(self.revision, lack);
        let (object, held) = self.budget.hold(reader, &id, &self.path)?;
        let lines = lines(&id, object.data()).map_err(damaged)?;
        self.budget.enter(reader, &id, &self.path, lines.len())?;
        for line in lines {
            let end = self.path.len();
            if end > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(line.name);
            let line = self.modules.seen(&self.path, line);
            self.line(&line)?;
            self.path.truncate(end);
        }
        self.budget.release(held);
        Ok(())
    }

    fn line(&mut self, line: &Line<'_>) -> Result<(), Error> {
        if line.is_dir() {
            if !(self.enter)(&self.path) {
                return Ok(());
            }
            if self.depth == self.limits.depth {
                return Err(self.refused(Rule::Depth { limit: self.limits.depth }));
            }
            self.depth += 1;
            self.tree(line.id)?;
            self.depth -= 1;
            return Ok(());
        }
        let listed = listed(self.reader, line).map_err(|lack| Error::damaged(self.revision, lack))?;
        if self.found.len() as u64 == self.limits.entries {
            return Err(self.refused(Rule::Entries { limit: self.limits.entries }));
        }
        self.found.push((self.path.clone(), listed));
        Ok(())
    }

    fn refused(&self, rule: Rule) -> Error {
        Refusal { revision: self.revision, path: escaped(&self.path), rule }.into()
    }
}

/// What an entry of a tree is, if it is no directory.
fn listed(reader: &ObjectReader<'_>, line: &Line<'_>) -> Result<Listed, Lack> {
    Ok(match line.mode & FORMAT {
        REGULAR => Listed::File(line.id),
        LINK => match target(reader, &line.id)? {
            Ok(target) => Listed::Link(target),
            Err(_too_long) => Listed::Other,
        },
        _ => Listed::Other,
    })
}

/// A path at which two revisions differ. A directory counts as absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Differing {
    /// The path.
    pub path: Vec<u8>,
    /// Whether the older one has something there.
    pub before: bool,
    /// What the newer one has there.
    pub now: Option<Listed>,
}

/// Bytes that the paths of what differs may take: some 20,000 of them. Of more the newer revision is listed.
const PATHS_MAX: usize = 4 << 20;

/// What each takes besides its text.
const OF_PATH: usize = 96;

/// Lines of trees that are compared. Trees that name each other again and again have more without end.
const LINES_MAX: usize = 1_000_000;

/// Why there is no list of what differs.
enum Undecided {
    /// It would be too long, or the older revision cannot be read: list the newer one as a whole.
    ListAll,
    Failed(Error),
}

struct Differ<'a> {
    reader: &'a ObjectReader<'a>,
    enter: &'a dyn Fn(&[u8]) -> bool,
    revision: Revision,
    cancel: &'a CancellationToken,
    depth_max: u32,
    /// Lines that may still be compared.
    lines: usize,
    /// Bytes that there is still room for.
    room: usize,
    found: Vec<Differing>,
}

/// The paths at which two trees without submodules differ, below the directories that [`list`] would read. Nothing where the
/// newer one is to be listed as a whole instead.
fn differing(
    reader: &ObjectReader<'_>,
    old: ObjectId,
    new: Peeled,
    enter: &dyn Fn(&[u8]) -> bool,
    cancel: &CancellationToken,
) -> Result<Option<Vec<Differing>>, Error> {
    let (revision, depth_max) = (Revision(new.commit), Limits::default().depth);
    let mut differ = Differ {
        reader,
        enter,
        revision,
        cancel,
        depth_max,
        lines: LINES_MAX,
        room: PATHS_MAX,
        found: Vec::new(),
    };
    if old == new.tree {
        return Ok(Some(differ.found));
    }
    match differ.dir(&[], Some(old), Some(new.tree), 0) {
        Ok(()) => Ok(Some(differ.found)),
        Err(Undecided::ListAll) => Ok(None),
        Err(Undecided::Failed(error)) => Err(error),
    }
}

/// A directory that differs, or is new, or goes.
type Below = (Vec<u8>, Option<ObjectId>, Option<ObjectId>);

impl Differ<'_> {
    /// Both versions are released before the directories in them are compared.
    fn dir(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        depth: u32,
    ) -> Result<(), Undecided> {
        if self.cancel.is_cancelled() {
            return Err(Undecided::Failed(Error::Cancelled));
        }
        if depth > self.depth_max {
            return Err(Undecided::ListAll);
        }
        for (path, old, new) in self.level(path, old, new)? {
            self.dir(&path, old, new, depth + 1)?;
        }
        Ok(())
    }

    fn level(
        &mut self,
        path: &[u8],
        old: Option<ObjectId>,
        new: Option<ObjectId>,
    ) -> Result<Vec<Below>, Undecided> {
        let reader = self.reader;
        let lost = |_: Lack| Undecided::ListAll;
        let damaged = |lack| Undecided::Failed(Error::damaged(self.revision, lack));
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
        let mut below = Vec::new();
        for (name, pair) in pairs(&Sorted::by_name(before), &Sorted::by_name(after)) {
            // Then one path may lead to two things, and which of them was listed is not seen here.
            if pair.is_unclear || pair.is_twice || name.is_empty() || name.contains(&b'/') {
                return Err(Undecided::ListAll);
            }
            if pair.unchanged().is_some() {
                continue;
            }
            let path = join(path, name);
            self.room = self.room.checked_sub(path.len() + OF_PATH).ok_or(Undecided::ListAll)?;
            let dir = |line: Option<Line<'_>>| line.filter(Line::is_dir).map(|line| line.id);
            let (old, new) = (dir(pair.old), dir(pair.new));
            let before = pair.old.is_some_and(|line| !line.is_dir());
            let now = pair.new.filter(|line| !line.is_dir()).map(|line| listed(reader, &line));
            let now = now.transpose().map_err(damaged)?;
            if (old.is_some() || new.is_some()) && (self.enter)(&path) {
                below.push((path.clone(), old, new));
            }
            if before || now.is_some() {
                self.found.push(Differing { path, before, now });
            }
        }
        Ok(below)
    }
}
