//! Publication in the kubelet's layout: how a staged generation becomes current. [`super::worktrees`] does the same for
//! git-sync's layout.
//!
//! The writer's lock is held throughout. The steps, called P1 to P9, what a crash right after each one leaves, and
//! what the next start does about it:
//!
//! 1. Check that each top-level name of the tree is free in the root or is one of our root links. Then reap the retired
//!    generations that exceed `--max-generations`.
//!    *Crash:* a directory in staging. Discarded.
//! 2. Write the record, synced, saying that this generation is being published.
//!    *Crash:* a record without a directory. Dropped.
//! 3. Rename the staged directory to its name in the root.
//!    *Crash:* a complete generation that `..data` does not name. Discarded, unless `..data` is missing, so that the
//!    swap may have happened, or a reader has pinned it.
//! 4. Create root links for new top-level names, pointing into the new generation itself, and remove those of names
//!    that the tree no longer has. From here on readers of a removed name see `ENOENT`, and readers of a new name see
//!    the new content.
//!    *Crash:* root links created or removed too early. Brought in line with the generation that `..data` names.
//! 5. Create the symlink `..data_tmp`.
//!    *Crash:* a left-over that would make every later P5 fail. Removed.
//! 6. Rename `..data_tmp` over `..data`: the swap. This is the one event that readers wait for; when it arrives,
//!    everything a reader can list or open is in place.
//!    *Crash before:* the old generation is current. *Crash after:* the new one is, and P7 to P9 are done at start.
//! 7. Point the root links of P4 to `..data/<name>`, by renames over them.
//!    *Crash:* root links that name the generation directly. Pointed to `..data` at start.
//! 8. Sync the root directory.
//!    *Power cut before:* either generation is current, and both are complete: their content was synced before P1.
//! 9. Write the records: the new generation is current, the old one retired now. Its grace period starts.
//!    *Crash before:* the old one counts as retired from the next start on.
//!
//! A failure before P6 changes nothing below `..data`. A failure after P6 does not fail the publication:
//! it is reported, and repaired in the next cycle.

use std::path::Path;
use std::sync::Arc;

use crate::clock::{self, Now};
use crate::fsx;
use crate::generation::{GenerationRecord, Name, Retired};
use crate::human::one_line;
use crate::store::links::{Names, TopNames};
use crate::store::recover::RecoveryTime;
use crate::store::{Durability, Error, Published, Recovered, Staged, Store};

/// A callback before the swap, with the new generation's record and its present path. An error aborts the publication.
pub type Ready<'a, E> = &'a mut dyn FnMut(&GenerationRecord, &Path) -> Result<(), E>;

impl Store {
    /// Publishes a staged generation in the numbered steps of this module. `now` gives the generation its name; the
    /// grace period of the previous one starts after the swap.
    pub fn publish(&mut self, staged: Staged, now: &Now) -> Result<Published, Error> {
        self.publish_and(staged, now, &mut |_, _| Ok(()))
    }

    /// Like [`Store::publish`], and calls `ready` between P4 and P5.
    pub fn publish_and<E: From<Error>>(
        &mut self,
        mut staged: Staged,
        now: &Now,
        ready: Ready<'_, E>,
    ) -> Result<Published, E> {
        if self.handles.is_git_sync {
            return self.publish_worktree(staged, now, ready);
        }
        // P1
        let names = TopNames::of(&staged.dir).map_err(Error::io("list", staged.path()))?;
        self.handles.refuse_collisions(&names)?;
        self.reap_excess(staged.unshared());
        let name = Name::new(now.wall, self.state.generations.iter().map(|record| &record.name));
        let record = staged.record(name.clone(), now);
        // P2
        self.announce(record.clone())?;
        let stamps = staged.stamps.take();
        // P3, P4, P5, P6
        let added =
            self.swap_in(staged, &record, &names, ready).inspect_err(|_| self.withdraw(&name, now))?;
        let previous = self.state.current.replace(name.clone());
        self.stamps.put(&name, stamps);
        self.trim_journal();
        self.top_names = Some((name, Arc::new(names)));
        // P7, P8, P9
        let warnings = self.finish_publication_steps(&added, previous.as_ref(), now);
        Ok(Published { current: record, previous, warnings })
    }

    /// P2: records that this generation is being published.
    fn announce(&mut self, record: GenerationRecord) -> Result<(), Error> {
        let name = record.name.clone();
        self.state.publishing = Some(name.clone());
        self.state.put(record);
        self.save().inspect_err(|_| {
            self.state.publishing = None;
            self.state.remove(&name);
            self.unsaved = true; // the file may have the old or the new content
        })
    }

    /// P3 to P6. Returns the root links that P7 has to point to `..data`.
    fn swap_in<E: From<Error>>(
        &mut self,
        staged: Staged,
        record: &GenerationRecord,
        names: &TopNames,
        ready: Ready<'_, E>,
    ) -> Result<Names, E> {
        let handles = &self.handles;
        let name = &record.name;
        let place = handles.path_of(name);
        // P3. A gate may have taken the write permission away.
        fsx::walk::move_dir(&handles.staging, staged.name(), &handles.root, name.as_str())
            .map_err(Error::io("rename the staged directory to", &place))?;
        staged.mark_moved();
        // P4
        let added = handles.add_links(names, name)?;
        handles.remove_links(names, name.as_str())?;
        ready(record, &place)?;
        // P5, P6
        self.swap(name)?;
        Ok(added)
    }

    /// P5 and P6. Recovery has moved anything that is not a symlink away from the link's name, but the rename would
    /// replace a file created there since, so the name is checked once more.
    pub(super) fn swap(&self, name: &Name) -> Result<(), Error> {
        let link = &self.handles.link;
        if let fsx::Link::Other(_) = link.read()? {
            let source = std::io::Error::other("it is not a symbolic link any more");
            return Err(Error::Io { act: "swap", path: link.path(), source });
        }
        // P5
        link.make_tmp(name)?;
        // P6
        link.swap_tmp()
    }

    /// Undoes P2 to P5 by running recovery. If that fails, the next cycle's recovery does it.
    pub(super) fn withdraw(&mut self, name: &Name, now: &Now) {
        if let Err(error) = self.recover_into(now, RecoveryTime::Running, &mut Recovered::default()) {
            tracing::warn!(generation = %name, error = %error, "the failed publication could not be taken back yet");
        }
    }

    /// P7 to P9. Their failures are returned as warnings: the generation is published already.
    pub(super) fn finish_publication_steps(
        &mut self,
        added: &Names,
        previous: Option<&Name>,
        now: &Now,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |done: Result<(), Error>| warnings.extend(done.err().map(|error| one_line(&error)));
        // P7
        warn(self.handles.finish_links(added));
        // P8
        warn(self.sync_link());
        // P9
        self.state.publishing = None;
        let latest = clock::now(); // the syncs before the swap may have taken seconds since `now`
        let now = if latest.boottime > now.boottime { &latest } else { now };
        for record in &mut self.state.generations {
            if Some(&record.name) == previous {
                record.retired = Some(Retired::at(now));
            }
        }
        warn(self.save());
        if let Some(previous) = previous.filter(|_| self.handles.is_git_sync) {
            warn(self.touch_retired(previous));
        }
        warnings
    }

    /// Syncs the link's directory. In the kubelet's layout that is the root, so all names in it become durable.
    pub(super) fn sync_link(&mut self) -> Result<(), Error> {
        if self.options.durability == Durability::None {
            return Ok(());
        }
        self.unsynced = true;
        let link = &self.handles.link;
        fsx::sync_dir(&link.dir).map_err(Error::io("sync", link.dir_path()))?;
        self.unsynced = false;
        Ok(())
    }

    /// Writes the state file.
    pub(super) fn save(&mut self) -> Result<(), Error> {
        let flush = match self.options.durability {
            Durability::Syncfs => fsx::Flush::Content,
            Durability::None => fsx::Flush::Lazy,
        };
        self.unsaved = true;
        self.handles.save(&self.state, flush)?;
        self.unsaved = false;
        Ok(())
    }
}
