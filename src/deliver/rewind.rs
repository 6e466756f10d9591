//! Handles a ref whose revision does not descend from the one recorded in a cluster: waits in case a replica of the
//! remote lags, then applies or refuses by [`OnRewind`].

use std::collections::BTreeMap;
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

/// Checks the new revision against those that are recorded in the namespaces, in the inventory and on the objects that
/// it does not know. Returns the outcome and its reason if nothing may be written now; `None` if writing may go on.
///
/// `lag_deadline` holds until when a ref that went back may be the answer of a lagging replica; it is set here once.
pub(super) async fn check_rewind<S: Source>(
    writer: &Writer<'_, S>,
    surveys: &[NamespaceSurvey],
    lag_deadline: &mut Option<Instant>,
    notes: &mut Notes,
) -> Option<(Outcome, String)> {
    let SurveyContext { options, cancel, .. } = writer.reader;
    let named = writer.desired.revision;
    // The revision of a set is no commit: without the commits of its sources its relation cannot be known.
    let with_objects = writer.desired.sources.revisions().is_empty();
    let on_objects = surveys.iter().filter(|_| with_objects).flat_map(unrecorded_revisions);
    let recorded = surveys.iter().filter_map(|survey| survey.recorded.clone()).chain(on_objects);
    let recorded: BTreeMap<Revision, Recorded> =
        recorded.filter(|one| one.revision != named).map(|one| (one.revision, one)).collect();
    if !writer.source.follows() {
        return None;
    }
    let holds = options.on_rewind == OnRewind::Hold;
    for recorded in recorded.into_values() {
        let from = recorded.revision.short();
        let moved = describe_moves(&recorded.sources, &writer.desired.sources.revisions());
        let relation = match or_cancelled(cancel, writer.source.relation(recorded, named)).await {
            Ok(relation) => relation,
            // With `Hold` an unknown relation would refuse the revision. As the remote may answer soon, it is asked
            // again.
            Err(error) if holds || cancel.is_cancelled() => {
                let stop = StopReason::RefUnknown(error);
                writer.stop(stop.clone());
                return Some((Outcome::Skipped, stop.to_string()));
            }
            Err(_) => Relation::Unknown,
        };
        if matches!(relation, Relation::Behind | Relation::UnknownToRemote) && !options.dry_run {
            let lag = options.lag;
            let until = *lag_deadline.get_or_insert_with(|| Instant::now() + lag);
            if timeout_at(until, wait_for_other_revision(writer)).await.is_ok() {
                let why = writer.stopped().map(|stop| stop.to_string()).unwrap_or_default();
                return Some((Outcome::Skipped, why));
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
            return Some((Outcome::Refused, format!("{what}, and only fast-forwards are applied")));
        }
        if relation != Relation::Unknown {
            notes.add(what);
        }
    }
    None
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
