//! Writes the records of a cluster: in each namespace the inventory (marker), before and after the writes, then the
//! ledger. Detects that a peer wrote them meanwhile.

use std::collections::BTreeMap;

use futures_util::future;
use jiff::Timestamp;

use super::pauses::{pause, retried};
use super::report::Target;
use super::set;
use super::survey::{Space, SurveyContext};
use super::write::{Writer, Written};
use crate::cluster::{Error, Failure, Mode};
use crate::configmap::apply::Ledger;
use crate::human;
use crate::sources::Source;

/// The outcome of recording.
pub(super) enum Closed {
    /// It is done, but for these failures.
    Done(Vec<String>),
    /// A peer wrote an inventory meanwhile, or may have: the cluster has to be read again. Holds the error's text.
    Overtaken(String),
}

/// Writes the inventory and the ledger of each namespace where they differ from what was read.
pub(super) async fn close<S: Source>(
    writer: &Writer<'_, S>,
    spaces: &[Space],
    written: &[BTreeMap<String, Written>],
    targets: &[Target],
) -> Closed {
    let each = spaces.iter().zip(written);
    let each = each.map(|(space, written)| close_one(writer, space, written, targets));
    let mut failures = Vec::new();
    for closed in future::join_all(each).await {
        match closed {
            Closed::Done(more) => failures.extend(more),
            overtaken => return overtaken,
        }
    }
    Closed::Done(failures)
}

/// Writes the inventory and the ledger of one namespace.
async fn close_one<S: Source>(
    writer: &Writer<'_, S>,
    space: &Space,
    written: &BTreeMap<String, Written>,
    targets: &[Target],
) -> Closed {
    let mut failures = Vec::new();
    let marker = set::marker(space, writer.desired, written);
    let over = set::is_empty_of_ours(space, &marker);
    let recorded = match over {
        true => retire(writer, space).await,
        false if marker == space.marker => Ok(()),
        false => {
            let meta = space.marker_meta.as_ref();
            writer.record(&space.namespace, "set", meta, marker.data()).await.map(drop)
        }
    };
    match recorded {
        Ok(()) => {}
        Err(error) if error.is_unknown() || is_overtaken(&error.why) => {
            return Closed::Overtaken(human::one_line(&error));
        }
        Err(error) => failures.push(human::one_line(&error)),
    }
    if !over && let Err(error) = keep_ledger(writer, space, targets).await {
        failures.push(human::one_line(&error));
    }
    Closed::Done(failures)
}

/// Adds to each inventory the objects that are about to be created, so that a crash between a write and its record
/// leaves no object that is not listed. Other failures to write an inventory are only logged: `close` tries again after
/// the writes, and reports. Returns `Err` if a peer wrote an inventory meanwhile, or may have.
pub(super) async fn announce<S: Source>(writer: &Writer<'_, S>, spaces: &mut [Space]) -> Result<(), String> {
    let announced = spaces.iter().map(async |space| {
        let marker = set::announced(space)?;
        let namespace = &space.namespace;
        let meta = space.marker_meta.as_ref();
        let written = writer.record(namespace, "set", meta, marker.data()).await;
        Some(written.map(|meta| (marker, meta)))
    });
    let announced = future::join_all(announced).await;
    for (space, announced) in spaces.iter_mut().zip(announced) {
        match announced {
            None => {}
            Some(Ok((marker, meta))) => (space.marker, space.marker_meta) = (marker, Some(meta)),
            Some(Err(error)) if error.is_unknown() || is_overtaken(&error.why) => {
                return Err(human::one_line(&error));
            }
            Some(Err(error)) => tracing::debug!(error = human::one_line(&error), "not recorded ahead"),
        }
    }
    Ok(())
}

/// Deletes the ledger and the inventory of a namespace in which we own nothing any more. The inventory goes last, as
/// the namespace is found by it.
async fn retire<S: Source>(writer: &Writer<'_, S>, space: &Space) -> Result<(), Error> {
    for meta in [&space.ledger_meta, &space.marker_meta].into_iter().flatten() {
        writer.reader.cluster.delete(meta, Mode::Write).await?;
    }
    Ok(())
}

/// Writes the ledger. After a conflict it reads the peer's ledger, merges, and tries again.
async fn keep_ledger<S: Source>(
    writer: &Writer<'_, S>,
    space: &Space,
    targets: &[Target],
) -> Result<(), Error> {
    let SurveyContext { cluster, options, policy, cancel } = writer.reader;
    let mut before = space.ledger.clone();
    let mut meta = space.ledger_meta.clone();
    let now = Timestamp::now();
    let mut tries = 1;
    loop {
        let here = targets.iter().filter(|target| target.namespace == space.namespace);
        let ledger = set::ledger(&before, &writer.desired.revision.to_string(), here, now);
        if ledger == before {
            return Ok(());
        }
        let data = ledger.data();
        match writer.record(&space.namespace, "ledger", meta.as_ref(), data).await {
            Err(error) if (error.is_transient() || is_overtaken(&error.why)) && tries < options.tries => {
                pause(options, cancel, tries, error.pause()).await;
                tries += 1;
            }
            done => return done.map(drop),
        }
        let name = policy.owner.ledger();
        let read = || cluster.get(&space.namespace, &name);
        match retried(options, cancel, read).await? {
            Some(object) => {
                before = Ledger::read(&object.content.data);
                meta = Some(object.meta);
            }
            None => meta = None,
        }
    }
}

fn is_overtaken(why: &Failure) -> bool {
    matches!(why, Failure::Conflict | Failure::Exists | Failure::Absent)
}
