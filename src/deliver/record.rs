//! Writes the records of a cluster: in each namespace the inventory (marker), before and after the writes, then the
//! ledger. Detects that another instance wrote them meanwhile.

use std::collections::BTreeMap;

use futures_util::future;
use jiff::Timestamp;

use super::pauses::{is_conflict, pause, retried_write};
use super::report::Target;
use super::set;
use super::survey::{NamespaceFailure, NamespaceSurvey, PassContext};
use super::write::{Writer, Written};
use crate::cluster::{ConfigMapDraft, Error, Meta, Mode};
use crate::configmap::ConfigMapData;
use crate::configmap::apply::{Ledger, Marker, names};
use crate::human;
use crate::sources::DeliveryInput;

/// An inventory was written since it was read, by another instance or by a write of ours that got no answer. The
/// cluster has to be read again. Holds the error's text.
pub(super) struct InventoryConflict(pub(super) String);

/// What became of the records of one namespace.
struct NamespaceRecords {
    inventory: Result<(), Error>,
    /// `None` if it was not written, because of a conflict of the inventory.
    ledger: Option<Result<(), Error>>,
}

/// Writes the inventory and the ledger of each namespace where they differ from what was read. Marks the targets that
/// are in the ledger then. Returns what else failed, a line each.
pub(super) async fn record_all<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    surveys: &[NamespaceSurvey],
    written: &[BTreeMap<String, Written>],
    targets: &mut [Target],
) -> Result<Vec<String>, InventoryConflict> {
    let namespaces = surveys.iter().zip(written);
    let records = namespaces.map(|(survey, written)| record_namespace(writer, survey, written, targets));
    let records = future::join_all(records).await;
    let mut failures = Vec::new();
    let mut conflict = None;
    for (survey, NamespaceRecords { inventory, ledger }) in surveys.iter().zip(records) {
        // Whatever became of the inventory: a later pass must not count the same attempts again.
        let is_in_ledger = matches!(ledger, Some(Ok(())));
        let here = targets.iter_mut().filter(|target| target.namespace == survey.namespace);
        here.for_each(|target| target.in_ledger |= is_in_ledger);
        match inventory {
            Err(error) if is_conflict(&error.why) => conflict = Some(human::one_line(&error)),
            inventory => {
                let errors = [inventory.err(), ledger.and_then(Result::err)].into_iter().flatten();
                failures.extend(errors.map(|error| human::one_line(&error)));
            }
        }
    }
    conflict.map_or(Ok(failures), |why| Err(InventoryConflict(why)))
}

async fn record_namespace<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
    written: &BTreeMap<String, Written>,
    targets: &[Target],
) -> NamespaceRecords {
    let marker = set::marker(survey, writer.pass.desired, written);
    let is_abandoned = set::is_abandoned(survey, &marker);
    let inventory = if is_abandoned {
        delete_records(writer, survey).await
    } else if marker == survey.marker && !survey.marker_outdated {
        Ok(())
    } else {
        write_marker(writer, survey, &marker).await.map(drop)
    };
    let ledger = match &inventory {
        Err(error) if is_conflict(&error.why) => None,
        _ if is_abandoned => Some(Ok(())),
        _ => Some(write_ledger(writer, survey, targets).await),
    };
    NamespaceRecords { inventory, ledger }
}

/// Adds to each inventory the objects that are about to be created, so that a crash between a write and its record
/// leaves no object that is not listed. If an inventory cannot be written, these objects must not be written either,
/// and the survey says why.
pub(super) async fn announce<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    surveys: &mut [NamespaceSurvey],
) -> Result<(), InventoryConflict> {
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
            Some(Err(error)) if is_conflict(&error.why) => {
                return Err(InventoryConflict(human::one_line(&error)));
            }
            Some(Err(error)) => survey.announce_failure = Some(NamespaceFailure::of(&error)),
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
    let PassContext { options, cancel, .. } = writer.pass;
    let meta = survey.marker_meta.as_ref();
    let write = || write_record(writer, &survey.namespace, "set", meta, || marker.data());
    retried_write(options, cancel, write).await
}

/// Deletes the ledger and the inventory of a namespace in which we own nothing any more. The inventory goes last, as
/// the namespace is found by it. After an unknown outcome each is deleted once more, and may be gone by then.
async fn delete_records<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
) -> Result<(), Error> {
    let PassContext { cluster, options, cancel, .. } = writer.pass;
    for meta in [&survey.ledger_meta, &survey.marker_meta].into_iter().flatten() {
        retried_write(options, cancel, || cluster.delete(meta, Mode::Write)).await?;
    }
    Ok(())
}

/// Writes the ledger, unless an earlier pass did. After a conflict it reads the other instance's ledger, merges, and
/// tries again.
async fn write_ledger<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
    targets: &[Target],
) -> Result<(), Error> {
    let PassContext { desired, options, policy, cancel, .. } = writer.pass;
    let mut before = survey.ledger.clone();
    let mut meta = survey.ledger_meta.clone();
    let now = Timestamp::now();
    let mut tries = 1;
    loop {
        let is_here = |target: &&Target| target.namespace == survey.namespace && !target.in_ledger;
        let here = targets.iter().filter(is_here);
        let ledger = set::ledger(&before, &desired.revision.to_string(), here, now);
        if ledger == before {
            return Ok(());
        }
        match write_record(writer, &survey.namespace, "ledger", meta.as_ref(), || ledger.data()).await {
            Err(error) if (error.is_transient() || is_conflict(&error.why)) && tries < options.tries => {
                pause(options, cancel, tries, error.pause()).await;
                tries += 1;
            }
            done => return done.map(drop),
        }
        match writer.pass.get(&survey.namespace, &policy.owner.ledger()).await? {
            Some(object) => {
                before = Ledger::read(&object.content.data);
                meta = Some(object.meta);
            }
            None => meta = None,
        }
    }
}

/// Writes the ConfigMap of the inventory (`role` is `set`) or of the ledger (`role` is `ledger`). `meta` is its
/// metadata as read; `None` creates it.
async fn write_record<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    namespace: &str,
    role: &str,
    meta: Option<&Meta>,
    data: impl FnOnce() -> BTreeMap<String, String>,
) -> Result<Meta, Error> {
    let _permit = writer.permit().await;
    let PassContext { cluster, policy, .. } = writer.pass;
    let owner = &policy.owner;
    let mut labels = meta.map(|meta| meta.labels.clone()).unwrap_or_default();
    let mut annotations = meta.map(|meta| meta.annotations.clone()).unwrap_or_default();
    labels.extend(owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())));
    labels.insert(names::ROLE.to_owned(), role.to_owned());
    annotations.insert(names::OWNER_NAME.to_owned(), owner.name().to_owned());
    annotations.insert(names::CLUSTER.to_owned(), cluster.name().to_owned());
    annotate_sources(writer.pass, &mut annotations);
    writer.annotate_repository(&mut annotations);
    let draft = ConfigMapDraft {
        namespace: namespace.to_owned(),
        name: if role == "set" { owner.marker() } else { owner.ledger() },
        labels,
        annotations,
        content: ConfigMapData { data: data(), ..ConfigMapData::default() },
    };
    match meta {
        Some(meta) => cluster.replace(meta, draft, Mode::Write).await,
        None => cluster.create(draft, Mode::Write).await,
    }
}

/// Sets the annotation with the commit of each source. A source that did not answer keeps its recorded commit, as
/// nothing of it was written.
fn annotate_sources(pass: PassContext<'_>, annotations: &mut BTreeMap<String, String>) {
    let recorded = annotations.get(names::SOURCES).and_then(|text| serde_json::from_str(text).ok());
    let sources = pass.desired.sources.to_record(&recorded.unwrap_or_default());
    match serde_json::to_string(&sources) {
        Ok(text) if !sources.is_empty() => annotations.insert(names::SOURCES.to_owned(), text),
        _ => annotations.remove(names::SOURCES),
    };
}
