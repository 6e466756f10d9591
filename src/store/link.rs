//! The published link: its path, its target, and the rename that swaps it.
//!
//! In the kubelet's layout it is `..data` in the root and names a directory in the root. In git-sync's layout it has
//! any name and may be outside the root; its target is the relative path from the link's directory to
//! `.worktrees/<commit>`, so that it stays valid at any mount point of the volume.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use crate::fsx::{self, Link};
use crate::generation::{DATA_LINK, Name, WORKTREES};
use crate::store::error::Error;
use crate::store::names::PRIVATE;
use crate::store::nested::check_nested_entry;

/// Mode of the link's parent directories before the umask, as git-sync creates them.
const PARENT_MODE: u32 = 0o775;

/// Checks that a link of git-sync's layout is not inside a directory that belongs to treeswap or git. Compares text.
pub fn check_link(root: &Path, link: &Path) -> Result<(), String> {
    let reserved = [".git", WORKTREES, PRIVATE];
    let inside = reserved.into_iter().find(|inner| link.starts_with(root.join(inner)));
    inside.map_or(Ok(()), |inner| Err(format!("it is inside {inner}")))
}

/// The symlink that names the current generation, whether or not it exists yet.
#[derive(Debug)]
pub(crate) struct PublishedLink {
    /// The directory that contains the link.
    pub(crate) dir: OwnedFd,
    /// The resolved path of that directory.
    at: PathBuf,
    /// The link's name in that directory.
    pub(crate) name: OsString,
    /// The temporary name of the next link, in the same directory because a rename does not cross file systems. It is
    /// derived from the link's name, so that two links in one directory do not share it.
    pub(crate) tmp: OsString,
    /// The relative path from the link's directory to the directory that holds the generations.
    to_generations: PathBuf,
    /// The resolved path of the directory that holds the generations.
    generations_dir: PathBuf,
    /// True if generations are named by commits (git-sync's layout).
    names_are_commits: bool,
}

impl PublishedLink {
    /// The link of the kubelet's layout, in an open root.
    pub(crate) fn of_root(path: &Path, root: &OwnedFd) -> std::io::Result<Self> {
        Ok(Self {
            dir: fsx::open_dir(root, ".")?,
            at: path.to_owned(),
            name: DATA_LINK.into(),
            tmp: temporary(DATA_LINK.as_ref()),
            to_generations: PathBuf::new(),
            generations_dir: path.to_owned(),
            names_are_commits: false,
        })
    }

    /// The link of git-sync's layout, for the root at `root`. Creates the link's parent directories. Refuses a link
    /// inside a directory that belongs to treeswap or git, in this root or in another one.
    pub(crate) fn of_git_sync(root: &Path, link: &Path) -> Result<Self, Error> {
        let refused = |why: &str| Error::BadLink { path: link.to_owned(), why: why.to_owned() };
        let cleaned = clean(link);
        let (Some(parent), Some(name)) = (cleaned.parent(), cleaned.file_name()) else {
            return Err(refused("it names no file"));
        };
        if !cleaned.is_absolute() {
            return Err(refused("it is not absolute"));
        }
        check_link(root, &cleaned).map_err(|why| refused(&why))?;
        check_nested_entry(root, &cleaned).map_err(|why| refused(&why))?;
        fs_err::metadata(parent)
            .map(drop)
            .or_else(|_| std::fs::DirBuilder::new().recursive(true).mode(PARENT_MODE).create(parent))
            .map_err(Error::io("make the directory", parent))?;
        let at = fs_err::canonicalize(parent).map_err(Error::io("resolve the directory", parent))?;
        check_link(root, &at.join(name)).map_err(|why| refused(&why))?;
        let dir = fsx::open_dir_at_path(&at).map_err(Error::io("open the directory", &at))?;
        let generations_dir = root.join(WORKTREES);
        let tmp = temporary(name);
        let name = name.to_owned();
        Ok(Self {
            dir,
            to_generations: relative_path(&at, &generations_dir),
            at,
            name,
            tmp,
            generations_dir,
            names_are_commits: true,
        })
    }

    /// The link's path.
    pub(crate) fn path(&self) -> PathBuf {
        self.at.join(&self.name)
    }

    /// The path of the link's directory.
    pub(crate) fn dir_path(&self) -> &Path {
        &self.at
    }

    /// The path of the directory that holds the generations.
    pub(crate) fn generations_path(&self) -> &Path {
        &self.generations_dir
    }

    /// The link's path for the state file: relative if it is inside the root, so that it stays valid at another mount
    /// point.
    pub(crate) fn recorded(&self, root: &Path) -> String {
        let path = self.path();
        path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned()
    }

    /// The link's name, for messages.
    pub(crate) fn shown(&self) -> std::path::Display<'_> {
        Path::new(&self.name).display()
    }

    /// Reads the link.
    pub(crate) fn read(&self) -> Result<Link, Error> {
        fsx::read_link(&self.dir, self.name.as_os_str()).map_err(Error::io("read the link", self.path()))
    }

    /// The link target for a generation.
    pub(crate) fn target(&self, name: &Name) -> PathBuf {
        self.to_generations.join(name.as_str())
    }

    /// Returns the generation that a link target names, whether or not it exists. Another writer of git-sync's layout
    /// may have written an equivalent path, for example an absolute one.
    pub(crate) fn generation_in(&self, target: &OsStr) -> Option<Name> {
        let target = Path::new(target);
        let parent = target.parent()?;
        let name = self.name_of(target.file_name()?)?;
        let is_in_place = parent == self.to_generations
            || self.names_are_commits
                && fs_err::canonicalize(self.at.join(parent)).is_ok_and(|at| at == self.generations_dir);
        is_in_place.then_some(name)
    }

    /// Parses a directory's name as a generation's name of this layout.
    pub(crate) fn name_of(&self, text: &OsStr) -> Option<Name> {
        let text = text.to_str()?;
        if self.names_are_commits { Name::parse_commit(text) } else { Name::parse_timestamp(text) }
    }

    /// Creates a link to this generation under the temporary name.
    pub(crate) fn make_tmp(&self, name: &Name) -> Result<(), Error> {
        rustix::fs::symlinkat(self.target(name), &self.dir, self.tmp.as_os_str())
            .map_err(Error::io("make the link", self.at.join(&self.tmp)))
    }

    /// Renames the temporary link over the published one: the swap.
    pub(crate) fn swap_tmp(&self) -> Result<(), Error> {
        rustix::fs::renameat(&self.dir, self.tmp.as_os_str(), &self.dir, self.name.as_os_str())
            .map_err(Error::io("swap", self.path()))
    }
}

/// The temporary name for a link: `..data_tmp` for `..data`, which is the kubelet's name for it and known to watchers.
pub(crate) fn temporary(name: &OsStr) -> OsString {
    let mut tmp = OsString::new();
    if !name.as_encoded_bytes().starts_with(b"..") {
        tmp.push("..");
    }
    tmp.push(name);
    tmp.push("_tmp");
    tmp
}

/// Removes `.` and `..` from a path lexically, as git-sync does for `--root` and `--link`.
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

/// The relative path from one directory to another; both must be resolved.
fn relative_path(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_goes_up_as_far_as_it_must() {
        let way = |from: &str| relative_path(Path::new(from), Path::new("/r/git/.worktrees"));
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
