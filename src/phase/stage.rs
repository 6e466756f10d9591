//! The stages of an attempt.

/// A stage of an attempt, or of what follows it. Its label is a label value of the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Repairing the root: links, left-overs, retired generations.
    Repair,
    /// Reading the sparse patterns.
    Select,
    /// Asking the remote what the ref names.
    Resolve,
    /// Fetching objects.
    Fetch,
    /// Reading and checking trees, writing the staged generation.
    Export,
    /// Waiting for the pre-publish hook.
    Gate,
    /// Publishing the staged generation.
    Publish,
    /// After the attempt: collecting the mirror's garbage.
    Housekeep,
}

impl Stage {
    /// The stage's label value in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Repair => "repair",
            Self::Select => "select",
            Self::Resolve => "resolve",
            Self::Fetch => "fetch",
            Self::Export => "export",
            Self::Gate => "gate",
            Self::Publish => "publish",
            Self::Housekeep => "housekeep",
        }
    }

    /// A phrase that follows "while" in messages.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Repair => "repairing the root",
            Self::Select => "reading the sparse patterns",
            Self::Resolve => "resolving the ref at the remote",
            Self::Fetch => "fetching objects",
            Self::Export => "writing the generation",
            Self::Gate => "waiting for the pre-publish hook",
            Self::Publish => "publishing",
            Self::Housekeep => "collecting the mirror's garbage",
        }
    }
}
