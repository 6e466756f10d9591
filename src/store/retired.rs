//! A retired generation in the spare's place: what is known of it, and how it leaves. Who brings it there and carries it
//! forward is [`super::recycle`]'s.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::carry::carry;
use super::durable::Unsynced;
use super::journal::Stamp;
use super::stage::{WriteOptions, io_error};
use super::staging_dir::StagingDir;
use super::stamps::{self, Stamps};
use super::{Error, spare};
use crate::fsx;
use crate::generation::GenerationRecord;
use crate::human::one_line;
use crate::payload::{BlobSource, Delta};
use crate::revision::{ObjectId, Revision};

/// The name of a retired generation in the spare's place.
pub(super) const RETIRED: &str = "retired";

/// A retired generation that waits to be carried forward.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) record: GenerationRecord,
    pub(super) stamps: Stamps,
    /// Its exclusive lock: no reader can pin it any more.
    pub(super) _lock: OwnedFd,
}

/// A look at the directories holds for so long: it is made while the network is waited for.
const LOOK_HOLDS: Duration = Duration::from_secs(2);

/// What a retired generation holds: where a delta to the current one starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetiredTree {
    /// Its revision.
    pub revision: Revision,
    /// Its tree.
    pub tree: ObjectId,
    /// Files, links and directories in it.
    pub entries: u64,
    /// Sum of its files' sizes, in bytes.
    pub bytes: u64,
}

impl Waiting {
    fn tree(&self) -> RetiredTree {
        let GenerationRecord { revision, tree, entries, bytes, .. } = self.record;
        RetiredTree { revision, tree, entries, bytes }
    }
}

/// A spare with stamps.
#[derive(Debug)]
pub(super) struct ReadyTree {
    pub(super) stamps: Stamps,
    /// When its directories were looked at after it was made.
    pub(super) looked_at: Option<Instant>,
    /// Nobody else has seen its directories.
    pub(super) is_new: bool,
}

/// The tree with stamps in the spare's place.
#[derive(Debug)]
pub(super) enum Tree {
    /// As it retired, under the name [`RETIRED`].
    Waits(Box<Waiting>),
    /// The spare: carried forward to the current generation, or made of links to its files.
    Ready(ReadyTree),
}

/// What the spare's place knows of a recycled tree in it. What is on disk is guarded by the lock of the place.
#[derive(Debug, Default)]
pub(super) struct Recycled(Mutex<Option<Tree>>);

impl Recycled {
    pub(super) fn tree(&self) -> MutexGuard<'_, Option<Tree>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits to be carried forward.
    pub(super) fn waiting(&self) -> Option<RetiredTree> {
        match &*self.tree() {
            Some(Tree::Waits(retired)) => Some(retired.tree()),
            _ => None,
        }
    }

    /// The same, if it was made by this selection: another one has other files of the same tree.
    pub(super) fn waiting_of(&self, selection: &str) -> Option<RetiredTree> {
        match &*self.tree() {
            Some(Tree::Waits(retired)) if retired.record.selection == selection => Some(retired.tree()),
            _ => None,
        }
    }

    /// Whether one that was carried forward may be used.
    pub(super) fn is_ready(&self) -> bool {
        matches!(&*self.tree(), Some(Tree::Ready(ready)) if !ready.stamps.are_void())
    }

    /// The earliest time that the tree in it knows.
    pub(super) fn earliest(&self) -> Option<Stamp> {
        match &*self.tree() {
            Some(Tree::Waits(retired)) => Some(retired.stamps.since()),
            Some(Tree::Ready(ready)) => Some(ready.stamps.since()),
            None => None,
        }
    }

    /// The place was emptied.
    pub(super) fn forget(&self) {
        *self.tree() = None;
    }
}

/// A spare with stamps that left its place.
pub(super) struct RecycledSpare {
    pub(super) old: StagingDir,
    pub(super) top: OwnedFd,
    pub(super) ready: ReadyTree,
}

impl RecycledSpare {
    /// Brings it to the delta's revision, as `name` in staging. `None`: it is not as we left it, or it cannot be done;
    /// the revision is written whole then.
    pub(super) fn carry(
        self,
        name: &str,
        delta: &Delta,
        blobs: &dyn BlobSource,
        options: &WriteOptions,
        cancel: &CancellationToken,
    ) -> Result<Option<(OwnedFd, Unsynced, Stamps)>, Error> {
        let Self { old, top, ready: ReadyTree { mut stamps, looked_at, is_new } } = self;
        let look = match looked_at {
            Some(at) if at.elapsed() < LOOK_HOLDS => Ok(None),
            _ => stamps.look_at_directories(&top, cancel),
        };
        let carried = look.and_then(|found| match found {
            Some(path) => Err(stamps::changed_by_others(path)),
            None if is_new => {
                let unsynced = spare::apply(&top, delta, blobs, options, Some(&mut stamps), cancel)?;
                fsx::rename_new(old.staging(), &old.name, old.staging(), name)
                    .map_err(io_error("rename the spare to", name.as_bytes()))?;
                old.leave();
                Ok((top, unsynced))
            }
            None => carry(&top, old.staging(), name, delta, blobs, None, options, &mut stamps, cancel),
        });
        match carried {
            Ok((top, unsynced)) => {
                stamps.forget_directories(); // the next look at the whole tree finds them
                Ok(Some((top, unsynced, stamps)))
            }
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(error) => {
                given_up(&error);
                Ok(None)
            }
        }
    }
}

pub(super) fn given_up(error: &Error) {
    tracing::info!(error = one_line(error), "a retired generation is not used again");
}
