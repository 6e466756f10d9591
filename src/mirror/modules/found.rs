//! Determines the submodules of a tree, recursively: entries that `.gitmodules` declares and that are gitlinks (commits
//! of another repository). It only reads objects, so payloads and deltas need no network, and the result is a function
//! of the tree.

use std::collections::{BTreeMap, BTreeSet};

use super::Submodules;
use super::allowance::{COUNT_MAX, NESTED_MAX};
use super::declared::{self, FILE_MAX};
use crate::mirror::Error;
use crate::mirror::descriptors::descriptors_used_up;
use crate::mirror::object_error::ObjectError;
use crate::mirror::odb::{ObjectReader, Store, TREE_MAX};
use crate::mirror::tree::{DIRECTORY, FORMAT, Line, REGULAR, SUBMODULE, lines};
use crate::payload::{Refusal, Rule, escaped, join};
use crate::revision::{ObjectId, Revision};

/// The id of git's empty tree.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// The most bytes of trees that are read to find submodules, in a repository or in all nested ones together. A large
/// tree counts at each path: `.gitmodules` can name a thousand that lead through it, which would take minutes.
const TREES_MAX: usize = 4 * TREE_MAX;

/// A submodule of one repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::mirror) struct Link {
    /// Its name in `.gitmodules`.
    pub(in crate::mirror) name: String,
    /// Its path from the top of the repository that contains it.
    pub(in crate::mirror) path: String,
    /// Its URL as written, which may be relative.
    pub(in crate::mirror) url: Option<String>,
    /// The commit that the tree names.
    pub(in crate::mirror) commit: ObjectId,
}

/// Why the submodules of a tree cannot be determined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::mirror) enum ModulesError {
    /// An object of the repository itself cannot be read.
    ObjectError(ObjectError),
    /// A commit of a submodule is absent: it was not fetched yet, or was garbage collected.
    Absent {
        /// The submodule's path.
        path: String,
        /// The commit.
        commit: ObjectId,
    },
    /// The commit is refused because of what its author wrote.
    Refused {
        /// The path of the entry at fault.
        path: String,
        /// The reason.
        why: String,
    },
}

impl From<ObjectError> for ModulesError {
    fn from(error: ObjectError) -> Self {
        Self::ObjectError(error)
    }
}

impl ModulesError {
    /// Converts it to an error of the mirror.
    pub(in crate::mirror) fn into_error(self, revision: Revision) -> Error {
        match self {
            Self::ObjectError(error) => Error::damaged(revision, error),
            Self::Absent { path, commit } => Error::NoModule { path: escaped(path.as_bytes()), commit },
            Self::Refused { path, why } => {
                let path = escaped(path.as_bytes());
                Refusal { revision, path, rule: Rule::Submodule { why } }.into()
            }
        }
    }

    /// Prefixes the paths with `at`, the path of a submodule.
    fn below(self, at: &[u8]) -> Self {
        let full = |path: String| String::from_utf8_lossy(&join(at, path.as_bytes())).into_owned();
        match self {
            Self::ObjectError(error) => Self::ObjectError(error),
            Self::Absent { path, commit } => Self::Absent { path: full(path), commit },
            Self::Refused { path, why } => Self::Refused { path: full(path), why },
        }
    }
}

/// The direct submodules of a tree. Also returns the paths of those with `update = none`, which are not checked out.
pub(in crate::mirror) fn links(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
) -> Result<(Vec<Link>, Vec<String>), ModulesError> {
    let mut left = TREES_MAX;
    links_within(reader, tree, &mut left)
}

/// The same, reading at most the bytes of trees that are `left`.
fn links_within(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
    left: &mut usize,
) -> Result<(Vec<Link>, Vec<String>), ModulesError> {
    let file = entries(reader, tree, &[b".gitmodules"], left)?.pop().flatten();
    let Some((mode, id)) = file else { return Ok(Default::default()) };
    let refused = |why: String| ModulesError::Refused { path: ".gitmodules".to_owned(), why };
    if mode & FORMAT != REGULAR {
        return Err(refused("it is not a file".into()));
    }
    if reader.blob_size(&id)? > FILE_MAX {
        return Err(refused(format!("it has more than {FILE_MAX} bytes")));
    }
    let declared = declared::read(&reader.small_blob(&id)?).map_err(refused)?;
    let mut links = Vec::new();
    let mut skipped = Vec::new();
    let paths: Vec<_> = declared.keys().map(|path| &**path).collect();
    let found = entries(reader, tree, &paths, left)?;
    for (one, found) in declared.into_values().zip(found) {
        // Otherwise the entry was left behind when the submodule was removed.
        let Some((_, commit)) = found.filter(|(mode, _)| mode & FORMAT == SUBMODULE) else { continue };
        let one = one.map_err(refused)?;
        if one.skipped {
            skipped.push(one.path);
        } else {
            links.push(Link { name: one.name, path: one.path, url: one.url, commit });
        }
    }
    Ok((links, skipped))
}

/// The direct submodules of a revision in the mirror.
pub(super) fn links_in(store: &Store, revision: Revision) -> Result<Vec<Link>, Error> {
    let reader = store.objects()?;
    let commit = reader.commit(&revision.0).map_err(|error| Error::damaged(revision, error))?;
    links(&reader, commit.tree).map(|(links, _)| links).map_err(|error| error.into_error(revision))
}

/// The next object that must be fetched before the submodules of a revision can be listed; `None` if no object is
/// missing.
pub(in crate::mirror) fn missing_object_of_links(
    store: &Store,
    revision: Revision,
) -> Result<Option<ObjectId>, Error> {
    let reader = store.objects()?;
    let commit = reader.commit(&revision.0).map_err(|error| Error::damaged(revision, error))?;
    match links(&reader, commit.tree) {
        Err(ModulesError::ObjectError(ObjectError::Missing { id, .. })) => Ok(Some(id)),
        _ => Ok(None), // reading the list fails with any other error
    }
}

/// The direct submodules of kept revisions.
#[derive(Debug)]
pub(super) struct KeptLinks {
    /// Each with the revision that has it, in the order of the revisions.
    pub(super) links: Vec<(Revision, Link)>,
    /// False if those of a revision could not be read. It may need the mirror of any submodule, and any object in it,
    /// so nothing may be removed.
    pub(super) are_all_read: bool,
}

/// The direct submodules of the `kept` revisions. `linked`: they may be linked worktrees (git-sync's layout), in which
/// somebody may have committed.
pub(super) fn kept_links(store: &Store, kept: &[Revision], linked: bool) -> KeptLinks {
    let mut all = KeptLinks { links: Vec::new(), are_all_read: true };
    for of in kept.iter().copied() {
        match links_in(store, of) {
            Ok(links) => all.links.extend(links.into_iter().map(|link| (of, link))),
            Err(Error::Refused(_)) => {} // it can never have been published with submodules
            // Usual after the mirror was renewed. What belongs to the revision can be fetched again.
            Err(Error::Damaged { source, .. })
                if !linked
                    && matches!(source, ObjectError::Missing { id, .. } if id == of.0)
                    && descriptors_used_up().is_none() => {}
            Err(error) => {
                tracing::warn!(%error, "the submodules of a kept revision are unknown, so all stay");
                all.are_all_read = false;
            }
        }
    }
    all
}

/// The mode and id of the entry at each path, in the order of `paths`; `None` if there is none. Symbolic links are not
/// followed. Trees may be large and have a thousand of the paths below them, so each is read only once where it stands.
/// `left` is how many bytes of trees may still be read.
fn entries(
    reader: &ObjectReader<'_>,
    top: ObjectId,
    paths: &[&[u8]],
    left: &mut usize,
) -> Result<Vec<Option<(u32, ObjectId)>>, ModulesError> {
    /// A path's index in `paths`, and what of it comes below a name.
    type Below<'a> = (usize, Option<&'a [u8]>);
    let mut found = vec![None; paths.len()];
    let mut waiting = vec![(top, paths.iter().copied().enumerate().collect::<Vec<_>>())];
    while let Some((id, paths)) = waiting.pop() {
        let mut wanted: BTreeMap<&[u8], Vec<Below<'_>>> = BTreeMap::new();
        for (at, path) in paths {
            let slash = path.iter().position(|byte| *byte == b'/');
            let (name, rest) = slash.map_or((path, None), |slash| (&path[..slash], Some(&path[slash + 1..])));
            wanted.entry(name).or_default().push((at, rest));
        }
        let tree = reader.tree(&id)?;
        *left = left.checked_sub(tree.data().len()).ok_or_else(|| ModulesError::Refused {
            path: ".gitmodules".to_owned(),
            why: format!("its paths lead through more than {TREES_MAX} bytes of trees"),
        })?;
        for line in lines(&id, tree.data())? {
            let mut below = Vec::new();
            for (at, rest) in wanted.remove(line.name).unwrap_or_default() {
                match rest {
                    None => found[at] = Some((line.mode, line.id)),
                    Some(rest) => below.push((at, rest)),
                }
            }
            if line.mode & FORMAT == DIRECTORY && !below.is_empty() {
                waiting.push((line.id, below));
            }
        }
    }
    Ok(found)
}

/// All published submodules below a tree, by their path from its top.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::mirror) struct Modules {
    submodules: Submodules,
    /// Each submodule's path, and the tree of its commit.
    trees: BTreeMap<Vec<u8>, ObjectId>,
    /// Submodules with `update = none`.
    skipped: BTreeSet<Vec<u8>>,
}

impl Modules {
    /// Finds the submodules below a tree. `reader` must also read the submodules' mirrors.
    pub(in crate::mirror) fn of(
        reader: &ObjectReader<'_>,
        tree: ObjectId,
        submodules: Submodules,
    ) -> Result<Self, ModulesError> {
        let mut all = Self { submodules, ..Self::default() };
        if submodules == Submodules::Off {
            return Ok(all);
        }
        let mut waiting = vec![(Vec::new(), tree, 0)];
        let mut left = TREES_MAX;
        while let Some((at, tree, level)) = waiting.pop() {
            let (links, skipped) = links_within(reader, tree, &mut left).map_err(|error| error.below(&at))?;
            all.skipped.extend(skipped.iter().map(|path| join(&at, path.as_bytes())));
            for link in links {
                let path = join(&at, link.path.as_bytes());
                let shown = || String::from_utf8_lossy(&path).into_owned();
                if all.trees.len() == COUNT_MAX || level == NESTED_MAX {
                    let why = format!(
                        "with it there are more than {COUNT_MAX} submodules, or more than {NESTED_MAX} one in the other"
                    );
                    return Err(ModulesError::Refused { path: shown(), why });
                }
                let commit = reader.commit(&link.commit).map_err(|error| match error {
                    ObjectError::Missing { .. } => {
                        ModulesError::Absent { path: shown(), commit: link.commit }
                    }
                    // git itself follows a tag here.
                    ObjectError::OtherKind { found, .. } => {
                        let why = format!("it names a {found}, not a commit");
                        ModulesError::Refused { path: shown(), why }
                    }
                    error => error.into(),
                })?;
                all.trees.insert(path.clone(), commit.tree);
                if submodules == Submodules::Recursive {
                    waiting.push((path, commit.tree, level + 1));
                }
            }
        }
        Ok(all)
    }

    /// Returns true if there are no published submodules.
    pub(in crate::mirror) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// A tree entry as it is checked out: a published submodule becomes a directory with its commit's tree.
    pub(in crate::mirror) fn checked_out<'l>(&self, path: &[u8], line: Line<'l>) -> Line<'l> {
        if line.mode & FORMAT != SUBMODULE {
            return line;
        }
        match self.trees.get(path) {
            // A payload has no empty directories, so a submodule with an empty tree stays a submodule entry, for which
            // an empty directory is created.
            Some(tree) if tree.to_string() != EMPTY_TREE => Line { mode: DIRECTORY, id: *tree, ..line },
            _ => line,
        }
    }

    /// Returns true if the path is the root of a published submodule.
    pub(in crate::mirror) fn has_root(&self, path: &[u8]) -> bool {
        self.trees.contains_key(path)
    }

    /// The rule that refuses a gitlink at `path` that should be published but that `.gitmodules` does not declare.
    /// `None` if the gitlink is fine.
    pub(in crate::mirror) fn undeclared(&self, path: &[u8]) -> Option<Rule> {
        let is_published = match self.submodules {
            Submodules::Off => false,
            Submodules::First => !self.encloses(path),
            Submodules::Recursive => true,
        };
        let known = self.trees.contains_key(path) || self.skipped.contains(path);
        (is_published && !known)
            .then(|| Rule::Submodule { why: "`.gitmodules` has no entry for it".to_owned() })
    }

    /// Returns true if the path is inside a published submodule.
    fn encloses(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| &path[..at]).any(|above| self.trees.contains_key(above))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::mirror::fixture::Fixture;

    #[test]
    fn many_paths_through_a_large_tree_cost_little_more_than_one() {
        let fixture = Fixture::new();
        let blob = fixture.blob(b"x");
        let names: Vec<_> = (0..50_000).map(|n| format!("{n:05}")).collect();
        let large: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), blob)).collect();
        let large = fixture.tree(&large);
        let top = fixture.tree(&[("40000", b"a", large), ("160000", b"b", blob), ("120000", b"c", blob)]);
        let store = fixture.shared.store().unwrap();
        let reader = store.reader().unwrap();
        let found = |paths: &[&str]| {
            let mut left = TREES_MAX;
            let paths: Vec<_> = paths.iter().map(|path| path.as_bytes()).collect();
            let modes = entries(&reader, top, &paths, &mut left).unwrap().into_iter();
            modes.map(|found| found.map_or(0, |(mode, _)| mode)).collect::<Vec<_>>()
        };
        let odd = ["b", "a/00007", "c", "c/x", "a", "a/x", "a/00007/x", "b", "x"];
        assert_eq!(
            found(&odd),
            [0o160000, 0o100644, 0o120000, 0, 0o40000, 0, 0, 0o160000, 0],
            "in the order of the paths"
        );
        let paths: Vec<_> = (0..1_000).map(|n| format!("a/{n:05}")).collect();
        let paths: Vec<_> = paths.iter().map(|path| &**path).collect();
        let time = |paths: &[&str]| {
            let began = Instant::now();
            assert_eq!(found(paths), vec![0o100644; paths.len()]);
            began.elapsed()
        };
        let (many, one) = (time(&paths), time(&paths[..1]));
        assert!(many < one * 100, "a thousand took {many:?}, one {one:?}");
    }

    #[test]
    fn a_tree_that_stands_at_many_paths_counts_at_each() {
        let fixture = Fixture::new();
        let blob = fixture.blob(b"x");
        let shared = fixture.tree(&[("100644", b"f", blob)]);
        let top = fixture.tree(&[("40000", b"a", shared), ("40000", b"b", shared)]);
        let store = fixture.shared.store().unwrap();
        let reader = store.reader().unwrap();
        let bytes = |tree| reader.tree(&tree).unwrap().data().len();
        let needed = bytes(top) + 2 * bytes(shared);
        for (mut left, is_allowed) in [(needed, true), (needed - 1, false)] {
            match entries(&reader, top, &[b"a/f", b"b/f"], &mut left) {
                Ok(found) => assert!(is_allowed && found == [Some((0o100644, blob)); 2], "{found:?}"),
                Err(ModulesError::Refused { path, .. }) => assert!(!is_allowed && path == ".gitmodules"),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}
