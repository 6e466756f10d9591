//! The link: where it is, what it names, and how its target is written.
//!
//! In our own layout it is `..data` in the root, and names a directory beside it. In git-sync's it has any name, may be
//! anywhere, and its target is the way from its own directory to `.worktrees/<commit>`, so that it holds wherever the
//! volume is mounted.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use crate::fsx::{self, Link};
use crate::generation::{LINK, Name, WORKTREES};
use crate::store::error::Error;
use crate::store::names::PRIVATE;

/// Mode of the directories on the way to the link, less the umask, as git-sync makes them.
const PARENT_MODE: u32 = 0o775;

/// The link, published or not yet.
#[derive(Debug)]
pub(crate) struct Swapped {
    /// The directory it is in.
    pub(crate) dir: OwnedFd,
    /// That directory's path, resolved.
    at: PathBuf,
    /// Its name there.
    pub(crate) name: OsString,
    /// Where the next link is made: beside it, because a rename does not cross file systems. Only the writer of this
    /// link uses the name, so that two links in one directory cannot get into each other's way.
    pub(crate) tmp: OsString,
    /// The way from its directory to where the generations are.
    way: PathBuf,
    /// Where they are, resolved.
    home: PathBuf,
    /// Whether names are commits.
    commits: bool,
}

impl Swapped {
    /// Our own layout's, in an open root.
    pub(crate) fn of_root(path: &Path, root: &OwnedFd) -> std::io::Result<Self> {
        Ok(Self {
            dir: fsx::open_dir(root, ".")?,
            at: path.to_owned(),
            name: LINK.into(),
            tmp: temporary(LINK.as_ref()),
            way: PathBuf::new(),
            home: path.to_owned(),
            commits: false,
        })
    }

    /// git-sync's, for the root at `root`. Makes the directories on the way to it; refuses a link where it would be
    /// taken for ours or git's.
    pub(crate) fn of_git_sync(root: &Path, link: &Path) -> Result<Self, Error> {
        let refused = |why: &str| Error::BadLink { path: link.to_owned(), why: why.to_owned() };
        let cleaned = clean(link);
        let (Some(parent), Some(name)) = (cleaned.parent(), cleaned.file_name()) else {
            return Err(refused("it names no file"));
        };
        if !cleaned.is_absolute() {
            return Err(refused("it is not absolute"));
        }
        let reserved = |path: &Path| {
            [".git", WORKTREES, PRIVATE].iter().find(|inner| path.starts_with(root.join(inner))).copied()
        };
        if let Some(inner) = reserved(&cleaned) {
            return Err(refused(&format!("it is inside {inner}")));
        }
        fs_err::metadata(parent)
            .map(drop)
            .or_else(|_| std::fs::DirBuilder::new().recursive(true).mode(PARENT_MODE).create(parent))
            .map_err(Error::io("make the directory", parent))?;
        let at = fs_err::canonicalize(parent).map_err(Error::io("resolve the directory", parent))?;
        if let Some(inner) = reserved(&at.join(name)) {
            return Err(refused(&format!("it is inside {inner}")));
        }
        let dir = fsx::open_dir_at_path(&at).map_err(Error::io("open the directory", &at))?;
        let home = root.join(WORKTREES);
        let (name, tmp) = (name.to_owned(), temporary(name));
        Ok(Self { dir, way: way(&at, &home), at, name, tmp, home, commits: true })
    }

    /// Its path.
    pub(crate) fn path(&self) -> PathBuf {
        self.at.join(&self.name)
    }

    /// The path of its directory.
    pub(crate) fn dir_path(&self) -> &Path {
        &self.at
    }

    /// As it is kept on record: relative to the root where it is in it, so that it holds wherever that is mounted.
    pub(crate) fn recorded(&self, root: &Path) -> String {
        let path = self.path();
        path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned()
    }

    /// Its name, for people.
    pub(crate) fn shown(&self) -> std::path::Display<'_> {
        Path::new(&self.name).display()
    }

    /// What stands under its name.
    pub(crate) fn read(&self) -> Result<Link, Error> {
        fsx::read_link(&self.dir, self.name.as_os_str()).map_err(Error::io("read the link", self.path()))
    }

    /// The target that names a generation.
    pub(crate) fn target(&self, name: &Name) -> PathBuf {
        self.way.join(name.as_str())
    }

    /// The generation that a target names, whether or not it is there. Another writer of this layout may have written
    /// the same way in other words.
    pub(crate) fn named_by(&self, target: &OsStr) -> Option<Name> {
        let target = Path::new(target);
        let parent = target.parent()?;
        let name = self.name_of(target.file_name()?)?;
        let same = parent == self.way
            || self.commits && fs_err::canonicalize(self.at.join(parent)).is_ok_and(|at| at == self.home);
        same.then_some(name)
    }

    /// Reads a directory's name, if this layout has generations of its form.
    pub(crate) fn name_of(&self, text: &OsStr) -> Option<Name> {
        let text = text.to_str()?;
        if self.commits { Name::committed(text) } else { Name::dated(text) }
    }

    /// Makes a link with this target beside it, under its temporary name.
    pub(crate) fn make_tmp(&self, name: &Name) -> Result<(), Error> {
        rustix::fs::symlinkat(self.target(name), &self.dir, self.tmp.as_os_str())
            .map_err(Error::io("make the link", self.at.join(&self.tmp)))
    }

    /// Renames the temporary one over it.
    pub(crate) fn swap_tmp(&self) -> Result<(), Error> {
        rustix::fs::renameat(&self.dir, self.tmp.as_os_str(), &self.dir, self.name.as_os_str())
            .map_err(Error::io("swap", self.path()))
    }
}

/// `..data_tmp` for `..data`, the kubelet's name for it, which watchers know.
pub(crate) fn temporary(name: &OsStr) -> OsString {
    let mut tmp = OsString::new();
    if !name.as_encoded_bytes().starts_with(b"..") {
        tmp.push("..");
    }
    tmp.push(name);
    tmp.push("_tmp");
    tmp
}

/// The path with `.` and `..` taken out of it, as text: what `--root` and `--link` mean to git-sync.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                cleaned.pop();
            }
            part => cleaned.push(part),
        }
    }
    cleaned
}

/// The way from one directory to another, both resolved.
fn way(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_goes_up_as_far_as_it_must() {
        let way = |from: &str| way(Path::new(from), Path::new("/r/git/.worktrees"));
        assert_eq!(way("/r/git"), Path::new(".worktrees"));
        assert_eq!(way("/r/git/a/b"), Path::new("../../.worktrees"));
        assert_eq!(way("/else/where"), Path::new("../../r/git/.worktrees"));
        assert_eq!(way("/"), Path::new("r/git/.worktrees"));
    }

    #[test]
    fn paths_are_cleaned_as_text() {
        let cleaned = |path: &str| clean(Path::new(path));
        assert_eq!(cleaned("/a/./b/../../c//d/"), Path::new("/c/d"));
        assert_eq!(cleaned("/../../a"), Path::new("/a"));
    }
}
