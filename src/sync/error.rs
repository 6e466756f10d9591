//! Why an attempt failed: which stage, and what the adapter said.

use std::path::PathBuf;
use std::time::Duration;

use crate::phase::machine::Failure;
use crate::{hooks, mirror, store};

/// A stage of an attempt. The names are label values of the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Links, left-overs, retired generations.
    Mend,
    /// Reading what shapes a payload besides the tree.
    Select,
    /// Asking what the ref names.
    Resolve,
    /// Getting the objects.
    Fetch,
    /// Reading trees, checking them, writing the generation.
    Export,
    /// Waiting for the pre-publish hook.
    Gate,
    /// The swap.
    Publish,
}

impl Stage {
    /// Its label value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Mend => "mend",
            Self::Select => "select",
            Self::Resolve => "resolve",
            Self::Fetch => "fetch",
            Self::Export => "export",
            Self::Gate => "gate",
            Self::Publish => "publish",
        }
    }

    /// In words that follow "while".
    fn words(self) -> &'static str {
        match self {
            Self::Mend => "mending the root",
            Self::Select => "reading the sparse patterns",
            Self::Resolve => "asking the remote what the ref names",
            Self::Fetch => "fetching objects",
            Self::Export => "writing the generation",
            Self::Gate => "waiting for the pre-publish hook",
            Self::Publish => "publishing",
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mirror, or the way to the remote.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
    /// The root.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The pre-publish hook is a gate and stayed closed.
    #[error("not published")]
    Gate(#[source] hooks::Error),
    /// The attempt took too long.
    #[error("the attempt took longer than --sync-timeout={}s, while {}", limit.as_secs_f64(), stage.words())]
    Timeout {
        /// Where it stood.
        stage: Stage,
        /// The limit.
        limit: Duration,
    },
    /// The revision was refused before, and the ref still names it.
    #[error("{message}")]
    StillRefused {
        /// What was said the first time.
        message: String,
        /// And the hints.
        hints: Vec<String>,
    },
    /// The file with sparse patterns.
    #[error("cannot read the sparse patterns in {}", path.display())]
    Sparse {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A defect of ours. What is published is not touched by it.
    #[error("internal error while {}: {message}", stage.words())]
    Panicked {
        /// Where.
        stage: Stage,
        /// The panic's message.
        message: String,
    },
    /// The process is asked to end.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Whether the same attempt may succeed later without a person.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Mirror(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::Timeout { .. } | Self::Interrupted => true,
            Self::StillRefused { .. } | Self::Panicked { .. } => false,
            Self::Gate(_) => true,       // what the hook asks may change its mind
            Self::Sparse { .. } => true, // a mounted ConfigMap may come late
        }
    }

    /// Whether a file system, or the quota on it, is used up.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Mirror(error) => error.is_full(),
            Self::Store(error) => error.is_full(),
            _ => false,
        }
    }

    /// What a person can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Mirror(error) => error.hints(),
            Self::Store(error) => error.hints(),
            Self::Gate(error) => error.hints(),
            Self::StillRefused { hints, .. } => hints.clone(),
            Self::Timeout { stage: Stage::Resolve, .. } => {
                vec!["the remote did not answer: look at it, and at the network in between".to_owned()]
            }
            Self::Timeout { .. } => {
                vec!["raise --sync-timeout if the repository is large or the disk slow".to_owned()]
            }
            Self::Panicked { .. } => {
                vec!["this is a defect of treeswap: please report it with the lines above".to_owned()]
            }
            Self::Sparse { .. } | Self::Interrupted => Vec::new(),
        }
    }

    /// Whether the work ended because it was asked to.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Store(store::Error::Cancelled) | Self::Mirror(mirror::Error::Cancelled))
    }

    /// Whether it is the revision that is refused, so that only another one helps.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Mirror(error) => refuses(error),
            Self::StillRefused { .. } => true,
            _ => false,
        }
    }

    /// What the pace makes of it.
    pub fn failure(&self) -> Failure {
        match self {
            error if error.is_refusal() => Failure::Refused,
            Self::Mirror(error) => Failure::Trouble { retry_after: retry_after(error) },
            _ => Failure::Trouble { retry_after: None },
        }
    }

    /// Its class, a label value of the metrics.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            error if error.is_refusal() => "refused",
            error if error.is_transient() => "transient",
            _ => "permanent",
        }
    }
}

fn refuses(error: &mirror::Error) -> bool {
    use mirror::Error as Mirror;
    use mirror::wire::{Budget, Error as Wire};
    match error {
        Mirror::Refused(_) | Mirror::NotACommit { .. } => true,
        // The same pack would be fetched and thrown away again.
        Mirror::IndexMemory { .. } | Mirror::FetchBytes { .. } => true,
        Mirror::Wire(Wire::TooMuch { budget: Budget::Pack, .. }) => true,
        Mirror::Module { source, .. } => refuses(source),
        _ => false,
    }
}

fn retry_after(error: &mirror::Error) -> Option<Duration> {
    match error {
        mirror::Error::Wire(error) => error.retry_after(),
        mirror::Error::Unsent { source, .. } => source.retry_after(),
        mirror::Error::Module { source, .. } => retry_after(source),
        _ => None,
    }
}
