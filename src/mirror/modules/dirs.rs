//! Finds the mirrors of submodules on disk.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::mirror::Error;
use crate::mirror::files::local;

/// The directory of a mirror that holds the mirrors of its submodules.
pub(in crate::mirror) const DIR: &str = "modules";

/// Lists the subdirectories of `dir`; empty if it does not exist. Other entries are foreign; in particular symbolic
/// links are not followed, because they could form cycles.
pub(super) fn entries(dir: &Path) -> Result<Vec<String>, Error> {
    if !is_dir(dir) {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).map_err(local("list", dir))?.flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(dirs.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// The object directories of all submodules' mirrors below a mirror, recursively, in a fixed order.
pub(in crate::mirror) fn object_dirs(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut all = Vec::new();
    let mut waiting = vec![dir.join(DIR)];
    while let Some(dir) = waiting.pop() {
        let mut keys = entries(&dir)?;
        keys.sort_unstable();
        for key in keys {
            let mirror = dir.join(key);
            waiting.push(mirror.join(DIR));
            all.push(mirror.join("objects"));
        }
    }
    all.retain(|objects| is_dir(objects));
    Ok(all)
}

/// Removes anything that is not a directory from the path of a submodule's mirror.
pub(super) fn make_way(mirror: &Path) -> Result<(), Error> {
    for path in mirror.parent().into_iter().chain([mirror]) {
        if path.symlink_metadata().is_ok_and(|there| !there.is_dir()) {
            tracing::warn!("removed {} from the mirror: it does not belong there", path.display());
            fs::remove_file(path).map_err(local("remove", path))?;
        }
    }
    Ok(())
}

fn is_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|there| there.is_dir())
}
