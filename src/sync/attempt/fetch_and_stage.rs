//! What takes room: fetching, staging, publishing. On a full volume each is tried once more after the mirror gave back
//! what was never published.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tracing::{debug, info};

use super::{Bounds, Choice, Stage, Worker};
use crate::clock;
use crate::generation::{GenerationRecord, Name};
use crate::human::one_line;
use crate::mirror::{self, Selection, Tip};
use crate::revision::Revision;
use crate::store::{self, Published};
use crate::sync::error::Error;
use crate::sync::hook_notice;
use crate::sync::spare::recycle;
use crate::sync::staging::Job;
use crate::telemetry::GIT_SYNC;

/// Which part of a pack its index takes, and what completes a pack that was sent as differences. It is an estimate: a
/// pack of tiny objects has a larger index.
const INDEX: u64 = 8;

impl Worker {
    /// Step 5.
    pub(super) async fn fetch(
        &mut self,
        bounds: &Bounds,
        tip: &Tip,
        wanted: &Selection,
    ) -> Result<Revision, Error> {
        let mut fetched = self.try_to_fetch(bounds, tip, wanted).await;
        if self.has_room_again(fetched.as_ref().err(), bounds, Stage::Fetch, None).await {
            fetched = self.try_to_fetch(bounds, tip, wanted).await;
        }
        if fetched.as_ref().is_err_and(Error::is_full) && self.end_graces(bounds, tip).await {
            self.make_room(bounds, Stage::Fetch, None).await; // of what only those needed that went
            fetched = self.try_to_fetch(bounds, tip, wanted).await;
        }
        fetched
    }

    /// Asks how much a fetch brings that has no room, and ends grace periods if that makes the room for it.
    async fn end_graces(&mut self, bounds: &Bounds, tip: &Tip) -> bool {
        if self.view.generations.len() < 2 && self.store().await.spare_bytes() == 0 {
            return false;
        }
        let held = self.held();
        let mut upstream = Arc::clone(&self.upstream).lock_owned().await;
        let bytes = match self.too_large {
            Some((object, bytes)) if object == tip.object => bytes,
            _ => match bounds.network(Stage::Fetch, upstream.pack_bytes(tip, &held)).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    debug!(error = one_line(&error), "it is not known how large it is");
                    return false;
                }
            },
        };
        self.too_large = Some((tip.object, bytes));
        let needed = bytes + bytes / INDEX + (1 << 18);
        let dir = upstream.dir();
        drop(upstream);
        let mut store = self.store().await;
        let made = bounds.blocking(Stage::Fetch, move |cancel| {
            let made = store.make_room_to_fetch(&dir, needed, cancel)?;
            Ok((made, store.generations().to_vec(), store.take_evicted()))
        });
        match made.await {
            Ok((made, generations, evicted)) => {
                self.show(generations, &evicted);
                made
            }
            Err(error) => {
                self.degraded("housekeep", &error);
                false
            }
        }
    }

    /// These are there now: some may have had to make room.
    fn show(&mut self, generations: Vec<GenerationRecord>, evicted: &BTreeMap<Name, String>) {
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
        let held = self.held();
        let look = self.store().await.spare_look();
        let look = bounds.blocking(Stage::Fetch, move |cancel| {
            if let Some(look) = look {
                look.run(cancel);
            }
            Ok(())
        });
        let mut upstream = self.upstream.lock().await;
        let fetch = bounds.network(Stage::Fetch, upstream.fetch(tip, &held, wanted));
        let (fetched, _) = tokio::join!(fetch, look); // without a look, the spare is looked at when it is used
        self.view.sources = upstream.rows(self.view.revision(), false);
        let revision = fetched?;
        self.metrics.took("fetch", began.elapsed());
        Ok(revision)
    }

    /// Steps 7 and 8: stages a revision that the mirror holds, as a delta on the spare where that is possible, and
    /// publishes it.
    pub(super) async fn stage_and_publish(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
        base: Option<mirror::Base>,
    ) -> Result<Published, Error> {
        let published = self.try_to_stage_and_publish(bounds, revision, choice, base).await;
        if self.has_room_again(published.as_ref().err(), bounds, Stage::Export, Some(revision)).await {
            self.try_to_stage_and_publish(bounds, revision, choice, base).await
        } else {
            published
        }
    }

    async fn try_to_stage_and_publish(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
        base: Option<mirror::Base>,
    ) -> Result<Published, Error> {
        self.spare.carried(bounds).await;
        self.spare.stop_and_wait().await;
        let local = self.view.revision().map(|revision| revision.to_string()).unwrap_or_default();
        let asked = self.options.asked.as_str();
        let updates = self.metrics.git_sync.updates();
        info!(name: "update", target: GIT_SYNC, asked, local, remote = %revision, updates, "update");
        let (choice, wanted) = (choice.clone(), choice.wanted.clone());
        let objects = self.objects().await;
        let worktrees = self.by_commit.then(|| objects.clone());
        let mut store = self.store().await;
        let metrics = self.metrics.clone();
        let current = self.readable.or(self.view.revision());
        let (mut store, staged, commit) = bounds
            .blocking(Stage::Export, move |cancel| {
                let began = Instant::now();
                let commit = objects.describe(revision);
                let objects = objects.until(cancel);
                // One that retired just now: a look at it costs less than a whole tree.
                let waits = store.spare_task().filter(|task| base.is_some() && task.retired().is_some());
                if let Some((task, current)) = waits.zip(current) {
                    let made = recycle(&task, &objects, current, &choice.wanted, cancel);
                    if let Err(error) = made {
                        debug!(error = one_line(&error), "a retired generation is not used again");
                    }
                }
                let job = Job { objects: &objects, choice: &choice, cancel };
                let mut staged = job.stage(&mut store, revision, base)?; // 7
                let sources = commit.iter().flat_map(|commit| &commit.sources);
                staged.is_composed_of(sources.map(|source| (source.name.clone(), source.revision)));
                metrics.took("export", began.elapsed());
                Ok((store, staged, commit))
            })
            .await?;
        bounds.check(Stage::Export)?;
        hook_notice::ask_gate(self.hooks.as_deref(), bounds, &staged, commit.as_ref()).await?; // the end of 7
        let metrics = self.metrics.clone();
        let hooks = self.hooks.clone();
        let root = self.root.clone();
        let (published, generations, evicted) = bounds
            .blocking(Stage::Publish, move |cancel| {
                if cancel.is_cancelled() {
                    return Err(store::Error::Cancelled.into());
                }
                let began = Instant::now();
                let worktrees = worktrees.map(|objects| objects.until(cancel));
                let mut ready = |record: &GenerationRecord, at: &Path| {
                    if let Some(objects) = &worktrees {
                        let place = root.join(record.name.place());
                        objects.add_worktree(record.revision, &wanted, at, &place)?;
                    }
                    if let Some(hooks) = &hooks {
                        hooks.publishing(&hook_notice::notice(record, commit.as_ref(), &root));
                    }
                    Ok::<(), Error>(())
                };
                let published = store.publish_and(staged, &clock::now(), &mut ready)?; // 8
                metrics.took("publish", began.elapsed());
                Ok((published, store.generations().to_vec(), store.take_evicted()))
            })
            .await?;
        self.unverified = false;
        self.lost = None;
        self.readable = Some(revision);
        self.view.ready = true;
        self.view.current = Some(published.current.name.clone());
        self.show(generations, &evicted);
        Ok(published)
    }

    /// Whether it failed for want of room, and there is room now.
    async fn has_room_again(
        &mut self,
        failed: Option<&Error>,
        bounds: &Bounds,
        stage: Stage,
        coming: Option<Revision>,
    ) -> bool {
        failed.is_some_and(Error::is_full) && self.make_room(bounds, stage, coming).await
    }

    /// Gives back what the mirror holds of revisions that were never published, but for the one that is coming. `true`:
    /// that made room. A revision that did not fit must not keep the next one out.
    async fn make_room(&mut self, bounds: &Bounds, stage: Stage, coming: Option<Revision>) -> bool {
        let keep: Vec<_> = coming.into_iter().chain(self.held()).collect();
        let store = self.store().await;
        let mut upstream = Arc::clone(&self.upstream).lock_owned().await;
        let made = bounds.blocking(stage, move |cancel| {
            store.wait_for_deletions(cancel); // of what did not fit
            Ok(upstream.make_room(&keep)?)
        });
        match made.await {
            Ok(made) => {
                if made {
                    info!("the volume is full: gave back what was fetched and not published; trying again");
                }
                made
            }
            Err(error) => {
                self.degraded("housekeep", &error);
                false
            }
        }
    }
}
