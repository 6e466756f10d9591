//! Refuses paths in what another writer keeps in its root: in its generations, which nobody may change, and in its
//! private directory. What is made there would be removed with the generation, or with what is left over.
//!
//! Only these directories are refused. Roots may lie side by side, or in a directory of another root that is none of
//! its writer's, as git-sync's layout leaves it alone.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::fsx;
use crate::generation::{DATA_LINK, Name, WORKTREES};
use crate::store::names::{LINK_TMP, PRIVATE};

/// Checks by what a path resolves to that no writer but that of the root `own` keeps what is there. What cannot be
/// found out is left to the use of the path, which reports it.
///
/// # Errors
/// Why the path cannot be used, in words that follow it.
pub fn check_nested(own: &Path, path: &Path) -> Result<(), String> {
    other_root_around(own, path).map_or(Ok(()), |root| Err(refusal(&root)))
}

/// The same for a path whose last component is not followed: if it is a symbolic link, that is replaced or refused
/// later. So a link into an earlier root may be taken over, but not one that is in that root itself.
///
/// # Errors
/// As [`check_nested`].
pub fn check_nested_entry(own: &Path, path: &Path) -> Result<(), String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let Ok(Some((resolved, missing))) = resolve_existing(parent) else { return Ok(()) };
    let entry = resolved.join(missing).join(name);
    if let Some(root) = root_around(&entry, |at| is_other_root(own, at)) {
        return Err(refusal(root));
    }
    let target = other_root_around(own, &entry).filter(|root| entry.starts_with(root));
    target.map_or(Ok(()), |root| Err(refusal(&root)))
}

fn refusal(root: &Path) -> String {
    format!("it is in a directory of the root {} that only that root's writer may change", root.display())
}

fn other_root_around(own: &Path, path: &Path) -> Option<PathBuf> {
    let (resolved, missing) = resolve_existing(path).ok()??;
    root_around(&resolved.join(missing), |at| is_other_root(own, at)).map(Path::to_owned)
}

/// Checks an entry of a resolved directory for a file that no root may hold where its writer keeps something, the
/// process's own root included.
///
/// # Errors
/// As [`check_nested`].
pub(super) fn check_in_no_root(entry: &Path) -> Result<(), String> {
    root_around(entry, is_root).map_or(Ok(()), |root| Err(refusal(root)))
}

fn is_root(at: &Path) -> bool {
    at.join(PRIVATE).is_dir()
}

/// Returns true if there is a root at `at`, and it is not the one at `own`, which may not exist yet.
fn is_other_root(own: &Path, at: &Path) -> bool {
    let identity = |path| fsx::identity_at(path).ok().flatten();
    is_root(at) && identity(at).is_some_and(|root| identity(own) != Some(root))
}

/// Returns the root, of the directories above a resolved path that `is_root` accepts, whose generations or private
/// directory hold the path.
fn root_around(path: &Path, is_root: impl Fn(&Path) -> bool) -> Option<&Path> {
    path.ancestors().skip(1).find(|at| {
        let first = path.strip_prefix(at).ok().and_then(|below| below.components().next());
        first.is_some_and(|first| is_kept(first.as_os_str())) && is_root(at)
    })
}

/// Returns true if a name in a root is the writer's, in either layout, and may be a directory.
fn is_kept(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        [PRIVATE, DATA_LINK, LINK_TMP, WORKTREES, ".git"].contains(&name)
            || Name::parse_timestamp(name).is_some()
    })
}

/// Resolves the part of a path that exists, and returns the rest as well. `None` if no part of it exists.
pub(super) fn resolve_existing(path: &Path) -> io::Result<Option<(PathBuf, &Path)>> {
    let there = path.ancestors().find_map(|there| match std::fs::canonicalize(there) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => Some(found.map(|found| (there, found))),
    });
    let Some((there, resolved)) = there.transpose()? else { return Ok(None) };
    let missing = path.strip_prefix(there).map_err(io::Error::other)?;
    Ok(Some((resolved, missing)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_a_writer_keeps_in_a_root_is_within_it() {
        let is_root = |at: &Path| at == Path::new("/vol") || at == Path::new("/vol/other");
        for inside in [
            "/vol/..treeswap",
            "/vol/..treeswap/trash/z",
            "/vol/..2026_11_20_15_04_05.123456789/sub",
            "/vol/..data",
            "/vol/..data/not/yet",
            "/vol/..data_tmp/x",
            "/vol/.worktrees/0123/sub",
            "/vol/.git/x",
            "/vol/..treeswap/quarantine-1/other/file",
        ] {
            assert_eq!(root_around(Path::new(inside), is_root), Some(Path::new("/vol")), "{inside}");
        }
        let inner = root_around(Path::new("/vol/other/..data/x"), is_root);
        assert_eq!(inner, Some(Path::new("/vol/other")));
        for outside in
            ["/vol", "/vol/other", "/vol/sub/x", "/vol/..ready", "/else/..data/x", "/..treeswap/x", "/"]
        {
            assert_eq!(root_around(Path::new(outside), is_root), None, "{outside}");
        }
    }

    #[test]
    fn the_own_root_and_what_is_beside_another_one_are_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let [own, other, both] = ["own", "other", "both"].map(|name| dir.path().join(name));
        let generation = "..2026_11_20_15_04_05.123456789";
        for root in [&own, &other] {
            fs_err::create_dir_all(root.join(PRIVATE)).unwrap();
            fs_err::create_dir_all(root.join(generation).join("sub")).unwrap();
            symlink(generation, root.join("..data")).unwrap();
            symlink("..data/sub", root.join("sub")).unwrap();
        }
        symlink(&other, &both).unwrap();
        let check = |path: &Path| check_nested(&own, path);
        for name in
            ["..data/x", "..data", "sub/x", "sub", "..treeswap/mirror", "..2026_11_20_15_04_05.123456789/y/z"]
        {
            for root in [&other, &both] {
                let why = check(&root.join(name)).unwrap_err();
                let root = other.canonicalize().unwrap();
                assert!(why.contains(&format!("the root {} ", root.display())), "{name}: {why}");
            }
            assert_eq!(check(&own.join(name)), Ok(()), "{name}");
        }
        for name in ["", "beside", "..ready", "plain/root"] {
            assert_eq!(check(&other.join(name)), Ok(()), "{name}");
        }
        // A link in the last place is replaced, unless it is one of the other root's; one before it is followed.
        let link = dir.path().join("link");
        symlink(other.join(generation).join("sub"), &link).unwrap();
        assert!(check(&link).is_err() && check_nested_entry(&own, &link.join("x")).is_err());
        assert_eq!(check_nested_entry(&own, &link), Ok(()));
        for name in ["..data", "sub", "sub/new"] {
            assert!(check_nested_entry(&own, &both.join(name)).is_err(), "{name}");
            assert_eq!(check_nested_entry(&own, &own.join(name)), Ok(()), "{name}");
        }
        // A directory with such names that is no root, and a path that leads nowhere.
        fs_err::remove_dir(other.join(PRIVATE)).unwrap();
        assert_eq!(check(&other.join("..data/x")), Ok(()));
        assert_eq!(check(Path::new("relative/none")), Ok(()));
    }
}
