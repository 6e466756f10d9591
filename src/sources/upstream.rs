//! What a root follows: one repository, or a set of sources. Both give revisions, with their objects in mirrors.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::set::{SetError, SetOptions, SourceSet};
use super::{Recorded, Requests};
use crate::configmap::apply::Placement;
use crate::mirror::{self, Mirror, Objects, Received, Selection, Submodules, Tip};
use crate::payload::Refusal;
use crate::phase::SourceStatus;
use crate::revision::{Relation, Revision};

/// What a root follows.
pub enum Upstream {
    /// One repository.
    Repository(Box<Mirror>),
    /// Several sources.
    Set(Box<SourceSet>),
}

impl Upstream {
    /// Opens the mirror, or those of several sources with what `mirror` says of all of them. Blocking; no network.
    ///
    /// # Errors
    /// When a mirror cannot be made or is not ours.
    pub fn open(mirror: mirror::Options, sources: Option<SetOptions>) -> Result<Self, mirror::Error> {
        Ok(match sources {
            None => Self::Repository(Box::new(Mirror::open(mirror)?)),
            Some(sources) => Self::Set(Box::new(SourceSet::open(SetOptions { mirror, ..sources })?)),
        })
    }

    /// Asks the remotes what is to be published. `current` is what is; `held` must stay readable.
    pub async fn resolve(&mut self, current: Option<Revision>, held: &[Revision]) -> Result<Tip, SetError> {
        match self {
            Self::Repository(mirror) => Ok(mirror.resolve().await?),
            Self::Set(set) => set.resolve(current, held).await,
        }
    }

    /// Makes sure that the revision is there, with the files that are wanted of it.
    pub async fn fetch(
        &mut self,
        tip: &Tip,
        held: &[Revision],
        wanted: &Selection,
    ) -> Result<Revision, SetError> {
        match self {
            Self::Repository(mirror) => {
                let revision = mirror.fetch(tip, held).await?;
                mirror.fill(revision, wanted).await?;
                Ok(revision)
            }
            Self::Set(set) => set.compose().await,
        }
    }

    /// Bytes of the packs that [`Self::fetch`] would bring.
    pub async fn pack_bytes(&mut self, tip: &Tip, held: &[Revision]) -> Result<u64, mirror::Error> {
        match self {
            Self::Repository(mirror) => mirror.pack_bytes(tip, held).await,
            Self::Set(_) => Err(mirror::Error::Cancelled), // of which repository is not known here
        }
    }

    /// A revision was refused: `Ok` where another one can be had at once, with one source where it was before; else the
    /// error, with the name of the source that is to blame.
    pub fn hold_back(&mut self, refusal: Refusal) -> Result<(), mirror::Error> {
        match self {
            Self::Repository(_) => Err(refusal.into()),
            Self::Set(set) => set.hold_back(refusal),
        }
    }

    /// The set was refused for something that names no path: see [`SourceSet::hold_back_one_that_moved`].
    pub fn hold_back_one_that_moved(&mut self, what: &str, hints: &[String]) -> bool {
        match self {
            Self::Repository(_) => false,
            Self::Set(set) => set.hold_back_one_that_moved(what, hints),
        }
    }

    /// See [`SourceSet::acquit`].
    pub fn acquit(&mut self) {
        if let Self::Set(set) = self {
            set.acquit();
        }
    }

    /// What is asked for before its time, of several sources.
    pub fn obeys(&mut self, requests: Requests) {
        if let Self::Set(set) = self {
            set.obeys(requests);
        }
    }

    /// See [`SourceSet::is_asked_by`].
    pub fn is_asked_by(&mut self, askers: Arc<AtomicUsize>) {
        if let Self::Set(set) = self {
            set.is_asked_by(askers);
        }
    }

    /// How a revision stands to a recorded one.
    pub async fn relation(&mut self, recorded: &Recorded, named: Revision) -> Result<Relation, SetError> {
        match self {
            // What is recorded is a set, of which a remote knows nothing.
            Self::Repository(_) if !recorded.sources.is_empty() => Ok(Relation::Unknown),
            Self::Repository(mirror) => Ok(mirror.relation(recorded.revision, named).await?),
            Self::Set(set) => set.relation(recorded, named).await,
        }
    }

    /// The sources of the revision that was found last, if there are several.
    pub fn placement(&self) -> Placement {
        match self {
            Self::Repository(_) => Placement::default(),
            Self::Set(set) => set.placement(),
        }
    }

    /// A handle to the objects, for blocking threads.
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

    /// See [`Mirror::housekeep`].
    pub fn housekeep(&mut self, held: &[Revision]) -> Result<(), mirror::Error> {
        match self {
            Self::Repository(mirror) => mirror.housekeep(held),
            Self::Set(set) => set.housekeep(held),
        }
    }

    /// See [`Mirror::make_room`].
    pub fn make_room(&mut self, keep: &[Revision]) -> Result<bool, mirror::Error> {
        match self {
            Self::Repository(mirror) => mirror.make_room(keep),
            Self::Set(set) => set.make_room(keep),
        }
    }

    /// Which submodules a payload holds.
    pub fn submodules(&self) -> Submodules {
        match self {
            Self::Repository(mirror) => mirror.submodules(),
            Self::Set(_) => Submodules::Off,
        }
    }

    /// What comes, while it comes.
    pub fn received(&self) -> Received {
        match self {
            Self::Repository(mirror) => mirror.received(),
            Self::Set(set) => set.received(),
        }
    }

    /// Bytes on disk. Blocking.
    pub fn disk_bytes(&self) -> u64 {
        match self {
            Self::Repository(mirror) => mirror.disk_bytes(),
            Self::Set(set) => set.disk_bytes(),
        }
    }

    /// Where the objects are.
    pub fn dir(&self) -> PathBuf {
        match self {
            Self::Repository(mirror) => mirror.dir().to_owned(),
            Self::Set(set) => set.dir().to_owned(),
        }
    }

    /// The remote's URL without userinfo; of a set, the file that lists it.
    pub fn remote(&self) -> String {
        match self {
            Self::Repository(mirror) => mirror.remote(),
            Self::Set(set) => set.remote(),
        }
    }

    /// The remote's URL without userinfo, if there is but one.
    pub fn repository(&self) -> Option<String> {
        match self {
            Self::Repository(mirror) => Some(mirror.remote()),
            Self::Set(_) => None,
        }
    }

    /// How each of several sources is: see [`SourceSet::rows`].
    pub fn rows(&self, current: Option<Revision>, has_failed: bool) -> Vec<SourceStatus> {
        match self {
            Self::Repository(_) => Vec::new(),
            Self::Set(set) => set.rows(current, has_failed),
        }
    }

    /// What asks for an attempt when a source has an answer that nobody waits for.
    pub fn on_answer(&self, trigger: impl Fn() + Send + Sync + 'static) {
        if let Self::Set(set) = self {
            set.on_answer(trigger);
        }
    }
}
