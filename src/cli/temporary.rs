//! Temporary directories. Each has a lock that its process holds, so that the next process removes what a killed one
//! left: a container that restarts has the same emptyDir, which would fill up.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::fsx::{self, Lock};

/// The lock file of a directory.
const LOCK: &str = "treeswap.lock";

/// A directory that is removed when this is dropped, or by the next process that makes one like it.
#[derive(Debug)]
pub(super) struct TempDir {
    dir: tempfile::TempDir,
    /// Declared last, so that it is released after the directory was removed.
    _lock: File,
}

impl TempDir {
    /// Makes a directory for temporary files, in `$TMPDIR` or `/tmp`.
    pub(super) fn new(prefix: &str) -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir(), prefix)
    }

    /// Makes a directory whose name begins with `prefix`, after removing those that killed processes left.
    pub(super) fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        remove_abandoned(parent, prefix, |_| ());
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let new = dir.path().join("new.lock");
        let lock = File::create_new(&new)?;
        // It gets its name once it is locked. Without it, or without locks, the directory is never removed by others.
        if fsx::unsupported_if_lacking(fsx::try_lock(&lock))? == Lock::Taken {
            std::fs::rename(&new, dir.path().join(LOCK))?;
        }
        Ok(Self { dir, _lock: lock })
    }

    /// The directory's path.
    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps the directory, and returns its path.
    pub(super) fn keep(self) -> PathBuf {
        let _ = std::fs::remove_file(self.path().join(LOCK)); // it does not exist where locks are not supported
        self.dir.keep()
    }
}

/// Removes the directories of this user in `parent` whose name begins with `prefix` and whose process has ended. What
/// cannot be removed is left: the next process tries again. `before` is called with each before it is removed.
pub(super) fn remove_abandoned(parent: &Path, prefix: &str, before: impl Fn(&Path)) {
    let user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_alike = entry.file_name().as_bytes().starts_with(prefix.as_bytes());
        // Anybody may make names in /tmp, symbolic links included, which this does not follow.
        let is_ours = || entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        if is_alike
            && is_ours()
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && matches!(fsx::try_lock(&lock), Ok(Lock::Taken))
        {
            before(&entry.path());
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_killed_process_left_is_removed_by_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let make = || TempDir::new_in(parent.path(), "treeswap-x-").unwrap();
        let running = make();
        let kept = make().keep();
        let killed = parent.path().join("treeswap-x-killed");
        let other = parent.path().join("treeswap-y-killed");
        let foreign = parent.path().join("treeswap-x-config"); // somebody's own directory with such a name
        for dir in [&killed, &other, &foreign] {
            std::fs::create_dir(dir).unwrap();
        }
        for dir in [&killed, &other] {
            std::fs::write(dir.join(LOCK), "").unwrap();
        }
        let next = make();
        assert!(!killed.exists());
        for dir in [running.path(), &kept, &other, &foreign, next.path()] {
            assert!(dir.exists(), "{}", dir.display());
        }
        let gone = next.path().to_owned();
        drop(next);
        assert!(!gone.exists());
    }
}
