//! Makes a pack from a repository on this machine, for want of a git program: what `upload-pack` would decide about
//! boundary, depth and filter, for one round, with libgit2 doing the packing. Blocking.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;

use bytes::Bytes;
use git2::{ErrorCode, ObjectType, Oid, PackBuilder, Repository};
use tokio::sync::mpsc::Sender;

use super::local::ours;
use super::{Answer, Deepen, Request};
use crate::revision::ObjectId;

/// The filters known here. Any other is left out, and the answer says so.
const BLOB_NONE: &str = "blob:none";
const TREE_NONE: &str = "tree:0";

/// Sends a pack of what the request asks for, and returns how the boundary moved. Stops early when nobody receives.
pub(super) fn pack(
    repository: &Repository,
    request: &Request,
    pieces: &Sender<Bytes>,
) -> Result<Answer, git2::Error> {
    let filter = request.filter.as_deref().filter(|filter| [BLOB_NONE, TREE_NONE].contains(filter));
    let filtered = filter.is_some();
    let mut answer = Answer { filtered, ..Answer::default() };
    let mut packer = Packer {
        repository,
        builder: repository.packbuilder()?,
        known: HashSet::new(),
        trees: filter != Some(TREE_NONE),
        blobs: filter.is_none(),
        pieces,
    };
    let history = History::read(repository, request)?;

    for id in &request.haves {
        if let Ok(commit) = repository.find_commit(theirs(id)) {
            packer.skip_tree(commit.tree_id())?;
        }
    }
    let mut starts = Vec::new();
    for id in &request.wants {
        starts.extend(packer.want(theirs(id))?);
    }
    for id in history.chosen(repository, request, starts, &mut answer)? {
        if packer.add_commit(id)?.is_break() {
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
    fn read(repository: &Repository, request: &Request) -> Result<Self, git2::Error> {
        let boundary: HashSet<Oid> = request.shallow.iter().map(theirs).collect();
        let own = fs_err::read_to_string(repository.commondir().join("shallow")).unwrap_or_default();
        let own_boundary = own.lines().filter_map(|line| Oid::from_str(line.trim()).ok()).collect();
        let mut history = Self { held: HashSet::new(), boundary, own_boundary };
        let mut left: Vec<Oid> = request.haves.iter().map(theirs).collect();
        while let Some(id) = left.pop() {
            if history.held.contains(&id) {
                continue;
            }
            let parents = match history.parents(repository, id) {
                Ok(parents) => parents,
                // We hold something that this repository doesn't: it takes no part in the choice.
                Err(error) if error.code() == ErrorCode::NotFound => continue,
                Err(error) => return Err(error),
            };
            history.held.insert(id);
            if !history.boundary.contains(&id) {
                left.extend(parents);
            }
        }
        Ok(history)
    }

    fn parents(&self, repository: &Repository, id: Oid) -> Result<Vec<Oid>, git2::Error> {
        let commit = repository.find_commit(id)?;
        Ok(if self.own_boundary.contains(&id) { Vec::new() } else { commit.parent_ids().collect() })
    }

    /// The commits to send, and how the boundary moves: breadth first, so that each is met at its least depth.
    fn chosen(
        &self,
        repository: &Repository,
        request: &Request,
        starts: Vec<Oid>,
        answer: &mut Answer,
    ) -> Result<Vec<Oid>, git2::Error> {
        let limit = match request.depth {
            Deepen::To(commits) => Some(commits.max(1)),
            Deepen::No | Deepen::Full => None,
        };
        let moves = request.depth != Deepen::No;
        let mut depths: HashMap<Oid, u32> = HashMap::new();
        let mut queue: VecDeque<(Oid, u32)> = starts.into_iter().map(|id| (id, 1)).collect();
        let mut chosen = Vec::new();
        while let Some((id, depth)) = queue.pop_front() {
            if depths.contains_key(&id) || (!moves && self.held.contains(&id)) {
                continue;
            }
            depths.insert(id, depth);
            let parents = self.parents(repository, id)?;
            if !self.held.contains(&id) {
                chosen.push(id);
            }
            let was_boundary = self.boundary.contains(&id);
            let ends = self.own_boundary.contains(&id) || (!parents.is_empty() && limit == Some(depth));
            if ends && !was_boundary {
                answer.shallow.push(ours(id));
            }
            if moves && was_boundary && !ends {
                answer.unshallow.push(ours(id));
            }
            if !ends && (moves || !was_boundary) {
                queue.extend(parents.into_iter().map(|parent| (parent, depth.saturating_add(1))));
            }
        }
        Ok(chosen)
    }
}

struct Packer<'r> {
    repository: &'r Repository,
    builder: PackBuilder<'r>,
    /// Objects that are in the pack or on the other side.
    known: HashSet<Oid>,
    trees: bool,
    blobs: bool,
    pieces: &'r Sender<Bytes>,
}

impl Packer<'_> {
    fn add(&mut self, id: Oid, name: Option<&str>) -> Result<bool, git2::Error> {
        let new = self.known.insert(id);
        if new {
            self.builder.insert_object(id, name).map_err(of("object", id))?;
        }
        Ok(new)
    }

    /// A wanted object: tags on the way to a commit go in at once, and so does what is no commit. An object that the
    /// request names goes in whatever the filter says.
    fn want(&mut self, id: Oid) -> Result<Option<Oid>, git2::Error> {
        let mut object = self.repository.find_object(id, None).map_err(of("object", id))?;
        loop {
            match object.kind() {
                Some(ObjectType::Commit) => return Ok(Some(object.id())),
                Some(ObjectType::Tag) => {
                    self.add(object.id(), None)?;
                    let tag = object.into_tag().map_err(|_| git2::Error::from_str("a tag that is none"))?;
                    object = tag.target().map_err(of("tag", tag.id()))?;
                }
                Some(ObjectType::Tree) => {
                    let _stopped = self.add_tree(object.id())?;
                    return Ok(None);
                }
                _ => {
                    self.add(object.id(), None)?;
                    return Ok(None);
                }
            }
        }
    }

    fn add_commit(&mut self, id: Oid) -> Result<ControlFlow<()>, git2::Error> {
        self.add(id, None)?;
        if !self.trees {
            return Ok(ControlFlow::Continue(()));
        }
        let tree = self.repository.find_commit(id).map_err(of("commit", id))?.tree_id();
        self.add_tree(tree)
    }

    fn add_tree(&mut self, root: Oid) -> Result<ControlFlow<()>, git2::Error> {
        let mut left = if self.add(root, None)? { vec![root] } else { Vec::new() };
        while let Some(id) = left.pop() {
            if self.pieces.is_closed() {
                return Ok(ControlFlow::Break(()));
            }
            for entry in &self.repository.find_tree(id).map_err(of("tree", id))? {
                // The name groups versions of one file, so that they become deltas of each other.
                let name = entry.name().ok();
                match entry.kind() {
                    Some(ObjectType::Tree) if self.add(entry.id(), name)? => left.push(entry.id()),
                    Some(ObjectType::Blob) if self.blobs => {
                        self.add(entry.id(), name)?;
                    }
                    _ => {} // a submodule's commit is not here
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Marks a tree and everything in it as known to the other side.
    fn skip_tree(&mut self, root: Oid) -> Result<(), git2::Error> {
        let mut left = vec![root];
        while let Some(id) = left.pop() {
            if self.known.insert(id) {
                for entry in &self.repository.find_tree(id).map_err(of("tree", id))? {
                    match entry.kind() {
                        Some(ObjectType::Tree) => left.push(entry.id()),
                        _ => {
                            self.known.insert(entry.id());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), git2::Error> {
        let pieces = self.pieces;
        let mut stopped = false;
        let sent = self.builder.foreach(|piece| {
            stopped = pieces.blocking_send(Bytes::copy_from_slice(piece)).is_err();
            !stopped
        });
        if stopped { Ok(()) } else { sent }
    }
}

/// libgit2's words, with the object they are about.
pub(super) fn of(kind: &'static str, id: Oid) -> impl Fn(git2::Error) -> git2::Error {
    move |error| git2::Error::new(error.code(), error.class(), format!("{kind} {id}: {}", error.message()))
}

fn theirs(id: &ObjectId) -> Oid {
    // Both are twenty bytes, and any twenty bytes are an id.
    Oid::from_bytes(&id.0).unwrap_or(Oid::ZERO_SHA1)
}
