//! Handles a ref whose revision does not descend from the one recorded in a cluster: waits in case a replica of the
//! remote lags, then applies or refuses by [`OnRewind`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::report::{Notes, Outcome};
use super::survey::{NamespaceSurvey, SurveyContext};
use super::write::{StopReason, Writer};
use super::{OnRewind, or_cancelled, parse_revision};
use crate::configmap::apply::{Claim, names};
use crate::revision::{Relation, Revision};
use crate::sources::{Recorded, Source};

/// The pause between two requests to a remote whose ref went back.
const LAG_PAUSE: Duration = Duration::from_millis(500);

/// A recorded revision, and whom it concerns.
struct Origin {
    recorded: Recorded,
    /// The namespaces whose objects have it; `None` if an inventory has it, which concerns the whole cluster.
    namespaces: Option<BTreeSet<String>>,
}

/// Checks the new revision against those that are recorded in the namespaces, in the inventory and on the objects that
/// it does not know. Returns the namespaces in which nothing may be written, each with the reason. `Err` has an outcome
/// and its reason if nothing may be written now in the whole cluster.
///
/// `lag_deadline` holds until when a ref that went back may be the answer of a lagging replica; it is set here once.
pub(super) async fn check_rewind<S: Source>(
    writer: &Writer<'_, S>,
    surveys: &[NamespaceSurvey],
    lag_deadline: &mut Option<Instant>,
    notes: &mut Notes,
) -> Result<BTreeMap<String, String>, (Outcome, String)> {
    let SurveyContext { options, cancel, .. } = writer.reader;
    let named = writer.desired.revision;
    let mut held = BTreeMap::new();
    if !writer.source.follows() {
        return Ok(held);
    }
    let holds = options.on_rewind == OnRewind::Hold;
    // The revision of a set is no commit: without the commits of its sources its relation cannot be known.
    let with_objects = writer.desired.sources.revisions().is_empty();
    for Origin { recorded, namespaces } in origins(surveys, named, with_objects) {
        let from = recorded.revision.short();
        let moved = describe_moves(&recorded.sources, &writer.desired.sources.revisions());
        let relation = match or_cancelled(cancel, writer.source.relation(recorded, named)).await {
            Ok(relation) => relation,
            // With `Hold` an unknown relation would refuse the revision. As the remote may answer soon, it is asked
            // again.
            Err(error) if holds || cancel.is_cancelled() => {
                let stop = StopReason::RefUnknown(error);
                writer.stop(stop.clone());
                return Err((Outcome::Skipped, stop.to_string()));
            }
            Err(_) => Relation::Unknown,
        };
        // An annotation may be anybody's, so it counts only if the remote has that commit.
        if namespaces.is_some() && !matches!(relation, Relation::Behind | Relation::Diverged) {
            continue;
        }
        if matches!(relation, Relation::Behind | Relation::UnknownToRemote) && !options.dry_run {
            let lag = options.lag;
            let until = *lag_deadline.get_or_insert_with(|| Instant::now() + lag);
            if timeout_at(until, wait_for_other_revision(writer)).await.is_ok() {
                let why = writer.stopped().map(|stop| stop.to_string()).unwrap_or_default();
                return Err((Outcome::Skipped, why));
            }
        }
        let to = named.short();
        let what = match relation {
            Relation::Ahead => continue,
            Relation::Behind => format!("the ref went back from {from} to {to}"),
            Relation::Diverged => {
                format!("the ref was forced from {from} to {to}, which does not contain it")
            }
            Relation::UnknownToRemote => {
                format!("the ref points to {to}, and the remote does not have the recorded revision {from}")
            }
            Relation::Unknown => {
                format!("it is not known whether {to} is a descendant of the recorded revision {from}")
            }
        };
        let what = format!("{what}{moved}");
        if holds {
            let why = format!("{what}, and only fast-forwards are applied");
            let Some(namespaces) = namespaces else { return Err((Outcome::Refused, why)) };
            held.extend(namespaces.into_iter().map(|namespace| (namespace, why.clone())));
        } else if relation != Relation::Unknown {
            notes.add(what);
        }
    }
    Ok(held)
}

/// Returns the recorded revisions other than `named`, each once.
fn origins(surveys: &[NamespaceSurvey], named: Revision, with_objects: bool) -> impl Iterator<Item = Origin> {
    let mut origins: BTreeMap<Revision, Origin> = BTreeMap::new();
    for recorded in surveys.iter().filter_map(|survey| survey.recorded.clone()) {
        origins.insert(recorded.revision, Origin { recorded, namespaces: None });
    }
    for survey in surveys.iter().filter(|_| with_objects) {
        for recorded in unrecorded_revisions(survey) {
            let new = || Origin { recorded: recorded.clone(), namespaces: Some(BTreeSet::new()) };
            let origin = origins.entry(recorded.revision).or_insert_with(new);
            if let Some(namespaces) = &mut origin.namespaces {
                namespaces.insert(survey.namespace.clone());
            }
        }
    }
    origins.remove(&named);
    origins.into_values()
}

/// Returns the revisions of our objects that are about to be replaced or deleted, where the inventory has another one:
/// a delivery wrote them and ended before it recorded them.
fn unrecorded_revisions(survey: &NamespaceSurvey) -> impl Iterator<Item = Recorded> {
    let ours =
        survey.items.iter().filter(|item| item.decision.writes() && item.decision.claim == Claim::Ours);
    ours.filter_map(|item| {
        let revision = item.meta.as_ref()?.annotations.get(names::REVISION)?;
        let entry = survey.marker.entries.get(&item.name);
        if entry.is_some_and(|entry| entry.revision == *revision) {
            return None;
        }
        Some(Recorded { revision: parse_revision(revision)?, sources: BTreeMap::new() })
    })
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
async fn wait_for_other_revision<S: Source>(writer: &Writer<'_, S>) {
    while !writer.reader.cancel.is_cancelled() {
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
    use tokio_util::sync::CancellationToken;

    use super::super::testing::{Remote, cluster, desired, options, revision, survey};
    use super::*;
    use crate::configmap::apply::{Action, Decision};
    use crate::deliver::Options;

    /// Two namespaces; in the first one, an object has an annotation with revision 1, which no inventory has.
    fn surveys() -> [NamespaceSurvey; 2] {
        let replaced = || Decision { action: Action::Replace, ..Decision::unchanged(String::new()) };
        let mut surveys = ["one", "two"].map(|namespace| survey(namespace, replaced()));
        let annotation = (names::REVISION.to_owned(), revision(1).to_string());
        surveys[0].items[0].meta.as_mut().unwrap().annotations.extend([annotation]);
        surveys
    }

    async fn checked(
        relation: Relation,
        surveys: &[NamespaceSurvey],
    ) -> Result<Vec<String>, (Outcome, String)> {
        let options = Options { on_rewind: OnRewind::Hold, lag: Duration::ZERO, ..options() };
        let (cluster, desired, cancel) = (cluster(), desired(), CancellationToken::new());
        let policy = options.policy(&desired);
        let reader = SurveyContext { cluster: &cluster, options: &options, policy: &policy, cancel: &cancel };
        let remote = Remote(relation);
        let writer = Writer::new(reader, &desired, &remote);
        let held = check_rewind(&writer, surveys, &mut None, &mut Notes::new("test")).await?;
        Ok(held.into_keys().collect())
    }

    #[tokio::test(start_paused = true)]
    async fn an_annotation_holds_its_namespace_alone_and_only_if_the_remote_has_its_commit() {
        let cases: [(Relation, &[&str]); 5] = [
            (Relation::Ahead, &[]),
            (Relation::Behind, &["one"]),
            (Relation::Diverged, &["one"]),
            (Relation::UnknownToRemote, &[]),
            (Relation::Unknown, &[]),
        ];
        for (relation, held) in cases {
            assert_eq!(checked(relation, &surveys()).await.unwrap(), held, "{relation:?}");
        }
        // The inventory is our own.
        let mut surveys = surveys();
        surveys[1].recorded = Some(Recorded { revision: revision(1), sources: BTreeMap::new() });
        for relation in [Relation::Behind, Relation::UnknownToRemote, Relation::Unknown] {
            let (outcome, why) = checked(relation, &surveys).await.unwrap_err();
            assert_eq!(outcome, Outcome::Refused, "{why}");
        }
    }
}
