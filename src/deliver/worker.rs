//! Delivers to one cluster: reads it, asks the remote, writes (`waves`), asks again, and starts over when the ref
//! moved.

mod waves;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt as _, future, stream};
use tokio::time::Instant;

use super::aliases::Aliases;
use super::earlier_writes::EarlierWrites;
use super::kept;
use super::orphaned;
use super::pauses::{Ending, LAST_ANSWER_TIMEOUT, LAST_ERROR_TIMEOUT, RECORDING_TIMEOUT, pause};
use super::pool::Pool;
use super::record::{self, Recording};
use super::report::{
    ClusterOutcome, Notes, Outcome, Target, Unread, all_failed, fail_skipped, namespace_failed,
};
use super::rewind::{Halt, Rewinds, check_rewind};
use super::set;
use super::survey::{ClusterSurvey, NamespaceFailure, NamespaceSurvey, SurveyContext};
use super::turns::LeaseTurns;
use super::write::{StopReason, Writer, Written};
use super::{OnRewind, Options, planned};
use crate::cluster::Cluster;
use crate::configmap::apply::Desired;
use crate::human;
use crate::sources::DeliveryInput;

/// How often a worker starts over because the ref moved or an inventory changed. After that the cluster is left to
/// the next run.
const MAX_RESTARTS: u32 = 20;
/// How much of the names of an inventory's damaged keys is shown, in characters.
const NAMES_MAX: usize = 200;

/// One cluster's part of a delivery.
pub(super) struct Worker<S> {
    pub(super) name: String,
    pub(super) cluster: Cluster,
    pub(super) aliases: Arc<Aliases>,
    pub(super) input: Arc<S>,
    pub(super) options: Options,
    pub(super) cancel: Ending,
    turns: LeaseTurns,
    pub(super) notes: Notes,
    earlier: EarlierWrites,
    /// True if something was written and the remote has not been asked since.
    unconfirmed: bool,
    /// What the last pass did not read: see [`ClusterOutcome::unread`].
    unread: Unread,
    /// Until when a ref that went back may be the answer of a lagging replica; `None` before the first such answer.
    lag_deadline: Option<Instant>,
}

/// Why a pass over the cluster ended before every target had its definite result.
enum Unsettled {
    /// Writing was stopped.
    Stopped(StopReason),
    /// An inventory has changed since it was read, so the cluster has to be read again. Holds the error's text.
    Again(String),
    /// Peers may have written since the survey, so the cluster has to be read again. Not counted as a restart.
    Stale,
}

impl<S: DeliveryInput> Worker<S> {
    pub(super) fn new(
        name: String,
        cluster: Cluster,
        aliases: Arc<Aliases>,
        input: Arc<S>,
        options: Options,
        cancel: Ending,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        let leases = options.leases.clone();
        let owner = &options.owner;
        let turns = LeaseTurns::new(name.clone(), cluster.clone(), (leases, pool), owner, cancel.clone());
        let notes = Notes::new(&name);
        Self {
            name,
            cluster,
            aliases,
            input,
            options,
            cancel,
            turns,
            notes,
            earlier: EarlierWrites::default(),
            unconfirmed: false,
            unread: Unread::default(),
            lag_deadline: None,
        }
    }

    /// Runs until every target has a definite result, then releases the Leases.
    pub(super) async fn run(mut self, desired: Arc<Desired>) -> ClusterOutcome {
        let outcome = self.retry_until_done(desired).await;
        self.turns.release().await;
        outcome
    }

    /// Repeats passes until one is final: after a newer revision, a peer's writes, or a transient failure of the
    /// remote.
    async fn retry_until_done(&mut self, mut desired: Arc<Desired>) -> ClusterOutcome {
        let mut restarts = 0;
        let mut failures = 0;
        loop {
            let mut targets = Vec::new();
            let stop = match self.pass(&desired, &mut targets).await {
                Ok(failures) => return self.outcome(&desired, targets, failures),
                Err(Unsettled::Stopped(stop)) => stop,
                Err(Unsettled::Stale) => continue,
                Err(Unsettled::Again(why)) if restarts >= MAX_RESTARTS => {
                    return self.outcome(&desired, targets, vec![why]);
                }
                Err(Unsettled::Again(_)) => {
                    self.earlier.remember(&targets);
                    restarts += 1;
                    pause(&self.options, &self.cancel, restarts, None).await;
                    continue;
                }
            };
            self.earlier.remember(&targets);
            let error = match stop {
                StopReason::Cancelled => {
                    let why = format!("cluster {}: the run ended before everything was done", self.name);
                    return self.outcome(&desired, targets, vec![why]);
                }
                StopReason::Moved(newer) if restarts < MAX_RESTARTS => {
                    restarts += 1;
                    match planned(&*self.input, newer, &self.cancel).await {
                        Ok(newer) => {
                            desired = newer;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                StopReason::Moved(_) => {
                    let why = format!("cluster {}: the ref moves faster than it can be followed", self.name);
                    return self.outcome(&desired, targets, vec![why]);
                }
                StopReason::RefUnknown(error) => error,
            };
            failures += 1;
            if !error.class.is_transient() || failures >= self.options.tries || self.cancel.is_cancelled() {
                let why = format!("cluster {}: {error}", self.name);
                return self.outcome(&desired, fail_skipped(targets, &error), vec![why]);
            }
            self.turns.release().await; // peers need not wait for our remote
            pause(&self.options, &self.cancel, failures, None).await;
        }
    }

    fn outcome(
        &mut self,
        desired: &Desired,
        mut targets: Vec<Target>,
        failures: Vec<String>,
    ) -> ClusterOutcome {
        self.earlier.restore(&mut targets);
        let (revision, unread) = (desired.revision, self.unread.clone());
        ClusterOutcome { revision, targets, notes: self.notes.take(), failures, unread }
    }

    /// Runs steps 2 to 5 once (see [`super`]). Adds the result of every target to `targets`; if the pass is unsettled,
    /// the results are not final. Returns what else failed, a line each.
    async fn pass(&mut self, desired: &Desired, targets: &mut Vec<Target>) -> Result<Vec<String>, Unsettled> {
        self.unread = Unread::all();
        // Checked for each revision: a revision that arrived meanwhile may use a second name for this cluster.
        if let Some(other) = self.aliases.other(&self.name, desired) {
            let why = format!(
                "it is the same cluster as {other}, and each would treat the other's ConfigMaps as removed from the rules"
            );
            let hints = ["use a single name for each cluster in the rules".to_owned()];
            targets.extend(all_failed(desired, &self.name, &why, &hints));
            return Ok(Vec::new());
        }
        let (options, cluster, cancel) = (self.options.clone(), self.cluster.clone(), self.cancel.clone());
        let policy = options.policy(desired);
        let here = desired.config_maps.iter().filter(|(place, _)| place.cluster == self.name);
        let room = kept::room(here.map(|(_, config_maps)| config_maps.len()).sum());
        let reader = SurveyContext {
            cluster: &cluster,
            options: &options,
            policy: &policy,
            cancel: &cancel,
            room: &room,
        };
        let (mut surveys, mut failures) = self.survey_writable(desired, reader, targets).await?;
        let input = Arc::clone(&self.input);
        let writer = Writer::new(reader, desired, &*input);
        if !self.limit_writes(&writer, &mut surveys, targets).await? {
            return Ok(failures);
        }
        if options.dry_run {
            let checked = tokio::select! {
                biased;
                checked = self.dry_run(&writer, &surveys) => Some(checked),
                () = cancel.cancelled() => None,
            };
            let Some(checked) = checked else {
                return Err(self.skip_all(&writer, &surveys, StopReason::Cancelled, targets));
            };
            targets.extend(checked);
            return Ok(failures);
        }
        self.begin_writes(&writer, &mut surveys, targets).await?;
        let written =
            future::join_all(surveys.iter().map(|survey| self.write_namespace(&writer, survey))).await;
        for (survey, written) in surveys.iter().zip(&written) {
            self.earlier.remember_objects(&survey.namespace, written);
        }
        targets.extend(self.results(&writer, &surveys, &written));
        failures.extend(self.confirm_and_record(&writer, &surveys, &written, targets).await?);
        Ok(failures)
    }

    /// Step 2. Returns the namespaces that may be written, and other failures of reads, a line each. The results of all
    /// other namespaces are added to `targets`.
    async fn survey_writable(
        &mut self,
        desired: &Desired,
        reader: SurveyContext<'_>,
        targets: &mut Vec<Target>,
    ) -> Result<(Vec<NamespaceSurvey>, Vec<String>), Unsettled> {
        let found = tokio::select! {
            biased;
            found = self.survey(desired, reader) => Some(found),
            // Reads can be dropped at any point. Those that wait for their next try end at once, with their last error.
            () = reader.cancel.over(LAST_ERROR_TIMEOUT) => None,
        };
        let Some(ClusterSurvey { mut surveys, mut refused, failures, unread }) = found else {
            let stop = StopReason::Cancelled;
            let all = all_failed(desired, &self.name, &stop.to_string(), &[]).into_iter();
            let skipped = |target: Target| Target { outcome: Outcome::Skipped, transient: true, ..target };
            targets.extend(all.map(skipped));
            return Err(Unsettled::Stopped(stop));
        };
        refused.extend(self.refusals(desired, &surveys));
        let foreign = orphaned::foreign_namespaces(reader, &*self.input, (&self.name, desired), &surveys);
        refused.extend(foreign.await);
        self.unread = unread;
        refused.keys().for_each(|namespace| self.unread.add(namespace));
        surveys.retain(|survey| !refused.contains_key(&survey.namespace));
        targets.extend(refused.into_values().flatten());
        Ok((surveys, failures))
    }

    /// Takes away the namespaces in which nothing may be written because of the limit on deletions or because the ref
    /// went back. Returns false if the ref forbids it in the whole cluster. The results of what may not be written are
    /// added to `targets`.
    async fn limit_writes(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &mut Vec<NamespaceSurvey>,
        targets: &mut Vec<Target>,
    ) -> Result<bool, Unsettled> {
        if let Err((why, over)) = orphaned::check_limit(self.options.prune_limit, surveys) {
            let over: Vec<_> = surveys.extract_if(.., |survey| over.contains(&survey.namespace)).collect();
            let hints = [why.hint().to_owned()];
            targets.extend(self.end_all(writer, &over, Outcome::Refused, &why.to_string(), &hints));
        }
        // What is held must not be recorded either: the next revision would count as an advance over it.
        let holds = self.options.on_rewind == OnRewind::Hold;
        let settles = self.options.settles_rewinds && !holds;
        let records = holds && !self.options.dry_run;
        let is_limited = |survey: &NamespaceSurvey| {
            settles || survey.has_writes() || (records && set::needs_recording(survey, writer.desired))
        };
        if !surveys.iter().any(is_limited) {
            return Ok(true);
        }
        match check_rewind(writer, surveys, &mut self.lag_deadline, &mut self.notes).await {
            Ok(Rewinds { held, followed }) => {
                for survey in surveys.extract_if(.., |survey| held.contains_key(&survey.namespace)) {
                    let Halt { outcome, why, hint } = &held[&survey.namespace];
                    targets.extend(self.end_all(writer, &[survey], *outcome, why, hint.as_slice()));
                }
                for survey in surveys.iter_mut() {
                    let recorded = survey.recorded.as_ref();
                    survey.outdated |= recorded.is_some_and(|one| followed.contains(&one.revision));
                }
                Ok(true)
            }
            Err(Halt { outcome, why, hint }) => {
                let stop = writer.stopped();
                if stop.is_none() && !surveys.iter().any(NamespaceSurvey::has_writes) {
                    let note = format!("the revision is not recorded: {why}");
                    self.notes.add_with_hint(note, hint.clone());
                }
                targets.extend(self.end_all(writer, surveys, outcome, &why, hint.as_slice()));
                stop.map_or(Ok(false), |stop| Err(Unsettled::Stopped(stop)))
            }
        }
    }

    /// Waits for this instance's turn, does step 3, and adds to the inventories what step 4 is about to create.
    async fn begin_writes(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &mut [NamespaceSurvey],
        targets: &mut Vec<Target>,
    ) -> Result<(), Unsettled> {
        // A namespace whose records are outdated counts as busy, too: a peer may be about to write them.
        let busy: Vec<_> = surveys.iter().filter(|survey| set::is_busy(survey, writer.desired)).collect();
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
            return Err(self.skip_all(writer, surveys, stop, targets));
        }
        if !surveys.iter().any(NamespaceSurvey::has_writes) {
            return Ok(());
        }
        let announced = tokio::select! {
            biased;
            announced = record::announce(writer, surveys) => Some(announced),
            () = writer.reader.cancel.over(LAST_ANSWER_TIMEOUT) => None,
        };
        match announced {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => {
                targets.extend(self.end_all(writer, surveys, Outcome::Skipped, &why, &[]));
                Err(Unsettled::Again(why))
            }
            None => Err(self.skip_all(writer, surveys, StopReason::Cancelled, targets)),
        }
    }

    /// Step 5: asks the remote again, unless nothing was written, and writes the records unless the ref has moved.
    /// Returns what could not be recorded, a line each.
    async fn confirm_and_record(
        &mut self,
        writer: &Writer<'_, S>,
        surveys: &[NamespaceSurvey],
        written: &[BTreeMap<String, Written>],
        targets: &mut Vec<Target>,
    ) -> Result<Vec<String>, Unsettled> {
        self.unconfirmed |= targets.iter().any(|target| target.attempts > 0);
        if self.unconfirmed && writer.stopped().is_none() && writer.check_ref().await.is_ok() {
            self.unconfirmed = false;
        }
        let is_cancelled = match writer.stopped() {
            None => false,
            Some(StopReason::Cancelled) => true,
            Some(stop) => return Err(Unsettled::Stopped(stop)),
        };
        self.earlier.restore(targets);
        let recording = tokio::select! {
            biased;
            recording = record::record_all(writer, surveys, written, targets) => Some(recording),
            () = writer.reader.cancel.over(RECORDING_TIMEOUT) => None, // the next run writes the records
        };
        match recording.filter(|_| !is_cancelled) {
            Some(Recording::Done(failures)) => Ok(failures),
            Some(Recording::Conflict(why)) => Err(Unsettled::Again(why)),
            None => Err(Unsettled::Stopped(StopReason::Cancelled)),
        }
    }

    /// Reads every namespace that the revision has ConfigMaps for and, if pruning, those that no rule names any more. A
    /// namespace that cannot be read fails by itself.
    async fn survey(&mut self, desired: &Desired, reader: SurveyContext<'_>) -> ClusterSurvey {
        let name = self.name.clone();
        let mut all = ClusterSurvey::default();
        let mut namespaces: Vec<String> = desired.namespaces(&name).map(str::to_owned).collect();
        let unneeded = namespaces.is_empty();
        let mut orphans_unknown = None;
        let mut abandoned: Vec<String> = Vec::new();
        if self.options.prune {
            match orphaned::find(reader, &self.aliases, (&name, desired)).await {
                Ok(found) => {
                    namespaces.extend(found.namespaces);
                    for (namespace, error) in found.unclear {
                        all.add_unpruned(&name, &namespace, &human::one_line(&error));
                    }
                }
                Err(error) => orphans_unknown = Some(error),
            }
            // A peer may have deleted the inventory of one in which an earlier pass wrote.
            let is_new = |namespace: &&String| !namespaces.contains(namespace);
            abandoned.extend(self.earlier.namespaces().filter(is_new).cloned());
            namespaces.extend_from_slice(&abandoned);
        }
        let found = namespaces.iter().map(|namespace| {
            reader.survey_namespace(desired, (&name, namespace), self.earlier.entries(namespace))
        });
        let found = future::join_all(found).await;
        for (namespace, found) in namespaces.into_iter().zip(found) {
            match found {
                // It has an inventory and was not found by it, or nothing of ours.
                Ok(survey)
                    if abandoned.contains(&namespace)
                        && (survey.marker_meta.is_some() || survey.late.is_empty()) => {}
                Ok(survey) => {
                    if !survey.marker.damaged.is_empty() {
                        let names: Vec<_> = survey.marker.damaged.keys().cloned().collect();
                        let names = human::sanitize(&names.join(", "), NAMES_MAX);
                        let marker = reader.policy.owner.marker();
                        self.notes.add(format!("the inventory {namespace}/{marker} cannot be read at {names}: nothing is deleted there"));
                    }
                    all.surveys.push(survey);
                }
                Err(unreadable) if desired.of(&name, &namespace).is_none() => match unreadable.transient {
                    true => all.add_unpruned(&name, &namespace, &unreadable.why),
                    false => orphaned::report_unreadable(&namespace, &unreadable, &mut self.notes),
                },
                Err(NamespaceFailure { why, hints, transient, outcome, cause }) => {
                    let targets = namespace_failed(desired, (&name, &namespace), &why, &hints).into_iter();
                    let failed =
                        |target: Target| Target { transient, outcome, cause: cause.clone(), ..target };
                    all.refused.insert(namespace, targets.map(failed).collect());
                }
            }
        }
        if let Some(error) = orphans_unknown {
            // What there may be besides stays on record, unless it will never be known.
            if !orphaned::is_denied(&error) {
                let read = all.surveys.iter().map(|survey| survey.namespace.clone());
                all.unread = Unread::AllBut(read.collect());
            }
            all.failures.extend(orphaned::report_unknown(&error, unneeded, &mut self.notes));
        }
        all
    }

    /// Sends each write as a dry run, and returns what would happen.
    async fn dry_run(&mut self, writer: &Writer<'_, S>, surveys: &[NamespaceSurvey]) -> Vec<Target> {
        let mut targets = Vec::new();
        surveys.iter().for_each(|survey| self.note_cycles(survey));
        let name = &self.name;
        for survey in surveys {
            let mut checks = Vec::new();
            for item in &survey.items {
                if item.decision.writes() {
                    checks.push(writer.check(name, survey, item));
                } else if item.is_reported() {
                    targets.push(writer.target(name, survey, item));
                }
            }
            let checked: Vec<Target> =
                stream::iter(checks).buffer_unordered(self.options.concurrency.max(1)).collect().await;
            targets.extend(checked);
        }
        targets
    }

    /// Returns the result of every target: of the write if there was one, else as decided.
    fn results(
        &self,
        writer: &Writer<'_, S>,
        surveys: &[NamespaceSurvey],
        written: &[BTreeMap<String, Written>],
    ) -> Vec<Target> {
        let of = |(survey, written): (&NamespaceSurvey, &BTreeMap<String, Written>)| {
            let items = survey.items.iter().filter(|item| item.is_reported());
            items
                .map(|item| match written.get(&item.name) {
                    Some(written) => written.target.clone(),
                    None => writer.target(&self.name, survey, item),
                })
                .collect::<Vec<_>>()
        };
        surveys.iter().zip(written).flat_map(of).collect()
    }

    /// Adds the results of a pass that stops before its first write.
    fn skip_all(
        &self,
        writer: &Writer<'_, S>,
        surveys: &[NamespaceSurvey],
        stop: StopReason,
        targets: &mut Vec<Target>,
    ) -> Unsettled {
        targets.extend(self.end_all(writer, surveys, Outcome::Skipped, &stop.to_string(), &[]));
        Unsettled::Stopped(stop)
    }

    /// Gives every target that would be written this outcome.
    fn end_all(
        &self,
        writer: &Writer<'_, S>,
        surveys: &[NamespaceSurvey],
        outcome: Outcome,
        why: &str,
        hints: &[String],
    ) -> Vec<Target> {
        let of = |survey: &NamespaceSurvey| {
            let items = survey.items.iter().filter(|item| item.is_reported());
            items
                .map(|item| {
                    let target = writer.target(&self.name, survey, item);
                    if item.decision.writes() { target.ended(outcome, why, hints.to_vec()) } else { target }
                })
                .collect::<Vec<_>>()
        };
        surveys.iter().flat_map(of).collect()
    }
}
