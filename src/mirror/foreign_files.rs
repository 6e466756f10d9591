//! Foreign files in a mirror, taken out before anything in it is opened: to open a named pipe may last for
//! ever, and a link leads elsewhere. A mirror is a cache: what is missing afterwards is made or fetched again.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use fs_err as fs;

use super::error::Error;
use super::files::{HISTORY, MARK, TIP, VALUES, local};
use super::modules;
use super::repo_kind::RepoKind;

/// Names of files.
const FILES: [&str; 7] = [MARK, "HEAD", "config", "shallow", "packed-refs", TIP, VALUES];

/// Names of directories.
const DIRECTORIES: [&str; 7] =
    ["objects", "objects/info", "objects/pack", "refs", "refs/treeswap", HISTORY, modules::DIR];

/// Takes them out. git-sync's `ROOT/.git` may hold what its operator wants there, links among it: only what we open in
/// it by name and would wait for goes.
pub(super) fn remove(dir: &Path, form: RepoKind) -> Result<(), Error> {
    for name in FILES {
        let wrong = |kind: FileType| is_special(kind) || form == RepoKind::Bare && !kind.is_file();
        remove_if(&dir.join(name), wrong)?;
    }
    if form == RepoKind::Worktrees {
        return Ok(());
    }
    for name in DIRECTORIES {
        remove_if(&dir.join(name), |kind| !kind.is_dir())?;
    }
    for mirror in fs::read_dir(dir.join(modules::DIR)).into_iter().flatten().flatten() {
        remove_if(&mirror.path(), |kind| !kind.is_dir())?;
    }
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(local("list", &dir))? {
            let path = entry.map_err(local("list", &dir))?.path();
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
    let Ok(there) = path.symlink_metadata() else { return Ok(()) }; // nothing, or nothing that could be reached
    let kind = there.file_type();
    if !wrong(kind) {
        return Ok(());
    }
    tracing::warn!("removed {} from the mirror: it is nothing that belongs there", path.display());
    let removed = if kind.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(local("remove", path))
}
