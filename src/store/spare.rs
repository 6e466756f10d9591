//! The spare: a tree like the current generation's, kept ready so that the next generation costs only what changed.
//!
//! The slot, a directory in `..treeswap`, holds the tree, `tree`, and once that is complete and synced, `ready`, a
//! record of its content. Staging by delta takes the tree out of the slot and applies the delta to it.
//! - A tree without a record is incomplete and useless.
//! - Only the process that made a spare uses it: when the store opens, it discards whatever is in the slot. So a spare
//!   outlives no power cut, no change of options, and no time in which no treeswap ran. Where it is a copy, each start
//!   writes it again, in the background.
//! - A tree with new directories is changed in place ([`apply`]). A retired generation, whose directories readers may
//!   have open, is carried forward ([`super::carry`]). Neither ever writes into an existing file.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::carry::{DeltaWrite, update_stamps, write_delta};
use super::durable::{self, Unsynced};
use super::link_tree::link_tree;
use super::linkable::Linkable;
use super::reap::RequiredSpace;
use super::stage::{self, Dirs, Modes, WriteOptions, check_cancelled, io_error};
use super::stamps::Stamps;
use super::{Durability, Error, Options};
use crate::fsx::walk::{self, Unlinked};
use crate::fsx::{self, Flush};
use crate::generation::{self, GenerationRecord, Lineage};
use crate::payload::{BlobSource, Delta, Payload, split};
use crate::revision::ObjectId;

/// The tree's name in the slot.
pub(super) const TREE: &str = "tree";
/// The record's name in the slot.
pub(super) const READY: &str = "ready";
/// The largest record that is read, in bytes.
const MAX_RECORD: u64 = 64 << 10;

/// The record of a ready spare.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SpareRecord {
    /// The object id of its tree.
    pub(super) tree: ObjectId,
    /// Digest of the settings that shaped it, as in [`GenerationRecord::selection_digest`].
    pub(super) selection_digest: String,
    /// Sum of its files' sizes, in bytes. Includes files that are hard links to a generation's.
    pub(super) bytes: u64,
    /// Number of files, symlinks and directories in it.
    pub(super) entries: u64,
    /// Which generations it shares inodes with. `None` if with none.
    pub(super) lineage: Option<Lineage>,
    /// True if it was made with stamps. Then it is not used without them: a foreign write would not be noticed.
    pub(super) stamped: bool,
}

impl SpareRecord {
    /// The space it takes in addition to the generation that it is a spare of.
    pub(super) fn unshared(&self, current: &GenerationRecord) -> RequiredSpace {
        generation::unshared(self.lineage.as_ref(), (self.bytes, self.entries), current.lineage.as_ref())
            .into()
    }

    /// Returns true if a generation whose delta has this base and selection can be made from it.
    pub(super) fn fits(&self, tree: &ObjectId, selection: &str) -> bool {
        self.tree == *tree && self.selection_digest == selection
    }
}

/// Returns the lineage of the tree that results from applying a delta to a tree of `bytes` bytes with this lineage.
pub(super) fn lineage_after(lineage: &Lineage, bytes: u64, delta: &Delta) -> Lineage {
    let directories = lineage.directories.saturating_add(delta.added_dirs.len() as u64);
    let directories = directories.saturating_sub(delta.removed_dirs.len() as u64);
    let bytes = bytes.saturating_add(RequiredSpace::of_written(delta).bytes).saturating_sub(delta.bytes);
    Lineage { directories, ..lineage.clone() }.replacing(delta.removed.len() as u64, bytes)
}

/// Returns the record of the spare in the slot, if it is complete.
pub(super) fn ready(slot: BorrowedFd<'_>) -> Option<SpareRecord> {
    let bytes = fsx::read_file(slot, READY, MAX_RECORD).ok()??;
    let record: SpareRecord = serde_json::from_slice(&bytes).ok()?;
    fsx::file_type(&fsx::stat(slot, TREE).ok()??).is_dir().then_some(record)
}

/// Makes a spare in the slot, which must be empty, by writing every file of the payload. The spare is ready when this
/// returns its record and what `stamp` made of its directory. This takes long and should run on a separate thread with
/// low priority.
#[expect(clippy::too_many_arguments, reason = "everything that describes a generation")]
pub(super) fn copy(
    slot: BorrowedFd<'_>,
    payload: &Payload,
    selection: &str,
    blobs: &dyn BlobSource,
    options: &WriteOptions,
    durability: Durability,
    cancel: &CancellationToken,
    stamp: impl FnOnce(&OwnedFd) -> Result<Option<Stamps>, Error>,
) -> Result<(SpareRecord, Option<Stamps>), Error> {
    let top = stage::write(slot, TREE.as_ref(), payload, blobs, options, cancel)?;
    durable::make_durable(top.as_fd(), durability, &Unsynced::after_write(payload))?;
    let stamps = stamp(&top)?;
    let record = SpareRecord {
        tree: payload.tree,
        selection_digest: selection.to_owned(),
        bytes: payload.bytes,
        entries: payload.count(),
        lineage: None,
        stamped: stamps.is_some(),
    };
    write_record(slot, &record)?;
    Ok((record, stamps))
}

/// Makes a spare in the slot, which must be empty, from hard links to the files of the current generation, `source`.
/// The spare is ready when this returns its record and stamps. `None`, with an incomplete tree, if the generation
/// cannot be linked or is not as it was published.
pub(super) fn link(
    slot: BorrowedFd<'_>,
    source: Linkable<'_>,
    current: &GenerationRecord,
    options: &Options,
    cancel: &CancellationToken,
) -> Result<Option<(SpareRecord, Stamps)>, Error> {
    let modes = Modes::of(&options.write_options());
    let Some(linked) = link_tree(slot, TREE, source, modes, cancel)? else { return Ok(None) };
    if (linked.entries, linked.bytes) != (current.entries, current.bytes) {
        return Ok(None);
    }
    let unsynced = Unsynced::after_link(current, linked.stamps.directories());
    durable::make_durable(linked.top.as_fd(), options.durability, &unsynced)?;
    let record = SpareRecord {
        tree: current.tree,
        selection_digest: current.selection_digest.clone(),
        bytes: current.bytes,
        entries: current.entries,
        lineage: current.lineage.clone(),
        stamped: true,
    };
    write_record(slot, &record)?;
    Ok(Some((record, linked.stamps)))
}

/// Writes the record, which makes the spare ready.
pub(super) fn write_record(slot: BorrowedFd<'_>, record: &SpareRecord) -> Result<(), Error> {
    let written = serde_json::to_vec(record).map_err(std::io::Error::from);
    written
        // No sync: a power cut ends the process, and with it the record's use.
        .and_then(|bytes| fsx::replace_file(slot, READY, &bytes, 0o644, Flush::Lazy))
        .map_err(io_error("write the spare's record", READY.as_bytes()))
}

/// Moves the spare out of the slot to `name` in `to`, and opens it. Afterwards the slot has no spare, even if this
/// fails.
pub(super) fn take(slot: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Error> {
    fsx::unlink(slot, READY).map_err(io_error("remove the spare's record", READY.as_bytes()))?;
    rustix::fs::renameat(slot, TREE, to, name).map_err(io_error("take the spare to", name.as_bytes()))?;
    fsx::open_dir(to, name).map_err(io_error("open the directory", name.as_bytes()))
}

/// Applies a delta in place to a tree that no reader can have open, and returns what has to be synced. With `stamps`,
/// which are updated, its files may be shared with other trees. After an error the tree is inconsistent and must be
/// discarded.
pub(super) fn apply(
    top: &OwnedFd,
    delta: &Delta,
    blobs: &dyn BlobSource,
    options: &WriteOptions,
    stamps: Option<&mut Stamps>,
    cancel: &CancellationToken,
) -> Result<Unsynced, Error> {
    remove(top.as_fd(), delta, stamps.as_deref(), cancel)?;
    write_delta(top.as_fd(), &DeltaWrite { delta, blobs, shared: None, options }, cancel)?;
    if let Some(stamps) = stamps {
        update_stamps(top, delta, stamps)?;
    }
    Ok(Unsynced::after_delta(delta))
}

/// Removes the files and directories that the delta removes.
fn remove(
    top: BorrowedFd<'_>,
    delta: &Delta,
    stamps: Option<&Stamps>,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let mut dirs = Dirs::new(top);
    let unlink = |dir: BorrowedFd<'_>, name: &CStr| match stamps {
        Some(stamps) => stamps.unlink(dir, name),
        None => walk::unlink(dir, name),
    };
    for path in &delta.removed {
        check_cancelled(cancel)?;
        let (parent, name) = split(path);
        let parent = dirs.open(parent)?;
        let removed = CString::new(name).map_err(std::io::Error::from).and_then(|name| {
            match unlink(parent, &name)? {
                Unlinked::Gone => {}
                // The empty directory of a submodule.
                Unlinked::Directory => rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR)?,
            }
            Ok(())
        });
        removed.map_err(io_error("remove", path))?;
    }
    for path in &delta.removed_dirs {
        check_cancelled(cancel)?;
        let (parent, name) = split(path);
        rustix::fs::unlinkat(dirs.open(parent)?, name, AtFlags::REMOVEDIR)
            .map_err(io_error("remove the directory", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::testing::{Blobs, Tree, delta, expected, payload, read_back, tree, trees};
    use crate::payload::{Kind, Rules, Symlinks};
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    const OPTIONS: WriteOptions = WriteOptions { threads: 2, group_write: false };

    fn rules() -> Rules {
        Rules { symlinks: Symlinks::Keep, ..Rules::default() }
    }

    fn make(place: &std::path::Path, tree: &Tree) -> Result<SpareRecord, Error> {
        let dir = fsx::open_dir_at_path(place).unwrap();
        let payload = payload(tree, rules()).unwrap();
        let cancel = CancellationToken::new();
        let blobs = Blobs::of(&[tree]);
        let unstamped = |_: &OwnedFd| Ok(None);
        copy(dir.as_fd(), &payload, "s", &blobs, &OPTIONS, Durability::Syncfs, &cancel, unstamped)
            .map(|(record, _)| record)
    }

    fn some() -> Tree {
        tree(&[
            ("a/x", Kind::File, "1"),
            ("a/y", Kind::Executable, "22"),
            ("l", Kind::Symlink, "a/x"),
            ("m", Kind::Submodule, ""),
        ])
    }

    #[test]
    fn a_spare_counts_once_complete() {
        let dir = tempfile::tempdir().unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        assert_eq!(ready(place.as_fd()), None, "an empty place");
        let record = make(dir.path(), &some()).unwrap();
        assert_eq!(ready(place.as_fd()).as_ref(), Some(&record));
        assert_eq!((record.entries, record.bytes), (5, 6));
        assert_eq!(read_back(&dir.path().join(TREE)), expected(&some()));
    }

    #[test]
    fn a_half_made_spare_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        let cancel = CancellationToken::new();
        cancel.cancel();
        let all = payload(&some(), rules()).unwrap();
        let blobs = Blobs::of(&[&some()]);
        let unstamped = |_: &OwnedFd| Ok(None);
        let stopped =
            copy(place.as_fd(), &all, "s", &blobs, &OPTIONS, Durability::Syncfs, &cancel, unstamped);
        assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
        assert_eq!(ready(place.as_fd()), None);
        assert!(dir.path().join(TREE).exists(), "cancelled before anything was there to be half-made");
    }

    #[test]
    fn a_spare_can_be_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        make(dir.path(), &some()).unwrap();
        take(place.as_fd(), place.as_fd(), "taken").unwrap();
        assert_eq!(ready(place.as_fd()), None);
        assert_eq!(read_back(&dir.path().join("taken")), expected(&some()));
        assert!(take(place.as_fd(), place.as_fd(), "again").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_spare_carried_through_deltas_equals_a_fresh_write(steps in prop::collection::vec(trees(), 2..8)) {
            let dir = tempfile::tempdir().unwrap();
            let place = fsx::open_dir_at_path(dir.path()).unwrap();
            let blobs = Blobs::of(&steps.iter().collect::<Vec<_>>());
            let cancel = CancellationToken::new();
            make(dir.path(), &steps[0]).unwrap();
            let taken = take(place.as_fd(), place.as_fd(), "carried").unwrap();
            for (at, pair) in steps.windows(2).enumerate() {
                let delta = delta(&pair[0], &pair[1], rules()).unwrap();
                let unsynced = apply(&taken, &delta, &blobs, &OPTIONS, None, &cancel).unwrap();
                durable::make_durable(taken.as_fd(), Durability::Syncfs, &unsynced).unwrap();
                let whole = payload(&pair[1], rules()).unwrap();
                prop_assert_eq!((delta.entries, delta.bytes), (whole.count(), whole.bytes));
                let fresh = format!("fresh-{at}");
                stage::write(place.as_fd(), fresh.as_ref(), &whole, &blobs, &OPTIONS, &cancel).unwrap();
                let carried = read_back(&dir.path().join("carried"));
                prop_assert_eq!(&carried, &read_back(&dir.path().join(fresh)));
                prop_assert_eq!(&carried, &expected(&pair[1]));
            }
        }
    }
}
