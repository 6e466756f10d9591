//! What is recorded of a cluster after its writes: the markers, then the ledgers, and whoever wrote them meanwhile.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::pauses::{pause, retried};
use super::report::Target;
use super::set;
use super::source::Source;
use super::survey::Space;
use super::worker::Worker;
use super::write::{Writer, Written};
use crate::cluster::{Error, Failure, Mode};
use crate::configmap::apply::Ledger;
use crate::human;

/// How recording ended.
pub(super) enum Closed {
    /// With what could not be recorded.
    Done(Vec<String>),
    /// Somebody else recorded something meanwhile.
    Overtaken(String),
}

impl<S: Source> Worker<S> {
    /// Records what is known now, where it differs from what is recorded.
    pub(super) async fn close(
        &self,
        writer: &Writer<'_, S>,
        spaces: &[Space],
        written: &[BTreeMap<String, Written>],
        targets: &[Target],
    ) -> Closed {
        let mut failures = Vec::new();
        for (space, written) in spaces.iter().zip(written) {
            let namespace = &space.namespace;
            let marker = set::marker(space, writer.desired, written);
            if set::is_over(space, &marker) {
                match self.retire(space).await {
                    Ok(()) => continue,
                    Err(error) if error.is_unknown() || is_overtaken(&error.why) => {
                        return Closed::Overtaken(human::one_line(&error));
                    }
                    Err(error) => failures.push(human::one_line(&error)),
                }
                continue;
            }
            if marker != space.marker {
                let meta = space.marker_meta.as_ref();
                match writer.record(&self.cluster, namespace, "set", meta, marker.data()).await {
                    Ok(_) => {}
                    Err(error) if error.is_unknown() || is_overtaken(&error.why) => {
                        return Closed::Overtaken(human::one_line(&error));
                    }
                    Err(error) => failures.push(human::one_line(&error)),
                }
            }
            if let Err(error) = self.keep_ledger(writer, space, targets).await {
                failures.push(human::one_line(&error));
            }
        }
        Closed::Done(failures)
    }

    /// Names in each inventory what is about to be written and is not named there. An end between a write and its record
    /// leaves nothing that nobody knows of. Where that cannot be recorded now, it is tried again, and told, after the
    /// writes. `Err`: somebody else recorded something meanwhile.
    pub(super) async fn announce(&self, writer: &Writer<'_, S>, spaces: &mut [Space]) -> Result<(), String> {
        for space in spaces {
            let Some(marker) = set::announced(space) else { continue };
            let (namespace, meta) = (&space.namespace, space.marker_meta.as_ref());
            match writer.record(&self.cluster, namespace, "set", meta, marker.data()).await {
                Ok(meta) => (space.marker, space.marker_meta) = (marker, Some(meta)),
                Err(error) if error.is_unknown() || is_overtaken(&error.why) => {
                    return Err(human::one_line(&error));
                }
                Err(error) => tracing::debug!(error = human::one_line(&error), "not recorded ahead"),
            }
        }
        Ok(())
    }

    /// Removes our records from a namespace that holds nothing of ours any more; last the marker, by which it is found.
    async fn retire(&self, space: &Space) -> Result<(), Error> {
        for meta in [&space.ledger_meta, &space.marker_meta].into_iter().flatten() {
            self.cluster.delete(meta, Mode::Write).await?;
        }
        Ok(())
    }

    /// Writes the ledger, over whatever a peer has written there meanwhile.
    async fn keep_ledger(
        &self,
        writer: &Writer<'_, S>,
        space: &Space,
        targets: &[Target],
    ) -> Result<(), Error> {
        let (mut before, mut meta) = (space.ledger.clone(), space.ledger_meta.clone());
        let now = Timestamp::now();
        let mut tries = 1;
        loop {
            let here = targets.iter().filter(|target| target.namespace == space.namespace);
            let ledger = set::ledger(&before, &writer.desired.revision.to_string(), here, now);
            if ledger == before {
                return Ok(());
            }
            let data = ledger.data();
            match writer.record(&self.cluster, &space.namespace, "ledger", meta.as_ref(), data).await {
                Err(error)
                    if (error.is_transient() || is_overtaken(&error.why)) && tries < self.options.tries =>
                {
                    pause(&self.options, &self.cancel, tries, error.pause()).await;
                    tries += 1;
                }
                done => return done.map(drop),
            }
            let name = writer.reader.policy.owner.ledger();
            let read = || self.cluster.get(&space.namespace, &name);
            match retried(&self.options, &self.cancel, read).await? {
                Some(object) => {
                    before = Ledger::read(&object.content.data);
                    meta = Some(object.meta);
                }
                None => meta = None,
            }
        }
    }
}

fn is_overtaken(why: &Failure) -> bool {
    matches!(why, Failure::Conflict | Failure::Exists | Failure::Absent)
}
