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

use super::{Change, Options, Watcher};
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
        link_points_to(&self.link, self.dir.as_fd())
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
    next_read: NextRead,
    /// The set that was returned last. The watcher may report it as a change, if it came after the watch had begun and
    /// before it was read.
    returned: Option<Change>,
    gaps: Vec<Gap>,
}

/// When the directory is read next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextRead {
    /// At once: it was never read.
    Now,
    /// After a swap: the directory that the link names was read.
    AfterSwap,
    /// After a swap or the poll interval, whichever is first: there was no directory, or it could not be read. An error
    /// (`EMFILE`, `EIO`) may go away without a swap.
    AfterSwapOrPoll,
}

impl SetReader {
    /// Reads the directory that a link (`VOLUME/..data`) names. Neither the link nor its directory needs to exist yet.
    pub fn new(link: impl Into<PathBuf>, stamps: Stamps, options: &Options) -> Self {
        let link = link.into();
        let watcher = Watcher::new(&link, options);
        Self { link, stamps, watcher, next_read: NextRead::Now, returned: None, gaps: Vec::new() }
    }

    /// Waits for the next complete set, at most this long; the first call returns a set that is there already. `None`:
    /// there was none.
    ///
    /// # Errors
    /// When the directory cannot be read. The next call reads it again: after a swap, after the poll interval, or at
    /// the end of its own wait, whichever is first.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<Option<Set>> {
        let until = clock::now().boottime.saturating_add(at_most);
        loop {
            let left = until.saturating_sub(clock::now().boottime);
            match self.next_read {
                NextRead::Now => {}
                NextRead::AfterSwap => {
                    if self.watcher.wait(left).is_none() {
                        return Ok(None);
                    }
                }
                NextRead::AfterSwapOrPoll => {
                    let _ = self.watcher.wait(left.min(self.watcher.poll)); // it is read with or without a swap
                }
            }
            self.next_read = NextRead::AfterSwapOrPoll; // `current_set` sets `AfterSwap` if it can read the directory
            if let Some(set) = self.current_set()? {
                return Ok(Some(set));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Why the directory that was read last is not a complete set; empty if it is.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Reads the directory that the link names now. `None` if there is none, it is no complete set, or it is the set
    /// that was returned last.
    fn current_set(&mut self) -> io::Result<Option<Set>> {
        loop {
            let opened = rustix::fs::open(
                &self.link,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            );
            let dir = match opened {
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                opened => opened.map_err(|errno| cannot("open", &self.link, &errno.into()))?,
            };
            let link = fsx::read_link(CWD, &self.link);
            let target = match link.map_err(|error| cannot("read the link", &self.link, &error))? {
                fsx::Link::To(target) => PathBuf::from(target),
                fsx::Link::Absent | fsx::Link::Other(_) => return Ok(None),
            };
            let read = read_gaps(dir.as_fd(), &self.stamps);
            if !link_points_to(&self.link, dir.as_fd()) {
                continue; // there was a swap meanwhile, so files may have been missing because of the removal
            }
            self.gaps = read?;
            let identity = fsx::identity(&dir).map_err(|error| cannot("stat", &self.link, &error))?;
            self.next_read = NextRead::AfterSwap;
            let found = Some(Change { target: target.clone(), identity });
            if !self.gaps.is_empty() || self.returned == found {
                return Ok(None);
            }
            self.returned = found;
            return Ok(Some(Set { dir, link: self.link.clone(), target }));
        }
    }
}

impl Iterator for SetReader {
    type Item = Set;

    /// Waits for the next complete set. Incomplete sets are skipped, and after an error the directory is read again at
    /// the next swap or poll.
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
/// When the directory cannot be read, or a marker's entry or a stamp is too long to be one. The error names the file.
pub fn read_gaps(dir: BorrowedFd<'_>, stamps: &Stamps) -> io::Result<Vec<Gap>> {
    let marker = read_marker(dir)?;
    let mut failed = None;
    let found = gaps(&marker, stamps, |path| {
        let stamp = read(dir, Path::new(path), Path::new(path)).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            None
        });
        // Lossy is safe: a digest is ASCII, so bytes that are not UTF-8 never equal it. The text is only shown.
        stamp.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    });
    failed.map_or(Ok(found), Err)
}

/// Reads the marker's keys and values; none if there is no marker.
fn read_marker(dir: BorrowedFd<'_>) -> io::Result<BTreeMap<String, String>> {
    let mut marker = BTreeMap::new();
    let failed = |error: io::Error| cannot("read", Path::new(MARKER), &error);
    let opened = match fsx::open_dir(dir, MARKER) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(marker),
        opened => opened.map_err(failed)?,
    };
    for listed in fsx::list(&opened).map_err(failed)? {
        let bytes = read(opened.as_fd(), Path::new(listed.os()), &Path::new(MARKER).join(listed.os()))?;
        // An entry that is not valid UTF-8, or that disappeared, does not parse and is reported as damaged.
        let text = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
        marker.insert(listed.os().to_string_lossy().into_owned(), text);
    }
    Ok(marker)
}

/// Reads a marker's entry or a stamp, `name` in `at`. `path` is its path in the volume's directory, for messages.
fn read(at: BorrowedFd<'_>, name: &Path, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let bytes = match fsx::read_file(at, name, MAX_BYTES + 1) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => None, // in `{name}/STAMP`, the name is a file
        read => read.map_err(|error| cannot("read", path, &error))?,
    };
    if bytes.as_ref().is_some_and(|bytes| bytes.len() as u64 > MAX_BYTES) {
        let path = path.display();
        let why = format!("{path}, a stamp or an entry of the marker, has more than {} KiB", MAX_BYTES >> 10);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Adds to an error what failed, and the path.
fn cannot(act: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {act} {}: {error}", path.display()))
}

/// Returns true if the link's target is the open directory.
pub fn link_points_to(link: &Path, dir: BorrowedFd<'_>) -> bool {
    let linked = fsx::identity_at(link);
    let opened = fsx::identity(dir);
    matches!((linked, opened), (Ok(Some(linked)), Ok(opened)) if linked == opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"{"digest":"d1","uid":"u","resourceVersion":"1","revision":"r"}"#;

    /// A volume with a complete set of one ConfigMap, and its directory.
    fn volume() -> (tempfile::TempDir, PathBuf) {
        let volume = tempfile::tempdir().unwrap();
        let dir = volume.path().join("..1");
        std::fs::create_dir_all(dir.join(MARKER)).unwrap();
        std::fs::write(dir.join(".treeswap/one"), ENTRY).unwrap();
        std::fs::write(dir.join(".one.stamp"), "d1").unwrap();
        std::os::unix::fs::symlink("..1", volume.path().join("..data")).unwrap();
        (volume, dir)
    }

    #[test]
    fn what_cannot_be_read_is_named_and_not_cut() {
        let (_volume, dir) = volume();
        let top = fsx::open_dir_at_path(&dir).unwrap();
        let blank = " ".repeat(MAX_BYTES as usize);
        let found = || read_gaps(top.as_fd(), &Stamps::default()).map_err(|error| error.to_string());
        let write = |path: &str, text: &str| std::fs::write(dir.join(path), text).unwrap();
        write(".one.stamp", &format!("d1{}", &blank[2..]));
        assert_eq!(found(), Ok(Vec::new()), "as long as it may be");
        // Cut, each would be the valid one.
        let too_long =
            |path: &str| Err(format!("{path}, a stamp or an entry of the marker, has more than 64 KiB"));
        let irregular = |path: &str| Err(format!("cannot read {path}: not a regular file"));
        for (path, text) in [(".one.stamp", "d1"), (".treeswap/one", ENTRY)] {
            write(path, &format!("{text}{blank}"));
            assert_eq!(found(), too_long(path));
            std::fs::remove_file(dir.join(path)).unwrap();
            std::fs::create_dir(dir.join(path)).unwrap();
            assert_eq!(found(), irregular(path));
            std::fs::remove_dir(dir.join(path)).unwrap();
            write(path, text);
        }
        std::fs::remove_dir_all(dir.join(MARKER)).unwrap();
        write(MARKER, "");
        assert_eq!(found(), Err("cannot read .treeswap: Not a directory (os error 20)".to_owned()));
    }

    #[test]
    fn an_entry_that_is_not_utf_8_is_damaged() {
        let (_volume, dir) = volume();
        let top = fsx::open_dir_at_path(&dir).unwrap();
        let entry = ENTRY.replace("\"u\"", "\"u?\"");
        let bytes = entry.bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect::<Vec<_>>();
        for (bytes, gaps) in [(entry.into_bytes(), Vec::new()), (bytes, vec![Gap::Damaged("one".to_owned())])]
        {
            std::fs::write(dir.join(".treeswap/one"), bytes).unwrap();
            assert_eq!(read_gaps(top.as_fd(), &Stamps::default()).unwrap(), gaps);
        }
    }

    #[test]
    fn a_set_that_came_after_the_watch_began_is_delivered_once() {
        let (volume, dir) = volume();
        let link = volume.path().join("..data");
        let mut sets = SetReader::new(&link, Stamps::default(), &Options::default());
        std::fs::rename(&dir, volume.path().join("..2")).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("..2", &link).unwrap();
        let set = sets.wait(Duration::ZERO).unwrap().unwrap();
        assert_eq!(set.target(), Path::new("..2"));
        assert!(sets.wait(Duration::from_millis(1)).unwrap().is_none());
    }

    #[test]
    fn what_could_not_be_read_is_read_again_without_a_swap() {
        let (volume, dir) = volume();
        let stamp = dir.join(".one.stamp");
        std::fs::remove_file(&stamp).unwrap();
        std::fs::create_dir(&stamp).unwrap();
        let options = Options { poll: Duration::from_secs(1) };
        let mut sets = SetReader::new(volume.path().join("..data"), Stamps::default(), &options);
        let long = Duration::from_secs(3600);
        sets.wait(long).unwrap_err();
        let began = clock::now().boottime;
        sets.wait(long).unwrap_err();
        let waited = clock::now().boottime.saturating_sub(began);
        assert!(waited >= options.poll, "a lasting error uses a whole processor: {waited:?}");
        std::fs::remove_dir(&stamp).unwrap();
        std::fs::write(&stamp, "d1").unwrap();
        assert!(sets.wait(long).unwrap().is_some());
        assert!(sets.wait(Duration::from_millis(1)).unwrap().is_none(), "it is delivered once");

        // The same for a link that was away for a moment. The watcher does not report one that comes back with the
        // target that it had: the poll finds it.
        let link = volume.path().join("..data");
        let mut sets = SetReader::new(&link, Stamps::default(), &options);
        std::fs::remove_file(&link).unwrap();
        assert!(sets.wait(Duration::ZERO).unwrap().is_none());
        std::os::unix::fs::symlink("..1", &link).unwrap();
        assert!(sets.wait(long).unwrap().is_some());
    }
}
