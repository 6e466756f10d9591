//! One attempt. The numbers are those of the parent module's doc. `put` has what takes room, `heal` what needs no network.

mod heal;
mod put;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use super::bounds::Bounds;
use super::drive::Work;
use super::error::{Error, Stage};
use super::job::Choice;
use super::spare::SpareWork;
use super::tell;
use super::{Given, Options};
use crate::clock;
use crate::generation::{Name, Record};
use crate::hooks::Hooks;
use crate::human::one_line;
use crate::mirror::{self, Mirror, Objects, Tip};
use crate::phase::Status;
use crate::retention::Plan;
use crate::revision::{ObjectId, Revision};
use crate::store::{Published, Store};
use crate::telemetry::metrics::Metrics;

/// How an attempt that did not fail ended.
#[derive(Debug)]
pub(super) enum Done {
    /// A new generation is current.
    Published(Box<Published>),
    /// Nothing to do.
    Unchanged,
    /// A new tip has to wait for the minimum interval.
    Held,
}

impl Done {
    fn published(published: Published) -> Self {
        Self::Published(Box::new(published))
    }
}

/// What was last seen of the root.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Newest first, the current one included.
    pub(super) generations: Vec<Record>,
    /// What the link names.
    pub(super) current: Option<Name>,
    /// What retention thinks of each.
    pub(super) plan: Plan,
    /// Whether a complete generation serves. Never closes again.
    pub(super) ready: bool,
    /// Bytes that its file system has left for us.
    pub(super) free: Option<u64>,
}

impl View {
    /// The record of the current generation.
    pub(super) fn current(&self) -> Option<&Record> {
        let name = self.current.as_ref()?;
        self.generations.iter().find(|record| record.name == *name)
    }

    /// Its revision, if what it holds is known, or at least what it should: a root may have lost its records.
    fn revision(&self) -> Option<Revision> {
        let known = |record: &&Record| record.is_known() || record.name.commit().is_some();
        self.current().filter(known).map(|record| record.revision)
    }
}

/// A tip that needs nothing more, or never will.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    object: ObjectId,
    selection: String,
}

/// What attempts work with, and what they remember of each other.
pub(super) struct Worker {
    options: Arc<Options>,
    store: Arc<Mutex<Store>>,
    mirror: Arc<Mutex<Mirror>>,
    metrics: Metrics,
    spare: SpareWork,
    given: Given,
    view: View,
    /// The tip that is published, and the generation that holds it.
    settled: Option<(Known, Name)>,
    /// The commit that the ref names, if the last attempt found that the root has it.
    named: Option<Revision>,
    /// What was current until the root was found without it.
    lost: Option<Revision>,
    /// The tip that was refused, what was said, and the hints.
    refused: Option<(Known, String, Vec<String>)>,
    /// The current generation was not yet compared with its revision since this process began.
    unverified: bool,
    /// A reading of the choice that has not ended.
    choosing: Option<JoinHandle<Result<Choice, Error>>>,
    /// A revision with the current generation's tree that the mirror holds.
    readable: Option<Revision>,
    /// What could not be mended the last time: said once, not at every look.
    unmended: BTreeSet<String>,
    hooks: Option<Arc<Hooks>>,
    /// The root, resolved.
    root: PathBuf,
    /// git-sync's layout: a generation is one commit's, and a worktree of the mirror.
    by_commit: bool,
    /// Something was reaped that the mirror still keeps objects for.
    untidy: bool,
}

impl Worker {
    /// Looks at what the store found. No network.
    pub(super) fn new(options: Arc<Options>, store: Store, mirror: Mirror, metrics: Metrics) -> Self {
        let current = store.current().cloned();
        let mut view = View {
            generations: store.generations().to_vec(),
            current: current.as_ref().map(|record| record.name.clone()),
            ..View::default()
        };
        view.ready = store.is_trusted(&clock::now());
        let (folds, by_commit) = (store.probes().folds, store.is_git_sync());
        let given = Given { folds, root_links: !by_commit, submodules: mirror.submodules() };
        let root = store.root().to_owned();
        Self {
            options,
            store: Arc::new(Mutex::new(store)),
            mirror: Arc::new(Mutex::new(mirror)),
            metrics,
            spare: SpareWork::default(),
            given,
            unverified: current.is_some_and(|record| record.is_known() || by_commit),
            view,
            settled: None,
            named: None,
            lost: None,
            refused: None,
            choosing: None,
            readable: None,
            unmended: BTreeSet::new(),
            hooks: None,
            root,
            by_commit,
            untidy: false,
        }
    }

    /// The mirror, for whoever works beside the root.
    pub(super) fn mirror(&self) -> Arc<Mutex<Mirror>> {
        Arc::clone(&self.mirror)
    }

    pub(super) fn hooks(&mut self, hooks: Arc<Hooks>) {
        self.hooks = Some(hooks);
    }

    /// Steps 5 to 8.
    async fn advance(&mut self, bounds: &Bounds, tip: &Tip, choice: &Choice) -> Result<Done, Error> {
        let revision = self.fetch(bounds, tip, &choice.wanted).await?; // 5
        let objects = self.objects().await;
        let tree = bounds.blocking(Stage::Export, move |_| Ok(objects.tree_of(revision)?)).await?;
        let same = |record: &Record| {
            let names_it = !self.by_commit || record.revision == revision;
            record.tree == tree && record.selection == choice.digest && names_it
        };
        if self.view.current().is_some_and(|record| same(record) || self.is_claimed(record, revision)) {
            debug!(%revision, "published already, or another revision of the same tree");
            let published = self.verify(bounds, revision, choice).await?;
            return Ok(published.map_or(Done::Unchanged, Done::published)); // 6
        }
        let base = self.view.current().filter(|record| record.selection == choice.digest);
        let base = base.map(|record| mirror::Base {
            tree: record.tree,
            entries: record.entries,
            bytes: record.bytes,
        });
        self.put(bounds, revision, choice, base).await.map(Done::published)
    }

    /// Steps 2 to 8.
    async fn follow(&mut self, bounds: &Bounds, choice: &Choice, may_publish: bool) -> Result<Done, Error> {
        let before = self.named.take();
        let tip = self.resolve(bounds).await?; // 2
        let known = Known { object: tip.object, selection: choice.digest.clone() };
        if self.is_current(&tip, &known) {
            let published = match self.unverified || self.is_unsettled(&tip).await {
                true => {
                    let revision = self.fetch(bounds, &tip, &choice.wanted).await?;
                    self.verify(bounds, revision, choice).await?
                }
                false => None,
            };
            // A tag's commit is known once it was fetched.
            let settled = self.settled.as_ref().is_some_and(|(settled, _)| *settled == known);
            self.named = before.filter(|_| settled).or(Some(Revision(tip.peeled.unwrap_or(tip.object))));
            self.settle(known);
            return Ok(published.map_or(Done::Unchanged, Done::published)); // 3
        }
        if let Some((_, message, hints)) = self.refused.as_ref().filter(|(refused, ..)| *refused == known) {
            return Err(Error::StillRefused { message: message.clone(), hints: hints.clone() }); // 3
        }
        if !may_publish && self.view.current.is_some() {
            return Ok(Done::Held); // 4
        }
        match self.advance(bounds, &tip, choice).await {
            Ok(done) => {
                self.named = self.readable;
                self.settle(known);
                self.refused = None;
                Ok(done)
            }
            Err(error) => {
                if error.is_refusal() {
                    self.refused = Some((known, one_line(&error), error.hints()));
                }
                Err(error)
            }
        }
    }

    /// Whether the mirror may have another depth than was asked for: git works in what git-sync's layout publishes, and
    /// sees it. The other layout shows no history, and saves itself the look.
    async fn is_unsettled(&self, tip: &Tip) -> bool {
        let revision = Revision(tip.peeled.unwrap_or(tip.object));
        self.by_commit && !self.mirror.lock().await.is_settled(revision)
    }

    fn settle(&mut self, known: Known) {
        self.settled = self.view.current.clone().map(|name| (known, name));
        self.lost = None;
    }

    async fn resolve(&self, bounds: &Bounds) -> Result<Tip, Error> {
        let began = Instant::now();
        let mut mirror = self.mirror.lock().await;
        let tip = bounds.network(Stage::Resolve, mirror.resolve()).await?;
        self.metrics.took("resolve", began.elapsed());
        Ok(tip)
    }

    /// What the mirror must go on holding, newest first.
    fn held(&self) -> Vec<Revision> {
        let known = self.view.generations.iter().filter(|record| record.is_known());
        let mut held: Vec<_> = self.readable.into_iter().chain(known.map(|record| record.revision)).collect();
        let mut seen = std::collections::HashSet::new();
        held.retain(|revision| seen.insert(*revision));
        held
    }

    async fn objects(&self) -> Objects {
        self.mirror.lock().await.objects()
    }

    /// Whether the mirror holds a revision.
    async fn holds(&self, bounds: &Bounds, revision: Revision) -> Result<bool, Error> {
        let objects = self.objects().await;
        bounds.blocking(Stage::Export, move |_| Ok(objects.holds(revision))).await
    }

    fn is_current(&self, tip: &Tip, known: &Known) -> bool {
        let Some(current) = self.view.current() else { return false };
        let commit = tip.peeled.unwrap_or(tip.object);
        self.settled.as_ref().is_some_and(|(settled, name)| settled == known && *name == current.name)
            || (current.revision == Revision(commit) && current.selection == known.selection)
    }

    /// Logs and counts generations that went, with the plan that knew them last.
    fn note_reaped<'n>(&self, names: impl IntoIterator<Item = &'n Name>, plan: &Plan) {
        for name in names {
            self.metrics.reaped.inc();
            let verdict = plan.verdicts.iter().find(|verdict| verdict.name == *name);
            match verdict {
                Some(verdict) if verdict.pinned => {
                    self.metrics.evictions.inc();
                    warn!(generation = %name, "evicted {name}, which somebody has pinned: it was {}", verdict.reason);
                }
                _ => info!(generation = %name, "reaped {name}"),
            }
        }
    }

    fn degraded(&self, what: &'static str, error: &Error) {
        if !matches!(error, Error::Interrupted) {
            self.metrics.error(what, error.class());
            warn!(error = one_line(error), "{what} failed; what is published is not affected");
        }
    }

    /// The store, for the next blocking step.
    async fn store(&self) -> OwnedMutexGuard<Store> {
        Arc::clone(&self.store).lock_owned().await
    }

    /// What is chosen now. The file with the patterns is read each time: it may be a mounted ConfigMap.
    async fn choice(&mut self, bounds: &Bounds) -> Result<Choice, Error> {
        let (options, given) = (Arc::clone(&self.options), self.given);
        let read = move || {
            let (digest, wanted) = options.selection(given)?;
            Ok(Choice { digest, wanted })
        };
        match self.options.sparse_file {
            Some(_) => bounds.reading(Stage::Select, &mut self.choosing, read).await,
            None => read(), // then there is nothing to wait for
        }
    }
}

impl Work for Worker {
    async fn verify_found(&mut self, bounds: &Bounds) -> Result<Option<Published>, Error> {
        let Some(revision) = self.view.revision() else { return Ok(None) };
        if !self.holds(bounds, revision).await? {
            return Ok(None); // the first attempt fetches it, and verifies then
        }
        let choice = self.choice(bounds).await?;
        self.verify(bounds, revision, &choice).await
    }

    async fn attempt(&mut self, bounds: &Bounds, may_publish: bool) -> Result<Done, Error> {
        self.mend(bounds).await?; // 1
        let choice = self.choice(bounds).await?;
        let healed = self.heal(bounds, &choice).await?;
        match (self.follow(bounds, &choice, may_publish).await?, healed) {
            (Done::Published(published), _) => Ok(Done::Published(published)),
            (_, Some(published)) => Ok(Done::published(published)),
            (done, None) => Ok(done),
        }
    }

    async fn mend(&mut self, bounds: &Bounds) -> Result<(), Error> {
        let mut store = self.store().await;
        let ready = self.view.ready;
        let (view, reaped, recovered) = bounds
            .blocking(Stage::Mend, move |_| {
                let now = clock::now();
                let recovered = store.mend(&now)?;
                let plan = store.plan(&now);
                let doomed = plan.verdicts.iter().any(|verdict| !verdict.keep);
                let reaped = if doomed { store.reap(&plan) } else { Vec::new() };
                let view = View {
                    generations: store.generations().to_vec(),
                    current: store.current().map(|record| record.name.clone()),
                    plan,
                    ready,
                    free: store.free_bytes(),
                };
                Ok((view, reaped, recovered))
            })
            .await?;
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
        self.note_reaped(&reaped, &view.plan);
        if view.current != self.view.current {
            self.lost = self.view.revision().or(self.lost);
        }
        self.untidy |= !reaped.is_empty();
        self.view = view;
        self.unverified |= self.by_commit && self.view.current().is_some_and(|record| !record.is_known());
        self.view.plan.verdicts.retain(|verdict| !reaped.contains(&verdict.name));
        Ok(())
    }

    async fn housekeep(&mut self, bounds: &Bounds) {
        if let Err(error) = self.mend(bounds).await {
            self.degraded("mend", &error);
        }
        self.untidy = false;
        let held = self.held();
        let mut mirror = Arc::clone(&self.mirror).lock_owned().await;
        if let Err(error) = bounds.blocking(Stage::Fetch, move |_| Ok(mirror.housekeep(&held)?)).await {
            self.degraded("housekeep", &error);
        }
        if !self.options.spare {
            return;
        }
        let Some(task) = self.store().await.spare_task() else { return };
        let revision = self.readable.unwrap_or(task.generation().revision);
        match self.choice(bounds).await {
            Ok(choice) => {
                let objects = self.objects().await;
                self.spare.start(task, objects, revision, choice.wanted, self.metrics.clone());
            }
            Err(error) => self.degraded("spare", &error),
        }
    }

    fn announce(&self) {
        if let (Some(hooks), Some(record)) = (&self.hooks, self.view.current()) {
            hooks.published(&tell::notice(record, &self.root));
        }
    }

    async fn record(&mut self, status: Status) {
        let Ok(text) = serde_json::to_vec(&status) else { return };
        let store = self.store().await;
        let written = tokio::task::spawn_blocking(move || store.write_status(&text)).await;
        if let Ok(Err(error)) = written {
            self.degraded("status", &error.into());
        }
    }

    async fn finish(&mut self, bounds: &Bounds) {
        let store = self.store().await;
        let deleted = bounds.blocking(Stage::Mend, move |cancel| Ok(store.wait_for_deletions(cancel))).await;
        match deleted {
            Ok(true) => {}
            Ok(false) => debug!("ended before everything in the trash was deleted"),
            Err(error) => self.degraded("delete", &error),
        }
    }

    fn stop(&mut self) {
        self.spare.stop();
    }

    fn is_untidy(&self) -> bool {
        self.untidy
    }

    fn next_mend(&self) -> Option<Duration> {
        self.view.plan.verdicts.iter().filter_map(|verdict| verdict.again_in).min()
    }

    fn view(&self) -> &View {
        &self.view
    }

    fn named(&self) -> Option<Revision> {
        self.named
    }
}
