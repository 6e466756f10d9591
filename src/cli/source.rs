//! Where `render` and `apply` have their tree from: a directory, or a revision of a repository.

use std::error::Error;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::configmap::{Contents, Patterns, Tree};
use crate::mirror::{self, Mirror, Objects, Selection};
use crate::payload::{BlobReader, BlobSource, Kind, Rules, Symlinks};
use crate::revision::{ObjectId, Revision};

/// The files of a directory.
#[derive(Debug)]
pub(super) struct Files(Vec<PathBuf>);

impl Contents for Files {
    fn read(&mut self, file: usize) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        Ok(std::fs::read(&self.0[file])?)
    }
}

/// Lists a directory. What cannot be read ends it: an absent file would look like a deletion.
pub(super) fn walk(directory: &Path, patterns: &Patterns) -> anyhow::Result<(Tree, Files)> {
    let pruned = list(directory, &|path| patterns.reach_below(path))?;
    // A link may lead to where no pattern reaches.
    if pruned.0.has_links() { list(directory, &|_| true) } else { Ok(pruned) }
}

fn list(directory: &Path, enter: &dyn Fn(&[u8]) -> bool) -> anyhow::Result<(Tree, Files)> {
    let (mut tree, mut files) = (Tree::default(), Vec::new());
    let mut pending = vec![Vec::new()];
    while let Some(parent) = pending.pop() {
        for entry in fs_err::read_dir(directory.join(std::ffi::OsStr::from_bytes(&parent)))? {
            let entry = entry?;
            let name = entry.file_name();
            if name == ".git" {
                continue; // git's own, and no commit can hold one: a directory, or the file that a submodule has
            }
            let mut path = parent.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if enter(&path) {
                    pending.push(path);
                }
            } else if kind.is_symlink() {
                tree.link(path, fs_err::read_link(entry.path())?.into_os_string().into_vec());
            } else if kind.is_file() {
                tree.file(path, files.len());
                files.push(entry.path());
            } else {
                tree.other(path);
            }
        }
    }
    Ok((tree, Files(files)))
}

/// Fetches what a ref names.
pub(super) fn fetch(options: mirror::Options) -> anyhow::Result<(Objects, Revision)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let mut mirror = Mirror::open(options)?;
    let revision = runtime.block_on(async {
        let tip = mirror.resolve().await?;
        mirror.fetch(&tip, &[]).await
    })?;
    Ok((mirror.objects(), revision))
}

/// The tree of a revision, and the blobs by the numbers that the tree has for them.
pub(super) fn tree_of(objects: &Objects, revision: Revision) -> anyhow::Result<(Tree, Vec<ObjectId>)> {
    // Nothing is written to a file system: links may lead anywhere, and those that are used are looked at one by one.
    let rules = Rules { symlinks: Symlinks::Keep, ..Rules::default() };
    let payload = objects.payload(revision, &Selection { rules, sparse: None })?;
    let blobs = objects.blobs()?;
    let mut reader = blobs.reader()?;
    let (mut tree, mut ids) = (Tree::default(), Vec::new());
    for entry in &payload.entries {
        let path = payload.path_of(entry);
        match entry.kind {
            Kind::File | Kind::Executable => {
                tree.file(path, ids.len());
                ids.push(entry.id);
            }
            Kind::Symlink => tree.link(path, content(reader.as_mut(), &entry.id)?),
            Kind::Submodule => tree.other(path),
        }
    }
    Ok((tree, ids))
}

fn content(reader: &mut dyn BlobReader, id: &ObjectId) -> Result<Vec<u8>, crate::payload::BlobError> {
    let mut bytes = Vec::new();
    reader.read(id, &mut |part| {
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

/// The blobs of a mirror.
pub(super) struct Blobs<'a> {
    ids: Vec<ObjectId>,
    reader: Box<dyn BlobReader + 'a>,
}

impl<'a> Blobs<'a> {
    pub(super) fn new(ids: Vec<ObjectId>, blobs: &'a dyn BlobSource) -> anyhow::Result<Self> {
        Ok(Self { ids, reader: blobs.reader()? })
    }
}

impl Contents for Blobs<'_> {
    fn read(&mut self, file: usize) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        Ok(content(self.reader.as_mut(), &self.ids[file])?)
    }
}
