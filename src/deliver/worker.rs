//! Delivers to one cluster: reads it, asks the remote, writes, asks again, and starts over when the ref moved.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use futures_util::{StreamExt as _, future, stream};
use tokio::time::Instant;

use super::cluster_survey::{ClusterSurvey, survey_cluster};
use super::earlier_writes::EarlierWrites;
use super::memory_budget::MemoryBudget;
use super::notes::Notes;
use super::orphaned;
use super::pauses::{LAST_ANSWER_TIMEOUT, LAST_ERROR_TIMEOUT, RECORDING_TIMEOUT, pause};
use super::record::{self, InventoryConflict};
use super::refusals::refusals;
use super::report::{ClusterOutcome, Outcome, Target, Unread, all_failed, fail_skipped};
use super::rewind::{Rewinds, check_rewind};
use super::set;
use super::survey::{NamespaceFailure, NamespaceSurvey, PassContext};
use super::turns::LeaseTurns;
use super::waves::{note_cycles, write_namespace};
use super::write::{StopReason, Writer, Written};
use super::{Delivery, OnRewind, planned};
use crate::cluster::Cluster;
use crate::configmap::apply::Desired;
use crate::sources::DeliveryInput;

/// How often a worker starts over because the ref moved or an inventory changed. After that the cluster is left to
/// the next run.
const MAX_RESTARTS: u32 = 20;

/// One cluster's part of a delivery.
pub(super) struct Worker<S> {
    name: String,
    cluster: Cluster,
    delivery: Arc<Delivery<S>>,
    turns: LeaseTurns,
    notes: Notes,
    earlier: EarlierWrites,
    /// True if something was written and the remote has not been asked since.
    unconfirmed: bool,
    /// Until when a ref that went back may be the answer of a lagging replica; `None` before the first such answer.
    lag_deadline: Option<Instant>,
    /// The results of the last pass: see [`ClusterOutcome`].
    targets: Vec<Target>,
    failures: Vec<String>,
    unread: Unread,
}

/// Why a pass over the cluster ended before every target had its definite result.
enum Unsettled {
    /// Writing was stopped.
    Stopped(StopReason),
    /// An inventory has changed since it was read, so the cluster has to be read again.
    Conflict(InventoryConflict),
    /// Others may have written since the survey, so the cluster has to be read again. Not counted as a restart.
    Stale,
}

impl<S: DeliveryInput> Worker<S> {
    pub(super) fn new(name: String, cluster: Cluster, delivery: Arc<Delivery<S>>) -> Self {
        let Delivery { options, pool, cancel, .. } = &*delivery;
        let turns = LeaseTurns::new(name.clone(), cluster.clone(), options, pool.clone(), cancel.clone());
        Self {
            notes: Notes::new(&name),
            name,
            cluster,
            turns,
            delivery,
            earlier: EarlierWrites::default(),
            unconfirmed: false,
            lag_deadline: None,
            targets: Vec::new(),
            failures: Vec::new(),
            unread: Unread::default(),
        }
    }

    /// Runs until every target has a definite result, then releases the Leases.
    pub(super) async fn run(mut self, desired: Arc<Desired>) -> ClusterOutcome {
        let outcome = self.retry_until_done(desired).await;
        self.turns.release().await;
        outcome
    }

    /// Repeats passes until one is final: after a newer revision, another instance's writes, or a transient failure of
    /// the remote.
    async fn retry_until_done(&mut self, mut desired: Arc<Desired>) -> ClusterOutcome {
        let delivery = Arc::clone(&self.delivery);
        let Delivery { input, options, cancel, .. } = &*delivery;
        let (mut restarts, mut failures) = (0, 0);
        loop {
            let stop = match self.pass(&desired).await {
                Ok(()) => return self.outcome(&desired),
                Err(Unsettled::Stale) => continue,
                Err(Unsettled::Conflict(InventoryConflict(why))) if restarts >= MAX_RESTARTS => {
                    self.failures = vec![why];
                    return self.outcome(&desired);
                }
                Err(Unsettled::Conflict(_)) => {
                    self.earlier.remember(&self.targets);
                    restarts += 1;
                    pause(options, cancel, restarts, None).await;
                    continue;
                }
                Err(Unsettled::Stopped(stop)) => stop,
            };
            self.earlier.remember(&self.targets);
            let error = match stop {
                StopReason::Cancelled => {
                    return self.failed(&desired, "the run ended before everything was done");
                }
                StopReason::Moved(_) if restarts >= MAX_RESTARTS => {
                    return self.failed(&desired, "the ref moves faster than it can be followed");
                }
                StopReason::Moved(newer) => {
                    restarts += 1;
                    match planned(&**input, newer, cancel).await {
                        Ok(newer) => {
                            desired = newer;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                StopReason::RefUnknown(error) => error,
            };
            failures += 1;
            if !error.class.is_transient() || failures >= options.tries || cancel.is_cancelled() {
                self.targets = fail_skipped(std::mem::take(&mut self.targets), &error);
                return self.failed(&desired, error);
            }
            self.turns.release().await; // other instances need not wait for our remote
            pause(options, cancel, failures, None).await;
        }
    }

    /// Returns the results of the last pass, which failed by this as a whole.
    fn failed(&mut self, desired: &Desired, why: impl Display) -> ClusterOutcome {
        self.failures = vec![format!("cluster {}: {why}", self.name)];
        self.outcome(desired)
    }

    /// Returns the results of the last pass.
    fn outcome(&mut self, desired: &Desired) -> ClusterOutcome {
        let mut targets = std::mem::take(&mut self.targets);
        self.earlier.restore(&mut targets);
        let failures = std::mem::take(&mut self.failures);
        let (notes, unread) = (self.notes.take(), self.unread.clone());
        ClusterOutcome { revision: desired.revision, targets, notes, failures, unread }
    }

    /// Runs steps 2 to 5 once (see [`super`]). If the pass is unsettled, its results are not final.
    async fn pass(&mut self, desired: &Desired) -> Result<(), Unsettled> {
        self.targets.clear();
        self.failures.clear();
        self.unread = Unread::all();
        let delivery = Arc::clone(&self.delivery);
        let Delivery { input, aliases, options, cancel, .. } = &*delivery;
        // Checked for each revision: a revision that arrived meanwhile may use a second name for this cluster.
        if let Some(other) = aliases.other_name(&self.name, desired) {
            let why = format!(
                "it is the same cluster as {other}, and each would treat the other's ConfigMaps as removed from the rules"
            );
            let hints = ["use a single name for each cluster in the rules".to_owned()];
            self.targets = all_failed(desired, &self.name, &why, &hints);
            return Ok(());
        }
        let (name, cluster) = (self.name.clone(), self.cluster.clone());
        let config_maps = desired.namespaces(&name).filter_map(|namespace| desired.of(&name, namespace));
        let pass = PassContext {
            cluster_name: &name,
            cluster: &cluster,
            desired,
            options,
            policy: &options.policy(desired),
            cancel,
            memory: &MemoryBudget::new(config_maps.map(BTreeMap::len).sum()),
        };
        let mut surveys = self.survey_writable(pass).await?;
        let writer = Writer::new(pass, &**input);
        if !self.limit_writes(&writer, &mut surveys).await? {
            return Ok(());
        }
        if options.dry_run {
            return self.dry_run(&writer, &surveys).await;
        }
        self.begin_writes(&writer, &mut surveys).await?;
        let written = future::join_all(surveys.iter().map(|survey| write_namespace(&writer, survey))).await;
        for (survey, written) in surveys.iter().zip(&written) {
            self.earlier.remember_objects(&survey.namespace, written);
            for item in survey.reported_items() {
                let target = written.get(&item.name).map(|written| written.target.clone());
                self.targets.push(target.unwrap_or_else(|| pass.target(survey, item)));
            }
        }
        self.confirm_and_record(&writer, &surveys, &written).await
    }

    /// Step 2. Returns the namespaces that may be written.
    async fn survey_writable(&mut self, pass: PassContext<'_>) -> Result<Vec<NamespaceSurvey>, Unsettled> {
        let Delivery { input, aliases, .. } = &*self.delivery;
        let found = tokio::select! {
            biased;
            found = survey_cluster(pass, aliases, &self.earlier, &mut self.notes) => Some(found),
            // Reads can be dropped at any point. Those that wait for their next try end at once, with their last error.
            () = pass.cancel.cancelled_for(LAST_ERROR_TIMEOUT) => None,
        };
        let Some(ClusterSurvey { mut surveys, mut refused, failures, unread }) = found else {
            let stop = StopReason::Cancelled;
            let all = all_failed(pass.desired, pass.cluster_name, &stop.to_string(), &[]).into_iter();
            let skipped = |target: Target| Target { outcome: Outcome::Skipped, transient: true, ..target };
            self.targets.extend(all.map(skipped));
            return Err(Unsettled::Stopped(stop));
        };
        refused.extend(refusals(pass, aliases, input.follows_ref(), &surveys));
        refused.extend(orphaned::foreign_namespaces(pass, &**input, &surveys).await);
        self.failures = failures;
        self.unread = unread;
        refused.keys().for_each(|namespace| self.unread.add(namespace));
        surveys.retain(|survey| !refused.contains_key(&survey.namespace));
        self.targets.extend(refused.into_values().flatten());
        Ok(surveys)
    }

    /// Takes away the namespaces in which nothing may be written because of the limit on deletions or because the ref
    /// went back. Returns false if the ref forbids it in the whole cluster.
    async fn limit_writes(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &mut Vec<NamespaceSurvey>,
    ) -> Result<bool, Unsettled> {
        let PassContext { desired, options, .. } = writer.pass;
        if let Err((why, over)) = orphaned::check_limit(options.prune_limit, surveys) {
            let failure = NamespaceFailure::refused(why.to_string(), why.hint());
            for survey in surveys.extract_if(.., |survey| over.contains(&survey.namespace)) {
                self.end_all(writer.pass, &[survey], &failure);
            }
        }
        // What is held must not be recorded either: the next revision would count as an advance over it.
        let holds = options.on_rewind == OnRewind::Hold;
        let settles = options.settles_rewinds && !holds;
        let records = holds && !options.dry_run;
        let is_limited = |survey: &NamespaceSurvey| {
            settles || survey.has_writes() || (records && set::needs_recording(survey, desired))
        };
        if !surveys.iter().any(is_limited) {
            return Ok(true);
        }
        match check_rewind(writer, surveys, &mut self.lag_deadline, &mut self.notes).await {
            Ok(Rewinds { held, followed }) => {
                for survey in surveys.extract_if(.., |survey| held.contains_key(&survey.namespace)) {
                    let failure = &held[&survey.namespace];
                    self.end_all(writer.pass, &[survey], failure);
                }
                for survey in surveys.iter_mut() {
                    let recorded = survey.recorded.as_ref();
                    survey.marker_outdated |= recorded.is_some_and(|one| followed.contains(&one.revision));
                }
                Ok(true)
            }
            Err(failure) => {
                let stop = writer.stopped();
                if stop.is_none() && !surveys.iter().any(NamespaceSurvey::has_writes) {
                    let note = format!("the revision is not recorded: {}", failure.why);
                    self.notes.add_with_hint(note, failure.hints.first().cloned());
                }
                self.end_all(writer.pass, surveys, &failure);
                stop.map_or(Ok(false), |stop| Err(Unsettled::Stopped(stop)))
            }
        }
    }

    /// Sends each write as a dry run.
    async fn dry_run(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &[NamespaceSurvey],
    ) -> Result<(), Unsettled> {
        surveys.iter().for_each(|survey| note_cycles(survey, &mut self.notes));
        let checked = tokio::select! {
            biased;
            checked = check_all(writer, surveys) => Some(checked),
            () = writer.pass.cancel.cancelled() => None,
        };
        match checked {
            Some(checked) => {
                self.targets.extend(checked);
                Ok(())
            }
            None => Err(self.skip_all(writer.pass, surveys, StopReason::Cancelled)),
        }
    }

    /// Waits for this instance's turn, does step 3, and adds to the inventories what step 4 is about to create.
    async fn begin_writes(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &mut [NamespaceSurvey],
    ) -> Result<(), Unsettled> {
        let pass = writer.pass;
        // A namespace whose records are outdated counts as busy, too: another instance may be about to write them.
        let busy: Vec<_> = surveys.iter().filter(|survey| set::is_busy(survey, pass.desired)).collect();
        if busy.is_empty() {
            return Ok(());
        }
        // Where no rule names the namespace, anybody may hold its Lease, and let all others wait.
        let named = busy.iter().filter(|survey| !survey.orphaned);
        let named: Vec<&str> = named.map(|survey| survey.namespace.as_str()).collect();
        if !self.turns.may_write(&named, &mut self.notes).await {
            return Err(Unsettled::Stale);
        }
        if let Err(stop) = writer.check_ref().await {
            return Err(self.skip_all(pass, surveys, stop));
        }
        if !surveys.iter().any(NamespaceSurvey::has_writes) {
            return Ok(());
        }
        let announced = tokio::select! {
            biased;
            announced = record::announce(writer, surveys) => Some(announced),
            () = pass.cancel.cancelled_for(LAST_ANSWER_TIMEOUT) => None,
        };
        match announced {
            Some(Ok(())) => Ok(()),
            Some(Err(conflict)) => {
                self.end_all(pass, surveys, &NamespaceFailure::skipped(conflict.0.clone()));
                Err(Unsettled::Conflict(conflict))
            }
            None => Err(self.skip_all(pass, surveys, StopReason::Cancelled)),
        }
    }

    /// Step 5: asks the remote again, unless nothing was written, and writes the records unless the ref has moved.
    async fn confirm_and_record(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &[NamespaceSurvey],
        written: &[BTreeMap<String, Written>],
    ) -> Result<(), Unsettled> {
        self.unconfirmed |= self.targets.iter().any(|target| target.attempts > 0);
        if self.unconfirmed && writer.stopped().is_none() && writer.check_ref().await.is_ok() {
            self.unconfirmed = false;
        }
        let is_cancelled = match writer.stopped() {
            None => false,
            Some(StopReason::Cancelled) => true,
            Some(stop) => return Err(Unsettled::Stopped(stop)),
        };
        self.earlier.restore(&mut self.targets);
        let recorded = tokio::select! {
            biased;
            recorded = record::record_all(writer, surveys, written, &mut self.targets) => Some(recorded),
            () = writer.pass.cancel.cancelled_for(RECORDING_TIMEOUT) => None, // the next run writes the records
        };
        match recorded.filter(|_| !is_cancelled) {
            Some(Ok(failures)) => {
                self.failures.extend(failures);
                Ok(())
            }
            Some(Err(conflict)) => Err(Unsettled::Conflict(conflict)),
            None => Err(Unsettled::Stopped(StopReason::Cancelled)),
        }
    }

    /// Adds the results of a pass that stops before its first write.
    fn skip_all(
        &mut self,
        pass: PassContext<'_>,
        surveys: &[NamespaceSurvey],
        stop: StopReason,
    ) -> Unsettled {
        self.end_all(pass, surveys, &NamespaceFailure::skipped(stop.to_string()));
        Unsettled::Stopped(stop)
    }

    /// Adds the results of these namespaces, in which nothing is written because of `failure`.
    fn end_all(&mut self, pass: PassContext<'_>, surveys: &[NamespaceSurvey], failure: &NamespaceFailure) {
        for survey in surveys {
            for item in survey.reported_items() {
                let target = pass.target(survey, item);
                self.targets.push(if item.decision.writes() { failure.end(target) } else { target });
            }
        }
    }
}

/// Sends each write as a dry run, and returns what would happen.
async fn check_all<S: DeliveryInput>(writer: &Writer<'_, S>, surveys: &[NamespaceSurvey]) -> Vec<Target> {
    let mut targets = Vec::new();
    for survey in surveys {
        let mut checks = Vec::new();
        for item in survey.reported_items() {
            if item.decision.writes() {
                checks.push(writer.check(survey, item));
            } else {
                targets.push(writer.pass.target(survey, item));
            }
        }
        let concurrency = writer.pass.options.concurrency.max(1);
        let checked: Vec<Target> = stream::iter(checks).buffer_unordered(concurrency).collect().await;
        targets.extend(checked);
    }
    targets
}
