//! Revisions that are composed of several repositories' trees (`--sources`).
//!
//! A set of sources becomes a commit of our own, in a repository of our own: its trees name the sources' trees where
//! they are placed, and its message says which source is at which commit. So everything that holds for a revision
//! (payloads, deltas, generations, what is held for them) holds for a set, and what did not change is shared. The
//! sources' objects stay in their mirrors, and are read together with ours.
//!
//! The same set is always the same commit. What a crash leaves are loose objects that nothing names, which the next
//! garbage collection removes; the repository is a cache, and can be made anew from the mirrors.
//!
//! Files: `overlay` puts trees over each other; `base_names` looks for files that must not share one; here they are
//! written, found again and collected.

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

use super::error::{Error, Libgit2};
use super::files::{ignore_absent, local, remove_matching};
use super::lack::Lack;
use super::layout::Layout;
use super::odb::{ObjectReader, Settings, Store};
use super::repo_kind::RepoKind;
use super::shared::Shared;
use super::tree::lines;
use super::turns::Turns;
use super::{Mirror, Objects, Options, Submodules};
use crate::payload::{Limits, Parts};
use crate::revision::{ObjectId, Revision};

pub use base_names::UniqueBaseNames;
use overlay::Overlay;

/// Begins the message of a composed commit, before the version of what follows.
const HEADING: &str = "treeswap-sources 1";

/// A longer message is none of ours: the file that lists the sources is shorter, with all its patterns.
const MESSAGE_MAX: usize = 4 << 20;

/// One source's part of a composed tree, as the commit's message has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// What the source is called.
    pub name: String,
    /// Its repository, without userinfo.
    pub repo: String,
    /// What is followed there.
    #[serde(rename = "ref")]
    pub asked: String,
    /// The commit.
    pub revision: Revision,
    /// The directory or file of the repository that is placed; empty for all of it.
    pub path: String,
    /// Where it is placed; empty for the top.
    pub to: String,
    /// git's sparse patterns, a line each, from `path` on; none: everything.
    pub sparse: Vec<String>,
    /// The mirror that holds the commit, by the name of its directory.
    pub mirror: String,
}

/// Makes composed revisions.
#[derive(Debug)]
pub struct Composer {
    shared: Arc<Shared>,
    /// No other process removes what we have just written.
    _lock: Layout,
    limits: Limits,
    /// The tree that was found right last, and by which globs.
    right: Mutex<Option<(ObjectId, UniqueBaseNames)>>,
    turns: Arc<Turns>,
}

impl Composer {
    /// Opens or makes the repository for composed revisions in `dir`. Blocking. Like a mirror it has a lock of its own:
    /// a second one on the same directory is refused.
    pub fn open(dir: &Path, durable: bool, limits: Limits) -> Result<Self, Error> {
        Settings { verify: false, durable, max_objects: None }.apply()?;
        let layout = Layout::open(dir, RepoKind::Bare, durable)?;
        let dir = layout.dir().to_owned();
        let shared = Arc::new(Shared::new(dir, Submodules::Off, durable, false).composed());
        Ok(Self { shared, _lock: layout, limits, turns: Arc::new(Turns::new()), right: Mutex::default() })
    }

    /// Opens the mirror of a source, whose objects are then read together with ours. Blocking; no network.
    pub fn mirror(&self, options: Options) -> Result<Mirror, Error> {
        Mirror::open_beside(options, &self.shared, Arc::clone(&self.turns))
    }

    /// From now on, these mirrors' objects are read.
    pub fn read_from(&self, mirrors: &[PathBuf]) {
        self.shared.compose_of(mirrors);
    }

    /// A handle to the objects, of all mirrors, for blocking threads.
    pub fn objects(&self) -> Objects {
        Objects { shared: Arc::clone(&self.shared), cancel: CancellationToken::new() }
    }

    /// Whether something could not be read since the last call: a mirror may have lost it.
    pub fn take_damage(&self) -> bool {
        self.shared.take_damage()
    }

    /// The revision that is composed of these parts, whose commits the mirrors hold. Blocking.
    ///
    /// # Errors
    /// [`Error::OfSource`] for what is wrong with one part alone; [`Error::Collision`], [`Error::Trespass`] and
    /// [`Error::SameBaseName`] for two that cannot lie beside each other.
    pub fn compose(
        &self,
        parts: &[Part],
        unique: &UniqueBaseNames,
        cancel: &CancellationToken,
    ) -> Result<Revision, Error> {
        let _lease = self.shared.lease();
        let composed = self.try_to_compose(parts, unique, cancel);
        if composed.as_ref().is_err_and(Error::is_damage) {
            self.shared.note_damage();
        }
        composed
    }

    fn try_to_compose(
        &self,
        parts: &[Part],
        unique: &UniqueBaseNames,
        cancel: &CancellationToken,
    ) -> Result<Revision, Error> {
        let store = self.shared.all()?;
        let reader = store.reader().map_err(failed("open the mirrors' objects"))?;
        // Without the mirrors: an object is written although one of them has it, for how long is not ours to say.
        let own = self.shared.store()?;
        let own = own.reader().map_err(failed("open the composed objects"))?;
        let mut overlay = Overlay::new((&reader, &own, self.dir()), parts, &self.limits, cancel);
        let tree = overlay.tree()?;
        let commit = commit(&reader, tree, parts)?;
        let id = own.write(ObjectType::Commit, &commit);
        let id = id.map_err(|source| Error::unwritten("write a commit in", &self.shared.dir, source))?;
        let revision = Revision(id);
        if !unique.globs().is_empty() && !self.is_right(tree, unique) {
            unique.check(&mut overlay, (revision, tree))?;
            *self.right.lock().unwrap_or_else(PoisonError::into_inner) = Some((tree, unique.clone()));
        }
        Ok(revision)
    }

    /// Whether a tree was looked through before.
    fn is_right(&self, tree: ObjectId, unique: &UniqueBaseNames) -> bool {
        let right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        right.as_ref().is_some_and(|(of, by)| *of == tree && by == unique)
    }

    /// Removes what none of these revisions needs. Blocking. While there are readers, nothing is removed.
    pub fn collect_garbage(&self, held: &[Revision]) -> Result<(), Error> {
        let Some(_door) = self.shared.alone() else { return Ok(()) };
        let store = self.shared.store()?; // without the mirrors': only what lies here
        let needed = needed(&store, held)?;
        let objects = self.shared.dir.join("objects");
        for (id, path) in loose(&objects)? {
            if !needed.contains(&id) {
                ignore_absent(fs::remove_file(&path)).map_err(local("remove", &path))?;
            }
        }
        // What a kill left half written. Nobody writes now: a lease would be held.
        remove_matching(&objects, |name| name.starts_with("tmp_"))?;
        remove_matching(&self.shared.dir, |name| name.ends_with(".lock"))
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Bytes of everything below a directory.
    pub fn disk_bytes(dir: &Path) -> u64 {
        super::files::disk_bytes(dir)
    }
}

impl Objects {
    /// Where the parts of a composed revision are placed.
    pub fn places(&self, revision: Revision) -> Parts {
        Parts::new(self.parts(revision).into_iter().map(|part| part.to.into_bytes()))
    }

    /// The parts that a composed revision consists of; none for a repository's own commit, or one that is not here.
    pub fn parts(&self, revision: Revision) -> Vec<Part> {
        let _lease = self.shared.lease();
        let Ok(store) = self.shared.store() else { return Vec::new() };
        let Ok(reader) = store.reader() else { return Vec::new() };
        read_parts(&reader, &self.shared, &revision.0)
    }
}

/// Whose a path of a composed tree is.
pub(super) fn places(reader: &ObjectReader<'_>, shared: &Shared, revision: Revision) -> Parts {
    Parts::new(read_parts(reader, shared, &revision.0).into_iter().map(|part| part.to.into_bytes()))
}

/// The parts of a composed revision; none of any other.
pub(super) fn read_parts(reader: &ObjectReader<'_>, shared: &Shared, id: &ObjectId) -> Vec<Part> {
    if !shared.composed {
        return Vec::new(); // a commit of anybody's, whose message means nothing here
    }
    let Ok(object) = reader.structure(id, ObjectType::Commit, MESSAGE_MAX) else { return Vec::new() };
    let text = String::from_utf8_lossy(object.data());
    let Some((head, message)) = text.split_once("\n\n") else { return Vec::new() };
    // Commits of the sources are among these objects, too, and their authors may write what we write.
    if !head.contains(&format!("\nauthor {AUTHOR} ")) {
        return Vec::new();
    }
    let listed = message.split_once(&format!("\n\n{HEADING}\n")).map_or("", |(_, listed)| listed);
    listed.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

const AUTHOR: &str = "treeswap <>";

/// The commit's raw content: its date is that of the newest part, so that the same set is the same commit.
fn commit(reader: &ObjectReader<'_>, tree: ObjectId, parts: &[Part]) -> Result<Vec<u8>, Error> {
    let date = |part: &Part| -> Result<i64, Error> {
        let read = reader.structure(&part.revision.0, ObjectType::Commit, super::odb::COMMIT_MAX);
        let object = read.map_err(|lack| Error::damaged(part.revision, lack))?;
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

/// Our objects that these revisions need. What a tree names and is not here is a source's.
fn needed(store: &Store, held: &[Revision]) -> Result<HashSet<ObjectId>, Error> {
    let reader = store.reader().map_err(failed("open the composed objects"))?;
    let mut needed = HashSet::new();
    let mut trees = Vec::new();
    for revision in held {
        let Ok(commit) = reader.commit(&revision.0) else { continue };
        needed.insert(revision.0);
        trees.push(commit.tree);
    }
    while let Some(id) = trees.pop() {
        let Ok(tree) = reader.tree(&id) else { continue };
        let read: Result<_, Lack> = lines(&id, tree.data());
        if needed.insert(id)
            && let Ok(lines) = read
        {
            let below = lines.filter(|line| line.is_dir() && !needed.contains(&line.id)).map(|line| line.id);
            trees.extend(below.collect::<HashSet<_>>());
        }
    }
    Ok(needed)
}

/// The loose objects in an object directory.
fn loose(objects: &Path) -> Result<Vec<(ObjectId, PathBuf)>, Error> {
    let mut found = Vec::new();
    for first in super::files::names(objects)?.into_iter().filter(|name| name.len() == 2) {
        let dir = objects.join(&first);
        for rest in super::files::names(&dir)? {
            if let Some(id) = ObjectId::from_hex(&format!("{first}{rest}")) {
                found.push((id, dir.join(rest)));
            }
        }
    }
    Ok(found)
}

fn failed(act: &'static str) -> impl Fn(git2::Error) -> Error {
    move |source| Error::Git { act: act.into(), source: Libgit2(source) }
}
