//! `treeswap sync` with a root and rules: every revision that is published in the root is also delivered to the
//! clusters.
//!
//! The root comes first. Its sync loop polls, fetches and publishes as if there were no rules. A delivery begins when
//! the root has a new revision. When the delivery needs the remote's newest revision, it triggers an attempt of the
//! sync loop ([`RevisionQuery`]), so that there is one mirror and one connection to the remote. The root never waits
//! for a cluster.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Rules;
use super::delivery_reporter::DeliveryReporter;
use super::rules_only::loop_timing;
use crate::deliver::{self, LoopEvent, LoopTiming};
use crate::mirror::Objects;
use crate::phase::Trigger;
use crate::phase::machine::Timing;
use crate::sources::{Published, RevisionQuery};
use crate::sync::Sync;

/// The delivery loop that runs beside the sync loop of a root.
pub(super) struct RootDelivery {
    rules: Rules,
    input: Arc<Published>,
    revision_query: RevisionQuery,
    loop_timing: LoopTiming,
    reporter: DeliveryReporter,
}

impl RootDelivery {
    /// A delivery loop for what `sync` publishes; `objects` reads its mirror, and `pace` is the sync loop's timing.
    pub(super) fn new(
        rules: Rules,
        objects: Objects,
        sync: &Sync,
        pace: Timing,
        reporter: DeliveryReporter,
    ) -> Self {
        let revision_query = sync.revision_query();
        let loop_timing = loop_timing(&rules, pace);
        let input = Published::new(revision_query.clone(), sync.comparer(), objects, rules.planner.clone());
        let input = Arc::new(input);
        Self { rules, input, revision_query, loop_timing, reporter }
    }

    /// Delivers until `ending` is cancelled.
    pub(super) async fn run(self, ending: CancellationToken) {
        let Self { rules, input, mut revision_query, loop_timing, mut reporter } = self;
        let (send, mut triggers) = mpsc::channel(1);
        let clusters = &rules.clusters;
        let options = &rules.options;
        let on_event = |event: LoopEvent<'_>| reporter.report(&event);
        let news = async {
            while revision_query.changed().await.is_some() {
                let _ = send.try_send(Trigger::Delivery); // full: the pending trigger covers this revision, too
            }
        };
        let deliveries =
            deliver::follow(input, clusters, options, &loop_timing, &mut triggers, &ending, on_event);
        tokio::select! {
            _ = deliveries => {}
            // After the sync loop has ended there are no more revisions, and only `ending` ends the deliveries.
            () = async { news.await; std::future::pending().await } => {}
        }
    }
}
