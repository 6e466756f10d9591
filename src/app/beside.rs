//! `treeswap sync` with a root and rules: what the root has published is brought to the clusters, too.
//!
//! The root comes first. It asks the remote, fetches and publishes as if there were no rules; a delivery begins when it
//! has another revision, and each question of a delivery is an attempt of the root's ([`Newest`]), so that there is one
//! mirror and one conversation with the remote. Nothing of the root's waits for a cluster.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::Rules;
use super::follow::{LIMIT, Teller};
use crate::configmap::apply::Desired;
use crate::deliver::{self, Plans, Relations, Rhythm, Source, SourceError, Turn};
use crate::mirror::Objects;
use crate::phase::Trigger;
use crate::phase::machine::Pace;
use crate::revision::{Relation, Revision};
use crate::sync::{History, Newest, Sync, Unanswered};

/// What the root has, as a delivery's source.
struct Published {
    newest: Newest,
    history: History,
    plans: Plans,
    relations: Mutex<Relations>,
}

impl Source for Published {
    async fn ask(&self) -> Result<Revision, SourceError> {
        self.newest.ask().await.map_err(unanswered)
    }

    async fn desired(&self, revision: Revision) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(revision).await
    }

    async fn relation(&self, recorded: Revision, named: Revision) -> Result<Relation, SourceError> {
        // Whoever asks meanwhile waits for this answer, which will often be his.
        let mut relations = self.relations.lock().await;
        let answer = async { self.history.relation(recorded, named).await.map_err(unanswered) };
        relations.of((recorded, named), answer).await
    }
}

fn unanswered(Unanswered { what, hints, transient }: Unanswered) -> SourceError {
    SourceError { what, hints, transient }
}

/// Deliveries beside a root.
pub(super) struct Beside {
    rules: Rules,
    source: Arc<Published>,
    newest: Newest,
    rhythm: Rhythm,
    teller: Teller,
}

impl Beside {
    pub(super) fn new(rules: Rules, objects: Objects, sync: &Sync, pace: Pace, teller: Teller) -> Self {
        let (newest, history) = (sync.newest(), sync.history());
        let plans = Plans::new(objects, Arc::clone(&rules.planner));
        let rhythm = Rhythm {
            period: None,
            min_interval: pace.min_interval,
            resync: rules.resync,
            backoff: pace.backoff,
            jitter: pace.jitter,
            limit: LIMIT,
            once: false,
        };
        let source =
            Arc::new(Published { newest: newest.clone(), history, plans, relations: Mutex::default() });
        Self { rules, source, newest, rhythm, teller }
    }

    /// Delivers until the end is asked for.
    pub(super) async fn run(self, ending: CancellationToken) {
        let Self { rules, source, mut newest, rhythm, mut teller } = self;
        let (send, mut asked) = mpsc::channel(1);
        let (clusters, options) = (&rules.clusters, &rules.options);
        let tell = |turn: Turn<'_>| teller.tell(&turn);
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
