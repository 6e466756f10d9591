//! Registers a generation's submodules as linked worktrees of their own repositories, so that git commands work in
//! them.
//!
//! ```text
//! .worktrees/<hash>/<path>/.git                    gitdir: ../…/.git/modules/<name>/worktrees/<commit>
//! .git/modules/<name>/worktrees/<commit>/          as for the generation itself
//! ```
//!
//! Generations with a submodule at the same commit share its worktree's administrative files. The index has the stat
//! data of the newest generation; in an older one git compares contents.

use std::path::Path;

use fs_err as fs;

use super::dirs::{DIR, dir_name};
use super::found::links_in;
use crate::mirror::error::Error;
use crate::mirror::files::{fsync, local};
use crate::mirror::{Objects, Selection, Submodules};
use crate::revision::Revision;

/// The location of a repository relative to its worktree.
#[derive(Clone, Debug)]
pub(in crate::mirror) struct RepositoryPath {
    /// The depth of the worktree below the root.
    levels: usize,
    /// The path of the repository below the root.
    repository: String,
}

impl RepositoryPath {
    /// The repository of the generations: `ROOT/.git`, with worktrees `ROOT/.worktrees/<hash>`.
    pub(in crate::mirror) fn top() -> Self {
        Self { levels: 2, repository: ".git".to_owned() }
    }

    /// The repository of a submodule: `path` is its path in the worktree, `key` the name of its mirror's directory.
    fn below(&self, path: &str, key: &str) -> Self {
        let levels = self.levels + path.split('/').count();
        Self { levels, repository: format!("{}/{DIR}/{key}", self.repository) }
    }

    /// The content of the worktree's `.git` file. The path is relative, because the volume may be mounted anywhere.
    fn pointer(&self, commit: Revision) -> String {
        format!("gitdir: {}{}/worktrees/{commit}\n", "../".repeat(self.levels), self.repository)
    }
}

impl Objects {
    /// Registers the submodules of a staged revision as worktrees, but for those that the selection left out. `staged`
    /// is the tree's current path, `place` its final path.
    pub(in crate::mirror) fn link_modules(
        &self,
        revision: Revision,
        selection: &Selection,
        staged: &Path,
        place: &Path,
        repository: &RepositoryPath,
    ) -> Result<(), Error> {
        let submodules = self.shared.submodules;
        if submodules == Submodules::Off {
            return Ok(());
        }
        let store = self.shared.store()?;
        let links = links_in(&store, revision).inspect_err(|error| self.shared.note_if_damage(error))?;
        for link in links {
            let staged = staged.join(&link.path);
            let place = place.join(&link.path);
            if !staged.is_dir() {
                continue;
            }
            let key = dir_name(&link.name);
            let shared = self.shared.below(self.shared.dir.join(DIR).join(&key), submodules.next());
            let objects = Self { shared: shared.into(), cancel: self.cancel.clone() };
            let repository = repository.below(&link.path, &key);
            let commit = Revision(link.commit);
            let selection = Selection { sparse: None, ..selection.clone() };
            objects.link(commit, &selection, &staged, &place, &repository)?;
            let file = staged.join(".git");
            fs::write(&file, repository.pointer(commit)).map_err(local("write", &file))?;
            if self.shared.durable {
                fsync(&file)?;
                fsync(&staged)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::ObjectId;

    #[test]
    fn the_way_back_is_relative() {
        let repository = RepositoryPath::top().below("lib/sub", "x").below("in", "y");
        assert_eq!(
            repository.pointer(Revision(ObjectId([1; 20]))),
            format!("gitdir: ../../../../../.git/modules/x/modules/y/worktrees/{}\n", "01".repeat(20))
        );
    }
}
