//! Composes one revision of several repositories' trees (`--sources`).
//!
//! A set of sources becomes a synthetic commit in a separate repository. Its trees refer to the sources' trees at the
//! paths where they are placed, and its message records the commit of each source. So everything that works with a
//! revision (payloads, deltas, generations, garbage collection) works with a set, and unchanged trees are shared. The
//! sources' objects stay in their mirrors and are read together with this repository's.
//!
//! The same set always yields the same commit id. A crash leaves loose objects that nothing refers to, which the next
//! garbage collection removes. The repository is a cache and can be recreated from the mirrors.
//!
//! Files: `overlay` merges the trees; `base_names` checks for files that must not share a base name; this file writes,
//! reads and garbage-collects composed commits.

mod base_names;
mod overlay;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fs_err as fs;
use git2::ObjectType;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::files::{self, ignore_absent, local, remove_matching};
use super::index_limiter::Turns;
use super::layout::Layout;
use super::loose;
use super::object_error::ObjectError;
use super::odb::{ObjectReader, Settings, Store};
use super::repo_kind::RepoKind;
use super::shared::Shared;
use super::tree::lines;
use super::{Mirror, Objects, Options, Submodules};
use crate::payload::{Limits, Parts};
use crate::revision::{ObjectId, Revision};

pub use base_names::UniqueBaseNames;
use overlay::Overlay;

/// The line of a composed commit's message after which the parts are listed, with the version of their format.
const HEADING: &str = "treeswap-sources 1";

/// The largest composed commit in bytes. Ours are never larger, because the file that lists the sources, with all its
/// patterns, is smaller.
const MESSAGE_MAX: usize = 4 << 20;

/// One source's part of a composed tree, as recorded in the commit's message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The name of the source.
    pub name: String,
    /// The URL of its repository, without userinfo.
    pub repo: String,
    /// The ref that is followed.
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// The commit.
    pub revision: Revision,
    /// The directory or file of the repository that is placed; empty for the whole tree.
    pub path: String,
    /// The path at which it is placed; empty for the top.
    pub to: String,
    /// Sparse patterns, one line each, relative to `path`; empty selects everything.
    pub sparse: Vec<String>,
    /// The directory name of the mirror that holds the commit.
    pub mirror: String,
}

/// Creates composed revisions, in a repository of its own.
#[derive(Debug)]
pub struct Composer {
    shared: Arc<Shared>,
    /// Its lock keeps other processes from removing objects that were just written.
    layout: Mutex<Layout>,
    limits: Limits,
    /// The last tree that passed the check of base names, and the globs that it was checked with.
    checked: Mutex<Option<(ObjectId, UniqueBaseNames)>>,
    /// The turns of the sources' mirrors to index packs.
    turns: Arc<Turns>,
}

impl Composer {
    /// Opens or creates the repository for composed revisions in `dir`. Blocking. Takes an advisory lock: opening the
    /// same directory twice fails.
    pub fn open(dir: &Path, durable: bool, limits: Limits) -> Result<Self, Error> {
        Settings { verify: false, durable, max_objects: None }.apply()?;
        let layout = Layout::open(dir, RepoKind::Bare, durable, None)?;
        layout.sync_skeleton()?; // it never gets a tip, the first of which would make it durable
        let dir = layout.dir().to_owned();
        let shared = Arc::new(Shared::new(dir, Submodules::Off, durable, false).composed());
        let layout = Mutex::new(layout);
        Ok(Self { shared, layout, limits, turns: Arc::default(), checked: Mutex::default() })
    }

    /// Recreates the repository if it was deleted while it was open: it is a cache, and deleting it is allowed.
    fn recreate_if_removed(&self) -> Result<(), Error> {
        let mut layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(recreated) = layout.recreate_if_removed()? {
            recreated.sync_skeleton()?;
            tracing::warn!("{} was removed, and is created again", self.dir().display());
            *layout = recreated;
        }
        Ok(())
    }

    /// Opens the mirror of a source. Blocking, without network.
    pub fn mirror(&self, options: Options) -> Result<Mirror, Error> {
        Mirror::open_source(options, &self.shared, Arc::clone(&self.turns))
    }

    /// Sets the directories of the mirrors whose objects are read from now on.
    pub fn read_from(&self, mirrors: &[PathBuf]) {
        self.shared.set_mirrors(mirrors);
    }

    /// Returns a handle for reading the objects of all mirrors, for blocking threads.
    pub fn objects(&self) -> Objects {
        Objects { shared: Arc::clone(&self.shared), cancel: CancellationToken::new() }
    }

    /// Returns true if an object could not be read since the last call: a mirror may have lost it.
    pub fn take_damage(&self) -> bool {
        self.shared.take_damage()
    }

    /// Composes a revision of these parts, whose commits must be in the mirrors. Blocking. Fails with
    /// [`Error::OfSource`] if something is wrong with a single part, and with [`Error::Collision`], [`Error::Trespass`]
    /// or [`Error::SameBaseName`] if two parts conflict.
    pub fn compose(
        &self,
        parts: &[Part],
        unique: &UniqueBaseNames,
        cancel: &CancellationToken,
    ) -> Result<Revision, Error> {
        self.recreate_if_removed()?;
        let lease = self.shared.lease();
        let store = self.shared.all()?;
        let composed = self.try_to_compose(&store, parts, unique, cancel);
        composed.inspect_err(|error| self.shared.note_if_damage_of(&lease, error))
    }

    fn try_to_compose(
        &self,
        store: &Store,
        parts: &[Part],
        unique: &UniqueBaseNames,
        cancel: &CancellationToken,
    ) -> Result<Revision, Error> {
        let reader = store.reader().map_err(|source| Error::git("open the mirrors' objects", source))?;
        // Opened without the mirrors, so that every object is written here even if a mirror has it: the mirror may
        // remove it at any time.
        let own = self.shared.store()?;
        let own = own.reader().map_err(|source| Error::git("open the composed objects", source))?;
        let mut overlay = Overlay::new(&reader, &own, self.dir(), parts, &self.limits, cancel);
        let tree = overlay.tree()?;
        let commit = commit(&reader, tree, parts)?;
        let id = own.write(ObjectType::Commit, &commit);
        let id = id.map_err(|source| Error::unwritten("write a commit in", &self.shared.dir, source))?;
        let revision = Revision(id);
        if !unique.globs().is_empty() && !self.is_checked(tree, unique) {
            unique.check(&mut overlay, revision, tree)?;
            *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = Some((tree, unique.clone()));
        }
        Ok(revision)
    }

    /// Returns true if the tree was the last one that passed the check with these globs.
    fn is_checked(&self, tree: ObjectId, unique: &UniqueBaseNames) -> bool {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.as_ref().is_some_and(|(of, by)| *of == tree && by == unique)
    }

    /// Removes objects that none of the `kept` revisions needs. Blocking. Does nothing while there are readers, or if
    /// the repository was deleted: [`Self::compose`] recreates it.
    pub fn collect_garbage(&self, kept: &[Revision]) -> Result<(), Error> {
        if !self.dir().is_dir() {
            return Ok(());
        }
        let Some(_exclusive) = self.shared.exclusive() else { return Ok(()) };
        let store = self.shared.store()?; // without the mirrors: only objects in this repository count
        let needed = needed(&store, kept)?;
        let objects = self.shared.dir.join("objects");
        for (id, path) in loose::list(&objects)? {
            if !needed.contains(&id) {
                ignore_absent(fs::remove_file(&path)).map_err(local("remove", &path))?;
            }
        }
        // Temporary files that a killed process left. Nothing is being written now: a writer holds a lease.
        remove_matching(&objects, |name| name.starts_with("tmp_"))?;
        remove_matching(&self.shared.dir, |name| name.ends_with(".lock"))
    }

    /// Removes the directories of mirrors that no kept revision is composed of, and those that an earlier call could
    /// not remove. Blocking. Below readers they stay: what is read may be a revision that is not kept any more.
    pub fn remove_mirrors(&self, gone: &[PathBuf]) -> Result<(), Error> {
        let log_removed = |mirror: &Path| {
            tracing::info!(mirror = %mirror.display(), "removed the mirror of a source that was removed");
        };
        files::remove_mirrors(gone, self.dir(), || self.shared.exclusive(), log_removed)
    }

    /// The repository's directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }
}

impl Objects {
    /// The paths at which the parts of a composed revision are placed.
    pub fn places(&self, revision: Revision) -> Parts {
        Parts::new(self.parts(revision).into_iter().map(|part| part.to.into_bytes()))
    }

    /// The parts of a composed revision; empty for an ordinary commit, or one that is not in the repository.
    pub fn parts(&self, revision: Revision) -> Vec<Part> {
        let _lease = self.shared.lease();
        let Ok(store) = self.shared.store() else { return Vec::new() };
        let Ok(reader) = store.reader() else { return Vec::new() };
        read_parts(&reader, &self.shared, &revision.0)
    }
}

/// The paths at which the parts of a composed revision are placed.
pub(super) fn places(reader: &ObjectReader<'_>, shared: &Shared, revision: Revision) -> Parts {
    Parts::new(read_parts(reader, shared, &revision.0).into_iter().map(|part| part.to.into_bytes()))
}

/// Parses the parts of a composed revision; empty for any other commit.
pub(super) fn read_parts(reader: &ObjectReader<'_>, shared: &Shared, id: &ObjectId) -> Vec<Part> {
    if !shared.composed {
        return Vec::new(); // an ordinary commit; its author may write anything into the message
    }
    let Ok(object) = reader.structure(id, ObjectType::Commit, MESSAGE_MAX) else { return Vec::new() };
    let text = String::from_utf8_lossy(object.data());
    let Some((head, message)) = text.split_once("\n\n") else { return Vec::new() };
    // The sources' commits can be read here, too, and their authors may imitate our message. The author line tells them
    // apart.
    if !head.contains(&format!("\nauthor {AUTHOR} ")) {
        return Vec::new();
    }
    let listed = message.split_once(&format!("\n\n{HEADING}\n")).map_or("", |(_, listed)| listed);
    listed.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

/// The author and committer of composed commits.
const AUTHOR: &str = "treeswap <>";

/// The raw content of a composed commit. Its date is that of the newest part, so that the same set yields the same
/// commit.
fn commit(reader: &ObjectReader<'_>, tree: ObjectId, parts: &[Part]) -> Result<Vec<u8>, Error> {
    let date = |part: &Part| -> Result<i64, Error> {
        let read = reader.structure(&part.revision.0, ObjectType::Commit, super::odb::COMMIT_MAX);
        let object = read.map_err(|error| Error::damaged(part.revision, error))?;
        let text = String::from_utf8_lossy(object.data());
        let line =
            text.lines().take_while(|line| !line.is_empty()).find(|line| line.starts_with("committer "));
        let date = line.and_then(|line| line.rsplit_once("> ")?.1.split(' ').next()?.parse().ok());
        Ok(date.unwrap_or(0).clamp(0, i64::from(u32::MAX)))
    };
    let dates = parts.iter().map(date).collect::<Result<Vec<_>, _>>()?;
    let date = dates.into_iter().max().unwrap_or(0);
    let named: Vec<_> = parts.iter().map(|part| format!("{} {}", part.name, part.revision.short())).collect();
    let mut text = format!("tree {tree}\nauthor {AUTHOR} {date} +0000\ncommitter {AUTHOR} {date} +0000\n\n");
    text += &format!("{}\n\n{HEADING}\n", named.join(", "));
    for part in parts {
        #[expect(clippy::expect_used, reason = "strings, lists of strings and an id: no map with other keys")]
        let line = serde_json::to_string(part).expect("a part is plain data");
        text += &line;
        text.push('\n');
    }
    debug_assert!(text.len() <= MESSAGE_MAX, "the file that lists the parts is shorter");
    Ok(text.into_bytes())
}

/// The objects of this repository that the `kept` revisions need. Objects that a tree names and that are absent here
/// are in a source's mirror.
fn needed(store: &Store, kept: &[Revision]) -> Result<HashSet<ObjectId>, Error> {
    let reader = store.reader().map_err(|source| Error::git("open the composed objects", source))?;
    let mut needed = HashSet::new();
    let mut trees = Vec::new();
    for revision in kept {
        match reader.commit(&revision.0) {
            Ok(commit) => {
                needed.insert(revision.0);
                trees.push((*revision, commit.tree));
            }
            Err(ObjectError::Missing { .. }) => {} // it was lost, or is that of a single repository
            // What cannot be read now may need any object.
            Err(error) => return Err(Error::damaged(*revision, error)),
        }
    }
    while let Some((revision, id)) = trees.pop() {
        let tree = match reader.tree(&id) {
            Ok(tree) => tree,
            Err(ObjectError::Missing { .. }) => continue,
            Err(error) => return Err(Error::damaged(revision, error)),
        };
        let read: Result<_, ObjectError> = lines(&id, tree.data());
        if needed.insert(id)
            && let Ok(lines) = read
        {
            let below = lines.filter(|line| line.is_dir() && !needed.contains(&line.id)).map(|line| line.id);
            let below: HashSet<_> = below.collect();
            trees.extend(below.into_iter().map(|id| (revision, id)));
        }
    }
    Ok(needed)
}
