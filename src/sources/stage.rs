//! The stages in which a source can fail.

use super::SourceError;

/// A stage in which a source can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Asking the remote what the refs name.
    Resolve,
    /// Fetching what they name.
    Fetch,
    /// Composing the set, and checking it.
    Export,
}

impl Stage {
    /// The label value in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Fetch => "fetch",
            Self::Export => "export",
        }
    }
}

/// Why a source is not at the commit that its ref names, and the stage in which it failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StagedError {
    pub(super) stage: Stage,
    pub(super) error: SourceError,
}

impl StagedError {
    pub(super) fn new(stage: Stage, error: SourceError) -> Self {
        Self { stage, error }
    }
}
