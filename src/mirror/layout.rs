//! The mirror as files: made, locked, swept, set aside. What is different where it is git-sync's `ROOT/.git` is in
//! [`super::form`].
//!
//! ```text
//! DIR/treeswap          our mark, the lock of the mirror's writer, and the mirror's size without garbage
//! DIR/treeswap-values   what plans of ConfigMaps made of blobs, a cache that `desired` reads and writes
//! DIR/config            git's, with the remote's URL, by which another mirror may take over what is here
//! DIR/objects/pack/     everything that was fetched
//! DIR/shallow           commits whose parents are not kept
//! DIR/history/          commits alone, while they are looked at
//! DIR/refs/treeswap/tip what was last fetched and found complete; written last
//! ```
//!
//! A crash leaves, after each step of a fetch:
//!
//! 1. while a pack is received or indexed: `objects/pack/tmp_pack_*` (`pack_git2_*` and `*.lock` where packs are written
//!    anew), swept at the next opening;
//! 2. with one of pack and index in place, but not the other: libgit2 passes over it, and it is swept, too;
//! 3. with the pack in place: objects that no ref names; the next fetch finds them and needs no network;
//! 4. with `shallow` written: a commit named as boundary that nothing names yet, which is harmless;
//! 5. with the ref written: the new state.
//!
//! Each step is durable before the next begins, where durability is asked for. Without it a power cut may leave a ref
//! whose objects are gone: opening checks the tip's closure, sets the mirror aside and starts anew.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::error::{Error, Libgit2};
use super::files::{
    BROKEN, HISTORY, MARK, TIP, ignore_absent, local, names, remove_matching, remove_scratch, replace,
    sync_dir,
};
use super::foreign_files;
use super::repo_kind::{self, RepoKind};
use crate::revision::{ObjectId, Revision};

/// A pack of the mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pack {
    /// `pack-` and its checksum.
    pub(super) name: String,
    /// Its bytes, those of its index included.
    pub(super) bytes: u64,
}

/// The mirror's directory, locked.
#[derive(Debug)]
pub(super) struct Layout {
    dir: PathBuf,
    form: RepoKind,
    durable: bool,
    lock: File,
}

impl Drop for Layout {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that is just being started has the descriptor, too, until it runs its
        // program, and flock(2) counts all of them.
        let _ = self.lock.unlock();
    }
}

impl Layout {
    /// Locks the mirror at `dir`, makes it if there is none, sweeps what an interrupted run left.
    pub(super) fn open(dir: &Path, form: RepoKind, durable: bool) -> Result<Self, Error> {
        let dir = std::path::absolute(dir).map_err(local("find", dir))?;
        if dir.is_file() {
            return Err(Error::Foreign { path: dir }); // a submodule's or a linked worktree's `.git`
        }
        fs::create_dir_all(&dir).map_err(local("make the mirror", &dir))?;
        let marked = is_marked(&dir)?;
        let known = marked || form == RepoKind::Worktrees && repo_kind::looks_like_git(&dir);
        if !known && !is_vacant(&dir)? {
            let Some(aside) = quarantine_name(&dir) else { return Err(Error::Foreign { path: dir }) };
            tracing::warn!("moved {}, which is no mirror of ours, to {}", dir.display(), aside.display());
            fs::rename(&dir, &aside).map_err(local("move aside", &dir))?;
            fs::create_dir(&dir).map_err(local("make the mirror", &dir))?;
        }
        foreign_files::remove(&dir, form)?;
        Self::make(dir, form, durable)
    }

    fn make(dir: PathBuf, form: RepoKind, durable: bool) -> Result<Self, Error> {
        let lock = lock(&dir, &dir.join(MARK))?;
        let layout = Self { dir, form, durable, lock };
        // First: a start that was interrupted may have left a lock in the way of making what is missing.
        layout.sweep()?;
        layout.init()?;
        Ok(layout)
    }

    /// Makes again what was removed below us. `Some`: the lock itself was gone, and this one has another.
    pub(super) fn recreate_if_removed(&self) -> Result<Option<Self>, Error> {
        use std::os::unix::fs::MetadataExt as _;
        let mark = self.dir.join(MARK);
        let held = self.lock.metadata().map_err(local("examine", &mark))?;
        let same = |found: std::fs::Metadata| (found.dev(), found.ino()) == (held.dev(), held.ino());
        if fs::metadata(&mark).is_ok_and(same) {
            return self.init().map(|()| None);
        }
        fs::create_dir_all(&self.dir).map_err(local("make the mirror", &self.dir))?;
        Self::make(self.dir.clone(), self.form, self.durable).map(Some)
    }

    /// What the mirror is in git's eyes.
    pub(super) fn form(&self) -> RepoKind {
        self.form
    }

    /// The repository's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the repository, unless there is one that opens. Where a start was interrupted, or a power cut took the
    /// content of files whose names survived, what is there is a piece of a cache, and in the way: it goes.
    fn init(&self) -> Result<(), Error> {
        if self.form == RepoKind::Worktrees {
            return repo_kind::init(&self.dir, self.durable);
        }
        let is_whole = self.dir.join("HEAD").exists()
            && self.dir.join("objects").is_dir()
            && self.dir.join("refs").is_dir()
            && git2::Repository::open_bare(&self.dir).is_ok();
        let is_configured = repo_kind::is_config(&self.dir.join("config"));
        if is_whole && is_configured {
            return Ok(());
        }
        for name in names(&self.dir)? {
            if name == MARK || name == "lost+found" || name.starts_with(BROKEN) {
                continue;
            }
            if is_whole && name != "config" {
                continue;
            }
            let path = self.dir.join(name);
            let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone.map_err(local("remove the unfinished", &path))?;
        }
        let mut options = git2::RepositoryInitOptions::new();
        // No template: no hooks, no exclude file, nothing from the host.
        options.bare(true).external_template(false).initial_head("main");
        git2::Repository::init_opts(&self.dir, &options).map_err(|source| Error::Git {
            act: format!("make the mirror {}", self.dir.display()),
            source: Libgit2(source),
        })?;
        if self.durable {
            for name in ["config", "HEAD", "objects", "refs", "."] {
                sync_dir(&self.dir.join(name))?; // fsync(2) is the same for a file
            }
        }
        Ok(())
    }

    /// Removes what an interrupted run left: locks, temporary packs, halves of packs. The lock is held, so no other
    /// writer is in the middle of anything.
    fn sweep(&self) -> Result<(), Error> {
        repo_kind::remove_unfinished(&self.dir)?;
        remove_matching(&self.dir, |name| name.ends_with(".lock") || name.starts_with("tmp_"))?;
        remove_matching(&self.dir.join("refs/treeswap"), |name| name.ends_with(".lock"))?;
        if self.form == RepoKind::Worktrees {
            repo_kind::sweep(&self.dir)?;
        }
        let packs = self.dir.join("objects/pack");
        remove_matching(&packs, |name| {
            let twin = |other: &str| {
                name.rsplit_once('.').is_some_and(|(stem, _)| packs.join(format!("{stem}.{other}")).exists())
            };
            name.starts_with("pack_git2_")
                || name.starts_with("tmp_")
                || name.ends_with(".lock")
                || (name.ends_with(".idx") && !twin("pack"))
                || (name.ends_with(".pack") && !twin("idx"))
        })?;
        if self.form == RepoKind::Bare {
            remove_scratch(&self.dir.join(HISTORY))?;
        }
        for stale in self.malformed_parts()? {
            fs::remove_dir_all(&stale).map_err(local("remove the broken mirror", &stale))?;
        }
        Ok(())
    }

    fn malformed_parts(&self) -> Result<Vec<PathBuf>, Error> {
        let found = names(&self.dir)?.into_iter().filter(|name| name.starts_with(BROKEN));
        Ok(found.map(|name| self.dir.join(name)).collect())
    }

    /// Sets what is there aside and starts with an empty repository. The lock stays.
    ///
    /// The content moves into a directory of its own inside the mirror's, not the mirror beside itself: its directory
    /// may be a mount point, which cannot be renamed, and the lock lives in it.
    pub(super) fn set_aside(&self) -> Result<PathBuf, Error> {
        let aside = (0..)
            .map(|number: u32| self.dir.join(format!("{BROKEN}{number}")))
            .find(|path| !path.exists())
            .unwrap_or_else(|| self.dir.join(BROKEN));
        fs::create_dir(&aside).map_err(local("make", &aside))?;
        if self.form == RepoKind::Worktrees {
            repo_kind::set_aside(&self.dir, &aside)?;
            self.init()?;
            return Ok(aside);
        }
        for name in names(&self.dir)? {
            if name != MARK && !name.starts_with(BROKEN) {
                let from = self.dir.join(&name);
                fs::rename(&from, aside.join(&name)).map_err(local("set aside", &from))?;
            }
        }
        self.init()?;
        Ok(aside)
    }

    /// What was last fetched and found complete. Malformed or absent is none.
    pub(super) fn tip(&self) -> Option<ObjectId> {
        tip_of(&self.dir)
    }

    /// Commits whose parents are not kept.
    pub(super) fn shallow(&self) -> Vec<ObjectId> {
        boundary_of(&self.dir)
    }

    /// Whether each step is to be durable before the next begins.
    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }

    /// The packs, with their sizes, index included.
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

    /// Bytes of all packs.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        Ok(self.packs()?.iter().map(|pack| pack.bytes).sum())
    }

    /// What the mirror weighed when it was last without garbage, and the revisions that were held then.
    pub(super) fn size_without_garbage(&self) -> Option<(u64, Vec<Revision>)> {
        let text = fs::read_to_string(self.dir.join(MARK)).ok()?;
        let (bytes, held) = text.split_once('\n')?;
        Some((bytes.parse().ok()?, held.lines().filter_map(ObjectId::from_hex).map(Revision).collect()))
    }

    /// Notes that the mirror is without garbage now. A mere hint: it may be lost.
    pub(super) fn set_size_without_garbage(&self, held: &[Revision]) -> Result<(), Error> {
        let held: String = held.iter().map(|held| format!("{held}\n")).collect();
        self.write_mark(&format!("{}\n{held}", self.bytes()?))
    }

    /// Notes that this is not known any more.
    pub(super) fn forget_size_without_garbage(&self) -> Result<(), Error> {
        self.write_mark("")
    }

    /// Written in place: the file is the lock, and another one would not be.
    fn write_mark(&self, text: &str) -> Result<(), Error> {
        let path = self.dir.join(MARK);
        (&self.lock)
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.lock.set_len(0))
            .and_then(|()| (&self.lock).write_all(text.as_bytes()))
            .map_err(local("write", &path))
    }

    /// Removes what git derives from packs and would miss their objects by: the index over several packs, and the
    /// graph of commits. We write neither; git-sync's `git gc` does.
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

    /// Writes the commits whose parents are not kept.
    pub(super) fn set_shallow(&self, boundary: &[ObjectId]) -> Result<(), Error> {
        let lines: String = boundary.iter().map(|id| format!("{id}\n")).collect();
        let shallow = self.dir.join("shallow");
        if !lines.is_empty() {
            self.replace(&shallow, lines.as_bytes())?;
        } else if shallow.exists() {
            // An empty file would still say that history is cut (git_repository_is_shallow looks at its presence).
            fs::remove_file(&shallow).map_err(local("remove", &shallow))?;
        }
        Ok(())
    }

    /// Writes the boundary, then the ref: in this order, each durable before the next.
    pub(super) fn commit_tip(&self, boundary: &[ObjectId], tip: ObjectId) -> Result<(), Error> {
        self.set_shallow(boundary)?;
        let path = self.dir.join(TIP);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(local("make", parent))?;
            if self.durable {
                sync_dir(&self.dir.join("refs"))?;
            }
        }
        self.replace(&path, format!("{tip}\n").as_bytes())
    }

    /// Names another complete tip, or none, before the last one goes.
    pub(super) fn set_tip(&self, to: Option<ObjectId>) -> Result<(), Error> {
        let path = self.dir.join(TIP);
        if let Some(tip) = to {
            return self.replace(&path, format!("{tip}\n").as_bytes());
        }
        ignore_absent(fs::remove_file(&path)).map_err(local("remove", &path))?;
        match path.parent() {
            Some(parent) if self.durable => sync_dir(parent),
            _ => Ok(()),
        }
    }

    fn replace(&self, path: &Path, content: &[u8]) -> Result<(), Error> {
        replace(path, content, self.durable)
    }
}

/// What a mirror found complete last.
pub(super) fn tip_of(dir: &Path) -> Option<ObjectId> {
    ObjectId::from_hex(fs::read_to_string(dir.join(TIP)).ok()?.trim())
}

/// The commits of a mirror whose parents are not kept.
pub(super) fn boundary_of(dir: &Path) -> Vec<ObjectId> {
    let text = fs::read_to_string(dir.join("shallow")).unwrap_or_default();
    text.lines().filter_map(ObjectId::from_hex).collect()
}

/// Opens and locks the mark.
fn lock(dir: &Path, mark: &Path) -> Result<File, Error> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600) // a consumer that could open it could take the lock
        .open(mark)
        .map_err(local("make", mark))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Locked { path: dir.to_owned() }),
        Err(std::fs::TryLockError::Error(source)) => {
            Err(Error::Local { act: "lock", path: mark.to_owned(), source })
        }
    }
}

/// In the root's own directory nothing foreign has to be kept where the mirror belongs: the name beside it for what
/// is there. None elsewhere.
fn quarantine_name(dir: &Path) -> Option<PathBuf> {
    let ours = dir.parent()?.file_name()? == "..treeswap";
    let beside = |number: u32| dir.with_file_name(format!("quarantine-mirror-{number}"));
    ours.then(|| (0..).map(beside).find(|path| path.symlink_metadata().is_err())).flatten()
}

/// Whether there is a mark that we may have written: digits, hexadecimal ones and line ends, or what a power cut leaves
/// of them, a part or zeros. Another file may have our name, a copy of the program for one.
fn is_marked(dir: &Path) -> Result<bool, Error> {
    let path = dir.join(MARK);
    if !path.symlink_metadata().is_ok_and(|mark| mark.is_file()) {
        return Ok(false);
    }
    let content = fs::read(&path).map_err(local("read", &path))?;
    Ok(content.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'\n' | 0)))
}

/// Whether a directory has nothing in it (a fresh ext4 volume has `lost+found`).
fn is_vacant(dir: &Path) -> Result<bool, Error> {
    Ok(names(dir)?.iter().all(|name| name == "lost+found"))
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
        let refused = Layout::open(dir.path(), RepoKind::Bare, false);
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
            drop(Layout::open(dir.path(), RepoKind::Bare, false).unwrap());
            std::fs::write(dir.path().join(MARK), content).unwrap();
            Layout::open(dir.path(), RepoKind::Bare, false).unwrap();
        }
    }
}
