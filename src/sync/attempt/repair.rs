//! Repairs without network access: links and left-overs of the root are put right, the current generation is compared
//! with its revision, and published again if it is gone or was changed. A generation without a record is adopted if its
//! content is right.

use std::collections::BTreeSet;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Bounds, Choice, Stage, Worker};
use crate::clock;
use crate::generation::GenerationRecord;
use crate::phase::Commit;
use crate::revision::Revision;
use crate::store::{Published, Staged};
use crate::sync::drive::Work as _;
use crate::sync::error::Error;
use crate::sync::hook_event;
use crate::sync::view::View;

impl Worker {
    /// Repairs the root while no attempt runs. Whatever of it fails, a scrub that is due does not stay due: it would
    /// cause a repair each second.
    pub(super) async fn repair_between_attempts(
        &mut self,
        bounds: &Bounds,
    ) -> Result<Option<Published>, Error> {
        if let Err(error) = self.repair_root(bounds).await {
            self.scrubs.skip().await;
            return Err(error);
        }
        match self.try_to_republish(bounds).await {
            Ok(None) => self.scrub(bounds).await,
            Err(error) if !matches!(error, Error::Interrupted) => match self.scrub(bounds).await? {
                None => Err(error),
                republished => Ok(republished),
            },
            done => done,
        }
    }

    /// Publishes a damaged generation afresh. After a failure it is left to the next attempt, or tried again after half
    /// a period: a parked sync makes no attempts.
    async fn try_to_republish(&mut self, bounds: &Bounds) -> Result<Option<Published>, Error> {
        let pause = self.options.pace.period / 2;
        if self.republish_failed.is_some_and(|at| at.elapsed() < pause) {
            return Ok(None);
        }
        let choice = self.choice(bounds).await?;
        self.note_republish_failed(None); // `restore` may note it again
        let done = self.republish_damaged(bounds, &choice).await;
        if done.as_ref().is_err_and(|error| !matches!(error, Error::Interrupted)) {
            self.note_republish_failed(Some(Instant::now()));
        }
        done
    }

    /// Records when publishing the current revision afresh failed.
    pub(super) fn note_republish_failed(&mut self, at: Option<Instant>) {
        self.republish_failed = at;
        self.view.is_damaged = at.is_some();
    }

    /// Repairs links, removes left-overs, reaps, and updates the view. No network.
    pub(super) async fn repair_root(&mut self, bounds: &Bounds) -> Result<(), Error> {
        let mut store = self.store().await;
        let repaired = bounds
            .blocking(Stage::Repair, move |cancel| {
                let now = clock::now();
                let recovered = store.repair(&now)?;
                let plan = store.plan_to_reap(&now, cancel)?;
                let reaped = store.reap(&plan);
                let generations = store.generations().to_vec();
                let current = store.current().map(|record| record.name.clone());
                let found = (generations, current, plan, store.room());
                Ok((found, (reaped, store.take_evicted()), recovered, store.waits_for_recycling()))
            })
            .await;
        self.root_missing = repaired.as_ref().is_err_and(Error::is_root_missing);
        let ((generations, current, plan, room), (reaped, evicted), recovered, waits) = repaired?;
        self.waits_for_recycling = waits;
        for line in &recovered.done {
            warn!("repaired: {line}");
        }
        for line in &recovered.foreign {
            debug!("left alone: {line}");
        }
        let in_doubt = recovered.in_doubt;
        let warnings: BTreeSet<String> = recovered.warnings.into_iter().collect();
        for line in warnings.difference(&self.repair_warnings) {
            warn!("{line}");
        }
        self.repair_warnings = warnings;
        self.note_reaped(&reaped, &evicted);
        if current != self.view.current {
            // If it still existed, it was replaced: by another writer, or by a swap whose result was unclear.
            let mut found = generations.iter().map(|record| &record.name).chain(&reaped);
            let is_gone = |was: &&GenerationRecord| found.all(|name| *name != was.name);
            let was = self.view.current().filter(|record| record.known_revision().is_some());
            self.lost = was.filter(is_gone).cloned().or(self.lost.take());
            self.readable = None; // it has the tree of what was current
        }
        // A root that was opened again has no spare.
        self.housekeeping_due |= !reaped.is_empty() || !recovered.done.is_empty();
        let view = std::mem::take(&mut self.view);
        self.view = View { generations, current, plan, room, ..view };
        self.unverified |=
            in_doubt || self.by_commit && self.view.current().is_some_and(|record| !record.is_known());
        self.view.plan.decisions.retain(|decision| !reaped.contains(&decision.name));
        Ok(())
    }

    /// Evaluates a scrub that has ended, and starts one that is due. A generation with signs of a foreign write is
    /// compared with its revision, and published afresh if it differs. No network.
    pub(super) async fn scrub(&mut self, bounds: &Bounds) -> Result<Option<Published>, Error> {
        if !self.is_in_doubt(bounds).await? {
            return Ok(None);
        }
        self.scrubs.was_in_doubt();
        match self.verify_found(bounds).await {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                self.log_nonfatal("verify", &error); // repeated later: it must not keep newer revisions unpublished
                Ok(None)
            }
            done => done,
        }
    }

    /// Evaluates the scrub that has ended and starts the next one if it is due. Returns true if the current generation
    /// has to be compared with its revision.
    async fn is_in_doubt(&mut self, bounds: &Bounds) -> Result<bool, Error> {
        let ended = self.scrubs.ended().await;
        let is_due = self.scrubs.is_due() && self.view.ready;
        if is_due && self.unverified {
            return Ok(true); // the last comparison failed
        }
        if ended.is_none() && !is_due {
            return Ok(false);
        }
        if is_due {
            self.scrubs.start(None); // so that an interval passes before the next one even if this fails
        }
        let mut store = self.store().await;
        let evaluated = bounds.blocking(Stage::Repair, move |_| {
            let found = ended.and_then(Result::ok).and_then(|scrubbed| store.scrubbed(scrubbed));
            Ok((found, if is_due { store.scrub() } else { None }))
        });
        let (found, next) = evaluated.await?;
        match found {
            Some(Err(why)) => {
                debug!(why, "the current generation is compared with its revision");
                self.unverified = true;
                return Ok(true);
            }
            Some(Ok(())) => self.scrubs.was_clean(),
            None => {}
        }
        if next.is_some() {
            self.scrubs.start(next);
        }
        Ok(false)
    }

    /// Compares the current generation with `revision`, which has the same tree and is in the mirror, if it is
    /// unverified and was published under the same selection. Publishes it afresh if it differs. `None`: nothing was
    /// published.
    pub(super) async fn verify(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
    ) -> Result<Option<Published>, Error> {
        self.readable = Some(revision);
        let claims = |record: &GenerationRecord| self.is_claimed(record, revision);
        let is_comparable = |record: &&GenerationRecord| {
            self.unverified && (record.selection_digest == choice.digest || claims(record))
        };
        let Some(record) = self.view.current().filter(is_comparable).cloned() else { return Ok(None) };
        let objects = self.objects.clone();
        let mut store = self.store().await;
        let wanted = choice.wanted.clone();
        let digest = choice.digest.clone();
        let (differences, generations) = bounds
            .blocking(Stage::Export, move |cancel| {
                let objects = objects.until(cancel);
                let payload = objects.payload(revision, &wanted)?;
                let mut differences = store.verify(&payload, cancel)?;
                if store.is_git_sync() && objects.worktree_head(revision) != Some(revision) {
                    differences
                        .push("git's administrative directory of the worktree is not as expected".to_owned());
                }
                if differences.is_empty() && !record.is_known() {
                    store.adopt(&payload, &digest, &clock::now())?;
                }
                Ok((differences, store.generations().to_vec()))
            })
            .await
            // Too large to be compared within one attempt. If it is served already, it is served unverified.
            .inspect_err(|error| {
                self.housekeeping_due = true; // if a scrub had doubts, it discarded the spare
                self.unverified &= !(self.view.ready && matches!(error, Error::Timeout { .. }));
            })?;
        if differences.is_empty() {
            // If a scrub had doubts, it discarded the spare.
            self.housekeeping_due = true;
            self.unverified = false;
            self.view.ready = true;
            self.view.generations = generations;
            return Ok(None);
        }
        let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("; ");
        let generation = self.view.current.as_ref().map(ToString::to_string);
        warn!(
            generation, %revision, differences = differences.len(),
            "the current generation is not what was published ({shown}): publishing it afresh"
        );
        self.spare.stop_and_wait().await;
        let store = self.store().await;
        // The spare's hard links may share the inodes that were changed.
        bounds.blocking(Stage::Repair, move |cancel| Ok(store.drop_spare(cancel)?)).await?;
        let published = self.stage_and_publish(bounds, revision, choice, None).await?;
        self.metrics.damaged.inc();
        Ok(Some(published))
    }

    /// Updates the current generation's record to `revision`, which has the same tree. Readers see no change.
    pub(super) async fn advance_record(&mut self, bounds: &Bounds, revision: Revision) -> Result<(), Error> {
        if self.by_commit || self.view.revision() == Some(revision) {
            return Ok(());
        }
        let objects = self.objects.clone();
        let mut store = self.store().await;
        let noted = bounds.blocking(Stage::Publish, move |_| {
            let parts = objects.parts(revision).into_iter().map(|part| (part.name, part.revision));
            store.advance(revision, parts.collect())?;
            Ok(store.generations().to_vec())
        });
        let before = self.view.revision();
        self.view.generations = noted.await?;
        if let (Some(before), Some(current)) = (before, self.view.current()) {
            // Nothing is published, so an operator who waits for this commit would find no trace of it.
            info!(
                %revision, generation = %current.name,
                "{} has the same files as {}: {} stays current", revision.short(), before.short(), current.name
            );
        }
        Ok(())
    }

    /// Returns true if the generation has no record, but a name that contains this revision (as git-sync's have).
    pub(super) fn is_claimed(&self, record: &GenerationRecord, revision: Revision) -> bool {
        !record.is_known() && record.name.commit() == Some(revision)
    }

    /// Publishes the current revision again if its generation is gone or, in git-sync's layout, if its HEAD names
    /// another commit.
    pub(super) async fn republish_damaged(
        &mut self,
        bounds: &Bounds,
        choice: &Choice,
    ) -> Result<Option<Published>, Error> {
        if let Some(revision) = self.lost.as_ref().and_then(GenerationRecord::known_revision) {
            return self.restore(bounds, revision, choice).await;
        }
        let Some(revision) = self.view.revision().filter(|_| self.by_commit && !self.unverified) else {
            return Ok(None);
        };
        let objects = self.objects.clone();
        let head = bounds.blocking(Stage::Repair, move |_| Ok(objects.worktree_head(revision))).await?;
        if head == Some(revision) {
            return Ok(None);
        }
        let head = head.map_or_else(|| "nothing".to_owned(), |head| head.to_string());
        warn!(%revision, head, "the HEAD of the current generation names something else: publishing it afresh");
        if !self.holds(bounds, revision).await? {
            self.unverified = true; // so that this attempt fetches and compares it
            return Ok(None);
        }
        self.stage_and_publish(bounds, revision, choice, None).await.map(Some)
    }

    /// Runs the pre-publish gate on what was staged, unless it is what the current generation, or the lost one, has to
    /// hold. That was published already, and the gate must not keep damaged content in its place.
    pub(super) async fn ask_gate(
        &self,
        bounds: &Bounds,
        staged: &Staged,
        commit: Option<&Commit>,
    ) -> Result<(), Error> {
        // In git-sync's layout another commit with the same tree is a new generation.
        let is_same = |record: &GenerationRecord| {
            staged.repeats(record) && (!self.by_commit || record.revision == staged.revision())
        };
        if self.view.current().into_iter().chain(&self.lost).any(is_same) {
            return Ok(());
        }
        hook_event::ask_gate(self.hooks.as_deref(), bounds, staged, commit).await
    }

    /// Publishes `revision` again after its generation was lost and an older one, or none, took its place. This comes
    /// before any network access and only if the mirror still holds the revision; otherwise, or if it fails, the
    /// attempt goes on with what the remote has.
    async fn restore(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
    ) -> Result<Option<Published>, Error> {
        if !self.holds(bounds, revision).await? {
            return Ok(None);
        }
        match self.stage_and_publish(bounds, revision, choice, None).await {
            Ok(published) => {
                let name = &published.current.name;
                warn!(%revision, generation = %name, "the current generation was gone: published again as {name}");
                Ok(Some(published))
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                self.log_nonfatal("restore", &error);
                self.note_republish_failed(Some(Instant::now()));
                Ok(None)
            }
        }
    }
}
