//! The settings of a set of sources, and its errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::human::one_line;
use crate::mirror::{self, wire};
use crate::retry::{Backoff, ErrorClass};
use crate::sources::file::{BadFile, SourceSpec, SourcesFile};
use crate::sources::{AttemptLimit, SourceError};

/// Returns the connection options of a source's repository, or an error message.
pub type WireOf = Arc<dyn Fn(&SourceSpec) -> Result<wire::Options, String> + Send + Sync>;

/// The settings of a set.
#[derive(Clone)]
pub struct SetOptions {
    /// The file that lists the sources.
    pub file: PathBuf,
    /// The directory of the mirrors.
    pub dir: PathBuf,
    /// The settings that all mirrors share.
    pub mirror: mirror::Options,
    /// Returns the connection options of a source.
    pub wire: WireOf,
    /// Time between attempts.
    pub period: Duration,
    /// Backoff of a repository that fails.
    pub backoff: Backoff,
    /// The time limit of an attempt; a poll gets nine tenths of it.
    pub limit: AttemptLimit,
    /// Wait for every repository, and if there is a root ignore pauses other than those that servers ask for.
    pub one_time: bool,
    /// True if the caller ends an attempt after `limit`, as the sync loop of a root does. If not, a set that is
    /// resolved only once (`one_time`) may wait longer for answers.
    pub attempt_is_bounded: bool,
    /// True if ConfigMaps are made of the set.
    pub rules: bool,
    /// True if generations are published; the first one needs every source that is not optional. Without a root,
    /// targets that depend on an unavailable source are held back.
    pub root: bool,
}

impl SetOptions {
    /// Checks the URLs and credentials in the file, without network. `list` is what was read from it.
    ///
    /// # Errors
    /// When a source is invalid.
    pub fn check(&self, list: &SourcesFile) -> Result<(), BadFile> {
        for source in &list.sources {
            let bad =
                |why| BadFile { path: self.file.clone(), why: format!("source {:?}: {why}", source.name) };
            let wire = (self.wire)(source).map_err(bad)?;
            wire::Client::new(wire).map_err(|error| bad(one_line(&error)))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for SetOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetOptions").field("file", &self.file).field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Why no revision of the set could be composed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The sources file is invalid.
    #[error("--sources")]
    File(#[from] BadFile),
    /// A source that the set cannot do without has failed.
    #[error("source {name}")]
    Source {
        /// The source's name.
        name: String,
        /// Why it failed.
        #[source]
        source: SourceError,
        /// The pause that its server asks for.
        retry_after: Option<Duration>,
    },
    /// Every source fails.
    #[error("no source can be updated; source {name}")]
    EverySource {
        /// The name of the first source.
        name: String,
        /// Why it failed.
        #[source]
        source: SourceError,
        /// The shortest pause that one of the servers asks for.
        retry_after: Option<Duration>,
    },
    /// A mirror failed, or the sources cannot be placed side by side.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
}

impl SetError {
    /// What the error needs to go away.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::File(_) => ErrorClass::Permanent,
            Self::Source { source, .. } | Self::EverySource { source, .. } => source.class,
            Self::Mirror(error) => error.class(),
        }
    }

    /// Returns true if the remote of a single repository answered that it has no such ref.
    pub fn is_no_such_ref(&self) -> bool {
        matches!(self, Self::Mirror(mirror::Error::Wire(wire::Error::NoSuchRef { .. })))
    }

    /// Returns true if the connection to the remote of a single repository failed or timed out.
    pub fn is_connection_failure(&self) -> bool {
        matches!(self, Self::Mirror(error) if error.is_connection_loss())
    }

    /// How long the servers asked us to wait before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source { retry_after, .. } | Self::EverySource { retry_after, .. } => *retry_after,
            Self::Mirror(error) => error.retry_after(),
            Self::File(_) => None,
        }
    }

    /// What an operator can do, one line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::File(file) => file.hints(),
            Self::Source { source, .. } | Self::EverySource { source, .. } => source.hints.clone(),
            Self::Mirror(error) => error.hints(),
        }
    }
}
