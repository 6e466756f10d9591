//! Computes the desired state of revisions in a mirror, and keeps the last one.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Named, SourceError};
use crate::configmap::apply::Desired;
use crate::desired::{Commit, KnownValues, LastPlan, Planner};
use crate::mirror::Objects;

/// Computes desired states. The last one is kept, together with the plan that the next one is computed from.
pub(super) struct Plans {
    objects: Objects,
    planner: Planner,
    planned: Mutex<(Option<Arc<Desired>>, Option<LastPlan>)>,
    /// Values by blob, of the kept plan and of the previous process.
    known: Arc<KnownValues>,
}

impl Plans {
    /// Reads revisions from `objects`.
    pub(super) fn new(objects: Objects, planner: Planner) -> Self {
        let known = Arc::new(planner.known_values(&objects));
        Self { objects, planner, planned: Mutex::default(), known }
    }

    /// Returns the desired state of a revision.
    ///
    /// # Errors
    /// When the mirror does not hold the revision, or its rules or files are invalid.
    pub(super) async fn of(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        let Named { revision, sources } = named;
        let mut planned = self.planned.lock().await;
        let is_same = |desired: &&Arc<Desired>| {
            desired.revision == revision && desired.sources.has_same_answers(&sources)
        };
        if let Some(desired) = planned.0.as_ref().filter(is_same) {
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
        // If a commit's content makes a library panic, this revision fails, but deliveries go on.
        let made = tokio::task::spawn_blocking(plan).await.map_err(|_| SourceError::of_defect(revision));
        let (desired, last) = made?.map_err(|error| SourceError::of_plan(revision, &error))?;
        let desired = Arc::new(desired);
        *planned = (Some(Arc::clone(&desired)), Some(last));
        Ok(desired)
    }
}
