//! What git-sync left in a root of its layout, and how it becomes ours.
//!
//! - The generation that the link names goes on serving; its name says which commit it should hold, and it is compared
//!   with that commit before anything rests on it ([`Store::adopt`]).
//! - Other `.worktrees/<commit>` are retired generations. git-sync touches a directory when it replaces it, so that its
//!   modification time is their age.
//! - Version 3 had its trees in the root itself. Such a tree goes on serving until the first publication; then it is
//!   moved to where retired generations are.
//! - A `tmp-link`, left by a publication that did not end, made every later one fail there. It is removed.
//! - A file in `.worktrees` has no owner, and goes after a grace period.
//!
//! Nothing else in the root is touched.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::AtFlags;

use crate::clock::Now;
use crate::fsx::{self, Link};
use crate::generation::{GenerationRecord, Name, Retired, WORKTREES};
use crate::payload::Payload;
use crate::store::stage::GIT_FILE;
use crate::store::{Error, Recovered, Store};

/// git-sync's name for the link it is about to publish.
const TMP_LINK: &str = "tmp-link";
/// Bytes of a `.git` file that are read at most.
const GIT_FILE_LIMIT: u64 = 64 << 10;

impl Store {
    /// Takes up what git-sync left, where there is any.
    pub(super) fn take_over(&self, now: &Now, found: &mut Recovered) -> Result<(), Error> {
        let layout = &self.layout;
        let link_dir = &layout.link.dir;
        let failed = |act| Error::io(act, layout.link.dir_path().join(TMP_LINK));
        if layout.link.name != TMP_LINK
            && let Link::To(target) = fsx::read_link(link_dir, TMP_LINK).map_err(failed("look at"))?
            && layout.link.named_by(&target).is_some()
        {
            fsx::unlink(link_dir, TMP_LINK).map_err(failed("remove"))?;
            found.done.push(format!("removed {TMP_LINK}, left by git-sync"));
        }
        for entry in fsx::list(&layout.root).map_err(Error::io("list", &layout.path))? {
            let name = entry.os();
            if let Some(commit) = layout.link.name_of(name).filter(|_| self.is_old_tree(name)) {
                let to = self.free_name(&commit)?;
                match fsx::rename_new(&layout.root, name, &layout.home, to.as_str()) {
                    // It would have another parent, and we may not write into it (rename(2), EACCES).
                    Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                        let whose = "published by git-sync version 3, belongs to another user";
                        found.foreign.push(format!("{commit}, {whose}"));
                        continue;
                    }
                    moved => moved.map_err(Error::io("move to the generations", layout.at(name)))?,
                }
                found.done.push(format!(
                    "moved {commit}, published by git-sync version 3, to {}",
                    to.place().display()
                ));
            }
        }
        self.sweep_files(now, found)
    }

    /// Removes what is no directory from where generations are, once it is older than a grace period. git-sync removes
    /// directories of other names as well; those may be a user's work.
    fn sweep_files(&self, now: &Now, found: &mut Recovered) -> Result<(), Error> {
        let layout = &self.layout;
        let path = layout.at(WORKTREES);
        for entry in fsx::list(&layout.home).map_err(Error::io("list", &path))? {
            let failed = |act| Error::io(act, path.join(entry.os()));
            let Some(stat) = fsx::stat(&layout.home, entry.os()).map_err(failed("look at"))? else {
                continue;
            };
            let age = i64::try_from(self.options.retention.grace.as_secs()).map_or(i64::MIN, |grace| {
                now.wall.as_second().saturating_sub(stat.st_mtime).saturating_sub(grace)
            });
            if !fsx::file_type(&stat).is_dir() && age >= 0 {
                self.trash.put(&layout.home, entry.os(), None).map_err(failed("move to the trash"))?;
                found
                    .done
                    .push(format!("removed {WORKTREES}/{}, which is no directory", entry.os().display()));
            }
        }
        Ok(())
    }

    /// Whether this is a tree that git-sync version 3 published, of this very repository, and no longer current.
    fn is_old_tree(&self, name: &OsStr) -> bool {
        let root = &self.layout.root;
        let Ok(dir) = fsx::open_dir(root, name) else { return false };
        let Ok(Some(text)) = fsx::read_file(&dir, GIT_FILE, GIT_FILE_LIMIT) else { return false };
        let Some(admin) = text.strip_prefix(b"gitdir: ") else { return false };
        // Absolute, and perhaps as another container sees it: only its end can be compared.
        let ours = [b"/.git/worktrees/", name.as_encoded_bytes()].concat();
        let names_us = admin.trim_ascii_end().ends_with(&ours);
        let current = rustix::fs::statat(&self.layout.link.dir, &*self.layout.link.name, AtFlags::empty());
        let is_current =
            current.is_ok_and(|stat| fsx::identity(&dir).is_ok_and(|id| id == (stat.st_dev, stat.st_ino)));
        names_us && !is_current
    }

    /// A name for another generation of the same commit, which nothing in the root has.
    pub(super) fn free_name(&self, commit: &Name) -> Result<Name, Error> {
        let mut serial = 1;
        loop {
            let name = commit.numbered(serial);
            let there = fsx::stat(&self.layout.home, name.as_str())
                .map_err(Error::io("look at", self.layout.place(&name)))?;
            if there.is_none() && self.state.record(&name).is_none() {
                return Ok(name);
            }
            serial += 1;
        }
    }

    /// The record of a directory of which nothing is on record. In git-sync's layout its age is that of its
    /// modification time, which the writer sets when it replaces it.
    pub(super) fn found_record(&self, name: &Name, now: &Now) -> GenerationRecord {
        let size = self.layout.measure(name);
        let mut record = GenerationRecord::unknown(name.clone(), size.entries, size.bytes, now);
        let is_plain = name.commit().is_some_and(|commit| Name::of(commit) == *name);
        if let Some(at) = is_plain.then(|| self.modified(name)).flatten() {
            let at = at.min(now.wall);
            let age = Duration::try_from(now.wall.duration_since(at)).unwrap_or_default();
            let since = now.boottime.saturating_sub(age); // what is older than this boot is as old as this boot
            record.published = at;
            record.retired =
                Some(Retired::at(&Now { wall: at, boottime: since, boot_id: now.boot_id.clone() }));
        }
        record
    }

    fn modified(&self, name: &Name) -> Option<Timestamp> {
        let stat = fsx::stat(&self.layout.home, name.as_str()).ok()??;
        Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).ok()?).ok()
    }

    /// Sets the modification time of a generation that is no longer current to now: what is on record may be lost, and
    /// git-sync, should it take the root back, has no other clock.
    pub(super) fn touch_retired(&self, name: &Name) -> Result<(), Error> {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(self.layout.home.as_fd(), name.as_str(), &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Error::io("touch the retired generation", self.layout.place(name)))
    }

    /// Puts on record what the current generation holds, after it was compared with that payload
    /// ([`Store::verify`]).
    pub fn adopt(&mut self, payload: &Payload, selection: &str, now: &Now) -> Result<(), Error> {
        let Some(name) = self.state.current.clone() else { return Ok(()) };
        for record in self.state.generations.iter_mut().filter(|record| record.name == name) {
            record.revision = payload.revision;
            record.tree = payload.tree;
            record.selection = selection.to_owned();
            (record.entries, record.bytes) = (payload.count(), payload.bytes);
            record.boot_id.clone_from(&now.boot_id); // it was seen in this boot, and not synced by us
        }
        self.save()
    }
}
