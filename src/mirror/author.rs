//! Creates a small local repository and commits for `treeswap demo`. Nothing here is used by a sync.

use std::path::Path;

use git2::{IndexEntry, IndexTime, Signature};

use super::Error;
use super::odb::to_object_id;
use crate::revision::Revision;

/// The content of a committed path.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// A regular file.
    File(&'a [u8]),
    /// An executable file.
    Executable(&'a [u8]),
    /// A symbolic link to this target.
    Symlink(&'a str),
}

/// A bare repository with one branch, `main`, to which commits are added.
pub struct Author(git2::Repository);

impl Author {
    /// Creates an empty bare repository at `path`.
    pub fn init(path: &Path) -> Result<Self, Error> {
        let mut options = git2::RepositoryInitOptions::new();
        options.bare(true).external_template(false).initial_head("main");
        git2::Repository::init_opts(path, &options).map(Self).map_err(failed)
    }

    /// Commits a tree of exactly these paths to `main`. Fails if an object or the branch cannot be written, or git does
    /// not accept a path.
    pub fn commit(&self, paths: &[(&str, Content<'_>)], message: &str) -> Result<Revision, Error> {
        let mut index = git2::Index::new().map_err(failed)?;
        for (path, content) in paths {
            let (mode, bytes) = match content {
                Content::File(bytes) => (0o100_644, *bytes),
                Content::Executable(bytes) => (0o100_755, *bytes),
                Content::Symlink(target) => (0o120_000, target.as_bytes()),
            };
            let id = self.0.blob(bytes).map_err(failed)?;
            index.add(&entry(path, mode, id)).map_err(failed)?;
        }
        let tree = index.write_tree_to(&self.0).and_then(|id| self.0.find_tree(id)).map_err(failed)?;
        let parent = self.0.find_reference("refs/heads/main").and_then(|main| main.peel_to_commit()).ok();
        let parents: Vec<_> = parent.iter().collect();
        let who = Signature::now("treeswap demo", "demo@localhost").map_err(failed)?;
        let id =
            self.0.commit(Some("refs/heads/main"), &who, &who, message, &tree, &parents).map_err(failed)?;
        Ok(Revision(to_object_id(id)))
    }
}

fn entry(path: &str, mode: u32, id: git2::Oid) -> IndexEntry {
    IndexEntry {
        ctime: IndexTime::new(0, 0),
        mtime: IndexTime::new(0, 0),
        dev: 0,
        ino: 0,
        mode,
        uid: 0,
        gid: 0,
        file_size: 0,
        id,
        flags: 0,
        flags_extended: 0,
        path: path.as_bytes().to_vec(),
    }
}

fn failed(error: git2::Error) -> Error {
    Error::git("write the demonstration's repository", error)
}
