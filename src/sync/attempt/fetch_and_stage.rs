//! The steps that need disk space: fetch, stage, publish. On a full volume each is tried once more after the mirror
//! deleted objects that were never published. A fetch that still does not fit may end grace periods.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OwnedMutexGuard;
use tracing::{debug, info};

use super::{Bounds, Choice, Stage, Worker};
use crate::clock;
use crate::generation::{GenerationRecord, Name};
use crate::human::one_line;
use crate::mirror::{self, Selection, Submodules, Tip};
use crate::phase::Commit;
use crate::revision::Revision;
use crate::store::{self, Published, Staged, Store};
use crate::sync::error::Error;
use crate::sync::hook_event;
use crate::sync::spare::recycle;
use crate::sync::staging::Job;
use crate::telemetry::GIT_SYNC;

/// The divisor that estimates, from the size of a pack, the size of its index and of the delta bases that complete a
/// thin pack. A pack of tiny objects has a larger index.
const INDEX: u64 = 8;

/// What A7 made of a revision.
struct StagedRevision {
    staged: Staged,
    /// The commit's metadata; `None` if it is not known.
    commit: Option<Commit>,
    /// The store, which stays locked until the generation is published.
    store: OwnedMutexGuard<Store>,
}

impl Worker {
    /// A5.
    pub(super) async fn fetch(
        &mut self,
        bounds: &Bounds,
        tip: &Tip,
        wanted: &Selection,
    ) -> Result<Revision, Error> {
        let mut fetched = self.try_to_fetch(bounds, tip, wanted).await;
        if self.made_room_after(fetched.as_ref().err(), bounds, Stage::Fetch, None).await {
            fetched = self.try_to_fetch(bounds, tip, wanted).await;
        }
        if fetched.as_ref().is_err_and(Error::is_full) && self.end_grace_periods(bounds, tip).await {
            self.make_room(bounds, Stage::Fetch, None).await; // objects that only evicted generations needed
            fetched = self.try_to_fetch(bounds, tip, wanted).await;
        }
        fetched
    }

    /// Asks the remote for the size of the fetch that did not fit, and removes retired generations before the end of
    /// their grace period if that makes room for it. Returns true if there is room now.
    async fn end_grace_periods(&mut self, bounds: &Bounds, tip: &Tip) -> bool {
        if self.view.generations.len() < 2 && self.store().await.spare_bytes() == 0 {
            return false;
        }
        let kept = self.kept_revisions();
        let oversized = async {
            let mut upstream = self.upstream(bounds, Stage::Fetch).await?;
            let bytes = match self.oversized_fetch {
                Some((object, bytes)) if object == tip.object => Some(bytes),
                _ => bounds.network(Stage::Fetch, upstream.pack_bytes(tip, &kept)).await?,
            };
            Ok::<_, Error>(bytes.map(|bytes| (bytes, upstream.dir())))
        };
        let (bytes, dir) = match oversized.await {
            Ok(Some(oversized)) => oversized,
            Ok(None) => return false,
            Err(error) => {
                debug!(error = one_line(&error), "it is not known how large it is");
                return false;
            }
        };
        self.oversized_fetch = Some((tip.object, bytes));
        let needed = bytes + bytes / INDEX + (1 << 18);
        self.housekeeping_due = true; // the spare may be dropped
        let mut store = self.store().await;
        let made = bounds.blocking(Stage::Fetch, move |cancel| {
            let made = store.make_room_to_fetch(&dir, needed, cancel)?;
            Ok((made, store.generations().to_vec(), store.take_evicted()))
        });
        match made.await {
            Ok((made, generations, evicted)) => {
                self.update_generations(generations, &evicted);
                made
            }
            Err(error) => {
                self.log_nonfatal("housekeep", &error);
                false
            }
        }
    }

    /// Updates the view to the generations that exist now, and logs those that were removed to make room.
    fn update_generations(&mut self, generations: Vec<GenerationRecord>, evicted: &BTreeMap<Name, String>) {
        let before = self.view.generations.iter().map(|record| &record.name);
        let gone = before.filter(|name| generations.iter().all(|record| record.name != **name));
        self.note_reaped(gone, evicted);
        self.view.generations = generations;
    }

    async fn try_to_fetch(
        &mut self,
        bounds: &Bounds,
        tip: &Tip,
        wanted: &Selection,
    ) -> Result<Revision, Error> {
        let began = Instant::now();
        let kept = self.kept_revisions();
        let spare_check = self.store().await.spare_check();
        let inspect_spare = bounds.blocking(Stage::Fetch, move |cancel| {
            if let Some(spare_check) = spare_check {
                spare_check.run(cancel);
            }
            Ok(())
        });
        let mut upstream = self.upstream(bounds, Stage::Fetch).await?;
        let fetch = bounds.network(Stage::Fetch, upstream.fetch(tip, &kept, wanted));
        // If the inspection fails, the spare is inspected when it is used.
        let (fetched, _) = tokio::join!(fetch, inspect_spare);
        self.view.sources = upstream.source_statuses(self.view.revision(), false);
        self.placement = upstream.placement();
        let revision = fetched?;
        self.metrics.took("fetch", began.elapsed());
        Ok(revision)
    }

    /// A7 and A8: stages a revision that the mirror holds and publishes it. With a `base`, only what differs from
    /// it is written, onto the spare, where possible.
    pub(super) async fn stage_and_publish(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
        base: Option<mirror::Base>,
    ) -> Result<Published, Error> {
        let mut published = self.try_to_stage_and_publish(bounds, revision, choice, base).await;
        if self.made_room_after(published.as_ref().err(), bounds, Stage::Export, Some(revision)).await {
            published = self.try_to_stage_and_publish(bounds, revision, choice, base).await;
        }
        self.housekeeping_due |= published.is_err(); // it may have used up the spare
        published
    }

    async fn try_to_stage_and_publish(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
        base: Option<mirror::Base>,
    ) -> Result<Published, Error> {
        self.spare.wait_until_ready(bounds).await;
        self.spare.stop_and_wait().await;
        let local = self.view.revision().map(|revision| revision.to_string()).unwrap_or_default();
        let ref_name = self.options.ref_name.as_str();
        let updates = self.metrics.git_sync.updates();
        info!(name: "update", target: GIT_SYNC, git_ref = ref_name, local, remote = %revision, updates, "update");
        let made = self.stage(bounds, revision, choice, base).await?; // A7
        bounds.check(Stage::Export)?;
        self.ask_gate(bounds, &made.staged, made.commit.as_ref()).await?; // the end of A7
        self.publish(bounds, made, &choice.wanted).await // A8
    }

    /// A7 without the gate.
    async fn stage(
        &self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
        base: Option<mirror::Base>,
    ) -> Result<StagedRevision, Error> {
        let choice = choice.clone();
        let objects = self.objects.clone();
        let mut store = self.store().await;
        let metrics = self.metrics.clone();
        let current = self.readable.or(self.view.revision());
        // --sources has no submodules, and no flag for them.
        let is_off = self.payload_inputs.submodules == Submodules::Off && self.view.sources.is_empty();
        let submodules_off_logged = is_off.then(|| Arc::clone(&self.submodules_off_logged));
        let may_link = !self.spare.is_slow();
        let staged = bounds.blocking(Stage::Export, move |cancel| {
            let began = Instant::now();
            let commit = objects.describe(revision);
            let objects = objects.until(cancel);
            // A generation may have retired just now: recycling it costs less than writing a whole tree.
            let task = store.spare_task().filter(|task| base.is_some() && task.retired().is_some());
            if let Some((task, current)) = task.zip(current) {
                let recycled = recycle(&task, &objects, current, &choice.wanted, cancel);
                if let Err(error) = recycled {
                    debug!(error = one_line(&error), "a retired generation cannot be recycled");
                }
            }
            let submodules_off_logged = submodules_off_logged.as_deref();
            let job = Job { objects: &objects, choice: &choice, may_link, cancel, submodules_off_logged };
            let mut staged = job.stage(&mut store, revision, base)?;
            let sources = commit.iter().flat_map(|commit| &commit.sources);
            staged.set_sources(sources.map(|source| (source.name.clone(), source.revision)));
            metrics.took("export", began.elapsed());
            Ok(StagedRevision { staged, commit, store })
        });
        staged.await
    }

    /// A8. Publishes what was staged, notifies the pre-publish hook just before, and updates the view.
    async fn publish(
        &mut self,
        bounds: &Bounds,
        made: StagedRevision,
        wanted: &Selection,
    ) -> Result<Published, Error> {
        let StagedRevision { staged, commit, mut store } = made;
        let revision = staged.revision();
        let wanted = wanted.clone();
        let worktrees = self.by_commit.then(|| self.objects.clone());
        let metrics = self.metrics.clone();
        // Also of what is published again: a hook that is trying again must not do so in the directory that is gone.
        let hooks = self.hooks.clone();
        let root = self.root.clone();
        let published = bounds.blocking(Stage::Publish, move |cancel| {
            if cancel.is_cancelled() {
                return Err(store::Error::Cancelled.into());
            }
            let began = Instant::now();
            let worktrees = worktrees.map(|objects| objects.until(cancel));
            let mut ready = |record: &GenerationRecord, at: &Path| {
                if let Some(objects) = &worktrees {
                    let place = root.join(record.name.relative_path());
                    objects.add_worktree(record.revision, &wanted, at, &place)?;
                }
                if let Some(hooks) = &hooks {
                    hooks.publishing(&hook_event::of_record(record, commit.as_ref(), &root));
                }
                Ok::<(), Error>(())
            };
            let published = store.publish_and(staged, &clock::now(), &mut ready)?;
            metrics.took("publish", began.elapsed());
            Ok((published, store.generations().to_vec(), store.take_evicted()))
        });
        let (published, generations, evicted) = published.await?;
        self.unverified = false;
        self.lost = None;
        self.readable = Some(revision);
        self.view.ready = true;
        self.view.current = Some(published.current.name.clone());
        self.update_generations(generations, &evicted);
        Ok(published)
    }

    /// Returns true if the step failed because the volume is full and [`Self::make_room`] freed space.
    async fn made_room_after(
        &mut self,
        failed: Option<&Error>,
        bounds: &Bounds,
        stage: Stage,
        coming: Option<Revision>,
    ) -> bool {
        failed.is_some_and(Error::is_full) && self.make_room(bounds, stage, coming).await
    }

    /// Deletes the mirror's objects of revisions that were never published, except `coming`: a revision that did not
    /// fit must not keep the next one out. Returns true if that freed space.
    async fn make_room(&mut self, bounds: &Bounds, stage: Stage, coming: Option<Revision>) -> bool {
        let keep: Vec<_> = coming.into_iter().chain(self.kept_revisions()).collect();
        let store = self.store().await;
        let made = async {
            let mut upstream = self.upstream(bounds, stage).await?;
            let make = move |cancel: &_| {
                store.wait_for_deletions(cancel); // of the staged files that did not fit
                Ok(upstream.make_room(&keep, cancel)?)
            };
            bounds.blocking(stage, make).await
        };
        match made.await {
            Ok(made) => {
                if made {
                    info!("the volume is full: removed unpublished fetched objects; trying again");
                }
                made
            }
            Err(error) => {
                self.log_nonfatal("housekeep", &error);
                false
            }
        }
    }
}
