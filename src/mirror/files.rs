//! File names within a mirror, and helpers for file operations with the mirror's errors.

use std::collections::BTreeMap;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::error::Error;
use crate::fsx;

/// The file that marks the directory as ours and is locked by the writer.
pub(super) const MARK: &str = "treeswap";
/// Our only ref: the last complete tip.
pub(super) const TIP: &str = "refs/treeswap/tip";
/// The cache of values that ConfigMap plans computed from blobs.
pub(super) const VALUES: &str = "treeswap-values";
/// The record that the tip was found complete.
pub(super) const COMPLETE: &str = "treeswap-complete";
/// The prefix of directories with repositories that were set aside.
pub(super) const BROKEN: &str = "broken-";
/// The prefix of directories that are being removed. It begins with `tmp_`, so that `Layout::sweep` removes what a kill
/// leaves.
const TRASH: &str = "tmp_removed-";
/// The directory of sources' mirrors. With `--mirror` it is in the directory that is the mirror of a single repository,
/// but no part of that mirror.
pub const MIRRORS: &str = "mirrors";
/// The scratch repository for comparing two revisions' history.
pub(super) const HISTORY: &str = "history";

/// What came of an attempt to free space.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
    /// True if space was freed.
    pub(super) any: bool,
    /// True if there was something to remove that readers kept in place.
    pub(super) in_use: bool,
}

impl Freed {
    /// What came of two attempts together.
    pub(super) fn and(self, other: Self) -> Self {
        Self { any: self.any || other.any, in_use: self.in_use || other.in_use }
    }

    /// Combines this attempt with another one that failed with `error`: returns the error only if this one neither
    /// freed anything nor found anything in use.
    pub(super) fn or_failure(self, error: Error) -> Result<Self, Error> {
        if !self.any && !self.in_use {
            return Err(error);
        }
        tracing::warn!(%error, "space cannot be freed in every mirror");
        Ok(self)
    }
}

/// Replaces a file's content atomically, by rename; does nothing if the content is the same. The temporary name is
/// git's lock file for the path, which is also removed at the next opening (`Layout::sweep`).
pub(super) fn replace(path: &Path, content: &[u8], durable: bool) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|now| now == content) {
        return Ok(());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".lock");
    let write = || -> io::Result<()> {
        // An existing file is a left-over of a crash or a planted symbolic link; neither may be written to.
        ignore_absent(fs::remove_file(&temporary))?;
        let mut file = fs::File::create_new(Path::new(&temporary))?;
        file.write_all(content)?;
        if durable {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)
    };
    write().map_err(local("write", path))?;
    match path.parent() {
        Some(parent) if durable => fsync(parent),
        _ => Ok(()),
    }
}

/// Lists the paths in a directory, whatever bytes their names have: what others made need not be UTF-8. Fails rather
/// than leave one out. Empty if the directory does not exist.
pub(super) fn paths(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = || -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    match list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()), // also one removed while it is read
        listed => listed.map_err(local("list", dir)),
    }
}

/// Lists the names in a directory. Skips names that are not UTF-8: ours always are. Otherwise like [`paths`].
pub(super) fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let name = |path: PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    Ok(paths(dir)?.into_iter().filter_map(name).collect())
}

/// Removes the files and directories in `dir` whose names match `stale`.
pub(super) fn remove_matching(dir: &Path, stale: impl Fn(&str) -> bool) -> Result<(), Error> {
    remove_each(dir, stale, |path| {
        tracing::info!(path = %path.display(), "removed what an interrupted run left in the mirror");
    })
}

/// Like [`remove_matching`], and calls `removed` with the path of each that was removed. Continues after an error and
/// returns the first one.
fn remove_each(
    dir: &Path,
    stale: impl Fn(&str) -> bool,
    mut removed: impl FnMut(&Path),
) -> Result<(), Error> {
    let mut done = Ok(());
    for name in names(dir)?.into_iter().filter(|name| stale(name)) {
        let path = dir.join(name);
        let result = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => done = done.and(Err(Error::Local { act: "remove the stale", path, source })),
            Ok(()) => removed(&path),
        }
    }
    done
}

/// Renames a mirror into the trash of `mirror` and returns its new path. It is not removed where it is: an interrupted
/// removal might leave a directory without its mark file, which would look foreign.
fn move_to_trash(dir: &Path, mirror: &Path) -> Result<PathBuf, Error> {
    let trash = mirror.join(fsx::unique(TRASH));
    fs::rename(dir, &trash).map_err(local("remove", dir))?;
    Ok(trash)
}

/// Removes the mirrors in `dirs`, which `mirror` reads:
///
/// 1. While the guard of `exclusive` keeps readers out, each is renamed into the trash of `mirror`. `None` means that
///    there are readers; then a later call renames them.
/// 2. Without the guard, the trash is emptied, including what earlier calls left there. `removed` is called for each
///    mirror that is gone: with its original path, or with its path in the trash if an earlier call renamed it.
///
/// If one cannot be removed, the others are removed all the same, and the first error is returned. What is left is
/// removed by the next call, or when `mirror` is opened next.
pub(super) fn remove_mirrors<G>(
    dirs: &[PathBuf],
    mirror: &Path,
    exclusive: impl FnOnce() -> Option<G>,
    mut removed: impl FnMut(&Path),
) -> Result<(), Error> {
    let mut done = Ok(());
    let mut moved = BTreeMap::new();
    if let Some(_exclusive) = exclusive() {
        for dir in dirs {
            match move_to_trash(dir, mirror) {
                Ok(trash) => {
                    moved.insert(trash, dir.as_path());
                }
                Err(error) => done = done.and(Err(error)),
            }
        }
    }
    let is_trash = |name: &str| name.starts_with(TRASH);
    // Without the guard: removing gigabytes takes long, and nobody reads what is in the trash. `and` evaluates its
    // argument in any case, so the trash is emptied after an error, too.
    done.and(remove_each(mirror, is_trash, |trash| removed(moved.get(trash).copied().unwrap_or(trash))))
}

/// Reads a file from an offset on. The file's own position stays as it is. The end of the file is an error: the callers
/// read what the format says is there.
pub(super) struct ReadAt<'f> {
    pub(super) file: &'f std::fs::File,
    pub(super) offset: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = loop {
            match self.file.read_at(into, self.offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {} // `BufRead::fill_buf` does not retry
                read => break read?,
            }
        };
        if bytes == 0 && !into.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += bytes as u64;
        Ok(bytes)
    }
}

/// Treats `NotFound` as success.
pub(super) fn ignore_absent(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes a file's content, or the names in a directory, durable.
pub(super) fn fsync(path: &Path) -> Result<(), Error> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(local("sync", path))
}

/// Converts an I/O error to [`Error::Local`] with the failed action and the path.
pub(super) fn local(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Local { act, path, source }
}

/// The disk usage in bytes of everything below a directory, by allocated blocks. Walks with a list instead of
/// recursion, and with one open directory: in `ROOT/.git` others may nest directories as deep as they like.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes: u64 = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => dirs.push(entry.path()),
                // st_blocks counts 512-byte units on any file system: stat(2)
                Ok(found) => bytes = bytes.saturating_add(found.blocks().saturating_mul(512)),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Removes the scratch repository `history` ([`HISTORY`]), if it exists.
pub(super) fn remove_scratch(history: &Path) -> Result<(), Error> {
    ignore_absent(fs::remove_dir_all(history)).map_err(local("remove the fetched history", history))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_counts_only_if_the_other_attempt_came_to_nothing() {
        for (any, in_use) in [(false, false), (false, true), (true, false), (true, true)] {
            let combined = Freed { any, in_use }.or_failure(Error::Cancelled);
            assert_eq!(combined.is_err(), !any && !in_use, "{any} {in_use}");
        }
    }

    #[test]
    fn a_listing_has_names_of_any_bytes_and_no_gaps() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"m\xfcnchen"));
        fs::write(&odd, "").unwrap();
        assert_eq!(paths(dir.path()).unwrap(), std::slice::from_ref(&odd));
        assert_eq!(names(dir.path()).unwrap(), Vec::<String>::new());
        assert_eq!(paths(&dir.path().join("absent")).unwrap(), Vec::<PathBuf>::new());
        assert!(paths(&odd).is_err(), "it is no directory");
    }

    #[test]
    fn a_mirror_is_removed_under_a_name_that_the_next_opening_sweeps() {
        use crate::mirror::layout::Layout;
        use crate::mirror::repo_kind::RepoKind;
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| drop(Layout::open(path, RepoKind::Bare, false, None).unwrap());
        let [outer, inner] = ["outer", "outer/modules/inner"].map(|name| dir.path().join(name));
        open(&outer);
        open(&inner);
        let trash = move_to_trash(&inner, &outer).unwrap();
        fs::remove_file(trash.join(MARK)).unwrap(); // as far as a kill lets it come
        open(&inner);
        open(&outer);
        assert!(!trash.exists());
    }

    #[test]
    fn a_mirror_that_cannot_be_removed_keeps_no_other_and_what_is_left_is_removed_later() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = dir.path().join("mirror");
        let make = |path: &Path| fs::create_dir_all(path.join("objects")).unwrap();
        let left = mirror.join(format!("{TRASH}left"));
        let [absent, other] = ["absent", "other"].map(|name| mirror.join(name));
        make(&left);
        make(&other);
        let remove = |exclusive: Option<()>, gone: &[PathBuf]| {
            let mut removed = Vec::new();
            let done = remove_mirrors(gone, &mirror, || exclusive, |path| removed.push(path.to_owned()));
            (done, removed)
        };
        let (done, removed) = remove(None, std::slice::from_ref(&other));
        assert!(done.is_ok() && removed == [left], "{done:?}: {removed:?}");
        assert!(other.exists(), "it is read");
        let (done, removed) = remove(Some(()), &[absent, other.clone()]);
        assert!(done.is_err() && removed == [other], "{done:?}: {removed:?}");
        assert_eq!(names(&mirror).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_file_is_not_replaced_through_a_link_at_its_temporary_name() {
        let dir = tempfile::tempdir().unwrap();
        let [path, lock, victim] = ["shallow", "shallow.lock", "victim"].map(|name| dir.path().join(name));
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        replace(&path, b"new", false).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"untouched");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::write(&lock, "what a kill left, and longer").unwrap();
        replace(&path, b"newer", false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }
}
