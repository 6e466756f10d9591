//! Writes the records of a cluster: in each namespace the inventory (marker), before and after the writes, then the
//! ledger. Detects that a peer wrote them meanwhile.

use std::collections::BTreeMap;

use futures_util::future;
use jiff::Timestamp;

use super::pauses::{is_conflict, pause, retried, retried_write};
use super::report::Target;
use super::set;
use super::survey::{NamespaceFailure, NamespaceSurvey, SurveyContext};
use super::write::{Writer, Written};
use crate::cluster::{Error, Meta, Mode};
use crate::configmap::apply::{Ledger, Marker};
use crate::human;
use crate::sources::DeliveryInput;

/// The outcome of recording.
pub(super) enum Recording {
    /// It is done, but for these failures.
    Done(Vec<String>),
    /// A peer wrote an inventory meanwhile, or a try of ours that got no answer did: the cluster has to be read again.
    /// Holds the error's text.
    Conflict(String),
}

/// Writes the inventory and the ledger of each namespace where they differ from what was read. Marks the targets that
/// are recorded then.
pub(super) async fn record_all<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    surveys: &[NamespaceSurvey],
    written: &[BTreeMap<String, Written>],
    targets: &mut [Target],
) -> Recording {
    let namespaces = surveys.iter().zip(written);
    let recordings = namespaces.map(|(survey, written)| record_namespace(writer, survey, written, targets));
    let recordings = future::join_all(recordings).await;
    let mut failures = Vec::new();
    let mut conflict = None;
    for (survey, (recording, is_in_ledger)) in surveys.iter().zip(recordings) {
        // Whatever became of the inventory: a later pass must not count the same attempts again.
        let here = targets.iter_mut().filter(|target| target.namespace == survey.namespace);
        here.for_each(|target| target.recorded |= is_in_ledger);
        match recording {
            Recording::Done(more) => failures.extend(more),
            Recording::Conflict(why) => conflict = Some(why),
        }
    }
    conflict.map_or(Recording::Done(failures), Recording::Conflict)
}

/// Writes the inventory and the ledger of one namespace. The flag says whether the ledger has the targets now.
async fn record_namespace<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
    written: &BTreeMap<String, Written>,
    targets: &[Target],
) -> (Recording, bool) {
    let mut failures = Vec::new();
    let marker = set::marker(survey, writer.desired, written);
    let is_abandoned = set::is_abandoned(survey, &marker);
    let recorded = if is_abandoned {
        delete_records(writer, survey).await
    } else if marker == survey.marker && !survey.outdated {
        Ok(())
    } else {
        write_marker(writer, survey, &marker).await.map(drop)
    };
    match recorded {
        Ok(()) => {}
        Err(error) if is_conflict(&error.why) => {
            return (Recording::Conflict(human::one_line(&error)), false);
        }
        Err(error) => failures.push(human::one_line(&error)),
    }
    let ledger = if is_abandoned { Ok(()) } else { write_ledger(writer, survey, targets).await };
    let is_in_ledger = ledger.is_ok();
    failures.extend(ledger.err().map(|error| human::one_line(&error)));
    (Recording::Done(failures), is_in_ledger)
}

/// Adds to each inventory the objects that are about to be created, so that a crash between a write and its record
/// leaves no object that is not listed. If an inventory cannot be written, these objects must not be written either,
/// and the survey says why. Returns `Err` after a conflict, see [`Recording::Conflict`].
pub(super) async fn announce<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    surveys: &mut [NamespaceSurvey],
) -> Result<(), String> {
    let announced = surveys.iter().map(async |survey| {
        let marker = set::marker_before_writes(survey)?;
        let written = write_marker(writer, survey, &marker).await;
        Some(written.map(|meta| (marker, meta)))
    });
    let announced = future::join_all(announced).await;
    for (survey, announced) in surveys.iter_mut().zip(announced) {
        match announced {
            None => {}
            Some(Ok((marker, meta))) => {
                survey.marker = marker;
                survey.marker_meta = Some(meta);
            }
            Some(Err(error)) if is_conflict(&error.why) => return Err(human::one_line(&error)),
            Some(Err(error)) => survey.unlisted = Some(NamespaceFailure::of(&error)),
        }
    }
    Ok(())
}

/// Writes the inventory of a namespace. It is sent again also after an unknown outcome: if that took effect, the second
/// one conflicts. So only what stays unknown is an error, and of this namespace alone.
async fn write_marker<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
    marker: &Marker,
) -> Result<Meta, Error> {
    let SurveyContext { options, cancel, .. } = writer.reader;
    let meta = survey.marker_meta.as_ref();
    retried_write(options, cancel, || writer.record(&survey.namespace, "set", meta, || marker.data())).await
}

/// Deletes the ledger and the inventory of a namespace in which we own nothing any more. The inventory goes last, as
/// the namespace is found by it. After an unknown outcome each is deleted once more, and may be gone by then.
async fn delete_records<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
) -> Result<(), Error> {
    let SurveyContext { cluster, options, cancel, .. } = writer.reader;
    for meta in [&survey.ledger_meta, &survey.marker_meta].into_iter().flatten() {
        retried_write(options, cancel, || cluster.delete(meta, Mode::Write)).await?;
    }
    Ok(())
}

/// Writes the ledger, unless an earlier pass did. After a conflict it reads the peer's ledger, merges, and tries again.
async fn write_ledger<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
    targets: &[Target],
) -> Result<(), Error> {
    let SurveyContext { cluster, options, policy, cancel, .. } = writer.reader;
    let mut before = survey.ledger.clone();
    let mut meta = survey.ledger_meta.clone();
    let now = Timestamp::now();
    let mut tries = 1;
    loop {
        let is_here = |target: &&Target| target.namespace == survey.namespace && !target.recorded;
        let here = targets.iter().filter(is_here);
        let ledger = set::ledger(&before, &writer.desired.revision.to_string(), here, now);
        if ledger == before {
            return Ok(());
        }
        match writer.record(&survey.namespace, "ledger", meta.as_ref(), || ledger.data()).await {
            Err(error) if (error.is_transient() || is_conflict(&error.why)) && tries < options.tries => {
                pause(options, cancel, tries, error.pause()).await;
                tries += 1;
            }
            done => return done.map(drop),
        }
        let name = policy.owner.ledger();
        let read = || cluster.get(&survey.namespace, &name);
        match retried(options, cancel, read).await? {
            Some(object) => {
                before = Ledger::read(&object.content.data);
                meta = Some(object.meta);
            }
            None => meta = None,
        }
    }
}
