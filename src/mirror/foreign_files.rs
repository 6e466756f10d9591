//! Removes foreign files from a mirror before anything in it is opened: opening a named pipe may block forever, and a
//! symbolic link may point outside the mirror. A mirror is a cache, so whatever is missing afterwards is created or
//! fetched again.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

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
/// links included; there only pipes, sockets and devices are removed, at the paths that we open.
pub(super) fn remove(dir: &Path, repo: RepoKind) -> Result<(), Error> {
    if repo == RepoKind::Worktrees {
        return FILES.iter().try_for_each(|name| remove_if(&dir.join(name), is_special));
    }
    // Directories first, outer ones before inner ones: while `refs` may be a symbolic link, `refs/treeswap/tip` may be
    // a path outside the mirror.
    for name in DIRECTORIES {
        remove_if(&dir.join(name), |kind| !kind.is_dir())?;
    }
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
}
