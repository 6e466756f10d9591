//! One attempt. A1, A2 and so on in comments are the steps of the parent module's documentation. `ask` has what the
//! remotes are asked, `fetch_and_stage` the steps that need disk space, `repair` those that need no network, `housekeeping` what
//! follows a publication, `bookkeeping` logging and counting.

mod ask;
mod bookkeeping;
mod fetch_and_stage;
mod housekeeping;
mod repair;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::debug;

use super::bounds::Bounds;
use super::drive::Work;
use super::error::{Error, Stage};
use super::hook_event;
use super::scrub::Scrubs;
use super::spare::SpareWork;
use super::staging::Choice;
use super::view::{Done, View};
use super::{Options, PayloadInputs};
use crate::clock;
use crate::configmap::apply::Placement;
use crate::generation::{GenerationRecord, Name};
use crate::hooks::Hooks;
use crate::human::one_line;
use crate::mirror::{self, Objects, Received, Tip};
use crate::phase::{LastAnswer, Status};
use crate::repeats::Repeats;
use crate::revision::{ObjectId, Revision};
use crate::secret;
use crate::sources::{Named, Upstream};
use crate::store::{Published, Store};
use crate::telemetry::metrics::Metrics;

/// A tip under a selection whose attempt has ended for good: it is published, or it was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
struct SettledTip {
    object: ObjectId,
    selection_digest: String,
}

/// The resources of attempts, and what one attempt remembers for the next.
pub(super) struct Worker {
    options: Arc<Options>,
    store: Arc<Mutex<Store>>,
    /// Deliveries lock it, too, so it is locked within the bounds of the attempt.
    upstream: Arc<Mutex<Upstream>>,
    /// True if the upstream is a set of sources.
    has_sources: bool,
    /// The counter of received bytes, and its value when the mirror's bytes were last counted.
    received: Received,
    counted_received: u64,
    /// Its value when garbage was last collected.
    collected_received: u64,
    objects: Objects,
    metrics: Metrics,
    spare: SpareWork,
    scrubs: Scrubs,
    payload_inputs: PayloadInputs,
    view: View,
    /// The published tip, and the generation that holds it.
    settled: Option<(SettledTip, Name)>,
    /// The commit the ref names, if the last attempt found that the root has it.
    named: Option<Named>,
    /// Where the sources were placed when the upstream was last asked or fetched from.
    placement: Placement,
    /// The revision of the tip in `settled`.
    settled_revision: Option<Revision>,
    /// The generation that was current before it disappeared (deleted by somebody else).
    lost: Option<GenerationRecord>,
    /// What was published afresh in an attempt that then failed or was postponed, until it is reported.
    republished: Option<Published>,
    /// The tip that was refused, with the stage, the error message and its hints.
    refused: Option<(SettledTip, Stage, String, Vec<String>)>,
    /// True if the current generation has to be compared with its revision: this process has not done it yet, or a
    /// scrub found signs of a foreign write.
    unverified: bool,
    /// A read of the sparse pattern file that has not ended.
    pending_choice: Option<JoinHandle<Result<Choice, Error>>>,
    /// A revision with the current generation's tree that is in the mirror.
    readable: Option<Revision>,
    /// Warnings of the last repair of the root, so that each is logged once and not at every repair.
    repair_warnings: BTreeSet<String>,
    /// When publishing the current revision afresh failed, if no attempt has begun since.
    republish_failed: Option<Instant>,
    /// True if the remote answered in this attempt what its ref names.
    was_answered: bool,
    /// True if the root was missing or replaced at the last repair.
    root_missing: bool,
    hooks: Option<Arc<Hooks>>,
    /// The root's path with symbolic links resolved.
    root: PathBuf,
    /// True in git-sync's layout, where each generation belongs to one commit and is a worktree of the mirror.
    by_commit: bool,
    /// True if housekeeping is due without a publication: something was reaped or repaired, a mirror is not needed any
    /// more, the spare may be gone or could not be made yet, or the upstream was in use.
    housekeeping_due: bool,
    /// The revision of the retired generation that waits to be recycled as the spare; the mirror must keep it readable.
    waits_for_recycling: Option<Revision>,
    /// True if this attempt dropped the spare to make room.
    dropped_spare: bool,
    /// Limits how often the log says that there is no room for a spare.
    no_spare: Repeats,
    /// A tip whose fetch did not fit on the volume, and the bytes of its pack.
    oversized_fetch: Option<(ObjectId, u64)>,
    /// Used up when the log has said that submodules are published as empty directories.
    submodules_off_logged: Arc<Once>,
}

impl Worker {
    /// Starts from the state that the store found. No network.
    pub(super) fn new(options: Arc<Options>, store: Store, upstream: Upstream, metrics: Metrics) -> Self {
        let current = store.current().cloned();
        let mut view = View {
            generations: store.generations().to_vec(),
            current: current.as_ref().map(|record| record.name.clone()),
            ..View::default()
        };
        view.ready = store.is_trusted(&clock::now());
        view.last_answer = LastAnswer::not_yet();
        let folds = store.probes().folds;
        let by_commit = store.is_git_sync();
        let payload_inputs =
            PayloadInputs { folds, root_links: !by_commit, submodules: upstream.submodules() };
        let root = store.root().to_owned();
        let received = upstream.received();
        Self {
            options,
            store: Arc::new(Mutex::new(store)),
            has_sources: upstream.repository().is_none(),
            counted_received: received.bytes(),
            collected_received: received.bytes(),
            received,
            objects: upstream.objects(),
            upstream: Arc::new(Mutex::new(upstream)),
            metrics,
            spare: SpareWork::default(),
            scrubs: Scrubs::new(),
            payload_inputs,
            unverified: current.is_some_and(|record| record.is_known() || by_commit),
            view,
            settled: None,
            named: None,
            placement: Placement::default(),
            settled_revision: None,
            lost: None,
            republished: None,
            refused: None,
            pending_choice: None,
            readable: None,
            repair_warnings: BTreeSet::new(),
            republish_failed: None,
            was_answered: false,
            root_missing: false,
            hooks: None,
            root,
            by_commit,
            housekeeping_due: false,
            waits_for_recycling: None,
            dropped_spare: false,
            no_spare: Repeats::default(),
            oversized_fetch: None,
            submodules_off_logged: Arc::new(Once::new()),
        }
    }

    /// Shared handle to the remotes and their mirrors; deliveries of ConfigMaps use the same one.
    pub(super) fn shared_upstream(&self) -> Arc<Mutex<Upstream>> {
        Arc::clone(&self.upstream)
    }

    pub(super) fn hooks(&mut self, hooks: Arc<Hooks>) {
        self.view.has_gate = hooks.gate().is_some();
        self.hooks = Some(hooks);
    }

    /// A5 to A8.
    async fn advance(&mut self, bounds: &Bounds, tip: &Tip, choice: &Choice) -> Result<Done, Error> {
        let revision = self.fetch(bounds, tip, &choice.wanted).await?; // A5
        let objects = self.objects.clone();
        let path = self.options.path.clone();
        let current = self.view.revision();
        let inspect = move || {
            // If sources are placed differently, unchanged symbolic links may have other targets: a diff is not enough.
            let is_placed_alike =
                current.is_none_or(|current| objects.places(current) == objects.places(revision));
            Ok((objects.tree_of(revision, path.as_ref())?, is_placed_alike))
        };
        let (tree, is_placed_alike) = bounds.blocking(Stage::Export, move |_| inspect()).await?;
        let is_same = |record: &GenerationRecord| {
            let names_it = !self.by_commit || record.revision == revision;
            record.tree == tree && record.selection_digest == choice.digest && names_it
        };
        if self.view.current().is_some_and(|record| is_same(record) || self.is_claimed(record, revision)) {
            debug!(%revision, "published already, or another revision of the same tree");
            if let Some(published) = self.verify(bounds, revision, choice).await? {
                return Ok(Done::published(published));
            }
            if !is_placed_alike {
                let objects = self.objects.clone();
                let wanted = choice.wanted.clone();
                let payload = move |cancel: &_| Ok(objects.until(cancel).payload(revision, &wanted)?);
                bounds.blocking(Stage::Export, payload).await?; // a link may leave what its source is now
            }
            self.advance_record(bounds, revision).await?;
            return Ok(Done::Unchanged); // A6
        }
        let base =
            self.view.current().filter(|record| record.selection_digest == choice.digest && is_placed_alike);
        let base = base.map(|record| mirror::Base {
            tree: record.tree,
            entries: record.entries,
            bytes: record.bytes,
        });
        self.stage_and_publish(bounds, revision, choice, base).await.map(Done::published)
    }

    /// A1, and what needs no network: the selection, and a generation that replaces a damaged one.
    async fn prepare(&mut self, bounds: &Bounds) -> Result<(Choice, Option<Published>), Error> {
        self.repair_root(bounds).await?; // A1
        let choice = self.choice(bounds).await?;
        let republished = match self.republish_damaged(bounds, &choice).await? {
            None => self.scrub(bounds).await?,
            republished => republished,
        };
        Ok((choice, republished))
    }

    /// A2 to A8.
    async fn follow(&mut self, bounds: &Bounds, choice: &Choice, may_publish: bool) -> Result<Done, Error> {
        self.named = None;
        let mut tip = self.resolve(bounds).await?; // A2
        loop {
            let known = SettledTip { object: tip.object, selection_digest: choice.digest.clone() };
            if self.is_current(&tip, &known) {
                let done = self.confirm(bounds, &tip, choice, known).await?; // A3
                self.refused = None; // if it is named again, it is judged again
                return Ok(done);
            }
            let refused = self.refused.as_ref().filter(|(refused, ..)| *refused == known);
            if let Some((_, stage, message, hints)) = refused.cloned() {
                return Err(Error::StillRefused { stage, message, hints }); // A3
            }
            // The minimum interval applies to new commits only, not to a selection that the operator changed.
            let is_selected = |record: &GenerationRecord| record.selection_digest == choice.digest;
            if !may_publish && self.view.current().is_some_and(is_selected) {
                return Ok(Done::Postponed); // A4
            }
            let error = match self.advance(bounds, &tip, choice).await {
                Ok(done) => {
                    if let Some(revision) = self.readable {
                        self.remember_named(revision);
                    }
                    self.remember_settled(known);
                    self.refused = None;
                    return Ok(done);
                }
                Err(error) => error,
            };
            tip = match self.hold_back(bounds, error).await {
                Ok(tip) => tip,
                Err(error) => {
                    if error.is_refusal() {
                        self.refused = Some((known, bounds.stage(), one_line(&error), error.hints()));
                    }
                    return Err(error);
                }
            };
        }
    }

    /// Compares the current generation with the tip that it was published for, if that has not been done yet, and
    /// publishes it afresh if it differs.
    async fn confirm(
        &mut self,
        bounds: &Bounds,
        tip: &Tip,
        choice: &Choice,
        known: SettledTip,
    ) -> Result<Done, Error> {
        let mut published = None;
        if self.unverified || self.may_differ_in_depth(bounds, tip).await? {
            let revision = self.fetch(bounds, tip, &choice.wanted).await?;
            published = self.verify(bounds, revision, choice).await?;
        }
        // The commit of an annotated tag may be known only from the fetch.
        let settled = self.settled.as_ref().is_some_and(|(settled, _)| *settled == known);
        let revision = self.settled_revision.filter(|_| settled);
        self.remember_named(revision.unwrap_or(Revision(tip.peeled.unwrap_or(tip.object))));
        self.remember_settled(known);
        Ok(published.map_or(Done::Unchanged, Done::published))
    }

    /// Returns true if the mirror's history may not have the configured depth. Only git-sync's layout publishes
    /// worktrees in which git shows the history; the other layout skips the check.
    async fn may_differ_in_depth(&self, bounds: &Bounds, tip: &Tip) -> Result<bool, Error> {
        let revision = Revision(tip.peeled.unwrap_or(tip.object));
        Ok(self.by_commit && !self.upstream(bounds, Stage::Fetch).await?.is_settled(revision))
    }

    /// Records the revision that the ref names, for deliveries.
    fn remember_named(&mut self, revision: Revision) {
        self.named = Some(Named { revision, sources: self.placement.clone() });
        self.settled_revision = Some(revision);
    }

    fn remember_settled(&mut self, known: SettledTip) {
        self.settled = self.view.current.clone().map(|name| (known, name));
        self.lost = None;
    }

    /// The revisions that the mirror must keep, newest first.
    fn kept_revisions(&self) -> Vec<Revision> {
        let known = self.view.generations.iter().filter(|record| record.is_known());
        let lost = self.lost.as_ref().and_then(GenerationRecord::known_revision);
        let others = self.readable.into_iter().chain(lost).chain(self.waits_for_recycling);
        let mut kept: Vec<_> = others.chain(known.map(|record| record.revision)).collect();
        let mut seen = std::collections::HashSet::new();
        kept.retain(|revision| seen.insert(*revision));
        kept
    }

    /// Returns true if the mirror holds the revision.
    async fn holds(&self, bounds: &Bounds, revision: Revision) -> Result<bool, Error> {
        let objects = self.objects.clone();
        bounds.blocking(Stage::Export, move |_| Ok(objects.holds(revision))).await
    }

    fn is_current(&self, tip: &Tip, known: &SettledTip) -> bool {
        let Some(current) = self.view.current() else { return false };
        let commit = tip.peeled.unwrap_or(tip.object);
        self.settled.as_ref().is_some_and(|(settled, name)| settled == known && *name == current.name)
            || (current.revision == Revision(commit) && current.selection_digest == known.selection_digest)
    }

    /// Locks the remotes and their mirrors.
    async fn upstream(&self, bounds: &Bounds, stage: Stage) -> Result<OwnedMutexGuard<Upstream>, Error> {
        bounds.lock(stage, &self.upstream).await
    }

    /// Locks the store for a blocking step.
    async fn store(&self) -> OwnedMutexGuard<Store> {
        Arc::clone(&self.store).lock_owned().await
    }

    /// The selection as configured now. The sparse patterns are read at every call: the file may be a mounted
    /// ConfigMap.
    async fn choice(&mut self, bounds: &Bounds) -> Result<Choice, Error> {
        let options = Arc::clone(&self.options);
        let inputs = self.payload_inputs;
        let read = move || {
            let (digest, wanted) = options.selection(inputs)?;
            Ok(Choice { digest, wanted })
        };
        match self.options.sparse_file {
            Some(_) => bounds.reading(Stage::Select, &mut self.pending_choice, read).await,
            None => read(), // does no I/O
        }
    }
}

impl Work for Worker {
    async fn verify_found(&mut self, bounds: &Bounds) -> Result<Option<Published>, Error> {
        let Some(revision) = self.view.revision() else { return Ok(None) };
        if !self.holds(bounds, revision).await? {
            return Ok(None); // the first attempt fetches the revision, then verifies
        }
        let choice = self.choice(bounds).await?;
        let published = self.verify(bounds, revision, &choice).await;
        self.describe().await;
        published
    }

    async fn attempt(&mut self, bounds: &Bounds, may_publish: bool) -> Result<Done, Error> {
        self.was_answered = false;
        self.note_republish_failed(None);
        self.view.source_failures.clear();
        let (republished, followed) = match self.prepare(bounds).await {
            Ok((choice, republished)) => (republished, self.follow(bounds, &choice, may_publish).await),
            Err(error) => {
                self.resolve_after_failure(bounds, &error).await;
                (None, Err(error))
            }
        };
        // A step that outlasts the attempt has the store; then the next attempt takes it.
        self.dropped_spare = self.store.try_lock().is_ok_and(|mut store| store.take_spare_dropped());
        if !matches!(followed, Ok(Done::Published(_))) {
            self.count_mirror(bounds).await;
        }
        let answered = self.look_at_sources(bounds, &followed).await;
        let is_answered = self.was_answered && !followed.as_ref().is_err_and(Error::is_connection_failure);
        self.view.last_answer.update(&self.view.sources, is_answered);
        self.view.unanswered = matches!(answered, Ok(false));
        self.republished = republished;
        // A set that is published because its file was changed, or without a source that was removed, is a success.
        if matches!(followed, Ok(Done::Unchanged | Done::Postponed)) {
            answered?;
        }
        let done = match (followed?, self.republished.take()) {
            (Done::Unchanged, Some(republished)) => Done::published(republished),
            (Done::Postponed, republished) => {
                self.republished = republished;
                Done::Postponed
            }
            (done, _) => done,
        };
        if matches!(done, Done::Published(_)) {
            self.view.commits.retain(|_, commit| commit.is_some()); // read missing ones again: the fetch may have them
        }
        self.describe().await;
        Ok(done)
    }

    async fn repair(&mut self, bounds: &Bounds) -> Result<Option<Published>, Error> {
        self.repair_between_attempts(bounds).await
    }

    async fn housekeeping_limit(&self, bounds: &Bounds) -> Duration {
        self.measured_housekeeping_limit(bounds).await
    }

    async fn housekeep(&mut self, bounds: &Bounds) {
        self.repair_reap_and_collect(bounds).await;
    }

    async fn collect_garbage(&mut self, bounds: &Bounds) {
        self.collect_mirror_garbage(bounds).await;
    }

    async fn prepare_spare(&mut self, bounds: &Bounds) {
        if self.options.spare {
            self.begin_spare(bounds, true).await;
        }
    }

    fn notify_hooks(&self) {
        if let (Some(hooks), Some(record)) = (&self.hooks, self.view.current()) {
            let commit = self.view.commits.get(&record.revision).and_then(Option::as_ref);
            hooks.published(&hook_event::of_record(record, commit, &self.root));
        }
    }

    async fn record(&mut self, status: Status) {
        let Ok(text) = serde_json::to_string(&status) else { return };
        let text = secret::redacted_json(&text).into_bytes();
        let store = self.store().await;
        let written = tokio::task::spawn_blocking(move || store.write_status(&text)).await;
        if let Ok(Err(error)) = written {
            self.log_nonfatal("status", &error.into());
        }
    }

    async fn finish(&mut self, bounds: &Bounds) {
        let store = self.store().await;
        let deleted =
            bounds.blocking(Stage::Repair, move |cancel| Ok(store.wait_for_deletions(cancel))).await;
        match deleted {
            Ok(true) => {}
            Ok(false) => debug!("ended before everything in the trash was deleted"),
            Err(error) => self.log_nonfatal("delete", &error),
        }
    }

    fn stop(&mut self) {
        self.scrubs.stop();
        self.spare.stop();
    }

    fn needs_housekeeping(&self) -> bool {
        self.housekeeping_due
    }

    fn has_fetched(&self) -> bool {
        self.received.bytes() != self.collected_received
    }

    fn dropped_spare(&self) -> bool {
        self.dropped_spare
    }

    fn take_republished(&mut self) -> Option<Published> {
        self.republished.take()
    }

    fn next_repair(&self) -> Option<Duration> {
        let scrub = self.view.ready.then(|| self.scrubs.due_in());
        self.view.plan.next_change_in().into_iter().chain(scrub).min()
    }

    fn view(&self) -> &View {
        &self.view
    }

    fn newest(&self) -> Option<Named> {
        self.named.clone()
    }
}
