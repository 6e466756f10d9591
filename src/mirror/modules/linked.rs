//! A generation's submodules as linked worktrees of their own repositories, so that git works in them, too.
//!
//! ```text
//! .worktrees/<hash>/<path>/.git                    gitdir: ../…/.git/modules/<name>/worktrees/<commit>
//! .git/modules/<name>/worktrees/<commit>/          as for the generation itself
//! ```
//!
//! Generations that have a submodule at the same commit share its worktree's files: the index is right for the newest,
//! and in an older one git looks at the contents again.

use std::path::Path;

use fs_err as fs;

use super::dirs::DIR;
use super::{key, links_in};
use crate::mirror::error::Error;
use crate::mirror::files::{local, sync_dir};
use crate::mirror::{Objects, Selection, Submodules};
use crate::revision::Revision;

/// Where a repository is, seen from a worktree of the first one.
#[derive(Clone, Debug)]
pub(in crate::mirror) struct Seat {
    /// Directories from the root to the worktree's own.
    levels: usize,
    /// The repository, from the root.
    repository: String,
}

impl Seat {
    /// The repository of the generations: `ROOT/.git`, with worktrees `ROOT/.worktrees/<hash>`.
    pub(in crate::mirror) fn first() -> Self {
        Self { levels: 2, repository: ".git".to_owned() }
    }

    fn below(&self, path: &str, key: &str) -> Self {
        let levels = self.levels + path.split('/').count();
        Self { levels, repository: format!("{}/{DIR}/{key}", self.repository) }
    }

    /// What the worktree's `.git` file says. Relative: the volume may be mounted anywhere.
    fn pointer(&self, commit: Revision) -> String {
        format!("gitdir: {}{}/worktrees/{commit}\n", "../".repeat(self.levels), self.repository)
    }
}

impl Objects {
    /// Makes the submodules of a staged revision worktrees; those that the selection leaves out are not there.
    pub(in crate::mirror) fn link_modules(
        &self,
        revision: Revision,
        selection: &Selection,
        (staged, place): (&Path, &Path),
        seat: &Seat,
    ) -> Result<(), Error> {
        let asked = self.shared.asked;
        if asked == Submodules::Off {
            return Ok(());
        }
        for link in links_in(&self.shared.store()?, revision)? {
            let staged = staged.join(&link.path);
            let place = place.join(&link.path);
            if !staged.is_dir() {
                continue;
            }
            let key = key(&link.name);
            let shared = self.shared.below(self.shared.dir.join(DIR).join(&key), asked.next());
            let objects = Self { shared: shared.into(), cancel: self.cancel.clone() };
            let seat = seat.below(&link.path, &key);
            let commit = Revision(link.commit);
            let selection = Selection { sparse: None, ..selection.clone() };
            objects.link(commit, &selection, (&staged, &place), &seat)?;
            let file = staged.join(".git");
            fs::write(&file, seat.pointer(commit)).map_err(local("write", &file))?;
            if self.shared.durable {
                sync_dir(&file)?; // fsync(2) is the same for a file
                sync_dir(&staged)?;
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
        let seat = Seat::first().below("lib/sub", "x").below("in", "y");
        assert_eq!(
            seat.pointer(Revision(ObjectId([1; 20]))),
            format!("gitdir: ../../../../../.git/modules/x/modules/y/worktrees/{}\n", "01".repeat(20))
        );
    }
}
