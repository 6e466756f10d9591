//! `treeswap sync` with a root and rules: what the root has published is brought to the clusters, too.
//!
//! The root comes first. It asks the remote, fetches and publishes as if there were no rules; a delivery begins when it
//! has another revision, and each question of a delivery is an attempt of the root's ([`Newest`]), so that there is one
//! mirror and one conversation with the remote. Nothing of the root's waits for a cluster.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Rules;
use super::rules_only::{DENIED, DeliveryReporter, LIMIT};
use crate::deliver::{self, LoopEvent, Rhythm};
use crate::mirror::Objects;
use crate::phase::Trigger;
use crate::phase::machine::Timing;
use crate::sources::{Newest, Published};
use crate::sync::Sync;

/// Deliveries beside a root.
pub(super) struct Beside {
    rules: Rules,
    source: Arc<Published>,
    newest: Newest,
    rhythm: Rhythm,
    teller: DeliveryReporter,
}

impl Beside {
    pub(super) fn new(
        rules: Rules,
        objects: Objects,
        sync: &Sync,
        pace: Timing,
        teller: DeliveryReporter,
    ) -> Self {
        let newest = sync.newest();
        let rhythm = Rhythm {
            period: None,
            min_interval: pace.min_interval,
            resync: rules.resync,
            denied: DENIED,
            backoff: pace.backoff,
            jitter: pace.jitter,
            limit: LIMIT,
            once: false,
        };
        let source = Published::new(newest.clone(), sync.history(), objects, rules.planner.clone());
        let source = Arc::new(source);
        Self { rules, source, newest, rhythm, teller }
    }

    /// Delivers until the end is asked for.
    pub(super) async fn run(self, ending: CancellationToken) {
        let Self { rules, source, mut newest, rhythm, mut teller } = self;
        let (send, mut asked) = mpsc::channel(1);
        let clusters = &rules.clusters;
        let options = &rules.options;
        let tell = |turn: LoopEvent<'_>| teller.report(&turn);
        let news = async {
            while newest.changed().await.is_some() {
                let _ = send.try_send(Trigger::Delivery); // one that was not looked at yet stands for all that follow
            }
        };
        let deliveries = deliver::follow(source, clusters, options, &rhythm, &mut asked, &ending, tell);
        tokio::select! {
            _ = deliveries => {}
            // Without a sync there is nothing to wait for but the end.
            () = async { news.await; std::future::pending().await } => {}
        }
    }
}
