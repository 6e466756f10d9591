//! Garbage collection: finds the needed objects, and repacks those in packs that are not worth keeping.
//!
//! An object is needed if it is reachable from the kept revisions; from any ref; from `HEAD`, the refs, the reflogs or
//! the index of any worktree, ours or not (staged objects are in no commit yet); or from a reflog of the repository.
//! The reflogs of `HEAD` and of the branch `git-sync`, which git-sync fills and expires, do not count: their lines that
//! name garbage are dropped. All objects of a pack that another git is reusing are needed, too ([`is_reused`]).
//! History ends at the commits in the `shallow` file. An object that is named but missing is ignored, which loses
//! nothing. If anything cannot be read, the task fails and names it, and everything is kept.
//!
//! An object is represented by its position in the sorted list of all ids, which takes 21 bytes for each.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use git2::{ErrorClass, ErrorCode, ObjectType};

use super::{Job, Report};
use crate::mirror::files::{local, names, paths, replace};
use crate::mirror::gc_plan::{PackUsage, RepackPlan, plan_repack};
use crate::mirror::object_error::ObjectError;
use crate::mirror::odb::{ObjectReader, Store, oid};
use crate::mirror::repo_kind::BRANCH;
use crate::mirror::{Error, git_index, loose, pack_index, tree};
use crate::revision::ObjectId;

/// Loose objects younger than this may belong to a commit that is being created, and are kept.
const YOUNG: Duration = Duration::from_secs(3600);

/// Returns true if a commit may currently be created from objects in this pack. When git is to write an object that a
/// pack already has, it only updates the pack's mtime, so that garbage collection keeps it (`freshen_packed_object` in
/// its object-file.c). The index of a pack is written last, so a pack that is newer than its index was updated that
/// way. It is kept for as long as a loose object would be.
pub(in crate::mirror) fn is_reused(git: &Path, name: &str) -> bool {
    let written = |suffix: &str| {
        let path = git.join("objects/pack").join(format!("{name}.{suffix}"));
        fs_err::metadata(path).and_then(|metadata| metadata.modified())
    };
    let (Ok(pack), Ok(index)) = (written("pack"), written("idx")) else { return false };
    pack > index && SystemTime::now().duration_since(pack).is_ok_and(|age| age <= YOUNG)
}

/// The parameters of a garbage collection.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(in crate::mirror) struct Needs {
    /// Revisions to keep, even if no ref names them. The child reads them from standard input.
    #[serde(skip)]
    pub(in crate::mirror) kept_revisions: Vec<ObjectId>,
    /// Rewrite everything into one pack.
    pub(in crate::mirror) one_pack: bool,
    /// The number of packs above which small packs are rewritten.
    pub(in crate::mirror) max_packs: u32,
    /// Do not write packs, because the volume is full.
    pub(in crate::mirror) no_room: bool,
}

/// Collects garbage. Old loose objects are removed here. Packs are only reported: the parent removes them when there
/// are no readers.
pub(super) fn repack(job: &Job, needs: &Needs) -> Result<Report, Error> {
    let git = &job.dir;
    let mut packs = Vec::new();
    for name in pack_names(git)? {
        let path = git.join("objects/pack").join(format!("{name}.idx"));
        let entries = pack_index::entries(&path).map_err(local("read", &path))?;
        packs.push((name, entries));
    }
    let loose_objects = loose::list(&git.join("objects"))?;
    let ids = packs.iter().flat_map(|(_, entries)| entries.iter().map(|entry| entry.id));
    let mut all = Objects::new(ids.chain(loose_objects.iter().map(|(id, _)| *id)).collect());
    let store = Store::open(git).map_err(|source| open_failed(git, source))?;
    let reader = store.reader().map_err(|source| open_failed(git, source))?;
    for id in &needs.kept_revisions {
        reader.commit(id).map_err(|error| Error::damaged(crate::revision::Revision(*id), error))?;
    }
    let ends: HashSet<ObjectId> = ids_in(&git.join("shallow"))?.into_iter().collect();
    all.mark_all(&reader, needs.kept_revisions.iter().copied().chain(roots(git)?), &ends)?;
    for (_, entries) in packs.iter().filter(|(name, _)| is_reused(git, name)) {
        all.mark_all(&reader, entries.iter().map(|entry| entry.id), &ends)?;
    }

    let usage: Vec<_> = packs.iter().map(|(name, entries)| pack_usage(git, name, entries, &all)).collect();
    let RepackPlan { gone, rewrite } = if needs.no_room {
        RepackPlan { gone: removable_packs(&packs, &usage, &all), rewrite: Vec::new() }
    } else {
        plan_repack(&usage, needs.one_pack, needs.max_packs)
    };
    let mut kept = vec![false; all.ids.len()];
    let kept_packs = packs.iter().filter(|(name, _)| !gone.contains(name) && !rewrite.contains(name));
    for at in kept_packs.flat_map(|(_, entries)| entries).filter_map(|entry| all.position(&entry.id)) {
        kept[at] = true;
    }
    let wanted: Vec<ObjectId> = packs
        .iter()
        .filter(|(name, _)| rewrite.contains(name))
        .flat_map(|(_, entries)| entries.iter().map(|entry| entry.id))
        .filter(|id| all.position(id).is_some_and(|at| all.needed[at] && !kept[at]))
        .collect();
    drop((packs, kept));
    let pack = write_pack(git, &store, &wanted, &rewrite)?;
    expire_reflogs(git, &all, job.durable)?;
    for (_, path) in loose_objects.iter().filter(|(id, _)| !all.is_needed(id)) {
        remove_if_old(path);
    }
    let gone = gone.into_iter().chain(rewrite).filter(|name| Some(name) != pack.as_ref()).collect();
    Ok(Report::Collected { pack, gone })
}

/// Copies the objects of some packs into a new one. Nothing is removed here.
pub(super) fn merge(git: &Path, names: &[String]) -> Result<Report, Error> {
    let mut ids = Vec::new();
    for name in names {
        let path = git.join("objects/pack").join(format!("{name}.idx"));
        ids.extend(pack_index::ids(&path).map_err(local("read", &path))?);
    }
    let store = Store::open(git).map_err(|source| open_failed(git, source))?;
    let pack = write_pack(git, &store, &ids, names)?;
    let gone = names.iter().filter(|name| Some(*name) != pack.as_ref()).cloned().collect();
    Ok(Report::Collected { pack, gone })
}

fn open_failed(git: &Path, source: git2::Error) -> Error {
    Error::git(format!("open the objects of {}", git.display()), source)
}

/// All objects of the repository, and which of them are needed.
struct Objects {
    /// Sorted.
    ids: Vec<ObjectId>,
    /// By the position in `ids`.
    needed: Vec<bool>,
}

impl Objects {
    fn new(mut ids: Vec<ObjectId>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        let needed = vec![false; ids.len()];
        Self { ids, needed }
    }

    fn position(&self, id: &ObjectId) -> Option<usize> {
        self.ids.binary_search(id).ok()
    }

    fn is_needed(&self, id: &ObjectId) -> bool {
        self.position(id).is_some_and(|at| self.needed[at])
    }

    /// Marks an object as needed. Returns true if it exists and was not marked before.
    fn mark(&mut self, id: &ObjectId) -> bool {
        self.position(id).is_some_and(|at| !std::mem::replace(&mut self.needed[at], true))
    }

    /// Marks everything that is reachable from `roots`. The parents of commits in `ends` are not followed.
    fn mark_all(
        &mut self,
        reader: &ObjectReader<'_>,
        roots: impl IntoIterator<Item = ObjectId>,
        ends: &HashSet<ObjectId>,
    ) -> Result<(), Error> {
        let failed = |id: &ObjectId, error| Error::damaged(crate::revision::Revision(*id), error);
        for root in roots {
            let mut stack = vec![(root, None)];
            while let Some((id, kind)) = stack.pop() {
                if !self.mark(&id) {
                    continue;
                }
                let kind = match kind {
                    Some(kind) => kind,
                    None => reader.kind(&id).map_err(|error| failed(&id, error))?,
                };
                match kind {
                    ObjectType::Commit => {
                        let commit = reader.commit(&id).map_err(|error| failed(&id, error))?;
                        stack.push((commit.tree, Some(ObjectType::Tree)));
                        if !ends.contains(&id) {
                            stack.extend(commit.parents.iter().map(|id| (*id, Some(ObjectType::Commit))));
                        }
                    }
                    ObjectType::Tag => {
                        stack.push((reader.target(&id).map_err(|error| failed(&id, error))?, None));
                    }
                    ObjectType::Tree => {
                        let object = reader.tree(&id).map_err(|error| failed(&id, error))?;
                        for line in tree::lines(&id, object.data()).map_err(|error| failed(&id, error))? {
                            match line.mode & tree::FORMAT {
                                tree::DIRECTORY => stack.push((line.id, Some(ObjectType::Tree))),
                                tree::SUBMODULE => {}
                                _ => {
                                    self.mark(&line.id);
                                }
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The size of a pack and of its needed objects, and whether it must be kept.
fn pack_usage(git: &Path, name: &str, entries: &[pack_index::Entry], all: &Objects) -> PackUsage {
    let needed = entries.iter().filter(|entry| all.is_needed(&entry.id)).map(|entry| entry.bytes).sum();
    PackUsage {
        name: name.to_owned(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
        needed,
        pinned: git.join("objects/pack").join(format!("{name}.keep")).exists() || is_reused(git, name),
    }
}

/// The packs that contain garbage and can be removed without loss, because each of their needed objects is also in a
/// pack that is kept. Packs with the most garbage are chosen first.
fn removable_packs(
    packs: &[(String, Vec<pack_index::Entry>)],
    usage: &[PackUsage],
    all: &Objects,
) -> Vec<String> {
    let needed = |entries: &[pack_index::Entry]| -> Vec<usize> {
        entries
            .iter()
            .filter(|entry| all.is_needed(&entry.id))
            .filter_map(|entry| all.position(&entry.id))
            .collect()
    };
    let mut copies = vec![0_u32; all.ids.len()];
    packs.iter().flat_map(|(_, entries)| needed(entries)).for_each(|at| copies[at] += 1);
    let garbage = |pack: &PackUsage| pack.bytes - pack.needed;
    let mut candidates: Vec<_> =
        packs.iter().zip(usage).filter(|(_, pack)| !pack.pinned && garbage(pack) > 0).collect();
    candidates.sort_by_key(|(_, pack)| std::cmp::Reverse(garbage(pack)));
    let mut gone = Vec::new();
    for ((name, entries), _) in candidates {
        let positions = needed(entries);
        if positions.iter().all(|at| copies[*at] > 1) {
            positions.iter().for_each(|at| copies[*at] -= 1);
            gone.push(name.clone());
        }
    }
    gone
}

/// Writes objects into a new pack, and verifies that all of them are in it. `from` are the packs they come from.
/// Returns the pack's name, or `None` if there are no objects.
fn write_pack(git: &Path, store: &Store, ids: &[ObjectId], from: &[String]) -> Result<Option<String>, Error> {
    if ids.is_empty() {
        return Ok(None);
    }
    let packs = git.join("objects/pack");
    let failed = |source| Error::git(format!("write a pack in {}", packs.display()), source);
    let reader = store.reader().map_err(failed)?;
    let name = match build(store, &reader, ids, &packs) {
        Ok(name) => name,
        Err(error) if is_of_system(&error) => return Err(failed(error)),
        Err(error) => return Err(unreadable(&reader, ids).unwrap_or_else(|| failed(error))),
    };
    let path = packs.join(format!("{name}.idx"));
    let written = pack_index::ids(&path).map_err(local("read", &path))?; // sorted, as in every index
    if let Some(id) = ids.iter().find(|id| written.binary_search(id).is_err()) {
        let why = io::Error::other(format!("{id} is not in it"));
        return Err(Error::Local { act: "check the new pack", path, source: why });
    }
    // In a partial clone, git takes missing objects that a promisor pack refers to for promised ones.
    if from.iter().any(|name| packs.join(format!("{name}.promisor")).exists()) {
        let marker = packs.join(format!("{name}.promisor"));
        fs_err::write(&marker, "").map_err(local("write", &marker))?;
    }
    Ok(Some(name))
}

/// Writes objects into a new pack, and returns its name. The builder takes memory for each object, so it is gone before
/// anything else is read.
fn build(
    store: &Store,
    reader: &ObjectReader<'_>,
    ids: &[ObjectId],
    packs: &Path,
) -> Result<String, git2::Error> {
    let mut builder = store.builder()?;
    for id in ids {
        reader.check_loose(id)?;
        builder.insert_object(oid(id), None)?;
    }
    builder.write(packs, 0o444)?;
    let name = builder.name()?.unwrap_or_default();
    Ok(format!("pack-{name}"))
}

/// Returns true if the cause of an error is certainly not in an object.
fn is_of_system(error: &git2::Error) -> bool {
    matches!(error.class(), ErrorClass::Os | ErrorClass::Filesystem | ErrorClass::NoMemory)
}

/// The error of the first object that is there and cannot be read.
fn unreadable(reader: &ObjectReader<'_>, ids: &[ObjectId]) -> Option<Error> {
    ids.iter().find_map(|id| {
        let error = reader.read(id).err().filter(|error| error.code() != ErrorCode::NotFound)?;
        let why = error.message().to_owned();
        let source = ObjectError::Unreadable { id: *id, expected: "object".to_owned(), why };
        Some(Error::damaged(crate::revision::Revision(*id), source))
    })
}

/// The names of all packs that have an index, without a suffix.
fn pack_names(git: &Path) -> Result<Vec<String>, Error> {
    let dir = git.join("objects/pack");
    let all: BTreeSet<String> = names(&dir)?.into_iter().collect();
    let stems = all.iter().filter_map(|name| name.strip_suffix(".pack"));
    Ok(stems.filter(|stem| all.contains(&format!("{stem}.idx"))).map(ToOwned::to_owned).collect())
}

/// Removes a loose object's file if it is old enough. On a failure the next garbage collection tries again.
fn remove_if_old(path: &Path) {
    let age = path
        .metadata()
        .and_then(|metadata| metadata.modified())
        .map(|at| SystemTime::now().duration_since(at));
    if age.is_ok_and(|age| age.is_ok_and(|age| age > YOUNG)) {
        let _ = fs_err::remove_file(path);
    }
}

/// The ids in all files that keep objects alive. Whatever of them cannot be listed, examined or read is an error: what
/// it names would be removed.
fn roots(git: &Path) -> Result<Vec<ObjectId>, Error> {
    let mut named = vec![git.join("HEAD"), git.join("packed-refs")];
    named.extend(files(&git.join("refs"))?);
    named.extend(files(&git.join("logs"))?.into_iter().filter(|file| !is_expired(git, file)));
    let mut indexes = vec![git.join("index")];
    for admin in paths(&git.join("worktrees"))? {
        for path in paths(&admin)? {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name == b"index" || name.starts_with(b"sharedindex.") {
                indexes.push(path);
            } else if unless_absent("examine", &path, path.metadata())?.is_some_and(|found| found.is_file()) {
                named.push(path); // HEAD, and ORIG_HEAD, MERGE_HEAD and the like
            }
        }
        named.extend(files(&admin.join("refs"))?);
        named.extend(files(&admin.join("logs"))?);
    }
    let mut found = Vec::new();
    for path in named {
        found.extend(ids_in(&path)?);
    }
    for path in &indexes {
        let Some(index) = unless_absent("read", path, fs_err::File::open(path))? else { continue };
        git_index::each_id(index, |id| found.push(id)).map_err(local("read", path))?;
        found.sort_unstable();
        found.dedup(); // the indexes of worktrees mostly name the same objects
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Returns true for the two reflogs that are expired, as git-sync does.
fn is_expired(git: &Path, log: &Path) -> bool {
    let logs = git.join("logs");
    log == logs.join("HEAD") || log == logs.join(BRANCH)
}

/// Drops reflog lines that name garbage, because git would report the repository as corrupt.
fn expire_reflogs(git: &Path, all: &Objects, durable: bool) -> Result<(), Error> {
    for name in ["HEAD", BRANCH] {
        let path = git.join("logs").join(name);
        let Ok(text) = fs_err::read_to_string(&path) else { continue };
        let null = ObjectId([0; 20]);
        let is_kept = |line: &&str| parse_ids(line).take(2).all(|id| id == null || all.is_needed(&id));
        let kept: String = text.split_inclusive('\n').filter(is_kept).collect();
        replace(&path, kept.as_bytes(), durable)?;
    }
    Ok(())
}

/// Every regular file below a directory. Symbolic links are not followed.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for path in paths(&dir)? {
            match unless_absent("examine", &path, path.symlink_metadata())? {
                Some(metadata) if metadata.is_dir() => dirs.push(path),
                Some(metadata) if metadata.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// All ids in a text file; none if it does not exist.
fn ids_in(path: &Path) -> Result<Vec<ObjectId>, Error> {
    let raw = unless_absent("read", path, fs_err::read(path))?.unwrap_or_default();
    Ok(parse_ids(&String::from_utf8_lossy(&raw)).collect())
}

/// `None` if there is nothing at the path, perhaps because it was removed since it was listed.
fn unless_absent<T>(act: &'static str, path: &Path, done: io::Result<T>) -> Result<Option<T>, Error> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some).map_err(local(act, path)),
    }
}

fn parse_ids(text: &str) -> impl Iterator<Item = ObjectId> {
    text.split(|c: char| c.is_whitespace() || c == '^').filter_map(ObjectId::from_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ObjectId {
        ObjectId([n; 20])
    }

    #[test]
    fn only_packs_whose_needed_objects_are_in_other_packs_are_removable() {
        let mut all = Objects::new((0..8).map(id).collect());
        for n in [0, 1, 2, 3] {
            all.mark(&id(n));
        }
        let pack = |name: &str, ids: &[u8]| {
            let entry = |n: &u8| pack_index::Entry { id: id(*n), bytes: 10 };
            (name.to_owned(), ids.iter().map(entry).collect::<Vec<_>>())
        };
        let removable = |packs: &[(String, Vec<pack_index::Entry>)], pinned: &str| {
            let usage_of = |(name, entries): &(String, Vec<pack_index::Entry>)| PackUsage {
                pinned: name == pinned,
                ..pack_usage(Path::new("/nowhere"), name, entries, &all)
            };
            super::removable_packs(packs, &packs.iter().map(usage_of).collect::<Vec<_>>(), &all)
        };
        let whole = pack("whole", &[0, 1, 2, 3]);
        let thin = pack("thin", &[3, 4, 5]);
        let garbage = pack("garbage", &[6, 7]);
        let alone = pack("alone", &[2, 4, 5, 6]);
        assert_eq!(removable(&[whole.clone(), thin.clone(), garbage.clone()], ""), ["thin", "garbage"]);
        assert_eq!(removable(&[whole.clone(), garbage.clone()], "garbage"), [""; 0]);
        // Both packs contain the same needed object: one of them must be kept.
        assert_eq!(removable(&[alone.clone(), pack("twin", &[2, 7])], ""), ["alone"]);
        assert_eq!(removable(&[alone], ""), [""; 0]);
    }
}
