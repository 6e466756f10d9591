//! Removes foreign files from a mirror before anything in it is opened: opening a named pipe may block forever, and a
//! symbolic link may point outside the mirror. A mirror is a cache, so whatever is missing afterwards is created or
//! fetched again.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::error::Error;
use super::files::{COMPLETE, HISTORY, MARK, MIRRORS, TIP, VALUES, local};
use super::modules;
use super::repo_kind::RepoKind;

/// Paths that must be regular files.
const FILES: [&str; 8] = [MARK, "HEAD", "config", "shallow", "packed-refs", TIP, VALUES, COMPLETE];

/// Paths that must be directories, each after the one that contains it.
const DIRECTORIES: [&str; 7] =
    ["objects", "objects/info", "objects/pack", "refs", "refs/treeswap", HISTORY, modules::DIR];

/// Removes foreign files from the mirror in `dir`. git-sync's `ROOT/.git` may contain an operator's files, symbolic
/// links included; there only pipes, sockets and devices are removed, where we or libgit2 open files, and what is no
/// directory among those of the worktrees.
pub(super) fn remove(dir: &Path, repo: RepoKind) -> Result<(), Error> {
    if repo == RepoKind::Worktrees {
        let worktrees = dir.join("worktrees");
        remove_if(&worktrees, |kind| !kind.is_dir() && !kind.is_symlink())?;
        for worktree in fs::read_dir(worktrees).into_iter().flatten().flatten() {
            remove_if(&worktree.path(), |kind| !kind.is_dir())?;
        }
        let directories = ["objects", "refs", "worktrees"];
        return remove_special(FILES.iter().chain(&directories).map(|name| dir.join(name)).collect());
    }
    remove_from_directories(dir)?;
    for name in FILES {
        remove_if(&dir.join(name), |kind| !kind.is_file())?;
    }
    for mirror in fs::read_dir(dir.join(modules::DIR)).into_iter().flatten().flatten() {
        remove_if(&mirror.path(), |kind| !kind.is_dir())?;
    }
    let mirrors = dir.join(MIRRORS);
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(local("list", &dir))? {
            let path = entry.map_err(local("list", &dir))?.path();
            if path == mirrors {
                continue; // each is looked at before it is opened or adopted, and another process may be using it
            }
            remove_if(&path, |kind| !kind.is_dir() && !kind.is_file())?;
            if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    Ok(())
}

/// Removes what is in the place of a directory of ours and is none. Outer ones before inner ones: while `refs` may be a
/// symbolic link, `refs/treeswap/tip` may be a path outside the mirror.
pub(super) fn remove_from_directories(dir: &Path) -> Result<(), Error> {
    DIRECTORIES.iter().try_for_each(|name| remove_if(&dir.join(name), |kind| !kind.is_dir()))
}

/// Removes pipes, sockets and devices at these paths and, where these are directories, below them.
fn remove_special(mut paths: Vec<PathBuf>) -> Result<(), Error> {
    while let Some(path) = paths.pop() {
        remove_if(&path, is_special)?;
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            let entries = fs::read_dir(&path).map_err(local("list", &path))?;
            paths.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

/// Removes what is at the path of a file of ours and is neither a file nor a directory.
pub(super) fn make_way(path: &Path) -> Result<(), Error> {
    remove_if(path, |kind| !kind.is_file() && !kind.is_dir())
}

fn is_special(kind: FileType) -> bool {
    kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
}

fn remove_if(path: &Path, wrong: impl Fn(FileType) -> bool) -> Result<(), Error> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) }; // absent, or not reachable for us either
    let kind = found.file_type();
    if !wrong(kind) {
        return Ok(());
    }
    tracing::warn!("removed {} from the mirror: it does not belong there", path.display());
    let removed = if kind.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(local("remove", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::mirror::layout::Layout;

    #[test]
    fn nothing_is_removed_from_the_mirrors_of_sources() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("mirrors/link");
        fs::create_dir(link.parent().unwrap()).unwrap();
        symlink("/nowhere", &link).unwrap();
        remove(dir.path(), RepoKind::Bare).unwrap();
        assert!(link.is_symlink());
    }

    #[test]
    fn nothing_is_removed_behind_a_symbolic_link_in_the_place_of_a_directory() {
        for link in ["refs", "refs/treeswap"] {
            let dir = tempfile::tempdir().unwrap();
            let mirror = dir.path().join("mirror");
            // `outside` has a directory wherever one of the mirror's files would be below the link.
            let outside = dir.path().join("outside");
            let kept = outside.join(Path::new(TIP).strip_prefix(link).unwrap()).join("kept");
            fs::create_dir_all(kept.parent().unwrap()).unwrap();
            fs::write(&kept, "x").unwrap();
            fs::create_dir_all(mirror.join(link).parent().unwrap()).unwrap();
            symlink(&outside, mirror.join(link)).unwrap();
            remove(&mirror, RepoKind::Bare).unwrap();
            assert!(kept.is_file(), "{link}");
            assert!(mirror.join(link).symlink_metadata().is_err(), "{link} is not removed");
        }
    }

    #[test]
    fn the_mark_is_not_written_through_a_link() {
        for kind in [RepoKind::Bare, RepoKind::Worktrees] {
            let dir = tempfile::tempdir().unwrap();
            let [mirror, kept, new] = ["mirror", "kept", "new"].map(|name| dir.path().join(name));
            fs::write(&kept, "kept").unwrap();
            drop(Layout::open(&mirror, kind, false, None).unwrap());
            let mark = mirror.join(MARK);
            for target in [&kept, &new] {
                let plant = || {
                    fs::remove_file(&mark).unwrap();
                    symlink(target, &mark).unwrap();
                };
                if kind == RepoKind::Worktrees {
                    plant(); // while nothing runs; a bare repository without the mark is not ours
                }
                let layout = Layout::open(&mirror, kind, false, None).unwrap();
                plant(); // in a running mirror
                let layout = layout.recreate_if_removed().unwrap().expect("another mark");
                layout.record_garbage_free_state(&[]).unwrap();
                assert!(mark.symlink_metadata().unwrap().is_file(), "{kind:?}");
            }
            assert_eq!(fs::read_to_string(kept).unwrap(), "kept", "{kind:?}");
            assert!(!new.exists(), "{kind:?}");
        }
    }

    #[test]
    fn a_git_directory_of_git_sync_keeps_an_operators_files_and_no_pipe_where_we_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path();
        drop(Layout::open(git, RepoKind::Worktrees, false, None).unwrap());
        let pipes = [
            "objects/info/alternates",
            "objects/pack/x.idx",
            "refs/heads/git-sync",
            "worktrees/0/gitdir",
            "shallow",
        ];
        for path in pipes {
            fs::create_dir_all(git.join(path).parent().unwrap()).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, git.join(path), rustix::fs::Mode::RWXU).unwrap();
        }
        fs::write(git.join("worktrees/1"), "x").unwrap();
        symlink("/nowhere", git.join("objects/info/http-alternates")).unwrap();
        fs::write(git.join("refs/heads/theirs"), "x").unwrap();
        remove(git, RepoKind::Worktrees).unwrap();
        for path in pipes.into_iter().chain(["worktrees/1"]) {
            assert!(git.join(path).symlink_metadata().is_err(), "{path} is still there");
        }
        assert!(
            git.join("objects/info/http-alternates").is_symlink() && git.join("refs/heads/theirs").is_file()
        );
        fs::remove_dir(git.join("worktrees/0")).unwrap();
        fs::remove_dir(git.join("worktrees")).unwrap();
        fs::write(git.join("worktrees"), "x").unwrap();
        drop(Layout::open(git, RepoKind::Worktrees, false, None).unwrap());
    }

    #[test]
    fn the_directory_of_packs_is_made_again_while_the_mirror_is_open() {
        for kind in [RepoKind::Bare, RepoKind::Worktrees] {
            let dir = tempfile::tempdir().unwrap();
            let mirror = dir.path().join("mirror");
            let layout = Layout::open(&mirror, kind, false, None).unwrap();
            let packs = mirror.join("objects/pack");
            let _ = fs::remove_dir_all(&packs); // a repository without packs may lack it
            assert!(layout.recreate_if_removed().unwrap().is_none() && packs.is_dir(), "{kind:?}");
            if kind == RepoKind::Bare {
                fs::remove_dir(&packs).unwrap();
                fs::write(&packs, "x").unwrap();
                assert!(
                    layout.recreate_if_removed().unwrap().is_none() && packs.is_dir(),
                    "a file in its place"
                );
            }
        }
    }
}
