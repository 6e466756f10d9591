//! A ref that goes back, or elsewhere, from what is recorded in a cluster: whether it means it, and what follows.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::report::Outcome;
use super::source::Source;
use super::survey::Space;
use super::worker::Worker;
use super::write::{Stop, Writer};
use super::{OnRewind, parsed, unless};
use crate::revision::{Relation, Revision};

/// How often a ref that goes back is asked whether it means it.
const LAG_PAUSE: Duration = Duration::from_millis(500);

impl<S: Source> Worker<S> {
    /// Whether the ref went back, or elsewhere, from what is recorded, and what follows from that if not writing.
    pub(super) async fn going_back(
        &mut self,
        writer: &Writer<'_, S>,
        spaces: &[Space],
    ) -> Option<(Outcome, String)> {
        let named = writer.desired.revision;
        let recorded: BTreeSet<Revision> = spaces
            .iter()
            .filter_map(|space| parsed(&space.marker.revision))
            .filter(|one| *one != named)
            .collect();
        if !self.source.follows() {
            return None;
        }
        let holds = self.options.on_rewind == OnRewind::Hold;
        for recorded in recorded {
            let relation = match unless(&self.cancel, self.source.relation(recorded, named)).await {
                Ok(relation) => relation,
                // It is asked again, rather than held for what may be known in a moment.
                Err(error) if holds || self.cancel.is_cancelled() => {
                    let stop = Stop::Unasked(error);
                    writer.stop(stop.clone());
                    return Some((Outcome::Skipped, stop.to_string()));
                }
                Err(_) => Relation::Unknown,
            };
            if matches!(relation, Relation::Behind | Relation::Gone) && !self.options.dry_run {
                let lag = self.options.lag;
                let until = *self.doubted.get_or_insert_with(|| Instant::now() + lag);
                if timeout_at(until, self.lagging(writer)).await.is_ok() {
                    let why = writer.stopped().map(|stop| stop.to_string()).unwrap_or_default();
                    return Some((Outcome::Skipped, why));
                }
            }
            let (from, to) = (recorded.short(), named.short());
            let what = match relation {
                Relation::Ahead => continue,
                Relation::Behind => format!("the ref went back from {from} to {to}"),
                Relation::Aside => {
                    format!("the ref was forced from {from} to {to}, which does not contain it")
                }
                Relation::Gone => {
                    format!("the ref names {to}, and the remote does not have {from}, which is recorded")
                }
                Relation::Unknown => {
                    format!("it is not known whether {to} comes after {from}, which is recorded")
                }
            };
            if holds {
                return Some((
                    Outcome::Refused,
                    format!("{what}, and nothing but an advance is to be applied"),
                ));
            }
            if relation != Relation::Unknown {
                self.note(what);
            }
        }
        None
    }

    /// Returns once the ref names another revision, or all is to end.
    async fn lagging(&self, writer: &Writer<'_, S>) {
        while !self.cancel.is_cancelled() {
            tokio::time::sleep(LAG_PAUSE).await;
            // A remote that does not answer says nothing about where its ref is.
            if matches!(writer.ask().await, Err(Stop::Moved(_))) {
                return;
            }
            writer.forget();
        }
    }
}
