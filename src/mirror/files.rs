//! Names in a mirror, and what is done with its files, whatever they are.

use std::io::{self, Write as _};
use std::path::Path;

use fs_err as fs;

use super::error::Error;

/// Our mark and lock.
pub(super) const MARK: &str = "treeswap";
/// Our only ref.
pub(super) const TIP: &str = "refs/treeswap/tip";
/// Values that plans made of blobs.
pub(super) const VALUES: &str = "treeswap-values";
/// What a mirror that was set aside is called, with a number behind it.
pub(super) const BROKEN: &str = "broken-";
/// Where commits are looked at, below the mirror's directory.
pub(super) const HISTORY: &str = "history";

/// Replaces a file's content at once. The temporary name is git's own for a lock on the file, and one that
/// [`Layout::sweep`] knows.
pub(super) fn replace(path: &Path, content: &[u8], durable: bool) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|now| now == content) {
        return Ok(());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".lock");
    let write = || -> io::Result<()> {
        // What lies there is a left-over, or a link that somebody planted: neither is written through.
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
        Some(parent) if durable => sync_dir(parent),
        _ => Ok(()),
    }
}

/// Names in a directory that are text; none where there is no directory. Our names are never anything else.
pub(super) fn names(dir: &Path) -> Result<Vec<String>, Error> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::Local { act: "list", path: dir.to_owned(), source }),
    }
}

pub(super) fn remove_matching(dir: &Path, stale: impl Fn(&str) -> bool) -> Result<(), Error> {
    for name in names(dir)?.into_iter().filter(|name| stale(name)) {
        let path = dir.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Local { act: "remove the stale", path, source }),
            Ok(()) => {
                tracing::info!(path = %path.display(), "removed what an interrupted run left in the mirror");
            }
        }
    }
    Ok(())
}

/// What is not there need not be removed.
pub(super) fn ignore_absent(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), Error> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(local("sync", dir))
}

/// Names the act and the path of a failure.
pub(super) fn local(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Local { act, path, source }
}

/// Bytes of everything below one of our directories, as its file system counts them.
pub(super) fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let taken = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk_bytes(&entry.path()),
        Ok(found) => found.blocks().saturating_mul(512), // whatever the block size is: stat(2)
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(taken).sum()
}

/// Removes the scratch directory for history, and what an interrupted run left there.
pub(super) fn remove_scratch(dir: &Path) -> Result<(), Error> {
    match fs_err::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(local("remove the fetched history", dir)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
