//! Complete sets: several ConfigMaps on one volume, handed to a consumer only when they belong together.
//!
//! The convention, and what makes a set complete, are in [`crate::marker::set`]. This module checks a volume: all files
//! of a set are read below one directory handle, so that no swap can come between two of them, and the consumer reads
//! below the same handle.
//!
//! The kubelet removes the previous directory right after a swap, whether or not it is pinned. So a set can disappear
//! while it is read. If [`Set::is_current`] returns true *after* reading, what was read before is complete.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};

use super::{Options, Watcher};
use crate::clock;
use crate::fsx;
use crate::marker::set::{Gap, MARKER, Stamps, gaps};

/// The maximum size of a marker's entry or a stamp, more than any real one has. A longer one is an error.
const MAX_BYTES: u64 = 64 << 10;

/// A complete set, as a handle to its directory.
#[derive(Debug)]
pub struct Set {
    dir: OwnedFd,
    link: PathBuf,
    target: PathBuf,
}

impl Set {
    /// The directory, for `openat` and `fchdir`.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The directory as a path that only this process can use: `/proc/self/fd/N`. A file below it belongs to this set
    /// or does not exist any more.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// The link's target: a directory next to the link.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns true if the link still names this set. Then everything read from it until now is complete. Otherwise the
    /// kubelet may have begun to remove it.
    pub fn is_current(&self) -> bool {
        names(&self.link, self.dir.as_fd())
    }
}

/// Waits for complete sets; as an iterator it never ends. Incomplete sets are skipped, and the consumer continues with
/// the previous one meanwhile.
///
/// ```
/// use treeswap::marker::set::Stamps;
/// use treeswap::watch::{Options, SetReader};
/// # let volume = tempfile::tempdir()?;
/// # let (volume, one) = (volume.path(), volume.path().join("..2026_11_20_15_04_05.1"));
/// # std::fs::create_dir_all(one.join(".treeswap"))?;
/// # let entry = r#"{"digest":"d1","uid":"u","resourceVersion":"1","revision":"r"}"#;
/// # std::fs::write(one.join(".treeswap/plugins"), entry)?;
/// # std::fs::write(one.join(".plugins.stamp"), "d1")?;
/// # std::fs::write(one.join("plugins.yaml"), "plugins: {}")?;
/// # std::os::unix::fs::symlink(one.file_name().unwrap(), volume.join("..data"))?;
///
/// for set in SetReader::new(volume.join("..data"), Stamps::default(), &Options::default()) {
///     let plugins = std::fs::read_to_string(set.path().join("plugins.yaml"));
///     // And whatever else belongs to it. Then:
///     if set.is_current() {
///         println!("{}", plugins?); // use it
///         # break;
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SetReader {
    link: PathBuf,
    stamps: Stamps,
    watcher: Watcher,
    begun: bool,
    gaps: Vec<Gap>,
}

impl SetReader {
    /// Reads the directory that a link (`VOLUME/..data`) names. Neither the link nor its directory needs to exist yet.
    pub fn new(link: impl Into<PathBuf>, stamps: Stamps, options: &Options) -> Self {
        let link = link.into();
        let watcher = Watcher::new(&link, options);
        Self { link, stamps, watcher, begun: false, gaps: Vec::new() }
    }

    /// Waits for the next complete set, at most this long; the first call returns a set that is there already. `None`:
    /// there was none.
    ///
    /// # Errors
    /// When the directory cannot be read. The next call reads it again after the next swap.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<Option<Set>> {
        let until = clock::now().boottime.saturating_add(at_most);
        loop {
            if std::mem::replace(&mut self.begun, true) {
                let left = until.saturating_sub(clock::now().boottime);
                if self.watcher.wait(left).is_none() {
                    return Ok(None);
                }
            }
            if let Some(set) = self.current_set()? {
                return Ok(Some(set));
            }
        }
    }

    /// Why the directory that was read last is not a complete set; empty if it is.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    fn current_set(&mut self) -> io::Result<Option<Set>> {
        loop {
            let opened = rustix::fs::open(
                &self.link,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            );
            let dir = match opened {
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                opened => opened?,
            };
            let target = match fsx::read_link(CWD, &self.link)? {
                fsx::Link::To(target) => PathBuf::from(target),
                fsx::Link::Absent | fsx::Link::Other(_) => return Ok(None),
            };
            let gaps = missing(dir.as_fd(), &self.stamps);
            if !names(&self.link, dir.as_fd()) {
                continue; // there was a swap meanwhile, so files may have been missing because of the removal
            }
            self.gaps = gaps?;
            let set = Set { dir, link: self.link.clone(), target };
            return Ok(self.gaps.is_empty().then_some(set));
        }
    }
}

impl Iterator for SetReader {
    type Item = Set;

    /// Waits for the next complete set. Read errors are skipped like incomplete sets.
    fn next(&mut self) -> Option<Set> {
        loop {
            if let Ok(Some(set)) = self.wait(Duration::MAX) {
                return Some(set);
            }
        }
    }
}

/// Returns what a directory lacks to be a complete set. The answer is valid only if the link still names the directory
/// afterwards.
///
/// # Errors
/// When the directory cannot be read, or a marker's entry or a stamp is too long to be one.
pub fn missing(dir: BorrowedFd<'_>, stamps: &Stamps) -> io::Result<Vec<Gap>> {
    let mut marker = BTreeMap::new();
    match fsx::open_dir(dir, MARKER) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => {
            let opened = opened?;
            for listed in fsx::list(&opened)? {
                // An entry that is not valid UTF-8, or that disappeared, does not parse and is reported as damaged.
                let text = read(opened.as_fd(), Path::new(listed.os()))?.unwrap_or_default();
                marker.insert(listed.os().to_string_lossy().into_owned(), text);
            }
        }
    }
    let mut failed = None;
    let gaps = gaps(&marker, stamps, |path| {
        read(dir, Path::new(path)).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            None
        })
    });
    failed.map_or(Ok(gaps), Err)
}

fn read(at: BorrowedFd<'_>, path: &Path) -> io::Result<Option<String>> {
    let bytes = match fsx::read_file(at, path, MAX_BYTES + 1) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => None, // in `{name}/STAMP`, the name is a file
        read => read?,
    };
    if bytes.as_ref().is_some_and(|bytes| bytes.len() as u64 > MAX_BYTES) {
        let path = path.display();
        let why = format!("{path}, a stamp or an entry of the marker, has more than {} KiB", MAX_BYTES >> 10);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns true if the link's target is the open directory.
pub fn names(link: &Path, dir: BorrowedFd<'_>) -> bool {
    let named = rustix::fs::stat(link).map(|stat| (stat.st_dev, stat.st_ino));
    let opened = rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
    matches!((named, opened), (Ok(named), Ok(opened)) if named == opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_named_and_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let top = fsx::open_dir_at_path(dir.path()).unwrap();
        let entry = r#"{"digest":"d1","uid":"u","resourceVersion":"1","revision":"r"}"#;
        std::fs::create_dir(dir.path().join(MARKER)).unwrap();
        let write = |path: &str, text: String| std::fs::write(dir.path().join(path), text).unwrap();
        let blank = " ".repeat(MAX_BYTES as usize);
        let found = || missing(top.as_fd(), &Stamps::default());
        write(".treeswap/one", entry.to_owned());
        write(".one.stamp", format!("d1{}", &blank[2..]));
        assert_eq!(found().unwrap(), [], "as long as it may be");
        // Cut, each would be the valid one.
        write(".one.stamp", format!("d1{blank}"));
        let says = |name: &str| format!("{name}, a stamp or an entry of the marker, has more than 64 KiB");
        assert_eq!(found().unwrap_err().to_string(), says(".one.stamp"));
        write(".one.stamp", "d1".to_owned());
        write(".treeswap/one", format!("{entry}{blank}"));
        assert_eq!(found().unwrap_err().to_string(), says("one"));
    }
}
