//! Test helpers: trees and blobs in memory, payloads and deltas built from them by the real builders, and directories
//! read back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::{
    BlobError, BlobReader, BlobSource, Builder, Delta, DeltaBuilder, DirIndex, Kind, Payload, Refusal, Rules,
    split,
};
use crate::revision::{ObjectId, Revision};

/// A tree: kind and content by path. A link's content is its target; a submodule's is empty.
pub(crate) type Tree = BTreeMap<Vec<u8>, (Kind, Vec<u8>)>;

/// Makes a tree from text. Directories follow from the paths.
pub(crate) fn tree(entries: &[(&str, Kind, &str)]) -> Tree {
    entries
        .iter()
        .map(|(path, kind, text)| (path.as_bytes().to_vec(), (*kind, text.as_bytes().to_vec())))
        .collect()
}

/// The object id of a blob with these bytes.
pub(crate) fn id_of(bytes: &[u8]) -> ObjectId {
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &blob);
    ObjectId(digest.as_ref().try_into().unwrap())
}

/// A made-up object id for a whole tree.
pub(crate) fn tree_id(tree: &Tree) -> ObjectId {
    id_of(format!("{tree:?}").as_bytes())
}

/// Blobs in memory.
#[derive(Default, Debug)]
pub(crate) struct Blobs(pub(crate) HashMap<ObjectId, Vec<u8>>);

impl Blobs {
    /// All blobs of some trees.
    pub(crate) fn of(trees: &[&Tree]) -> Self {
        let contents = trees.iter().flat_map(|tree| tree.values());
        Self(contents.map(|(_, content)| (id_of(content), content.clone())).collect())
    }
}

impl BlobSource for Blobs {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        Ok(Box::new(Reader(self)))
    }
}

struct Reader<'b>(&'b Blobs);

impl BlobReader for Reader<'_> {
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError> {
        let absent = || BlobError::Unreadable { id: *id, source: "no such blob".into() };
        self.0.0.get(id).map(|bytes| bytes.len() as u64).ok_or_else(absent)
    }

    fn read(
        &mut self,
        id: &ObjectId,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), BlobError> {
        match self.0.0.get(id) {
            Some(bytes) => Ok(sink(bytes)?),
            None => Err(BlobError::Unreadable { id: *id, source: "no such blob".into() }),
        }
    }
}

/// All directories of a tree except the top, parents before children.
fn dirs_of(tree: &Tree) -> BTreeSet<Vec<u8>> {
    let slashes = |path: &[u8]| {
        path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at).collect::<Vec<_>>()
    };
    tree.keys()
        .flat_map(|path| slashes(path).into_iter().map(|at| path[..at].to_vec()).collect::<Vec<_>>())
        .collect()
}

/// The payload of a tree.
pub(crate) fn payload(tree: &Tree, rules: Rules) -> Result<Payload, Refusal> {
    let mut builder = Builder::new(Revision(tree_id(tree)), tree_id(tree), rules);
    let mut indices = HashMap::from([(Vec::new(), DirIndex::TOP)]);
    for dir in dirs_of(tree) {
        let (parent, name) = split(&dir);
        let index = builder.dir(indices[parent], name)?;
        indices.insert(dir, index);
    }
    for (path, (kind, content)) in tree {
        let (parent, name) = split(path);
        let dir = indices[parent];
        let id = id_of(content);
        match kind {
            Kind::File => builder.file(dir, name, false, id, content.len() as u64)?,
            Kind::Executable => builder.file(dir, name, true, id, content.len() as u64)?,
            Kind::Symlink => builder.symlink(dir, name, id, content)?,
            Kind::Submodule => builder.submodule(dir, name, id)?,
        }
    }
    builder.finish()
}

/// The delta from one tree to another.
pub(crate) fn delta(from: &Tree, to: &Tree, rules: Rules) -> Result<Delta, Refusal> {
    let base = payload(from, rules)?;
    let mut delta =
        DeltaBuilder::new(base.tree, base.count(), base.bytes, Revision(tree_id(to)), tree_id(to), rules);
    let old_dirs = dirs_of(from);
    let new_dirs = dirs_of(to);
    for (path, (kind, content)) in from.iter().filter(|(path, entry)| to.get(*path) != Some(entry)) {
        let (dir, name) = split(path);
        delta.remove(dir, name, if *kind == Kind::Submodule { 0 } else { content.len() as u64 });
    }
    old_dirs.difference(&new_dirs).for_each(|dir| delta.remove_dir(dir));
    for dir in new_dirs.difference(&old_dirs) {
        let (parent, name) = split(dir);
        delta.dir(parent, name)?;
    }
    for (path, (kind, content)) in to.iter().filter(|(path, entry)| from.get(*path) != Some(entry)) {
        let (dir, name) = split(path);
        let id = id_of(content);
        match kind {
            Kind::File => delta.file(dir, name, false, id, content.len() as u64)?,
            Kind::Executable => delta.file(dir, name, true, id, content.len() as u64)?,
            Kind::Symlink => delta.symlink(dir, name, id, content)?,
            Kind::Submodule => delta.submodule(dir, name, id)?,
        }
    }
    Ok(delta.finish()?.expect("a small delta"))
}

/// Everything below a directory: by path the type with its mode, and the content or link target.
pub(crate) fn read_back(dir: &Path) -> BTreeMap<Vec<u8>, (String, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(next) = todo.pop() {
        for entry in fs_err::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs_err::symlink_metadata(&path).unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            let shown = if meta.is_symlink() {
                ("link".to_owned(), fs_err::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if meta.is_dir() {
                todo.push(path.clone());
                (format!("dir {mode:o}"), Vec::new())
            } else {
                (format!("file {mode:o}"), fs_err::read(&path).unwrap())
            };
            found.insert(path.strip_prefix(dir).unwrap().as_os_str().as_bytes().to_vec(), shown);
        }
    }
    found
}

/// What [`read_back`] must return after a tree was written.
pub(crate) fn expected(tree: &Tree) -> BTreeMap<Vec<u8>, (String, Vec<u8>)> {
    let entries = tree.iter().map(|(path, (kind, content))| {
        let shown = match kind {
            Kind::File => ("file 644".to_owned(), content.clone()),
            Kind::Executable => ("file 755".to_owned(), content.clone()),
            Kind::Symlink => ("link".to_owned(), content.clone()),
            Kind::Submodule => ("dir 755".to_owned(), Vec::new()),
        };
        (path.clone(), shown)
    });
    entries.chain(dirs_of(tree).into_iter().map(|dir| (dir, ("dir 755".to_owned(), Vec::new())))).collect()
}

/// Random trees with few names, so that paths often change between file, directory and link.
pub(crate) fn trees() -> impl Strategy<Value = Tree> {
    let name = prop::sample::select(vec!["a", "b", "c", "..d", "\u{e9}", "with space"]);
    let path = prop::collection::vec(name, 1..4).prop_map(|parts| parts.join("/").into_bytes());
    let kind = prop::sample::select(vec![Kind::File, Kind::Executable, Kind::Symlink, Kind::Submodule]);
    let content = prop::sample::select(vec!["x", "yy", "../a", "zzz\n", "/abs", "b/c"]);
    prop::collection::vec((path, kind, content), 0..24).prop_map(|entries| {
        let mut tree = Tree::new();
        for (path, kind, content) in entries {
            let below = [&path[..], b"/"].concat();
            let above = |other: &[u8]| path.starts_with(&[other, b"/"].concat());
            if !tree.keys().any(|other| other.starts_with(&below) || above(other)) {
                let content = if kind == Kind::Submodule { Vec::new() } else { content.as_bytes().to_vec() };
                tree.insert(path, (kind, content));
            }
        }
        tree
    })
}
