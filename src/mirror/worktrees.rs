//! Generations as linked worktrees of `ROOT/.git`, so that git works in them (gitrepository-layout(5), "worktrees").
//!
//! ```text
//! .git/worktrees/<hash>/HEAD              the revision, detached
//! .git/worktrees/<hash>/commondir         ../..
//! .git/worktrees/<hash>/gitdir            the tree's `.git`, absolute; git follows it only to find worktrees to prune
//! .git/worktrees/<hash>/index             every file with its stat data, so that `git status` reads no content
//! .git/worktrees/<hash>/info/sparse-checkout, config.worktree     where patterns select
//! ```
//!
//! The way from the tree to here is the store's: its `.git` file is relative, so that the volume may be mounted
//! anywhere.
//!
//! A crash leaves, after each step of [`Objects::add_worktree`]:
//!
//! 1. with files written: a directory `tmp_worktree-*` that git does not look at, swept at the next opening;
//! 2. with the branch moved: the branch `git-sync` at a revision that is not published yet, and is in the mirror;
//! 3. with the directory in its place: a worktree without a tree, which the next attempt replaces, or the next
//!    housekeeping removes.
//!
//! Each step is durable before the next begins, where durability is asked for.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use fs_err as fs;

use super::error::Error;
use super::files::{local, names, replace, sync_dir};
use super::modules::Seat;
use super::repo_kind::{self, BRANCH, UNFINISHED};
use super::sparse::Patterns;
use super::{Objects, Selection, git_index};
use crate::fsx;
use crate::revision::{ObjectId, Revision};

impl Objects {
    /// Makes `staged`, which holds a revision's selected content and will be at `place` (absolute), a linked worktree
    /// of the repository, and moves the branch `git-sync` to it. One that was there for the same revision is replaced
    /// at once; so are its submodules. The index is of the files in `staged`: they may be renamed, but not copied,
    /// afterwards. Blocking; no network.
    pub fn add_worktree(
        &self,
        revision: Revision,
        selection: &Selection,
        staged: &Path,
        place: &Path,
    ) -> Result<(), Error> {
        self.link(revision, selection, (staged, place), &Seat::first())
    }

    /// The same for a generation or a submodule in it.
    pub(super) fn link(
        &self,
        revision: Revision,
        selection: &Selection,
        (staged, place): (&Path, &Path),
        seat: &Seat,
    ) -> Result<(), Error> {
        self.link_modules(revision, selection, (staged, place), seat)?;
        let git = &self.shared.dir;
        let durable = self.shared.durable;
        let patterns = selection.sparse.as_deref().map(Patterns::parse).transpose()?;
        let fresh = git.join(fsx::unique(UNFINISHED));
        let _swept = Swept(&fresh);
        let file = |name: &str, content: &[u8]| -> Result<(), Error> {
            let path = fresh.join(name);
            fs::write(&path, content).map_err(local("write", &path))?;
            if durable { sync_dir(&path) } else { Ok(()) } // fsync(2) is the same for a file
        };
        if selection.sparse.is_some() {
            repo_kind::configure(git, "extensions.worktreeConfig", "true")?;
        }
        let info = fresh.join("info");
        fs::create_dir_all(&info).map_err(local("make", &info))?; // 1
        file("HEAD", format!("{revision}\n").as_bytes())?;
        file("commondir", b"../..\n")?;
        file("gitdir", &[place.as_os_str().as_bytes(), b"/.git\n"].concat())?;
        let index = fresh.join("index");
        self.read(revision, |reader, at| {
            git_index::write(&index, reader, at, selection, patterns.as_ref(), staged, &self.cancel)
        })?;
        if durable {
            sync_dir(&index)?;
        }
        if let Some(text) = &selection.sparse {
            file("info/sparse-checkout", text.as_bytes())?;
            file("config.worktree", b"[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = false\n")?;
        }
        if durable {
            sync_dir(&info)?;
            sync_dir(&fresh)?;
        }
        let branch = git.join(BRANCH);
        fs::create_dir_all(git.join("refs/heads")).map_err(local("make", &branch))?;
        replace(&branch, format!("{revision}\n").as_bytes(), durable)?; // 2
        let worktrees = git.join("worktrees");
        fs::create_dir_all(&worktrees).map_err(local("make", &worktrees))?;
        let admin = worktrees.join(revision.to_string());
        repo_kind::exchange(&fresh, &admin).map_err(local("put in place", &admin))?; // 3
        if durable { sync_dir(&worktrees) } else { Ok(()) }
    }

    /// What the `HEAD` of a generation's worktree names now: another revision once a commit was made in it. `None`
    /// where the worktree is not whole. Two small reads.
    pub fn worktree_head(&self, of: Revision) -> Option<Revision> {
        let admin = self.shared.dir.join("worktrees").join(of.to_string());
        if !["index", "commondir", "gitdir"].iter().all(|name| admin.join(name).exists()) {
            return None;
        }
        let head = fs::read_to_string(admin.join("HEAD")).ok()?;
        match head.trim_end().strip_prefix("ref: ") {
            None => ObjectId::from_hex(head.trim_end()).map(Revision),
            Some(name) => {
                let id = git2::Repository::open_bare(&self.shared.dir).ok()?.refname_to_id(name).ok()?;
                ObjectId::from_hex(&id.to_string()).map(Revision)
            }
        }
    }
}

/// Removes a directory on every way out.
struct Swept<'a>(&'a Path);

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0); // what stays is swept at the next opening
    }
}

/// Removes the worktrees of generations that are gone. Other worktrees stay: only one whose name is a commit id, and
/// whose tree is, or was, the directory of that name where git-sync puts its trees, is ours; in the repository of a
/// submodule (`inner`) any whose name is a commit id.
pub(super) fn prune(git: &Path, held: &[Revision], inner: bool) -> Result<Vec<String>, Error> {
    let worktrees = git.join("worktrees");
    let mut gone = Vec::new();
    for name in names(&worktrees)? {
        let admin = worktrees.join(&name);
        let is_held = |id| held.iter().any(|held| held.0 == id);
        if ObjectId::from_hex(&name).is_none_or(is_held) || !(inner || is_ours(&admin, &name)) {
            continue;
        }
        // Renamed first: what is half removed would be a worktree without a HEAD to git.
        let going = git.join(fsx::unique(UNFINISHED));
        fs::rename(&admin, &going).map_err(local("remove the worktree", &admin))?;
        fs::remove_dir_all(&going).map_err(local("remove the worktree", &going))?;
        gone.push(name);
    }
    Ok(gone)
}

/// Whether a worktree is of git-sync's layout: `.worktrees/<hash>`, or v3's `<hash>` once that is gone. The volume may
/// have been mounted elsewhere when it was made, so the beginning of the path says nothing.
fn is_ours(admin: &Path, name: &str) -> bool {
    let Ok(text) = fs::read_to_string(admin.join("gitdir")) else { return true };
    let tree = Path::new(text.trim_end());
    let Some(place) = tree.parent().filter(|place| place.ends_with(name)) else { return false };
    place.parent().is_some_and(|parent| parent.ends_with(".worktrees")) || !tree.exists()
}
