//! The directory of a repository that is published as the root of the tree (`--path`).

use std::fmt;
use std::str::FromStr;

use super::Error;
use super::object_error::ObjectError;
use super::odb::ObjectReader;
use super::tree::lines;
use crate::payload::{Node, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// A path of a directory below the top of a repository, without empty components, `.` and `..`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subdirectory(String);

/// The error for a string that is not such a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "write a path below the top of the repository, as in `services/gateway`: no `/` in front, no `.` or `..`"
)]
pub struct BadSubdirectory;

/// What [`Subdirectory::find`] returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lookup {
    /// The directory's tree. Whether it is in the mirror is not checked.
    Tree(ObjectId),
    /// The first tree above the directory, from the top, that is not in the mirror. `--filter` may have left it out.
    Absent(ObjectId),
}

impl FromStr for Subdirectory {
    type Err = BadSubdirectory;

    /// Accepts a trailing `/`, which shell completion appends.
    fn from_str(text: &str) -> Result<Self, BadSubdirectory> {
        let path = text.strip_suffix('/').unwrap_or(text);
        let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if path.split('/').all(is_name) { Ok(Self(path.to_owned())) } else { Err(BadSubdirectory) }
    }
}

impl fmt::Display for Subdirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Subdirectory {
    /// The directory's tree below `top`, the tree of a revision. Symbolic links are not followed. A revision without
    /// the directory is refused.
    pub(super) fn tree(
        &self,
        reader: &ObjectReader<'_>,
        revision: Revision,
        top: ObjectId,
    ) -> Result<ObjectId, Error> {
        match self.find(reader, revision, top)? {
            Lookup::Tree(id) => Ok(id),
            Lookup::Absent(id) => {
                Err(Error::damaged(revision, ObjectError::Missing { id, expected: "tree".to_owned() }))
            }
        }
    }

    /// Like [`Self::tree`], but a tree above the directory that is not in the mirror is no error.
    pub(super) fn find(
        &self,
        reader: &ObjectReader<'_>,
        revision: Revision,
        top: ObjectId,
    ) -> Result<Lookup, Error> {
        let damaged = |error: ObjectError| Error::damaged(revision, error);
        let mut tree = top;
        for (end, name) in self.components() {
            if !reader.has(&tree) {
                return Ok(Lookup::Absent(tree));
            }
            let object = reader.tree(&tree).map_err(damaged)?;
            let mut entries = lines(&tree, object.data()).map_err(damaged)?;
            let entry = entries.find(|entry| entry.name == name.as_bytes());
            let rule = match entry.map(|entry| (Node::of(entry.mode), entry.id)) {
                Some((Some(Node::Dir), id)) => {
                    tree = id;
                    continue;
                }
                Some(_) => Rule::NotADirectory { path: escaped(self.0.as_bytes()) },
                None => Rule::NoDirectory { path: escaped(self.0.as_bytes()) },
            };
            return Err(Refusal { revision, path: escaped(&self.0.as_bytes()[..end]), rule }.into());
        }
        Ok(Lookup::Tree(tree))
    }

    /// The path's components, each with the offset of its end in the path.
    fn components(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut end = 0;
        self.0.split('/').map(move |name| {
            let slash = usize::from(end > 0);
            end += slash + name.len();
            (end, name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_a_repository_is_named_from_its_top() {
        for (text, path) in [("a", "a"), ("a/b", "a/b"), ("a/b/", "a/b"), ("..a/b..", "..a/b..")] {
            assert_eq!(text.parse::<Subdirectory>().map(|path| path.to_string()), Ok(path.to_owned()));
        }
        for text in ["", "/", "/a", "a//b", "a/./b", ".", "..", "../a", "a/..", "a\0b", "a//"] {
            assert_eq!(text.parse::<Subdirectory>(), Err(BadSubdirectory), "{text:?}");
        }
    }
}
