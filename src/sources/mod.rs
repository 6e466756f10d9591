//! Where revisions come from: what a delivery asks before and after it writes.
//!
//! A [`Source`] says which revision its ref names *now*, what that revision asks for, and how two revisions are related.
//! [`Remote`] asks a repository through a mirror of its own; [`Published`] asks the loop that keeps a root, so that
//! there is one conversation with the remote and no revision is delivered before it is published; [`TreeSource`] is a
//! directory.
//!
//! Files: `remote` the thread that owns a mirror; `attempts` answers out of a root's attempts; `published` those with
//! plans; `plans` what revisions ask for; `relations` what is known of their order. What a root follows is an
//! [`Upstream`]: one repository, or a `set` of sources, which a `file` lists and which are `poll`ed side by side;
//! `requests` which of them before their time.

mod attempts;
mod file;
mod plans;
mod poll;
mod published;
mod relations;
mod remote;
mod requests;
mod set;
mod upstream;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

pub use attempts::{AttemptResults, History, Newest};
pub use file::{BadFile, Credentials, List, Listed};
pub use published::Published;
pub use remote::Remote;
pub use requests::Requests;
pub use set::{SetError, SetOptions, SourceSet, WireOf};
pub use upstream::Upstream;

use crate::configmap::apply::{Desired, Placement};
use crate::desired;
use crate::human::one_line;
use crate::mirror::{self, Part};
use crate::revision::{Relation, Revision};

/// What the ref names; of several sources, the set of what their refs name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// The revision.
    pub revision: Revision,
    /// The sources that it is composed of, if there are several, and those that did not answer.
    pub sources: Placement,
}

impl From<Revision> for Named {
    fn from(revision: Revision) -> Self {
        Self { revision, sources: Placement::default() }
    }
}

/// A revision that a cluster has on record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// The revision.
    pub revision: Revision,
    /// Of several sources the commit of each, by its name.
    pub sources: BTreeMap<String, Revision>,
}

/// One input of deliveries.
pub trait Source: Send + Sync + 'static {
    /// Which revision the ref names, asked after the call. It is answered from memory only where it cannot change: a
    /// commit's id, a directory.
    fn ask(&self) -> impl Future<Output = Result<Named, SourceError>> + Send;

    /// What a revision asks for.
    fn desired(&self, named: Named) -> impl Future<Output = Result<Arc<Desired>, SourceError>> + Send;

    /// The relation of a revision that the ref names to another one, which a cluster has on record. An error is for a
    /// question that may be answered later.
    fn relation(
        &self,
        recorded: Recorded,
        named: Revision,
    ) -> impl Future<Output = Result<Relation, SourceError>> + Send;

    /// Whether there is a ref at all. Where there is none, it is unknown which of two revisions is newer.
    fn follows(&self) -> bool {
        true
    }
}

/// The remote did not answer, or what it names cannot be planned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    /// One line.
    pub what: String,
    /// What an operator can do.
    pub hints: Vec<String>,
    /// Whether it may pass by itself.
    pub transient: bool,
}

impl SourceError {
    /// Of one source of several.
    fn of_mirror(error: &mirror::Error) -> Self {
        let hints = error.hints_of_source();
        Self { what: one_line(error), hints, transient: error.is_transient() }
    }

    /// Of a set or a repository.
    pub fn of_set(error: &SetError) -> Self {
        Self { what: one_line(error), hints: error.hints(), transient: error.is_transient() }
    }

    fn of_plan(revision: Revision, error: &desired::Error) -> Self {
        let what = format!("revision {}: {}", revision.short(), one_line(error));
        Self { what, hints: error.hints(), transient: error.is_transient() }
    }

    /// Planning a revision panicked, which is in the log.
    fn of_defect(revision: Revision) -> Self {
        let what = format!("revision {}: it cannot be planned, by a defect of treeswap", revision.short());
        Self { what, hints: vec!["please report it with the lines before".to_owned()], transient: false }
    }

    /// The remote has not answered yet.
    fn unanswered() -> Self {
        let what = "its remote has not answered yet".to_owned();
        Self { what, hints: vec!["it is asked again at the next attempt".to_owned()], transient: true }
    }

    /// The set with a source's new commit is not published.
    fn unpublished(part: &Part) -> Self {
        let what = format!("the set with its commit {} is not published", part.revision.short());
        Self { what, hints: vec!["the last failure says why".to_owned()], transient: true }
    }

    /// The process ends, or the run's time is over.
    pub fn interrupted() -> Self {
        Self {
            what: "the run ended before the remote had answered".to_owned(),
            hints: vec!["the next run begins anew; `apply --timeout` gives one run more time".to_owned()],
            transient: true,
        }
    }
}

/// A local tree, of the revision that the command line names.
#[derive(Debug)]
pub struct TreeSource(Arc<Desired>);

impl TreeSource {
    /// Of what the tree asks for.
    pub fn new(desired: Desired) -> Self {
        Self(Arc::new(desired))
    }
}

impl Source for TreeSource {
    async fn ask(&self) -> Result<Named, SourceError> {
        Ok(self.0.revision.into())
    }

    async fn desired(&self, _: Named) -> Result<Arc<Desired>, SourceError> {
        Ok(Arc::clone(&self.0))
    }

    async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
        Ok(Relation::Unknown)
    }

    fn follows(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::reads_well;

    #[test]
    fn every_error_is_one_line_with_a_hint() {
        let remote = mirror::wire::Error::BadRemote { remote: "https://".to_owned(), why: "it has no host" };
        let of_mirror = SourceError::of_mirror(&mirror::Error::from(remote));
        for error in [of_mirror, remote::thread_ended(), SourceError::interrupted()] {
            reads_well(&error, &error.hints);
        }
    }
}
