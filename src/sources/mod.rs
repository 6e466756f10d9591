//! Where revisions come from: what a root follows, and what a delivery asks before and after it writes.
//!
//! An [`Upstream`] is what a root follows: one repository, or a `set` of sources.
//!
//! A [`DeliveryInput`] says which revision its ref names *now*, the desired state of that revision, and how two
//! revisions are related. [`Remote`] asks an upstream that it owns. [`Published`] asks the sync of a root, so that only
//! that talks to the remote and no revision is delivered before it is published. [`TreeInput`] is a local directory.
//!
//! Files: `file` the list of sources; `set` their repositories and the composed revision; `poll` one poll of a
//! repository; `limit` the time that an attempt at them may take, `stage` why a source failed, and in which stage;
//! `requests` which sources were requested before their time; `remote` the thread that owns the mirrors of a delivery
//! without a root; `attempts` answers from a root's attempts, `comparer` from its mirror and remote, and `published`
//! the input made of both; `plans` the desired state of revisions; `relations` a cache of the relations of revisions.

mod attempts;
mod comparer;
mod file;
mod limit;
mod plans;
mod poll;
mod published;
mod relations;
mod remote;
mod requests;
mod set;
mod stage;
mod upstream;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

pub use attempts::{AttemptReporter, RevisionQuery};
pub use comparer::RevisionComparer;
pub use file::{BadFile, Credentials, SourceSpec, SourcesFile};
pub use limit::AttemptLimit;
pub use published::Published;
pub use remote::{PollState, Remote};
pub use requests::Requests;
pub use set::{SetError, SetOptions, SourceSet, WireOf};
pub use upstream::Upstream;

use crate::configmap::apply::{Desired, Placement};
use crate::desired;
use crate::human::one_line;
use crate::mirror;
use crate::retry::ErrorClass;
use crate::revision::{Relation, Revision};

/// The revision that a ref names, or, with several sources, the set composed of the revisions their refs name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// The revision.
    pub revision: Revision,
    /// Where each source is placed, and which of them did not answer; empty for a single repository.
    pub sources: Placement,
}

impl From<Revision> for Named {
    fn from(revision: Revision) -> Self {
        Self { revision, sources: Placement::default() }
    }
}

/// A revision recorded in a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// The revision.
    pub revision: Revision,
    /// With several sources, the commit of each by the source's name; otherwise empty.
    pub sources: BTreeMap<String, Revision>,
}

/// The input of a delivery.
pub trait DeliveryInput: Send + Sync + 'static {
    /// Returns the revision that the ref names, as asked of the remote after this call. It is answered from memory only
    /// if it cannot change (a commit id, a directory).
    fn resolve(&self) -> impl Future<Output = Result<Named, SourceError>> + Send;

    /// Returns the desired state of a revision.
    fn desired(&self, named: Named) -> impl Future<Output = Result<Arc<Desired>, SourceError>> + Send;

    /// Returns the relation of `revision`, which the ref names, to one recorded in a cluster. It is an error if that
    /// cannot be answered at present.
    fn relation(
        &self,
        recorded: Recorded,
        revision: Revision,
    ) -> impl Future<Output = Result<Relation, SourceError>> + Send;

    /// Returns false if there is no ref, so that it is unknown which of two revisions is newer.
    fn follows_ref(&self) -> bool {
        true
    }
}

/// The remote did not answer, or the desired state of the revision cannot be computed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    /// The message, one line.
    pub what: String,
    /// What an operator can do, one line each.
    pub hints: Vec<String>,
    /// What it needs to go away.
    pub class: ErrorClass,
}

impl SourceError {
    /// An error of one of several sources.
    fn of_mirror(error: &mirror::Error) -> Self {
        let hints = error.hints_of_source();
        Self { what: one_line(error), hints, class: error.class() }
    }

    /// An error of a single repository or of the set as a whole.
    pub fn of_set(error: &SetError) -> Self {
        Self { what: one_line(error), hints: error.hints(), class: error.class() }
    }

    fn of_plan(revision: Revision, error: &desired::Error) -> Self {
        let line = one_line(error);
        // A refusal says itself which revision it is.
        let names_it = matches!(error, desired::Error::Mirror(mirror::Error::Refused(_)));
        let what = if names_it { line } else { format!("revision {}: {line}", revision.short()) };
        Self { what, hints: error.hints(), class: ErrorClass::of(error.is_transient()) }
    }

    /// Computing a desired state panicked. The panic itself is in the log.
    fn of_defect(revision: Revision) -> Self {
        let what = format!("revision {}: it cannot be planned: this is a bug in treeswap", revision.short());
        Self {
            what,
            hints: vec!["please report it with the lines before".to_owned()],
            class: ErrorClass::Permanent,
        }
    }

    /// The run ended while the desired state was computed.
    pub(crate) fn unplanned(revision: Revision) -> Self {
        let what = format!("revision {}: the run ended while computing the plan", revision.short());
        let fewer = "fewer rules, and patterns that begin with a directory instead of `**/`, take less time";
        let again = "the next run starts over; `apply --timeout` gives one run more time";
        Self { what, hints: vec![fewer.to_owned(), again.to_owned()], class: ErrorClass::Transient }
    }

    /// The remote has not answered yet. `last_limit` is the limit of the attempt if the process ends with it.
    fn unanswered(last_limit: Option<AttemptLimit>) -> Self {
        let hint = match last_limit {
            Some(AttemptLimit { flag, .. }) => {
                format!("raise {flag} if a repository is large; otherwise check its remote")
            }
            None => "it is polled again at the next attempt".to_owned(),
        };
        Self {
            what: "its remote has not answered yet".to_owned(),
            hints: vec![hint],
            class: ErrorClass::Transient,
        }
    }

    /// The set with a source's new commit is not published.
    fn unpublished(new: Revision) -> Self {
        let what = format!("the set with its commit {} is not published", new.short());
        Self { what, hints: vec!["its last failure has the reason".to_owned()], class: ErrorClass::Transient }
    }

    /// The process was asked to end, or the run's time limit was reached.
    pub fn interrupted() -> Self {
        Self {
            what: "the run ended before the remote had answered".to_owned(),
            hints: vec!["the next run starts over; `apply --timeout` gives one run more time".to_owned()],
            class: ErrorClass::Transient,
        }
    }
}

/// The desired state of a local directory, under the revision that the command line names.
#[derive(Debug)]
pub struct TreeInput(Arc<Desired>);

impl TreeInput {
    /// Wraps the directory's desired state.
    pub fn new(desired: Desired) -> Self {
        Self(Arc::new(desired))
    }
}

impl DeliveryInput for TreeInput {
    async fn resolve(&self) -> Result<Named, SourceError> {
        Ok(self.0.revision.into())
    }

    async fn desired(&self, _: Named) -> Result<Arc<Desired>, SourceError> {
        Ok(Arc::clone(&self.0))
    }

    async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
        Ok(Relation::Unknown)
    }

    fn follows_ref(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::human::assert_message_style;
    use crate::revision::ObjectId;

    #[test]
    fn every_error_is_one_line_with_a_hint() {
        let revision = Revision(ObjectId([0xab; 20]));
        let remote = mirror::wire::Error::BadRemote { remote: "https://".to_owned(), why: "it has no host" };
        let of_mirror = mirror::Error::from(remote);
        let limit = AttemptLimit::sync_timeout(Duration::from_secs(120));
        let source = SourceError::unanswered(None);
        for error in [
            SourceError::of_mirror(&of_mirror),
            SourceError::of_set(&SetError::Source {
                name: "jobs".to_owned(),
                source: source.clone(),
                retry_after: None,
            }),
            SourceError::of_plan(revision, &desired::Error::NoRules { path: "rules.yaml".to_owned() }),
            SourceError::of_defect(revision),
            SourceError::unplanned(revision),
            source,
            SourceError::unanswered(Some(limit)),
            SourceError::unpublished(revision),
            SourceError::interrupted(),
            remote::thread_ended(),
        ] {
            assert_message_style(&error, &error.hints);
        }
    }
}
