//! Registers generations as linked worktrees of `ROOT/.git`, so that git commands work in them
//! (gitrepository-layout(5), "worktrees"). Writes:
//!
//! ```text
//! .git/worktrees/<hash>/HEAD              the revision, detached
//! .git/worktrees/<hash>/commondir         ../..
//! .git/worktrees/<hash>/gitdir            absolute path of the tree's `.git` file; git only uses it to prune worktrees
//! .git/worktrees/<hash>/index             every file with its stat data, so that `git status` reads no content
//! .git/worktrees/<hash>/info/sparse-checkout, config.worktree     only with sparse patterns
//! ```
//!
//! The opposite direction, the tree's own `.git` file, is written by the store. It is relative, so that the volume may
//! be mounted anywhere.
//!
//! A crash leaves, after each step of [`Objects::add_worktree`]:
//!
//! 1. with files written: a directory `tmp_worktree-*` that git ignores and the next opening removes;
//! 2. with the branch moved: the branch `git-sync` at a revision that is in the mirror but not published yet;
//! 3. with the directory in its place: a worktree without a tree, which the next attempt replaces or the next
//!    housekeeping removes.
//!
//! If durability is enabled, each step is durable before the next begins.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use fs_err as fs;

use super::error::Error;
use super::files::{fsync, local, names, replace};
use super::modules::RepositoryPath;
use super::repo_kind::{self, BRANCH, UNFINISHED};
use super::{Objects, Selection, git_index};
use crate::fsx;
use crate::revision::{ObjectId, Revision};

impl Objects {
    /// Registers `staged`, which holds a revision's selected content and will be renamed to `place` (absolute), as a
    /// linked worktree, and moves the branch `git-sync` to the revision. An existing worktree of the same revision is
    /// replaced atomically; so are those of its submodules. The index records the stat data of the files in `staged`,
    /// so they may be renamed afterwards, but not copied. Blocking, without network.
    pub fn add_worktree(
        &self,
        revision: Revision,
        selection: &Selection,
        staged: &Path,
        place: &Path,
    ) -> Result<(), Error> {
        self.link(revision, selection, staged, place, &RepositoryPath::top())
    }

    /// Registers the tree of a generation, or of a submodule in it, in the repository at `repository`.
    pub(super) fn link(
        &self,
        revision: Revision,
        selection: &Selection,
        staged: &Path,
        place: &Path,
        repository: &RepositoryPath,
    ) -> Result<(), Error> {
        self.link_modules(revision, selection, staged, place, repository)?;
        let git = &self.shared.dir;
        let durable = self.shared.durable;
        let patterns = self.shared.patterns(selection)?;
        let fresh = git.join(fsx::unique(UNFINISHED));
        let _cleanup = RemoveOnDrop(&fresh);
        let file = |name: &str, content: &[u8]| -> Result<(), Error> {
            let path = fresh.join(name);
            fs::write(&path, content).map_err(local("write", &path))?;
            if durable { fsync(&path) } else { Ok(()) }
        };
        if selection.sparse.is_some() {
            repo_kind::configure(git, "extensions.worktreeConfig", "true")?;
        }
        let info = fresh.join("info");
        fs::create_dir_all(&info).map_err(local("make", &info))?; // step 1
        file("HEAD", format!("{revision}\n").as_bytes())?;
        file("commondir", b"../..\n")?;
        file("gitdir", &[place.as_os_str().as_bytes(), b"/.git\n"].concat())?;
        let index = fresh.join("index");
        self.read(revision, |reader, at| {
            git_index::write(&index, reader, at, selection, patterns.as_ref(), staged, &self.cancel)
        })?;
        if durable {
            fsync(&index)?;
        }
        if let Some(text) = &selection.sparse {
            file("info/sparse-checkout", text.as_bytes())?;
            // As `git sparse-checkout init` writes it. Of a worktree that it finds, git-sync keeps the mode.
            file("config.worktree", b"[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = true\n")?;
        }
        if durable {
            fsync(&info)?;
            fsync(&fresh)?;
        }
        let branch = git.join(BRANCH);
        fs::create_dir_all(git.join("refs/heads")).map_err(local("make", &branch))?;
        replace(&branch, format!("{revision}\n").as_bytes(), durable)?; // step 2
        let worktrees = git.join("worktrees");
        fs::create_dir_all(&worktrees).map_err(local("make", &worktrees))?;
        let admin = worktrees.join(revision.to_string());
        repo_kind::exchange(&fresh, &admin).map_err(local("put in place", &admin))?; // step 3
        if durable { fsync(&worktrees) } else { Ok(()) }
    }

    /// The revision that the `HEAD` of a generation's worktree names now; a different one once somebody committed in
    /// it. `None` if the worktree is incomplete, or git cannot use it: a power cut may have emptied a file. Costs a few
    /// small reads.
    pub fn worktree_head(&self, of: Revision) -> Option<Revision> {
        let admin = self.shared.dir.join("worktrees").join(of.to_string());
        let has_text = |name: &&str| {
            fs::read(admin.join(name)).is_ok_and(|text| !text.trim_ascii().is_empty() && !text.contains(&0))
        };
        // One that we may not read is another user's: git in a hook or a reader replaces it under its own user and umask,
        // so to make the worktree again would repair nothing for long.
        let has_index = git_index::is_plausible(&admin.join("index"))
            .unwrap_or_else(|error| error.kind() == ErrorKind::PermissionDenied);
        if !has_index || !["commondir", "gitdir"].iter().all(has_text) {
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

/// Removes a directory when dropped.
struct RemoveOnDrop<'a>(&'a Path);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0); // if it fails, the next opening removes it
    }
}

/// Removes the worktrees of generations that are not in `kept`, and returns their names. Foreign worktrees stay: a
/// worktree is ours if its name is a commit id and its tree is, or was, the directory of that name where git-sync puts
/// its trees. In the repository of a submodule every worktree whose name is a commit id is ours.
pub(super) fn prune(git: &Path, kept: &[Revision], is_submodule: bool) -> Result<Vec<String>, Error> {
    let worktrees = git.join("worktrees");
    let mut gone = Vec::new();
    for name in names(&worktrees)? {
        let admin = worktrees.join(&name);
        let is_kept = |id| kept.iter().any(|revision| revision.0 == id);
        if ObjectId::from_hex(&name).is_none_or(is_kept) || !(is_submodule || is_ours(&admin, &name)) {
            continue;
        }
        // Renamed first, because to git a partly removed directory would be a worktree without a HEAD.
        let removed = git.join(fsx::unique(UNFINISHED));
        fs::rename(&admin, &removed).map_err(local("remove the worktree", &admin))?;
        fs::remove_dir_all(&removed).map_err(local("remove the worktree", &removed))?;
        gone.push(name);
    }
    Ok(gone)
}

/// Returns true if a worktree's tree is where git-sync puts it: `.worktrees/<hash>`, or `<hash>` as in git-sync v3 if
/// that directory is gone. The beginning of the recorded path is not compared, because the volume may have been mounted
/// elsewhere when it was written. One without a `gitdir` is incomplete, and nobody's. If that cannot be read, it stays.
fn is_ours(admin: &Path, name: &str) -> bool {
    let text = match fs::read(admin.join("gitdir")) {
        Ok(text) => text,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    // The path may have any bytes, and newer git may write it relative to the directory that it is in.
    let tree = admin.join(OsStr::from_bytes(text.trim_ascii_end()));
    let Some(place) = tree.parent().filter(|place| place.ends_with(name)) else { return false };
    place.parent().is_some_and(|parent| parent.ends_with(".worktrees")) || is_absent(&tree)
}

/// Returns true if there is certainly nothing at a path.
fn is_absent(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worktree_is_ours_only_if_that_is_certain() {
        let dir = tempfile::tempdir().unwrap();
        let name = "1".repeat(40);
        let gitdir = dir.path().join("gitdir");
        assert!(is_ours(dir.path(), &name), "incomplete");
        let relative = Path::new(OsStr::from_bytes(b"m\xfcnchen")).join(&name);
        let foreign = dir.path().join(&relative);
        fs::create_dir_all(&foreign).unwrap();
        fs::write(foreign.join(".git"), "").unwrap();
        let ours = Path::new("/gone").join(OsStr::from_bytes(b"m\xfcnchen/.worktrees")).join(&name);
        for (place, expected) in [(&foreign, false), (&relative, false), (&ours, true)] {
            fs::write(&gitdir, [place.as_os_str().as_bytes(), b"/.git\n"].concat()).unwrap();
            assert_eq!(is_ours(dir.path(), &name), expected, "{}", place.display());
        }
        fs::remove_file(&gitdir).unwrap();
        fs::create_dir(&gitdir).unwrap();
        assert!(!is_ours(dir.path(), &name), "it cannot be read");
    }
}
