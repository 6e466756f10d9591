//! Reads what a revision holds: its payload, the delta to another one, and its blobs.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::modules::{Modules, ModulesError};
use super::odb::{ObjectReader, Peeled};
use super::subdirectory::Subdirectory;
use super::{Base, Objects, Selection, blobs, composed, delta, files, tree_to_payload};
use crate::payload::{BlobSource, Delta, Payload};
use crate::revision::{ObjectId, Revision};

impl Objects {
    /// Makes payloads and deltas fail with [`Error::Cancelled`] once `cancel` is cancelled: a large revision has tens
    /// of thousands of trees to read.
    pub fn until(self, cancel: &CancellationToken) -> Self {
        Self { cancel: cancel.clone(), ..self }
    }

    /// Reads a revision's tree into a checked payload.
    pub fn payload(&self, revision: Revision, selection: &Selection) -> Result<Payload, Error> {
        let patterns = self.shared.patterns(selection)?;
        let cancel = &self.cancel;
        let submodules = self.shared.submodules;
        self.read_top(revision, selection.path.as_ref(), |reader, at| {
            let modules =
                Modules::of(reader, at.tree, submodules).map_err(|error| error.into_error(revision))?;
            let parts = composed::places(reader, &self.shared, revision);
            tree_to_payload::payload(reader, at, selection, patterns.as_ref(), &modules, parts, cancel)
        })
    }

    /// Computes what `to` changes relative to `base`, with the same checks as [`Self::payload`]. `None` means that no
    /// delta can be computed and the whole payload is needed.
    pub fn delta(&self, base: Base, to: Revision, selection: &Selection) -> Result<Option<Delta>, Error> {
        let patterns = self.shared.patterns(selection)?;
        let cancel = &self.cancel;
        let submodules = self.shared.submodules;
        self.read_top(to, selection.path.as_ref(), |reader, at| {
            let Ok(old) = Modules::of(reader, base.tree, submodules) else { return Ok(None) };
            let new = Modules::of(reader, at.tree, submodules).map_err(|error| error.into_error(to))?;
            // Patterns select files of the repository itself, but submodules only as a whole, so an entry that changed
            // between a file and a submodule has no comparable selection. In git-sync's layout (`linked`), each
            // submodule has a `.git` file that belongs to its own generation.
            if (patterns.is_some() || self.shared.linked) && !(old.is_empty() && new.is_empty()) {
                return Ok(None);
            }
            let parts = composed::places(reader, &self.shared, to);
            delta::delta(reader, base, at, selection, patterns.as_ref(), (&old, &new, parts), cancel)
        })
    }

    /// Returns true if the mirror holds a revision with its submodules. A revision that is absent is not recorded as
    /// damage.
    pub fn holds(&self, revision: Revision) -> bool {
        let _lease = self.shared.lease();
        let Ok(store) = self.shared.all() else { return false };
        let Ok(reader) = store.reader() else { return false };
        let submodules = self.shared.submodules;
        reader.commit(&revision.0).is_ok_and(|commit| {
            reader.has(&commit.tree)
                && !matches!(Modules::of(&reader, commit.tree, submodules), Err(ModulesError::Absent { .. }))
        })
    }

    /// The tree id of a revision that the mirror holds, or of a directory in it.
    pub fn tree_of(&self, revision: Revision, path: Option<&Subdirectory>) -> Result<ObjectId, Error> {
        self.read_top(revision, path, |_, at| Ok(at.tree))
    }

    /// The path of the cache file for values that ConfigMap plans computed from blobs.
    pub fn values_file(&self) -> PathBuf {
        self.shared.dir.join(files::VALUES)
    }

    /// A source of blob contents, for any number of threads. No pack is removed while it exists.
    pub fn blobs(&self) -> Box<dyn BlobSource + Send> {
        Box::new(blobs::Blobs::new(Arc::clone(&self.shared)))
    }

    /// Like [`Self::read`], with the tree of the directory `path` in place of the revision's own.
    fn read_top<T>(
        &self,
        revision: Revision,
        path: Option<&Subdirectory>,
        act: impl FnOnce(&ObjectReader<'_>, Peeled) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.read(revision, |reader, at| {
            let tree = path.map_or(Ok(at.tree), |path| path.tree(reader, revision, at.tree))?;
            act(reader, Peeled { tree, ..at })
        })
    }

    /// Calls `act` with a reader and the revision's commit and tree. A missing or unreadable object is recorded, so
    /// that the next fetch recreates the mirror.
    pub(super) fn read<T>(
        &self,
        revision: Revision,
        act: impl FnOnce(&ObjectReader<'_>, Peeled) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let lease = self.shared.lease();
        let store = self.shared.all()?;
        let reader = store.objects()?;
        let result = match reader.commit(&revision.0) {
            Ok(commit) => act(&reader, Peeled { commit: revision.0, tree: commit.tree }),
            Err(error) => Err(Error::damaged(revision, error)),
        };
        result.inspect_err(|error| self.shared.note_if_damage_of(&lease, error))
    }
}
