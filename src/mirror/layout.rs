//! The mirror's files on disk: creating, locking, cleaning up, and setting aside. What differs for git-sync's
//! `ROOT/.git` is in [`super::repo_kind`].
//!
//! ```text
//! DIR/treeswap          marks the directory as ours; the writer's lock; the size without garbage, and what was kept
//! DIR/treeswap-values   values that ConfigMap plans computed from blobs; a cache that `desired` reads and writes
//! DIR/treeswap-complete records that the tip was found complete; a hint, within one boot ([`super::complete`])
//! DIR/config            git's configuration with the remote's URL, by which a new mirror finds one to adopt from
//! DIR/objects/pack/     everything that was fetched
//! DIR/shallow           the shallow boundary: commits whose parents are not kept
//! DIR/history/          scratch repository with commits only, while two revisions are compared
//! DIR/refs/treeswap/tip the last commit that was fetched and found complete; written last
//! DIR/modules/          the mirrors of submodules
//! DIR/mirrors/          the mirrors of sources, with `--mirror`; no part of this mirror
//! DIR/broken-*/         a repository that was set aside; removed in the background, or at the next opening
//! DIR/tmp_removed-*/    mirrors of submodules or sources that are being removed
//! DIR/*.lock            the new content of a file, until it is renamed
//! ```
//!
//! A crash leaves, after each step of a fetch:
//!
//! 1. while a pack is received or indexed: `objects/pack/tmp_pack_*` (`pack_git2_*` and `*.lock` if packs are
//!    rewritten), removed at the next opening (`pack_git2_*` also before packs are rewritten again);
//! 2. with only one of pack and index in place: libgit2 ignores it, and it is removed, too;
//! 3. with the pack in place: objects that no ref names; the next fetch finds them and needs no network;
//! 4. with `shallow` written: a boundary commit that no ref names yet, which is harmless;
//! 5. with the ref written: the new state.
//!
//! If durability is enabled, each step is durable before the next begins. Without it a power cut may leave a ref whose
//! objects are lost: opening the mirror checks the tip's closure, and if it is incomplete sets the repository aside and
//! starts with an empty one.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::descriptors::check_descriptors;
use super::error::Error;
use super::files::{
    BROKEN, HISTORY, MARK, MIRRORS, TIP, fsync, ignore_absent, local, names, remove_matching, remove_scratch,
    replace,
};
use super::foreign_files;
use super::repo_kind::{self, RepoKind};
use crate::fsx::{self, Lock};
use crate::revision::{ObjectId, Revision};

/// The directory that fsck uses, at the top of a volume.
const LOST_FOUND: &str = "lost+found";

/// A pack of the mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pack {
    /// The file name without suffix: `pack-` and the checksum.
    pub(super) name: String,
    /// The size of pack and index in bytes.
    pub(super) bytes: u64,
}

/// The mirror's directory. The lock is held as long as this exists.
#[derive(Debug)]
pub(super) struct Layout {
    dir: PathBuf,
    kind: RepoKind,
    durable: bool,
    /// The remote's URL without secrets, if the repository is to name it.
    origin: Option<String>,
    /// The open and locked mark file.
    lock: File,
}

/// Returns true if libgit2 was writing the file with this name when its process ended.
fn is_unfinished(name: &str) -> bool {
    name.starts_with("pack_git2_")
}

impl Drop for Layout {
    fn drop(&mut self) {
        // Closing is not enough: a child process that is just being started has a copy of the descriptor until it calls
        // exec, and flock(2) holds the lock until all copies are closed.
        let _ = self.lock.unlock();
    }
}

impl Layout {
    /// Locks the mirror at `dir`, creates it if it does not exist, and removes what an interrupted run left. A new
    /// repository of its own names `origin` as its remote; see [`Self::record_origin`] for others.
    pub(super) fn open(
        dir: &Path,
        kind: RepoKind,
        durable: bool,
        origin: Option<&str>,
    ) -> Result<Self, Error> {
        let dir = std::path::absolute(dir).map_err(local("find", dir))?;
        if dir.is_file() {
            return Err(Error::Foreign { path: dir }); // a submodule's or a linked worktree's `.git`
        }
        fs::create_dir_all(&dir).map_err(local("make the mirror", &dir))?;
        let marked = is_marked(&dir)?;
        let known = marked || kind == RepoKind::Worktrees && repo_kind::looks_like_git(&dir);
        if !known && !is_empty(&dir)? {
            let Some(aside) = quarantine_name(&dir) else { return Err(Error::Foreign { path: dir }) };
            tracing::warn!(
                "moved {}, which is not a mirror of treeswap, to {}",
                dir.display(),
                aside.display()
            );
            fs::rename(&dir, &aside).map_err(local("move aside", &dir))?;
            fs::create_dir(&dir).map_err(local("make the mirror", &dir))?;
        }
        // Before the lock: opening the mark would block if it were a pipe.
        foreign_files::remove(&dir, kind)?;
        Self::lock_and_init(dir, kind, durable, origin.map(str::to_owned))
    }

    fn lock_and_init(
        dir: PathBuf,
        kind: RepoKind,
        durable: bool,
        origin: Option<String>,
    ) -> Result<Self, Error> {
        let lock = lock(&dir, &dir.join(MARK))?;
        let layout = Self { dir, kind, durable, origin, lock };
        // Before `init`, which a lock file of an interrupted run would make fail.
        layout.sweep()?;
        layout.init()?;
        Ok(layout)
    }

    /// Recreates files that were deleted while the mirror was open. Returns a new layout if the mark file, and with it
    /// the lock, was deleted.
    pub(super) fn recreate_if_removed(&self) -> Result<Option<Self>, Error> {
        use std::os::unix::fs::MetadataExt as _;
        let mark = self.dir.join(MARK);
        let locked = self.lock.metadata().map_err(local("examine", &mark))?;
        let same = |found: std::fs::Metadata| (found.dev(), found.ino()) == (locked.dev(), locked.ino());
        if fs::metadata(&mark).is_ok_and(same) {
            self.init()?;
            if self.kind == RepoKind::Bare {
                foreign_files::remove_from_directories(&self.dir)?;
            }
            let packs = self.dir.join("objects/pack"); // without it libgit2 opens the repository, and indexes nothing
            fs::create_dir_all(&packs).map_err(local("make", &packs))?;
            return Ok(None);
        }
        fs::create_dir_all(&self.dir).map_err(local("make the mirror", &self.dir))?;
        Self::lock_and_init(self.dir.clone(), self.kind, self.durable, self.origin.clone()).map(Some)
    }

    /// Records the remote's URL as `origin`, for people, for a mirror that adopts this one, and for git to resolve
    /// relative URLs of submodules.
    pub(super) fn record_origin(&self) -> Result<(), Error> {
        let named = self.origin.as_ref().map(|url| repo_kind::configure(&self.dir, "remote.origin.url", url));
        named.unwrap_or(Ok(()))
    }

    /// The kind of the git repository.
    pub(super) fn kind(&self) -> RepoKind {
        self.kind
    }

    /// The repository's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates the repository unless there is a usable one. If it can be opened and only `config` is damaged, that file
    /// is written anew and the objects stay. Otherwise everything is deleted: it is an incomplete cache, left by an
    /// interrupted start or a power cut.
    fn init(&self) -> Result<(), Error> {
        if self.kind == RepoKind::Worktrees {
            return repo_kind::init(&self.dir, self.durable);
        }
        let can_open = repo_kind::can_open(&self.dir);
        let has_config = repo_kind::is_config(&self.dir.join("config"));
        if can_open && has_config {
            return Ok(());
        }
        check_descriptors(&self.dir)?; // too many open files would look like a broken repository
        let is_unusable = |name: &String| !stays(name) && (!can_open || name == "config");
        for name in names(&self.dir)?.into_iter().filter(is_unusable) {
            let path = self.dir.join(name);
            let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone.map_err(local("remove the unfinished", &path))?;
        }
        let mut options = git2::RepositoryInitOptions::new();
        // No template, so that no hooks and no exclude file are copied from the host.
        options.bare(true).external_template(false).initial_head("main");
        if let Some(url) = &self.origin {
            options.origin_url(url); // written before the file is synced, so that it is synced once
        }
        git2::Repository::init_opts(&self.dir, &options)
            .map_err(|source| Error::unwritten("make the mirror", &self.dir, source))?;
        if self.tip().is_some() {
            return self.sync_skeleton(); // only `config` was rewritten
        }
        // A mirror without a tip need not be durable, so the first request does not wait for the disk: `commit_tip`
        // syncs it with the first tip. Only the mark has to be, or packs received before that would look like a foreign
        // directory.
        if self.durable { fsync(&self.dir) } else { Ok(()) }
    }

    /// Makes what [`Self::init`] writes durable, if durability is enabled.
    pub(super) fn sync_skeleton(&self) -> Result<(), Error> {
        if !self.durable {
            return Ok(());
        }
        ["config", "HEAD", "objects", "refs", "."].iter().try_for_each(|name| fsync(&self.dir.join(name)))
    }

    /// Removes what an interrupted run left: lock files, temporary packs, packs without index, and vice versa. The lock
    /// is held, so no other treeswap is using them; in `ROOT/.git` a consumer's git may be ([`super::repo_kind`]).
    fn sweep(&self) -> Result<(), Error> {
        repo_kind::remove_unfinished(&self.dir)?;
        remove_matching(&self.dir, |name| name.ends_with(".lock") || name.starts_with("tmp_"))?;
        remove_matching(&self.dir.join("refs/treeswap"), |name| name.ends_with(".lock"))?;
        if self.kind == RepoKind::Worktrees {
            repo_kind::sweep(&self.dir)?;
        }
        let packs = self.dir.join("objects/pack");
        remove_matching(&packs, |name| {
            let twin = |other: &str| {
                name.rsplit_once('.').is_some_and(|(stem, _)| packs.join(format!("{stem}.{other}")).exists())
            };
            is_unfinished(name)
                || name.starts_with("tmp_")
                || name.ends_with(".lock")
                || (name.ends_with(".idx") && !twin("pack"))
                || (name.ends_with(".pack") && !twin("idx"))
        })?;
        let history = self.dir.join(HISTORY);
        // In `ROOT/.git` somebody else may have the name.
        if self.kind == RepoKind::Bare || is_marked(&history)? {
            remove_scratch(&history)?;
        }
        for name in names(&self.dir)?.iter().filter(|name| name.starts_with(BROKEN)) {
            let stale = self.dir.join(name);
            fs::remove_dir_all(&stale).map_err(local("remove the broken mirror", &stale))?;
        }
        Ok(())
    }

    /// Removes the packs that killed child processes were writing. The lock is held, and the caller runs no child
    /// process. Returns true if there were any.
    pub(super) fn remove_unfinished_packs(&self) -> Result<bool, Error> {
        let packs = self.dir.join("objects/pack");
        let any = names(&packs)?.iter().any(|name| is_unfinished(name));
        remove_matching(&packs, is_unfinished)?;
        Ok(any)
    }

    /// Sets the repository aside, starts with an empty one, and returns the path of the old one. The lock stays held.
    /// It is not removed here, because that may take long: the caller does so in the background, and what is left then
    /// is removed at the next opening ([`Self::sweep`]).
    ///
    /// The old repository is moved into a subdirectory of the mirror. The mirror's own directory is not renamed,
    /// because it may be a mount point and it holds the lock file.
    pub(super) fn set_aside(&self) -> Result<PathBuf, Error> {
        let aside = self.dir.join(fsx::unique(BROKEN)); // `sweep` removed those of earlier processes
        fs::create_dir(&aside).map_err(local("make", &aside))?;
        if self.kind == RepoKind::Worktrees {
            repo_kind::set_aside(&self.dir, &aside)?;
            self.init()?;
            return Ok(aside);
        }
        for name in names(&self.dir)?.iter().filter(|name| !stays(name)) {
            let from = self.dir.join(name);
            fs::rename(&from, aside.join(name)).map_err(local("set aside", &from))?;
        }
        self.init()?;
        Ok(aside)
    }

    /// The last commit that was fetched and found complete. `None` if the ref is absent or malformed.
    pub(super) fn tip(&self) -> Option<ObjectId> {
        tip_of(&self.dir)
    }

    /// The shallow boundary: commits whose parents are not kept.
    pub(super) fn shallow(&self) -> Vec<ObjectId> {
        boundary_of(&self.dir)
    }

    /// Returns true if each step of a write must be durable before the next begins.
    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Returns true if a pack was fetched with `--filter`, so that objects may be missing.
    pub(super) fn has_filtered_packs(&self) -> Result<bool, Error> {
        let packs = self.packs()?;
        let marker = |pack: &Pack| self.dir.join("objects/pack").join(format!("{}.promisor", pack.name));
        Ok(packs.iter().any(|pack| marker(pack).exists()))
    }

    /// Lists the packs with their sizes.
    pub(super) fn packs(&self) -> Result<Vec<Pack>, Error> {
        let dir = self.dir.join("objects/pack");
        let size = |name: &str, suffix: &str| {
            fs::metadata(dir.join(format!("{name}.{suffix}"))).map_or(0, |metadata| metadata.len())
        };
        let names = names(&dir)?;
        let packs = names.iter().filter_map(|name| name.strip_suffix(".pack"));
        Ok(packs
            .map(|name| Pack { name: name.to_owned(), bytes: size(name, "pack") + size(name, "idx") })
            .collect())
    }

    /// The size of all packs and their indexes in bytes.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        Ok(self.packs()?.iter().map(|pack| pack.bytes).sum())
    }

    /// The size of the packs in bytes when the mirror was last without garbage, and the revisions that were kept then.
    /// `None` if unknown.
    pub(super) fn garbage_free_state(&self) -> Option<(u64, Vec<Revision>)> {
        let text = fs::read_to_string(self.dir.join(MARK)).ok()?;
        let (bytes, kept) = text.split_once('\n')?;
        Some((bytes.parse().ok()?, kept.lines().filter_map(ObjectId::from_hex).map(Revision).collect()))
    }

    /// Records that the mirror is without garbage now. It is only a hint: a crash may lose it.
    pub(super) fn record_garbage_free_state(&self, kept: &[Revision]) -> Result<(), Error> {
        let kept: String = kept.iter().map(|revision| format!("{revision}\n")).collect();
        self.write_mark(&format!("{}\n{kept}", self.bytes()?))
    }

    /// Erases that record.
    pub(super) fn forget_garbage_free_state(&self) -> Result<(), Error> {
        self.write_mark("")
    }

    /// Writes in place instead of by rename, because the lock is held on this inode.
    fn write_mark(&self, text: &str) -> Result<(), Error> {
        let path = self.dir.join(MARK);
        (&self.lock)
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.lock.set_len(0))
            .and_then(|()| (&self.lock).write_all(text.as_bytes()))
            .map_err(local("write", &path))
    }

    /// Removes files that git derives from packs and that would name objects of removed packs: the multi-pack-index and
    /// the commit-graph. treeswap writes neither, but git-sync's `git gc` does.
    pub(super) fn remove_derived(&self) -> Result<(), Error> {
        let packs = self.dir.join("objects/pack");
        let info = self.dir.join("objects/info");
        let indexes = names(&packs)?.into_iter().filter(|name| name.starts_with("multi-pack-index"));
        for path in indexes.map(|name| packs.join(name)).chain([info.join("commit-graph")]) {
            ignore_absent(fs::remove_file(&path)).map_err(local("remove", &path))?;
        }
        let graphs = info.join("commit-graphs");
        ignore_absent(fs::remove_dir_all(&graphs)).map_err(local("remove", &graphs))
    }

    /// Writes the shallow boundary.
    pub(super) fn set_shallow(&self, boundary: &[ObjectId]) -> Result<(), Error> {
        let lines: String = boundary.iter().map(|id| format!("{id}\n")).collect();
        let shallow = self.dir.join("shallow");
        if !lines.is_empty() {
            self.replace(&shallow, lines.as_bytes())?;
        } else if shallow.exists() {
            // An empty file would still mark the repository as shallow: git_repository_is_shallow checks its presence.
            fs::remove_file(&shallow).map_err(local("remove", &shallow))?;
            if self.durable {
                fsync(&self.dir)?;
            }
        }
        Ok(())
    }

    /// Writes the shallow boundary, then the ref, in this order.
    pub(super) fn commit_tip(&self, boundary: &[ObjectId], tip: ObjectId) -> Result<(), Error> {
        if self.kind == RepoKind::Bare && self.tip().is_none() {
            self.sync_skeleton()?;
        }
        self.set_shallow(boundary)?;
        let path = self.dir.join(TIP);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(local("make", parent))?;
            if self.durable {
                fsync(&self.dir.join("refs"))?;
            }
        }
        self.replace(&path, format!("{tip}\n").as_bytes())
    }

    /// Points the ref at another complete tip, or removes it. A caller that removes objects of the old tip does so
    /// afterwards.
    pub(super) fn set_tip(&self, to: Option<ObjectId>) -> Result<(), Error> {
        let path = self.dir.join(TIP);
        if let Some(tip) = to {
            return self.replace(&path, format!("{tip}\n").as_bytes());
        }
        ignore_absent(fs::remove_file(&path)).map_err(local("remove", &path))?;
        match path.parent() {
            Some(parent) if self.durable => fsync(parent),
            _ => Ok(()),
        }
    }

    fn replace(&self, path: &Path, content: &[u8]) -> Result<(), Error> {
        replace(path, content, self.durable)
    }
}

/// The last complete tip of the mirror in `dir`.
pub(super) fn tip_of(dir: &Path) -> Option<ObjectId> {
    ObjectId::from_hex(fs::read_to_string(dir.join(TIP)).ok()?.trim())
}

/// The shallow boundary of the mirror in `dir`.
pub(super) fn boundary_of(dir: &Path) -> Vec<ObjectId> {
    let text = fs::read_to_string(dir.join("shallow")).unwrap_or_default();
    text.lines().filter_map(ObjectId::from_hex).collect()
}

/// Opens, or creates, and locks the mark file. It is written in place, so no symbolic link to another file is followed.
/// Other users of the volume may be able to make one, also while the mirror is open.
fn lock(dir: &Path, mark: &Path) -> Result<File, Error> {
    foreign_files::make_way(mark)?;
    let no_link = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .custom_flags(no_link.bits().cast_signed())
        .mode(0o600) // so that a reader of the root cannot open it and take the lock
        .open(mark)
        .map_err(local("make", mark))?;
    match fsx::lock_soon(&file).map_err(local("lock", mark))? {
        Lock::Taken => Ok(file),
        Lock::Contended => Err(Error::Locked { path: dir.to_owned() }),
        Lock::Unsupported => Err(local("lock", mark)(std::io::ErrorKind::Unsupported.into())),
    }
}

/// The name to which a foreign directory in the mirror's place is moved, if the mirror is inside the root's own
/// `..treeswap` directory. `None` elsewhere, where foreign directories are left alone.
fn quarantine_name(dir: &Path) -> Option<PathBuf> {
    let ours = dir.parent()?.file_name()? == "..treeswap";
    let beside = |number: u32| dir.with_file_name(format!("quarantine-mirror-{number}"));
    ours.then(|| (0..).map(beside).find(|path| path.symlink_metadata().is_err())).flatten()
}

/// Returns true if the mark file is one that we may have written: hexadecimal digits and line ends, or what a power cut
/// leaves of them (a prefix, or zeros). A foreign file may have the same name, for example a copy of the program.
fn is_marked(dir: &Path) -> Result<bool, Error> {
    let path = dir.join(MARK);
    if !path.symlink_metadata().is_ok_and(|mark| mark.is_file()) {
        return Ok(false);
    }
    let content = fs::read(&path).map_err(local("read", &path))?;
    Ok(content.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'\n' | 0)))
}

/// Returns true if a directory is empty but for `lost+found`, which a fresh ext4 volume has, and mirrors of sources.
fn is_empty(dir: &Path) -> Result<bool, Error> {
    let is_known = |name: &String| name == LOST_FOUND || name == MIRRORS && holds_mirrors(&dir.join(name));
    Ok(names(dir)?.iter().all(is_known))
}

/// Returns true if there is a mirror in a directory. Others may have a directory of the name `mirrors`, too.
fn holds_mirrors(dir: &Path) -> bool {
    names(dir).unwrap_or_default().iter().any(|name| is_marked(&dir.join(name)).unwrap_or_default())
}

/// Returns true if the name in a mirror of our own stays when its repository is made anew.
fn stays(name: &str) -> bool {
    matches!(name, MARK | MIRRORS | LOST_FOUND) || name.starts_with(BROKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_a_program_of_our_name_is_nobodys_mirror_and_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("treeswap", &b"\x7fELF\x02\x01\x01"[..]),
            ("poetry.lock", b"a"),
            ("tmp_notes", b"b"),
            ("c", b"c"),
        ];
        files.iter().for_each(|(name, content)| std::fs::write(dir.path().join(name), content).unwrap());
        let refused = Layout::open(dir.path(), RepoKind::Bare, false, None);
        assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
        for (name, content) in files {
            assert_eq!(std::fs::read(dir.path().join(name)).ok().as_deref(), Some(content), "{name}");
        }
    }

    #[test]
    fn a_mirror_is_known_by_whatever_a_crash_left_of_its_mark() {
        let mark = format!("4096\n{}\n", "0123456789".repeat(4));
        for content in [&b""[..], mark.as_bytes(), &mark.as_bytes()[..20], &[0; 46]] {
            let dir = tempfile::tempdir().unwrap();
            drop(Layout::open(dir.path(), RepoKind::Bare, false, None).unwrap());
            std::fs::write(dir.path().join(MARK), content).unwrap();
            Layout::open(dir.path(), RepoKind::Bare, false, None).unwrap();
        }
    }
}
