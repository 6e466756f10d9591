//! Makes a pack from a repository on this machine, for want of a git program: what `upload-pack` would decide about
//! boundary, depth and filter, for one round. Blocking.
//!
//! It runs in the service, so what it holds is bounded: the ids of the objects, at most [`OBJECTS_MAX`], and one object
//! of at most [`BLOB_MAX`] at a time. No deltas are looked for: that would take a window of objects and most of the
//! time.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;

use bytes::Bytes;
use git2::{ErrorClass, ErrorCode, ObjectType, Oid};
use tokio::sync::mpsc::Sender;

use super::packing::Writer;
use super::{Deepen, PackResponse, Request};
use crate::mirror::lack::Lack;
use crate::mirror::odb::{COMMIT_MAX, ObjectReader, Store, TREE_MAX, to_object_id};
use crate::mirror::tree;
use crate::revision::ObjectId;

/// The filters known here. Any other is left out, and the answer says so.
const BLOB_NONE: &str = "blob:none";
const TREE_NONE: &str = "tree:0";

/// At most so many objects are counted, sent and held together; some 100 MiB of ids. The indexer takes half as many by
/// default.
const OBJECTS_MAX: usize = 1 << 20;

/// No blob larger than this is read from a pack, where it is in memory whole. A loose one of any size passes.
const BLOB_MAX: usize = 64 << 20;

/// Sends a pack of what the request asks for, and returns how the boundary moved. Stops early when the receiver is
/// gone.
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
    let history = History::read(store, request)?;

    for id in &request.haves {
        if let Ok(commit) = packer.reader.commit(id) {
            packer.skip_tree(commit.tree)?;
        }
    }
    let mut starts = Vec::new();
    for id in &request.wants {
        starts.extend(packer.want(*id)?.map(|id| to_oid(&id)));
    }
    for id in history.commits_to_send(store, request, starts, &mut answer)? {
        if packer.add_commit(to_object_id(id))?.is_break() {
            return Ok(answer);
        }
    }
    packer.send()?;
    Ok(answer)
}

/// What the other side holds, and where history ends for either.
struct History {
    /// Commits reachable from `haves` down to the boundary.
    held: HashSet<Oid>,
    /// The boundary that the request names.
    boundary: HashSet<Oid>,
    /// The repository's own boundary: it is shallow itself.
    own_boundary: HashSet<Oid>,
}

impl History {
    fn read(store: &Store, request: &Request) -> Result<Self, git2::Error> {
        let boundary: HashSet<Oid> = request.shallow.iter().map(to_oid).collect();
        let own = fs_err::read_to_string(store.repository().commondir().join("shallow")).unwrap_or_default();
        let own_boundary = own.lines().filter_map(|line| Oid::from_str(line.trim()).ok()).collect();
        let held: HashSet<Oid> = request.haves.iter().map(to_oid).collect();
        let mut left: Vec<Oid> = held.iter().copied().collect();
        let mut history = Self { held, boundary, own_boundary };
        while let Some(id) = left.pop() {
            let parents = match history.parents(store, id) {
                Ok(parents) => parents,
                // We hold something that this repository doesn't: it takes no part in the choice.
                Err(error) if error.code() == ErrorCode::NotFound => {
                    history.held.remove(&id);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !history.boundary.contains(&id) {
                left.extend(parents.into_iter().filter(|parent| history.held.insert(*parent)));
                check_count(history.held.len())?;
            }
        }
        Ok(history)
    }

    fn parents(&self, store: &Store, id: Oid) -> Result<Vec<Oid>, git2::Error> {
        let commit = store.reader()?.commit(&to_object_id(id)).map_err(lack)?;
        let ends = self.own_boundary.contains(&id);
        Ok(if ends { Vec::new() } else { commit.parents.iter().map(to_oid).collect() })
    }

    /// The commits to send, and how the boundary moves: breadth first, so that each is met at its least depth, and
    /// queued no more than once, however many name it as a parent.
    fn commits_to_send(
        &self,
        store: &Store,
        request: &Request,
        starts: Vec<Oid>,
        answer: &mut PackResponse,
    ) -> Result<Vec<Oid>, git2::Error> {
        let limit = match request.depth {
            Deepen::To(commits) => Some(commits.max(1)),
            Deepen::No | Deepen::Full => None,
        };
        let moves = request.depth != Deepen::No;
        let mut queued = HashSet::new();
        let mut queue: VecDeque<(Oid, u32)> =
            starts.into_iter().filter(|id| queued.insert(*id)).map(|id| (id, 1)).collect();
        let mut chosen = Vec::new();
        while let Some((id, depth)) = queue.pop_front() {
            if !moves && self.held.contains(&id) {
                continue;
            }
            let parents = self.parents(store, id)?;
            if !self.held.contains(&id) {
                chosen.push(id);
            }
            let was_boundary = self.boundary.contains(&id);
            let ends = self.own_boundary.contains(&id) || (!parents.is_empty() && limit == Some(depth));
            if ends && !was_boundary {
                answer.shallow.push(to_object_id(id));
            }
            if moves && was_boundary && !ends {
                answer.unshallow.push(to_object_id(id));
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

/// Which objects there are on either side.
#[derive(Default)]
struct Objects {
    /// What the pack is to hold, in its order.
    sent: Vec<ObjectId>,
    /// That, and what is on the other side.
    known: HashSet<ObjectId>,
}

impl Objects {
    /// To be sent, if it is new.
    fn add(&mut self, id: ObjectId) -> Result<bool, git2::Error> {
        let new = self.receiver_has(id)?;
        if new {
            self.sent.push(id);
        }
        Ok(new)
    }

    fn receiver_has(&mut self, id: ObjectId) -> Result<bool, git2::Error> {
        let new = self.known.insert(id);
        check_count(self.known.len())?;
        Ok(new)
    }
}

/// Refuses to hold more ids than [`OBJECTS_MAX`].
fn check_count(ids: usize) -> Result<(), git2::Error> {
    if ids > OBJECTS_MAX {
        let why = format!("more than {OBJECTS_MAX} objects, which takes a git program to read");
        return Err(git2::Error::from_str(&why));
    }
    Ok(())
}

struct Packer<'r> {
    reader: ObjectReader<'r>,
    objects: Objects,
    trees: bool,
    blobs: bool,
    pieces: &'r Sender<Bytes>,
}

impl Packer<'_> {
    /// A wanted object: tags on the way to a commit go in at once, and so does what is no commit. An object that the
    /// request names goes in whatever the filter says.
    fn want(&mut self, id: ObjectId) -> Result<Option<ObjectId>, git2::Error> {
        let mut at = id;
        loop {
            match self.reader.kind(&at).map_err(lack)? {
                ObjectType::Commit => return Ok(Some(at)),
                ObjectType::Tag => {
                    if !self.objects.add(at)? {
                        return Ok(None);
                    }
                    at = self.reader.target(&at).map_err(lack)?;
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
        let tree = self.reader.commit(&id).map_err(lack)?.tree;
        self.add_tree(tree)
    }

    fn add_tree(&mut self, root: ObjectId) -> Result<ControlFlow<()>, git2::Error> {
        let Self { reader, objects, blobs, pieces, .. } = self;
        let mut left = if objects.add(root)? { vec![root] } else { Vec::new() };
        while let Some(id) = left.pop() {
            if pieces.is_closed() {
                return Ok(ControlFlow::Break(()));
            }
            let tree = reader.tree(&id).map_err(lack)?;
            for line in tree::lines(&id, tree.data()).map_err(lack)?.filter(is_here) {
                if (line.is_dir() || *blobs) && objects.add(line.id)? && line.is_dir() {
                    left.push(line.id);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Marks a tree and everything in it as known to the other side.
    fn skip_tree(&mut self, root: ObjectId) -> Result<(), git2::Error> {
        let Self { reader, objects, .. } = self;
        let mut left = if objects.receiver_has(root)? { vec![root] } else { Vec::new() };
        while let Some(id) = left.pop() {
            let tree = reader.tree(&id).map_err(lack)?;
            for line in tree::lines(&id, tree.data()).map_err(lack)?.filter(is_here) {
                if objects.receiver_has(line.id)? && line.is_dir() {
                    left.push(line.id);
                }
            }
        }
        Ok(())
    }

    fn send(&self) -> Result<(), git2::Error> {
        let mut pack = Writer::start(self.pieces, self.objects.sent.len() as u32)?;
        for id in &self.objects.sent {
            let (size, kind) = self.reader.read_header(id).map_err(of("object", to_oid(id)))?;
            let went_on = if kind != ObjectType::Blob {
                let limit = if kind == ObjectType::Tree { TREE_MAX } else { COMMIT_MAX };
                pack.object(kind, self.reader.structure(id, kind, limit).map_err(lack)?.data())
            } else if size <= BLOB_MAX {
                pack.object(kind, self.reader.structure(id, kind, BLOB_MAX).map_err(lack)?.data())
            } else {
                self.large_blob(id, &mut pack)
            }?;
            if went_on.is_break() {
                return Ok(());
            }
        }
        pack.finish()
    }

    /// A blob that is not to be in memory whole: a loose one can be read piece by piece.
    fn large_blob(&self, id: &ObjectId, pack: &mut Writer<'_>) -> Result<ControlFlow<()>, git2::Error> {
        match self.reader.read_loose(id, Ok)? {
            Some(mut blob) => pack.stream(blob.kind(), blob.size(), &mut blob),
            None => {
                let why = format!(
                    "blob {id} lies in a pack and has more than {BLOB_MAX} bytes, which takes a git program to read"
                );
                Err(git2::Error::from_str(&why))
            }
        }
    }
}

/// A submodule's commit is in no repository but its own.
fn is_here(line: &tree::Line<'_>) -> bool {
    line.mode & tree::FORMAT != tree::SUBMODULE
}

/// libgit2's words, with the object they are about.
pub(super) fn of(kind: &'static str, id: Oid) -> impl Fn(git2::Error) -> git2::Error {
    move |error| git2::Error::new(error.code(), error.class(), format!("{kind} {id}: {}", error.message()))
}

/// An object that cannot be had, in libgit2's terms.
pub(super) fn lack(lack: Lack) -> git2::Error {
    let code = match lack {
        Lack::Missing { .. } => ErrorCode::NotFound,
        _ => ErrorCode::GenericError,
    };
    git2::Error::new(code, ErrorClass::Odb, lack.to_string())
}

fn to_oid(id: &ObjectId) -> Oid {
    // Both are twenty bytes, and any twenty bytes are an id.
    Oid::from_bytes(&id.0).unwrap_or(Oid::ZERO_SHA1)
}
