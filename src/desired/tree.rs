//! Trees of files that rules read: a directory, or a revision of a mirror.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Error;
use crate::configmap::{self, Contents, Patterns, Value};
use crate::mirror::{Listed, Objects};
use crate::payload::{BlobError, BlobReader, BlobSource};
use crate::revision::{ObjectId, Revision};

/// The most bytes that are read of one file, 64 MiB. A ConfigMap holds 1 MiB at most, compressed or not.
const FILE_MAX: u64 = 64 << 20;

/// A tree, listed, and the contents of its files.
pub type Listing<'t> = (configmap::Tree, Box<dyn Contents + 't>);

/// The files of one revision, wherever they are.
pub trait Tree {
    /// Files and links. Directories are read for which `enter` says so, by their path from the top.
    ///
    /// # Errors
    /// What cannot be read ends it: an absent file would look like a deletion.
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error>;
}

/// Lists what patterns can match, and what links of it may lead to.
pub(super) fn reached<'t>(tree: &'t dyn Tree, patterns: &Patterns) -> Result<Listing<'t>, Error> {
    complete(tree, &|path| patterns.reach_below(path))
}

/// Lists the directories on the way to a path, or everything if one of them has a link: it may lead anywhere.
pub(super) fn on_the_way_to<'t>(tree: &'t dyn Tree, path: &[u8]) -> Result<Listing<'t>, Error> {
    complete(tree, &|directory| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/")))
}

fn complete<'t>(tree: &'t dyn Tree, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'t>, Error> {
    let pruned = tree.list(enter)?;
    // A link may lead to where nothing was read.
    if pruned.0.has_links() { tree.list(&|_| true) } else { Ok(pruned) }
}

/// A file that a rule names is no value of a ConfigMap, whatever is done to it.
#[derive(Debug, thiserror::Error)]
#[error("it has {} bytes, and no more than {FILE_MAX} of a file are read for a ConfigMap", .0)]
struct TooLarge(u64);

/// A directory. `.git` in it is no part of the tree.
#[derive(Debug)]
pub struct Directory<'d>(pub &'d Path);

impl Tree for Directory<'_> {
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error> {
        let mut tree = configmap::Tree::default();
        let mut files = Vec::new();
        let mut pending = vec![Vec::new()];
        while let Some(parent) = pending.pop() {
            for entry in fs_err::read_dir(self.0.join(OsStr::from_bytes(&parent)))? {
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
        Ok((tree, Box::new(Files(files))))
    }
}

struct Files(Vec<PathBuf>);

impl Contents for Files {
    fn read(&mut self, file: usize) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let mut file = std::fs::File::open(&self.0[file])?;
        let mut bytes = Vec::new();
        (&mut file).take(FILE_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(TooLarge(file.metadata()?.len()).into());
        }
        Ok(bytes)
    }
}

/// A revision that a mirror holds.
pub struct Commit<'m> {
    objects: &'m Objects,
    revision: Revision,
    blobs: Box<dyn BlobSource + Send>,
    known: &'m KnownValues,
}

/// Values of plans that are still kept, by the blobs that they were made of: the next plan reads what changed.
#[derive(Debug, Default)]
pub struct KnownValues(Mutex<HashMap<(ObjectId, bool), Weak<Value>>>);

impl KnownValues {
    fn lock(&self) -> MutexGuard<'_, HashMap<(ObjectId, bool), Weak<Value>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'m> Commit<'m> {
    /// The tree of a revision. No pack of the mirror is removed while it lives. What is known is not read again.
    pub fn new(objects: &'m Objects, revision: Revision, known: &'m KnownValues) -> Self {
        known.lock().retain(|_, value| value.strong_count() > 0);
        Self { objects, revision, blobs: objects.blobs(), known }
    }
}

impl Tree for Commit<'_> {
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error> {
        let mut tree = configmap::Tree::of(self.objects.places(self.revision));
        let mut ids = Vec::new();
        for (path, listed) in self.objects.list(self.revision, enter)? {
            match listed {
                Listed::File(id) => {
                    tree.file(path, ids.len());
                    ids.push(id);
                }
                Listed::Link(target) => tree.link(path, target),
                Listed::Other => tree.other(path),
            }
        }
        Ok((tree, Box::new(Blobs { ids, reader: self.blobs.reader()?, known: self.known })))
    }
}

struct Blobs<'b> {
    ids: Vec<ObjectId>,
    reader: Box<dyn BlobReader + 'b>,
    known: &'b KnownValues,
}

impl Contents for Blobs<'_> {
    fn read(&mut self, file: usize) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let id = &self.ids[file];
        let mut bytes = Vec::new();
        let size = self.reader.size(id)?;
        if size > FILE_MAX {
            return Err(TooLarge(size).into());
        }
        let copied: Result<(), BlobError> = self.reader.read(id, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        });
        copied?;
        Ok(bytes)
    }

    fn value(
        &mut self,
        file: usize,
        compress: bool,
    ) -> Result<Arc<Value>, Box<dyn std::error::Error + Send + Sync>> {
        let key = (self.ids[file], compress);
        if let Some(value) = self.known.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(value);
        }
        let value = Arc::new(Value::new(self.read(file)?, compress));
        self.known.lock().insert(key, Arc::downgrade(&value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each blob's content is its id; counts what is read.
    struct Counting(usize);

    impl BlobReader for &mut Counting {
        fn size(&mut self, _: &ObjectId) -> Result<u64, BlobError> {
            Ok(20)
        }

        fn read(
            &mut self,
            id: &ObjectId,
            sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
        ) -> Result<(), BlobError> {
            self.0 += 1;
            sink(&id.0).map_err(BlobError::Sink)
        }
    }

    /// Values of these blobs, and how many were read for them.
    fn values(blobs: &[u8], compress: bool, known: &KnownValues) -> (Vec<Arc<Value>>, usize) {
        let mut counting = Counting(0);
        let ids = blobs.iter().map(|byte| ObjectId([*byte; 20])).collect();
        let mut contents = Blobs { ids, reader: Box::new(&mut counting), known };
        let values = (0..blobs.len()).map(|file| contents.value(file, compress).unwrap()).collect();
        drop(contents);
        (values, counting.0)
    }

    #[test]
    fn what_the_last_plan_still_holds_is_not_read_again() {
        let known = KnownValues::default();
        let (first, read) = values(&[1, 2, 3, 2], false, &known);
        assert_eq!(read, 3, "and none twice for one plan");
        let (second, read) = values(&[1, 4, 2], false, &known);
        assert_eq!(read, 1);
        assert_eq!([&second[0], &second[2]], [&first[0], &first[1]]);
        assert_eq!(second[1].bytes(), [4; 20]);
        assert_eq!(values(&[1], true, &known).1, 1, "compressed it is another value");
        drop((first, second));
        assert_eq!(values(&[1], false, &known).1, 1, "no plan has it any more");
    }
}
