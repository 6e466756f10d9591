//! The errors that end the process.

use crate::sources::SourceError;
use crate::{admin, hooks, mirror, sandbox, store, sync, telemetry};

/// Why the process ends with an exit code other than 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The root could not be opened or written.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The mirror could not be opened.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
    /// The HTTP listener could not be started.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// With rules, without a root and with `--one-time`: the remote failed, or its revision cannot be applied.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// There were as many consecutive failures as `--max-failures` allows.
    #[error("giving up after {failures} {}", if *failures == 1 { "failure" } else { "failures in a row" })]
    GaveUp {
        /// The number of consecutive failures.
        failures: u64,
        /// The last failure.
        #[source]
        last: sync::Error,
    },
    /// With `--one-time`: a signal ended the process before it had published or delivered.
    #[error("interrupted before everything was done")]
    Interrupted,
    /// With `--one-time`: the revision is published, but a hook failed.
    #[error("published, but a hook failed")]
    Hook(#[from] hooks::Error),
    /// With `--one-time`: a set of sources is published, but some sources are not at the commit that their ref names.
    #[error("published without the newest of {}", sources.join(", "))]
    Sources {
        /// The names of the sources that are behind.
        sources: Vec<String>,
    },
    /// With `--one-time`: some sources are not at the commit that their ref names, and this run published nothing.
    #[error("not up to date: {}; what was published stays", sources.join(", "))]
    Stale {
        /// The names of the sources that are behind.
        sources: Vec<String>,
    },
    /// `--sandbox=require`, and the kernel has not all parts of the sandbox.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Missing),
    /// The kernel refused a thread, a signal handler or another resource of the process.
    #[error("cannot {act}")]
    System {
        /// What was tried, to follow "cannot".
        act: &'static str,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Classifies the error for the last line of a log in git-sync's format, which has messages of its own for a root
    /// that cannot be used and for an address that cannot be bound.
    pub fn exit_reason(&self) -> telemetry::ExitReason<'_> {
        use store::Error::{Dangling, Io, Refused};
        match self {
            Self::Store(
                Refused { path, .. }
                | Dangling { path, .. }
                | Io { act: "make the root" | "resolve the root", path, .. },
            ) => telemetry::ExitReason::NoRoot(path),
            Self::Admin(admin::Error::Bind { bind, .. }) => telemetry::ExitReason::NoListener(bind),
            _ => telemetry::ExitReason::Other,
        }
    }

    /// Returns true if a file system or a quota is full.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => error.is_full(),
            Self::Mirror(error) => error.is_full(),
            _ => false,
        }
    }

    /// Returns true if git-sync has a failed attempt here: something is in the way, in the root or where the link has to
    /// be. Without a root git-sync ends at once. Another writer of a root is none of its concerns, but one of ours.
    pub(super) fn is_obstacle(&self) -> bool {
        match self {
            Self::Store(store::Error::BadLink { .. } | store::Error::Io { .. }) => {
                matches!(self.exit_reason(), telemetry::ExitReason::Other)
            }
            Self::Mirror(error) => !matches!(error, mirror::Error::Locked { .. } | mirror::Error::Cancelled),
            _ => false,
        }
    }

    /// Returns true if it kept the sync from running. Failed attempts are in the error file already. A hook that fails
    /// does not belong there, nor does a signal.
    pub(super) fn prevented_sync(&self) -> bool {
        match self {
            Self::Store(_)
            | Self::Mirror(_)
            | Self::Admin(_)
            | Self::Source(_)
            | Self::Sandbox(_)
            | Self::System { .. } => true,
            Self::GaveUp { .. }
            | Self::Interrupted
            | Self::Hook(_)
            | Self::Sources { .. }
            | Self::Stale { .. } => false,
        }
    }

    /// Returns true if nothing in the root may be touched: it is refused, or another writer holds it, whose error file
    /// may have the same path.
    pub(super) fn keeps_out_of_root(&self) -> bool {
        use store::Error::{Dangling, Foreign, Locked, OtherLayout, Refused};
        let Self::Store(error) = self else { return false };
        matches!(
            error,
            Dangling { .. } | Foreign { .. } | OtherLayout { .. } | Refused { .. } | Locked { .. }
        )
    }

    /// What an operator can do about it, one line per hint.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Store(error) => return error.hints(),
            Self::Mirror(error) => return error.hints(),
            Self::Admin(error) => return error.hints(),
            Self::Source(error) => return error.hints.clone(),
            Self::Sandbox(missing) => return missing.hints(),
            Self::GaveUp { last, .. } => return last.hints(),
            Self::Hook(error) => return error.hints(),
            Self::Sources { .. } | Self::Stale { .. } => "the lines above say what is wrong with each",
            Self::Interrupted => "nothing to do: the next start begins again",
            Self::System { .. } => {
                "the system is short of threads, memory or descriptors: raise the container's limits"
            }
        };
        vec![hint.to_owned()]
    }
}

/// Makes an [`Error::System`] of an I/O error; `act` is what was tried.
pub(super) fn system(act: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { act, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::assert_message_style;

    #[test]
    fn every_variant_is_one_line_and_says_what_to_do() {
        let io = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let hook = hooks::Error {
            kind: hooks::Kind::Exec,
            revision: crate::revision::Revision(crate::revision::ObjectId([0xab; 20])),
            why: hooks::Failure::ShutDown,
        };
        let listener = [
            admin::Error::Address("x".into()),
            admin::Error::Bind { bind: ":1".into(), source: io() },
            admin::Error::Bind { bind: ":1".into(), source: std::io::ErrorKind::AddrInUse.into() },
        ];
        let each = [
            Error::Store(store::Error::Cancelled),
            Error::Mirror(mirror::Error::Cancelled),
            Error::Source(SourceError {
                what: "x".into(),
                hints: vec!["y".into()],
                class: crate::retry::ErrorClass::Transient,
            }),
            Error::GaveUp { failures: 2, last: sync::Error::Interrupted },
            Error::Interrupted,
            Error::Hook(hook),
            Error::Sources { sources: vec!["jobs".into()] },
            Error::Stale { sources: vec!["jobs".into()] },
            Error::Sandbox(sandbox::Missing { parts: vec!["Landlock", "seccomp"] }),
            Error::System { act: "start the runtime", source: io() },
        ];
        for error in each.into_iter().chain(listener.map(Error::Admin)) {
            match &error {
                Error::Admin(admin::Error::Address(_) | admin::Error::Bind { .. })
                | Error::Store(_)
                | Error::Mirror(_)
                | Error::Source(_)
                | Error::GaveUp { .. }
                | Error::Interrupted
                | Error::Hook(_)
                | Error::Sources { .. }
                | Error::Stale { .. }
                | Error::Sandbox(_)
                | Error::System { .. } => {}
            }
            assert_message_style(&error, &error.hints());
        }
    }
}
