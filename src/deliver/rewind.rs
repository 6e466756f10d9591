//! Handles a ref whose revision does not descend from the one recorded in a cluster: waits in case a replica of the
//! remote lags, then applies or refuses by [`OnRewind`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::notes::Notes;
use super::survey::{NamespaceFailure, NamespaceSurvey, PassContext};
use super::write::{StopReason, Writer};
use super::{OnRewind, or_cancelled, parse_revision};
use crate::configmap::apply::{Claim, names};
use crate::human::sanitize;
use crate::revision::{Relation, Revision};
use crate::secret;
use crate::sources::{DeliveryInput, Recorded};

/// The pause between two requests to a remote whose ref went back.
const LAG_PAUSE: Duration = Duration::from_millis(500);
/// How many revisions of annotations the remote is asked about for one cluster. Each costs it several requests, and
/// anybody who may write a ConfigMap can annotate it with any revision. Deliveries that were killed leave few of them.
const ANNOTATED_MAX: usize = 8;
/// How much of a recorded repository's URL is shown: anybody who may write the inventory can annotate it.
const REPOSITORY_MAX: usize = 200;
/// The hint where another repository uses our owner's name.
const OWNER_OF_ITS_OWN: &str = "give each repository an --owner of its own";
/// The end of each hint where nothing is written.
const APPLY_ONCE: &str = "run once with --on-rewind=apply";

/// A recorded revision that the new one is compared with.
struct Baseline {
    recorded: Recorded,
    /// The namespaces that it concerns: those whose objects have it, or that no rule names and whose inventory has it.
    /// `None` if the inventory of a namespace that rules name has it, which concerns the whole cluster.
    namespaces: Option<BTreeSet<String>>,
    /// The repository that recorded it, if the inventory names another one than ours.
    other_repository: Option<String>,
    /// False if it is one annotation too many: then the remote is not asked, and the relation counts as unknown.
    is_asked: bool,
}

/// What the recorded revisions mean for the writes.
#[derive(Default)]
pub(super) struct Rewinds {
    /// The namespaces in which nothing may be written.
    pub(super) held: BTreeMap<String, NamespaceFailure>,
    /// The revisions that the ref is followed away from. Where an inventory has one of them, the new one is to be
    /// recorded instead, as that would hold the next one otherwise, also where nothing else is to be written.
    pub(super) followed: BTreeSet<Revision>,
}

/// Checks the new revision against those that are recorded in the namespaces, in the inventory and on the objects that
/// it does not know. `Err` says why if nothing may be written now in the whole cluster.
///
/// `lag_deadline` holds until when a ref that went back may be the answer of a lagging replica; it is set here once.
pub(super) async fn check_rewind<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    surveys: &[NamespaceSurvey],
    lag_deadline: &mut Option<Instant>,
    notes: &mut Notes,
) -> Result<Rewinds, NamespaceFailure> {
    let PassContext { options, desired, .. } = writer.pass;
    let mut rewinds = Rewinds::default();
    if !writer.input.follows_ref() {
        return Ok(rewinds);
    }
    for baseline in baselines(writer.pass, surveys) {
        let relation = relation_to(writer, &baseline).await;
        let relation = relation.map_err(|stop| NamespaceFailure::skipped(stop.to_string()))?;
        let may_lag = matches!(relation, Relation::Behind | Relation::UnknownToRemote) && !options.dry_run;
        if may_lag {
            let until = *lag_deadline.get_or_insert_with(|| Instant::now() + options.lag);
            if timeout_at(until, wait_for_other_revision(writer)).await.is_ok() {
                let stop = writer.stopped().map(|stop| stop.to_string());
                return Err(NamespaceFailure::skipped(stop.unwrap_or_default()));
            }
        }
        let Baseline { recorded, namespaces, other_repository, .. } = baseline;
        // It may be anybody's, so it does not count if the remote does not have its commit. It may also be ours, and
        // the remote a replica that lags: that was waited for.
        if namespaces.is_some() && relation == Relation::UnknownToRemote {
            continue;
        }
        let other = other_repository.filter(|_| relation == Relation::UnknownToRemote);
        let (from, to) = (recorded.revision, desired.revision);
        let Some(what) = describe(relation, from, to, other.as_deref()) else { continue };
        let what = what + &describe_moves(&recorded.sources, &desired.sources.revisions());
        if options.on_rewind == OnRewind::Hold {
            let failure = held(what, relation, other.is_some());
            let Some(namespaces) = namespaces else { return Err(failure) };
            rewinds.held.extend(namespaces.into_iter().map(|namespace| (namespace, failure.clone())));
            continue;
        }
        let is_known = relation != Relation::Unknown;
        if is_known || options.settles_rewinds {
            rewinds.followed.insert(recorded.revision);
        }
        if is_known {
            let hint = other.map(|_| format!("{OWNER_OF_ITS_OWN}; --on-rewind=hold refuses this"));
            notes.add_with_hint(what, hint);
        }
    }
    Ok(rewinds)
}

/// Returns why nothing is written with [`OnRewind::Hold`]; `what` says how the revisions are related.
fn held(what: String, relation: Relation, is_other_repository: bool) -> NamespaceFailure {
    let hint = match relation {
        _ if is_other_repository => format!("{OWNER_OF_ITS_OWN}; if this one has moved, {APPLY_ONCE}"),
        Relation::Behind => format!("push something newer, or {APPLY_ONCE}"),
        _ => format!("if the ref is right, {APPLY_ONCE}"),
    };
    NamespaceFailure::refused(what + ", and only fast-forwards are applied", &hint)
}

/// Says how the revision that the ref names is related to the recorded one, which another repository may have recorded;
/// `None` if it is an advance.
fn describe(relation: Relation, from: Revision, to: Revision, other: Option<&str>) -> Option<String> {
    let (from, to) = (from.short(), to.short());
    Some(match relation {
        Relation::Ahead => return None,
        Relation::Behind => format!("the ref went back from {from} to {to}"),
        Relation::Diverged => format!("the ref was forced from {from} to {to}, which does not contain it"),
        Relation::UnknownToRemote => {
            let by = other.map(|other| format!("; it was recorded from {other}")).unwrap_or_default();
            format!("the ref points to {to}, and the remote does not have the recorded revision {from}{by}")
        }
        Relation::Unknown => {
            format!("it is not known whether {to} is a descendant of the recorded revision {from}")
        }
    })
}

/// Returns the relation of the new revision to a recorded one. `Err` if nothing may be written before it is known; then
/// all writes are stopped.
async fn relation_to<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    baseline: &Baseline,
) -> Result<Relation, StopReason> {
    let PassContext { options, desired, cancel, .. } = writer.pass;
    if !baseline.is_asked {
        return Ok(Relation::Unknown);
    }
    let mut recorded = baseline.recorded.clone();
    // Nothing is written of a source that had not answered when the delivery was planned, so its commit does not count.
    for source in desired.sources.unanswered() {
        if let (Some(before), Some(now)) = (recorded.sources.get_mut(&source.name), source.revision) {
            *before = now;
        }
    }
    let error = match or_cancelled(cancel, writer.input.relation(recorded, desired.revision)).await {
        Ok(relation) => return Ok(relation),
        Err(error) => error,
    };
    // With `Hold` an unknown relation would refuse the revision. As the remote may answer soon, it is asked again. What
    // concerns single namespaces may never be answered, and must not stop others.
    let holds_all = options.on_rewind == OnRewind::Hold && baseline.namespaces.is_none();
    if !holds_all && !cancel.is_cancelled() {
        return Ok(Relation::Unknown);
    }
    let stop = StopReason::RefUnknown(error);
    writer.stop(stop.clone());
    Err(stop)
}

/// Returns the recorded revisions other than the new one: first those of inventories, each once, then those of
/// annotations.
fn baselines(pass: PassContext<'_>, surveys: &[NamespaceSurvey]) -> Vec<Baseline> {
    let recorded = recorded_baselines(pass, surveys);
    // The revision of a set is no commit: without the commits of its sources its relation cannot be known.
    let is_set = !pass.desired.sources.revisions().is_empty();
    let annotated = if is_set { Vec::new() } else { annotated_baselines(pass, surveys, &recorded) };
    recorded.into_values().chain(annotated).collect()
}

/// Returns the revisions that inventories record.
fn recorded_baselines(pass: PassContext<'_>, surveys: &[NamespaceSurvey]) -> BTreeMap<Revision, Baseline> {
    let mut baselines: BTreeMap<Revision, Baseline> = BTreeMap::new();
    // Anybody can make an inventory in a namespace that no rule names. So it concerns only what is to be deleted there.
    // Those of other namespaces come last, and prevail where they have the same revision.
    let (orphaned, served): (Vec<&NamespaceSurvey>, Vec<&NamespaceSurvey>) =
        surveys.iter().partition(|survey| survey.orphaned);
    let orphaned = orphaned.into_iter().filter(|survey| survey.has_writes());
    for survey in orphaned.chain(served) {
        let Some(recorded) = survey.recorded.clone() else { continue };
        let other_repository = other_repository(survey, pass.options.repository.as_deref());
        let mut namespaces = survey.orphaned.then(|| BTreeSet::from([survey.namespace.clone()]));
        if let Some(before) = baselines.remove(&recorded.revision) {
            namespaces = namespaces.zip(before.namespaces).map(|(one, others)| &one | &others);
        }
        let baseline = Baseline { recorded, namespaces, other_repository, is_asked: true };
        baselines.insert(baseline.recorded.revision, baseline);
    }
    baselines.remove(&pass.desired.revision);
    baselines
}

/// Returns the revisions that only annotations of objects have, in the order in which the remote is asked about them.
fn annotated_baselines(
    pass: PassContext<'_>,
    surveys: &[NamespaceSurvey],
    recorded: &BTreeMap<Revision, Baseline>,
) -> Vec<Baseline> {
    let concerns_all =
        |revision: &Revision| recorded.get(revision).is_some_and(|baseline| baseline.namespaces.is_none());
    // By revision: the least position among the annotations of a namespace, and all namespaces that have it.
    let mut annotated: BTreeMap<Revision, (usize, BTreeSet<String>)> = BTreeMap::new();
    for survey in surveys {
        let revisions = unrecorded_revisions(survey).into_iter();
        let new = revisions.filter(|revision| *revision != pass.desired.revision && !concerns_all(revision));
        for (position, revision) in new.enumerate() {
            let (least, namespaces) = annotated.entry(revision).or_insert((position, BTreeSet::new()));
            *least = position.min(*least);
            namespaces.insert(survey.namespace.clone());
        }
    }
    // Each namespace has its turn, so that many annotations in one of them do not keep those of others from being asked
    // for. A delivery that was killed left the same revision in several namespaces.
    let mut annotated: Vec<_> = annotated.into_iter().collect();
    annotated.sort_by_key(|(_, (least, namespaces))| (*least, Reverse(namespaces.len())));
    let annotated = annotated.into_iter().enumerate().map(|(at, (revision, (_, namespaces)))| Baseline {
        recorded: Recorded { revision, sources: BTreeMap::new() },
        namespaces: Some(namespaces),
        other_repository: None,
        is_asked: at < ANNOTATED_MAX,
    });
    annotated.collect()
}

/// Returns the repository that an inventory was written from, for display, if that is another one than ours.
fn other_repository(survey: &NamespaceSurvey, ours: Option<&str>) -> Option<String> {
    let recorded = survey.marker_meta.as_ref()?.annotations.get(names::REPOSITORY)?;
    let is_other = without_ending(recorded) != without_ending(ours?);
    is_other.then(|| sanitize(&secret::redact(recorded), REPOSITORY_MAX))
}

/// Returns a repository's URL without the ending that may be written or not.
fn without_ending(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix(".git").unwrap_or(url).trim_end_matches('/')
}

/// Returns the revisions of our objects that are about to be replaced or deleted, where the inventory has another one:
/// a delivery wrote them and ended before it recorded them.
fn unrecorded_revisions(survey: &NamespaceSurvey) -> BTreeSet<Revision> {
    let ours =
        survey.items.iter().filter(|item| item.decision.writes() && item.decision.claim == Claim::Ours);
    let unrecorded = ours.filter_map(|item| {
        let revision = item.meta.as_ref()?.annotations.get(names::REVISION)?;
        let entry = survey.marker.entries.get(&item.name);
        if entry.is_some_and(|entry| entry.revision == *revision) {
            return None;
        }
        parse_revision(revision)
    });
    unrecorded.collect()
}

/// Lists the sources whose commits differ, as the set's own commit ids say nothing to a person. Empty with one source.
fn describe_moves(before: &BTreeMap<String, Revision>, now: &BTreeMap<String, Revision>) -> String {
    let differs = |(name, now): (&String, &Revision)| {
        let before = before.get(name).filter(|before| *before != now)?;
        Some(format!("{name} from {} to {}", before.short(), now.short()))
    };
    let moved: Vec<String> = now.iter().filter_map(differs).collect();
    if moved.is_empty() { String::new() } else { format!(" ({})", moved.join(", ")) }
}

/// Asks the remote again until its ref names another revision, or shutdown.
async fn wait_for_other_revision<S: DeliveryInput>(writer: &Writer<'_, S>) {
    while !writer.pass.cancel.is_cancelled() {
        tokio::time::sleep(LAG_PAUSE).await;
        // An error says nothing about the ref, so only another revision ends the wait.
        if matches!(writer.check_ref().await, Err(StopReason::Moved(_))) {
            return;
        }
        writer.clear_stop();
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::super::testing::{PassFixture, Remote, desired, options, revision, survey};
    use super::*;
    use crate::cluster::Meta;
    use crate::configmap::apply::{Action, Decision, Desired, PlacedSource, Placement};
    use crate::deliver::Options;
    use crate::sources::SourceError;

    /// Two namespaces; in the first one, an object has an annotation with revision 1, which no inventory has.
    fn surveys() -> [NamespaceSurvey; 2] {
        let replaced = || Decision { action: Action::Replace, ..Decision::unchanged(String::new()) };
        let mut surveys = ["one", "two"].map(|namespace| survey(namespace, replaced()));
        annotate(&mut surveys[0], 0, 1);
        surveys
    }

    fn annotate(survey: &mut NamespaceSurvey, item: usize, number: u8) {
        let annotation = (names::REVISION.to_owned(), revision(number).to_string());
        survey.items[item].meta.as_mut().unwrap().annotations.extend([annotation]);
    }

    /// The namespaces in which nothing may be written; `Err` if that is the whole cluster.
    async fn check(
        remote: &Remote,
        options: &Options,
        surveys: &[NamespaceSurvey],
    ) -> Result<Vec<String>, NamespaceFailure> {
        check_for(desired(), remote, options, surveys).await
    }

    async fn check_for(
        desired: Desired,
        remote: &Remote,
        options: &Options,
        surveys: &[NamespaceSurvey],
    ) -> Result<Vec<String>, NamespaceFailure> {
        let fixture = PassFixture::new(desired, options.clone());
        let writer = Writer::new(fixture.pass(), remote);
        let rewinds = check_rewind(&writer, surveys, &mut None, &mut Notes::new("test")).await?;
        Ok(rewinds.held.into_keys().collect())
    }

    /// Without a wait for a replica that lags.
    fn on_rewind(on_rewind: OnRewind) -> Options {
        Options { on_rewind, lag: Duration::ZERO, ..options() }
    }

    fn hold() -> Options {
        on_rewind(OnRewind::Hold)
    }

    fn apply() -> Options {
        on_rewind(OnRewind::Apply)
    }

    #[tokio::test(start_paused = true)]
    async fn an_annotation_holds_its_namespace_alone_unless_the_remote_does_not_have_its_commit() {
        let cases: [(Relation, &[&str]); 5] = [
            (Relation::Ahead, &[]),
            (Relation::Behind, &["one"]),
            (Relation::Diverged, &["one"]),
            (Relation::UnknownToRemote, &[]),
            (Relation::Unknown, &["one"]),
        ];
        for (relation, held) in cases {
            let remote = Remote::new(Ok(relation));
            assert_eq!(check(&remote, &hold(), &surveys()).await.unwrap(), held, "{relation:?}");
            assert!(check(&remote, &apply(), &surveys()).await.unwrap().is_empty(), "{relation:?}");
        }
        // The inventory is our own.
        let mut surveys = surveys();
        surveys[1].recorded = Some(Recorded { revision: revision(1), sources: BTreeMap::new() });
        for relation in [Relation::Behind, Relation::UnknownToRemote, Relation::Unknown] {
            let failure = check(&Remote::new(Ok(relation)), &hold(), &surveys).await.unwrap_err();
            assert_eq!(failure.outcome, Outcome::Refused, "{failure:?}");
        }
    }

    /// Anybody can make one there.
    #[tokio::test(start_paused = true)]
    async fn an_inventory_where_no_rule_names_the_namespace_holds_what_is_to_be_deleted_there_alone() {
        let recorded = |number| Some(Recorded { revision: revision(number), sources: BTreeMap::new() });
        let mut surveys = surveys();
        surveys[1].orphaned = true;
        // Also where it has the revision of an annotation elsewhere.
        for number in [1, 3] {
            surveys[1].recorded = recorded(number);
            for relation in [Relation::Behind, Relation::Unknown] {
                let remote = Remote::new(Ok(relation));
                assert_eq!(check(&remote, &hold(), &surveys).await.unwrap(), ["one", "two"], "{relation:?}");
            }
            let silent = Remote::new(Err(SourceError::interrupted()));
            assert_eq!(check(&silent, &hold(), &surveys).await.unwrap(), ["one", "two"]);
        }
        surveys[0].recorded = recorded(3);
        let behind = Remote::new(Ok(Relation::Behind));
        let failure = check(&behind, &hold(), &surveys).await.unwrap_err();
        assert_eq!(failure.outcome, Outcome::Refused, "a rule names the other one: {failure:?}");
        surveys[0].recorded = None;
        surveys[1].items.clear();
        let remote = Remote::new(Ok(Relation::UnknownToRemote));
        assert!(check(&remote, &hold(), &surveys).await.unwrap().is_empty());
        let asked = remote.asked.into_inner().unwrap();
        assert!(asked.iter().all(|asked| asked.revision == revision(1)), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_revision_that_another_repository_recorded_is_reported_with_that_repository() {
        let mut surveys = surveys();
        surveys[1].recorded = Some(Recorded { revision: revision(1), sources: BTreeMap::new() });
        let other = "; it was recorded from https://h/other.git";
        for (annotated, is_other) in [("https://bob:pw@h/other.git", true), ("https://h/ours/", false)] {
            let mut inventory = Meta::default();
            inventory.annotations.insert(names::REPOSITORY.to_owned(), annotated.to_owned());
            surveys[1].marker_meta = Some(inventory);
            for mode in [OnRewind::Apply, OnRewind::Hold] {
                let repository = Some("https://h/ours.git".to_owned());
                let fixture = PassFixture::new(desired(), Options { repository, ..on_rewind(mode) });
                let remote = Remote::new(Ok(Relation::UnknownToRemote));
                let writer = Writer::new(fixture.pass(), &remote);
                let mut notes = Notes::new("test");
                let (text, hint) = match check_rewind(&writer, &surveys, &mut None, &mut notes).await {
                    Ok(_) => {
                        let note = notes.take().remove(0);
                        (note.text, note.hint.unwrap_or_default())
                    }
                    Err(failure) => (failure.why, failure.hints.concat()),
                };
                assert_eq!(text.contains(other), is_other, "{text}");
                let names_owner = hint.contains("--owner of its own");
                let names_way_out = hint.contains("--on-rewind=apply");
                let is_held = mode == OnRewind::Hold;
                assert_eq!((names_owner, names_way_out), (is_other, is_held), "{hint:?}");
            }
        }
    }

    /// A delivery was killed after it wrote revision 1, and a replica does not have that yet.
    #[tokio::test(start_paused = true)]
    async fn a_replica_that_does_not_have_what_was_written_last_is_asked_again_before_that_is_overwritten() {
        let lag = Duration::from_secs(30);
        for mode in [OnRewind::Apply, OnRewind::Hold] {
            let options = Options { lag, ..on_rewind(mode) };
            let mut remote = Remote::new(Ok(Relation::UnknownToRemote));
            let begin = Instant::now();
            assert!(check(&remote, &options, &surveys()).await.unwrap().is_empty());
            assert!(begin.elapsed() >= lag);
            remote.moves = Some(Instant::now() + lag / 3);
            let failure = check(&remote, &options, &surveys()).await.unwrap_err();
            assert_eq!(failure.outcome, Outcome::Skipped, "{failure:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_annotations_in_one_namespace_cost_few_requests_and_hide_none_of_another() {
        let mut surveys = surveys();
        let item = surveys[0].items[0].clone();
        surveys[0].items = vec![item; 100];
        (0..100).for_each(|at| annotate(&mut surveys[0], at, 100 + at as u8));
        annotate(&mut surveys[1], 0, 200);
        let remote = Remote::new(Ok(Relation::UnknownToRemote));
        assert_eq!(check(&remote, &hold(), &surveys).await.unwrap(), ["one"], "the others are unknown");
        let asked = remote.asked.into_inner().unwrap();
        let is_asked = asked.iter().any(|recorded| recorded.revision == revision(200));
        assert!(asked.len() == ANNOTATED_MAX && is_asked, "{asked:?}");
    }

    /// The remote may know better by now which of them answer, but the desired state was computed before.
    #[tokio::test(start_paused = true)]
    async fn only_sources_that_had_answered_when_the_delivery_was_planned_count() {
        let placed = |name: &str, unanswered: Option<&str>| PlacedSource {
            name: name.to_owned(),
            to: name.to_owned(),
            moves_to: None,
            revision: Some(revision(5)),
            unanswered: unanswered.map(str::to_owned),
        };
        let sources = Placement::new(vec![placed("jobs", None), placed("late", Some("a test"))]);
        let desired = Desired { sources, ..desired() };
        let commits = |of_late: u8| {
            let commits = [("jobs", 4), ("late", of_late)];
            BTreeMap::from(commits.map(|(name, number)| (name.to_owned(), revision(number))))
        };
        let mut surveys = surveys();
        surveys[0].recorded = Some(Recorded { revision: revision(1), sources: commits(4) });
        let remote = Remote::new(Ok(Relation::Ahead));
        assert!(check_for(desired, &remote, &hold(), &surveys).await.unwrap().is_empty());
        let asked = remote.asked.into_inner().unwrap();
        assert_eq!(asked, [Recorded { revision: revision(1), sources: commits(5) }]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_that_does_not_answer_for_an_annotation_stops_no_other_namespace() {
        let silent = || Remote::new(Err(SourceError::interrupted()));
        assert_eq!(check(&silent(), &hold(), &surveys()).await.unwrap(), ["one"]);
        assert!(check(&silent(), &apply(), &surveys()).await.unwrap().is_empty());
        let mut surveys = surveys();
        surveys[1].recorded = Some(Recorded { revision: revision(3), sources: BTreeMap::new() });
        let failure = check(&silent(), &hold(), &surveys).await.unwrap_err();
        assert_eq!(failure.outcome, Outcome::Skipped, "{failure:?}");
    }
}
