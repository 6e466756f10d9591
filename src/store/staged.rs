//! Staging: turns a payload or a delta into a staged generation, which is written and durable but not yet published.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use crate::clock::Now;
use crate::generation::{GenerationRecord, Lineage, Name};
use crate::human::one_line;
use crate::payload::{BlobSource, Delta, Kind, Payload};
use crate::revision::{ObjectId, Revision};
use crate::store::durable::{self, Unsynced};
use crate::store::error::Error;
use crate::store::reap::RequiredSpace;
use crate::store::spare;
use crate::store::spare_slot::TakenSpare;
use crate::store::stage::{self, WriteOptions};
use crate::store::staging_dir::StagingDir;
use crate::store::stamps::Stamps;
use crate::store::{Durability, Options, Store};

/// A generation that is written and durable, but not yet published. It is deleted if it is dropped unpublished.
#[derive(Debug)]
pub struct Staged {
    /// The handle of its directory.
    pub(super) dir: OwnedFd,
    place: StagingDir,
    facts: RecordFacts,
    synced: bool,
    /// Detects foreign writes later. `None` if that is not possible in this root.
    pub(super) stamps: Option<Stamps>,
}

/// The facts for the generation's record.
#[derive(Clone, Debug)]
struct RecordFacts {
    revision: Revision,
    sources: BTreeMap<String, Revision>,
    tree: ObjectId,
    selection_digest: String,
    need: RequiredSpace,
    /// The space it takes in addition to the current generation.
    unshared: RequiredSpace,
    /// The lineage it continues, if it shares files with other generations.
    lineage: Option<Lineage>,
    /// Number of directories in it, if known.
    directories: Option<u64>,
}

impl RecordFacts {
    fn of(revision: Revision, tree: ObjectId, selection: &str, need: RequiredSpace) -> Self {
        Self {
            revision,
            sources: BTreeMap::new(),
            tree,
            selection_digest: selection.to_owned(),
            need,
            unshared: need,
            lineage: None,
            directories: None,
        }
    }
}

impl Staged {
    /// Its revision.
    pub fn revision(&self) -> Revision {
        self.facts.revision
    }

    /// Returns true if that generation was published with the same tree, under the same selection.
    pub fn repeats(&self, published: &GenerationRecord) -> bool {
        published.is_known()
            && published.tree == self.facts.tree
            && published.selection_digest == self.facts.selection_digest
    }

    /// Sets the commits of the sources that it is composed of.
    pub fn set_sources(&mut self, sources: impl Iterator<Item = (String, Revision)>) {
        self.facts.sources = sources.collect();
    }

    /// The path of its directory in staging, for messages and for hooks that inspect it before its publication.
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// The space it takes in addition to the current generation.
    pub(super) fn unshared(&self) -> RequiredSpace {
        self.facts.unshared
    }

    pub(super) fn name(&self) -> &str {
        &self.place.name
    }

    /// Records that it was moved out of staging, so that the drop does not delete it.
    pub(super) fn mark_moved(&self) {
        self.place.mark_moved();
    }

    /// Returns its record under this name.
    pub(super) fn record(&self, name: Name, now: &Now) -> GenerationRecord {
        let whole = || Some(Lineage::new(name.clone(), self.facts.directories?));
        GenerationRecord {
            lineage: self.facts.lineage.clone().or_else(whole),
            name,
            revision: self.facts.revision,
            sources: self.facts.sources.clone(),
            tree: self.facts.tree,
            selection_digest: self.facts.selection_digest.clone(),
            entries: self.facts.need.entries,
            bytes: self.facts.need.bytes,
            published: now.wall,
            boot_id: now.boot_id.clone(),
            synced: self.synced,
            retired: None,
        }
    }
}

impl Store {
    /// Writes a full payload into staging and makes it durable. Makes room before writing the first byte.
    pub fn stage(
        &mut self,
        payload: &Payload,
        selection: &str,
        blobs: &dyn BlobSource,
        cancel: &CancellationToken,
    ) -> Result<Staged, Error> {
        let need = RequiredSpace { bytes: payload.bytes, entries: payload.count() };
        self.make_room(need, need, cancel)?;
        let place = StagingDir::new(&self.handles, &self.trash);
        let options = self.options.write_options();
        let staging = self.handles.staging.as_fd();
        let dir = stage::write(staging, place.name.as_ref(), payload, blobs, &options, cancel)?;
        let modules = payload.entries.iter().filter(|entry| entry.kind == Kind::Submodule).count();
        let directories = Some((payload.dir_count() - 1 + modules) as u64);
        let facts =
            RecordFacts { directories, ..RecordFacts::of(payload.revision, payload.tree, selection, need) };
        self.finish_staging(place, dir, facts, Unsynced::after_write(payload), None)
    }

    /// Applies a delta to the spare, if one is ready for the delta's base. `None` if the caller must use
    /// [`Store::stage`] instead.
    pub fn stage_delta(
        &mut self,
        delta: &Delta,
        selection: &str,
        blobs: &dyn BlobSource,
        cancel: &CancellationToken,
    ) -> Result<Option<Staged>, Error> {
        let place = StagingDir::new(&self.handles, &self.trash);
        let Some((origin, spare)) = self.spare.take(delta, selection, &place.name)? else {
            place.mark_moved(); // nothing is there
            return Ok(None);
        };
        let need = RequiredSpace { bytes: delta.bytes, entries: delta.entries };
        let written = RequiredSpace::of_written(delta);
        let base = self.current().filter(|_| origin.lineage.is_some());
        let unshared = base.map_or(need, |current| origin.unshared(current).and(written));
        let on = |lineage: &Lineage| spare::lineage_after(lineage, origin.bytes, delta);
        let lineage = origin.lineage.as_ref().map(on);
        let directories = self.current().and_then(|base| Some(on(base.lineage.as_ref()?).directories));
        self.make_room(unshared, written, cancel)?;
        let options = self.options.write_options();
        let (dir, unsynced, stamps) = match spare {
            TakenSpare::Copy(dir) => match spare::apply(&dir, delta, blobs, &options, None, cancel) {
                Ok(unsynced) => (dir, unsynced, None),
                Err(error) if matches!(error, Error::Cancelled) || error.is_full() => return Err(error),
                // Perhaps somebody changed the copy. Only a full write tells whether the commit is at fault.
                Err(error) => {
                    tracing::info!(error = one_line(&error), "the spare cannot be used");
                    return Ok(None);
                }
            },
            TakenSpare::Stamped(spare) => {
                match spare.carry_forward(&place.name, delta, blobs, &options, cancel)? {
                    Some((dir, unsynced, stamps)) => (dir, unsynced, Some(stamps)),
                    None => return Ok(None),
                }
            }
        };
        let facts = RecordFacts::of(delta.revision, delta.tree, selection, need);
        let facts = RecordFacts { unshared, lineage, directories, ..facts };
        self.finish_staging(place, dir, facts, unsynced, stamps).map(Some)
    }

    /// Adds the `.git` file in git-sync's layout, and makes the written tree durable. After a failed sync it is unknown
    /// what reached the disk, and a second sync would succeed (the kernel reports a write-back error once). Therefore
    /// the tree is dropped and the sync never retried.
    fn finish_staging(
        &self,
        place: StagingDir,
        dir: OwnedFd,
        facts: RecordFacts,
        mut unsynced: Unsynced,
        stamps: Option<Stamps>,
    ) -> Result<Staged, Error> {
        if self.handles.is_git_sync {
            stage::write_git_file(dir.as_fd(), facts.revision, &self.options.write_options())?;
            unsynced.add_top_file(stage::GIT_FILE);
        }
        durable::make_durable(dir.as_fd(), self.options.durability, &unsynced)?;
        let stamps = stamps.or_else(|| self.stamps.of_new(&dir, &self.handles.staging));
        Ok(Staged { dir, place, facts, synced: self.options.durability == Durability::Syncfs, stamps })
    }
}

impl Options {
    pub(super) fn write_options(&self) -> WriteOptions {
        WriteOptions { threads: self.writers, group_write: self.group_write }
    }
}
