//! The layout of a root on disk, and the directory handles through which the store works in it.
//!
//! ```text
//! ROOT/
//!   ..data -> ..2026_11_20_15_04_05.123456789      the link; swapped by a rename of ..data_tmp over it
//!   ..2026_11_20_15_04_05.123456789/               current generation
//!   ..2026_11_20_14_58_41.004211870/               retired, in its grace period or pinned
//!   ci-operator -> ..data/ci-operator              one root link per top-level name of the tree
//!   ..treeswap/                                    our private directory:
//!     lock            0600, flock: one writer
//!     state           records of the generations (JSON)
//!     status.json     the last status record, for `treeswap status`
//!     ledger.json     what was last attempted in each cluster, if there are rules
//!     staging/        generations being written
//!     spare/          0700, a tree like the current generation's, from which the next one is made
//!     trash/          what is being deleted
//!     quarantine-*    foreign files that had one of our names, moved here unread
//! ```
//!
//! And in git-sync's layout:
//!
//! ```text
//! ROOT/
//!   LINK -> .worktrees/<commit>                    the link; any name, and possibly outside the root
//!   .worktrees/<commit>/                           current generation, its `.git` a file
//!   .worktrees/<commit>/                           retired
//!   .worktrees/<commit>.<serial>/                  retired: replaced by another generation of the same commit
//!   .git/                                          the mirror
//!   ..treeswap/                                    our private directory, as above
//! ```
//!
//! In that layout everything else in the root is foreign and left alone. Names of the tree cannot collide with
//! anything: they are all inside the generation, and `.git`, the one file we add there, is a name that no tree may
//! have.
//!
//! The root's path is resolved once, when it is opened. Afterwards every step works below its handle, so that a
//! rename or a remount above the root cannot redirect it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType};
use rustix::io::Errno;

use crate::fsx::{self, Flush, Link};
use crate::generation::{DATA_LINK, Name, WORKTREES};
use crate::store::error::{Error, MAKE_ROOT, RESOLVE_ROOT, some_names};
use crate::store::link::{PublishedLink, clean};
use crate::store::names::{DIR_MODE, LINK_TMP, PRIVATE, PRIVATE_ASIDE, STAGING, STATE, TRASH};
use crate::store::nested::check_nested;
use crate::store::state::{Loaded, State};
use crate::store::{Layout, Options, Recovered, operator_file, quarantine};

/// Open handles of the root and of our directories in it.
#[derive(Debug)]
pub(crate) struct RootHandles {
    /// The resolved path of the root: for messages, and to notice that another directory was mounted there.
    pub(crate) path: PathBuf,
    /// The root.
    pub(crate) root: OwnedFd,
    /// The private directory, [`PRIVATE`].
    pub(crate) private: OwnedFd,
    /// [`STAGING`] in the private directory.
    pub(crate) staging: OwnedFd,
    /// [`TRASH`] in the private directory.
    pub(crate) trash: OwnedFd,
    /// The directory that holds the generations: the root, or [`WORKTREES`].
    pub(crate) generations_dir: OwnedFd,
    /// The published link.
    pub(crate) link: PublishedLink,
    /// True for git-sync's layout, false for the kubelet's.
    pub(crate) is_git_sync: bool,
    /// Block size of the root's file system, in bytes.
    pub(crate) block: u64,
}

/// Mode of `.worktrees` before the umask, as git-sync creates it.
const WORKTREES_MODE: u32 = 0o775;

impl RootHandles {
    /// Opens the root: resolves its path, refuses unusable directories, and creates the root and our directories if
    /// they are missing.
    pub(crate) fn open(options: &Options, found: &mut Recovered) -> Result<Self, Error> {
        let Options { root: asked, layout, operator_names, .. } = options;
        let is_git_sync = *layout != Layout::Kubelet;
        let path = resolve(&if is_git_sync { clean(asked) } else { asked.to_owned() }, is_git_sync)?;
        let root = fsx::open_dir_at_path(&path).map_err(Error::io("open", &path))?;
        // Check the layout before anything is created in the root. The check is repeated under the lock, where a failed
        // read is reported.
        if let Ok(private) = fsx::open_dir(&root, PRIVATE)
            && let Ok(Loaded::Known(state)) = State::load(private)
        {
            refuse_other_layout(&path, &state, is_git_sync)?;
        }
        let (link, generations_dir) = match layout {
            Layout::Kubelet => {
                refuse_foreign(&path, &root, operator_names)?;
                let link = PublishedLink::of_root(&path, &root);
                (link.map_err(Error::io("open", &path))?, fsx::open_dir(&root, "."))
            }
            Layout::GitSync { link } => (PublishedLink::of_git_sync(&path, link)?, ensure_worktrees(&root)),
        };
        let failed = |error| no_dir(&root, WORKTREES, link.generations_path().to_owned(), error);
        let generations_dir = generations_dir.map_err(failed)?;
        let private = open_private(&path, &root, found)?;
        let staging = open_inner(&path, &private, STAGING, DIR_MODE, found)?;
        let trash = open_inner(&path, &private, TRASH, DIR_MODE, found)?;
        let block = fsx::space(&root).map_err(Error::io("ask for the space of", &path))?.block;
        Ok(Self { path, root, private, staging, trash, generations_dir, link, is_git_sync, block })
    }

    /// The path of a name in the root, for messages.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Returns true if the root's parent directory exists and is on this device.
    pub(crate) fn has_parent_on(&self, device: u64) -> bool {
        let parent = self.path.parent().and_then(|parent| rustix::fs::stat(parent).ok());
        parent.is_some_and(|stat| stat.st_dev == device)
    }

    /// The path of a name in our private directory, for messages.
    pub(crate) fn private_at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(PRIVATE).join(name)
    }

    /// The path of a generation.
    pub(crate) fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.relative_path())
    }

    /// Returns the generation that the published link names, whether or not it exists. `None` if the link is missing or
    /// names something else.
    pub(crate) fn linked_generation(&self) -> Result<Option<Name>, Error> {
        Ok(match self.link.read()? {
            Link::To(target) => self.link.generation_in(&target),
            Link::Absent | Link::Other(_) => None,
        })
    }

    /// Reads the state file. Only a failed system call is an error; a damaged file is not, nor is one that we may not
    /// read, such as another user's.
    pub(crate) fn load(&self) -> Result<Loaded, Error> {
        match State::load(&self.private) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Ok(Loaded::Damaged(error.to_string()))
            }
            loaded => loaded.map_err(Error::io("read", self.private_at(STATE))),
        }
    }

    /// Writes the state file.
    pub(crate) fn save(&self, state: &State, flush: Flush) -> Result<(), Error> {
        state.save(&self.private, flush).map_err(Error::io("write", self.private_at(STATE)))
    }

    /// Returns why the store must be reopened, if `.worktrees` or the link's directory was removed or replaced. Only
    /// git-sync's layout has such handles.
    pub(crate) fn reopen_reason(&self) -> Result<Option<String>, Error> {
        if !self.is_git_sync {
            return Ok(None);
        }
        for (dir, path) in
            [(&self.generations_dir, &*self.at(WORKTREES)), (&self.link.dir, self.link.dir_path())]
        {
            let open = fsx::identity(dir).map_err(Error::io("stat", path))?;
            if !fsx::identity_at(path).is_ok_and(|there| there == Some(open)) {
                return Ok(Some(format!("{} was removed, and is created again", path.display())));
            }
        }
        Ok(None)
    }

    /// Opens a generation's directory.
    pub(crate) fn generation(&self, name: &Name) -> Result<OwnedFd, Error> {
        fsx::open_dir(&self.generations_dir, name.as_str())
            .map_err(Error::io("open the generation", self.path_of(name)))
    }
}

/// Opens `.worktrees`, creating it if it is missing.
fn ensure_worktrees(root: &OwnedFd) -> std::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(root, WORKTREES, rustix::fs::Mode::from_raw_mode(WORKTREES_MODE)) {
        Err(rustix::io::Errno::EXIST) => {}
        made => made?,
    }
    fsx::open_dir(root, WORKTREES)
}

/// Opens our private directory, creating it if it is missing. Something foreign with its name is moved aside first.
fn open_private(path: &Path, root: &OwnedFd, found: &mut Recovered) -> Result<OwnedFd, Error> {
    let failed = |error| no_dir(root, PRIVATE, path.join(PRIVATE), error);
    let moved =
        quarantine::quarantine_unless(root, PRIVATE, FileType::Directory, PRIVATE_ASIDE).map_err(failed)?;
    found.report_moved(Path::new(PRIVATE), moved);
    fsx::ensure_dir(root, PRIVATE, DIR_MODE).map_err(failed)
}

/// The error of a directory of ours in `at`, which was opened, or made if it was missing. It says which of the two
/// failed: nobody finds a directory that could not be made.
fn no_dir(at: &OwnedFd, name: &str, path: PathBuf, error: std::io::Error) -> Error {
    let act = match fsx::stat(at, name) {
        Ok(None) => "make the directory",
        _ => "open the directory",
    };
    Error::io(act, path)(error)
}

/// Opens a directory in our private directory, creating it with `mode` if it is missing.
pub(super) fn open_inner(
    path: &Path,
    private: &OwnedFd,
    name: &str,
    mode: u32,
    found: &mut Recovered,
) -> Result<OwnedFd, Error> {
    let failed = |error| no_dir(private, name, path.join(PRIVATE).join(name), error);
    let (dir, moved) = quarantine::open_dir(private, name, mode).map_err(failed)?;
    found.report_moved(&Path::new(PRIVATE).join(name), moved);
    Ok(dir)
}

/// Resolves the root's path, creating the directory if it is missing. Refuses paths that cannot be a root.
fn resolve(asked: &Path, is_git_sync: bool) -> Result<PathBuf, Error> {
    let refused = |why: &str| Err(Error::Refused { path: asked.to_owned(), why: why.to_owned() });
    if asked.as_os_str().is_empty() {
        return refused("it is empty");
    }
    if asked.components().any(|part| part == Component::ParentDir) {
        return refused("it contains `..`");
    }
    if let Some(why) = why_unusable(asked, is_git_sync) {
        return refused(why);
    }
    if let Err(why) = check_nested(asked, asked) {
        return refused(&why);
    }
    match rustix::fs::stat(asked) {
        Ok(found) if !fsx::file_type(&found).is_dir() => return refused("it is not a directory"),
        Ok(_) => {}
        Err(Errno::NOTDIR) => return refused("one of its parents is not a directory"),
        Err(Errno::LOOP) => return refused("it is a symbolic link that leads to itself"),
        Err(Errno::NOENT) => match find_dangling_link(asked).map_err(Error::io(RESOLVE_ROOT, asked))? {
            Some((link, target)) => return Err(Error::Dangling { path: asked.to_owned(), link, target }),
            None => std::fs::create_dir_all(asked).map_err(Error::io(MAKE_ROOT, asked))?,
        },
        // EACCES, ESTALE, EIO and the like do not tell what is there, and whether anything is.
        Err(error) => return Err(Error::io(RESOLVE_ROOT, asked)(error)),
    }
    let path = std::fs::canonicalize(asked).map_err(Error::io(RESOLVE_ROOT, asked))?;
    match why_unusable(&path, is_git_sync) {
        Some(why) => refused(why),
        None => Ok(path),
    }
}

/// Returns the first dangling symlink among the path and its ancestors, and the symlink's target. Only a target that
/// certainly does not exist is missing: any other failure of a system call is an error.
fn find_dangling_link(asked: &Path) -> std::io::Result<Option<(PathBuf, PathBuf)>> {
    let mut ancestors: Vec<&Path> = asked.ancestors().collect();
    ancestors.reverse();
    for at in ancestors {
        let Link::To(target) = fsx::read_link(CWD, at)? else { continue };
        match rustix::fs::stat(at) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(Some((at.to_owned(), target.into()))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Directories that are never a root in the kubelet's layout, even if empty: they belong to the system or to a user.
const SYSTEM: &[&str] = &[
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/run",
    "/sbin",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
    "/dev/shm",
];

/// Returns why a path cannot be a root, if it cannot. git-sync's layout leaves everything else in the root alone, and
/// git-sync takes any directory: a `$HOME` that is the volume, `/dev/shm`.
fn why_unusable(path: &Path, is_git_sync: bool) -> Option<&'static str> {
    let is_home = || {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let is_own = home.is_some_and(|home| {
            path == Path::new(&home) || fs_err::canonicalize(&home).is_ok_and(|home| home == path)
        });
        is_own || path == Path::new("/root") || path.parent() == Some(Path::new("/home"))
    };
    if path == Path::new("/") {
        Some("it is the root of the file system")
    } else if ["/proc", "/sys"].iter().any(|system| path.starts_with(system)) {
        Some("it is a directory of the kernel")
    } else if is_git_sync {
        None
    } else if is_home() {
        Some("it is a home directory")
    } else if SYSTEM.iter().any(|system| path == Path::new(system)) {
        Some("it is a directory of the system")
    } else {
        None
    }
}

/// Refuses a root whose generations have the other layout.
pub(crate) fn refuse_other_layout(path: &Path, state: &State, is_git_sync: bool) -> Result<(), Error> {
    if state.generations.is_empty() || state.link.is_some() == is_git_sync {
        return Ok(());
    }
    let made = if is_git_sync { "kubelet" } else { "git-sync" };
    Err(Error::OtherLayout { path: path.to_owned(), made })
}

/// Refuses a directory without our private directory in it, if it holds anything except the operator's own files and
/// what a publication by treeswap or a kubelet leaves.
fn refuse_foreign(path: &Path, root: &OwnedFd, operator_names: &BTreeSet<OsString>) -> Result<(), Error> {
    let listed = fsx::list(root).map_err(Error::io("list", path))?;
    if listed.iter().any(|entry| entry.os() == OsStr::new(PRIVATE)) {
        return Ok(());
    }
    let mut foreign = Vec::new();
    for entry in &listed {
        if !operator_file::is_operator_name(operator_names, entry.os())
            && !is_ours(root, entry.os()).map_err(Error::io("stat", path.join(entry.os())))?
        {
            foreign.push(entry.os().to_string_lossy().into_owned());
        }
    }
    if foreign.is_empty() {
        return Ok(());
    }
    foreign.sort();
    Err(Error::Foreign { path: path.to_owned(), names: some_names(&foreign, foreign.len()) })
}

/// Returns true if a publication by treeswap or a kubelet creates such an entry in a root.
fn is_ours(root: &OwnedFd, name: &OsStr) -> std::io::Result<bool> {
    let Some(text) = name.to_str() else { return Ok(matches!(root_link(root, name)?, RootLink::Ours(_))) };
    if text == "lost+found" {
        return Ok(true); // created by mkfs
    }
    let kind =
        |wanted: FileType| Ok(fsx::stat(root, name)?.is_some_and(|stat| fsx::file_type(&stat) == wanted));
    if text.starts_with(PRIVATE_ASIDE) {
        return Ok(true); // moved there by a start that was killed before it created our private directory
    }
    if text == DATA_LINK || text == LINK_TMP {
        return kind(FileType::Symlink);
    }
    if Name::parse_timestamp(text).is_some() {
        return kind(FileType::Directory);
    }
    Ok(matches!(root_link(root, name)?, RootLink::Ours(_)))
}

/// What a name in the root is, seen as a root link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RootLink {
    /// The name does not exist.
    Absent,
    /// A root link of ours, through this name in the root: `..data` or a generation.
    Ours(String),
    /// Anything else.
    Foreign,
}

/// Inspects a name in the root. A root link is recognized by its target: `..data/<same name>` or, during a publication,
/// `<generation>/<same name>`. Where the file system treats two spellings as one name, either is the same.
pub(crate) fn root_link(root: &OwnedFd, name: &OsStr) -> std::io::Result<RootLink> {
    let target = match fsx::read_link(root, name)? {
        Link::Absent => return Ok(RootLink::Absent),
        Link::Other(_) => return Ok(RootLink::Foreign),
        Link::To(target) => target,
    };
    let mut parts = Path::new(&target).components();
    let first = parts.next();
    let second = parts.next();
    let rest = parts.next();
    let (Some(Component::Normal(first)), Some(Component::Normal(second)), None) = (first, second, rest)
    else {
        return Ok(RootLink::Foreign);
    };
    let dir = first.to_str().filter(|dir| *dir == DATA_LINK || Name::parse_timestamp(dir).is_some());
    Ok(match dir {
        Some(dir) if second == name || is_one_name(root, second, name)? => RootLink::Ours(dir.to_owned()),
        _ => RootLink::Foreign,
    })
}

/// Returns true if the file system finds the same link under both names, and it is no hard link.
fn is_one_name(root: &OwnedFd, one: &OsStr, other: &OsStr) -> std::io::Result<bool> {
    let (one, other) = (fsx::stat(root, one)?, fsx::stat(root, other)?);
    Ok(one.zip(other).is_some_and(|(one, other)| one.st_ino == other.st_ino && one.st_nlink == 1))
}
