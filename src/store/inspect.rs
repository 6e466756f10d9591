//! A look at a root from outside: without the lock, without changing anything, also as another user and through a
//! read-only mount. What `treeswap status` shows.

use std::path::{Path, PathBuf};

use crate::fsx::{self, Link};
use crate::generation::{Name, Record};
use crate::phase::Status;
use crate::store::error::Error;
use crate::store::layout::{LINK, PRIVATE, STATE, STATUS};
use crate::store::reap::is_pinned;
use crate::store::state::{Loaded, State};

/// Bytes of a status record that are read at most.
const STATUS_LIMIT: u64 = 4 << 20;

/// What a look at a root found.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The root, resolved.
    pub root: PathBuf,
    /// The generation that the link names, if it is there.
    pub current: Option<Name>,
    /// What is wrong with the link, if anything: missing, dangling, no link of ours.
    pub link_problem: Option<String>,
    /// Every generation in the root, newest first.
    pub generations: Vec<Inspected>,
    /// The last status record that a running sync wrote, if it can be read.
    pub status: Option<Status>,
}

/// One generation in the root.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// Its directory.
    pub name: Name,
    /// What is on record about it; none where the state file does not know it, or cannot be read.
    pub record: Option<Record>,
    /// Whether the link names it.
    pub current: bool,
    /// Whether somebody holds a pin on it right now.
    pub pinned: bool,
}

/// Looks at a root.
pub fn inspect(root: &Path) -> Result<Inspection, Error> {
    let path = fs_err::canonicalize(root).map_err(Error::io("resolve the root", root))?;
    let dir = fsx::open_dir_at_path(&path).map_err(Error::io("open", &path))?;
    let private = match fsx::open_dir(&dir, PRIVATE) {
        Ok(private) => Some(private),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io("open the directory", path.join(PRIVATE))(error)),
    };
    let link = fsx::read_link(&dir, LINK).map_err(Error::io("read the link", path.join(LINK)))?;
    if private.is_none() && link == Link::Absent {
        return Err(Error::NoRoot { path });
    }
    let state = match private.as_ref().map(State::load_from).transpose() {
        Ok(Some(Loaded::Known(state))) => state,
        Ok(_) => State::default(),
        Err(error) => return Err(Error::io("read", path.join(PRIVATE).join(STATE))(error)),
    };
    let status = private.and_then(|private| {
        let text = fsx::read_file(private, STATUS, STATUS_LIMIT).ok()??;
        serde_json::from_slice(&text).ok()
    });
    let mut names: Vec<Name> = Vec::new();
    for entry in fsx::list(&dir).map_err(Error::io("list", &path))? {
        let Some(name) = entry.os().to_str().and_then(Name::parse) else { continue };
        let stat = fsx::stat(&dir, entry.os()).map_err(Error::io("look at", path.join(entry.os())))?;
        if stat.is_some_and(|stat| fsx::file_type(&stat).is_dir()) {
            names.push(name);
        }
    }
    names.sort_by(|a, b| b.cmp(a));
    let (current, link_problem) = judge(&link, &names);
    let generations = names
        .into_iter()
        .map(|name| Inspected {
            current: current.as_ref() == Some(&name),
            pinned: is_pinned(&dir, &name),
            record: state.record(&name).cloned(),
            name,
        })
        .collect();
    Ok(Inspection { root: path, current, link_problem, generations, status })
}

fn judge(link: &Link, names: &[Name]) -> (Option<Name>, Option<String>) {
    let target = match link {
        Link::Absent => return (None, Some(format!("there is no {LINK}"))),
        Link::Other(_) => return (None, Some(format!("{LINK} is not a symbolic link"))),
        Link::To(target) => target,
    };
    match target.to_str().and_then(Name::parse) {
        Some(name) if names.contains(&name) => (Some(name), None),
        Some(name) => (None, Some(format!("{LINK} names {name}, which is not there"))),
        None => (None, Some(format!("{LINK} names {target:?}, which is no generation"))),
    }
}
