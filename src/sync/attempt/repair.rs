//! What is current is compared with its revision, published again where it is gone or was changed, and taken up where
//! somebody else published it. No network.

use std::collections::BTreeSet;

use tracing::{debug, warn};

use super::{Bounds, Choice, Stage, Worker};
use crate::clock;
use crate::generation::GenerationRecord;
use crate::revision::Revision;
use crate::store::Published;
use crate::sync::drive::Work as _;
use crate::sync::error::Error;
use crate::sync::view::View;

impl Worker {
    /// Mends links, removes left-overs, and reaps. No network.
    pub(super) async fn mend_root(&mut self, bounds: &Bounds) -> Result<(), Error> {
        let mut store = self.store().await;
        let ready = self.view.ready;
        let mirror_bytes = self.view.mirror_bytes;
        let commits = self.view.commits.clone();
        let sources = self.view.sources.clone();
        let heard = self.view.heard;
        let mended = bounds
            .blocking(Stage::Mend, move |cancel| {
                let now = clock::now();
                let recovered = store.repair(&now)?;
                let plan = store.plan_to_reap(&now, cancel)?;
                let reaped = store.reap(&plan);
                let view = View {
                    generations: store.generations().to_vec(),
                    current: store.current().map(|record| record.name.clone()),
                    plan,
                    ready,
                    room: store.room(),
                    mirror_bytes,
                    commits,
                    sources,
                    heard,
                };
                Ok((view, (reaped, store.take_evicted()), recovered, store.waits_for_recycling()))
            })
            .await;
        self.rootless = mended.as_ref().is_err_and(Error::is_without_root);
        let (view, (reaped, evicted), recovered, waits) = mended?;
        self.waits_for_recycling = waits;
        for line in &recovered.done {
            warn!("mended: {line}");
        }
        for line in &recovered.foreign {
            debug!("not ours, left alone: {line}");
        }
        let unmended: BTreeSet<String> = recovered.warnings.into_iter().collect();
        for line in unmended.difference(&self.unmended) {
            warn!("not mended: {line}");
        }
        self.unmended = unmended;
        self.note_reaped(&reaped, &evicted);
        if view.current != self.view.current {
            self.lost = self.view.revision().or(self.lost);
        }
        self.untidy |= !reaped.is_empty();
        self.view = view;
        self.unverified |= self.by_commit && self.view.current().is_some_and(|record| !record.is_known());
        self.view.plan.decisions.retain(|decision| !reaped.contains(&decision.name));
        Ok(())
    }

    /// Takes note of the scrub that has ended, and starts one that is due. What is in doubt is compared, and published
    /// afresh where it was changed. No network.
    pub(super) async fn scrub(&mut self, bounds: &Bounds) -> Result<Option<Published>, Error> {
        if !self.is_in_doubt(bounds).await? {
            return Ok(None);
        }
        self.scrubs.was_in_doubt();
        match self.verify_found(bounds).await {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                self.degraded("verify", &error); // it is tried again, and must not keep newer revisions away
                Ok(None)
            }
            done => done,
        }
    }

    async fn is_in_doubt(&mut self, bounds: &Bounds) -> Result<bool, Error> {
        let ended = self.scrubs.ended().await;
        let is_due = self.scrubs.is_due() && self.view.ready;
        if is_due && self.unverified {
            return Ok(true); // it could not be compared the last time
        }
        if ended.is_none() && !is_due {
            return Ok(false);
        }
        if is_due {
            self.scrubs.start(None); // an interval passes before the next one even if this fails
        }
        let mut store = self.store().await;
        let look = bounds.blocking(Stage::Mend, move |_| {
            let found = ended.and_then(Result::ok).and_then(|scrubbed| store.scrubbed(scrubbed));
            Ok((found, if is_due { store.scrub() } else { None }))
        });
        let (found, next) = look.await?;
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

    /// Compares the current generation with a revision of the same tree that the mirror holds.
    pub(super) async fn verify(
        &mut self,
        bounds: &Bounds,
        revision: Revision,
        choice: &Choice,
    ) -> Result<Option<Published>, Error> {
        self.readable = Some(revision);
        let claims = |record: &GenerationRecord| self.is_claimed(record, revision);
        let chosen = |record: &&GenerationRecord| {
            self.unverified && (record.selection == choice.digest || claims(record))
        };
        let Some(record) = self.view.current().filter(chosen).cloned() else { return Ok(None) };
        let objects = self.objects().await;
        let mut store = self.store().await;
        let wanted = choice.wanted.clone();
        let digest = choice.digest.clone();
        let (differences, generations) = bounds
            .blocking(Stage::Export, move |cancel| {
                let objects = objects.until(cancel);
                let payload = objects.payload(revision, &wanted)?;
                let mut differences = store.verify(&payload, cancel)?;
                if store.is_git_sync() && objects.worktree_head(revision) != Some(revision) {
                    differences.push("git's own directory about it is not as it should be".to_owned());
                }
                if differences.is_empty() && !record.is_known() {
                    store.adopt(&payload, &digest, &clock::now())?;
                }
                Ok((differences, store.generations().to_vec()))
            })
            .await
            // Too large to be compared in one attempt: it may serve as it is if it may serve at all.
            .inspect_err(|error| {
                self.unverified &= !(self.view.ready && matches!(error, Error::Timeout { .. }));
            })?;
        if differences.is_empty() {
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
        bounds.blocking(Stage::Mend, move |cancel| Ok(store.drop_spare(cancel)?)).await?; // links would share what was changed
        let published = self.stage_and_publish(bounds, revision, choice, None).await?;
        self.metrics.damaged.inc();
        Ok(Some(published))
    }

    /// The current generation is what this revision holds, too: its record says so from now on. Nothing that readers of
    /// files could see changes.
    pub(super) async fn advance_record(&mut self, bounds: &Bounds, revision: Revision) -> Result<(), Error> {
        if self.by_commit || self.view.revision() == Some(revision) {
            return Ok(());
        }
        let objects = self.objects().await;
        let mut store = self.store().await;
        let noted = bounds.blocking(Stage::Publish, move |_| {
            let parts = objects.parts(revision).into_iter().map(|part| (part.name, part.revision));
            store.advance(revision, parts.collect())?;
            Ok(store.generations().to_vec())
        });
        self.view.generations = noted.await?;
        Ok(())
    }

    /// Whether a generation that is not on record says by its name that it is this revision's.
    pub(super) fn is_claimed(&self, record: &GenerationRecord, revision: Revision) -> bool {
        !record.is_known() && record.name.commit() == Some(revision)
    }

    /// Publishes the current revision again where its generation is gone, or where a commit was made in it.
    pub(super) async fn republish_damaged(
        &mut self,
        bounds: &Bounds,
        choice: &Choice,
    ) -> Result<Option<Published>, Error> {
        if let Some(revision) = self.lost {
            return self.restore(bounds, revision, choice).await;
        }
        let Some(revision) = self.view.revision().filter(|_| self.by_commit && !self.unverified) else {
            return Ok(None);
        };
        let objects = self.objects().await;
        let head = bounds.blocking(Stage::Mend, move |_| Ok(objects.worktree_head(revision))).await?;
        if head == Some(revision) {
            return Ok(None);
        }
        let head = head.map_or_else(|| "nothing".to_owned(), |head| head.to_string());
        warn!(%revision, head, "the HEAD of the current generation names something else: publishing it afresh");
        if !self.holds(bounds, revision).await? {
            self.unverified = true; // fetched, and compared, by this attempt
            return Ok(None);
        }
        self.stage_and_publish(bounds, revision, choice, None).await.map(Some)
    }

    /// The generation that was current is gone, and an older one or none stands in for it. Its revision is published
    /// again before any network is asked, if the mirror still holds it; if that fails, what the remote has will do.
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
                self.degraded("restore", &error);
                Ok(None)
            }
        }
    }
}
