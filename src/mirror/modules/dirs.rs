//! Where the mirrors of submodules are.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::mirror::Error;

/// Where the mirrors of submodules are, in a mirror.
pub(super) const DIR: &str = "modules";

/// The names in the directory of the submodules' mirrors; none where there is no such directory.
pub(super) fn entries(dir: &Path) -> Result<Vec<String>, Error> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::Local { act: "list", path: dir.to_owned(), source }),
    }
}

/// The object directories of all submodules' mirrors below a mirror, in a fixed order.
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
    all.retain(|objects| objects.is_dir());
    Ok(all)
}
