//! Builds a pack from a local repository when there is no git program. It treats boundary, depth and filter like
//! `upload-pack`, for one request without negotiation. Blocking.
//!
//! It runs in the service's own process, so its memory is bounded: at most [`OBJECTS_MAX`] object ids, and one object
//! of at most [`BLOB_MAX`] at a time. It writes no deltas: searching for them would need a window of objects, and take
//! most of the time.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;

use bytes::Bytes;
use git2::{ErrorClass, ErrorCode, ObjectType};
use tokio::sync::mpsc::Sender;

use super::packing::Writer;
use super::{Deepen, PackResponse, Request};
use crate::mirror::object_error::ObjectError;
use crate::mirror::odb::{COMMIT_MAX, ObjectReader, Store, TREE_MAX};
use crate::mirror::tree;
use crate::revision::ObjectId;

/// The supported filters. Any other is ignored, and [`PackResponse::filtered`] is false then.
const BLOB_NONE: &str = "blob:none";
const TREE_NONE: &str = "tree:0";

/// The most object ids to keep, those to send and those that the receiver has together; some 100 MiB. By default the
/// indexer accepts half as many objects.
const OBJECTS_MAX: usize = 1 << 20;

/// The largest blob that is read from a pack, which needs the whole blob in memory. Loose blobs are streamed, and may
/// have any size.
const BLOB_MAX: usize = 64 << 20;

/// Sends the requested pack to `pieces`, and returns how the boundary moved. Stops early if the receiver is closed.
pub(super) fn pack(
    store: &Store,
    request: &Request,
    pieces: &Sender<Bytes>,
) -> Result<PackResponse, git2::Error> {
    let filter = request.filter.as_deref().filter(|filter| [BLOB_NONE, TREE_NONE].contains(filter));
    let filtered = filter.is_some();
    let mut answer = PackResponse { filtered, ..PackResponse::default() };
    let mut packer = Packer {
        reader: store.reader()?,
        objects: Objects::default(),
        trees: filter != Some(TREE_NONE),
        blobs: filter.is_none(),
        pieces,
    };
    let history = PeerHistory::read(store, request)?;

    for id in &request.haves {
        if let Ok(commit) = packer.reader.commit(id) {
            packer.skip_tree(commit.tree)?;
        }
    }
    let mut starts = Vec::new();
    for id in &request.wants {
        starts.extend(packer.want(*id)?);
    }
    for id in history.commits_to_send(store, request, starts, &mut answer)? {
        if packer.add_commit(id)?.is_break() {
            return Ok(answer);
        }
    }
    packer.send()?;
    Ok(answer)
}

/// The commits that the receiver has, and where history ends on either side.
struct PeerHistory {
    /// The commits that the receiver has: those reachable from `haves` down to the boundary.
    present: HashSet<ObjectId>,
    /// The boundary that the request names.
    boundary: HashSet<ObjectId>,
    /// The boundary of the repository itself, if it is shallow.
    own_boundary: HashSet<ObjectId>,
}

impl PeerHistory {
    fn read(store: &Store, request: &Request) -> Result<Self, git2::Error> {
        let boundary = request.shallow.iter().copied().collect();
        let own = fs_err::read_to_string(store.repository().commondir().join("shallow")).unwrap_or_default();
        let own_boundary = own.lines().filter_map(|line| ObjectId::from_hex(line.trim())).collect();
        let present: HashSet<_> = request.haves.iter().copied().collect();
        let mut left: Vec<_> = present.iter().copied().collect();
        let mut history = Self { present, boundary, own_boundary };
        while let Some(id) = left.pop() {
            let parents = match history.parents(store, id) {
                Ok(parents) => parents,
                // The receiver has a commit that this repository does not: it is ignored.
                Err(error) if error.code() == ErrorCode::NotFound => {
                    history.present.remove(&id);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !history.boundary.contains(&id) {
                left.extend(parents.into_iter().filter(|parent| history.present.insert(*parent)));
                check_count(history.present.len())?;
            }
        }
        Ok(history)
    }

    fn parents(&self, store: &Store, id: ObjectId) -> Result<Vec<ObjectId>, git2::Error> {
        let commit = store.reader()?.commit(&id).map_err(to_git_error)?;
        Ok(if self.own_boundary.contains(&id) { Vec::new() } else { commit.parents })
    }

    /// Returns the commits to send, and adds the boundary's changes to `answer`. The walk is breadth-first, so that
    /// each commit is reached at its least depth, and queues a commit only once, however many children it has.
    fn commits_to_send(
        &self,
        store: &Store,
        request: &Request,
        starts: Vec<ObjectId>,
        answer: &mut PackResponse,
    ) -> Result<Vec<ObjectId>, git2::Error> {
        let limit = match request.depth {
            Deepen::To(commits) => Some(commits.max(1)),
            Deepen::No | Deepen::Full => None,
        };
        let moves = request.depth != Deepen::No;
        let mut queued = HashSet::new();
        let mut queue: VecDeque<(ObjectId, u32)> =
            starts.into_iter().filter(|id| queued.insert(*id)).map(|id| (id, 1)).collect();
        let mut chosen = Vec::new();
        while let Some((id, depth)) = queue.pop_front() {
            if !moves && self.present.contains(&id) {
                continue;
            }
            let parents = self.parents(store, id)?;
            if !self.present.contains(&id) {
                chosen.push(id);
            }
            let was_boundary = self.boundary.contains(&id);
            let ends = self.own_boundary.contains(&id) || (!parents.is_empty() && limit == Some(depth));
            if ends && !was_boundary {
                answer.shallow.push(id);
            }
            if moves && was_boundary && !ends {
                answer.unshallow.push(id);
            }
            if !ends && (moves || !was_boundary) {
                let new = parents.into_iter().filter(|parent| queued.insert(*parent));
                queue.extend(new.map(|parent| (parent, depth.saturating_add(1))));
                check_count(queued.len())?;
            }
        }
        Ok(chosen)
    }
}

/// The objects to send, and those that the receiver has.
#[derive(Default)]
struct Objects {
    /// The objects to send, in the order of the pack.
    sent: Vec<ObjectId>,
    /// All of `sent`, and the objects that the receiver has.
    known: HashSet<ObjectId>,
}

impl Objects {
    /// Adds an object to the pack unless it is known. Returns true if it was added.
    fn add(&mut self, id: ObjectId) -> Result<bool, git2::Error> {
        let new = self.mark_known(id)?;
        if new {
            self.sent.push(id);
        }
        Ok(new)
    }

    /// Marks an object as known. Returns true if it was not known before.
    fn mark_known(&mut self, id: ObjectId) -> Result<bool, git2::Error> {
        let new = self.known.insert(id);
        check_count(self.known.len())?;
        Ok(new)
    }
}

/// Fails if there are more ids than [`OBJECTS_MAX`].
fn check_count(ids: usize) -> Result<(), git2::Error> {
    if ids > OBJECTS_MAX {
        let why = format!("more than {OBJECTS_MAX} objects: reading it needs a git program (--git)");
        return Err(git2::Error::from_str(&why));
    }
    Ok(())
}

/// Collects the objects of a pack and sends them.
struct Packer<'r> {
    reader: ObjectReader<'r>,
    objects: Objects,
    /// The filter allows trees.
    trees: bool,
    /// The filter allows blobs.
    blobs: bool,
    pieces: &'r Sender<Bytes>,
}

impl Packer<'_> {
    /// Adds a wanted object. A commit is not added but returned, to start the walk; tags that lead to it are added. The
    /// filter does not apply to objects that the request names.
    fn want(&mut self, id: ObjectId) -> Result<Option<ObjectId>, git2::Error> {
        let mut at = id;
        loop {
            match self.reader.kind(&at).map_err(to_git_error)? {
                ObjectType::Commit => return Ok(Some(at)),
                ObjectType::Tag => {
                    if !self.objects.add(at)? {
                        return Ok(None);
                    }
                    at = self.reader.target(&at).map_err(to_git_error)?;
                }
                ObjectType::Tree => {
                    let _stopped = self.add_tree(at)?;
                    return Ok(None);
                }
                _ => {
                    self.objects.add(at)?;
                    return Ok(None);
                }
            }
        }
    }

    fn add_commit(&mut self, id: ObjectId) -> Result<ControlFlow<()>, git2::Error> {
        self.objects.add(id)?;
        if !self.trees {
            return Ok(ControlFlow::Continue(()));
        }
        let tree = self.reader.commit(&id).map_err(to_git_error)?.tree;
        self.add_tree(tree)
    }

    fn add_tree(&mut self, root: ObjectId) -> Result<ControlFlow<()>, git2::Error> {
        let Self { reader, objects, blobs, pieces, .. } = self;
        let mut left = if objects.add(root)? { vec![root] } else { Vec::new() };
        while let Some(id) = left.pop() {
            if pieces.is_closed() {
                return Ok(ControlFlow::Break(()));
            }
            let tree = reader.tree(&id).map_err(to_git_error)?;
            for line in tree::lines(&id, tree.data()).map_err(to_git_error)?.filter(is_here) {
                if (line.is_dir() || *blobs) && objects.add(line.id)? && line.is_dir() {
                    left.push(line.id);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Marks a tree and everything in it as known to the receiver.
    fn skip_tree(&mut self, root: ObjectId) -> Result<(), git2::Error> {
        let Self { reader, objects, .. } = self;
        let mut left = if objects.mark_known(root)? { vec![root] } else { Vec::new() };
        while let Some(id) = left.pop() {
            let tree = reader.tree(&id).map_err(to_git_error)?;
            for line in tree::lines(&id, tree.data()).map_err(to_git_error)?.filter(is_here) {
                if objects.mark_known(line.id)? && line.is_dir() {
                    left.push(line.id);
                }
            }
        }
        Ok(())
    }

    /// Writes the pack.
    fn send(&self) -> Result<(), git2::Error> {
        let mut pack = Writer::start(self.pieces, self.objects.sent.len() as u32)?;
        for id in &self.objects.sent {
            let (size, kind) = self.reader.read_header(id).map_err(|error| {
                git2::Error::new(error.code(), error.class(), format!("object {id}: {}", error.message()))
            })?;
            let flow = if kind != ObjectType::Blob {
                let limit = if kind == ObjectType::Tree { TREE_MAX } else { COMMIT_MAX };
                pack.object(kind, self.reader.structure(id, kind, limit).map_err(to_git_error)?.data())
            } else if size <= BLOB_MAX {
                pack.object(kind, self.reader.structure(id, kind, BLOB_MAX).map_err(to_git_error)?.data())
            } else {
                self.large_blob(id, &mut pack)
            }?;
            if flow.is_break() {
                return Ok(());
            }
        }
        pack.finish()
    }

    /// Writes a blob that is too large to be in memory as a whole. It must be loose: loose objects can be streamed.
    fn large_blob(&self, id: &ObjectId, pack: &mut Writer<'_>) -> Result<ControlFlow<()>, git2::Error> {
        match self.reader.read_loose(id, Ok)? {
            Some(mut blob) => pack.stream(blob.kind(), blob.size(), &mut blob),
            None => {
                let why = format!(
                    "blob {id} lies in a pack and has more than {BLOB_MAX} bytes: reading it needs a git program (--git)"
                );
                Err(git2::Error::from_str(&why))
            }
        }
    }
}

/// Returns false for a submodule, whose commit is not in this repository.
fn is_here(line: &tree::Line<'_>) -> bool {
    line.mode & tree::FORMAT != tree::SUBMODULE
}

/// Converts an [`ObjectError`] to an error of libgit2's type; a missing object gets the code NotFound.
pub(super) fn to_git_error(error: ObjectError) -> git2::Error {
    let code = match error {
        ObjectError::Missing { .. } => ErrorCode::NotFound,
        _ => ErrorCode::GenericError,
    };
    git2::Error::new(code, ErrorClass::Odb, error.to_string())
}
