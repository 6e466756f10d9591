//! Makes a staged generation durable before it is published: which files and directories to sync, and syncing them.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};

use super::directory_list::DirectoryList;
use super::stage::{Dirs, io_error};
use super::{Durability, Error};
use crate::fsx;
use crate::generation::GenerationRecord;
use crate::payload::{Delta, Kind, Payload, split};

/// Up to this many files are synced one by one (`fsync`); if there are more, the whole file system is (`syncfs`). That
/// also waits for data that other processes wrote, which takes seconds on a shared disk.
pub(super) const MAX_SINGLE_SYNCS: usize = 64;

/// What has to be synced to make a tree durable.
#[derive(Clone, Debug)]
pub(super) enum Unsynced {
    /// Too many files: the whole file system is synced.
    Many,
    /// These files and directories, relative to the staged directory.
    Few {
        /// Regular files that were written.
        files: Vec<Box<[u8]>>,
        /// Directories whose entries changed. Syncing them also makes symlinks durable: a symlink's target is in its
        /// inode, which the directory's sync writes out (on ext4, xfs and btrfs).
        dirs: BTreeSet<Box<[u8]>>,
    },
}

impl Unsynced {
    /// What to sync after [`super::stage::write`].
    pub(super) fn after_write(payload: &Payload) -> Self {
        if payload.entries.len() > MAX_SINGLE_SYNCS {
            return Self::Many;
        }
        let regular = payload.entries.iter().filter(|e| matches!(e.kind, Kind::File | Kind::Executable));
        // A submodule is published as an empty directory.
        let submodules = payload.entries.iter().filter(|e| e.kind == Kind::Submodule);
        let dirs = std::iter::once(Vec::new()).chain(payload.dir_paths());
        Self::few(
            regular.map(|entry| payload.path_of(entry).into()).collect(),
            dirs.chain(submodules.map(|entry| payload.path_of(entry))).map(Into::into).collect(),
        )
    }

    /// These files and directories, unless they are too many to sync one by one: a few files may be in thousands of new
    /// directories.
    fn few(files: Vec<Box<[u8]>>, dirs: BTreeSet<Box<[u8]>>) -> Self {
        if files.len() + dirs.len() > 2 * MAX_SINGLE_SYNCS {
            return Self::Many;
        }
        Self::Few { files, dirs }
    }

    /// What to sync after hard links to all files of a generation were made in these directories and the top one: only
    /// the directories, unless the generation was not synced either.
    pub(super) fn after_link(linked: &GenerationRecord, directories: &DirectoryList) -> Self {
        if linked.entries > MAX_SINGLE_SYNCS as u64 || !linked.synced {
            return Self::Many;
        }
        let mut dirs = BTreeSet::from([Box::default()]);
        let mut paths = directories.paths();
        while let Some(path) = paths.next() {
            dirs.insert(path.to_bytes().into());
        }
        Self::Few { files: Vec::new(), dirs }
    }

    /// Adds a file in the top directory.
    pub(super) fn add_top_file(&mut self, file: &str) {
        if let Self::Few { files, dirs } = self {
            files.push(file.as_bytes().into());
            dirs.insert(Box::default());
        }
    }

    /// Adds directories. If there are then too many files and directories to sync one by one, the result is `Many`.
    pub(super) fn with_dirs(self, more: impl Iterator<Item = Box<[u8]>>) -> Self {
        match self {
            Self::Few { files, dirs } => Self::few(files, dirs.into_iter().chain(more).collect()),
            Self::Many => Self::Many,
        }
    }

    /// What to sync after a delta was applied to a tree that had been synced.
    pub(super) fn after_delta(delta: &Delta) -> Self {
        if delta.written.len() + delta.removed.len() > MAX_SINGLE_SYNCS {
            return Self::Many;
        }
        let removed_dirs: BTreeSet<_> = delta.removed_dirs.iter().collect();
        let changed = delta.written.iter().map(|entry| &entry.path).chain(&delta.removed);
        let submodules = delta.written.iter().filter(|entry| entry.kind == Kind::Submodule);
        let submodules = submodules.map(|entry| &entry.path);
        let parents = changed.chain(&delta.added_dirs).chain(&delta.removed_dirs).map(|path| split(path).0);
        let dirs = parents.chain(delta.added_dirs.iter().chain(submodules).map(|path| &**path));
        let regular =
            delta.written.iter().filter(|entry| matches!(entry.kind, Kind::File | Kind::Executable));
        Self::few(
            regular.map(|entry| entry.path.clone()).collect(),
            dirs.map(Box::<[u8]>::from).filter(|dir| !removed_dirs.contains(dir)).collect(),
        )
    }
}

/// Makes a staged directory durable: afterwards a power cut cannot lose its files or their content. Does nothing with
/// [`Durability::None`].
pub(super) fn make_durable(
    top: BorrowedFd<'_>,
    durability: Durability,
    unsynced: &Unsynced,
) -> Result<(), Error> {
    match (durability, unsynced) {
        (Durability::None, _) => Ok(()),
        (Durability::Syncfs, Unsynced::Many) => {
            fsx::sync_fs(top).map_err(io_error("sync the file system of", b"."))
        }
        (Durability::Syncfs, Unsynced::Few { files, dirs }) => {
            let mut open = Dirs::new(top);
            for path in files {
                let (dir, name) = split(path);
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                rustix::fs::openat(open.open(dir)?, name, flags, Mode::empty())
                    .and_then(|file| rustix::io::retry_on_intr(|| rustix::fs::fsync(&file)))
                    .map_err(io_error("sync", path))?;
            }
            for path in dirs {
                let dir = open.open(path)?;
                fsx::sync_dir(dir).map_err(io_error("sync the directory", path))?;
            }
            Ok(())
        }
    }
}
