//! The step that a delivery is in, for the status: a step may take long, and a delivery reports nothing before its end.

use std::sync::{Arc, Mutex, PoisonError};

/// A step of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Step {
    /// Asking the remote which revision its ref names, and fetching that.
    #[default]
    Resolve,
    /// Computing the plan of the revision.
    Plan,
    /// Reading and writing the clusters.
    Apply,
}

impl Step {
    /// The step in one word, as in the status.
    pub fn label(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Plan => "plan",
            Self::Apply => "apply",
        }
    }

    /// The step as a phrase.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Resolve => "asking which revision the ref names",
            Self::Plan => "computing the plan",
            Self::Apply => "applying the ConfigMaps",
        }
    }
}

/// The step that the running delivery is in. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentStep(Arc<Mutex<Step>>);

impl CurrentStep {
    /// Notes that a step begins.
    pub(super) fn begin(&self, step: Step) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    /// The step that began last.
    pub(super) fn get(&self) -> Step {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
