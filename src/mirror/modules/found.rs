//! The submodules that a tree really has: what `.gitmodules` declares and the tree holds as a commit of another
//! repository, down to the last nested one. Read from objects alone, so that payloads and deltas need no network, and
//! the same tree always gives the same answer.

use std::collections::{BTreeMap, BTreeSet};

use super::Submodules;
use super::allowance::{COUNT_MAX, NESTED_MAX};
use super::declared::{self, FILE_MAX};
use crate::mirror::Error;
use crate::mirror::lack::Lack;
use crate::mirror::odb::ObjectReader;
use crate::mirror::tree::{DIRECTORY, FORMAT, Line, REGULAR, SUBMODULE, lines};
use crate::payload::{Refusal, Rule, escaped, join};
use crate::revision::{ObjectId, Revision};

/// git's empty tree: nothing of it can be checked out, and yet its directory is there.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// A submodule of one repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::mirror) struct Link {
    /// Its name in `.gitmodules`.
    pub(in crate::mirror) name: String,
    /// Where it lies, from the top of its repository.
    pub(in crate::mirror) path: String,
    /// From where, as written.
    pub(in crate::mirror) url: Option<String>,
    /// Which commit.
    pub(in crate::mirror) commit: ObjectId,
}

/// Why a tree's submodules are not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::mirror) enum Trouble {
    /// An object of the repository itself is not there.
    Lack(Lack),
    /// A commit of a submodule is not there: it was not fetched yet, or no longer needs to be held.
    Absent {
        /// The submodule.
        path: String,
        /// The commit.
        commit: ObjectId,
    },
    /// The commit's author wrote what cannot be followed.
    Refused {
        /// Which entry.
        path: String,
        /// Why.
        why: String,
    },
}

impl From<Lack> for Trouble {
    fn from(lack: Lack) -> Self {
        Self::Lack(lack)
    }
}

impl Trouble {
    /// As an error of the mirror.
    pub(in crate::mirror) fn of(self, revision: Revision) -> Error {
        match self {
            Self::Lack(lack) => Error::damaged(revision, lack),
            Self::Absent { path, commit } => Error::NoModule { path, commit },
            Self::Refused { path, why } => {
                let path = escaped(path.as_bytes());
                Refusal { revision, path, rule: Rule::Submodule { why } }.into()
            }
        }
    }
}

/// The submodules of a tree's own repository; nested ones are not looked into. Those that are not to be checked out
/// (`update = none`) come second, by path.
pub(in crate::mirror) fn links(
    reader: &ObjectReader<'_>,
    tree: ObjectId,
) -> Result<(Vec<Link>, Vec<String>), Trouble> {
    let file = entries(reader, tree, &[".gitmodules"])?.pop().flatten();
    let Some((mode, id)) = file else { return Ok(Default::default()) };
    let refused = |why: String| Trouble::Refused { path: ".gitmodules".to_owned(), why };
    if mode & FORMAT != REGULAR {
        return Err(refused("it is not a file".into()));
    }
    if reader.blob_size(&id)? > FILE_MAX {
        return Err(refused(format!("it has more than {FILE_MAX} bytes")));
    }
    let declared = declared::read(&reader.small_blob(&id)?).map_err(|wrong| refused(wrong.to_string()))?;
    let mut links = Vec::new();
    let mut skipped = Vec::new();
    let paths: Vec<_> = declared.iter().map(|one| &*one.path).collect();
    let found = entries(reader, tree, &paths)?;
    for (one, found) in declared.into_iter().zip(found) {
        match found {
            Some((mode, _)) if mode & FORMAT == SUBMODULE && one.skipped => skipped.push(one.path),
            Some((mode, commit)) if mode & FORMAT == SUBMODULE => {
                links.push(Link { name: one.name, path: one.path, url: one.url, commit });
            }
            // Declared, and not there: left behind when the submodule was removed.
            _ => {}
        }
    }
    Ok((links, skipped))
}

/// What lies at each of these paths: mode and id. Links on the way are not followed. The trees on the way may be large,
/// and a thousand paths lead through them: each is read once.
fn entries(
    reader: &ObjectReader<'_>,
    top: ObjectId,
    paths: &[&str],
) -> Result<Vec<Option<(u32, ObjectId)>>, Lack> {
    let mut found = vec![None; paths.len()];
    let mut waiting = vec![(top, paths.iter().copied().enumerate().collect::<Vec<_>>())];
    while let Some((id, paths)) = waiting.pop() {
        let mut wanted: BTreeMap<&[u8], Vec<(usize, Option<&str>)>> = BTreeMap::new();
        for (at, path) in paths {
            let (name, rest) = path.split_once('/').map_or((path, None), |(name, rest)| (name, Some(rest)));
            wanted.entry(name.as_bytes()).or_default().push((at, rest));
        }
        let tree = reader.tree(&id)?;
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

/// All submodules below a tree, by their path from its top.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::mirror) struct Modules {
    asked: Submodules,
    /// The tree of each one's commit.
    trees: BTreeMap<Vec<u8>, ObjectId>,
    skipped: BTreeSet<Vec<u8>>,
}

impl Modules {
    /// Finds them. `reader` also reads what the submodules' own mirrors hold.
    pub(in crate::mirror) fn of(
        reader: &ObjectReader<'_>,
        tree: ObjectId,
        asked: Submodules,
    ) -> Result<Self, Trouble> {
        let mut all = Self { asked, ..Self::default() };
        if asked == Submodules::Off {
            return Ok(all);
        }
        let mut waiting = vec![(Vec::new(), tree, 0)];
        while let Some((at, tree, level)) = waiting.pop() {
            let (links, skipped) = links(reader, tree).map_err(|trouble| trouble.below(&at))?;
            all.skipped.extend(skipped.iter().map(|path| join(&at, path.as_bytes())));
            for link in links {
                let path = join(&at, link.path.as_bytes());
                let shown = || String::from_utf8_lossy(&path).into_owned();
                if all.trees.len() == COUNT_MAX || level == NESTED_MAX {
                    let why = format!(
                        "with it there are more than {COUNT_MAX} submodules, or more than {NESTED_MAX} one in the other"
                    );
                    return Err(Trouble::Refused { path: shown(), why });
                }
                let commit = reader.commit(&link.commit);
                let commit = commit.map_err(|_| Trouble::Absent { path: shown(), commit: link.commit })?;
                all.trees.insert(path.clone(), commit.tree);
                if asked == Submodules::Recursive {
                    waiting.push((path, commit.tree, level + 1));
                }
            }
        }
        Ok(all)
    }

    /// Whether there is none.
    pub(in crate::mirror) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// A tree's line as a checkout sees it: a submodule that is asked for is a directory with its commit's tree.
    pub(in crate::mirror) fn seen<'l>(&self, path: &[u8], line: Line<'l>) -> Line<'l> {
        if line.mode & FORMAT != SUBMODULE {
            return line;
        }
        match self.trees.get(path) {
            // A directory without an entry would not be made.
            Some(tree) if tree.to_string() != EMPTY_TREE => Line { mode: DIRECTORY, id: *tree, ..line },
            _ => line,
        }
    }

    /// Whether a submodule begins at the path.
    pub(in crate::mirror) fn begins(&self, path: &[u8]) -> bool {
        self.trees.contains_key(path)
    }

    /// Why there is no content for what a tree holds as a submodule at the path, although it is asked for.
    pub(in crate::mirror) fn why_absent(&self, path: &[u8]) -> Option<Rule> {
        let asked = match self.asked {
            Submodules::Off => false,
            Submodules::First => !self.encloses(path),
            Submodules::Recursive => true,
        };
        let known = self.trees.contains_key(path) || self.skipped.contains(path);
        (asked && !known).then(|| Rule::Submodule { why: "`.gitmodules` has no entry for it".to_owned() })
    }

    fn encloses(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| &path[..at]).any(|above| self.trees.contains_key(above))
    }
}

impl Trouble {
    /// The same, seen from a repository that has this one at `at`.
    pub(in crate::mirror) fn below(self, at: &[u8]) -> Self {
        let full = |path: String| match at {
            b"" => path,
            at => String::from_utf8_lossy(&join(at, path.as_bytes())).into_owned(),
        };
        match self {
            Self::Lack(lack) => Self::Lack(lack),
            Self::Absent { path, commit } => Self::Absent { path: full(path), commit },
            Self::Refused { path, why } => Self::Refused { path: full(path), why },
        }
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
            let modes = entries(&reader, top, paths).unwrap().into_iter();
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
}
