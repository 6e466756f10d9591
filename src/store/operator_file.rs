//! Files that the operator asks for in addition to what is published (touch file, error file, termination log), and the
//! check of where they may be.
//!
//! Authors of commits choose names. In the kubelet's layout every name in the root that does not start with `..` may
//! become a root link into the published generation; in git-sync's layout the published link is one. Through a path
//! with such a name, a commit could choose which file is opened. Such paths are refused by their text when the
//! configuration is read ([`check_place`]). The mirror, the termination log and files that are only read, such as keys,
//! are then refused by what they resolve to, too ([`check_resolved`]); of an [`OperatorFile`] that is only warned about
//! ([`OperatorFile::check_now`]), because nothing that is published depends on it. An [`OperatorFile`] and the
//! termination log, which are written, are also checked by what they resolve to at every use.
//!
//! No symlink is followed in the last component or in a resolved path. An [`OperatorFile`]'s old content is replaced,
//! not overwritten in place. Only regular files are removed, and opening never blocks on a named pipe.
//! [`OperatorFile::sweep`] removes the temporary file that a killed process leaves.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::fsx::{self, Inode};
use crate::generation::{DATA_LINK, Name, WORKTREES};
use crate::store::Layout;
use crate::store::link::{clean, temporary};
use crate::store::mounts;
use crate::store::names::{LINK_TMP, PRIVATE};
use crate::store::nested::{check_in_no_root, check_nested_entry, resolve_existing};

/// Checks lexically, without file system access, whether an operator's file may be at an absolute path.
///
/// # Errors
/// The reason, in words that follow the path.
pub fn check_place(root: &Path, layout: &Layout, path: &Path) -> Result<(), String> {
    let root = clean(root);
    let path = clean(path);
    if let Layout::GitSync { link } = layout {
        check_link(link, &path)?;
    }
    path.strip_prefix(root).map_or(Ok(()), |below| check_in_root(layout, below))
}

/// Refuses a path that is the published link, a parent of it, or goes through it.
fn check_link(link: &Path, path: &Path) -> Result<(), String> {
    let tmp = link.file_name().map(|name| link.with_file_name(temporary(name)));
    if path.starts_with(link) || link.starts_with(path) || tmp.is_some_and(|tmp| path.starts_with(tmp)) {
        return Err(format!("it is the published link {}, one of its parents, or below it", link.display()));
    }
    Ok(())
}

/// Checks a path that is relative to the root.
fn check_in_root(layout: &Layout, below: &Path) -> Result<(), String> {
    let Some(first) = below.components().next().map(|first| first.as_os_str().to_string_lossy()) else {
        return Err("it is the root itself".to_owned());
    };
    let ours = match layout {
        Layout::Kubelet if !first.starts_with("..") => {
            return Err(format!(
                "the repository may have a {first:?} of its own, which is a link in the root then"
            ));
        }
        Layout::Kubelet => {
            [DATA_LINK, LINK_TMP, PRIVATE].contains(&&*first) || Name::parse_timestamp(&first).is_some()
        }
        Layout::GitSync { .. } => [".git", WORKTREES, PRIVATE].contains(&&*first),
    };
    if ours { Err(format!("{first:?} in the root is treeswap's own")) } else { Ok(()) }
}

/// Returns true if a name in the root is one of the operator's `names`, or a temporary name of such a file.
pub(super) fn is_operator_name(names: &BTreeSet<OsString>, name: &OsStr) -> bool {
    names.contains(name) || names.iter().any(|file| is_temporary_of(file, name))
}

/// The prefix of a file's temporary names. It starts with `..`, so that no commit can have such a top-level name.
fn temporary_prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from("..");
    prefix.push(name);
    prefix.push(".");
    prefix
}

fn is_temporary_of(file: &OsStr, name: &OsStr) -> bool {
    let bits = name.as_encoded_bytes().strip_prefix(temporary_prefix(file).as_encoded_bytes());
    bits.is_some_and(|bits| bits.len() == 16 && bits.iter().all(u8::is_ascii_hexdigit))
}

/// Checks a directory or file by what its path resolves to now: a symlink or another mount may lead into the root, and
/// a symlink in the root out of it again. `made_for` are top-level names in the root that are allowed.
///
/// # Errors
/// Of the kind `Other`, which no system call's error has, if it may not be there: the reason, in words that follow the
/// path. Of another kind if that cannot be found out.
pub fn check_resolved(root: &Path, path: &Path, layout: &Layout, made_for: &[&str]) -> io::Result<()> {
    let check = |below: &Path| {
        let first = below.components().next().map(|first| first.as_os_str());
        if first.is_some_and(|first| made_for.iter().any(|name| first == *name)) {
            return Ok(());
        }
        check_in_root(layout, below).map_err(io::Error::other)
    };
    let resolved_root = resolve(root)?;
    let link = match layout {
        Layout::Kubelet => None,
        Layout::GitSync { link } => link.parent().map(resolve).transpose()?.zip(link.file_name()),
    };
    let link = link.map(|(dir, name)| dir.join(name));
    each_lookup(path, |at| {
        if link.as_ref().is_some_and(|link| at.starts_with(link)) {
            return Err(io::Error::other("it leads through the published link"));
        }
        let below = at.strip_prefix(&resolved_root).ok().filter(|below| *below != Path::new(""));
        below.map_or(Ok(()), check)
    })?;
    path_in_root(root, path)?.map_or(Ok(()), |below| check(&below))
}

/// Resolves the existing part of a path.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let resolved = resolve_existing(path)?;
    Ok(resolved.map_or_else(|| path.to_owned(), |(there, missing)| there.join(missing)))
}

/// As many symbolic links as Linux follows in one path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Calls `visit` with the place of each name that the kernel looks up on the way to an absolute path: no component of
/// the place before the last is a symbolic link. The target of a link is looked up even if nothing is there.
fn each_lookup(path: &Path, mut visit: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|name| name.as_os_str().to_owned()).collect()
    };
    let (mut at, mut left, mut links) = (PathBuf::from("/"), names(path), 0);
    while let Some(name) = left.pop() {
        match name.as_encoded_bytes() {
            b"/" => at = PathBuf::from("/"),
            b"." => {}
            b".." => drop(at.pop()),
            _ => {
                let next = at.join(name);
                visit(&next)?;
                match std::fs::read_link(&next) {
                    Ok(_) if links == LINKS_MAX => return Err(Errno::LOOP.into()),
                    Ok(target) => {
                        left.extend(names(&target));
                        links += 1;
                    }
                    Err(_) => at = next, // no link, or nothing that can be looked at
                }
            }
        }
    }
    Ok(())
}

/// Checks whether the file for [`open_outside`] may be at an absolute path.
///
/// # Errors
/// As [`check_resolved`].
pub fn check_outside(root: &Path, path: &Path) -> io::Result<()> {
    let by_text = clean(path).starts_with(clean(root));
    if by_text || path_in_root(root, path)?.is_some() {
        Err(io::Error::other("it is in the root, where it is never written"))
    } else {
        Ok(())
    }
}

/// Opens and truncates an existing regular file outside the root, for the termination log. A file with other hard
/// links is refused, because one of them might be in the root.
///
/// # Errors
/// If it does not exist, is not a regular file with one name, is in the root by any path, or is where the writer of
/// another root keeps something. That is checked here again: the configuration may have been refused for this path.
pub fn open_outside(root: &Path, path: &Path) -> io::Result<File> {
    let path = clean(path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    let parent = std::fs::canonicalize(parent)?;
    if path_in_root(root, &parent)?.is_some() {
        return Err(io::Error::other("it is in the root"));
    }
    check_in_no_root(&parent.join(name)).map_err(io::Error::other)?;
    let dir = open_resolved(&parent)?;
    // O_NONBLOCK: opening a named pipe must not block.
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(&dir, name, flags, Mode::empty())?);
    let stat = rustix::fs::fstat(&file)?;
    if !fsx::file_type(&stat).is_file() || stat.st_nlink > 1 {
        return Err(io::Error::other("it is not a regular file of one name"));
    }
    file.set_len(0)?;
    Ok(file)
}

/// Resolves the existing part of a path and returns the path relative to the root. `None` if it is not in the root.
fn path_in_root(root: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let given = root;
    let root = match rustix::fs::stat(root) {
        Err(Errno::NOENT) => return Ok(None), // no path can go through a root that does not exist
        root => Inode::of(&root?),
    };
    let Some((resolved, missing)) = resolve_existing(path)? else { return Ok(None) };
    let is_root = |path: &&Path| fsx::identity_at(path).is_ok_and(|found| found == Some(root));
    let by_path =
        resolved.ancestors().find(is_root).map(|root| resolved.strip_prefix(root).unwrap_or(&resolved));
    Ok(by_path
        .map(|below| below.join(missing))
        .or_else(|| Some(mounts::below(given, &resolved)?.join(missing))))
}

/// Opens a directory by a resolved path, following no symlink.
fn open_resolved(resolved: &Path) -> io::Result<OwnedFd> {
    let slash = fsx::open_dir_at_path(Path::new("/"))?;
    let below = resolved.strip_prefix("/").unwrap_or(resolved);
    let below = if below == Path::new("") { Path::new(".") } else { below };
    fsx::open_beneath(&slash, below)
}

/// Returns true if a symbolic link leads to a regular file or to nothing. Links into `/proc`, such as `/dev/stdout`, lead
/// to what this process has open, which is a file only by chance; so may links to such links.
fn is_link_to_file(dir: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
    if target.as_bytes().starts_with(b"/proc/") {
        return Ok(false);
    }
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Ok(stat) => Ok(fsx::file_type(&stat).is_file() && !is_output(Inode::of(&stat))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if this process's standard output or standard error is that file.
fn is_output(file: Inode) -> bool {
    let stats = [rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())];
    stats.into_iter().flatten().any(|stat| Inode::of(&stat) == file)
}

fn left_alone() -> io::Error {
    io::Error::other("it is not a regular file, and is left alone")
}

/// A file that the operator asked for. Clones refer to the same file.
#[derive(Clone, Debug)]
pub struct OperatorFile {
    root: PathBuf,
    layout: Layout,
    path: PathBuf,
    name: OsString,
}

impl OperatorFile {
    /// The file at `path`, which is absolute or relative to the root. Only the text is checked.
    ///
    /// # Errors
    /// Why the file may not be there, in words that follow the path.
    pub fn new(root: &Path, layout: &Layout, path: &Path) -> Result<Self, String> {
        let path = clean(&root.join(path));
        check_place(root, layout, &path)?;
        let name = path.file_name().ok_or("it names no file")?.to_owned();
        Ok(Self { root: root.to_owned(), layout: layout.clone(), path, name })
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks what the path resolves to now: a symbolic link on the way may lead into a generation. Every use checks
    /// that as well, and reports what cannot be found out here.
    ///
    /// # Errors
    /// Why the file may not be there, in words that follow the path.
    pub fn check_now(&self) -> Result<(), String> {
        match self.resolve() {
            // Our own errors have this kind, those of system calls never.
            Err(error) if error.kind() == io::ErrorKind::Other => {
                Err(format!("by what it resolves to, {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Creates the file, or sets its times to now. Missing directories are created.
    ///
    /// # Errors
    /// If that fails, or the path is not a regular file.
    pub fn touch(&self) -> io::Result<()> {
        let Some(dir) = self.directory(true)? else { return Err(Errno::NOENT.into()) };
        // O_NONBLOCK: opening a named pipe must not block.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
        let file = self.open(&dir, &self.name, flags)?;
        if !file.metadata()?.is_file() {
            return Err(left_alone());
        }
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: now })?)
    }

    /// Replaces the file with one rename: a reader sees the old text or the new one. Its mode is 0644 whatever the
    /// umask, as in git-sync. Missing directories are created. A symbolic link is replaced, not followed.
    ///
    /// # Errors
    /// If that fails, or the path is something else, such as `/dev/null`, or a link to something else, such as
    /// `/dev/stdout`. What is there is unchanged then.
    pub fn write(&self, text: &[u8]) -> io::Result<()> {
        let Some(dir) = self.directory(true)? else { return Err(Errno::NOENT.into()) };
        let may_replace = match fsx::stat(&dir, &self.name)?.map(|stat| fsx::file_type(&stat)) {
            Some(kind) if kind.is_symlink() => is_link_to_file(&dir, &self.name)?,
            kind => kind.is_none_or(|kind| kind.is_file()),
        };
        if !may_replace {
            return Err(left_alone());
        }
        let (tmp, mut file) = loop {
            let tmp = self.temporary();
            match self.open(&dir, &tmp, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => break (tmp, opened?),
            }
        };
        let written = file.write_all(text).and_then(|()| fsx::set_mode(&file, 0o644));
        let renamed = written.and_then(|()| Ok(rustix::fs::renameat(&dir, &tmp, &dir, &self.name)?));
        renamed.inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&dir, &tmp, AtFlags::empty()); // the first error is the one to report
        })
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// If that fails, or the path is not a regular file, which is left alone.
    pub fn remove(&self) -> io::Result<()> {
        let Some(dir) = self.directory(false)? else { return Ok(()) };
        match fsx::stat(&dir, &self.name)? {
            Some(stat) if fsx::file_type(&stat).is_file() => fsx::unlink(&dir, &self.name),
            Some(_) => Err(left_alone()),
            None => Ok(()),
        }
    }

    /// Removes temporary files that a killed process left while replacing the file.
    ///
    /// # Errors
    /// If that fails.
    pub fn sweep(&self) -> io::Result<()> {
        let Some(dir) = self.directory(false)? else { return Ok(()) };
        for entry in fsx::list(&dir)? {
            let stale = fsx::stat(&dir, entry.os())?.filter(|_| is_temporary_of(&self.name, entry.os()));
            if stale.is_some_and(|stat| fsx::file_type(&stat).is_file()) {
                fsx::unlink(&dir, entry.os())?;
            }
        }
        Ok(())
    }

    /// Returns a temporary name that cannot be guessed. Others could block a predictable name.
    fn temporary(&self) -> OsString {
        // Each RandomState has a key of its own, seeded by the kernel once per thread.
        let bits = std::hash::RandomState::new().build_hasher().finish();
        let mut name = temporary_prefix(&self.name);
        name.push(format!("{bits:016x}"));
        name
    }

    fn open(&self, dir: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let mode = Mode::from_raw_mode(0o666); // before the umask
        match rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode) {
            Err(Errno::LOOP) => Err(io::Error::other("it is a symbolic link, which is not followed")),
            opened => Ok(opened?.into()),
        }
    }

    /// Resolves the file's directory: its existing part, and the rest below that. Refuses what may not be there.
    fn resolve(&self) -> io::Result<(PathBuf, &Path)> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let Some((resolved, missing)) = resolve_existing(parent)? else { return Err(Errno::NOENT.into()) };
        self.check(&resolved, &missing.join(&self.name))?;
        Ok((resolved, missing))
    }

    /// Opens the file's directory. Missing directories are created if `make` is set; otherwise the result is `None`.
    fn directory(&self, make: bool) -> io::Result<Option<OwnedFd>> {
        let (resolved, missing) = self.resolve()?;
        if !make && missing != Path::new("") {
            return Ok(None);
        }
        let mut dir = open_resolved(&resolved)?;
        for name in missing {
            match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
                Err(Errno::EXIST) => {}
                made => made?,
            }
            dir = fsx::open_dir(&dir, name)?;
        }
        Ok(Some(dir))
    }

    /// Checks the file by what its path resolves to: an existing directory and the rest of the path below it.
    fn check(&self, resolved: &Path, rest: &Path) -> io::Result<()> {
        if let Layout::GitSync { link } = &self.layout {
            // The link and the file may be configured with different paths to the same directory.
            let parent = link.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
            if let (Some(parent), Some(name)) = (parent, link.file_name()) {
                check_link(&parent.join(name), &resolved.join(rest)).map_err(io::Error::other)?;
            }
        }
        let file = resolved.join(rest);
        check_nested_entry(&self.root, &file).map_err(io::Error::other)?;
        match path_in_root(&self.root, &file)? {
            Some(below) => check_in_root(&self.layout, &below).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
