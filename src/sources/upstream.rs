//! What a root follows: one repository, or a set of sources. Both yield revisions whose objects are in mirrors.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_util::sync::CancellationToken;

use super::set::{SetError, SetOptions, SourceSet};
use super::{Recorded, Requests};
use crate::configmap::apply::Placement;
use crate::mirror::{self, Mirror, Objects, Received, Selection, Submodules, Tip};
use crate::payload::Refusal;
use crate::phase::SourceStatus;
use crate::retry::ErrorClass;
use crate::revision::{Relation, Revision};

/// What a root follows.
pub enum Upstream {
    /// One repository.
    Repository(Box<Mirror>),
    /// Several sources.
    Set(Box<SourceSet>),
}

impl Upstream {
    /// Opens the mirror or, for several sources, the set, whose mirrors share the settings in `mirror`. Blocking; no
    /// network.
    ///
    /// # Errors
    /// When a mirror cannot be created or does not belong to treeswap.
    pub fn open(mirror: mirror::Options, sources: Option<SetOptions>) -> Result<Self, mirror::Error> {
        Ok(match sources {
            None => Self::Repository(Box::new(Mirror::open(mirror)?)),
            Some(sources) => Self::Set(Box::new(SourceSet::open(SetOptions { mirror, ..sources })?)),
        })
    }

    /// Asks the remotes what their refs name. `current` is the published revision; the mirrors keep the revisions in
    /// `kept`.
    pub async fn resolve(&mut self, current: Option<Revision>, kept: &[Revision]) -> Result<Tip, SetError> {
        match self {
            Self::Repository(mirror) => Ok(mirror.resolve().await?),
            Self::Set(set) => set.resolve(current, kept).await,
        }
    }

    /// Makes the tip's revision available, and returns it. A repository fetches it now, with the blobs that `wanted`
    /// selects; a set, whose polls fetched during [`Self::resolve`], composes it.
    pub async fn fetch(
        &mut self,
        tip: &Tip,
        kept: &[Revision],
        wanted: &Selection,
    ) -> Result<Revision, SetError> {
        match self {
            Self::Repository(mirror) => {
                let revision = mirror.fetch(tip, kept).await?;
                mirror.fill(revision, wanted).await?;
                Ok(revision)
            }
            Self::Set(set) => set.compose(wanted).await,
        }
    }

    /// Returns the bytes of the packs that [`Self::fetch`] would receive. `None` for a set: it is not known which
    /// repository the fetch is from.
    pub async fn pack_bytes(&mut self, tip: &Tip, kept: &[Revision]) -> Result<Option<u64>, mirror::Error> {
        match self {
            Self::Repository(mirror) => mirror.pack_bytes(tip, kept).await.map(Some),
            Self::Set(_) => Ok(None),
        }
    }

    /// Handles a refused revision of a set. Returns the tip of the one that is to be composed at once, with one source
    /// held back or to find the cause; otherwise the error, with the names of the sources that may be the cause. See
    /// [`SourceSet::hold_back`].
    pub fn hold_back(&mut self, refusal: Refusal) -> Result<Tip, SetError> {
        match self {
            Self::Repository(_) => Err(mirror::Error::from(refusal).into()),
            Self::Set(set) => set.hold_back(refusal).map(|()| set.tip()),
        }
    }

    /// Handles a refusal of the whole set: see [`SourceSet::hold_back_one_updated`]. Returns the tip of the set without
    /// one of the updates.
    pub fn hold_back_one_updated(&mut self, what: &str, hints: &[String]) -> Option<Tip> {
        match self {
            Self::Repository(_) => None,
            Self::Set(set) => set.hold_back_one_updated(what, hints).then(|| set.tip()),
        }
    }

    /// See [`SourceSet::poll_outcome`]; true for one repository, whose failure is that of the attempt.
    pub fn poll_outcome(&self) -> Result<bool, SetError> {
        match self {
            Self::Repository(_) => Ok(true),
            Self::Set(set) => set.poll_outcome(),
        }
    }

    /// See [`SourceSet::take_failures`]; empty for one repository.
    pub fn take_failures(&mut self) -> Vec<(&'static str, ErrorClass)> {
        match self {
            Self::Repository(_) => Vec::new(),
            Self::Set(set) => set.take_failures(),
        }
    }

    /// See [`SourceSet::begin_attempt`].
    pub fn begin_attempt(&mut self) {
        if let Self::Set(set) = self {
            set.begin_attempt();
        }
    }

    /// See [`SourceSet::set_served`].
    pub fn set_served(&mut self, served: BTreeSet<String>) {
        if let Self::Set(set) = self {
            set.set_served(served);
        }
    }

    /// See [`SourceSet::clear_suspects`].
    pub fn clear_suspects(&mut self) {
        if let Self::Set(set) = self {
            set.clear_suspects();
        }
    }

    /// See [`SourceSet::set_requests`].
    pub fn set_requests(&mut self, requests: Requests) {
        if let Self::Set(set) = self {
            set.set_requests(requests);
        }
    }

    /// See [`SourceSet::set_waiting_deliveries`].
    pub fn set_waiting_deliveries(&mut self, waiting_deliveries: Arc<AtomicUsize>) {
        if let Self::Set(set) = self {
            set.set_waiting_deliveries(waiting_deliveries);
        }
    }

    /// Returns the relation of `revision` to a recorded one.
    pub async fn relation(&mut self, recorded: &Recorded, revision: Revision) -> Result<Relation, SetError> {
        match self {
            // A recorded set is a revision that no remote knows.
            Self::Repository(_) if !recorded.sources.is_empty() => Ok(Relation::Unknown),
            Self::Repository(mirror) => Ok(mirror.relation(recorded.revision, revision).await?),
            Self::Set(set) => set.relation(recorded, revision).await,
        }
    }

    /// See [`SourceSet::placement`]; empty for one repository.
    pub fn placement(&self) -> Placement {
        match self {
            Self::Repository(_) => Placement::default(),
            Self::Set(set) => set.placement(),
        }
    }

    /// A handle to the objects, for use on blocking threads.
    pub fn objects(&self) -> Objects {
        match self {
            Self::Repository(mirror) => mirror.objects(),
            Self::Set(set) => set.objects(),
        }
    }

    /// See [`Mirror::is_settled`].
    pub fn is_settled(&self, revision: Revision) -> bool {
        match self {
            Self::Repository(mirror) => mirror.is_settled(revision),
            Self::Set(_) => true,
        }
    }

    /// See [`Mirror::housekeep`] and [`Mirror::cancelled_by`].
    pub fn housekeep(&mut self, kept: &[Revision], cancel: &CancellationToken) -> Result<(), mirror::Error> {
        match self {
            Self::Repository(mirror) => mirror.cancelled_by(cancel).housekeep(kept),
            Self::Set(set) => set.housekeep(kept, cancel),
        }
    }

    /// See [`SourceSet::may_remove_mirrors`]; false for one repository.
    pub fn may_remove_mirrors(&self, kept: &[Revision]) -> bool {
        match self {
            Self::Repository(_) => false,
            Self::Set(set) => set.may_remove_mirrors(kept),
        }
    }

    /// See [`Mirror::make_room`] and [`Mirror::cancelled_by`].
    pub fn make_room(
        &mut self,
        keep: &[Revision],
        cancel: &CancellationToken,
    ) -> Result<bool, mirror::Error> {
        match self {
            Self::Repository(mirror) => mirror.cancelled_by(cancel).make_room(keep),
            Self::Set(set) => set.make_room(keep, cancel),
        }
    }

    /// How payloads include submodules.
    pub fn submodules(&self) -> Submodules {
        match self {
            Self::Repository(mirror) => mirror.submodules(),
            Self::Set(_) => Submodules::Off,
        }
    }

    /// The counter of received bytes.
    pub fn received(&self) -> Received {
        match self {
            Self::Repository(mirror) => mirror.received(),
            Self::Set(set) => set.received(),
        }
    }

    /// The size of the mirrors in bytes. Blocking.
    pub fn disk_bytes(&self) -> u64 {
        match self {
            Self::Repository(mirror) => mirror.disk_bytes(),
            Self::Set(set) => set.disk_bytes(),
        }
    }

    /// The directory of the mirror, or of all mirrors.
    pub fn dir(&self) -> PathBuf {
        match self {
            Self::Repository(mirror) => mirror.dir().to_owned(),
            Self::Set(set) => set.dir().to_owned(),
        }
    }

    /// The remote's URL without userinfo; for a set, the path of the sources file.
    pub fn shown_name(&self) -> String {
        match self {
            Self::Repository(mirror) => mirror.remote(),
            Self::Set(set) => set.shown_name(),
        }
    }

    /// The remote's URL without userinfo; `None` for a set.
    pub fn repository(&self) -> Option<String> {
        match self {
            Self::Repository(mirror) => Some(mirror.remote()),
            Self::Set(_) => None,
        }
    }

    /// See [`SourceSet::source_statuses`]; empty for one repository.
    pub fn source_statuses(&self, current: Option<Revision>, has_failed: bool) -> Vec<SourceStatus> {
        match self {
            Self::Repository(_) => Vec::new(),
            Self::Set(set) => set.source_statuses(current, has_failed),
        }
    }

    /// See [`SourceSet::on_answer`].
    pub fn on_answer(&self, trigger: impl Fn() + Send + Sync + 'static) {
        if let Self::Set(set) = self {
            set.on_answer(trigger);
        }
    }
}
