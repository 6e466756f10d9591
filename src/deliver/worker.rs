//! Delivers to one cluster: reads it, asks the remote, writes, asks again, and starts over when the ref moved.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, future, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::aliases::Aliases;
use super::orphaned;
use super::pauses::{after_shutdown, pause};
use super::pool::Pool;
use super::record::{self, Closed};
use super::report::{ClusterOutcome, Notes, Outcome, Target, all_failed};
use super::rewind::going_back;
use super::set;
use super::survey::{Blind, Item, Space, SurveyContext};
use super::turns::Turns;
use super::write::{StopReason, Writer, Written};
use super::{Options, or_cancelled, short};
use crate::cluster::Cluster;
use crate::configmap::apply::{Action, Desired, Marker, Moves, order};
use crate::sources::{Source, SourceError};

/// How often a worker starts over because the ref moved or a peer wrote an inventory. After that the cluster is left to
/// the next run.
const MOST_RESTARTS: u32 = 20;
/// How long writing the records may take after shutdown began.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// One cluster's part of a delivery.
pub(super) struct Worker<S> {
    pub(super) name: String,
    pub(super) cluster: Cluster,
    aliases: Arc<Aliases>,
    pub(super) source: Arc<S>,
    pub(super) options: Options,
    pub(super) cancel: CancellationToken,
    turns: Turns,
    pub(super) notes: Notes,
    /// True if something was written and the remote has not been asked since.
    unconfirmed: bool,
    /// Until when a ref that went back may be the answer of a lagging replica; `None` before the first such answer.
    doubted: Option<Instant>,
}

/// The live state of a cluster.
#[derive(Default)]
struct ClusterSurvey {
    spaces: Vec<Space>,
    /// Namespaces that could not be read, with the results of their targets.
    refused: BTreeMap<String, Vec<Target>>,
    /// Other read failures, a line each.
    failures: Vec<String>,
}

/// How one pass over the cluster ended.
enum Pass {
    /// Every target has its definite result. Holds those and what else failed.
    Settled(Vec<Target>, Vec<String>),
    /// Writing was stopped. The results so far are not final.
    Stopped(StopReason, Vec<Target>),
    /// A peer wrote an inventory meanwhile, so the cluster has to be read again.
    Again(Vec<Target>, String),
    /// Peers may have written since the survey, so the cluster has to be read again. Not counted as a restart.
    Stale,
}

impl<S: Source> Worker<S> {
    pub(super) fn new(
        name: String,
        cluster: Cluster,
        aliases: Arc<Aliases>,
        source: Arc<S>,
        options: Options,
        cancel: CancellationToken,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        let leases = options.leases.clone();
        let owner = &options.owner;
        let turns = Turns::new(name.clone(), cluster.clone(), (leases, pool), owner, cancel.clone());
        let notes = Notes::new(&name);
        Self {
            name,
            cluster,
            aliases,
            source,
            options,
            cancel,
            turns,
            notes,
            unconfirmed: false,
            doubted: None,
        }
    }

    /// Runs until every target has a definite result, then releases the Leases.
    pub(super) async fn run(mut self, desired: Arc<Desired>) -> ClusterOutcome {
        let ended = self.retry_until_done(desired).await;
        self.turns.release().await;
        ended
    }

    async fn retry_until_done(&mut self, mut desired: Arc<Desired>) -> ClusterOutcome {
        let mut restarts = 0;
        let mut failures = 0;
        loop {
            let (stop, targets) = match self.pass(&desired).await {
                Pass::Settled(targets, failures) => return self.ended(&desired, targets, failures),
                Pass::Stopped(stop, targets) => (stop, targets),
                Pass::Stale => continue,
                Pass::Again(targets, why) if restarts >= MOST_RESTARTS => {
                    return self.ended(&desired, targets, vec![why]);
                }
                Pass::Again(..) => {
                    restarts += 1;
                    pause(&self.options, &self.cancel, restarts, None).await;
                    continue;
                }
            };
            let error = match stop {
                StopReason::Cancelled => {
                    let why = format!("cluster {}: the run ended before everything was done", self.name);
                    return self.ended(&desired, targets, vec![why]);
                }
                StopReason::Moved(newer) if restarts < MOST_RESTARTS => {
                    restarts += 1;
                    match or_cancelled(&self.cancel, self.source.desired(newer)).await {
                        Ok(newer) => {
                            desired = newer;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                StopReason::Moved(_) => {
                    let why = format!("cluster {}: the ref moves faster than it can be followed", self.name);
                    return self.ended(&desired, targets, vec![why]);
                }
                StopReason::Unasked(error) => error,
            };
            failures += 1;
            if !error.transient || failures >= self.options.tries || self.cancel.is_cancelled() {
                let why = format!("cluster {}: {error}", self.name);
                return self.ended(&desired, unasked(targets, &error), vec![why]);
            }
            self.turns.release().await; // peers need not wait for our remote
            pause(&self.options, &self.cancel, failures, None).await;
        }
    }

    fn ended(&mut self, desired: &Desired, targets: Vec<Target>, failures: Vec<String>) -> ClusterOutcome {
        ClusterOutcome { revision: desired.revision, targets, notes: self.notes.take(), failures }
    }

    /// Runs steps 1 to 5 once (see [`super`]).
    async fn pass(&mut self, desired: &Desired) -> Pass {
        // Checked for each revision: a revision that arrived meanwhile may use a second name for this cluster.
        if let Some(other) = self.aliases.other(&self.name, desired) {
            let why = format!(
                "it is the same cluster as {other}, and what the one has looks forgotten to the other"
            );
            let hints = ["let the rules call each cluster by one name".to_owned()];
            return Pass::Settled(all_failed(desired, &self.name, &why, &hints), Vec::new());
        }
        let options = self.options.clone();
        let cluster = self.cluster.clone();
        let cancel = self.cancel.clone();
        let policy = options.policy(desired);
        let reader = SurveyContext { cluster: &cluster, options: &options, policy: &policy, cancel: &cancel };
        let found = tokio::select! {
            biased;
            found = self.survey(desired, reader) => Some(found),
            () = cancel.cancelled() => None, // reads can be dropped at any point
        };
        let Some(ClusterSurvey { spaces, mut refused, failures: unread }) = found else {
            let all = all_failed(desired, &self.name, &StopReason::Cancelled.to_string(), &[]).into_iter();
            let all = all.map(|target| Target { outcome: Outcome::Skipped, transient: true, ..target });
            return Pass::Stopped(StopReason::Cancelled, all.collect());
        };
        refused.extend(self.refusals(desired, &spaces, &options));
        let unknown =
            orphaned::foreign_namespaces(reader, &*self.source, (&self.name, desired), &spaces).await;
        refused.extend(unknown);
        let mut targets: Vec<Target> = refused.values().flatten().cloned().collect();
        let mut spaces: Vec<Space> =
            spaces.into_iter().filter(|space| !refused.contains_key(&space.namespace)).collect();
        let source = Arc::clone(&self.source);
        let writer = Writer { reader, desired, source: &*source, stop: Mutex::new(None) };
        if let Err(why) =
            options.floor.check(spaces.iter().flat_map(|space| &space.items).map(|item| &item.decision))
        {
            let hints = vec![why.hint().to_owned()];
            targets.extend(self.all(&writer, &spaces, Outcome::Refused, &why.to_string(), &hints));
            return Pass::Settled(targets, unread);
        }
        let works = spaces.iter().any(|space| space.items.iter().any(|item| item.decision.writes()));
        if works
            && let Some((outcome, why)) =
                going_back(&writer, &spaces, &mut self.doubted, &mut self.notes).await
        {
            let stop = writer.stopped();
            targets.extend(self.all(&writer, &spaces, outcome, &why, &[]));
            return stop.map_or_else(
                || Pass::Settled(targets.clone(), unread),
                |stop| Pass::Stopped(stop, targets.clone()),
            );
        }
        if options.dry_run {
            let rehearsed = tokio::select! {
                biased;
                rehearsed = self.dry_run(&writer, &spaces) => Some(rehearsed),
                () = cancel.cancelled() => None,
            };
            let Some(rehearsed) = rehearsed else {
                let stop = StopReason::Cancelled;
                targets.extend(self.all(&writer, &spaces, Outcome::Skipped, &stop.to_string(), &[]));
                return Pass::Stopped(stop, targets);
            };
            targets.extend(rehearsed);
            return Pass::Settled(targets, unread);
        }
        // A namespace whose records are outdated counts as busy, too: a peer may be about to write them.
        let busy = |space: &&Space| {
            space.items.iter().any(|item| item.decision.writes()) || set::is_unrecorded(space, desired)
        };
        let busy: Vec<&str> = spaces.iter().filter(busy).map(|space| space.namespace.as_str()).collect();
        if !busy.is_empty() && !self.turns.may_write(&busy, &mut self.notes).await {
            return Pass::Stale;
        }
        if works && let Err(stop) = writer.ask().await {
            targets.extend(self.all(&writer, &spaces, Outcome::Skipped, &stop.to_string(), &[]));
            return Pass::Stopped(stop, targets);
        }
        if works && let Err(why) = record::announce(&writer, &mut spaces).await {
            targets.extend(self.all(&writer, &spaces, Outcome::Skipped, &why, &[]));
            return Pass::Again(targets, why);
        }
        let written = future::join_all(spaces.iter().map(|space| self.carry_out(&writer, space))).await;
        let results = |written: &[BTreeMap<String, Written>]| self.results(&writer, &spaces, written);
        targets.extend(results(&written));
        self.unconfirmed |= targets.iter().any(|target| target.attempts > 0);
        if self.unconfirmed && writer.stopped().is_none() && writer.ask().await.is_ok() {
            self.unconfirmed = false;
        }
        let stop = writer.stopped();
        if let Some(stop) = stop.clone().filter(|stop| *stop != StopReason::Cancelled) {
            return Pass::Stopped(stop, targets);
        }
        let closed = tokio::select! {
            biased;
            closed = record::close(&writer, &spaces, &written, &targets) => Some(closed),
            () = after_shutdown(&cancel, LAST_WORDS) => None, // the next run writes the records
        };
        match (stop, closed) {
            (Some(stop), _) => Pass::Stopped(stop, targets),
            (None, None) => Pass::Stopped(StopReason::Cancelled, targets),
            (None, Some(Closed::Done(failures))) => {
                Pass::Settled(targets, unread.into_iter().chain(failures).collect())
            }
            (None, Some(Closed::Overtaken(why))) => Pass::Again(targets, why),
        }
    }

    /// Reads every namespace that the revision has ConfigMaps for and, if pruning, those that no rule names any more. A
    /// namespace that cannot be read fails by itself.
    async fn survey(&mut self, desired: &Desired, reader: SurveyContext<'_>) -> ClusterSurvey {
        let name = self.name.clone();
        let mut all = ClusterSurvey::default();
        let mut namespaces: Vec<String> = desired.namespaces(&name).map(str::to_owned).collect();
        let unneeded = namespaces.is_empty();
        let orphans_unknown = match self.options.prune {
            true => {
                orphaned::namespaces(reader, &name, desired).await.map(|found| namespaces.extend(found)).err()
            }
            false => None,
        };
        let found = namespaces.iter().map(|namespace| reader.space(desired, &name, namespace));
        let found = future::join_all(found).await;
        for (namespace, found) in namespaces.into_iter().zip(found) {
            match found {
                Ok(space) => {
                    if !space.marker.damaged.is_empty() {
                        let names: Vec<&str> = space.marker.damaged.keys().map(String::as_str).collect();
                        let marker = reader.policy.owner.marker();
                        let names = names.join(", ");
                        self.notes.add(format!("the inventory {namespace}/{marker} cannot be read at {names}: nothing is deleted there"));
                    }
                    all.spaces.push(space);
                }
                Err(blind) if desired.of(&name, &namespace).is_none() => {
                    all.failures
                        .push(format!("cluster {name}: nothing is pruned in {namespace}: {}", blind.why));
                }
                Err(Blind { why, hints, transient }) => {
                    let targets = all_failed(desired, &name, &why, &hints).into_iter();
                    let here = targets.filter(|target| target.namespace == namespace);
                    let here = here.map(|target| Target { transient, ..target }).collect();
                    all.refused.insert(namespace, here);
                }
            }
        }
        if let Some(error) = orphans_unknown {
            all.failures.extend(orphaned::orphans_unknown(&error, unneeded, &mut self.notes));
        }
        all
    }

    /// Returns the namespaces in which nothing may be written, with the results of their targets.
    fn refusals(
        &self,
        desired: &Desired,
        spaces: &[Space],
        options: &Options,
    ) -> BTreeMap<String, Vec<Target>> {
        let mut refused = BTreeMap::new();
        for space in spaces {
            let ours = [options.owner.marker(), options.owner.ledger()];
            let why = match Marker::check(&space.namespace, space.items.iter().map(|item| &item.name)) {
                Err(why) => Some((why.to_string(), "spread the ConfigMaps over more namespaces")),
                Ok(()) => match space.items.iter().find(|item| ours.contains(&item.name)) {
                    Some(Item { name, .. }) => {
                        let why = format!("the ConfigMap {name} is where we record what we write");
                        Some((why, "give it another name in the rules"))
                    }
                    None => self.without_rollback(desired, space, options),
                },
            };
            let Some((why, hint)) = why else { continue };
            let all = all_failed(desired, &self.name, &why, &[hint.to_owned()]).into_iter();
            let here = all.filter(|target| target.namespace == space.namespace);
            let here = here.map(|target| Target { outcome: Outcome::Refused, ..target });
            let forgotten = if space.forgotten {
                orphaned::kept_targets(&self.name, space, Outcome::Refused, &why, &[hint.to_owned()])
            } else {
                Vec::new()
            };
            refused.insert(space.namespace.clone(), here.chain(forgotten).collect());
        }
        refused
    }

    /// Without a ref to ask, refuses to write over another revision's record: it may be a newer one.
    fn without_rollback(
        &self,
        desired: &Desired,
        space: &Space,
        options: &Options,
    ) -> Option<(String, &'static str)> {
        let recorded = &space.marker.revision;
        let other = !recorded.is_empty() && *recorded != desired.revision.to_string();
        let works = space.items.iter().any(|item| item.decision.writes());
        (other && works && !options.force && !self.source.follows()).then(|| {
            let why = format!("it is recorded as {}, and no ref says which is newer", short(recorded));
            (why, "--force overwrites it with the tree")
        })
    }

    /// Sends each write as a dry run, and returns what would happen.
    async fn dry_run(&mut self, writer: &Writer<'_, S>, spaces: &[Space]) -> Vec<Target> {
        let mut targets = Vec::new();
        for space in spaces {
            self.note_circles(space);
        }
        let name = &self.name;
        for space in spaces {
            let mut checks = Vec::new();
            for item in &space.items {
                if item.decision.writes() {
                    checks.push(writer.check(name, space, item));
                } else if item.is_reported() {
                    targets.push(writer.target(name, space, item));
                }
            }
            let checked: Vec<Target> =
                stream::iter(checks).buffer_unordered(self.options.concurrency.max(1)).collect().await;
            targets.extend(checked);
        }
        targets
    }

    fn note_circles(&mut self, space: &Space) {
        let busy = ordered_items(space);
        let moves: Vec<&Moves> = busy.iter().map(|&at| &space.items[at].decision.moves).collect();
        for broken in order(&moves).broken {
            let name = &space.items[busy[broken]].name;
            self.notes
                .add(format!("ConfigMaps of {} exchange keys; {name} is written first", space.namespace));
        }
    }

    /// Writes one namespace in waves, so that a ConfigMap that gains a key is written before the one that loses it.
    async fn carry_out(&self, writer: &Writer<'_, S>, space: &Space) -> BTreeMap<String, Written> {
        let busy = ordered_items(space);
        let moves: Vec<&Moves> = busy.iter().map(|&at| &space.items[at].decision.moves).collect();
        let order = order(&moves);
        let mut done: BTreeMap<usize, Written> = BTreeMap::new();
        for wave in &order.waves {
            let mut ready = Vec::new();
            for &write in wave {
                let item = &space.items[busy[write]];
                let failed = |before: &&usize| {
                    done.get(before).is_none_or(|written| !written.target.outcome.is_success())
                };
                let missing = order.after[write].iter().find(failed).filter(|_| item.decision.writes());
                let held = missing.map(|&before| space.items[busy[before]].name.clone());
                ready.push(async move { (write, self.one(writer, space, item, held).await) });
            }
            let wave: Vec<(usize, Written)> =
                stream::iter(ready).buffer_unordered(self.options.concurrency.max(1)).collect().await;
            done.extend(wave);
        }
        done.into_iter().map(|(write, written)| (space.items[busy[write]].name.clone(), written)).collect()
    }

    /// Writes one ConfigMap, unless `held` names another one that gains keys from it and could not be written.
    async fn one(&self, writer: &Writer<'_, S>, space: &Space, item: &Item, held: Option<String>) -> Written {
        match (held, writer.stopped()) {
            (Some(other), None) => {
                let why = format!("keys move from it to {other}, which could not be written");
                let target = writer.target(&self.name, space, item);
                let target = Target { transient: true, ..target.ended(Outcome::Held, why, Vec::new()) };
                Written { target, meta: item.meta.clone(), revision: String::new() }
            }
            _ => writer.write(&self.name, space, item).await,
        }
    }

    fn results(
        &self,
        writer: &Writer<'_, S>,
        spaces: &[Space],
        written: &[BTreeMap<String, Written>],
    ) -> Vec<Target> {
        let of = |(space, written): (&Space, &BTreeMap<String, Written>)| {
            let items = space.items.iter().filter(|item| item.is_reported());
            items
                .map(|item| match written.get(&item.name) {
                    Some(written) => written.target.clone(),
                    None => writer.target(&self.name, space, item),
                })
                .collect::<Vec<_>>()
        };
        spaces.iter().zip(written).flat_map(of).collect()
    }

    /// Gives every target that would be written this outcome.
    fn all(
        &self,
        writer: &Writer<'_, S>,
        spaces: &[Space],
        outcome: Outcome,
        why: &str,
        hints: &[String],
    ) -> Vec<Target> {
        let of = |space: &Space| {
            let items = space.items.iter().filter(|item| item.is_reported());
            items
                .map(|item| {
                    let target = writer.target(&self.name, space, item);
                    if item.decision.writes() { target.ended(outcome, why, hints.to_vec()) } else { target }
                })
                .collect::<Vec<_>>()
        };
        spaces.iter().flat_map(of).collect()
    }
}

/// Returns the indices of the items that take part in the write order: those that are written, and those that should be
/// but are refused or held.
fn ordered_items(space: &Space) -> Vec<usize> {
    let items = space.items.iter().enumerate();
    items
        .filter(|(_, item)| {
            item.decision.writes() || matches!(item.decision.action, Action::Refuse(_) | Action::Hold(_))
        })
        .map(|(at, _)| at)
        .collect()
}

/// Turns skipped targets into failed ones, as the source named no revision or could not plan it.
fn unasked(targets: Vec<Target>, error: &SourceError) -> Vec<Target> {
    let failed = |target: Target| match target.outcome {
        Outcome::Skipped => {
            let failed = target.ended(Outcome::Failed, error.to_string(), error.hints.clone());
            Target { transient: error.transient, ..failed }
        }
        _ => target,
    };
    targets.into_iter().map(failed).collect()
}
