//! Why a source failed, and in which stage.

use super::SourceError;

pub(super) use crate::phase::Stage;

/// Why a source is not at the commit that its ref names, and the stage in which it failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StagedError {
    /// `Resolve`, `Fetch`, or `Export`: composing the set, and checking it.
    pub(super) stage: Stage,
    pub(super) error: SourceError,
}

impl StagedError {
    pub(super) fn new(stage: Stage, error: SourceError) -> Self {
        Self { stage, error }
    }
}
