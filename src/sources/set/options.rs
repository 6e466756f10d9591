//! What makes a set of sources, and why there is none.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::human::one_line;
use crate::mirror::{self, wire};
use crate::retry::Backoff;
use crate::sources::SourceError;
use crate::sources::file::{BadFile, List, Listed};

/// The way to a source's repository.
pub type WireOf = Arc<dyn Fn(&Listed) -> Result<wire::Options, String> + Send + Sync>;

/// What makes a set.
#[derive(Clone)]
pub struct SetOptions {
    /// The file that lists the sources.
    pub file: PathBuf,
    /// The directory of their mirrors.
    pub dir: PathBuf,
    /// What all mirrors have in common.
    pub mirror: mirror::Options,
    /// The way to each.
    pub wire: WireOf,
    /// From one question to the next.
    pub period: Duration,
    /// The pauses of a repository that fails.
    pub backoff: Backoff,
    /// How long one may take for one answer.
    pub timeout: Duration,
    /// Wait for every repository, however long it takes.
    pub one_time: bool,
    /// Whether ConfigMaps are made of the set.
    pub rules: bool,
    /// Whether something is published, of which the first generation needs every source that is not optional. Without
    /// that, what depends on a source that is away is held.
    pub root: bool,
}

impl SetOptions {
    /// Reads the file, and the forms of the remotes in it; asks nobody. Blocking.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), BadFile> {
        for source in List::read(&self.file)?.sources {
            let bad =
                |why| BadFile { path: self.file.clone(), why: format!("source {:?}: {why}", source.name) };
            let wire = (self.wire)(&source).map_err(bad)?;
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

/// Why there is no revision of the set.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The file.
    #[error("--sources")]
    File(#[from] BadFile),
    /// A source that the set cannot do without.
    #[error("source {name}")]
    Source {
        /// What it is called.
        name: String,
        /// What is wrong with it.
        #[source]
        source: SourceError,
    },
    /// The mirrors, or the sources cannot lie beside each other.
    #[error(transparent)]
    Mirror(#[from] mirror::Error),
}

impl SetError {
    /// Whether the same attempt may succeed later without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Source { source, .. } => source.transient,
            Self::Mirror(error) => error.is_transient(),
        }
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::File(file) => file.hints(),
            Self::Source { source, .. } => source.hints.clone(),
            Self::Mirror(error) => error.hints(),
        }
    }
}
