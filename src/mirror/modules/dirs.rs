//! Names and finds the mirrors of submodules on disk.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::mirror::Error;
use crate::mirror::files::local;
use crate::sha256::{hex, sha256};

/// The directory of a mirror that holds the mirrors of its submodules.
pub(in crate::mirror) const DIR: &str = "modules";

/// The longest directory name of a submodule's mirror, in bytes. File systems allow 255.
const DIR_NAME_MAX: usize = 200;

/// The directory name of a submodule's mirror, unique for each submodule name: special bytes are written as `%xx`, and
/// a result that is too long is replaced by `%%` and a digest.
pub(super) fn dir_name(name: &str) -> String {
    let mut key = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => key.push(char::from(byte)),
            b'.' if !key.is_empty() => key.push('.'),
            // Writing to a string cannot fail.
            other => _ = write!(key, "%{other:02x}"),
        }
    }
    if key.len() > DIR_NAME_MAX {
        key = format!("%%{}", hex(&sha256(&[name.as_bytes()])));
    }
    key
}

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

/// The bytes of all packs of a submodule's mirror, and of the mirrors in it. A file that is removed meanwhile may or
/// may not be counted.
pub(super) fn pack_bytes(mirror: &Path) -> Result<u64, Error> {
    let mut bytes: u64 = 0;
    for objects in object_dirs(mirror)?.into_iter().chain([mirror.join("objects")]) {
        for file in fs::read_dir(objects.join("pack")).into_iter().flatten().flatten() {
            bytes = bytes.saturating_add(file.metadata().map_or(0, |found| found.len()));
        }
    }
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_one_directory_of_its_own() {
        assert_eq!(dir_name("lib"), "lib");
        assert_eq!(dir_name("lib/foo.rs"), "lib%2ffoo.rs");
        assert_eq!(dir_name(".git"), "%2egit");
        assert_eq!(dir_name("a%2fb"), "a%252fb");
        assert!(dir_name(&"/".repeat(200)).len() < 100);
        assert_ne!(dir_name(&"/".repeat(200)), dir_name(&"/".repeat(199)));
    }
}
