//! Garbage collection: bounds the mirror's size and number of packs, without a git program.
//!
//! Every update leaves a small pack, and the objects that it replaced stay behind as garbage. After a publication, and
//! without delaying it, one of three things is done, depending on [`super::Gc`]:
//!
//! - **Merge**: when there are more than [`super::Options::max_packs`] packs, the small ones are copied into one. A
//!   child process with the limits of the indexer does it, so that a hostile object cannot take the service down. No
//!   object is lost, so readers are not affected.
//! - **Renewal**: when garbage outweighs the objects that are needed, the next fetch asks for everything and claims no
//!   commits as present. Its pack needs no other pack, and after the next publication all others are removed. Earlier
//!   revisions can then no longer be read, so instead of a delta against one of them the whole payload is used. Not in
//!   git-sync's layout, where packs also hold foreign commits. If the fetch fails, an ordinary one follows in the
//!   same attempt, the next ones are ordinary, too, and garbage is collected as below. So it is if anything else is
//!   fetched before the older packs are removed: what came later may need them.
//! - **Garbage collection**: after a revision is gone that is not in the history of another one, or after the mirror
//!   has grown by half, a child process finds the objects that are still needed (see `indexer/repack`), and copies them
//!   out of packs with much garbage. It needs no network. Less than a quarter of each large pack remains as garbage.
//!
//! The same is done after something was fetched that is not published, such as a revision that is refused: any number
//! of them may follow each other. The last one stays, because the ref names it. It is no use to renew the mirror then:
//! what was refused before is alone in its packs, which only have to be removed.
//!
//! When the volume is full, a fourth thing is done before a publication: objects that were fetched and never published
//! are removed. Packs that hold nothing else go first, because removing them needs no space.
//!
//! A crash leaves, after each step:
//!
//! 1. while the child writes, also if it is killed because it takes too long: temporary files, removed before the next
//!    child starts, and at the next opening;
//! 2. with the merged pack in place: every object twice; the next merge takes both;
//! 3. while old packs are removed, index first: a pack without an index, which libgit2 ignores and the next opening
//!    removes; its objects are in the merged pack, or garbage;
//! 4. after a renewing fetch: as after any fetch, with the old packs as garbage until the next renewal.
//!
//! If an object that is needed cannot be read, nothing is removed, and the next fetch rebuilds the mirror; but not in
//! git-sync's layout.
//!
//! Packs are only removed while there are no readers (see [`super::shared`]); otherwise a later call removes them.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;

use fs_err as fs;

use super::closure::tree_closure;
use super::descriptors::check_descriptors;
use super::error::Error;
use super::fetch::Renewal;
use super::files::{Freed, fsync, local};
use super::gc_plan::{GcPlan, has_outgrown, plan_gc, time_limit, too_many};
use super::indexer::{self, Job, Needs, Report, Task};
use super::layout::Pack;
use super::odb::ObjectReader;
use super::repo_kind::RepoKind;
use super::{Gc, Mirror, Role, worktrees};
use crate::revision::{ObjectId, Revision};

impl Mirror {
    /// Does what [`super::Gc`] asks for after a publication, or after a fetch that led to none. `kept` are the
    /// published revisions, newest first.
    pub(super) fn collect_garbage(&mut self, kept: &[Revision]) -> Result<(), Error> {
        let is_submodule = self.role == Role::Submodule;
        if self.layout.kind() == RepoKind::Worktrees || is_submodule {
            for gone in worktrees::prune(self.layout.dir(), kept, is_submodule)? {
                tracing::debug!(worktree = gone, "removed the worktree of a generation that is gone");
            }
        }
        let is_published = self.layout.tip() == kept.first().map(|revision| revision.0);
        let kept = self.with_tip(kept);
        match self.options.gc {
            Gc::Off => Ok(()),
            Gc::Auto => self.limit_packs(&kept, is_published),
            Gc::Always | Gc::Aggressive => {
                if self.is_garbage_likely(&kept)? {
                    return self.repack(&kept, false).map(drop);
                }
                self.last_kept = Some(kept);
                // Each fetch of new history leaves a pack without garbage, so packs may need to be merged.
                too_many(&self.own_packs()?, self.options.max_packs)
                    .map_or(Ok(()), |names| self.merge(&names))
            }
        }
    }

    /// The `kept` revisions and, after them, what was fetched last: the ref names it, and it may still be published.
    pub(super) fn with_tip(&self, kept: &[Revision]) -> Vec<Revision> {
        let tip = self.layout.tip().map(Revision).filter(|tip| !kept.contains(tip));
        kept.iter().copied().chain(tip).collect()
    }

    /// Removes objects that none of the revisions in `keep` needs, on a full volume.
    pub(super) fn free_space(&mut self, keep: &[Revision]) -> Result<Freed, Error> {
        if self.options.gc == Gc::Off {
            return Ok(Freed::default());
        }
        let in_modules = self.free_modules(keep);
        if !matches!(in_modules, Ok(_) | Err(Error::Irreplaceable { .. })) {
            return in_modules;
        }
        let unfinished = self.layout.remove_unfinished_packs()?;
        let before = self.layout.bytes()?;
        if self.layout.kind() == RepoKind::Worktrees {
            worktrees::prune(self.layout.dir(), keep, self.role == Role::Submodule)?;
        }
        let present = self.present(keep)?;
        if self.layout.tip().is_some_and(|tip| !present.contains(&Revision(tip))) {
            // The ref is changed first, because from here on the objects of its tip may be removed.
            self.layout.set_tip(present.first().map(|id| id.0))?;
            self.settled = None;
        }
        let mut in_use = self.repack(&present, true)?;
        // Copying needs room and time. If it fails, what the first call removed still counts.
        match self.repack(&present, false) {
            Ok(more_in_use) => in_use |= more_in_use,
            Err(error) => {
                tracing::debug!(%error, "cannot copy the objects needed from other packs");
                self.layout.remove_unfinished_packs()?; // which the next call would take for freed space
            }
        }
        let freed = Freed { any: unfinished || self.layout.bytes()? < before, in_use };
        in_modules.map(|in_modules| in_modules.and(freed)).or_else(|error| freed.or_failure(error))
    }

    /// Returns true if there may be garbage since the mirror was last known to have none: a revision is not kept any
    /// more, and is not in the history of those that are. Or the mirror has grown by half: what was fetched and never
    /// kept is garbage, too.
    fn is_garbage_likely(&self, kept: &[Revision]) -> Result<bool, Error> {
        let bytes = self.layout.bytes()?;
        let before = match (&self.last_kept, self.layout.garbage_free_state()) {
            (_, Some((fresh, _))) if has_outgrown(bytes, fresh) => return Ok(true),
            (Some(before), _) => before.clone(),
            (None, Some((fresh, kept))) if fresh == bytes => kept,
            (None, _) => return Ok(true),
        };
        let gone: Vec<_> = before.into_iter().filter(|id| !kept.contains(id)).map(|id| id.0).collect();
        if gone.is_empty() {
            return Ok(false);
        }
        let ends: HashSet<_> = self.layout.shallow().into_iter().collect();
        let store = self.shared.store()?;
        Ok(!is_history(&store.objects()?, kept, &gone, &ends))
    }

    /// Those of the revisions that the mirror has. A generation that is still retained may be older than the mirror, if
    /// that was deleted, or belong to a time when submodules were off.
    fn present(&self, kept: &[Revision]) -> Result<Vec<Revision>, Error> {
        let store = self.shared.store()?;
        let reader = store.objects()?;
        let present: Vec<_> = kept.iter().copied().filter(|id| reader.commit(&id.0).is_ok()).collect();
        if present.len() < kept.len() {
            check_descriptors(self.layout.dir())?; // what only seems to be absent must not become garbage
        }
        Ok(present)
    }

    /// Removes objects that none of the `kept` revisions needs, as far as the mirror has these. With `no_room` nothing
    /// is rewritten, and only packs that consist of garbage are removed. Returns true if there was
    /// something to remove that readers kept in place.
    fn repack(&mut self, kept: &[Revision], no_room: bool) -> Result<bool, Error> {
        let present = self.present(kept)?;
        // If anything below fails, the next call must collect garbage again.
        self.last_kept = None;
        // Its objects may move to another pack.
        self.renewal_pack = None;
        self.layout.forget_garbage_free_state()?;
        let needs = Needs {
            kept_revisions: present.iter().map(|revision| revision.0).collect(),
            one_pack: self.options.gc == Gc::Aggressive,
            max_packs: self.options.max_packs,
            no_room,
        };
        let (pack, gone) = self.run(Task::CollectGarbage(needs))?;
        tracing::debug!(pack, gone = gone.join(" "), "garbage collection");
        let Some(_exclusive) = self.shared.exclusive() else { return Ok(!gone.is_empty()) };
        self.layout.remove_derived()?;
        self.remove(&gone)?;
        let store = self.shared.store()?;
        let reader = store.objects()?;
        let boundary: Vec<_> = self.layout.shallow().into_iter().filter(|id| reader.has(id)).collect();
        self.layout.set_shallow(&boundary)?;
        if !no_room {
            self.layout.record_garbage_free_state(kept)?;
            self.last_kept = Some(kept.to_vec());
        }
        Ok(false)
    }

    /// [`super::Gc::Auto`]: limits the number of packs and the amount of garbage. `is_published`: what was fetched last
    /// is the newest published revision.
    fn limit_packs(&mut self, kept: &[Revision], is_published: bool) -> Result<(), Error> {
        if let Some(renewal) = self.renewal_pack.clone() {
            // Until the revision of the renewal is published, the next delta is based on an earlier one. Any other tip,
            // such as an earlier one to which the ref was set back, may need the other packs.
            let published = is_published && self.layout.tip() == Some(renewal.tip);
            if !published || !self.remove_other_packs(&renewal.name)? {
                return Ok(());
            }
            self.renewal_pack = None;
        }
        let packs = self.own_packs()?;
        let fresh = self.layout.garbage_free_state().map(|(bytes, _)| bytes);
        match plan_gc(&packs, fresh, self.options.max_packs, self.options.max_bytes) {
            GcPlan::Nothing => Ok(()),
            // In git-sync's layout every retained generation needs its commit, those of submodules included, and the
            // packs also hold foreign commits, which the remote may not have. And for a partial clone or a source with
            // several refs, a single fetch does not bring everything that is published.
            GcPlan::Renew { .. }
                if self.shared.linked || self.shared.partial || self.role == Role::Source =>
            {
                self.repack(kept, false).map(drop)
            }
            GcPlan::Renew { bytes } if self.renewal == Renewal::Failed || !is_published => {
                let done = self.repack(kept, false).map(drop);
                // If the packs cannot be rewritten, only another renewal makes the mirror smaller. That may fail for
                // the same reason, and is a download of everything: so the mirror first grows by half.
                if done.is_ok() || has_outgrown(bytes, self.renewal_bytes) {
                    self.renewal = Renewal::Allowed;
                }
                done
            }
            GcPlan::Renew { bytes } => {
                self.renewal_bytes = bytes;
                tracing::info!(
                    bytes,
                    packs = packs.len(),
                    "the mirror has too much garbage; the next fetch rebuilds it"
                );
                self.renewal = Renewal::Due;
                Ok(())
            }
            GcPlan::Merge(names) => self.merge(&names),
        }
    }

    /// The packs, but for those from which another git process has just reused an object.
    fn own_packs(&self) -> Result<Vec<Pack>, Error> {
        let mut packs = self.layout.packs()?;
        packs.retain(|pack| !indexer::is_reused(self.layout.dir(), &pack.name));
        Ok(packs)
    }

    /// Copies some packs into one, and removes them.
    fn merge(&self, names: &[String]) -> Result<(), Error> {
        let (pack, gone) = self.run(Task::Merge(names.to_vec()))?;
        tracing::debug!(pack, packs = names.len(), "merged small packs");
        match self.shared.exclusive() {
            Some(_exclusive) => self.remove(&gone),
            None => Ok(()),
        }
    }

    /// Runs a task in a child process, within [`time_limit`]. Returns the pack that it wrote, and the packs that may be
    /// removed.
    fn run(&self, task: Task) -> Result<(Option<String>, Vec<String>), Error> {
        // Each child that was killed may have left one of the size of the mirror.
        self.layout.remove_unfinished_packs()?;
        let bytes = self.layout.bytes()?;
        // The limit is for received packs. Here existing packs are copied, which may be the sum of many fetches.
        let max_bytes = self.options.wire.max_fetch_bytes.max(bytes);
        let job = Job::new(&self.options, self.layout.dir(), task, max_bytes);
        let program = &self.options.indexer;
        let limit = time_limit(self.options.wire.timeouts.overall, bytes);
        let reported = indexer::run(program, &job, limit, &self.cancel);
        let ended = reported.and_then(|report| match report {
            Report::Collected { pack, gone } => Ok((pack, gone)),
            other => Err(indexer::failure(program, &job, other)),
        });
        ended.map_err(|error| {
            self.shared.forget_complete();
            self.note_damage_of_child(error)
        })
    }

    /// Makes the next fetch rebuild the mirror if an object of it cannot be read, as otherwise no garbage would be
    /// collected ever again. In git-sync's layout the mirror may have commits of consumers, which no remote has: it
    /// stays, and the error that is returned has a hint about it.
    fn note_damage_of_child(&self, error: Error) -> Error {
        match error {
            Error::Damaged { source, .. } if self.shared.linked => {
                Error::Irreplaceable { path: self.layout.dir().to_owned(), source }
            }
            error => {
                self.shared.note_if_damage(&error);
                error
            }
        }
    }

    /// Removes all packs but `pack`. If the tip is not complete then, damage is recorded. Returns false if nothing was
    /// removed because there are readers.
    fn remove_other_packs(&self, pack: &str) -> Result<bool, Error> {
        let Some(_exclusive) = self.shared.exclusive() else { return Ok(false) };
        let others = self.layout.packs()?.into_iter().map(|other| other.name).filter(|name| name != pack);
        self.remove(&others.collect::<Vec<_>>())?;
        let store = self.shared.store()?;
        let reader = store.objects()?;
        let whole = self.layout.tip().is_some_and(|tip| {
            reader.commit(&tip).is_ok_and(|commit| tree_closure(&reader, commit.tree, None, false).is_ok())
        });
        if whole {
            self.layout.record_garbage_free_state(&[])?;
        } else {
            // The server did not send everything. The next fetch starts with an empty mirror.
            self.shared.note_damage();
        }
        Ok(true)
    }

    /// Removes packs, but for those from which another git process has reused an object since they were found to be
    /// garbage.
    fn remove(&self, names: &[String]) -> Result<(), Error> {
        for name in names.iter().filter(|name| !indexer::is_reused(self.layout.dir(), name)) {
            for suffix in ["idx", "pack"] {
                let path = self.pack(name, suffix);
                fs::remove_file(&path).map_err(local("remove the merged", &path))?;
            }
            for suffix in ["rev", "bitmap", "promisor", "mtimes"] {
                let _ = fs::remove_file(self.pack(name, suffix)); // written by git only; most packs have none
            }
        }
        if self.options.durable { fsync(&self.layout.dir().join("objects/pack")) } else { Ok(()) }
    }

    fn pack(&self, name: &str, suffix: &str) -> PathBuf {
        self.layout.dir().join("objects/pack").join(format!("{name}.{suffix}"))
    }
}

/// The most commits that [`is_history`] visits.
const COMMITS_MAX: usize = 10_000;

/// Returns true if all of `gone` are found in the history of the kept revisions. `ends` is the shallow boundary.
fn is_history(
    reader: &ObjectReader<'_>,
    kept: &[Revision],
    gone: &[ObjectId],
    ends: &HashSet<ObjectId>,
) -> bool {
    let mut sought: HashSet<_> = gone.iter().copied().collect();
    let mut seen: HashSet<_> = kept.iter().map(|revision| revision.0).collect();
    let mut queue: VecDeque<_> = seen.iter().copied().collect();
    while let Some(at) = queue.pop_front().filter(|_| seen.len() < COMMITS_MAX && !sought.is_empty()) {
        sought.remove(&at);
        if let Some(commit) = reader.commit(&at).ok().filter(|_| !ends.contains(&at)) {
            queue.extend(commit.parents.into_iter().filter(|id| seen.insert(*id)));
        }
    }
    sought.is_empty()
}
