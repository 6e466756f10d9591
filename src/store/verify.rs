//! Verification: compares the current generation on disk with its payload.
//!
//! Names, types, executable bits and sizes are compared first, because that needs no file content. Contents are
//! compared only if all of that agrees, as git blob ids, by several threads. Nothing is repaired: a generation that
//! differs is replaced by a new one, never written into.
//!
//! In git-sync's layout readers and hooks write into the tree, so additional files are ignored there. The `.git` file
//! is checked.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustix::fs::{FileType, Mode, OFlags};
use tokio_util::sync::CancellationToken;

use crate::fsx;
use crate::human::one_line;
use crate::payload::{Entry, Kind, Payload, escaped, join};
use crate::revision::ObjectId;
use crate::store::stage::{Dirs, GIT_FILE, UNCHECKED_MAX, git_file};
use crate::store::{Error, Store};
use crate::threads::on_threads;

/// The most differences that are listed. The first decides; the others help an operator.
const LISTED: usize = 20;

/// How many directories a thread claims at once.
const CLAIM: u32 = 16;

impl Store {
    /// Compares the current generation with a payload: names, types, modes and contents. Returns the differences; a
    /// generation that is missing or cannot be opened is one.
    pub fn verify(&mut self, expected: &Payload, cancel: &CancellationToken) -> Result<Vec<String>, Error> {
        let Some(current) = self.current() else {
            return Ok(vec!["there is no current generation".to_owned()]);
        };
        let name = current.name.clone();
        let top = match self.handles.generation(&name) {
            Ok(top) => top,
            Err(error) => return Ok(vec![one_line(&error)]),
        };
        let stamps = match self.stamps.of(&name) {
            Some(_) => None, // they are still valid
            None => self.stamps.of_found(&top, &self.handles.staging),
        };
        let check = Check::new(
            &top,
            expected,
            self.options.writers,
            self.handles.is_git_sync,
            self.stamps.can_detect_writes(),
            cancel,
        );
        let mut differences = check.run(Check::shape)?;
        if self.handles.is_git_sync {
            let wanted = git_file(expected.revision);
            let found = fsx::read_file(&top, GIT_FILE, wanted.len() as u64 + 1);
            if !found.is_ok_and(|found| found.is_some_and(|found| found == wanted.as_bytes())) {
                differences.push(format!("{GIT_FILE}: has unexpected content"));
            }
        }
        if differences.is_empty() {
            // A store through a shared memory map moves the ctime only when it makes a clean page dirty. After a sync all
            // pages are clean, so a store that the comparison does not see moves the ctime past that of the stamps. This is
            // needed whatever the durability.
            let stamps = stamps.filter(|_| fsx::sync_fs(&top).is_ok());
            differences = check.run(Check::contents)?;
            if differences.is_empty() {
                self.stamps.put(&name, stamps);
            }
        }
        Ok(differences)
    }
}

/// A comparison of a tree with a payload.
struct Check<'a> {
    top: &'a OwnedFd,
    expected: &'a Payload,
    /// Index of each directory's first entry, by the directory's number.
    starts: Vec<u32>,
    /// The numbers of all directories except the top one, sorted by parent directory and name.
    below: Vec<u32>,
    threads: usize,
    /// True if additional names in the tree are not a difference.
    tolerant: bool,
    /// True if read and write permissions are compared.
    modes: bool,
    /// True once [`LISTED`] differences are found.
    is_enough: AtomicBool,
    cancel: &'a CancellationToken,
}

/// A directory of the payload.
struct Dir<'a> {
    path: Vec<u8>,
    entries: &'a [Entry],
    /// The numbers of its subdirectories, sorted by name.
    dirs: &'a [u32],
}

/// A function that compares one directory and reports each difference to its last argument.
type Compare<'a> = fn(&Check<'a>, &Dir<'_>, BorrowedFd<'_>, &mut dyn FnMut(String)) -> io::Result<()>;

impl<'a> Check<'a> {
    fn new(
        top: &'a OwnedFd,
        expected: &'a Payload,
        threads: usize,
        tolerant: bool,
        modes: bool,
        cancel: &'a CancellationToken,
    ) -> Self {
        let count = expected.dir_count() as u32; // directory numbers are u32
        let mut starts = vec![0; count as usize + 1];
        for entry in &expected.entries {
            starts[entry.dir as usize + 1] += 1;
        }
        for dir in 1..starts.len() {
            starts[dir] += starts[dir - 1];
        }
        let mut below: Vec<u32> = (1..count).collect();
        below.sort_unstable_by_key(|dir| (expected.dir_parent(*dir), expected.dir_name(*dir)));
        let is_enough = AtomicBool::new(false);
        Self { top, expected, starts, below, threads, tolerant, modes, is_enough, cancel }
    }

    /// Returns what the payload has in a directory.
    fn dir(&self, dir: u32) -> Dir<'_> {
        let at = dir as usize;
        let entries = &self.expected.entries[self.starts[at] as usize..self.starts[at + 1] as usize];
        let place = |limit| self.below.partition_point(|other| self.expected.dir_parent(*other) < limit);
        Dir { path: self.expected.dir_path(dir), entries, dirs: &self.below[place(dir)..place(dir + 1)] }
    }

    /// Compares all directories with several threads.
    fn run(&self, compare: Compare<'a>) -> Result<Vec<String>, Error> {
        let next = AtomicU32::new(0);
        let found = Mutex::new(Vec::new());
        let differs = |line: String| {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.push(line);
            self.is_enough.fetch_or(found.len() >= LISTED, Ordering::Relaxed);
        };
        let count = self.expected.dir_count() as u32; // directory numbers are u32
        let work = || {
            let mut open = Dirs::new(self.top.as_fd());
            loop {
                let start = next.fetch_add(CLAIM, Ordering::Relaxed);
                if start >= count {
                    return;
                }
                for dir in start..count.min(start + CLAIM) {
                    let dir = &self.dir(dir);
                    let compared = match open.open(&dir.path) {
                        Ok(fd) => compare(self, dir, fd, &mut |line| differs(line))
                            .map_err(|error| error.to_string()),
                        Err(error) => Err(one_line(&error)),
                    };
                    if self.is_over() {
                        return;
                    }
                    if let Err(why) = compared {
                        differs(format!("{}: cannot be read: {why}", shown(&dir.path, b"")));
                    }
                }
            }
        };
        on_threads(self.threads.clamp(1, count.max(1) as usize), work);
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort();
        found.truncate(LISTED);
        Ok(found)
    }

    /// Returns true if the comparison was cancelled or has found enough differences.
    fn is_over(&self) -> bool {
        self.is_enough.load(Ordering::Relaxed) || self.cancel.is_cancelled()
    }

    /// Compares names, types, executable bits and sizes.
    fn shape(&self, dir: &Dir<'_>, fd: BorrowedFd<'_>, differs: &mut dyn FnMut(String)) -> io::Result<()> {
        let Dir { path, entries, dirs } = dir;
        let all = self.expected;
        if path.is_empty() && self.modes {
            wrong_mode_of(fd).into_iter().for_each(|why| differs(format!("{}: {why}", shown(path, b""))));
        }
        // Which names were found: entries first, then subdirectories. Flags, because a directory may have a million
        // names.
        let mut found = vec![false; entries.len() + dirs.len()];
        let mut names = 0_usize;
        fsx::each(fd, |name, _| {
            names += 1;
            if names.is_multiple_of(UNCHECKED_MAX) && self.is_over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let entry = entries.binary_search_by_key(&name.to_bytes(), |entry| all.name(entry));
            let place = match entry {
                Ok(at) => Some(at),
                Err(_) => {
                    let at = dirs.binary_search_by_key(&name.to_bytes(), |dir| all.dir_name(*dir));
                    at.ok().map(|at| entries.len() + at)
                }
            };
            let Some(place) = place else {
                if !self.tolerant {
                    differs(format!("{}: is not in the tree", shown(path, name.to_bytes())));
                }
                return Ok(());
            };
            found[place] = true;
            let Some(stat) = fsx::stat(fd, name)? else {
                differs(format!("{}: is missing", shown(path, name.to_bytes())));
                return Ok(());
            };
            let kind = entries.get(place).map(|entry| (entry.kind, entry.size));
            let wrong_mode = || wrong_mode(&stat).filter(|_| self.modes);
            if let Some(why) = wrong_shape(kind, &stat).or_else(wrong_mode) {
                differs(format!("{}: {why}", shown(path, name.to_bytes())));
            } else if !self.tolerant
                && kind.is_some_and(|(kind, _)| kind == Kind::Submodule)
                && !fsx::list(fsx::open_dir(fd, name)?)?.is_empty()
            {
                differs(format!("{}: is not empty", shown(path, name.to_bytes())));
            }
            Ok(())
        })?;
        let names =
            entries.iter().map(|entry| all.name(entry)).chain(dirs.iter().map(|dir| all.dir_name(*dir)));
        for (name, _) in names.zip(&found).filter(|(_, found)| !**found) {
            if self.is_over() {
                break;
            }
            differs(format!("{}: is missing", shown(path, name)));
        }
        Ok(())
    }

    /// Compares contents by blob id.
    fn contents(&self, dir: &Dir<'_>, fd: BorrowedFd<'_>, differs: &mut dyn FnMut(String)) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        for entry in dir.entries {
            let name = self.expected.name(entry);
            if self.is_over() {
                break;
            }
            let found = match entry.kind {
                Kind::Submodule => continue,
                Kind::Symlink => {
                    let target = rustix::fs::readlinkat(fd, name, Vec::new())?;
                    blob_id(entry.size, target.to_bytes(), &mut buffer)
                }
                Kind::File | Kind::Executable => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(fd, name, flags, Mode::empty())?;
                    blob_id(entry.size, std::fs::File::from(file), &mut buffer)
                }
            };
            if found? != entry.id {
                differs(format!("{}: has other content", shown(&dir.path, name)));
            }
        }
        Ok(())
    }
}

/// Returns what is wrong with a file's type, executable bits or size, if anything. `expected` is `None` for a
/// directory.
fn wrong_shape(expected: Option<(Kind, u64)>, stat: &rustix::fs::Stat) -> Option<String> {
    let wanted = match expected {
        None | Some((Kind::Submodule, _)) => FileType::Directory,
        Some((Kind::Symlink, _)) => FileType::Symlink,
        Some(_) => FileType::RegularFile,
    };
    if fsx::file_type(stat) != wanted {
        return Some(format!("is {:?}, not {wanted:?}", fsx::file_type(stat)));
    }
    let (kind, size) = expected.filter(|_| wanted != FileType::Directory)?;
    let found = stat.st_size.unsigned_abs();
    if found != size {
        return Some(format!("has {found} bytes, not {size}"));
    }
    let mode = stat.st_mode & 0o7777;
    match kind {
        Kind::File if mode & 0o7111 != 0 => Some(format!("has mode {mode:o}")),
        Kind::Executable if mode & 0o7111 != 0o111 => Some(format!("has mode {mode:o}")),
        _ => None,
    }
}

/// Like [`wrong_mode`], for an open file or directory.
pub(super) fn wrong_mode_of(fd: impl AsFd) -> Option<String> {
    rustix::fs::fstat(fd).ok().and_then(|stat| wrong_mode(&stat))
}

/// Returns what is wrong with a mode if it denies reading or lets everybody write. Additional group bits are
/// accepted: the kubelet sets them for `fsGroup`.
fn wrong_mode(stat: &rustix::fs::Stat) -> Option<String> {
    let mode = stat.st_mode & 0o7777;
    let needed = match fsx::file_type(stat) {
        FileType::Symlink => return None, // the kernel ignores a symlink's mode
        FileType::Directory => 0o555,
        _ => 0o444,
    };
    (mode & needed != needed || mode & 0o002 != 0).then(|| format!("has mode {mode:o}"))
}

/// Returns the git blob id of this content: SHA-1 over `blob <length>\0` and the bytes.
fn blob_id(size: u64, mut content: impl Read, buffer: &mut [u8]) -> io::Result<ObjectId> {
    let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(format!("blob {size}\0").as_bytes());
    loop {
        match content.read(buffer) {
            Ok(0) => break,
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let mut id = [0; 20];
    id.copy_from_slice(hash.finish().as_ref()); // 20 bytes for SHA-1
    Ok(ObjectId(id))
}

/// Formats a path in the generation for a message. Both parts empty: the generation itself.
fn shown(dir: &[u8], name: &[u8]) -> String {
    let path = if name.is_empty() { dir.to_vec() } else { join(dir, name) };
    if path.is_empty() { "the generation itself".to_owned() } else { escaped(&path) }
}
