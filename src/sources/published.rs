//! What a root has published, as a source: the loop that keeps the root asks the remote, and nobody else.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::plans::Plans;
use super::relations::Relations;
use super::{History, Named, Newest, Recorded, Source, SourceError};
use crate::configmap::apply::Desired;
use crate::desired::Planner;
use crate::mirror::Objects;
use crate::revision::{Relation, Revision};

/// The revisions of a root: deliveries ask the loop that keeps it instead of the remote.
pub struct Published {
    newest: Newest,
    history: History,
    plans: Plans,
    relations: Mutex<Relations>,
}

impl Published {
    /// Of a root whose loop answers through these, with the objects of its mirror.
    pub fn new(newest: Newest, history: History, objects: Objects, planner: Planner) -> Self {
        Self { newest, history, plans: Plans::new(objects, planner), relations: Mutex::default() }
    }
}

impl Source for Published {
    async fn ask(&self) -> Result<Named, SourceError> {
        self.newest.ask().await
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(named).await
    }

    async fn relation(&self, recorded: Recorded, named: Revision) -> Result<Relation, SourceError> {
        // Another delivery that asks meanwhile waits for this answer, which is often its own, too.
        let mut relations = self.relations.lock().await;
        relations.of(&recorded.clone(), named, self.history.relation(recorded, named)).await
    }
}
