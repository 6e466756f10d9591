//! The two kinds of git repository that a mirror can be: a bare one of our own, or git-sync's `ROOT/.git`, which is not
//! bare and has linked worktrees.
//!
//! The second kind is shared: consumers run git in their worktrees, git-sync may have created the repository, and may
//! use it again later. So foreign content is kept (hooks, logs, `FETCH_HEAD`, configuration entries; other refs and the
//! objects that they need until the repository is damaged and fetched afresh), and ours is the same as git-sync's:
//! `HEAD` names the branch `git-sync`, and `origin` is the remote.
//!
//! Lock files and temporary files that a crash left are removed when the mirror is opened, because they would block git
//! forever: `*.lock` in the top of the repository, in every worktree of a generation and beside our refs, and git's
//! temporary files in `objects/pack`. It is impossible to tell whether a running process holds one. So a consumer that
//! commits at the instant at which the writer starts may have to retry.

use std::io::{self, Read as _};
use std::path::Path;

use fs_err as fs;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::descriptors::check_descriptors;
use super::error::Error;
use super::files::{BROKEN, MARK, fsync, ignore_absent, local, names, remove_matching, replace};
use super::modules;
use super::odb::to_object_id;
use crate::revision::ObjectId;

/// The branch that git-sync keeps at the published revision.
pub(super) const BRANCH: &str = "refs/heads/git-sync";

/// The prefix of worktree directories that are unfinished or being removed.
pub(super) const UNFINISHED: &str = "tmp_worktree-";

/// Names that are not moved when a broken repository is set aside: the worktrees, the submodules' own mirrors (see
/// [`set_modules_aside`]), and files that people edit.
const STAYS: [&str; 8] =
    ["HEAD", "config", "description", "hooks", "info", "modules", "worktrees", "FETCH_HEAD"];

/// The kind of a mirror's git repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RepoKind {
    /// A bare repository of our own.
    Bare,
    /// git-sync's `ROOT/.git`.
    Worktrees,
}

/// Returns true if a directory has at least one of the names that every git repository has.
pub(super) fn looks_like_git(dir: &Path) -> bool {
    ["HEAD", "objects", "refs", "config"].iter().any(|name| dir.join(name).exists())
}

/// Creates git-sync's repository, or what is missing of it.
pub(super) fn init(dir: &Path, durable: bool) -> Result<(), Error> {
    if !(is_config(&dir.join("config")) && can_open(dir)) {
        check_descriptors(dir)?;
        for name in ["objects", "refs"] {
            let path = dir.join(name);
            if path.exists() && !path.is_dir() {
                fs::remove_file(&path).map_err(local("remove the unfinished", &path))?;
            }
        }
        let config = dir.join("config");
        if config.exists() && !is_config(&config) {
            let aside = dir.join("config.broken");
            tracing::warn!(
                path = %config.display(),
                "the configuration cannot be read, or has {CONFIG_MAX} bytes or more: it is now config.broken"
            );
            fs::rename(&config, &aside).map_err(local("set aside", &config))?;
        }
        let fresh = !config.exists();
        let mut options = git2::RepositoryInitOptions::new();
        // No template, so that no hooks are copied from the host.
        options.bare(false).external_template(false).initial_head("git-sync");
        let failed = |source| Error::git(format!("make the repository {}", dir.display()), source);
        git2::Repository::init_opts(dir, &options).map_err(failed)?;
        if fresh {
            // A consumer's `git commit` must not repack concurrently; treeswap bounds the mirror's growth itself.
            configure(dir, "gc.auto", "0")?;
        }
        if durable {
            for name in ["config", "HEAD", "objects", "refs", "."] {
                fsync(&dir.join(name))?;
            }
        }
    }
    if !head_is_known(dir) {
        check_descriptors(dir)?;
        replace(&dir.join("HEAD"), format!("ref: {BRANCH}\n").as_bytes(), durable)?;
    }
    configure(dir, "core.bare", "false")
}

/// Returns true if libgit2 opens the repository. Its configuration may be damaged all the same: see [`is_config`].
pub(super) fn can_open(dir: &Path) -> bool {
    dir.join("HEAD").exists()
        && dir.join("objects").is_dir()
        && dir.join("refs").is_dir()
        && git2::Repository::open_bare(dir).is_ok()
}

/// Returns true if a file is a valid git configuration of less than [`CONFIG_MAX`] bytes. libgit2 alone does not detect
/// that: it reads a file of zeros as empty and fails only when writing it, and refuses to initialise a repository whose
/// format version is not a number.
pub(super) fn is_config(path: &Path) -> bool {
    let mut content = Vec::new();
    let read = open_no_link(path).and_then(|file| file.take(CONFIG_MAX).read_to_end(&mut content));
    // One that reaches the limit may go on behind it, where nobody has looked; `configure` refuses it, too.
    if read.is_err() || content.len() as u64 == CONFIG_MAX || content.contains(&0) {
        return false;
    }
    let config = git2::Config::open(path).and_then(|mut config| config.snapshot());
    let version = config.and_then(|config| config.get_i32("core.repositoryformatversion"));
    version.map_or_else(|error| error.code() == git2::ErrorCode::NotFound, |_| true)
}

/// Returns true if `HEAD` names our branch, another existing ref, or a commit id. Otherwise a crash left it.
fn head_is_known(dir: &Path) -> bool {
    let Ok(text) = fs::read_to_string(dir.join("HEAD")) else { return false };
    match text.trim_end().strip_prefix("ref: ") {
        Some(BRANCH) => true,
        Some(name) => git2::Repository::open_bare(dir).is_ok_and(|git| git.refname_to_id(name).is_ok()),
        None => ObjectId::from_hex(text.trim_end()).is_some(),
    }
}

/// Revisions that git-sync may have published, the likeliest first: its branch, `HEAD`, and the worktrees that are
/// named by a commit id.
pub(super) fn published(dir: &Path) -> Result<Vec<ObjectId>, Error> {
    let mut found = Vec::new();
    if let Ok(git) = git2::Repository::open_bare(dir) {
        let named = [BRANCH, "HEAD"].into_iter().filter_map(|name| git.refname_to_id(name).ok());
        found.extend(named.map(to_object_id));
    }
    found.extend(names(&dir.join("worktrees"))?.iter().filter_map(|name| ObjectId::from_hex(name)));
    Ok(found)
}

/// A configuration file has fewer bytes than this. One with more is set aside, or made anew in a mirror of our own.
const CONFIG_MAX: u64 = 1 << 20;

/// Opens a file for reading, and fails if it is a symbolic link.
fn open_no_link(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    std::fs::OpenOptions::new().read(true).custom_flags(no_link).open(path)
}

/// Sets a value in the repository's configuration, unless it is already set. Works on a copy that is fsynced and
/// renamed, because libgit2 does not fsync the file: after a power cut it might be empty or truncated, and the
/// repository could not be opened.
pub(super) fn configure(dir: &Path, key: &str, value: &str) -> Result<(), Error> {
    let path = dir.join("config");
    let temporary = dir.join("config.lock");
    let failed = |source| Error::git(format!("set {key} in {}", path.display()), source);
    let found = git2::Config::open(&path).and_then(|mut config| config.snapshot()?.get_string(key));
    if found.is_ok_and(|found| found == value) {
        return Ok(());
    }
    // The lock file may be a left-over of a crash or a planted symbolic link: it must not be written to.
    let copy = || -> io::Result<()> {
        ignore_absent(fs::remove_file(&temporary))?;
        let mut to = fs::File::create_new(temporary.as_path())?;
        let from = match open_no_link(&path) {
            // If it was not a regular file, it was removed when the mirror was opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            from => from?,
        };
        match io::copy(&mut io::Read::take(from, CONFIG_MAX), &mut to)? {
            CONFIG_MAX => Err(io::Error::other("it is larger than a configuration is")),
            _ => Ok(()),
        }
    };
    copy().map_err(local("copy", &path))?;
    git2::Config::open(&temporary).and_then(|mut config| config.set_str(key, value)).map_err(failed)?;
    fsync(&temporary)?;
    fs::rename(&temporary, &path).map_err(local("replace", &path))?;
    fsync(dir)
}

/// Removes lock files that an interrupted git or git-sync left.
pub(super) fn sweep(dir: &Path) -> Result<(), Error> {
    remove_matching(&dir.join("refs/heads"), |name| name == "git-sync.lock")?;
    let worktrees = dir.join("worktrees");
    for name in names(&worktrees)?.iter().filter(|name| ObjectId::from_hex(name).is_some()) {
        remove_matching(&worktrees.join(name), |name| name.ends_with(".lock"))?;
    }
    Ok(())
}

/// Removes worktree directories that are unfinished or were being removed.
pub(super) fn remove_unfinished(dir: &Path) -> Result<(), Error> {
    for name in names(dir)?.iter().filter(|name| name.starts_with(UNFINISHED)) {
        let path = dir.join(name);
        fs::remove_dir_all(&path).map_err(local("remove the unfinished", &path))?;
    }
    Ok(())
}

/// Moves a broken repository's objects, and everything that refers to objects, into `aside`. There is always a
/// repository at `dir`, and its worktrees stay where they are.
pub(super) fn set_aside(dir: &Path, aside: &Path) -> Result<(), Error> {
    for name in ["objects/info", "objects/pack", "refs/heads", "refs/tags"] {
        let path = aside.join(name);
        fs::create_dir_all(&path).map_err(local("make", &path))?;
    }
    for name in ["objects", "refs"] {
        let new = aside.join(name);
        let old = dir.join(name);
        exchange(&new, &old).map_err(local("set aside", &old))?;
    }
    for name in names(dir)? {
        let stays = STAYS.contains(&name.as_str()) || name == MARK || name.starts_with(BROKEN);
        if !stays && name != "objects" && name != "refs" {
            let from = dir.join(&name);
            fs::rename(&from, aside.join(&name)).map_err(local("set aside", &from))?;
        }
    }
    Ok(())
}

/// Does the same for the mirrors of all submodules that are still in `dir`, whether or not they are open. Their
/// worktrees stay, too. Foreign repositories, which have no mark, are left alone.
pub(super) fn set_modules_aside(dir: &Path, aside: &Path) -> Result<(), Error> {
    let objects = modules::object_dirs(dir)?;
    let mirrors = objects.iter().filter_map(|objects| objects.parent());
    for (number, mirror) in mirrors.filter(|mirror| mirror.join(MARK).is_file()).enumerate() {
        set_aside(mirror, &aside.join(format!("submodule-{number}")))?;
    }
    Ok(())
}

/// Exchanges two paths atomically, or renames `new` to `old` if `old` does not exist. On file systems without
/// `RENAME_EXCHANGE` (`EINVAL`, for example on some network volumes) it uses three renames, and `old` is absent for an
/// instant.
pub(super) fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT) => fs::rename(new, old),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let mut between = new.as_os_str().to_owned();
            between.push("-old");
            fs::rename(old, &between)?;
            fs::rename(new, old)?;
            fs::rename(&between, new)
        }
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_checked_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        let line = "# a line that people may write\n";
        let head = "[core]\n\trepositoryformatversion = 0\n";
        let long = [head, &line.repeat(CONFIG_MAX as usize / line.len() + 1)].concat();
        for (content, is_valid) in [
            (head.to_owned(), true),
            ([head, &line.repeat(1_000)].concat(), true),
            (long.clone(), false),
            ([&long, "\0\0\0\0"].concat(), false),
        ] {
            fs::write(&config, &content).unwrap();
            assert_eq!(is_config(&config), is_valid, "{} bytes", content.len());
        }
    }
}
