//! What revisions that a mirror holds ask for.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Named, SourceError};
use crate::configmap::apply::Desired;
use crate::desired::{Commit, KnownValues, LastPlan, Planner};
use crate::mirror::Objects;

/// Plans revisions; what the last one asks for is kept, with what it was made of.
pub(super) struct Plans {
    objects: Objects,
    planner: Planner,
    planned: Mutex<(Option<Arc<Desired>>, Option<LastPlan>)>,
    /// Of what is kept, and of what the last process had.
    known: Arc<KnownValues>,
}

impl Plans {
    /// Of a mirror's objects.
    pub(super) fn new(objects: Objects, planner: Planner) -> Self {
        let known = Arc::new(planner.known_values(&objects));
        Self { objects, planner, planned: Mutex::default(), known }
    }

    /// What a revision asks for.
    ///
    /// # Errors
    /// When the mirror does not hold it, or it cannot be planned.
    pub(super) async fn of(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        let Named { revision, sources } = named;
        let mut planned = self.planned.lock().await;
        let is_it =
            |desired: &&Arc<Desired>| desired.revision == revision && desired.sources.answers_like(&sources);
        if let Some(desired) = planned.0.as_ref().filter(is_it) {
            return Ok(Arc::clone(desired));
        }
        let objects = self.objects.clone();
        let planner = self.planner.clone();
        let known = Arc::clone(&self.known);
        let last = planned.1.take();
        let plan = move || {
            let tree = Commit::new(&objects, revision, &known);
            planner.desired(&tree, revision, &sources, last)
        };
        // What an author of commits wrote must not end deliveries for good, whatever a library makes of it.
        let made = tokio::task::spawn_blocking(plan).await.map_err(|_| SourceError::of_defect(revision));
        let (desired, last) = made?.map_err(|error| SourceError::of_plan(revision, &error))?;
        let desired = Arc::new(desired);
        *planned = (Some(Arc::clone(&desired)), Some(last));
        Ok(desired)
    }
}
