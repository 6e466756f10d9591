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
//!    *Crash:* a complete generation that the link does not name. If its name has a serial number, it counts as
//!    retired, of unknown content. Otherwise it is discarded, unless the link is missing, so that the swap may have
//!    happened, or a reader has pinned it.
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
use crate::store::{Durability, Error, Published, Staged, Store, probe};

/// The names of a new generation in `.worktrees`.
struct WorktreeNames {
    /// Its name once it is published.
    name: Name,
    /// Its name until step 5. After an exchange, the replaced generation has it.
    initial: Name,
    /// True if the entry that has `name` now is the current generation.
    replaces_current: bool,
}

impl WorktreeNames {
    /// Returns true if step 5 exchanges two names.
    fn exchanges(&self) -> bool {
        self.name != self.initial
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
        self.reap_excess(staged.unshared());
        let names = self.choose_names(&staged)?;
        let mut record = staged.record(names.name.clone(), now);
        record.lineage = None; // files are not shared in this layout, and names are reused
        if let Some(newest) = self.state.generations.first() {
            // Names give no order here, publication times do: they must grow even if the clock went back.
            let after = newest.published.checked_add(SignedDuration::from_nanos(1));
            record.published = record.published.max(after.unwrap_or(newest.published));
        }
        let before = self.state.clone();
        // 2
        self.announce_worktree(&record, &names)
            .inspect_err(|_| self.restore_records(before.clone(), None))?;
        // 3, 4, 5
        self.move_in(staged, &record, &names, ready).inspect_err(|_| {
            self.restore_records(before.clone(), Some(&names.initial));
            self.withdraw(&names.initial, now);
        })?;
        // 6, 7
        let mut warnings = Vec::new();
        match self.swap(&names.name) {
            Ok(()) => {}
            Err(error) if names.exchanges() && names.replaces_current => warnings.push(one_line(&error)),
            Err(error) => {
                if !names.exchanges() {
                    self.restore_records(before, Some(&names.name));
                }
                self.withdraw(&names.name, now);
                return Err(error.into());
            }
        }
        let previous = self.state.current.replace(names.name.clone());
        let previous =
            if names.exchanges() && names.replaces_current { Some(names.initial.clone()) } else { previous };
        // 8, 9
        warnings.extend(self.clear_name(&names).err().map(|error| one_line(&error)));
        warnings.extend(self.finish_publication_steps(&Names::default(), previous.as_ref(), now));
        Ok(Published { current: record, previous, warnings })
    }

    /// Step 1: chooses the names, and renames an entry out of the way if names cannot be exchanged.
    fn choose_names(&mut self, staged: &Staged) -> Result<WorktreeNames, Error> {
        let name = Name::from_commit(staged.revision());
        let place = self.handles.path_of(&name);
        let there = fsx::stat(&self.handles.generations_dir, name.as_str());
        let taken = there.map_err(Error::io("stat", &place))?.is_some();
        let replaces_current = self.handles.linked_generation()?.as_ref() == Some(&name);
        if !taken {
            return Ok(WorktreeNames { initial: name.clone(), name, replaces_current: false });
        }
        let free = self.free_name(&name)?;
        if self.can_exchange()? {
            return Ok(WorktreeNames { name, initial: free, replaces_current });
        }
        if replaces_current {
            return Ok(WorktreeNames { name: free.clone(), initial: free, replaces_current: false });
        }
        fsx::rename_new(
            &self.handles.generations_dir,
            name.as_str(),
            &self.handles.generations_dir,
            free.as_str(),
        )
        .map_err(Error::io("rename", &place))?;
        self.state.rename(&name, &free);
        Ok(WorktreeNames { initial: name.clone(), name, replaces_current: false })
    }

    /// Returns true if the file system can exchange two names.
    fn can_exchange(&mut self) -> Result<bool, Error> {
        let exchange = match self.probes.exchange {
            Some(known) => known,
            None => probe::can_exchange(&self.handles)?,
        };
        self.probes.exchange = Some(exchange);
        Ok(exchange)
    }

    /// Step 2: records what is being published and what it replaces.
    fn announce_worktree(&mut self, record: &GenerationRecord, names: &WorktreeNames) -> Result<(), Error> {
        self.state.publishing = Some(names.name.clone());
        self.state.replacing = names.exchanges().then(|| names.initial.clone());
        self.state.rename(&names.name, &names.initial);
        self.state.put(record.clone());
        self.save()
    }

    /// Steps 3 to 5.
    fn move_in<E: From<Error>>(
        &mut self,
        staged: Staged,
        record: &GenerationRecord,
        names: &WorktreeNames,
        ready: Ready<'_, E>,
    ) -> Result<(), E> {
        let handles = &self.handles;
        let worktrees = &handles.generations_dir;
        let place = handles.path_of(&names.initial);
        // 3. A gate may have taken the write permission away.
        fsx::walk::move_dir(&handles.staging, staged.name(), worktrees, names.initial.as_str())
            .map_err(Error::io("rename the staged directory to", &place))?;
        staged.mark_moved();
        self.sync_worktrees()?;
        // 4
        ready(record, &place)?;
        // 5
        if names.exchanges() {
            let failed = Error::io("put the new generation in the place of", handles.path_of(&names.name));
            let done = fsx::exchange(worktrees, names.initial.as_str(), worktrees, names.name.as_str())
                .map_err(failed)?;
            if !done {
                let source = std::io::Error::other("the file system cannot exchange two names any more");
                return Err(Error::Io { act: "exchange", path: place, source }.into());
            }
        }
        Ok(())
    }

    /// After an exchange: the replaced entry is a retired generation if it has a record. Otherwise it was not a
    /// generation, and goes to the trash.
    fn clear_name(&mut self, names: &WorktreeNames) -> Result<(), Error> {
        self.state.replacing = None;
        if !names.exchanges() {
            return Ok(());
        }
        if self.state.record(&names.initial).is_none() {
            let failed = Error::io("move to the trash", self.handles.path_of(&names.initial));
            self.trash.put(&self.handles.generations_dir, names.initial.as_str(), None).map_err(failed)?;
        }
        self.sync_worktrees()
    }

    /// Syncs `.worktrees`.
    fn sync_worktrees(&self) -> Result<(), Error> {
        if self.options.durability == Durability::None {
            return Ok(());
        }
        fsx::sync_dir(&self.handles.generations_dir)
            .map_err(Error::io("sync", self.handles.at(crate::generation::WORKTREES)))
    }

    /// Restores these records, with `publishing` set to the generation that recovery has to undo. The state file may
    /// have other content.
    fn restore_records(&mut self, before: State, publishing: Option<&Name>) {
        self.state = before;
        self.state.publishing = publishing.cloned();
        self.unsaved = true;
    }
}
