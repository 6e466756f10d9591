//! The revisions of a root as the input of deliveries. Only the root's sync talks to the remote.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::plans::Plans;
use super::relations::Relations;
use super::{DeliveryInput, Named, Recorded, RevisionComparer, RevisionQuery, SourceError};
use crate::configmap::apply::Desired;
use crate::desired::Planner;
use crate::mirror::Objects;
use crate::revision::{Relation, Revision};

/// The revisions of a root: deliveries ask the root's sync instead of the remote.
pub struct Published {
    revision_query: RevisionQuery,
    comparer: RevisionComparer,
    plans: Plans,
    relations: Mutex<Relations>,
}

impl Published {
    /// Uses the root's sync through its two handles, and the objects of its mirror.
    pub fn new(
        revision_query: RevisionQuery,
        comparer: RevisionComparer,
        objects: Objects,
        planner: Planner,
    ) -> Self {
        let plans = Plans::new(objects, planner);
        Self { revision_query, comparer, plans, relations: Mutex::default() }
    }
}

impl DeliveryInput for Published {
    async fn resolve(&self) -> Result<Named, SourceError> {
        self.revision_query.resolve().await
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(named).await
    }

    async fn relation(&self, recorded: Recorded, revision: Revision) -> Result<Relation, SourceError> {
        // Deliveries to other clusters that ask meanwhile wait for this answer, which is often theirs as well.
        let mut relations = self.relations.lock().await;
        relations.of(&recorded.clone(), revision, self.comparer.relation(recorded, revision)).await
    }
}
