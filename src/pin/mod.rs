//! Pins: a generation lives while it is read.
//!
//! This is the consumer's side. It needs no treeswap process, no write access and no particular uid: a pin is a shared
//! flock(2) on the generation's directory, which the reaper respects, through read-only mounts and from other
//! containers of the node alike. A shell can take one, too:
//!
//! ```sh
//! until exec 9</config/..data && flock -s 9 || exit; [ /config/..data -ef /proc/self/fd/9 ]; do :; done
//! cd -P /proc/self/fd/9    # and from here relative paths only
//! ```
//!
//! # The protocol
//!
//! 1. Open the link; the descriptor lands in the generation's directory. Where there is none yet, wait.
//! 2. Take the shared lock without waiting. If it is held exclusively, it is being reaped (or misused): close,
//!    pause, from 1 again; after [`LOCK_TRIES`] go on without. Where locks are not supported go on without as well:
//!    the grace period still protects.
//! 3. Check that the link still names the directory that was opened. A lock alone proves nothing: it is granted on a
//!    deleted directory, too. The reaper never takes the current generation, and cannot take this one later because
//!    of the lock. If it was swapped in between: from 1 again; after [`ROUNDS`] rounds be content with a generation
//!    that is locked and still stands in the root.
//! 4. Read through the descriptor, [`Pin::path`], or [`Pin::location`]; never through the link again, which may name a
//!    newer generation by now.
//! 5. Closing the descriptor releases it. For a newer generation take the new pin first ([`Pin::renew`]). An explicit
//!    unlock would release the lock of every copy of the descriptor, children's included; so there is none.
//!
//! In git-sync's layout the link has another name ([`Pin::take_link`]), and a directory that of its commit. A commit
//! that is published a second time takes over the name: the generation that was pinned stays, whole, under another one,
//! and what was opened still leads to it; [`Pin::location`] then leads to the newer generation of the same commit.
//!
//! # What it doesn't do
//!
//! Hold a generation for ever: the writer's operator sets ceilings (`--max-pin`, `--max-generations`,
//! `--max-bytes`), and beyond them a pinned generation is evicted. Hold pins for a load, not for a process' life.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::clock;
use crate::fsx::{self, Link};
use crate::generation::{LINK, Name, WORKTREES};

/// Tries for the lock while it is held exclusively; with the pauses between them about a quarter of a second.
pub const LOCK_TRIES: u32 = 50;

/// Rounds in which the link may have moved on.
pub const ROUNDS: u32 = 10;

/// Pause between two tries for the lock: the reaper holds it for as long as a rename takes.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Pause between two looks for the first generation.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

/// The lowest descriptor that a child inherits a pin as: shells use those below it for their own redirections.
const INHERITED_FROM: i32 = 10;

/// How a pin is taken.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How long to wait for the first generation; zero: not at all.
    pub wait: Duration,
}

/// What protects a pinned generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// The lock: it stays, within the writer's ceilings.
    Locked,
    /// Only the grace period: the lock is held exclusively all the time.
    Contended,
    /// Only the grace period: this file system, or what lies between it and us, knows no locks.
    Unsupported,
}

/// A generation, held. Dropping it releases it.
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
    identity: (u64, u64),
    generation: OsString,
    location: PathBuf,
    protection: Protection,
    link: PathBuf,
}

impl Pin {
    /// Pins what the root's `..data` names.
    ///
    /// # Errors
    /// When nothing is published within the time, or it cannot be opened.
    pub fn take(root: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        Self::take_link(root.as_ref().join(LINK), options)
    }

    /// Pins what a link of any name names: `--link`, or git-sync's layout.
    ///
    /// # Errors
    /// As [`Pin::take`]; and when the link names something that is no generation, whose lock would protect nothing.
    pub fn take_link(link: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let link = link.as_ref();
        let until = clock::now().boottime.saturating_add(options.wait);
        loop {
            match settle(link) {
                Err(error) if error.is_absence() && clock::now().boottime < until => {
                    std::thread::sleep(WAIT_PAUSE.min(options.wait));
                }
                settled => return settled,
            }
        }
    }

    /// Pins the newest generation instead, if it is another one, and says whether it is. The new pin is taken before
    /// the old one goes; if it cannot be taken, the old one stays.
    ///
    /// # Errors
    /// As [`Pin::take`].
    pub fn renew(&mut self) -> Result<bool, Error> {
        match rustix::fs::stat(&self.link) {
            Ok(now) if (now.st_dev, now.st_ino) == self.identity => return Ok(false),
            _ => {}
        }
        let newer = settle(&self.link)?;
        let another = !newer.same_generation(self);
        if another {
            *self = newer;
        }
        Ok(another)
    }

    /// Whether two pins hold one generation: the same directory under the same name.
    pub fn same_generation(&self, other: &Self) -> bool {
        self.identity == other.identity && self.generation == other.generation
    }

    /// The generation's directory, for `openat` and `fchdir`.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The generation as a path that only this process can use: `/proc/self/fd/N`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// The generation as a path that other processes can use: its own directory, not the link.
    pub fn location(&self) -> &Path {
        &self.location
    }

    /// The generation's name: a timestamp, or in git-sync's layout the revision.
    pub fn generation(&self) -> &OsStr {
        &self.generation
    }

    /// What protects it.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// A copy of the pin that a child process inherits: the generation stays until the child, and every process that
    /// inherits it from the child, has ended. Drop it once the child was started.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn inheritable(&self) -> io::Result<OwnedFd> {
        let copy = rustix::io::fcntl_dupfd_cloexec(&self.dir, INHERITED_FROM)?;
        rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
        Ok(copy)
    }
}

/// What one round came to.
enum TryResult {
    /// Pinned, and current.
    Pinned(Pin),
    /// Locked and still in the root, but no longer current.
    Passed(Pin),
    /// Swapped while we looked; nothing to keep.
    Moved,
    /// The lock is held exclusively.
    Held,
}

/// Steps 1 to 3, until they hold together.
fn settle(link: &Path) -> Result<Pin, Error> {
    let home = home_of(link)?;
    let mut rounds = 0;
    let mut tries = 0;
    let mut passed = None;
    while rounds < ROUNDS {
        match round(link, &home, tries < LOCK_TRIES)? {
            TryResult::Pinned(pin) => return Ok(pin),
            TryResult::Passed(pin) => {
                passed = Some(pin);
                rounds += 1;
            }
            TryResult::Moved => rounds += 1,
            TryResult::Held => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
        }
    }
    passed.ok_or_else(|| match identity_at(link) {
        Ok(None) => Error::NoGeneration { link: link.to_owned() }, // the link dangles
        _ => Error::Restless { link: link.to_owned() },
    })
}

fn round(link: &Path, home: &Path, insist: bool) -> Result<TryResult, Error> {
    let failed = |act, path: &Path| {
        let path = path.to_owned();
        move |error: Errno| Error::Io { act, path, source: error.into() }
    };
    // 1
    let opened = rustix::fs::open(link, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let target = match fsx::read_link(CWD, link) {
        Ok(Link::To(target)) => PathBuf::from(target),
        Ok(Link::Absent) => return Err(Error::absent(link, home)),
        Ok(Link::Other(_)) => return Err(Error::NotALink { link: link.to_owned() }),
        Err(source) => return Err(Error::Io { act: "read the link", path: link.to_owned(), source }),
    };
    let Some(generation) = generation_named(&target) else {
        return Err(Error::NotAGeneration { link: link.to_owned(), target });
    };
    let dir = match opened {
        Err(Errno::NOENT) => return Ok(TryResult::Moved), // reaped between reading the link and opening its target
        opened => opened.map_err(failed("open the generation behind", link))?,
    };
    // 2
    let lock = fsx::try_lock_shared(&dir).map_err(|source| Error::Io {
        act: "lock the generation behind",
        path: link.to_owned(),
        source,
    })?;
    let protection = match lock {
        fsx::Lock::Taken => Protection::Locked,
        fsx::Lock::Unsupported => Protection::Unsupported,
        fsx::Lock::Held if insist => return Ok(TryResult::Held),
        fsx::Lock::Held => Protection::Contended,
    };
    // 3
    let identity = fsx::identity(&dir).map_err(|source| Error::Io {
        act: "look at the generation behind",
        path: link.to_owned(),
        source,
    })?;
    let location = home.join(&target);
    let named = identity_at(&location).map_err(failed("look at", &location))?;
    let current = identity_at(link).map_err(failed("look at", link))?;
    if named != Some(identity) {
        return Ok(TryResult::Moved); // the name was read after, or before, a swap: it is not that of what is open
    }
    let pin = Pin { dir, identity, generation, location, protection, link: link.to_owned() };
    Ok(if current == Some(identity) { TryResult::Pinned(pin) } else { TryResult::Passed(pin) })
}

/// Device and inode of what a path leads to, links followed.
fn identity_at(path: &Path) -> Result<Option<(u64, u64)>, Errno> {
    match rustix::fs::statat(CWD, path, AtFlags::empty()) {
        Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The directory that holds the link, resolved.
fn home_of(link: &Path) -> Result<PathBuf, Error> {
    let home = match link.parent() {
        Some(home) if !home.as_os_str().is_empty() => home,
        _ => Path::new("."),
    };
    fs_err::canonicalize(home).map_err(|source| match source.kind() {
        // A consumer may well start before the writer has made its root.
        io::ErrorKind::NotFound => Error::NoGeneration { link: link.to_owned() },
        _ => Error::Io { act: "resolve", path: home.to_owned(), source },
    })
}

/// The base name of a link's target, if it is a generation's: a timestamp, or a commit id in git-sync's layout.
fn generation_named(target: &Path) -> Option<OsString> {
    let name = target.file_name()?;
    let text = name.to_str()?;
    let is_commit = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_commit || Name::parse(text).is_some()).then(|| name.to_owned())
}

/// Why there is no pin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing is published there (yet).
    #[error("no generation is published at {}", link.display())]
    NoGeneration {
        /// The link that would name it.
        link: PathBuf,
    },
    /// The root is there, and nothing in it will ever have the link's name.
    #[error("{} is a root in git-sync's layout, which has no {LINK}", root.display())]
    OtherLayout {
        /// The root.
        root: PathBuf,
    },
    /// What stands there is no link.
    #[error("{} is not a symbolic link", link.display())]
    NotALink {
        /// What was taken for one.
        link: PathBuf,
    },
    /// The link names something whose lock the reaper would not look at.
    #[error("{} names {}, which is not a generation", link.display(), target.display())]
    NotAGeneration {
        /// The link.
        link: PathBuf,
        /// Its target.
        target: PathBuf,
    },
    /// It was swapped in every round.
    #[error("{} is swapped faster than it can be pinned", link.display())]
    Restless {
        /// The link.
        link: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried, in words that follow "cannot".
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Nothing has the link's name, in this directory.
    fn absent(link: &Path, home: &Path) -> Self {
        if link.file_name() == Some(LINK.as_ref()) && home.join(WORKTREES).is_dir() {
            return Self::OtherLayout { root: home.to_owned() };
        }
        Self::NoGeneration { link: link.to_owned() }
    }

    /// Whether trying again may help without an operator.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NoGeneration { .. } | Self::Restless { .. })
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NoGeneration { link } => return vec![why_nothing(link)],
            Self::OtherLayout { .. } => "name its link instead: ROOT/LINK",
            Self::NotALink { .. } => "name the root, or the link that names its current generation",
            Self::NotAGeneration { .. } => "pin the root itself, not a link or a directory in it",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "a consumer needs to read and search the generation's directory; look at the modes on the way to it"
            }
            Self::Restless { .. } => {
                "try again; publications are spaced by --min-interval of `treeswap sync`"
            }
            Self::Io { .. } => "look at the volume and its mount, and at the modes on the way to it",
        };
        vec![hint.to_owned()]
    }

    /// Nothing is there yet: the only error that is worth waiting for.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::NoGeneration { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// What to do where nothing is published (yet).
fn why_nothing(link: &Path) -> String {
    let root = link.parent().unwrap_or(link).display();
    let is_there = |name: &str| link.with_file_name(name).symlink_metadata().is_ok();
    if !link.with_file_name(".").is_dir() {
        format!("there is no directory {root}: name the --root of `treeswap sync`, or the link it keeps")
    } else if link.file_name() != Some(LINK.as_ref()) {
        "has the first sync ended, and is this its link? `treeswap pin --wait 1m` waits for the first generation".to_owned()
    } else if is_there("..treeswap") {
        format!(
            "`treeswap status {root}` says what the sync does; `treeswap pin --wait 1m` waits for the first generation"
        )
    } else {
        format!(
            "no writer has opened {root}: start `treeswap sync`, or name the --root that it has, or the link it keeps"
        )
    }
}

#[cfg(test)]
mod tests;
