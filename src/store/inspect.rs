//! Reads a root for `treeswap status`: without the lock and without changing anything. Works as another user and
//! through a read-only mount.

use std::cmp::Reverse;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::configmap::apply::LedgerSet;
use crate::fsx::{self, Link};
use crate::generation::{DATA_LINK, GenerationRecord, Name, WORKTREES};
use crate::phase::Status;
use crate::store::error::Error;
use crate::store::ledger::LEDGER_LIMIT;
use crate::store::names::{LEDGER, LOCK, PRIVATE, SOCKET, STATE, STATUS};
use crate::store::reap::RequiredSpace;
use crate::store::state::{Loaded, State};

/// The largest status record that is read, in bytes.
const STATUS_LIMIT: u64 = 4 << 20;

/// The state of a root, from [`inspect`].
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The resolved path of the root.
    pub root: PathBuf,
    /// The generation that the published link names, if it exists.
    pub current: Option<Name>,
    /// What is wrong with the published link, if anything: missing, dangling, or not a link to a generation.
    pub link_problem: Option<String>,
    /// Every generation in the root, newest first.
    pub generations: Vec<Inspected>,
    /// The last status record that a writer wrote, if it can be read.
    pub status: Option<Status>,
    /// The path of the socket on which a running writer reports its status.
    pub socket: PathBuf,
    /// The ledger of what was last attempted in each cluster, if it can be read.
    pub ledger: Option<LedgerSet>,
}

impl Inspection {
    /// Returns true if a writer holds the root's lock, as far as its process is visible.
    pub fn has_writer(&self) -> bool {
        let lock = std::fs::symlink_metadata(self.root.join(PRIVATE).join(LOCK));
        lock.is_ok_and(|lock| fsx::is_locked_exclusively(lock.dev(), lock.ino()))
    }
}

/// One generation in the root.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// The name of its directory.
    pub name: Name,
    /// Its record. `None` if the state file does not list it or cannot be read.
    pub record: Option<GenerationRecord>,
    /// Estimated bytes on disk, as for `--max-bytes`. `None` without a record.
    pub disk_bytes: Option<u64>,
    /// True if the published link names it.
    pub current: bool,
    /// Whether a reader holds a pin on it right now. `None` if that is not known here.
    pub pinned: Option<bool>,
}

/// Inspects a root.
///
/// # Errors
/// When it cannot be read; the hints are for a reader.
pub fn inspect(root: &Path) -> Result<Inspection, Error> {
    inspect_root(root).map_err(|error| match error {
        Error::Io { act, path, source } if source.kind() == ErrorKind::PermissionDenied => {
            Error::Unreadable { act, path, source }
        }
        error => error,
    })
}

fn inspect_root(root: &Path) -> Result<Inspection, Error> {
    let path = std::fs::canonicalize(root).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Error::NoDirectory { path: root.to_owned() },
        _ => Error::io("resolve the root", root)(error),
    })?;
    if !path.is_dir() {
        return Err(Error::NotADirectory { path });
    }
    let dir = fsx::open_dir_at_path(&path).map_err(Error::io("open", &path))?;
    let (private, state) = state_of(&path, &dir)?;
    // In git-sync's layout only the state file says where the published link is.
    let git_sync = state.link.as_ref().map(|link| path.join(link));
    let at = git_sync.clone().unwrap_or_else(|| path.join(DATA_LINK));
    let link = fsx::read_link(rustix::fs::CWD, &at).map_err(Error::io("read the link", &at))?;
    if private.is_none() && link == Link::Absent {
        return Err(Error::NoRoot { path });
    }
    let read = |name, limit| fsx::read_file(private.as_ref()?, name, limit).ok()?;
    let status = private.as_ref().and_then(read_status);
    let ledger = read(LEDGER, LEDGER_LIMIT).and_then(|text| LedgerSet::read(&text).ok());
    let (home, parse): (_, fn(&str) -> Option<Name>) = match git_sync {
        Some(_) => (path.join(WORKTREES), Name::parse_commit),
        None => (path.clone(), Name::parse_timestamp),
    };
    let below = home.strip_prefix(&path).map(Path::to_owned).unwrap_or_default();
    let below = if below == Path::new("") { Path::new(".") } else { &below };
    let dir = fsx::open_dir(&dir, below).map_err(Error::io("open", &home))?;
    let mut names = generation_names(&dir, &home, parse)?;
    // Newest first. A commit id gives no order, so those are sorted by their records.
    let published = |name: &Name| state.record(name).map(|record| record.published);
    names.sort_by_cached_key(|name| Reverse((name.commit().and_then(|_| published(name)), name.clone())));
    let (current, link_problem) = current_of(&link, &at, &names);
    let socket = path.join(PRIVATE).join(SOCKET);
    let block = fsx::space(&dir).map_err(Error::io("ask for the space of", &path))?.block;
    let generations = names
        .into_iter()
        .map(|name| Inspected {
            current: current.as_ref() == Some(&name),
            pinned: fsx::is_locked(&dir, name.as_str()),
            disk_bytes: state.record(&name).map(|record| RequiredSpace::of(record).on_disk(block)),
            record: state.record(&name).cloned(),
            name,
        })
        .collect();
    Ok(Inspection { root: path, current, link_problem, generations, status, socket, ledger })
}

/// Opens the private directory of an open root, if there is one, and reads the state file.
fn state_of(path: &Path, dir: &OwnedFd) -> Result<(Option<OwnedFd>, State), Error> {
    let private = match fsx::open_dir(dir, PRIVATE) {
        Ok(private) => Some(private),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io("open the directory", path.join(PRIVATE))(error)),
    };
    match private.as_ref().map(State::load).transpose() {
        Ok(Some(Loaded::Known(state))) => Ok((private, state)),
        Ok(_) => Ok((private, State::default())),
        Err(error) => Err(Error::io("read", path.join(PRIVATE).join(STATE))(error)),
    }
}

/// The directories in `home` whose names are generations', as `parse` reads them.
fn generation_names(dir: &OwnedFd, home: &Path, parse: fn(&str) -> Option<Name>) -> Result<Vec<Name>, Error> {
    let mut names = Vec::new();
    for entry in fsx::list(dir).map_err(Error::io("list", home))? {
        let Some(name) = entry.os().to_str().and_then(parse) else { continue };
        let stat = fsx::stat(dir, entry.os()).map_err(Error::io("stat", home.join(entry.os())))?;
        if stat.is_some_and(|stat| fsx::file_type(&stat).is_dir()) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns the record of the generation in this directory of a root, if it has one that can be read.
pub fn recorded(generation: &Path) -> Option<GenerationRecord> {
    let name = Name::parse(generation.file_name()?.to_str()?)?;
    let above = generation.parent()?;
    // In git-sync's layout the generations are one level deeper.
    let root = if above.file_name()? == WORKTREES { above.parent()? } else { above };
    let private = fsx::open_dir(&fsx::open_dir_at_path(root).ok()?, PRIVATE).ok()?;
    match State::load(&private).ok()? {
        Loaded::Known(state) => state.record(&name).cloned(),
        _ => None,
    }
}

/// Reads the status record, if possible.
pub(super) fn read_status(private: impl AsFd) -> Option<Status> {
    let text = fsx::read_file(private, STATUS, STATUS_LIMIT).ok()??;
    serde_json::from_slice(&text).ok()
}

/// Returns the generation that the published link names, and what is wrong with the link, if anything. The target is
/// only compared as text: the root may be mounted at another path here.
fn current_of(link: &Link, at: &Path, names: &[Name]) -> (Option<Name>, Option<String>) {
    let shown = at.file_name().unwrap_or(at.as_os_str()).display();
    let target = match link {
        Link::Absent => return (None, Some(format!("there is no {shown}"))),
        Link::Other(_) => return (None, Some(format!("{shown} is not a symbolic link"))),
        Link::To(target) => Path::new(target),
    };
    let named = target.file_name().and_then(|name| Name::parse(name.to_str()?));
    let is_target_of = |name: &Name| match name.commit() {
        Some(_) => target.ends_with(name.relative_path()),
        None => target == name.relative_path(),
    };
    match named.filter(is_target_of) {
        Some(name) if names.contains(&name) => (Some(name), None),
        Some(name) => (None, Some(format!("{shown} names {name}, which is not there"))),
        None => (None, Some(format!("{shown} names {target:?}, which is not a generation"))),
    }
}
