//! Pins: a reader keeps a generation for as long as it reads it.
//!
//! This is the reader's side. It needs no treeswap process, no write access and no particular uid: a pin is a shared
//! flock(2) on the generation's directory. The writer does not reap a locked generation. This also works through
//! read-only mounts and from other containers on the node. A shell can take a pin, too:
//!
//! ```sh
//! until exec 9</config/..data && flock -s 9 || exit; [ /config/..data -ef /proc/self/fd/9 ]; do :; done
//! cd -P /proc/self/fd/9    # and from here relative paths only
//! ```
//!
//! # The protocol
//!
//! 1. Open the link; the descriptor refers to the generation's directory. If the link does not exist yet, wait.
//! 2. Take the shared lock without waiting. If the lock is held exclusively, the generation is being reaped (or
//!    somebody misuses the lock): close, pause, start again at 1; after [`LOCK_TRIES`] tries go on without a lock.
//!    Also go on without a lock if locks are not supported, or none can be had now: the grace period still protects.
//!    Whether that is enough is for the caller to say: [`Pin::protection`] tells, and [`Pin::take_locked`] refuses it,
//!    as `treeswap pin` does.
//! 3. Check that the link still names the directory that was opened. The lock alone proves nothing, because the kernel
//!    grants it on a deleted directory, too. The writer never reaps the current generation, and cannot reap this one
//!    later because of the lock. If the link was swapped in between, start again at 1; after [`ROUNDS`] rounds accept a
//!    generation that is locked and still in the root.
//! 4. Read through the descriptor, [`Pin::path`], or [`Pin::location`]; never through the link again, which may name a
//!    newer generation by now.
//! 5. Closing the descriptor releases the pin. To move to a newer generation, take the new pin first ([`Pin::renew`]).
//!    There is no explicit unlock: it would release the lock of every duplicate of the descriptor, including those that
//!    child processes inherited.
//!
//! In git-sync's layout the link has another name ([`Pin::take_link`]), and a generation's directory is named by its
//! commit. A commit that is published a second time takes over the name. The pinned generation then stays, complete,
//! under another name, and open descriptors still refer to it; but [`Pin::location`] then names the newer generation of
//! the same commit.
//!
//! # What a pin does not do
//!
//! A pin does not hold a generation for ever: the operator of the writer sets ceilings (`--max-pin`,
//! `--max-generations`, `--max-bytes`), and beyond them a pinned generation is evicted. Hold a pin for one load, not
//! for a process's lifetime.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::clock;
use crate::fsx::{self, Inode, Link, Lock};
use crate::generation::{DATA_LINK, Name, WORKTREES};

/// How often the lock is tried while it is held exclusively. With the pauses, about a quarter of a second in total.
pub const LOCK_TRIES: u32 = 50;

/// How many rounds may fail because the link was swapped meanwhile.
pub const ROUNDS: u32 = 10;

/// Pause between two tries for the lock: the writer holds it only for as long as a rename takes.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Pause between two checks for the first generation.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause before a pin with a lock is tried again, and the longest wait of one try: `treeswap pin` then looks
/// again at what its PATH is.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// How a pin is taken.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How long to wait for the first generation and, in [`Pin::take_locked`], for a lock. Zero: do not wait.
    pub wait: Duration,
}

/// What keeps a pinned generation from being reaped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// The lock: the generation stays, within the writer's ceilings.
    Locked,
    /// Only the grace period: another process held the lock exclusively during all tries.
    Contended,
    /// Only the grace period: the file system, or a layer between it and us, does not support locks.
    Unsupported,
    /// Only the grace period: no lock could be had just then (`ENOLCK`). A later pin may have one.
    Unavailable,
}

/// A pinned generation. Dropping it releases the pin.
///
/// ```
/// use treeswap::pin::{Options, Pin};
/// # let root = tempfile::tempdir()?;
/// # let config = root.path();
/// # std::fs::create_dir(config.join("..2026_11_20_15_04_05.000000001"))?;
/// # std::fs::write(config.join("..2026_11_20_15_04_05.000000001/app.toml"), "a")?;
/// # std::os::unix::fs::symlink("..2026_11_20_15_04_05.000000001", config.join("..data"))?;
///
/// let mut pin = Pin::take(config, &Options::default())?;
/// loop {
///     // Everything below this path belongs to one revision, and stays until `pin` is renewed or dropped.
///     let settings = std::fs::read_to_string(pin.path().join("app.toml"))?;
///     # assert_eq!(settings, "a");
///     if !pin.renew()? {
///         break; // still current; a service would wait for the next swap here
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pin {
    dir: OwnedFd,
    identity: Inode,
    generation: OsString,
    location: PathBuf,
    protection: Protection,
    link: PathBuf,
}

impl Pin {
    /// Pins the generation that the root's `..data` names.
    ///
    /// # Errors
    /// If nothing is published within the time to wait, or the generation cannot be opened.
    pub fn take(root: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        Self::take_link(root.as_ref().join(DATA_LINK), options)
    }

    /// Pins the generation that a link of any name names: `--link` in git-sync's layout.
    ///
    /// # Errors
    /// As [`Pin::take`]; and if the link's target is not a generation, because a lock on it would protect nothing.
    pub fn take_link(link: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let link = link.as_ref();
        let deadline = clock::now().boottime.saturating_add(options.wait);
        loop {
            match settle(link) {
                Err(error) if error.is_absence() && clock::now().boottime < deadline => {
                    std::thread::sleep(WAIT_PAUSE.min(options.wait));
                }
                result => return result,
            }
        }
    }

    /// Pins the generation that the root's `..data` names, with a lock: see [`Pin::locked`]. For up to the time to wait
    /// it is tried again, if it fails with what may pass: nothing is published yet, another process holds the lock
    /// exclusively, no lock can be had now, or the link is swapped too fast.
    ///
    /// # Errors
    /// As [`Pin::take`] and [`Pin::locked`].
    pub fn take_locked(root: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let link = root.as_ref().join(DATA_LINK);
        within(options.wait, |options| Self::take_link(&link, options).and_then(Self::locked))
    }

    /// Moves the pin to the current generation. Returns true if it is another one than before. The new pin is taken
    /// before the old one is released; if it cannot be taken, the old one stays. If the generation is the same and has
    /// no lock yet, the lock is tried once more; the paths stay.
    ///
    /// # Errors
    /// As [`Pin::take`].
    pub fn renew(&mut self) -> Result<bool, Error> {
        // Before the check, as steps 2 and 3: the lock counts only on what is still current.
        let tried = match self.protection {
            Protection::Locked => None,
            _ => protection_by(fsx::try_lock_shared(&self.dir)).ok(),
        };
        if fsx::identity_at(&self.link).is_ok_and(|now| now == Some(self.identity)) {
            self.protection = tried.unwrap_or(self.protection);
            return Ok(false);
        }
        let newer = settle(&self.link)?;
        let is_other = !newer.same_generation(self);
        if is_other {
            *self = newer;
        }
        Ok(is_other)
    }

    /// Returns true if both pins hold the same generation: the same directory under the same name.
    pub fn same_generation(&self, other: &Self) -> bool {
        self.identity == other.identity && self.generation == other.generation
    }

    /// The generation's directory, for `openat` and `fchdir`.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The generation's path through this process's descriptor, for this process only: `/proc/self/fd/N`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// The path of the generation's directory, which other processes can use. It does not go through the link.
    pub fn location(&self) -> &Path {
        &self.location
    }

    /// The generation's name: a timestamp, or in git-sync's layout the revision.
    pub fn generation(&self) -> &OsStr {
        &self.generation
    }

    /// What keeps the generation from being reaped.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Returns the pin if its lock holds the generation. For a reader that would rather fail than read what only the
    /// grace period protects.
    ///
    /// # Errors
    /// If there is no lock: another process holds it exclusively, none can be had now, or the file system does not
    /// support locks.
    pub fn locked(self) -> Result<Self, Error> {
        match self.protection {
            Protection::Locked => Ok(self),
            Protection::Contended => Err(Error::Contended { generation: self.location }),
            Protection::Unsupported => Err(Error::Unsupported { generation: self.location }),
            Protection::Unavailable => Err(Error::Unavailable { generation: self.location }),
        }
    }

    /// Duplicates the pin for a child process to inherit: the generation stays until the child, and every process that
    /// inherits the descriptor from it, has ended. Drop it after the child was started.
    ///
    /// # Errors
    /// If the process has reached its limit of descriptors.
    pub fn inheritable(&self) -> io::Result<OwnedFd> {
        let copy = rustix::io::fcntl_dupfd_cloexec(&self.dir, fsx::INHERITED_FROM);
        // EINVAL: the limit is so low that no descriptor may have such a number.
        let copy = copy.map_err(|errno| if errno == Errno::INVAL { Errno::MFILE } else { errno })?;
        rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
        Ok(copy)
    }
}

/// Calls `take`, and again for up to `wait` if it fails with what may pass meanwhile.
pub(crate) fn within(
    wait: Duration,
    mut take: impl FnMut(&Options) -> Result<Pin, Error>,
) -> Result<Pin, Error> {
    let began = Instant::now();
    let may_pass = |error: &Error| error.is_absence() || error.is_transient();
    loop {
        let left = wait.saturating_sub(began.elapsed());
        let pause = left.min(RETRY_PAUSE);
        match take(&Options { wait: pause }) {
            Err(error) if left.is_zero() || !may_pass(&error) => return Err(error),
            Err(Error::Unavailable { .. } | Error::Restless { .. }) => std::thread::sleep(pause),
            Err(_) => {} // `take` has tried for a while before it reports one of the others
            Ok(pin) => return Ok(pin),
        }
    }
}

/// The result of one round of the protocol.
enum TryResult {
    /// Pinned, and current.
    Pinned(Pin),
    /// Locked and still in the root, but no longer current.
    Retired(Pin),
    /// The link was swapped during the round; there is nothing to keep.
    Swapped,
    /// Another process has the lock exclusively.
    Contended,
}

/// Repeats steps 1 to 3 until they succeed within one round.
fn settle(link: &Path) -> Result<Pin, Error> {
    let home = home_of(link)?;
    let mut rounds = 0;
    let mut tries = 0;
    let mut retired = None;
    while rounds < ROUNDS {
        match round(link, &home, tries < LOCK_TRIES)? {
            TryResult::Pinned(pin) => return Ok(pin),
            TryResult::Retired(pin) => {
                retired = Some(pin);
                rounds += 1;
            }
            TryResult::Swapped => rounds += 1,
            TryResult::Contended => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
        }
    }
    retired.ok_or_else(|| match fsx::identity_at(link) {
        Ok(None) => Error::NoGeneration { link: link.to_owned() }, // the link dangles
        _ => Error::Restless { link: link.to_owned() },
    })
}

/// Runs steps 1 to 3 once. `needs_lock`: return [`TryResult::Contended`] instead of a pin without a lock.
fn round(link: &Path, home: &Path, needs_lock: bool) -> Result<TryResult, Error> {
    let failed = |act, path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| Error::Io { act, path, source }
    };
    // 1
    let opened = rustix::fs::open(link, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let target = match fsx::read_link(CWD, link) {
        Ok(Link::To(target)) => PathBuf::from(target),
        Ok(Link::Absent) => return Err(Error::absent(link, home)),
        Ok(Link::Other(_)) => return Err(Error::NotALink { link: link.to_owned() }),
        Err(error) => return Err(failed("read the link", link)(error)),
    };
    let Some(generation) = generation_named(&target) else {
        return Err(Error::NotAGeneration { link: link.to_owned(), target });
    };
    let dir = match opened {
        Err(Errno::NOENT) => return Ok(TryResult::Swapped), // reaped before it was opened
        opened => opened.map_err(io::Error::from).map_err(failed("open the generation behind", link))?,
    };
    // 2
    let tried = fsx::try_lock_shared(&dir);
    let protection = protection_by(tried).map_err(failed("lock the generation behind", link))?;
    if needs_lock && protection == Protection::Contended {
        return Ok(TryResult::Contended);
    }
    // 3
    let identity = fsx::identity(&dir).map_err(failed("stat the generation behind", link))?;
    let location = home.join(&target);
    let named = fsx::identity_at(&location).map_err(failed("stat", &location))?;
    let current = fsx::identity_at(link).map_err(failed("stat", link))?;
    if named != Some(identity) {
        return Ok(TryResult::Swapped); // a swap came between open and readlink: the name is another generation's
    }
    let pin = Pin { dir, identity, generation, location, protection, link: link.to_owned() };
    Ok(if current == Some(identity) { TryResult::Pinned(pin) } else { TryResult::Retired(pin) })
}

/// What protects a generation whose lock was tried with this result.
fn protection_by(tried: io::Result<Lock>) -> io::Result<Protection> {
    match tried {
        Ok(Lock::Taken) => Ok(Protection::Locked),
        Ok(Lock::Contended) => Ok(Protection::Contended),
        Ok(Lock::Unsupported) => Ok(Protection::Unsupported),
        Err(error) if fsx::lacks_locks(&error) => Ok(Protection::Unavailable),
        Err(error) => Err(error),
    }
}

/// The directory that contains the link, resolved.
fn home_of(link: &Path) -> Result<PathBuf, Error> {
    let home = match link.parent() {
        Some(home) if !home.as_os_str().is_empty() => home,
        _ => Path::new("."),
    };
    fs_err::canonicalize(home).map_err(|source| match source.kind() {
        // A reader may start before the writer has created its root.
        io::ErrorKind::NotFound => Error::NoGeneration { link: link.to_owned() },
        _ => Error::Io { act: "resolve", path: home.to_owned(), source },
    })
}

/// The base name of a link's target, if it is a generation's name: a timestamp, or a commit id in git-sync's layout.
pub(crate) fn generation_named(target: &Path) -> Option<OsString> {
    let name = target.file_name()?;
    let text = name.to_str()?;
    let is_commit = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_commit || Name::parse(text).is_some()).then(|| name.to_owned())
}

/// Why a generation could not be pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing is published there, or not yet.
    #[error("no generation is published at {}", link.display())]
    NoGeneration {
        /// The link that does not exist, or whose target does not.
        link: PathBuf,
    },
    /// The root has git-sync's layout, in which no link is called `..data`.
    #[error("{} is a root in git-sync's layout, which has no {DATA_LINK}", root.display())]
    OtherLayout {
        /// The root.
        root: PathBuf,
    },
    /// The path exists and is not a symlink.
    #[error("{} is not a symbolic link", link.display())]
    NotALink {
        /// The path.
        link: PathBuf,
    },
    /// The link's target is not a generation, so the writer would not check a lock on it.
    #[error("{} names {}, which is not a generation", link.display(), target.display())]
    NotAGeneration {
        /// The link.
        link: PathBuf,
        /// Its target.
        target: PathBuf,
    },
    /// The link was swapped in every round.
    #[error("{} is swapped faster than it can be pinned", link.display())]
    Restless {
        /// The link.
        link: PathBuf,
    },
    /// Another process holds an exclusive lock on the generation: see [`Pin::locked`].
    #[error("cannot pin {}: another process holds an exclusive lock on it", generation.display())]
    Contended {
        /// The generation's directory.
        generation: PathBuf,
    },
    /// The generation cannot be locked at all: see [`Pin::locked`].
    #[error("cannot pin {}: its file system does not support locks", generation.display())]
    Unsupported {
        /// The generation's directory.
        generation: PathBuf,
    },
    /// No lock on the generation can be had now: see [`Pin::locked`].
    #[error("cannot pin {}: its file system has no lock to give now", generation.display())]
    Unavailable {
        /// The generation's directory.
        generation: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// The operation, in words that follow "cannot".
        act: &'static str,
        /// The path it was done on.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The error for a link that does not exist in the directory `home`.
    fn absent(link: &Path, home: &Path) -> Self {
        if link.file_name() == Some(DATA_LINK.as_ref()) && home.join(WORKTREES).is_dir() {
            return Self::OtherLayout { root: home.to_owned() };
        }
        Self::NoGeneration { link: link.to_owned() }
    }

    /// Returns true if trying again may help without an operator.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NoGeneration { .. }
                | Self::Restless { .. }
                | Self::Contended { .. }
                | Self::Unavailable { .. }
        )
    }

    /// What an operator can do, one hint per line.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NoGeneration { link } => return vec![hint_for_absence(link)],
            Self::OtherLayout { .. } => "name its link instead: ROOT/LINK",
            Self::NotALink { .. } => "name the root, or the link that names its current generation",
            Self::NotAGeneration { .. } => "pin the root itself, not a link or a directory in it",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "a consumer needs to read and search the generation's directory; check the modes of its parent directories"
            }
            Self::Restless { .. } => {
                "try again; publications are spaced by --min-interval of `treeswap sync`"
            }
            Self::Contended { .. } => {
                "lslocks(8) shows which one; a reader must lock it shared; `treeswap pin --wait 1m` waits for the lock"
            }
            Self::Unsupported { .. } => {
                "pins need a volume with flock(2); elsewhere finish reading within --grace of `treeswap sync`"
            }
            Self::Unavailable { .. } => {
                "that may pass, as where a file server starts: `treeswap pin --wait 1m` tries again meanwhile"
            }
            Self::Io { .. } => "check the volume and its mount, and the modes of the parent directories",
        };
        vec![hint.to_owned()]
    }

    /// Returns true if nothing is published yet.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::NoGeneration { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// The directory that should hold the link, if it does not exist.
pub(crate) fn absent_dir(link: &Path) -> Option<&Path> {
    link.parent().filter(|_| !link.with_file_name(".").is_dir())
}

/// The hint for a link that does not exist.
fn hint_for_absence(link: &Path) -> String {
    let root = link.parent().unwrap_or(link).display();
    let exists = |name: &str| link.with_file_name(name).symlink_metadata().is_ok();
    if absent_dir(link).is_some() {
        format!("there is no directory {root}: name the --root of `treeswap sync`, or the link it keeps")
    } else if link.file_name() != Some(DATA_LINK.as_ref()) {
        "has the first sync ended, and is this its link? `treeswap pin --wait 1m` waits for the first generation".to_owned()
    } else if exists("..treeswap") {
        format!(
            "`treeswap status {root}` shows the state of the sync; `treeswap pin --wait 1m` waits for the first generation"
        )
    } else {
        format!(
            "no writer has opened {root}: start `treeswap sync`, or name the --root that it has, or the link it keeps"
        )
    }
}

#[cfg(test)]
mod tests;
