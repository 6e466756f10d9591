//! Errors of attempts: an adapter's error, or the stage in which the attempt ran out of time or panicked. Each has
//! hints for an operator, and says whether it is transient, a refusal of the revision, or a full volume.

use std::path::PathBuf;
use std::time::Duration;

use crate::human::one_line;
use crate::phase::machine::Failure;
use crate::retry::ErrorClass;
use crate::sources::{SetError, SourceError};
use crate::{hooks, mirror, store};

pub use crate::phase::Stage;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mirror or the connection to the remote failed.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
    /// With several sources: one of them failed, their file is invalid, or they cannot be placed side by side.
    #[error(transparent)]
    Sources(Box<SetError>),
    /// An operation on the root failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The pre-publish hook is a gate, and did not let the revision pass.
    #[error("not published")]
    Gate {
        /// How the hook failed.
        #[source]
        source: hooks::Error,
        /// True if the hook runs again for the same revision (`--pre-publish-gate-retry`).
        again: bool,
    },
    /// The attempt took too long.
    #[error("the attempt took longer than --sync-timeout={}s, while {}", limit.as_secs_f64(), stage.phrase())]
    Timeout {
        /// The stage at the deadline.
        stage: Stage,
        /// The time limit.
        limit: Duration,
    },
    /// The attempt took too long, because a delivery used the upstream to compare revisions.
    #[error(
        "the attempt took longer than --sync-timeout={}s, while a delivery compared revisions",
        limit.as_secs_f64()
    )]
    UpstreamInUse {
        /// The time limit.
        limit: Duration,
    },
    /// The revision was refused before, and the ref still names it.
    #[error("{message}")]
    StillRefused {
        /// The stage in which it was refused.
        stage: Stage,
        /// The message of the first refusal.
        message: String,
        /// The hints of the first refusal.
        hints: Vec<String>,
    },
    /// The file with sparse patterns cannot be read.
    #[error("cannot read the sparse patterns in {}", path.display())]
    Sparse {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: std::io::Error,
    },
    /// A blocking step panicked, by a defect of treeswap. What is published is unaffected.
    #[error("internal error while {}: {message}", stage.phrase())]
    Panicked {
        /// The stage that panicked.
        stage: Stage,
        /// The panic's message.
        message: String,
    },
    /// The process was asked to end.
    #[error("interrupted")]
    Interrupted,
}

impl From<SetError> for Error {
    fn from(error: SetError) -> Self {
        match error {
            SetError::Mirror(error) => Self::Mirror(error),
            error => Self::Sources(Box::new(error)),
        }
    }
}

impl Error {
    /// Returns true if the same attempt may succeed later without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Mirror(error) => error.is_transient(),
            Self::Sources(error) => error.class().is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::Timeout { .. } | Self::UpstreamInUse { .. } | Self::Interrupted => true,
            Self::StillRefused { .. } | Self::Panicked { .. } => false,
            Self::Gate { .. } => !self.is_refusal(),
            // A mounted ConfigMap is complete before the container starts, so waiting does not help.
            Self::Sparse { .. } => false,
        }
    }

    /// Returns true if a file system or a quota is full.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Mirror(error) => error.is_full(),
            Self::Store(error) => error.is_full(),
            _ => false,
        }
    }

    /// Returns true if there is no room on a file system, in a quota or under `--max-bytes`.
    pub(super) fn lacks_room(&self) -> bool {
        self.is_full() || matches!(self, Self::Store(store::Error::OverCeiling { .. }))
    }

    /// Returns true if the root directory is gone or was replaced, and with it everything published.
    pub(super) fn is_root_missing(&self) -> bool {
        // A root is opened again only after it was gone: if it is refused then, something foreign has its place.
        matches!(self, Self::Store(store::Error::Replaced { .. } | store::Error::Foreign { .. }))
    }

    /// Returns true if the remote answered that it has no such ref.
    pub(super) fn is_no_such_ref(&self) -> bool {
        matches!(self, Self::Mirror(mirror::Error::Wire(mirror::wire::Error::NoSuchRef { .. })))
    }

    /// Returns true if the connection to the remote failed or timed out.
    pub(super) fn is_connection_failure(&self) -> bool {
        match self {
            Self::Mirror(error) => error.is_connection_loss(),
            Self::Timeout { stage, .. } => matches!(stage, Stage::Resolve | Stage::Fetch),
            _ => false,
        }
    }

    /// The error in the form that deliveries waiting for the attempt receive.
    pub(super) fn to_source_error(&self) -> SourceError {
        SourceError { what: one_line(self), hints: self.hints(), class: self.class() }
    }

    /// What an operator can do, one line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Mirror(error) => return error.hints(),
            Self::Sources(error) => return error.hints(),
            Self::Store(error) => return error.hints(),
            Self::Gate { source, .. } if self.is_refusal() => {
                let again = "the hook runs again for another revision or at the next start; with \
                             --pre-publish-gate-retry, at every attempt";
                return source.hints().into_iter().chain([again.to_owned()]).collect();
            }
            Self::Gate { source, .. } => return source.hints(),
            Self::StillRefused { hints, .. } => return hints.clone(),
            Self::Timeout { stage: Stage::Resolve, .. } => {
                "the remote did not answer: check it, and the network in between"
            }
            Self::Timeout { stage: Stage::Gate, .. } => "see whether the gate hangs, or raise --sync-timeout",
            Self::Timeout { .. } => "raise --sync-timeout if the repository is large or the disk slow",
            Self::UpstreamInUse { .. } => {
                "the remote sends its history slowly: check it, and the network in between"
            }
            Self::Panicked { .. } => "this is a bug in treeswap: please report it with the lines above",
            Self::Sparse { .. } => {
                "--sparse-checkout-file names a text file that this user can read; it is read again at every attempt"
            }
            Self::Interrupted => "nothing to do: treeswap is shutting down",
        };
        vec![hint.to_owned()]
    }

    /// Returns true if blocking work ended because its token was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Store(store::Error::Cancelled) | Self::Mirror(mirror::Error::Cancelled))
    }

    /// Returns true if the revision itself is refused, so that only another revision helps.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Mirror(error) => error.is_refusal(),
            Self::StillRefused { .. } => true,
            // The hook ran and exited with a failure.
            Self::Gate { source, again } => !again && matches!(source.why, hooks::Failure::Ended { .. }),
            _ => false,
        }
    }

    /// The kind of failure, which decides when the next attempt is due.
    pub fn failure(&self) -> Failure {
        match self {
            error if error.is_refusal() => Failure::Refused,
            Self::Sources(error) if error.class() == ErrorClass::Refused => Failure::Refused,
            Self::Sources(error) => Failure::Unavailable { retry_after: error.retry_after() },
            Self::Mirror(error) => Failure::Unavailable { retry_after: error.retry_after() },
            _ => Failure::Unavailable { retry_after: None },
        }
    }

    /// What the error needs to go away.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Timeout { .. } | Self::UpstreamInUse { .. } => ErrorClass::Timeout,
            error if error.is_refusal() => ErrorClass::Refused,
            Self::Mirror(error) => error.class(),
            Self::Sources(error) => error.class(),
            error => ErrorClass::of(error.is_transient()),
        }
    }

    /// Returns true if every one of several sources fails.
    pub fn is_of_every_source(&self) -> bool {
        matches!(self, Self::Sources(error) if matches!(**error, SetError::EverySource { .. }))
    }

    /// Returns true if the error is that of a source, whose failures are counted by themselves.
    pub(super) fn is_of_source(&self) -> bool {
        matches!(self, Self::Sources(error) if !matches!(**error, SetError::File(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::assert_message_style;

    #[test]
    fn every_variant_is_one_line_and_says_what_to_do() {
        let gate = |why, again| Error::Gate {
            source: hooks::Error {
                kind: hooks::Kind::PrePublish,
                revision: crate::revision::Revision(crate::revision::ObjectId([0xab; 20])),
                why,
            },
            again,
        };
        let status: std::process::ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(0x100);
        let ended = || hooks::Failure::Ended { program: "/gate".into(), status, output: "refused".into() };
        let limit = Duration::from_secs(120);
        let each = [
            Error::Mirror(mirror::Error::Cancelled),
            Error::Store(store::Error::Cancelled),
            Error::Sources(Box::new(SetError::File(crate::sources::BadFile {
                path: "/sources.yaml".into(),
                why: "it lists 0 sources; 1 to 64 make a root".into(),
            }))),
            gate(hooks::Failure::ShutDown, false),
            gate(ended(), false),
            gate(ended(), true),
            Error::Timeout { stage: Stage::Resolve, limit },
            Error::Timeout { stage: Stage::Fetch, limit },
            Error::Timeout { stage: Stage::Gate, limit },
            Error::Timeout { stage: Stage::Housekeep, limit },
            Error::UpstreamInUse { limit },
            Error::StillRefused {
                stage: Stage::Export,
                message: "it was refused".into(),
                hints: vec!["repair it".into()],
            },
            Error::Sparse { path: "/sparse".into(), source: std::io::ErrorKind::NotFound.into() },
            Error::Panicked { stage: Stage::Fetch, message: "index out of bounds".into() },
            Error::Interrupted,
        ];
        for error in each {
            match &error {
                Error::Mirror(_)
                | Error::Sources(_)
                | Error::Store(_)
                | Error::Gate { .. }
                | Error::Timeout { .. }
                | Error::UpstreamInUse { .. }
                | Error::StillRefused { .. }
                | Error::Sparse { .. }
                | Error::Panicked { .. }
                | Error::Interrupted => {}
            }
            assert_message_style(&error, &error.hints());
        }
        let late = |stage| Error::Timeout { stage, limit }.hints().concat();
        assert!(late(Stage::Gate).contains("the gate") && !late(Stage::Fetch).contains("gate"));
        // With --one-time nothing but the next start runs it again.
        let names_start = |again| gate(ended(), again).hints().concat().contains("at the next start");
        assert!(names_start(false), "of a refusal that is final for this process");
        assert!(!names_start(true), "with --pre-publish-gate-retry");
    }
}
