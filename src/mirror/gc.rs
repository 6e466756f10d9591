//! Bounded growth, without a git program.
//!
//! Every update leaves a small pack, and what an update replaced stays behind as garbage. Three things are done about
//! it, all after a publication and none in its way; [`super::Gc`] says which:
//!
//! - **Merge**: when there are more than [`super::Options::max_packs`] packs, the small ones become one. A child under
//!   the
//!   same limits as the indexer's copies their objects, so a hostile object can not take the service down. No object is
//!   lost, so readers cannot notice.
//! - **Renewal**: when garbage outweighs what is needed, the next fetch asks for everything and claims nothing; the
//!   pack it gets stands for itself, and after the publication that follows all the others are removed. The revisions
//!   before it can then no longer be read; a delta against one of them is made from the whole tree instead. Not in
//!   git-sync's layout, where other people's commits are in the packs, too.
//! - **Garbage collection**: after a revision went that is not part of another's history, a child finds what is needed
//!   still (by whom: `indexer/repack`) and writes it out of the packs that hold much garbage. No network. What stays of
//!   garbage is less than a quarter of each large pack.
//!
//! And one in its way, where the volume is full: what was fetched and never published is given back; whole packs first,
//! because nothing need be written for that.
//!
//! A crash leaves, after each step:
//!
//! 1. while the child writes: temporary files, swept at the next opening;
//! 2. with the merged pack in place: every object twice; the next merge takes both;
//! 3. while old packs are removed, index first: a pack without an index is not seen by libgit2, and is swept; its
//!    objects are in the merged pack, or garbage;
//! 4. after a renewing fetch: as after any fetch, and the old packs as garbage until the next renewal.
//!
//! Packs are only removed while there are no readers (see [`super::shared`]); otherwise the next call does it.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;

use fs_err as fs;

use super::closure::tree_closure;
use super::error::{Error, Libgit2};
use super::files::{local, sync_dir};
use super::gc_plan::{GcPlan, plan_gc, too_many};
use super::indexer::{self, Job, Needs, Report, Task};
use super::layout::Pack;
use super::odb::ObjectReader;
use super::repo_kind::RepoKind;
use super::{Gc, Mirror, pack_index, worktrees};
use crate::revision::{ObjectId, Revision};

impl Mirror {
    pub(super) fn collect_garbage(&mut self, held: &[Revision]) -> Result<(), Error> {
        if self.layout.form() == RepoKind::Worktrees || self.inner {
            for gone in worktrees::prune(self.layout.dir(), held, self.inner)? {
                tracing::debug!(worktree = gone, "removed the worktree of a generation that is gone");
            }
        }
        match self.options.gc {
            Gc::Off => Ok(()),
            Gc::Auto => self.limit_packs(held),
            Gc::Always | Gc::Aggressive => {
                let due = self.is_garbage_likely(held)?;
                self.held = Some(held.to_vec());
                match due {
                    true => self.repack(held, false),
                    // Each fetch of new history leaves a pack, and none of it is garbage.
                    false => too_many(&self.own_packs()?, self.options.max_packs)
                        .map_or(Ok(()), |names| self.merge(&names)),
                }
            }
        }
    }

    pub(super) fn free_space(&mut self, keep: &[Revision]) -> Result<bool, Error> {
        if self.options.gc == Gc::Off {
            return Ok(false);
        }
        let given_back = self.free_modules(keep)?;
        let before = self.layout.bytes()?;
        if self.layout.form() == RepoKind::Worktrees {
            worktrees::prune(self.layout.dir(), keep, self.inner)?;
        }
        let here: Vec<_> = {
            let store = self.shared.store()?;
            let reader = store.reader();
            let reader = reader.map_err(|source| Error::Git {
                act: "open the mirror's objects".into(),
                source: Libgit2(source),
            })?;
            keep.iter().copied().filter(|id| reader.commit(&id.0).is_ok()).collect()
        };
        if self.layout.tip().is_some_and(|tip| !here.contains(&Revision(tip))) {
            // First: what it names may go from here on.
            self.layout.set_tip(here.first().map(|id| id.0))?;
            (self.settled, self.renewed) = (None, None);
        }
        self.repack(&here, true)?;
        match self.repack(&here, false) {
            Err(error) if error.is_full() => {
                tracing::debug!(%error, "no room for what is needed of other packs");
            }
            ended => ended?,
        }
        Ok(given_back || self.layout.bytes()? < before)
    }

    /// Whether something may have become garbage since the mirror was last known to have none: a revision went, and
    /// is not part of another's history.
    fn is_garbage_likely(&self, held: &[Revision]) -> Result<bool, Error> {
        let before = match &self.held {
            Some(before) => before.clone(),
            None => match self.layout.size_without_garbage() {
                Some((bytes, held)) if bytes == self.layout.bytes()? => held,
                _ => return Ok(true),
            },
        };
        let gone: Vec<_> = before.into_iter().filter(|id| !held.contains(id)).map(|id| id.0).collect();
        if gone.is_empty() {
            return Ok(false);
        }
        let ends: HashSet<_> = self.layout.shallow().into_iter().collect();
        let store = self.shared.store()?;
        let reader = store.reader().map_err(|source| Error::Git {
            act: "open the mirror's objects".into(),
            source: Libgit2(source),
        })?;
        Ok(!is_history(&reader, held, &gone, &ends))
    }

    /// Removes what nothing needs; where there is no room to write what is needed anew, whole packs only.
    fn repack(&mut self, held: &[Revision], no_room: bool) -> Result<(), Error> {
        // Again the next time, whatever goes wrong.
        self.held = None;
        self.layout.forget_size_without_garbage()?;
        let needs = Needs {
            held: held.iter().map(|held| held.0).collect(),
            one_pack: self.options.gc == Gc::Aggressive,
            max_packs: self.options.max_packs,
            no_room,
        };
        let job = self.job(Task::CollectGarbage(needs))?;
        let (pack, gone) = match indexer::run(&self.options.indexer, &job)? {
            Report::Collected { pack, gone } => (pack, gone),
            other => return Err(indexer::failure(&self.options.indexer, &job, other)),
        };
        tracing::debug!(pack, gone = gone.join(" "), "garbage collection");
        let Some(_alone) = self.shared.alone() else { return Ok(()) };
        self.layout.remove_derived()?;
        self.remove(&gone)?;
        let store = self.shared.store()?;
        let reader = store.reader().map_err(|source| Error::Git {
            act: "open the mirror's objects".into(),
            source: Libgit2(source),
        })?;
        let boundary: Vec<_> = self.layout.shallow().into_iter().filter(|id| reader.has(id)).collect();
        self.layout.set_shallow(&boundary)?;
        if !no_room {
            self.layout.set_size_without_garbage(held)?;
            self.held = Some(held.to_vec());
        }
        Ok(())
    }

    /// Keeps packs few, and garbage below what is needed.
    fn limit_packs(&mut self, held: &[Revision]) -> Result<(), Error> {
        if let Some(pack) = self.renewed.clone() {
            // Until the renewing revision is published, the next delta starts from the one before.
            let published = held.first().map(|held| held.0) == self.layout.tip();
            if !published || !self.remove_other_packs(&pack)? {
                return Ok(());
            }
            self.renewed = None;
        }
        let packs = self.own_packs()?;
        let fresh = self.layout.size_without_garbage().map(|(bytes, _)| bytes);
        match plan_gc(&packs, fresh, self.options.max_packs, self.options.max_bytes) {
            GcPlan::Nothing => Ok(()),
            // Commits and refs of others are in there, too: the remote could not bring them again.
            // And of a partial clone, or of several refs, one fetch does not bring all that is published.
            GcPlan::Renew { .. }
                if self.layout.form() == RepoKind::Worktrees || self.shared.partial || self.of_source =>
            {
                self.repack(held, false)
            }
            GcPlan::Renew { bytes } => {
                tracing::info!(
                    bytes,
                    packs = packs.len(),
                    "the mirror holds much garbage; the next fetch renews it"
                );
                self.renew = true;
                Ok(())
            }
            GcPlan::Merge(names) => self.merge(&names),
        }
    }

    /// The packs that no other git has just reused an object of.
    fn own_packs(&self) -> Result<Vec<Pack>, Error> {
        let mut packs = self.layout.packs()?;
        packs.retain(|pack| !indexer::is_reused(self.layout.dir(), &pack.name));
        Ok(packs)
    }

    /// Makes some packs one.
    fn merge(&self, names: &[String]) -> Result<(), Error> {
        let job = self.job(Task::Merge(names.to_vec()))?;
        let merged = match indexer::run(&self.options.indexer, &job)? {
            Report::Merged(name) => name,
            other => return Err(indexer::failure(&self.options.indexer, &job, other)),
        };
        let held: HashSet<ObjectId> = self.ids(&merged)?.into_iter().collect();
        let mut old = Vec::new();
        for name in names.iter().filter(|name| **name != merged) {
            if self.ids(name)?.iter().all(|id| held.contains(id)) {
                old.push(name.clone());
            }
        }
        tracing::debug!(packs = names.len(), objects = held.len(), "merged small packs");
        if let Some(_alone) = self.shared.alone() {
            self.remove(&old)?;
        }
        Ok(())
    }

    fn job(&self, task: Task) -> Result<Job, Error> {
        let bytes = self.layout.bytes()?;
        Ok(Job {
            dir: self.layout.dir().to_owned(),
            task,
            memory: self.options.index_memory,
            // Nothing is received: what is written is what is here already, which may be the sum of many fetches.
            max_bytes: self.options.wire.max_fetch_bytes.max(bytes),
            durable: self.options.durable,
            sandbox: self.options.sandbox,
        })
    }

    /// Removes every pack but one, if there are no readers and that one is enough. `false`: not now.
    fn remove_other_packs(&self, pack: &str) -> Result<bool, Error> {
        let Some(_alone) = self.shared.alone() else { return Ok(false) };
        let others = self.layout.packs()?.into_iter().map(|other| other.name).filter(|name| name != pack);
        self.remove(&others.collect::<Vec<_>>())?;
        let store = self.shared.store()?;
        let reader = store.reader().map_err(|source| Error::Git {
            act: "open the mirror's objects".into(),
            source: Libgit2(source),
        })?;
        let whole = self.layout.tip().is_some_and(|tip| {
            reader.commit(&tip).is_ok_and(|commit| tree_closure(&reader, commit.tree, None, false).is_ok())
        });
        if whole {
            self.layout.set_size_without_garbage(&[])?;
        } else {
            // The server left out what it does not know of. The next fetch starts with an empty mirror.
            self.shared.note_damage();
        }
        Ok(true)
    }

    /// Removes packs, but for one of which another git has reused an object since it was found to be garbage.
    fn remove(&self, names: &[String]) -> Result<(), Error> {
        for name in names.iter().filter(|name| !indexer::is_reused(self.layout.dir(), name)) {
            for suffix in ["idx", "pack"] {
                let path = self.pack(name, suffix);
                fs::remove_file(&path).map_err(local("remove the merged", &path))?;
            }
            for suffix in ["rev", "bitmap", "promisor", "mtimes"] {
                let _ = fs::remove_file(self.pack(name, suffix)); // git's own; most packs have none
            }
        }
        if self.options.durable { sync_dir(&self.layout.dir().join("objects/pack")) } else { Ok(()) }
    }

    fn ids(&self, name: &str) -> Result<Vec<ObjectId>, Error> {
        let path = self.pack(name, "idx");
        pack_index::ids(&path).map_err(local("read", &path))
    }

    fn pack(&self, name: &str, suffix: &str) -> PathBuf {
        self.layout.dir().join("objects/pack").join(format!("{name}.{suffix}"))
    }
}

/// Commits that are looked at before history is given up.
const LOOK: usize = 10_000;

/// Whether all of `gone` are in the history of what is held.
fn is_history(
    reader: &ObjectReader<'_>,
    held: &[Revision],
    gone: &[ObjectId],
    ends: &HashSet<ObjectId>,
) -> bool {
    let mut sought: HashSet<_> = gone.iter().copied().collect();
    let mut seen: HashSet<_> = held.iter().map(|held| held.0).collect();
    let mut queue: VecDeque<_> = seen.iter().copied().collect();
    while let Some(at) = queue.pop_front().filter(|_| seen.len() < LOOK && !sought.is_empty()) {
        sought.remove(&at);
        if let Some(commit) = reader.commit(&at).ok().filter(|_| !ends.contains(&at)) {
            queue.extend(commit.parents.into_iter().filter(|id| seen.insert(*id)));
        }
    }
    sought.is_empty()
}
