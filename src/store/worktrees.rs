//! Publication in git-sync's layout: how a staged generation becomes `.worktrees/<commit>`, and current.
//!
//! As in [`super::publish`], the writer's lock is held throughout. The steps, what a crash right after each one leaves,
//! and what the next start does about it:
//!
//! 1. Check whether the commit's name is taken in `.worktrees`: by another generation of the same commit, current or
//!    retired, or by something else. If it is, the new generation has a serial number after its name until step 5. If
//!    the file system cannot exchange names (NFS), there are two cases: an entry that is not current is renamed out of
//!    the way now; if the current generation has the name, the new one keeps its serial number for good.
//!    *Crash:* a directory in staging, which is discarded; a renamed entry, which is an ordinary retired generation.
//! 2. Write the records, synced: what is being published, and what it replaces.
//!    *Crash:* a record without a directory. Dropped.
//! 3. Rename the staged directory to its name in `.worktrees`, and sync that directory: the link may be on another file
//!    system.
//!    *Crash:* a complete generation that the link does not name. Discarded, or reaped if its name has a serial number.
//! 4. Call back before the swap: the mirror writes git's administrative directory for the worktree, and hooks start.
//!    *Crash:* the same. The mirror's next housekeeping removes what it wrote for a generation that does not exist.
//! 5. If the name is taken, exchange the two names (`RENAME_EXCHANGE`). If the other one is current, this is the swap:
//!    the link names the new generation without having been changed.
//!    *Crash before or after:* it is unknown which of the two has the name. The link names one of them, and both are
//!    complete; the content is compared with the commit before anything relies on the name.
//! 6. Create the temporary link next to the published one.
//!    *Crash:* a left-over that would make every later step 6 fail. Removed.
//! 7. Rename it over the published link: the swap or, after an exchange, the event that watchers wait for.
//!    *Crash before:* the old generation is current. *Crash after:* the new one is; steps 8 and 9 are done at start.
//! 8. Sync the link's directory, and `.worktrees` after an exchange.
//!    *Power cut before:* either generation is current, and both are complete.
//! 9. Write the records: the new generation is current, the old one retired now. Also set the old one's mtime: git-sync
//!    knows the age of a worktree only from that.
//!    *Crash before:* the old one counts as retired from the next start on.
//!
//! A failure before the swap changes nothing that is published; a failure after it is reported and repaired in the next
//! cycle.

use jiff::SignedDuration;

use crate::clock::Now;
use crate::fsx;
use crate::generation::{GenerationRecord, Name};
use crate::human::one_line;
use crate::store::links::Names;
use crate::store::publish::Ready;
use crate::store::state::State;
use crate::store::{Durability, Error, Published, Staged, Store};

/// The names of a new generation in `.worktrees`.
struct WorktreeNames {
    /// Its name once it is published.
    name: Name,
    /// Its name until step 5. After an exchange, the replaced generation has it.
    first: Name,
    /// True if the entry that has `name` now is the current generation.
    serves: bool,
}

impl WorktreeNames {
    /// Returns true if step 5 exchanges two names.
    fn exchanges(&self) -> bool {
        self.name != self.first
    }
}

impl Store {
    /// Publishes a staged generation in the numbered steps of this module, and calls `ready` in step 4.
    pub(super) fn publish_worktree<E: From<Error>>(
        &mut self,
        staged: Staged,
        now: &Now,
        ready: Ready<'_, E>,
    ) -> Result<Published, E> {
        // 1
        self.make_way(staged.own());
        let spot = self.choose_names(&staged)?;
        let mut record = staged.record(spot.name.clone(), now);
        record.lineage = None; // files are not shared in this layout, and names are reused
        if let Some(newest) = self.state.generations.first() {
            // Names give no order here, publication times do: they must grow even if the clock went back.
            let after = newest.published.checked_add(SignedDuration::from_nanos(1));
            record.published = record.published.max(after.unwrap_or(newest.published));
        }
        let before = self.state.clone();
        // 2
        self.announce_worktree(&record, &spot).inspect_err(|_| self.forget(before.clone(), None))?;
        // 3, 4, 5
        self.move_in(staged, &record, &spot, ready).inspect_err(|_| {
            self.forget(before.clone(), Some(&spot.first));
            self.withdraw(&spot.first, now);
        })?;
        // 6, 7
        let mut warnings = Vec::new();
        match self.swap(&spot.name) {
            Ok(()) => {}
            Err(error) if spot.exchanges() && spot.serves => warnings.push(one_line(&error)),
            Err(error) => {
                if !spot.exchanges() {
                    self.forget(before, Some(&spot.name));
                }
                self.withdraw(&spot.name, now);
                return Err(error.into());
            }
        }
        let previous = self.state.current.replace(spot.name.clone());
        let previous = if spot.exchanges() && spot.serves { Some(spot.first.clone()) } else { previous };
        // 8, 9
        warnings.extend(self.clear_name(&spot).err().map(|error| one_line(&error)));
        warnings.extend(self.finish_publication_steps(&Names::default(), previous.as_ref(), now));
        Ok(Published { current: record, previous, warnings })
    }

    /// Step 1: chooses the names, and renames an entry out of the way if names cannot be exchanged.
    fn choose_names(&mut self, staged: &Staged) -> Result<WorktreeNames, Error> {
        let name = Name::of(staged.revision());
        let failed = |act| Error::io(act, self.layout.place(&name));
        let taken = fsx::stat(&self.layout.home, name.as_str()).map_err(failed("look at"))?.is_some();
        let serves = self.layout.named()?.as_ref() == Some(&name);
        if !taken {
            return Ok(WorktreeNames { first: name.clone(), name, serves: false });
        }
        let free = self.free_name(&name)?;
        if self.probes.exchange {
            return Ok(WorktreeNames { name, first: free, serves });
        }
        if serves {
            return Ok(WorktreeNames { name: free.clone(), first: free, serves: false });
        }
        fsx::rename_new(&self.layout.home, name.as_str(), &self.layout.home, free.as_str())
            .map_err(failed("rename"))?;
        self.state.rename(&name, &free);
        Ok(WorktreeNames { first: name.clone(), name, serves: false })
    }

    /// Step 2: records what is being published and what it replaces.
    fn announce_worktree(&mut self, record: &GenerationRecord, spot: &WorktreeNames) -> Result<(), Error> {
        self.state.publishing = Some(spot.name.clone());
        self.state.replacing = spot.exchanges().then(|| spot.first.clone());
        self.state.rename(&spot.name, &spot.first);
        self.state.put(record.clone());
        self.save()
    }

    /// Steps 3 to 5.
    fn move_in<E: From<Error>>(
        &mut self,
        staged: Staged,
        record: &GenerationRecord,
        spot: &WorktreeNames,
        ready: Ready<'_, E>,
    ) -> Result<(), E> {
        let layout = &self.layout;
        let home = &layout.home;
        let place = layout.place(&spot.first);
        // 3
        fsx::rename_new(&layout.staging, staged.name(), home, spot.first.as_str())
            .map_err(Error::io("rename the staged directory to", &place))?;
        staged.was_moved();
        self.sync_home()?;
        // 4
        ready(record, &place)?;
        // 5
        if spot.exchanges() {
            let failed = Error::io("put the new generation in the place of", layout.place(&spot.name));
            let done = fsx::exchange(home, spot.first.as_str(), home, spot.name.as_str()).map_err(failed)?;
            if !done {
                let source = std::io::Error::other("the file system cannot exchange two names any more");
                return Err(Error::Io { act: "exchange", path: place, source }.into());
            }
        }
        Ok(())
    }

    /// After an exchange: the replaced entry is a retired generation if it has a record. Otherwise it was not a generation,
    /// and goes to the trash.
    fn clear_name(&mut self, spot: &WorktreeNames) -> Result<(), Error> {
        self.state.replacing = None;
        if !spot.exchanges() {
            return Ok(());
        }
        if self.state.record(&spot.first).is_none() {
            let failed = Error::io("move to the trash", self.layout.place(&spot.first));
            self.trash.put(&self.layout.home, spot.first.as_str(), None).map_err(failed)?;
        }
        self.sync_home()
    }

    /// Syncs `.worktrees`.
    fn sync_home(&self) -> Result<(), Error> {
        if self.options.durability == Durability::None {
            return Ok(());
        }
        fsx::sync_dir(&self.layout.home)
            .map_err(Error::io("sync", self.layout.at(crate::generation::WORKTREES)))
    }

    /// Restores these records, with `publishing` set to the generation that recovery has to undo. The state file may have
    /// other content.
    fn forget(&mut self, before: State, publishing: Option<&Name>) {
        self.state = before;
        self.state.publishing = publishing.cloned();
        self.unsaved = true;
    }
}
