//! Takes over a root from git-sync.
//!
//! - The generation that the published link names stays published. Its name says which commit it should hold; its
//!   content is compared with that commit before anything relies on it ([`Store::adopt`]).
//! - Other `.worktrees/<commit>` become retired generations. git-sync touches a directory when it replaces it, so the
//!   mtime is the time of retirement. If the link names no generation, any of them may have been current until now.
//! - git-sync version 3 had its trees in the root itself. Such a tree stays published until the first publication;
//!   then it is moved to `.worktrees` as a retired generation.
//! - A `tmp-link`, left by an interrupted publication, makes every later publication of git-sync fail. It is removed.
//! - A non-directory in `.worktrees` belongs to nobody and is removed after a grace period.
//!
//! Nothing else in the root is changed.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::AtFlags;

use crate::clock::Now;
use crate::fsx::walk::SeenLinks;
use crate::fsx::{self, Inode, Link};
use crate::generation::{GenerationRecord, Name, Retired, WORKTREES};
use crate::payload::Payload;
use crate::store::stage::GIT_FILE;
use crate::store::{Error, Recovered, Store};

/// git-sync's temporary name for the next link.
const TMP_LINK: &str = "tmp-link";
/// The largest `.git` file that is read, in bytes.
const GIT_FILE_LIMIT: u64 = 64 << 10;

impl Store {
    /// Takes over what git-sync left, if anything.
    pub(super) fn take_over(&self, now: &Now, found: &mut Recovered) -> Result<(), Error> {
        let handles = &self.handles;
        let link_dir = &handles.link.dir;
        let failed = |act| Error::io(act, handles.link.dir_path().join(TMP_LINK));
        if handles.link.name != TMP_LINK
            && let Link::To(target) = fsx::read_link(link_dir, TMP_LINK).map_err(failed("stat"))?
            && handles.link.generation_in(&target).is_some()
        {
            fsx::unlink(link_dir, TMP_LINK).map_err(failed("remove"))?;
            found.done.push(format!("removed {TMP_LINK}, left by git-sync"));
        }
        for entry in fsx::list(&handles.root).map_err(Error::io("list", &handles.path))? {
            let name = entry.os();
            if let Some(commit) = handles.link.name_of(name).filter(|_| self.is_old_tree(name)) {
                let to = self.free_name(&commit)?;
                match fsx::walk::move_dir(&handles.root, name, &handles.generations_dir, to.as_str()) {
                    // Moving a directory to a new parent needs write permission on it (rename(2), EACCES).
                    Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                        let whose = "published by git-sync version 3, belongs to another user";
                        found.foreign.push(format!("{commit}, {whose}"));
                        continue;
                    }
                    moved => moved.map_err(Error::io("move to the generations", handles.at(name)))?,
                }
                found.done.push(format!(
                    "moved {commit}, published by git-sync version 3, to {}",
                    to.relative_path().display()
                ));
            }
        }
        self.sweep_files(now, found)
    }

    /// Removes non-directories from `.worktrees` once they are older than a grace period. git-sync also removes
    /// directories with other names; we do not, because those may be a user's work.
    fn sweep_files(&self, now: &Now, found: &mut Recovered) -> Result<(), Error> {
        let handles = &self.handles;
        let path = handles.at(WORKTREES);
        for entry in fsx::list(&handles.generations_dir).map_err(Error::io("list", &path))? {
            let failed = |act| Error::io(act, path.join(entry.os()));
            let Some(stat) = fsx::stat(&handles.generations_dir, entry.os()).map_err(failed("stat"))? else {
                continue;
            };
            let overdue = i64::try_from(self.options.retention.grace.as_secs()).map_or(i64::MIN, |grace| {
                now.wall.as_second().saturating_sub(stat.st_mtime).saturating_sub(grace)
            });
            if !fsx::file_type(&stat).is_dir() && overdue >= 0 {
                self.trash
                    .put(&handles.generations_dir, entry.os(), None)
                    .map_err(failed("move to the trash"))?;
                found
                    .done
                    .push(format!("removed {WORKTREES}/{}, which is not a directory", entry.os().display()));
            }
        }
        Ok(())
    }

    /// Returns true if this is a tree of this repository that git-sync version 3 published and that is no longer
    /// current.
    fn is_old_tree(&self, name: &OsStr) -> bool {
        let root = &self.handles.root;
        let Ok(dir) = fsx::open_dir(root, name) else { return false };
        let Ok(Some(text)) = fsx::read_file(&dir, GIT_FILE, GIT_FILE_LIMIT) else { return false };
        let Some(admin) = text.strip_prefix(b"gitdir: ") else { return false };
        // The path is absolute, possibly in another container's file system: only its end can be compared.
        let ours = [b"/.git/worktrees/", name.as_encoded_bytes()].concat();
        let is_ours = admin.trim_ascii_end().ends_with(&ours);
        let current = rustix::fs::statat(&self.handles.link.dir, &*self.handles.link.name, AtFlags::empty());
        let is_current =
            current.is_ok_and(|stat| fsx::identity(&dir).is_ok_and(|inode| inode == Inode::of(&stat)));
        is_ours && !is_current
    }

    /// Returns an unused name for another generation of the same commit.
    pub(super) fn free_name(&self, commit: &Name) -> Result<Name, Error> {
        let mut serial = 1;
        loop {
            let name = commit.numbered(serial);
            let there = fsx::stat(&self.handles.generations_dir, name.as_str())
                .map_err(Error::io("stat", self.handles.path_of(&name)))?;
            if there.is_none() && self.state.record(&name).is_none() {
                return Ok(name);
            }
            serial += 1;
        }
    }

    /// Returns a record for a generation directory without one. In git-sync's layout its mtime is the time of
    /// retirement, because the writer sets it when it replaces the generation. Unless one is `served`, this one may have
    /// been current until now, under this link or another one: then the caller sets the time.
    pub(super) fn found_record(&self, name: &Name, served: bool, now: &Now) -> GenerationRecord {
        let size = self.handles.measure(name, &mut SeenLinks::default());
        let mut record = GenerationRecord::unknown(name.clone(), size.entries, size.bytes, now);
        let is_plain = name.commit().is_some_and(|commit| Name::from_commit(commit) == *name);
        if let Some(at) = is_plain.then(|| self.modified(name)).flatten() {
            let at = at.min(now.wall);
            let age = Duration::try_from(now.wall.duration_since(at)).unwrap_or_default();
            let since = now.boottime.saturating_sub(age); // at most the age of this boot
            record.published = at;
            let then = || Retired::at(&Now { wall: at, boottime: since, boot_id: now.boot_id.clone() });
            record.retired = served.then(then);
        }
        record
    }

    /// The mtime of a generation's directory.
    fn modified(&self, name: &Name) -> Option<Timestamp> {
        let stat = fsx::stat(&self.handles.generations_dir, name.as_str()).ok()??;
        Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).ok()?).ok()
    }

    /// Sets the mtime of a newly retired generation to now. It replaces the record if that is lost, and it is the
    /// only age that git-sync knows, should the root go back to it.
    pub(super) fn touch_retired(&self, name: &Name) -> Result<(), Error> {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(
            self.handles.generations_dir.as_fd(),
            name.as_str(),
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(Error::io("touch the retired generation", self.handles.path_of(name)))
    }

    /// Records that the current generation holds this payload, after [`Store::verify`] found no difference.
    pub fn adopt(&mut self, payload: &Payload, selection: &str, now: &Now) -> Result<(), Error> {
        let Some(name) = self.state.current.clone() else { return Ok(()) };
        for record in self.state.generations.iter_mut().filter(|record| record.name == name) {
            record.revision = payload.revision;
            record.tree = payload.tree;
            record.selection_digest = selection.to_owned();
            (record.entries, record.bytes) = (payload.count(), payload.bytes);
            record.boot_id.clone_from(&now.boot_id); // verified in this boot; not synced by us
        }
        self.save()
    }
}
